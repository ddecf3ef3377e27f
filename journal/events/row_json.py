"""Row images as JSON, written in C (`native/event_json.c`): for which tables that can be done, and
by which plan. It gives the bytes that decoding a row, making a struct of it and writing that give,
in a fifth of the time; an image that it leaves to these may have anything in it."""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from firebird_cdc.journal.events.converters import dumps
from firebird_cdc.journal.events.structs import FormedField
from firebird_cdc.journal.events.values import ADAPTIVE, TEXT, UNSCALED, FieldForm
from firebird_cdc.journal.format import Storage, charsets
from firebird_cdc.journal.format.row_decoder import ImageField
from firebird_cdc.journal.types.numbers import UNIX_DAY, UNIX_UNITS

if TYPE_CHECKING:
    from firebird_cdc.native._journal_files import row_json
else:
    try:
        from firebird_cdc.native._journal_files import row_json
    except ImportError:  # on Spark's executors, which have nothing compiled
        row_json = None

RowJson = Callable[[bytes, int, int], bytes | None]
"""Writes the row image in some bytes, from one offset to another; None: it is left to Python."""

_HEAD = struct.Struct("<HH")  # columns and fields
_COLUMN = struct.Struct("<HHI")  # storage, has its field no null, characters of a text at least
_FIELD = struct.Struct("<HBqqH")  # column, how it is written, and the length of what goes before
_MOST_COLUMNS = 256

_INTEGER, _TRUTH, _DECIMAL, _UTF8, _ASCII, _BYTES, _NOTHING = range(7)

# By storage and expression: how it is written, what is added to an integer, and what that is
# multiplied by.
_FORMS = {
    (Storage.SMALLINT, "{v}"): (_INTEGER, 0, 1),
    (Storage.INTEGER, "{v}"): (_INTEGER, 0, 1),
    (Storage.BIGINT, "{v}"): (_INTEGER, 0, 1),
    (Storage.BOOLEAN, "{v}"): (_TRUTH, 0, 1),
    (Storage.SMALLINT, UNSCALED): (_DECIMAL, 0, 1),
    (Storage.INTEGER, UNSCALED): (_DECIMAL, 0, 1),
    (Storage.BIGINT, UNSCALED): (_DECIMAL, 0, 1),
    (Storage.OCTETS, "{v}"): (_BYTES, 0, 1),
    (Storage.DATE, ADAPTIVE[Storage.DATE].expression): (_INTEGER, -UNIX_DAY, 1),
    (Storage.TIME, ADAPTIVE[Storage.TIME].expression): (_INTEGER, 0, 100),
    (Storage.TIMESTAMP, ADAPTIVE[Storage.TIMESTAMP].expression): (_INTEGER, -UNIX_UNITS, 100),
}


def row_json_of(plan: bytes | None) -> RowJson | None:
    """Return what writes the struct that PLAN has of a row."""
    return None if plan is None or row_json is None else partial(row_json, plan)


def row_plan(
    images: Sequence[ImageField], fields: Sequence[FormedField], required: Collection[int]
) -> bytes | None:
    """Return the plan of the struct of FIELDS of a row that has the columns IMAGES; None if one of
    them has a form that is not known in C. REQUIRED: columns of which NULL is left to Python."""
    if len(images) > _MOST_COLUMNS:
        return None
    plan = [_HEAD.pack(len(images), len(fields))]
    plan += [
        _COLUMN.pack(image.storage, index in required, image.char_length)
        for index, image in enumerate(images)
    ]
    before = b"{"
    for field in fields:
        form = _form(images[field.column_index], field.form)
        if form is None:
            return None
        name = before + dumps(field.name) + b":"
        plan += [_FIELD.pack(field.column_index, *form, len(name)), name]
        before = b","
    return b"".join(plan)


def _form(image: ImageField, form: FieldForm) -> tuple[int, int, int] | None:
    storage = image.storage
    if form.of_null != "None":
        return None
    if storage in (Storage.BLOB, Storage.ARRAY):  # of which only null is written there
        return _NOTHING, 0, 1
    if storage in (Storage.TEXT, Storage.PADDED_TEXT) and form.expression == TEXT:
        counts_bytes = storage == Storage.PADDED_TEXT and image.charset_id == charsets.NONE
        if image.codec is None or counts_bytes:
            return None
        how = {"utf-8": _UTF8, "ascii": _ASCII}.get(codecs.lookup(image.codec).name)
        return None if how is None else (how, 0, 1)
    return _FORMS.get((storage, form.expression))
