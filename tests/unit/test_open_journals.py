"""Open shared journals as replays and audits see them: what a ledger has of them, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from firebird_cdc.errors import JournalError
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.ledger import SequenceLedger
from firebird_cdc.journal.folder.ledger_lock import database_key
from firebird_cdc.journal.folder.ledger_records import LedgerEntry
from firebird_cdc.journal.folder.open_journals import undecided_in
from firebird_cdc.journal.format import SharedJournalWriter, TransactionWriter
from firebird_cdc.journal.replay.audit.database.seen_journals import unconfirmed_journals
from firebird_cdc.journal.replay.source.planning import JournalOptions, Listing, find_journals

DATABASE = "/data/shop.fdb"


class OpenJournal:
    """A journal that a server writes, in a folder whose ledger says what is committed in it."""

    def __init__(self, path: Path) -> None:
        self._folder = JournalFolder(path, writes=False)
        self._ledger = SequenceLedger(
            self._folder, database_key(DATABASE), True, lambda: None, DATABASE
        )
        self.path = path / f"{uuid4()}.log.live"
        self.writer = SharedJournalWriter.create(self.path, database=DATABASE)

    def write(self, transaction: int) -> TransactionWriter:
        """Append a transaction."""
        written = TransactionWriter(self.writer.header, transaction, "SYSDBA")
        written.gap("it")
        written.seal()
        self.writer.append(written)
        return written

    def commit(self, written: TransactionWriter) -> None:
        """Give a transaction the next number."""
        with self._ledger.exclusive():
            number = self._ledger.last + 1
            place = self.writer.commit(written, number, ticket=number, commit_us=number)
            home = self.writer.header.uuid
            self._ledger.record([LedgerEntry(place.uuid, place.stamp, home, *place[1:4])], number)

    def close(self) -> None:
        """Give it its index and name."""
        self.writer.close()
        self.path.rename(self.path.with_suffix(""))

    def end(self) -> None:
        """Close what is open."""
        self.writer.leave()
        self._ledger.close()
        self._folder.close()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[OpenJournal]:
    made = OpenJournal(tmp_path / "journals")
    yield made
    made.end()


def _numbers(listing: Listing, options: JournalOptions) -> list[int]:
    """Return the numbers of what the tasks of LISTING read."""
    numbers = []
    for task in listing.tasks(split=True):
        for found in find_journals(task, options):
            if isinstance(found.reader, JournalError | FileNotFoundError):
                raise found.reader
            assert len(list(found.reader.changes())) == 1
            assert found.reader.stamp is not None
            numbers.append(found.reader.stamp.sequence)
    return sorted(numbers)


def test_open_journal_is_read_as_far_as_the_ledger_has_it(journal: OpenJournal) -> None:
    options = JournalOptions((str(journal.path.parent),))
    first, _, rolled_back, last = (journal.write(number) for number in range(4))
    journal.commit(first)
    journal.writer.void(rolled_back)
    journal.commit(last)
    assert _numbers(Listing(options), options) == [1, 2]


@pytest.mark.parametrize("is_moved", [False, True], ids=["closed", "closed and archived"])
def test_listed_transaction_is_found_once_its_journal_is_closed(
    journal: OpenJournal, tmp_path: Path, is_moved: bool
) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    options = JournalOptions((str(journal.path.parent), str(archive)))
    for number in range(2):
        journal.commit(journal.write(number))
    listing = Listing(options)
    journal.commit(journal.write(3))
    journal.close()
    if is_moved:
        closed = journal.path.with_suffix("")
        closed.rename(archive / closed.name)
    assert _numbers(listing, options) == [1, 2]
    assert _numbers(Listing(options), options) == [1, 2, 3]


def test_only_what_has_no_number_keeps_an_audit_waiting(journal: OpenJournal) -> None:
    everything = SimpleNamespace(guid=UUID(int=0), sees=lambda _: True)

    def waiting() -> list[int]:
        folders = [str(journal.path.parent)]
        found = unconfirmed_journals(folders, DATABASE, cast(Any, everything))
        return [transaction for _, transaction in found]

    journal.commit(journal.write(7))
    assert waiting() == []
    prepared = journal.write(8)
    assert waiting() == [8]
    journal.commit(prepared)
    assert waiting() == []


def test_transactions_without_number_and_void_are_told(journal: OpenJournal) -> None:
    given, prepared, rolled_back = (journal.write(number) for number in (7, 8, 9))
    journal.commit(given)
    journal.writer.void(rolled_back)
    [(name, head)] = undecided_in(journal.path.parent, DATABASE)
    assert (name, head.header.uuid) == (journal.path.name, prepared.uuid)
    assert not list(undecided_in(journal.path.parent, "/data/other.fdb"))
    journal.commit(prepared)
    assert not list(undecided_in(journal.path.parent, DATABASE))
