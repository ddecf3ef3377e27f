"""The shipper with Avro: a registry that comes and goes, and one that says no."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from columns import column
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import SerializationContext
from gate import Gate
from seen import seen_of
from shipping import ITEM, Event, Folder, Ship, either_way, ids, read_topics
from told import Told

from firebird_cdc.cli import main
from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.registry import SchemaRegistry
from firebird_cdc.journal.format import JournalWriter, Storage
from firebird_cdc.journal.shipper.commands.status import halted_reasons

pytestmark = [pytest.mark.kafka, pytest.mark.registry]

OTHER = "/srv/fb/other.fdb"

Read = Callable[[SchemaRegistry], dict[str, list[Event]]]


def use(ship: Ship, url: str, *, transactional: bool = False) -> None:
    """Let SHIP's shippers write Avro with the registry at URL."""
    for part in ("key", "value"):
        ship.options[f"{part}.converter"] = "avro"
        ship.options[f"{part}.converter.schema.registry.url"] = url
    if transactional:
        ship.options["kafka.producer.transactional.id"] = ship.options["kafka.topic.prefix"]


@pytest.fixture
def read(broker: KafkaBroker, topic_prefix: str) -> Iterator[Read]:
    """Return a reader of the test's topics with Confluent's deserialiser."""
    clients = ExitStack()

    def read_now(registry: SchemaRegistry) -> dict[str, list[Event]]:
        client = clients.enter_context(SchemaRegistryClient({"url": registry.url}))
        deserialize = AvroDeserializer(client)

        def decode(content: bytes, topic: str, part: str) -> Any:
            return deserialize(content, SerializationContext(topic, part))

        return read_topics(broker.bootstrap, topic_prefix, decode=decode)

    with clients:
        yield read_now


@pytest.fixture
def gate(registry: SchemaRegistry) -> Iterator[Gate]:
    """The way to the registry, shut at first."""
    made = Gate(registry.port)
    yield made
    made.end()


@pytest.fixture
def told() -> Iterator[Told]:
    """In the place of a registry."""
    made = Told()
    yield made
    made.end()


def test_tail_shows_rows_of_avro_and_bytes_where_the_registry_is_away(
    ship: Ship,
    folder: Folder,
    registry: SchemaRegistry,
    gate: Gate,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use(ship, registry.url)
    folder.write(1, rows=1)
    shipper = ship.start()
    shipper.await_that(lambda: not folder.waiting, "the journal to be delivered")
    assert shipper.terminate() == 0

    def tail(*options: str) -> tuple[str, str]:
        assert main(["tail", "--once", "--config", str(ship.write_config()), *options]) == 0
        return tuple(capsys.readouterr())  # type: ignore[return-value]

    shown, _ = tail()
    assert "warehouse.fdb 0:1:1 insert ITEM: ID=1000000, " in shown
    assert json.loads(tail("--json")[0])["value"]["after"]["ID"] == 1_000_000
    use(ship, registry.url.replace(str(registry.port), str(gate.port)))  # which is shut
    shown, said = tail()
    assert '"hex"' in shown
    assert said.count("events are shown as bytes: ") == 1


@either_way
def test_absent_registry_is_waited_for_at_the_start_and_in_mid_journal(
    ship: Ship,
    folder: Folder,
    registry: SchemaRegistry,
    gate: Gate,
    read: Read,
    topic_prefix: str,
    transactional: bool,
) -> None:
    use(ship, registry.url.replace(str(registry.port), str(gate.port)), transactional=transactional)
    for sequence in (1, 2):
        folder.write(sequence, rows=3)
    shipper = ship.start()
    line = shipper.await_log("was not delivered: the schema registry at")
    assert f"http://127.0.0.1:{gate.port}/" in line
    gate.open()
    shipper.await_that(lambda: not folder.waiting, "the first journals to be delivered")
    shipper.await_log("journals are delivered again")
    trouble = "was not delivered: the schema registry at"
    told = len(shipper.log_lines(trouble))
    gate.shut()

    def known_then_new(writer: JournalWriter) -> None:
        known = writer.table("ITEM", ITEM)
        for number in range(50):
            writer.insert(known, (number, "x"))
        new = writer.table("NEW", (column("ID", Storage.BIGINT, 1),))
        writer.insert(new, (1,))

    folder.write_changes(3, known_then_new)
    shipper.await_that(lambda: len(shipper.log_lines(trouble)) > told, "the registry to be missed")
    assert folder.waiting
    gate.open()
    shipper.await_that(lambda: not folder.waiting, "the last journal to be delivered")
    assert shipper.terminate() == 0
    found = read(registry)
    stem = f"{topic_prefix}._srv_fb_warehouse.fdb"
    # In order, and none of them twice.
    expected = [s * 1_000_000 + n for s in (1, 2) for n in range(3)] + list(range(50))
    events = found[f"{stem}.ITEM"]
    assert ids(events) == expected
    assert [event.key for event in events] == [{"ID": number} for number in expected]
    assert ids(found[f"{stem}.NEW"]) == [1]
    source = events[0].value["source"]
    assert (source["db"], source["table"], source["pos"]) == ("/srv/fb/warehouse.fdb", "ITEM", 1)


def _other_type(writer: JournalWriter) -> None:
    """The same table, whose NAME has become a number, which no reader of texts understands."""
    table = writer.table("ITEM", (*ITEM[:1], column("NAME", Storage.DOUBLE)))
    writer.insert(table, (2, 1.5))


@either_way
def test_refused_change_of_a_table_stops_its_database_until_the_rule_allows_it(
    ship: Ship,
    folder: Folder,
    registry: SchemaRegistry,
    read: Read,
    topic_prefix: str,
    transactional: bool,
) -> None:
    use(ship, registry.url, transactional=transactional)
    seen = seen_of(ship, folder)
    topic = f"{topic_prefix}._srv_fb_warehouse.fdb.ITEM"
    folder.write(1, first_id=1)
    ship.once()
    with SchemaRegistryClient({"url": registry.url}) as client:
        client.set_compatibility(f"{topic}-value", "BACKWARD")
        folder.write(2, first_id=10)  # on its way when the next one is refused
        folder.write_changes(3, _other_type)
        folder.write(4, first_id=3)
        folder.write(1, database=OTHER)
        shipper = ship.start()
        line = shipper.await_log("was not delivered: event 1: table ITEM: the schema registry")
        refusal = f"refuses the schema of subject {topic}-value"
        assert refusal in line
        assert "HTTP 409" in line
        shipper.await_that(lambda: len(folder.waiting) == 2, "the other database's journal to go")
        # Nobody but its administrator can end that, so it is no trouble that passes.
        shipper.await_that(lambda: seen.row().get("state") == "halted", "the state of the database")
        code, said = seen.ask_status()
        assert code == 1
        assert refusal in said and "shipping paused" in said
        assert [refusal in each for each in halted_reasons(folder.directory)] == [True]
        seen.await_metric(shipper, "database_halted", lambda value: value == 1)
        shipper.await_that(lambda: seen.alarm("halted") == 1, "the alarm")
        assert refusal in seen.unready()
        assert not shipper.log_lines("delivered again")
        client.set_compatibility(f"{topic}-value", "NONE")
        shipper.await_that(lambda: not folder.waiting, "the rest to be delivered")
        shipper.await_log("journals are delivered again")
        shipper.await_that(lambda: seen.row().get("state") == "well", "a database that is well")
        assert seen.ask_status()[0] == 0
        assert not halted_reasons(folder.directory)
        # An answer may be a second older than the report.
        shipper.await_that(lambda: not seen.unready(), "/ready")
        shipper.terminate()
    assert ids(read(registry)[topic]) == [1, 10, 2, 3]


@pytest.mark.parametrize(
    ("answer", "state", "code"),
    [(401, "halted", 1), (503, "waiting", 0)],
)
def test_status_distinguishes_a_refusing_registry_from_an_unavailable_one(
    ship: Ship, folder: Folder, told: Told, answer: int, state: str, code: int
) -> None:
    told.status, told.body = answer, json.dumps({"error_code": answer, "message": "no"}).encode()
    use(ship, f"http://{told.address}")
    seen = seen_of(ship, folder)
    folder.write(1)
    shipper = ship.start()
    shipper.await_that(lambda: f"HTTP {answer}" in str(seen.report), "the trouble")
    shipper.await_that(lambda: seen.row().get("state") == state, "the state of the database")
    shipper.await_that(lambda: seen.alarm(state) == 1, "the alarm")
    found, said = seen.ask_status()
    assert found == code
    assert f"HTTP {answer}" in said
    assert (f"HTTP {answer}" in seen.unready()) == (code == 1)
    assert folder.waiting
    shipper.terminate()


def test_status_reports_an_absent_registry_as_temporary(
    ship: Ship, folder: Folder, registry: SchemaRegistry, gate: Gate
) -> None:
    use(ship, registry.url.replace(str(registry.port), str(gate.port)))
    seen = seen_of(ship, folder)
    folder.write(1)
    shipper = ship.start()
    shipper.await_log("was not delivered: ")
    shipper.await_that(lambda: "can't be used for" in seen.troubles, "the trouble")
    shipper.await_that(lambda: seen.row().get("state") == "waiting", "the state of the database")
    code, said = seen.ask_status()
    assert code == 0
    assert "can't be used for subject" in said and "degraded, retrying automatically" in said
    gate.open()
    shipper.await_that(lambda: not folder.waiting, "the journal to be delivered")
    shipper.await_that(lambda: seen.row().get("state") == "well", "a database that is well")
    shipper.terminate()


def test_refused_change_of_a_table_is_left_out_in_warn_mode(
    ship: Ship, folder: Folder, registry: SchemaRegistry, read: Read, topic_prefix: str
) -> None:
    use(ship, registry.url)
    ship.options["event.processing.failure.handling.mode"] = "warn"
    topic = f"{topic_prefix}._srv_fb_warehouse.fdb.ITEM"
    folder.write(1, first_id=1)
    ship.once()
    with SchemaRegistryClient({"url": registry.url}) as client:
        client.set_compatibility(f"{topic}-value", "BACKWARD")
    folder.write_changes(2, _other_type)
    folder.write(3, first_id=3)
    shipper = ship.once()
    assert shipper.process.returncode == 0
    assert "HTTP 409" in shipper.log_lines("event 1 is left out")[0]
    assert ids(read(registry)[topic]) == [1, 3]


def test_wrong_option_of_avro_ends_in_one_sentence_and_exit_status_2(
    ship: Ship, registry: SchemaRegistry
) -> None:
    use(ship, registry.url)
    ship.options["value.converter.use.latest.version"] = "true"
    shipper = ship.once()
    assert shipper.process.returncode == 2
    assert (
        "value.converter.use.latest.version is 'true'; it needs auto.register.schemas: false"
        in (ship.output(shipper))
    )


def test_example_of_the_docs_reads_the_sent_events(
    ship: Ship,
    folder: Folder,
    broker: KafkaBroker,
    registry: SchemaRegistry,
    topic_prefix: str,
    tmp_path: Path,
) -> None:
    use(ship, registry.url)
    folder.write(1, first_id=7, name="Łódź")
    ship.once()
    text = (Path(__file__).parents[2] / "docs/avro.md").read_text("utf-8")
    example = text.partition("```python\n")[2].partition("```")[0]
    for shown, real in (
        ("http://registry:8081", registry.url),
        ("localhost:9092", broker.bootstrap),
        ('"fb._srv_fb', f'"{topic_prefix}._srv_fb'),
    ):
        assert shown in example
        example = example.replace(shown, real)
    said = subprocess.run(
        [sys.executable, "-c", example], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    assert said == "c {'ID': 7, 'NAME': 'Łódź'}\n"
