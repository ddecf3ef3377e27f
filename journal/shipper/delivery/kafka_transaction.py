"""One Kafka transaction, and the pause before the next one."""

from __future__ import annotations

from time import CLOCK_BOOTTIME, clock_gettime, monotonic, sleep

from firebird_cdc.journal.shipper.delivery.sending import SendContext

BATCH_S = 0.5
"""No further journal joins a Kafka transaction that is older; consumers wait as long."""

BATCH_MESSAGES = 100_000
"""No further journal joins a Kafka transaction that has so many messages."""

_JOINING_S = 0.0005
"""The client tells Kafka of a transaction's partitions 1 ms after the first message (librdkafka
2.16), so what is small and joins until then, with the offset behind it, costs no time."""

_ASKED_AGAIN_S = 0.02
"""After so long the client asks again where Kafka has refused to begin (librdkafka 2.16)."""

_LEAST_PAUSE_S = 0.001
_MOST_PAUSE_S = 0.003
_LONGER_S = 0.0005
_SHORTER = 0.999  # half as long after 700 transactions


def _now_s() -> float:
    """Seconds since the machine started, those in which it slept included, as brokers count."""
    return clock_gettime(CLOCK_BOOTTIME)


class KafkaTransaction:
    """An open Kafka transaction.

    ``began_at``, ``journal_began_at``: times (monotonic) of its begin and of that of the journal
    under way. ``sent``: messages in it. ``failures_before``, ``acknowledged_before``: what was
    counted before. ``was_refused``: Kafka has refused to begin it for now.
    """

    def __init__(self, timeout_s: float, plan: SendContext) -> None:
        self.began_at = self.journal_began_at = monotonic()
        self.sent = 0
        self.failures_before, self.acknowledged_before = plan.failures, plan.acknowledged
        self.was_refused = False
        self._is_small = False
        self._plan = plan
        self._timeout_s = timeout_s
        self._began_s = _now_s()

    @property
    def is_answered(self) -> bool:
        """Tell whether Kafka has taken or refused a message of it."""
        plan = self._plan
        before = self.acknowledged_before, self.failures_before
        return (plan.acknowledged, plan.failures) != before

    @property
    def is_full(self) -> bool:
        """Tell whether no further journal should join it."""
        return (
            self.sent >= BATCH_MESSAGES
            or (age := monotonic() - self.began_at) >= BATCH_S
            or age >= self._timeout_s / 8
        )

    def await_joining(self) -> bool:
        """Wait as long as small journals may join it at no cost; tell whether any may."""
        left_s = self.began_at + _JOINING_S - monotonic()
        self._is_small = left_s > 0
        if self._is_small:
            sleep(left_s)
        return self._is_small

    def note_answers(self) -> None:
        """Note that all of it is answered. What is small takes so long only if Kafka has refused to
        begin it, or is far away, where a longer pause costs little."""
        self.was_refused = self._is_small and monotonic() - self.began_at >= _ASKED_AGAIN_S

    @property
    def takes_too_long(self) -> bool:
        """Tell whether the journal under way has to be split lest it expires."""
        return self.sent > 0 and monotonic() - self.journal_began_at >= self._timeout_s / 2

    @property
    def may_have_expired(self) -> bool:
        """Tell whether Kafka may have fenced the producer off, as it took too long."""
        return _now_s() - self._began_s >= self._timeout_s


class EndingPause:
    """The pause behind a Kafka transaction.

    Kafka works on one after it says that it is committed, and refuses the next one meanwhile; then
    the client asks again only after 20 ms. So the pause grows where that was seen, and shrinks by
    a little with each other transaction.
    """

    def __init__(self) -> None:
        self._pause_s = _LEAST_PAUSE_S
        self._until = 0.0

    def await_end(self) -> None:
        """Return once the pause is over."""
        sleep(max(self._until - monotonic(), 0))

    def begin(self, transaction: KafkaTransaction) -> None:
        """Begin it, as TRANSACTION was just committed."""
        if transaction.was_refused:
            self._pause_s = min(self._pause_s + _LONGER_S, _MOST_PAUSE_S)
        else:
            self._pause_s = max(self._pause_s * _SHORTER, _LEAST_PAUSE_S)
        self._until = monotonic() + self._pause_s
