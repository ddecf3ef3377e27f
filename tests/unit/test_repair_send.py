"""Repairs without Kafka transactions: which events count as sent. Kafka and the journal are stubs;
tests/kafka/test_repair.py sends real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError

from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.shipper.delivery import repair
from firebird_cdc.journal.shipper.delivery.repair import RepairEvents, Repairs
from firebird_cdc.journal.shipper.delivery.resend import RedeliverySend

BAD, REFUSED, EVENTS = 2, 4, 5
MESSAGE = Message("topic", b"key", b"value", [])


class Change(SimpleNamespace):
    def _replace(self, pos: int) -> Change:
        return Change(pos=pos)


class Reader:
    """A journal of EVENTS changes, which can't be opened while ``is_broken``."""

    is_broken = False
    stamp = SimpleNamespace(epoch=0, sequence=1)
    header = SimpleNamespace(uuid=uuid4())

    def __init__(self, *_: object) -> None:
        if self.is_broken:
            raise OSError(24, "Too many open files")

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        pass

    def changes(self) -> Iterator[Change]:
        return (Change(pos=number) for number in range(1, EVENTS + 1))


class Client:
    """A producer that refuses event REFUSED once, as too large."""

    def __init__(self) -> None:
        self._held: list[tuple[bytes, Any]] = []
        self._is_refusing = True

    def produce(self, _topic: str, value: bytes, *_: Any, on_delivery: Any, **__: Any) -> None:
        self._held.append((value, on_delivery))

    def answer(self) -> None:
        held, self._held = self._held, []
        for value, report in held:
            is_refused = self._is_refusing and value == b"%d" % REFUSED
            report(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE) if is_refused else None, None)
        self._is_refusing = False


def _messages(change: Change) -> list[Message]:
    if change.pos == BAD:
        raise BadEvent(BAD, "it can't be rendered")
    return [Message("topic", b"key", b"%d" % change.pos, [])]


def _plan(
    monkeypatch: pytest.MonkeyPatch, directory: Path, messages: Callable[[Change], list[Message]]
) -> Any:
    for name, stub in (
        ("JournalReader", Reader),
        ("check_count", lambda *_: None),
        ("seen_of", lambda *_: ()),
        ("counted_as", lambda _: ("table", "u")),
    ):
        monkeypatch.setattr(repair, name, stub)
    headers = SimpleNamespace(header_writer=SimpleNamespace(told=lambda _: b"{}"))
    renderer = SimpleNamespace(messages=messages)
    return SimpleNamespace(
        directory=directory,
        none_charset="UTF-8",
        renderer=SimpleNamespace(journal=lambda *_, **__: renderer, writer=headers),
        quarantine=SimpleNamespace(see=lambda *_, **__: None, flush=lambda: None),
        failure_of=lambda error, _: error,
        unacked=0,
        acknowledged=0,
    )


def _repair(without: Callable[[set[int]], None]) -> Any:
    return SimpleNamespace(
        uuid=uuid4(),
        database="/srv/fb/warehouse.fdb",
        events=[((0, number),) for number in range(1, EVENTS + 1)],
        origins=[SimpleNamespace(header=Reader.header, stamp=Reader.stamp)],
        is_original=lambda _: True,
        header_of=lambda *_: {},
        without=without,
    )


@pytest.mark.parametrize("is_broken", [True, False], ids=["unreadable", "readable"])
def test_event_that_was_never_sent_does_not_count_as_sent_once_the_journal_cannot_be_read_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_broken: bool
) -> None:
    plan = _plan(monkeypatch, tmp_path, _messages)
    left_out: list[set[int]] = []
    made = _repair(left_out.append)
    repairs = Repairs(plan, lambda _: True, lambda _: None)
    client: Any = Client()
    send = RedeliverySend(plan, RepairEvents(plan, made, repairs.files))
    send.produce(client)
    client.answer()
    assert send.wants_care
    careful = send.again(is_aborted=False)
    monkeypatch.setattr(Reader, "is_broken", is_broken)
    while not careful.is_over:
        careful.produce(client)
        client.answer()
    _, outcome = repairs.finish(careful, is_aborted=False)
    assert outcome.taken == ([1, 3] if is_broken else [1, 3, 4, 5])
    assert left_out == [{1, 2, 3, 4, 5} - {*outcome.taken}]


def test_event_of_which_the_options_send_nothing_does_not_count_as_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As of a transform that drops it: another repair may send it, once that is set right."""
    plan = _plan(monkeypatch, tmp_path, lambda change: [] if change.pos == BAD else [MESSAGE])
    left_out: list[set[int]] = []
    repairs = Repairs(plan, lambda _: True, lambda _: None)
    client: Any = Client()
    send = RedeliverySend(plan, RepairEvents(plan, _repair(left_out.append), repairs.files))
    while not send.is_over:
        send.produce(client)
        client.answer()
    _, outcome = repairs.finish(send, is_aborted=False)
    assert not outcome.is_sent
    assert outcome.taken == [1, 3, 4, 5]
    assert outcome.problems == {BAD: "by the options in force nothing of it is sent"}
    assert left_out == [{BAD}]
