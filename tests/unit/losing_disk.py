"""A disk on which syncs fail as the kernel has them fail, and the power cut after that.

A sync that fails is told once. The pages that it could not write count as written from then on:
later syncs pass over them and succeed, until something changes them again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

_PAGE = 4096


class LosingDisk:
    """What of the files below a folder is on disk, by the syncs that this process makes."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._durable = {path.stat().st_ino: path.read_bytes() for path in self._files()}
        self._passed_over: dict[int, dict[int, bytes]] = {}  # by inode and page
        self.fails: Callable[[Path], bool] = lambda _: False
        self.failed: list[Path] = []
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._syncing(getattr(os, name)))
        monkeypatch.setattr(os, "pwrite", self._writing(os.pwrite))
        monkeypatch.setattr(os, "unlink", self._unlinking(os.unlink))

    def _files(self) -> list[Path]:
        return [path for path in self._root.rglob("*") if path.is_file()]

    def _syncing(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            path = Path(f"/proc/self/fd/{fd}").readlink()
            inode = os.fstat(fd).st_ino
            if path.is_dir():
                real(fd)
            elif self.fails(path):
                self.fail(fd)
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            else:
                real(fd)
                self._settle(inode, Path(f"/proc/self/fd/{fd}").read_bytes())

        return sync

    def fail(self, fd: int) -> None:
        """Do what a sync does that fails, but for telling."""
        path = Path(f"/proc/self/fd/{fd}")
        if path.is_file():
            self._lose(os.fstat(fd).st_ino, path.read_bytes())
        self.failed.append(path.readlink())

    def _writing(self, real: Callable[[int, bytes, int], int]) -> Callable[[int, bytes, int], int]:
        def write(fd: int, content: bytes, offset: int) -> int:
            lost = self._passed_over.get(os.fstat(fd).st_ino, {})
            for at in [at for at in lost if at < offset + len(content) and offset < at + _PAGE]:
                del lost[at]  # it is written again as a whole
            return real(fd, content, offset)

        return write

    def _unlinking(self, real: Callable[..., None]) -> Callable[..., None]:
        def unlink(path: Path | str, **named: int) -> None:
            if not named and os.path.lexists(path) and os.lstat(path).st_nlink == 1:
                inode = os.lstat(path).st_ino  # another file may get it
                self._durable.pop(inode, None)
                self._passed_over.pop(inode, None)
            real(path, **named)

        return unlink

    def _lose(self, inode: int, content: bytes) -> None:
        durable = self._durable.get(inode, b"")
        lost = self._passed_over.setdefault(inode, {})
        for at in range(0, len(content), _PAGE):
            if content[at : at + _PAGE] != durable[at : at + _PAGE]:
                lost[at] = content[at : at + _PAGE]

    def _settle(self, inode: int, content: bytes) -> None:
        before = self._durable.get(inode, b"").ljust(len(content), b"\0")
        lost = self._passed_over.get(inode, {})
        pages = []
        for at in range(0, len(content), _PAGE):
            page = content[at : at + _PAGE]
            if lost.get(at) == page:
                pages.append(before[at : at + len(page)])
            else:
                lost.pop(at, None)
                pages.append(page)
        self._durable[inode] = b"".join(pages)

    def sync_all(self) -> None:
        """Do what a sync of the file system does."""
        for path in self._files():
            self._settle(path.stat().st_ino, path.read_bytes())

    def fail_all(self) -> None:
        """Do what a sync of the file system does that fails."""
        for path in self._files():
            self._lose(path.stat().st_ino, path.read_bytes())
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def cut(self) -> None:
        """Leave of every file what is on disk, under the name that it has."""
        for path in self._files():
            path.write_bytes(self._durable.get(path.stat().st_ino, b""))
        self._passed_over.clear()


def once(pattern: str) -> Callable[[Path], bool]:
    """Meet the first file in whose name this is."""
    met: list[Path] = []

    def is_meant(path: Path) -> bool:
        if pattern in path.name and not met:
            met.append(path)
            return True
        return False

    return is_meant
