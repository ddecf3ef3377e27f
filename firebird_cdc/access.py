"""For whom we make files in a journal folder: for its owner, or for its group as well.

The folder says so by its own mode. One with 2770 is worked in by two users of one group, the
server's and the shipper's: what is made in it, by whichever of them, is for the group to read and
write, and so are folders in it. In any other folder all that is made is for its owner alone.
native/access.c does the same in the plugin.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

SHARED: Final = stat.S_ISGID | stat.S_IRWXG
_FOLDER: Final = SHARED | stat.S_IRWXU
_FILE: Final = 0o660

_ATTEMPTS = 50  # another process may have just made it, and not yet opened it to the group
_ATTEMPT_PAUSE_S = 0.002


def is_shared(folder: Path) -> bool:
    """Tell whether FOLDER is one that its group works in, too. Raises OSError."""
    return folder.stat().st_mode & SHARED == SHARED


def open_file(path: Path, flags: int) -> int:
    """Return a descriptor of PATH, which is for those that its folder is for if FLAGS have it
    made. Raises OSError."""
    for _ in range(_ATTEMPTS):
        try:
            return _open(path, flags)
        except PermissionError:
            if not is_shared(path.parent):
                raise
        time.sleep(_ATTEMPT_PAUSE_S)
    return _open(path, flags)


def _open(path: Path, flags: int) -> int:
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    if flags & os.O_CREAT:
        try:
            share_file(fd, path.parent)
        except BaseException:
            os.close(fd)
            raise
    return fd


def share_file(fd: int, folder: Path) -> None:
    """Have the file FD be for those that FOLDER is for, in which it is. Raises OSError."""
    made = os.fstat(fd)
    if made.st_mode & _FILE != _FILE and made.st_uid == os.geteuid() and is_shared(folder):
        os.fchmod(fd, _FILE)


def make_directory(path: Path) -> bool:
    """Make the folder PATH, for those that the one above it is for; return whether it was missing.
    Raises OSError."""
    shared = False
    with suppress(FileNotFoundError):  # which is told of PATH
        shared = is_shared(path.parent)
    try:
        path.mkdir(mode=0o770 if shared else 0o700)
    except FileExistsError:
        return False
    except OSError:  # the folder above may not be for us to write, with PATH in it all the same
        if not path.is_dir():
            raise
        return False
    # A service may be kept from setting this bit, which comes from above; its mask lets it pass.
    if shared and path.stat().st_mode & _FOLDER != _FOLDER:
        path.chmod(_FOLDER)
    return True


def write_file(path: Path, content: bytes) -> None:
    """Have CONTENT in the file PATH, which is for those that its folder is for. Raises OSError."""
    with os.fdopen(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(content)
