"""The tables of docs/journal-format.md against the code and, by the offsets that it gives, against
the bytes of the vectors."""

from __future__ import annotations

import json
import re
import struct
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from firebird_cdc.journal.events import defaults
from firebird_cdc.journal.format import (
    definitions,
    journal_index,
    layout,
    reader,
    records,
    sectors,
    shared,
)
from firebird_cdc.journal.types import arrays
from firebird_cdc.journal.types.engine_types import OF_DESCRIPTOR

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs/journal-format.md").read_text("utf-8")
_VECTORS = _ROOT / "tests/vectors"
_TYPES = {
    "u8": "B",
    "i8": "b",
    "u16": "H",
    "i16": "h",
    "u32": "I",
    "i32": "i",
    "u64": "Q",
    "i64": "q",
}
_C_SIZES = {"16": 2, "32": 4, "64": 8}
_PATH_LENGTH = (104, 2)  # in the first block of a file, before a path of any length


class Field(NamedTuple):
    """A row of a table of offsets; ``type``: "" for bytes."""

    offset: int
    size: int
    type: str
    what: str


def table_behind(heading: str) -> list[list[str]]:
    """Return the cells of the first table behind HEADING, without its head."""
    lines = iter(_PAGE.partition(heading)[2].splitlines())
    rows = []
    for line in lines:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line[1:-1].split("|")])
        elif rows:
            break
    assert len(rows) > 2, f"no table behind {heading}"
    return rows[2:]


def fields_behind(heading: str) -> list[Field]:
    rows = [(*cells, "")[:4] for cells in table_behind(heading)]
    return [
        Field(int(offset), int(size), kind, what)
        for offset, size, kind, what in rows
        if offset.isdigit() and size.isdigit()
    ]


def struct_fields(form: str) -> list[tuple[int, int, str]]:
    """Return offset, size and type of each value of a struct format; "" for bytes."""
    names = {code: name for name, code in _TYPES.items()}
    pieces = re.findall(r"(\d*)([a-zA-Z])", form)
    sizes = [struct.calcsize(f"<{count}{code}") for count, code in pieces]
    offsets = [0, *accumulate(sizes)]
    return [
        (offset + n * size, size, names.get(code, ""))
        for (count, code), whole, offset in zip(pieces, sizes, offsets, strict=False)
        if code != "x"
        for n in range(int(count) if code in names and count else 1)
        for size in [struct.calcsize(f"<{code}") if code in names else whole]
    ]


HEADER, MARK, STAMP = "**Header**", "**Commit mark**", "**Stamp**"
FIRST, HEAD, VOID = "of the **first block**", "A **transaction** is", "A **void** says"
INDEX, ENTRY = "The **index** names", "An **entry** is"
FLOOR_SEAL = "The payload of its **seal**"
BLOCK, SEAL, RECORD = "### Blocks", "**The seal** has flag 2", "### Records"
ELEMENT, ARRAY = "what\nan element of it is", "### Arrays"


@pytest.mark.parametrize(
    ("heading", "form"),
    [
        (HEADER, layout.HEADER.format),
        (MARK, layout.COMMIT.format),
        (STAMP, layout.STAMP.format),
        (BLOCK, layout.BLOCK.format),
        (SEAL, layout.SEAL.format),
        (RECORD, layout.RECORD.format.replace("<H", "<BB")),
        (FIRST, shared._FILE.format.removesuffix("H")),  # of the path, whose length varies
        (HEAD, layout.HEAD.format),
        (FLOOR_SEAL, layout.FLOOR_SEAL.format),
        (VOID, shared._VOID.format),
        (INDEX, journal_index._BLOCK.format),
        (ENTRY, journal_index._ENTRY.format),
    ],
)
def test_documented_offsets_are_those_of_the_code(heading: str, form: str) -> None:
    documented = [
        each[:3]
        for each in fields_behind(heading)
        if each.what != "CRC" and not each.what.startswith("zero:")
    ]
    assert documented == struct_fields(form)


@pytest.mark.parametrize(
    ("heading", "form"),
    [
        ("and for every column\n", definitions._COLUMN.format),
        (ELEMENT, definitions._ELEMENT.format + definitions._BOUNDS.format[1:]),
    ],
)
def test_documented_parts_of_a_definition_are_those_of_the_code(heading: str, form: str) -> None:
    documented = [
        part
        for size, kind, _ in table_behind(heading)
        if size != "2 + n"
        for part in kind.split(", ")
    ]
    assert documented == [kind for _, _, kind in struct_fields(form)]


def test_documented_head_of_an_array_is_that_of_the_code() -> None:
    head, element, dimension = (
        getattr(arrays, name).format for name in ("_HEAD", "_ELEMENT", "_DIMENSION")
    )
    documented = [each[:3] for each in fields_behind(ARRAY)]
    assert documented == struct_fields(head + element[1:])
    assert f"| 32 + {struct.calcsize(dimension)} n | 4 | i32 | lower" in _PAGE
    assert struct_fields(dimension)[0][0] + arrays._HEAD.size == 32
    dtypes = next(each.what for each in fields_behind(ARRAY) if "dtype" in each.what)
    known = set(OF_DESCRIPTOR)
    assert {int(code) for code in re.findall(r"(?<![\w])(\d+)(?= )", dtypes)} == known


def test_documented_sectors_lie_where_the_code_has_them() -> None:
    places = {
        int(cells[0]): (int(cells[1]), cells[2])
        for cells in table_behind("## Layout of the file")
        if cells[0].isdigit() and cells[1].isdigit()
    }
    assert {at: what.split(",")[0] for at, (_, what) in places.items()} == {
        0: "sector 0",
        layout.COMMIT_OFFSET: "sector 1",
        layout.STAMP_OFFSET: "sector 2",
    }
    assert {size for size, _ in places.values()} == {layout.SECTOR}
    assert f"| {layout.DATA_OFFSET} | | blocks" in _PAGE
    assert f"| | {layout.SEAL_BLOCK} | the seal" in _PAGE
    assert f"A block is a header of {layout.BLOCK_HEADER} bytes" in _PAGE
    for heading in (HEADER, MARK, STAMP):
        assert fields_behind(heading)[-1] == (layout.SECTOR - 4, 4, "u32", "CRC")


def test_documented_magic_numbers_and_version_are_those_of_the_code() -> None:
    wanted = {
        HEADER: layout.MAGIC,
        MARK: layout.COMMIT_MAGIC,
        STAMP: layout.STAMP_MAGIC,
        BLOCK: layout.BLOCK_MAGIC,
        FIRST: layout.MAGIC,
        HEAD: layout.TRANSACTION_MAGIC,
        VOID: shared._VOID_MAGIC,
        INDEX: journal_index._MAGIC,
    }
    for heading, magic in wanted.items():
        (shown,) = re.findall(r"^magic `(\S+)`", fields_behind(heading)[0].what)
        assert shown.encode().decode("unicode_escape").encode() == magic
    values = {each.what for each in fields_behind(HEADER)}
    assert f"version, {layout.VERSION}" in values
    assert f"offset of the first block, {layout.DATA_OFFSET}" in values
    for heading, name, size in (
        (FIRST, "block", shared.FILE_BLOCK),
        (HEAD, "head", layout.HEAD.size),
    ):
        values = {each.what for each in fields_behind(heading)}
        assert {f"version, {layout.SHARED_VERSION}", f"bytes of the {name}, {size}"} <= values
    assert f"entries in this block, up to {journal_index._IN_A_BLOCK}" in {
        each.what for each in fields_behind(INDEX)
    }


def _flags(text: str) -> dict[int, str]:
    """Return what a text says of each flag: ``1 it is this, 2 it is that``."""
    told = re.split(r"(?:^|, )(\d+) ", text)
    return {int(number): what for number, what in zip(told[1::2], told[2::2], strict=True)}


def test_documented_flags_are_those_of_the_code() -> None:
    block = next(each.what for each in fields_behind(BLOCK) if each.what.startswith("flags"))
    assert {*_flags(block.removeprefix("flags: "))} == {
        layout.DEFINES,
        layout.SEALS,
        layout.CATALOGUE,
    }
    mark = next(each.what for each in fields_behind(MARK) if each.what.startswith("flags"))
    assert {*_flags(mark.removeprefix("flags: "))} == {layout.UNSYNCED}
    column = next(
        cells[2] for cells in table_behind("and for every column\n") if "NOT NULL" in cells[2]
    )
    flags = _flags(column.removeprefix("flags: "))
    assert sum(flags) == definitions._COLUMN_FLAGS
    assert "default" in flags[definitions._DEFAULTED]


def test_documented_kinds_of_records_are_those_of_both_writers() -> None:
    rows = {cells[1]: cells for cells in table_behind("| 8 | | | body |\n")}
    kinds = {name: int(cells[0]) for name, cells in rows.items()}
    assert kinds == {name: getattr(layout, name) for name in kinds}
    assert [*kinds.values()] == [*range(1, layout.TABLE_CHANGE + 1)]
    events = {kinds[name] for name, cells in rows.items() if cells[2] == "yes"}
    assert events == reader._EVENTS
    table, blob = (_flags(rows[name][3].partition("Flags: ")[2]) for name in ("TABLE", "BLOB"))
    assert {*blob} == {layout.LAST_CHUNK, layout.UNAVAILABLE}
    (unresolved,) = table
    assert layout.TABLE | unresolved << 8 == layout.UNRESOLVED_TABLE
    ours = _c_constants("native/journal.h")
    of_plugin = {name: number for name, number in kinds.items() if name != "TABLE_CHANGE"}
    assert of_plugin == {name: ours[f"FBC_{name}"] for name in of_plugin}
    assert (ours["FBC_BLOB_LAST"], ours["FBC_BLOB_UNREADABLE"]) == tuple(blob)
    assert ours["FBC_TABLE_UNRESOLVED"] == unresolved


def _c_constants(path: str) -> dict[str, int]:
    """Return the constants of a C file whose values are numbers or products of them."""
    code = re.sub(r"/\*.*?\*/", "", (_ROOT / path).read_text("utf-8"), flags=re.DOTALL)
    found = re.findall(r"\b([A-Z][A-Z0-9_]+) = (\d+(?: \* \d+)*)(?=[,\s}])", code)
    products = {name: [int(part) for part in text.split(" * ")] for name, text in found}
    return {name: _product(parts) for name, parts in products.items()}


def _product(parts: list[int]) -> int:
    whole = 1
    for part in parts:
        whole *= part
    return whole


@pytest.mark.parametrize(
    ("heading", "variable", "begins"),
    [
        (FIRST, "first", ""),
        (HEAD, "head", ""),
        (BLOCK, "block", ""),
        (FLOOR_SEAL, "payload", ""),
        (RECORD, "record", ""),
    ],
)
def test_plugin_writes_the_documented_fields(heading: str, variable: str, begins: str) -> None:
    code = (_ROOT / "native/journal.c").read_text("utf-8")
    place = rf"{variable}{begins}(?: \+ (\d+))?"
    written = {
        (int(at or 0), _C_SIZES[bits])
        for bits, at in re.findall(rf"fbc_put(16|32|64)\({place},", code)
    }
    written |= {
        (int(at or 0), int(size))
        for at, size in re.findall(rf"memcpy\({place}, .+, (\d+)\);", code)
    }
    written |= {(int(at), 1) for at in re.findall(rf"\b{variable}\[(\d)\] =", code)}
    documented = {
        each[:2]
        for each in fields_behind(heading)
        if not re.match(r"CRC$|`CRC\(uuid of|zero$|zero:", each.what)
    }
    assert written - {_PATH_LENGTH} == documented


def test_documented_sizes_are_those_of_the_plugin() -> None:
    ours = _c_constants("native/journal.h") | _c_constants("native/catalogue.c")
    ours |= _c_constants("native/catalogue.h") | _c_constants("native/rows.h")
    assert ours["FBC_FILE_BLOCK"] == layout.FILE_BLOCK
    assert ours["FBC_HEAD"] == layout.HEAD.size
    assert ours["FBC_BLOCK_HEADER"] == layout.BLOCK_HEADER
    assert ours["FBC_BLOCK_LIMIT"] == layout.MAX_PAYLOAD
    assert ours["FBC_COLUMN_BYTES"] == definitions._COLUMN.size
    plugin_kib, python_kib = ours["FBC_BLOCK_TARGET"] >> 10, records.BLOCK_TARGET >> 10
    text = " ".join(_PAGE.split())
    assert f"once it holds {plugin_kib} KiB, the writer in Python" in text
    assert f"before it would hold more than {python_kib} KiB" in text
    largest, of_table = ours["FBC_MOST_DEFAULT"], ours["MOST_DEFAULTS"] >> 20
    assert f"up to {largest} bytes each and {of_table} MiB for a table" in text


def test_documented_limits_are_those_of_the_code() -> None:
    limits = {cells[0]: cells[1] for cells in table_behind("## Limits")}
    assert limits["payload of a block, and so a record"] == f"{layout.MAX_PAYLOAD >> 20} MiB"
    assert limits["blanks that a row is padded with"] == f"{definitions._MAX_PADDING:,}"
    assert limits["length of a file"] == f"2^{sectors.MAX_LENGTH.bit_length() - 1}"
    assert f"number of dimensions, up to {definitions._MAX_DIMENSIONS};" in _PAGE
    assert f"dimensions, 1 to {arrays._MOST_DIMENSIONS} |" in _PAGE


def test_documented_literals_are_those_that_are_read() -> None:
    codes = {
        int(code)
        for cells in table_behind("`journal/events/defaults.py` reads them:")
        for code in cells[0].split(", ")
    }
    known = {*defaults._INTEGERS, *defaults._NUMBERS, *defaults._MOMENTS, defaults._BOOLEAN}
    assert codes == known | {defaults._TEXT, defaults._TEXT_WITH_CHARSET}
    literal, negate, end = defaults._LITERAL, defaults._NEGATE, defaults._END
    low, high = defaults._VERSIONS
    text = " ".join(_PAGE.split())
    assert f"is a byte {low} or {high} (the version of BLR), then {negate} if a number" in text
    assert f"then {literal}, the literal and {end}." in text


_NAMED = {
    HEADER: {
        "uuid": "uuid of the journal",
        "transaction": "transaction number",
        "started_us": "time at which the journal was begun",
        "database_guid": "GUID of the database",
        "owner": "uuid of the server process",
        "database_inode": "inode of the database file",
    },
    MARK: {
        "ticket": "ticket",
        "commit_us": "time of the call",
        "transaction": "transaction number",
    },
    STAMP: {
        "epoch": "epoch",
        "sequence": "sequence",
        "commit_us": "commit time",
        "stamped_us": "time of the stamp",
        "journal_length": "length of the journal",
        "event_count": "number of events",
        "transaction": "transaction number",
        "catalogue_offset": "offset of the catalogue",
    },
}
"""Names that vectors have for the fields of a sector: how the page begins to tell of them."""
_SECTORS = {
    HEADER: ("header", 0),
    MARK: ("commit_mark", layout.COMMIT_OFFSET),
    STAMP: ("stamp", layout.STAMP_OFFSET),
}


@pytest.mark.parametrize("heading", _SECTORS)
def test_vectors_hold_at_the_documented_offsets_what_they_say(heading: str) -> None:
    name, start = _SECTORS[heading]
    fields = fields_behind(heading)
    seen = 0
    for path in sorted(_VECTORS.glob("*.json")):
        expected = json.loads(path.read_text("utf-8")).get(name)
        if expected is None:
            continue
        seen += 1
        content = _content(path)
        assert {*expected} == {*_NAMED[heading]}
        for key, begins in _NAMED[heading].items():
            (field,) = (each for each in fields if each.what.startswith(begins))
            assert _value(content, start, field) == expected[key], f"{path.stem}: {name} {key}"
        for field in fields:
            if field.what.startswith("zero:"):
                assert _value(content, start, field) == 0, f"{path.stem}: {field.what}"
    assert seen > 3


def _content(path: Path) -> bytes:
    """Return the bytes of a vector (see generate.py on the form)."""
    *lines, length = path.with_suffix(".hex").read_text("ascii").splitlines()
    content = bytearray(int(length, 16))
    for offset, piece in (line.split() for line in lines):
        at = int(offset, 16)
        content[at : at + len(piece) // 2] = bytes.fromhex(piece)
    return bytes(content)


def _value(content: bytes, start: int, field: Field) -> Any:
    raw = content[start + field.offset : start + field.offset + field.size]
    if field.type:
        return struct.unpack(f"<{_TYPES[field.type]}", raw)[0]
    return str(UUID(bytes=raw))


def test_fields_of_a_table_do_not_overlap() -> None:
    version_2 = FIRST, HEAD, FLOOR_SEAL, VOID, INDEX, ENTRY
    for heading in (HEADER, MARK, STAMP, BLOCK, SEAL, RECORD, ARRAY, *version_2):
        for before, behind in pairwise(fields_behind(heading)):
            assert before.offset + before.size <= behind.offset, f"{heading}: {behind.what}"
