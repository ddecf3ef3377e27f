"""Our messages as Kafka Connect's own classes read them: the Python side of ConnectReader.java.

One Java process serves all tests. What it tells of a value is a list: the name of its Java class,
its content as text, and for a semantic type what Debezium's class of that type takes it for.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from java import JavaProgram

# The versions of today's sinks; Debezium 3 is the first that Connect 4 runs.
_READERS = (
    "org.apache.kafka:connect-json:4.1.0",
    "org.apache.kafka:connect-runtime:4.1.0",
    "org.apache.kafka:connect-transforms:4.1.0",
    "io.debezium:debezium-core:3.3.1.Final",
    "io.debezium:debezium-sink:3.3.1.Final",
    "org.slf4j:slf4j-nop:1.7.36",
)

Described = Any
"""A schema or a value as JSON; see ConnectReader.java."""


class ConnectReader(JavaProgram):
    """A Java process with Kafka Connect's JsonConverter and Debezium's transforms."""

    def __init__(self, errors: Path) -> None:
        super().__init__("ConnectReader", _READERS, errors)

    def read(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Mapping[str, bytes] | None = None,
        *,
        key_schemas: bool = True,
        value_schemas: bool = True,
        transforms: Sequence[tuple[str, Mapping[str, str]]] = (),
    ) -> Described:
        """Return what JsonConverter makes of a message, and TRANSFORMS (class, options) of that.

        HEADERS: as ``header.converter: json`` writes them. ``written_key`` and ``written_value`` in
        the result: the JSON that JsonConverter makes of what it has read. Raises Unreadable, also
        for a value that is not valid in its schema.
        """
        return self.ask(
            {
                "do": "read",
                "topic": topic,
                "key": _base64(key),
                "value": _base64(value),
                "headers": {name: _base64(content) for name, content in (headers or {}).items()},
                "key_schemas": key_schemas,
                "value_schemas": value_schemas,
                "transforms": [
                    {"type": kind, "options": dict(options)} for kind, options in transforms
                ],
            }
        )

    def headers(
        self,
        headers: Mapping[str, bytes | None],
        *,
        by: str,
        topic: str = "t",
        key: bytes | None = None,
    ) -> Described:
        """Return what a worker with the header converter BY (simple or json) makes of HEADERS.

        ``written`` in the result: what SimpleHeaderConverter makes of KEY, which has a schema.
        ``refused``: why Debezium's JDBC sink doesn't take that. Raises Unreadable if it doesn't
        take HEADERS, or if one is no value of its schema.
        """
        return self.ask(
            {
                "do": "headers",
                "topic": topic,
                "by": by,
                "key": _base64(key),
                "headers": {name: _base64(content) for name, content in headers.items()},
            }
        )

    def table_changes(self, table_changes: list[Any]) -> list[Described]:
        """Return what Debezium's schema history reads from a schema change's ``tableChanges``."""
        asked = {"do": "table_changes", "json": json.dumps(table_changes)}
        changes: list[Described] = self.ask(asked)["changes"]
        return changes

    def debezium_schemas(self, topic: str, value: bytes) -> Described:
        """Return Debezium's own schemas; its envelope is that for the row and source of VALUE."""
        return self.ask({"do": "schemas", "topic": topic, "value": _base64(value)})

    def heartbeat_schemas(self) -> tuple[Described, Described]:
        """Return Debezium's schemas of a heartbeat's key and value."""
        answer = self.ask({"do": "heartbeat"})
        return answer["key"], answer["value"]

    def partition(self, key: bytes, partitions: int) -> int:
        """Return the partition, of so many, into which the Java client sends KEY."""
        asked = {"do": "partition", "key": _base64(key), "partitions": partitions}
        return int(self.ask(asked)["partition"])

    def hash(self, text: str, length: int, algorithm: str, salt: str, version: str) -> str:
        """Return what column.mask.hash makes of TEXT in a VARCHAR of LENGTH; VERSION: V1 or V2."""
        asked = {"text": text, "length": length, "algorithm": algorithm, "salt": salt}
        return str(self.ask({"do": "hash", **asked, "version": version})["hash"])

    def adjusted(self, name: str, mode: str) -> tuple[str, str]:
        """Return what a name adjustment MODE makes of NAME as a schema's and as a field's name."""
        answer = self.ask({"do": "adjust", "name": name, "mode": mode})
        return answer["schema"], answer["field"]


def _base64(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode()
