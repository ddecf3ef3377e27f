"""Journals with a damaged byte that are committed: they are published, for the shipper to set
aside, and hold up nothing."""

from __future__ import annotations

import time
from pathlib import Path
from uuid import UUID

import logbook
import pytest
from test_confirmer import PlayedServer

from firebird_cdc.bridge import confirmer as module
from firebird_cdc.bridge.confirmer import Confirmer
from firebird_cdc.errors import JournalCorrupt
from firebird_cdc.journal.format import JournalReader

_PATIENCE_S = 10


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedServer:
    for pause in ("_TROUBLE_S", "_LEDGER_TROUBLE_S", "_PAUSE_S"):
        monkeypatch.setattr(module, pause, 0.0)
    return PlayedServer(tmp_path)


def _damage(journal: Path) -> None:
    """Change a byte of its event; the seal is whole."""
    content = journal.read_bytes()
    assert content.count(b"it") == 1
    journal.write_bytes(content.replace(b"it", b"is"))


def _commit(server: PlayedServer, is_unresolved: bool, ddl: str = "") -> UUID:
    uuid = server.commit(0, ddl=ddl)
    server.events[-1] = server.events[-1]._replace(is_unresolved=is_unresolved)  # type: ignore[call-arg]
    return uuid


@pytest.mark.parametrize("ddl", ["", "ALTER TABLE it ADD N INTEGER"])
@pytest.mark.parametrize("is_unresolved", [False, True])
def test_a_damaged_journal_is_published_and_holds_up_nothing(
    server: PlayedServer, is_unresolved: bool, ddl: str
) -> None:
    confirmer = Confirmer(server, server.folder, fsync=True)
    damaged = _commit(server, is_unresolved, ddl)
    _damage(server.folder.live(damaged))
    later = _commit(server, is_unresolved)
    with logbook.TestHandler() as log:
        until = time.monotonic() + _PATIENCE_S
        while not server.folder.committed(later).exists():
            assert time.monotonic() < until
            confirmer.turn()
    numbers = []
    for uuid in (damaged, later):
        with JournalReader(server.folder.committed(uuid)) as reader:
            assert reader.stamp is not None
            numbers.append(reader.stamp.sequence)
    assert numbers == [1, 2]
    with JournalReader(server.folder.committed(damaged)) as reader, pytest.raises(JournalCorrupt):
        list(reader.changes())
    told = [record for record in log.records if record.level >= logbook.WARNING]
    if is_unresolved or ddl:
        assert {record.kwargs["journal"] for record in told} == {damaged}
        assert all(str(damaged) in record.message for record in told)
