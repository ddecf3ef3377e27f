"""Live journals of firebird-cdc 0.1: they become ours, with all that they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from played_server import (
    GUID,
    PlayedServer,
    look,
    opened,
    publish_as_before,
    shorten_pauses,
    stamp_of,
    work_until_committed,
)

from firebird_cdc.bridge.confirm.loop import Confirmer
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.format import (
    Column,
    DdlChange,
    Gap,
    JournalReader,
    JournalWriter,
    RowChange,
    Storage,
    Table,
    TableChange,
    own_reader,
)
from firebird_cdc.journal.shipper.quarantine import journals_in

_DEAD = UUID(int=5, version=4)
_COLUMN = Column("ID", 496, 0, 0, 4, 0, 0, 9, False, False, 1, Storage.INTEGER)
_COMMITTED, _LIMBO = 3, 1
_TRANSACTION = 12  # whose state is set alone
_CHANGES = (TableChange("ALTER", "T", None),)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedServer:
    shorten_pauses(monkeypatch)
    played = PlayedServer(tmp_path)
    played.create_database()
    played.folder.owners.mark(_DEAD).touch()
    return played


def _leave(
    server: PlayedServer,
    write: Callable[[JournalWriter], object],
    ticket: int | None = None,
    *,
    is_sealed: bool = True,
) -> UUID:
    """Leave a journal of an ended process of 0.1."""
    uuid = uuid4()
    with JournalWriter(
        server.folder.live(uuid),
        uuid=uuid,
        transaction=_TRANSACTION,
        database=str(server.database_path),
        user="SYSDBA",
        database_guid=GUID,
        owner=_DEAD,
        block_bytes=300,
    ) as writer:
        write(writer)
        if is_sealed:
            writer.seal(floor=4)
        else:
            writer.flush()
        if ticket is not None:
            writer.commit(ticket, 1_790_000_000_000_000)
            server.folder.page.fields.ticket = ticket
    return uuid


def _rows(writer: JournalWriter) -> None:
    table = writer.table("T", [_COLUMN])
    for number in range(200):
        writer.insert(table, (number,))


def _confirmer(server: PlayedServer) -> Confirmer:
    folder = JournalFolder(server.folder.path, writes=False)
    return Confirmer(None, folder, fsync=True, pause=lambda _: False)


def test_committed_journal_is_published_with_all_its_events(server: PlayedServer) -> None:
    server.set_state(_TRANSACTION, _COMMITTED)
    uuid = _leave(server, _rows, ticket=5)
    with JournalReader(server.folder.live(uuid)) as reader:
        before = list(reader.changes())
        header, user = reader.header, reader.user
    work_until_committed(_confirmer(server), server.folder, uuid)
    with opened(server.folder, uuid) as reader:
        assert list(reader.changes()) == before
        assert (reader.header, reader.user) == (header, user)
        assert reader.stamp is not None
        assert (reader.stamp.sequence, reader.stamp.event_count) == (1, 200)
        assert reader.stamp.commit_us == 1_790_000_000_000_000


def test_completed_definitions_and_table_changes_are_kept(server: PlayedServer) -> None:
    server.set_state(_TRANSACTION, _COMMITTED)

    def write(writer: JournalWriter) -> None:
        writer.ddl("ALTER TABLE T ADD N INTEGER")
        table = writer.table("T", [_COLUMN], 0, resolved=False)
        writer.insert(table, (7,))
        writer.seal(floor=4)
        writer.complete([Table(1, "T", 1, (_COLUMN,))], {1: _CHANGES})
        writer.commit(5, 1)

    uuid = _leave_sealed(server, write)
    work_until_committed(_confirmer(server), server.folder, uuid)
    with opened(server.folder, uuid) as reader:
        ddl, row = reader.changes()
    assert isinstance(ddl, DdlChange)
    assert ddl.table_changes == _CHANGES
    assert isinstance(row, RowChange)
    assert row.table.resolved
    assert row.table.key_kind == 1


def _leave_sealed(server: PlayedServer, write: Callable[[JournalWriter], object]) -> UUID:
    uuid = uuid4()
    with JournalWriter(
        server.folder.live(uuid),
        uuid=uuid,
        transaction=_TRANSACTION,
        database=str(server.database_path),
        database_guid=GUID,
        owner=_DEAD,
    ) as writer:
        write(writer)
    return uuid


def test_journal_in_limbo_waits_and_is_published_once_that_is_resolved(
    server: PlayedServer,
) -> None:
    server.set_state(_TRANSACTION, _LIMBO)
    uuid = _leave(server, _rows, ticket=0)  # so it says
    confirmer = _confirmer(server)
    look(confirmer, times=5)
    with own_reader(server.folder.live(uuid), uuid) as reader:
        assert len(list(reader.changes())) == 200
    server.set_state(_TRANSACTION, _COMMITTED)
    confirmer._looks.at = 0.0
    confirmer._scan.is_wanted = True
    work_until_committed(confirmer, server.folder, uuid)


def test_unsealed_journal_of_a_committed_transaction_becomes_a_gap(server: PlayedServer) -> None:
    server.set_state(_TRANSACTION, _COMMITTED)
    uuid = _leave(server, _rows, is_sealed=False)
    work_until_committed(_confirmer(server), server.folder, uuid)
    with opened(server.folder, uuid) as reader:
        [gap] = reader.changes()
    assert isinstance(gap, Gap)
    assert not journals_in(server.folder.quarantine)


def test_damaged_journal_becomes_a_gap_and_is_kept(server: PlayedServer) -> None:
    server.set_state(_TRANSACTION, _COMMITTED)
    uuid = _leave(server, _rows, ticket=5)
    content = bytearray(server.folder.live(uuid).read_bytes())
    content[3000] ^= 1
    server.folder.live(uuid).write_bytes(content)
    work_until_committed(_confirmer(server), server.folder, uuid)
    with opened(server.folder, uuid) as reader:
        [gap] = reader.changes()
    assert isinstance(gap, Gap)
    [kept] = journals_in(server.folder.quarantine)
    assert (server.folder.quarantine / f"{kept}.log").read_bytes() == content


@pytest.mark.parametrize("is_whole", [True, False])
def test_journal_whose_number_was_given_gets_its_stamp_and_its_name(
    server: PlayedServer, is_whole: bool
) -> None:
    """A leader of 0.1 was cut off between the two; or a power cut has taken what was not synced."""
    first, second = publish_as_before(server, 2)
    published = server.folder.committed(second).rename(server.folder.live(second))
    with JournalReader(published) as reader:
        given = reader.stamp
        *_, seal_at = reader.block_offsets()
    assert given is not None
    content = bytearray(published.read_bytes())
    content[1024:1536] = bytes(512)
    if not is_whole:
        content[512:1024] = bytes(512)
        del content[seal_at:]
    published.write_bytes(content)
    server.folder.owners.mark(server.folder.owner).unlink()  # nobody lives
    work_until_committed(_confirmer(server), server.folder, second)
    assert stamp_of(server.folder, second).number == given.number
    with opened(server.folder, second) as reader:
        [gap] = reader.changes()
    assert isinstance(gap, Gap)
    assert (gap.reason == "it") == is_whole
    assert stamp_of(server.folder, first).sequence == 1


def test_journal_of_a_process_that_lives_is_left_alone(server: PlayedServer) -> None:
    """0.1 is kept out, so that should not be; nothing is taken from it."""
    uuid = uuid4()
    with JournalWriter(
        server.folder.live(uuid), uuid=uuid, database="/a.fdb", owner=server.folder.owner
    ) as writer:
        writer.gap("it")
        writer.seal()
    content = server.folder.live(uuid).read_bytes()
    confirmer = Confirmer(server, server.folder, fsync=True)
    for _ in range(3):
        confirmer._scan.is_wanted = True
        confirmer.turn()
    assert server.folder.live(uuid).read_bytes() == content
