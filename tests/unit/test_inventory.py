"""The transaction inventory of a file that is replaced in place while it is open."""

from __future__ import annotations

import struct
from pathlib import Path
from uuid import UUID

import pytest

from firebird_cdc.bridge.host import Verdict
from firebird_cdc.bridge.inventory import (
    DatabaseReplaced,
    InventoryUnreadable,
    TransactionInventory,
)

GUID = UUID(int=7)
PAGE = 4096
FIRST_OF_SECOND_PAGE = (PAGE - 20) * 4


def _database(path: Path, last: int, second_at: int = 0, guid: UUID = GUID) -> None:
    """Write a file with the inventory's first page at 1, by which all is active, its second one at
    SECOND_AT, by which all is committed, and pages of data else."""
    pages = [bytearray([5]) + bytearray(b"\xaa" * (PAGE - 1)) for _ in range(6)]
    pages[0] = bytearray(PAGE)
    pages[0][0] = 1
    struct.pack_into("<HH16xI", pages[0], 16, PAGE, 0x800D, last)
    pages[0][128:146] = bytes([10, 16]) + guid.bytes_le
    pages[1] = bytearray([3]) + bytearray(PAGE - 1)
    struct.pack_into("<I", pages[1], 16, second_at)
    if second_at:
        pages[second_at] = bytearray([3]) + bytearray(19) + bytearray(b"\xff" * (PAGE - 20))
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(b"".join(pages))


def test_an_older_copy_of_a_database_over_its_file(tmp_path: Path) -> None:
    path = tmp_path / "test.fdb"
    number = FIRST_OF_SECOND_PAGE + 5
    _database(path, number, second_at=2)
    inventory = TransactionInventory(path, GUID)
    assert inventory.verdicts([number], durable=True) == [Verdict.COMMITTED]
    _database(path, 100)
    assert inventory.verdicts([50, number], durable=True) == [Verdict.ACTIVE, Verdict.UNKNOWN]
    _database(path, number, second_at=4)
    assert inventory.verdicts([number], durable=True) == [Verdict.COMMITTED]
    inventory.close()


def test_a_copy_over_its_file_that_went_on_unseen(tmp_path: Path) -> None:
    path = tmp_path / "test.fdb"
    number = FIRST_OF_SECOND_PAGE + 5
    _database(path, number, second_at=2)
    inventory = TransactionInventory(path, GUID)
    inventory.verdicts([number], durable=True)
    _database(path, number + 1, second_at=4)
    with pytest.raises(InventoryUnreadable, match="no inventory page"):
        inventory.verdicts([number], durable=True)
    assert inventory.verdicts([number], durable=True) == [Verdict.COMMITTED]
    inventory.close()


def test_another_database_over_its_file(tmp_path: Path) -> None:
    path = tmp_path / "test.fdb"
    _database(path, 100)
    inventory = TransactionInventory(path, GUID)
    assert inventory.verdicts([50], durable=True) == [Verdict.ACTIVE]
    _database(path, 100, guid=UUID(int=8))
    with pytest.raises(DatabaseReplaced):
        inventory.verdicts([50], durable=True)
    inventory.close()
