"""Ranges of a large journal, read one by one, are the whole, and cost what is in them."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from firebird_cdc.errors import JournalCorrupt
from firebird_cdc.journal.format import (
    BLOCK_HEADER,
    Blob,
    Column,
    JournalReader,
    JournalWriter,
    RandomAccess,
    RowChange,
    Storage,
)


def _column(name: str, storage: Storage) -> Column:
    return Column(name, 0, 0, 0, 8, 4, 40, 0, True, False, int(name == "ID"), storage)


def _write(path: Path, rows: int, block_bytes: int = 2000) -> None:
    """Rows of two tables, the second defined late, with blobs over several blocks."""
    rng = random.Random(3)
    with JournalWriter(path, block_bytes=block_bytes) as writer:
        first = writer.table("FIRST", [_column("ID", Storage.INTEGER), _column("B", Storage.BLOB)])
        second = None
        for number in range(rows):
            if number > rows // 2 and number % 3 == 0:
                second = second or writer.table("SECOND", [_column("ID", Storage.INTEGER)])
                writer.insert(second, (number,))
                continue
            content = rng.randbytes(rng.choice((0, 10, 9000)))
            writer.insert(first, (number, writer.blob(content, chunk_bytes=1500)))
        writer.seal()
        writer.commit(1, 1)
        writer.stamp(1)


def _described(reader: JournalReader, start: int = 0, end: int | None = None) -> list[object]:
    rows: list[object] = []
    for change in reader.changes(start, end):
        assert isinstance(change, RowChange)
        assert change.after is not None
        values = [v.read() if isinstance(v, Blob) else v for v in change.after]
        rows.append((change.pos, change.table.name, values))
    return rows


@pytest.mark.parametrize("piece", [700, 5_000, 40_000])
def test_ranges_of_any_size_add_up_to_the_whole(tmp_path: Path, piece: int) -> None:
    path = tmp_path / "j.log"
    _write(path, 60)
    size = path.stat().st_size
    with JournalReader(path) as reader:
        whole = _described(reader)
        pieces = []
        for start in range(0, size, piece):
            block = reader.first_block(start)
            if block is not None and block < start + piece:
                pieces += _described(reader, block, start + piece)
        assert pieces == whole
        assert reader.first_block(size + 1) is None


def test_damage_anywhere_is_met_by_a_range(tmp_path: Path) -> None:
    """Also that of the first block of a range, behind which the next blocks are intact."""
    path = tmp_path / "j.log"
    _write(path, 25)
    content = path.read_bytes()
    with JournalReader(path) as reader:
        offsets = list(reader.block_offsets())
    piece = 4000
    for offset in offsets:
        for at in (offset + 1, offset + 20, offset + BLOCK_HEADER + 3):
            broken = bytearray(content)
            broken[at] ^= 0x40
            path.write_bytes(broken)
            places = set()
            with JournalReader(path) as reader:
                for start in range(0, len(content), piece):
                    try:
                        block = reader.first_block(start)
                        if block is not None and block < start + piece:
                            list(reader.changes(block, start + piece))
                    except JournalCorrupt as error:
                        places.add(error.offset)
            assert places == {offset}


def test_copy_of_a_block_inside_a_row_is_not_taken_for_one(tmp_path: Path) -> None:
    path = tmp_path / "j.log"
    _write(path, 40)
    stolen = path.read_bytes()[1536:6000]
    with JournalWriter(tmp_path / "k.log", block_bytes=3000) as writer:
        table = writer.table("T", [_column("ID", Storage.INTEGER), _column("B", Storage.BLOB)])
        for number in range(20):
            writer.insert(table, (number, writer.blob(stolen)))
        writer.seal()
        writer.commit(1, 1)
        writer.stamp(1)
    with JournalReader(tmp_path / "k.log") as reader:
        offsets = list(reader.block_offsets())
        for start in range(1536, offsets[-1], 997):
            assert reader.first_block(start) == next(o for o in offsets if o >= start)


class _Counted:
    """A file that counts the bytes read of it."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY)
        self.read = 0

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read_at(self, nbytes: int, offset: int) -> bytes:
        piece = os.pread(self._fd, nbytes, offset)
        self.read += len(piece)
        return piece

    def close(self) -> None:
        os.close(self._fd)


def test_last_range_of_a_long_journal_reads_no_more_than_the_first(tmp_path: Path) -> None:
    path = tmp_path / "j.log"
    with JournalWriter(path) as writer:
        table = writer.table("T", [_column("ID", Storage.INTEGER), _column("N", Storage.TEXT)])
        for number in range(60_000):
            writer.insert(table, (number, "x" * 150))
        writer.seal()
        writer.commit(1, 1)
        writer.stamp(1)
    size = path.stat().st_size
    piece = 1_000_000
    costs = []
    for start in (piece, size // piece * piece - piece):
        files: list[_Counted] = []

        def opener(files: list[_Counted] = files) -> RandomAccess:
            files.append(_Counted(path))
            return files[-1]

        with JournalReader(path, opener=opener) as reader:
            block = reader.first_block(start)
            assert block is not None
            list(reader.changes(block, start + piece))
        costs.append(sum(file.read for file in files))
    assert costs[1] <= 1.1 * costs[0]
    assert costs[0] < 1.6 * piece
