"""Databases in use for rounds of snapshots: tables with rows from before, and who writes into them.

``BORN`` is a number that a row keeps as long as it lives, whatever becomes of its key, and
``GENERATION`` counts how often its table was made again. What a ``Builder`` adds to a table are
columns ``E<n>``, which are NULL in rows of before, and ``D<n>``, which are n in them.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from threading import Event, Thread
from typing import Any

from capture import Attachment, Client, SqlError
from engine_hangs import EngineHangs, await_unless_engine_hangs
from snapshot_sites import BROKEN, Site

_TABLES = {
    "ITEM": "ID INTEGER NOT NULL, NAME VARCHAR(40), BORN BIGINT NOT NULL, NOTE BLOB SUB_TYPE TEXT,"
    " CONSTRAINT ITEM_KEY PRIMARY KEY (ID)",
    "PAIR": "A INTEGER NOT NULL, B VARCHAR(10) NOT NULL, C INTEGER, BORN BIGINT NOT NULL,"
    " CONSTRAINT PAIR_KEY PRIMARY KEY (B, A)",
    "KEYLESS": "X INTEGER, Y VARCHAR(10)",
    "NOTHING": "ID INTEGER NOT NULL PRIMARY KEY",
}
_BORN = "GEN_ID(BIRTHS, 1)"
_FILL = """EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN
 WHILE (I < {rows}) DO BEGIN {inserts} I = I + 1; END END"""
_INSERTS = {
    "ITEM": f"INSERT INTO ITEM (ID, NAME, BORN, NOTE) VALUES (:I, 'item ' || :I, {_BORN},"
    " IIF(MOD(:I, 10) = 0, 'note ' || :I, NULL));",
    "KEYLESS": "IF (MOD(I, 4) = 0) THEN INSERT INTO KEYLESS (X, Y) VALUES (MOD(:I, 50), 'y');",
    "PAIR": "IF (MOD(I, 4) = 1) THEN"
    f" INSERT INTO PAIR (A, B, C, BORN) VALUES (:I, 'b' || MOD(:I, 7), :I, {_BORN});",
    "NOTHING": "",
}
_KEYS = {"ITEM": ("ID", "BORN"), "PAIR": ("B, A", "A, B", "BORN")}
_WIDENED = {"ITEM": "NAME", "PAIR": "C", "KEYLESS": "Y"}  # texts become longer, C a BIGINT

COLUMNS = {
    "ITEM": ("ID", "NAME", "BORN"),
    "PAIR": ("A", "B", "C", "BORN"),
    "KEYLESS": ("X", "Y"),
    "NOTHING": ("ID",),
}
"""Columns that each table keeps, and by which rows are compared."""

_PATIENCE_S = 90.0


_NEW = "GEN_ID(KEYS, 1)"
# Often, and rarely: statements on a KEY of before, or a KEY that came later.
_SMALL = (
    f"INSERT INTO ITEM (ID, NAME, BORN) VALUES ({_NEW}, 'new', {_BORN})",
    "UPDATE ITEM SET NAME = 'changed {number}' WHERE ID = {key}",
    "UPDATE ITEM SET NAME = 'changed {number}' WHERE ID = {key}",
    "DELETE FROM ITEM WHERE ID = {key}",
    f"UPDATE ITEM SET ID = {_NEW} WHERE ID = {{key}}",
    f"UPDATE OR INSERT INTO ITEM (ID, NAME, BORN) VALUES ({{key}}, 'back', {_BORN}) MATCHING (ID)",
    "UPDATE PAIR SET C = {number} WHERE A = {key}",
    "UPDATE PAIR SET B = 'c' || {number} WHERE A = {key}",
    "DELETE FROM PAIR WHERE A = {key} AND MOD(A, 3) = 0",
    f"INSERT INTO PAIR (A, B, C, BORN) VALUES ({{key}}, 'n' || {{number}}, 0, {_BORN})",
    "INSERT INTO KEYLESS (X, Y) VALUES ({number}, 'new')",
    "UPDATE KEYLESS SET Y = 'z' WHERE X = MOD({key}, 50) ROWS 1",
    "DELETE FROM KEYLESS WHERE X = MOD({key}, 50) ROWS 1",
)
_LARGE = (
    "UPDATE ITEM SET NAME = 'all {number}' WHERE MOD(ID, 5) = MOD({number}, 5)",
    f"INSERT INTO ITEM (ID, NAME, BORN) SELECT {_NEW}, 'copy', {_BORN} FROM ITEM ROWS 300",
    "UPDATE PAIR SET C = -C",
    "INSERT INTO KEYLESS (X, Y) SELECT X, 'more' FROM KEYLESS ROWS 50",
    "DELETE FROM ITEM WHERE NAME = 'copy'",
)
_IN_USE = re.compile("in use|lock|conflict")  # what the engine says of what others are at
# A column that was added.
_ADDED = "UPDATE {table} SET {column} = {number} WHERE MOD({any}, 7) = MOD({number}, 7) ROWS 3"
_ANY = {"ITEM": "ID", "PAIR": "A", "KEYLESS": "X"}


def shown(table: str, row: Mapping[str, Any]) -> str:
    """Return ROW as it is compared."""
    return json.dumps([row[name] for name in COLUMNS[table]])


def whole(row: Mapping[str, Any], columns: tuple[str, ...]) -> str:
    """Return ROW, which may be from before or after some of its table's COLUMNS, as it is compared
    with one that has them. A number may have become a text."""
    values = (row[name] if name in row else _given(name) for name in columns)
    return json.dumps([None if value is None else str(value) for value in values])


def _given(added: str) -> int | None:
    """Return what a column that was added is in rows of before."""
    return int(added[1:]) if added.startswith("D") else None


@dataclass
class Table:
    """A table at rest. ``columns``: those of its rows that are compared, where its structure may
    have changed."""

    columns: tuple[str, ...]
    generation: int
    rows: list[dict[str, Any]]


def _make(table: str, generation: int) -> str:
    return f"{table} ({_TABLES[table]}, GENERATION INTEGER DEFAULT {generation})"


def _fill(rows: int, *tables: str) -> str:
    return _FILL.format(rows=rows, inserts=" ".join(_INSERTS[table] for table in tables))


class Database:
    """A database of a round: ``before`` are the tables as they were when it was published.

    added: columns that tables have now besides, as far as it is known; is_held: writers begin
    nothing, as a table in use can't be made again.
    """

    def __init__(self, site: Site, name: str, rows: int) -> None:
        self.path = site.database(name)
        self.rows = rows
        self.added: dict[str, list[str]] = {}
        self.is_held = False
        self._site = site
        client = site.client(self.path)
        # Stays open, so that there is always somebody who has the database open under Classic.
        attachment = site.attach(client, self.path, create=True)
        made = (f"CREATE TABLE {_make(table, 1)}" for table in _TABLES)
        attachment.script(
            "CREATE SEQUENCE BIRTHS", "CREATE SEQUENCE KEYS START WITH 1000000", *made
        )
        attachment.immediate(_fill(rows, *_TABLES))
        attachment.commit()
        self.before = _tables(attachment)
        attachment.script(
            "ALTER DATABASE INCLUDE ALL TO PUBLICATION", "ALTER DATABASE ENABLE PUBLICATION"
        )

    def tables(self) -> dict[str, Table]:
        """Return the tables as they are, once nobody writes any more."""
        return _tables(self._attach())

    def write(self) -> None:
        """Commit a row, so that also a process that was started anew has captured something."""
        attachment = self._attach()
        attachment.execute("INSERT INTO KEYLESS (X, Y) VALUES (0, 'last')")
        attachment.commit()

    def _attach(self) -> Attachment:
        return self._site.attach(self._site.client(self.path), self.path)


def _columns(attachment: Attachment, table: str) -> dict[str, str | None]:
    """Return the columns of TABLE, and their defaults in SQL."""
    rows = attachment.execute(
        "SELECT TRIM(RDB$FIELD_NAME) AS NAME, RDB$DEFAULT_SOURCE AS GIVEN FROM RDB$RELATION_FIELDS"
        " WHERE RDB$RELATION_NAME = ?",
        table,
    )
    return {row["NAME"]: row["GIVEN"] for row in rows}


def _tables(attachment: Attachment) -> dict[str, Table]:
    found = {}
    for table, kept in COLUMNS.items():
        defaults = _columns(attachment, table)
        added = sorted(set(defaults) - {*kept, "NOTE", "GENERATION"})
        [number] = re.findall(r"\d+", str(defaults["GENERATION"]))
        columns = (*kept, *added)
        rows = attachment.execute(f"SELECT {', '.join(columns)} FROM {table}")
        found[table] = Table(columns, int(number), rows)
    attachment.commit()
    return found


class Writer(Thread):
    """Works until it is told to end, and begins anew where what it works in is killed.

    ``written``: transactions that were committed; ``stuck``: times that a process that had been
    killed kept it waiting; ``trouble``: what it did not expect.
    """

    def __init__(self, site: Site, database: Database, chance: random.Random) -> None:
        super().__init__(name=f"writer {chance.random()}", daemon=True)
        self.written = self.stuck = 0
        self.trouble: BaseException | None = None
        self._database = database
        self._chance = chance
        self._site = site
        self._pause_s = chance.choice((0.001, 0.005, 0.02))
        self._ending = Event()
        self._client: Client | None = None

    def run(self) -> None:
        """Write, whoever dies."""
        try:
            while not self._ending.is_set():
                self._live()
        except BaseException as error:
            self.trouble = error

    def kill(self) -> None:
        """Kill what it works in, as a crash of the server would."""
        if self._client is not None:
            self._site.kill(self._client)

    def end(self) -> None:
        """Have it end."""
        self._ending.set()
        processes = self._site.engine_processes()
        try:
            await_unless_engine_hangs(
                "a writer to end", lambda: not self.is_alive(), processes, _PATIENCE_S
            )
        except EngineHangs:
            self.stuck += 1
        finally:
            if self.is_alive():
                self.kill()
                self.join()
        if self.trouble is not None:
            raise self.trouble

    def _live(self) -> None:
        client = self._client = self._site.client(self._database.path)
        try:
            attachment = self._site.attach(client, self._database.path)
            while not self._ending.wait(self._pause_s):
                if not self._is_held():
                    self._write(attachment)
            attachment.close()
        except BROKEN:
            self._site.lost(client)

    def _is_held(self) -> bool:
        return self._database.is_held

    def _begin(self, attachment: Attachment) -> None:
        """Begin a transaction that holds nobody up who works in the same process."""
        if not self._site.waits:
            attachment.begin(lock_timeout=0)

    def _write(self, attachment: Attachment) -> None:
        chance = self._chance
        large = chance.random() < 0.03
        many = 1 if large or chance.random() < 0.7 else chance.randint(2, 12)
        self._begin(attachment)
        try:
            for _ in range(many):
                attachment.immediate(self._statement(large))
            if chance.random() < 0.08:
                attachment.rollback()
            else:
                attachment.commit()
                self.written += 1
        except SqlError:  # another writer was first
            attachment.rollback()

    def _statement(self, large: bool) -> str:
        chance = self._chance
        number = chance.randrange(1_000_000)
        added = [(table, each) for table, many in self._database.added.items() for each in many]
        if added and not large and chance.random() < 0.2:
            table, column = chance.choice(added)
            return _ADDED.format(table=table, column=column, number=number, any=_ANY[table])
        key = chance.randrange(self._database.rows)
        return chance.choice(_LARGE if large else _SMALL).format(number=number, key=key)


class Builder(Writer):
    """Changes the structure of tables. ``built``: how often, by what it was; ``refusals``: what the
    engine said where it did not."""

    _MOST_ADDED = 4
    _ATTEMPTS = 10  # as long as somebody uses the table
    _ATTEMPT_S = 0.02

    def __init__(self, site: Site, database: Database, chance: random.Random) -> None:
        super().__init__(site, database, chance)
        self.built: Counter[str] = Counter()
        self.refusals: list[str] = []
        self._pause_s = chance.choice((0.05, 0.15, 0.4))
        self._numbers = count(2)  # of generations and of columns
        self._widths = count(50)

    def _is_held(self) -> bool:
        return False

    def _write(self, attachment: Attachment) -> None:
        chance = self._chance
        often = (self._add, self._add, self._alter, self._alter, self._drop, self._change_key)
        change = chance.choice((*often, *often, self._make_again))
        table = chance.choice(("ITEM", "PAIR", "KEYLESS"))
        try:
            added = [
                name
                for name in _columns(attachment, table)
                if name not in (*COLUMNS[table], "NOTE", "GENERATION")
            ]
        finally:
            attachment.rollback()
        self._database.added[table] = added
        if len(added) >= self._MOST_ADDED:
            change = self._drop
        change(attachment, table, added)

    def _run(self, attachment: Attachment, what: str, sql: str, wait_s: int = 0) -> bool:
        """Run SQL in a transaction, once nobody is in the way; tell whether that was. WAIT_S: so
        long it waits for who is, which alone has others forget a table that they have used."""
        for _ in range(self._ATTEMPTS):
            attachment.begin(lock_timeout=wait_s)
            try:
                attachment.immediate(sql)
                attachment.commit()
            except SqlError as error:
                self.refusals.append(f"{what}: {error}")
                attachment.rollback()
                if not _IN_USE.search(str(error)) or self._ending.wait(self._ATTEMPT_S):
                    break
            else:
                self.built[what] += 1
                self.written += 1
                return True
        self.built[f"{what} in vain"] += 1
        return False

    def _add(self, attachment: Attachment, table: str, added: list[str]) -> None:
        number = next(self._numbers)
        name, given = f"E{number}", ""
        if self._chance.random() < 0.5:
            name, given = f"D{number}", f" DEFAULT {number} NOT NULL"
        if self._run(attachment, "add", f"ALTER TABLE {table} ADD {name} INTEGER{given}"):
            self._database.added[table] = [*added, name]

    def _drop(self, attachment: Attachment, table: str, added: list[str]) -> None:
        if added:
            self._run(attachment, "drop", f"ALTER TABLE {table} DROP {self._chance.choice(added)}")

    def _alter(self, attachment: Attachment, table: str, added: list[str]) -> None:
        column = _WIDENED[table]
        to = "BIGINT" if column == "C" else f"VARCHAR({next(self._widths)})"
        if added and self._chance.random() < 0.7:
            column, to = self._chance.choice(added), self._chance.choice(("BIGINT", "VARCHAR(30)"))
        # What was made a text is none that becomes a number again.
        self._run(attachment, "alter type", f"ALTER TABLE {table} ALTER {column} TYPE {to}")

    def _change_key(self, attachment: Attachment, table: str, added: list[str]) -> None:
        if table not in _KEYS:
            return
        # The engine can't do both in one transaction.
        self._run(attachment, "drop key", f"ALTER TABLE {table} DROP CONSTRAINT {table}_KEY")
        key = self._chance.choice(_KEYS[table])
        made = f"ALTER TABLE {table} ADD CONSTRAINT {table}_KEY PRIMARY KEY ({key})"
        self._run(attachment, "make key", made)

    def _make_again(self, attachment: Attachment, table: str, added: list[str]) -> None:
        number = next(self._numbers)
        if self._chance.random() < 0.2:
            table = "NOTHING"
        self._database.is_held = True
        try:
            if self._run(attachment, "recreate", f"RECREATE TABLE {_make(table, number)}", 1):
                self._database.added[table] = []
                self._run(attachment, "fill", _fill(self._database.rows // 2, table))
        finally:
            self._database.is_held = False
