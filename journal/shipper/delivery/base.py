"""Delivery of journals: what both ways of sending share (``plain`` and ``transactional``)."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import logbook
from confluent_kafka import KafkaError

from firebird_cdc.errors import JournalError, Obstacle
from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.topics import missing_topic
from firebird_cdc.journal.folder.subjects import UNREADABLE, TroubleKind
from firebird_cdc.journal.shipper.delivery.between import NO_SNAPSHOTS, SnapshotSource
from firebird_cdc.journal.shipper.delivery.database_queue import (
    DatabaseQueue,
    Halt,
    MissingBlocked,
    Setback,
)
from firebird_cdc.journal.shipper.delivery.disposal import Disposal
from firebird_cdc.journal.shipper.delivery.out_of_band import OutOfBand
from firebird_cdc.journal.shipper.delivery.redelivery import Redelivery
from firebird_cdc.journal.shipper.delivery.repair import Repairs
from firebird_cdc.journal.shipper.delivery.retry import Retries
from firebird_cdc.journal.shipper.delivery.sending import Send, SendContext
from firebird_cdc.journal.shipper.delivery.small import SmallSender
from firebird_cdc.journal.shipper.inbox.backlog import Backlog, Unreadable
from firebird_cdc.journal.shipper.inbox.queue import Entry, with_file
from firebird_cdc.journal.shipper.kafka.client import KafkaLink, failure_of
from firebird_cdc.journal.shipper.kafka.offset_topic import Offset
from firebird_cdc.journal.shipper.monitoring.folder import Waiting
from firebird_cdc.journal.shipper.offset_tracker import OffsetTracker
from firebird_cdc.journal.shipper.repairs import WHOLE, RepairPoint

_log = logbook.Logger("firebird_cdc.journal.shipper.delivery.base")

_FORGIVEN_S = 10.0

_ADVICE_SHARED = (
    "Other transactions are in the same file, so do not move it away: repair it, and shipping"
    " resumes automatically; or set event.processing.failure.handling.mode to warn or skip, which"
    " puts this transaction alone into the quarantine, and restart the shipper"
)

REMIND_S = 60.0
"""Seconds between two reports of a database that is paused."""


def is_missing(error: KafkaError) -> bool:
    """Tell whether ERROR says that there is no such topic."""
    return error.code() in (
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    )


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return what differs once FOLDER is another one; None if that can't be told."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _waiting(pending: int, first: Entry | None) -> Waiting:
    return Waiting(pending, first and first.name, first and first.commit_us)


class DeliveryLimits(NamedTuple):
    """Bounds that the options set. ``backoff_s``: first pause after a failure; ``max_retries``:
    failures in a row until a database is paused, -1: no limit; ``attempt_s``: without any answer
    for so long counts as one. ``events_per_turn``: changes of one database, sent or filtered out,
    until the next one's turn."""

    backoff_s: float = 1.0
    max_retries: int = -1
    attempt_s: float = 120.0
    events_per_turn: int = 500


class Delivery(ABC):
    """Queues, their journals' end, and what stops them. Subclasses send.

    ``stopping``: begin no journal any more. ``scans``: full scans done by the owner;
    ``snapshots``: rows that are sent between journals.
    ``disposal``: where journals go that Kafka has. ``out_of_band``: sends what belongs to none.
    """

    _recognises_shipped = False
    """Ability to recognise a journal that is left over by a crash as one that Kafka has."""

    def __init__(
        self,
        backlog: Backlog,
        plan: SendContext,
        link: KafkaLink,
        archive: Path | None,
        offsets: OffsetTracker,
        limits: DeliveryLimits,
        on_missing: Callable[[str], str] = missing_topic,
    ) -> None:
        """``on_missing``: tells why there is no such topic, and what to do."""
        self.backlog = backlog
        self.plan = plan
        self.small = SmallSender(plan)
        self.statistics = plan.statistics
        self.link = link
        self.queues: dict[str, DatabaseQueue] = {}
        self.stopping = False
        self.scans = 0
        self.limits = limits
        self.offsets = offsets
        self._folder = _identity(backlog.directory)
        self._position_offset = -1
        self._forgiven: dict[str, float] = {}
        self.out_of_band = OutOfBand(link)
        self.disposal = Disposal(
            plan,
            backlog,
            archive,
            offsets.miss,
            self.before_removal,
            in_order=not self._recognises_shipped,
        )
        repairs = Repairs(plan, self.is_at_rest, self.place_of)
        self.redelivery = Redelivery(plan, Retries(plan, archive), repairs)
        self.snapshots: SnapshotSource = NO_SNAPSHOTS
        self._on_missing = on_missing
        self._told_unreadable: dict[str, int] = {}  # by name, how many scans were done then
        self._acknowledged = 0

    # What the owner asks

    @property
    def unacked(self) -> int:
        """Messages without an answer."""
        return self.plan.unacked + self.out_of_band.unacked

    @property
    def in_flight(self) -> int:
        """Journals that are begun and not disposed of."""
        begun = sum(len(queue.sends) for queue in self.queues.values())
        return begun + len(self.disposal) + (self.redelivery.send is not None)

    def waiting(self) -> dict[str, Waiting]:
        """Return the transactions of each database that were sorted in; for any thread."""
        # Before Kafka has said how far each database is, there are no queues.
        waiting = {
            path: _waiting(len(backlog), backlog.first_or_none)
            for path, backlog in list(self.backlog.queues.items())
        }
        for path, queue in list(self.queues.items()):
            waiting[path] = _waiting(queue.pending, queue.first)
        for journal in list(self.backlog.unreadable.values()):
            path = journal.database or ""
            known = waiting.get(path, Waiting(0, None))
            if known.first is None:
                known = known._replace(first=journal.name)
            waiting[path] = known._replace(pending=known.pending + 1)
        return waiting

    @property
    def can_go_on(self) -> bool:
        """Tell whether anything is left to do that isn't stopped for good."""
        return (
            len(self.disposal) > 0
            or self.redelivery.can_go_on
            or self.snapshots.is_busy
            or any(queue.can_go_on for queue in self.queues.values())
        )

    @property
    def progress(self) -> object:
        """Value that differs only once something has come further than it ever was."""
        furthest = [queue.furthest for queue in self.queues.values()]
        return self.disposal.shipped, furthest, self.redelivery.progress, self.snapshots.progress

    @property
    def wants_scan(self) -> bool:
        """Tell whether a number is missing that a look at the whole folder might find."""
        return any(queue.waits_for_scan for queue in self.queues.values())

    @property
    def next_retry(self) -> float | None:
        """Time (monotonic) at which the next paused database tries again."""
        if self.disposal.is_failing:
            return self.disposal.retry_at
        return min(
            (
                queue.backoff.retry_at
                for queue in self.queues.values()
                if queue.backlog and not queue.halt
            ),
            default=None,
        )

    @abstractmethod
    def step(self) -> bool:
        """Do what can be done without waiting; True if something was."""

    def abandon(self, patience_s: float) -> None:
        """Stop: what is not acknowledged stays in its journal. A last wait for Kafka may take
        PATIENCE_S."""
        del patience_s
        self.snapshots.close()
        self.offsets.close()
        self.redelivery.start_over()
        for queue in self.queues.values():
            queue.start_over()

    # Queues

    def update_queues(self) -> None:
        """Make queues for databases that have journals now."""
        for database, backlog in self.backlog.queues.items():
            if database not in self.queues:
                queue = DatabaseQueue(database, backlog, self.limits.backoff_s, self.offsets.miss)
                self.queues[database] = queue
                self._place(queue)
                queue.rows = self.snapshots.meet(database)

    @abstractmethod
    def _place(self, queue: DatabaseQueue) -> None:
        """Tell QUEUE what Kafka is known to have."""

    def is_at_rest(self, database: str) -> bool:
        """Tell whether no journal of DATABASE is under way, and its place is known."""
        queue = self.queues.get(database)
        return self.is_placed and (queue is None or not queue.sends)

    def place_of(self, database: str) -> RepairPoint | None:
        """The last point of DATABASE that was shipped, None if nothing says so; at rest."""
        queue = self.queues.get(database)
        points = []
        for known in (
            self.offsets.known.get(database),
            None if queue is None else queue.offset.known,
        ):
            if known is not None and known.position.folder == self.offsets.folder:
                position = known.position
                pos = WHOLE if position.complete else position.pos
                points.append(RepairPoint(*position.number, pos))
        if queue is not None and queue.settled is not None:
            points.append(RepairPoint(*queue.settled[0][:2]))
        if (number := self.offsets.remembered(database)) is not None:
            points.append(RepairPoint(*number))
        return max(points, default=None)

    @property
    @abstractmethod
    def is_placed(self) -> bool:
        """Tell whether it is known which journals Kafka has."""

    def _ready(self, queue: DatabaseQueue) -> bool:
        if self.stopping or self.disposal.is_failing or self.redelivery.holds(queue.database):
            return False
        if queue.database in self.backlog.unread:  # it may have what comes next
            return False
        suspects: Sequence[Unreadable] = ()
        if self.backlog.unreadable and self.plan.failure_mode == "fail":
            suspects = self._suspects(queue)
        try:
            return queue.ready(self.scans, len(suspects), self.backlog.young)
        except MissingBlocked as blocked:
            names = ", ".join(journal.name for journal in suspects[:3])
            self.halt(
                queue,
                Halt(
                    queue.backlog.first()[:2],
                    None,
                    f"journal {blocked.missing} of this database is not there, and it may be one"
                    f" that can't be read ({names})",
                    None,
                ),
            )
            return False

    def _suspects(self, queue: DatabaseQueue) -> list[Unreadable]:
        """The unreadable journals that may belong to QUEUE."""
        return [
            journal
            for journal in self.backlog.unreadable.values()
            if journal.database in (None, queue.database)
        ]

    def _take_known(self, queue: DatabaseQueue, entry: Entry) -> None:
        """Dispose of ENTRY, the next journal of QUEUE, unsent: it is delivered already."""
        tell = _log.info if entry.is_alone else _log.debug
        tell("{}: Kafka has it already", entry.name)
        former = queue.take_known(entry)
        if former is not None:
            self._count(queue, [former])
        self.disposal.add(entry)

    def halt(self, queue: DatabaseQueue, halt: Halt) -> None:
        """Stop QUEUE, loudly."""
        former = queue.halt
        if former is not None and former.entry is not None and former.entry != halt.entry:
            queue.backlog.push(former.entry)  # it comes behind, and is met again
        queue.halt = halt
        queue.setback = Setback(halt.place)
        self.statistics.trouble(queue.database, "halted", halt.reason)
        self._tell_halt(queue)

    def _tell_halt(self, queue: DatabaseQueue) -> None:
        assert queue.halt is not None
        _log.error(
            "{database}: shipping paused: {}. {} of its transactions wait in {}."
            " Other databases go on. {}",
            queue.halt.reason,
            queue.pending,
            self.backlog.directory,
            queue.halt.advice,
            database=queue.database,
        )

    def remind(self) -> None:
        """Report databases again that are paused or whose journal is refused."""
        for queue in self.queues.values():
            if queue.halt is not None:
                self._tell_halt(queue)
            elif queue.setback and queue.setback.why:
                _log.error(
                    "{database}: still not delivered: {}",
                    queue.setback.why,
                    database=queue.database,
                )
        self._told_unreadable.clear()

    def recheck_halts(self) -> None:
        """Let queues go on whose obstacle was removed or changed."""
        for queue in self.queues.values():
            halt = queue.halt
            if halt is None:
                continue
            if halt.stays or (halt.entry is None and self._suspects(queue)):
                continue
            if halt.entry is not None:
                signature = self._signature(halt.entry)
                if signature is None:
                    if not self._is_same_folder:
                        continue
                    self._pass_over(queue, halt.entry)
                elif signature == halt.signature:
                    continue
                else:
                    self._take_up(queue, halt.entry)
                    queue.setback = Setback(halt.entry[:2], signature=signature)
            queue.halt = None
            self.statistics.clear(queue.database)
            _log.notice("{database}: the cause is gone, shipping goes on", database=queue.database)

    def _take_up(self, queue: DatabaseQueue, entry: Entry) -> None:
        """Put ENTRY, at which QUEUE was paused, back to be sent; its file is read anew."""
        self.plan.journals.forget(entry)
        queue.backlog.push(entry)

    def try_again(self) -> list[tuple[DatabaseQueue, tuple[int, int]]]:
        """Have databases that are paused, or wait before the next attempt, go on at once.

        Returns them, each with the place of the journal that is in the way.
        """
        tried = []
        for queue in self.queues.values():
            halt = queue.halt
            if halt is not None:
                if halt.entry is not None:
                    self._take_up(queue, halt.entry)
                queue.halt = None
                queue.failures = 0
                self.statistics.clear(queue.database)
                _log.notice("{database}: shipping is tried again", database=queue.database)
                tried.append((queue, halt.place))
            elif queue.setback and (first := queue.first_place) is not None:
                tried.append((queue, first))
            queue.backoff.skip()
        self._told_unreadable.clear()
        return tried

    def _take_acknowledgements(self) -> None:
        """Let queues go on of which somebody says that it is all right."""
        for database in self.offsets.turn():
            # At the start it may come before what it is about.
            self._forgiven[database] = monotonic() + _FORGIVEN_S
            queue = self.queues.get(database)
            if queue is None or queue.halt is None or not queue.halt.acknowledgeable:
                continue
            if queue.halt.entry is not None:
                queue.backlog.push(queue.halt.entry)
            queue.offset.is_forgiven = True
            queue.halt = None
            self.statistics.clear(database)
            _log.notice("{}: shipping goes on, as was acknowledged", database)

    def _forgives(self, queue: DatabaseQueue) -> bool:
        """Tell whether somebody has said that QUEUE may send what does not fit."""
        if not queue.offset.is_forgiven and self._forgiven.get(queue.database, 0.0) > monotonic():
            queue.offset.is_forgiven = True
        return queue.offset.is_forgiven

    def _signature(self, entry: Entry) -> tuple[int, ...] | None:
        """Return what differs once the file of ENTRY is another one, or can't be looked at; None:
        it is gone."""
        try:
            status = with_file(self.plan.folder, entry, os.stat)
        except FileNotFoundError:
            return None
        except OSError as error:
            return (error.errno or 0,)
        return status.st_ino, status.st_size, status.st_mtime_ns

    @property
    def _is_same_folder(self) -> bool:
        """Tell whether the journal folder is there, and still the one that journals were found in:
        else nothing is known of files that are not."""
        return self._folder is not None and _identity(self.backlog.directory) == self._folder

    def follow_folder(self) -> None:
        """Go on where the journal folder is back, or another one is in its place: journals of the
        former one may come back with it. Raises ShipError."""
        self.offsets.follow_folder()
        if self._is_same_folder:
            return
        self._folder = _identity(self.backlog.directory)
        for queue in self.queues.values():
            waiting = [queue.backlog.pop() for _ in range(len(queue.backlog))]
            if queue.halt is not None and queue.halt.entry is not None:
                waiting.append(queue.halt.entry)
                queue.halt = None
                self.statistics.clear(queue.database)
            for entry in waiting:
                if self._signature(entry) is None:
                    self.backlog.forget(entry)
                else:
                    queue.backlog.push(entry)
        self.backlog.forget_gone()

    def _pass_over(self, queue: DatabaseQueue, entry: Entry) -> None:
        """Go on without ENTRY, the next journal of QUEUE, which somebody has taken away, and
        without what went with it."""

        self.backlog.forget(entry)
        self.goes_on_without(queue, entry)
        if not queue.offset.is_continued_by(entry):
            return  # it was one too many: Kafka has that number
        behind = queue.take_gone(entry, lambda each: self._signature(each) is None)
        for each in behind:
            self.backlog.forget(each)
        _log.warning(
            "{}: it is gone{}, and shipping goes on without: consumers lack these events. Once that"
            " is known, run: firebird-cdc journal acknowledge",
            self.backlog.directory / entry.name,
            f", as are {len(behind)} behind it" if behind else "",
        )
        self.offsets.miss(queue.database, *((each[:2], each[:2]) for each in (entry, *behind)))

    def back_off(self, queue: DatabaseQueue, why: str | Obstacle, send: Send) -> None:
        """Pause QUEUE after a failure of SEND that may pass, loudly if it is not the one of the
        attempt before; or for good, if it was the last attempt that ``errors.max.retries`` allows.
        """
        pause, path = queue.back_off(), send.path
        if 0 <= self.limits.max_retries < queue.failures:
            self.give_up(queue, f"{path.name} was not delivered: {why}")
            return
        text = f"{path.name}: {why}"
        if queue.setback is None or queue.setback.why != text:
            _log.error(
                "{database}: {journal} was not delivered: {}; it is sent again until it is, next"
                " in {:.1f} s",
                why,
                pause,
                database=queue.database,
                journal=path.name,
            )
        queue.setback = Setback(send.entry[:2], text)
        self.statistics.database(queue.database).retries += 1
        needs_somebody = isinstance(why, Obstacle) and why.needs_somebody
        kind: TroubleKind = "halted" if needs_somebody else "waiting"
        self.statistics.trouble(queue.database, kind, queue.setback.why)

    def await_disk(self, queue: DatabaseQueue, send: Send, why: str) -> float:
        """Pause QUEUE, as the disk fails the journal of SEND; return for how long."""
        queue.setback = Setback(send.entry[:2], why)
        self.statistics.trouble(queue.database, "halted", queue.setback.why)
        return queue.back_off()

    def goes_on_without(self, queue: DatabaseQueue, entry: Entry) -> None:
        """ENTRY, which QUEUE is not to deliver any more, is in nobody's way."""
        if queue.recovers(entry):
            self.statistics.clear(queue.database)

    def _why(self, failed: Send) -> str:
        """Return the reason why a message of FAILED was not taken, as a text for messages."""
        error, topic = failed.failed, failed.failed_topic
        assert error is not None
        text = f"topic {topic}: {error.str()}"
        return f"{text}; {self._on_missing(topic)}" if is_missing(error) else text

    def give_up(self, queue: DatabaseQueue, why: str) -> None:
        """Stop QUEUE after too many failures that might have passed."""
        queue.start_over()
        reason = f"given up after {queue.failures} attempts (errors.max.retries): {why}"
        advice = (
            "Mend that, and have it tried again: firebird-cdc journal retry --config FILE, or a"
            " restart of the shipper"
        )
        self.halt(queue, Halt((0, 0), None, reason, None, advice, stays=True))

    def _waits_too_long(self) -> bool:
        """Tell whether Kafka has not answered for as long as all allowed attempts together take."""
        if self.limits.max_retries < 0:
            return False
        allowed_s = self.limits.attempt_s * (self.limits.max_retries + 1)
        return monotonic() - self.link.progress_at > allowed_s

    # What can't be sent

    def take_bad(self, queue: DatabaseQueue, send: Send, error: Exception) -> None:
        """Deal with a journal or event of QUEUE that can't be read or sent, as the mode says."""
        if isinstance(error, FileNotFoundError) and self._is_same_folder:
            queue.drop(send)
            self._pass_over(queue, send.entry)
        elif isinstance(error, OSError):
            queue.start_over()
            pause = self.await_disk(queue, send, f"{send.path.name} can't be read: {error}")
            _log.error("{}: can't be read: {}; next attempt in {:.1f} s", send.path, error, pause)
        elif self.plan.failure_mode == "fail":
            place = f" {error.where}:" if isinstance(error, BadEvent) else ""
            where = "" if isinstance(error, JournalError) else f"{send.path}:{place} "
            setback = queue.setback
            signature = None
            if setback is not None and setback.place == send.entry[:2]:
                signature = setback.signature
            signature = signature or self._signature(send.entry)
            queue.drop(send, comes_again=True)
            what = error.told if isinstance(error, BadEvent) else str(error)
            halt = Halt(send.entry[:2], send.entry, f"{where}{what}", signature)
            self.halt(queue, halt if send.entry.is_alone else replace(halt, advice=_ADVICE_SHARED))
        elif isinstance(error, BadEvent):
            send.report_left_out(error)
            queue.leave_out(send.entry, error.pos, str(error))
            queue.start_over()
        else:
            self._take_damaged(queue, send, str(error))

    @abstractmethod
    def _take_damaged(self, queue: DatabaseQueue, send: Send, reason: str) -> None:
        """SEND can't be read any further, and is to be quarantined."""

    def take_unreadable(self) -> None:
        """Deal with the journals whose place in the order can't be told."""
        for journal in self.backlog.recheck_unreadable():
            path = self.backlog.directory / journal.name
            is_tried = self._told_unreadable.get(journal.name) == self.scans
            if self.plan.failure_mode != "fail":
                if is_tried:
                    continue
                if self._quarantine(path, None, journal.database, journal.reason):
                    self.backlog.unreadable.pop(journal.name, None)
                else:
                    self._told_unreadable[journal.name] = self.scans
            elif journal.name not in self._told_unreadable:
                self._told_unreadable[journal.name] = self.scans
                _log.error(
                    "{}: can't be read ({}), so it is not shipped; it stays where it is, and its"
                    " database waits for it. Repair it or move it away, or set"
                    " event.processing.failure.handling.mode to warn or skip",
                    path,
                    journal.reason,
                )
        left = list(self.backlog.unreadable.values())
        if left:
            text = f"{left[0].name} can't be read ({left[0].reason})"
            more = f", and {len(left) - 1} more" if len(left) > 1 else ""
            self.statistics.trouble(UNREADABLE, "halted", text + more)
        else:
            self.statistics.clear(UNREADABLE)

    def _quarantine(
        self, path: Path, entry: Entry | None, database: str | None, reason: str, after: int = 0
    ) -> bool:
        """Quarantine a journal of which nothing behind event AFTER was sent; False: that has to be
        tried again."""
        try:
            self.plan.quarantine.set_aside(path, entry, database, reason, after)
        except FileNotFoundError:
            if entry is not None and database is not None and self._is_same_folder:
                self.offsets.miss(database, (entry[:2], entry[:2]))
        except OSError as error:
            _log.error(
                "{}: can't be shipped ({}), and can't be moved to the quarantine: {}",
                path,
                reason,
                error,
            )
            return False
        else:
            if entry is not None and database is not None:
                self.offsets.pass_over(database, entry[:2])
        return True

    # Records of the offset topic

    def _produce_record(self, key: bytes, value: bytes | None, position: Offset | None) -> None:
        """Hand over a record of the offset topic, which tells POSITION if it is one. Raises
        BufferError if the producer is full."""
        answered = partial(self._take_record_answer, position)
        self.out_of_band.send_record(self.offsets.topic, key, value, answered)

    def _take_record_answer(
        self, position: Offset | None, error: KafkaError | None, message: Any
    ) -> None:
        if (failure := failure_of(error, message)) is not None:
            self._position_failed(failure)
            return
        if message.offset() <= self._position_offset:
            self.offsets.note_emptied()
            self._look_again()
        self._position_offset = message.offset()
        if position is not None:
            self._position_taken(position)

    @abstractmethod
    def _look_again(self) -> None:
        """The offset topic was emptied."""

    @abstractmethod
    def _position_taken(self, position: Offset) -> None:
        """Kafka has taken the record of POSITION."""

    @abstractmethod
    def _position_failed(self, error: KafkaError) -> None:
        """Kafka has not taken the record of a position."""

    # What was delivered

    def settle(self) -> bool:
        """Dispose of the journals that are wholly acknowledged, each database's in order."""
        for queue in self.queues.values():
            settled = queue.settle()
            if not settled:
                continue
            self.disposal.add(*(send.entry for send in settled))
            if any(queue.recovers(send.entry) for send in settled):
                self.statistics.clear(queue.database)
                _log.notice("{database}: journals are delivered again", database=queue.database)
            self._count(queue, settled)
        return self.disposal.run()

    @abstractmethod
    def before_removal(self) -> None:
        """Make sure that journals about to be removed stay known as delivered."""

    def _count(self, queue: DatabaseQueue, settled: Sequence[Send]) -> None:
        """Tell the statistics that journals of QUEUE were acknowledged."""
        statistics = self.statistics.database(queue.database)
        if any(send.has_placeholders for send in settled):
            self.offsets.keep_counts()
        left_out = [place for send in settled if send.left_out for place in send.take_left_out()]
        if left_out:
            self.offsets.leave_out(queue.database, left_out)
        quarantine = self.plan.quarantine
        lengths = [send.length for send in settled if quarantine.is_whole(send.entry)]
        statistics.transactions += len(lengths)
        statistics.journals_shipped += len(lengths)
        statistics.bytes_shipped += sum(lengths)
        events = (send.last_event for send in reversed(settled))
        last = next(filter(None, events), None)
        if last is not None:
            statistics.handled(last)

    def _replace_producer(self) -> None:
        """Go on with a new producer; answers to the old one's messages no longer come."""
        self.link.recreate()
        self.plan.unacked = 0
        self.out_of_band.forget_answers()
        self.offsets.forget()

    def _note_answers(self) -> bool:
        """Tell the link what came; True if something did."""
        if self.plan.acknowledged != self._acknowledged:
            self._acknowledged = self.plan.acknowledged
            self.link.note_progress()
            return True
        return False
