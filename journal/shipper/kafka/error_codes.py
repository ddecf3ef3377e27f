"""Errors of the Kafka client by what they mean for a Kafka transaction."""

from __future__ import annotations

from confluent_kafka import KafkaError

FENCED = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
)
"""Somebody else has registered the transactional id since."""

PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""The client has given up a message because of something else."""

PASSING = frozenset(
    {
        KafkaError._NOENT,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_CONTROLLER,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.BROKER_NOT_AVAILABLE,
    }
)
"""An attempt to read the positions may meet these while brokers come and go, or beside a topic that
was made just now: asked for offsets, librdkafka says _NOENT of a partition without a leader."""

OF_TOPICS = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.OPERATION_NOT_ATTEMPTED,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
"""A topic is concerned, and not the cluster."""
