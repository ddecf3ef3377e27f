"""``firebird-cdc replay audit``: its options, and what they make of an audit."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firebird_cdc.config.arguments import name_and_value
from firebird_cdc.errors import UsageError
from firebird_cdc.journal.replay.arguments import (
    add_common_options,
    add_jars_option,
    jars_of,
    load_configuration,
)
from firebird_cdc.journal.replay.connection_options import add_connection_options, connection_of
from firebird_cdc.journal.replay.engine import add_engine_option, replay_session
from firebird_cdc.journal.replay.output import only_spark_writes
from firebird_cdc.journal.replay.source.bounds import Bound
from firebird_cdc.output import tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from firebird_cdc.config import ConnectorConfig
    from firebird_cdc.journal.replay.audit.journals import Against


def register_audit(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``audit``."""
    audit = subparsers.add_parser(
        "audit",
        help="prove that nothing was lost: journals, and what Kafka and the database hold",
        description="Check every journal (checksums, seals, stamps) and the history as a whole:"
        " that no number is missing or given twice, marked gaps, and that each change fits the"
        " row as last known. With --config and no --journals: the journal folder, its quarantine"
        " and the archive together.",
        epilog="Exit code 0: sound; 1: a fault was found, or the audit could not run; 2: wrong"
        " usage or configuration.",
    )
    add_common_options(audit)
    add_engine_option(audit)
    for name, what in (("since", "begin with"), ("until", "end with")):
        audit.add_argument(
            f"--{name}",
            metavar="POINT",
            type=_bound,
            help=f"{what} this journal ([EPOCH:]SEQUENCE) or time of commit (ISO 8601)",
        )
    audit.add_argument(
        "--output",
        metavar="DIR",
        help="write report.json, report.html, all findings/ and counts/ there; it must hold"
        " nothing yet",
    )
    audit.add_argument("--html", metavar="FILE", help="write the page there")
    audit.add_argument(
        "--format", choices=("json", "parquet"), default="json", help="of findings/ and counts/"
    )
    kafka = audit.add_argument_group("Kafka")
    kafka.add_argument(
        "--against-kafka",
        action="store_true",
        help="compare the journals with the topics; --config says where and how they are written",
    )
    kafka.add_argument(
        "--kafka-option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=name_and_value,
        help="of Kafka's Java consumer, in priority over what --config says; several times",
    )
    add_jars_option(kafka, "of Spark's Kafka source")
    add_connection_options(audit)
    audit.add_argument("--quiet", action="store_true", help="print the result only")
    audit.set_defaults(run=run)


def _bound(text: str) -> Bound:
    try:
        return Bound.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(arguments: argparse.Namespace) -> int:
    """Run the audit; return the exit code."""
    from firebird_cdc.journal.replay.audit.folders import describe_configuration, folders_for

    config = load_configuration(arguments)
    if arguments.against_kafka and config is None:
        raise UsageError("--against-kafka needs --config, which says where Kafka is")
    folders = folders_for(arguments.journals, config)
    name, jars = "firebird-cdc replay audit", jars_of(arguments)
    is_telling = not arguments.quiet
    with replay_session(
        name,
        arguments,
        folders.read,
        jars=jars,
        progress=is_telling,
        only_spark=_only_spark(arguments),
    ) as spark:
        from firebird_cdc.journal.replay.audit.journals import run_audit
        from firebird_cdc.journal.replay.audit.summary import describe

        with run_audit(
            spark,
            folders,
            database=arguments.database,
            none_charset="UTF-8" if config is None else config.charset_none,
            since=arguments.since,
            until=arguments.until,
            against=_against(spark, arguments, config),
            configuration=None if config is None else describe_configuration(config),
            output=arguments.output,
            output_format=arguments.format,
            html=arguments.html,
        ) as report:
            lines = list(describe(report))
            is_sound = report.sound
    for line in lines if is_telling else lines[-1:]:
        tell(line)
    return 0 if is_sound else 1


def _only_spark(arguments: argparse.Namespace) -> str | None:
    """Return what was asked for that only Spark can do."""
    if arguments.against_kafka:
        return "--against-kafka"
    if arguments.against_database or arguments.connect is not None:
        return "--against-database" if arguments.against_database else "--connect"
    return only_spark_writes({"--output": arguments.output, "--html": arguments.html})


def _against(
    spark: SparkSession, arguments: argparse.Namespace, config: ConnectorConfig | None
) -> dict[str, Against]:
    """Return the comparisons that were asked for."""
    found: dict[str, Against] = {}
    if arguments.against_kafka and config is not None:
        from firebird_cdc.journal.replay.audit.kafka import against_kafka
        from firebird_cdc.journal.replay.audit.kafka.topic_reader import check_source

        check_source(spark)  # before anything takes its time
        properties = dict(arguments.kafka_option)
        found["kafka"] = lambda changes: against_kafka.compare(
            spark, changes, config, consumer_properties=properties
        )
    if arguments.connect is not None or arguments.against_database:
        from firebird_cdc.journal.replay.audit.database import against_database

        found["database"] = lambda changes: against_database.compare(
            spark,
            changes,
            config,
            connection_of(arguments, config, [span.database for span in changes.spans]),
            parallel=arguments.parallel,
        )
    return found
