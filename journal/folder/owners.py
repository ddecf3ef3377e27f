"""The marks of processes that write journals in a folder: one file each, locked while it lives.

A mark says whose tickets its process draws: device and inode of that file, the process, its PID
namespace and the machine's boot id; or nothing, once it draws none.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import logbook

from firebird_cdc.journal.folder.durable import boot_id
from firebird_cdc.journal.folder.locks import is_held
from firebird_cdc.journal.folder.shortage import is_shortage

_log = logbook.Logger("firebird_cdc.journal.folder.owners")


class LivingOwner(NamedTuple):
    """A process that works in the folder. ``tickets``: device and inode of the file that it draws
    its tickets from."""

    tickets: str
    process: str

    def __str__(self) -> str:
        return f"process {self.process}"


def own_mark(tickets: str) -> bytes:
    """Return the content of this process' mark, as it draws TICKETS. Raises OSError."""
    return f"{tickets} {os.getpid()} {_pid_namespace()} ".encode() + boot_id() + b"\n"


def _pid_namespace() -> int:
    """Return the namespace of processes that are shown to this one."""
    return Path("/proc/self/ns/pid").stat().st_ino


class Owners:
    """The processes whose marks are in DIRECTORY; OWN: that of this process, or one that no
    process has."""

    def __init__(self, directory: Path, own: UUID) -> None:
        self.directory = directory
        self._own = own
        self._unknown: set[UUID] = set()  # of which it was said that nobody can tell

    def mark(self, owner: UUID) -> Path:
        """Return the path of a process' mark."""
        return self.directory / str(owner)

    def living(self, but_for: str = "") -> list[LivingOwner]:
        """Return the processes that draw tickets here, by what their marks say, BUT FOR those that
        draw these. Raises OSError."""
        living = []
        for mark in self.directory.iterdir():
            with contextlib.suppress(FileNotFoundError, ValueError):
                tickets, process, *_ = mark.read_text("ascii").split()
                if tickets != but_for and is_held(mark):
                    living.append(LivingOwner(tickets, process))
        return living

    def is_gone(self, owner: UUID) -> bool:
        """Tell whether the process that wrote a journal has ended. Raises OSError if this process
        lacks what it takes to tell."""
        if owner == self._own:
            return False
        try:
            return not is_held(self.mark(owner))
        except OSError as error:  # nothing of its is touched while nobody can tell
            if is_shortage(error):
                raise
            if owner not in self._unknown:
                self._unknown.add(owner)
                _log.error(
                    "cannot tell whether a server process lives ({cause}), so what it may have "
                    "left is not looked for: check {mark}; once no server runs it may be removed",
                    mark=self.mark(owner),
                    cause=error.strerror,
                )
            return False

    def ended(self) -> list[UUID]:
        """Return the processes that have ended and left their mark. Raises OSError."""
        owners = []
        for entry in os.scandir(self.directory):
            with contextlib.suppress(ValueError):
                owners.append(UUID(entry.name))
        return [owner for owner in owners if self.is_gone(owner)]

    def has_other(self) -> bool:
        """Tell whether another process lives that writes journals here. Raises OSError."""
        living = len(list(os.scandir(self.directory))) - len(self.ended())
        return living > self.mark(self._own).exists()

    def living_inodes(self) -> set[int]:
        """Return the inodes of the marks of all processes that live and write journals here, or of
        which nobody can tell. Raises OSError."""
        inodes = set()
        for entry in os.scandir(self.directory):
            with contextlib.suppress(ValueError):
                if not self.is_gone(UUID(entry.name)):
                    inodes.add(entry.inode())
        return inodes

    def may_hide_others(self, owner: UUID) -> bool:
        """Tell whether processes beside OWNER's may be at work whose locks are not shown here, as
        they are in another PID namespace. Of one that ended with the machine none is left."""
        try:
            *_, namespace, boot = self.mark(owner).read_bytes().split()
        except (OSError, ValueError):  # by an earlier version, or a power cut has taken it
            return False
        return boot == boot_id() and int(namespace) != _pid_namespace()
