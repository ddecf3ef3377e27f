"""Surroundings of a `SnapshotRunner`: the delivery, and who owns it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.shipper.delivery.resend import Outcome
from firebird_cdc.journal.shipper.delivery.sending import SendContext
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.snapshots.rows import Batch
from firebird_cdc.journal.shipper.snapshots.state import Snapshot, SnapshotState, TableProgress
from firebird_cdc.journal.snapshot.worker import Setup


class Surroundings(Protocol):
    """Surroundings of a runner."""

    plan: SendContext
    config: ConnectorConfig

    @property
    def sends_changes(self) -> bool:
        """Tell whether changes are sent at all."""

    def wake(self) -> None:
        """Have the shipping thread come round."""

    def setup(self, database: str) -> Setup:
        """Return what a reader process is told. Raises ConfigError."""

    def is_placed(self, database: str) -> bool:
        """Tell whether it is known what Kafka has of DATABASE, and it is not paused."""

    def is_halted(self, database: str) -> bool:
        """Tell whether DATABASE is paused until somebody has mended something."""

    def is_at_rest(self, database: str) -> bool:
        """Tell whether no journal of DATABASE is under way."""

    def next_entry(self, database: str) -> Entry | None:
        """Return the transaction that comes next, None: none waits."""

    def place_of(self, database: str) -> tuple[int, int] | None:
        """Return epoch and sequence of the last journal in Kafka, None: there is none."""

    def is_crowded(self) -> bool:
        """Tell whether the journals that wait leave little room for more."""

    def is_away(self) -> bool:
        """Tell whether Kafka is away."""

    def tables_of(self, snapshot: Snapshot, database: str, names: list[str]) -> list[TableProgress]:
        """Return the tables of SNAPSHOT among the published ones, NAMES."""

    def record_of(self, state: SnapshotState) -> tuple[bytes, bytes]:
        """Return key and value of the offset topic's record of STATE."""

    def send(
        self, batch: Batch, begin: Callable[[], Any], answer: Callable[[Outcome], None]
    ) -> None:
        """Have BATCH sent; ANSWER hears what became of it."""

    def cancel(self, batch: Batch) -> None:
        """Send no more of BATCH."""

    def keep(self, state: SnapshotState, *, is_urgent: bool) -> None:
        """Have STATE in its file."""

    def notifications(
        self,
        database: str,
        snapshot: Snapshot,
        kind: str,
        table: TableProgress | None,
        status: str,
        why: str,
        of: Sequence[TableProgress],
    ) -> list[Message]:
        """Return the messages that tell of KIND of SNAPSHOT; what is to be logged is logged. OF:
        that only these tables were stopped."""

    def tell(self, messages: list[Message]) -> None:
        """Have MESSAGES sent by themselves, once at most."""
