"""Points at which a shipper dies, or its reader process does or hangs, while it takes snapshots.

Runs in the shipper (shipper_nursery.py). Points of the Kafka client are those of ship_steps.py.
``reader.<question>``: a reader process dies within some milliseconds after one was asked that, and
``hang.<question>``: it stands still from then on.
"""

from __future__ import annotations

import importlib
import os
import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import points
import ship_steps
from points import Step, anything

READER = b"firebird_cdc.journal.snapshot.worker"
"""Part of the command line of a reader process."""

_SNAPSHOTS = "firebird_cdc.journal.shipper.snapshots"
_REDELIVERY = "firebird_cdc.journal.shipper.delivery.redelivery"
_OF_SEVERAL = ("join", "measure")  # questions for those that read together
_QUESTIONS = ("attach", "open", "read", "close", *_OF_SEVERAL)
_MOST_LATE_S = 0.05  # a reader process dies so long after a question


def _asks(what: str) -> Callable[[tuple[Any, ...]], bool]:
    return lambda given: bool(given[1]["do"] == what)


STEPS: dict[str, Step] = {
    **{
        f"ask_{each}": (f"{_SNAPSHOTS}.reader_process", "ReaderProcess.ask", _asks(each))
        for each in _QUESTIONS
    },
    "start_reader": (f"{_SNAPSHOTS}.reader_process", "ReaderProcess.__init__", anything),
    "end_reader": (f"{_SNAPSHOTS}.reader_process", "ReaderProcess.close", anything),
    "hand_over": (_REDELIVERY, "Redelivery.ask_batch", anything),
    "answered": (f"{_SNAPSHOTS}.service", "Snapshots.finish", anything),
    "request": (f"{_SNAPSHOTS}.service", "Snapshots.request", anything),
    "keep": (f"{_SNAPSHOTS}.state", "StateFolder.write", anything),
    "complete": (f"{_SNAPSHOTS}.state", "SnapshotState.end", anything),
}
"""Steps of snapshots in the shipper."""

_CLIENT = ("begin", "message", "position", "commit", "fence")
_MOST_HITS = {
    "ask_attach": 1,
    "ask_join": 2,
    "start_reader": 1,
    "end_reader": 1,
    "request": 1,
    "complete": 1,
    "fence": 1,
    "attach": 1,
    "join": 2,
    "message": 1000,
}


def all_points() -> dict[str, bool]:
    """Return the points, and whether a round needs a transactional id to reach them."""
    found = dict.fromkeys(points.python_points(STEPS), False)
    for step in _CLIENT:
        for side in ("before", "after"):
            found[f"{step}.{side}"] = step != "message"
    for kind in ("reader", "hang"):
        found |= dict.fromkeys((f"{kind}.{each}" for each in _QUESTIONS), False)
    return found


def needs_several(point: str) -> bool:
    """Tell whether POINT is only passed where several processes read."""
    return any(each in point for each in _OF_SEVERAL)


def most_hits(point: str) -> int:
    """Return up to the how many-th time POINT is used, where it is passed often."""
    step, _, side = point.partition(".")
    return _MOST_HITS.get(side if step in ("reader", "hang") else step, 8)


def readers_of(pid: int) -> list[int]:
    """Return the reader processes of the shipper PID."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # it has ended
        return []
    children = [int(child) for thread in threads for child in _content(thread / "children").split()]
    return [child for child in children if READER in _content(Path(f"/proc/{child}/cmdline"))]


def _content(path: Path) -> bytes:
    """Return what is in a file of proc(5), nothing once its process or thread has ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def signal_reader(pid: int, number: int, chance: random.Random) -> bool:
    """Send a signal to one of the reader processes of the shipper PID; tell whether there was
    one."""
    readers = readers_of(pid)
    if not readers:
        return False
    with suppress(ProcessLookupError):
        os.kill(chance.choice(sorted(readers)), number)
        return True
    return False


def _arm_reader(kind: str, question: str, hit: int) -> None:
    hits = count(1)
    number = signal.SIGKILL if kind == "reader" else signal.SIGSTOP

    def strike() -> None:
        if next(hits) == hit:
            chance = random.Random(hit)
            delay_s = chance.uniform(0, _MOST_LATE_S)
            threading.Timer(delay_s, signal_reader, (os.getpid(), number, chance)).start()

    points.wrap(*STEPS[f"ask_{question}"], "after", strike)


def _send_twice(runner: Any, rows: Any) -> None:
    """Have one batch of rows be read again."""
    apply, done = runner.apply_batch, []

    def applied(snapshot: Any, batch: Any) -> None:
        table = next(each for each in snapshot.tables if each.name == batch.table)
        after = table.after
        apply(snapshot, batch)
        if table.is_open and after is not None and len(done) < 2:  # in the record and in the state
            done.append(batch)
            table.after = after

    runner.apply_batch = applied


def _send_nothing(runner: Any, rows: Any) -> None:
    """Have the rows of one batch be sent in part."""
    rendered, done = rows.BatchEvents.rendered, []

    def shortened(self: Any) -> Any:
        found = list(rendered(self))
        if len(found[0].messages if found else ()) > 1 and not done:
            done.append(self)
            found = found[1:]
        return (each for each in found)

    rows.BatchEvents.rendered = shortened


def _send_late(runner: Any, rows: Any) -> None:
    """Have changes pass rows that are older."""
    runner.WaitingJournals.stops = lambda self, entry: False


def _leave_out(runner: Any, rows: Any) -> None:
    """Have changes be left out that the snapshot does not have."""
    runner.WaitingJournals.are_near = property(lambda self: True)
    runner.WaitingJournals.left_out_of = lambda self, entry: frozenset(
        {"ITEM"} if entry.sequence % 5 == 0 else ()
    )


FAULTS = {
    "send_twice": _send_twice,
    "send_nothing": _send_nothing,
    "send_late": _send_late,
    "leave_out": _leave_out,
}
"""Faults that can be planted into the shipper."""


def _plant(fault: str) -> None:
    modules = (importlib.import_module(f"{_SNAPSHOTS}.{name}") for name in ("runner", "rows"))
    FAULTS[fault](*modules)


def prepare(life: int, point: str, hit: int, faults: list[str], patches: dict[str, float]) -> None:
    """Arm POINT at its HIT-th time, plant FAULTS, and set the product's limits, as
    ship_steps.prepare."""
    for fault in faults:
        _plant(fault)
    faults = []
    step, _, side = point.partition(".")
    if step in STEPS or step in ("reader", "hang"):
        ship_steps.prepare(life, "", 0, faults, patches)
    else:
        ship_steps.prepare(life, point, hit, faults, patches)
    if step in STEPS:
        points.arm(point, hit, STEPS)
    elif step in ("reader", "hang"):
        _arm_reader(step, side, hit)
