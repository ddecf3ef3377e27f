"""The folder ``definitions``: what bridges have found out of tables, for processes without one.

The plugin writes and reads the files in it (native/definitions.c). They count as long as somebody
is there who saw what became of the tables meanwhile: each process that writes journals holds a
shared lock on the folder, and whoever finds itself alone begins with an empty one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

from firebird_cdc import access
from firebird_cdc.journal.format import crc32c

_FOLDER: Final = "definitions"


def definitions_path(state: Path) -> Path:
    """Return where they are, in the state folder STATE."""
    return state / _FOLDER


def hold_definitions(state: Path) -> int:
    """Return a descriptor that says, as long as it is open, that this process is there; what is
    kept is removed if no other is. Raises OSError."""
    path = definitions_path(state)
    access.make_directory(path)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_all(path, "")
        fcntl.flock(fd, fcntl.LOCK_SH)
    except BaseException:
        os.close(fd)
        raise
    return fd


def forget_definitions(state: Path, database: str) -> None:
    """Remove what is kept of the database at a path. Raises OSError."""
    # As fbc_database_key in native/databases.c begins.
    key = crc32c.value(os.fsencode(database))
    _remove_all(definitions_path(state), f"{key:08x}")


def _remove_all(folder: Path, beginning: str) -> None:
    for path in folder.glob(f"{beginning}*"):
        path.unlink(missing_ok=True)
