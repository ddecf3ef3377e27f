"""Findings of an audit: one row per fault or note, whoever finds it.

Each part of the audit (`journals`, `against_kafka`, `against_database`) returns a `Comparison`,
whose findings have the columns of `SCHEMA`, and which says what its kinds mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from firebird_cdc.journal.replay.relational import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SCHEMA: dict[str, str] = {
    "kind": "string",
    "database": "string",
    "epoch": "bigint",
    "sequence": "bigint",
    "last_sequence": "bigint",
    "transaction": "bigint",
    "table": "string",
    "key": "string",
    "position": "bigint",
    "file": "string",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "what": "string",
}
"""Columns of findings and their types. ``key``: JSON text as in ``firebird_journal``; ``what``: the
finding in one sentence; null where a column says nothing."""


OPERATIONS = {"c": "inserts", "u": "updates", "d": "deletes", "ddl": "statements", "gap": "gaps"}
"""Operations that are counted of a history, and their names for people."""


class Kind(NamedTuple):
    """A kind of finding. ``advice``: what to do; ``is_fault``: whether it fails the audit."""

    advice: str
    is_fault: bool = True


_UNREADABLE = Kind("take the file from a backup of the archive; its transaction can't be replayed")

JOURNAL_KINDS: dict[str, Kind] = {
    "damaged": _UNREADABLE,
    "torn": _UNREADABLE,
    "misnamed": Kind("rename it to its uuid"),
    "duplicate journal": Kind("remove the copy"),
    "duplicate sequence": Kind(
        "keep the journal that was shipped, and report this with both files: a number is never"
        " given twice"
    ),
    "missing": Kind(
        "look for the journals in the live folder and in quarantine, and in backups of the archive;"
        " what cannot be found is lost to a replay"
    ),
    "gap": Kind(
        "the marked changes were not captured: compare the tables concerned with the database"
    ),
    "chain": Kind("changes between the two were not captured: compare the row with the database"),
    "vanished": Kind("read a folder that nobody empties, or run the audit again", is_fault=False),
    "quarantined": Kind(
        "decide about it: firebird-cdc journal retry or firebird-cdc journal discard",
        is_fault=False,
    ),
    "foreign": Kind("move it away, if you know whose it is; it is no journal", is_fault=False),
}
"""Kinds that the journals by themselves show."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of one part of the audit.

    ``findings``: columns `SCHEMA`, distributed; ``kinds``: what its kinds mean. ``proven``: a
    sentence per database or topic on the range that was checked; ``notes``: sentences on what
    could not be checked and why that is no fault. ``counts``: figures for the report, by name.
    """

    findings: DataFrame
    kinds: dict[str, Kind]
    proven: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)


def findings_of(table: DataFrame, /, **columns: Column) -> DataFrame:
    """Give TABLE the columns of `SCHEMA`: COLUMNS, else its own of that name, else null."""
    return table.select(
        *(
            (
                columns[name]
                if name in columns
                else F.col(name)
                if name in table.columns
                else F.lit(None)
            )
            .cast(kind)
            .alias(name)
            for name, kind in SCHEMA.items()
        )
    )


class Finding(NamedTuple):
    """One row of the findings, see `findings.SCHEMA`."""

    kind: str
    database: str | None
    epoch: int | None
    sequence: int | None
    last_sequence: int | None
    transaction: int | None
    table: str | None
    key: str | None
    position: int | None
    file: str | None
    topic: str | None
    partition: int | None
    offset: int | None
    what: str
