"""The archive of shipped journals: small ones are packed into segments, old ones are removed.

What a segment is, `firebird_cdc.journal.folder.segments` tells.
"""

from __future__ import annotations

import fcntl
import os
import threading
import zipfile
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from time import CLOCK_BOOTTIME, clock_gettime, monotonic, time
from typing import BinaryIO, NamedTuple
from uuid import uuid4

import logbook

from firebird_cdc import access
from firebird_cdc.errors import JournalError
from firebird_cdc.journal.folder.disposal import copy_file
from firebird_cdc.journal.folder.durable import sync_directory
from firebird_cdc.journal.folder.segments import (
    SEGMENT_JOURNALS,
    SEGMENT_NAME,
    SEGMENT_SUFFIX,
    SMALL_BYTES,
    database_digest,
    is_segment_name,
    list_segment,
    pack,
    segment_name,
)
from firebird_cdc.journal.format import SharedJournal, open_any
from firebird_cdc.journal.shipper.inbox.watcher import is_journal_name
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics

_log = logbook.Logger("firebird_cdc.journal.shipper.tasks.archive")

PACK_AFTER_S = 3600.0
"""So old, journals are packed though they don't fill a segment."""

_LOOK_S = 10.0
_SHARE = 20  # of the time that looking takes, at least, passes before the next look
_LOOKED_AT = 20_000  # journals in one look, beside those that are known to stay
_ABANDONED_S = 3600.0
_NICENESS = 10
_JUMP_S = 600.0  # of the clock: beyond that it goes by another time
_SETTLED_S = 3600.0

_PART = ".part"


class _Journal(NamedTuple):
    """One small journal that lies in the archive by itself; sorts in the order of its history.

    ``last``: its last sequence, and ``commit_us`` its last commit, where transactions share it.
    """

    database: str
    epoch: int
    sequence: int
    name: str
    length: int
    commit_us: int
    last: int
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits of what is kept: milliseconds after the commit, and bytes; 0: all is kept."""

    ms: int
    bytes: int


class ArchiveKeeper:
    """Packs and removes, in a thread of its own and at low priority; a periodic task of the
    shipper.

    ``segment_bytes``: how much one segment takes, 0 to pack nothing. Of several keepers of one
    archive, one works at a time.
    """

    def __init__(
        self, archive: Path, segment_bytes: int, retention: Retention, statistics: Statistics
    ) -> None:
        self._archive = archive
        self._segment_bytes = segment_bytes
        self._retention = retention
        self._statistics = statistics
        self._known: dict[str, _Journal | None] = {}
        self._worker: threading.Thread | None = None
        self._stopping = threading.Event()
        self._took_s = 0.0
        self._trouble: str | None = None
        self._clock = time(), clock_gettime(CLOCK_BOOTTIME)
        self._believed_at = 0.0  # CLOCK_BOOTTIME
        self._wrong: dict[Path, str] = {}  # segments, and what is wrong with each
        self._told: dict[Path, str] = {}  # the same of the look before

    def turn(self, now: float) -> float:
        """Look after the archive if nobody does; return when to be called again (monotonic)."""
        if self._worker is not None:
            if self._worker.is_alive():
                return now + 1.0
            self._worker = None
            self._tell()
            return now + max(_LOOK_S, _SHARE * self._took_s)
        self._worker = threading.Thread(target=self._work, name="fbc-archive", daemon=True)
        self._worker.start()
        return now + 1.0

    def close(self) -> None:
        """End soon. What is begun is left as after a crash: nothing is lost."""
        self._stopping.set()

    def _work(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        began = monotonic()
        try:
            self.look()
            self._trouble = next(iter(self._wrong.values()), None)
        except Exception as error:
            if not isinstance(error, OSError):
                _log.exception("{}: maintaining the archive failed", self._archive)
            self._trouble = (
                f"the archive {self._archive} can't be maintained: {error}; journals are still"
                " archived, perhaps unpacked, and perhaps none is removed for its age"
            )
        self._took_s = monotonic() - began

    def _tell(self) -> None:
        """Report, on the shipper's thread, how the last look went."""
        subject = "archive"
        if self._trouble is None:
            self._statistics.clear(subject)
        else:
            self._statistics.trouble(subject, "warning", self._trouble)

    def look(self) -> None:
        """Pack what is worth it, then remove what is too old or too much, also where nothing can be
        packed, as a disk is full. Raises OSError."""
        try:
            lock = os.open(self._archive, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # nothing was archived yet
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            self._remove_parts()
            try:
                if self._segment_bytes:
                    self._pack()
            finally:
                self._retain()
        finally:
            os.close(lock)

    def _remove_parts(self) -> None:
        """Remove what a keeper left that was killed."""
        with os.scandir(self._archive) as entries:
            for entry in entries:
                is_part = entry.name.endswith(SEGMENT_SUFFIX + _PART)
                if is_part and time() - entry.stat().st_mtime > _ABANDONED_S:
                    Path(entry.path).unlink(missing_ok=True)

    # Packing

    def _pack(self) -> None:
        journals = sorted(self._small_journals())
        packed = self._packed_already(journals)
        for _, history in groupby(journals, key=lambda journal: journal[:2]):
            waiting = [journal for journal in history if journal.name not in packed]
            for batch in self._batches(waiting):
                if self._stopping.is_set():
                    return
                self.write_segment(batch)

    def _small_journals(self) -> Iterator[_Journal]:
        """The journals that may be packed; what is told of each is read once."""
        names: list[str] = []
        count = 0
        with os.scandir(self._archive) as entries:
            for entry in entries:
                if not is_journal_name(entry.name):
                    continue
                # Those that stay take no other's turn, however many they become.
                stays = entry.name in self._known and self._known[entry.name] is None
                if stays or count < _LOOKED_AT:
                    names.append(entry.name)
                    count += not stays
        self._known = {name: self._known[name] for name in names if name in self._known}
        for name in names:
            if name not in self._known:
                self._known[name] = self._facts(self._archive / name)
            journal = self._known[name]
            if journal is not None:
                yield journal

    def _facts(self, path: Path) -> _Journal | None:
        """Return the facts that packing needs of a journal, None if it stays as it is."""
        try:
            with open_any(path) as opened:
                if isinstance(opened, SharedJournal):
                    return _shared_facts(opened, path)
                stamp = opened.stamp
                if stamp is None or stamp.journal_length > SMALL_BYTES:
                    return None
                if opened.size < stamp.journal_length:
                    _log.warning("{}: can't be packed, and stays as it is: it ends early", path)
                    return None
                return _Journal(
                    opened.database,
                    stamp.epoch,
                    stamp.sequence,
                    path.name,
                    stamp.journal_length,
                    stamp.commit_us,
                    stamp.sequence,
                )
        except FileNotFoundError:
            return None
        except JournalError as error:
            _log.warning("{}: can't be packed, and stays as it is: {}", path, error)
            return None

    def _batches(self, journals: list[_Journal]) -> Iterator[list[_Journal]]:
        """Yield what makes one segment each; the rest waits for more, though not for ever."""
        batch: list[_Journal] = []
        size = 0
        for journal in journals:
            batch.append(journal)
            size += journal.length
            if size >= self._segment_bytes or len(batch) == SEGMENT_JOURNALS:
                yield batch
                batch, size = [], 0
        oldest_us = min((journal.commit_us for journal in batch), default=0)
        if len(batch) > 1 and time() - oldest_us / 1e6 > PACK_AFTER_S:
            yield batch

    def _packed_already(self, journals: Sequence[_Journal]) -> set[str]:
        """Remove the journals that a segment holds as well, after a crash. Returns their names,
        and those of journals that must stay because of a segment that is damaged."""
        left = set()
        self._told, self._wrong = self._wrong, {}
        histories = {
            (database_digest(database), epoch): list(history)
            for (database, epoch), history in groupby(journals, key=lambda journal: journal[:2])
        }
        for segment in self._segments():
            match = SEGMENT_NAME.fullmatch(segment.name)
            assert match is not None
            epoch, first, last = map(int, match.groups()[1:])
            history = histories.get((match[1], epoch), [])
            inside = history[
                bisect_left(history, first, key=_sequence) : bisect_right(
                    history, last, key=_sequence
                )
            ]
            if not inside:
                continue
            try:
                left |= self._sort_out(segment, inside)
            except (JournalError, zipfile.BadZipFile, zlib.error, EOFError) as error:
                left |= {journal.name for journal in inside}
                self._tell_wrong(
                    segment,
                    f"{segment} is damaged ({error}), so {len(inside)} journals that may be in it"
                    " stay beside it; move it away to have them packed",
                )
        return left

    def _tell_wrong(self, segment: Path, text: str) -> None:
        self._wrong[segment] = text
        if segment not in self._told:
            _log.error("{}", text)

    def _sort_out(self, segment: Path, journals: Sequence[_Journal]) -> set[str]:
        """Remove those of JOURNALS that SEGMENT holds; return their names."""
        members = {name for name, _ in list_segment(segment)}
        removed = set()
        is_named_anew = False
        for journal in journals:
            if journal.name not in members:
                continue
            if _member(segment, journal.name) == self._content(journal):
                if not is_named_anew:
                    self._name_anew(segment)
                    is_named_anew = True
                (self._archive / journal.name).unlink()
            else:
                _log.error(
                    "{}: {} holds another journal of this name; move one of them away",
                    self._archive / journal.name,
                    segment,
                )
            removed.add(journal.name)
        return removed

    def _name_anew(self, segment: Path) -> None:
        """Have a copy of SEGMENT in its place: who made it may have died before the sync of its
        name, or that failed, and another one would pass over it."""
        part = self._new_part()
        try:
            copy_file(segment, part)
            made = segment.stat()
            os.utime(part, ns=(made.st_atime_ns, made.st_mtime_ns))
            part.replace(segment)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        sync_directory(self._archive)

    def _new_part(self) -> Path:
        return self._archive / f".{uuid4()}{SEGMENT_SUFFIX}{_PART}"

    def _segments(self) -> list[Path]:
        with os.scandir(self._archive) as entries:
            return [Path(entry.path) for entry in entries if is_segment_name(entry.name)]

    def _content(self, journal: _Journal) -> bytes:
        if journal.is_shared:
            with SharedJournal(self._archive / journal.name) as shared:
                return shared.without_undone()
        with (self._archive / journal.name).open("rb") as file:
            content = file.read(journal.length)
        if len(content) < journal.length:
            raise OSError(f"{self._archive / journal.name} ends early")
        return content

    def write_segment(self, journals: list[_Journal]) -> None:
        """Make one segment of JOURNALS, and remove them once it is on disk and reads back."""
        first, last = journals[0], max(journal.last for journal in journals)
        name = segment_name(first.database, first.epoch, first.sequence, last)
        target = self._archive / f"{name}{SEGMENT_SUFFIX}"
        if target.exists():  # and was found not to hold them
            self._tell_wrong(
                target,
                f"{target} holds other journals with the numbers of {len(journals)} that stay"
                " beside it; move it away to have them packed, and see which of both are right",
            )
            return
        part = self._new_part()
        try:
            with _new_file(part) as file:
                pack(file, ((each.name, each.commit_us, self._content(each)) for each in journals))
                file.flush()
                os.fsync(file.fileno())
            with zipfile.ZipFile(part) as content:
                broken = content.testzip()
            if broken is not None:
                raise OSError(f"{part} does not read back what was written ({broken})")
            committed_ns = 1000 * max(journal.commit_us for journal in journals)
            os.utime(part, ns=(committed_ns, committed_ns))
            part.rename(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        sync_directory(self._archive)
        for journal in journals:
            (self._archive / journal.name).unlink(missing_ok=True)
        _log.info("{} journals of {} are in {} now", len(journals), first.database, target)

    # Retention

    def _is_clock_believed(self) -> bool:
        """Tell whether the time of day may decide what is removed for good: not soon after the
        clock was set ahead, until it is set back."""
        clock = time(), clock_gettime(CLOCK_BOOTTIME)
        ahead_s = (clock[0] - self._clock[0]) - (clock[1] - self._clock[1])
        self._clock = clock
        if ahead_s > _JUMP_S:
            self._believed_at = clock[1] + _SETTLED_S
            _log.warning(
                "the clock was set {:.0f} s ahead: for {:.0f} minutes nothing is removed from {}"
                " for its age, so that you can set it right",
                ahead_s,
                _SETTLED_S / 60,
                self._archive,
            )
        elif ahead_s < -_JUMP_S:
            self._believed_at = 0.0
        return clock[1] >= self._believed_at

    def _retain(self) -> None:
        if not self._retention.ms and not self._retention.bytes:
            return
        kept = []
        with os.scandir(self._archive) as entries:
            for entry in entries:
                if is_journal_name(entry.name) or is_segment_name(entry.name):
                    status = entry.stat()
                    kept.append((status.st_mtime, status.st_blocks * 512, entry.name))
        kept.sort()
        total = sum(size for _, size, _ in kept)
        by_age = self._retention.ms and self._is_clock_believed()
        oldest = time() - self._retention.ms / 1000 if by_age else 0.0
        most = self._retention.bytes or total
        removed = 0
        for modified, size, name in kept:
            if modified >= oldest and total <= most:
                break
            (self._archive / name).unlink(missing_ok=True)
            total -= size
            removed += 1
        if removed:
            _log.info(
                "{}: {} files were removed, as connector.journal.archive.retention.* says",
                self._archive,
                removed,
            )


def _shared_facts(journal: SharedJournal, path: Path) -> _Journal | None:
    """Return the facts of a journal that transactions share, None if it is a large one's own."""
    stamps = [place.stamp for place in journal.places]
    length = sum(stamp.journal_length for stamp in stamps)
    is_large = len(stamps) == 1 and length > SMALL_BYTES
    if not stamps or is_large or len({stamp.epoch for stamp in stamps}) > 1:
        return None
    first, last = stamps[0], stamps[-1]
    return _Journal(
        journal.database,
        first.epoch,
        first.sequence,
        path.name,
        length,
        max(stamp.commit_us for stamp in stamps),
        last.sequence,
        is_shared=True,
    )


def _member(segment: Path, name: str) -> bytes:
    with zipfile.ZipFile(segment) as content:
        return content.read(name)


def _sequence(journal: _Journal) -> int:
    return journal.sequence


def _new_file(path: Path) -> BinaryIO:
    return os.fdopen(access.open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL), "w+b")
