"""One database's way to Kafka: its journals strictly in order, and what stops it.

A queue takes journals from its queue by (epoch, sequence). It stops at a journal that can't be
shipped (``halt``), waits after a failure (``backoff``) and notices missing numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from uuid import UUID

import logbook

from firebird_cdc.clock import now_us
from firebird_cdc.journal.shipper.delivery.backoff import Backoff
from firebird_cdc.journal.shipper.delivery.between import NO_ROWS, BetweenJournals
from firebird_cdc.journal.shipper.delivery.send import JournalSend
from firebird_cdc.journal.shipper.delivery.sending import Send, SendContext
from firebird_cdc.journal.shipper.inbox.queue import Entry, Queue
from firebird_cdc.journal.shipper.kafka.offset_topic import Known, Offset, runs_of
from firebird_cdc.journal.shipper.shared_offsets import SharedOffsets

_log = logbook.Logger("firebird_cdc.journal.shipper.delivery.database_queue")

HOLE_WAIT_S = 1.0
"""Time for a missing number to come. Renames come in order, so normally none is missing."""


@dataclass(frozen=True, slots=True)
class Halt:
    """Reason why a queue is paused, and the place.

    ``place``: epoch and sequence from which on nothing is sent. ``entry``: the journal that
    is at fault, None if the fault is that one is missing. ``signature``: its file as it was.
    ``advice``: what to do about it; ``acknowledgeable``: or somebody says that it is all right.
    ``stays``: nothing that happens in the folder ends it.
    """

    place: tuple[int, int]
    entry: Entry | None
    reason: str
    signature: tuple[int, ...] | None
    advice: str = (
        "Repair or move that journal away, or set event.processing.failure.handling.mode to warn"
        " or skip, and shipping resumes automatically (after a change of the option: restart the"
        " shipper)"
    )
    acknowledgeable: bool = False
    stays: bool = False


@dataclass(frozen=True, slots=True)
class Setback:
    """A journal that was not delivered, of epoch and sequence ``place``; of one that attempts go
    on with, ``why``. ``signature``: its file as it was before the attempt under way, as somebody
    may still be writing to it."""

    place: tuple[int, int]
    why: str = ""
    signature: tuple[int, ...] | None = None


Missed = Callable[[str, tuple[tuple[int, int], tuple[int, int]]], None]
"""Takes note that journals of a database are not there: its path, and the first and the last of
them by epoch and sequence."""


@dataclass(slots=True)
class _Hole:
    missing: int
    since: float
    scans: int
    told: bool = False


@dataclass(slots=True)
class QueueOffset:
    """Progress of a database in Kafka.

    ``known``: what the offset topic says, None if nothing; ``done``: up to which number all
    journals are in Kafka by that; ``passed``: up to where those that are not were told.
    ``is_foreign``: it is said of another journal folder. ``is_forgiven``: journals that don't fit
    that may be sent nevertheless. ``shared``: how far shared journals are delivered.
    """

    known: Known | None = None
    passed: tuple[int, int] | None = None
    is_foreign: bool = False
    is_forgiven: bool = False
    done: tuple[int, int] = (-1, -1)
    shared: SharedOffsets = field(default_factory=SharedOffsets)

    def is_continued_by(self, entry: Entry) -> bool:
        """Tell whether ENTRY continues what Kafka has."""
        if entry[:2] <= self.done:
            return False
        if self.known is None:
            return True
        position = self.known.position
        return position.complete or entry[:2] != position.number or entry.uuid == position.uuid


class DatabaseQueue:
    """The journals of one database on their way.

    ``sends``: begun and not yet disposed of, in order. ``halt``: set while it is paused.
    ``failing``: one of its messages failed, the answers to the others are awaited.
    ``setback``: the journal that was not delivered when it should, until it or a later one is.
    ``one_at_a_time``: the journal that is sent one message at a time.
    ``settled``: the newest journal that was settled, and its last event. ``failures``: attempts
    that failed since then. ``rows``: of a snapshot that have their place between journals.
    """

    def __init__(self, database: str, backlog: Queue, backoff_s: float, on_missing: Missed) -> None:
        self.database = database
        self.backlog = backlog
        self.sends: deque[Send] = deque()
        self.halt: Halt | None = None
        self.backoff = Backoff(backoff_s)
        self.one_at_a_time: UUID | None = None
        self.setback: Setback | None = None
        self.failing = False
        self.offset = QueueOffset()
        self.settled: tuple[Entry, int] | None = None
        self.rows: BetweenJournals = NO_ROWS
        self.failures = 0
        self._skipped: dict[UUID, dict[int, str]] = {}
        self._resume_after: dict[UUID, int] = {}
        self._former: dict[UUID, Send] = {}  # the last attempts at journals that come again
        self._previous: tuple[int, int] | None = None  # number of the newest that was begun
        # The epoch that consumers know of, None if nobody can tell.
        self._epoch: int | None = None
        self._furthest: tuple[UUID | None, int] = (None, 0)
        self._hole: _Hole | None = None
        self._on_missing = on_missing

    @property
    def has_begun(self) -> bool:
        """Tell whether a journal of it is on its way, or was settled."""
        return bool(self.sends) or self.settled is not None

    @property
    def unacked(self) -> int:
        """Messages of this queue that Kafka has not answered."""
        return sum(send.unacked for send in self.sends)

    @property
    def pending(self) -> int:
        """Journals that Kafka does not have: those that wait, the one that is in the way, and
        those under way."""
        halt = self.halt
        stopped = halt is not None and halt.entry is not None
        return len(self.backlog) + len(self.sends) + stopped

    @property
    def first_place(self) -> tuple[int, int] | None:
        """Epoch and sequence of the first journal that is not shipped yet."""
        if self.sends:
            return self.sends[0].entry[:2]
        return self.backlog.first()[:2] if self.backlog else None

    @property
    def first(self) -> Entry | None:
        """The journal that was committed first; for any thread."""
        with suppress(IndexError):
            return self.sends[0].entry
        halt = self.halt
        if halt is not None and halt.entry is not None:
            return halt.entry
        return self.backlog.first_or_none

    @property
    def furthest(self) -> tuple[UUID | None, int]:
        """The first journal under way, and how far the best attempt at it has come so far."""
        if self.sends:
            first = self.sends[0]
            reached = first.entry.uuid, first.progress
            if reached[0] != self._furthest[0] or reached[1] > self._furthest[1]:
                self._furthest = reached
        return self._furthest

    @property
    def can_go_on(self) -> bool:
        """Tell whether journals are on their way, or wait before the place where the queue stands
        still."""
        return bool(self.sends) or (bool(self.backlog) and not self._stands_before_next)

    @property
    def _stands_before_next(self) -> bool:
        """Tell whether the queue is paused before the first journal of its queue."""
        return self.halt is not None and self.backlog.first()[:2] >= self.halt.place

    def ready(self, scans: int, suspects: int, young: bool) -> bool:
        """Tell whether the next journal may be begun.

        SCANS: how many full scans of the folder are done; SUSPECTS: unreadable journals that
        may belong to this database; YOUNG: there are some that may just be unfinished, and have
        to be one or the other first. Raises ``MissingBlocked`` if one of them may be the one
        that is missing here.
        """
        if not self.backlog or self._stands_before_next or not self.backoff.is_over:
            return False
        if self.one_at_a_time is not None and self.sends:
            return False
        entry, previous = self.backlog.first(), self._previous
        if self.rows.stops(entry):
            return False
        if previous is None:
            if entry.sequence == 1:
                return True
            if suspects:
                raise MissingBlocked(entry.sequence - 1)
            return not young
        epoch, last = previous
        missing = last + 1 if entry.epoch == epoch else 1
        passed = self.offset.passed
        if passed is not None and passed[0] == entry.epoch:
            missing = max(missing, passed[1] + 1)
        if entry[:2] <= previous or entry.sequence <= missing:
            self._hole = None
            return True
        return self._past_hole(missing, entry, scans, suspects, young)

    def _past_hole(
        self, missing: int, entry: Entry, scans: int, suspects: int, young: bool
    ) -> bool:
        """Tell whether the wait for journal MISSING, which comes before ENTRY, is over."""
        hole = self._hole
        if hole is None or hole.missing != missing:
            self._hole = _Hole(missing, monotonic(), scans)
            return False
        if hole.told:
            return True
        # A scan that began after the hole was seen must have found the journal if it is there.
        if monotonic() - hole.since < HOLE_WAIT_S or scans < hole.scans + 2:
            return False
        if suspects:
            raise MissingBlocked(missing)
        if young:
            return False
        last = entry.sequence - 1
        _log.warning(
            "{database}: {} missing before journal {journal} (sequence {sequence}); shipping goes"
            " on. Look for it in .firebird-cdc/quarantine and in the archive; if it is lost, its"
            " events are. Once you know, run: firebird-cdc journal acknowledge",
            f"journal {missing} is" if missing == last else f"journals {missing} to {last} are",
            database=self.database,
            journal=entry.name,
            sequence=entry.sequence,
        )
        self._on_missing(self.database, ((entry.epoch, missing), (entry.epoch, last)))
        hole.told = True
        return True

    @property
    def waits_for_scan(self) -> bool:
        """Tell whether a missing number asks for a look at the whole folder."""
        return self._hole is not None and not self._hole.told

    def goes_on(self) -> bool:
        """Tell whether the next journal directly follows one just begun, so that ``ready`` holds
        and it continues what Kafka has; a check at little cost. False says nothing."""
        previous, backlog = self._previous, self.backlog
        if (
            not backlog
            or previous is None
            or self.halt is not None
            or self.one_at_a_time is not None
        ):
            return False
        if self.offset.is_foreign:  # what Kafka has may be ahead
            return False
        if backlog.first()[:2] != (previous[0], previous[1] + 1) or self.rows.are_near:
            return False
        return self.offset.known is None or self.offset.known.position.complete

    def begin(self, plan: SendContext) -> JournalSend:
        """Begin the next journal; ``ready`` must have said yes."""
        entry = self.backlog.pop()
        uuid = entry.uuid
        # All nearly always empty, and hashing a uuid takes its time.
        resume_after = self._resume_after.get(uuid, 0) if self._resume_after else 0
        former = self._former.get(uuid) if self._former else None
        if former is not None and former.sent_to == resume_after:
            former.tell()  # Kafka turned out to have that, so it is not sent again
        send = JournalSend(
            plan,
            entry,
            self.database,
            skipped=self._skipped.get(uuid) if self._skipped else None,
            resume_after=resume_after,
            left_out_tables=self.rows.left_out_of(entry),
            counted=former.told if former is not None else 0,
            opens_epoch=resume_after == 0 and self._opens_epoch(entry),
        )
        self.start(send)
        return send

    def start(self, send: Send) -> None:
        """SEND, of what came next, is under way from now on."""
        self._hole = None
        self.go_past(send.entry[:2])
        self.sends.append(send)

    def following(self, limit: int) -> Sequence[Entry]:
        """Return transactions of shared journals that come next, LIMIT at most, which may be begun
        one after the other once ``ready`` has said yes to the first: nothing is remembered of any
        of them, no number is missing between them, and none is to be sent with care."""
        is_remembered = self._skipped or self._resume_after or self._former
        if (
            is_remembered
            or self.halt
            or self.setback
            or self.one_at_a_time
            or self.offset.is_foreign
        ):
            return ()
        entries = self.backlog.peek(limit)
        if not entries or self._opens_epoch(entries[0]):
            return ()
        rows = self.rows if self.rows.are_near else None
        epoch, first = entries[0][:2]
        for number, entry in enumerate(entries, first):
            is_next = entry[:2] == (epoch, number)
            if not is_next or (rows and (rows.stops(entry) or rows.left_out_of(entry))):
                return entries[: number - first]
        return entries

    def _opens_epoch(self, entry: Entry) -> bool:
        """Tell whether ENTRY is the first of an epoch that begins with a restore: by its number,
        or, where that journal was lost, as none of the epoch is before it."""
        if entry.epoch == 0:
            return False
        if entry.sequence == 1:
            return True
        if self._epoch is None or entry.epoch <= self._epoch:
            return False
        return not any(send.opens_epoch and send.entry.epoch >= entry.epoch for send in self.sends)

    def take_gone(self, entry: Entry, is_gone: Callable[[Entry], bool]) -> list[Entry]:
        """Take the journals out that come right behind ENTRY and are gone like it; none is missing
        then."""
        gone: list[Entry] = []
        last = entry
        while self.backlog:
            following = self.backlog.first()
            if following[:2] != (last.epoch, last.sequence + 1) or not is_gone(following):
                break
            last = self.backlog.pop()
            gone.append(last)
        self.go_past(last[:2])
        return gone

    def go_past(self, number: tuple[int, int]) -> None:
        """Miss nothing up to NUMBER (epoch, sequence)."""
        if self._previous is None or number > self._previous:
            self._previous = number

    def leave_out(self, entry: Entry, pos: int, reason: str) -> None:
        """Event POS of ENTRY is not to be sent when the journal is begun again."""
        self._skipped.setdefault(entry.uuid, {})[pos] = reason

    def resume_after(self, entry: Entry, pos: int) -> None:
        """Events up to POS of ENTRY are delivered for good."""
        self._resume_after[entry.uuid] = pos

    # Where Kafka is

    def stand(
        self,
        known: Known | None,
        passed: tuple[int, int] | None = None,
        *,
        is_foreign: bool = False,
        shared: SharedOffsets | None = None,
    ) -> None:
        """Go on from what the offset topic says now; no journal may be under way.

        ``passed``: up to where journals that are not in Kafka were told. ``is_foreign``: KNOWN is
        of another journal folder. ``shared``: how far shared journals are delivered, where it is
        not KNOWN that says so.
        """
        if shared is None:
            is_ours = known is not None and not is_foreign
            shared = self.offset.shared.anew(known.position.shared if known and is_ours else {})
        offset = QueueOffset(known, passed, is_foreign, self.offset.is_forgiven, shared=shared)
        self.offset = offset
        self._resume_after.clear()  # the beginning of a journal may be lost with its cluster
        if known is None:
            return
        position = known.position
        self._note(position)
        self._epoch = position.epoch
        if is_foreign:
            return  # nothing follows from its numbers for what is missing here
        self.go_past(position.whole)

    def _note(self, position: Offset) -> None:
        self.offset.done = position.whole
        if not position.complete:
            self._resume_after[position.uuid] = position.pos

    def reached(self, folder: str, place: str, holds: Callable[[UUID], bool]) -> Offset | None:
        """Return the position of this database after the commit of the open Kafka transaction.

        None: as now. All journals under way are part of it; FOLDER and PLACE say where they are,
        HOLDS whether a shared journal is still there.
        """
        sends = list(self.sends)
        if sends and not sends[-1].read_to_end and not sends[-1].sent_to:
            sends.pop()  # begun, and nothing of it sent yet
        if not sends:
            return None
        last = sends[-1]
        complete = last.read_to_end
        whole = [send.entry for send in sends if send.read_to_end]
        epoch, sequence, uuid = last.entry[:3]
        until = (epoch, sequence if complete else sequence - 1)
        return Offset(
            self.database, epoch, sequence, uuid, last.sent_to, complete, now_us(),
            runs_of(whole), folder, place, self.offset.shared.after(whole, until, holds),
        )  # fmt: skip

    def advance(self, position: Offset) -> None:
        """POSITION is committed."""
        offset = self.offset
        if offset.known is None:
            offset.known = Known(position)
        offset.known.position = position
        offset.known.names.add(position.runs)
        offset.is_foreign = offset.is_forgiven = False
        offset.shared.advance(position.shared, position.whole)
        self._epoch = max(position.epoch, self._epoch or 0)
        self._note(position)

    def settle(self) -> Sequence[Send]:
        """Take those sends out from the first one on of which all is acknowledged."""
        sends, settled = self.sends, []
        while sends and sends[0].delivered:
            send = sends.popleft()
            settled.append(send)
            self.finish(send)
        if settled:
            last = max(settled, key=_number)
            self._epoch = max(last.entry.epoch, self._epoch or 0)
            if self.settled is None or last.entry[:2] > self.settled[0][:2]:
                self.settled = last.entry, last.pos
            self.offset.shared.note([send.entry for send in settled])
            self.failures = 0
            self.backoff.succeed()
        return settled

    @property
    def must_come_first(self) -> bool:
        """Tell whether the next journal was not delivered when it should, and others are ahead: in
        one Kafka transaction it would hold them up again."""
        setback = self.setback
        if setback is None or not self.sends or not self.backlog:
            return False
        return self.backlog.first()[:2] == setback.place

    def recovers(self, entry: Entry) -> bool:
        """Tell whether ENTRY, which is delivered or no more to be, ends what the queue met: those
        before the journal in question were under way and say nothing, nor do any while it is
        paused."""
        setback = self.setback
        if setback is None or self.halt is not None or entry[:2] < setback.place:
            return False
        self.setback = None
        return True

    def drop(self, send: Send, *, comes_again: bool = False) -> None:
        """SEND ends here without being delivered: quarantined, gone, or to be mended first."""
        send.close()
        # So the next one does, unless Kafka has a part of this one, and with it that message.
        if send.opens_epoch and not self._resume_after.get(send.entry.uuid):
            self._epoch = send.entry.epoch - 1
        self.sends.remove(send)
        self.finish(send)
        if comes_again:
            self._former[send.entry.uuid] = send

    def count(self) -> None:
        """Count what is acknowledged of all journals under way: it is committed."""
        for send in self.sends:
            send.tell()

    def take_known(self, entry: Entry) -> Send | None:
        """Take ENTRY, the next journal, out: Kafka turned out to have it. Returns the send of
        this shipper that it was on, of which nothing is counted yet."""
        self.go_past(self.backlog.pop()[:2])
        former = self._former.pop(entry.uuid, None)
        if former is None or not former.delivered:
            return None
        former.tell()
        return former

    def finish(self, send: Send) -> None:
        """Forget what was remembered for SEND, all of which Kafka has."""
        uuid = send.entry.uuid
        for remembered in (self._skipped, self._resume_after, self._former):
            if remembered:
                remembered.pop(uuid, None)
        if self.one_at_a_time is not None and self.one_at_a_time == uuid:
            self.one_at_a_time = None

    def start_over(self) -> None:
        """Put all journals on their way back into the queue."""
        for send in self.sends:
            send.close()
            self._former[send.entry.uuid] = send
            self.backlog.push(send.entry)
        self.sends.clear()

    def back_off(self) -> float:
        """Pause before the next attempt, longer each time; returns the seconds."""
        self.failures += 1
        return self.backoff.fail()


def _number(send: Send) -> tuple[int, int]:
    return send.entry[:2]


class MissingBlocked(Exception):
    """A number is missing, and a journal that can't be read may be the one."""

    def __init__(self, missing: int) -> None:
        super().__init__(missing)
        self.missing = missing
