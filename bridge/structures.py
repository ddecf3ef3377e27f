"""Reads what DDL statements made of tables, for journals whose transactions are committed.

What a transaction does to the system tables nobody else sees before its commit, and on the user's
own attachment nothing may be asked (docs/architecture.md). So it is read after the commit, on an
attachment of ours, and shows the state then: that of the statement, unless another DDL got in
between, for which the next DDL waits a moment (native/transaction.c). Of several statements in a
transaction, each shows the state at its end.

A DROP DATABASE right behind the commit must not meet an attachment of ours: it would fail, or, if
that is half open, leave the file there, unusable (release_attachment and JRD_shutdown_database in
the engine's jrd.cpp). So it is read when nobody can drop the database: while a transaction there
waits for that in its ``prepare``, or when the last session leaves; or else when it has been quiet
for a moment.

Thread: fbc-structures asks. It may be held up by a DDL that waits for a lock, so nobody waits for
it but for a moment: ``Job.done`` tells.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import logbook

from firebird_cdc import access
from firebird_cdc.bridge.host import OwnAttachment
from firebird_cdc.errors import CaptureError
from firebird_cdc.journal.folder.ledger_lock import database_key
from firebird_cdc.journal.format import (
    Column,
    Storage,
    Table,
    TableChange,
    TableState,
    parse_table,
    table_body,
)
from firebird_cdc.journal.format.ddl_text import Statement
from firebird_cdc.journal.types.engine_types import type_of_field

_log = logbook.Logger("firebird_cdc.bridge.structures")

_MOST_AT_ONCE = 50  # names in one question
_OCTETS = 1
_TEXT_BLOB = 1
_ARRAY_BYTES = 8  # of its number in a row

_NUMBERS = frozenset(
    {Storage.SMALLINT, Storage.INTEGER, Storage.BIGINT, Storage.INT128, Storage.DOUBLE}
)
_TEXTS = frozenset({Storage.TEXT, Storage.PADDED_TEXT})


_CHARSET = """
SELECT CAST(TRIM(TRAILING FROM RDB$CHARACTER_SET_NAME) AS VARCHAR(252) CHARACTER SET OCTETS)
 FROM RDB$DATABASE
"""

_COLUMNS = """
SELECT CAST(TRIM(TRAILING FROM R.RDB$RELATION_NAME) AS VARCHAR(252) CHARACTER SET OCTETS),
  CAST(TRIM(TRAILING FROM R.RDB$FIELD_NAME) AS VARCHAR(252) CHARACTER SET OCTETS),
  CAST(F.RDB$FIELD_TYPE AS VARCHAR(11)), CAST(F.RDB$FIELD_SUB_TYPE AS VARCHAR(11)),
  CAST(F.RDB$FIELD_SCALE AS VARCHAR(11)), CAST(F.RDB$FIELD_LENGTH AS VARCHAR(11)),
  CAST(F.RDB$CHARACTER_SET_ID AS VARCHAR(11)), CAST(F.RDB$DIMENSIONS AS VARCHAR(11)),
  CAST(IIF(F.RDB$COMPUTED_BLR IS NULL, 0, 1) AS VARCHAR(11)),
  CAST(SUBSTRING(COALESCE(R.RDB$DEFAULT_SOURCE, F.RDB$DEFAULT_SOURCE) FROM 1 FOR 1000)
   AS VARCHAR(1000) CHARACTER SET UTF8)
 FROM RDB$RELATION_FIELDS R
 JOIN RDB$FIELDS F ON F.RDB$FIELD_NAME = R.RDB$FIELD_SOURCE
 JOIN RDB$RELATIONS L ON L.RDB$RELATION_NAME = R.RDB$RELATION_NAME
 WHERE R.RDB$RELATION_NAME IN (%s) AND L.RDB$VIEW_BLR IS NULL
 ORDER BY R.RDB$RELATION_NAME, R.RDB$FIELD_POSITION, R.RDB$FIELD_ID
"""

_USERS_OF_DOMAINS = """
SELECT DISTINCT
  CAST(TRIM(TRAILING FROM R.RDB$FIELD_SOURCE) AS VARCHAR(252) CHARACTER SET OCTETS),
  CAST(TRIM(TRAILING FROM R.RDB$RELATION_NAME) AS VARCHAR(252) CHARACTER SET OCTETS)
 FROM RDB$RELATION_FIELDS R
 JOIN RDB$RELATIONS L ON L.RDB$RELATION_NAME = R.RDB$RELATION_NAME
 WHERE R.RDB$FIELD_SOURCE IN (%s) AND L.RDB$VIEW_BLR IS NULL
"""

_HAS_PARTIAL_INDEXES = """
SELECT CAST('1' AS VARCHAR(1)) FROM RDB$RELATION_FIELDS
 WHERE RDB$RELATION_NAME = 'RDB$INDICES' AND RDB$FIELD_NAME = 'RDB$CONDITION_BLR'
"""

# Indexes of NOT NULL columns in tables without a primary key or unique constraint that could be
# the key: the first one of a table is it. native/catalogue.c has the same rule for one table.
_KEY_INDEXES = """
SELECT CAST(TRIM(TRAILING FROM I.RDB$RELATION_NAME) AS VARCHAR(252) CHARACTER SET OCTETS),
  CAST(TRIM(TRAILING FROM I.RDB$INDEX_NAME) AS VARCHAR(252) CHARACTER SET OCTETS),
  CAST(TRIM(TRAILING FROM S.RDB$FIELD_NAME) AS VARCHAR(252) CHARACTER SET OCTETS)
 FROM RDB$INDICES I
 JOIN RDB$INDEX_SEGMENTS S ON S.RDB$INDEX_NAME = I.RDB$INDEX_NAME
 WHERE I.RDB$UNIQUE_FLAG = 1 AND COALESCE(I.RDB$SYSTEM_FLAG, 0) = 0
  AND COALESCE(I.RDB$INDEX_INACTIVE, 0) = 0 %s
  AND NOT EXISTS (SELECT 1 FROM RDB$INDEX_SEGMENTS X
   JOIN RDB$RELATION_FIELDS R
    ON R.RDB$RELATION_NAME = I.RDB$RELATION_NAME AND R.RDB$FIELD_NAME = X.RDB$FIELD_NAME
   JOIN RDB$FIELDS F ON F.RDB$FIELD_NAME = R.RDB$FIELD_SOURCE
   WHERE X.RDB$INDEX_NAME = I.RDB$INDEX_NAME
    AND COALESCE(R.RDB$NULL_FLAG, F.RDB$NULL_FLAG, 0) = 0)
  AND NOT EXISTS (SELECT 1 FROM RDB$RELATION_CONSTRAINTS C
   WHERE C.RDB$RELATION_NAME = I.RDB$RELATION_NAME
    AND (C.RDB$CONSTRAINT_TYPE = 'PRIMARY KEY' OR C.RDB$INDEX_NAME = I.RDB$INDEX_NAME
     OR C.RDB$CONSTRAINT_TYPE = 'UNIQUE' AND NOT EXISTS (SELECT 1 FROM RDB$INDEX_SEGMENTS X
      JOIN RDB$RELATION_FIELDS R
       ON R.RDB$RELATION_NAME = I.RDB$RELATION_NAME AND R.RDB$FIELD_NAME = X.RDB$FIELD_NAME
      JOIN RDB$FIELDS F ON F.RDB$FIELD_NAME = R.RDB$FIELD_SOURCE
      WHERE X.RDB$INDEX_NAME = C.RDB$INDEX_NAME
       AND COALESCE(R.RDB$NULL_FLAG, F.RDB$NULL_FLAG, 0) = 0)))
 ORDER BY I.RDB$RELATION_NAME, I.RDB$INDEX_NAME, S.RDB$FIELD_POSITION
"""


class KeyIndex(NamedTuple):
    """A unique index that is the key of its table, and its columns."""

    name: str
    columns: tuple[str, ...]


KeyIndexes = dict[str, KeyIndex]
"""By table: only those whose key is an index. An index says no more what it was once it is gone,
so this is kept from one DDL to the next."""


class JournalStatements(NamedTuple):
    """The statements of a journal that may change tables, by the number of their event."""

    uuid: UUID
    statements: Mapping[int, Statement]


class Structures(NamedTuple):
    """Result of a `Job`: for each journal what its statements did, and the key indexes by then."""

    changes: dict[UUID, dict[int, tuple[TableChange, ...]]]
    indexes: KeyIndexes


class Job:
    """A question, asked on a thread of its own; ``done`` once there is a result or an error."""

    def __init__(
        self,
        database: str,
        journals: Sequence[JournalStatements],
        before: KeyIndexes | None,
    ) -> None:
        self.database = database
        self.journals = journals
        self.done = threading.Event()
        self._before = before
        self._result: Structures | None = None
        self._error: Exception | None = None

    def work(self, open_attachment: Callable[[str], OwnAttachment]) -> None:
        """Attach, read, detach; never raises."""
        try:
            attachment = open_attachment(self.database)
            try:
                with attachment.reading():
                    self._result = read_structures(attachment, self.journals, self._before)
            finally:
                attachment.close()
        except CaptureError as error:
            self._error = error
        except Exception as error:
            _log.exception("reading the structure of tables failed")
            self._error = error
        self.done.set()

    def result(self) -> Structures:
        """Return what was read, once it is done. Raises CaptureError."""
        if self._result is None:
            raise CaptureError(str(self._error)) from self._error
        return self._result


class StructureReader:
    """Does jobs, one after the other, on a thread that is started with the first."""

    def __init__(self, open_attachment: Callable[[str], OwnAttachment]) -> None:
        self._open_attachment = open_attachment
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, job: Job) -> Job:
        """Have JOB done."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="fbc-structures", daemon=True)
            thread.start()
            self._thread = thread
        self._jobs.put(job)
        return job

    def _run(self) -> None:
        while True:
            self._jobs.get().work(self._open_attachment)


def read_key_indexes(attachment: OwnAttachment) -> KeyIndexes:
    """Return the indexes that are keys now. Raises CaptureError."""
    partial = (
        "AND I.RDB$CONDITION_BLR IS NULL" if attachment.select(_HAS_PARTIAL_INDEXES, 1) else ""
    )
    found: dict[str, KeyIndex] = {}
    for table, index, column in _rows(attachment, _KEY_INDEXES % partial, 3):
        key = found.setdefault(table, KeyIndex(index, ()))
        if key.name == index:
            found[table] = KeyIndex(index, (*key.columns, column))
    return found


def read_structures(
    attachment: OwnAttachment, journals: Sequence[JournalStatements], before: KeyIndexes | None
) -> Structures:
    """Return what the statements of JOURNALS, in the order of their commits, did to tables.

    BEFORE: the key indexes before the first of them, None if not known: then of the statements
    on indexes only those that made the present keys are told. Raises CaptureError.
    """
    statements = [each for journal in journals for each in journal.statements.values()]
    indexes = read_key_indexes(attachment)
    domains = _users_of_domains(attachment, statements)
    concerned = {id(each): _concerned(each, domains, before, indexes) for each in statements}
    states = _read_states(
        attachment, sorted({name for names in concerned.values() for name in names})
    )
    return Structures(
        {
            journal.uuid: {
                pos: tuple(
                    TableChange(
                        each.verb if each.kind == "TABLE" else "ALTER",
                        name,
                        None if each.verb == "DROP" and each.kind == "TABLE" else states.get(name),
                    )
                    for name in concerned[id(each)]
                )
                for pos, each in journal.statements.items()
            }
            for journal in journals
        },
        indexes,
    )


def _concerned(
    statement: Statement,
    domains: Mapping[str, Sequence[str]],
    before: KeyIndexes | None,
    after: KeyIndexes,
) -> Sequence[str]:
    """The names of the tables that STATEMENT changed."""
    if statement.kind == "TABLE":
        return (statement.name,)
    if statement.kind == "DOMAIN":
        names = (statement.name, statement.renamed or statement.name)
        return sorted({table for name in names for table in domains.get(name, ())})
    known = before if before is not None else {}
    return [
        table
        for table in sorted(known.keys() | after.keys())
        if _was_key(statement, known.get(table), after.get(table))
    ]


def _was_key(index: Statement, before: KeyIndex | None, after: KeyIndex | None) -> bool:
    """Tell whether a statement on an index changed the key of a table, from BEFORE to AFTER."""
    if before is not None and before.name == index.name and index.verb == "CREATE":
        before = None  # one of that name went unnoticed
    names = {each.name for each in (before, after) if each is not None}
    return before != after and index.name in names


def _in_pieces(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), _MOST_AT_ONCE):
        yield names[start : start + _MOST_AT_ONCE]


def _literals(names: Iterable[str]) -> str:
    """Names as literals that need no quoting and no character set of the attachment."""
    return ", ".join(f"_UTF8 x'{name.encode().hex()}'" for name in names)


def _rows(attachment: OwnAttachment, sql: str, columns: int) -> list[tuple[str, ...]]:
    """The rows of a question, whose fields are all texts; NULL is empty."""
    return [
        tuple((field or b"").decode("utf-8", "replace") for field in row)
        for row in attachment.select(sql, columns)
    ]


def _users_of_domains(
    attachment: OwnAttachment, statements: Iterable[Statement]
) -> dict[str, list[str]]:
    names = set()
    for each in statements:
        if each.kind == "DOMAIN":
            names |= {each.name, each.renamed or each.name}
    found: dict[str, list[str]] = {}
    for some in _in_pieces(sorted(names)):
        for domain, table in _rows(attachment, _USERS_OF_DOMAINS % _literals(some), 2):
            found.setdefault(domain, []).append(table)
    return found


def _read_states(attachment: OwnAttachment, tables: Sequence[str]) -> dict[str, TableState]:
    """The state of those TABLES that are there."""
    if not tables:
        return {}
    [(charset,)] = _rows(attachment, _CHARSET, 1)
    columns: dict[str, list[tuple[str, ...]]] = {}
    for some in _in_pieces(tables):
        for row in _rows(attachment, _COLUMNS % _literals(some), 10):
            columns.setdefault(row[0], []).append(row)
    states = {}
    for table, rows in columns.items():
        shown = Table(0, table, 0, tuple(_column(row) for row in rows))
        if complete := attachment.describe(table_body(shown)):
            states[table] = TableState(
                parse_table(0, complete),
                charset or "NONE",
                tuple(row[8] == "1" for row in rows),
                tuple(_default(row[9]) for row in rows),
            )
    return states


def _column(row: Sequence[str]) -> Column:
    """A column as a record would show it."""
    name = row[1]
    field_type, sub_type, scale, length, charset_id, dimensions = (
        int(field or 0) for field in row[2:8]
    )
    kind = type_of_field(field_type, is_array=bool(dimensions))
    storage = kind.storage
    if storage in _TEXTS and charset_id == _OCTETS:
        storage = Storage.OCTETS
    is_text = storage in _TEXTS or storage is Storage.OCTETS
    if storage is Storage.BLOB:
        is_text = True
        charset_id = charset_id if sub_type == _TEXT_BLOB else _OCTETS
    return Column(
        name=name,
        sql_type=kind.sql_type,
        sub_type=sub_type if storage in _NUMBERS or storage is Storage.BLOB else 0,
        scale=scale if storage in _NUMBERS else 0,
        length=_ARRAY_BYTES if storage is Storage.ARRAY else length,
        charset_id=charset_id if is_text else 0,
        char_length=0,
        precision=0,
        nullable=True,
        identity=False,
        key_position=0,
        storage=storage,
    )


def _default(source: str) -> str | None:
    """The text of a default as it stands in the system tables, without what introduces it."""
    text = source.strip()
    if text[:7].upper() == "DEFAULT":
        text = text[7:]
    elif text.startswith("="):
        text = text[1:]
    return text.strip() or None


class KeyIndexFile:
    """Keeps the key indexes of a database from one DDL to the next; may be lost, then they are
    read anew."""

    def __init__(self, folder: Path, database: str, guid: UUID) -> None:
        self._path = folder / f"{database_key(database)}.indexes"
        self._guid = str(guid)

    def read(self) -> KeyIndexes | None:
        """Return what was written last, None if that is not to be had."""
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            if content["database"] != self._guid:
                return None
            return {
                table: KeyIndex(index, tuple(columns))
                for table, (index, columns) in content["indexes"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, indexes: KeyIndexes) -> None:
        """Put INDEXES in the place of what was there. Raises OSError."""
        content = {"database": self._guid, "indexes": indexes}
        temporary = self._path.with_suffix(".new")
        try:
            access.write_file(temporary, json.dumps(content).encode())
            temporary.replace(self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise

    def remove(self) -> None:
        """Remove the file, as what it holds is no longer right."""
        self._path.unlink(missing_ok=True)
