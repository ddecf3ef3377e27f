"""Reads a YAML file of flat dotted keys and keeps the line of every key.

PyYAML's composer is used instead of its constructor: nodes carry line numbers, duplicate
keys are still visible, scalars keep the text that the user wrote (``0640`` stays ``0640``),
and no tag can make Python build an object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import yaml

from firebird_cdc.config.patterns import names_patterns
from firebird_cdc.config.secrets import shown_key
from firebird_cdc.config.values import Entry
from firebird_cdc.errors import ConfigError

_NULL_TAG = "tag:yaml.org,2002:null"

# Larger than any configuration: a journal or a core file named by mistake ends here.
_SIZE_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """The entries of a file in the order written, and what is wrong with its form.

    ``problems``: the key that each is about, empty if it is no text, and a sentence.
    """

    path: Path
    entries: Mapping[str, Entry]
    problems: tuple[tuple[str, str], ...]


def read_text(path: Path, what: str) -> str:
    """Return the text of the configuration file PATH.

    WHAT names the file's part in messages, e.g. "connector configuration". Raises
    ConfigError if the file is missing, unreadable, too large or not UTF-8.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_SIZE_LIMIT_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(
            [f"{path}: the {what} does not exist; create it there or correct the path"]
        ) from None
    except OSError as error:
        raise ConfigError(
            [
                f"{path}: cannot read the {what}: {error.strerror or error};"
                " it has to be readable for who runs this: the database server's user, or root"
            ]
        ) from error
    if len(raw) > _SIZE_LIMIT_BYTES:
        raise ConfigError(
            [f"{path}: the {what} is larger than {_SIZE_LIMIT_BYTES} bytes; is it another file?"]
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            [f"{path}:{line}: the {what} is not UTF-8 (byte {error.start}); save it as UTF-8"]
        ) from error


def read_flat_yaml(path: Path, what: str) -> Source:
    """Return the entries of the flat YAML mapping in PATH.

    Form errors that concern single keys (duplicates, nested mappings) are collected in
    ``problems``; the rest of the file is still read. Raises ConfigError for a file that
    cannot be read at all, is no YAML, or is no mapping.
    """
    text = read_text(path, what)
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise ConfigError([_syntax_problem(path, what, error)]) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            [f"{path}:{line}: the {what} holds a control character, which YAML forbids; remove it"]
        ) from error
    except RecursionError as error:
        raise ConfigError(
            [f"{path}: the {what} is nested too deeply; it must consist of lines 'key: value'"]
        ) from error
    if node is None or node.tag == _NULL_TAG:
        return Source(path, MappingProxyType({}), ())
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(
            [
                f"{path}:{node.start_mark.line + 1}: the {what} must consist of lines"
                " 'key: value'; no key was found here (a blank must follow the colon)"
            ]
        )
    return _flatten(path, node)


class _Loader(yaml.SafeLoader):
    """Takes what begins with ``*`` for text if no anchor above it has that name."""

    _ALIAS = re.compile(r"\*([\w-]+)(?=[\s,\]}\0])")

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._anchors: set[str] = set()

    def fetch_anchor(self) -> None:
        """Fetch an anchor, and note its name; see PyYAML's Scanner."""
        super().fetch_anchor()
        self._anchors.add(self.tokens[-1].value)

    def fetch_alias(self) -> None:
        """Fetch an alias, or text; see PyYAML's Scanner."""
        name = self._ALIAS.match(self.buffer, self.pointer)
        if name and name[1] in self._anchors:
            super().fetch_alias()
        else:
            self.fetch_plain()


def _is_starred(node: yaml.Node) -> bool:
    """Tell whether NODE is text that begins with ``*`` and does not stand in quotes."""
    return isinstance(node, yaml.ScalarNode) and not node.style and node.value.startswith("*")


def _flatten(path: Path, node: yaml.MappingNode) -> Source:
    entries: dict[str, Entry] = {}
    problems: list[tuple[str, str]] = []
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            problems.append(("", f"{path}:{line}: a key must be plain text, e.g. connector.name"))
            continue
        key = key_node.value
        if key in entries:
            said = (
                f"{path}:{line}: {shown_key(key)} is set a second time, first in line"
                f" {entries[key].line}; remove one of the two"
            )
            problems.append((key, said))
            continue
        items = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
        if any(map(_is_starred, items)) and not names_patterns(key):
            said = (
                f"{path}:{line}: {shown_key(key)}: a value that begins with * must stand in quotes"
            )
            problems.append((key, said))
            continue
        value: str | tuple[str, ...] | None
        if isinstance(value_node, yaml.ScalarNode):
            value = None if value_node.tag == _NULL_TAG else value_node.value
        elif isinstance(value_node, yaml.SequenceNode) and all(
            isinstance(item, yaml.ScalarNode) for item in items
        ):
            value = tuple(item.value for item in items)
        else:
            said = (
                f"{path}:{line}: {shown_key(key)} holds a nested structure; write dotted keys on"
                f" one level, e.g. '{shown_key(key)}.name: value'"
            )
            problems.append((key, said))
            continue
        entries[key] = Entry(key, line, value)
    return Source(path, MappingProxyType(entries), tuple(problems))


def _syntax_problem(path: Path, what: str, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"{path}:{mark.line + 1}" if mark is not None else str(path)
    problem = error.problem or error.context or "syntax error"
    # The mark's own snippet would show the line, which may hold a password.
    hint = ""
    if error.context and ("alias" in error.context or "anchor" in error.context):
        hint = "; a value that begins with & must stand in quotes"
    elif error.problem and "mapping values" in error.problem:
        hint = "; a value that contains ': ' must stand in quotes"
    elif error.problem and "'\\t'" in error.problem:
        hint = "; indent with blanks, not tabs"
    return f"{place}: the {what} is not YAML: {problem}{hint}"
