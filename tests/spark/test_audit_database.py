"""Journals against the database that they are of: busy, intact, and tampered with."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_TESTS = Path(__file__).parents[1]
sys.path.insert(1, str(_TESTS / "engine"))

from capture import Attachment, Capture, Client, until  # noqa: E402
from effects import EFFECTS, assert_adds_up  # noqa: E402
from random_work import TABLES  # noqa: E402
from test_types import NUMBERS, TEXTS, insert_values  # noqa: E402

from firebird_cdc.demo.engine import EmbeddedRoot  # noqa: E402
from firebird_cdc.demo.processes import Stack  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.engine]

_PATIENCE_S = 60.0
_PROGRAM = Path(__file__).with_name("database_audits.py")
_WORK = _TESTS / "engine/random_work.py"
_ZONED = {
    "TIME WITH TIME ZONE": ("TIME '12:34:56.7 Europe/Paris'", "TIME '00:00 -11:59'"),
    "TIMESTAMP WITH TIME ZONE": (
        "TIMESTAMP '2024-02-29 23:59:59.9999 +03:00'",
        "TIMESTAMP '0001-01-02 00:00 Asia/Tokyo'",
    ),
    "NUMERIC(4, 1)": ("12.3", "-0.1"),
    "DECIMAL(30, 5)": ("-123456789012345678901234.56789", "0"),
    "FLOAT": ("0.1", "1.5e30"),
    "DOUBLE PRECISION": ("0.1", "-2.5e-300"),
}
_ALL = '"Все ""типы"""'
TYPES = {**NUMBERS, **TEXTS, **_ZONED}


class Lab:
    """An engine with the plugin, one process that audits in it, and one engine without it."""

    def __init__(self, directory: Path, stack: Stack) -> None:
        self.capture = Capture(directory, stack, {"ServerMode": "Classic"})
        self.capture.install()
        self._auditor = self.capture.client()
        bare = EmbeddedRoot(directory / "bare", {"DeadlockTimeout": "1"})
        # Both open the same databases.
        locks = {"FIREBIRD_LOCK": str(self.capture.root.locks)}
        environment = stack.environment(bare.environment() | locks)
        self._bare = Client(bare.client_library, environment, directory / "bare.log")

    def make(self, name: str, *statements: str) -> Path:
        """Make a database with everything published but what ASIDE begins with."""
        self.capture.database = database = self.capture.directory / name
        self.capture.create(*statements)
        return database

    def behind(self, database: Path) -> Attachment:
        """Attach past the connector."""
        return self._bare.attach(database)

    def audit(self, database: Path, times: int = 1, older_s: float = 60.0) -> list[Any]:
        """Return what audits of DATABASE say. OLDER_S: how long each waits for transactions that
        were begun before it."""
        folder = str(self.capture.journal_directory)
        results: list[Any] = self.perform("audit", database, [folder], older_s, times)
        return results

    def perform(self, function: str, database: Path, *arguments: Any) -> Any:
        """Return what a function of `database_audits` does."""
        library = str(self.capture.root.client_library)
        return self._auditor.perform(_PROGRAM, function, str(database), library, *arguments)

    def close(self) -> None:
        self._auditor.perform(_PROGRAM, "stop")  # its Spark
        for client in (self._bare, *self.capture.clients):
            client.kill()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp("database")
    with Stack(directory / "stack") as stack:
        made = Lab(directory, stack)
        try:
            yield made
        finally:
            made.close()


class _Load:
    """Work of several connections in a client process, for as long as the context lasts."""

    def __init__(self, lab: Lab, database: Path) -> None:
        self._client = lab.capture.client()
        self._database = str(database)
        self._ended = threading.Event()
        self.committed = 0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        round_ = 0
        while not self._ended.is_set():
            self.committed += self._client.perform(
                _WORK, "work", self._database, f"round {round_}", 3, 10
            )
            round_ += 1

    def __enter__(self) -> _Load:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        self._thread.join()


@pytest.mark.soak
def test_intact_history_passes_again_and_again_under_load(lab: Lab) -> None:
    database = lab.make(
        "busy.fdb",
        *TABLES,
        *EFFECTS,
        "CREATE TABLE OLD_ (ID INTEGER NOT NULL PRIMARY KEY, N INTEGER)",
        "INSERT INTO OLD_ SELECT ROW_NUMBER() OVER (), 0 FROM RDB$TYPES ROWS 50",
    )
    rolled_back, held = (lab.capture.client().attach(database) for _ in range(2))
    rolled_back.execute("UPDATE OLD_ SET N = 1 WHERE ID < 5")
    held.execute("UPDATE OLD_ SET N = 2 WHERE ID > 45")
    with _Load(lab, database) as load:
        until("some work", lambda: load.committed > 20, _PATIENCE_S)
        reports = lab.audit(database, older_s=1)
        held.commit()
        rolled_back.rollback()
        reports += lab.audit(database)
    engines = _rows_of_the_engine(lab, database)
    for report in reports:
        assert [each for each in report["findings"] if not engines(each)] == []
        assert report["counts"]["tables with rows from before the history"] == ["OLD_"]
    assert [r["counts"]["rows from before the history"] for r in reports] == [50, 45]
    snapshots = [report["counts"]["snapshot"] for report in reports]
    assert snapshots == sorted(set(snapshots))
    first, last = (report["counts"]["last sequence"] for report in (reports[0], reports[-1]))
    assert first < last
    assert all(report["counts"]["rows"] > 50 for report in reports)


def _rows_of_the_engine(lab: Lab, database: Path) -> Callable[[dict[str, Any]], bool]:
    """Return a function that tells whether a finding is on a row with which the engine did
    something by itself."""
    until("all journals to be confirmed", lambda: not lab.capture.live(), _PATIENCE_S)
    journals = [each for each in lab.capture.read_all() if each.database == str(database)]
    attachment = lab.capture.client().attach(database)
    tables = {name: attachment.rows(name) for name in ("ITEM", "LOG_", "EFFECTS")}
    keys = {f'{{"ID":{key}}}' for key in assert_adds_up(journals, tables)}
    return lambda finding: finding["table"] == "ITEM" and finding["key"] in keys


def _types_of(report: Any) -> set[tuple[str, str, str | None]]:
    return {(found["kind"], found["table"], found["key"]) for found in report["findings"]}


def _remove_second(lab: Lab, database: Path) -> bool:
    """Remove the second journal of DATABASE; tell whether it was there under the name that it had
    when it was read, which is another one once it is complete."""
    found = {
        journal.sequence: journal.file
        for journal in lab.capture.read_all()
        if journal.database == str(database)
    }
    try:
        found[sorted(found)[1]].unlink()
    except FileNotFoundError:
        return False
    return True


def test_changes_that_bypassed_the_connector_are_found_alone_and_named(lab: Lab) -> None:
    columns = ", ".join(f"C{place} {sql}" for place, sql in enumerate(TYPES))
    database = lab.make(
        "tampered.fdb",
        f"CREATE TABLE {_ALL} (ID INTEGER NOT NULL PRIMARY KEY, {columns})",
        "CREATE TABLE LOG_ (N INTEGER, TEXT VARCHAR(20) CHARACTER SET UTF8)",
        "CREATE TABLE T (A INTEGER NOT NULL, B VARCHAR(5) NOT NULL, N INTEGER, V BLOB,"
        " PRIMARY KEY (B, A))",
        "CREATE TABLE ASIDE (N INTEGER)",
        "CREATE GLOBAL TEMPORARY TABLE PASSING (N INTEGER) ON COMMIT PRESERVE ROWS",
    )
    attachment = lab.capture.client().attach(database)
    attachment.script("ALTER DATABASE EXCLUDE TABLE ASIDE FROM PUBLICATION")
    attachment.execute("INSERT INTO ASIDE VALUES (1)")
    attachment.execute("INSERT INTO PASSING VALUES (1)")
    insert_values(attachment, TYPES, _ALL)
    attachment.commit()
    for n in range(30):
        attachment.execute("INSERT INTO T VALUES (?, 'b', 0, 'blob')", n)
        attachment.execute("INSERT INTO LOG_ VALUES (?, 'жук')", n // 3)
    attachment.commit()
    attachment.execute("UPDATE T SET N = 1 WHERE A > 20")
    attachment.execute("UPDATE T SET A = A + 100 WHERE A < 3")
    attachment.execute("DELETE FROM T WHERE A = 10")
    attachment.execute("DELETE FROM LOG_ WHERE N = 2")
    attachment.commit()
    attachment.script(
        "ALTER TABLE LOG_ ADD MORE INTEGER",
        "ALTER TABLE T ADD MORE INTEGER",
        f"ALTER TABLE {_ALL} ALTER C0 TYPE NUMERIC(9, 2)",
    )
    attachment.execute("INSERT INTO LOG_ VALUES (99, 'new', 1)")
    attachment.execute("UPDATE T SET N = N")  # changes nothing, so no journal tells
    attachment.commit()
    behind = lab.behind(database)
    transactions = []
    for sql in (
        "UPDATE T SET N = 7, V = 'else' WHERE A = 5",
        "DELETE FROM T WHERE A = 6",
        "INSERT INTO T (A, B) VALUES (10, 'b')",
        "INSERT INTO T (A, B) VALUES (500, 'b')",
        "INSERT INTO LOG_ VALUES (1, 'жук', NULL)",
        "DELETE FROM LOG_ WHERE N = 99",
        f"UPDATE {_ALL} SET C3 = 5 WHERE ID = 0",
    ):
        [row] = behind.execute("SELECT CURRENT_TRANSACTION AS T FROM RDB$DATABASE")
        behind.execute(sql)
        behind.commit()
        transactions.append(row["T"])
    [report] = lab.audit(database)
    found = {(f["kind"], f["table"], f["key"]): f for f in report["findings"]}
    keys = [f'{{"B":"b","A":{a}}}' for a in (5, 6, 10, 500)]
    expected = [
        ("row differs", "T", keys[0]),
        ("row missing", "T", keys[1]),
        ("row unknown", "T", keys[2]),
        ("row unknown", "T", keys[3]),
        ("row unknown", "LOG_", None),
        ("row missing", "LOG_", None),
        ("row differs", 'Все "типы"', '{"ID":0}'),
    ]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert len(report["findings"]) == len(expected)
    for place, what in enumerate(expected):
        if what[0] != "row missing":
            assert found[what]["transaction"] == transactions[place], found[what]["what"]
            assert "of which there is no journal" in found[what]["what"]
    assert "N, V differ" in found[expected[0]]["what"]
    assert found[expected[1]]["sequence"] and found[expected[1]]["file"]
    assert "deleted it" in found[expected[2]]["what"]
    assert "never shown" not in str(report)
    assert any("1 tables are not in the publication" in note for note in report["notes"])
    assert not any("PASSING" in note for note in report["notes"])

    # A journal less: what it was about is not proven, and nothing is reported as lost.
    until("a journal to be removed", lambda: _remove_second(lab, database), _PATIENCE_S)
    [report] = lab.audit(database)
    kinds = {found["kind"] for found in report["findings"]}
    assert "row unproven" in kinds
    assert any("are missing" in note for note in report["notes"])

    # Another database under another name.
    other = lab.make("other.fdb", "CREATE TABLE T (A INTEGER NOT NULL PRIMARY KEY)")
    [report] = lab.audit(other)
    assert str(other) in report["error"]


def test_row_with_a_lost_blob_is_named(lab: Lab) -> None:
    database = lab.make(
        "damaged.fdb", "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, V BLOB, W BLOB)"
    )
    client = lab.capture.client()
    attachment = client.attach(database)
    for key in range(3):
        attachment.execute(f"INSERT INTO T VALUES ({key}, 'the blob of row {key}', 'another')")
    attachment.commit()
    until("all journals to be confirmed", lambda: not lab.capture.live(), _PATIENCE_S)
    client.end()
    lab.capture.clients.remove(client)
    _lose(database, b"the blob of row 1")
    [report] = lab.audit(database)
    assert _types_of(report) == {("row differs", "T", '{"ID":1}')}
    assert "V differ" in report["findings"][0]["what"]


def _lose(database: Path, blob: bytes) -> None:
    """Free the place of a blob on its data page, whose layout is that of ods.h (hidden_rows.py)."""
    content = bytearray(database.read_bytes())
    assert content.count(blob) == 1
    (size,) = struct.unpack_from("<H", content, 16)
    page, at = divmod(content.index(blob), size)
    (count,) = struct.unpack_from("<H", content, page * size + 22)
    for slot in range(page * size + 24, page * size + 24 + 4 * count, 4):
        start, length = struct.unpack_from("<HH", content, slot)
        if start <= at < start + length:
            struct.pack_into("<HH", content, slot, 0, 0)
    database.write_bytes(content)


def test_rows_of_while_a_table_was_not_published_are_no_fault(lab: Lab) -> None:
    database = lab.make("switched.fdb", "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    attachment = lab.capture.client().attach(database)
    for key in range(3):
        attachment.script(f"INSERT INTO T VALUES ({key})")
    attachment.script(
        "CREATE TABLE LATE (ID INTEGER NOT NULL PRIMARY KEY, N INTEGER) DISABLE PUBLICATION",
        "INSERT INTO LATE VALUES (1, 0)",
        "ALTER TABLE LATE ENABLE PUBLICATION",
        "INSERT INTO LATE VALUES (2, 0)",
        "ALTER TABLE LATE DISABLE PUBLICATION",
        "UPDATE LATE SET N = 1 WHERE ID = 2",
        "ALTER TABLE LATE ENABLE PUBLICATION",
        "UPDATE LATE SET N = 2 WHERE ID = 2",
        "CREATE TABLE LATER (ID INTEGER NOT NULL PRIMARY KEY, N INTEGER) DISABLE PUBLICATION",
        "INSERT INTO LATER VALUES (1, 0)",
        "ALTER DATABASE INCLUDE TABLE LATER TO PUBLICATION",
        "INSERT INTO LATER VALUES (2, 0)",
        "ALTER DATABASE EXCLUDE TABLE LATER FROM PUBLICATION",
        "ALTER DATABASE INCLUDE TABLE LATER TO PUBLICATION",
    )
    [report] = lab.audit(database)
    assert report["findings"] == []
    assert report["counts"]["tables with rows from before the history"] == ["LATE", "LATER"]
    assert report["counts"]["rows from before the history"] == 2
    assert lab.perform("check", database, [str(lab.capture.journal_directory)]) == {}

    lab.behind(database).script("INSERT INTO LATE VALUES (3, 0)", "INSERT INTO LATER VALUES (3, 0)")
    [report] = lab.audit(database)
    assert _types_of(report) == {
        ("row unknown", "LATE", '{"ID":3}'),
        ("row unknown", "LATER", '{"ID":3}'),
    }


def test_transactions_a_joined_snapshot_may_see_too_early_are_reported(lab: Lab) -> None:
    database = lab.make("joined.fdb", "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    found = lab.perform("join_beside", database)
    writer = found["writer"]
    # Committed after the snapshot was taken, and yet seen by those that join it later.
    assert not found["seen"]
    assert {row: version for row, version in found["rows"] if version == writer} == {
        '{"ID":1}': writer
    }
    assert found["passed"] == {writer}


def test_wrong_answers_of_the_engine_prove_nothing_and_accuse_no_row(lab: Lab) -> None:
    database = lab.make("torn.fdb", "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, N INTEGER)")
    attachment = lab.capture.client().attach(database)
    attachment.script(*(f"INSERT INTO T VALUES ({key}, 0)" for key in range(20)))
    [row] = attachment.execute("SELECT CURRENT_TRANSACTION AS T FROM RDB$DATABASE")
    attachment.execute("UPDATE T SET N = 1 WHERE ID = 3")
    attachment.execute("DELETE FROM T WHERE ID = 4")
    attachment.commit()
    writer = row["T"]

    def audit(*fake: Any) -> Any:
        folder = str(lab.capture.journal_directory)
        return lab.perform("audit_with_faked_state", database, [folder], writer, *fake)

    changed = {("row unproven", "T", '{"ID":3}'), ("row unproven", "T", '{"ID":4}')}
    # Its commit had a number, which was stored only when the snapshot had begun.
    torn = audit(0, 1, "not for us")
    assert _types_of(torn) == changed
    assert any("1 transactions were just being committed" in note for note in torn["notes"])
    assert any(
        note.endswith("not checked by the database file: not for us") for note in torn["notes"]
    )
    assert torn["proven"]
    # It was committed long ago, says the file, but the engine has given it a new number.
    renumbered = audit(1 << 40, 2, None)
    assert _types_of(renumbered) == changed
    assert renumbered["proven"] == []
    why = f"transactions {writer} are committed in the database file, and not seen"
    assert any("is proven: " + why in note for note in renumbered["notes"])
    # Without these checks rows would be accused.
    accused = audit(1 << 40, 2, "not for us", False)
    assert {kind for kind, _, _ in _types_of(accused)} == {"row differs", "row missing"}


def test_absent_client_library_is_named() -> None:
    program = (
        "from firebird_cdc.journal.snapshot.attachment import DatabaseConnection, attach\n"
        "attach(DatabaseConnection('localhost:/x', 'u', 'secret', '/nowhere/libfbclient.so.2'))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        check=False,
    )
    last = ended.stderr.strip().splitlines()[-1]
    assert "cannot load Firebird's client library /nowhere/libfbclient.so.2" in last
    assert "(replay commands: --client-library)" in last
    assert "secret" not in last


def test_columns_are_followed_through_drops_and_renames(lab: Lab) -> None:
    """As the state rebuild does: a name of now says nothing of what a row of then had there."""
    database = lab.make(
        "renamed.fdb",
        "CREATE TABLE MOVED (ID INTEGER NOT NULL PRIMARY KEY, A INTEGER, B INTEGER)",
        "CREATE TABLE SWAPPED (ID INTEGER NOT NULL PRIMARY KEY, A VARCHAR(9), B VARCHAR(9))",
        "CREATE TABLE AGAIN (ID INTEGER NOT NULL PRIMARY KEY, A INTEGER, D DOUBLE PRECISION)",
        "CREATE TABLE RETYPED (ID INTEGER NOT NULL PRIMARY KEY, A INTEGER, B NUMERIC(9, 2))",
        "CREATE TABLE KEYLESS (A INTEGER, B INTEGER, D DOUBLE PRECISION)",
        "CREATE TABLE KEYED (ID INTEGER NOT NULL, A INTEGER)",
        "CREATE UNIQUE INDEX KEYED_ID ON KEYED (ID)",  # a constraint's columns keep their names
        "CREATE TABLE ANEW (ID INTEGER NOT NULL PRIMARY KEY, A INTEGER)",
    )
    attachment = lab.capture.client().attach(database)
    for key in (1, 2, 3):
        attachment.script(
            f"INSERT INTO MOVED VALUES ({key}, {key}0, {key}00)",
            f"INSERT INTO SWAPPED VALUES ({key}, 'a{key}', 'b{key}')",
            f"INSERT INTO AGAIN VALUES ({key}, {key}0, 1.5e30)",
            f"INSERT INTO RETYPED VALUES ({key}, {key}0, {key}.25)",
            f"INSERT INTO KEYLESS VALUES ({key}, {key}00, -2.5e-300)",
            f"INSERT INTO KEYED VALUES ({key}, {key}0)",
            f"INSERT INTO ANEW VALUES ({key}, {key}0)",
        )
    attachment.script(
        "ALTER TABLE MOVED DROP A",
        "ALTER TABLE MOVED ALTER B TO A",
        "ALTER TABLE SWAPPED ALTER A TO X, ALTER B TO Y",
        "ALTER TABLE SWAPPED ALTER X TO B, ALTER Y TO A",
        "ALTER TABLE AGAIN DROP A",
        "ALTER TABLE AGAIN ADD A INTEGER",
        "ALTER TABLE RETYPED DROP A",
        "ALTER TABLE RETYPED ALTER B TO A",
        "ALTER TABLE KEYLESS DROP A",
        "ALTER TABLE KEYLESS ALTER B TO A",
        "ALTER TABLE KEYED ALTER ID TO NUMBER",
        "RECREATE TABLE ANEW (ID INTEGER NOT NULL PRIMARY KEY, B INTEGER)",
        "INSERT INTO ANEW VALUES (7, 70)",
    )
    for table in ("MOVED", "SWAPPED", "AGAIN", "RETYPED"):
        attachment.script(f"UPDATE {table} SET A = '33' WHERE ID = 3")
    attachment.script(
        "UPDATE KEYED SET A = 33 WHERE NUMBER = 3", "DELETE FROM KEYED WHERE NUMBER = 2"
    )
    [report] = lab.audit(database)
    assert report["findings"] == []
    assert report["counts"]["rows from before the history"] == 0

    lab.behind(database).script(
        "UPDATE MOVED SET A = 99 WHERE ID = 1",
        "UPDATE SWAPPED SET B = 'else' WHERE ID = 2",
        "UPDATE RETYPED SET A = 99 WHERE ID = 3",
        "INSERT INTO KEYLESS VALUES (300, 0)",
        "UPDATE KEYED SET A = 99 WHERE NUMBER = 1",
        "INSERT INTO ANEW VALUES (1, 0)",
    )
    [report] = lab.audit(database)
    assert _types_of(report) == {
        ("row differs", "MOVED", '{"ID":1}'),
        ("row differs", "SWAPPED", '{"ID":2}'),
        ("row differs", "RETYPED", '{"ID":3}'),
        ("row unknown", "KEYLESS", None),
        ("row differs", "KEYED", '{"NUMBER":1}'),
        ("row unknown", "ANEW", '{"ID":1}'),
    }
    told = {found["table"]: found["what"] for found in report["findings"]}
    assert ": A differ" in told["MOVED"]
    assert ": B differ" in told["SWAPPED"]
