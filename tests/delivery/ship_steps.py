"""The steps of a shipper between which it can be made to die, and faults planted into it.

Runs inside the shipper, which has no code for it. The producer's steps are met in a subclass
that ``watch_client`` puts in place of confluent_kafka's, before the product is imported: whatever
way the product takes, it comes past there. It also says in a header of every message which life
and which of its Kafka transactions the message belongs to, so that a reader can tell whether
something was split. The other steps are functions that are wrapped by name.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import threading
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

sys.path.insert(1, str(Path(__file__).parents[1] / "faults"))

import points
from points import Step, anything, names_any

TAG = "test.transaction"
"""The header with LIFE.NUMBER of the Kafka transaction, LIFE.0 outside of any. A life counts on
with each new client: two transactions of the same name would pass for one."""

POSITION_TOPIC = "__firebird-cdc-positions."
"""Beginning of the name of the offset topic."""

DURING_S = 0.0004
"""Unit of the time after which a process dies ``during`` a step."""

_STOPPED_AT = 3
_JOURNAL_OF = re.compile(rb'"MARK":"([0-9]+)[.][0-9]+".*"op":"[cu]"')
_JOURNAL = r"/[0-9a-f]{8}-[0-9a-f-]{27}\.log$"
_SHIP = "firebird_cdc.journal.shipper.loop"
_DISPOSE = "firebird_cdc.journal.folder.disposal"

CLIENT_STEPS = {
    "producer": "__init__",
    "fence": "init_transactions",
    "begin": "begin_transaction",
    "message": "produce",
    "position": "produce",
    "commit": "commit_transaction",
    "abort": "abort_transaction",
}
"""Steps at the Kafka client, by the method of the producer that is behind them."""

STEPS: dict[str, Step] = {
    "lock": ("firebird_cdc.journal.folder.locks", "ShipperLock.take", anything),
    "recovery": ("firebird_cdc.bridge.recovery", "Recovery.look", anything),
    "watch": ("firebird_cdc.journal.shipper.inbox.watcher", "JournalWatcher.attach", anything),
    "take_in": (_SHIP, "Shipper.take_in", anything),
    "open": (
        "firebird_cdc.journal.shipper.delivery.database_queue",
        "DatabaseQueue.start",
        anything,
    ),
    "settle": (
        "firebird_cdc.journal.shipper.delivery.database_queue",
        "DatabaseQueue.finish",
        anything,
    ),
    "dispose": (_DISPOSE, "dispose_shipped", lambda given: bool(given[0])),
    "sync_kept": ("os", "fdatasync", names_any(_JOURNAL)),
    "keep": ("os", "link", names_any(r"/archive/")),
    "sync_archive": ("os", "fsync", names_any(r"/archive$")),
    "pack": (
        "firebird_cdc.journal.shipper.tasks.archive",
        "ArchiveKeeper.write_segment",
        anything,
    ),
    "name_segment": ("os", "rename", names_any(r"/archive/[^/]*[.]zip")),
    "read_back": (
        "firebird_cdc.journal.shipper.kafka.offset_topic",
        "OffsetReader.advance",
        anything,
    ),
    "name_folder": ("os", "replace", names_any(r"/shipped/")),
    "set_aside": ("firebird_cdc.journal.shipper.quarantine", "Quarantine.put", anything),
    "note_aside": ("os", "replace", names_any(r"/quarantine/")),
    "link_aside": ("os", "link", names_any(r"/quarantine/")),
    "sync_aside": ("os", "fsync", names_any(r"/quarantine$")),
    "stop": ("firebird_cdc.journal.shipper.delivery.base", "Delivery.abandon", anything),
}
"""Steps elsewhere."""

DELETE = "delete"
"""The deletion of one of several journals, which the product does in C."""

_needs_transactions = ("fence", "read_back", "name_folder", "begin", "position", "commit", "abort")
_needs_archive = ("sync_kept", "keep", "sync_archive", "pack", "name_segment")
_needs_bad = ("set_aside", "note_aside", "link_aside", "sync_aside")


def all_points() -> dict[str, str]:
    """Return the points, and what a round must have so that they are reached."""
    steps = [*CLIENT_STEPS, *STEPS, DELETE]
    found = {f"{step}.{side}": _need(step) for step in steps for side in ("before", "after")}
    return found | {f"{step}.during": _need(step) for step in ("fence", "message", "commit")}


def _need(step: str) -> str:
    for need, steps in (
        ("transactional", _needs_transactions),
        ("archive", _needs_archive),
        ("bad", _needs_bad),
    ):
        if step in steps:
            return "impatient" if step == "abort" else need
    return ""


# The client

_PLAIN = confluent_kafka.Producer
_hits: Counter[str] = Counter()
_armed: tuple[str, int] = ("", 0)
_life = 0
_numbers = count(1)  # of Kafka transactions
_faults: frozenset[str] = frozenset()
_servers: list[str] = []
_begun: list[Path] = []


def _come_to(point: str) -> None:
    if point == _armed[0]:
        _hits[point] += 1
        if point.endswith(".during"):
            first = _armed[1] == 1 or point == "fence.during"
            if _hits[point] == (1 if first else 1 + _armed[1] % 3):
                threading.Timer(_armed[1] * DURING_S, _die).start()
        elif _hits[point] == _armed[1]:
            _die()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class WatchedProducer(_PLAIN):  # type: ignore[misc]
    """The client's producer, with the points and the header."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        _come_to("producer.before")
        self._open = 0
        self._is_amid_journal = False
        self._previous: tuple[str, bytes | None] = ("", None)
        self._held: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        super().__init__(*arguments, **named)
        _servers.append(arguments[0]["bootstrap.servers"])
        _come_to("producer.after")

    def init_transactions(self, *arguments: Any) -> None:
        _come_to("fence.before")
        _come_to("fence.during")
        super().init_transactions(*arguments)
        _come_to("fence.after")

    def begin_transaction(self) -> None:
        _come_to("begin.before")
        if self._is_amid_journal and "give_up" in _faults:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "amid a journal, as planted"))
        super().begin_transaction()
        self._open = next(_numbers)
        self._is_amid_journal = False
        _come_to("begin.after")

    def commit_transaction(self, *arguments: Any) -> None:
        if "dispose_first" in _faults:
            for path in _begun:
                path.unlink(missing_ok=True)
        _come_to("commit.before")
        _come_to("commit.during")
        super().commit_transaction(*arguments)
        self._open = 0
        _come_to("commit.after")

    def abort_transaction(self, *arguments: Any) -> None:
        _come_to("abort.before")
        self._open = 0
        abort = super().abort_transaction
        del self  # confluent-kafka never lets go of what a call holds that fails amid an error
        try:
            abort(*arguments)
        finally:
            del abort
        _come_to("abort.after")

    def produce(self, topic: str, *arguments: Any, **named: Any) -> None:
        step = "position" if topic.startswith(POSITION_TOPIC) else "message"
        _come_to(f"{step}.before")
        _come_to(f"{step}.during")
        if step == "message" and _armed[0].startswith("abort."):
            _hits["before_abort"] += 1
            if _hits["before_abort"] == _STOPPED_AT:
                os.kill(os.getpid(), signal.SIGTERM)  # with no time left to finish anything
        tag = (TAG, f"{_life}.{self._open}".encode())
        named["headers"] = [*(named.get("headers") or ()), tag]
        if _faults and self._go_wrong(step, topic, arguments, named):
            return
        super().produce(topic, *arguments, **named)
        _come_to(f"{step}.after")

    def produce_batch(self, *arguments: Any, **named: Any) -> int:
        raise LookupError("the shipper sends batches now: their steps have to be met as well")

    def _go_wrong(
        self, step: str, topic: str, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> bool:
        """Do what a planted fault does instead of sending; False: it goes on as it should."""
        if step == "position":
            if "no_position" in _faults:
                _answer(named)
            elif "position_aside" in _faults:
                aside = _PLAIN({"bootstrap.servers": _servers[-1]})
                aside.produce(topic, *arguments, **named | {"on_delivery": None})
                aside.flush()
                _answer(named)
            else:
                self._is_amid_journal |= b'"complete": false' in (arguments[0] or b"")
                return False
            return True
        _hits["messages"] += 1
        number = _hits["messages"]
        marked = _JOURNAL_OF.search(arguments[0] or b"") if arguments else None
        before, self._previous = self._previous, (topic, marked and marked[1])
        in_the_middle = marked is not None and self._previous == before
        if self._held and self._held[0][0][0] == topic:
            super().produce(topic, *arguments, **named)
            place, again = self._held.pop()
            super().produce(*place, **again)
            return True
        if "swap" in _faults and in_the_middle and not _hits["swap"]:
            _hits["swap"] += 1
            self._held.append(((topic, *arguments), named))
        elif number == 7 and "drop" in _faults:
            _answer(named)
        elif number == 7 and "believe" in _faults:
            _answer(named, _Believed(topic))
        elif "twice" in _faults and in_the_middle and not _hits["twice"]:
            _hits["twice"] += 1
            super().produce(topic, *arguments, **named | {"on_delivery": None})
            return False
        elif "cut" in _faults and in_the_middle and not _hits["cut"]:
            _hits["cut"] += 1
            super().commit_transaction()
            super().begin_transaction()
            self._open = next(_numbers)
            named["headers"][-1] = (TAG, f"{_life}.{self._open}".encode())
            return False
        else:
            return False
        return True


class _Taken:
    """Report of the client on a message that Kafka has taken."""

    def offset(self) -> int:
        """Return its offset, which is behind all offsets before."""
        _hits["taken"] += 1
        return 1_000_000 + _hits["taken"]


class _Believed(NamedTuple):
    """Report of the client on a message that it takes to be in Kafka because one behind it is: it
    has no offset."""

    name: str

    def topic(self) -> str:
        """Return the topic to which it was to go."""
        return self.name

    def offset(self) -> None:
        """Return None: it has no offset."""


def _answer(named: dict[str, Any], answer: _Taken | _Believed | None = None) -> None:
    if (report := named.get("on_delivery") or named.get("callback")) is not None:
        report(None, answer or _Taken())


def watch_client() -> None:
    """Have the product use the watched client; to be called before it is imported."""
    if any(name.startswith("firebird_cdc.journal") for name in sys.modules):
        raise LookupError("the product is imported already")
    confluent_kafka.Producer = WatchedProducer


def _plant(fault: str) -> None:
    """Prepare what FAULT needs beside the client."""
    send: Any = importlib.import_module("firebird_cdc.journal.shipper.delivery.send")
    small: Any = importlib.import_module("firebird_cdc.journal.shipper.delivery.small")
    queue: Any = importlib.import_module("firebird_cdc.journal.shipper.delivery.database_queue")
    if fault == "dispose_unanswered":
        for kind in (send.JournalSend, small.SmallSend):
            if not isinstance(kind.delivered, property):
                raise LookupError("delivery is told in another way now")
            kind.delivered = property(lambda self: self.read_to_end)
    elif fault == "dispose_first":
        start = queue.DatabaseQueue.start

        def started(self: Any, made: Any) -> None:
            start(self, made)
            _begun.append(made.path)

        queue.DatabaseQueue.start = started


FAULTS = (
    "no_position",
    "position_aside",
    "swap",
    "drop",
    "believe",
    "twice",
    "cut",
    "dispose_first",
    "dispose_unanswered",
    "give_up",
)


def _watch_deletion() -> None:
    dispose: Any = importlib.import_module("firebird_cdc.journal.folder.disposal")
    remove = dispose.remove_files

    def removed(folder: str, names: list[str]) -> None:
        for name in names:
            _come_to(f"{DELETE}.before")
            remove(folder, [name])
            _come_to(f"{DELETE}.after")

    dispose.remove_files = removed


def prepare(life: int, point: str, hit: int, faults: list[str], patches: dict[str, float]) -> None:
    """Arm POINT at its HIT-th time, plant FAULTS, and set the product's limits (MODULE.NAME)."""
    global _armed, _life, _faults
    _life = life
    _faults = frozenset(faults)
    for name, value in patches.items():
        module_name, _, last = name.rpartition(".")
        module = importlib.import_module(f"firebird_cdc.journal.{module_name}")
        if type(getattr(module, last)) is not type(value):
            raise LookupError(f"{name} is no such number any more")
        setattr(module, last, value)
    for fault in faults:
        if fault not in FAULTS:
            raise LookupError(f"no fault is called {fault}")
        _plant(fault)
    step = point.partition(".")[0]
    if step in CLIENT_STEPS or step == DELETE:
        _armed = (point, hit)
        if step == DELETE:
            _watch_deletion()
    elif point:
        points.arm(point, hit, STEPS)
