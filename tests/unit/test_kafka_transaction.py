"""The pause between two Kafka transactions, and what joins the one that was begun."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from firebird_cdc.journal.shipper.delivery import kafka_transaction
from firebird_cdc.journal.shipper.delivery.kafka_transaction import EndingPause, KafkaTransaction


class Clock:
    """Seconds that pass by sleeping alone, and how long each sleep was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        monkeypatch.setattr(kafka_transaction, "monotonic", lambda: self.now)
        monkeypatch.setattr(kafka_transaction, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def transaction(self, before_s: float, answers_s: float) -> KafkaTransaction:
        """Return one whose first messages take BEFORE_S, and whose answers come ANSWERS_S later."""
        plan: Any = SimpleNamespace(failures=0, acknowledged=0)
        transaction = KafkaTransaction(60.0, plan)
        self.sleep(before_s)
        transaction.await_joining()
        self.sleep(answers_s)
        transaction.note_answers()
        return transaction

    def pause_behind(self, pause: EndingPause, transaction: KafkaTransaction) -> float:
        pause.begin(transaction)
        pause.await_end()
        return round(self.slept[-1], 6)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_pause_grows_where_kafka_refuses_to_begin_and_shrinks_again(clock: Clock) -> None:
    pause = EndingPause()
    prompt = [clock.pause_behind(pause, clock.transaction(0.0001, 0.003)) for _ in range(3)]
    refused = [clock.pause_behind(pause, clock.transaction(0.0001, 0.024)) for _ in range(9)]
    after = [clock.pause_behind(pause, clock.transaction(0.0001, 0.003)) for _ in range(3000)]
    assert prompt == [0.001] * 3
    assert refused == sorted(refused)
    assert refused[0] > 0.001
    assert refused[-1] == refused[-2] <= 0.005
    assert after == sorted(after, reverse=True)
    assert after[-1] == 0.001


def test_large_transaction_that_takes_long_is_not_taken_for_a_refusal(clock: Clock) -> None:
    assert clock.pause_behind(EndingPause(), clock.transaction(0.2, 0.3)) == 0.001


def test_no_journal_joins_a_transaction_that_the_client_has_announced(clock: Clock) -> None:
    plan: Any = SimpleNamespace(failures=0, acknowledged=0)
    transaction = KafkaTransaction(60.0, plan)
    clock.sleep(0.0001)
    assert transaction.await_joining()
    assert clock.now < 1000.001
    assert not transaction.await_joining()
