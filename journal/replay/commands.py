"""The commands of ``firebird-cdc replay``; what spark-submit runs is the same."""

from __future__ import annotations

import argparse
from pathlib import Path

from firebird_cdc.config.arguments import Subparsers


def register(subparsers: Subparsers) -> None:
    """Add ``replay`` to the command line."""
    parser = subparsers.add_parser("replay", help="audit journals, rebuild state")
    register_actions(parser.add_subparsers(dest="replay_command", metavar="ACTION", required=True))


def register_actions(subparsers: Subparsers) -> None:
    """Add the subcommands of ``firebird-cdc replay``."""
    from firebird_cdc.journal.replay.audit.command import register_audit
    from firebird_cdc.journal.replay.cluster.package import register_package
    from firebird_cdc.journal.replay.compact import register_compact
    from firebird_cdc.journal.replay.repair.command import register_repair
    from firebird_cdc.journal.replay.sql.command import register_sql
    from firebird_cdc.journal.replay.state.command import register_state

    register_audit(subparsers)
    register_state(subparsers)
    register_repair(subparsers)
    register_sql(subparsers)
    register_compact(subparsers)
    register_package(subparsers)
    path = subparsers.add_parser("path", help="print the file to give to spark-submit")
    path.set_defaults(run=_run_path)


def _run_path(arguments: argparse.Namespace) -> int:  # noqa: ARG001
    print(Path(__file__).with_name("main.py"))
    return 0
