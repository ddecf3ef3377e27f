"""Writes the test vectors: small journals as hex text, each with its content beside it as JSON.

Run ``python tests/vectors/generate.py``; the same files come out every time. The content is
noted down as it is given to the writer, not read back, so the vectors test the reader. A
vector that is broken tells in ``outcome`` which error ends it, at which byte.

A ``.hex`` file has lines of an offset and 32 bytes, both in hex; lines of zeros are left out,
and the last line gives the length of the file.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any
from uuid import UUID

import google_crc32c

from firebird_cdc.journal.format import (
    BLOCK_HEADER,
    COMMIT_OFFSET,
    DATA_OFFSET,
    SEAL_BLOCK,
    STAMP_OFFSET,
    Column,
    Element,
    JournalWriter,
    Storage,
    Table,
    TableChange,
    TableState,
    Undecodable,
    Value,
)

HERE = Path(__file__).parent
JOURNAL = UUID("00112233-4455-6677-8899-aabbccddeeff")
OLDER = UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")
GUID = UUID("d1d2d3d4-e5e6-4708-890a-0b0c0d0e0f10")
OWNER = UUID("a0a1a2a3-b4b5-46c7-88d9-eaebecedeeef")
INODE = 0x1_2345_6789
STARTED_US = 1_790_000_000_000_000
FLOOR = 0x1234_5678
DATABASE = "/data/shop.fdb"
USER = "SYSDBA"


def column(name: str, storage: Storage, **more: Any) -> Column:
    """Return a column with the fields that a test doesn't care for left at 0."""
    fields: dict[str, Any] = {
        "sql_type": 0,
        "sub_type": 0,
        "scale": 0,
        "length": 0,
        "charset_id": 0,
        "char_length": 0,
        "precision": 0,
        "nullable": True,
        "identity": False,
        "key_position": 0,
    }
    return Column(name=name, storage=storage, **(fields | more))


ID = column("ID", Storage.BIGINT, sql_type=580, length=8, nullable=False, key_position=1)
NAME = column("NAME", Storage.TEXT, sql_type=448, length=80, charset_id=4, char_length=20)
PRICE = column("PRICE", Storage.INTEGER, sql_type=496, sub_type=1, scale=-2, length=4, precision=9)
NOTE = column("NOTE", Storage.BLOB, sql_type=520, sub_type=1, length=8, charset_id=52)


class Recorder:
    """Writes a journal and notes down what a reader has to find in it."""

    def __init__(
        self,
        path: Path,
        uuid: UUID = JOURNAL,
        transaction: int = 4711,
        block_bytes: int = 64 * 1024,
        inode: int = 0,
    ) -> None:
        self.path = path
        self.writer = JournalWriter(
            path,
            uuid=uuid,
            transaction=transaction,
            database=DATABASE,
            user=USER,
            database_guid=GUID,
            owner=OWNER,
            database_inode=inode,
            epoch=1,
            started_us=STARTED_US,
            block_bytes=block_bytes,
        )
        self.catalogue_offset: int | None = 0
        self.table_changes: dict[int, list[TableChange]] = {}
        self.blobs: dict[int, dict[str, Any]] = {}
        self.expected: dict[str, Any] = {
            "header": {
                "uuid": str(uuid),
                "transaction": transaction,
                "started_us": STARTED_US,
                "database_guid": str(GUID),
                "owner": str(OWNER),
                "database_inode": inode,
            },
            "commit_mark": None,
            "floor": None,
            "stamp": None,
            "database": DATABASE,
            "user": USER,
            "changes": [],
        }

    def table(self, name: str, columns: Sequence[Column], key_kind: int = 1, **more: Any) -> Table:
        return self.writer.table(name, columns, key_kind, **more)

    def blob(self, content: bytes, available: bool = True, chunk_bytes: int = 64) -> int:
        number = self.writer.blob(content, available, chunk_bytes)
        self.blobs[number] = {"blob": number, "available": available, "hex": content.hex()}
        return number

    def insert(self, table: Table, values: Sequence[Value]) -> None:
        self.writer.insert(table, values)
        self._note_row("c", table, None, values)

    def update(self, table: Table, old: Sequence[Value], new: Sequence[Value]) -> None:
        self.writer.update(table, old, new)
        self._note_row("u", table, old, new)

    def delete(self, table: Table, old: Sequence[Value]) -> None:
        self.writer.delete(table, old)
        self._note_row("d", table, old, None)

    def ddl(
        self, sql: str | bytes, charset_id: int = 4, changes: list[TableChange] | None = None
    ) -> None:
        self.writer.ddl(sql, charset_id)
        shown = sql if isinstance(sql, str) else as_json(Undecodable(sql, charset_id))
        noted = {"pos": self.writer.event_count, "sql": shown}
        if changes is not None:
            self.table_changes[self.writer.event_count] = changes
            noted["table_changes"] = [
                {"kind": one.kind, "name": one.name, "state": one.state and _state(one.state)}
                for one in changes
            ]
        self._note(noted)

    def sequence(self, name: str, value: int) -> None:
        self.writer.sequence(name, value)
        self._note({"sequence": name, "value": value})

    def gap(self, reason: str) -> None:
        self.writer.gap(reason)
        self._note({"pos": self.writer.event_count, "gap": reason})

    def seal(self, floor: int | None = None) -> None:
        self.writer.seal(STARTED_US + 1_000, floor)
        self.expected["floor"] = None if floor is None else floor % 2**32

    def commit(self, ticket: int = 17) -> None:
        self.writer.commit(ticket, STARTED_US + 2_000)
        transaction = self.expected["header"]["transaction"]
        self.expected["commit_mark"] = {
            "ticket": ticket,
            "commit_us": STARTED_US + 2_000,
            "transaction": transaction,
        }

    def complete(self, tables: Sequence[Table]) -> None:
        self.catalogue_offset = self.writer.journal_length
        self.writer.complete(tables, self.table_changes)

    def stamp(self) -> None:
        self.writer.stamp(42, STARTED_US + 3_000)
        self.expected["stamp"] = {
            "epoch": 1,
            "sequence": 42,
            "commit_us": STARTED_US + 2_000,
            "stamped_us": STARTED_US + 3_000,
            "journal_length": self.writer.journal_length,
            "event_count": self.writer.event_count,
            "transaction": self.expected["header"]["transaction"],
            "catalogue_offset": self.catalogue_offset,
        }

    def bytes(self) -> bytes:
        self.writer.close()
        return self.path.read_bytes()

    def _note(self, change: dict[str, Any]) -> None:
        self.expected["changes"].append(change)

    def _note_row(
        self,
        op: str,
        table: Table,
        before: Sequence[Value] | None,
        after: Sequence[Value] | None,
    ) -> None:
        self._note(
            {
                "pos": self.writer.event_count,
                "op": op,
                "table": table.name,
                "number": table.number,
                "before": self._row(table, before),
                "after": self._row(table, after),
            }
        )

    def _row(self, table: Table, row: Sequence[Value] | None) -> list[Any] | None:
        if row is None:
            return None
        blobs = (Storage.BLOB, Storage.ARRAY)
        return [
            self.blobs[value]
            if isinstance(value, int) and definition.storage in blobs
            else as_json(value)
            for definition, value in zip(table.columns, row, strict=True)
        ]


def as_json(value: Value) -> Any:
    """Return a value as it stands in the JSON beside a vector."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, Undecodable):
        return {"undecodable": value.raw.hex(), "charset_id": value.charset_id}
    return value


def _state(state: TableState) -> Any:
    return json.loads(json.dumps(asdict(state), default=as_json))


def plugin_basic(journal: Recorder) -> None:
    """Write one table and every kind of row, as the first writer in C did."""
    goods = journal.table("GOODS", [ID, NAME, PRICE])
    journal.insert(goods, (1, "Кружка", 1250))
    journal.update(goods, (1, "Кружка", 1250), (1, "Кружка", 990))
    journal.insert(goods, (2, None, -1))
    journal.delete(goods, (2, None, -1))
    journal.seal(FLOOR)
    journal.commit(FLOOR + 1)


def plugin_catalogue(journal: Recorder) -> None:
    """The same with a definition that was completed while the transaction ran: without a stamp,
    what is behind the seal is slack."""
    columns = [ID, NAME, PRICE]
    unresolved = [
        replace_fields(one, char_length=0, precision=0, nullable=True, key_position=0)
        for one in columns
    ]
    goods = journal.table("GOODS", unresolved, key_kind=0, resolved=False)
    journal.insert(goods, (1, "Кружка", 1250))
    journal.update(goods, (1, "Кружка", 1250), (1, "Кружка", 990))
    journal.insert(goods, (2, None, -1))
    journal.delete(goods, (2, None, -1))
    journal.seal(FLOOR)
    journal.complete([Table(goods.number, "GOODS", 1, tuple(columns))])
    journal.commit(FLOOR + 1)


def every_storage(journal: Recorder) -> None:
    """Every storage code, at its limits and NULL; 21 columns, so the bitmap has three bytes."""
    columns = [column(storage.name, storage) for storage in Storage]
    by_name = {c.name: index for index, c in enumerate(columns)}
    columns[by_name["TEXT"]] = column("TEXT", Storage.TEXT, charset_id=52, char_length=20)
    columns[by_name["PADDED_TEXT"]] = column(
        "PADDED_TEXT", Storage.PADDED_TEXT, charset_id=4, char_length=8
    )
    columns[by_name["OCTETS"]] = column("OCTETS", Storage.OCTETS, charset_id=1, char_length=4)
    columns.append(column("PLAIN", Storage.TEXT, char_length=20))
    table = journal.table('Every "type"; ж', columns, key_kind=0)
    day = 864_000_000
    journal.insert(
        table,
        (
            -(2**15),
            -(2**31),
            -(2**63),
            -(2**127),
            -0.5,
            1e308,
            True,
            -678_575,
            863_999_999,
            61_000 * day + 1,
            b"\x00\x01\x02\x03\xff\xff",
            b"\x00\x01\x02\x03\x04\x05\x06\x07\x18\x00",
            bytes(range(8)),
            bytes(range(16)),
            "Москва",
            "ж       ",
            b"\x00\xff\x00 ",
            journal.blob("Заметка".encode("cp1251")),
            journal.blob(bytes(range(256))),
            b"?",
            "naïve",
        ),
    )
    journal.insert(
        table,
        (
            2**15 - 1,
            2**31 - 1,
            2**63 - 1,
            2**127 - 1,
            0.0,
            -1e-308,
            False,
            2_973_483,
            0,
            -1,
            bytes(6),
            bytes(10),
            bytes(8),
            bytes(16),
            "",
            " " * 8,
            b"",
            journal.blob(b""),
            journal.blob(b"half of it", available=False),
            b"",
            "",
        ),
    )
    journal.insert(table, (None,) * len(columns))
    journal.seal()


def every_record(journal: Recorder) -> None:
    """Every kind of record, and a table that changes its shape in the transaction."""
    goods = journal.table("GOODS", [ID, NAME, PRICE])
    journal.insert(goods, (1, "a", 1))
    journal.ddl("ALTER TABLE GOODS ADD NOTE BLOB SUB_TYPE TEXT -- заметка", 52)
    journal.sequence("GEN_GOODS", 2**40)
    wider = journal.table("GOODS", [ID, NAME, PRICE, NOTE], key_kind=2)
    journal.gap("the content of an array could not be read: её нет")
    note = journal.blob(b"note", chunk_bytes=3)
    journal.update(wider, (1, "a", 1, None), (1, "a", 1, note))
    journal.delete(wider, (1, "a", 1, None))
    journal.ddl("DROP TABLE GOODS", 0)
    journal.seal(3 * 2**32 + FLOOR)  # of which the seal has the lower 32 bits
    journal.commit(3 * 2**32 + FLOOR + 1)
    journal.stamp()


def several_blocks(journal: Recorder) -> None:
    """Blocks of 256 bytes: definitions in a later block, blobs that lie across blocks."""
    goods = journal.table("GOODS", [ID, NAME, PRICE])
    for number in range(1, 9):
        journal.insert(goods, (number, f"number {number}", number * 100))
    notes = journal.table("NOTES", [ID, NOTE, column("SCAN", Storage.BLOB)])
    for number in range(1, 4):
        text = journal.blob(f"note {number} ".encode() * 40)
        scan = journal.blob(bytes([number]) * 100 * number)
        journal.insert(notes, (number, text, scan))
        journal.delete(goods, (number, f"number {number}", number * 100))
    journal.insert(notes, (4, None, journal.blob(b"")))
    journal.seal(16)
    journal.commit()
    journal.stamp()


def undecodable_text(journal: Recorder) -> None:
    """Texts that are not valid in their character set, or in one without a codec."""
    table = journal.table(
        "TEXTS",
        [
            column("UTF8", Storage.TEXT, charset_id=4, char_length=9),
            column("NEXT", Storage.PADDED_TEXT, charset_id=19, char_length=9),
            column("NONE", Storage.TEXT, char_length=9),
            column("ASCII", Storage.TEXT, charset_id=2, char_length=9),
            column("AFTER", Storage.INT128),
        ],
        key_kind=0,
    )
    journal.insert(
        table,
        (
            Undecodable(b"\xff\xfe", 4),
            Undecodable(b"next", 19),
            Undecodable(b"\xcc\xce\xd1", 0),
            "plain",
            7,
        ),
    )
    journal.insert(table, ("ok", None, Undecodable(b"\x80", 0), None, -7))
    journal.ddl(b"CREATE TABLE \xff", 4)
    journal.seal()


CODE = column("CODE", Storage.PADDED_TEXT, sql_type=452, length=12, charset_id=4, char_length=3)


def catalogue(journal: Recorder) -> None:
    """Definitions completed behind the seal: one table is, one was dropped, one needs nothing."""
    columns = [NAME, CODE, ID, PRICE]
    unresolved = [
        replace_fields(one, char_length=0, precision=0, nullable=True, key_position=0)
        for one in columns
    ]
    goods = journal.table("GOODS", unresolved, key_kind=0, resolved=False)
    other = journal.table("DROPPED", [unresolved[2]], key_kind=0, resolved=False)
    plain = journal.table("PLAIN", [NAME, ID], order=(1, 0))
    complete = Table(goods.number, "GOODS", 1, tuple(columns), (2, 0, 1, 3))
    for number in range(1, 9):
        # The reader pads with what the catalogue says of the column.
        journal.insert(complete, (f"number {number}", "a  ", number, number * 100))
    journal.insert(other, (1,))
    journal.delete(plain, ("x", 1))
    journal.seal()
    journal.complete([complete])
    journal.commit()
    journal.stamp()


TAGS = column("TAGS", Storage.ARRAY, sql_type=540, length=8, char_length=5, precision=0)


def table_changes(journal: Recorder) -> None:
    """Three statements that changed tables, two of them the same one; one that changed none, one
    of which nothing is known; and a definition with the element of an array."""
    element = Element(37, 0, 0, 20, 4, ((1, 3), (-1, 1)))
    tags = replace_fields(TAGS, element=element)
    plain = journal.table("PLAIN", [NAME, TAGS, ID], key_kind=0, resolved=False)
    columns = (NAME, tags, ID)
    made = Table(0, "МАДЕ", 1, (ID, tags, PRICE))
    state = TableState(made, "UTF8", (False, False, True), (None, "'x' -- ж", None))
    journal.ddl("CREATE TABLE МАДЕ", changes=[TableChange("CREATE", "МАДЕ", state)])
    journal.ddl("ALTER TABLE МАДЕ ADD PRICE", changes=[TableChange("ALTER", "МАДЕ", state)])
    journal.ddl("GRANT SELECT ON PLAIN TO PUBLIC", changes=[])
    journal.insert(plain, ("x", None, 1))
    dropped = [TableChange("ALTER", "GONE", None), TableChange("DROP", "OTHER", None)]
    journal.ddl("ALTER DOMAIN D TYPE BIGINT", changes=dropped)
    journal.ddl("ALTER INDEX I ACTIVE")
    journal.seal()
    journal.complete([Table(plain.number, "PLAIN", 2, columns, (2, 0, 1))])
    journal.commit()
    journal.stamp()


def defaults(journal: Recorder) -> None:
    """Definitions with defaults of columns: one that was whole from the beginning, one that was
    completed, with an array, and one in the state after a statement."""
    five, words = bytes.fromhex("05150800050000004c"), bytes.fromhex("05150f04000400d0b6d1834c")
    user = bytes.fromhex("052c4c")  # no literal
    number = column("N", Storage.INTEGER, sql_type=496, length=4, nullable=False)
    text = column("T", Storage.TEXT, sql_type=448, length=8, charset_id=4, char_length=2)
    columns = (
        ID,
        replace_fields(number, default=five),
        replace_fields(text, nullable=False, default=words),
    )
    whole = journal.table("WHOLE", columns, order=(0, 2, 1))
    plain = [
        replace_fields(one, char_length=0, precision=0, nullable=True, key_position=0, default=None)
        for one in (ID, TAGS, text)
    ]
    tagged = journal.table("TAGGED", plain, key_kind=0, resolved=False)
    made = (ID, TAGS, replace_fields(text, nullable=False, default=user))
    state = TableState(Table(0, "WHOLE", 1, columns), "UTF8", (False,) * 3, (None, "5", "'жу'"))
    journal.ddl("ALTER TABLE WHOLE", changes=[TableChange("ALTER", "WHOLE", state)])
    journal.insert(whole, (1, 5, "жу"))
    journal.insert(tagged, (1, None, "ж"))
    journal.seal()
    journal.complete([Table(tagged.number, "TAGGED", 1, made)])
    journal.commit()
    journal.stamp()


def three_blocks(journal: Recorder) -> None:
    """Write the journal that most broken vectors break: three blocks of rows and a seal, not
    committed."""
    goods = journal.table("GOODS", [ID, NAME, PRICE])
    for number in range(1, 11):
        journal.insert(goods, (number, f"number {number}", number * 100))
    journal.seal()


def offsets(content: bytes) -> list[int]:
    """Return where the blocks of an unbroken journal begin, the seal's last."""
    found = [DATA_OFFSET]
    while True:
        at = found[-1]
        (length,) = struct.unpack_from("<I", content, at + 4)
        (flags,) = struct.unpack_from("<H", content, at + 28)
        if flags & 2:
            return found
        found.append(at + BLOCK_HEADER + length)


def flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0x40]) + content[at + 1 :]


def replace(content: bytes, at: int, piece: bytes) -> bytes:
    return content[:at] + piece + content[at + len(piece) :]


def with_right_checksum(content: bytes, at: int) -> bytes:
    """Return CONTENT after the block at AT was given the checksum of what it holds."""
    (length,) = struct.unpack_from("<I", content, at + 4)
    covered = content[at : at + 36] + content[at + 40 : at + 40 + length]
    crc = google_crc32c.value(JOURNAL.bytes + covered)
    return replace(content, at + 36, struct.pack("<I", crc))


def sector(content: bytes, at: int) -> bytes:
    """Return CONTENT after the sector at AT was given the checksum of what it holds."""
    crc = google_crc32c.value(JOURNAL.bytes + content[at : at + 508])
    return replace(content, at + 508, struct.pack("<I", crc))


class Vector:
    """One vector: its file, and what a reader has to find and how it has to end."""

    def __init__(self, name: str, about: str, content: bytes, expected: dict[str, Any]) -> None:
        self.name = name
        self.content = content
        self.expected = {"about": about, "length": len(content), "outcome": "whole"} | expected

    def write(self) -> None:
        lines = [
            f"{at:08x} {line.hex()}"
            for at in range(0, len(self.content), 32)
            if any(line := self.content[at : at + 32])
        ]
        lines.append(f"{len(self.content):08x}")
        (HERE / f"{self.name}.hex").write_text("\n".join(lines) + "\n", encoding="ascii")
        text = json.dumps(self.expected, indent=1, ensure_ascii=False, allow_nan=False)
        (HERE / f"{self.name}.json").write_text(text + "\n", encoding="utf-8")


class Workshop:
    """Makes journals in a folder that is thrown away."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = 0

    def make(self, fill: Callable[[Recorder], None], **more: Any) -> tuple[bytes, dict[str, Any]]:
        self.made += 1
        journal = Recorder(self.folder / f"{self.made}.log", **more)
        fill(journal)
        return journal.bytes(), journal.expected


def broken(
    name: str,
    about: str,
    made: tuple[bytes, dict[str, Any]],
    error: str,
    at: int,
    changes: int | None,
) -> Vector:
    """Return a vector that ends in ERROR at byte AT, after CHANGES changes were read.

    MADE: its bytes, and what it held before it was broken. CHANGES None: it is refused when
    it is opened.
    """
    content, expected = made
    outcome = {"outcome": {"error": error, "offset": at, "changes": changes}}
    if changes is None:
        return Vector(name, about, content, outcome)
    return Vector(
        name, about, content, expected | {"changes": expected["changes"][:changes]} | outcome
    )


def whole_vectors(shop: Workshop) -> Iterator[Vector]:
    """Yield the vectors that are to be read to their end."""
    fills: list[tuple[Callable[[Recorder], None], int]] = [
        (plugin_basic, 64 * 1024),
        (plugin_catalogue, 64 * 1024),
        (every_storage, 64 * 1024),
        (every_record, 64 * 1024),
        (several_blocks, 256),
        (undecodable_text, 64 * 1024),
        (catalogue, 256),
        (table_changes, 256),
        (defaults, 256),
    ]
    for fill, block_bytes in fills:
        inode = INODE if fill in (plugin_basic, plugin_catalogue) else 0
        content, expected = shop.make(fill, block_bytes=block_bytes, inode=inode)
        name = fill.__name__.replace("_", "-")
        about = " ".join(str(fill.__doc__).split())
        yield Vector(name, about, content, expected)

    older, _ = shop.make(several_blocks, uuid=OLDER, transaction=12, block_bytes=256)
    content, expected = shop.make(every_record)
    about = "A recycled file: an older journal's bytes behind the seal are no part of this one."
    yield Vector("recycled-slack", about, content + older[len(content) :], expected)


def three_blocks_committed(journal: Recorder) -> None:
    """The same, committed."""
    three_blocks(journal)
    journal.commit()


def three_blocks_stamped(journal: Recorder) -> None:
    """The same, committed and stamped."""
    three_blocks_committed(journal)
    journal.stamp()


def second_block_differs(journal: Recorder) -> None:
    """The same first block as ``three_blocks``, another second one of the same length."""
    goods = journal.table("GOODS", [ID, NAME, PRICE])
    for number in range(1, 11):
        price = number * 100 if number <= 2 else -1
        journal.insert(goods, (number, f"number {number}", price))
    journal.seal()


def broken_vectors(shop: Workshop) -> Iterator[Vector]:
    """Yield the vectors that are broken, each named by its defect."""
    content, expected = shop.make(three_blocks, block_bytes=200)
    first, second, third, seal = offsets(content)
    in_first, in_second, every = (
        struct.unpack_from("<Q", content, at + 16)[0] - 1 for at in (second, third, seal)
    )
    committed, committed_expected = shop.make(three_blocks_committed, block_bytes=200)
    stamped, stamped_expected = shop.make(three_blocks_stamped, block_bytes=200)
    older, _ = shop.make(three_blocks, uuid=OLDER, transaction=12, block_bytes=200)
    completed, completed_expected = shop.make(catalogue, block_bytes=256)
    behind_seal = offsets(completed)[-1] + SEAL_BLOCK
    other, other_expected = shop.make(second_block_differs, block_bytes=200)
    torn, corrupt = "JournalTorn", "JournalCorrupt"

    # The transaction is still open, or the power went: the journal ends somewhere.
    for name, about, piece, at, changes in (
        ("header-only", "Begun; no block yet.", content[:first], first, 0),
        (
            "torn-tail",
            "The last block of rows was cut off while it was written.",
            content[: third + 60],
            third,
            in_second,
        ),
        (
            "torn-tail-zeros",
            "The tail of a file that was zero-filled beforehand never came to the disk.",
            content[: third + 60].ljust(len(content), b"\0"),
            third,
            in_second,
        ),
        ("no-seal", "All blocks, no seal.", content[:seal], seal, every),
        (
            "broken-seal",
            "Prepared, but then something other than commit came: the seal was overwritten.",
            replace(content, seal, bytes(SEAL_BLOCK)),
            seal,
            every,
        ),
        (
            "recycled-block",
            "A recycled file, cut off: the third block and the seal are an older journal's.",
            content[:third] + older[third:],
            third,
            in_second,
        ),
    ):
        yield broken(name, about, (piece, expected), torn, at, changes)
    yield broken(
        "remainder-after-rollback",
        "A savepoint was rolled back and the second block written again: the intact third block "
        "is a remainder of before, since it continues the former second one.",
        (other[:third] + content[third:seal], other_expected),
        torn,
        third,
        in_second,
    )

    # Nothing in it can be used.
    for name, about, piece, error, at in (
        ("empty", "Made beforehand, not used yet.", bytes(4096), "JournalEmpty", 0),
        ("wrong-magic", "No journal.", flip(content, 0), corrupt, 0),
        (
            "unsupported-version",
            "Format 3, with a right checksum.",
            sector(replace(content, 8, struct.pack("<H", 3)), 0),
            corrupt,
            8,
        ),
        ("damaged-header", "A flipped bit.", flip(content, 100), corrupt, 0),
        (
            "damaged-commit-mark",
            "A flipped bit.",
            flip(committed, COMMIT_OFFSET + 10),
            corrupt,
            COMMIT_OFFSET,
        ),
        (
            "damaged-stamp",
            "A flipped bit.",
            flip(stamped, STAMP_OFFSET + 10),
            corrupt,
            STAMP_OFFSET,
        ),
    ):
        yield broken(name, about, (piece, {}), error, at, None)

    # It was whole once.
    unknown_table = replace(content, third + BLOCK_HEADER + 2, struct.pack("<H", 9))
    miscounted = replace(content, seal + BLOCK_HEADER, struct.pack("<Q", 99))
    for name, about, made, at, changes in (
        (
            "flipped-byte-in-payload",
            "A flipped bit in the second block; the intact seal shows that it was whole.",
            (flip(content, second + 60), expected),
            second,
            in_first,
        ),
        (
            "flipped-byte-in-block-header",
            "A flipped bit in the length of the second block.",
            (flip(content, second + 5), expected),
            second,
            in_first,
        ),
        (
            "flipped-byte-before-open-end",
            "A flipped bit in the second block of an open transaction; the third continues it.",
            (flip(content[:seal], second + 60), expected),
            second,
            in_first,
        ),
        (
            "committed-without-seal",
            "A commit mark, but the seal is gone.",
            (committed[:seal], committed_expected),
            seal,
            every,
        ),
        (
            "stamped-and-cut",
            "Shorter than its stamp says.",
            (stamped[:third], stamped_expected),
            third,
            in_second,
        ),
        (
            "damaged-catalogue",
            "A flipped bit in the catalogue: no definition is to be trusted, so nothing is read.",
            (flip(completed, behind_seal + 60), completed_expected),
            behind_seal,
            0,
        ),
        (
            "undefined-table",
            "A right checksum over a row of a table that was never defined.",
            (with_right_checksum(unknown_table, third), expected),
            third + BLOCK_HEADER,
            in_second,
        ),
        (
            "seal-miscounts",
            "A right checksum over a seal that counts 99 events.",
            (with_right_checksum(miscounted, seal), expected),
            seal,
            every,
        ),
    ):
        yield broken(name, about, made, corrupt, at, changes)


def all_vectors() -> list[Vector]:
    """Return every vector, made anew."""
    with tempfile.TemporaryDirectory() as folder:
        shop = Workshop(Path(folder))
        return [*whole_vectors(shop), *broken_vectors(shop)]


if __name__ == "__main__":
    for vector in all_vectors():
        vector.write()
