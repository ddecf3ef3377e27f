"""Transactions that had numbers in a ledger that was lost, as far as anybody knows of them.

Once a new epoch was asked for, nothing else tells them from those that never had one, while they
lie in journals that are not closed yet. Entries of tickets name them: up to the one to which all
is decided, as what waits for the ledger comes behind it. After a power cut, and of commits that
were many thousands before, there are none.

    16 bytes of uuid for each, in a file beside the ledger
"""

from __future__ import annotations

import functools
from pathlib import Path
from uuid import UUID

from firebird_cdc import access
from firebird_cdc.journal.folder.commit_entries import read_entries
from firebird_cdc.journal.folder.journal_folder import JournalFolder

ENDING = ".numbered"


def note_numbered(path: Path, folder: JournalFolder) -> None:
    """Have PATH name what was decided and lies in a live journal of FOLDER, beside what it names
    already. Raises OSError."""
    has_live = functools.cache(folder.has_live)
    entries = read_entries(folder.commits_fd, 1, folder.accounted)
    found = {entry.uuid for entry in entries if has_live(entry.journal)}
    access.write_file(path, b"".join(uuid.bytes for uuid in found | read_numbered(path)))


def read_numbered(path: Path) -> set[UUID]:
    """Return what PATH names; nothing if it is not there. Raises OSError."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return set()
    whole = len(content) // 16 * 16
    return {UUID(bytes=content[at : at + 16]) for at in range(0, whole, 16)}
