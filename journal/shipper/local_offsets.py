"""Local offsets: a journal folder's own memory of what was shipped, ``.firebird-cdc/shipped/``.

Kafka's offset topic tells how far a database has come; this tells how far it was once. If the
first is behind the second, the cluster has lost journals that are on no disk of ours any more.
Their range is kept here until somebody acknowledges it, and so is that of journals that were not in
the folder when it was their turn.

Files: ``folder`` has the identity of the folder. ``<key>.json`` is one database; it is replaced by
rename, now and then, and may be a second behind. ``<key>.acknowledged`` is a request of the command
to the shipper. ``<key>.unreadable`` is a memory that was damaged: what it told of losses is
unknown, so it stays until somebody acknowledges that. The identity is synced, and so is what nobody
else could tell again; what else a power cut takes was there for comparison.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import logbook

from firebird_cdc import access
from firebird_cdc.clock import now_us
from firebird_cdc.errors import ShipError
from firebird_cdc.journal.events.values import UNDECODED, UNREAD
from firebird_cdc.journal.folder.durable import (
    give_to_owner_of,
    make_folder,
    replace_file,
    sync_directory,
)
from firebird_cdc.journal.folder.ledger_lock import database_key
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.folder.subjects import INCOMPLETE, LEFT_OUT, LOST, MISSING
from firebird_cdc.journal.shipper.kafka.offset_topic import Offset
from firebird_cdc.journal.shipper.shared_offsets import Number, as_json, from_json
from firebird_cdc.journal.shipper.unsent_values import KINDS, Found, Kind, UnsentCount

_log = logbook.Logger("firebird_cdc.journal.shipper.local_offsets")

WRITE_S = 1.0
"""Shortest time between two writes of the memory."""

_FOLDER = "shipped"
_IDENTITY = "folder"
_REQUEST = ".acknowledged"
_DAMAGED = ".unreadable"

_CLOCK_STEP_US = 10_000  # the times of files are those of the kernel's last tick

_ACKNOWLEDGE = "then acknowledge it: firebird-cdc journal acknowledge"


def read_folder_identity(directory: Path) -> str | None:
    """The uuid of the journal folder DIRECTORY, None if nothing was ever shipped from it."""
    path = directory / STATE_DIRECTORY / _FOLDER / _IDENTITY
    with suppress(FileNotFoundError, NotADirectoryError, ValueError):
        return str(UUID(path.read_text("ascii").strip()))
    return None


@dataclass(frozen=True, slots=True)
class JournalRange:
    """Journals that nobody has: from ``first`` to ``last``, each (epoch, sequence).

    ``first`` None: from the beginning. ``noticed_us``: when that was found out.
    """

    first: tuple[int, int] | None
    last: tuple[int, int]
    noticed_us: int

    def __str__(self) -> str:
        epoch, sequence = self.last
        if self.first is None:
            return f"journals up to sequence {sequence} (epoch {epoch})"
        if self.first == self.last:
            return f"journal {sequence} (epoch {epoch})"
        since, start = self.first
        old = f" (epoch {since})" if since != epoch else ""
        return f"journals {start}{old} to {sequence} (epoch {epoch})"


class Notice(NamedTuple):
    """Something that is told until somebody acknowledges it, under the SUBJECT of a trouble, since
    SINCE_US (microseconds since 1970): a clause on what happened, and one on what to do."""

    subject: str
    what: str
    remedy: str
    since_us: int

    @property
    def text(self) -> str:
        """One sentence."""
        return f"{self.what}; {self.remedy}"


@dataclass(slots=True)
class Memory:
    """Memory of one database. ``number``: epoch and sequence of the last journal that
    was shipped, to topics whose positions are in ``topic``; None: none that counts. ``kept_from``:
    the first one that went into ``archive``, and with it all since; None: none is kept. ``lost``:
    what Kafka had once; ``missing``: what the folder did not have when it was to be sent.
    ``passed``: the last journal that is not in Kafka for a reason that was told; None: there is
    none.
    ``placeholders``: events that were sent with placeholders for values that are too large.
    ``left_out``: how many messages that are no events could not be sent, by what they are.
    ``shared``: up to which number of each shared journal all is delivered, where Kafka does not
    know it exactly (``journal.shipper.shared_offsets``); ``delivered``: of all journals then.
    ``incomplete``: by the ids of snapshots, when they ended and what rows they lack.
    ``unread``: of events with placeholders for BLOBs that could not be read; ``undecoded``: for
    values that could not be decoded."""

    database: str
    topic: str
    number: tuple[int, int] | None = None
    uuid: str = ""
    shipped_us: int = 0
    lost: list[JournalRange] = field(default_factory=list)
    archive: str = ""
    kept_from: tuple[int, int] | None = None
    placeholders: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    missing: list[JournalRange] = field(default_factory=list)
    passed: tuple[int, int] | None = None
    shared: dict[UUID, Number] = field(default_factory=dict)
    delivered: Number | None = None
    incomplete: dict[str, tuple[int, str]] = field(default_factory=dict)
    unread: UnsentCount = field(default_factory=UnsentCount)
    undecoded: UnsentCount = field(default_factory=UnsentCount)

    @property
    def unknown(self) -> list[str]:
        """Return what nobody has acknowledged yet, for people."""
        missing = [f"{each} missing in the folder" for each in self.missing]
        unsent = [count.told(kind.values) for kind, count in self.unsent.values() if count.unknown]
        return [*map(str, self.lost), *missing, *self._left_out(), *self._incomplete(), *unsent]

    @property
    def unsent(self) -> dict[str, tuple[Kind, UnsentCount]]:
        """Of events with placeholders, by kind."""
        counts = {UNREAD: self.unread, UNDECODED: self.undecoded}
        return {name: (kind, counts[name]) for name, kind in KINDS.items()}

    def _left_out(self) -> list[str]:
        return [f"{what} ({many})" for what, many in self.left_out.items()]

    def _incomplete(self) -> list[str]:
        return [f"snapshot {id}: {what}" for id, (_, what) in self.incomplete.items()]

    def notices(self) -> Iterator[Notice]:
        """Yield what nobody has acknowledged yet, each kind once."""
        if self.lost:
            yield Notice(
                LOST + self.database,
                f"Kafka no longer has {_listed(self.lost)} of {self.database}",
                f"look for them in the archive or a backup; {_ACKNOWLEDGE}",
                self.lost[0].noticed_us,
            )
        if self.missing:
            yield Notice(
                MISSING + self.database,
                f"the journal folder did not have {_listed(self.missing)} of {self.database} when"
                " they were to be sent, so consumers lack these events",
                f"look for them in the quarantine, the archive or a backup; {_ACKNOWLEDGE}",
                self.missing[0].noticed_us,
            )
        if self.left_out:
            yield Notice(
                LEFT_OUT + self.database,
                f"what goes with events of {self.database} could not be sent and was left out:"
                f" {', '.join(self._left_out())}",
                f"our log says why: mend that; {_ACKNOWLEDGE}",
                now_us(),
            )
        if self.incomplete:
            yield Notice(
                INCOMPLETE + self.database,
                f"snapshots of {self.database} ended without some rows, which consumers lack:"
                f" {'; '.join(self._incomplete())}",
                "our log says why: mend that, and have firebird-cdc snapshot execute read these"
                f" tables again; {_ACKNOWLEDGE}",
                next(iter(self.incomplete.values()))[0],
            )
        for kind, count in self.unsent.values():
            if count.unknown:
                yield Notice(
                    kind.subject + self.database,
                    f"{count.told(kind.values)} from {self.database}, so consumers lack their"
                    f" content; the first is {count.first}",
                    f"{kind.remedy}; {_ACKNOWLEDGE}",
                    count.first_us,
                )

    def acknowledge(self, until_us: int) -> None:
        """Take it that somebody knows what was noticed by then, in microseconds since 1970."""
        now = now_us()  # what was noticed later than that was noticed before the clock was set back
        self.lost = [each for each in self.lost if until_us < each.noticed_us <= now]
        self.missing = [each for each in self.missing if until_us < each.noticed_us <= now]
        self.left_out.clear()
        self.incomplete = {
            id: (ended_us, what)
            for id, (ended_us, what) in self.incomplete.items()
            if until_us < ended_us <= now
        }
        self.unread.acknowledge(until_us)
        self.undecoded.acknowledge(until_us)

    def pass_over(self, number: tuple[int, int]) -> None:
        """Take it that what became of the journals up to NUMBER is told."""
        self.passed = max(self.passed or number, number)

    @classmethod
    def parse(cls, content: bytes) -> Memory:
        """Read what `to_json` wrote; raises ValueError, KeyError, TypeError."""
        fields = json.loads(content)
        return cls(
            str(fields["database"]),
            str(fields["topic"]),
            _number(fields["number"]),
            str(fields["uuid"]),
            int(fields["shipped_us"]),
            _ranges(fields["lost"]),
            str(fields.get("archive", "")),
            _number(fields.get("kept_from")),
            int(fields.get("placeholders", 0)),
            {str(what): int(many) for what, many in fields.get("left_out", {}).items()},
            _ranges(fields.get("missing", [])),
            _number(fields.get("passed")),
            from_json(fields.get("shared", {})),
            _number(fields.get("delivered")),
            {
                str(id): (int(ended_us), str(what))
                for id, (ended_us, what) in fields.get("incomplete", {}).items()
            },
            UnsentCount.parse(fields.get("unread", {})),
            UnsentCount.parse(fields.get("undecoded", {})),
        )

    def to_json(self) -> bytes:
        """Return the content of its file."""
        return json.dumps({**asdict(self), "shared": as_json(self.shared)}).encode()


def _ranges(fields: list[dict[str, Any]]) -> list[JournalRange]:
    return [
        JournalRange(_number(each["first"]), tuple(each["last"]), int(each["noticed_us"]))
        for each in fields
    ]


def _listed(ranges: Iterable[JournalRange]) -> str:
    return ", ".join(map(str, ranges))


def _number(pair: list[int] | None) -> tuple[int, int] | None:
    return None if pair is None else (int(pair[0]), int(pair[1]))


class Shipped:
    """The memory of the folder DIRECTORY. TOPIC: the offset topic that is used now; ARCHIVE:
    where journals are kept, None: nowhere.

    But for the identity nothing here stops shipping: what can't be read or written is told.
    ``unreadable``: by their keys, notices of the memories that can't be read. ``unwritable``: why
    what is remembered can't be written; empty: it can.
    """

    def __init__(self, directory: Path, topic: str, archive: Path | None = None) -> None:
        self._directory = directory
        self._archive = "" if archive is None else str(archive.absolute())
        self._folder = directory / STATE_DIRECTORY / _FOLDER
        self._topic = topic
        self.unwritable = ""
        self._told_requests: set[str] = set()
        self._dirty: set[str] = set()
        self._unsynced: set[str] = set()  # written, but perhaps not on disk
        self._failure = 0
        self._is_to_sync = False
        self._next_write = 0.0
        self._next_look = 0.0
        self.identity = ""
        self.databases: dict[str, Memory] = {}
        self.unreadable: dict[str, Notice] = {}
        self.load()

    def load(self) -> None:
        """Read all anew: the folder may be another one now. Raises ShipError."""
        try:
            make_folder(self._folder)
            self.identity = self._identify()
        except OSError as error:
            # Under another identity Kafka would have it from another folder next time.
            raise ShipError(
                f"the identity of the journal folder can't be saved: {error}"
            ) from error
        self._dirty.clear()
        self._unsynced.clear()
        self.databases = {memory.database: memory for memory in self._read()}

    def _identify(self) -> str:
        """The uuid of the folder, which moves with it; made if it has none."""
        known = read_folder_identity(self._directory)
        if known is not None:
            sync_directory(self._folder)  # who made it may have died before
            return known
        identity = str(uuid4())
        path = self._folder / _IDENTITY
        replace_file(path, f"{identity}\n".encode())
        try:
            sync_directory(self._folder)
        except OSError:
            path.unlink()  # nobody has seen it; another sync would pass over its name
            raise
        return identity

    def _read(self) -> Iterator[Memory]:
        for path, found in _memories(self._directory):
            if isinstance(found, Memory):
                yield found
                continue
            if path.suffix != _DAMAGED:
                _log.warning("{}: can't be read ({}), so it is not compared", path, found)
                try:  # or the next position would take its place
                    path.replace(path.with_suffix(_DAMAGED))
                except OSError as error:
                    _log.warning("{}: the damaged file can't be renamed: {}", path, error)
        self.unreadable = unreadable(self._directory)

    def note(self, position: Offset) -> None:
        """POSITION is in Kafka."""
        memory = self._memory(position.database)
        if memory.archive != self._archive:
            epoch, last = memory.number or (position.number[0], 0)
            memory.archive = self._archive
            memory.kept_from = (epoch, last + 1) if self._archive else None
        memory.topic = self._topic
        memory.number = position.whole
        memory.uuid = str(position.uuid)
        memory.shipped_us = position.shipped_us
        memory.unread.forget(position.whole)
        memory.undecoded.forget(position.whole)
        self._dirty.add(position.database)

    def count_placeholders(self, database: str, count: int) -> None:
        """Keep that COUNT events of DATABASE have placeholders by now."""
        memory = self._memory(database)
        if memory.placeholders != count:
            memory.placeholders = count
            self._dirty.add(database)

    def leave_out(self, database: str, whats: Iterable[str]) -> Memory:
        """Keep that WHATS, which are no events, were left out of what was sent of DATABASE."""
        memory = self._memory(database)
        for what in whats:
            memory.left_out[what] = memory.left_out.get(what, 0) + 1
        self._dirty.add(database)
        self._is_to_sync = True
        return memory

    def lack(self, database: str, id: str, ended_us: int, what: str) -> Memory:
        """Keep that snapshot ID of DATABASE ended without some rows: WHAT."""
        memory = self._memory(database)
        memory.incomplete[id] = ended_us, what
        self._dirty.add(database)
        self._is_to_sync = True
        return memory

    def count_unsent(
        self,
        database: str,
        kind: str,
        uuid: UUID,
        number: tuple[int, int],
        found: Sequence[Found],
    ) -> bool:
        """Keep that events of DATABASE, FOUND in journal UUID with NUMBER, have placeholders for
        values of KIND; False: that was known."""
        _, count = self._memory(database).unsent[kind]
        if not count.add(uuid, number, found):
            return False
        self._dirty.add(database)
        self._is_to_sync = True
        return True

    def miss(self, database: str, first: tuple[int, int], last: tuple[int, int]) -> Memory:
        """Keep that journals FIRST to LAST of DATABASE, of one epoch, are passed over, as the
        folder does not have them."""
        memory = self._memory(database)
        before_it = memory.missing[-1] if memory.missing else None
        if before_it is not None and before_it.last == before(first):
            first = before_it.first or first
            memory.missing.pop()
        memory.missing.append(JournalRange(first, last, now_us()))
        self.pass_over(database, last)
        return memory

    def pass_over(self, database: str, number: tuple[int, int]) -> None:
        """Keep that journal NUMBER of DATABASE is not sent, which is told elsewhere."""
        self._memory(database).pass_over(number)
        self._is_to_sync = True
        self._dirty.add(database)

    def keep_shared(self, database: str, reached: Mapping[UUID, Number], last: Number) -> None:
        """Keep up to which numbers shared journals of DATABASE are delivered, and all journals."""
        memory = self._memory(database)
        if memory.delivered != last or memory.shared != reached:
            memory.shared, memory.delivered = dict(reached), last
            self._dirty.add(database)

    def write_shared(self) -> None:
        """Have on disk what was kept of shared journals. Raises OSError."""
        self._dirty |= {each for each in self._unsynced if self.databases[each].shared}
        if not any(self.databases[database].shared for database in self._dirty):
            return
        self._is_to_sync = True
        self.write()
        if self._dirty and self._failure not in (errno.ENOSPC, errno.EDQUOT):
            # Where the disk is full, what is removed now makes room.
            raise OSError(self._failure, self.unwritable, str(self._folder))

    def _memory(self, database: str) -> Memory:
        memory = self.databases.get(database)
        if memory is None:
            memory = self.databases[database] = Memory(database, self._topic)
        return memory

    def compare(self, database: str, position: Offset | None) -> JournalRange | None:
        """Return the range of journals of DATABASE that are lost if Kafka has POSITION; note it, so
        that it is told once."""
        memory = self.databases.get(database)
        if memory is None or memory.number is None:
            return None
        if memory.topic != self._topic:
            _log.notice(
                "{}: offsets are kept in topic {} now, before in {}",
                database,
                self._topic,
                memory.topic,
            )
            memory.number, memory.topic = None, self._topic
            self._dirty.add(database)
            return None
        reached = None
        if position is not None:
            if position.folder != self.identity:
                return None  # of another folder: not comparable
            reached = position.whole
            if reached >= memory.number:
                return None
        return self.lose(memory, reached)

    def lose(self, memory: Memory, reached: tuple[int, int] | None) -> JournalRange | None:
        """Kafka has journals up to REACHED only, fewer than MEMORY knows."""
        if memory.number is None:
            return None
        first = None if reached is None else (reached[0], reached[1] + 1)
        lost = JournalRange(first, memory.number, now_us())
        memory.lost.append(lost)
        memory.pass_over(lost.last)
        memory.number = reached
        self._is_to_sync = True
        self._dirty.add(memory.database)
        return lost

    def acknowledgements(self, now: float) -> list[str]:
        """Return databases for which somebody has acknowledged what happened, each once."""
        if now < self._next_look:
            return []
        self._next_look = now + WRITE_S
        if self.unreadable:
            self.unreadable = unreadable(self._directory)
        found = []
        for path in self._folder.glob(f"*{_REQUEST}"):
            try:
                requested_us = _written_us(path)
                database = path.read_text("utf-8")
                path.unlink()
            except (OSError, ValueError) as error:
                if path.name not in self._told_requests:
                    self._told_requests.add(path.name)
                    _log.warning("{}: the acknowledgement can't be read: {}", path, error)
                continue
            memory = self.databases.get(database)
            if memory is not None:
                memory.acknowledge(requested_us)
                self._dirty.add(database)
            found.append(database)
        return found

    def write(self, now: float | None = None) -> None:
        """Write what has changed, if it is time (NOW: monotonic; None: it is)."""
        if not self._dirty or (now is not None and now < self._next_write):
            return
        if now is not None:
            self._next_write = now + WRITE_S
        try:
            for database in self._dirty:
                path = self._folder / f"{database_key(database)}.json"
                content = self.databases[database].to_json()
                replace_file(path, content, is_synced=self._is_to_sync)
            if self._is_to_sync:
                sync_directory(self._folder)
        except OSError as error:
            if str(error) != self.unwritable:
                _log.warning("what was shipped can't be saved: {}", error)
            self.unwritable, self._failure = str(error), error.errno or errno.EIO
            return
        if self._is_to_sync:
            self._unsynced -= self._dirty
        else:
            self._unsynced |= self._dirty
        self.unwritable = ""
        self._is_to_sync = False
        self._dirty.clear()


def before(number: tuple[int, int]) -> tuple[int, int]:
    """The number in front of NUMBER."""
    return number[0], number[1] - 1


def _written_us(request: Path) -> int:
    return request.stat().st_mtime_ns // 1000 + _CLOCK_STEP_US


def remembered(directory: Path) -> list[Memory]:
    """Return what the folder DIRECTORY remembers, for whoever shows it; without what was
    acknowledged, be it that no shipper has taken note yet. ``unreadable`` has what is not here."""
    found = []
    for path, memory in _memories(directory):
        if isinstance(memory, Memory):
            with suppress(FileNotFoundError):
                memory.acknowledge(_written_us(path.with_suffix(_REQUEST)))
            found.append(memory)
    return found


def unreadable(directory: Path) -> dict[str, Notice]:
    """Return a notice of each memory of the folder DIRECTORY that can't be read, by the database's
    key."""
    return {
        path.stem: Notice(
            LOST + path.stem,
            f"what was shipped of a database can't be read in {path} ({found}), so it is unknown"
            " whether Kafka has lost journals of it before",
            "firebird-cdc journal acknowledge once that is known",
            now_us(),
        )
        for path, found in _memories(directory)
        if not isinstance(found, Memory)
    }


def notices(directory: Path) -> list[Notice]:
    """Return what the folder DIRECTORY remembers and nobody has acknowledged, of all databases."""
    known = [notice for memory in remembered(directory) for notice in memory.notices()]
    return [*unreadable(directory).values(), *known]


def _memories(directory: Path) -> Iterator[tuple[Path, Memory | str]]:
    """Yield the files with memories, and each one's content, or why it can't be read."""
    folder = directory / STATE_DIRECTORY / _FOLDER
    for path in sorted(folder.glob(f"*{_DAMAGED}")):
        yield path, "it was found damaged"
    for path in sorted(folder.glob("*.json")):
        try:
            memory = Memory.parse(path.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            yield path, str(error) or type(error).__name__
        else:
            yield path, memory


def acknowledge(directory: Path, database: str) -> None:
    """Have the shipper of DIRECTORY, now or when it runs, know that somebody knows what happened
    to DATABASE. May raise OSError."""
    state = directory / STATE_DIRECTORY
    folder = state / _FOLDER
    access.make_directory(folder)
    give_to_owner_of(state, folder)
    path = folder / f"{database_key(database)}{_REQUEST}"
    replace_file(path, database.encode(), owner_of=state, is_synced=False)
    forget(directory, database_key(database))


def forget(directory: Path, key: str) -> None:
    """Remove a memory that can't be read, that of the database with KEY. May raise OSError."""
    for path, found in _memories(directory):
        if path.stem == key and not isinstance(found, Memory):
            path.unlink(missing_ok=True)
