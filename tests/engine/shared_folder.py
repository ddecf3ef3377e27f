"""Transactions in a folder of journals. Shared journals that are closed have an index, of open ones
the ledgers say what is committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from firebird_cdc.errors import JournalError
from firebird_cdc.journal.folder.ledger_records import LedgerEntry, read_records
from firebird_cdc.journal.folder.ledger_tail import ledgers_of
from firebird_cdc.journal.folder.slots import read_slots
from firebird_cdc.journal.format import (
    JournalReader,
    SharedJournal,
    alone,
    open_any,
    read_file_header,
)
from firebird_cdc.journal.format.layout import FILE_BLOCK
from firebird_cdc.journal.format.model import Place
from firebird_cdc.journal.format.shared import (
    Found,
    Head,
    Void,
    own_head,
    parse_file_header,
    walk,
)


def is_of_version_1(path: Path) -> bool:
    try:
        JournalReader(path).close()
    except (JournalError, FileNotFoundError):
        return False
    return True


def is_shared(path: Path) -> bool:
    """Tell whether several transactions may lie in a journal."""
    with suppress(JournalError, FileNotFoundError):
        return not read_file_header(path).is_own
    return False


def _is_own(path: Path) -> bool:
    with suppress(JournalError, FileNotFoundError):
        return is_of_version_1(path) or read_file_header(path).is_own
    return False


def ledger_entries(folder: Path) -> Iterator[LedgerEntry]:
    """Yield what the ledgers of a folder hold of shared journals."""
    for ledger in ledgers_of(folder).glob("*.ledger"):
        for record in read_records(ledger.read_bytes()):
            yield from (entry for entry in record.given if entry.home is not None)


def _journals_in(folder: Path) -> Iterator[tuple[Path, JournalReader | SharedJournal]]:
    """Yield the journals of a folder that hold something committed, with their paths; the folder
    may be an archive, which has no ledgers."""
    places: defaultdict[UUID, list[Place]] = defaultdict(list)
    for entry in ledger_entries(folder):
        assert entry.home is not None
        places[entry.home].append(entry.place)
    live = set()
    for home, given in places.items():
        path = folder / f"{home}.log.live"
        with (
            suppress(FileNotFoundError),
            SharedJournal(path, path.read_bytes(), places=given) as it,
        ):
            live.add(f"{home}")  # others are closed meanwhile, or deleted
            yield path, it
    for path in folder.glob("*.log"):
        if path.stem not in live:
            with suppress(FileNotFoundError), open_any(path) as journal:  # shipped meanwhile
                yield path, journal


def _readers_of(journal: JournalReader | SharedJournal) -> Iterator[JournalReader]:
    if isinstance(journal, JournalReader):
        yield journal
        return
    for place in journal.places:
        with journal.reader(place) as reader:
            yield reader


def readers_in(folder: Path) -> Iterator[JournalReader]:
    """Yield a reader of each committed transaction in the shared journals of a folder."""
    for _, journal in _journals_in(folder):
        if isinstance(journal, SharedJournal):
            yield from _readers_of(journal)


def all_readers_in(folder: Path) -> Iterator[JournalReader]:
    """Yield a reader of each committed transaction in a folder, be its journal shared or not."""
    for _, journal in _journals_in(folder):
        yield from _readers_of(journal)


def committed_in(folder: Path) -> list[Path]:
    """Return a path for each committed transaction: that of its journal, if it has one of its
    own, else `<journal>/<uuid>.log`. See `open_transaction`."""
    found = []
    for path, journal in _journals_in(folder):
        if isinstance(journal, JournalReader):
            found.append(path)
        else:
            found += [_path_of(path / f"{place.uuid}.log") for place in journal.places]
    return found


def _path_of(name: Path) -> Path:
    is_own = name.parent.name.partition(".")[0] == name.stem
    return name.parent.parent / name.name if is_own else name


def open_transaction(path: Path) -> JournalReader:
    """Return a reader of a transaction by a path that `committed_in` returned, also if its journal
    was closed since."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return alone(open_any(path))
    folder = path.parent.parent if path.parent.suffix in (".log", ".live") else path.parent
    return next(each for each in all_readers_in(folder) if Path(each.path).name == path.name)


def live_in(folder: Path) -> list[Path]:
    """Return the journals of open transactions, and of those that are not confirmed."""
    found = folder.glob("*.log.live")
    undecided = [path for path in found if _is_own(path) or has_undecided(path)]
    return [*undecided, *in_memory(folder)]


def in_memory(folder: Path) -> list[Path]:
    """Return a path for each transaction that is open and in memory alone: it has a slot."""
    slots = (folder / ".firebird-cdc/slots").glob("*")
    return [path for path in slots for _ in read_slots(path)]


def has_undecided(path: Path) -> bool:
    """Tell whether something in a live journal is neither void nor committed. A void may lie in
    another journal."""
    given = {(entry.home.bytes, entry.offset) for entry in ledger_entries(path.parent)}
    if _is_torn(path):
        return True
    journal, found = _things(path)
    voids = set()
    for other in path.parent.glob("*.log.live"):
        if not is_of_version_1(other):
            things = (each.what for each in _things(other)[1])
            voids |= {(each.journal, each.offset) for each in things if isinstance(each, Void)}
    heads = [each for each in found if isinstance(each.what, Head)]
    return any((journal, each.offset) not in given | voids for each in heads)


def heads_in(path: Path) -> list[Head]:
    """Return the heads of the transactions in a shared journal, whatever became of them."""
    return [each.what for each in _things(path)[1] if isinstance(each.what, Head)]


def _is_torn(path: Path) -> bool:
    """Tell whether a power cut took the header of a journal, and not what lies behind it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return False
    return parse_file_header(content[:FILE_BLOCK]) is None and any(content)


def _things(path: Path) -> tuple[bytes, list[Found]]:
    """Return the uuid of a shared journal, and what lies in it; nothing if it was closed."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return b"", []
    header = parse_file_header(content[:FILE_BLOCK])
    if header is None:  # just made, or torn
        return b"", []
    if header.is_own:
        head = own_head(lambda n, at: content[at : at + n])
        return header.uuid.bytes, [] if head is None else [Found(FILE_BLOCK, len(content), head)]
    walked = walk(lambda n, at: content[at : at + n], len(content), header.uuid)
    return header.uuid.bytes, list(walked)
