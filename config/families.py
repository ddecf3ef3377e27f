"""Options that come as a family of keys: converters, transforms, rules for columns.

What each part of the connector gets of them, and how it is made of the entries of a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from firebird_cdc.config import avro
from firebird_cdc.config.options import AVRO_CONVERTER, JSON_CONVERTER, Option
from firebird_cdc.config.patterns import compile_patterns
from firebird_cdc.config.values import (
    Entry,
    ValueProblem,
    check_class_path,
    digest_of,
    parse_integer,
    split_list,
    split_outside,
)

Patterns = tuple[re.Pattern[str], ...]

Report = Callable[[Entry, str], None]
"""Takes note of what is wrong with an entry: the rest of a sentence that begins with its key."""


# Rules for columns


@dataclass(frozen=True, slots=True)
class ColumnHash:
    """A rule ``column.mask.hash[.v2].<algorithm>.with.salt.<salt>``; ``algorithm`` is hashlib's."""

    algorithm: str
    salt: str = field(repr=False)
    patterns: Patterns
    version: int


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """One part of ``message.key.columns``: the tables it is for, their columns in key order.

    ``names``: the columns as they are written.
    """

    table: re.Pattern[str]
    columns: Patterns
    names: tuple[str, ...]


class ColumnRuleFamilies:
    """Collects the rules of a file, in the order written: (n, patterns) except for hashes."""

    def __init__(self) -> None:
        self.truncate: list[tuple[int, Patterns]] = []
        self.mask: list[tuple[int, Patterns]] = []
        self.mask_hash: list[ColumnHash] = []

    def add(self, entry: Entry, option: Option, patterns: Patterns) -> None:
        """Add the rule of ENTRY, a member of the family OPTION; raises ValueProblem."""
        parts = option.placeholders(entry.key)
        assert parts is not None
        if option.name.startswith("column.mask.hash."):
            algorithm, salt = parts
            version = 2 if ".v2." in option.name else 1
            self.mask_hash.append(ColumnHash(digest_of(algorithm), salt, patterns, version))
            return
        try:
            number = parse_integer(parts[0], option.low, option.high)
        except ValueProblem as problem:
            raise ValueProblem(f"the number in its name is {parts[0]}; {problem}") from None
        rules = self.mask if option.name.startswith("column.mask.") else self.truncate
        rules.append((number, patterns))


def parse_message_keys(value: str | tuple[str, ...]) -> tuple[KeyColumns, ...]:
    r"""Return the parts of ``message.key.columns``; raises ValueProblem.

    Parts are separated by ``;``, table and columns by the last ``:``, columns by ``,``. None of
    these counts inside of brackets or behind a ``\``: ``C:\\crm[.]fdb[.](?:a|b):id,no``.
    """
    texts = [value] if isinstance(value, str) else value
    parts = [part.strip() for text in texts for part in split_outside(text, ";") if part.strip()]
    keys, problems = [], []
    for number, part in enumerate(parts, 1):
        *table, columns = split_outside(part, ":")
        names = [name.strip() for name in split_outside(columns, ",")]
        try:
            text = ":".join(table).strip()
            # A single letter is the drive of a path that no column follows.
            if len(text) < 2 or not all(names):
                raise ValueProblem("it must have the form table:column,column")
            (pattern,) = compile_patterns((text,))
            keys.append(KeyColumns(pattern, compile_patterns(tuple(names)), tuple(names)))
        except ValueProblem as problem:
            problems.append(f"part {number} ({part}): {problem}")
    if problems:
        raise ValueProblem("; ".join(problems))
    return tuple(keys)


# Named things: transforms and converters of columns


@dataclass(frozen=True, slots=True)
class NamedConfig:
    """A transform, predicate or converter of columns: name, type as written, parameters.

    ``origin``: file and line of the type, for messages; ``origins``: of the parameters.
    """

    name: str
    type: str
    parameters: Mapping[str, str] = field(repr=False)
    origin: str = ""
    origins: Mapping[str, str] = field(default_factory=dict, repr=False)

    def place(self, parameter: str) -> str:
        """Return file and line of PARAMETER; of the type, if the parameter is missing."""
        return self.origins.get(parameter, self.origin)


class Named:
    """Collects the names of a list and the keys ``<prefix><name>.<parameter>`` that go with it."""

    def __init__(self, listing: Entry | None, prefix: str) -> None:
        self.listing = listing
        self._prefix = prefix
        value = listing.value if listing is not None else None
        self.names = split_list(value) if value is not None else ()
        self._entries: dict[str, dict[str, Entry]] = {}

    def add(self, entry: Entry) -> None:
        """Add a parameter."""
        name, _, parameter = entry.key.removeprefix(self._prefix).partition(".")
        self._entries.setdefault(name, {})[parameter] = entry

    def check(self, report: Report) -> None:
        """Report names that can't be used and names without a type."""
        if self.listing is None:
            return
        for place, name in enumerate(self.names):
            if not re.fullmatch(r"[\w$-]+", name):
                report(self.listing, f"names {name!r}; a name has letters, digits, _, $ and -")
            elif name in self.names[:place]:
                report(self.listing, f"names {name} twice; remove one of the two")
            elif not self._type_of(name):
                report(
                    self.listing,
                    f"names {name}, but {self._prefix}{name}.type is missing; set it, or remove"
                    " the name",
                )

    def _type_of(self, name: str) -> Entry | None:
        entry = self._entries.get(name, {}).get("type")
        return entry if entry is not None and entry.value else None

    def warn(self, report: Report) -> None:
        """Report what belongs to no name of the list."""
        for name, entries in self._entries.items():
            if name not in self.names:
                for entry in entries.values():
                    listing = self._prefix.removesuffix(".")
                    report(entry, f"has no effect, because {listing} does not name {name}")

    def types(self) -> Iterable[tuple[str, Entry]]:
        """Yield each name of the list with the entry of its type."""
        for name in self.names:
            if kind := self._type_of(name):
                yield name, kind

    def build(self, path: Path) -> tuple[NamedConfig, ...]:
        """Return what the list names; PATH: of the file."""
        made = []
        for name, kind in self.types():
            entries = {key: each for key, each in self._entries[name].items() if key != "type"}
            parameters = {key: text_of(entry) for key, entry in entries.items()}
            origins = {key: entry.place(path) for key, entry in entries.items()}
            made.append(NamedConfig(name, text_of(kind), parameters, kind.place(path), origins))
        return tuple(made)


def text_of(entry: Entry) -> str:
    """The value of ENTRY as one text; the items of a list with commas between them."""
    if entry.value is None:
        return ""
    return entry.value if isinstance(entry.value, str) else ",".join(entry.value)


# Converters of keys and values

JSON, AVRO = "json", "avro"
PYTHON = "python:"
"""Stands before the dotted path of a class of the user's in place of a converter's name."""

_CONVERTERS = {JSON: JSON, JSON_CONVERTER: JSON, AVRO: AVRO, AVRO_CONVERTER: AVRO}

# Packages of Java that hold converters: a class there is no Python class that can be imported.
_JAVA = ("org.apache.", "io.confluent.", "io.debezium.", "io.apicurio.", "com.amazonaws.")


def parse_converter(value: str) -> str:
    """Return ``json``, ``avro`` or ``python:<dotted path>``; raises ValueProblem."""
    allowed = f"allowed: json ({JSON_CONVERTER}), avro ({AVRO_CONVERTER})"
    if name := _CONVERTERS.get(value) or _CONVERTERS.get(value.lower()):
        return name
    path = value.removeprefix(PYTHON)
    if path.startswith(_JAVA):
        raise ValueProblem(f"this converter exists only in Java; {allowed}, or a Python class")
    try:
        return PYTHON + check_class_path(path)
    except ValueProblem:
        raise ValueProblem(f"{allowed}, or the dotted path of a Python class") from None


class ConverterOptions:
    """Collects the keys below ``key.converter.`` or ``value.converter.``."""

    def __init__(self, subject: str) -> None:
        self._prefix = f"{subject}."
        self._entries: dict[str, Entry] = {}

    def add(self, entry: Entry) -> None:
        """Add a property."""
        self._entries[entry.key.removeprefix(self._prefix)] = entry

    def check(self, converter: str, report: Report, warn: Report) -> list[str]:
        """Check the properties against what CONVERTER knows; return what it needs besides."""
        if converter == JSON:
            for name, entry in self._entries.items():
                what = "belongs to Avro" if name in avro.PROPERTIES else "is not known"
                warn(entry, f"has no effect: it {what}, and the converter is {JSON}")
        if converter != AVRO:
            return []
        is_key = self._prefix.startswith("key.")
        _, found = avro.read_avro_options(self.build(), is_key=is_key)
        for name, why in found.wrong:
            report(self._entries[name], why)
        for name, why in found.ignored:
            warn(self._entries[name], f"has no effect: {why}")
        return [f"{self._prefix}{name}: {why}" for name, why in found.missing]

    def origins(self, path: Path) -> dict[str, str]:
        """Return where each property stands, in the file PATH or the environment, by its name."""
        return {name: f"{entry.place(path)}: {entry.key}" for name, entry in self._entries.items()}

    def build(self) -> dict[str, str]:
        """The properties without the prefix; may hold passwords."""
        return {name: text_of(entry) for name, entry in self._entries.items()}
