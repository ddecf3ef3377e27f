"""Changes to files that happen together or not at all.

A running server maps the plugin's file, so no file is ever written in place: new bytes go to a
temporary file beside the target, are synced, and take the target's name by rename. What had the
name before keeps living under a temporary one until all steps are done, and gets its name back
if one of them fails.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from firebird_cdc.errors import SetupError

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{12}\.tmp")


@dataclass(slots=True)
class FileChanges:
    """A context manager: leaving it with an exception undoes what was done inside.

    Every method raises SetupError with path and cause. Not meant for several threads.
    """

    _undo: list[Callable[[], object]] = field(default_factory=list)
    _forget: list[Callable[[], object]] = field(default_factory=list)
    _folders: set[Path] = field(default_factory=set)

    def __enter__(self) -> FileChanges:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            for folder in self._folders:
                if folder.is_dir():
                    with _explained("sync", folder):
                        _sync(folder)
            # Whatever stays behind here is only a temporary file: the work is done.
            for forget in self._forget:
                with contextlib.suppress(OSError):
                    forget()
            return
        for undo in reversed(self._undo):
            # One step that can't be undone must not keep the others from it.
            with contextlib.suppress(OSError):
                undo()

    def write(
        self, path: Path, data: bytes, mode: int = 0o644, owner: tuple[int, int] | None = None
    ) -> None:
        """Give PATH the bytes DATA. A file that is there keeps its own mode and owner."""
        with _explained("write", path):
            if path.exists():
                status = path.stat()
                mode, owner = status.st_mode & 0o7777, (status.st_uid, status.st_gid)
            temporary = _beside(path)
            self._undo.append(lambda: temporary.unlink(missing_ok=True))
            with temporary.open("xb") as file:
                file.write(data)
                os.fchmod(file.fileno(), mode)
                if owner is not None and owner != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), *owner)
                file.flush()
                os.fsync(file.fileno())
            self._take_place(temporary, path)

    def link(self, path: Path, target: Path) -> None:
        """Make PATH a symbolic link to TARGET, in one step also where a file or link is there."""
        with _explained("link", path):
            temporary = _beside(path)
            self._undo.append(lambda: temporary.unlink(missing_ok=True))
            temporary.symlink_to(target)
            self._take_place(temporary, path)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        with _explained("remove", path):
            old = _beside(path)
            path.rename(old)
            self._undo.append(lambda: old.rename(path))
            self._forget.append(old.unlink)
            self._folders.add(path.parent)

    def make_directory(self, path: Path, mode: int, owner: tuple[int, int] | None = None) -> None:
        """Make PATH with its missing parents (those 0755, of the caller's)."""
        with _explained("make", path):
            missing = [p for p in (path, *path.parents) if not p.exists()]
            for folder in reversed(missing):
                folder.mkdir(mode=mode if folder == path else 0o755)
                self._undo.append(folder.rmdir)
                self._folders.add(folder.parent)
                if folder != path:
                    folder.chmod(0o755)  # the caller's umask may keep the server's user out
            path.chmod(mode)
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.chown(path, *owner)

    def remove_directory(self, path: Path) -> None:
        """Remove a directory once all is done, if nothing is in it then."""
        self._forget.append(path.rmdir)
        self._folders.add(path.parent)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with all that is in it, for good: do it before what can be undone."""
        with _explained("remove", path):
            shutil.rmtree(path)
        self._folders.add(path.parent)

    def _take_place(self, temporary: Path, path: Path) -> None:
        if os.path.lexists(path):
            old = _beside(path)
            try:
                os.link(path, old, follow_symlinks=False)
            except OSError:  # a file system without hard links, or a protected file
                shutil.copy2(path, old, follow_symlinks=False)
            self._undo.append(lambda: old.unlink(missing_ok=True))
            temporary.rename(path)
            self._undo.append(lambda: old.rename(path))
            self._forget.append(old.unlink)
        else:
            temporary.rename(path)
            self._undo.append(path.unlink)
        self._folders.add(path.parent)


class _explained(contextlib.AbstractContextManager["_explained"]):
    """Turns an OSError into a SetupError that says what could not be done, where and why."""

    def __init__(self, verb: str, path: Path) -> None:
        self._verb = verb
        self._path = path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not isinstance(error, OSError):
            return
        hint = "run as root or as the server's owner" if os.geteuid() else "make it writable"
        raise SetupError(
            f"cannot {self._verb} {self._path}: {error.strerror}; all files are as they were. "
            f"Then {hint} and run the command again"
        ) from error


def leftovers(folder: Path, names: Iterable[str]) -> list[Path]:
    """Return the temporary files for NAMES that a run left in FOLDER because it was killed."""
    wanted = set(names)
    found = {path: _TEMPORARY.fullmatch(path.name) for path in folder.glob(".*.tmp")}
    return sorted(path for path, match in found.items() if match and match[1] in wanted)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
