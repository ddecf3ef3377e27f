"""The command ``journal acknowledge``: somebody knows that Kafka has lost journals."""

from __future__ import annotations

import argparse
from typing import Any

from firebird_cdc.config.locate import add_config_option


def register(actions: Any) -> None:
    """Add the command to those of ``journal``."""
    parser = actions.add_parser(
        "acknowledge",
        help="say that what Kafka has lost, or who shipped before, is known",
        description="Ends the notice that Kafka no longer has journals that were shipped. For a"
        " DATABASE that stands still because Kafka has other journals under its numbers, it has the"
        " ones that wait sent all the same. The shipper that runs takes note within seconds, or"
        " else the next one.",
    )
    add_config_option(parser)
    parser.add_argument(
        "databases",
        nargs="*",
        default=[],
        metavar="DATABASE",
        help="paths as the log names them; default: all of which journals are lost",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Leave word for the shipper; 0."""
    from firebird_cdc.errors import ShipError
    from firebird_cdc.journal.lock import shipper_present
    from firebird_cdc.journal.shipped import acknowledge, remembered
    from firebird_cdc.packaging.locating import locate_journals

    directory = locate_journals(arguments.config)
    lost = {memory.database: memory.lost for memory in remembered(directory) if memory.lost}
    databases = arguments.databases or list(lost)
    for database in databases:
        try:
            acknowledge(directory, database)
        except OSError as error:
            raise ShipError(
                f"{directory} can't be written: {error}; run this as the user of the database"
                " server"
            ) from error
        what = ", ".join(map(str, lost.get(database, ()))) or "no journals are known to be lost"
        print(f"{database}: acknowledged ({what})")
    if not databases:
        print("nothing is known to be lost")
    elif not shipper_present(directory):
        print("no shipper runs; the next one takes note")
    return 0
