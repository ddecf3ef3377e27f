"""Feeds damaged and forged shared journals to their reader: as ``journal_fuzz`` does with single
ones.

What is read of a damaged journal has to be what its index named when it was whole: no transaction
that was rolled back or never decided, none under another number, no change that nobody wrote. And a
walk finds only what was written.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import google_crc32c

sys.path.insert(1, str(Path(__file__).parent))
from campaign import Campaign, Input, Lie, main
from journal_fuzz import HUGE, INTERESTING, compare, plain, show_journal, use, write_random_rows

from firebird_cdc.errors import JournalError
from firebird_cdc.journal.format import (
    Column,
    JournalReader,
    Place,
    SharedJournal,
    SharedJournalWriter,
    SmallTransactions,
    Storage,
    TransactionWriter,
)
from firebird_cdc.journal.format.layout import ALIGNMENT, FILE_BLOCK, HEAD
from firebird_cdc.journal.format.sectors import Head
from firebird_cdc.journal.format.shared import FileHeader, Void, walk

_BLOCK = struct.Struct("<4sIQQIHHII")


@dataclass
class Subject:
    """An undamaged journal, and all that may be read of it."""

    name: str
    content: bytes
    header: FileHeader
    places: dict[UUID, Place]
    changes: dict[UUID, list[object]] = field(default_factory=dict)
    written: dict[int, Head | Void] = field(default_factory=dict)


def _write_few_rows(written: TransactionWriter, chance: random.Random) -> None:
    """Write what most transactions are."""
    key = Column("ID", 496, 0, 0, 4, 0, 0, 0, False, False, 1, Storage.INTEGER)
    text = Column("NAME", 448, 0, 0, 80, 4, 20, 0, True, False, 0, Storage.TEXT)
    table = written.table("FEW", [key, text])
    for number in range(chance.randint(1, 3)):
        written.insert(table, (number, chance.choice(("Анна", "", None))))
    written.update(table, (0, "Анна"), (0, "Maria"))


def _write(path: Path, number: int) -> Subject:
    chance = random.Random(f"shared {number}")
    uuid = UUID(bytes=chance.randbytes(16))
    nil = UUID(int=0)
    is_own = number % 4 == 3
    header = FileHeader(uuid, nil, nil, 7, nil, 1, 10 * is_own, is_own, "/data/базы.fdb")
    places = {}
    with SharedJournalWriter(path, header) as journal:
        for index in range(1 if is_own else chance.randint(2, 7)):
            written = TransactionWriter(
                header,
                10 + index,
                "SYSDBA",
                uuid=UUID(bytes=chance.randbytes(16)),
                started_us=1_790_000_000_000_000,
                block_bytes=chance.choice((200, 400, 70_000)),
            )
            is_known = chance.random() < 0.5
            if not is_own and chance.random() < 0.6:
                _write_few_rows(written, chance)
            else:
                wide, _ = write_random_rows(written, chance, is_known)
            written.seal(1_790_000_000_000_001, chance.randrange(2**32))
            if not is_known and is_own:
                written.complete([replace(wide, resolved=True)])
            journal.append(written)
            fate = "committed" if is_own else chance.choice(("committed", "void", "open"))
            if chance.random() < 0.4:
                journal.begin_block()
            if fate == "void":
                journal.void(written)
            elif fate == "committed":
                place = journal.commit(
                    written, 100 + index, ticket=index, commit_us=5, stamped_us=6, epoch=number % 2
                )
                places[place.uuid] = place
        journal.close()
    return Subject(f"shared-{number}", path.read_bytes(), header, places)


def make_subjects(folder: Path) -> list[Subject]:
    """Return the journals that are to be damaged, the same ones every time."""
    found = []
    for number in range(16):
        subject = _write(folder / f"shared-{number}.log", number)
        with SharedJournal(subject.name, subject.content) as journal:
            for place in journal.places:
                with journal.reader(place) as reader:
                    subject.changes[place.uuid] = [plain(change) for change in reader.changes()]
        for each in _walk(subject.content, subject.header.uuid):
            if each.what is not None:
                subject.written[each.offset] = each.what
        found.append(subject)
    return found


def _walk(content: bytes, journal: UUID) -> list[Any]:
    def read(length: int, offset: int) -> bytes:
        return content[offset : offset + length]

    return list(walk(read, len(content), journal))


# ---- Damage and forgery ------------------------------------------------------------------------


def _place_in(chance: random.Random, content: bytearray, subject: Subject) -> int:
    """Return an offset, more often one in a head, in the index or in a block's header."""
    kind = chance.random()
    if kind < 0.3 and subject.written:
        at = chance.choice(list(subject.written)) + chance.randrange(HEAD.size + 60)
    elif kind < 0.6:
        at = len(subject.content) - chance.randrange(2 * FILE_BLOCK)
    elif kind < 0.7:
        at = chance.randrange(120)
    else:
        at = chance.randrange(len(content) + 1)
    return min(at, max(len(content) - 1, 0))


def damage(chance: random.Random, subject: Subject, subjects: Sequence[Subject]) -> bytes:
    """Return the journal with one to three accidents."""
    content = bytearray(subject.content)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        at = _place_in(chance, content, subject)
        kind = chance.randrange(7)
        if kind <= 1 and content:
            content[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            size = chance.choice((1, 2, 4, 8))
            number = chance.choice((*INTERESTING, *HUGE, len(content), at))
            content[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, "little")
        elif kind == 3:
            unit = chance.choice((1, ALIGNMENT, 512, FILE_BLOCK))
            start = at // unit * unit
            end = min(start + unit * chance.choice((1, 1, 2, 5)), len(content))
            zeros = chance.random() < 0.6
            content[start:end] = bytes(end - start) if zeros else chance.randbytes(end - start)
        elif kind == 4:
            del content[at:]
        elif kind == 5:
            content += chance.choice((bytes(chance.randrange(9000)), chance.randbytes(700)))
        else:  # a part of another journal, or of this one, at its own place or elsewhere
            other = chance.choice((subject, *subjects)).content
            start = chance.randrange(len(other)) // ALIGNMENT * ALIGNMENT
            piece = other[start : start + chance.choice((ALIGNMENT, 700, FILE_BLOCK, 9000))]
            to = start if chance.random() < 0.5 else at // ALIGNMENT * ALIGNMENT
            content[to : to + len(piece)] = piece
    return bytes(content)


def forge(chance: random.Random, subject: Subject) -> bytes:
    """Return a journal with nonsense under right checksums."""
    content = bytearray(subject.content)
    journal = subject.header.uuid.bytes
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = _place_in(chance, content, subject)
        content[at] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
    size = len(content) // FILE_BLOCK * FILE_BLOCK
    for at in (0, *range(FILE_BLOCK, size, FILE_BLOCK)):
        if at == 0 or content[at : at + 4] == b"FBCX":
            _mend(content, at, at + FILE_BLOCK - 4, journal)
    for at, what in subject.written.items():
        if isinstance(what, Void):
            _mend(content, at, at + ALIGNMENT - 4, journal)
            continue
        own = bytes(content[at + 16 : at + 32])
        _mend(content, at, at + HEAD.size - 4, own)
        _mend_blocks(content, at, own)
    return bytes(content)


def _mend(content: bytearray, start: int, end: int, uuid: bytes) -> None:
    crc = google_crc32c.extend(google_crc32c.value(uuid), bytes(content[start:end]))
    content[end : end + 4] = crc.to_bytes(4, "little")


def _mend_blocks(content: bytearray, head: int, uuid: bytes) -> None:
    at = head + HEAD.size
    previous = google_crc32c.value(uuid)
    while content[at : at + 4] == b"FBCB" and at + _BLOCK.size <= len(content):
        length = _BLOCK.unpack_from(content, at)[1]
        end = at + _BLOCK.size + length
        if end > len(content):
            return
        content[at + 24 : at + 28] = previous.to_bytes(4, "little")
        body = bytes(content[at : at + 36]) + bytes(content[at + 40 : end])
        previous = google_crc32c.extend(google_crc32c.value(uuid), body)
        content[at + 36 : at + 40] = previous.to_bytes(4, "little")
        at = end


# ---- Reading it --------------------------------------------------------------------------------


def _read_small(journal: SharedJournal) -> Iterator[tuple[Place, list[Any] | None]]:
    """Yield the places of a journal with the changes that are read many transactions at a time."""
    small = SmallTransactions()
    for run, start, content in journal.runs(journal.entries):
        for entry, beginning, changes in small.changes(content or b"", start, run):
            yield entry.place, None if beginning is None else changes


class SharedFuzz(Campaign):
    """Journals of version 2."""

    def __init__(self, folder: Path) -> None:
        self.subjects = make_subjects(folder)
        self._known = {subject.header.uuid: subject for subject in self.subjects}

    def make_input(self, seed: int, number: int) -> Input:
        chance = random.Random(seed << 40 | number)
        subject = chance.choice(self.subjects)
        if chance.random() < 0.5:
            return Input(forge(chance, subject), subject.name, True)
        return Input(damage(chance, subject, self.subjects), subject.name, False)

    def examine(self, path: Path, is_forged: bool, chance: random.Random) -> str:
        if chance.random() < 0.05:
            show_journal(path, chance.random() < 0.5)
        content = path.read_bytes()
        for subject in self.subjects if chance.random() < 0.1 else ():
            self._examine_walk(content, subject, is_forged)
        try:
            journal = SharedJournal(path)
        except JournalError as error:
            return type(error).__name__
        with journal:
            subject = self._known.get(journal.index.journal)
            if subject is not None:
                self._examine_walk(content, subject, is_forged)
            if not is_forged:
                places = {} if subject is None else subject.places
                for place in journal.places:
                    compare("place", place, [*places.values()])
                if len({place.uuid for place in journal.places}) != len(journal.places):
                    raise Lie("a transaction is named twice")
            small = dict(_read_small(journal))
            ended = "whole"
            for place, reader in journal.readers(journal.places):
                quick = small.get(place)
                if quick is not None:
                    self._compare_small(place, quick, journal)
                if isinstance(reader, JournalError):
                    ended = type(reader).__name__
                    continue
                with reader:
                    left = self._read(place, reader, subject, is_forged)
                ended = left if ended == "whole" else ended
        return ended

    @staticmethod
    def _compare_small(place: Place, quick: list[Any], journal: SharedJournal) -> None:
        """See that what is read with others is what a reader of its own reads."""
        try:
            with journal.reader(place) as reader:
                changes = list(reader.changes())
        except JournalError as error:
            raise Lie(
                f"small {place.uuid}: {quick!r:.1000}, where its reader says {error}"
            ) from error
        if changes != quick and repr(changes) != repr(quick):  # there are numbers that equal none
            raise Lie(f"small {place.uuid}: {quick!r:.1000}, not {changes!r:.1000}")

    @staticmethod
    def _examine_walk(content: bytes, subject: Subject, is_forged: bool) -> None:
        end = FILE_BLOCK
        for found in _walk(content, subject.header.uuid):
            if found.offset < end or found.end <= found.offset:
                raise Lie(f"a walk goes from {end} to {found.offset}, {found.end}")
            end = found.end
            if found.what is not None and not is_forged:
                compare("walk", found.what, [subject.written.get(found.offset)])

    @staticmethod
    def _read(place: Place, reader: JournalReader, subject: Subject | None, is_forged: bool) -> str:
        texts: dict[int, Any] = {}
        count = 0
        changes = [] if subject is None or is_forged else subject.changes[place.uuid]
        try:
            for change in reader.changes():
                if is_forged:
                    use(change, texts)
                    continue
                if count >= len(changes) or plain(change) != changes[count]:
                    raise Lie(f"change {count} of {place.uuid}: {plain(change)!r:.2000}")
                count += 1
        except JournalError as error:
            return type(error).__name__
        if not is_forged and count != len(changes):
            raise Lie(f"{place.uuid} is whole with {count} changes")
        return "whole"


if __name__ == "__main__":
    sys.exit(main(SharedFuzz, __doc__ or ""))
