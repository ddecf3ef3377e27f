"""One database whose numbers can't be read or written: it waits, is shown, and the others go on."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import logbook
import pytest
from played_server import (
    PlayedServer,
    publish_as_before,
    shorten_pauses,
    stamp_of,
    unreadable_journals,
    work_until,
)

from firebird_cdc.bridge import recovery as recovery_module
from firebird_cdc.bridge.confirm import (
    completion,
    history,
    leadership,
    troubles,
)
from firebird_cdc.bridge.confirm.loop import Confirmer
from firebird_cdc.bridge.host import LastSessionLeft
from firebird_cdc.bridge.recovery import Recovery
from firebird_cdc.errors import CaptureError
from firebird_cdc.journal.folder import journal_folder, ledger_lock, owners
from firebird_cdc.journal.folder import ledger as sequence
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.locks import is_held
from firebird_cdc.journal.folder.shared_page import read_confirmer
from firebird_cdc.journal.format import (
    JournalReader,
    database_of,
    read_envelope,
    write_stamp,
)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedServer:
    shorten_pauses(monkeypatch)
    return PlayedServer(tmp_path)


def _number(folder: JournalFolder, uuid: UUID) -> int:
    return stamp_of(folder, uuid).sequence


def _damaged_ledger(server: PlayedServer) -> tuple[Path, bytes]:
    """Publish two journals and damage the ledger that has them; return it and what was in it."""
    confirmer = Confirmer(server, server.folder, fsync=True)
    published = [server.commit(0), server.commit(0)]
    work_until(confirmer, lambda: all(server.folder.committed(uuid).exists() for uuid in published))
    confirmer.let_go()
    key = ledger_lock.database_key(str(server.database_path))
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
    work_until(confirmer, server.folder.committed(goes_on[0]).exists)
    goes_on.append(server.commit(0))  # also once it is known
    work_until(confirmer, server.folder.committed(goes_on[1]).exists)
    assert [_number(server.folder, uuid) for uuid in goes_on] == [1, 2]
    assert server.folder.live(waits).exists()

    state = read_confirmer(server.folder.path)
    assert state.undecided == 1
    (_, text), *_ = state.troubles(server.folder.path).values()
    assert "1 transaction can't be published yet" in text

    server.database_path = damaged
    ledger.write_bytes(whole)  # brought back
    work_until(confirmer, server.folder.committed(waits).exists)
    assert _number(server.folder, waits) == 3
    work_until(confirmer, lambda: read_confirmer(server.folder.path).undecided == 0)


def test_stamps_are_restored_beside_a_damaged_ledger(server: PlayedServer) -> None:
    ledger, whole = _damaged_ledger(server)
    server.database_path = server.database_path.with_name("other.fdb")
    [stamped] = publish_as_before(server)

    server.folder.is_restored = False
    _lose_stamp(server.folder.committed(stamped), stamped)
    confirmer = Confirmer(server, server.folder, fsync=True)
    later = server.commit(0)
    work_until(confirmer, server.folder.committed(later).exists)
    assert _number(server.folder, stamped) == 1
    assert not server.folder.is_restored  # of the damaged one they may be lost
    ledger.write_bytes(whole)
    confirmer.let_go()
    confirmer = Confirmer(server, server.folder, fsync=True)
    last = server.commit(0)
    work_until(confirmer, server.folder.committed(last).exists)
    assert server.folder.is_restored


def test_stamps_are_still_to_be_restored_while_a_ledger_is_missing(server: PlayedServer) -> None:
    [stamped] = publish_as_before(server)
    key = ledger_lock.database_key(str(server.database_path))
    ledger = server.folder.databases / f"{key}.ledger"
    elsewhere = ledger.rename(server.folder.path.parent / "lost+found")

    server.folder.is_restored = False  # the machine started anew
    _lose_stamp(server.folder.committed(stamped), stamped)
    confirmer = Confirmer(server, server.folder, fsync=True)
    confirmer.turn()
    assert not server.folder.is_restored
    elsewhere.rename(ledger)
    waits = server.commit(0)
    work_until(confirmer, server.folder.committed(waits).exists)
    confirmer.let_go()
    confirmer = Confirmer(server, server.folder, fsync=True)
    work_until(confirmer, lambda: server.folder.is_restored)
    assert [_number(server.folder, uuid) for uuid in (stamped, waits)] == [1, 2]


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_database_whose_ledger_is_gone_for_good_goes_on_in_a_new_epoch(
    server: PlayedServer, is_missing: bool
) -> None:
    ledger, _ = _damaged_ledger(server)
    if is_missing:
        ledger.unlink()
    confirmer = Confirmer(server, server.folder, fsync=True)
    waits = [server.commit(0), server.commit(0)]
    for _ in range(3):
        confirmer.turn()
    assert all(server.folder.live(uuid).exists() for uuid in waits)
    ledger.with_suffix(".anew").touch()  # as docs/operations.md says
    work_until(confirmer, server.folder.committed(waits[1]).exists)
    for number, uuid in enumerate(waits, 1):
        assert stamp_of(server.folder, uuid).number == (1, number)
    work_until(confirmer, lambda: read_confirmer(server.folder.path).undecided == 0)


def _lose_stamp(journal: Path, uuid: UUID) -> None:
    """Write a stamp of another epoch, as a leader leaves that dies before its ledger has it."""
    stamp = read_envelope(journal)[1]
    assert stamp is not None
    with journal.open("r+b") as file:
        write_stamp(file.fileno(), uuid, stamp._replace(epoch=stamp.epoch + 9, sequence=99))


def test_interrupted_publication_is_finished_before_the_next_number(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmer = Confirmer(server, server.folder, fsync=True)
    confirmer.turn()  # looks around first
    uuids = [server.commit(0) for _ in range(3)]
    confirmer._receive(0)
    server.database_path = server.database_path.with_name("a.fdb")
    other = server.commit(0)
    record, done = sequence.SequenceLedger.record, []

    def fail_once(ledger: sequence.SequenceLedger, *given: Any) -> None:
        record(ledger, *given)
        if not done:
            done.append(given)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(sequence.SequenceLedger, "record", fail_once)
    work_until(confirmer, server.folder.committed(other).exists)
    work_until(confirmer, server.folder.committed(uuids[2]).exists)
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
    work_until(second, server.folder.committed(uuid).exists)
    assert _number(server.folder, uuid) == 1


def test_failed_publication_is_retried_before_the_last_session_leaves(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(troubles, "_LEDGER_TROUBLE_S", 3600.0)
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


def test_a_process_that_ended_is_looked_after_while_a_ledger_is_damaged(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _damaged_ledger(server)
    confirmer = Confirmer(server, server.folder, fsync=True)
    waits = server.commit(0)
    confirmer.turn()
    server.database_path = server.database_path.with_name("other.fdb")
    left = server.commit_elsewhere(0, _ended_process(server.folder), has_ticket=False)
    for _ in range(5):
        monkeypatch.setattr(confirmer._looks, "at", 0.0)  # a second later
        confirmer.turn()
    assert server.folder.committed(left).exists()
    assert server.folder.live(waits).exists()
    assert not server.folder.owners.ended()


def _ended_process(folder: JournalFolder) -> UUID:
    owner = uuid4()
    folder.owners.mark(owner).touch()
    return owner


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> set[str]:
    """Names of journals that the disk doesn't give back."""
    return unreadable_journals(monkeypatch, getattr(request, "param", errno.EIO))


def test_unreadable_journal_blocks_others_for_seconds_only_and_is_shown(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch, unreadable: set[str]
) -> None:
    folder, owner = server.folder, _ended_process(server.folder)
    lost = server.commit_elsewhere(0, owner)
    unreadable.add(f"{lost}.log.live")
    confirmer = Confirmer(server, folder, fsync=True)
    server.database_path = server.database_path.with_name("other.fdb")
    other = server.commit(0)
    for _ in range(5):
        confirmer.turn()
    assert folder.live(other).exists()  # it may have to come after the one that can't be read
    assert read_confirmer(folder.path).undecided > 0

    monkeypatch.setattr(troubles, "_PATIENCE_S", 0.0)  # later
    with logbook.TestHandler() as log:
        work_until(confirmer, folder.committed(other).exists)
        for _ in range(3):
            monkeypatch.setattr(confirmer._looks, "at", 0.0)
            monkeypatch.setattr(confirmer._scan, "scanned_at", 0.0)
            confirmer.turn()
    assert sum("can't be read or moved (Input/output error)" in text for text in _texts(log)) == 1
    assert read_confirmer(folder.path).undecided == 1

    unreadable.clear()
    monkeypatch.setattr(confirmer._looks, "at", 0.0)
    monkeypatch.setattr(confirmer._scan, "scanned_at", 0.0)
    work_until(confirmer, folder.committed(lost).exists)
    work_until(confirmer, lambda: read_confirmer(folder.path).undecided == 0)
    assert not folder.owners.ended()


def test_folder_is_not_gone_through_each_second_for_an_unreadable_journal(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch, unreadable: set[str]
) -> None:
    folder, owner = server.folder, _ended_process(server.folder)
    (folder.databases / "looked").touch()  # for dropped ones, a moment ago
    left = [server.commit_elsewhere(0, owner) for _ in range(6)]
    unreadable.add(f"{left[0]}.log.live")
    monkeypatch.setattr(troubles, "_PATIENCE_S", 0.0)  # later
    confirmer = Confirmer(server, folder, fsync=True)
    later = server.commit(0)
    work_until(confirmer, folder.committed(later).exists)
    assert _number(folder, later) == 6
    scans = _count_scans(confirmer, monkeypatch)
    for _ in range(5):
        monkeypatch.setattr(confirmer._looks, "at", 0.0)
        confirmer.turn()
    assert not scans  # there may be a million

    unreadable.clear()
    monkeypatch.setattr(confirmer._looks, "at", 0.0)
    monkeypatch.setattr(confirmer._scan, "scanned_at", 0.0)
    work_until(confirmer, folder.committed(left[0]).exists)
    assert not folder.owners.ended()


def _count_scans(confirmer: Confirmer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    scans: list[int] = []
    original = confirmer._scan.scan

    def counted(last: int, ledger: Callable[[str], sequence.SequenceLedger]) -> list[UUID]:
        scans.append(last)
        return original(last, ledger)

    monkeypatch.setattr(confirmer._scan, "scan", counted)
    return scans


@pytest.mark.parametrize("unreadable", [errno.EIO, errno.EACCES], indirect=True)
def test_wait_for_several_unreadable_journals_is_a_single_one(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch, unreadable: set[str]
) -> None:
    monkeypatch.setattr(troubles, "_PATIENCE_S", 1.0)
    owner = _ended_process(server.folder)
    unreadable |= {f"{server.commit_elsewhere(0, owner)}.log.live" for _ in range(20)}
    confirmer = Confirmer(server, server.folder, fsync=True)
    server.database_path = server.database_path.with_name("other.fdb")
    other = server.commit(0)
    work_until(confirmer, server.folder.committed(other).exists)  # half the time of one by one
    assert read_confirmer(server.folder.path).undecided == 20


def test_unreadable_process_mark_does_not_block_publishing(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = server.folder.owners.mark(_ended_process(server.folder))

    def held(path: Path) -> bool:
        if path == unknown:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return is_held(path)

    monkeypatch.setattr(owners, "is_held", held)
    confirmer = Confirmer(server, server.folder, fsync=True)
    with logbook.TestHandler() as log:
        for _ in range(3):
            work_until(confirmer, server.folder.committed(server.commit(0)).exists)
            monkeypatch.setattr(confirmer._looks, "at", 0.0)
    assert sum("cannot tell whether a server process lives" in text for text in _texts(log)) == 1
    assert unknown.exists()


def test_process_without_descriptors_takes_no_dead_process_for_alive(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what that one left would come behind what was committed later."""
    left = server.commit_elsewhere(0, _ended_process(server.folder), has_ticket=False)
    confirmer = Confirmer(server, server.folder, fsync=True)
    later = server.commit(0)

    def refuse(_path: Path) -> bool:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(owners, "is_held", refuse)
        for _ in range(3):
            confirmer.turn()
    work_until(confirmer, server.folder.committed(later).exists)
    work_until(confirmer, server.folder.committed(left).exists)
    assert [_number(server.folder, uuid) for uuid in (left, later)] == [1, 2]


def test_unopenable_database_does_not_make_others_wait_for_a_leader(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "_STAND_BACK_S", 7200.0)
    another = PlayedServer.__new__(PlayedServer)
    another.__dict__ = {**server.__dict__, "folder": JournalFolder(server.folder.path)}
    confirmer = Confirmer(server, server.folder, fsync=True)
    ledger = history.SequenceLedger

    def refuse(folder: JournalFolder, key: str, *more: Any) -> Any:
        if key == ledger_lock.database_key(closed):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), key)
        return ledger(folder, key, *more)

    closed = str(server.database_path)
    monkeypatch.setattr(history, "SequenceLedger", refuse)
    server.commit(0)
    confirmer.turn()
    server.database_path = server.database_path.with_name("other.fdb")
    other = server.commit(0)
    for _ in range(5):
        confirmer.turn()
    assert server.folder.committed(other).exists()
    another.folder.close()


def test_unreadable_journal_does_not_prevent_restoring_other_stamps(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamped = publish_as_before(server, 5)
    server.folder.is_restored = False  # the machine started anew
    for uuid in stamped:
        _lose_stamp(server.folder.committed(uuid), uuid)
    bad = f"{stamped[2]}.log"

    class Reader(JournalReader):
        def __init__(self, path: Path | str) -> None:
            if Path(path).name == bad:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            super().__init__(path)

    with monkeypatch.context() as patch:
        patch.setattr(history, "JournalReader", Reader)
        confirmer = Confirmer(server, server.folder, fsync=True)
        confirmer.turn()
    assert [_number(server.folder, uuid) for uuid in stamped] == [1, 2, 99, 4, 5]
    assert not server.folder.is_restored
    confirmer.let_go()
    confirmer = Confirmer(server, server.folder, fsync=True)
    work_until(confirmer, lambda: server.folder.is_restored)
    assert _number(server.folder, stamped[2]) == 3


def test_a_ledger_that_was_removed_with_its_database_is_not_waited_for(
    server: PlayedServer,
) -> None:
    confirmer = Confirmer(server, server.folder, fsync=True)
    stamped = server.commit(0)
    work_until(confirmer, server.folder.committed(stamped).exists)
    confirmer.let_go()
    for ledger in server.folder.databases.glob("*.ledger"):
        ledger.unlink()
    server.folder.committed(stamped).unlink()  # shipped long ago
    server.folder.is_restored = False  # the machine started anew
    with logbook.TestHandler() as log:
        confirmer = Confirmer(server, server.folder, fsync=True)
        work_until(confirmer, lambda: server.folder.is_restored)
    assert not any("cannot restore" in text for text in _texts(log))


def test_failure_to_restore_stamps_is_reported_once(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_RESTORE_AGAIN_S", 0.0)
    _damaged_ledger(server)
    server.folder.is_restored = False
    confirmer = Confirmer(server, server.folder, fsync=True)
    with logbook.TestHandler() as log:
        for _ in range(5):
            confirmer._scan.is_wanted = True
            confirmer.turn()
    assert sum("cannot restore the stamps" in text for text in _texts(log)) == 1


def test_a_shipper_does_not_wait_for_stamps_that_cannot_be_restored(server: PlayedServer) -> None:
    _damaged_ledger(server)
    server.folder.is_restored = False
    recovery = Recovery(server.folder.path, fsync=True)
    began = time.monotonic()
    recovery.look()
    assert time.monotonic() < began + recovery_module._FIRST_LOOK_S
    assert not server.folder.is_restored


def _texts(log: logbook.TestHandler) -> list[str]:
    return [record.message for record in log.records]


def test_failure_to_note_restored_stamps_does_not_block_publishing(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmer = Confirmer(server, server.folder, fsync=True)
    server.folder.is_restored = False

    def full(*given: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(journal_folder, "replace_file", full)
    uuid = server.commit(0)
    work_until(confirmer, server.folder.committed(uuid).exists)


def test_unreachable_database_is_asked_again_only_after_the_pause(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(troubles, "_TROUBLE_S", 3600.0)
    monkeypatch.setattr(completion, "_QUIET_S", 0.0)
    server.create_database()
    server.ended_attachments = 10**6
    confirmer = Confirmer(server, server.folder, fsync=True)
    server.commit(0, ddl="ALTER TABLE T ADD N INTEGER")
    with logbook.TestHandler() as log:
        work_until(confirmer, lambda: bool(server.attachments))
        for _ in range(10):
            confirmer.turn()
    assert len(server.attachments) == 1
    assert sum("cannot decide" in text for text in _texts(log)) == 1


def test_changed_cause_of_a_failure_is_reported_again(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmer = Confirmer(server, server.folder, fsync=True)
    server.commit(0)
    reasons = iter(["first", "first", "second", "second"])

    def refuse(*given: Any) -> Any:
        raise CaptureError(next(reasons))

    monkeypatch.setattr(history, "SequenceLedger", refuse)
    with logbook.TestHandler() as log:
        for _ in range(4):
            confirmer.turn()
    told = [text.rpartition(" ")[2] for text in _texts(log) if "cannot decide" in text]
    assert told == ["first", "second"]


def test_unexpected_error_blocks_only_its_own_database(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmer = Confirmer(server, server.folder, fsync=True)
    confirmer.turn()
    server.commit(0)
    confirmer._receive(0)
    damaged = str(server.database_path)
    server.database_path = server.database_path.with_name("other.fdb")
    other = server.commit(0)
    decide = confirmer._states.decide

    def fail(database: str, waiting: Any) -> Any:
        if database == damaged:
            raise ValueError("a fault of ours")
        return decide(database, waiting)

    monkeypatch.setattr(confirmer._states, "decide", fail)
    work_until(confirmer, server.folder.committed(other).exists)
    assert read_confirmer(server.folder.path).undecided == 1


def test_journals_of_databases_in_trouble_take_no_descriptors(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmer = Confirmer(server, server.folder, fsync=True)
    for count in (1, 20):
        for database in range(3):
            server.database_path = server.database_path.with_name(f"{database}.fdb")
            uuids = [server.commit(0) for _ in range(count)]
            confirmer._receive(0)
        if count == 1:
            work_until(confirmer, server.folder.committed(uuids[0]).exists)
    before = len(list(Path("/proc/self/fd").iterdir()))

    def full(*given: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sequence.SequenceLedger, "record", full)
    for _ in range(3):
        confirmer.turn()
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 20


def test_stamps_that_cannot_be_restored_are_not_tried_at_each_commit(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _damaged_ledger(server)
    server.folder.is_restored = False
    server.database_path = server.database_path.with_name("other.fdb")
    confirmer = Confirmer(server, server.folder, fsync=True)
    with logbook.TestHandler() as log:
        for _ in range(5):
            work_until(confirmer, server.folder.committed(server.commit(0)).exists)
            confirmer.turn()
    assert sum("cannot restore the stamps" in text for text in _texts(log)) == 1


def test_leaving_session_does_not_wait_for_a_blocked_leader(server: PlayedServer) -> None:
    _damaged_ledger(server)
    leader = Confirmer(server, server.folder, fsync=True)
    server.commit(0)
    leader.turn()
    assert server.folder.undecided == 1
    another = PlayedServer.__new__(PlayedServer)
    another.__dict__ = {**server.__dict__, "folder": JournalFolder(server.folder.path)}
    another.events = []
    follower = Confirmer(another, another.folder, fsync=True)
    another.commit(0)
    another.events.append(LastSessionLeft(another._serial))
    work_until(follower, lambda: another.settled == another._serial)


def test_slow_database_in_trouble_does_not_prolong_the_wait_of_others(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmer = Confirmer(server, server.folder, fsync=True)
    server.commit(0)
    sleep, pauses = time.sleep, []

    def fail_late(*_given: Any) -> Any:
        sleep(0.2)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(history, "SequenceLedger", fail_late)

    def note(pause: float) -> None:  # threads of other tests may still sleep
        if threading.current_thread() is threading.main_thread():
            pauses.append(pause)
        else:
            sleep(pause)

    monkeypatch.setattr(time, "sleep", note)
    for _ in range(3):
        confirmer.turn()
    assert pauses
    assert max(pauses) < 0.5


def test_a_quarantine_that_was_removed_is_made_again(server: PlayedServer) -> None:
    folder, owner = server.folder, _ended_process(server.folder)
    server.create_database()
    strange = server.commit_elsewhere(2000, owner)  # the database knows of no such transaction
    folder.quarantine.rmdir()
    confirmer = Confirmer(server, folder, fsync=True)
    work_until(confirmer, (folder.quarantine / f"{strange}.log").exists)
    work_until(confirmer, lambda: not folder.owners.ended())


def test_search_for_journals_of_a_lost_ledger_is_bounded(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, _ = _damaged_ledger(server)
    confirmer = Confirmer(server, server.folder, fsync=True)
    server.database_path = server.database_path.with_name("other.fdb")
    uuids = [server.commit(0) for _ in range(20)]
    work_until(confirmer, lambda: all(server.folder.committed(uuid).exists() for uuid in uuids))
    for path in server.folder.path.glob("*.log"):
        if UUID(path.stem) not in uuids:
            path.unlink()
    looked_at = []

    def look(path: Path) -> str:
        looked_at.append(path)
        return database_of(path)

    monkeypatch.setattr(history, "database_of", look)
    monkeypatch.setattr(history, "_MOST_LOOKED_AT", 5)
    assert confirmer._history._has_journals(ledger.stem)
    assert len(looked_at) == 5
    monkeypatch.setattr(history, "_MOST_LOOKED_AT", 100)
    assert not confirmer._history._has_journals(ledger.stem)


def test_process_without_descriptors_does_not_start_below_drawn_tickets(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.commit(0)

    server.folder.page.fields.ticket = 0  # as a power cut does

    def refuse(path: Path) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(journal_folder, "last_tickets", refuse)
        with pytest.raises(CaptureError, match="can't be used"):
            JournalFolder(server.folder.path)
    JournalFolder(server.folder.path, writes=False).close()
