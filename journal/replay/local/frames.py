"""Local tables: the methods of PySpark's DataFrame that replay uses, computed by DuckDB.

A table is a query. Nothing runs before rows are asked for, or `persist` is, which keeps the result
in DuckDB: beyond its limit of memory that is on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from firebird_cdc.journal.replay.local import columns as F
from firebird_cdc.journal.replay.local.columns import Column, column_of, ordered, quote

_JOINS = {"inner": "INNER", "left": "LEFT", "left_anti": "ANTI"}


class TableKeeper(Protocol):
    """Session that computes tables: `session.LocalSession`."""

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""

    def batches(self, sql: str) -> Iterator[Any]:
        """Yield the rows of a query as record batches."""

    def keep(self, sql: str) -> str:
        """Compute a query; return one for its result."""


class Row(tuple[Any, ...]):
    """Values of a row, by position or by the name of the column."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, names: Sequence[str], values: Sequence[Any]) -> Row:
        """Make one; structs become rows, too."""
        row = cls(
            cls.of(tuple(value), tuple(value.values())) if isinstance(value, dict) else value
            for value in values
        )
        row.names = tuple(names)
        return row

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self.names.index(key) if isinstance(key, str) else key)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.names:
            raise AttributeError(name)
        return self[name]

    def asDict(self) -> dict[str, Any]:
        """Return the values by the names of their columns."""
        return dict(zip(self.names, self, strict=True))


class LocalTable:
    """A query of SESSION. ALIAS: by which columns of it are named in the condition of a join."""

    def __init__(self, session: TableKeeper, sql: str, alias: str | None = None) -> None:
        self.sparkSession = session
        self.sql = sql
        self._alias = alias
        self._columns: list[str] | None = None
        self._in_order: tuple[LocalTable, str] | None = None  # what of, and how

    def _from(self, unnamed: str = "") -> str:
        name = self._alias or unnamed
        return f"({self.sql})" + (f" AS {quote(name)}" if name else "")

    def _made(self, sql: str) -> LocalTable:
        return LocalTable(self.sparkSession, sql)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        if self._columns is None:
            self._columns = [name for name, *_ in self.sparkSession.fetch(f"DESCRIBE {self.sql}")]
        return self._columns

    def alias(self, name: str) -> LocalTable:
        """Name the table."""
        return LocalTable(self.sparkSession, self.sql, name)

    def select(self, *columns: Column | str) -> LocalTable:
        """Return these columns."""
        items = ", ".join(map(_item, columns))
        if self._in_order is not None:  # which only the outermost query is sure to keep
            table, order = self._in_order
            return self._made(f"SELECT {items} FROM {table._from()} {order}")
        return self._made(f"SELECT {items} FROM {self._from()}")

    def where(self, condition: Column | str) -> LocalTable:
        """Keep rows for which a condition holds."""
        text = condition if isinstance(condition, str) else condition.sql
        kept = self._made(f"SELECT * FROM {self._from()} WHERE {text}")
        kept._alias, kept._columns = self._alias, self._columns
        return kept

    def withColumn(self, name: str, column: Column) -> LocalTable:
        """Add a column, or replace one."""
        return self.withColumns({name: column})

    def withColumns(self, columns: Mapping[str, Column]) -> LocalTable:
        """Add or replace columns; their expressions are of the table as it was."""
        names = list(dict.fromkeys([*self.columns, *columns]))
        items = [
            f"{columns[name].sql} AS {quote(name)}" if name in columns else quote(name)
            for name in names
        ]
        made = self._made(f"SELECT {', '.join(items)} FROM {self._from()}")
        made._columns = names
        return made

    def drop(self, *names: str) -> LocalTable:
        """Leave out columns, if they are there."""
        return self.select(*(name for name in self.columns if name not in names))

    def distinct(self) -> LocalTable:
        """Leave out what is there already."""
        return self._made(f"SELECT DISTINCT * FROM {self._from()}")

    def dropDuplicates(self, names: Sequence[str]) -> LocalTable:
        """Keep one row of those that are alike in these columns."""
        same = ", ".join(map(quote, names))
        return self._made(f"SELECT DISTINCT ON ({same}) * FROM {self._from()}")

    def unionByName(self, other: LocalTable) -> LocalTable:
        """Return the rows of both."""
        return self._made(
            f"SELECT * FROM {self._from()} UNION ALL BY NAME SELECT * FROM {other._from()}"
        )

    def join(
        self, other: LocalTable, on: str | Sequence[str] | Column, how: str = "inner"
    ) -> LocalTable:
        """Put rows together that are the same in columns, or for which a condition holds."""
        tables = f"{self._from('this')} {_JOINS[how]} JOIN {other._from('other')}"
        if isinstance(on, Column):
            return self._made(f"SELECT * FROM {tables} ON {on.sql}")
        names = [on] if isinstance(on, str) else on
        return self._made(f"SELECT * FROM {tables} USING ({', '.join(map(quote, names))})")

    def groupBy(self, *columns: Column | str) -> _Groups:
        """Bring rows together that are the same in columns."""
        return _Groups(self, columns)

    def agg(self, *columns: Column) -> LocalTable:
        """Compute aggregates of all rows."""
        return self.select(*columns)

    def orderBy(self, *columns: Column | str) -> LocalTable:
        """Put rows in order."""
        order = f"ORDER BY {', '.join(map(ordered, columns))}"
        made = self._made(f"SELECT * FROM {self._from()} {order}")
        made._in_order = self, order
        return made

    def limit(self, number: int) -> LocalTable:
        """Keep the first rows."""
        if self._in_order is not None:
            return self._made(f"{self.sql} LIMIT {number}")
        return self._made(f"SELECT * FROM {self._from()} LIMIT {number}")

    def persist(self, level: object = None) -> LocalTable:  # noqa: ARG002
        """Compute it once; it is kept until the session ends."""
        self.sql = self.sparkSession.keep(self.sql)
        return self

    def unpersist(self) -> LocalTable:
        """Do nothing: it is gone with the session."""
        return self

    def collect(self) -> list[Row]:
        """Return all rows."""
        names = self.columns
        return [Row.of(names, values) for values in self.sparkSession.fetch(self.sql)]

    def first(self) -> Row | None:
        """Return a row, None if there is none."""
        return next(iter(self.limit(1).collect()), None)

    def isEmpty(self) -> bool:
        """Tell whether it has no row."""
        return self.first() is None

    def count(self) -> int:
        """Return the number of rows."""
        ((number,),) = self.sparkSession.fetch(f"SELECT count(*) FROM {self._from()}")
        return int(number)

    def batches(self) -> Iterator[Any]:
        """Yield all rows as record batches of Arrow."""
        return self.sparkSession.batches(self.sql)


class _Groups:
    def __init__(self, table: LocalTable, by: Sequence[Column | str]) -> None:
        self._table = table
        self._by = by

    def agg(self, *columns: Column) -> LocalTable:
        items = ", ".join(map(_item, (*self._by, *columns)))
        places = ", ".join(str(number) for number in range(1, len(self._by) + 1))
        return self._table._made(f"SELECT {items} FROM {self._table._from()} GROUP BY {places}")

    def count(self) -> LocalTable:
        return self.agg(F.count("*").alias("count"))


def _item(column: Column | str) -> str:
    """Return a column as it stands behind SELECT."""
    of = column_of(column)
    return of.sql if of.name is None else f"{of.sql} AS {quote(of.name)}"
