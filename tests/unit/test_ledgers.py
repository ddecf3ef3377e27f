"""Shared journals that are open, sorted in by the ledger, beside those that are closed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock
from uuid import UUID, uuid4

import pytest

from firebird_cdc.config import load_config
from firebird_cdc.journal.folder import ledger as sequence
from firebird_cdc.journal.folder import ledger_tail
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.ledger import SequenceLedger
from firebird_cdc.journal.folder.ledger_lock import database_key
from firebird_cdc.journal.folder.ledger_records import LedgerEntry
from firebird_cdc.journal.folder.ledger_tail import LedgerTail
from firebird_cdc.journal.folder.subjects import LEDGER
from firebird_cdc.journal.format import Place, SharedJournalWriter, TransactionWriter
from firebird_cdc.journal.shipper.inbox import ledgers, watcher
from firebird_cdc.journal.shipper.inbox.backlog import Backlog
from firebird_cdc.journal.shipper.inbox.ledgers import Ledgers
from firebird_cdc.journal.shipper.loop import Shipper
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics

DATABASE = "/d.fdb"


class Scene:
    """A server that writes shared journals, and what a shipper sorts in of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = JournalFolder(path, writes=False)
        self.ledger = SequenceLedger(
            self.folder, database_key(DATABASE), True, lambda: None, DATABASE
        )
        self.backlog, self.statistics = Backlog(path), Statistics()
        self.ledgers = Ledgers(path, self.backlog, self.statistics, is_synced=True)

    def sync(self, fsync: bool) -> None:
        """Have numbers given from now on by a server whose ``connector.journal.fsync`` is FSYNC."""
        self.ledger.close()
        self.ledger = SequenceLedger(
            self.folder, database_key(DATABASE), fsync, lambda: None, DATABASE
        )

    def open(self) -> SharedJournalWriter:
        """Begin a journal."""
        return SharedJournalWriter.create(self.path / f"{uuid4()}.log.live", database=DATABASE)

    def commit(self, *journals: SharedJournalWriter) -> None:
        """Commit a transaction in each of JOURNALS, in that order, as one group."""
        with self.ledger.exclusive():
            given = [
                _entry(journal, number)
                for number, journal in enumerate(journals, self.ledger.last + 1)
            ]
            self.ledger.record(given, self.ledger.last + len(given))

    def close(self, journal: SharedJournalWriter) -> str:
        """Close a journal; return its name."""
        journal.close()
        return journal.path.rename(journal.path.with_suffix("")).name

    def look(self) -> None:
        """Look at all ledgers."""
        self.ledgers._next_look = 0.0
        self.ledgers.turn(())

    def take(self, count: int | None = None) -> list[int]:
        """Take COUNT of what waits, or all; return the numbers."""
        queue = self.backlog.queues[DATABASE]
        return [queue.pop().sequence for _ in range(len(queue) if count is None else count)]


def _entry(journal: SharedJournalWriter, number: int) -> LedgerEntry:
    written = TransactionWriter(journal.header, number, "SYSDBA")
    written.gap("it")
    written.seal()
    journal.append(written)
    place: Place = journal.commit(written, number, commit_us=5)
    return LedgerEntry(place.uuid, place.stamp, journal.header.uuid, *place[1:4])


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    folder = tmp_path / "journals"
    folder.mkdir()
    made = Scene(folder)
    yield made
    made.ledgers.close()
    made.ledger.close()
    made.folder.close()


def test_ledger_that_is_followed_anew_adds_nothing_a_second_time(scene: Scene) -> None:
    first, second = scene.open(), scene.open()
    scene.commit(first, second, first)
    scene.look()
    assert scene.take(1) == [1]
    scene.ledgers.close()  # as after the folder was away for a moment
    scene.commit(second)
    scene.look()
    assert scene.take() == [2, 3, 4]
    assert scene.backlog.behind == {DATABASE: 0}


def test_next_transactions_are_read_however_much_waits_behind_them(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "_AHEAD", 10)
    closed, live = scene.open(), scene.open()
    for number in range(1, 61):
        scene.commit(live if number == 40 else closed)
    scene.backlog.offer(scene.close(closed))
    taken: list[int] = []
    while len(taken) < 60:
        scene.look()
        taken += scene.take(1)
    assert taken == list(range(1, 61))


def test_long_beginning_of_a_new_ledger_is_passed_over_at_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = scene.open()
    for _ in range(40):
        scene.commit(live, live)
    scene.look()
    assert scene.take() == list(range(1, 81))
    monkeypatch.setattr(ledger_tail, "_CHUNK", 300)
    monkeypatch.setattr(sequence, "_LEDGER_LIMIT", 1)
    scene.commit(live)
    scene.look()
    assert scene.take() == [81]
    assert not scene.ledgers.is_behind


def _commit_first(scene: Scene) -> str:
    """Commit the first three transactions of the database; return the name of the journal that the
    second one has for itself, and which is the only one that is closed."""
    shared, own = scene.open(), scene.open()
    scene.commit(shared, own, shared)
    return scene.close(own)


def test_first_journal_of_a_database_does_not_pass_what_its_new_ledger_has_before_it(
    scene: Scene,
) -> None:
    scene.look()  # and the next time in a second
    scene.backlog.offer(_commit_first(scene))
    scene.ledgers.turn(())
    assert scene.take() == [1, 2, 3]


@pytest.mark.parametrize("has_synced", [False, True])
def test_numbers_of_a_server_that_syncs_nothing_are_read_by_a_shipper_that_waits_for_syncs(
    scene: Scene, has_synced: bool
) -> None:
    if has_synced:
        scene.commit(scene.open())
        scene.look()
    scene.sync(False)
    own = scene.open()
    scene.commit(scene.open(), scene.open())
    scene.commit(own)
    scene.backlog.offer(scene.close(own))
    scene.look()
    assert scene.take() == list(range(1, 4 + has_synced))
    assert scene.backlog.behind == {DATABASE: 0}


def test_journals_are_looked_for_before_their_ledgers_are_read(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "connector.yaml"
    config.write_text(
        f"connector.name: t\nconnector.journal.directory: {scene.path}\nkafka.topic.prefix: t\n"
        "kafka.producer.bootstrap.servers: 127.0.0.1:9\n"
    )
    monkeypatch.setattr(watcher, "list_journals", lambda _: iter([_commit_first(scene)]))
    shipper = Shipper(load_config(config))
    shipper.take_in(Mock(scans=0, wants_scan=False))
    queue = shipper._backlog.queues[DATABASE]
    assert [queue.pop().sequence for _ in range(len(queue))] == [1, 2, 3]
    shipper._ledgers.close()
    shipper._watcher.close()


def test_file_goes_when_all_in_it_is_disposed_of_and_it_is_closed(scene: Scene) -> None:
    early, late = scene.open(), scene.open()
    scene.commit(early, late, early)
    scene.look()
    queue = scene.backlog.queues[DATABASE]
    entries = [queue.pop() for _ in range(3)]
    assert scene.backlog.files_without(entries) == []  # they may still grow
    early_name = scene.close(early)
    scene.backlog.offer(early_name)
    assert scene.backlog.files_without(entries[:2]) == []
    assert scene.backlog.files_without(entries) == [early_name]
    for entry in entries:
        scene.backlog.forget(entry)
    late_name = scene.close(late)
    scene.backlog.offer(late_name)
    assert scene.backlog.finished == {late_name: True}
    scene.backlog.forget_finished()
    assert not scene.backlog.holds(UUID(late_name.removesuffix(".log")))


def test_database_waits_while_its_ledger_is_damaged_and_says_so(scene: Scene) -> None:
    live = scene.open()
    scene.commit(live)
    scene.look()
    scene.commit(live)
    path = next((scene.path / ".firebird-cdc/databases").glob("*.ledger"))
    sound = path.read_bytes()
    _overwrite(path, sound[:-20] + bytes(20))
    scene.look()
    assert scene.backlog.unread == {DATABASE}
    assert "damaged at byte" in scene.statistics.troubles[LEDGER + DATABASE].text
    _overwrite(path, sound)
    scene.look()
    assert scene.backlog.unread == set()
    assert not scene.statistics.troubles
    assert scene.take() == [1, 2]


def _overwrite(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, content, 0)
    os.close(fd)


def test_database_with_an_open_journal_waits_though_its_ledger_was_never_read(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.commit(scene.open())
    real = LedgerTail.read

    def fail(_: LedgerTail) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(LedgerTail, "read", fail)
    scene.look()
    assert scene.backlog.unread == {DATABASE}
    monkeypatch.setattr(LedgerTail, "read", real)
    scene.look()
    assert not scene.backlog.unread
    assert scene.take() == [1]
