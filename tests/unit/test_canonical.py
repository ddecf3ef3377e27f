"""The text of a row: exact for every type, and the same from the journal's and Python's values."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path

import pytest

from firebird_cdc.journal.format import (
    Column,
    JournalReader,
    JournalWriter,
    RowChange,
    Storage,
    Table,
    Undecodable,
)
from firebird_cdc.journal.types.canonical import RowText, canonical_row, canonical_value

PLAIN = Column("C", 0, 0, 0, 8, 4, 0, 0, True, False, 0, Storage.INTEGER)


def of(storage: Storage, **facts: int) -> Column:
    return replace(PLAIN, storage=storage, **facts)


DAY = 60369  # 2024-02-29
NOON = 12 * 3600 * 10_000


@pytest.mark.parametrize(
    ("column", "raw", "natural", "text"),
    [
        (of(Storage.INTEGER), -7, -7, "-7"),
        (of(Storage.BIGINT), 2**63 - 1, 2**63 - 1, "9223372036854775807"),
        (of(Storage.INTEGER, scale=-2, sub_type=1), -5, Decimal("-0.05"), '"-0.05"'),
        (of(Storage.BIGINT, scale=-2, sub_type=2), 1230, Decimal("12.3"), '"12.30"'),
        (of(Storage.BIGINT, sub_type=1), 12, Decimal(12), '"12"'),
        (
            of(Storage.INT128, scale=-4, sub_type=2),
            -(10**37) - 1,
            Decimal("-1000000000000000000000000000000000.0001"),
            '"-1000000000000000000000000000000000.0001"',
        ),
        (of(Storage.FLOAT), 0.10000000149011612, 0.1, "0.1"),
        (of(Storage.DOUBLE), 0.1, 0.1, "0.1"),
        (of(Storage.DOUBLE), float("-inf"), float("-inf"), '"-Infinity"'),
        (of(Storage.FLOAT), float("nan"), float("nan"), '"NaN"'),
        (of(Storage.DOUBLE, scale=-2), 1.1, 1.1, '"1.10"'),
        (of(Storage.BOOLEAN), True, True, "true"),
        (of(Storage.DATE), DAY, date(2024, 2, 29), '"2024-02-29"'),
        (of(Storage.DATE), -678575, date(1, 1, 1), '"0001-01-01"'),
        (of(Storage.TIME), NOON, time(12), '"12:00:00"'),
        (
            of(Storage.TIMESTAMP),
            DAY * 864_000_000 + NOON + 1,
            datetime(2024, 2, 29, 12, 0, 0, 100),
            '"2024-02-29T12:00:00.0001"',
        ),
        (of(Storage.TEXT), ' "ä\n', ' "ä\n', '" \\"ä\\n"'),
        (of(Storage.PADDED_TEXT), "a ".ljust(9), "a", '"a"'),
        (of(Storage.OCTETS), b"\x00\xff", b"\x00\xff", '"AP8="'),
    ],
)
def test_value_has_one_text_from_journal_and_from_python(
    column: Column, raw: object, natural: object, text: str
) -> None:
    assert canonical_value(column, raw) == text
    assert canonical_value(column, natural) == text
    assert canonical_value(column, None) == "null"
    json.loads(text)


@pytest.mark.parametrize(
    ("zone", "text"),
    [(1439, "Z[+00:00]"), (1439 - 210, "Z[-03:30]"), (65037, "Z[65037]")],
    ids=["utc", "offset", "named"],
)
def test_zoned_values_keep_instant_and_zone(zone: int, text: str) -> None:
    stored = zone.to_bytes(2, "little")
    at = (DAY * 864_000_000 + NOON).to_bytes(8, "little") + stored
    assert canonical_value(of(Storage.TIMESTAMP_TZ), at) == f'"2024-02-29T12:00:00{text}"'
    clock = NOON.to_bytes(4, "little") + stored
    assert canonical_value(of(Storage.TIME_TZ), clock) == f'"12:00:00{text}"'


@pytest.mark.parametrize(
    ("days", "text"),
    [(-678576, "0000-12-31"), (2973484, "+10000-01-01"), (-678576 - 366, "-0001-12-31")],
    ids=["before-year-1", "after-9999", "before-0"],
)
def test_zoned_days_beyond_the_years_1_to_9999_have_a_text(days: int, text: str) -> None:
    at = (days * 864_000_000).to_bytes(8, "little", signed=True) + (1439).to_bytes(2, "little")
    assert canonical_value(of(Storage.TIMESTAMP_TZ), at) == f'"{text}T00:00:00Z[+00:00]"'


def test_decfloat_keeps_its_exponent() -> None:
    # 1.20 as decimal64: exponent -2, biased by 398, its two high bits apart; digits 120.
    exponent = 398 - 2
    word = (exponent >> 8) << 61 | (exponent & 255) << 50 | 0b001_010_0000
    stored = word.to_bytes(8, "little")
    assert canonical_value(of(Storage.DECFLOAT16), stored) == '"1.20"'
    assert canonical_value(of(Storage.DECFLOAT16), Decimal("1.20")) == '"1.20"'


def test_text_that_cannot_be_decoded_keeps_its_bytes() -> None:
    value = Undecodable(b"\xff\x00", 4)
    assert canonical_value(of(Storage.TEXT), value) == '{"base64":"/wA="}'


def test_decimal_that_does_not_fit_the_scale_is_refused() -> None:
    with pytest.raises(ValueError, match=r"C: 1\.234 has more than 2 decimals"):
        canonical_value(of(Storage.INTEGER, scale=-2), Decimal("1.234"))


def test_blobs_of_a_journal_are_written_whole_or_as_digests(tmp_path: Path) -> None:
    memo = replace(of(Storage.BLOB, sub_type=1, charset_id=52), name="MEMO")
    picture = replace(of(Storage.BLOB), name="PICTURE")
    number = replace(PLAIN, name="ID", key_position=1)
    path = tmp_path / "j.log"
    with JournalWriter(path) as writer:
        table = writer.table("T", (memo, picture, number))
        big = b"x" * 100_000
        for content in (b"\x00\x01", big, b"lost"):
            text = writer.blob("Привет".encode("cp1251"))
            image = writer.blob(content, available=content != b"lost")
            writer.insert(table, (text, image, 1))
        writer.seal()
    texts = []
    with JournalReader(path) as reader:
        for change in reader.changes():
            assert isinstance(change, RowChange)
            assert change.after is not None
            limited = RowText(change.table, blob_limit=1000)
            texts.append(json.loads(limited.row(change.after)))
            bare = RowText(change.table, with_blobs=False)
            assert (bare.row(change.after), bare.key(change.after)) == ('{"ID":1}', '{"ID":1}')
    assert [text["MEMO"] for text in texts] == ["Привет"] * 3
    assert [text["PICTURE"] for text in texts] == [
        "AAE=",
        {"length": 100_000, "sha256": hashlib.sha256(big).hexdigest()},
        {"unavailable": True},
    ]


def test_row_keeps_the_order_of_columns_and_key_that_of_the_key() -> None:
    columns = (
        replace(PLAIN, name="A", key_position=2),
        replace(PLAIN, name='Q"'),
        replace(PLAIN, name="B", key_position=1),
    )
    writer = RowText(Table(1, "T", 1, columns))
    assert (
        writer.row((1, None, 3))
        == '{"A":1,"Q\\"":null,"B":3}'
        == canonical_row(columns, (1, None, 3))
    )
    assert writer.key((1, None, 3)) == '{"B":3,"A":1}'
    shown_otherwise = RowText(Table(1, "T", 1, columns, (2, 0, 1)))
    assert shown_otherwise.row((1, None, 3)) == '{"B":3,"A":1,"Q\\"":null}'
    assert shown_otherwise.key((1, None, 3)) == '{"B":3,"A":1}'
