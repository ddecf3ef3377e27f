"""Turns ``kafka.producer.*`` options, named as the Java client names them, into librdkafka's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from firebird_cdc.config.source import Entry

_CONSUMED = ("max.block.ms", "close.timeout.ms")


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """``properties`` for ``confluent_kafka.Producer``; ``origins``: the place of each in the file."""

    properties: dict[str, str]
    origins: dict[str, str]

    @classmethod
    def from_entries(
        cls,
        entries: Mapping[str, Entry],
        path: Path,
        problems: list[str],
        warnings: list[str],
    ) -> ProducerSettings:
        """Map ENTRIES, keyed by property name; append to PROBLEMS and WARNINGS."""
        properties = {"enable.idempotence": "true", "acks": "all", "delivery.timeout.ms": "120000"}
        origins: dict[str, str] = {}
        for name, entry in entries.items():
            if name in _CONSUMED or entry.value is None:
                continue
            value = entry.value
            properties[name] = ",".join(value) if isinstance(value, tuple) else value
            origins[name] = f"{path}:{entry.line}: {entry.key}"
        return cls(properties, origins)
