"""Small transactions of shared journals: sent in runs, they come out as if sent one by one."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest
from columns import column
from confluent_kafka import KafkaError, KafkaException

from firebird_cdc.config import load_config
from firebird_cdc.errors import JournalError, TopicUnavailable
from firebird_cdc.journal.events import render, schema_changes, table_shape
from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.format import (
    Column,
    JournalReader,
    Place,
    SharedJournal,
    SharedJournalWriter,
    Storage,
    Table,
    TransactionWriter,
    Undecodable,
    Value,
    pack_places,
)
from firebird_cdc.journal.format.split_transactions import MOST_EVENTS, TransactionSplitter
from firebird_cdc.journal.shipper.delivery.database_queue import DatabaseQueue
from firebird_cdc.journal.shipper.delivery.send import JournalSend
from firebird_cdc.journal.shipper.delivery.sending import Send, SendContext
from firebird_cdc.journal.shipper.delivery.small import SmallSend, SmallSender
from firebird_cdc.journal.shipper.inbox.queue import Queue
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics

DATABASE = "/srv/depot.fdb"
NOW_NS = 1_772_442_848_250_123_456
TABLES: Mapping[str, tuple[Column, ...]] = {
    "GOODS": (
        column("ID", Storage.BIGINT, 1),
        column("NAME", Storage.TEXT, char_length=40),
        column("CODE", Storage.PADDED_TEXT, char_length=6, charset_id=21),
        column("PRICE", Storage.BIGINT, scale=-2, sub_type=1, precision=18),
        column("WEIGHT", Storage.DOUBLE),
        column("SOLD", Storage.BOOLEAN),
        column("SINCE", Storage.TIMESTAMP),
        column("RAW", Storage.OCTETS),
        column("PHOTO", Storage.BLOB),
    ),
    "STOCK": (
        column("ID", Storage.INTEGER, 1),
        column("NAME", Storage.TEXT, char_length=40),
        column("CODE", Storage.PADDED_TEXT, char_length=6),
        column("PRICE", Storage.BIGINT, scale=-2, sub_type=1, precision=18),
        column("SOLD", Storage.BOOLEAN),
        column("SINCE", Storage.TIMESTAMP),
        column("RAW", Storage.OCTETS),
    ),
    "LOG": (column("AT", Storage.DATE), column("TEXT", Storage.TEXT, charset_id=0)),
    "SECRET": (column("ID", Storage.INTEGER, 1),),
}
Message = tuple[str, bytes | None, bytes | None, list[tuple[str, Any]]]


class _Taken:
    def offset(self) -> int:
        return 7

    def topic(self) -> str:
        return "t"


class _Producer:
    """Takes ROOM messages until it is given more, but none with REFUSED in it; answers when it is
    told to."""

    def __init__(self, room: int = 1_000_000, refused: bytes = b"\xff") -> None:
        self.room = room
        self.taken: list[Message] = []
        self._asked: list[Callable[[KafkaError | None, Any], None]] = []
        self._refused = refused

    def produce(
        self, topic: str, value: bytes | None, key: bytes | None, *, headers: Any, on_delivery: Any
    ) -> None:
        if not self.room:
            raise BufferError
        if value is not None and self._refused in value:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self.room -= 1
        self.taken.append((topic, key, value, headers))
        self._asked.append(on_delivery)

    def answer(self, *failing: int) -> None:
        """Answer all messages; those at FAILING, counted from 0, have failed."""
        for number, answer in enumerate(self._asked):
            answer(KafkaError(KafkaError._MSG_TIMED_OUT) if number in failing else None, _Taken())
        self._asked.clear()


Fill = Callable[[TransactionWriter], None]


class Scene:
    """A closed shared journal, whose transactions the queue of its database has."""

    def __init__(self, directory: Path, options: str = "", *, counts_at_once: bool = True) -> None:
        self.directory = directory / "journals"
        self.directory.mkdir()
        self._config = directory / "connector.yaml"
        self._config.write_text(
            f"connector.name: t\nconnector.journal.directory: {self.directory}\n"
            "kafka.topic.prefix: t\nkafka.producer.bootstrap.servers: 127.0.0.1:9\n"
            f"table.exclude.list: .*SECRET\n{options}"
        )
        self._counts_at_once = counts_at_once
        self.places: list[Place] = []
        self.home = uuid4()
        self.start()

    def start(self) -> None:
        """Begin with a shipper that knows of nothing."""
        self.statistics = Statistics()
        renderer = Renderer(load_config(self._config), 20_000)
        self.plan = SendContext(
            self.directory,
            renderer,
            "UTF8",
            "warn",
            self.statistics,
            counts_at_once=self._counts_at_once,
        )
        self.queue = DatabaseQueue(DATABASE, Queue(), 1.0, _nothing_is_missing)
        self.small = SmallSender(self.plan)
        self.queue.backlog.push_shared(self.home, pack_places(self.places))

    @property
    def path(self) -> Path:
        """The journal."""
        return self.directory / f"{self.home}.log"

    def write(self, fills: Sequence[Fill], *, floor: int | None = None) -> None:
        """Write the journal, with a transaction of each of FILLS."""
        with SharedJournalWriter.create(self.path, database=DATABASE) as journal:
            self.home = journal.header.uuid
            for number, fill in enumerate(fills, 1):
                written = TransactionWriter(journal.header, 48_000 + number, "SYSDBA")
                fill(written)
                written.seal(floor=floor)
                journal.append(written)
                journal.commit(written, number, commit_us=1_772_442_848_250_000 + number)
            journal.close()
        with SharedJournal(self.path) as shared:
            self.places = shared.places
        self.start()

    def in_runs(self, producer: _Producer, most: int = 500) -> list[Send]:
        """Begin all that waits, in runs as far as that goes."""
        taker: Any = producer
        while self.queue.backlog:
            begun, _ = self.small.send(self.queue, taker, most)
            if not begun:
                self.one(producer)
        return list(self.queue.sends)

    def one_by_one(self, producer: _Producer) -> list[Send]:
        """Begin all that waits, each by itself."""
        while self.queue.backlog:
            self.one(producer)
        return list(self.queue.sends)

    def one(self, producer: _Producer) -> None:
        """Begin the next one, which is set aside where it can't be read or sent any further."""
        send = self.queue.begin(self.plan)
        taker: Any = producer
        try:
            while not send.read_to_end:
                send.produce(taker, 500)
        except (JournalError, BadEvent) as error:
            send.end_early(str(error))

    @property
    def counted(self) -> tuple[Mapping[tuple[str, str], int], int]:
        """Events by table and operation, and changes left out, as the statistics have them."""
        database = self.statistics.database(DATABASE)
        return database.events, database.filtered


def _nothing_is_missing(*missing: object) -> None:
    pytest.fail(f"told as missing: {missing}")


@pytest.fixture(autouse=True)
def _time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (render, schema_changes, table_shape):
        monkeypatch.setattr(module, "time_ns", lambda: NOW_NS)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """A folder for one journal."""
    return Scene(tmp_path)


def insert(number: int) -> Fill:
    """Return what inserts one row."""

    def fill(written: TransactionWriter) -> None:
        written.insert(written.table("LOG", TABLES["LOG"]), (number, f"{number} is inserted"))

    return fill


class _Facts(NamedTuple):
    """Facts that outlive the sending of a transaction."""

    uuid: UUID
    pos: int
    sent_to: int
    messages: int
    length: int
    last_event: object


def _facts(sends: Sequence[Send]) -> list[_Facts]:
    return [
        _Facts(s.entry.uuid, s.pos, s.sent_to, s.messages, s.length, s.last_event) for s in sends
    ]


class _Work:
    """Random transactions."""

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(seed)

    def fill(self, written: TransactionWriter) -> None:
        """Write one."""
        chance = self._chance
        tables: dict[str, Table] = {}
        for _ in range(chance.choice((1, 1, 1, 2, 5, MOST_EVENTS + 1))):
            name = chance.choice(("GOODS", "STOCK", "STOCK", "LOG", "SECRET"))
            if name not in tables:
                tables[name] = written.table(name, TABLES[name])
            table, old, new = tables[name], self._row(name, written), self._row(name, written)
            match chance.randrange(12):
                case 0 | 1 | 2 | 3 | 4:
                    written.insert(table, new)
                case 5 | 6 | 7:
                    written.update(table, old, (old[0], *new[1:]))
                case 8:
                    written.update(table, old, new)
                case 9 | 10:
                    written.delete(table, old)
                case _:
                    self._something_else(written)
                    written.insert(table, new)

    def _something_else(self, written: TransactionWriter) -> None:
        match self._chance.randrange(3):
            case 0:
                written.sequence("GEN", 7)
            case 1:
                written.ddl("CREATE TABLE T (ID INTEGER)")
            case _:
                written.flush()  # a second block

    def _row(self, name: str, written: TransactionWriter) -> tuple[Value, ...]:
        chance = self._chance
        if name == "SECRET":
            return (chance.randrange(9),)
        if name == "LOG":
            return chance.randrange(90_000), self._text("Ω")
        if name == "STOCK":
            return (
                chance.choice((1, -(2**31), chance.randrange(1000))),
                self._text('Ünïcode 𝄞 \x00\x1f"\\'),
                self._text("ÄÖ")[:6] if chance.random() < 0.8 else None,
                chance.choice((None, 0, -1, 2**62)),
                chance.choice((None, True, False)),
                chance.choice((None, 52_000_000_000_000, -1, 2**55)),
                chance.choice((None, b"", b"\x00\xff")),
            )
        photo = None
        if chance.random() < 0.05:
            photo = written.blob(b"a photo")
        return (
            chance.choice((1, -(2**63), 2**63 - 1, chance.randrange(1000))),
            self._text('Ünïcode 𝄞 \x00\x1f"\\'),
            self._text("ÄÖ")[:6] if chance.random() < 0.8 else None,
            chance.choice((None, 0, -1, 2**62)),
            chance.choice((None, 0.1, -1e300, 1e-7, 3.0)),
            chance.choice((None, True, False)),
            chance.choice((None, 52_000_000_000_000, -1)),
            chance.choice((None, b"", b"\x00\xff")),
            photo,
        )

    def _text(self, odd: str) -> str:
        times = self._chance.choice((0, 1, 1, 2, 2, 200))
        return self._chance.choice(("plain text ", odd, "x")) * times


OPTIONS = {
    "schemas": "",
    "bare": "key.converter.schemas.enable: false\nvalue.converter.schemas.enable: false\n",
    "few": "tombstones.on.delete: false\nskipped.operations: d\nextended.headers.enabled: false\n",
    "no updates": "skipped.operations: u\n",
    "no creates": "skipped.operations: c,u\n",
    "metadata": "provide.transaction.metadata: true\n",
    "reshaped": "transforms: u\ntransforms.u.type: io.debezium.transforms.ExtractNewRecordState\n",
    "precise": "decimal.handling.mode: string\nmessage.key.columns: .*LOG:AT\n",
}


@pytest.mark.parametrize("options", OPTIONS)
def test_run_gives_the_messages_of_single_sends_byte_by_byte(tmp_path: Path, options: str) -> None:
    scene = Scene(tmp_path, OPTIONS[options])
    work = _Work(options)
    scene.write([work.fill] * 400)
    expected, producer = _Producer(), _Producer()
    ordinary = _facts(scene.one_by_one(expected))
    expected.answer()
    counted = scene.counted
    scene.start()
    sends = scene.in_runs(producer)
    producer.answer()
    assert producer.taken == expected.taken
    assert _facts(sends) == ordinary
    assert scene.counted == counted
    assert all(send.delivered for send in sends)
    small = sum(isinstance(send, SmallSend) for send in sends)
    assert small == 0 if options in ("metadata", "reshaped") else 100 < small < 400


@pytest.mark.parametrize("start", [0, 1])
def test_damaged_bytes_are_never_read_as_something_else(scene: Scene, start: int) -> None:
    def fill(written: TransactionWriter) -> None:
        table = written.table("GOODS", TABLES["GOODS"])
        row = (1, "a", "b", 1, 0.5, True, 1, b"r", None)
        written.insert(table, row)
        written.update(table, row, (1, None, *row[2:]))
        written.delete(table, row)

    scene.write([fill, fill])
    place = scene.places[1]
    content = scene.path.read_bytes()
    reader = TransactionSplitter("UTF8")
    sound = reader.changes(content, place.offset, place)
    assert sound is not None
    assert [change.decoded(content) for change in sound] == _changes(content, place)
    chance = random.Random(start)
    for at in range(place.offset + start, place.offset + place.seal_end, 2):
        damaged = bytearray(content)
        damaged[at] ^= 1 << chance.randrange(8)
        assert reader.changes(bytes(damaged), place.offset, place) is None
    for end in range(place.offset, place.offset + place.seal_end, 5):
        assert reader.changes(content[:end], place.offset, place) is None
    others = (
        place._replace(uuid=scene.places[0].uuid),
        place._replace(stamp=place.stamp._replace(transaction=1)),
        place._replace(stamp=place.stamp._replace(event_count=2)),
        place._replace(seal_end=place.seal_end - 1),
        place._replace(stamp=place.stamp._replace(journal_length=place.seal_end + 64)),
    )
    for other in others:
        assert reader.changes(content, place.offset, other) is None
    assert reader.changes(content, scene.places[0].offset, place) is None


def _changes(content: bytes, place: Place) -> list[Any]:
    own = content[place.offset : place.offset + place.seal_end]
    with JournalReader("it", "UTF8", own, place=place) as opened:
        return list(opened.changes())


def test_damaged_transaction_in_a_run_is_set_aside_alone(scene: Scene) -> None:
    scene.write([insert(number) for number in range(1, 21)])
    damaged = scene.places[9]
    content = bytearray(scene.path.read_bytes())
    content[damaged.offset + 200] ^= 1
    scene.path.write_bytes(content)
    producer = _Producer()
    sends = scene.in_runs(producer)
    producer.answer()
    assert [type(send) for send in sends[:11]] == [SmallSend] * 9 + [JournalSend, SmallSend]
    assert len(producer.taken) == 19 and scene.counted == ({("LOG", "c"): 19}, 0)
    assert [s.entry for s in sends if not scene.plan.quarantine.is_whole(s.entry)] == [
        sends[9].entry
    ]
    assert sends[9].entry.uuid == damaged.uuid
    assert scene.queue.settle() == sends


def test_event_that_cannot_be_sent_is_left_out_of_a_run_alone(scene: Scene) -> None:
    def too_large(written: TransactionWriter) -> None:
        written.insert(written.table("LOG", TABLES["LOG"]), (1, "x" * 30_000))
        written.insert(written.table("LOG", TABLES["LOG"]), (2, "goes"))

    scene.write([insert(1), insert(2), too_large, insert(4)])
    producer = _Producer()
    sends = scene.in_runs(producer)
    producer.answer()
    assert [type(send) for send in sends] == [SmallSend, SmallSend, JournalSend, SmallSend]
    assert len(producer.taken) == 4
    whole = [scene.plan.quarantine.is_whole(send.entry) for send in sends]
    assert whole == [True, True, False, True]


@pytest.mark.parametrize("is_single", [False, True])
def test_newer_event_of_what_was_left_out_is_noted_in_a_run(scene: Scene, is_single: bool) -> None:
    def stock(number: int, name: str) -> Fill:
        def fill(written: TransactionWriter) -> None:
            row = (number, name, None, None, None, None, None)
            written.insert(written.table("STOCK", TABLES["STOCK"]), row)

        return fill

    def newer() -> str | None:
        return scene.plan.quarantine._drafts[scene.places[1].uuid].newer

    fills = [stock(7, "a"), stock(7, "x" * 30_000), stock(8, "a"), stock(7, "a"), stock(7, "b")]
    scene.write(fills)
    producer = _Producer()
    for _ in range(3):
        scene.one(producer)
    assert newer() is None
    sends = scene.one_by_one(producer) if is_single else scene.in_runs(producer)
    assert type(sends[-1]) is (JournalSend if is_single else SmallSend)
    assert newer() == f"event 1 of journal 4 of {DATABASE}, of the same key"


@pytest.mark.parametrize("counts_at_once", [True, False])
def test_run_that_is_acknowledged_in_part_is_sent_again_from_there(
    tmp_path: Path, counts_at_once: bool
) -> None:
    scene = Scene(tmp_path, counts_at_once=counts_at_once)
    scene.write([insert(number) for number in range(1, 11)])
    producer = _Producer()
    sends = scene.in_runs(producer)
    assert all(isinstance(send, SmallSend) for send in sends)
    assert scene.plan.unacked == scene.queue.unacked == 10
    producer.answer(3, 6)
    settled = scene.queue.settle()
    assert settled == sends[:3] and scene.queue.settle() == []
    failed = [send for send in scene.queue.sends if send.failed is not None]
    assert failed == [sends[3], sends[6]] and failed[0].failed_topic == "t"
    assert scene.plan.unacked == 0 and scene.plan.failures == 2
    scene.queue.start_over()
    assert len(scene.queue.backlog) == 7
    first, producer.taken = producer.taken, []
    again = scene.in_runs(producer)
    assert [send.entry for send in again] == [send.entry for send in sends[3:]]
    assert [message[1:] for message in producer.taken] == [message[1:] for message in first[3:]]
    producer.answer()
    assert scene.queue.settle() == again
    for send in (*settled, *again):
        send.tell()
    assert scene.counted == ({("LOG", "c"): 10}, 0)
    assert scene.queue.settled is not None and scene.queue.settled[0] == again[-1].entry
    assert scene.queue.offset.shared.reached == {scene.home: (0, 10)}


def test_answers_that_come_after_a_new_beginning_count_once(scene: Scene) -> None:
    scene.write([insert(1)])
    former, producer = _Producer(), _Producer()
    scene.in_runs(former)
    scene.queue.start_over()
    scene.in_runs(producer)
    former.answer()
    producer.answer()
    assert scene.counted == ({("LOG", "c"): 1}, 0)
    assert scene.plan.unacked == 0


def test_event_that_kafka_turns_out_to_have_counts_though_it_is_not_sent_again(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path, counts_at_once=False)
    scene.write([insert(1), insert(2)])
    producer = _Producer()
    scene.in_runs(producer)
    producer.answer()
    assert scene.counted == ({}, 0)
    scene.queue.start_over()
    known = scene.queue.take_known(scene.queue.backlog.first())
    assert known is not None and known.delivered
    assert scene.counted == ({("LOG", "c"): 1}, 0)


@pytest.mark.parametrize("room", range(6))
def test_full_queue_loses_and_repeats_nothing_of_a_run(scene: Scene, room: int) -> None:
    def two_deletes(written: TransactionWriter) -> None:
        table = written.table("GOODS", TABLES["GOODS"])
        for number in (1, 2):
            written.delete(table, (number, *[None] * 8))

    scene.write([insert(1), two_deletes, insert(3)])
    producer, expected = _Producer(room), _Producer()
    taker: Any = producer
    begun, messages = scene.small.send(scene.queue, taker, 500)
    assert (begun, messages) == (1 if room == 0 else 2 if room < 5 else 3, room)
    send = scene.queue.sends[-1]
    assert not send.read_to_end and not send.delivered
    producer.answer()
    assert not send.delivered and send.sent_to == 0
    assert not send.produce(taker, 500)  # it is still full
    producer.room = 100
    assert send.produce(taker, 500)
    sends = scene.in_runs(producer)
    producer.answer()
    counted = scene.counted
    assert all(each.delivered for each in sends) and len(sends) == 3
    scene.start()
    scene.one_by_one(expected)
    expected.answer()
    assert producer.taken == expected.taken and scene.counted == counted


def test_message_that_the_producer_refuses_ends_the_run_there(scene: Scene) -> None:
    scene.write([insert(number) for number in range(1, 6)])
    producer = _Producer(refused=b"3 is inserted")
    taker: Any = producer
    with pytest.raises(KafkaException):
        scene.small.send(scene.queue, taker, 500)
    assert len(scene.queue.sends) == 3 and len(scene.queue.backlog) == 2
    send = scene.queue.sends[-1]
    assert send.failed_topic.endswith("LOG") and not send.read_to_end
    producer.answer()
    assert not send.delivered
    assert len(scene.queue.settle()) == 2
    scene.queue.one_at_a_time = send.entry.uuid
    scene.queue.start_over()
    assert scene.small.send(scene.queue, taker, 500) == (0, 0)  # it is sent with care


def test_run_ends_where_a_number_is_missing_and_at_its_limit(scene: Scene) -> None:
    scene.write([insert(number) for number in range(1, 41)])
    scene.places = scene.places[:10] + scene.places[11:]
    scene.start()
    producer: Any = _Producer()
    assert scene.small.send(scene.queue, producer, 6) == (3, 3)
    assert scene.small.send(scene.queue, producer, 500) == (7, 7)
    assert not scene.queue.goes_on()
    assert scene.small.send(scene.queue, producer, 500) == (29, 29)


def test_runs_of_journals_whose_numbers_alternate_keep_their_order(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write([insert(number) for number in range(1, 9)])
    other = scene.directory / f"{uuid4()}.log"
    other.write_bytes(scene.path.read_bytes())
    scene.queue = DatabaseQueue(DATABASE, Queue(), 1.0, _nothing_is_missing)
    first = [place for place in scene.places if place.stamp.sequence in (1, 2, 5, 8)]
    second = [place for place in scene.places if place not in first]
    scene.queue.backlog.push_shared(scene.home, pack_places(first))
    scene.queue.backlog.push_shared(UUID(other.stem), pack_places(second))
    producer = _Producer()
    runs = []
    taker: Any = producer
    while scene.queue.backlog:
        runs.append(scene.small.send(scene.queue, taker, 500)[0])
    assert runs == [2, 2, 1, 2, 1]
    assert [send.entry.sequence for send in scene.queue.sends] == list(range(1, 9))


def test_first_transaction_of_an_epoch_is_announced_by_a_single_send(scene: Scene) -> None:
    scene.write([insert(number) for number in range(1, 6)])
    scene.places = [
        place._replace(stamp=place.stamp._replace(epoch=epoch, sequence=sequence))
        for place, (epoch, sequence) in zip(
            scene.places, ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2)), strict=True
        )
    ]
    scene.start()
    sends = scene.in_runs(_Producer())
    kinds = [JournalSend, SmallSend, SmallSend, JournalSend, SmallSend]
    assert [type(send) for send in sends] == kinds
    assert [send.opens_epoch for send in sends] == [True, False, False, True, False]


def test_run_waits_for_a_topic_as_a_single_send_does(scene: Scene) -> None:
    def unavailable(topic: str) -> None:
        raise TopicUnavailable(topic)

    scene.write([insert(1), insert(2)])
    writer = scene.plan.renderer.writer
    writer.require_topic, required = unavailable, writer.require_topic
    taker: Any = _Producer()
    assert scene.small.send(scene.queue, taker, 500) == (0, 0)
    assert len(scene.queue.backlog) == 2
    send = scene.queue.begin(scene.plan)
    with pytest.raises(TopicUnavailable):
        send.produce(taker, 500)
    writer.require_topic = required
    scene.queue.start_over()
    assert scene.small.send(scene.queue, taker, 500) == (0, 0)  # the first was begun before
    scene.one(taker)
    scene.queue.finish(scene.queue.sends[0])
    assert scene.small.send(scene.queue, taker, 500) == (1, 1)


def test_canaries_in_runs_are_seen(scene: Scene) -> None:
    def secret(written: TransactionWriter) -> None:
        written.insert(written.table("SECRET", TABLES["SECRET"]), (1,))

    class Watch:
        def __init__(self) -> None:
            self.commits: list[int] = []
            self.seen: list[tuple[str, int]] = []

        def reached(self, commit_us: int, /) -> None:
            self.commits.append(commit_us)

        def saw(self, table: str, transaction: int, /) -> None:
            self.seen.append((table, transaction))

    scene.write([insert(1), secret])
    watch = Watch()
    scene.plan.renderer.canaries = {DATABASE: watch}
    assert all(isinstance(send, SmallSend) for send in scene.in_runs(_Producer()))
    assert watch.commits == [place.stamp.commit_us for place in scene.places]
    assert watch.seen == [("LOG", 48_001), ("SECRET", 48_002)]


def test_journal_that_is_gone_ends_the_run(scene: Scene) -> None:
    scene.write([insert(1)])
    scene.path.unlink()
    taker: Any = _Producer()
    assert scene.small.send(scene.queue, taker, 500) == (0, 0)
    with pytest.raises(FileNotFoundError):
        scene.queue.begin(scene.plan).produce(taker, 500)


def test_transaction_of_a_run_with_undecoded_text_is_counted(scene: Scene) -> None:
    def fill(written: TransactionWriter) -> None:
        for name, charset in (("STOCK", 4), ("LOG", 0)):
            bad = Undecodable(b"\xff", charset)
            row = (1, bad, *[None] * (len(TABLES[name]) - 2))
            written.insert(written.table(name, TABLES[name]), row)

    scene.write([insert(1), fill, insert(2)])
    counter: Any = _Counter()
    scene.plan.unsent = counter
    sends = scene.in_runs(_Producer())
    assert [type(send) for send in sends] == [SmallSend, JournalSend, SmallSend]
    assert counter.found == [(1, "after.NAME of table STOCK"), (2, "after.TEXT of table LOG")]


class _Counter:
    """Counter of what has placeholders."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []

    def count_unsent(self, *heard: Any) -> None:
        """Keep what was found."""
        self.found += heard[-1]
