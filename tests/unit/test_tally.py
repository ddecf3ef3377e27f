"""Changes of one journal that count as shipped: those that were acknowledged, each once."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from columns import column
from confluent_kafka import KafkaError, KafkaException

from firebird_cdc.config import load_config
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.errors import RegistryUnavailable
from firebird_cdc.journal.events.render import JournalRenderer, Renderer
from firebird_cdc.journal.format import JournalWriter, Storage
from firebird_cdc.journal.shipper.delivery.send import JournalSend
from firebird_cdc.journal.shipper.delivery.sending import SendContext
from firebird_cdc.journal.shipper.delivery.tally import PLACED, Tally
from firebird_cdc.journal.shipper.delivery.transactional import TransactionalDelivery
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.kafka.client import KafkaLink
from firebird_cdc.journal.shipper.monitoring.statistics import DatabaseStatistics, Statistics

DATABASE = "/srv/depot.fdb"
ROWS = 1000
_COLUMNS = (column("ID", Storage.BIGINT, 1),)

Answer = Callable[[KafkaError | None, Any], None]


class _Taken:
    def offset(self) -> int:
        return 7

    def topic(self) -> str:
        return "t"


class _Producer:
    """Takes ROOM messages, until it is given more, and answers when it is told to."""

    def __init__(self, room: int = 1_000_000) -> None:
        self.room = room
        self.asked: list[Answer] = []

    def produce(self, *_: Any, on_delivery: Answer, **__: Any) -> None:
        if not self.room:
            raise BufferError
        self.room -= 1
        self.asked.append(on_delivery)

    def answer(self, first: int, last: int, error: KafkaError | None = None) -> None:
        """Answer messages FIRST to LAST of those that are open, counted from 0."""
        for answer in self.asked[first:last]:
            answer(error, _Taken())
        del self.asked[first:last]


class _Sending:
    """One journal with ROWS inserts, one delete with its tombstone, and a table left out."""

    def __init__(self, directory: Path, *, counts_at_once: bool = True) -> None:
        journals = directory / "journals"
        journals.mkdir()
        identity = uuid.uuid4()
        path = journals / f"{identity}.log"
        with JournalWriter(path, uuid=identity, database=DATABASE, user="SYSDBA") as writer:
            goods, other = writer.table("GOODS", _COLUMNS), writer.table("OTHER", _COLUMNS)
            for number in range(ROWS):
                writer.insert(goods, (number,))
            writer.insert(other, (1,))
            writer.delete(goods, (1,))
            writer.seal()
            writer.commit(1, 1)
            writer.stamp(1)
        config = directory / "connector.yaml"
        config.write_text(
            f"connector.name: t\nconnector.journal.directory: {journals}\nkafka.topic.prefix: t\n"
            "kafka.producer.bootstrap.servers: 127.0.0.1:9\ntable.exclude.list: .*OTHER\n"
        )
        self.statistics = Statistics()
        self.plan = SendContext(
            journals,
            Renderer(load_config(config), 1_000_000),
            "UTF8",
            "fail",
            self.statistics,
            counts_at_once=counts_at_once,
        )
        self.entry = Entry(0, 1, identity)

    def send(self, former: JournalSend | None = None) -> JournalSend:
        counted = former.tally.told if former is not None else 0
        return JournalSend(self.plan, self.entry, DATABASE, counted=counted)

    @property
    def counted(self) -> tuple[int, int, int]:
        """Inserts, deletes and changes left out, as the statistics have them."""
        database = self.statistics.database(DATABASE)
        return (
            database.events.get(("GOODS", "c"), 0),
            database.events.get(("GOODS", "d"), 0),
            database.filtered,
        )


@pytest.fixture
def sending(tmp_path: Path) -> _Sending:
    return _Sending(tmp_path)


def test_messages_count_only_once_acknowledged(sending: _Sending) -> None:
    producer: Any = _Producer()
    send = sending.send()
    while not send.read_to_end:
        send.produce(producer, 300)
    assert send.unacked == ROWS + 2 and sending.counted == (0, 0, 0)
    producer.answer(0, len(producer.asked))
    assert send.delivered and sending.counted == (ROWS, 1, 1)


def test_a_large_journal_counts_in_steps_from_its_beginning(sending: _Sending) -> None:
    producer: Any = _Producer()
    send = sending.send()
    send.produce(producer, 300)
    send.produce(producer, 300)
    producer.answer(300, 600)  # another partition is faster
    assert sending.counted == (0, 0, 0) and send.unacked == 300
    producer.answer(0, 299)
    assert sending.counted == (0, 0, 0)
    producer.answer(0, 1)
    assert sending.counted == (600, 0, 0) and not send.delivered


def test_resent_messages_count_once(sending: _Sending) -> None:
    producer: Any = _Producer()
    first = sending.send()
    first.produce(producer, 300)
    first.produce(producer, 300)
    producer.answer(0, 300)
    producer.answer(0, 100, KafkaError(KafkaError._MSG_TIMED_OUT))
    assert sending.counted == (300, 0, 0) and first.failed is not None
    first.close()
    second = sending.send(first)
    producer.answer(0, len(producer.asked))  # late ones, for the first attempt
    assert sending.counted == (300, 0, 0)
    while not second.read_to_end:
        second.produce(producer, 300)
    producer.answer(0, 350)
    producer.answer(0, len(producer.asked))
    assert second.delivered and sending.counted == (ROWS, 1, 1)
    assert sending.plan.unacked == 0


@pytest.mark.parametrize("room", [0, 1, 150, ROWS, ROWS + 1])
def test_change_counts_only_with_its_last_message(sending: _Sending, room: int) -> None:
    producer: Any = _Producer(room)
    send = sending.send()
    while send.produce(producer, 300):
        pass
    while send.produce(producer, 300):  # and the queue is full again
        pass
    producer.answer(0, room)
    whole = min(room, ROWS)  # of the delete, the tombstone is held back
    assert sending.counted[:2] == (whole, 0) and send.unacked == 0 and not send.delivered
    producer.room = 1_000_000
    while not send.read_to_end:
        send.produce(producer, 300)
    producer.answer(0, len(producer.asked))
    assert send.delivered and sending.counted == (ROWS, 1, 1)


def test_placeholders_count_with_the_change_that_has_them() -> None:
    statistics = DatabaseStatistics()
    tally = Tally(statistics, 0)
    tally.handed |= {("DOC", "u"): 2, PLACED: 2}
    tally.read, tally.kind, tally.is_placed = 2, ("DOC", "u"), True
    tally.take(*tally.cut(is_whole=False))  # of the second one, a message is held back
    tally.tell()
    assert (statistics.events, statistics.placeholders) == ({("DOC", "u"): 1}, 1)
    tally.take(*tally.cut(is_whole=True))
    tally.tell()
    assert (statistics.events, statistics.placeholders) == ({("DOC", "u"): 2}, 2)


def test_in_a_kafka_transaction_only_its_commit_counts(tmp_path: Path) -> None:
    sending = _Sending(tmp_path, counts_at_once=False)
    producer: Any = _Producer()
    send = sending.send()
    while not send.read_to_end:
        send.produce(producer, 300)
    producer.answer(0, len(producer.asked))
    assert send.delivered and sending.counted == (0, 0, 0)
    send.close()  # aborted
    again = sending.send(send)
    while not again.read_to_end:
        again.produce(producer, 300)
    producer.answer(0, len(producer.asked))
    again.tally.tell()
    assert sending.counted == (ROWS, 1, 1)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_placeholders_of_a_change_that_a_transform_drops_do_not_count(
    tmp_path: Path, is_dropped: bool
) -> None:
    identity = uuid.uuid4()
    path = tmp_path / f"{identity}.log"
    columns = (*_COLUMNS, column("PHOTO", Storage.BLOB))
    with JournalWriter(path, uuid=identity, database=DATABASE, user="SYSDBA") as writer:
        writer.insert(writer.table("DOC", columns), (1, writer.blob(b"x" * 20_000)))
        writer.seal()
        writer.commit(1, 1)
        writer.stamp(1)
    config = tmp_path / "connector.yaml"
    config.write_text(
        f"connector.name: t\nconnector.journal.directory: {tmp_path}\nkafka.topic.prefix: t\n"
        "kafka.producer.bootstrap.servers: 127.0.0.1:9\nevent.oversized.value: placeholder\n"
        "transforms: f\ntransforms.f.type: io.debezium.transforms.Filter\n"
        f"transforms.f.condition: value.op == '{'u' if is_dropped else 'c'}'\n"
    )
    statistics, producer = Statistics(), _Producer()
    taker: Any = producer
    renderer = Renderer(load_config(config), 10_000)
    plan = SendContext(tmp_path, renderer, "UTF8", "fail", statistics)
    send = JournalSend(plan, Entry(0, 1, identity), DATABASE)
    while not send.read_to_end:
        send.produce(taker, 300)
    producer.answer(0, len(producer.asked))
    database = statistics.database(DATABASE)
    assert send.delivered and database.filtered == is_dropped
    assert database.placeholders == (not is_dropped)


def _client_threads() -> set[str]:
    """The ids of the threads that librdkafka runs in this process."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has just ended
            if (task / "comm").read_text().startswith("rdk:"):
                found.add(task.name)
    return found


@pytest.mark.parametrize("is_replaced", [True, False])
def test_producer_ends_though_an_error_is_kept_that_came_through_its_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    """While a process ends, OpenSSL takes apart what threads of its Kafka client may be using."""

    def away(*_: Any) -> None:
        raise RegistryUnavailable("it is away")

    monkeypatch.setattr(JournalRenderer, "messages", away)
    others = _client_threads()
    send = _Sending(tmp_path).send()
    link = KafkaLink(load_config(tmp_path / "connector.yaml"), Statistics())
    delivery: Any = Mock()
    held_up = None
    with pytest.raises(KafkaException) as failed:
        try:
            send.produce(link.producer, 10)
        except RegistryUnavailable as error:
            held_up = error
            TransactionalDelivery._repeat(delivery, link.producer.abort_transaction)
    its = _client_threads() - others
    assert its
    # One that was joined may be listed on for a moment.
    if is_replaced:
        link.recreate()
        await_condition("the end of the first client", lambda: not its & _client_threads(), 60)
    link.close()
    await_condition("the end of the client", lambda: not _client_threads() - others, 60)
    send.close()
    assert held_up and failed.tb  # until now
