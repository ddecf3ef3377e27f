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
from firebird_cdc.journal.types.engine_types import OF_DESCRIPTOR, OF_STORAGE, type_of_field

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
    kind = type_of_field(element.field_type)
    is_text = kind.storage in _TEXTS
    return replace(
        column,
        sql_type=kind.sql_type,
        sub_type=0 if is_text else element.sub_type,
        scale=element.scale,
        length=element.length,
        charset_id=element.charset_id if is_text else 0,
        nullable=False,
        storage=Storage.OCTETS if is_text and element.charset_id == OCTETS else kind.storage,
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

    kind = OF_DESCRIPTOR.get(dtype, OF_STORAGE[Storage.RAW])
    is_text = kind.storage in _TEXTS
    is_binary = is_text and sub_type & 0xFF == OCTETS
    element = replace(
        column,
        storage=Storage.OCTETS if is_binary else kind.storage,
        scale=scale,
        sub_type=0 if is_text else sub_type,
        length=length,
        charset_id=sub_type & 0xFF if is_text else 0,  # the byte above it is the collation
    )
    if is_text:
        return element, _text_decoder(element, kind.storage is Storage.TEXT, none_charset)
    decode = kind.decode
    if not kind.form:
        return element, bytes
    unpack = struct.Struct(f"<{kind.form}").unpack_from
    if decode is None:
        return element, lambda raw: unpack(raw)[0]
    return element, lambda raw: decode(unpack(raw)[0])


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
