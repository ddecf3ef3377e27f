"""Kills the shipper as often as asked, while the broker suffers, and prints the tally.

python tests/delivery/soak_delivery.py --rounds 200 [--seed WORD] [--keep DIRECTORY] [--rows N]
Then ships one journal of so many rows (default: ten million) and measures the memory.
Ends with 1 after any fault, or if a point was never reached.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE), *(str(_HERE.parent / folder) for folder in (".", "kafka", "faults"))]

from large_journal import ship_large  # noqa: E402
from rounds import run_rounds  # noqa: E402

from firebird_cdc.demo.kafka import KafkaBroker, fetch_kafka  # noqa: E402
from firebird_cdc.demo.paths import cache_directory  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", default=secrets.token_hex(4), help="default: a new one")
    parser.add_argument("--keep", type=Path, help="leave journals and logs in this folder")
    parser.add_argument("--rows", type=int, default=10_000_000, help="of one large journal, or 0")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="firebird-cdc-delivery-") as temporary:
        directory = arguments.keep or Path(temporary)
        with KafkaBroker(Path(temporary) / "kafka", fetch_kafka(cache_directory())) as broker:
            tally = run_rounds(
                directory,
                broker,
                arguments.seed,
                arguments.rounds,
                extra=arguments.rounds,
                tell=partial(print, flush=True),
            )
            if arguments.rows:
                for way in ("plain", "transactional"):
                    large = Path(temporary) / way
                    is_exact = way == "transactional"
                    print(ship_large(large, broker, arguments.rows, transactional=is_exact))
                    shutil.rmtree(large)
    print(f"seed {arguments.seed}\n{tally}", flush=True)
    return 1 if tally.faults or tally.never_fired else 0


if __name__ == "__main__":
    sys.exit(main())
