"""Plan of a repair: what to publish for the events that an audit found missing in Kafka.

A missing event is sent again as it is if Kafka has no newer event of its key. Else it would take
consumers back to an older state, so the key's current state is sent in its place: the row as of
the last journal that was shipped, or its end. Both are found out in the journals; what is known
is kept in a file of SQLite's, so memory does not grow with the findings nor with the history.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from uuid import UUID

from firebird_cdc.clock import now_us
from firebird_cdc.config import ConnectorConfig
from firebird_cdc.errors import JournalError, ReplayError
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.folder.notes import QUARANTINE
from firebird_cdc.journal.folder.segments import close_segments
from firebird_cdc.journal.format import DdlChange, JournalReader, RowChange
from firebird_cdc.journal.replay.repair.keys import NONE_AS_STORED, Keys
from firebird_cdc.journal.replay.repair.plan_file import (
    FAILED,
    NOWHERE,
    OPEN,
    ORIGINAL,
    PLACE,
    PRESENT,
    STATE,
    TABLES,
    UNSHIPPED,
)
from firebird_cdc.journal.replay.repair.scanner import Scanner
from firebird_cdc.journal.replay.repair.topics import TopicLook, TopicsClosed, events_since
from firebird_cdc.journal.replay.source.finder import JournalFinder
from firebird_cdc.journal.replay.source.snapshot_states import LeftOut, states_in_folder
from firebird_cdc.journal.replay.source.storage import folder_at
from firebird_cdc.journal.shipper.quarantine import note_or_none
from firebird_cdc.journal.shipper.repairs import (
    MOST_BYTES,
    MOST_EVENTS,
    MOST_NAMED,
    Missing,
    Origin,
    Repair,
    RepairFolder,
    RepairPoint,
    RepairWriter,
    repair_uuid,
)

_Event = tuple[int, int, int]  # a missing event: its number here, its pos, its journal here

_BATCH = 1000
_CACHE_KIB = 32 * 1024
_WINDOW = 1024 * 1024


@dataclass(slots=True)
class Batch:
    """A repair that was made. ``events``: the missing ones that each of its events stands for, by
    their numbers here, and, for a state, its key."""

    repair: Repair
    events: list[list[int]]
    keys: list[bytes | None]


class Plan:
    """Missing events of one audit, and what is known of them. A context manager.

    FOLDERS: where journals are looked for beside those that findings name; ARCHIVE is that of
    them which holds shipped ones only. ``notes``: sentences on what could not be looked at.
    """

    def __init__(
        self, config: ConnectorConfig, folders: Sequence[str], archive: str | None
    ) -> None:
        self.notes: set[str] = set()
        self._config = config
        self._folders = [folder_at(url) for url in folders]
        self._finder = JournalFinder(self._folders)
        self._archive = archive
        self._sql = sqlite3.connect("", isolation_level=None)  # a file that nobody else sees
        self._sql.executescript(
            f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-{_CACHE_KIB};"
            "PRAGMA temp_store=FILE;" + TABLES
        )
        self._quarantine = config.journal_directory / STATE_DIRECTORY / QUARANTINE
        self._left_out = LeftOut(states_in_folder(config.journal_directory))

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, *_: object) -> None:
        self._sql.close()
        close_segments()

    # The events

    def add(self, findings: Iterable[dict[str, Any]]) -> int:
        """Take in FINDINGS; returns how many events they name, each counted once."""
        self._sql.execute("BEGIN")
        for finding in findings:
            database, epoch, sequence, pos = (
                finding[name] for name in ("database", "epoch", "sequence", "position")
            )
            known = None not in (database, epoch, sequence, pos)
            self._sql.execute(
                "INSERT OR IGNORE INTO event (database, epoch, sequence, pos, place, file, status,"
                " why) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    database,
                    epoch,
                    sequence,
                    pos,
                    PLACE.pack(epoch, sequence, pos) if known else None,
                    finding["file"],
                    OPEN if known else FAILED,
                    None if known else "the finding does not say which event it is about",
                ),
            )
        self._sql.execute("COMMIT")
        return int(self._one("SELECT count(*) FROM event"))

    def _one(self, query: str, *values: object) -> Any:
        row = self._sql.execute(query, values).fetchone()
        return None if row is None else row[0]

    @property
    def databases(self) -> list[str]:
        """Databases whose events are missing."""
        rows = self._sql.execute(
            "SELECT DISTINCT database FROM event WHERE database IS NOT NULL ORDER BY 1"
        )
        return [row[0] for row in rows]

    def open_events(self, database: str) -> int:
        """Return the number of events of DATABASE that are still to be dealt with."""
        query = "SELECT count(*) FROM event WHERE database = ? AND status = ?"
        return int(self._one(query, database, OPEN))

    def set_earlier(self, repairs: Iterable[Repair], status: str) -> None:
        """Leave out the events of REPAIRS: they were sent EARLIER, or are WAITING."""
        for repair in repairs:
            for event in repair.events:
                for index, pos in event:
                    origin = repair.origins[index]
                    self._sql.execute(
                        "UPDATE event SET status = ? WHERE database = ? AND epoch = ?"
                        " AND sequence = ? AND pos = ? AND status = ?",
                        (status, repair.database, origin.epoch, origin.sequence, pos, OPEN),
                    )

    def fail(self, condition: str, why: str, *values: object) -> None:
        """Note WHY open events that fit CONDITION can't be repaired."""
        query = "UPDATE event SET status = ?, why = ? WHERE status = ? AND "
        self._sql.execute(query + condition, (FAILED, why, OPEN, *values))

    def results(self) -> Iterator[tuple[Any, ...]]:
        """Yield database, epoch, sequence, status, why and how many, in the order of history."""
        yield from self._sql.execute(
            "SELECT database, epoch, sequence, status, why, count(*) FROM event"
            " GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, min(pos), 4"
        )

    def counts(self) -> dict[str, int]:
        """Return the number of events by status."""
        rows = self._sql.execute("SELECT status, count(*) FROM event GROUP BY 1")
        return dict(rows.fetchall())

    # Where they are

    def locate(
        self,
        database: str,
        shipped: RepairPoint | None,
        ends: Mapping[str, Mapping[str, int]],
    ) -> None:
        """Find the journals of the open events, what they concern, and whether Kafka has them now.

        SHIPPED: the last place of the database that Kafka can have; ENDS: up to which offsets the
        audit has read topics, by topic and number of the partition. Raises ShipError if Kafka
        can't be read.
        """
        if shipped is not None:
            self._sql.execute(
                "UPDATE event SET status = ?, why = ? WHERE database = ? AND status = ?"
                " AND place > ?",
                (
                    UNSHIPPED,
                    "the shipper has not sent it yet, and will",
                    database,
                    OPEN,
                    PLACE.pack(*shipped),
                ),
            )
        keys, topics = Keys(self._config, database), TopicLook(self._config, database)
        wanted = self._sql.execute(
            "SELECT epoch, sequence, max(file) FROM event"
            " WHERE database = ? AND status = ? AND origin IS NULL GROUP BY 1, 2",
            (database, OPEN),
        ).fetchall()
        for epoch, sequence, file in wanted:
            where = "database = ? AND epoch = ? AND sequence = ?", (database, epoch, sequence)
            try:
                self._locate(keys, topics, database, RepairPoint(epoch, sequence), file)
            except FileNotFoundError:
                name = file or f"journal {sequence}"
                self.fail(where[0], f"{name} is not there any more", *where[1])
            except (JournalError, OSError, ReplayError) as error:
                self.fail(where[0], str(error), *where[1])
        self._leave_out_present(database, topics, ends)

    def _leave_out_present(
        self, database: str, look: TopicLook, ends: Mapping[str, Mapping[str, int]]
    ) -> None:
        """Leave out the events that came into the topics after the audit had read them."""
        since_us = self._one("SELECT min(commit_us) FROM origin WHERE database = ?", database)
        topics = dict.fromkeys(look.topics(), (since_us or 0) // 1000)
        try:
            for uuid, pos in events_since(self._config, topics, ends):
                self._sql.execute(
                    "UPDATE event SET status = ? WHERE pos = ? AND status = ?"
                    " AND origin = (SELECT id FROM origin WHERE uuid = ?)",
                    (PRESENT, pos, OPEN, uuid.bytes),
                )
        except TopicsClosed as error:
            self.notes.add(f"{error}; so what came into the topics since the audit is not seen")

    def _locate(
        self, keys: Keys, topics: TopicLook, database: str, place: RepairPoint, file: str | None
    ) -> None:
        if file is None:
            raise FileNotFoundError
        folder, name, reader = self._finder.open_file(file, NONE_AS_STORED)
        with reader:
            stamp, header = reader.stamp, reader.header
            path = folder.place(name)
            if reader.database != database or stamp is None or stamp[:2] != place[:2]:
                raise JournalError(path, -1, "it is not the journal that the audit has read")
            note = note_or_none(self._quarantine, header.uuid)
            left_out = self._left_out.tables_of(database, stamp.epoch, header.transaction)
            positions = dict(
                self._sql.execute(
                    "SELECT pos, id FROM event WHERE database = ? AND epoch = ? AND sequence = ?"
                    " AND status = ?",
                    (database, *place[:2], OPEN),
                )
            )
            found: list[tuple[int, list[bytes], int, int]] = []
            failed: list[tuple[int, str]] = []
            for change in reader.changes():
                pos = getattr(change, "pos", None)
                event = None if pos is None else positions.pop(pos, None)
                if pos is None or event is None:
                    continue
                if note is not None and note.reason_at(pos) is not None:
                    why = "it is in the quarantine; firebird-cdc journal retry sends it"
                    failed.append((event, why))
                elif isinstance(change, RowChange) and change.table.name in left_out:
                    failed.append((event, "the initial snapshot has it in its rows"))
                elif isinstance(change, RowChange):
                    topics.meet(reader, change)
                    digests = keys.sent(change)
                    found.append((event, digests, bool(digests), 0))
                elif isinstance(change, DdlChange):
                    topics.meet(reader, change)
                    found.append((event, [keys.of_statements], 1, 1))
                else:
                    failed.append((event, "it is a marked gap, so nothing of it was captured"))
            failed += [(event, "its journal has no such event") for event in positions.values()]
        # Now the journal is known to be sound to its end.
        self._sql.execute("BEGIN")
        origin = self._sql.execute(
            "INSERT INTO origin (database, epoch, sequence, uuid, number, commit_us, folder, name)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                database,
                *place[:2],
                header.uuid.bytes,
                header.transaction,
                stamp.commit_us,
                folder.url,
                name,
            ),
        ).lastrowid
        for event, digests, has_key, is_ddl in found:
            self._sql.execute(
                "UPDATE event SET origin = ?, has_key = ?, is_ddl = ? WHERE id = ?",
                (origin, has_key, is_ddl, event),
            )
            for digest in digests:
                self._sql.execute(
                    "INSERT OR IGNORE INTO row_key (hash, last, present) VALUES (?, ?, ?)",
                    (digest, NOWHERE, NOWHERE),
                )
                self._sql.execute(
                    "INSERT OR IGNORE INTO event_key VALUES (?, ?, 0)", (digest, event)
                )
        for event, why in failed:
            self.fail("id = ?", why, event)
        self._sql.execute("COMMIT")

    # What comes behind them

    def scanner(self, database: str) -> Scanner:
        """Return a scanner for newer events of the keys of DATABASE; ask once they are located."""
        first = self._one(
            "SELECT min(place) FROM event WHERE database = ? AND status = ?", database, OPEN
        )
        return Scanner(
            self._sql,
            Keys(self._config, database),
            database,
            RepairPoint(*PLACE.unpack(first)),
            [(folder, folder.url == self._archive) for folder in self._folders],
        )

    # What is to be sent

    def decide(self, database: str, scanner: Scanner) -> None:
        """Note which open events can't be repaired, as things are now.

        Where journals are missing that could tell, the topics are read. Raises ShipError if they
        can't be.
        """
        hole = scanner.last_hole()
        if hole is not None:
            place, what = hole
            self._look_into_topics(database, place)
            self.fail(
                f"database = ? AND has_key AND place < ? AND {_IN_DOUBT}",
                f"{what} not there, so it can't be told whether Kafka has newer events of its key,"
                " or what its row is now; put the journals back into a folder that is read"
                " (--journals) and repeat this",
                database,
                *[PLACE.pack(*place)] * 3,
            )
        self.fail(
            f"database = ? AND {_ONLY_IN_KAFKA}",
            "Kafka has a newer event of its key that is in no journal which is there; consumers"
            " have the key's current state from that one",
            database,
        )
        self.fail(
            f"database = ? AND is_ddl AND {_NEWER}",
            "it is a statement, and Kafka has newer ones, behind which it must not come",
            database,
        )

    def _look_into_topics(self, database: str, hole: RepairPoint) -> None:
        """Ask Kafka for the newest events of keys, where a journal that is missing, the last one
        at HOLE, could have one."""
        place = PLACE.pack(*hole)
        while True:
            rows = self._sql.execute(
                "SELECT event.id, event.pos, origin.id FROM event"  # noqa: S608 - conditions are ours
                " JOIN origin ON origin = origin.id WHERE event.database = ? AND status = ?"
                f" AND has_key AND NOT is_ddl AND place < ? AND {_IN_DOUBT}"
                " ORDER BY origin.id, event.pos LIMIT ?",
                (database, OPEN, place, place, place, MOST_EVENTS),
            ).fetchall()
            if not rows:
                return
            look = TopicLook(self._config, database)
            for origin, events in groupby(rows, key=lambda row: row[2]):
                self._add_keys(look, database, origin, {pos: event for event, pos, _ in events})
            try:
                found = list(look.newest(hole.epoch))
            except TopicsClosed as error:
                self.notes.add(str(error))
                return
            for digest, newest in found:
                # Where a message can't be read, nobody knows more than before.
                seen = None if newest is None else PLACE.pack(*newest)
                self._sql.execute(
                    "UPDATE row_key SET checked = ?, in_kafka = ?,"
                    " present = CASE WHEN present < ? THEN ? ELSE present END WHERE hash = ?",
                    (place, seen, seen or b"", seen, digest),
                )
            unread = look.unreadable()
            self.fail_keys(unread, "what Kafka has of its key can't be read: " + look.why)

    def _add_keys(
        self, look: TopicLook, database: str, origin: int, events: dict[int, int]
    ) -> None:
        """Have LOOK look for the keys of EVENTS, by their numbers in the journal ORIGIN."""
        url, name = self._sql.execute(
            "SELECT folder, name FROM origin WHERE id = ?", (origin,)
        ).fetchone()
        keys = Keys(self._config, database)
        with self._journal(url, name) as reader:
            for change in reader.changes():
                if isinstance(change, RowChange) and change.pos in events:
                    look.add(reader, change, keys.sent(change))

    def fail_keys(self, digests: Iterable[bytes], why: str) -> None:
        """Note WHY open events of these keys can't be repaired."""
        for digest in digests:
            self.fail("id IN (SELECT event FROM event_key WHERE hash = ?)", why, digest)

    def mark_all(self, database: str) -> None:
        """Give the open events the status that they would get, for a dry run."""
        self._sql.execute(
            f"UPDATE event SET status = CASE WHEN {_NEWER} THEN ? ELSE ? END"  # noqa: S608 - ours
            " WHERE database = ? AND status = ?",
            (STATE, ORIGINAL, database, OPEN),
        )

    def next_batch(
        self, database: str, token: RepairPoint | None, scanner: Scanner, files: RepairFolder
    ) -> Batch | None:
        """Make the next repair, None if nothing is left; originals first, in their order."""
        originals = self._sql.execute(
            "SELECT event.id, pos, origin, folder, name FROM event"  # noqa: S608 - ours
            " JOIN origin ON origin = origin.id WHERE event.database = ? AND status = ?"
            f" AND NOT {_NEWER} ORDER BY place LIMIT ?",
            (database, OPEN, MOST_EVENTS),
        ).fetchall()
        if originals:
            return self._make(
                database,
                token,
                scanner,
                files,
                [[event[:3]] for event in originals],
                [event[3:] for event in originals],
                lambda writer, reader, part: _copy(
                    writer, reader, [pos for _, pos, *_ in originals[part]]
                ),
            )
        keys = self._sql.execute(
            "SELECT DISTINCT hash, folder, name, row_key.pos FROM event"
            " JOIN event_key ON event = event.id JOIN row_key USING (hash)"
            " WHERE database = ? AND status = ? AND NOT sent ORDER BY last"
            " LIMIT ?",
            (database, OPEN, MOST_EVENTS),
        ).fetchall()
        if not keys:
            return None
        keys_of = Keys(self._config, database)
        return self._make(
            database,
            token,
            scanner,
            files,
            [self._missing_of(digest) for digest, *_ in keys],
            [(folder, name) for _, folder, name, *_ in keys],
            lambda writer, reader, part: _add_states(
                writer, reader, keys_of, [(digest, pos) for digest, _, _, pos in keys[part]]
            ),
            [digest for digest, *_ in keys],
        )

    def _missing_of(self, digest: bytes) -> list[_Event]:
        """The open events that one message of a key can stand for; another one has the others."""
        return self._sql.execute(
            "SELECT event.id, event.pos, origin FROM event_key JOIN event ON event = event.id"
            " WHERE hash = ? AND NOT sent AND status = ? ORDER BY place LIMIT ?",
            (digest, OPEN, MOST_NAMED),
        ).fetchall()

    def _origins(self, ids: Iterable[int]) -> tuple[dict[int, int], tuple[Origin, ...]]:
        """The journals IDS as a repair lists them, and the place of each there."""
        wanted = sorted(set(ids))
        made = []
        for number in wanted:
            uuid, *rest = self._sql.execute(
                "SELECT uuid, number, epoch, sequence, commit_us FROM origin WHERE id = ?",
                (number,),
            ).fetchone()
            made.append(Origin(UUID(bytes=uuid), *rest))
        return {number: index for index, number in enumerate(wanted)}, tuple(made)

    def _make(
        self,
        database: str,
        token: RepairPoint | None,
        scanner: Scanner,
        files: RepairFolder,
        stands_for: list[list[_Event]],
        places: list[tuple[str, str]],
        add: Callable[[RepairWriter, JournalReader, slice], int],
        keys: list[bytes] | None = None,
    ) -> Batch:
        """Make a repair of as many events as fit.

        STANDS_FOR: the missing events of each; PLACES: folder and name of the journal that each is
        written from, those of one journal together; ADD: writes a part of them, all from one
        journal, and returns how many fitted. KEYS: of each, if they are states.
        """
        indexes, origins = self._origins(origin for each in stands_for for _, _, origin in each)
        missing = [
            tuple(Missing(indexes[origin], pos) for _, pos, origin in each) for each in stands_for
        ]
        uuid = repair_uuid(database, token, origins, missing)
        taken = 0
        with RepairWriter(files, uuid, database, scanner.as_of) as writer:
            for place, group in groupby(places):
                end = taken + len(list(group))
                with self._journal(*place) as reader:
                    taken += add(writer, reader, slice(taken, end))
                if taken < end or writer.size >= MOST_BYTES:
                    break
            writer.finish(scanner.commit_us)
        repair = Repair(
            uuid,
            database,
            token,
            scanner.as_of,
            now_us(),
            origins,
            tuple(missing[:taken]),
            taken if keys is None else 0,
        )
        events = [[event for event, _, _ in each] for each in stands_for[:taken]]
        return Batch(repair, events, [None] * taken if keys is None else [*keys[:taken]])

    def _journal(self, url: str, name: str) -> JournalReader:
        """The journal that was there, wherever it went since."""
        return self._finder.open(folder_at(url), name, NONE_AS_STORED)[2]

    def sent(self, batch: Batch, *, status: str | None = None) -> None:
        """All of BATCH is in Kafka, or has another STATUS."""
        for events, key in zip(batch.events, batch.keys, strict=True):
            self._note_sent(events, key, status)

    def _note_sent(self, events: list[int], key: bytes | None, status: str | None) -> None:
        for event in events:
            if key is None:
                self._set(event, status or ORIGINAL)
                continue
            self._sql.execute(
                "UPDATE event_key SET sent = 1 WHERE hash = ? AND event = ?", (key, event)
            )
            left = "SELECT count(*) FROM event_key WHERE event = ? AND NOT sent"
            if not self._one(left, event):
                self._set(event, status or STATE)

    def _set(self, event: int, status: str) -> None:
        self._sql.execute(
            "UPDATE event SET status = ? WHERE id = ? AND status = ?", (status, event, OPEN)
        )

    def take_outcome(self, batch: Batch, taken: set[int], problems: dict[int, str]) -> None:
        """Of BATCH only the events TAKEN were sent; PROBLEMS: why others can't be."""
        for number, (events, key) in enumerate(zip(batch.events, batch.keys, strict=True), 1):
            if number in taken:
                self._note_sent(events, key, None)
            elif number in problems:
                for event in events:
                    self.fail("id = ?", problems[number], event)


def _copy(writer: RepairWriter, reader: JournalReader, positions: list[int]) -> int:
    """Copy events of a journal, and return how many fitted."""
    copied = 0
    for change in reader.changes():
        if getattr(change, "pos", None) != positions[copied]:
            continue
        assert isinstance(change, RowChange | DdlChange)
        writer.copy(change)
        copied += 1
        if copied == len(positions) or writer.size >= MOST_BYTES:
            break
    return copied


def _add_states(
    writer: RepairWriter, reader: JournalReader, keys_of: Keys, wanted: list[tuple[bytes, int]]
) -> int:
    """Add the rows of keys, given with the events of a journal that made them so; how many
    fitted."""
    added = 0
    for change in reader.changes():
        if not isinstance(change, RowChange):
            continue
        while added < len(wanted) and wanted[added][1] == change.pos:
            (each,) = [each for each in keys_of.of(change) if each.digest == wanted[added][0]]
            writer.state(change.table, each.row, is_gone=each.is_gone)
            added += 1
        if added == len(wanted) or writer.size >= MOST_BYTES:
            break
    return added


_NEWER = (
    "EXISTS (SELECT 1 FROM event_key AS k JOIN row_key AS r USING (hash)"
    " WHERE k.event = event.id AND r.present > event.place)"
)
"""SQL condition: Kafka has an event of a key of ``event`` that is newer, and was not missing."""

_IN_DOUBT = (
    "EXISTS (SELECT 1 FROM event_key AS k JOIN row_key AS r USING (hash)"
    " WHERE k.event = event.id AND r.last < ? AND coalesce(r.checked < ?, 1))"
)
"""SQL condition: a key of ``event`` may have newer events in journals that are not there: its last
one comes before a place, the last hole, and Kafka was not asked."""

_ONLY_IN_KAFKA = (
    "EXISTS (SELECT 1 FROM event_key AS k JOIN row_key AS r USING (hash)"
    " WHERE k.event = event.id AND r.in_kafka > r.last)"
)
"""SQL condition: Kafka has an event of a key of ``event`` that is newer than all in the
journals."""
