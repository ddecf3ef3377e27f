"""Options that the environment gives: they count before those of the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_config_load import REQUIRED

from firebird_cdc.config import ConnectorConfig, load_capture, load_config
from firebird_cdc.errors import ConfigError

_BEGIN = "FIREBIRD_CDC_OPTION_"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with the required options."""
    path = tmp_path / "reddatabase.connector.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in REQUIRED.items()), "utf-8")
    return path


@pytest.fixture
def given(path: Path, monkeypatch: pytest.MonkeyPatch) -> ConnectorConfig:
    """Return the configuration of the file and an environment together."""
    for name, value in {
        "KAFKA__TOPIC__PREFIX": "shop",
        "kafka__producer__linger.ms": "7",
        "MAX__BATCH__SIZE": "100",
        "transforms": "Route",
        "transforms__Route__type": "io.debezium.transforms.ByLogicalTableRouter",
        "transforms__Route__topic.regex": "(.*)",
        "transforms__Route__topic.replacement": "$1",
        "KAFKA__PRODUCER__SSL__KEY__PASSWORD": "Käfig 7",
        "CONNECTOR__JOURNAL__FSYNC": "",
    }.items():
        monkeypatch.setenv(f"{_BEGIN}{name}", value)
    with path.open("a") as file:
        file.write("connector.journal.fsync: false\n")
    return load_config(path)


def test_environment_counts_before_the_file(given: ConnectorConfig) -> None:
    assert given.topic_prefix == "shop"
    assert given.connector_name == "depot"
    assert given.max_batch_size == 100
    assert given.producer["ssl.key.password"] == "Käfig 7"


def test_name_with_small_letters_is_taken_as_it_is(given: ConnectorConfig) -> None:
    assert given.producer["linger.ms"] == "7"
    assert [transform.name for transform in given.transforms] == ["Route"]


def test_empty_variable_brings_the_default_back(given: ConnectorConfig) -> None:
    assert given.journal_fsync is True


def test_server_process_heeds_it_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{_BEGIN}CONNECTOR__JOURNAL__DIRECTORY", "/srv/journals")
    assert load_capture(path).journal_directory == Path("/srv/journals")


def test_another_name_of_an_option_counts_before_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with path.open("a") as file:
        file.write("table.include.list: a.fdb.ONE\n")
    monkeypatch.setenv(f"{_BEGIN}TABLE__WHITELIST", "a.fdb.TWO")
    config = load_config(path)
    [pattern] = config.table_include_list
    assert pattern.fullmatch("a.fdb.TWO")


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"KAFKA__TOPIC__PREFX": "x"}, "no such option; did you mean kafka.topic.prefix?"),
        ({"MAX__BATCH__SIZE": "many"}, "max.batch.size is 'many'"),
        (
            {"MAX__BATCH__SIZE": "1", "max.batch.size": "2"},
            "FIREBIRD_CDC_OPTION_MAX__BATCH__SIZE gives the same option; unset one of the two",
        ),
    ],
)
def test_error_in_a_variable_names_the_variable(
    path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], told: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"{_BEGIN}{name}", value)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    [problem] = caught.value.problems
    assert problem.startswith(f"environment, {_BEGIN}{[*variables][-1]}: ")
    assert told in problem


@pytest.mark.parametrize(
    "names",
    [
        ["column__mask__hash__MD6__with__salt__GeHeim"],
        ["column__mask__hash__v2__MD5__wiht__slat__GeHeim"],
        ["COLUMN__MASK__HASH__MD5__WITH__SALT__GEHEIM"],
        [
            "column__mask__hash__md5__with__salt__geheim",
            "COLUMN__MASK__HASH__MD5__WITH__SALT__GEHEIM",
        ],
    ],
)
def test_salt_in_the_name_of_a_variable_is_in_no_message(
    path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    for name in names:
        monkeypatch.setenv(f"FIREBIRD_CDC_OPTION_{name}", "(")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    said = str(caught.value)
    assert "<salt>" in said and "FIREBIRD_CDC_OPTION_" in said
    assert "geheim" not in said.lower()


def test_secret_of_the_environment_is_in_no_message(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{_BEGIN}KAFKA__PRODUCER__SASL__PASWORD", "Käfig 7")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert "Käfig" not in str(caught.value)


def test_other_processes_are_told_of_the_file_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a command in another environment would say that the shipper has other options."""
    before = load_config(path).reading.digest
    monkeypatch.setenv(f"{_BEGIN}MAX__BATCH__SIZE", "100")
    assert load_config(path).reading.digest == before
