"""Rights of the shipper on the Kafka cluster, and its topics, asked without writing anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import time

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AdminClient,
    ConfigResource,
    NewTopic,
    TopicDescription,
)

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.config.filters import TableFilter
from firebird_cdc.journal.events.topics import BadName, TopicNames
from firebird_cdc.journal.shipper.kafka.client import admin_settings, librdkafka_logger
from firebird_cdc.journal.shipper.kafka.offset_topic import OffsetReader
from firebird_cdc.journal.shipper.kafka.topic_creation import HINTS, new_topic
from firebird_cdc.journal.shipper.local_offsets import read_folder_identity
from firebird_cdc.packaging.server.findings import Finding, Findings, Severity

_TIMEOUT_S = 10.0
_LATELY_S = 24 * 3600.0
_NAMED = 5
"""Topics that one finding names."""

_NEEDED = (AclOperation.DESCRIBE, AclOperation.WRITE)
_NEEDED_OF_POSITIONS = (*_NEEDED, AclOperation.READ)


def kafka_access(options: ConnectorConfig, published: Mapping[str, Iterable[str]]) -> Findings:
    """Findings about topics and rights; PUBLISHED: the tables of databases, by path.

    Only for a cluster that answers.
    """
    client = AdminClient(admin_settings(options), logger=librdkafka_logger())
    where = f"{options.path}, kafka.producer.bootstrap.servers"
    missing: list[str] = []
    try:
        yield from _topics(where, client, options, _wanted(options, published), missing)
        if missing:
            yield from _missing(where, client, options, missing)
    except KafkaException as error:
        yield Finding(
            where,
            f"the cluster does not say what the shipper may do: {error.args[0].str()}",
            "grant the shipper's principal Describe on its topics and on the cluster",
            Severity.WARNING,
        )
    if options.transactional and options.position_topic not in missing:
        yield from _other_folders(options)


def _wanted(options: ConnectorConfig, published: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the topics that are known to be needed."""
    names = TopicNames(options)
    captures = TableFilter(options).captures
    wanted = {options.position_topic}
    if options.include_schema_changes:
        wanted.add(names.schema_changes)
    if options.provide_transaction_metadata:
        wanted.add(names.transactions)
    if options.heartbeat_interval_ms:
        wanted.add(names.heartbeats)
    for database, tables in published.items():
        for table in tables:
            if captures(database, table):
                try:
                    wanted.add(names.of_table(database, table))
                except BadName:
                    continue  # a finding of its own
    return wanted


def _topics(
    where: str,
    client: AdminClient,
    options: ConnectorConfig,
    wanted: set[str],
    missing: list[str],
) -> Findings:
    """Look at the topics that are WANTED and there; adds the others to MISSING."""
    described = client.describe_topics(
        TopicCollection(sorted(wanted)),
        include_authorized_operations=True,
        request_timeout=_TIMEOUT_S,
    )
    for topic, future in described.items():
        is_position = topic == options.position_topic
        needed = _NEEDED_OF_POSITIONS if is_position else _NEEDED
        try:
            description: TopicDescription = future.result()
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                missing.append(topic)
                continue
            yield _refused(where, topic, [operation.name for operation in needed])
            continue
        granted = description.authorized_operations
        lacking = [each.name for each in needed if granted and each not in granted]
        if lacking:
            yield _refused(where, topic, lacking)
        if is_position and len(description.partitions) != 1:
            yield Finding(
                f"{options.path}, kafka.position.topic",
                f"topic {topic} has {len(description.partitions)} partitions, and offsets are read"
                " from one",
                "name another topic, or delete this one and let the shipper make it",
            )


def _missing(
    where: str, client: AdminClient, options: ConnectorConfig, missing: list[str]
) -> Findings:
    """Yield findings on missing topics that can't be made, by asking to make them for the trial."""
    creation = options.topic_creation
    singles = TopicNames(options).singles | {options.position_topic}
    if creation is None:
        yield from _nobody_makes(where, client, sorted(set(missing) - {options.position_topic}))
    asked = client.create_topics(
        [
            NewTopic(topic, 1, -1)
            if creation is None
            else new_topic(creation, topic, single=topic in singles)
            for topic in missing
        ],
        validate_only=True,
        request_timeout=_TIMEOUT_S,
    )
    for topic, future in asked.items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                continue
            yield Finding(
                where,
                f"topic {topic} is missing and can't be made: {error.args[0].str()}",
                HINTS.get(error.args[0].code(), "make it yourself"),
            )


def _nobody_makes(where: str, client: AdminClient, missing: list[str]) -> Findings:
    """Yield a finding if topics are MISSING and brokers don't make topics by themselves."""
    [broker, *_] = client.list_topics(timeout=_TIMEOUT_S).brokers
    resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
    [future] = client.describe_configs([resource], request_timeout=_TIMEOUT_S).values()
    try:
        switch = future.result()["auto.create.topics.enable"].value
    except (KafkaException, KeyError):
        return  # without the right to see that
    if missing and switch == "false":
        names = ", ".join(missing[:_NAMED]) + (", …" if len(missing) > _NAMED else "")
        yield Finding(
            where,
            f"topics are missing ({names}), and the brokers make none by themselves"
            " (auto.create.topics.enable=false)",
            "make them, or set topic.creation.enable: true",
        )


def _refused(where: str, topic: str, lacking: list[str]) -> Finding:
    rights = ", ".join(name.capitalize() for name in lacking)
    return Finding(
        where,
        f"the shipper may not use topic {topic}: it lacks {rights}",
        f"kafka-acls.sh --add --allow-principal … --topic {topic}"
        + "".join(f" --operation {name.capitalize()}" for name in lacking),
    )


def _other_folders(options: ConnectorConfig) -> Findings:
    """Yield findings on databases that were shipped lately from another journal folder with our
    transactional id, as the offset topic tells."""
    own = read_folder_identity(options.journal_directory)
    reader = OffsetReader(options.producer, options.position_topic, librdkafka_logger())
    try:
        if not reader.advance(_TIMEOUT_S):
            return
    except KafkaException:
        return  # rights and topics are findings of their own
    finally:
        reader.close()
    for database, known in reader.known.items():
        position = known.position
        age_s = time() - position.shipped_us / 1e6
        if own is not None and position.folder != own and age_s < _LATELY_S:
            yield Finding(
                f"{options.path}, kafka.producer.transactional.id",
                f"{database} was shipped from another journal folder ({position.place})"
                f" {age_s / 60:.0f} minutes ago: two shippers with one"
                " kafka.producer.transactional.id or kafka.position.topic fence each other off",
                "give each server a transactional id and a kafka.topic.prefix of its own",
            )
