"""Conditions of a query that the data source applies itself, so that it reads less.

Spark hands them over as ``Filter`` objects (PySpark 4.1, ``DataSourceReader.pushFilters``) and
applies them to the rows once more, so leaving a row in is never wrong. What they say of columns
that are the same for a whole journal spares its content; what they say of a segment's range spares
the segment.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from firebird_cdc.journal.folder.segments import SEGMENT_NAME, database_digest
from firebird_cdc.journal.format.model import ROW_OPERATIONS
from firebird_cdc.journal.replay.source.bounds import microseconds

if TYPE_CHECKING:
    from pyspark.sql import datasource as pushed

_COLUMNS = frozenset(
    {"database", "epoch", "sequence", "journal", "transaction", "commit_time", "table", "operation"}
)
_COMPARISONS = {
    "EqualTo": "eq",
    "EqualNullSafe": "eq",
    "GreaterThan": "gt",
    "GreaterThanOrEqual": "ge",
    "LessThan": "lt",
    "LessThanOrEqual": "le",
}
"""Names of Spark's classes, and of the operators."""
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    **{name: getattr(operator, name) for name in _COMPARISONS.values()},
    "in": lambda value, several: value in several,
}


@dataclass(frozen=True)
class Condition:
    """COLUMN compared to VALUE; ``comparison``: a key of `_OPERATORS`. Times in microseconds."""

    column: str
    comparison: str
    value: Any

    def holds(self, value: Any) -> bool:
        """Tell whether a row with VALUE is wanted; null compares to nothing, as in SQL."""
        return value is not None and _OPERATORS[self.comparison](value, self.value)

    def may_hold_within(self, first: int, last: int) -> bool:
        """Tell whether the condition holds for at least one number from FIRST to LAST."""
        if self.comparison == "in":
            return any(first <= value <= last for value in self.value)
        if self.comparison == "eq":
            return bool(first <= self.value <= last)
        return self.holds(last if self.comparison in ("gt", "ge") else first)


def read_condition(condition: pushed.Filter) -> Condition | None:
    """Return what CONDITION says, None if it is of no use before the rows are there."""
    column = ".".join(getattr(condition, "attribute", ()))
    if column not in _COLUMNS:
        return None
    kind = type(condition).__name__
    if kind == "In":
        values = tuple(
            _plain(value) for value in getattr(condition, "value", ()) if value is not None
        )
        return Condition(column, "in", values)
    comparison = _COMPARISONS.get(kind)
    value = getattr(condition, "value", None)
    if comparison is None or value is None:
        return None
    return Condition(column, comparison, _plain(value))


def _plain(value: Any) -> Any:
    return microseconds(value) if isinstance(value, datetime) else value


@dataclass(frozen=True)
class Wanted:
    """All conditions of a query; a row is wanted if all hold."""

    conditions: tuple[Condition, ...] = ()

    def and_also(self, conditions: Iterable[Condition]) -> Wanted:
        """Return these conditions and CONDITIONS."""
        return Wanted((*self.conditions, *conditions))

    def admits(self, **known: Any) -> bool:
        """Tell whether a row with the columns KNOWN can be wanted."""
        return all(
            condition.holds(known[condition.column])
            for condition in self.conditions
            if condition.column in known
        )

    def admits_segment(self, name: str) -> bool:
        """Tell whether a journal in the segment NAME can be wanted, by what the name tells."""
        facts = SEGMENT_NAME.fullmatch(name)
        if facts is None:
            return True
        digest, epoch, first, last = facts.groups()
        for condition in self.conditions:
            if condition.column == "sequence":
                fits = condition.may_hold_within(int(first), int(last))
            elif condition.column == "epoch":
                fits = condition.holds(int(epoch))
            elif condition.column == "database" and condition.comparison in ("eq", "in"):
                one = condition.comparison == "eq"
                paths = (condition.value,) if one else condition.value
                fits = any(database_digest(path) == digest for path in paths)
            else:
                continue
            if not fits:
                return False
        return True

    @property
    def tells_database(self) -> bool:
        """Tell whether a condition is on the database's path, which stands in the first block."""
        return any(condition.column == "database" for condition in self.conditions)

    @property
    def table(self) -> Callable[[str], bool] | None:
        """Function that tells by a table's name whether its rows are wanted; None: all are."""
        if any(condition.column == "table" for condition in self.conditions):
            return lambda name: self.admits(table=name)
        return None

    @property
    def operations(self) -> frozenset[str]:
        """Operations on rows that are wanted."""
        return frozenset(name for name in ROW_OPERATIONS if self.admits(operation=name))


EVERYTHING = Wanted()
