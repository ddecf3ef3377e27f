"""Journals against tables, value for value: what is read has to be the same text in ``repr``.

So a NaN equals itself, -0.0 is not 0.0, and 1.0 is not 1.00.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from capture import Attachment, Journal, Row, after, before, moment_of

from firebird_cdc.journal.format import RowChange, Storage

Rows = dict[Any, dict[str, str]]


def exact(row: Row) -> dict[str, str]:
    """Return the exact text of each value of a row."""
    return {name: repr(value) for name, value in row.items()}


def net(
    journals: Iterable[Journal],
    table: str = "T",
    key: str = "ID",
    zones: Mapping[int, str] | None = None,
) -> Rows:
    """Return the rows that the journals leave in a table, by the column KEY.

    Asserts that each change has the row before it in full, as the last change left it.
    ZONES: the engine's names of its regions. A value X with a time zone is then two: X, in UTC,
    and X_ZONE, the region's name or the offset.
    """
    rows: Rows = {}
    for journal in journals:
        for change in journal.rows:
            if change.table.name != table:
                continue
            old, new = before(change), after(change)
            if old is not None:
                assert exact(_split(change, old, zones)) == rows.pop(old[key]), change.pos
            if new is not None:
                assert new[key] not in rows, (journal.path, change.pos)
                rows[new[key]] = exact(_split(change, new, zones))
    return rows


def _split(change: RowChange, row: Row, zones: Mapping[int, str] | None) -> Row:
    for column in change.table.columns if zones is not None else ():
        if column.storage in (Storage.TIME_TZ, Storage.TIMESTAMP_TZ):
            units, zone = row[column.name] or (None, None)
            moment = None if units is None else moment_of(units)
            if moment and column.storage is Storage.TIME_TZ:
                moment = moment.time()
            name = None if zone is None else zones.get(zone) or _offset(zone)
            row |= {column.name: moment, f"{column.name}_ZONE": name}
    return row


def _offset(zone: int) -> str:
    """Return the offset that a zone's number stands for: it counts minutes from -23:59."""
    hours, minutes = divmod(abs(zone - 1439), 60)
    return f"{'-' if zone < 1439 else '+'}{hours:02}:{minutes:02}"


def read(
    attachment: Attachment, select: str = "SELECT * FROM T", key: str = "ID", whole: str = ""
) -> Rows:
    """Return a table's rows as the driver reads them, by the column KEY.

    WHOLE: a column of type INT128, which the driver gives as a Decimal.
    """
    found = attachment.execute(select)
    attachment.commit()
    for row in found:
        if whole and row[whole] is not None:
            row[whole] = int(row[whole])
    return {row[key]: exact(row) for row in found}
