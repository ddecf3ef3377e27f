"""What the text of a DDL statement says of tables: which one it is about, and what it does to it.

Only the beginning of a statement is understood, and of ALTER DOMAIN its clauses. What the table is
like afterwards, the system tables tell (bridge/structures.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from firebird_cdc.journal.format import Undecodable

_TOKEN = re.compile(
    r"""\s+ | --[^\n]* | /\*.*?(?:\*/|\Z)      # nothing
    | [qQ]'\((?P<a>.*?)\)' | [qQ]'\[.*?\]' | [qQ]'\{.*?\}' | [qQ]'<.*?>'   # alternate quotes
    | [qQ]'(?P<q>[^\s\w])(?:.*?)(?P=q)'
    | '(?:[^']++|'')*+'?                       # a literal
    | "(?P<quoted>(?:[^"]++|"")*+)"?
    | (?P<word>[A-Za-z_$][\w$]*)
    | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_LITERAL = "'"
_DIRECTIONS = frozenset({"UNIQUE", "ASC", "ASCENDING", "DESC", "DESCENDING"})
_TEMPORARY = frozenset({"GLOBAL", "LOCAL", "TEMPORARY"})


class Statement(NamedTuple):
    """A statement that may change tables.

    ``verb``: CREATE (also for RECREATE), ALTER or DROP; ``kind``: TABLE, INDEX or DOMAIN;
    ``name`` as stored. ``table``: that of CREATE INDEX. ``renamed``: the new name of a domain.
    """

    verb: str
    kind: str
    name: str
    table: str | None = None
    renamed: str | None = None


class _Token(NamedTuple):
    word: str  # in capitals, if it is a keyword or a plain name; else what it begins with
    name: str | None  # as an identifier, None if it can't be one


def text_of(sql: str | Undecodable) -> str:
    """Return the text of a statement, with replacement characters where its bytes make none."""
    return sql if isinstance(sql, str) else sql.raw.decode("utf-8", "replace")


def parse(sql: str) -> Statement | None:
    """Return what SQL may do to tables, None if that is nothing.

    Not told: CREATE DOMAIN and DROP DOMAIN, which no table uses, and an ALTER DOMAIN that only
    renames or checks; a statement that ends early.
    """
    try:
        return _parse(_tokens(sql))
    except StopIteration:
        return None


def _tokens(sql: str) -> Iterator[_Token]:
    for found in _TOKEN.finditer(sql):
        text = found.group()
        if (quoted := found["quoted"]) is not None:
            yield _Token('"', quoted.replace('""', '"').rstrip(" "))
        elif (word := found["word"]) is not None:
            yield _Token(word.upper(), word.upper())
        elif found["other"] is not None:
            yield _Token(text, None)
        elif text.startswith(("'", "q'", "Q'")):
            yield _Token(_LITERAL, None)


def _parse(tokens: Iterator[_Token]) -> Statement | None:
    verb = next(tokens).word
    if verb not in ("CREATE", "RECREATE", "ALTER", "DROP"):
        return None
    kind = next(tokens).word
    while verb in ("CREATE", "RECREATE") and kind in _DIRECTIONS | _TEMPORARY:
        kind = next(tokens).word
    if kind == "TABLE":
        verb = "CREATE" if verb == "RECREATE" else verb
        return _named(verb, kind, _name(tokens))
    if kind == "INDEX":
        name = _name(tokens)
        if verb != "CREATE":
            return _named(verb, kind, name)
        next(tokens)  # ON
        return None if name is None else Statement(verb, kind, name, table=next(tokens).name)
    if kind == "DOMAIN" and verb == "ALTER":
        return _altered_domain(tokens)
    return None


def _named(verb: str, kind: str, name: str | None) -> Statement | None:
    return None if name is None else Statement(verb, kind, name)


def _name(tokens: Iterator[_Token]) -> str | None:
    """Return the name that comes next, behind IF EXISTS or IF NOT EXISTS if that is there."""
    token = next(tokens)
    if token.word != "IF":
        return token.name
    following = next(tokens, None)
    if following is None or following.word not in ("NOT", "EXISTS"):
        return token.name
    if following.word == "NOT":
        next(tokens)
    return next(tokens).name


def _altered_domain(tokens: Iterator[_Token]) -> Statement | None:
    name = next(tokens).name
    depth = 0
    changes = False
    renamed = None
    before = ""
    for token in tokens:
        depth += (token.word == "(") - (token.word == ")")
        if depth == 0:
            if before == "TO":
                renamed = token.name
            changes = changes or token.word == "TYPE"
            changes = changes or (before in ("SET", "DROP") and token.word in ("DEFAULT", "NOT"))
            before = token.word
    if name is None or not changes:
        return None
    return Statement("ALTER", "DOMAIN", name, renamed=renamed)
