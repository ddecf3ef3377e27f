"""Tasks of the processes of failing_syncs.py beside the work. Run by ``Client.perform``."""

from __future__ import annotations

from pathlib import Path

from firebird_cdc.bridge.recovery import Recovery
from firebird_cdc.journal.folder import ledger


def shorten_ledgers() -> None:
    """Have a new ledger begin often."""
    ledger._LEDGER_LIMIT = 2_000


def recover(folder: str) -> None:
    """Look after servers that ended, as the shipper does when it starts."""
    Recovery(Path(folder), True).look()
