"""Attribution of holes in the numbers to journals that are there but too damaged to say theirs.

Such a journal would be reported twice: as damaged, and its number as missing. What is left of it
(its database, its epoch, the time of its commit, the segment that it lies in) tells which hole it
is from; of one that says nothing at all, any hole that nothing else explains will do.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from firebird_cdc.journal.folder.segments import SEGMENT_NAME, database_digest
from firebird_cdc.journal.replay.relational import F, Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SEGMENT = f"{SEGMENT_NAME.pattern}(/|$)"  # somewhere in a path

CLOCKS_DIFFER_US = 10_000_000
"""Numbers are given in the order of commits, but clocks are not read in that order; a guess."""


def _folder() -> Column:
    """The folder, or the segment, that a file lies in."""
    return F.regexp_replace("file", r"/[^/]*$", "")


def _is_segment() -> Column:
    """Return the condition that a file is a whole segment of the archive."""
    return F.col("file").rlike(f"{SEGMENT_NAME.pattern}$")


def unplaced(files: DataFrame) -> DataFrame:
    """Keep the damaged journals whose place in the history is not known."""
    return files.where(
        F.col("problem").isin("damaged", "torn")
        & (F.col("sequence").isNull() | F.col("database").isNull())
        & (F.col("journal").isNotNull() | _is_segment())
    )


def claims(
    holes: DataFrame,
    lost: DataFrame,
    files: DataFrame,
    databases: Iterable[str],
    *,
    is_whole: bool,
) -> DataFrame:
    """Return (file, database, epoch, first, last, numbers): the hole that each of LOST is from.

    holes: as `history.holes` gives them; lost: as `unplaced` does; files: all that were read, with
    journals of DATABASES; numbers: how many numbers of the hole the file explains; is_whole: HOLES
    are those of the whole history, so that one that says nothing can be from nowhere else. A file
    that explains none has no row.
    """
    remains = _remains(lost, databases)
    near = _near(holes.alias("hole"), remains)
    whole = near.where("is_whole").withColumn(
        "numbers",
        F.least("last", "last_packed") - F.greatest("first", "first_packed") + 1,
    )
    by_file = Window.partitionBy("file").orderBy("far_us", "database", "epoch", "first")
    single = (
        near.where("not is_whole")
        .withColumn("choice", F.row_number().over(by_file))
        .where("choice = 1")
        .withColumn("numbers", F.lit(1).cast("bigint"))
    )
    columns = ("file", "database", "epoch", "first", "last", "numbers")
    folders = (
        files.where(F.col("database").isNotNull())
        .select("database", _folder().alias("folder"))
        .distinct()
    )
    known = whole.select(*columns).unionByName(single.select(*columns))
    if not is_whole:
        return known
    silent = _any(holes, known, remains.where("says_nothing"), folders)
    return known.unionByName(silent.select(*columns))


def _remains(lost: DataFrame, databases: Iterable[str]) -> DataFrame:
    """Return what is known of each of LOST, in columns whose names begin with ``own_``."""
    packed = F.regexp_extract("file", _SEGMENT, 1)
    names: list[Column] = []
    for database in databases:
        names += [F.lit(database_digest(database)), F.lit(database)]
    whose = F.create_map(*names)[packed] if names else F.lit(None).cast("string")
    number = [
        F.when(packed != "", F.regexp_extract("file", _SEGMENT, group).cast("bigint"))
        for group in (2, 3, 4)
    ]
    known = lost.select(
        "file",
        F.coalesce("database", whose).alias("own_database"),
        F.coalesce("epoch", number[0]).alias("own_epoch"),
        F.col("sequence").alias("own_sequence"),
        F.unix_micros("commit_time").alias("own_us"),
        number[1].alias("first_packed"),
        number[2].alias("last_packed"),
        _is_segment().alias("is_whole"),
    )
    facts = ("own_database", "own_epoch", "own_sequence", "own_us")
    return known.withColumn(
        "says_nothing", F.coalesce(*(F.col(n).cast("string") for n in facts)).isNull()
    )


def _near(hole: DataFrame, remains: DataFrame) -> DataFrame:
    """Return the holes that each file may be from. ``far_us``: how far its time of commit lies
    outside the hole, which it does if clocks differ; 0: within, or nothing is known."""

    def fits(own: str, other: Column) -> Column:
        return F.col(own).isNull() | other

    own, before, after = F.col("own_us"), F.col("before_us"), F.col("after_us")
    # greatest() passes over what is not known.
    far_us = F.greatest(F.lit(0), before - own, own - after)
    first, last = F.col("hole.first"), F.col("hole.last")
    possible = reduce(
        and_,
        [
            ~F.col("says_nothing"),
            fits("own_database", F.col("own_database") == F.col("hole.database")),
            fits("own_epoch", F.col("own_epoch") == F.col("hole.epoch")),
            fits("own_sequence", F.col("own_sequence").between(first, last)),
            fits("first_packed", (F.col("first_packed") <= last) & (F.col("last_packed") >= first)),
            far_us <= CLOCKS_DIFFER_US,
        ],
    )
    return remains.join(hole, possible).withColumn("far_us", far_us)


def _any(holes: DataFrame, known: DataFrame, silent: DataFrame, folders: DataFrame) -> DataFrame:
    """Give each file that says nothing one of the numbers that are left, of a database that has
    journals in the same folder."""
    place = ("database", "epoch", "first", "last")
    taken = known.groupBy(*place).agg(F.sum("numbers").alias("taken"))
    in_order = Window.partitionBy("folder").orderBy("database", "epoch", "first")
    left = (
        holes.select(*place)
        .join(taken, list(place), "left")
        .withColumn("free", F.col("last") - F.col("first") + 1 - F.coalesce("taken", F.lit(0)))
        .where("free > 0")
        .join(folders, "database")
        .withColumn("up_to", F.sum("free").over(in_order))
        .alias("left")
    )
    turn = F.row_number().over(Window.partitionBy("folder").orderBy("file"))
    numbered = (
        silent.select("file", _folder().alias("folder")).withColumn("turn", turn).alias("silent")
    )
    here = (
        (F.col("silent.folder") == F.col("left.folder"))
        & (F.col("turn") <= F.col("up_to"))
        & (F.col("turn") > F.col("up_to") - F.col("free"))
    )
    return numbered.join(left, here).withColumn("numbers", F.lit(1).cast("bigint"))
