"""The topics that are no tables': of offsets, changes of structure, transactions and so on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class ServiceTopic(NamedTuple):
    """A topic ``name`` of ours, for ``what``; ``option`` names it, or the last part that does."""

    option: str
    what: str
    name: str

    @property
    def collision_form(self) -> str:
        """The name as Kafka compares it, which takes dots and underscores for the same."""
        return self.name.replace(".", "_")


def position_topic(values: Mapping[str, Any]) -> str:
    """Return the topic in which the shipper keeps how far each database has come."""
    return (
        values.get("kafka.position.topic")
        or f"__firebird-cdc-positions.{values.get('kafka.topic.prefix')}"
    )


def signal_topic(values: Mapping[str, Any]) -> str:
    """Return the topic of signals."""
    given: str | None = values.get("signal.kafka.topic")
    return given or f"{values.get('kafka.topic.prefix', '')}-signal"


def service_topics(values: Mapping[str, Any]) -> list[ServiceTopic]:
    """Return the topics of the services that VALUES, options by name, switch on."""
    prefix = values.get("kafka.topic.prefix", "")
    delimiter = values.get("topic.delimiter", "")
    found = [ServiceTopic("kafka.position.topic", "offsets", position_topic(values))]
    if values.get("include.schema.changes"):
        found.append(ServiceTopic("kafka.topic.prefix", "changes of structure", prefix))
    if values.get("provide.transaction.metadata"):
        name = delimiter.join((prefix, values.get("topic.transaction", "")))
        found.append(ServiceTopic("topic.transaction", "transactions", name))
    if values.get("heartbeat.interval.ms"):
        name = delimiter.join((values.get("heartbeat.topics.prefix", ""), prefix))
        found.append(ServiceTopic("heartbeat.topics.prefix", "heartbeats", name))
    told = values.get("notification.sink.topic.name")
    if told and "sink" in values.get("notification.enabled.channels", ()):
        found.append(ServiceTopic("notification.sink.topic.name", "notifications", told))
    is_elsewhere = values.get("signal.kafka.bootstrap.servers") is not None
    if "kafka" in values.get("signal.enabled.channels", ()) and not is_elsewhere:
        found.append(ServiceTopic("signal.kafka.topic", "signals", signal_topic(values)))
    return found


def shared_topics(values: Mapping[str, Any]) -> list[tuple[ServiceTopic, ServiceTopic]]:
    """Return the pairs of services whose topics are the same for Kafka."""
    first: dict[str, ServiceTopic] = {}
    pairs = []
    for each in service_topics(values):
        other = first.setdefault(each.collision_form, each)
        if other is not each:
            pairs.append((other, each))
    return pairs
