"""Notices that the last server process of a journal folder has ended."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import logbook

from firebird_cdc.bridge.recovery import Recovery
from firebird_cdc.journal.folder.join_file import join_path
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY, bridge_present

_log = logbook.Logger("firebird_cdc.journal.shipper.server_watch")

LAST_LOOK_S = 30.0
"""Time for deciding what the last server left, however little time there is for Kafka."""

_LOOK_S = 1.0
_LINGER_S = 10.0  # under Classic: another connection may come soon, and needs no bridge then


class ServerWatch:
    """The server processes with a bridge on DIRECTORY.

    ``is_gone``: there is none; ``is_settled``: and it is decided what the last one left, or there
    is no time for it.
    """

    def __init__(self, directory: Path, recovery: Recovery) -> None:
        self.is_settled = False
        self._directory = directory
        self._recovery = recovery
        self._gone_at: float | None = None
        self._was_met = False
        self._next_look = 0.0

    @property
    def is_gone(self) -> bool:
        """Tell whether no server process was there at the last look."""
        return self._gone_at is not None

    def _awaits_others(self, gone_s: float) -> bool:
        """Tell whether, so long after the last one has gone, processes may still join a server
        that goes on: this shipper confirms for them."""
        return gone_s < _LINGER_S and join_path(self._directory / STATE_DIRECTORY).exists()

    def have_settled(self) -> bool:
        """Tell whether it is settled since the last call; look for server processes, if it is
        time."""
        was_settled = self.is_settled
        self._look()
        return self.is_settled and not was_settled

    def _look(self) -> None:
        now = monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        if bridge_present(self._directory):
            self._gone_at = None
            self.is_settled = False
            self._was_met = True
        elif self._gone_at is None:
            if self._was_met:
                _log.info("the last server process on {} has ended", self._directory)
            self._gone_at = now
        elif self._awaits_others(now - self._gone_at):
            pass
        elif self._recovery.is_clear_since(self._gone_at) or now - self._gone_at > LAST_LOOK_S:
            self.is_settled = True
