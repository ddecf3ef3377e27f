"""ARRAY columns: what their elements are, and how the content of a value holds them.

A column's definition tells what RDB$FIELDS says of its elements. The content of a value describes
itself; it is what the engine keeps on disk, the same in Firebird 4.0 and 5.0: struct
InternalArrayDesc and struct Descriptor of src/jrd/ods.h, then the elements, the last index running
fastest. docs/journal-format.md, "Arrays", describes it field by field.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from firebird_cdc.journal.format import Column, Storage, Undecodable, Value
from firebird_cdc.journal.format.charsets import NONE, OCTETS, codec_of

# Version of the description, dimensions, (struct count,) bytes of an element, of the
# description, (of all vectors), number of elements, bytes of them all.
_HEAD = struct.Struct("<BB2xHHII")
# The element: dtype, scale, length, sub-type or character set, (flags, offset).
_ELEMENT = struct.Struct("<BbHh6x")
# A dimension: (descriptor, stride), lower and upper bound.
_DIMENSION = struct.Struct("<16xii")
_VERSION = 1
_MOST_DIMENSIONS = 16
_MOST_ELEMENTS = 1 << 24  # a list of them needs some 500 MiB
_UNITS_PER_DAY = 864_000_000

_TEXT, _VARYING = 1, 3
# The engine's dtype: how we call that, and its struct format. Codes: dsc_pub.h.
_PLAIN: dict[int, tuple[Storage, str]] = {
    8: (Storage.SMALLINT, "<h"),
    9: (Storage.INTEGER, "<i"),
    19: (Storage.BIGINT, "<q"),
    11: (Storage.FLOAT, "<f"),
    12: (Storage.DOUBLE, "<d"),
    21: (Storage.BOOLEAN, "<?"),
    14: (Storage.DATE, "<i"),
    15: (Storage.TIME, "<I"),
    22: (Storage.DECFLOAT16, "<8s"),
    23: (Storage.DECFLOAT34, "<16s"),
    25: (Storage.TIME_TZ, "<6s"),
}
_INT128, _TIMESTAMP, _TIMESTAMP_TZ = 24, 16, 26

FIELD_TYPES: dict[int, tuple[int, Storage]] = {
    7: (500, Storage.SMALLINT),
    8: (496, Storage.INTEGER),
    10: (482, Storage.FLOAT),
    12: (570, Storage.DATE),
    13: (560, Storage.TIME),
    14: (452, Storage.PADDED_TEXT),
    16: (580, Storage.BIGINT),
    23: (32764, Storage.BOOLEAN),
    24: (32760, Storage.DECFLOAT16),
    25: (32762, Storage.DECFLOAT34),
    26: (32752, Storage.INT128),
    27: (480, Storage.DOUBLE),
    28: (32756, Storage.TIME_TZ),
    29: (32754, Storage.TIMESTAMP_TZ),
    35: (510, Storage.TIMESTAMP),
    37: (448, Storage.TEXT),
}
"""RDB$FIELD_TYPE of all that an array can hold: code of the type in a record, its storage."""
_TEXTS = (Storage.TEXT, Storage.PADDED_TEXT)

_Decoder = Callable[[bytes], Value]


class Array(NamedTuple):
    """An ARRAY value: lists of lists, one level per dimension.

    ``element`` is the column as one element of it is: storage, scale, character set. Elements
    are values of that storage as `JournalReader` yields them. ``bounds``: lowest and highest
    index of each dimension.
    """

    element: Column
    bounds: tuple[tuple[int, int], ...]
    values: list[Any]


def element_of(column: Column) -> Column | None:
    """Return the ARRAY COLUMN as one element of it is, which is never NULL.

    None if the definition doesn't tell: it is of an older writer, or could not be completed. An
    element of a type that is not known here has the storage RAW.
    """
    element = column.element
    if element is None:
        return None
    sql_type, storage = FIELD_TYPES.get(element.field_type, (0, Storage.RAW))
    is_text = storage in _TEXTS
    return replace(
        column,
        sql_type=sql_type,
        sub_type=0 if is_text else element.sub_type,
        scale=element.scale,
        length=element.length,
        charset_id=element.charset_id if is_text else 0,
        nullable=False,
        storage=Storage.OCTETS if is_text and element.charset_id == OCTETS else storage,
        element=None,
    )


def decode_array(content: bytes, column: Column, none_charset: str = "UTF-8") -> Array:
    """Return what CONTENT, the whole content of an ARRAY of COLUMN, stands for.

    The engine doesn't store elements behind the last one that was written; they are zero, as
    when it is asked for them. Raises ValueError if this is no array as engines up to 5.0 keep it.
    """
    try:
        version, dimensions, size, start, count, _ = _HEAD.unpack_from(content)
        dtype, scale, length, sub_type = _ELEMENT.unpack_from(content, _HEAD.size)
        if version != _VERSION or not 0 < dimensions <= _MOST_DIMENSIONS:
            raise ValueError(f"version {version}, {dimensions} dimensions")
        bounds = tuple(
            _DIMENSION.unpack_from(content, _HEAD.size + place * _DIMENSION.size)
            for place in range(dimensions)
        )
    except struct.error as error:
        raise ValueError(f"no array in {len(content)} bytes") from error
    except ValueError as error:
        raise ValueError(f"an array of an unknown form: {error}") from error
    sizes = [upper - lower + 1 for lower, upper in bounds]
    if min(sizes) < 1 or prod(sizes) != count or not 0 < length <= size:
        raise ValueError(f"array bounds {bounds} don't give {count} elements")
    if count > _MOST_ELEMENTS:
        raise ValueError(f"an array of {count} elements is not decoded")
    element, decode = _element(column, dtype, scale, length, sub_type, none_charset)
    # An element that was not written in full was not written.
    written = (len(content) - start) // size
    missing = decode(bytes(size))
    elements = (
        decode(content[start + place * size : start + (place + 1) * size])
        if place < written
        else missing
        for place in range(count)
    )
    return Array(element, bounds, _nested(elements, sizes))


def _nested(elements: Iterator[Value], sizes: list[int]) -> list[Any]:
    if len(sizes) == 1:
        return [next(elements) for _ in range(sizes[0])]
    return [_nested(elements, sizes[1:]) for _ in range(sizes[0])]


def _element(
    column: Column, dtype: int, scale: int, length: int, sub_type: int, none_charset: str
) -> tuple[Column, _Decoder]:
    """Return what an element is, and what decodes its bytes."""

    is_text = dtype in (_TEXT, _VARYING)

    def described(storage: Storage) -> Column:
        return replace(
            column,
            storage=storage,
            scale=scale,
            sub_type=0 if is_text else sub_type,
            length=length,
            charset_id=sub_type & 0xFF if is_text else 0,  # the byte above it is the collation
        )

    if is_text:
        if sub_type & 0xFF == OCTETS:
            storage = Storage.OCTETS
        else:
            storage = Storage.TEXT if dtype == _VARYING else Storage.PADDED_TEXT
        element = described(storage)
        return element, _text_decoder(element, dtype == _VARYING, none_charset)
    if dtype == _INT128:
        return described(Storage.INT128), lambda raw: int.from_bytes(
            raw[:16], "little", signed=True
        )
    if dtype == _TIMESTAMP:
        return described(Storage.TIMESTAMP), _timestamp
    if dtype == _TIMESTAMP_TZ:
        return described(Storage.TIMESTAMP_TZ), _timestamp_tz
    if dtype not in _PLAIN:
        return described(Storage.RAW), bytes
    storage, form = _PLAIN[dtype]
    unpack = struct.Struct(form).unpack_from
    return described(storage), lambda raw: unpack(raw)[0]


def _text_decoder(element: Column, varying: bool, none_charset: str) -> _Decoder:
    codec = none_charset if element.charset_id == NONE else codec_of(element.charset_id)
    # A CHAR has room for its characters' longest forms; the blanks in what is left are not its.
    longest = element.char_length if element.storage is Storage.PADDED_TEXT else 0

    def decode(raw: bytes) -> Value:
        end = 2 + int.from_bytes(raw[:2], "little") if varying else element.length
        raw = raw[2 if varying else 0 : end]
        if element.charset_id == OCTETS:
            return raw
        try:
            text = raw.decode(codec) if codec else None
        except UnicodeDecodeError:
            text = None
        if text is None:
            return Undecodable(raw, element.charset_id)
        return text[:longest] if longest and not text[longest:].strip(" ") else text

    return decode


def _timestamp(raw: bytes) -> int:
    days, units = struct.unpack_from("<iI", raw)
    return int(days * _UNITS_PER_DAY + units)


def _timestamp_tz(raw: bytes) -> bytes:
    return struct.pack("<q", _timestamp(raw)) + raw[8:10]
