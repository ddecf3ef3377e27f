"""Says of each difference between journals and topics whether it is a fault, in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]

from firebird_cdc import __version__
from firebird_cdc.journal.replay.audit.findings import SCHEMA
from firebird_cdc.journal.replay.audit.kafka.message_form import ANNOUNCED
from firebird_cdc.journal.replay.audit.kafka.rendered import BEGIN_AT, END_AT, LEFT_OUT
from firebird_cdc.journal.replay.audit.kafka.topic_diff import LATER, PLACED, SILENT
from firebird_cdc.journal.replay.audit.kafka.topic_reader import FOREIGN
from firebird_cdc.journal.replay.source.arrow import Columns, arrow_schema
from firebird_cdc.journal.replay.source.bounds import HistoryPoint

CLASSIFIED: Columns = (*SCHEMA.items(), ("reason", "string"))
"""Columns of what `Classifier` says: those of findings, and why one is excused."""

Classification = tuple[str, str | None, str | None]
"""Kind, why it is excused (the kind begins with a minus then), sentence."""


@dataclass(frozen=True)
class Facts:
    """Facts that decide whether a difference is a fault; they go to the tasks that classify.

    ``ends``: by database, up to where its events have to be in Kafka, and whether the offset
    topic says so. ``read``: by database and epoch, the first and the last sequence that was read.
    ``last_epochs``: by database, of the whole history and of what is in Kafka. ``trimmed``: by
    topic, the partitions whose beginning retention has taken. ``topics``: those that exist.
    ``horizons``, ``offsets``: the first event that was matched of a database in a partition, and
    the first offset in a partition. ``begins``: by topic, partition and database, for each epoch
    the first offset that was matched. ``expected``: topics that events are sent to. ``is_whole``:
    no journal is missing, so a message that does not tell where it is from is of none. Else
    ``is_dense``: none is missing in the last epoch of the range; ``has_begin``, ``has_end``:
    nothing is in Kafka from before it or behind it; ``sure``: by topic and partition, from where
    to where all is in it. ``is_routed``: transforms may send events to topics of others.
    """

    ends: dict[str, tuple[HistoryPoint, bool]]
    read: dict[str, dict[int, tuple[int, int]]]
    last_epochs: dict[str, int]
    trimmed: dict[str, tuple[int, ...]]
    topics: frozenset[str]
    compacted: frozenset[str]
    horizons: dict[tuple[str, int, str], HistoryPoint]
    offsets: dict[tuple[str, int], int]
    begins: dict[tuple[str, int, str], dict[int, int]]
    expected: frozenset[str]
    is_dense: bool
    has_begin: bool
    has_end: bool
    sure: dict[tuple[str, int], tuple[int, int]]
    is_routed: bool

    @property
    def is_whole(self) -> bool:
        """Tell whether the journals that were read are all that there ever were."""
        return self.is_dense and self.has_begin and self.has_end


class Classifier:
    """Says of each difference what it is: a finding with its sentence, or why it is none."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(CLASSIFIED)
        for batch in batches:
            found = [
                {**row, "kind": kind, "reason": reason, "what": what}
                for row in batch.to_pylist()
                for kind, reason, what in [self._classify(row)]
            ]
            for row in found:
                if row["position"] in (BEGIN_AT, END_AT):
                    row["position"] = None
                if row["epoch"] is None:
                    row["epoch"] = row["file_epoch"]
                if row["kind"] == "missing event":
                    row["offset"] = None
                if row["partition"] is not None and row["partition"] < 0:
                    row["partition"] = None
            yield pa.RecordBatch.from_pylist(found, schema=schema)

    def _classify(self, row: dict[str, Any]) -> Classification:
        """Return the kind of ROW, why it is excused, and a sentence."""
        classify: Callable[[dict[str, Any]], Classification]
        classify = {
            "missing": self._missing,
            "extra": self._extra,
            "doubled": self._doubled,
            "altered": self._altered,
            "block": self._altered,
            "order": self._order,
            "quarantined": self._quarantined,
            "falsified": self._falsified,
            PLACED: self._placed,
            "loose": self._redelivered,
        }[row["kind"]]
        return classify(row)

    def _is_due(self, row: dict[str, Any]) -> str | None:
        """Return the reason why an event need not be in its topic; None: it has to be."""
        facts = self._facts
        place = row["epoch"], row["sequence"], row["position"]
        end = facts.ends.get(row["database"])
        if end is None or place > end[0]:
            return "not shipped"
        topic = row["topic"]
        trimmed = facts.trimmed.get(topic, ())
        if row["partition"] >= 0:
            trimmed = tuple(part for part in trimmed if part == row["partition"])
        for part in trimmed:
            horizon = facts.horizons.get((topic, part, row["database"]))
            if horizon is None or place <= horizon:
                return "retention"
        return None

    def _is_superseded(self, row: dict[str, Any]) -> str | None:
        """Return ``compaction`` if that may have removed an event; None: it has not."""
        if row["has_later"]:
            return "compaction"
        if row["newest_offset"] is None:
            return None
        newest = {**row, "epoch": None, "offset": row["newest_offset"], "note": None}
        if row["newest_sequence"] is None:
            first = self._facts.offsets.get((row["topic"], row["partition"]))
            is_older = first is not None and row["newest_offset"] < first
        else:
            number = row["epoch"], row["sequence"]
            epochs = self._possible_epochs(newest)
            is_older = all((epoch, row["newest_sequence"]) <= number for epoch in epochs)
        return None if is_older else "compaction"

    def _missing(self, row: dict[str, Any]) -> Classification:
        excuse = self._is_due(row) or self._is_superseded(row)
        if excuse is not None:
            return "-missing", excuse, None
        return (
            "missing event",
            None,
            f"{_event(row)} is not in topic {row['topic']}"
            + ("" if row["topic"] in self._facts.topics else ", which does not exist"),
        )

    def _doubled(self, row: dict[str, Any]) -> Classification:
        if not self._is_told(row):
            return "-doubled", "no place", None
        return "doubled event", None, f"{_event(row)} is more than once in {_at(row)}"

    def _is_told(self, row: dict[str, Any]) -> bool:
        """Tell whether the message, or all of the equal ones of which one is too many, are of
        events in the range: they say so, or their places do."""
        facts, first, last = self._facts, row["first_offset"], row["last_offset"]
        if row["note"] != SILENT or facts.is_whole:
            return True
        if first is None or not facts.is_dense:
            return False
        sure = facts.sure.get((row["topic"], row["partition"]))
        return (facts.has_begin or (sure is not None and sure[0] <= first)) and (
            facts.has_end or (sure is not None and last <= sure[1])
        )

    def _altered(self, row: dict[str, Any]) -> Classification:
        if not self._is_told(row):  # it may be another event, and this one is missing
            return self._missing(row)
        if row["placed"] is not None:
            return self._placed(
                row, "; that was under another limit or option than the one in force"
            )
        if row["is_counted_otherwise"] and (row["kind"] == "block" or row["position"] == END_AT):
            return "-altered", "counts", None
        if row["kind"] == "block":
            what = "another number in its transaction"
        else:
            what = "another content than its journal gives it"
        by = _BY_LATER if row["note"] == LATER else ""
        return "altered event", None, f"{_event(row)} has {what} in {_at(row)}{by}"

    def _order(self, row: dict[str, Any]) -> Classification:
        other = {
            "table": None,
            "position": row["other_position"],
            "sequence": row["other_sequence"],
            "transaction": row["other_transaction"],
        }
        return (
            "order",
            None,
            f"{_event(row)} stands behind {_event(other)} of the same key in {_at(row)}",
        )

    def _quarantined(self, row: dict[str, Any]) -> Classification:
        return "quarantined", None, f"{_event(row)} was not sent: {row['note']}"

    def _falsified(self, row: dict[str, Any]) -> Classification:
        if row["placed"] is not None:
            return self._placed(row, "; by the options in force it would not be sent")
        return (
            "altered event",
            None,
            f"{_event(row)} is in {_at(row)}, but what its journal has can't be sent:"
            f" {row['note']}. So a value was replaced, by null as earlier versions did, or the"
            " message was made with other options",
        )

    def _placed(self, row: dict[str, Any], but: str = "") -> Classification:
        what = f"{_event(row)} has placeholders in {_at(row)}, as values were too large:"
        rest = f"{but}, so the rest of it was not compared" if but else ""
        return "placeholder", None, f"{what} {_fields(row['placed'])}{rest}"

    def _redelivered(self, row: dict[str, Any]) -> Classification:
        how = (
            "was sent again as a repair"
            if (row["note"] or "").startswith("repair:")
            else ("was left out at first and redelivered later")
        )
        return "late", None, f"{_event(row)} {how}, in {_at(row)}"

    def _extra(self, row: dict[str, Any]) -> Classification:
        if row["note"] == LEFT_OUT:
            what = f"{_event(row)} is in {_at(row)}, but the initial snapshot has it in its rows"
            return "unknown event", None, what
        excuse = self._excuse(row)
        if excuse is not None:
            return "-unknown", excuse, None
        note = row["note"] or ""
        if row["journal"] is None:
            what = "has a message that no journal asks for"
        else:
            event = _event(row, with_key=False)
            what = f"has a message that says it is {event}, which the journals do not know"
        by = (
            f"; it names the server {note.removeprefix(FOREIGN)}"
            if note.startswith(FOREIGN)
            else ""
        )
        key = f"; key {row['key']}" if row["key"] is not None else ""
        return "unknown event", None, f"{_at(row)} {what}{key}{by}"

    def _excuse(self, row: dict[str, Any]) -> str | None:
        """Return the reason why a message that no journal asks for is no fault; None: it is one."""
        facts = self._facts
        if (row["note"] or "").startswith(FOREIGN) and facts.is_routed:
            return "other server"
        if row["is_unread"]:
            return "unread"
        if row["journal"] is None:
            return None if facts.is_whole else self._excuse_by_offset(row)
        if row["database"] not in facts.read:
            return "other database"
        if row["file"] is None:
            return self._excuse_by_number(row)
        if not row["is_in_range"]:
            return "outside"
        return None if row["topic"] in facts.expected else "not sent now"

    def _excuse_by_number(self, row: dict[str, Any]) -> str | None:
        """Return the same for one whose journal is not here, by the journals that have its number.

        One of an earlier version does not tell its epoch: it may be of any that has no journal of
        the number.
        """
        excuses = set()
        for epoch in self._possible_epochs(row):
            excuse = self._beyond(row["database"], (epoch, row["sequence"]))
            if epoch not in (row["epochs_of_number"] or ()):
                return excuse or "missing journal"
            excuses.add(excuse)
        return None if None in excuses else min(filter(None, excuses))

    def _possible_epochs(self, row: dict[str, Any]) -> range:
        """Return the epochs that a message can be of: the one that it tells. Where it tells none:
        events of a database stand in their order in a partition, so behind the first event of an
        epoch there is none of an older one."""
        if row["epoch"] is not None:
            return range(row["epoch"], row["epoch"] + 1)
        facts, first = self._facts, 0
        note = row["note"]
        if note is None or note.startswith(FOREIGN):  # the others came out of their order
            begins = facts.begins.get((row["topic"], row["partition"], row["database"]), {})
            first = max((e for e, offset in begins.items() if offset < row["offset"]), default=0)
        return range(first, facts.last_epochs[row["database"]] + 1)

    def _beyond(self, database: str, number: tuple[int, int]) -> str | None:
        """Return ``before`` or ``after`` for an epoch and sequence outside those read, or None."""
        read = self._facts.read[database]
        low, high = min(read), max(read)
        if number < (low, read[low][0]):
            return "before"
        return "after" if number > (high, read[high][1]) else None

    def _excuse_by_offset(self, row: dict[str, Any]) -> str | None:
        """Return the same for one that does not say where it is from: by its place in the
        partition."""
        first = self._facts.offsets.get((row["topic"], row["partition"]))
        if first is None or row["offset"] < first:
            return "before"
        return "no place"


_BY_LATER = (
    f"; a later version than this one, {__version__}, made it, which may write another form:"
    " audit with that version"
)


def _event(row: Mapping[str, Any], *, with_key: bool = True) -> str:
    """A few words that name an event."""
    position = row["position"]
    if row.get("op") == ANNOUNCED:
        what = "the announcement of a new epoch in the journal"
    elif position == END_AT:
        what = "the END"
    elif position == BEGIN_AT:
        what = "the BEGIN"
    else:
        what = f"event {position}"
    words = f"{what} of sequence {row['sequence']} (transaction {row['transaction']})"
    if row["table"] is not None:
        words = f"{row['table']}: {words}"
    if with_key and row.get("key") is not None:
        words += f", key {row['key']},"
    return words


def _fields(placed: str) -> str:
    """The fields that a message names in its header: ``before.BODY, after.BODY``."""
    try:
        told = json.loads(placed).items()
        return ", ".join(f"{image}.{name}" for image, names in told for name in names)
    except (ValueError, AttributeError, TypeError):
        return placed


def _at(row: Mapping[str, Any]) -> str:
    return f"topic {row['topic']}, partition {row['partition']}, offset {row['offset']}"
