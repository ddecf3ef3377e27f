"""Signals: what they ask for, read from the type and data that some channel brought.

The vocabulary is Debezium's: ``execute-snapshot``, ``stop-snapshot``, ``pause-snapshot``,
``resume-snapshot``, ``log`` and ``schema-changes``, with its names of fields. Where Debezium
ignores what it doesn't understand, this refuses: a misspelt ``additional-conditions`` must not
become a snapshot of all rows.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from firebird_cdc.config.patterns import compile_patterns
from firebird_cdc.config.values import ValueProblem


class SignalError(ValueError):
    """A signal that can't be followed. The text is for an operator and for a notification: it says
    what is wrong and what is expected."""


@dataclass(frozen=True, slots=True)
class ExecuteSnapshot:
    """Asks for a snapshot of the tables that ``collections``, patterns, match.

    ``conditions``: pairs of a pattern for tables and a filter, see ``condition_for``. A filter is
    what stands behind WHERE, or for a blocking snapshot a whole SELECT. ``surrogate_key``: accepted
    for Debezium's sake; rows are read in their physical order, which needs no key.
    """

    id: str
    is_blocking: bool
    collections: tuple[str, ...]
    conditions: tuple[tuple[str, str], ...] = ()
    surrogate_key: str | None = None


@dataclass(frozen=True, slots=True)
class StopSnapshot:
    """Takes the tables that ``collections``, patterns, match out of the running snapshot; None:
    ends it as a whole."""

    id: str
    collections: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class PauseSnapshot:
    """Lets the running snapshot rest where it is."""

    id: str


@dataclass(frozen=True, slots=True)
class ResumeSnapshot:
    """Lets a paused snapshot go on."""

    id: str


@dataclass(frozen=True, slots=True)
class LogMessage:
    """Asks for a line in the log."""

    id: str
    message: str

    def text(self, position: str) -> str:
        """Return the line, with POSITION in place of each ``{}``."""
        return " ".join(self.message.splitlines()).replace("{}", position)


@dataclass(frozen=True, slots=True)
class SchemaChanges:
    """Tells of the structure of ``tables`` in ``database``, which Debezium takes over.

    Nothing has to be done here: a journal has the structure of each table at each change.
    """

    id: str
    database: str
    tables: tuple[str, ...]


Signal = (
    ExecuteSnapshot | StopSnapshot | PauseSnapshot | ResumeSnapshot | LogMessage | SchemaChanges
)


# Reading


def parse_signal(id: str, type: str, data: str | None) -> Signal:
    """Return the signal that a channel brought; DATA is JSON. Raises SignalError."""
    # A column of type CHAR pads its text with blanks.
    id, type = id.strip(), type.strip()
    parse = _PARSERS.get(type)
    if parse is None:
        near = difflib.get_close_matches(type.lower(), _PARSERS, 1)
        raise SignalError(
            f"there is no signal of type {_shown(type)}; "
            + (f"did you mean {near[0]}?" if near else f"types are {', '.join(_PARSERS)}")
        )
    return parse(id, data)


def describe_broken(text: str) -> str:
    """Return what makes TEXT, of a signal, one that can't be written anywhere; empty: nothing.
    JSON may have half of a pair of surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"half of a character, {text[error.start : error.end]!r}, which is no text"
    return ""


def _execute(id: str, data: str | None) -> Signal:
    fields = _fields(data, "execute-snapshot", _SNAPSHOT_FIELDS)
    is_blocking = _snapshot_type(fields) == "blocking"
    collections = _collections(fields)
    if not collections:
        raise SignalError(
            "data-collections names no table; it must be a list of regular expressions for"
            " <database path>.<table>"
        )
    conditions = _conditions(fields)
    for pattern, condition in conditions:
        if not is_blocking and is_statement(condition):
            raise SignalError(
                f"the filter for {pattern} is a whole statement, which only a blocking snapshot can"
                " run; that of an incremental snapshot is what stands behind WHERE, e.g. COLOR ="
                " 'blue'"
            )
    surrogate_key = (_text(fields, "surrogate-key") or "").strip() or None
    return ExecuteSnapshot(id, is_blocking, collections, conditions, surrogate_key)


def _stop(id: str, data: str | None) -> Signal:
    fields = _fields(data, "stop-snapshot", _SNAPSHOT_FIELDS)
    if fields.get("type") is None:
        raise SignalError('type is missing; a stop-snapshot needs "type": "incremental"')
    if _snapshot_type(fields) != "incremental":
        raise SignalError(
            "type is blocking; that of a stop-snapshot must be incremental, and firebird-cdc"
            " snapshot stop ends blocking ones, too"
        )
    return StopSnapshot(id, _collections(fields) or None)


def _log(id: str, data: str | None) -> Signal:
    message = _text(_fields(data, "log"), "message")
    if not message:
        raise SignalError('message is missing; a log signal needs {"message": "some text"}')
    return LogMessage(id, message)


def _schema_changes(id: str, data: str | None) -> Signal:
    fields = _fields(data, "schema-changes")
    database = _text(fields, "database")
    if not database:
        raise SignalError("database is missing; it must be the path of the database")
    changes = _list(fields, "changes", "an object with type, id and table for each table")
    if not changes:
        raise SignalError("changes is missing; it must be a list with an object for each table")
    tables = []
    for number, change in enumerate(changes, 1):
        table = change.get("id") if isinstance(change, dict) else None
        if not isinstance(table, str) or not table:
            raise SignalError(f"item {number} of changes must be an object whose id names a table")
        tables.append(table)
    return SchemaChanges(id, database, tuple(tables))


_PARSERS: dict[str, Callable[[str, str | None], Signal]] = {
    "execute-snapshot": _execute,
    "stop-snapshot": _stop,
    "pause-snapshot": lambda id, _data: PauseSnapshot(id),
    "resume-snapshot": lambda id, _data: ResumeSnapshot(id),
    "log": _log,
    "schema-changes": _schema_changes,
}

_SNAPSHOT_FIELDS = (
    "type",
    "data-collections",
    "additional-conditions",
    "additional-condition",
    "surrogate-key",
)

_ANY_TABLE = ".*"


def is_statement(condition: str) -> bool:
    """Tell whether a filter is a whole statement, in place of what stands behind WHERE."""
    return re.match(r"\s*(?:SELECT|WITH)\b", condition, re.IGNORECASE) is not None


def _fields(data: str | None, kind: str, known: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields of DATA; if KNOWN is given, there may be no others."""
    if data is None or not data.strip():
        raise SignalError(f"data is missing; {kind} needs a JSON object")
    try:
        fields = json.loads(data)
        broken = describe_broken(json.dumps(fields, ensure_ascii=False))
    except ValueError as error:
        raise SignalError(f"data is not JSON: {error}; {kind} needs a JSON object") from None
    except RecursionError:
        raise SignalError(f"data is nested too deeply; {kind} needs a JSON object") from None
    if broken:
        raise SignalError(f"data has {broken}")
    if not isinstance(fields, dict):
        raise SignalError(f"data is {_kind(fields)}; {kind} needs a JSON object")
    for name in fields:
        if known and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise SignalError(
                f"data has a field {_shown(name)}, which {kind} has not; "
                + (f"did you mean {near[0]}?" if near else f"fields are {', '.join(known)}")
            )
    return fields


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise SignalError(f"{name} is {_kind(value)}; it must be a text")
    return value


def _list(fields: dict[str, Any], name: str, of: str) -> list[Any]:
    value = fields.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise SignalError(f"{name} is {_kind(value)}; it must be a list: {of}")
    return value


def _snapshot_type(fields: dict[str, Any]) -> str:
    given = _text(fields, "type")
    kind = "incremental" if given is None else given.strip().lower()
    if kind not in ("incremental", "blocking"):
        raise SignalError(f"type is {_shown(given)}; it must be incremental or blocking")
    return kind


def _collections(fields: dict[str, Any]) -> tuple[str, ...]:
    name = "data-collections"
    items = _list(fields, name, "regular expressions for <database path>.<table>")
    return tuple(
        _collection(item, f"item {n} of data-collections") for n, item in enumerate(items, 1)
    )


def _collection(item: Any, where: str) -> str:
    if not isinstance(item, str) or not item.strip():
        raise SignalError(
            f"{where} is {_kind(item)}; it must be a regular expression for <database path>.<table>"
        )
    text = item.strip()
    try:
        _compiled(text)
    except ValueProblem as problem:
        why = str(problem).removeprefix("item 1 ")
        raise SignalError(
            f"{where}: {why}. Write a name with special characters in double quotes,"
            ' e.g. /db/shop.fdb."A(B"'
        ) from None
    return text


def _conditions(fields: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    name = "additional-conditions"
    items = _list(fields, name, '{"data-collection": ..., "filter": ...} for each table')
    older = (_text(fields, "additional-condition") or "").strip()
    if older:
        if items:
            raise SignalError(f"there is both additional-condition and {name}; remove the first")
        return ((_ANY_TABLE, older),)
    return tuple(_condition(item, f"item {n} of {name}") for n, item in enumerate(items, 1))


def _condition(item: Any, where: str) -> tuple[str, str]:
    needed = ("data-collection", "filter")
    if not isinstance(item, dict) or set(item) != set(needed):
        raise SignalError(f"{where} must be an object with data-collection and filter")
    condition = item["filter"]
    if not isinstance(condition, str) or not condition.strip():
        raise SignalError(f"filter in {where} is {_kind(condition)}; it must be an SQL condition")
    return _collection(item["data-collection"], f"data-collection in {where}"), condition.strip()


def _kind(value: Any) -> str:
    """Return what VALUE is, in words of JSON."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return "a number"
        case str():
            return "a text" if value.strip() else "an empty text"
        case list():
            return "a list"
        case _:
            return "an object"


def _shown(text: str | None) -> str:
    shown = repr(text)
    return shown if len(shown) <= 100 else shown[:99] + "…"


# Matching


class Matched(NamedTuple):
    """The outcome of matching patterns.

    ``identifiers``: each once, in the order of the patterns. ``unmatched``: patterns that match
    none, which the sender has to be told.
    """

    identifiers: tuple[str, ...]
    unmatched: tuple[str, ...]


def matching(patterns: Iterable[str], identifiers: Sequence[str]) -> Matched:
    """Return which of IDENTIFIERS, ``<database path>.<table>``, the PATTERNS match.

    A pattern has to match the whole identifier, in any case of letters, as in
    ``table.include.list``; so the bare name of a table matches nothing. What stands in double
    quotes stands for itself. An identifier written out matches itself, whatever it means as a
    pattern: many names have a ``$``.
    """
    found: dict[str, None] = {}
    unmatched = []
    for pattern in patterns:
        matched = [each for each in identifiers if matches(pattern, each)]
        found.update(dict.fromkeys(matched))
        if not matched:
            unmatched.append(pattern)
    return Matched(tuple(found), tuple(unmatched))


def matches(pattern: str, identifier: str) -> bool:
    """Tell whether PATTERN, of a signal, matches IDENTIFIER."""
    if pattern.casefold() == identifier.casefold():
        return True
    return _compiled(pattern).fullmatch(identifier) is not None


def may_match(pattern: str, database: str) -> bool:
    """Tell whether PATTERN, of a signal, may match a table of DATABASE, by how it begins."""
    if "|" in pattern:
        return True
    text = pattern.replace('"', "").replace("[.]", ".").replace("\\.", ".").casefold()
    literal = _LITERAL.match(text)
    begin = "" if literal is None else literal[0]
    if text[len(begin) :][:1] in tuple("?*{+"):
        begin = begin[:-1]
    # A dot stands for any letter.
    return all(
        one in (other, ".") for one, other in zip(begin, f"{database}.".casefold(), strict=False)
    )


def describe_unmatched(pattern: str, identifiers: Iterable[str]) -> str:
    """Return a sentence on PATTERN, which matches none of IDENTIFIERS, and on what is meant."""
    name = pattern.replace('"', "").casefold()
    meant = [each for each in identifiers if each.casefold().endswith(f".{name}")]
    if meant:
        return f"{pattern} matches no table: write the whole name, {' or '.join(meant[:3])}"
    return f"{pattern} matches no captured table; a table's name is <database path>.<table>"


def condition_for(identifier: str, conditions: Iterable[tuple[str, str]]) -> str | None:
    """Return the filter of the first of CONDITIONS that is for IDENTIFIER, None: all its rows."""
    return next((text for pattern, text in conditions if matches(pattern, identifier)), None)


def idle_conditions(
    conditions: Iterable[tuple[str, str]], unmatched: Sequence[str], wanted: Sequence[str]
) -> list[str]:
    """Return the patterns of CONDITIONS that match none of the WANTED tables, though each is meant
    for one: UNMATCHED, ``data-collections`` that match none either, may be what it is for."""
    return [
        pattern
        for pattern, _ in conditions
        if not any(matches(pattern, each) for each in (*wanted, *unmatched))
        and pattern not in unmatched
    ]


# A text in double quotes, in which two of them stand for one; \" is a quote of the pattern's own.
_QUOTED = re.compile(r'\\.|"((?:[^"]|"")*)"', re.DOTALL)


_LITERAL = re.compile(r"[^\\*+?()\[\]{}|^$]+")


@lru_cache(256)
def _compiled(pattern: str) -> re.Pattern[str]:
    """Return the regular expression that PATTERN means. Raises ValueProblem."""

    def unquoted(match: re.Match[str]) -> str:
        quoted = match[1]
        return match[0] if quoted is None else re.escape(quoted.replace('""', '"'))

    (compiled,) = compile_patterns((_QUOTED.sub(unquoted, pattern),))
    return compiled
