"""Subject of a DDL statement, as far as a replay has to know it: tables made and dropped."""

from __future__ import annotations

import re
from typing import NamedTuple

from firebird_cdc.journal.format.ddl_text import publication_clauses

_COMMENT = r"(?:\s|/\*.*?\*/|--[^\n]*(?:\n|$))"
_TABLE = re.compile(
    rf"{_COMMENT}*(CREATE|RECREATE|ALTER|DROP){_COMMENT}+"
    rf"(?:GLOBAL{_COMMENT}+TEMPORARY{_COMMENT}+)?TABLE{_COMMENT}+"
    rf"(?:IF{_COMMENT}+(?:NOT{_COMMENT}+)?EXISTS{_COMMENT}+)?"
    r'(?:"((?:[^"]|"")+)"|([A-Za-z][A-Za-z0-9_$]*))',
    re.IGNORECASE | re.DOTALL,
)

DROPS = ("drop table", "recreate table")
"""Actions after which no earlier row of the table exists."""
PUBLICATION = "publication"
"""The action of a statement that changes which tables are captured."""


class Statement(NamedTuple):
    """``action``: ``create table`` etc., ``publication``, None for what is of no concern.

    ``table``: None for a publication that ALTER DATABASE changes.
    """

    action: str | None
    table: str | None


def read_statement(sql: str) -> Statement:
    """Return what SQL does to which table; the name as the engine stores it."""
    match = _TABLE.match(sql)
    action: str | None = None
    name: str | None = None
    if match:
        verb, quoted, plain = match.groups()
        action = f"{verb.lower()} table"
        name = quoted.replace('""', '"') if quoted is not None else plain.upper()
    # A table that is being made has no earlier rows, so its publication is of no concern.
    if action in (None, "alter table") and any(publication_clauses(sql)):
        action = PUBLICATION
    return Statement(action, name)
