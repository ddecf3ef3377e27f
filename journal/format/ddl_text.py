"""Parser of the text of DDL statements: which table one is about, and what it does to it.

Only the beginning of a statement is understood, of ALTER DOMAIN its clauses, and those on the
publication. What the table is like afterwards, the system tables tell (bridge/structures.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
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
    ``is_recreated``: a table of that name goes first.
    """

    verb: str
    kind: str
    name: str
    table: str | None = None
    renamed: str | None = None
    is_recreated: bool = False


class ColumnClause(NamedTuple):
    """A clause of ALTER TABLE: ``kind`` ADD, DROP or RENAME; ``to``: the new name in the last.

    An ADD of what may be a computed column is told as well.
    """

    kind: str
    name: str
    to: str = ""


class PublicationClause(NamedTuple):
    """A clause on what is captured.

    ``kind``: ENABLE or DISABLE, of the publication as a whole; INCLUDE or EXCLUDE, of ``tables``:
    their names as stored, none for ALL.
    """

    kind: str
    tables: tuple[str, ...] = ()


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


def column_clauses(sql: str) -> Iterator[ColumnClause]:
    """Yield what an ALTER TABLE does to columns, in order; nothing for any other statement.

    Clauses that change a column and leave its name are not told.
    """
    tokens = list(_tokens(sql))
    words = [token.word for token in tokens]
    if words[:2] != ["ALTER", "TABLE"]:
        return
    at = 3
    if words[2:4] == ["IF", "EXISTS"]:
        at = 5
    depth = 0
    clause: list[_Token] = []
    for token in [*tokens[at:], _Token(",", None)]:
        if depth == 0 and token.word in (",", ";"):
            yield from _column_clause(clause)
            clause = []
            continue
        depth += (token.word == "(") - (token.word == ")")
        clause.append(token)


_CONSTRAINTS = frozenset({"CONSTRAINT", "PRIMARY", "UNIQUE", "FOREIGN", "CHECK"})


def _column_clause(tokens: list[_Token]) -> Iterator[ColumnClause]:
    words = [token.word for token in tokens]
    if len(words) < 2 or words[0] not in ("ADD", "DROP", "ALTER"):
        return
    at = 1
    if words[1] in _CONSTRAINTS:
        # Not words that are reserved: none of these can be the name of a column.
        return
    if words[1] == "COLUMN" and len(words) > 2 and (words[0] == "ALTER" or words[2] == "IF"):
        at = 2
    if words[at] == "IF" and words[at + 1 : at + 3] == ["NOT", "EXISTS"]:
        at += 3
    elif words[at] == "IF" and words[at + 1 : at + 2] == ["EXISTS"]:
        at += 2
    if at >= len(tokens) or (name := tokens[at].name) is None:
        return
    if words[0] != "ALTER":
        yield ColumnClause(words[0], name)
    elif words[at + 1 : at + 2] == ["TO"] and len(tokens) > at + 2:
        new = tokens[at + 2].name
        if new is not None:
            yield ColumnClause("RENAME", name, new)


_OF_TABLE = {"ENABLE": "INCLUDE", "DISABLE": "EXCLUDE"}
_OF_DATABASE = {"TO": "INCLUDE", "FROM": "EXCLUDE"}


def publication_clauses(sql: str) -> Iterator[PublicationClause]:
    """Yield what an ALTER DATABASE, or a CREATE or ALTER TABLE, does to the publication, in order.

    ENABLE PUBLICATION of a table is told as the INCLUDE of that table, DISABLE as its EXCLUDE.
    Source: db_alter_clause, table_attribute and alter_op in the engine's parse.y.
    """
    if "publication" not in sql.lower():
        return
    tokens = list(_tokens(sql))
    if [token.word for token in tokens[:2]] != ["ALTER", "DATABASE"]:
        statement = parse(sql)
        if statement is not None and statement.kind == "TABLE":
            for before, token in pairwise(tokens):
                if token.word == "PUBLICATION" and before.word in _OF_TABLE:
                    yield PublicationClause(_OF_TABLE[before.word], (statement.name,))
        return
    names: list[str] = []
    for before, token in pairwise(tokens):
        # Words that are reserved: none of these can be the name of a table.
        if token.word in ("ALL", "TABLE"):
            names = []
        elif token.word == "PUBLICATION":
            if before.word in _OF_DATABASE:
                yield PublicationClause(_OF_DATABASE[before.word], tuple(names))
            else:
                yield PublicationClause(before.word)
        elif token.name is not None and token.word not in _OF_DATABASE:
            names.append(token.name)


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
        statement = _named("CREATE" if verb == "RECREATE" else verb, kind, _name(tokens))
        return statement and statement._replace(is_recreated=verb == "RECREATE")
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
