"""Catalogue of a database: its tables as journals describe them, and where their rows lie."""

# ruff: noqa: S608  (what is put into statements are constants and numbers)

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from firebird_cdc.journal.format import Column, Element, Storage, Table
from firebird_cdc.journal.format.charsets import OCTETS
from firebird_cdc.journal.snapshot.attachment import NAME, fetch_all, text_of
from firebird_cdc.journal.types.engine_types import type_of_field

if TYPE_CHECKING:
    from firebird.driver import Connection

_PERSISTENT = 0  # RDB$RELATION_TYPE
_TEMPORARY_TYPES = "4, 5"
_POINTER_PAGE = 4  # RDB$PAGE_TYPE
_POINTER_PAGE_HEAD, _POINTER_BITS = 32, 40  # its header in bytes; bits for each data page
_FEW = 100  # tables whose pages are asked for by their numbers
# As in native/catalogue.h and catalogue.c: a definition leaves out what is longer.
_MOST_DEFAULT, _MOST_DEFAULTS = 1000, 1024 * 1024
_NUMBER_BYTES = 8  # a row has a number for a BLOB or an ARRAY
_TEXT_BLOB = 1
_INTEGERS = (Storage.SMALLINT, Storage.INTEGER, Storage.BIGINT, Storage.INT128)

_TEMPORARY = (
    f"SELECT {NAME.format('R.RDB$RELATION_NAME')} FROM RDB$RELATIONS R"
    f" WHERE R.RDB$RELATION_TYPE IN ({_TEMPORARY_TYPES})"
)
# What goes behind statements whose L has the name of a table.
_NAMED = " AND L.RDB$RELATION_NAME = {name}"
_NOT_NULL = "COALESCE(R.RDB$NULL_FLAG, F.RDB$NULL_FLAG, 0)"
_AS_BYTES = f"AS VARCHAR({_MOST_DEFAULT}) CHARACTER SET OCTETS"
_COLUMNS = f"""
SELECT {NAME.format("L.RDB$RELATION_NAME")}, L.RDB$RELATION_ID, R.RDB$FIELD_ID,
  COALESCE(R.RDB$FIELD_POSITION, 0), {NAME.format("R.RDB$FIELD_NAME")},
  F.RDB$FIELD_TYPE, COALESCE(F.RDB$FIELD_SUB_TYPE, 0), COALESCE(F.RDB$FIELD_SCALE, 0),
  F.RDB$FIELD_LENGTH, COALESCE(F.RDB$CHARACTER_SET_ID, 0), COALESCE(F.RDB$CHARACTER_LENGTH, 0),
  COALESCE(F.RDB$FIELD_PRECISION, 0), COALESCE(F.RDB$DIMENSIONS, 0), {_NOT_NULL},
  IIF(R.RDB$IDENTITY_TYPE IS NULL, 0, 1),
  CASE WHEN {_NOT_NULL} = 0 THEN NULL
   WHEN R.RDB$DEFAULT_VALUE IS NOT NULL THEN
    IIF(OCTET_LENGTH(R.RDB$DEFAULT_VALUE) <= {_MOST_DEFAULT},
     CAST(R.RDB$DEFAULT_VALUE {_AS_BYTES}), NULL)
   WHEN OCTET_LENGTH(F.RDB$DEFAULT_VALUE) <= {_MOST_DEFAULT} THEN
    CAST(F.RDB$DEFAULT_VALUE {_AS_BYTES})
  END
 FROM RDB$RELATIONS L
 JOIN RDB$RELATION_FIELDS R ON R.RDB$RELATION_NAME = L.RDB$RELATION_NAME
 JOIN RDB$FIELDS F ON F.RDB$FIELD_NAME = R.RDB$FIELD_SOURCE
 WHERE COALESCE(L.RDB$SYSTEM_FLAG, 0) = 0 AND COALESCE(L.RDB$RELATION_TYPE, 0) = {_PERSISTENT}
  AND L.RDB$VIEW_BLR IS NULL AND F.RDB$COMPUTED_BLR IS NULL
"""
_BOUNDS = f"""
SELECT {NAME.format("L.RDB$RELATION_NAME")}, {NAME.format("L.RDB$FIELD_NAME")},
  D.RDB$LOWER_BOUND, D.RDB$UPPER_BOUND, D.RDB$DIMENSION
 FROM RDB$RELATION_FIELDS L
 JOIN RDB$FIELD_DIMENSIONS D ON D.RDB$FIELD_NAME = L.RDB$FIELD_SOURCE
 WHERE COALESCE(L.RDB$SYSTEM_FLAG, 0) = 0
"""
_INDEXES = f"""
SELECT {NAME.format("L.RDB$RELATION_NAME")}, {NAME.format("L.RDB$INDEX_NAME")},
  {NAME.format("COALESCE(C.RDB$CONSTRAINT_TYPE, '')")},
  {NAME.format("COALESCE(C.RDB$CONSTRAINT_NAME, '')")}, {NAME.format("S.RDB$FIELD_NAME")},
  COALESCE(L.RDB$INDEX_INACTIVE, 0), S.RDB$FIELD_POSITION
 FROM RDB$INDICES L
 JOIN RDB$INDEX_SEGMENTS S ON S.RDB$INDEX_NAME = L.RDB$INDEX_NAME
 LEFT JOIN RDB$RELATION_CONSTRAINTS C ON C.RDB$INDEX_NAME = L.RDB$INDEX_NAME
 WHERE L.RDB$UNIQUE_FLAG = 1 AND COALESCE(L.RDB$SYSTEM_FLAG, 0) = 0
"""
# How often each writer is found among the rows that `read_tables` makes a table of.
_VERSIONS = """
SELECT KIND, VERSION, COUNT(*) FROM (
 SELECT 0 KIND, L.RDB$RECORD_VERSION VERSION
  FROM RDB$RELATIONS L WHERE L.RDB$RELATION_NAME = {name}
 UNION ALL SELECT 1, R.RDB$RECORD_VERSION
  FROM RDB$RELATION_FIELDS R WHERE R.RDB$RELATION_NAME = {name}
 UNION ALL SELECT 2, F.RDB$RECORD_VERSION
  FROM RDB$RELATION_FIELDS R JOIN RDB$FIELDS F ON F.RDB$FIELD_NAME = R.RDB$FIELD_SOURCE
  WHERE R.RDB$RELATION_NAME = {name}
 UNION ALL SELECT 3, I.RDB$RECORD_VERSION
  FROM RDB$INDICES I WHERE I.RDB$RELATION_NAME = {name}
 UNION ALL SELECT 4, C.RDB$RECORD_VERSION
  FROM RDB$RELATION_CONSTRAINTS C WHERE C.RDB$RELATION_NAME = {name}
) GROUP BY 1, 2 ORDER BY 1, 2
"""
_HAS_PARTIAL_INDEXES = (
    "SELECT 1 FROM RDB$RELATION_FIELDS"
    " WHERE RDB$RELATION_NAME = 'RDB$INDICES' AND RDB$FIELD_NAME = 'RDB$CONDITION_BLR'"
)
_PARTIAL_INDEXES = (
    f"SELECT {NAME.format('L.RDB$INDEX_NAME')} FROM RDB$INDICES L"
    " WHERE L.RDB$CONDITION_BLR IS NOT NULL"
)
_POINTER_PAGES = (
    f"SELECT RDB$RELATION_ID, COUNT(*) FROM RDB$PAGES WHERE RDB$PAGE_TYPE = {_POINTER_PAGE}"
)

# The first record of the last pointer page of each table that has several.
_LAST_POINTER_PAGES = (
    "SELECT " + NAME.format("R.RDB$RELATION_NAME") + ", P.PAGES,"
    " MAKE_DBKEY(R.RDB$RELATION_ID, 0, 0, P.PAGES - 1)"
    f" FROM ({_POINTER_PAGES} GROUP BY 1 HAVING COUNT(*) > 1) P (RELATION, PAGES)"
    " JOIN RDB$RELATIONS R ON R.RDB$RELATION_ID = P.RELATION"
)


class DatabaseTable(NamedTuple):
    """A table as readers need it. ``table``: as journals have it, but for its number.

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


class _Field(NamedTuple):
    """A stored column as `_COLUMNS` has it."""

    place: int
    position: int
    name: bytes
    field_type: int
    sub_type: int
    scale: int
    length: int
    charset_id: int
    characters: int
    precision: int
    dimensions: int
    not_null: int
    identity: int
    default: bytes | None


def read_tables(
    connection: Connection, page_size: int, names: Collection[str] | None = None
) -> dict[str, DatabaseTable]:
    """Return the persistent tables as CONNECTION's transaction sees them, by name.

    names: only these, without looking at others; those that aren't there are left out.

    What a table is here is what the plugin writes of it (`native/catalogue.c`, `native/rows.c`):
    events of snapshots have the schema of those of changes. Its key is the primary key, else the
    first unique constraint by name, else the first unique index, whose columns are all NOT NULL.
    """
    fields: defaultdict[tuple[str, int], list[_Field]] = defaultdict(list)
    for name, relation, *described in _rows(connection, _COLUMNS, names):
        fields[text_of(name), relation].append(_Field(*described))
    bounds: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    if any(field.dimensions for found in fields.values() for field in found):
        rows = _rows(connection, _BOUNDS, names)
        for name, column, lower, upper, _ in sorted(rows, key=lambda row: row[-1]):
            bounds[text_of(name), text_of(column)].append((lower, upper))
    keys = _keys(
        connection,
        {
            name: {text_of(field.name) for field in found if field.not_null}
            for (name, _), found in fields.items()
        },
        names,
    )
    relations = [relation for _, relation in fields]
    pages = _pointer_pages(connection, relations if names is not None else None)
    per_pointer_page = (page_size - _POINTER_PAGE_HEAD) * 8 // _POINTER_BITS
    tables = {}
    for (name, relation), found in sorted(fields.items()):
        table = _table(name, found, bounds, *keys.get(name, (0, ())))
        tables[name] = DatabaseTable(table, relation, pages.get(relation, 0) * per_pointer_page)
    return tables


def read_extents(connection: Connection) -> dict[str, int]:
    """Return about how many record numbers tables have, by name: `record_number` of the last row.

    Those that have one pointer page only, with pages of 8 KiB up to 13 MiB, are left out: how full
    that is could be told by reading them alone.
    """
    extents = {}
    for name, pages, first in fetch_all(connection, _LAST_POINTER_PAGES):
        before = record_number(bytes(first))
        extents[text_of(name)] = before + before // (pages - 1) // 2  # half of the last one is used
    return extents


MOST_NUMBERS = (1 << 40) - 1
"""More than the `record_number` of any row."""


def record_number(db_key: bytes) -> int:
    """Return where a row lies in its table: the number in its DB_KEY (RecordNumber::Packed of the
    engine), of which some are in use by no row."""
    return db_key[3] << 32 | int.from_bytes(db_key[4:], "little")


def db_key_of(relation: int, number: int) -> bytes:
    """Return the DB_KEY of which NUMBER is the `record_number`, in the table with this id."""
    low = (number & 0xFFFFFFFF).to_bytes(4, "little")
    return relation.to_bytes(2, "little") + bytes([0, number >> 32]) + low


def definition_version(connection: Connection, name: str) -> tuple[tuple[int, int, int], ...]:
    """Return what is another once the definition of table NAME is; empty: there is no such table.

    It may be another one though the definition is the same, as after statistics of an index were
    made anew. It holds the transactions that wrote the rows of the system tables, with how many
    each wrote: one whose work is seen once writes nothing later, so no change leaves all as it was.
    """
    return tuple(fetch_all(connection, _VERSIONS.format(name=_literal(name))))


def _literal(name: str) -> str:
    """Return NAME for a statement; the attachment has no character set."""
    return f"_UTF8 x'{name.encode().hex()}'"


def read_temporary(connection: Connection) -> frozenset[str]:
    """Return the names of the global temporary tables, whose rows no journal has."""
    return frozenset(text_of(name) for (name,) in fetch_all(connection, _TEMPORARY))


def _rows(connection: Connection, sql: str, names: Collection[str] | None) -> list[tuple[Any, ...]]:
    """Return the rows of SQL, of the tables NAMES only."""
    if names is None:
        return fetch_all(connection, sql)
    rows: list[tuple[Any, ...]] = []
    for name in names:
        rows += fetch_all(connection, sql + _NAMED.format(name=_literal(name)))
    return rows


def _pointer_pages(connection: Connection, relations: Sequence[int] | None) -> dict[int, int]:
    """Return how many pointer pages tables have, by their numbers. RELATIONS: of which at least."""
    sql = _POINTER_PAGES
    if relations is not None and 0 < len(relations) <= _FEW:
        sql += f" AND RDB$RELATION_ID IN ({', '.join(map(str, relations))})"
    return dict(fetch_all(connection, f"{sql} GROUP BY 1"))


def _table(
    name: str,
    fields: Iterable[_Field],
    bounds: dict[tuple[str, str], list[tuple[int, int]]],
    key_kind: int,
    key: Sequence[str],
) -> Table:
    # Rows are stored in the order of RDB$FIELD_ID.
    stored = sorted(fields)
    order = sorted(range(len(stored)), key=lambda index: (stored[index].position, index))
    kept, size = set(), 0
    for index in order:
        default = stored[index].default
        if default and size + len(default) <= _MOST_DEFAULTS:
            kept.add(index)
            size += len(default)
    places = {column: place for place, column in enumerate(key, 1)}
    columns = []
    for index, field in enumerate(stored):
        column = text_of(field.name)
        columns.append(
            _column(
                column,
                field,
                key_position=places.get(column, 0),
                bounds=tuple(bounds.get((name, column), ())),
                default=field.default if index in kept else None,
            )
        )
    return Table(0, name, key_kind, tuple(columns), tuple(order))


def _column(
    name: str,
    field: _Field,
    *,
    key_position: int,
    bounds: tuple[tuple[int, int], ...],
    default: bytes | None,
) -> Column:
    """Return a column as records show it (`fbc_shape_of`), with what the catalogue adds."""
    kind = type_of_field(field.field_type, is_array=bool(field.dimensions))
    storage, length = kind.storage, field.length
    sub_type, scale, charset_id = 0, 0, 0
    element = None
    if storage in (Storage.TEXT, Storage.PADDED_TEXT):
        charset_id = field.charset_id
        if charset_id == OCTETS:
            storage = Storage.OCTETS
    elif storage is Storage.BLOB:
        sub_type, length = field.sub_type, _NUMBER_BYTES
        charset_id = field.charset_id if sub_type == _TEXT_BLOB else OCTETS
    elif storage is Storage.ARRAY:
        length = _NUMBER_BYTES
        element = Element(
            field.field_type,
            field.sub_type,
            field.scale,
            field.length,
            field.charset_id,
            bounds,
        )
    elif storage in _INTEGERS:
        sub_type, scale = field.sub_type, field.scale
    elif storage is Storage.DOUBLE:  # a NUMERIC of dialect 1
        scale = field.scale
    return Column(
        name=name,
        sql_type=kind.sql_type,
        sub_type=sub_type,
        scale=scale,
        length=length,
        charset_id=charset_id,
        char_length=field.characters,
        precision=field.precision,
        nullable=not field.not_null,
        identity=bool(field.identity),
        key_position=key_position,
        storage=storage,
        element=element,
        default=default,
    )


def _keys(
    connection: Connection, not_null: dict[str, set[str]], names: Collection[str] | None
) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Return kind (1 primary, 2 unique) and columns of the keys that tables have.

    NOT_NULL: the columns of each table that are.
    """
    found: dict[tuple[str, str], tuple[str, str, bool, list[str]]] = {}
    segments = sorted(_rows(connection, _INDEXES, names), key=lambda row: row[-1])
    for table, index, kind, constraint, column, inactive, _ in segments:
        entry = found.setdefault(
            (text_of(table), text_of(index)), (text_of(kind), text_of(constraint), not inactive, [])
        )
        entry[3].append(text_of(column))
    candidates: defaultdict[str, list[tuple[int, str, list[str]]]] = defaultdict(list)
    for (table, index), (kind, constraint, active, columns) in found.items():
        if kind == "PRIMARY KEY":
            candidates[table].append((0, constraint, columns))
        elif not_null.get(table, set()).issuperset(columns):
            if kind == "UNIQUE":
                candidates[table].append((1, constraint, columns))
            elif active:
                candidates[table].append((2, index, columns))
    firsts = {table: min(choices) for table, choices in candidates.items()}
    if any(rank == 2 for rank, _, _ in firsts.values()):
        partial = _partial_indexes(connection, names)
        for table, choices in candidates.items():
            whole = [each for each in choices if each[0] != 2 or each[1] not in partial]
            if whole:
                firsts[table] = min(whole)
            else:
                del firsts[table]
    return {
        table: (1 if rank == 0 else 2, tuple(columns))
        for table, (rank, _, columns) in firsts.items()
    }


def _partial_indexes(connection: Connection, names: Collection[str] | None) -> set[str]:
    """Return the names of indexes over a part of the rows; only Firebird 5 has such."""
    if not fetch_all(connection, _HAS_PARTIAL_INDEXES):
        return set()
    return {text_of(name) for (name,) in _rows(connection, _PARTIAL_INDEXES, names)}


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
