"""Disposal of a journal that was shipped: it is deleted, or archived.

The only place that removes a shipped journal. Its callers answer for the order: first every message
acknowledged, then this. What can't be shipped goes another way: ``journal.shipper.quarantine``.
"""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

import logbook

from firebird_cdc import access
from firebird_cdc.errors import JournalError
from firebird_cdc.journal.folder.durable import make_folder, sync_directory
from firebird_cdc.journal.format import SharedJournal, open_any
from firebird_cdc.native._journal_files import remove_files

_log = logbook.Logger("firebird_cdc.journal.folder.disposal")

_THREADS = 4
_WORTH_THREADS = 64


def sync_file(path: Path) -> None:
    """Wait until the content of a file is on disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def dispose_shipped(
    journals: Sequence[Path | str], archive: Path | None, *, in_order: bool = True
) -> list[Path]:
    """Delete JOURNALS, or put them into ARCHIVE under the same names and then delete them.

    ``in_order``: one goes after the other, so that a crash in between leaves the last ones, and
    what is sent again because of that goes on to the end. With holes in it, rows would fall back
    to what they were.

    Returns those that should have been archived but were gone already, by somebody else's
    hand. A repetition after a crash is harmless. In the archive a name never stands for less
    than the whole journal, and the names are durable before the first original goes. Raises
    OSError; then each journal is still in at least one of the two folders.
    """
    missing = []
    if archive is not None:
        make_folder(archive)
        missing = [path for path in map(Path, journals) if not keep_journal(path, archive)]
        sync_directory(archive)
    _remove(journals, in_order)
    return missing


def _remove(journals: Sequence[Path | str], in_order: bool) -> None:
    """Delete JOURNALS; those that are gone already are no matter."""
    folders: dict[str, list[str]] = {}
    for journal in journals:
        folder, _, name = str(journal).rpartition(os.sep)
        folders.setdefault(f"{folder}{os.sep}", []).append(name)
    for folder, names in folders.items():
        if in_order or len(names) < _WORTH_THREADS:
            remove_files(folder, names)
        else:
            # A file system may wait for the disk at each; several at a time wait together.
            parts = [names[start::_THREADS] for start in range(_THREADS)]
            with ThreadPoolExecutor(_THREADS) as pool:
                deque(pool.map(remove_files, repeat(folder), parts), maxlen=0)


def keep_journal(journal: Path, folder: Path, *, has_stamp: bool = True) -> bool:
    """Make JOURNAL appear in FOLDER, by a second link or a copy; False if it is in neither.

    Its stamp may not be on disk yet, and is not written again there, so it is synced. Where that
    failed once, a copy is made: a sync of the same file would pass over what it did not write.
    What could not be written may be gone from memory by then, so a copy is looked at. has_stamp:
    False if the journal was never seen with one. Raises OSError.
    """
    target = folder / journal.name
    part = target.with_name(f".{target.name}.part")
    try:
        if target.exists():  # a sync of its name may have failed, and another would pass over it
            check_same(journal, target)
            target.unlink()
        if part.exists() or not _link(journal, target):
            access.write_file(part, b"")  # whoever tries again knows that it has to be copied
            copy_file(journal, part)
            if has_stamp:
                _check_stamp(part, journal)
            if target.exists():
                check_same(journal, target)
            part.rename(target)
    except FileNotFoundError:
        part.unlink(missing_ok=True)
        return target.exists()
    except FileExistsError:
        check_same(journal, target)
    return True


def _link(journal: Path, target: Path) -> bool:
    """Give JOURNAL the name TARGET, too; False if it has to be copied."""
    try:
        sync_file(journal)
        # Not a rename: watchdog holds back later events by 0.5 s after a move out of its folder.
        os.link(journal, target)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
            _log.warning("{}: {}; it is copied to {}", journal, error.strerror, target.parent)
        return False
    return True


def _check_stamp(copy: Path, journal: Path) -> None:
    """Raise OSError unless COPY, of JOURNAL, says which number it has."""
    try:
        with open_any(copy) as opened:
            if isinstance(opened, SharedJournal) or opened.stamp is not None:
                return
        cause = "its stamp is gone"
    except JournalError as error:
        cause = error.what
    raise OSError(
        errno.EIO,
        f"a disk error took a part of this journal ({cause}), so it is neither copied nor removed: "
        "check the disk and restart the machine; what the ledger knows is written again then",
        str(journal),
    )


def check_same(journal: Path, target: Path) -> None:
    """Raise FileExistsError unless TARGET, which is there already, is JOURNAL or a copy of it."""
    if not journal.samefile(target) and not filecmp.cmp(journal, target, shallow=False):
        raise FileExistsError(
            errno.EEXIST, "another journal of this name is there; move it away", target
        )


def copy_file(path: Path, target: Path) -> None:
    """Write a copy of PATH, for those that its folder is for, and wait until it is on disk."""
    target.unlink(missing_ok=True)  # another file: of that one a sync may have failed
    flags = os.O_WRONLY | os.O_CREAT
    with path.open("rb") as source, os.fdopen(access.open_file(target, flags), "wb") as copy:
        shutil.copyfileobj(source, copy, 1024 * 1024)
        copy.flush()
        os.fsync(copy.fileno())
