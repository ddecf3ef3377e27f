"""The command ``demo``."""

from __future__ import annotations

import argparse
from pathlib import Path

from firebird_cdc.config.arguments import Subparsers


def register(subparsers: Subparsers) -> None:
    """Add this room's command to the command line."""
    parser = subparsers.add_parser(
        "demo",
        help="run the whole pipeline on this machine",
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
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from firebird_cdc.demo.run import run_demo, stop_demos

    if arguments.stop:
        return stop_demos(arguments.directory)
    return run_demo(arguments.directory, keep=arguments.keep, seed=arguments.seed)
