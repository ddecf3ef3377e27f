"""Findings of a check, their severity, and the exit code that they make."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from firebird_cdc.output import printable


class Severity(enum.Enum):
    """Severity of a finding; the value is the word that operators read."""

    #: Changes are lost, refused, not captured or not delivered now, or nobody could look.
    ERROR = "error"
    #: All works, and somebody has to act before something comes of it.
    WARNING = "warning"
    #: Worth knowing; nothing has to be done. What is past is one.
    NOTE = "note"


_EXIT_CODES = {Severity.ERROR: 2, Severity.WARNING: 1, Severity.NOTE: 0}
_ORDER = list(Severity)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that somebody should know: the file or option, what about it, what to do."""

    where: str
    what: str
    remedy: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        said = printable(f"{self.severity.value}: {self.where}: {self.what}")
        return f"{said}\n    -> {printable(self.remedy)}"


Findings = Iterator[Finding]


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return FINDINGS with errors first and notes last, each kind in the order it was found."""
    return sorted(findings, key=lambda finding: _ORDER.index(finding.severity))


def exit_code(findings: Iterable[Finding], strict: bool = False) -> int:
    """Return 2 for FINDINGS with an error, 1 for the gravest being a warning, else 0.

    strict: a warning counts as an error.
    """
    code = max((_EXIT_CODES[finding.severity] for finding in findings), default=0)
    return 2 if strict and code else code


def counted(findings: Iterable[Finding]) -> str:
    """Return how many FINDINGS there are of each severity, as in "2 errors, 1 note"."""
    numbers = Counter(finding.severity for finding in findings)
    return ", ".join(
        f"{numbers[each]} {each.value}{'' if numbers[each] == 1 else 's'}"
        for each in Severity
        if numbers[each]
    )
