"""Transactions that wait or are open, as they are told of a journal folder: not its files."""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from firebird_cdc.cli import main
from firebird_cdc.journal.folder import ledger as sequence
from firebird_cdc.journal.folder.durable import boot_uuid
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.ledger import SequenceLedger
from firebird_cdc.journal.folder.ledger_lock import database_key
from firebird_cdc.journal.folder.ledger_records import LedgerEntry
from firebird_cdc.journal.format import (
    JournalReader,
    JournalWriter,
    SharedJournalWriter,
    TransactionWriter,
)
from firebird_cdc.journal.shipper.commands.status import read_status
from firebird_cdc.journal.shipper.inbox.backlog import Backlog
from firebird_cdc.journal.shipper.inbox.ledgers import Ledgers
from firebird_cdc.journal.shipper.local_offsets import Shipped
from firebird_cdc.journal.shipper.monitoring import folder as folder_module
from firebird_cdc.journal.shipper.monitoring import transactions as transactions_module
from firebird_cdc.journal.shipper.monitoring.folder import FolderFigures, Waiting, count_alone
from firebird_cdc.journal.shipper.monitoring.statistics import BacklogFigures, Statistics
from firebird_cdc.journal.shipper.shared_offsets import NOTHING, Number

DEPOT, SHOP = "/srv/depot.fdb", "/srv/shop.fdb"
SECOND_US = 1_000_000


class Server:
    """A process that lives and writes journals, whose confirmer works when it is asked to.

    What is committed as number N was committed N seconds after 1970.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = JournalFolder(path)
        self._ledgers: dict[str, SequenceLedger] = {}

    def open(self, database: str = DEPOT) -> SharedJournalWriter:
        """Begin a shared journal."""
        return SharedJournalWriter.create(self.path / f"{uuid4()}.log.live", database=database)

    def prepare(self, journal: SharedJournalWriter) -> TransactionWriter:
        """Append a transaction, of which nobody knows yet whether it is committed."""
        written = TransactionWriter(journal.header, 7, "SYSDBA")
        written.gap("it")
        written.seal()
        journal.append(written)
        return written

    def commit(self, journal: SharedJournalWriter, count: int = 1) -> int:
        """Commit COUNT transactions in JOURNAL, as one group; return the last number."""
        ledger = self._ledger(journal.header.database)
        with ledger.exclusive():
            last = ledger.last
            given = []
            for number in range(last + 1, last + count + 1):
                written = self.prepare(journal)
                place = journal.commit(written, number, commit_us=number * SECOND_US)
                given.append(LedgerEntry(place.uuid, place.stamp, journal.header.uuid, *place[1:4]))
            ledger.record(given, last + count)
            return last + count

    def begin_alone(self, database: str = DEPOT) -> JournalWriter:
        """Have a transaction that has a journal of its own be open."""
        uuid = uuid4()
        writer = JournalWriter(self.folder.live(uuid), uuid=uuid, database=database)
        writer.gap("it")
        writer.flush()
        return writer

    def commit_alone(self, database: str = DEPOT) -> Path:
        """Commit a transaction that has a journal of its own."""
        writer = self.begin_alone(database)
        ledger = self._ledger(database)
        with writer, ledger.exclusive():
            number = ledger.last + 1
            writer.seal()
            writer.commit(number, number * SECOND_US)
            writer.stamp(number)
            with JournalReader(writer.path) as reader:
                assert reader.stamp is not None
                ledger.record([LedgerEntry(writer.uuid, reader.stamp)], number)
        return writer.path.rename(writer.path.with_suffix(""))

    def close(self, journal: SharedJournalWriter) -> Path:
        """Close a journal: it gets its index, and its name."""
        journal.close()
        return journal.path.rename(journal.path.with_suffix(""))

    def begin_in_memory(self, *databases: str, owner: UUID | None = None) -> None:
        """Have a transaction of each of DATABASES open in memory, of this process or of OWNER."""
        content = bytearray(512 * (len(databases) + 1))  # the first slot is free
        for index, database in enumerate(databases, 1):
            name = database.encode()
            slot = struct.pack("<QQq16s16sH", index, 5, 6, bytes(16), boot_uuid().bytes, len(name))
            content[index * 512 : index * 512 + len(slot) + len(name)] = slot + name
        (self.folder.slots / str(owner or self.folder.owner)).write_bytes(content)

    def stand_by(self) -> int:
        """Be seen as one that decides what is left; until the descriptor is closed."""
        fd = os.open(self.folder.state / "bridge.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH)
        return fd

    def _ledger(self, database: str) -> SequenceLedger:
        if database not in self._ledgers:
            self._ledgers[database] = SequenceLedger(
                self.folder, database_key(database), True, lambda: None, database
            )
        return self._ledgers[database]

    def end(self) -> None:
        """Close what is open."""
        for ledger in self._ledgers.values():
            ledger.close()
        self.folder.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "journals")
    yield made
    made.end()


def _remember(server: Server, database: str, delivered: dict[UUID, Number]) -> None:
    """Have the folder remember up to which numbers shared journals are delivered."""
    shipped = Shipped(server.path, "positions")
    shipped.keep_shared(database, delivered, max(delivered.values()))
    shipped.write()


def _counts(figures: BacklogFigures) -> dict[str, tuple[int, int]]:
    """Return how many wait and are open, by database."""
    return {path: (each.pending, each.live) for path, each in figures.databases.items()}


def _oldest(figures: BacklogFigures, database: str = DEPOT) -> float:
    """Return the number of the oldest transaction that waits."""
    oldest_us = figures.databases[database].oldest_us
    assert oldest_us is not None
    return oldest_us / SECOND_US


# What waits


def test_transactions_wait_one_by_one_in_open_closed_and_single_journals(server: Server) -> None:
    closed, opened, idle = server.open(), server.open(), server.open(SHOP)
    server.commit(closed, 100)
    server.commit(opened, 3)
    server.commit_alone()
    server.commit(closed)
    server.commit_alone(SHOP)
    server.commit(opened, 2)
    server.close(closed)
    figures = count_alone(server.path)
    assert _counts(figures) == {DEPOT: (107, 0), SHOP: (1, 0)}
    assert (_oldest(figures), _oldest(figures, SHOP)) == (1, 1)
    assert figures.oldest_pending_seconds == pytest.approx(time.time() - 1, abs=60)
    assert idle.path.exists()


@pytest.mark.parametrize("is_closed", [False, True], ids=["open", "closed"])
@pytest.mark.parametrize("delivered", [1, 37, 38, 39, 99, 100])
def test_journal_that_the_folder_knows_as_delivered_waits_no_more(
    server: Server, delivered: int, is_closed: bool
) -> None:
    journal = server.open()
    server.commit(journal, 100)
    if is_closed:
        server.close(journal)
    _remember(server, DEPOT, {journal.header.uuid: (0, delivered)})
    figures = count_alone(server.path)
    assert figures.pending == 100 - delivered
    if delivered < 100:
        assert _oldest(figures) == delivered + 1


def test_transactions_wait_where_a_new_ledger_has_begun_meanwhile(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, opened = server.open(), server.open()
    server.commit(closed, 5)
    server.commit(opened, 7)
    server.close(closed)
    monkeypatch.setattr(sequence, "_LEDGER_LIMIT", 1)
    server.commit(opened)
    assert count_alone(server.path).pending == 13


def test_stopped_shipper_with_a_backlog_in_an_open_journal_is_not_well(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = server.open()
    assert main(["status", "--directory", str(server.path)]) == 0
    said = capsys.readouterr().out
    assert "all is well" in said
    assert "backlog   0 transactions; 0 transactions open" in said
    server.commit(journal, 3)
    assert main(["status", "--directory", str(server.path)]) == 1
    said = capsys.readouterr().out
    assert "no shipper runs, and 3 transactions wait" in said
    assert "waiting  3 transactions" in said
    _remember(server, DEPOT, {journal.header.uuid: (0, 2)})
    assert "no shipper runs, and 1 transaction waits" in read_status(server.path)["needs"]
    _remember(server, DEPOT, {journal.header.uuid: (0, 3)})
    assert read_status(server.path)["needs"] == []


def test_of_very_many_journals_the_oldest_are_gone_through_and_the_others_count_as_one(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "_ALONE", 4)
    journals = [server.open() for _ in range(9)]
    for number, journal in enumerate(journals):
        server.commit(journal, 10)
        path = server.close(journal)
        os.utime(path, (1_000_000 - number, 1_000_000 - number))
    figures = count_alone(server.path)
    assert figures.pending == 4 * 10 + 5
    assert _oldest(figures) == 51


def test_files_that_go_while_they_are_counted_count_as_none(server: Server) -> None:
    kept, closed, opened = server.open(), server.open(), server.open()
    for journal in (kept, closed, opened):
        server.commit(journal, 2)
    single, live = server.commit_alone(), server.begin_alone()
    gone = [server.close(closed), single, live.path, opened.path]

    def take_away(_: str) -> Number:
        for path in gone:
            path.unlink(missing_ok=True)
        return NOTHING

    figures = FolderFigures(server.path, dict, take_away, is_alone=True)
    assert figures.count().pending == 2
    assert figures.count().live == 0
    figures.close()
    live.close()


def test_damaged_and_foreign_journals_count_as_one_each(server: Server) -> None:
    journal = server.open()
    server.commit(journal, 5)
    damaged = server.close(journal)
    content = damaged.read_bytes()
    damaged.write_bytes(bytes(100) + content[100:])  # the index still tells of it
    (server.path / f"{uuid4()}.log").write_bytes(b"x" * 200)
    (server.path / f"{uuid4()}.log").write_bytes(b"")
    assert _counts(count_alone(server.path)) == {"": (7, 0)}
    damaged.write_bytes(content[:-8192] + bytes(8192))
    assert _counts(count_alone(server.path)) == {"": (2, 0), DEPOT: (1, 0)}


# What is open


def test_transactions_in_memory_are_open_as_long_as_their_process_lives(server: Server) -> None:
    server.begin_in_memory(DEPOT, DEPOT, SHOP)
    server.begin_in_memory(SHOP, owner=uuid4())  # which has ended
    with server.begin_alone(SHOP):
        server.open()
        assert _counts(count_alone(server.path)) == {DEPOT: (0, 2), SHOP: (0, 2)}


def test_undecided_transactions_of_an_ended_server_are_open_though_it_wrote_a_shared_journal(
    server: Server,
) -> None:
    journal = server.open()
    server.commit(journal, 3)
    journal.void(server.prepare(journal))
    server.prepare(journal)
    server.prepare(journal)
    _remember(server, DEPOT, {journal.header.uuid: (0, 2)})
    assert _counts(count_alone(server.path)) == {DEPOT: (1, 2)}


def test_only_some_of_what_ended_servers_left_is_gone_through(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = server.open()
    first = server.prepare(journal)
    server.prepare(journal)
    monkeypatch.setattr(transactions_module, "_WALKED", 4096 + first.seal_end)
    assert _counts(count_alone(server.path)) == {DEPOT: (0, 1)}


def test_undecided_transactions_are_open_as_whoever_confirms_tells_of_them(server: Server) -> None:
    server.open()
    server.folder.undecided = 3
    stands_by = server.stand_by()
    with server.begin_alone():  # of an ended process, so it is one of them
        assert _counts(count_alone(server.path)) == {DEPOT: (0, 3)}
    os.close(stands_by)


# While a shipper runs


class Taker:
    """The part of a shipper that sorts in, and the figures that are told of it."""

    def __init__(self, server: Server) -> None:
        self.backlog = Backlog(server.path)
        self.ledgers = Ledgers(server.path, self.backlog, Statistics(), is_synced=True)
        self.figures = FolderFigures(server.path, self._waiting, self.backlog.sorted_to)

    def look(self) -> None:
        """Sort in what the ledgers have."""
        self.ledgers._next_look = 0.0
        self.ledgers.turn(())

    def _waiting(self) -> dict[str, Waiting]:
        return {
            path: Waiting(len(queue), queue.first().name, queue.first().commit_us)
            for path, queue in self.backlog.queues.items()
            if queue
        }


@pytest.fixture
def taker(server: Server) -> Iterator[Taker]:
    made = Taker(server)
    yield made
    made.ledgers.close()
    made.figures.close()


def test_transaction_counts_once_wherever_the_shipper_is_with_sorting_it_in(
    server: Server, taker: Taker
) -> None:
    journal, other = server.open(), server.open()
    server.commit(journal, 3)
    assert taker.figures.count().pending == 3
    taker.look()
    assert taker.figures.count().pending == 3
    server.commit(journal, 2)
    server.commit(other, 2)
    figures = taker.figures.count()
    assert (figures.pending, _oldest(figures)) == (7, 1)
    name = server.close(journal).name
    assert taker.figures.count().pending == 7  # by the index, above what was sorted in
    taker.backlog.offer(name)
    assert taker.figures.count().pending == 7
    taker.look()
    assert taker.figures.count().pending == 7
    queue = taker.backlog.queues[DEPOT]
    for _ in range(6):
        queue.pop()
    figures = taker.figures.count()
    assert (figures.pending, _oldest(figures)) == (1, 7)


def test_journal_delivered_before_the_start_does_not_wait_until_it_is_sorted_in(
    server: Server,
) -> None:
    journal = server.open()
    server.commit(journal, 9)
    _remember(server, DEPOT, {journal.header.uuid: (0, 8)})
    taker = Taker(server)
    assert taker.figures.count().pending == 1
    server.close(journal)
    assert taker.figures.count().pending == 1
    taker.figures.close()


def test_transactions_of_a_folder_that_takes_the_place_of_another_count(
    server: Server, tmp_path: Path
) -> None:
    figures = FolderFigures(server.path, dict, lambda _: NOTHING)
    server.commit(server.open(), 9)
    assert figures.count().pending == 9
    server.path.rename(tmp_path / "former")
    other = Server(server.path)
    other.commit(other.open(), 4)
    assert figures.count().pending == 4
    other.end()
    figures.close()
