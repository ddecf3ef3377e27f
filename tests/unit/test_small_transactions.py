"""Small transactions read many at a time are what a reader of each one says, damaged ones too."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from firebird_cdc.errors import JournalError
from firebird_cdc.journal.format import (
    Beginning,
    Change,
    Column,
    DdlChange,
    Entry,
    JournalReader,
    PlainChange,
    SharedJournal,
    SharedJournalWriter,
    SmallTransactions,
    Storage,
    Table,
    TransactionWriter,
    small_transactions,
)
from firebird_cdc.journal.format.layout import HEAD

DATABASE = "/srv/fb/orders.fdb"
TRANSACTIONS = 400
FORMS = [
    [
        Column("ID", 496, 0, 0, 4, 0, 0, 0, False, False, 1, Storage.INTEGER),
        Column("NAME", 448, 0, 0, 80, 4, 20, 0, True, False, 0, Storage.TEXT),
    ],
    [
        Column("NO", 580, 0, 0, 8, 0, 0, 0, False, False, 1, Storage.BIGINT),
        Column("CODE", 452, 0, 0, 10, 52, 10, 0, True, False, 0, Storage.PADDED_TEXT),
        Column("NOTE", 520, 1, 0, 8, 4, 0, 0, True, False, 0, Storage.BLOB),
    ],
]


def _value(column: Column, rng: random.Random) -> Any:
    if column.nullable and rng.random() < 0.2:
        return None
    if column.storage in (Storage.TEXT, Storage.PADDED_TEXT):
        return "".join(rng.choice("aбc ") for _ in range(rng.randint(0, 10))).rstrip()
    return rng.randint(0, 1000)


def _write(written: TransactionWriter, rng: random.Random) -> None:
    """Write something between the usual (rows of a table or two) and the unusual."""
    tables: dict[int, Table] = {}
    is_usual = rng.random() < 0.7
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        form = rng.randrange(len(FORMS))
        chance = rng.random()
        if chance < 0.1:
            written.sequence("GEN_ORDERS", rng.randint(-5, 1 << 40))
        if not is_usual and chance < 0.2:
            written.ddl("create table A (B integer)")
        elif not is_usual and chance < 0.25:
            written.gap("it could not be captured")
        elif not is_usual and chance < 0.3:
            written.flush()  # and so a second block
        if form not in tables:
            resolved = is_usual or chance < 0.8
            tables[form] = written.table(f"T{form}", FORMS[form], resolved=resolved)
        table = tables[form]
        rows: list[list[Any]] = []
        for _ in range(2):
            row = [_value(column, rng) for column in FORMS[form]]
            if form:
                row[2] = written.blob(b"note" * 9) if not is_usual and chance > 0.9 else None
            rows.append(row)
        if chance < 0.6:
            written.insert(table, rows[0])
        elif chance < 0.9:
            written.update(table, rows[0], rows[1])
        else:
            written.delete(table, rows[0])
    written.seal()
    if not all(table.resolved for table in tables.values()) and rng.random() < 0.5:
        made = [Table(t.number, t.name, 1, t.columns) for t in tables.values() if not t.resolved]
        written.complete(made)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of very different transactions, some of them rolled back."""
    rng = random.Random(11)
    path = tmp_path_factory.mktemp("small") / f"{uuid4()}.log"
    with SharedJournalWriter.create(path, database=DATABASE) as journal:
        for number in range(1, TRANSACTIONS):
            user = rng.choice(("SYSDBA", "ANNA"))
            written = TransactionWriter(journal.header, 1000 + number, user)
            _write(written, rng)
            journal.append(written)
            if rng.random() < 0.1:
                journal.void(written)
            else:
                journal.commit(written, number, ticket=number, commit_us=number)
        journal.close()
    return path


@pytest.fixture(autouse=True, params=["compiled", "plain"])
def _parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read with what is compiled, and without, as Spark's executors do."""
    assert small_transactions.split_transaction is not None
    if request.param == "plain":
        monkeypatch.setattr(small_transactions, "split_transaction", None)


def _by_reader(reader: JournalReader) -> tuple[list[Change], list[tuple[int, Table]]]:
    with reader:
        changes = list(reader.changes())
        assert (reader.database, reader.user) == (DATABASE, reader.user)
        outline = [each for each in reader.outline() if not isinstance(each, DdlChange)]
    return changes, outline


def _read(path: Path) -> dict[Entry, tuple[Beginning | None, list[PlainChange]]]:
    small = SmallTransactions()
    found = {}
    with SharedJournal(path) as journal:
        for run, start, content in journal.runs(journal.entries):
            assert content is not None
            for entry, *what in small.changes(content, start, run):
                found[entry] = (what[0], what[1])
        assert list(found) == journal.entries
    return found


def _beginnings(path: Path) -> dict[Entry, Beginning | None]:
    small = SmallTransactions()
    with SharedJournal(path) as journal:
        found = [
            (entry, beginning)
            for run, start, content in journal.runs(journal.entries)
            for entries, beginning in small.beginnings(content or b"", start, run)
            for entry in entries
        ]
        assert [entry for entry, _ in found] == journal.entries
    return dict(found)


def test_varied_transactions_read_as_their_readers_read_them(path: Path) -> None:
    found = _read(path)
    kinds: set[str] = set()
    with SharedJournal(path) as journal:
        for entry, (beginning, changes) in found.items():
            reader = journal.reader(entry.place)
            expected, outline = _by_reader(reader)
            if beginning is None:
                kinds.add("left")
                continue
            kinds |= {change.op if hasattr(change, "op") else "s" for change in changes}
            kinds.add(f"{len(beginning.defined)} tables")
            assert changes == expected
            assert list(beginning.defined) == outline
            assert (beginning.database, beginning.user) == (reader.database, reader.user)
    assert kinds == {"left", "c", "u", "d", "s", "1 tables", "2 tables"}
    assert sum(beginning is None for beginning, _ in found.values()) < TRANSACTIONS / 3


def test_definitions_are_the_same_without_the_changes(path: Path) -> None:
    expected = {entry: what for entry, (what, _) in _read(path).items()}
    for entry, beginning in _beginnings(path).items():
        wanted = expected[entry]
        assert (beginning is None) == (wanted is None)
        if beginning is not None and wanted is not None:
            assert beginning[:1] + beginning[2:4] == wanted[:1] + wanted[2:4]
            assert beginning.defined == wanted.defined


def test_no_damaged_byte_is_read_as_something_else(tmp_path: Path) -> None:
    path = tmp_path / f"{uuid4()}.log"
    rng = random.Random(5)
    with SharedJournalWriter.create(path, database=DATABASE) as journal:
        for number in range(1, 4):
            written = TransactionWriter(journal.header, number, "SYSDBA")
            table = written.table("T0", FORMS[0])
            written.sequence("GEN", number)
            written.update(table, (number, "old"), (number, "new"))
            written.seal()
            journal.append(written)
            journal.commit(written, number, commit_us=number)
        journal.close()
    content = path.read_bytes()
    with SharedJournal(path) as journal:
        entries, small = journal.entries, SmallTransactions()
        whole = [changes for _, _, changes in small.changes(content, 0, entries)]
        middle = entries[1]
        for at in range(middle.offset, middle.offset + middle.length):
            damaged = bytearray(content)
            damaged[at] ^= 1 << rng.randrange(8)
            (_, first, _), (_, beginning, _), (_, last, changes) = small.changes(
                bytes(damaged), 0, entries
            )
            assert first is not None
            assert (last, changes) == (first, whole[2])
            assert beginning is None
            own = bytes(damaged)[middle.offset : middle.offset + middle.length]
            with pytest.raises(JournalError):
                _by_reader(JournalReader(path, content=own, place=middle.place))


@pytest.mark.parametrize("lost", [1, HEAD.size, 300])
def test_a_transaction_that_ends_early_is_left_to_its_reader(path: Path, lost: int) -> None:
    with SharedJournal(path) as journal:
        usual = [e for e, (what, _) in _read(path).items() if what]
        ((run, start, content), *_) = journal.runs(usual[:1])
    assert content is not None
    small = SmallTransactions()
    assert list(small.changes(content[:-lost], start, run)) == [(usual[0], None, [])]
    assert list(small.beginnings(content[:-lost], start, run)) == [(usual[:1], None)]
    assert list(small.beginnings(content, start, run)) != [(usual[:1], None)]
    assert list(small.beginnings(content[:-lost], start, run)) == [(usual[:1], None)]


def test_another_transaction_at_its_place_is_not_read_for_it(path: Path) -> None:
    usual = [e for e, (what, _) in _read(path).items() if what]
    entry, other = usual[:2]
    with SharedJournal(path) as journal:
        ((_, start, content), *_) = journal.runs([other])
    assert content is not None
    there = entry._replace(
        offset=other.offset, length=other.length, seal_end=other.seal_end,
        transaction=other.transaction, event_count=other.event_count,
    )  # fmt: skip
    ((_, beginning, _),) = SmallTransactions().changes(content, start, [there])
    assert beginning is None
