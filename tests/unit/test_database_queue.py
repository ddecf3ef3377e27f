"""State that is kept of one database's delivery, and of the journals that Kafka has."""

from __future__ import annotations

import gc
import os
import time
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import logbook
import pytest

from firebird_cdc.config import load_config
from firebird_cdc.errors import ShipError, TopicUnavailable
from firebird_cdc.journal.shipper.delivery import database_queue, kafka_transaction
from firebird_cdc.journal.shipper.delivery.base import DeliveryLimits
from firebird_cdc.journal.shipper.delivery.database_queue import DatabaseQueue
from firebird_cdc.journal.shipper.delivery.sending import SendContext
from firebird_cdc.journal.shipper.delivery.transactional import TransactionalDelivery
from firebird_cdc.journal.shipper.inbox.queue import Entry, Queue
from firebird_cdc.journal.shipper.kafka import offset_topic
from firebird_cdc.journal.shipper.kafka.client import KafkaLink
from firebird_cdc.journal.shipper.kafka.offset_topic import Known, Names, Offset, Run, runs_of
from firebird_cdc.journal.shipper.local_offsets import Shipped
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics

DATABASE = "/srv/a.fdb"


@pytest.fixture
def plan(tmp_path: Path) -> SendContext:
    """A plan by which nothing is rendered."""
    renderer: Any = None
    return SendContext(tmp_path, renderer, "UTF8", "fail", Statistics())


def _nothing_is_missing(*missing: object) -> None:
    pytest.fail(f"told as missing: {missing}")


def _is_ready(queue: DatabaseQueue, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Tell whether QUEUE goes on, once what is missing has had its time to come."""
    later = iter(range(10, 1000, 10))
    monkeypatch.setattr(database_queue, "monotonic", lambda: next(later))
    return any(queue.ready(scans, 0, False) for scans in range(5))


def entries(first: int, count: int) -> list[Entry]:
    return [Entry(0, sequence, uuid4()) for sequence in range(first, first + count)]


def test_cluster_without_the_beginning_of_a_journal_gets_all_of_it(plan: SendContext) -> None:
    (entry,) = entries(4, 1)
    queue = DatabaseQueue(DATABASE, Queue(), 1.0, _nothing_is_missing)
    queue.backlog.push(entry)
    half = Offset(DATABASE, 0, 4, entry.uuid, 1000, complete=False, shipped_us=0)
    queue.stand(Known(half))
    assert queue.begin(plan).resume_after == 1000
    queue.start_over()
    queue.stand(None)  # a broker came back without its disk
    assert queue.begin(plan).resume_after == 0


@pytest.mark.parametrize("is_dropped", [False, True])
def test_partly_sent_epoch_is_not_announced_again(plan: SendContext, is_dropped: bool) -> None:
    queue = DatabaseQueue(DATABASE, Queue(), 1.0, _nothing_is_missing)
    queue.stand(Known(Offset(DATABASE, 0, 9, uuid4(), 1, complete=True, shipped_us=0)))
    first, second = Entry(1, 2, uuid4()), Entry(1, 3, uuid4())  # the very first one was lost
    queue.backlog.push(first)
    queue.backlog.push(second)
    send = queue.begin(plan)
    assert send.opens_epoch
    queue.advance(Offset(DATABASE, 1, 2, first.uuid, 500, complete=False, shipped_us=0))
    if is_dropped:
        queue.drop(send)
    else:
        queue.start_over()
        assert not queue.begin(plan).opens_epoch
    assert not queue.begin(plan).opens_epoch


def test_resent_journals_of_the_previous_epoch_report_no_gap(
    plan: SendContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = DatabaseQueue(DATABASE, Queue(), 1.0, _nothing_is_missing)
    queue.stand(Known(Offset(DATABASE, 0, 54, uuid4(), 1, complete=True, shipped_us=0)))
    for entry in [*entries(55, 3), Entry(1, 1, uuid4())]:
        queue.backlog.push(entry)
        queue.begin(plan)
    queue.start_over()
    for _ in range(4):
        assert _is_ready(queue, monkeypatch)
        queue.begin(plan)


def test_leftover_journal_of_an_epoch_before_the_offset_reports_no_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = DatabaseQueue(DATABASE, Queue(), 1.0, _nothing_is_missing)
    queue.stand(Known(Offset(DATABASE, 1, 1, uuid4(), 1, complete=True, shipped_us=0)))
    queue.backlog.push(Entry(0, 57, uuid4()))
    assert _is_ready(queue, monkeypatch)


@pytest.mark.parametrize(
    ("passed", "is_foreign", "missing"),
    [
        (None, False, [((0, 5), (0, 6))]),
        ((0, 3), False, [((0, 5), (0, 6))]),
        ((0, 5), False, [((0, 6), (0, 6))]),
        ((0, 6), False, []),
        (None, True, []),
    ],
)
def test_only_unreported_gaps_of_this_folder_are_reported(
    monkeypatch: pytest.MonkeyPatch,
    passed: tuple[int, int] | None,
    is_foreign: bool,
    missing: list[tuple[tuple[int, int], tuple[int, int]]],
) -> None:
    told = []
    queue = DatabaseQueue(DATABASE, Queue(), 1.0, lambda _, missed: told.append(missed))
    position = Offset(DATABASE, 0, 4, uuid4(), 1, complete=True, shipped_us=0)
    queue.stand(Known(position), passed, is_foreign=is_foreign)
    queue.backlog.push(Entry(0, 7, uuid4()))
    assert _is_ready(queue, monkeypatch)
    assert told == missing


def test_without_offsets_a_reported_gap_is_not_reported_again(
    plan: SendContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = DatabaseQueue(DATABASE, Queue(), 1.0, _nothing_is_missing)
    queue.stand(None, (0, 3))
    for entry in [*entries(1, 2), *entries(4, 1)]:
        queue.backlog.push(entry)
    for _ in range(3):
        assert _is_ready(queue, monkeypatch)
        queue.begin(plan)


def test_names_of_single_journals_are_kept_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_topic, "NAMED_JOURNALS", 1000)
    names = Names()
    known = entries(1, 2500)
    for entry in known:
        names.add(runs_of([entry]))
    assert len(names._runs) < 100
    for entry in known[-1000:]:
        assert names.find(0, entry.sequence) == {entry.uuid.bytes}
    assert sum(bool(names.find(0, entry.sequence)) for entry in known) < 1200


def test_number_that_was_used_again_in_a_longer_run_is_found() -> None:
    names = Names()
    names.add([Run(0, 10, uuid4().bytes * 3)])
    again = entries(1, 20)
    names.add(runs_of(again))
    assert names.find(0, 5) == {again[4].uuid.bytes}
    assert names.find(0, 10) > {again[9].uuid.bytes}


class _Asker:
    """Somebody whom the client is to tell what became of a message."""

    def answer(self, error: Any, message: Any) -> None:
        """Nothing of interest."""


def test_replaced_producer_releases_its_callbacks(tmp_path: Path) -> None:
    config = tmp_path / "connector.yaml"
    config.write_text(
        f"connector.name: c\nconnector.journal.directory: {tmp_path}\nkafka.topic.prefix: p\n"
        "kafka.producer.bootstrap.servers: 127.0.0.1:1\n"
    )
    link = KafkaLink(load_config(config), Statistics())
    asker = _Asker()
    for _ in range(100):
        link.producer.produce("t", b"", on_delivery=asker.answer)
    gone = weakref.ref(asker)
    link.recreate()
    del asker
    gc.collect()
    assert gone() is None


def test_unwritable_identity_of_a_folder_ends_the_shipper(tmp_path: Path) -> None:
    (tmp_path / ".firebird-cdc").write_text("no folder")
    with pytest.raises(ShipError, match="can't be saved"):
        Shipped(tmp_path, "positions")


def test_identity_of_a_folder_is_on_disk_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink())
    )
    Shipped(tmp_path, "positions")
    folder = tmp_path / ".firebird-cdc/shipped"
    content, name = synced[-2:]  # before that, the names of the folders above
    assert (content.parent, name) == (folder, folder)


@pytest.fixture
def delivery(plan: SendContext) -> TransactionalDelivery:
    """A delivery without Kafka."""
    anything: Any = Mock()
    return TransactionalDelivery(
        anything, plan, anything, None, anything, DeliveryLimits(), transaction_timeout_s=60.0,
        max_message_bytes=1_000_000, should_leave=anything, take_notified=anything,
    )  # fmt: skip


def test_log_tells_once_each_reason_why_a_journal_waits(
    plan: SendContext, delivery: TransactionalDelivery
) -> None:
    queue = DatabaseQueue(DATABASE, Queue(), 1.0, _nothing_is_missing)
    queue.backlog.push(*entries(1, 1))
    reasons = [TopicUnavailable("topic t is missing, and being made")] * 2
    reasons += [TopicUnavailable("topic t is missing and can't be made")] * 2
    with logbook.TestHandler() as told:
        for why in reasons:
            delivery.back_off(queue, why, queue.begin(plan))
            queue.start_over()
    assert ["can't be made" in record.message for record in told.records] == [False, True]


def test_sleep_of_the_machine_counts_as_age_of_a_transaction(
    delivery: TransactionalDelivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery._begin()
    assert not delivery._transaction.may_have_expired
    monkeypatch.setattr(
        kafka_transaction, "clock_gettime", lambda clock: time.clock_gettime(clock) + 3600
    )
    assert delivery._transaction.may_have_expired
