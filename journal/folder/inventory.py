"""The transaction inventory of a database file: which transactions are committed, on disk.

The engine writes a transaction's state to its inventory page, and with forced writes waits
until that is on disk, before a commit returns to the client. So the file itself
is asked: that needs no attachment, which would stand in the DBA's way, and no engine, so it can be
asked after a crash too.

The bits of the page are not all of it: the engine takes every number below the header's oldest
interesting transaction (OIT) for committed. It computes the OIT from its memory, and nothing
orders the header's write behind that of the inventory page: a crash between the two leaves a
committed transaction whose bits say active for ever.

Layout: on-disk structure 13 (Firebird 4.0 and 5.0; the engine's ods.h). The header page tells
page size, flags and the last transaction number given; each inventory page holds two bits per
transaction and the number of the next such page. Neither kind is ever encrypted. The engine
locks the file by flock(2) of its own descriptors, which opening and closing it here leaves alone.

After a sync of the file that failed, what the system has of it in memory may not be on disk, and no
later sync says so. From then on, until the machine starts anew, only that counts on which both
agree: the file is read a second time, past the system's memory (O_DIRECT). See
journal/folder/failed_syncs.py.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import logbook

from firebird_cdc.errors import CaptureError
from firebird_cdc.journal.folder.failed_syncs import Doubt

_log = logbook.Logger("firebird_cdc.journal.folder.inventory")

_HEADER_BYTES = 1024  # the smallest page there ever was; clumplets included
_PAGE = struct.Struct("<16xHH16xIHH2i")  # size, structure, transaction, file, flags, creation
# the oldest interesting transaction, low; attachments so far, without their high word; the first
# one's high word
_COUNTERS = struct.Struct("<28xI20xI66xH")
_HIGH_WORD = struct.Struct("<H")  # of the last transaction number
_HIGH_WORD_AT = 120
_CLUMPLETS_AT = 128
_CLUMPLET_END, _CLUMPLET_SECOND_FILE, _CLUMPLET_GUID = 0, 2, 10
_ODS_13 = 0x8000 | 13
# DROP DATABASE leaves everything else as it was, and then removes the file (jrd.cpp). What was
# committed right before can still be read by who has it open.
_BEING_DROPPED = 0
_FORCED_WRITES = 0x2
_BACKUP_STATES = 0xC00  # not 0: changes go to a difference file (nbackup)
_HEADER_PAGE, _INVENTORY_PAGE = 1, 3
_NEXT_PAGE_AT = 16
_STATES_AT = 20
_FIRST_INVENTORY_LIMIT = 8192  # pages: the first one is made with the database, after the system's
_ALIGNMENT = 4096  # of direct reads
_ANY = UUID(int=0)


class TransactionState(Enum):
    """Transaction state, as the engine tells it."""

    ACTIVE = "active"
    LIMBO = "in limbo"
    DEAD = "rolled back or dead"
    UNKNOWN = "unknown to this database"
    COMMITTED = "committed"


_STATES = (
    TransactionState.ACTIVE,
    TransactionState.LIMBO,
    TransactionState.DEAD,
    TransactionState.COMMITTED,
)


class InventoryUnreadable(CaptureError):
    """The file can't tell at present, or not to us: the engine has to be asked."""


class DatabaseReplaced(InventoryUnreadable):
    """The path leads to another database than the one that is asked for."""


class Incarnation(NamedTuple):
    """Identity of the database in a file: another one after a restore, though its path is the same.

    ``created``: the creation time as the engine stores it; ``inode``: of the file, 0: unknown.
    """

    guid: UUID
    created: tuple[int, int]
    inode: int


class Seen(NamedTuple):
    """The database that a file holds, and counters that only grow as long as it is the same one.

    ``last_transaction``: the highest number given to a transaction that could write;
    ``attachments``: how many there have been.
    """

    incarnation: Incarnation
    last_transaction: int
    attachments: int


class _Header(NamedTuple):
    page_size: int
    last_transaction: int
    oldest_interesting: int
    attachments: int
    has_forced_writes: bool
    guid: UUID
    created: tuple[int, int]

    @property
    def states_of_page(self) -> int:
        """Transactions whose states are on one inventory page."""
        return (self.page_size - _STATES_AT) * 4


@dataclass(frozen=True)
class InventoryCopy:
    """Copy of the inventory as it was at one moment.

    ``_pages``: by their place in the order; those before what was asked for lack.
    """

    _header: _Header
    _pages: dict[int, bytes]

    def state(self, transaction: int) -> TransactionState:
        """Return what the file said of TRANSACTION; ACTIVE where its page was not there."""
        return _state(self._header, self._pages.get, transaction)


def _state(
    header: _Header, page_of: Callable[[int], bytes | None], transaction: int
) -> TransactionState:
    """Return what the engine would take TRANSACTION for if it opened the file.

    PAGE_OF returns a page of the inventory by its place in the order, None: there is none yet.
    HEADER was read before the pages, so what it says was true of their states.
    """
    if transaction > header.last_transaction:
        return TransactionState.UNKNOWN
    index, place = divmod(transaction, header.states_of_page)
    page = page_of(index)
    state = TransactionState.ACTIVE
    if page is not None:
        state = _STATES[page[_STATES_AT + place // 4] >> 2 * (place % 4) & 3]
    # A dead one below it was swept away: nothing of it is left.
    is_passed = state is not TransactionState.DEAD and transaction < header.oldest_interesting
    return TransactionState.COMMITTED if is_passed else state


class TransactionInventory:
    """The inventory of one database file, opened for reading. Used by one thread.

    Stays valid when the file is renamed or removed meanwhile, as for the engine itself. Raises
    InventoryUnreadable, OSError if the file can't be opened or read.
    """

    def __init__(self, path: Path, guid: UUID = _ANY, doubt: Doubt | None = None) -> None:
        """``guid``: of the database that must be there; nil: whatever is there.

        Raises DatabaseReplaced if it is another one.
        """
        self.path = path
        self._doubt = doubt
        self._is_doubted = doubt is not None and doubt.database() is not None
        self._owes_note = False  # of a doubt: others are to know of it before anything is decided
        self._direct: int | None = None  # a descriptor that reads what is on disk, once in doubt
        self._reads_disk = False
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._pages: list[int] = []  # numbers of the inventory pages, in order
            self._last_transaction = 0  # when the pages were looked up
            self._attachments = 0  # durable, as far as that was asked for
            self._inode = os.fstat(self._fd).st_ino
            self._guid = self._header().guid
            if guid not in (self._guid, _ANY):
                raise DatabaseReplaced(
                    f"{path} is now another database: {self._guid} instead of {guid}"
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
        if self._direct is not None:
            os.close(self._direct)

    @property
    def is_in_place(self) -> bool:
        """Tell whether the path still leads to the file that was opened."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    @property
    def is_gone(self) -> bool:
        """Tell whether the path leads to no file, or another one; not if that can't be told."""
        try:
            return self.path.stat().st_ino != self._inode
        except FileNotFoundError:
            return True
        except OSError:
            return False

    @property
    def is_being_dropped(self) -> bool:
        """Tell whether DROP DATABASE has marked the file, which it removes next."""
        _, ods, *_ = _PAGE.unpack_from(self._read(_HEADER_BYTES, 0))
        return bool(ods == _BEING_DROPPED)

    def identify(self) -> Seen:
        """Return which database this is, and how far it has come."""
        header = self._header()
        return Seen(
            Incarnation(header.guid, header.created, self._inode),
            header.last_transaction,
            header.attachments,
        )

    @property
    def inode(self) -> int:
        """The file's."""
        return self._inode

    @property
    def durable_attachments(self) -> int:
        """The number of attachments that the database had had when something was last found
        committed for good; 0: not known. A power cut can't take that back."""
        return self._attachments

    def states(self, transactions: Sequence[int], durable: bool) -> list[TransactionState]:
        """Return what is on disk about each transaction, in order.

        ``durable``: return only when what is answered survives a power cut. Without forced
        writes the engine itself promises no such thing, and nothing is waited for.
        """
        self._note_doubt()
        header = self._current_header()
        pages: dict[int, bytes] = {}  # one reading of each for all questions
        page_of = partial(self._load, header, pages)
        found = [_state(header, page_of, transaction) for transaction in transactions]
        if durable and header.has_forced_writes and TransactionState.COMMITTED in found:
            self._sync()  # a state can be read before the engine's own sync has ended
            self._attachments = header.attachments
        if self._is_doubted and not self._reads_disk:
            self._compare_with_disk(transactions, found)
        return found

    def copy_states(self, first: int) -> InventoryCopy:
        """Return a copy of what is in the file now about the transactions from FIRST on: 2 bits
        each. A power cut may still take back what it says."""
        header = self._current_header()
        pages: dict[int, bytes] = {}
        last = header.last_transaction // header.states_of_page
        for index in range(first // header.states_of_page, last + 1):
            self._load(header, pages, index)
        return InventoryCopy(header, pages)

    def _current_header(self) -> _Header:
        """Return the header, once it is known which pages that were looked up still count."""
        header = self._header()
        if header.guid != self._guid:  # copied over this file, as a restore may do
            raise DatabaseReplaced(
                f"{self.path} is now another database: {header.guid} instead of {self._guid}"
            )
        if header.last_transaction < self._last_transaction:
            self._pages.clear()  # an older copy of it: its later pages will be elsewhere
        self._last_transaction = header.last_transaction
        return header

    def _compare_with_disk(
        self, transactions: Sequence[int], found: list[TransactionState]
    ) -> None:
        """Raise CaptureError unless every end of a transaction that was found is on disk. Else
        neither can be acted upon: the engine reads the one, and the other is all that a power cut
        leaves. What had not ended may have done so between the two readings."""
        if self._direct is None:
            self._direct = self._open_directly()
        ends = {
            transaction: state
            for transaction, state in zip(transactions, found, strict=True)
            if state in (TransactionState.COMMITTED, TransactionState.DEAD)
        }
        self._reads_disk = True
        try:
            on_disk = self.states(list(ends), durable=False)
        finally:
            self._reads_disk = False
        if on_disk != list(ends.values()):
            raise CaptureError(
                f"a sync of {self.path} failed since the machine started, and the disk tells "
                "another thing of these transactions than the engine, which may write it again: "
                "wait, or restart the machine"
            )

    def _sync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            _log.critical(
                "a sync of {database} failed ({cause}): the disk may have lost what the engine "
                "committed. Journals of what is not on disk wait. Check the disk, then the "
                "database (gfix -validate), and restart the machine",
                database=self.path,
                cause=error.strerror,
            )
            self._is_doubted = self._owes_note = True
            self._note_doubt()
            raise

    def _note_doubt(self) -> None:
        if self._owes_note and self._doubt is not None:
            self._doubt.note(self.path)
        self._owes_note = False

    def _open_directly(self) -> int:
        try:
            return os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        except OSError as error:
            raise CaptureError(
                f"a sync of {self.path} failed since the machine started, and its file system "
                f"does not show what is on disk ({error.strerror}): restart the machine"
            ) from error

    def _load(self, header: _Header, pages: dict[int, bytes], index: int) -> bytes | None:
        """Return the inventory's page INDEX, kept in PAGES; None: it is being added."""
        if index not in pages:
            page = self._page(header, index)
            if page is None:
                return None
            content = self._read(header.page_size, page * header.page_size)
            if content[0] != _INVENTORY_PAGE:  # at least the next time it is looked up anew
                self._pages.clear()
                raise InventoryUnreadable(f"page {page} of {self.path} is no inventory page")
            pages[index] = content
        return pages[index]

    def _page(self, header: _Header, index: int) -> int | None:
        """The page number of the inventory's page INDEX, None if there is none yet."""
        if not self._pages:
            self._pages.append(self._first_page(header))
        while index >= len(self._pages):
            following = int.from_bytes(
                self._read(4, self._pages[-1] * header.page_size + _NEXT_PAGE_AT), "little"
            )
            if not following:
                return None
            if self._read(1, following * header.page_size)[0] != _INVENTORY_PAGE:
                return None
            self._pages.append(following)
        return self._pages[index]

    def _first_page(self, header: _Header) -> int:
        for page in range(1, _FIRST_INVENTORY_LIMIT):
            kind = os.pread(self._fd, 1, page * header.page_size)
            if not kind:
                break
            if kind[0] == _INVENTORY_PAGE:
                return page
        raise InventoryUnreadable(f"{self.path} has no transaction inventory page")

    def _header(self) -> _Header:
        page = self._read(_HEADER_BYTES, 0)
        size, ods, low, _, flags, *created = _PAGE.unpack_from(page)
        if page[0] != _HEADER_PAGE or ods not in (_ODS_13, _BEING_DROPPED):
            raise InventoryUnreadable(
                f"{self.path} has on-disk structure {ods & 0x7FFF}, of which only 13 is known here"
            )
        if flags & _BACKUP_STATES:
            raise InventoryUnreadable(
                f"{self.path} is locked for a physical backup (nbackup): its changes are elsewhere"
            )
        (high,) = _HIGH_WORD.unpack_from(page, _HIGH_WORD_AT)
        oldest, attachments, oldest_high = _COUNTERS.unpack_from(page)
        guid = UUID(int=0)
        at = _CLUMPLETS_AT
        while at + 2 <= len(page) and page[at] != _CLUMPLET_END:
            kind, length = page[at], page[at + 1]
            if kind == _CLUMPLET_SECOND_FILE:
                raise InventoryUnreadable(f"{self.path} is spread over several files")
            if kind == _CLUMPLET_GUID and length == 16:
                guid = UUID(bytes_le=page[at + 2 : at + 18])
            at += 2 + length
        return _Header(
            size,
            high << 32 | low,
            oldest_high << 32 | oldest,
            attachments,
            bool(flags & _FORCED_WRITES),
            guid,
            (created[0], created[1]),
        )

    def _read(self, length: int, offset: int) -> bytes:
        if self._direct is None or not self._reads_disk:
            content = os.pread(self._fd, length, offset)
        else:
            start = offset - offset % _ALIGNMENT
            with mmap.mmap(-1, -(-(offset + length - start) // _ALIGNMENT) * _ALIGNMENT) as page:
                count = os.preadv(self._direct, [page], start)
                content = page[offset - start : min(count, offset + length - start)]
        if len(content) < length:
            raise InventoryUnreadable(f"{self.path} ends at byte {offset + len(content)}")
        return content
