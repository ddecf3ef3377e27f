"""Work in a database: every change with the row before and after it, as the driver reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from capture import Attachment, Capture, SqlError, read_journal, until
from kinds import Kind, Value

_PATIENCE_S = 60.0

Image = tuple[Value, ...]
"""A row, its values as the driver reads them in the order of the table's columns."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: Kind
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """A table. ``key``: the places of its columns; ``constraint``: what makes them one."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[int, ...] = ()
    constraint: str = "PRIMARY KEY"

    def definition(self) -> str:
        parts = [
            f"{quoted(column.name)} {column.kind.sql}{'' if column.nullable else ' NOT NULL'}"
            for column in self.columns
        ]
        if self.key:
            names = ", ".join(quoted(self.columns[place].name) for place in self.key)
            parts.append(f"{self.constraint} ({names})")
        return f"CREATE TABLE {quoted(self.name)} ({', '.join(parts)})"


class Changed(NamedTuple):
    """One change of a row: ``op`` is "c", "u" or "d"."""

    table: Table
    op: str
    before: Image | None
    after: Image | None


class Work:
    """Work of one attachment. ``committed``: its changes in the order of their journals."""

    def __init__(self, engine: Capture, attachment: Attachment) -> None:
        self.database = str(engine.database)
        self._engine = engine
        self._attachment = attachment
        self._rows: dict[tuple[str, bytes], Image] = {}
        self._rows_at_start: dict[tuple[str, bytes], Image] = {}
        self._open: list[Changed] = []
        self.committed: list[Changed] = []
        # Nothing of what a test that failed has left open, or to confirm, may get in here.
        self._rest()
        self._await_all()
        self._known = set(engine.committed())

    def create(self, table: Table) -> None:
        """Make a table; all tables of the database are published."""
        self._attachment.script(table.definition())

    def add_column(self, table: Table, column: Column, default: str = "") -> Table:
        """Add a column; return what the table is then. DEFAULT: SQL, as one that can't be null has
        to have it."""
        definition = f"{quoted(column.name)} {column.kind.sql}"
        definition += default and f" DEFAULT {default}"
        definition += "" if column.nullable else " NOT NULL"
        self.script(f"ALTER TABLE {quoted(table.name)} ADD {definition}")
        return self._reshaped(replace(table, columns=(*table.columns, column)))

    def drop_column(self, table: Table, place: int) -> Table:
        """Drop the column at PLACE, which is in no key; return what the table is then."""
        self.script(f"ALTER TABLE {quoted(table.name)} DROP {quoted(table.columns[place].name)}")
        columns = (*table.columns[:place], *table.columns[place + 1 :])
        key = tuple(it - (it > place) for it in table.key)
        return self._reshaped(replace(table, columns=columns, key=key))

    def _reshaped(self, table: Table) -> Table:
        assert not self._open, "what was done before may be in no transaction any more"
        for row in self.rows(table):
            self._rows[table.name, row] = self._read(table, row)
        self._rows_at_start = dict(self._rows)
        self._rest()
        return table

    def _rest(self) -> None:
        """End a transaction that has changed nothing, if there is one."""
        self._attachment.execute("SELECT 1 FROM RDB$DATABASE")
        self._attachment.rollback()

    def rows(self, table: Table) -> list[bytes]:
        """The handles of the rows that TABLE has."""
        return [row for name, row in self._rows if name == table.name]

    def images(self, table: Table) -> list[Image]:
        """The rows that TABLE has."""
        return [image for (name, _), image in self._rows.items() if name == table.name]

    def insert(self, table: Table, values: Sequence[Any]) -> bool:
        """Put a row of VALUES (as ``Kind.values`` has them) in. False: the engine refused it."""
        bound = ", ".join(column.kind.bound for column in table.columns)
        names = ", ".join(quoted(column.name) for column in table.columns)
        into = f"INSERT INTO {quoted(table.name)} ({names}) VALUES ({bound}) RETURNING RDB$DB_KEY"
        try:
            [answer] = self._attachment.execute(into, *values)
        except SqlError:  # such as two rows of one key
            return False
        [row] = answer.values()
        after = self._rows[table.name, row] = self._read(table, row)
        self._open.append(Changed(table, "c", None, after))
        return True

    def update(self, table: Table, row: bytes, values: Mapping[int, Any]) -> bool:
        """Give columns of a row new values, by their places.

        False: the engine refused them, or the driver sees no difference. That is taken back: the
        engine may see one, such as another time zone, and reports none where it sees none.
        """
        places = [
            f"{quoted(table.columns[place].name)} = {table.columns[place].kind.bound}"
            for place in values
        ]
        update = f"UPDATE {quoted(table.name)} SET {', '.join(places)} WHERE RDB$DB_KEY = ?"
        self._attachment.immediate("SAVEPOINT S")
        try:
            self._attachment.execute(update, *values.values(), row)
        except SqlError:
            return False
        before, after = self._rows[table.name, row], self._read(table, row)
        if repr(before) == repr(after):
            self._attachment.immediate("ROLLBACK TO SAVEPOINT S")
            return False
        self._rows[table.name, row] = after
        self._open.append(Changed(table, "u", before, after))
        return True

    def delete(self, table: Table, row: bytes) -> None:
        delete = f"DELETE FROM {quoted(table.name)} WHERE RDB$DB_KEY = ?"
        self._attachment.execute(delete, row)
        self._open.append(Changed(table, "d", self._rows.pop((table.name, row)), None))

    def commit(self) -> None:
        self._attachment.commit()
        self.committed += self._open
        self._rows_at_start = dict(self._rows)
        self._open.clear()

    def rollback(self) -> None:
        self._attachment.rollback()
        self._rows = dict(self._rows_at_start)
        self._open.clear()

    def script(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        self._attachment.script(*statements)

    def await_described(self) -> None:
        """Wait until what DDL has made of tables is read: another DDL waits for that half a second
        at most, and is then told of in its place."""
        self._await_all()

    def immediate(self, statement: str) -> None:
        """Run a statement as it is, in the transaction of the changes."""
        self._attachment.immediate(statement)

    def journals(self) -> list[Path]:
        """Return the journals of this work in order, once there is no other in the folder."""
        self._await_all()
        mine = [path for path in self._engine.committed() if path not in self._known]
        return sorted(mine, key=lambda path: read_journal(path).sequence)

    def _await_all(self) -> None:
        until("all journals to be confirmed", lambda: not self._engine.live(), _PATIENCE_S)

    def _read(self, table: Table, row: bytes) -> Image:
        columns = ", ".join(
            f"{column.kind.read.format(quoted(column.name))} AS V{place}"
            for place, column in enumerate(table.columns)
        )
        select = f"SELECT {columns} FROM {quoted(table.name)} WHERE RDB$DB_KEY = ?"
        [found] = self._attachment.execute(select, row)
        return tuple(found.values())


def quoted(name: str) -> str:
    """Return a name as SQL takes it, letter by letter."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
