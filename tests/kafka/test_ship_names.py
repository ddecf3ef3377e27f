"""Tables whose names are not ASCII, and tables that would share a topic."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from seen import ask
from shipping import ITEM, Event, Folder, Ship, Shipper, either_way, read_topics
from soaked import few_of

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.service import free_port
from firebird_cdc.journal.events.topic_encoding import topic_of
from firebird_cdc.journal.format import JournalWriter
from firebird_cdc.journal.shipper.commands.status import read_status

pytestmark = pytest.mark.kafka

DATABASE = "/srv/fb/склад.fdb"
ORDERS, GOODS = "Заказы", "Товары"
ENCODING, MODE = "topic.name.encoding", "event.processing.failure.handling.mode"
REDELIVERED = "__firebird_cdc.late"


class Depot:
    """Journals of one database, and what of them is in Kafka."""

    def __init__(self, ship: Ship, folder: Folder, bootstrap: str, prefix: str) -> None:
        self.ship = ship
        self.folder = folder
        self._bootstrap = bootstrap
        self._prefix = prefix

    def insert(self, sequence: int, *rows: tuple[str, int]) -> None:
        """Write the journal of a transaction with ROWS: tables, and ids."""

        def fill(writer: JournalWriter) -> None:
            tables = {name: writer.table(name, ITEM) for name in dict.fromkeys(t for t, _ in rows)}
            for table, number in rows:
                writer.insert(tables[table], (number, str(sequence)))

        self.folder.write_changes(sequence, fill, database=DATABASE)

    def topic(self, table: str, encoding: str) -> str:
        return topic_of(encoding, self._prefix, DATABASE, table)

    def topics(self) -> dict[str, list[Event]]:
        """Return the events in the topics, by name."""
        return read_topics(self._bootstrap, self._prefix)

    def events(self, topic: str) -> list[tuple[str, int, int]]:
        """The events of TOPIC: table, number of the journal, and id; repeats left out."""
        found = [
            (event.payload["source"]["table"], event.position[0], event.payload["after"]["ID"])
            for event in self.topics().get(topic, [])
        ]
        return list(dict.fromkeys(found))

    def ship_all(self, shipper: Shipper) -> None:
        shipper.await_that(lambda: not self.folder.waiting, "all journals shipped")

    def aside(self) -> Sequence[str]:
        return [path.name for path in self.folder.quarantined() if path.suffix == ".log"]

    def needs(self) -> str:
        """Return the actions that ``status`` asks for."""
        return "\n".join(read_status(self.folder.directory)["needs"])

    def start(self) -> Shipper:
        """Start a shipper, and wait until commands find it."""
        shipper = self.ship.start()
        shipper.await_log("shipping journals of")
        return shipper

    def page(self, path: str) -> str:
        """Return the answer of a shipper over HTTP, empty before it listens."""
        try:
            return ask(f"http://127.0.0.1:{self.ship.options['metrics.port']}{path}")
        except ConnectionRefusedError:
            return ""

    def not_delivered(self) -> str:
        """The value of the metric that alarms of tables go by, empty before it is there."""
        name = f'database="{DATABASE}"'
        lines = self.page("/metrics").splitlines()
        found = [
            each.rpartition(" ")[2]
            for each in lines
            if each.startswith("firebird_cdc_tables_not_delivered{") and name in each
        ]
        assert len(found) < 2
        return "".join(found)


@pytest.fixture
def depot(ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str) -> Depot:
    return Depot(ship, folder, broker.bootstrap, topic_prefix)


@pytest.mark.parametrize("encoding", ["transliterate", "escape"])
def test_russian_tables_have_topics_of_their_own(depot: Depot, encoding: str) -> None:
    depot.ship.options |= {ENCODING: encoding, "topic.creation.default.partitions": "1"}
    depot.insert(1, (ORDERS, 1), (GOODS, 1), ("PLAIN_1", 1))
    depot.insert(2, (GOODS, 2), (ORDERS, 2))
    assert depot.ship.once().process.returncode == 0
    for table in (ORDERS, GOODS):
        found = depot.events(depot.topic(table, encoding))
        assert found == [(table, 1, 1), (table, 2, 2)]
    assert len(depot.topics()) == 3
    assert depot.aside() == []


@pytest.mark.parametrize(
    ("mode", "transactional"), [("fail", False), ("warn", True)], ids=["fail-plain", "warn-tx"]
)
def test_tables_that_share_a_topic_by_the_manuals_rule_have_one_owner(
    depot: Depot, topic_prefix: str, mode: str, transactional: bool
) -> None:
    depot.ship.options[MODE] = mode
    if transactional:
        depot.ship.options["kafka.producer.transactional.id"] = f"{topic_prefix}-id"
    depot.insert(1, (ORDERS, 1))
    assert depot.ship.once().process.returncode == 0
    # Its first event comes before any of the table that has the topic: that one keeps it.
    depot.insert(2, (GOODS, 1))
    depot.insert(3, (ORDERS, 2))
    assert depot.ship.once().process.returncode == 1
    topic = depot.topic(ORDERS, "replace")
    assert topic == depot.topic(GOODS, "replace")
    assert depot.events(topic) == [(ORDERS, 1, 1), (ORDERS, 3, 2)]
    assert len(depot.aside()) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_on_a_full_disk_tables_with_topics_are_shipped_from_the_start(
    depot: Depot, small_disk: Path
) -> None:
    """It is shipping that makes room there."""
    depot.folder = depot.ship.folder = Folder(small_disk / "journals")
    depot.ship.options["connector.journal.directory"] = str(depot.folder.directory)
    depot.insert(1, (ORDERS, 1))
    assert depot.ship.once().process.returncode == 0
    depot.insert(2, (ORDERS, 2))
    depot.insert(3, (GOODS, 1))
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(1024))
    shipper = depot.start()
    shipper.await_log("shared-topics can't be written anew ([Errno 28]")
    topic = depot.topic(ORDERS, "replace")
    shipper.await_that(lambda: (ORDERS, 2, 2) in depot.events(topic), "the table that is known")
    filler.unlink()
    depot.ship_all(shipper)
    assert shipper.terminate() == 0
    assert depot.events(topic) == [(ORDERS, 1, 1), (ORDERS, 2, 2)]
    assert len(depot.aside()) == 1


def test_tables_keep_their_topics_though_the_folder_is_made_anew(
    depot: Depot, tmp_path: Path
) -> None:
    shipper = depot.start()
    depot.insert(1, (ORDERS, 1))
    depot.ship_all(shipper)
    depot.folder.directory.rename(tmp_path / "unmounted")
    shipper.await_log("is gone; create it again")
    depot.folder.directory.mkdir()
    shipper.await_log("is back")
    depot.insert(1, (ORDERS, 2))
    depot.ship_all(shipper)
    assert shipper.terminate() == 0
    depot.insert(2, (GOODS, 1))
    assert depot.ship.once().process.returncode == 1
    assert depot.events(depot.topic(GOODS, "replace")) == [(ORDERS, 1, 1), (ORDERS, 1, 2)]


def test_tables_sharing_a_schema_name_keep_their_owner_over_a_restart(
    depot: Depot,
) -> None:
    depot.ship.options["schema.name.adjustment.mode"] = "avro"
    depot.insert(1, ("A_B", 1), ("A-B", 1))
    assert depot.ship.once().process.returncode == 1
    depot.insert(2, ("A-B", 2), ("A_B", 2))
    assert depot.ship.once().process.returncode == 1
    assert depot.events(depot.topic("A_B", "replace")) == [("A_B", 1, 1), ("A_B", 2, 2)]
    assert depot.topic("A-B", "replace") not in depot.topics()


@pytest.mark.parametrize(
    ("mode", "transactional"),
    few_of({"fail-tx": ("fail", True), "skip-plain": ("skip", False)}, ["fail-tx"]),
)
def test_later_of_two_colliding_tables_is_quarantined_and_can_be_sent(
    depot: Depot,
    topic_prefix: str,
    mode: str,
    transactional: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ship = depot.ship
    ship.options |= {MODE: mode, "provide.transaction.metadata": "true"}
    if transactional:
        ship.options["kafka.producer.transactional.id"] = f"{topic_prefix}-id"
    ship.options["metrics.port"] = str(free_port())
    shipper = depot.start()
    depot.insert(1, (ORDERS, 1), (GOODS, 1), ("PLAIN", 1))
    depot.insert(2, (GOODS, 1), (GOODS, 2))
    depot.insert(3, ("PLAIN", 2), (ORDERS, 2))
    depot.ship_all(shipper)
    shared = depot.topic(ORDERS, "replace")
    assert depot.events(shared) == [(ORDERS, 1, 1), (ORDERS, 3, 2)]
    assert depot.events(depot.topic("PLAIN", "replace")) == [("PLAIN", 1, 1), ("PLAIN", 3, 2)]
    assert len(depot.aside()) == 2

    told = (
        f"table {GOODS} in {DATABASE} is not delivered, events of it in 2 journals are quarantined"
    )
    shipper.await_that(lambda: told in depot.needs(), "status to tell of it")
    assert "set topic.name.encoding: escape" in depot.needs()
    assert "shipping paused" not in shipper.log
    [line] = shipper.log_lines("QUARANTINED")  # once for a table, not for each event
    assert GOODS in line
    shipper.await_that(lambda: depot.not_delivered() == "1.0", "the metric to tell of it")
    assert told in depot.page("/status.json")
    ends = [
        (event.payload["event_count"], len(event.payload["data_collections"]))
        for event in depot.topics()[f"{topic_prefix}.transaction"]
        if event.payload["status"] == "END"
    ]
    assert set(ends) == {(2, 2)}  # none of the transaction that has no other events

    # Nothing has changed, so it stays.
    assert ship.journal("retry", "--all") == 1
    assert "would share the topic" in capsys.readouterr().out
    assert len(depot.aside()) == 2
    assert shipper.terminate() == 0
    assert told in depot.needs()  # without a shipper, too

    ship.options[ENCODING] = "escape"
    shipper = depot.start()
    assert depot.ship.folder.waiting == []
    assert told in depot.needs()
    depot.insert(4, (GOODS, 3), (ORDERS, 3), ("PLAIN", 3))  # other keys than those that wait
    depot.ship_all(shipper)
    assert ship.journal("retry", "--all") == 0
    assert depot.aside() == []
    shipper.await_that(lambda: GOODS not in depot.needs(), "status to say that all is well")
    assert shipper.terminate() == 0
    escaped = depot.topic(GOODS, "escape")
    assert depot.events(escaped) == [(GOODS, 4, 3), (GOODS, 1, 1), (GOODS, 2, 1), (GOODS, 2, 2)]
    redelivered = [REDELIVERED in event.headers for event in depot.topics()[escaped]]
    assert redelivered[-3:] == [True] * 3
    assert depot.events(depot.topic(ORDERS, "escape")) == [(ORDERS, 4, 3)]
    assert depot.events(shared) == [(ORDERS, 1, 1), (ORDERS, 3, 2)]


@either_way
def test_quarantined_events_retried_first_precede_newer_events(
    depot: Depot, topic_prefix: str, transactional: bool
) -> None:
    ship = depot.ship
    if transactional:
        ship.options["kafka.producer.transactional.id"] = f"{topic_prefix}-id"
    depot.insert(1, (ORDERS, 1))
    for sequence in range(2, 12):
        depot.insert(sequence, (GOODS, sequence % 2))
    assert ship.once().process.returncode == 1
    assert len(depot.aside()) == 10

    # As the documentation has it: no shipper runs while the option is changed.
    for sequence in range(12, 16):
        depot.insert(sequence, (GOODS, sequence % 2))
    ship.options[ENCODING] = "transliterate"
    assert ship.journal("retry", "--all") == 0
    shipper = depot.start()
    depot.ship_all(shipper)
    shipper.await_that(lambda: not depot.aside(), "all left out events sent")
    assert shipper.terminate() == 0
    found = depot.events(depot.topic(GOODS, "transliterate"))
    assert [journal for _, journal, _ in found] == list(range(2, 16))


def test_redelivery_behind_a_newer_event_of_its_key_is_refused(
    depot: Depot, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though the newer one is in a topic that nobody knew when the older one was set aside."""
    ship = depot.ship
    depot.insert(1, (ORDERS, 1), (GOODS, 1))
    depot.insert(2, (GOODS, 2))
    assert ship.once().process.returncode == 1
    ship.options[ENCODING] = "escape"
    depot.insert(3, (GOODS, 1))
    assert ship.once().process.returncode == 0
    shipper = depot.start()
    assert ship.journal("retry", "--all") == 1
    told = capsys.readouterr().out
    assert f"event 1 of journal 3 of {DATABASE}, of the same key" in told
    assert len(depot.aside()) == 1
    assert ship.journal("retry", "--all", "--force") == 0
    assert shipper.terminate() == 0
    found = depot.events(depot.topic(GOODS, "escape"))
    assert [(journal, number) for _, journal, number in found] == [(3, 1), (2, 2), (1, 1)]


def test_excluding_the_owning_table_lets_the_other_use_the_topic(depot: Depot) -> None:
    ship = depot.ship
    depot.insert(1, (ORDERS, 1), (GOODS, 1))
    assert ship.once().process.returncode == 1
    ship.options["table.exclude.list"] = f".*[.]{ORDERS}"
    shipper = depot.start()
    assert ship.journal("retry", "--all") == 0
    assert shipper.terminate() == 0
    topic = depot.topic(GOODS, "replace")
    assert depot.events(topic) == [(ORDERS, 1, 1), (GOODS, 1, 1)]
    assert depot.aside() == []


def test_given_up_events_end_the_alarm(depot: Depot, capsys: pytest.CaptureFixture[str]) -> None:
    ship = depot.ship
    shipper = depot.start()
    depot.insert(1, (ORDERS, 1), (GOODS, 1))
    depot.ship_all(shipper)
    shipper.await_that(lambda: f"table {GOODS}" in depot.needs(), "status to tell of it")
    [name] = depot.aside()
    assert ship.journal("discard", "--yes", name) == 0
    shipper.await_that(lambda: not depot.needs(), "status to say that all is well")
    assert shipper.terminate() == 0


@pytest.mark.parametrize(
    ("options", "table", "why"),
    [
        ({"topic.delimiter": "_" * 100}, "Т" * 63, "characters, Kafka allows 249"),
        ({"topic.naming.strategy": "table"}, "transaction", "is that of transactions"),
    ],
    ids=["too long", "reserved"],
)
def test_other_names_that_cant_be_used_hold_up_no_other_table(
    depot: Depot, topic_prefix: str, options: dict[str, str], table: str, why: str
) -> None:
    depot.ship.options |= options | {"provide.transaction.metadata": "true"}
    depot.insert(1, (table, 1), ("PLAIN", 1))
    assert depot.ship.once().process.returncode == 1
    assert why in depot.needs()
    assert len(depot.aside()) == 1
    plain = [name for name in depot.topics() if name.endswith("PLAIN")]
    assert depot.events(plain[0]) == [("PLAIN", 1, 1)]
