"""Notifications: what consumers and operators are told of the course of snapshots and of signals.

Their form is Debezium's: ``SchemaFactory``, ``IncrementalSnapshotNotificationService`` and
``InitialSnapshotNotificationService``; docs/signals.md, "Notifications", lists them. Beyond it,
``additional_data`` names the database, as one connector serves several, and says why where
something was aborted or skipped; and a signal that can't be followed has a notification, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import time_ns

import logbook

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.errors import Obstacle
from firebird_cdc.journal.events.message_writer import MessageWriter
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.events.schema import INT64, STRING, Schema, struct
from firebird_cdc.journal.events.values import BadValue

_log = logbook.Logger("firebird_cdc.journal.shipper.snapshots.notifications")

KEY = struct("io.debezium.connector.common.NotificationKey", ("id", STRING), version=1)
VALUE = struct(
    "io.debezium.connector.common.Notification",
    ("id", STRING),
    ("type", STRING),
    ("aggregate_type", STRING),
    ("additional_data", Schema("map", optional=True, keys=STRING, items=STRING)),
    ("timestamp", INT64),
    version=1,
)

INITIAL, INCREMENTAL, SIGNAL = "Initial Snapshot", "Incremental Snapshot", "Signal"

SUCCEEDED, EMPTY, SKIPPED = "SUCCEEDED", "EMPTY", "SKIPPED"
SQL_EXCEPTION = "SQL_EXCEPTION"
"""Outcomes of a table: its rows were sent, there were none, it was left out; the SQL that gives its
rows was refused."""

_LIST_DELIMITER = ","
_NO_KEY = "<null>"


@dataclass(frozen=True, slots=True)
class Subject:
    """A snapshot, as notifications name it.

    ``id``: that of its signal; ``collections``: identifiers of all its tables. An initial snapshot
    and a blocking one are of one kind, as in Debezium.
    """

    id: str
    database: str
    is_incremental: bool
    collections: tuple[str, ...] = ()


class Notifications:
    """Makes notifications for the channels of ``notification.enabled.channels``.

    Each method logs a line for the channel ``log``, and returns the message for ``sink``, for the
    caller to send in the Kafka transaction of what it tells of. None: there is none to send, as the
    channel is off, a transform dropped it, or it can't be written, which is logged once.
    """

    def __init__(self, config: ConnectorConfig, writer: MessageWriter) -> None:
        channels = config.notifications.channels
        self._topic = config.notifications.topic if "sink" in channels else None
        self._logs = "log" in channels
        self._connector = config.topic_prefix
        self._writer = writer
        self._trouble = ""

    def started(self, subject: Subject) -> Message | None:
        """Tell that a snapshot begins."""
        return self._tell(subject, "STARTED", **_collections(subject, only_incremental=True))

    def in_progress(
        self,
        subject: Subject,
        collection: str,
        last_key: str | None = None,
        maximum_key: str | None = None,
    ) -> Message | None:
        """Tell that rows of table COLLECTION are read, up to LAST_KEY of MAXIMUM_KEY, which only
        an incremental snapshot has."""
        keys = {}
        if subject.is_incremental:
            keys["maximum_key"] = maximum_key or _NO_KEY
            keys["last_processed_key"] = last_key or _NO_KEY
        return self._tell(
            subject,
            "IN_PROGRESS",
            **_collections(subject),
            current_collection_in_progress=collection,
            **keys,
        )

    def table_scan_completed(
        self,
        subject: Subject,
        collection: str,
        rows: int,
        status: str = SUCCEEDED,
        reason: str = "",
    ) -> Message | None:
        """Tell that table COLLECTION is done with, by STATUS after so many ROWS. REASON: why it was
        left out."""
        why = {"reason": reason} if reason else {}
        return self._tell(
            subject,
            "TABLE_SCAN_COMPLETED",
            **_collections(subject),
            scanned_collection=collection,
            total_rows_scanned=str(rows),
            status=status,
            **why,
        )

    def paused(self, subject: Subject) -> Message | None:
        """Tell that a snapshot rests."""
        return self._tell(subject, "PAUSED", **_collections(subject))

    def resumed(self, subject: Subject) -> Message | None:
        """Tell that a snapshot goes on."""
        return self._tell(subject, "RESUMED", **_collections(subject))

    def aborted(
        self, subject: Subject, reason: str, collections: tuple[str, ...] = ()
    ) -> Message | None:
        """Tell that a snapshot has ended early; COLLECTIONS: or only these tables of it."""
        stopped = {"data_collections": _LIST_DELIMITER.join(collections)} if collections else {}
        return self._tell(subject, "ABORTED", **stopped, reason=reason)

    def completed(self, subject: Subject) -> Message | None:
        """Tell that a snapshot has ended, with all its rows sent."""
        return self._tell(subject, "COMPLETED")

    def skipped(self, subject: Subject, reason: str) -> Message | None:
        """Tell that there is no snapshot where one might be expected."""
        return self._tell(subject, "SKIPPED", reason=reason)

    def signal_refused(self, id: str, type: str, channel: str, reason: str) -> Message | None:
        """Tell that a signal can't be followed, or not as a whole."""
        data = {"signal_type": type, "channel": channel, "reason": reason}
        return self._made(id, SIGNAL, "REFUSED", data)

    def _tell(self, subject: Subject, type: str, **data: str) -> Message | None:
        kind = INCREMENTAL if subject.is_incremental else INITIAL
        return self._made(subject.id, kind, type, {"database": subject.database, **data})

    def _made(self, id: str, kind: str, type: str, data: dict[str, str]) -> Message | None:
        data = {"connector_name": self._connector, **data}
        if self._logs:
            told = ", ".join(f"{name}: {text}" for name, text in data.items())
            # Ids and reasons hold what a sender wrote: it must not look like another line.
            _log.info("notification {}", " ".join(f"{id}: {kind} {type}: {told}".splitlines()))
        if self._topic is None:
            return None
        value = {
            "id": id,
            "type": type,
            "aggregate_type": kind,
            "additional_data": data,
            "timestamp": time_ns() // 1_000_000,
        }
        try:
            message = self._writer.message(self._topic, KEY, {"id": id}, VALUE, value)
            if message is not None:
                self._writer.require_topic(message.topic)
        except (BadValue, Obstacle) as error:
            # The snapshot goes on: its rows matter more than what is told of them.
            if str(error) != self._trouble:
                _log.warning("no notification in {}: {}", self._topic, error)
            self._trouble = str(error)
            return None
        self._trouble = ""
        return message


def _collections(subject: Subject, *, only_incremental: bool = False) -> dict[str, str]:
    if only_incremental and not subject.is_incremental:
        return {}
    return {"data_collections": _LIST_DELIMITER.join(subject.collections)}
