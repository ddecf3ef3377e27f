"""The name of a topic, made of a database path and a table's name: ``topic.name.encoding``.

``replace`` is the manual's rule, in which names may become one: ``\\``, ``/`` and ``:`` become
``_`` (docs/topics.md), and so does what else Kafka forbids. ``transliterate`` writes other
alphabets in Latin letters and tells names apart by a short hash. ``escape`` is one-to-one, also in
the eyes of a broker, for whom ``.`` and ``_`` are the same (``Topic.unifyCollisionChars``):

- letters of ASCII and digits stand for themselves, and so does ``_`` in the name of a table;
- ``/`` is written ``--`` and ``.`` is written ``-.``;
- everything else, ``-`` and the ``_`` of a path included, is ``-`` and the four hexadecimal digits
  of each of its UTF-16 code units.

No piece begins like another one, so they can be told apart again. A path has no bare ``.`` or
``_``, so the first one ends it, if the delimiter begins with one of them. With other delimiters,
and where a name would be too long, a hash at the end makes the name the only one. It begins with
``-h``, which no piece does.
"""

from __future__ import annotations

import hashlib
import re

from anyascii import anyascii

from firebird_cdc.config.values import MAX_TOPIC_LENGTH

REPLACE, TRANSLITERATE, ESCAPE = "replace", "transliterate", "escape"

_SEPARATORS = str.maketrans("\\/:", "___")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9._-]")
_STANDS_FOR_ITSELF = re.compile(r"[A-Za-z0-9]")
_SHORT = 4
_LONG = 16  # bytes: no two names that anybody could find have the same
_LONGEST_ENDING = len("-h") + 2 * _LONG
_LONGEST_PIECE = 10  # a character beyond U+FFFF


def path_part(database: str, encoding: str) -> str:
    """Return the path of a DATABASE as it stands in names of topics and schemas."""
    if encoding == ESCAPE:
        return "".join(_escaped(database, kept=""))
    return _without_forbidden(database.translate(_SEPARATORS), database, encoding)


def table_part(table: str, encoding: str) -> str:
    """Return the name of a TABLE as it stands in names of topics."""
    if encoding == ESCAPE:
        return "".join(_escaped(table, kept="_"))
    return _without_forbidden(table, table, encoding)


def topic_of(
    encoding: str, prefix: str, database: str | None, table: str, delimiter: str = "."
) -> str:
    """Return the topic of TABLE in DATABASE, a path; None: the path is no part of the name.

    The result may be longer than ``MAX_TOPIC_LENGTH``: with `REPLACE`, or if the prefix leaves no
    room for a hash.
    """
    parts = [prefix] if database is None else [prefix, path_part(database, encoding)]
    topic = delimiter.join([*parts, table_part(table, encoding)])
    own = [table] if database is None else [database, table]
    if encoding == ESCAPE:
        is_open = database is not None and (delimiter[0] not in "._" or "-" in delimiter)
        if is_open or len(topic) > MAX_TOPIC_LENGTH:
            return _hashed(topic, len(prefix + delimiter), f"-h{_digest(own, _LONG)}")
    elif encoding == TRANSLITERATE and len(topic) > MAX_TOPIC_LENGTH:
        return _hashed(topic, len(prefix + delimiter), f"-{_digest(own, _SHORT)}")
    return topic


def beginning_of(encoding: str, prefix: str, database: str, delimiter: str) -> str:
    """Return what the topics of all tables in DATABASE begin with."""
    whole = delimiter.join([prefix, path_part(database, encoding), ""])
    if encoding == REPLACE:
        return whole
    return whole[: MAX_TOPIC_LENGTH - _LONGEST_ENDING - _LONGEST_PIECE]


def code_units(character: str) -> list[int]:
    """Return the UTF-16 code units of CHARACTER."""
    raw = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(raw[place : place + 2], "big") for place in range(0, len(raw), 2)]


def _without_forbidden(text: str, original: str, encoding: str) -> str:
    """TEXT without what Kafka forbids; with a hash of ORIGINAL where it was transliterated."""
    if encoding == REPLACE or not _FORBIDDEN.search(text):
        return _FORBIDDEN.sub("_", text)
    # The apostrophe stands for the soft and the hard sign.
    latin = anyascii(text).replace("'", "")
    return f"{_FORBIDDEN.sub('_', latin)}-{_digest([original], _SHORT)}"


def _escaped(text: str, kept: str) -> list[str]:
    """The pieces of TEXT, one for each character; KEPT stand for themselves, too."""
    return [_piece(character, kept) for character in text]


def _piece(character: str, kept: str) -> str:
    if _STANDS_FOR_ITSELF.match(character) or character in kept:
        return character
    if character == "/":
        return "--"
    if character == ".":
        return "-."
    return "".join(f"-{unit:04x}" for unit in code_units(character))


_PIECE = re.compile(r"-(?:[-._]|[0-9a-f]{4})|.", re.DOTALL)


def _hashed(topic: str, start: int, ending: str) -> str:
    """TOPIC, cut where it is too long, with ENDING. What is before START stays, and no piece is cut
    in two: what is left of one could be read together with the ending."""
    room = MAX_TOPIC_LENGTH - len(ending)
    end = start
    for piece in _PIECE.finditer(topic, start):
        if piece.end() > room:
            break
        end = piece.end()
    return topic[:end] + ending


def _digest(parts: list[str], size: int) -> str:
    """The hash of PARTS, SIZE bytes, in hexadecimal digits."""
    content = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=size).hexdigest()
