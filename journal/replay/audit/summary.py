"""A readable summary of an audit."""

from __future__ import annotations

from collections.abc import Iterator

from firebird_cdc.journal.replay.audit.findings import OPERATIONS
from firebird_cdc.journal.replay.audit.report import AuditReport


def describe(report: AuditReport) -> Iterator[str]:
    """Yield the lines of a readable summary."""
    for span in report.spans:
        yield (
            f"{span.database}: epoch {span.epoch}, sequence {span.first:,} to {span.last:,},"
            f" {span.journals:,} journals, {span.events:,} events"
        )
    yield from _describe_counts(report)
    yield ""
    for sentence in report.proven:
        yield f"proven: {sentence}"
    for remark in report.remarks:
        yield f"note: {remark}"
    yield from _describe_findings(report)


def _describe_counts(report: AuditReport) -> Iterator[str]:
    if report.counts:
        yield ""
    last: tuple[str | None, str | None] | None = None
    line = ""
    is_several = len({database for database, *_ in report.counts}) > 1
    for database, table, op, number in report.counts:
        if (database, table) != last:
            if line:
                yield line
            line = f"  {f'{database}: ' if is_several else ''}{table or '(no table)'}:"
            last = (database, table)
        line += f"{',' if line[-1] != ':' else ''} {number:,} {OPERATIONS[op]}"
    if line:
        yield line
    if report.counts_left:
        yield f"  ... and {report.counts_left:,} more counts; --output writes all"


def _describe_findings(report: AuditReport) -> Iterator[str]:
    """Yield the lines on what was found, faults first, and the result."""
    shown = {kind: [f for f in report.shown if f.kind == kind] for kind in report.kinds}
    for kind, number in sorted(
        report.kinds.items(), key=lambda item: not report.meanings[item[0]].is_fault
    ):
        meaning = report.meanings[kind]
        label = "FAULT" if meaning.is_fault else "note"
        for finding in shown[kind]:
            yield f"{label} ({kind}): {finding.what}"
        if number > len(shown[kind]):
            yield f"  ... and {number - len(shown[kind]):,} more; --output writes all"
        yield f"  -> {meaning.advice}"
    if report.sound:
        yield "sound: every journal is whole, none is missing, every change fits the one before"
    else:
        yield f"not sound: {report.faults:,} faults"
