"""Repair journals: what an audit found missing in Kafka, made ready to be published again.

A repair is two files in ``.firebird-cdc/repairs``. ``<uuid>.log`` is a journal of its own that
holds copies of the missing events, and behind them the present rows of keys of which Kafka has
newer events; so it needs no other journal any more. ``<uuid>.json`` tells what each of its events
stands for, and up to which point of its database it is true: it is sent only while that is the last
point that was shipped. It exists once the journal is whole on disk, and goes to ``sent/`` in one
rename when Kafka has all of it. What lies there is the memory that keeps an event from being
published twice.

The command ``replay repair`` makes repairs, the shipper sends them
(``journal.shipper.delivery.repair``).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from firebird_cdc.errors import JournalError
from firebird_cdc.journal.folder.durable import (
    give_to_owner_of,
    make_folder,
    replace_file,
    sync_directory,
)
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.format import (
    Blob,
    DdlChange,
    Header,
    JournalWriter,
    Row,
    RowChange,
    Stamp,
    Table,
    TableChange,
    Undecodable,
)

REPAIRS = "repairs"
"""Folder of repairs, in ``.firebird-cdc``; those that were sent are in ``sent`` in it."""

REPAIR_HEADER = "__firebird_cdc.repair"
"""Header of each message of a repair: JSON, see docs/events.md."""

ORIGINAL = "original event"
STATE = "current state"

WHOLE = (1 << 63) - 1
"""In a `RepairPoint`: all events of the journal, however many there are."""

MOST_EVENTS = 5_000
"""Events of one repair: what is held in memory, and sent in one Kafka transaction."""

MOST_BYTES = 32 * 1024 * 1024
"""No further event joins a repair that is larger, so one may be larger by an event."""

MOST_NAMED = 500
"""Missing events that one message of a key's current state stands for; more get another message."""

_VERSION = 1
_NAMESPACE = UUID("6f0b6a0e-3b0f-5f0e-9f53-8c8f6c4f5d21")


def repair_told(text: str) -> dict[str, Any]:
    """Return what the text of a `REPAIR_HEADER` says. Raises ValueError or TypeError.

    Its lists stand in it as texts of their own where `SimpleHeaders` wrote it.
    """
    told = dict(json.loads(text))
    for name in {"as_of", "events"} & told.keys():
        if isinstance(told[name], str):
            told[name] = json.loads(told[name])
    return told


class RepairPoint(NamedTuple):
    """A point in the history of a database: behind event ``pos`` of a journal."""

    epoch: int
    sequence: int
    pos: int = WHOLE


class Origin(NamedTuple):
    """A journal that events were copied from."""

    uuid: UUID
    transaction: int
    epoch: int
    sequence: int
    commit_us: int

    @property
    def header(self) -> Header:
        """Header of the transaction, as far as the events' messages show it."""
        return Header(self.uuid, self.transaction, 0, UUID(int=0), UUID(int=0))

    @property
    def stamp(self) -> Stamp:
        """Stamp of the transaction, as far as the events' messages show it."""
        return Stamp(
            self.epoch, self.sequence, self.commit_us, self.commit_us, 0, 0, self.transaction
        )


class Missing(NamedTuple):
    """A missing event: which journal it is of (``origin``: an index into those of its repair)."""

    origin: int
    pos: int


@dataclass(frozen=True, slots=True)
class Repair:
    """``token``: the last point of its database that was shipped when it was made, as the shipper
    says it, None if it knew none; ``as_of``: the same, and what the archive tells beyond it.
    ``events``: for each event of the journal the missing ones that it stands for;
    the first ``originals`` of them are these events themselves.
    """

    uuid: UUID
    database: str
    token: RepairPoint | None
    as_of: RepairPoint
    made_us: int
    origins: tuple[Origin, ...]
    events: tuple[tuple[Missing, ...], ...]
    originals: int

    @property
    def wait(self) -> str:
        """Number of its events that wait, as a sentence for people."""
        count = len(self.events)
        return "1 event waits" if count == 1 else f"{count} events wait"

    def is_original(self, pos: int) -> bool:
        """Tell whether event POS of the journal is a missing one itself."""
        return pos <= self.originals

    def header_of(self, pos: int, table: str) -> dict[str, Any]:
        """The content of `REPAIR_HEADER` for event POS of the journal, of TABLE."""
        content: dict[str, Any] = {
            "kind": ORIGINAL if self.is_original(pos) else STATE,
            "repair": str(self.uuid),
            "database": self.database,
        }
        if table:
            content["table"] = table
        if not self.is_original(pos):
            content["as_of"] = [self.as_of.epoch, self.as_of.sequence]
        content["events"] = [
            [*self.origins[missing.origin][2:4], missing.pos] for missing in self.events[pos - 1]
        ]
        return content

    def without(self, left_out: set[int]) -> Repair | None:
        """Return the part of it that was sent if the events at PLACES were not; None: nothing."""
        events = tuple(
            () if pos in left_out else missing for pos, missing in enumerate(self.events, 1)
        )
        return replace(self, events=events) if any(events) else None

    def to_json(self) -> bytes:
        """Return the content of the file."""
        content = {
            "version": _VERSION,
            "database": self.database,
            "token": self.token,
            "as_of": self.as_of,
            "made_us": self.made_us,
            "origins": [[str(origin.uuid), *origin[1:]] for origin in self.origins],
            "originals": self.originals,
            "events": self.events,
        }
        return json.dumps(content, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_json(cls, uuid: UUID, content: bytes) -> Repair:
        """Return the repair that was written as CONTENT. Raises ValueError."""
        try:
            held = json.loads(content)
            if held["version"] != _VERSION:
                raise ValueError(f"version {held['version']} of another firebird-cdc")
            token = held["token"]
            return cls(
                uuid,
                str(held["database"]),
                None if token is None else RepairPoint(*token),
                RepairPoint(*held["as_of"]),
                int(held["made_us"]),
                tuple(Origin(UUID(text), *rest) for text, *rest in held["origins"]),
                tuple(tuple(Missing(*each) for each in event) for event in held["events"]),
                int(held["originals"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a repair of ours: {error!r}") from error


def repair_uuid(
    database: str,
    token: RepairPoint | None,
    origins: Sequence[Origin],
    events: Sequence[Sequence[Missing]],
) -> UUID:
    """The uuid of a repair: the same for the same events at the same point."""
    named = [[[str(origins[index].uuid), pos] for index, pos in missing] for missing in events]
    return uuid5(_NAMESPACE, json.dumps([database, token, named]))


class RepairFolder:
    """The repairs of a journal folder; used by the shipper and by the command. OSErrors pass."""

    def __init__(self, journals: Path) -> None:
        self.folder = journals / STATE_DIRECTORY / REPAIRS
        self._state = journals / STATE_DIRECTORY
        self._sent = self.folder / "sent"

    def make(self) -> None:
        """Make the folders, for the user of the server."""
        for folder in (self.folder, self._sent):
            make_folder(folder)
            give_to_owner_of(self._state, folder)

    def journal(self, uuid: UUID) -> Path:
        """Return the path of the journal of a repair."""
        return self.folder / f"{uuid}.log"

    def pending(self) -> list[UUID]:
        """Repairs that are to be sent, in the order in which they were made."""
        made = {}
        for uuid in self._in(self.folder):
            with contextlib.suppress(FileNotFoundError):
                made[uuid] = (self.folder / f"{uuid}.json").stat().st_mtime_ns
        return sorted(made, key=made.__getitem__)

    def sent(self) -> Iterator[Repair]:
        """Repairs that were sent; one that can't be read raises ValueError."""
        for uuid in sorted(self._in(self._sent)):
            yield self._read(self._sent, uuid)

    def tidy(self) -> None:
        """Remove journals that a command which was killed did not finish."""
        known = set(self._in(self.folder))
        for path in self.folder.glob("*.log"):
            with contextlib.suppress(ValueError):
                if UUID(path.stem) not in known:
                    path.unlink(missing_ok=True)

    def is_sent(self, uuid: UUID) -> bool:
        """Tell whether Kafka has a repair."""
        return (self._sent / f"{uuid}.json").exists()

    @staticmethod
    def _in(folder: Path) -> Iterator[UUID]:
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                stem, ending = os.path.splitext(entry.name)  # noqa: PTH122 - there may be many
                if ending == ".json":
                    with contextlib.suppress(ValueError):
                        yield UUID(stem)

    def read(self, uuid: UUID) -> Repair | None:
        """A repair that is to be sent, None if there is none. Raises ValueError."""
        try:
            return self._read(self.folder, uuid)
        except FileNotFoundError:
            return None

    @staticmethod
    def _read(folder: Path, uuid: UUID) -> Repair:
        return Repair.from_json(uuid, (folder / f"{uuid}.json").read_bytes())

    def waiting(self) -> Iterator[Repair]:
        """The repairs that are to be sent, but for those that can't be read."""
        for uuid in self.pending():
            with contextlib.suppress(ValueError):
                if (repair := self.read(uuid)) is not None:
                    yield repair

    def publish(self, repair: Repair) -> None:
        """Have a repair sent, whose journal is on disk."""
        path = self.folder / f"{repair.uuid}.json"
        give_to_owner_of(self._state, self.journal(repair.uuid))
        sync_directory(self.folder)
        replace_file(path, repair.to_json(), owner_of=self._state)
        sync_directory(self.folder)

    def note_sent(self, uuid: UUID, part: Repair | None = None) -> None:
        """Kafka has a repair, or PART of it: it is remembered, and its journal goes."""
        self.make()
        path = self.folder / f"{uuid}.json"
        if part is not None:
            replace_file(path, part.to_json())
        with contextlib.suppress(FileNotFoundError):
            path.rename(self._sent / path.name)
        sync_directory(self._sent)
        self.remove(uuid)

    def remove(self, uuid: UUID) -> None:
        """A repair is not to be sent any more."""
        for ending in (".json", ".log"):
            (self.folder / f"{uuid}{ending}").unlink(missing_ok=True)
        sync_directory(self.folder)


class RepairWriter:
    """Writes the journal of a repair: ``copy`` for missing events, then ``state`` for rows.

    A context manager; what was not finished goes. Texts of character set NONE have to be read as
    UTF-8, whatever they are: so their bytes stay what they are.
    """

    def __init__(
        self, folder: RepairFolder, uuid: UUID, repair_of: str, as_of: RepairPoint
    ) -> None:
        self._path = folder.journal(uuid)
        self._path.unlink(missing_ok=True)
        self._writer = JournalWriter(
            self._path, uuid=uuid, database=repair_of, epoch=as_of.epoch, started_us=0
        )
        self._as_of = as_of
        self._tables: dict[tuple[Any, ...], Table] = {}
        self._changes: dict[int, Sequence[TableChange]] = {}
        self._is_done = False

    def __enter__(self) -> RepairWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        if not self._is_done:
            self._path.unlink(missing_ok=True)

    @property
    def size(self) -> int:
        """Bytes of the journal so far, but for what waits to be written."""
        return self._path.stat().st_size

    def copy(self, change: RowChange | DdlChange) -> None:
        """Add a missing event."""
        writer = self._writer
        if isinstance(change, DdlChange):
            sql = change.sql
            if isinstance(sql, Undecodable):
                writer.ddl(sql.raw, sql.charset_id)
            else:
                writer.ddl(sql)
            if change.table_changes is not None:
                self._changes[writer.event_count] = change.table_changes
            return
        table = self._table(change.table)
        before = None if change.before is None else self._row(change.before)
        after = None if change.after is None else self._row(change.after)
        if before is None:
            assert after is not None
            writer.insert(table, after)
        elif after is None:
            writer.delete(table, before)
        else:
            writer.update(table, before, after)

    def state(self, table: Table, row: Row, *, is_gone: bool) -> None:
        """Add the present row of a key, or, if it IS_GONE, the last one it had."""
        values = self._row(row)
        (self._writer.delete if is_gone else self._writer.insert)(self._table(table), values)

    def _table(self, table: Table) -> Table:
        shape = (table.name, table.key_kind, table.columns, table.order, table.resolved)
        known = self._tables.get(shape)
        if known is None:
            known = self._tables[shape] = self._writer.table(
                table.name,
                table.columns,
                table.key_kind,
                resolved=table.resolved,
                order=table.order,
            )
        return known

    def _row(self, row: Row) -> list[Any]:
        return [
            self._writer.blob(value.read(), value.available) if isinstance(value, Blob) else value
            for value in row
        ]

    def finish(self, commit_us: int) -> None:
        """Have it on disk; COMMIT_US: the time that its rows show, in microseconds since 1970."""
        writer = self._writer
        writer.seal()
        if self._changes:
            writer.complete([], self._changes)
        writer.commit(self._as_of.sequence, commit_us)
        writer.stamp(self._as_of.sequence)
        self._is_done = True


def state_change(change: RowChange) -> RowChange:
    """CHANGE, a row in the journal of a repair, as an event on the present state of its key."""
    return change._replace(op="r") if change.before is None else change


def check_count(path: Path, repair: Repair, count: int) -> None:
    """Raise JournalError unless the journal has as many events as its repair says."""
    if count != len(repair.events):
        raise JournalError(path, -1, f"it has {count} events, not {len(repair.events)}")
