"""History that Kafka has lost: published again once, and never behind newer events."""

from __future__ import annotations

import json
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from columns import column
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from shipping import (
    DATABASE,
    ITEM,
    Event,
    Folder,
    Ship,
    Shipper,
    each_way,
    either_way,
    read_topics,
)

from firebird_cdc.cli import main
from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.journal.format import JournalWriter, Storage

pytestmark = pytest.mark.kafka

HEADER = "__firebird_cdc.repair"
PROGRAM = Path(__file__).with_name("retry_program.py")
NOTE = (column("TEXT", Storage.TEXT),)


class Scene:
    """A shipped history with an archive, and a topic from which events can be taken."""

    def __init__(
        self, ship: Ship, folder: Folder, tmp_path: Path, broker: str, prefix: str, is_tx: bool
    ) -> None:
        self.ship = ship
        self.folder = folder
        self.archive = tmp_path / "archive"
        self.audit = tmp_path / "audit"
        self.uuids: dict[int, str] = {}
        self._broker = broker
        self._prefix = prefix
        ship.options["connector.journal.archive.directory"] = str(self.archive)
        if is_tx:
            ship.options["kafka.producer.transactional.id"] = f"{prefix}-id"

    def topic(self, table: str = "ITEM") -> str:
        return f"{self._prefix}._srv_fb_warehouse.fdb.{table}"

    def write(self, sequence: int, *changes: tuple[Any, ...], table: str = "ITEM") -> None:
        """Commit a transaction: (op, row) or, for an update, (op, before, after)."""

        def fill(writer: JournalWriter) -> None:
            made = writer.table(table, NOTE if table == "NOTE" else ITEM, int(table != "NOTE"))
            for op, *rows in changes:
                {"c": writer.insert, "u": writer.update, "d": writer.delete}[op](made, *rows)

        self.uuids[sequence] = self.folder.write_changes(sequence, fill).stem

    def ship_all(self) -> None:
        assert self.ship.once().process.returncode == 0

    def events(self, table: str = "ITEM") -> list[Event]:
        return read_topics(self._broker, self.topic(table))[self.topic(table)]

    def drop(self, *places: tuple[int, int], table: str = "ITEM") -> None:
        """Take events, and the tombstones behind them, out of the topic."""
        topic = self.topic(table)
        kept, last = [], None
        for event in read_topics(self._broker, topic, decode=lambda content, *_: content)[topic]:
            if event.value is not None:
                source = json.loads(event.value)["payload"]["source"]
                last = source["commitSeq"], source["pos"]
            if last not in places:
                kept.append(event)
        all_of_it = TopicPartition(topic, 0, OFFSET_END)
        admin = AdminClient({"bootstrap.servers": self._broker})
        admin.delete_records([all_of_it])[all_of_it].result(30)
        producer = Producer({"bootstrap.servers": self._broker})
        for event in kept:
            producer.produce(topic, event.value, event.key, headers=list(event.headers.items()))
        assert producer.flush(30) == 0

    def find_missing(self, *places: tuple[int, int], **named: Any) -> None:
        """Write down what an audit would have found."""
        shutil.rmtree(self.audit, ignore_errors=True)
        (self.audit / "findings").mkdir(parents=True)
        with (self.audit / "findings" / "part-0.json").open("w") as file:
            print(json.dumps({"kind": "chain", "what": "of no interest"}), file=file)
            for sequence, pos in places:
                finding = {
                    "kind": "missing event",
                    "database": DATABASE,
                    "epoch": 0,
                    "sequence": sequence,
                    "position": pos,
                    "file": str(self.archive / f"{self.uuids[sequence]}.log"),
                }
                print(json.dumps(finding | named), file=file)

    def repair(self, *arguments: str) -> int:
        config = self.ship.write_config()
        command = ["replay", "repair", "--audit", str(self.audit), "--config", str(config)]
        return main([*command, *arguments])


@pytest.fixture
def make_scene(
    ship: Ship, folder: Folder, tmp_path: Path, broker: KafkaBroker, topic_prefix: str
) -> Callable[[bool], Scene]:
    return lambda is_tx: Scene(ship, folder, tmp_path, broker.bootstrap, topic_prefix, is_tx)


def await_quiet(shipper: Shipper, folder: Folder) -> None:
    shipper.await_that(lambda: not folder.waiting, "all journals shipped")


def table_of(events: list[Event]) -> dict[int, str]:
    """Return the rows of a consumer that keeps the last event of each key."""
    rows = {}
    for event in events:
        row = None if event.value is None else event.payload["after"]
        if row is None:
            rows.pop(event.key["payload"]["ID"], None)
        else:
            rows[event.key["payload"]["ID"]] = row["NAME"]
    return rows


def repaired(events: list[Event]) -> list[tuple[str, str, int, list[list[int]]]]:
    """Kind, operation, key, and what it stands for, of the messages of repairs."""
    found = []
    for event in events:
        if HEADER in event.headers:
            header = json.loads(event.headers[HEADER])
            assert header["database"] == DATABASE
            op = "tombstone" if event.value is None else event.payload["op"]
            places = json.loads(header["events"])  # as all values, a text: so Connect can read it
            found.append((header["kind"], op, event.key["payload"]["ID"], places))
    return found


@either_way
def test_missing_events_are_repaired_once_and_never_behind_newer_ones(
    make_scene: Callable[[bool], Scene], capsys: pytest.CaptureFixture[str], transactional: bool
) -> None:
    scene = make_scene(transactional)
    ship, folder = scene.ship, scene.folder
    scene.write(1, ("c", (1, "a")), ("c", (2, "a")), ("c", (3, "a")), ("c", (6, "a")))
    scene.write(2, ("c", (4, "a")), ("u", (1, "a"), (1, "b")), ("c", (8, "a")))
    scene.write(3, ("u", (4, "a"), (4, "b")), ("d", (3, "a")), ("u", (6, "a"), (7, "b")))
    scene.write(4, ("u", (8, "a"), (9, "b")))
    scene.write(5, ("u", (9, "b"), (9, "c")))
    lost = [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (3, 3), (4, 1)]
    shipper = ship.start()
    await_quiet(shipper, folder)
    scene.drop(*lost)
    scene.find_missing(*lost, *lost[:1])
    before = scene.events()
    stop = threading.Event()

    def load() -> None:
        """Change other rows, and one whose event is missing, as fast as they are shipped."""
        sequence = 6
        while not stop.is_set() or sequence < 12:
            last = "b" if sequence == 6 else str(sequence - 1)
            scene.write(
                sequence, ("c", (sequence * 100, "x")), ("u", (1, last), (1, str(sequence)))
            )
            await_quiet(shipper, folder)
            sequence += 1

    worker = threading.Thread(target=load)
    worker.start()
    try:
        assert scene.repair() == 0
    finally:
        stop.set()
        worker.join()
    said = capsys.readouterr().out
    assert f"{DATABASE} journal 1: 1 event sent again" in said
    assert f"{DATABASE} journal 1: 2 events not sent again, as newer events of their keys" in said
    assert "7 missing events: 4 original, 3 state" in said
    events = scene.events()
    assert events[: len(before)] == before
    found = repaired(events)
    assert found[:6] == [
        ("original event", "c", 2, [[0, 1, 2]]),
        ("original event", "c", 4, [[0, 2, 1]]),
        ("original event", "u", 4, [[0, 3, 1]]),
        ("original event", "d", 6, [[0, 3, 3]]),
        ("original event", "tombstone", 6, [[0, 3, 3]]),
        ("original event", "c", 7, [[0, 3, 3]]),
    ]
    assert sorted(found[6:], key=lambda each: each[2]) == [
        ("current state", "r", 1, [[0, 1, 1]]),
        ("current state", "d", 3, [[0, 1, 3]]),
        ("current state", "tombstone", 3, [[0, 1, 3]]),
        ("current state", "d", 8, [[0, 4, 1]]),
        ("current state", "tombstone", 8, [[0, 4, 1]]),
        ("current state", "r", 9, [[0, 4, 1]]),
    ]
    original = next(event for event in events if HEADER in event.headers)
    source = original.payload["source"]
    assert (source["journal"], source["commitSeq"], source["pos"]) == (scene.uuids[1], 1, 2)
    assert (source["txId"], source["ts_ms"]) == (48213, 1_772_442_848_250)
    # Among the updates of the hot row its state comes where it is true.
    hot = [event.payload for event in events if event.key["payload"]["ID"] == 1]
    at = next(index for index, each in enumerate(hot) if each["op"] == "r")
    assert hot[at]["after"] == hot[at - 1]["after"]
    assert hot[at]["before"] is None
    assert hot[at]["source"]["commitSeq"] == hot[at - 1]["source"]["commitSeq"]
    assert [each["op"] for each in hot].count("r") == 1
    rows = table_of(events)
    assert {key: rows[key] for key in (2, 4, 7, 9)} == {2: "a", 4: "b", 7: "b", 9: "c"}
    assert not {3, 6, 8} & rows.keys()
    assert rows[1] == str(max(scene.uuids))

    assert scene.repair() == 0
    assert "7 missing events: 7 earlier" in capsys.readouterr().out
    scene.find_missing((1, 2), (1, 4))  # another audit; the second one is in Kafka all the time
    scene.drop((1, 4))
    before = scene.events()
    assert scene.repair() == 0
    assert "2 missing events: 1 state, 1 earlier" in capsys.readouterr().out
    assert repaired(scene.events()[len(before) :]) == [
        ("current state", "d", 6, [[0, 1, 4]]),
        ("current state", "tombstone", 6, [[0, 1, 4]]),
    ]
    assert shipper.terminate() == 0


@each_way
def test_repair_is_sent_once_despite_a_shipper_crash_at_any_point(
    make_scene: Callable[[bool], Scene], capsys: pytest.CaptureFixture[str], transactional: bool
) -> None:
    scene = make_scene(transactional)
    scene.write(1, ("c", (1, "a")), ("c", (2, "a")))
    scene.write(2, ("u", (1, "a"), (1, "b")))
    scene.ship_all()
    scene.drop((1, 1), (1, 2))
    scene.find_missing((1, 1), (1, 2))
    assert scene.repair("--dry-run") == 0
    would = capsys.readouterr().out
    assert "1 event would be sent again" in would
    assert "1 event would not be sent again" in would
    assert scene.repair() == 0
    assert "the next one that starts carries out the request" in capsys.readouterr().out
    assert scene.repair() == 0  # nobody has sent it yet: it is not made twice
    assert "2 missing events: 2 waiting" in capsys.readouterr().out
    assert scene.ship.journal("quarantine") == 0
    assert capsys.readouterr().out.count(f" of {DATABASE}: 1 event waits") == 2
    main(["status", "--config", str(scene.ship.write_config())])
    assert "repairs that wait (2)" in capsys.readouterr().out
    scene.write(3, ("u", (2, "a"), (2, "b")))  # must not come first
    points = ["record.before", "record.after"] if transactional else []
    points += ["repaired.before", "remember.before", "forget.before"]
    for point in points:
        shipper = scene.ship.start("--once", program=[str(PROGRAM), point])
        assert shipper.wait() == -signal.SIGKILL, f"{point} was not met"
    scene.ship_all()
    events = scene.events()
    found = repaired(events)
    once = [("original event", "c", 2, [[0, 1, 2]]), ("current state", "r", 1, [[0, 1, 1]])]
    # Without transactions what was sent before a crash comes again.
    assert (
        found == once
        if transactional
        else list(dict.fromkeys(map(str, found))) == [str(each) for each in once]
    )
    assert table_of(events) == {1: "b", 2: "b"}
    assert [event.position for event in events if event.key["payload"]["ID"] == 2][-1] == (3, 1)
    assert scene.repair() == 0
    assert "2 missing events: 2 earlier" in capsys.readouterr().out


def test_unrepairable_events_are_reported_and_not_partly_repaired(
    make_scene: Callable[[bool], Scene], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scene = make_scene(True)
    scene.write(1, ("c", (1, "a")), ("c", (2, "a")))
    scene.write(2, ("c", (3, "a")))
    scene.write(3, ("c", ("one",)), ("c", ("two",)), table="NOTE")
    scene.write(4, ("d", ("two",)), table="NOTE")
    scene.write(5, ("u", (2, "a"), (2, "b")))
    scene.write(6, ("c", (5, "a")), ("u", (3, "a"), (3, "b")))
    scene.ship_all()
    scene.write(7, ("c", (7, "a")))
    scene.drop((1, 1), (1, 2), (2, 1), (6, 1))
    scene.drop((3, 1), table="NOTE")
    # The archive loses two journals, so only Kafka can tell what they had.
    moved = scene.archive / f"{scene.uuids[4]}.log"
    moved.rename(tmp_path / moved.name)
    path = scene.archive / f"{scene.uuids[6]}.log"
    sound = path.read_bytes()
    path.write_bytes(sound[:1600] + b"\xff" + sound[1601:])
    scene.find_missing((1, 1), (1, 2), (2, 1), (3, 1), (6, 1), (7, 1))
    assert scene.repair() == 1
    said = capsys.readouterr().out
    assert "journal 2: 1 event NOT repaired: Kafka has a newer event of its key that is" in said
    assert "journal 7: 1 event not sent: the shipper has not sent it yet, and will" in said
    assert f"journal 6: 1 event NOT repaired: {path}" in said
    assert "6 missing events: 3 waiting, 1 unshipped, 2 failed" in said
    scene.ship_all()
    path.write_bytes(sound)
    assert scene.repair() == 0
    assert "6 missing events: 3 earlier, 1 present, 2 waiting" in capsys.readouterr().out
    scene.ship_all()
    assert [each[:3] for each in repaired(scene.events())] == [
        ("original event", "c", 1),
        ("current state", "r", 2),
        ("original event", "c", 5),
        ("current state", "r", 3),
    ]
    assert table_of(scene.events()) == {1: "a", 2: "b", 3: "b", 5: "a", 7: "a"}
    notes = [event for event in scene.events("NOTE") if HEADER in event.headers]
    assert [event.payload["after"]["TEXT"] for event in notes] == ["one"]


def test_folder_that_no_audit_has_written_is_refused(
    make_scene: Callable[[bool], Scene], capsys: pytest.CaptureFixture[str]
) -> None:
    scene = make_scene(False)
    assert scene.repair() == 1
    assert "is not what replay audit --output has written" in capsys.readouterr().err
    scene.find_missing()
    assert scene.repair() == 0
    assert "the audit found nothing missing in Kafka" in capsys.readouterr().out
    (scene.audit / "report.json").write_text('{"facts": {}}', encoding="utf-8")
    assert scene.repair() == 1
    assert "did not look into Kafka: repeat it with --against-kafka" in capsys.readouterr().err


@pytest.fixture(autouse=True)
def quiet(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Nothing of the commands' output is lost in that of the tests."""
    yield
    capsys.readouterr()
