"""The fold of a state rebuild: of changes in order, the rows that are left, in tasks.

`rows_as` makes the function that a task runs. It takes the packs of one bucket
(`images.PACK_COLUMNS`), which were brought together, those of a table one behind the other;
sorts the changes in them by key and place; and lets go on only what is left: of a key its last
change, if that leaves a row; of a multiset what was inserted and not deleted. Only that is decoded,
and written as typed columns or as canonical text. A table's part of a bucket has to fit in memory,
which the number of buckets sees to; rows of a multiset that are equal are in one bucket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped,import-not-found,unused-ignore]

from firebird_cdc.journal.format import Blob
from firebird_cdc.journal.replay.cluster.package import compiled_note
from firebird_cdc.journal.replay.state.conversion import UNKNOWN
from firebird_cdc.journal.replay.state.images import CONTROL, Plan, read_pack
from firebird_cdc.journal.replay.state.row_maker import Images, RowMaker
from firebird_cdc.journal.replay.state.typed import Missing, TypedColumns
from firebird_cdc.journal.types.canonical import LargeBlob

MOST_SENTENCES = 1000
"""Sentences on gaps and vanished files that are kept, and go back to the driver."""

_GROUP_ROWS = 16_384

TEXT_SCHEMA = "database string, `table` string, value string"


@dataclass
class Tally:
    """Counts from tasks, added up on the driver: by index of the table, its rows, deletes that
    nothing explains, missing content (by column and cause) and rows that had to be decoded one by
    one (by cause); and sentences on what was met."""

    rows: Counter[int] = field(default_factory=Counter)
    unmatched: Counter[int] = field(default_factory=Counter)
    missing: dict[tuple[int, str], Missing] = field(default_factory=dict)
    slowed: dict[int, Counter[str]] = field(default_factory=dict)
    sentences: dict[str, set[str]] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Take in what another task counted."""
        self.rows.update(other.rows)
        self.unmatched.update(other.unmatched)
        for place, causes in other.missing.items():
            self.missing.setdefault(place, Counter()).update(causes)
        for table, causes in other.slowed.items():
            self.slowed.setdefault(table, Counter()).update(causes)
        for kind, sentences in other.sentences.items():
            mine = self.sentences.setdefault(kind, set())
            for sentence in sentences:
                if len(mine) < MOST_SENTENCES:
                    mine.add(sentence)


def rows_as(
    plan: Plan, report: Callable[[Tally], None], only: int | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for a task, such as Spark's ``mapInArrow`` takes it.

    only: index of the one table that is written, with its columns; None: all tables, as
    `TEXT_SCHEMA`. report: is given what each partition counted, at its end.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tally = Tally()
        if note := compiled_note():
            _note(f"slow {note}", tally)
        writer = _Texts(plan, tally) if only is None else _Typed(plan, only, tally)
        for table, form, images in _left(batches, plan, tally, only):
            tally.rows[table] += len(images)
            yield writer.batch(table, plan.maker(table, form), images)
        report(tally)

    return run


_Group = tuple[int, int, Images]  # table, form, images


def _left(
    batches: Iterable[pa.RecordBatch], plan: Plan, tally: Tally, only: int | None
) -> Iterator[_Group]:
    """Yield the images that are left, grouped by table and form."""
    packs: list[pa.RecordBatch] = []
    before: int | None = None
    for table, content in _contents(batches):
        if table == CONTROL:
            _note(content.to_pybytes().decode(), tally)
            continue
        if only is not None and table != only:
            continue
        if table != before and before is not None:
            yield from _fold(before, packs, plan, tally)
            packs = []
        before = table
        packs.append(read_pack(content))
    if before is not None:
        yield from _fold(before, packs, plan, tally)


def _contents(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Buffer]]:
    for batch in batches:
        for table, content in zip(batch.column(0).to_pylist(), batch.column(2), strict=True):
            yield table, content.as_buffer()


def _note(text: str, tally: Tally) -> None:
    kind, _, sentence = text.partition(" ")
    kept = tally.sentences.setdefault(kind, set())
    if len(kept) < MOST_SENTENCES:
        kept.add(sentence)


def _fold(table: int, packs: list[pa.RecordBatch], plan: Plan, tally: Tally) -> Iterator[_Group]:
    """Yield what is left of all changes of some keys."""
    changes = pa.Table.from_batches(packs)
    names = ("key", "epoch", "sequence", "position")
    order = pc.sort_indices(changes, sort_keys=[(name, "ascending") for name in names])
    if plan.tables[table].key:
        keys = changes.column("key").take(order)
        ends = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).combine_chunks()
        last = pa.concat_arrays([ends, pa.array([True])])
        left = changes.select(["form", "image"]).take(order.filter(last))
        for batch in left.to_batches(max_chunksize=_GROUP_ROWS):
            yield from _groups(table, batch)
        return
    bag = _Bag(table)
    for batch in changes.take(order).to_batches(max_chunksize=_GROUP_ROWS):
        yield from bag.take(batch, tally)
    yield from bag.settle(tally)


def _groups(table: int, rows: pa.RecordBatch) -> Iterator[_Group]:
    """Yield the images of rows that are there, by form."""
    rows = rows.filter(pc.is_valid(rows.column(1)))
    if not rows.num_rows:
        return
    forms, images = rows.columns
    limits = pc.min_max(forms).as_py()
    if limits["min"] == limits["max"]:
        yield table, limits["min"], images
        return
    for form in pc.unique(forms).to_pylist():
        yield table, form, images.filter(pc.equal(forms, form))


class _Bag:
    """The rows of a multiset that are the same, in all their forms."""

    def __init__(self, table: int) -> None:
        self._table = table
        self._key: bytes | None = None
        self._texts: dict[tuple[int, bytes], list[Any]] = {}

    def take(self, rows: pa.RecordBatch, tally: Tally) -> Iterator[_Group]:
        """Take in rows in order; yield what is left of those that are complete."""
        left: dict[int, list[bytes]] = {}
        for key, *place, form, image in zip(*(c.to_pylist() for c in rows.columns), strict=True):
            if key != self._key:
                for _, of, images in self.settle(tally):
                    left.setdefault(of, []).extend(images)
                self._key = key
            is_added = form >= 0
            text = self._texts.setdefault((form if is_added else -1 - form, image), [0, place])
            text[0] += 1 if is_added else -1
            text[1] = place
        for form, images in left.items():
            yield self._table, form, images

    def settle(self, tally: Tally) -> Iterator[_Group]:
        """Yield the rows that are left: those written last, as many as there are in all."""
        net = sum(number for number, _ in self._texts.values())
        if net < 0:
            tally.unmatched[self._table] -= net
        latest = sorted(self._texts.items(), key=lambda text: text[1][1], reverse=True)
        self._texts = {}
        for (form, image), (number, _) in latest:
            kept = min(number, net)
            if kept > 0:
                net -= kept
                yield self._table, form, [image] * kept


class _Texts:
    """Writes rows of all tables as canonical text."""

    def __init__(self, plan: Plan, tally: Tally) -> None:
        self._plan = plan
        self._tally = tally

    def batch(self, table: int, maker: RowMaker, images: Images) -> pa.RecordBatch:
        of = self._plan.tables[table]
        texts = []
        for image in images if isinstance(images, list) else images.to_pylist():
            values = maker.values(image)
            if maker.may_lack:
                self._count(table, values)
            texts.append(maker.text(values))
        count = len(texts)
        return pa.RecordBatch.from_arrays(
            [
                pa.array([of.database] * count, pa.string()),
                pa.array([of.name] * count, pa.string()),
                pa.array(texts, pa.string()),
            ],
            ["database", "table", "value"],
        )

    def _count(self, table: int, values: Sequence[Any]) -> None:
        """Count what stands in no text either."""
        for column, value in zip(self._plan.tables[table].columns, values, strict=True):
            cause = None
            if value is UNKNOWN:
                cause = "unknown"
            elif isinstance(value, LargeBlob):
                cause = "too large"
            elif isinstance(value, Blob) and not value.available:
                cause = "not captured"
            if cause is not None:
                self._tally.missing.setdefault((table, column.name), Counter())[cause] += 1


class _Typed:
    """Writes rows of one table as its columns."""

    def __init__(self, plan: Plan, table: int, tally: Tally) -> None:
        self._columns = TypedColumns(plan.tables[table].columns, plan.none_charset)
        self._tally = tally

    def batch(self, table: int, maker: RowMaker, images: Images) -> pa.RecordBatch:
        missing: dict[str, Missing] = {}
        slowed: Counter[str] = Counter()
        batch = self._columns.batch(maker.value_lists(images, slowed), missing)
        if slowed:
            self._tally.slowed.setdefault(table, Counter()).update(slowed)
        for column, causes in missing.items():
            self._tally.missing.setdefault((table, column), Counter()).update(causes)
        return batch
