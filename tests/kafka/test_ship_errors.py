"""Refusals by Kafka: the shipper waits, says so, and goes on by itself once the cause is mended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from time import monotonic

import logbook
import pytest
from broker_topics import delete_topics
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from shipping import DATABASE, PATIENCE_S, Folder, Ship, Shipper, either_way, ids, read_topics

from firebird_cdc.cli import main
from firebird_cdc.config import load_config
from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.journal.shipper.kafka.client import KafkaLink, producer_settings
from firebird_cdc.journal.shipper.kafka.offset_topic import OffsetReader

pytestmark = pytest.mark.kafka

OTHER = "/srv/fb/other.fdb"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, kafka_jars: Path) -> Iterator[KafkaBroker]:
    """A broker that asks access control lists, which allow everything until a test denies it."""
    broker = KafkaBroker(tmp_path_factory.mktemp("guarded") / "kafka", kafka_jars)
    broker.directory.mkdir(parents=True, exist_ok=True)
    broker._format()
    with broker._configuration.open("a") as file:
        file.write(
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
            "allow.everyone.if.no.acl.found=true\n"
        )
    with broker:
        yield broker


@contextmanager
def denied(
    broker: KafkaBroker, kind: ResourceType, name: str, operation: AclOperation
) -> Iterator[None]:
    """Nobody may do OPERATION with NAME meanwhile; all else is allowed."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def binding(what: AclOperation, permission: AclPermissionType) -> AclBinding:
        return AclBinding(
            kind, name, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", what, permission
        )

    bindings = [
        binding(AclOperation.ALL, AclPermissionType.ALLOW),
        binding(operation, AclPermissionType.DENY),
    ]
    for future in admin.create_acls(bindings).values():
        future.result(30)
    # The controller confirms what the broker is told of afterwards.
    mine = AclBindingFilter(
        kind, name, ResourcePatternType.LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    await_condition("it to be denied", lambda: len(_known(admin, mine)) == 2, PATIENCE_S)
    yield
    for future in admin.delete_acls([mine]).values():
        future.result(30)
    await_condition("it to be allowed", lambda: not _known(admin, mine), PATIENCE_S)


def _known(admin: AdminClient, bindings: AclBindingFilter) -> list[AclBinding]:
    """Return those of BINDINGS that the broker acts on."""
    found: list[AclBinding] = admin.describe_acls(bindings).result(30)
    return found


@pytest.fixture
def start(
    make_ship: Callable[[str], Ship], guarded: KafkaBroker, topic_prefix: str
) -> Callable[[bool], Ship]:
    """Return a maker of shippers to the guarded broker that try again soon."""

    def make(transactional: bool) -> Ship:
        ship = make_ship(guarded.bootstrap)
        ship.options["value.converter.schemas.enable"] = "false"
        if transactional:
            ship.options["kafka.producer.transactional.id"] = f"{topic_prefix}-id"
        return ship

    return make


@either_way
def test_topic_that_may_not_be_written_stops_its_own_database_until_it_may(
    start: Callable[[bool], Ship],
    guarded: KafkaBroker,
    folder: Folder,
    topic_prefix: str,
    transactional: bool,
) -> None:
    ship = start(transactional)
    topic = f"{topic_prefix}._srv_fb_warehouse.fdb.ITEM"
    with denied(guarded, ResourceType.TOPIC, topic, AclOperation.WRITE):
        kept = [folder.write(sequence) for sequence in (1, 2)]
        folder.write(1, database=OTHER)
        shipper = ship.start()
        assert "uthorization failed" in shipper.await_log(f"{DATABASE}: ")
        shipper.await_that(lambda: folder.waiting == sorted(kept), "the other database shipped")
        folder.write(2, database=OTHER)
        shipper.await_that(lambda: folder.waiting == sorted(kept), "and shipped on")
    shipper.await_that(lambda: not folder.waiting, "all shipped")
    assert shipper.terminate() == 0
    assert ids(read_topics(guarded.bootstrap, topic_prefix)[topic]) == [1_000_000, 2_000_000]


@pytest.mark.parametrize(
    ("kind", "name"),
    [(ResourceType.TRANSACTIONAL_ID, "{}-id"), (ResourceType.TOPIC, "__firebird-cdc-positions.{}")],
    ids=["transactional-id", "positions"],
)
def test_producer_that_is_refused_waits_until_it_is_allowed(
    start: Callable[[bool], Ship],
    guarded: KafkaBroker,
    folder: Folder,
    topic_prefix: str,
    kind: ResourceType,
    name: str,
) -> None:
    ship = start(True)
    with denied(guarded, kind, name.format(topic_prefix), AclOperation.WRITE):
        folder.write(1)
        shipper = ship.start()
        # Where an answer takes long, that is told first.
        shipper.await_that(lambda: _refusals(shipper), "the refusal is told")
        assert shipper.process.poll() is None
        assert len(folder.waiting) == 1
        assert len(_refusals(shipper)) == 1
    shipper.await_that(lambda: not folder.waiting, "shipped")
    shipper.await_log("answers again")
    assert shipper.terminate() == 0


def _refusals(shipper: Shipper) -> list[str]:
    told = shipper.log_lines("does not take messages")
    return [line for line in told if "uthorization failed" in line]


@either_way
def test_failed_kafka_client_is_replaced_after_a_pause(
    start: Callable[[bool], Ship],
    folder: Folder,
    monkeypatch: pytest.MonkeyPatch,
    transactional: bool,
) -> None:
    made, failed_at = 0, 0.0
    given_up: list[float] = []
    poll, make, note_away = KafkaLink.poll, KafkaLink._make, KafkaLink.note_away

    def failing(link: KafkaLink, seconds: float) -> None:
        nonlocal failed_at
        poll(link, seconds)
        if made < 4:
            failed_at = monotonic()
            link.fatal = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, fatal=True)

    def making(link: KafkaLink) -> Producer:
        nonlocal made
        made += 1
        return make(link)

    # The pause begins with the refusal: how long the old client then takes to end varies. What
    # the last client is told, such as that its coordinator still loads, is no failure of ours.
    def noting(link: KafkaLink, why: str, *, is_state: bool = True) -> None:
        if is_state and made < 4:
            given_up.append(failed_at)
        note_away(link, why, is_state=is_state)

    monkeypatch.setattr(KafkaLink, "poll", failing)
    monkeypatch.setattr(KafkaLink, "_make", making)
    monkeypatch.setattr(KafkaLink, "note_away", noting)
    folder.write(1)
    assert start(transactional).once_here() == 0
    assert folder.waiting == []
    assert made >= 4
    pauses = [after - before for before, after in pairwise(given_up)]
    assert len(pauses) >= 2
    assert all(pause >= 0.1 for pause in pauses)


def test_offset_topic_without_a_leader_yet_is_no_failure(
    start: Callable[[bool], Ship],
    folder: Folder,
    monkeypatch: pytest.MonkeyPatch,
    topic_prefix: str,
) -> None:
    find_end, refusals = OffsetReader._find_end, 0

    # What librdkafka says when it is asked for offsets too soon after a topic was made.
    def find_end_too_soon(reader: OffsetReader, seconds: float) -> int:
        nonlocal refusals
        end = find_end(reader, seconds)
        if refusals == 0:
            refusals += 1
            text = "Failed to query partition leaders: No leaders found"
            raise KafkaException(KafkaError(KafkaError._NOENT, text))
        return end

    monkeypatch.setattr(OffsetReader, "_find_end", find_end_too_soon)
    folder.write(1)
    with logbook.TestHandler() as told:
        assert start(True).once_here() == 0
    assert folder.waiting == []
    assert refusals == 1
    assert not told.has_errors


def test_denied_offset_topic_is_only_a_warning_without_transactions(
    start: Callable[[bool], Ship], guarded: KafkaBroker, folder: Folder, topic_prefix: str
) -> None:
    topic = f"__firebird-cdc-positions.{topic_prefix}"
    with denied(guarded, ResourceType.TOPIC, topic, AclOperation.DESCRIBE):
        folder.write(1)
        shipper = start(False).start()  # with --once it may end before the broker has answered
        assert "uthorization failed" in shipper.await_log(f"offset topic {topic} can't be used")
        shipper.await_that(lambda: folder.waiting == [], "the journal to be sent")
        assert shipper.terminate() == 0


@either_way
def test_topic_that_is_deleted_under_a_running_shipper_is_written_again(
    start: Callable[[bool], Ship],
    guarded: KafkaBroker,
    folder: Folder,
    topic_prefix: str,
    transactional: bool,
) -> None:
    ship = start(transactional)
    topic = f"{topic_prefix}._srv_fb_warehouse.fdb.ITEM"
    shipper = ship.start()
    folder.write(1)
    shipper.await_that(lambda: not folder.waiting, "journal 1 shipped")
    delete_topics(guarded.bootstrap, [topic])
    folder.write(2)
    shipper.await_that(lambda: not folder.waiting, "journal 2 shipped")
    folder.write(3)
    shipper.await_that(lambda: not folder.waiting, "journal 3 shipped")
    assert shipper.terminate() == 0
    got = ids(read_topics(guarded.bootstrap, topic_prefix)[topic])
    # A producer that does not know yet may still have met the old one.
    assert got[-1] == 3_000_000
    assert set(got) <= {2_000_000, 3_000_000}


@either_way
def test_database_halts_after_the_last_retry_until_a_retry_is_requested(
    start: Callable[[bool], Ship],
    guarded: KafkaBroker,
    folder: Folder,
    topic_prefix: str,
    transactional: bool,
) -> None:
    ship = start(transactional)
    ship.options["errors.max.retries"] = "1"
    topic = f"{topic_prefix}._srv_fb_warehouse.fdb.ITEM"
    with denied(guarded, ResourceType.TOPIC, topic, AclOperation.WRITE):
        folder.write(1)
        shipper = ship.start()
        line = shipper.await_log("shipping paused")
        assert "given up after 2 attempts (errors.max.retries)" in line
    folder.write(1, database=OTHER)
    shipper.await_that(lambda: len(folder.waiting) == 1, "the other database shipped")
    assert main(["journal", "retry", "--config", str(ship._config(99))]) == 0
    shipper.await_that(lambda: not folder.waiting, "the journal shipped")
    assert shipper.terminate() == 0


@either_way
def test_unreachable_brokers_halt_the_database_after_limited_retries(
    make_ship: Callable[[str], Ship], folder: Folder, topic_prefix: str, transactional: bool
) -> None:
    ship = make_ship("127.0.0.1:1")
    if transactional:
        ship.options["kafka.producer.transactional.id"] = f"{topic_prefix}-id"
    ship.options |= {
        "errors.max.retries": "1",
        "kafka.producer.request.timeout.ms": "900",
        "kafka.producer.delivery.timeout.ms": "1000",
    }
    folder.write(1)
    shipper = ship.start()
    assert "errors.max.retries" in shipper.await_log("shipping paused")
    assert shipper.process.poll() is None
    assert shipper.terminate() == 0
    assert len(folder.waiting) == 1


def test_queue_is_bounded_as_the_options_say(ship: Ship) -> None:
    ship.options |= {"max.queue.size": "17", "max.queue.size.in.bytes": "5000"}
    settings = producer_settings(load_config(ship._config(0)))
    assert settings["queue.buffering.max.messages"] == "17"
    assert settings["queue.buffering.max.kbytes"] == "5"
    ship.options["kafka.producer.buffer.memory"] = "2048"
    settings = producer_settings(load_config(ship._config(0)))
    assert settings["queue.buffering.max.kbytes"] == "2"
