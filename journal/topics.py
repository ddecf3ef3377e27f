"""Names on the Kafka side: data topics, and the part of schema names that stands for a database."""

from __future__ import annotations

import re

MAX_TOPIC_LENGTH = 249
"""Characters that Kafka allows in a topic name (``org.apache.kafka.common.internals.Topic``)."""

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

    The result may be longer than ``MAX_TOPIC_LENGTH``; whoever sends decides what that means.
    """
    return _FORBIDDEN.sub(
        "_", delimiter.join((prefix, database.translate(_PATH_SEPARATORS), table))
    )
