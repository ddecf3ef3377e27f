"""Secrets that an option refers to."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_config_load import Load, load, only_problem

from firebird_cdc.config import load_capture
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.shipper.kafka.client import producer_settings

__all__ = ["load"]

_SECRET = "Käfig 7"


def test_secrets_come_from_variables_and_files(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{_SECRET}\n", "utf-8")
    monkeypatch.setenv("LOGIN", "shop")
    config = load(
        "kafka.producer.security.protocol: SASL_SSL",
        "kafka.producer.sasl.mechanism: PLAIN",
        "kafka.producer.sasl.username: ${env:LOGIN}",
        f"kafka.producer.sasl.password: ${{file:{file}}}",
        "value.converter: io.confluent.connect.avro.AvroConverter",
        "value.converter.schema.registry.url: http://registry:8081",
        "value.converter.basic.auth.credentials.source: USER_INFO",
        f"value.converter.basic.auth.user.info: ${{env:LOGIN}}:${{file:{file}}}",
        f"database.password: ${{file:{file}}}",
    )
    assert config.producer["sasl.username"] == "shop"
    assert config.producer["sasl.password"] == _SECRET
    assert config.value_converter_options["basic.auth.user.info"] == f"shop:{_SECRET}"
    assert config.attachment.password() == _SECRET
    assert config.unresolved == ()
    assert _SECRET not in repr(config)


def test_part_of_a_java_login_may_be_a_reference(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGIN_PASSWORD", _SECRET)
    config = load(
        "kafka.producer.security.protocol: SASL_SSL",
        "kafka.producer.sasl.mechanism: PLAIN",
        "kafka.producer.sasl.jaas.config:"
        " org.apache.kafka.common.security.plain.PlainLoginModule required"
        ' username="shop" password="${env:LOGIN_PASSWORD}";',
    )
    assert config.producer["sasl.password"] == _SECRET


def test_secret_that_is_missing_stops_the_shipper_alone(load: Load, tmp_path: Path) -> None:
    config = load(
        "kafka.producer.ssl.key.password: ${env:NOT_THERE}",
        "kafka.producer.sasl.password: ${file:/nowhere/secret}",
    )
    told = " ".join(config.warnings)
    assert "yaml:1: kafka.producer.ssl.key.password: the environment of this process" in told
    assert "kafka.producer.sasl.password: /nowhere/secret can't be read: No such file" in told
    with pytest.raises(ConfigError, match="NOT_THERE"):
        producer_settings(config)
    assert load_capture(tmp_path / "reddatabase.connector.yaml").problems == ()


def test_reference_of_the_environment_that_is_missing_names_its_variable(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (
        "kafka__producer__sasl__password",
        "VALUE__CONVERTER__BASIC__AUTH__USER__INFO",
        "signal__consumer__sasl__password",
    )
    for name in names:
        monkeypatch.setenv(f"FIREBIRD_CDC_OPTION_{name}", "${env:NOT_THERE}")
    config = load("value.converter: avro", "value.converter.schema.registry.url: http://r:1")
    assert len(config.unresolved) == len(names)
    for name in names:
        begin = f"environment, FIREBIRD_CDC_OPTION_{name}: "
        assert any(problem.startswith(begin) for problem in config.unresolved)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("${vault:secret/kafka}", "the references that are known"),
        ("${file:secret}", "needs an absolute path"),
    ],
)
def test_reference_of_another_kind_is_refused(load: Load, value: str, told: str) -> None:
    problem = only_problem(load, f"kafka.producer.sasl.password: {value}")
    assert told in problem
    assert "vault" not in problem


@pytest.mark.parametrize(
    ("line", "variable"),
    [
        ("kafka.producer.client.id: ${env:HOME}", "KAFKA__PRODUCER__CLIENT__ID"),
        ("database.user: ${file:/etc/user}", "DATABASE__USER"),
        ("table.exclude.list: ['.*a', '${env:TABLES}']", "TABLE__EXCLUDE__LIST"),
        (
            "column.mask.hash.MD5.with.salt.SaLt: ${env:COLUMNS}",
            "column__mask__hash__MD5__with__salt__<salt>",
        ),
    ],
)
def test_reference_where_no_secret_is_names_the_variable_for_it(
    load: Load, line: str, variable: str
) -> None:
    problem = only_problem(load, line)
    assert "references are for secrets only" in problem
    assert problem.endswith(f"FIREBIRD_CDC_OPTION_{variable}")


def test_parameters_of_transforms_and_own_classes_may_look_like_references(load: Load) -> None:
    config = load(
        "transforms: r",
        "transforms.r.type: my.Transform",
        "transforms.r.target: ${env:X}-${name}",
        "value.converter: my.Converter",
        "value.converter.colour: ${env:X}",
        "topic.transaction: tx",
    )
    assert config.transforms[0].parameters == {"target": "${env:X}-${name}"}
    assert config.value_converter_options["colour"] == "${env:X}"
