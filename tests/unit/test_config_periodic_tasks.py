"""load_config: attachments, canaries, heartbeats and the making of topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from firebird_cdc.config import ConnectorConfig, load_config
from firebird_cdc.config.attachment import CanaryTable
from firebird_cdc.config.topic_creation import TopicSettings
from firebird_cdc.errors import ConfigError

Load = Callable[..., ConnectorConfig]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a file of the required options and further lines."""

    def load(*lines: str) -> ConnectorConfig:
        path = tmp_path / "reddatabase.connector.yaml"
        required = (
            "connector.name: depot",
            "connector.journal.directory: /var/lib/journal",
            "kafka.producer.bootstrap.servers: kafka1:9092",
            "kafka.topic.prefix: depot",
        )
        path.write_text("".join(f"{line}\n" for line in (*required, *lines)), "utf-8")
        return load_config(path)

    return load


def _problem(load: Load, *lines: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*lines)
    [problem] = caught.value.problems
    return problem


# -- attachments


def test_without_a_host_the_file_itself_is_the_target(load: Load) -> None:
    assert load().attachment.target("/data/a.fdb") == "/data/a.fdb"


@pytest.mark.parametrize(
    ("host", "target"),
    [("db1", "db1/3051:/data/a.fdb"), ("'::1'", "[::1]/3051:/data/a.fdb")],
)
def test_with_a_host_the_target_names_it_and_its_port(load: Load, host: str, target: str) -> None:
    config = load(f"database.hostname: {host}", "database.port: 3051")
    assert config.attachment.target("/data/a.fdb") == target


def test_a_password_comes_from_the_file_a_variable_or_another_file(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load().attachment.password() is None
    assert load("database.password: geheim").attachment.password() == "geheim"
    from_variable = load("database.password: ${env:CDC_PASSWORD}").attachment
    with pytest.raises(ConfigError, match="CDC_PASSWORD"):
        from_variable.password()
    monkeypatch.setenv("CDC_PASSWORD", "secret")
    assert from_variable.password() == "secret"
    file = tmp_path / "password"
    from_file = load(f"database.password.file: {file}").attachment
    with pytest.raises(ConfigError, match="No such file"):
        from_file.password()
    file.write_text("тайна \n", "utf-8")
    assert from_file.password() == "тайна "


def test_a_password_is_never_shown(load: Load) -> None:
    config = load("database.password: geheim")
    assert "geheim" not in repr(config)
    assert "geheim" not in _problem(load, "database.password: ${geheim}")


def test_two_passwords_are_one_too_many(load: Load) -> None:
    found = _problem(load, "database.password: a", "database.password.file: /etc/password")
    assert "database.password.file is set beside database.password" in found


# -- canaries


def test_tables_are_named_as_in_sql(load: Load) -> None:
    config = load(
        "connector.canary.tables:",
        "  - /data/shop.fdb.cdc_canary",
        '  - \'/data/c.r,m.fdb."Kleiner ""Vogel"""\'',
    )
    assert config.canary_tables == (
        CanaryTable("/data/shop.fdb", "CDC_CANARY"),
        CanaryTable("/data/c.r,m.fdb", 'Kleiner "Vogel"'),
    )
    assert config.canary_tables[1].quoted == '"Kleiner ""Vogel"""'
    assert config.canary_tables[0].identifier == "/data/shop.fdb.CDC_CANARY"


@pytest.mark.parametrize("text", ["shop.fdb.T", "/data/shop", "/data/shop.fdb.", "/data/a.fdb.a b"])
def test_malformed_canary_table_is_refused(load: Load, text: str) -> None:
    assert "<absolute path of the database>.<table>" in _problem(
        load, f"connector.canary.tables: {text}"
    )


def test_a_second_table_of_a_database_is_refused(load: Load) -> None:
    found = _problem(load, "connector.canary.tables: /data/a.fdb.A, /data/a.fdb.B")
    assert "/data/a.fdb has two" in found


# -- topics


def test_topics_are_made_only_if_something_says_so(load: Load) -> None:
    assert load().topic_creation is None
    assert load("topic.creation.enable: true").topic_creation is not None
    assert load("topic.creation.default.partitions: 3").topic_creation is not None
    off = load("topic.creation.enable: false", "topic.creation.default.partitions: 3")
    assert off.topic_creation is None
    [warning] = off.warnings
    assert "topic.creation.enable is false" in warning


def test_the_first_group_that_holds_a_topic_counts(load: Load) -> None:
    creation = load(
        "topic.creation.default.partitions: 6",
        "topic.creation.default.replication.factor: 3",
        "topic.creation.default.retention.ms: 1000",
        "topic.creation.groups: big, rest",
        "topic.creation.big.include: depot[.].*[.]ORDERS, depot[.].*[.]ITEMS",
        "topic.creation.big.exclude: .*_test_.*",
        "topic.creation.big.partitions: 24",
        "topic.creation.rest.include: ['depot[.]x{1,2}', 'depot[.].*[.]ITEMS']",
        "topic.creation.rest.replication.factor: 1",
        "topic.creation.rest.cleanup.policy: [compact, delete]",
    ).topic_creation
    assert creation is not None
    default = TopicSettings(6, 3, {"retention.ms": "1000"})
    rest = TopicSettings(6, 1, {"cleanup.policy": "compact,delete"})
    assert creation.settings("depot.a.ORDERS") == TopicSettings(24, 3, {})
    assert creation.settings("depot.a.orders") == default
    assert creation.settings("depot.a.ORDERS_2") == default
    assert creation.settings("depot.a_test_b.ITEMS") == rest
    assert creation.settings("depot.xx") == rest


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        (["topic.creation.default.partitions: 0"], "at least 1, or -1"),
        (["topic.creation.default.replication.factor: 40000"], "from -1 to 32767"),
        (["topic.creation.groups: a"], "topic.creation.a.include is missing"),
        (
            ["topic.creation.groups: a", "topic.creation.a.include: '(x'"],
            "is not a regular expression",
        ),
        (["topic.creation.groups: default"], "which no group can be called"),
        (["heartbeat.topics.prefix: a/b"], "allowed: letters"),
        (["heartbeat.interval.ms: 5", f"heartbeat.topics.prefix: {'x' * 245}"], "has 251"),
    ],
)
def test_wrong_settings_of_topics_are_named(load: Load, lines: list[str], part: str) -> None:
    assert part in _problem(load, *lines)


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("topic.creation.other.partitions: 3", "topic.creation.groups does not name other"),
        ("topic.creation.default.include: .*", "holds what no other group does"),
    ],
)
def test_settings_without_effect_are_named(load: Load, line: str, part: str) -> None:
    [warning] = load(line).warnings
    assert part in warning
