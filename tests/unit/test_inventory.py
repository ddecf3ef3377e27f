"""The transaction inventory of a file that is replaced in place while it is open."""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from firebird_cdc.errors import CaptureError
from firebird_cdc.journal.folder.failed_syncs import Doubt
from firebird_cdc.journal.folder.inventory import (
    DatabaseReplaced,
    InventoryUnreadable,
    TransactionInventory,
    TransactionState,
)
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.tasks.watches import DoubtWatch

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


def test_older_copy_over_a_database_leaves_later_states_unknown(tmp_path: Path) -> None:
    path = tmp_path / "test.fdb"
    number = FIRST_OF_SECOND_PAGE + 5
    _database(path, number, second_at=2)
    inventory = TransactionInventory(path, GUID)
    assert inventory.states([number], durable=True) == [TransactionState.COMMITTED]
    _database(path, 100)
    assert inventory.states([50, number], durable=True) == [
        TransactionState.ACTIVE,
        TransactionState.UNKNOWN,
    ]
    _database(path, number, second_at=4)
    assert inventory.states([number], durable=True) == [TransactionState.COMMITTED]
    inventory.close()


def test_copy_that_went_on_unseen_is_refused_once_and_then_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "test.fdb"
    number = FIRST_OF_SECOND_PAGE + 5
    _database(path, number, second_at=2)
    inventory = TransactionInventory(path, GUID)
    inventory.states([number], durable=True)
    _database(path, number + 1, second_at=4)
    with pytest.raises(InventoryUnreadable, match="no inventory page"):
        inventory.states([number], durable=True)
    assert inventory.states([number], durable=True) == [TransactionState.COMMITTED]
    inventory.close()


def test_another_database_over_a_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "test.fdb"
    _database(path, 100)
    inventory = TransactionInventory(path, GUID)
    assert inventory.states([50], durable=True) == [TransactionState.ACTIVE]
    _database(path, 100, guid=UUID(int=8))
    with pytest.raises(DatabaseReplaced):
        inventory.states([50], durable=True)
    inventory.close()


def _set_oldest(path: Path, oldest: int) -> None:
    with path.open("r+b") as file:
        for at, word in (
            (28, struct.pack("<I", oldest % 2**32)),
            (122, struct.pack("<H", oldest >> 32)),
        ):
            file.seek(at)
            file.write(word)


def test_an_oldest_interesting_transaction_above_32_bits_passes_all_below_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "test.fdb"
    _database(path, 100)
    _set_oldest(path, 2**32 + 10)
    inventory = TransactionInventory(path, GUID)
    assert inventory.states([50], durable=False) == [TransactionState.COMMITTED]
    inventory.close()


@pytest.mark.parametrize(
    ("before_sweep", "state"),
    [(1, TransactionState.DEAD), (2, TransactionState.ACTIVE)],
    ids=["one", "both"],
)
def test_transaction_swept_between_two_readings_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before_sweep: int, state: TransactionState
) -> None:
    """The header has to be read first: what it says was true of the states then."""
    path = tmp_path / "test.fdb"
    _database(path, 100)
    inventory = TransactionInventory(path, GUID)
    assert inventory.states([50], durable=False) == [TransactionState.ACTIVE]
    real, readings = os.pread, []

    def read_and_sweep(fd: int, length: int, offset: int) -> bytes:
        content = real(fd, length, offset)
        readings.append(offset)
        if len(readings) == before_sweep:
            _set_state(path, 50, 2)
            _set_oldest(path, 60)
        return content

    monkeypatch.setattr(os, "pread", read_and_sweep)
    assert inventory.states([50], durable=False) == [state]
    assert len(readings) >= 2
    inventory.close()


class FailingDisk:
    """A disk that did not take the last write of a file, and said so to one sync."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.syncs_fail = 1
        self._path, self._copy = path, path.with_name("on-disk")
        self._copy.write_bytes(path.read_bytes())
        self._open, self._fdatasync = os.open, os.fdatasync
        monkeypatch.setattr(os, "open", self._open_past_memory)
        monkeypatch.setattr(os, "fdatasync", self._sync)

    def _open_past_memory(self, path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            path, flags = str(self._copy), flags & ~os.O_DIRECT
        return self._open(path, flags, mode)

    def _sync(self, fd: int) -> None:
        if self.syncs_fail:
            self.syncs_fail -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._fdatasync(fd)

    def takes_it_after_all(self) -> None:
        """The engine writes the page once more, and that works."""
        self._copy.write_bytes(self._path.read_bytes())


def _set_state(path: Path, transaction: int, state: int) -> None:
    with path.open("r+b") as file:
        at = PAGE + 20 + transaction // 4
        file.seek(at)
        was = file.read(1)[0]
        file.seek(at)
        file.write(bytes([was | state << 2 * (transaction % 4)]))


def _commit(path: Path, transaction: int) -> None:
    _set_state(path, transaction, 3)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FailingDisk:
    """A database of which the disk does not know that 50 is committed."""
    path = tmp_path / "test.fdb"
    _database(path, 100)
    with path.open("r+b") as file:
        file.seek(42)
        file.write(b"\2")  # forced writes
    disk = FailingDisk(path, monkeypatch)
    _commit(path, 50)
    return disk


def test_page_of_a_failed_sync_in_memory_is_not_taken_for_committed(
    tmp_path: Path, disk: FailingDisk
) -> None:
    doubt = Doubt(tmp_path / "doubt")
    inventory = TransactionInventory(tmp_path / "test.fdb", GUID, doubt)
    with pytest.raises(OSError, match="Input/output error"):
        inventory.states([50], durable=True)
    for _ in range(3):
        with pytest.raises(CaptureError, match="the disk tells another thing"):
            inventory.states([50], durable=True)
    assert inventory.states([51], durable=True) == [TransactionState.ACTIVE]
    disk.takes_it_after_all()
    assert inventory.states([50, 51], durable=True) == [
        TransactionState.COMMITTED,
        TransactionState.ACTIVE,
    ]
    inventory.close()


def test_nothing_is_answered_before_a_failed_sync_is_noted_for_others(
    tmp_path: Path, disk: FailingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubt = Doubt(tmp_path / "missing" / "doubt")
    inventory = TransactionInventory(tmp_path / "test.fdb", GUID, doubt)
    for _ in range(2):
        with pytest.raises(OSError, match="No such file"):
            inventory.states([50], durable=True)
    (tmp_path / "missing").mkdir()
    with pytest.raises(CaptureError, match="the disk tells another thing"):
        inventory.states([50], durable=True)
    assert doubt.database() == str(tmp_path / "test.fdb")
    inventory.close()


def test_a_commit_between_the_two_readings_is_no_disagreement(
    tmp_path: Path, disk: FailingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "test.fdb"
    disk.syncs_fail = 0
    disk.takes_it_after_all()
    doubt = Doubt(tmp_path / "doubt")
    doubt.note(path)
    inventory = TransactionInventory(path, GUID, doubt)
    inventory.states([50], durable=True)
    real, commits = os.preadv, iter(range(51, 100))

    def read_later(fd: int, buffers: list[mmap.mmap], offset: int) -> int:
        if offset == 0:  # the header, first of all
            _commit(path, next(commits))
            disk.takes_it_after_all()
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", read_later)
    for last in (51, 52, 53):  # there is load
        found = inventory.states([50, *range(51, last + 1)], durable=True)
        assert found == [TransactionState.COMMITTED] * (last - 50) + [TransactionState.ACTIVE]
    inventory.close()


def test_another_process_knows_of_a_sync_that_failed(tmp_path: Path, disk: FailingDisk) -> None:
    doubt = Doubt(tmp_path / "doubt")
    first = TransactionInventory(tmp_path / "test.fdb", GUID, doubt)
    with pytest.raises(OSError, match="Input/output error"):
        first.states([50], durable=True)
    first.close()
    second = TransactionInventory(tmp_path / "test.fdb", GUID, doubt)
    with pytest.raises(CaptureError, match="the disk tells another thing"):
        second.states([50], durable=True)
    second.close()


def test_inventory_is_trusted_again_after_a_reboot(tmp_path: Path, disk: FailingDisk) -> None:
    disk.syncs_fail = 0
    doubt = Doubt(tmp_path / "doubt")
    (tmp_path / "doubt").write_text("another boot\n/data/test.fdb")
    inventory = TransactionInventory(tmp_path / "test.fdb", GUID, doubt)
    assert inventory.states([50], durable=True) == [TransactionState.COMMITTED]
    inventory.close()


def test_failed_sync_without_direct_reads_leaves_the_state_undecided(
    tmp_path: Path, disk: FailingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = TransactionInventory(tmp_path / "test.fdb", GUID, Doubt(tmp_path / "doubt"))
    monkeypatch.setattr(os, "open", _without_direct(os.open))
    with pytest.raises(OSError, match="Input/output error"):
        inventory.states([50], durable=True)
    for _ in range(2):
        with pytest.raises(CaptureError, match="does not show what is on disk"):
            inventory.states([50], durable=True)
    inventory.close()


def _without_direct(real: Callable[..., int]) -> Callable[..., int]:
    def opened(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(path, flags, mode)

    return opened


def test_the_disk_itself_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "test.fdb"
    _database(path, 100)
    _commit(path, 50)
    doubt = Doubt(tmp_path / "doubt")
    doubt.note(path)
    inventory = TransactionInventory(path, GUID, doubt)
    assert inventory.states([50, 51], durable=True) == [
        TransactionState.COMMITTED,
        TransactionState.ACTIVE,
    ]
    inventory.close()


def test_shipper_reports_a_failed_sync_of_a_database(tmp_path: Path) -> None:
    databases = tmp_path / STATE_DIRECTORY / "databases"
    databases.mkdir(parents=True)
    Doubt.of(databases, "1").note(Path("/data/shop.fdb"))
    (databases / "2.doubt").write_text("another boot\n/data/old.fdb")
    statistics = Statistics()
    DoubtWatch(tmp_path, statistics).turn(0.0)
    [trouble] = statistics.troubles.values()
    assert "a sync of /data/shop.fdb failed" in trouble.text


def test_copy_of_the_states_stays_what_it_was_when_the_file_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "test.fdb"
    number = FIRST_OF_SECOND_PAGE + 5
    _database(path, number, second_at=2)
    inventory = TransactionInventory(path, GUID)
    copy = inventory.copy_states(1)
    later = inventory.copy_states(FIRST_OF_SECOND_PAGE)
    _database(path, 100)
    asked = [50, number, number + 1]
    assert [copy.state(each) for each in asked] == [
        TransactionState.ACTIVE,
        TransactionState.COMMITTED,
        TransactionState.UNKNOWN,
    ]
    assert later.state(number) is TransactionState.COMMITTED
    assert inventory.states([number], durable=False) == [TransactionState.UNKNOWN]
    inventory.close()
