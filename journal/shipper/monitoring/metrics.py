"""The Prometheus metrics of one shipper. Names and meanings are for good: docs/monitoring.md.

The names of Debezium's metrics follow its manuals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from firebird_cdc import __version__
from firebird_cdc.clock import now_us
from firebird_cdc.journal.events.values import UNDECODED, UNREAD
from firebird_cdc.journal.folder import failures
from firebird_cdc.journal.folder.counters import (
    Counters,
    DatabaseCounters,
    Histogram,
    read_counters,
)
from firebird_cdc.journal.folder.locks import bridge_present
from firebird_cdc.journal.folder.shared_page import read_confirmer
from firebird_cdc.journal.folder.subjects import INCOMPLETE, LOST, MISSING
from firebird_cdc.journal.shipper.monitoring.report import Reporter, table_counts
from firebird_cdc.journal.shipper.monitoring.snapshot_figures import NO_SNAPSHOT
from firebird_cdc.journal.shipper.monitoring.statistics import (
    DatabaseBacklog,
    DatabaseStatistics,
    UnsentFigures,
)
from firebird_cdc.journal.shipper.tasks.failures import CounterPages

PREFIX = "firebird_cdc_"


class Description(NamedTuple):
    """A metric as the documentation has it. ``labels``: those beside the ones that all have."""

    kind: str
    labels: tuple[str, ...]
    meaning: str


def _described(text: str) -> dict[str, Description]:
    """NAME KIND LABELS MEANING in each line; the labels with commas, or a hyphen."""
    found: dict[str, Description] = {}
    for line in text.strip().splitlines():
        name, kind, labels, meaning = line.split(None, 3)
        names = () if labels == "-" else tuple(labels.split(","))
        found[PREFIX + name] = Description(kind, names, meaning)
    return found


METRICS = _described("""
streaming_connected gauge - 1 while a server process with our plugin is on the journal folder
streaming_last_event info database,table,journal,commit_seq,pos,transaction The last change that Kafka acknowledged
streaming_last_event_age_milliseconds gauge database Time since the last change was acknowledged; -1 if none was
streaming_events_seen counter database Changes that Kafka acknowledged, and those that the configuration leaves out
streaming_events_filtered counter database Changes that the configuration leaves out
streaming_captured_table gauge database,table 1 for each captured table that changes were read of
streaming_queue_capacity gauge - Messages that the Kafka client's queue takes
streaming_queue_remaining gauge - Free places in that queue
streaming_queue_max_bytes gauge - Bytes that the queue takes
streaming_queue_bytes gauge - Bytes that are in it
streaming_lag_milliseconds gauge database As shipping_lag_seconds; while nothing waits, what the last change took from its commit until Kafka had it
streaming_transactions_committed counter database Committed transactions that were delivered
streaming_position info database,journal,commit_seq,pos Place of the last delivered change in its database's history
streaming_last_transaction_id gauge database The server's number of the last delivered transaction
snapshot_last_event info database,table,journal,commit_seq,pos The last row that Kafka acknowledged
snapshot_last_event_age_milliseconds gauge database Time since the last row was acknowledged; -1 if there was none
snapshot_events_seen counter database Rows that were read, and are sent or left out
snapshot_events_filtered counter database Rows that the configuration leaves out
snapshot_events_erroneous counter database Rows that could not be sent and were left out
snapshot_captured_table gauge database,table 1 for each table that a snapshot would copy, as far as met
snapshot_queue_capacity gauge - As streaming_queue_capacity: rows go through the same queue
snapshot_queue_remaining gauge - As streaming_queue_remaining
snapshot_tables gauge database Tables in the snapshot
snapshot_tables_remaining gauge database Tables not yet copied
snapshot_running gauge database 1 while a snapshot runs
snapshot_paused gauge database 1 while a snapshot is paused
snapshot_aborted gauge database 1 if the last one was stopped
snapshot_completed gauge database 1 if the last one was completed
snapshot_skipped gauge database 1 if the last one meant no table, or none was due at the start, as snapshot.mode says, and none was asked for
snapshot_duration_seconds gauge database What the last one took so far
snapshot_remaining_seconds gauge database About how long it will still take; -1 if that can't be told
snapshot_paused_duration_seconds gauge database How long it was paused, since this shipper started
snapshot_rows_scanned counter database,table Rows copied of each table
incremental_chunk info database,table,chunk,chunk_from,chunk_to The last chunk of an incremental snapshot: its id, and the DB_KEYs of the row before it and of its last row (ChunkId, ChunkFrom and ChunkTo of Debezium)
incremental_chunks counter database,table Chunks of incremental snapshots
snapshot_owed gauge database 1 while an initial snapshot is owed, as nobody can attach
snapshot_waiting_seconds gauge database For how long a snapshot that is to be taken has not gone on; 0 if it does, or is paused
snapshot_old_transactions_seconds gauge database How long the snapshot waited for older transactions to end, since this shipper started
snapshot_windows gauge database Windows of the snapshot: moments at which rows were read
snapshot_window_open_seconds gauge database For how long the window that is open keeps changes waiting and the server's snapshot open; 0 if none is
snapshot_window_last_seconds gauge database How long the last window was open
snapshot_window_longest_seconds gauge database How long the longest one was open, since this shipper started
snapshot_incomplete gauge database 1 while it is not acknowledged that snapshots ended without some rows or tables
journals_live gauge database Transactions that have changed something and are not decided
journals_pending gauge database Committed transactions that wait to be delivered
journals_quarantined gauge database Transactions in the quarantine
tables_not_delivered gauge database Tables of which events are quarantined, as they can't have a topic or another name that they need
journal_bytes gauge - Size of the journals that are not archived; estimated when there are more than 20,000
journal_free_bytes gauge - Free space on the file system of the journal folder
journal_oldest_pending_seconds gauge database Age of the oldest transaction that waits; 0 if none does
journals_shipped counter database Committed transactions that Kafka acknowledged as a whole
bytes_shipped counter database What these take in journals
events counter database,table,op Changes whose messages Kafka acknowledged, each once, by operation; ddl has no table
events_with_placeholders counter database Those with placeholders in the place of values that are too large (event.oversized.value), since the journal folder was made
events_with_unread_blobs counter database Changes with placeholders for BLOBs that could not be read from the database, since the journal folder was made
unacknowledged_unread_blobs gauge database Those of events_with_unread_blobs that nobody has acknowledged
events_with_undecoded_values counter database Changes with placeholders for values that could not be decoded, as their bytes are no text in their character set, since the journal folder was made
unacknowledged_undecoded_values gauge database Those of events_with_undecoded_values that nobody has acknowledged
shipping_lag_seconds gauge database How far Kafka is behind now: the age of the oldest commit that it does not have; 0 if it has all
delivery_latency_seconds gauge database What the last delivered change took, from its commit until Kafka had it
send_failures counter database Messages that Kafka did not take
retries counter database Times that transactions were sent again
database_halted gauge database 1 while shipping of the database is paused until somebody acts
database_waiting gauge database 1 while its next transaction is not taken, and is tried again
databases_halted gauge - Databases whose shipping is paused
troubles gauge kind Current problems by kind: waiting (retried automatically), halted (shipping paused) or warning
last_error_timestamp_seconds gauge - When the last error was noted; 0 if there was none
lost_ranges gauge - Databases of which Kafka has lost journals, until acknowledged
missing_ranges gauge - Databases of which journals were missing when they were to be sent, until acknowledged
canary_age_seconds gauge database,table Since the canary's last write arrived in a journal; -1 if none did
canary_latency_seconds gauge database,table From the canary's write until it arrived in a journal
canary_missing gauge database,table 1 while its write is overdue: changes are probably being lost
canary_unwritable gauge database,table 1 while it can't be written, so nothing is known of capture
kafka_reachable gauge - 1 while Kafka answers
kafka_brokers_connected gauge - Brokers that the client is connected to
producer_queue_messages gauge - Messages that were handed to the Kafka client and are not acknowledged
shipper_start_time_seconds gauge - When the shipper started
shipper_loop_age_seconds gauge - Since the shipper's loop last completed a turn
build info version The version of firebird-cdc
captured_transactions counter database Transactions whose changes were written to a journal
captured_changes counter database Changes in these
captured_bytes counter database What these take in journals
gap_transactions counter database Transactions that committed and whose changes were not captured
refused_transactions counter database Transactions whose commit was refused because their changes could not be recorded
unacknowledged_lost_transactions gauge database Those of gap_transactions that nobody has acknowledged
unacknowledged_refused_transactions gauge database Those of refused_transactions that nobody has acknowledged
transactions_rolled_back counter database Transactions with changes that were rolled back
journals_rolled_back counter database Journals with one transaction that were removed because of that
callback_seconds histogram database,call Time that capture added to calls of the server
confirm_seconds histogram database From a commit until it had its number and could be shipped
journals_undecided gauge - Transactions that wait because it is not known yet whether they were committed, or because they can't get a number
confirmer_silent_seconds gauge - Since the process that confirms journals last gave its heartbeat; 0 while none confirms
journal_limit_bytes gauge - connector.journal.max.bytes as the server applies it; 0: no limit
journal_limit_reached gauge - 1 while waiting journals take more than that
journal_limit_refusals counter - Times that a write was refused because of the limit
""")  # fmt: skip  # noqa: E501
"""Every metric of ours, by the name of its family."""


class _Families:
    """The metrics under construction: all of them, with the labels that all have."""

    def __init__(self, common: Mapping[str, str]) -> None:
        self._common = list(common.values())
        self._families: dict[str, Metric] = {}
        for name, (kind, labels, meaning) in METRICS.items():
            names = [*common, *labels]
            match kind:
                case "gauge":
                    self._families[name] = GaugeMetricFamily(name, meaning, labels=names)
                case "counter":
                    self._families[name] = CounterMetricFamily(name, meaning, labels=names)
                case "histogram":
                    self._families[name] = HistogramMetricFamily(name, meaning, labels=names)
                case _:
                    family = InfoMetricFamily(name, meaning, labels=list(common))
                    self._families[name] = family

    def set(self, name: str, value: float, *labels: str) -> None:
        """Add the sample of metric NAME with LABELS."""
        family = self._families[PREFIX + name]
        assert isinstance(family, GaugeMetricFamily | CounterMetricFamily)
        family.add_metric([*self._common, *labels], value)

    def tell(self, name: str, **labels: str) -> None:
        """Add a sample of metric NAME, which says what it has to say in its labels."""
        family = self._families[PREFIX + name]
        assert isinstance(family, InfoMetricFamily)
        family.add_metric(self._common, labels)

    def histogram(self, name: str, histogram: Histogram, *labels: str) -> None:
        """Add a sample of metric NAME."""
        family = self._families[PREFIX + name]
        assert isinstance(family, HistogramMetricFamily)
        bounds = [*(repr(bound) for bound in histogram.bounds_s), "+Inf"]
        buckets = list(zip(bounds, accumulate(map(float, histogram.counts)), strict=True))
        family.add_metric([*self._common, *labels], buckets, histogram.sum_s)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())


class ShipperCollector:
    """Collects what a ``Reporter`` has, for a registry of prometheus_client."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        config = reporter.config
        self._places = CounterPages(config.journal_directory, config.path)
        self._common = {
            "server": config.topic_prefix,
            "connector": config.connector_name,
            **dict(config.metric_tags),
        }

    def collect(self) -> Iterable[Metric]:
        """The metrics as they are now."""
        families = _Families(self._common)
        reporter = self._reporter
        statistics, backlog = reporter.statistics, reporter.backlog()
        counters = read_counters(reporter.config.journal_directory)
        databases = dict(statistics.databases)
        self._shipper(families)
        self._server(families, counters)
        families.set("send_failures", statistics.send_failures, "")
        families.set("retries", statistics.retries, "")
        for path, each in databases.items():
            families.set("send_failures", each.send_failures, path)
            families.set("retries", each.retries, path)
        for path in sorted({*databases, *backlog.databases, *counters.databases} - {""}) or [""]:
            _database(families, path, databases.get(path) or DatabaseStatistics())
            trouble = statistics.troubles.get(path)
            families.set("snapshot_incomplete", INCOMPLETE + path in statistics.troubles, path)
            families.set("database_halted", trouble is not None and trouble.kind == "halted", path)
            families.set(
                "database_waiting", trouble is not None and trouble.kind == "waiting", path
            )
        for path in {*databases, *backlog.databases, *counters.databases} or [""]:
            _waiting(
                families,
                path,
                backlog.databases.get(path) or DatabaseBacklog(0),
                databases.get(path) or DatabaseStatistics(),
            )
        return families

    def _shipper(self, families: _Families) -> None:
        reporter = self._reporter
        statistics, backlog, queue = reporter.statistics, reporter.backlog(), reporter.queue()
        troubles = dict(statistics.troubles)
        last = statistics.last_error
        families.set("streaming_connected", bridge_present(reporter.config.journal_directory))
        families.set("streaming_queue_capacity", queue.max_messages)
        families.set("streaming_queue_remaining", max(queue.max_messages - queue.messages, 0))
        families.set("streaming_queue_max_bytes", queue.max_bytes)
        families.set("streaming_queue_bytes", queue.bytes)
        families.set("snapshot_queue_capacity", queue.max_messages)
        families.set("snapshot_queue_remaining", max(queue.max_messages - queue.messages, 0))
        families.set("producer_queue_messages", queue.messages)
        families.set("journal_bytes", backlog.bytes)
        families.set("journal_free_bytes", backlog.free_bytes)
        families.set("databases_halted", len(set(statistics.halted) & set(statistics.databases)))
        for kind in ("waiting", "halted", "warning"):
            families.set("troubles", sum(each.kind == kind for each in troubles.values()), kind)
        families.set("last_error_timestamp_seconds", 0 if last is None else last.since_us / 1e6)
        for name, kind in (("lost_ranges", LOST), ("missing_ranges", MISSING)):
            families.set(name, sum(subject.startswith(kind) for subject in troubles))
        families.set("kafka_reachable", reporter.kafka_reached)
        families.set("kafka_brokers_connected", statistics.brokers_up)
        families.set("shipper_start_time_seconds", statistics.started_us / 1e6)
        families.set("shipper_loop_age_seconds", max(monotonic() - statistics.loop_at, 0))
        families.tell("build", version=__version__)
        now = now_us()
        for table, canary in dict(statistics.canaries).items():
            name = table.removeprefix(f"{canary.database}.")
            labels = canary.database, name
            age = (now - canary.seen_us) / 1e6 if canary.seen_us else -1
            families.set("canary_age_seconds", age, *labels)
            families.set("canary_latency_seconds", canary.latency_ms / 1000, *labels)
            families.set("canary_missing", canary.missing, *labels)
            families.set("canary_unwritable", canary.unwritable, *labels)

    def _server(self, families: _Families, counters: Counters) -> None:
        for path, counted in counters.databases.items():
            families.set("captured_transactions", counted.captured, path)
            families.set("captured_changes", counted.changes, path)
            families.set("captured_bytes", counted.bytes, path)
            _rolled_back(families, path, counted)
            for call, histogram in counted.timings.items():
                if call == "confirm":
                    families.histogram("confirm_seconds", histogram, path)
                else:
                    families.histogram("callback_seconds", histogram, path, call)
        config = self._reporter.config
        self._failures(families, self._places.pages())
        confirmer = read_confirmer(config.journal_directory)
        families.set("journals_undecided", confirmer.undecided)
        families.set("confirmer_silent_seconds", confirmer.silent_s)
        disk = counters.disk
        families.set("journal_limit_bytes", disk.limit)
        families.set("journal_limit_reached", disk.is_full)
        families.set("journal_limit_refusals", disk.refused)

    @staticmethod
    def _failures(families: _Families, found: Sequence[Path]) -> None:
        """Set the figures of what was refused or lost, wherever it was counted."""
        left = {(each.database, each.kind): each.count for each in failures.unacknowledged(found)}
        for path, counted in failures.totals(found).items():
            families.set("gap_transactions", counted["lost"], path)
            families.set("refused_transactions", counted["refused"], path)
            for kind in counted:
                families.set(f"unacknowledged_{kind}_transactions", left.get((path, kind), 0), path)


def _rolled_back(families: _Families, path: str, counted: DatabaseCounters) -> None:
    families.set("transactions_rolled_back", counted.rolled_back, path)
    families.set("journals_rolled_back", counted.journals_rolled_back, path)


def _database(families: _Families, path: str, statistics: DatabaseStatistics) -> None:
    """Set the figures of what was delivered of one database, and of its snapshots."""
    tables = table_counts(statistics)
    delivered = sum(sum(counts.values()) for counts in tables.values())
    last = statistics.last_event
    age_ms = -1.0 if last is None else max(now_us() - statistics.handled_us, 0) / 1000
    families.set("streaming_last_event_age_milliseconds", age_ms, path)
    families.set("streaming_events_seen", delivered + statistics.filtered, path)
    families.set("streaming_events_filtered", statistics.filtered, path)
    families.set("streaming_transactions_committed", statistics.transactions, path)
    families.set("streaming_last_transaction_id", 0 if last is None else last.transaction, path)
    if last is not None:
        place = {
            "database": path,
            "journal": str(last.uuid),
            "commit_seq": str(last.sequence),
            "pos": str(last.pos),
        }
        families.tell("streaming_position", **place)
        families.tell(
            "streaming_last_event", table=last.table, transaction=str(last.transaction), **place
        )
    families.set("events_with_placeholders", statistics.placeholders, path)
    for kind, name in ((UNREAD, "unread_blobs"), (UNDECODED, "undecoded_values")):
        total, unknown = statistics.unsent.get(kind, UnsentFigures())
        families.set(f"events_with_{name}", total, path)
        families.set(f"unacknowledged_{name}", unknown, path)
    families.set("tables_not_delivered", statistics.nameless, path)
    families.set("journals_shipped", statistics.journals_shipped, path)
    families.set("bytes_shipped", statistics.bytes_shipped, path)
    for table, counts in sorted(tables.items()):
        for op, count in counts.items():
            if (op == "ddl") is not (table == ""):
                continue
            families.set("events", count, path, table, op)
    captured = {*tables, *statistics.tables.copy()} - {""}
    for table in sorted(captured):
        families.set("streaming_captured_table", 1, path, table)
    _snapshot(families, path, statistics, captured)


def _snapshot(
    families: _Families, path: str, statistics: DatabaseStatistics, captured: set[str]
) -> None:
    """Set the figures of the snapshots of one database, of which tables CAPTURED were met."""
    figures, counts = statistics.snapshot or NO_SNAPSHOT, statistics.snapshot_counts
    rows, chunks = dict(counts.rows), dict(counts.chunks)
    now, at_us, chunk = monotonic(), now_us(), figures.chunk
    age_ms = -1.0 if chunk is None else max(at_us - chunk.sent_us, 0) / 1000
    sent = sum(rows.values())
    windows, remaining_s = figures.windows, figures.remaining_s(now)
    for name, value in (
        ("last_event_age_milliseconds", age_ms),
        ("events_seen", sent + counts.filtered + counts.erroneous),
        ("events_filtered", counts.filtered),
        ("events_erroneous", counts.erroneous),
        ("tables", len(figures.tables)),
        ("tables_remaining", figures.open_tables if figures.is_on else 0),
        ("running", figures.status == "running"),
        ("paused", figures.status == "paused"),
        ("aborted", figures.status == "stopped"),
        ("completed", figures.status == "completed"),
        ("skipped", figures.status == "skipped" or (counts.is_skipped and not figures.status)),
        ("owed", figures.status == "owed"),
        ("duration_seconds", figures.duration_s(at_us)),
        ("remaining_seconds", -1.0 if remaining_s is None else remaining_s),
        ("paused_duration_seconds", figures.paused.until(now)),
        ("waiting_seconds", figures.waited_s(at_us)),
        ("old_transactions_seconds", figures.old_transactions.until(now)),
        ("windows", windows.count),
        ("window_open_seconds", windows.open_s(now)),
        ("window_last_seconds", windows.last_s),
        ("window_longest_seconds", windows.longest_s),
    ):
        families.set(f"snapshot_{name}", value, path)
    if chunk is not None:
        place = {
            "journal": str(chunk.journal),
            "commit_seq": str(chunk.sequence),
            "pos": str(chunk.pos),
        }
        families.tell("snapshot_last_event", database=path, table=chunk.table, **place)
        if figures.kind == "incremental":
            ends = {
                "chunk": str(chunk.uuid),
                "chunk_from": chunk.after,
                "chunk_to": chunk.last,
            }
            families.tell("incremental_chunk", database=path, table=chunk.table, **ends)
    for table in sorted({*captured, *rows, *(each.name for each in figures.tables)}):
        families.set("snapshot_captured_table", 1, path, table)
        families.set("snapshot_rows_scanned", rows.get(table, 0), path, table)
        families.set("incremental_chunks", chunks.get(table, 0), path, table)


def _waiting(
    families: _Families, path: str, backlog: DatabaseBacklog, statistics: DatabaseStatistics
) -> None:
    """Set what waits of one database, and how far Kafka is behind it."""
    age_s = backlog.lag_s(now_us())
    latency_ms = statistics.latency_ms
    families.set("journals_live", backlog.live, path)
    families.set("journals_pending", backlog.pending, path)
    families.set("journals_quarantined", backlog.quarantined, path)
    families.set("journal_oldest_pending_seconds", age_s, path)
    families.set("shipping_lag_seconds", age_s, path)
    families.set(
        "streaming_lag_milliseconds", age_s * 1000 if backlog.pending else latency_ms, path
    )
    families.set("delivery_latency_seconds", latency_ms / 1000, path)


def make_registry(reporter: Reporter) -> CollectorRegistry:
    """A registry with the metrics of a shipper and those of its process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ShipperCollector(reporter))
    ProcessCollector(registry=registry)
    return registry
