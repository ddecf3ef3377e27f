"""Journals whose process is gone while others have the database open: what may be made of them.

The engine shows a commit to others before it writes it. A process that dies in between leaves a
transaction that the file calls active. With no other process left that is the truth: whoever
opens the database next learns from the file. But under Classic the processes share what they know,
and those that live on may take the transaction for committed, build upon it, and write a header
whose OIT passes it. So such an orphan is decided by the file alone: by its bits, by the OIT, or as
active once nobody had the database open. What the engine answers is no proof, as its processes
don't even agree on it while they live; it is asked all the same, since it writes down that a
transaction is dead if it finds that.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import logbook

from firebird_cdc.bridge.folder import JournalFolder
from firebird_cdc.bridge.host import Verdict, Witness
from firebird_cdc.bridge.pending import Pending
from firebird_cdc.errors import CaptureError

_log = logbook.Logger("firebird_cdc.bridge.orphans")

_PATIENCE_S = 5.0  # for which a sealed orphan holds up what was committed after it
_LOCKS = Path("/proc/locks")


class Orphans:
    """Decides journals whose process is gone, for one folder. Belongs to one thread."""

    def __init__(self, folder: JournalFolder, open_witness: Callable[[str], Witness]) -> None:
        """``open_witness``: opens the engine as a witness on a database; raises CaptureError."""
        self._folder = folder
        self._open_witness = open_witness
        self._held: set[UUID] = set()  # of which it was said that they are kept
        self._is_hidden = False  # who has databases open, and it was said

    def verdict(self, orphan: Pending, told: Verdict, inode: int | None) -> Verdict:
        """Return what ORPHAN comes to, which is TOLD to be active, dead or committed by the
        database file INODE, or by an engine alone (None). Raises OSError.

        ACTIVE: look again soon, and let nothing pass; LIMBO: keep it, and let others pass.
        """
        if told is Verdict.DEAD or (told is Verdict.COMMITTED and inode is not None):
            return self._decided(orphan, told)
        if orphan.is_alone:
            return self._decided(orphan, Verdict.DEAD if told is Verdict.ACTIVE else told)
        orphan.is_alone = not self._has_survivors(orphan, inode)
        if orphan.is_alone:
            return Verdict.ACTIVE  # what they wrote before they went, the next reading shows
        if orphan.uuid in self._held:
            return Verdict.LIMBO
        if not orphan.is_asked:
            orphan.is_asked = True
            with (
                contextlib.suppress(CaptureError),  # only a server can
                contextlib.closing(self._open_witness(orphan.database)) as witness,
            ):
                witness.ask([orphan.transaction])
            return Verdict.ACTIVE
        if orphan.is_sealed and not _has_waited(orphan):
            return Verdict.ACTIVE
        self._tell_held(orphan)
        return Verdict.LIMBO

    def _decided(self, orphan: Pending, verdict: Verdict) -> Verdict:
        if orphan.uuid in self._held:
            self._held.remove(orphan.uuid)
            if verdict is Verdict.COMMITTED:
                _log.error(
                    "journal {journal} of transaction {transaction} of {database}, whose process "
                    "was killed during its commit, is published late: changes that were made upon "
                    "its own may have been published before. Compare with: firebird-cdc replay "
                    "audit",
                    journal=orphan.uuid,
                    transaction=orphan.transaction,
                    database=orphan.database,
                )
        return verdict

    def _tell_held(self, orphan: Pending) -> None:
        self._held.add(orphan.uuid)
        _log.error(
            "journal {journal} is kept undecided: the process of transaction {transaction} of "
            "{database} was killed {when}, and other server processes that have the database open "
            "may know it as committed, though the file doesn't say so. It is decided once the file "
            "does, or once all connections to the database have ended",
            journal=orphan.uuid,
            transaction=orphan.transaction,
            database=orphan.database,
            when="during its commit" if orphan.is_sealed else "while it worked",
        )

    def _has_survivors(self, orphan: Pending, inode: int | None) -> bool:
        """Tell whether a process has the database file INODE open that may have learnt more than
        it says: the engine's lock on the file (unix.cpp) is shared under Classic. As Super it is
        exclusive, and then held by a process that began after the orphan's had ended."""
        try:
            shared, exclusive = _flocks()
        except OSError as error:
            self._tell_hidden(error)
            return True
        inode = inode or Path(orphan.database).stat().st_ino
        if inode in shared or inode in exclusive:
            return inode in shared
        # Locks that have to be there and are not shown: the holders are out of our sight.
        owner = orphan.header.owner if orphan.header else None
        return not self._folder.living_owner_inodes() <= exclusive or (
            owner is not None and self._folder.may_hide_others(owner)
        )

    def _tell_hidden(self, error: OSError) -> None:
        if self._is_hidden:
            return
        self._is_hidden = True
        _log.error(
            "{locks} can't be read ({cause}), which tells whether other processes have a database "
            "open: a journal whose process was killed is kept undecided until the database file "
            "tells what became of it. Let the process see it (systemd: ProcSubset=all)",
            locks=_LOCKS,
            cause=error.strerror,
        )


def _has_waited(orphan: Pending) -> bool:
    """Tell whether ORPHAN has held up others for long enough: it was sealed long ago, or, as
    clocks can be set back, found long ago."""
    since_us = time.time_ns() // 1000 - int(_PATIENCE_S * 1_000_000)
    return orphan.commit_us < since_us or orphan.met_at < time.monotonic() - _PATIENCE_S


def _flocks() -> tuple[set[int], set[int]]:
    """Return the inodes of the files that are locked by flock(2): shared, exclusively.

    By the inode alone: for some file systems the kernel lists another device than stat(2) tells.
    """
    found: dict[str, set[int]] = {"READ": set(), "WRITE": set()}
    for line in _LOCKS.read_text("ascii").splitlines():
        # number, type, kind, access, process, device:device:inode; "->" stands for who waits
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[3] in found:
            found[words[3]].add(int(words[5].rpartition(":")[2]))
    return found["READ"], found["WRITE"]
