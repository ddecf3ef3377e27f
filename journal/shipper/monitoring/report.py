"""One report of all that is to be seen, as plain data: for the page, the status file, a terminal.

Ages are seconds, times microseconds since 1970, UTC. The form is for our own programs; it has a
version because the command that reads the file may be another one than the shipper that wrote it.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, Literal

from firebird_cdc import __version__
from firebird_cdc.clock import now_us
from firebird_cdc.config import ConnectorConfig
from firebird_cdc.config.secrets import is_secret
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.folder.ledger_lock import database_key
from firebird_cdc.journal.folder.subjects import (
    CANARY,
    FAILURES,
    KAFKA,
    LOST,
    OF_ALL_DATABASES,
    REMEMBERED,
    SNAPSHOT,
    UNDECIDED,
    UNREADABLE,
)
from firebird_cdc.journal.format.model import ROW_OPERATIONS
from firebird_cdc.journal.shipper.monitoring.statistics import (
    BacklogFigures,
    DatabaseBacklog,
    DatabaseStatistics,
    QueueFigures,
    Statistics,
    Trouble,
)

VERSION = 2
"""Of the report's form."""

LOOP_STUCK_S = 60.0
"""A loop that did not come round for so long counts as stuck; single calls may take seconds."""

KAFKA_SILENT_S = 30.0
"""Without a sign of life for so long Kafka counts as away; an idle client tells every 5 s."""

LONG_WAIT_S = 600.0
"""A trouble that goes on by itself, and has not for so long, is worth somebody's look."""

BEHIND_S = 30.0
"""A database is behind if Kafka lacks a commit of it that is older."""

TABLES_SHOWN = 1000
"""Tables of one database in a report; those with most events. The metrics have all."""

NO_BACKLOG = BacklogFigures({}, 0, 0, 0.0, 0)
NO_QUEUE = QueueFigures(0, 0, 0, 0)

DatabaseState = Literal["well", "behind", "waiting", "warning", "halted"]
"""``behind``: Kafka takes what waits, and old commits are among it. The others: as in
``TroubleKind``."""

_WORST_FIRST: tuple[DatabaseState, ...] = ("halted", "warning", "waiting", "behind")
_OPERATIONS = (*ROW_OPERATIONS, "ddl")
_SHORTEST_SECRET = 4
# Of what no message of the configuration shows, what must not be shown wherever it is met: the
# user's name, a mechanism or a path is in many an honest sentence.
_HIDDEN = re.compile(
    r"password|passphrase|secret|jaas|\.pem$|\.key$|user\.info$|auth\.token$|credentials?$|"
    r"oauthbearer\.(?:config|extensions)$|kinit\.cmd$",
    re.IGNORECASE,
)


class Reporter:
    """Makes reports of one shipper; callable from any thread."""

    def __init__(self, config: ConnectorConfig, statistics: Statistics) -> None:
        self.config = config
        self.statistics = statistics
        self._secrets = _secrets(config)

    def backlog(self) -> BacklogFigures:
        """The figures of the journal folder."""
        ask = self.statistics.backlog
        return NO_BACKLOG if ask is None else ask()

    def queue(self) -> QueueFigures:
        """The figures of the Kafka client's queue."""
        ask = self.statistics.queue
        return NO_QUEUE if ask is None else ask()

    def public(self, text: str) -> str:
        """TEXT without what the configuration keeps secret, whoever wrote it."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def health(self) -> str:
        """Return the reason why the shipper isn't alive; empty if it is."""
        age = monotonic() - self.statistics.loop_at
        if age > LOOP_STUCK_S:
            return f"the shipper's loop has not responded for {age:.0f} s"
        return ""

    def unready(self) -> list[str]:
        """Return the reasons why the shipper can't ship now; empty if it can."""
        statistics = self.statistics
        reasons = [self.public(trouble.text) for trouble in statistics.halted.values()]
        stuck, kafka = self.health(), statistics.troubles.get(KAFKA)
        if stuck:
            reasons.insert(0, stuck)
        if kafka is not None:
            reasons.append(self.public(kafka.text))
        elif not self.kafka_reached:
            servers = self.config.producer.get("bootstrap.servers", "")
            reasons.append(f"Kafka at {servers}: no broker has answered for {self.silent_s:.0f} s")
        return reasons

    @property
    def silent_s(self) -> float:
        """Seconds since Kafka last gave a sign of life."""
        statistics = self.statistics
        if statistics.kafka_at is None:
            return (now_us() - statistics.started_us) / 1e6
        return monotonic() - statistics.kafka_at

    @property
    def kafka_reached(self) -> bool:
        """Tell whether Kafka answers, as far as is known."""
        statistics = self.statistics
        return (
            statistics.kafka_at is not None
            and KAFKA not in statistics.troubles
            and self.silent_s < KAFKA_SILENT_S
        )

    def state(self, path: str, backlog: DatabaseBacklog) -> DatabaseState:
        """Return the worst that is known of database PATH, what concerns all of them included.

        Well is only what nothing speaks against: a row of a table is read for itself.
        """
        statistics, troubles = self.statistics, dict(self.statistics.troubles)
        subjects = {path, *OF_ALL_DATABASES, SNAPSHOT + path, LOST + database_key(path)}
        subjects.update(kind + path for kind in REMEMBERED)
        # It is not told whose they are; they may be among those that wait here.
        if backlog.pending:
            subjects.add(UNREADABLE)
        if backlog.live:
            subjects.add(UNDECIDED)
        canaries = list(statistics.canaries.items())
        subjects.update(CANARY + table for table, each in canaries if each.database == path)
        states: set[DatabaseState] = {
            trouble.kind
            for subject, trouble in troubles.items()
            if subject in subjects or _is_failure_of(path, subject)
        }
        if self.health():
            states.add("halted")
        if backlog.quarantined:
            states.add("warning")
        if not self.kafka_reached:
            states.add("waiting")
        if backlog.lag_s(now_us()) > BEHIND_S:
            states.add("behind")
        return next((state for state in _WORST_FIRST if state in states), "well")

    def report(self) -> dict[str, Any]:
        """All there is to see now."""
        statistics, config = self.statistics, self.config
        now, backlog, queue = now_us(), self.backlog(), self.queue()
        databases = dict(statistics.databases)
        troubles = dict(statistics.troubles)
        last_error = statistics.last_error
        stuck = self.health()
        return {
            "version": VERSION,
            "program": __version__,
            "written_us": now,
            "running": True,
            "pid": os.getpid(),
            "started_us": statistics.started_us,
            "connector": config.connector_name,
            "server": config.topic_prefix,
            "directory": str(config.journal_directory),
            "config": str(config.path),
            "kafka": {
                "servers": config.producer.get("bootstrap.servers", ""),
                "reached": self.kafka_reached,
                "brokers": statistics.brokers_up,
                "silent_s": round(self.silent_s, 1),
            },
            "loop_age_s": round(monotonic() - statistics.loop_at, 1),
            "alive": not stuck,
            "unready": self.unready(),
            "backlog": backlog.as_json(),
            "queue": {
                "messages": queue.messages,
                "bytes": queue.bytes,
                "max_messages": queue.max_messages,
                "max_bytes": queue.max_bytes,
            },
            "totals": totals(databases.values(), statistics),
            "databases": [
                _database(
                    path,
                    databases.get(path) or DatabaseStatistics(),
                    waiting,
                    self.state(path, waiting),
                    now,
                )
                | {"snapshot": self._snapshot(databases.get(path))}
                for path in sorted({*databases, *backlog.databases})
                for waiting in (backlog.databases.get(path) or DatabaseBacklog(0),)
            ],
            "troubles": [
                self._trouble(trouble) | {"subject": self.public(subject)}
                for subject, trouble in sorted(troubles.items())
            ],
            "last_error": None if last_error is None else self._trouble(last_error),
            "canaries": [
                {
                    "table": table,
                    "database": canary.database,
                    "seen_us": canary.seen_us,
                    "age_s": _age(canary.seen_us, now),
                    "latency_ms": round(canary.latency_ms, 1),
                    "missing": canary.missing,
                    "unwritable": canary.unwritable,
                }
                for table, canary in sorted(dict(statistics.canaries).items())
            ],
        }

    def _snapshot(self, statistics: DatabaseStatistics | None) -> dict[str, Any] | None:
        if statistics is None or statistics.snapshot is None:
            return None
        found = statistics.snapshot.as_json()
        for each, key in (found, "waits_for"), *((table, "why") for table in found["by_table"]):
            each[key] = self.public(each[key])
        return found

    def _trouble(self, trouble: Trouble) -> dict[str, Any]:
        return {
            "kind": trouble.kind,
            "text": self.public(trouble.text),
            "since_us": trouble.since_us,
        }


def totals(databases: Iterable[DatabaseStatistics], statistics: Statistics) -> dict[str, int]:
    """The sums over DATABASES, which are those of STATISTICS."""
    each = list(databases)
    return {
        "events": sum(sum(dict(database.events).values()) for database in each),
        "filtered": sum(database.filtered for database in each),
        "transactions": sum(database.transactions for database in each),
        "journals": sum(database.journals_shipped for database in each),
        "bytes": sum(database.bytes_shipped for database in each),
        "send_failures": sum(database.send_failures for database in each)
        + statistics.send_failures,
        "retries": sum(database.retries for database in each) + statistics.retries,
    }


def _database(
    path: str,
    statistics: DatabaseStatistics,
    backlog: DatabaseBacklog,
    state: DatabaseState,
    now: int,
) -> dict[str, Any]:
    tables = table_counts(statistics)
    shown = sorted(tables, key=lambda table: (-sum(tables[table].values()), table))[:TABLES_SHOWN]
    last = statistics.last_event
    return {
        "path": path,
        "state": state,
        "pending": backlog.pending,
        "live": backlog.live,
        "quarantined": backlog.quarantined,
        "tables_not_delivered": statistics.nameless,
        "lag_s": round(backlog.lag_s(now), 1),
        "latency_ms": round(statistics.latency_ms, 1),
        "handled_us": statistics.handled_us,
        "filtered": statistics.filtered,
        "placeholders": statistics.placeholders,
        "transactions": statistics.transactions,
        "journals": statistics.journals_shipped,
        "bytes": statistics.bytes_shipped,
        "send_failures": statistics.send_failures,
        "retries": statistics.retries,
        "last_event": None
        if last is None
        else {
            "table": last.table,
            "journal": str(last.uuid),
            "sequence": last.sequence,
            "pos": last.pos,
            "transaction": last.transaction,
            "commit_us": last.commit_us,
        },
        "tables": [{"table": table, **tables[table]} for table in shown],
        "tables_left_out": len(tables) - len(shown),
    }


def _is_failure_of(path: str, subject: str) -> bool:
    """Tell whether SUBJECT is of refused or lost transactions that may be those of PATH."""
    if not subject.startswith(FAILURES):
        return False
    database = subject.removeprefix(FAILURES).partition(":")[2]
    return database in ("", path)


def table_counts(statistics: DatabaseStatistics) -> dict[str, dict[str, int]]:
    """Events by table, then by operation; the table "" is that of DDL."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_OPERATIONS, 0))
    for (table, op), count in dict(statistics.events).items():
        found[table][op] = found[table].get(op, 0) + count
    return found


def _age(then_us: int, now: int) -> float | None:
    """Seconds since THEN_US, None if that is never."""
    return round(max(now - then_us, 0) / 1e6, 1) if then_us else None


def _secrets(config: ConnectorConfig) -> list[str]:
    """The values in CONFIG that must not be shown, the longest first."""
    found = {
        value
        for options in (
            config.producer,
            config.key_converter_options,
            config.value_converter_options,
            config.signals.consumer,
        )
        for key, value in options.items()
        if is_secret(key) and _HIDDEN.search(key) and len(value) >= _SHORTEST_SECRET
    }
    with suppress(ConfigError):
        password = config.attachment.password()
        if password is not None and len(password) >= _SHORTEST_SECRET:
            found.add(password)
    return sorted(found, key=len, reverse=True)


def needs_somebody(report: Mapping[str, Any]) -> list[str]:
    """Return the problems in REPORT that don't end by themselves, one sentence each."""
    now = report["written_us"]
    found = [] if report["alive"] else ["the shipper's loop hangs"]
    for trouble in report["troubles"]:
        waited_s = (now - trouble["since_us"]) / 1e6
        if trouble["kind"] != "waiting":
            found.append(trouble["text"])
        elif waited_s > LONG_WAIT_S:
            found.append(f"for {waited_s / 60:.0f} minutes: {trouble['text']}")
    kafka = report["kafka"]
    if not kafka["reached"] and kafka["silent_s"] > LONG_WAIT_S:
        found.append(f"Kafka has not answered for {kafka['silent_s'] / 60:.0f} minutes")
    quarantined = report["backlog"]["quarantined"]
    if quarantined:
        found.append(set_aside(quarantined))
    return found


def transactions(count: int) -> str:
    """COUNT transactions, in words."""
    return "1 transaction" if count == 1 else f"{count} transactions"


def they_wait(count: int) -> str:
    """The clause that COUNT transactions wait."""
    return f"{transactions(count)} {'waits' if count == 1 else 'wait'}"


def set_aside(count: int) -> str:
    """The sentence that COUNT journals are in the quarantine."""
    journals = "1 journal is" if count == 1 else f"{count} journals are"
    return (
        f"{journals} in the quarantine; firebird-cdc journal retry sends what is missing, journal"
        " discard deletes them"
    )


def waits(report: Mapping[str, Any]) -> bool:
    """Tell whether something in REPORT isn't as it should be, and goes on by itself."""
    is_behind = any(database["state"] == "behind" for database in report["databases"])
    return bool(report["troubles"]) or not report["kafka"]["reached"] or is_behind
