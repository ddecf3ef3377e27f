"""Makes folders of journals for the Spark tests, and folds them in plain Python to compare."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from firebird_cdc.journal.format import (
    Column,
    JournalWriter,
    SharedJournalWriter,
    Storage,
    Table,
    TransactionWriter,
)
from firebird_cdc.journal.format.records import RecordWriter

DATABASE = "/data/shop.fdb"
VECTORS = Path(__file__).parents[1] / "vectors"
FIRST_COMMIT_US = 1_700_000_000_000_000


def column(
    name: str, storage: Storage, *, key: int = 0, scale: int = 0, sub_type: int = 0
) -> Column:
    """A column of UTF8 texts up to 40 characters, or of another storage."""
    texts = (Storage.TEXT, Storage.PADDED_TEXT)
    return Column(
        name=name,
        sql_type=0,
        sub_type=sub_type,
        scale=scale,
        length=160 if storage in texts else 8,
        charset_id=4 if storage in texts or sub_type == 1 else 0,
        char_length=40 if storage in texts else 0,
        precision=0,
        nullable=not key,
        identity=False,
        key_position=key,
        storage=storage,
    )


Action = tuple[str, str, tuple | None, tuple | None]  # op, table, before, after


@dataclass
class History:
    """Writes one journal per transaction into ``folder``, numbered from 1."""

    folder: Path
    database: str = DATABASE
    epoch: int = 0
    seed: int = 1
    block_bytes: int = 64 * 1024
    sequence: int = 0
    paths: list[Path] = field(default_factory=list)
    shapes: dict[str, tuple[Sequence[Column], int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._random = random.Random(f"{self.seed} {self.database} {self.epoch}")

    def define(self, table: str, columns: Sequence[Column], key_kind: int = 1) -> None:
        """Set the shape with which the next transactions write TABLE."""
        self.shapes[table] = (tuple(columns), key_kind)

    def commit(self, *actions: Action, skip_number: bool = False) -> Path:
        """Write a transaction under the next number, or the one after it.

        Actions: (op, table, before, after), ("ddl", sql, None, None), ("gap", why, None, None),
        ("sequence", generator, None, None).
        """
        self.sequence += 2 if skip_number else 1
        return self.write(self.sequence, *actions)

    def write(
        self,
        sequence: int,
        *actions: Action,
        name: str | None = None,
        commit_us: int | None = None,
    ) -> Path:
        """Write a transaction as journal SEQUENCE."""
        uuid = UUID(int=self._random.getrandbits(128), version=4)
        path = self.folder / (name or f"{uuid}.log")
        with JournalWriter(
            path,
            uuid=uuid,
            transaction=1000 + sequence,
            database=self.database,
            user="SYSDBA",
            epoch=self.epoch,
            block_bytes=self.block_bytes,
        ) as writer:
            self._record(writer, actions)
            writer.seal()
            writer.commit(sequence, commit_us or FIRST_COMMIT_US + sequence)
            writer.stamp(sequence)
        self.paths.append(path)
        return path

    def _record(self, writer: RecordWriter, actions: Sequence[Action]) -> None:
        tables: dict[str, Table] = {}
        for op, what, before, after in actions:
            if op == "ddl":
                writer.ddl(what)
            elif op == "gap":
                writer.gap(what)
            elif op == "sequence":
                writer.sequence(what, 1)
            else:
                if what not in tables:
                    tables[what] = writer.table(what, *self.shapes[what])
                _write_row(writer, tables[what], op, before, after)


class SharedHistory(History):
    """Writes the same transactions as two server processes do that share journals, PER_JOURNAL in
    each, with others between them that were rolled back; all are closed by ``close``."""

    per_journal = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        self._open: list[tuple[SharedJournalWriter, list[TransactionWriter]]] = []
        self._turns = random.Random(self.seed)

    def write(
        self,
        sequence: int,
        *actions: Action,
        name: str | None = None,
        commit_us: int | None = None,
    ) -> Path:
        """Write a transaction as number SEQUENCE."""
        assert name is None
        uuid = UUID(int=self._random.getrandbits(128), version=4)
        while len(self._open) < 2:
            path = self.folder / f"{UUID(int=self._turns.getrandbits(128), version=4)}.log"
            self._open.append((SharedJournalWriter.create(path, database=self.database), []))
        journal, inside = self._open[self._turns.randrange(2)]
        if self._turns.random() < 0.3:
            undone = TransactionWriter(journal.header, 1, "SYSDBA")
            undone.gap("was rolled back")
            undone.seal()
            journal.append(undone)
            journal.void(undone)
        written = TransactionWriter(
            journal.header, 1000 + sequence, "SYSDBA", uuid=uuid, block_bytes=self.block_bytes
        )
        self._record(written, actions)
        written.seal()
        journal.append(written)
        at = commit_us or FIRST_COMMIT_US + sequence
        journal.commit(written, sequence, ticket=sequence, commit_us=at, epoch=self.epoch)
        inside.append(written)
        if len(inside) == self.per_journal:
            self._close(journal)
        return journal.path

    def _close(self, journal: SharedJournalWriter) -> None:
        self._open = [each for each in self._open if each[0] is not journal]
        journal.close()
        self.paths.append(journal.path)

    def close(self) -> None:
        """Close the journals that are open."""
        for journal, inside in list(self._open):
            if inside:
                self._close(journal)
            else:
                journal.leave()
                journal.path.unlink()


def _write_row(
    writer: RecordWriter, table: Table, op: str, before: tuple | None, after: tuple | None
) -> None:
    if op == "c":
        writer.insert(table, after)
    elif op == "u":
        writer.update(table, before, after)
    else:
        writer.delete(table, before)


def flip(path: Path, offset: int) -> None:
    """Have another bit in one byte of a file."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


def read_state(output: Path) -> dict[str, Counter[str]]:
    """Return the rows that a state rebuild wrote as JSON, by table."""
    summary = json.loads((output / "summary.json").read_text(encoding="utf-8"))
    tables: dict[str, Counter[str]] = {}
    for table in summary["tables"]:
        rows: Counter[str] = Counter()
        if table["folder"] is not None:
            for part in (output / table["folder"]).glob("part-*"):
                rows.update(part.read_text(encoding="utf-8").splitlines())
        tables[table["table"]] = rows
    return tables


def vector_content(name: str) -> bytes:
    """Return the bytes of a vector of the journal format: lines of offset and bytes, a length."""
    *lines, length = (VECTORS / f"{name}.hex").read_text(encoding="ascii").splitlines()
    content = bytearray(int(length, 16))
    for line in lines:
        offset, piece = line.split()
        content[int(offset, 16) : int(offset, 16) + len(piece) // 2] = bytes.fromhex(piece)
    return bytes(content)
