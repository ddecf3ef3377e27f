"""Heartbeats: messages that tell that the shipper is alive though no table changes.

Their form is Debezium's (``HeartbeatImpl``, ``SchemaFactory``), as any of its connectors sends.
"""

from __future__ import annotations

from time import time_ns

import logbook

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.errors import Obstacle
from firebird_cdc.journal.events.schema import INT64, STRING, struct
from firebird_cdc.journal.events.values import BadValue
from firebird_cdc.journal.shipper.delivery.base import Delivery

_log = logbook.Logger("firebird_cdc.journal.shipper.tasks.heartbeat")

KEY = struct("io.debezium.connector.common.ServerNameKey", ("serverName", STRING), version=1)
VALUE = struct("io.debezium.connector.common.Heartbeat", ("ts_ms", INT64), version=1)

_LOOK_S = 1.0  # while Kafka is away


class Heartbeat:
    """Sends one message each ``heartbeat.interval.ms``; a periodic task.

    They go through transforms and converters like all others. While Kafka does not take messages
    none are made: they would only say late that the shipper was alive earlier. But if no answer is
    awaited any more, the next one finds out whether Kafka is back.
    """

    def __init__(self, config: ConnectorConfig, delivery: Delivery) -> None:
        self._delivery = delivery
        self._renderer = delivery.plan.renderer
        self._topic = self._renderer.topics.heartbeats
        self._key = {"serverName": config.topic_prefix}
        self._interval_s = config.heartbeat_interval_ms / 1000
        self._trouble = ""

    def turn(self, now: float) -> float:
        """Send a heartbeat, unless Kafka is away; return when the next one is due."""
        delivery = self._delivery
        if delivery.stopping or (delivery.link.away and delivery.unacked):
            return now + _LOOK_S
        try:
            message = self._renderer.writer.message(
                self._topic, KEY, self._key, VALUE, {"ts_ms": time_ns() // 1_000_000}
            )
            if message is not None:
                self._renderer.writer.require_topic(message.topic)
                delivery.out_of_band.add(message)
        except (BadValue, Obstacle) as error:
            self._tell(str(error))
        else:
            self._trouble = ""
        return now + self._interval_s

    def _tell(self, trouble: str) -> None:
        """Log, once, that a heartbeat is left out."""
        if trouble != self._trouble:
            _log.warning("no heartbeat in {}: {}", self._topic, trouble)
        self._trouble = trouble

    def close(self) -> None:
        """Nothing is open."""
