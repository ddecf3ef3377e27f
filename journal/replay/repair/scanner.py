"""Reading of the journals behind the first missing event, for newer events of the keys."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress

from firebird_cdc.errors import JournalError
from firebird_cdc.journal.folder.segments import SEGMENT_NAME, database_digest
from firebird_cdc.journal.format import DdlChange, JournalReader, RowChange, SharedJournal
from firebird_cdc.journal.replay.repair.keys import NONE_AS_STORED, Keys
from firebird_cdc.journal.replay.repair.plan_file import (
    EARLIER,
    PLACE,
    PRESENT,
    UNSHIPPED,
    WAITING,
)
from firebird_cdc.journal.replay.source.finder import JournalFinder
from firebird_cdc.journal.replay.source.storage import (
    JOURNAL_SUFFIX,
    Folder,
    folder_at,
    name_in,
)
from firebird_cdc.journal.shipper.repairs import WHOLE, RepairPoint


class Scanner:
    """Reads the journals behind the first missing event for newer events of the keys.

    ``as_of``: the last place that was read. May be repeated: what was read is not read again.
    """

    def __init__(
        self,
        sql: sqlite3.Connection,
        keys: Keys,
        database: str,
        first: RepairPoint,
        folders: list[tuple[Folder, bool]],
    ) -> None:
        self.as_of = RepairPoint(first.epoch, first.sequence)
        self.commit_us = 0
        self._newest = RepairPoint(0, 0, 0)
        self._sql = sql
        self._keys = keys
        self._database = database
        self._digest = database_digest(database)
        self._first = first
        # One that went to another folder is met there.
        self._finder = JournalFinder(())
        self._folders = folders
        self._seen: set[tuple[str, str]] = set()
        self._found: dict[int, bytearray] = {}
        self._damaged = ""

    def read(self, shipped: RepairPoint | None) -> None:
        """Read on. SHIPPED: the last place that Kafka can have; the archive may know more."""
        if self.as_of < (shipped or self.as_of):
            assert shipped is not None
            self.as_of = shipped
        self._sql.execute("BEGIN")
        for url, name in self._sql.execute(
            "SELECT folder, name FROM origin WHERE database = ?", (self._database,)
        ).fetchall():
            self._look(folder_at(url), name, None)
        for folder, is_archive in self._folders:
            limit = None if is_archive else shipped
            for name in self._names(folder):
                self._look(folder, name, limit)
        self._sql.execute("COMMIT")

    def _names(self, folder: Folder) -> Iterator[str]:
        names = []
        with suppress(FileNotFoundError):
            names = sorted(entry.name for entry in folder.entries())
        for name in names:
            if (folder.url, name) in self._seen:
                continue
            if name.endswith(JOURNAL_SUFFIX):
                yield name
            elif (match := SEGMENT_NAME.fullmatch(name)) is not None:
                digest, epoch, _, last = match.groups()
                place = int(epoch), int(last)
                if digest == self._digest and place >= self._first[:2]:
                    with suppress(FileNotFoundError):
                        members = folder.members(name)
                        yield from (f"{name}/{member}" for member, _ in members)
                self._seen.add((folder.url, name))

    def _look(self, folder: Folder, name: str, limit: RepairPoint | None) -> None:
        """Read journal NAME if it is one of ours, up to LIMIT."""
        if (folder.url, name) in self._seen:
            return
        try:
            with folder.open_journal(name, NONE_AS_STORED) as opened:
                if isinstance(opened, SharedJournal):
                    is_done = self._look_at_all(folder, name, opened, limit)
                else:
                    is_done = self._look_at(folder, name, opened, limit)
                if not is_done:
                    return
        except FileNotFoundError:
            if "/" not in name:
                places = (found for _, found in self._finder.elsewhere(folder, name))
                if (packed := next((each for each in places if each != name), None)) is not None:
                    self._look(folder, packed, limit)
            return
        except JournalError as error:
            self._damaged = self._damaged or str(error)
        if limit is None or limit.pos == WHOLE:
            self._seen.add((folder.url, name))

    def _look_at_all(
        self, folder: Folder, name: str, journal: SharedJournal, limit: RepairPoint | None
    ) -> bool:
        """As `_look_at`, of all transactions of a journal that are as new as the first missing."""
        places = [each for each in journal.places if RepairPoint(*each.stamp[:2]) >= self._first]
        is_done = True
        for place, reader in journal.readers(places, NONE_AS_STORED):
            if isinstance(reader, JournalError):
                self._damaged = self._damaged or str(reader)
                continue
            with reader:
                try:
                    is_done &= self._look_at(folder, name_in(name, place), reader, limit)
                except JournalError as error:
                    self._damaged = self._damaged or str(error)
        return is_done

    def _look_at(
        self, folder: Folder, name: str, reader: JournalReader, limit: RepairPoint | None
    ) -> bool:
        """Read a journal up to LIMIT, if it is one of ours; return whether it is done with: it is
        committed, and no newer than that."""
        stamp = reader.stamp
        if stamp is None:
            return False
        place = RepairPoint(*stamp[:2])
        is_ours = place >= self._first and reader.database == self._database
        if is_ours and limit is not None and place[:2] > limit[:2]:
            return False  # not shipped yet
        if is_ours:
            self._take(folder, name, reader, place, limit)
            if place >= self._newest:
                self._newest, self.commit_us = place, stamp.commit_us
            if limit is None:
                self.as_of = max(self.as_of, place)
        return True

    def _take(
        self,
        folder: Folder,
        name: str,
        reader: JournalReader,
        place: RepairPoint,
        limit: RepairPoint | None,
    ) -> None:
        sql, keys = self._sql, self._keys
        missing = {
            row[0]
            for row in sql.execute(
                "SELECT pos FROM event WHERE database = ? AND epoch = ? AND sequence = ?"
                " AND status NOT IN (?, ?, ?, ?)",
                (self._database, *place[:2], EARLIER, WAITING, UNSHIPPED, PRESENT),
            )
        }
        last = limit.pos if limit is not None and limit[:2] == place[:2] else WHOLE
        for change in reader.changes():
            if isinstance(change, RowChange):
                pos = change.pos
                effects = [(each.digest, each.is_sent) for each in keys.of(change)]
            elif isinstance(change, DdlChange):
                pos, effects = change.pos, [(keys.of_statements, True)]
            else:
                continue
            if pos > last:
                break
            here = PLACE.pack(*place[:2], pos)
            for digest, is_sent in effects:
                sql.execute(
                    "UPDATE row_key SET last = ?, folder = ?, name = ?, pos = ?"
                    " WHERE hash = ? AND last < ?",
                    (here, folder.url, name, pos, digest, here),
                )
                if is_sent and pos not in missing:
                    sql.execute(
                        "UPDATE row_key SET present = ? WHERE hash = ? AND present < ?",
                        (here, digest, here),
                    )
        self._mark(place)

    def _mark(self, place: RepairPoint) -> None:
        start = self._first.sequence if place.epoch == self._first.epoch else 1
        found = self._found.setdefault(place.epoch, bytearray())
        index = place.sequence - start
        if index >= len(found):
            found.extend(bytes(index + 1 - len(found)))
        found[index] = 1

    def last_hole(self) -> tuple[RepairPoint, str] | None:
        """The last journal behind the first missing event that could not be read, and a text that
        says so; None if there is no such hole."""
        for epoch in sorted({self.as_of.epoch, *self._found}, reverse=True):
            if not self._first.epoch <= epoch <= self.as_of.epoch:
                continue
            found = self._found.get(epoch, bytearray())
            start = self._first.sequence if epoch == self._first.epoch else 1
            length = self.as_of.sequence - start + 1 if epoch == self.as_of.epoch else len(found)
            found = found[:length].ljust(length, b"\0")
            last = found.rfind(b"\0")
            if last >= 0:
                first = found.rfind(b"\1", 0, last) + 1
                numbers = (
                    f"journal {start + last} of epoch {epoch} is"
                    if first == last
                    else f"journals {start + first} to {start + last} of epoch {epoch} are"
                )
                if self._damaged:
                    numbers += f" damaged ({self._damaged}) or"
                return RepairPoint(epoch, start + last), numbers
        return None
