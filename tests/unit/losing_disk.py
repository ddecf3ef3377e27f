"""A disk on which syncs fail as the kernel has them fail, and the power cut after that.

A sync that fails is told once. What it could not write counts as written from then on: pages of a
file, names in a folder. Later syncs pass over that and succeed, until something changes it again.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_PAGE = 4096


@dataclass(eq=False)
class _File:
    durable: bytes = b""
    passed_over: dict[int, bytes] = field(default_factory=dict)  # by offset of the page

    def lose(self, content: bytes) -> None:
        for at in range(0, len(content), _PAGE):
            if content[at : at + _PAGE] != self.durable[at : at + _PAGE]:
                self.passed_over[at] = content[at : at + _PAGE].ljust(_PAGE, b"\0")

    def settle(self, content: bytes) -> None:
        durable, before = bytearray(content), self.durable.ljust(len(content), b"\0")
        for at in [at for at in self.passed_over if at < len(content)]:
            page = content[at : at + _PAGE]
            if self.passed_over[at] == page.ljust(_PAGE, b"\0"):
                durable[at : at + len(page)] = before[at : at + len(page)]
            else:
                del self.passed_over[at]
        self.durable = bytes(durable)


class _Folder:
    """The names of files in a folder: which are on disk, and which a failed sync left out."""

    def __init__(self, names: dict[str, _File]) -> None:
        self.durable = names
        self.passed_over: dict[str, _File | None] = {}  # what they stood for then

    def lose(self, names: dict[str, _File]) -> None:
        for name in {*names, *self.durable}:
            if names.get(name) is not self.durable.get(name):
                self.passed_over[name] = names.get(name)

    def found(self, names: dict[str, _File]) -> dict[str, _File]:
        """Return what a cut leaves of what they are now."""
        found = dict(names)
        for name, then in self.passed_over.items():
            if names.get(name) is not then:
                continue  # changed again since
            found.pop(name, None)
            if name in self.durable:
                found[name] = self.durable[name]
        return found

    def settle(self, names: dict[str, _File]) -> None:
        self.durable = self.found(names)
        for name, then in [*self.passed_over.items()]:
            if names.get(name) is not then:
                del self.passed_over[name]


class LosingDisk:
    """Content that is on disk of the files below a folder, by the syncs that this process makes.

    A name is on disk, unless a sync of its folder that failed was to write it; the names of folders
    always are.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._take_for_durable()
        self.fails: Callable[[Path], bool] = lambda _: False
        self.folder_fails: Callable[[Path], bool] = lambda _: False
        self.failed: list[Path] = []
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._syncing(getattr(os, name)))
        monkeypatch.setattr(os, "pwrite", self._writing(os.pwrite))
        for name in ("link", "rename", "replace", "unlink"):
            monkeypatch.setattr(os, name, self._naming(getattr(os, name)))

    def _take_for_durable(self) -> None:
        self._files: defaultdict[int, _File] = defaultdict(_File)  # by inode
        for path in self._paths():
            self._files[path.stat().st_ino].durable = path.read_bytes()
        self._folders = {each: _Folder(self._names(each)) for each in self._all_folders()}

    def _paths(self) -> list[Path]:
        return [path for path in self._root.rglob("*") if path.is_file()]

    def _all_folders(self) -> list[Path]:
        return [self._root, *(path for path in self._root.rglob("*") if path.is_dir())]

    def _names(self, folder: Path) -> dict[str, _File]:
        files = [path for path in folder.iterdir() if path.is_file()]
        return {path.name: self._files[path.stat().st_ino] for path in files}

    def _syncing(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            path = Path(f"/proc/self/fd/{fd}").readlink()
            if (self.folder_fails if path.is_dir() else self.fails)(path):
                self.fail(fd)
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            real(fd)
            self._take(fd, fails=False)

        return sync

    def fail(self, fd: int) -> None:
        """Do what a sync does that fails, but for telling."""
        self._take(fd, fails=True)
        self.failed.append(Path(f"/proc/self/fd/{fd}").readlink())

    def _take(self, fd: int, fails: bool) -> None:
        path = Path(f"/proc/self/fd/{fd}")
        if path.is_dir():
            place = path.readlink()
            if not place.is_relative_to(self._root):
                return  # others make and remove files there at any time
            folder = self._folders.setdefault(place, _Folder({}))
            (folder.lose if fails else folder.settle)(self._names(path))
        elif path.is_file():
            file = self._files[os.fstat(fd).st_ino]
            (file.lose if fails else file.settle)(path.read_bytes())

    def _writing(self, real: Callable[[int, bytes, int], int]) -> Callable[[int, bytes, int], int]:
        def write(fd: int, content: bytes, offset: int) -> int:
            lost = self._files[os.fstat(fd).st_ino].passed_over
            for at in [at for at in lost if at < offset + len(content) and offset < at + _PAGE]:
                del lost[at]  # it is written again as a whole
            return real(fd, content, offset)

        return write

    def _naming(self, real: Callable[..., None]) -> Callable[..., None]:
        def change(*paths: Path | str, **named: int) -> None:
            gone = None
            if not named and os.path.lexists(paths[-1]) and os.lstat(paths[-1]).st_nlink == 1:
                gone = os.lstat(paths[-1]).st_ino
            real(*paths, **named)
            if gone is not None:
                self._files.pop(gone, None)  # another file may get the inode
            for path in () if named else map(Path, paths):
                if folder := self._folders.get(path.parent):
                    folder.passed_over.pop(path.name, None)  # the folder is written again

        return change

    def sync_all(self) -> None:
        """Do what a sync of the file system does."""
        for path in self._paths():
            self._files[path.stat().st_ino].settle(path.read_bytes())

    def fail_all(self) -> None:
        """Do what a sync of the file system does that fails; names are left as they are."""
        for path in self._paths():
            self._files[path.stat().st_ino].lose(path.read_bytes())
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def cut(self) -> None:
        """Leave of every file what is on disk, under the names that are."""
        for folder in self._all_folders():
            names = self._names(folder)
            found = self._folders[folder].found(names) if folder in self._folders else names
            for name in {*names, *found}:
                path = folder / name
                if names.get(name) is not found.get(name):
                    path.unlink(missing_ok=True)
                if name in found:
                    path.write_bytes(found[name].durable)
        self._take_for_durable()


def once(pattern: str) -> Callable[[Path], bool]:
    """Meet the first file in whose name this is."""
    met: list[Path] = []

    def is_meant(path: Path) -> bool:
        if pattern in path.name and not met:
            met.append(path)
            return True
        return False

    return is_meant
