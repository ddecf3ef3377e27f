"""News of a database's snapshots for consumers, which go with rows, or by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.shipper.snapshots.state import Kind, Snapshot, Status, TableProgress
from firebird_cdc.journal.shipper.snapshots.surroundings import Surroundings


class News:
    """News of DATABASE.

    ``messages``: that go with the next rows; ``has_end``: rows that were read have with them that
    the snapshot is complete.
    """

    def __init__(self, database: str, around: Surroundings) -> None:
        self.messages: list[Message] = []
        self.has_end = False
        self._database = database
        self._around = around

    def add(
        self,
        snapshot: Snapshot,
        kind: str,
        table: TableProgress | None = None,
        status: str = "",
        why: str = "",
        of: Sequence[TableProgress] = (),
    ) -> None:
        """Have consumers told with the next rows, or by `send`. OF: that only these tables were
        stopped."""
        if kind == "STARTED":
            self.has_end = False
        self.messages += self._around.notifications(
            self._database, snapshot, kind, table, status, why, of
        )

    def add_rows(self, snapshot: Snapshot, table: TableProgress, answer: dict[str, Any]) -> None:
        """Have consumers told of the rows in ANSWER, which are of TABLE, and whether they are the
        last ones of SNAPSHOT."""
        rows = table.rows + answer["rows"] - len(answer["left_out"])
        progress = replace(table, rows=rows, after=(answer["last"] or b"").hex())
        self.has_end = False
        if not answer["is_end"]:
            if snapshot.kind is Kind.INCREMENTAL:
                self.add(snapshot, "IN_PROGRESS", progress)
            return
        self.add(snapshot, "TABLE_SCAN_COMPLETED", progress, "SUCCEEDED" if rows else "EMPTY")
        self.has_end = all(each is table for each in snapshot.open_tables)
        if self.has_end and snapshot.status is not Status.STOPPED:
            self.add(snapshot, "COMPLETED")

    def send(self) -> None:
        """Have it sent by itself."""
        messages, self.messages = self.messages, []
        self._around.tell(messages)
