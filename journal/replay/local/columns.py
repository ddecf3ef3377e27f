"""Columns of local tables: PySpark's words, made into the SQL of DuckDB.

Only what replay says is here, under PySpark's names and with its meaning: a text stands for a
column where it is an argument of a function, and for itself where it is compared or is a result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

KINDS = {
    "string": "VARCHAR",
    "binary": "BLOB",
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "timestamp": "TIMESTAMP",
}
"""Types of DuckDB by Spark's names. All times are UTC, so they need no zone."""

_CONVERSION = re.compile(r"%([sd])")


class Column:
    """An expression. ``sql``: its text; ``name``: that of the column it becomes, None: any."""

    def __init__(self, sql: str, name: str | None = None, *, over: str | None = None) -> None:
        self.sql = sql
        self.name = name
        self._over = over  # what to put before OVER, if it differs from the text; {} there

    def alias(self, name: str) -> Column:
        """Give it a name."""
        return Column(self.sql, name)

    def cast(self, kind: str) -> Column:
        """Convert it to a type of `KINDS`."""
        return Column(f"CAST({self.sql} AS {KINDS[kind]})", self.name)

    def over(self, window: WindowSpec) -> Column:
        """Compute an aggregate, or a function of windows, in WINDOW."""
        return Column((self._over or f"{self.sql} OVER {{}}").format(f"({window.sql})"))

    def when(self, condition: Column, value: Any) -> Column:
        """Add a case to what `when` has begun."""
        return _Cases([*self._cases(), (condition, value)])

    def otherwise(self, value: Any) -> Column:
        """End what `when` has begun."""
        return Column(_case(self._cases(), value))

    def _cases(self) -> list[tuple[Column, Any]]:
        raise TypeError("only behind when()")

    def isNull(self) -> Column:
        """Tell whether there is no value."""
        return Column(f"({self.sql} IS NULL)")

    def isNotNull(self) -> Column:
        """Tell whether there is a value."""
        return Column(f"({self.sql} IS NOT NULL)")

    def isin(self, *values: Any) -> Column:
        """Tell whether it is one of VALUES."""
        return Column(f"({self.sql} IN ({', '.join(map(literal, values))}))")

    def between(self, first: Any, last: Any) -> Column:
        """Tell whether it is in a range, both ends included."""
        return Column(f"({self.sql} BETWEEN {literal(first)} AND {literal(last)})")

    def eqNullSafe(self, other: Any) -> Column:
        """Compare it, null being equal to null."""
        return Column(f"({self.sql} IS NOT DISTINCT FROM {literal(other)})")

    def contains(self, text: str) -> Column:
        """Tell whether TEXT is in it."""
        return Column(f"contains({self.sql}, {literal(text)})")

    def startswith(self, text: str) -> Column:
        """Tell whether it begins with TEXT."""
        return Column(f"starts_with({self.sql}, {literal(text)})")

    def endswith(self, text: str) -> Column:
        """Tell whether it ends with TEXT."""
        return Column(f"suffix({self.sql}, {literal(text)})")

    def rlike(self, pattern: str) -> Column:
        """Tell whether PATTERN matches somewhere in it."""
        return Column(f"regexp_matches({self.sql}, {literal(pattern)})")

    def __getitem__(self, key: Any) -> Column:
        if isinstance(key, Column):
            return Column(f"{self.sql}[{key.sql}]")
        return Column(f"struct_extract({self.sql}, {literal(key)})", key)

    def __invert__(self) -> Column:
        return Column(f"(NOT {self.sql})")

    def __eq__(self, other: object) -> Column:  # type: ignore[override]
        return self._with("=", other)

    def __ne__(self, other: object) -> Column:  # type: ignore[override]
        return self._with("<>", other)

    __hash__ = None  # type: ignore[assignment]

    def _with(self, operator: str, other: object) -> Column:
        return Column(f"({self.sql} {operator} {literal(other)})")

    def __lt__(self, other: object) -> Column:
        return self._with("<", other)

    def __le__(self, other: object) -> Column:
        return self._with("<=", other)

    def __gt__(self, other: object) -> Column:
        return self._with(">", other)

    def __ge__(self, other: object) -> Column:
        return self._with(">=", other)

    def __and__(self, other: object) -> Column:
        return self._with("AND", other)

    def __or__(self, other: object) -> Column:
        return self._with("OR", other)

    def __add__(self, other: object) -> Column:
        return self._with("+", other)

    def __sub__(self, other: object) -> Column:
        return self._with("-", other)

    def __rsub__(self, other: object) -> Column:
        return Column(f"({literal(other)} - {self.sql})")

    def __truediv__(self, other: object) -> Column:
        return self._with("/", other)


class _Cases(Column):
    def __init__(self, cases: list[tuple[Column, Any]]) -> None:
        super().__init__(_case(cases, None))
        self._given = cases

    def _cases(self) -> list[tuple[Column, Any]]:
        return self._given


def _case(cases: Sequence[tuple[Column, Any]], otherwise: Any) -> str:
    parts = [f"WHEN {condition.sql} THEN {literal(value)}" for condition, value in cases]
    return f"(CASE {' '.join(parts)} ELSE {literal(otherwise)} END)"


class WindowSpec:
    """Rows that a function of windows looks at."""

    def __init__(self, parts: Sequence[str], order: Sequence[str]) -> None:
        self._parts = parts
        self._order = order

    def orderBy(self, *columns: Column | str) -> WindowSpec:
        """Put them in order."""
        return WindowSpec(self._parts, [ordered(column) for column in columns])

    @property
    def sql(self) -> str:
        """Return the text in the parentheses behind OVER."""
        order = f" ORDER BY {', '.join(self._order)}" if self._order else ""
        return f"PARTITION BY {', '.join(self._parts)}{order}"


class Window:
    """Maker of windows."""

    @staticmethod
    def partitionBy(*columns: Column | str) -> WindowSpec:
        """Divide the rows."""
        return WindowSpec([column_of(column).sql for column in columns], [])


def quote(name: str) -> str:
    """Return NAME as an identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: Any) -> str:
    """Return a value as it stands in SQL; a column is itself."""
    if isinstance(value, Column):
        return value.sql
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return f"({value})" if value < 0 else str(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    raise TypeError(f"no literal: {value!r}")


def ordered(column: Column | str) -> str:
    """Return what to sort by: nulls come first, as with Spark."""
    return f"{column_of(column).sql} ASC NULLS FIRST"


def column_of(column: Column | str) -> Column:
    """Return the column that a text names."""
    return col(column) if isinstance(column, str) else column


def col(name: str) -> Column:
    """Name a column, ``alias.column``, ``struct.field`` or ``struct.*``."""
    parts = [part.strip("`") for part in name.split(".")]
    texts = [part if part == "*" else quote(part) for part in parts]
    return Column(".".join(texts), None if parts[-1] == "*" else parts[-1])


def lit(value: Any) -> Column:
    """Make a column of a value."""
    return value if isinstance(value, Column) else Column(literal(value))


def when(condition: Column, value: Any) -> Column:
    """Begin a choice: null, unless a case that follows or ``otherwise`` says something else."""
    return _Cases([(condition, value)])


def _call(name: str) -> Callable[..., Column]:
    def call(*columns: Column | str) -> Column:
        return Column(f"{name}({', '.join(column_of(column).sql for column in columns)})")

    return call


coalesce = _call("coalesce")
greatest = _call("greatest")
least = _call("least")
length = _call("length")
bin = _call("bin")
unix_micros = _call("epoch_us")
max = _call("max")
min = _call("min")
lag = _call("lag")
row_number = _call("row_number")


def floor(column: Column | str) -> Column:
    """Round down to a whole number."""
    return Column(f"CAST(floor({column_of(column).sql}) AS BIGINT)")


def timestamp_micros(column: Column | str) -> Column:
    """Make a time of microseconds since 1970."""
    return Column(f"make_timestamp(CAST({column_of(column).sql} AS BIGINT))")


def sum(column: Column | str) -> Column:
    """Add up; DuckDB's own sum is of a larger type."""
    inner = f"sum({column_of(column).sql})"
    return Column(f"CAST({inner} AS BIGINT)", over=f"CAST({inner} OVER {{}} AS BIGINT)")


def count(column: Column | str) -> Column:
    """Count rows, or values."""
    return Column("count(*)" if column == "*" else f"count({column_of(column).sql})")


def count_distinct(column: Column | str) -> Column:
    """Count different values."""
    return Column(f"count(DISTINCT {column_of(column).sql})")


def count_if(condition: Column) -> Column:
    """Count rows for which CONDITION holds."""
    return Column(f"count(*) FILTER (WHERE {condition.sql})")


def concat(*columns: Column | str) -> Column:
    """Put texts one behind the other; null if one is."""
    return Column(f"({' || '.join(column_of(column).sql for column in columns)})")


def format_string(pattern: str, *columns: Column | str) -> Column:
    """Fill PATTERN, whose places are %s and %d; what is null reads ``null``."""
    values = iter(columns)
    parts = []
    for index, piece in enumerate(_CONVERSION.split(pattern)):
        if index % 2 == 0:
            parts.append(literal(piece))
        else:
            text = f"CAST({column_of(next(values)).sql} AS VARCHAR)"
            parts.append(f"coalesce({text}, 'null')")
    return Column(f"({' || '.join(parts)})")


def regexp_replace(column: Column | str, pattern: str, replacement: str) -> Column:
    """Replace all that PATTERN matches; ``$1`` in REPLACEMENT is its first group."""
    by = literal(re.sub(r"\$(\d)", r"\\\1", replacement))
    return Column(f"regexp_replace({column_of(column).sql}, {literal(pattern)}, {by}, 'g')")


def regexp_extract(column: Column | str, pattern: str, group: int) -> Column:
    """Return a group of the first match of PATTERN, empty if there is none."""
    return Column(f"regexp_extract({column_of(column).sql}, {literal(pattern)}, {group})")


def struct(*columns: Column | str) -> Column:
    """Put columns together; they are compared in their order."""
    fields = [column_of(column) for column in columns]
    return Column(f"{{{', '.join(f'{literal(each.name)}: {each.sql}' for each in fields)}}}")


def array(*columns: Column) -> Column:
    """Make a list."""
    return Column(f"[{', '.join(column.sql for column in columns)}]")


def inline(structs: Column) -> Column:
    """Make a row of each struct of a list, and columns of its fields."""
    return Column(f"unnest({structs.sql}, recursive := true)")


def create_map(*columns: Column) -> Column:
    """Make a map of keys and values in turn; it gives null for other keys."""
    keys = ", ".join(column.sql for column in columns[::2])
    values = ", ".join(column.sql for column in columns[1::2])
    return Column(f"map([{keys}], [{values}])")


def broadcast(table: Any) -> Any:
    """Return TABLE: nothing is distributed here."""
    return table
