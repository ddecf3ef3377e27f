"""Events that reach Kafka, their order, and the time when a journal may go."""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from time import sleep
from typing import Any

import logbook
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from seen import unanswered
from shipping import (
    DATABASE,
    ITEM,
    PATIENCE_S,
    Folder,
    Ship,
    Shipper,
    each_way,
    either_way,
    first_occurrences,
    ids,
    read_topics,
    use_transactions,
)
from soaked import few_of

from firebird_cdc.demo.events import ends_of
from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.service import free_port
from firebird_cdc.errors import RegistryUnavailable
from firebird_cdc.journal.events.message_writer import MessageWriter
from firebird_cdc.journal.events.records import Message, Record
from firebird_cdc.journal.format import JournalWriter
from firebird_cdc.journal.shipper.delivery import transactional as transactions

pytestmark = pytest.mark.kafka


def item_topic(prefix: str) -> str:
    return f"{prefix}._srv_fb_warehouse.fdb.ITEM"


@each_way
def test_events_arrive_in_order_and_as_the_journals_say(
    ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str, transactional: bool
) -> None:
    use_transactions(ship, topic_prefix, transactional)
    expected = []
    # Written in another order than their numbers: names and times must not matter.
    for sequence in (3, 1, 5, 2, 4):
        rows = sequence * 7
        folder.write(sequence, rows, name=f"journal {sequence}")
        expected += [(sequence, pos, f"journal {sequence}") for pos in range(1, rows + 1)]
    assert ship.once().process.returncode == 0
    events = read_topics(broker.bootstrap, topic_prefix)[item_topic(topic_prefix)]
    assert [(*event.position, event.payload["after"]["NAME"]) for event in events] == sorted(
        expected
    )
    for event in events:
        sequence, pos = event.position
        assert event.key["payload"] == {"ID": sequence * 1_000_000 + pos - 1}
        assert event.payload["op"] == "c"
        assert event.payload["source"]["db"] == DATABASE
    assert folder.waiting == []


@either_way
def test_databases_are_shipped_side_by_side_each_in_its_own_order(
    ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str, transactional: bool
) -> None:
    use_transactions(ship, topic_prefix, transactional)
    databases = ["/srv/a.fdb", "/srv/b.fdb", "/srv/c.fdb"]
    for sequence in range(1, 21):
        for database in databases:
            folder.write(sequence, 3, database=database)
    assert ship.once().process.returncode == 0
    topics = read_topics(broker.bootstrap, topic_prefix)
    assert set(topics) == {f"{topic_prefix}._srv_{name}.fdb.ITEM" for name in "abc"}
    for events in topics.values():
        expected = [(sequence, pos) for sequence in range(1, 21) for pos in (1, 2, 3)]
        assert [event.position for event in events] == expected


@either_way
def test_running_shipper_sends_a_journal_as_soon_as_it_is_renamed(
    ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str, transactional: bool
) -> None:
    use_transactions(ship, topic_prefix, transactional)
    shipper = ship.start()
    shipper.await_log("shipping journals of")
    for sequence in range(1, 31):
        folder.write(sequence, 2)
    shipper.await_that(lambda: not folder.waiting, "all journals shipped")
    assert shipper.terminate() == 0
    events = read_topics(broker.bootstrap, topic_prefix)[item_topic(topic_prefix)]
    assert [event.position for event in events] == [(s, p) for s in range(1, 31) for p in (1, 2)]


def test_live_journals_and_our_own_folder_are_left_alone(ship: Ship, folder: Folder) -> None:
    unconfirmed = folder.write(1)
    live = unconfirmed.rename(unconfirmed.with_suffix(".log.live"))
    own = folder.directory / ".firebird-cdc"
    own.mkdir()
    journal = folder.write(2)
    kept = journal.rename(own / journal.name)
    foreign = folder.directory / "server.log"
    foreign.write_text("not a journal")
    assert ship.once().process.returncode == 0
    assert live.exists()
    assert kept.exists()
    assert foreign.exists()


@either_way
def test_journal_stays_while_nothing_is_acknowledged(
    make_ship: Callable[[str], Ship], folder: Folder, topic_prefix: str, transactional: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # accepts, and never answers
        ship = make_ship(f"127.0.0.1:{deaf.getsockname()[1]}")
        ship.options["kafka.producer.request.timeout.ms"] = "1000"
        ship.options["kafka.producer.api.version.request.timeout.ms"] = "1000"  # the first one
        ship.options["kafka.producer.close.timeout.ms"] = "100"
        use_transactions(ship, topic_prefix, transactional)
        journal = folder.write(1, 10)
        content = journal.read_bytes()
        shipper = ship.start()
        shipper.await_log("does not take messages")
        assert shipper.process.poll() is None
        assert journal.read_bytes() == content
        assert shipper.terminate() == 0
        assert journal.read_bytes() == content


@either_way
def test_shipped_journals_are_kept_in_the_archive_byte_for_byte(
    ship: Ship, folder: Folder, tmp_path: Path, topic_prefix: str, transactional: bool
) -> None:
    use_transactions(ship, topic_prefix, transactional)
    archive = tmp_path / "archive"
    ship.options["connector.journal.archive.directory"] = str(archive)
    contents = {
        path.name: path.read_bytes() for path in (folder.write(n, 20) for n in range(1, 11))
    }
    assert ship.once().process.returncode == 0
    assert folder.waiting == []
    assert {path.name: path.read_bytes() for path in archive.iterdir()} == contents


def test_archive_that_cannot_be_used_keeps_the_journals_and_is_not_fatal(
    ship: Ship, folder: Folder, broker: KafkaBroker, tmp_path: Path, topic_prefix: str
) -> None:
    archive = tmp_path / "archive"
    archive.write_text("a file where the folder should be")
    ship.options["connector.journal.archive.directory"] = str(archive)
    journal = folder.write(1, 5)
    shipper = ship.start()
    assert str(archive) in shipper.await_log("can't be put into")
    assert journal.exists()
    archive.unlink()
    shipper.await_that(lambda: not folder.waiting, "the journal archived")
    assert (archive / journal.name).exists()
    assert shipper.terminate() == 0
    events = read_topics(broker.bootstrap, topic_prefix)[item_topic(topic_prefix)]
    assert len(events) == 5


def open_outage(shipper: Shipper) -> list[str]:
    """Return the logged causes of the present wait for a broker; fail if any outage was told twice.

    A slow broker may also be silent before a kill and after it, and in several ways: each such
    time ends with one line, and has one for each cause.
    """
    causes: list[str] = []
    for line in shipper.log.splitlines():
        _, is_away, rest = line.partition("does not take messages: ")
        if is_away:
            cause = re.sub(r"\d+", "", rest)  # ports, and how long was waited
            assert cause not in causes, shipper.log
            causes.append(cause)
        elif "answers again" in line:
            assert causes, shipper.log
            causes = []
    return causes


@either_way
def test_broker_killed_and_restarted_in_the_middle_loses_nothing(
    make_ship: Callable[[str], Ship],
    own_broker: KafkaBroker,
    folder: Folder,
    topic_prefix: str,
    transactional: bool,
) -> None:
    ship = make_ship(own_broker.bootstrap)
    use_transactions(ship, topic_prefix, transactional)
    ship.options["value.converter.schemas.enable"] = "false"
    shipper = ship.start()
    for sequence in range(1, 101):
        folder.write(sequence, 500)
    shipper.await_that(lambda: len(folder.waiting) < 90, "some journals shipped")
    own_broker.kill()
    for sequence in range(101, 121):  # a quick shipper may have sent all others by now
        folder.write(sequence, 500)
    shipper.await_that(lambda: open_outage(shipper), "the broker missed")
    waiting = folder.waiting
    own_broker.start()
    shipper.await_that(lambda: not folder.waiting, "all journals shipped")
    shipper.await_that(lambda: not open_outage(shipper), "the broker found again")
    assert shipper.terminate() == 0
    assert waiting
    events = read_topics(own_broker.bootstrap, topic_prefix)[item_topic(topic_prefix)]
    expected = [s * 1_000_000 + n for s in range(1, 121) for n in range(500)]
    got = ids(events)
    assert first_occurrences(got) == expected


SIZES = {1: 1000, 2: 1000, 3: 20_000, 4: 1000}
SLOW = {
    "kafka.producer.batch.size": "1",
    "kafka.producer.linger.ms": "0",
    "kafka.producer.max.in.flight.requests.per.connection": "1",
}


def killed_amid_the_large_journal(
    ship: Ship, folder: Folder, bootstrap: str, topic: str
) -> Iterator[None]:
    """Ship journals of SIZES rows; yields after each of three kills of the shipper.

    It is killed when a part of the third journal is seen in the topic, and sends one message per
    request until then, so that the rest takes much longer than the look.
    """
    ship.options["value.converter.schemas.enable"] = "false"
    folder.write(1, SIZES[1])
    assert ship.once().process.returncode == 0
    for sequence in (2, 3, 4):
        folder.write(sequence, SIZES[sequence])
    hits = 0
    ship.options |= SLOW
    admin = AdminClient({"bootstrap.servers": bootstrap})  # one for all looks, which are quick then

    def end() -> int:
        return ends_of(admin, [TopicPartition(topic, 0)])[topic, 0]

    for _ in range(3):
        due = end() + 2000
        shipper = ship.start()
        shipper.await_that(lambda due=due: end() > due, "a part of the large journal sent")
        shipper.kill()
        hits += len(folder.waiting) >= 2
        yield
        if len(folder.waiting) < 2:
            break
    assert hits, "no kill hit a shipper at work on the journal: this test proved nothing"
    for option in SLOW:
        del ship.options[option]
    assert ship.once().process.returncode == 0


def expected_ids() -> list[int]:
    return [s * 1_000_000 + n for s, rows in SIZES.items() for n in range(rows)]


@each_way
def test_shipper_killed_in_the_middle_loses_nothing(
    ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str, transactional: bool
) -> None:
    use_transactions(ship, topic_prefix, transactional)
    topic = item_topic(topic_prefix)
    expected = expected_ids()
    for _ in killed_amid_the_large_journal(ship, folder, broker.bootstrap, topic):
        now = read_topics(broker.bootstrap, topic_prefix, settled=False)[topic]
        seen = first_occurrences(ids(now))
        assert seen == expected[: len(seen)]
    assert folder.waiting == []
    events = read_topics(broker.bootstrap, topic_prefix)[topic]
    assert first_occurrences(ids(events)) == expected


def test_read_committed_consumers_see_whole_journals_only(
    ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str
) -> None:
    use_transactions(ship, topic_prefix, True)
    topic = item_topic(topic_prefix)
    saw_uncommitted = False
    for _ in killed_amid_the_large_journal(ship, folder, broker.bootstrap, topic):
        whole = read_topics(broker.bootstrap, topic_prefix, settled=False)[topic]
        dirty = read_topics(broker.bootstrap, topic_prefix, "read_uncommitted")[topic]
        saw_uncommitted |= len(dirty) > len(whole)
        counts = Counter(event.position[0] for event in whole)
        assert all(count % SIZES[sequence] == 0 for sequence, count in counts.items()), counts
    assert saw_uncommitted, "no kill hit an open Kafka transaction: this test proved nothing"
    events = read_topics(broker.bootstrap, topic_prefix)[topic]
    assert first_occurrences(ids(events)) == expected_ids()


def test_counts_of_a_journal_go_on_over_the_kafka_transactions_it_is_split_into(
    ship: Ship,
    folder: Folder,
    broker: KafkaBroker,
    topic_prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_transactions(ship, topic_prefix, True)
    ship.options["provide.transaction.metadata"] = "true"
    monkeypatch.setattr(transactions, "SPLIT_MESSAGES", 300)
    render, calls = MessageWriter.checked, count(1)

    def interrupted(*args: Any) -> Message | None:
        if next(calls) == 700:  # behind the first part, which a second attempt counts only
            raise RegistryUnavailable("away for a moment")
        return render(*args)

    monkeypatch.setattr(MessageWriter, "checked", interrupted)
    folder.write(1, 1200)
    assert ship.once_here() == 0
    assert next(calls) > 1800
    topics = read_topics(broker.bootstrap, topic_prefix)
    events = topics[item_topic(topic_prefix)]
    assert [event.payload["transaction"]["total_order"] for event in events] == [*range(1, 1201)]
    boundaries = [event.payload for event in topics[f"{topic_prefix}.transaction"]]
    assert [(end["status"], end["event_count"]) for end in boundaries] == [
        ("BEGIN", None),
        ("END", 1200),
    ]


class SlowFilter:
    """A transform of the user's that takes its time and drops most records."""

    def apply(self, record: Record) -> Record | None:
        name = (record.value["after"] or {}).get("NAME")
        if name == "keep":
            return record
        sleep(0.004)
        return None


def test_a_kafka_transaction_is_ended_in_time_while_records_are_filtered_out(
    ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str
) -> None:
    use_transactions(ship, topic_prefix, True)
    ship.options |= {
        "kafka.producer.transaction.timeout.ms": "6000",
        "kafka.producer.request.timeout.ms": "5000",
        "kafka.producer.delivery.timeout.ms": "5600",
        "transforms": "slow",
        "transforms.slow.type": f"{__name__}.SlowFilter",
    }

    def fill(writer: JournalWriter) -> None:
        table = writer.table("ITEM", ITEM)
        for number in range(2000):  # 8 s
            writer.insert(table, (number, "keep" if number in (0, 1999) else "drop"))

    folder.write_changes(1, fill)
    with logbook.TestHandler() as log:
        # A machine that stands still for seconds has one expire all the same.
        assert any(ship.once_here() == 0 for _ in range(3))
    assert any("events up to 1 are committed" in record.message for record in log.records)
    assert ids(read_topics(broker.bootstrap, topic_prefix)[item_topic(topic_prefix)]) == [0, 1999]


@pytest.mark.parametrize("snapshots", few_of(("never", "initial"), ["initial"]))
def test_shipper_started_before_its_broker_ships_once_that_answers(
    make_ship: Callable[[str], Ship],
    tmp_path: Path,
    kafka_jars: Path,
    folder: Folder,
    topic_prefix: str,
    snapshots: str,
) -> None:
    port = free_port()
    ship = make_ship(f"127.0.0.1:{port}")
    ship.options["snapshot.mode"] = snapshots
    folder.write(1, 10)
    shipper = ship.start()
    line = shipper.await_log("does not take messages")
    assert f"127.0.0.1:{port}" in line
    assert len(folder.waiting) == 1
    with KafkaBroker(tmp_path / "late", kafka_jars, port=port) as late:
        shipper.await_that(lambda: not folder.waiting, "the journal shipped")
        shipper.await_log("answers again")
        events = read_topics(late.bootstrap, topic_prefix)[item_topic(topic_prefix)]
        assert shipper.terminate() == 0
    assert len(events) == 10
    open_outage(shipper)  # of a broker that starts slowly there may be several causes, each once


@either_way
def test_key_change_gives_delete_tombstone_and_create(
    ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str, transactional: bool
) -> None:
    use_transactions(ship, topic_prefix, transactional)

    def fill(writer: JournalWriter) -> None:
        table = writer.table("ITEM", ITEM)
        writer.update(table, (1, "a"), (2, "a"))

    folder.write_changes(1, fill)
    assert ship.once().process.returncode == 0
    delete, tombstone, create = read_topics(broker.bootstrap, topic_prefix)[
        item_topic(topic_prefix)
    ]
    assert (delete.key["payload"], delete.payload["op"]) == ({"ID": 1}, "d")
    assert (tombstone.key, tombstone.value) == (delete.key, None)
    assert (create.key["payload"], create.payload["op"]) == ({"ID": 2}, "c")
    assert '"ID":2' in delete.headers["__debezium.newkey"]
    assert '"ID":1' in create.headers["__debezium.oldkey"]
    assert "__debezium.newkey" not in tombstone.headers
    for event in (delete, tombstone, create):
        assert event.headers["__debezium.context.connectorName"] == "depot-cdc"


def test_memory_and_descriptors_stay_flat_over_many_journals(
    ship: Ship, folder: Folder, broker: KafkaBroker
) -> None:
    shipper = ship.start()
    shipper.await_log("shipping journals of")
    measured = []
    sequence = 0
    for _ in range(4):
        with broker.stopped():  # so that each round has as many under way at once
            for _ in range(1500):
                sequence += 1
                folder.write(sequence)
            shipper.await_that(lambda: unanswered(folder) >= 1500, "all under way")
        shipper.await_that(lambda: not folder.waiting, "this round shipped")
        measured.append((*shipper.descriptors(), shipper.resident_kib()))
    (files, sockets, memory), *_, (_, _, last_memory) = measured[1:]

    def has_no_more() -> bool:
        files_now, sockets_now = shipper.descriptors()
        # The client closes both of its connections when a stopped broker is silent for long, and
        # opens the second one when it likes.
        return files_now <= files and sockets_now <= sockets + 2

    # It may just have a file open that it writes anew each second.
    shipper.await_that(has_no_more, "no more descriptors than before")
    assert shipper.terminate() == 0
    assert last_memory - memory < 4096, measured


def test_a_large_journal_is_sent_in_bounded_memory(ship: Ship, folder: Folder) -> None:
    ship.options["kafka.producer.buffer.memory"] = str(8 * 1024 * 1024)
    shipper = ship.start()
    shipper.await_log("shipping journals of")
    folder.write(1, 1000)
    shipper.await_that(lambda: not folder.waiting, "the small journal shipped")
    before = shipper.resident_kib()
    folder.write(2, 60_000, name="y" * 200)  # about 200 MB of messages
    peak = 0

    def gone() -> bool:
        nonlocal peak
        peak = max(peak, shipper.resident_kib())
        return not folder.waiting

    shipper.await_that(gone, "the large journal shipped", 4 * PATIENCE_S)
    assert shipper.terminate() == 0
    assert peak - before < 64 * 1024
