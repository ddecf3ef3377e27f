"""Publication of tables, and the transactions that were begun before it.

A transaction takes over at its start whether and which tables are published. One that was begun
before a table was, and is committed after a snapshot, is in no journal and not in the snapshot:
what it wrote would be lost. So a snapshot is of use only once all that can have been begun before
the publication have ended. When it was committed can't be told exactly afterwards; but all
transactions with a number below the next one, when the publication is first met, are suspects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from firebird_cdc.journal.snapshot.attachment import NAME, fetch_all, text_of

DATABASE = ""
"""Stands for the switch of the whole publication among the tables; no table has this name."""

_TABLES = (
    f"SELECT {NAME.format('P.RDB$TABLE_NAME')}, P.RDB$RECORD_VERSION FROM RDB$PUBLICATION_TABLES P"  # noqa: S608
)
_SWITCH = "SELECT P.RDB$RECORD_VERSION FROM RDB$PUBLICATIONS P WHERE P.RDB$ACTIVE_FLAG = 1"
_TRANSACTIONS = f"""
SELECT T.MON$TRANSACTION_ID, T.MON$READ_ONLY, T.MON$TIMESTAMP, {NAME.format("A.MON$USER")},
  CAST(A.MON$REMOTE_PROCESS AS VARCHAR(1020) CHARACTER SET OCTETS), A.MON$REMOTE_PID,
  A.MON$REMOTE_ADDRESS, T.MON$ATTACHMENT_ID
 FROM MON$TRANSACTIONS T LEFT JOIN MON$ATTACHMENTS A ON A.MON$ATTACHMENT_ID = T.MON$ATTACHMENT_ID
 WHERE T.MON$TRANSACTION_ID < %d
"""  # noqa: S608


@dataclass(frozen=True)
class Publication:
    """The publication as a transaction sees it.

    ``switched_on``: RDB$RECORD_VERSION of its row, None: it is off. ``tables``: the published ones,
    with RDB$RECORD_VERSION of their rows, which is the transaction that put each there.
    """

    switched_on: int | None
    tables: Mapping[str, int]

    @property
    def versions(self) -> dict[str, int]:
        """Record versions of the tables and, under `DATABASE`, of the switch; none if it is off."""
        return {} if self.switched_on is None else {DATABASE: self.switched_on, **self.tables}


class Barrier(NamedTuple):
    """Bound of the transactions that may have been begun before a table was published.

    ``version``: of the publication's row when it was met; another one: the table has been out of
    it meanwhile. ``before``: the next transaction's number then.
    """

    version: int
    before: int


class OlderTransaction(NamedTuple):
    """Transaction that has to end before a snapshot is of use.

    The rest is None where the engine does not tell: those in limbo belong to nobody, and other
    people's are shown to the database's owner and SYSDBA alone. ``since``: by the server's clock.
    """

    number: int
    attachment: int | None = None
    user: str | None = None
    process: str | None = None
    since: datetime | None = None

    def __str__(self) -> str:
        if self.attachment is None:
            return f"transaction {self.number} (in limbo, or of another user)"
        by = f"transaction {self.number} of {self.user or 'nobody'}"
        by += f", attachment {self.attachment}"
        by += f", {self.process}" if self.process else ""
        return by + (f", since {self.since:%Y-%m-%d %H:%M:%S}" if self.since else "")


def read_publication(transaction: Any) -> Publication:
    """Return the publication as TRANSACTION, or a connection's main one, sees it."""
    switch = fetch_all(transaction, _SWITCH)
    tables = {text_of(name): int(version) for name, version in fetch_all(transaction, _TABLES)}
    return Publication(int(switch[0][0]) if switch else None, tables)


def raise_barriers(
    publication: Publication, known: Mapping[str, Barrier], following: int
) -> dict[str, Barrier]:
    """Return the barriers of what is published: the known one where nothing has changed.

    A barrier that is not in KNOWN, or differs, is new: its table needs a snapshot. following: a
    number that no transaction had been given when PUBLICATION was read, or shortly after.
    """
    return {
        name: known[name]
        if name in known and known[name].version == version
        else Barrier(version, following)
        for name, version in publication.versions.items()
    }


def highest_bound(barriers: Mapping[str, Barrier]) -> int:
    """Return the number below which transactions may be too old for one of BARRIERS; 0: none is."""
    return max((barrier.before for barrier in barriers.values()), default=0)


def begun_before(
    transactions: Iterable[int], barriers: Mapping[str, Barrier], readers: Collection[int]
) -> frozenset[int]:
    """Return those of TRANSACTIONS that may write, and may have been begun before something was
    published. readers: those that are known to only read."""
    bound = highest_bound(barriers)
    return frozenset(each for each in transactions if each < bound and each not in readers)


class Monitored(NamedTuple):
    """Transactions that run: ``readers`` only read; ``writers`` may write."""

    readers: frozenset[int]
    writers: dict[int, OlderTransaction]


def read_monitored(transaction: Any, before: int) -> Monitored:
    """Return the running transactions below BEFORE. TRANSACTION: one that has not yet looked at
    the monitoring tables, whose content stays the same for it."""
    readers, writers = set(), {}
    for number, is_reader, since, user, process, pid, address, attachment in fetch_all(
        transaction, _TRANSACTIONS % before
    ):
        if is_reader:
            readers.add(int(number))
            continue
        pieces = [text_of(process or "").strip(), f"process {pid}" if pid else "", address or ""]
        writers[int(number)] = OlderTransaction(
            number=int(number),
            attachment=attachment,
            user=text_of(user or "").strip() or None,
            process=", ".join(text_of(piece) for piece in pieces if piece) or None,
            since=since,
        )
    return Monitored(frozenset(readers), writers)
