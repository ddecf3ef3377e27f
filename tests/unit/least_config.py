"""The options that every configuration needs, for tests of others."""

from __future__ import annotations

from pathlib import Path

from firebird_cdc.config import ConnectorConfig, load_config

REQUIRED = (
    "connector.name: n",
    "connector.journal.directory: /j",
    "kafka.topic.prefix: p",
    "kafka.producer.bootstrap.servers: h:1",
)


def load_with(directory: Path, *lines: str) -> ConnectorConfig:
    """Load a file in DIRECTORY of LINES and of the required options that they leave out."""
    path = directory / "c.yaml"
    given = {line.partition(":")[0] for line in lines}
    missing = [line for line in REQUIRED if line.partition(":")[0] not in given]
    path.write_text("\n".join([*lines, *missing]) + "\n", "utf-8")
    return load_config(path)
