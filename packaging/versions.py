"""Puts one of the versions beside each other to use, and removes those that nobody needs."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from firebird_cdc.config import load_capture
from firebird_cdc.errors import SetupError
from firebird_cdc.journal.folder.folder_format import FORMAT, format_of
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.folder.notes import QUARANTINE
from firebird_cdc.journal.folder.processes import is_newer
from firebird_cdc.journal.format.layout import MAGIC, SHARED_VERSION
from firebird_cdc.packaging.server.locating import configs_of, find_servers
from firebird_cdc.packaging.server.procfs import mapped_files, processes
from firebird_cdc.tree import Tree

_SHOWN = 3


class Readable(NamedTuple):
    """The newest formats of journals and of their folders that a version can read."""

    version: str
    journals: int = SHARED_VERSION
    folders: int = FORMAT


def refuse_going_back(tree: Tree) -> None:
    """Raise SetupError if TREE is older than the version in use, and a journal folder of this
    machine has something that it can't read."""
    used = tree.version_in_use()
    if used is not None and is_newer(used, tree.version):
        refuse_unreadable(Readable(tree.version), used)


def refuse_unreadable(older: Readable, used: str) -> None:
    """Raise SetupError if a journal folder of this machine has something that OLDER can't read,
    which is to take the place of the version USED."""
    for config in configs_of(find_servers()):
        with contextlib.suppress(FileNotFoundError):
            _refuse_unreadable(load_capture(config).journal_directory, older, used)


def _refuse_unreadable(directory: Path, older: Readable, used: str) -> None:
    told = format_of(directory)
    if told > older.folders:
        raise SetupError(
            f"{directory} has format {told}, of a newer version, and {older.version} knows formats"
            f" up to {older.folders}: go on with {used}"
        )
    newer = [path for path in _journals(directory) if _format_of(path) > older.journals]
    if newer:
        named = ", ".join(path.name for path in newer[:_SHOWN]) + (", …" if newer[_SHOWN:] else "")
        raise SetupError(
            f"{len(newer)} journals in {directory} are of a newer version, and {older.version}"
            f" can't read them ({named}): have {used} ship them first, then run this again"
        )


def _journals(directory: Path) -> Iterator[Path]:
    yield from sorted(directory.glob("*.log*"))
    yield from sorted((directory / STATE_DIRECTORY / QUARANTINE).glob("*.log"))


def _format_of(journal: Path) -> int:
    try:
        with journal.open("rb") as file:
            head = file.read(len(MAGIC) + 2)
    except FileNotFoundError:  # shipped meanwhile
        return 0
    return int.from_bytes(head[len(MAGIC) :], "little") if head.startswith(MAGIC) else 0


# ---------------------------------------------------------------------- removing


def prune(tree: Tree, keep: str | None = None) -> list[str]:
    """Remove the versions beside TREE that no process has mapped, and say what became of each.

    keep: one that stays all the same: a server may be about to load what the link led to until now.
    """
    said = []
    for folder in tree.others():
        if tree.version_in_use() == folder.name or folder.name == keep:
            continue
        users = processes_of(folder)
        if users is None:
            said.append(
                f"{folder} stays: who uses it can't be seen; run this as root (in a container: with"
                " the capability SYS_PTRACE)"
            )
        elif users:
            named = ", ".join(map(str, users[:_SHOWN])) + (", …" if users[_SHOWN:] else "")
            said.append(f"{folder} stays while processes run with it ({named})")
        else:
            _remove(folder)
            said.append(f"removed {folder}")
    return said


def _remove(folder: Path) -> None:
    # Out of the way first: what is half removed must not look like a version.
    doomed = folder.with_name(f".{folder.name}.removed")
    with contextlib.suppress(FileNotFoundError):
        if not folder.name.startswith("."):
            shutil.rmtree(doomed, ignore_errors=True)
            folder = folder.rename(doomed)
        shutil.rmtree(folder)


def processes_of(folder: Path) -> list[int] | None:
    """Return the processes that have files of FOLDER mapped or run from it, in whatever namespace
    they are; None if some can't be looked at.

    A process in a container or chroot has other paths: there the inode and name of a library tell.
    """
    inodes = {}
    for path in folder.rglob("*"):
        if ".so" in path.name or path.parent.name == "bin":
            inodes[path.lstat().st_ino] = path.name
    prefix = f"{folder}/"
    users = []
    for process in processes():
        try:
            mapped = list(mapped_files(process))
        except (FileNotFoundError, ProcessLookupError):
            continue
        except PermissionError:
            if os.geteuid() != 0 or not _is_of_root(process):
                return None
            continue  # what has more rights than root of a container is no server
        if any(f.path.startswith(prefix) or inodes.get(f.inode) == f.name for f in mapped):
            users.append(int(process.name))
    return users


def _is_of_root(process: Path) -> bool:
    """Tell whether PROCESS runs as root. Source: proc(5), /proc/PID/status."""
    with contextlib.suppress(OSError):
        for line in (process / "status").read_text("utf-8", "replace").splitlines():
            if line.startswith("Uid:"):
                return line.split()[1:3] == ["0", "0"]
    return True  # it has ended
