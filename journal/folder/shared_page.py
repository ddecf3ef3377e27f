"""The word of the process that confirms journals on itself, and a watch over it in the shipper.

Whoever holds ``confirmer.lock`` writes its process and the time into the page of the tickets, in
each turn (bridge/confirm/loop.py). One that is alive but hangs keeps the lock. Nobody works around
it, as two that confirm would give a number twice: it is reported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from typing import Final, NamedTuple

from firebird_cdc.journal.folder.locks import STATE_DIRECTORY, is_held
from firebird_cdc.journal.folder.subjects import CONFIRMER, UNDECIDED, TroubleKind

TICKETS: Final = "tickets"
"""The file that all processes of a journal folder have mapped."""

TICKETS_BYTES: Final = 4096
UNDECIDED_AT: Final = slice(24, 32)
HEARTBEAT_AT: Final = slice(88, 96)
CONFIRMING_AT: Final = slice(96, 104)
RETIRED_AT: Final = slice(104, 112)
UNREAD_AT: Final = slice(112, 120)
"""Places in it, as u64: how many journals can't be decided or published; when the process
that confirms last came round, CLOCK_MONOTONIC in milliseconds; that process, 0: none; whether the
file has lost its name, so that nobody may draw tickets from it; when a journal that can't be read
was met, CLOCK_MONOTONIC in milliseconds, 0: all can."""

LOCK: Final = "confirmer.lock"

HUNG_S: Final = 30.0
"""Bound on silence: a confirmer that has not come round for so long hangs; a turn takes
milliseconds."""

_FRESH_S = 1.0  # younger than this nobody has to be asked whether the process still lives


class ConfirmerState(NamedTuple):
    """The process that confirms. ``silent_s``: since ``process`` last came round, which lives and
    holds the lock; 0: it did just now, or nobody confirms."""

    undecided: int = 0
    process: int = 0
    silent_s: float = 0.0

    def troubles(self, directory: Path) -> dict[str, tuple[TroubleKind, str]]:
        """Return what is wrong in the journal folder DIRECTORY, by subject."""
        found: dict[str, tuple[TroubleKind, str]] = {}
        if self.silent_s > HUNG_S:
            found[CONFIRMER] = (
                "halted",
                f"process {self.process}, which confirms the journals in {directory}, has not come "
                f"round for more than {HUNG_S:.0f} s: what is committed is not published. No other "
                "takes over while it lives; see what it waits for (its disk, a debugger that "
                "stopped it), or end it",
            )
        if self.undecided:
            count = "1 journal" if self.undecided == 1 else f"{self.undecided} journals"
            found[UNDECIDED] = (
                "waiting",
                f"{count} can't be published yet, as the transaction is in limbo (gfix -list shows "
                "it), other connections may know it as committed though the file doesn't say so, "
                "or the database or its numbers can't be read (the log says which); kept until "
                "that is known",
            )
        return found


def read_confirmer(directory: Path, is_locked: Callable[[Path], bool] = is_held) -> ConfirmerState:
    """Return what is told in the journal folder DIRECTORY; nothing where there is no such page.

    Never raises. Takes some microseconds.
    """
    state = directory / STATE_DIRECTORY
    try:
        fd = os.open(state / TICKETS, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            page = os.read(fd, TICKETS_BYTES)
        finally:
            os.close(fd)
        undecided, beat_ms, process = (
            int.from_bytes(page[at], "little") for at in (UNDECIDED_AT, HEARTBEAT_AT, CONFIRMING_AT)
        )
        silent_s = monotonic_ns() / 1e9 - beat_ms / 1e3  # below 0: of the time before a boot
        if not process or silent_s < _FRESH_S or not is_locked(state / LOCK):
            silent_s = 0.0
    except OSError:
        return ConfirmerState()
    return ConfirmerState(undecided, process, silent_s)
