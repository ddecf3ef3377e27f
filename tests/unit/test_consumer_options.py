"""The properties of Kafka's Java client that the audit makes of the producer's options."""

from __future__ import annotations

from pathlib import Path

import pytest

from firebird_cdc.config import load_config
from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.replay.audit.kafka.topic_reader import consumer_options

_LOGIN = "org.apache.kafka.common.security"


def _options(folder: Path, given: dict[str, str] | None = None, **producer: str) -> dict[str, str]:
    lines = [
        "connector.name: x",
        f"connector.journal.directory: {folder}",
        "kafka.topic.prefix: p",
        "kafka.producer.bootstrap.servers: one:9092",
        *(f"kafka.producer.{name.replace('_', '.')}: '{text}'" for name, text in producer.items()),
    ]
    file = folder / "connector.yaml"
    file.write_text("\n".join(lines))
    return consumer_options(load_config(file), given or {})


def test_only_consumer_properties_are_taken_from_the_producers(tmp_path: Path) -> None:
    assert _options(tmp_path, linger_ms="5") == {"bootstrap.servers": "one:9092"}


def test_login_and_certificates_are_put_into_javas_words(tmp_path: Path) -> None:
    found = _options(
        tmp_path,
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="me",
        sasl_password='a"b\\c',
        ssl_ca_location="/etc/ca.pem",
        ssl_endpoint_identification_algorithm="none",
    )
    assert found["security.protocol"] == "SASL_SSL"
    assert (found["ssl.truststore.type"], found["ssl.truststore.location"]) == (
        "PEM",
        "/etc/ca.pem",
    )
    assert found["ssl.endpoint.identification.algorithm"] == ""
    assert found["sasl.jaas.config"] == (
        f'{_LOGIN}.scram.ScramLoginModule required username="me" password="a\\"b\\\\c";'
    )


def test_given_options_override_and_replace_underivable_ones(tmp_path: Path) -> None:
    kerberos = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"}
    with pytest.raises(ReplayError, match="--kafka-option sasl"):
        _options(tmp_path, **kerberos)
    given = {"sasl.jaas.config": "mine", "bootstrap.servers": "two:9092"}
    found = _options(tmp_path, given, **kerberos)
    assert found["sasl.jaas.config"] == "mine"
    assert found["bootstrap.servers"] == "two:9092"
