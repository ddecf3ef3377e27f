"""Sends what was left out of journals in the quarantine, when somebody asks for it (a retry).

A redelivered event keeps its place in the history (``source``), and has a header that says so. It
may come behind newer events; behind one of the same key only where that is asked for.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import logbook

from firebird_cdc.errors import JournalError
from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.headers import HeaderWriter
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.events.render import JournalRenderer
from firebird_cdc.journal.folder.disposal import dispose_shipped
from firebird_cdc.journal.folder.notes import Note
from firebird_cdc.journal.format import (
    DdlChange,
    Gap,
    RowChange,
    SequenceChange,
    alone,
    open_any,
)
from firebird_cdc.journal.shipper.delivery.resend import (
    CHANGES_PER_TURN,
    TURN,
    Outcome,
    RedeliverySend,
    Rendered,
)
from firebird_cdc.journal.shipper.delivery.send import seen_of
from firebird_cdc.journal.shipper.delivery.sending import SendContext
from firebird_cdc.journal.shipper.delivery.tally import counted_as
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.kafka.offset_topic import redelivery_record
from firebird_cdc.journal.shipper.quarantine import refusal
from firebird_cdc.journal.shipper.unsent_values import found_in

_log = logbook.Logger("firebird_cdc.journal.shipper.delivery.retry")

REDELIVERY_HEADER = "__firebird_cdc.late"
"""Header of a redelivered event: JSON with ``set_aside_at`` and ``reason``."""


class LateEvents:
    """The events of a journal in the quarantine that its NOTE says were left out."""

    def __init__(self, plan: SendContext, note: Note) -> None:
        self.note = note
        self.uuid = note.uuid
        self.path = plan.quarantine.folder / f"{note.uuid}.log"
        self.database = ""
        self.reached = 0
        self._plan = plan
        self._looked_to = 0

    def rendered(self) -> Generator[Rendered, None, None]:
        """Yield them in their order. Raises JournalError, OSError or Obstacle."""
        plan, note = self._plan, self.note
        with alone(open_any(self.path, plan.none_charset), plan.none_charset) as reader:
            stamp = reader.stamp
            if stamp is None:
                raise JournalError(self.path, 1024, "it has no stamp")
            entry = Entry(stamp.epoch, stamp.sequence, reader.header.uuid)
            database = self.database = reader.database
            # Without BEGIN and END: those of its transaction were sent, and counted without it.
            renderer = plan.renderer.journal(reader.header, stamp, database, alone=True)
            for passed, change in enumerate(reader.changes(), 1):
                if passed % CHANGES_PER_TURN == 0:
                    yield TURN
                if isinstance(change, SequenceChange):
                    continue
                reason = note.reason_at(change.pos)
                if reason is None:
                    continue
                if isinstance(change, Gap):
                    _log.error(
                        "{}: event {} marks a gap: {}; Kafka gets no message for it",
                        self.path,
                        change.pos,
                        change.reason,
                    )
                    continue
                placed, unsent = renderer.reduced, plan.renderer.rules.unsent.count
                try:
                    messages = renderer.messages(change)
                except BadEvent as error:
                    self._count_unsent(renderer, entry, change)
                    yield Rendered(change.pos, problem=str(error))
                    continue
                if messages:
                    if plan.renderer.rules.unsent.count != unsent:
                        self._count_unsent(renderer, entry, change)
                    seen = seen_of(plan.quarantine, renderer, change, messages)
                    plan.quarantine.see(entry, database, change.pos, seen, is_redelivered=True)
                    writer = plan.renderer.writer.header_writer
                    messages = [_marked(each, note, reason, writer) for each in messages]
                yield Rendered(
                    change.pos,
                    counted_as(change),
                    messages,
                    has_placeholders=renderer.reduced != placed,
                )

    def _count_unsent(
        self, renderer: JournalRenderer, entry: Entry, change: RowChange | DdlChange
    ) -> None:
        """Count CHANGE if it has values that could not be read or decoded and nobody has looked at
        it yet: at what was left out by itself somebody has."""
        rest_after, pos = self.note.rest_after, change.pos
        if rest_after is None or pos <= max(rest_after, self._looked_to):
            return
        self._looked_to = pos
        for kind, fields in renderer.unsent(change).items():
            found = [found_in(change, fields)]
            self._plan.unsent.count_unsent(self.database, kind, entry.uuid, entry[:2], found)

    def record(self) -> tuple[bytes, bytes]:
        """Return key and value of the record that all of them were sent."""
        return redelivery_record(self.database, self.uuid)

    def behind(
        self, reached: int | None, problems: Mapping[int, str], taken: int, broken: str
    ) -> LateEvents:
        """Return those that have PROBLEMS, and all behind event REACHED; None: nothing is.

        TAKEN: the last one that Kafka took; BROKEN: why no more could be read.
        """
        note = self.note
        rest = replace(note, left_out=[], rest_after=None, reasons=list(note.reasons))
        for pos, problem in sorted(problems.items()):
            rest.add(pos, problem)
        if reached is not None:
            rest.left_out += [
                each._replace(first=max(each.first, reached + 1))
                for each in note.left_out
                if each.last > reached
            ]
        if note.rest_after is not None:
            rest.rest_after = None if reached is None else max(note.rest_after, reached)
            rest.rest_reason = broken or note.rest_reason
        if note.newer is None and problems and taken > min(problems):
            rest.newer = f"event {taken} of the same journal, by a retry"
        behind = LateEvents(self._plan, rest)
        behind._looked_to = self._looked_to
        return behind


def _marked(message: Message, note: Note, reason: str, writer: HeaderWriter) -> Message:
    """Return MESSAGE with the header of redelivered events."""
    value = writer.told({"set_aside_at": note.at, "reason": reason})
    return message._replace(headers=[*message.headers, (REDELIVERY_HEADER, value)])


class Retries:
    """The journals in the quarantine that are to be sent, and what becomes of them."""

    title = "retry of {}.log"

    def __init__(self, plan: SendContext, archive: Path | None) -> None:
        self._plan = plan
        self._archive = archive
        self._drafts: set[UUID] = set()
        self._sent: set[UUID] = set()
        self._gone: set[UUID] = set()

    def waits(self, uuid: UUID) -> bool:
        """Tell whether a crash left the journal in both places: first it ends in the folder."""
        return self._plan.quarantine.is_draft(uuid)

    def held_for(self, uuid: UUID) -> str | None:
        """Return the database of a journal of which a table had no topic.

        Now that it may have one, its events are to come in their order.
        """
        try:
            note = self._plan.quarantine.find(uuid)
        except (OSError, ValueError):
            return None
        if note is None or not note.nameless or self._plan.quarantine.is_draft(uuid):
            return None
        return note.database

    def begin(self, uuid: UUID, *, is_forced: bool) -> RedeliverySend | Outcome | None:
        """Return the sending of what was left out of a journal, or why not, or None: not yet."""
        if self.waits(uuid):
            self._drafts.add(uuid)
            return None
        was_draft = uuid in self._drafts
        self._drafts.discard(uuid)
        quarantine = self._plan.quarantine
        if uuid in self._sent:
            self.note_sent(uuid)
        if uuid in self._sent or uuid in self._gone:
            return Outcome(True, "its events were redelivered before")
        try:
            note = quarantine.find(uuid)
        except (OSError, ValueError) as error:
            return Outcome(False, f"its note can't be read: {error}")
        if note is None and was_draft:
            return Outcome(True, "all of it was sent, with its journal")
        why = refusal(note, uuid, quarantine.folder, is_forced=is_forced)
        if note is None or why is not None:
            return Outcome(False, f"refused: {why}")
        return RedeliverySend(self._plan, LateEvents(self._plan, note))

    def finish(self, send: RedeliverySend, *, is_aborted: bool) -> tuple[bool, Outcome]:
        """Let the journal of SEND go, of which everything is answered, or note what is left of it.

        ``is_aborted``: nothing of it becomes visible. Returns whether the journal is gone, and what
        became of it.
        """
        assert isinstance(send.events, LateEvents)
        is_gone = False
        quarantine = self._plan.quarantine
        sent = 0 if is_aborted else send.sent
        text = f"{sent} event{'' if sent == 1 else 's'} redelivered"
        try:
            quarantine.flush()
            if send.is_sent and not is_aborted:
                self._sent.add(send.events.uuid)
                self.let_go(send.events.note)
                self._sent.discard(send.events.uuid)
                is_gone = True
                outcome = Outcome(True, text)
            else:
                if sent:
                    rest = send.rest()
                    assert isinstance(rest, LateEvents)
                    quarantine.update(rest.note)
                outcome = Outcome(False, f"{text}, the rest stays: {send.trouble}")
        except OSError as error:
            outcome = Outcome(False, f"{text}, which could not be noted: {error}")
        return is_gone, outcome

    def note_sent(self, uuid: UUID) -> bool:
        """Let a journal go of which Kafka has what was left out; False if that can't be done now:
        it is remembered until then."""
        try:
            note = self._plan.quarantine.find(uuid)
            if note is not None:
                self.let_go(note)
                self._gone.add(uuid)
                _log.notice("retry of {}.log: Kafka has its redelivered events already", uuid)
        except (OSError, ValueError) as error:
            _log.error("{}.log: sent, but can't be removed from the quarantine: {}", uuid, error)
            self._sent.add(uuid)
            return False
        self._sent.discard(uuid)
        return True

    def let_go(self, note: Note) -> None:
        """Remove a journal of which Kafka has all from the quarantine. Raises OSError."""
        self._plan.unsent.write_counts()
        quarantine = self._plan.quarantine
        journal = quarantine.folder / f"{note.uuid}.log"
        # One of which only single events were left out went to the archive at that time, and one
        # that shares a journal goes there with it.
        is_to_keep = note.is_moved and note.home is None
        dispose_shipped([journal], self._archive if is_to_keep else None)
        quarantine.remove(note.uuid)
