"""A ledger that is lost while a shared journal is open, and what had a number in it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from played_server import PlayedServer, shorten_pauses
from test_closing_journals import Left

from firebird_cdc.bridge.confirm import closing
from firebird_cdc.bridge.confirm.loop import Confirmer
from firebird_cdc.clock import now_us
from firebird_cdc.journal.folder.commit_entries import CommitEntry, write_entry
from firebird_cdc.journal.folder.ledger_lock import database_key
from firebird_cdc.journal.folder.ledger_records import read_records
from firebird_cdc.journal.format import TransactionWriter


class Scene:
    """A server process with a shared journal, and who confirms, which is another one."""

    def __init__(self, path: Path) -> None:
        self.server = PlayedServer(path)
        self.server.create_database()
        self.folder = self.server.folder
        self.journal = Left(self.server)
        self.confirmer = Confirmer(self.server, self.folder, fsync=True)
        owner = self.journal.writer.header.owner
        self._mark = os.open(self.folder.owners.mark(owner), os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._mark, fcntl.LOCK_EX)
        key = database_key(str(self.server.database_path))
        self.ledger = self.folder.databases / f"{key}.ledger"

    def open(self) -> Left:
        """Begin another journal, of a process that has ended."""
        return Left(self.server)

    def commit(self, journal: Left | None = None) -> UUID:
        """Commit a transaction in JOURNAL, by default that of the process; its entry names it."""
        journal = journal or self.journal
        ticket = self.folder.last_ticket + 1
        written = TransactionWriter(journal.writer.header, 0, "u")
        written.gap("it")
        written.seal(floor=ticket - 1)
        offset = journal.writer.append(written)
        length = len(written._content)
        entry = CommitEntry(
            ticket, written.uuid, journal.uuid, offset, length, written.seal_end, 0, 1, 0, now_us()
        )
        write_entry(self.folder.commits_fd, entry)
        self.folder.page.fields.ticket = ticket
        return written.uuid

    def work(self) -> None:
        """Have the confirmer come round."""
        for _ in range(5):
            self.confirmer._scan.is_wanted = True
            self.confirmer.turn()

    def begin_anew(self) -> None:
        """Ask for a new epoch."""
        self.ledger.with_suffix(".anew").touch()
        self.work()

    def leave(self) -> None:
        """Append nothing to the journal any more."""
        self.journal.writer.leave()

    def end(self, *others: Left) -> None:
        """End the server process, and let go of OTHERS."""
        self.leave()
        for each in others:
            each.writer.leave()
        os.close(self._mark)
        self._mark = -1

    def close(self) -> None:
        """Give all back."""
        self.confirmer.let_go()
        if self._mark >= 0:
            os.close(self._mark)

    def numbers(self) -> list[tuple[UUID, int, int]]:
        """Return what the ledger has."""
        records = read_records(self.ledger.read_bytes())
        return [(e.uuid, e.stamp.epoch, e.stamp.sequence) for r in records for e in r.given]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(closing, "_LOOK_S", 0.0)
    monkeypatch.setattr(closing, "_AGAIN_S", 0.0)
    shorten_pauses(monkeypatch)
    made = Scene(tmp_path)
    yield made
    made.close()


def test_what_had_a_number_in_a_missing_ledger_is_counted_and_not_published_again(
    scene: Scene,
) -> None:
    scene.commit()
    scene.commit()
    scene.work()
    scene.ledger.unlink()
    third = scene.commit()
    scene.work()
    scene.begin_anew()
    fourth = scene.commit()
    scene.work()
    published = [(third, 1, 1), (fourth, 1, 2)]
    assert (scene.numbers(), scene.folder.undecided) == (published, 0)
    scene.leave()
    scene.work()
    assert scene.folder.undecided == 1
    scene.end()
    scene.work()
    assert (scene.numbers(), scene.folder.undecided) == (published, 1)
    assert not scene.journal.closed.exists()
    scene.journal.live.unlink()  # somebody has looked at it
    scene.work()
    assert (scene.numbers(), scene.folder.undecided) == (published, 0)


def test_what_waits_for_a_lost_ledger_is_published_though_its_process_has_ended(
    scene: Scene,
) -> None:
    scene.commit()
    scene.work()
    scene.ledger.unlink()
    waiting = [scene.commit(), scene.commit()]
    scene.work()
    scene.end()
    scene.work()
    assert not scene.ledger.exists()
    scene.begin_anew()
    assert scene.numbers() == [(waiting[0], 1, 1), (waiting[1], 1, 2)]


def test_numbers_that_a_damaged_ledger_still_has_are_kept(scene: Scene) -> None:
    damaged, whole = scene.journal, scene.open()
    first = scene.commit(whole)
    second = scene.commit(damaged)
    scene.work()
    third = scene.commit(damaged)
    scene.work()
    content = bytearray(scene.ledger.read_bytes())
    content[-9] ^= 1
    copy = scene.ledger.with_suffix(".copy")
    copy.write_bytes(content)
    copy.rename(scene.ledger)
    scene.begin_anew()
    kept = [(first, 0, 1), (second, 0, 2)]
    assert scene.numbers() == kept
    fourth = scene.commit(damaged)
    scene.end(whole)
    scene.work()
    assert scene.numbers() == [*kept, (fourth, 1, 1)]
    assert whole.found() == [(first, 1)]
    assert scene.folder.undecided == 1
    assert third.bytes in damaged.live.read_bytes()
