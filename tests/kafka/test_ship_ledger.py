"""Shared journals that may still grow, shipped as far as the ledger has numbers for what is in
them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from seen import seen_of
from shipping import (
    Folder,
    ItemTopic,
    SharingServer,
    Ship,
    each_way,
    either_way,
    first_occurrences,
)

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.journal.folder import ledger
from firebird_cdc.journal.format import SharedJournal
from firebird_cdc.journal.shipper.inbox import ledgers
from firebird_cdc.journal.shipper.monitoring.folder import count_alone

pytestmark = pytest.mark.kafka


@pytest.fixture
def server(folder: Folder) -> Iterator[SharingServer]:
    made = SharingServer(folder)
    yield made
    made.end()


@pytest.fixture
def topic(broker: KafkaBroker, topic_prefix: str) -> ItemTopic:
    return ItemTopic(broker.bootstrap, topic_prefix)


@pytest.fixture
def ship(ship: Ship, topic_prefix: str, request: pytest.FixtureRequest) -> Ship:
    """Shippers that send small messages, with a transactional id where the test asks for one."""
    parameters = getattr(getattr(request.node, "callspec", None), "params", {})
    if parameters.get("transactional", True):
        ship.options["kafka.producer.transactional.id"] = f"{topic_prefix}-id"
    ship.options |= {
        "value.converter.schemas.enable": "false",
        "key.converter.schemas.enable": "false",
        "connector.journal.check.interval.ms": "60000",  # it is told of what comes
    }
    return ship


@each_way
def test_transactions_are_sent_while_their_journals_grow_and_the_files_go_once_closed(
    ship: Ship, server: SharingServer, topic: ItemTopic, tmp_path: Path, transactional: bool
) -> None:
    archive = tmp_path / "archive"
    ship.options["connector.journal.archive.directory"] = str(archive)
    server.publish(singles=1)
    shipper = ship.start()
    shipper.await_log("shipping journals of")
    first, second = server.open(), server.open()
    names = {}
    for turn in range(30):
        for journal in (first, second, first):
            names[server.write(journal, 2)] = None
        server.publish(singles=turn % 7 == 3)
    # 90 transactions of two events, and 1 + 4 journals of one
    shipper.await_that(lambda: len(set(topic.places())) == 185, "all events")
    # Who consumes sees an event before its journal goes.
    shipper.await_that(
        lambda: {path.suffix for path in server.folder.directory.glob("*.log*")} == {".live"},
        "the journals of one transaction to go",
    )
    last = server.write(first, 1)
    server.publish()
    server.close(second)
    shipper.await_that(lambda: (archive / f"{second.header.uuid}.log").exists(), "one to go")
    server.close(first)
    shipper.await_that(lambda: not list(server.folder.directory.glob("*.log*")), "both to go")
    assert shipper.terminate() == 0
    events = topic.events()
    numbers = [sequence for sequence, pos in dict.fromkeys(e.position for e in events) if pos == 1]
    assert numbers == list(range(1, 97))
    shared = {e.payload["source"]["journal"] for e in events if e.payload["source"]["pos"] == 2}
    assert shared == set(names)
    assert events[-1].payload["source"]["journal"] == last
    with SharedJournal(archive / f"{first.header.uuid}.log") as kept:
        assert len(kept.places) == 61
    if transactional:
        assert len(events) == len({event.position for event in events})


@each_way
def test_shipper_that_is_killed_goes_on_inside_open_journals(
    ship: Ship, server: SharingServer, topic: ItemTopic, transactional: bool
) -> None:
    first, second = server.open(), server.open()
    count = 0
    for life in range(4):
        shipper = ship.start()
        for _ in range(20):
            count += 2
            server.write(first)
            server.write(second)
            server.publish()
        if life == 2:
            server.close(first)
            first = server.open()
        expected = count
        shipper.await_that(lambda: len(set(topic.places())) >= expected, "the events")  # noqa: B023
        shipper.kill()
        assert "is missing" not in shipper.log
    server.close(first)
    server.close(second)
    shipper = ship.once()
    assert shipper.process.returncode == 0
    assert "is missing" not in shipper.log
    assert not list(server.folder.directory.glob("*.log*"))
    places = topic.places()
    assert first_occurrences(places) == [(number, 1) for number in range(1, count + 1)]
    if transactional:
        assert len(places) == count


@either_way
def test_status_tells_what_waits_in_shared_journals_while_no_shipper_runs(
    ship: Ship, server: SharingServer, transactional: bool
) -> None:
    seen = seen_of(ship, server.folder)
    first, second = server.open(), server.open()
    for _ in range(3):
        server.write(first)
        server.write(second)
    server.publish(singles=1)
    assert "no shipper runs, and 7 transactions wait" in seen.status()
    assert ship.once().process.returncode == 0
    code, text = seen.ask_status()
    assert (code, text.splitlines()[0].partition(": ")[2]) == (0, "all is well")
    assert "backlog   0 transactions; 0 transactions open" in text
    server.write(first)
    server.publish()
    server.write(second)
    server.publish()
    assert "no shipper runs, and 2 transactions wait" in seen.status()
    server.close(first)
    assert "no shipper runs, and 2 transactions wait" in seen.status()
    assert ship.once().process.returncode == 0
    assert seen.ask_status()[0] == 0


@either_way
def test_status_counts_none_too_few_after_the_shipper_was_killed(
    ship: Ship, server: SharingServer, topic: ItemTopic, transactional: bool
) -> None:
    journal = server.open()
    shipper = ship.start()
    for _ in range(20):
        server.write(journal)
        server.publish()
    shipper.await_that(lambda: len(set(topic.places())) == 20, "all events")
    shipper.kill()
    server.write(journal)
    server.publish()
    assert 1 <= count_alone(server.folder.directory).pending <= 21
    assert ship.once().process.returncode == 0
    assert count_alone(server.folder.directory).pending == 0


def test_transaction_that_a_new_ledger_no_longer_names_comes_by_its_journals_index(
    ship: Ship, server: SharingServer, topic: ItemTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = server.open(), server.open()
    for number in range(100):
        server.write(second if number % 2 else first)
        server.publish()  # each in a record of its own
    server.close(first)
    monkeypatch.setattr(ledger, "_LEDGER_LIMIT", 1)
    for _ in range(3):  # each begins a new ledger, as long as it has doubled
        for _ in range(120):
            server.write(second)
        server.publish()
    with server.ledger.exclusive():
        homes = {entry.home for entry in server.ledger.entries()}
    assert homes == {second.header.uuid}
    shipper = ship.start()
    shipper.await_that(lambda: len(topic.places()) == 460, "all events")
    server.close(second)
    shipper.await_that(lambda: not list(server.folder.directory.glob("*.log*")), "both to go")
    assert shipper.terminate() == 0
    assert topic.places() == [(number, 1) for number in range(1, 461)]


def test_waiting_transactions_beyond_a_bound_wait_in_the_ledger_and_are_counted(
    ship: Ship, server: SharingServer, topic: ItemTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "_AHEAD", 10)
    journal = server.open()
    for _ in range(40):
        for _ in range(10):
            server.write(journal)
        server.publish()
    server.close(journal)
    journal = server.open()
    for _ in range(40):
        for _ in range(10):
            server.write(journal)
        server.publish()
    assert ship.once_here() == 0
    assert [sequence for sequence, _ in topic.places()] == list(range(1, 801))


def test_retry_goes_on_with_the_transaction_of_an_open_journal_that_stops_its_database(
    ship: Ship, server: SharingServer, topic: ItemTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    topic.limit()
    ship.options |= {
        "kafka.producer.compression.type": "none",  # or nothing is too large
        "event.processing.failure.handling.mode": "fail",
    }
    journal = server.open()
    server.write(journal)
    giant = server.write(journal, name="b" * 32_000)
    server.write(journal)
    server.publish()
    shipper = ship.start()
    shipper.await_log("shipping paused")
    assert ship.journal("show", giant) == 0
    assert f"journal   {giant}" in capsys.readouterr().out
    topic.widen()
    assert ship.journal("retry", giant) == 0
    shipper.await_that(lambda: len(topic.places()) == 3, "all events")
    assert shipper.terminate() == 0
    assert topic.places() == [(1, 1), (2, 1), (3, 1)]
    assert count_alone(server.folder.directory).pending == 0
