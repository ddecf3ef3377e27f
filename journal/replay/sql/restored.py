"""Transactions that a restored copy of a database holds: the copy itself is asked.

A physical copy (nbackup, or a copy of the file) has the engine's inventory of transactions as it
was at its moment, under the same numbers as the journals have. gbak begins new numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.snapshot.attachment import DatabaseConnection, attach


@dataclass(frozen=True, slots=True)
class Held:
    """Transactions that a copy holds: every one below ``next``, but for ``absent``.

    ``oldest``: below it none is absent; ``absent``: first and last of runs of numbers that are not
    committed there, sorted; ``created_us``: when the database, not its copy, was made
    (microseconds since 1970, UTC).
    """

    dsn: str
    created_us: int
    oldest: int
    next: int
    absent: tuple[tuple[int, int], ...]


# The number of a commit is 1 for what was committed before the copy was opened, more for what has
# been since, null for numbers that were not given yet, and below 1 for what is not committed.
_ABSENT = """\
EXECUTE BLOCK (A BIGINT = ?, Z BIGINT = ?) RETURNS (F BIGINT, L BIGINT) AS
DECLARE N BIGINT; BEGIN
N=A;
WHILE (N<Z) DO BEGIN
  IF (RDB$GET_TRANSACTION_CN(N) IS DISTINCT FROM 1) THEN BEGIN
    IF (F IS NULL) THEN F=N;
    L=N;
  END ELSE IF (F IS NOT NULL) THEN BEGIN SUSPEND; F=NULL; END
  N=N+1; END
IF (F IS NOT NULL) THEN SUSPEND; END"""


def ask_copy(connection: DatabaseConnection) -> Held:
    """Ask a restored copy which transactions it holds; nothing is written to it.

    Nobody else may have worked in it since it was restored. Raises DatabaseUnreadable if nobody can
    attach, ReplayError if it can't be asked or somebody is in it.
    """
    attachment = attach(connection)
    from firebird.driver import DatabaseError

    try:
        return _ask(connection.dsn, attachment)
    except DatabaseError as error:
        raise ReplayError(f"cannot ask {connection.dsn} for its transactions: {error}") from error
    finally:
        attachment.close()


def _ask(dsn: str, attachment: Any) -> Held:
    cursor = attachment.cursor()
    cursor.execute(
        "SELECT CURRENT_TRANSACTION, MON$OLDEST_TRANSACTION, MON$CREATION_DATE, (SELECT COUNT(*)"
        " FROM MON$ATTACHMENTS WHERE MON$ATTACHMENT_ID<>CURRENT_CONNECTION AND MON$SYSTEM_FLAG=0)"
        " FROM MON$DATABASE"
    )
    own, oldest, created, others = cursor.fetchone()
    if others:
        raise ReplayError(
            f"{others} others are attached to {dsn}: whoever works in a copy before it is brought"
            " forward uses up numbers of transactions; restore it once more"
        )
    cursor.execute(_ABSENT, (oldest, own))
    absent = tuple((first, last) for first, last in cursor.fetchall())
    attachment.rollback()
    past: datetime = created.astimezone(UTC) if created.tzinfo else created.replace(tzinfo=UTC)
    return Held(dsn, round(past.timestamp() * 1_000_000), oldest, own, absent)
