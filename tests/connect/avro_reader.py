"""Our Avro messages as a foreign converter of Kafka Connect reads them: AvroReader.java's side."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any, NamedTuple

from java import JavaProgram

_READERS = (
    "io.apicurio:apicurio-registry-utils-converter:2.6.13.Final",
    # Apicurio's own 1.12.0 reads the doubles of an array as if they had 32 bits.
    "org.apache.avro:avro:1.12.1",
    "org.slf4j:slf4j-nop:2.0.6",
)


class WrittenInJava(NamedTuple):
    """Result of AvroData for Connect data."""

    schema: Any
    avro: bytes


class AvroReader(JavaProgram):
    """A Java process with Apicurio's AvroConverter. It reads ids as Confluent's does."""

    def __init__(self, errors: Path) -> None:
        super().__init__("AvroReader", _READERS, errors)

    def read(self, registry: str, topic: str, message: bytes) -> Any:
        """Return the Connect schema and payload of MESSAGE, by its schema in REGISTRY."""
        request = {"registry": registry, "topic": topic, "message": b64encode(message).decode()}
        return self.ask(request)["connect"]

    def write(self, schema: Any, payload: Any) -> WrittenInJava:
        """Return the Avro of PAYLOAD, in Connect's JSON like its SCHEMA."""
        answer = self.ask({"connect": {"schema": schema, "payload": payload}})
        return WrittenInJava(json.loads(answer["schema"]), b64decode(answer["avro"]))
