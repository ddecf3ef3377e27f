"""Journals that an audit of a database in use waits for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

from firebird_cdc.journal.format import JournalWriter
from firebird_cdc.journal.replay.audit.database.seen_journals import unconfirmed_journals

_DATABASE = "/data/shop.fdb"
_GUID = UUID(int=5)


@dataclass
class _Snapshot:
    guid: UUID
    last: int

    def sees(self, transaction: int) -> bool:
        return transaction <= self.last


def _begin(
    folder: Path, transaction: int, database: str = _DATABASE, guid: UUID = _GUID
) -> tuple[str, int]:
    """Write a journal as the server leaves it until it is confirmed: of epoch 0, in any epoch."""
    path = folder / f"{uuid4()}.log.live"
    with JournalWriter(
        path, transaction=transaction, database=database, user="X", database_guid=guid
    ) as writer:
        writer.seal()
    return path.name, transaction


def test_unconfirmed_journals_within_the_snapshot_are_waited_for(tmp_path: Path) -> None:
    mine = _begin(tmp_path, 7)
    of_unknown_guid = _begin(tmp_path, 8, guid=UUID(int=0))
    _begin(tmp_path, 9)
    _begin(tmp_path, 7, database="/data/other.fdb")
    _begin(tmp_path, 7, guid=UUID(int=6))  # of what was there before a restore
    (tmp_path / f"{uuid4()}.log.live").touch()

    def waiting(guid: UUID) -> set[tuple[str, int]]:
        snapshot = cast("Any", _Snapshot(guid, 8))
        return set(unconfirmed_journals([str(tmp_path)], _DATABASE, snapshot))

    assert waiting(_GUID) == {mine, of_unknown_guid}
    assert len(waiting(UUID(int=0))) == 3
