"""Points of a history that a user names: a sequence number, a time, or a transaction.

`last_numbers` turns a point into the last journal that belongs to it, per database, and `up_to`
keeps what lies before that. Both work on distributed tables (DataFrames of Spark).
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.replay.relational import F
from firebird_cdc.journal.replay.source.bounds import microseconds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NUMBER = re.compile(r"(?:(\d+):)?(\d+)")


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a history, which all journals up to it belong to.

    ``kind`` sequence: up to journal ``value`` of ``epoch``; time: all journals before the first
    one, in the order of their numbers, that was committed after ``value`` (microseconds since 1970,
    UTC); transaction: up to the journal of transaction ``value`` of ``epoch``.
    ``epoch`` None: the last one of each database; of a transaction the only one that has it.
    """

    kind: Literal["sequence", "time", "transaction"]
    value: int
    epoch: int | None = None

    def __str__(self) -> str:
        if self.kind == "time":
            return datetime.fromtimestamp(self.value / 1_000_000, UTC).isoformat()
        number = str(self.value) if self.epoch is None else f"{self.epoch}:{self.value}"
        return f"{self.kind} {number}"


def parse_sequence(text: str) -> Point:
    """Read ``SEQUENCE`` or ``EPOCH:SEQUENCE``; an argparse type."""
    return _parse_number(text, "sequence")


def parse_transaction(text: str) -> Point:
    """Read ``TRANSACTION`` or ``EPOCH:TRANSACTION``; an argparse type."""
    return _parse_number(text, "transaction")


def _parse_number(text: str, kind: Literal["sequence", "transaction"]) -> Point:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no {kind.upper()} or EPOCH:{kind.upper()}")
    epoch, number = match.groups()
    return Point(kind, int(number), None if epoch is None else int(epoch))


def parse_time(text: str) -> Point:
    """Read a time as ISO 8601 has it, without an offset in UTC; an argparse type."""
    try:
        return Point("time", microseconds_of(text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time such as 2024-02-29T21:00:00 (UTC) or 2024-02-29T23:00:00+02:00"
        ) from None


def add_point_options(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Add ``--until``, ``--at`` and ``--transaction``, one of which sets ``arguments.point``."""
    point = parser.add_mutually_exclusive_group(required=required)
    point.add_argument(
        "--until",
        dest="point",
        metavar="[EPOCH:]SEQUENCE",
        type=parse_sequence,
        help="up to this journal; without EPOCH: of each database's last one",
    )
    point.add_argument(
        "--at",
        dest="point",
        metavar="TIME",
        type=parse_time,
        help="up to this time: all journals before the first one, in the order of their numbers,"
        " that was committed later (ISO 8601; UTC without an offset)",
    )
    point.add_argument(
        "--transaction",
        dest="point",
        metavar="[EPOCH:]NUMBER",
        type=parse_transaction,
        help="up to the journal of this transaction of Firebird, that included",
    )


def last_numbers(files: DataFrame, point: Point) -> DataFrame:
    """Return (database, last_epoch, last_sequence): the last journal of each database up to POINT.

    files: what ``firebird_journal_files`` reads. A database of which nothing lies before POINT has
    no row. Epoch and sequence of a sequence point are those asked for, whether they exist or not.
    Raises ReplayError if no journal has the transaction, or those of several databases or epochs.
    """
    known = files.where("sequence is not null and database is not null")
    if point.kind == "transaction":
        return _of_transaction(known, point)
    number = F.struct("epoch", "sequence")
    if point.kind == "sequence":
        epoch = F.max("epoch") if point.epoch is None else F.lit(point.epoch)
        return known.groupBy("database").agg(
            epoch.cast("bigint").alias("last_epoch"),
            F.lit(point.value).cast("bigint").alias("last_sequence"),
        )
    later = known.where(F.unix_micros("commit_time") > point.value)
    borders = later.groupBy("database").agg(F.min(number).alias("border"))
    return _named(
        known.join(F.broadcast(borders), "database", "left")
        .where(F.col("border").isNull() | (number < F.col("border")))
        .groupBy("database")
        .agg(F.max(number).alias("number"))
    )


def _of_transaction(known: DataFrame, point: Point) -> DataFrame:
    found = known.where(F.col("transaction") == point.value)
    if point.epoch is not None:
        found = found.where(F.col("epoch") == point.epoch)
    number = F.max(F.struct("epoch", "sequence")).alias("number")
    numbers = _named(found.groupBy("database", "epoch").agg(number))
    first = numbers.orderBy("database", "last_epoch").limit(2).collect()
    if not first:
        raise ReplayError(
            f"no journal is of {point}: it was read only or rolled back, changed no captured table,"
            " or lies outside the folders that were read"
        )
    if len(first) > 1:
        if first[0]["database"] == first[1]["database"]:
            epochs = " and ".join(str(row["last_epoch"]) for row in first)
            raise ReplayError(
                f"{first[0]['database']} has a {point} in epochs {epochs}:"
                " say which by EPOCH:NUMBER"
            )
        both = " and ".join(row["database"] for row in first)
        raise ReplayError(f"{both} both have a {point}: say which by --database")
    return numbers


def _named(numbers: DataFrame) -> DataFrame:
    return numbers.select(
        "database",
        F.col("number.epoch").alias("last_epoch"),
        F.col("number.sequence").alias("last_sequence"),
    )


def up_to(table: DataFrame, numbers: DataFrame) -> DataFrame:
    """Keep the rows of TABLE that lie at or before NUMBERS, as `last_numbers` returns them.

    TABLE has ``database``, ``epoch`` and ``sequence``. Rows that have no number
    stay: nobody knows whether they belong.
    """
    here = F.struct("epoch", "sequence")
    last = F.struct(F.col("last_epoch").alias("epoch"), F.col("last_sequence").alias("sequence"))
    return (
        table.join(F.broadcast(numbers), "database", "left")
        .where(F.col("sequence").isNull() | (F.col("last_epoch").isNotNull() & (here <= last)))
        .drop("last_epoch", "last_sequence")
    )
