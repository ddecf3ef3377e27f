"""The border to the plugin: what the bridge may ask of it, and what it hears from it.

``Host`` is the protocol, ``CffiHost`` the plugin behind cffi (native/bridge_api.h). All calls
release the interpreter's lock; the ones that wait say how long.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import logbook

from firebird_cdc.bridge.engine_reading import EngineReading
from firebird_cdc.errors import CaptureError
from firebird_cdc.journal.folder.durable import boot_uuid
from firebird_cdc.journal.folder.inventory import TransactionState
from firebird_cdc.journal.folder.join_file import Identity
from firebird_cdc.journal.folder.journal_folder import Joined
from firebird_cdc.journal.folder.shared_page import SharedPage
from firebird_cdc.journal.format import fast_uuid
from firebird_cdc.native._shared_page import BRIDGE_ABI
from firebird_cdc.tree import installed_version

_log = logbook.Logger("firebird_cdc.bridge.host")

EVENT_BATCH = 256
_ERROR_BYTES = 1024
_QUESTION_BATCH = 64
_NULL = 0xFFFF
# struct fbc_event, as it is in memory
_EVENT = struct.Struct("@IIQQQqQQIIIIIQi16s16sQQ256s")
_COMPLETED_FACTOR = 51  # a column takes 23 bytes at least, and is completed by 1144 at most


class CommittedJournal(NamedTuple):
    """A transaction's commit was called: its sealed journal waits for the engine's state."""

    serial: int  # grows by one with every event of the plugin
    database: int
    uuid: UUID
    transaction: int
    ticket: int  # commit order: respects every row's history
    commit_us: int  # microseconds since 1970, UTC
    length: int  # bytes, with the catalogue
    catalogue_offset: int  # 0: it has none
    events: int
    has_ddl: bool
    is_unresolved: bool  # table definitions in it have to be completed
    is_unsynced: bool  # its sync failed: it has to be copied, with a sync that works
    is_gap: bool  # all that is in it is a gap
    reason: str  # of the gap or of the failed sync
    journal: UUID  # that it lies in; its own has its uuid
    offset: int  # there
    seal_end: int  # end of its seal, relative to that
    is_unlisted: bool = False  # no other process knows of it, as its entry could not be written


class DatabaseSeen(NamedTuple):
    """A session that writes in a database: the first one of this process, or again the only one."""

    serial: int
    database: int


class DeadTransactions(NamedTuple):
    """The engine marked a transaction dead; 0: all that a crash left behind."""

    serial: int
    database: int  # 0: not known
    transaction: int


class LastSessionLeft(NamedTuple):
    """No session is left in this process: the database may be closed, the process may end."""

    serial: int


class DatabaseLeft(NamedTuple):
    """The last session that wrote in a database has gone; others may work elsewhere."""

    serial: int
    database: int


class GapsCounted(NamedTuple):
    """Transactions committed that left nothing in the folder: see ``Host.read_gap``."""

    serial: int
    database: int


class JournalAbandoned(NamedTuple):
    """The engine let a transaction go without commit or rollback: it is in limbo, or publication
    was switched off meanwhile. Its journal is sealed."""

    serial: int
    database: int
    uuid: UUID
    transaction: int
    is_unsynced: bool = False  # its sync failed: it has to be copied
    fd: int = -1  # owned by the bridge, which keeps it locked; -1: it is not


class JournalLeft(NamedTuple):
    """Nothing is appended to a shared journal any more: it can be closed once all is decided.

    All that is in it ends at byte ``end``, and ``committed`` transactions of that were committed;
    0: nobody knows that."""

    serial: int
    journal: UUID
    end: int = 0
    committed: int = 0


class OthersCommitted(NamedTuple):
    """A process without a bridge has committed, and counts on others to confirm that."""

    serial: int


Event = (
    CommittedJournal
    | JournalLeft
    | DatabaseSeen
    | DatabaseLeft
    | DeadTransactions
    | LastSessionLeft
    | GapsCounted
    | JournalAbandoned
    | OthersCommitted
)


class CountedGap(NamedTuple):
    """Transactions of one database that committed and could not even leave a gap."""

    transactions: int
    first_us: int  # microseconds since 1970, UTC
    last_us: int
    reason: str  # of the first; empty: a process that has ended knew it


class DatabaseIdentity(NamedTuple):
    """A database as the plugin knows it."""

    path: str
    guid: UUID


class DiskUse(NamedTuple):
    """Disk space that waiting journals take."""

    bytes: int
    is_full: bool  # connector.journal.max.bytes was reached, and not left since
    refused: int  # how often it refused something, ever
    cost_ms: int  # how long it took to measure them


def _event(fields: tuple[Any, ...]) -> Event:
    (
        kind, database, serial, transaction, ticket, commit_us, length, catalogue_offset, has_ddl,
        is_unresolved, is_unsynced, is_gap, is_unlisted, events, fd, uuid, home, offset, seal_end,
        reason,
    ) = fields  # fmt: skip
    if kind == 1:
        return CommittedJournal(
            serial, database, fast_uuid(uuid), transaction, ticket, commit_us, length,
            catalogue_offset, events, bool(has_ddl), bool(is_unresolved), bool(is_unsynced),
            bool(is_gap), _text(reason) if is_gap or is_unsynced else "", fast_uuid(home), offset,
            seal_end, bool(is_unlisted),
        )  # fmt: skip
    if kind == 8:
        return JournalLeft(serial, fast_uuid(home), offset, events)
    if kind == 2:
        return DatabaseSeen(serial, database)
    if kind == 4:
        return LastSessionLeft(serial)
    if kind == 5:
        return GapsCounted(serial, database)
    if kind == 6:
        return JournalAbandoned(
            serial, database, fast_uuid(uuid), transaction, bool(is_unsynced), fd
        )
    if kind == 7:
        return DatabaseLeft(serial, database)
    if kind == 9:
        return OthersCommitted(serial)
    return DeadTransactions(serial, database, transaction)


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "replace")


_STATES = {
    0: TransactionState.ACTIVE,
    -1: TransactionState.LIMBO,
    -2: TransactionState.DEAD,
    -3: TransactionState.UNKNOWN,
}


class QuestionKind(IntEnum):
    """Kinds of requests of the plugin: to answer a question, or to do something."""

    COMPLETE = 1
    KNOW_INDEXES = 2  # find out which indexes are keys, unless that is known; no answer


class Question(NamedTuple):
    """Something that commits wait for; ``shown``: a definition as a record shows it, to be
    completed."""

    number: int
    database: int
    generation: int  # of the system tables when it was asked
    shown: bytes
    kind: QuestionKind


class OwnAttachment(Protocol):
    """An attachment of ours to one database. Used by one thread, and open only while there is
    something to ask: it stands in the way of DROP DATABASE and of a shutdown."""

    def ask(self, transactions: Sequence[int]) -> list[TransactionState]:
        """Return the state on each transaction number, in order, once it is on disk.

        Raises CaptureError with the engine's words; close the attachment then.
        """

    def reading(self) -> AbstractContextManager[None]:
        """Have all that is described and selected inside be of one state of the database, and take
        one transaction number.

        Raises CaptureError with the engine's words; close the attachment then.
        """

    def describe(self, definition: bytes) -> bytes:
        """Return a table definition of a journal completed from the system tables, or nothing
        if the table is gone.

        Raises CaptureError with the engine's words; close the attachment then.
        """

    def select(self, sql: str, columns: int) -> list[tuple[bytes | None, ...]]:
        """Return the rows of a question about the system tables, whose COLUMNS are all VARCHARs.

        Raises CaptureError with the engine's words; close the attachment then.
        """

    def close(self) -> None:
        """End the attachment; never raises."""


class OpenFolder(Protocol):
    """Parts of the journal folder that the plugin needs."""

    path: Path
    journal_fd: int
    making_fd: int
    owner: UUID
    page: SharedPage
    tickets_fd: int
    commits_fd: int
    slots_fd: int


class Host(Protocol):
    """Functions that the plugin offers to the bridge."""

    root: Path
    plugin: Identity
    """The plugin's file; zeros where no process is to join this one."""

    def joined(self) -> Joined | None:
        """Return where this process writes already, without a bridge; None: nowhere."""

    def configure(
        self, folder: OpenFolder, fsync: bool, gap: bool, transactions: int, memory_bytes: int
    ) -> None:
        """Say where journals lie, whether what can't be recorded is let through, how many
        TRANSACTIONS share a journal at most (0: no limit), and how much open ones have in memory
        before they go to files. What the folder has open stays open and in place."""

    def last_ticket(self) -> int:
        """Return the last ticket drawn by any process. Every journal with one up to it is
        marked, and handed over if it is of this process, or its process died in between."""

    def take_events(self, timeout_ms: int) -> list[Event]:
        """Return what happened, oldest first; empty when the time is up."""

    def settle(self, serial: int) -> None:
        """Tell sessions that wait to leave that all events up to ``serial`` are decided."""

    def read_gap(self, database: int) -> CountedGap | None:
        """Return what all processes have counted of a database's gaps; None: nothing."""

    def clear_gap(self, database: int, gap: CountedGap) -> None:
        """Take off the counters what was read and is marked now; what came since stays."""

    def database(self, database: int) -> DatabaseIdentity:
        """Return which database a number stands for."""

    def open_attachment(self, database: str) -> OwnAttachment:
        """Attach to a database inside this process, without a password.

        Raises CaptureError with the engine's words.
        """

    is_super: bool
    """True: this process has its databases for itself."""

    def captured(self) -> list[str]:
        """Return the paths of the databases that this process has captured since it began."""

    def open_reading(self, database: str) -> EngineReading:
        """Attach to a database inside this process to read its rows, without a password.

        Raises EngineRefusal.
        """

    def stand_first(self, database: str) -> EngineReading:
        """Attach to a database without any rights. Raises EngineRefusal."""

    def store_definition(
        self, database: int, generation: int, shown: bytes, complete: bytes
    ) -> None:
        """Let later transactions write the complete form of a table definition at once."""

    def take_questions(self, timeout_ms: int) -> list[Question]:
        """Return questions about one database; empty when the time is up. Answer them all."""

    def answer_question(self, number: int, complete: bytes) -> None:
        """Answer one, with nothing if that can't be done; no attachment of ours that was opened
        for it may be open any more."""

    def new_generation(self) -> None:
        """Say that the system tables changed: definitions are made anew."""

    def sync_file_system(self, fd: int) -> None:
        """Wait until all of the file system that ``fd`` is on is on disk. Raises OSError."""

    def spawn(self, program: Path, arguments: list[str], environment: dict[str, str]) -> int:
        """Start a detached process that the server doesn't notice. Raises OSError."""

    def fail(self, reason: str) -> None:
        """Have the next transaction start the bridge anew; where that fails too, REASON or that
        failure is what it is refused with."""

    def count_prepared(self) -> int:
        """Return how many transactions may still draw a ticket from a file that is retired."""

    def limit_disk(self, most: int) -> None:
        """Set connector.journal.max.bytes; 0: no limit."""

    def measure_disk(self, if_older_ms: int) -> DiskUse:
        """Measure the journal folder, unless any process did so just now."""


def _rows(content: bytes, columns: int) -> list[tuple[bytes | None, ...]]:
    """Take apart what attachment_select wrote: u16 length and bytes, field by field."""
    fields: list[bytes | None] = []
    at = 0
    while at < len(content):
        length = int.from_bytes(content[at : at + 2], "little")
        at += 2
        if length == _NULL:
            fields.append(None)
        else:
            fields.append(content[at : at + length])
            at += length
    return [tuple(fields[start : start + columns]) for start in range(0, len(fields), columns)]


class CffiAttachment:
    """An attachment that the plugin opens (native/own_attachment.c)."""

    def __init__(self, ffi: Any, api: Any, handle: Any) -> None:
        self._ffi = ffi
        self._api = api
        self._handle = handle

    def ask(self, transactions: Sequence[int]) -> list[TransactionState]:
        count = len(transactions)
        answers = self._ffi.new("int64_t[]", count)
        error = self._ffi.new("char[]", _ERROR_BYTES)
        numbers = self._ffi.new("uint64_t[]", list(transactions))
        if not self._api.attachment_ask(self._handle, numbers, answers, count, error, _ERROR_BYTES):
            raise CaptureError(self._ffi.string(error).decode("utf-8", "replace"))
        return [_STATES.get(answer, TransactionState.COMMITTED) for answer in answers]

    @contextmanager
    def reading(self) -> Iterator[None]:
        error = self._ffi.new("char[]", _ERROR_BYTES)
        if not self._api.attachment_begin_reading(self._handle, error, _ERROR_BYTES):
            raise CaptureError(self._ffi.string(error).decode("utf-8", "replace"))
        try:
            yield
        finally:
            self._api.attachment_end_reading(self._handle)

    def describe(self, definition: bytes) -> bytes:
        size = _COMPLETED_FACTOR * len(definition) + _ERROR_BYTES
        buffer = self._ffi.new("char[]", size)
        self._ffi.memmove(buffer, definition, len(definition))
        error = self._ffi.new("char[]", _ERROR_BYTES)
        length = self._api.attachment_describe(
            self._handle, buffer, len(definition), size, error, _ERROR_BYTES
        )
        cause = self._ffi.string(error).decode("utf-8", "replace")
        if length < 0:
            raise CaptureError(cause)
        if cause:
            _log.warning(
                "the schema of {table} gets no defaults of its columns, as they can't be read:"
                " {cause}; check the database with gfix -validate -full",
                table=definition[2 : 2 + int.from_bytes(definition[:2], "little")].decode(),
                cause=cause.replace("\n", " "),
            )
        return bytes(self._ffi.buffer(buffer, length))

    def select(self, sql: str, columns: int) -> list[tuple[bytes | None, ...]]:
        rows, length = self._ffi.new("char **"), self._ffi.new("size_t *")
        error = self._ffi.new("char[]", _ERROR_BYTES)
        if not self._api.attachment_select(
            self._handle, sql.encode(), columns, rows, length, error, _ERROR_BYTES
        ):
            raise CaptureError(self._ffi.string(error).decode("utf-8", "replace"))
        content = bytes(self._ffi.buffer(rows[0], length[0])) if length[0] else b""
        self._api.attachment_free(rows[0])
        return _rows(content, columns)

    def close(self) -> None:
        self._api.attachment_close(self._handle)
        self._handle = self._ffi.NULL


class CffiHost:
    """The plugin of this process, called through cffi."""

    def __init__(self, ffi: Any, api: Any) -> None:
        """Raise CaptureError if the plugin is of a version with other declarations."""
        if api.version != BRIDGE_ABI:  # of one that does not look for itself, up to 0.2.0
            raise CaptureError(
                f"the server has loaded the plugin of another version than firebird-cdc"
                f" {installed_version()}, which is installed now: restart the server"
            )
        self._ffi = ffi
        self._api = api
        self._events = ffi.new("struct fbc_event[]", EVENT_BATCH)
        assert ffi.sizeof("struct fbc_event") == _EVENT.size
        self._databases: dict[int, DatabaseIdentity] = {}
        self._questions = ffi.new("struct fbc_question_view[]", _QUESTION_BATCH)
        self._pages: list[SharedPage] = []  # also former ones: somebody may be looking at them
        self.root = Path(ffi.string(api.root).decode())
        self.plugin = Identity(*api.plugin)
        self.is_super = bool(api.is_super)

    def configure(
        self, folder: OpenFolder, fsync: bool, gap: bool, transactions: int, memory_bytes: int
    ) -> None:
        self._pages.append(folder.page)
        held = [
            self._ffi.new("char[]", os.fsencode(folder.path)),
            self._ffi.new("unsigned char[]", folder.owner.bytes),
            self._ffi.new("unsigned char[]", boot_uuid().bytes),
        ]
        path, owner, boot = held
        workplace = self._ffi.new(
            "struct fbc_workplace *",
            {
                "path": path,
                "journals": folder.journal_fd,
                "making": folder.making_fd,
                "tickets": folder.tickets_fd,
                "commits": folder.commits_fd,
                "slots": folder.slots_fd,
                "is_synced": fsync,
                "is_gap_mode": gap,
                "transactions": transactions,
                "memory_bytes": memory_bytes,
                "owner": owner,
                "boot": boot,
                "page": folder.page.fields,
            },
        )
        self._api.configure(workplace)

    def joined(self) -> Joined | None:
        place = self._ffi.new("struct fbc_workplace *")
        if not self._api.joined(place):
            return None
        return Joined(
            Path(os.fsdecode(self._ffi.string(place.path))),
            UUID(bytes=bytes(self._ffi.buffer(place.owner, 16))),
            place.journals,
            place.making,
            place.tickets,
            place.commits,
            place.slots,
            place.mark,
        )

    def last_ticket(self) -> int:
        return int(self._api.last_ticket())

    def take_events(self, timeout_ms: int) -> list[Event]:
        count = self._api.take_events(self._events, EVENT_BATCH, timeout_ms)
        taken = self._ffi.buffer(self._events, count * _EVENT.size)
        return [_event(fields) for fields in _EVENT.iter_unpack(taken)]

    def database(self, database: int) -> DatabaseIdentity:
        known = self._databases.get(database)
        if known is None:  # which never changes
            path = os.fsdecode(self._ffi.string(self._api.database_path(database)))
            guid = bytes(self._ffi.buffer(self._api.database_guid(database), 16))
            known = self._databases[database] = DatabaseIdentity(path, UUID(bytes=guid))
        return known

    def settle(self, serial: int) -> None:
        self._api.settle(serial)

    def read_gap(self, database: int) -> CountedGap | None:
        raw = self._ffi.new("struct fbc_gap *")
        if not self._api.read_gap(database, raw):
            return None
        reason = self._ffi.string(raw.reason).decode("utf-8", "replace")
        return CountedGap(raw.count, raw.first_us, raw.last_us, reason)

    def clear_gap(self, database: int, gap: CountedGap) -> None:
        raw = self._ffi.new("struct fbc_gap *")
        raw.count, raw.first_us, raw.last_us = gap.transactions, gap.first_us, gap.last_us
        self._api.clear_gap(database, raw)

    def open_attachment(self, database: str) -> OwnAttachment:
        error = self._ffi.new("char[]", _ERROR_BYTES)
        handle = self._api.attachment_open(os.fsencode(database), error, _ERROR_BYTES)
        if handle == self._ffi.NULL:
            raise CaptureError(self._ffi.string(error).decode("utf-8", "replace"))
        return CffiAttachment(self._ffi, self._api, handle)

    def captured(self) -> list[str]:
        paths: list[str] = []
        while path := self._ffi.string(self._api.database_path(len(paths) + 1)):
            paths.append(os.fsdecode(path))
        return paths

    def open_reading(self, database: str) -> EngineReading:
        return EngineReading(self._ffi, self._api, database)

    def stand_first(self, database: str) -> EngineReading:
        return EngineReading(self._ffi, self._api, database, has_rights=False)

    def store_definition(
        self, database: int, generation: int, shown: bytes, complete: bytes
    ) -> None:
        self._api.store_definition(database, generation, shown, len(shown), complete, len(complete))

    def take_questions(self, timeout_ms: int) -> list[Question]:
        count = self._api.take_questions(self._questions, _QUESTION_BATCH, timeout_ms)
        return [
            Question(
                view.number,
                view.database,
                view.generation,
                bytes(self._ffi.buffer(view.shown, view.length)),
                QuestionKind(view.kind),
            )
            for view in self._questions[0:count]
        ]

    def answer_question(self, number: int, complete: bytes) -> None:
        self._api.answer_question(number, complete, len(complete))

    def new_generation(self) -> None:
        self._api.new_generation()

    def sync_file_system(self, fd: int) -> None:
        result = self._api.sync_file_system(fd)
        if result < 0:
            raise OSError(-result, "cannot sync the journal folder's file system")

    def fail(self, reason: str) -> None:
        self._api.fail(reason.encode())

    def count_prepared(self) -> int:
        return int(self._api.count_prepared())

    def limit_disk(self, most: int) -> None:
        self._api.limit_disk(most)

    def measure_disk(self, if_older_ms: int) -> DiskUse:
        raw = self._ffi.new("struct fbc_disk *")
        self._api.measure_disk(if_older_ms, raw)
        return DiskUse(raw.bytes, bool(raw.is_full), raw.refused, raw.cost_ms)

    def spawn(self, program: Path, arguments: list[str], environment: dict[str, str]) -> int:
        def strings(values: list[str]) -> tuple[Any, list[Any]]:
            held = [self._ffi.new("char[]", os.fsencode(value)) for value in values]
            return self._ffi.new("char *[]", [*held, self._ffi.NULL]), held

        argv, argv_held = strings(arguments)
        envp, envp_held = strings([f"{key}={value}" for key, value in environment.items()])
        result = int(self._api.spawn(os.fsencode(program), argv, envp))
        del argv_held, envp_held
        if result < 0:
            raise OSError(-result, f"cannot start {program}")
        return result
