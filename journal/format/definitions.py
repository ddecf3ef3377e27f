"""Definitions in journals: of tables, of what DDL made of them, and the catalogue behind the
seal."""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from dataclasses import replace

from firebird_cdc.journal.format.layout import (
    RECORD,
    TABLE,
    TABLE_CHANGE,
    TABLE_CHANGE_HEAD,
    U16,
    U32,
    Malformed,
    MalformedRecord,
    read_counted,
    read_text,
    with_length,
)
from firebird_cdc.journal.format.model import (
    FIXED_FORMATS,
    Column,
    Element,
    Storage,
    Table,
    TableChange,
    TableState,
)

_COLUMN = struct.Struct("<HhhIHHHBBBB")
_ELEMENT = struct.Struct("<HhhHHH")
_BOUNDS = struct.Struct("<ii")


# Kinds of a TABLE_CHANGE, by their codes; its flags that say: the table's state follows, or is the
# same as in the one before it of this table.
_CHANGE_KINDS = {1: "CREATE", 2: "ALTER", 3: "DROP"}
_CHANGE_CODES = {kind: code for code, kind in _CHANGE_KINDS.items()}
_HAS_STATE = 1
_SAME_STATE = 2
# Flags of a column in a definition: NOT NULL, IDENTITY, and a default follows behind all columns.
_COLUMN_FLAGS = 7
_DEFAULTED = 4
# Flags of a column in a TABLE_CHANGE.
_GENERATED = 1
_HAS_DEFAULT = 2


# Blanks that one row may be padded with. The engine's own limit for a row is 64 KiB.
_MAX_PADDING = 1024 * 1024
_MAX_DIMENSIONS = 16


@functools.lru_cache(maxsize=256)
def parse_begin(body: bytes) -> tuple[str, str]:
    """Return database and user from the BODY of a BEGIN record; remembered.

    Raises Malformed, struct.error or UnicodeDecodeError if it makes no sense.
    """
    database, at = read_text(body, 0, len(body))
    user, at = read_text(body, at, len(body))
    if at != len(body):
        raise Malformed("the BEGIN record has bytes left over")
    return database, user


@functools.lru_cache(maxsize=256)
def parse_definition(number: int, body: bytes, resolved: bool = True) -> Table:
    """Parse a TABLE record; remembered, as small journals repeat the same few tables."""
    size = len(body)
    name, at = read_text(body, 0, size)
    if at + 4 > size:
        raise Malformed(f"the definition of table {name} ends early")
    key_kind = body[at]
    (count,) = U16.unpack_from(body, at + 2)
    if key_kind > 2 or count == 0:
        raise Malformed(f"table {name} has key kind {key_kind} and {count} columns")
    at += 4
    columns = []
    with_defaults = []
    padding = 0
    for index in range(count):
        column_name, at = read_text(body, at, size)
        (
            sql_type,
            sub_type,
            scale,
            length,
            charset_id,
            char_length,
            precision,
            flags,
            key_position,
            storage,
            _,
        ) = _COLUMN.unpack_from(body, at)
        at += _COLUMN.size
        if flags & ~_COLUMN_FLAGS:
            raise Malformed(f"column {name}.{column_name} has unknown flags")
        if flags & _DEFAULTED:
            with_defaults.append(index)
        if not -128 <= scale <= 127:  # the engine's own are of one byte
            raise Malformed(f"column {name}.{column_name} has the scale {scale}")
        if storage not in FIXED_FORMATS:
            raise Malformed(f"column {name}.{column_name} has the unknown storage {storage}")
        if storage == Storage.PADDED_TEXT:
            padding += char_length
        columns.append(
            Column(
                name=column_name,
                sql_type=sql_type,
                sub_type=sub_type,
                scale=scale,
                length=length,
                charset_id=charset_id,
                char_length=char_length,
                precision=precision,
                nullable=not flags & 1,
                identity=bool(flags & 2),
                key_position=key_position,
                storage=Storage(storage),
            )
        )
    order: tuple[int, ...] = ()
    if at != size:
        order = struct.unpack_from(f"<{count}H", body, at)
        at += 2 * count
        if sorted(order) != list(range(count)):
            raise Malformed(f"the order of the columns of table {name} is not one of them all")
    if at != size:
        for index, column in enumerate(columns):
            if column.storage == Storage.ARRAY:
                element, at = _parse_element(body, at)
                columns[index] = replace(column, element=element)
    for index in with_defaults:
        default, at = read_counted(body, at, size)
        columns[index] = replace(columns[index], default=default)
    if at != size:
        raise Malformed(f"the definition of table {name} has bytes left over")
    if padding > _MAX_PADDING:
        raise Malformed(f"rows of table {name} would be padded to {padding} characters")
    return Table(number, name, key_kind, tuple(columns), order, resolved)


def _parse_element(body: bytes, at: int) -> tuple[Element | None, int]:
    """Return what an element of an array is, None if that is not known, and the offset after."""
    kind, sub_type, scale, length, charset_id, dimensions = _ELEMENT.unpack_from(body, at)
    at += _ELEMENT.size
    end = at + dimensions * _BOUNDS.size
    if dimensions > _MAX_DIMENSIONS or end > len(body):
        raise Malformed(f"an array has {dimensions} dimensions")
    bounds = tuple(_BOUNDS.iter_unpack(body[at:end]))
    if not bounds:
        return None, end
    return Element(kind, sub_type, scale, length, charset_id, bounds), end


def _element_body(element: Element | None) -> bytes:
    if element is None:
        return bytes(_ELEMENT.size)
    *fields, bounds = element
    head = _ELEMENT.pack(*fields, len(bounds))
    return head + b"".join(_BOUNDS.pack(*pair) for pair in bounds)


def _parse_table_change(
    body: bytes, states: dict[str, TableState]
) -> tuple[int, TableChange | None]:
    """Return the number of an event, and one change that it made to a table; None: none.

    STATES: the last one of each table in the records before, and then in this one.
    """
    event, code, flags = TABLE_CHANGE_HEAD.unpack_from(body)
    at = TABLE_CHANGE_HEAD.size
    if code == 0 and flags == 0 and at == len(body):
        return event, None
    if code not in _CHANGE_KINDS or flags not in (0, _HAS_STATE, _SAME_STATE):
        raise Malformed(f"a table was changed in the unknown way {code} (flags {flags})")
    kind = _CHANGE_KINDS[code]
    name, at = read_text(body, at, len(body))
    state = None
    if flags == _SAME_STATE:
        state = states.get(name)
    elif flags == _HAS_STATE:
        state, at = _parse_table_state(body, at)
    if flags:
        if state is None or state.table.name != name or kind == "DROP":
            raise Malformed(f"the state after the {kind} of table {name} is not its own")
        states[name] = state
    if at != len(body):
        raise Malformed(f"the change of table {name} has bytes left over")
    return event, TableChange(kind, name, state)


def _parse_table_state(body: bytes, at: int) -> tuple[TableState, int]:
    charset, at = read_text(body, at, len(body))
    (length,) = U32.unpack_from(body, at)
    at += U32.size
    if at + length > len(body):
        raise Malformed("a definition is longer than its record")
    table = parse_definition(0, body[at : at + length])
    at += length
    generated = []
    defaults: list[str | None] = []
    for column in table.columns:
        if at >= len(body) or body[at] & ~(_GENERATED | _HAS_DEFAULT):
            raise Malformed(f"column {table.name}.{column.name} has unknown flags")
        flags = body[at]
        at += 1
        default = None
        if flags & _HAS_DEFAULT:
            default, at = read_text(body, at, len(body))
        generated.append(bool(flags & _GENERATED))
        defaults.append(default)
    return TableState(table, charset, tuple(generated), tuple(defaults)), at


def table_change_body(event: int, change: TableChange, written: dict[str, TableState]) -> bytes:
    """Return the body of a TABLE_CHANGE; WRITTEN: the last state of each table in those before,
    and then in this one."""
    state = change.state
    flags = 0
    if state is not None:
        flags = _SAME_STATE if written.get(change.name) is state else _HAS_STATE
        written[change.name] = state
    head = TABLE_CHANGE_HEAD.pack(event, _CHANGE_CODES[change.kind], flags)
    body = [head, with_length(change.name)]
    if state is not None and flags == _HAS_STATE:
        definition = table_body(state.table)
        body += [with_length(state.charset), U32.pack(len(definition)), definition]
        for generated, default in zip(state.generated, state.defaults, strict=True):
            has_default = default is not None
            body.append(bytes([generated * _GENERATED | has_default * _HAS_DEFAULT]))
            if default is not None:
                body.append(with_length(default))
    return b"".join(body)


def parse_catalogue(
    payload: bytes,
) -> tuple[int, Mapping[int, bytes], Mapping[int, tuple[TableChange, ...]]]:
    """Return how many records a catalogue has, its definitions and the changes of tables.

    Raises MalformedRecord.
    """
    bodies: dict[int, bytes] = {}
    changes: dict[int, tuple[TableChange, ...]] = {}
    states: dict[str, TableState] = {}
    records = 0
    at = 0
    try:
        while at < len(payload):
            kind, number, length = RECORD.unpack_from(payload, at)
            body = payload[at + 8 : at + 8 + length]
            if len(body) < length:
                raise Malformed("a record is longer than its block")
            if kind == TABLE and number and number not in bodies:
                bodies[number] = body
                parse_definition(number, body)
            elif kind == TABLE_CHANGE and number == 0:
                event, change = _parse_table_change(body, states)
                before = changes.get(event, ())
                changes[event] = before if change is None else (*before, change)
            else:
                raise Malformed("the catalogue has a record that does not belong there")
            records += 1
            at += 8 + length
    except (Malformed, struct.error, UnicodeDecodeError) as error:
        raise MalformedRecord(at, str(error)) from error
    return records, bodies, changes


kept_catalogue = functools.lru_cache(maxsize=256)(parse_catalogue)


def parse_table(number: int, body: bytes) -> Table:
    """Return the table that the body of a TABLE record defines; ValueError if it makes no sense."""
    try:
        return parse_definition(number, body)
    except (Malformed, struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"a definition of {len(body)} bytes: {error}") from error


def table_body(table: Table) -> bytes:
    """Return the body of the TABLE record that defines TABLE; ValueError if it fits none."""
    count = len(table.columns)
    body = [with_length(table.name), struct.pack("<BBH", table.key_kind, 0, count)]
    for column in table.columns:
        body.append(with_length(column.name))
        body.append(
            _COLUMN.pack(
                column.sql_type,
                column.sub_type,
                column.scale,
                column.length,
                column.charset_id,
                column.char_length,
                column.precision,
                (not column.nullable)
                | column.identity << 1
                | (column.default is not None) * _DEFAULTED,
                column.key_position,
                column.storage,
                0,
            )
        )
    in_order = list(range(count))
    if sorted(table.order) != in_order:
        raise ValueError(f"{table.name}: the order {table.order} is not one of all columns")
    arrays = [column.element for column in table.columns if column.storage == Storage.ARRAY]
    defaults = [column.default for column in table.columns if column.default is not None]
    has_elements = any(arrays) or bool(defaults)
    if list(table.order) != in_order or has_elements:
        body.append(struct.pack(f"<{count}H", *table.order))
    if has_elements:
        body += map(_element_body, arrays)
    body += [U16.pack(len(default)) + default for default in defaults]
    return b"".join(body)


def completed(table: Table, body: bytes) -> Table:
    """Return what the catalogue's BODY says of TABLE, which it has to fit."""
    completed = parse_definition(table.number, body)
    if _stored_shape(completed) != _stored_shape(table):
        raise Malformed(f"the catalogue has other columns for table {table.name} than the journal")
    return completed


def _stored_shape(table: Table) -> tuple[object, ...]:
    """Return what a row shows of its table; what the catalogue adds has to agree with it."""
    columns = ((c.name, c.sql_type, c.length, c.charset_id, c.storage) for c in table.columns)
    return (table.name, *columns)
