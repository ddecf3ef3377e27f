"""``firebird-cdc replay sql``: what its command line says."""

from __future__ import annotations

import argparse

from firebird_cdc.config.arguments import positive
from firebird_cdc.journal.replay.arguments import add_common_options, source_of
from firebird_cdc.journal.replay.connection_options import add_login_options, password_of
from firebird_cdc.journal.replay.source import points
from firebird_cdc.journal.snapshot.attachment import DatabaseConnection
from firebird_cdc.output import tell


def register_sql(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``sql`` to the subcommands of ``firebird-cdc replay``."""
    sql = subparsers.add_parser(
        "sql",
        help="write SQL that brings a restored backup forward",
        description="Write scripts for isql that apply to a restored backup what was committed"
        " since it was taken, up to a point. Exit code 0: they make all of it, 1: something is"
        " left out, which is told.",
    )
    add_common_options(sql)
    since = sql.add_argument_group("what the backup holds").add_mutually_exclusive_group(
        required=True
    )
    since.add_argument(
        "--since",
        metavar="[EPOCH:]SEQUENCE",
        type=points.parse_sequence,
        help="the last journal that the backup holds; without EPOCH: of the last one",
    )
    since.add_argument(
        "--since-time",
        dest="since",
        metavar="TIME",
        type=points.parse_time,
        help="all journals before the first one that was committed later (as --at)",
    )
    since.add_argument(
        "--restored",
        metavar="DSN",
        help="ask the restored copy, made by nbackup or of the file, which transactions it holds:"
        " [HOST[/PORT]:]PATH",
    )
    points.add_point_options(sql)
    sql.add_argument("--output", metavar="DIR", required=True, help="folder to be made")
    sql.add_argument(
        "--tolerant",
        action="store_true",
        help="for a backup whose place is known only roughly: rows are made as the journals say"
        " whatever they were, and statements that fail are noted",
    )
    sql.add_argument(
        "--despite-holes",
        action="store_true",
        help="go on across journals that are missing, damaged or doubled, and marked gaps",
    )
    sql.add_argument(
        "--published",
        action="store_true",
        help="leave the publication on: a server that captures publishes all of it once more",
    )
    sql.add_argument(
        "--transactions-per-commit",
        metavar="N",
        type=positive,
        default=1,
        help="how many transactions share a COMMIT (default: 1)",
    )
    copy = sql.add_argument_group("the copy that --restored asks")
    add_login_options(copy, user="who attaches (default: $ISC_USER)")
    sql.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from firebird_cdc.journal.replay.cluster.session import spark_session

    folders, charset = source_of(arguments)
    held = None
    if arguments.restored is not None:
        from firebird_cdc.journal.replay.sql.restored import ask_copy

        held = ask_copy(
            DatabaseConnection(
                arguments.restored,
                arguments.user,
                password_of(arguments),
                arguments.client_library,
            )
        )
    name = "firebird-cdc replay sql"
    with spark_session(name, arguments.master, folders=folders) as spark:
        from firebird_cdc.journal.replay.sql.forward import describe, write_forward

        report = write_forward(
            spark,
            folders,
            arguments.output,
            since=arguments.since,
            until=arguments.point,
            held=held,
            database=arguments.database,
            none_charset=charset,
            tolerant=arguments.tolerant,
            despite_holes=arguments.despite_holes,
            published=arguments.published,
            per_commit=arguments.transactions_per_commit,
        )
    for line in describe(report, arguments.output):
        tell(line)
    return 0 if report.whole else 1
