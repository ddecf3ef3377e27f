"""Catalogue of a database: its tables as journals describe them, and where their rows lie."""

# ruff: noqa: S608  (what is put into statements are constants)

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from firebird_cdc.journal.format import Column, Storage, Table
from firebird_cdc.journal.format.charsets import OCTETS
from firebird_cdc.journal.snapshot.attachment import NAME, fetch_all, text_of
from firebird_cdc.journal.types.engine_types import type_of_field

if TYPE_CHECKING:
    from firebird.driver import Connection

_PERSISTENT = 0  # RDB$RELATION_TYPE
_TEMPORARY_TYPES = "4, 5"
_POINTER_PAGE = 4  # RDB$PAGE_TYPE
_POINTER_PAGE_HEAD, _POINTER_BITS = 32, 40  # its header in bytes; bits for each data page

_TEMPORARY = (
    f"SELECT {NAME.format('R.RDB$RELATION_NAME')} FROM RDB$RELATIONS R"
    f" WHERE R.RDB$RELATION_TYPE IN ({_TEMPORARY_TYPES})"
)
_COLUMNS = f"""
SELECT {NAME.format("L.RDB$RELATION_NAME")}, L.RDB$RELATION_ID, {NAME.format("R.RDB$FIELD_NAME")},
  F.RDB$FIELD_TYPE, COALESCE(F.RDB$FIELD_SUB_TYPE, 0), COALESCE(F.RDB$FIELD_SCALE, 0),
  F.RDB$FIELD_LENGTH, COALESCE(F.RDB$CHARACTER_SET_ID, 0), COALESCE(F.RDB$DIMENSIONS, 0),
  COALESCE(R.RDB$NULL_FLAG, F.RDB$NULL_FLAG, 0), COALESCE(F.RDB$CHARACTER_LENGTH, 0)
 FROM RDB$RELATIONS L
 JOIN RDB$RELATION_FIELDS R ON R.RDB$RELATION_NAME = L.RDB$RELATION_NAME
 JOIN RDB$FIELDS F ON F.RDB$FIELD_NAME = R.RDB$FIELD_SOURCE
 WHERE COALESCE(L.RDB$SYSTEM_FLAG, 0) = 0 AND COALESCE(L.RDB$RELATION_TYPE, 0) = {_PERSISTENT}
  AND L.RDB$VIEW_BLR IS NULL AND F.RDB$COMPUTED_BLR IS NULL
 ORDER BY L.RDB$RELATION_NAME, R.RDB$FIELD_POSITION, R.RDB$FIELD_ID
"""
_INDEXES = f"""
SELECT {NAME.format("I.RDB$RELATION_NAME")}, {NAME.format("I.RDB$INDEX_NAME")},
  {NAME.format("COALESCE(C.RDB$CONSTRAINT_TYPE, '')")},
  {NAME.format("COALESCE(C.RDB$CONSTRAINT_NAME, '')")}, {NAME.format("S.RDB$FIELD_NAME")},
  COALESCE(I.RDB$INDEX_INACTIVE, 0), %s
 FROM RDB$INDICES I
 JOIN RDB$INDEX_SEGMENTS S ON S.RDB$INDEX_NAME = I.RDB$INDEX_NAME
 LEFT JOIN RDB$RELATION_CONSTRAINTS C ON C.RDB$INDEX_NAME = I.RDB$INDEX_NAME
 WHERE I.RDB$UNIQUE_FLAG = 1 AND COALESCE(I.RDB$SYSTEM_FLAG, 0) = 0
 ORDER BY I.RDB$RELATION_NAME, I.RDB$INDEX_NAME, S.RDB$FIELD_POSITION
"""
_HAS_PARTIAL_INDEXES = (
    "SELECT 1 FROM RDB$RELATION_FIELDS"
    " WHERE RDB$RELATION_NAME = 'RDB$INDICES' AND RDB$FIELD_NAME = 'RDB$CONDITION_BLR'"
)
_POINTER_PAGES = (
    "SELECT RDB$RELATION_ID, COUNT(*) FROM RDB$PAGES"
    f" WHERE RDB$PAGE_TYPE = {_POINTER_PAGE} GROUP BY 1"
)


class DatabaseTable(NamedTuple):
    """A table as readers need it. ``table``: its stored columns as it shows them, and its key.

    ``relation``: RDB$RELATION_ID. ``pages``: data pages, about, and more than there are.
    """

    table: Table
    relation: int
    pages: int


class PageRange(NamedTuple):
    """Data pages of a table, from ``first`` up to but without ``end``; None: to the last."""

    table: int
    first: int
    end: int | None


def read_tables(connection: Connection, page_size: int) -> dict[str, DatabaseTable]:
    """Return the persistent tables as CONNECTION's transaction sees them, by name.

    Their key is chosen as for journals: the primary key, else the first unique constraint by name,
    else the first unique index, whose columns are all NOT NULL.
    """
    pages = dict(fetch_all(connection, _POINTER_PAGES))
    per_pointer_page = (page_size - _POINTER_PAGE_HEAD) * 8 // _POINTER_BITS
    columns: defaultdict[tuple[str, int], list[Column]] = defaultdict(list)
    for name, relation, *described in fetch_all(connection, _COLUMNS):
        columns[text_of(name), relation].append(_column(*described))
    keys = _keys(connection, {name: found for (name, _), found in columns.items()})
    tables = {}
    for (name, relation), found in columns.items():
        kind, key = keys.get(name, (0, ()))
        places = {column: place for place, column in enumerate(key, 1)}
        table = Table(
            0,
            name,
            kind,
            tuple(replace(column, key_position=places.get(column.name, 0)) for column in found),
        )
        tables[name] = DatabaseTable(table, relation, pages.get(relation, 0) * per_pointer_page)
    return tables


def read_temporary(connection: Connection) -> frozenset[str]:
    """Return the names of the global temporary tables, whose rows no journal has."""
    return frozenset(text_of(name) for (name,) in fetch_all(connection, _TEMPORARY))


def _column(
    name: bytes,
    field_type: int,
    sub_type: int,
    scale: int,
    length: int,
    charset_id: int,
    dimensions: int,
    not_null: int,
    characters: int,
) -> Column:
    kind = type_of_field(field_type, is_array=bool(dimensions))
    storage = kind.storage
    if storage in (Storage.TEXT, Storage.PADDED_TEXT):
        sub_type = 0
        if charset_id == OCTETS:
            storage = Storage.OCTETS
    elif storage is not Storage.BLOB:
        charset_id = 0
    return Column(
        name=text_of(name),
        sql_type=kind.sql_type,
        sub_type=sub_type,
        scale=scale,
        length=length,
        charset_id=charset_id,
        char_length=characters,
        precision=0,
        nullable=not not_null,
        identity=False,
        key_position=0,
        storage=storage,
    )


def _keys(
    connection: Connection, tables: dict[str, list[Column]]
) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Return kind (1 primary, 2 unique) and columns of the keys that tables have."""
    partial = "0"
    if fetch_all(connection, _HAS_PARTIAL_INDEXES):
        partial = "IIF(I.RDB$CONDITION_BLR IS NULL, 0, 1)"
    found: dict[tuple[str, str], tuple[str, str, bool, list[str]]] = {}
    for table, index, kind, constraint, column, inactive, condition in fetch_all(
        connection, _INDEXES % partial
    ):
        whole = not inactive and not condition
        entry = found.setdefault(
            (text_of(table), text_of(index)), (text_of(kind), text_of(constraint), whole, [])
        )
        entry[3].append(text_of(column))
    candidates: defaultdict[str, list[tuple[int, str, list[str]]]] = defaultdict(list)
    for (table, index), (kind, constraint, whole, names) in found.items():
        not_null = {column.name for column in tables.get(table, ()) if not column.nullable}
        if kind == "PRIMARY KEY":
            candidates[table].append((0, constraint, names))
        elif not_null.issuperset(names):
            if kind == "UNIQUE":
                candidates[table].append((1, constraint, names))
            elif whole:
                candidates[table].append((2, index, names))
    keys = {}
    for table, choices in candidates.items():
        rank, _, names = min(choices)
        keys[table] = (1 if rank == 0 else 2, tuple(names))
    return keys


def plan_ranges(
    tables: Sequence[DatabaseTable], page_size: int, range_bytes: int
) -> list[PageRange]:
    """Divide TABLES into ranges of about RANGE_BYTES of data pages each."""
    step = max(range_bytes // page_size, 1)
    ranges = []
    for index, table in enumerate(tables):
        starts = list(range(0, max(table.pages, 1), step))
        ends: list[int | None] = [*starts[1:], None]
        ranges += [PageRange(index, first, end) for first, end in zip(starts, ends, strict=True)]
    return ranges
