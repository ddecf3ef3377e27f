"""Shared journals that are removed once they are delivered, and that a power cut brings back."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest
from test_ledgers import DATABASE, Scene

from firebird_cdc.journal.folder.subjects import DISPOSAL
from firebird_cdc.journal.format import SharedJournalWriter
from firebird_cdc.journal.shipper.delivery import disposal as module
from firebird_cdc.journal.shipper.delivery.disposal import Disposal
from firebird_cdc.journal.shipper.delivery.sending import SendContext
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.shared_offsets import SharedOffsets


class Delivered(Scene):
    """Journals that are delivered; ``unsynced``: those whose removal a power cut takes back."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(path)
        anything: Any = Mock()
        self.plan = SendContext(path, anything, "UTF8", "fail", self.statistics)
        self.disposal = Disposal(self.plan, self.backlog, None, anything, anything, in_order=False)
        self.offsets = SharedOffsets()
        self.entries: list[Entry] = []
        self.unsynced: set[str] = set()
        self.syncs, self.error = 0, 0
        remove = module.dispose_shipped

        def dispose(journals: list[str], archive: Path | None, *, in_order: bool = True) -> Any:
            self.unsynced |= {Path(each).name for each in journals}
            return remove(journals, archive, in_order=in_order)

        monkeypatch.setattr(module, "dispose_shipped", dispose)
        monkeypatch.setattr(module, "sync_directory", self._sync)
        monkeypatch.setattr(module, "_RETRY_S", 0.0)

    def _sync(self, directory: Path) -> None:
        assert directory == self.path
        if self.error:
            raise OSError(self.error, "Input/output error")
        self.unsynced.clear()
        self.syncs += 1

    def write(self, count: int, *, closes: bool = True) -> list[SharedJournalWriter]:
        """Commit two transactions in each of COUNT journals."""
        journals = [self.open() for _ in range(count)]
        for each in journals:
            self.commit(each, each)
            if closes:
                self.backlog.offer(self.close(each))
        self.look()
        return journals

    def deliver(self) -> bool:
        """Deliver all that waits, and remove what can go; return whether that was done."""
        queue = self.backlog.queues[DATABASE]
        batch = [queue.pop() for _ in range(len(queue))]
        if batch:
            last = batch[-1][:2]
            self.offsets.advance(self.offsets.after(batch, last, self.backlog.holds), last)
        self.entries += batch
        self.disposal.add(*batch)
        return self.disposal.run()

    def unknown(self) -> set[UUID | None]:
        """Return the journals that a power cut brings back now, and that aren't recognised."""
        back = [each for each in self.entries if each.file in self.unsynced]
        return {each.home for each in back if not self.offsets.covers(each)}


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Delivered]:
    folder = tmp_path / "journals"
    folder.mkdir()
    made = Delivered(folder, monkeypatch)
    yield made
    made.ledgers.close()
    made.ledger.close()
    made.folder.close()


@pytest.mark.parametrize("at_once", [1, 20, 150])
def test_all_journals_that_a_power_cut_brings_back_are_recognised(
    scene: Delivered, at_once: int
) -> None:
    for _ in range(0, 300, at_once):
        scene.write(at_once)
        assert scene.deliver()
        assert not scene.unknown()
        assert len(scene.unsynced) <= 32
    assert not list(scene.path.glob("*.log"))
    assert 300 // 32 <= scene.syncs <= 300 // 32 + 1


def test_journals_that_were_delivered_long_before_they_are_closed_are_recognised(
    scene: Delivered,
) -> None:
    early = scene.write(20, closes=False)
    assert not scene.deliver() or not scene.unsynced
    for _ in range(5):
        scene.write(25)
        assert scene.deliver()
    for each in early:
        scene.backlog.offer(scene.close(each))
    scene.disposal.run()
    assert not list(scene.path.glob("*.log"))
    scene.write(1)
    scene.deliver()
    assert not scene.unknown()


def test_no_further_journal_goes_while_the_folder_cannot_be_synced(scene: Delivered) -> None:
    scene.write(30)
    assert scene.deliver()
    scene.error = errno.EIO
    scene.write(10)
    for _ in range(3):
        assert not scene.deliver()
        assert len(list(scene.path.glob("*.log"))) == 8
    assert "Input/output error" in scene.statistics.troubles[DISPOSAL].text
    scene.error = 0
    assert scene.deliver()
    assert not list(scene.path.glob("*.log"))
    assert not scene.statistics.troubles


def test_nothing_is_synced_where_a_power_cut_may_take_what_it_likes(scene: Delivered) -> None:
    scene.plan.syncs = False
    scene.write(100)
    assert scene.deliver()
    assert not list(scene.path.glob("*.log"))
    assert scene.syncs == 0
