"""The file of the page that all processes of a journal folder share: ``tickets/page``.

In version 0.1 the page was in a file ``tickets``. That version knows no shared journals: it would
put those that wait into its quarantine. So whoever writes journals makes a folder of that name, in
which it refuses to work, and moves the page there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Final

from firebird_cdc import access
from firebird_cdc.errors import CaptureError
from firebird_cdc.journal.folder.durable import sync_directory
from firebird_cdc.journal.folder.owners import Owners
from firebird_cdc.journal.format.layout import pwrite

_FOLDER: Final = "tickets"
_PAGE = "page"
_NEW = "tickets-new"  # until it has all that belongs in it
_README = """\
Journals in this folder are shared by transactions, and version 0.1 of firebird-cdc can't read them:
it would take them for damaged. To go back to it, see "Going back" in docs/upgrade.md.
"""


def page_path(state: Path) -> Path:
    """Return where the page is, in the folder STATE of a journal folder: where version 0.1 had it
    while nobody has written journals since."""
    folder = state / _FOLDER
    return folder if folder.is_file() else folder / _PAGE


def keep_former_version_out(state: Path, owners: Owners) -> None:
    """Have the page where version 0.1 finds none. Where that finds one, OWNERS that live are of
    that version: raises CaptureError then. Raises OSError."""
    if (state / _FOLDER).is_dir():
        return
    lock = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _move_page(state, owners)
    finally:
        os.close(lock)


def _move_page(state: Path, owners: Owners) -> None:
    folder, new = state / _FOLDER, state / _NEW
    if folder.is_dir():  # by another process, just now
        return
    if folder.is_file():
        if others := owners.living():
            raise CaptureError(
                f"version 0.1 of firebird-cdc works in {state.parent} "
                f"({', '.join(map(str, others))}), and does not know the journals of this version: "
                "end those server processes, and writes go on"
            )
        access.make_directory(new)
        folder.rename(new / _PAGE)
    if (new / _PAGE).exists():  # whoever moved it before may have died before its end
        sync_directory(new)
        new.rename(folder)
    else:
        access.make_directory(folder)
    sync_directory(state)
    _explain(folder)


def _explain(folder: Path) -> None:
    """Say in FOLDER to whoever goes back to version 0.1 why that does not work."""
    fd = access.open_file(folder / "README", os.O_WRONLY | os.O_CREAT)
    try:
        pwrite(fd, _README.encode(), 0)
    finally:
        os.close(fd)


def let_former_version_in(state: Path) -> None:
    """Have the page where version 0.1 looks for it; nobody may work here. Raises OSError."""
    folder, new = state / _FOLDER, state / _NEW
    if folder.is_dir():
        folder.rename(new)
        (new / _PAGE).rename(folder)
    sync_directory(state)
    shutil.rmtree(new, ignore_errors=True)
