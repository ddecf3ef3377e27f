"""Files of a process that has ended, and what becomes of them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from losing_disk import LosingDisk, once
from played_server import look

from firebird_cdc.bridge.confirm.loop import Confirmer
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.format import STAMP_OFFSET, Gap, JournalWriter, own_reader
from firebird_cdc.journal.shipper.quarantine import journals_in

_POOL_BYTES = 16384


class Leavings:
    """The pool of a process that may have ended, and whoever looks after it."""

    def __init__(self, path: Path) -> None:
        self.folder = JournalFolder(path, writes=False)
        self.owner = uuid4()
        self.pool = self.folder.pools / str(self.owner)
        self.pool.mkdir()
        mark = self.folder.owners.mark(self.owner)
        self._mark = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._mark, fcntl.LOCK_EX)
        self._confirmer = Confirmer(None, self.folder, True, pause=lambda _: False)

    def end_process(self) -> None:
        if self._mark >= 0:
            os.close(self._mark)
        self._mark = -1

    def write(self, path: Path, uuid: UUID) -> bytes:
        """Write a sealed journal of the process; return what is in it."""
        with JournalWriter(
            path, uuid=uuid, transaction=7, database="/no/such.fdb", owner=self.owner
        ) as writer:
            writer.gap("it")
            writer.seal()
            writer.commit(1, 1)
        return path.read_bytes()

    def look(self) -> None:
        """Look until all is decided that can be."""
        look(self._confirmer, times=5)

    def aside(self, uuid: UUID) -> str:
        """Return the reason of the one journal in the quarantine."""
        assert journals_in(self.folder.quarantine) == [uuid]
        return (self.folder.quarantine / f"{uuid}.reason").read_text("utf-8")


@pytest.fixture
def leavings(tmp_path: Path) -> Iterator[Leavings]:
    made = Leavings(tmp_path / "journals")
    yield made
    made.end_process()


def test_a_damaged_journal_in_the_pool_of_a_dead_process_is_kept(leavings: Leavings) -> None:
    uuid = uuid4()
    content = bytearray(leavings.write(leavings.pool / str(uuid), uuid))
    content[20] ^= 1
    (leavings.pool / str(uuid)).write_bytes(content)
    leavings.end_process()
    leavings.look()
    assert "the header's checksum is wrong" in leavings.aside(uuid)
    assert (leavings.folder.quarantine / f"{uuid}.log").read_bytes() == content
    assert not leavings.folder.owners.ended()
    assert not leavings.pool.exists()


def test_a_file_that_was_used_again_uncleared_does_not_come_back(leavings: Leavings) -> None:
    old, new = uuid4(), uuid4()
    leavings.write(leavings.pool / str(new), old)
    leavings.end_process()
    leavings.look()
    assert f"the uuid of another journal, {old}" in leavings.aside(new)
    assert not list(leavings.folder.path.glob("*.log*"))


@pytest.mark.parametrize("beginning", [b"", bytes(_POOL_BYTES), b"FBCDCJ\r\n", b"FBCDCJ\r\n" * 63])
def test_unused_and_unsealed_pool_files_are_removed(leavings: Leavings, beginning: bytes) -> None:
    (leavings.pool / str(uuid4())).write_bytes(beginning)
    leavings.end_process()
    leavings.look()
    assert not leavings.pool.exists()
    assert not list(leavings.folder.quarantine.iterdir())


def test_sealed_journal_in_the_pool_gets_its_live_name_back(leavings: Leavings) -> None:
    uuid = uuid4()
    leavings.write(leavings.pool / str(uuid), uuid)
    leavings.end_process()
    leavings.look()
    with own_reader(leavings.folder.live(uuid), uuid) as reader:
        assert list(reader.changes()) == [Gap(1, "it")]


def test_live_journal_under_another_name_is_quarantined_after_its_process_ends(
    leavings: Leavings,
) -> None:
    uuid, name = uuid4(), uuid4()
    leavings.write(leavings.folder.live(name), uuid)
    leavings.look()
    assert leavings.folder.live(name).exists()
    leavings.end_process()
    leavings.look()
    assert f"the uuid of another journal, {uuid}" in leavings.aside(name)


def test_reason_is_synced_before_a_journal_is_quarantined(
    leavings: Leavings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firebird_cdc.bridge.confirm.loop._PAUSE_S", 0.01)
    uuid = uuid4()
    path = leavings.folder.live(uuid)
    content = bytearray(leavings.write(path, uuid))
    content[STAMP_OFFSET] = 1
    path.write_bytes(content)
    with monkeypatch.context() as patch:
        disk = LosingDisk(leavings.folder.path, patch)
        disk.fails = once(".reason")
        leavings.end_process()
        leavings.look()
        assert len(disk.failed) == 1
        disk.cut()
    assert "stamp" in leavings.aside(uuid)
    assert (leavings.folder.quarantine / f"{uuid}.log").read_bytes() == content


def test_a_journal_that_is_whole_is_not_taken_for_another(leavings: Leavings) -> None:
    uuid = uuid4()
    leavings.write(leavings.folder.live(uuid), uuid)
    leavings.end_process()
    leavings.look()
    with own_reader(leavings.folder.live(uuid), uuid) as reader:
        assert list(reader.changes()) == [Gap(1, "it")]
    assert not list(leavings.folder.quarantine.iterdir())
