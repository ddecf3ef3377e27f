"""The shipper: takes committed journals to Kafka, and stays up whatever happens there.

One thread does everything; librdkafka's threads send. It waits for journals rather than for Kafka's
answers, as these hold up no journal until there are too many of them. A journal is disposed of in
one place (``journal.folder.disposal``), and only once every message of it is acknowledged.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from time import monotonic, sleep

import logbook

from firebird_cdc.bridge.recovery import Recovery
from firebird_cdc.config import ConnectorConfig
from firebird_cdc.config.producer import max_message_bytes
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.events.topics import SHARED_TOPICS, missing_topic
from firebird_cdc.journal.folder.exit_status import words_path
from firebird_cdc.journal.folder.join_file import withdraw
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY, ShipperLock, bridge_present
from firebird_cdc.journal.folder.processes import EndRequest, this_process
from firebird_cdc.journal.folder.subjects import FOLDER, UNREADABLE
from firebird_cdc.journal.shipper.delivery.base import REMIND_S, Delivery, DeliveryLimits
from firebird_cdc.journal.shipper.delivery.plain import PlainDelivery
from firebird_cdc.journal.shipper.delivery.sending import SendContext
from firebird_cdc.journal.shipper.delivery.transactional import TransactionalDelivery
from firebird_cdc.journal.shipper.ending import LEAST_S, Ending
from firebird_cdc.journal.shipper.inbox.backlog import Backlog
from firebird_cdc.journal.shipper.inbox.ledgers import Ledgers
from firebird_cdc.journal.shipper.inbox.watcher import Folder, JournalWatcher
from firebird_cdc.journal.shipper.kafka.client import KafkaLink
from firebird_cdc.journal.shipper.kafka.topic_creation import TopicMaker
from firebird_cdc.journal.shipper.monitoring.observer import Observer
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.offset_tracker import OffsetTracker
from firebird_cdc.journal.shipper.server_watch import LAST_LOOK_S, ServerWatch
from firebird_cdc.journal.shipper.snapshots.intake import SignalTask, signal_tables
from firebird_cdc.journal.shipper.snapshots.service import Snapshots
from firebird_cdc.journal.shipper.tasks.schedule import TaskList, build_tasks

_log = logbook.Logger("firebird_cdc.journal.shipper.loop")

_LAST_LOOKS_APART_S = 0.05
_ANSWER_WAIT_S = 0.02  # while journals wait for room
_ANSWER_LOOK_S = 0.004  # while nothing else is to be done; doubles up to the next
_ANSWER_LOOK_MOST_S = 0.064
_SWITCH_S = 0.0005  # for which another thread may keep the one that ships from going on
_OOM_ADJUSTMENT = 500
_COLLECTED_AFTER = 20_000  # objects; most that is under way has ended by then
_SCAN_SLICE_S = 0.02
_SCAN_STEP = 500  # journals
_DEFAULT_GIVE_UP_S = 120.0
_SIGNALS_S = 1.0


def prepare_process(*, embedded: bool) -> None:
    """Make this process one that ships and does nothing else."""
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()  # what is there now stays: nobody is to go through it again while a journal waits
    gc.set_threshold(_COLLECTED_AFTER, *gc.get_threshold()[1:])
    if embedded:
        # Where memory runs out, better this process ends than the server: nothing is lost, and
        # another one is started within seconds.
        with suppress(OSError, ValueError):
            adjustment = Path("/proc/self/oom_score_adj")
            adjustment.write_text(str(max(int(adjustment.read_text()), _OOM_ADJUSTMENT)))


class _Standstill:
    """Since when nothing has gone on: ``began``, monotonic."""

    def __init__(self) -> None:
        self._progress: object = None
        self.began = monotonic()

    def look(self, progress: object, now: float) -> None:
        """PROGRESS is how far things are NOW."""
        if progress != self._progress:
            self._progress, self.began = progress, now


class Shipper:
    """Ships one journal folder until it is told to stop.

    ``once``: ends when nothing is left that could be shipped. ``embedded``: ends after the
    last server process with a bridge on the folder. ``stop`` may be called from a signal
    handler; a second call ends the orderly stop at once. ``ending``: how it ends.
    """

    def __init__(
        self, config: ConnectorConfig, *, once: bool = False, embedded: bool = False
    ) -> None:
        self._config = config
        self._once = once
        self._embedded = embedded
        self._directory = config.journal_directory
        self.statistics = Statistics()
        record = this_process(config.reading, embedded=embedded)
        self._lock = ShipperLock(self._directory, record.as_json())
        self._end_request = EndRequest(self._directory, record)
        self._watcher = JournalWatcher(
            self._directory,
            config.journal_check_interval_ms / 1000,
            max(config.poll_interval_ms / 1000, 0.05),
        )
        self._backlog = Backlog(self._directory)
        self._ledgers = Ledgers(
            self._directory, self._backlog, self.statistics, is_synced=config.journal_fsync
        )
        self._watcher.followed = self._ledgers.sharing
        self._tasks = TaskList([], self.statistics)
        self._recovery = Recovery(self._directory, config.journal_fsync)
        self.ending = Ending(config.close_timeout_ms / 1000)
        self._servers = ServerWatch(self._directory, self._recovery)
        self._scan: Iterator[str] | None = None  # under way
        self._is_known = False  # the folder as it is now was scanned as a whole
        self._answer_look_s = _ANSWER_LOOK_S
        self._hurried = 0  # messages that were handed over when the client was last hurried
        self._next_reminder = 0.0
        self._standstill = _Standstill()

    def run(self) -> int:
        """Ship; returns the exit code. Raises ShipError or ConfigError if it can't begin."""
        with self._lock, closing(KafkaLink(self._config, self.statistics)) as link:
            words_path(self._directory).unlink(missing_ok=True)  # of one before: this one works
            delivery = self._make_delivery(link)
            delivery.snapshots = snapshots = Snapshots(self._config, delivery, self._watcher.wake)
            delivery.plan.signals = signal_tables(self._config, snapshots.take_row)
            delivery.plan.on_loss = snapshots.note_loss
            self._load_state(delivery)
            self._tasks = TaskList(
                [
                    *build_tasks(self._config, delivery, self.statistics, once=self._once),
                    SignalTask(snapshots.take_signals, _SIGNALS_S),
                ],
                self.statistics,
            )
            observer = Observer(
                self._config, self.statistics, delivery.waiting, self._backlog.sorted_to
            )
            self._recovery.look()
            self._recovery.start()
            self._attach()
            _log.info("shipping journals of {}", self._directory)
            # Before the first status is told, and retries that wait come before newer events.
            self._tasks.turn(monotonic())
            observer.start()
            try:
                self._loop(delivery)
            finally:
                self.ending.leave()
                self._tasks.close()
                self._recovery.stop()
                self._watcher.close()
                self._ledgers.close()
                left = delivery.in_flight
                delivery.abandon(self.ending.patience_s)
                observer.stop()
            self._look_once_more()
            code = self._exit_code(delivery)
        self._tell_end(delivery, left)
        return code

    def stop(self) -> None:
        """Ask for an orderly stop; asked twice, for one without delay."""
        self.ending.ask()
        self._watcher.wake()

    def _make_delivery(self, link: KafkaLink) -> Delivery:
        config = self._config
        renderer = Renderer(config, max_message_bytes(config.producer))
        plan = SendContext(
            self._directory,
            renderer,
            config.charset_none,
            config.failure_handling_mode,
            self.statistics,
            acks=config.producer.get("acks") != "0",
            counts_at_once=not config.transactional,
            syncs=config.journal_fsync,
        )
        archive = config.journal_archive_directory
        offsets = OffsetTracker(
            self._directory, config.position_topic, link, self.statistics, archive
        )
        plan.unsent = offsets
        limits = DeliveryLimits(
            backoff_s=config.retry_backoff_ms / 1000,
            max_retries=config.errors_max_retries,
            attempt_s=int(config.producer.get("delivery.timeout.ms", "120000")) / 1000,
            events_per_turn=config.max_batch_size,
        )
        on_missing: Callable[[str], str] = missing_topic
        if config.topic_creation is not None:
            maker = TopicMaker(config, renderer.topics, link)
            renderer.writer.require_topic, on_missing = maker.require, maker.missing
        parts = (self._backlog, plan, link, archive, offsets, limits, on_missing)
        if not config.transactional:
            return PlainDelivery(*parts)
        timeout_ms = int(config.producer.get("transaction.timeout.ms", "60000"))
        return TransactionalDelivery(
            *parts,
            transaction_timeout_s=timeout_ms / 1000,
            max_message_bytes=max_message_bytes(config.producer),
            should_leave=self._should_leave,
            take_notified=self._take_notified,
        )

    def _load_state(self, delivery: Delivery) -> None:
        """Take over what the folder keeps, as at the start so where it may be another one."""
        renderer = delivery.plan.renderer
        memory = self._directory / STATE_DIRECTORY / SHARED_TOPICS
        renderer.settle(renderer.topics.remember_in(memory))
        delivery.plan.quarantine.load()
        delivery.redelivery.repairs.load()
        delivery.snapshots.load()

    def _attach(self) -> None:
        self._watcher.attach()
        self._ledgers.close()
        self._scan = None
        self._is_known = False

    # The loop

    def _loop(self, delivery: Delivery) -> None:
        while True:
            if self._look_after_folder(delivery):
                self.take_in(delivery)
            delivery.stopping = self.ending.asked > 0
            if self._is_known or delivery.stopping:
                moved = delivery.step()
                moved = delivery.snapshots.advance() or moved
            else:  # what comes first may still be found
                delivery.link.poll(0)
                moved = False
            now = self.statistics.loop_at = monotonic()
            self._tasks.turn(now)
            if self._once:
                self._standstill.look(delivery.progress, now)
            if now >= self._next_reminder:
                self._next_reminder = now + REMIND_S
                delivery.remind()
            if self._is_over(delivery):
                return
            if moved:
                self._answer_look_s = _ANSWER_LOOK_S
            elif self._scan is None:
                self._rest(delivery)

    def _look_after_folder(self, delivery: Delivery) -> bool:
        """Tell whether the journal folder is there; follow it when it is replaced."""
        match self._watcher.check_folder():
            case Folder.SAME:
                return True
            case Folder.LOST:
                self.statistics.trouble(
                    FOLDER, "halted", f"journal folder {self._directory} is gone; create it again"
                )
                _log.error(
                    "journal folder {} is gone; create it again (or mount it), shipping goes on"
                    " when it is back",
                    self._directory,
                )
            case Folder.BACK:
                self._lock.take()
                self._load_state(delivery)
                delivery.follow_folder()
                self._attach()
                self.statistics.clear(FOLDER)
                _log.notice("journal folder {} is back", self._directory)
                return True
            case Folder.AWAY:
                pass
        return False

    def take_in(self, delivery: Delivery) -> None:
        """Sort in what was notified and, when it is time, what is in the folder, bit by bit."""
        self._offer(self._watcher.take())
        if delivery.wants_scan:
            self._watcher.request_scan()
        if self._scan is None and self._watcher.scan_due:
            self._scan = self._watcher.scan()
        if self._scan is not None:
            self._go_on_scanning(delivery, self._scan)
        if self._backlog.young:
            self._backlog.offer_young()
        self._ledgers.turn(self._watcher.take_ledgers())  # which has what comes before those
        delivery.update_queues()
        if self._backlog.unreadable or UNREADABLE in self.statistics.troubles:
            delivery.take_unreadable()

    def _take_notified(self, delivery: Delivery) -> None:
        """Sort in what was notified since the last turn, if the folder was there then."""
        if self._watcher.is_there:
            self._offer(self._watcher.take())
            self._ledgers.turn(self._watcher.take_ledgers())
            delivery.update_queues()

    def _offer(self, names: Iterable[str]) -> None:
        for _ in self._backlog.offer_all(names):
            pass

    def _go_on_scanning(self, delivery: Delivery, scan: Iterator[str]) -> None:
        """Sort in what SCAN finds, as much as there is time for: a million journals take a
        minute, and what is known goes on meanwhile."""
        end = monotonic() + _SCAN_SLICE_S
        while monotonic() < end and not self.ending.asked:
            try:
                names = list(islice(scan, _SCAN_STEP))
            except OSError as error:
                self._tell_unlisted(error)
                return
            self._offer(self._watcher.take())  # all that came before those has been notified
            self._offer(names)
            if len(names) < _SCAN_STEP:
                self._scan = None
                self._is_known = True
                if FOLDER in self.statistics.troubles:
                    self.statistics.clear(FOLDER)
                    _log.notice("journal folder {} can be read again", self._directory)
                delivery.scans += 1
                delivery.recheck_halts()
                return

    def _tell_unlisted(self, error: OSError) -> None:
        text = f"journal folder {self._directory} can't be read: {error}"
        if FOLDER not in self.statistics.troubles:
            _log.error("{}; it is tried again each second", text)
        self.statistics.trouble(FOLDER, "halted", text)
        self._scan = None

    def _rest(self, delivery: Delivery) -> None:
        """Wait for answers, for journals, or for the time of the next attempt."""
        pause = self._config.poll_interval_ms / 1000
        if delivery.unacked:
            if self._awaits_room(delivery):
                delivery.link.poll(_ANSWER_WAIT_S)
                return
            plan = delivery.plan
            if (handed := plan.acknowledged + plan.failures + plan.unacked) != self._hurried:
                self._hurried = handed
                delivery.link.hurry()
                return
            if delivery.snapshots.awaits_answers:
                delivery.link.poll(_ANSWER_LOOK_S)
                return
            pause = min(pause, self._answer_look_s)
            self._answer_look_s = min(2 * self._answer_look_s, _ANSWER_LOOK_MOST_S)
        if self._backlog.young or delivery.wants_scan:
            pause = min(pause, 0.1)
        if delivery.next_retry is not None:
            pause = min(pause, max(delivery.next_retry - monotonic(), 0.01))
        pause = min(pause, max(self._tasks.next_at - monotonic(), 0.01))
        self._watcher.wait(pause)

    @staticmethod
    def _awaits_room(delivery: Delivery) -> bool:
        """Tell whether journals wait that only Kafka's answers can let go on."""
        for queue in delivery.queues.values():
            if queue.halt is None and queue.backoff.is_over and queue.backlog:
                return True
            if queue.sends and not queue.sends[-1].read_to_end:
                return True
        return False

    # The end

    def _should_leave(self, delivery: Delivery) -> bool:
        """Tell whether there is no time left to finish what was begun. Called several times a
        second, also in a long wait for Kafka."""
        ending, acknowledged = self.ending, delivery.plan.acknowledged
        self.statistics.loop_at = monotonic()
        if self._end_request.is_made(self.statistics.loop_at):
            self.stop()
        if ending.asked and not ending.has_begun_as_asked:
            ending.begin(delivery.in_flight, acknowledged)
        if not self._embedded and self._servers.have_settled():
            self._withdraw()
        if ending.is_over(acknowledged, is_busy=self._scan is not None and not ending.asked):
            return True
        return self._once and self._gives_up(delivery.link.progress_at)

    def _is_over(self, delivery: Delivery) -> bool:
        if self._should_leave(delivery):
            return True
        if self.ending.asked:
            return delivery.in_flight == 0
        is_scanned = self._is_known and self._scan is None and not self._watcher.scan_due
        is_read = is_scanned and not self._ledgers.is_behind
        idle = not delivery.can_go_on and not self._backlog.young and is_read
        if self._once:
            return idle or self._gives_up()
        return self._embedded and self._server_is_gone(delivery) and idle and self._withdraw()

    def _withdraw(self) -> bool:
        """Have no process join any more, as there is nobody to confirm for it after this shipper;
        return False if one has done so just now."""
        try:
            return withdraw(self._directory)
        except OSError as error:
            _log.error("{}: who joins can't be kept out: {}", self._directory, error)
            return True

    def _gives_up(self, since: float = 0.0) -> bool:
        """Tell whether nothing has gone on for too long, counted from SINCE (monotonic) at the
        earliest."""
        timeout = self._config.producer.get("delivery.timeout.ms")
        limit_s = int(timeout) / 1000 if timeout else _DEFAULT_GIVE_UP_S
        return monotonic() - max(self._standstill.began, since) > limit_s

    def _server_is_gone(self, delivery: Delivery) -> bool:
        """Tell whether no bridge is left; once it is decided what it left, start the time for
        finishing."""
        servers = self._servers
        have_settled = servers.have_settled()
        if not servers.is_gone:
            self.ending.call_off()
        elif have_settled:
            self.ending.begin(delivery.in_flight, delivery.plan.acknowledged)
            self._watcher.request_scan()
            return False
        return servers.is_settled

    def _look_once_more(self) -> None:
        """Decide what a server left that came and went while this embedded shipper was ending: it
        relied on this one, and started none."""
        if not self._embedded or self.ending.asked:
            return
        end = monotonic() + LAST_LOOK_S
        self.ending.allow(LAST_LOOK_S + LEAST_S)
        while (
            not self.ending.asked
            and not bridge_present(self._directory)
            and any(self._directory.glob("*.log.live"))
            and monotonic() < end
        ):
            self._recovery.look()
            sleep(_LAST_LOOKS_APART_S)

    def _tell_end(self, delivery: Delivery, unfinished: int) -> None:
        left = sum(waiting.pending for waiting in delivery.waiting().values())
        left += sum(self._backlog.behind.values())
        why = self.ending.why
        _log.info(
            "shipper of {} ends{}: {} transactions shipped, {} were under way, {} wait",
            self._directory,
            f", as {why}" if why else "",
            delivery.disposal.shipped,
            unfinished,
            left,
        )

    def _exit_code(self, delivery: Delivery) -> int:
        if not self._once or self.ending.asked:
            return 0
        halted = [queue for queue in delivery.queues.values() if queue.halt is not None]
        left = len(self._backlog) or self._backlog.unreadable or delivery.in_flight
        return 1 if halted or left or delivery.plan.nameless else 0
