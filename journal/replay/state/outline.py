"""Facts that the driver needs on journals whose rows are folded: spans, shapes, statements.

`images.Journals.survey` reads it in Spark's tasks, sectors and the few blocks with definitions and
DDL; here it is brought together.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from firebird_cdc.journal.folder.segments import SEGMENT_NAME
from firebird_cdc.journal.replay.source.history import Span
from firebird_cdc.journal.replay.state.evolution import Place, Shape, Statement

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
    shape of every table once, and every DDL statement."""

    spans: list[Span]
    shapes: list[Shape]
    statements: list[Statement]
    vanished: set[str]
    damaged: list[Damaged]
    is_doubled: bool
    lacks_numbers: bool

    @classmethod
    def of(cls, survey: DataFrame) -> Outline:
        """Read SURVEY in one job."""
        place = F.struct("epoch", "sequence", "position")
        is_file = F.col("kind") == "file"
        # Journals by their numbers first: a number that comes twice is one.
        found = (
            survey.groupBy(
                "kind",
                "database",
                "content",
                F.when(is_file | (F.col("kind") == "ddl"), F.col("epoch")).alias("epoch"),
                F.when(is_file, F.col("sequence")).alias("number"),
                F.when(F.col("kind") == "ddl", place).alias("at"),
            )
            .agg(
                F.count("*").alias("copies"),
                F.sum("events").alias("events"),
                F.min(place).alias("first"),
                F.max(place).alias("last"),
                F.min("commit_us").alias("first_us"),
                F.max("commit_us").alias("last_us"),
                F.min("file").alias("file"),
            )
            .groupBy("kind", "database", "content", "epoch", "at")
            .agg(
                F.sum("copies").alias("journals"),
                F.max("copies").alias("copies"),
                F.count("*").alias("numbers"),
                F.sum("events").alias("events"),
                F.min("first").alias("first"),
                F.max("last").alias("last"),
                F.min("first_us").alias("first_us"),
                F.max("last_us").alias("last_us"),
                F.min("file").alias("file"),
            )
            .collect()
        )
        spans, shapes, statements, vanished, damaged = [], [], [], set(), []
        is_doubled = lacks_numbers = False
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
                statements.append(Statement(row["database"], _place(row["at"]), change))
            elif kind == "shape":
                shape = pickle.loads(row["content"])  # noqa: S301 (our task wrote it)
                places = _place(row["first"]), _place(row["last"])
                shapes.append(Shape(row["database"], shape, *places))
            else:
                first, last = row["first"]["sequence"], row["last"]["sequence"]
                counts = row["journals"], row["events"], row["first_us"], row["last_us"]
                spans.append(Span(row["database"], row["epoch"], first, last, *counts))
                is_doubled = is_doubled or row["copies"] > 1
                lacks_numbers = lacks_numbers or row["numbers"] != last - first + 1
        spans.sort(key=lambda span: (span.database, span.epoch))
        damaged.sort(key=lambda found: found.file)
        return cls(spans, shapes, statements, vanished, damaged, is_doubled, lacks_numbers)


def _place(row: Sequence[int]) -> Place:
    epoch, sequence, position = row
    return epoch, sequence, position
