"""Feeds damaged and forged journals to the reader: it must not crash, hang, swell or lie.

``python tests/fuzz/journal_fuzz.py --inputs 1000000`` prints its seed, and names a file with
each input that it wants to complain of. Two kinds of inputs:

- *damaged* ones, as accidents leave them: the reader may end in an error of ours, or give what
  was written; what it gives before an error must be a beginning of that. All else is a lie.
- *forged* ones, whose checksums were made right again, so that what lies behind them is tried
  too: here anything goes but other exceptions, a second of CPU time, or 512 MiB of memory.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import google_crc32c

sys.path.insert(1, str(Path(__file__).parent))
from campaign import Campaign, Input, Lie, main

from firebird_cdc.errors import JournalError, JournalTorn
from firebird_cdc.journal.format import (
    BLOCK_HEADER,
    COMMIT_OFFSET,
    DATA_OFFSET,
    SECTOR,
    STAMP_OFFSET,
    Blob,
    Change,
    Column,
    DdlChange,
    Element,
    Header,
    JournalReader,
    JournalWriter,
    RowChange,
    Seal,
    Storage,
    Table,
    TableChange,
    TableState,
    Undecodable,
    Value,
    read_envelope,
)
from firebird_cdc.journal.format.records import RecordWriter
from firebird_cdc.journal.shipper.commands import show
from firebird_cdc.journal.types.canonical import RowText

_VECTORS = Path(__file__).parent.parent / "vectors"
_BLOCK = struct.Struct("<4sIQQIHHII")
_STAMP_LENGTHS = struct.Struct("<QQQQ")  # from byte 32 of the stamp: length, events, …, catalogue
_SEAL = struct.Struct("<QQQq")
_SEALS = 2
_CATALOGUE = 4


# ---- What is fed -------------------------------------------------------------------------------


class Truth(NamedTuple):
    """Content that was written, as far as an undamaged journal can be read."""

    header: Header
    commit_mark: object
    stamp: object
    begin: tuple[str, str]
    seal: Seal | None
    unresolved: Mapping[int, bytes]
    changes: list[object]
    is_whole: bool


class Subject(NamedTuple):
    """An undamaged journal; ``family``: all with its uuid, which a splice may turn it into."""

    name: str
    content: bytes
    blocks: list[tuple[int, int]]  # offset and end
    family: list[Subject]
    truths: list[Truth]  # of the family


Known = Mapping[UUID, Sequence[Truth]]


def _column(name: str, storage: Storage, **more: Any) -> Column:
    fields: dict[str, Any] = dict.fromkeys(
        ("sql_type", "sub_type", "scale", "length", "charset_id", "char_length", "precision"), 0
    )
    fields |= {"nullable": True, "identity": False, "key_position": 0}
    return Column(name=name, storage=storage, **(fields | more))


def _all_columns() -> list[Column]:
    texts = {
        Storage.TEXT: {"charset_id": 4, "char_length": 20},
        Storage.PADDED_TEXT: {"charset_id": 52, "char_length": 12},
        Storage.OCTETS: {"charset_id": 1},
        Storage.BLOB: {"sub_type": 1, "charset_id": 4},
        Storage.INTEGER: {"scale": -2, "key_position": 1},
    }
    return [_column(f"C{storage}", storage, **texts.get(storage, {})) for storage in Storage]


def _value(chance: random.Random, column: Column, blob: Callable[[], int]) -> Value:
    if chance.random() < 0.2:
        return None
    storage = column.storage
    sizes = {Storage.SMALLINT: 2, Storage.INTEGER: 4, Storage.BIGINT: 8, Storage.INT128: 16}
    if storage in sizes:
        return int.from_bytes(chance.randbytes(sizes[storage]), "little", signed=True)
    if storage is Storage.FLOAT:
        return float(chance.randrange(-1000, 1000)) / 4
    if storage is Storage.DOUBLE:
        return chance.uniform(-1e300, 1e300)
    if storage is Storage.BOOLEAN:
        return chance.random() < 0.5
    if storage in (Storage.DATE, Storage.TIME, Storage.TIMESTAMP):
        return chance.randrange(2**20)
    zoned = {Storage.TIME_TZ: 6, Storage.TIMESTAMP_TZ: 10}
    decimals = {Storage.DECFLOAT16: 8, Storage.DECFLOAT34: 16}
    if storage in zoned or storage in decimals:
        return chance.randbytes((zoned | decimals)[storage])
    if storage in (Storage.BLOB, Storage.ARRAY):
        return blob()
    if storage in (Storage.TEXT, Storage.PADDED_TEXT):
        return Undecodable(b"\xff\xfe", column.charset_id) if chance.random() < 0.1 else "жук" * 3
    return chance.randbytes(chance.randrange(12))


def _row(chance: random.Random, writer: RecordWriter, table: Table) -> list[Value]:
    def blob() -> int:
        size = chance.choice((0, 10, 200))
        return writer.blob(chance.randbytes(size), chance.random() < 0.9, chunk_bytes=90)

    return [_value(chance, column, blob) for column in table.columns]


def _table_change(chance: random.Random, columns: Sequence[Column]) -> TableChange:
    """Return what a statement may have done to a table, with or without its state."""
    kind = chance.choice(("CREATE", "ALTER", "DROP"))
    if kind == "DROP" or chance.random() < 0.2:
        return TableChange(kind, "GONE", None)
    element = Element(8, 0, 0, 4, 0, ((1, 3), (-2, 2)))
    shown = [
        replace(
            column,
            element=element if column.storage == Storage.ARRAY else None,
            default=chance.choice((None, None, b"", bytes.fromhex("05150800050000004c"))),
        )
        for column in columns
    ]
    count = len(shown)
    return TableChange(
        kind,
        "SMALL",
        TableState(
            Table(0, "SMALL", 1, tuple(shown)),
            "UTF8",
            tuple(chance.random() < 0.2 for _ in range(count)),
            tuple(chance.choice((None, "'ж'", "7")) for _ in range(count)),
        ),
    )


def write_random_rows(
    writer: RecordWriter, chance: random.Random, is_known: bool
) -> tuple[Table, int]:
    """Write changes of two tables; return the first, and the event that is a DDL. IS_KNOWN: their
    definitions are complete."""
    columns = _all_columns()
    wide = writer.table("WIDE", columns, resolved=is_known)
    small = writer.table("SMALL", [columns[1], columns[14]], resolved=is_known)
    for turn in range(chance.randint(2, 6)):
        table = chance.choice((wide, small, small))
        kind = chance.randrange(3)
        if kind == 0:
            writer.insert(table, _row(chance, writer, table))
        elif kind == 1:
            writer.update(table, _row(chance, writer, table), _row(chance, writer, table))
        else:
            writer.delete(table, _row(chance, writer, table))
        if turn == 1:
            writer.sequence("GEN", chance.randrange(2**40))
            writer.ddl("ALTER TABLE SMALL ADD Ж INTEGER")
            ddl = writer.event_count
            writer.gap("a reason")
            small = writer.table("SMALL", columns[:3], key_kind=2, order=(2, 0, 1))
    return wide, ddl


def _write_random(path: Path, number: int) -> Iterator[bytes]:
    """Write a journal from a seed; yield its bytes as an open, sealed, marked, stamped one."""
    chance = random.Random(f"journal {number}")
    with JournalWriter(
        path,
        uuid=UUID(bytes=chance.randbytes(16)),
        transaction=number + 7,
        database="/data/базы.fdb",
        user="SYSDBA",
        epoch=number % 3,
        started_us=1_790_000_000_000_000,
        block_bytes=chance.choice((200, 400, 1500)),
    ) as writer:
        known = number % 2 == 0
        wide, ddl = write_random_rows(writer, chance, known)
        writer.flush()
        yield path.read_bytes()
        writer.gap("the last record")  # the floor needs a block that is written with the seal
        writer.seal(1_790_000_000_000_001, chance.randrange(2**32))
        yield path.read_bytes()
        changes = {ddl: [_table_change(chance, _all_columns()) for _ in range(number % 3)]}
        if not known or number % 4:
            writer.complete([] if known else [replace(wide, resolved=True)], changes)
        writer.commit(number + 1, 1_790_000_000_000_002)
        yield path.read_bytes()
        writer.stamp(number + 1, 1_790_000_000_000_003)
        yield path.read_bytes()


def _write_large(path: Path) -> Iterator[bytes]:
    """Write a journal with a blob of 100 KB and a block of 20 KB."""
    chance = random.Random("large")
    with JournalWriter(path, uuid=UUID(int=1), started_us=1, block_bytes=20_000) as writer:
        table = writer.table("T", [_column("B", Storage.BLOB), _column("N", Storage.BIGINT)])
        writer.insert(table, (writer.blob(chance.randbytes(100_000)), 1))
        for number in range(1000):
            writer.insert(table, (None, number))
        writer.seal(2, 2**40)
        yield path.read_bytes()
        writer.commit(1, 3)
        writer.stamp(1, 4)
        yield path.read_bytes()


def _write_siblings(path: Path) -> Iterator[bytes]:
    """Write two journals that differ from their third block on, as after a rollback."""
    for ending in ("kept", "undone and longer"):
        path.unlink(missing_ok=True)
        with JournalWriter(path, uuid=UUID(int=2), started_us=1, block_bytes=150) as writer:
            table = writer.table("T", [_column("N", Storage.TEXT, charset_id=4)])
            for number in range(4):
                writer.insert(table, (f"number {number}",))
            for number in range(4):
                writer.insert(table, (f"{ending} {number}",))
            writer.flush()
            yield path.read_bytes()


def _vectors() -> Iterator[bytes]:
    for path in sorted(_VECTORS.glob("*.hex")):
        *lines, length = path.read_text("ascii").splitlines()
        content = bytearray(int(length, 16))
        for line in lines:
            at, piece = line.split()
            content[int(at, 16) : int(at, 16) + len(piece) // 2] = bytes.fromhex(piece)
        yield bytes(content)


def make_subjects(folder: Path) -> list[Subject]:
    """Return the journals that are to be damaged, the same ones every time."""
    families = [("vector", list(_vectors())), ("large", list(_write_large(folder / "large")))]
    families.append(("siblings", list(_write_siblings(folder / "siblings"))))
    for number in range(10):
        stages = list(_write_random(folder / f"random-{number}", number))
        families.append((f"random-{number}", stages))
    found = []
    for name, contents in families:
        family: list[Subject] = []
        truths: list[Truth] = []
        for number, content in enumerate(contents):
            # The stamp may get lost with all it says, and so the catalogue that only it names.
            unstamped = content[:STAMP_OFFSET] + bytes(SECTOR) + content[DATA_OFFSET:]
            these = [
                _truth(folder / "subject", text) for text in dict.fromkeys((content, unstamped))
            ]
            if any(truth is None for truth in these):
                continue  # a vector that is broken
            truths += [truth for truth in these if truth is not None]
            family.append(Subject(f"{name}/{number}", content, _blocks(content), family, truths))
        found += family
    return found


def _blocks(content: bytes) -> list[tuple[int, int]]:
    """Return offset and end of the blocks of a sound journal, its catalogue's last."""
    found = []
    at = DATA_OFFSET
    while content[at : at + 4] == b"FBCB":
        _, length, own, *_ = _BLOCK.unpack_from(content, at)
        end = at + BLOCK_HEADER + length
        if own != at or end > len(content):
            break
        found.append((at, end))
        at = end
    return found


def _truth(path: Path, content: bytes) -> Truth | None:
    path.write_bytes(content)
    changes: list[object] = []
    is_whole = True
    try:
        with JournalReader(path) as reader:
            begin = reader.database, reader.user
            try:
                for change in reader.changes():
                    changes.append(plain(change))
            except JournalTorn:
                is_whole = False
            unresolved: dict[int, bytes] = {}
            with contextlib.suppress(JournalError):
                unresolved = reader.unresolved_tables()
            marks = reader.header, reader.commit_mark, reader.stamp
            return Truth(*marks, begin, reader.seal, unresolved, changes, is_whole)
    except JournalError:
        return None


def plain(change: Change) -> object:
    """Return a change as it can be compared, with the content of its blobs."""
    if not isinstance(change, RowChange):
        return change
    rows = (
        None if row is None else tuple(map(_plain_value, row))
        for row in (change.before, change.after)
    )
    return (change.pos, change.op, change.table, *rows)


def _plain_value(value: Value) -> object:
    if isinstance(value, Blob):
        return value.number, value.available, value.read()
    return struct.pack("<d", value) if isinstance(value, float) else value


# ---- Damage: checksums stay as they are --------------------------------------------------------

INTERESTING = (0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x1000000, 0x7FFFFFFF)
HUGE = (0x80000000, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1)


def damage(chance: random.Random, subject: Subject, subjects: Sequence[Subject]) -> bytes:
    """Return the journal with one to three accidents."""
    content = bytearray(subject.content)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        chance.choice(_ACCIDENTS)(chance, content, subject, subjects)
    return bytes(content)


_Accident = Callable[[random.Random, bytearray, Subject, Sequence[Subject]], None]


def _place(chance: random.Random, content: bytearray, subject: Subject) -> int:
    """Return an offset, more often one in a sector or in the header of a block."""
    kind = chance.random()
    if kind < 0.3:
        sector = chance.choice((0, COMMIT_OFFSET, STAMP_OFFSET))
        at = sector + chance.choice((chance.randrange(84), chance.randrange(SECTOR)))
    elif kind < 0.7 and subject.blocks:
        at = chance.choice(subject.blocks)[0] + chance.randrange(BLOCK_HEADER + 12)
    else:
        at = chance.randrange(len(content) + 1)
    return min(at, max(len(content) - 1, 0))


def _flip_bits(
    chance: random.Random, content: bytearray, subject: Subject, _: Sequence[Subject]
) -> None:
    for _ in range(chance.choice((1, 1, 2, 8)) if content else 0):
        content[_place(chance, content, subject)] ^= 1 << chance.randrange(8)


def _set_number(
    chance: random.Random, content: bytearray, subject: Subject, _: Sequence[Subject]
) -> None:
    at = _place(chance, content, subject)
    size = chance.choice((1, 2, 4, 8))
    number = chance.choice((*INTERESTING, *HUGE, len(content), at))
    end = min(at + size, len(content))
    content[at:end] = (number % (1 << 8 * size)).to_bytes(size, "little")[: end - at]


def _overwrite(
    chance: random.Random, content: bytearray, subject: Subject, _: Sequence[Subject]
) -> None:
    """A write that got lost, wholly or in part, or went astray: zeros, or other bytes."""
    unit = chance.choice((1, 512, 4096))
    start = _place(chance, content, subject) // unit * unit
    end = min(start + unit * chance.choice((1, 1, 2, 5)), len(content))
    zeros = chance.random() < 0.6
    content[start:end] = bytes(end - start) if zeros else chance.randbytes(end - start)


def _cut(chance: random.Random, content: bytearray, subject: Subject, _: Sequence[Subject]) -> None:
    del content[_place(chance, content, subject) :]


def _extend(
    chance: random.Random, content: bytearray, _: Subject, subjects: Sequence[Subject]
) -> None:
    other = chance.choice(subjects).content
    tails = (bytes(chance.randrange(9000)), chance.randbytes(chance.randrange(2000)))
    content += chance.choice((*tails, other[len(content) :], other[DATA_OFFSET:], other))


def _move_block(
    chance: random.Random, content: bytearray, subject: Subject, _: Sequence[Subject]
) -> None:
    """Two blocks change places, or one is there twice, or not at all."""
    if not subject.blocks:
        return
    (a, a_end), (b, b_end) = sorted(chance.choices(subject.blocks, k=2))
    first, between, second = content[a:a_end], content[a_end:b], content[b:b_end]
    pieces = chance.choice(((second, between, first), (first, between, first, second), (second,)))
    content[a:b_end] = b"".join(pieces)


def _splice(
    chance: random.Random, content: bytearray, subject: Subject, subjects: Sequence[Subject]
) -> None:
    """A part of another journal lies here, most often at its own place there."""
    other = chance.choice(subject.family if chance.random() < 0.5 else subjects)
    kind = chance.random()
    if kind < 0.3:
        start = chance.choice((0, COMMIT_OFFSET, STAMP_OFFSET))
        end = start + SECTOR
    elif kind < 0.8 and other.blocks:
        start, end = chance.choice(other.blocks)
        if chance.random() < 0.4:
            end = len(other.content)
    else:
        start = chance.randrange(len(other.content) + 1)
        end = start + chance.randrange(2000)
    to = start if chance.random() < 0.8 else _place(chance, content, subject)
    piece = other.content[start:end]
    content[to : to + len(piece)] = piece


def _recycle(
    _: random.Random, content: bytearray, subject: Subject, subjects: Sequence[Subject]
) -> None:
    """The journal was written over the one that comes first of those that are longer."""
    longer = [s.content for s in subjects if len(s.content) > len(content)]
    if longer:
        content += min(longer, key=len)[len(content) :]


_ACCIDENTS: tuple[_Accident, ...] = (
    *(_flip_bits, _set_number, _overwrite, _cut, _extend, _move_block, _splice, _splice),
    _recycle,
)


# ---- Forgery: checksums are made right again ---------------------------------------------------


class _Piece:
    """A block as it is being forged."""

    def __init__(self, content: bytes, at: int, end: int) -> None:
        fields = _BLOCK.unpack_from(content, at)
        self.first_event, self.flags, self.records = fields[3], fields[5], fields[7]
        self.payload = bytearray(content[at + BLOCK_HEADER : end])
        self.length: int | None = None  # what the header says, if not the truth

    def record_starts(self) -> list[int]:
        starts = []
        at = 0
        while at + 8 <= len(self.payload):
            starts.append(at)
            at += 8 + int.from_bytes(self.payload[at + 4 : at + 8], "little")
        return starts


def forge(chance: random.Random, subject: Subject, subjects: Sequence[Subject]) -> bytes:
    """Return a journal with nonsense under right checksums."""
    pieces = [_Piece(subject.content, at, end) for at, end in subject.blocks]
    sectors = bytearray(subject.content[:DATA_OFFSET])
    for _ in range(chance.choice((1, 1, 2, 4))):
        if pieces and chance.random() < 0.9:
            _forge_block(chance, pieces, subjects)
        else:
            at = chance.choice((0, 10, 32, COMMIT_OFFSET, STAMP_OFFSET)) + chance.randrange(72)
            sectors[at] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
    if chance.random() < 0.7:
        _recount(pieces)
    return _assemble(sectors, pieces, chance.random() < 0.8)


def _forge_block(chance: random.Random, pieces: list[_Piece], subjects: Sequence[Subject]) -> None:
    number = chance.randrange(len(pieces))
    piece = pieces[number]
    payload = piece.payload
    kind = chance.randrange(12)
    starts = piece.record_starts()
    start = chance.choice(starts) if starts else 0
    size = int.from_bytes(payload[start + 4 : start + 8], "little")
    if kind <= 1 and payload:
        payload[chance.randrange(len(payload))] ^= 1 << chance.randrange(8)
    elif kind == 2:  # an integer somewhere behind the record's header
        width = chance.choice((1, 2, 4, 8))
        at = min(start + 8 + chance.randrange(max(min(size, 80), 1)), len(payload))
        value = chance.choice((*INTERESTING, *HUGE)) % (1 << 8 * width)
        payload[at : at + width] = value.to_bytes(width, "little")
    elif kind == 3:  # kind, flags, table or length of a record
        at = start + chance.randrange(8)
        payload[at : at + 1] = bytes([chance.choice((0, 1, 2, 3, 4, 8, 9, 10, 255))])
    elif kind == 4:
        del payload[start : start + 8 + size]
    elif kind == 5:
        payload[start:start] = payload[start : start + 8 + size]
    elif kind == 6:  # a record of elsewhere
        other = chance.choice(subjects)
        if other.blocks:
            donor = _Piece(other.content, *chance.choice(other.blocks))
            if theirs := donor.record_starts():
                at = chance.choice(theirs)
                length = int.from_bytes(donor.payload[at + 4 : at + 8], "little")
                payload[start:start] = donor.payload[at : at + 8 + length]
    elif kind == 7:  # a body gets longer or shorter, and its record's length with it
        at = start + 8 + chance.randrange(size + 1)
        if chance.random() < 0.5:
            piece_of_it = chance.randbytes(chance.randrange(40))
            payload[at:at] = piece_of_it
            size += len(piece_of_it)
        else:
            gone = min(chance.randrange(20), start + 8 + size - at)
            del payload[at : at + gone]
            size -= gone
        length = min(max(size, 0), 2**32 - 1)  # it may have been forged before
        payload[start + 4 : start + 8] = length.to_bytes(4, "little")
    elif kind == 8:
        other = chance.randrange(len(pieces))
        pieces[number], pieces[other] = pieces[other], pieces[number]
    elif kind == 9:
        pieces[number : number + 1] = [] if chance.random() < 0.5 else [piece, piece]
    elif kind == 10:
        piece.flags = chance.randrange(8)
    else:
        field = chance.choice(("first_event", "records", "length"))
        setattr(piece, field, chance.choice((*INTERESTING, *HUGE)) % (1 << 32))


def _recount(pieces: list[_Piece]) -> None:
    """Make the counts agree, so that a reader gets to the records, and to the end."""
    events = records = 0
    for number, piece in enumerate(pieces):
        piece.first_event = events + 1
        if piece.flags == _SEALS:
            piece.records = 0
            piece.payload[:24] = struct.pack("<QQQ", events, records, number)
            continue
        kinds = [piece.payload[at] for at in piece.record_starts()]
        piece.records = len(kinds)
        if piece.flags != _CATALOGUE:
            records += len(kinds)
            events += sum(kind in (3, 4, 5, 6, 9) for kind in kinds)


def _assemble(sectors: bytearray, pieces: list[_Piece], fit_stamp: bool) -> bytes:
    """Return the journal of these parts with every checksum right."""
    uuid = bytes(sectors[16:32])
    offsets = []
    at = DATA_OFFSET
    for piece in pieces:
        offsets.append(at)
        at += BLOCK_HEADER + len(piece.payload)
    if fit_stamp and any(sectors[STAMP_OFFSET:]):
        _, events, transaction, catalogue = _STAMP_LENGTHS.unpack_from(sectors, STAMP_OFFSET + 32)
        seals = [number for number, piece in enumerate(pieces) if piece.flags == _SEALS]
        if seals:
            events = max(pieces[seals[-1]].first_event - 1, 0)
        if catalogue and pieces and pieces[-1].flags == _CATALOGUE:
            catalogue = offsets[-1]
        _STAMP_LENGTHS.pack_into(sectors, STAMP_OFFSET + 32, at, events, transaction, catalogue)
    for sector in (0, COMMIT_OFFSET, STAMP_OFFSET):
        if any(sectors[sector : sector + SECTOR]):
            body = bytes(sectors[sector : sector + SECTOR - 4])
            crc = google_crc32c.extend(google_crc32c.value(uuid), body)
            struct.pack_into("<I", sectors, sector + SECTOR - 4, crc)
    (previous,) = struct.unpack_from("<I", sectors, SECTOR - 4)
    parts = [bytes(sectors)]
    for piece, offset in zip(pieces, offsets, strict=True):
        payload = bytes(piece.payload)
        length = len(payload) if piece.length is None else piece.length
        fields = (length, offset, piece.first_event, previous, piece.flags, 0, piece.records, 0)
        head = _BLOCK.pack(b"FBCB", *fields)[:36]
        previous = google_crc32c.extend(google_crc32c.value(uuid), head + payload[:length])
        parts.append(head + struct.pack("<I", previous) + payload)
    return b"".join(parts)


# ---- Reading it --------------------------------------------------------------------------------


def examine(path: Path, known: Known, is_forged: bool, chance: random.Random) -> str:
    """Read the journal at PATH in every way; return how it ended. Raises Lie, and what crashed."""
    if chance.random() < 0.05:
        show_journal(path, chance.random() < 0.5)
    try:
        reader = JournalReader(path)
    except JournalError as error:
        return type(error).__name__
    with reader:
        # By its header it is the journal that was damaged, or the one that lies over it.
        truths = known.get(reader.header.uuid, [])
        if not is_forged:
            compare("header", reader.header, [truth.header for truth in truths])
            marks = [None, *(truth.commit_mark for truth in truths)]
            compare("commit mark", reader.commit_mark, marks)
            compare("stamp", reader.stamp, [None, *(truth.stamp for truth in truths)])
        ended = _read_all(reader, truths, is_forged)
        if chance.random() < 0.2:
            _read_ranges(reader, truths, is_forged, chance)
        with contextlib.suppress(JournalError):
            begin = reader.database, reader.user
            envelope = read_envelope(path)
            if not is_forged:
                compare("begin", begin, [truth.begin for truth in truths])
                compare("envelope", envelope, [(reader.header, reader.stamp, begin[0])])
        with contextlib.suppress(JournalError):
            unresolved = reader.unresolved_tables()
            if not is_forged:
                # Damage to a block's header may hide its definitions from this; it shows in
                # the changes then.
                right = [item for truth in truths for item in truth.unresolved.items()]
                for item in unresolved.items():
                    compare("unresolved table", item, right)
        seal = reader.seal
        if not is_forged:
            # Half of the floor is in the block before: without that there is none.
            seals = [truth.seal for truth in truths if truth.seal is not None]
            compare("seal", seal, [None, *seals, *(one._replace(floor=None) for one in seals)])
    return ended


def compare(what: str, found: object, written: Sequence[object]) -> None:
    if found not in written:
        raise Lie(f"{what}: {found!r}, where {written!r} was written")


def _read_all(reader: JournalReader, truths: Sequence[Truth], is_forged: bool) -> str:
    """Read the changes from first to last, which have to be those of one of TRUTHS."""
    count = 0
    possible = truths
    texts: dict[int, RowText] = {}
    try:
        for change in reader.changes():
            if is_forged:
                use(change, texts)
                continue
            seen, told = _apart(plain(change))
            longer = [t for t in possible if len(t.changes) > count]
            still = [t for t in longer if _apart(t.changes[count])[0] == seen]
            # The seal binds a catalogue to the records, and it comes after them: until then it may
            # be that of another journal of the same uuid, as only the vectors have it.
            known = [_apart(t.changes[count])[1] for t in truths if len(t.changes) > count]
            if not still or told not in known:
                raise Lie(f"change {count}: {seen!r:.2000}")
            possible = still
            count += 1
    except JournalError as error:
        return type(error).__name__
    if not is_forged and not any(t.is_whole and len(t.changes) == count for t in possible):
        raise Lie(f"a journal of {count} changes is whole")
    return "whole"


def _apart(change: object) -> tuple[object, object]:
    """Return a change as the records have it, and what the catalogue adds."""
    if isinstance(change, DdlChange):
        return change._replace(table_changes=()), change.table_changes
    return change, ()


def _read_ranges(
    reader: JournalReader, truths: Sequence[Truth], is_forged: bool, chance: random.Random
) -> None:
    """Read the changes from a block in the middle, and those before it."""
    offsets = []
    with contextlib.suppress(JournalError):
        for offset in reader.block_offsets():
            offsets.append(offset)
    if not offsets:
        return
    middle = chance.choice(offsets)
    texts: dict[int, RowText] = {}
    for start, end in ((0, middle), (middle, None)):
        with contextlib.suppress(JournalError):
            for change in reader.changes(start, end):
                if is_forged:
                    use(change, texts)
                    continue
                seen = plain(change)
                records = [_apart(each)[0] for truth in truths for each in truth.changes]
                if _apart(seen)[0] not in records:
                    raise Lie(f"a change from byte {start} on: {seen!r:.2000}")


def use(change: Change, texts: dict[int, RowText]) -> None:
    """Do with a change what an audit does."""
    if isinstance(change, RowChange):
        text = texts.get(id(change.table))
        if text is None:
            text = texts[id(change.table)] = RowText(change.table)
        for row in (change.before, change.after):
            if row is not None:
                text.row(row)
                text.key(row)


def show_journal(path: Path, as_json: bool) -> None:
    arguments = argparse.Namespace(
        file=path, config=None, json=as_json, sequence=None, limit=None, charset_none="UTF-8"
    )
    with contextlib.redirect_stdout(io.StringIO()):
        show.run(arguments)


# ---- The run -----------------------------------------------------------------------------------


class JournalFuzz(Campaign):
    """Journals of version 1."""

    def __init__(self, folder: Path) -> None:
        self.subjects = make_subjects(folder)
        self._known = {t.header.uuid: s.truths for s in self.subjects for t in s.truths}

    def make_input(self, seed: int, number: int) -> Input:
        content, subject, is_forged = make_input(seed, number, self.subjects)
        return Input(content, subject.name, is_forged)

    def examine(self, path: Path, is_forged: bool, chance: random.Random) -> str:
        return examine(path, self._known, is_forged, chance)


def make_input(seed: int, number: int, subjects: Sequence[Subject]) -> tuple[bytes, Subject, bool]:
    """Return input NUMBER of a run, what it was made from, and whether it is forged."""
    chance = random.Random(seed << 40 | number)
    subject = chance.choice(subjects)
    if len(subject.content) > 50_000 and chance.random() < 0.9:  # they take long
        subject = chance.choice(subjects)
    is_forged = chance.random() < 0.5
    make = forge if is_forged else damage
    return make(chance, subject, subjects), subject, is_forged


if __name__ == "__main__":
    sys.exit(main(JournalFuzz, __doc__ or ""))
