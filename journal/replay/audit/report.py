"""Writes what an audit found: ``report.json`` for machines, ``report.html`` for people, and all
findings and counts as tables.

``report.json`` is one object; its keys are those of `summarise`, and ``version`` grows if one of
them comes to mean something else.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from firebird_cdc import __version__
from firebird_cdc.journal.replay.audit.findings import Finding, Kind
from firebird_cdc.journal.replay.audit.histograms import Figures
from firebird_cdc.journal.replay.output import write_last, write_table, write_text
from firebird_cdc.journal.replay.source.history import Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


VERSION = 1


@dataclass(frozen=True)
class AuditReport:
    """Result of an audit; a context manager that lets Spark forget the findings at its end.

    ``findings``: all of them, columns `findings.SCHEMA`. ``kinds``: how many of each kind;
    ``shown``: the first of each; ``meanings``: what the kinds are. ``proven``: a sentence on each
    range that was checked; ``remarks``: what is no fault. ``counts``: (database, table or None,
    op, number); ``counts_left``: how many more there are. ``facts``: of the parts of the audit
    and of the configuration, by name. ``figures``: what the page draws.
    """

    findings: DataFrame
    tables: DataFrame
    spans: list[Span]
    kinds: dict[str, int]
    meanings: dict[str, Kind]
    shown: list[Finding]
    counts: list[tuple[str, str | None, str, int]]
    counts_left: int
    proven: list[str]
    remarks: list[str]
    folders: tuple[str, ...]
    facts: dict[str, Any]
    figures: Figures
    began_s: float
    took_s: float
    _keep: ExitStack = field(repr=False)

    @property
    def faults(self) -> int:
        """Number of findings that are faults."""
        return sum(number for kind, number in self.kinds.items() if self.meanings[kind].is_fault)

    @property
    def sound(self) -> bool:
        """True if there is no fault."""
        return not self.faults

    def close(self) -> None:
        """Let Spark forget what it keeps of this."""
        self._keep.close()

    def __enter__(self) -> AuditReport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def summarise(report: AuditReport) -> dict[str, Any]:
    """Return ``report.json``: its size does not grow with the history.

    ``sound``, ``faults``, ``notes``: the result and numbers of findings. ``ranges``: per database
    and epoch what journals there are. ``proven``, ``remarks``: sentences. ``kinds``: number, advice
    and whether it is a fault, by kind. ``shown``: the first findings of each kind, columns as in
    ``findings/``. ``counts``: changes per database, table and operation, the first ones;
    ``counts_left``: how many more there are in ``counts/``. ``facts``: configuration and what the
    comparisons counted. Times are in microseconds since 1970, UTC.
    """
    notes = sum(report.kinds.values()) - report.faults
    return {
        "version": VERSION,
        "made_by": f"firebird-cdc {__version__}",
        "began_us": int(report.began_s * 1_000_000),
        "took_s": round(report.took_s, 3),
        "folders": list(report.folders),
        "sound": report.sound,
        "faults": report.faults,
        "notes": notes,
        "ranges": [_range(span) for span in report.spans],
        "proven": report.proven,
        "remarks": report.remarks,
        "kinds": {
            kind: {
                "findings": number,
                "is_fault": report.meanings[kind].is_fault,
                "advice": report.meanings[kind].advice,
            }
            for kind, number in report.kinds.items()
        },
        "shown": [finding._asdict() for finding in report.shown],
        "counts": [
            {"database": database, "table": table, "operation": operation, "changes": number}
            for database, table, operation, number in report.counts
        ],
        "counts_left": report.counts_left,
        "facts": report.facts,
    }


def _range(span: Span) -> dict[str, Any]:
    return {
        "database": span.database,
        "epoch": span.epoch,
        "first": span.first,
        "last": span.last,
        "journals": span.journals,
        "events": span.events,
        "first_commit_us": span.first_commit_us,
        "last_commit_us": span.last_commit_us,
    }


def write_report(
    spark: SparkSession,
    report: AuditReport,
    output: str | None,
    output_format: str,
    html: str | None,
) -> None:
    """Write REPORT to the folder OUTPUT, its tables first, and its page to the file HTML, too.

    ``report.json`` comes last: a folder that has it is complete.
    """
    from firebird_cdc.journal.replay.audit.page import page

    summary = summarise(report)
    text = page(summary, report.figures)
    if html is not None:
        write_text(spark, html, text)
    if output is None:
        return
    folder = output.rstrip("/")
    for name, table in (("findings", report.findings), ("counts", report.tables)):
        write_table(spark, table, f"{folder}/{name}", output_format)
    write_text(spark, f"{folder}/report.html", text)
    content = json.dumps(summary, ensure_ascii=False, indent=1, default=str)
    write_last(spark, folder, "report.json", f"{content}\n")
