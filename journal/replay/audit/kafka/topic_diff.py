"""Lays the messages that should be in topics beside those that are, key by key, in Spark's tasks.

Input are rows of `expected.COLUMNS` from both sides, by topic, key, side and place; what comes out
are the differences (`DIFFERENCE`), and counts of what is as it should be.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]

from firebird_cdc.journal.replay.audit.kafka.alignment import Seen, Wanted, align
from firebird_cdc.journal.replay.audit.kafka.earlier import DIGEST_BYTES, LATER_FORM, TODAYS_FORM
from firebird_cdc.journal.replay.audit.kafka.message_form import ANNOUNCED
from firebird_cdc.journal.replay.audit.kafka.read_diff import compare_reads
from firebird_cdc.journal.replay.audit.kafka.rendered import (
    LEFT_OUT,
    SEEN,
    UNREAD,
    UNSENT,
    WANTED,
)
from firebird_cdc.journal.replay.audit.kafka.topic_reader import FOREIGN
from firebird_cdc.journal.replay.source.arrow import Columns, arrow_schema
from firebird_cdc.journal.replay.source.bounds import HistoryPoint
from firebird_cdc.journal.shipper.repairs import repair_told

DIFFERENCE: Columns = (
    ("kind", "string"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("database", "string"),
    ("epoch", "bigint"),
    ("sequence", "bigint"),
    ("position", "bigint"),
    ("item", "bigint"),
    ("op", "string"),
    ("journal", "binary"),
    ("transaction", "bigint"),
    ("table", "string"),
    ("key", "string"),
    ("note", "string"),
    ("other_epoch", "bigint"),
    ("other_sequence", "bigint"),
    ("other_position", "bigint"),
    ("other_transaction", "bigint"),
    ("grp", "binary"),
    ("newest_offset", "bigint"),
    ("newest_sequence", "bigint"),
    ("first_offset", "bigint"),
    ("last_offset", "bigint"),
    ("placed", "string"),
    ("what", "string"),
)
"""Columns of what tasks find out. Kind ``matched``: ``item`` messages of a partition, database and
epoch, the first at ``offset`` with its place, the last with its place in ``other_...``; ``seen``:
``item`` messages of a topic; ``placed``: a message that is as it should be, with placeholders for
what was too large. The column ``placed``, also of others: in which fields. ``newest_...``: of what
a compacted topic lacks, offset and sequence of the last message of its key that is in no journal of
the range. ``first_offset``, ``last_offset``: where the equal messages are of which one is too many;
of matched ones, where those are for which no other message can be meant. ``note``: `SILENT`
where a doubled or altered message does not tell where it is from, `LATER` where a later version of
ours made an altered one. `ONCE_SENT`: a message of an event that can't be sent any more.
Kinds of `read_diff`: rows that a snapshot read; ``what`` says what is wrong, ``item`` is the
time of the snapshot."""

SILENT, LATER = "silent", "later"

_ARROW = arrow_schema(DIFFERENCE)
MATCHED, SEEN_COUNT, STANDS, WANTED_COUNT = "matched", "seen", "stands", "wanted"
PLACED = "placed"
ONCE_SENT = "once sent"
_ROWS_PER_BATCH = 4096
COUNTED = (MATCHED, SEEN_COUNT, WANTED_COUNT)


Number = tuple[int, int]
"""Epoch, sequence."""


class _Columns:
    """A batch with those of its columns as lists that every message is asked for."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        names = ("topic", "grp", "side", "a", "b", "c", "digest", "block", "database", "note")
        self.has_placed = batch.column("placed").null_count < batch.num_rows
        columns = [batch.column(name).to_pylist() for name in (*names, *_MORE)]
        self.topic, self.group, self.side, self.a, self.b, self.c = columns[:6]
        self.digest, self.block, self.database, self.note = columns[6:10]
        self.epoch, self.form, self.earlier = columns[10:]
        self.has_notes = any(note is not None for note in self.note)


_MORE = ("epoch", "form", "earlier")


class _Run(NamedTuple):
    """Messages START to END of a batch: of one topic, key and side."""

    columns: _Columns
    start: int
    end: int


def _always(_: str, __: str) -> bool:
    return True


class TopicDiff:
    """Reads messages in the order of topic, key, side and place; gives `DIFFERENCE` rows.

    The messages of one key are held in memory, all others pass. ARE_STORED: as
    `compare_reads` has it.
    """

    def __init__(
        self, compacted: frozenset[str], are_stored: Callable[[str, str], bool] = _always
    ) -> None:
        self._compacted = compacted
        self._are_stored = are_stored

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts = _Counts()
        rows: list[dict[str, Any]] = []
        for runs in _groups(batches):
            topic = runs[0].columns.topic[runs[0].start]
            if runs[0].columns.side[runs[0].start] == UNSENT:
                rows += map(_unsent, _rows(runs))
            elif not _is_same(topic, runs, counts):
                rows += self._differences(topic, runs, counts)
            if len(rows) >= _ROWS_PER_BATCH:
                yield pa.RecordBatch.from_pylist(rows, schema=_ARROW)
                rows.clear()
        rows += counts.rows()
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=_ARROW)

    def _differences(self, topic: str, runs: list[_Run], counts: _Counts) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        states: dict[str, Number] = {}
        known = _distinct(_rows(run for run in runs if run.columns.side[run.start] == WANTED))
        wanted = [row for row in known if row["note"] != LEFT_OUT]
        seen, reads = [], []
        told: list[tuple[str, int | None]] = []  # op and epoch of all messages that there are
        for row in _rows(run for run in runs if run.columns.side[run.start] == SEEN):
            if row["snapshot"] is not None and row["note"] is None:
                reads.append(row)
                continue
            told.append((row["op"], row["epoch"]))
            note = row["note"] or ""
            if note.startswith("repair:"):
                rows += _stands(note.removeprefix("repair:"))
                if '"current state"' in note:
                    _note_state(states, note.removeprefix("repair:"))
                    continue
            if row["op"] == ANNOUNCED and row["c"] > 1:
                continue  # the journal that opens the epoch was lost, and the next one did so
            seen.append(row)
        if len(wanted) < len(known):
            _mark_left_out(known, seen)
        if reads:
            rows += compare_reads(known, seen, reads, self._are_stored)
            for row in reads:  # has all before it, so a compacted topic needs no more
                number = row["epoch"] or 0, row["c"]
                states[row["database"]] = max(states.get(row["database"], (-1, 0)), number)
        counts.add(topic, len(wanted), len(seen))
        if not wanted and not seen:
            return rows
        is_compacted = topic in self._compacted
        due = _due(wanted, seen, is_compacted, states)
        _excuse_announcements(wanted, told, due)
        _mark_other_epochs(wanted, seen)
        _bring_to_today(wanted, seen)
        result = align(
            [
                Wanted(
                    row["digest"],
                    row["block"],
                    row["op"],
                    row["database"],
                    (row["journal"], row["c"]),
                    row["note"] is None and due[index],
                )
                for index, row in enumerate(wanted)
            ],
            [
                Seen(
                    row["digest"],
                    row["block"],
                    row["op"],
                    row["a"],
                    None if row["journal"] is None else (row["journal"], row["d"]),
                    row["note"] is not None and not row["note"].startswith(FOREIGN),
                )
                for row in seen
            ],
        )
        unsure = {
            seen[each.seen]["digest"] for each in result.differences if each.kind == "doubled"
        }
        guessed = {
            each.seen
            for each in result.differences
            if each.kind == "altered" and _is_silent(seen, each.seen)
        }
        altered = {each.seen for each in result.differences if each.kind == "altered"}
        paired = set(result.pairs)
        for index, found in enumerate(result.pairs):
            if found >= 0 and seen[index]["note"] is None and index not in guessed:
                row, where = seen[index], wanted[found]
                place = where["a"], where["b"], where["c"]
                counts.match(
                    (topic, row["a"], where["database"]),
                    (row["b"], row["b"]),
                    (place, place),
                    1,
                    is_sure=row["digest"] not in unsure,
                )
        for index, found in enumerate(result.pairs):
            if found >= 0 and seen[index]["placed"] is not None and index not in altered:
                row = _from_wanted(PLACED, wanted[found])
                rows.append({**row, "topic": topic, **_where(seen[index])})
        of_key = next(
            (seen[index]["a"] for index, found in enumerate(result.pairs) if found >= 0), -1
        )
        for index, row in enumerate(wanted):
            if row["note"] is not None:
                kind = ONCE_SENT if index in paired else "quarantined"
                rows.append({**_from_wanted(kind, row), "topic": topic})
        for kind, at, there, other in result.differences:
            if kind == "loose" and at < 0:
                continue
            row = _from_wanted(kind, wanted[at]) if at >= 0 else _from_seen(kind, seen, there)
            row["topic"] = topic
            if there >= 0:
                row.update(_where(seen[there]))
                if kind == "altered" and wanted[at]["placed"] == row["placed"]:
                    row["placed"] = None  # not what explains the difference
                if kind == "loose":
                    row["note"] = seen[there]["note"]
                elif kind in ("doubled", "altered"):
                    row["note"] = SILENT if _is_silent(seen, there) else None
                    if row["note"] is None and seen[there]["form"] == LATER_FORM:
                        row["note"] = LATER
                    first = there if kind == "altered" else other
                    if first >= 0 and seen[first]["a"] == seen[there]["a"]:
                        row.update(first_offset=seen[first]["b"], last_offset=seen[there]["b"])
                    if is_compacted and there in guessed:
                        row["newest_offset"] = seen[there]["b"]
            else:
                row["partition"] = of_key
                if is_compacted:
                    row.update(_newest(seen, result.pairs))
            if kind == "order":
                row.update(
                    other_epoch=wanted[other]["a"],
                    other_sequence=wanted[other]["b"],
                    other_position=wanted[other]["c"],
                    other_transaction=wanted[other]["transaction"],
                )
            rows.append(row)
        return rows


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[_Run]]:
    """Yield the runs of each group: one for each side, or more if it spans batches."""
    runs: list[_Run] = []
    current: tuple[str, bytes] | None = None
    for batch in batches:
        columns = _Columns(batch)
        start, before = 0, None
        for index, key in enumerate(zip(columns.group, columns.side, columns.topic, strict=True)):
            if key == before:
                continue
            if before is not None:
                runs.append(_Run(columns, start, index))
            start, before = index, key
            group = key[2], key[0]
            if group != current:
                if runs:
                    yield runs
                    runs = []
                current = group
        if before is not None:
            runs.append(_Run(columns, start, batch.num_rows))
    if runs:
        yield runs


def _is_same(topic: str, runs: list[_Run], counts: _Counts) -> bool:
    """Tell whether the topic has the messages of a key that it should have, in one partition; count
    them if so."""
    if len(runs) != 2:
        return False
    (left, start, middle), (right, begin, end) = runs
    number = middle - start
    if (
        left.has_notes
        or right.has_notes
        or right.has_placed
        or left.side[start] != WANTED
        or right.side[begin] != SEEN
        or end - begin != number
        or not _are_equal(left, slice(start, middle), right, slice(begin, end))
        or left.block[start:middle] != right.block[begin:end]
        or not _tells_epochs(right.epoch[begin:end], left.epoch[start:middle])
    ):
        return False
    partition, database = right.a[begin], left.database[start]
    if number > 1 and not (
        right.a[begin:end].count(partition) == number
        and left.database[start:middle].count(database) == number
    ):
        return False
    counts.add(topic, number, number)
    at = start
    while at < middle:
        behind = bisect_right(left.a, left.a[at], at, middle)  # of one epoch
        last = behind - 1
        counts.match(
            (topic, partition, database),
            (right.b[begin + at - start], right.b[begin + last - start]),
            (
                (left.a[at], left.b[at], left.c[at]),
                (left.a[last], left.b[last], left.c[last]),
            ),
            behind - at,
        )
        at = behind
    return True


def _rows(runs: Iterable[_Run]) -> list[dict[str, Any]]:
    return [
        row
        for columns, start, end in runs
        for row in columns.batch.slice(start, end - start).to_pylist()
    ]


def _distinct(wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """WANTED without what two copies of one journal ask for twice: another audit names them."""
    kept: list[dict[str, Any]] = []
    for row in wanted:
        names = ("database", "journal", "a", "b", "c", "d", "digest")
        if not kept or any(kept[-1][name] != row[name] for name in names):
            kept.append(row)
    return kept


def _due(
    wanted: Sequence[Mapping[str, Any]],
    seen: Sequence[Mapping[str, Any]],
    is_compacted: bool,
    states: Mapping[str, Number],
) -> list[bool]:
    """Tell for each message whether it has to be there: all, but where only a key's last one stays,
    which what was not sent behind it leaves in its place.

    STATES: by database, up to where a repair or a snapshot has told the state of the key.
    """
    if not is_compacted:
        return [True] * len(wanted)
    due = [False] * len(wanted)
    sent = [index for index, row in enumerate(wanted) if row["note"] is None]
    if not sent:
        return due
    last, unsent = wanted[sent[-1]], wanted[sent[-1] + 1 :]
    is_told = (last["a"], last["b"]) <= states.get(last["database"], (-1, 0))
    if unsent:  # perhaps by a version that could send it, or later
        digests = {row["digest"] for row in unsent}
        places = {(row["journal"], row["c"]) for row in unsent}
        is_told = is_told or any(
            row["digest"] in digests or (row["journal"], row["d"]) in places for row in seen
        )
    due[sent[-1]] = last["op"] != "t" and not is_told  # a tombstone goes, too, in the end
    return due


def _mark_left_out(known: list[dict[str, Any]], seen: list[dict[str, Any]]) -> None:
    """Note of those of SEEN that they were to be left out, as KNOWN says."""
    places = {(row["journal"], row["c"]) for row in known if row["note"] == LEFT_OUT}
    for row in seen:
        if row["note"] is None and (row["journal"], row["d"]) in places:
            row["is_left_out"] = True


def _tells_epochs(told: list[int | None], right: list[int | None]) -> bool:
    """Tell whether messages TOLD the RIGHT epochs, or none, as those of earlier versions."""
    return told == right or all(
        each is None or each == other for each, other in zip(told, right, strict=True)
    )


def _are_equal(left: _Columns, of_left: slice, right: _Columns, of_right: slice) -> bool:
    """Tell whether messages have the digests of those wanted, each in the form of its version."""
    due, found, forms = left.digest[of_left], right.digest[of_right], right.form[of_right]
    if due == found and all(form is None or form >= TODAYS_FORM for form in forms):
        return True
    each = zip(found, forms, due, left.earlier[of_left], strict=True)
    return all(_is_in_form(*one) for one in each)


def _is_in_form(found: bytes, form: int | None, due: bytes, earlier: bytes | None) -> bool:
    """Tell whether a digest is that of a wanted message in FORM, or in any if it tells none."""
    if earlier is None or (form is not None and form >= TODAYS_FORM):
        return found == due
    if form is None:
        return found == due or found in _of_forms(earlier)
    return found == _of_forms(earlier)[form]


def _of_forms(earlier: bytes) -> list[bytes]:
    """The digests of a message in the forms before, the oldest first."""
    return [earlier[at : at + DIGEST_BYTES] for at in range(0, len(earlier), DIGEST_BYTES)]


def _bring_to_today(wanted: list[dict[str, Any]], seen: list[dict[str, Any]]) -> None:
    """Give those of SEEN that are in an earlier form the digest in today's, and one that no message
    has to those that are in another form than their version's."""
    if all(row["form"] is not None and row["form"] >= TODAYS_FORM for row in seen):
        return
    todays: dict[tuple[int, bytes], bytes] = {}
    changed = set()
    for row in wanted:
        if row["earlier"] is not None:
            changed.add(row["digest"])
            for form, digest in enumerate(_of_forms(row["earlier"])):
                todays[form, digest] = row["digest"]
    for row in seen:
        form, digest = row["form"], row["digest"]
        if form is None and digest not in changed:
            row["digest"] = next(
                (todays[each, digest] for each in range(TODAYS_FORM) if (each, digest) in todays),
                digest,
            )
        elif form is not None and form < TODAYS_FORM:
            other = digest + b"form" if digest in changed else digest
            row["digest"] = todays.get((form, digest), other)


def _mark_other_epochs(wanted: list[dict[str, Any]], seen: list[dict[str, Any]]) -> None:
    """Have those of SEEN differ from all others that tell another epoch than their journal has."""
    epochs = {row["journal"]: row["epoch"] for row in wanted}
    for row in seen:
        if row["epoch"] is not None and epochs.get(row["journal"], row["epoch"]) != row["epoch"]:
            row["digest"] += b"epoch"


def _excuse_announcements(
    wanted: list[dict[str, Any]], told: list[tuple[str, int | None]], due: list[bool]
) -> None:
    """Take back in DUE the announcements of epochs that another message has TOLD, and those of
    which nothing says that they are not of an earlier version, which told no epoch."""
    for index, row in enumerate(wanted):
        if row["op"] == ANNOUNCED and (
            (ANNOUNCED, row["epoch"]) in told
            or not any(epoch is not None and epoch < row["epoch"] for _, epoch in told)
        ):
            due[index] = False


def _newest(seen: Sequence[Mapping[str, Any]], pairs: Sequence[int]) -> dict[str, Any]:
    """Return the fields of a difference on the last of SEEN that has no partner."""
    for row, found in zip(reversed(seen), reversed(pairs), strict=True):
        if found < 0:
            return {
                "partition": row["a"],
                "newest_offset": row["b"],
                "newest_sequence": row["c"],
            }
    return {}


def _unsent(row: dict[str, Any]) -> dict[str, Any]:
    kind = UNREAD if row["op"] == UNREAD else "quarantined"
    return _from_wanted(kind, row)


def _stands(text: str) -> list[dict[str, Any]]:
    """The events that a repair stands for, by its header."""
    try:
        told = repair_told(text)
        return [
            {
                "kind": STANDS,
                "database": str(told["database"]),
                "epoch": int(epoch),
                "sequence": int(sequence),
                "position": int(position),
            }
            for epoch, sequence, position in told["events"]
        ]
    except (ValueError, KeyError, TypeError):
        return []


def _note_state(states: dict[str, Number], text: str) -> None:
    """Note in STATES up to where a message of a repair tells the state of its key."""
    with suppress(ValueError, KeyError, TypeError):
        told = repair_told(text)
        database, (epoch, sequence) = str(told["database"]), told["as_of"]
        states[database] = max(states.get(database, (-1, 0)), (int(epoch), int(sequence)))


def _from_wanted(kind: str, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": kind,
        "database": row["database"],
        "epoch": row["a"],
        "sequence": row["b"],
        "position": row["c"],
        "item": row["d"],
        "op": row["op"],
        "journal": row["journal"],
        "transaction": row["transaction"],
        "table": row["table"],
        "key": row["key"],
        "note": row["note"],
        "grp": row["grp"],
    }


def _where(row: dict[str, Any]) -> dict[str, Any]:
    """Return the place of a message of the topic, and the fields in which placeholders stand."""
    return {"partition": row["a"], "offset": row["b"], "placed": row["placed"]}


def _is_silent(seen: list[dict[str, Any]], index: int) -> bool:
    """Tell whether a message of the topic does not say where it is from."""
    return _from_seen("", seen, index)["journal"] is None


def _from_seen(kind: str, seen: list[dict[str, Any]], index: int) -> dict[str, Any]:
    """A message of the topic as it tells itself; a tombstone is of the event before it."""
    row = teller = seen[index]
    if row["op"] == "t":
        for before in range(index - 1, -1, -1):
            if seen[before]["a"] == row["a"]:
                teller = seen[before]
                break
    return {
        "kind": kind,
        "database": teller["database"],
        "epoch": teller["epoch"],
        "sequence": teller["c"],
        "position": teller["d"],
        "op": row["op"],
        "journal": teller["journal"],
        "transaction": teller["transaction"],
        "table": teller["table"],
        "key": row["key"],
        "note": LEFT_OUT if teller.get("is_left_out") else row["note"],
    }


class _Counts:
    """Messages that a task has matched, by topic, partition, database and epoch."""

    def __init__(self) -> None:
        self._wanted: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._matched: dict[tuple[str, int, str, int], list[Any]] = {}

    def add(self, topic: str, wanted: int, seen: int) -> None:
        """Number of messages of both sides."""
        self._wanted[topic] = self._wanted.get(topic, 0) + wanted
        self._seen[topic] = self._seen.get(topic, 0) + seen

    def match(
        self,
        where: tuple[str, int, str],
        offsets: tuple[int, int],
        points: tuple[HistoryPoint, HistoryPoint],
        number: int,
        *,
        is_sure: bool = True,
    ) -> None:
        """NUMBER messages of a topic, partition and database, of one epoch; OFFSETS and POINTS: of
        the first and the last; IS_SURE: no other message can be meant."""
        offset, (first, last) = offsets[0], points
        known = self._matched.get((*where, first[0]))
        if known is None:
            known = self._matched[*where, first[0]] = [offset, first, last, 0, None, None]
        if offset < known[0]:
            known[0], known[1] = offset, first
        if last > known[2]:
            known[2] = last
        known[3] += number
        if is_sure:
            known[4] = offset if known[4] is None else min(known[4], offset)
            known[5] = offsets[1] if known[5] is None else max(known[5], offsets[1])

    def rows(self) -> Iterator[dict[str, Any]]:
        """The counts as rows."""
        for (topic, partition, database, _), found in self._matched.items():
            offset, low, high, number, sure_first, sure_last = found
            yield {
                "kind": MATCHED,
                "topic": topic,
                "partition": partition,
                "database": database,
                "offset": offset,
                "epoch": low[0],
                "sequence": low[1],
                "position": low[2],
                "other_epoch": high[0],
                "other_sequence": high[1],
                "other_position": high[2],
                "item": number,
                "first_offset": sure_first,
                "last_offset": sure_last,
            }
        for kind, counts in ((WANTED_COUNT, self._wanted), (SEEN_COUNT, self._seen)):
            for topic, number in counts.items():
                yield {"kind": kind, "topic": topic, "item": number}
