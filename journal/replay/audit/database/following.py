"""Rows of journals under the names that their columns have in the database now.

A column that was dropped is another one than a later one of its name, and one that was renamed is
the same: `evolution` tells, as for the state rebuild. So the texts of rows and keys
(`firebird_cdc.journal.types.canonical`) get the names of now, in the order of now, without columns
that are gone and those whose texts do not compare with what the database gives.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from firebird_cdc.journal.format import Column, Storage, Table
from firebird_cdc.journal.format.charsets import NONE
from firebird_cdc.journal.replay.source.changes import table_shape
from firebird_cdc.journal.replay.state.evolution import (
    Shape,
    Statement,
    TablePlan,
    plan_tables,
)

Names = dict[str, str]
"""The name that a column has now, by that in a row, in the order of now."""

_TEXT_BLOB = 1  # RDB$FIELD_SUB_TYPE
_INTEGERS = (Storage.SMALLINT, Storage.INTEGER, Storage.BIGINT)
_TEXTS = ("key", "old_key", "before", "after")


@dataclass(frozen=True)
class Following:
    """Evolution of the tables of one database in one epoch. A small value that pickles.

    ``since``: by table, sequence and number of the event up to which rows are of an earlier table
    of the name. ``plans``: of tables that are there, in the form of now. ``names``: by table,
    digest of a row's shape and version of the plan; what is absent is as it is now.
    """

    epoch: int
    since: Mapping[str, tuple[int, int]]
    plans: Mapping[str, TablePlan]
    names: Mapping[tuple[str, str, int], Names]

    @classmethod
    def of(
        cls,
        epoch: int,
        shapes: Sequence[Shape],
        statements: Sequence[Statement],
        stored: Mapping[str, Table],
    ) -> Following:
        """Say what SHAPES and STATEMENTS, of one database and EPOCH, make of the STORED tables."""
        since, plans, names = {}, {}, {}
        by_table: dict[str, list[Shape]] = {}
        for shape in shapes:
            by_table.setdefault(shape.table.name, []).append(shape)
        for plan in plan_tables(shapes, statements):
            if plan.since is not None:
                since[plan.name] = plan.since[1:]
            table = stored.get(plan.name)
            if table is None or not plan.versions:
                continue
            columns = tuple(table.columns[index] for index in table.order)
            last = plan.versions[-1].numbers
            numbers = tuple(last.get(column.name, -1) for column in columns)
            plan = plans[plan.name] = replace(plan, columns=columns, numbers=numbers)
            for shape in by_table.get(plan.name, ()):
                for version in range(len(plan.versions)):
                    found = _names(plan, shape.table, version)
                    if found is not None:
                        names[plan.name, table_shape(shape.table), version] = found
        changed = {name for name, _, _ in names}
        return cls(epoch, since, {n: plan for n, plan in plans.items() if n in changed}, names)

    def is_of_before(self, table: str, place: tuple[int, int]) -> bool:
        """Tell whether what stands at PLACE, sequence and event, is of an earlier TABLE."""
        since = self.since.get(table)
        return since is not None and place <= since

    def names_between(
        self, table: str, digest: str, first: tuple[int, int], last: tuple[int, int]
    ) -> Iterator[Names | None]:
        """Yield what rows of a shape, written between FIRST and LAST, are to be renamed by; None:
        they are as they are now."""
        plan = self.plans.get(table)
        if plan is None:
            yield None
            return
        low, high = (plan.version_at((self.epoch, *place))[0] for place in (first, last))
        for version in range(low, high + 1):
            yield self.names.get((table, digest, version))

    def rows(self, changes: DataFrame) -> DataFrame:
        """Return CHANGES of rows, as ``firebird_journal`` gives them, that are of the tables of
        now, with texts under the names of now."""
        if self.since:
            listed = [(table, *place) for table, place in self.since.items()]
            dropped = changes.sparkSession.createDataFrame(
                listed, "`table` string, `drop_sequence` bigint, `drop_position` bigint"
            )
            place = F.struct("sequence", "position") > F.struct("drop_sequence", "drop_position")
            changes = (
                changes.join(F.broadcast(dropped), "table", "left")
                .where(F.col("drop_sequence").isNull() | place)
                .drop("drop_sequence", "drop_position")
            )
        if not self.plans:
            return changes
        renamed = F.udf(
            self._renamed, ", ".join(f"`{name}` string" for name in _TEXTS), useArrow=False
        )
        is_other = F.col("table").isin(*self.plans)
        others = (
            changes.where(is_other)
            .withColumn("texts", renamed("table", "shape", "sequence", "position", *_TEXTS))
            .withColumns({name: F.col(f"texts.{name}") for name in _TEXTS})
            .drop("texts")
        )
        return changes.where(~is_other).unionByName(others)

    def _renamed(
        self, table: str, shape: str, sequence: int, position: int, *texts: str | None
    ) -> tuple[str | None, ...]:
        version, _ = self.plans[table].version_at((self.epoch, sequence, position))
        names = self.names.get((table, shape, version))
        if names is None:
            return texts
        return tuple(
            _rename(text, names, is_key=name.endswith("key"))
            for name, text in zip(_TEXTS, texts, strict=True)
        )


def _names(plan: TablePlan, table: Table, version: int) -> Names | None:
    """Return how rows of TABLE are renamed under VERSION; None: they are as they are now."""
    found: Names = {}
    for source, column in zip(plan.sources(table, version), plan.columns, strict=True):
        if source.column_index is not None:
            of = table.columns[source.column_index]
            if _form(of) == _form(column):
                found[of.name] = column.name
    written = [table.columns[index].name for index in table.order]
    return None if list(found) == list(found.values()) == written else found


def _rename(text: str | None, names: Names, *, is_key: bool) -> str | None:
    if text is None:
        return None
    values: dict[str, Any] = json.loads(text)
    order = [name for name in values if name in names] if is_key else names  # keys have their own
    renamed = {names[name]: values[name] for name in order}
    return json.dumps(renamed, ensure_ascii=False, separators=(",", ":"))


def _form(column: Column) -> tuple[object, ...]:
    """Return what makes the texts of two columns comparable: equal values have equal texts."""
    storage, scale = column.storage, column.scale
    of_none = column.charset_id == NONE
    if storage in _INTEGERS or storage is Storage.INT128:
        plain = storage in _INTEGERS and not scale and not column.sub_type
        return ("integer",) if plain else ("decimal", scale)
    if storage in (Storage.TEXT, Storage.PADDED_TEXT):
        return storage, of_none
    if storage is Storage.BLOB:
        return storage, column.sub_type == _TEXT_BLOB and ("text", of_none)
    return storage, scale
