"""Kills the server as often as asked, and prints the tally; ends with 1 after any fault.

python tests/faults/soak.py --rounds 500 [--seed WORD] [--mode Classic] [--keep DIRECTORY] [--bare]
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "engine"), str(_HERE.parent)]

from harness import (  # noqa: E402
    MODES,
    Libraries,
    Tally,
    random_lives,
    run_lives,
    without_points,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", default=secrets.token_hex(4), help="default: a new one")
    parser.add_argument("--mode", action="append", choices=MODES, help="default: all by turns")
    parser.add_argument("--keep", type=Path, help="leave databases and journals in this folder")
    parser.add_argument("--bare", action="store_true", help="capture nothing: the engine's share")
    arguments = parser.parse_args()
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="firebird-cdc-soak-") as temporary:
        directory = arguments.keep or Path(temporary)
        directory.mkdir(exist_ok=True)
        libraries = Libraries.build(directory)
        lives = random_lives(arguments.seed, arguments.rounds, arguments.mode or MODES)
        print(f"seed {arguments.seed}", flush=True)
        if arguments.bare:
            lives = without_points(lives)
        run_lives(directory, libraries, tally, lives, captures=not arguments.bare)
    print(f"seed {arguments.seed}\n{tally}", flush=True)
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
