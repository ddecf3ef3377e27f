"""Batches of a snapshot that are no longer wanted while messages of theirs are on their way."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from confluent_kafka import KafkaError

from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.shipper.delivery.redelivery import Redelivery
from firebird_cdc.journal.shipper.delivery.resend import Outcome, RedeliverySend, Rendered

_MESSAGES = 3


class Events:
    """Some messages of one batch."""

    uuid = uuid4()
    path = Path("ITEM")
    database = "/srv/shop.fdb"
    reached = 0

    def rendered(self) -> Generator[Rendered, None, None]:
        for number in range(1, _MESSAGES + 1):
            yield Rendered(number, ("ITEM", "r"), [Message("topic", b"key", b"value", [])])


class Client:
    """A producer that answers when it is told to."""

    def __init__(self) -> None:
        self._held: list[Any] = []

    def produce(self, *_: Any, on_delivery: Any, **__: Any) -> None:
        self._held.append(on_delivery)

    def answer(self, error: KafkaError | None = None) -> None:
        held, self._held = self._held, []
        for report in held:
            report(error, None)


def _plan() -> Any:
    return SimpleNamespace(
        failure_of=lambda error, _: error, unacked=0, acknowledged=0, failures=0, statistics=None
    )


def _under_way(plan: Any, heard: list[Outcome]) -> tuple[Redelivery, Client]:
    redelivery = Redelivery(plan, SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    events: Any = Events()
    owner: Any = SimpleNamespace(title="")
    redelivery.ask_batch(events.uuid, owner, lambda: RedeliverySend(plan, events), heard.append)
    client: Any = Client()
    redelivery.advance(client)
    assert plan.unacked == _MESSAGES
    redelivery.cancel(events.uuid)
    return redelivery, client


def test_late_answers_show_that_kafka_is_there_and_count_for_nothing_else() -> None:
    plan, heard = _plan(), list[Outcome]()
    redelivery, client = _under_way(plan, heard)
    # As long as they are under way, somebody has to look for answers.
    assert plan.unacked == _MESSAGES
    assert not redelivery.is_busy
    client.answer()
    assert (plan.unacked, plan.acknowledged) == (0, _MESSAGES)
    assert not heard


def test_late_failures_are_no_sign_of_life() -> None:
    plan, heard = _plan(), list[Outcome]()
    _, client = _under_way(plan, heard)
    client.answer(KafkaError(KafkaError._MSG_TIMED_OUT))
    assert (plan.unacked, plan.acknowledged) == (0, 0)
    assert not heard


def test_answers_of_a_producer_that_is_gone_are_not_waited_for() -> None:
    plan, heard = _plan(), list[Outcome]()
    redelivery, client = _under_way(plan, heard)
    redelivery.start_over()
    assert plan.unacked == 0
    client.answer()
    assert (plan.unacked, plan.acknowledged) == (0, 0)
