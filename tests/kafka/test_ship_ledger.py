"""Shared journals that may still grow, shipped as far as the ledger has numbers for what is in
them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from shipping import Folder, ItemTopic, SharingServer, Ship, first_occurrences

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.journal.folder import ledger
from firebird_cdc.journal.format import SharedJournal
from firebird_cdc.journal.shipper.inbox import ledgers

pytestmark = pytest.mark.kafka

WAYS = pytest.mark.parametrize("transactional", [False, True], ids=["plain", "tx"])


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


@WAYS
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
    assert {path.suffix for path in server.folder.directory.glob("*.log*")} == {".live"}
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


@WAYS
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


def test_what_a_new_ledger_no_longer_names_comes_by_the_index_of_its_journal(
    ship: Ship, server: SharingServer, topic: ItemTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = server.open(), server.open()
    for _ in range(50):
        server.write(first)
        server.write(second)
        server.publish()
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
