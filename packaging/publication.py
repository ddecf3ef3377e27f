"""Finds out what a database publishes and what the connector's options make of it; changes it.

The engine hands changes of published tables to replication, and so to the plugin. Filters, keys and
topics are the options'.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.config.filters import MessageKeys, TableFilter
from firebird_cdc.config.patterns import name_pattern
from firebird_cdc.config.values import ValueProblem
from firebird_cdc.errors import DatabaseUnreadable, SetupError, UsageError
from firebird_cdc.journal.events.names import SchemaNames
from firebird_cdc.journal.events.table_shape import key_columns
from firebird_cdc.journal.events.topics import SHARED_TOPICS, BadName, TopicNames, read_owners
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.format import Table
from firebird_cdc.journal.snapshot.attachment import NAME, fetch_all, one_line, text_of
from firebird_cdc.journal.snapshot.catalogue import read_tables
from firebird_cdc.journal.snapshot.publication import read_publication
from firebird_cdc.journal.types.identifiers import identifier

if TYPE_CHECKING:
    from firebird.driver import Connection

UNSERVED = "4.0.0"
"""The version of the engine that the plugin refuses (native/engine_version.c)."""

_DATABASE = """
SELECT CAST(D.MON$DATABASE_NAME AS VARCHAR(1020) CHARACTER SET OCTETS), D.MON$PAGE_SIZE,
  D.MON$FORCED_WRITES, D.MON$READ_ONLY,
  CAST(RDB$GET_CONTEXT('SYSTEM', 'ENGINE_VERSION') AS VARCHAR(32) CHARACTER SET OCTETS)
 FROM MON$DATABASE D
"""
# But those of ours, which draw no number from a sequence.
_CONNECTIONS = f"""
SELECT A.MON$ATTACHMENT_ID, {NAME.format("A.MON$USER")},
  CAST(A.MON$REMOTE_PROCESS AS VARCHAR(1020) CHARACTER SET OCTETS), A.MON$REMOTE_ADDRESS
 FROM MON$ATTACHMENTS A
 WHERE A.MON$SYSTEM_FLAG = 0 AND A.MON$ATTACHMENT_ID <> CURRENT_CONNECTION
  AND COALESCE(A.MON$REMOTE_PROCESS, '') NOT STARTING WITH 'firebird-cdc'
 ORDER BY 1
"""  # noqa: S608
_TAKES_NEW = "SELECT 1 FROM RDB$PUBLICATIONS P WHERE P.RDB$AUTO_ENABLE = 1"
_SHOWN = 10
_LOCK_WAIT_S = 10
_NO_PRIVILEGE = 335544352  # isc_no_priv
_IN_THE_WAY = frozenset({335544345, 335544336, 335544510})  # lock conflict, deadlock, lock time-out


class PublishedDatabase(NamedTuple):
    """A database and its publication.

    ``path``: the engine's own, by which options and events name it. ``tables``: all that can be
    published, ``published``: the names of those that are; ``is_on``: the publication's switch;
    ``takes_new``: a new table joins by itself.
    """

    path: str
    tables: Mapping[str, Table]
    published: frozenset[str]
    is_on: bool
    takes_new: bool
    forced_writes: bool
    is_read_only: bool
    engine: str


class CapturedTable(NamedTuple):
    """A table and what becomes of its changes.

    ``key``: columns of the message key. ``topic``: None if it has none, or nobody has said how
    topics are called. ``why``: it is not captured; empty: it is.
    """

    name: str
    key: tuple[str, ...]
    topic: str | None
    why: str


def read_database(connection: Connection) -> PublishedDatabase:
    """Return what CONNECTION, of `journal.snapshot.attachment`, is attached to.

    Raises SetupError if it can't be captured from, DatabaseUnreadable.
    """
    from firebird.driver import Error

    try:
        [(path, page_size, forced, read_only, engine)] = fetch_all(connection, _DATABASE)
        if int(text_of(engine).partition(".")[0]) < 4:
            raise SetupError(
                f"the server of {text_of(path)} is Firebird {text_of(engine)}, which has no"
                " publication; capture needs Firebird 4 or 5"
            )
        tables = read_tables(connection, page_size)
        publication = read_publication(connection)
        takes_new = bool(fetch_all(connection, _TAKES_NEW))
        connection.rollback()
    except Error as error:
        raise DatabaseUnreadable(f"the database can't be read: {one_line(error)}") from None
    return PublishedDatabase(
        text_of(path),
        {name: found.table for name, found in tables.items()},
        frozenset(publication.tables).intersection(tables),
        publication.switched_on is not None,
        takes_new,
        bool(forced),
        bool(read_only),
        text_of(engine),
    )


# Changes


def matching(found: PublishedDatabase, patterns: Sequence[str]) -> frozenset[str]:
    """Return the tables that PATTERNS name: a name as it is, or a regular expression for names.

    Raises UsageError for those that are neither, and those that name no table.
    """
    names: set[str] = set()
    problems = []
    for pattern in patterns:
        try:
            wanted = name_pattern(pattern)
        except ValueProblem as problem:
            problems.append(f"--tables: {problem}")
            continue
        named = {name for name in found.tables if wanted.fullmatch(name)}
        if not named:
            problems.append(
                f"--tables {pattern}: {found.path} has no such table (views, temporary and external"
                " tables can't be captured); firebird-cdc tables lists those that can be"
            )
        names |= named
    if problems:
        raise UsageError("\n".join(problems))
    return frozenset(names)


def plan_enabling(
    found: PublishedDatabase, names: frozenset[str] | None
) -> tuple[list[str], PublishedDatabase]:
    """Return the statements that have the tables NAMES captured, None: all, later ones too; and the
    database after them."""
    statements = []
    after = found
    if names is None:
        after = found._replace(published=frozenset(found.tables), takes_new=True)
        if after != found:
            statements.append("ALTER DATABASE INCLUDE ALL TO PUBLICATION")
    elif outside := names - found.published:
        after = found._replace(published=found.published | names)
        statements.append(f"ALTER DATABASE INCLUDE TABLE {_listed(outside)} TO PUBLICATION")
    if not found.is_on:
        after = after._replace(is_on=True)
        statements.append("ALTER DATABASE ENABLE PUBLICATION")
    return statements, after


def plan_disabling(
    found: PublishedDatabase, names: frozenset[str] | None
) -> tuple[list[str], PublishedDatabase]:
    """Return the statements that end the capture of the tables NAMES, None: of the database; and
    the database after them."""
    if names is not None:
        inside = names & found.published
        after = found._replace(published=found.published - names)
        listed = f"ALTER DATABASE EXCLUDE TABLE {_listed(inside)} FROM PUBLICATION"
        return [listed] if inside else [], after
    statements = []
    if found.is_on:
        statements.append("ALTER DATABASE DISABLE PUBLICATION")
    if found.published or found.takes_new:
        statements.append("ALTER DATABASE EXCLUDE ALL FROM PUBLICATION")
    return statements, found._replace(published=frozenset(), is_on=False, takes_new=False)


def _listed(names: frozenset[str]) -> str:
    return ", ".join(map(identifier, sorted(names)))


def carry_out(connection: Connection, statements: Sequence[str]) -> None:
    """Run STATEMENTS in one transaction: all of them count, or none. Raises SetupError."""
    from firebird.driver import TPB, Error, Isolation

    isolation = Isolation.READ_COMMITTED_RECORD_VERSION
    try:
        connection.begin(TPB(isolation=isolation, lock_timeout=_LOCK_WAIT_S).get_buffer())
        for statement in statements:
            connection.execute_immediate(statement)
        connection.commit()
    except Error as error:
        codes = set(getattr(error, "gds_codes", None) or ())
        if _NO_PRIVILEGE in codes:
            hint = (
                "the database's owner and SYSDBA have that right, and whom they give it: GRANT"
                " ALTER DATABASE TO USER …"
            )
        elif codes & _IN_THE_WAY:
            hint = "somebody else changes the publication just now: run it again"
        else:
            hint = "nothing was changed"
        raise SetupError(f"the publication can't be changed: {one_line(error)}; {hint}") from None


def connections_beside(connection: Connection) -> list[str]:
    """Return the other connections, as far as the user of CONNECTION may see them, for people.

    The engine takes a connection that draws a number from a sequence, as for an identity column,
    while the publication is off for one that is never to be reported (`ATT_replicating` in its
    Publisher.cpp): until it ends, whatever becomes of the publication. Who did is not told.
    """
    from firebird.driver import Error

    try:
        found = fetch_all(connection, _CONNECTIONS)
        connection.rollback()
    except Error as error:
        raise DatabaseUnreadable(f"the database can't be read: {one_line(error)}") from None
    return [
        ", ".join(
            text_of(each)
            for each in (f"attachment {number} of {text_of(user or '')}", process, address)
            if each
        )
        for number, user, process, address in found
    ]


# What becomes of the tables


class Naming:
    """Keys and topics of the tables of one database. options: None where nobody knows them."""

    def __init__(self, found: PublishedDatabase, options: ConnectorConfig | None) -> None:
        self._found = found
        self._filter = self._keys = self._topics = self._schemas = None
        if options is None:
            return
        self._filter, self._keys = TableFilter(options), MessageKeys(options)
        self._topics, self._schemas = TopicNames(options), SchemaNames(options)
        known = options.journal_directory / STATE_DIRECTORY / SHARED_TOPICS
        if os.access(known, os.R_OK):
            owners = read_owners(known)
            for names in (self._topics, self._schemas):
                names.settle(owners, self._filter.captures)

    def tables(self) -> list[CapturedTable]:
        """Return the tables of the database, captured or not."""
        return [self._told(table) for _, table in sorted(self._found.tables.items())]

    def _told(self, table: Table) -> CapturedTable:
        found, name = self._found, table.name
        key, why = tuple(table.columns[place].name for place in self._key(table)), ""
        if self._filter is not None and not self._filter.captures(found.path, name):
            why = "left out by table.include.list or table.exclude.list"
        elif name not in found.published:
            why = "outside the publication"
        elif not found.is_on:
            why = "the publication is off"
        topic = None
        if not why and self._topics is not None and self._schemas is not None:
            try:
                topic = self._topics.of_table(found.path, name)
                self._schemas.of_table(found.path, name)
            except BadName as error:
                return CapturedTable(name, key, None, str(error))
        return CapturedTable(name, key, topic, why)

    def _key(self, table: Table) -> list[int]:
        if self._keys is not None:
            return key_columns(self._keys, self._found.path, table)
        return [place for place in table.order if place in table.key_columns]


def warnings(found: PublishedDatabase, tables: Sequence[CapturedTable]) -> Iterator[str]:
    """Yield what to know of FOUND and its TABLES, a sentence each."""
    if found.engine == UNSERVED:
        yield (
            f"the server is Firebird {UNSERVED}, in which writes to captured tables are refused;"
            " upgrade it to Firebird 4.0.1 or later"
        )
    if not found.forced_writes:
        yield (
            "forced writes are off: after a power failure the database may lack commits that"
            f" events tell of; gfix -write sync {found.path}"
        )
    captured = [table for table in tables if not table.why]
    if keyless := [table.name for table in captured if not table.key]:
        yield (
            f"tables without primary or unique key: {_some(keyless)}; their events have no message"
            " key. Add a primary key, or name columns in message.key.columns"
        )
    for table in tables:
        if table.name in found.published and table.why and found.is_on:
            yield f"table {table.name} is published, and no event tells of its changes: {table.why}"
    if found.is_on and not captured:
        yield "no table is captured"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
