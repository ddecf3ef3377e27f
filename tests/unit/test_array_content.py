"""Arrays as the engine keeps them: what is not written, what is damaged, and how they are shown."""

from __future__ import annotations

import argparse
import struct
from pathlib import Path

import pytest

from firebird_cdc.journal.format import Column, JournalWriter, Storage, Undecodable, Value
from firebird_cdc.journal.shipper.commands import show
from firebird_cdc.journal.types.arrays import decode_array

COLUMN = Column("A", 540, 0, 0, 8, 0, 0, 0, True, False, 0, Storage.ARRAY)


def _content(dtype: int, scale: int, length: int, sub_type: int, *elements: bytes) -> bytes:
    """Return an array with the bounds [0:1, 2] of which ELEMENTS were written."""
    head = struct.pack("<BBHHHII", 1, 2, 1, length, 64, 4, 4 * length)
    element = struct.pack("<BbHh6x", dtype, scale, length, sub_type)
    junk = b"\xa8\xc4\x7f\xcb\x08\x7f\0\0\xf8\xf4\xdc\x7a"
    dimensions = struct.pack("<iii", 2, 0, 1) + junk + struct.pack("<iii", 1, 1, 2)
    return head + element + dimensions + b"".join(elements)


# dtype, scale, length, sub-type, an element's bytes, what it is, what one not written is.
ELEMENTS: dict[str, tuple[int, int, int, int, bytes, Value, Value]] = {
    "INT128": (24, -2, 16, 1, (-(2**127)).to_bytes(16, "little", signed=True), -(2**127), 0),
    "DECFLOAT16": (22, 0, 8, 0, b"\1" + bytes(5) + b"\x38\xa2", b"\1\0\0\0\0\0\x38\xa2", bytes(8)),
    "DATE": (14, 0, 4, 0, struct.pack("<i", -678_575), -678_575, 0),
    "TIMESTAMP": (16, 0, 8, 0, struct.pack("<iI", -1, 5), -863_999_995, 0),
    "TIME_TZ": (25, 0, 8, 0, struct.pack("<IH2x", 5, 65535), b"\5\0\0\0\xff\xff", bytes(6)),
    "TIMESTAMP_TZ": (
        *(26, 0, 12, 0, struct.pack("<iIH2x", 1, 5, 65535)),
        struct.pack("<qH", 864_000_005, 65535),
        bytes(10),
    ),
    "OCTETS": (1, 0, 3, 1, b"\0\xff ", b"\0\xff ", bytes(3)),
    "VARCHAR": (3, 0, 6, 4, b"\2\0\xd0\xb6xx", "ж", ""),
    "COLLATED": (3, 0, 6, 5 * 256 + 4, b"\1\0a\0\0\0", "a", ""),
    "UNDECODABLE": (3, 0, 4, 4, b"\1\0\xff\0", Undecodable(b"\xff", 4), ""),
    "UNKNOWN": (99, 0, 2, 0, b"ab", b"ab", b"\0\0"),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_elements_of_every_kind_are_read_and_unwritten_ones_are_missing(name: str) -> None:
    dtype, scale, length, sub_type, raw, value, missing = ELEMENTS[name]
    array = decode_array(_content(dtype, scale, length, sub_type, raw), COLUMN)
    assert array.bounds == ((0, 1), (1, 2))
    assert array.values == [[value, missing], [missing, missing]]
    assert array.element.scale == scale


_NUMBERS = _content(9, 0, 4, 0, struct.pack("<ii", 7, -8))
DAMAGED = {
    "nothing": b"",
    "cut in the head": _NUMBERS[:9],
    "cut in the bounds": _NUMBERS[:50],
    "another version": b"\2" + _NUMBERS[1:],
    "no dimension": _NUMBERS[:1] + b"\0" + _NUMBERS[2:],
    "more dimensions than there are": _NUMBERS[:1] + b"\x11" + _NUMBERS[2:],
    "bounds that don't fit the count": _NUMBERS[:36] + b"\7" + _NUMBERS[37:],
    "elements without a length": _NUMBERS[:4] + b"\0\0" + _NUMBERS[6:],
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_malformed_array_content_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="array"):
        decode_array(content, COLUMN)


def test_an_array_too_large_for_a_list_is_refused() -> None:
    head = struct.pack("<BBHHHII", 1, 1, 1, 4, 40, 2**31 - 1, 0)
    element = struct.pack("<BbHh6x", 9, 0, 4, 0) + struct.pack("<iii", 1, 1, 2**31 - 1)
    with pytest.raises(ValueError, match="2147483647 elements"):
        decode_array(head + element, COLUMN)


def test_journal_show_shows_the_elements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "journal.log.live"
    with JournalWriter(path) as writer:
        table = writer.table("T", [COLUMN], key_kind=0)
        for content in (_NUMBERS, DAMAGED["cut in the head"]):
            writer.insert(table, [writer.blob(content)])
        writer.seal()
    parser = argparse.ArgumentParser()
    show.register(parser.add_subparsers())
    assert show.run(parser.parse_args(["show", str(path)])) == 0
    out = capsys.readouterr().out
    assert "A=<blob 1, 72 bytes: [[7, -8], [0, 0]]>" in out
    assert "A=<blob 2, 9 bytes: x'" in out
    assert show.run(parser.parse_args(["show", "--json", str(path)])) == 0
    assert '{"bounds": [[0, 1], [1, 2]], "values": [[7, -8], [0, 0]]}' in capsys.readouterr().out
