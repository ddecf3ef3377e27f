"""``python -m firebird_cdc.demo``: the demo, in a clone; servers don't get it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from firebird_cdc.demo.run import run_demo, stop_demos
from firebird_cdc.errors import FirebirdCdcError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="demo",
        description="Starts a Kafka broker, captures a workload in the embedded Firebird engine, "
        "ships it, lets Spark replay it, and compares what each of them holds in the end. Exit "
        "code 0: all equal, 1: something differs or failed.",
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave the stack up, and say how to use and stop it"
    )
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="DIR",
        help="folder for this run, which must not hold one yet (default: a new one in .run/); "
        "with --stop: the run to stop",
    )
    parser.add_argument(
        "--stop", action="store_true", help="stop what earlier runs left up, and remove its files"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the workload's random choices")
    return parser


def main() -> int:
    """Run the demo, or stop former ones; return the exit code."""
    arguments = _parser().parse_args()
    try:
        if arguments.stop:
            return stop_demos(arguments.directory)
        return run_demo(arguments.directory, keep=arguments.keep, seed=arguments.seed)
    except FirebirdCdcError as error:
        print(f"demo: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
