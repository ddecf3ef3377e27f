"""Quarantine: keeps what can't be read or sent, with a reason, until somebody decides about it.

For each journal there are three files in ``.firebird-cdc/quarantine``: ``<uuid>.log``, the journal;
``<uuid>.reason``, one sentence; ``<uuid>.json``, the *note*: which of its events were not sent, and
which keys they concern. A journal without a note is one that the confirmer could not decide.

A journal of which single events were left out is still being shipped when its note is begun, as a
*draft*. The order of steps, each on disk before the next: the note; the end of the Kafka
transaction, if there is one; the journal's second name in here; the removal of its first one. So
a crash anywhere leaves either a journal that is shipped again as a whole (and its note drawn up
again), or one that is here with all that a retry needs. A note whose journal is not here counts
for nothing.

While something lies here, newer events with the same topic and key are watched for: a retry that
comes behind one of them needs ``--force``. That a newer event was met is in the note, on disk,
before the journal that holds the newer event is disposed of.

Everything belongs to the shipping thread, but for the functions at the end, which other processes
use, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import logbook

from firebird_cdc.clock import now_us
from firebird_cdc.errors import JournalError, ShipError
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.events.versions import TODAY, form_of, may_differ
from firebird_cdc.journal.folder.disposal import keep_journal
from firebird_cdc.journal.folder.durable import make_folder, replace_file, sync_directory
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.folder.notes import (
    MOST_EVENTS_NAMED,
    QUARANTINE,
    Concerned,
    Note,
    digest_of,
)
from firebird_cdc.journal.format import database_of, own_journal
from firebird_cdc.journal.shipper.inbox.queue import Entry, with_file

_log = logbook.Logger("firebird_cdc.journal.shipper.quarantine")

MOST_WATCHED = 10_000
"""Journals whose keys are watched; of further ones it is taken for granted that newer events were
shipped. A bound on memory: about 1 kB each."""

MOST_KEYS = 100_000
"""Keys over all journals that are watched, about 20 MB."""


class Quarantine:
    """The quarantine of one journal folder, as the shipper keeps it.

    ``watching``: whether ``see`` has to be told of the messages that are sent. ``is_busy``:
    whether ``flush`` or ``keep`` have anything to do. ``watches_tables``: whether it has to be told
    what stands for topic and keys of any table, too.
    """

    def __init__(self, journals: Path) -> None:
        self.watching = False
        self.folder = journals / STATE_DIRECTORY / QUARANTINE
        self._journals = journals
        self._drafts: dict[UUID, Note] = {}
        self._kept: dict[UUID, Note] = {}
        self._dirty: dict[UUID, Note] = {}
        self._by_key: dict[bytes, dict[UUID, int]] = {}
        self._with_keys: dict[str, dict[UUID, int]] = {}  # topics in which keys are watched
        self._by_topic: dict[str, dict[UUID, int]] = {}
        self._by_database: dict[str | None, set[UUID]] = {}
        self._watched: dict[UUID, Note] = {}
        self._gone: list[tuple[str, Entry]] = []
        self._nameless: set[UUID] = set()  # those among them that concern tables without topics

    @property
    def is_busy(self) -> bool:
        """Tell whether something is to be written or kept when journals end."""
        return bool(self._drafts or self._dirty)

    def has_note_of(self, uuid: UUID) -> bool:
        """Tell whether something of journal UUID was left out, now or at an earlier attempt."""
        return bool(self._drafts or self._kept) and (uuid in self._drafts or uuid in self._kept)

    @property
    def watches_tables(self) -> bool:
        """Tell whether events are watched for by their table, as it has had no topic."""
        return bool(self._nameless)

    def is_whole(self, entry: Entry) -> bool:
        """Tell whether nothing of a journal that is being shipped was left out."""
        note = self._drafts.get(entry.uuid) if self._drafts else None
        return note is None or not note.says_something

    def load(self) -> None:
        """Read what is there. Raises ShipError if the folder can't be read."""
        for held in (self._drafts, self._kept, self._dirty, self._watched):
            held.clear()
        self._nameless.clear()
        self._gone.clear()
        self._by_key.clear()
        self._with_keys.clear()
        self._by_topic.clear()
        self._by_database.clear()
        try:
            found = _scan(self.folder)
        except FileNotFoundError:
            found = {}
        except OSError as error:
            raise ShipError(f"the quarantine can't be read: {error}") from error
        for uuid, endings in sorted(found.items()):
            if ".json" in endings:
                self._load(uuid, is_here=".log" in endings)
        self.watching = bool(self._watched)

    def _load(self, uuid: UUID, *, is_here: bool) -> None:
        try:
            note = read_note(self.folder, uuid)
        except (OSError, ValueError) as error:
            _log.error("{}: can't be read: {}", self.folder / f"{uuid}.json", error)
            return
        if note is None:
            return
        if note.home is None:
            names = (f"{uuid}.log", f"{uuid}.log.live")
            is_waiting = any((self._journals / name).exists() for name in names)
        else:  # which stays after its transaction was copied
            names = (f"{note.home}.log", f"{note.home}.log.live")
            is_waiting = not is_here and any((self._journals / name).exists() for name in names)
        if not is_here and not is_waiting:
            remove_files(self.folder, uuid)  # it went with its journal, but for a crash
            return
        if is_waiting:
            self._drafts[uuid] = note
        elif len(self._kept) < MOST_WATCHED:
            self._kept[uuid] = note
        self._watch(note)

    # While journals are shipped

    def begin(self, uuid: UUID, resume_after: int) -> Note | None:
        """The sending of a journal begins, behind event RESUME_AFTER: forget what was left out
        behind it at an earlier attempt. Returns what was left out before."""
        if not self._drafts and not self._kept:
            return None
        note = self._drafts.get(uuid) or self._kept.pop(uuid, None)
        if note is None:
            return None
        self._cut_back(note, resume_after)
        self._drafts[uuid] = self._dirty[uuid] = note
        return note

    def name(self, entry: Entry, database: str, pos: int, whose: str) -> None:
        """Event POS of ENTRY, which ``leave_out`` is about to be told of, is WHOSE: table, key."""
        events = self._draft(entry, database).events
        if whose and len(events) < MOST_EVENTS_NAMED:
            events[pos] = whose

    def leave_out(
        self,
        entry: Entry,
        database: str,
        pos: int,
        reason: str,
        what: Concerned,
        nameless: str | None = None,
    ) -> bool:
        """Event POS of ENTRY is not sent; it concerns WHAT. False if there are too many of them
        to be told one by one, and ``leave_rest`` has to be called.

        NAMELESS: its table, if that can't have the names it needs.
        """
        note = self._draft(entry, database)
        if not note.add(pos, reason):
            return False
        if nameless is not None:
            note.add_nameless(nameless, pos)
            if note.uuid in self._watched:
                self._nameless.add(note.uuid)
        self._watch_more(note, pos, what)
        return True

    def leave_rest(self, entry: Entry, database: str, after: int, reason: str) -> None:
        """Nothing behind event AFTER of ENTRY is sent."""
        note = self._draft(entry, database)
        note.end_after(after, reason)
        note.concerns(after, None)
        self._watch(note)

    def _draft(self, entry: Entry, database: str) -> Note:
        note = self._drafts.get(entry.uuid)
        if note is None:
            note = Note(entry.uuid, database, *entry[:2], now_us(), home=entry.shares)
            self._drafts[entry.uuid] = note
        self._dirty[entry.uuid] = note
        return note

    def flush(self) -> None:
        """Write the notes that changed. Raises OSError."""
        if not self._dirty:
            return
        self._make_folder()
        for uuid, note in list(self._dirty.items()):
            path = self.folder / f"{uuid}.json"
            is_here = uuid in self._drafts or (self.folder / f"{uuid}.log").exists()
            if note.says_something and is_here:
                replace_file(path, note.to_json())
            else:
                path.unlink(missing_ok=True)
        sync_directory(self.folder)
        self._dirty.clear()

    def keep(self, entries: Sequence[Entry]) -> list[Entry]:
        """Have those of ENTRIES, which are shipped, in here that were not sent as a whole.

        Returns the journals that are to be disposed of now like any other; one that could not be
        read to its end is moved, if no other transaction is in it. May be repeated after an
        OSError.
        """
        self.flush()
        drafts = [(entry, note) for entry in entries if (note := self._drafts.get(entry.uuid))]
        if not drafts:
            return list(entries)
        moved = set()
        linked = []
        for entry, note in drafts:
            journal = self._journals / entry.name
            if not note.says_something:
                remove_files(self.folder, entry.uuid)
                continue
            try:
                self._put_entry(entry, note.sentence())
            except FileNotFoundError:
                _log.warning("{}: gone before it could be moved to the quarantine", journal)
                if note.database is not None:
                    self._gone.append((note.database, entry))
                remove_files(self.folder, entry.uuid)
                self._cut_back(note, 0)
                continue
            linked.append(note)
            if note.is_moved and entry.is_alone:
                moved.add(entry.uuid)
        sync_directory(self.folder)
        for entry, note in drafts:
            if entry.uuid in moved:
                (self._journals / entry.file).unlink(missing_ok=True)
            del self._drafts[entry.uuid]
            if not note.says_something:
                self._unwatch(note)
        for note in linked:
            self._settle(note)
        return [entry for entry in entries if entry.uuid not in moved]

    def take_gone(self) -> list[tuple[str, Entry]]:
        """Take the journals that ``keep`` was to have in here and did not find, with the paths of
        their databases: what was left out of them is lost."""
        gone, self._gone = self._gone, []
        return gone

    def set_aside(
        self, journal: Path, entry: Entry | None, database: str | None, reason: str, after: int = 0
    ) -> None:
        """Move JOURNAL, of which nothing behind event AFTER was sent, in here now; copy it, if
        others lie in the same file.

        ``entry``, ``database``: what of it can be read. Raises OSError.
        """
        uuid = UUID(journal.stem)
        note = self._drafts.pop(uuid, None) or Note(uuid, database, None, None, now_us())
        if entry is not None:
            note.epoch, note.sequence = entry[:2]
            note.home = entry.shares
        note.end_after(after, reason)
        note.concerns(after, None)
        self._watch(note)  # first, as it may say that there are too many to watch
        self._make_folder()
        self._dirty.pop(uuid, None)
        replace_file(self.folder / f"{uuid}.json", note.to_json())
        if entry is None:
            self.put(journal, note.sentence(), has_stamp=False)
        else:
            self._put_entry(entry, note.sentence())
            journal = self._journals / entry.file
        sync_directory(self.folder)
        if entry is None or entry.is_alone:
            journal.unlink()
        self._settle(note)

    def _make_folder(self) -> None:
        make_folder(self.folder)

    def put(self, journal: Path, sentence: str, *, has_stamp: bool = True) -> None:
        """Give JOURNAL a name in the quarantine, and the sentence that goes with it. Raises
        OSError."""
        self._make_folder()
        replace_file(self.folder / f"{journal.stem}.reason", f"{sentence}\n".encode())
        if not keep_journal(journal, self.folder, has_stamp=has_stamp):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(journal))

    def _put_entry(self, entry: Entry, sentence: str) -> None:
        """Put the journal of ENTRY here, as ``put``; of several in one file, that one alone."""
        if entry.is_alone or entry.place is None:
            journal = self._journals / entry.file
            if entry.home is not None and journal.with_name(f"{journal.name}.live").exists():
                raise BlockingIOError(errno.EAGAIN, "it is not closed yet", str(journal))
            self.put(journal, sentence)
            return
        self._make_folder()
        replace_file(self.folder / f"{entry.uuid}.reason", f"{sentence}\n".encode())
        content = with_file(
            f"{self._journals}{os.sep}", entry, partial(own_journal, place=entry.place)
        )
        replace_file(self.folder / f"{entry.uuid}.log", content)

    def _settle(self, note: Note) -> None:
        if len(self._kept) < MOST_WATCHED:
            self._kept[note.uuid] = note
        _log.warning(
            "{}.log of {}: moved to the quarantine in {}: {}. firebird-cdc journal retry sends"
            " what is missing",
            note.uuid,
            note.database or "an unknown database",
            self.folder,
            note.sentence(),
        )

    # What comes behind what was left out

    def _watch(self, note: Note) -> None:
        """Watch for newer events of what NOTE concerns now."""
        uuid = note.uuid
        if note.newer is not None:
            return
        if uuid not in self._watched and len(self._watched) >= MOST_WATCHED:
            note.newer = (
                f"not looked for, as more than {MOST_WATCHED} journals are in the quarantine"
            )
            self._dirty[uuid] = note
            return
        self._watched[uuid] = note
        self.watching = True
        if note.nameless:
            self._nameless.add(uuid)
        if len(self._by_key) + len(note.keys) > MOST_KEYS:
            note.is_topics = True
        if note.is_topics or note.is_all:
            self._drop_keys(note)
            note.keys.clear()
        if note.is_all:
            self._by_database.setdefault(note.database, set()).add(uuid)
        elif note.is_topics:
            for topic, pos in note.topics.items():
                self._by_topic.setdefault(topic, {})[uuid] = pos
        else:
            for digest, pos in note.keys.items():
                self._by_key.setdefault(digest, {})[uuid] = pos
            for topic, pos in note.topics.items():
                self._with_keys.setdefault(topic, {})[uuid] = pos

    def _drop_keys(self, note: Note) -> None:
        for digest in note.keys:
            _discard(self._by_key, digest, note.uuid)
        for topic in note.topics:
            _discard(self._with_keys, topic, note.uuid)

    def _cut_back(self, note: Note, pos: int) -> None:
        """Watch for what NOTE concerns up to event POS only."""
        self._unwatch(note)  # by what it concerned so far
        note.cut_back(pos)
        if note.says_something:
            self._watch(note)

    def _watch_more(self, note: Note, pos: int, what: Concerned) -> None:
        """Event POS of NOTE is left out, too; it concerns WHAT."""
        breadth, known = note.breadth, len(note.keys)
        note.concerns(pos, what)
        if note.uuid not in self._watched or note.breadth != breadth or note.is_topics:
            self._watch(note)
        elif len(note.keys) != known and what is not None and not isinstance(what, str):
            for topic, key in what:
                digest = digest_of(topic, key)
                self._by_key.setdefault(digest, {}).setdefault(note.uuid, pos)
                self._with_keys.setdefault(topic, {}).setdefault(note.uuid, pos)

    def _unwatch(self, note: Note) -> None:
        uuid = note.uuid
        if self._watched.pop(uuid, None) is None:
            return
        self._nameless.discard(uuid)
        self._drop_keys(note)
        for topic in note.topics:
            _discard(self._by_topic, topic, uuid)
        if (uuids := self._by_database.get(note.database)) is not None:
            uuids.discard(uuid)
            if not uuids:
                del self._by_database[note.database]
        self.watching = bool(self._watched)

    def see(
        self,
        entry: Entry,
        database: str,
        pos: int,
        messages: Iterable[Message],
        *,
        is_redelivered: bool = False,
    ) -> None:
        """The messages of event POS of ENTRY are about to be sent: note what they come behind.

        ``is_redelivered``: they were left out, and no other event of ENTRY is behind them.
        """
        hit: list[UUID] = []
        wide: set[UUID] = set()
        for name in (database, None):
            for uuid in self._by_database.get(name, ()):
                note = self._watched[uuid]
                after = note.left_out[0].first if note.left_out else note.rest_after or 0
                if self._is_newer(note, entry, database, pos, after):
                    hit.append(uuid)
        for message in messages:
            found = dict(self._by_topic.get(message.topic, ()))
            if message.topic in self._with_keys:
                found.update(self._by_key.get(digest_of(message.topic, message.key), ()))
                others = self._in_other_bytes(message)
                found.update(others)
                wide.update(others)
            hit += [
                uuid
                for uuid, left in found.items()
                if self._is_newer(self._watched[uuid], entry, database, pos, left)
            ]
        if is_redelivered:
            hit = [uuid for uuid in hit if uuid != entry.uuid]
        for uuid in dict.fromkeys(hit):
            note = self._watched[uuid]
            note.is_topics = note.is_topics or uuid in wide
            self._note_newer(note, entry, database, pos)

    def _in_other_bytes(self, message: Message) -> dict[UUID, int]:
        """The journals whose notes may have the key of MESSAGE in other bytes, those of the form of
        a version before: for them any event of the table counts."""
        if not may_differ(message.key):
            return {}
        return {
            uuid: pos
            for uuid, pos in self._with_keys[message.topic].items()
            if form_of(self._watched[uuid].version) != TODAY
        }

    @staticmethod
    def _is_newer(note: Note, entry: Entry, database: str, pos: int, left: int) -> bool:
        if note.database != database or note.epoch is None or note.sequence is None:
            return note.uuid != entry.uuid
        return (*entry[:2], pos) > (note.epoch, note.sequence, left)

    def _note_newer(self, note: Note, entry: Entry, database: str, pos: int) -> None:
        note.newer = f"event {pos} of journal {entry.sequence} of {database}, of {note.breadth}"
        self._unwatch(note)
        self._dirty[note.uuid] = note
        _log.info("{}.log in the quarantine: a newer event, {}, was sent", note.uuid, note.newer)

    # A retry

    def is_draft(self, uuid: UUID) -> bool:
        """Tell whether a journal is still being shipped, or about to be."""
        return uuid in self._drafts

    def find(self, uuid: UUID) -> Note | None:
        """The note of a journal that lies in here, as it is now."""
        if not (self.folder / f"{uuid}.log").exists():
            return None
        return self._kept.get(uuid) or self._dirty.get(uuid) or read_note(self.folder, uuid)

    def update(self, note: Note) -> None:
        """Part of what NOTE said was sent since. Raises OSError."""
        replace_file(self.folder / f"{note.uuid}.reason", f"{note.sentence()}\n".encode())
        replace_file(self.folder / f"{note.uuid}.json", note.to_json())
        sync_directory(self.folder)
        self._dirty.pop(note.uuid, None)
        if (former := self._kept.get(note.uuid)) is not None:
            self._unwatch(former)
            self._kept[note.uuid] = note
            self._watch(note)

    def remove(self, uuid: UUID) -> None:
        """All of a journal was sent, or somebody gave it up. Raises OSError."""
        remove_files(self.folder, uuid)
        note = self._kept.pop(uuid, None) or self._watched.get(uuid)
        self._dirty.pop(uuid, None)
        if note is not None:
            self._unwatch(note)


def _discard(places: dict[Any, dict[UUID, int]], place: object, uuid: UUID) -> None:
    uuids = places.get(place)
    if uuids is not None:
        uuids.pop(uuid, None)
        if not uuids:
            del places[place]


def _scan(folder: Path) -> dict[UUID, set[str]]:
    """The endings of the files of each journal in FOLDER."""
    found: dict[UUID, set[str]] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            stem, ending = os.path.splitext(entry.name)  # noqa: PTH122 - there may be very many
            with contextlib.suppress(ValueError):
                found.setdefault(UUID(stem), set()).add(ending)
    return found


# What other processes use, too


def journals_in(folder: Path) -> list[UUID]:
    """The journals that lie in the quarantine FOLDER. Raises OSError but where it is missing."""
    try:
        found = _scan(folder)
    except FileNotFoundError:
        return []
    return sorted(uuid for uuid, endings in found.items() if ".log" in endings)


def read_note(folder: Path, uuid: UUID) -> Note | None:
    """The note of a journal, None if there is none. Raises OSError or ValueError."""
    try:
        return Note.from_json(uuid, (folder / f"{uuid}.json").read_bytes())
    except FileNotFoundError:
        return None


def remove_files(folder: Path, uuid: UUID) -> None:
    """Remove a journal and what goes with it, the journal first."""
    for ending in (".log", ".json", ".reason"):
        (folder / f"{uuid}{ending}").unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        sync_directory(folder)


def in_order(quarantine: Path) -> list[UUID]:
    """The journals in QUARANTINE in the order of their history, the unknown ones last."""
    keyed = []
    for uuid in journals_in(quarantine):
        note = note_or_none(quarantine, uuid)
        if note is None or note.sequence is None or note.epoch is None:
            keyed.append((True, "", 0, 0, uuid))
        else:
            keyed.append((False, note.database or "", note.epoch, note.sequence, uuid))
    return [uuid for *_, uuid in sorted(keyed)]


def note_or_none(quarantine: Path, uuid: UUID) -> Note | None:
    """The note of a journal, None also if it can't be read."""
    try:
        return read_note(quarantine, uuid)
    except (OSError, ValueError):
        return None


def refusal(note: Note | None, uuid: UUID, quarantine: Path, *, is_forced: bool) -> str | None:
    """Return the reason why a journal in the quarantine is not sent again; None: it may be."""
    if note is None:
        if not (quarantine / f"{uuid}.log").exists():
            return "it is not in the quarantine"
        return (
            "it was quarantined before it had a number"
            f" ({read_reason(quarantine, uuid)}), so it is never sent by a retry, not with --force"
            " either. Look at it (firebird-cdc journal show) and at the database; then bring the"
            " database to what is right, and give the journal up with firebird-cdc journal discard"
        )
    if note.newer is not None and not is_forced:
        return (
            f"a newer event was shipped since ({note.newer}), and consumers would take the"
            " redelivered one for the newest; --force sends it all the same"
        )
    return None


def read_reason(quarantine: Path, uuid: UUID | str) -> str:
    """The sentence that lies beside a journal."""
    try:
        text = (quarantine / f"{uuid}.reason").read_text("utf-8", "replace").strip()
    except OSError:
        text = ""
    return text or "no reason is given"


def describe(quarantine: Path, uuid: UUID) -> dict[str, Any]:
    """Return the facts that are known of a journal in QUARANTINE."""
    note = note_or_none(quarantine, uuid)
    database = None if note is None else note.database
    if database is None:
        with contextlib.suppress(JournalError, OSError):
            database = database_of(quarantine / f"{uuid}.log")
    return {
        "journal": str(uuid),
        "database": database,
        "epoch": None if note is None else note.epoch,
        "sequence": None if note is None else note.sequence,
        "set_aside_at": None if note is None else note.at,
        "reason": read_reason(quarantine, uuid),
        "left_out": [] if note is None else [each[:2] for each in note.left_out],
        "events": [] if note is None else [[pos, whose] for pos, whose in note.named()],
        "rest_after": None if note is None else note.rest_after,
        "newer": None if note is None else note.newer,
        "refusal": refusal(note, uuid, quarantine, is_forced=False),
    }
