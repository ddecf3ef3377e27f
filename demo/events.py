"""Change events as a consumer of the topics sees them: read, shown on a line each, followed."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from firebird_cdc.demo.rows import image
from firebird_cdc.errors import SetupError
from firebird_cdc.journal.shipper.kafka.error_codes import PASSING

_TIMEOUT_S = 30
_POLL_S = 0.05
_SHOWN_CHARACTERS = 24
_WORDS = {"c": "create", "u": "update", "d": "delete", "r": "read"}

Envelope = dict[str, Any]


def read_topics(bootstrap: str, topics: Sequence[str]) -> dict[str, list[tuple[Any, Envelope]]]:
    """Return all committed messages of some topics: (key, value) as parsed JSON, in order.

    Tombstones, which follow a delete for the sake of compaction, are left out. A topic that
    does not exist has no messages. What is written by now is waited for until it is decided, as
    a broker confirms a commit before it shows what was committed.
    """
    consumer = _consumer(bootstrap)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    messages: dict[str, list[tuple[Any, Envelope]]] = {topic: [] for topic in topics}
    try:
        known = admin.list_topics(timeout=_TIMEOUT_S).topics
        ends = ends_of(
            admin,
            [
                TopicPartition(topic, number)
                for topic in topics
                if topic in known
                for number in known[topic].partitions
            ],
        )
        if not ends:
            return messages
        idle_since = time.monotonic()
        consumer.assign([TopicPartition(topic, number, 0) for topic, number in ends])
        while any(
            position.offset < ends[position.topic, position.partition]
            for position in consumer.position(
                [TopicPartition(topic, number) for topic, number in ends if ends[topic, number]]
            )
        ):
            batch = consumer.consume(500, timeout=1)
            idle_since = time.monotonic() if batch else idle_since
            if time.monotonic() - idle_since > _TIMEOUT_S:
                raise SetupError(f"the broker at {bootstrap} sent nothing for {_TIMEOUT_S} s")
            for message in batch:
                if message.error() is not None:
                    raise SetupError(f"reading {message.topic()} failed: {message.error()}")
                topic, key, envelope = _parse(message)
                if envelope is not None:
                    messages[topic].append((key, envelope))
    except KafkaException as error:
        raise SetupError(f"the topics at {bootstrap} can't be read: {error}") from error
    finally:
        consumer.close()
    return messages


def ends_of(admin: AdminClient, places: Sequence[TopicPartition]) -> dict[tuple[str, int], int]:
    """Return the end offsets of partitions, including what is not committed yet.

    A partition that was made just now may have no leader yet: it is asked for again, for 30 s.
    """
    latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(place.topic, place.partition): latest for place in places}
    until = time.monotonic() + _TIMEOUT_S
    while asked:
        told = admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=_TIMEOUT_S
        )
        try:
            return {(at.topic, at.partition): end.result().offset for at, end in told.items()}
        except KafkaException as error:
            if error.args[0].code() not in PASSING or time.monotonic() >= until:
                raise
            time.sleep(_POLL_S)
            # Else the client goes on refusing a partition that it once saw without a leader.
            for topic in {place.topic for place in places}:
                admin.list_topics(topic, timeout=_TIMEOUT_S)
    return {}


def follow(bootstrap: str, prefix: str) -> Iterator[str]:
    """Yield one line per event of all topics with a prefix, from the first on, without end."""
    consumer = _consumer(bootstrap)
    try:
        # A pattern also takes in topics of tables that are yet to come.
        consumer.subscribe([f"^{prefix.replace('.', '[.]')}[.].*"])
        while True:
            message = consumer.poll(1)
            if message is None or message.error() is not None:
                continue
            topic, key, envelope = _parse(message)
            if envelope is None:
                yield f"{topic.rpartition('.')[2]:<11} tombstone {_brief_key(key)}"
            else:
                yield line(key, envelope)
    finally:
        consumer.close()


def line(key: Any, envelope: Envelope, paint: Callable[[str], str] = str) -> str:
    """Return an event on one line: table, key, operation, what changed, and its origin."""
    payload = envelope["payload"]
    source = payload["source"]
    before, after = image(envelope, "before"), image(envelope, "after")
    if before is not None and after is not None:
        changes = [
            f"{name} {_brief(before[name])} → {_brief(after[name])}"
            for name in after
            if before[name] != after[name]
        ]
        text = ", ".join(changes) or "nothing changed"
    else:
        row = after if after is not None else before or {}
        text = ", ".join(f"{name} {_brief(value)}" for name, value in row.items())
    table = paint(f"{source['table']:<11}")
    word = _WORDS.get(payload["op"], payload["op"])
    origin = f"transaction {source.get('txId')}, commit {source.get('commitSeq')}"
    if source.get("txId") is None:
        origin = f"snapshot {source.get('snapshotNumber')}, behind commit {source.get('commitSeq')}"
    return f"{table} {word} {_brief_key(key)}  {text}  ({origin})"


def _consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "firebird-cdc-demo",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "topic.metadata.refresh.interval.ms": 1000,
        }
    )


def _parse(message: Message) -> tuple[str, Any, Envelope | None]:
    topic, key, value = message.topic(), message.key(), message.value()
    assert topic is not None
    return topic, json.loads(key) if key is not None else None, json.loads(value) if value else None


def _brief_key(key: Any) -> str:
    values: Mapping[str, Any] = key["payload"] if key is not None else {}
    return "{" + ", ".join(f"{name} {value}" for name, value in values.items()) + "}"


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the events of all topics with a prefix as they come, until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m firebird_cdc.demo.events")
    parser.add_argument("--bootstrap", required=True, help="HOST:PORT of a broker")
    parser.add_argument("--prefix", required=True, help="kafka.topic.prefix of the connector")
    arguments = parser.parse_args(argv)
    try:
        for text in follow(arguments.bootstrap, arguments.prefix):
            print(text, flush=True)
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
