"""Journals that belong to a snapshot: of which database and epoch, and which are not confirmed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from firebird_cdc.errors import JournalError, ReplayError
from firebird_cdc.journal.folder.open_journals import undecided_in
from firebird_cdc.journal.format import JournalReader
from firebird_cdc.journal.replay.source import history
from firebird_cdc.journal.replay.source.planning import (
    JournalOptions,
    JournalPartition,
    find_journals,
)
from firebird_cdc.journal.replay.source.storage import folder_at
from firebird_cdc.journal.snapshot.window import Window

if TYPE_CHECKING:
    from firebird_cdc.journal.format import Header
    from firebird_cdc.journal.replay.audit.input import AuditInput


def find_history(changes: AuditInput, snapshot: Window) -> tuple[str, int]:
    """Return the database whose journals are meant, as they name it, and its last epoch.

    Raises ReplayError if the one that was attached to is another one.
    """
    path = snapshot.holder.path
    last = {span.database: span for span in changes.spans}
    if path in last:
        name = path
    elif len(last) == 1:
        (name,) = last
    else:
        raise ReplayError(
            f"no journal is of the database {path}; they are of {', '.join(last)}."
            " Where it is named otherwise there, give --database"
        )
    span = last[name]
    newest = (
        history.stamped(changes.files)
        .where((F.col("database") == name) & (F.col("epoch") == span.epoch))
        .where("problem is null or problem = 'misnamed'")
        .orderBy(F.col("sequence").desc())
        .select("file")
        .first()
    )
    header = None if newest is None else _header_of(changes.folders, newest["file"])
    known = header is not None and header.database_guid.int and snapshot.guid.int
    if header is not None and known and header.database_guid != snapshot.guid:
        raise ReplayError(
            f"{path} is another database than that of the journals: its GUID is"
            f" {snapshot.guid}, theirs ({name}) is {header.database_guid}"
        )
    if not known and name != path:
        raise ReplayError(
            f"nothing says that {path} is the database of the journals, {name}: they hold no GUID,"
            " and the paths differ"
        )
    return name, span.epoch


def _header_of(folders: tuple[str, ...], file: str) -> Header | None:
    """Return the header of FILE, wherever in FOLDERS it is by now; None: it can't be read."""
    starts = [(folder_at(url).place(""), index) for index, url in enumerate(folders)]
    # Of a folder and one in it, the latter.
    start, index = max(each for each in starts if file.startswith(each[0]))
    part = JournalPartition.of_journals([(index, file[len(start) :])])
    with suppress(OSError):
        for found in find_journals(part, JournalOptions(folders)):
            if isinstance(found.reader, JournalReader):
                return found.reader.header
    return None


def unconfirmed_journals(
    folders: Sequence[str], database: str, snapshot: Window
) -> Iterator[tuple[str, int]]:
    """Yield the journal's name and the number of each transaction of DATABASE that SNAPSHOT sees
    and that is not confirmed: its own journal is still ``.log.live``, or the one that it shares has
    it without a number. Those of a database that it was restored from have another GUID."""
    for url in folders:
        folder = folder_at(url)
        shared = {name for name, _ in folder.open_journals()}
        if shared:
            for name, head in undecided_in(Path(folder.place("")), database):
                if _may_be_of(head.header, snapshot):
                    yield name, head.header.transaction
        for entry in folder.entries():
            if not entry.name.endswith(".log.live") or entry.name in shared:
                continue
            try:
                with folder.journal(entry.name) as reader:
                    header = reader.header
                    of_database = reader.database == database
            except (FileNotFoundError, JournalError):
                continue  # renamed, or not begun
            if of_database and _may_be_of(header, snapshot):
                yield entry.name, header.transaction


def _may_be_of(header: Header, snapshot: Window) -> bool:
    guids = {header.database_guid.int, snapshot.guid.int} - {0}
    return len(guids) < 2 and snapshot.sees(header.transaction)
