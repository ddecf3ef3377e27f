"""Journals against tables, value for value: what is read has to be the same text in ``repr``.

So a NaN equals itself, -0.0 is not 0.0, and 1.0 is not 1.00.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from capture import Attachment, Journal, Row, after, before

Rows = dict[Any, dict[str, str]]


def exact(row: Row) -> dict[str, str]:
    """Return the exact text of each value of a row."""
    return {name: repr(value) for name, value in row.items()}


def net(journals: Iterable[Journal], table: str = "T", key: str = "ID") -> Rows:
    """Return the rows that the journals leave in a table, by the column KEY.

    Asserts that each change has the row before it in full, as the last change left it.
    """
    rows: Rows = {}
    for journal in journals:
        for change in journal.rows:
            if change.table.name != table:
                continue
            old, new = before(change), after(change)
            if old is not None:
                assert exact(old) == rows.pop(old[key]), (journal.path, change.pos)
            if new is not None:
                assert new[key] not in rows, (journal.path, change.pos)
                rows[new[key]] = exact(new)
    return rows


def read(attachment: Attachment, select: str = "SELECT * FROM T", key: str = "ID") -> Rows:
    """Return a table's rows as the driver reads them, by the column KEY."""
    rows = {row[key]: exact(row) for row in attachment.execute(select)}
    attachment.commit()
    return rows
