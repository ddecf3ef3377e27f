"""The audit passes a sound folder and names every fault that is planted in one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest
from histories import DATABASE, FIRST_COMMIT_US, Action, History, column, flip

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.format import (
    JournalReader,
    SharedJournalWriter,
    Storage,
    TransactionWriter,
)
from firebird_cdc.journal.replay.audit.findings import JOURNAL_KINDS, Finding
from firebird_cdc.journal.replay.audit.journals import SHOWN_PER_KIND, run_audit
from firebird_cdc.journal.replay.audit.report import AuditReport
from firebird_cdc.journal.replay.audit.summary import describe
from firebird_cdc.journal.replay.local.session import LocalSession, local_session
from firebird_cdc.journal.replay.source.bounds import Bound

T = (column("ID", Storage.INTEGER, key=1), column("N", Storage.INTEGER))


def _ten_journals(folder: Path) -> History:
    """One row written by ten transactions, one key change among them; a database of its own."""
    history = History(folder, database=f"/data/{folder.name}.fdb", block_bytes=256)
    history.define("T", T)
    history.commit(("c", "T", None, (1, 1)))
    for number in range(2, 10):
        others = [("c", "T", None, (10 * number + n, 0)) for n in range(10)]
        history.commit(("u", "T", (1, number - 1), (1, number)), *others)
    history.commit(("u", "T", (1, 9), (2, 9)), ("c", "T", None, (1, 0)))
    return history


def _audit(here: LocalSession, folder: Path, **options: object) -> AuditReport:
    return run_audit(here, [str(folder)], **options)  # type: ignore[arg-type]


def _missing(history: History) -> str:
    for path in history.paths[3:6]:
        path.unlink()
    return "no journal has the sequence numbers 4 to 6 (3 journals) of epoch 0"


def _copied(history: History) -> str:
    history.paths[4].with_name("again.log").write_bytes(history.paths[4].read_bytes())
    return "again.log"


def _same_number(history: History) -> str:
    path = history.write(5, ("c", "T", None, (77, 1)))
    return path.name


def _flipped_row(history: History) -> str:
    with JournalReader(history.paths[4]) as reader:
        *_, last, _seal = reader.block_offsets()
    flip(history.paths[4], last + 44)
    return f"{history.paths[4].name} at byte {last}"


def _flipped_header(history: History) -> str:
    flip(history.paths[4], 40)
    return f"{history.paths[4].name} at byte 0"


def _torn(history: History) -> str:
    path = history.paths[-1]
    path.write_bytes(path.read_bytes()[:-100])
    return path.name


def _empty(history: History) -> str:
    path = history.folder / "00000000-0000-4000-8000-000000000000.log"
    path.write_bytes(b"")
    return path.name


def _unstamped(history: History) -> str:
    content = bytearray(history.paths[-1].read_bytes())
    content[1024:1536] = bytes(512)
    history.paths[-1].write_bytes(content)
    return "has no stamp"


def _gap(history: History) -> str:
    history.commit(("gap", "the disk was full", None, None))
    return "the disk was full"


def _broken_chain(history: History) -> str:
    history.commit(("u", "T", (2, 8), (2, 10)))
    return '(u) does not fit the row\'s last known state of sequence 10; key {"ID":2}'


def _second_insert(history: History) -> str:
    history.commit(("c", "T", None, (2, 8)))
    return "(c) does not fit the row's last known state of sequence 10"


def _lost_delete(history: History) -> str:
    history.commit(("d", "T", (2, 9), None))
    history.commit(("u", "T", (2, 9), (2, 10)))
    return "event 1 of sequence 12 (u) does not fit"


def _other_published(history: History) -> str:
    history.commit(("ddl", "ALTER TABLE OTHER ENABLE PUBLICATION", None, None))
    history.commit(("ddl", "ALTER TABLE T ADD N INT /* ENABLE PUBLICATION */", None, None))
    history.commit(("u", "T", (2, 8), (2, 10)))
    return "event 1 of sequence 13 (u) does not fit"


def _new_shape(history: History) -> list[Action]:
    history.define("T", (*T, column("ADDED", Storage.INTEGER)))
    return [("u", "T", (2, 9, 5), (2, 10, 5))]


def _recreated(history: History) -> list[Action]:
    history.commit(("ddl", "DROP TABLE t", None, None), ("ddl", "create table T(..)", None, None))
    return [("c", "T", None, (2, 0))]


def _column_added_again(history: History) -> list[Action]:
    history.commit(("ddl", "alter table T drop N", None, None))
    history.commit(("ddl", "alter table T add N integer", None, None))
    return [("u", "T", (2, None), (2, 5))]


def _published_again(history: History) -> list[Action]:
    history.commit(("ddl", "alter database exclude table T from publication", None, None))
    return [("u", "T", (2, 50), (2, 51))]


def _table_published_again(history: History) -> list[Action]:
    history.commit(("ddl", "alter table t disable publication", None, None))
    history.commit(("ddl", 'ALTER TABLE "T" ADD X INT, ENABLE PUBLICATION', None, None))
    return [("u", "T", (2, 50), (2, 51))]


def _numbers_left_out(history: History) -> list[Action]:
    history.sequence += 1
    return [("u", "T", (2, 50), (2, 51))]


PLANTED: dict[Callable[[History], str], set[str]] = {
    _missing: {"missing"},
    _copied: {"duplicate journal"},
    _same_number: {"duplicate sequence"},
    _flipped_row: {"damaged"},
    _flipped_header: {"damaged"},
    _torn: {"torn"},
    _empty: {"torn"},
    _unstamped: {"damaged"},
    _gap: {"gap"},
    _broken_chain: {"chain"},
    _second_insert: {"chain"},
    _lost_delete: {"chain"},
    _other_published: {"chain"},
}
EXCUSED: dict[Callable[[History], list[Action]], set[str]] = {
    _new_shape: set(),
    _recreated: set(),
    _column_added_again: set(),
    _published_again: set(),
    _table_published_again: set(),
    _numbers_left_out: {"missing"},
}


@dataclass
class Planted:
    """One audit over folders that have a fault each; ``sentences`` by the fault's name."""

    folder: Path
    report: AuditReport
    sentences: dict[str, str]

    def findings(self, name: str) -> list[Finding]:
        """Return what was found in the folder, or in the database, of fault NAME."""
        folder = f"{self.folder / name}/"
        return [
            finding
            for finding in self.report.shown
            if finding.database == f"/data/{name}.fdb" or (finding.file or "").startswith(folder)
        ]


def plant_all(folder: Path) -> dict[str, str]:
    """Make a folder in FOLDER for each fault, and each excuse; return the sentences by their
    names."""
    sentences = {}
    for plant in PLANTED:
        sentences[plant.__name__] = plant(_ten_journals(folder / plant.__name__))
    for why in EXCUSED:
        history = _ten_journals(folder / why.__name__)
        history.commit(*why(history))
    return sentences


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    folder = tmp_path_factory.mktemp("planted")
    sentences = plant_all(folder)
    with local_session() as session:
        report = run_audit(session, [str(path) for path in sorted(folder.iterdir())])
    return Planted(folder, report, sentences)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.strip("_"))
def test_planted_fault_is_found_alone_and_named(
    planted: Planted, plant: Callable[[History], str]
) -> None:
    findings = planted.findings(plant.__name__)
    assert sorted(finding.kind for finding in findings) == sorted(PLANTED[plant])
    assert any(planted.sentences[plant.__name__] in finding.what for finding in findings)
    text = "\n".join(describe(planted.report))
    assert all(f.what in text and JOURNAL_KINDS[f.kind].advice in text for f in findings)
    assert not planted.report.sound


def test_copy_of_a_journal_is_counted_once(planted: Planted) -> None:
    counts = [line[1:] for line in planted.report.counts if line[0] == "/data/_copied.fdb"]
    assert counts == [("T", "c", 82), ("T", "u", 9)]


def test_transaction_that_was_given_two_numbers_is_found(
    here: LocalSession, tmp_path: Path
) -> None:
    """Without a key no row shows it, and no number is doubled or missing."""
    for number in (1, 2):
        path = tmp_path / f"{UUID(int=number, version=4)}.log"
        journal = SharedJournalWriter.create(path, database=DATABASE)
        written = TransactionWriter(journal.header, 7, "SYSDBA", uuid=UUID(int=5, version=4))
        written.insert(written.table("BAG", T[1:], 0), (1,))
        written.seal()
        journal.append(written)
        journal.commit(written, number, ticket=number, commit_us=FIRST_COMMIT_US, epoch=0)
        journal.close()
    report = _audit(here, tmp_path)
    assert [finding.kind for finding in report.shown] == ["duplicate journal"]
    assert report.counts == [(DATABASE, "BAG", "c", 1)]


@pytest.mark.parametrize("why", EXCUSED, ids=lambda why: why.__name__.strip("_"))
def test_excused_mismatch_of_row_images_is_no_broken_chain(
    planted: Planted, why: Callable[[History], list[Action]]
) -> None:
    assert {finding.kind for finding in planted.findings(why.__name__)} == EXCUSED[why]


def test_sound_folder_passes_whole_and_split_with_its_counts(
    here: LocalSession, tmp_path: Path
) -> None:
    history = _ten_journals(tmp_path / "journals")
    history.define("PLAIN", T[1:], 0)
    history.commit(
        *(("c", "PLAIN", None, (n,)) for n in range(300)),
        *(("d", "PLAIN", (n,), None) for n in range(0, 300, 3)),
        ("ddl", "create index i on T(N)", None, None),
    )
    (tmp_path / "journals" / "open.log.live").write_bytes(b"not committed yet")
    reports = [_audit(here, tmp_path / "journals", partition_bytes=size) for size in (10**9, 1000)]
    database = history.database
    for report in reports:
        assert report.sound
        (span,) = report.spans
        assert (span.first, span.last, span.journals, span.events) == (1, 11, 11, 492)
        assert report.counts == [
            (database, None, "ddl", 1),
            (database, "PLAIN", "c", 300),
            (database, "PLAIN", "d", 100),
            (database, "T", "c", 82),
            (database, "T", "u", 9),
        ]


def test_numbers_are_dense_per_database_and_epoch(here: LocalSession, tmp_path: Path) -> None:
    """Many holes, of which some are shown; holes at the border of two buckets; two epochs."""
    history = History(tmp_path, database="/data/holes.fdb")
    history.define("T", T)
    for number in range(SHOWN_PER_KIND + 5):
        history.commit(("c", "T", None, (number, 0)), skip_number=True)
    far = History(tmp_path, database="/data/far.fdb")
    far.define("T", T)
    for sequence in (65_530, 65_531, 65_540, 65_541, 200_000):
        far.write(sequence, ("c", "T", None, (sequence, 0)))
    for epoch in (0, 1):
        restored = History(tmp_path, database="/data/restored.fdb", epoch=epoch)
        restored.define("T", T)
        restored.commit(("c", "T", None, (1, epoch)))
    with _audit(here, tmp_path) as report:
        assert report.kinds == {"missing": SHOWN_PER_KIND + 4 + 2}
        assert len(report.shown) == SHOWN_PER_KIND
        assert any("and 6 more" in line for line in describe(report))
        found = report.findings.select("database", "sequence", "last_sequence").collect()
        ranges = sorted((row[1], row[2]) for row in found if row[0] == far.database)
        assert ranges == [(65_532, 65_539), (65_542, 199_999)]
        holes = sorted(row[1] for row in found if row[0] == history.database)
        assert holes == [2 * n + 1 for n in range(1, SHOWN_PER_KIND + 5)]
        remarks = " ".join(report.remarks)
        assert "far.fdb: the history begins at sequence 65530" in remarks
        assert "restored.fdb: epoch 1 begins at sequence 1" in remarks
        assert len(report.spans) == 4


def test_damaged_journal_is_assigned_to_the_gap_nearest_to_its_commit(
    here: LocalSession, tmp_path: Path
) -> None:
    """Of commits at one time the clock may be read in another order than that of the numbers."""
    history = History(tmp_path, database="/data/clocks.fdb")
    history.define("T", T)
    for number in range(1, 11):
        turn = {7: 8, 8: 7}.get(number, number)
        change = ("c", "T", None, (number, 0))
        history.write(number, change, commit_us=FIRST_COMMIT_US + turn)
    history.paths[2].unlink()
    flip(history.paths[6], 1024 + 8)  # in its stamp, which has its number
    with _audit(here, tmp_path) as report:
        assert report.kinds == {"missing": 1, "damaged": 1}
        found = {row["kind"]: row for row in report.findings.collect()}
        assert found["missing"]["sequence"] == 3
        assert Path(found["damaged"]["file"]).name == history.paths[6].name


def test_range_is_a_part_of_the_history_alone(here: LocalSession, tmp_path: Path) -> None:
    history = _ten_journals(tmp_path / "range")
    history.paths[1].write_bytes(b"")
    history.paths[5].unlink()
    options = {"since": Bound.parse("4"), "until": Bound.parse("2023-11-14T22:13:20.000009Z")}
    with _audit(here, tmp_path / "range", **options) as report:
        (span,) = report.spans
        assert (span.first, span.last, span.journals) == (4, 9, 5)
        assert report.kinds == {"missing": 1, "torn": 1}, "nobody knows where the empty one belongs"
        counts = [(op, number) for *_, op, number in report.counts]
        assert counts == [("c", 50), ("u", 5)]


def test_folder_that_is_not_there_is_named(here: LocalSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=str(tmp_path / "nowhere")):
        _audit(here, tmp_path / "nowhere")


def test_folder_without_journals_names_the_archive_option(
    here: LocalSession, tmp_path: Path
) -> None:
    with pytest.raises(ReplayError, match=r"connector\.journal\.archive\.directory"):
        _audit(here, tmp_path)
