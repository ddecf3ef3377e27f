"""What tests ask a broker about topics, and tell it to do with them."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from firebird_cdc.demo.processes import await_condition

_PATIENCE_S = 60.0


def ends_of(admin: AdminClient, places: Sequence[TopicPartition]) -> dict[tuple[str, int], int]:
    """Where partitions end, with what is not committed yet."""
    if not places:
        return {}
    asked = admin.list_offsets(
        {TopicPartition(place.topic, place.partition): OffsetSpec.latest() for place in places},
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        request_timeout=_PATIENCE_S,
    )
    return {
        (place.topic, place.partition): told.result(_PATIENCE_S).offset
        for place, told in asked.items()
    }


def delete_topics(bootstrap: str, topics: Sequence[str]) -> None:
    """Delete topics; no message reaches the old ones any more when this returns."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for deleted in admin.delete_topics(list(topics)).values():
        deleted.result(_PATIENCE_S)
    # The controller confirms a deletion before the broker acts on it.
    await_condition(
        f"{', '.join(topics)} to be gone",
        lambda: not set(topics) & set(admin.list_topics(timeout=_PATIENCE_S).topics),
        _PATIENCE_S,
    )
