"""Facts that the driver needs on journals whose rows are folded: spans, shapes, statements.

Tasks read them (`survey`); here they are brought together.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from firebird_cdc.journal.folder.segments import SEGMENT_NAME
from firebird_cdc.journal.replay.relational import F, Window
from firebird_cdc.journal.replay.source.bounds import HistoryPoint
from firebird_cdc.journal.replay.source.history import Span
from firebird_cdc.journal.replay.state.evolution import Shape, Statement
from firebird_cdc.journal.replay.state.survey import SPAN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Number = tuple[int, int]
"""Epoch and sequence."""


class Damaged(NamedTuple):
    """A journal, or a whole segment, that can't be read: why, and what is certain of it."""

    sentence: str
    file: str
    database: str | None
    number: Number | None

    @property
    def packed(self) -> re.Match[str] | None:
        """The name of the segment that it is or lies in."""
        parts = self.file.split("/")[-2:]
        return next(filter(None, map(SEGMENT_NAME.fullmatch, parts)), None)


@dataclass(frozen=True, slots=True)
class Outline:
    """Facts that the driver needs on the journals: one span for each database and epoch, every
    shape of every table once, and every DDL statement. ``bytes``: of all of them, but for what
    small transactions repeat."""

    spans: list[Span]
    shapes: list[Shape]
    statements: list[Statement]
    vanished: set[str]
    damaged: list[Damaged]
    is_doubled: bool
    lacks_numbers: bool
    bytes: int

    @classmethod
    def of(cls, survey: DataFrame) -> Outline:
        """Read SURVEY in one job."""
        point = F.struct("epoch", "sequence", "position")
        is_span, is_ddl = (F.col("kind") == kind for kind in ("span", "ddl"))
        # Of spans in the order of their numbers two neighbours overlap if any do.
        part = F.when(is_span, F.floor(F.col("sequence") / SPAN))
        near = Window.partitionBy("kind", "database", "epoch", part).orderBy("sequence", "last")
        found = (
            survey.withColumn("before", F.lag("last").over(near))
            .groupBy(
                "kind",
                "database",
                "content",
                F.when(is_span | is_ddl, F.col("epoch")).alias("epoch"),
                F.when(is_ddl, point).alias("at"),
            )
            .agg(
                F.sum(F.col("last") - F.col("sequence") + 1).alias("journals"),
                F.max(F.col("sequence") <= F.col("before")).alias("is_doubled"),
                F.sum("events").alias("events"),
                F.sum("bytes").alias("bytes"),
                F.min(point).alias("first"),
                F.max(point).alias("last"),
                F.max("last").alias("last_number"),
                F.min("commit_us").alias("first_us"),
                F.max("last_us").alias("last_us"),
                F.min("file").alias("file"),
            )
            .collect()
        )
        spans, shapes, statements, vanished, damaged = [], [], [], set(), []
        is_doubled = lacks_numbers = False
        size = 0
        for row in found:
            kind = row["kind"]
            if kind == "damaged":
                epoch, sequence, _ = row["first"]
                number = None if sequence is None else (epoch, sequence)
                sentence = bytes(row["content"]).decode()
                damaged.append(Damaged(sentence, row["file"], row["database"], number))
            elif kind == "missing":
                vanished.add(bytes(row["content"]).decode())
            elif kind == "ddl":
                change = pickle.loads(row["content"])  # noqa: S301 (our task wrote it)
                statements.append(Statement(row["database"], _point(row["at"]), change))
            elif kind == "shape":
                shape = pickle.loads(row["content"])  # noqa: S301 (our task wrote it)
                points = _point(row["first"]), _point(row["last"])
                shapes.append(Shape(row["database"], shape, *points))
            else:
                first, last = row["first"]["sequence"], row["last_number"]
                counts = row["journals"], row["events"], row["first_us"], row["last_us"]
                spans.append(Span(row["database"], row["epoch"], first, last, *counts))
                size += row["bytes"]
                is_doubled = is_doubled or bool(row["is_doubled"])
                lacks_numbers = lacks_numbers or row["journals"] != last - first + 1
        spans.sort(key=lambda span: (span.database, span.epoch))
        damaged.sort(key=lambda found: found.file)
        # With doubled ones nobody has counted what is missing.
        lacks_numbers = lacks_numbers or is_doubled
        return cls(spans, shapes, statements, vanished, damaged, is_doubled, lacks_numbers, size)


def _point(row: Sequence[int]) -> HistoryPoint:
    epoch, sequence, position = row
    return epoch, sequence, position
