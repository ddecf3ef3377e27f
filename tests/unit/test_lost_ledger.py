"""A ledger of given numbers that is missing, or that an older copy took the place of."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from losing_disk import LosingDisk, once
from test_ledger import Process, end_processes, journal_uuid  # noqa: F401

from firebird_cdc.bridge import structures
from firebird_cdc.bridge.structures import KeyIndexFile
from firebird_cdc.journal.folder import ledger as sequence
from firebird_cdc.journal.folder import ledger_lock
from firebird_cdc.journal.folder.inventory import Incarnation
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.ledger import SequenceLedger
from firebird_cdc.journal.folder.ledger_lock import LedgerLock, Noted
from firebird_cdc.journal.folder.ledger_records import LedgerEntry
from firebird_cdc.journal.format import Stamp

_LOST = "took numbers that were given"
_EARLIER_LOCK = 24  # bytes, by earlier versions
_INCARNATION = Incarnation(UUID(int=9), (1, 1), 1)
_NOT_COUNTED = 10_000  # epochs from here on are days since 1970


class Copies:
    """A ledger, and what was in it after each number."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.process = Process(path)
        self.ledger = self.process.folder.databases / "d.ledger"
        self.lock = self.ledger.with_suffix(".lock")
        self.request = self.ledger.with_suffix(".anew")
        self.after = [b""]

    def give(self, numbers: int) -> None:
        for _ in range(numbers):
            assert self.process.publish() == len(self.after)
            self.after.append(self.ledger.read_bytes())

    def put(self, content: bytes | None) -> None:
        """Let another file take the ledger's place; None: nothing does."""
        if content is None:
            self.ledger.unlink()
            return
        copy = self.ledger.with_suffix(".copy")
        copy.write_bytes(content)
        copy.rename(self.ledger)

    def assert_waiting(self, *processes: Process) -> None:
        """Assert that nobody gives a number, and that the ledger stays as it is."""
        content = self.ledger.read_bytes() if self.ledger.exists() else None
        for process in processes or (Process(self.path), self.process):
            for _ in range(2):
                with pytest.raises(OSError, match=_LOST) as caught:
                    process.publish()
                assert caught.value.errno == errno.EIO
                assert caught.value.filename == str(self.ledger)
                assert self.request.name in str(caught.value)
        assert (self.ledger.read_bytes() if self.ledger.exists() else None) == content


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return Copies(tmp_path / "journals")


_LOSSES: dict[str, Callable[[Copies], bytes | None]] = {
    "missing": lambda _: None,
    "empty": lambda _: b"",
    "older": lambda copies: copies.after[1],
    "one record less": lambda copies: copies.after[3],
}


@pytest.mark.parametrize("loss", _LOSSES)
def test_no_number_is_given_again_where_the_ledger_is_missing_or_older(
    copies: Copies, loss: str
) -> None:
    copies.give(4)
    copies.put(_LOSSES[loss](copies))
    copies.assert_waiting()
    copies.put(copies.after[4])
    assert Process(copies.path).publish() == 5
    assert copies.process.publish() == 6


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_process_that_syncs_nothing_gives_no_number_again_either(
    copies: Copies, is_cut: bool
) -> None:
    process = Process(copies.path, fsync=False)
    assert [process.publish() for _ in range(3)] == [1, 2, 3]
    whole = copies.ledger.read_bytes()
    if is_cut:
        os.truncate(copies.ledger, len(whole) - 1)
    else:
        copies.ledger.unlink()
    copies.assert_waiting(process)
    copies.put(whole)
    assert process.publish() == 4


def test_epoch_begun_with_a_new_ledger_after_a_failed_sync_is_new(
    copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies.give(3)
    copies.process.folder.count_failed_sync()
    monkeypatch.setattr(sequence, "_LEDGER_LIMIT", 1)
    ledger = copies.process.ledger
    with ledger.exclusive():
        ledger.begin_epoch(_INCARNATION)
    with ledger.exclusive():
        assert (ledger.epoch, ledger.last) == (1, 0)


def test_older_copy_of_a_ledger_is_noticed_even_if_longer(
    copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies.give(4)
    monkeypatch.setattr(sequence, "_LEDGER_LIMIT", 1)  # a new one begins with each number
    copies.give(1)
    assert len(copies.after[5]) < len(copies.after[4])
    copies.put(copies.after[4])
    copies.assert_waiting()
    copies.put(copies.after[5])
    assert Process(copies.path).publish() == 6


def test_numbers_are_dense_over_many_new_ledgers_and_two_processes(
    copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence, "_LEDGER_LIMIT", 500)
    processes = [copies.process, Process(copies.path)]
    given = [processes[number % 2].publish() for number in range(40)]
    assert given == list(range(1, 41))


@pytest.mark.parametrize("length", [None, 0, _EARLIER_LOCK])
def test_missing_or_short_lock_file_does_not_block_publishing(
    copies: Copies, length: int | None
) -> None:
    copies.give(4)
    copies.process.end()
    if length is None:
        copies.lock.unlink()
    else:
        os.truncate(copies.lock, length)
    process = Process(copies.path)
    assert process.last() == 4
    copies.put(copies.after[3])  # it is told by now
    copies.assert_waiting(process, Process(copies.path))


@pytest.mark.parametrize("loss", _LOSSES)
def test_lock_file_of_an_earlier_version_reveals_a_loss(copies: Copies, loss: str) -> None:
    copies.give(4)
    copies.process.end()
    os.truncate(copies.lock, _EARLIER_LOCK)
    copies.put(_LOSSES[loss](copies))
    copies.assert_waiting(Process(copies.path))


def test_an_earlier_version_that_works_beside_this_one_stops_nothing(
    copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(lock: LedgerLock, noted: Noted) -> None:
        os.pwrite(lock._fd, ledger_lock._NOTED.pack(*noted)[:_EARLIER_LOCK], 0)

    monkeypatch.setattr(sequence, "_LEDGER_LIMIT", 500)
    copies.give(3)
    for _ in range(5):
        with monkeypatch.context() as patch:
            patch.setattr(LedgerLock, "note", note)
            copies.give(3)
        copies.process = Process(copies.path)
        copies.give(1)


def test_a_lock_file_that_is_removed_while_processes_work_stops_none(
    copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies.give(4)
    copies.lock.unlink()
    another = Process(copies.path)
    monkeypatch.setattr(sequence, "_LEDGER_LIMIT", 1)
    assert [another.publish(), copies.process.publish(), another.publish()] == [5, 6, 7]


def test_numbers_of_a_new_epoch_are_not_taken_for_lost(copies: Copies) -> None:
    copies.give(4)
    ledger = copies.process.ledger
    with ledger.exclusive():
        ledger.begin_epoch(Incarnation(UUID(int=1), (1, 2), 3))
    assert copies.process.publish() == 1
    another = Process(copies.path)
    assert another.publish() == 2
    assert another.ledger.epoch == 1
    copies.put(copies.after[4])
    copies.assert_waiting()


def test_a_folder_that_is_copied_to_another_disk_goes_on(copies: Copies, tmp_path: Path) -> None:
    copies.give(4)
    copies.process.end()
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(copies.path, elsewhere, copy_function=shutil.copy2)
    assert Process(elsewhere).publish() == 5
    assert Process(elsewhere).publish() == 6


def test_database_with_all_its_files_removed_begins_anew(copies: Copies) -> None:
    copies.give(4)
    copies.process.end()
    for path in copies.ledger.parent.glob("d.*"):
        path.unlink()
    assert Process(copies.path).publish() == 1


# -- a new epoch, where no copy is left ------------------------------------------------------------


@pytest.mark.parametrize("loss", _LOSSES)
def test_new_epoch_after_a_loss_begins_on_request(copies: Copies, loss: str) -> None:
    copies.give(4)
    left = _LOSSES[loss](copies)
    copies.put(left)
    copies.assert_waiting()
    copies.request.touch()
    another = Process(copies.path)
    assert [copies.process.publish(), another.publish(), copies.process.publish()] == [1, 2, 3]
    assert copies.process.ledger.epoch == another.ledger.epoch == 1
    assert not copies.request.exists()
    kept = copies.ledger.with_suffix(".damaged")
    assert (kept.read_bytes() if kept.exists() else None) == left
    copies.put(copies.after[4])  # found after all, but too late
    copies.assert_waiting()


def test_epoch_missing_from_an_older_ledger_is_not_begun_again(copies: Copies) -> None:
    copies.give(1)
    ledger = copies.process.ledger
    for _ in range(3):
        with ledger.exclusive():
            ledger.begin_epoch(Incarnation(UUID(int=1), (1, 2), 3))
    copies.put(copies.after[1])
    copies.request.touch()
    process = Process(copies.path)
    assert process.publish() == 1
    assert process.ledger.epoch == 4


@pytest.mark.parametrize("has_ended", [False, True])
@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize("loss", [None, b"", b"\0" * 200])
def test_an_epoch_after_a_loss_is_above_all_that_were(
    copies: Copies, fsync: bool, has_ended: bool, loss: bytes | None
) -> None:
    process = Process(copies.path, fsync=fsync)
    process.publish()
    for _ in range(3):
        with process.ledger.exclusive():
            process.ledger.begin_epoch(_INCARNATION)
    process.publish()
    if has_ended:
        process.end()
        process = Process(copies.path, fsync=fsync)
    copies.put(loss)
    copies.assert_waiting(process)
    copies.request.touch()
    assert [process.publish(), process.publish()] == [1, 2]
    assert process.ledger.epoch == 4


@pytest.mark.parametrize("step", [1, 2])
def test_unrecorded_epoch_is_not_guessed(
    copies: Copies, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an upgrade, also where the process ends that begins the epoch."""
    ledger = copies.process.ledger
    for _ in range(3):
        with ledger.exclusive():
            ledger.begin_epoch(_INCARNATION)
    copies.process.publish()
    copies.process.end()
    os.truncate(copies.lock, _EARLIER_LOCK)
    copies.put(b"\0" * 200)
    copies.request.touch()
    process = Process(copies.path)
    if step == 2:
        with monkeypatch.context() as patch:
            patch.setattr(SequenceLedger, "_write_anew", _end_here)
            with pytest.raises(KeyboardInterrupt):
                process.publish()
        process = Process(copies.path)
    assert process.publish() == 1
    epoch = process.ledger.epoch
    assert epoch > _NOT_COUNTED
    with process.ledger.exclusive():
        process.ledger.begin_epoch(_INCARNATION)
    assert process.ledger.epoch == epoch + 1


def _end_here(*_given: object) -> None:
    raise KeyboardInterrupt


def test_epochs_unrecorded_by_an_earlier_version_are_recorded_at_first_use(
    copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies.give(1)
    copies.process.end()
    process = Process(copies.path, fsync=False)
    with monkeypatch.context() as patch:
        patch.setattr(SequenceLedger, "_note_unsynced", lambda *_given: None)
        for _ in range(3):
            with process.ledger.exclusive():
                process.ledger.begin_epoch(_INCARNATION)
    process.end()
    process = Process(copies.path, fsync=False)
    process.last()
    process.end()
    copies.put(None)
    copies.request.touch()
    process = Process(copies.path)
    assert process.publish() == 1
    assert process.ledger.epoch == 4


@pytest.mark.parametrize("is_opened", [False, True])
def test_a_ledger_that_the_disk_does_not_give_back_is_lost_until_it_does(
    copies: Copies, monkeypatch: pytest.MonkeyPatch, is_opened: bool
) -> None:
    copies.give(4)
    bad = copies.ledger.stat().st_ino
    copies.process.end()
    read, opened = os.pread, os.open

    def pread(fd: int, *more: int) -> bytes:
        return _io_error() if os.fstat(fd).st_ino == bad else read(fd, *more)

    def open_file(path: Path, *more: int) -> int:
        is_bad = path == copies.ledger and path.exists() and path.stat().st_ino == bad
        return _io_error() if is_bad else opened(path, *more)

    def fail(patch: pytest.MonkeyPatch) -> None:
        if is_opened:
            patch.setattr(os, "pread", pread)
        else:
            patch.setattr(os, "open", open_file)

    with monkeypatch.context() as patch:
        fail(patch)
        with pytest.raises(OSError, match=_LOST) as caught:
            Process(copies.path).publish()
        assert caught.value.filename == str(copies.ledger)
    process = Process(copies.path)
    assert process.publish() == 5
    process.end()
    fail(monkeypatch)
    copies.request.touch()
    process = Process(copies.path)
    assert [process.publish(), process.publish()] == [1, 2]
    assert process.ledger.epoch == 1


def _io_error() -> Any:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_numbers_that_were_never_on_disk_are_not_taken_for_lost(
    copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the system drops, after a sync that failed, what it could not write."""
    copies.give(4)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda _fd: _io_error())
        patch.setattr(SequenceLedger, "_write_anew", lambda *_given: _io_error())
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output error"):
                copies.process.publish()
    os.truncate(copies.ledger, len(copies.after[4]))
    assert copies.process.publish() == 5


def test_index_file_written_by_another_thread_leaves_a_new_ledger_intact(
    copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structures, "database_key", lambda _path: "d")
    indexes = KeyIndexFile(copies.ledger.parent, "d", UUID(int=1))
    copies.give(4)
    monkeypatch.setattr(sequence, "_LEDGER_LIMIT", 1)
    rename = Path.rename

    def write_first(path: Path, target: Path) -> Path:
        indexes.write({})
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", write_first)
        assert copies.process.publish() == 5
    assert Process(copies.path).publish() == 6


def test_request_for_a_new_epoch_does_not_cover_a_later_loss(copies: Copies) -> None:
    copies.give(4)
    copies.request.touch()
    copies.give(1)
    assert copies.process.ledger.epoch == 0
    copies.put(None)
    copies.assert_waiting()


# -- kills, power cuts, and syncs that fail --------------------------------------------------------


@pytest.fixture
def disk(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> Iterator[LosingDisk]:
    with monkeypatch.context() as patch:
        yield LosingDisk(copies.path, patch)


_STEPS = [
    (os, "fsync"),
    (os, "fdatasync"),
    (Path, "rename"),
    (sequence, "pwrite"),
    (ledger_lock, "pwrite"),
]


class _KillAt:
    """Ends a process before or after the step of a number."""

    def __init__(self, step: int, is_after: bool, patch: pytest.MonkeyPatch) -> None:
        self._left = step
        self._is_after = is_after
        self.has_ended = False
        for place, name in _STEPS:
            patch.setattr(place, name, self._step(getattr(place, name)))

    def _step(self, real: Callable[..., object]) -> Callable[..., object]:
        def step(*given: object, **named: object) -> object:
            self._left -= 1
            if self._left or self._is_after:
                result = real(*given, **named)
            if not self._left:
                self.has_ended = True
                raise KeyboardInterrupt
            return result

        return step


def _reached(copies: Copies, process: Process, step: int, is_after: bool) -> bool:
    """Publish one more, and end the process at a step; tell whether it came to it."""
    with pytest.MonkeyPatch.context() as patch:
        kill = _KillAt(step, is_after, patch)
        try:
            process.publish()
        except KeyboardInterrupt:
            return True
        assert not kill.has_ended
        return False


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("limit", [1, sequence._LEDGER_LIMIT])
def test_crash_at_any_step_keeps_a_whole_ledger_usable_and_a_missing_one_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, is_after: bool, is_cut: bool
) -> None:
    step = 0
    is_reached = True
    while is_reached:
        step += 1
        path = tmp_path / str(step)
        JournalFolder(path, writes=False).close()
        with monkeypatch.context() as patch:
            disk = LosingDisk(path, patch)
            copies = Copies(path)
            copies.give(4)
            patch.setattr(sequence, "_LEDGER_LIMIT", limit)
            is_reached = _reached(copies, Process(path), step, is_after)
            if is_cut:
                disk.cut()
            is_given = (path / f"{journal_uuid(4)}.log").exists()
            following = Process(path).publish()
            assert following == 6 if is_given else following in (5, 6), step
            if is_reached and is_cut:
                disk.cut()
            copies.put(None)
            copies.assert_waiting(Process(path))
    assert step > 4


@pytest.mark.parametrize("is_after", [False, True])
def test_crash_of_the_first_process_at_any_step_lets_the_next_begin(
    tmp_path: Path, is_after: bool
) -> None:
    step = 0
    is_reached = True
    while is_reached:
        step += 1
        copies = Copies(tmp_path / str(step))
        is_reached = _reached(copies, copies.process, step, is_after)
        is_given = (copies.path / f"{journal_uuid(0)}.log").exists()
        following = Process(copies.path).publish()
        assert following == 2 if is_given else following in (1, 2), step


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("is_noted", [False, True])
def test_crash_at_any_step_of_a_new_epoch_after_a_loss_reuses_no_number(
    tmp_path: Path, is_noted: bool, is_after: bool
) -> None:
    step = 0
    is_reached = True
    while is_reached:
        step += 1
        copies = Copies(tmp_path / str(step))
        with copies.process.ledger.exclusive():
            copies.process.ledger.begin_epoch(_INCARNATION)
        for _ in range(3):
            copies.process.publish()
        copies.process.end()
        if not is_noted:
            os.truncate(copies.lock, _EARLIER_LOCK)
        copies.put(b"\0" * 200)
        copies.request.touch()
        is_reached = _reached(copies, Process(copies.path), step, is_after)
        is_given = (copies.path / f"{journal_uuid(3)}.log").exists()
        process = Process(copies.path)
        following = process.publish()
        assert following == 2 if is_given else following in (1, 2), step
        assert process.ledger.epoch == 2 if is_noted else process.ledger.epoch > _NOT_COUNTED
        assert not copies.request.exists()
    assert step > 10


@pytest.mark.parametrize("given", [1, 4])
def test_a_power_cut_and_the_loss_of_the_ledger_give_no_number_again(
    copies: Copies, disk: LosingDisk, given: int
) -> None:
    copies.give(given)
    disk.cut()
    copies.put(None)
    copies.assert_waiting(Process(copies.path))


def test_a_power_cut_does_not_take_which_epoch_it_was(copies: Copies, disk: LosingDisk) -> None:
    copies.give(4)
    ledger = copies.process.ledger
    with ledger.exclusive():
        ledger.begin_epoch(Incarnation(UUID(int=1), (1, 2), 3))
    disk.cut()
    copies.put(copies.after[4])
    copies.assert_waiting(Process(copies.path))


def test_failed_sync_of_a_note_is_repeated_with_the_next_record(
    copies: Copies, disk: LosingDisk
) -> None:
    with copies.process.ledger.exclusive():
        pass  # the ledger is there, and empty
    disk.fails = once(".lock")
    with pytest.raises(OSError, match="Input/output error"):
        copies.process.publish()
    assert disk.failed
    uuid = UUID(int=0, version=4)
    with copies.process.ledger.exclusive():
        assert uuid in {entry.uuid for entry in copies.process.ledger.entries()}  # it may have it
        stamp = Stamp(0, 2, 1, 1, 1, 1, 7, 0)
        copies.process.ledger.record([LedgerEntry(UUID(int=9), stamp)], 2)
    disk.cut()
    copies.put(None)
    copies.assert_waiting(Process(copies.path))
