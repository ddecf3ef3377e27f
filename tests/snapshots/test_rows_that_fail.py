"""Snapshots with rows and tables that can't be sent, or take long: all others are, and once."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path

import pytest
from capture import until, users_of
from snapshot_scene import SnapshotScene
from soaked import in_turn

from firebird_cdc.cli import main
from firebird_cdc.journal.shipper.snapshots.state import Kind, Snapshot, Status, TableProgress

pytestmark = [
    pytest.mark.engine,
    pytest.mark.kafka,
    pytest.mark.parametrize("delivery", ["transactional"], indirect=True),
]

_FIFTEEN = """EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN
WHILE (I < 15) DO BEGIN INSERT INTO {table} VALUES ({values}); I = I + 1; END END"""


def _prepare(scene: SnapshotScene, *statements: str) -> None:
    """Run STATEMENTS while nothing is published, and have an initial snapshot due."""
    scene.attachment.script(
        "ALTER DATABASE DISABLE PUBLICATION", *statements, "ALTER DATABASE ENABLE PUBLICATION"
    )
    scene.configure(snapshot_mode="initial", snapshot_fetch_size="10")
    scene.execute("UPDATE ITEM SET NAME = 'meanwhile' WHERE ID = 1")


def _tables(snapshot: Snapshot) -> dict[str, TableProgress]:
    return {table.name: table for table in snapshot.tables or ()}


def _waits(scene: SnapshotScene) -> bool:
    """Tell whether it waits for the row that has no form: it may wait for something else first."""
    waits = "the snapshot waits: table BAD: column T: its bytes are no text"
    return waits in scene.capture.log.read_text("utf-8")


@in_turn("blocking, readers", {"initial": (False, "1"), "blocking": (True, "2")})
def test_row_that_has_no_form_keeps_only_its_table_from_a_snapshot_of_one_moment(
    scene: SnapshotScene, blocking: bool, readers: str
) -> None:
    _prepare(
        scene,
        "CREATE TABLE BAD (T VARCHAR(10) CHARACTER SET NONE NOT NULL PRIMARY KEY)",
        _FIFTEEN.format(table="BAD", values="'good ' || :I"),
        "INSERT INTO BAD VALUES (CAST(x'FF80' AS VARCHAR(10) CHARACTER SET OCTETS))",
    )
    scene.configure(snapshot_max_threads=readers)
    if blocking:
        scene.configure(snapshot_mode="never")
    scene.start()
    if blocking:
        words = ("--blocking", f"{scene.database}[.].*")
        scene.snapshot("execute", "--database", scene.database, *words)
    until("it to wait", lambda: _waits(scene), 60)
    scene.execute("UPDATE ITEM SET NAME = 'later' WHERE ID = 2")
    until("the change to be delivered", lambda: scene.latest("ITEM", 2) == "later", 60)
    state = scene.state
    assert state is not None
    (waiting,) = state.waiting
    assert waiting.kind is Kind.INCREMENTAL
    assert "part by part: table BAD: column T: its bytes are no text" in waiting.why
    assert [table.name for table in waiting.open_tables] == ["BAD"]
    scene.attachment.script(
        "ALTER DATABASE DISABLE PUBLICATION",
        "UPDATE BAD SET T = 'mended' WHERE T NOT STARTING WITH 'good'",
        "ALTER DATABASE ENABLE PUBLICATION",
    )
    (ended,) = scene.ended()
    topics = scene.check()
    assert ended.status is Status.COMPLETED
    assert _tables(ended)["BAD"].rows == 16
    assert topics["ITEM"].ops["r"] == scene.rows
    assert topics["KEYLESS"].bag == scene.tables()["KEYLESS"]
    assert scene.topic("BAD").ops["r"] == 16
    scene.stop()


def test_table_without_a_key_is_left_out_where_a_row_behind_others_has_no_form(
    scene: SnapshotScene,
) -> None:
    large = "REPLACE(CAST(RPAD('x', 8000, 'x') AS BLOB), 'x', RPAD('x', 500, 'x'))"
    _prepare(
        scene,
        "CREATE TABLE LOOSE (ID INTEGER, B BLOB SUB_TYPE TEXT)",
        _FIFTEEN.format(table="LOOSE", values=":I, NULL"),
        f"INSERT INTO LOOSE VALUES (15, {large})",
    )
    scene.start()
    (ended,) = scene.ended()
    topics = scene.check()
    loose = _tables(ended)["LOOSE"]
    assert (ended.kind, ended.windows) == (Kind.INITIAL, 1)
    assert (loose.status, loose.rows) == (Status.SKIPPED, 10)
    assert "does not fit into a message" in loose.why
    assert "without a key it can't be read in parts" in loose.why
    assert topics["PAIR"].ops["r"] == _tables(ended)["PAIR"].rows > 0
    scene.stop()


_POLICY = """class Policy:
    def query(self, table):
        return "SELECT * FROM PAIR WHERE C > 'abc'" if table.endswith(".PAIR") else None
"""


def test_select_that_fails_at_a_row_leaves_only_its_table_out(
    scene: SnapshotScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scene.directory / "failing_policy.py").write_text(_POLICY)
    monkeypatch.setenv("PYTHONPATH", str(scene.directory))
    _prepare(scene)
    scene.configure(snapshot_query_mode="custom", snapshot_custom_class="failing_policy.Policy")
    scene.start()
    (ended,) = scene.ended()
    topics = scene.check("ITEM")
    pair = _tables(ended)["PAIR"]
    assert (ended.kind, ended.status, ended.windows) == (Kind.INITIAL, Status.COMPLETED, 1)
    assert (pair.status, pair.rows) == (Status.SKIPPED, 0)
    assert "the SELECT for table PAIR: conversion error" in pair.why
    assert topics["ITEM"].ops["r"] == scene.rows
    scene.stop()


@in_turn("mode", ["fail", "warn"])
def test_table_whose_columns_share_a_field_is_left_out_of_a_snapshot(
    scene: SnapshotScene, mode: str
) -> None:
    _prepare(
        scene,
        'CREATE TABLE BAD (ID INTEGER NOT NULL PRIMARY KEY, "A b" INTEGER, "A_b" INTEGER)',
        _FIFTEEN.format(table="BAD", values=":I, 1, 2"),
    )
    scene.configure(field_name_adjustment_mode="avro", event_processing_failure_handling_mode=mode)
    scene.start()
    (ended,) = scene.ended()
    topics = scene.check()
    bad = _tables(ended)["BAD"]
    assert (ended.kind, ended.status, ended.windows) == (Kind.INITIAL, Status.COMPLETED, 1)
    assert (bad.status, bad.rows, bad.left_out) == (Status.SKIPPED, 0, 0)
    assert "would share the field A_b" in bad.why
    assert topics["ITEM"].ops["r"] == scene.rows
    scene.stop()


_SLOWLY = """CREATE FUNCTION SLOWLY (N INTEGER) RETURNS INTEGER AS
DECLARE I INTEGER = 0; BEGIN WHILE (I < 20000) DO I = I + 1; RETURN N; END"""

_HURRY = """from firebird_cdc.journal.shipper.snapshots import attempts
attempts._READ_S = attempts._PATIENCE_S = 2.0
attempts._FIRST_NUMBERS = 2048  # of some more than 10,000 that ITEM has
"""


def _hurry(scene: SnapshotScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have parts given up after two seconds, and ITEM be read in some more."""
    scene.attachment.script(_SLOWLY)
    (scene.directory / "sitecustomize.py").write_text(_HURRY)
    monkeypatch.setenv("PYTHONPATH", str(scene.directory))


_NEVER = f"SELECT * FROM ITEM WHERE SLOWLY(ID) + {' + '.join(['SLOWLY(1)'] * 99)} = 0 ORDER BY ID"
"""Gives no row, for many minutes."""


def _phase(scene: SnapshotScene) -> str:
    return str((scene.report().get("snapshot") or {}).get("phase", ""))


def test_first_row_of_a_select_may_take_long_in_a_snapshot_of_one_moment(
    scene: SnapshotScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hurry(scene, monkeypatch)
    scene.start()
    words = ("--database", scene.database, "--where")
    select = "SELECT * FROM ITEM WHERE SLOWLY(1) = 1 ORDER BY ID"
    scene.snapshot("execute", "--blocking", *words, select, f"{scene.database}.ITEM")
    (ended,) = scene.ended()
    assert (ended.status, ended.windows) == (Status.COMPLETED, 1)
    assert ended.ended_us - ended.started_us > 2_500_000, "too quick to tell"
    assert scene.topic("ITEM").ops["r"] == scene.rows
    scene.stop()


def test_snapshot_that_reads_for_long_hears_that_it_is_to_end(
    scene: SnapshotScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hurry(scene, monkeypatch)
    scene.start()
    words = ("--database", scene.database, "--where")
    scene.snapshot("execute", "--blocking", *words, _NEVER, f"{scene.database}.ITEM")
    until("it to read", lambda: _phase(scene) == "reading", 60)
    scene.snapshot("stop", "--database", scene.database)
    (ended,) = scene.ended()
    assert ended.status is Status.STOPPED
    scene.execute("UPDATE ITEM SET NAME = 'later' WHERE ID = 2")
    until("the change to be delivered", lambda: scene.latest("ITEM", 2) == "later", 60)
    scene.stop()


def test_snapshot_that_reads_for_long_gives_way_before_commits_are_refused(
    scene: SnapshotScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hurry(scene, monkeypatch)
    limit = 64 * 1024 * 1024
    scene.configure(
        connector_journal_max_bytes=str(limit), connector_journal_warn_bytes=str(limit // 8)
    )
    scene.start()
    words = ("--database", scene.database, "--where", _NEVER)
    scene.snapshot("execute", "--blocking", *words, f"{scene.database}.ITEM")
    until("it to read", lambda: _phase(scene) == "reading", 60)
    text = "x" * 600_000
    for number in range(60):  # more than half of the limit
        scene.execute("INSERT INTO ITEM (ID, NOTE) VALUES (?, ?)", str(5_000_000 + number), text)
    until("the changes to go on", lambda: scene.topic("ITEM").ops["c"] == 60, 120)
    scene.snapshot("stop", "--database", scene.database)
    (ended,) = scene.ended()
    assert ended.kind is Kind.INCREMENTAL
    assert "too many changes waited" in ended.why
    scene.stop()


def _has_updates(scene: SnapshotScene, count: int) -> bool:
    return scene.topic("ITEM").ops["u"] == count


def test_condition_that_one_row_fulfils_is_looked_for_in_parts_beside_changes(
    scene: SnapshotScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hurry(scene, monkeypatch)
    scene.start()
    words = ("--database", scene.database, "--where", "SLOWLY(ID) < 0 OR ID = 2999")
    scene.snapshot("execute", *words, f"{scene.database}.ITEM")
    last = 0
    while not (state := scene.state) or not state.past:
        last += 1
        scene.execute(f"UPDATE ITEM SET PRICE = {last} WHERE ID = 1")
        until("the change to be delivered", partial(_has_updates, scene, last), 60)
    (ended,) = scene.ended()
    assert (ended.status, ended.rows, scene.topic("ITEM").ops["r"]) == (Status.COMPLETED, 1, 1)
    dropped = scene.capture.log.read_text("utf-8").count("a window of the snapshot is dropped")
    # A part of all rows is too long; how many are not, the machine decides.
    assert dropped > 0
    assert ended.windows - dropped > 2
    scene.stop()


def _lose_blob(database: Path, content: bytes) -> None:
    """Take the record with CONTENT out of the index of its data page, as if it were not there."""
    raw = bytearray(database.read_bytes())
    (size,) = struct.unpack_from("<H", raw, 16)  # these numbers: ods.h of the engine
    found = [
        entry
        for page in range(0, len(raw), size)
        if raw[page] == 5
        for entry in range(
            page + 24, page + 24 + 4 * struct.unpack_from("<H", raw, page + 22)[0], 4
        )
        for at, length in [struct.unpack_from("<HH", raw, entry)]
        if content in raw[page + at : page + at + length]
    ]
    assert len(found) == 1
    raw[found[0] : found[0] + 4] = bytes(4)
    database.write_bytes(raw)


def test_blob_that_the_database_has_not_got_is_told_until_acknowledged(
    scene: SnapshotScene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.attachment.close()
    until("nobody to have the database open", lambda: not users_of(scene.capture.database))
    _lose_blob(scene.capture.database, b"note 1230")
    scene.attachment = scene.client.attach(scene.capture.database)
    _prepare(scene)
    scene.start()
    (ended,) = scene.ended()
    item = _tables(ended)["ITEM"]
    assert (item.status, item.rows, item.unread) == (Status.COMPLETED, scene.rows, 1)
    rows = scene.topic("ITEM").rows.values()
    assert {row["ID"] for row in rows if row["NOTE"] == "__debezium_unavailable_value"} == {1230}
    told = 'BLOBs that the database has not got: after.NOTE of table ITEM, key {"ID":1230}'
    assert told in scene.capture.log.read_text("utf-8")
    scene.stop()

    def status() -> str:
        capsys.readouterr()
        main(["status", "--config", str(scene.capture.config)])
        return capsys.readouterr().out

    assert "ended without some rows" in status() and "values of 1 rows of ITEM" in status()
    assert main(["journal", "acknowledge", "--config", str(scene.capture.config)]) == 0
    assert "values of" not in status()
