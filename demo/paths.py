"""Folders in which the demo and the tests keep what they fetch and what they run."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import firebird_cdc

_PACKAGE = Path(firebird_cdc.__file__).resolve().parent


def clone_root() -> Path | None:
    """Return the top of the clone this package runs from, or None for an installed wheel."""
    root = _PACKAGE.parent
    return root if (root / "pyproject.toml").is_file() and (root / "Makefile").is_file() else None


def cache_directory() -> Path:
    """Return the folder of downloads: .cache in a clone, else the user's own cache folder."""
    root = clone_root()
    if root is not None:
        return root / ".cache"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "firebird-cdc"


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return FOLDER; where it isn't there, MAKE fills it, under another name until it is whole.

    One process does that at a time: others that want the same folder wait, and find it.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            part = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            try:
                make(part)
                part.rename(folder)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    return folder


def run_directory() -> Path:
    """Return the folder in which each run of a stack makes a folder of its own."""
    root = clone_root()
    return cache_directory() / "run" if root is None else root / ".run"


def debian_library_directories() -> list[Path]:
    """Return the library folders of the Debian packages that set-up unpacked into the clone."""
    return sorted((cache_directory() / "debian/root/usr/lib").glob("*-linux-gnu"))
