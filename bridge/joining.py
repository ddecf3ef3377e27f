"""Lets new processes of the server join this one without a bridge of their own.

See journal/folder/join_file.py. The thread fbc-join looks once a second whether the process that
has published the file still lives, and takes its place if not.
"""

from __future__ import annotations

import threading
import time

import logbook

from firebird_cdc.journal.folder.join_file import JoinFile

_log = logbook.Logger("firebird_cdc.bridge.joining")

_LOOK_S = 1.0


class Joining:
    """The file by which others join. ``use`` may be called from any thread, again with other
    options. What goes wrong is logged, once: others start a bridge of their own then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: JoinFile | None = None
        self._told = ""

    def use(self, file: JoinFile) -> None:
        """Publish this one from now on."""
        with self._lock:
            is_first = self._file is None
            self._file = file
            self._try(file, is_new=True)
        if is_first:
            threading.Thread(target=self._run, name="fbc-join", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            with self._lock:
                assert self._file is not None
                self._try(self._file, is_new=False)

    def _try(self, file: JoinFile, *, is_new: bool) -> None:
        try:
            if is_new:
                file.publish()
            else:
                file.look()
            self._told = ""
        except Exception as error:
            if self._told != str(error):
                _log.warning(
                    "new server processes start slowly, as none can join this one: {}", error
                )
            self._told = str(error)
