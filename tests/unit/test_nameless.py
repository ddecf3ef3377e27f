"""Tables that can't have the names they need: what is noted of them, and who is told."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from columns import column
from least_config import load_with
from shipment import SHIPMENT, Render, insert, renderer_in

from firebird_cdc.config import load_config
from firebird_cdc.journal.events.bad_event import BadEvent, NamelessEvent
from firebird_cdc.journal.events.render import JournalRenderer, Renderer
from firebird_cdc.journal.events.topics import BadName, TopicNames
from firebird_cdc.journal.folder.notes import LeftOut
from firebird_cdc.journal.format import JournalReader, JournalWriter, RowChange, Storage
from firebird_cdc.journal.shipper.delivery.send import seen_of
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.nameless import (
    NamelessTable,
    NamelessTables,
    NamelessWatch,
    troubles_of,
)
from firebird_cdc.journal.shipper.quarantine import Quarantine, remove_files

DATABASE = "/srv/a.fdb"


@pytest.fixture
def render(tmp_path: Path) -> Render:
    return renderer_in(tmp_path)


class Folder:
    """A journal folder with a quarantine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.quarantine = Quarantine(path)

    def set_aside(self, sequence: int, *tables: str, why: str = "a shared topic") -> Entry:
        """A journal with an event of each of TABLES, which have no names."""
        entry = Entry(0, sequence, uuid4())
        (self.path / entry.name).write_bytes(b"journal")
        for number, table in enumerate(tables, 1):
            what = [(f"table {table}", b"key")]
            assert self.quarantine.leave_out(entry, DATABASE, number, why, what, table)
        assert self.quarantine.keep([entry]) == [entry]
        (self.path / entry.name).unlink()
        return entry

    def remove(self, uuid: UUID) -> None:
        """As ``journal discard`` does beside a shipper."""
        remove_files(self.quarantine.folder, uuid)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_tables_are_counted_until_nothing_of_them_lies_there(folder: Folder) -> None:
    tables = NamelessTables(folder.path)
    assert tables.look() == []
    first = folder.set_aside(1, "A", "B")
    second = folder.set_aside(2, "A")
    assert tables.look() == [
        NamelessTable(DATABASE, "A", 2, "a shared topic"),
        NamelessTable(DATABASE, "B", 1, "a shared topic"),
    ]
    assert NamelessTables(folder.path).look() == tables.look()  # as another process sees it
    folder.remove(first.uuid)
    assert [(each.table, each.journals) for each in tables.look()] == [("A", 1)]
    folder.quarantine.load()
    folder.quarantine.remove(second.uuid)
    assert tables.look() == []


def test_a_reason_is_told_to_its_end_which_says_what_to_do(folder: Folder) -> None:
    topics = TopicNames(load_with(folder.path, "topic.naming.strategy: table"))
    topics.remember_in(folder.path / "shared-topics")
    owner, database = (f"/{name * 120}/{name * 120}.fdb" for name in "ab")
    topics.of_table(owner, "A" * 63)
    with pytest.raises(BadName, match=r"remove its line .* and restart the shipper$") as raised:
        topics.of_table(database, "A" * 63)
    folder.set_aside(1, "A" * 63, why=str(raised.value))
    folder.set_aside(2, "B", why="b" * 5000)
    named, long = NamelessTables(folder.path).look()
    assert named.reason == str(raised.value)
    assert long.reason.endswith("bb...")


def test_a_change_in_the_same_moment_as_another_is_seen(folder: Folder) -> None:
    tables = NamelessTables(folder.path)
    folder.set_aside(1, "A")
    changed_ns = folder.quarantine.folder.stat().st_mtime_ns
    assert len(tables.look()) == 1
    folder.set_aside(2, "B")
    os.utime(folder.quarantine.folder, ns=(changed_ns, changed_ns))
    assert len(tables.look()) == 2


def test_table_fully_sent_by_a_retry_is_no_longer_reported(folder: Folder) -> None:
    entry = folder.set_aside(1, "A", "B")
    tables = NamelessTables(folder.path)
    assert len(tables.look()) == 2
    note = folder.quarantine.find(entry.uuid)
    assert note is not None
    note.left_out = [LeftOut(2, 2, 0)]
    folder.quarantine.update(note)
    assert [each.table for each in tables.look()] == ["B"]


def test_note_without_its_journal_or_of_another_version_is_ignored(
    folder: Folder,
) -> None:
    entry, damaged = folder.set_aside(1, "A"), folder.set_aside(2, "B")
    (folder.quarantine.folder / entry.name).unlink()
    (folder.quarantine.folder / f"{damaged.uuid}.json").write_text("{}")
    assert NamelessTables(folder.path).look() == []


def test_statistics_report_a_table_without_a_topic_until_it_is_resolved(folder: Folder) -> None:
    statistics = Statistics()
    watch = NamelessWatch(folder.path, statistics)
    watch.turn(0.0)
    assert statistics.troubles == {}
    entry = folder.set_aside(1, "Товары")
    assert watch.turn(0.0) >= 1.0
    [trouble] = statistics.troubles.values()
    assert trouble.kind == "warning"  # other tables go on
    assert "table Товары in /srv/a.fdb is not delivered, events of it in 1 journal" in trouble.text
    assert "a shared topic. To have them sent before newer events, stop the shipper" in trouble.text
    assert statistics.database(DATABASE).nameless == 1
    [told] = troubles_of(folder.path, 7)
    assert (told["text"], told["since_us"]) == (trouble.text, 7)
    folder.remove(entry.uuid)
    watch.turn(0.0)
    assert statistics.troubles == {}
    assert statistics.database(DATABASE).nameless == 0


def test_events_left_out_by_one_attempt_are_forgotten_by_the_next(folder: Folder) -> None:
    entry = Entry(0, 1, uuid4())
    (folder.path / entry.name).write_bytes(b"journal")
    assert folder.quarantine.leave_out(entry, DATABASE, 3, "x", [("table A", b"k")], "A")
    assert folder.quarantine.watches_tables
    folder.quarantine.begin(entry.uuid, 0)
    assert not folder.quarantine.watches_tables
    assert folder.quarantine.leave_out(entry, DATABASE, 3, "too large", [("t", b"k")])
    folder.quarantine.keep([entry])
    assert NamelessTables(folder.path).look() == []


def test_tables_are_watched_for_after_a_restart_too(folder: Folder) -> None:
    folder.set_aside(1, "A")
    again = Quarantine(folder.path)
    again.load()
    assert again.watches_tables
    assert not Quarantine(folder.path).watches_tables


def journal_with(
    tmp_path: Path, render: Render, *lines: str
) -> tuple[JournalRenderer, list[RowChange]]:
    """The renderer of a journal with an insert, an update of the key and a keyless insert."""
    keyless = (column("N", Storage.BIGINT),)

    def fill(writer: JournalWriter) -> None:
        table = writer.table("T", SHIPMENT[:2])
        writer.insert(table, (1, "a"))
        writer.update(table, (1, "a"), (2, "a"))
        writer.insert(writer.table("K", keyless), (1,))

    render(fill, *lines)
    renderer = Renderer(load_config(tmp_path / "reddatabase.connector.yaml"), 1_000_000)
    [path] = tmp_path.glob("*.log")
    with JournalReader(path) as reader:
        assert reader.stamp is not None
        changes = [change for change in reader.changes() if isinstance(change, RowChange)]
        return renderer.journal(reader.header, reader.stamp, reader.database), changes


def test_events_are_identified_by_table_and_key_under_any_topic_name(
    tmp_path: Path, render: Render
) -> None:
    place = "table T of /srv/fb/warehouse.fdb"
    for encoding in ("replace", "escape"):
        journal, changes = journal_with(tmp_path, render, f"topic.name.encoding: {encoding}")
        assert [journal.by_table(change) for change in changes] == [
            [(place, b'{"SHIPMENT_ID":1}')],
            [(place, b'{"SHIPMENT_ID":1}'), (place, b'{"SHIPMENT_ID":2}')],
            [("table K of /srv/fb/warehouse.fdb", None)],
        ]


def test_with_another_message_key_the_whole_table_counts(tmp_path: Path, render: Render) -> None:
    lines = r"message.key.columns: '.*\.T:CARRIER'"
    journal, changes = journal_with(tmp_path, render, lines)
    assert journal.by_table(changes[0]) == "table T of /srv/fb/warehouse.fdb"
    quarantine = Quarantine(tmp_path)
    assert seen_of(quarantine, journal, changes[0], []) == []
    entry = Entry(0, 1, uuid4())
    quarantine.leave_out(entry, DATABASE, 1, "x", journal.by_table(changes[0]), "T")
    [seen] = seen_of(quarantine, journal, changes[0], [])
    assert seen.topic == "table T of /srv/fb/warehouse.fdb"


def test_naming_faults_are_distinguished_from_faults_of_single_events(render: Render) -> None:
    columns = (SHIPMENT[0], column("A$", Storage.TEXT), column("A#", Storage.TEXT))
    with pytest.raises(NamelessEvent, match="would share the field") as told:
        render(insert(1, "x", "x", columns=columns), "field.name.adjustment.mode: avro")
    assert told.value.table == "SHIPMENT"
    with pytest.raises(BadEvent) as caught:
        render(insert(float("nan"), columns=(column("D", Storage.DOUBLE, 1),)))
    assert not isinstance(caught.value, NamelessEvent)
