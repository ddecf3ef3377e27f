"""The shipper's side of ``firebird-cdc journal retry``: takes requests and answers them.

A request is a file ``<id>.request`` in ``.firebird-cdc/retry``, which is looked for every second;
the answer is ``<id>.answer``. A request stays until it is answered, so also one that nobody waits
for any more is done, at the next start at the latest. This works wherever the journal folder can
be written, needs no port, and no shipper to run when a retry is asked for.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import UUID

import logbook

from firebird_cdc.journal.folder.durable import replace_file
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.shipper.delivery.base import Delivery
from firebird_cdc.journal.shipper.delivery.database_queue import DatabaseQueue
from firebird_cdc.journal.shipper.delivery.repair import RepairOutcome
from firebird_cdc.journal.shipper.delivery.resend import Outcome
from firebird_cdc.journal.shipper.quarantine import REQUESTS, in_order

_log = logbook.Logger("firebird_cdc.journal.shipper.control")

ANSWERS_KEPT_S = 3600.0
"""An answer that nobody fetched is removed after this time."""

_LOOK_S = 1.0

HOLD_S = 20.0
"""Longest time for which a database is held for a command that doesn't come back."""

Answer = Callable[[dict[str, Any]], object]
"""Takes what the command is told, as JSON."""


@dataclass(slots=True)
class _Request:
    """A request of the command, and its outcomes so far."""

    path: Path
    wanted: list[str]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    tried: list[tuple[DatabaseQueue, tuple[int, int]]] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return not self.tried and all(each in self.outcomes for each in self.wanted)


class RetryControl:
    """Takes requests and answers them; a periodic task of the shipping thread."""

    def __init__(self, journals: Path, delivery: Delivery) -> None:
        self._folder = journals / STATE_DIRECTORY / REQUESTS
        self._delivery = delivery
        self._requests: dict[str, _Request] = {}
        self._repairs = RepairControl(delivery)
        self._of_repairs: set[str] = set()

    def turn(self, now: float) -> float:
        """Look for requests, and answer those that are done."""
        for path in self._new_requests():
            self._take(path)
        for request in list(self._requests.values()):
            self._follow(request, now)
            self._answer_if_done(request)
        self._repairs.turn(now)
        return now + _LOOK_S

    def close(self) -> None:
        """Leave what is not answered as a request, for the next shipper."""

    def _new_requests(self) -> list[Path]:
        if not self._folder.exists():
            return []
        _remove_old_answers(self._folder)
        return sorted(
            path
            for path in self._folder.glob("*.request")
            if path.name not in self._requests and path.name not in self._of_repairs
        )

    def _take(self, path: Path) -> None:
        try:
            content = json.loads(path.read_bytes())
            if "repair" in content:
                self._of_repairs.add(path.name)
                self._repairs.take(path.name, content["repair"], partial(self._answer, path))
                return
            wanted = [UUID(text) for text in content["journals"]]
            is_forced, is_all = bool(content["force"]), bool(content["all"])
        except OSError as error:
            _log.debug("{}: not yet: {}", path, error)
            return
        except (ValueError, KeyError, TypeError) as error:
            _log.error("{}: not a valid request, so it is deleted: {!r}", path, error)
            path.unlink(missing_ok=True)
            return
        _log.info("retry requested: {}", path.name)
        delivery = self._delivery
        quarantine = delivery.plan.quarantine.folder
        if is_all:
            wanted = in_order(quarantine)
        elif len(wanted) > 1:
            # In another order the one would be in the way of the other.
            places = {uuid: place for place, uuid in enumerate(in_order(quarantine))}
            wanted.sort(key=lambda uuid: places.get(uuid, -1))
        halted = {
            queue.halt.entry.uuid: queue
            for queue in delivery.queues.values()
            if queue.halt is not None and queue.halt.entry is not None
        }
        request = self._requests[path.name] = _Request(path, [])
        late = [uuid for uuid in wanted if uuid not in halted]
        if is_all or len(late) < len(wanted) or not wanted:
            request.tried = delivery.try_again()
        request.wanted = [str(uuid) for uuid in late]
        for uuid in late:
            answer = partial(self._note_outcome, request, str(uuid))
            delivery.late.ask(uuid, answer, is_forced=is_forced)

    def _note_outcome(self, request: _Request, name: str, outcome: Outcome) -> None:
        request.outcomes[name] = outcome
        self._answer_if_done(request)

    @staticmethod
    def _follow(request: _Request, now: float) -> None:
        """See what became of the databases that were to go on."""
        for queue, place in list(request.tried):
            first = queue.first_place
            if queue.halt is not None:
                outcome = Outcome(False, f"paused again: {queue.halt.reason}")
            elif first is None or first > place:
                outcome = Outcome(True, "shipping resumed")
            elif queue.setback and queue.setback.why and queue.backoff.retry_at > now:
                outcome = Outcome(False, f"still not delivered: {queue.setback.why}")
            else:
                continue
            request.tried.remove((queue, place))
            request.outcomes[queue.database] = outcome

    def _answer_if_done(self, request: _Request) -> None:
        if not request.is_done or request.path.name not in self._requests:
            return
        answer = {name: list(outcome) for name, outcome in request.outcomes.items()}
        if self._answer(request.path, answer):
            del self._requests[request.path.name]

    def _answer(self, path: Path, answer: dict[str, Any]) -> bool:
        content = json.dumps(answer, ensure_ascii=False).encode()
        try:
            replace_file(path.with_suffix(".answer"), content)
            path.unlink(missing_ok=True)
        except OSError as error:
            _log.error("{}: can't be answered yet: {}", path, error)
            return False
        self._of_repairs.discard(path.name)
        return True


def _remove_old_answers(folder: Path) -> None:
    oldest = time.time() - ANSWERS_KEPT_S
    for path in folder.glob("*.answer"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < oldest:
                path.unlink()


class RepairControl:
    """Takes what the command asks for. A part of ``RetryControl``, which finds the requests."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._repairs = delivery.late.repairs
        self._asked: set[UUID] = set()
        self._wanted: dict[UUID, list[Answer]] = {}
        self._holds: dict[str, tuple[str, float, Answer]] = {}

    def take(self, name: str, content: dict[str, Any], answer: Answer) -> None:
        """Take request NAME. Raises KeyError, TypeError or ValueError if it makes no sense."""
        database = str(content["database"])
        match content["action"]:
            case "hold":
                until = monotonic() + HOLD_S
                self._repairs.hold(database, until)
                self._holds[name] = database, until, answer
            case "send":
                uuid = UUID(content["repair"])
                self._repairs.take(uuid)
                self._wanted.setdefault(uuid, []).append(answer)
            case "release":
                self._repairs.let_go(database)
                answer({"released": True})
            case other:
                raise ValueError(other)

    def _tell(self, uuid: UUID, database: str | None, outcome: RepairOutcome) -> None:
        self._asked.discard(uuid)
        if database is not None:
            self._repairs.let_go(database)
        for answer in self._wanted.pop(uuid, ()):
            answer(outcome._asdict())

    def turn(self, now: float) -> None:
        """Answer holds that have taken effect, and have sent what a former shipper left."""
        # In the order in which they were made; the others are gone, and that is the answer.
        for uuid in dict.fromkeys([*self._repairs.waiting, *self._wanted]):
            if uuid not in self._asked:
                self._asked.add(uuid)
                database = self._repairs.database_of(uuid)
                tell = partial(self._tell, uuid, database)
                self._delivery.late.ask_repair(uuid, tell)
        for name, (database, until, answer) in list(self._holds.items()):
            if self._delivery.is_at_rest(database):
                del self._holds[name]
                self._repairs.hold(database, now + HOLD_S)
                answer({"place": self._delivery.place_of(database)})
            elif now >= until:
                del self._holds[name]
                answer({"refused": "Kafka does not acknowledge this database's pending messages"})
