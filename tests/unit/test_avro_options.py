"""Options of the Avro converter: what Confluent's Python client gets, and what is told of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from firebird_cdc.config import load_config
from firebird_cdc.config.avro import (
    PROPERTIES,
    RECORD,
    TOPIC,
    TOPIC_RECORD,
    AvroOptions,
    read_avro_options,
)
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.events.avro import AvroConverter

ROOT = Path(__file__).parents[2]
URL = {"schema.registry.url": "http://registry:8081"}


def read(**given: str) -> AvroOptions:
    """The options, about which nothing is to be said."""
    options, found = read_avro_options({**URL, **given}, is_key=False)
    assert found == ([], [], [])
    return options


def test_defaults_are_those_of_the_java_converter() -> None:
    options = read()
    assert options.auto_register
    assert not options.use_latest
    assert not options.normalize
    assert options.meta_data
    assert options.strategy == TOPIC
    assert options.client == {
        "url": "http://registry:8081",
        "timeout": 5.0,
        "max.retries": 0,
    }


def test_options_reach_the_client_in_its_own_names(tmp_path: Path) -> None:
    for name in ("ca", "own", "key"):
        (tmp_path / name).touch()
    assert read(
        **{
            "schema.registry.url": "https://a:1, https://b/sub",
            "schema.registry.basic.auth.user.info": "u:geheim",
            "schema.registry.ssl.truststore.location": str(tmp_path / "ca"),
            "schema.registry.ssl.keystore.location": str(tmp_path / "own"),
            "schema.registry.ssl.keystore.password": "geheim",
            "ssl.key.location": str(tmp_path / "key"),
            "http.read.timeout.ms": "1500",
            "proxy.host": "proxy",
            "proxy.port": "3128",
        }
    ).client == {
        "url": "https://a:1,https://b/sub",
        "basic.auth.user.info": "u:geheim",
        "ssl.ca.location": str(tmp_path / "ca"),
        "ssl.certificate.location": str(tmp_path / "own"),
        "ssl.key.location": str(tmp_path / "key"),
        "ssl.key.password": "geheim",
        "timeout": 1.5,
        "max.retries": 0,
        "proxy": "http://proxy:3128",
    }


@pytest.mark.parametrize(
    ("written", "strategy"),
    [
        ("TopicNameStrategy", TOPIC),
        ("RecordNameStrategy", RECORD),
        ("io.confluent.kafka.serializers.subject.TopicRecordNameStrategy", TOPIC_RECORD),
    ],
)
def test_strategy_of_the_right_part_counts(written: str, strategy: str) -> None:
    given = {**URL, "key.subject.name.strategy": written}
    assert read_avro_options(given, is_key=True)[0].strategy == strategy
    assert read_avro_options(given, is_key=False)[0].strategy == TOPIC


def test_user_and_password_of_a_url_are_never_shown() -> None:
    options = read(**{"schema.registry.url": "https://u:geheim@a:1/x"})
    assert options.servers == "https://a:1/x"
    assert "geheim" not in repr(options)


@pytest.mark.parametrize(
    ("given", "name", "why"),
    [
        ({"schema.registry.url": "registry:8081"}, "schema.registry.url", "http:// or https://"),
        ({"auto.register.schemas": "maybe"}, "auto.register.schemas", "true or false"),
        ({"use.latest.version": "true"}, "use.latest.version", "auto.register.schemas: false"),
        ({"schemas.cache.config": "0"}, "schemas.cache.config", "from 1 to"),
        ({"http.read.timeout.ms": "soon"}, "http.read.timeout.ms", "whole number"),
        ({"proxy.host": "p", "proxy.port": "0"}, "proxy.port", "from 1 to 65535"),
        ({"value.subject.name.strategy": "x.Y"}, "value.subject.name.strategy", "RecordName"),
        (
            {"basic.auth.credentials.source": "SASL_INHERIT"},
            "basic.auth.credentials.source",
            "URL, USER_INFO",
        ),
        ({"basic.auth.user.info": "only-a-name"}, "basic.auth.user.info", "user:password"),
        (
            {"schema.registry.url": "http://u:p@a", "basic.auth.user.info": "u:p"},
            "basic.auth.user.info",
            "remove one",
        ),
        (
            {"bearer.auth.credentials.source": "CUSTOM"},
            "bearer.auth.credentials.source",
            "STATIC_TOKEN, OAUTHBEARER",
        ),
        ({"ssl.truststore.location": "/x/trust.jks"}, "ssl.truststore.location", "PEM"),
        (
            {"schema.registry.ssl.keystore.type": "PKCS12"},
            "schema.registry.ssl.keystore.type",
            "PEM",
        ),
        ({"ssl.ca.location": "/no/such.pem"}, "ssl.ca.location", "no such file"),
        ({"ssl.key.password": "geheim"}, "ssl.key.password", "ssl.certificate.location"),
        (
            {"ssl.endpoint.identification.algorithm": ""},
            "ssl.endpoint.identification.algorithm",
            "https",
        ),
    ],
)
def test_unusable_avro_options_are_named(given: dict[str, str], name: str, why: str) -> None:
    found = read_avro_options({**URL, **given}, is_key=False)[1]
    assert [finding.name for finding in found.wrong] == [name]
    assert why in found.wrong[0].why
    with pytest.raises(ConfigError, match=rf"value\.converter\.{name} can't be used") as error:
        AvroConverter({**URL, **given}, is_key=False)
    assert "geheim" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"schema.registry.url": ""}, ["schema.registry.url"]),
        ({"basic.auth.credentials.source": "USER_INFO"}, ["basic.auth.user.info"]),
        ({"bearer.auth.credentials.source": "STATIC_TOKEN"}, ["bearer.auth.token"]),
        (
            {
                "bearer.auth.credentials.source": "OAUTHBEARER",
                "bearer.auth.issuer.endpoint.url": "https://issuer",
            },
            ["bearer.auth.client.id", "bearer.auth.client.secret", "bearer.auth.scope"],
        ),
    ],
)
def test_missing_avro_options_are_named(given: dict[str, str], missing: list[str]) -> None:
    found = read_avro_options({**URL, **given}, is_key=False)[1]
    assert [finding.name for finding in found.missing] == missing
    with pytest.raises(ConfigError, match=r"value\.converter\..* is missing"):
        AvroConverter({**URL, **given}, is_key=False)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("enhanced.avro.schema.support", "true", "enumerations stay strings"),
        ("scrub.invalid.names", "true", "field.name.adjustment.mode"),
        ("auto.register.schema", "true", "did you mean auto.register.schemas?"),
        ("colour", "red", "does not know it"),
    ],
)
def test_avro_options_without_effect_are_reported(name: str, value: str, why: str) -> None:
    found = read_avro_options({**URL, name: value}, is_key=True)[1]
    assert [finding.name for finding in found.ignored] == [name]
    assert why in found.ignored[0].why


def test_false_for_an_unsupported_avro_option_is_accepted_silently() -> None:
    read(**{"enhanced.avro.schema.support": "false", "scrub.invalid.names": "false"})


def test_every_property_of_the_reference_is_known() -> None:
    found = read_avro_options(dict.fromkeys(PROPERTIES, "x"), is_key=True)[1]
    assert found.ignored == []


def test_example_of_the_docs_is_a_configuration(tmp_path: Path) -> None:
    text = (ROOT / "docs/avro.md").read_text("utf-8")
    example = text.partition("```yaml\n")[2].partition("```")[0]
    sample = (ROOT / "config/samples/reddatabase.connector.yaml").read_text("utf-8")
    json_lines = "key.converter: ", "value.converter: "
    kept = [line for line in sample.splitlines() if not line.startswith(json_lines)]
    path = tmp_path / "connector.yaml"
    path.write_text("\n".join([*kept, example]), encoding="utf-8")
    config = load_config(path)
    assert (config.key_converter, config.value_converter) == ("avro", "avro")
    assert config.field_name_adjustment_mode == "avro"
