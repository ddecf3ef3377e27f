"""The sending of transactions: what all sends share, and what each can tell of itself."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Protocol

import logbook
from confluent_kafka import KafkaError

from firebird_cdc.journal.events.bad_event import OUT_OF_BAND, BadEvent, NamelessEvent
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.format import RowChange
from firebird_cdc.journal.shipper.inbox.opening import JournalOpener
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.kafka.client import Sender, failure_of
from firebird_cdc.journal.shipper.monitoring.statistics import LastEvent, Statistics
from firebird_cdc.journal.shipper.nameless import REMEDY
from firebird_cdc.journal.shipper.quarantine import Quarantine
from firebird_cdc.journal.shipper.unsent_values import NoCounter, UnsentCounter

_log = logbook.Logger("firebird_cdc.journal.shipper.delivery.sending")


FailureOf = Callable[[KafkaError | None, Any], KafkaError | None]


RESTORED, MARKED = "restored", "marked gap"
"""Kinds of losses: another database took the place of the former one; changes that were committed
are in no journal."""


def _unheard(database: str, kind: str, place: tuple[int, ...]) -> None:
    pass


class SignalWatch(Protocol):
    """Watch on the signal table of one database, TABLE."""

    table: str

    def saw(self, change: RowChange, number: tuple[int, int]) -> None:
        """CHANGE, of some table, is in the journal with NUMBER."""


class SendContext:
    """State that all journals share: how they are read and rendered, and what a bad event means.

    ``failure_mode``: as ``event.processing.failure.handling.mode``. ``acknowledged`` counts
    the messages that Kafka took, ``failures`` those it did not, ``unacked`` those without an
    answer yet: all over all sends, ended ones included. ``statistics``: what is told outside.
    ``folder``: the directory's path, to put a name behind; ``journals``: opens what is in it.
    ``acks``: whether brokers answer at all. ``counts_at_once``: what is acknowledged counts,
    before any commit of a Kafka transaction. ``syncs``: what is done has to outlast a power cut.
    ``failure_of``: tells because of what a message may
    not be in Kafka, of the client's report of it; None: it is there.
    ``nameless``: databases and tables without names of which the log has told. ``signals``: by
    database, who hears of the rows of its signal table. ``on_loss``: hears of changes that no
    message tells of: database, kind (RESTORED, MARKED), and place, which grows. ``unsent``: counts
    events with placeholders for what could not be read or decoded; ``undecoded``: by database, the
    tables and columns of which the log has told that.
    """

    def __init__(
        self,
        directory: Path,
        renderer: Renderer,
        none_charset: str,
        failure_mode: str,
        statistics: Statistics,
        *,
        acks: bool = True,
        counts_at_once: bool = True,
        syncs: bool = True,
    ) -> None:
        self.directory = directory
        self.folder = f"{directory}{os.sep}"
        self.renderer = renderer
        self.none_charset = none_charset
        self.journals = JournalOpener(directory, none_charset)
        self.failure_mode = failure_mode
        self.statistics = statistics
        self.quarantine = Quarantine(directory)
        self.acknowledged = 0
        self.failures = 0
        self.unacked = 0
        self.counts_at_once = counts_at_once
        self.syncs = syncs
        self.nameless: set[tuple[str, str]] = set()
        self.signals: Mapping[str, SignalWatch] = {}
        self.on_loss: Callable[[str, str, tuple[int, ...]], object] = _unheard
        self.unsent: UnsentCounter = NoCounter()
        self.undecoded: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
        self.failure_of: FailureOf = failure_of if acks else lambda error, _: error


class Send(ABC):
    """The sending of one transaction, ENTRY of DATABASE.

    ``read_to_end``: nothing of it is left to be handed over. ``messages``: how many were.
    ``failed``: the first refusal, of a message to ``failed_topic``. ``pos``: the change that was
    sent last; ``place``: the same, or one of OUT_OF_BAND. ``opens_epoch``: a message that announces
    its epoch goes before its events. ``resume_after``: the event behind which it began.
    ``left_out``: which of OUT_OF_BAND could not be sent.
    """

    entry: Entry
    database: str
    failed: KafkaError | None = None
    failed_topic = ""
    read_to_end = False
    messages = 0
    pos = 0
    place = 0
    opens_epoch = False
    resume_after = 0
    left_out: AbstractSet[int] = frozenset()
    _is_closed = False

    def __init__(self, plan: SendContext, entry: Entry, database: str) -> None:
        self._plan = plan
        self.entry = entry
        self.database = database

    @property
    def path(self) -> Path:
        """The journal's file."""
        return self._plan.directory / self.entry.name

    @property
    @abstractmethod
    def sent_to(self) -> int:
        """The last change of which all messages were handed over."""

    @property
    @abstractmethod
    def unacked(self) -> int:
        """Messages that were handed over and are not answered yet."""

    @property
    @abstractmethod
    def delivered(self) -> bool:
        """Tell whether Kafka has acknowledged every message of the journal."""

    @property
    @abstractmethod
    def progress(self) -> int:
        """Number that grows as changes are read and messages answered."""

    @property
    @abstractmethod
    def told(self) -> int:
        """Up to which change the statistics have counted it."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Its bytes, once it is read."""

    @property
    @abstractmethod
    def last_event(self) -> LastEvent | None:
        """Its last event, once it is read."""

    @property
    @abstractmethod
    def has_placeholders(self) -> bool:
        """Tell whether some were handed over."""

    @abstractmethod
    def produce(self, producer: Sender, limit: int) -> bool:
        """Hand over the messages of the next LIMIT changes, or of those that there is room for in
        its part of a Kafka transaction; False if the queue is full.

        Raises BadEvent, JournalTorn, JournalCorrupt or OSError at what can't be read or sent,
        KafkaException if the producer refuses a message on the spot or can't be used any more;
        Obstacle, after which the next call goes on with the same change.
        """

    @abstractmethod
    def tell(self) -> None:
        """Give the statistics what is acknowledged and will stay."""

    def close(self) -> None:
        """Send no more: what is answered later counts in the next attempt, if there is one."""
        self._is_closed = True

    def end_early(self, reason: str) -> None:
        """Send no more of the journal; what was not sent waits in the quarantine for a retry."""
        self._plan.quarantine.leave_rest(self.entry, self.database, self.pos, reason)
        self.read_to_end = True

    def refuse(self, error: KafkaError, topic: str | None = None) -> None:
        """Note that a message was refused; without TOPIC: the one to be handed over next."""
        self._plan.failures += 1
        self._plan.statistics.database(self.database).send_failures += 1
        if self.failed is None:
            self.failed = error
            if topic is not None:
                self.failed_topic = topic

    def take_left_out(self) -> list[int]:
        """Return ``left_out``, and empty it: it counts once."""
        if not self.left_out:
            return []
        taken = [place for place in OUT_OF_BAND if place in self.left_out]
        self.left_out = frozenset()
        return taken

    def report_left_out(self, error: BadEvent) -> None:
        """Log that an event is not sent, if the mode asks for that.

        What is in no note of the quarantine is told in any mode, and so is a table without names,
        but once.
        """
        if isinstance(error, NamelessEvent):
            table = self.database, error.table
            if table not in self._plan.nameless:
                self._plan.nameless.add(table)
                _log.error(
                    "{}. The table's events are QUARANTINED from {} on, all other tables go on. {}",
                    error,
                    self.path,
                    REMEDY,
                )
            return
        if self._plan.failure_mode == "warn" or error.pos in OUT_OF_BAND:
            _log.warning("{}: {} is left out: {}", self.path, error.where, error.told)
