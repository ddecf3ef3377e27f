"""Every example of the RED Database manual, chapter 15: it loads, and does what the text says.

Where example and text contradict each other, or the text and what users need, the test says what
holds; the table in docs/moving-from-the-red-database-connector.md tells it to users. The files of
the server (``plugins.conf``, ``replication.conf``) are in tests/packaging/, statements in
tests/engine/test_publication.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from firebird_cdc.config import ConnectorConfig, load_capture, load_config
from firebird_cdc.config.filters import TableFilter
from firebird_cdc.config.locate import locate_files
from firebird_cdc.config.logging import load_logging
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.shipper.kafka.client import check_producer

SAMPLE = Path(__file__).parent / "data" / "red-database-manual.yaml"
EMPLOYEE = "/opt/databases/employee.fdb"

LOGBACK = """<configuration>
        <appender name="FILE"class="ch.qos.logback.core.FileAppender">
                <file>/tmp/debezium-connector-reddatabase.log</file>

                <encoder>
                        <pattern>%date %level [%thread] %logger50 [%file:%line] %msg%n</pattern>
                </encoder>
        </appender>
        <root level="debug">
                <appender-ref ref="FILE"/>
        </root>
</configuration>
"""


def load(directory: Path, line: str) -> ConnectorConfig:
    """Load the manual's sample file with LINE in the place of the one that sets the same option."""
    key = line.partition(":")[0]
    kept = [each for each in SAMPLE.read_text().splitlines() if not each.startswith(f"{key}:")]
    path = directory / "reddatabase.connector.yaml"
    path.write_text("\n".join([line, *kept]) + "\n")
    return load_config(path)


def test_the_sample_file_loads_as_it_is_and_the_kafka_client_takes_it() -> None:
    config = load_config(SAMPLE)
    check_producer(config)

    assert config.connector_name == "reddatabase"
    assert config.journal_directory == Path("/tmp/journal")
    assert config.journal_check_interval_ms == 0
    assert config.topic_prefix == "reddatabase_topic"
    assert config.retry_backoff_ms == 1000
    assert config.producer["bootstrap.servers"] == "localhost:9092"
    assert config.producer["retries"] == "3"
    assert config.producer["transactional.id"] == "reddatabase-transaction-id"
    assert (config.key_converter, config.value_converter) == ("json", "json")


def test_timeout_ms_of_the_sample_changes_nothing_as_with_javas_client(tmp_path: Path) -> None:
    """As a limit for the brokers' answers, a second would have been the manual's own surprise."""
    config = load_config(SAMPLE)
    [warning] = config.warnings
    assert f"{SAMPLE}:9: kafka.producer.timeout.ms has no effect" in warning
    assert "kafka.producer.request.timeout.ms" in warning

    without = tmp_path / "without.yaml"
    without.write_text(SAMPLE.read_text().replace("kafka.producer.timeout.ms: 1000\n", ""))
    assert load_config(without).producer == config.producer
    config = load(tmp_path, "kafka.producer.request.timeout.ms: 5000")
    assert config.producer["request.timeout.ms"] == "5000"


TABLES = [
    (EMPLOYEE, "TABLE1"),
    ("/other/employee.fdb", "TABLE1"),
    ("/other/data.fdb", "TABLE1"),
    ("/other/data.fdb", "TEST_TABLE"),
    (EMPLOYEE, "TEST_TABLE"),
    (EMPLOYEE, "TABLE11"),
]


@pytest.mark.parametrize(
    ("line", "captured"),
    [
        (f"table.include.list: {EMPLOYEE}.table1", TABLES[:1]),
        ("table.include.list: .*table1", TABLES[:3]),
        ("table.include.list: .*table1, .*data.fdb.test_table", TABLES[:4]),
        ("table.include.list: .*employee.fdb.table1", TABLES[:2]),
        # The text calls the first of these, which stands there twice, an exclusion. Who means that:
        (f"table.exclude.list: {EMPLOYEE}.table1", TABLES[1:]),
    ],
)
def test_examples_of_table_lists(
    tmp_path: Path, line: str, captured: Sequence[tuple[str, str]]
) -> None:
    tables = TableFilter(load(tmp_path, line))
    assert [each for each in TABLES if tables.captures(*each)] == captured


COLUMNS = [
    (EMPLOYEE, "TABLE1", "ID"),
    ("/other/a.fdb", "TABLE1", "ID"),
    (EMPLOYEE, "TABLE2", "ID"),
    (EMPLOYEE, "TABLE2", "NAME"),
    (EMPLOYEE, "TABLE2", "FIRST_NAME"),
    (EMPLOYEE, "TABLE2", "F_VCHAR"),
    (EMPLOYEE, "TABLE1", "NOTE"),
]


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (f"column.include.list: {EMPLOYEE}.table1.id", COLUMNS[:1]),
        ("column.include.list: .*table1.id", COLUMNS[:2]),
        # FIRST_NAME, of which the text doesn't speak, ends as the pattern does.
        ("column.include.list: .*id, *.name", COLUMNS[:5]),
        ("column.exclude.list: .*f_vchar", [*COLUMNS[:5], COLUMNS[6]]),
    ],
)
def test_examples_of_column_lists(
    tmp_path: Path, line: str, kept: Sequence[tuple[str, str, str]]
) -> None:
    columns = TableFilter(load(tmp_path, line))
    assert [each for each in COLUMNS if columns.keeps_column(*each)] == kept


def test_the_example_that_is_no_regular_expression_loads_with_the_line_to_write(
    tmp_path: Path,
) -> None:
    config = load(tmp_path, "column.include.list: .*id, *.name")
    [warning, _] = config.warnings
    assert warning == (
        f"{config.path}:1: column.include.list holds *.name, no regular expression, read here as"
        " .*.name; write this line: column.include.list: .*id, .*.name"
    )
    assert load_capture(config.path).warnings == config.warnings

    written = load(tmp_path, warning.partition("write this line: ")[2])
    assert written.column_include_list == config.column_include_list
    assert len(written.warnings) == 1  # of timeout.ms


def test_exclude_list_of_a_pair_of_lists_alone_decides(tmp_path: Path) -> None:
    both = "table.include.list: .*table1\ntable.exclude.list: .*test_table"
    config = load(tmp_path, both)
    tables = TableFilter(config)
    assert [each for each in TABLES if not tables.captures(*each)] == TABLES[3:5]
    assert config.table_include_list == ()
    assert any(
        ":1: table.include.list is ignored" in warning and "table.exclude.list" in warning
        for warning in config.warnings
    )


def test_other_examples_of_options_are_taken(tmp_path: Path) -> None:
    assert load(tmp_path, "tombstones.on.delete: false").tombstones_on_delete is False
    config = load(tmp_path, "connector.journal.directory: /tmp/debezium-connector-reddatabase")
    assert config.journal_directory == Path("/tmp/debezium-connector-reddatabase")
    config = load(tmp_path, "connector.journal.check.interval.ms: 600000")
    assert config.journal_check_interval_ms == 600_000


def test_lines_of_jvm_args_lead_to_both_files_and_logback_is_answered(tmp_path: Path) -> None:
    """The manual's Logback file lacks a blank between two attributes, so it is no XML."""
    logback = tmp_path / "logback.xml"
    logback.write_text(LOGBACK)
    (tmp_path / "jvm.args").write_text(
        "-Dfirebird.connector.config=/var/config/custom.rdb.connector.yaml\n"
        f"-Dlogback.configurationFile={logback}\n"
    )
    found = locate_files({"JarDirs": "$(this)/debezium"}, {}, tmp_path)
    assert found.config == Path("/var/config/custom.rdb.connector.yaml")
    assert found.logging == logback
    with pytest.raises(ConfigError) as caught:
        load_logging(found.logging)
    answer = tmp_path / "answer.yaml"
    answer.write_text(str(caught.value).partition("\n")[2])
    options = load_logging(answer)
    assert options.level == "debug"
    assert options.file == Path("/tmp/debezium-connector-reddatabase.log")
