"""Content of a repair: which events go as they are, and of which keys the current state."""

from __future__ import annotations

import sqlite3
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow
import pyarrow.parquet
import pytest
from columns import column

from firebird_cdc.config import load_config
from firebird_cdc.journal.folder.segments import database_digest
from firebird_cdc.journal.format import (
    Blob,
    DdlChange,
    JournalReader,
    JournalWriter,
    RowChange,
    Storage,
    Table,
    TableChange,
    TableState,
    Undecodable,
)
from firebird_cdc.journal.replay.repair import plan as repair_plan
from firebird_cdc.journal.replay.repair.findings import read_ends, read_findings
from firebird_cdc.journal.replay.repair.keys import Keys
from firebird_cdc.journal.replay.repair.plan import Plan
from firebird_cdc.journal.replay.repair.scanner import Scanner
from firebird_cdc.journal.shipper.repairs import RepairFolder, RepairPoint, RepairWriter
from firebird_cdc.journal.shipper.snapshots.state import SeenSet, SnapshotState, StateFolder

DATABASE = "/data/shop.fdb"
ITEM = (column("ID", Storage.BIGINT, 1), column("NAME", Storage.TEXT))


class History:
    """Journals in an archive, and a folder that shipped them."""

    def __init__(self, tmp_path: Path) -> None:
        self.archive = tmp_path / "archive"
        self.journals = tmp_path / "journals"
        for folder in (self.archive, self.journals / ".firebird-cdc"):
            folder.mkdir(parents=True)
        self.paths: dict[int, Path] = {}
        path = tmp_path / "connector.yaml"
        path.write_text(
            "connector.name: shop\nkafka.topic.prefix: shop\n"
            "kafka.producer.bootstrap.servers: 127.0.0.1:1\n"
            f"connector.journal.directory: {self.journals}\n"
            f"connector.journal.archive.directory: {self.archive}\n"
        )
        self.config = load_config(path)
        self.files = RepairFolder(self.journals)
        self.files.make()

    def commit(self, *changes: tuple[Any, ...]) -> None:
        sequence = len(self.paths) + 1
        uuid = uuid4()
        path = self.paths[sequence] = self.archive / f"{uuid}.log"
        with JournalWriter(path, uuid=uuid, transaction=7, database=DATABASE) as writer:
            table = writer.table("ITEM", ITEM)
            for op, *rows in changes:
                {"c": writer.insert, "u": writer.update, "d": writer.delete}[op](table, *rows)
            writer.seal()
            writer.commit(sequence, sequence * 1_000_000)
            writer.stamp(sequence)

    def pack(self, first: int, last: int) -> None:
        """Have journals in a segment."""
        name = f"{database_digest(DATABASE)}-0-{first}-{last}.zip"
        with zipfile.ZipFile(self.archive / name, "w") as segment:
            for sequence in range(first, last + 1):
                segment.write(self.paths[sequence], self.paths[sequence].name)
                self.paths[sequence].unlink()

    def plan(self) -> Plan:
        return Plan(self.config, [str(self.journals), str(self.archive)], str(self.archive))

    def findings(self, *places: tuple[int, int]) -> list[dict[str, Any]]:
        return [
            {
                "kind": "missing event",
                "database": DATABASE,
                "epoch": 0,
                "sequence": sequence,
                "position": pos,
                "file": str(self.paths[sequence]),
            }
            for sequence, pos in places
        ]


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> History:
    monkeypatch.setattr(repair_plan, "events_since", lambda *_: iter(()))
    return History(tmp_path)


Made = tuple[str, str, dict[str, Any], list[tuple[int, int]]]


def batches(history: History, plan: Plan, token: RepairPoint) -> Iterator[list[Made]]:
    """Yield the content of each repair: kind, operation, row, and what it stands for."""
    plan.locate(DATABASE, token, {})
    scanner = plan.scanner(DATABASE)
    scanner.read(token)
    plan.decide(DATABASE, scanner)
    while (batch := plan.next_batch(DATABASE, token, scanner, history.files)) is not None:
        repair = batch.repair
        history.files.publish(repair)
        assert history.files.read(repair.uuid) == repair
        made = []
        with JournalReader(history.files.journal(repair.uuid)) as reader:
            assert reader.stamp is not None
            assert reader.stamp.sequence == repair.as_of.sequence
            for change in reader.changes():
                assert isinstance(change, RowChange)
                row = change.after or change.before
                kind = "original" if repair.is_original(change.pos) else "state"
                places = [
                    (repair.origins[each.origin].sequence, each.pos)
                    for each in repair.events[change.pos - 1]
                ]
                assert row is not None
                made.append((kind, change.op, dict(zip(("ID", "NAME"), row, strict=True)), places))
        plan.sent(batch)
        yield made


def test_batches_are_bounded_and_packed_journals_found(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair_plan, "MOST_EVENTS", 2)
    monkeypatch.setattr(repair_plan, "MOST_NAMED", 2)
    history.commit(*(("c", (number, "a")) for number in range(1, 6)))
    for before, after in ("ab", "bc", "cd", "de"):
        history.commit(("u", (1, before), (1, after)))
    history.commit(("d", (2, "a")))
    history.pack(1, 2)
    history.pack(5, 6)
    places = [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (2, 1), (3, 1)]
    folder = tmp_path / "audit" / "findings"
    folder.mkdir(parents=True)
    table = pyarrow.Table.from_pylist([*history.findings(*places), {"kind": "order"}])
    pyarrow.parquet.write_table(table, folder / "part-0.parquet")
    (tmp_path / "audit/report.json").write_text(
        '{"facts": {"kafka": {"offsets": {"t": {"0": 7}}}}}'
    )
    assert read_ends(str(tmp_path / "audit")) == {"t": {"0": 7}}
    with history.plan() as plan:
        assert plan.add(read_findings(str(tmp_path / "audit"))) == 7
        found = list(batches(history, plan, RepairPoint(0, 6)))
        assert plan.counts() == {"original": 3, "state": 4}
    assert found == [
        [
            ("original", "c", {"ID": 3, "NAME": "a"}, [(1, 3)]),
            ("original", "c", {"ID": 4, "NAME": "a"}, [(1, 4)]),
        ],
        [("original", "c", {"ID": 5, "NAME": "a"}, [(1, 5)])],
        [
            ("state", "c", {"ID": 1, "NAME": "e"}, [(1, 1), (2, 1)]),
            ("state", "d", {"ID": 2, "NAME": "a"}, [(1, 2)]),
        ],
        [("state", "c", {"ID": 1, "NAME": "e"}, [(3, 1)])],
    ]


def test_repaired_state_is_that_of_shipped_journals_without_the_backlog(history: History) -> None:
    history.commit(("c", (1, "a")))
    history.commit(("u", (1, "a"), (1, "b")))
    history.commit(("u", (1, "b"), (1, "c")))
    waiting = history.journals / history.paths[3].name
    history.paths[3].rename(waiting)
    with history.plan() as plan:
        plan.add(history.findings((1, 1)))
        (made,) = batches(history, plan, RepairPoint(0, 2))
    assert made == [("state", "c", {"ID": 1, "NAME": "b"}, [(1, 1)])]


def test_change_that_the_initial_snapshot_has_is_not_sent(history: History) -> None:
    """Though an audit that did not know of the snapshot has called it missing."""
    history.commit(("c", (1, "a")))
    state = SnapshotState(DATABASE, seen=SeenSet(0, 7, [], [], [], ["ITEM"]))
    StateFolder(history.journals).write(state)
    with history.plan() as plan:
        plan.add(history.findings((1, 1)))
        plan.locate(DATABASE, RepairPoint(0, 1), {})
        ((*_, status, why, _),) = plan.results()
    assert (status, why) == ("failed", "the initial snapshot has it in its rows")


def test_copy_of_an_event_is_the_event_byte_by_byte(history: History, tmp_path: Path) -> None:
    none = {"charset_id": 0}
    columns = (
        column("ID", Storage.BIGINT, 1),
        column("OLD", Storage.TEXT, **none),
        column("PAD", Storage.PADDED_TEXT, char_length=5, **none),
        column("DOC", Storage.BLOB, sub_type=1, sql_type=261),
        column("N", Storage.INT128),
    )
    journal = tmp_path / "any.log"
    russian = "\u043e\u0439".encode("cp1251")
    with JournalWriter(journal, database=DATABASE) as writer:
        table = writer.table("DOC", columns, resolved=False)
        text = Undecodable(russian, 0)
        blob = writer.blob(b"first" * 10_000)
        writer.insert(table, (1, text, text, blob, -(1 << 100)))
        old, new = writer.blob(b"old"), writer.blob(b"cut", available=False)
        writer.update(table, (1, text, None, old, 5), (1, "x", "y", new, None))
        writer.ddl("CREATE TABLE NEXT (ID INT)")
        writer.delete(table, (1, "x", "y", None, None))
        writer.seal()
        complete = Table(table.number, "DOC", 1, columns)
        made = Table(0, "NEXT", 1, ITEM)
        state = TableState(made, "UTF8", (False, False), (None, None))
        writer.complete([complete], {3: [TableChange("CREATE", "NEXT", state)]})
        writer.commit(1, 1)
        writer.stamp(1)
    with (
        RepairWriter(history.files, UUID(int=5), DATABASE, RepairPoint(0, 1)) as copy,
        JournalReader(journal) as reader,
    ):
        for change in reader.changes():
            assert isinstance(change, RowChange | DdlChange)
            copy.copy(change)
        copy.finish(1)

    def content(path: Path) -> list[Any]:
        found: list[Any] = []
        with JournalReader(path, "WIN1251") as reader:
            for change in reader.changes():
                if isinstance(change, RowChange):
                    rows = [
                        row and [(v.read(), v.available) if isinstance(v, Blob) else v for v in row]
                        for row in (change.before, change.after)
                    ]
                    found.append((change.pos, change.op, change.table.columns, rows))
                else:
                    found.append(change)
        return found

    copied = content(history.files.journal(UUID(int=5)))
    assert copied == content(journal)
    assert copied[0][3][1][1] == "\u043e\u0439"
    # What is not finished leaves nothing.
    with RepairWriter(history.files, UUID(int=6), DATABASE, RepairPoint(0, 1)):
        pass
    assert not history.files.journal(UUID(int=6)).exists()
    history.files.tidy()  # nor does one whose command was killed
    assert not history.files.journal(UUID(int=5)).exists()


def test_message_key_of_the_options_is_the_key(history: History, tmp_path: Path) -> None:
    path = tmp_path / "connector.yaml"
    path.write_text(path.read_text() + "message.key.columns: .*ITEM:NAME\n")
    history.config = load_config(path)
    history.commit(("c", (1, "a")), ("c", (2, "b")))
    history.commit(("c", (3, "a")))
    with history.plan() as plan:
        plan.add(history.findings((1, 1), (1, 2)))
        found = list(batches(history, plan, RepairPoint(0, 2)))
    assert found == [
        [("original", "c", {"ID": 2, "NAME": "b"}, [(1, 2)])],
        [("state", "c", {"ID": 3, "NAME": "a"}, [(1, 1)])],
    ]


@pytest.mark.parametrize(
    ("skipped", "made"),
    [
        ("u", ("state", "d", {"ID": 1, "NAME": "a"}, [(1, 1)])),
        ("c,u", ("original", "d", {"ID": 1, "NAME": "a"}, [(1, 1)])),
        ("d", ("original", "c", {"ID": 1, "NAME": "a"}, [(1, 1)])),
    ],
)
def test_key_that_changed_is_newer_in_kafka_if_its_delete_is_sent(
    history: History, tmp_path: Path, skipped: str, made: Made
) -> None:
    path = tmp_path / "connector.yaml"
    path.write_text(f"{path.read_text()}skipped.operations: {skipped}\n")
    history.config = load_config(path)
    first = ("d" if "c" in skipped else "c", (1, "a"))
    history.commit(first)
    history.commit(("u", (2 if "c" in skipped else 1, "a"), (1 if "c" in skipped else 2, "a")))
    with history.plan() as plan:
        plan.add(history.findings((1, 1)))
        assert list(batches(history, plan, RepairPoint(0, 2))) == [[made]]


def test_only_the_delete_of_a_changed_key_is_repaired_without_creates(
    history: History, tmp_path: Path
) -> None:
    path = tmp_path / "connector.yaml"
    path.write_text(f"{path.read_text()}skipped.operations: c\n")
    history.config = load_config(path)
    history.commit(("u", (1, "a"), (2, "a")))
    history.commit(("u", (2, "a"), (2, "b")))
    with history.plan() as plan:
        plan.add(history.findings((1, 1)))
        found = list(batches(history, plan, RepairPoint(0, 2)))
    assert found == [[("original", "u", {"ID": 2, "NAME": "a"}, [(1, 1)])]]


def test_gap_between_distant_epochs_is_found_at_once(history: History) -> None:
    """As after a loss of the ledger, where an epoch may be a time."""
    first, last = RepairPoint(1, 5), RepairPoint(1_800_000_000, 3)
    keys = Keys(history.config, DATABASE)
    scanner = Scanner(sqlite3.connect(":memory:"), keys, DATABASE, first, [])
    scanner.as_of = last
    found = scanner.last_hole()
    assert found is not None
    assert found[0][:2] == last[:2]
    scanner._mark(RepairPoint(1, 5))
    scanner._mark(RepairPoint(1, 7))
    for sequence in (1, 2, 3):
        scanner._mark(RepairPoint(last.epoch, sequence))
    found = scanner.last_hole()
    assert found is not None
    assert found[0][:2] == (1, 6)
