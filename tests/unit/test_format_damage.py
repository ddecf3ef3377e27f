"""Damage to journals: whatever is in a file, the reader ends in one of its three errors."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest

from firebird_cdc.errors import JournalCorrupt, JournalEmpty, JournalError, JournalTorn
from firebird_cdc.journal.format import (
    BLOCK_HEADER,
    COMMIT_OFFSET,
    DATA_OFFSET,
    SEAL_BLOCK,
    SECTOR,
    STAMP_OFFSET,
    Blob,
    Change,
    Column,
    JournalReader,
    JournalWriter,
    RowChange,
    Storage,
    Table,
)


def _column(name: str, storage: Storage, charset_id: int = 0) -> Column:
    return Column(name, 0, 0, 0, 0, charset_id, 8, 0, True, False, 0, storage)


COLUMNS = [
    _column("ID", Storage.BIGINT),
    _column("NAME", Storage.TEXT, 4),
    _column("CODE", Storage.PADDED_TEXT, 52),
    _column("NOTE", Storage.BLOB),
]


def _write(path: Path, marks: str = "") -> bytes:
    """Write a journal of several blocks with every kind of record and return its bytes."""
    with JournalWriter(path, transaction=7, database="/db", user="U", block_bytes=300) as writer:
        table = writer.table("T", COLUMNS)
        for number in range(5):
            blob = writer.blob(b"content %d " % number * 20, chunk_bytes=100)
            writer.insert(table, (number, f"name {number}", "код", blob))
            writer.update(table, (number, "a", None, None), (number, "b", None, None))
            writer.sequence("GEN", number)
        writer.ddl("DROP TABLE T")
        writer.gap("a reason")
        writer.seal()
        if marks:
            writer.commit(3, 1_000_000)
        if marks == "stamped":
            writer.stamp(9)
    return path.read_bytes()


def _read(path: Path) -> list[object]:
    """Return all that the journal holds, the content of blobs included."""

    def plain(change: Change) -> object:
        if not isinstance(change, RowChange):
            return change
        rows = (
            None if row is None else [v.read() if isinstance(v, Blob) else v for v in row]
            for row in (change.before, change.after)
        )
        return (change.pos, change.op, change.table.name, *rows)

    with JournalReader(path) as reader:
        return [reader.header, reader.commit_mark, reader.stamp, reader.database, reader.user] + [
            plain(change) for change in reader.changes()
        ]


@pytest.mark.parametrize("marks", ["", "stamped"])
def test_no_flipped_byte_is_read_as_something_else(marks: str, tmp_path: Path) -> None:
    content = _write(tmp_path / "whole", marks)
    path = tmp_path / "damaged"
    for at in range(len(content)):
        for bit in (0x01, 0x80):
            path.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
            with pytest.raises((JournalCorrupt, JournalTorn)) as caught:
                _read(path)
            assert caught.value.offset <= at
            # A flipped seal looks like one that was broken on purpose, unless a mark says
            # that there has to be one; everything else shows as damage.
            if marks or at < len(content) - SEAL_BLOCK:
                assert caught.type is JournalCorrupt, f"byte {at}"


def test_a_journal_cut_off_anywhere_is_torn_and_a_stamped_one_corrupt(tmp_path: Path) -> None:
    open_one = _write(tmp_path / "open")
    stamped = _write(tmp_path / "stamped", "stamped")
    path = tmp_path / "cut"
    for length in range(len(open_one)):
        path.write_bytes(open_one[:length])
        expected = JournalEmpty if length == 0 else JournalTorn
        with pytest.raises(expected) as caught:
            _read(path)
        assert caught.value.offset <= max(length, DATA_OFFSET)
    for length in range(DATA_OFFSET, len(stamped)):
        path.write_bytes(stamped[:length])
        with pytest.raises(JournalCorrupt, match="the stamp says"):
            _read(path)


def _write_completed(path: Path) -> tuple[bytes, int]:
    """Write a stamped journal with a catalogue; return its bytes and where that begins."""
    with JournalWriter(path, block_bytes=300) as writer:
        table = writer.table("T", COLUMNS, key_kind=0, resolved=False)
        for number in range(5):
            writer.insert(table, (number, f"name {number}", "код", None))
        writer.seal()
        end = path.stat().st_size
        writer.commit(3, 1_000_000)
        keyed = replace(COLUMNS[0], key_position=1)
        writer.complete([Table(1, "T", 1, (keyed, *COLUMNS[1:]), (3, 2, 1, 0))])
        writer.stamp(9)
    return path.read_bytes(), end


def test_no_flipped_byte_of_a_journal_with_a_catalogue_goes_unnoticed(tmp_path: Path) -> None:
    content, catalogue = _write_completed(tmp_path / "whole")
    assert len(_read(tmp_path / "whole")) == 10
    path = tmp_path / "damaged"
    for at in range(len(content)):
        for bit in (0x01, 0x80):
            path.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
            with pytest.raises(JournalCorrupt) as caught:
                _read(path)
            assert caught.value.offset <= at
            assert at < catalogue or caught.value.offset == catalogue
    for length in range(DATA_OFFSET, len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(JournalCorrupt, match="the stamp says"):
            _read(path)


def test_damaged_catalogue_with_valid_checksums_raises_a_journal_error(tmp_path: Path) -> None:
    content, catalogue = _write_completed(tmp_path / "whole")
    with JournalReader(tmp_path / "whole") as reader:
        uuid = reader.header.uuid.bytes
    draw = random.Random(7)
    path = tmp_path / "damaged"
    errors = 0
    for _ in range(2000):
        damaged = bytearray(content)
        sector = draw.random() < 0.2
        start, end = (STAMP_OFFSET, STAMP_OFFSET + 64) if sector else (catalogue, len(content))
        damaged[draw.randrange(start, end)] = draw.choice((0, 1, 0x7F, 0xFF, draw.randrange(256)))
        path.write_bytes(_with_right_checksums(bytes(damaged), uuid))
        try:
            _read(path)
        except JournalError:
            errors += 1
    assert errors > 500


@pytest.mark.parametrize(
    ("place", "offset", "piece", "message"),
    [
        ("catalogue", 16, b"\x09", "differ"),
        ("catalogue", 24, b"\0\0\0\0", "does not continue the seal"),
        ("catalogue", 28, b"\x01", "unknown flags"),
        ("catalogue", 32, b"\x02", "differ"),
        ("catalogue", 41, b"\x02", "does not belong there"),
        ("order", 0, b"\x02", "not one of them all"),
        ("stamp", 56, b"\x01\0", "gives a length of .* 1 up to the seal"),
        ("stamp", 39, b"\xff", "gives a length of 18374"),
        ("stamp", 56, b"\xff\x7f", "a catalogue at"),
        ("stamp", 56, b"\0\0", "differ in length"),
    ],
)
def test_a_catalogue_that_contradicts_its_journal_is_corrupt(
    place: str, offset: int, piece: bytes, message: str, tmp_path: Path
) -> None:
    content, catalogue = _write_completed(tmp_path / "whole")
    with JournalReader(tmp_path / "whole") as reader:
        uuid = reader.header.uuid.bytes
    places = {"catalogue": catalogue, "order": len(content) - 8, "stamp": STAMP_OFFSET}
    at = places[place] + offset
    damaged = bytearray(content)
    damaged[at : at + len(piece)] = piece
    for start, length in ((STAMP_OFFSET, SECTOR - 4), (catalogue, len(content) - catalogue)):
        block = damaged[start : start + length]
        if start == catalogue:
            crc = google_crc32c.value(uuid + bytes(block[:36] + block[40:]))
            damaged[start + 36 : start + 40] = crc.to_bytes(4, "little")
        else:
            crc = google_crc32c.value(uuid + bytes(block))
            damaged[start + length : start + SECTOR] = crc.to_bytes(4, "little")
    path = tmp_path / "damaged"
    path.write_bytes(damaged)
    with pytest.raises(JournalCorrupt, match=message):
        _read(path)


def test_changes_before_the_damage_are_yielded(tmp_path: Path) -> None:
    content = _write(tmp_path / "whole")
    whole = _read(tmp_path / "whole")[5:]
    with JournalReader(tmp_path / "whole") as reader:
        offsets = list(reader.block_offsets())
    path = tmp_path / "damaged"
    path.write_bytes(content[: offsets[3] + 50])
    seen = 0
    with JournalReader(path) as reader, pytest.raises(JournalTorn) as caught:
        for change in reader.changes():
            seen += 1
            if isinstance(change, RowChange):
                assert change.pos == whole[seen - 1][0]  # type: ignore[index]
    assert caught.value.offset == offsets[3]
    assert 0 < seen < len(whole)


def _with_right_checksums(content: bytes, uuid: bytes) -> bytes:
    """Give every block and sector that can be recognised the checksum of its content."""
    result = bytearray(content)
    for at in (0, COMMIT_OFFSET, STAMP_OFFSET):
        if any(result[at : at + 512]):
            crc = google_crc32c.value(uuid + bytes(result[at : at + 508]))
            result[at + 508 : at + 512] = crc.to_bytes(4, "little")
    at = DATA_OFFSET
    previous = bytes(result[508:512])
    while at + BLOCK_HEADER <= len(result):
        length = int.from_bytes(result[at + 4 : at + 8], "little")
        result[at + 24 : at + 28] = previous
        payload = bytes(result[at + BLOCK_HEADER : at + BLOCK_HEADER + length])
        crc = google_crc32c.value(uuid + bytes(result[at : at + 36]) + payload)
        previous = crc.to_bytes(4, "little")
        result[at + 36 : at + 40] = previous
        at += BLOCK_HEADER + length
    return bytes(result)


@pytest.mark.parametrize("marks", ["", "committed", "stamped"])
def test_damaged_records_with_valid_checksums_raise_a_journal_error(
    marks: str, tmp_path: Path
) -> None:
    content = _write(tmp_path / "whole", marks)
    with JournalReader(tmp_path / "whole") as reader:
        uuid = reader.header.uuid.bytes
    draw = random.Random(marks)
    path = tmp_path / "damaged"
    errors = 0
    for _ in range(4000):
        damaged = bytearray(content)
        for _ in range(draw.choice((1, 1, 2, 5))):
            at = draw.randrange(DATA_OFFSET if draw.random() < 0.9 else 32, len(damaged))
            damaged[at] = draw.choice((0, 1, 0x7F, 0xFF, damaged[at] ^ 1, draw.randrange(256)))
        path.write_bytes(_with_right_checksums(bytes(damaged), uuid))
        try:
            _read(path)
        except JournalError:
            errors += 1
    assert errors > 1000


@pytest.mark.parametrize("count", [3, 7, 9, 2001])
@pytest.mark.parametrize("defect", ["bytes for a NULL", "a bit too many", "a length too long"])
def test_a_row_image_that_contradicts_itself_is_corrupt(
    count: int, defect: str, tmp_path: Path
) -> None:
    path = tmp_path / "journal"
    columns = [_column("TEXT", Storage.TEXT, 4)]
    columns += [_column(f"C{number}", Storage.BOOLEAN) for number in range(1, count)]
    with JournalWriter(path) as writer:
        writer.insert(writer.table("T", columns), ("marker", *[True] * (count - 1)))
        writer.seal()
        uuid = writer.uuid.bytes
    content = bytearray(path.read_bytes())
    text = content.index(b"marker")
    bitmap = text - (count - 1) - 2 - (count + 7) // 8
    if defect == "bytes for a NULL":
        content[bitmap] = 1
    elif defect == "a length too long":
        content[text - (count - 1) - 2] += 1
    else:
        content[text - (count - 1) - 3] = 1 << count % 8
    path.write_bytes(_with_right_checksums(bytes(content), uuid))
    with JournalReader(path) as reader, pytest.raises(JournalCorrupt, match="row image") as caught:
        list(reader.changes())
    assert caught.value.offset == bitmap - 8


def test_a_scale_that_no_engine_has_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with JournalWriter(path) as writer:
        writer.insert(writer.table("T", [replace(COLUMNS[0], scale=-129)]), (1,))
        writer.seal()
    with JournalReader(path) as reader, pytest.raises(JournalCorrupt, match=r"T\.ID.*scale -129"):
        list(reader.changes())


def test_files_that_are_no_journals_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    draw = random.Random(1)
    for content in (b"x", b"SQLite format 3\0" * 100, draw.randbytes(5000), b"FBCDCJ\r\n" * 300):
        path.write_bytes(content)
        with pytest.raises(JournalCorrupt):
            JournalReader(path)
    path.write_bytes(b"FBCDCJ\r\n")
    with pytest.raises(JournalTorn):
        JournalReader(path)
    for length in (0, 1, 512, 100_000):
        path.write_bytes(bytes(length))
        with pytest.raises(JournalEmpty):
            JournalReader(path)
    with pytest.raises(FileNotFoundError):
        JournalReader(tmp_path / "missing")


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("payload_length", lambda b: b[:4] + (16 * 1024 * 1024).to_bytes(4, "little") + b[8:]),
        ("too long", lambda b: b[:4] + b"\xff\xff\xff\xff" + b[8:]),
        ("empty", lambda b: b[:4] + bytes(4) + b[8:]),
    ],
)
def test_a_block_of_absurd_length_is_an_error(
    place: str, change: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    content = _write(tmp_path / "whole", "stamped")
    path = tmp_path / "damaged"
    path.write_bytes(content[:DATA_OFFSET] + change(content[DATA_OFFSET:]))
    with JournalReader(path) as reader, pytest.raises(JournalCorrupt) as caught:
        list(reader.changes())
    assert caught.value.offset == DATA_OFFSET


def test_a_blob_whose_file_was_recycled_meanwhile_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    content = _write(path)
    with JournalReader(path) as reader:
        row = next(c for c in reader.changes() if isinstance(c, RowChange))
    assert row.after is not None
    blob = row.after[3]
    assert isinstance(blob, Blob)
    assert blob.read() == b"content 0 " * 20
    path.write_bytes(content.replace(b"content 0", b"content X"))
    with pytest.raises(JournalCorrupt, match="changed since"):
        blob.read()


def test_a_journal_that_is_being_written_is_torn_never_corrupt(tmp_path: Path) -> None:
    """The reader has seen the old bytes, the writer seals, the reader looks for the reason."""
    path = tmp_path / "journal"
    with JournalWriter(path, block_bytes=300) as writer:
        table = writer.table("T", COLUMNS)
        writer.insert(table, (1, "one", None, None))
        writer.flush()
        os.truncate(path, 16_384)
        with JournalReader(path) as reader:
            changes = reader.changes()
            assert isinstance(next(changes), RowChange)
            writer.insert(table, (2, "two", None, None))
            writer.seal()
            with pytest.raises(JournalTorn):
                next(changes)
    with JournalReader(path) as reader:
        assert len(list(reader.changes())) == 2
