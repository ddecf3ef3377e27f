"""The order in which transactions are published whose tickets a power cut took, in our journals and
in those of firebird-cdc 0.1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest
from played_server import GUID, PlayedServer

from firebird_cdc.bridge.confirm.loop import Confirmer
from firebird_cdc.journal.folder.commit_entries import CommitEntry, write_entry
from firebird_cdc.journal.folder.durable import boot_uuid
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.format import (
    Column,
    JournalWriter,
    OwnJournalWriter,
    RowChange,
    Storage,
    alone,
    open_any,
)
from firebird_cdc.journal.format.layout import FILE_BLOCK
from firebird_cdc.journal.format.shared import FileHeader

DEAD = UUID(int=5, version=4)
N = Column("N", 496, 0, 0, 4, 0, 0, 9, True, False, 0, Storage.INTEGER)
NOON_US = 1_790_000_000_000_000


class Written(NamedTuple):
    """A transaction that set the one row to ``value``, sealed after ticket ``floor`` was drawn."""

    value: int
    floor: int | None
    ticket: int | None  # in its commit mark; None: the mark is lost
    sealed_us: int
    is_sealed: bool = True
    is_limbo: bool = False


@pytest.fixture(params=["ours", "0.1"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> PlayedServer:
    played = PlayedServer(tmp_path)
    played.write = _WRITERS[request.param]  # type: ignore[attr-defined]
    return played


def _write_ours(folder: JournalFolder, journals: Sequence[Written]) -> None:
    for index, each in enumerate(reversed(journals)):
        uuid = UUID(int=(index + 1) << 64, version=4)
        header = FileHeader(
            uuid, DEAD, GUID, 0, boot_uuid(), each.sealed_us - 10, 0, True, "/no/database"
        )
        with OwnJournalWriter(folder.live(uuid), header) as writer:
            table = writer.table("T", [N], key_kind=0)
            writer.update(table, (each.value - 1,), (each.value,))
            if each.is_sealed:
                writer.seal(each.sealed_us, each.floor)
            else:
                writer.flush()
        if each.ticket is not None:
            entry = CommitEntry(
                each.ticket, uuid, uuid, FILE_BLOCK, writer.length, writer.seal_end, 0, 1, 0,
                each.sealed_us + 10,
            )  # fmt: skip
            write_entry(folder.commits_fd, entry)


def _write_former(folder: JournalFolder, journals: Sequence[Written]) -> None:
    # Names say nothing of the order: the last one comes first in the folder's listing, or not.
    for index, each in enumerate(reversed(journals)):
        uuid = UUID(int=(index + 1) << 64, version=4)
        with JournalWriter(
            folder.live(uuid),
            uuid=uuid,
            database="/no/database",
            database_guid=GUID,
            owner=DEAD,
            started_us=each.sealed_us - 10,
        ) as writer:
            table = writer.table("T", [N], key_kind=0)
            writer.update(table, (each.value - 1,), (each.value,))
            if each.is_sealed:
                writer.seal(each.sealed_us, each.floor)
            else:
                writer.flush()
            if each.is_limbo:
                writer.commit(0, each.sealed_us)
            elif each.ticket is not None:
                writer.commit(each.ticket, each.sealed_us + 10)


_WRITERS = {"ours": _write_ours, "0.1": _write_former}


def _write(server: PlayedServer, journals: Sequence[Written]) -> None:
    server.write(server.folder, journals)  # type: ignore[attr-defined]


def _published(server: PlayedServer) -> list[int | str]:
    """Confirm all; return what the row was set to, journal by journal as they are numbered."""
    confirmer = Confirmer(server, server.folder, fsync=False)
    for _ in range(3):
        confirmer.turn()
    assert not list(server.folder.path.glob("*.log.live"))
    found = {}
    for path in server.folder.path.glob("*.log"):
        with alone(open_any(path)) as reader:
            assert reader.stamp is not None
            [change] = reader.changes()
            assert not isinstance(change, RowChange) or change.after is not None
            found[reader.stamp.sequence] = (
                change.after[0] if isinstance(change, RowChange) and change.after else "gap"
            )
    return [found[number] for number in sorted(found)]  # type: ignore[misc]


def _set_counter(folder: JournalFolder, ticket: int) -> None:
    folder.page.fields.ticket = ticket


@pytest.mark.parametrize(
    "tickets",
    [(None, None), (6, None), (None, 7)],
    ids=["no mark", "first marked", "second marked"],
)
def test_row_history_stays_in_order_despite_a_clock_change_and_lost_marks(
    server: PlayedServer, tickets: tuple[int | None, int | None]
) -> None:
    _set_counter(server.folder, 7)
    first, second = tickets
    _write(
        server,
        [Written(1, 5, first, NOON_US), Written(2, 6, second, NOON_US - 3_600_000_000)],
    )
    assert _published(server) == [1, 2]


@pytest.mark.parametrize("around", [2**32, 7 * 2**32])
def test_tickets_grow_beyond_the_32_bits_that_a_seal_has_of_them(
    server: PlayedServer, around: int
) -> None:
    _set_counter(server.folder, around + 2)
    _write(
        server,
        [
            Written(1, (around - 4) % 2**32, None, NOON_US + 40),
            Written(2, (around - 3) % 2**32, around - 2, NOON_US + 30),
            Written(3, (around - 2) % 2**32, None, NOON_US + 20),
            Written(4, (around + 0) % 2**32, None, NOON_US + 10),
            Written(5, (around + 1) % 2**32, around + 2, NOON_US),
        ],
    )
    assert _published(server) == [1, 2, 3, 4, 5]


def test_journals_of_an_earlier_version_are_ordered_by_time(server: PlayedServer) -> None:
    _set_counter(server.folder, 9)
    _write(
        server,
        [
            Written(1, None, None, NOON_US),
            Written(2, 3, None, NOON_US + 100),
            Written(3, 2, 9, NOON_US + 200),
        ],
    )
    assert _published(server) == [1, 2, 3]


def test_a_transaction_that_was_never_sealed_costs_no_other_its_place(
    server: PlayedServer,
) -> None:
    _set_counter(server.folder, 7)
    _write(
        server,
        [
            Written(1, 5, None, NOON_US),
            Written(2, 6, None, NOON_US - 3_600_000_000),
            Written(7, None, None, NOON_US - 1_800_000_000, is_sealed=False),
        ],
    )
    assert _published(server) == ["gap", 1, 2]


@pytest.mark.parametrize("server", ["ours"], indirect=True)
def test_transaction_building_on_one_from_limbo_is_ordered_after_it(
    server: PlayedServer,
) -> None:
    _set_counter(server.folder, 6)
    _write(
        server,
        [
            Written(1, 5, None, NOON_US, is_limbo=True),
            Written(2, 5, 6, NOON_US - 3_600_000_000),
        ],
    )
    assert _published(server) == [1, 2]


def test_commit_after_a_power_cut_has_a_floor_above_all_earlier_tickets(
    server: PlayedServer,
) -> None:
    """The cut took the counter back, and the mark of what the next transaction builds on."""
    _set_counter(server.folder, 2)
    _write(server, [Written(1, 5, None, NOON_US)])
    restarted = server.folder = JournalFolder(server.folder.path)
    floor = restarted.last_ticket
    assert floor == 6
    uuid = UUID(int=1, version=4)
    with JournalWriter(
        restarted.live(uuid), uuid=uuid, database="/no/database", database_guid=GUID, owner=DEAD
    ) as writer:
        writer.update(writer.table("T", [N], key_kind=0), (1,), (2,))
        writer.seal(NOON_US - 3_600_000_000, floor)  # and once more the power goes
    assert _published(server) == [1, 2]


@pytest.mark.parametrize("server", ["0.1"], indirect=True)
@pytest.mark.parametrize(
    ("counter", "mark", "floor", "restored"),
    [
        (2**32 + 10, None, 2**32 - 1, 2**32 + 10),
        (2**32 - 10, None, 5, 2**32 + 6),
        (0, None, 2**32 - 10, 2**32 - 9),
        (0, 3 * 2**32, 7, 3 * 2**32 + 8),
    ],
    ids=["older", "across 2**32", "counter lost", "known by a mark"],
)
def test_the_counter_is_restored_to_the_ticket_nearest_to_a_floor(
    server: PlayedServer, counter: int, mark: int | None, floor: int, restored: int
) -> None:
    _set_counter(server.folder, counter)
    _write(server, [Written(1, floor, None, NOON_US)])
    if mark is not None:
        _write_marked(server.folder, mark)
    assert JournalFolder(server.folder.path).last_ticket == restored


def test_no_ticket_is_drawn_twice_where_the_counter_is_an_older_copy(server: PlayedServer) -> None:
    """As somebody puts it back in place of the file that processes at work have drawn from."""
    uuid = UUID(int=9, version=4)
    _set_counter(server.folder, 5)
    entry = CommitEntry(7, uuid, uuid, FILE_BLOCK, 1, 1, 0, 1, 0, NOON_US, 0)
    write_entry(server.folder.commits_fd, entry)
    assert JournalFolder(server.folder.path).last_ticket == 7


def _write_marked(folder: JournalFolder, ticket: int) -> None:
    uuid = UUID(int=9, version=4)
    with JournalWriter(folder.live(uuid), uuid=uuid, owner=DEAD) as writer:
        writer.gap("it")
        writer.seal(NOON_US, ticket - 1)
        writer.commit(ticket, NOON_US)


def test_shipper_alone_publishes_journals_with_tickets_above_the_counter(
    server: PlayedServer,
) -> None:
    """After a power cut, while no server has been started."""
    _write(server, [Written(1, 5, 6, NOON_US)])
    server.folder = JournalFolder(server.folder.path, writes=False)
    assert _published(server) == [1]


def test_a_process_that_starts_draws_nothing_for_those_at_work(server: PlayedServer) -> None:
    """Their counter was never lost; a ticket that nobody's journal bears costs a search."""
    _set_counter(server.folder, 5)
    uuid = UUID(int=9, version=4)
    with JournalWriter(server.folder.live(uuid), uuid=uuid, owner=server.folder.owner) as writer:
        writer.gap("it")
        writer.seal(NOON_US, 5)
    assert JournalFolder(server.folder.path).last_ticket == 5
