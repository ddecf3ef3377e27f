"""Requested, running and past snapshots of one database, in a form that outlasts the shipper.

A copy lies in ``.firebird-cdc/snapshots/<key>.json``. With a transactional id the same content is a
record of the offset topic, written in the Kafka transaction that has the rows, and the one with the
higher ``serial`` holds. Without, the file alone says how far a snapshot has come.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import uuid4

from firebird_cdc import access
from firebird_cdc.clock import now_us
from firebird_cdc.journal.folder.durable import (
    give_to_owner_of,
    replace_file,
    sync_directory,
)
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.snapshot.catalogue import record_number
from firebird_cdc.journal.snapshot.queries import is_select

SNAPSHOTS = "snapshots"
"""Folder of the states, in ``.firebird-cdc``."""

PAST_KEPT = 20
"""Snapshots that have ended and are still told of."""

_VERSION = 1

GONE = "it was dropped, or left the publication"
"""Reason why a table is skipped that has no rows to be missed."""


class Kind(StrEnum):
    """Way in which a snapshot is taken.

    ``INITIAL`` and ``BLOCKING`` read all tables at one moment, while the changes wait; the first
    one leaves out the changes that it has seen. ``INCREMENTAL`` reads chunk by chunk beside them.
    """

    INITIAL = "initial"
    BLOCKING = "blocking"
    INCREMENTAL = "incremental"


class Status(StrEnum):
    """Progress of a snapshot, or of one table of it. ``OWED``: nobody can attach yet."""

    WAITING = "waiting"
    OWED = "owed"
    RUNNING = "running"
    COMPLETED = "completed"
    STOPPED = "stopped"
    SKIPPED = "skipped"


@dataclass
class TableProgress:
    """A table in a snapshot.

    ``condition``: what a row has to fulfil, in SQL, or a SELECT that gives the rows. ``shape``:
    RDB$RELATION_ID and columns of the key, by which a table that was made again, or has another
    key, is told from the former one. ``after``: DB_KEY of the last row that Kafka has, in
    hexadecimal. ``left_out``: rows that could not be sent. ``unread``: rows with BLOBs that
    could not be read, or values that could not be decoded. ``why``: of SKIPPED. ``extent``: about
    how many record numbers it has, 0: not known, as it has few.
    """

    name: str
    condition: str | None = None
    shape: list[int | str] | None = None
    after: str | None = None
    rows: int = 0
    left_out: int = 0
    status: Status = Status.WAITING
    why: str = ""
    extent: int = 0
    unread: int = 0

    @property
    def reached(self) -> int:
        """Return the record number, up to ``extent``, to which it has come."""
        if not (self.is_open and self.extent):
            return self.extent
        if self.after is None:
            return 0
        return min(record_number(bytes.fromhex(self.after)), self.extent)

    @property
    def is_selected(self) -> bool:
        """Tell whether a SELECT gives the rows."""
        return self.condition is not None and is_select(self.condition)

    @property
    def torn_by_pause(self) -> str:
        """Return why rows behind those that were sent can't be read at another moment, for people;
        empty: they can, or none were sent."""
        if self.after is None and not self.rows + self.left_out:
            return ""
        if self.is_selected:
            return "what its SELECT gives can't be read in parts"
        has_key = self.shape is None or len(self.shape) > 1
        return "" if has_key else "without a key it can't be read in parts"

    @property
    def is_open(self) -> bool:
        """Tell whether rows of it are still to be sent."""
        return self.status in (Status.WAITING, Status.RUNNING)

    def begin_anew(self) -> None:
        """Forget how far it has come."""
        self.after, self.rows, self.left_out, self.unread = None, 0, 0, 0
        self.status = Status.WAITING


@dataclass
class Snapshot:
    """A snapshot that was asked for.

    ``id``: its name for people, which others may have, too; ``key``: its own, by which a signal
    that is read again after a crash is known. ``origin``: who asked, as ``command`` or
    ``snapshot.mode``. ``collections``: patterns of tables' identifiers, none: all that are
    captured. ``conditions``: pattern and SQL. ``tables``: those that it has, None: not yet looked
    up; ``stopped``: patterns of those that were taken out before that. ``windows``: how many
    moments were read. Times in microseconds since 1970, 0: not yet.
    """

    id: str
    kind: Kind
    origin: str
    collections: tuple[str, ...] = ()
    conditions: tuple[tuple[str, str], ...] = ()
    requested_us: int = field(default_factory=now_us)
    started_us: int = 0
    ended_us: int = 0
    status: Status = Status.WAITING
    why: str = ""
    tables: list[TableProgress] | None = None
    stopped: tuple[str, ...] = ()
    windows: int = 0
    key: str = field(default_factory=lambda: str(uuid4()))

    @property
    def open_tables(self) -> list[TableProgress]:
        """The tables of which rows are still to be sent."""
        return [table for table in self.tables or () if table.is_open]

    @property
    def rows(self) -> int:
        """Rows that Kafka has."""
        return sum(table.rows for table in self.tables or ())

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> Snapshot:
        """Return what was written as HELD. Raises KeyError, TypeError or ValueError."""
        tables = held["tables"]
        if tables is not None:
            tables = [
                TableProgress(**{**each, "status": Status(each["status"])}) for each in tables
            ]
        return cls(
            **{
                **held,
                "kind": Kind(held["kind"]),
                "status": Status(held["status"]),
                "collections": tuple(held["collections"]),
                "stopped": tuple(held.get("stopped", ())),
                "conditions": tuple((str(one), str(other)) for one, other in held["conditions"]),
                "tables": tables,
            }
        )


@dataclass
class SeenSet:
    """Transactions that the initial snapshot has seen: their changes of its tables are not sent.

    ``epoch``: in which these numbers hold. The rest as in `VisibleSet`.
    """

    epoch: int
    transaction: int
    outside: list[int]
    inside: list[int]
    dead: list[int]
    tables: list[str]


FOLDER = "folder"
"""Key of the journal folder's identity, among the places."""

_KEYS = "keys"  # there, too


def _named(snapshot: Mapping[str, Any]) -> str:
    return f"{snapshot['requested_us']} {snapshot['id']}"


@dataclass
class SnapshotState:
    """Content of a database's file, and of its record.

    ``guid``: of the database that rows were read from last, in hexadecimal, empty: none yet.
    ``waiting``: snapshots that are to be taken, the first one now. ``past``: the last ones that
    have ended. ``barriers``: by table, record version of its publication and the next transaction's
    number when that was met. ``places``: by channel, up to where signals were taken;
    they are those of a journal folder, see `FOLDER`.
    """

    database: str
    guid: str = ""
    serial: int = 0
    is_paused: bool = False
    waiting: list[Snapshot] = field(default_factory=list)
    past: list[Snapshot] = field(default_factory=list)
    barriers: dict[str, tuple[int, int]] = field(default_factory=dict)
    seen: SeenSet | None = None
    places: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Return the content of the file. Former versions take no other fields, but any place."""
        held = asdict(self)
        keys: dict[str, list[str]] = {}
        for each in (*held["waiting"], *held["past"]):
            keys.setdefault(_named(each), []).append(each.pop("key"))
        held["places"][_KEYS] = keys
        return json.dumps({"version": _VERSION, **held}).encode()

    @classmethod
    def from_json(cls, content: bytes) -> SnapshotState:
        """Return what was written as CONTENT. Raises ValueError."""
        try:
            held = json.loads(content)
            if held.pop("version") != _VERSION:
                raise ValueError("it is of another version of firebird-cdc")
            seen = held["seen"]
            keys = held["places"].pop(_KEYS, {})
            for each in (*held["waiting"], *held["past"]):
                own = keys.get(_named(each))
                each.setdefault("key", own.pop(0) if own else each["id"])
            return cls(
                **{
                    **held,
                    "waiting": [Snapshot.from_json(each) for each in held["waiting"]],
                    "past": [Snapshot.from_json(each) for each in held["past"]],
                    "barriers": {
                        name: (int(version), int(before))
                        for name, (version, before) in held["barriers"].items()
                    },
                    "seen": None if seen is None else SeenSet(**seen),
                }
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no state of ours: {error!r}") from error

    def copy(self) -> SnapshotState:
        """Return one that can be changed without this one."""
        return self.from_json(self.to_json())

    def end(self, snapshot: Snapshot, status: Status, why: str = "") -> None:
        """SNAPSHOT, which waits or runs, has ended so."""
        snapshot.status, snapshot.ended_us = status, now_us()
        snapshot.why = why or snapshot.why
        self.waiting = [each for each in self.waiting if each.key != snapshot.key]
        self.past = [*self.past, snapshot][-PAST_KEPT:]


def make_state_folder(folder: Path) -> None:
    """Make FOLDER in the state folder of a journal folder, for the same user, with a durable name.

    Raises OSError where that is not there: a journal folder that is away must not be made anew.
    """
    access.make_directory(folder)
    give_to_owner_of(folder.parent, folder)
    sync_directory(folder.parent)


class StateFolder:
    """The states of a journal folder. OSErrors pass."""

    def __init__(self, journals: Path) -> None:
        self.folder = journals / STATE_DIRECTORY / SNAPSHOTS
        self._owner = journals / STATE_DIRECTORY

    def read(self) -> Iterator[SnapshotState]:
        """Yield all states. Raises ValueError naming a file that is none."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                yield SnapshotState.from_json(path.read_bytes())
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error

    def write(self, state: SnapshotState, *, is_synced: bool = True) -> None:
        """Have STATE on disk; without IS_SYNCED a power cut may take it."""
        # Needs what is compiled, which whoever reads states need not have.
        from firebird_cdc.journal.folder.ledger_lock import database_key

        make_state_folder(self.folder)
        path = self.folder / f"{database_key(state.database)}.json"
        replace_file(path, state.to_json(), owner_of=self._owner, is_synced=is_synced)
        if is_synced:
            sync_directory(self.folder)
