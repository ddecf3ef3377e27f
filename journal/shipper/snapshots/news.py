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

    ``has_end``: rows that were read have with them that the snapshot is complete.
    """

    def __init__(self, database: str, around: Surroundings) -> None:
        self.has_end = False
        self._database = database
        self._around = around
        self._due: list[Message] = []  # true whatever becomes of rows
        self._of_rows: list[Message] = []  # of those that were read last

    @property
    def messages(self) -> list[Message]:
        """Messages that go with the rows that were read last."""
        return [*self._due, *self._of_rows]

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
        self._due += self._made(snapshot, kind, table, status, why, of)

    def add_rows(self, snapshot: Snapshot, table: TableProgress, answer: dict[str, Any]) -> None:
        """Have consumers told of the rows in ANSWER, which are of TABLE, and whether they are the
        last ones of SNAPSHOT."""
        rows = table.rows + answer["rows"] - len(answer["left_out"])
        progress = replace(table, rows=rows, after=(answer["last"] or b"").hex())
        self.forget_rows()
        is_in_parts = snapshot.kind is Kind.INCREMENTAL
        # As Debezium does: of each part, or of each table.
        if not answer["is_end"] if is_in_parts else not table.rows + table.left_out:
            self._of_rows += self._made(snapshot, "IN_PROGRESS", progress)
        if not answer["is_end"]:
            return
        outcome = "SUCCEEDED" if rows else "EMPTY"
        self._of_rows += self._made(snapshot, "TABLE_SCAN_COMPLETED", progress, outcome)
        self.has_end = all(each is table for each in snapshot.open_tables)
        if self.has_end and snapshot.status is not Status.STOPPED:
            self._of_rows += self._made(snapshot, "COMPLETED")

    def forget_rows(self) -> None:
        """The rows that were read last are not sent: nothing is told of them."""
        self._of_rows.clear()
        self.has_end = False

    def note_sent(self) -> None:
        """Kafka has what went with rows."""
        self._due.clear()
        self._of_rows.clear()

    def send(self) -> None:
        """Have it sent by itself."""
        messages, self._due = self._due, []
        self._around.tell(messages)

    def _made(
        self,
        snapshot: Snapshot,
        kind: str,
        table: TableProgress | None = None,
        status: str = "",
        why: str = "",
        of: Sequence[TableProgress] = (),
    ) -> list[Message]:
        return self._around.notifications(self._database, snapshot, kind, table, status, why, of)
