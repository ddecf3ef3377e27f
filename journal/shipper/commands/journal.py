"""The command ``journal``: what can be done with single journals."""

from __future__ import annotations

from firebird_cdc.config.arguments import Subparsers
from firebird_cdc.journal.shipper.commands import acknowledge, downgrade, retry, show


def register(subparsers: Subparsers) -> None:
    """Add the command with its actions."""
    parser = subparsers.add_parser("journal", help="inspect, retry and discard journals")
    actions = parser.add_subparsers(dest="journal_command", metavar="ACTION", required=True)
    show.register(actions)
    retry.register(actions)
    acknowledge.register(actions)
    downgrade.register(actions)
