"""One database whose numbers can't be read or written: it waits, is shown, and the others go on."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from test_confirmer import PlayedServer

from firebird_cdc.bridge import confirmer as module
from firebird_cdc.bridge import history, sequence
from firebird_cdc.bridge.confirmer import Confirmer
from firebird_cdc.bridge.folder import JournalFolder
from firebird_cdc.bridge.host import LastSessionLeft
from firebird_cdc.journal.confirming import read_confirmer
from firebird_cdc.journal.format import read_envelope, write_stamp

_PATIENCE_S = 10


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedServer:
    for pause in ("_TROUBLE_S", "_LEDGER_TROUBLE_S", "_PAUSE_S"):
        monkeypatch.setattr(module, pause, 0.0)
    return PlayedServer(tmp_path)


def _work_until(confirmer: Confirmer, is_done: Callable[[], bool]) -> None:
    until = time.monotonic() + _PATIENCE_S
    while not is_done():
        assert time.monotonic() < until
        confirmer.turn()


def _number(folder: JournalFolder, uuid: UUID) -> int:
    stamp = read_envelope(folder.committed(uuid))[1]
    assert stamp is not None
    return stamp.sequence


def _damaged_ledger(server: PlayedServer) -> tuple[Path, bytes]:
    """Publish two journals and damage the ledger that has them; return it and what was in it."""
    confirmer = Confirmer(server, server.folder, fsync=True)
    published = [server.commit(0), server.commit(0)]
    _work_until(
        confirmer, lambda: all(server.folder.committed(uuid).exists() for uuid in published)
    )
    confirmer.let_go()
    key = sequence.database_key(str(server.database_path))
    ledger = server.folder.databases / f"{key}.ledger"
    whole = ledger.read_bytes()
    ledger.write_bytes(whole[:20] + b"\xff" * 8 + whole[28:])
    return ledger, whole


@pytest.mark.parametrize("name", ["a.fdb", "z.fdb"])
def test_a_database_whose_ledger_is_damaged_holds_up_no_other_one(
    server: PlayedServer, name: str
) -> None:
    ledger, whole = _damaged_ledger(server)
    damaged, other = server.database_path, server.database_path.with_name(name)
    confirmer = Confirmer(server, server.folder, fsync=True)
    waits = server.commit(0)
    confirmer.turn()
    server.database_path = other
    goes_on = [server.commit(0)]
    _work_until(confirmer, server.folder.committed(goes_on[0]).exists)
    goes_on.append(server.commit(0))  # also once it is known
    _work_until(confirmer, server.folder.committed(goes_on[1]).exists)
    assert [_number(server.folder, uuid) for uuid in goes_on] == [1, 2]
    assert server.folder.live(waits).exists()

    state = read_confirmer(server.folder.path)
    assert state.undecided == 1
    (_, text), *_ = state.troubles(server.folder.path).values()
    assert "1 journal can't be published yet" in text

    server.database_path = damaged
    ledger.write_bytes(whole)  # brought back
    _work_until(confirmer, server.folder.committed(waits).exists)
    assert _number(server.folder, waits) == 3
    _work_until(confirmer, lambda: read_confirmer(server.folder.path).undecided == 0)


def test_stamps_are_restored_beside_a_damaged_ledger(server: PlayedServer) -> None:
    ledger, whole = _damaged_ledger(server)
    server.database_path = server.database_path.with_name("other.fdb")
    confirmer = Confirmer(server, server.folder, fsync=True)
    stamped = server.commit(0)
    _work_until(confirmer, server.folder.committed(stamped).exists)
    confirmer.let_go()

    server.folder.is_restored = False
    _lose_stamp(server.folder.committed(stamped), stamped)
    confirmer = Confirmer(server, server.folder, fsync=True)
    later = server.commit(0)
    _work_until(confirmer, server.folder.committed(later).exists)
    assert _number(server.folder, stamped) == 1
    assert not server.folder.is_restored  # of the damaged one they may be lost
    ledger.write_bytes(whole)
    confirmer.let_go()
    confirmer = Confirmer(server, server.folder, fsync=True)
    last = server.commit(0)
    _work_until(confirmer, server.folder.committed(last).exists)
    assert server.folder.is_restored


def _lose_stamp(journal: Path, uuid: UUID) -> None:
    """Write a stamp of another epoch, as a leader leaves that dies before its ledger has it."""
    stamp = read_envelope(journal)[1]
    assert stamp is not None
    with journal.open("r+b") as file:
        write_stamp(file.fileno(), uuid, stamp._replace(epoch=stamp.epoch + 9, sequence=99))


def test_what_was_cut_off_is_finished_before_the_next_number(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmer = Confirmer(server, server.folder, fsync=True)
    confirmer.turn()  # looks around first
    uuids = [server.commit(0) for _ in range(3)]
    confirmer._receive(0)
    server.database_path = server.database_path.with_name("a.fdb")
    other = server.commit(0)
    rename, done = os.rename, []

    def fail_once(source: Any, target: Any, **more: Any) -> None:
        if source == f"{uuids[1]}.log.live" and not done:
            done.append(source)
            raise OSError(errno.EIO, os.strerror(errno.EIO), source)
        rename(source, target, **more)

    monkeypatch.setattr(os, "rename", fail_once)
    _work_until(confirmer, server.folder.committed(other).exists)
    _work_until(confirmer, server.folder.committed(uuids[2]).exists)
    assert done
    assert [_number(server.folder, uuid) for uuid in uuids] == [1, 2, 3]


def test_a_process_without_descriptors_lets_another_one_publish(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmer = Confirmer(server, server.folder, fsync=True)
    uuid = server.commit(0)

    def refuse(*given: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(history, "SequenceLedger", refuse)
        confirmer.turn()
    assert server.folder.live(uuid).exists()
    another = PlayedServer.__new__(PlayedServer)
    another.__dict__ = {**server.__dict__, "folder": JournalFolder(server.folder.path)}
    second = Confirmer(another, another.folder, fsync=True)
    _work_until(second, server.folder.committed(uuid).exists)
    assert _number(server.folder, uuid) == 1


def test_what_failed_is_tried_again_before_the_last_session_leaves(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEDGER_TROUBLE_S", 3600.0)
    confirmer = Confirmer(server, server.folder, fsync=True)
    uuid = server.commit(0)

    def refuse(*given: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(history, "SequenceLedger", refuse)
        confirmer.turn()
    for _ in range(3):
        confirmer.turn()
    assert server.folder.live(uuid).exists()
    server.events.append(LastSessionLeft(2))
    confirmer.turn()
    assert server.folder.committed(uuid).exists()
    assert server.settled == 2
