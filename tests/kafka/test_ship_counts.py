"""Counts of shipped events: they are what Kafka has, and no database is well during an outage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import time
from uuid import UUID

import pytest
from confluent_kafka import KafkaError, KafkaException
from gate import Gate
from seen import Seen, seen_of
from shipping import (
    DATABASE,
    ITEM,
    WAYS,
    Folder,
    SharingServer,
    Ship,
    Shipper,
    either_way,
    read_topics,
    use_transactions,
)
from soaked import few_of

from firebird_cdc.config import load_config
from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.journal.format import JournalWriter
from firebird_cdc.journal.shipper import loop as ship_module
from firebird_cdc.journal.shipper.delivery import transactional as transactions
from firebird_cdc.journal.shipper.delivery.base import Delivery
from firebird_cdc.journal.shipper.delivery.transactional import TransactionalDelivery
from firebird_cdc.journal.shipper.kafka.client import KafkaLink
from firebird_cdc.journal.shipper.monitoring.report import Reporter
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics

pytestmark = pytest.mark.kafka

BAD = "/srv/fb/bad.fdb"


def write(folder: Folder, sequence: int, rows: int, age_s: float, database: str = DATABASE) -> Path:
    """Add a journal of ROWS inserts that was committed AGE_S ago."""

    def fill(writer: JournalWriter) -> None:
        table = writer.table("ITEM", ITEM)
        for number in range(rows):
            writer.insert(table, (sequence * 1_000_000 + number, "x"))

    commit_us = int((time() - age_s) * 1e6)
    return folder.write_changes(sequence, fill, commit_us=commit_us, database=database)


def _tells_nothing_shipped(shipper: Shipper, seen: Seen, oldest_s: float) -> None:
    shipper.await_that(lambda: seen.row().get("pending") == 2, "two journals that wait")
    shipper.await_that(lambda: "kafka" in seen.troubles, "the trouble")
    row = seen.row()
    assert row["state"] == "waiting" and row["lag_s"] >= oldest_s
    assert row["tables"] == [] and seen.events == 0
    seen.await_metric(shipper, "events_total", lambda value: value == 0)
    seen.await_metric(shipper, "shipping_lag_seconds", lambda value: value >= oldest_s)
    seen.await_metric(shipper, "streaming_lag_milliseconds", lambda value: value >= oldest_s * 1000)
    text = seen.status()
    assert "shipped   0 events, 0 transactions" in text
    assert (
        "state    degraded, retrying automatically" in text
        and "2 transactions, the oldest for" in text
    )


def _await_well(shipper: Shipper, seen: Seen) -> None:
    """Wait until the report says that nothing waits, nor that anything is wrong."""
    shipper.await_that(lambda: seen.row()["pending"] == 0, "nothing to wait")
    shipper.await_that(lambda: seen.row()["state"] == "well", "a database that is well")


@either_way
def test_nothing_counts_before_kafka_has_it(
    make_ship: Callable[[str], Ship],
    folder: Folder,
    broker_gate: Gate,
    topic_prefix: str,
    transactional: bool,
) -> None:
    ship = make_ship(f"127.0.0.1:{broker_gate.port}")
    use_transactions(ship, topic_prefix, transactional)
    seen = seen_of(ship, folder)
    write(folder, 1, 3, age_s=300)
    write(folder, 2, 4, age_s=200)
    shipper = ship.start()
    _tells_nothing_shipped(shipper, seen, 300)
    broker_gate.open()
    shipper.await_that(lambda: seen.events == 7, "all events in Kafka")
    _await_well(shipper, seen)
    assert seen.row()["lag_s"] == 0
    seen.await_metric(shipper, "events_total", lambda value: value == 7)
    seen.await_metric(shipper, "shipping_lag_seconds", lambda value: value == 0)
    seen.await_metric(shipper, "delivery_latency_seconds", lambda value: value >= 200)
    assert "state    well" in seen.status()
    shipper.terminate()


@pytest.mark.parametrize("transactional", few_of(WAYS, ["plain"]))
def test_database_is_unwell_in_an_outage_and_each_event_counts_once_after_it(
    make_ship: Callable[[str], Ship],
    folder: Folder,
    own_broker: KafkaBroker,
    topic_prefix: str,
    transactional: bool,
) -> None:
    ship = make_ship(own_broker.bootstrap)
    ship.options["kafka.producer.request.timeout.ms"] = "1000"
    ship.options["kafka.producer.socket.timeout.ms"] = "2000"
    use_transactions(ship, topic_prefix, transactional)
    seen = seen_of(ship, folder)
    write(folder, 1, 5, age_s=0)
    shipper = ship.start()
    shipper.await_that(lambda: seen.events == 5, "all events in Kafka")
    with own_broker.stopped():
        write(folder, 2, 700, age_s=0)
        write(folder, 3, 800, age_s=0)
        # The outage may be noticed before the journals are.
        shipper.await_that(
            lambda: (seen.row()["state"], seen.row()["pending"]) == ("waiting", 2),
            "a database of which two journals wait",
        )
        assert seen.events == 5
        seen.await_metric(shipper, "events_total", lambda value: value == 5)
        assert "5 events, 1 transaction" in seen.status()
    shipper.await_that(lambda: not folder.waiting, "all journals shipped")
    shipper.await_that(lambda: seen.events >= 1505, "all events in Kafka")
    _await_well(shipper, seen)
    shipper.terminate()
    assert seen.events == 1505
    events = read_topics(own_broker.bootstrap, topic_prefix)[
        f"{topic_prefix}._srv_fb_warehouse.fdb.ITEM"
    ]
    assert len({event.position for event in events}) == 1505


def test_journals_committed_during_a_kafka_outage_are_reported_as_backlog(
    make_ship: Callable[[str], Ship], folder: Folder, own_broker: KafkaBroker, topic_prefix: str
) -> None:
    ship = make_ship(own_broker.bootstrap)
    use_transactions(ship, topic_prefix, transactional=True)
    seen = seen_of(ship, folder)
    write(folder, 1, 1, age_s=0)
    shipper = ship.start()
    shipper.await_that(lambda: seen.events == 1, "an event in Kafka")
    own_broker.kill()
    write(folder, 2, 1, age_s=0)
    shipper.await_that(lambda: "kafka" in seen.troubles, "the trouble")
    for sequence in range(3, 10):
        write(folder, sequence, 1, age_s=0)
    shipper.await_that(lambda: seen.row()["pending"] == 8, "all that was committed to wait")
    own_broker.start()
    shipper.await_that(lambda: seen.events == 9, "all events in Kafka")
    shipper.terminate()


@pytest.mark.parametrize("transactional", few_of(WAYS, ["tx"]))
def test_transactions_of_an_open_journal_committed_during_a_kafka_outage_are_backlog(
    make_ship: Callable[[str], Ship],
    folder: Folder,
    own_broker: KafkaBroker,
    topic_prefix: str,
    transactional: bool,
) -> None:
    ship = make_ship(own_broker.bootstrap)
    use_transactions(ship, topic_prefix, transactional)
    seen = seen_of(ship, folder)
    server = SharingServer(folder)
    journal = server.open()
    server.write(journal)
    server.publish()
    shipper = ship.start()
    shipper.await_that(lambda: seen.events == 1, "an event in Kafka")
    shipper.await_that(lambda: seen.row()["pending"] == 0, "nothing to wait")
    own_broker.kill()
    server.write(journal)
    server.publish()
    shipper.await_that(lambda: "kafka" in seen.troubles, "the trouble")
    for _ in range(7):
        server.write(journal)
        server.publish()
    shipper.await_that(lambda: seen.row()["pending"] == 8, "all that was committed to wait")
    server.close(journal)
    journal = server.open()
    server.write(journal)
    server.publish()
    shipper.await_that(lambda: seen.row()["pending"] == 9, "what came in another journal, too")
    own_broker.start()
    shipper.await_that(lambda: seen.events == 10, "all events in Kafka")
    shipper.await_that(lambda: seen.row()["pending"] == 0, "nothing to wait")
    shipper.terminate()
    server.end()


def test_journal_that_halts_its_database_counts_as_backlog(ship: Ship, folder: Folder) -> None:
    seen = seen_of(ship, folder)
    write(folder, 1, 2, age_s=0, database=BAD)
    journal = write(folder, 2, 5, age_s=100, database=BAD)
    content = bytearray(journal.read_bytes())
    content[-30] ^= 0xFF
    journal.write_bytes(content)
    write(folder, 1, 3, age_s=0)
    shipper = ship.start()
    shipper.await_log("shipping paused")
    shipper.await_that(lambda: seen.row(BAD).get("state") == "halted", "a database that stands")
    shipper.await_that(lambda: seen.row(BAD)["pending"] == 1, "its journal to wait")
    assert seen.row(BAD)["lag_s"] >= 100
    seen.await_metric(shipper, "journals_pending", lambda value: value == 1, BAD)
    seen.await_metric(shipper, "shipping_lag_seconds", lambda value: value >= 100, BAD)
    shipper.await_that(lambda: seen.row().get("state") == "well", "the other one well")
    shipper.terminate()


def _run_here(ship: Ship, monkeypatch: pytest.MonkeyPatch, retry: str = "") -> Statistics:
    """Run ``ship --once`` in this process, and have journal RETRY of the quarantine sent again; the
    answer to the first commit of a Kafka transaction is lost. Return what was counted."""
    repeat, make = TransactionalDelivery._repeat, ship_module.Shipper._make_delivery
    unanswered, outcomes = [], []

    def without_an_answer(self: TransactionalDelivery, call: Callable[[float], None]) -> None:
        repeat(self, call)
        if call.__name__ == "commit_transaction" and not unanswered:
            unanswered.append(call)
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "the answer was lost"))

    def asking(self: ship_module.Shipper, link: KafkaLink) -> Delivery:
        delivery = make(self, link)
        if retry:
            delivery.redelivery.ask(UUID(retry), outcomes.append, is_forced=False)
        return delivery

    with monkeypatch.context() as patch:
        patch.setattr(TransactionalDelivery, "_repeat", without_an_answer)
        patch.setattr(ship_module.Shipper, "_make_delivery", asking)
        shipper = ship_module.Shipper(load_config(ship.write_config()), once=True)
        assert shipper.run() == 0
    assert unanswered and all(outcome.is_sent for outcome in outcomes)
    return shipper.statistics


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
def test_events_of_a_kafka_transaction_found_committed_count_once(
    ship: Ship,
    folder: Folder,
    topic_prefix: str,
    broker: KafkaBroker,
    monkeypatch: pytest.MonkeyPatch,
    split: bool,
) -> None:
    use_transactions(ship, topic_prefix, True)
    if split:
        monkeypatch.setattr(transactions, "SPLIT_MESSAGES", 1000)
    folder.write(1, 2200)
    folder.write(2, 3)
    statistics = _run_here(ship, monkeypatch)
    database = statistics.database(DATABASE)
    assert database.events == {("ITEM", "c"): 2203}
    assert (database.transactions, database.journals_shipped) == (2, 2)
    events = read_topics(broker.bootstrap, topic_prefix)[
        f"{topic_prefix}._srv_fb_warehouse.fdb.ITEM"
    ]
    assert len(events) == 2203
    assert Reporter(load_config(ship.write_config()), statistics).report()["totals"]["events"] == (
        2203
    )


def test_redelivery_of_a_kafka_transaction_found_committed_counts_once(
    ship: Ship,
    folder: Folder,
    topic_prefix: str,
    broker: KafkaBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_transactions(ship, topic_prefix, True)
    ship.options["event.processing.failure.handling.mode"] = "skip"
    ship.options["kafka.producer.max.request.size"] = "20000"
    journal = folder.write(1, 1, name="x" * 30_000)
    folder.write(2, 2)
    database = _run_here(ship, monkeypatch).database(DATABASE)
    assert database.events == {("ITEM", "c"): 2}
    assert (database.transactions, database.journals_shipped) == (1, 1)  # the other lacks an event
    del ship.options["kafka.producer.max.request.size"]
    database = _run_here(ship, monkeypatch, journal.stem).database(DATABASE)
    assert database.events == {("ITEM", "c"): 1}
    events = read_topics(broker.bootstrap, topic_prefix)[
        f"{topic_prefix}._srv_fb_warehouse.fdb.ITEM"
    ]
    assert sorted(event.position for event in events) == [(1, 1), (2, 1), (2, 2)]
