"""However much waits, the shipper holds little of it."""

from __future__ import annotations

from shipping import ITEM, Folder, Ship

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.journal.format import JournalWriter

LIMIT_MIB = 150
ROWS = 150_000
SINGLES = 300


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
    code, peak = shipper.run_to_end()
    assert code == 0, shipper.log
    assert folder.waiting == []
    assert 20 < peak < LIMIT_MIB, peak
