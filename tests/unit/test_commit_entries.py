"""Entries of commits and slots of open transactions: what the plugin leaves for who confirms."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import google_crc32c
import pytest

from firebird_cdc.journal.folder.commit_entries import read_entries, write_entry
from firebird_cdc.journal.folder.durable import boot_uuid
from firebird_cdc.journal.folder.slots import OpenTransaction, read_slots

_BYTES = 128


def _entry(ticket: int, boot: bytes | None = None) -> bytes:
    boot = boot_uuid().bytes if boot is None else boot
    uuid, home = UUID(int=ticket).bytes, UUID(int=7).bytes
    body = struct.pack("<Q16s16sQQQQQQq16s12x", ticket, uuid, home, 4096, 9, 8, 0, 1, 5, 6, boot)
    return body + struct.pack("<I", google_crc32c.value(body))


@pytest.fixture
def commits(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "commits", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def _tickets(fd: int, first: int, *last: int) -> list[int]:
    return [entry.ticket for entry in read_entries(fd, first, *last)]


def test_entries_are_found_among_holes_and_up_to_the_last_one_asked_for(commits: int) -> None:
    for ticket in (1, 2, 5, 9_000_000):
        os.pwrite(commits, _entry(ticket), ticket * _BYTES)
    assert _tickets(commits, 1) == [1, 2, 5, 9_000_000]
    assert _tickets(commits, 2, 5) == [2, 5]
    assert _tickets(commits, 6, 8) == []
    assert _tickets(commits, 9_000_001) == []


def test_entries_that_are_torn_of_another_start_or_of_another_ticket_say_nothing(
    commits: int,
) -> None:
    os.pwrite(commits, _entry(1, uuid4().bytes), 1 * _BYTES)
    os.pwrite(commits, _entry(2)[:100], 2 * _BYTES)
    os.pwrite(commits, _entry(2), 3 * _BYTES)
    os.pwrite(commits, _entry(4), 4 * _BYTES)
    assert _tickets(commits, 1, 100) == [4]


def test_entry_says_where_the_transaction_lies(commits: int) -> None:
    os.pwrite(commits, _entry(3), 3 * _BYTES)
    [entry] = read_entries(commits, 1, 10)
    assert entry == (3, UUID(int=3), UUID(int=7), 4096, 9, 8, 0, 1, 5, 6, 0)
    write_entry(commits, entry._replace(ticket=4, flags=5))
    [_, written] = read_entries(commits, 1, 10)
    assert written == (4, *entry[1:-1], 5)
    assert (written.has_ddl, written.is_unresolved, written.is_unsynced) == (True, False, True)


def test_slots_name_what_is_open_since_this_start_of_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "slots"
    guid = uuid4()

    def slot(transaction: int, boot: UUID) -> bytes:
        name = b"/data/shop.fdb"
        head = struct.pack("<QQq16s16sH", transaction, 9, 8, guid.bytes, boot.bytes, len(name))
        return (head + name).ljust(512, b"\0")

    path.write_bytes(slot(0, boot_uuid()) + slot(5, boot_uuid()) + slot(6, uuid4()) + b"torn")
    assert read_slots(path) == [OpenTransaction(5, 9, 8, guid, "/data/shop.fdb")]
    assert read_slots(tmp_path / "none") == []
