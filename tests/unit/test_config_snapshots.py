"""Options of snapshots, signals and notifications: what a user gets for right and wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException
from least_config import load_with

from firebird_cdc.config.librdkafka import CONSUMER_BOOLEANS, CONSUMER_CHOICES, CONSUMER_INTEGERS
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.shipper.kafka.client import check_signal_reader

ORDERS = "/db/shop.fdb.ORDERS"
OVERRIDES = "snapshot.select.statement.overrides"


def only_problem(directory: Path, *lines: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_with(directory, *lines)
    assert len(caught.value.problems) == 1, caught.value.problems
    return caught.value.problems[0]


def test_defaults_of_snapshots_are_those_of_the_reference(tmp_path: Path) -> None:
    config = load_with(tmp_path)
    snapshots = config.snapshots
    assert snapshots.mode == "initial"
    assert (snapshots.fetch_size, snapshots.chunk_size, snapshots.readers) == (10240, 1024, 1)
    assert snapshots.delay_ms == 0
    assert not snapshots.has_custom_queries
    assert snapshots.include == ()
    assert snapshots.statements == {}
    assert not any((snapshots.configured.data, snapshots.configured.stream))
    assert config.signals.channels == ("source",)
    assert config.signals.topic == "p-signal"
    assert config.signals.poll_interval_ms == 5000
    assert config.signals.file is None
    assert config.signals.as_producer
    assert config.notifications.channels == ()
    assert config.warnings == ()


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ("exported", "initial"),
        ("schema_only", "no_data"),
        ("NO_DATA", "no_data"),
        ("recovery", "recovery"),
        ("always", "always"),
        ("initial_only", "initial_only"),
        ("when_needed", "when_needed"),
        ("when_needed_no_data", "when_needed_no_data"),
        ("never", "never"),
        ("configuration_based", "configuration_based"),
    ],
)
def test_modes_of_all_manuals_load_and_second_names_become_the_first(
    tmp_path: Path, given: str, mode: str
) -> None:
    assert load_with(tmp_path, f"snapshot.mode: {given}").snapshots.mode == mode


def test_answers_of_the_configured_mode_are_read(tmp_path: Path) -> None:
    prefix = "snapshot.mode.configuration.based."
    configured = load_with(
        tmp_path,
        "snapshot.mode: configuration_based",
        f"{prefix}snapshot.data: true",
        f"{prefix}start.stream: true",
        f"{prefix}snapshot.on.data.error: true",
    ).snapshots.configured
    assert (configured.data, configured.stream, configured.on_data_error) == (True, True, True)


@pytest.mark.parametrize("name", ["snapshot.custom.class", "snapshot.mode.custom.name"])
def test_custom_mode_has_a_class_under_either_name(tmp_path: Path, name: str) -> None:
    config = load_with(tmp_path, "snapshot.mode: custom", f"{name}: mine.Policy")
    assert config.snapshots.policy == "mine.Policy"


@pytest.mark.parametrize("option", ["snapshot.mode", "snapshot.query.mode"])
def test_custom_without_a_class_is_an_error(tmp_path: Path, option: str) -> None:
    problem = only_problem(tmp_path, f"{option}: custom")
    assert f"{option} is custom, which needs snapshot.custom.class" in problem


def test_query_of_a_table_is_found_by_its_identifier(tmp_path: Path) -> None:
    config = load_with(
        tmp_path,
        f'{OVERRIDES}: /db/shop.fdb.orders, /db/shop.fdb."Line items"',
        f"{OVERRIDES}./db/shop.fdb.orders: SELECT * FROM ORDERS, ITEMS",
        f"'{OVERRIDES}./db/shop.fdb.\"Line items\"': SELECT 1 FROM X",
    )
    assert config.snapshots.statements == {
        ORDERS: "SELECT * FROM ORDERS, ITEMS",
        "/db/shop.fdb.Line items": "SELECT 1 FROM X",
    }


def test_table_without_its_query_and_query_without_its_table_are_told(tmp_path: Path) -> None:
    assert f"set {OVERRIDES}.{ORDERS}" in only_problem(tmp_path, f"{OVERRIDES}: {ORDERS}")
    (warning,) = load_with(tmp_path, f"{OVERRIDES}.{ORDERS}: SELECT * FROM ORDERS").warnings
    assert "does not name this table" in warning
    assert "must have the form" in only_problem(tmp_path, f"{OVERRIDES}.ORDERS: SELECT 1 FROM X")


def test_signal_tables_are_one_per_database(tmp_path: Path) -> None:
    name = "signal.data.collection"
    config = load_with(tmp_path, f"{name}: /db/a.fdb.signals, /db/b.fdb.SIGNALS")
    assert config.signals.tables == ("/db/a.fdb.SIGNALS", "/db/b.fdb.SIGNALS")
    assert "one is enough" in only_problem(tmp_path, f"{name}: /db/a.fdb.A, /db/a.fdb.B")
    assert "must have the form" in only_problem(tmp_path, f"{name}: SIGNALS")


def test_channels_need_what_they_read_and_write(tmp_path: Path) -> None:
    channels = "signal.enabled.channels"
    assert "has file, which needs signal.file" in only_problem(tmp_path, f"{channels}: file")
    config = load_with(tmp_path, f"{channels}: kafka, file", "signal.file: /run/cdc/signals")
    assert config.signals.channels == ("kafka", "file")
    assert config.signals.file == Path("/run/cdc/signals")
    assert "jmx is not among: source, kafka, file" in only_problem(tmp_path, f"{channels}: jmx")
    notified = "notification.enabled.channels"
    assert "needs notification.sink.topic.name" in only_problem(tmp_path, f"{notified}: sink, log")


def test_too_long_signal_topic_is_an_error_only_where_it_is_read(tmp_path: Path) -> None:
    prefix = "kafka.topic.prefix: " + "x" * 200
    lines = (prefix, "kafka.position.topic: p", "topic.transaction: t", "heartbeat.interval.ms: 0")
    load_with(tmp_path, *lines, "signal.kafka.topic: " + "y" * 250)
    problem = only_problem(
        tmp_path, *lines, "signal.enabled.channels: kafka", "signal.kafka.topic: " + "y" * 250
    )
    assert "gives a topic name of 250 characters" in problem


def test_properties_of_the_signal_reader_are_those_of_any_client(tmp_path: Path) -> None:
    signals = load_with(
        tmp_path,
        "signal.consumer.sasl.mechanism: PLAIN",
        "signal.consumer.sasl.jaas.config: org.x.PlainLoginModule required"
        ' username="me" password="geheim";',
        "signal.consumer.security.protocol: SASL_SSL",
        "signal.consumer.fetch.max.wait.ms: 50",
    ).signals
    assert signals.consumer == {
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "geheim",
        "security.protocol": "sasl_ssl",
        "fetch.wait.max.ms": "50",
    }
    assert signals.as_producer
    assert "geheim" not in repr(signals)


def test_logins_of_the_producer_are_not_for_another_cluster(tmp_path: Path) -> None:
    servers = "signal.kafka.bootstrap.servers"
    assert load_with(tmp_path, f"{servers}: h:1").signals.as_producer
    signals = load_with(tmp_path, f"{servers}: other:2").signals
    assert not signals.as_producer
    assert signals.consumer["bootstrap.servers"] == "other:2"
    assert "ports from 1 to 65535" in only_problem(tmp_path, f"{servers}: other")


def test_wrong_properties_of_the_signal_reader_are_named_by_their_own_names(tmp_path: Path) -> None:
    problem = only_problem(tmp_path, "signal.consumer.security.protokol: ssl")
    assert "did you mean signal.consumer.security.protocol?" in problem
    (warning,) = load_with(tmp_path, "signal.consumer.auto.offset.reset: latest").warnings
    assert "read from its beginning where no offset is known" in warning


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("fetch.min.bytes: many", "is 'many'; it must be a whole number from 0"),
        ("queued.min.messages: 0", "is '0'; it must be from 1 to 10000000"),
        ("isolation.level: read", "allowed: read_uncommitted, read_committed"),
        ("check.crcs: perhaps", "is 'perhaps'; it must be true or false"),
        ("socket.timeout.ms: 1", "is '1'; it must be from 10 to 300000"),
    ],
)
def test_wrong_value_of_the_signal_reader_is_found_in_its_line(
    tmp_path: Path, line: str, told: str
) -> None:
    problem = only_problem(tmp_path, f"signal.consumer.{line}")
    assert f"c.yaml:1: signal.consumer.{line.partition(':')[0]} is" in problem
    assert told in problem


def test_values_that_only_java_takes_are_narrowed_for_the_signal_reader(tmp_path: Path) -> None:
    config = load_with(
        tmp_path, "signal.consumer.fetch.min.bytes: 0", "signal.consumer.fetch.max.bytes: 500000"
    )
    assert config.signals.consumer == {"fetch.min.bytes": "1", "fetch.max.bytes": "1000000"}
    assert len(config.warnings) == 2
    assert "takes 1 to 100000000, so 1 is used" in config.warnings[0]


@pytest.mark.parametrize(
    "line", ["acks: all", "request.timeout.ms: 5", "max.request.size: 9", "max.block.ms: 9"]
)
def test_producer_option_of_the_signal_reader_is_warned_of(tmp_path: Path, line: str) -> None:
    config = load_with(tmp_path, f"signal.consumer.{line}")
    (warning,) = config.warnings
    assert "has no effect: the signal reader sends nothing" in warning
    assert config.signals.consumer == {}


@pytest.mark.parametrize("name", sorted(CONSUMER_INTEGERS))
def test_range_of_a_consumers_property_is_the_librarys(name: str) -> None:
    low, high = CONSUMER_INTEGERS[name]
    for value in (low, high):
        _accept(name, str(value))
    for value in (low - 1, high + 1):
        with pytest.raises(KafkaException):
            _accept(name, str(value))


def test_other_values_of_consumers_are_the_librarys() -> None:
    for name, values in CONSUMER_CHOICES.items():
        for value in values:
            _accept(name, value)
    for name in CONSUMER_BOOLEANS:
        _accept(name, "true")


def _accept(name: str, value: str) -> None:
    Consumer({"group.id": "x", "log_level": "0", name: value}).close()


def test_client_judges_the_signal_reader_before_it_is_needed(tmp_path: Path) -> None:
    on = "signal.enabled.channels: kafka"
    check_signal_reader(
        load_with(tmp_path, on, "kafka.producer.receive.message.max.bytes: 2000000")
    )
    lines = ("security.protocol: ssl", "ssl.ca.location: /nowhere/ca.pem")
    config = load_with(tmp_path, *(f"signal.consumer.{line}" for line in lines), on)
    with pytest.raises(ConfigError, match=r"c.yaml:2: signal.consumer.ssl.ca.location: the Kafka"):
        check_signal_reader(config)


@pytest.mark.parametrize(
    "line",
    [
        "snapshot.isolation.mode: snapshot",
        "incremental.snapshot.watermarking.strategy: insert_delete",
        "incremental.snapshot.allow.schema.changes: true",
        "signal.kafka.poll.timeout.ms: 0",
    ],
)
def test_options_that_are_never_needed_load_without_a_word(tmp_path: Path, line: str) -> None:
    assert load_with(tmp_path, line).warnings == ()
