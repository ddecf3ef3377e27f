"""Readers that read ahead: rows come in one order, each once, however late anybody answers."""

from __future__ import annotations

import random
from collections import Counter, deque
from itertools import takewhile
from typing import Any

import pytest

from firebird_cdc.journal.shipper.snapshots.ahead import ReadAhead
from firebird_cdc.journal.shipper.snapshots.state import Kind, Snapshot, Status, TableProgress
from firebird_cdc.journal.snapshot.worker import BATCH_BYTES

_ROWS = 10
_SELECT = "SELECT * FROM S"


class _Readers:
    """Model of reader processes over TABLES, each the numbers of its rows.

    ``most``: rows after which a batch ends, as if they were long. ``gone``: tables that are not
    there. ``questions``: of each reader, without an answer yet.
    """

    def __init__(self, tables: dict[str, list[int]], count: int, most: int = 1000) -> None:
        self.tables = tables
        self.most = most
        self.gone: set[str] = set()
        self.questions: list[deque[dict[str, Any]]] = [deque() for _ in range(count)]
        self.selected: list[tuple[str, int]] = [("", 0)] * count
        self.asked: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self.questions)

    def is_awaited(self, number: int) -> bool:
        return bool(self.questions[number])

    def ask(self, number: int, question: dict[str, Any]) -> None:
        self.questions[number].append(question)
        self.asked.append((number, question["do"]))

    def answer(self, number: int) -> dict[str, Any]:
        """Answer the next question of the reader NUMBER."""
        question = self.questions[number].popleft()
        if question["do"] == "look":
            empty = takewhile(lambda name: not self.tables[name], question["tables"])
            return {"empty": [*empty]}
        name, most = question["table"], question["rows"]
        if name in self.gone:
            return {"table": name, "gone": True}
        after = 0 if question["after"] is None else int.from_bytes(question["after"], "big")
        left = [key for key in self.tables[name] if key > after]
        if question["do"] == "measure":
            part = left[:most]
            return {"measured": len(part), "last": _key(part[-1]) if part else None}
        if question["condition"] is not None:
            taken = question["taken"]
            if taken:
                assert self.selected[number] == (name, taken)
            left = left[taken:]
        part = left[: min(most, self.most)]
        last = _key(part[-1]) if part else question["after"]
        if question["condition"] is not None:
            self.selected[number] = name, question["taken"] + len(part)
            last = None
        return {
            "table": name,
            "rows": len(part),
            "size": len(part) * BATCH_BYTES // self.most,
            "keys": part,
            "last": last,
            "is_end": len(part) == len(left),
            "pos": question["pos"],
            "is_first": question["is_first"],
            "is_last_table": question["is_last_table"],
        }


def _key(number: int) -> bytes:
    return number.to_bytes(8, "big")


class _Window:
    """A window over READERS, whose rows are sent at some time."""

    def __init__(self, readers: _Readers, chance: random.Random, select: str = "") -> None:
        tables = [
            TableProgress(name, _SELECT if name == select else None) for name in readers.tables
        ]
        self.snapshot = Snapshot("id", Kind.BLOCKING, "command", tables=tables)
        self.ahead = ReadAhead(readers, self.snapshot, {})  # type: ignore[arg-type]
        self.ahead.look_for_last()
        self.sent: list[tuple[str, int]] = []
        self.firsts: list[str] = []
        self.lasts: set[str] = set()
        self._readers = readers
        self._chance = chance

    @property
    def tables(self) -> dict[str, TableProgress]:
        return {each.name: each for each in self.snapshot.tables or ()}

    def run(self, after_batch: Any = lambda _: None) -> None:
        """Read to the end; AFTER_BATCH is called behind each batch that is sent."""
        for _ in range(10_000):
            if not self.snapshot.open_tables:
                return
            answer = self.ahead.next(_ROWS, len(self.sent))
            if answer is None:
                assert self._answer(), "nobody is asked, and nothing is there"
                continue
            self._send(answer)
            after_batch(self)
        raise AssertionError("it comes to no end")

    def _answer(self) -> bool:
        """Have somebody answer; tell whether there was a question."""
        readers = self._readers
        asked = [number for number in range(len(readers)) if readers.is_awaited(number)]
        if not asked:
            return False
        number = self._chance.choice(asked)
        self.ahead.take(number, readers.answer(number))
        return True

    def _send(self, answer: dict[str, Any]) -> None:
        assert "failed" not in answer, answer
        table = self.tables[answer["table"]]
        if "gone" in answer:
            table.status = Status.SKIPPED
            return
        assert answer["pos"] == len(self.sent) + 1
        self.lasts |= {table.name} if answer["is_last_table"] and answer["keys"] else set()
        while self._chance.random() < 0.7 and self._answer():  # while it is on its way
            self.ahead.ask(_ROWS)
        if answer["is_first"]:
            self.firsts.append(table.name)
        self.sent += ((table.name, key) for key in answer["keys"])
        table.rows += answer["rows"]
        if answer["last"] is not None:
            table.after = answer["last"].hex()
        if answer["is_end"] and table.is_open:
            table.status = Status.COMPLETED


def _tables(chance: random.Random) -> dict[str, list[int]]:
    sizes = [chance.choice((0, 0, 1, 5, 10, 20, 30, 33, 200)) for _ in range(chance.randint(1, 6))]
    return {
        f"T{number}": sorted(chance.sample(range(1, 5000), size))
        for number, size in enumerate(sizes)
    }


def _all(tables: dict[str, list[int]]) -> list[tuple[str, int]]:
    return [(name, key) for name, keys in tables.items() for key in keys]


@pytest.mark.parametrize("seed", range(60))
def test_rows_come_in_order_and_each_once(seed: int) -> None:
    chance = random.Random(seed)
    tables = _tables(chance)
    readers = _Readers(tables, chance.choice((1, 2, 3, 5)), chance.choice((3, 7, 1000)))
    select = chance.choice(("", "T0", "T1"))
    window = _Window(readers, chance, select)
    window.run()
    assert window.sent == _all(tables)
    assert window.firsts == list(tables)
    last = next((name for name in reversed(tables) if tables[name] or name == select), "")
    assert window.lasts == ({last} if tables.get(last) else set())
    assert all(each.status is Status.COMPLETED for each in window.tables.values())


@pytest.mark.parametrize("seed", range(30))
def test_tables_that_are_gone_or_taken_out_cost_no_row_of_others(seed: int) -> None:
    chance = random.Random(seed)
    tables = _tables(chance)
    readers = _Readers(tables, chance.choice((1, 2, 4)), chance.choice((3, 1000)))
    readers.gone = {chance.choice(list(tables))}
    stopped = chance.choice(list(tables))
    at = chance.randint(1, 4)
    batches = 0

    def stop(window: _Window) -> None:
        nonlocal batches
        batches += 1
        if batches == at and window.tables[stopped].is_open:
            window.tables[stopped].status = Status.STOPPED

    window = _Window(readers, chance)
    window.run(stop)
    wanted = [each for each in _all(tables) if each[0] not in readers.gone]
    sent = [each for each in window.sent if each[0] != stopped]
    assert sent == [each for each in wanted if each[0] != stopped]
    of_stopped = [each for each in window.sent if each[0] == stopped]
    assert of_stopped == [each for each in wanted if each[0] == stopped][: len(of_stopped)]


def test_reader_that_ends_as_it_looks_for_the_last_table_is_a_failure() -> None:
    readers = _Readers({"T": [1], "U": []}, 2)
    window = _Window(readers, random.Random(1))
    assert window.ahead.next(_ROWS, 0) is None
    failure = {"failed": "it has ended", "kind": "Ended"}
    window.ahead.take(0, failure)
    assert window.ahead.next(_ROWS, 0) == failure


def test_no_reader_is_asked_for_more_while_rows_of_it_wait() -> None:
    readers = _Readers({"T": list(range(1, 500))}, 3)
    window = _Window(readers, random.Random(1))
    assert window.ahead.next(_ROWS, 0) is None
    for number in (0, 1, 2):
        window.ahead.take(number, readers.answer(number))  # counted: the next one is asked
        window.ahead.ask(_ROWS)
    for number in (2, 1):
        window.ahead.take(number, readers.answer(number))
        window.ahead.ask(_ROWS)
    assert readers.asked == [(n, what) for n in (0, 1, 2) for what in ("measure", "read")]
    assert window.ahead.next(_ROWS, 0) is None  # theirs come behind what the first one reads
    window.ahead.take(0, readers.answer(0))
    answer = window.ahead.next(_ROWS, 0)
    assert answer is not None
    assert answer["keys"] == list(range(1, 11))
    window.ahead.ask(_ROWS)
    assert readers.asked[6:] == [(0, "measure"), (0, "read")]


def test_all_readers_have_part_in_rows_that_are_long() -> None:
    readers = _Readers({"T": list(range(1, 500))}, 3, most=4)
    window = _Window(readers, random.Random(1))
    window.run()
    assert window.sent == _all(readers.tables)
    reads = Counter(number for number, what in readers.asked if what == "read")
    assert min(reads.values()) > sum(reads.values()) / 5
    assert sum(reads.values()) < 1.2 * 500 / 3  # each part was read once, nearly


def test_rows_that_are_not_those_that_were_counted_void_the_window() -> None:
    readers = _Readers({"T": list(range(1, 30))}, 2)
    window = _Window(readers, random.Random(1))
    window.ahead.next(_ROWS, 0)
    window.ahead.take(0, readers.answer(0))
    readers.tables["T"].remove(3)
    window.ahead.take(0, readers.answer(0))
    answer = window.ahead.next(_ROWS, 0)
    assert answer is not None
    assert answer["kind"] == "SnapshotVoid"
    assert answer["failed"] == "10 rows of T were counted, and others were read"


def test_failure_counts_once_its_turn_has_come() -> None:
    readers = _Readers({"T": list(range(1, 100))}, 2)
    window = _Window(readers, random.Random(1))
    window.ahead.next(_ROWS, 0)
    window.ahead.take(0, readers.answer(0))
    window.ahead.ask(_ROWS)
    failure = {"failed": "it has ended", "kind": "Ended"}
    for _ in readers.questions[1]:
        window.ahead.take(1, failure)
    assert window.ahead.next(_ROWS, 0) is None
    window.ahead.take(0, readers.answer(0))
    answer = window.ahead.next(_ROWS, 0)
    assert answer is not None
    window._send(answer)
    assert window.ahead.next(_ROWS, len(window.sent)) == failure
