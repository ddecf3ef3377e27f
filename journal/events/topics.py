"""Names on the Kafka side: topics, and the part of schema names that stands for a database.

docs/topics.md tells the names. Source of the table strategy and the transaction topic: Debezium's
``TableTopicNamingStrategy`` and ``AbstractTopicNamingStrategy``.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO

import logbook

from firebird_cdc import access
from firebird_cdc.config import ConnectorConfig
from firebird_cdc.config.values import MAX_TOPIC_LENGTH
from firebird_cdc.errors import ShipError, StateUnwritable
from firebird_cdc.journal.events.topic_encoding import ESCAPE, REPLACE, beginning_of, topic_of
from firebird_cdc.journal.folder.durable import replace_file, sync_directory, sync_name

_log = logbook.Logger("firebird_cdc.journal.events.topics")

OWNERS_KEPT = 100_000
"""Names whose tables are remembered; a guess well above the tables that a server ever has."""

SHARED_TOPICS = "shared-topics"
"""File in ``.firebird-cdc``: the tables that have topics, in the order in which they came."""


def missing_topic(_: str) -> str:
    """Return the remedy, as a sentence, where a broker says that a topic is not there."""
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
        self._encoding = config.topic_name_encoding
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
        self._reserved = {
            _collision_form(config.position_topic): "offsets; choose another kafka.position.topic"
        }
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
        told = config.notifications.topic
        if told is not None:
            self._reserved[_collision_form(told)] = (
                "notifications; choose another notification.sink.topic.name"
            )
        singles = (self.schema_changes, self.transactions, self.heartbeats, told)
        self.singles = frozenset(filter(None, singles))
        """Topics that are made with one partition, so that all in them has one order."""
        self._owners = Owners()
        self._memory: Path | None = None
        self._must_rewrite = False
        self._remembered: dict[tuple[str, str], None] = {}
        self.of_table = lru_cache(config.topic_cache_size)(self._of_table)

    def remember_in(self, path: Path) -> list[tuple[str, str]]:
        """Keep in the file PATH which tables have topics, in the order in which they came.

        Return those that stand there, to be given to `settle` before the first name is asked for:
        else a topic would be another table's after a restart. Asked again where PATH may lie in
        another folder: what is known here goes before what stands there.
        """
        self._memory = path
        known = dict.fromkeys((*self._remembered, *read_owners(path)))
        owners = list(known)[-OWNERS_KEPT:]
        self._remembered = dict.fromkeys(owners)
        if owners:
            try:
                # A process of which a sync has failed may have left what is not on disk.
                _rewrite(path, owners)
            except OSError as error:  # what ships those that are known makes room on a full disk
                self._must_rewrite = True
                _log.warning(
                    "{} can't be written anew ({}), so a power cut might take lines from it; tables"
                    " that it names are shipped, the next one that it doesn't waits until it can"
                    " be: make room on its disk, or let the user of the server write there",
                    path,
                    error,
                )
            else:
                self._must_rewrite = False
        return owners

    def settle(
        self, owners: Iterable[tuple[str, str]], captures: Callable[[str, str], bool]
    ) -> None:
        """Let OWNERS have come first, but those that CAPTURES says no to."""
        for owner in owners:
            if captures(*owner):
                self._owners.claim(_collision_form(self._topic(*owner)), owner)

    def _remember(self, owner: tuple[str, str]) -> None:
        """Have OWNER in the memory. Raises StateUnwritable, after which the next call tries it."""
        if self._memory is None or owner in self._remembered:
            return
        with _written(self._memory):
            if self._must_rewrite:
                _rewrite(self._memory, [*self._remembered, owner])
            else:
                self._must_rewrite = True  # a later sync doesn't tell of what an earlier one lost
                _append(self._memory, owner)
        self._must_rewrite = False
        self._remembered[owner] = None

    def _topic(self, database: str, table: str, encoding: str | None = None) -> str:
        path = None if self._by_table else database
        return topic_of(encoding or self._encoding, self._prefix, path, table, self._delimiter)

    def may_be_of(self, topic: str, database: str) -> bool:
        """Tell whether TOPIC may be that of a table in DATABASE, by how its name begins."""
        if self._by_table:
            return topic.startswith(f"{self._prefix}{self._delimiter}")
        return topic.startswith(
            beginning_of(self._encoding, self._prefix, database, self._delimiter)
        )

    def may_be_data(self, topic: str) -> bool:
        """Tell whether TOPIC may be that of a table, by how its name begins."""
        beginning = f"{self._prefix}{self._delimiter}"
        return topic.startswith(beginning) and topic not in self.singles

    def _of_table(self, database: str, table: str) -> str:
        """Return the topic of TABLE in DATABASE, its full path.

        Raises BadName if it is too long for Kafka or something else has it; StateUnwritable.
        """
        topic = self._topic(database, table)
        whose = f"table {table} in {database}"
        if len(topic) > MAX_TOPIC_LENGTH:
            raise BadName(
                f"topic name {topic} of {whose} has {len(topic)} characters, Kafka allows"
                f" {MAX_TOPIC_LENGTH}; choose a shorter kafka.topic.prefix"
                + (", set topic.name.encoding: escape" if self._encoding == REPLACE else "")
                + ", or leave the table out with table.exclude.list"
            )
        if taken := self._reserved.get(_collision_form(topic)):
            raise BadName(
                f"{whose} would have the topic {topic}, which is that of {taken}, or leave the"
                " table out with table.exclude.list"
            )
        other = self._owners.claim(_collision_form(topic), (database, table))
        if other is None:
            self._remember((database, table))
            return topic
        self._remember(other)
        other_topic, others = self._topic(*other), ((database, table), other)
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
            + (", or set topic.name.encoding: escape" if self._escape_helps(*others) else "")
            + self._way_out(other[1])
        )

    def _escape_helps(self, one: tuple[str, str], other: tuple[str, str]) -> bool:
        """Tell whether the two tables would have different topics if names were escaped."""
        return self._encoding != ESCAPE and self._topic(*one, ESCAPE) != self._topic(*other, ESCAPE)

    def _way_out(self, table: str) -> str:
        if self._memory is None:
            return ""
        return (
            f"; if table {table} is no more, or its database has moved, remove its line from"
            f" {self._memory} and restart the shipper"
        )

    def problems(self, tables: Iterable[tuple[str, str]]) -> list[str]:
        """Return the problems with the topics of TABLES, pairs of a database and a table of it."""
        return problems_of(self.of_table, tables)


@contextmanager
def _written(path: Path) -> Iterator[None]:
    """Raise StateUnwritable where PATH, who came first to a topic, can't be written."""
    try:
        yield
    except OSError as error:
        raise StateUnwritable(
            f"{path} can't be written ({error}). It has to say which table came first to each"
            " topic, or another one might have that topic after a restart; make room on its disk,"
            " or let the user of the server write there"
        ) from error


def _line(owner: tuple[str, str]) -> bytes:
    return f"{json.dumps(owner)}\n".encode()


def _rewrite(path: Path, owners: Iterable[tuple[str, str]]) -> None:
    """Have OWNERS, and nothing else, in the file PATH, durably. Raises OSError."""
    replace_file(path, b"".join(map(_line, owners)))
    sync_directory(path.parent)


def _append(path: Path, owner: tuple[str, str]) -> None:
    """Write OWNER at the end of the file PATH, durably. Raises OSError."""
    made = access.open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    with os.fdopen(made, "ab+") as file:
        is_new = not file.tell()
        if not is_new and not _ends_line(file):  # cut off by a crash, or edited
            file.write(b"\n")
        file.write(_line(owner))
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        sync_name(path)


def _ends_line(file: IO[bytes]) -> bool:
    """Tell whether FILE, of one byte at least and opened to append, ends with the end of a line."""
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def read_owners(path: Path) -> list[tuple[str, str]]:
    """Return the tables in the file PATH, none if it is not there; damaged lines don't count."""
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
