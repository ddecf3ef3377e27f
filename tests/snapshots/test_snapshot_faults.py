"""Snapshots whose reader hangs, whose shipper is stopped, or whose database a DBA works on."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest
from capture import SqlError, until
from snapshot_scene import SnapshotScene
from soaked import in_turn

from firebird_cdc.config.connector import load_config
from firebird_cdc.demo.processes import stand_still
from firebird_cdc.journal.shipper.snapshots import reader_process
from firebird_cdc.journal.shipper.snapshots.state import Kind, Status
from firebird_cdc.journal.snapshot.attachment import DatabaseConnection
from firebird_cdc.journal.snapshot.worker import Setup

sys.path.insert(1, str(Path(__file__).parents[1] / "faults"))
sys.path.insert(1, str(Path(__file__).parents[1] / "delivery"))

from snapshot_steps import readers_of

pytestmark = [
    pytest.mark.engine,
    pytest.mark.kafka,
    pytest.mark.parametrize("delivery", ["transactional"], indirect=True),
]

_DBA = Path(__file__).parents[1] / "engine" / "dba_work.py"
_SECONDS = 60.0  # what a DBA may have to wait on a busy machine; what holds him up would for ever


def _begin(scene: SnapshotScene, *words: str) -> None:
    """Start the shipper, and ask for a snapshot in small parts."""
    scene.configure(incremental_snapshot_chunk_size="10", snapshot_fetch_size="10")
    scene.start()
    scene.snapshot("execute", "--database", scene.database, *words, f"{scene.database}[.].*")


def _reader(scene: SnapshotScene) -> int:
    assert scene.shipper is not None
    pid = scene.shipper.pid
    return until("a reader process", lambda: readers_of(pid), 60)[0]


def _keep_stopped(pid: int) -> None:
    with suppress(ProcessLookupError):
        while True:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.01)


def _begin_held(scene: SnapshotScene, *words: str) -> None:
    """Begin as ``_begin``, and wait for the first rows, behind which the reader stays until
    ``let_read``."""
    scene.hold_readers()
    _begin(scene, *words)
    until("rows", lambda: _rows(scene) > 0, 60)


def _begin_hung(scene: SnapshotScene) -> int:
    """Begin as ``_begin``, and return the reader, which hangs amid the snapshot."""
    _begin_held(scene)
    hung = _reader(scene)
    stand_still(hung)
    scene.let_read()
    return hung


def _rows(scene: SnapshotScene) -> int:
    state = scene.state
    return 0 if state is None else sum(each.rows for each in (*state.waiting, *state.past))


def _change(scene: SnapshotScene, name: str) -> None:
    scene.execute(f"UPDATE ITEM SET NAME = '{name}' WHERE ID = 1")


def test_reader_that_hangs_is_given_up_where_changes_wait(scene: SnapshotScene) -> None:
    _begin_hung(scene)
    _change(scene, "meanwhile")
    # Where no change waits, a part may take two minutes.
    until("the change to be delivered", lambda: scene.latest("ITEM", 1) == "meanwhile", 90)
    (ended,) = scene.ended()
    assert ended.status is Status.COMPLETED
    scene.check()
    assert "the reader process does not answer" in scene.capture.log.read_text("utf-8")
    scene.stop()


def test_reader_that_hangs_while_nobody_asks_it_goes_before_writers_wait_long(
    scene: SnapshotScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while the broker is away: rows wait to be sent, and no answer is waited for."""
    for name, value in scene.capture.environment().items():
        monkeypatch.setenv(name, value)
    setup = Setup(
        load_config(scene.capture.config),
        DatabaseConnection(scene.database, "SYSDBA"),
        scene.database,
        [],
    )
    reader = reader_process.ReaderProcess(setup, lambda: None)
    try:
        reader.ask({"do": "attach"})
        assert "failed" not in until("it to attach", reader.take, 60)
        # Not before: on a busy machine it may take longer to begin.
        monkeypatch.setattr(reader_process, "_SILENT_S", 5.0)
        (pid,) = readers_of(os.getpid())
        stopper = Thread(target=_keep_stopped, args=(pid,), daemon=True)
        stopper.start()
        _change(scene, "meanwhile")
        until("the reader to end", lambda: not Path(f"/proc/{pid}").exists(), 60)
        reader.ask({"do": "close"})
        told = until("to be told", reader.take, 60)
        assert "the reader process does not answer" in told["failed"]
    finally:
        reader.close()


def test_shipper_ends_in_time_with_a_reader_that_hangs(scene: SnapshotScene) -> None:
    scene.configure(kafka_producer_close_timeout_ms="30000")
    hung = _begin_hung(scene)
    scene.stop()
    log = scene.capture.log.read_text("utf-8")
    assert "shipper ends now, with work unfinished" not in log, "its time was over"
    assert not Path(f"/proc/{hung}").exists()
    scene.start()
    scene.ended()
    scene.check()
    scene.stop()


def test_reader_that_hangs_goes_with_a_shipper_that_is_killed(scene: SnapshotScene) -> None:
    hung = _begin_hung(scene)
    scene.kill()
    until("the reader to end", lambda: not Path(f"/proc/{hung}").exists(), _SECONDS)
    _change(scene, "meanwhile")  # for which nobody holds a page
    scene.start()
    scene.ended()
    scene.check()
    scene.stop()


def test_once_takes_the_snapshot_that_is_due_and_ends(scene: SnapshotScene) -> None:
    scene.configure(snapshot_mode="initial", connector_journal_transactions="1")
    _change(scene, "first")
    until("it to be confirmed", scene.capture.committed)  # or there is nothing to do
    scene.start("--once")
    assert scene.shipper is not None
    assert scene.shipper.wait(60) == 0
    (ended,) = scene.ended()
    assert (ended.kind, ended.status) == (Kind.INITIAL, Status.COMPLETED)
    scene.check()


def test_snapshot_goes_on_once_the_journal_folder_is_back(scene: SnapshotScene) -> None:
    _begin_held(scene)
    away = scene.directory / "away"
    scene.capture.journal_directory.rename(away)
    until("it to be missed", lambda: "is gone; create it" in scene.capture.log.read_text(), 60)
    scene.let_read()
    away.rename(scene.capture.journal_directory)
    (ended,) = scene.ended()
    topics = scene.check()
    for table in ended.tables or ():
        if not table.torn_by_pause:  # another one is read anew where its window is lost
            assert topics[table.name].ops["r"] == table.rows, table.name
    scene.stop()


@in_turn("kind", {"blocking": "--blocking", "incremental": ""})
def test_database_can_be_shut_down_amid_a_snapshot(scene: SnapshotScene, kind: str) -> None:
    client = scene.capture.client()
    _begin_held(scene, *filter(None, [kind]))
    before = _rows(scene)
    began = time.monotonic()
    client.perform(_DBA, "shut_down", scene.database, "FULL", 0)
    assert time.monotonic() - began < _SECONDS
    scene.let_read()

    def is_noticed() -> bool:
        assert scene.state is not None
        assert not scene.state.past, "the snapshot ended before the database was shut down"
        return "the snapshot waits" in scene.capture.log.read_text()

    until("it to be noticed", is_noticed, 60)
    client.perform(_DBA, "bring_online", scene.database)
    scene.attach_again()
    (ended,) = scene.ended()
    assert ended.rows >= before
    scene.check()
    scene.stop()


def test_database_can_be_dropped_while_its_snapshot_waits(scene: SnapshotScene) -> None:
    scene.attachment.script("ALTER DATABASE DISABLE PUBLICATION")
    _begin(scene)
    until("it to wait", lambda: "its publication is off" in scene.capture.log.read_text(), 60)
    until("the database to be dropped", lambda: _drop_database(scene), _SECONDS)
    scene.stop()


def _drop_database(scene: SnapshotScene) -> bool:
    """Drop the database; False: somebody else uses it."""
    scene.attach_again()
    try:
        scene.attachment.drop_database()
    except SqlError as error:
        assert "in use" in str(error)
        return False
    return True


_SLOWLY = """CREATE FUNCTION SLOWLY (N INTEGER) RETURNS INTEGER AS
DECLARE I INTEGER = 0; BEGIN WHILE (I < 400000) DO I = I + 1; RETURN N; END"""

_SLOW_POLICY = """class Policy:
    def query(self, table):
        return "SELECT * FROM ITEM WHERE SLOWLY(1) = 1" if table.endswith(".ITEM") else ""
"""


@in_turn("kind, action", {"blocking": (Kind.BLOCKING, "stop"), "initial": (Kind.INITIAL, "pause")})
def test_table_and_database_can_be_dropped_once_their_snapshot_is_asked_to_let_go(
    scene: SnapshotScene, kind: Kind, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scene.directory / "slow_policy.py").write_text(_SLOW_POLICY)
    monkeypatch.setenv("PYTHONPATH", str(scene.directory))
    scene.attachment.script(_SLOWLY)
    scene.configure(
        snapshot_fetch_size="2",
        snapshot_query_mode="custom",
        snapshot_custom_class="slow_policy.Policy",
    )
    if kind is Kind.INITIAL:
        scene.configure(snapshot_mode="initial")
    _change(scene, "first")
    scene.start()
    if kind is Kind.BLOCKING:
        words = ("--blocking", f"{scene.database}[.]ITEM")
        scene.snapshot("execute", "--database", scene.database, *words)
    until("rows", lambda: _rows(scene) > 0, 60)
    assert not _drop_database(scene)
    dba = scene.capture.client().attach(scene.capture.database)
    dba.begin(lock_timeout=0)
    dba.immediate("DROP TABLE ITEM")
    with pytest.raises(SqlError, match='object TABLE "ITEM" is in use'):
        dba.commit()
    dba.rollback()
    dropping = Thread(target=dba.script, args=("DROP TABLE ITEM",))
    dropping.start()
    dropping.join(1)
    assert dropping.is_alive(), "nothing holds the table"
    scene.snapshot(action)
    dropping.join(_SECONDS)
    assert not dropping.is_alive()
    state = scene.state
    assert state is not None
    (snapshot,) = (*state.waiting, *state.past)
    assert snapshot.kind is kind
    assert snapshot.status is not Status.COMPLETED
    dba.close()
    until("the database to be dropped", lambda: _drop_database(scene), _SECONDS)
    scene.stop()


def test_table_can_be_dropped_amid_an_incremental_snapshot(scene: SnapshotScene) -> None:
    _begin_held(scene)
    began = time.monotonic()
    scene.attachment.script("DROP TABLE PAIR")
    assert time.monotonic() - began < _SECONDS
    scene.let_read()
    (ended,) = scene.ended()
    tables = {each.name: each for each in ended.tables or ()}
    assert tables["PAIR"].status is Status.SKIPPED
    assert "dropped" in tables["PAIR"].why
    assert tables["ITEM"].status is Status.COMPLETED
    scene.stop()


def test_snapshot_goes_on_after_ddl_between_its_parts(scene: SnapshotScene) -> None:
    scene.attachment.script(_SLOWLY)
    _begin(scene, "--where", "SLOWLY(1) = 1")
    until("rows", lambda: _rows(scene) > 0, 60)
    reader = _reader(scene)
    scene.ask("pause-snapshot")
    until("the reader to leave", lambda: not Path(f"/proc/{reader}").exists(), 60)
    scene.attachment.script(
        "ALTER FUNCTION SLOWLY (N INTEGER) RETURNS INTEGER AS BEGIN RETURN N; END",
        "ALTER TABLE ITEM ADD EXTRA INTEGER DEFAULT 7 NOT NULL",
        "DROP TABLE PAIR",
        "CREATE TABLE PAIR (A INTEGER NOT NULL, B VARCHAR(10) NOT NULL, C INTEGER,"
        " PRIMARY KEY (A))",
        "INSERT INTO PAIR VALUES (1, 'b', 2)",
    )
    scene.ask("resume-snapshot")
    (ended,) = scene.ended()
    tables = {each.name: each for each in ended.tables or ()}
    assert {each.status for each in tables.values()} == {Status.COMPLETED}
    assert tables["PAIR"].rows == 1
    topics = scene.check("ITEM")
    assert sum(row.get("EXTRA") == 7 for row in topics["ITEM"].rows.values()) > 0
    scene.stop()


def test_row_that_has_no_form_stops_the_snapshot_alone(scene: SnapshotScene) -> None:
    scene.attachment.script(
        "ALTER DATABASE DISABLE PUBLICATION",  # or the change would have no form either
        "CREATE TABLE BAD (T VARCHAR(10) CHARACTER SET NONE NOT NULL PRIMARY KEY)",
        "INSERT INTO BAD VALUES ('good')",
        "INSERT INTO BAD VALUES (CAST(x'FF80' AS VARCHAR(10) CHARACTER SET OCTETS))",
        "ALTER DATABASE ENABLE PUBLICATION",
    )
    scene.configure(event_processing_failure_handling_mode="fail")
    scene.start()
    scene.snapshot("execute", "--database", scene.database, f"{scene.database}.BAD")
    no_text = "the snapshot waits: table BAD: column T: its bytes are no text"

    def told() -> list[str]:  # it may have waited for something else before
        log = scene.capture.log.read_text("utf-8")
        return [line for line in log.splitlines() if no_text in line]

    waits = until("it to wait", told, 60)[0]
    assert "RDB$DB_KEY x'" in waits, waits
    _change(scene, "meanwhile")
    until("the change to be delivered", lambda: scene.latest("ITEM", 1) == "meanwhile", 60)
    scene.attachment.script(
        "ALTER DATABASE DISABLE PUBLICATION",
        "UPDATE BAD SET T = 'mended' WHERE T <> 'good'",
        "ALTER DATABASE ENABLE PUBLICATION",
    )
    (ended,) = scene.ended()
    assert [each.rows for each in ended.tables or ()] == [2]
    scene.stop()


_FEW_LISTED = """from firebird_cdc.journal.snapshot import visibility
visibility._MOST_LISTED = 20
"""


def test_snapshot_waits_for_a_sweep_where_too_many_transactions_have_failed(
    scene: SnapshotScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit of 20 in the reader process; without undo a transaction stays a failed one."""
    (scene.directory / "sitecustomize.py").write_text(_FEW_LISTED)
    monkeypatch.setenv("PYTHONPATH", str(scene.directory))
    for number in range(30):
        scene.attachment.begin(no_auto_undo=True)
        scene.attachment.execute(f"INSERT INTO NOTHING VALUES ({number})")
        scene.attachment.rollback()
    _begin(scene)
    told = scene.status_with("sweep it (gfix -sweep)")
    assert "more than 20 transactions failed since the database was last swept" in told
    _change(scene, "meanwhile")
    until("the change to be delivered", lambda: scene.latest("ITEM", 1) == "meanwhile", 60)
    assert _rows(scene) == 0
    scene.capture.client().perform(_DBA, "sweep", scene.database)
    (ended,) = scene.ended()
    assert ended.status is Status.COMPLETED
    scene.check()
    scene.stop()
