"""The command ``journal acknowledge``: somebody knows what was refused, or lost."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from time import sleep, time
from typing import TYPE_CHECKING, Any

from firebird_cdc.config.locate import add_config_option
from firebird_cdc.output import tell

if TYPE_CHECKING:
    from firebird_cdc.packaging.server.layout import Server

_MOST_PAUSES = 3


def register(actions: Any) -> None:
    """Add the command to those of ``journal``."""
    parser = actions.add_parser(
        "acknowledge",
        help="acknowledge refused or lost changes, or the takeover from another journal folder",
        description="Clears the notices that commits were refused or not captured, that Kafka no"
        " longer has journals that were shipped, that journals were missing and never reached"
        " Kafka, that a BEGIN, an END or the announcement of a new epoch was left out, that"
        " snapshots ended without some rows, or that BLOBs could not be read. What happens later"
        " is reported again. For a DATABASE that is paused because Kafka has other journals under"
        " its numbers, the waiting journals are sent all the same. A running shipper reacts within"
        " seconds, otherwise the next one that starts does.",
    )
    add_config_option(parser)
    parser.add_argument(
        "databases",
        nargs="*",
        default=[],
        metavar="DATABASE",
        help="database paths as the log names them; default: all that have a notice",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Note it where it is counted, and leave word for the shipper; 0."""
    from firebird_cdc.clock import now_us
    from firebird_cdc.config import load_capture
    from firebird_cdc.errors import ShipError
    from firebird_cdc.journal.folder import failures
    from firebird_cdc.journal.folder.locks import shipper_present
    from firebird_cdc.journal.shipper.local_offsets import (
        acknowledge,
        forget,
        remembered,
        unreadable,
    )
    from firebird_cdc.packaging.server.counted import configs_on, counted_nowhere
    from firebird_cdc.packaging.server.locating import locate_config, readable_folder, servers_on

    config = locate_config(arguments.config)
    directory = readable_folder(load_capture(config).journal_directory)
    lost = {each.database: each.unknown for each in remembered(directory) if each.unknown}
    databases = arguments.databases or list(lost)
    damaged = {} if arguments.databases else unreadable(directory)
    known: list[failures.Failures] = []
    uncounted: list[str] = []
    forgotten: list[str] = []
    try:
        for key in damaged:
            forget(directory, key)
        servers = servers_on(directory)
        if not arguments.databases:
            _await_pause(servers)
        at_us = now_us()  # before anything is looked at: what comes meanwhile is not known
        found = failures.pages(directory, configs_on(directory, servers, [config]))
        if not arguments.databases:
            forgotten = failures.forget_damaged(found)
            uncounted = [
                f"{each.where}: {each.what}"
                for server in servers
                for each in counted_nowhere(server, found)
            ]
        known = failures.acknowledge_failures(found, arguments.databases, at_us)
        for database in databases:
            acknowledge(directory, database)
    except OSError as error:
        raise ShipError(
            f"the acknowledgement can't be saved: {error}; run this as the user of the database"
            " server"
        ) from error
    is_noted = failures.acknowledged_us(found) >= at_us
    for each in [*known, *(uncounted if is_noted else ())]:
        tell(f"acknowledged: {each}")
    for what in [*forgotten, *(notice.what for notice in damaged.values())]:
        tell(f"acknowledged: {what.partition(';')[0]}")
    named = {each.database for each in known}
    for database in databases:
        what = ", ".join(lost.get(database, ()))
        if what or database not in named:
            what = what or "no journals are known to be lost"
            tell(f"{database}: acknowledged ({what})")
    if uncounted and not is_noted:
        raise ShipError(
            f"what replication.log reports can't be acknowledged: {directory} has no .firebird-cdc"
            f" yet, and no state folder is there for {config}; run firebird-cdc install, which"
            " makes one, then this again"
        )
    if not (databases or known or uncounted or damaged or forgotten):
        log = "; replication.log is acknowledged up to now" if is_noted else ""
        print(f"nothing to acknowledge: no refused or lost transactions are counted{log}")
    elif databases and not shipper_present(directory):
        print("no shipper runs; the next one that starts takes it into account")
    return 0


def _await_pause(servers: Sequence[Server]) -> None:
    """Wait until the plugin would tell again what it last counted nowhere, so that nothing is
    acknowledged of which it said nothing yet. Raises ShipError if it goes on telling."""
    from firebird_cdc.errors import ShipError
    from firebird_cdc.packaging.server.engine_log import PAUSE_S, known_from, last_uncounted

    for _ in range(_MOST_PAUSES):
        left = known_from(max(map(last_uncounted, servers), default=0)) - time()
        if left <= 0:
            return
        print(f"waiting {left:.0f} s: replication.log may have more entries by then", flush=True)
        sleep(min(left, 1 + PAUSE_S))
    raise ShipError(
        "transactions are being refused or lost at this moment, and no counter records it; fix"
        " what replication.log names first, then run this again"
    )
