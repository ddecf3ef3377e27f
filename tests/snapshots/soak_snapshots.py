"""Takes snapshots as often as asked beside writers, kills all that take part, prints the tally.

python tests/snapshots/soak_snapshots.py --rounds 200 [--seed WORD] [--keep DIRECTORY]
Rounds are under Classic, under Super and on a Firebird 4 server over TCP, and in half of them
tables change meanwhile: each line says it, and --place chooses. Ends with 1 after any fault. What a
round with a fault leaves stays in DIRECTORY.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from functools import partial
from pathlib import Path

_TESTS = Path(__file__).parents[1]
_FOLDERS = ("snapshots", "delivery", "engine", "kafka", "faults")
sys.path[:0] = [str(_TESTS), *(str(_TESTS / folder) for folder in _FOLDERS)]

from snapshot_rounds import PLACES, run_rounds  # noqa: E402

from firebird_cdc.demo.kafka import KafkaBroker, fetch_kafka  # noqa: E402
from firebird_cdc.demo.paths import cache_directory  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", default=secrets.token_hex(4), help="default: a new one")
    parser.add_argument("--side-by-side", type=int, default=3, metavar="NUMBER")
    parser.add_argument(
        "--place", action="append", choices=sorted(set(PLACES)), default=[], help="default: all"
    )
    parser.add_argument("--keep", type=Path, help="leave journals and logs in this folder")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="firebird-cdc-snapshots-") as temporary:
        directory = arguments.keep or Path(temporary)
        with KafkaBroker(Path(temporary) / "kafka", fetch_kafka(cache_directory())) as broker:
            tally = run_rounds(
                directory,
                broker,
                arguments.seed,
                arguments.rounds,
                places=arguments.place,
                side_by_side=arguments.side_by_side,
                tell=partial(print, flush=True),
            )
    print(f"seed {arguments.seed}\n{tally}", flush=True)
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
