"""Comparison of Kafka and the journal folder: what each of them says was shipped.

Kafka says it in the offset topic (``journal.shipper.kafka.offset_topic``), the folder in its own
memory (``journal.shipper.local_offsets``). Both are compared whenever the topic is read: at the
start and with each new producer. A cluster that has less than it had has lost journals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from platform import node
from time import monotonic
from uuid import UUID

import logbook

from firebird_cdc.journal.events.bad_event import OUT_OF_BAND
from firebird_cdc.journal.folder.subjects import LOST, REMEMBERED, UNWRITABLE
from firebird_cdc.journal.shipper.kafka.client import KafkaLink
from firebird_cdc.journal.shipper.kafka.offset_topic import Known, Offset, OffsetReader
from firebird_cdc.journal.shipper.local_offsets import WRITE_S, JournalRange, Memory, Shipped
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics, UnsentFigures
from firebird_cdc.journal.shipper.shared_offsets import Number, SharedOffsets
from firebird_cdc.journal.shipper.unsent_values import Found

_log = logbook.Logger("firebird_cdc.journal.shipper.offset_tracker")


class OffsetTracker:
    """The offset topic TOPIC and the memory of the journal folder DIRECTORY.

    ``known``: by database, what the topic said when it was last read; ``redelivered``: of which
    journals it has what was left out, with the keys of those records; ``snapshots``: what it said
    of these, by database. ``end``: the offset behind its last record then. ``is_read``:
    whether that was since ``forget``.
    """

    def __init__(
        self,
        directory: Path,
        topic: str,
        link: KafkaLink,
        statistics: Statistics,
        archive: Path | None = None,
    ) -> None:
        self.topic = topic
        self.place = f"{node()}:{directory}"
        self.known: dict[str, Known] = {}
        self.redelivered: dict[UUID, bytes] = {}
        self.snapshots: dict[str, bytes] = {}
        self.is_read = False
        self.end = 0
        self._directory = directory
        self._link = link
        self._statistics = statistics
        self._shipped = Shipped(directory, topic, archive)
        self._reader: OffsetReader | None = None
        self._next_count = 0.0
        self._unreadable: set[str] = set()  # of which is told
        self._unshown: set[str] = set()  # databases of which events were counted since
        self._show_all()
        self._take_counts()

    @property
    def folder(self) -> str:
        """The identity of the journal folder."""
        return self._shipped.identity

    def advance(self, seconds: float) -> bool:
        """Read on, for about SECONDS; whether all is read. Raises KafkaException."""
        if self._reader is None:
            self._reader = self._link.position_reader(self.topic)
        if not self._reader.advance(seconds):
            return False
        self.known, self.redelivered = self._reader.known, self._reader.redelivered
        self.snapshots = self._reader.snapshots
        self.end = self._reader.end
        self._close()
        self.is_read = True
        _log.debug("topic {} is read up to offset {}", self.topic, self.end)
        for database in list(self._shipped.databases):
            known = self.known.get(database)
            position = known.position if known is not None else None
            self._tell(database, self._shipped.compare(database, position))
        return True

    @property
    def databases(self) -> list[str]:
        """The databases of which the folder knows that journals were shipped."""
        return list(self._shipped.databases)

    def remembered(self, database: str) -> tuple[int, int] | None:
        """Epoch and sequence of the last journal of DATABASE that the folder knows as shipped."""
        memory = self._shipped.databases.get(database)
        return None if memory is None else memory.number

    def loss_noticed_us(self, database: str) -> int:
        """Return when it was last noticed that Kafka or the folder lacks journals of DATABASE, of
        what nobody has acknowledged, in microseconds since 1970; 0: nothing."""
        memory = self._shipped.databases.get(database)
        if memory is None:
            return 0
        return max((each.noticed_us for each in (*memory.lost, *memory.missing)), default=0)

    def shared(self, database: str) -> SharedOffsets:
        """Return how far the shared journals of DATABASE are delivered, by the folder's memory."""
        memory = self._shipped.databases.get(database)
        return SharedOffsets(None if memory is None else memory.shared)

    def delivered(self, database: str) -> Number | None:
        """Return up to which number all of DATABASE was delivered when that was last kept."""
        memory = self._shipped.databases.get(database)
        return None if memory is None else memory.delivered

    def keep_shared(self, database: str, reached: Mapping[UUID, Number], last: Number) -> None:
        """Keep that they are delivered up to the numbers REACHED, and all journals up to LAST."""
        self._shipped.keep_shared(database, reached, last)

    def write_shared(self) -> None:
        """Have on disk what was kept of shared journals. Raises OSError."""
        self._shipped.write_shared()

    def forget(self) -> None:
        """Forget what was read, as it may not hold any more: it has to be read again."""
        self._close()
        self.is_read = False

    def follow_folder(self) -> None:
        """The journal folder is another one now. Raises ShipError."""
        self.forget()
        self._shipped.load()
        for subject in list(self._statistics.troubles):
            if subject.startswith(REMEMBERED):
                self._statistics.clear(subject)
        for statistics in self._statistics.databases.copy().values():
            statistics.unsent.clear()
        self._unshown.clear()
        self._unreadable.clear()
        self._show_all()
        self._take_counts()

    def note(self, position: Offset) -> None:
        """POSITION is in Kafka for good."""
        self._shipped.note(position)

    def note_emptied(self) -> None:
        """The offset topic begins anew though nobody closed it: Kafka has lost everything."""
        for memory in list(self._shipped.databases.values()):
            self._tell(memory.database, self._shipped.lose(memory, None))

    def keep_counts(self) -> None:
        """Write how many events have placeholders, before the journals of the last ones go."""
        self._keep_counts()
        self._shipped.write()

    def leave_out(self, database: str, places: Sequence[int]) -> None:
        """Write and show that PLACES, each one of OUT_OF_BAND, were left out of journals
        that are shipped, before these go."""
        memory = self._shipped.leave_out(database, [OUT_OF_BAND[place] for place in places])
        self._shipped.write()  # or it could not be acknowledged yet when it is shown
        self._show(memory)

    def lack(self, database: str, id: str, ended_us: int, what: str) -> None:
        """Write and show that snapshot ID of DATABASE ended without some rows: WHAT."""
        memory = self._shipped.lack(database, id, ended_us, what)
        self._shipped.write()  # as in leave_out
        self._show(memory)

    def count_unsent(
        self,
        database: str,
        kind: str,
        uuid: UUID,
        number: tuple[int, int],
        found: Sequence[Found],
    ) -> None:
        """Keep that events of DATABASE, FOUND in journal UUID with NUMBER (epoch, sequence), have
        placeholders for values of KIND. They may be many: `write_counts` writes and shows it."""
        if self._shipped.count_unsent(database, kind, uuid, number, found):
            self._unshown.add(database)

    def write_counts(self) -> None:
        """Write and show how many events have placeholders for what could not be read or decoded,
        before Kafka has them for good, or their journals go."""
        if self._unshown:
            self._shipped.write()  # as in leave_out
            for database in self._unshown:
                self._show(self._shipped.databases[database])
            self._unshown.clear()

    def passed(self, database: str) -> tuple[int, int] | None:
        """Return epoch and sequence of the last journal of DATABASE of which it is told that Kafka
        does not have it; None: there is none."""
        memory = self._shipped.databases.get(database)
        return None if memory is None else memory.passed

    def pass_over(self, database: str, number: tuple[int, int]) -> None:
        """Keep that journal NUMBER (epoch, sequence) of DATABASE is not sent, which is told
        elsewhere."""
        self._shipped.pass_over(database, number)
        self._shipped.write()

    def miss(self, database: str, *ranges: tuple[tuple[int, int], tuple[int, int]]) -> None:
        """Write and show that journals of DATABASE are not there, before later ones are sent.
        RANGES: the first and the last of each, by epoch and sequence."""
        for first, last in ranges:
            self._shipped.miss(database, first, last)
        self._shipped.write()  # as in leave_out
        self._show(self._shipped.databases[database])

    def turn(self) -> list[str]:
        """Keep the memory; returns databases of which somebody has acknowledged what happened."""
        now = monotonic()
        if now >= self._next_count:
            self._next_count = now + WRITE_S
            self._keep_counts()
            self.write_counts()
        self._shipped.write(now)
        acknowledged = self._shipped.acknowledgements(now)
        for database in acknowledged:
            for kind in REMEMBERED:
                self._statistics.clear(kind + database)
            if (memory := self._shipped.databases.get(database)) is not None:
                self._show(memory)  # what was noticed since
            _log.notice("{}: what happened is acknowledged", database)
        if self._unreadable:
            self._show_unreadable()
        self._show_unwritable()
        return acknowledged

    def close(self) -> None:
        """Write what is remembered, and give back what is held."""
        self._close()
        self._keep_counts()
        self._shipped.write()

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _tell(self, database: str, lost: JournalRange | None) -> None:
        if lost is None:
            return
        _log.error(
            "{}: Kafka no longer has {}, which were shipped and are not in {} any more. Every"
            " journal that is still there is sent. Look for the others in the archive or a backup;"
            " once you know, run: firebird-cdc journal acknowledge --config FILE {}",
            database,
            lost,
            self._directory,
            database,
        )
        self._shipped.write()
        self._show(self._shipped.databases[database])

    def _show_all(self) -> None:
        for memory in self._shipped.databases.values():
            self._show(memory)
        self._show_unreadable()

    def _show(self, memory: Memory) -> None:
        for notice in memory.notices():
            self._statistics.trouble(notice.subject, "warning", notice.text)
        for kind, (_, count) in memory.unsent.items():
            if count.total:
                figures = self._statistics.database(memory.database).unsent
                figures[kind] = UnsentFigures(count.total, count.unknown)

    def _show_unreadable(self) -> None:
        """Tell what the folder remembers and can't be read, until somebody has acknowledged it."""
        unreadable = self._shipped.unreadable
        for key in self._unreadable - unreadable.keys():
            self._statistics.clear(LOST + key)
        for key, notice in unreadable.items():
            if key not in self._unreadable:
                self._statistics.trouble(notice.subject, "warning", notice.text)
        self._unreadable = set(unreadable)

    def _show_unwritable(self) -> None:
        """Tell that a restart would forget what was lost or left out, as long as it is so."""
        if why := self._shipped.unwritable:
            self._statistics.trouble(
                UNWRITABLE,
                "warning",
                f"what was shipped, lost or left out can't be saved: {why}; the next start knows"
                " nothing of it, so make this folder writable for the shipper",
            )
        else:
            self._statistics.clear(UNWRITABLE)

    def _take_counts(self) -> None:
        """Go on counting events with placeholders where the folder has it."""
        for database, memory in self._shipped.databases.items():
            if memory.placeholders:
                statistics = self._statistics.database(database)
                statistics.placeholders = max(statistics.placeholders, memory.placeholders)

    def _keep_counts(self) -> None:
        for database, statistics in self._statistics.databases.copy().items():
            if statistics.placeholders:
                self._shipped.count_placeholders(database, statistics.placeholders)
