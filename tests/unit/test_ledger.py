"""The ledger of given numbers on a disk on which syncs fail, and after a power cut then."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar
from uuid import UUID

import pytest
from losing_disk import LosingDisk, once

from firebird_cdc.journal.folder import ledger as sequence
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.ledger import SequenceLedger
from firebird_cdc.journal.folder.ledger_records import LedgerEntry
from firebird_cdc.journal.format import Entry, JournalReader, JournalWriter, Stamp, write_stamp


def journal_uuid(number: int) -> UUID:
    """Return the uuid of the journal that is published after NUMBER others."""
    return UUID(bytes=number.to_bytes(16, "big"), version=4)


class Process:
    """One of several that give numbers in a folder: it stamps, records and renames."""

    living: ClassVar[list[Process]] = []

    def __init__(
        self, path: Path, sync_stamps: Callable[[], None] = lambda: None, fsync: bool = True
    ) -> None:
        self.folder = JournalFolder(path, writes=False)
        self.ledger = SequenceLedger(self.folder, "d", fsync, sync_stamps)
        self.living.append(self)

    def end(self) -> None:
        """Close what it has open."""
        if self in self.living:
            self.living.remove(self)
            self.ledger.close()
            self.folder.close()

    def publish(self) -> int:
        """Publish a journal; return its number. Raises OSError."""
        uuid = journal_uuid(len(list(self.folder.path.glob("*.log*"))))
        live = self.folder.live(uuid)
        live.unlink(missing_ok=True)
        with JournalWriter(live, uuid=uuid, transaction=7) as writer:
            writer.gap("it")
            writer.seal()
            length = writer.journal_length or 0
            writer.commit(1, 1)
        with self.ledger.exclusive():
            number = self.ledger.last + 1
            stamp = Stamp(0, number, 1, 1, length, 1, 7, 0)
            with live.open("r+b") as file:
                write_stamp(file.fileno(), uuid, stamp)
            self.ledger.record([LedgerEntry(uuid, stamp)], number)
            live.rename(self.folder.committed(uuid))
        return number

    def last(self) -> int:
        """Return the last number that it takes for given."""
        with self.ledger.exclusive():
            return self.ledger.last

    def kept(self) -> list[int]:
        """Return the numbers that can still be written again."""
        with self.ledger.exclusive():
            return [entry.stamp.sequence for entry in self.ledger.entries()]


@pytest.fixture(autouse=True)
def end_processes() -> Iterator[None]:
    """End those that a test left: select(2) takes no descriptor above 1023 in tests to come."""
    yield
    for process in [*Process.living]:
        process.end()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journals"


@pytest.fixture
def disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LosingDisk]:
    JournalFolder(path, writes=False).close()
    with monkeypatch.context() as patch:
        yield LosingDisk(path, patch)


def _publish_patiently(process: Process) -> int:
    """Publish as the confirmer does: after an error, again."""
    for _ in range(3):
        try:
            return process.publish()
        except OSError as error:
            failed = error
    raise failed


def test_a_number_whose_sync_failed_is_not_given_again_after_a_power_cut(
    path: Path, disk: LosingDisk
) -> None:
    process = Process(path)
    assert process.publish() == 1
    disk.fails = once(".ledger")
    with contextlib.suppress(OSError):
        process.publish()
    assert disk.failed
    shown = process.last()  # the journals that have these numbers get their names
    disk.cut()
    assert Process(path).publish() == shown + 1


def test_another_process_reuses_no_number_of_a_failed_sync(path: Path, disk: LosingDisk) -> None:
    first, second = Process(path), Process(path)
    assert [second.publish(), first.publish()] == [1, 2]
    disk.fails = lambda file: ".ledger" in file.name
    with pytest.raises(OSError, match="Input/output error"):
        first.publish()
    disk.fails = lambda _: False
    shown = second.last()
    disk.cut()
    assert Process(path).publish() == shown + 1


def test_nothing_is_given_while_no_sync_works(path: Path, disk: LosingDisk) -> None:
    process = Process(path)
    process.publish()
    disk.fails = lambda file: file.suffix != ".live"
    with pytest.raises(OSError, match="Input/output error"):
        process.publish()
    for each in (process, process, Process(path)):
        with pytest.raises(OSError, match="Input/output error"):
            each.last()
    disk.fails = lambda _: False
    shown = process.last()
    disk.cut()
    assert Process(path).publish() == shown + 1


def test_numbers_given_before_a_failed_sync_are_kept(path: Path, disk: LosingDisk) -> None:
    process = Process(path)
    for _ in range(3):
        process.publish()
    disk.fails = once(".ledger")
    with contextlib.suppress(OSError):
        process.publish()
    process.last()
    disk.cut()
    assert Process(path).kept() == [1, 2, 3, 4]


def test_unsynced_record_of_a_killed_process_is_synced_before_it_counts(
    path: Path, disk: LosingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, other = Process(path), Process(path)
    assert [killed.publish(), other.publish()] == [1, 2]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sequence.os, "fdatasync", _end)
        killed.publish()
    known = other.last()
    disk.cut()
    assert Process(path).last() == known


def _end(_: int) -> None:
    raise KeyboardInterrupt


def test_stamps_of_a_failed_sync_of_the_file_system_can_be_written_again(
    path: Path, disk: LosingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = [disk.fail_all]
    process = Process(path, lambda: (syncs.pop() if syncs else disk.sync_all)())
    process.publish()
    monkeypatch.setattr(sequence, "_LEDGER_LIMIT", 1)  # a new one begins at once
    second = _publish_patiently(process)
    assert not syncs
    disk.cut()
    kept = {*Process(path).kept()}
    for number, journal in enumerate(sorted(path.glob("*.log")), 1):
        with JournalReader(journal) as reader:
            assert reader.stamp is not None or number in kept, number
    assert second == 2


def test_numbers_of_open_shared_journals_outlast_the_ledger_that_gave_them(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(path)
    live, closed, gone = (journal_uuid(number) for number in (90, 91, 92))
    process.folder.live(live).touch()
    process.folder.committed(closed).touch()
    homes = [live, live, closed, live, None, gone, live]
    given = [
        LedgerEntry(journal_uuid(number), Stamp(0, number, 5, 6, 300, 2, 70 + number, 0), home)
        if home is None
        else LedgerEntry(
            journal_uuid(number),
            Stamp(0, number, 5, 6, 300, 2, 70 + number, 40),
            home,
            4096 + 320 * number,
            number + 100,
            260,
        )
        for number, home in enumerate(homes, 1)
    ]
    with process.ledger.exclusive():
        process.ledger.record(given[:3], 3)
        process.ledger.record(given[3:], 7)
        assert list(process.ledger.entries()) == given
        for home in (live, closed):
            in_it = [Entry.of(each.place) for each in given if each.home == home]
            assert process.ledger.entries_in(home) == in_it
    monkeypatch.setattr(sequence, "_LEDGER_LIMIT", 1)  # a new one begins at once
    process.publish()
    inode = process.ledger._path.stat().st_ino
    for reader in (process, Process(path)):
        with reader.ledger.exclusive():
            kept = [each for each in reader.ledger.entries() if each.stamp.sequence < 8]
            assert kept == given  # each in a record that names an open one
            in_it = [Entry.of(each.place) for each in given if each.home == live]
            assert reader.ledger.entries_in(live) == in_it
            assert reader.ledger.last == 8
            assert reader.ledger.highest_transaction == 77
    process.publish()  # what has to be kept does not make each record begin a new one
    assert process.ledger._path.stat().st_ino == inode
    assert process.last() == 9


def test_numbers_in_a_shared_journal_are_found_as_other_processes_give_them(path: Path) -> None:
    one, other = Process(path), Process(path)
    journals = journal_uuid(101), journal_uuid(102)

    def give(process: Process, home: UUID) -> LedgerEntry:
        with process.ledger.exclusive():
            number = process.ledger.last + 1
            stamp = Stamp(0, number, 5, 6, 300, 2, 70 + number, 0)
            entry = LedgerEntry(journal_uuid(number), stamp, home, 4096 * number, number, 260)
            process.ledger.record([entry], number)
            return entry

    given = []
    for turn in range(6):
        process, home = (one, other)[turn % 2], journals[turn // 2 % 2]
        given.append(give(process, home))
        one.publish()  # in a journal of its own
        for each in (one, other):
            with each.ledger.exclusive():
                for journal in journals:
                    expected = [Entry.of(each.place) for each in given if each.home == journal]
                    assert each.ledger.entries_in(journal) == expected


def _give_three(path: Path) -> tuple[Path, list[int]]:
    """Return a ledger of three records, and where each begins."""
    process = Process(path)
    ledger = process.folder.databases / "d.ledger"
    starts = []
    for number in (1, 2, 3):
        starts.append(ledger.stat().st_size if number > 1 else 0)
        assert process.publish() == number
    process.end()
    return ledger, starts


def _damage(ledger: Path, at: int) -> bytes:
    """Damage 8 bytes of a ledger; return what is in it then."""
    with ledger.open("r+b") as file:
        file.seek(at + 20)
        file.write(b"\xff" * 8)
    return ledger.read_bytes()


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_no_number_behind_a_damaged_record_is_given_again(path: Path, damaged: int) -> None:
    ledger, starts = _give_three(path)
    whole = ledger.read_bytes()
    content = _damage(ledger, starts[damaged])
    for _ in range(2):
        with pytest.raises(OSError, match="took numbers that were given") as caught:
            Process(path).publish()
        assert caught.value.errno == errno.EIO
        assert caught.value.filename == str(ledger)
    assert ledger.read_bytes() == content
    ledger.unlink()
    ledger.write_bytes(whole)  # it is brought back
    assert Process(path).publish() == 4


def test_process_knowing_more_than_a_damaged_ledger_reuses_no_number(
    path: Path,
) -> None:
    ledger, starts = _give_three(path)
    process = Process(path)
    assert process.last() == 3
    content = _damage(ledger, starts[1])
    with (
        pytest.raises(OSError, match="took numbers that were given"),
        process.ledger.exclusive(),
    ):
        list(process.ledger.entries())
        process.ledger.record([], process.ledger.last)
    assert ledger.read_bytes() == content


def test_a_new_ledger_is_not_measured_by_an_older_one_of_the_same_inode_number(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, _ = _give_three(path)
    killed = Process(path)
    assert killed.last() == 3
    fsync, rename = os.fsync, Path.rename

    def sync(fd: int) -> None:
        fsync(fd)
        if Path(f"/proc/self/fd/{fd}").readlink().suffix == ".ledger-new":
            older = struct.pack("<QQQ", os.fstat(fd).st_ino, 10**6, 0)
            ledger.with_suffix(".lock").write_bytes(older)

    def rename_and_end(source: Path, target: Path) -> None:
        rename(source, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sequence, "_LEDGER_LIMIT", 1)  # a new one begins at once
        patch.setattr(os, "fsync", sync)
        patch.setattr(Path, "rename", rename_and_end)
        killed.publish()
    assert Process(path).publish() == 4
