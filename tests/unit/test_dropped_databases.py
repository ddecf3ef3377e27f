"""Files kept of databases that were dropped, and the numbers of one that comes to their path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import played_server
import pytest
from played_server import PlayedServer

from firebird_cdc.bridge.confirm import descriptors, history
from firebird_cdc.bridge.confirm.loop import Confirmer
from firebird_cdc.journal.folder import ledger as sequence
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.ledger_lock import LedgerLock, read_database

_DAY_S = 86_400


class Days:
    """A bridge that looks for dropped databases once a day, and so do others."""

    def __init__(
        self,
        server: PlayedServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.server = server
        self.now = 1_700_000_000.0
        monkeypatch.setattr(history, "_LOOK_FOR_GONE_S", 0.0)
        monkeypatch.setattr(history.time, "time", lambda: self.now)
        monkeypatch.setattr(history, "IDLE_S", 0.0)
        self.confirmer = self.new_confirmer()

    def new_confirmer(self, folder: JournalFolder | None = None) -> Confirmer:
        return Confirmer(self.server, folder or self.server.folder, fsync=True)

    def pass_by(self, days: float, confirmer: Confirmer | None = None) -> None:
        """Let time go by, and have it looked before and after."""
        confirmer = confirmer or self.confirmer
        for _ in range(2):
            confirmer.turn()
            self.now, days = self.now + days * _DAY_S, 0

    def publish(self, confirmer: Confirmer | None = None) -> tuple[int, int]:
        """Commit something; return the epoch and number that it gets."""
        uuid = self.server.commit(0)
        played_server.work_until_committed(confirmer or self.confirmer, self.server.folder, uuid)
        return played_server.stamp_of(self.server.folder, uuid).number

    def ship(self) -> None:
        """Take all journals away, as a shipper does."""
        for journal in self.server.folder.path.glob("*.log"):
            journal.unlink()

    def files(self) -> list[str]:
        """Return the endings of what is kept of databases."""
        kept = (path.suffix for path in self.server.folder.databases.iterdir())
        return sorted(ending for ending in kept if ending)


@pytest.fixture
def days(server: PlayedServer, monkeypatch: pytest.MonkeyPatch) -> Days:
    server.create_database()
    return Days(server, monkeypatch)


def test_files_of_a_dropped_database_are_removed_after_a_week(days: Days) -> None:
    days.publish()
    days.ship()
    days.server.database_path.unlink()
    days.pass_by(6)
    assert days.files() == [".ledger", ".lock"]
    days.pass_by(2)
    assert days.files() == []


def test_short_lived_processes_look_for_dropped_databases_at_intervals(
    days: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of Classic, one for each connection."""

    def live_for_a_moment() -> None:
        confirmer = days.new_confirmer()
        confirmer.turn()
        confirmer.let_go()

    days.publish()
    days.ship()
    days.server.database_path.unlink()
    days.confirmer.let_go()
    monkeypatch.setattr(history, "_LOOK_FOR_GONE_S", 600.0)
    monkeypatch.setattr(history, "IDLE_S", descriptors.IDLE_S)
    [lock] = days.server.folder.databases.glob("*.lock")
    for passed, noted in ((599, 0), (1, days.now + 600)):
        days.now += passed
        live_for_a_moment()
        assert read_database(lock).gone_since == noted
    days.now += 8 * _DAY_S
    live_for_a_moment()
    assert days.files() == []


def test_no_number_comes_again_at_the_path_of_a_dropped_database(days: Days) -> None:
    given = []
    for _ in range(3):
        given += [days.publish(), days.publish()]
        days.ship()
        days.server.database_path.unlink()
        days.pass_by(8)
        assert days.files() == []
        days.server.create_database()
    assert given == [(epoch, number) for epoch in range(3) for number in (1, 2)]


def test_another_database_begins_above_the_epochs_of_those_that_are_gone(days: Days) -> None:
    days.publish()
    days.ship()
    days.server.database_path.unlink()
    days.pass_by(8)
    days.server.database_path = days.server.database_path.with_name("other.fdb")
    assert days.publish() == (1, 1)


def test_a_database_that_comes_back_in_time_goes_on(days: Days) -> None:
    assert days.publish() == (0, 1)
    days.ship()
    elsewhere = days.server.database_path.rename(days.server.folder.path.with_name("elsewhere"))
    days.pass_by(6)
    elsewhere.rename(days.server.database_path)
    days.pass_by(6)  # it is noticed, and a week begins anew the next time
    days.server.database_path.rename(elsewhere)
    days.pass_by(6)
    elsewhere.rename(days.server.database_path)
    assert days.publish() == (0, 2)


@pytest.mark.parametrize("place", ["waits", "undecided", "quarantined"])
def test_nothing_goes_while_a_journal_of_the_database_is_there(days: Days, place: str) -> None:
    days.publish()
    folder = days.server.folder
    [journal] = folder.path.glob("*.log")
    if place == "undecided":
        days.confirmer._scan.is_wanted = False
        journal.rename(journal.with_suffix(".log.live"))
    elif place == "quarantined":
        journal.rename(folder.quarantine / journal.name)
    days.server.database_path.unlink()
    days.pass_by(8)
    assert days.files() == [".ledger", ".lock"]
    for path in (*folder.path.glob("*.log*"), *folder.quarantine.glob("*.log")):
        path.unlink()
    days.pass_by(0)
    assert days.files() == []


def test_ledger_under_repair_of_a_dropped_database_is_kept(days: Days) -> None:
    days.publish()
    days.ship()
    days.server.database_path.unlink()
    [ledger] = days.server.folder.databases.glob("*.ledger")
    ledger.with_suffix(".damaged").touch()
    days.pass_by(8)
    assert days.files() == [".damaged", ".ledger", ".lock"]


def test_lossy_ledger_does_not_prevent_removing_other_dropped_databases(days: Days) -> None:
    for name in ("a.fdb", "b.fdb", "c.fdb"):
        days.server.database_path = days.server.database_path.with_name(name)
        days.server.create_database()
        days.publish()
        days.server.database_path.unlink()
    days.ship()
    first = next(iter(days.server.folder.databases.glob("*.lock")))  # the one that is tried first
    first.with_suffix(".ledger").write_bytes(b"")
    days.pass_by(8)
    assert days.files() == [".ledger", ".lock"]
    assert first.exists()


def test_the_shipper_removes_nothing_as_it_may_see_other_files(days: Days) -> None:
    days.publish()
    days.ship()
    days.server.database_path.unlink()
    shipper = days.new_confirmer(JournalFolder(days.server.folder.path, writes=False))
    days.pass_by(8, shipper)
    assert days.files() == [".ledger", ".lock"]


def test_process_with_the_removed_ledger_open_begins_a_new_one(days: Days) -> None:
    other = days.new_confirmer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "IDLE_S", 1000.0)
        assert days.publish(other) == (0, 1)
        days.ship()
        days.server.database_path.unlink()
        other.turn()  # it sees that the file is gone
        days.pass_by(8)
        assert days.files() == []
        days.server.create_database()
        assert days.publish(other) == (1, 1)
    assert days.publish() == (1, 2)


@pytest.mark.parametrize("step", ["retire_epoch", "note", "fdatasync", "unlink 0", "unlink 5"])
def test_crash_while_files_are_removed_causes_no_reused_number(
    days: Days, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert days.publish() == (0, 1)
    days.ship()
    days.server.database_path.unlink()
    days.pass_by(6)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        _die_at(step, patch)
        days.now += 2 * _DAY_S
        days.confirmer.turn()
    days.confirmer.let_go()  # as the end of its process does
    days.server.create_database()
    epoch, number = days.publish(days.new_confirmer())
    assert (epoch, number) in [(0, 2), (1, 1)]  # of the ledger that was left, or of another file


def _die_at(step: str, patch: pytest.MonkeyPatch) -> None:
    name, _, count = step.partition(" ")
    left = int(count or 0)

    def passes(original: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            return original(*arguments, **named)

        return call

    owners: tuple[Any, ...] = (JournalFolder, LedgerLock, sequence.os, Path)
    owner = Path if name == "unlink" else next(each for each in owners if hasattr(each, name))
    patch.setattr(owner, name, passes(getattr(owner, name)))


def test_damaged_epoch_record_names_its_remedy(days: Days) -> None:
    record = days.server.folder.databases / "retired"
    record.write_bytes(b"\n")
    with pytest.raises(OSError, match="write the highest epoch into it") as caught:
        _ = days.server.folder.first_epoch
    assert caught.value.filename == str(record)


def test_as_many_ledgers_stay_open_as_a_share_of_the_limit(
    days: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "IDLE_S", 1000.0)
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (100, 100))
    for number in range(20):
        days.server.database_path = days.server.folder.path.with_name(f"{number}.fdb")
        days.publish()
    opened = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    of_ledgers = [path for path in opened if str(days.server.folder.databases) in path]
    assert len(of_ledgers) == 2 * descriptors.most_open()
