"""The kinds of columns that Firebird has: how to make values of each, and how each must arrive.

What arrives is told from the driver's reading of a row, never from what was put in.
"""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Context, Decimal
from typing import Any

from hypothesis import strategies as st

Value = Any
"""A column's value as firebird-driver reads it."""


@dataclass(frozen=True, slots=True)
class Modes:
    """The options that choose the form of values, and what each is in the configuration."""

    decimal: str = "precise"
    time: str = "adaptive"
    binary: str = "bytes"
    charset_none: str = "UTF-8"

    def lines(self) -> tuple[str, ...]:
        return (
            f"decimal.handling.mode: {self.decimal}",
            f"time.precision.mode: {self.time}",
            f"binary.handling.mode: {self.binary}",
            f"connector.charset.none: {self.charset_none}",
        )


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of column.

    ``sql``: its type. ``values``: of those that go into a table, each bound by ``bound``, an SQL
    expression around ``?``; ``extremes`` are such values too. ``read``: the expression that the
    driver can read, around the column. ``sent``: the value that has to arrive, of the one read.
    ``type``: the schema's type and semantic name under a mode, of an element if it is an array;
    ``dimensions``: those of an array.
    """

    sql: str
    values: st.SearchStrategy[Any]
    extremes: Sequence[Any]
    sent: Callable[[Value, Modes], Any]
    type: Callable[[Modes], tuple[str, str | None]]
    bound: str = "?"
    read: str = "{}"
    in_keys: bool = True
    dimensions: int = 0


def _as_it_is(value: Value, modes: Modes) -> Any:
    return value


def _plain(kind: str) -> Callable[[Modes], tuple[str, str | None]]:
    return lambda modes: (kind, None)


# ---- Numbers


def _integer(sql: str, bits: int, kind: str) -> Kind:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return Kind(sql, st.integers(low, high), (low, high, 0), _as_it_is, _plain(kind))


def _decimal(value: Decimal, modes: Modes) -> Any:
    """A NUMERIC, which the driver reads with as many digits behind the point as it has."""
    if modes.decimal == "double":
        return float(value)
    return f"{value:f}" if modes.decimal == "string" else value


_DECIMAL = {
    "precise": ("bytes", "org.apache.kafka.connect.data.Decimal"),
    "double": ("double", None),
    "string": ("string", None),
}


def numeric(kind: str, precision: int, scale: int) -> Kind:
    """Return a NUMERIC or DECIMAL, with all that its storage holds: the engine checks no less.

    Of 128 bits that is all with 38 digits; `firebird_cdc` refuses more unless told otherwise.
    """
    storages = _STORAGES if kind == "NUMERIC" else _STORAGES[1:]
    bits = next((bits for digits, bits in storages if precision <= digits), 0)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if bits else (-_MOST, _MOST)

    def text(unscaled: int) -> str:
        return f"{Decimal(unscaled).scaleb(-scale, _EXACTLY):f}"

    sql = f"{kind}({precision}, {scale})"
    return Kind(
        sql,
        st.integers(low, high).map(text),
        (text(low), text(high), text(1), text(0)),
        _decimal,
        lambda modes: _DECIMAL[modes.decimal],
        f"CAST(? AS {sql})",
    )


# Digits of a declaration, and the bits that they are kept in; a DECIMAL never has 16.
_STORAGES = ((4, 16), (9, 32), (18, 64))
_MOST = 10**38 - 1
_EXACTLY = Context(prec=60)


def _int128() -> Kind:
    return Kind(
        "INT128",
        st.integers(-_MOST, _MOST).map(str),
        (str(-_MOST), str(_MOST), "0", str(2**64)),
        lambda value, modes: _decimal(Decimal(int(value)), modes),
        lambda modes: _DECIMAL[modes.decimal],
        "CAST(? AS INT128)",
    )


def _sent_decfloat(value: Decimal, modes: Modes) -> Any:
    if modes.decimal == "double":
        return float(value)
    if modes.decimal == "string":
        return str(value)
    # A zero has no sign there.
    return value if value else value.copy_abs()


def _decfloat(digits: int, least: int, most: int) -> Kind:
    longest = 10**digits - 1
    numbers = st.builds(
        "{}E{}".format, st.integers(-longest, longest), st.integers(-min(-least, 250), 250)
    )
    return Kind(
        f"DECFLOAT({digits})",
        numbers,
        ("0", "-0", "0E-3", "1.00", "-1E+2", "0.10", f"-{longest}E-3", "1E-300", "7E+280"),
        _sent_decfloat,
        lambda modes: {
            **_DECIMAL,
            "precise": ("struct", "io.debezium.data.VariableScaleDecimal"),
        }[modes.decimal],
        f"CAST(? AS DECFLOAT({digits}))",
    )


def _floating(sql: str, width: int, kind: str, extremes: Sequence[float]) -> Kind:
    numbers = st.floats(width=width, allow_nan=False, allow_infinity=False)
    return Kind(sql, numbers, (0.0, -0.0, 0.1, *extremes), _as_it_is, _plain(kind))


# ---- Texts and bytes


def _text(sql: str, length: int, letters: st.SearchStrategy[str], *extremes: str) -> Kind:
    texts = st.text(letters, max_size=length)
    return Kind(sql, texts, ("", " ", *extremes), _as_it_is, _plain("string"))


# Any but surrogates; Firebird's NUL is a character like others.
_ANY = st.characters(exclude_categories=("Cs",))
_CYRILLIC = st.sampled_from("abc XYZ09'\"\\\n\x7fЁёАяжЂ№€…§")
_LATIN = st.sampled_from("abc XYZ09'\"\\éÿñß£¥×÷Ø")
_ASCII = st.characters(max_codepoint=127)


def _of_no_charset(sql: str, length: int) -> Kind:
    """Text of character set NONE: bytes, which connector.charset.none explains."""
    raw = st.text(st.sampled_from("abc 09жЁя"), max_size=length // 2)
    return Kind(
        sql,
        raw.map(lambda text: text.encode("utf-8")),
        (b"", "жя".encode()),
        lambda value, modes: value.decode(modes.charset_none),
        _plain("string"),
        f"CAST(CAST(? AS VARCHAR({length}) CHARACTER SET OCTETS) AS {sql})",
        f"CAST({{}} AS VARCHAR({length}) CHARACTER SET OCTETS)",
    )


_BINARY: dict[str, Callable[[bytes], Any]] = {
    "bytes": lambda value: value,
    "base64": lambda value: b64encode(value).decode(),
    "base64-url-safe": lambda value: urlsafe_b64encode(value).decode(),
    "hex": bytes.hex,
}


def _octets(sql: str, length: int, *extremes: bytes, in_keys: bool = True) -> Kind:
    return Kind(
        sql,
        st.binary(max_size=length),
        (b"", b"\0", *extremes, b"\xfb\xff\xfe"),
        lambda value, modes: _BINARY[modes.binary](value),
        lambda modes: ("bytes" if modes.binary == "bytes" else "string", None),
        in_keys=in_keys,
    )


def _text_blob(charset: str, letters: st.SearchStrategy[str]) -> Kind:
    texts = st.one_of(
        st.text(letters, max_size=30), st.builds(str.__mul__, st.text(letters), st.just(300))
    )
    sql = f"BLOB SUB_TYPE TEXT CHARACTER SET {charset}"
    return Kind(sql, texts, ("", "abc"), _as_it_is, _plain("string"), in_keys=False)


# ---- Dates and times


def _to_millisecond(moment: Any) -> Any:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _iso(value: Any) -> str:
    """As in docs/types.md: no digits behind the seconds that say nothing."""
    text: str = value.isoformat()
    return text.rstrip("0") if "." in text else text


def _temporal(sql: str, values: st.SearchStrategy[Any], *extremes: Any, name: str) -> Kind:
    """A kind without a time zone. NAME: the part that its semantic types have in common.

    As texts: firebird-driver can't bind a date before 1858-11-17.
    """
    micro = name if name == "Date" else f"Micro{name}"

    def sent(value: Any, modes: Modes) -> Any:
        if modes.time == "isostring":
            return _iso(value)
        cut = modes.time == "connect" and name != "Date"
        return _to_millisecond(value) if cut else value

    def kind(modes: Modes) -> tuple[str, str | None]:
        if modes.time == "isostring":
            return "string", None
        if modes.time == "connect":
            size = "int64" if name == "Timestamp" else "int32"
            return size, f"org.apache.kafka.connect.data.{name}"
        return ("int32" if name == "Date" else "int64"), f"io.debezium.time.{micro}"

    return Kind(sql, values, extremes, sent, kind, f"CAST(? AS {sql})")


def _clock(at: time) -> str:
    return f"{at:%H:%M:%S}.{at.microsecond // 100:04}"


_CLOCK = st.times().map(_clock)
_DAYS = st.dates().map(date.isoformat)
_INNER_DAYS = st.dates(date(2, 1, 1), date(9998, 12, 31)).map(date.isoformat)
_ZONES = ("GMT", "Europe/Prague", "America/New_York", "Asia/Kathmandu", "+05:30", "-13:59")


def _zoned(sql: str, base: str, stamps: st.SearchStrategy[str], *extremes: str) -> Kind:
    """A kind with a time zone, which arrives in UTC. BASE: its type without the zone."""
    name = f"io.debezium.time.Zoned{base.capitalize()}"
    texts = st.builds("{} {}".format, stamps, st.sampled_from(_ZONES))
    return Kind(
        sql,
        texts,
        extremes,
        _as_it_is,
        lambda modes: ("string", name),
        f"CAST(? AS {sql})",
        f"CAST({{}} AT TIME ZONE 'GMT' AS {base})",
    )


# ---- Arrays


def _array(element: Kind, dimensions: str, first: list[Any], second: list[Any]) -> Kind:
    """An array of ELEMENT; FIRST and SECOND are such, of elements as the driver binds them."""

    def sent(value: Any, modes: Modes) -> Any:
        if isinstance(value, list):
            return [sent(item, modes) for item in value]
        return element.sent(value, modes)

    def elements(value: Any) -> Iterator[Any]:
        if not isinstance(value, list):
            yield value
            return
        for item in value:
            yield from elements(item)

    def filled(like: Any, item: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        if not isinstance(like, list):
            return item
        return st.tuples(*(filled(inner, item) for inner in like)).map(list)

    name, _, charset = element.sql.partition(" CHARACTER SET ")
    return Kind(
        f"{name}[{dimensions}]{charset and f' CHARACTER SET {charset}'}",
        filled(first, st.sampled_from([*elements(first), *elements(second)])),
        (first, second),
        sent,
        element.type,
        in_keys=False,
        dimensions=dimensions.count(",") + 1,
    )


_PRICES = [Decimal("0.00"), Decimal("-9999999.99"), Decimal("0.01")]
_MOMENTS = [datetime(1900, 6, 18, 11, 35, 0, 100), datetime(9999, 12, 31, 23, 59, 59, 999_900)]
_ARRAYS = (
    _array(_integer("INTEGER", 32, "int32"), "0:1, 2", [[1, 2], [3, 4]], [[0, -(2**31)], [-1, 7]]),
    _array(numeric("NUMERIC", 9, 2), "3", _PRICES, _PRICES[::-1]),
    _array(_temporal("TIMESTAMP", _CLOCK, name="Timestamp"), "2", _MOMENTS, _MOMENTS[::-1]),
    _array(_text("VARCHAR(5) CHARACTER SET UTF8", 5, _ANY), "2", ["", "жя 🍵"], ["a", '"b"']),
)

KINDS: tuple[Kind, ...] = (
    _integer("SMALLINT", 16, "int16"),
    _integer("INTEGER", 32, "int32"),
    _integer("BIGINT", 64, "int64"),
    _int128(),
    numeric("NUMERIC", 4, 1),
    numeric("DECIMAL", 4, 0),
    numeric("NUMERIC", 9, 9),
    numeric("DECIMAL", 9, 2),
    numeric("NUMERIC", 18, 0),
    numeric("DECIMAL", 18, 4),
    numeric("NUMERIC", 38, 20),
    _decfloat(16, -398, 369),
    _decfloat(34, -6176, 6111),
    _floating("FLOAT", 32, "float", (1.401298464324817e-45, -3.4028234663852886e38)),
    _floating("DOUBLE PRECISION", 64, "double", (5e-324, -1.7976931348623157e308)),
    Kind("BOOLEAN", st.booleans(), (True, False), _as_it_is, _plain("boolean")),
    _text("CHAR(7) CHARACTER SET UTF8", 7, _ANY, "жя 🍵", "  x"),
    _text("VARCHAR(20) CHARACTER SET UTF8", 20, _ANY, 'Łódź 🍵 "\\', "\0\x1f\x7f\u2028"),
    _text("CHAR(5) CHARACTER SET WIN1251", 5, _CYRILLIC, "Ёж"),
    _text("VARCHAR(9) CHARACTER SET WIN1251", 9, _CYRILLIC, "Ёжь €"),
    _text("VARCHAR(9) CHARACTER SET ISO8859_1", 9, _LATIN, "éÿ"),
    _text("VARCHAR(9) CHARACTER SET ASCII", 9, _ASCII, "a'b"),
    _of_no_charset("CHAR(8) CHARACTER SET NONE", 8),
    _of_no_charset("VARCHAR(8) CHARACTER SET NONE", 8),
    _octets("BINARY(5)", 5),
    _octets("VARBINARY(9)", 9),
    _octets("BLOB SUB_TYPE BINARY", 300, bytes(range(256)) * 20, in_keys=False),
    _octets("BLOB SUB_TYPE -7", 30, in_keys=False),
    _text_blob("UTF8", _ANY),
    _text_blob("WIN1251", _CYRILLIC),
    _temporal("DATE", _DAYS, "0001-01-01", "9999-12-31", "1969-12-31", name="Date"),
    _temporal("TIME", _CLOCK, "00:00:00", "23:59:59.9999", "09:14:07.1234", name="Time"),
    _temporal(
        "TIMESTAMP",
        st.builds("{} {}".format, _DAYS, _CLOCK),
        "0001-01-01 00:00:00",
        "9999-12-31 23:59:59.9999",
        "1969-12-31 23:59:59.9999",
        "1858-11-16 00:00:00.0001",
        name="Timestamp",
    ),
    _zoned(
        "TIME WITH TIME ZONE",
        "TIME",
        _CLOCK,
        "12:00:00.5 -03:30",
        "00:00:00 GMT",
        "23:59:59.9999 Europe/Prague",
    ),
    _zoned(
        "TIMESTAMP WITH TIME ZONE",
        "TIMESTAMP",
        st.builds("{} {}".format, _INNER_DAYS, _CLOCK),
        "2026-03-29 02:30:00 Europe/Prague",
        "0001-01-01 00:00:00 GMT",
        "9999-12-31 23:59:59.9999 GMT",
    ),
    *_ARRAYS,
)

BY_SQL = {kind.sql: kind for kind in KINDS}
