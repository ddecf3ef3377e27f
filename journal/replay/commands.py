"""``firebird-cdc replay audit``, ``state`` and ``path``; what spark-submit runs is the same."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from firebird_cdc.errors import ReplayError

_CONFIG_VARIABLE = "FIREBIRD_CONNECTOR_CONFIG"
_UNTIL = re.compile(r"(?:(\d+):)?(\d+)")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``audit``, ``state`` and ``path`` to the subcommands of ``firebird-cdc replay``."""
    audit = subparsers.add_parser(
        "audit",
        help="check every journal and the history as a whole",
        description="Check checksums, seals and stamps, that no sequence number is missing or"
        " given twice, marked gaps, and that each change fits the row as last known."
        " Exit code 0: sound, 1: a fault was found.",
    )
    _common(audit)
    audit.add_argument("--output", metavar="DIR", help="write findings/ and counts/ there")
    audit.set_defaults(run=_run_audit)
    state = subparsers.add_parser(
        "state",
        help="rebuild the last state of every table",
        description="Write the rows that each table has after the last journal, one folder per"
        " table, and summary.json. Exit code 1 if the history has holes.",
    )
    _common(state)
    state.add_argument("--output", metavar="DIR", required=True, help="folder to be made")
    state.add_argument("--table", metavar="NAME", help="only this table, as the engine names it")
    state.add_argument(
        "--until",
        metavar="[EPOCH:]SEQUENCE",
        type=_parse_until,
        help="the state after this journal; without EPOCH: of each database's last one",
    )
    state.set_defaults(run=_run_state)
    path = subparsers.add_parser("path", help="print the file to give to spark-submit")
    path.set_defaults(run=_run_path)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--journals",
        metavar="DIR",
        action="append",
        help="folder of journals, several times for several; default: the archive of --config",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help=f"reddatabase.connector.yaml (default: ${_CONFIG_VARIABLE})",
    )
    parser.add_argument("--database", metavar="PATH", help="only this database")
    parser.add_argument(
        "--format", choices=("json", "parquet"), default="json", help="of what is written"
    )
    parser.add_argument(
        "--master", metavar="URL", help="where Spark runs (default: local[2]); not for spark-submit"
    )


def _parse_until(text: str) -> tuple[int | None, int]:
    match = _UNTIL.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no SEQUENCE or EPOCH:SEQUENCE")
    epoch, sequence = match.groups()
    return None if epoch is None else int(epoch), int(sequence)


def _source(arguments: argparse.Namespace) -> tuple[list[str], str]:
    """Return the folders to read and the character set of NONE texts.

    Raises ReplayError if no folder is named, ConfigError for a wrong configuration.
    """
    from firebird_cdc.journal.replay.advice import no_history

    config: Path | None = arguments.config
    if config is None and _CONFIG_VARIABLE in os.environ:
        config = Path(os.environ[_CONFIG_VARIABLE])
    charset, archive = "UTF-8", None
    if config is not None:
        from firebird_cdc.config import load_config

        loaded = load_config(config)
        charset, archive = loaded.charset_none, loaded.journal_archive_directory
    if arguments.journals:
        return arguments.journals, charset
    if archive is not None:
        return [str(archive)], charset
    if config is None:
        raise ReplayError(
            "no folder of journals is named: give --journals DIR, or --config FILE whose"
            " connector.journal.archive.directory is set"
        )
    raise ReplayError(no_history(f"{config} keeps no archive"))


def _run_audit(arguments: argparse.Namespace) -> int:
    folders, charset = _source(arguments)
    from firebird_cdc.journal.replay.session import spark_session

    with spark_session("firebird-cdc replay audit", arguments.master) as spark:
        from firebird_cdc.journal.replay.audit import describe, run_audit

        report = run_audit(
            spark,
            folders,
            database=arguments.database,
            none_charset=charset,
            output=arguments.output,
            output_format=arguments.format,
        )
        for line in describe(report):
            print(line)
    return 0 if report.sound else 1


def _run_state(arguments: argparse.Namespace) -> int:
    folders, charset = _source(arguments)
    from firebird_cdc.journal.replay.session import spark_session

    with spark_session("firebird-cdc replay state", arguments.master) as spark:
        from firebird_cdc.journal.replay.state import describe, rebuild_state

        report = rebuild_state(
            spark,
            folders,
            arguments.output,
            database=arguments.database,
            table=arguments.table,
            none_charset=charset,
            output_format=arguments.format,
            until=arguments.until,
        )
        for line in describe(report, arguments.output):
            print(line)
    return 0 if report.whole else 1


def _run_path(arguments: argparse.Namespace) -> int:  # noqa: ARG001
    print(Path(__file__).with_name("main.py"))
    return 0
