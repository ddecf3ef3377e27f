"""Obstacles to shipping: damaged journals, impossible events, missing numbers, two shippers."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import random
import shutil
import signal
import string
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from broker_topics import limit_messages
from columns import column
from confluent_kafka.admin import AdminClient, NewTopic
from shipping import (
    DATABASE,
    ITEM,
    PATIENCE_S,
    WAYS,
    Folder,
    Ship,
    either_way,
    first_occurrences,
    ids,
    last_occurrences,
    read_topics,
    use_transactions,
)
from soaked import few_of, half_of

from firebird_cdc.cli import main
from firebird_cdc.config import load_config
from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.journal.events.records import Record
from firebird_cdc.journal.format import JournalWriter, Storage
from firebird_cdc.journal.shipper import quarantine
from firebird_cdc.journal.shipper.delivery import backoff
from firebird_cdc.journal.shipper.delivery import transactional as transactional_delivery
from firebird_cdc.journal.shipper.delivery.kafka_transaction import EndingPause
from firebird_cdc.journal.shipper.inbox.opening import JournalOpener
from firebird_cdc.journal.shipper.loop import Shipper
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics

pytestmark = pytest.mark.kafka


OTHER = "/srv/fb/other.fdb"
FAILURE_MODE = "event.processing.failure.handling.mode"
_NO_LIMIT = 1_048_588  # bytes of a message, as by default


def item_topic(prefix: str, database: str = "warehouse") -> str:
    return f"{prefix}._srv_fb_{database}.fdb.ITEM"


def damage(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0xFF
    path.write_bytes(content)
    os.utime(path, (0, 0))  # as old as a journal that was really damaged on disk


def damage_a_row(path: Path) -> None:
    damage(path, path.stat().st_size // 2)


def write_and_damage_the_last_block(folder: Folder, sequence: int) -> Path:
    """Write a journal of several blocks whose place in the order can still be read."""
    path = folder.write(sequence, 10_000)
    damage(path, path.stat().st_size * 9 // 10)
    return path


def damage_the_header(path: Path) -> None:
    damage(path, 3)


def damage_the_stamp(path: Path) -> None:
    damage(path, 1030)


def cut_off_the_end(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)
    os.utime(path, (0, 0))


def claim_a_newer_format(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8] = 99
    path.write_bytes(content)
    os.utime(path, (0, 0))


DAMAGES = pytest.mark.parametrize(
    ("harm", "transactional"),
    half_of(
        {
            "row": damage_a_row,
            "header": damage_the_header,
            "stamp": damage_the_stamp,
            "torn": cut_off_the_end,
            "newer-format": claim_a_newer_format,
        },
        WAYS,
    ),
)


@DAMAGES
def test_damaged_journal_stops_its_own_database_only(
    ship: Ship,
    folder: Folder,
    broker: KafkaBroker,
    topic_prefix: str,
    harm: object,
    transactional: bool,
) -> None:
    use_transactions(ship, topic_prefix, transactional)
    paths = [folder.write(n, 200) for n in range(1, 6)]
    assert callable(harm)
    harm(paths[2])
    for sequence in range(1, 6):
        folder.write(sequence, 10, database=OTHER)
    shipper = ship.once()
    assert shipper.process.returncode == 1
    # Journals 4 and 5 must not overtake the damaged one, which stays in its place.
    assert folder.waiting == sorted(paths[2:])
    assert folder.quarantined() == []
    line = shipper.log_lines("shipping paused")[0]
    assert DATABASE in line
    assert paths[2].name in line
    # Those before it, which were under way, are no sign of recovery.
    assert not shipper.log_lines("delivered again")
    topics = read_topics(broker.bootstrap, topic_prefix)
    assert len(topics[item_topic(topic_prefix, "other")]) == 50
    events = topics[item_topic(topic_prefix)]
    before = [event.position[0] for event in events if event.position[0] != 3]
    assert before == [1] * 200 + [2] * 200
    assert len(events) == 400 or not transactional


def test_journal_damaged_a_moment_ago_is_not_overtaken_either(
    ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str
) -> None:
    paths = [folder.write(n, 10) for n in range(1, 5)]
    damage_the_header(paths[2])
    os.utime(paths[2])
    shipper = ship.once()
    assert shipper.process.returncode == 1
    assert folder.waiting == sorted(paths[2:])
    events = read_topics(broker.bootstrap, topic_prefix)[item_topic(topic_prefix)]
    assert [event.position[0] for event in events] == [1] * 10 + [2] * 10


@DAMAGES
def test_damaged_journal_is_quarantined_with_its_reason_in_warn_mode(
    ship: Ship,
    folder: Folder,
    broker: KafkaBroker,
    topic_prefix: str,
    harm: object,
    transactional: bool,
) -> None:
    use_transactions(ship, topic_prefix, transactional)
    ship.options[FAILURE_MODE] = "warn"
    paths = [folder.write(n, 200) for n in range(1, 6)]
    assert callable(harm)
    harm(paths[2])
    content = paths[2].read_bytes()
    shipper = ship.once()
    assert folder.waiting == []
    note, journal, _ = sorted(folder.quarantined(), key=lambda path: path.suffix, reverse=True)
    assert (note.suffix, journal.name) == (".reason", paths[2].name)
    assert journal.read_bytes() == content
    assert note.read_text("utf-8").strip()
    assert shipper.log_lines(paths[2].name)
    events = read_topics(broker.bootstrap, topic_prefix)[item_topic(topic_prefix)]
    whole = [event.position[0] for event in events if event.position[0] != 3]
    assert whole == [s for s in (1, 2, 4, 5) for _ in range(200)]


def test_database_goes_on_by_itself_once_the_obstacle_is_moved_away(
    ship: Ship, folder: Folder, broker: KafkaBroker, tmp_path: Path, topic_prefix: str
) -> None:
    ship.options["connector.journal.check.interval.ms"] = "200"
    paths = [folder.write(n, 5) for n in (1, 2, 3)]
    damage_a_row(paths[1])
    shipper = ship.start()
    shipper.await_log("shipping paused")
    shipper.await_that(lambda: folder.waiting == sorted(paths[1:]), "journal 1 shipped")
    shutil.move(paths[1], tmp_path / "repaired-later")
    shipper.await_that(lambda: not folder.waiting, "journal 3 shipped")
    assert "journal 2 is missing" in shipper.await_log("missing before journal")
    shipper.await_log("journals are delivered again")
    assert shipper.terminate() == 0
    assert len(shipper.log_lines("delivered again")) == 1
    events = read_topics(broker.bootstrap, topic_prefix)[item_topic(topic_prefix)]
    assert [event.position[0] for event in events if event.position[0] != 2] == [1] * 5 + [3] * 5


@pytest.mark.parametrize(
    ("removed", "transactional"),
    half_of(
        {
            "the next too": (3, "journals 2 to 3 (epoch 0) of "),
            "one between": (4, "journal 2 (epoch 0), journal 4 (epoch 0) of "),
            "the last too": (5, "journal 2 (epoch 0), journal 5 (epoch 0) of "),
        },
        WAYS,
    ),
)
def test_removed_journals_are_reported_once_until_acknowledged(
    ship: Ship,
    folder: Folder,
    broker: KafkaBroker,
    topic_prefix: str,
    transactional: bool,
    removed: tuple[int, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    number, told = removed
    use_transactions(ship, topic_prefix, transactional)
    ship.options["connector.journal.check.interval.ms"] = "200"
    folder.write(1)
    damaged = write_and_damage_the_last_block(folder, 2)
    behind = {each: folder.write(each) for each in (3, 4, 5)}
    shipper = ship.start()
    shipper.await_log("shipping paused")
    behind[number].unlink()  # it is queued by now
    damaged.unlink()
    shipper.await_that(lambda: _tells(folder, capsys, told), "a status that tells of both")
    assert ship.journal("acknowledge") == 0
    shipper.await_that(lambda: main(_status_of(folder)) == 0, "a status in which all is well")
    shipper.await_that(lambda: not folder.waiting, "the others shipped")
    assert shipper.terminate() == 0
    events = read_topics(broker.bootstrap, topic_prefix)[item_topic(topic_prefix)]
    sent = {event.position[0] for event in events} - {2}
    assert sent == {1, 3, 4, 5} - {number}
    folder.write(6)
    shipper = ship.once()
    assert not shipper.log_lines("missing before journal")
    assert main(_status_of(folder)) == 0


@pytest.mark.parametrize("transactional", few_of(WAYS, ["plain"]))
def test_journals_of_a_folder_that_is_away_for_a_while_are_not_taken_for_gone(
    ship: Ship,
    folder: Folder,
    tmp_path: Path,
    topic_prefix: str,
    transactional: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use_transactions(ship, topic_prefix, transactional)
    ship.options["connector.journal.check.interval.ms"] = "200"
    folder.write(1)
    damaged, behind = write_and_damage_the_last_block(folder, 2), folder.write(3)
    shipper = ship.start()
    shipper.await_log("shipping paused")
    left = sorted([damaged, behind])
    shipper.await_that(lambda: folder.waiting == left, "the one before it shipped")
    folder.directory.rename(tmp_path / "elsewhere")
    shipper.await_log("is gone; create it again")
    (tmp_path / "elsewhere").rename(folder.directory)
    shipper.await_log("is back")
    assert folder.waiting == left
    damaged.unlink()
    shipper.await_that(lambda: not folder.waiting, "the one behind it shipped")
    told = "journal 2 (epoch 0) of "
    shipper.await_that(lambda: _tells(folder, capsys, told), "a status that tells of one")
    assert shipper.terminate() == 0


@pytest.mark.parametrize("transactional", few_of(WAYS, ["tx"]))
def test_journals_of_a_folder_that_another_one_replaces_are_not_taken_for_gone(
    ship: Ship,
    folder: Folder,
    tmp_path: Path,
    topic_prefix: str,
    transactional: bool,
) -> None:
    use_transactions(ship, topic_prefix, transactional)
    ship.options["connector.journal.check.interval.ms"] = "200"
    write_and_damage_the_last_block(folder, 1)
    folder.write(2)
    shipper = ship.start()
    shipper.await_log("shipping paused")
    folder.directory.rename(tmp_path / "elsewhere")
    folder.directory.mkdir()
    shipper.await_log("is back")
    shipper.await_that(lambda: main(_status_of(folder)) == 0, "a status in which all is well")
    assert shipper.terminate() == 0
    assert not shipper.log_lines("it is gone, and")
    assert main(_status_of(folder)) == 0


@pytest.mark.parametrize("transactional", few_of(WAYS, ["plain"]))
def test_quarantined_journal_is_not_missing_after_a_restart(
    ship: Ship,
    folder: Folder,
    topic_prefix: str,
    transactional: bool,
) -> None:
    use_transactions(ship, topic_prefix, transactional)
    ship.options[FAILURE_MODE] = "warn"
    folder.write(1)
    write_and_damage_the_last_block(folder, 2)
    assert ship.once().process.returncode == 0
    assert folder.waiting == []
    folder.write(3)
    shipper = ship.once()
    assert folder.waiting == []
    assert not shipper.log_lines("missing before journal")


def write_with_a_nan(folder: Folder, sequence: int, nullable: bool) -> Path:
    columns = (ITEM[0], column("WEIGHT", Storage.DOUBLE, nullable=nullable))

    def fill(writer: JournalWriter) -> None:
        table = writer.table("ITEM", columns)
        for number, weight in enumerate((1.5, math.nan, 2.5)):
            writer.insert(table, (sequence * 1_000_000 + number, weight))

    return folder.write_changes(sequence, fill)


@pytest.mark.parametrize("transactional", few_of(WAYS, ["tx"]))
def test_value_that_json_cannot_express_stops_the_database(
    ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str, transactional: bool
) -> None:
    use_transactions(ship, topic_prefix, transactional)
    folder.write(1)
    path = write_with_a_nan(folder, 2, nullable=True)
    shipper = ship.once()
    assert shipper.process.returncode == 1
    assert folder.waiting == [path]
    line = shipper.log_lines("shipping paused")[0]
    assert "event 2" in line
    assert "WEIGHT" in line
    assert 'it is of table ITEM, key {"ID":2000001}' in line
    events = read_topics(broker.bootstrap, topic_prefix)[item_topic(topic_prefix)]
    assert events[0].position == (1, 1)
    assert all(event.position < (2, 2) for event in events)


@pytest.mark.parametrize(("mode", "transactional"), half_of(("warn", "skip"), WAYS))
def test_value_that_json_cannot_express_is_left_out_if_configured(
    ship: Ship,
    folder: Folder,
    broker: KafkaBroker,
    topic_prefix: str,
    transactional: bool,
    mode: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use_transactions(ship, topic_prefix, transactional)
    ship.options[FAILURE_MODE] = mode
    journals = [
        write_with_a_nan(folder, 1, nullable=True),
        write_with_a_nan(folder, 2, nullable=False),
    ]
    shipper = ship.once()
    assert shipper.process.returncode == 0
    assert bool(shipper.log_lines("is left out")) == (mode == "warn")
    events = read_topics(broker.bootstrap, topic_prefix)[item_topic(topic_prefix)]
    assert [(*event.position, event.payload["after"]["WEIGHT"]) for event in events] == [
        (1, 1, 1.5),
        (1, 3, 2.5),
        (2, 1, 1.5),
        (2, 3, 2.5),
    ]
    reasons = [path.stem for path in folder.quarantined() if path.suffix == ".reason"]
    assert sorted(reasons) == sorted(path.stem for path in journals)
    for sequence, journal in enumerate(journals, start=1):
        [told] = shipper.log_lines(f"{journal.name} of {DATABASE}: moved to the quarantine")
        assert "WARNING" in told
        assert "column WEIGHT: nan cannot be written as a JSON number" in told
        assert f'it is of table ITEM, key {{"ID":{sequence}000001}}' in told
    capsys.readouterr()
    assert main(["status", "--directory", str(folder.directory)]) == 1
    assert "2 journals are in the quarantine" in capsys.readouterr().out
    assert ship.journal("quarantine") == 0
    assert capsys.readouterr().out.count('it is of table ITEM, key {"ID":') == 2


def write_with_a_giant(folder: Folder, sequence: int, size: int) -> Path:
    giant = "".join(random.Random(size).choices(string.ascii_letters, k=size))  # hard to compress

    def fill(writer: JournalWriter) -> None:
        table = writer.table("ITEM", ITEM)
        for number, text in enumerate(("a", giant, "c")):
            writer.insert(table, (sequence * 1_000_000 + number, text))

    return folder.write_changes(sequence, fill)


@pytest.mark.parametrize(("mode", "transactional"), half_of(("fail", "warn"), WAYS))
def test_message_larger_than_the_producer_takes_is_a_bad_event(
    ship: Ship,
    folder: Folder,
    broker: KafkaBroker,
    topic_prefix: str,
    transactional: bool,
    mode: str,
) -> None:
    use_transactions(ship, topic_prefix, transactional)
    ship.options[FAILURE_MODE] = mode
    ship.options["kafka.producer.max.request.size"] = "30000"
    path = write_with_a_giant(folder, 1, 32000)
    shipper = ship.once()
    assert shipper.process.returncode == (1 if mode == "fail" else 0)
    assert folder.waiting == ([path] if mode == "fail" else [])
    assert "max.request.size" in shipper.log_lines("event 2")[0]
    if mode == "warn":
        events = read_topics(broker.bootstrap, topic_prefix)[item_topic(topic_prefix)]
        assert [event.position for event in events] == [(1, 1), (1, 3)]


@pytest.mark.parametrize(("mode", "transactional"), half_of(("fail", "warn"), WAYS))
def test_message_larger_than_the_broker_takes_is_found_among_its_neighbours(
    ship: Ship,
    folder: Folder,
    broker: KafkaBroker,
    topic_prefix: str,
    transactional: bool,
    mode: str,
) -> None:
    use_transactions(ship, topic_prefix, transactional)
    ship.options[FAILURE_MODE] = mode
    topic = item_topic(topic_prefix)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    limited = NewTopic(topic, 1, 1, config={"max.message.bytes": "30000"})
    for future in admin.create_topics([limited]).values():
        future.result(30)
    journals = [folder.write(1, 20), write_with_a_giant(folder, 2, 32000), folder.write(3, 20)]
    shipper = ship.once()
    assert shipper.process.returncode == (1 if mode == "fail" else 0)
    assert folder.waiting == (sorted(journals[1:]) if mode == "fail" else [])
    assert shipper.log_lines("event 2")
    if mode == "warn":
        got = last_occurrences(
            [event.position for event in read_topics(broker.bootstrap, topic_prefix)[topic]]
        )
        expected = [(1, n) for n in range(1, 21)] + [(2, 1), (2, 3)]
        assert got == expected + [(3, n) for n in range(1, 21)]
    else:
        limit_messages(broker.bootstrap, topic, _NO_LIMIT)
        assert ship.once().process.returncode == 0
        got = ids(read_topics(broker.bootstrap, topic_prefix)[topic])
        assert sorted(set(got))[20:23] == [2_000_000, 2_000_001, 2_000_002]


@either_way
def test_second_bad_journal_halts_the_database_after_a_retry_of_the_first(
    ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str, transactional: bool
) -> None:
    use_transactions(ship, topic_prefix, transactional)
    ship.options |= {FAILURE_MODE: "fail", "connector.journal.check.interval.ms": "200"}
    topic = item_topic(topic_prefix)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    limited = NewTopic(topic, 1, 1, config={"max.message.bytes": "30000"})
    for future in admin.create_topics([limited]).values():
        future.result(30)
    write_with_a_giant(folder, 1, 32000)
    damaged = folder.write(2, 5)
    damage_a_row(damaged)
    last = folder.write(3)
    shipper = ship.start()
    shipper.await_log("event 2: Kafka refuses it")
    limit_messages(broker.bootstrap, topic, _NO_LIMIT)
    ship.journal("retry")
    shipper.await_that(
        lambda: damaged.name in shipper.log_lines("shipping paused")[-1], "the second one met again"
    )
    assert shipper.terminate() == 0
    assert folder.waiting == sorted([damaged, last])


@either_way
def test_boundaries_that_the_broker_refuses_do_not_take_the_events_with_them(
    ship: Ship,
    folder: Folder,
    broker: KafkaBroker,
    topic_prefix: str,
    capsys: pytest.CaptureFixture[str],
    transactional: bool,
) -> None:
    """And whoever asks is told until somebody knows it."""
    use_transactions(ship, topic_prefix, transactional)
    ship.options |= {FAILURE_MODE: "warn", "provide.transaction.metadata": "true"}
    limited = NewTopic(f"{topic_prefix}.transaction", 1, 1, config={"max.message.bytes": "300"})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([limited]).values():
        future.result(30)
    folder.write(1, 3)
    shipper = ship.once()
    assert shipper.process.returncode == 0
    for boundary in ("BEGIN", "END"):
        assert shipper.log_lines(f"{boundary} of the transaction is left out: Kafka refuses it")
    topics = read_topics(broker.bootstrap, topic_prefix)
    assert first_occurrences(ids(topics[item_topic(topic_prefix)])) == [1000000, 1000001, 1000002]
    assert topics[f"{topic_prefix}.transaction"] == []
    left_out = "BEGIN of the transaction ({0}), END of the transaction ({0})"
    assert left_out.format(1) in _needs(folder, capsys)
    folder.write(2)
    shipper = ship.start()
    shipper.await_that(lambda: folder.waiting == [], "shipped")
    told = left_out.format(2)
    shipper.await_that(lambda: _tells(folder, capsys, told), "a shipper that tells of it")
    assert ship.journal("acknowledge") == 0
    assert f"{DATABASE}: acknowledged (BEGIN of the transaction (2), END" in capsys.readouterr().out
    shipper.await_that(lambda: main(_status_of(folder)) == 0, "well again")
    assert shipper.terminate() == 0
    assert main(_status_of(folder)) == 0


class NoBoundaries:
    """A transform of the user's that fails over BEGIN and END."""

    def apply(self, record: Record) -> Record:
        if record.topic.endswith(".transaction"):
            raise ValueError("no")
        return record


def test_left_out_boundaries_are_told_after_a_crash_behind_their_kafka_transaction(
    ship: Ship,
    folder: Folder,
    topic_prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use_transactions(ship, topic_prefix, True)
    ship.options |= {
        FAILURE_MODE: "warn",
        "provide.transaction.metadata": "true",
        "transforms": "no",
        "transforms.no.type": f"{__name__}.NoBoundaries",
    }
    folder.write(1)
    with monkeypatch.context() as patch:
        patch.setattr(EndingPause, "begin", Mock(side_effect=RuntimeError("dies")))
        with pytest.raises(RuntimeError, match="dies"):
            ship.once_here()
    assert ship.once_here() == 0
    assert folder.waiting == []
    assert "BEGIN of the transaction (1), END of the transaction (1)" in _needs(folder, capsys)


def _status_of(folder: Folder) -> list[str]:
    return ["status", "--directory", str(folder.directory)]


def _needs(folder: Folder, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the output of status, whose exit status says that something needs somebody."""
    capsys.readouterr()
    assert main(_status_of(folder)) == 1
    return capsys.readouterr().out


def _tells(folder: Folder, capsys: pytest.CaptureFixture[str], what: str) -> bool:
    """Tell whether status has WHAT among what needs somebody by now."""
    capsys.readouterr()
    return main(_status_of(folder)) == 1 and what in capsys.readouterr().out


@either_way
def test_missing_number_is_reported_until_acknowledged_and_shipping_goes_on(
    ship: Ship,
    folder: Folder,
    broker: KafkaBroker,
    topic_prefix: str,
    transactional: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use_transactions(ship, topic_prefix, transactional)
    for sequence in (1, 2, 5):
        folder.write(sequence)
    shipper = ship.once()
    assert shipper.process.returncode == 0
    assert "journals 3 to 4 are missing" in shipper.log_lines("missing before journal")[0]
    assert folder.waiting == []
    told = "journals 3 to 4 (epoch 0) of "
    assert told in _needs(folder, capsys)
    folder.write(6)
    shipper = ship.start()
    shipper.await_that(lambda: not folder.waiting, "the next one shipped")
    shipper.await_that(lambda: _tells(folder, capsys, told), "a shipper that tells of it")
    assert ship.journal("acknowledge") == 0
    known = "acknowledged (journals 3 to 4 (epoch 0) missing in the folder)"
    assert f"{DATABASE}: {known}" in capsys.readouterr().out
    shipper.await_that(lambda: main(_status_of(folder)) == 0, "a status in which all is well")
    assert shipper.terminate() == 0


def test_new_epoch_begins_a_new_count(ship: Ship, folder: Folder) -> None:
    folder.write(7, epoch=0)
    folder.write(8, epoch=0)
    folder.write(1, epoch=1)
    shipper = ship.once()
    assert shipper.process.returncode == 0
    assert shipper.log_lines("missing") == []


def test_gap_in_a_journal_is_logged_with_its_reason(ship: Ship, folder: Folder) -> None:
    folder.write_changes(1, lambda writer: writer.gap("the disk was full"))
    shipper = ship.once()
    assert shipper.process.returncode == 0
    assert "the disk was full" in shipper.log_lines("marks a gap")[0]


def test_second_shipper_of_a_folder_is_refused(ship: Ship, folder: Folder) -> None:
    first = ship.start()
    first.await_log("shipping journals of")
    second = ship.start()
    assert second.wait() == 1
    assert f"process {first.process.pid}" in ship.output(second)
    assert str(folder.directory) in ship.output(second)
    assert first.terminate() == 0
    assert ship.once().process.returncode == 0


def test_wrong_option_ends_in_one_sentence_and_exit_status_2(ship: Ship) -> None:
    ship.options["kafka.producer.ssl.ca.location"] = "/nonexistent/ca.pem"
    ship.options["kafka.producer.security.protocol"] = "SSL"
    shipper = ship.start()
    assert shipper.wait() == 2
    assert "kafka.producer." in ship.output(shipper)
    assert "Traceback" not in ship.output(shipper)


@pytest.mark.timeout(90, func_only=True)  # starting the broker is not part of it
@pytest.mark.parametrize(("away", "transactional"), half_of(("kafka", "registry"), WAYS))
def test_ship_once_ends_when_no_more_progress_is_possible(
    make_ship: Callable[[str], Ship],
    folder: Folder,
    broker: KafkaBroker,
    topic_prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    away: str,
    transactional: bool,
) -> None:
    # Else the longest pause would have to be waited for twice.
    monkeypatch.setattr(backoff, "MAX_BACKOFF_S", 0.2)
    ship = make_ship("127.0.0.1:1" if away == "kafka" else broker.bootstrap)
    use_transactions(ship, topic_prefix, transactional)
    ship.options["kafka.producer.request.timeout.ms"] = "900"
    ship.options["kafka.producer.delivery.timeout.ms"] = "1000"
    if away == "registry":
        ship.options["value.converter"] = "avro"
        ship.options["value.converter.schema.registry.url"] = "http://127.0.0.1:1"
    journal = folder.write(1)
    assert ship.once_here() == 1
    assert folder.waiting == [journal]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_orderly_stop_finishes_the_begun_journals(
    ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str, number: signal.Signals
) -> None:
    ship.options["value.converter.schemas.enable"] = "false"
    for sequence in range(1, 41):
        folder.write(sequence, 2000)
    shipper = ship.start()
    shipper.await_that(lambda: len(folder.waiting) < 40, "the first journal shipped")
    shipper.process.send_signal(number)
    assert shipper.wait() == 0
    left = len(folder.waiting)
    events = read_topics(broker.bootstrap, topic_prefix)[item_topic(topic_prefix)]
    # What is gone was delivered, what was delivered is gone: no repeats after this stop.
    assert ids(events) == [s * 1_000_000 + n for s in range(1, 41 - left) for n in range(2000)]


def test_embedded_shipper_outlives_no_server_and_ships_the_rest(
    ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str
) -> None:
    state = folder.directory / ".firebird-cdc"
    state.mkdir()
    with (state / "bridge.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        shipper = ship.start("--embedded")
        folder.write(1)
        shipper.await_that(lambda: not folder.waiting, "the journal shipped")
        assert shipper.process.poll() is None
        shipper.pause()
        folder.write(2)
    shipper.process.send_signal(signal.SIGCONT)
    assert shipper.wait() == 0
    assert folder.waiting == []
    assert len(read_topics(broker.bootstrap, topic_prefix)[item_topic(topic_prefix)]) == 2


def test_folder_that_vanishes_and_comes_back_is_survived(
    ship: Ship, folder: Folder, tmp_path: Path
) -> None:
    shipper = ship.start()
    shipper.await_log("shipping journals of")
    folder.directory.rename(tmp_path / "unmounted")
    shipper.await_log("is gone; create it again")
    folder.directory.mkdir()
    folder.write(1)
    shipper.await_that(lambda: not folder.waiting, "the journal in the new folder shipped")
    second = ship.start()
    assert second.wait() == 1
    assert shipper.terminate() == 0


@contextmanager
def shipping(ship: Ship) -> Iterator[Statistics]:
    """Ship in this process, parts of which the test has changed; what is told."""
    shipper = Shipper(load_config(ship.write_config()))
    thread = threading.Thread(target=shipper.run)
    thread.start()
    try:
        yield shipper.statistics
    finally:
        shipper.stop()
        thread.join(PATIENCE_S)


class Disk:
    """Disk that fails the calls of NAME, a function of OWNER, until it is mended."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.is_mended = False
        call = getattr(owner, name)

        def failing(*args: Any, **options: Any) -> Any:
            if not self.is_mended:
                raise OSError(errno.EIO, "broken")
            return call(*args, **options)

        patch.setattr(owner, name, failing)

    def await_telling(self, statistics: Statistics, text: str) -> None:
        """Wait until somebody is told TEXT; mend it, and wait until that is not told any more."""

        def told() -> bool:
            return any(text in each.text for each in statistics.halted.values())

        await_condition(text, told, PATIENCE_S)
        self.is_mended = True
        await_condition("no trouble", lambda: not statistics.halted, PATIENCE_S)


@either_way
def test_journal_that_the_disk_does_not_give_is_told_until_it_does(
    ship: Ship,
    folder: Folder,
    topic_prefix: str,
    transactional: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_transactions(ship, topic_prefix, transactional)
    path = folder.write(1)
    disk = Disk(monkeypatch, JournalOpener, "open")
    with shipping(ship) as statistics:
        disk.await_telling(statistics, f"{path.name} can't be read: [Errno 5] broken")


def test_quarantine_that_the_disk_does_not_take_is_told_until_it_does(
    ship: Ship, folder: Folder, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_transactions(ship, topic_prefix, True)
    monkeypatch.setattr(transactional_delivery, "MAX_BACKOFF_S", 0.1)
    ship.options |= {FAILURE_MODE: "skip", "connector.journal.check.interval.ms": "100"}
    path = folder.write(1)
    damage_the_header(path)
    disk = Disk(monkeypatch, quarantine, "replace_file")
    with shipping(ship) as statistics:
        disk.await_telling(statistics, f"{path.name} can't be read (")
        disk.is_mended = False
        large = write_and_damage_the_last_block(folder, 2)
        disk.await_telling(statistics, f"{large.name} at byte")
        disk.is_mended = False
        write_with_a_nan(folder, 3, nullable=True)
        disk.await_telling(statistics, "what is left out can't be noted in ")
