"""Subject of a DDL statement, as far as a replay has to know it: tables made and dropped."""

from __future__ import annotations

from firebird_cdc.journal.format.ddl_text import parse, publication_clauses

DROPS = ("drop table", "recreate table")
"""Actions after which no earlier row of the table exists."""
ALTER = "alter table"
MOVES_COLUMNS = r"(?i)\b(DROP|TO)\b"
"""Pattern of what an `ALTER` has in it that drops or renames a column."""
PUBLICATION = "publication"
"""The action of a statement that changes which tables are captured."""


def read_statement(sql: str) -> tuple[str | None, str | None]:
    """Return what SQL does to which table; the name as the engine stores it.

    The action is ``create table`` etc., ``publication``, or None for what is of no concern; the
    table is None for a publication that ALTER DATABASE changes.
    """
    action: str | None = None
    name: str | None = None
    statement = parse(sql)
    if statement is not None and statement.kind == "TABLE":
        verb = "RECREATE" if statement.is_recreated else statement.verb
        action, name = f"{verb.lower()} table", statement.name
    # A table that is being made has no earlier rows, so its publication is of no concern.
    if action in (None, ALTER) and any(publication_clauses(sql)):
        action = PUBLICATION
    return action, name
