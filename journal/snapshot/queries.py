"""SQL that users give to choose what is read of a table: conditions, and whole SELECTs."""

from __future__ import annotations

import re

_SELECT = re.compile(r"\s*(SELECT|WITH)\b", re.IGNORECASE)
# What may hold a quote without being a literal comes before literals.
_PIECES = re.compile(
    r"""--[^\n]*
    | /\*.*?\*/
    | "[^"]*"
    | (?P<introducer> (?<![\w$]) _[\w$]+ \s* )?
      (?P<literal>
        (?<![\w$]) [qQ]' (?: \{.*?\}' | \(.*?\)' | \[.*?\]' | <.*?>' | (?P<end>\S).*?(?P=end)' )
        | '(?:[^']|'')*'
      )
    """,
    re.DOTALL | re.VERBOSE,
)


def is_select(sql: str) -> bool:
    """Tell whether SQL begins as a SELECT does: the engine calls a block one, too."""
    return _SELECT.match(sql) is not None


def with_character_set(sql: str) -> str:
    """Return SQL with the character set of its literals, where they have more than ASCII.

    Readers attach with NONE, so that texts come as they are stored, and a literal of NONE equals
    none of a column in another character set than UTF8.
    """

    def introduced(found: re.Match[str]) -> str:
        text = found[0]
        is_told = found["literal"] is None or found["introducer"] is not None
        return text if is_told or text.isascii() else f"_UTF8 {text}"

    return _PIECES.sub(introduced, sql)


def in_case(table: str, condition: str) -> str:
    """Return a SELECT that the engine takes only if CONDITION is one by itself.

    In the parentheses of a WHERE a text with others of its own could end these, and go on with what
    is no condition of TABLE.
    """
    return f"SELECT CASE WHEN\n{condition}\nTHEN 1 END FROM {table}"  # noqa: S608 (is quoted)


def in_where(condition: str) -> str:
    """Return CONDITION in parentheses; lines of its own end comments."""
    return f"(\n{condition}\n)"
