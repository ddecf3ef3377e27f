"""Evolution of a table's columns by DDL: which column of an old row is which column now.

`plan_tables` takes the shapes in which rows were written and the DDL statements of a history, and
says for every table how it is at the end of that: its columns, its key, and for a row of any shape
and place what to do to see it as the engine shows it. The engine does the same when it reads a
record of an older format (EVL_field and MOV_move in its source): columns are told apart by number,
not by name, so that a column that was dropped and added again is another one, and one that was
renamed is the same; a column that was added NOT NULL with a default has that default of its time,
any other added column is NULL; values are converted to the type of now.

Journals tell column names. Numbers of our own, one for each column that ever was, stand in for the
engine's, and statements say how they move: the text of an ALTER TABLE, and the table as it was
after the transaction (`journal.format.TableState`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from firebird_cdc.journal.format import Column, DdlChange, Storage, Table, TableState, Undecodable
from firebird_cdc.journal.format.ddl_text import ColumnClause, column_clauses, parse, text_of
from firebird_cdc.journal.replay.source.bounds import HistoryPoint
from firebird_cdc.journal.replay.state.conversion import UNKNOWN, Convert, converter, default_value


class Shape(NamedTuple):
    """A table as rows were written; ``first``, ``last``: where its definitions were met."""

    database: str
    table: Table
    first: HistoryPoint
    last: HistoryPoint


class Statement(NamedTuple):
    """A DDL statement and where it stands."""

    database: str
    point: HistoryPoint
    change: DdlChange


class Source(NamedTuple):
    """Source of the value of a current column in a row of some shape.

    ``column_index``: of the row's column, None: it has none, and the value is ``default``, UNKNOWN
    if nobody knows it. ``convert``: applied to a value that is not null, None: it stays as it is.
    """

    column_index: int | None
    convert: Convert | None = None
    default: Any = None

    @property
    def is_certain(self) -> bool:
        """Tell whether the value is what the engine shows."""
        return self.default is not UNKNOWN and self.convert is not _lose


def _lose(value: Any) -> Any:  # noqa: ARG001
    return UNKNOWN


class _Version(NamedTuple):
    """The columns after a transaction with DDL: number by name, in no order."""

    point: HistoryPoint
    numbers: dict[str, int]


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A table at the end of the history.

    ``columns``: as the table shows them, computed ones left out; ``key``: indexes of the key's
    columns, empty if rows are to be folded as a multiset; ``since``: rows up to there are of an
    earlier table of the name; ``is_dropped``: there is none now.
    """

    database: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[int, ...]
    since: HistoryPoint | None
    is_dropped: bool
    numbers: tuple[int, ...] = ()
    defaults: dict[int, tuple[Any, Column | None]] = field(default_factory=dict)
    versions: tuple[_Version, ...] = ()
    uniform_key: bool = False
    """Every shape has the key's columns in one and the same form, so that their bytes compare."""
    uncertain: frozenset[int] = frozenset()
    """Indexes of columns of which not all rows show what the engine shows."""

    def is_of_before(self, point: HistoryPoint) -> bool:
        """Tell whether what stands at POINT is of an earlier table of the name."""
        return self.since is not None and point <= self.since

    def version_at(self, point: HistoryPoint) -> tuple[int, HistoryPoint | None]:
        """Return which version is in force at POINT, and where the next one begins."""
        number = bisect_left(self.versions, point, key=lambda version: version.point)
        current = max(number - 1, 0)
        following = self.versions[current + 1].point if current + 1 < len(self.versions) else None
        return current, following

    def sources(self, table: Table, version: int) -> list[Source]:
        """Return for each column where it comes from in a row of shape TABLE.

        version: that in force where the row stands. A change that saw the table as a DDL made it
        can come a moment before that DDL, and one of an older transaction after it: so the next
        version that has the row's columns is taken.
        """
        numbers = self._numbers_of(table, version)
        by_number = {
            number: index
            for index, column in enumerate(table.columns)
            if (number := numbers.get(column.name)) is not None
        }
        found = []
        for number, column in zip(self.numbers, self.columns, strict=True):
            index = by_number.get(number)
            if index is None:
                found.append(Source(None, None, self._default(number, column)))
                continue
            of = table.columns[index]
            convert: Convert | None = None
            if not _same_form(of, column):
                convert = converter(of, column) or _lose
            found.append(Source(index, convert))
        return found

    def _default(self, number: int, column: Column) -> Any:
        if number not in self.defaults:
            return None
        value, of = self.defaults[number]
        if value is UNKNOWN or value is None or of is None or _same_form(of, column):
            return value
        convert = converter(of, column)
        return UNKNOWN if convert is None else convert(value)

    def _numbers_of(self, table: Table, version: int) -> dict[str, int]:
        names = {column.name for column in table.columns}
        count = len(self.versions)
        for distance in range(count):
            for other in (version + distance, version - distance):
                if 0 <= other < count and self.versions[other].numbers.keys() == names:
                    return self.versions[other].numbers
        return self.versions[version].numbers if self.versions else {}


def _same_form(one: Column, other: Column) -> bool:
    """Tell whether values of both columns are written alike."""
    kept = (one.storage, one.scale, one.sub_type) == (other.storage, other.scale, other.sub_type)
    if one.storage in (Storage.PADDED_TEXT, Storage.OCTETS):
        kept = kept and (one.sql_type & ~1, one.length) == (other.sql_type & ~1, other.length)
    return kept


def plan_tables(shapes: Sequence[Shape], statements: Sequence[Statement]) -> list[TablePlan]:
    """Return every table that rows or statements speak of, by database and name."""
    of_table: defaultdict[tuple[str, str], list[Shape]] = defaultdict(list)
    for shape in shapes:
        of_table[shape.database, shape.table.name].append(shape)
    changes: defaultdict[tuple[str, str], list[_Change]] = defaultdict(list)
    for statement in sorted(statements, key=lambda s: (s.database, s.point)):
        for name, change in _changes(statement):
            changes[statement.database, name].append(change)
    dropped = {name for name, of in changes.items() if any(c.kind == "DROP" for c in of)}
    # Of a table that was only made, no row was met: perhaps it is not captured at all.
    names = sorted(of_table.keys() | dropped)
    return [_plan(*name, of_table[name], changes[name]) for name in names]


class _Change(NamedTuple):
    """Effect of one statement on one table; ``clauses`` of an ALTER TABLE, empty if not known."""

    point: HistoryPoint
    kind: str
    state: TableState | None
    clauses: tuple[ColumnClause, ...]


def _changes(statement: Statement) -> Iterator[tuple[str, _Change]]:
    change = statement.change
    text = text_of(change.sql) if isinstance(change.sql, Undecodable) else change.sql
    clauses = tuple(column_clauses(text))
    for told in change.table_changes or ():
        yield told.name, _Change(statement.point, told.kind, told.state, clauses)
    if not change.table_changes:
        parsed = parse(text)
        if parsed is not None and parsed.kind == "TABLE":
            yield parsed.name, _Change(statement.point, parsed.verb, None, clauses)


def _plan(database: str, name: str, shapes: list[Shape], changes: list[_Change]) -> TablePlan:
    ends = [c for c in changes if c.kind in ("CREATE", "DROP")]
    since = ends[-1].point if ends else None
    is_dropped = bool(ends) and ends[-1].kind == "DROP"
    born = ends[-1] if ends and not is_dropped else None
    if since is not None:
        # Under a later one of the name, or written before it was: of the transaction that made it.
        shapes = [s for s in shapes if s.last > since]
        changes = [c for c in changes if c.point > since]
    shapes.sort(key=lambda shape: shape.first)
    if is_dropped and not shapes:
        return TablePlan(database, name, (), (), since, is_dropped=True)
    state = next((c.state for c in reversed([*filter(None, [born]), *changes]) if c.state), None)
    versions, defaults = _versions(born, shapes, changes)
    columns, key = _columns_now(shapes, versions, state)
    last = _named_all(versions, shapes, columns)
    numbers = tuple(last[column.name] for column in columns)
    plan = TablePlan(
        database,
        name,
        columns,
        key,
        since,
        is_dropped=False,
        numbers=numbers,
        defaults={n: defaults[n] for n in numbers if n in defaults},
        versions=tuple(versions),
    )
    return _with_key(plan, shapes)


def _with_key(plan: TablePlan, shapes: list[Shape]) -> TablePlan:
    """Fold by key only if all shapes have had that key."""
    key = plan.key
    uniform = True
    uncertain: set[int] = set()
    wanted = sorted(plan.numbers[index] for index in key)
    for shape in shapes:
        # A shape may be met under several versions; where its columns are others then, both count.
        first, _ = plan.version_at(shape.first)
        last, _ = plan.version_at(shape.last)
        for version in range(first, last + 1):
            sources = plan.sources(shape.table, version)
            uncertain |= {i for i, source in enumerate(sources) if not source.is_certain}
            numbers = plan._numbers_of(shape.table, version)
            own = sorted(
                numbers.get(shape.table.columns[index].name, -1)
                for index in shape.table.key_columns
            )
            if own != wanted or any(not sources[index].is_certain for index in key):
                key = ()
            for index in key:
                source = sources[index]
                assert source.column_index is not None
                of, to = shape.table.columns[source.column_index], plan.columns[index]
                uniform = uniform and source.convert is None and of.charset_id == to.charset_id
    return replace(plan, key=key, uniform_key=uniform and bool(key), uncertain=frozenset(uncertain))


def _columns_now(
    shapes: list[Shape], versions: list[_Version], state: TableState | None
) -> tuple[tuple[Column, ...], tuple[int, ...]]:
    """Return the columns as the table shows them, and the indexes of its key's.

    The state after the last DDL says it; if that tells none, the shape that was written last.
    """
    if state is not None and not _is_superseded(shapes, versions):
        table, generated = state.table, state.generated
    else:
        resolved = [shape for shape in shapes if shape.table.resolved] or shapes
        if not resolved:
            return (), ()
        newest = max(resolved, key=lambda shape: (shape.first, shape.last))
        if len(versions) == 1:  # no DDL: of two shapes the one that is written now
            newest = max(resolved, key=lambda shape: (shape.last, shape.first))
        table, generated = newest.table, (False,) * len(newest.table.columns)
    shown = [index for index in table.order if not generated[index]]
    at = {index: position for position, index in enumerate(shown)}
    key = tuple(at[index] for index in table.key_columns if index in at)
    return tuple(table.columns[index] for index in shown), key


def _is_superseded(shapes: list[Shape], versions: list[_Version]) -> bool:
    """Tell whether a DDL that no journal tells of came last: the columns of rows are others."""
    known = [version.numbers.keys() for version in versions]
    last = versions[-1].point
    return any(
        shape.first > last and {column.name for column in shape.table.columns} not in known
        for shape in shapes
    )


_BEGINNING: HistoryPoint = (-1, -1, -1)


def _versions(
    born: _Change | None, shapes: list[Shape], changes: list[_Change]
) -> tuple[list[_Version], dict[int, tuple[Any, Column | None]]]:
    """Return the versions of a table, and the defaults of columns that were added with one."""
    names = _first_names(born, shapes, changes)
    numbers = {name: index for index, name in enumerate(sorted(names))}
    free = len(numbers)
    defaults: dict[int, tuple[Any, Column | None]] = {}
    versions = [_Version(_BEGINNING, dict(numbers))]
    for at, change in enumerate(changes):
        added = []
        for clause in change.clauses:
            if clause.kind == "ADD" and clause.name not in numbers:
                numbers[clause.name] = free
                added.append(clause.name)
                free += 1
            elif clause.kind == "DROP":
                numbers.pop(clause.name, None)
            elif clause.kind == "RENAME" and clause.name in numbers:
                numbers[clause.to] = numbers.pop(clause.name)
                added = [clause.to if name == clause.name else name for name in added]
        state = change.state
        is_last = at + 1 == len(changes) or changes[at + 1].point[:2] != change.point[:2]
        if state is not None and is_last:
            stored = _stored(state)
            for name in numbers.keys() - stored.keys():
                del numbers[name]
            for name in stored.keys() - numbers.keys():
                numbers[name] = free
                added.append(name)
                free += 1
        if state is not None:
            # The state is that at the end of the transaction, where a column may have another name.
            stored = _stored(state)
            for name in added:
                if name in stored:
                    column, default = stored[name]
                    if default is not None and not column.nullable:
                        defaults[numbers[name]] = (default_value(default, column), column)
        elif added:
            defaults.update({numbers[name]: (UNKNOWN, None) for name in added if name in numbers})
        versions.append(_Version(change.point, dict(numbers)))
    return versions, defaults


def _named_all(
    versions: list[_Version], shapes: Iterable[Shape], columns: Iterable[Column]
) -> dict[str, int]:
    """Give numbers to columns that rows have and no statement tells of: there, names count."""
    last = versions[-1].numbers
    known = [version.numbers.keys() for version in versions]
    free = 1 + max((n for version in versions for n in version.numbers.values()), default=-1)
    of_rows = [{column.name for column in shape.table.columns} for shape in shapes]
    strange = [names for names in of_rows if names not in known]
    for names in (*strange, {column.name for column in columns}):
        for name in sorted(names - last.keys()):
            last[name] = free
            free += 1
    return last


def _stored(state: TableState) -> dict[str, tuple[Column, str | None]]:
    return {
        column.name: (column, default)
        for column, generated, default in zip(
            state.table.columns, state.generated, state.defaults, strict=True
        )
        if not generated
    }


def _first_names(born: _Change | None, shapes: list[Shape], changes: list[_Change]) -> set[str]:
    """Return the names of the columns before CHANGES."""
    if born is not None and born.state is not None:
        same = [c for c in changes if c.point[:2] == born.point[:2]]
        return _undone(set(_stored(born.state)), same)
    for at, change in enumerate(changes):
        if change.state is not None:
            same = [c for c in changes[at + 1 :] if c.point[:2] == change.point[:2]]
            return _undone(set(_stored(change.state)), [*changes[: at + 1], *same])
    if shapes:
        return {column.name for column in shapes[0].table.columns}
    return set()


def _undone(names: set[str], changes: Iterable[_Change]) -> set[str]:
    """Return the names of which CHANGES made NAMES."""
    for change in reversed(list(changes)):
        for clause in reversed(change.clauses):
            if clause.kind == "ADD":
                names.discard(clause.name)
            elif clause.kind == "DROP":
                names.add(clause.name)
            elif clause.kind == "RENAME" and clause.to in names:
                names.discard(clause.to)
                names.add(clause.name)
    return names
