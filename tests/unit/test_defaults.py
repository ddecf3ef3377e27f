"""Defaults of columns: what of the engine's is a literal, and which fields have one."""

from __future__ import annotations

import json
import random
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shipment import Render, insert

from firebird_cdc.journal.events.defaults import literal_value, with_default
from firebird_cdc.journal.events.values import ValueModes, field_form
from firebird_cdc.journal.format import Column, Storage, Table
from firebird_cdc.journal.replay.source.changes import table_shape
from firebird_cdc.journal.types.decfloat import decode_decfloat, encode_decfloat


def literal(code: int, content: bytes) -> bytes:
    """A literal as the engine compiles it (docs/journal-format.md)."""
    return bytes([5, 21, code]) + content + b"\x4c"


def integer(number: int, scale: int = 0) -> bytes:
    return literal(
        16, scale.to_bytes(1, "little", signed=True) + number.to_bytes(8, "little", signed=True)
    )


def text(content: bytes, charset: int = 4) -> bytes:
    return literal(15, charset.to_bytes(2, "little") + len(content).to_bytes(2, "little") + content)


FIVE = integer(5)


def column(storage: Storage, default: bytes | None, **more: Any) -> Column:
    fields: dict[str, Any] = dict.fromkeys(
        ("sql_type", "sub_type", "scale", "charset_id", "precision", "key_position"), 0
    )
    fields |= {"name": "C", "length": 8, "char_length": 2, "nullable": False, "identity": False}
    return Column(**(fields | {"storage": storage, "default": default} | more))


def name(default: bytes, **more: Any) -> Column:
    return column(
        Storage.TEXT, default, name="NAME", charset_id=4, char_length=10, **({"length": 40} | more)
    )


ID = column(Storage.BIGINT, FIVE, name="ID", key_position=1)


@pytest.mark.parametrize(
    "unfit",
    [
        column(Storage.SMALLINT, integer(32768)),
        column(Storage.INTEGER, integer(-(2**31) - 1)),
        column(Storage.BIGINT, literal(27, b"\x04\x001e19")),
        column(Storage.SMALLINT, integer(32768, -1), scale=-2),
        column(Storage.INTEGER, text(b"many")),
        column(Storage.INTEGER, text(b"")),
        column(Storage.INTEGER, text("٣".encode())),  # digits of others
        column(Storage.INTEGER, text(b"1.5")),  # the engine has a rounding of its own for texts
        column(Storage.FLOAT, literal(27, b"\x04\x001e39")),
        column(Storage.DOUBLE, literal(27, b"\x05\x001e400")),
        column(Storage.DOUBLE, text(b"nan")),
        column(Storage.BOOLEAN, text(b"maybe")),
        column(Storage.BOOLEAN, integer(1)),
        column(Storage.TEXT, text(b"abc"), charset_id=4),
        column(Storage.TEXT, text("🍵".encode()), charset_id=52),  # WIN1251 has no such
        column(Storage.TEXT, text(b"\xff"), charset_id=4),
        column(Storage.TEXT, text(b"\xc6", charset=127), charset_id=4),  # that of who inserts
        column(Storage.TEXT, text(b"a"), charset_id=999),
        column(Storage.TEXT, integer(1), charset_id=999),
        column(Storage.TEXT, literal(25, b"\x03\x001E5"), charset_id=4, char_length=9),  # 1E+5
        column(Storage.INT128, literal(27, b"\x03\x001e5")),
        column(Storage.DOUBLE, literal(27, b"\x02\x00-0")),
        column(Storage.OCTETS, text(b"123456789", charset=1)),
        column(Storage.OCTETS, integer(1)),
        column(Storage.BLOB, integer(1), sub_type=1, charset_id=4),
        column(Storage.DATE, text(b"2020-02-30")),
        column(Storage.DATE, text(b"2020-01-01 10:00")),
        column(Storage.DATE, text(b"1-JAN-2020")),
        column(Storage.TIME, text(b"24:00")),
        column(Storage.TIME, text(b"10:00 +03:00")),
        column(Storage.TIMESTAMP, text(b"2020-01-0110:00")),
        column(Storage.TIMESTAMP, literal(13, bytes(4))),  # of which day
        column(Storage.TIMESTAMP, literal(35, b"\xff\xff\xff\x7f" + bytes(4))),  # beyond all years
        column(Storage.TIMESTAMP_TZ, text(b"2020-01-01 10:00 +14:30")),
        column(Storage.TIMESTAMP_TZ, text(b"0001-01-01 00:30 +02:00")),
        column(Storage.DECFLOAT16, integer(12345678901234567)),
        column(Storage.ARRAY, FIVE),
        column(Storage.RAW, FIVE),
        column(Storage.INTEGER, bytes([5, 45, 76])),  # NULL
        column(Storage.TEXT, bytes([5, 44, 76]), charset_id=4),  # USER
        column(Storage.DATE, bytes([5, 160, 76])),  # CURRENT_DATE
        column(Storage.INTEGER, bytes([5, 34]) + FIVE[1:-1] * 2 + b"\x4c"),  # 5 + 5
        column(Storage.INTEGER, FIVE[:-1]),
        column(Storage.INTEGER, FIVE + b"\x4c"),
        column(Storage.INTEGER, b"\6" + FIVE[1:]),
        column(Storage.INTEGER, b""),
        column(Storage.INTEGER, None),
    ],
)
def test_default_that_does_not_fit_its_column_is_omitted(unfit: Column) -> None:
    assert literal_value(unfit, "UTF-8") is None


def test_older_forms_of_literals() -> None:
    """Numbers that are negated, texts without a character set, version 4: of restored databases."""
    negated = bytes([4, 38]) + FIVE[1:]
    assert literal_value(column(Storage.INTEGER, negated), "UTF-8") == -5
    plain = literal(14, b"\x02\x00ab")
    assert literal_value(column(Storage.TEXT, plain, charset_id=52), "UTF-8") == "ab"


@given(st.binary(max_size=40), st.sampled_from(Storage), st.integers(-10, 3))
def test_no_bytes_do_harm(content: bytes, storage: Storage, scale: int) -> None:
    for default in (content, b"\5\x15" + content):
        literal_value(column(storage, default, scale=scale, charset_id=4), "UTF-8")


def test_huge_exponents_are_read_at_once() -> None:
    for kind in Storage:
        for exponent in (b"1e9999", b"-1e-9999", b"1e99999999"):
            for code in (24, 25, 27):
                default = literal(code, len(exponent).to_bytes(2, "little") + exponent)
                literal_value(column(kind, default, scale=-20, charset_id=4), "UTF-8")


@given(st.booleans(), st.integers(0, 10**34 - 1), st.integers(-6176, 6111))
def test_decfloats_are_encoded_as_they_are_decoded(sign: bool, number: int, exponent: int) -> None:
    value = Decimal((int(sign), tuple(map(int, str(number))), exponent))
    raw = encode_decfloat(value, 16)
    assert raw is not None
    assert decode_decfloat(raw).as_tuple() == value.as_tuple()
    small = encode_decfloat(value, 8)
    fits = number < 10**16 and -398 <= exponent <= 369
    assert (small is not None) is fits
    assert small is None or decode_decfloat(small).as_tuple() == value.as_tuple()


def test_optional_field_has_no_default() -> None:
    nullable = column(Storage.INTEGER, FIVE, nullable=True)
    modes = ValueModes()
    form = field_form(nullable, modes)
    assert form is not None
    assert with_default(nullable, form, modes).schema.default is None


def test_the_shape_of_rows_is_the_same_with_any_default() -> None:
    """Keep the digest by which readers of rows, and what earlier versions compacted, know
    shapes."""
    six, none = (Table(1, "T", 1, (column(Storage.INTEGER, each),)) for each in (integer(6), None))
    assert table_shape(six) == table_shape(none) == "424235f3d44d5395"


def _schemas(render: Render, columns: tuple[Column, ...], *lines: str) -> tuple[Any, Any]:
    """The schemas of the key and of the row after a change, as JSON."""
    values = {Storage.BIGINT: 1, Storage.TEXT: "secret", Storage.INTEGER: 1}
    row = [values[each.storage] for each in columns]
    [message] = render(insert(*row, columns=columns), *lines)
    key, value = (json.loads(part or b"{}")["schema"] for part in (message.key, message.value))
    return key, value["fields"][1]


def _defaults(schema: Any) -> dict[str, Any]:
    return {each["field"]: each["default"] for each in schema["fields"] if "default" in each}


def test_key_schemas_have_no_defaults(render: Render) -> None:
    """Else ALTER ... SET DEFAULT would send the events of every row to another partition."""
    key, row = _schemas(render, (ID, name(text(b"abc"))))
    assert _defaults(key) == {}
    assert _defaults(row) == {"ID": 5, "NAME": "abc"}


@pytest.mark.parametrize(
    ("line", "default"),
    [
        ("column.mask.with.4.chars: .*NAME", "****"),
        ("column.truncate.to.2.chars: .*NAME", "un"),
        ("column.mask.hash.SHA-256.with.salt.pepper: .*NAME", None),
    ],
)
def test_mask_truncation_and_hash_rules_apply_to_defaults(
    render: Render, line: str, default: str | None
) -> None:
    _, row = _schemas(render, (ID, name(text(b"unknown"))), line)
    assert _defaults(row) == ({"ID": 5} if default is None else {"ID": 5, "NAME": default})
    assert "unknown" not in json.dumps(row)


def test_a_converter_of_the_users_makes_values_and_no_defaults(
    render: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"own_{random.Random(18).randrange(10**9)}"
    (tmp_path / f"{module}.py").write_text(
        "from firebird_cdc.journal.events.schema import STRING\n"
        "class Own:\n"
        "    def converter_for(self, column):\n"
        "        return (STRING, str) if column.name == 'NAME' else None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = ("converters: own", f"own.type: {module}.Own")
    _, row = _schemas(render, (ID, name(text(b"abc"))), *lines)
    assert _defaults(row) == {"ID": 5}
    sys.modules.pop(module)
