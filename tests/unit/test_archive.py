"""The archive's keeper: small journals in segments, readable as before; nothing lost on the way."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from losing_disk import LosingDisk, once

from firebird_cdc.errors import JournalCorrupt
from firebird_cdc.journal.folder.segments import is_segment_name, list_segment, open_journal
from firebird_cdc.journal.format import Column, JournalWriter, RowChange, Storage
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.tasks import archive
from firebird_cdc.journal.shipper.tasks.archive import ArchiveKeeper, Retention

DATABASE = "/data/shop.fdb"
HOUR_S = 3600
_EVERYTHING = Retention(0, 0)


def _column(name: str, storage: Storage, key_position: int = 0) -> Column:
    return Column(name, 0, 0, 0, 8, 4, 40, 0, not key_position, False, key_position, storage)


def write(
    folder: Path,
    sequence: int,
    *,
    database: str = DATABASE,
    text: str = "x",
    age_s: float = 0.0,
    slack: int = 0,
) -> Path:
    """Put a journal with one row into FOLDER, committed AGE_S ago."""
    folder.mkdir(exist_ok=True)
    uuid = uuid4()
    path = folder / f"{uuid}.log"
    commit_us = int((time.time() - age_s) * 1e6)
    with JournalWriter(path, uuid=uuid, transaction=7, database=database, user="A") as writer:
        table = writer.table("T", (_column("ID", Storage.BIGINT, 1), _column("V", Storage.TEXT)))
        writer.insert(table, (sequence, text))
        writer.seal()
        writer.commit(sequence, commit_us)
        writer.stamp(sequence)
    with path.open("ab") as file:
        file.write(b"\xaa" * slack)
    os.utime(path, ns=(commit_us * 1000, commit_us * 1000))
    return path


def keeper(
    folder: Path, segment_bytes: int = 1, retention: Retention = _EVERYTHING
) -> ArchiveKeeper:
    """A keeper of FOLDER, for which by default every journal fills a segment."""
    return ArchiveKeeper(folder, segment_bytes, retention, Statistics())


def segments(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if is_segment_name(path.name))


def rows(path: Path) -> list[object]:
    with open_journal(path) as reader:
        return [change.after for change in reader.changes() if isinstance(change, RowChange)]


def test_small_journals_are_packed_in_order_and_read_as_before(tmp_path: Path) -> None:
    journals = {
        number: write(tmp_path, number, slack=5000, age_s=2 * HOUR_S) for number in (3, 1, 2)
    }
    keeper(tmp_path, 10**6).look()
    (segment,) = segments(tmp_path)
    names = [name for name, _ in list_segment(segment)]
    assert names == [journals[number].name for number in (1, 2, 3)]
    assert [rows(segment / name) for name in names] == [[(n, "x")] for n in (1, 2, 3)]
    assert not any(path.exists() for path in journals.values())
    assert _place_in_segment(journals[2]) == f"{segment.name}/{journals[2].name}"
    assert segment.stat().st_mode & 0o777 == 0o600


def test_any_unzip_gives_a_journal_back_byte_by_byte(tmp_path: Path) -> None:
    journal = write(tmp_path, 1)
    content = journal.read_bytes()
    keeper(tmp_path).look()
    with zipfile.ZipFile(segments(tmp_path)[0]) as segment:
        assert segment.read(journal.name) == content


def test_databases_epochs_and_large_journals_are_not_mixed(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path, number)
        write(tmp_path, number, database="/data/other.fdb")
    large = write(tmp_path, 3, text="y" * 60_000)
    for number in (4, 5):
        large_text = "z" * (archive.SMALL_BYTES // 30)
        _write_large(tmp_path, number, large_text)
    keeper(tmp_path, 1500).look()
    found = [list_segment(segment) for segment in segments(tmp_path)]
    assert sum(map(len, found)) == 5
    assert len(list(tmp_path.glob("*.log"))) == 2
    assert not large.exists()
    databases = [
        {_database(segment / name) for name, _ in list_segment(segment)}
        for segment in segments(tmp_path)
    ]
    assert all(len(each) == 1 for each in databases)


def _database(path: Path) -> str:
    with open_journal(path) as reader:
        return reader.database


def _write_large(folder: Path, sequence: int, text: str) -> None:
    uuid = uuid4()
    path = folder / f"{uuid}.log"
    with JournalWriter(path, uuid=uuid, transaction=7, database=DATABASE, user="A") as writer:
        table = writer.table("T", (_column("ID", Storage.BIGINT, 1), _column("V", Storage.TEXT)))
        for number in range(40):
            writer.insert(table, (number, text[:60_000]))
        writer.seal()
        writer.commit(sequence, 1)
        writer.stamp(sequence)


def test_too_few_wait_for_more_but_not_for_ever(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2)
    keeper(tmp_path, 10**6).look()
    assert not segments(tmp_path)
    write(tmp_path, 0, age_s=2 * HOUR_S)
    keeper(tmp_path, 10**6).look()
    assert len(list_segment(segments(tmp_path)[0])) == 3


def test_journal_also_in_a_segment_is_removed_only_if_equal(
    tmp_path: Path,
) -> None:
    journal = write(tmp_path, 1, slack=100, age_s=2 * HOUR_S)
    other = write(tmp_path, 2, age_s=2 * HOUR_S)
    copy = shutil.copy2(journal, tmp_path / "copy")
    content = other.read_bytes()
    keeper(tmp_path, 10**6).look()
    (segment,) = segments(tmp_path)
    Path(copy).rename(journal)  # as after a crash before the removal
    other.write_bytes(content)
    with zipfile.ZipFile(segment) as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    members[other.name] = members[other.name][:-1] + b"?"
    with zipfile.ZipFile(segment, "w") as packed:
        for name, member in members.items():
            packed.writestr(name, member)
    keeper(tmp_path, 10**6).look()
    assert not journal.exists()
    assert other.exists()
    assert segments(tmp_path) == [segment]


def test_damaged_journal_stays_as_it_is(tmp_path: Path) -> None:
    journal = write(tmp_path, 1)
    content = bytearray(journal.read_bytes())
    content[1030] ^= 1
    journal.write_bytes(content)
    keeper(tmp_path).look()
    assert journal.read_bytes() == content
    assert not segments(tmp_path)


def test_torn_journal_stays_as_it_is_and_blocks_nothing_else(tmp_path: Path) -> None:
    torn = write(tmp_path, 1)
    torn.write_bytes(torn.read_bytes()[:-1])
    other = write(tmp_path, 2)
    keeper(tmp_path).look()
    assert torn.exists()
    assert _place_in_segment(other)
    assert not other.exists()


def test_journals_that_stay_leave_their_turn_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, and wherever the folder lists them."""
    monkeypatch.setattr(archive, "_LOOKED_AT", 2)
    for number in range(8):
        write(tmp_path, number)
    with os.scandir(tmp_path) as entries:
        listed = [Path(entry.path) for entry in entries]
    for journal in listed[:6]:
        journal.write_bytes(b"not to be packed")
    looking = keeper(tmp_path)
    for _ in range(4):
        looking.look()
    assert len(segments(tmp_path)) == 2
    assert sorted(tmp_path.glob("*.log")) == sorted(listed[:6])


def test_damaged_segment_is_named(tmp_path: Path) -> None:
    write(tmp_path, 1)
    keeper(tmp_path).look()
    (segment,) = segments(tmp_path)
    ((name, _),) = list_segment(segment)
    content = bytearray(segment.read_bytes())
    content[200] ^= 0xFF
    segment.write_bytes(content)
    with pytest.raises(JournalCorrupt, match=r"its segment is damaged"):
        open_journal(segment / name)
    segment.write_bytes(content[:100])
    with pytest.raises(JournalCorrupt, match=segment.name):
        list_segment(segment)


@pytest.mark.parametrize("step", ["fsync", "rename", "sync_directory", "unlink"])
def test_killed_at_any_step_nothing_is_lost_and_the_next_keeper_ends_it(
    tmp_path: Path, step: str
) -> None:
    folder = tmp_path / "archive"
    names = {write(folder, number).name for number in range(1, 6)}
    program = (
        "import os, sys\nfrom pathlib import Path\n"
        "from firebird_cdc.journal.shipper.monitoring.statistics import Statistics\n"
        "from firebird_cdc.journal.shipper.tasks import archive\n"
        "def die(*_, **__): os._exit(9)\n"
        f"owner = {{'fsync': os, 'sync_directory': archive}}.get({step!r}, Path)\n"
        f"setattr(owner, {step!r}, die)\n"
        "archive.ArchiveKeeper(Path(sys.argv[1]), 5 * 1700, archive.Retention(0, 0),"
        " Statistics()).look()\n"
    )
    died = subprocess.run([sys.executable, "-c", program, str(folder)], check=False)
    assert died.returncode == 9
    keeper(folder, 5 * 1700).look()
    (segment,) = segments(folder)
    assert {name for name, _ in list_segment(segment)} == names
    assert not list(folder.glob("*.log"))


def test_a_failed_sync_of_its_name_and_a_power_cut_take_no_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "archive"
    names = {write(folder, number).name for number in (1, 2)}
    with monkeypatch.context() as patch:
        disk = LosingDisk(tmp_path, patch)
        disk.folder_fails = once("archive")
        with pytest.raises(OSError, match="Input/output error"):
            keeper(folder, 2 * 1700).look()
        assert disk.failed == [folder]
        keeper(folder, 2 * 1700).look()
        assert not list(folder.glob("*.log"))
        disk.cut()
    (segment,) = segments(folder)
    assert {name for name, _ in list_segment(segment)} == names


def test_a_segment_that_is_named_anew_keeps_its_age(tmp_path: Path) -> None:
    journal = write(tmp_path, 1, age_s=2 * HOUR_S)
    content, made = journal.read_bytes(), journal.stat().st_mtime_ns
    keeper(tmp_path).look()
    journal.write_bytes(content)  # as after a crash before the removal
    keeper(tmp_path).look()
    (segment,) = segments(tmp_path)
    assert not journal.exists()
    assert segment.stat().st_mtime_ns // 1000 == made // 1000
    assert set(tmp_path.iterdir()) == {segment}


def test_files_older_than_the_retention_go_and_no_others(tmp_path: Path) -> None:
    old = write(tmp_path, 1, age_s=3 * HOUR_S)
    packed = write(tmp_path, 2, age_s=2.5 * HOUR_S)
    keeper(tmp_path).look()
    young = write(tmp_path, 3, age_s=HOUR_S)
    stranger = tmp_path / "notes.txt"
    stranger.write_text("keep")
    os.utime(stranger, (0, 0))
    keeper(tmp_path, 0, Retention(2 * HOUR_S * 1000, 0)).look()
    assert not old.exists()
    assert _place_in_segment(packed) is None
    assert set(tmp_path.iterdir()) == {young, stranger}


def test_clock_that_is_set_ahead_removes_nothing_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, young = write(tmp_path, 1, age_s=3 * HOUR_S), write(tmp_path, 2, age_s=HOUR_S)
    kept = keeper(tmp_path, 0, Retention(2 * HOUR_S * 1000, 0))
    monkeypatch.setattr(archive, "time", lambda: time.time() + 10 * HOUR_S)
    for _ in range(2):
        kept.look()
    assert old.exists() and young.exists()
    monkeypatch.undo()
    kept.look()
    assert not old.exists() and young.exists()
    monkeypatch.setattr(archive, "_SETTLED_S", 0.0)
    monkeypatch.setattr(archive, "time", lambda: time.time() + 10 * HOUR_S)
    kept.look()
    assert not young.exists()


def test_oldest_files_go_until_the_archive_is_small_enough(tmp_path: Path) -> None:
    journals = [write(tmp_path, number, age_s=HOUR_S * (10 - number)) for number in range(1, 6)]
    one = journals[0].stat().st_blocks * 512
    keeper(tmp_path, 0, Retention(0, 2 * one)).look()
    assert sorted(tmp_path.glob("*.log")) == sorted(journals[-2:])


def test_two_keepers_of_one_archive_take_turns(tmp_path: Path) -> None:
    write(tmp_path, 1)
    lock = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keeper(tmp_path).look()
        assert not segments(tmp_path)
    finally:
        os.close(lock)
    keeper(tmp_path).look()
    assert segments(tmp_path)


def test_unreadable_archive_is_reported_and_maintained_again_later(tmp_path: Path) -> None:
    statistics = Statistics()
    place = tmp_path / "archive"
    place.write_text("no folder")
    kept = ArchiveKeeper(place, 1, _EVERYTHING, statistics)
    now = time.monotonic()
    _finish(kept, now)
    assert "can't be maintained" in statistics.troubles["archive"].text
    place.unlink()
    journal = write(place, 1)
    _finish(kept, now + 3600)
    assert "archive" not in statistics.troubles
    assert _place_in_segment(journal)


def test_full_disk_that_takes_no_segment_does_not_keep_what_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing would give room again."""

    def refuse(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(archive, "_new_file", refuse)
    statistics = Statistics()
    old, new = write(tmp_path, 1, age_s=2 * HOUR_S), write(tmp_path, 2)
    kept = ArchiveKeeper(tmp_path, 1, Retention(HOUR_S * 1000, 0), statistics)
    _finish(kept, time.monotonic())
    assert not old.exists()
    assert new.exists()
    assert "No space left on device" in statistics.troubles["archive"].text


@pytest.mark.parametrize("place", ["end", "member"])
def test_damaged_segment_is_reported_and_blocks_nothing_else(tmp_path: Path, place: str) -> None:
    statistics = Statistics()
    journal = write(tmp_path, 1, age_s=2 * HOUR_S)
    content = journal.read_bytes()
    keeper(tmp_path).look()
    (segment,) = segments(tmp_path)
    damaged = bytearray(segment.read_bytes())
    damaged[200] ^= 0xFF
    segment.write_bytes(damaged[:100] if place == "end" else damaged)
    journal.write_bytes(content)  # as after a crash before the removal
    other = write(tmp_path, 1, database="/other.fdb")
    kept = ArchiveKeeper(tmp_path, 1, _EVERYTHING, statistics)
    now = time.monotonic()
    _finish(kept, now)
    assert f"{segment} is damaged" in statistics.troubles["archive"].text
    assert journal.read_bytes() == content and segment.exists()
    assert _place_in_segment(other) if place == "member" else not other.exists()
    segment.unlink()
    _finish(kept, now + 3600)
    assert "archive" not in statistics.troubles
    assert _place_in_segment(journal)


def test_segment_of_other_journals_with_the_same_numbers_is_reported(tmp_path: Path) -> None:
    statistics = Statistics()
    write(tmp_path, 1)
    keeper(tmp_path).look()
    (segment,) = segments(tmp_path)
    journal = write(tmp_path, 1)
    kept = ArchiveKeeper(tmp_path, 1, _EVERYTHING, statistics)
    now = time.monotonic()
    _finish(kept, now)
    assert f"{segment} holds other journals" in statistics.troubles["archive"].text
    assert journal.exists()
    segment.unlink()
    _finish(kept, now + 3600)
    assert "archive" not in statistics.troubles
    assert _place_in_segment(journal)


def _place_in_segment(path: Path) -> str | None:
    for segment in segments(path.parent):
        with segment.open("rb") as stream:
            if any(name == path.name for name, _ in list_segment(str(segment), stream)):
                return f"{segment.name}/{path.name}"
    return None


def _finish(kept: ArchiveKeeper, now: float) -> None:
    """Let KEPT look once, and tell."""
    kept.turn(now)
    assert kept._worker is not None
    kept._worker.join()
    kept.turn(now + 1)


def test_uuid_in_a_segment_is_that_of_its_name(tmp_path: Path) -> None:
    journal = write(tmp_path, 1)
    keeper(tmp_path).look()
    with open_journal(segments(tmp_path)[0] / journal.name) as reader:
        assert reader.header.uuid == UUID(journal.stem)
