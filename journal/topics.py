"""Names on the Kafka side: topics, and the part of schema names that stands for a database.

Source: features.md 3; for the table strategy and the transaction topic Debezium's
``TableTopicNamingStrategy`` and ``AbstractTopicNamingStrategy``.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

import logbook

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.config.values import MAX_TOPIC_LENGTH
from firebird_cdc.errors import ShipError

_log = logbook.Logger("firebird_cdc.journal.topics")

OWNERS_KEPT = 100_000
"""Names whose tables are remembered; a guess well above the tables that a server ever has."""

_PATH_SEPARATORS = str.maketrans("\\/:", "___")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9._-]")


def database_part(database: str) -> str:
    """Return the database path as it stands in topic and schema names.

    First the manual's rule (``\\``, ``/`` and ``:`` become ``_``), then every other character
    that Kafka forbids becomes ``_`` too. Source: features.md 3.1.
    """
    return _FORBIDDEN.sub("_", database.translate(_PATH_SEPARATORS))


def data_topic(prefix: str, database: str, table: str, delimiter: str = ".") -> str:
    """Return the topic of a table's events: prefix, database path and table name as stored.

    The result may be longer than ``MAX_TOPIC_LENGTH``; ``TopicNames`` refuses it then.
    """
    return _FORBIDDEN.sub(
        "_", delimiter.join((prefix, database.translate(_PATH_SEPARATORS), table))
    )


def missing_topic(_: str) -> str:
    """What to do where a broker says that a topic is not there."""
    return (
        "the topic is missing, and the brokers don't make it by themselves: make it, or set"
        " topic.creation.enable: true"
    )


class BadName(ShipError):
    """A name that can't be used. The text says for which tables or columns, and the way out."""


class Owners:
    """Remembers which table has which name: of the least used, the last ``OWNERS_KEPT``."""

    def __init__(self) -> None:
        self._owners: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def claim(self, name: str, owner: tuple[str, str]) -> tuple[str, str] | None:
        """Give NAME to OWNER, a database and a table of it; answer who else has it already."""
        other = self._owners.setdefault(name, owner)
        if other != owner:
            return other
        self._owners.move_to_end(name)
        if len(self._owners) > OWNERS_KEPT:
            self._owners.popitem(last=False)
        return None


class TopicNames:
    """Names the topics of one connector, and lets no two things share one.

    ``schema_changes``, ``transactions`` and ``heartbeats``: the topics of these, used or not.
    """

    def __init__(self, config: ConnectorConfig) -> None:
        self._delimiter = config.topic_delimiter
        self._by_table = config.topic_naming_strategy == "table"
        self._prefix = (
            self._by_table and config.override_data_change_topic_prefix
        ) or config.topic_prefix
        self.schema_changes = config.topic_prefix
        self.transactions = config.topic_delimiter.join(
            (config.topic_prefix, config.topic_transaction)
        )
        # Debezium's AbstractTopicNamingStrategy puts the delimiter here, too.
        self.heartbeats = config.topic_delimiter.join(
            (config.heartbeat_topics_prefix, config.topic_prefix)
        )
        self._reserved = {}
        if config.include_schema_changes:
            self._reserved[_collision_form(self.schema_changes)] = (
                "schema changes; choose another override.data.change.topic.prefix, set"
                " include.schema.changes: false"
            )
        if config.provide_transaction_metadata:
            self._reserved[_collision_form(self.transactions)] = (
                "transactions; choose another topic.transaction"
            )
        if config.heartbeat_interval_ms:
            self._reserved[_collision_form(self.heartbeats)] = (
                "heartbeats; choose another heartbeat.topics.prefix"
            )
        self.singles = frozenset((self.schema_changes, self.transactions, self.heartbeats))
        """Topics that are made with one partition, so that all in them has one order."""
        self._owners = Owners()
        self._memory: Path | None = None
        self._remembered: set[tuple[str, str]] = set()
        self.of_table = lru_cache(config.topic_cache_size)(self._of_table)

    def remember_in(self, path: Path, captures: Callable[[str, str], bool]) -> None:
        """Keep in the file PATH which table came first where two would share a topic.

        Else the topic would be the other one's after a restart. What CAPTURES says no to is
        forgotten. Call it before the first name is asked for.
        """
        self._memory = path
        for owner in _read_owners(path):
            self._remembered.add(owner)
            if captures(*owner):
                self._owners.claim(_collision_form(self._topic(*owner)), owner)

    def _remember(self, owner: tuple[str, str]) -> None:
        if self._memory is None or owner in self._remembered:
            return
        self._remembered.add(owner)
        try:
            with self._memory.open("a", encoding="utf-8") as file:
                file.write(json.dumps(owner) + "\n")
        except OSError as error:
            _log.error(
                "{} can't be written ({}), so table {table} in {database} may lose its topic at a"
                " restart",
                self._memory,
                error,
                table=owner[1],
                database=owner[0],
            )

    def _topic(self, database: str, table: str) -> str:
        if self._by_table:
            return _FORBIDDEN.sub("_", self._delimiter.join((self._prefix, table)))
        return data_topic(self._prefix, database, table, self._delimiter)

    def _of_table(self, database: str, table: str) -> str:
        """Return the topic of TABLE in DATABASE, its full path.

        Raises BadName if it is too long for Kafka or something else has it.
        """
        topic = self._topic(database, table)
        whose = f"table {table} in {database}"
        if len(topic) > MAX_TOPIC_LENGTH:
            raise BadName(
                f"topic name {topic} of {whose} has {len(topic)} characters, Kafka allows"
                f" {MAX_TOPIC_LENGTH}; choose a shorter kafka.topic.prefix, or leave the table out"
                " with table.exclude.list"
            )
        if taken := self._reserved.get(_collision_form(topic)):
            raise BadName(
                f"{whose} would have the topic {topic}, which is that of {taken}, or leave the"
                " table out with table.exclude.list"
            )
        other = self._owners.claim(_collision_form(topic), (database, table))
        if other is None:
            return topic
        self._remember(other)
        other_topic = self._topic(*other)
        how = (
            f"share the topic {topic}"
            if topic == other_topic
            else f"have the topics {topic} and {other_topic}, and Kafka takes no two topics that"
            " differ only in . and _"
        )
        raise BadName(
            f"{whose} and table {other[1]} in {other[0]} would {how}; leave one of them out with"
            " table.exclude.list"
            + (", or set topic.naming.strategy: default" if self._by_table else "")
            + self._way_out(other[1])
        )

    def _way_out(self, table: str) -> str:
        if self._memory is None:
            return ""
        return (
            f"; if table {table} is no more, remove its line from {self._memory} and restart the"
            " shipper"
        )

    def problems(self, tables: Iterable[tuple[str, str]]) -> list[str]:
        """What is wrong with the topics of TABLES, pairs of a database and a table of it."""
        return problems_of(self.of_table, tables)


def _read_owners(path: Path) -> list[tuple[str, str]]:
    """The tables in the file PATH, none if it is not there; lines that are damaged don't count."""
    owners = []
    try:
        lines = path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        _log.error("{} can't be read, so its tables may lose their topics: {}", path, error)
        return []
    for line in lines:
        try:
            database, table = json.loads(line)
        except (ValueError, TypeError):
            _log.warning("{} has a line that is no table: {}", path, line)
        else:
            owners.append((str(database), str(table)))
    return owners


def _collision_form(topic: str) -> str:
    """TOPIC as it stands in the names of a broker's metrics.

    A broker refuses to create a topic if another one's name is the same there
    (``Topic.unifyCollisionChars``).
    """
    return topic.replace(".", "_")


def problems_of(name_of: Callable[[str, str], str], tables: Iterable[tuple[str, str]]) -> list[str]:
    """The texts of the BadName that NAME_OF raises for some of TABLES."""
    problems = []
    for database, table in tables:
        try:
            name_of(database, table)
        except BadName as problem:
            problems.append(str(problem))
    return problems
