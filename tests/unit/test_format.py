"""Round trips through the journal format: every storage and record kind, ranges, blobs, limits."""

from __future__ import annotations

import math
import os
import pickle
import random
import tracemalloc
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from firebird_cdc.errors import JournalCorrupt
from firebird_cdc.journal.format import (
    Blob,
    Change,
    Column,
    DdlChange,
    Gap,
    JournalReader,
    JournalWriter,
    RowChange,
    SequenceChange,
    Stamp,
    Storage,
    Table,
    Undecodable,
    Value,
    charsets,
    read_envelope,
    table_body,
    write_stamp,
)
from firebird_cdc.journal.format.writer import pack_catalogue


def _column(
    name: str, storage: Storage, charset_id: int = 0, char_length: int = 0, key_position: int = 0
) -> Column:
    return Column(name, 0, 0, 0, 0, charset_id, char_length, 0, True, False, key_position, storage)


def _changes(path: Path, none_charset: str = "UTF-8") -> list[Change]:
    with JournalReader(path, none_charset) as reader:
        return list(reader.changes())


def _round_trip(path: Path, column: Column, values: list[Value]) -> list[Value]:
    """Write each value as an insert, an update and a delete, and return what is read."""
    with JournalWriter(path) as writer:
        table = writer.table("T", [column, _column("END", Storage.TEXT, 4)])
        for value in values:
            writer.insert(table, (value, "end"))
            writer.update(table, (value, None), (value, "end"))
            writer.delete(table, (value, ""))
        writer.seal()
    rows = [change for change in _changes(path) if isinstance(change, RowChange)]
    read = []
    for inserted, updated, deleted in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert inserted.before is None and deleted.after is None
        assert inserted.after and updated.before and updated.after and deleted.before
        assert (inserted.after[1], updated.before[1], updated.after[1]) == ("end", None, "end")
        assert deleted.before[1] == ""
        four = (inserted.after[0], updated.before[0], updated.after[0], deleted.before[0])
        assert all(type(value) is type(four[0]) and value == four[0] for value in four)
        read.append(four[0])
    return read


@pytest.mark.parametrize(
    ("storage", "values"),
    [
        (Storage.SMALLINT, [0, -1, -(2**15), 2**15 - 1, None]),
        (Storage.INTEGER, [0, -1, -(2**31), 2**31 - 1, None]),
        (Storage.BIGINT, [0, -1, -(2**63), 2**63 - 1, None]),
        (Storage.INT128, [0, -1, -(2**127), 2**127 - 1, None]),
        (Storage.FLOAT, [0.0, -0.5, math.inf, 2.0**-149, None]),
        (Storage.DOUBLE, [0.0, -0.1, math.inf, -1.7976931348623157e308, 5e-324, None]),
        (Storage.BOOLEAN, [True, False, None]),
        (Storage.DATE, [-678_575, 0, 2_973_483, None]),
        (Storage.TIME, [0, 863_999_999, None]),
        (Storage.TIMESTAMP, [-678_575 * 864_000_000, -1, 2_973_484 * 864_000_000 - 1, None]),
        (Storage.TIME_TZ, [bytes(6), b"\x01\x02\x03\x04\x05\xff", None]),
        (Storage.TIMESTAMP_TZ, [bytes(10), b"0123456789", None]),
        (Storage.DECFLOAT16, [bytes(8), b"01234567", None]),
        (Storage.DECFLOAT34, [bytes(16), b"0123456789abcdef", None]),
        (Storage.OCTETS, [b"", b"\0 \0", bytes(65_535), None]),
        (Storage.RAW, [b"", b"\0 \0", bytes(65_535), None]),
    ],
)
def test_values_come_back_as_they_were_written(
    storage: Storage, values: list[Value], tmp_path: Path
) -> None:
    assert _round_trip(tmp_path / "j", _column("C", storage), values) == values


def test_nan_stays_nan(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "j") as writer:
        table = writer.table("T", [_column("F", Storage.FLOAT), _column("D", Storage.DOUBLE)])
        writer.insert(table, (math.nan, math.nan))
        writer.seal()
    (row,) = _changes(tmp_path / "j")
    assert isinstance(row, RowChange) and row.after is not None
    assert all(isinstance(value, float) and math.isnan(value) for value in row.after)


@pytest.mark.parametrize(
    ("charset", "text"),
    [
        (4, "ж€😀 é"),
        (52, "Москва №5"),
        (51, "Zażółć"),
        (53, "café €"),
        (21, "café"),
        (2, "plain"),
        (63, "Москва"),
        (48, "Москва"),
        (5, "東京"),
        (67, "北京"),
        (69, "北京😀"),
        (0, "ж"),
    ],
)
def test_texts_come_back_in_every_kind_of_charset(charset: int, text: str, tmp_path: Path) -> None:
    values: list[Value] = [text, "", None, " " + text + "  "]
    column = _column("C", Storage.TEXT, charset, 20)
    assert _round_trip(tmp_path / "text", column, values) == values
    padded = _column("C", Storage.PADDED_TEXT, charset, 20)
    read = _round_trip(tmp_path / "padded", padded, values)
    width = 20 if charset else 19  # the length of NONE is in bytes, and "ж" takes two
    assert [v and len(str(v)) for v in read] == [width, 20, None, width]
    assert [v and str(v).rstrip() for v in read] == [v and str(v).rstrip() for v in values]


def test_texts_of_none_are_read_in_the_charset_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with JournalWriter(path) as writer:
        table = writer.table("T", [_column("C", Storage.TEXT)])
        writer.insert(table, ("Москва".encode("cp1251"),))
        writer.ddl("COMMENT 'Москва'".encode("cp1251"), charsets.NONE)
        writer.seal()
    for charset in ("WIN1251", "windows-1251", "cp1251"):
        row, ddl = _changes(path, charset)
        assert isinstance(row, RowChange) and row.after == ("Москва",)
        assert ddl == DdlChange(2, "COMMENT 'Москва'")
    row, ddl = _changes(path)
    raw = "Москва".encode("cp1251")
    assert isinstance(row, RowChange) and row.after == (Undecodable(raw, 0),)
    assert isinstance(ddl, DdlChange) and isinstance(ddl.sql, Undecodable)
    for charset in ("nonsense", "base64", ""):
        with pytest.raises(ValueError, match="unknown character set"):
            JournalReader(path, charset)


def test_every_kind_of_change_comes_in_order_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "j"
    uuid, guid, owner = UUID(int=1), UUID(int=2), UUID(int=3)
    with JournalWriter(
        path,
        uuid=uuid,
        transaction=2**47,
        database="/база/x.fdb",
        user="ПЁТР",
        database_guid=guid,
        owner=owner,
        epoch=4,
        started_us=5,
    ) as writer:
        writer.ddl("CREATE TABLE T (ж INT)")
        table = writer.table(
            "T",
            [
                _column("A", Storage.INTEGER, key_position=2),
                _column("Ж", Storage.INTEGER),
                _column("C", Storage.INTEGER, key_position=1),
            ],
            key_kind=2,
        )
        writer.insert(table, (1, 2, 3))
        writer.sequence("GEN_Ж", -(2**63))
        writer.gap("причина")
        writer.seal(6)
        writer.commit(7, 8)
        writer.stamp(9, 10)
    assert path.stat().st_mode & 0o777 == 0o600
    with JournalReader(path) as reader:
        assert reader.header == (uuid, 2**47, 5, guid, owner, 0)
        assert reader.commit_mark == (7, 8, 2**47)
        assert reader.stamp == (4, 9, 8, 10, path.stat().st_size, 3, 2**47, 0)
        assert reader.seal is not None and reader.seal[:5] == (3, 6, 1, 6, path.stat().st_size)
        assert (reader.database, reader.user) == ("/база/x.fdb", "ПЁТР")
        ddl, row, sequence, gap = reader.changes()
    assert ddl == DdlChange(1, "CREATE TABLE T (ж INT)")
    assert sequence == SequenceChange("GEN_Ж", -(2**63))
    assert gap == Gap(3, "причина")
    assert isinstance(row, RowChange)
    assert (row.pos, row.op, row.before, row.after) == (2, "c", None, (1, 2, 3))
    assert (row.table.name, row.table.key_kind, row.table.key_columns) == ("T", 2, (2, 0))
    assert row.table == table
    assert read_envelope(path) == (reader.header, reader.stamp, "/база/x.fdb")


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17, 63, 64, 65, 300, 5000])
def test_nulls_are_where_they_were_in_tables_of_any_width(count: int, tmp_path: Path) -> None:
    draw = random.Random(count)
    storages = [Storage.SMALLINT, Storage.TEXT, Storage.BOOLEAN, Storage.INT128, Storage.OCTETS]
    columns = [_column(f"C{i}", storages[i % 5], 4, 9) for i in range(count)]
    samples: list[list[Value]] = [[i, f"ж{i}", i % 2 == 0, -i, b"%d" % i] for i in range(count)]
    rows: list[tuple[Value, ...]] = [
        tuple(samples[i][i % 5] if draw.random() < share else None for i in range(count))
        for share in (0.0, 0.1, 0.5, 0.9, 1.0)
    ]
    rows += [
        tuple(None if i == k else samples[i][i % 5] for i in range(count)) for k in (0, count - 1)
    ]
    with JournalWriter(tmp_path / "j") as writer:
        table = writer.table("T", columns)
        for row in rows:
            writer.insert(table, row)
        writer.seal()
    read = [change.after for change in _changes(tmp_path / "j") if isinstance(change, RowChange)]
    assert read == rows


def _many_blocks(path: Path) -> list[object]:
    """Write a journal of some 60 blocks, with tables and blobs all over it."""
    draw = random.Random(5)
    with JournalWriter(path, block_bytes=500) as writer:
        tables = []
        for number in range(200):
            if number % 40 == 0:
                columns = [_column("ID", Storage.BIGINT), _column("N", Storage.BLOB)]
                tables.append(writer.table(f"T{number}", columns))
            blob = None
            if draw.random() < 0.3:
                blob = writer.blob(draw.randbytes(draw.choice((0, 10, 400, 2000))), chunk_bytes=300)
            table = draw.choice(tables)
            if draw.random() < 0.5:
                writer.insert(table, (number, blob))
            else:
                writer.update(table, (number, None), (number, blob))
        writer.seal()
    return [_plain(change) for change in _changes(path)]


def _plain(change: Change) -> object:
    assert isinstance(change, RowChange) and change.after is not None
    number, blob = change.after
    content = blob.read() if isinstance(blob, Blob) else blob
    return (change.pos, change.op, change.table.name, number, content)


def test_ranges_that_are_read_separately_add_up_to_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "j"
    whole = _many_blocks(path)
    with JournalReader(path) as reader:
        offsets = list(reader.block_offsets())
    assert len(offsets) > 50
    for step in (1, 7, len(offsets)):
        starts = offsets[::step]
        parts: list[object] = []
        for start, end in zip(starts, [*starts[1:], None], strict=True):
            with JournalReader(path) as reader:
                parts += [_plain(change) for change in reader.changes(start, end)]
        assert parts == whole
    with JournalReader(path) as reader:
        assert [_plain(c) for c in reader.changes(end_offset=path.stat().st_size)] == whole
        assert list(reader.changes(offsets[9], offsets[9])) == []


def test_a_range_before_a_torn_end_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "j"
    whole = _many_blocks(path)
    with JournalReader(path) as reader:
        offsets = list(reader.block_offsets())
    os.truncate(path, offsets[20])
    with JournalReader(path) as reader:
        part = [_plain(change) for change in reader.changes(0, offsets[20])]
    assert part == whole[: len(part)]
    assert part


def test_a_start_that_is_no_block_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "j"
    _many_blocks(path)
    with JournalReader(path) as reader, pytest.raises(Exception, match="no block begins here"):
        list(reader.changes(2000))


def test_blobs_are_read_in_pieces_after_the_reader_is_closed_and_when_pickled(
    tmp_path: Path,
) -> None:
    path = tmp_path / "j"
    content = random.Random(2).randbytes(300_000)
    with JournalWriter(path) as writer:
        table = writer.table("T", [_column("B", Storage.BLOB), _column("A", Storage.ARRAY)])
        writer.insert(table, (writer.blob(content), writer.blob(b"part", available=False)))
        writer.insert(table, (writer.blob(b""), None))
        writer.seal()
    first, second = _changes(path)
    assert isinstance(first, RowChange) and first.after is not None
    blob, array = first.after
    assert isinstance(blob, Blob) and isinstance(array, Blob)
    assert (blob.length, blob.available, array.length, array.available) == (300_000, True, 4, False)
    pieces = list(blob.chunks())
    assert b"".join(pieces) == content and max(map(len, pieces)) <= 65_536
    carried = pickle.loads(pickle.dumps(blob))
    assert isinstance(second, RowChange) and second.after is not None
    empty = second.after[0]
    assert isinstance(empty, Blob)
    assert (empty.length, empty.read()) == (0, b"")
    path.unlink()
    assert carried.read() == content
    assert (carried.number, carried.length, carried.available) == (blob.number, 300_000, True)
    with pytest.raises(FileNotFoundError):
        blob.read()


def test_memory_of_the_reader_is_independent_of_the_journal_size(tmp_path: Path) -> None:
    def peak(rows: int) -> int:
        path = tmp_path / str(rows)
        with JournalWriter(path) as writer:
            table = writer.table("T", [_column("ID", Storage.BIGINT), _column("B", Storage.BLOB)])
            for number in range(rows):
                writer.insert(table, (number, writer.blob(b"x" * 500)))
            writer.seal()
        tracemalloc.start()
        with JournalReader(path) as reader:
            for _ in reader.changes():
                pass
        result = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return result

    peak(10)
    small, large = peak(1_000), peak(20_000)
    assert large < small * 1.5 + 50_000


def test_a_stamp_of_the_confirmer_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with JournalWriter(path, transaction=3) as writer:
        writer.gap("x")
        writer.seal()
        writer.commit(1, 2)
    stamp = Stamp(0, 2**63, 2, 3, path.stat().st_size, 1, 3)
    with path.open("r+b") as file, JournalReader(path) as reader:
        write_stamp(file.fileno(), reader.header.uuid, stamp)
    with JournalReader(path) as reader:
        assert reader.stamp == stamp
        assert list(reader.changes()) == [Gap(1, "x")]


_SHOWN = (
    _column("CODE", Storage.PADDED_TEXT, 4),
    _column("ID", Storage.BIGINT),
    _column("NOTE", Storage.BLOB),
)
_COMPLETE = (
    replace(_SHOWN[0], char_length=5),
    replace(_SHOWN[1], key_position=1, nullable=False, identity=True, precision=18),
    _SHOWN[2],
)


def _unresolved(writer: JournalWriter, rows: int = 30) -> Table:
    """Record rows of a table of which only what a row shows is known."""
    table = writer.table("T", _SHOWN, key_kind=0, resolved=False)
    for number in range(rows):
        writer.insert(table, ("ж", number, writer.blob(b"note" * number)))
    writer.seal()
    writer.commit(1, 2)
    return table


def test_unresolved_table_is_readable_and_marked_as_unresolved(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with JournalWriter(path, block_bytes=300) as writer:
        writer.gap("x")
        known = writer.table("KNOWN", _COMPLETE, order=(1, 0, 2))
        writer.insert(known, ("a", 1, None))
        table = _unresolved(writer)
        assert not table.resolved
        with JournalReader(path) as reader:
            assert reader.unresolved_tables() == {2: table_body(table)}
        writer.stamp(1)
    _, first, *rest = _changes(path)
    assert isinstance(first, RowChange) and first.table == known
    assert (first.table.order, first.table.resolved) == ((1, 0, 2), True)
    assert len(rest) == 30
    for change in rest:
        assert isinstance(change, RowChange) and change.table == table
        assert change.after is not None and change.after[0] == "ж"
        assert change.table.order == (0, 1, 2)


def test_catalogue_completes_definitions_for_reads_from_any_block(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with JournalWriter(path, block_bytes=300) as writer:
        number = _unresolved(writer).number
        complete = Table(number, "T", 1, _COMPLETE, (1, 2, 0))
        seal_end = path.stat().st_size
        with path.open("r+b") as file, JournalReader(path) as reader:
            seal = reader.seal
            assert seal is not None
            block = pack_catalogue(writer.uuid, seal, {number: table_body(complete)})
            file.seek(seal_end)
            file.write(block)
            file.flush()
            length = seal_end + len(block)
            # Before the stamp the journal is as it was: the confirmer may have to begin again.
            assert [c.table.resolved for c in reader.changes() if isinstance(c, RowChange)] == [
                False
            ] * 30
            write_stamp(file.fileno(), writer.uuid, Stamp(0, 1, 2, 3, length, 30, 0, seal_end))
    assert length == path.stat().st_size
    with JournalReader(path) as reader:
        assert reader.stamp is not None and reader.stamp.catalogue_offset == seal_end
        assert reader.seal == seal and seal.end == seal_end
        offsets = list(reader.block_offsets())
        whole = [change.pos for change in reader.changes() if isinstance(change, RowChange)]
    assert offsets[-1] == seal_end - 72 and whole == list(range(1, 31))
    for start in offsets[1:-1]:
        with JournalReader(path) as reader:
            change = next(reader.changes(start))
        assert isinstance(change, RowChange)
        assert change.table == complete and change.table.resolved
        assert change.after is not None and change.after[0] == "ж    "


def test_a_journal_with_slack_behind_its_catalogue_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with JournalWriter(path) as writer:
        table = _unresolved(writer, 2)
        writer.complete([Table(table.number, "T", 1, _COMPLETE)])
        writer.stamp(1)
    with path.open("ab") as file:
        file.write(bytes(4096) + b"FBCB of an older journal")
    assert [c.table.key_kind for c in _changes(path) if isinstance(c, RowChange)] == [1, 1]


@pytest.mark.parametrize(
    ("name", "columns", "number", "message"),
    [
        ("U", _COMPLETE, 1, "other columns"),
        ("T", _COMPLETE[:2], 1, "other columns"),
        ("T", (replace(_COMPLETE[0], name="C"), *_COMPLETE[1:]), 1, "other columns"),
        ("T", (replace(_COMPLETE[0], sql_type=1), *_COMPLETE[1:]), 1, "other columns"),
        ("T", (replace(_COMPLETE[0], length=1), *_COMPLETE[1:]), 1, "other columns"),
        ("T", (replace(_COMPLETE[0], charset_id=0), *_COMPLETE[1:]), 1, "other columns"),
        ("T", (replace(_COMPLETE[0], storage=Storage.TEXT), *_COMPLETE[1:]), 1, "other columns"),
        ("T", _COMPLETE, 2, "table number 2, which is not defined"),
        ("T", _COMPLETE, 0, "does not belong there"),
    ],
)
def test_completion_that_does_not_match_its_table_is_corrupt(
    name: str, columns: tuple[Column, ...], number: int, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "j"
    with JournalWriter(path) as writer:
        _unresolved(writer)
        writer.complete([Table(number, name, 1, columns)])
        writer.stamp(1)
    with pytest.raises(JournalCorrupt, match=message):
        _changes(path)


def test_completion_of_a_complete_definition_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with JournalWriter(path) as writer:
        table = writer.table("T", _COMPLETE)
        writer.seal()
        writer.commit(1, 2)
        writer.complete([table])
        writer.stamp(1)
    with pytest.raises(JournalCorrupt, match="which is complete"):
        _changes(path)


@pytest.mark.parametrize("order", [(0, 1), (0, 1, 1), (0, 1, 3)])
def test_an_order_that_is_no_permutation_is_refused(order: tuple[int, ...], tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "j") as writer, pytest.raises(ValueError, match="T: the order"):
        writer.table("T", _COMPLETE, order=order)


def test_an_empty_catalogue_is_refused(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "j") as writer:
        writer.seal()
        with pytest.raises(ValueError, match="0 bytes fits no block"):
            writer.complete([])


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b"something")
    with pytest.raises(FileExistsError):
        JournalWriter(path)
    assert path.read_bytes() == b"something"


@pytest.mark.parametrize(
    ("storage", "value", "message"),
    [
        (Storage.SMALLINT, 40_000, "T.C: 40000"),
        (Storage.INT128, 2**127, "T.C"),
        (Storage.TEXT, "x" * 70_000, "T.C"),
        (Storage.TEXT, 5, "T.C: 5: a text or bytes are expected"),
        (Storage.TIME_TZ, b"123", "T.C: b'123': 3 bytes, not 6"),
        (Storage.DOUBLE, "1", "T.C: '1'"),
    ],
)
def test_the_writer_names_the_column_of_a_value_that_does_not_fit(
    storage: Storage, value: Value, message: str, tmp_path: Path
) -> None:
    with JournalWriter(tmp_path / "j") as writer:
        table = writer.table("T", [_column("C", storage, 4)])
        with pytest.raises(ValueError, match=message):
            writer.insert(table, (value,))
        with pytest.raises(ValueError, match="2 values, 1 columns"):
            writer.insert(table, (1, 2))


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    path = tmp_path / "j"
    _many_blocks(path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        blobs = [c.after[1] for c in _changes(path) if isinstance(c, RowChange) and c.after]
        assert any(b.read() for b in blobs if isinstance(b, Blob))
        read_envelope(path)
        bad = tmp_path / "bad"
        bad.write_bytes(b"nonsense")
        with pytest.raises(Exception, match="not a journal"):
            JournalReader(bad)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_documented_storage_codes_are_those_of_the_code() -> None:
    page = Path(__file__).parent.parent.parent / "docs" / "journal-format.md"
    table = page.read_text(encoding="utf-8").split("### Row images")[1].split("##")[0]
    documented = {
        int(cells[1]): cells[2].strip()
        for line in table.splitlines()
        if len(cells := line.split("|")) > 2 and cells[1].strip().isdigit()
    }
    assert documented == {storage.value: storage.name for storage in Storage}
