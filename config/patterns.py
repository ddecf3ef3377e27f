"""Regular expressions of options: lists of tables, columns and topics.

The manual of the RED Database connector has ``*.name`` in an example. Java takes that no more than
Python does; here an item that begins with ``*`` is read as if it began with ``.*``.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import yaml

from firebird_cdc.config.options import Kind, Option, find_option
from firebird_cdc.config.secrets import shown_key
from firebird_cdc.config.values import Entry, ValueProblem, split_outside


def compile_patterns(items: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    """Compile ITEMS, to be used with ``fullmatch``, without regard to letter case.

    One that nothing marks as an expression also matches the name that it is, letter for letter; and
    a ``$`` that can't be the end of a name matches itself, too: many names have one.

    Raises ValueProblem that names each item that is no regular expression and, where one
    is obvious, the pattern that was meant.
    """
    patterns: list[re.Pattern[str]] = []
    problems: list[str] = []
    for number, item in enumerate(items, 1):
        if _CUT_OFF.search(item):
            problems.append(
                f"item {number} ({item}) ends within braces; write \\, for a comma that belongs to"
                " a pattern, or a YAML list"
            )
            continue
        try:
            pattern = _compile(item)
            patterns.append(_forgiving(item, pattern, is_name=_MARK.search(item) is None))
        except ValueError as error:
            meant = _suggest_pattern(item)
            hint = f"; did you mean {meant}?" if meant else ""
            problems.append(f"item {number} ({item}) is not a regular expression: {error}{hint}")
    if problems:
        raise ValueProblem("; ".join(problems))
    return tuple(patterns)


def name_pattern(text: str) -> re.Pattern[str]:
    """Compile TEXT, a name or a regular expression for names, to be used with ``fullmatch``.

    A name may be no such expression: ``$`` is in many. Raises ValueProblem.
    """
    compile_patterns((text,))
    return _forgiving(text, _compile(text), is_name=True)


# The half of t{1,3} before the comma: for Python the brace then stands for itself.
_CUT_OFF = re.compile(r"(?<!\\)\{[0-9]*\Z")


# Whoever writes one of these means a regular expression, and no name.
_MARK = re.compile(r"\.\*|\[\.\]|\\\.")

_FLAGS = re.compile(r"(?:\(\?[a-zA-Z]+\))*")

# What \ or brackets quote, and a $ that more text follows.
_DOLLAR = re.compile(r"\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]|\$(?![)|]|\Z)", re.DOTALL)


def _forgiving(item: str, pattern: re.Pattern[str], *, is_name: bool) -> re.Pattern[str]:
    """Return PATTERN, compiled of ITEM, so that it takes a ``$`` within a name for one; is_name: it
    matches ITEM itself, too. What it matched it still does."""
    flags = _FLAGS.match(item)
    head = flags[0] if flags else ""
    bare = item.removeprefix(head)
    text = _DOLLAR.sub(lambda match: "(?:[$]|$)" if match[0] == "$" else match[0], bare)
    try:
        if text != bare:
            pattern = _compile(head + text)
        if is_name and not pattern.fullmatch(bare):
            end = "\n" if "x" in head else ""  # where a comment may be the last
            pattern = _compile(f"{head}{re.escape(bare)}|(?:{text}{end})")
    except ValueError:  # as ( in a comment
        return pattern
    return pattern


def _compile(item: str) -> re.Pattern[str]:
    """Compile ITEM; raises ValueError if it is no regular expression."""
    try:
        with warnings.catch_warnings():
            # What Python warns of, e.g. [[a], means something else in Java: ask for clarity.
            warnings.simplefilter("error", FutureWarning)
            return re.compile(item, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError, FutureWarning) as error:
        raise ValueError(str(error)) from error


def _suggest_pattern(item: str) -> str | None:
    """Return what a shell-like pattern means as a regular expression: ``*.name`` -> ``.*name``."""
    candidate = re.sub(r"(?<![\w.)\]}\\])\*\.?", ".*", item)
    if candidate == item:
        return None
    try:
        _compile(candidate)
    except ValueError:
        return None
    return candidate


# Items that begin with *


def holds_patterns(key: str, option: Option) -> bool:
    """Tell whether the value of KEY, a key of OPTION, is a list of regular expressions."""
    if option.name.startswith("topic.creation."):
        return key.endswith((".include", ".exclude"))
    return option.kind in (Kind.PATTERNS, Kind.MESSAGE_KEYS)


def names_patterns(key: str) -> bool:
    """Tell whether KEY, as a file has it, is of an option whose value is such a list."""
    option = find_option(key)
    return option is not None and holds_patterns(key, option)


def read_stars(entry: Entry, option: Option) -> tuple[Entry, str]:
    """Return ENTRY, of patterns, with ``.*`` where one begins with ``*``, and a warning.

    The warning is the rest of a sentence that begins with the key; empty if nothing was changed.
    An item that is no regular expression even so stays as it is.
    """
    found: list[str] = []
    split = _in_keys if option.kind is Kind.MESSAGE_KEYS else _in_list
    value: str | tuple[str, ...]
    if isinstance(entry.value, tuple):
        mend = split if option.kind is Kind.MESSAGE_KEYS else _mended
        value = tuple(mend(_in_one_line(item), found) for item in entry.value)
    else:
        value = split(_in_one_line(entry.value or ""), found)
    if not found:
        return entry, ""
    items = " and ".join(found)
    read = " and ".join(f".{item}" for item in found)
    what = "no regular expression" if len(found) == 1 else "no regular expressions"
    line = _line(shown_key(entry.key), value)
    warning = f"holds {items}, {what}, read here as {read}; write this line: {line}"
    return replace(entry, value=value), warning


def _in_one_line(text: str) -> str:
    """TEXT without the line breaks that a block of YAML has in it and at its end."""
    return re.sub(r"\s*\n\s*", " ", text.strip("\n"))


def _in_list(text: str, found: list[str]) -> str:
    return ",".join(_mended(item, found) for item in re.split(r"(?<!\\),", text))


def _in_keys(text: str, found: list[str]) -> str:
    """The same for a value of ``message.key.columns``."""
    parts = []
    for part in split_outside(text, ";"):
        *table, columns = split_outside(part, ":")
        if not table:  # which is refused later
            parts.append(part)
            continue
        whose = _mended(":".join(table), found)
        names = ",".join(_mended(name, found) for name in split_outside(columns, ","))
        parts.append(f"{whose}:{names}")
    return ";".join(parts)


def _mended(item: str, found: list[str]) -> str:
    """ITEM, with a dot in front if it begins with ``*``; what did is added to FOUND."""
    bare = item.strip()
    if not bare.startswith("*"):
        return item
    try:
        _compile(f".{bare}".replace("\\,", ","))
    except ValueError:
        return item
    found.append(bare)
    return item.replace("*", ".*", 1)


def _line(key: str, value: str | tuple[str, ...]) -> str:
    """The line of a file that gives KEY the VALUE."""
    is_list = isinstance(value, tuple)
    line: str = yaml.safe_dump(
        {key: list(value) if is_list else value},
        default_flow_style=None if is_list else False,
        allow_unicode=True,
        width=float("inf"),
    )
    return line.strip()
