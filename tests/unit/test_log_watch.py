"""Messages of status, page and metrics about log files that can't be written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import logbook
import pytest

from firebird_cdc.config import log_output, logging
from firebird_cdc.config.logging import SERVER, SHIPPER, setup_logging
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.tasks.watches import LogWatch


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    """A logging configuration in force, whose folder is missing."""
    config = tmp_path / "logging.yaml"
    config.write_text(f"file: {tmp_path}/log/{{role}}.log\n")
    handler = setup_logging(config, SHIPPER)
    yield config
    handler.pop_application()
    handler.close()


def _told(folder: Path, statistics: Statistics) -> dict[str, str]:
    LogWatch(folder, statistics).turn(0.0)
    return {subject: trouble.text for subject, trouble in statistics.troubles.items()}


def test_logs_that_cannot_be_written_are_troubles_until_they_can(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "_CHECK_SECONDS", 0.0)
    # As in a service whose standard error leads nowhere, without a syslog.
    monkeypatch.setattr(log_output, "_is_heard", lambda: False)
    monkeypatch.setattr(log_output, "_to_syslog", lambda *_: False)
    logbook.Logger("x").info("nobody gets this")
    statistics = Statistics()
    told = _told(tmp_path, statistics)
    assert told.keys() == {"log of the shipper", "log of the server"}
    assert f"{tmp_path}/log/shipper.log: cannot open it: No such file" in told["log of the shipper"]
    assert f"{tmp_path}/log/server.log: {tmp_path}/log does not exist" in told["log of the server"]
    assert all("set another file in the logging configuration" in text for text in told.values())
    (tmp_path / "log").mkdir()
    logging._current._open_at = 0.0  # type: ignore[union-attr]  # it is tried once a second
    assert _told(tmp_path, statistics) == {}
    logbook.Logger("x").info("goes on")
    assert _told(tmp_path, statistics) == {}
    written = (tmp_path / "log/shipper.log").read_text()
    assert "goes on" in written and "1 log lines were lost" in written


def test_unwritable_log_shared_by_server_and_shipper_is_reported_once(
    tmp_path: Path, config: Path
) -> None:
    config.write_text(f"file: {tmp_path}/log/shared.log\n")
    handler = setup_logging(config, SERVER)
    assert _told(tmp_path, Statistics()).keys() == {"log of the shipper"}
    handler.pop_application()
    handler.close()
