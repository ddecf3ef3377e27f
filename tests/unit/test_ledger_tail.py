"""Ledgers followed without their lock: only what is on disk, and across new ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from firebird_cdc.journal.folder import ledger as sequence
from firebird_cdc.journal.folder import ledger_tail
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.ledger import SequenceLedger
from firebird_cdc.journal.folder.ledger_records import LedgerEntry, LedgerRecord
from firebird_cdc.journal.folder.ledger_tail import LedgerTail
from firebird_cdc.journal.format import Stamp

HOME = UUID(int=77, version=4)


class Writer:
    """Gives numbers in a ledger, to transactions in one open journal unless told otherwise."""

    def __init__(self, path: Path) -> None:
        self.folder = JournalFolder(path, writes=False)
        self.folder.live(HOME).touch()
        self.sync(True)

    def sync(self, fsync: bool) -> None:
        """Give numbers from now on as ``connector.journal.fsync`` says."""
        self.ledger = SequenceLedger(self.folder, "d", fsync, lambda: None)

    def entries(self, first: int, count: int, home: UUID | None = HOME) -> list[LedgerEntry]:
        """Return COUNT entries with numbers from FIRST on."""
        return [
            LedgerEntry(
                UUID(int=number, version=4), Stamp(0, number, 5, 6, 300, 1, number, 0), home, 64
            )
            for number in range(first, first + count)
        ]

    def give(self, count: int = 1, home: UUID | None = HOME) -> None:
        """Give the next COUNT numbers."""
        with self.ledger.exclusive():
            last = self.ledger.last
            self.ledger.record(self.entries(last + 1, count, home), last + count)

    def tail(self, *, is_synced: bool = True) -> LedgerTail:
        """Return what follows it from the beginning."""
        return LedgerTail(self.folder.databases, "d", is_synced=is_synced)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    folder = tmp_path / "journals"
    folder.mkdir()
    made = Writer(folder)
    yield made
    made.ledger.close()
    made.folder.close()


def _numbers(tail: LedgerTail) -> list[int]:
    return [entry.stamp.sequence for entry in tail.read() or ()]


def test_numbers_are_read_once_in_order_and_those_of_single_journals_passed_over(
    writer: Writer,
) -> None:
    tail = writer.tail()
    assert tail.read() is None
    assert tail.behind == 0
    writer.give(3)
    assert tail.read() == writer.entries(1, 3)
    writer.give(2, home=None)
    writer.give(1)
    assert _numbers(tail) == [6]
    assert tail.last == (0, 6)
    assert (_numbers(tail), tail.behind) == ([], 0)
    assert _numbers(writer.tail()) == [1, 2, 3, 6]


def test_record_that_no_sync_has_covered_is_not_read(writer: Writer) -> None:
    writer.give(2)
    tail, careless = writer.tail(), writer.tail(is_synced=False)
    path = writer.folder.databases / "d.ledger"
    record = LedgerRecord(0, 3, 3, 0, None, writer.entries(3, 1)).pack()
    with path.open("ab") as file:
        file.write(record)
    assert _numbers(tail) == [1, 2]
    assert _numbers(careless) == [1, 2, 3]
    os.truncate(path, path.stat().st_size - len(record))
    writer.give(1)
    assert _numbers(tail) == [3]


def test_follower_waits_for_syncs_again_once_a_server_does_that_syncs(writer: Writer) -> None:
    tail, path = writer.tail(), writer.folder.databases / "d.ledger"
    writer.give(1)
    writer.ledger.close()
    writer.sync(False)
    writer.give(2)
    assert (_numbers(tail), tail.behind) == ([1, 2, 3], 0)
    with path.open("ab") as file:  # just being written
        file.write(LedgerRecord(0, 4, 4, 0, None, writer.entries(4, 1)).pack()[:-1])
    assert tail.read() is None
    writer.ledger.close()
    writer.sync(True)
    writer.give(1)
    with path.open("ab") as file:
        file.write(LedgerRecord(0, 5, 5, 0, None, writer.entries(5, 1)).pack())
    assert (_numbers(tail), _numbers(tail), tail.behind) == ([4], [], 0)


def test_ledger_that_is_lost_is_missed_also_where_nothing_is_synced(writer: Writer) -> None:
    writer.give(2)
    writer.ledger.close()
    writer.sync(False)
    writer.give(1)
    writer.ledger.close()
    (writer.folder.databases / "d.ledger").unlink()
    writer.sync(False)
    with pytest.raises(OSError, match="took numbers that were given"):
        writer.give(1)


def test_follower_goes_on_in_the_ledger_that_takes_the_place_of_another(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail, late = writer.tail(), writer.tail()
    writer.give(3)
    assert _numbers(tail) == [1, 2, 3]
    monkeypatch.setattr(sequence, "_LEDGER_LIMIT", 1)
    writer.give(1)
    writer.give(1, home=UUID(int=78, version=4))  # which is closed
    writer.give(3)
    assert _numbers(tail) == [4, 6, 7, 8]
    writer.give(9)
    assert _numbers(tail) == list(range(9, 18))
    # Of what is closed the index tells.
    assert _numbers(late) == [1, 2, 3, 4, *range(6, 18)]


def test_ledger_that_is_just_being_written_anew_is_left_alone(writer: Writer) -> None:
    writer.give(2)
    tail = writer.tail()
    lock = writer.ledger._lock
    lock.note(lock.noted._replace(inode=0, end=0))
    assert tail.read() is None
    writer.give(1)
    assert _numbers(tail) == [1, 2, 3]


def test_record_longer_than_one_read_is_read(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_tail, "_CHUNK", 256)
    writer.give(100)
    writer.give(1)
    tail = writer.tail()
    read = _numbers(tail)
    assert tail.behind == 101 - len(read)
    assert [*read, *_numbers(tail)] == list(range(1, 102))
