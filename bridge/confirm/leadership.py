"""The lock of the process that confirms for all processes of a journal folder, and its progress."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable

from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.locks import try_lock
from firebird_cdc.journal.folder.shared_page import LOCK

_STAND_BACK_S = 2.0  # for another process to do what this one lacks something for


class Leadership:
    """Held while this process confirms for all. Belongs to one thread."""

    def __init__(self, folder: JournalFolder) -> None:
        self.known = 0
        """Every journal with a ticket up to this one waits or is decided."""
        self.led_from = 0
        """That ticket when this process began to lead."""
        self._folder = folder
        self._lock_fd: int | None = None
        self._own_tickets: set[int] = set()  # above `known`, handed over by this process
        self._stands_back_until = 0.0  # monotonic
        self._accounted = -1  # by whoever leads, when that was last looked at

    def use(self, folder: JournalFolder) -> None:
        """Go on in another folder; not while this process leads."""
        self._folder = folder

    @property
    def is_held(self) -> bool:
        """True while this process leads."""
        return self._lock_fd is not None

    def take(self, last_ticket: Callable[[], int]) -> bool:
        """Begin to lead, unless another process does; return whether this one leads now.

        LAST_TICKET: returns the last one drawn by any process."""
        if time.monotonic() < self._stands_back_until and self._folder.owners.has_other():
            return False
        self._lock_fd = try_lock(self._folder.state / LOCK, fcntl.LOCK_EX)
        if self._lock_fd is None:
            return False
        self.beat()
        accounted = self._folder.accounted
        self.known = self.led_from = accounted if accounted <= last_ticket() else 0
        return True

    def beat(self) -> None:
        """Say that this process leads and comes round."""
        self._folder.tell_heartbeat(os.getpid())

    def release(self) -> None:
        """Let others lead."""
        if self._lock_fd is not None:
            self._folder.tell_heartbeat(0)
            fd, self._lock_fd = self._lock_fd, None
            os.close(fd)

    def stand_back(self) -> None:
        """Let others try, for a moment, what this process lacks something for."""
        self._stands_back_until = time.monotonic() + _STAND_BACK_S

    def hand_over(self, tickets: set[int]) -> None:
        """Remember TICKETS of this process's own commits: nobody has to look for their journals."""
        self._own_tickets |= tickets

    def begin_anew(self, tickets: set[int]) -> None:
        """Know of no own commits but those of TICKETS, in another folder."""
        self._own_tickets = tickets

    def knows_all(self, last: int) -> bool:
        """Tell whether all that drew a ticket up to LAST handed its journal over to us."""
        own = sum(self.known < ticket <= last for ticket in self._own_tickets)
        return own >= last - self.known

    def advance(self, last: int) -> None:
        """Say that all journals with a ticket up to LAST are known."""
        self.known = max(self.known, last)
        self._forget_up_to(self.known)

    def follow(self) -> None:
        """Forget what the leader, another process, has decided."""
        self._forget_up_to(self._folder.accounted)

    def _forget_up_to(self, ticket: int) -> None:
        self._own_tickets = {each for each in self._own_tickets if each > ticket}

    def is_missing(self) -> bool:
        """Tell whether there are commits, and nobody has decided any since this was last asked: the
        thread of a process that lives may have ended, or its interpreter."""
        before, self._accounted = self._accounted, self._folder.accounted
        return self._accounted == before and self._folder.last_ticket > before
