"""Roots of the embedded engine to install into, and the means to see what it makes of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from firebird_cdc.demo.engine import EmbeddedRoot

_STATEMENTS = """
import sys
from firebird import driver
library, database, *statements = sys.argv[1:]
driver.driver_config.fb_client_library.value = library
open_ = driver.connect if __import__("os").path.exists(database) else driver.create_database
with open_(database, user="SYSDBA") as connection:
    for statement in statements:
        connection.execute_immediate(statement)
        connection.commit()
"""

Work = Callable[[Path, Sequence[str]], None]


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder into which the sample has logs written: one of the test's own, which is not
    there yet."""
    from firebird_cdc.packaging import install

    folder, samples = tmp_path / "var/log/firebird-cdc", tmp_path / "samples"
    samples.mkdir()
    for sample in install.SAMPLES.glob("*.yaml"):
        text = sample.read_text().replace("/var/log/firebird-cdc", str(folder))
        (samples / sample.name).write_text(text)
    monkeypatch.setattr(install, "SAMPLES", samples)
    return folder


@pytest.fixture
def options_file(tmp_path: Path) -> Path:
    """Connector options with folders of the test's own, and no shipper to start."""
    path = tmp_path / "connector.yaml"
    path.write_text(
        f"connector.name: test\n"
        f"connector.journal.directory: {tmp_path / 'new/journals'}\n"
        "connector.shipper: external\n"
        "kafka.producer.bootstrap.servers: 127.0.0.1:9\n"
        "kafka.topic.prefix: test\n"
    )
    return path


@pytest.fixture
def work(engine_root: EmbeddedRoot) -> Work:
    """Run statements in a process of its own, each committed; creates a missing database."""

    def run(database: Path, statements: Sequence[str]) -> None:
        library = str(engine_root.client_library)
        done = subprocess.run(
            [sys.executable, "-P", "-c", _STATEMENTS, library, str(database), *statements],
            env=engine_root.environment(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr

    return run


@pytest.fixture
def published() -> tuple[str, ...]:
    """The statements that make a table T and publish it."""
    return (
        "CREATE TABLE T (ID INTEGER PRIMARY KEY)",
        "ALTER DATABASE INCLUDE ALL TO PUBLICATION",
        "ALTER DATABASE ENABLE PUBLICATION",
    )
