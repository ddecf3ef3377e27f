"""A shipper that can be made to die: ``ship_program.py CONFIG LOGGING [POINT HIT]``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from points import arm

from firebird_cdc.cli import main

if __name__ == "__main__":
    config, logging, *point = sys.argv[1:]
    if point:
        arm(point[0], int(point[1]))
    sys.exit(main(["ship", "--config", config, "--logging", logging]))
