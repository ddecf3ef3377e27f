"""Journals of one transaction, as whoever confirms completes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from firebird_cdc.journal.format import (
    Column,
    JournalReader,
    OwnJournalWriter,
    Storage,
    Table,
    TableChange,
    append_catalogue,
    own_reader,
    table_body,
)
from firebird_cdc.journal.format.layout import FILE_BLOCK
from firebird_cdc.journal.format.shared import FileHeader

_NIL = UUID(int=0)
_COLUMN = Column("ID", 496, 0, 0, 4, 0, 0, 0, True, False, 0, Storage.INTEGER)
_CHANGES = {1: (TableChange("ALTER", "T", None),)}


def _write(path: Path, columns: int) -> tuple[UUID, bytes]:
    """Write a DDL and a row of an unresolved table; return the complete form of that."""
    uuid = uuid4()
    header = FileHeader(uuid, _NIL, _NIL, 0, _NIL, 0, 7, True, "/a.fdb")
    shown = [replace(_COLUMN, name=f"C{number}") for number in range(columns)]
    with OwnJournalWriter(path, header) as writer:
        writer.ddl("ALTER TABLE T ADD N INTEGER")
        table = writer.table("T", shown, 0, resolved=False)
        writer.insert(table, [7] * columns)
        writer.seal(floor=4)
    keyed = [replace(shown[0], nullable=False, key_position=1), *shown[1:]]
    return uuid, table_body(Table(1, "T", 1, tuple(keyed)))


def _append(path: Path, uuid: UUID, at: int, *what: object) -> None:
    with own_reader(path, uuid) as reader:
        seal = reader.seal
    assert seal is not None
    with path.open("r+b") as file:
        append_catalogue(file.fileno(), uuid, seal, at or seal.end, *what)  # type: ignore[arg-type]


def _late(path: Path, uuid: UUID) -> int:
    with own_reader(path, uuid) as reader:
        return reader.late_catalogue_offset()


@pytest.mark.parametrize("columns", [1, 400])  # 400: the first one reaches into further blocks
def test_late_catalogue_lies_behind_that_of_the_plugin(tmp_path: Path, columns: int) -> None:
    path = tmp_path / "journal"
    uuid, complete = _write(path, columns)
    _append(path, uuid, 0, {1: complete})
    with own_reader(path, uuid) as reader:
        early = reader.unstamped_catalogue()
    assert early is not None
    late = _late(path, uuid)
    assert late % FILE_BLOCK == 0
    assert late >= early.end
    before = path.read_bytes()
    _append(path, uuid, late, {1: complete}, _CHANGES)
    assert path.read_bytes()[: len(before)] == before
    with own_reader(path, uuid) as reader:
        found = reader.unstamped_catalogue()
    assert found is not None
    assert (found.start, found.tells_of_ddl, [*found.bodies]) == (late, True, [1])


def test_late_catalogue_that_is_torn_leaves_that_of_the_plugin(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    uuid, complete = _write(path, 1)
    _append(path, uuid, 0, {1: complete})
    late = _late(path, uuid)
    _append(path, uuid, late, {1: complete}, _CHANGES)
    with path.open("r+b") as file:
        file.seek(FILE_BLOCK + late + 50)
        file.write(b"????")
    with own_reader(path, uuid) as reader:
        found = reader.unstamped_catalogue()
    assert found is not None
    assert (found.start < late, found.tells_of_ddl, [*found.bodies]) == (True, False, [1])


def test_reader_of_a_file_does_not_take_it_for_a_journal_of_version_1(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    uuid, _ = _write(path, 1)
    with own_reader(path, uuid) as reader:
        assert len(list(reader.changes())) == 2
    with pytest.raises(Exception, match="share this journal"):
        JournalReader(path)
