"""Journals that transactions share are replayed as those with one transaction each."""

from __future__ import annotations

import random
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from histories import Action, History, SharedHistory, column, flip, read_state

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.folder.segments import close_segments, segment_name
from firebird_cdc.journal.format import SharedJournal, Storage
from firebird_cdc.journal.replay.audit.folders import AuditFolders
from firebird_cdc.journal.replay.audit.journals import run_audit
from firebird_cdc.journal.replay.local.session import LocalSession
from firebird_cdc.journal.replay.source.changes import CHANGE_COLUMNS, read_changes
from firebird_cdc.journal.replay.source.filters import EVERYTHING, Condition
from firebird_cdc.journal.replay.source.planning import (
    JournalOptions,
    JournalPartition,
    divide_journals,
    find_journals,
    plan_partitions,
)
from firebird_cdc.journal.replay.source.points import Point
from firebird_cdc.journal.replay.source.readers import FileReader, ShapeReader
from firebird_cdc.journal.replay.source.storage import Folder
from firebird_cdc.journal.replay.source.streaming import JournalStreamReader, Offset, StreamOptions
from firebird_cdc.journal.replay.state.rebuild import rebuild_state
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.quarantine import Quarantine
from firebird_cdc.journal.shipper.tasks.archive import ArchiveKeeper, Retention

TRANSACTIONS = 150


def _actions(number: int, rng: random.Random) -> list[Action]:
    rows = 400 if number % 40 == 7 else rng.randint(1, 3)
    found: list[Action] = [("c", "T", None, (number * 1000 + row, "x" * 50)) for row in range(rows)]
    if number % 3 == 0:
        found.append(("u", "T", (number * 1000, "x" * 50), (number * 1000, "changed")))
    if number % 50 == 9:
        found.append(("ddl", f"create table T{number} (ID integer)", None, None))
    return found


def _fill(history: History) -> None:
    rng = random.Random(3)
    history.define("T", (column("ID", Storage.INTEGER, key=1), column("NAME", Storage.TEXT)))
    for number in range(TRANSACTIONS):
        history.commit(*_actions(number, rng))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same history with one transaction in each journal, and with many."""
    single, shared = (tmp_path_factory.mktemp(name) for name in ("single", "shared"))
    _fill(History(single, block_bytes=4096))
    history = SharedHistory(shared, block_bytes=4096)
    _fill(history)
    history.close()
    assert len(list(shared.glob("*.log"))) < 12
    return single, shared


def _rows(batches: Iterable[Any], without: Iterable[str] = ()) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if name not in without}
        for batch in batches
        for row in batch.to_pylist()
    ]


def _options(folder: Path, **more: str) -> JournalOptions:
    return JournalOptions.parse({"path": str(folder), **more})


def _changes(folder: Path, wanted: Any = EVERYTHING, **more: str) -> list[dict[str, Any]]:
    options = _options(folder, **more)
    columns = tuple(name for name, _ in CHANGE_COLUMNS)
    rows = [
        row
        for part in plan_partitions(options, split=True)
        for row in _rows(read_changes(part, options, columns, wanted), without=["file"])
    ]
    return sorted(rows, key=lambda row: (row["sequence"] or 0, row["position"] or 0))


@pytest.mark.parametrize("partition_bytes", ["1000000000", "100000", "20000"])
def test_changes_are_the_same_however_the_tasks_are_cut(
    folders: tuple[Path, Path], partition_bytes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firebird_cdc.journal.replay.source.planning._LEAST_BYTES", 5000)
    single, shared = folders
    expected = _changes(single)
    assert len(expected) > 1500
    found = _changes(shared, partitionBytes=partition_bytes)
    assert found == expected


def test_files_and_shapes_are_those_of_single_transactions(folders: tuple[Path, Path]) -> None:
    for reader in (FileReader, ShapeReader):
        read = []
        for folder in folders:
            made = reader(_options(folder, minPartitions="1"))
            rows = [row for part in made.partitions() for row in _rows(made.read(part))]
            for row in rows:
                row.pop("file", None)
                row.pop("size", None)
                row.pop("length", None)
            read.append(sorted(rows, key=repr))
        assert read[0] == read[1]
        assert read[0]


def test_rows_name_the_transaction_in_its_journal(folders: tuple[Path, Path]) -> None:
    _, shared = folders
    options = _options(shared)
    (part, *_) = plan_partitions(options, split=False)
    found = next(iter(find_journals(part, options)))
    assert found.place.startswith(f"{shared}/")
    assert found.place.endswith(f".log/{found.stamped()[0].header.uuid}.log")


def test_a_range_of_the_history_opens_no_other_transaction(folders: tuple[Path, Path]) -> None:
    single, shared = folders
    options = _options(shared, fromSequence="20", toSequence="30")
    found = [
        found.stamped()[1].sequence
        for part in plan_partitions(options, split=False)
        for found in find_journals(part, options, options.wanted)
    ]
    assert sorted(found) == list(range(20, 31))
    wanted = EVERYTHING.and_also([Condition("sequence", "eq", 25)])
    assert _changes(shared, wanted) == _changes(single, wanted)


def test_single_transactions_are_read_by_their_names(folders: tuple[Path, Path]) -> None:
    _, shared = folders
    options = _options(shared)
    every = [
        (found.name, found.stamped()[1].sequence)
        for part in plan_partitions(options, split=False)
        for found in find_journals(part, options)
    ]
    some = every[::7]
    parts = divide_journals([(0, name, 500) for name, _ in some], options)
    read = [
        (found.name, found.stamped()[1].sequence)
        for part in parts
        for found in find_journals(part, options)
    ]
    assert sorted(read) == sorted(some)


@pytest.mark.parametrize("most", [100, 1])
def test_transactions_in_the_order_of_the_history_open_each_journal_once(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Two journals in turn; where there is room for one only, they are opened again."""
    _, shared = folders
    options = _options(shared)
    every = sorted(
        (found.stamped()[1].sequence, found.name)
        for part in plan_partitions(options, split=False)
        for found in find_journals(part, options)
    )
    opened: list[str] = []
    real = Folder.open_journal

    def counted(folder: Folder, name: str, none_charset: str = "UTF-8") -> Any:
        opened.append(name)
        return real(folder, name, none_charset)

    monkeypatch.setattr(Folder, "open_journal", counted)
    monkeypatch.setattr("firebird_cdc.journal.replay.source.planning._MOST_KEPT", most)
    part = JournalPartition.of_journals((0, name) for _, name in every)
    read = [(each.stamped()[1].sequence, each.name) for each in find_journals(part, options)]
    assert read == every
    assert set(opened) == {path.name for path in shared.glob("*.log")}
    assert (len(opened) == len(set(opened))) is (most > 1)


def test_packed_journals_are_read_in_their_segment(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    single, shared = folders
    segment = tmp_path / f"{segment_name('/data/shop.fdb', 0, 1, TRANSACTIONS)}.zip"
    with zipfile.ZipFile(segment, "w") as content:
        for path in sorted(shared.glob("*.log")):
            content.write(path, path.name)
    try:
        assert _changes(tmp_path) == _changes(single)
    finally:
        close_segments()


def test_damage_to_one_transaction_is_reported_for_it_alone(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    single, shared = folders
    for path in shared.glob("*.log"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    hurt = next(iter(sorted(tmp_path.glob("*.log"))))
    with SharedJournal(hurt) as journal:
        place = journal.places[3]
    flip(hurt, place.offset + 200)
    expected = [row for row in _changes(single) if row["sequence"] != place.stamp.sequence]
    found = _changes(tmp_path, onDamage="report")
    assert [row for row in found if row["operation"] != "damaged"] == expected
    (damaged,) = (row for row in found if row["operation"] == "damaged")
    assert damaged["sequence"] == place.stamp.sequence
    assert damaged["journal"] == str(place.uuid)
    flip(hurt, place.offset + 200)
    flip(hurt, place.offset + 20)  # of its head
    rows = [
        row
        for part in FileReader(_options(tmp_path)).partitions()
        for row in _rows(FileReader(_options(tmp_path)).read(part))
    ]
    (told,) = (row for row in rows if row["problem"] is not None)
    assert (told["sequence"], told["problem"]) == (place.stamp.sequence, "damaged")


def test_stream_reads_each_transaction_of_a_shared_journal_once_and_in_order(
    folders: tuple[Path, Path],
) -> None:
    _, shared = folders
    options = StreamOptions.parse({"path": str(shared), "maxJournalsPerTrigger": "40"})
    reader = JournalStreamReader(options, ("sequence", "position"))
    offset: Offset = {}
    numbers: list[int] = []
    for batch_size in (40, 40, 40, 30, 0):
        end = reader.latestOffset()
        rows = [row for part in reader.partitions(offset, end) for row in _rows(reader.read(part))]
        met = list(dict.fromkeys(row["sequence"] for row in rows))
        assert len(met) == batch_size
        numbers += sorted(met)
        offset = end
    assert numbers == list(range(1, TRANSACTIONS + 1))


def test_audit_and_state_of_shared_journals_are_those_of_single_ones(
    here: LocalSession, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    audits, states = [], []
    for folder in folders:
        with run_audit(here, [str(folder)]) as report:
            audits.append((report.kinds, report.counts, report.proven, report.spans))
        output = tmp_path / folder.name
        rebuild_state(here, [str(folder)], str(output), output_format="json")
        states.append(read_state(output))
    assert audits[0] == audits[1]
    assert states[0] == states[1]
    assert sum(states[0]["T"].values()) > 1000


def test_transaction_of_a_shared_journal_that_is_in_the_quarantine_too_counts_once(
    here: LocalSession, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    single, shared = folders
    live, archive = tmp_path / "journals", tmp_path / "archive"
    for path in shared.glob("*.log"):
        for folder in (live, archive):
            folder.mkdir(exist_ok=True)
            (folder / path.name).write_bytes(path.read_bytes())
    with SharedJournal(path) as journal:
        left_out = journal.places[3]
    entry = Entry(*left_out.stamp[:2], left_out.uuid, UUID(path.stem), left_out)
    quarantine = Quarantine(live)
    assert quarantine.leave_out(entry, "/srv/db.fdb", 1, "it is too large", [("t", b"1")])
    assert quarantine.keep([entry]) == [entry]
    for path in live.glob("*.log"):
        path.unlink()
    aside = str(quarantine.folder)
    read = (str(live), aside, str(archive))
    with run_audit(here, AuditFolders(read, quarantine=(aside,))) as report:
        assert report.kinds == {"quarantined": 1}
        assert "it is too large; not sent: events 1" in report.shown[0].what
        found = report.counts
    with run_audit(here, [str(single)]) as report:
        assert found == report.counts


def test_audit_names_the_transaction_that_is_damaged_and_no_other(
    here: LocalSession, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    _, shared = folders
    for path in shared.glob("*.log"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    hurt = sorted(tmp_path.glob("*.log"))[1]
    with SharedJournal(hurt) as journal:
        place = journal.places[5]
    flip(hurt, place.offset + 250)
    with run_audit(here, [str(tmp_path)]) as report:
        faults = [each for each in report.shown if report.meanings[each.kind].is_fault]
        assert len(faults) == 1
        assert str(place.uuid) in str(faults[0])


@pytest.mark.parametrize("at", [20, 250, -20])  # in its head, its block and its seal
def test_state_refuses_damage_to_a_small_transaction_unless_it_lies_behind_the_point(
    here: LocalSession, tmp_path: Path, at: int
) -> None:
    history = SharedHistory(tmp_path / "journals")
    history.define("T", (column("ID", Storage.INTEGER, key=1), column("NAME", Storage.TEXT)))
    for number in range(1, 31):
        history.commit(("c", "T", None, (number, "x" * 50)))
    history.close()
    hurt, place = next(
        (path, place)
        for path in history.folder.glob("*.log")
        for place in SharedJournal(path).places
        if place.stamp.sequence == 15
    )
    flip(hurt, place.offset + at % place.stamp.journal_length)
    output = tmp_path / "state"
    for point in (None, Point("sequence", 20)):
        with pytest.raises(ReplayError, match=f"{place.uuid}.log.*across a damaged journal"):
            rebuild_state(here, [str(history.folder)], str(output), point=point)
    report = rebuild_state(
        here, [str(history.folder)], str(output), point=Point("sequence", 14), output_format="json"
    )
    assert sum(read_state(output)["T"].values()) == 14
    assert report.whole
    is_read = at != -20  # no further than to the seal
    assert sum(str(place.uuid) in note for note in report.notes) == is_read


def test_archived_shared_journals_are_packed_without_what_was_rolled_back(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    single, shared = folders
    undone = b"was rolled back"
    for path in shared.glob("*.log"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert any(undone in path.read_bytes() for path in tmp_path.glob("*.log"))
    ArchiveKeeper(tmp_path, 100_000, Retention(0, 0), Statistics()).look()
    assert not list(tmp_path.glob("*.log"))
    segments = sorted(tmp_path.glob("*.zip"))
    assert 1 < len(segments) < 12
    for segment in segments:
        with zipfile.ZipFile(segment) as content:
            for name in content.namelist():
                assert undone not in content.read(name)
    try:
        assert _changes(tmp_path) == _changes(single)
        wanted = EVERYTHING.and_also([Condition("sequence", "ge", 140)])
        assert _changes(tmp_path, wanted) == _changes(single, wanted)
    finally:
        close_segments()


def test_shared_journal_that_was_packed_and_not_removed_is_removed_later(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    _, shared = folders
    for path in shared.glob("*.log"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    keeper = ArchiveKeeper(tmp_path, 10**9, Retention(0, 0), Statistics())
    keeper.look()
    (segment,) = tmp_path.glob("*.zip")
    first = sorted(shared.glob("*.log"))[0]
    (tmp_path / first.name).write_bytes(first.read_bytes())
    keeper.look()
    assert list(tmp_path.iterdir()) == [segment]
