"""Journals against topics whose messages lack a value: by null, or with a placeholder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from histories import Action, History, column
from pyspark.sql import Row, SparkSession
from soaked import few_of
from test_audit_kafka import _compare, _config, _ship
from topic_faults import Raw, rewrite

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.registry import SchemaRegistry
from firebird_cdc.journal.format import Storage

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.registry]

DATABASE = "/data/values.fdb"
TABLE = (
    column("ID", Storage.INTEGER, key=1),
    column("N", Storage.DOUBLE),
    column("NOTE", Storage.TEXT),
)
LIMIT = 30_000
LARGE = "x" * 2 * LIMIT
NAN = float("nan")
COMMITS: tuple[Action, ...] = (
    ("c", "T", None, (1, 1.5, "a")),
    ("c", "T", None, (2, NAN, "b")),
    ("c", "T", None, (3, 2.5, LARGE)),
    ("d", "T", (2, NAN, "b"), None),
    ("c", "T", None, (4, 3.5, "d")),
)


def _nulled(row: tuple | None) -> tuple | None:
    """ROW as versions sent it that put null in place of what they could not send."""
    if row is None:
        return None
    number, n, note = row
    return number, None if n != n else n, None if len(note) > LIMIT else note


def _write(folder: Path, commits: tuple[Action, ...]) -> None:
    history = History(folder, database=DATABASE)
    history.define("T", TABLE)
    for action in commits:
        history.commit(action)


def _kinds(findings: list[Row]) -> list[tuple[str, int]]:
    return sorted((row["kind"], row["sequence"]) for row in findings)


def test_null_in_the_place_of_a_value_is_found(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, topic_prefix: str
) -> None:
    options: dict[str, object] = {
        "kafka.producer.max.request.size": LIMIT,
        "event.processing.failure.handling.mode": "skip",
    }
    shipped = tmp_path / "shipped"
    archive = {"connector.journal.archive.directory": shipped}
    nulled = tuple((op, name, _nulled(old), _nulled(new)) for op, name, old, new in COMMITS)
    _write(tmp_path / "journals", nulled)
    _ship(_config(tmp_path, broker, topic_prefix, **options, **archive))
    _write(tmp_path / "archive", COMMITS)
    comparison, findings = _compare(spark, _config(tmp_path, broker, topic_prefix, **options))
    assert _kinds(findings) == [("altered event", number) for number in (2, 3, 4)]
    assert comparison.kinds["altered event"].is_fault
    for row in findings:
        assert json.loads(row["key"]) == {"ID": 3 if row["sequence"] == 3 else 2}
        assert row["topic"] == f"{topic_prefix}._data_values.fdb.T"
        assert "can't be sent: table T: " in row["what"]
        assert "by null as earlier versions did" in row["what"]
    # Where the value can be sent now, the message has another content than it should have.
    raised = options | {"kafka.producer.max.request.size": 10 * LIMIT}
    _, findings = _compare(spark, _config(tmp_path, broker, topic_prefix, **raised))
    assert _kinds(findings) == [("altered event", number) for number in (2, 3, 4)]


@pytest.mark.parametrize("converter", few_of({"json": "json", "avro": "avro"}, ["avro"]))
def test_placeholders_are_reported_as_undelivered_values(
    spark: SparkSession,
    broker: KafkaBroker,
    registry: SchemaRegistry,
    tmp_path: Path,
    topic_prefix: str,
    converter: str,
) -> None:
    options: dict[str, object] = {
        "kafka.producer.max.request.size": LIMIT,
        "event.oversized.value": "placeholder",
    }
    if converter == "avro":
        for part in ("key", "value"):
            options[f"{part}.converter"] = "avro"
            options[f"{part}.converter.schema.registry.url"] = registry.url
    # The second one is too large as JSON; as Avro it just fits.
    close = "y" * (LIMIT - 600)
    commits: tuple[Action, ...] = (
        ("c", "T", None, (1, 1.5, "a")),
        ("c", "T", None, (2, 1.5, close)),
        ("c", "T", None, (3, 2.5, LARGE)),
        ("u", "T", (3, 2.5, LARGE), (3, 2.5, "b")),
    )
    _write(tmp_path / "journals", commits)
    config = _config(tmp_path, broker, topic_prefix, **options)
    _ship(config)
    comparison, findings = _compare(spark, config)
    placed = (3, 4) if converter == "avro" else (2, 3, 4)
    assert _kinds(findings) == [("placeholder", number) for number in placed]
    assert not comparison.kinds["placeholder"].is_fault
    last = max(findings, key=lambda row: row["sequence"])
    assert (last["table"], last["key"]) == ("T", '{"ID":3}')
    assert last["what"].endswith("as values were too large: before.NOTE")
    (note,) = (text for text in comparison.notes if "placeholders" in text)
    assert note == (
        f"{len(placed)} events have placeholders for values that were too large, of T"
        f" ({len(placed)}): these values were not delivered"
    )
    assert comparison.counts["messages matched"] == len(commits)

    # Under other options they are no falsification either.
    for change in (
        {"kafka.producer.max.request.size": 10 * LIMIT},
        {"event.oversized.value": "quarantine"},
    ):
        config = _config(tmp_path, broker, topic_prefix, **(options | change))
        _, findings = _compare(spark, config)
        assert _kinds(findings) == [("placeholder", number) for number in placed]
        assert all("the rest of it was not compared" in row["what"] for row in findings)


def test_altered_value_beside_a_placeholder_is_found(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, topic_prefix: str
) -> None:
    options: dict[str, object] = {
        "kafka.producer.max.request.size": LIMIT,
        "event.oversized.value": "placeholder",
    }
    config = _config(tmp_path, broker, topic_prefix, **options)
    _write(tmp_path / "journals", (("c", "T", None, (3, 2.5, LARGE)),))
    _ship(config)

    def alter(raws: list[Raw]) -> list[Raw]:
        (raw,) = raws
        assert json.loads(raw.value or b"")["payload"]["after"]["N"] == 2.5
        return [raw._replace(value=(raw.value or b"").replace(b'"N":2.5', b'"N":9.5'))]

    rewrite(broker.bootstrap, {f"{topic_prefix}._data_values.fdb.T": alter})
    _, findings = _compare(spark, config)
    assert _kinds(findings) == [("altered event", 1)]
