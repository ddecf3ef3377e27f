"""``firebird-cdc replay state``."""

from __future__ import annotations

import argparse

from firebird_cdc.config.arguments import name_and_value
from firebird_cdc.journal.replay.arguments import (
    add_common_options,
    add_jars_option,
    jars_of,
    source_of,
)
from firebird_cdc.journal.replay.engine import add_engine_option, replay_session
from firebird_cdc.journal.replay.output import only_spark_writes
from firebird_cdc.journal.replay.source.points import add_point_options
from firebird_cdc.output import tell

LOCAL_FORMATS = ("parquet", "json")
"""Formats that need no Spark."""


def register_state(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``state`` to the subcommands of ``firebird-cdc replay``."""
    state = subparsers.add_parser(
        "state",
        help="rebuild every table as of a point of its history",
        description="Write the rows that each table has after the last journal, or up to a point,"
        " one folder per table with typed columns, and summary.json."
        " Exit code 1 if the history has holes, or content of a row is missing in it.",
    )
    add_common_options(state)
    add_engine_option(state)
    state.add_argument("--output", metavar="DIR", required=True, help="folder to be made")
    state.add_argument(
        "--format",
        metavar="NAME",
        default="parquet",
        help="parquet (default), json (canonical text), or another sink of Spark: orc, jdbc, ...",
    )
    state.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=name_and_value,
        help="option of that sink; {database} and {table} in VALUE stand for the names",
    )
    add_jars_option(state, "that the sink needs, such as a JDBC driver")
    state.add_argument("--table", metavar="NAME", help="only this table, as the engine names it")
    add_point_options(state)
    state.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    folders, charset = source_of(arguments)
    name, jars = "firebird-cdc replay state", jars_of(arguments)
    needs = _only_spark(arguments)
    with replay_session(name, arguments, folders, jars=jars, only_spark=needs) as spark:
        from firebird_cdc.journal.replay.state.rebuild import describe, rebuild_state

        report = rebuild_state(
            spark,
            folders,
            arguments.output,
            database=arguments.database,
            table=arguments.table,
            none_charset=charset,
            output_format=arguments.format,
            options=dict(arguments.option),
            point=arguments.point,
        )
    for line in describe(report, arguments.output):
        tell(line)
    return 0 if report.whole else 1


def _only_spark(arguments: argparse.Namespace) -> str | None:
    """Return what was asked for that only Spark can do."""
    if arguments.format not in LOCAL_FORMATS:
        return f"--format {arguments.format}"
    if arguments.option:
        return "--option"
    return only_spark_writes({"--output": arguments.output})
