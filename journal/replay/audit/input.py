"""Input of an audit: folders of journals, and the part of their history that is asked for.

Every part of the audit reads through one `AuditInput`, so that all of them speak of the same range.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.replay.relational import F
from firebird_cdc.journal.replay.source import history
from firebird_cdc.journal.replay.source.bounds import Bound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

Rows = Literal["text", "digest"]


@dataclass(frozen=True)
class AuditInput:
    """The journals that are audited. Made by `open_input`, given back by ``close``.

    ``folders``: as the user gave them; those in ``quarantine`` among them hold quarantined
    journals. ``files``: one row per journal in the range, as ``firebird_journal_files`` gives it,
    persisted; journals whose place is unknown are in it, too. ``survey``: one look at them.
    ``last_epochs``: by database, of its whole history. ``whole``: as ``files``, but of all journals
    of the folders.
    """

    spark: SparkSession
    folders: tuple[str, ...]
    database: str | None
    none_charset: str
    files: DataFrame
    whole: DataFrame
    since: Bound | None = None
    until: Bound | None = None
    quarantine: tuple[str, ...] = ()
    partition_bytes: int | None = None
    survey: history.Survey = field(default_factory=history.Survey)
    last_epochs: dict[str, int] = field(default_factory=dict, repr=False)
    _epochs: frozenset[int] = frozenset()

    @property
    def spans(self) -> tuple[history.Span, ...]:
        """From where to where the history of each database and epoch goes; a short list."""
        return self.survey.spans

    def load(self, rows: Rows = "text") -> DataFrame:
        """Return the changes in the range as ``firebird_journal`` gives them; not persisted.

        Journals that can't be read are a row ``damaged`` or ``missing`` each; where a range is
        asked for, only those whose place in it is known.
        """
        reader = (
            self.spark.read.format("firebird_journal")
            .option("rows", rows)
            .option("onDamage", "report")
            .option("noneCharset", self.none_charset)
        )
        if self.database is not None:
            reader = reader.option("database", self.database)
        if self.partition_bytes is not None:
            reader = reader.option("partitionBytes", self.partition_bytes)
        for name, value in self.range_options():
            reader = reader.option(name, value)
        return self.within(reader.load(list(self.folders)))

    def range_options(self) -> Iterator[tuple[str, str]]:
        """Yield what lets the data source leave whole journals unread: as much of the range as is
        the same for all databases."""
        for bound, word in ((self.since, "from"), (self.until, "to")):
            if bound is None:
                continue
            if bound.time_us is not None:
                yield f"{word}Time", str(bound)
            elif self._is_plain(bound):
                yield f"{word}Sequence", str(bound.sequence)

    def _is_plain(self, bound: Bound) -> bool:
        """Tell whether the number of BOUND says all: its epoch is the only one in all journals."""
        epochs = set(self.last_epochs.values()) if bound.epoch is None else {bound.epoch}
        return len(epochs) == 1 and epochs >= self._epochs

    def within(self, table: DataFrame) -> DataFrame:
        """Keep the rows of TABLE (database, epoch, sequence, commit_time) that are in the range."""
        for bound, is_first in ((self.since, True), (self.until, False)):
            if bound is not None:
                table = self._bounded(table, bound, is_first)
        return table

    def _bounded(self, table: DataFrame, bound: Bound, is_first: bool) -> DataFrame:
        if bound.time_us is not None:
            committed = F.unix_micros("commit_time")
            return table.where(_beyond(committed, F.lit(bound.time_us), is_first))
        sequence = _beyond(F.col("sequence"), F.lit(bound.sequence), is_first)
        if self._is_plain(bound):
            return table.where(sequence)
        added = bound.epoch is None
        epoch = F.lit(bound.epoch)
        if added:
            rows = list(self.last_epochs.items())
            last = self.spark.createDataFrame(rows, "`database` string, `last_epoch` bigint")
            table = table.join(F.broadcast(last), "database")
            epoch = F.col("last_epoch")
        further = F.col("epoch") > epoch if is_first else F.col("epoch") < epoch
        table = table.where(_beyond(F.col("epoch"), epoch, is_first))
        table = table.where(further | ((F.col("epoch") == epoch) & sequence))
        return table.drop("last_epoch") if added else table

    def close(self) -> None:
        """Let Spark forget what it keeps of this."""
        self.files.unpersist()
        self.whole.unpersist()


def _beyond(column: Column, limit: Column, is_first: bool) -> Column:
    return column >= limit if is_first else column <= limit


def open_input(
    spark: SparkSession,
    folders: Sequence[str],
    *,
    database: str | None = None,
    none_charset: str = "UTF-8",
    since: Bound | None = None,
    until: Bound | None = None,
    quarantine: Sequence[str] = (),
    partition_bytes: int | None = None,
) -> AuditInput:
    """Look at the journals in FOLDERS: sectors and first block of each are read, in the tasks.

    Raises ReplayError if there is none, none in the range, or a folder can't be read.
    """
    files = history.read_files(spark, folders, database)
    whole = history.survey(files)
    spans = whole.spans
    if not whole.journals:
        number = whole.unplaced
        files.unpersist()
        raise ReplayError(
            f"{', '.join(folders)} is a foreign folder: none of its {number:,} files *.log is a"
            " journal of firebird-cdc"
        )
    everything = AuditInput(
        spark,
        tuple(folders),
        database,
        none_charset,
        files,
        files,
        since,
        until,
        tuple(quarantine),
        partition_bytes,
        whole,
        {span.database: span.epoch for span in spans},  # the last one of each stays
        frozenset(span.epoch for span in spans),
    )
    if since is None and until is None:
        return everything
    inside = everything.within(history.stamped(files))
    unknown = files.where(F.col("sequence").isNull() | F.col("database").isNull())
    chosen = inside.unionByName(unknown).persist()
    held = history.survey(chosen)
    if not held.spans:
        chosen.unpersist()
        files.unpersist()
        ends = " ".join(
            f"{word} {bound}"
            for word, bound in (("since", since), ("until", until))
            if bound is not None
        )
        raise ReplayError(f"{', '.join(folders)} holds no journal {ends}")
    return replace(everything, files=chosen, survey=held)
