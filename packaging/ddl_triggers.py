"""Triggers on DDL, whose writes the engine reports to no replication: not to our plugin, and not
to its own. `check` names those that may write to captured tables.

Source: Firebird 5.0.4 and 4.0.5, tests/engine/test_ddl_triggers.py.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from firebird_cdc.packaging.server.findings import Finding, Findings, Severity

# RDB$DEPENDENT_TYPE and RDB$DEPENDED_ON_TYPE of RDB$DEPENDENCIES; 5 is a procedure, 15 a function.
_TABLE, _VIEW, _TRIGGER, _BODY = 0, 1, 2, 19

_WRITES = re.compile(r"\b(?:INSERT|UPDATE|DELETE|MERGE)\b", re.IGNORECASE)
_STATEMENT = re.compile(r"\bEXECUTE\s+STATEMENT\b", re.IGNORECASE)
_COMMENT = re.compile(r"/\*.*?\*/|--[^\n]*", re.DOTALL)
_SHOWN = 10

_Object = tuple[int, str]  # type and name; of what is in a package, that of its body
_Uses = dict[_Object, set[_Object]]
_SOURCES = (
    "SELECT 2, TRIM(TRAILING FROM RDB$TRIGGER_NAME), RDB$TRIGGER_SOURCE FROM RDB$TRIGGERS"
    " WHERE RDB$SYSTEM_FLAG = 0",
    "SELECT 5, TRIM(TRAILING FROM RDB$PROCEDURE_NAME), RDB$PROCEDURE_SOURCE FROM RDB$PROCEDURES"
    " WHERE RDB$PACKAGE_NAME IS NULL",
    "SELECT 15, TRIM(TRAILING FROM RDB$FUNCTION_NAME), RDB$FUNCTION_SOURCE FROM RDB$FUNCTIONS"
    " WHERE RDB$PACKAGE_NAME IS NULL",
    "SELECT 19, TRIM(TRAILING FROM RDB$PACKAGE_NAME), RDB$PACKAGE_BODY_SOURCE FROM RDB$PACKAGES",
)


class DdlTrigger(NamedTuple):
    """An active trigger on DDL that may write: the tables that it uses, also through procedures,
    functions, packages, views and other triggers. The engine keeps no note of which are written.

    ``runs_statements``: whether EXECUTE STATEMENT is in it, whose tables nothing tells.
    """

    name: str
    tables: list[str]
    runs_statements: bool


def ddl_triggers(connection: Any) -> list[DdlTrigger]:
    """Return the triggers on DDL of an attached database, but those that write nothing.

    Raises any error of the driver.
    """
    cursor = connection.cursor()
    cursor.execute(
        "SELECT TRIM(TRAILING FROM RDB$TRIGGER_NAME) FROM RDB$TRIGGERS WHERE RDB$SYSTEM_FLAG = 0"
        " AND COALESCE(RDB$TRIGGER_INACTIVE, 0) = 0"
        # Bits 13 and 14: 0 of a table, 1 of the database, 2 on DDL.
        " AND BIN_AND(RDB$TRIGGER_TYPE, 24576) = 16384 ORDER BY 1"
    )
    names = [name for (name,) in cursor.fetchall()]
    if not names:
        return []
    uses, triggers_of = _uses(cursor)
    sources = {
        (kind, name): _without_comments(text)
        for statement in _SOURCES
        for kind, name, text in cursor.execute(statement).fetchall()
    }
    found = []
    for name in names:
        # Triggers of tables fire only if one of these writes.
        called = _reached((_TRIGGER, name), uses, {})
        texts = [sources[each] for each in called if each in sources]
        runs = any(text is not None and _STATEMENT.search(text) for text in texts)
        # Whose source was removed may write.
        if runs or any(text is None or _WRITES.search(text) for text in texts):
            reached = _reached((_TRIGGER, name), uses, triggers_of)
            tables = sorted({name for kind, name in reached if kind in (_TABLE, _VIEW)})
            found.append(DdlTrigger(name, tables, runs))
    return found


def findings(
    database: str, triggers: Sequence[DdlTrigger], captured: Callable[[str], bool]
) -> Findings:
    """Yield what to know of TRIGGERS; CAPTURED: tells whether changes of a table are."""
    for trigger in triggers:
        tables = [table for table in trigger.tables if captured(table)]
        more = f" and {len(tables) - _SHOWN} more" if len(tables) > _SHOWN else ""
        named = ", ".join(tables[:_SHOWN]) + more
        if tables:
            yield Finding(
                database,
                f"the trigger {trigger.name} on DDL uses captured tables ({named}); if it writes to"
                " them, the engine tells no replication of it: those rows are in no journal"
                + (", nor is what its EXECUTE STATEMENT writes" if trigger.runs_statements else ""),
                "have it write to tables that are not captured; EXCLUDE TABLE … FROM PUBLICATION"
                " for a table that it alone writes to",
                Severity.WARNING,
            )
        elif trigger.runs_statements:
            yield Finding(
                database,
                f"the trigger {trigger.name} on DDL runs EXECUTE STATEMENT; what that writes to"
                " captured tables, if it does, is in no journal, and can't be told from here",
                "see that it writes to no captured table",
                Severity.NOTE,
            )


def _without_comments(text: Any) -> str | None:
    """Return a source; TEXT: None, a string, or of a long one what the driver reads it from."""
    if text is None:
        return None
    return _COMMENT.sub(" ", text if isinstance(text, str) else text.read())


def _uses(cursor: Any) -> tuple[_Uses, dict[str, list[str]]]:
    """Return what uses what, and the triggers of tables and views by their names."""
    uses: defaultdict[_Object, set[_Object]] = defaultdict(set)
    cursor.execute(
        "SELECT RDB$DEPENDENT_TYPE, TRIM(TRAILING FROM RDB$DEPENDENT_NAME), RDB$DEPENDED_ON_TYPE,"
        " TRIM(TRAILING FROM RDB$DEPENDED_ON_NAME), TRIM(TRAILING FROM RDB$PACKAGE_NAME)"
        " FROM RDB$DEPENDENCIES"
        " WHERE RDB$DEPENDENT_TYPE IN (1, 2, 5, 15, 19)"
    )
    for kind, name, other_kind, other, package in cursor.fetchall():
        uses[kind, name].add((_BODY, package) if package else (other_kind, other))
    cursor.execute(
        "SELECT TRIM(TRAILING FROM RDB$RELATION_NAME), TRIM(TRAILING FROM RDB$TRIGGER_NAME)"
        " FROM RDB$TRIGGERS"
        " WHERE RDB$SYSTEM_FLAG = 0 AND COALESCE(RDB$TRIGGER_INACTIVE, 0) = 0"
        " AND RDB$RELATION_NAME IS NOT NULL"
    )
    triggers: defaultdict[str, list[str]] = defaultdict(list)
    for table, trigger in cursor.fetchall():
        triggers[table].append(trigger)
    return uses, triggers


def _reached(start: _Object, uses: _Uses, triggers: Mapping[str, list[str]]) -> set[_Object]:
    """Return START and all that it uses, by whatever way; TRIGGERS: of tables, by their names."""
    reached = {start}
    waiting: list[_Object] = [start]
    while waiting:
        for each in _next(waiting.pop(), uses, triggers):
            if each not in reached:
                reached.add(each)
                waiting.append(each)
    return reached


def _next(of: _Object, uses: _Uses, triggers: Mapping[str, list[str]]) -> Iterator[_Object]:
    kind, name = of
    yield from uses.get(of, ())
    if kind == _TABLE:  # a view may be written down as a table where it is used
        yield from uses.get((_VIEW, name), ())
    if kind in (_TABLE, _VIEW):
        yield from ((_TRIGGER, trigger) for trigger in triggers.get(name, ()))
