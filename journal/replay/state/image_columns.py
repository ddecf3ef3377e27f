"""Row images of one shape into columns by Arrow's own functions, without a look at each row.

The fixed part of an image lies at the same bytes in every row, so a slice of all images is a
column. Texts follow behind it, in the order of the columns: their lengths, one behind the other,
are the offsets into what is left of all images.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped,import-not-found,unused-ignore]

from firebird_cdc.journal.format import Column, Storage, Table, image_places
from firebird_cdc.journal.format.charsets import NONE, codec_of, find_codec

_FIXED: dict[Storage, pa.DataType] = {
    Storage.SMALLINT: pa.int16(),
    Storage.INTEGER: pa.int32(),
    Storage.BIGINT: pa.int64(),
    Storage.FLOAT: pa.float32(),
    Storage.DOUBLE: pa.float64(),
    Storage.BOOLEAN: pa.uint8(),
    Storage.DATE: pa.int32(),
    Storage.TIME: pa.uint32(),
    Storage.TIMESTAMP: pa.int64(),
}
_TEXTS = (Storage.TEXT, Storage.PADDED_TEXT)
_BYTES = (Storage.OCTETS, Storage.RAW)


class NotUtf8(Exception):
    """A text that is to be in UTF-8 is not."""


class ImageColumns:
    """Makes columns of images of TABLE; `can_take` says of which tables it can."""

    def __init__(self, table: Table) -> None:
        self._columns = table.columns
        self._places, self._start = image_places(table)

    @staticmethod
    def can_take(table: Table, none_charset: str) -> bool:
        """Tell whether all columns are of fixed width, bytes, or texts in UTF-8."""
        return all(
            column.storage in _FIXED
            or column.storage in _BYTES
            or (column.storage in _TEXTS and _is_utf8(column, none_charset))
            for column in table.columns
        )

    def decode(self, images: pa.Array) -> list[pa.Array]:
        """Return the columns in the order of the table's definition: numbers as the image has them,
        texts as strings without the blanks of CHAR.

        images: bytes, none null. Raises ValueError if an image is not one of the table's, and
        NotUtf8.
        """
        extent = pc.min_max(pc.binary_length(images)).as_py()
        if extent["min"] < self._start:
            raise ValueError("a row image is shorter than its fixed part")
        masks = self._masks(images)
        texts = self._variable(images, extent["max"])
        found = []
        for index, (column, place) in enumerate(zip(self._columns, self._places, strict=True)):
            if place.variable:
                values = texts[index]
                if column.storage in _TEXTS:
                    values = _text(values)
            else:
                values = _slice(images, place.offset, place.size, _FIXED[column.storage])
                if column.storage is Storage.BOOLEAN:
                    values = values.cast(pa.bool_())
            if index in masks:
                values = pc.if_else(masks[index], pa.scalar(None, values.type), values)
            found.append(values)
        return found

    def _masks(self, images: pa.Array) -> dict[int, pa.Array]:
        """Return which rows are null, of the columns in which some may be."""
        masks = {}
        for start in range(0, len(self._columns), 8):
            bits = _slice(images, start // 8, 1, pa.uint8())
            if pc.max(bits).as_py():
                for index in range(start, min(start + 8, len(self._columns))):
                    bit = pc.bit_wise_and(bits, pa.scalar(1 << (index - start), pa.uint8()))
                    masks[index] = pc.not_equal(bit, 0)
        return masks

    def _variable(self, images: pa.Array, longest: int) -> dict[int, pa.Array]:
        """Return the bytes of the columns that have some in the variable part.

        longest: bytes of the longest image.
        """
        indexes = [index for index, place in enumerate(self._places) if place.variable]
        # Not without an end: from pyarrow 26 on that raises "Negative buffer resize".
        rest = pc.binary_slice(images, self._start, longest)
        size = pc.sum(pc.binary_length(rest)).as_py()
        if not indexes:
            if size:
                raise ValueError("a row image is longer than its columns")
            return {}
        fields = [
            pc.binary_slice(images, self._places[i].offset, self._places[i].offset + 2)
            for i in indexes
        ]
        together = fields[0]
        if len(fields) > 1:
            together = pc.binary_join_element_wise(*fields, pa.scalar(b"", pa.binary()))
        count = len(images) * len(indexes)
        lengths = pa.Array.from_buffers(pa.uint16(), count, [None, together.buffers()[2]])
        ends = pc.cumulative_sum(lengths.cast(pa.int32()))
        if ends[-1].as_py() != size:
            raise ValueError("a row image is not as long as its columns")
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
        pieces = pa.Array.from_buffers(
            pa.binary(), count, [None, offsets.buffers()[1], rest.buffers()[2]]
        )
        if len(indexes) == 1:
            return {indexes[0]: pieces}
        rows = pa.FixedSizeListArray.from_arrays(pieces, len(indexes))
        return {index: pc.list_element(rows, at) for at, index in enumerate(indexes)}


def _is_utf8(column: Column, none_charset: str) -> bool:
    codec = find_codec(none_charset) if column.charset_id == NONE else codec_of(column.charset_id)
    return codec is not None and codec.replace("_", "-").lower() in ("utf-8", "utf8")


def _text(values: pa.Array) -> pa.Array:
    """Return the bytes VALUES as strings; raises NotUtf8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid as error:
        if "UTF8" not in str(error):  # Arrow has one class for all that it refuses
            raise
        raise NotUtf8(str(error)) from error


def _slice(images: pa.Array, offset: int, size: int, kind: pa.DataType) -> pa.Array:
    """Return bytes OFFSET to OFFSET + SIZE of all images as values of KIND."""
    raw: Any = pc.binary_slice(images, offset, offset + size)
    return pa.Array.from_buffers(kind, len(images), [None, raw.buffers()[2]])
