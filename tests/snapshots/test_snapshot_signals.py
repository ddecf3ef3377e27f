"""Signals by each channel: each takes effect once, also where the shipper is killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from capture import until
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from snapshot_scene import SnapshotScene

from firebird_cdc.demo.events import ends_of
from firebird_cdc.journal.shipper.snapshots.state import Kind, Snapshot, Status

pytestmark = [
    pytest.mark.engine,
    pytest.mark.kafka,
    pytest.mark.parametrize("delivery", ["transactional"], indirect=True),
]


def _execute(scene: SnapshotScene, table: str, **more: object) -> str:
    return json.dumps({"data-collections": [f"{scene.database}.{table}"], **more})


def _notifications(scene: SnapshotScene, topic: str) -> list[dict[str, str]]:
    consumer = Consumer(
        {
            "bootstrap.servers": scene.broker.bootstrap,
            "group.id": topic,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    found = []
    place = TopicPartition(topic, 0, OFFSET_BEGINNING)
    # A commit is confirmed before it is seen: the end is that of all that was written.
    end = ends_of(AdminClient({"bootstrap.servers": scene.broker.bootstrap}), [place])[topic, 0]
    try:
        consumer.assign([place])
        while True:
            message = consumer.poll(60)
            assert message is not None, f"{topic} does not come to its end, {end}"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                if (message.offset() or 0) >= end:
                    return found
                continue
            found.append(json.loads(message.value() or b""))
    finally:
        consumer.close()


def _with_table(scene: SnapshotScene) -> None:
    scene.attachment.script(
        "CREATE TABLE CDC_SIGNALS (ID VARCHAR(64) PRIMARY KEY, TYPE VARCHAR(32),"
        " DATA VARCHAR(4096))"
    )
    scene.configure(signal_data_collection=f"{scene.database}.CDC_SIGNALS")


def _signal(scene: SnapshotScene, id: str, kind: str, data: str | None) -> None:
    scene.execute("INSERT INTO CDC_SIGNALS VALUES (?, ?, ?)", id, kind, data)


def _tables(snapshot: Snapshot) -> dict[str, Status]:
    return {table.name: table.status for table in snapshot.tables or ()}


def test_signal_table_asks_for_snapshots_and_tells_of_them(scene: SnapshotScene) -> None:
    _with_table(scene)
    topic = f"{scene.prefix}-notifications"
    scene.configure(notification_enabled_channels="sink,log", notification_sink_topic_name=topic)
    scene.start()
    scene.write()
    _signal(scene, "bad", "execute-snapshot", '{"data-collection": ["x"]}')
    _signal(scene, "one", "execute-snapshot", _execute(scene, "ITEM"))
    scene.ended(1)
    _signal(scene, "two", "execute-snapshot", _execute(scene, "PAIR", type="BLOCKING"))
    first, second = scene.ended(2)
    scene.rest()
    scene.check("ITEM", "PAIR")
    assert (first.id, first.kind, first.origin) == ("one", Kind.INCREMENTAL, "source")
    assert (second.id, second.kind, _tables(second)) == (
        "two",
        Kind.BLOCKING,
        {"PAIR": Status.COMPLETED},
    )
    scene.stop()
    told = _notifications(scene, topic)
    of = {id: [each["type"] for each in told if each["id"] == id] for id in ("bad", "one", "two")}
    assert of["bad"] == ["REFUSED"]
    assert (of["one"][0], of["one"][-2:]) == ("STARTED", ["TABLE_SCAN_COMPLETED", "COMPLETED"])
    assert set(of["one"][1:-2]) == {"IN_PROGRESS"}
    assert of["two"] == ["STARTED", "IN_PROGRESS", "TABLE_SCAN_COMPLETED", "COMPLETED"]


def test_signals_of_a_killed_shipper_take_effect_once(scene: SnapshotScene) -> None:
    _with_table(scene)
    scene.start()
    scene.write()
    for number in range(4):
        _signal(scene, f"s{number}", "execute-snapshot", _execute(scene, "PAIR"))
        until("something to be shipped", lambda: scene.state is not None)
        scene.kill()
        scene.start()
    ended = scene.ended(4)
    scene.rest()
    topics = scene.check("PAIR")
    assert [each.id for each in ended] == ["s0", "s1", "s2", "s3"]
    assert topics["PAIR"].twice == 0
    rows = [table.rows for each in ended for table in each.tables or ()]
    assert topics["PAIR"].ops["r"] == sum(rows)
    scene.stop()


def test_topic_and_file_are_heard(scene: SnapshotScene, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir(mode=0o770)
    scene.configure(
        signal_enabled_channels="kafka,file",
        signal_file=str(inbox / "signals"),
        signal_poll_interval_ms="500",
    )
    scene.start()
    scene.write()
    producer = Producer({"bootstrap.servers": scene.broker.bootstrap})
    value = {"id": "by topic", "type": "execute-snapshot", "data": _execute(scene, "PAIR")}
    for key in ("another connector", scene.prefix):
        producer.produce(f"{scene.prefix}-signal", json.dumps(value), key)
    assert producer.flush(60) == 0
    scene.ended(1)
    value = {"id": "by file", "type": "execute-snapshot", "data": _execute(scene, "KEYLESS")}
    (inbox / "signals").write_text(json.dumps(value) + "\n")
    by_topic, by_file = scene.ended(2)
    scene.rest()
    scene.check("PAIR")
    assert (by_topic.id, by_topic.origin) == ("by topic", "kafka")
    assert (by_file.id, by_file.origin) == ("by file", "file")
    until("the file to be removed", lambda: not list(inbox.iterdir()))
    scene.stop()
    scene.start()
    scene.snapshot("execute", "--id", "by file", "--follow", f"{scene.database}.NOTHING")
    assert [(each.id, each.rows) for each in scene.ended(3)[2:]] == [("by file", 0)]
    (inbox / "signals").write_text(json.dumps(value) + "\n")  # the same one, another time
    again = scene.ended(4)[3]
    assert again.id == "by file"
    assert again.rows
    scene.stop()


def _rows(scene: SnapshotScene) -> int:
    state = scene.state
    return 0 if state is None else sum(each.rows for each in (*state.waiting, *state.past))


def test_paused_snapshot_rests_until_it_is_resumed_and_stop_takes_tables_out(
    scene: SnapshotScene,
) -> None:
    scene.start()
    scene.snapshot("pause", "--database", scene.database)
    scene.snapshot("execute", "--id", "x", f"{scene.database}[.](ITEM|PAIR)")
    scene.write()
    until("changes to be shipped", lambda: scene.written > 50)
    state = scene.state
    assert state is not None
    assert state.is_paused
    assert [each.rows for each in state.waiting] == [0]
    assert "PAUSED" in scene.snapshot("status")
    scene.snapshot("resume")
    until("rows", lambda: _rows(scene), 60)
    scene.snapshot("stop", f"{scene.database}.PAIR")
    (ended,) = scene.ended(1)
    scene.rest()
    topics = scene.topics()
    assert topics["ITEM"].ops["r"] >= scene.rows / 2
    if _tables(ended)["PAIR"] is Status.STOPPED:
        assert topics["PAIR"].ops["r"] < scene.rows / 4
    scene.stop()
