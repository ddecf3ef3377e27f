"""Comparison of what consumers have with the database at rest, and of rows with their snapshots."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from snapshot_world import Table, shown, whole

from firebird_cdc.journal.shipper.snapshots.state import Kind, Snapshot, SnapshotState, Status


@dataclass
class Reading:
    """Content of the topic of one table.

    ``by_birth``: the table's key changes, so that rows are told apart by BORN. ``latest``: the last
    event of each row; ``changes``: of a table's events that are no rows, what they add to it, by
    its generation; ``reads``: rows by the window that read them, in the order of the topic.
    ``twice``: changes that came again; ``behind``: rows behind a newer event of their key;
    ``stale``: events of a table of before behind those of the one that was made in its place;
    ``overtaken``: changes of a table of before behind rows only of that one.
    """

    table: str
    by_birth: bool = False
    latest: dict[str | int, dict[str, Any]] = field(default_factory=dict)
    changes: defaultdict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    reads: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    marks: Counter[str] = field(default_factory=Counter)
    twice: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    overtaken: list[str] = field(default_factory=list)
    events: int = 0
    _generation: int = 0
    _changed_generation: int = 0
    _newest: dict[str, int] = field(default_factory=dict)
    _places: set[tuple[Any, ...]] = field(default_factory=set)

    @property
    def rows(self) -> int:
        """Number of rows of snapshots."""
        return sum(map(len, self.reads.values()))

    def take(self, key: str, event: dict[str, Any]) -> None:
        """Take the next event of the topic."""
        source, after, before = event["source"], event["after"], event["before"]
        self.events += 1
        op = event["op"]
        place = (source["journal"], source["pos"], op, key)
        told = f"{op} {key} {place[0]} {place[1]} of {source['commitSeq']}"
        is_new = place not in self._places
        self._places.add(place)
        if op == "r":
            self.marks[source["snapshot"]] += 1
            self.reads.setdefault(source["journal"], []).append(after)
            if not is_new:
                self.again.append(told)
            if key and source["commitSeq"] < self._newest.get(key, 0):
                self.behind.append(f"{told}: {self._newest[key]} came before")
        elif is_new:
            for row, many in ((before, -1), (after, 1)):
                if row is not None:
                    self.changes[row["GENERATION"]][shown(self.table, row)] += many
        else:
            self.twice.append(told)
        generation = (after or before)["GENERATION"]
        if is_new and generation < self._generation:
            is_overtaken = op != "r" and generation >= self._changed_generation
            where = self.overtaken if is_overtaken else self.stale
            where.append(f"{told}: generation {generation} behind {self._generation}")
        self._generation = max(self._generation, generation)
        if op != "r":
            self._changed_generation = max(self._changed_generation, generation)
        if key:
            self._newest[key] = max(self._newest.get(key, 0), source["commitSeq"])
        if self.by_birth:
            self._keep(before and before.get("BORN"), None)
            self._keep(after and after.get("BORN"), after)
        else:
            self._keep(key, after)

    def _keep(self, row: str | int | None, content: dict[str, Any] | None) -> None:
        if content is None:
            self.latest.pop(row or "", None)
        elif row:
            self.latest[row] = content


def read_topic(table: str, messages: Iterable[Any], *, by_birth: bool = False) -> Reading:
    """Return what MESSAGES of the topic of TABLE are."""
    reading = Reading(table, by_birth)
    for message in messages:
        if message.value() is not None:
            reading.take((message.key() or b"").decode(), json.loads(message.value()))
    return reading


def _difference(found: Counter[str], wanted: Counter[str]) -> str:
    more, less = found - wanted, wanted - found
    return (
        f"{more.total()} too many, such as {sorted(more)[:3]}; {less.total()} are missing, such as"
        f" {sorted(less)[:3]}"
    )


def compare(
    readings: dict[str, Reading],
    state: SnapshotState | None,
    before: dict[str, Table],
    now: dict[str, Table],
    *,
    exactly: bool,
) -> Iterator[str]:
    """Yield what is wrong: BEFORE and NOW are the tables as they were when they were published, and
    are at rest; EXACTLY: with a transactional id."""
    past = state.past if state is not None else []
    initial = next((each for each in past if each.kind is Kind.INITIAL), None)
    # Its rows are of a later moment than what is left out behind them.
    began_anew = initial is not None and initial.windows > 1
    for table, reading in readings.items():
        for what, found in (
            ("rows behind newer events of their key", reading.behind),
            ("events of a table of before", reading.stale),
            ("changes of a table of before", [] if began_anew else reading.overtaken),
            ("rows with the place of another one", reading.again if exactly else []),
            ("changes that came again", reading.twice if exactly else []),
        ):
            if found:
                yield f"{table}: {len(found)} {what}, such as {found[:3]}"
        at_rest = now[table]
        # Of one that was made meanwhile all rows are changes.
        complete = at_rest.generation > 1 or any(_reads(each, table) for each in past)
        if table != "KEYLESS" and complete:
            columns = at_rest.columns
            kept = (
                row for row in reading.latest.values() if row["GENERATION"] == at_rest.generation
            )
            have = Counter(whole(row, columns) for row in kept)
            wanted = Counter(whole(row, columns) for row in at_rest.rows)
            if have != wanted:
                yield f"{table} {columns}: a consumer has {_difference(have, wanted)}"
        yield from _compare_changes(reading, initial, state, before[table], at_rest)
        if exactly and table != "KEYLESS" and not reading.by_birth:
            yield from _compare_counts(reading, past)


def _reads(snapshot: Snapshot, table: str) -> bool:
    return any(
        each.name == table and each.status is Status.COMPLETED for each in snapshot.tables or ()
    )


def _bag(table: str, rows: Iterable[dict[str, Any]]) -> Counter[str]:
    return Counter(shown(table, row) for row in rows)


def _compare_changes(
    reading: Reading,
    initial: Snapshot | None,
    state: SnapshotState | None,
    before: Table,
    now: Table,
) -> Iterator[str]:
    """Compare what the changes add up to, which needs no key."""
    table = reading.table
    found = Counter(reading.changes[now.generation])
    seen = state.seen if state is not None else None
    is_left_out = seen is not None and table in seen.tables
    if is_left_out and initial is not None and _reads(initial, table):
        if initial.windows > 1:
            return  # changes between its moments are sent, and rows have them
        # What the snapshot has seen is left out: its rows make up for it.
        rows = next(each.rows for each in initial.tables or () if each.name == table)
        fitting = [window for window in reading.reads.values() if len(window) == rows]
        if len(fitting) > 1:
            return  # another snapshot has as many
        for window in fitting:
            found.update(_bag(table, (r for r in window if r["GENERATION"] == now.generation)))
    elif before.generation == now.generation:
        found.update(_bag(table, before.rows))
    have = Counter({row: many for row, many in found.items() if many})
    wanted = _bag(table, now.rows)
    if have != wanted:
        yield f"{table}: changes add up to {_difference(have, wanted)}"


def _compare_counts(reading: Reading, past: list[Snapshot]) -> Iterator[str]:
    """Compare the number of incremental rows with what their snapshots count."""
    incremental = [each for each in past if each.kind is Kind.INCREMENTAL]
    counted = sum(
        table.rows
        for each in incremental
        for table in each.tables or ()
        if table.name == reading.table
    )
    found = reading.marks["incremental"]
    others = [each for each in past if each.kind is not Kind.INCREMENTAL]
    if all(each.windows <= 1 and not each.why for each in others):
        sent = reading.marks.total() - found
        wanted = sum(
            table.rows
            for each in others
            for table in each.tables or ()
            if table.name == reading.table
        )
        if sent != wanted:
            yield f"{reading.table}: {sent} rows of snapshots of one moment, which count {wanted}"
    if found != counted:
        yield f"{reading.table}: {found} rows of incremental snapshots, which count {counted}"
    if len(incremental) == 1 and "BORN" in (next(iter(reading.latest.values()), {})):
        born: defaultdict[int, int] = defaultdict(int)
        for rows in reading.reads.values():
            for row in rows:
                born[row["BORN"]] += 1
        twice = [number for number, many in born.items() if many > 1]
        if twice and reading.marks.total() == found:
            yield f"{reading.table}: {len(twice)} rows were read twice, such as {twice[:3]}"
