"""Changes to the values and schemas of chosen columns: masks, hashes, truncation, types told.

Source: Debezium's ``io.debezium.relational.mapping``. Unlike there, where the first of a fixed
order of rules counts and is the only one, the one that tells least counts, and the source type
is told beside it: else ``column.propagate.source.type: .*`` would switch hashing off.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

import logbook

from firebird_cdc.config import ColumnHash, ConnectorConfig
from firebird_cdc.config.families import Patterns
from firebird_cdc.journal.events.schema import STRING
from firebird_cdc.journal.events.topics import BadName
from firebird_cdc.journal.events.values import FieldForm, ValueModes
from firebird_cdc.journal.format import Column, Storage
from firebird_cdc.journal.format.charsets import OCTETS
from firebird_cdc.journal.types.names import (
    is_text_blob,
    type_expression,
    type_length,
    type_name,
    type_scale,
)

_log = logbook.Logger("firebird_cdc.journal.events.columns")

# Answers kept: more than the columns that one server usually publishes.
_CACHE_SIZE = 65536


_HASHED_BYTES = 16 << 20
"""A text that is hashed may be so large, whatever a message may be: a guess at what memory has."""


class _Rule(NamedTuple):
    """Change to a column, and the part of a text that it needs: its ``head``, or all of it.

    ``head``: characters. ``largest``: bytes; not what fits a message, as the text isn't sent.
    """

    apply: Callable[[Column, FieldForm], FieldForm]
    head: int | None = None
    largest: int = 0


class ColumnRules:
    """Applies a configuration's rules for columns to the forms of fields in message values.

    Fields of message keys are never to be given to it.
    """

    def __init__(self, config: ConnectorConfig) -> None:
        self._masks = config.column_mask
        self._hashes = config.column_mask_hash
        self._truncations = config.column_truncate
        self._propagate = config.column_propagate
        self._propagate_types = config.datatype_propagate
        self._rule = lru_cache(_CACHE_SIZE)(self._find_rule)

    def modes(
        self, database: str, table: str, column: Column, modes: ValueModes, *, in_key: bool
    ) -> ValueModes:
        """Return MODES for COLUMN: how much is read of a BLOB that is truncated or hashed."""
        rule = None if in_key else self._rule(f"{database}.{table}.{column.name}")
        if rule is None or not _is_text(column):
            return modes
        largest = max(modes.max_bytes, rule.largest)
        return replace(modes, text_head=rule.head, max_bytes=largest)

    def adapt(
        self, database: str, table: str, column: Column, form: FieldForm, *, in_key: bool
    ) -> FieldForm:
        """Return how COLUMN of TABLE is sent, where FORM is how it would be without rules.

        ``in_key``: whether the message key has the column. Raises BadName if a rule for texts is
        to work on what FORM gives in another form.
        """
        identifier = f"{database}.{table}.{column.name}"
        adapted = self._changed(database, table, column, form, in_key)
        if _any(self._propagate, identifier) or _any(
            self._propagate_types, f"{database}.{table}.{type_name(column)}"
        ):
            return _with_parameters(adapted, _source_type(column))
        return adapted

    def _changed(
        self, database: str, table: str, column: Column, form: FieldForm, in_key: bool
    ) -> FieldForm:
        rule = self._rule(f"{database}.{table}.{column.name}")
        if rule is None:
            return form
        if in_key:
            _log.warning(
                "column {column} of table {table} in {database} is part of the message key and"
                " stays as it is: masks, hashes and truncations leave keys alone",
                column=column.name,
                table=table,
                database=database,
            )
            return form
        if not _is_text(column):
            _log.warning(
                "column {column} of table {table} in {database} stays as it is: its type is {}, and"
                " only texts are masked, hashed and truncated",
                type_expression(column),
                column=column.name,
                table=table,
                database=database,
            )
            return form
        try:
            return rule.apply(column, form)
        except _NotText:
            raise BadName(
                f"column {column.name} of table {table} in {database} is to be hashed or"
                f" truncated, but has the form {form.schema.type}, not string: mask it instead"
                " (column.mask.with.n.chars), or leave it out with column.exclude.list"
            ) from None

    def _find_rule(self, identifier: str) -> _Rule | None:
        """The rule for a column that tells least: a mask, else a hash, else a truncation."""
        for number, patterns in self._masks:
            if _any(patterns, identifier):
                return _Rule(partial(_masked, number))
        for chosen in self._hashes:
            if _any(chosen.patterns, identifier):
                return _Rule(partial(_hashed, chosen), largest=_HASHED_BYTES)
        lengths = [n for n, patterns in self._truncations if _any(patterns, identifier)]
        if lengths:
            return _Rule(partial(_truncated, min(lengths)), min(lengths))
        return None


class _NotText(Exception):
    """The form of a field isn't text."""


def _any(patterns: Patterns, identifier: str) -> bool:
    return any(pattern.fullmatch(identifier) for pattern in patterns)


def _is_text(column: Column) -> bool:
    if column.storage in (Storage.TEXT, Storage.PADDED_TEXT):
        return True
    return is_text_blob(column) and column.charset_id != OCTETS


def _with_parameters(form: FieldForm, parameters: dict[str, str]) -> FieldForm:
    schema = replace(form.schema, parameters={**form.schema.parameters, **parameters})
    return replace(form, schema=schema)


def _source_type(column: Column) -> dict[str, str]:
    told = {
        "type": type_name(column),
        "length": type_length(column),
        "scale": type_scale(column),
        "name": column.name,
    }
    return {
        f"__debezium.source.column.{name}": str(value)
        for name, value in told.items()
        if value is not None
    }


# What the rules do


def _masked(number: int, _column: Column, form: FieldForm) -> FieldForm:
    # The mask also stands for null, and for what a converter of the user's makes of the column.
    schema = form.schema
    if schema.type != "string" or schema.name is not None:
        schema = replace(STRING, optional=schema.optional)
    mask = repr("*" * number)
    return _with_parameters(FieldForm(schema, mask, of_null=mask), {"masked": "true"})


def _truncated(number: int, column: Column, form: FieldForm) -> FieldForm:
    length = type_length(column)
    if length is not None and length <= number:
        return form
    _check_text(form)
    if form.of_null == "None":
        cut = replace(form, expression=f"({form.expression})[:{number}]")
    else:
        cut = _then(form, lambda text: text[:number])
    return _with_parameters(cut, {"truncateLength": str(number)})


def _then(form: FieldForm, change: Callable[[str], str]) -> FieldForm:
    """FORM with CHANGE done to the texts that it makes, but not to null.

    A converter of the user's can make null of a value, and a value of null.
    """
    text_of = form.function()

    def convert(value: object) -> str | None:
        text = text_of(value)
        return None if text is None else change(text)

    of_null = "None" if form.of_null == "None" else "{f}(None)"
    return replace(form, expression="{f}({v})", convert=convert, of_null=of_null)


def _hashed(rule: ColumnHash, column: Column, form: FieldForm) -> FieldForm:
    _check_text(form)
    salted = hashlib.new(rule.algorithm, rule.salt.encode(), usedforsecurity=False)
    bytes_of = _java_serialized if rule.version == 1 else _utf_8
    length = type_length(column)

    def hash_of(text: str) -> str:
        digest = salted.copy()
        digest.update(bytes_of(text))
        return digest.hexdigest()[:length]

    # Beside the definition, the hash of the default would tell of which rows have it.
    hashed = replace(_then(form, hash_of), tells_default=False)
    return _with_parameters(hashed, {"masked": "true"})


def _check_text(form: FieldForm) -> None:
    if form.schema.type != "string":
        raise _NotText


def _utf_8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _java_serialized(text: str) -> bytes:
    """Return the bytes that ``ObjectOutputStream.writeObject`` writes of TEXT.

    Source: Java Object Serialization Specification, 6.4: a magic number, a version, a mark for
    a text or a long text, its length in bytes, and modified UTF-8.
    """
    raw = _modified_utf_8(text)
    short = len(raw) < 1 << 16
    return b"".join(
        (
            b"\xac\xed\x00\x05",
            b"t" if short else b"|",
            len(raw).to_bytes(2 if short else 8, "big"),
            raw,
        )
    )


_BEYOND_16_BITS = re.compile("[\U00010000-\U0010ffff]")


def _modified_utf_8(text: str) -> bytes:
    """TEXT in Java's form of UTF-8: two bytes for NUL, two surrogates of three bytes each."""
    pairs = _BEYOND_16_BITS.sub(_surrogates, text)
    return pairs.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")


def _surrogates(match: re.Match[str]) -> str:
    high, low = divmod(ord(match[0]) - 0x10000, 0x400)
    return chr(0xD800 + high) + chr(0xDC00 + low)
