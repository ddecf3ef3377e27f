"""The Kafka producer: its settings, its lifetime, and one sentence when Kafka goes or comes back.

Guarantees: messages of one partition arrive in the order of ``produce``; without a
transactional id a message is never given up for its age, because later ones would overtake it.
Everything here belongs to the thread that made the link; callbacks run inside ``poll``.
"""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any

import logbook
import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from firebird_cdc.config import ConnectorConfig, librdkafka
from firebird_cdc.config.producer import PREFIX
from firebird_cdc.config.secrets import is_secret, url_passwords
from firebird_cdc.config.snapshots import CONSUMER
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.folder.subjects import KAFKA
from firebird_cdc.journal.shipper.kafka.offset_topic import OffsetReader, reader_settings
from firebird_cdc.journal.shipper.monitoring.statistics import QueueFigures, Statistics

_log = logbook.Logger("firebird_cdc.journal.shipper.kafka.client")

DEFAULT_QUEUE_MESSAGES = 100_000
"""librdkafka's own default of queue.buffering.max.messages."""

_QUEUE_KBYTES = 65536
"""Messages in memory before reading pauses; librdkafka's own default is 1 GiB."""

_QUIET_AFTER_ERROR_S = 1.0
"""Without any acknowledgement for so long after a connection error, Kafka counts as away."""

_QUIET_S = 15.0
"""The same without an error: a broker that is connected and silent."""

_STATISTICS_MS = "5000"
"""Milliseconds between two reports of the client: what it holds and to whom it is connected."""

_CONNECTED = ("UP", "UPDATE")

# Beside one that is refused, the broker does not attempt the others of the same request.
_REFUSED_TOPIC = re.compile(
    r'Failed to add partition "([^"]+)" \[\d+\] to transaction(?!.*Operation not attempted)'
)

# The broker's answer on the message itself: sending it again can't help.
_REFUSALS = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
    }
)

# What does not pass by itself, so that it is told though something else was told before.
_NO_ENTRY = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})

_DIFFERS_EACH_TIME = re.compile(r", \d+ identical error\(s\) suppressed|\d+")

_HURRY_S = 0.001
"""For the client's threads to see that they are to hurry."""


DeliveryCallback = Callable[[KafkaError | None, Any], None]


def is_refusal(error: KafkaError) -> bool:
    """Tell whether ERROR is about the message itself, so that it would be refused again."""
    return error.code() in _REFUSALS


# Where a broker refuses the first messages of a partition for now, it may take those behind them:
# it knows nothing yet of the numbers that this client gives them. The client then believes that it
# has them all.
_UNSURE = KafkaError(
    KafkaError._INCONSISTENT,
    "the client takes it as delivered, but no broker has said where it is",
)


def failure_of(error: KafkaError | None, message: Any) -> KafkaError | None:
    """Return the error because of which MESSAGE may not be in Kafka; None: it is there.

    ERROR: the client's report of it.
    """
    return _UNSURE if error is None and message.offset() is None else error


class _ToLogbook(logging.Handler):
    """librdkafka repeats itself; its lines are for debugging, ours tell the user.

    ``refused_topic``: which one a transaction was last refused for. Nothing else says that.
    ``hidden``: passwords in URLs, which it repeats.
    """

    refused_topic = ""
    hidden: AbstractSet[str] = frozenset()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        for password in self.hidden:
            text = text.replace(password, "(not shown)")
        _log.debug("librdkafka: {}", text)
        if found := _REFUSED_TOPIC.search(text):
            self.refused_topic = found[1]


_to_logbook = _ToLogbook()


def librdkafka_logger() -> logging.Logger:
    """Return the logger that librdkafka's own lines go to."""
    logger = logging.getLogger("firebird_cdc.librdkafka")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    if not logger.handlers:
        logger.addHandler(_to_logbook)
    return logger


def producer_settings(config: ConnectorConfig) -> dict[str, str]:
    """Return the properties for librdkafka: the user's, and what our promises need.

    Without transactions, ``retries`` and ``delivery.timeout.ms`` don't limit the client: at such
    a limit it would drop one message and deliver later ones, out of order, while we would only
    send the journal again. It keeps trying instead, which repeats nothing.
    """
    if config.unresolved:  # nothing but a refused login would come of it
        raise ConfigError(list(config.unresolved))
    settings = dict(config.producer)
    settings.setdefault("client.id", f"firebird-cdc-{config.topic_prefix}")
    kbytes = -(-config.max_queue_bytes // 1024) or _QUEUE_KBYTES
    settings.setdefault("queue.buffering.max.kbytes", str(kbytes))
    settings.setdefault("queue.buffering.max.messages", str(config.max_queue_size))
    settings["statistics.interval.ms"] = _STATISTICS_MS  # nobody else could read them
    if not config.transactional:
        settings.pop("delivery.timeout.ms", None)
        settings["message.timeout.ms"] = "0"
        settings["retries"] = "2147483647"
    return settings


def admin_settings(config: ConnectorConfig) -> dict[str, Any]:
    """Return the properties for a client that asks and manages, and sends no message."""
    settings: dict[str, Any] = dict(config.producer)
    for name in ("transactional.id", "transaction.timeout.ms", "enable.idempotence"):
        settings.pop(name, None)
    settings.setdefault("client.id", f"firebird-cdc-{config.topic_prefix}-admin")
    return settings


class Sender:
    """A librdkafka producer that ends with ``end``, whoever still holds on to this.

    The client's threads end with the last reference to it. Where one of its calls fails while
    another error is handled, confluent-kafka (2.13 to 2.16) never lets go of that one, nor of the
    variables of all that it came through. So the references in here have to stay the only ones:
    nobody may leave ``produce``, the client's own method, in a variable.
    """

    __slots__ = ("_producer", "produce")

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.produce: Callable[..., None] = producer.produce

    @property
    def held(self) -> int:
        """The number of messages without an answer; for any thread, after ``end`` too."""
        try:
            return len(self._producer)
        except AttributeError:
            return 0

    def poll(self, seconds: float) -> int:
        """Take answers, for SECONDS at most; how many."""
        return self._producer.poll(seconds)

    def flush(self, seconds: float) -> None:
        """Have all sent now, and take answers, for SECONDS at most."""
        self._producer.flush(seconds)

    def purge(self) -> None:
        """Give up what Kafka has not acknowledged, and say so to those who wait for it."""
        self._producer.purge()
        with suppress(KafkaException):  # the client lets go of what it has told, and of no more
            while self._producer.poll(0):
                pass

    def init_transactions(self, seconds: float) -> None:
        """Register the transactional id. This and what follows: as the client's."""
        self._producer.init_transactions(seconds)

    def begin_transaction(self) -> None:
        """Begin a Kafka transaction."""
        self._producer.begin_transaction()

    def commit_transaction(self, seconds: float) -> None:
        """Commit it."""
        self._producer.commit_transaction(seconds)

    def abort_transaction(self, seconds: float) -> None:
        """Abort it."""
        self._producer.abort_transaction(seconds)

    def end(self) -> None:
        """End the client's threads before this returns. An open Kafka transaction is left to
        Kafka, for whose answer the client's own close would wait, without limit."""
        del self._producer, self.produce


def hand_over(
    producer: Sender, messages: Sequence[Message], on_delivery: DeliveryCallback
) -> tuple[int, KafkaException | None]:
    """Return how many of MESSAGES the producer took, each of which ON_DELIVERY hears of: all of
    them, unless its queue is full or it refuses one on the spot; and that refusal."""
    taken = 0
    try:
        for topic, key, value, headers in messages:
            producer.produce(topic, value, key, headers=headers, on_delivery=on_delivery)
            taken += 1
    except BufferError:
        pass
    except KafkaException as error:
        return taken, error
    return taken, None


class KafkaLink:
    """One librdkafka producer at a time, and what is known about Kafka's well-being.

    ``progress_at``: when (monotonic) Kafka last acknowledged something, or was first asked to.
    ``queue``: what the producer holds, for any thread. Raises ConfigError if librdkafka refuses
    the configuration. To be closed before the process ends: what OpenSSL does at its exit would
    crash the threads of a client that still uses it.
    """

    def __init__(self, config: ConnectorConfig, statistics: Statistics) -> None:
        check_producer(config)
        check_signal_reader(config)
        self._hurries = "linger.ms" not in config.producer
        self._settings: dict[str, Any] = producer_settings(config)
        self._admin_settings = admin_settings(config)
        self._servers = config.producer.get("bootstrap.servers", "")
        self._directory = config.journal_directory
        self._topic_creation = config.topic_creation
        self.transactional_id = config.producer.get("transactional.id")
        _to_logbook.hidden = url_passwords(",".join(config.producer.values()))
        self._error = ""
        self._has_no_entry = False
        self._error_at = 0.0
        self.progress_at = monotonic()
        self._away_since: float | None = None
        self._told_causes: set[str] = set()
        self.fatal: KafkaError | None = None
        self._statistics = statistics
        self._queue = QueueFigures(
            0,
            0,
            int(self._settings.get("queue.buffering.max.messages", DEFAULT_QUEUE_MESSAGES)),
            int(self._settings["queue.buffering.max.kbytes"]) * 1024,
        )
        self.producer = Sender(self._make())
        self._admin: AdminClient | None = None
        statistics.queue = self.queue

    def close(self) -> None:
        """Let go of the clients, whose threads end with that. What Kafka has not acknowledged is
        given up, and an open Kafka transaction is left to it."""
        self._statistics.queue = None
        self.producer.purge()
        self.producer.end()
        self._admin = None
        gc.collect()  # an error that was caught may hold on to that, in a circle with its traceback

    def _make(self) -> Producer:
        settings = self._settings | {"error_cb": self._on_error, "stats_cb": self._on_statistics}
        return Producer(settings, logger=librdkafka_logger())

    def position_reader(self, topic: str) -> OffsetReader:
        """A reader of TOPIC at the same brokers, with the same rights."""
        creation = self._topic_creation
        settings = None if creation is None else creation.settings(topic)
        return OffsetReader(self._settings, topic, librdkafka_logger(), settings)

    @property
    def admin(self) -> AdminClient:
        """A client that manages topics, made on first use."""
        if self._admin is None:
            self._admin = AdminClient(self._admin_settings, logger=librdkafka_logger())
        return self._admin

    def take_refused_topic(self) -> str:
        """The topic for which a transaction was refused since the last call, or ""."""
        topic, _to_logbook.refused_topic = _to_logbook.refused_topic, ""
        return topic

    def poll(self, seconds: float) -> None:
        """Take answers, for SECONDS at most. That the client has given up shows in ``fatal``."""
        try:
            self.producer.poll(seconds)
        except KafkaException as error:  # instead of a call of error_cb
            self._on_error(error.args[0])
            self.fatal = error.args[0]

    def hurry(self, seconds: float = _HURRY_S) -> None:
        """Have what was handed over sent now, as nothing more comes soon; take answers, for
        SECONDS at most or until all have come.

        A wait for more (linger.ms) saves a part of the client's work on a backlog, and would be
        most of the time that a single commit takes. Unless the user wants that wait.
        """
        if not self._hurries:
            self.poll(seconds)
            return
        try:
            self.producer.flush(seconds)
        except KafkaException as error:  # as in poll
            self._on_error(error.args[0])
            self.fatal = error.args[0]

    def recreate(self) -> None:
        """Replace the producer; of what the old one still held it is told that it was not sent."""
        self.producer.purge()
        former, self.producer = self.producer, Sender(self._make())
        former.end()
        self.fatal = None

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.fatal = error
        # That all brokers are down follows each failure, which says more.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self._error:
            self._error, self._has_no_entry = error.str(), error.code() in _NO_ENTRY
        self._error_at = monotonic()
        _log.debug("Kafka client: {}", error)

    def _on_statistics(self, text: str) -> None:
        figures = orjson.loads(text)
        statistics, brokers = self._statistics, figures.get("brokers", {}).values()
        statistics.brokers_up = len(
            {broker["nodename"] for broker in brokers if broker["state"] in _CONNECTED}
        )
        if statistics.brokers_up:
            statistics.kafka_at = monotonic()
        self._queue = replace(self._queue, bytes=figures.get("msg_size", 0))

    def queue(self) -> QueueFigures:
        """Return the figures of what the producer holds; the bytes are some seconds old at most."""
        messages = self.producer.held
        return replace(self._queue, messages=messages, bytes=self._queue.bytes if messages else 0)

    @property
    def away(self) -> bool:
        """Tell whether Kafka was last reported as away."""
        return self._away_since is not None

    def is_silent_for(self, seconds: float) -> bool:
        """Tell whether nothing was acknowledged for SECONDS, and no connection failed meanwhile."""
        return monotonic() - self.progress_at >= seconds and self._error_at < self.progress_at

    def note_start(self) -> None:
        """Something is on its way that was not before: from now on an answer is awaited."""
        self.progress_at = monotonic()

    def note_progress(self) -> None:
        """Kafka acknowledged something."""
        self._error = ""
        self.progress_at = self._statistics.kafka_at = monotonic()
        if self._away_since is not None:
            self._statistics.clear(KAFKA)
            _log.notice(
                "Kafka at {} answers again after {:.0f} s; what waits in {} is being shipped",
                self._servers,
                monotonic() - self._away_since,
                self._directory,
            )
            self._away_since = None

    def note_waiting(self) -> None:
        """Log, once, that answers are awaited and none has come for too long."""
        now = monotonic()
        error_is_new = self._error_at >= self.progress_at
        limit = _QUIET_AFTER_ERROR_S if error_is_new else _QUIET_S
        if now - self.progress_at >= limit:
            why = self._error if error_is_new else "connected, but it does not answer"
            self.note_away(why, is_state=error_is_new and self._has_no_entry)

    def note_away(self, why: str, *, is_state: bool = True) -> None:
        """Report that Kafka can't be used and what that means, once until it answers.

        ``is_state``: it was refused; each such cause is told once, whatever was told before.
        """
        why = why or "no broker can be reached"
        self._statistics.trouble(KAFKA, "waiting", f"Kafka at {self._servers}: {why}")
        if self._away_since is None:
            self._away_since = monotonic()
            self._told_causes.clear()
        cause = _DIFFERS_EACH_TIME.sub("", why)
        if not self._told_causes or (is_state and cause not in self._told_causes):
            self._told_causes.add(cause)
            _log.error(
                "Kafka at {} does not take messages: {}. Journals stay in {} and are shipped when"
                " it answers; check kafka.producer.bootstrap.servers if it never does",
                self._servers,
                why,
                self._directory,
            )


def check_producer(config: ConnectorConfig) -> None:
    """Let the installed librdkafka itself check CONFIG's producer properties.

    Starts no connection that outlives the call. Raises ConfigError that names the option,
    file and line of the property that librdkafka complains about.
    """
    try:
        Producer({**config.producer, "log_level": "0"})
    except (KafkaException, TypeError, ValueError) as error:
        place = f"{config.path}: {PREFIX}*"
        raise _refusal(error, config.producer, config.producer_origins, place) from error


def check_signal_reader(config: ConnectorConfig) -> None:
    """Let librdkafka check what CONFIG says of the reader of signals, if there is one, before it
    is needed. As `check_producer`."""
    signals = config.signals
    if "kafka" not in signals.channels:
        return
    given = {**(config.producer if signals.as_producer else {}), **signals.consumer}
    try:
        Consumer({**reader_settings(given), "group.id": signals.group_id, "log_level": "0"}).close()
    except (KafkaException, TypeError, ValueError) as error:
        origins = {**(config.producer_origins if signals.as_producer else {}), **signals.origins}
        place = f"{config.path}: {CONSUMER}*"
        raise _refusal(error, given, origins, place) from error


def _refusal(
    error: Exception, given: Mapping[str, str], origins: Mapping[str, str], place: str
) -> ConfigError:
    """Return what to raise for ERROR of a client with the properties GIVEN. PLACE: what to name if
    none of ORIGINS is meant."""
    reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
    for name, value in given.items():
        if is_secret(name):
            reason = reason.replace(value, "(not shown)")
    named = [origin for name, origin in origins.items() if name in _names_in(reason)]
    place = " and ".join(named) or place
    return ConfigError([f"{place}: the Kafka client refuses it: {reason.strip()}"])


def _names_in(reason: str) -> set[str]:
    words = re.findall(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+|acks|retries|debug|partitioner", reason)
    return {librdkafka.CANONICAL.get(word, word) for word in words}
