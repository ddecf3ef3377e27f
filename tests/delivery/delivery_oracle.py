"""Journals from a seed, what has to become of them in Kafka, and the comparison with what did.

Every row carries the number of its journal and of its event in a text column, so a message tells
what it is of by its content, whatever the shipper thinks of it.
"""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from columns import column
from ship_steps import TAG
from shipping import Folder

from firebird_cdc.journal.format import (
    SharedJournal,
    SharedJournalWriter,
    Storage,
    TransactionWriter,
)
from firebird_cdc.journal.format.records import RecordWriter

KEYED = (
    column("ID", Storage.BIGINT, 1),
    column("MARK", Storage.TEXT),
    column("FILLER", Storage.TEXT),
)
KEYLESS = (column("MARK", Storage.TEXT, nullable=True),)
COMMIT_US = 1_772_442_848_250_000
_KEYS = 12
_MOST_FAULTS_TOLD = 4


class Event(NamedTuple):
    """A message that has to come: what it is of, and its place."""

    mark: str  # JOURNAL.EVENT, or the transaction's id
    op: str  # of the envelope; "-" a tombstone, BEGIN or END
    key: int | None
    journal: int


@dataclass
class Journal:
    """One transaction that was captured."""

    number: int  # over all databases
    database: str
    epoch: int
    sequence: int
    uuid: UUID
    changes: list[tuple[str, str, int, int, str]] = field(default_factory=list)
    is_bad: bool = False  # a row in its middle is damaged
    messages: int = 0
    crc: int = 0
    home: UUID | None = None  # the journal that it shares

    @property
    def transaction(self) -> int:
        """Its number in the engine, unlike that of any other."""
        return 50_000 + self.number

    @property
    def transaction_id(self) -> str:
        """The same in transaction metadata."""
        return f"{self.database}:{self.transaction}"

    def _fill(self, writer: RecordWriter) -> None:
        tables: dict[str, Any] = {}
        for op, table, old, new, mark in self.changes:
            if table not in tables:
                tables[table] = writer.table(table, KEYED if table != "LOOSE" else KEYLESS)
            shape = tables[table]

            def row(key: int, table: str = table, mark: str = mark) -> tuple[Any, ...]:
                return (mark,) if table == "LOOSE" else (key, mark, "x" * (key * 7))

            if op == "insert":
                writer.insert(shape, row(new))
            elif op == "delete":
                writer.delete(shape, row(old))
            else:
                writer.update(shape, row(old), row(new))

    def share(self, file: SharedJournalWriter) -> None:
        """Write it into a journal that others share; that has to be closed before it is damaged."""
        self.home = file.header.uuid
        written = TransactionWriter(file.header, self.transaction, "SYSDBA", uuid=self.uuid)
        self._fill(written)
        written.seal()
        file.append(written)
        file.commit(written, self.sequence, commit_us=COMMIT_US, epoch=self.epoch)

    def write(self, staging: Folder) -> Path:
        """Write it; returns its path."""
        path = staging.write_changes(
            self.sequence,
            self._fill,
            database=self.database,
            epoch=self.epoch,
            transaction=self.transaction,
            identity=self.uuid,
        )
        if self.is_bad:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 0xFF
            path.write_bytes(content)
        self.crc = zlib.crc32(path.read_bytes())
        return path


def finish_shared(path: Path, journals: Sequence[Journal]) -> None:
    """Damage the bad ones of JOURNALS in the shared journal at PATH, and note what all are."""
    content = bytearray(path.read_bytes())
    with SharedJournal(path) as shared:
        places = {place.uuid: place for place in shared.places}
    for journal in journals:
        place = places[journal.uuid]
        end = place.offset + place.stamp.journal_length
        if journal.is_bad:
            content[(place.offset + end) // 2] ^= 0xFF
        journal.crc = zlib.crc32(content[place.offset : end])
    path.write_bytes(content)


@dataclass
class History:
    """All journals of a round in the order of their commits, and what to expect of them."""

    prefix: str
    tombstones: bool
    metadata: bool
    journals: list[Journal] = field(default_factory=list)

    def topic(self, database: str, table: str) -> str:
        """The name of a table's topic."""
        return f"{self.prefix}.{database.replace('/', '_')}.{table}"

    @property
    def transaction_topic(self) -> str:
        """The name of the topic with BEGIN and END."""
        return f"{self.prefix}.transaction"

    def topics(self) -> list[str]:
        """Every topic that gets a message."""
        return sorted({topic for topic, _ in self.expected()})

    def expected(self) -> dict[tuple[str, str], list[Event]]:
        """The events of every topic and database, in order; without those of bad journals."""
        found: defaultdict[tuple[str, str], list[Event]] = defaultdict(list)
        for journal in self.journals:
            # A new epoch is announced first, in the topic of schema changes.
            journal.messages = int(journal.epoch > 0 and journal.sequence == 1)
            if journal.is_bad:
                continue
            for topic, event in self.of(journal):
                found[topic, journal.database].append(event)
                journal.messages += 1
        return dict(found)

    def of(self, journal: Journal) -> Iterable[tuple[str, Event]]:
        """Yield the messages of JOURNAL with their topics."""
        shown = [change for change in journal.changes if change[1] != "HIDDEN"]
        number = journal.number
        if self.metadata and shown:
            yield self.transaction_topic, Event(journal.transaction_id, "BEGIN", None, number)
        for op, table, old, new, mark in shown:
            topic = self.topic(journal.database, table)
            keyed = table != "LOOSE"
            moved = op == "update" and keyed and old != new
            if op == "delete" or moved:
                yield topic, Event(mark, "d", old if keyed else None, number)
                if self.tombstones and keyed:
                    yield topic, Event(mark, "-", old, number)
            if op != "delete":
                made = "c" if op == "insert" or moved else "u"
                yield topic, Event(mark, made, new if keyed else None, number)
        if self.metadata and shown:
            yield self.transaction_topic, Event(journal.transaction_id, "END", None, number)


def make_history(
    chance: random.Random,
    prefix: str,
    *,
    databases: Sequence[str],
    journals: int,
    bad: int = 0,
    loose: bool = True,
    largest: int = 800,
) -> History:
    """Return a history of JOURNALS transactions in DATABASES; BAD of them are damaged."""
    history = History(prefix, tombstones=chance.random() < 0.8, metadata=chance.random() < 0.4)
    epochs = dict.fromkeys(databases, 0)
    sequences = dict.fromkeys(databases, 0)
    tables = ["ITEM", "ITEM", "PART", "HIDDEN", *(["LOOSE"] if loose else [])]
    for number in range(1, journals + 1):
        database = chance.choice(databases)
        if sequences[database] > 3 and chance.random() < 0.02:
            epochs[database] += 1
            sequences[database] = 0
        sequences[database] += 1
        uuid = UUID(int=chance.getrandbits(128), version=4)
        journal = Journal(number, database, epochs[database], sequences[database], uuid)
        kind = chance.random()
        if kind < 0.6:
            size = chance.randint(1, 5)
        elif kind < 0.9:
            size = chance.randint(6, 60)
        else:
            size = chance.randint(60, largest)
        for event in range(1, size + 1):
            op = chance.choice(("insert", "update", "update", "move", "delete"))
            old, new = chance.randrange(_KEYS), chance.randrange(_KEYS)
            if op == "update":
                new = old
            elif op == "move":
                op = "update"
            journal.changes.append((op, chance.choice(tables), old, new, f"{number}.{event}"))
        history.journals.append(journal)
    for journal in chance.sample(history.journals, bad):
        journal.is_bad = True
    return history


# What came

Tags = dict[int, set[str]]
"""The Kafka transactions in which events of a journal came, by its number."""


class Message(NamedTuple):
    """One consumed message, as far as the comparison needs it."""

    mark: str
    op: str
    key: int | None
    partition: int
    tag: str
    fault: str = ""


def understood(
    topic: str, partition: int, raw: Any, previous: Message | None, history: History
) -> tuple[str, Message]:
    """Return the database and the message; a tombstone is of the delete before it."""
    tag = _tag(raw)
    key_bytes, value_bytes = raw.key(), raw.value()
    key = None if key_bytes is None else json.loads(key_bytes)
    key = key.get("payload", key) if key is not None else None
    if topic == history.transaction_topic:
        value = json.loads(value_bytes)
        value = value.get("payload", value)
        fault = "" if key == {"id": value["id"]} else f"key {key} of {value}"
        return value["id"].rpartition(":")[0], Message(
            value["id"], value["status"], None, partition, tag, fault
        )
    number = None if key is None else key["ID"]
    if value_bytes is None:
        if previous is None or previous.op != "d" or previous.key != number:
            return "", Message("?", "-", number, partition, tag, "a tombstone after no delete")
        return "", Message(previous.mark, "-", number, partition, tag)
    value = json.loads(value_bytes)
    value = value.get("payload", value)
    row = value["before"] if value["op"] == "d" else value["after"]
    fault = ""
    event = int(row["MARK"].partition(".")[2])
    if value["source"]["pos"] != event:
        fault = f"event {event} says it is {value['source']['pos']}"
    if "ID" in row and (row["ID"] != number or len(row["FILLER"]) != 7 * number):
        fault = f"row {row} has key {number}"
    if history.metadata and value["transaction"] is None:
        fault = f"{row['MARK']} has no transaction block"
    return "", Message(row["MARK"], value["op"], number, partition, tag, fault)


@dataclass
class Finding:
    """Result of a comparison."""

    events: int = 0
    repeats: int = 0
    split: int = 0
    tags: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    faults: list[str] = field(default_factory=list)

    def tell(self, what: str, where: str, each: Sequence[Any]) -> None:
        """Add a fault with its first examples."""
        if each:
            shown = ", ".join(str(one) for one in each[:_MOST_FAULTS_TOLD])
            more = f" and {len(each) - _MOST_FAULTS_TOLD} more" * (len(each) > _MOST_FAULTS_TOLD)
            self.faults.append(f"{what} in {where}: {shown}{more}")


def compare(
    history: History,
    found: dict[tuple[str, str], list[Message]],
    *,
    exactly: bool,
    whole_up_to: int,
) -> Finding:
    """Compare what came (by topic and database, each partition in its order) with what had to.

    EXACTLY: once, and each transaction of at most WHOLE_UP_TO messages in one of Kafka's.
    Otherwise what came may be sent again from the beginning of a journal on, without holes.
    """
    finding = Finding()
    expected = history.expected()
    bad = {
        (event.mark, event.op)
        for journal in history.journals
        if journal.is_bad
        for _, event in history.of(journal)
    }
    tags = finding.tags
    for queue in sorted(expected.keys() | found.keys()):
        _compare_queue(finding, queue, expected.get(queue, []), found.get(queue, []), bad, exactly)
    if exactly:
        for journal in history.journals:
            if len(tags[journal.number]) > 1:
                finding.split += 1
                if journal.messages <= whole_up_to:
                    finding.tell(
                        f"journal {journal.number} of {journal.messages} messages is split",
                        "Kafka transactions",
                        sorted(tags[journal.number]),
                    )
    return finding


class Offset(NamedTuple):
    """A record of how far a database is in Kafka, by features of its own alone."""

    database: str
    epoch: int
    sequence: int
    complete: bool
    journals: frozenset[str]  # uuids of the complete ones in its Kafka transaction
    shared: dict[str, tuple[int, int]]  # how far those are in Kafka that are shared
    tag: str


def understood_position(raw: Any) -> Offset:
    """Return what a record of the offset topic says."""
    value = json.loads(raw.value())
    assert json.loads(raw.key()) == value["database"]
    uuids = "".join(run["uuids"] for run in value["journals"])
    named = (str(UUID(uuids[at : at + 32])) for at in range(0, len(uuids), 32))
    return Offset(
        value["database"],
        value["epoch"],
        value["sequence"],
        value["complete"],
        frozenset(named),
        {home: (epoch, sequence) for home, (epoch, sequence) in value.get("shared", {}).items()},
        _tag(raw),
    )


def compare_positions(
    history: History, positions: list[Offset], tags: Tags, *, whole_up_to: int
) -> list[str]:
    """Return what is wrong with the positions: each journal is named once, by the record in the
    Kafka transaction with its last event, and the last record of each database is of its end.

    What is left of a journal of WHOLE_UP_TO messages or more, which is split, may have none.
    """
    finding = Finding()
    naming: defaultdict[str, list[str]] = defaultdict(list)
    for position in positions:
        for uuid in position.journals:
            naming[uuid].append(position.tag)
    wrong = []
    for journal in history.journals:
        named = naming.pop(str(journal.uuid), [])
        if journal.home is not None:  # by the first record that has its number
            number, home = (journal.epoch, journal.sequence), str(journal.home)
            named += [
                position.tag
                for position in positions
                if position.database == journal.database
                and position.shared.get(home, (-1, 0)) >= number
            ][:1]
        known = tags.get(journal.number, set())
        if journal.is_bad:
            continue
        last_tag = max(known, key=_order, default="")
        is_late = journal.messages >= whole_up_to and all(
            _order(tag) > _order(last_tag) for tag in named
        )
        if len(named) != 1 or (known and named[0] != last_tag and not is_late):
            wrong.append(f"journal {journal.number} of {sorted(known)} is named in {named}")
    finding.tell("wrong", "positions", wrong)
    finding.tell("what nobody wrote", "positions", sorted(naming))
    last = {position.database: position for position in positions}
    for database in sorted({journal.database for journal in history.journals}):
        own = [journal for journal in history.journals if journal.database == database]
        good = [journal for journal in own if not journal.is_bad]
        end = last.get(database)
        at = None if end is None or not end.complete else (end.epoch, end.sequence)
        ends = {(journals[-1].epoch, journals[-1].sequence) for journals in (own, good) if journals}
        if at not in ends and good:
            finding.tell("ends otherwise", "positions", [f"{database}: {end}, of {sorted(ends)}"])
    return finding.faults


def _order(tag: str) -> tuple[int, ...]:
    return tuple(map(int, tag.split("."))) if tag else ()


def _tag(raw: Any) -> str:
    return next((value.decode() for name, value in raw.headers() or [] if name == TAG), "")


def _compare_queue(
    finding: Finding,
    queue: tuple[str, str],
    expected: list[Event],
    messages: list[Message],
    bad: set[tuple[str, str]],
    exactly: bool,
) -> None:
    where = queue[0]
    places = {(event.mark, event.op): place for place, event in enumerate(expected)}
    finding.tell("wrong", where, [message.fault for message in messages if message.fault])
    known: defaultdict[int, list[int]] = defaultdict(list)  # places, by partition
    partitions: defaultdict[int, set[int]] = defaultdict(set)  # by key
    strange = []
    for message in messages:
        place = places.get((message.mark, message.op))
        if place is None:
            if (message.mark, message.op) not in bad:
                strange.append(message)
            continue
        if expected[place].key != message.key:
            strange.append(message)
        known[message.partition].append(place)
        finding.tags[expected[place].journal].add(message.tag)
        if message.key is not None:
            partitions[message.key].add(message.partition)
    finding.tell("what nobody wrote", where, strange)
    finding.tell(
        "keys in several partitions", where, [key for key, at in partitions.items() if len(at) > 1]
    )
    counts = Counter(place for ones in known.values() for place in ones)
    finding.events += len(counts)
    finding.repeats += counts.total() - len(counts)
    lost = [event for place, event in enumerate(expected) if place not in counts]
    finding.tell("lost", where, lost)
    if exactly:
        finding.tell(
            "more than once", where, [expected[place] for place, n in counts.items() if n > 1]
        )
    for partition, ones in known.items():
        wrong = _out_of_order(ones, expected, repeats=not exactly)
        if wrong is not None:
            finding.tell("out of order", f"{where}[{partition}]", [wrong])


def _out_of_order(places: list[int], expected: list[Event], *, repeats: bool) -> str | None:
    """Return what is first found out of order; REPEATS may begin at the borders of journals."""
    if not repeats:
        for before, after in pairwise(places):
            if after <= before and after != before:
                return f"{expected[after]} after {expected[before]}"
        return None
    own = sorted(set(places))
    ranks = {place: rank for rank, place in enumerate(own)}
    reached = 0
    for place in places:
        rank = ranks[place]
        journal = expected[place].journal
        is_border = rank == 0 or expected[own[rank - 1]].journal != journal
        if rank != reached and not (is_border and rank < reached):
            due = expected[own[reached]] if reached < len(own) else "the end"
            return f"{expected[place]} where {due} was due"
        reached = rank + 1
    if reached != len(own):
        return f"ends with {expected[own[reached - 1]]}"
    return None
