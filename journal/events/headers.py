"""Writes headers as Connect's ``SimpleHeaderConverter`` does, or its ``JsonConverter``.

Sinks read all headers of a message, whether they want them or not: one that Connect can't read, or
reads as a value that doesn't match its own schema, ends Debezium's JDBC sink. So what is written
here is what these converters write, and where ``SimpleHeaderConverter`` can't read its own text,
one that it can. Source: Kafka Connect's ``Values`` and ``ConnectSchema``, 4.1.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from firebird_cdc.journal.events import json_bytes
from firebird_cdc.journal.events.converters import Converter, JsonConverter
from firebird_cdc.journal.events.records import AddedHeader, StructHeader
from firebird_cdc.journal.events.schema import BYTES, OPTIONAL_STRING, STRING, Schema
from firebird_cdc.journal.events.schema_check import check_finite
from firebird_cdc.journal.events.values import BadValue
from firebird_cdc.journal.types.numbers import shortest_float

if TYPE_CHECKING:
    from firebird_cdc.config import ConnectorConfig
    from firebird_cdc.journal.events.versions import MessageForm

_CONNECT = "org.apache.kafka.connect.data."
_DAY_MS = 24 * 60 * 60 * 1000


class HeaderWriter(Protocol):
    """Makes the bytes of headers. Raises BadValue for what has no form."""

    def plain(self, value: str | bytes | None, /) -> str | bytes | None:
        """Return a header of text, or of bytes."""

    def typed(self, topic: str, header: StructHeader, /) -> str | bytes | None:
        """Return a header that has a schema."""

    def told(self, content: Mapping[str, Any], /) -> bytes:
        """Return a header of ours that holds JSON."""


def header_writer(config: ConnectorConfig, form: MessageForm, keys: Converter) -> HeaderWriter:
    """Return what writes headers in FORM; KEYS: the converter of keys."""
    if not form.own_header_converter:
        return _KeyHeaders(keys)
    return JsonHeaders() if config.header_converter == "json" else SimpleHeaders()


def told_by(content: str | bytes | None) -> str:
    """Return the text that a header of ours holds, whichever converter wrote it."""
    text = content.decode(errors="replace") if isinstance(content, bytes) else content or ""
    if text.startswith('{"schema":'):
        try:
            payload = json.loads(text)["payload"]
        except (ValueError, KeyError, TypeError):
            return text
        return payload if isinstance(payload, str) else text
    return text


class JsonHeaders:
    """Writes headers as ``JsonConverter`` does, each with its schema."""

    def __init__(self) -> None:
        self._convert = JsonConverter(schemas_enable=True).from_connect

    def plain(self, value: str | bytes | None) -> bytes | None:
        """Return a header of text, or of bytes that are no text; see `HeaderWriter`."""
        if value is None:
            return self._convert("", OPTIONAL_STRING, None)
        if isinstance(value, bytes):
            try:
                value = value.decode()
            except UnicodeDecodeError:
                return self._convert("", BYTES, value)
        return self._convert("", STRING, value)

    def typed(self, topic: str, header: StructHeader) -> bytes | None:
        """Return a header that has a schema; raises BadValue."""
        try:
            check_finite(header.value)
        except BadValue as error:
            raise BadValue(
                f"its header {header.name}: {error}; header.converter: simple can carry it"
            ) from None
        return self._convert(topic, header.schema, header.value)

    def told(self, content: Mapping[str, Any]) -> bytes:
        """Return JSON as a header that is a text."""
        written = self.plain(json.dumps(content, ensure_ascii=False))
        assert written is not None
        return written


class SimpleHeaders:
    """Writes headers as ``SimpleHeaderConverter`` does: texts as they are, others as ``Values``."""

    def plain(self, value: str | bytes | None) -> str | bytes | None:
        """Return a header of text or bytes, which stand as they are."""
        return value

    def typed(self, _: str, header: StructHeader) -> bytes | None:
        """Return a header that has a schema, null for null; raises BadValue."""
        schema, value = header.schema, header.value
        if value is None:
            return None
        if isinstance(value, bytes) and schema.name != f"{_CONNECT}Decimal":
            return b64encode(value)
        text = value if isinstance(value, str) else _readable(_of_schema(schema, value))
        try:
            return text.encode()
        except UnicodeEncodeError as error:  # a converter of the user's may make half a character
            raise BadValue(f"its header {header.name} cannot be written: {error.reason}") from None

    def told(self, content: Mapping[str, Any]) -> bytes:
        """Return JSON as a header of text, such that it can be read as what it looks like."""
        return _readable(_of_json(content)).encode()


class _KeyHeaders:
    """Writes headers as versions before 0.2 did: with the converter of keys, or as plain text."""

    def __init__(self, keys: Converter) -> None:
        self._keys = keys

    def plain(self, value: str | bytes | None) -> str | bytes | None:
        return value

    def typed(self, topic: str, header: StructHeader) -> str | bytes | None:
        if not isinstance(header, AddedHeader):
            return self._keys.from_connect(topic, header.schema, header.value)
        value = header.value
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, bytes):
            return _base64(value)
        if isinstance(value, float) and not isfinite(value):
            return _java_special(value)
        check_finite(value)
        return json_bytes.dumps(value, default=_base64).decode()

    def told(self, content: Mapping[str, Any]) -> bytes:
        return json.dumps(content, ensure_ascii=False).encode()


# How Connect reads a text. It has no schema, so the type of a map's values is that of all of them
# (``Values.SchemaMerger``). Where they have none in common, null stands in place of it, and whoever
# checks values against their schema, as the JDBC sink does, refuses the map. Such values are all
# written as texts.

_STRING, _BOOLEAN, _DECIMAL = "string", "boolean", "decimal"
_PERHAPS_TIME = "perhaps time"
"""A text in which Connect may find a date or time."""
_NO_VALUE = "no value"
"""It makes a text of all that it is in, as no word of it is known."""
_UNREADABLE = "unreadable"
"""It would be read as a value without a schema."""

_INT32, _INT64, _FLOAT32, _FLOAT64 = 2, 3, 4, 5
"""Numbers, with int8 as 0 and int16 as 1: of two types the wider holds both."""

_Kind = str | int | tuple[str, "_Kind"] | None
"""The type that a value is read as: None is null, a tuple an array or a map and what it holds."""


class _Text(NamedTuple):
    """A value as text, and how it is read."""

    text: str
    kind: _Kind


def _readable(written: _Text) -> str:
    """Return the text; what is `_UNREADABLE` as a JSON text in quotes, which is read as a text."""
    if written.kind == _UNREADABLE:
        return json.dumps(written.text, ensure_ascii=False)
    return written.text


def _of_schema(schema: Schema, value: Any) -> _Text:
    """VALUE, in the physical form of SCHEMA, as ``Values.append`` writes it inside others."""
    if value is None:
        return _Text("null", None)
    match (schema.name or "").removeprefix(_CONNECT):
        case "Decimal":
            return _of_number(_decimal(value, int(schema.parameters["scale"])))
        case "Date":
            return _Text(_date_text(value), _INT32)
        case "Time":
            return _Text(_time_text(value), _INT32)
        case "Timestamp":
            days, rest = divmod(value, _DAY_MS)
            if rest == 0 and value >= _DAY_MS:  # it tells times by what they look like
                return _Text(_date_text(days), _INT32)
            return _Text(f"{_date_text(days)}T{_time_text(rest)}", _INT64)
    match schema.type:
        case "boolean":
            return _Text("true" if value else "false", _BOOLEAN)
        case "string":
            return _quoted(_escaped(value))
        case "bytes":
            return _quoted(_base64(value))
        case "float" | "double":
            return _of_float(float(value), is_single=schema.type == "float")
        case "array":
            assert schema.items is not None
            return _array([_of_schema(schema.items, item) for item in value])
        case "map":
            assert schema.items is not None
            return _map({name: _of_schema(schema.items, item) for name, item in value.items()})
        case "struct":
            return _map({name: _of_schema(inner, value.get(name)) for name, inner in schema.fields})
    return _of_number(value)


def _of_json(value: Any) -> _Text:
    """VALUE as JSON with blanks, as headers of ours have it."""
    match value:
        case None:
            return _Text("null", None)
        case bool():
            return _Text("true" if value else "false", _BOOLEAN)
        case str():
            return _quoted(json.dumps(value, ensure_ascii=False)[1:-1])
        case int():
            return _of_number(value)
        case Mapping():
            return _map({name: _of_json(item) for name, item in value.items()}, " ")
    return _array([_of_json(item) for item in value], " ")


def _quoted(content: str) -> _Text:
    return _Text(f'"{content}"', _PERHAPS_TIME if _may_be_time(content) else _STRING)


def _of_number(number: int | Decimal) -> _Text:
    """An integer or a decimal, which is read as the smallest type that seems to hold it."""
    return _Text(str(number), _kind_of(Decimal(number)))


def _of_float(number: float, *, is_single: bool) -> _Text:
    if not isfinite(number):
        return _Text(_java_special(number), _NO_VALUE)
    text = _java_float(shortest_float(number) if is_single else number)
    return _Text(text, _kind_of(Decimal(text)))


def _kind_of(number: Decimal) -> _Kind:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    if number.adjusted() < 20 and number == (whole := int(number)):
        for rank in range(4):
            if -(1 << (8 << rank) - 1) <= whole < 1 << (8 << rank) - 1:
                return rank
    if exponent == 0 or number.adjusted() > 308:
        return _DECIMAL
    return _FLOAT32 if number.adjusted() < 38 else _FLOAT64


def _array(items: Sequence[_Text], blank: str = "") -> _Text:
    written, common = _in_common(items)
    kind: _Kind = common if common in (_NO_VALUE, _UNREADABLE) else ("array", common)
    return _Text(f"[{f',{blank}'.join(item.text for item in written)}]", kind)


def _map(members: Mapping[str, _Text], blank: str = "") -> _Text:
    written, common = _in_common(list(members.values()))
    kind: _Kind = common if common in (_NO_VALUE, _UNREADABLE) else ("map", common)
    if len(members) > 1 and any(map(_may_be_time, members)):
        kind = _UNREADABLE
    pairs = zip(members, written, strict=True)
    text = f",{blank}".join(f'"{_escaped(name)}":{blank}{value.text}' for name, value in pairs)
    return _Text(f"{{{text}}}", kind)


def _in_common(values: Sequence[_Text]) -> tuple[Sequence[_Text], _Kind]:
    """The values as they are read with one type, and that type."""
    kinds = {value.kind for value in values} - {None}
    if not kinds:  # null is of no type
        return values, _UNREADABLE
    if _NO_VALUE in kinds:
        return values, _NO_VALUE
    if all(isinstance(kind, int) for kind in kinds):
        return values, max(kind for kind in kinds if isinstance(kind, int))
    kind = next(iter(kinds))
    if len(kinds) == 1 and (len(values) == 1 or not _is_doubtful(kind)):
        return values, kind
    return [value if value.kind is None else _as_text(value) for value in values], _STRING


def _is_doubtful(kind: _Kind) -> bool:
    """Tell whether values of this kind may be read as values of different types."""
    return kind == _PERHAPS_TIME or (isinstance(kind, tuple) and _is_doubtful(kind[1]))


def _as_text(value: _Text) -> _Text:
    """VALUE as one that is read as a text, and never as a time."""
    is_text = value.kind in (_STRING, _PERHAPS_TIME)
    content = value.text[1:-1] if is_text else _escaped(value.text)
    if _may_be_time(content):
        # To readers of JSON it is the same.
        content = re.sub("[-:]", lambda sign: f"\\u{ord(sign[0]):04x}", content, count=1)
    return _Text(f'"{content}"', _STRING)


_BLANKS = "".join(map(chr, range(33)))  # for Java's ``trim``
_TOKEN = re.compile(r'(?:\\.|[^\\:,{}\[\]"])+|.', re.DOTALL)
_LENGTHS = (10, 13, 24)  # of a date, a time, and both


def _may_be_time(content: str) -> bool:
    """Tell whether Connect may take a text for a date, a time or both.

    It looks at the whole or, in versions before 4, at the first word and four more, of which
    delimiters are words; asks for the right length, and then is lenient.
    """
    begin = content.strip(_BLANKS)
    if not begin.lstrip("-" + _BLANKS)[:1].isdecimal():  # years may be negative there
        return False
    first, *others = _TOKEN.findall(begin)[:5]
    first = first.strip(_BLANKS)
    for read in (content, begin, first, first + "".join(others)):
        text = read.replace("\\:", ":")
        is_separated = text.count("-") >= 2 or text.count(":") >= 2
        if is_separated and len(text.encode("utf-16-le", "surrogatepass")) // 2 in _LENGTHS:
            return True
    return False


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _base64(value: Any) -> str:
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    raise BadValue(f"a value of type {type(value).__name__} has no form in a header")


def _decimal(unscaled: bytes, scale: int) -> Decimal:
    """The number; its ``str`` is what Java's ``BigDecimal`` gives too."""
    digits = int.from_bytes(unscaled, "big", signed=True)
    return Decimal(f"{digits}E{-scale}")  # no arithmetic, which rounds


def _java_special(number: float) -> str:
    return "NaN" if isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _java_float(number: float) -> str:
    """NUMBER as Java's ``Double.toString`` writes it, or ``Float.toString`` the shortest digits."""
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)
    shown = "".join(map(str, digits))
    point = len(shown) + exponent  # the place of the point, from the first digit
    if shown == "0":
        shown, point = "", 1
    if -3 < point <= 7:
        shown = "0" * max(0, 1 - point) + shown.ljust(point, "0")
        at = max(point, 1)
        written = f"{shown[:at]}.{shown[at:] or '0'}"
    else:
        written = f"{shown[0]}.{shown[1:] or '0'}E{point - 1}"
    return "-" + written if sign else written


def _time_text(milliseconds: int) -> str:
    """A time of day as ``HH:mm:ss.SSSZ``."""
    seconds, rest = divmod(milliseconds, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:03}Z"


_EPOCH = date(1970, 1, 1)
_GREGORIAN_SINCE = (date(1582, 10, 15) - _EPOCH).days
_JULIAN_EPOCH = 719164  # days from 1 January of the year 1 in the Julian calendar to 1970-01-01
_LEAP_CYCLE = 1461  # days of four years there


def _date_text(days: int) -> str:
    """A day as ``yyyy-MM-dd``, before 1582-10-15 in the Julian calendar, as Connect reads it.

    Connect writes dates before 1970-01-02 as times of day, which nobody can read as that date.
    """
    if days >= _GREGORIAN_SINCE:
        return (_EPOCH + timedelta(days)).isoformat()
    cycles, rest = divmod(days + _JULIAN_EPOCH, _LEAP_CYCLE)
    # Each cycle has its leap day at its end, as 1 to 4 has, in either calendar.
    day = datetime(1, 1, 1) + timedelta(rest)
    return f"{cycles * 4 + day.year:04}-{day:%m-%d}"
