"""Opens log files with care, and stands in for those that can't be had.

A server mostly has no standard error that anybody reads. So where the log file can't be had, lines
go there only if it leads somewhere, else warnings and errors go to the system's log; what nobody
gets is counted, and said by `status`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import stat
from pathlib import Path
from typing import Final, NamedTuple

SYSLOG: Final = "/dev/log"

_ERROR, _WARNING = 3, 4  # syslog(3); the facility is daemon
_DAEMON: Final = 3 << 3
_MOST_SYSLOG_BYTES: Final = 2048
_OPEN_TRIES: Final = 3  # others may rename or remove the file meanwhile


class OpenLog(NamedTuple):
    """A log file that is open for appending. ``path``: with links resolved that were followed;
    ``is_given``: this is root, and the file that of the user whose folder it is in, as one would be
    that takes its place."""

    fd: int
    path: Path
    identity: tuple[int, int]
    is_regular: bool
    is_given: bool


def open_log(path: Path) -> OpenLog:
    """Open a log file, or make it, readable by its owner only. Raises OSError.

    In a folder of another user, or one that all may write to, nothing is written to what its users
    could have put there: a link, a file of somebody else's, one with a second name. What root makes
    in a folder that is one user's alone belongs to that user, whom it would shut out otherwise.
    """
    if not _is_foreign(path.parent):
        path = Path(os.path.realpath(path))
    folder = path.parent.stat()
    is_foreign, is_open = _is_foreign(path.parent), bool(folder.st_mode & stat.S_IWOTH)
    # A pipe that nobody reads must not stop the server.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
    flags |= os.O_NOFOLLOW if is_foreign else 0
    fd, is_new = _open_or_make(path, flags)
    try:
        if is_new and os.geteuid() == 0 and not is_open:
            os.fchown(fd, folder.st_uid, folder.st_gid)
        found = os.fstat(fd)
        known = {os.geteuid()} | (set() if is_open else {folder.st_uid})
        if is_foreign and (found.st_uid not in known or found.st_nlink != 1):
            whose = f"belongs to user {found.st_uid}"
            what = whose if found.st_nlink == 1 else "has several names"
            where = "open to all" if is_open else f"user {folder.st_uid}'s"
            raise PermissionError(errno.EPERM, f"it {what}, in a folder that is {where}")
    except BaseException:
        os.close(fd)
        raise
    return OpenLog(
        fd,
        path,
        (found.st_dev, found.st_ino),
        stat.S_ISREG(found.st_mode),
        os.geteuid() == 0 and not is_open and found.st_uid == folder.st_uid,
    )


def _is_foreign(folder: Path) -> bool:
    """Tell whether others than this user and root decide what lies in FOLDER."""
    found = folder.stat()
    return bool(found.st_mode & stat.S_IWOTH) or found.st_uid not in (0, os.geteuid())


def _open_or_make(path: Path, flags: int) -> tuple[int, bool]:
    """Return a descriptor, and whether the file is new."""
    for _ in range(_OPEN_TRIES):
        try:
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600), True
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, flags), False
    raise FileNotFoundError(errno.ENOENT, "it was created and removed again, repeatedly", str(path))


def why_unwritable(path: Path) -> str | None:
    """Tell why this user can't write to the log file PATH, None if it can; makes nothing."""
    wanted = path if path.exists() else path.parent
    if not wanted.exists():
        return f"{wanted} does not exist"
    mode = os.W_OK if wanted == path else os.W_OK | os.X_OK
    return None if os.access(wanted, mode) else f"no permission to write to {wanted}"


class StandIn:
    """Takes the lines that can't go to the log file. ``missed``: how many nobody got."""

    def __init__(self) -> None:
        self.missed = 0

    @property
    def name(self) -> str:
        """The place that lines go to now, for a sentence that goes there."""
        if _is_heard():
            return "logging goes to stderr"
        return "warnings and errors go to the system's log (syslog)"

    def take(self, line: bytes, is_error: bool, is_warning: bool) -> None:
        """Have somebody get LINE; never raises, waits for nobody."""
        if _is_heard():
            to_stderr(line)
        elif not ((is_error or is_warning) and _to_syslog(line, _ERROR if is_error else _WARNING)):
            self.missed += 1


def _is_heard() -> bool:
    """Tell whether standard error leads anywhere."""
    try:
        found = os.fstat(2)
        return not (
            stat.S_ISCHR(found.st_mode) and found.st_rdev == Path(os.devnull).stat().st_rdev
        )
    except OSError:
        return False


def _to_syslog(line: bytes, priority: int) -> bool:
    """Send LINE to the system's log; return whether it took it.

    Not by syslog(3): its name for us would become the server's. Nor by a library's handler, which
    waits where nobody reads the socket.
    """
    head = f"<{_DAEMON | priority}>firebird-cdc[{os.getpid()}]: ".encode()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            sender.connect(SYSLOG)
            sender.send((head + line.rstrip(b"\n"))[:_MOST_SYSLOG_BYTES])
    except OSError:
        return False
    return True


def to_stderr(line: bytes) -> None:
    """Write what standard error takes at once of LINE: nobody may be reading it."""
    # Not sys.stderr: a server may have none, and Python's own object may be gone at exit.
    with contextlib.suppress(OSError):
        ready = select.poll()
        ready.register(2, select.POLLOUT)
        while line and ready.poll(0):
            line = line[write_quietly(2, line[: select.PIPE_BUF]) :]


def write_quietly(fd: int, data: bytes) -> int:
    """Write to what may be a pipe whose reader is gone, without the signal that would end us."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        return os.write(fd, data)
    except BrokenPipeError:
        signal.sigtimedwait({signal.SIGPIPE}, 0)  # which is this thread's
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
