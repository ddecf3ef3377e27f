"""ARRAY columns as Kafka Connect arrays: schemas from the definition, values from the content."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from firebird_cdc.journal.events.values import BadValue, FieldForm, ValueModes, field_form
from firebird_cdc.journal.format import Blob, Column, Element, Storage

DAY = 61101  # 2026-03-02
UNITS = ((9 * 60 + 14) * 60 + 7) * 10_000 + 1234
BOUNDS = ((0, 1), (1, 2))


def _column(element: Element | None, **known: Any) -> Column:
    plain: dict[str, Any] = {
        "sql_type": 540,
        **dict.fromkeys(("sub_type", "scale", "charset_id", "char_length", "precision"), 0),
        "length": 8,
        "nullable": True,
        "identity": False,
        "key_position": 0,
    }
    return Column(name="A", storage=Storage.ARRAY, element=element, **(plain | known))


def _form(column: Column, **modes: Any) -> FieldForm:
    form = field_form(column, ValueModes(**modes))
    assert form is not None
    return form


def _array(dtype: int, scale: int, length: int, sub_type: int, *elements: bytes) -> Blob:
    """An array with the bounds [0:1, 2] of which ELEMENTS were written, as the engine keeps it."""
    head = struct.pack("<BBHHHII", 1, 2, 1, length, 64, 4, 4 * length)
    element = struct.pack("<BbHh6x", dtype, scale, length, sub_type)
    bounds = struct.pack("<iii12xiii", 2, 0, 1, 1, 1, 2)  # stride, lower and upper of each
    return Blob(1, True, None, (), head + element + bounds + b"".join(elements))


def _items(literal: str, name: str | None = None, **more: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": literal, "optional": False}
    return schema | ({"name": name, "version": 1} | more if name else {})


# In the definition: RDB$FIELD_TYPE, sub-type, scale, bytes, charset. In the content: dtype, bytes,
# sub-type. One element as it is stored; what is sent of it; what of one not written; its schema.
Case = tuple[tuple[int, int, int, int, int], tuple[int, int, int], bytes, Any, Any, dict[str, Any]]
ELEMENTS: dict[str, Case] = {
    "SMALLINT": ((7, 0, 0, 2, 0), (8, 2, 0), struct.pack("<h", -7), -7, 0, _items("int16")),
    "INTEGER": ((8, 0, 0, 4, 0), (9, 4, 0), struct.pack("<i", -7), -7, 0, _items("int32")),
    "BIGINT": ((16, 0, 0, 8, 0), (19, 8, 0), struct.pack("<q", -7), -7, 0, _items("int64")),
    "NUMERIC": (
        *((8, 1, -3, 4, 0), (9, 4, 1), struct.pack("<i", 1284750)),
        *(b"\x13\x9a\x8e", b"\0"),
        _items(
            "bytes",
            "org.apache.kafka.connect.data.Decimal",
            parameters={"scale": "3", "connect.decimal.precision": "10"},
        ),
    ),
    "INT128": (
        *((26, 0, 0, 16, 0), (24, 16, 0), (256).to_bytes(16, "little")),
        *(b"\1\0", b"\0"),
        _items(
            "bytes",
            "org.apache.kafka.connect.data.Decimal",
            parameters={"scale": "0", "connect.decimal.precision": "38"},
        ),
    ),
    "FLOAT": ((10, 0, 0, 4, 0), (11, 4, 0), struct.pack("<f", 0.1), 0.1, 0.0, _items("float")),
    "DOUBLE": ((27, 0, 0, 8, 0), (12, 8, 0), struct.pack("<d", 0.1), 0.1, 0.0, _items("double")),
    "BOOLEAN": ((23, 0, 0, 1, 0), (21, 1, 0), b"\1", True, False, _items("boolean")),
    "DATE": (
        *((12, 0, 0, 4, 0), (14, 4, 0), struct.pack("<i", DAY), 20514, -40587),
        _items("int32", "io.debezium.time.Date"),
    ),
    "TIME": (
        *((13, 0, 0, 4, 0), (15, 4, 0), struct.pack("<I", UNITS), 33247123400, 0),
        _items("int64", "io.debezium.time.MicroTime"),
    ),
    "TIMESTAMP": (
        *((35, 0, 0, 8, 0), (16, 8, 0), struct.pack("<iI", DAY, UNITS)),
        *(1772442847123400, -40587 * 86_400_000_000),
        _items("int64", "io.debezium.time.MicroTimestamp"),
    ),
    "TIME WITH TIME ZONE": (
        *((28, 0, 0, 8, 0), (25, 8, 0), struct.pack("<IH2x", UNITS, 65037)),
        *("09:14:07.1234Z", "00:00:00Z"),
        _items("string", "io.debezium.time.ZonedTime"),
    ),
    "TIMESTAMP WITH TIME ZONE": (
        *((29, 0, 0, 12, 0), (26, 12, 0), struct.pack("<iIH2x", DAY, UNITS, 65037)),
        *("2026-03-02T09:14:07.1234Z", "1858-11-17T00:00:00Z"),
        _items("string", "io.debezium.time.ZonedTimestamp"),
    ),
    "VARCHAR": ((37, 0, 0, 8, 4), (3, 10, 4), b"\2\0\xd0\xb6xxxxxx", "ж", "", _items("string")),
    "CHAR": ((14, 0, 0, 2, 52), (1, 2, 52), b"\xe6 ", "ж ", "\0\0", _items("string")),
    "VARBINARY": ((37, 0, 0, 4, 1), (3, 6, 1), b"\2\0\0\xffxx", b"\0\xff", b"", _items("bytes")),
    "BINARY": ((14, 0, 0, 3, 1), (1, 3, 1), b"\0\xff ", b"\0\xff ", bytes(3), _items("bytes")),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_arrays_of_every_type_are_sent_with_unwritten_elements(name: str) -> None:
    (
        (field_type, sub_type, scale, length, charset),
        (dtype, size, content_sub_type),
        stored,
        *sent,
    ) = ELEMENTS[name]
    value, missing, items = sent
    element = Element(field_type, sub_type, scale, length, charset, BOUNDS)
    form = _form(_column(element, precision=9 if scale else 0, char_length=2))
    assert form.schema.to_json() == {
        "type": "array",
        "optional": True,
        "items": {"type": "array", "optional": False, "items": items},
    }
    array = _array(dtype, scale, size, content_sub_type, stored)
    assert form.function()(array) == [[value, missing], [missing, missing]]


def test_decfloats_follow_the_mode_inside_arrays() -> None:
    column = _column(Element(24, 0, 0, 8, 0, BOUNDS))
    array = _array(22, 0, 8, 0, bytes.fromhex("d0030000000030a2"))
    missing = {"scale": 398, "value": b"\0"}  # zeros: 0E-398
    assert _form(column).function()(array) == [
        [{"scale": 2, "value": b"\xfd\x12"}, missing],
        [missing, missing],
    ]
    [[text, _], _] = _form(column, decimal="string").function()(array)
    assert text == "-7.50"
    [[number, _], _] = _form(column, decimal="double").function()(array)
    assert number == -7.5


INTEGERS = _column(Element(8, 0, 0, 4, 0, BOUNDS))
TEXTS = _column(Element(37, 0, 0, 4, 4, BOUNDS))
OCTETS = _column(Element(37, 0, 0, 4, 1, BOUNDS))
LOST = Blob(1, False, None, (), b"half")
DAMAGED = Blob(1, True, None, (), b"\2rest")


@pytest.mark.parametrize(
    "array", [LOST, DAMAGED, _array(8, 0, 2, 0)], ids=["lost", "damaged", "other"]
)
def test_an_array_that_cannot_be_read_holds_the_placeholder_alone(array: Blob) -> None:
    assert _form(TEXTS, placeholder="gone").function()(array) == [["gone"]]
    assert _form(OCTETS, placeholder="hex:c0ff").function()(array) == [[b"\xc0\xff"]]
    as_hex = _form(OCTETS, placeholder="hex:c0ff", binary="hex")
    assert as_hex.function()(array) == [["c0ff"]]
    # It may well be empty.
    assert _form(TEXTS, placeholder="").function()(array) == [[""]]


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (LOST, "the content of an array could not be read, and no INTEGER stands for"),
        (DAMAGED, r"^(?:no|an) array .*, and no INTEGER stands for"),
        (_array(8, 0, 2, 0), r"2 dimensions of SMALLINT, scale 0, is no INTEGER \[0:1, 2\], and"),
        (_array(9, -2, 4, 1), r"of INTEGER, scale -2, is no INTEGER \[0:1, 2\], and"),
    ],
)
def test_no_number_stands_for_an_array_that_cannot_be_read(array: Blob, what: str) -> None:
    with pytest.raises(BadValue, match=what):
        _form(INTEGERS).function()(array)


def test_a_text_in_an_array_that_cannot_be_decoded_is_the_placeholder() -> None:
    array = _array(3, 0, 6, 4, b"\1\0\xff...", b"\1\0a...")
    assert _form(TEXTS, placeholder="gone").function()(array) == [["gone", "a"], ["", ""]]
    none = _column(Element(37, 0, 0, 4, 0, BOUNDS))
    array = _array(3, 0, 6, 0, b"\1\0\xe6...")
    assert _form(none, charset_none="cp1251").function()(array) == [["ж", ""], ["", ""]]


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_non_finite_number_in_an_array_is_a_bad_value(value: float) -> None:
    column = _column(Element(27, 0, 0, 8, 0, BOUNDS))
    array = _array(12, 0, 8, 0, struct.pack("<d", value))
    with pytest.raises(BadValue, match="JSON number"):
        _form(column).function()(array)
    assert repr(_form(column, non_finite=True).function()(array)[0][0]) == repr(value)


def test_an_array_that_fits_no_message_is_refused_before_it_is_read() -> None:
    large = _column(Element(8, 0, 0, 4, 0, ((1, 1000), (1, 1000))))
    with pytest.raises(BadValue, match=r"1000000 elements .* 999999 .*max\.request\.size"):
        _form(large, max_bytes=999_999).function()(LOST)
    with pytest.raises(BadValue, match=r"bytes does not fit .*max\.request\.size"):
        _form(INTEGERS, max_bytes=60).function()(_array(9, 0, 4, 0, b"1234"))


@pytest.mark.parametrize(
    "element",
    [None, Element(99, 0, 0, 4, 0, BOUNDS), Element(37, 0, 0, 4, 250, BOUNDS)],
    ids=["of-an-older-writer", "unknown-type", "unknown-charset"],
)
def test_arrays_of_unknown_element_types_are_left_out_or_sent_as_bytes(
    element: Element | None,
) -> None:
    column = _column(element)
    assert field_form(column, ValueModes()) is None
    form = _form(column, unknown_types=True, placeholder="gone")
    assert form.schema.to_json() == {"type": "bytes", "optional": True}
    assert form.function()(DAMAGED) == b"\2rest"
    assert form.function()(LOST) == b"gone"


def test_the_array_itself_is_required_if_its_column_is() -> None:
    form = _form(_column(INTEGERS.element, nullable=False))
    assert form.schema.optional is False
    assert form.schema is _form(_column(INTEGERS.element, nullable=False)).schema
