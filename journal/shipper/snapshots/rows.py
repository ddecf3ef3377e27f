"""Rows of a snapshot on their way: a batch that a reader has rendered, as `Events` to be sent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import logbook

from firebird_cdc.journal.events.records import Message, new_message
from firebird_cdc.journal.shipper.delivery.resend import Rendered
from firebird_cdc.journal.shipper.delivery.sending import SendContext
from firebird_cdc.journal.shipper.delivery.tally import FILTERED
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.snapshot.rendered import PackedRun, unpacked

_log = logbook.Logger("firebird_cdc.journal.shipper.snapshots.rows")

_TOGETHER = 200
"""Messages that are handed over as one in the first attempt; then a refused one has to show."""


@dataclass(frozen=True)
class Batch:
    """Rows of TABLE, rendered. ``uuid``: names the batch; ``window``: that of its window; ``cut``:
    epoch and sequence of the last journal before it. ``last``: DB_KEY of the last row, None: there
    is none. ``is_end``: the table has no more. ``left_out``: why some rows have no message.
    ``notifications``: go with them. ``filtered``: rows that the configuration leaves out.
    ``unread``: fields with placeholders for BLOBs that the database has not got, and whose;
    ``undecoded``: of other rows, those for values that could not be decoded."""

    uuid: UUID
    database: str
    table: str
    window: UUID
    cut: tuple[int, int]
    rows: int
    messages: Sequence[Message]
    last: bytes | None
    is_end: bool
    left_out: Sequence[str]
    notifications: Sequence[Message] = ()
    filtered: int = 0
    unread: Sequence[str] = ()
    undecoded: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        answer: Mapping[str, Any],
        database: str,
        window: UUID,
        cut: tuple[int, int],
        notifications: Iterable[Message],
    ) -> Batch:
        """Return the batch that a reader process answered with."""
        return cls(
            uuid4(),
            database,
            answer["table"],
            window,
            cut,
            answer["rows"],
            messages_of(answer["runs"]),
            answer["last"],
            answer["is_end"],
            answer["left_out"],
            tuple(notifications),
            answer["filtered"],
            answer["unread"],
            answer["undecoded"],
        )

    def report(self) -> None:
        """Log what of it consumers lack."""
        for why in self.left_out:
            _log.warning("{}: a row is left out of the snapshot: {}", self.database, why)
        for what in self.unread:
            _log.error(
                "{}: in a row of the snapshot placeholders stand for BLOBs that the database has"
                " not got: {}",
                self.database,
                what,
            )
        if self.undecoded:  # they may be many
            _log.error(
                "{}: in {} of the next {} rows of the snapshot placeholders stand for values that"
                " could not be decoded; the first is {}",
                self.database,
                len(self.undecoded),
                self.rows,
                self.undecoded[0],
            )


def messages_of(runs: Iterable[PackedRun]) -> list[Message]:
    """Return the messages of RUNS."""
    made: list[Message] = []
    for topic, headers, keys, values in map(unpacked, runs):
        parts = zip(repeat(topic), keys, values, repeat(headers))
        made += map(partial(new_message, Message), parts)
    return made


class BatchEvents:
    """The messages of BATCH as `Events`, whose numbers are those of messages, from 1.

    ``record``: makes what the offset topic is to have with them.
    """

    def __init__(
        self,
        plan: SendContext,
        batch: Batch,
        record: Callable[[], tuple[bytes, bytes]],
        *,
        reached: int = 0,
        again: Collection[int] = (),
        together: int = _TOGETHER,
    ) -> None:
        self.batch = batch
        self.uuid = batch.uuid
        self.database = batch.database
        self.path = Path(batch.table)
        self.reached = reached
        self.record = record
        self._plan = plan
        self._again = again
        self._together = together

    def rendered(self) -> Generator[Rendered, None, None]:
        """Yield them in their order, some together under the number of the first one."""
        batch, quarantine = self.batch, self._plan.quarantine
        entry = Entry(*batch.cut, batch.window)
        kind = (batch.table, "r")
        numbers = [*sorted(self._again), *range(self.reached + 1, len(batch.messages) + 1)]
        together, self._together = self._together, 1
        for start in range(0, len(numbers), together):
            some = numbers[start : start + together]
            messages = [batch.messages[number - 1] for number in some]
            if quarantine.watching:
                quarantine.see(entry, batch.database, some[0], messages)
            yield Rendered(some[0], kind, messages, times=len(some))
        told = len(batch.messages) + 1
        if batch.notifications and told > self.reached:
            yield Rendered(told, FILTERED, batch.notifications, times=0)

    def behind(
        self, reached: int | None, problems: Mapping[int, str], taken: int, broken: str
    ) -> BatchEvents:
        """Return those that have PROBLEMS, and all behind REACHED; each by itself from now on."""
        del taken, broken
        if reached is None:
            reached = len(self.batch.messages) + 1
        return BatchEvents(
            self._plan,
            self.batch,
            self.record,
            reached=reached,
            again=problems.keys(),
            together=1,
        )
