"""Histograms that the page of an audit draws: counted where the journals are, the driver
gets a bounded number of bars however long the history is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from firebird_cdc.journal.replay.relational import F, union
from firebird_cdc.journal.replay.source.history import Span, stamped

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BARS = 60
"""Bars of a histogram over time or over the sequence."""
SHOWN_SPANS = 12
"""Databases and epochs whose sequence is drawn; the report's table has all."""

_SIZES = 44  # powers of two of bytes, or of events


class Strip(NamedTuple):
    """The numbers of one database and epoch in `BARS` equal parts, from FIRST on, WIDTH each.

    ``held``: journals in each part; ``found``: findings in each part, by kind.
    """

    database: str
    epoch: int
    first: int
    last: int
    width: int
    held: list[int]
    found: dict[str, list[int]]


@dataclass(frozen=True)
class Figures:
    """``times``: (microseconds since 1970 of its beginning, journals, events) per bar; ``sizes``
    and ``events``: (binary digits, journals whose number of bytes or events has so many)."""

    strips: list[Strip] = field(default_factory=list)
    times: list[tuple[int, int, int]] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    events: list[tuple[int, int]] = field(default_factory=list)


def read_figures(
    files: DataFrame, found: DataFrame, spans: Sequence[Span], findings: int
) -> Figures:
    """Count what the page shows: one job over FILES, and one over FOUND if there are FINDINGS."""
    drawn = list(spans[:SHOWN_SPANS])
    strips = [_empty_strip(span) for span in drawn]
    starts = [span.first_commit_us for span in spans if span.first_commit_us is not None]
    ends = [span.last_commit_us for span in spans if span.last_commit_us is not None]
    start = min(starts, default=0)
    bar_us = (max(ends, default=0) - start) // BARS + 1
    times = [[start + bar * bar_us, 0, 0] for bar in range(BARS)] if starts else []
    sizes: dict[int, int] = {}
    events: dict[int, int] = {}
    parts = [
        _bars("size", F.lit(None), _power("length"), files.where("length is not null")),
        _bars("events", F.lit(None), _power("events"), files.where("events is not null")),
    ]
    if starts:
        place = F.floor((F.unix_micros("commit_time") - start) / bar_us)
        parts.append(_bars("time", F.lit(None), place, files.where("commit_time is not null")))
    if strips:
        parts.append(_strip_bars("held", F.lit(None), stamped(files), strips))
    for what, _, index, bar, number, total in _collect(parts):
        if what == "size":
            sizes[bar] = number
        elif what == "events":
            events[bar] = number
        elif what == "time" and 0 <= bar < BARS:
            times[bar][1:] = number, total or 0
        elif what == "held" and 0 <= bar < BARS:
            strips[index].held[bar] = number
    if findings and strips:
        placed = found.where("sequence is not null and database is not null")
        wanted = _strip_bars("found", F.col("kind"), placed, strips)
        for _, kind, index, bar, number, _ in _collect([wanted]):
            bars = strips[index].found.setdefault(kind or "", [0] * BARS)
            bars[min(max(bar, 0), BARS - 1)] += number  # missing ones may lie outside
    return Figures(
        strips,
        [(bar[0], bar[1], bar[2]) for bar in times],
        sorted(sizes.items()),
        sorted(events.items()),
    )


def _empty_strip(span: Span) -> Strip:
    width = (span.last - span.first) // BARS + 1
    return Strip(span.database, span.epoch, span.first, span.last, width, [0] * BARS, {})


def _power(name: str) -> Column:
    """The number of binary digits of column NAME, at most `_SIZES`."""
    return F.least(F.length(F.bin(F.greatest(F.col(name), F.lit(0)))), F.lit(_SIZES))


def _bars(what: str, kind: Column, bar: Column, table: DataFrame) -> DataFrame:
    events = F.sum("events") if "events" in table.columns else F.lit(0)
    index = F.col("strip") if "strip" in table.columns else F.lit(0)
    return (
        table.groupBy(
            F.lit(what).alias("what"),
            kind.cast("string").alias("kind"),
            index.cast("int").alias("strip"),
            bar.cast("bigint").alias("bar"),
        )
        .agg(F.count("*").alias("number"), events.cast("bigint").alias("total"))
        .select("what", "kind", "strip", "bar", "number", "total")
    )


def _strip_bars(what: str, kind: Column, table: DataFrame, strips: Sequence[Strip]) -> DataFrame:
    rows = [(s.database, s.epoch, s.first, s.width, index) for index, s in enumerate(strips)]
    known = table.sparkSession.createDataFrame(
        rows, "database string, epoch bigint, `from` bigint, width bigint, strip int"
    )
    placed = table.join(F.broadcast(known), ["database", "epoch"])
    return _bars(what, kind, F.floor((F.col("sequence") - F.col("from")) / F.col("width")), placed)


def _collect(
    parts: Sequence[DataFrame],
) -> list[tuple[str, str | None, int, int, int, int | None]]:
    return [tuple(row) for row in union(parts).collect()]
