"""Numbers that a live journal folder knows: which were given, shipped, and kept in the archive.

Journals alone can't tell that the last ones are lost, or the first ones. The folder that they were
written to can: the ledger of each database (`journal.folder.ledger`) has the last number that was
given, and the shipper's memory (`journal.shipper.local_offsets`) what was shipped and archived
since when. Only the driver reads this, a few small files per database; what it lacks is a sentence,
no error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.folder.notes import QUARANTINE

if TYPE_CHECKING:
    from firebird_cdc.journal.folder.ledger_records import Given
    from firebird_cdc.journal.shipper.local_offsets import Memory


class Expected(NamedTuple):
    """Numbers FIRST to LAST of an epoch of a database that a journal must have."""

    database: str
    epoch: int
    first: int
    last: int


@dataclass(frozen=True)
class FolderFacts:
    """Of the journal folder ``directory``; ``others``: what else is read, as paths without links.

    ``ledgers``: by their keys, as they were before the journals were listed. ``trouble``: why
    nothing is known.
    """

    directory: Path
    others: frozenset[str] = frozenset()
    ledgers: dict[str, Given] = field(default_factory=dict, repr=False)
    trouble: str | None = None

    def given(self, databases: Iterable[str]) -> Iterator[tuple[str, str, int, int, int]]:
        """Yield uuid, database, epoch, number and time of the commit in microseconds since 1970 of
        each journal of DATABASES that the ledgers still name."""
        for key, database in self._keys(databases, self.memories()).items():
            if key in self.ledgers:
                for uuid, place in self.ledgers[key].journals.items():
                    yield str(uuid), database, *place

    def memories(self) -> dict[str, Memory]:
        """Return the current memory of the shipper, by database."""
        from firebird_cdc.journal.shipper.local_offsets import remembered

        return {} if self.trouble else {each.database: each for each in remembered(self.directory)}

    def _keys(self, databases: Iterable[str], shipped: Iterable[str]) -> dict[str, str]:
        """Databases by the keys of their ledgers."""
        if self.trouble:
            return {}
        from firebird_cdc.journal.folder.ledger_lock import database_key

        return {database_key(name): name for name in {*databases, *shipped}}

    def keeps(self, memory: Memory | None) -> bool:
        """Tell whether MEMORY is of journals that went into an archive that is read as well."""
        return bool(
            memory is not None
            and memory.archive
            and str(Path(memory.archive).resolve()) in self.others
        )

    def expected(
        self,
        spans: Sequence[tuple[str, int, int, int]],
        waiting: Mapping[tuple[str, int], int],
    ) -> list[Expected]:
        """Return which numbers must be there, where this folder can tell.

        spans: database, epoch, first and last number of what is there; waiting: of a database and
        epoch the first number in the live folder, from which on nothing was shipped.
        """
        memories = self.memories()
        found = []
        for key, database in self._keys((name for name, *_ in spans), memories).items():
            memory = memories.get(database)
            ends = {epoch: last for name, epoch, _, last in spans if name == database}
            ledger = self.ledgers.get(key)
            for epoch, end in ledger.lasts.items() if ledger is not None else ():
                ends[epoch] = max(end, ends.get(epoch, 0))  # the last ones before a restore, too
            last = _last(memory, ledger)
            if last is not None:
                ends[last[0]] = last[1]
            kept = memory.kept_from if memory is not None and self.keeps(memory) else None
            for epoch, end in sorted(ends.items()):
                if kept is not None and epoch >= kept[0]:
                    first = kept[1] if epoch == kept[0] else 1
                else:
                    first = waiting.get((database, epoch), end + 1)
                if first <= end:
                    found.append(Expected(database, epoch, first, end))
        return found

    def passed_over(self) -> Iterator[Expected]:
        """Yield the numbers that no journal had when they were to be shipped, as long as nobody has
        acknowledged that, of databases whose journals are kept nowhere: else they are expected."""
        for name, memory in self.memories().items():
            for each in memory.missing if not self.keeps(memory) else ():
                epoch, last = each.last
                yield Expected(name, epoch, 1 if each.first is None else each.first[1], last)

    def deleted_up_to(
        self, waiting: Mapping[tuple[str, int], int]
    ) -> dict[str, tuple[int, int] | None]:
        """Up to which (epoch, number) the journals of each database were shipped and kept nowhere,
        so that they are rightly gone; None: all that are not there. WAITING: as in `expected`."""
        found: dict[str, tuple[int, int] | None] = {}
        for name, memory in self.memories().items():
            if self.keeps(memory):
                if memory.kept_from is not None:
                    found[name] = (memory.kept_from[0], memory.kept_from[1] - 1)
                continue
            # What it remembers may be a second old; what waits in the folder was not shipped.
            first = min(
                ((epoch, number) for (whose, epoch), number in waiting.items() if whose == name),
                default=None,
            )
            found[name] = None if first is None else (first[0], first[1] - 1)
        return found

    def unseen(self, given: Iterable[tuple[str, int]]) -> dict[int, str]:
        """Of journals (uuids) and their numbers, those that are there after all, with a sentence
        each: not visible yet, or made visible since the folders were listed."""
        found = {}
        for uuid, number in given:
            if (self.directory / f"{uuid}.log.live").exists():
                found[number] = (
                    f"journal {uuid} (sequence {number}) waits in {self.directory} to be confirmed;"
                    " the server does that when it opens the database next"
                )
            elif any((folder / f"{uuid}.log").exists() for folder in self._visible()):
                found[number] = f"journal {uuid} (sequence {number}) came while the audit ran"
        return found

    def _visible(self) -> list[Path]:
        return [
            self.directory,
            self.directory / STATE_DIRECTORY / QUARANTINE,
            *map(Path, self.others),
        ]


def _last(memory: Memory | None, given: Given | None) -> tuple[int, int] | None:
    """The last number that was given, or shipped."""
    numbers = []
    if given is not None:
        numbers.append((given.epoch, given.last))
    if memory is not None and memory.number is not None:
        numbers.append(memory.number)
    return max(numbers, default=None)


def read_facts(directory: Path, others: Iterable[str] = ()) -> FolderFacts | None:
    """Read what the journal folder DIRECTORY knows; None if it is none. Call it before the journals
    are listed: what is numbered afterwards counts for nothing."""
    ledgers = directory / STATE_DIRECTORY / "databases"
    kept = frozenset(str(Path(other).resolve()) for other in others)
    if not ledgers.is_dir():
        return None
    try:
        from firebird_cdc.journal.folder.ledger_records import read_given

        found = {
            path.stem: given
            for path in sorted(ledgers.glob("*.ledger"))
            if (given := read_given(path)) is not None
        }
    except (OSError, ImportError) as error:
        return FolderFacts(directory, kept, {}, f"{ledgers} can't be read: {error}")
    return FolderFacts(directory, kept, found)
