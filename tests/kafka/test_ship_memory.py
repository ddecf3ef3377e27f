"""However much waits, the shipper holds little of it."""

from __future__ import annotations

import re
import time
from pathlib import Path

from shipping import ITEM, Folder, Ship

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.journal.format import JournalWriter

LIMIT_MIB = 150
ROWS = 150_000
SINGLES = 300


def _peak_mib(process_id: int) -> float:
    try:
        status = Path(f"/proc/{process_id}/status").read_text()
    except FileNotFoundError:
        return 0.0
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.M)
    return int(found[1]) / 1024 if found else 0.0


def _large(writer: JournalWriter) -> None:
    # As messages with their schemas 600 MB, as rows in Python's hands 200 MB.
    table = writer.table("ITEM", ITEM)
    for number in range(ROWS):
        writer.insert(table, (number, f"{number:0600}"))


def test_a_large_journal_among_many_small_ones_is_streamed(
    ship: Ship, folder: Folder, broker: KafkaBroker
) -> None:
    del broker  # only has to be there
    for sequence in range(1, SINGLES + 1):
        folder.write(sequence)
    folder.write_changes(SINGLES + 1, _large)
    shipper = ship.start("--once")
    peak = 0.0
    while shipper.process.poll() is None:
        peak = max(peak, _peak_mib(shipper.process.pid))
        time.sleep(0.02)
    assert shipper.wait() == 0, shipper.log
    assert folder.waiting == []
    assert 20 < peak < LIMIT_MIB, peak
