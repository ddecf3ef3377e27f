"""Looks at running things for ``check``: accounts, locks, Kafka, databases. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from firebird_cdc.config.attachment import Attachment
from firebird_cdc.journal.format import Table
from firebird_cdc.journal.snapshot.attachment import attach
from firebird_cdc.packaging.databases import connection_to, is_through
from firebird_cdc.packaging.ddl_triggers import DdlTrigger, ddl_triggers
from firebird_cdc.packaging.publication import read_database
from firebird_cdc.packaging.server.layout import Server
from firebird_cdc.packaging.server.procfs import FlockHolders

if TYPE_CHECKING:
    from firebird.driver import Connection

_KAFKA_TIMEOUT_S = 10.0


def is_locked(path: Path) -> bool:
    """Tell whether a process holds a flock on PATH, without touching the lock."""
    try:
        return FlockHolders().of(path) is not None
    except OSError:
        return False


def kafka_problem(producer: Mapping[str, str]) -> str | None:
    """Ask the cluster for its metadata; return why it didn't answer, or None."""
    from confluent_kafka import KafkaError, KafkaException, Producer

    errors: list[Any] = []
    left_out = {"transactional.id", "enable.idempotence"}  # those would make it look for more
    settings: dict[str, Any] = {k: v for k, v in producer.items() if k not in left_out}
    settings.update(error_cb=errors.append, log_level=0)
    try:
        client = Producer(settings)
    except KafkaException as error:
        return str(error.args[0].str())
    deadline = time.monotonic() + _KAFKA_TIMEOUT_S
    while True:
        try:
            return None if client.list_topics(timeout=1).brokers else "it names no broker"
        except KafkaException as error:
            client.poll(0)
            refused = any(e.code() == KafkaError._ALL_BROKERS_DOWN for e in errors)
            if refused or time.monotonic() > deadline:
                # What happened to the connections says more than that the time is up.
                return str((errors or [error.args[0]])[0].str())


class Publication(NamedTuple):
    """Publication of a database: whether it is on, its tables, and those of them without a key of
    their own.

    ``outside``: the other tables of the user that hold data for good; ``forced_writes``: whether
    the engine waits until a commit is on disk; ``engine``: its version, such as 5.0.4;
    ``ddl_triggers``: those on DDL that may write. ``path``: the engine's own, by which options and
    events name the database. ``is_through_server``: whether the server that is looked at has it.
    """

    enabled: bool
    tables: list[str]
    without_key: list[Table]
    outside: list[str]
    forced_writes: bool
    engine: str
    ddl_triggers: Sequence[DdlTrigger] = ()
    path: str = ""
    is_through_server: bool = False


def read_publication(
    server: Server, database: str, attachment: Attachment | None = None
) -> Publication:
    """Return what DATABASE (a path, or HOST[/PORT]:PATH) publishes.

    ATTACHMENT: of the connector options, see `connection_to`. Raises any error of the driver, and
    of ours.
    """
    how = connection_to(server, database, attachment)
    with closing(attach(how)) as connection:
        found = read_database(connection)
        published = [found.tables[name] for name in sorted(found.published)]
        return Publication(
            found.is_on,
            [table.name for table in published],
            [table for table in published if not table.key_columns],
            sorted(found.tables.keys() - found.published),
            found.forced_writes,
            found.engine,
            ddl_triggers(connection),
            found.path,
            is_through(server, how),
        )


def attached(
    server: Server, database: str, attachment: Attachment | None = None
) -> AbstractContextManager[Connection]:
    """Attach to DATABASE, as `connection_to` has it, for as long as the context lasts."""
    return closing(attach(connection_to(server, database, attachment)))
