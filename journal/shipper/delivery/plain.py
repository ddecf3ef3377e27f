"""Delivery of journals: the parts that both ways of sending share, and the plain way.

``PlainDelivery`` is for a producer without transactional id: idempotent, in order, at least
once. Its counterpart is ``journal.shipper.delivery.transactional``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import logbook
from confluent_kafka import KafkaError, KafkaException

from firebird_cdc.clock import now_us
from firebird_cdc.errors import JournalError, Obstacle
from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.events.topics import missing_topic
from firebird_cdc.journal.folder.disposal import dispose_shipped
from firebird_cdc.journal.folder.subjects import DISK, UNREADABLE, TroubleKind
from firebird_cdc.journal.shipper.delivery.database_queue import (
    MAX_BACKOFF_S,
    DatabaseQueue,
    Halt,
    MissingBlocked,
    Setback,
)
from firebird_cdc.journal.shipper.delivery.redelivery import Redelivery
from firebird_cdc.journal.shipper.delivery.repair import Repairs
from firebird_cdc.journal.shipper.delivery.send import JournalSend, SendContext
from firebird_cdc.journal.shipper.inbox.backlog import Backlog, Entry, Unreadable
from firebird_cdc.journal.shipper.kafka.client import KafkaLink, failure_of, is_refusal
from firebird_cdc.journal.shipper.kafka.offset_topic import UNUSABLE, Offset, runs_of
from firebird_cdc.journal.shipper.monitoring.folder import Waiting
from firebird_cdc.journal.shipper.offset_tracker import OffsetTracker
from firebird_cdc.journal.shipper.repairs import WHOLE, Place

_log = logbook.Logger("firebird_cdc.journal.shipper.delivery.plain")

EVENTS_PER_TURN = 500
"""Changes of one database, sent or filtered out, before answers are looked after."""

OUT_OF_BAND_MESSAGES = 1000
"""Messages beside journals that may wait; older ones are dropped then."""

POSITIONS_S = 1.0
"""Seconds between two writes of the positions without transactions."""

_OUT_OF_BAND_PAUSE_S = 60.0  # after a failure
_FORGIVEN_S = 10.0

_RENEW_S = 0.1  # before a producer that gave up is replaced for the first time
_READ_STEP_S = 0.2
_READ_PAUSE_S = 2.0  # after an attempt while Kafka is away
_READ_MOST_S = 30.0

JOURNALS_IN_FLIGHT = 2000
"""Journals that may await acknowledgement or disposal at a time, over all databases."""

REMIND_S = 60.0
"""Seconds between two reports of a database that stands still."""

_DISPOSE_RETRY_S = 5.0


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


class Delivery(ABC):
    """Queues, their journals' end, and what stops them. Subclasses send.

    ``stopping``: begin no journal any more. ``scans``: full scans done by the owner;
    ``wants_scan``: called when the whole folder should be looked at. ``max_retries``: failures in
    a row until a database stands still, -1: no limit; ``attempt_s``: without any answer for so long
    counts as one. ``events_per_turn``: changes of one database until the next one's turn.
    """

    _recognises_shipped = False
    """Ability to recognise a journal that is left over by a crash as one that Kafka has."""

    def __init__(
        self,
        backlog: Backlog,
        plan: SendContext,
        link: KafkaLink,
        archive: Path | None,
        backoff_s: float,
        offsets: OffsetTracker,
    ) -> None:
        self.backlog = backlog
        self.plan = plan
        self.statistics = plan.statistics
        self.link = link
        self.queues: dict[str, DatabaseQueue] = {}
        self.stopping = False
        self.scans = 0
        self.shipped = 0
        self.max_retries = -1
        self.attempt_s = 120.0
        self.events_per_turn = EVENTS_PER_TURN
        self.should_leave: Callable[[], bool] = lambda: False
        self.offsets = offsets
        self._folder = _identity(backlog.directory)
        self._position_offset = -1
        self._forgiven: dict[str, float] = {}
        self._out_of_band: deque[Message] = deque(maxlen=OUT_OF_BAND_MESSAGES)
        self._out_of_band_unacked = 0
        self._out_of_band_banned_until = 0.0
        self._out_of_band_told: set[str] = set()
        self.late = Redelivery(plan, archive, Repairs(plan), self.is_at_rest, self.place_of)
        self.on_missing: Callable[[str], str] = missing_topic
        self._archive = archive
        self._backoff_s = backoff_s
        self._delivered: list[Entry] = []
        self._told_unreadable: set[str] = set()
        self._dispose_at = 0.0
        self._dispose_trouble = False
        self._acknowledged = 0

    # What the owner asks

    @property
    def unacked(self) -> int:
        """Messages without an answer."""
        return self.plan.unacked + self._out_of_band_unacked

    @property
    def in_flight(self) -> int:
        """Journals that are begun and not disposed of."""
        begun = sum(len(queue.sends) for queue in self.queues.values())
        return begun + len(self._delivered) + (self.late.send is not None)

    def waiting(self) -> dict[str, Waiting]:
        """Return the journals that wait of each database; for any thread."""
        # Before Kafka has said how far each database is, there are no queues.
        waiting = {
            path: Waiting(len(backlog), backlog.first_name)
            for path, backlog in list(self.backlog.queues.items())
        }
        for path, queue in list(self.queues.items()):
            waiting[path] = Waiting(queue.pending, queue.first_name)
        for journal in list(self.backlog.unreadable.values()):
            path = journal.database or ""
            known = waiting.get(path, Waiting(0, None))
            waiting[path] = Waiting(known.pending + 1, known.first or journal.name)
        return waiting

    @property
    def can_go_on(self) -> bool:
        """Tell whether anything is left to do that isn't stopped for good."""
        return (
            bool(self._delivered)
            or self.late.can_go_on
            or any(queue.can_go_on for queue in self.queues.values())
        )

    @property
    def progress(self) -> object:
        """Value that differs only once something has come further than it ever was."""
        furthest = [queue.furthest for queue in self.queues.values()]
        return self.shipped, furthest, self.late.progress

    @property
    def wants_scan(self) -> bool:
        """Tell whether a number is missing that a look at the whole folder might find."""
        return any(queue.waits_for_scan for queue in self.queues.values())

    @property
    def next_retry(self) -> float | None:
        """Time (monotonic) at which the next paused database tries again."""
        if self._dispose_trouble:
            return self._dispose_at
        return min(
            (queue.retry_at for queue in self.queues.values() if queue.backlog and not queue.halt),
            default=None,
        )

    @abstractmethod
    def step(self) -> bool:
        """Do what can be done without waiting; True if something was."""

    def abandon(self, patience_s: float) -> None:
        """Stop: what is not acknowledged stays in its journal. A last wait for Kafka may take
        PATIENCE_S."""
        del patience_s
        self.offsets.close()
        self.late.start_over()
        for queue in self.queues.values():
            queue.start_over()

    # Queues

    def update_queues(self) -> None:
        """Make queues for databases that have journals now."""
        for database, backlog in self.backlog.queues.items():
            if database not in self.queues:
                queue = DatabaseQueue(database, backlog, self._backoff_s, self.offsets.miss)
                self.queues[database] = queue
                self._place(queue)

    @abstractmethod
    def _place(self, queue: DatabaseQueue) -> None:
        """Tell QUEUE what Kafka is known to have."""

    def is_at_rest(self, database: str) -> bool:
        """Tell whether no journal of DATABASE is under way, and its place is known."""
        queue = self.queues.get(database)
        return self._is_placed and (queue is None or not queue.sends)

    def place_of(self, database: str) -> Place | None:
        """The last place of DATABASE that was shipped, None if nothing says so; at rest."""
        queue = self.queues.get(database)
        places = []
        for known in (self.offsets.known.get(database), None if queue is None else queue.known):
            if known is not None and known.position.folder == self.offsets.folder:
                position = known.position
                pos = WHOLE if position.complete else position.pos
                places.append(Place(*position.number, pos))
        if queue is not None and queue.settled is not None:
            places.append(Place(*queue.settled[0][:2]))
        if (number := self.offsets.remembered(database)) is not None:
            places.append(Place(*number))
        return max(places, default=None)

    @property
    @abstractmethod
    def _is_placed(self) -> bool:
        """Tell whether it is known which journals Kafka has."""

    def _ready(self, queue: DatabaseQueue) -> bool:
        if self.stopping or self._dispose_trouble or self.late.holds(queue.database):
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
            "{database}: shipping paused: {}. {} of its journals wait in {}."
            " Other databases go on. {}",
            queue.halt.reason,
            queue.pending,
            self.backlog.directory,
            queue.halt.advice,
            database=queue.database,
        )

    def remind(self) -> None:
        """Report databases again that stand still or whose journal is refused."""
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
                    queue.backlog.push(halt.entry)
            queue.halt = None
            self.statistics.clear(queue.database)
            _log.notice("{database}: the cause is gone, shipping goes on", database=queue.database)

    def try_again(self) -> list[tuple[DatabaseQueue, tuple[int, int]]]:
        """Have databases that stand still, or wait before the next attempt, go on at once.

        Returns them, each with the place of the journal that is in the way.
        """
        tried = []
        for queue in self.queues.values():
            halt = queue.halt
            if halt is not None:
                if halt.entry is not None:
                    queue.backlog.push(halt.entry)
                queue.halt = None
                queue.failures = 0
                self.statistics.clear(queue.database)
                _log.notice("{database}: shipping is tried again", database=queue.database)
                tried.append((queue, halt.place))
            elif queue.setback and (first := queue.first_place) is not None:
                tried.append((queue, first))
            queue.retry_at = 0.0
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
            queue.forgiven = True
            queue.halt = None
            self.statistics.clear(database)
            _log.notice("{}: shipping goes on, as was acknowledged", database)

    def _forgives(self, queue: DatabaseQueue) -> bool:
        """Tell whether somebody has said that QUEUE may send what does not fit."""
        if not queue.forgiven and self._forgiven.get(queue.database, 0.0) > monotonic():
            queue.forgiven = True
        return queue.forgiven

    def _signature(self, entry: Entry) -> tuple[int, ...] | None:
        """Return what differs once the file of ENTRY is another one, or can't be looked at; None:
        it is gone."""
        try:
            status = (self.backlog.directory / entry.name).stat()
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

    def _pass_over(self, queue: DatabaseQueue, entry: Entry) -> None:
        """Go on without ENTRY, the next journal of QUEUE, which somebody has taken away, and
        without what went with it."""

        self.backlog.forget(entry)
        if not queue.fits(entry):
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

    def back_off(self, queue: DatabaseQueue, why: str | Obstacle, send: JournalSend) -> None:
        """Pause QUEUE after a failure of SEND that may pass, loudly the first time; or for good,
        if it was the last attempt that ``errors.max.retries`` allows."""
        pause, path = queue.back_off(), send.path
        if 0 <= self.max_retries < queue.failures:
            self.give_up(queue, f"{path.name} was not delivered: {why}")
            return
        if queue.setback is None:
            _log.error(
                "{database}: {journal} was not delivered: {}; it is sent again until it is, first"
                " in {:.1f} s",
                why,
                pause,
                database=queue.database,
                journal=path.name,
            )
        queue.setback = Setback(send.entry[:2], f"{path.name}: {why}")
        self.statistics.database(queue.database).retries += 1
        needs_somebody = isinstance(why, Obstacle) and why.needs_somebody
        kind: TroubleKind = "halted" if needs_somebody else "waiting"
        self.statistics.trouble(queue.database, kind, queue.setback.why)

    def _why(self, failed: JournalSend) -> str:
        """Return the reason why a message of FAILED was not taken, as a text for messages."""
        error, topic = failed.failed, failed.failed_topic
        assert error is not None
        text = f"topic {topic}: {error.str()}"
        return f"{text}; {self.on_missing(topic)}" if is_missing(error) else text

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
        if self.max_retries < 0:
            return False
        return monotonic() - self.link.progress_at > self.attempt_s * (self.max_retries + 1)

    # What can't be sent

    def take_bad(self, queue: DatabaseQueue, send: JournalSend, error: Exception) -> None:
        """Deal with a journal or event of QUEUE that can't be read or sent, as the mode says."""
        if isinstance(error, FileNotFoundError) and self._is_same_folder:
            queue.drop(send)
            self._pass_over(queue, send.entry)
        elif isinstance(error, OSError):
            queue.start_over()
            pause = queue.back_off()
            _log.error("{}: can't be read: {}; next attempt in {:.1f} s", send.path, error, pause)
        elif self.plan.failure_mode == "fail":
            place = f" {error.where}:" if isinstance(error, BadEvent) else ""
            where = "" if isinstance(error, JournalError) else f"{send.path}:{place} "
            signature = self._signature(send.entry)
            queue.drop(send, comes_again=True)
            what = error.told if isinstance(error, BadEvent) else str(error)
            self.halt(queue, Halt(send.entry[:2], send.entry, f"{where}{what}", signature))
        elif isinstance(error, BadEvent):
            send.report_left_out(error)
            queue.leave_out(send.entry, error.pos, str(error))
            queue.start_over()
        else:
            self._take_damaged(queue, send, str(error))

    @abstractmethod
    def _take_damaged(self, queue: DatabaseQueue, send: JournalSend, reason: str) -> None:
        """SEND can't be read any further, and is to be set aside."""

    def take_unreadable(self) -> None:
        """Deal with the journals whose place in the order can't be told."""
        for journal in self.backlog.recheck_unreadable():
            path = self.backlog.directory / journal.name
            if self.plan.failure_mode != "fail":
                self._quarantine(path, None, journal.database, journal.reason)
                self.backlog.unreadable.pop(journal.name, None)
            elif journal.name not in self._told_unreadable:
                self._told_unreadable.add(journal.name)
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
    ) -> None:
        """Set a journal aside of which nothing behind event AFTER was sent."""
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
        else:
            if entry is not None and database is not None:
                self.offsets.pass_over(database, entry[:2])

    # What is sent beside journals

    def produce_out_of_band(self, message: Message) -> None:
        """Send MESSAGE, which is no event: a heartbeat. Once at most, and lost if that fails.

        In transactions it goes out with the next one, for which it is reason enough.
        """
        if self._out_of_band_banned_until <= monotonic():
            self._out_of_band.append(message)

    def _send_out_of_band(self) -> int:
        """Hand over what is to be sent beside journals; how many messages."""
        taken = 0
        while self._out_of_band and self._out_of_band_unacked < OUT_OF_BAND_MESSAGES:
            message = self._out_of_band.popleft()
            try:
                self.link.producer.produce(
                    message.topic,
                    message.value,
                    message.key,
                    headers=message.headers,
                    on_delivery=self._take_out_of_band_answer,
                )
            except BufferError:
                self._out_of_band.appendleft(message)
                break
            self._out_of_band_unacked += 1
            taken += 1
        return taken

    def _take_out_of_band_answer(self, error: KafkaError | None, message: Any) -> None:
        self._out_of_band_unacked -= 1
        topic = message.topic()
        if error is None:
            self.link.note_progress()
            self._out_of_band_told.discard(topic)
            return
        self._out_of_band_banned_until = monotonic() + _OUT_OF_BAND_PAUSE_S
        if topic not in self._out_of_band_told:
            self._out_of_band_told.add(topic)
            _log.error("topic {}: a heartbeat was not delivered: {}", topic, error.str())

    def _produce_record(self, key: bytes, value: bytes | None, position: Offset | None) -> None:
        """Hand over a record of the offset topic, which tells POSITION if it is one. Raises
        BufferError if the producer is full."""
        self.link.producer.produce(
            self.offsets.topic,
            value,
            key,
            partition=0,
            on_delivery=partial(self._take_record_answer, position),
        )
        self._out_of_band_unacked += 1

    def _take_record_answer(
        self, position: Offset | None, error: KafkaError | None, message: Any
    ) -> None:
        self._out_of_band_unacked -= 1
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
            settled: list[JournalSend] = []
            while (send := queue.settle()) is not None:
                self._delivered.append(send.entry)
                settled.append(send)
                if queue.recovers(send):
                    self.statistics.clear(queue.database)
                    _log.notice("{database}: journals are delivered again", database=queue.database)
            if settled:
                self._count(queue, settled)
        return self._dispose()

    def _count(self, queue: DatabaseQueue, settled: Sequence[JournalSend]) -> None:
        """Journals of QUEUE were acknowledged: tell the statistics."""
        statistics = self.statistics.database(queue.database)
        if any(send.has_placeholders for send in settled):
            self.offsets.keep_counts()
        left_out = [place for send in settled if send.left_out for place in send.take_left_out()]
        if left_out:
            self.offsets.leave_out(queue.database, left_out)
        is_whole = self.plan.quarantine.is_whole
        lengths = [send.length for send in settled if is_whole(send.entry.uuid)]
        statistics.transactions += len(lengths)
        statistics.journals_shipped += len(lengths)
        statistics.bytes_shipped += sum(lengths)
        last = next((send.last_event for send in reversed(settled) if send.last_event), None)
        if last is not None:
            statistics.handled(last)

    def _dispose(self) -> bool:
        if not self._delivered or monotonic() < self._dispose_at:
            return False
        folder = self.plan.folder
        whole = self._delivered
        try:
            if self.plan.quarantine.is_busy:
                whole = self.plan.quarantine.keep(whole)
                for database, entry in self.plan.quarantine.take_gone():
                    self.offsets.miss(database, (entry[:2], entry[:2]))
            missing = dispose_shipped(
                [folder + entry.name for entry in whole],
                self._archive,
                in_order=not self._recognises_shipped,
            )
        except OSError as error:
            how = "deleted" if self._archive is None else f"put into {self._archive}"
            self.statistics.trouble(
                DISK, "halted", f"delivered journals can't be {how}: {error}; shipping waits"
            )
            if not self._dispose_trouble:
                _log.error(
                    "delivered journals can't be {}: {}; shipping waits until that works, nothing"
                    " is lost",
                    how,
                    error,
                )
            self._dispose_trouble = True
            self._dispose_at = monotonic() + _DISPOSE_RETRY_S
            return False
        if self._dispose_trouble:
            self.statistics.clear(DISK)
            _log.notice("delivered journals can be disposed of again, shipping goes on")
        self._dispose_trouble = False
        for path in missing:
            _log.warning("{}: delivered, but gone before it could be archived", path)
        for entry in self._delivered:
            self.backlog.forget(entry)
        self.shipped += len(self._delivered)
        self._delivered.clear()
        return True

    def _replace_producer(self) -> None:
        """Go on with a new producer; answers to the old one's messages no longer come."""
        self.link.recreate()
        self.plan.unacked = 0
        self._out_of_band_unacked = 0
        self.offsets.forget()

    def _note_answers(self) -> bool:
        """Tell the link what came; True if something did."""
        if self.plan.acknowledged != self._acknowledged:
            self._acknowledged = self.plan.acknowledged
            self.link.note_progress()
            return True
        return False


class PlainDelivery(Delivery):
    """Sends without transactions; several journals of several databases at a time."""

    _failures_seen = 0
    _read_since: float | None = None
    _next_read = 0.0
    _positions_usable = True
    _next_positions = 0.0
    _renew_at = 0.0
    _renew_pause_s = _RENEW_S

    def step(self) -> bool:
        """Send, take answers, dispose."""
        if self.link.fatal is not None:
            return self._renew()
        moved = self._send_out_of_band() > 0
        if self._is_to_read:
            self._read_positions()
        idle = self.unacked == 0
        failures = self.plan.failures
        for queue in self.queues.values():
            moved = self._advance(queue) or moved
        self._failures_seen = failures
        if self.late.is_busy and not (self.stopping and self.late.send is None):
            moved = self.late.advance(self.link.producer) or moved
        if idle:
            self.link.note_start()
        self.link.poll(0)
        if self._note_answers():
            self._renew_pause_s = _RENEW_S
            moved = True
        elif not moved and self.unacked:
            self.link.note_waiting()
        if self.unacked and self._waits_too_long():
            self._give_up_all()
            return True
        moved = self.settle() or moved
        self._take_acknowledgements()
        self._write_positions()
        return moved

    def abandon(self, patience_s: float) -> None:
        """Stop: tell Kafka where each database stands, and leave the rest."""
        if patience_s and not self.link.away:
            until = monotonic() + patience_s
            if any(queue.settled for queue in self.queues.values()):
                while self._is_to_read and self._next_read <= monotonic() < until:
                    self._read_positions()
            self._next_positions = 0.0
            self._write_positions()
            while self._out_of_band_unacked and monotonic() < until:
                self.link.poll(0.05)
        super().abandon(patience_s)

    @property
    def _is_placed(self) -> bool:
        return not self._is_to_read

    # Positions serve here to notice that a cluster was emptied; nothing else needs them.

    @property
    def _is_to_read(self) -> bool:
        return not self.offsets.is_read and self._positions_usable

    def _read_positions(self) -> None:
        """Read on what Kafka has; journals go out meanwhile."""
        now = monotonic()
        if now < self._next_read:
            return
        if self._read_since is None:
            self._read_since = now
        try:
            if self.offsets.advance(_READ_STEP_S):
                self._read_since = None
                self._position_offset = self.offsets.end - 1
                for queue in self.queues.values():
                    self._place(queue)
            elif now - self._read_since > _READ_MOST_S:
                self._go_without_positions("it can't be read to its end")
        except KafkaException as error:
            if error.args[0].code() in UNUSABLE:
                self._go_without_positions(error.args[0].str())
            else:
                self._read_since = None
                self._next_read = monotonic() + _READ_PAUSE_S

    def _go_without_positions(self, why: str) -> None:
        _log.warning(
            "offset topic {} can't be used: {}. Shipping goes on without it,"
            " but a cluster that has lost journals will not be noticed",
            self.offsets.topic,
            why,
        )
        self._positions_usable = False
        self._read_since = None

    def _place(self, queue: DatabaseQueue) -> None:
        queue.stand(None, self.offsets.passed(queue.database))
        known = self.offsets.known.get(queue.database)
        if known is None:
            return
        position = known.position
        if position.folder == self.offsets.folder:
            queue.done = position.number
        else:
            _log.warning(
                "{}: its last journal in Kafka (sequence {}) came from another journal folder, {}."
                " If that one is still in use, two servers feed the same topics: give each a"
                " kafka.topic.prefix of its own",
                queue.database,
                position.sequence,
                position.place,
            )

    def _write_positions(self) -> None:
        """Let Kafka know, now and then, how far each database has come."""
        now = monotonic()
        if now < self._next_positions or not self.offsets.is_read:
            return
        self._next_positions = now + POSITIONS_S
        for queue in self.queues.values():
            if queue.settled is None or queue.settled[0][:2] <= queue.done:
                continue
            (epoch, sequence, uuid), pos = entry, _ = queue.settled
            position = Offset(
                queue.database, epoch, sequence, uuid, pos, True, now_us(), runs_of([entry]),
                self.offsets.folder, self.offsets.place,
            )  # fmt: skip
            try:
                self._produce_record(*position.record(), position)
            except BufferError:
                return
            queue.done = position.number

    def _look_again(self) -> None:
        self.offsets.forget()
        for queue in self.queues.values():
            queue.done = (-1, -1)

    def _position_taken(self, position: Offset) -> None:
        self.offsets.note(position)

    def _position_failed(self, error: KafkaError) -> None:
        if error.code() in UNUSABLE:
            self.offsets.forget()
            self._go_without_positions(error.str())

    def _advance(self, queue: DatabaseQueue) -> bool:
        """Give QUEUE its turn; True if it moved."""
        if self.plan.failures != self._failures_seen or queue.failing:
            failed = next((send for send in queue.sends if send.failed is not None), None)
            queue.failing = failed is not None
            if failed is not None:
                if queue.unacked:
                    return False
                queue.failing = False
                self._take_failure(queue, failed)
                return True
        moved = False
        budget = self.events_per_turn
        room = JOURNALS_IN_FLIGHT - self.in_flight
        while budget > 0:
            send = queue.sends[-1] if queue.sends else None
            if send is not None and monotonic() < queue.retry_at:
                break
            if send is None or send.read_to_end:
                if room <= 0 or not self._ready(queue):
                    break
                send = queue.begin(self.plan)
                room -= 1
            if queue.careful is not None and queue.careful == send.entry.uuid:
                if send.unacked:
                    break
                budget = 1
            before = send.messages
            try:
                took_all = send.produce(self.link.producer, budget)
            except (BadEvent, JournalError, OSError) as error:
                self.take_bad(queue, send, error)
                return True
            except Obstacle as error:
                # What was sent of the journal stays sent, and the next turn goes on behind it.
                self.back_off(queue, error, send)
                return True
            except KafkaException as error:
                send.refuse(error.args[0])
                return True
            moved = moved or took_all or send.messages > before
            if not took_all or not send.read_to_end:
                break
            # An empty journal costs a turn's time too.
            budget -= send.messages - before + 1
        return moved

    def _take_damaged(self, queue: DatabaseQueue, send: JournalSend, reason: str) -> None:
        del queue  # it goes on with the next one
        send.end_early(reason)  # what was sent of it has to be acknowledged first

    def _take_failure(self, queue: DatabaseQueue, failed: JournalSend) -> None:
        """All of QUEUE's messages are answered, one of them with a refusal or a failure."""
        error = failed.failed
        assert error is not None
        if is_refusal(error) and queue.careful == failed.entry.uuid:
            self.take_bad(queue, failed, BadEvent(failed.place, f"Kafka refuses it: {error.str()}"))
        elif is_refusal(error):
            # A batch shares the fate of one message; sent one by one, the culprit shows itself.
            queue.careful = failed.entry.uuid
            queue.start_over()
        else:
            queue.start_over()
            self.back_off(queue, self._why(failed), failed)

    def _renew(self) -> bool:
        """The producer has given up for good: make a new one, after a pause, and send all again
        that is open. Returns whether that was done."""
        fatal = self.link.fatal
        assert fatal is not None
        now = monotonic()
        if self._renew_at == 0.0:
            self._renew_at = now + self._renew_pause_s
            self._renew_pause_s = min(self._renew_pause_s * 2, MAX_BACKOFF_S)
            self.link.note_away(fatal.str())
        if now < self._renew_at:
            return False
        self._renew_at = 0.0
        _log.info("the Kafka client gave up ({}); going on with a new one", fatal.str())
        for queue in self.queues.values():
            begun = list(queue.sends)
            queue.start_over()
            if begun:
                self.back_off(queue, fatal.str(), begun[0])
        self.late.start_over()
        self._replace_producer()
        return True

    def _give_up_all(self) -> None:
        """Kafka has not answered for too long."""
        for queue in self.queues.values():
            if queue.pending and queue.halt is None:
                queue.failures = self.max_retries + 1
                self.give_up(queue, f"Kafka has not answered for {self.attempt_s:.0f} s each time")
        self.late.start_over()
        self._replace_producer()
        self.link.note_start()
