"""Follows signals, whatever channel they came by: each takes effect once."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import logbook

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.journal.folder.durable import replace_file, sync_directory
from firebird_cdc.journal.format import RowChange
from firebird_cdc.journal.shipper.requests import RequestFolder
from firebird_cdc.journal.shipper.snapshots.channels import (
    FILE,
    KAFKA,
    SOURCE,
    Channel,
    FileChannel,
    KafkaChannel,
    RawSignal,
    signal_of_row,
)
from firebird_cdc.journal.shipper.snapshots.modes import as_in_journals
from firebird_cdc.journal.shipper.snapshots.state import Kind, Snapshot, make_state_folder
from firebird_cdc.journal.snapshot.signals import (
    ExecuteSnapshot,
    LogMessage,
    PauseSnapshot,
    ResumeSnapshot,
    SchemaChanges,
    Signal,
    SignalError,
    StopSnapshot,
    may_match,
    parse_signal,
)

_log = logbook.Logger("firebird_cdc.journal.shipper.snapshots.intake")

COMMAND = "command"
"""Channel of ``firebird-cdc snapshot``."""

_PLACES = "channels"


class Followed(NamedTuple):
    """The outcome of a signal, for whoever sent it."""

    is_taken: bool
    text: str


class Control(Protocol):
    """Control over snapshots, for signals."""

    @property
    def databases(self) -> list[str]:
        """The databases that are known."""

    def begin(self, database: str) -> None:
        """Have what ``snapshot.mode`` says of DATABASE taken, without waiting for a change."""

    def request(self, database: str, snapshot: Snapshot) -> bool:
        """Have SNAPSHOT of DATABASE taken; False: its signal was read before."""

    def stop(
        self, database: str, collections: tuple[str, ...] | None, *, is_of_any_kind: bool
    ) -> int:
        """Take tables out of the snapshots of DATABASE, None: end these; return how many. Without
        IS_OF_ANY_KIND only out of incremental ones."""

    def pause(self, database: str, *, is_paused: bool) -> None:
        """Let the snapshots of DATABASE rest, or go on."""

    def position(self, database: str) -> str:
        """Return how far DATABASE has come, for people."""

    def refuse(self, id: str, type: str, channel: str, why: str) -> None:
        """Tell that a signal is not followed."""


def follow(
    control: Control, raw: RawSignal, database: str | None, key: str | None = None
) -> Followed:
    """Do what a signal asks for: of DATABASE, None: of all that are known. KEY: by which it is
    known where it may be read again, None: it can't be.

    One that can't be followed is told of in the log, and changes nothing.
    """
    try:
        signal = parse_signal(raw.id, raw.type, raw.data)
        known = control.databases
        databases = known if database is None else [database]
        if not databases:
            raise SignalError(
                "no database is known yet: name one with --database, or wait for its first change"
            )
        text = _follow(control, signal, raw.channel, databases, key or str(uuid4()))
        if isinstance(signal, ExecuteSnapshot) and database not in (None, *known):
            is_file = Path(str(database)).is_file()
            text += (
                f". {database} is not known yet; its rows are read once it can be attached to"
                f" by this path{'' if is_file else ', where no file is now'}"
            )
    except SignalError as error:
        return _refused(control, raw.id, raw.type, raw.channel, str(error))
    _log.notice("signal {} ({}, {}): {}", raw.id, raw.type.strip(), raw.channel, text)
    return Followed(True, text)


def _refused(control: Control, id: str, type: str, channel: str, why: str) -> Followed:
    _log.warning("signal {} ({}) is ignored: {}", id, channel, why)
    control.refuse(id, type, channel, why)
    return Followed(False, why)


def _follow(control: Control, signal: Signal, channel: str, databases: list[str], key: str) -> str:
    match signal:
        case ExecuteSnapshot():
            kind = Kind.BLOCKING if signal.is_blocking else Kind.INCREMENTAL
            databases = _concerned(signal, databases)
            new = [
                database
                for database in databases
                if control.request(
                    database,
                    Snapshot(
                        signal.id, kind, channel, signal.collections, signal.conditions, key=key
                    ),
                )
            ]
            return f"{kind} snapshot of {', '.join(new)}" if new else "it was read before"
        case StopSnapshot():
            # As Debezium's: only the command reaches initial and blocking ones.
            is_of_any_kind = channel == COMMAND
            count = sum(
                control.stop(each, signal.collections, is_of_any_kind=is_of_any_kind)
                for each in databases
            )
            what = "snapshot" if signal.collections is None else "table"
            return f"{count} {what}{'' if count == 1 else 's'} stopped"
        case PauseSnapshot() | ResumeSnapshot():
            is_paused = isinstance(signal, PauseSnapshot)
            for database in databases:
                control.pause(database, is_paused=is_paused)
            return "snapshots are paused" if is_paused else "snapshots go on"
        case LogMessage():
            return signal.text("; ".join(map(control.position, databases)))
        case SchemaChanges():
            return "nothing is to be done: journals have the structure of each table"


def _concerned(signal: ExecuteSnapshot, databases: list[str]) -> list[str]:
    """Return those of DATABASES in which SIGNAL may name tables. Raises SignalError: there is
    none."""
    found = [each for each in databases if any(may_match(one, each) for one in signal.collections)]
    if not found:
        raise SignalError(
            f"none of the known databases, {', '.join(databases)}, has such tables; a table's name"
            " is <database path>.<table>"
        )
    return found


CAPTURED = "captured"
"""Type of a request, beside those of signals: the database is captured from now on."""


def follow_requests(folder: RequestFolder, control: Control) -> None:
    """Follow requests of ``firebird-cdc snapshot`` and ``enable`` in FOLDER, and answer them."""
    for request in folder.look():
        try:
            held = request.content()
            if held["type"] == CAPTURED:
                control.begin(str(held["database"]))
                told = Followed(True, "it is known")
            else:
                raw = RawSignal(str(held["id"]), str(held["type"]), held["data"], COMMAND, None)
                told = follow(control, raw, held["database"], request.key)
        except OSError as error:
            _log.debug("{}: not yet: {}", request.path, error)
            folder.postpone(request)
            continue
        except (ValueError, KeyError, TypeError) as error:
            told = Followed(False, f"not a valid request: {error!r}")
        folder.answer(request, told._asdict())


class Signals:
    """All channels of a shipper. FOLDER: of the states of snapshots."""

    def __init__(self, config: ConnectorConfig, folder: Path, control: Control) -> None:
        self._config = config.signals
        self._control = control
        self._requests = RequestFolder(folder)
        self._path = folder / _PLACES
        self._next_look = 0.0
        self._open: dict[str, Channel] | None = None
        self._places: dict[str, Any] = {}
        self._is_unkept = False  # places are newer than their file
        self._make = partial(_channels, config)

    def take(self) -> None:
        """Follow what has come by command, and, now and then, by topic and file."""
        follow_requests(self._requests, self._control)
        now = monotonic()
        if now < self._next_look:
            return
        self._next_look = now + self._config.poll_interval_ms / 1000
        try:
            self._take_from_channels()
        except BaseException:
            # A channel gives nothing twice: the next look opens them behind what was followed.
            self.close()
            raise

    def _take_from_channels(self) -> None:
        if self._is_unkept:
            # First, as a pause that is not kept would come again after a crash, behind a resume.
            self._write_places()
        if self._open is None:
            self._places = self._read_places()
            self._open = self._make(self._places)
        for name, channel in self._open.items():
            for raw in channel.take():
                # By its key no snapshot is taken twice, if the place is not kept any more.
                try:
                    self._follow(raw, None, f"{name}:{raw.place}:{raw.made_ms}")
                except OSError:
                    raise
                except Exception:
                    self._note(name, raw)  # else it would fail for ever, and hold up the others
                    raise
                self._note(name, raw)
                self._write_places()
                channel.handled(raw.place)

    def _note(self, name: str, raw: RawSignal) -> None:
        self._places[name] = raw.place
        self._is_unkept = True

    def take_row(self, database: str, change: RowChange) -> None:
        """Follow what CHANGE, of a signal table of DATABASE, asks for."""
        try:
            found = signal_of_row(change)
        except SignalError as error:
            _refused(self._control, "", "", SOURCE, str(error))
            return
        if found is not None:
            self._follow(RawSignal(*found, SOURCE, None), database)

    def close(self) -> None:
        """Close the channels."""
        for channel in (self._open or {}).values():
            channel.close()
        self._open = None

    def _follow(self, raw: RawSignal, database: str | None, key: str | None = None) -> None:
        if raw.problem:
            _refused(self._control, raw.id, raw.type, raw.channel, raw.problem)
        else:
            follow(self._control, raw, database, key)

    def _read_places(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._path.read_bytes()))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            _log.error("{}: can't be read, so signals may come again: {}", self._path, error)
            return {}

    def _write_places(self) -> None:
        make_state_folder(self._path.parent)
        replace_file(self._path, json.dumps(self._places).encode())
        sync_directory(self._path.parent)
        self._is_unkept = False


def _channels(config: ConnectorConfig, places: dict[str, Any]) -> dict[str, Channel]:
    made: dict[str, Channel] = {}
    if FILE in config.signals.channels and config.signals.file is not None:
        made[FILE] = FileChannel(config.signals.file, places.get(FILE))
    if KAFKA in config.signals.channels:
        made[KAFKA] = KafkaChannel(config, places.get(KAFKA))
    return made


class SignalTable:
    """Signal table TABLE of DATABASE, as those see it who read journals."""

    def __init__(
        self,
        database: str,
        table: str,
        take: Callable[[str, RowChange, tuple[int, int, int]], None],
    ) -> None:
        self.table = table
        self._database = database
        self._take = take

    def saw(self, change: RowChange, number: tuple[int, int]) -> None:
        """CHANGE, of some table, is in the journal with NUMBER."""
        if change.table.name == self.table:
            self._take(self._database, change, (*number, change.pos))


def signal_tables(
    config: ConnectorConfig, take: Callable[[str, RowChange, tuple[int, int, int]], None]
) -> dict[str, SignalTable]:
    """Return the signal tables by their databases; TAKE hears of each change of one."""
    if SOURCE not in config.signals.channels:
        return {}
    found = {}
    for identifier in config.signals.tables:
        database, table = as_in_journals(identifier)
        found[database] = SignalTable(database, table, take)
    return found


class SignalTask:
    """Looks for signals: a periodic task of the shipping thread."""

    def __init__(self, turn: Callable[[], None], pause_s: float) -> None:
        self._turn = turn
        self._pause_s = pause_s

    def turn(self, now: float) -> float:
        """Look; return when to look again."""
        self._turn()
        return now + self._pause_s

    def close(self) -> None:
        """Leave what is not taken for the next shipper."""
