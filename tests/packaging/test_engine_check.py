"""Findings of check about the server's engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from firebird_cdc.config import load_config
from firebird_cdc.errors import ClientMissing, DatabaseUnreadable
from firebird_cdc.packaging import probes
from firebird_cdc.packaging.check import _canaries, _publication
from firebird_cdc.packaging.server.findings import Finding, Severity


def test_an_engine_that_cannot_be_captured_from_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    served = probes.Publication(True, ["T"], [], [], True, "4.0.1")
    findings: list[Finding] = []
    for engine in ("4.0.1", "4.0.0"):
        answer = served._replace(engine=engine)
        monkeypatch.setattr(probes, "read_publication", lambda *_: answer)  # noqa: B023
        findings += _publication(None, "/data/shop.fdb", {}, None, [])  # type: ignore[arg-type]
    [finding] = findings
    assert "its server is Firebird 4.0.0, which marks" in finding.what
    assert finding.remedy == "upgrade the server to Firebird 4.0.1 or later"


def test_a_client_library_that_is_missing_is_no_matter_of_a_login(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: object) -> None:
        raise ClientMissing("cannot load it: No such file; install it, or name it")

    monkeypatch.setattr(probes, "read_publication", missing)
    [finding] = _publication(None, "/data/shop.fdb", {}, None, [])  # type: ignore[arg-type]
    assert finding.what == "can't be looked at: cannot load it: No such file"
    assert finding.remedy == "install it, or name it"


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("I/O error -No such file or directory", "there is no such database: correct its path"),
        ("Unable to complete network request", "see that the server runs, and that host and port"),
        ("Your user name and password are not defined", "set ISC_USER and ISC_PASSWORD"),
        ("no words that we know", "see that the server runs, and set ISC_USER"),
    ],
)
def test_a_database_that_can_not_be_attached_to_has_a_remedy_of_its_own(
    monkeypatch: pytest.MonkeyPatch, said: str, remedy: str
) -> None:
    def away(*_: object) -> None:
        raise DatabaseUnreadable(f"cannot attach to /data/shop.fdb: {said}")

    monkeypatch.setattr(probes, "read_publication", away)
    [finding] = _publication(None, "/data/shop.fdb", {}, None, [])  # type: ignore[arg-type]
    assert finding.remedy.startswith(remedy)


def test_a_canary_that_can_not_be_looked_at_is_a_finding_like_any_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def away(*_: object) -> None:
        raise DatabaseUnreadable("cannot attach to /data/shop.fdb: No such file")

    path = tmp_path / "c.yaml"
    path.write_text(
        f"connector.name: n\nconnector.journal.directory: {tmp_path}\nkafka.topic.prefix: p\n"
        "kafka.producer.bootstrap.servers: h:1\n"
        "connector.canary.tables: /data/shop.fdb.CANARY\n"
    )
    monkeypatch.setattr(probes, "attached", away)
    options = load_config(path)
    [finding] = _canaries(None, options, {"/data/shop.fdb": []})  # type: ignore[arg-type]
    assert finding.what.startswith("its canary can't be looked at: cannot attach")
    assert finding.severity is Severity.ERROR


@pytest.mark.parametrize("command", ["tables", "enable", "disable"])
def test_commands_name_the_option_of_a_client_library_that_is_missing(
    tmp_path: Path, command: str
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        f"connector.name: n\nconnector.journal.directory: {tmp_path}\nkafka.topic.prefix: p\n"
        "kafka.producer.bootstrap.servers: h:1\ndatabase.client.library: /nowhere/libfbclient.so\n"
    )
    argv = [sys.executable, "-P", "-m", "firebird_cdc", command, "localhost:/x.fdb"]
    done = subprocess.run(
        [*argv, "--config", path], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode != 0
    said = done.stderr.strip().splitlines()[-1]
    assert "cannot load Firebird's client library /nowhere/libfbclient.so" in said
    assert "name it in database.client.library of the connector options (replay" in said
    assert "no such database" not in said and "ISC_USER" not in said
