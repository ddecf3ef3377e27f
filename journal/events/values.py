"""Column values as Kafka Connect has them: for each column its field's schema and its form.

A form makes the physical value (see ``journal.events.schema``) of a value as ``journal.format``
yields it. It is an expression in Python, so that a row becomes one compiled expression: most types
need no call for each value. docs/types.md lists all forms; ``scripts/types_page.py`` writes it by
asking this module.
"""

from __future__ import annotations

import codecs
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache, partial
from math import isfinite, isnan, prod
from typing import Any, NamedTuple, NoReturn, TypeVar

from firebird_cdc.errors import ShipError
from firebird_cdc.journal.events.schema import BOOLEAN, BYTES, INT32, INT64, STRING, Schema
from firebird_cdc.journal.events.schema import struct as struct_schema
from firebird_cdc.journal.format import Blob, Column, Storage, Undecodable
from firebird_cdc.journal.format.charsets import NONE, OCTETS, codec_of, name_of
from firebird_cdc.journal.types.arrays import decode_array, element_of
from firebird_cdc.journal.types.decfloat import decode_decfloat, split_decfloat
from firebird_cdc.journal.types.names import (
    HELD_DIGITS,
    decimal_precision,
    is_decimal,
    is_text_blob,
    type_expression,
    type_name,
)
from firebird_cdc.journal.types.numbers import (
    UNIX_DAY,
    UNIX_UNITS,
    iso_date,
    iso_time,
    iso_timestamp,
    plain_decimal,
    shortest_float,
)

Convert = Callable[[Any], Any]

T = TypeVar("T")


class BadValue(ShipError):
    """A value has no form in the chosen mode. The text says which and names the way out."""


class TooLarge(BadValue):
    """A value, or the message that it makes with others, is larger than what the producer takes."""


UNREAD, UNDECODED = "unread", "undecoded"
"""Kinds of values in whose place a placeholder stands, beside those that are too large: who wrote
the journal, or read the row, was not given the content; the bytes make no value."""


class UnsentWatch:
    """Watch on such values: ``count`` grows with each placeholder that a form puts in the place of
    one; ``kind``: that of the last one."""

    __slots__ = ("count", "kind")

    def __init__(self) -> None:
        self.count = 0
        self.kind = ""

    def saw(self, kind: str) -> None:
        """A placeholder stands for a value of KIND."""
        self.count += 1
        self.kind = kind


@dataclass(frozen=True, slots=True)
class ValueModes:
    """The options that choose the form of values (names as in ``ConnectorConfig``)."""

    decimal: str = "precise"
    time: str = "adaptive"
    binary: str = "bytes"
    placeholder: str | None = "__debezium_unavailable_value"
    """None, for keys: rows that can't be read would otherwise all have the same one."""
    charset_none: str = "UTF-8"
    unknown_types: bool = False
    """Send columns of unknown type as bytes instead of leaving them out."""
    max_bytes: int = 1_000_000
    """Largest message the producer takes; a blob beyond it is refused before it is read."""
    non_finite: bool = False
    """The converter can write NaN and infinities: Avro can, JSON can't."""
    int128_digits: int = 38
    """Digits of the decimals in 16 bytes, which hold 39; what has more than these is refused."""
    held_digits: bool = True
    """Decimals declare all digits that their storage holds, not those of their column."""
    text_head: int | None = None
    """So many characters of a text BLOB are wanted, from its beginning; None: all."""
    unsent: UnsentWatch = field(default_factory=UnsentWatch, compare=False)
    """Hears of the values in whose place a placeholder stands."""


@dataclass(frozen=True, slots=True)
class FieldForm:
    """Form in which a column is sent: the schema of its field, and what makes its values.

    ``expression``: Python text of the physical form of a non-null value; ``{v}`` in it stands
    for the value, ``{f}`` for ``convert``, and no other names but builtins are used. What it
    raises is BadValue, or an error of the journal where the content of a BLOB is read.
    ``of_null``: the same for null; anything but None hides which values are null.
    ``placeholder``: the form of the placeholder, which stands for values that are too large; None
    where no value of the field can tell that something is missing. ``tells_default``: what it
    makes of the column's default may be told in its schema.
    """

    schema: Schema
    expression: str
    convert: Convert | None = None
    of_null: str = "None"
    placeholder: Any = None
    tells_default: bool = True

    def function(self) -> Convert:
        """The expression as a function of a value, null included."""
        expression = self.expression.replace("{v}", "v").replace("{f}", "f")
        of_null = self.of_null.replace("{f}", "f")
        source = f"lambda v: {of_null} if v is None else {expression}"
        made: Convert = eval(source, {"f": self.convert})  # noqa: S307 (ours)
        return made


class _Form(NamedTuple):
    """A field form whose schema isn't optional yet."""

    schema: Schema
    expression: str
    convert: Convert | None = None
    placeholder: Any = None

    def function(self) -> Convert:
        """The expression as a function of a value, null included."""
        return FieldForm(self.schema, self.expression, self.convert).function()


def field_form(column: Column, modes: ValueModes) -> FieldForm | None:
    """Return how COLUMN is sent, or None if it is left out: its type or charset is unknown.

    Columns that are alike share their schema.
    """
    form = _form(column, modes) or (_unknown(column, modes) if modes.unknown_types else None)
    if form is None:
        return None
    return FieldForm(
        _optional(form.schema, column.nullable),
        form.expression,
        form.convert,
        placeholder=form.placeholder,
    )


@lru_cache(maxsize=4096)
def _optional(schema: Schema, optional: bool) -> Schema:
    return schema.as_optional(optional)


def _form(column: Column, modes: ValueModes) -> _Form | None:
    storage = column.storage
    if storage is Storage.INT128 or is_decimal(column):
        return (_dialect_1_numeric if storage is Storage.DOUBLE else _decimal)(column, modes)
    if storage in _PLAIN:
        return _PLAIN[storage]
    if storage in (Storage.FLOAT, Storage.DOUBLE):
        return _float(storage, modes)
    if storage in (Storage.TEXT, Storage.PADDED_TEXT):
        return _text(column, modes)
    if storage is Storage.OCTETS:
        return _binary(modes)
    if storage is Storage.BLOB:
        is_text = is_text_blob(column) and column.charset_id != OCTETS
        return _text_blob(column, modes) if is_text else _binary_blob(modes)
    if storage is Storage.ARRAY:
        return _array(column, modes)
    if storage in (Storage.DECFLOAT16, Storage.DECFLOAT34):
        return _decfloat(modes)
    return _ZONED.get(storage) or _TEMPORAL[modes.time].get(storage)


# Plain values (docs/types.md, "Types that no option changes")


_INT16 = Schema("int16")
_FLOAT = Schema("float")
_DOUBLE = Schema("double")
_PLAIN = {
    Storage.SMALLINT: _Form(_INT16, "{v}"),
    Storage.INTEGER: _Form(INT32, "{v}"),
    Storage.BIGINT: _Form(INT64, "{v}"),
    Storage.BOOLEAN: _Form(BOOLEAN, "{v}"),
}


def _finite_float(value: float) -> float:
    return shortest_float(value) if isfinite(value) else _not_finite(value)


def _not_finite(value: float) -> float:
    raise BadValue(
        f"{value} cannot be written as a JSON number; value.converter: avro can carry it"
    )


def _float(storage: Storage, modes: ValueModes) -> _Form:
    if storage is Storage.FLOAT:
        return _Form(_FLOAT, "{f}({v})", shortest_float if modes.non_finite else _finite_float)
    if modes.non_finite:
        return _Form(_DOUBLE, "{v}")
    # 1e999 is infinite; a comparison with NaN is false.
    return _Form(_DOUBLE, "({v} if -1e999 < {v} < 1e999 else {f}({v}))", _not_finite)


def _codec(column: Column, modes: ValueModes) -> str | None:
    return modes.charset_none if column.charset_id == NONE else codec_of(column.charset_id)


TEXT = "({v} if type({v}) is str else {f}({v}))"
"""Expression of texts."""


def _text(column: Column, modes: ValueModes) -> _Form | None:
    if _codec(column, modes) is None:
        return None
    missing = placeholder_text(modes.placeholder)
    # The reader hands over an Undecodable where the charset doesn't fit the bytes.
    return _Form(STRING, TEXT, lambda _: _undecoded(column, missing, modes), missing)


def _undecoded(column: Column, missing: str | None, modes: ValueModes) -> str:
    """Return MISSING in the place of a text of COLUMN, whose bytes make none."""
    if missing is None:
        charset = name_of(column.charset_id)
        raise BadValue(
            f"its bytes are no text in character set {charset}, and a placeholder is no key"
            + ("; set connector.charset.none" if column.charset_id == NONE else "")
        )
    modes.unsent.saw(UNDECODED)
    return missing


def _unread(missing: T | None, modes: ValueModes) -> T:
    """Return MISSING in the place of a BLOB that has no content."""
    if missing is None:
        raise BadValue("the content of a blob could not be read, and a placeholder is no key")
    modes.unsent.saw(UNREAD)
    return missing


# Decimals (5.3)


UNSCALED = "{v}.to_bytes(({v} if {v} >= 0 else ~{v}).bit_length() // 8 + 1, 'big', signed=True)"
"""Expression of decimals."""


def unscaled_bytes(value: int) -> bytes:
    """A Connect Decimal's bytes: the shortest big-endian two's complement of VALUE."""
    return value.to_bytes(
        (value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True
    )


def _decimal(column: Column, modes: ValueModes) -> _Form:
    scale = -column.scale
    if modes.decimal == "string":
        return (
            _Form(STRING, "{f}({v})", _decimal_text(scale)) if scale else _Form(STRING, "str({v})")
        )
    if modes.decimal == "double":
        # Division of integers rounds once, and so gives the double next to the decimal.
        number = f"({{v}} / {10**scale})" if scale > 0 else f"float({{v}} * {10**-scale})"
        return _Form(_DOUBLE, number)
    if not modes.held_digits:
        return _Form(_decimal_schema(scale, decimal_precision(column)), UNSCALED)
    held = HELD_DIGITS.get(column.storage)
    if held is not None:
        return _Form(_decimal_schema(scale, held), UNSCALED)
    digits = modes.int128_digits if column.storage is Storage.INT128 else _DOUBLES_DIGITS
    schema = _decimal_schema(scale, digits)
    if digits >= _INT128_DIGITS:
        return _Form(schema, UNSCALED)
    checked = f"({UNSCALED} if -{10**digits} < {{v}} < {10**digits} else {{f}}({{v}}))"
    return _Form(schema, checked, partial(_too_many_digits, column.storage, scale, digits))


_INT128_DIGITS = 39
_DOUBLES_DIGITS = 38  # of a NUMERIC in dialect 1, which may be as large as a double


def _too_many_digits(storage: Storage, scale: int, digits: int, value: int) -> NoReturn:
    ways = "decimal.handling.mode: string can carry it"
    if storage is Storage.INT128:
        ways = f"decimal.int128.precision: {_INT128_DIGITS} declares one more, and {ways} too"
    raise BadValue(
        f"{plain_decimal(value, scale)} has {len(str(abs(value)))} digits, and its decimal is"
        f" declared with {digits}, the most that Spark, Arrow, Flink and Iceberg take; {ways}"
    )


@lru_cache(maxsize=1024)
def _decimal_schema(scale: int, precision: int) -> Schema:
    return Schema(
        "bytes",
        name="org.apache.kafka.connect.data.Decimal",
        version=1,
        parameters={"scale": str(scale), "connect.decimal.precision": str(precision)},
    )


def _decimal_text(scale: int) -> Convert:
    if scale < 0:
        return partial(plain_decimal, scale=scale)
    form = f"%d.%0{scale}d"
    unit: int = 10**scale

    def text(value: int) -> str:
        sign, value = ("", value) if value >= 0 else ("-", -value)
        return sign + form % divmod(value, unit)

    return text


def _dialect_1_numeric(column: Column, modes: ValueModes) -> _Form:
    """A NUMERIC that dialect 1 keeps in a double: a decimal for the user all the same."""
    scale = -column.scale
    form = _decimal(column, modes)
    of_unscaled = form.function()

    def convert(value: float) -> Any:
        if isfinite(value):
            return of_unscaled(round(Decimal(repr(value)).scaleb(scale)))
        if modes.decimal == "string":
            return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
        if modes.decimal == "double" and modes.non_finite:
            return value
        raise BadValue(
            f"{value} cannot be written as a NUMERIC of scale {scale};"
            " decimal.handling.mode: string can carry it"
        )

    return _Form(form.schema, "{f}({v})", convert)


_VARIABLE_SCALE = struct_schema(
    "io.debezium.data.VariableScaleDecimal",
    ("scale", INT32),
    ("value", BYTES),
    version=1,
    doc="Variable scaled decimal",
)


def _decfloat(modes: ValueModes) -> _Form:
    if modes.decimal == "string":
        return _Form(STRING, "str({f}({v}))", decode_decfloat)
    if modes.decimal == "double":
        return _Form(
            _DOUBLE, "{f}({v})", _decfloat_double if modes.non_finite else _finite_decfloat_double
        )
    return _Form(_VARIABLE_SCALE, "{f}({v})", _decfloat_struct)


def _finite_decfloat_double(raw: bytes) -> float:
    value = _decfloat_double(raw)
    if isfinite(value):
        return value
    raise BadValue(
        f"DECFLOAT {decode_decfloat(raw)} cannot be written as a JSON number;"
        " decimal.handling.mode: string can carry it"
    )


def _decfloat_double(raw: bytes) -> float:
    value = decode_decfloat(raw)
    if value.is_nan():
        return float("nan")  # float() refuses a signalling one
    number = float(value)
    if isfinite(number) or value.is_infinite():
        return number
    raise BadValue(
        f"DECFLOAT {value} is larger than any double; decimal.handling.mode: string can carry it"
    )


def _decfloat_struct(raw: bytes) -> dict[str, Any]:
    parts = split_decfloat(raw)
    if isinstance(parts, str):
        raise BadValue(
            f"DECFLOAT {parts} has no precise form; decimal.handling.mode: string can carry it"
        )
    sign, coefficient, exponent = parts
    return {"scale": -exponent, "value": unscaled_bytes(-coefficient if sign else coefficient)}


# Binary values (5.4) and what cannot be read (5.5)


def placeholder_bytes(placeholder: str | None) -> bytes | None:
    """The placeholder as bytes; ``hex:`` in front means hexadecimal digits."""
    if placeholder is None:
        return None
    if placeholder.startswith("hex:"):
        return bytes.fromhex(placeholder[4:])
    return placeholder.encode()


def placeholder_text(placeholder: str | None) -> str | None:
    """The placeholder as text."""
    raw = placeholder_bytes(placeholder)
    return None if raw is None else raw.decode("utf-8", "replace")


_BINARY = {
    "bytes": _Form(BYTES, "{v}"),
    "base64": _Form(STRING, "{f}({v}).decode()", b64encode),
    "base64-url-safe": _Form(STRING, "{f}({v}).decode()", urlsafe_b64encode),
    "hex": _Form(STRING, "{v}.hex()"),
}


def _binary(modes: ValueModes) -> _Form:
    form = _BINARY[modes.binary]
    return form._replace(placeholder=form.function()(placeholder_bytes(modes.placeholder)))


def _content(blob: Blob, modes: ValueModes) -> bytes:
    if blob.length > modes.max_bytes:
        raise TooLarge(
            f"a blob of {blob.length} bytes does not fit into a message of {modes.max_bytes}"
            " bytes; raise kafka.producer.max.request.size"
        )
    return blob.read()


def _binary_blob(modes: ValueModes) -> _Form:
    form = _binary(modes)
    encode, missing = form.function(), form.placeholder

    def convert(blob: Blob) -> Any:
        if blob.available:
            return encode(_content(blob, modes))
        return _unread(missing, modes)

    return _Form(form.schema, "{f}({v})", convert, missing)


def _text_blob(column: Column, modes: ValueModes) -> _Form | None:
    codec = _codec(column, modes)
    if codec is None:
        return None
    missing = placeholder_text(modes.placeholder)
    head = modes.text_head

    def convert(blob: Blob) -> str:
        if not blob.available:
            return _unread(missing, modes)
        try:
            if head is not None and head < modes.max_bytes:
                return _head(blob, codec, head)
            return _content(blob, modes).decode(codec)
        except UnicodeError:
            return _undecoded(column, missing, modes)

    return _Form(STRING, "{f}({v})", convert, missing)


def _head(blob: Blob, codec: str, characters: int) -> str:
    """The first CHARACTERS of a text, without reading what follows."""
    decoder = codecs.getincrementaldecoder(codec)()
    text = ""
    for chunk in blob.chunks():
        text += decoder.decode(chunk)
        if len(text) >= characters:
            return text[:characters]
    return text + decoder.decode(b"", final=True)


def _array(column: Column, modes: ValueModes) -> _Form | None:
    """Lists of lists, one level for each dimension, of elements in the form of their type."""
    element = element_of(column)
    if element is None or column.element is None or (form := _form(element, modes)) is None:
        return None
    bounds = column.element.bounds
    count = prod(upper - lower + 1 for lower, upper in bounds)
    missing = _missing_array(element, len(bounds), modes)
    schema = form.schema
    for _ in bounds:
        schema = _array_schema(schema)
    each = form.function()

    def unsent(kind: str, why: str) -> Any:
        if missing is None:
            raise BadValue(f"{why}, and no {type_name(element)} stands for what is missing")
        modes.unsent.saw(kind)
        return missing

    def convert(blob: Blob) -> Any:
        if count > modes.max_bytes:
            raise TooLarge(
                f"an array of {count} elements does not fit into a message of {modes.max_bytes}"
                " bytes; raise kafka.producer.max.request.size"
            )
        if not blob.available:
            return unsent(UNREAD, "the content of an array could not be read")
        try:
            array = decode_array(_content(blob, modes), column, modes.charset_none)
        except ValueError as error:
            return unsent(UNDECODED, str(error))
        found = (array.element.storage, array.element.scale, len(array.bounds))
        if found != (element.storage, element.scale, len(bounds)):
            return unsent(
                UNDECODED,
                f"an array in {len(array.bounds)} dimensions of {array.element.storage.name}, scale"
                f" {array.element.scale}, is no {type_expression(column)}",
            )
        return array.values if form.expression == "{v}" else _each(array.values, len(bounds), each)

    return _Form(schema, "{f}({v})", convert, missing)


def _missing_array(element: Column, depth: int, modes: ValueModes) -> list[Any] | None:
    """Return the placeholder of an array that can't be read; None: no number or time tells that."""
    if modes.placeholder is None:
        return None
    if element.storage in (Storage.TEXT, Storage.PADDED_TEXT):
        missing: Any = placeholder_text(modes.placeholder)
    elif element.storage is Storage.OCTETS:
        missing = _binary(modes).placeholder
    else:
        return None
    for _ in range(depth):
        missing = [missing]
    return list(missing)


def _each(values: list[Any], depth: int, convert: Convert) -> list[Any]:
    if depth == 1:
        return [convert(value) for value in values]
    return [_each(inner, depth - 1, convert) for inner in values]


@lru_cache(maxsize=1024)
def _array_schema(items: Schema) -> Schema:
    return Schema("array", items=items)


def _unknown(column: Column, modes: ValueModes) -> _Form:
    """A column that can't be decoded, as the bytes it has in the journal."""
    if column.storage in (Storage.BLOB, Storage.ARRAY):
        return _binary_blob(replace(modes, binary="bytes"))
    if column.storage is Storage.RAW:
        return _Form(BYTES, "{v}")
    return _Form(BYTES, "{f}({v})", _raw_text)


def _raw_text(value: Undecodable) -> bytes:
    return value.raw


# Dates and times (5.2)


def _utc_time(raw: bytes) -> str:
    return iso_time(int.from_bytes(raw[:4], "little")) + "Z"


def _utc_timestamp(raw: bytes) -> str:
    return iso_timestamp(int.from_bytes(raw[:8], "little", signed=True)) + "Z"


def _semantic(literal: str, name: str, expression: str, convert: Convert | None = None) -> _Form:
    return _Form(Schema(literal, name=name, version=1), expression, convert)


# Text in every mode: TIME is in UTC as the engine reckons it, for regions by their offset on
# its fixed date.
_ZONED = {
    Storage.TIME_TZ: _semantic("string", "io.debezium.time.ZonedTime", "{f}({v})", _utc_time),
    Storage.TIMESTAMP_TZ: _semantic(
        "string", "io.debezium.time.ZonedTimestamp", "{f}({v})", _utc_timestamp
    ),
}

ADAPTIVE = {
    Storage.DATE: _semantic("int32", "io.debezium.time.Date", f"({{v}} - {UNIX_DAY})"),
    Storage.TIME: _semantic("int64", "io.debezium.time.MicroTime", "({v} * 100)"),
    Storage.TIMESTAMP: _semantic(
        "int64", "io.debezium.time.MicroTimestamp", f"(({{v}} - {UNIX_UNITS}) * 100)"
    ),
}

# The fourth digit is cut, before 1970 too: // goes to the earlier millisecond, as Java's
# Instant.toEpochMilli does, while cutting the number of units would go to the later one.
_CONNECT = {
    Storage.DATE: _semantic("int32", "org.apache.kafka.connect.data.Date", f"({{v}} - {UNIX_DAY})"),
    Storage.TIME: _semantic("int32", "org.apache.kafka.connect.data.Time", "({v} // 10)"),
    Storage.TIMESTAMP: _semantic(
        "int64", "org.apache.kafka.connect.data.Timestamp", f"(({{v}} - {UNIX_UNITS}) // 10)"
    ),
}

# Texts without a name: Debezium's IsoDate, IsoTime and IsoTimestamp end in a Z, and their readers
# insist on it, while these values are in no zone.
_ISO = {
    Storage.DATE: _Form(STRING, "{f}({v})", iso_date),
    Storage.TIME: _Form(STRING, "{f}({v})", iso_time),
    Storage.TIMESTAMP: _Form(STRING, "{f}({v})", iso_timestamp),
}

_TEMPORAL = {
    "adaptive": ADAPTIVE,
    "adaptive_time_microseconds": ADAPTIVE,
    "connect": _CONNECT,
    "isostring": _ISO,
}
