"""Decides what servers left that ended at any point: the shipper's part in capturing.

The database file tells what became of a transaction (inventory), so a journal whose server was
killed right after a commit is confirmed without a server, and without further work in the
database. It is the same confirmer that runs inside a server, with nobody to ask and nothing to
hear; the lock in the journal folder sees to it that one works at a time.

Thread: fbc-recovery looks every second, and when a process without a bridge calls; ``look`` does so
on the caller's thread, before the other is started.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import logbook

from firebird_cdc import access
from firebird_cdc.bridge.confirm.loop import Confirmer
from firebird_cdc.errors import CaptureError
from firebird_cdc.journal.folder.journal_folder import JournalFolder

_log = logbook.Logger("firebird_cdc.bridge.recovery")

_LOOK_S = 1.0
_MOMENT_S = 0.02
_FIRST_LOOK_S = 30.0  # for what one look may take before shipping begins


class Recovery:
    """Looks after one journal folder for servers that are gone.

    Never raises: what goes wrong is logged, once, and tried again.
    """

    def __init__(self, directory: Path, fsync: bool) -> None:
        self._directory = directory
        self._fsync = fsync
        self._stopping = threading.Event()
        self._folder: JournalFolder | None = None
        self._confirmer: Confirmer | None = None
        self._thread = threading.Thread(target=self._run, name="fbc-recovery", daemon=True)
        self._clear_at = float("-inf")
        self._told = ""

    def look(self) -> None:
        """Decide what can be decided now."""
        self._stopping.set()  # wait for nothing
        end = time.monotonic() + _FIRST_LOOK_S
        while (self._turn() or self._awaits_stamps()) and time.monotonic() < end:
            pass
        self._stopping.clear()

    def _awaits_stamps(self) -> bool:
        """Tell, after a moment, whether a server still restores what a power cut took of
        journals that are to be shipped. For what we ourselves can't restore nobody waits."""
        if self._confirmer is None or not self._confirmer.is_restore_due():
            return False
        time.sleep(_MOMENT_S)
        return True

    def start(self) -> None:
        """Look every second from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        while self._thread.is_alive():
            if (folder := self._folder) is not None:
                with contextlib.suppress(ValueError):  # closed by the thread just now
                    folder.page.end_waits()
            self._thread.join(_MOMENT_S)

    def _wait(self, seconds: float) -> bool:
        """Wait so long, or less, for commits of processes without a bridge; return whether there
        were any."""
        if self._stopping.is_set() or self._folder is None:
            return False
        return self._folder.page.await_call(seconds)

    def is_clear_since(self, moment: float) -> bool:
        """Tell whether a look that began after MOMENT (monotonic) found nothing to do any more."""
        return self._clear_at >= moment

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._turn()

    def _turn(self) -> bool:
        """Look once; return whether more is to be done at once."""
        began = time.monotonic()
        try:
            confirmer = self._opened()
        except CaptureError as error:
            if str(error) != self._told:
                _log.warning("journals of ended server processes can't be processed: {}", error)
            self._told = str(error)
            self._stopping.wait(_LOOK_S)
            self._clear_at = began
            return False
        self._told = ""
        if confirmer.turn():
            return True
        self._clear_at = began
        return False

    def _opened(self) -> Confirmer:
        """Return the confirmer of the folder that is there now."""
        if self._folder is not None and not self._folder.is_in_place():
            if self._confirmer is not None:
                self._confirmer.let_go()
            self._folder.close()
            self._folder = self._confirmer = None
        if self._confirmer is None:
            self._check_user()
            self._folder = JournalFolder(self._directory, writes=False)
            self._confirmer = Confirmer(None, self._folder, self._fsync, self._wait)
        return self._confirmer

    def _check_user(self) -> None:
        """Raise CaptureError unless this process runs as the folder's owner, or its group works
        there, too: the server must be able to use what is made there."""
        try:
            owner = self._directory.stat().st_uid
            is_shared = access.is_shared(self._directory)
        except OSError as error:
            raise CaptureError(f"{self._directory}: {error.strerror}") from error
        if owner != os.geteuid() and not is_shared:
            raise CaptureError(
                f"{self._directory} belongs to user {owner} and the shipper runs as "
                f"{os.geteuid()}; run it as the user of the database server, or have both work in"
                " the folder as one group (chmod 2770)"
            )
