"""Rows of tables as they are now, made of row images of journals."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]

from firebird_cdc.journal.format import (
    Blob,
    Column,
    RowDecoder,
    Storage,
    Table,
    image_places,
    row_decoder,
)
from firebird_cdc.journal.replay.state.conversion import UNKNOWN
from firebird_cdc.journal.replay.state.evolution import Source, TablePlan
from firebird_cdc.journal.replay.state.image_columns import ImageColumns, NotUtf8
from firebird_cdc.journal.types.canonical import BLOB_LIMIT, LargeBlob, RowText

NOT_UTF8 = "a text near them is not UTF-8"
"""Reason for decoding rows one by one if it lies in their content."""

Images: TypeAlias = Any
"""Images as a list or as an array of Arrow."""

_BLOBS = frozenset({Storage.BLOB, Storage.ARRAY})
_U32 = struct.Struct("<I")
_BLOB_HEAD = struct.Struct("<QBQ")  # number, kind, bytes that follow
_WHOLE, _UNAVAILABLE, _LARGE = range(3)
_LARGE_BODY = struct.Struct("<Q32s")
_MAX_KNOWN = 4096


class _Known(NamedTuple):
    """Values that are made once of a definition: most journals repeat those of others."""

    table: Table
    digest: bytes
    decoder: RowDecoder


_known: dict[int, _Known] = {}  # by the identity of the table, which the value keeps alive


def know(table: Table) -> _Known:
    found = _known.get(id(table))
    if found is None:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        found = _known[id(table)] = _Known(table, shape_digest(table), _image_decoder(table))
    return found


def decoder_of(table: Table) -> RowDecoder:
    return know(table).decoder


def shape_digest(table: Table) -> bytes:
    """Return what tells TABLE from other shapes."""
    facts = (table.name, table.key_kind, table.columns, table.order, table.resolved)
    return hashlib.blake2b(repr(facts).encode(), digest_size=16).digest()


class RowMaker:
    """Makes rows as the table has them now of images of one shape and version.

    ``may_lack``: some content of a row may not be known.
    """

    def __init__(self, plan: TablePlan, shape: Table, version: int, none_charset: str) -> None:
        self.shape = shape
        self.sources: list[Source] = plan.sources(shape, version)
        self.has_blobs = any(column.storage in _BLOBS for column in shape.columns)
        self._decode = row_decoder(shape, none_charset)
        self._image_columns = None
        # A conversion wants CHARs with their blanks.
        if ImageColumns.can_take(shape, none_charset) and not any(
            source.convert is not None
            and source.column_index is not None
            and shape.columns[source.column_index].storage is Storage.PADDED_TEXT
            for source in self.sources
        ):
            self._image_columns = ImageColumns(shape)
        self.may_lack = self.has_blobs or not all(s.is_certain for s in self.sources)
        columns = plan.columns or tuple(shape.columns[index] for index in shape.order)
        self._text = _text_of(columns, none_charset)
        self._certain = [i for i in range(len(columns)) if i not in plan.uncertain]
        self._same = _text_of([columns[i] for i in self._certain], none_charset)
        self._key = plan.key
        self._key_text = _text_of([columns[i] for i in plan.key], none_charset)

    def stored(self, image: bytes) -> tuple[Any, ...]:
        """Return the values of an image in the order of its shape."""
        if not self.has_blobs:
            row: tuple[Any, ...] = self._decode(image, 0, len(image), _no_blob)
            return row
        (length,) = _U32.unpack_from(image)
        blobs = _unpack_blobs(image, 4 + length)
        whole: tuple[Any, ...] = self._decode(image, 4, 4 + length, blobs.__getitem__)
        return whole

    def values(self, image: bytes) -> list[Any]:
        """Return the values of the columns of now; UNKNOWN where nobody knows them."""
        row = self.stored(image)
        values = []
        for index, convert, default in self.sources:
            if index is None:
                values.append(default)
            else:
                value = row[index]
                values.append(value if value is None or convert is None else convert(value))
        return values

    def value_lists(self, images: Images, slowed: Counter[str]) -> list[Any]:
        """Return the values of many rows, a sequence or an array of Arrow for each column of now.

        A value of a column as in `stored`; CHARs may come without their blanks. SLOWED: gets the
        number of rows that had to be decoded one by one although their columns need not, by cause.
        """
        stored = self._stored_lists(images, slowed)
        lists: list[Any] = []
        for index, convert, default in self.sources:
            if index is None:
                lists.append([default] * len(images))
            elif convert is None:
                lists.append(stored[index])
            else:
                lists.append([v if v is None else convert(v) for v in _listed(stored[index])])
        return lists

    def _stored_lists(self, images: Images, slowed: Counter[str]) -> list[Any]:
        if self._image_columns is not None and not isinstance(images, list):
            try:
                return self._image_columns.decode(images)
            except NotUtf8:
                slowed[NOT_UTF8] += len(images)
            except pa.ArrowException as error:
                # One release of Arrow for which a call of ours is none costs time, not the result.
                reason = str(error).partition("\n")[0] or type(error).__name__
                slowed[f"pyarrow {pa.__version__} failed: {reason}"] += len(images)
        if self.has_blobs:
            rows = [self.stored(image) for image in _listed(images)]
        else:
            decode = self._decode
            rows = [decode(image, 0, len(image), _no_blob) for image in _listed(images)]
        return list(zip(*rows, strict=True))

    def text(self, values: list[Any]) -> str:
        """Return the canonical text of a row; null where the value is unknown."""
        return self._text.row([None if value is UNKNOWN else value for value in values])

    def key(self, bare: bytes) -> bytes:
        """Return the bytes of the key as it is now, whatever the shape; BARE: without blobs."""
        row = self._decode(bare, 0, len(bare), _ignored_blob)
        values = []
        for place in self._key:
            index, convert, _ = self.sources[place]
            assert index is not None
            values.append(row[index] if convert is None else convert(row[index]))
        return self._key_text.row(values).encode()

    def sameness(self, image: bytes) -> bytes:
        """Return a digest of what tells a row of a multiset from others."""
        values = self.values(image)
        text = self._same.row([values[i] for i in self._certain])
        return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _listed(values: Any) -> Any:
    return values.to_pylist() if isinstance(values, pa.Array) else values


def _text_of(columns: Sequence[Column], none_charset: str) -> RowText:
    return RowText(Table(0, "", 0, tuple(columns)), none_charset=none_charset)


def _ignored_blob(number: int) -> Any:  # noqa: ARG001
    return None


def _no_blob(number: int) -> Blob:
    raise ValueError(f"blob {number} in a table without blobs")


def pack_blobs(image: bytes, blobs: list[Blob]) -> bytes:
    parts = [_U32.pack(len(image)), image]
    for blob in blobs:
        if not blob.available:
            parts.append(_BLOB_HEAD.pack(blob.number, _UNAVAILABLE, 0))
        elif blob.length > BLOB_LIMIT:
            digest = hashlib.sha256()
            for chunk in blob.chunks():
                digest.update(chunk)
            body = _LARGE_BODY.pack(blob.length, digest.digest())
            parts += [_BLOB_HEAD.pack(blob.number, _LARGE, len(body)), body]
        else:
            parts += [_BLOB_HEAD.pack(blob.number, _WHOLE, blob.length), *blob.chunks()]
    return b"".join(parts)


def _unpack_blobs(packed: bytes, at: int) -> dict[int, Any]:
    found: dict[int, Any] = {}
    while at < len(packed):
        number, kind, length = _BLOB_HEAD.unpack_from(packed, at)
        at += _BLOB_HEAD.size
        body = packed[at : at + length]
        at += length
        if kind == _LARGE:
            found[number] = LargeBlob(*_LARGE_BODY.unpack(body))
        else:
            found[number] = Blob(number, kind == _WHOLE, None, (), body)
    return found


def _slice(payload: bytes, at: int, end: int, _: object) -> bytes:
    return payload[at:end]


def _image_decoder(table: Table) -> RowDecoder:
    """Return what cuts an image out of its block; with the blobs of the row, if there can be."""
    places, _ = image_places(table)
    offsets = [
        place.offset
        for place, column in zip(places, table.columns, strict=True)
        if column.storage in _BLOBS
    ]
    if not offsets:
        return _slice

    def cut(
        payload: bytes, at: int, end: int, blob: Callable[[int], Blob]
    ) -> tuple[bytes, list[Blob]]:
        numbers = {int.from_bytes(payload[at + o : at + o + 8], "little") for o in offsets}
        return payload[at:end], [blob(number) for number in sorted(numbers) if number]

    return cut


def key_bytes(shape: Table, wanted: list[int]) -> Callable[[bytes], bytes]:
    """Return what takes the fields of the columns WANTED, of none null, out of a bare image."""
    places, start = image_places(shape)
    if not any(places[index].variable for index in wanted):
        slices = [(places[i].offset, places[i].offset + places[i].size) for i in wanted]
        if len(slices) == 1:
            ((first, last),) = slices
            return lambda image: image[first:last]
        return lambda image: b"".join([image[first:last] for first, last in slices])
    lengths = [(i, place.offset) for i, place in enumerate(places) if place.variable]

    def key(image: bytes) -> bytes:
        at = start
        texts = {}
        for index, offset in lengths:
            end = at + image[offset] + (image[offset + 1] << 8)
            texts[index] = image[at:end]
            at = end
        parts = []
        for index in wanted:
            place = places[index]
            parts.append(image[place.offset : place.offset + place.size])
            if place.variable:
                parts.append(texts[index])
        return b"".join(parts)

    return key
