"""The end of a shared journal: nobody appends any more, and each transaction in it is decided."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from uuid import UUID, uuid4

import pytest
from played_server import GUID, PlayedServer

from firebird_cdc.bridge.confirm import closing
from firebird_cdc.bridge.confirm.loop import Confirmer
from firebird_cdc.bridge.host import JournalLeft
from firebird_cdc.clock import now_us
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.format import (
    SharedJournal,
    SharedJournalWriter,
    TransactionWriter,
    alone,
    open_any,
)
from firebird_cdc.journal.format.shared import FileHeader


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedServer:
    monkeypatch.setattr(closing, "_LOOK_S", 0.0)
    monkeypatch.setattr(closing, "_AGAIN_S", 0.0)
    made = PlayedServer(tmp_path)
    made.create_database()
    made.folder.owners.mark(made.folder.owner).unlink()  # it has ended
    return made


@pytest.fixture
def confirmer(server: PlayedServer) -> Iterator[Confirmer]:
    folder = JournalFolder(server.folder.path, writes=False)
    made = Confirmer(None, folder, fsync=True, pause=lambda _: False)
    yield made
    made.let_go()


class Left:
    """A shared journal of a process that has ended, of transactions with one change each. Nothing
    is asked about transaction 0: it is committed."""

    def __init__(self, server: PlayedServer, guid: UUID = GUID) -> None:
        database = str(server.database_path)
        header = FileHeader(uuid4(), uuid4(), guid, 0, uuid4(), now_us(), 0, False, database)
        self.folder = server.folder
        self.uuid = header.uuid
        self.writer = SharedJournalWriter(server.folder.live(header.uuid), header)

    def add(self, number: int = 0, *, is_void: bool = False, floor: int = 0) -> UUID:
        written = TransactionWriter(self.writer.header, number, "u")
        written.gap("it")
        written.seal(floor=floor)
        self.writer.append(written)
        if is_void:
            self.writer.void(written)
        return written.uuid

    @property
    def live(self) -> Path:
        return self.folder.live(self.uuid)

    @property
    def closed(self) -> Path:
        return self.folder.committed(self.uuid)

    def found(self) -> list[tuple[UUID, int]]:
        """Return what the index names, with its number."""
        with SharedJournal(self.closed) as journal:
            return [(place.uuid, place.stamp.sequence) for place in journal.places]


def _work(confirmer: Confirmer, *ended: Left) -> None:
    """Have the confirmer come round, once the processes of those journals have ENDED."""
    for left in ended:
        left.writer.leave()
    for _ in range(8):
        confirmer.turn()


def test_index_names_what_is_committed_and_not_what_is_void(
    server: PlayedServer, confirmer: Confirmer
) -> None:
    left = Left(server)
    first, _, last = left.add(floor=1), left.add(is_void=True, floor=2), left.add(floor=3)
    _work(confirmer, left)
    assert left.found() == [(first, 1), (last, 2)]


@pytest.mark.parametrize("committed", [2, 3], ids=["right", "one too many"])
def test_journal_of_which_its_process_told_the_end_loses_nothing(
    server: PlayedServer, confirmer: Confirmer, committed: int
) -> None:
    left = Left(server)
    first, last = left.add(floor=1), left.add(floor=2)
    left.add(is_void=True, floor=3)
    content = left.live.read_bytes()
    confirmer._closing.left(JournalLeft(1, left.uuid, len(content), committed))
    _work(confirmer, left)
    assert left.found() == [(first, 1), (last, 2)]
    assert left.closed.read_bytes().startswith(content)


def test_journal_in_which_nothing_is_committed_goes(
    server: PlayedServer, confirmer: Confirmer
) -> None:
    left = Left(server)
    left.add(is_void=True)
    server.set_state(12, 2)  # dead
    left.add(12)
    _work(confirmer, left)
    assert not left.live.exists()
    assert not left.closed.exists()


def test_journal_with_a_transaction_in_limbo_stays_open(
    server: PlayedServer, confirmer: Confirmer
) -> None:
    server.set_state(12, 1)
    left = Left(server)
    known = left.add()
    limbo = left.add(12, floor=1)
    _work(confirmer, left)
    assert left.live.exists()
    server.set_state(12, 3)  # committed
    confirmer._scan.is_wanted = True
    _work(confirmer)
    assert left.found() == [(known, 1), (limbo, 2)]


def test_journal_that_is_locked_is_left_alone(server: PlayedServer, confirmer: Confirmer) -> None:
    left = Left(server)
    left.add()
    content = left.live.read_bytes()
    _work(confirmer)
    assert left.live.read_bytes() == content
    confirmer._scan.is_wanted = True
    _work(confirmer, left)
    assert len(left.found()) == 1


def test_journal_with_voids_for_another_one_is_closed_after_it(
    server: PlayedServer, confirmer: Confirmer
) -> None:
    first, second = Left(server), Left(server)
    written = TransactionWriter(first.writer.header, 0, "u")
    written.gap("it")
    written.seal(floor=1)
    offset = first.writer.append(written)
    kept = first.add(floor=1)
    second.writer._offsets[written.uuid] = offset
    other = second.add(floor=2)
    _void_for(first, second, written, offset)
    _work(confirmer, second)
    assert second.live.exists()
    confirmer._scan.is_wanted = True
    _work(confirmer, first)
    assert [uuid for uuid, _ in first.found()] == [kept]
    assert [uuid for uuid, _ in second.found()] == [other]


def _void_for(first: Left, second: Left, written: TransactionWriter, offset: int) -> None:
    """Have SECOND hold a void for what lies at OFFSET of FIRST."""
    from firebird_cdc.journal.format.layout import pwrite
    from firebird_cdc.journal.format.shared import Void, pack_void

    second.writer.begin_block()
    at = second.writer._end
    void = Void(written.uuid, 0, first.uuid.bytes, offset)
    pwrite(second.writer._fd, pack_void(void, second.uuid, at), at)
    second.writer._end = at + 4096


def test_transaction_of_another_database_is_kept_alone_in_the_quarantine(
    server: PlayedServer, confirmer: Confirmer
) -> None:
    left = Left(server, guid=uuid4())
    uuid = left.add(12)
    _work(confirmer, left)
    assert not left.live.exists()
    quarantine = server.folder.quarantine
    assert (quarantine / f"{uuid}.reason").read_text()
    with alone(open_any(quarantine / f"{uuid}.log")) as reader:
        assert reader.header.uuid == uuid
        assert len(list(reader.changes())) == 1


def test_damage_where_it_was_synced_keeps_the_journal_open_and_counted(
    server: PlayedServer, confirmer: Confirmer
) -> None:
    left = Left(server)
    left.add()
    with left.live.open("r+b") as file:
        file.seek(left.writer._end + 64)
        file.write(b"damaged")
    left.writer.begin_block()
    last = left.add(floor=1)
    _work(confirmer, left)
    assert left.live.exists()
    entries = list(server.folder.databases.glob("*.ledger"))
    assert last.bytes in entries[0].read_bytes()


def test_journal_that_a_killed_process_had_numbered_is_closed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = PlayedServer(tmp_path)
    server.create_database()
    killed = Confirmer(server, server.folder, fsync=True)
    uuids = [server.commit(0) for _ in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(killed._closing, "close_left", lambda _: None)
        for _ in range(5):
            killed.turn()
    killed.let_go()
    assert all(server.folder.has_live(uuid) for uuid in uuids)
    server.folder.accounted = 1  # it did not come to the others
    server.folder.owners.mark(server.folder.owner).unlink()
    folder = JournalFolder(server.folder.path, writes=False)
    recovery = Confirmer(None, folder, fsync=True, pause=lambda _: False)
    recovery._closing._look_at = monotonic() + 3600  # it has just looked
    for _ in range(5):
        recovery.turn()
    recovery.let_go()
    assert all(folder.committed(uuid).exists() for uuid in uuids)
