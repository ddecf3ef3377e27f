"""Rules of ``snapshot.mode``: the snapshot that a database is due, and whether changes follow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import logbook

from firebird_cdc.config.snapshots import CONFIGURED, CUSTOM, SnapshotOptions
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.events import extensions
from firebird_cdc.journal.shipper.snapshots.state import Kind, Snapshot

_log = logbook.Logger("firebird_cdc.journal.shipper.snapshots.modes")

ORIGIN = "snapshot.mode"
"""Origin of snapshots that nobody asked for."""

T = TypeVar("T")


def as_in_journals(identifier: str) -> tuple[str, str]:
    """Return database and table that IDENTIFIER, of an option, names: journals have the path of the
    database without links."""
    places = [place for place, letter in enumerate(identifier) if letter == "."]
    found = next((each for each in places if Path(identifier[:each]).is_file()), places[-1])
    return str(Path(identifier[:found]).resolve()), identifier[found + 1 :]


def _unasked(kind: Kind) -> Snapshot:
    return Snapshot(str(uuid4()), kind, ORIGIN)


class SnapshotPolicy:
    """The policy that OPTIONS describe. Raises ConfigError if a class of the user's can't be used.

    ``sends_changes``: whether changes are sent behind the snapshot.
    """

    def __init__(self, options: SnapshotOptions) -> None:
        self._options = options
        self._own: Any = None
        methods = [
            *(("should_snapshot", "should_stream") if options.mode == CUSTOM else ()),
            *(("query",) if options.has_custom_queries else ()),
        ]
        if options.policy is not None and methods:
            try:
                self._own = extensions.make(options.policy, {}, *methods)
            except ConfigError as error:
                problems = [f"snapshot.custom.class is {options.policy}; {error.problems[0]}"]
                raise ConfigError(problems) from error
        self._statements = {as_in_journals(each): text for each, text in options.statements.items()}
        self.sends_changes = self._sends_changes()

    def due(self, database: str, *, has_any: bool, is_new: bool) -> Snapshot | None:
        """Return the snapshot that DATABASE is due when it is met after a start.

        has_any: one waits or runs, or has ended. is_new: Kafka has nothing of it.
        """
        options = self._options
        kind = None
        if options.mode == CUSTOM:
            wants = self._asked(
                lambda: self._own.should_snapshot(database, not is_new), default=False
            )
            if wants:
                kind = Kind.INITIAL if is_new and not has_any else Kind.BLOCKING
        elif is_new and not has_any and options.wants_rows:
            kind = Kind.INITIAL
        elif options.mode == "always":
            kind = Kind.INITIAL if is_new else Kind.BLOCKING
        return None if kind is None else _unasked(kind)

    @property
    def mends_losses(self) -> bool:
        """Tell whether rows are read again once changes are known not to be in Kafka."""
        return self._options.mode == "when_needed" or self._options.configured.on_data_error

    def mending(self) -> Snapshot:
        """Return the snapshot that is taken then."""
        return _unasked(Kind.BLOCKING)

    @property
    def asks_for_place(self) -> bool:
        """Tell whether a snapshot may be due when a database is met."""
        return self._options.may_want_rows

    def query(self, database: str, table: str) -> str | None:
        """Return the SELECT that gives the rows of TABLE, None: all of them, empty: none."""
        statement = self._statements.get((database, table))
        if statement is not None or not self._options.has_custom_queries:
            return statement
        asked = self._asked(lambda: self._own.query(f"{database}.{table}"), default="")
        return None if asked is None else str(asked)

    def overrides(
        self, database: str, captured: Collection[str], known: Collection[str]
    ) -> Iterator[tuple[str, str]]:
        """Yield the identifier of each table that an override of DATABASE names, or one of none of
        the KNOWN databases, and why that is of no use, for people: it is not CAPTURED; empty: it
        is."""
        for path, table in self._statements:
            why = ""
            if path != database and path in known:
                continue
            if path != database:
                why = f"{path} is no known database"
            elif table not in captured:
                near = [each for each in captured if each.casefold() == table.casefold()]
                meant = f'; did you mean {path}."{near[0]}"?' if near else ""
                why = f"it is no captured table{meant}"
            yield f"{path}.{table}", why

    def _sends_changes(self) -> bool:
        if self._options.mode == CONFIGURED:
            return self._options.configured.stream
        if self._options.mode == CUSTOM:
            return bool(self._asked(lambda: self._own.should_stream(), default=True))
        return self._options.mode != "initial_only"

    def _asked(self, ask: Callable[[], T], *, default: T) -> T:
        """Return the answer of the user's class, DEFAULT where it raises something."""
        try:
            return ask()
        except extensions.ERRORS as error:
            told = extensions.described(error)
            _log.error("snapshot.custom.class {}: {}", self._options.policy, told)
            return default
