"""Lets a database go that is read here when somebody wants it for himself.

DROP DATABASE fails while another attachment is open, and the engine tells nobody that it is tried;
it does not let go of one any more either, once the drop has begun (architecture.md). But who tries
becomes the first one in the engine's list of attachments (CCH_exclusive_attachment in cch.cpp), and
stays there. So while somebody reads, an attachment without rights stands first in that list, as
FIREBIRD_CDC. If it is not the first any more, somebody has come, or the only other one has tried:
the numbers of attachments tell which. Then all readers leave, and none comes for some seconds, in
which it can be tried again.

The order is that of the names of users in isc_info_user_names. Firebird 5 tells each name once, so
they can't be counted. Who else is there is asked when the order has changed, as that costs more,
and while somebody tries the answer takes until he is done. All this takes a hundredth of a
processor at most.

An attachment that is to stand first is refused where a shutdown waits for all to leave: then
readers do, too. Triggers ON CONNECT would fire for an attachment without rights, so where there are
some, nobody stands first: readers leave when a shutdown closes their attachments, or when they have
read.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import logbook

from firebird_cdc.bridge.engine_reading import EngineReading, EngineRefusal
from firebird_cdc.errors import CaptureError

_log = logbook.Logger("firebird_cdc.bridge.giving_way")

_LOOK_S = 0.1
_MOST_PAUSE_S = 2.0
_SHARE = 100  # of the time, one part of so many is for looking
_STAND_S = 0.5  # the first place is taken again so often at most
_HELD_UP_S = 0.5  # who tries does so for a second under Firebird 4, and answers wait for that
_STAY_AWAY_S = 15.0

_NAME = "FIREBIRD_CDC"  # as native/reading.c has it
_SNAPSHOT = bytes((3, 2, 7, 8))  # version 3, concurrency, nowait, read
_USER_NAMES, _END = 53, 1  # isc_info_user_names, isc_info_end
_CONNECT, _DISCONNECT = 8192, 8193  # RDB$TRIGGER_TYPE

_HAS_TRIGGERS = (
    "SELECT COUNT(*) FROM RDB$TRIGGERS WHERE RDB$TRIGGER_INACTIVE = 0"  # noqa: S608
    f" AND RDB$TRIGGER_TYPE IN ({_CONNECT}, {_DISCONNECT})"
)
_ALONE, _KNOWN, _MANY = 0, 1, 2
# Others than we are several; or one, and nobody has come since the one stands there that is to be
# first; or neither.
_OTHERS = f"""SELECT CAST(
    CASE WHEN O > 1 THEN {_MANY} WHEN O = 1 AND Y < S THEN {_KNOWN} ELSE {_ALONE} END AS BIGINT)
    FROM (SELECT COUNT(IIF(MON$REMOTE_PROCESS STARTING WITH 'firebird-cdc', NULL, 1)) O,
    MAX(IIF(MON$USER = '{_NAME}', NULL, MON$ATTACHMENT_ID)) Y,
    MAX(IIF(MON$USER = '{_NAME}', MON$ATTACHMENT_ID, NULL)) S
    FROM MON$ATTACHMENTS WHERE MON$SYSTEM_FLAG = 0)"""  # noqa: S608


class BusyElsewhere(CaptureError):
    """Somebody wants the database for himself."""


class Reader(Protocol):
    """Somebody who has an attachment."""

    def give_up(self) -> None:
        """End it soon."""


class ReadingHost(Protocol):
    """Functions of the plugin that are needed here."""

    def open_reading(self, database: str) -> EngineReading:
        """Attach to a database to read it. Raises EngineRefusal."""

    def stand_first(self, database: str) -> EngineReading:
        """Attach to a database without any rights. Raises EngineRefusal."""


class GivingWay:
    """Readers of all databases of this process, each of which is watched while it has some. For any
    thread."""

    def __init__(self, host: ReadingHost) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)
        self._readers: dict[str, set[Reader]] = {}
        self._coming: Counter[str] = Counter()
        self._away_until: dict[str, float] = {}

    def _away_s(self, database: str) -> float:
        return self._away_until.get(database, 0.0) - time.monotonic()

    def _require_free(self, database: str) -> None:
        if (left := self._away_s(database)) > 0:
            raise BusyElsewhere(
                f"somebody wants {database} for himself (DROP DATABASE, a shutdown), so it is not"
                f" read for the next {left:.0f} s"
            )

    @contextmanager
    def coming(self, database: str) -> Iterator[None]:
        """Have a reader attach inside, and `enter`. Raises BusyElsewhere if none is to."""
        with self._lock:
            self._require_free(database)
            self._coming[database] += 1
        try:
            yield
        finally:
            with self._lock:
                self._coming[database] -= 1

    def enter(self, database: str, reader: Reader) -> None:
        """READER has attached. Raises BusyElsewhere: it has to leave at once."""
        with self._lock:
            self._require_free(database)
            readers = self._readers.get(database)
            if readers is not None:
                readers.add(reader)
                return
            thread = threading.Thread(
                target=self._watch, args=(database,), name="fbc-yield", daemon=True
            )
            self._readers[database] = {reader}
            try:
                thread.start()
            except RuntimeError as error:  # nobody would watch it
                del self._readers[database]
                raise BusyElsewhere(f"{database} can't be watched: {error}") from error

    def leave(self, database: str, reader: Reader) -> None:
        """READER has detached."""
        with self._lock:
            self._readers.get(database, set()).discard(reader)
            self._left.notify_all()

    def _count(self, database: str) -> int:
        with self._lock:
            count = len(self._readers[database])
            if not count:
                del self._readers[database]
            return count

    def _is_coming(self, database: str) -> bool:
        with self._lock:
            return self._coming[database] > 0

    def _pause(self, database: str, seconds: float) -> None:
        """Wait so long, within bounds, or until there are no readers."""
        with self._lock:
            self._left.wait_for(
                lambda: not self._readers[database],
                min(max(_LOOK_S, seconds), _MOST_PAUSE_S),
            )

    def _watch(self, database: str) -> None:
        """Look until there are no readers; none is there for a while if somebody wants DATABASE."""
        watch: _Watch | None = None
        while self._count(database):
            began = time.thread_time()
            if self._away_s(database) <= 0:  # else those who are to leave may need longer
                watch = watch or _Watch(self._host, database, lambda: self._is_coming(database))
                if why := _reason_to_leave(watch):
                    self._give_way(database, why)
                    watch.close()
                    watch = None
            self._pause(database, _SHARE * (time.thread_time() - began))
        if watch is not None:
            watch.close()

    def _give_way(self, database: str, why: str) -> None:
        with self._lock:
            self._away_until[database] = time.monotonic() + _STAY_AWAY_S
            readers = list(self._readers.get(database, ()))
        for reader in readers:
            reader.give_up()
        _log.info("{}: reading its rows ends for now: {}", database, why)


def _reason_to_leave(watch: _Watch) -> str:
    """Return why all readers have to go; empty: they may stay."""
    try:
        return "somebody wants it for himself" if watch.is_wanted() else ""
    except EngineRefusal as refusal:
        return " ".join(str(refusal).split())
    except Exception:
        _log.exception("watching whether somebody wants a database failed")
        return "it can't be watched"


class _Watch:
    """Two attachments: one to look with, and one that is first in the list. For one thread."""

    def __init__(self, host: ReadingHost, database: str, is_coming: Callable[[], bool]) -> None:
        self._host, self._database, self._is_coming = host, database, is_coming
        self._looking: EngineReading | None = None
        self._first: EngineReading | None = None
        self._asked = 0.0
        self._can_stand = False
        self._is_suspected = False

    def close(self) -> None:
        """Detach."""
        for each in (self._first, self._looking):
            if each is not None:
                each.detach()
        self._first = self._looking = None

    def is_wanted(self) -> bool:
        """Tell whether somebody has tried to have the database for himself. Raises EngineRefusal
        where the engine lets nobody in, or us go."""
        if self._looking is None:
            self._looking = self._host.open_reading(self._database)
            self._can_stand = _number(self._looking, _HAS_TRIGGERS) == 0
        if not self._can_stand:
            return False
        first = _first_name(self._looking.info(None, bytes((_USER_NAMES, _END))))
        if first == _NAME or self._is_coming():  # asked later: one of ours may be the first
            self._is_suspected = False
            return False
        if not self._is_suspected and time.monotonic() - self._asked < _STAND_S:
            return False
        others, held_up_s = self._ask()
        if others == _KNOWN:  # twice, as somebody may have been there in between
            was_suspected, self._is_suspected = self._is_suspected, True
            return was_suspected
        self._is_suspected = False
        # Who has only just come is first by that, too, but nobody else waits for him. Where all
        # takes so long, it is the machine that has no time.
        if others != _MANY and held_up_s >= _HELD_UP_S and self._ask()[1] < held_up_s / 2:
            return True
        former, self._first = self._first, None
        if former is not None:
            former.detach()
        self._first = self._host.stand_first(self._database)
        return False

    def _ask(self) -> tuple[int, float]:
        """Return who else is there, and how many seconds the answer took."""
        assert self._looking is not None
        began = time.monotonic()
        others = _number(self._looking, _OTHERS)
        self._asked = time.monotonic()
        return others, self._asked - began


def _first_name(answer: bytes) -> str:
    """Return the name of the user who is the first one in the engine's list."""
    length = int.from_bytes(answer[1:3], "little")
    return answer[4 : 3 + length].decode("utf-8", "replace") if answer[0] == _USER_NAMES else ""


def _number(reading: EngineReading, sql: str) -> int:
    """Return the BIGINT that SQL gives; NULL is 0."""
    transaction = reading.begin(_SNAPSHOT)
    try:
        statement, shown = reading.prepare(transaction, sql.encode())
        try:
            reading.open(transaction, statement)
            length = int.from_bytes(shown[8:12], "little")
            offset, null = (int.from_bytes(shown[at : at + 4], "little") for at in (36, 40))
            rows, count, _ = reading.fetch(statement, length)
            row = bytes(reading.view(rows, count * length))
        finally:
            reading.free(statement)
    finally:
        reading.end(transaction)
    if not row or row[null]:
        return 0
    return int.from_bytes(row[offset : offset + 8], "little", signed=True)
