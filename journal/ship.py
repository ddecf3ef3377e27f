"""The shipper: takes committed journals to Kafka, and stays up whatever happens there.

One thread does everything; watchdog's thread only names what appears, and librdkafka's threads
send. A journal is disposed of in one place (``journal.dispose``), and only once every message
of it is acknowledged.
"""

from __future__ import annotations

from functools import partial
from time import monotonic

import logbook

from firebird_cdc.bridge.recovery import Recovery
from firebird_cdc.config import ConnectorConfig
from firebird_cdc.journal.backlog import Backlog
from firebird_cdc.journal.chores import ChoreList, build_chores
from firebird_cdc.journal.delivery import REMIND_S, Delivery, PlainDelivery
from firebird_cdc.journal.flight import FlightPlan
from firebird_cdc.journal.lock import STATE_DIRECTORY, ShipperLock, bridge_present
from firebird_cdc.journal.producer import KafkaLink, max_message_bytes
from firebird_cdc.journal.render import Renderer
from firebird_cdc.journal.shipped import folder_identity
from firebird_cdc.journal.statistics import DISK, Statistics
from firebird_cdc.journal.topic_creation import TopicMaker
from firebird_cdc.journal.transactions import TransactionalDelivery
from firebird_cdc.journal.watch import Folder, JournalWatcher

_log = logbook.Logger("firebird_cdc.journal.ship")

_BRIDGE_CHECK_S = 1.0
_LAST_LOOK_S = 30.0  # for deciding what the last server left, however little time sends have
_ANSWER_WAIT_S = 0.02
_DEFAULT_GIVE_UP_S = 120.0


class Shipper:
    """Ships one journal folder until it is told to stop.

    ``once``: ends when nothing is left that could be shipped. ``embedded``: ends after the
    last server process with a bridge on the folder. ``stop`` may be called from a signal
    handler; a second call ends the orderly stop at once.
    """

    def __init__(
        self, config: ConnectorConfig, *, once: bool = False, embedded: bool = False
    ) -> None:
        self._config = config
        self._once = once
        self._embedded = embedded
        self._directory = config.journal_directory
        self.statistics = Statistics()
        self._lock = ShipperLock(self._directory)
        self._watcher = JournalWatcher(
            self._directory,
            config.journal_check_interval_ms / 1000,
            max(config.poll_interval_ms / 1000, 0.05),
        )
        self._backlog = Backlog(self._directory)
        self._chores = ChoreList([])
        self._recovery = Recovery(self._directory, config.journal_fsync)
        self._close_timeout_s = config.close_timeout_ms / 1000
        self._deadline: float | None = None
        self._stops = 0
        self._ending_since: float | None = None
        self._is_settled = False  # what the servers left is decided
        self._next_bridge_check = 0.0
        self._next_reminder = 0.0
        self._progress: object = None
        self._progress_at = monotonic()

    def run(self) -> int:
        """Ship; returns the exit code. Raises ShipError or ConfigError if it can't begin."""
        with self._lock:
            delivery = self._make_delivery()
            delivery.plan.quarantine.load()
            self._chores = ChoreList(
                build_chores(self._config, delivery, self.statistics, once=self._once)
            )
            self._recovery.look()
            self._recovery.start()
            self._watcher.attach()
            _log.info("shipping journals of {}", self._directory)
            try:
                self._loop(delivery)
            finally:
                self._chores.close()
                self._recovery.stop()
                self._watcher.detach()
                left = delivery.in_flight
                delivery.abandon()
            self._tell_end(delivery, left)
            return self._exit_code(delivery)

    def stop(self) -> None:
        """Ask for an orderly stop; asked twice, for one without delay."""
        self._stops += 1
        self._watcher.wake()

    def _make_delivery(self) -> Delivery:
        config = self._config
        link = KafkaLink(config, self.statistics)
        self.statistics.queue = link.queue
        renderer = Renderer(config, max_message_bytes(config))
        memory = self._directory / STATE_DIRECTORY / "shared-topics"
        renderer.topics.remember_in(memory, renderer.tables.captures)
        plan = FlightPlan(
            self._directory,
            renderer,
            config.charset_none,
            config.failure_handling_mode,
            self.statistics,
        )
        archive, backoff_s = config.journal_archive_directory, config.retry_backoff_ms / 1000
        delivery: Delivery
        if config.transactional:
            timeout_ms = int(config.producer.get("transaction.timeout.ms", "60000"))
            delivery = TransactionalDelivery(
                self._backlog,
                plan,
                link,
                archive,
                backoff_s,
                timeout_ms / 1000,
                config.position_topic,
                max_message_bytes(config),
                folder_identity(self._directory),
            )
        else:
            delivery = PlainDelivery(self._backlog, plan, link, archive, backoff_s)
        delivery.should_leave = partial(self._should_leave, link)
        if config.topic_creation is not None:
            maker = TopicMaker(config, renderer.topics, link)
            renderer.require_topic, delivery.on_missing = maker.require, maker.missing
        return delivery

    # The loop

    def _loop(self, delivery: Delivery) -> None:
        while True:
            if self._look_after_folder(delivery):
                self._take_in(delivery)
            delivery.stopping = self._stops > 0
            moved = delivery.step()
            now = self.statistics.loop_at = monotonic()
            self._chores.turn(now)
            if self._once and delivery.progress != self._progress:
                self._progress = delivery.progress
                self._progress_at = now
            if now >= self._next_reminder:
                self._next_reminder = now + REMIND_S
                delivery.remind()
            if self._is_over(delivery):
                return
            if not moved:
                self._rest(delivery)

    def _look_after_folder(self, delivery: Delivery) -> bool:
        """Whether the journal folder is there; follows it when it is replaced."""
        match self._watcher.check_folder():
            case Folder.SAME:
                return True
            case Folder.LOST:
                self.statistics.trouble(
                    DISK, "halted", f"journal folder {self._directory} is gone; create it again"
                )
                _log.error(
                    "journal folder {} is gone; create it again (or mount it), shipping goes on"
                    " when it is back",
                    self._directory,
                )
            case Folder.BACK:
                self._lock.take()
                delivery.plan.quarantine.load()
                self._watcher.attach()
                self.statistics.clear(DISK)
                _log.notice("journal folder {} is back", self._directory)
                return True
            case Folder.AWAY:
                pass
        return False

    def _take_in(self, delivery: Delivery) -> None:
        """Sort in what was notified and, when it is time, all that is in the folder."""
        for _ in self._backlog.offer_all(self._watcher.take()):
            pass
        if delivery.wants_scan:
            self._watcher.request_scan()
        if self._watcher.scan_due:
            try:
                for _ in self._backlog.offer_all(self._watcher.scan()):
                    if self._stops:
                        return
            except OSError as error:
                _log.error("journal folder {} can't be read: {}", self._directory, error)
                return
            delivery.scans += 1
            delivery.recheck_halts()
        if self._backlog.young:
            self._backlog.offer_young()
        delivery.update_lanes()
        if self._backlog.unreadable:
            delivery.take_unreadable()

    def _rest(self, delivery: Delivery) -> None:
        """Wait for answers, for journals, or for the time of the next attempt."""
        if delivery.unacked:
            delivery.link.producer.poll(_ANSWER_WAIT_S)
            return
        pause = self._config.poll_interval_ms / 1000
        if self._backlog.young or delivery.wants_scan:
            pause = min(pause, 0.1)
        if delivery.next_retry is not None:
            pause = min(pause, max(delivery.next_retry - monotonic(), 0.01))
        pause = min(pause, max(self._chores.next_at - monotonic(), 0.01))
        self._watcher.wait(pause)

    # The end

    def _should_leave(self, link: KafkaLink) -> bool:
        """Whether there is no time left to finish what was begun."""
        if self._stops > 1 or (self._once and self._gives_up(link.progress_at)):
            return True
        if self._stops and self._deadline is None:
            self._deadline = monotonic() + self._close_timeout_s
        return self._deadline is not None and monotonic() >= self._deadline

    def _is_over(self, delivery: Delivery) -> bool:
        if self._should_leave(delivery.link):
            return True
        if self._stops:
            return delivery.in_flight == 0
        idle = not delivery.can_go_on and not self._backlog.young and delivery.scans > 0
        if self._once:
            return idle or self._gives_up()
        return self._embedded and self._server_is_gone() and idle

    def _gives_up(self, since: float = 0.0) -> bool:
        """Whether nothing has gone on for too long, counted from SINCE (monotonic) at least."""
        timeout = self._config.producer.get("delivery.timeout.ms")
        limit_s = int(timeout) / 1000 if timeout else _DEFAULT_GIVE_UP_S
        return monotonic() - max(self._progress_at, since) > limit_s

    def _server_is_gone(self) -> bool:
        """Whether no bridge is left; from then on the time for finishing runs."""
        now = monotonic()
        if now < self._next_bridge_check:
            return self._is_settled
        self._next_bridge_check = now + _BRIDGE_CHECK_S
        if bridge_present(self._directory):
            self._ending_since = self._deadline = None
            self._is_settled = False
        elif self._ending_since is None:
            _log.info("the last server process on {} has ended", self._directory)
            self._ending_since = now
            self._deadline = now + max(self._close_timeout_s, _LAST_LOOK_S)
        elif not self._is_settled and self._recovery.is_clear_since(self._ending_since):
            self._is_settled = True
            self._deadline = now + self._close_timeout_s
            self._watcher.request_scan()
            return False
        return self._ending_since is not None and self._is_settled

    def _tell_end(self, delivery: Delivery, unfinished: int) -> None:
        left = len(self._backlog) + len(self._backlog.unreadable)
        _log.info(
            "shipper of {} ends: {} journals shipped, {} were under way, {} wait",
            self._directory,
            delivery.shipped,
            unfinished,
            left,
        )

    def _exit_code(self, delivery: Delivery) -> int:
        if not self._once or self._stops:
            return 0
        halted = [lane for lane in delivery.lanes.values() if lane.halt is not None]
        return 1 if halted or len(self._backlog) or self._backlog.unreadable else 0
