"""A shipper that can be made to die: ``ship_program.py CONFIG LOGGING [POINT HIT]``.

The file TURNS beside CONFIG grows by a byte with each turn of the recovery that it outlives.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from points import anything, arm, wrap

from firebird_cdc.cli import main

TURNS = "turns"


def _count_turns(file: Path) -> None:
    def count() -> None:
        with file.open("ab") as turns:
            turns.write(b".")

    wrap("firebird_cdc.bridge.recovery", "Recovery._turn", anything, "after", count)


if __name__ == "__main__":
    config, logging, *point = sys.argv[1:]
    _count_turns(Path(config).with_name(TURNS))
    if point:
        arm(point[0], int(point[1]))
    sys.exit(main(["ship", "--config", config, "--logging", logging]))
