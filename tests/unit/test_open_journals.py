"""Open shared journals as replays and audits see them: what a ledger has of them, and no more."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import reduce
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from firebird_cdc.errors import JournalError
from firebird_cdc.journal.folder import open_journals
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.ledger import SequenceLedger
from firebird_cdc.journal.folder.ledger_lock import database_key
from firebird_cdc.journal.folder.ledger_records import LedgerEntry
from firebird_cdc.journal.folder.open_journals import OpenJournals, undecided_in
from firebird_cdc.journal.format import SharedJournalWriter, TransactionWriter
from firebird_cdc.journal.format.shared import Found, walk
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

    def commit(self, written: TransactionWriter, _: OpenJournal | None = None) -> None:
        """Give a transaction the next number."""
        with self._ledger.exclusive():
            number = self._ledger.last + 1
            place = self.writer.commit(written, number, ticket=number, commit_us=number)
            home = self.writer.header.uuid
            self._ledger.record([LedgerEntry(place.uuid, place.stamp, home, *place[1:4])], number)

    def change(self, written: TransactionWriter) -> None:
        """Change a bit of a transaction's head, or change it back."""
        with self.path.open("r+b") as file:
            file.seek(self.writer.offset_of(written) + 5)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 0x10]))

    def void(self, written: TransactionWriter, other: OpenJournal) -> None:
        """Roll back a transaction of this journal; the voids are in OTHER."""
        other.writer.void(written, self.writer)

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


def test_only_what_has_no_number_keeps_an_audit_waiting(
    journal: OpenJournal, tmp_path: Path
) -> None:
    everything = SimpleNamespace(guid=UUID(int=0), sees=lambda _: True)

    def waiting(folder: Path = journal.path.parent) -> list[int]:
        found = unconfirmed_journals([str(folder)], DATABASE, cast(Any, everything))
        return [transaction for _, transaction in found]

    journal.commit(journal.write(7))
    assert waiting() == []
    prepared = journal.write(8)
    assert waiting() == [8]
    journal.commit(prepared)
    assert waiting() == []
    copy = tmp_path / "copy"
    shutil.copytree(journal.path.parent, copy)
    assert waiting(copy) == []


def test_transactions_without_number_and_void_are_told(journal: OpenJournal) -> None:
    given, prepared, rolled_back = (journal.write(number) for number in (7, 8, 9))
    journal.commit(given)
    journal.writer.void(rolled_back)
    [(name, head)] = undecided_in(journal.path.parent, DATABASE)
    assert (name, head.header.uuid) == (journal.path.name, prepared.uuid)
    assert not list(undecided_in(journal.path.parent, "/data/other.fdb"))
    journal.commit(prepared)
    assert not list(undecided_in(journal.path.parent, DATABASE))


@pytest.mark.parametrize("seed", range(6))
def test_looks_one_after_the_other_find_what_a_first_look_finds(tmp_path: Path, seed: int) -> None:
    random, folder = Random(seed), tmp_path / "journals"
    with ExitStack() as stack:
        journals: list[OpenJournal] = []
        kept = stack.enter_context(closing(OpenJournals(folder, DATABASE)))
        needed: list[OpenJournal] = []
        prepared: list[tuple[OpenJournal, TransactionWriter]] = []
        torn: list[tuple[OpenJournal, TransactionWriter]] = []
        for number in range(300):
            step = random.random()
            if not journals or step < 0.03:
                journals.append(OpenJournal(folder))
                stack.callback(journals[-1].end)
            elif step < 0.06 and journals[0] not in needed:
                closed = journals.pop(0)
                closed.close()
                prepared = [each for each in prepared if each[0] is not closed]
                torn = [each for each in torn if each[0] is not closed]
            elif step < 0.5:
                home = random.choice(journals)
                prepared.append((home, home.write(number)))
            elif step < 0.55:
                home = random.choice(journals)
                torn.append((home, home.write(number)))
                home.change(torn[-1][1])
            elif step < 0.58 and torn:  # it was just being written
                home, written = torn.pop(random.randrange(len(torn)))
                home.change(written)
                prepared.append((home, written))
            elif prepared:
                home, written = prepared.pop(random.randrange(len(prepared)))
                if step < 0.9:
                    home.commit(written)
                else:
                    needed.append(random.choice(journals))  # as a server needs it for its voids
                    home.void(written, needed[-1])
            if random.random() < 0.4:
                _assert_same(kept, folder)
        assert prepared
        _assert_same(kept, folder)


def _assert_same(kept: OpenJournals, folder: Path) -> None:
    found, expected = (
        {(name, head.offset) for name, head in undecided}
        for undecided in (kept.undecided(), undecided_in(folder, DATABASE))
    )
    assert found == expected


def test_a_later_look_goes_through_what_is_new(
    journal: OpenJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Found] = []

    def watched(*given: Any) -> Iterator[Found]:
        for found in walk(*given):
            seen.append(found)
            yield found

    monkeypatch.setattr(open_journals, "walk", watched)
    for number in range(500):
        journal.commit(journal.write(number))
    with closing(OpenJournals(journal.path.parent, DATABASE)) as kept:
        assert kept.undecided() == []
        assert len(seen) == 500
        seen.clear()
        assert kept.undecided() == []
        assert seen == []
        last = journal.write(500)
        [(_, head)] = kept.undecided()
        assert head.header.uuid == last.uuid
        assert len(seen) == 1
        journal.commit(last)
        assert kept.undecided() == []
        assert len(seen) == 1


@pytest.mark.parametrize("decide", [OpenJournal.commit, OpenJournal.void])
@pytest.mark.parametrize("amid", ["parse_file_header", "walk", "LedgerTail.read"])
def test_journal_that_begins_amid_a_look_is_known_to_be_decided(
    journal: OpenJournal,
    monkeypatch: pytest.MonkeyPatch,
    amid: str,
    decide: Callable[..., None],
) -> None:
    folder = journal.path.parent
    begun: list[OpenJournal] = []
    original = reduce(getattr, amid.split("."), open_journals)

    def and_begin(*given: Any) -> Any:
        if not begun:
            begun.append(OpenJournal(folder))
            decide(begun[0], begun[0].write(1), journal)
        return original(*given)

    with closing(OpenJournals(folder, DATABASE)) as kept:
        monkeypatch.setattr(f"{open_journals.__name__}.{amid}", and_begin)
        for _ in range(3):
            undecided = kept.undecided()
        assert undecided == []
    begun[0].end()
