"""The confirmer beside a server that is played: what goes wrong in one place stays there."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import logbook
import pytest
from played_server import (
    GUID,
    OTHER,
    PlayedServer,
    add_changes,
    idle,
    published,
    stamp_of,
    statement,
    unreadable_journals,
    wait_for_nothing,
    work,
    work_until_committed,
)

from firebird_cdc.bridge.confirm import (
    completion,
    deciding,
    gaps,
    history,
    troubles,
)
from firebird_cdc.bridge.confirm import loop as module
from firebird_cdc.bridge.confirm.loop import Confirmer
from firebird_cdc.bridge.host import (
    CommittedJournal,
    CountedGap,
    GapsCounted,
    LastSessionLeft,
    OthersCommitted,
    OwnAttachment,
)
from firebird_cdc.bridge.structures import KeyIndexFile
from firebird_cdc.errors import CaptureError
from firebird_cdc.journal.folder import journal_folder, ledger, ledger_lock
from firebird_cdc.journal.folder.failed_syncs import Doubt
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.locks import is_held, try_lock
from firebird_cdc.journal.folder.shared_page import LOCK
from firebird_cdc.journal.format import (
    TableChange,
    records,
)
from firebird_cdc.journal.format.layout import FILE_BLOCK, pwrite


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have calls be remembered, and no look around follow, however long a busy machine takes."""
    monkeypatch.setattr(module, "_FOLLOWED_S", 3600.0)
    monkeypatch.setattr(module, "_WAIT_S", 3600.0)


def test_commit_of_a_process_that_calls_is_taken_up_at_once(
    server: PlayedServer, unhurried: None
) -> None:
    confirmer = idle(server)
    uuid = server.commit_elsewhere(0, OTHER)
    work(confirmer, 2)
    assert not server.folder.committed(uuid).exists(), "nobody has called yet"
    server.events.append(OthersCommitted(0))
    work(confirmer, 3)
    assert published(server.folder, uuid) == "it"


def test_call_is_heard_again_when_the_one_who_leads_is_done(
    server: PlayedServer, unhurried: None
) -> None:
    confirmer = idle(server)
    lock = try_lock(server.folder.state / LOCK, fcntl.LOCK_EX)
    assert lock is not None
    uuid = server.commit_elsewhere(0, OTHER)
    server.events.append(OthersCommitted(0))
    work(confirmer, 2)
    os.close(lock)
    work(confirmer, 3)
    assert published(server.folder, uuid) == "it"


def test_shipper_takes_up_at_once_what_it_is_called_for(
    server: PlayedServer, unhurried: None
) -> None:
    server.create_database()
    calls = [False] * 5
    confirmer = Confirmer(
        None, server.folder, fsync=False, pause=lambda _: calls.pop() if calls else False
    )
    work(confirmer)
    uuid = server.commit_elsewhere(0, OTHER)
    work(confirmer, 2)
    assert not server.folder.committed(uuid).exists(), "nobody has called yet"
    calls.append(True)
    work(confirmer, 3)
    assert published(server.folder, uuid) == "it"


def test_removed_journal_becomes_a_gap(server: PlayedServer) -> None:
    confirmer = Confirmer(server, server.folder, fsync=False)
    confirmer.turn()  # looks around first
    uuids = [server.commit(0) for _ in range(3)]
    server.folder.live(uuids[1]).unlink()
    work(confirmer)
    assert [published(server.folder, uuid) == "it" for uuid in uuids] == [True, False, True]
    assert "its journal was removed" in published(server.folder, uuids[1])
    assert stamp_of(server.folder, uuids[2]).sequence == 3


def test_folder_that_is_gone_is_told_of_once(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    confirmer = Confirmer(server, server.folder, fsync=False)
    server.folder.path.rename(server.folder.path.with_name("elsewhere"))
    with logbook.TestHandler() as log:
        for _ in range(6):
            confirmer.turn()
    told = [record.message for record in log.records]
    assert any("confirming journals in" in each for each in told)
    assert len(told) == len(set(told))


def test_journals_that_went_with_their_folder_become_gaps_in_the_next(
    server: PlayedServer,
) -> None:
    confirmer = Confirmer(server, server.folder, fsync=False)
    confirmer.turn()
    path = server.folder.path
    uuid = server.commit(0)
    path.rename(path.with_name("elsewhere"))
    work(confirmer)
    assert not path.exists()
    server.folder = JournalFolder(path)
    confirmer.use(server.folder, fsync=False)
    later = server.commit(0)
    work(confirmer)
    assert "went with its folder" in published(server.folder, uuid)
    assert published(server.folder, later) == "it"


def test_an_attachment_that_was_ended_is_not_asked_again(server: PlayedServer) -> None:
    server.database_path.write_bytes(bytes(8192))  # a file that can't tell
    server.ended_attachments = 1
    confirmer = Confirmer(server, server.folder, fsync=False)
    uuid = server.commit(12)
    work(confirmer, 20)
    assert published(server.folder, uuid) == "it"
    assert len(server.attachments) == 2
    assert all(attachment.is_closed for attachment in server.attachments)


def test_a_limbo_that_cannot_be_asked_about_holds_up_nothing_else(server: PlayedServer) -> None:
    confirmer = Confirmer(server, server.folder, fsync=False)
    limbo = server.abandon(12)  # there is no database
    uuid = server.commit(0)
    work(confirmer)
    assert published(server.folder, uuid) == "it"
    assert server.folder.live(limbo).exists()


def test_foreign_files_in_the_folder_do_not_block_publishing(server: PlayedServer) -> None:
    confirmer = Confirmer(server, server.folder, fsync=False)
    first = server.commit(0)
    shutil.copy(server.folder.live(first), server.folder.path / f"{UUID(int=1)}.log.live")
    shutil.copy(server.folder.live(first), server.folder.path / "copy.log.live")
    (server.folder.path / "notes.log.live").write_text("x" * 4096)
    work(confirmer)
    server.folder = JournalFolder(server.folder.path)
    confirmer = Confirmer(server, server.folder, fsync=False)
    second = server.commit(0)
    work(confirmer)
    assert published(server.folder, first) == published(server.folder, second) == "it"
    assert len(list(server.folder.path.glob("*.log.live"))) == 3


def test_a_journal_that_is_copied_is_readable_by_its_owner_only(server: PlayedServer) -> None:
    confirmer = Confirmer(server, server.folder, fsync=True)
    uuid = server.commit(0, is_unsynced=True)
    inode = server.folder.live(uuid).stat().st_ino
    work(confirmer)
    published = server.folder.committed(uuid).stat()
    assert published.st_ino != inode
    assert published.st_mode & 0o777 == 0o600


def test_servers_hear_of_a_ddl_before_the_shipper_numbers_it(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, record, seen = server.folder.generation, ledger.SequenceLedger.record, []

    def watched(numbers: ledger.SequenceLedger, *arguments: Any) -> None:
        seen.append(server.folder.generation)
        record(numbers, *arguments)

    monkeypatch.setattr(ledger.SequenceLedger, "record", watched)
    server.create_database()
    uuid = server.commit_elsewhere(0, UUID(int=5, version=4), "CREATE ROLE R")
    shippers = JournalFolder(server.folder.path, writes=False)
    confirmer = Confirmer(None, shippers, fsync=True, pause=wait_for_nothing)
    work_until_committed(confirmer, server.folder, uuid)
    assert seen[-1] > before  # who dies behind the number does not tell any more


def test_starting_process_does_not_hold_the_ticket_lock_while_it_scans(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.commit(0)
    server.folder.page.fields.ticket = 0  # as a power cut does
    read, held = journal_folder.last_tickets, []

    def watched(path: Path) -> Iterator[int]:
        held.append(is_held(server.folder.state / "tickets/page"))
        yield from read(path)

    monkeypatch.setattr(journal_folder, "last_tickets", watched)
    assert JournalFolder(server.folder.path).last_ticket == 1
    assert held == [False]


def test_a_process_that_ends_after_its_journal_was_found(server: PlayedServer) -> None:
    server.create_database()
    owner = UUID(int=5, version=4)
    mark = os.open(server.folder.owners.mark(owner), os.O_RDWR | os.O_CREAT)
    fcntl.flock(mark, fcntl.LOCK_EX)
    confirmer = Confirmer(server, server.folder, fsync=False)
    unfinished = server.commit_elsewhere(12, owner)
    later = server.commit(0)
    work(confirmer)
    assert server.folder.live(unfinished).exists()  # and the later one waits for it
    assert not server.folder.committed(later).exists()
    os.close(mark)
    work_until_committed(confirmer, server.folder, later)  # some looks, if there are many locks
    assert not server.folder.live(unfinished).exists()
    assert not server.folder.committed(unfinished).exists()
    assert published(server.folder, later) == "it"


def test_definitions_unsynced_by_a_dead_leader_are_written_again_for_the_next(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create_database()
    server.set_state(12, 3)
    dead = UUID(int=5, version=4)
    changes = (TableChange("ALTER", "T", None),)
    ddl = "ALTER TABLE T ADD N INTEGER"
    uuid = server.commit_elsewhere(12, dead, ddl, has_ticket=False, changes=changes)
    written = []
    with monkeypatch.context() as patch:

        def write(fd: int, content: bytes, offset: int) -> None:
            written.append(content)
            pwrite(fd, content, offset)

        def fails(fd: int) -> None:
            if Path(f"/proc/self/fd/{fd}").readlink() == server.folder.live(uuid):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        patch.setattr(os, "fdatasync", fails)
        patch.setattr(completion, "pwrite", write)
        former = Confirmer(server, server.folder, fsync=True)
        work(former)
        assert server.folder.live(uuid).exists()
        former.let_go()
    work_until_committed(Confirmer(server, server.folder, fsync=True), server.folder, uuid)
    assert any(content[:4] == b"FBCB" for content in written)
    assert statement(server.folder, uuid).table_changes == changes


def test_next_leader_does_not_wait_again_for_an_unreadable_file(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = server.folder.live(server.commit_elsewhere(0, UUID(int=5, version=4)))
    unreadable_journals(monkeypatch).add(bad.name)
    monkeypatch.setattr(troubles, "_PATIENCE_S", 0.05)
    work_until_committed(
        Confirmer(server, server.folder, fsync=True), server.folder, server.commit(0)
    )
    monkeypatch.setattr(troubles, "_PATIENCE_S", time.monotonic() - 1.0)  # too long for a test
    assert server.folder.unread_since
    server.folder.unread_since = 0.001  # and over
    following = Confirmer(server, server.folder, fsync=True)
    work_until_committed(following, server.folder, server.commit(0))
    following.let_go()
    bad.unlink()
    last = Confirmer(server, server.folder, fsync=True)
    work_until_committed(last, server.folder, server.commit(0))
    assert server.folder.unread_since == 0


def test_next_leader_keeps_the_number_of_a_journal_unnamed_by_a_power_cut(
    server: PlayedServer,
) -> None:
    """The one before may have ended between finding it and giving it its name again."""
    uuid = server.commit_elsewhere(0, UUID(int=5, version=4))
    others = [server.commit(0) for _ in range(3)]
    first = Confirmer(server, server.folder, fsync=True)
    work_until_committed(first, server.folder, others[-1])
    first.let_go()
    given = stamp_of(server.folder, uuid)
    server.folder.committed(uuid).rename(server.folder.live(uuid))
    server.folder.accounted = 0
    leads = try_lock(server.folder.state / LOCK, fcntl.LOCK_EX)
    assert leads is not None
    follower = Confirmer(server, server.folder, fsync=True)
    work(follower)
    os.close(leads)
    later = server.commit(0)
    work_until_committed(follower, server.folder, later)
    work_until_committed(follower, server.folder, uuid)
    assert stamp_of(server.folder, uuid).sequence == given.sequence
    assert stamp_of(server.folder, later).sequence == 5


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_costs_the_server_no_descriptors(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmer = Confirmer(server, server.folder, fsync=True)
    work(confirmer)
    uuid = server.commit(0)
    server.gap = CountedGap(1, 0, 0, "it")
    server.events.append(GapsCounted(2, 1))
    with monkeypatch.context() as full:
        full.setattr(ledger, "pwrite", _full)
        full.setattr(ledger_lock, "pwrite", _full)
        full.setattr(records, "pwrite", _full)
        work(confirmer, 10)
        before = _descriptors()
        work(confirmer, 20)
        assert _descriptors() <= before  # what other tests left may go meanwhile
    work(confirmer)
    assert published(server.folder, uuid) == "it"


def _gaps_of(folder: JournalFolder) -> list[str]:
    """Return the reasons of the gaps that are published."""
    uuids = [UUID(path.name.removesuffix(".log")) for path in folder.path.glob("*.log")]
    return [published(folder, uuid) for uuid in uuids]


def _assert_marked_before_leaving(confirmer: Confirmer, server: PlayedServer, number: int) -> None:
    """The gap is published by the time that event NUMBER, the session's last, is settled."""
    turns = 0
    while server.settled < number:
        confirmer.turn()
        turns += 1
        assert turns < 20
    [gap] = _gaps_of(server.folder)
    assert gap.endswith("could not be recorded: it")


def test_a_session_that_leaves_waits_for_the_gap_that_was_counted_for_it(
    server: PlayedServer,
) -> None:
    confirmer = Confirmer(server, server.folder, fsync=True)
    server.gap = CountedGap(1, 0, 0, "it")
    server.before_leading = [GapsCounted(1, 1), LastSessionLeft(2)]
    _assert_marked_before_leaving(confirmer, server, 2)


def test_session_ends_even_if_its_gap_cannot_be_marked(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmer = Confirmer(server, server.folder, fsync=True)
    work(confirmer)
    monkeypatch.setattr(gaps, "_TROUBLE_S", 60.0)
    monkeypatch.setattr(records, "pwrite", _full)
    server.gap = CountedGap(1, 0, 0, "it")
    server.events += [GapsCounted(1, 1), LastSessionLeft(2)]
    with logbook.TestHandler() as log:
        confirmer.turn()
        assert server.settled == 2
        monkeypatch.setattr(gaps, "_TROUBLE_S", 0.0)
        server.events.append(LastSessionLeft(3))
        confirmer.turn()
        confirmer.turn()
    told = [each for each in log.formatted_records if "cannot mark a gap" in each]
    assert len(told) == 1


def test_failed_gap_is_retried_before_the_last_session_leaves(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmer = Confirmer(server, server.folder, fsync=True)
    work(confirmer)
    monkeypatch.setattr(gaps, "_TROUBLE_S", 60.0)
    server.gap = CountedGap(1, 0, 0, "it")
    server.events.append(GapsCounted(1, 1))
    with monkeypatch.context() as full:
        full.setattr(records, "pwrite", _full)
        confirmer.turn()
    server.events.append(LastSessionLeft(2))
    _assert_marked_before_leaving(confirmer, server, 2)


def test_transactions_counted_while_a_gap_is_marked_become_a_gap_too(server: PlayedServer) -> None:
    confirmer = Confirmer(server, server.folder, fsync=True)
    server.gap, server.counted_next = CountedGap(1, 0, 0, "it"), CountedGap(2, 0, 0, "more")
    server.events.append(GapsCounted(1, 1))  # and nothing tells of the others
    work(confirmer)
    gaps = _gaps_of(server.folder)
    assert sorted(gap.rpartition(" ")[2] for gap in gaps) == ["it", "more"]


def test_announced_gap_is_marked_by_the_next_confirmer_of_the_process(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = Confirmer(server, server.folder, fsync=True)
    work(former)
    server.gap = CountedGap(1, 0, 0, "it")
    server.events.append(GapsCounted(1, 1))
    with monkeypatch.context() as full:
        full.setattr(records, "pwrite", _full)
        former.turn()
    former.let_go()
    confirmer = Confirmer(server, server.folder, fsync=True)
    confirmer.take_over(former)
    work(confirmer)
    [gap] = _gaps_of(server.folder)
    assert gap.endswith("could not be recorded: it")


def test_a_new_ledger_that_finds_no_room_costs_no_descriptors(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "_LEDGER_LIMIT", 1)
    confirmer = Confirmer(server, server.folder, fsync=True)
    first = server.commit(0)
    work(confirmer)
    assert published(server.folder, first) == "it"
    uuid = server.commit(0)
    with monkeypatch.context() as full:
        full.setattr(ledger, "pwrite", _full)
        full.setattr(ledger_lock, "pwrite", _full)
        work(confirmer, 10)
        before = _descriptors()
        work(confirmer, 20)
        assert _descriptors() <= before  # what other tests left may go meanwhile
    work(confirmer)
    assert published(server.folder, uuid) == "it"


def test_ddl_waits_for_its_table_changes_until_a_timeout(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "_QUIET_S", 0.0)
    server.create_database()
    server.ended_attachments = 10**6
    confirmer = Confirmer(server, server.folder, fsync=False)
    row, ddl, grant = (
        server.commit(0),
        server.commit(0, ddl="CREATE TABLE T (ID INTEGER)"),
        server.commit(0, ddl="GRANT SELECT ON T TO PUBLIC"),
    )
    work(confirmer)
    assert server.folder.committed(row).exists()
    assert server.folder.live(ddl).exists() and server.folder.live(grant).exists()
    assert server.folder.described >= 2  # a DDL that commits now does not wait for it
    monkeypatch.setattr(completion, "_STRUCTURES_PATIENCE_S", 0.3)
    work_until_committed(confirmer, server.folder, grant)
    assert statement(server.folder, ddl) == (1, "CREATE TABLE T (ID INTEGER)", None)
    assert all(each.is_closed for each in server.attachments)


def test_journals_behind_a_waiting_ddl_keep_their_order(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "_QUIET_S", 0.0)
    monkeypatch.setattr(deciding, "_MOST_AT_ONCE", 2)
    server.create_database()
    server.ended_attachments = 10**6
    confirmer = Confirmer(server, server.folder, fsync=False)
    ddl = server.commit(0, ddl="DROP INDEX I")
    behind = [server.commit(0) for _ in range(5)]
    work(confirmer)
    assert all(server.folder.live(uuid).exists() for uuid in (ddl, *behind))
    server.ended_attachments = 0
    work_until_committed(confirmer, server.folder, behind[-1])
    numbers = [stamp_of(server.folder, uuid).sequence for uuid in (ddl, *behind)]
    assert numbers == [1, 2, 3, 4, 5, 6]


def test_ddl_of_two_processes_is_completed_once_the_last_is_awaited(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "_QUIET_S", 100.0)
    server.create_database()
    confirmer = Confirmer(server, server.folder, fsync=False)
    server.events.append(LastSessionLeft(10**6))  # and another one came
    own = server.commit(0, ddl="DROP INDEX I")
    other = server.commit_elsewhere(0, server.folder.owner, ddl="DROP INDEX J")
    work(confirmer)
    assert not server.attachments
    server.folder.page.fields.awaited = server.folder.last_ticket
    work_until_committed(confirmer, server.folder, other)
    assert statement(server.folder, own).table_changes == ()


def test_ddl_waits_no_longer_when_the_clock_was_set_back(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "_QUIET_S", 0.1)
    server.create_database()
    confirmer = Confirmer(server, server.folder, fsync=False)
    for ended, patience_s, told in ((0, 30.0, ()), (10**6, 0.3, None)):
        monkeypatch.setattr(completion, "_STRUCTURES_PATIENCE_S", patience_s)
        server.ended_attachments = ended
        ddl = server.commit(0, ddl="DROP INDEX I")
        event = server.events[-1]
        assert isinstance(event, CommittedJournal)
        server.events[-1] = event._replace(commit_us=event.commit_us + 3_600_000_000)
        work_until_committed(confirmer, server.folder, ddl)
        assert statement(server.folder, ddl).table_changes == told


def test_ddl_with_unrecordable_table_changes_does_not_block_publishing(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "_QUIET_S", 0.0)
    monkeypatch.setattr(completion, "_STRUCTURES_PATIENCE_S", 0.3)
    server.create_database()
    confirmer = Confirmer(server, server.folder, fsync=False)

    def fail(*_: object) -> int:
        raise struct.error("ushort format requires 0 <= number <= 65535")

    monkeypatch.setattr(completion, "append_catalogue", fail)
    indexes = KeyIndexFile(server.folder.databases, str(server.database_path), GUID)
    indexes.write({})
    ddl = server.commit(0, ddl="DROP INDEX I")
    work_until_committed(confirmer, server.folder, ddl)
    assert statement(server.folder, ddl).table_changes is None
    assert indexes.read() is None  # they are read anew

    damaged = server.commit(0, ddl="DROP INDEX I")
    with server.folder.live(damaged).open("r+b") as file:
        file.seek(FILE_BLOCK + 136 + 60)
        file.write(b"\xff\xff\xff")
    work_until_committed(confirmer, server.folder, damaged)


def test_ddl_of_a_database_that_is_gone_waits_for_nothing(server: PlayedServer) -> None:
    confirmer = Confirmer(server, server.folder, fsync=False)
    uuid = server.commit(0, ddl="DROP TABLE T")
    server.events.append(LastSessionLeft(10**6))
    work(confirmer)
    assert statement(server.folder, uuid).table_changes is None
    assert not server.attachments


def test_table_changes_recorded_by_a_dead_process_are_kept(server: PlayedServer) -> None:
    """It was killed between that and the stamp; there is no server that could tell it again."""
    server.create_database()
    changes = (TableChange("ALTER", "T", None),)
    dead = UUID(int=5, version=4)
    known = server.commit_elsewhere(0, dead, "ALTER TABLE T ADD N INTEGER", changes=changes)
    shippers = JournalFolder(server.folder.path, writes=False)
    confirmer = Confirmer(None, shippers, fsync=True, pause=wait_for_nothing)
    work(confirmer)
    assert statement(server.folder, known).table_changes == changes
    unknown = server.commit_elsewhere(0, dead, "DROP INDEX I")
    work(confirmer)
    assert server.folder.live(unknown).exists()  # for a server that starts within 30 s
    confirmer.let_go()


def test_table_changes_recorded_by_another_leader_are_kept(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "_QUIET_S", 100.0)
    server.create_database()
    confirmer = Confirmer(server, server.folder, fsync=True)
    ddl = server.commit(0, ddl="ALTER TABLE T ADD N INTEGER")
    changes = (TableChange("ALTER", "T", None),)
    add_changes(server.folder.live(ddl), ddl, changes)
    work(confirmer)
    assert statement(server.folder, ddl).table_changes == changes
    assert not server.attachments


def test_an_attachment_that_hangs_holds_up_nothing_but_that_database(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "_QUIET_S", 0.0)
    server.create_database()
    go_on = threading.Event()

    def hang(database: str) -> OwnAttachment:
        go_on.wait()
        raise CaptureError("at last")

    monkeypatch.setattr(server, "open_attachment", hang)
    confirmer = Confirmer(server, server.folder, fsync=False)
    ddl = server.commit(0, ddl="DROP TABLE T")
    confirmer.turn()
    server.database_path = server.database_path.with_name("other.fdb")
    other = server.commit(0)
    work(confirmer)
    assert server.folder.live(ddl).exists()
    assert server.folder.committed(other).exists()
    go_on.set()


def test_new_database_at_the_same_path_begins_an_epoch_with_its_first_journal(
    server: PlayedServer,
) -> None:
    server.create_database()
    confirmer = Confirmer(server, server.folder, fsync=False)
    first = server.commit(0)
    work(confirmer)
    before = [first, server.commit(0)]
    server.database_path.unlink()  # dropped, and made anew, while that waits
    server.guids.append(UUID(int=8))
    server.create_database()
    after = [server.commit(0), server.commit(0)]
    work(confirmer)
    old, new = ([stamp_of(server.folder, uuid)[:2] for uuid in uuids] for uuids in (before, after))
    epoch = old[0][0]
    assert old == [(epoch, 1), (epoch, 2)]
    assert new == [(epoch + 1, 1), (epoch + 1, 2)]


def test_numbered_journal_is_not_refused_by_another_database_at_the_path(
    server: PlayedServer,
) -> None:
    """A killed leader had given it, and did not come to say so."""
    server.create_database()
    server.set_state(12, 3)
    confirmer = Confirmer(server, server.folder, fsync=False)
    given = server.commit(12)
    work(confirmer)
    confirmer.let_go()
    server.folder.committed(given).rename(server.folder.live(given))
    server.folder.accounted = 0
    server.guids.append(UUID(int=8))
    server.database_path.unlink()
    server.create_database()
    recovery = Confirmer(None, JournalFolder(server.folder.path, writes=False), fsync=False)
    work(recovery)
    assert not list(server.folder.quarantine.iterdir())
    assert stamp_of(server.folder, given).sequence == 1


@pytest.fixture
def doubted(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> tuple[Confirmer, list[bool], UUID]:
    """A confirmer that begins after a sync of a database file failed, whether the disk itself can
    be read, and a journal of that database that was published before."""
    server.create_database()
    server.set_state(12, 3)
    published = server.commit(12)
    confirmer = Confirmer(server, server.folder, fsync=False)
    work(confirmer)
    confirmer.let_go()
    path = str(server.database_path)
    Doubt.of(server.folder.databases, ledger_lock.database_key(path)).note(server.database_path)
    real, is_readable = os.open, [False]

    def opened(path: str, flags: int, mode: int = 0o777, **more: Any) -> int:
        if flags & os.O_DIRECT and not is_readable[0]:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(path, flags & ~os.O_DIRECT, mode, **more)

    monkeypatch.setattr(os, "open", opened)
    return Confirmer(server, server.folder, fsync=False), is_readable, published


def test_a_database_that_cannot_be_compared_keeps_no_other_one(
    server: PlayedServer,
    doubted: tuple[Confirmer, list[bool], UUID],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "_COMPARE_S", 0.0)
    confirmer, _, _ = doubted
    own = server.commit_elsewhere(0, server.folder.owner)
    server.database_path = server.database_path.with_name("to-come.fdb")  # the later one
    other = server.commit_elsewhere(0, server.folder.owner)
    work(confirmer)
    assert published(server.folder, own) == published(server.folder, other) == "it"


def test_a_database_that_could_not_be_compared_is_compared_the_next_time(
    server: PlayedServer, doubted: tuple[Confirmer, list[bool], UUID]
) -> None:
    confirmer, is_readable, published = doubted
    server.set_state(12, 0)  # an older copy takes its place
    work_until_committed(confirmer, server.folder, server.commit(0))
    is_readable[0] = True
    later = server.commit(0)
    work_until_committed(confirmer, server.folder, later)
    epoch, *_ = stamp_of(server.folder, published)
    assert stamp_of(server.folder, later)[:2] == (epoch + 1, 1)
