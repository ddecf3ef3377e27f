"""The running shipper keeps the archive small: packed into segments, and not for ever."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from shipping import Folder, Ship

from firebird_cdc.cli import main
from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.journal.folder.segments import is_segment_name, list_segment

pytestmark = pytest.mark.kafka


def test_archive_is_packed_and_expired_journals_removed_while_shipping(
    ship: Ship,
    folder: Folder,
    broker: KafkaBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    archive = tmp_path / "archive"
    ship.options["connector.journal.archive.directory"] = str(archive)
    journals = [folder.write(sequence) for sequence in range(1, 9)]
    assert ship.once().process.returncode == 0
    ship.options["connector.journal.archive.segment.bytes"] = "4000"
    expired = archive / journals[0].name
    os.utime(expired, (0, 0))
    expired_content = expired.read_bytes()

    def segments() -> list[Path]:
        return [path for path in archive.iterdir() if is_segment_name(path.name)]

    shipper = ship.start()
    shipper.await_that(lambda: segments() and not list(archive.glob("*.log")), "packed journals")
    packed = {name: segment for segment in segments() for name, _ in list_segment(segment)}
    assert packed.keys() == {journal.name for journal in journals}
    assert shipper.terminate() == 0
    assert main(["journal", "show", str(packed[expired.name] / expired.name)]) == 0
    assert "whole: 1 change" in capsys.readouterr().out

    ship.options["connector.journal.archive.segment.bytes"] = "0"
    ship.options["connector.journal.archive.retention.ms"] = str(24 * 3600 * 1000)
    young = archive / journals[1].name
    young.write_bytes(expired_content)
    os.utime(young, (time.time(), time.time()))
    shipper = ship.start()
    shipper.await_that(lambda: not segments(), "the old segments removed")
    assert young.exists()
