"""Writes docs/types.md by asking the code that sends values.

``python -P scripts/types_page.py > docs/types.md``
"""

from __future__ import annotations

import math
import struct
import sys
from base64 import b64encode
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from firebird_cdc.journal.events import json_bytes
from firebird_cdc.journal.events.schema import Schema
from firebird_cdc.journal.events.values import BadValue, ValueModes, field_form
from firebird_cdc.journal.format import Blob, Column, Element, Storage, Undecodable, Value
from firebird_cdc.journal.format.charsets import NONE, OCTETS, UTF8
from firebird_cdc.journal.types.names import (
    jdbc_type,
    type_expression,
    type_length,
    type_name,
    type_scale,
)
from firebird_cdc.journal.types.numbers import plain_decimal

_WIN1251, _UNKNOWN_CHARSET = 52, 999
_UTC_PLUS_2, _PARIS = 1439 + 120, 65064  # zones as the engine numbers them
_DAY = 61101
_TIME = ((9 * 60 + 14) * 60 + 7) * 10_000 + 1234
_TIMESTAMP = _DAY * 864_000_000 + _TIME
_BEFORE_1970 = 40587 * 864_000_000 - 1
_TWO_HOURS = 2 * 36_000_000
# DECFLOATs in their interchange format, the last byte first.
_DECFLOAT16 = bytes.fromhex("d003000000003022")
_DECFLOAT34 = bytes.fromhex("05000000000000000000000000c00822")
_NAN, _SIGNALLING, _INFINITY = (
    bytes(7) + bytes([byte]) for byte in (0b01111100, 0b01111110, 0b01111000)
)


_LARGEST_INT128 = 2**127 - 1
_LARGEST_NUMERIC = plain_decimal(_LARGEST_INT128, 2)


class _Case(NamedTuple):
    """A type as it is declared, a value as SQL has it, and both as a journal has them."""

    declared: str
    sql: str
    column: Column
    value: Value


def _column(storage: Storage, sql_type: int, **known: Any) -> Column:
    fields: dict[str, Any] = dict.fromkeys(
        ("sub_type", "scale", "length", "charset_id", "char_length", "precision", "key_position"), 0
    )
    fields |= {"nullable": True, "identity": False}
    return Column(name="C", storage=storage, sql_type=sql_type, **(fields | known))


def _numeric(storage: Storage, sql_type: int, precision: int, scale: int, kind: int = 1) -> Column:
    return _column(storage, sql_type, sub_type=kind, scale=-scale, precision=precision)


def _text(storage: Storage, sql_type: int, characters: int, charset: int) -> Column:
    return _column(storage, sql_type, char_length=characters, charset_id=charset)


def _blob_column(sub_type: int, charset: int = NONE) -> Column:
    return _column(Storage.BLOB, 520, sub_type=sub_type, charset_id=charset)


def _blob(content: bytes, available: bool = True) -> Blob:
    return Blob(1, available, None, (), content)


def _array_column(
    field_type: int, size: int, *bounds: tuple[int, int], charset: int = 0, **known: Any
) -> Column:
    scale = known.pop("scale", 0)
    element = Element(field_type, known.pop("sub_type", 0), scale, size, charset, bounds)
    return _column(Storage.ARRAY, 540, element=element, **known)


def _array(dtype: int, scale: int, size: int, bounds: list[int], *elements: bytes) -> Blob:
    """An array with the lower and upper BOUNDS, as the engine keeps it."""
    count = len(elements)
    dimensions = len(bounds) // 2
    head = struct.pack("<BB2xHHII", 1, dimensions, size, 16 + 24 * dimensions, count, size * count)
    described = b"".join(
        struct.pack("<BbHh6x4xii", dtype, scale, size, UTF8, *bounds[2 * i : 2 * i + 2])
        for i in range(dimensions)
    )
    return _blob(head + described + b"".join(elements))


S = Storage
_PLAIN = (
    _Case("SMALLINT", "-7", _column(S.SMALLINT, 500), -7),
    _Case("INTEGER", "100000", _column(S.INTEGER, 496), 100_000),
    _Case("BIGINT", "7001", _column(S.BIGINT, 580), 7001),
    _Case("FLOAT", "0.1", _column(S.FLOAT, 482), struct.unpack("<f", struct.pack("<f", 0.1))[0]),
    _Case("DOUBLE PRECISION", "0.1", _column(S.DOUBLE, 480), 0.1),
    _Case("BOOLEAN", "TRUE", _column(S.BOOLEAN, 32764), True),
    _Case("VARCHAR(40)", "'Żeton'", _text(S.TEXT, 448, 40, UTF8), "Żeton"),
    _Case("CHAR(5)", "'ab'", _text(S.PADDED_TEXT, 452, 5, _WIN1251), "ab   "),
    _Case("VARCHAR(40) CHARACTER SET NONE", "'abc'", _text(S.TEXT, 448, 40, NONE), "abc"),
    _Case("BLOB SUB_TYPE TEXT", "'note'", _blob_column(1, UTF8), _blob(b"note")),
    _Case(
        "TIME WITH TIME ZONE",
        "'11:14:07.1234 +02:00'",
        _column(S.TIME_TZ, 32756),
        struct.pack("<IH", _TIME, _UTC_PLUS_2),
    ),
    _Case(
        "TIMESTAMP WITH TIME ZONE",
        "'2026-03-02 10:14:07.1234 Europe/Paris'",
        _column(S.TIMESTAMP_TZ, 32754),
        struct.pack("<qH", _TIMESTAMP, _PARIS),
    ),
    _Case(
        "TIMESTAMP WITH TIME ZONE",
        "'9999-12-31 23:00 -02:00'",
        _column(S.TIMESTAMP_TZ, 32754),
        struct.pack("<qH", 2973484 * 864_000_000 + _TWO_HOURS // 2, _UTC_PLUS_2 - 240),
    ),
)
_DECIMALS = (
    _Case("NUMERIC(4,1)", "12.5", _numeric(S.SMALLINT, 500, 4, 1), 125),
    _Case("NUMERIC(9,3)", "1284.750", _numeric(S.INTEGER, 496, 9, 3), 1_284_750),
    _Case("DECIMAL(18,2)", "-0.05", _numeric(S.BIGINT, 580, 18, 2, kind=2), -5),
    _Case("NUMERIC(38,6)", "1.000000", _numeric(S.INT128, 32752, 38, 6), 1_000_000),
    _Case("NUMERIC(18,0)", "300", _numeric(S.BIGINT, 580, 18, 0), 300),
    _Case("NUMERIC(15,2) of dialect 1", "12.34", _numeric(S.DOUBLE, 480, 15, 2, kind=0), 12.34),
    _Case("INT128", "-129", _column(S.INT128, 32752), -129),
    _Case("DECFLOAT(16)", "7.50", _column(S.DECFLOAT16, 32760), _DECFLOAT16),
    _Case("DECFLOAT(34)", "5E+3", _column(S.DECFLOAT34, 32762), _DECFLOAT34),
)
_TIMES = (
    _Case("DATE", "'2026-03-02'", _column(S.DATE, 570), _DAY),
    _Case("TIME", "'09:14:07.1234'", _column(S.TIME, 560), _TIME),
    _Case("TIMESTAMP", "'2026-03-02 09:14:07.1234'", _column(S.TIMESTAMP, 510), _TIMESTAMP),
    _Case("TIMESTAMP", "'1969-12-31 23:59:59.9999'", _column(S.TIMESTAMP, 510), _BEFORE_1970),
)
_BINARIES = (
    _Case("BINARY(4)", "x'FBFF'", _text(S.OCTETS, 452, 4, OCTETS), b"\xfb\xff\0\0"),
    _Case("VARBINARY(8)", "x'FBFF'", _text(S.OCTETS, 448, 8, OCTETS), b"\xfb\xff"),
    _Case("BLOB SUB_TYPE BINARY", "x'FBFF'", _blob_column(0), _blob(b"\xfb\xff")),
    _Case("BLOB SUB_TYPE -7", "x'FBFF'", _blob_column(-7), _blob(b"\xfb\xff")),
    _Case(
        "BLOB SUB_TYPE TEXT CHARACTER SET OCTETS",
        "x'FBFF'",
        _blob_column(1, OCTETS),
        _blob(b"\xfb\xff"),
    ),
)
_ARRAYS = (
    _Case(
        "INTEGER[0:1, 2]",
        "1, 2, 3, 4",
        _array_column(8, 4, (0, 1), (1, 2)),
        _array(9, 0, 4, [0, 1, 1, 2], *(struct.pack("<i", n) for n in (1, 2, 3, 4))),
    ),
    _Case(
        "NUMERIC(9,2)[2]",
        "1.50, 0.00",
        _array_column(8, 4, (1, 2), scale=-2, sub_type=1, precision=9),
        _array(9, -2, 4, [1, 2], struct.pack("<i", 150), bytes(4)),
    ),
    _Case(
        "TIMESTAMP[1]",
        "'2026-03-02 09:14:07.1234'",
        _array_column(35, 8, (1, 1)),
        _array(16, 0, 8, [1, 1], struct.pack("<iI", _DAY, _TIME)),
    ),
    _Case(
        "VARCHAR(3)[2]",
        "'ab', ''",
        _array_column(37, 12, (1, 2), charset=UTF8, char_length=3),
        _array(3, 0, 14, [1, 2], b"\2\0ab".ljust(14, b"\0"), bytes(14)),
    ),
)
_NOT_NUMBERS = (
    _Case("FLOAT", "NaN", _column(S.FLOAT, 482), math.nan),
    _Case("DOUBLE PRECISION", "-Infinity", _column(S.DOUBLE, 480), -math.inf),
    _Case("NUMERIC(15,2) of dialect 1", "NaN", _numeric(S.DOUBLE, 480, 15, 2), math.nan),
    _Case("DECFLOAT(16)", "NaN", _column(S.DECFLOAT16, 32760), _NAN),
    _Case("DECFLOAT(16)", "sNaN", _column(S.DECFLOAT16, 32760), _SIGNALLING),
    _Case("DECFLOAT(16)", "Infinity", _column(S.DECFLOAT16, 32760), _INFINITY),
    _Case("NUMERIC(38,2)", _LARGEST_NUMERIC, _numeric(S.INT128, 32752, 38, 2), _LARGEST_INT128),
)
_UNREADABLE = (
    _Case(
        "BLOB SUB_TYPE TEXT",
        "its content could not be read",
        _blob_column(1, UTF8),
        _blob(b"", available=False),
    ),
    _Case(
        "BLOB SUB_TYPE BINARY",
        "its content could not be read",
        _blob_column(0),
        _blob(b"", available=False),
    ),
    _Case(
        "VARCHAR(40)",
        "bytes that are wrong in its character set",
        _text(S.TEXT, 448, 40, UTF8),
        Undecodable(b"\xff", UTF8),
    ),
    _Case(
        "VARCHAR(3)[2, 2]",
        "its content could not be read",
        _array_column(37, 12, (1, 2), (1, 2), charset=UTF8, char_length=3),
        _blob(b"", available=False),
    ),
    _Case(
        "INTEGER[2]",
        "its content could not be read",
        _array_column(8, 4, (1, 2)),
        _blob(b"", available=False),
    ),
)
_UNKNOWN = (
    _Case("a type that the plugin doesn't know", "any", _column(S.RAW, 9998), b"raw"),
    _Case(
        "VARCHAR(40) in an unknown character set",
        "any",
        _text(S.TEXT, 448, 40, _UNKNOWN_CHARSET),
        Undecodable(b"raw", _UNKNOWN_CHARSET),
    ),
    _Case(
        "an array of unknown elements",
        "any",
        _column(S.ARRAY, 540),
        _blob(b"raw"),
    ),
)

_INTRODUCTION = """\
# Types

<!-- Made from journal/events/values.py and journal/types/names.py by
`python -P scripts/types_page.py`; a test compares the two. -->

What a column of each type of Firebird becomes: the literal type of its field's schema, its
semantic type (the schema's name, always of version 1) and parameters, and an example as the JSON
converter writes it. Every value in these tables was made by the code that sends them.

- A column that may be NULL has an optional field, and NULL is null. Such a field has no default,
  whatever the column has: a reader could take null for it.
- The field of a NOT NULL column has the default of the column, or of its domain, if that is a
  literal: `DEFAULT 5`, `DEFAULT 'new'`, `DEFAULT DATE '2026-03-02'`; not `CURRENT_DATE` nor
  `'NOW'`. It is in the form of the field's values, as the engine would put it into a row. What
  depends on the session (a time without a zone for a column WITH TIME ZONE), has more digits than
  a double, names a month or is a number that the engine makes another of (`1e30` for an INT128) is
  left out; so is what takes more than 1000 bytes, and the default of a
  column that is hashed or that a converter of yours sends, and of a DECFLOAT in the mode `precise`
  (a struct: Kafka Connect's JSON and Debezium's JDBC sink take no default of one). A masked column
  has its mask for a default. Message keys have none: their bytes would change with it, and with
  these the partition.
- A domain counts as the type that it stands for. An IDENTITY column is of its own type. A
  COMPUTED BY column isn't sent: the server doesn't deliver it.
- BYTES are base64 in JSON, whatever they stand for, and bytes in Avro.
- `NaN` and infinities: see [below](#values-that-a-mode-cannot-express).
"""

_PLAIN_NOTES = """
- Texts are decoded by their column's character set. A CHAR keeps the blanks that pad it to its
  length in characters. CHARACTER SET NONE says nothing about its bytes: `connector.charset.none`
  names the set to read them in.
- A FLOAT is the number with the fewest digits that is the same in 32 bits, not the double that the
  32 bits are.
- Times with a zone are in UTC in every mode, and lose the name of their zone; journals keep it. A
  TIME WITH TIME ZONE in a region's zone is reckoned by the server, with the offset that the region
  had on 2020-01-01. A year beyond 9999, as UTC may have it, bears a plus sign.
"""

_DECIMAL_NOTES = """
- The bytes of a Decimal are its unscaled value as big-endian two's complement, as few as it needs.
- Firebird checks what the storage of a number holds, not the digits of its type: a NUMERIC(4,2)
  takes 327.67. So decimals declare the storage's digits, 5, 10 or 19, and 38 for what is kept in 16
  bytes (INT128, and NUMERIC and DECIMAL of more than 18 digits): the most that Spark, Arrow, Flink
  and Iceberg take. A value of 39 digits there [can't be sent](#values-that-a-mode-cannot-express);
  with `decimal.int128.precision: 39` these decimals declare 39, and it is. The modes `string` and
  `double` have no such limit.
- Dialect 1 keeps a NUMERIC of more than 9 digits as a double: it is rounded to its scale here,
  and declares 38 digits; a larger one can't be sent.
- A DECFLOAT keeps its exponent: 7.50 and 7.5 differ, and 5E+3 has the scale -3. In the mode
  `string` it is what Firebird prints. Negative zero loses its sign in the mode `precise`.
"""

_TIME_NOTES = """
- Firebird counts in 1/10000 s. The mode `connect` has milliseconds: the last digit is cut off, and
  what is before 1970 goes to the earlier millisecond too, so that times keep their order.
- A TIMESTAMP is taken as it stands on the clock, as if it were UTC; no zone of the server or of a
  client shifts it.
- What `isostring` gives has no semantic type: Debezium's own IsoDate, IsoTime and IsoTimestamp end
  in a Z, which would claim a zone that these values don't have.
"""

_BINARY_NOTES = """
- A BINARY has all its bytes, the zeros too that pad it.
- A BLOB SUB_TYPE TEXT in CHARACTER SET OCTETS is no text.
- A BLOB larger than `kafka.producer.max.request.size` isn't read. It is a value that
  [can't be sent](#values-that-a-mode-cannot-express), or, with
  `event.oversized.value: placeholder`, a [placeholder](events.md#headers).
"""

_ARRAY_NOTES = """
An array is an ARRAY of its elements' form, nested once for each dimension; elements follow the
modes above. They can't be NULL in Firebird, and what was never written to is zero. Bounds are not
sent. What fits no message is treated as such a BLOB; only an array of texts or binaries can have a
placeholder.
"""

_NO_FORM = """
Such a value is an error, and `event.processing.failure.handling.mode` decides what becomes of its
event: with `fail` its database is paused, with `warn` and `skip` the event is left out and waits
in the [quarantine](operations.md#the-quarantine). It is never sent with null in place of the
value: a consumer would take that for the row. Avro can express more than JSON, which has no NaN and
no infinities; Kafka Connect's own JSON converter writes them as texts, and reads 0.0 from these.
"""

_UNREADABLE_NOTES = """
`toasted.value.placeholder` stands for what could not be read, here `gone`; in binary values its
bytes, in the form of `binary.handling.mode`. An array has it as its only element, if elements are
texts or binary; other types have no value that could stand for what is missing, and that is an
error as [above](#values-that-a-mode-cannot-express).
"""

_UNKNOWN_NOTES = """
Columns of an unknown type or character set are left out, with a warning. With
`include.unknown.datatypes: true` they are sent as the bytes that the journal has. In a key they
always are: rows would share it otherwise. The elements of an array are unknown in journals that an
older plugin wrote, and in those whose tables the plugin could not ask the database about.
"""

_NAMES_NOTES = """
These names stand in schema changes and in the parameters that `column.propagate.source.type` adds;
`datatype.propagate.source.type` selects by the type's name. The codes are those of
`java.sql.Types`, as Firebird's JDBC driver has them.
"""


def render() -> str:
    """Return the text of docs/types.md."""
    return "\n".join(_lines()).rstrip("\n") + "\n"


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    yield "## Types that no option changes\n"
    yield from _table(
        ("Firebird", "Value", "Literal", "Semantic type", "JSON"),
        ((_declared(case), _code(case.sql), *_sent(case, ValueModes())) for case in _PLAIN),
    )
    yield _PLAIN_NOTES.lstrip()
    for option, cases, modes, notes in (
        ("decimal.handling.mode", _DECIMALS, _DECIMAL_MODES, _DECIMAL_NOTES),
        ("time.precision.mode", _TIMES, _TIME_MODES, _TIME_NOTES),
        ("binary.handling.mode", _BINARIES, _BINARY_MODES, _BINARY_NOTES),
    ):
        yield f"## `{option}`\n"
        yield from _table(
            ("Firebird", "Value", "Mode", "Literal", "Semantic type", "JSON"),
            (row for case in cases for row in _by_mode(case, modes)),
        )
        yield notes.lstrip()
    yield "## Arrays"
    yield _ARRAY_NOTES
    yield from _table(
        ("Firebird", "Elements", "Literal", "Semantic type of elements", "JSON"),
        ((_declared(case), _code(case.sql), *_sent(case, ValueModes())) for case in _ARRAYS),
    )
    yield "## Values that a mode cannot express"
    yield _NO_FORM
    yield from _table(
        ("Firebird", "Value", "Mode", "JSON", "Avro"),
        (row for case in _NOT_NUMBERS for row in _expressed(case)),
    )
    yield "## What cannot be read"
    yield _UNREADABLE_NOTES
    yield from _table(
        ("Firebird", "What happened", "Literal", "JSON"),
        (
            (_declared(case), case.sql, literal, json)
            for case in _UNREADABLE
            for literal, _, json in [_sent(case, ValueModes(placeholder="gone"))]
        ),
    )
    yield "## Unknown types"
    yield _UNKNOWN_NOTES
    yield from _table(
        ("Column", "`false`", "`true`", "JSON"),
        (
            (case.declared, _left_out(case.column), literal, json)
            for case in _UNKNOWN
            for literal, _, json in [_sent(case, ValueModes(unknown_types=True))]
        ),
    )
    yield "## Names of types"
    yield _NAMES_NOTES
    every = (*_PLAIN, *_DECIMALS, *_TIMES, *_BINARIES, *_ARRAYS)
    columns = {case.declared: case.column for case in every}
    yield from _table(
        ("Firebird", "Name", "Expression", "Length", "Scale", "JDBC", "Native"),
        (
            (
                _code(declared),
                _code(type_name(column)),
                _code(type_expression(column)),
                *(("" if n is None else str(n)) for n in (type_length(column), type_scale(column))),
                str(jdbc_type(column)),
                str(column.sql_type),
            )
            for declared, column in columns.items()
        ),
    )


_DECIMAL_MODES = {mode: ValueModes(decimal=mode) for mode in ("precise", "double", "string")}
_TIME_MODES = {
    mode: ValueModes(time=mode)
    for mode in ("adaptive", "adaptive_time_microseconds", "connect", "isostring")
}
_BINARY_MODES = {
    mode: ValueModes(binary=mode) for mode in ("bytes", "base64", "base64-url-safe", "hex")
}


def _by_mode(case: _Case, modes: dict[str, ValueModes]) -> Iterator[tuple[str, ...]]:
    """A row for each mode of an option; modes in a row that do the same share one."""
    named = [(_code(name), _sent(case, mode)) for name, mode in modes.items()]
    for sent, alike in groupby(named, key=lambda item: item[1]):
        yield _declared(case), _code(case.sql), ", ".join(name for name, _ in alike), *sent


def _sent(case: _Case, modes: ValueModes) -> tuple[str, str, str]:
    """Literal type, semantic type with parameters, and the value in JSON."""
    form = field_form(case.column, modes)
    assert form is not None
    schema, literal = form.schema, []
    while schema.type == "array":
        literal.append("ARRAY of ")
        assert schema.items is not None
        schema = schema.items
    literal.append(_literal(schema))
    try:
        json = _code(_json(form.function()(case.value)))
    except BadValue as error:
        json = f"error: {error}"
    return "".join(literal), _semantic(schema), json


def _expressed(case: _Case) -> Iterator[tuple[str, ...]]:
    """A row for each mode of decimals that matters: what JSON and Avro make of the value."""
    plain = case.column.storage in (S.FLOAT, S.DOUBLE) and not case.column.scale
    for mode in ("any",) if plain else _DECIMAL_MODES:
        decimal = "precise" if plain else mode
        cells = []
        for non_finite in (False, True):
            form = field_form(case.column, ValueModes(decimal=decimal, non_finite=non_finite))
            assert form is not None
            try:
                value = form.function()(case.value)
            except BadValue:
                cells.append("error")
            else:
                cells.append(_code(_NAMES_OF_SPECIALS.get(str(value), str(value))))
        yield _declared(case), _code(case.sql), mode if plain else _code(mode), *cells


_NAMES_OF_SPECIALS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _left_out(column: Column) -> str:
    return "left out" if field_form(column, ValueModes()) is None else "sent"


def _literal(schema: Schema) -> str:
    if schema.fields:
        inner = ", ".join(f"`{name}` {_literal(field)}" for name, field in schema.fields)
        return f"STRUCT {{{inner}}}"
    return {"float": "FLOAT32", "double": "FLOAT64"}.get(schema.type, schema.type.upper())


def _semantic(schema: Schema) -> str:
    parameters = ", ".join(f"`{name}` {value}" for name, value in schema.parameters.items())
    return ", ".join(part for part in (schema.name and _code(schema.name), parameters) if part)


def _json(value: Any) -> str:
    return json_bytes.dumps(value, default=lambda raw: b64encode(raw).decode()).decode()


def _declared(case: _Case) -> str:
    return _code(case.declared)


def _code(text: str) -> str:
    return f"`{text}`"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    heads = tuple(heads)
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(render())
