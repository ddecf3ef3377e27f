"""The errors that users see.

FirebirdCdcError                 base: one sentence on what happened, where, and what to do
├── ConfigError                  the configuration is wrong (the user's act)
├── JournalError                 a journal can't be used
│   ├── JournalEmpty             nothing was written to it yet
│   ├── JournalTorn              it ends before its seal: never committed, or cut off
│   └── JournalCorrupt           bytes inside it are damaged
├── CaptureError                 the bridge can't record a change
├── ShipError                    the shipper can't deliver
│   ├── ShipperFenced            another one uses its transactional id
│   └── Obstacle                 something outside is in the way of an event now
│       ├── TopicUnavailable     its topic is missing and can't be made
│       ├── StateUnwritable      a file of the shipper's can't be written, and has to be first
│       └── RegistryTrouble      the schema registry has not given an id for its schema
│           ├── RegistryUnavailable  it can't be used now
│           │   └── RegistryDenied   it answers, and lets nobody in as we ask
│           └── RegistryRefused      it says no to this schema
├── DatabaseUnreadable           a database can't be attached to or read
│   └── SnapshotVoid             what was read in a snapshot may be more or less than it
├── ReplayError                  a replay can't run or found a fault
│   └── UsageError               options that say too little, or contradict each other
└── SetupError                   something the machine or an installation lacks
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FirebirdCdcError(Exception):
    """Base of all errors of ours. Its text tells what happened, where, and what to do next."""

    exit_code = 1


class ConfigError(FirebirdCdcError):
    """The configuration is wrong. ``problems``: one sentence each, all of a file at once."""

    exit_code = 2

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def user_name() -> str:
    """Return the name of the user that this process runs as."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"


def refused(error: PermissionError) -> str:
    """Return a sentence for what the system refuses us, with what to do."""
    place = f"{error.filename}: " if error.filename else ""
    why = (error.strerror or str(error)).lower()
    return (
        f"{place}{why} for {user_name()}; run it as root, or as the user that the database server"
        " runs as"
    )


@contextmanager
def noting(problems: list[str]) -> Iterator[None]:
    """Go on after a ConfigError, with what it says in PROBLEMS."""
    try:
        yield
    except ConfigError as error:
        problems += error.problems


class JournalError(FirebirdCdcError):
    """A journal can't be used. ``path`` names the file, ``offset`` the byte (-1: the whole)."""

    def __init__(self, path: Path | str, offset: int, what: str) -> None:
        place = f" at byte {offset}" if offset >= 0 else ""
        super().__init__(f"{path}{place}: {what}")
        self.path = Path(path)
        self.offset = offset
        self.what = what
        self._place = path  # a URI would not outlive being a Path

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self._place, self.offset, self.what))


class JournalEmpty(JournalError):
    """Nothing of this journal is in the file yet: a transaction has just begun."""


class JournalTorn(JournalError):
    """The journal ends before its seal. What was yielded before is sound."""


class JournalCorrupt(JournalError):
    """A checksum or a length inside the journal is wrong. What was yielded before is sound."""


class JournalShared(JournalError):
    """The journal holds many transactions, each of which is read by itself."""


class CaptureError(FirebirdCdcError):
    """The bridge can't record a change; the server side answers by the failure mode."""


class ShipError(FirebirdCdcError):
    """The shipper can't deliver; journals stay where they are."""


class ShipperFenced(ShipError):
    """Another producer has taken over the transactional id; this shipper must not fight back."""

    exit_code = 3


class Obstacle(ShipError):
    """Something outside is in the way of an event. That may change: the event waits."""

    needs_somebody = False
    """Tell whether it stays until somebody does something about it."""


class TopicUnavailable(Obstacle):
    """A topic is missing, and could not be made so far: nothing is wrong with the events."""


class StateUnwritable(Obstacle):
    """A file that has to be on disk before the event is sent can't be written."""

    needs_somebody = True


class RegistryTrouble(Obstacle):
    """The schema registry has not given an id for a schema. It may do so later."""


class RegistryUnavailable(RegistryTrouble):
    """The schema registry can't be used now: nothing is wrong with the events."""


class RegistryDenied(RegistryUnavailable):
    """The schema registry answers, and won't have what we ask: of this user, or at this address."""

    needs_somebody = True


class RegistryRefused(RegistryTrouble):
    """The schema registry has said no to the schema of an event; others may pass."""

    needs_somebody = True


class DatabaseUnreadable(FirebirdCdcError):
    """A database can't be attached to, or what it holds can't be read."""


class ClientMissing(DatabaseUnreadable):
    """The machine lacks what attaches to databases: the driver, or Firebird's client library.

    The text ends in ``; `` and what to do.
    """


class RowRefused(DatabaseUnreadable):
    """A row has no form as an event, and the configuration says that such a one stops things."""


class TableRefused(DatabaseUnreadable):
    """No row of a table can be sent until somebody changes the configuration."""


class QueryRefused(TableRefused):
    """A condition or a SELECT that somebody gave is none by which a table can be read."""


class SnapshotVoid(DatabaseUnreadable):
    """Reads in a snapshot may have had more or less than it sees: read again in another one."""


class ReplayError(FirebirdCdcError):
    """A replay can't run, or what it read is not whole."""


class UsageError(ReplayError):
    """Options say too little, or what can't be together."""

    exit_code = 2


class SetupError(FirebirdCdcError):
    """The machine or an installation lacks something; the text says how to get it."""
