"""Row images: their layout, and functions written out for each shape that decode them."""

from __future__ import annotations

import codecs
import contextlib
import functools
import importlib
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

from firebird_cdc.journal.format import charsets
from firebird_cdc.journal.format.content import Blob
from firebird_cdc.journal.format.layout import Malformed
from firebird_cdc.journal.format.model import (
    BLOB_STORAGES,
    FIXED_FORMATS,
    TEXT_STORAGES,
    VARIABLE_STORAGES,
    Row,
    RowChange,
    Storage,
    Table,
    Undecodable,
    Value,
)

# Compiling takes 30 us and 13 KB of memory a column.
_MAX_COMPILED = 2000
_WRONG_LENGTH = "a row image is not as long as its columns"
_BYTES_FOR_NULL = "a row image has bytes for a NULL"
_BlobLookup: TypeAlias = Callable[[int], Blob]
RowDecoder: TypeAlias = Callable[[bytes, int, int, _BlobLookup], Any]
"""Function ``decode(buffer, at, end, blob)`` that decodes a row image, by default into a `Row`."""


class ImageField(NamedTuple):
    """Properties of a column that a decoder depends on; tables of equal fields share a decoder."""

    storage: Storage
    codec: str | None
    charset_id: int
    char_length: int


def fields_of(table: Table, none_codec: str) -> tuple[ImageField, ...]:
    """Return the fields of TABLE's row images, one for each column, in order; NONE_CODEC: Python's
    codec for texts of CHARACTER SET NONE."""
    fields = []
    for column in table.columns:
        codec = None
        if column.storage in TEXT_STORAGES:
            none = column.charset_id == charsets.NONE
            codec = none_codec if none else charsets.codec_of(column.charset_id)
        padded = column.char_length if column.storage == Storage.PADDED_TEXT else 0
        fields.append(ImageField(column.storage, codec, column.charset_id, padded))
    return tuple(fields)


def decode_text(raw: bytes, field: ImageField) -> str | Undecodable:
    """Return the text of RAW, padded with blanks to the length of FIELD; Undecodable if FIELD has
    no codec or its codec refuses the bytes."""
    if field.codec is None:
        return Undecodable(raw, field.charset_id)
    try:
        if field.charset_id == charsets.NONE:  # its length is in bytes, whatever they stand for
            return raw.ljust(field.char_length).decode(field.codec)
        return raw.decode(field.codec).ljust(field.char_length)
    except UnicodeError:
        return Undecodable(raw, field.charset_id)


def _decode_by_loop(
    layout: struct.Struct,
    fields: tuple[ImageField, ...],
    buffer: bytes,
    at: int,
    end: int,
    blob: _BlobLookup,
) -> Row:
    """Decode a row one column after the other, as the compiled decoder does but slower.

    For rows with a text that its codec refuses, and for tables too wide to be compiled.
    """
    _, *stored = layout.unpack_from(buffer, at)
    bitmap = buffer[at : at + (len(fields) + 7) // 8]
    start = at + layout.size
    row: list[Value] = []
    for index, (field, value) in enumerate(zip(fields, stored, strict=True)):
        is_null = bitmap[index >> 3] >> (index & 7) & 1
        if field.storage in VARIABLE_STORAGES:
            raw = buffer[start : start + value]
            start += value
            if is_null and value:
                raise Malformed(_BYTES_FOR_NULL)
            value = decode_text(raw, field) if field.storage in TEXT_STORAGES else raw
        elif field.storage == Storage.INT128:
            value = int.from_bytes(value, "little", signed=True)
        elif field.storage in BLOB_STORAGES and not is_null:
            value = blob(value)
        row.append(None if is_null else value)
    if start != end:
        raise Malformed(_WRONG_LENGTH)
    if bitmap[-1] >> ((len(fields) - 1) % 8 + 1):
        raise Malformed(_BYTES_FOR_NULL)
    return tuple(row)


def _image_layout(fields: Sequence[ImageField]) -> struct.Struct:
    """Return the layout of the null bitmap and the fixed part of a row."""
    count = len(fields)
    bitmap = "B" if count <= 8 else f"{(count + 7) // 8}s"
    return struct.Struct("<" + bitmap + "".join(FIXED_FORMATS[field.storage] for field in fields))


def _charmap_of(codec: str) -> object | None:
    """Return the decoding table of a single-byte codec, None if it is built in otherwise."""
    name = codecs.lookup(codec).name
    if name in ("utf-8", "ascii", "iso8859-1"):
        return None
    with contextlib.suppress(ImportError):  # of more bytes than one: Python has no such module
        module = importlib.import_module("encodings." + name.replace("-", "_"))
        table: object = getattr(module, "decoding_table", None)
        return table
    return None


def _null_test(index: int) -> str:
    """Return source that tests a column's bit; a mask is faster, but long for wide tables."""
    return f"bits & {1 << index}" if index < 64 else f"bits >> {index} & 1"


@functools.lru_cache(maxsize=256)
def compile_decoder(fields: tuple[ImageField, ...]) -> RowDecoder:
    """Return ``decode(buffer, at, end, blob)`` for the row images of a shape of table.

    The function is written out as source, column by column, since that is twice as fast as
    a loop. Nothing that was read from a file gets into the source but numbers.
    It raises struct.error or Malformed if the image doesn't end at END.
    """
    layout = _image_layout(fields)
    by_loop = functools.partial(_decode_by_loop, layout, fields)
    if len(fields) > _MAX_COMPILED:
        return by_loop
    names: dict[str, Any] = {
        "unpack_from": layout.unpack_from,
        "charmap": codecs.charmap_decode,
        "int128": functools.partial(int.from_bytes, byteorder="little", signed=True),
        "Malformed": Malformed,
        "by_loop": by_loop,
        "wrong_length": _WRONG_LENGTH,
        "bytes_for_null": _BYTES_FOR_NULL,
        "text": decode_text,
    }
    ends = []
    values = []
    null_has_bytes = []
    previous = "e"
    for index, field in enumerate(fields):
        value = f"c{index}"
        if field.storage in VARIABLE_STORAGES:
            ends.append(f"e{index} = {previous} + c{index}")
            piece = f"buffer[{previous}:e{index}]"
            previous = f"e{index}"
            null_has_bytes.append(f"({_null_test(index)} and c{index})")
            if field.storage not in TEXT_STORAGES:
                value = piece
            elif field.codec is None or (
                field.charset_id == charsets.NONE and field.storage == Storage.PADDED_TEXT
            ):
                names[f"f{index}"] = field
                value = f"text({piece}, f{index})"
            elif (table := _charmap_of(field.codec)) is not None:
                names[f"t{index}"] = table
                value = f"charmap({piece}, 'strict', t{index})[0]"
            else:
                value = f"{piece}.decode({field.codec!r})"
            if field.storage == Storage.PADDED_TEXT and not value.startswith("text("):
                value += f".ljust({field.char_length})"
        elif field.storage == Storage.INT128:
            value = f"int128(c{index})"
        elif field.storage in BLOB_STORAGES:
            value = f"blob(c{index})"
        values.append(value)
    count = len(fields)
    nullable = ", ".join(f"None if {_null_test(i)} else {v}" for i, v in enumerate(values))
    if count <= 8:
        has_nulls, bits = "nulls", "nulls"
    else:
        names["none"] = bytes((count + 7) // 8)
        has_nulls, bits = "nulls != none", "int.from_bytes(nulls, 'little')"
    lines = [
        "def decode(buffer, at, end, blob):",
        f"    nulls, {', '.join(f'c{i}' for i in range(count))} = unpack_from(buffer, at)",
        f"    e = at + {layout.size}",
        *(f"    {line}" for line in ends),
        f"    if {previous} != end:",
        "        raise Malformed(wrong_length)",
        "    try:",
        f"        if {has_nulls}:",
        f"            bits = {bits}",
        f"            if bits >> {count}{''.join(' or ' + check for check in null_has_bytes)}:",
        "                raise Malformed(bytes_for_null)",
        f"            return ({nullable},)",
        f"        return ({', '.join(values)},)",
        "    except UnicodeError:",
        "        return by_loop(buffer, at, end, blob)",
    ]
    exec("\n".join(lines), names)  # noqa: S102 (see above: the source is ours)
    decoder: RowDecoder = names["decode"]
    return decoder


def row_decoder(table: Table, none_charset: str = "UTF-8") -> RowDecoder:
    """Return what decodes row images of TABLE into a `Row`; it raises struct.error or ValueError
    if an image is not one of TABLE's. Raises ValueError if ``none_charset`` is unknown."""
    return compile_decoder(fields_of(table, codec_for_none(none_charset)))


def raw_texts(table: Table) -> RowDecoder:
    """Return what decodes row images of TABLE into a `Row` whose texts are all Undecodable: the
    bytes that the journal holds."""
    return compile_decoder(tuple(f._replace(codec=None) for f in fields_of(table, "utf-8")))


class FieldPlace(NamedTuple):
    """Place of the fixed field of a column in a row image: ``offset``, bytes from its start, and
    ``size``; ``variable``: whether it is the length of bytes in the variable part."""

    offset: int
    size: int
    variable: bool


def image_places(table: Table) -> tuple[list[FieldPlace], int]:
    """Return the place of each column's field, and the offset of the variable part."""
    places = []
    offset = (len(table.columns) + 7) // 8
    for column in table.columns:
        size = struct.calcsize("<" + FIXED_FORMATS[column.storage])
        places.append(FieldPlace(offset, size, column.storage in VARIABLE_STORAGES))
        offset += size
    return places, offset


@functools.lru_cache(maxsize=16)
def codec_for_none(charset: str) -> str:
    """Return Python's codec for texts of CHARACTER SET NONE; CHARSET: a name of Firebird's or
    Python's. Raises ValueError if it is unknown."""
    codec = charsets.find_codec(charset)
    if codec is None:
        raise ValueError(f"unknown character set {charset!r} for texts of NONE")
    return codec


def _no_blob(number: int) -> NoReturn:
    raise Malformed(f"a row refers to blob {number}, which does not come before it")


class UndecodedChange(NamedTuple):
    """A `RowChange` whose rows are not decoded yet: where their images lie in what was read, from
    one offset to another, and what decodes them."""

    pos: int
    op: str
    table: Table
    decode: RowDecoder
    before: tuple[int, int] | None
    after: tuple[int, int] | None

    def decoded(self, content: bytes) -> RowChange | None:
        """Return it with its rows, which are in CONTENT; None: they are not sound, or have
        BLOBs."""
        pos, op, table, decode, before, after = self
        try:
            old = None if before is None else decode(content, *before, _no_blob)
            new = None if after is None else decode(content, *after, _no_blob)
        except (Malformed, struct.error, UnicodeDecodeError):
            return None
        return RowChange(pos, op, table, old, new)
