"""The watcher: what is noticed, what never is, and how lost notifications are made good."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from firebird_cdc.demo.processes import await_condition
from firebird_cdc.journal.folder import locks
from firebird_cdc.journal.shipper.inbox import inotify
from firebird_cdc.journal.shipper.inbox import watcher as watch
from firebird_cdc.journal.shipper.inbox.watcher import (
    Folder,
    JournalWatcher,
    is_journal_name,
    list_journals,
)


def new_name() -> str:
    return f"{uuid.uuid4()}.log"


@pytest.fixture(params=["inotify", "watchdog"])
def watcher(
    request: pytest.FixtureRequest, journal_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[JournalWatcher]:
    monkeypatch.setattr(inotify, "AVAILABLE", request.param == "inotify")
    made = JournalWatcher(journal_directory, 0.0, 0.5)
    yield made
    made.close()


def noticed(watcher: JournalWatcher, expected: set[str]) -> set[str]:
    """The names that are notified until all of EXPECTED have come."""
    seen: set[str] = set()

    def all_came() -> bool:
        watcher.wait(0.1)
        seen.update(watcher.take())
        return expected <= seen

    await_condition(f"notification of {expected}", all_came, 60)
    return seen


@pytest.mark.parametrize(
    "name",
    [
        "6f2b9a54-0d1e-4c57-9a3b-2e7c41d8b0aa.log.live",
        "6f2b9a54-0d1e-4c57-9a3b-2e7c41d8b0aa.log.part",
        "6f2b9a54-0d1e-4c57-9a3b-2e7c41d8b0aa",
        "server.log",
        ".log",
    ],
)
def test_other_names_are_no_journals(name: str) -> None:
    assert not is_journal_name(name)


def test_rename_to_log_is_noticed_and_nothing_else(
    watcher: JournalWatcher, journal_directory: Path
) -> None:
    watcher.attach()
    try:
        inside = journal_directory / locks.STATE_DIRECTORY
        inside.mkdir()
        (inside / new_name()).touch()
        still_open = journal_directory / f"{new_name()}.live"
        still_open.touch()
        name = new_name()
        live = journal_directory / f"{name}.live"
        live.touch()
        live.rename(journal_directory / name)
        assert noticed(watcher, {name}) == {name}
    finally:
        watcher.detach()


def test_scan_finds_journals_only(watcher: JournalWatcher, journal_directory: Path) -> None:
    names = {new_name() for _ in range(20)}
    for name in names:
        (journal_directory / name).touch()
    (journal_directory / f"{new_name()}.live").touch()
    (journal_directory / "notes.txt").touch()
    inside = journal_directory / locks.STATE_DIRECTORY
    inside.mkdir()
    (inside / new_name()).touch()
    assert set(list_journals(journal_directory)) == names
    assert set(watcher.scan()) == names


def test_lost_notification_is_made_good_by_the_safety_scan_even_at_interval_0(
    journal_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SAFETY_SCAN_S", 0.2)
    watcher = JournalWatcher(journal_directory, 0.0, 60.0)

    def rests(found: list[str]) -> bool:
        """Scan; tell whether the next scan is not due at once, as it is if this takes long."""
        assert list(watcher.scan()) == found
        return not watcher.scan_due

    watcher.attach()
    try:
        await_condition("no scan to be due", lambda: rests([]), 60)
        name = new_name()
        (journal_directory / name).touch()
        noticed(watcher, {name})  # taken out of the queue: as good as lost
        await_condition("a safety scan", lambda: watcher.scan_due, 60)
        await_condition("no scan to be due", lambda: rests([name]), 60)
    finally:
        watcher.detach()


def test_overflow_of_the_queue_makes_a_scan_due(
    watcher: JournalWatcher, journal_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "QUEUE_LIMIT", 5)
    watcher.attach()
    try:
        assert list(watcher.scan()) == []
        names = {new_name() for _ in range(50)}
        for name in names:
            (journal_directory / name).touch()

        def overflown() -> bool:
            watcher.take()
            return watcher.scan_due

        await_condition("a scan made due by the overflow", overflown, 60)
        assert set(watcher.scan()) == names
    finally:
        watcher.detach()


def test_folder_without_notifications_is_scanned_all_the_time(
    journal_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: Path) -> inotify.Inotify:
        raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr(inotify, "Inotify", exhausted)
    watcher = JournalWatcher(journal_directory, 0.0, 0.1)
    watcher.attach()
    assert list(watcher.scan()) == []
    name = new_name()
    (journal_directory / name).touch()
    await_condition("the next scan", lambda: watcher.scan_due, 60)
    assert list(watcher.scan()) == [name]


def test_folder_that_is_replaced_is_noticed_and_watched_again(
    watcher: JournalWatcher, journal_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FOLDER_CHECK_S", 0.0)
    watcher.attach()
    try:
        assert watcher.check_folder() is Folder.SAME
        journal_directory.rename(journal_directory.with_name("elsewhere"))
        assert watcher.check_folder() is Folder.LOST
        assert watcher.check_folder() is Folder.AWAY
        journal_directory.mkdir()
        assert watcher.check_folder() is Folder.BACK
        watcher.attach()
        assert watcher.check_folder() is Folder.SAME
        assert watcher.scan_due
        name = new_name()
        (journal_directory / name).touch()
        assert noticed(watcher, {name}) == {name}
    finally:
        watcher.detach()


def test_wake_ends_a_wait_without_a_name(watcher: JournalWatcher) -> None:
    watcher.wake()
    watcher.wait(60)
    assert watcher.take() == []


def test_events_dropped_by_the_kernel_make_a_scan_due(
    journal_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inotify, "_BUFFER_BYTES", 4096)
    watcher = JournalWatcher(journal_directory, 0.0, 60.0)
    watcher.attach()
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    assert list(watcher.scan()) == []
    name, live = journal_directory / new_name(), journal_directory / f"{new_name()}.live"
    for number in range(limit + 10):
        source, target = (name, live) if number % 2 else (live, name)
        if number == 0:
            live.touch()
        source.rename(target)
    while not watcher.scan_due:
        assert watcher.take()
    watcher.close()


def test_a_closed_watcher_is_woken_in_vain(watcher: JournalWatcher) -> None:
    watcher.close()
    watcher.wake()
