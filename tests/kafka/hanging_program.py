"""``FILE ARGUMENTS...``: ``firebird-cdc ARGUMENTS...`` whose shipping thread stands still
while FILE is there, and writes into it that it does, and whose other threads go on."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path

from firebird_cdc.cli import main
from firebird_cdc.journal.shipper.tasks.disk import DiskWatch

if __name__ == "__main__":
    hang = Path(sys.argv.pop(1))
    turn = DiskWatch.turn

    def turn_or_hang(watch: DiskWatch, now: float) -> float:
        while hang.exists():
            with suppress(FileNotFoundError), hang.open("r+") as told:
                told.write("hangs")
            time.sleep(0.01)
        return turn(watch, now)

    DiskWatch.turn = turn_or_hang  # type: ignore[method-assign]
    sys.exit(main(sys.argv[1:]))
