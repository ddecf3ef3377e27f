"""Turns the text of one value into a typed one: numbers, booleans, lists, patterns."""

from __future__ import annotations

import codecs
import re
import warnings

# Firebird's names where Python's codecs module spells the same character set differently.
_CHARSETS = {
    "UTF8": "UTF-8",
    "UNICODE_FSS": "UTF-8",
    "ASCII": "ascii",
    "KOI8R": "koi8-r",
    "KOI8U": "koi8-u",
    "SJIS_0208": "shift_jis",
    "EUCJ_0208": "euc_jp",
    "KSC_5601": "cp949",
    "BIG_5": "big5",
    "GB_2312": "gb2312",
    "TIS620": "tis-620",
    "CP943C": "cp932",
}


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


def compile_patterns(items: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    """Compile ITEMS, to be used with ``fullmatch``, without regard to letter case.

    Raises ValueProblem that names each item that is no regular expression and, where one
    is obvious, the pattern that was meant.
    """
    patterns: list[re.Pattern[str]] = []
    problems: list[str] = []
    for number, item in enumerate(items, 1):
        try:
            with warnings.catch_warnings():
                # What Python warns of, e.g. [[a], means something else in Java: ask for clarity.
                warnings.simplefilter("error", FutureWarning)
                patterns.append(re.compile(item, re.IGNORECASE))
        except (re.error, OverflowError, RecursionError, FutureWarning) as error:
            meant = _suggest_pattern(item)
            hint = f"; did you mean {meant}?" if meant else ""
            problems.append(f"item {number} ({item}) is not a regular expression: {error}{hint}")
    if problems:
        raise ValueProblem("; ".join(problems))
    return tuple(patterns)


def _suggest_pattern(item: str) -> str | None:
    """Return what a shell-like pattern means as a regular expression: ``*.name`` -> ``.*name``."""
    candidate = re.sub(r"(?<![\w.)\]}\\])\*\.?", ".*", item)
    if candidate == item:
        return None
    try:
        re.compile(candidate)
    except re.error:
        return None
    return candidate


def codec_of(charset: str) -> str:
    """Return the name of Python's codec for CHARSET, a Firebird or Python name."""
    upper = charset.upper()
    name = _CHARSETS.get(upper, charset)
    if match := re.fullmatch(r"(?:WIN_?(?=125[0-8])|DOS)([0-9]{3,4})", upper):
        name = f"cp{match[1]}"
    try:
        b"xx".decode(name, "replace")  # refuses what does not give text, such as hex
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        raise ValueProblem(
            "it must name a character set, e.g. UTF-8, WIN1251, ISO8859_1, KOI8R"
        ) from None
