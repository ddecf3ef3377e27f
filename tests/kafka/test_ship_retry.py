"""Events and journals that are set aside, and sent again when somebody asks for it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from shipping import (
    ITEM,
    Folder,
    ItemTopic,
    Ship,
    Shipper,
    each_way,
    either_way,
    last_occurrences,
)

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.journal.format import JournalWriter

pytestmark = pytest.mark.kafka

FAILURE_MODE = "event.processing.failure.handling.mode"
REDELIVERED = "__firebird_cdc.late"
GIANT = 32_000
PROGRAM = Path(__file__).with_name("retry_program.py")


class Scene:
    """A topic that takes no large messages until it is widened, and a shipper."""

    def __init__(
        self, ship: Ship, folder: Folder, bootstrap: str, prefix: str, transactional: bool
    ) -> None:
        self.ship = ship
        self.folder = folder
        self.topic = ItemTopic(bootstrap, prefix)
        if transactional:
            ship.options["kafka.producer.transactional.id"] = f"{prefix}-id"
        ship.options[FAILURE_MODE] = "warn"
        ship.options["kafka.producer.compression.type"] = "none"  # or nothing is too large
        self.topic.limit()

    def giant(self, sequence: int, first_id: int | None = None) -> Path:
        """A journal of three inserts, the second one too large."""
        first = sequence * 1_000_000 if first_id is None else first_id

        def fill(writer: JournalWriter) -> None:
            table = writer.table("ITEM", ITEM)
            for number, text in enumerate(("a", "b" * GIANT, "c")):
                writer.insert(table, (first + number, text))

        return self.folder.write_changes(sequence, fill)

    def aside(self) -> list[str]:
        """The names in the quarantine."""
        return [path.name for path in self.folder.quarantined()]


@pytest.fixture
def make_scene(
    ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str
) -> Callable[[bool], Scene]:
    return lambda transactional: Scene(ship, folder, broker.bootstrap, topic_prefix, transactional)


def await_quiet(shipper: Shipper, folder: Folder) -> None:
    shipper.await_that(lambda: not folder.waiting, "all journals shipped")


@either_way
def test_left_out_event_is_kept_and_refused_behind_a_newer_one_of_its_key(
    make_scene: Callable[[bool], Scene], capsys: pytest.CaptureFixture[str], transactional: bool
) -> None:
    scene = make_scene(transactional)
    ship, folder = scene.ship, scene.folder
    uuid = scene.giant(1).stem
    shipper = ship.start()
    folder.write(2, 2)
    await_quiet(shipper, folder)
    assert scene.aside() == [f"{uuid}.json", f"{uuid}.log", f"{uuid}.reason"]
    assert ship.journal("quarantine") == 0
    listed = capsys.readouterr().out
    assert f"{uuid}  journal 1 of /srv/fb/warehouse.fdb" in listed
    assert "event 2 was left out: Kafka refuses it" in listed
    assert "retry: possible" in listed  # other keys don't count
    assert ship.journal("retry", uuid) == 1  # nothing has changed
    refused = capsys.readouterr().out
    assert "0 events redelivered, the rest stays: event 2" in refused
    whose = '    event 2: table ITEM, key {"ID":1000001}\n'
    assert whose in refused
    assert ship.journal("retry") == 0
    assert whose in capsys.readouterr().out

    scene.topic.widen()
    folder.write(3, 2, first_id=1_000_000)
    await_quiet(shipper, folder)
    assert ship.journal("retry", "--all") == 1
    refused = capsys.readouterr().out
    assert "event 2 of journal 3 of /srv/fb/warehouse.fdb, of the same key" in refused
    assert "--force" in refused
    assert len(scene.aside()) == 3
    assert ship.journal("retry", "--all", "--force") == 0
    sent = capsys.readouterr().out
    assert f"{uuid}: 1 event redelivered" in sent
    assert whose in sent
    assert scene.aside() == []
    assert shipper.terminate() == 0
    events = scene.topic.events()
    order = last_occurrences([event.position for event in events])
    assert order == [(1, 1), (1, 3), (2, 1), (2, 2), (3, 1), (3, 2), (1, 2)]
    redelivered = [event for event in events if REDELIVERED in event.headers]
    assert [event.position for event in redelivered] == [(1, 2)]
    header = json.loads(redelivered[0].headers[REDELIVERED])
    assert header["reason"].startswith("Kafka refuses it")
    assert header["set_aside_at"].endswith("Z")
    assert redelivered[0].payload["after"]["NAME"] == "b" * GIANT


def test_retry_resumes_a_halted_database_in_order(
    make_scene: Callable[[bool], Scene], capsys: pytest.CaptureFixture[str]
) -> None:
    scene = make_scene(False)
    ship = scene.ship
    ship.options[FAILURE_MODE] = "fail"
    scene.folder.write(1, 2)
    journal = scene.giant(2)
    scene.folder.write(3, 2)
    shipper = ship.start()
    shipper.await_log("shipping paused")
    assert ship.journal("retry") == 1
    assert "paused again" in capsys.readouterr().out
    scene.topic.widen()
    assert ship.journal("retry", journal.stem) == 0
    assert "/srv/fb/warehouse.fdb: shipping resumed" in capsys.readouterr().out
    await_quiet(shipper, scene.folder)
    assert ship.journal("retry") == 0
    assert "no database is paused" in capsys.readouterr().out
    assert shipper.terminate() == 0
    events = scene.topic.events()
    order = last_occurrences([event.position for event in events])
    assert order == [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2)]
    assert not any(REDELIVERED in event.headers for event in events)


def test_retry_without_a_shipper_is_done_by_the_next_one(
    make_scene: Callable[[bool], Scene], capsys: pytest.CaptureFixture[str]
) -> None:
    scene = make_scene(True)
    ship = scene.ship
    uuid = scene.giant(1).stem
    assert ship.once().process.returncode == 0
    scene.topic.widen()
    assert ship.journal("retry", uuid) == 0
    told = capsys.readouterr().out
    assert "the next one that starts carries out the request" in told
    assert '    event 2: table ITEM, key {"ID":1000001}\n' in told
    shipper = ship.once()
    assert shipper.process.returncode == 0
    assert shipper.log_lines(f"retry of {uuid}.log: 1 event redelivered")
    assert scene.aside() == []
    assert scene.topic.places()[-1] == (1, 2)


@either_way
def test_rest_of_a_damaged_journal_is_sent_once_it_is_sound_again(
    make_scene: Callable[[bool], Scene],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    transactional: bool,
) -> None:
    scene = make_scene(transactional)
    ship, folder = scene.ship, scene.folder
    archive = tmp_path / "archive"
    # Many are too large together, and each is small enough.
    journal = folder.write(1, 40, name="x" * 6000)
    sound = journal.read_bytes()
    damaged = bytearray(sound)
    damaged[len(sound) * 3 // 4] ^= 0xFF
    journal.write_bytes(damaged)
    folder.write(2, 2)
    assert ship.once().process.returncode == 0
    before = [event.position for event in scene.topic.events()]
    sent = len(set(before)) - 2  # without a transactional id some may have come twice
    assert (sent == 0) if transactional else (0 < sent < 40)
    aside = folder.directory / ".firebird-cdc/quarantine" / journal.name
    assert ship.journal("retry", journal.stem) == 1
    assert "event 1 of journal 2 of /srv/fb/warehouse.fdb, of the same database" in (
        capsys.readouterr().out
    )
    assert ship.journal("retry", "--force", journal.stem) == 0
    shipper = ship.once()
    assert shipper.log_lines(f"retry of {journal.stem}.log: 0 events redelivered, the rest stays")
    aside.write_bytes(sound)
    ship.options["connector.journal.archive.directory"] = str(archive)
    assert ship.journal("retry", "--force", journal.stem) == 0
    assert ship.once().process.returncode == 0
    assert scene.aside() == []
    events = scene.topic.events()
    assert [event.position for event in events if REDELIVERED not in event.headers] == before
    redelivered = [event.position for event in events if REDELIVERED in event.headers]
    if not transactional:
        redelivered = last_occurrences(redelivered)
    assert redelivered == [(1, pos) for pos in range(sent + 1, 41)]
    assert (archive / journal.name).read_bytes() == sound


@either_way
def test_events_taken_behind_a_refused_batch_are_repeated_so_that_the_newest_of_a_key_comes_last(
    make_scene: Callable[[bool], Scene], capsys: pytest.CaptureFixture[str], transactional: bool
) -> None:
    scene = make_scene(transactional)
    ship, folder = scene.ship, scene.folder
    ship.options["kafka.producer.batch.num.messages"] = "6"
    ship.options["kafka.producer.linger.ms"] = "500"

    def fill(writer: JournalWriter) -> None:
        table = writer.table("ITEM", ITEM)
        row = (1, "0" * GIANT)
        writer.insert(table, row)
        for number in range(1, 8):
            before, row = row, (1, str(number) * GIANT)
            writer.update(table, before, row)

    uuid = folder.write_changes(1, fill).stem
    assert ship.once().process.returncode == 0
    assert scene.topic.events() == []
    scene.topic.widen(5 * GIANT)  # enough for the last two together, too little for the six before
    assert ship.journal("retry", "--force", uuid) == 0
    shipper = ship.once()
    assert shipper.process.returncode == 0
    assert shipper.log_lines(f"retry of {uuid}.log: 8 events redelivered")
    redelivered = [event.position for event in scene.topic.events()]
    if not transactional:
        assert len(redelivered) > 8  # or nothing was taken behind the refused ones
        redelivered = last_occurrences(redelivered)
    assert redelivered == [(1, pos) for pos in range(1, 9)]


def test_journal_that_was_never_decided_is_not_sent_but_can_be_given_up(
    make_scene: Callable[[bool], Scene], capsys: pytest.CaptureFixture[str]
) -> None:
    scene = make_scene(False)
    ship = scene.ship
    quarantine = scene.folder.directory / ".firebird-cdc/quarantine"
    quarantine.mkdir(parents=True)
    journal = scene.folder.write(1)
    journal.rename(quarantine / journal.name)
    (quarantine / f"{journal.stem}.reason").write_text("transaction 7 is not one of it\n")
    shipper = ship.start()
    shipper.await_log("shipping journals of")
    assert ship.journal("retry", "--force", journal.stem) == 1
    refused = capsys.readouterr().out
    assert "before it had a number" in refused
    assert "transaction 7 is not one of it" in refused
    assert shipper.terminate() == 0
    assert ship.journal("discard", journal.stem) == 1
    assert len(scene.aside()) == 2
    assert ship.journal("discard", "--yes", journal.stem) == 0
    assert scene.aside() == []
    assert scene.topic.events() == []


@each_way
def test_redelivery_is_neither_lost_nor_doubled_by_a_crash_at_any_point(
    make_scene: Callable[[bool], Scene], transactional: bool
) -> None:
    scene = make_scene(transactional)
    ship, folder = scene.ship, scene.folder
    uuid = scene.giant(1).stem
    folder.write(2, 2)

    def die_at(*points: str) -> None:
        for point in points:
            shipper = ship.start("--once", program=[str(PROGRAM), point])
            assert shipper.wait() == -signal.SIGKILL, f"{point} was not met"

    die_at(*(["note.after"] if transactional else []), "keep.before", "keep.after")
    assert f"{uuid}.log" in scene.aside()
    if not transactional:  # else the whole journal is sent again, and then in order
        assert ship.once().process.returncode == 0
    scene.topic.widen()
    assert ship.journal("retry", uuid) == 0
    die_at(*(["record.after"] if transactional else []), "finish.before", "remove.before")
    assert ship.once().process.returncode == 0
    assert folder.waiting == []
    assert scene.aside() == []
    places = scene.topic.places()
    in_order = [(1, 1), (1, 3), (2, 1), (2, 2), (1, 2)]
    assert last_occurrences(places) == in_order
    assert not transactional or places == in_order
