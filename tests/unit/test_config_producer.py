"""kafka.producer.*: Java names become librdkafka properties that the real library accepts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from firebird_cdc.config import ConnectorConfig, load_config
from firebird_cdc.config import producer as kafka
from firebird_cdc.config.librdkafka import BOOLEANS, CANONICAL, CHOICES, INTEGERS, TEXTS
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.shipper.kafka.client import check_producer

Load = Callable[..., ConnectorConfig]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a file with the given producer options, each without its prefix."""

    def load(*options: str) -> ConnectorConfig:
        path = tmp_path / "c.yaml"
        lines = [f"kafka.producer.{option}" for option in options]
        lines += ["connector.name: n", "connector.journal.directory: /j", "kafka.topic.prefix: p"]
        if not any(option.startswith(("bootstrap", "metadata.broker")) for option in options):
            lines.append("kafka.producer.bootstrap.servers: 127.0.0.1:9")
        path.write_text("\n".join(lines) + "\n", "utf-8")
        return load_config(path)

    return load


def accepted(config: ConnectorConfig) -> ConnectorConfig:
    """Return CONFIG after the real library took its properties."""
    check_producer(config)
    return config


def only_problem(load: Load, *options: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*options)
    assert len(caught.value.problems) == 1, caught.value.problems
    return caught.value.problems[0]


# -- the table against the library


@pytest.mark.parametrize("name", sorted(INTEGERS))
def test_range_in_the_table_is_the_librarys(name: str) -> None:
    low, high = INTEGERS[name]
    for value in (low, high):
        _accept_alone(name, str(value))
    for value in (low - 1, high + 1):
        with pytest.raises(KafkaException, match=r"outside allowed range|Invalid value|too large"):
            _accept_alone(name, str(value))


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in CHOICES.items() for v in vs])
def test_choice_in_the_table_is_the_librarys(name: str, value: str) -> None:
    _accept_alone(name, value)


@pytest.mark.parametrize("name", sorted(BOOLEANS))
def test_boolean_in_the_table_is_the_librarys(name: str) -> None:
    _accept_alone(name, "true")
    with pytest.raises(KafkaException):
        _accept_alone(name, "perhaps")


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_text_property_is_known_to_the_library(name: str) -> None:
    with pytest.raises(KafkaException) as caught:
        Producer({name: "x", "no.such.property": "x"})
    assert f'"{name}"' not in caught.value.args[0].str() or "No such" not in str(caught.value)


@pytest.mark.parametrize(("alias", "name"), CANONICAL.items())
def test_second_name_is_the_librarys(load: Load, alias: str, name: str) -> None:
    value = {"acks": "1", "bootstrap.servers": "h:1", "compression.type": "gzip"}.get(name, "4")
    if name == "delivery.timeout.ms":
        value = "99999"
    config = load(f"{alias}: '{value}'", "enable.idempotence: false")
    assert config.producer[name] == value
    assert alias not in config.producer
    with pytest.raises(KafkaException) as caught:
        Producer({"log_level": "0", alias: value, "no.such.property": "x"})
    assert '"no.such.property"' in caught.value.args[0].str()  # and not the alias


def _accept_alone(name: str, value: str) -> None:
    """Set one property; rules between properties are not what is asked here."""
    try:
        Producer({"log_level": "0", name: value})
    except KafkaException as error:
        # A rule between properties, or a file that is not there, comes after the value's check.
        if "Failed to create producer" not in error.args[0].str():
            raise
    except ValueError as error:  # the Python client's own rules between properties
        assert "requires" in str(error)


# -- the table against Java's client

JAVA_OPTIONS = (
    (Path(__file__).parent / "data" / "kafka-clients-4.1.0-producer-options.txt")
    .read_text()
    .split()
)
"""``ProducerConfig.configNames()`` of the Java client."""


@pytest.mark.parametrize("name", [*JAVA_OPTIONS, "timeout.ms"])
def test_each_property_of_the_java_client_is_known(load: Load, name: str) -> None:
    """It is passed on or mapped, or a warning or an error says why it is not."""
    said = [""]
    try:
        load(*([] if name == "bootstrap.servers" else [f"{name}: 'x'"]))
    except ConfigError as error:
        said = error.problems
    assert not any("no producer property" in each or "no such option" in each for each in said)


def test_java_only_properties_are_ignored_with_the_reason(load: Load) -> None:
    config = accepted(load(*(f"{name}: x" for name in kafka.WITHOUT_EFFECT)))
    assert config.producer == load().producer
    assert len(config.warnings) == len(kafka.WITHOUT_EFFECT)
    for (name, why), warning in zip(kafka.WITHOUT_EFFECT.items(), config.warnings, strict=True):
        assert f"kafka.producer.{name} has no effect: {why}" in warning


def test_a_template_of_oauth_assertions_has_the_librarys_name(load: Load) -> None:
    name = "sasl.oauthbearer.assertion.jwt.template.file"
    assert load("sasl.oauthbearer.assertion.template.file: /t.json").producer[name] == "/t.json"


# -- what a plain configuration gives


def test_defaults_are_idempotent_and_accepted(load: Load) -> None:
    config = accepted(load())

    assert config.producer["enable.idempotence"] == "true"
    assert config.producer["acks"] == "all"
    assert config.producer["delivery.timeout.ms"] == "120000"
    assert config.producer["partitioner"] == "murmur2_random"
    assert config.producer["compression.type"] == "lz4"
    assert config.warnings == ()


def test_level_of_the_default_compression_is_set_alone(load: Load) -> None:
    producer = accepted(load("compression.lz4.level: 7", "compression.gzip.level: 9")).producer
    assert (producer["compression.type"], producer["compression.level"]) == ("lz4", "7")
    assert "compression.level" not in accepted(load("compression.zstd.level: 3")).producer


def test_connector_options_do_not_reach_the_library(load: Load) -> None:
    config = accepted(load("max.block.ms: 5", "close.timeout.ms: 6"))
    assert config.close_timeout_ms == 6
    assert not {"max.block.ms", "close.timeout.ms"} & set(config.producer)


def test_configuration_of_a_java_client_is_accepted(load: Load) -> None:
    config = accepted(
        load(
            "acks: all",
            "batch.size: 0",
            "buffer.memory: 33554432",
            "client.dns.lookup: default",
            "client.id: app",
            "compression.type: gzip",
            "compression.gzip.level: 9",
            "compression.zstd.level: 22",
            "connections.max.idle.ms: -1",
            "linger.ms: 1000000",
            "max.in.flight.requests.per.connection: 5",
            "max.request.size: 1048576",
            "metadata.max.age.ms: 999999999",
            "partitioner.class: org.apache.kafka.clients.producer.internals.DefaultPartitioner",
            "receive.buffer.bytes: -1",
            "reconnect.backoff.ms: 20000",
            "request.timeout.ms: 2000000",
            "retry.backoff.ms: 9223372036854775807",
            "security.protocol: PLAINTEXT",
            "send.buffer.bytes: 131072",
            "ssl.endpoint.identification.algorithm: ''",
            "key.serializer: org.apache.kafka.common.serialization.StringSerializer",
        )
    )

    assert config.producer["queue.buffering.max.kbytes"] == "32768"
    assert config.producer["compression.level"] == "9"
    assert config.producer["message.max.bytes"] == "1048576"
    assert config.producer["ssl.endpoint.identification.algorithm"] == "none"
    assert config.producer["socket.send.buffer.bytes"] == "131072"
    assert config.producer["socket.receive.buffer.bytes"] == "0"
    assert config.producer["retry.backoff.ms"] == config.producer["retry.backoff.max.ms"]
    assert config.producer["reconnect.backoff.max.ms"] == "20000"
    assert config.producer["delivery.timeout.ms"] == "1800000"
    narrowed = [w for w in config.warnings if "the Kafka client takes" in w]
    assert len(narrowed) == 5, narrowed
    assert any("key.serializer has no effect" in w for w in config.warnings)
    assert any("default" in w and "use_all_dns_ips" in w for w in config.warnings)


@pytest.mark.parametrize("order", [1, -1])
def test_order_of_lines_does_not_matter(load: Load, order: int) -> None:
    lines = ["compression.type: zstd", "compression.zstd.level: 3"][::order]
    assert accepted(load(*lines)).producer["compression.level"] == "3"


def test_long_backoff_is_clamped_with_a_warning(load: Load) -> None:
    config = accepted(load("retry.backoff.ms: 400000"))
    assert config.producer["retry.backoff.ms"] == "300000"
    assert config.retry_backoff_ms == 400_000
    assert "c.yaml:1: kafka.producer.retry.backoff.ms is 400000" in config.warnings[0]


def test_server_that_loads_a_configuration_does_not_load_the_kafka_client() -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from firebird_cdc.config import load_config\n"
        "import firebird_cdc.config.logging\n"
        "load_config(Path(sys.argv[1]))\n"
        "sys.exit('confluent_kafka' in sys.modules)\n"
    )
    sample = Path(__file__).parent / "data" / "red-database-manual.yaml"
    assert subprocess.run([sys.executable, "-c", script, sample]).returncode == 0


# -- delivery promise


@pytest.mark.parametrize(
    ("option", "name", "used"),
    [
        ("acks: 1", "acks", "all"),
        ("retries: 0", "retries", "1"),
        (
            "max.in.flight.requests.per.connection: 9",
            "max.in.flight.requests.per.connection",
            "5",
        ),
    ],
)
def test_idempotence_wins_unless_it_is_switched_off(
    load: Load, option: str, name: str, used: str
) -> None:
    config = accepted(load(option))
    assert config.producer[name] == used
    assert "enable.idempotence: false" in config.warnings[0]

    config = accepted(load(option, "enable.idempotence: false"))
    assert config.producer[name] == option.split(": ")[1]
    assert "change the order of events" in config.warnings[0]

    assert "needs" in only_problem(load, option, "enable.idempotence: true")
    assert "needs" in only_problem(load, option, "transactional.id: t")


def test_transactions_need_idempotence(load: Load) -> None:
    problem = only_problem(load, "transactional.id: t", "enable.idempotence: false")
    assert "c.yaml:2: kafka.producer.enable.idempotence is false" in problem


@pytest.mark.parametrize(
    ("options", "transaction", "delivery"),
    [
        ((), "120000", "120000"),
        (("delivery.timeout.ms: 50000",), "60000", "50000"),
        (("delivery.timeout.ms: 2000000",), "900000", "900000"),
        (("transaction.timeout.ms: 40000",), "40000", "40000"),
        (("transaction.timeout.ms: 10",), "1000", "1000"),
    ],
)
def test_transaction_outlives_its_messages(
    load: Load, options: tuple[str, ...], transaction: str, delivery: str
) -> None:
    config = accepted(load("transactional.id: t", *options))
    assert config.transactional
    assert config.producer["transaction.timeout.ms"] == transaction
    assert config.producer["delivery.timeout.ms"] == delivery


def test_socket_timeout_above_the_transactions_is_refused(load: Load) -> None:
    problem = only_problem(
        load, "transactional.id: t", "transaction.timeout.ms: 40000", "socket.timeout.ms: 40000"
    )
    assert "c.yaml:3: kafka.producer.socket.timeout.ms is 40000" in problem


def test_sum_rule_of_the_delivery_timeout(load: Load) -> None:
    problem = only_problem(load, "delivery.timeout.ms: 30000", "linger.ms: 1")
    assert "c.yaml:1: kafka.producer.delivery.timeout.ms is 30000" in problem
    assert "request.timeout.ms + linger.ms, which is 30001" in problem
    accepted(load("delivery.timeout.ms: 30001", "linger.ms: 1"))


# -- what is refused, with its line


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("bootstrap.servers: kafka1", "host1:port1,host2:port2"),
        ("bootstrap.servers: 'kafka1:9092,kafka2:99999'", "ports from 1 to 65535"),
        ("bootstrap.servers: 'a b:1'", "host1:port1"),
        ("bootstrap.servers: ','", "host1:port1"),
        ("compresion.type: gzip", "did you mean kafka.producer.compression.type?"),
        ("compression.type: brotli", "allowed: none, gzip, snappy, lz4, zstd"),
        ("group.id: x", "it is a consumer's property"),
        ("delivery.report.only.error: true", "needs a report for every message"),
        ("queue.buffering.max.messages: many", "must be a whole number"),
        ("log_level: 9", "from 0 to 7"),
        ("enable.idempotence: perhaps", "must be true or false"),
        ("partitioner.class: my.Own", "murmur2_random"),
        ("acks: 2", "allowed: all, -1, 0, 1"),
        ("ssl.truststore.location: /k/trust.jks", "kafka.producer.ssl.ca.location"),
        ("ssl.keystore.location: /k/key.jks", "PKCS12"),
        ("ssl.keystore.location: /k/key.p12", "needs kafka.producer.ssl.keystore.password"),
        ("sasl.jaas.config: com.sun.Krb5LoginModule required;", "sasl.kerberos"),
        ("client.id: [a, b]", "not a list"),
    ],
)
def test_refused_property_names_its_line(load: Load, option: str, said: str) -> None:
    problem = only_problem(load, option)
    assert f"c.yaml:1: kafka.producer.{option.partition(':')[0]}" in problem
    assert said in problem


def test_two_names_of_one_property(load: Load) -> None:
    problem = only_problem(load, "linger.ms: 5", "queue.buffering.max.ms: 6")
    assert "c.yaml:2: kafka.producer.queue.buffering.max.ms" in problem
    assert "c.yaml:1); remove one of the two" in problem


def test_wrong_number_is_reported_once(load: Load) -> None:
    assert "must be a whole number" in only_problem(load, "retries: many")


# -- security


@pytest.mark.parametrize("module", ["plain.Plain", "scram.Scram"])
def test_jaas_login_is_taken_over(load: Load, module: str) -> None:
    config = accepted(
        load(
            "security.protocol: SASL_PLAINTEXT",
            f"sasl.mechanism: {'PLAIN' if 'Plain' in module else 'SCRAM-SHA-512'}",
            f"sasl.jaas.config: 'org.apache.kafka.common.security.{module}LoginModule required"
            ' username="anna" password="geheim";\'',
        )
    )
    assert config.producer["sasl.username"] == "anna"
    assert config.producer["sasl.password"] == "geheim"


def test_password_mechanism_without_password_is_refused(load: Load) -> None:
    problem = only_problem(
        load, "security.protocol: SASL_SSL", "sasl.mechanism: PLAIN", "sasl.username: u"
    )
    assert "c.yaml:2: kafka.producer.sasl.mechanism is PLAIN" in problem
    assert "kafka.producer.sasl.password" in problem


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate and its key in one PEM file, as Java's PEM key stores have it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.fail("needs the openssl command: apt-get install openssl")
    key, cert, both = (tmp_path / name for name in ("k.pem", "c.pem", "both.pem"))
    command = f"req -x509 -newkey rsa:2048 -nodes -subj /CN=x -days 2 -keyout {key} -out {cert}"
    subprocess.run([openssl, *command.split()], check=True, capture_output=True)
    both.write_text(key.read_text() + cert.read_text())
    return both


def test_pem_stores_of_the_java_client_are_read(load: Load, certificate: Path) -> None:
    config = accepted(
        load(
            "security.protocol: SSL",
            "ssl.keystore.type: PEM",
            f"ssl.keystore.location: {certificate}",
            "ssl.truststore.type: PEM",
            f"ssl.truststore.location: {certificate}",
        )
    )
    assert config.producer["ssl.ca.location"] == str(certificate)
    assert config.producer["ssl.key.location"] == str(certificate)


def test_pkcs12_store_of_the_java_client_is_read(load: Load, certificate: Path) -> None:
    store = certificate.with_name("key.p12")
    command = f"openssl pkcs12 -export -in {certificate} -out {store} -passout pass:geheim"
    subprocess.run(command.split(), check=True, capture_output=True)
    accepted(
        load(
            "security.protocol: SSL",
            "ssl.keystore.type: PKCS12",
            f"ssl.keystore.location: {store}",
            "ssl.keystore.password: geheim",
        )
    )


def test_property_refused_by_the_library_names_its_line_and_no_secret(
    load: Load, certificate: Path
) -> None:
    config = load(
        "security.protocol: SSL",
        "ssl.ca.location: /nonexistent/ca.pem",
        "ssl.key.password: geheim",
    )
    with pytest.raises(ConfigError) as caught:
        check_producer(config)
    (problem,) = caught.value.problems
    assert "c.yaml:2: kafka.producer.ssl.ca.location: the Kafka client refuses it" in problem
    assert "geheim" not in problem
