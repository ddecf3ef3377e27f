"""Journals whose process is gone while others have the database open: what may be made of them.

The engine shows a commit to others before it writes it. A process that dies in between leaves a
transaction that the file calls active. With no other process left that is the truth: whoever
opens the database next learns from the file. But under Classic the processes share what they know,
and those that live on may take the transaction for committed, build upon it, and write a header
whose OIT passes it. So such an orphan is decided by the file alone: by its bits, by the OIT, or as
active once nobody had the database open. What the engine answers is no proof, as its processes
don't even agree on it while they live; it is asked all the same, since it writes down that a
transaction is dead if it finds that.

That nobody has it open is seen in /proc/locks, by a lock that is not there. The kernel gives that
list in pieces of a page, some 60 locks each, and holds it still for one piece only. If a lock is
released between two pieces, all later ones move up, and the next piece begins one too far: a lock
that is held all the time is not shown. With 150 locks and a few that come and go that happens in
every hundredth look, to the same lock several times in a row, and under Classic each commit takes
and releases locks. So a list of one piece is believed at once. Of longer ones it takes several, one
after the other and each cut at other places, none of which shows the lock.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import logbook

from firebird_cdc.bridge.confirm.decisions import Action
from firebird_cdc.bridge.confirm.pending import Pending
from firebird_cdc.bridge.host import OwnAttachment
from firebird_cdc.clock import now_us
from firebird_cdc.errors import CaptureError
from firebird_cdc.journal.folder.journal_folder import JournalFolder

_log = logbook.Logger("firebird_cdc.bridge.confirm.orphans")

_PATIENCE_S = 5.0  # for which a sealed orphan holds up what was committed after it
_LOCKS = Path("/proc/locks")
_PAGE = os.sysconf("SC_PAGE_SIZE")  # the most of it that one read gives
_READ_BYTES = 16 * _PAGE  # but for a lock with many waiters, which makes the pieces larger
_ENOUGH = 10  # looks in pieces without a lock, in a row, after which it is believed to be gone
_APART_S = 0.1  # between the beginnings of two of them
_CUTS = 11  # a prime above _ENOUGH: who counts each second or third look sees other cuts, too
_MANY = 64  # orphans, from which on those are forgotten that others have decided


class _Look(NamedTuple):
    """Inodes of the files that were locked by flock(2) at one moment, or nearly."""

    began: float  # monotonic
    shared: set[int]
    exclusive: set[int]
    is_whole: bool  # it shows one moment: no lock that was held is missing
    is_hidden: bool  # locks that have to be there are not shown: the holders are out of our sight


@dataclass(slots=True)
class _Watch:
    """Results of the looks at the database of one orphan. Times are monotonic."""

    since: float
    next_at: float  # when a look counts again
    absences: int = 0  # looks in a row in which nobody had it open
    is_held: bool = False  # it was said that it is kept


class Orphans:
    """Looks for those who may know more of journals whose process is gone, in one folder. Belongs
    to one thread."""

    def __init__(
        self, folder: JournalFolder, open_attachment: Callable[[str], OwnAttachment]
    ) -> None:
        """``open_attachment``: opens an attachment of ours to a database; raises CaptureError."""
        self._folder = folder
        self._open_attachment = open_attachment
        # Here, as a Pending that is kept is forgotten and found again by each scan.
        self._watched: dict[UUID, _Watch] = {}
        self._most_watched = _MANY
        self._last_look: _Look | None = None
        self._looks = 0
        self._is_hidden = False  # who has databases open, and it was said

    def look(self, orphan: Pending, inode: int | None) -> Action:
        """Look whether others may have learnt more of ORPHAN's transaction than the database file
        INODE, or an engine alone (None), tells. Raises OSError.

        WAIT: ask again soon, and let nothing pass; KEEP: let others pass.
        """
        watch = self._watch(orphan.uuid)
        if watch.absences < _ENOUGH and time.monotonic() >= watch.next_at:
            self._look_for_survivors(watch, orphan, inode)
        assert orphan.process is not None
        orphan.process.is_alone = watch.absences >= _ENOUGH
        if orphan.process.is_alone:
            return Action.WAIT  # what they wrote before they went, the next reading shows
        if watch.is_held:
            return Action.KEEP
        if watch.absences and time.monotonic() < watch.since + _PATIENCE_S:
            return Action.WAIT  # some more looks, and it is certain
        if not orphan.process.is_asked:
            orphan.process.is_asked = True
            with (
                contextlib.suppress(CaptureError),  # only a server can
                contextlib.closing(self._open_attachment(orphan.database)) as attachment,
            ):
                attachment.ask([orphan.transaction])
            return Action.WAIT
        if orphan.is_sealed and not _has_waited(orphan):
            return Action.WAIT
        watch.is_held = True
        self._tell_held(orphan)
        return Action.KEEP

    def is_counting(self) -> bool:
        """Tell whether some looks more may decide one that is kept."""
        return any(each.is_held and each.absences for each in self._watched.values())

    def _watch(self, uuid: UUID) -> _Watch:
        """Return what was seen for an orphan, which is nothing for one that is met now."""
        watch = self._watched.get(uuid)
        if watch is None:
            if len(self._watched) >= self._most_watched:
                live = {key for key in self._watched if self._folder.live(key).exists()}
                self._watched = {key: self._watched[key] for key in live}
                self._most_watched = max(_MANY, 2 * len(live))
            now = time.monotonic()
            watch = self._watched[uuid] = _Watch(now, now)
        return watch

    def decided(self, orphan: Pending, action: Action) -> None:
        """Forget ORPHAN, of which ACTION is taken, and say so if that comes late."""
        watch = self._watched.pop(orphan.uuid, None)
        if watch is None or not watch.is_held or action is Action.REMOVE:
            return
        _log.error(
            "journal {journal} of transaction {transaction} of {database}, whose process was "
            "killed during its commit, is published late: changes that were made upon its own may "
            "have been published before. Compare with: firebird-cdc replay audit",
            journal=orphan.uuid,
            transaction=orphan.transaction,
            database=orphan.database,
        )

    def _tell_held(self, orphan: Pending) -> None:
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

    def _look_for_survivors(self, watch: _Watch, orphan: Pending, inode: int | None) -> None:
        """Look whether a process has the database file INODE open that may have learnt more than
        it says, and add that to WATCH: the engine's lock on the file (unix.cpp) is shared under
        Classic. As Super it is exclusive, and then held by a process that began after the orphan's
        had ended. Raises OSError."""
        inode = inode or Path(orphan.database).stat().st_ino
        look = self._look_since(watch.next_at)
        watch.next_at = (look.began if look else time.monotonic()) + _APART_S
        if look is None:
            return
        if inode in look.shared:
            watch.absences = 0
        elif inode in look.exclusive or not self._hides_others(look, orphan):
            watch.absences = _ENOUGH if look.is_whole else watch.absences + 1
        # Else nobody was seen who could have been: that tells nothing.

    def _hides_others(self, look: _Look, orphan: Pending) -> bool:
        owner = orphan.header.owner if orphan.header else None
        return look.is_hidden or (owner is not None and self._folder.owners.may_hide_others(owner))

    def _look_since(self, moment: float) -> _Look | None:
        """Return a look that began after MOMENT (monotonic), which many orphans may share; None:
        the locks can't be read. Raises OSError."""
        if self._last_look is None or self._last_look.began <= moment:
            began = time.monotonic()
            self._looks += 1
            try:
                shared, exclusive, is_whole = _flocks(self._looks % _CUTS)
            except OSError as error:
                self._tell_hidden(error)
                return None
            # After the locks: who came between them, or is missing in a list in pieces, hides
            # others, and nothing is decided by this look.
            is_hidden = not self._folder.owners.living_inodes() <= exclusive
            self._last_look = _Look(began, shared, exclusive, is_whole, is_hidden)
        return self._last_look

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
    since_us = now_us() - int(_PATIENCE_S * 1_000_000)
    return orphan.commit_us < since_us or orphan.met_at < time.monotonic() - _PATIENCE_S


def _flocks(cut: int) -> tuple[set[int], set[int], bool]:
    """Return the inodes of the files that are locked by flock(2), shared and exclusively, and
    whether they all were so at one moment. CUT, below _CUTS: where to cut a longer list.

    By the inode alone: for some file systems the kernel lists another device than stat(2) tells.
    """
    fd = os.open(_LOCKS, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # The first piece is never below half a page, and so shifts the ends of all that follow.
        pieces = [os.read(fd, _PAGE - cut * (_PAGE // (2 * _CUTS)))]
        while piece := os.read(fd, _READ_BYTES):
            pieces.append(piece)
    finally:
        os.close(fd)
    # The end behind the first piece alone is no proof: what did not fit in may have moved up into
    # what was read. So there must have been room for the next lock, with a line for each waiter.
    is_whole = len(pieces) == 1 and len(pieces[0]) <= _PAGE // 2
    found: dict[str, set[int]] = {"READ": set(), "WRITE": set()}
    for line in b"".join(pieces).decode("ascii").splitlines():
        # number, type, kind, access, process, device:device:inode; "->" stands for who waits
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[3] in found:
            found[words[3]].add(int(words[5].rpartition(":")[2]))
    return found["READ"], found["WRITE"], is_whole
