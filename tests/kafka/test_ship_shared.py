"""Shared journals on their way to Kafka: each transaction by itself, the file with its last one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from shipping import (
    ITEM,
    Folder,
    ItemTopic,
    SharedFile,
    Ship,
    damage,
    either_way,
    last_occurrences,
)

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.journal.format import SharedJournal, alone, open_any
from firebird_cdc.journal.format.records import RecordWriter

pytestmark = pytest.mark.kafka

FAILURE_MODE = "event.processing.failure.handling.mode"
REDELIVERED = "__firebird_cdc.late"
GIANT = 32_000


class Scene:
    """A shipper of one table, whose topic takes messages up to 30,000 bytes."""

    def __init__(
        self, ship: Ship, folder: Folder, bootstrap: str, prefix: str, transactional: bool
    ) -> None:
        self.ship, self.folder = ship, folder
        if transactional:
            ship.options["kafka.producer.transactional.id"] = f"{prefix}-id"
        ship.options |= {
            "kafka.producer.compression.type": "none",  # or nothing is too large
            "kafka.producer.batch.num.messages": "4",  # or everything is, together
            "connector.journal.check.interval.ms": "200",
        }
        self.topic = ItemTopic(bootstrap, prefix)
        self.topic.limit()

    @property
    def quarantine(self) -> Path:
        """The folder of what could not be sent."""
        return self.folder.directory / ".firebird-cdc" / "quarantine"


@pytest.fixture
def make_scene(
    ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str
) -> Callable[[bool], Scene]:
    return lambda transactional: Scene(ship, folder, broker.bootstrap, topic_prefix, transactional)


def _middle_is_giant(writer: RecordWriter) -> None:
    table = writer.table("ITEM", ITEM)
    for number, text in enumerate(("a", "b" * GIANT, "c")):
        writer.insert(table, (2_000_000 + number, text))


@either_way
def test_transactions_of_shared_and_single_journals_are_sent_in_the_order_of_their_numbers(
    make_scene: Callable[[bool], Scene], tmp_path: Path, transactional: bool
) -> None:
    scene = make_scene(transactional)
    archive = tmp_path / "archive"
    scene.ship.options["connector.journal.archive.directory"] = str(archive)
    files = [SharedFile(scene.folder), SharedFile(scene.folder)]
    names = {}
    for sequence in range(1, 601):
        if sequence % 50 == 7:
            names[sequence] = scene.folder.write(sequence, 2).stem
            continue
        file = files[sequence % 7 % 2]
        if sequence % 5 == 0:
            file.add_undone()
        names[sequence] = file.add(sequence, 2)
    arrived = [file.arrive() for file in files]
    shipper = scene.ship.once()
    assert shipper.process.returncode == 0, shipper.log
    events = scene.topic.events()
    assert [event.position for event in events] == [
        (sequence, pos) for sequence in range(1, 601) for pos in (1, 2)
    ]
    assert {e.payload["source"]["journal"] for e in events} == set(names.values())
    assert all(event.payload["source"]["journal"] == names[event.position[0]] for event in events)
    assert scene.folder.waiting == []
    for path in arrived:
        with SharedJournal(archive / path.name) as kept:
            assert len(kept.places) > 100


@either_way
def test_shipper_goes_on_inside_a_shared_journal_where_the_last_one_stopped(
    make_scene: Callable[[bool], Scene], transactional: bool
) -> None:
    scene = make_scene(transactional)
    scene.ship.options[FAILURE_MODE] = "fail"
    first, second = SharedFile(scene.folder), SharedFile(scene.folder)
    for sequence in range(1, 41):
        (first if sequence % 3 else second).add(sequence)
    first.add(41, fill=_middle_is_giant)
    second.add(42)
    for file in (first, second):
        file.arrive()
    for _ in range(2):
        shipper = scene.ship.start()
        shipper.await_log("shipping paused")
        assert "do not move it away" in shipper.log
        assert shipper.terminate() == 0
        assert len(scene.folder.waiting) == 2
    scene.ship.options[FAILURE_MODE] = "skip"
    shipper = scene.ship.once()
    assert shipper.process.returncode == 0
    assert scene.folder.waiting == []
    places = scene.topic.places()
    expected = [*((sequence, 1) for sequence in range(1, 41)), (41, 1), (41, 3), (42, 1)]
    assert last_occurrences(places) == expected  # 42 may come before what is refused, and again
    again = Counter(places) - Counter(expected)
    # Each shipper may have had what follows 40 under way when one of it was refused.
    beyond = set() if transactional else set(expected[40:])
    assert set(again) <= beyond, sorted(again.elements())


@either_way
def test_left_out_event_of_a_shared_journal_waits_alone_and_is_sent_by_a_retry(
    make_scene: Callable[[bool], Scene],
    capsys: pytest.CaptureFixture[str],
    transactional: bool,
) -> None:
    scene = make_scene(transactional)
    scene.ship.options[FAILURE_MODE] = "warn"
    file = SharedFile(scene.folder)
    file.add(1, 2)
    file.add_undone()
    giant = file.add(2, fill=_middle_is_giant)
    file.add(3, 2)
    path = file.arrive()
    assert scene.ship.once().process.returncode == 0
    assert not path.exists()
    with alone(open_any(scene.quarantine / f"{giant}.log")) as kept:
        assert kept.header.uuid.hex == giant.replace("-", "")
        assert [change.pos for change in kept.changes()] == [1, 2, 3]
    assert b"was rolled back" not in (scene.quarantine / f"{giant}.log").read_bytes()
    assert scene.ship.journal("quarantine") == 0
    assert f"{giant}  journal 2 of /srv/fb/warehouse.fdb" in capsys.readouterr().out
    assert scene.ship.journal("show", str(scene.quarantine / f"{giant}.log")) == 0
    assert f"journal   {giant}, transaction 48002" in capsys.readouterr().out
    scene.topic.widen()
    assert scene.ship.journal("retry", giant) == 0
    assert scene.ship.once().process.returncode == 0
    assert not list(scene.quarantine.glob("*"))
    events = scene.topic.events()
    order = last_occurrences([event.position for event in events])
    assert order == [(1, 1), (1, 2), (2, 1), (2, 3), (3, 1), (3, 2), (2, 2)]
    redelivered = [event for event in events if REDELIVERED in event.headers]
    assert [event.payload["source"]["journal"] for event in redelivered] == [giant]


def test_retry_goes_on_with_the_transaction_at_which_its_database_stands_still(
    make_scene: Callable[[bool], Scene], capsys: pytest.CaptureFixture[str]
) -> None:
    scene = make_scene(True)
    scene.ship.options[FAILURE_MODE] = "fail"
    file = SharedFile(scene.folder)
    file.add(1)
    giant = file.add(2, fill=_middle_is_giant)
    file.add(3)
    file.arrive()
    shipper = scene.ship.start()
    shipper.await_log("shipping paused")
    assert shipper.terminate() == 0
    assert scene.ship.journal("retry", giant) == 0
    assert "the next one that starts carries out the request" in capsys.readouterr().out
    shipper = scene.ship.start()
    shipper.await_log("shipping paused")
    scene.topic.widen()
    assert scene.ship.journal("retry", giant) == 0
    shipper.await_that(lambda: not scene.folder.waiting, "the journal is shipped")
    assert shipper.terminate() == 0
    assert scene.topic.places() == [(1, 1), (2, 1), (2, 2), (2, 3), (3, 1)]


@either_way
def test_damage_in_a_shared_journal_costs_its_transaction_alone(
    make_scene: Callable[[bool], Scene], transactional: bool
) -> None:
    scene = make_scene(transactional)
    scene.ship.options[FAILURE_MODE] = "warn"
    file = SharedFile(scene.folder)
    uuids = [file.add(sequence, 3) for sequence in range(1, 8)]
    path = file.arrive()
    damage(path, uuids[3])
    shipper = scene.ship.once()
    assert shipper.process.returncode == 0
    assert {sequence for sequence, _ in scene.topic.places()} - {4} == {1, 2, 3, 5, 6, 7}
    assert [each.name for each in scene.quarantine.glob("*.log")] == [f"{uuids[3]}.log"]
    assert scene.folder.waiting == []
    assert uuids[3] in shipper.log


def test_damaged_transaction_halts_its_database_until_it_is_mended_in_place(
    make_scene: Callable[[bool], Scene],
) -> None:
    scene = make_scene(True)
    scene.ship.options[FAILURE_MODE] = "fail"
    file = SharedFile(scene.folder)
    uuids = [file.add(sequence, 3) for sequence in range(1, 8)]
    path = file.arrive()
    sound = damage(path, uuids[3])
    shipper = scene.ship.start()
    shipper.await_log("shipping paused")
    assert f"{path}/{uuids[3]}.log" in shipper.log
    # It may be told before Kafka has all that comes before it.
    shipper.await_that(
        lambda: [each for each, _ in scene.topic.places()] == [1, 1, 1, 2, 2, 2, 3, 3, 3],
        "what comes before it shipped",
    )
    path.write_bytes(sound)
    shipper.await_that(lambda: not scene.folder.waiting, "the journal is shipped")
    assert shipper.terminate() == 0
    assert scene.topic.places() == [
        (sequence, pos) for sequence in range(1, 8) for pos in (1, 2, 3)
    ]


@either_way
def test_journal_in_which_nothing_was_committed_goes_unsent(
    make_scene: Callable[[bool], Scene], tmp_path: Path, transactional: bool
) -> None:
    scene = make_scene(transactional)
    archive = tmp_path / "archive"
    scene.ship.options["connector.journal.archive.directory"] = str(archive)
    empty, file = SharedFile(scene.folder), SharedFile(scene.folder)
    empty.add_undone()
    file.add(1)
    empty.arrive()
    path = file.arrive()
    assert scene.ship.once().process.returncode == 0
    assert scene.folder.waiting == []
    assert [each.name for each in archive.glob("*.log")] == [path.name]
    assert scene.topic.places() == [(1, 1)]


def test_shared_journal_that_is_taken_away_is_missing_by_its_numbers(
    make_scene: Callable[[bool], Scene], tmp_path: Path
) -> None:
    scene = make_scene(True)
    scene.ship.options[FAILURE_MODE] = "fail"
    first, second = SharedFile(scene.folder), SharedFile(scene.folder)
    first.add(1, fill=_middle_is_giant)
    for sequence in range(2, 8):
        (first if sequence % 2 else second).add(sequence)
    paths = [file.arrive() for file in (first, second)]
    shipper = scene.ship.start()
    shipper.await_log("shipping paused")
    paths[0].rename(tmp_path / "away.log")
    shipper.await_that(lambda: not scene.folder.waiting, "the other one is shipped")

    def missing() -> list[str]:
        return shipper.log_lines("consumers lack these events")

    # What was read before may be sent; what comes last has its turn when the other file is gone.
    shipper.await_that(
        lambda: len(scene.topic.places()) + len(missing()) >= 7, "the last one missed, or shipped"
    )
    assert shipper.terminate() == 0
    sent = [sequence for sequence, _ in scene.topic.places()]
    assert sent == sorted({*sent} | {2, 4, 6} - {1})
    assert 1 not in sent
    assert len(missing()) == 7 - len(sent)


def test_shared_journal_that_was_put_back_is_not_sent_again(
    make_scene: Callable[[bool], Scene], tmp_path: Path
) -> None:
    scene = make_scene(True)
    scene.ship.options["connector.journal.archive.directory"] = str(tmp_path / "archive")
    file = SharedFile(scene.folder)
    for sequence in range(1, 4):
        file.add(sequence)
    path = file.arrive()
    content = path.read_bytes()
    scene.folder.write(4)
    assert scene.ship.once().process.returncode == 0
    path.write_bytes(content)
    assert scene.ship.once().process.returncode == 0
    assert scene.folder.waiting == []
    assert scene.topic.places() == [(1, 1), (2, 1), (3, 1), (4, 1)]
