"""Events with placeholders for what could not be read or decoded: which count, and how long."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from columns import column
from losing_disk import LosingDisk

from firebird_cdc.clock import now_us
from firebird_cdc.config import load_config
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.events.values import UNDECODED, UNREAD
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.folder.notes import LeftOut, Note
from firebird_cdc.journal.format import JournalWriter, Storage, Undecodable
from firebird_cdc.journal.shipper.delivery.retry import LateEvents
from firebird_cdc.journal.shipper.delivery.send import JournalSend
from firebird_cdc.journal.shipper.delivery.sending import SendContext
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.kafka.offset_topic import Offset
from firebird_cdc.journal.shipper.local_offsets import Memory, Shipped, acknowledge, notices
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.offset_tracker import OffsetTracker
from firebird_cdc.journal.shipper.unsent_values import MOST_COUNTED, UnsentCount, UnsentEvents

DATABASE = "/srv/depot.fdb"
ID = column("ID", Storage.BIGINT, 1)
BODY = column("BODY", Storage.BLOB, sub_type=1)
PHOTO = column("PHOTO", Storage.BLOB)
JOURNAL = uuid.UUID("6f2b9a54-0d1e-4c57-9a3b-2e7c41d8b0aa")
OTHER = uuid.UUID("7f2b9a54-0d1e-4c57-9a3b-2e7c41d8b0aa")

Found = list[tuple[int, str]]


class _Producer:
    """Takes messages, and answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Callable[[Any, Any], None]] = []

    def produce(self, *_: Any, on_delivery: Callable[[Any, Any], None], **__: Any) -> None:
        self.asked.append(on_delivery)


class Scene:
    """One journal that is sent, and what is heard of its BLOBs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heard: list[tuple[str, str, uuid.UUID, tuple[int, int], Found]] = []
        self.plan: Any = None
        self.counter: Any = self

    def write(self, fill: Callable[[JournalWriter], None]) -> None:
        path = self.folder / f"{JOURNAL}.log"
        with JournalWriter(path, uuid=JOURNAL, database=DATABASE, user="SYSDBA") as writer:
            fill(writer)
            writer.seal()
            writer.commit(1, 1)
            writer.stamp(1)

    def send(self, *lines: str, mode: str = "fail", limit: int = 300) -> JournalSend:
        """Send it all, with the options in LINES."""
        config = self.folder / "connector.yaml"
        more = "".join(f"{line}\n" for line in lines)
        config.write_text(
            f"connector.name: t\nconnector.journal.directory: {self.folder}\n"
            "kafka.topic.prefix: t\nkafka.producer.bootstrap.servers: 127.0.0.1:9\n" + more
        )
        loaded = load_config(config)
        renderer = Renderer(loaded, 1_000_000)
        self.plan = SendContext(self.folder, renderer, loaded.charset_none, mode, Statistics())
        self.plan.unsent = self.counter
        send = JournalSend(self.plan, Entry(0, 1, JOURNAL), DATABASE)
        producer: Any = _Producer()
        while not send.read_to_end:
            send.produce(producer, limit)
        return send

    def count_unsent(self, *heard: Any) -> None:
        self.heard.append(heard)

    def write_counts(self) -> None:
        pass

    @property
    def found(self) -> Found:
        return [each for *_, found in self.heard for each in found]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def _unread(writer: JournalWriter) -> None:
    doc = writer.table("DOC", (ID, BODY, PHOTO))
    other = writer.table("OTHER", (ID, BODY))
    writer.insert(doc, (1, writer.blob(b"whole"), writer.blob(b"\xff")))
    before = (1, writer.blob(b"a p", available=False), writer.blob(b"\xff"))
    writer.update(doc, before, (1, writer.blob(b"new"), writer.blob(b"", available=False)))
    writer.insert(other, (1, writer.blob(b"", available=False)))
    writer.insert(doc, (2, None, None))
    writer.delete(doc, (1, None, writer.blob(b"", available=False)))


def test_changes_with_unread_blobs_are_heard_of_with_their_fields(scene: Scene) -> None:
    scene.write(_unread)
    scene.send()
    [heard] = scene.heard
    assert heard == (
        DATABASE,
        UNREAD,
        JOURNAL,
        (0, 1),
        [
            (2, "before.BODY, after.PHOTO of table DOC"),
            (3, "after.BODY of table OTHER"),
            (5, "before.PHOTO of table DOC"),
        ],
    )


def test_they_are_heard_of_before_kafka_can_have_answered(scene: Scene) -> None:
    scene.write(_unread)
    scene.send(limit=1)
    assert [len(found) for *_, found in scene.heard] == [1, 1, 1]


NAME = column("NAME", Storage.TEXT, char_length=20)
OLD = column("OLD", Storage.PADDED_TEXT, char_length=4, charset_id=0)


def _undecoded(writer: JournalWriter) -> None:
    table = writer.table("DOC", (ID, NAME, OLD, BODY))
    body = writer.blob(b"\xff\xfe")
    writer.insert(table, (1, "whole", Undecodable(b"\xc4", 0), body))
    writer.insert(table, (2, "whole", "old", None))
    writer.update(table, (2, "whole", "old", None), (2, Undecodable(b"\xc4", 4), "old", None))
    writer.insert(table, (3, "whole", "old", writer.blob(b"", available=False)))
    writer.ddl(b"ALTER TABLE DOC ADD S VARCHAR(9) DEFAULT '\xff'", 4)


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (
            (),
            [
                (1, "after.OLD, after.BODY of table DOC"),
                (3, "after.NAME of table DOC"),
                (5, "ddl"),
            ],
        ),
        (
            ("connector.charset.none: WIN1252", "column.mask.with.3.chars: .*NAME"),
            [(1, "after.BODY of table DOC"), (5, "ddl")],
        ),
        (("include.schema.changes: false", "column.exclude.list: .*BODY,.*NAME,.*OLD"), []),
    ],
)
def test_changes_with_undecoded_values_are_heard_of_with_their_fields(
    scene: Scene, lines: tuple[str, ...], found: Found
) -> None:
    scene.write(_undecoded)
    scene.send(*lines)
    heard = [found for _, kind, *_, found in scene.heard if kind == UNDECODED]
    assert heard == ([found] if found else [])


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("table.exclude.list: .*DOC", [3]),
        ("column.exclude.list: .*DOC.PHOTO", [2, 3]),
        ("column.mask.with.3.chars: .*BODY", [2, 5]),
        ("skipped.operations: c", [2, 5]),
        ("skipped.operations: u,d", [3]),
    ],
)
def test_unread_parts_of_no_message_do_not_count(scene: Scene, line: str, left: list[int]) -> None:
    scene.write(_unread)
    scene.send(line)
    assert [pos for pos, _ in scene.found] == left


def test_unread_blob_of_an_event_that_is_left_out_counts(scene: Scene) -> None:
    def fill(writer: JournalWriter) -> None:
        table = writer.table("DOC", (ID, BODY, PHOTO))
        large = writer.blob(b"x" * 2_000_000)
        writer.insert(table, (1, writer.blob(b"", available=False), large))

    scene.write(fill)
    scene.send(mode="skip")
    assert scene.found == [(1, "after.BODY of table DOC")]


def test_no_change_is_looked_at_without_unread_blobs(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(writer: JournalWriter) -> None:
        table = writer.table("DOC", (ID, BODY))
        for number in range(10):
            writer.insert(table, (number, writer.blob(b"x")))

    monkeypatch.setattr(UnsentEvents, "add", None)
    scene.write(fill)
    assert scene.send().read_to_end


def test_retry_counts_what_no_shipper_has_looked_at_and_that_once(scene: Scene) -> None:
    scene.write(_unread)
    scene.send()
    aside = scene.plan.quarantine.folder
    aside.mkdir(parents=True)
    (scene.folder / f"{JOURNAL}.log").rename(aside / f"{JOURNAL}.log")
    scene.heard.clear()
    note = Note(JOURNAL, DATABASE, 0, 1, 0, [LeftOut(2, 2, 0)], 3, "torn", ["too large"])
    late = LateEvents(scene.plan, note)
    assert [each.number for each in late.rendered()] == [2, 4, 5]
    assert scene.found == [(5, "before.PHOTO of table DOC")]
    list(late.rendered())
    list(late.behind(3, {}, 0, "").rendered())
    assert len(scene.found) == 1


# ---- The memory of a folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / STATE_DIRECTORY).mkdir()
    return tmp_path


def _position(sequence: int) -> Offset:
    return Offset(DATABASE, 0, sequence, JOURNAL, 9, True, now_us(), (), "f", "p", {})


def _told(folder: Path) -> list[str]:
    return [notice.what for notice in notices(folder)]


def test_count_survives_a_power_cut_and_names_the_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = Shipped(folder, "positions")
    with monkeypatch.context() as patch:
        disk = LosingDisk(folder, patch)
        shipped.count_unsent(DATABASE, UNREAD, JOURNAL, (0, 3), [(2, "after.B of table T")])
        shipped.count_unsent(DATABASE, UNREAD, OTHER, (0, 4), [(1, "after.C of table U")])
        shipped.count_unsent(DATABASE, UNDECODED, OTHER, (0, 4), [(1, "after.N of table U")])
        shipped.write()
        disk.cut()
    unread, undecoded = _told(folder)
    assert f"2 events have placeholders for BLOBs that could not be read from {DATABASE}," in unread
    assert unread.endswith(f"the first is event 2 of {JOURNAL}.log: after.B of table T")
    assert "1 event has placeholders for values that could not be decoded from" in undecoded
    assert undecoded.endswith(f"the first is event 1 of {OTHER}.log: after.N of table U")


def test_event_that_is_sent_again_after_a_crash_counts_once(folder: Path) -> None:
    found = [(2, "after.B of table T"), (4, "after.B of table T")]
    shipped = Shipped(folder, "positions")
    assert shipped.count_unsent(DATABASE, UNREAD, JOURNAL, (0, 3), found[:1])
    shipped.write()
    again = Shipped(folder, "positions")
    assert not again.count_unsent(DATABASE, UNREAD, JOURNAL, (0, 3), found[:1])
    unread = again.databases[DATABASE].unread
    assert again.count_unsent(DATABASE, UNREAD, JOURNAL, (0, 3), found)
    assert unread.total == 2
    # one that was found late, and has a lower number
    assert again.count_unsent(DATABASE, UNREAD, OTHER, (0, 1), found)
    assert unread.total == 4


def test_journal_of_which_a_killed_shipper_got_no_answer_counts_once(scene: Scene) -> None:
    link: Any = None  # nothing is read from Kafka here
    scene.write(_unread)
    for _ in range(2):
        statistics = Statistics()
        offsets = OffsetTracker(scene.folder, "positions", link, statistics)
        scene.counter = offsets
        assert not scene.send().delivered
        offsets.write_counts()  # as before what is sent is committed, or its journal removed
        assert statistics.database(DATABASE).unsent == {UNREAD: (3, 3)}


def test_journals_that_kafka_has_are_forgotten(folder: Path) -> None:
    shipped = Shipped(folder, "positions")
    shipped.count_unsent(DATABASE, UNREAD, JOURNAL, (0, 3), [(2, "x")])
    shipped.count_unsent(DATABASE, UNREAD, OTHER, (0, 4), [(2, "x")])
    shipped.note(_position(3))
    unread = shipped.databases[DATABASE].unread
    assert (list(unread.counted), unread.total) == ([str(OTHER)], 2)


def test_memory_of_what_is_counted_is_bounded_where_kafka_does_not_tell_what_it_has() -> None:
    count = UnsentCount()
    for number in range(MOST_COUNTED + 10):
        count.add(uuid.UUID(int=number), (0, number), [(1, "x")])
    assert (count.total, len(count.counted)) == (MOST_COUNTED + 10, MOST_COUNTED)
    assert not count.add(uuid.UUID(int=MOST_COUNTED + 9), (0, MOST_COUNTED + 9), [(1, "x")])


def test_acknowledged_events_are_told_no_more_and_later_ones_are(folder: Path) -> None:
    link: Any = None  # nothing is read from Kafka here
    statistics = Statistics()
    offsets = OffsetTracker(folder, "positions", link, statistics)
    offsets.count_unsent(DATABASE, UNREAD, JOURNAL, (0, 3), [(2, "x"), (3, "x")])
    offsets.write_counts()
    subject = f"unread-blobs:{DATABASE}"
    assert list(statistics.troubles) == [subject] and len(_told(folder)) == 1
    acknowledge(folder, DATABASE)
    assert _told(folder) == []  # at once, whether a shipper runs or not
    assert offsets.turn() == [DATABASE]
    assert statistics.troubles == {}
    assert statistics.database(DATABASE).unsent == {UNREAD: (2, 0)}
    offsets.close()
    restarted = Statistics()
    offsets = OffsetTracker(folder, "positions", link, restarted)
    assert (restarted.database(DATABASE).unsent, restarted.troubles) == ({UNREAD: (2, 0)}, {})
    offsets.count_unsent(DATABASE, UNREAD, OTHER, (0, 4), [(7, "y")])
    offsets.turn()
    assert "1 event has placeholders" in restarted.troubles[subject].text
    assert f"event 7 of {OTHER}.log: y;" in restarted.troubles[subject].text
    assert restarted.database(DATABASE).unsent == {UNREAD: (3, 1)}


def test_another_folder_in_its_place_has_its_own_count(folder: Path) -> None:
    link: Any = None  # nothing is read from Kafka here
    statistics = Statistics()
    offsets = OffsetTracker(folder, "positions", link, statistics)
    offsets.count_unsent(DATABASE, UNREAD, JOURNAL, (0, 3), [(2, "x")])
    offsets.write_counts()
    (folder / STATE_DIRECTORY / "shipped").rename(folder / "former")
    offsets.follow_folder()
    assert (statistics.database(DATABASE).unsent, statistics.troubles) == ({}, {})


def test_event_noticed_after_an_acknowledgement_stays_told(folder: Path) -> None:
    shipped = Shipped(folder, "positions")
    shipped.count_unsent(DATABASE, UNREAD, JOURNAL, (0, 3), [(2, "x")])
    acknowledge(folder, DATABASE)
    [request] = (folder / STATE_DIRECTORY / "shipped").glob("*.acknowledged")
    before_it = request.stat().st_mtime_ns - 60_000_000_000
    os.utime(request, ns=(before_it, before_it))
    assert shipped.acknowledgements(0.0) == [DATABASE]
    shipped.write()
    assert len(_told(folder)) == 1


def test_event_noticed_before_the_clock_was_set_back_can_be_acknowledged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = Shipped(folder, "positions")
    with monkeypatch.context() as patch:
        patch.setattr(
            "firebird_cdc.journal.shipper.unsent_values.now_us", lambda: now_us() + 7_200_000_000
        )
        shipped.count_unsent(DATABASE, UNREAD, JOURNAL, (0, 3), [(2, "x")])
    shipped.write()
    acknowledge(folder, DATABASE)
    assert _told(folder) == []


def test_memory_of_a_version_that_counted_none_is_read() -> None:
    fields = json.loads(Memory(DATABASE, "positions").to_json())
    del fields["unread"], fields["undecoded"]
    assert Memory.parse(json.dumps(fields).encode()).unread.total == 0
    fields["unread"] = {"total": "many"}
    with pytest.raises((ValueError, KeyError)):
        Memory.parse(json.dumps(fields).encode())
