"""Names of schemas and fields: made safe for Avro where asked for, and never shared by mistake.

Source of the two adjustments: Debezium's ``SchemaNameAdjuster`` and its ``ReplacementFunction``s.
Unlike them, each part of a schema name gets a first character that Avro takes, as Avro's
specification asks for (Debezium looks at the first part only), and ``avro_unicode`` always writes
four digits (Debezium writes ``_u416`` for a Cyrillic letter, which reads in two ways).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.journal.events.topic_encoding import REPLACE, code_units, path_part, table_part
from firebird_cdc.journal.events.topics import BadName, Owners, problems_of

_NO_AVRO = re.compile(r"[^A-Za-z0-9_]")
_NO_AVRO_OR_ESCAPE = re.compile(r"[^A-Za-z0-9]")


def adjust_schema_name(name: str, mode: str) -> str:
    """Return NAME in the MODE of ``schema.name.adjustment.mode``; dots separate its parts."""
    if mode == "none":
        return name
    return ".".join(adjust_field_name(part, mode) or "_" for part in name.split("."))


def adjust_field_name(name: str, mode: str) -> str:
    """Return NAME in the MODE of ``field.name.adjustment.mode``.

    ``avro``: what Avro forbids becomes ``_``, and a digit in front gets one before it.
    ``avro_unicode``: that and ``_`` become ``_`` and ``u`` and four hexadecimal digits. As in
    Java, a character beyond U+FFFF counts as two.
    """
    if mode == "none" or not name:
        return name
    if mode == "avro":
        adjusted = _NO_AVRO.sub(lambda match: "_" * len(code_units(match[0])), name)
        return f"_{adjusted}" if adjusted[0].isdigit() else adjusted
    adjusted = _NO_AVRO_OR_ESCAPE.sub(_escape, name)
    return f"_u{ord(name[0]):04x}{adjusted[1:]}" if adjusted[0].isdigit() else adjusted


def _escape(match: re.Match[str]) -> str:
    return "".join(f"_u{unit:04x}" for unit in code_units(match[0]))


def field_names(columns: Sequence[str], mode: str, table: str) -> tuple[str, ...]:
    """Return the field names of COLUMNS, which make one struct.

    Raises BadName if two columns would share one; TABLE: whose they are, for the message.
    """
    owners: dict[str, str] = {}
    for column in columns:
        field = adjust_field_name(column, mode)
        other = owners.setdefault(field, column)
        if other is not column:
            raise BadName(
                f"columns {other} and {column} of {table} would share the field {field}; set"
                " field.name.adjustment.mode: avro_unicode, or leave one of them out with"
                " column.exclude.list"
            )
    return tuple(owners)


class SchemaNames:
    """Gives each table the name that its schemas begin with."""

    def __init__(self, config: ConnectorConfig) -> None:
        self._prefix = config.topic_prefix
        self._mode = config.schema_name_adjustment_mode
        self._encoding = config.topic_name_encoding
        self._owners = Owners()

    def of_table(self, database: str, table: str) -> str:
        """Return what stands before ``.Key``, ``.Value`` and ``.Envelope``; raises BadName.

        Names that are encoded in topics are here, too: else those that topics tell apart would be
        one for Avro.
        """
        name = self._name(database, table)
        other = self._owners.claim(name, (database, table))
        if other is not None:
            raise BadName(
                f"table {table} in {database} and table {other[1]} in {other[0]} would share the"
                f" schema name {name}; set schema.name.adjustment.mode: avro_unicode, or leave one"
                " of them out with table.exclude.list"
            )
        return name

    def _name(self, database: str, table: str) -> str:
        path, encoding = path_part(database, self._encoding), self._encoding
        shown = table if encoding == REPLACE else table_part(table, encoding)
        return adjust_schema_name(f"{self._prefix}.{path}.{shown}", self._mode)

    def settle(
        self, owners: Iterable[tuple[str, str]], captures: Callable[[str, str], bool]
    ) -> None:
        """Let OWNERS have come first, but those that CAPTURES says no to."""
        for owner in owners:
            if captures(*owner):
                self._owners.claim(self._name(*owner), owner)

    def problems(self, tables: Iterable[tuple[str, str]]) -> list[str]:
        """Return the problems with the names of TABLES, pairs of a database and a table of it."""
        return problems_of(self.of_table, tables)
