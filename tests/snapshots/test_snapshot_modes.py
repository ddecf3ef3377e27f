"""One database under one ``snapshot.mode`` after the other: the rows and changes that come."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from broker_topics import delete_topics
from capture import until
from documented import ROOT, blocks
from snapshot_scene import SnapshotScene

from firebird_cdc.clock import now_us
from firebird_cdc.journal.shipper.snapshots.state import Kind, Snapshot, StateFolder, Status

pytestmark = [pytest.mark.engine, pytest.mark.kafka]

_BASED = "snapshot_mode_configuration_based"


@pytest.fixture
def delivery() -> str:
    """Return the way of sending: with a transactional id Kafka knows what it has."""
    return "transactional"


@pytest.fixture
def policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the class of the page where the scene's shippers find it."""
    folder = tmp_path / "policies"
    folder.mkdir()
    (text,) = (each for each in blocks(ROOT / "docs/snapshots.md", "python") if "Policy" in each)
    (folder / "policy.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def _change(scene: SnapshotScene, name: str) -> None:
    scene.execute(f"UPDATE ITEM SET NAME = '{name}' WHERE ID = 1")


def _start_with_change(scene: SnapshotScene, name: str, **options: str) -> None:
    """Start the shipper with OPTIONS beside a change that gives a row NAME, and wait for that."""
    scene.configure(**options)
    scene.start()
    _change(scene, name)
    until(f"{name} to be delivered", lambda: scene.latest("ITEM", 1) == name, 60)


def _ended_as(scene: SnapshotScene, *kinds: Kind) -> Snapshot:
    """Return the last snapshot, once there were such of these KINDS, and no others."""
    past = scene.ended(len(kinds))
    assert [each.kind for each in past] == list(kinds)
    assert {each.status for each in past} == {Status.COMPLETED}
    assert scene.state is not None
    assert not scene.state.waiting
    return past[-1]


def _check_rows(scene: SnapshotScene, snapshots: int) -> None:
    """See that consumers have the table, and each row once from each of so many SNAPSHOTS."""
    topic = scene.check("ITEM")["ITEM"]
    assert topic.ops["r"] == snapshots * scene.rows
    assert len(set(topic.reads)) == len(topic.reads)


def test_each_mode_sends_the_rows_and_changes_that_it_names(scene: SnapshotScene) -> None:
    kinds = [Kind.INITIAL]
    scene.configure(snapshot_mode="initial_only")
    _change(scene, "before")
    scene.start()
    _ended_as(scene, *kinds)
    _change(scene, "kept")
    waits = "changes wait: snapshot.mode says that only existing rows are sent"
    scene.status_with(waits)
    assert scene.topic("ITEM").ops == {"r": scene.rows}
    assert not scene.shipped()
    scene.stop()

    # Nothing but rows was sent: that is a first snapshot, too, and what waited comes behind it.
    _start_with_change(scene, "always, first", snapshot_mode="always")
    kinds.append(Kind.INITIAL)
    _ended_as(scene, *kinds)
    scene.await_status_without(waits)
    scene.stop()
    _start_with_change(scene, "always, again")
    kinds.append(Kind.BLOCKING)
    _ended_as(scene, *kinds)
    _check_rows(scene, 3)
    scene.stop()

    _start_with_change(scene, "nothing is needed", snapshot_mode="when_needed")
    _ended_as(scene, *kinds)
    scene.stop()
    delete_topics(scene.broker.bootstrap, [f"__firebird-cdc-positions.{scene.prefix}"])
    _start_with_change(scene, "needed")
    kinds.append(Kind.BLOCKING)
    _ended_as(scene, *kinds)
    _check_rows(scene, 4)
    scene.status_with("Kafka no longer has")
    scene.stop()

    stream = {f"{_BASED}_start_stream": "true"}
    _start_with_change(scene, "no rows", snapshot_mode="configuration_based", **stream)
    _ended_as(scene, *kinds)
    scene.stop()


@pytest.mark.usefixtures("policies")
def test_class_of_the_page_decides_for_each_database_and_table(scene: SnapshotScene) -> None:
    shop = scene.directory / "shop.fdb"
    attachment = scene.client.attach(shop, create=True)
    attachment.script(
        "CREATE TABLE ORDERS (ID INTEGER NOT NULL PRIMARY KEY, NAME VARCHAR(9), PLACED DATE)",
        "CREATE TABLE CUSTOMER (ID INTEGER NOT NULL PRIMARY KEY, NAME VARCHAR(9))",
        "INSERT INTO ORDERS VALUES (1, 'old', DATE '2025-12-31')",
        "INSERT INTO ORDERS VALUES (2, 'new', DATE '2026-01-01')",
        "INSERT INTO CUSTOMER VALUES (1, 'first')",
        "ALTER DATABASE INCLUDE ALL TO PUBLICATION",
        "ALTER DATABASE ENABLE PUBLICATION",
    )
    delay_s = 3
    scene.configure(
        snapshot_mode="custom",
        snapshot_query_mode="custom",
        snapshot_custom_class="policy.Policy",
        snapshot_include_collection_list=f"{re.escape(str(shop))}[.]ORDERS",
        snapshot_delay_ms=str(delay_s * 1000),
    )
    attachment.script("INSERT INTO CUSTOMER VALUES (2, 'second')")
    _change(scene, "not wanted by the class")
    began_us = now_us()
    scene.start()

    def ended() -> Snapshot | None:
        states = {
            each.database: each for each in StateFolder(scene.capture.journal_directory).read()
        }
        past = states[str(shop)].past if str(shop) in states else []
        return past[0] if past else None

    snapshot = until("the snapshot to end", ended, 60)
    assert (snapshot.kind, snapshot.status) == (Kind.INITIAL, Status.COMPLETED)
    assert [each.name for each in snapshot.tables or ()] == ["ORDERS"]
    # When it is asked for, Kafka has answered: the delay began before that, with the shipper.
    assert snapshot.started_us - began_us >= delay_s * 1_000_000
    until("all journals to be shipped", scene.shipped, 60)
    orders, customers = (scene.topic(each, str(shop)) for each in ("ORDERS", "CUSTOMER"))
    assert [row["ID"] for row in orders.rows.values()] == [2]
    assert customers.ops == {"c": 1}
    assert scene.topic("ITEM").ops == {"u": 1}
    scene.stop()


def test_select_under_a_link_counts_and_one_for_no_table_is_a_warning(
    scene: SnapshotScene, tmp_path: Path
) -> None:
    link = tmp_path / "linked"
    link.symlink_to(scene.capture.database.parent)
    item = f"{link / scene.capture.database.name}.ITEM"
    name = "snapshot.select.statement.overrides"
    scene.configure(snapshot_mode="initial")
    with scene.capture.config.open("a") as options:  # paths have what stands for a dot elsewhere
        options.write(f"{name}: {item},{item}S\n{name}.{item}S: SELECT 1\n")
        options.write(f"{name}.{item}: SELECT * FROM ITEM WHERE ID < 10\n")
    _change(scene, "seen")
    scene.start()
    _ended_as(scene, Kind.INITIAL)
    assert scene.topic("ITEM").ops["r"] == 10
    scene.status_with(f"{scene.database}.ITEMS has no effect: it is no captured")
    scene.stop()
