"""Parts of journals that a state rebuild reads: outlines, then row images as they stand there.

`Journals.survey` has the tasks make a `survey`: sectors, and definitions of tables and DDL.
`Journals.packs` reads changes whose rows are still the bytes of the journal: what is overwritten
later is never decoded. Within a task, only the last change of each key goes on to the shuffle; a
`Plan` says which bytes are the key. What goes there are packs of changes, so that to Spark a
thousand of them are one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped,import-not-found,unused-ignore]

from firebird_cdc.errors import JournalError, ReplayError
from firebird_cdc.journal.format import (
    Beginning,
    Change,
    Entry,
    Gap,
    RowChange,
    SmallTransactions,
    Table,
    image_places,
)
from firebird_cdc.journal.replay.source.arrow import (
    Columns,
    arrow_schema,
    in_tasks,
    record_batch,
    record_batches,
    schema_text,
)
from firebird_cdc.journal.replay.source.bounds import HistoryPoint
from firebird_cdc.journal.replay.source.planning import (
    Found,
    FoundShared,
    JournalOptions,
    JournalPartition,
    Listing,
    count_tasks,
    find_files,
)
from firebird_cdc.journal.replay.state.evolution import TablePlan
from firebird_cdc.journal.replay.state.row_maker import (
    RowMaker,
    decoder_of,
    key_bytes,
    know,
    pack_blobs,
    shape_digest,
)
from firebird_cdc.journal.replay.state.survey import SURVEY, VANISHED, survey_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONTROL = -1
"""``table`` of packs that hold no changes: ``content`` is what they are, a blank, a sentence."""

PACK_COLUMNS: Columns = (("table", "int"), ("bucket", "int"), ("content", "binary"))
"""Packs of changes. ``table``: index into ``Plan.tables``; ``bucket``: below ``Plan.buckets``, the
same for all changes of a key; ``content``: as `read_pack` reads it."""

ROW_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("epoch", pa.int64()),
        ("sequence", pa.int64()),
        ("position", pa.int64()),
        ("form", pa.int64()),
        ("image", pa.binary()),
    ]
)
"""Columns of a pack. ``key``: of a table that is folded by key, its bytes; of any other a digest of
the row. ``form``: version * 2**32 + index into ``Plan.shapes``; of a row that a multiset loses
-1 - that. ``image``: null if the key has no row from here on."""

_FORM = 1 << 32
# Rows and bytes that a task keeps before it sends them on; a guess.
_KEPT_ROWS = 200_000
_KEPT_BYTES = 48 * 1024 * 1024
_BATCH_ROWS = 16_384
_MOST_HANDLERS = 10_000  # and as many uses of a database
_PACK_ROWS = 65_536
_PACK_BYTES = 4 * 1024 * 1024
_MANY_TASKS = 64


@dataclass(frozen=True)
class Plan:
    """Facts on all tables that tasks need. ``shapes``: by digest, in the order of its indexes;
    ``limits``: epoch and sequence of the last journal of each database, missing: none of it.
    ``buckets``: tasks that fold. ``unread``: names of journals, or whole segments, that can't be
    read and need not be."""

    tables: tuple[TablePlan, ...]
    shapes: dict[bytes, Table]
    limits: dict[str, tuple[int, int]]
    none_charset: str = "UTF-8"
    buckets: int = 1
    unread: frozenset[str] = frozenset()
    _makers: dict[tuple[int, int], RowMaker] = field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls,
        tables: Sequence[TablePlan],
        shapes: Iterable[Table],
        limits: dict[str, tuple[int, int]],
        none_charset: str,
        buckets: int = 1,
        unread: frozenset[str] = frozenset(),
    ) -> Plan:
        """Return the plan of TABLES, whose rows have SHAPES."""
        by_digest = {shape_digest(shape): shape for shape in shapes}
        return cls(tuple(tables), by_digest, limits, none_charset, buckets, unread)

    @cached_property
    def table_numbers(self) -> dict[tuple[str, str], int]:
        """Index of a table by database and name."""
        return {(plan.database, plan.name): i for i, plan in enumerate(self.tables)}

    @cached_property
    def _shape_list(self) -> list[Table]:
        return list(self.shapes.values())

    @cached_property
    def shape_numbers(self) -> dict[bytes, int]:
        """Index of a shape by its digest."""
        return {digest: i for i, digest in enumerate(self.shapes)}

    def maker(self, table: int, form: int) -> RowMaker:
        """Return what makes rows of images of ``form``; made once."""
        found = self._makers.get((table, form))
        if found is None:
            version, shape = divmod(form, _FORM)
            found = RowMaker(
                self.tables[table], self._shape_list[shape], version, self.none_charset
            )
            self._makers[table, form] = found
        return found

    def __reduce__(self) -> tuple[object, ...]:
        made_of = (self.tables, self.shapes, self.limits, self.none_charset)
        return Plan, (*made_of, self.buckets, self.unread)


# How the bytes of an image are taken out of a journal.


class _Handler:
    """Handler of the changes of one table whose rows have SHAPE.

    ``kept``: where the last changes of its keys go, None for a multiset. ``first``, ``last``: bytes
    of an image that are the key, both 0 if it takes more to find it.
    """

    __slots__ = ("first", "form", "has_blobs", "kept", "key", "last", "sameness", "shape", "table")

    def __init__(
        self, plan: Plan, number: int, shape: Table, version: int, kept: _Kept | None
    ) -> None:
        table = plan.tables[number]
        self.table = number
        self.shape = shape
        self.kept = kept
        self.form = form = version * _FORM + plan.shape_numbers[know(shape).digest]
        maker = plan.maker(number, form)
        self.has_blobs = maker.has_blobs
        self.sameness = maker.sameness
        self.key: Callable[[bytes], bytes] = maker.key
        self.first = self.last = 0
        if table.key and table.uniform_key:
            found = [maker.sources[index].column_index for index in table.key]
            indexes = [index for index in found if index is not None]
            self.key = key_bytes(shape, indexes)
            field = image_places(shape)[0][indexes[0]]
            if len(indexes) == 1 and not field.variable:
                self.first, self.last = field.offset, field.offset + field.size


_Number = tuple[float, int]  # epoch and sequence; the epoch before or behind all may be infinite
_Rank = tuple[_Number, int]  # and the form


class _Kept:
    """The last change of each key: by its index in the lists, which have no tuples for the garbage
    collector to look at."""

    __slots__ = ("images", "index", "positions", "ranks")

    def __init__(self) -> None:
        self.index: dict[bytes, int] = {}
        self.ranks: list[_Rank] = []
        self.positions: list[int] = []
        self.images: list[bytes | None] = []

    def keep(self, key: bytes, rank: _Rank, position: int, image: bytes | None) -> None:
        """Keep a change if nothing of a later journal is kept; a journal is read in its order."""
        free = len(self.ranks)
        at = self.index.setdefault(key, free)
        if at == free:
            self.ranks.append(rank)
            self.positions.append(position)
            self.images.append(image)
        elif self.ranks[at][0] <= rank[0]:
            self.ranks[at] = rank
            self.positions[at] = position
            self.images[at] = image

    def clear(self) -> None:
        """Forget all."""
        self.index.clear()
        for of_rows in (self.ranks, self.positions, self.images):
            of_rows.clear()


class _Use(NamedTuple):
    """Handler of the changes of rows of a shape at a place, None: they are left out. In the journal
    of that place, ``until`` a number of event; and in all with numbers between the two."""

    shape: Table  # which keeps its id
    handler: _Handler | None
    until: float
    above: _Number
    below: _Number


_FIRST, _LAST = (-inf, 0), (inf, 0)

_Changes = tuple[str, tuple[int, int], Iterable[Change]]
"""The changes of a transaction, behind its database and number."""

_BagRow = tuple[bytes, _Rank, int, bytes]  # digest, rank, position, image


class _Fold:
    """Keeps the last change of each key, up to a number of rows or bytes, and all of multisets."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._keyed: dict[int, _Kept] = {}
        self._bags: dict[int, list[_BagRow]] = {}
        self._handlers: dict[tuple[int, int, int], _Handler] = {}  # table, id of shape, version
        self._uses: dict[str, dict[int, _Use]] = {}  # by database and id of the shape
        self._sentences: list[bytes] = []
        self._bytes = 0
        self._highest: _Number = _FIRST

    def add_control(self, kind: str, sentence: str) -> None:
        """Note something that is no change of a row."""
        self._sentences.append(f"{kind} {sentence}".encode())

    def read(self, transactions: Iterable[_Changes], file: str = "") -> Iterator[pa.RecordBatch]:
        """Take in changes; yield what became too much to keep. FILE: where gaps may lie."""
        shape: Table | None = None
        above, below = _LAST, _FIRST
        uses: dict[int, _Use] = {}
        kept: _Kept | None = None
        index: dict[bytes, int] = {}
        ranks: list[_Rank] = []
        positions: list[int] = []
        images: list[bytes | None] = []
        handler: _Handler | None = None
        until: float = 0
        first = last = count = size = form = 0
        known_database = ""
        for database, number, changes in transactions:
            # Journals come in the order of a folder. One that is later than all before it needs
            # no look at what is kept.
            in_order = number >= self._highest
            if in_order:
                self._highest = number
            rank = (number, form)
            if database != known_database:
                known_database = database
                uses = self._uses.setdefault(database, {})
                shape = None
            elif not above < number < below:
                shape = None
            for change in changes:
                if type(change) is RowChange:
                    row: tuple[int, str, Table, Any, Any] = change
                    pos, _, table, before, after = row
                    if table is not shape or pos >= until:
                        shape = table
                        found = uses.get(id(table))
                        if found is None or not found.above < number < found.below:
                            if len(uses) >= _MOST_HANDLERS:
                                uses.clear()
                            found = self._use(database, table, (*number, pos))
                            uses[id(table)] = found
                        _, handler, until, above, below = found
                        kept = None
                        if handler is not None:
                            first, last = handler.first, handler.last
                            form = handler.form
                            rank = (number, form)
                            if last and not handler.has_blobs:
                                kept = handler.kept
                                assert kept is not None
                                index, ranks = kept.index, kept.ranks
                                positions, images = kept.positions, kept.images
                    if handler is None:
                        continue
                    if kept is None:
                        size += self._add(handler, rank, pos, before, after)
                    else:
                        key = (before if after is None else after)[first:last]
                        free = len(ranks)
                        at = index.setdefault(key, free)
                        if at == free:
                            ranks.append(rank)
                            positions.append(pos)
                            images.append(after)
                        elif in_order or ranks[at][0] <= number:
                            ranks[at] = rank
                            positions[at] = pos
                            images[at] = after
                        if after is not None:
                            size += len(after)
                            if before is not None and (old := before[first:last]) != key:
                                kept.keep(old, rank, pos, None)
                    count += 1
                    if count & 1023 == 0 or size > _KEPT_BYTES:
                        self._bytes += size
                        size = 0
                        if self._is_full():
                            yield from self.flush()
                elif isinstance(change, Gap):
                    self.add_control(
                        "gap", f"{file}: sequence {number[1]} marks a gap: {change.reason}"
                    )
        self._bytes += size

    def _is_full(self) -> bool:
        rows = sum(len(kept.ranks) for kept in self._keyed.values())
        rows += sum(map(len, self._bags.values()))
        return rows >= _KEPT_ROWS or self._bytes >= _KEPT_BYTES

    def _use(self, database: str, shape: Table, place: HistoryPoint) -> _Use:
        """Return what to do with changes of SHAPE at PLACE, and how long."""
        number = self._plan.table_numbers.get((database, shape.name))
        if number is None or self._plan.tables[number].is_dropped:
            return _Use(shape, None, inf, _FIRST, _LAST)
        table = self._plan.tables[number]
        after: HistoryPoint | None
        until: HistoryPoint | None
        if table.is_of_before(place):
            version, after, until = -1, None, table.since
        else:
            version, until = table.version_at(place)
            after = table.versions[version].point if version else table.since
        handler = None if version < 0 else self._handler(number, shape, version)
        return _Use(
            shape,
            handler,
            until[2] + 1 if until is not None and until[:2] == place[:2] else inf,
            _FIRST if after is None else after[:2],
            _LAST if until is None else until[:2],
        )

    def _handler(self, number: int, shape: Table, version: int) -> _Handler:
        known = number, id(shape), version  # a handler keeps its shape, and so the id
        handler = self._handlers.get(known)
        if handler is None:
            if len(self._handlers) >= _MOST_HANDLERS:
                self._handlers.clear()
            table = self._plan.tables[number]
            kept = self._keyed.setdefault(number, _Kept()) if table.key else None
            handler = _Handler(self._plan, number, shape, version, kept)
            self._handlers[known] = handler
        return handler

    def _add(self, handler: _Handler, rank: _Rank, pos: int, before: Any, after: Any) -> int:
        """Take a change of which more is to be known than `read` does; return the bytes it takes.

        BEFORE and AFTER are images, or images and blobs.
        """
        size = 0
        if handler.kept is not None:
            key = None
            if after is not None:
                bare, image = after, after
                if handler.has_blobs:
                    bare, blobs = after
                    image = pack_blobs(bare, blobs)
                key = handler.key(bare)
                handler.kept.keep(key, rank, pos, image)
                size = len(image)
            if before is not None:
                old = handler.key(before[0] if handler.has_blobs else before)
                if old != key:
                    handler.kept.keep(old, rank, pos, None)
            return size
        number, form = rank
        for row, of in ((before, -1 - form), (after, form)):
            if row is not None:
                image = pack_blobs(*row) if handler.has_blobs else row
                size += len(image)
                bag = self._bags.setdefault(handler.table, [])
                bag.append((handler.sameness(image), (number, of), pos, image))
        return size

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield packs of what is kept, and forget it."""
        buckets = self._plan.buckets
        packs: list[tuple[int, int, bytes]] = []
        for table, kept in self._keyed.items():
            if kept.ranks:
                keys = list(kept.index)
                packs += _packs(table, keys, kept.ranks, kept.positions, kept.images, buckets)
                kept.clear()  # whoever fills it has it in hand
        for table, bag in self._bags.items():
            digests, ranks, positions, images = zip(*bag, strict=True)
            packs += _packs(table, digests, ranks, positions, images, buckets)
        packs += [(CONTROL, 0, sentence) for sentence in self._sentences]
        self._bags = {}
        self._sentences = []
        self._bytes = 0
        if packs:
            yield record_batch(packs, arrow_schema(PACK_COLUMNS))


def _packs(
    table: int,
    keys: Sequence[bytes],
    ranks: Sequence[_Rank],
    positions: Sequence[int],
    images: Sequence[bytes | None],
    buckets: int,
) -> Iterator[tuple[int, int, bytes]]:
    """Yield table, bucket and content of packs of bounded size; one row alone may be larger."""
    count = len(keys)
    if all(rank is ranks[0] for rank in ranks):
        number, form = ranks[0]
        places = [pa.repeat(pa.scalar(part, pa.int64()), count) for part in (*number, form)]
    else:
        columns = (
            [number[0] for number, _ in ranks],
            [number[1] for number, _ in ranks],
            [form for _, form in ranks],
        )
        places = [pa.array(column, pa.int64()) for column in columns]
    epochs, sequences, of_forms = places
    arrays = [
        pa.array(keys, pa.binary()),
        epochs,
        sequences,
        pa.array(positions, pa.int64()),
        of_forms,
        pa.array(images, pa.binary()),
    ]
    whole = pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)
    ends = [count]
    if buckets > 1:
        of_rows = pa.array([crc32(key) % buckets for key in keys], pa.int32())
        whole = whole.take(pc.sort_indices(of_rows))
        counts = Counter(of_rows.to_pylist())
        ends = list(accumulate(counts[bucket] for bucket in range(buckets)))
    step = _PACK_ROWS
    if whole.nbytes > _PACK_BYTES:
        step = max(1, min(step, count * _PACK_BYTES // whole.nbytes))
    start = 0
    for bucket, end in enumerate(ends):
        while start < end:
            size = min(step, end - start)
            yield table, bucket, whole.slice(start, size).serialize().to_pybytes()
            start += size


def read_pack(content: pa.Buffer) -> pa.RecordBatch:
    """Return the changes in a pack: columns `ROW_SCHEMA`."""
    return pa.ipc.read_record_batch(content, ROW_SCHEMA)


@dataclass(frozen=True, slots=True)
class Journals:
    """The journals of some folders, in tasks of bounded size: ``whole`` ones, or ``split``."""

    options: JournalOptions
    whole: list[JournalPartition]
    split: list[JournalPartition]

    @classmethod
    def list(cls, options: JournalOptions) -> Journals:
        """List the folders of OPTIONS: names and sizes."""
        found = Listing(options)
        return cls(options, found.tasks(split=False, headers_only=True), found.tasks(split=True))

    def survey(
        self, spark: SparkSession, limits: Mapping[str, tuple[int, int]] | None, outlines: bool
    ) -> DataFrame:
        """Return a survey of the journals up to LIMITS, None: of all; see `survey_rows`."""
        read = partial(_survey, options=self.options, limits=limits, outlines=outlines)
        return in_tasks(spark, self.whole, read, schema_text(SURVEY))

    def buckets(self, size: int) -> int:
        """Return into how many tasks a fold is to be divided that gets SIZE bytes of journals: each
        takes 64 MiB of them or less."""
        count = min(len(self.split), count_tasks(size, self.options))
        return max(1, min(count, _MANY_TASKS), -(-count // 2))

    def packs(self, spark: SparkSession, plan: Plan) -> DataFrame:
        """Return `PACK_COLUMNS` of the journals up to the plan's limits."""
        read = partial(read_packs, options=self.options, plan=plan)
        return in_tasks(spark, self.split, read, schema_text(PACK_COLUMNS))


def _survey(
    task: JournalPartition,
    options: JournalOptions,
    limits: Mapping[str, tuple[int, int]] | None,
    outlines: bool,
) -> Iterator[pa.RecordBatch]:
    rows = survey_rows(task, options, limits, outlines)
    return record_batches(rows, arrow_schema(SURVEY), _BATCH_ROWS)


def read_packs(
    task: JournalPartition, options: JournalOptions, plan: Plan
) -> Iterator[pa.RecordBatch]:
    """Yield `PACK_COLUMNS` of a task, up to the plan's limits."""
    fold = _Fold(plan)
    small = SmallTransactions(options.none_charset, decoder_of)
    for found in find_files(task, options):
        if isinstance(found, Found):
            yield from _journal_images(fold, found, plan)
            continue
        left: list[Entry] = []
        yield from fold.read(_small_changes(found, small, plan, left))
        for each in found.found(left):
            yield from _journal_images(fold, each, plan)
    yield from fold.flush()


def _small_changes(
    found: FoundShared, small: SmallTransactions, plan: Plan, left: list[Entry]
) -> Iterator[_Changes]:
    """Yield the changes of small transactions up to the plan's limits; others go to LEFT."""
    last: Beginning | None = None
    limit: tuple[int, int] | None = None
    for entry, beginning, changes in found.small(small.changes, left):
        if beginning is not last and beginning is not None:
            last, limit = beginning, plan.limits.get(beginning.database)
        if beginning is None:
            left.append(entry)
        elif limit is not None and (number := (entry.epoch, entry.sequence)) <= limit:
            yield beginning.database, number, changes


def _journal_images(fold: _Fold, found: Found, plan: Plan) -> Iterator[pa.RecordBatch]:
    try:
        reader, stamp = found.stamped()
        number = stamp.epoch, stamp.sequence
        limit = plan.limits.get(reader.database)
        if limit is None or number > limit:
            return
        begun = found.at_block()
        if begun is not None:
            changes = reader.changes(begun.start, begun.end, decoder_of)
            yield from fold.read([(reader.database, number, changes)], found.place)
    except FileNotFoundError:
        fold.add_control("missing", f"{found.place}: {VANISHED}")
    except JournalError as error:
        if found.name.rpartition("/")[2] not in plan.unread:
            raise ReplayError(damage_sentence(str(error))) from error


def damage_sentence(reason: str) -> str:
    """Return why no state is built, and what to do."""
    return (
        f"{reason}; a state can't be built across a damaged journal: take the file from a backup"
        " (`firebird-cdc replay audit` lists all that is damaged), or stop before it with --until"
    )
