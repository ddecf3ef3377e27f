"""JSON that C writes: byte by byte as Python does, and none of a damaged row image."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from columns import column

from firebird_cdc.config import load_config
from firebird_cdc.journal.events.converters import dumps
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.events.table_shape import TableShape
from firebird_cdc.journal.events.templates import plain_fill_template
from firebird_cdc.journal.format import Column, Row, Storage, Table, row_decoder
from firebird_cdc.journal.format.layout import Malformed
from firebird_cdc.journal.format.records import _row_image
from firebird_cdc.native._journal_files import fill_template, row_json

MODES = ("", "time.precision.mode: connect\n", "decimal.handling.mode: string\n")

Make = Callable[..., TableShape]


@pytest.fixture
def make_shape(tmp_path: Path) -> Make:
    """Makes the shape of a table with certain columns, with options."""

    def make(columns: Sequence[Column], options: str = "") -> TableShape:
        path = tmp_path / "connector.yaml"
        path.write_text(
            f"connector.name: t\nconnector.journal.directory: {tmp_path}\nkafka.topic.prefix: t\n"
            f"kafka.producer.bootstrap.servers: 127.0.0.1:9\n{options}"
        )
        renderer = Renderer(load_config(path), 1_000_000)
        return renderer.shape("/srv/a.fdb", Table(1, "T", 1, tuple(columns)), 1)

    return make


def _columns(chance: random.Random) -> tuple[Column, ...]:
    makers: tuple[Callable[[str], Column], ...] = (
        lambda name: column(name, Storage.SMALLINT),
        lambda name: column(name, Storage.INTEGER),
        lambda name: column(name, Storage.BIGINT),
        lambda name: column(name, Storage.SMALLINT, scale=-1, sub_type=1, precision=4),
        lambda name: column(name, Storage.INTEGER, scale=-2, sub_type=2, precision=9),
        lambda name: column(name, Storage.BIGINT, scale=-4, sub_type=1, precision=18),
        lambda name: column(name, Storage.BOOLEAN),
        lambda name: column(name, Storage.DATE),
        lambda name: column(name, Storage.TIME),
        lambda name: column(name, Storage.TIMESTAMP),
        lambda name: column(name, Storage.TEXT, char_length=20),
        lambda name: column(name, Storage.TEXT, char_length=20, charset_id=2),
        lambda name: column(name, Storage.TEXT, char_length=20, charset_id=0),
        lambda name: column(name, Storage.PADDED_TEXT, char_length=9),
        lambda name: column(name, Storage.OCTETS, charset_id=1),
        lambda name: column(name, Storage.BLOB),
    )
    names = [f'C{number}"é' for number in range(chance.choice((1, 3, 8, 9, 17, 40)))]
    return (column("ID", Storage.BIGINT, 1), *(chance.choice(makers)(name) for name in names))


_TEXTS = (
    "",
    "x",
    'a "text" \\ and',
    "".join(map(chr, range(129))),
    "Ünïcode",
    "漢字𝄞",
    "\u2028\ufffe",
)


def _value(chance: random.Random, column: Column) -> Any:
    if column.key_position == 0 and chance.random() < 0.2:
        return None
    bits = {
        Storage.SMALLINT: 16,
        Storage.INTEGER: 32,
        Storage.BIGINT: 64,
        Storage.DATE: 32,
        Storage.TIMESTAMP: chance.choice((60, 60, 60, 64)),
    }.get(column.storage)
    if bits is not None:
        half = 1 << bits - 1
        small = chance.randrange(-300, 300)
        return chance.choice((0, -1, 127, 128, -128, -129, small, half - 1, -half))
    match column.storage:
        case Storage.BOOLEAN:
            return chance.random() < 0.5
        case Storage.TIME:
            return chance.choice((0, 863_999_999, 2**32 - 1))
        case Storage.OCTETS:
            return chance.randbytes(chance.randrange(9))
        case Storage.BLOB:
            return None
    text = chance.choice(_TEXTS) * chance.choice((1, 1, 1, 90))
    if column.charset_id == 2:
        return text.encode("ascii", "ignore").decode()
    return text.encode() if chance.random() < 0.9 else text.encode()[:-1]  # cut within a character


def _in_python(shape: TableShape, table: Table, image: bytes) -> tuple[bytes, bytes] | None:
    """Return what decoding, forming and writing a row give; None: some of it fails."""

    def no_blob(number: int) -> Any:
        raise Malformed(str(number))

    try:
        row: Row = row_decoder(table)(image, 0, len(image), no_blob)
        return dumps(shape.row.struct_of(row)), dumps(shape.key.struct_of(row))
    except (Malformed, struct.error, TypeError):
        return None


def _images(seed: int, many: int) -> Iterator[tuple[tuple[Column, ...], list[bytes]]]:
    chance = random.Random(seed)
    for _ in range(many):
        columns = _columns(chance)
        table = Table(1, "T", 1, columns)
        rows = [[_value(chance, each) for each in columns] for _ in range(20)]
        yield columns, [_row_image(table, row) for row in rows]


@pytest.mark.parametrize("seed", range(3))
def test_random_rows_are_written_as_python_writes_them(make_shape: Make, seed: int) -> None:
    written = left = 0
    for columns, images in _images(seed, 40):
        table = Table(1, "T", 1, columns)
        shape = make_shape(columns)
        assert shape.row_json is not None and shape.key_json is not None
        for image in images:
            content, end = b"before" + image + b"behind", 6 + len(image)
            made = shape.row_json(content, 6, end)
            expected = _in_python(shape, table, image)
            if made is None:  # a text that is none, or a number without a form
                left += 1
                assert expected is None or b"_unavailable_" in expected[0]
                continue
            written += 1
            assert (made, shape.key_json(content, 6, end)) == expected
    assert written > 500 and 0 < left < 200


@pytest.mark.parametrize("seed", range(3))
def test_damaged_images_are_read_as_python_reads_them_or_not_at_all(
    make_shape: Make, seed: int
) -> None:
    chance = random.Random(seed)
    written = 0
    for columns, images in _images(100 + seed, 30):
        table = Table(1, "T", 1, columns)
        shape = make_shape(columns)
        assert shape.row_json is not None and shape.key_json is not None
        for image in images:
            damaged = bytearray(image)
            match chance.randrange(3):
                case 0:
                    damaged = damaged[: chance.randrange(len(damaged))]
                case 1:
                    damaged += b"\0"
                case _:
                    for _ in range(chance.choice((1, 1, 5))):
                        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            content = bytes(damaged)
            made = shape.row_json(content, 0, len(content))
            if made is not None:
                written += 1
                key = shape.key_json(content, 0, len(content))
                assert (made, key) == _in_python(shape, table, content)
    assert written > 20


@pytest.mark.parametrize(
    ("added", "options"),
    [
        (column("X", Storage.DOUBLE), ""),
        (column("X", Storage.INT128), ""),
        (column("X", Storage.TEXT, charset_id=21), ""),
        (column("X", Storage.PADDED_TEXT, charset_id=0), ""),
        (column("X", Storage.TIMESTAMP_TZ), ""),
        (column("X", Storage.TIMESTAMP), "time.precision.mode: connect\n"),
        (column("X", Storage.INTEGER, scale=-2), "decimal.handling.mode: string\n"),
        (column("X", Storage.OCTETS, charset_id=1), "binary.handling.mode: hex\n"),
        (column("X", Storage.TEXT), "column.mask.with.5.chars: .*X\n"),
        (column("X", Storage.TEXT), "column.truncate.to.5.chars: .*X\n"),
        (column("X", Storage.TEXT), "column.mask.hash.v2.SHA-256.with.salt.S: .*X\n"),
    ],
)
def test_columns_in_other_forms_are_left_to_python(
    make_shape: Make, added: Column, options: str
) -> None:
    columns = (column("ID", Storage.BIGINT, 1), added)
    assert make_shape(columns, options).row_json is None
    assert make_shape(columns, f"{options}column.exclude.list: .*X\n").row_json is not None


def test_row_with_a_blob_or_without_a_form_is_left_to_python(make_shape: Make) -> None:
    columns = (column("ID", Storage.BIGINT, 1), column("AT", Storage.TIMESTAMP))
    shape = make_shape((*columns, column("B", Storage.BLOB)))
    assert shape.row_json is not None
    image = b"\0" + struct.pack("<qqQ", 1, 0, 7)
    assert shape.row_json(image, 0, len(image)) is None
    image = b"\4" + struct.pack("<qqQ", 1, 2**62, 0)  # no number of 64 bits
    assert shape.row_json(image, 0, len(image)) is None


@pytest.mark.parametrize("plan", [b"\1\0\1\0", b"\xff\xff\0\0", b"\1\0\1\0" + bytes(40), b"\0" * 4])
def test_plan_that_is_none_writes_nothing(plan: bytes) -> None:
    assert row_json(plan, b"\0" * 50, 0, 50) is None
    for start, end in ((-1, 5), (5, 4), (0, 51)):
        with pytest.raises(ValueError, match="no place"):
            row_json(plan, b"\0" * 50, start, end)


def test_templates_are_filled_as_python_fills_them() -> None:
    chance = random.Random(1)
    pieces = (b"", b'{"a":', b"100 %d", b"\xc3\xa9" * 500, *(bytes((slot,)) for slot in range(32)))
    for _ in range(500):
        template = b"".join(chance.choices(pieces, k=chance.randrange(12)))
        uuid = chance.randbytes(16)
        texts = tuple(chance.randbytes(chance.choice((0, 5, 3000))) for _ in range(15))
        numbers = tuple(chance.randrange(-(10**size), 10**size) for size in range(4, 20))
        filled = fill_template(template, uuid, texts, numbers)
        assert filled == plain_fill_template(template, uuid, texts, numbers)
    assert fill_template(b"\0", uuid, (), (2**70,)) == b"%d" % 2**70
    assert fill_template(b"\0\x01", uuid, (), (-(2**63), 2**63 - 1)) == b"%d%d" % (
        -(2**63),
        2**63 - 1,
    )


@pytest.mark.parametrize(
    ("template", "uuid", "texts", "numbers"),
    [
        (b"\1", bytes(16), (b"",), (1,)),
        (b"\x11", bytes(16), (b"",), (1,)),
        (b"\0", bytes(16), (), ("1",)),
        (b"\x10", bytes(16), ("a",), ()),
        (b"\x1f", bytes(15), (), ()),
    ],
)
def test_template_without_what_stands_in_it_is_an_error(
    template: bytes, uuid: bytes, texts: Any, numbers: Any
) -> None:
    with pytest.raises((IndexError, TypeError, ValueError)):
        fill_template(template, uuid, texts, numbers)
