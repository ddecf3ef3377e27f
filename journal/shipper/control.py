"""The shipper's side of ``firebird-cdc journal retry`` and ``firebird-cdc replay repair``.

What they ask for comes as requests (``journal.shipper.requests``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import UUID

import logbook

from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.shipper.delivery.base import Delivery
from firebird_cdc.journal.shipper.delivery.database_queue import DatabaseQueue
from firebird_cdc.journal.shipper.delivery.repair import RepairOutcome
from firebird_cdc.journal.shipper.delivery.resend import Outcome
from firebird_cdc.journal.shipper.quarantine import in_order
from firebird_cdc.journal.shipper.requests import RETRIES, Request, RequestFolder

_log = logbook.Logger("firebird_cdc.journal.shipper.control")

_LOOK_S = 1.0

HOLD_S = 20.0
"""Longest time for which a database is held for a command that doesn't come back."""

Answer = Callable[[dict[str, Any]], object]
"""Takes what the command is told, as JSON."""


@dataclass(slots=True)
class _Retry:
    """A retry that is under way, and its outcomes so far."""

    request: Request
    wanted: list[str]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    tried: list[tuple[DatabaseQueue, tuple[int, int]]] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return not self.tried and all(each in self.outcomes for each in self.wanted)


class RetryControl:
    """Takes requests and answers them; a periodic task of the shipping thread."""

    def __init__(self, journals: Path, delivery: Delivery) -> None:
        self._folder = RequestFolder(journals / STATE_DIRECTORY / RETRIES)
        self._delivery = delivery
        self._retries: dict[str, _Retry] = {}
        self._repairs = RepairControl(delivery)

    def turn(self, now: float) -> float:
        """Look for requests, and answer those that are done."""
        for request in self._folder.look():
            try:
                self._take(request)
            except OSError:
                if request.key not in self._retries:
                    self._folder.postpone(request)
                raise
        for retry in list(self._retries.values()):
            self._follow(retry, now)
            self._answer_if_done(retry)
        self._repairs.turn(now)
        return now + _LOOK_S

    def close(self) -> None:
        """Leave what is not answered as a request, for the next shipper."""

    def _take(self, request: Request) -> None:
        try:
            content = request.content()
            if "repair" in content:
                answer = partial(self._folder.answer, request)
                self._repairs.take(request.key, content["repair"], answer)
                return
            wanted = [UUID(text) for text in content["journals"]]
            is_forced, is_all = bool(content["force"]), bool(content["all"])
        except (ValueError, KeyError, TypeError) as error:
            _log.error("{}: not a valid request, so it is deleted: {!r}", request.path, error)
            self._folder.drop(request)
            return
        _log.info("retry requested: {}", request.path.name)
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
        retry = self._retries[request.key] = _Retry(request, [])
        left_out = [uuid for uuid in wanted if uuid not in halted]
        if is_all or len(left_out) < len(wanted) or not wanted:
            retry.tried = delivery.try_again()
        retry.wanted = [str(uuid) for uuid in left_out]
        for uuid in left_out:
            note = partial(self._note_outcome, retry, str(uuid))
            delivery.redelivery.ask(uuid, note, is_forced=is_forced)

    def _note_outcome(self, retry: _Retry, name: str, outcome: Outcome) -> None:
        retry.outcomes[name] = outcome
        self._answer_if_done(retry)

    @staticmethod
    def _follow(retry: _Retry, now: float) -> None:
        """See what became of the databases that were to go on."""
        for queue, place in list(retry.tried):
            first = queue.first_place
            if queue.halt is not None:
                outcome = Outcome(False, f"paused again: {queue.halt.reason}")
            elif first is None or first > place:
                outcome = Outcome(True, "shipping resumed")
            elif queue.setback and queue.setback.why and queue.backoff.retry_at > now:
                outcome = Outcome(False, f"still not delivered: {queue.setback.why}")
            else:
                continue
            retry.tried.remove((queue, place))
            retry.outcomes[queue.database] = outcome

    def _answer_if_done(self, retry: _Retry) -> None:
        if retry.is_done and self._retries.pop(retry.request.key, None) is not None:
            answer = {name: list(outcome) for name, outcome in retry.outcomes.items()}
            self._folder.answer(retry.request, answer)


class RepairControl:
    """Takes what the command asks for. A part of ``RetryControl``, which finds the requests."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._repairs = delivery.redelivery.repairs
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
                self._delivery.redelivery.ask_repair(uuid, tell)
        for name, (database, until, answer) in list(self._holds.items()):
            if self._delivery.is_at_rest(database):
                del self._holds[name]
                self._repairs.hold(database, now + HOLD_S)
                answer({"place": self._delivery.place_of(database)})
            elif now >= until:
                del self._holds[name]
                answer({"refused": "Kafka does not acknowledge this database's pending messages"})
