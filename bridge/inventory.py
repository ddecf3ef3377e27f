"""The transaction inventory of a database file: which transactions are committed, on disk.

The engine writes a transaction's state to its inventory page, and with forced writes waits
until that is on disk, before a commit returns to the client. So the file itself is the witness
that is asked: it needs no attachment, which would stand in the DBA's way, and no engine, so it
is there after a crash too.

Layout: on-disk structure 13 (Firebird 4.0 and 5.0; the engine's ods.h). The header page tells
page size, flags and the last transaction number given; each inventory page holds two bits per
transaction and the number of the next such page. Neither kind is ever encrypted. The engine
locks the file by flock(2) of its own descriptors, which opening and closing it here leaves alone.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from firebird_cdc.bridge.host import Verdict
from firebird_cdc.errors import CaptureError

_HEADER_BYTES = 1024  # the smallest page there ever was; clumplets included
_PAGE = struct.Struct("<16xHH16xIHH2i")  # size, structure, transaction, file, flags, creation
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
_ANY = UUID(int=0)
_VERDICTS = (Verdict.ACTIVE, Verdict.LIMBO, Verdict.DEAD, Verdict.COMMITTED)


class InventoryUnreadable(CaptureError):
    """The file can't tell at present, or not to us: the engine has to be asked."""


class DatabaseReplaced(InventoryUnreadable):
    """The path leads to another database than the one that is asked for."""


class Incarnation(NamedTuple):
    """Which database a file holds: another one after a restore, though its path is the same.

    ``created``: the creation time as the engine stores it; ``inode``: of the file, 0: unknown.
    """

    guid: UUID
    created: tuple[int, int]
    inode: int


class _Header(NamedTuple):
    page_size: int
    last_transaction: int
    has_forced_writes: bool
    guid: UUID
    created: tuple[int, int]


class TransactionInventory:
    """The inventory of one database file, opened for reading. Used by one thread.

    Stays valid when the file is renamed or removed meanwhile, as for the engine itself. Raises
    InventoryUnreadable, OSError if the file can't be opened or read.
    """

    def __init__(self, path: Path, guid: UUID = _ANY) -> None:
        """``guid``: of the database that must be there; nil: whatever is there.

        Raises DatabaseReplaced if it is another one.
        """
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._pages: list[int] = []  # numbers of the inventory pages, in order
            self._last_transaction = 0  # when the pages were looked up
            self._inode = os.fstat(self._fd).st_ino
            self._guid = self._header().guid
            if guid not in (self._guid, _ANY):
                raise DatabaseReplaced(
                    f"{path} is now another database: {self._guid} instead of {guid}"
                )
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    @property
    def is_in_place(self) -> bool:
        """Whether the path still leads to the file that was opened."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    @property
    def is_being_dropped(self) -> bool:
        """Whether DROP DATABASE has marked the file, which it removes next."""
        _, ods, *_ = _PAGE.unpack_from(self._read(_HEADER_BYTES, 0))
        return bool(ods == _BEING_DROPPED)

    @property
    def incarnation(self) -> Incarnation:
        """Which database this is."""
        header = self._header()
        return Incarnation(header.guid, header.created, self._inode)

    @property
    def last_transaction(self) -> int:
        """The highest number that the engine gave to a transaction that could write."""
        return self._header().last_transaction

    def verdicts(self, transactions: Sequence[int], durable: bool) -> list[Verdict]:
        """Return what is on disk about each transaction, in order.

        ``durable``: return only when what is answered survives a power cut. Without forced
        writes the engine itself promises no such thing, and nothing is waited for.
        """
        header = self._header()
        if header.guid != self._guid:  # copied over this file, as a restore may do
            raise DatabaseReplaced(
                f"{self.path} is now another database: {header.guid} instead of {self._guid}"
            )
        if header.last_transaction < self._last_transaction:
            self._pages.clear()  # an older copy of it: its later pages will be elsewhere
        self._last_transaction = header.last_transaction
        pages: dict[int, bytes] = {}  # one reading of each for all questions
        found = [self._state(header, pages, transaction) for transaction in transactions]
        if durable and header.has_forced_writes and Verdict.COMMITTED in found:
            os.fdatasync(self._fd)  # a state can be read before the engine's own sync has ended
        return found

    def _state(self, header: _Header, pages: dict[int, bytes], transaction: int) -> Verdict:
        if transaction > header.last_transaction:
            return Verdict.UNKNOWN
        index, place = divmod(transaction, (header.page_size - _STATES_AT) * 4)
        if index not in pages:
            page = self._page(header, index)
            if page is None:
                return Verdict.ACTIVE  # the page is being added
            content = self._read(header.page_size, page * header.page_size)
            if content[0] != _INVENTORY_PAGE:  # at least the next time it is looked up anew
                self._pages.clear()
                raise InventoryUnreadable(f"page {page} of {self.path} is no inventory page")
            pages[index] = content
        return _VERDICTS[pages[index][_STATES_AT + place // 4] >> 2 * (place % 4) & 3]

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
            size, high << 32 | low, bool(flags & _FORCED_WRITES), guid, (created[0], created[1])
        )

    def _read(self, length: int, offset: int) -> bytes:
        content = os.pread(self._fd, length, offset)
        if len(content) < length:
            raise InventoryUnreadable(f"{self.path} ends at byte {offset + len(content)}")
        return content
