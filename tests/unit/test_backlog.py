"""The journals that wait: their order, and what is kept of them."""

from __future__ import annotations

import os
import random
import time
import tracemalloc
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from firebird_cdc.journal.format import JournalWriter, Place, Stamp, pack_places, read_envelope
from firebird_cdc.journal.shipper.inbox import backlog
from firebird_cdc.journal.shipper.inbox import queue as queues
from firebird_cdc.journal.shipper.inbox.backlog import Backlog
from firebird_cdc.journal.shipper.inbox.queue import Entry, Queue
from firebird_cdc.native._journal_files import START, read_envelopes, read_start, remove_files


def _journal(folder: Path, sequence: int, *, database: str = "/d.fdb", sql: str = "") -> Path:
    identity = uuid4()
    path = folder / f"{identity}.log"
    with JournalWriter(path, uuid=identity, database=database, transaction=7) as writer:
        writer.ddl(sql or "CREATE TABLE X (Y INT)")
        writer.seal(floor=0x1234_5678)
        writer.commit(1, 2)
        writer.stamp(sequence)
    return path


def _names(queue: Queue) -> list[tuple[int, int]]:
    return [queue.pop()[:2] for _ in range(len(queue))]


def test_queue_pops_in_sequence_order_for_any_order_of_arrival(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queues, "_PACKED", 7)
    monkeypatch.setattr(queues, "_COMPRESSED", 5)
    choose = random.Random(3)
    numbers = [(epoch, number) for epoch in (1, 2) for number in range(1, 201)]
    choose.shuffle(numbers)
    arrivals: list[list[tuple[int, int]]] = []
    while numbers:  # as journals of their own, or some together
        count = choose.choice((1, 1, 1, 8, 23))
        arrivals.append(sorted(numbers[:count]))
        del numbers[:count]
    queue = Queue()
    waiting: list[Entry] = []
    taken: list[Entry] = []
    for arrived in arrivals:
        home = uuid4() if len(arrived) > 1 else None
        entries = [_entry(*number, home) for number in arrived]
        waiting += entries
        if home is None:
            queue.push(entries[0])
        else:
            queue.push_shared(home, pack_places([each.place for each in entries if each.place]))
        if taken and choose.random() < 0.3:
            waiting.append(taken.pop())
            queue.push(waiting[-1])  # it was not delivered
        waiting.sort(key=lambda entry: entry[:2])
        for _ in range(choose.randrange(6)):
            if waiting:
                assert queue.first() == waiting[0]
                taken.append(queue.pop())
                assert taken[-1] == waiting.pop(0)
        assert len(queue) == len(waiting)
    assert [queue.pop() for _ in waiting] == waiting
    assert len(queue) == 0
    assert queue.first_or_none is None


def _entry(epoch: int, sequence: int, home: UUID | None) -> Entry:
    uuid = uuid4()
    if home is None:
        return Entry(epoch, sequence, uuid)
    stamp = Stamp(epoch, sequence, 5, 6, 300, 1, 48_000 + sequence)
    return Entry(epoch, sequence, uuid, home, Place(uuid, 4096 + 320 * sequence, 7, 300, stamp))


def test_a_million_waiting_transactions_of_shared_journals_take_little_memory() -> None:
    count = 50_000
    queue = Queue()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        entries = [_entry(0, number, uuid4()).place for number in range(count)]
        queue.push_shared(uuid4(), pack_places([place for place in entries if place]))
        del entries
        each = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
    assert len(queue) == count
    assert each <= 60, each


def test_a_million_waiting_journals_take_little_memory() -> None:
    count = 50_000
    tracemalloc.start()
    try:
        known, queue = backlog._Uuids(), Queue()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            uuid = uuid4().bytes
            known.add(uuid)
            queue.push_packed(0, count - number, uuid)
        each = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
    assert each <= 150, each


def test_a_set_of_uuids_knows_those_that_begin_alike() -> None:
    known = backlog._Uuids()
    alike = [b"\1\2" + bytes([n]) * 14 for n in range(20)]
    shifted = b"\1\2" + alike[3][9:] + alike[4][2:9]  # the middle of two that stand side by side
    for uuid in alike:
        known.add(uuid)
    assert all(uuid in known for uuid in alike)
    assert shifted not in known
    for uuid in alike[::2]:
        known.discard(uuid)
    assert [uuid in known for uuid in alike] == [False, True] * 10
    known.discard(shifted)
    assert alike[1] in known


def test_journals_enter_the_backlog_once_in_sequence_order(tmp_path: Path) -> None:
    paths = [_journal(tmp_path, number, database=f"/{number % 2}.fdb") for number in (3, 1, 2, 4)]
    waiting = Backlog(tmp_path)
    for _ in range(2):
        list(waiting.offer_all([path.name for path in paths]))
    assert {name: _names(queue) for name, queue in waiting.queues.items()} == {
        "/1.fdb": [(0, 1), (0, 3)],
        "/0.fdb": [(0, 2), (0, 4)],
    }
    entry = Entry(0, 1, UUID(paths[1].stem))
    waiting.forget(entry)
    list(waiting.offer_all([paths[1].name]))
    assert len(waiting) == 1


def test_large_journals_are_read_fully_and_damaged_ones_listed(tmp_path: Path) -> None:
    whole = _journal(tmp_path, 1)
    large = _journal(tmp_path, 2, sql="x" * 2 * START)
    renamed = _journal(tmp_path, 3)
    renamed = renamed.rename(renamed.with_name(f"{uuid4()}.log"))
    old = [_journal(tmp_path, number) for number in range(4, 8)]
    content = whole.read_bytes()
    for path, place in zip(old, (20, 600, 1100, 1600), strict=True):
        damaged = bytearray(path.read_bytes())
        damaged[place] ^= 1
        path.write_bytes(damaged)
    for path in (*old, renamed):
        os.utime(path, (1, 1))
    waiting = Backlog(tmp_path)
    gone = f"{uuid4()}.log"
    names = [path.name for path in (whole, large, renamed, *old)]
    list(waiting.offer_all([*names, gone]))
    assert _names(waiting.queues["/d.fdb"]) == [(0, 1), (0, 2)]
    assert set(waiting.unreadable) == {renamed.name, *(path.name for path in old)}
    assert content == whole.read_bytes()


def test_fast_reader_equals_the_full_reader_or_finds_nothing(tmp_path: Path) -> None:
    path = _journal(tmp_path, 9, database="/srv/ä.fdb")
    folder = f"{tmp_path}{os.sep}"
    assert read_envelopes(folder, [path.name]) != [None]
    whole = path.read_bytes()
    for place in range(len(whole)):
        spoilt = bytearray(whole)
        spoilt[place] ^= 0x40
        path.write_bytes(spoilt)
        (found,) = read_envelopes(folder, [path.name])
        if found is not None:  # nothing that orders the journal lies there
            header, stamp, database = read_envelope(path)
            assert stamp is not None
            assert found == (stamp.epoch, stamp.sequence, header.uuid.bytes, database)
            assert place >= 1536
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        (found,) = read_envelopes(folder, [path.name])
        assert found is None or length > 1536


def test_files_are_read_and_removed(tmp_path: Path) -> None:
    folder = f"{tmp_path}{os.sep}"
    names = [f"{number}.log" for number in range(200)]
    for name in names[1:]:
        (tmp_path / name).write_bytes(name.encode() * 4000)
    assert read_start(f"{folder}7.log") == (b"7.log" * 4000)[:START]
    with pytest.raises(FileNotFoundError):
        read_start(f"{folder}0.log")
    remove_files(folder, names)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "x").mkdir()
    with pytest.raises(IsADirectoryError):
        remove_files(folder, ["x"])
    with pytest.raises(ValueError, match="no name"):
        remove_files(folder, ["x" * 300])
    with pytest.raises(ValueError, match="no name"):
        read_envelopes(folder, ["x\0y"])


def test_damaged_journal_with_a_time_in_the_future_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / f"{uuid4()}.log"
    path.write_bytes(bytes(5000))
    later = time.time() + 3600
    os.utime(path, (later, later))
    backlog = Backlog(tmp_path)
    backlog.offer(path.name)
    assert not backlog.young
    assert path.name in backlog.unreadable
