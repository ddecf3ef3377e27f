"""Journal folder, quarantine and archive are audited together: what is rightly gone is no loss, and
what is lost at either end of the history is found."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from histories import History, column, flip

sys.path.insert(1, str(Path(__file__).parents[1] / "engine"))

from capture import Capture
from effects import EFFECTS, assert_adds_up
from random_work import TABLES

from firebird_cdc.config import load_config
from firebird_cdc.demo.processes import Stack
from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.folder.disposal import dispose_shipped
from firebird_cdc.journal.folder.inventory import Incarnation
from firebird_cdc.journal.folder.journal_folder import JournalFolder as OpenFolder
from firebird_cdc.journal.folder.ledger import SequenceLedger
from firebird_cdc.journal.folder.ledger_lock import database_key
from firebird_cdc.journal.folder.ledger_records import LedgerEntry
from firebird_cdc.journal.folder.notes import Note
from firebird_cdc.journal.format import JournalReader, Storage, alone, open_any
from firebird_cdc.journal.format.layout import FILE_BLOCK
from firebird_cdc.journal.replay.audit.findings import Finding
from firebird_cdc.journal.replay.audit.folders import AuditFolders, folders_for
from firebird_cdc.journal.replay.audit.journals import run_audit
from firebird_cdc.journal.replay.audit.report import AuditReport
from firebird_cdc.journal.replay.local.session import LocalSession, local_session
from firebird_cdc.journal.shipper.kafka.offset_topic import Offset
from firebird_cdc.journal.shipper.local_offsets import Shipped

_T = (column("ID", Storage.INTEGER, key=1), column("N", Storage.INTEGER))
_WORK = Path(__file__).parents[1] / "engine/random_work.py"


class JournalFolder:
    """A journal folder with its own state, its quarantine and an archive, as a server keeps it."""

    def __init__(self, directory: Path, *, archives: bool = True, retention: str = "") -> None:
        self.live = directory / "journal"
        self.archive = directory / "archive"
        self.state = self.live / ".firebird-cdc"
        self.quarantine = self.state / "quarantine"
        for folder in (self.quarantine, self.state / "databases"):
            folder.mkdir(parents=True)
        self.memory = Shipped(self.live, "positions", self.archive if archives else None)
        kept = f"connector.journal.archive.directory: {self.archive}\n" if archives else ""
        file = directory / "connector.yaml"
        file.write_text(
            f"connector.name: test\nconnector.journal.directory: {self.live}\n{kept}{retention}"
            "kafka.topic.prefix: t\nkafka.producer.bootstrap.servers: 127.0.0.1:1\n",
            encoding="utf-8",
        )
        self.config = load_config(file)

    def commit(self, name: str, journals: int) -> History:
        """Write and number JOURNALS transactions of a database, each an update of one row."""
        history = History(self.live, database=f"/data/{name}.fdb")
        history.define("T", _T)
        history.commit(("c", "T", None, (1, 0)))
        for number in range(1, journals):
            history.commit(("u", "T", (1, number - 1), (1, number)))
        folder = OpenFolder(self.live, writes=False)
        ledger = SequenceLedger(folder, database_key(history.database), False, lambda: None)
        stamps = []
        for path in history.paths:
            with JournalReader(path) as reader:
                assert reader.stamp is not None
                stamps.append(LedgerEntry(reader.header.uuid, reader.stamp))
        with ledger.exclusive():
            ledger.incarnation = Incarnation(uuid4(), (1, 2), 3)
            ledger.record(stamps, journals)
        ledger.close()
        folder.close()
        return history

    def replace_database(self, history: History) -> None:
        """Have the database of HISTORY restored: its numbers begin in a new epoch."""
        folder = OpenFolder(self.live, writes=False)
        ledger = SequenceLedger(folder, database_key(history.database), False, lambda: None)
        with ledger.exclusive():
            ledger.begin_epoch(Incarnation(uuid4(), (1, 2), 4))
        ledger.close()
        folder.close()

    def ship(self, history: History, first: int, last: int, *, archives: bool = True) -> None:
        """Ship the journals FIRST to LAST, and dispose of them."""
        for number in range(first, last + 1):
            path = history.paths[number - 1]
            self.memory.note(
                Offset(history.database, 0, number, UUID(path.stem), 1, True, number, ())
            )
        self.memory.write()
        paths = history.paths[first - 1 : last]
        dispose_shipped(paths, self.archive if archives else None)

    def set_aside(self, history: History, number: int, note: Note | None, reason: str) -> None:
        """Move a journal into the quarantine."""
        path = history.paths[number - 1]
        for ending, content in ((".reason", reason.encode()), (".json", note and note.to_json())):
            if content is not None:
                (self.quarantine / f"{path.stem}{ending}").write_bytes(content)
        path.rename(self.quarantine / path.name)

    def archived(self, history: History, number: int) -> Path:
        """Return the path of a journal in the archive."""
        return self.archive / history.paths[number - 1].name

    @property
    def folders(self) -> AuditFolders:
        """Folders that an audit reads by the configuration alone."""
        return folders_for(None, self.config)


@dataclass
class Audited:
    """One audit of a folder with many databases, one case each."""

    report: AuditReport
    paths: dict[str, list[Path]]

    def found(self, name: str) -> list[Finding]:
        """The findings of a case: of its database, or of its files."""
        names = {path.name for path in self.paths[name]}
        return [
            each
            for each in self.report.shown
            if each.database == f"/data/{name}.fdb" or Path(each.file or "").name in names
        ]


def _note(history: History, number: int) -> Note:
    uuid = UUID(history.paths[number - 1].stem)
    note = Note(uuid, history.database, 0, number, 1)
    note.add(2, "too large")
    note.end_after(4, "the topic is gone")
    return note


def make_cases(directory: Path) -> tuple[JournalFolder, dict[str, list[Path]]]:
    """Make a journal folder with a database for each case; return the journals of each."""
    folder = JournalFolder(directory)
    made = {}

    def case(name: str, journals: int = 8, shipped: int = 5) -> History:
        made[name] = history = folder.commit(name, journals)
        folder.ship(history, 1, shipped)
        return history

    case("whole")
    history = case("aside")
    folder.set_aside(history, 6, _note(history, 6), "event 2 was left out: too large")
    history = case("undecided")
    undecided = History(folder.live, database=history.database, seed=2)
    undecided.define("T", _T)
    undecided.write(9, ("c", "T", None, (5, 5)))
    content = bytearray(undecided.paths[0].read_bytes())
    content[512:1536] = bytes(1024)
    undecided.paths[0].write_bytes(content)
    folder.set_aside(undecided, 1, None, "nobody knows")
    history.paths.append(undecided.paths[0])
    history = case("tail")
    history.paths[7].unlink()
    history = case("head")
    folder.archived(history, 1).unlink()
    history = case("pending")
    history.paths[7].rename(history.paths[7].with_suffix(".log.live"))
    history = case("pending-and-tail", 10)
    for number in (7, 9):
        history.paths[number - 1].rename(history.paths[number - 1].with_suffix(".log.live"))
    for number in (8, 10):
        history.paths[number - 1].unlink()
    history = case("former-epoch")
    folder.replace_database(history)
    history.paths[7].unlink()
    history = case("stamp")
    flip(folder.archived(history, 3), 1030)
    history = case("nothing-left")
    folder.archived(history, 3).write_bytes(b"")
    history = made["late-archive"] = folder.commit("late-archive", 8)
    folder.memory._archive = ""
    folder.ship(history, 1, 3, archives=False)
    folder.memory._archive = str(folder.archive)
    folder.ship(history, 4, 5)
    (folder.live / "server.log").write_text("not ours", encoding="utf-8")
    (folder.live / f"{uuid4()}.log.live").write_bytes(b"open")
    return folder, {name: history.paths for name, history in made.items()}


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    folder, paths = make_cases(tmp_path_factory.mktemp("folders"))
    with local_session() as session:
        return Audited(run_audit(session, folder.folders), paths)


EXPECTED = {
    "whole": [],
    "aside": [("quarantined", 6, None)],
    "undecided": [("quarantined", None, None)],
    "tail": [("missing", 8, 8)],
    "head": [("missing", 1, 1)],
    "pending": [],
    "pending-and-tail": [("missing", 8, 8), ("missing", 10, 10)],
    "former-epoch": [("missing", 8, 8)],
    "stamp": [("damaged", 3, None)],
    "nothing-left": [("torn", 3, None)],
    "late-archive": [],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_folder_quarantine_and_archive_make_one_history(audited: Audited, name: str) -> None:
    found = audited.found(name)
    assert [(each.kind, each.sequence, each.last_sequence) for each in found] == EXPECTED[name]


def test_report_gives_reasons_of_quarantined_journals_and_names_the_backlog(
    audited: Audited,
) -> None:
    (aside,) = audited.found("aside")
    assert "event 2 was left out: too large; not sent: events 2, all behind 4" in aside.what
    (undecided,) = audited.found("undecided")
    assert "is in the quarantine: nobody knows" in undecided.what
    assert any("(sequence 8) waits in" in remark for remark in audited.report.remarks)
    assert sum(each.kind == "foreign" for each in audited.report.shown) == 1
    (late,) = (each for each in audited.report.proven if "late-archive" in each)
    assert "sequence 4 to 8" in late
    assert audited.report.kinds == {
        "damaged": 1, "foreign": 1, "missing": 5, "quarantined": 2, "torn": 1,
    }  # fmt: skip


def test_shipped_journals_without_an_archive_are_not_missing(
    here: LocalSession, tmp_path: Path
) -> None:
    folder = JournalFolder(tmp_path, archives=False)
    history = folder.commit("shop", 9)
    folder.set_aside(history, 2, _note(history, 2), "too large")
    folder.ship(history, 1, 1, archives=False)
    folder.ship(history, 3, 5, archives=False)
    other = folder.commit("other", 4)
    other.paths[2].unlink()  # while number 1 waits: nobody has shipped it
    with run_audit(here, folder.folders) as report:
        faults = [(f.database, f.sequence) for f in report.shown if f.kind != "quarantined"]
        assert faults == [(other.database, 3)]
        assert any("no archive is kept" in remark for remark in report.remarks)
        (proven,) = (each for each in report.proven if "shop" in each)
        assert "sequence 6 to 9" in proven


def test_journals_that_the_shipper_did_not_find_are_missing_without_an_archive_too(
    here: LocalSession, tmp_path: Path
) -> None:
    folder = JournalFolder(tmp_path, archives=False)
    history = folder.commit("shop", 9)
    back = history.paths[5].read_bytes()
    folder.ship(history, 1, 4, archives=False)
    for number in (5, 6):
        history.paths[number - 1].unlink()
    folder.memory.miss(history.database, (0, 5), (0, 6))
    folder.ship(history, 7, 7, archives=False)
    with run_audit(here, folder.folders) as report:
        faults = [(f.kind, f.sequence, f.last_sequence) for f in report.shown]
        assert faults == [("missing", 5, 6)]
    (folder.quarantine / history.paths[5].name).write_bytes(back)
    with run_audit(here, folder.folders) as report:
        faults = [(f.kind, f.sequence, f.last_sequence) for f in report.shown]
        assert faults == [("missing", 5, 5), ("quarantined", 6, None)]


def test_archive_behind_a_link_is_the_one_that_journals_went_to(
    here: LocalSession, tmp_path: Path
) -> None:
    text = "connector.journal.archive.retention.ms: 86400000\n"
    folder = JournalFolder(tmp_path, retention=text)
    link = tmp_path / "link"
    link.symlink_to(folder.archive)
    history = folder.commit("shop", 9)
    folder.ship(history, 1, 7)
    for number in (1, 4):
        folder.archived(history, number).unlink()
    for config, missing in ((None, [1, 4]), (folder.config, [4])):
        folders = folders_for([str(folder.live), str(link)], config)
        with run_audit(here, folders) as report:
            assert [(f.kind, f.sequence) for f in report.shown] == [
                ("missing", number) for number in missing
            ]


def test_journals_of_an_archive_that_is_gone_are_missing(
    here: LocalSession, tmp_path: Path
) -> None:
    """Also where it is only not mounted; where nothing was put into it yet none is."""
    folder = JournalFolder(tmp_path)
    history = folder.commit("shop", 9)
    with run_audit(here, folder.folders) as report:
        assert report.sound
        assert any("is not there" in remark for remark in report.remarks)
    folder.ship(history, 1, 5)
    folder.archive.rename(tmp_path / "elsewhere")
    with run_audit(here, folder.folders) as report:
        faults = [(f.kind, f.sequence, f.last_sequence) for f in report.shown]
        assert faults == [("missing", 1, 5)]


def test_retention_takes_the_oldest_and_no_others(here: LocalSession, tmp_path: Path) -> None:
    text = "connector.journal.archive.retention.ms: 86400000\n"
    folder = JournalFolder(tmp_path, retention=text)
    history = folder.commit("shop", 9)
    folder.ship(history, 1, 9)
    for number in (1, 2, 3, 6):
        folder.archived(history, number).unlink()
    with run_audit(here, folder.folders) as report:
        assert [(f.kind, f.sequence) for f in report.shown] == [("missing", 6)]
        (proven,) = report.proven
        assert "sequence 4 to 9" in proven
        assert "of the 3 numbers before, journals were rightly removed" in proven


def test_real_journals_pass_and_each_of_many_faults_is_found_once(
    here: LocalSession, tmp_path: Path
) -> None:
    with Stack(tmp_path / "stack") as stack:
        capture = Capture(tmp_path, stack, {"ServerMode": "Super"})
        capture.options["connector.journal.transactions"] = "1"  # faults are put into their files
        capture.write_config()
        capture.install()
        capture.create(*TABLES, *EFFECTS)
        client = capture.client()
        assert client.perform(_WORK, "work", str(capture.database), "audit", 3, 20) == 3 * 20
        attachment = client.attach(capture.database)
        tables = {name: attachment.rows(name) for name in ("ITEM", "LOG_", "EFFECTS")}
        keys = {f'{{"ID":{key}}}' for key in assert_adds_up(capture.journals(), tables)}
        client.end()
        capture.end_clients()
    archive = tmp_path / "archive"
    in_order = sorted(capture.committed(), key=_sequence)
    dispose_shipped(in_order[: len(in_order) // 2], archive)
    folders = folders_for([str(archive), str(capture.journal_directory)], None)
    with run_audit(here, folders) as report:
        assert _kinds(report, keys) == {}
        (span,) = report.spans
        assert (span.first, span.last, span.journals) == (1, len(in_order), len(in_order))
    places = [archive / p.name if (archive / p.name).exists() else p for p in in_order]
    chance = random.Random(6)
    middle = len(places) // 2
    deleted = [places[3], places[middle + 3], places[-1]]
    # Beside a missing one, a journal whose number is damaged too would be one range with it.
    near = range(middle + 2, middle + 5)
    chosen = [places[index] for index in range(7, len(places) - 2, 4) if index not in near]
    expected = {}
    for place in chosen:
        flip(place, FILE_BLOCK + chance.randrange(_length(place)))
        expected[place.name] = "damaged"
    flip(places[4], chance.randrange(FILE_BLOCK))  # its header harms no transaction
    flip(places[5], -1 - chance.randrange(FILE_BLOCK))  # nor does one copy of its index
    _flip_behind(places[6])
    numbers = [places.index(place) + 1 for place in deleted]
    for place in deleted:
        place.unlink()
    with run_audit(here, folders) as report:
        damaged = {Path(row["file"]).name: row["kind"] for row in _rows(report, "damaged")}
        assert damaged == expected
        assert sorted(row["sequence"] for row in _rows(report, "missing")) == numbers
        assert _kinds(report, keys) == {"damaged": len(expected), "missing": len(numbers)}
        assert all(row["sequence"] is not None for row in _rows(report, "damaged"))


def _kinds(report: AuditReport, engines: set[str]) -> Counter[str]:
    """Return the number of findings of each kind, but for rows of ITEM with which the engine did
    something."""
    return Counter(
        row["kind"]
        for row in report.findings.collect()
        if not (row["table"] == "ITEM" and row["key"] in engines)
    )


def _sequence(path: Path) -> int:
    with alone(open_any(path)) as reader:
        assert reader.stamp is not None
        return reader.stamp.sequence


def _length(path: Path) -> int:
    with alone(open_any(path)) as reader:
        assert reader.stamp is not None
        return reader.stamp.journal_length


def _flip_behind(path: Path) -> None:
    """Change what lies behind a journal's end: nobody's business."""
    with path.open("ab") as file:
        file.write(b"slack")


def _rows(report: AuditReport, kind: str) -> Sequence[dict[str, object]]:
    return [row.asDict() for row in report.findings.where(f"kind = '{kind}'").collect()]


def test_foreign_and_unreadable_folders_say_so(here: LocalSession, tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("started", encoding="utf-8")
    with pytest.raises(ReplayError, match=r"foreign folder: none of its 1 files \*\.log"):
        run_audit(here, [str(tmp_path)])
    with pytest.raises(ReplayError, match="no folder of journals is named"):
        folders_for(None, None)
