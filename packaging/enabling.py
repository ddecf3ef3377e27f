"""The commands ``tables``, ``enable`` and ``disable``, which see to a database's publication."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from firebird_cdc.config.arguments import Subparsers
from firebird_cdc.config.locate import add_config_option
from firebird_cdc.output import printable
from firebird_cdc.packaging.arguments import LOGIN_HELP, add_dry_run_option, add_server_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from firebird.driver import Connection

    from firebird_cdc.config import ConnectorConfig
    from firebird_cdc.packaging.publication import CapturedTable, PublishedDatabase
    from firebird_cdc.packaging.server.layout import Server

    Plan = Callable[[PublishedDatabase, frozenset[str] | None], tuple[list[str], PublishedDatabase]]

_NONE = "-"
_SHOWN = 10


def register(subparsers: Subparsers) -> None:
    """Add these commands to the command line."""
    tables = subparsers.add_parser(
        "tables",
        help="show which tables of a database are captured, with key and topic",
        description="Shows the tables of a database: whether their changes are captured, with which"
        f" message key, into which topic. Changes nothing. {LOGIN_HELP}.",
    )
    _add_database(tables)
    tables.add_argument("--json", action="store_true", help="print one JSON object a table")
    tables.set_defaults(run=_show)

    enable = subparsers.add_parser(
        "enable",
        help="have the changes of a database's tables captured",
        description="Puts tables into the publication of a database and switches it on, and shows"
        " what is captured then, with which message key, into which topic. May be run again: does"
        f" what is left to do. {LOGIN_HELP}.",
    )
    _add_database(enable)
    _add_tables(enable, "capture these tables (default: all, and those that are made later)")
    add_dry_run_option(enable)
    enable.set_defaults(run=_enable)

    disable = subparsers.add_parser(
        "disable",
        help="end the capture of a database's tables",
        description="Takes tables out of the publication of a database; without --tables all of"
        " them, and switches it off. What was captured before is still delivered. May be run"
        f" again. {LOGIN_HELP}.",
    )
    _add_database(disable)
    _add_tables(disable, "end the capture of these tables alone")
    add_dry_run_option(disable)
    disable.set_defaults(run=_disable)


def _add_database(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "database",
        metavar="DATABASE",
        help="path or alias of the database, or HOST[/PORT]:PATH (default of HOST:"
        " database.hostname of the options, else the server of this machine)",
    )
    add_config_option(parser)
    add_server_option(parser)


def _add_tables(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--tables",
        nargs="+",
        metavar="PATTERN",
        help=f"{what}: names, or regular expressions that match names as a whole, in any case of"
        " letters",
    )


class _Opened(NamedTuple):
    """An attached database with the options that count for it, None if there are none."""

    connection: Connection
    found: PublishedDatabase
    options: ConnectorConfig | None
    is_of_this_machine: bool


class _Change(NamedTuple):
    """Change of a publication. ``is_done``: there was one; ``others``: if that has switched it on,
    the connections that were there."""

    opened: _Opened
    is_done: bool
    others: Sequence[str] = ()


def _open(arguments: argparse.Namespace) -> _Opened:
    """Attach as ARGUMENTS say. Raises what can be wrong with that, each a sentence."""
    from firebird_cdc.errors import ClientMissing, DatabaseUnreadable
    from firebird_cdc.journal.snapshot.attachment import attach
    from firebird_cdc.packaging.databases import connection_to, remedy_for
    from firebird_cdc.packaging.publication import read_database

    server, options = _surroundings(arguments)
    attachment = None if options is None else options.attachment
    how = connection_to(server, arguments.database, attachment)
    try:
        connection = attach(how)
    except ClientMissing:
        raise
    except DatabaseUnreadable as error:
        remedy = remedy_for(error)
        raise DatabaseUnreadable(f"{error}; {remedy}" if remedy else str(error)) from None
    try:
        found = read_database(connection)
        return _Opened(connection, found, options, how.is_of_this_machine)
    except BaseException:
        connection.close()
        raise


def _surroundings(
    arguments: argparse.Namespace,
) -> tuple[Server | None, ConnectorConfig | None]:
    """Return server and options that count for the database: of this machine, if it has them."""
    from firebird_cdc.config import load_config
    from firebird_cdc.journal.snapshot.attachment import has_host
    from firebird_cdc.packaging.server.layout import find_server
    from firebird_cdc.packaging.server.locating import (
        config_in_environment,
        config_of,
        find_servers,
        locate_server,
    )

    servers = find_servers() if arguments.server is None else [find_server(arguments.server)]
    server = servers[0] if len(servers) == 1 else None
    config = arguments.config or config_in_environment(None if server is None else server.root)
    if config is None and server is not None and config_of(server).exists():
        config = config_of(server)
    options = None if config is None else load_config(config)
    is_elsewhere = has_host(arguments.database) or (
        options is not None and options.attachment.hostname is not None
    )
    if len(servers) > 1 and not is_elsewhere:
        server = locate_server()  # which says that there are several
    return server, options


def _show(arguments: argparse.Namespace) -> int:
    from firebird_cdc.packaging.publication import Naming

    opened = _open(arguments)
    opened.connection.close()
    found = opened.found
    tables = Naming(found, opened.options).tables()
    if arguments.json:
        for table in tables:
            told = {
                "database": found.path,
                "table": table.name,
                "captured": not table.why,
                "key": table.key,
                "topic": table.topic,
                "why": table.why or None,
            }
            print(json.dumps(told, ensure_ascii=False))
    else:
        _print_tables(found, tables)
    _warn(found, tables, opened.options)
    return 0


def _enable(arguments: argparse.Namespace) -> int:
    from firebird_cdc.packaging.publication import plan_enabling

    change = _change(arguments, plan_enabling)
    if change.others:
        _warn_of_sequences(change.others)
    is_known = not arguments.dry_run and _announce(change.opened)
    if change.is_done:
        but = ", but for those of connections that are warned of" if change.others else ""
        print(
            "Transactions that run now go on without being captured; those that begin from now on"
            f" are{but}. {_on_rows(change.opened.options, is_known)}. See whether all is well:"
            f" firebird-cdc check --database {arguments.database}"
        )
    return 0


def _warn_of_sequences(others: Sequence[str]) -> None:
    """Tell which connections may go unreported, though the publication is on by now."""
    more = len(others) - _SHOWN
    told = "; ".join(others[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    print(
        "warning: Firebird reports nothing that a connection writes, until it connects anew, if it"
        " has drawn a number from a sequence, as for an identity column, while the publication was"
        f" off. Have those connect anew that were there before: {printable(told)}",
        file=sys.stderr,
    )


def _on_rows(options: ConnectorConfig | None, is_known: bool) -> str:
    """Return what becomes of rows that are there; IS_KNOWN: the shipper knows the database."""
    if options is not None and not options.snapshots.may_want_rows:
        return f"Rows that are there already are not sent (snapshot.mode: {options.snapshots.mode})"
    begins = "is taken by the shipper" if is_known else "begins with the first change"
    return f"An initial snapshot (snapshot.mode) {begins}"


def _announce(opened: _Opened) -> bool:
    """Have the shipper know the database without a change of it; tell whether that is done."""
    from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
    from firebird_cdc.journal.shipper.requests import write_request
    from firebird_cdc.journal.shipper.snapshots.intake import CAPTURED
    from firebird_cdc.journal.shipper.snapshots.state import SNAPSHOTS

    options = opened.options
    # Who captures it has made the folder, on the machine of the server.
    if options is None or not opened.is_of_this_machine:
        return False
    if not (options.journal_directory / STATE_DIRECTORY).is_dir():
        return False
    content = {"id": CAPTURED, "type": CAPTURED, "data": None, "database": opened.found.path}
    try:
        write_request(options.journal_directory, content, SNAPSHOTS)
    except OSError:
        return False
    return True


def _disable(arguments: argparse.Namespace) -> int:
    from firebird_cdc.packaging.publication import plan_disabling

    _change(arguments, plan_disabling)
    return 0


def _change(arguments: argparse.Namespace, plan: Plan) -> _Change:
    """Carry out PLAN, or say what it would be."""
    from firebird_cdc.errors import SetupError
    from firebird_cdc.packaging.publication import Naming, carry_out, connections_beside, matching

    opened = _open(arguments)
    others: Sequence[str] = ()
    with closing(opened.connection):
        found = opened.found
        names = None if arguments.tables is None else matching(found, arguments.tables)
        statements, after = plan(found, names)
        tables = Naming(after, opened.options).tables()
        _print_tables(after, tables)
        _warn(after, tables, opened.options)
        if not statements:
            print("Nothing to do: the publication is so already.")
            return _Change(opened, is_done=False)
        if found.is_read_only:
            raise SetupError(
                f"{found.path} is read-only, so its publication can't be changed; gfix -mode"
                f" read_write {found.path}"
            )
        if not arguments.dry_run:
            carry_out(opened.connection, statements)
            if after.is_on and not found.is_on:
                others = connections_beside(opened.connection)
    for statement in statements:
        print(f"{'would run' if arguments.dry_run else 'ran'} {printable(statement)}")
    return _Change(opened, not arguments.dry_run, others)


def _print_tables(found: PublishedDatabase, tables: Sequence[CapturedTable]) -> None:
    switch = "publication on" if found.is_on else "publication off"
    print(printable(found.path) + f": {switch}{', new tables join' if found.takes_new else ''}")
    rows = [("TABLE", "KEY", "TOPIC"), *map(_row, tables)]
    widths = [max(len(row[place]) for row in rows) for place in range(2)]
    for table, key, topic in rows:
        print(f"  {table:{widths[0]}}  {key:{widths[1]}}  {topic}")


def _row(table: CapturedTable) -> tuple[str, str, str]:
    topic = f"({table.why})" if table.why else table.topic or _NONE
    return printable(table.name), printable(", ".join(table.key)) or _NONE, printable(topic)


def _warn(
    found: PublishedDatabase, tables: Sequence[CapturedTable], options: ConnectorConfig | None
) -> None:
    for warning in _warnings(found, tables, options):
        print(f"warning: {printable(warning)}", file=sys.stderr)


def _warnings(
    found: PublishedDatabase, tables: Sequence[CapturedTable], options: ConnectorConfig | None
) -> Iterator[str]:
    from firebird_cdc.packaging.publication import warnings

    yield from warnings(found, tables)
    if options is None:
        yield (
            "no connector options were found, which say how topics are called and what is left out;"
            " name them with --config"
        )
    elif options.transforms:
        yield "transforms are configured, which may lead events into other topics, or drop some"
