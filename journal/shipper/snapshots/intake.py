"""Follows signals, whatever channel they came by: each takes effect once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import logbook

from firebird_cdc.journal.folder.durable import replace_file
from firebird_cdc.journal.shipper.snapshots.state import Kind, Snapshot
from firebird_cdc.journal.snapshot.signals import (
    ExecuteSnapshot,
    LogMessage,
    PauseSnapshot,
    ResumeSnapshot,
    SchemaChanges,
    Signal,
    SignalError,
    StopSnapshot,
    parse_signal,
)

_log = logbook.Logger("firebird_cdc.journal.shipper.snapshots.intake")

COMMAND = "command"
"""Channel of ``firebird-cdc snapshot``."""

ANSWERS_KEPT_S = 3600.0
"""An answer that nobody fetched is removed after this time."""


class Followed(NamedTuple):
    """The outcome of a signal, for whoever sent it."""

    is_taken: bool
    text: str


class Control(Protocol):
    """Control over snapshots, for signals."""

    @property
    def databases(self) -> list[str]:
        """The databases that are known."""

    def request(self, database: str, snapshot: Snapshot) -> bool:
        """Have SNAPSHOT of DATABASE taken; False: it was asked for before."""

    def stop(self, database: str, collections: tuple[str, ...] | None) -> int:
        """Take tables out of the snapshots of DATABASE, None: end these. Return how many."""

    def pause(self, database: str, *, is_paused: bool) -> None:
        """Let the snapshots of DATABASE rest, or go on."""

    def position(self, database: str) -> str:
        """Return how far DATABASE has come, for people."""


def follow(
    control: Control, id: str, type: str, data: str | None, channel: str, database: str | None
) -> Followed:
    """Do what a signal asks for: of DATABASE, None: of all that are known.

    One that can't be followed is told of in the log, and changes nothing.
    """
    try:
        signal = parse_signal(id, type, data)
    except SignalError as error:
        _log.warning("signal {} ({}) is ignored: {}", id, channel, error)
        return Followed(False, str(error))
    databases = control.databases if database is None else [database]
    if not databases:
        text = "no database is known yet: name one with --database, or wait for its first change"
        _log.warning("signal {} ({}) is ignored: {}", id, channel, text)
        return Followed(False, text)
    text = _follow(control, signal, channel, databases)
    _log.notice("signal {} ({}, {}): {}", id, type.strip(), channel, text)
    return Followed(True, text)


def _follow(control: Control, signal: Signal, channel: str, databases: list[str]) -> str:
    match signal:
        case ExecuteSnapshot():
            kind = Kind.BLOCKING if signal.is_blocking else Kind.INCREMENTAL
            new = [
                database
                for database in databases
                if control.request(
                    database,
                    Snapshot(signal.id, kind, channel, signal.collections, signal.conditions),
                )
            ]
            return f"{kind} snapshot of {', '.join(new)}" if new else "it was taken before"
        case StopSnapshot():
            count = sum(control.stop(database, signal.collections) for database in databases)
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


class RequestFolder:
    """Requests of ``firebird-cdc snapshot``: files ``<id>.request`` in FOLDER, each answered by
    ``<id>.answer``. A request stays until it is answered."""

    def __init__(self, folder: Path, control: Control) -> None:
        self._folder = folder
        self._control = control

    def turn(self) -> None:
        """Take what is there."""
        self._remove_old()
        for path in sorted(self._folder.glob("*.request")):
            try:
                held = json.loads(path.read_bytes())
                told = follow(
                    self._control,
                    str(held["id"]),
                    str(held["type"]),
                    held["data"],
                    COMMAND,
                    held["database"],
                )
            except OSError as error:
                _log.debug("{}: not yet: {}", path, error)
                continue
            except (ValueError, KeyError, TypeError) as error:
                told = Followed(False, f"not a valid request: {error!r}")
            answer: dict[str, Any] = told._asdict()
            replace_file(path.with_suffix(".answer"), json.dumps(answer).encode())
            path.unlink(missing_ok=True)

    def _remove_old(self) -> None:
        oldest = time.time() - ANSWERS_KEPT_S
        for path in self._folder.glob("*.answer"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()


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
