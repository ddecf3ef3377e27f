"""Each event once for read_committed consumers, whatever becomes of shippers in between."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from platform import node
from typing import Any
from uuid import UUID, uuid4

import pytest
from broker_topics import delete_topics
from shipping import (
    DATABASE,
    PATIENCE_S,
    Event,
    Folder,
    SharingServer,
    Ship,
    either_way,
    ids,
    read_topics,
)
from soaked import half_of, in_turn

from firebird_cdc.cli import main
from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.journal.folder import disposal
from firebird_cdc.journal.shipper import local_offsets
from firebird_cdc.journal.shipper.delivery import disposal as shipper_disposal
from firebird_cdc.journal.shipper.delivery import kafka_transaction
from firebird_cdc.journal.shipper.delivery import transactional as transactions
from firebird_cdc.journal.shipper.delivery.transactional import TransactionalDelivery
from firebird_cdc.journal.shipper.kafka.offset_topic import Offset

pytestmark = pytest.mark.kafka

MODE = "event.processing.failure.handling.mode"


class _Crash(BaseException):
    """Ends a shipper in this process where it stands."""


@pytest.fixture
def ship(ship: Ship, topic_prefix: str) -> Ship:
    """Shippers with one transactional id, and small messages."""
    ship.options |= {
        "kafka.producer.transactional.id": f"{topic_prefix}-id",
        "value.converter.schemas.enable": "false",
        "key.converter.schemas.enable": "false",
        "connector.journal.check.interval.ms": "200",
    }
    return ship


class Topics:
    """Messages of one test, as a read_committed consumer sees them."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self._bootstrap = bootstrap
        self._prefix = prefix

    def events(self, *, settled: bool = True) -> list[Event]:
        """The events of the one table."""
        everything = self.all(settled=settled)
        return everything.get(f"{self._prefix}._srv_fb_warehouse.fdb.ITEM", [])

    def all(self, *, settled: bool = True) -> dict[str, list[Event]]:
        """Everything but positions."""
        return read_topics(self._bootstrap, self._prefix, settled=settled)

    def positions(self, *, settled: bool = True) -> list[Offset]:
        """All records of the offset topic, none while there is no such topic."""
        name = f"__firebird-cdc-positions.{self._prefix}"
        read = read_topics(
            self._bootstrap,
            name,
            decode=lambda content, _topic, _part: content,
            settled=settled,
        )
        return [Offset.parse(record.value) for record in read.get(name, [])]


@pytest.fixture
def topics(broker: KafkaBroker, topic_prefix: str) -> Topics:
    return Topics(broker.bootstrap, topic_prefix)


def expected(*sequences: int, rows: int = 1) -> list[int]:
    return [sequence * 1_000_000 + row for sequence in sequences for row in range(rows)]


def uuids_of(paths: list[Path]) -> list[UUID]:
    return [UUID(path.stem) for path in paths]


def crash_at(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    hit: int = 1,
    *,
    after: bool,
) -> None:
    """Have the shipper in this process end at the HIT-th call of OWNER's NAME."""
    original = getattr(owner, name)
    calls = iter(range(1, 1_000_000))

    def crashing(*arguments: Any, **named: Any) -> Any:
        now = next(calls) == hit
        if now and not after:
            raise _Crash
        result = original(*arguments, **named)
        if now:
            raise _Crash
        return result

    monkeypatch.setattr(owner, name, crashing)


@pytest.fixture
def one_batch() -> Iterator[None]:
    """Have the backlog at a shipper's start in one Kafka transaction, on a busy machine too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_transaction, "BATCH_S", 60.0)
        patch.setattr(transactions, "PATIENCE_S", 60.0)  # or a slow broker has it begun anew
        yield


def crash_once(ship: Ship, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a shipper to the armed crash, which it notices no more than a kill."""
    monkeypatch.setattr(TransactionalDelivery, "abandon", lambda _self, _patience_s: None)
    with pytest.raises(_Crash):
        ship.once_here()
    monkeypatch.undo()


@pytest.mark.usefixtures("one_batch")
def test_offset_names_the_journals_of_its_kafka_transaction(
    ship: Ship, folder: Folder, topics: Topics
) -> None:
    paths = [folder.write(sequence, 2) for sequence in (1, 2, 3, 4)]
    assert ship.once_here() == 0
    paths += [folder.write(5), folder.write(1, epoch=1, first_id=7)]
    assert ship.once_here() == 0
    first, second = topics.positions()
    assert (first.database, first.number, first.complete) == (DATABASE, (0, 4), True)
    assert [uuid for _, _, uuid in first.journals] == uuids_of(paths[:4])
    assert second.number == (1, 1)
    assert [*second.journals] == [(0, 5, UUID(paths[4].stem)), (1, 1, UUID(paths[5].stem))]
    assert ids(topics.events()) == [*expected(1, 2, 3, 4, rows=2), 5_000_000, 7]


def test_transaction_committed_as_a_kafka_transaction_begins_joins_it(
    ship: Ship, folder: Folder, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = SharingServer(folder)
    journal = server.open()
    server.write(journal)
    server.publish()

    def commit_meanwhile(_seconds: float) -> None:
        if server.ledger.last < 3:
            server.write(journal)
            server.publish()

    for name in ("_JOINING_S", "BATCH_S"):  # however slow the machine is
        monkeypatch.setattr(kafka_transaction, name, 60.0)
    monkeypatch.setattr(kafka_transaction, "sleep", commit_meanwhile)
    assert ship.once_here() == 0
    server.end()
    assert [position.number for position in topics.positions()] == [(0, 3)]
    assert len(topics.events()) == 3


@pytest.mark.usefixtures("one_batch")
@pytest.mark.parametrize("deleted", [0, 2])
def test_journals_that_were_committed_and_not_disposed_of_are_not_sent_again(
    ship: Ship, folder: Folder, topics: Topics, monkeypatch: pytest.MonkeyPatch, deleted: int
) -> None:
    for sequence in range(1, 6):
        folder.write(sequence)

    def crashing(journals: list[Path | str], _in_order: bool) -> None:
        for journal in journals[:deleted]:
            Path(journal).unlink()
        raise _Crash

    monkeypatch.setattr(disposal, "_remove", crashing)
    crash_once(ship, monkeypatch)
    assert len(folder.waiting) == 5 - deleted
    folder.write(6)
    assert ship.once_here() == 0
    assert folder.waiting == []
    assert ids(topics.events()) == expected(*range(1, 7))


def test_kafka_transaction_without_a_commit_request_is_sent_once(
    ship: Ship, folder: Folder, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sequence in range(1, 6):
        folder.write(sequence, 10)
    crash_at(monkeypatch, TransactionalDelivery, "_hand_over", after=True)
    crash_once(ship, monkeypatch)
    assert topics.events(settled=False) == []
    assert ship.once_here() == 0
    assert ids(topics.events()) == expected(*range(1, 6), rows=10)


def test_shipped_journals_brought_back_by_a_power_cut_are_recognised(
    ship: Ship, folder: Folder, topics: Topics, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    for sequence in range(1, 5):
        shutil.copy2(folder.write(sequence), kept)
        assert ship.once_here() == 0
    for path in kept.iterdir():
        shutil.copy2(path, folder.directory)
    folder.write(5)
    assert ship.once_here() == 0
    assert folder.waiting == []
    assert ids(topics.events()) == expected(*range(1, 6))


@pytest.mark.parametrize("mode", ["fail", "skip"])
def test_other_journal_under_a_shipped_number_stops_its_database(
    ship: Ship, folder: Folder, topics: Topics, mode: str
) -> None:
    ship.options[MODE] = mode
    before = [folder.write(sequence) for sequence in (1, 2)]
    assert ship.once_here() == 0
    other = folder.write(2, first_id=99)
    waiting = [other, folder.write(3)]
    folder.write(1, database="/srv/fb/other.fdb")
    shipper = ship.once()
    assert shipper.process.returncode == 1
    assert folder.waiting == sorted(waiting)
    line = shipper.log_lines("shipping paused")[0]
    assert "under which Kafka has another journal" in line
    assert other.name in line
    assert UUID(before[1].stem).hex in line
    assert ids(topics.events()) == expected(1, 2)
    other.unlink()
    assert ship.once_here() == 0
    assert ids(topics.events()) == expected(1, 2, 3)
    assert len(topics.all()) == 2


def test_two_journals_under_one_number_are_never_sent_together(
    ship: Ship, folder: Folder, topics: Topics
) -> None:
    folder.write(1)
    twins = [folder.write(2, first_id=first) for first in (21, 22)]
    last = folder.write(3)
    shipper = ship.once()
    assert shipper.process.returncode == 1
    sent, other = sorted(twins, key=Path.exists)
    assert folder.waiting == sorted([other, last])
    line = shipper.log_lines("shipping paused")[0]
    assert other.name in line
    assert UUID(sent.stem).hex in line
    assert ids(topics.events()) == [*expected(1), 21 + twins.index(sent)]


def test_old_journal_put_back_halts_its_database_until_moved_away(
    ship: Ship, folder: Folder, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sequence in (1, 2, 4):  # 3 comes late
        folder.write(sequence)
    shipper = ship.start()
    shipper.await_that(lambda: not folder.waiting, "the others shipped")
    late = folder.write(3)
    line = shipper.await_log("shipping paused")
    assert "Kafka already has all up to sequence 4" in line
    assert late.name in line
    folder.write(5)
    late.unlink()
    shipper.await_that(lambda: not folder.waiting, "the rest shipped")
    assert shipper.terminate() == 0
    assert ids(topics.events()) == expected(1, 2, 4, 5)


def test_gap_directly_after_the_offset_is_noticed(
    ship: Ship, folder: Folder, topics: Topics
) -> None:
    folder.write(1)
    assert ship.once_here() == 0
    folder.write(3)
    shipper = ship.once()
    assert "journal 2 is missing" in shipper.log_lines("missing before journal")[0]
    assert ids(topics.events()) == expected(1, 3)


@pytest.mark.usefixtures("one_batch")
@pytest.mark.parametrize("point", ["second-part", "before-disposal"])
def test_journal_larger_than_a_kafka_transaction_is_once_in_kafka_all_the_same(
    ship: Ship, folder: Folder, topics: Topics, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    ship.options["provide.transaction.metadata"] = "true"
    folder.write(1, 3)
    folder.write(2, 2600)
    folder.write(3, 3)
    monkeypatch.setattr(transactions, "SPLIT_MESSAGES", 1000)
    if point == "second-part":
        crash_at(monkeypatch, TransactionalDelivery, "_hand_over", 2, after=True)
    else:
        crash_at(monkeypatch, shipper_disposal, "dispose_shipped", 2, after=False)
    crash_once(ship, monkeypatch)
    # The second part may have been left open, so that the end of the first alone can be awaited.
    (position, *_) = await_condition(
        "the first part's position", lambda: topics.positions(settled=False), PATIENCE_S
    )
    assert (position.number, position.complete) == ((0, 2), False)
    assert 900 < position.pos < 1100
    assert ship.once_here() == 0
    events = topics.events()
    assert ids(events) == expected(1, rows=3) + expected(2, rows=2600) + expected(3, rows=3)
    orders = [event.payload["transaction"]["total_order"] for event in events]
    assert orders == [*range(1, 4), *range(1, 2601), *range(1, 4)]
    boundaries = [
        (event.payload["status"], event.payload["event_count"])
        for name, found in topics.all().items()
        if name.endswith(".transaction")
        for event in found
    ]
    assert boundaries == [
        step for rows in (3, 2600, 3) for step in (("BEGIN", None), ("END", rows))
    ]


@pytest.mark.usefixtures("one_batch")
@pytest.mark.parametrize(
    ("most", "metadata"),
    half_of({"1": 1, "3": 3, "700": 700}, {"events": False, "boundaries": True}),
)
def test_only_a_journal_above_the_message_limit_is_split_and_no_part_exceeds_it(
    ship: Ship,
    folder: Folder,
    topics: Topics,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    metadata: bool,
) -> None:
    """Boundaries are messages of a journal, too; the first one is not left alone."""
    if metadata:
        ship.options["provide.transaction.metadata"] = "true"
    monkeypatch.setattr(transactions, "SPLIT_MESSAGES", most)
    monkeypatch.setattr(transactions, "BATCH_JOURNALS", 1)  # so that all of them can be counted
    sizes = [
        size for size in (most - 1, most, most + 1, 2 * most, 2 * most + 1) if size > 2 * metadata
    ]
    for sequence, size in enumerate(sizes, 1):
        folder.write(sequence, size - 2 * metadata)
    assert ship.once_here() == 0
    found = [(position.number[1], position.complete) for position in topics.positions()]
    parts = {n: [done for number, done in found if number == n] for n, _ in enumerate(sizes, 1)}
    whole = max(most, 1 + metadata)  # nothing is split behind BEGIN
    for sequence, size in enumerate(sizes, 1):
        assert parts[sequence] == [False] * (-(-size // whole) - 1) + [True], size
    rows = [size - 2 * metadata for size in sizes]
    expected_ids = [each for n, size in enumerate(rows, 1) for each in expected(n, rows=size)]
    assert ids(topics.events()) == expected_ids


def test_journals_fitting_into_a_kafka_transaction_are_never_split(
    ship: Ship, folder: Folder, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "SPLIT_MESSAGES", 1000)
    for sequence in range(1, 6):
        folder.write(sequence, 900)
    assert ship.once_here() == 0
    assert all(position.complete for position in topics.positions())
    assert ids(topics.events()) == expected(*range(1, 6), rows=900)


@pytest.mark.usefixtures("one_batch")  # or the crash may come before a part is committed
def test_journal_that_lost_its_place_in_the_middle_is_missed(
    ship: Ship, folder: Folder, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write(1)
    large = folder.write(2, 2000)
    monkeypatch.setattr(transactions, "SPLIT_MESSAGES", 700)
    crash_at(monkeypatch, TransactionalDelivery, "_hand_over", 2, after=True)
    crash_once(ship, monkeypatch)
    large.rename(folder.directory.with_name(large.name))
    other = folder.write(2, 2000)
    shipper = ship.once()
    assert "another journal" in shipper.log_lines("shipping paused")[0]
    ship.options["connector.journal.check.interval.ms"] = "200"
    shipper = ship.start()
    shipper.await_log("shipping paused")
    other.unlink()
    shipper.await_log("the cause is gone")
    assert not shipper.log_lines("it is gone, and")
    folder.write(3)
    assert "journal 2 is missing" in shipper.await_log("missing before journal")
    shipper.await_that(lambda: not folder.waiting, "the last one shipped")
    assert shipper.terminate() == 0
    assert ids(topics.events())[-1] == 3_000_000


def test_second_shipper_with_the_transactional_id_ends_the_first(
    ship: Ship,
    make_ship: Callable[[str], Ship],
    broker: KafkaBroker,
    folder: Folder,
    topics: Topics,
    tmp_path: Path,
) -> None:
    folder.write(1)
    first = ship.start()
    first.await_that(lambda: not folder.waiting, "journal 1 shipped")
    elsewhere = Folder(tmp_path / "elsewhere")
    elsewhere.write(1, database="/srv/fb/other.fdb")
    second = make_ship(broker.bootstrap)
    (tmp_path / "second").mkdir()
    second._directory = tmp_path / "second"
    second.options = ship.options | {"connector.journal.directory": str(elsewhere.directory)}
    running = second.start()
    running.await_that(lambda: not elsewhere.waiting, "the other journal shipped")
    kept = folder.write(2)
    assert first.wait() == 3
    assert "another producer has taken over" in ship.output(first)
    assert f"{ship.options['kafka.producer.transactional.id']}" in ship.output(first)
    assert folder.waiting == [kept]
    elsewhere.write(2, database="/srv/fb/other.fdb")
    running.await_that(lambda: not elsewhere.waiting, "the second one works on")
    assert running.terminate() == 0
    assert ship.once_here() == 0
    assert ids(topics.events()) == expected(1, 2)


def test_foreign_record_in_the_offset_topic_is_ignored(
    ship: Ship, folder: Folder, topics: Topics, broker: KafkaBroker, topic_prefix: str
) -> None:
    from confluent_kafka import Producer

    folder.write(1)
    assert ship.once_here() == 0
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in (b"no JSON", json.dumps({"version": 99}).encode(), uuid4().bytes):
        producer.produce(f"__firebird-cdc-positions.{topic_prefix}", value, b"x")
    assert producer.flush(30) == 0
    folder.write(2)
    assert ship.once_here() == 0
    assert ids(topics.events()) == expected(1, 2)


def delete_everything(broker: KafkaBroker, prefix: str) -> None:
    """Empty the cluster as far as this test has used it."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    names = admin.list_topics(timeout=30).topics
    delete_topics(broker.bootstrap, [name for name in names if prefix in name])


def acknowledge(ship: Ship, database: str = DATABASE) -> None:
    command = ["journal", "acknowledge", "--config", str(ship._config(99)), database]
    assert main(command) == 0


@either_way
def test_range_that_an_emptied_cluster_lost_is_named_until_acknowledged(
    ship: Ship,
    folder: Folder,
    topics: Topics,
    broker: KafkaBroker,
    topic_prefix: str,
    transactional: bool,
) -> None:
    if not transactional:
        del ship.options["kafka.producer.transactional.id"]
    for sequence in (1, 2, 3):
        folder.write(sequence)
    # Without transactions one that ends doesn't wait long for a slow broker to take its position,
    # and remembers only what that has taken.
    shipper = ship.start()
    shipper.await_that(
        lambda: (
            [memory.number for memory in local_offsets.remembered(folder.directory)] == [(0, 3)]
        ),
        "the last journal remembered",
    )
    assert shipper.terminate() == 0
    delete_everything(broker, topic_prefix)
    folder.write(4)
    shipper = ship.start()
    line = shipper.await_log("Kafka no longer has")
    assert "journals up to sequence 3 (epoch 0)" in line
    shipper.await_that(
        lambda: (
            [memory.number for memory in local_offsets.remembered(folder.directory)] == [(0, 4)]
        ),
        "journal 4 remembered",
    )
    # What is remembered is written before the journal goes.
    shipper.await_that(lambda: not folder.waiting, "journal 4 shipped")
    assert shipper.terminate() == 0
    assert ids(topics.events()) == expected(4)
    (memory,) = local_offsets.remembered(folder.directory)
    assert (memory.number, memory.lost[0].last) == ((0, 4), (0, 3))
    shipper = ship.once()
    assert not shipper.log_lines("Kafka no longer has")
    acknowledge(ship)
    folder.write(5)
    assert ship.once_here() == 0
    (memory,) = local_offsets.remembered(folder.directory)
    assert memory.lost == []
    assert ids(topics.events()) == expected(4, 5)


@in_turn(
    "transactional, has_shipped",
    {"plain": (False, True), "plain-idle": (False, False), "tx": (True, True)},
)
def test_cluster_that_is_emptied_under_a_running_shipper_is_noticed(
    make_ship: Callable[[str], Ship],
    own_broker: KafkaBroker,
    folder: Folder,
    topic_prefix: str,
    transactional: bool,
    has_shipped: bool,
) -> None:
    ship = make_ship(own_broker.bootstrap)
    if transactional:
        ship.options["kafka.producer.transactional.id"] = f"{topic_prefix}-id"
    shipper = ship.start()
    for sequence in (1, 2):
        folder.write(sequence)
        shipper.await_that(lambda: not folder.waiting, "the journal shipped")
    topics = Topics(own_broker.bootstrap, topic_prefix)
    await_condition(
        "the position",
        lambda: any(each.number == (0, 2) for each in topics.positions()),
        PATIENCE_S,
    )
    if not has_shipped:  # what it knows of them, it knows from Kafka
        assert shipper.terminate() == 0
        shipper = ship.start()
        shipper.await_log(f"positions.{topic_prefix} is read")
    own_broker.kill()
    shutil.rmtree(own_broker.directory / "data")
    (own_broker.directory / "server.properties").unlink()
    own_broker._fixed_port = True
    own_broker.start()
    folder.write(3)
    line = shipper.await_log("Kafka no longer has")
    assert "journals up to sequence 2 (epoch 0)" in line
    shipper.await_that(lambda: not folder.waiting, "the rest shipped")
    assert shipper.terminate() == 0
    assert set(ids(topics.events())) == {*expected(3)}


def test_database_shipped_from_another_folder_halts_until_acknowledged(
    ship: Ship, folder: Folder, topics: Topics, tmp_path: Path
) -> None:
    folder.write(1)
    folder.write(2)
    assert ship.once_here() == 0
    other = Folder(tmp_path / "other")
    ship.options["connector.journal.directory"] = str(other.directory)
    other.write(1, first_id=71)
    shipper = ship.start()
    line = shipper.await_log("shipping paused")
    assert f"from another journal folder, {node()}:{folder.directory}" in line
    acknowledge(ship)
    shipper.await_that(lambda: not other.waiting, "the journal of the new folder shipped")
    assert shipper.terminate() == 0
    other.write(2, first_id=72)
    assert ship.once_here() == 0
    assert ids(topics.events()) == [*expected(1, 2), 71, 72]
