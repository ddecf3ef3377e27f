"""Shared journals: what is committed is read, and nothing else, whatever lies beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from firebird_cdc.errors import JournalCorrupt, JournalEmpty, JournalError, JournalTorn
from firebird_cdc.journal.format import (
    Change,
    Column,
    JournalReader,
    JournalWriter,
    Place,
    RowChange,
    SharedJournal,
    SharedJournalWriter,
    Storage,
    Table,
    TransactionWriter,
    count_above,
    open_any,
)
from firebird_cdc.journal.format.content import Source
from firebird_cdc.journal.format.journal_index import Entry, pack_index
from firebird_cdc.journal.format.layout import ALIGNMENT, FILE_BLOCK, HEAD, checksum
from firebird_cdc.journal.format.records import RecordWriter
from firebird_cdc.journal.format.sectors import Head
from firebird_cdc.journal.format.shared import (
    Found,
    Void,
    parse_file_header,
    walk,
)

DATABASE = "/srv/fb/orders.fdb"
COLUMNS = [
    Column("ID", 496, 0, 0, 4, 0, 0, 0, False, False, 1, Storage.INTEGER),
    Column("TEXT", 448, 0, 0, 80, 4, 20, 0, True, False, 0, Storage.TEXT),
    Column("NOTE", 520, 1, 0, 8, 4, 0, 0, True, False, 0, Storage.BLOB),
]


def _write_rows(writer: RecordWriter, number: int, rows: int = 2) -> None:
    table = writer.table("ORDERS", COLUMNS)
    for row in range(rows):
        blob = writer.blob(f"note {number}.{row}".encode() * 9)
        writer.insert(table, (number * 1000 + row, f"row {row}", blob))
    writer.update(table, (number * 1000, "row 0", None), (number * 1000, "changed", None))


def _content(reader: JournalReader) -> list[object]:
    with reader:
        return [_plain(change) for change in reader.changes()]


def _plain(change: Change) -> object:
    assert isinstance(change, RowChange)
    images = [
        image and (*image[:2], image[2].read() if image[2] is not None else None)  # type: ignore[union-attr]
        for image in (change.before, change.after)
    ]
    return change.pos, change.op, change.table.name, images


class Written:
    """A shared journal with five transactions: 1, 3 and 4 are committed, as numbers 7, 9 and 8; 2
    was rolled back after its prepare, 5 never decided."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.committed: dict[UUID, Place] = {}
        self.transactions: list[TransactionWriter] = []
        with SharedJournalWriter.create(path, database=DATABASE, guid=UUID(int=9)) as journal:
            for number in range(1, 6):
                written = TransactionWriter(journal.header, number, "SYSDBA")
                _write_rows(written, number, rows=number)
                written.seal(floor=100 + number)
                journal.append(written)
                self.transactions.append(written)
                if number == 3:
                    journal.begin_block()
            journal.void(self.transactions[1])
            for index, sequence in ((0, 7), (2, 9), (3, 8)):
                written = self.transactions[index]
                place = journal.commit(written, sequence, ticket=index + 1, commit_us=sequence)
                self.committed[place.uuid] = place
            journal.close()
            self.header = journal.header


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / f"{uuid4()}.log")


def test_committed_transactions_are_read_in_the_order_of_their_numbers(written: Written) -> None:
    with SharedJournal(written.path) as journal:
        assert journal.header == written.header
        assert [place.stamp.sequence for place in journal.places] == [7, 8, 9]
        numbers = []
        for place in journal.places:
            with journal.reader(place) as reader:
                assert (reader.database, reader.user) == (DATABASE, "SYSDBA")
                assert reader.header.uuid == place.uuid
                assert reader.header.database_guid == UUID(int=9)
                assert reader.stamp == place.stamp
                assert reader.seal is not None
                assert reader.seal.floor == 100 + reader.header.transaction
                numbers.append(reader.header.transaction)
        assert numbers == [1, 4, 3]


def test_a_transaction_reads_as_in_a_journal_of_its_own_in_version_1(
    written: Written, tmp_path: Path
) -> None:
    with SharedJournal(written.path) as journal:
        for place in journal.places:
            number = place.stamp.transaction
            alone = tmp_path / f"{uuid4()}.log"
            with JournalWriter(alone, transaction=number, database=DATABASE) as writer:
                _write_rows(writer, number, rows=number)
                writer.seal()
            assert _content(journal.reader(place)) == _content(JournalReader(alone))


def test_many_transactions_are_read_with_one_read(written: Written) -> None:
    content = written.path.read_bytes()
    reads: list[tuple[int, int]] = []

    class Counted:
        def size(self) -> int:
            return len(content)

        def read_at(self, nbytes: int, offset: int) -> bytes:
            reads.append((nbytes, offset))
            return content[offset : offset + nbytes]

        def close(self) -> None:
            pass

    with SharedJournal(written.path, opener=Counted) as journal:
        reads.clear()
        found = [_content(reader) for _, reader in journal.readers(journal.places[:2])]
        assert len(reads) == 1
        assert found == [_content(journal.reader(place)) for place in journal.places[:2]]


def test_a_copied_transaction_reads_the_same_elsewhere(written: Written, tmp_path: Path) -> None:
    with SharedJournal(written.path) as journal:
        place = journal.places[1]
        expected = _content(journal.reader(place))
    begin = place.offset
    image = written.path.read_bytes()[begin : begin + place.stamp.journal_length]
    copy = JournalReader(f"elsewhere/{place.uuid}.log", content=image, place=place)
    assert _content(copy) == expected


def test_a_catalogue_completes_what_its_transaction_left_open(tmp_path: Path) -> None:
    path = tmp_path / f"{uuid4()}.log"
    with SharedJournalWriter.create(path, database=DATABASE, transaction=4) as journal:
        written = TransactionWriter(journal.header, 4, "SYSDBA")
        table = written.table("ORDERS", COLUMNS[:2], key_kind=0, resolved=False)
        written.insert(table, (1, "a"))
        written.seal()
        written.complete([Table(table.number, "ORDERS", 1, tuple(COLUMNS[:2]))])
        journal.append(written)
        journal.commit(written, 1, commit_us=5)
        journal.close()
    with SharedJournal(path) as closed:
        assert closed.header is not None and closed.header.is_own
        (place,) = closed.places
        with closed.reader(place) as reader:
            (change,) = reader.changes()
    assert isinstance(change, RowChange)
    assert change.table.resolved
    assert change.table.key_columns == (0,)


def _walked(content: bytes, journal: UUID) -> list[Found]:
    def read(length: int, offset: int) -> bytes:
        return content[offset : offset + length]

    return list(walk(read, len(content), journal))


def test_a_walk_finds_all_that_was_written_and_which_of_it_is_void(written: Written) -> None:
    found = _walked(written.path.read_bytes(), written.header.uuid)
    heads = [each.what for each in found if isinstance(each.what, Head)]
    assert [head.header.transaction for head in heads] == [1, 2, 3, 4, 5]
    undone = heads[1]
    void = Void(undone.header.uuid, 2, undone.journal, undone.offset)
    assert [each.what for each in found if isinstance(each.what, Void)] == [void, void]
    assert all(each.what is not None for each in found)
    assert heads[3].synced == heads[3].offset > heads[2].offset


def _each_damage(content: bytes, step: int) -> Iterator[tuple[int, bytes]]:
    for at in range(0, len(content), step):
        yield at, content[:at] + bytes([content[at] ^ 0x5A]) + content[at + 1 :]


def test_damage_at_one_place_costs_no_other_transaction(written: Written, tmp_path: Path) -> None:
    whole = written.path.read_bytes()
    with SharedJournal(written.path) as journal:
        expected = {place.uuid: _content(journal.reader(place)) for place in journal.places}
    damaged = tmp_path / written.path.name
    hurt = 0
    for at, content in _each_damage(whole, 41):
        with SharedJournal(damaged, content=content) as journal:
            assert [place.stamp.sequence for place in journal.places] == [7, 8, 9]
            for place in journal.places:
                is_hit = place.offset <= at < place.offset + place.stamp.journal_length
                try:
                    read = _content(journal.reader(place))
                except JournalError:
                    assert is_hit
                    hurt += 1
                else:
                    assert read == expected[place.uuid]
    assert hurt > 50


def test_a_walk_over_damage_finds_the_neighbours(written: Written) -> None:
    whole = written.path.read_bytes()[: -2 * FILE_BLOCK]
    every = {each.offset: each.end for each in _walked(whole, written.header.uuid)}
    for at, content in _each_damage(whole, 41):
        found = _walked(content, written.header.uuid)
        intact = {each.offset for each in found if each.what is not None}
        missing = every.keys() - intact
        assert len(missing) <= 1
        for offset in missing:
            assert offset <= at < offset + max(HEAD.size, ALIGNMENT)
            assert any(each.what is None and each.offset == offset for each in found)


def test_one_damaged_copy_of_the_index_costs_nothing_and_two_are_an_error(
    written: Written,
) -> None:
    whole = written.path.read_bytes()
    first, second = len(whole) - 2 * FILE_BLOCK, len(whole) - FILE_BLOCK

    def without(*places: int) -> bytes:
        content = bytearray(whole)
        for place in places:
            content[place + 60] ^= 1
        return bytes(content)

    for places in ((first,), (second,)):
        with SharedJournal(written.path, content=without(*places)) as journal:
            assert len(journal.places) == 3
    with pytest.raises(JournalError):
        SharedJournal(written.path, content=without(first, second))


def test_an_index_of_many_blocks_is_read_with_a_damaged_one_in_each_copy(tmp_path: Path) -> None:
    path = tmp_path / f"{uuid4()}.log"
    with SharedJournalWriter.create(path, database=DATABASE) as journal:
        for number in range(1, 201):
            written = TransactionWriter(journal.header, number, "SYSDBA")
            written.gap(f"gap {number}")
            written.seal()
            journal.append(written)
            journal.commit(written, number, commit_us=number)
        journal.close()
    content = bytearray(path.read_bytes())
    blocks = 6
    begin = len(content) - 2 * blocks * FILE_BLOCK
    for number in range(blocks):  # of each block one copy
        content[begin + ((number % 2) * blocks + number) * FILE_BLOCK + 99] ^= 1
    with SharedJournal(path, content=bytes(content)) as closed:
        assert [place.stamp.sequence for place in closed.places] == list(range(1, 201))
    with pytest.raises(JournalCorrupt, match="both copies"):
        SharedJournal(path, content=_spoil(bytes(content), begin, blocks, 2))
    content = bytearray(path.read_bytes())
    content[begin + blocks * FILE_BLOCK :] = b"\xff" * (blocks * FILE_BLOCK)  # a whole copy
    with SharedJournal(path, content=bytes(content)) as closed:
        assert len(closed.places) == 200


def _spoil(content: bytes, begin: int, blocks: int, number: int) -> bytes:
    spoilt = bytearray(content)
    for copy in range(2):
        at = begin + (copy * blocks + number) * FILE_BLOCK
        spoilt[at : at + 8] = b"\xff" * 8
    return bytes(spoilt)


@pytest.mark.parametrize(
    ("spoil", "error", "what"),
    [
        (lambda content: content[: -2 * FILE_BLOCK], JournalTorn, "no index"),
        (lambda content: content[:-5000], JournalError, "index"),
        (lambda content: b"", JournalEmpty, "nothing has been written"),
    ],
    ids=["not closed", "cut", "empty"],
)
def test_a_journal_without_its_index_is_not_read(
    written: Written,
    spoil: Callable[[bytes], bytes],
    error: type[JournalError],
    what: str,
) -> None:
    with pytest.raises(error, match=what):
        SharedJournal(written.path, content=spoil(written.path.read_bytes()))


@pytest.mark.parametrize(
    "first",
    [b"\xff" * FILE_BLOCK, bytes(FILE_BLOCK), b"FBCDCJ\r\n\x07"],
    ids=["overwritten", "zeros", "another version"],
)
def test_a_damaged_first_block_harms_no_transaction(written: Written, first: bytes) -> None:
    content = first + written.path.read_bytes()[len(first) :]
    assert parse_file_header(content[:FILE_BLOCK]) is None
    with open_any(written.path, content=content) as journal:
        assert isinstance(journal, SharedJournal)
        assert journal.header is None
        assert len(journal.places) == 3
        for place in journal.places:
            assert len(_content(journal.reader(place))) == place.stamp.event_count


def test_another_transaction_at_its_place_is_not_read_for_it(written: Written) -> None:
    with SharedJournal(written.path) as journal:
        first, other = journal.places[:2]
    content = bytearray(written.path.read_bytes())
    moved = content[other.offset : other.offset + other.stamp.journal_length]
    content[first.offset : first.offset + len(moved)] = moved
    with SharedJournal(written.path, content=bytes(content)) as journal:
        same_number = first._replace(stamp=other.stamp)
        with pytest.raises(JournalCorrupt, match=f"transaction {other.uuid} lies here"):
            journal.reader(same_number)


def test_late_catalogue_lies_in_a_block_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / f"{uuid4()}.log"
    with SharedJournalWriter.create(path, database=DATABASE, transaction=4) as journal:
        written = TransactionWriter(journal.header, 4, "SYSDBA")
        table = written.table("ORDERS", COLUMNS[:2], key_kind=0, resolved=False)
        for number in range(300):
            written.insert(table, (number, "a"))
        written.seal()
        written.complete([Table(table.number, "ORDERS", 1, tuple(COLUMNS[:2]))], is_late=True)
        journal.append(written)
        place = journal.commit(written, 1, commit_us=5)
        journal.close()
    assert place.stamp.catalogue_offset % FILE_BLOCK == 0
    assert place.seal_end < place.stamp.catalogue_offset
    with SharedJournal(path) as closed, closed.reader(place) as reader:
        assert reader.seal is not None
        assert reader.seal.end == place.seal_end
        changes = [*reader.changes()]
        (block, *_) = reader.block_offsets()
        assert len([*reader.changes(block)]) == 300
    assert all(isinstance(each, RowChange) and each.table.key_columns == (0,) for each in changes)


def _read_all(path: Path, content: bytes) -> None:
    with SharedJournal(path, content=content) as journal:
        for _, reader in journal.readers(journal.places):
            if isinstance(reader, JournalError):
                raise reader
            _content(reader)


@pytest.mark.parametrize("field", [16, 24 + 24, 96], ids=["offset", "length", "end of the seal"])
@pytest.mark.parametrize("value", [0, 7, 2**40, 2**63, 2**64 - 1])
def test_an_index_with_a_place_that_cannot_be_is_an_error(
    written: Written, field: int, value: int
) -> None:
    content = bytearray(written.path.read_bytes())
    for copy in (2, 1):
        block = len(content) - copy * FILE_BLOCK
        at = block + 48 + field
        content[at : at + 8] = value.to_bytes(8, "little")
        body = bytes(content[block : block + FILE_BLOCK - 4])
        crc = checksum(written.header.uuid.bytes, body)
        content[block + FILE_BLOCK - 4 : block + FILE_BLOCK] = crc.to_bytes(4, "little")
    with pytest.raises(JournalError):
        _read_all(written.path, bytes(content))


def test_a_walk_reads_each_byte_about_once(tmp_path: Path) -> None:
    path = tmp_path / f"{uuid4()}.log"
    with SharedJournalWriter.create(path, database=DATABASE) as journal:
        for number in range(500):
            written = TransactionWriter(journal.header, number, "SYSDBA")
            written.gap(f"gap {number}")
            written.seal()
            journal.append(written)
            journal.begin_block()
    content = path.read_bytes().ljust(3_000_000, b"\0")
    false = b"".join(b"FBCDCT\r\n".ljust(ALIGNMENT, b"x") for _ in range(4000))
    for made in (content, content + false):
        read = 0

        def reading(length: int, offset: int, made: bytes = made) -> bytes:
            nonlocal read
            read += length
            return made[offset : offset + length]

        found = list(walk(reading, len(made), journal.header.uuid))
        assert len([each for each in found if isinstance(each.what, Head)]) == 500
        assert read < 2 * len(made)


def test_a_long_index_is_found_behind_the_loss_of_a_whole_copy(written: Written) -> None:
    first = written.path.read_bytes()[:FILE_BLOCK]
    (place, *_) = written.committed.values()
    entries = [
        Entry.of(place._replace(offset=FILE_BLOCK, stamp=place.stamp._replace(sequence=number)))
        for number in range(12_000)
    ]
    index = pack_index(entries, written.header.uuid, 2 * FILE_BLOCK)
    half = len(index) // 2
    assert half > 1024 * 1024
    content = first + bytes(FILE_BLOCK) + index[:half] + b"\xff" * half
    with SharedJournal(written.path, content=content) as journal:
        assert [each.stamp.sequence for each in journal.places] == list(range(12_000))
    with pytest.raises(JournalTorn, match="no index"):
        SharedJournal(written.path, content=content[: 2 * FILE_BLOCK] + b"\xff" * len(index))


def test_a_journal_of_version_1_is_told_by_its_first_block_alone(tmp_path: Path) -> None:
    path = tmp_path / f"{uuid4()}.log"
    with JournalWriter(path) as writer:
        _write_rows(writer, 1, rows=3000)
        writer.seal()
    content = path.read_bytes()
    reads: list[int] = []

    class Counted:
        def size(self) -> int:
            return len(content)

        def read_at(self, nbytes: int, offset: int) -> bytes:
            reads.append(nbytes)
            return content[offset : offset + nbytes]

        def close(self) -> None:
            pass

    with pytest.raises(JournalCorrupt, match="no journal that transactions share"):
        SharedJournal(path, opener=Counted)
    assert reads == [FILE_BLOCK]


@pytest.mark.parametrize("count", [0, 1, 37, 38, 39, 76, 77, 500])
def test_transactions_above_a_number_are_counted_with_few_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    path = tmp_path / f"{uuid4()}.log"
    numbers = [(number // 60, 3 * number) for number in range(count)]  # of several epochs
    with SharedJournalWriter.create(path, database=DATABASE) as journal:
        for epoch, sequence in numbers:
            written = TransactionWriter(journal.header, 1, "SYSDBA")
            written.gap("it")
            written.seal()
            journal.append(written)
            journal.commit(written, sequence, commit_us=sequence, epoch=epoch)
        journal.close()
    read: list[int] = []
    real = Source.read

    def counted(self: Source, length: int, offset: int) -> bytes:
        read.append(length)
        return real(self, length, offset)

    monkeypatch.setattr(Source, "read", counted)
    for last in [
        (-1, -1),
        (0, 0),
        *numbers[::19],
        *((e, s + 1) for e, s in numbers[::17]),
        (99, 0),
    ]:
        above = [number for number in numbers if number > last]
        read.clear()
        database, found, first = count_above(path, last)
        assert (database, found) == (DATABASE, len(above))
        assert (first and first.stamp.number) == (above[0] if above else None)
        assert sum(read) <= 8 * FILE_BLOCK
