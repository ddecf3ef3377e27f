"""Every storage in every mode: what stands in the schema, and what in the payload."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from functools import partial
from typing import Any

import columns
import pytest

from firebird_cdc.journal.events.values import BadValue, FieldForm, ValueModes, field_form
from firebird_cdc.journal.format import Blob, Storage, Undecodable
from firebird_cdc.journal.format.charsets import find_codec
from firebird_cdc.journal.types.decfloat import decode_decfloat

CONNECT = "org.apache.kafka.connect.data"
DEBEZIUM = "io.debezium.time"

# 2026-03-02 09:14:07.1234 in the engine's units.
DAY = 61101
TIME = ((9 * 60 + 14) * 60 + 7) * 10_000 + 1234
TIMESTAMP = DAY * 864_000_000 + TIME


column = partial(columns.column, "C")


def form_of(
    storage: Storage, modes: dict[str, Any] | None = None, **changes: Any
) -> FieldForm | None:
    return field_form(column(storage, **changes), ValueModes(**(modes or {})))


def rendered(
    value: Any, storage: Storage, modes: dict[str, Any] | None = None, **changes: Any
) -> tuple[dict[str, Any], Any]:
    """Schema as the JSON converter writes it, without the optional flag, and physical value."""
    form = form_of(storage, modes, **changes)
    assert form is not None
    schema = form.schema.to_json()
    assert schema.pop("optional") is True
    return schema, form.function()(value)


def typed(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "name": name, "version": 1}


def decimal_schema(scale: int, precision: int) -> dict[str, Any]:
    return typed("bytes", f"{CONNECT}.Decimal") | {
        "parameters": {"scale": str(scale), "connect.decimal.precision": str(precision)}
    }


def unscaled(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)


@pytest.mark.parametrize(
    ("storage", "kind", "value"),
    [
        (Storage.SMALLINT, "int16", -(2**15)),
        (Storage.INTEGER, "int32", 2**31 - 1),
        (Storage.BIGINT, "int64", -(2**63)),
        (Storage.DOUBLE, "double", 0.1),
        (Storage.BOOLEAN, "boolean", True),
        (Storage.BOOLEAN, "boolean", False),
        (Storage.TEXT, "string", 'quote " backslash \\ line\n tab\t zero\0 Привет 🐦'),
        (Storage.PADDED_TEXT, "string", "padded   "),
    ],
)
def test_plain_values_are_rendered_unchanged(storage: Storage, kind: str, value: Any) -> None:
    assert rendered(value, storage) == ({"type": kind}, value)


@pytest.mark.parametrize(
    "text", ["0.1", "3.4028235e+38", "1.4013e-45", "16777216.0", "-0.0", "1.1754944e-38"]
)
def test_float_is_shown_as_its_four_bytes_not_as_a_double(text: str) -> None:
    value = struct.unpack("<f", struct.pack("<f", float(text)))[0]
    schema, shown = rendered(value, Storage.FLOAT)
    assert schema == {"type": "float"}
    assert struct.pack("<f", shown) == struct.pack("<f", value)
    assert repr(shown) == repr(float(text))


@pytest.mark.parametrize("storage", [Storage.FLOAT, Storage.DOUBLE])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_bad_values(storage: Storage, value: float) -> None:
    with pytest.raises(BadValue, match="JSON number"):
        rendered(value, storage)
    _, carried = rendered(value, storage, {"non_finite": True})
    assert math.isnan(carried) if math.isnan(value) else carried == value


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (1284750, "139a8e"),
        (1285000, "139b88"),
        (0, "00"),
        (-1, "ff"),
        (-129, "ff7f"),
        (255, "00ff"),
        (127, "7f"),
        (128, "0080"),
        (-128, "80"),
    ],
)
def test_decimal_is_the_shortest_twos_complement(value: int, encoded: str) -> None:
    schema, payload = rendered(value, Storage.INTEGER, scale=-3, sub_type=1, precision=9)
    assert (schema, payload) == (decimal_schema(3, 10), bytes.fromhex(encoded))
    assert unscaled(payload) == value


_HELD = [
    (Storage.SMALLINT, 4, 5, 16),
    (Storage.INTEGER, 9, 10, 32),
    (Storage.BIGINT, 18, 19, 64),
]


@pytest.mark.parametrize(("storage", "declared", "held", "bits"), _HELD)
def test_a_decimal_declares_what_its_storage_holds(
    storage: Storage, declared: int, held: int, bits: int
) -> None:
    """Whatever digits its column has, known or not: Firebird does not check these."""
    for precision in (declared, 1, 0):
        for value in (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, -1, 0):
            schema, payload = rendered(value, storage, scale=-2, sub_type=2, precision=precision)
            assert schema == decimal_schema(2, held)
            assert unscaled(payload) == value
            assert len(str(abs(value))) <= held


@pytest.mark.parametrize(
    ("storage", "declared", "held", "_bits"), [*_HELD, (Storage.INT128, 38, 38, 128)]
)
def test_versions_before_declared_the_digits_of_the_column(
    storage: Storage, declared: int, held: int, _bits: int
) -> None:
    modes = {"held_digits": False}
    schema, payload = rendered(-12345, storage, modes, scale=-2, sub_type=2, precision=3)
    assert schema == decimal_schema(2, 3)
    assert unscaled(payload) == -12345
    schema, _ = rendered(-12345, storage, modes, scale=-2, sub_type=2)
    assert schema == decimal_schema(2, declared)


def test_numeric_without_scale_is_a_decimal_too() -> None:
    assert rendered(5, Storage.BIGINT, sub_type=1, precision=18)[0] == decimal_schema(0, 19)


_MOST, _LEAST = 2**127 - 1, -(2**127)


@pytest.mark.parametrize("scale", [0, 2, 38])
def test_16_bytes_declare_38_digits_and_refuse_39(scale: int) -> None:
    shape = {"scale": -scale, "precision": 38 if scale else 0}
    for value in (10**38 - 1, -(10**38) + 1, 0, -1):
        schema, payload = rendered(value, Storage.INT128, **shape)
        assert schema == decimal_schema(scale, 38)
        assert unscaled(payload) == value
    for value in (10**38, -(10**38), _MOST, _LEAST):
        with pytest.raises(BadValue, match=r"has 39 digits.*decimal\.int128\.precision: 39"):
            rendered(value, Storage.INT128, **shape)


@pytest.mark.parametrize("value", [_LEAST, _MOST, 0, -1])
def test_int128_is_sent_over_its_whole_range(value: int) -> None:
    """For consumers that take 39 digits, and as text or, rounded, as a double."""
    schema, payload = rendered(value, Storage.INT128, {"int128_digits": 39})
    assert schema == decimal_schema(0, 39)
    assert unscaled(payload) == value
    for mode, kind, form in (("string", "string", str), ("double", "double", float)):
        assert rendered(value, Storage.INT128, {"decimal": mode}) == ({"type": kind}, form(value))


@pytest.mark.parametrize(
    ("value", "text"),
    [(1284750, "1284.750"), (-5, "-0.005"), (0, "0.000"), (1000, "1.000"), (-1234, "-1.234")],
)
def test_decimal_is_sent_as_string_or_double(value: int, text: str) -> None:
    shape: dict[str, Any] = {"scale": -3, "sub_type": 1}
    assert rendered(value, Storage.BIGINT, {"decimal": "string"}, **shape) == (
        {"type": "string"},
        text,
    )
    assert rendered(value, Storage.BIGINT, {"decimal": "double"}, **shape) == (
        {"type": "double"},
        float(text),
    )


def test_dialect_1_numeric_in_a_double_is_a_decimal() -> None:
    schema, payload = rendered(1234.57, Storage.DOUBLE, scale=-2, precision=15)
    assert schema == decimal_schema(2, 38)
    assert unscaled(payload) == 123457
    assert rendered(0.1, Storage.DOUBLE, {"decimal": "string"}, scale=-2)[1] == "0.10"
    assert rendered(1234.57, Storage.DOUBLE, {"decimal": "double"}, scale=-2) == (
        {"type": "double"},
        1234.57,
    )
    large = rendered(-9.999999999999999e35, Storage.DOUBLE, scale=-2)[1]
    assert unscaled(large) == -9999999999999999 * 10**22
    for value in (1e36, -1.7976931348623157e308):
        with pytest.raises(BadValue, match=r"digits.*decimal\.handling\.mode: string"):
            rendered(value, Storage.DOUBLE, scale=-2)


@pytest.mark.parametrize(
    ("value", "text"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")]
)
def test_dialect_1_numeric_without_a_number_is_sent_by_mode_or_refused(
    value: float, text: str
) -> None:
    assert rendered(value, Storage.DOUBLE, {"decimal": "string"}, scale=-2)[1] == text
    for modes in ({}, {"decimal": "double"}, {"non_finite": True}):
        with pytest.raises(BadValue, match=r"NUMERIC of scale 2; decimal\.handling\.mode: string"):
            rendered(value, Storage.DOUBLE, modes, scale=-2)
    carried = {"decimal": "double", "non_finite": True}
    assert repr(rendered(value, Storage.DOUBLE, carried, scale=-2)[1]) == repr(value)


def decimal64(sign: int, digits: str, exponent: int) -> bytes:
    """Encode by the definition, digit by digit: the decoder's independent counterpart."""
    return _decimal_interchange(sign, digits, exponent, 8, 398, 5)


def _decimal_interchange(
    sign: int, digits: str, exponent: int, exponent_bits: int, bias: int, declets: int
) -> bytes:
    digits = digits.rjust(1 + 3 * declets, "0")
    biased = exponent + bias
    high, leading = biased >> exponent_bits, int(digits[0])
    combination = high << 3 | leading if leading < 8 else 0b11000 | high << 1 | leading - 8
    word = sign << 5 | combination
    word = word << exponent_bits | biased & ((1 << exponent_bits) - 1)
    for place in range(declets):
        word = word << 10 | _declet(*map(int, digits[1 + 3 * place : 4 + 3 * place]))
    return word.to_bytes((1 + 5 + exponent_bits + 10 * declets) // 8, "little")


def _declet(hundreds: int, tens: int, ones: int) -> int:
    """Densely pack three digits, by the table of Cowlishaw's paper (abcd efgh ijkm)."""
    a, b, c, d = (hundreds >> n & 1 for n in (3, 2, 1, 0))
    e, f, g, h = (tens >> n & 1 for n in (3, 2, 1, 0))
    i, j, k, m = (ones >> n & 1 for n in (3, 2, 1, 0))
    rows = {
        (0, 0, 0): (b, c, d, f, g, h, 0, j, k, m),
        (0, 0, 1): (b, c, d, f, g, h, 1, 0, 0, m),
        (0, 1, 0): (b, c, d, j, k, h, 1, 0, 1, m),
        (1, 0, 0): (j, k, d, f, g, h, 1, 1, 0, m),
        (1, 1, 0): (j, k, d, 0, 0, h, 1, 1, 1, m),
        (1, 0, 1): (f, g, d, 0, 1, h, 1, 1, 1, m),
        (0, 1, 1): (b, c, d, 1, 0, h, 1, 1, 1, m),
        (1, 1, 1): (0, 0, d, 1, 1, h, 1, 1, 1, m),
    }
    return int("".join(map(str, rows[a, e, i])), 2)


def test_every_declet_decodes_to_its_three_digits() -> None:
    for number in range(1000):
        assert decode_decfloat(decimal64(0, str(number), 0)) == number


@pytest.mark.parametrize(
    ("sign", "digits", "exponent", "text"),
    [
        (0, "750", -2, "7.50"),
        (1, "750", -2, "-7.50"),
        (0, "9999999999999999", 369, "9.999999999999999E+384"),
        (0, "1", -398, "1E-398"),
        (0, "5", 3, "5E+3"),
        (0, "0", 0, "0"),
        (1, "8000000000000000", 0, "-8000000000000000"),
        (1, "0", -2, "-0.00"),
        (0, "0", 7, "0E+7"),
        (0, "0", -7, "0E-7"),
        (0, "1", -6, "0.000001"),
        (0, "1", -7, "1E-7"),
        (0, "123456", -10, "0.0000123456"),
    ],
)
def test_decfloat_is_sent_in_all_modes(sign: int, digits: str, exponent: int, text: str) -> None:
    for storage, raw in (
        (Storage.DECFLOAT16, decimal64(sign, digits, exponent)),
        (Storage.DECFLOAT34, _decimal_interchange(sign, digits, exponent, 12, 6176, 11)),
    ):
        assert rendered(raw, storage, {"decimal": "string"})[1] == text
        schema, payload = rendered(raw, storage)
        assert schema["name"] == "io.debezium.data.VariableScaleDecimal"
        assert [field["field"] for field in schema["fields"]] == ["scale", "value"]
        assert payload["scale"] == -exponent
        assert unscaled(payload["value"]) == int(digits) * (-1 if sign else 1)
        if abs(exponent) < 300:
            assert rendered(raw, storage, {"decimal": "double"})[1] == float(Decimal(text))


@pytest.mark.parametrize(
    ("combination", "text"),
    [
        (0b011110, "Infinity"),
        (0b111110, "-Infinity"),
        (0b011111, "NaN"),
        (0b111111, "-NaN"),
        (0b0111111, "sNaN"),
        (0b1111111, "-sNaN"),
    ],
)
def test_decfloat_without_a_number_is_sent_by_mode_or_refused(combination: int, text: str) -> None:
    place = 57 if text.endswith("sNaN") else 58
    for storage, raw in (
        (Storage.DECFLOAT16, (combination << place).to_bytes(8, "little")),
        (Storage.DECFLOAT34, (combination << place + 64).to_bytes(16, "little")),
    ):
        assert rendered(raw, storage, {"decimal": "string"})[1] == text
        for mode in ("precise", "double"):
            with pytest.raises(BadValue, match=rf"{text} .*decimal\.handling\.mode"):
                rendered(raw, storage, {"decimal": mode})
        with pytest.raises(BadValue):
            rendered(raw, storage, {"decimal": "precise", "non_finite": True})
        number = rendered(raw, storage, {"decimal": "double", "non_finite": True})[1]
        assert repr(number) == {"Infinity": "inf", "-Infinity": "-inf"}.get(text, "nan")


@pytest.mark.parametrize("non_finite", [False, True])
def test_a_decfloat_beyond_all_doubles_does_not_become_infinite(non_finite: bool) -> None:
    raw = _decimal_interchange(0, "1", 400, 12, 6176, 11)
    modes = {"decimal": "double", "non_finite": non_finite}
    with pytest.raises(BadValue, match=r"DECFLOAT 1E\+400 is larger than any double"):
        rendered(raw, Storage.DECFLOAT34, modes)
    tiny = _decimal_interchange(1, "1", -400, 12, 6176, 11)
    assert repr(rendered(tiny, Storage.DECFLOAT34, modes)[1]) == "-0.0"


@pytest.mark.parametrize(
    ("mode", "storage", "value", "schema", "payload"),
    [
        ("adaptive", Storage.DATE, DAY, typed("int32", f"{DEBEZIUM}.Date"), 20514),
        ("adaptive", Storage.TIME, TIME, typed("int64", f"{DEBEZIUM}.MicroTime"), 33247123400),
        (
            "adaptive",
            Storage.TIMESTAMP,
            TIMESTAMP,
            typed("int64", f"{DEBEZIUM}.MicroTimestamp"),
            1772442847123400,
        ),
        ("connect", Storage.DATE, DAY, typed("int32", f"{CONNECT}.Date"), 20514),
        ("connect", Storage.TIME, TIME, typed("int32", f"{CONNECT}.Time"), 33247123),
        (
            "connect",
            Storage.TIMESTAMP,
            TIMESTAMP,
            typed("int64", f"{CONNECT}.Timestamp"),
            1772442847123,
        ),
        ("isostring", Storage.DATE, DAY, {"type": "string"}, "2026-03-02"),
        ("isostring", Storage.TIME, TIME, {"type": "string"}, "09:14:07.1234"),
        (
            "isostring",
            Storage.TIMESTAMP,
            TIMESTAMP,
            {"type": "string"},
            "2026-03-02T09:14:07.1234",
        ),
    ],
)
def test_dates_and_times_follow_the_precision_mode(
    mode: str, storage: Storage, value: int, schema: dict[str, Any], payload: Any
) -> None:
    assert rendered(value, storage, {"time": mode}) == (schema, payload)
    if mode == "adaptive":
        same = rendered(value, storage, {"time": "adaptive_time_microseconds"})
        assert same == (schema, payload)


def test_connect_mode_cuts_to_the_earlier_millisecond_before_1970_too() -> None:
    epoch = 40587 * 864_000_000
    modes = {"time": "connect"}
    units_and_ms = ((9, 0), (10, 1), (0, 0), (-1, -1), (-10, -1), (-11, -2))
    for units, milliseconds in units_and_ms:
        assert rendered(epoch + units, Storage.TIMESTAMP, modes)[1] == milliseconds
    assert rendered(863_999_999, Storage.TIME, modes)[1] == 86_399_999


def test_times_of_day_are_written_from_first_to_last() -> None:
    modes = {"time": "isostring"}
    for units, text in (
        (0, "00:00:00"),
        (863_999_999, "23:59:59.9999"),
        (10, "00:00:00.001"),
        (600_500, "00:01:00.05"),
        (36_000_000 + 9_000, "01:00:00.9"),
        (864_600_001, "24:01:00.0001"),  # of a forged journal
    ):
        assert rendered(units, Storage.TIME, modes)[1] == text


def test_timestamps_are_written_from_year_1_to_9999() -> None:
    first, last = -678575, 2973483
    modes = {"time": "isostring"}
    assert rendered(first, Storage.DATE, modes)[1] == "0001-01-01"
    assert rendered(last, Storage.DATE, modes)[1] == "9999-12-31"
    assert rendered(first * 864_000_000, Storage.TIMESTAMP, modes)[1] == "0001-01-01T00:00:00"
    assert rendered(first * 864_000_000, Storage.TIMESTAMP)[1] == -62135596800000000


@pytest.mark.parametrize("mode", ["adaptive", "connect", "isostring"])
def test_time_zone_types_are_utc_text_in_every_mode(mode: str) -> None:
    time = struct.pack("<IH", TIME, 65037)
    assert rendered(time, Storage.TIME_TZ, {"time": mode}) == (
        typed("string", f"{DEBEZIUM}.ZonedTime"),
        "09:14:07.1234Z",
    )
    stamp = struct.pack("<qH", TIMESTAMP, 65037)
    assert rendered(stamp, Storage.TIMESTAMP_TZ, {"time": mode}) == (
        typed("string", f"{DEBEZIUM}.ZonedTimestamp"),
        "2026-03-02T09:14:07.1234Z",
    )


def test_the_end_of_year_9999_in_a_zone_west_of_utc() -> None:
    """9999-12-31 23:59:59.9999 -05:00, as the engine stores it."""
    stamp = bytes.fromhex("ffb410f6922009007304")
    assert rendered(stamp, Storage.TIMESTAMP_TZ)[1] == "+10000-01-01T04:59:59.9999Z"


@pytest.mark.parametrize(
    ("mode", "kind", "text"),
    [
        ("bytes", "bytes", b"\xfb\xff\x00"),
        ("base64", "string", "+/8A"),
        ("base64-url-safe", "string", "-_8A"),
        ("hex", "string", "fbff00"),
    ],
)
def test_binary_values_follow_the_handling_mode(mode: str, kind: str, text: str | bytes) -> None:
    content = b"\xfb\xff\x00"
    modes = {"binary": mode}
    assert rendered(content, Storage.OCTETS, modes) == ({"type": kind}, text)
    blob = Blob(1, True, None, (), content)
    assert rendered(blob, Storage.BLOB, modes, sub_type=0) == ({"type": kind}, text)
    assert rendered(blob, Storage.BLOB, modes, sub_type=-7) == ({"type": kind}, text)
    # a text of OCTETS is none
    assert rendered(blob, Storage.BLOB, modes, sub_type=1, charset_id=1) == ({"type": kind}, text)


def test_text_blob_is_read_in_its_own_character_set() -> None:
    blob = Blob(1, True, None, (), "Отвёртка".encode("cp1251"))
    assert rendered(blob, Storage.BLOB, sub_type=1, charset_id=52) == (
        {"type": "string"},
        "Отвёртка",
    )
    assert rendered(blob, Storage.BLOB, {"charset_none": "cp1251"}, sub_type=1, charset_id=0)[
        1
    ] == ("Отвёртка")


@pytest.mark.parametrize(
    ("placeholder", "text", "raw"),
    [("__gone", "__gone", b"__gone"), ("hex:c0ff", "\ufffd\ufffd", b"\xc0\xff")],
)
def test_unreadable_values_become_the_placeholder(placeholder: str, text: str, raw: bytes) -> None:
    modes = {"placeholder": placeholder}
    missing = Blob(1, False, None, (), b"half of i")
    assert rendered(missing, Storage.BLOB, modes, sub_type=1)[1] == text
    assert rendered(missing, Storage.BLOB, modes, sub_type=0)[1] == raw
    as_hex = modes | {"binary": "hex"}
    assert rendered(missing, Storage.BLOB, as_hex, sub_type=0)[1] == raw.hex()
    as_bytes = modes | {"unknown_types": True}
    assert rendered(missing, Storage.BLOB, as_bytes, sub_type=1, charset_id=250)[1] == raw
    broken = Blob(1, True, None, (), b"\xff\xfe")
    assert rendered(broken, Storage.BLOB, modes, sub_type=1)[1] == text
    assert rendered(Undecodable(b"\xff", 4), Storage.TEXT, modes)[1] == text


@pytest.mark.parametrize(
    "changes",
    [{"sub_type": 1}, {"sub_type": 0}, {"sub_type": 1, "charset_id": 250}],
    ids=["text", "binary", "unknown-charset"],
)
def test_blob_larger_than_a_message_is_refused_before_it_is_read(changes: dict[str, Any]) -> None:
    modes = {"max_bytes": 100, "unknown_types": True}
    assert len(rendered(Blob(1, True, None, (), b"x" * 100), Storage.BLOB, modes, **changes)[1])
    with pytest.raises(BadValue, match=r"101 bytes .*max\.request\.size"):
        rendered(Blob(1, True, None, (), b"x" * 101), Storage.BLOB, modes, **changes)


@pytest.mark.parametrize(
    ("storage", "changes", "value", "content"),
    [
        (Storage.RAW, {}, b"raw", b"raw"),
        (Storage.ARRAY, {}, Blob(1, True, None, (), b"slice"), b"slice"),
        (Storage.TEXT, {"charset_id": 250}, Undecodable(b"\x80", 250), b"\x80"),
    ],
    ids=["raw", "array", "unknown-charset"],
)
def test_unknown_types_are_left_out_or_sent_as_bytes(
    storage: Storage, changes: dict[str, Any], value: Any, content: bytes
) -> None:
    assert form_of(storage, **changes) is None
    schema, payload = rendered(value, storage, {"unknown_types": True}, **changes)
    assert schema == {"type": "bytes"}
    assert payload == content


def test_columns_that_are_alike_share_their_schema() -> None:
    for storage in Storage:
        changes: dict[str, Any] = {"scale": -2} if storage is Storage.BIGINT else {}
        modes = {"unknown_types": True}
        one, same = form_of(storage, modes, **changes), form_of(storage, modes, **changes)
        not_null = form_of(storage, modes, nullable=False, **changes)
        assert one is not None
        assert same is not None
        assert not_null is not None
        assert one.schema is same.schema
        assert (one.schema.optional, not_null.schema.optional) == (True, False)


@pytest.mark.parametrize("scale", [-2, 2])
def test_decimals_of_any_scale_agree_in_all_modes(scale: int) -> None:
    text = "-123.45" if scale < 0 else "-1234500"
    shape: dict[str, Any] = {"scale": scale, "sub_type": 1}
    schema, value = rendered(-12345, Storage.INTEGER, **shape)
    assert schema["parameters"]["scale"] == str(-scale)
    assert unscaled(value) == -12345
    assert rendered(-12345, Storage.INTEGER, {"decimal": "string"}, **shape)[1] == text
    assert rendered(-12345, Storage.INTEGER, {"decimal": "double"}, **shape)[1] == float(text)


@pytest.mark.parametrize(
    "name", ["utf-7", "unicode_escape", "raw-unicode-escape", "hex", "no-such"]
)
def test_charsets_yielding_unwritable_texts_have_no_codec(name: str) -> None:
    assert find_codec(name) is None
    assert find_codec("WIN1251") == find_codec("windows-1251") == "cp1251"
