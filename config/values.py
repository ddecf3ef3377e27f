"""Turns the text of one option, as a file has it, into a typed value: numbers, booleans, lists."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from firebird_cdc.config.secrets import shown_variable
from firebird_cdc.journal.format.charsets import find_codec

# Java's names of digests, in capitals and without the hyphen behind SHA, and those of hashlib.
_DIGESTS = {
    "MD5": "md5",
    "SHA": "sha1",
    "SHA1": "sha1",
    "SHA224": "sha224",
    "SHA256": "sha256",
    "SHA384": "sha384",
    "SHA512": "sha512",
    "SHA512/224": "sha512_224",
    "SHA512/256": "sha512_256",
    "SHA3-224": "sha3_224",
    "SHA3-256": "sha3_256",
    "SHA3-384": "sha3_384",
    "SHA3-512": "sha3_512",
}
ALGORITHMS = (
    "MD5, SHA-1, SHA-224, SHA-256, SHA-384, SHA-512, SHA-512/224, SHA-512/256,"
    " SHA3-224, SHA3-256, SHA3-384, SHA3-512"
)
"""Hash algorithms as a user writes them."""


MAX_TOPIC_LENGTH = 249
"""Characters that Kafka allows in a topic name (``org.apache.kafka.common.internals.Topic``)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One key as written in a file, or given by the environment.

    ``value``: the scalar's text, the texts of a YAML list, or None for YAML's null.
    ``line``: the line of the key, from 1. ``variable``: the environment's that gives it, empty: the
    file does.
    """

    key: str
    line: int
    value: str | tuple[str, ...] | None
    variable: str = ""

    def place(self, path: Path) -> str:
        """Return where it is written, in PATH or the environment, as messages begin."""
        if self.variable:
            return f"environment, {shown_variable(self.variable)}"
        return f"{path}:{self.line}"


class ValueProblem(Exception):
    """The value cannot be used. The text continues the sentence "<key> is <value>; ..."."""


def parse_integer(text: str, low: int, high: int) -> int:
    """Return the integer in TEXT; raises ValueProblem unless LOW <= value <= HIGH."""
    if not re.fullmatch(r"[+-]?[0-9]{1,40}", text):
        raise ValueProblem(f"it must be a whole number from {low} to {high}")
    value = int(text)
    if not low <= value <= high:
        raise ValueProblem(f"it must be from {low} to {high}")
    return value


def parse_boolean(text: str) -> bool:
    """Return the boolean in TEXT, in the spellings of YAML 1.1, in any case of letters."""
    word = text.lower()
    if word in ("true", "yes", "on"):
        return True
    if word in ("false", "no", "off"):
        return False
    raise ValueProblem("it must be true or false")


def split_list(value: str | tuple[str, ...]) -> tuple[str, ...]:
    r"""Return the items of a list, blanks around each removed, empty ones left out.

    Text is split at commas; ``\,`` stands for a comma inside an item. The items of a YAML
    list are taken as they are, so a pattern such as ``t{1,3}`` is best written in one.
    """
    if isinstance(value, tuple):
        items = list(value)
    else:
        items = [item.replace("\\,", ",") for item in re.split(r"(?<!\\),", value)]
    return tuple(item.strip() for item in items if item.strip())


def codec_of(charset: str) -> str:
    """Return the name of Python's codec for CHARSET, a Firebird or Python name."""
    codec = find_codec(charset)
    if codec is None:
        raise ValueProblem("it must name a character set, e.g. UTF-8, WIN1251, ISO8859_1, KOI8R")
    return codec


def digest_of(algorithm: str) -> str:
    """Return hashlib's name of ALGORITHM, a name that Java's ``MessageDigest`` knows."""
    name = _DIGESTS.get(re.sub(r"^SHA-", "SHA", algorithm.upper()))
    if name is None or name not in hashlib.algorithms_available:
        raise ValueProblem(f"there is no hash algorithm {algorithm}; allowed: {ALGORITHMS}")
    return name


def check_class_path(path: str) -> str:
    """Return PATH, which has to have the form ``package.module.Class``."""
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueProblem("it must be the dotted path of a Python class, e.g. my_package.MyClass")
    return path


def split_outside(text: str, separator: str) -> list[str]:
    r"""Split the regular expression TEXT at each SEPARATOR that stands for itself.

    That is one outside of brackets of any kind and not behind a ``\``.
    """
    places = [place for place, character in _outside(text) if character == separator]
    return [
        text[start + 1 : end]
        for start, end in zip([-1, *places], [*places, len(text)], strict=True)
    ]


def _outside(text: str) -> Iterator[tuple[int, str]]:
    """Yield the characters of a regular expression that no bracket encloses, and their places."""
    depth, place = 0, 0
    while place < len(text):
        character = text[place]
        if character == "\\":
            place += 1
        elif character == "[":
            # A bracket that comes first, or right behind ^, belongs to the class.
            match = re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*\]").match(text, place)
            place = match.end() - 1 if match else place
        elif character in "({":
            depth += 1
        elif character in ")}":
            depth -= 1
        elif depth <= 0:
            yield place, character
        place += 1
