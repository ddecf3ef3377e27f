"""The page that all processes of a journal folder share, and what the confirmer says there.

Its layout is the struct in native/shared_page.h. Whoever holds ``confirmer.lock`` writes its
process and the time into it, in each turn (bridge/confirm/loop.py). One that is alive but hangs
keeps the lock. Nobody works around it, as two that confirm would give a number twice: it is
reported.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final, NamedTuple

from firebird_cdc.journal.folder.locks import STATE_DIRECTORY, is_held
from firebird_cdc.journal.folder.page_file import page_path
from firebird_cdc.journal.folder.subjects import CONFIRMER, UNDECIDED, TroubleKind
from firebird_cdc.native._shared_page import ffi

_STRUCT = "struct fbc_shared_page *"
PAGE_BYTES: Final[int] = ffi.sizeof("struct fbc_shared_page")
_SHIPPER_CALLS = ffi.offsetof("struct fbc_shared_page", "shipper_calls")

LOCK: Final = "confirmer.lock"

HUNG_S: Final = 30.0
"""Bound on silence: a confirmer that has not come round for so long hangs; a turn takes
milliseconds."""

_FRESH_S = 1.0  # younger than this nobody has to be asked whether the process still lives


class SharedPage:
    """The page of the file that ``descriptor`` is of, mapped; a process may write each field at any
    time. ``fields`` is the struct, through cffi. Raises OSError."""

    def __init__(self, descriptor: int) -> None:
        os.posix_fallocate(descriptor, 0, PAGE_BYTES)
        self._map = mmap.mmap(descriptor, PAGE_BYTES)
        self.fields: Any = ffi.from_buffer(_STRUCT, self._map, require_writable=True)
        self._heard = _calls_of(self.fields)

    @property
    def is_closed(self) -> bool:
        """True once nothing may be read or written any more."""
        return self._map.closed

    def await_call(self, seconds: float) -> bool:
        """Wait so long, or less, until a process without a bridge has committed and found no bridge
        that waits; return whether one has since this was last asked."""
        # Built for the Python of the shipper, as in a server the plugin waits.
        from firebird_cdc.native._journal_files import await_word

        heard = self._heard
        if _calls_of(self.fields) == heard and seconds > 0:
            await_word(self._map, _SHIPPER_CALLS, heard, int(seconds * 1000))
        self._heard = _calls_of(self.fields)
        return self._heard != heard

    def end_waits(self) -> None:
        """End waits for a call, of this process or another one."""
        from firebird_cdc.native._journal_files import wake_word

        wake_word(self._map, _SHIPPER_CALLS)

    def close(self) -> None:
        """Unmap it. Only where no plugin uses it."""
        if not self._map.closed:
            ffi.release(self.fields)
            self._map.close()


def _calls_of(fields: Any) -> int:
    return int(fields.shipper_calls)


def page_in(content: bytes) -> Any:
    """Return the struct in what was read of the file; zeros where it is shorter."""
    return ffi.from_buffer(_STRUCT, content.ljust(PAGE_BYTES, b"\0"))


class ConfirmerState(NamedTuple):
    """The process that confirms. ``silent_s``: since ``process`` last came round, which lives and
    holds the lock; 0: it did just now, or nobody confirms."""

    undecided: int = 0
    process: int = 0
    silent_s: float = 0.0

    def troubles(self, directory: Path) -> dict[str, tuple[TroubleKind, str]]:
        """Return what is wrong in the journal folder DIRECTORY, by subject."""
        found: dict[str, tuple[TroubleKind, str]] = {}
        if self.silent_s > HUNG_S:
            found[CONFIRMER] = (
                "halted",
                f"process {self.process}, which confirms the journals in {directory}, has not"
                f" responded for more than {HUNG_S:.0f} s: what is committed is not published. No"
                " other process takes over while it lives; see what it waits for (its disk, a"
                " debugger that stopped it), or end it",
            )
        if self.undecided:
            count = "1 transaction" if self.undecided == 1 else f"{self.undecided} transactions"
            found[UNDECIDED] = (
                "waiting",
                f"{count} can't be published yet: in limbo (gfix -list shows that), or other"
                " connections may know of a commit that the file doesn't have yet, or the database"
                " or its numbers can't be read (the log says which); kept until that is known",
            )
        return found


def read_confirmer(directory: Path, is_locked: Callable[[Path], bool] = is_held) -> ConfirmerState:
    """Return what is told in the journal folder DIRECTORY; nothing where there is no such page.

    Never raises. Takes some microseconds.
    """
    state = directory / STATE_DIRECTORY
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(page_path(state), flags)
        try:
            page = page_in(os.read(fd, PAGE_BYTES))
        finally:
            os.close(fd)
        silent_s = monotonic_ns() / 1e9 - page.heartbeat_ms / 1e3  # below 0: before a boot
        if not page.confirmer or silent_s < _FRESH_S or not is_locked(state / LOCK):
            silent_s = 0.0
    except OSError:
        return ConfirmerState()
    return ConfirmerState(page.undecided, page.confirmer, silent_s)
