"""Reads /proc: the machine's processes, the files they have mapped, and who holds a lock.

Source: proc(5), /proc/PID/maps and /proc/locks. Files are known by their inodes, as names depend on
who looks: one that was replaced, and one in a chroot or container, are called otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class MappedFile(NamedTuple):
    """A file that a process has mapped; ``path``: as that process sees it."""

    inode: int
    path: str

    @property
    def name(self) -> str:
        """Return its name without the folder."""
        return self.path.rpartition("/")[2]


def processes() -> Iterator[Path]:
    """Yield the folders in /proc of all processes that can be seen; none where it isn't mounted."""
    return PROC.glob("[0-9]*")


def mapped_files(process: Path) -> Iterator[MappedFile]:
    """Yield the files that PROCESS (its folder) has mapped, once for each part of them.

    Raises OSError with the first one: it has ended, or may not be looked at (PermissionError).
    """
    for line in (process / "maps").read_text("utf-8", "surrogateescape").splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and words[5].startswith("/"):
            yield MappedFile(int(words[4]), words[5].removesuffix(" (deleted)"))


class FlockHolders:
    """The processes that hold a lock by flock(2), at the moment this is made.

    Raises OSError where /proc can't be read.
    """

    def __init__(self) -> None:
        self._holders: dict[str, int] = {}
        for line in (PROC / "locks").read_text("ascii").splitlines():
            words = line.split()
            if len(words) > 5 and words[1] == "FLOCK":  # one that waits has "->" there
                self._holders[words[5]] = int(words[4])

    def of(self, file: Path) -> int | None:
        """Return the number of a process that has FILE locked; None: nobody. Raises OSError."""
        status = file.stat()
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        return self._holders.get(f"{device}:{status.st_ino}")
