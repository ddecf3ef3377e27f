"""Findings of check about the server's engine."""

from __future__ import annotations

import pytest

from firebird_cdc.packaging import probes
from firebird_cdc.packaging.check import _publication
from firebird_cdc.packaging.server.findings import Finding


def test_an_engine_that_cannot_be_captured_from_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    served = probes.Publication(True, ["T"], [], [], True, "4.0.1")
    findings: list[Finding] = []
    for engine in ("4.0.1", "4.0.0"):
        answer = served._replace(engine=engine)
        monkeypatch.setattr(probes, "read_publication", lambda *_: answer)  # noqa: B023
        findings += _publication(None, "/data/shop.fdb", {}, None)  # type: ignore[arg-type]
    [finding] = findings
    assert "its server is Firebird 4.0.0, which marks" in finding.what
    assert finding.remedy == "upgrade the server to Firebird 4.0.1 or later"
