"""Events of rows that C writes from the engine's messages: byte by byte those that Python makes."""

from __future__ import annotations

import ctypes
import random
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from columns import column
from firebird.driver.types import StatementType
from test_snapshot_rows import FACTS

from firebird_cdc.config import load_config
from firebird_cdc.errors import DatabaseUnreadable
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.events.snapshot_rows import SnapshotRenderer
from firebird_cdc.journal.format import Blob, Column, Storage, Table, Undecodable
from firebird_cdc.journal.format.row_decoder import fields_of
from firebird_cdc.journal.snapshot.cursor import Cursor, Field, column_field, same_value
from firebird_cdc.journal.snapshot.rendered import (
    Marks,
    RowWriter,
    Run,
    StoredRows,
    packed,
    unpacked,
)
from firebird_cdc.journal.snapshot.statements import DriverStatement, Shown
from firebird_cdc.native._journal_files import write_rows

_TIMES = re.compile(rb'"ts_ms":\d+,"ts_us":\d+,"ts_ns":\d+,"transaction"')
_FIXED = {
    Storage.SMALLINT: (500, "h"),
    Storage.INTEGER: (496, "i"),
    Storage.BIGINT: (580, "q"),
    Storage.BOOLEAN: (32764, "?"),
    Storage.DATE: (570, "i"),
    Storage.TIME: (560, "I"),
    Storage.TIMESTAMP: (510, "8s"),
    Storage.DOUBLE: (480, "d"),
    Storage.BLOB: (520, "8s"),
}
_FETCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_TEXTS = ("", "x", 'a "text" \\ and', "".join(map(chr, range(128))), "Ünïcode", "漢字𝄞", "  ")

Make = Callable[..., SnapshotRenderer]


def _fixed(name: str, storage: Storage, key_position: int = 0, **changes: Any) -> Column:
    sql_type, form = _FIXED[storage]
    length = struct.calcsize(f"={form}")
    return column(name, storage, key_position, sql_type=sql_type, length=length, **changes)


def _columns(chance: random.Random) -> tuple[Column, ...]:
    makers: tuple[Callable[[str], Column], ...] = (
        *(
            lambda name, storage=storage: _fixed(name, storage)  # type: ignore[misc]
            for storage in _FIXED
            if storage is not Storage.DOUBLE or chance.random() < 0.1
        ),
        lambda name: _fixed(name, Storage.BIGINT, scale=-2, sub_type=1, precision=18),
        lambda name: column(name, Storage.TEXT, sql_type=448, length=160, char_length=40),
        lambda name: column(name, Storage.TEXT, sql_type=448, length=40, charset_id=2),
        lambda name: column(name, Storage.TEXT, sql_type=448, length=150, charset_id=0),
        lambda name: column(name, Storage.PADDED_TEXT, sql_type=452, length=36, char_length=9),
        lambda name: column(name, Storage.OCTETS, sql_type=448, length=20, charset_id=1),
        lambda name: column(name, Storage.OCTETS, sql_type=452, length=7, charset_id=1),
    )
    names = [f'C{number}"é' for number in range(chance.choice((1, 3, 8, 40)))]
    return (_fixed("ID", Storage.BIGINT, 1), *(chance.choice(makers)(name) for name in names))


def _stored(chance: random.Random, column: Column) -> bytes | None:
    """Return a value as a message has it, None for null."""
    if column.key_position == 0 and chance.random() < 0.2:
        return None
    if column.storage is Storage.BLOB:
        return None if chance.random() < 0.9 else bytes(8)
    if column.storage is Storage.TIMESTAMP:
        day = chance.choice((0, 40587, 60000, -678575, 2973483, 2**31 - 1))
        return struct.pack("<iI", day, chance.randrange(864_000_000))
    if column.storage in (Storage.BOOLEAN, Storage.TIME, Storage.DOUBLE):
        value = {Storage.BOOLEAN: True, Storage.TIME: 863_999_999, Storage.DOUBLE: 1.25}
        return struct.pack(f"<{_FIXED[column.storage][1]}", value[column.storage])
    if column.storage in _FIXED:
        form = _FIXED[column.storage][1]
        half = 1 << 8 * struct.calcsize(f"<{form}") - 1
        number = chance.choice((0, -1, 127, -128, 128, chance.randrange(half), half - 1, -half))
        return struct.pack(f"<{form}", number)
    raw = chance.choice(_TEXTS).encode()
    if column.charset_id == 2:
        raw = raw.decode().encode("ascii", "ignore")
    raw = raw[: column.length]  # perhaps within a character
    if column.sql_type == 452:
        return raw.ljust(column.length)
    return struct.pack("<H", len(raw)) + raw.ljust(column.length, b"\xaa")


class _Engine:
    """Attachment, statement and cursor over rows of COLUMNS, as far as `Cursor` asks."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Sequence[bytes | None]]) -> None:
        self._columns = [
            *columns,
            column("VERSION", Storage.BIGINT, sql_type=580, length=8),
            column("DB_KEY", Storage.OCTETS, sql_type=452, length=8),
        ]
        self._places, at = [], 0
        for each in self._columns:
            at += -at % 8
            size = each.length + 2 * (each.sql_type == 448)
            self._places.append((at, at + size + size % 2))
            at += size + size % 2 + 2
        self._length = at
        self.messages = [
            self._message([*row, bytes(8), struct.pack("<q", number)])
            for number, row in enumerate(rows, 1)
        ]
        self._fetched = 0
        self._function = _FETCH(self._fetch)
        self.vtable = SimpleNamespace(fetchNext=self._function)
        self.status = SimpleNamespace(_as_parameter_=ctypes.c_void_p(7))
        self._as_parameter_ = ctypes.c_void_p(8)
        self.failure: Exception | None = None

    def _message(self, row: Sequence[bytes | None]) -> bytes:
        made = bytearray(b"\xee" * self._length)
        for (offset, null), value in zip(self._places, row, strict=True):
            struct.pack_into("<h", made, null, -1 if value is None else 0)
            if value is not None:
                made[offset : offset + len(value)] = value
        return bytes(made)

    def _fetch(self, cursor: int, status: int, message: int) -> int:
        assert (cursor, status) == (8, 7)
        if self._fetched == len(self.messages):
            return 2
        content = self.messages[self._fetched]
        self._fetched += 1
        ctypes.memmove(message, content, len(content))
        return 0

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def __getattr__(self, name: str) -> Any:
        """Return what describes a column."""
        index = {"get_offset": 0, "get_null_offset": 1}.get(name)
        if index is not None:
            return lambda number: self._places[number][index]
        wanted = {"get_alias": "name", "get_charset": "charset_id", "get_subtype": "sub_type"}
        attribute = wanted.get(name) or {"get_type": "sql_type"}.get(name, name[4:])
        return lambda number: getattr(self._columns[number], attribute)

    def prepare(self, *_: Any) -> _Engine:
        return self

    def get_type(self, number: int | None = None) -> Any:
        return StatementType.SELECT if number is None else self._columns[number].sql_type

    def get_output_metadata(self) -> _Engine:
        return self

    get_input_metadata = get_output_metadata

    def __enter__(self) -> _Engine:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def get_count(self) -> int:
        return len(self._columns)

    def get_message_length(self) -> int:
        return self._length

    def open_cursor(self, *_: Any) -> _Engine:
        return self

    def rows(self, table: Table) -> StoredRows:
        """Return its rows, the first one at hand."""
        count = len(table.columns)

        def bind(_: Sequence[Shown]) -> list[Field]:
            fields = [
                column_field(number, column, field, lambda _: None)
                for number, (column, field) in enumerate(
                    zip(table.columns, fields_of(table, "utf-8"), strict=True)
                )
            ]
            return [*fields, Field(count, "q", same_value), Field(count + 1, "8s", same_value)]

        cursor = Cursor(DriverStatement(self, None, ""), "", bind)
        assert cursor.fetch()
        reader: Any = SimpleNamespace(values_of=Cursor.values)
        return StoredRows(reader, cursor, table)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a renderer with options in lines."""

    def make(*lines: str, most: int = 1_000_000) -> SnapshotRenderer:
        file = tmp_path / "connector.yaml"
        file.write_text(
            f"connector.name: t\nconnector.journal.directory: {tmp_path}\nkafka.topic.prefix: t\n"
            "kafka.producer.bootstrap.servers: 127.0.0.1:9\n"
            "event.processing.failure.handling.mode: warn\n" + "".join(f"{a}\n" for a in lines)
        )
        return SnapshotRenderer(Renderer(load_config(file), most), "/srv/a.fdb", FACTS)

    return make


def _marks(*, is_incremental: bool = False, is_first: bool = False) -> Marks:
    return Marks(is_incremental=is_incremental, is_first=is_first, begins_all=False, ends_all=False)


def _events(writer: RowWriter) -> list[tuple[Any, ...]]:
    return [
        (topic, headers, key, _TIMES.sub(b"", value or b""))
        for topic, headers, keys, values in writer.runs
        for key, value in zip(keys, values, strict=True)
    ]


def _written(
    renderer: SnapshotRenderer,
    table: Table,
    rows: StoredRows,
    most: tuple[int, int],
    *,
    is_incremental: bool,
) -> tuple[list[tuple[Any, ...]], list[str], int]:
    """Return the events of all batches, why rows are left out, and their bytes."""
    events, left_out, size, done, is_end = [], [], 0, 0, False
    while not is_end:
        marks = _marks(is_incremental=is_incremental, is_first=not done)
        writer = RowWriter(renderer, table, 1 + done, marks, fails=False)
        is_end = writer.write(rows, *most)
        done += writer.rows
        size += writer.size
        events += _events(writer)
        left_out += writer.left_out
        assert 0 < writer.rows <= most[0]
        assert rows.last == struct.pack("<q", done)
    return events, left_out, size


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("schemas", ["true", "false"])
def test_events_are_those_that_python_makes(
    make: Make, monkeypatch: pytest.MonkeyPatch, seed: int, schemas: str
) -> None:
    chance = random.Random(seed)
    quick = plans = 0

    def counted(*arguments: Any) -> Any:
        nonlocal quick
        found = write_rows(*arguments)
        quick += found[0]
        return found

    monkeypatch.setattr("firebird_cdc.journal.snapshot.cursor.write_rows", counted)
    for _ in range(25):
        columns = _columns(chance)
        table = Table(1, "T", chance.choice((0, 1)), columns)
        if not table.key_kind:
            columns = (_fixed("ID", Storage.BIGINT), *columns[1:])
            table = Table(1, "T", 0, columns)
        rows = [[_stored(chance, each) for each in columns] for _ in range(30)]
        is_incremental = chance.random() < 0.5
        most = chance.choice((1, 2, 7, 30, 100)), chance.choice((1, 9000, 10_000_000))
        renderer = make(
            f"key.converter.schemas.enable: {schemas}", f"value.converter.schemas.enable: {schemas}"
        )
        plans += renderer.plan(table, "true") is not None
        made = _written(
            renderer, table, _Engine(columns, rows).rows(table), most, is_incremental=is_incremental
        )
        monkeypatch.setattr(renderer, "plan", lambda *_: None)
        expected = _written(
            renderer, table, _Engine(columns, rows).rows(table), most, is_incremental=is_incremental
        )
        assert made == expected
    assert plans > 10 and quick > 100


def test_row_that_is_too_large_is_left_to_python(make: Make) -> None:
    columns = (
        _fixed("ID", Storage.BIGINT, 1),
        column("X", Storage.TEXT, sql_type=448, length=3000),
    )
    table = Table(1, "T", 1, columns)
    raw = [struct.pack("<H", size) + b"x" * size + bytes(3000 - size) for size in (9, 3000, 9, 9)]
    rows = [[struct.pack("<q", number), text] for number, text in enumerate(raw)]
    renderer = make("value.converter.schemas.enable: false", most=2000)
    writer = RowWriter(renderer, table, 1, _marks(), fails=False)
    assert writer.write(_Engine(columns, rows).rows(table), 100, 1_000_000)
    assert writer.rows == 4 and len(_events(writer)) == 3
    assert len(writer.left_out) == 1
    writer = RowWriter(renderer, table, 1, _marks(), fails=True)
    with pytest.raises(DatabaseUnreadable, match="table T, key"):
        writer.write(_Engine(columns, rows).rows(table), 100, 1_000_000)


class _Values(list[Any]):
    """`Rows` that are values."""

    last = None

    def values(self) -> Any:
        return self[0]

    def look_ahead(self) -> bool:
        return len(self) > 1

    def advance(self) -> None:
        del self[0]

    def writer(self, plan: Any) -> None:
        """Leave them to Python."""


@pytest.mark.parametrize(("line", "is_told"), [("", True), ("column.exclude.list: .*[.]X", False)])
def test_rows_with_blobs_that_the_database_has_not_got_are_told(
    make: Make, line: str, is_told: bool
) -> None:
    columns = (_fixed("ID", Storage.BIGINT, 1), column("X", Storage.BLOB))
    blobs = [Blob(0, True, None, (), b"x"), Blob(0, False, None, ()), None]
    rows = _Values([number, blob] for number, blob in enumerate(blobs))
    renderer = make("value.converter.schemas.enable: false", *filter(None, [line]))
    writer = RowWriter(renderer, Table(1, "T", 1, columns), 1, _marks(), fails=False)
    assert writer.write(rows, 100, 1_000_000)
    assert writer.rows == 3 and writer.left_out == []
    assert writer.unread == ['after.X of table T, key {"ID":1}'] * is_told


def test_rows_with_values_that_cannot_be_decoded_are_told(make: Make) -> None:
    columns = (_fixed("ID", Storage.BIGINT, 1), column("X", Storage.TEXT, char_length=9))
    rows = _Values([number, value] for number, value in enumerate(("x", Undecodable(b"\xff", 4))))
    renderer = make("value.converter.schemas.enable: false")
    writer = RowWriter(renderer, Table(1, "T", 1, columns), 1, _marks(), fails=False)
    assert writer.write(rows, 100, 1_000_000)
    assert writer.left_out == writer.unread == []
    assert writer.undecoded == ['after.X of table T, key {"ID":1}']


def test_fetch_that_fails_is_told(make: Make) -> None:
    columns = (_fixed("ID", Storage.BIGINT, 1),)
    table = Table(1, "T", 1, columns)
    engine = _Engine(columns, [[struct.pack("<q", number)] for number in range(9)])
    rows = engine.rows(table)
    engine.failure = RuntimeError("the server is gone")
    writer = RowWriter(make(), table, 1, _marks(), fails=False)
    with pytest.raises(RuntimeError, match="server is gone"):
        writer.write(rows, 100, 1_000_000)


@pytest.mark.parametrize("broken", range(5))
def test_plan_that_is_none_is_refused(make: Make, broken: int) -> None:
    columns = (_fixed("ID", Storage.BIGINT, 1),)
    table = Table(1, "T", 1, columns)
    plan = make().plan(table, "true")
    assert plan is not None and plan.key is not None
    parts: list[Any] = [bytes(13), plan.row, plan.key, plan.value, plan.around_key, 1000]
    parts[broken] = (b"", b"\xff\xff\0\0", b"\xff\xff\0\0", b"\1" * 40, b"\1" * 40)[broken]
    row, behind = (ctypes.create_string_buffer(64) for _ in range(2))
    with pytest.raises(ValueError, match="no plan"):
        write_rows((0, 0, 0), row, behind, tuple(parts), 1, 1, 1, [], [])  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 400, 500, 4000])
@pytest.mark.parametrize("values", [[], [b"1"], [b"1", b"2", b""], [b"1", None], [b"1", b"1"]])
def test_common_beginning_of_values_is_carried_once(size: int, values: list[bytes | None]) -> None:
    head = b"x" * size
    whole = [None if value is None else head + value for value in values]
    run: Run = ("t", [], [b"k"] * len(values), whole)
    assert unpacked(packed(run)) == run
    is_taken_off = size >= 500 and len(values) > 1 and None not in values
    assert bool(packed(run)[3]) == is_taken_off
