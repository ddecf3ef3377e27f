"""Chains of changes: does each change of a row begin with what the one before left?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firebird_cdc.journal.replay.audit.findings import findings_of
from firebird_cdc.journal.replay.relational import F, Window, union

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def broken(rows: DataFrame, breaks: list[DataFrame]) -> DataFrame:
    """Return the findings on changes that don't fit the one before."""
    holes = union(breaks) if breaks else None
    return findings_of(
        _broken_chains(rows, holes),
        kind=F.lit("chain"),
        what=F.format_string(
            "%s: event %d of sequence %d (%s) does not fit the row's last known state of"
            " sequence %d; key %s",
            "table",
            "position",
            "sequence",
            "operation",
            "previous_sequence",
            "key",
        ),
    )


def _broken_chains(changes: DataFrame, holes: DataFrame | None) -> DataFrame:
    """Return the changes whose row before does not equal the row as last written.

    Only where both have the same shape, and no hole (see `across`) lies between them.
    """
    row_key = ("database", "epoch", "table", "key")
    order = Window.partitionBy(*row_key).orderBy("sequence", "position")
    former = "last_shape", "last_after", "previous_sequence"
    suspects = (
        changes.where("operation in ('c', 'u', 'd') and key is not null")
        .select(
            "database",
            "epoch",
            "table",
            "shape",
            "sequence",
            "transaction",
            "position",
            "file",
            "operation",
            F.inline(states()),
        )
        .withColumns(
            {
                name: F.lag(column).over(order)
                for name, column in zip(former, ("shape", "after", "sequence"), strict=True)
            }
        )
        .where(F.col("last_shape") == F.col("shape"))
        .where(~F.col("last_after").eqNullSafe(F.col("before")))
        .alias("suspect")
    )
    if holes is None:
        return suspects
    hole = holes.alias("hole")
    explained = (
        (F.col("hole.database") == F.col("suspect.database"))
        & (F.col("hole.epoch") == F.col("suspect.epoch"))
        & (F.col("hole.first") <= F.col("suspect.sequence"))
        & (F.col("hole.last") >= F.col("suspect.previous_sequence"))
        & (F.col("hole.table").isNull() | (F.col("hole.table") == F.col("suspect.table")))
    )
    return suspects.join(hole, explained, "left_anti")


def across(holes: DataFrame, whose: Column | None = None) -> DataFrame:
    """Return (database, epoch, first, last, table) of numbers where the history is known not to be
    whole: over these two changes of a row need not fit. ``table`` null: for all tables."""
    table = F.lit(None) if whose is None else whose
    return holes.select("database", "epoch", "first", "last", table.cast("string").alias("table"))


def at(table: DataFrame, whose: Column | None = None) -> DataFrame:
    """Return the numbers of TABLE's rows as `broken` wants them; WHOSE: the table."""
    sequence = F.col("sequence")
    return across(table.withColumns({"first": sequence, "last": sequence}), whose)


def states() -> Column:
    """Return, for a change, what it makes of each key: an array of (key, before, after).

    An update that changes the key is the end of the row under the old key and the beginning
    of one under the new.
    """
    nothing = F.lit(None).cast("string")
    kept = F.struct(F.col("key").alias("key"), "before", "after")
    ended = F.struct(F.col("old_key").alias("key"), "before", nothing.alias("after"))
    begun = F.struct(F.col("key").alias("key"), nothing.alias("before"), "after")
    return F.when(F.col("old_key").isNull(), F.array(kept)).otherwise(F.array(ended, begun))
