"""The severities of what check finds: exit codes, order, and the line that counts them."""

from __future__ import annotations

import pytest

from firebird_cdc.packaging.server.findings import (
    Finding,
    Severity,
    counted,
    exit_code,
    gravest_first,
)


def found(*words: str) -> list[Finding]:
    return [Finding(f"/{n}", "is so", "do it", Severity(word)) for n, word in enumerate(words)]


@pytest.mark.parametrize(
    ("words", "code", "strict"),
    [
        ((), 0, 0),
        (("note",), 0, 0),
        (("note", "warning", "note"), 1, 2),
        (("warning", "error"), 2, 2),
    ],
)
def test_the_gravest_severity_makes_the_exit_code(
    words: tuple[str, ...], code: int, strict: int
) -> None:
    assert exit_code(found(*words)) == code
    assert exit_code(found(*words), strict=True) == strict


def test_finding_without_a_severity_is_an_error() -> None:
    assert str(Finding("/x", "is gone", "get it")) == "error: /x: is gone\n    -> get it"


def test_finding_says_nothing_that_a_terminal_could_obey() -> None:
    said = str(Finding("/x\x1b[2J", "has a table called A\nnote: all is well", "rename\tit"))
    assert said == "error: /x?[2J: has a table called A?note: all is well\n    -> rename?it"


def test_errors_are_listed_first_and_counted() -> None:
    findings = found("note", "error", "warning", "error")
    assert [each.where for each in gravest_first(findings)] == ["/1", "/3", "/2", "/0"]
    assert counted(findings) == "2 errors, 1 warning, 1 note"
    assert counted([]) == ""
