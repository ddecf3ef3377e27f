"""Options of topics that the shipper makes itself, under Kafka Connect's names (KIP-158)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from firebird_cdc.config.values import Entry, ValueProblem, parse_integer, split_list

PREFIX = "topic.creation."
DEFAULT = "default"
BROKERS_OWN = -1
"""Stands for the broker's own number of partitions or replicas."""

_MOST = 2**31 - 1
_MOST_REPLICAS = 32767  # the protocol has 16 bits for it


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Settings with which a topic is made. ``properties``: of the topic, e.g. ``retention.ms``."""

    partitions: int
    replication_factor: int
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TopicGroup:
    """Topics that are made alike. Unlike other patterns of ours these heed the letters' case,
    as names of topics do."""

    include: tuple[re.Pattern[str], ...]
    exclude: tuple[re.Pattern[str], ...]
    settings: TopicSettings

    def holds(self, topic: str) -> bool:
        """Tell whether TOPIC belongs to this group."""
        return any(pattern.fullmatch(topic) for pattern in self.include) and not any(
            pattern.fullmatch(topic) for pattern in self.exclude
        )


@dataclass(frozen=True, slots=True)
class TopicCreation:
    """The groups in their order, and what applies to topics of none."""

    groups: tuple[TopicGroup, ...]
    default: TopicSettings

    def settings(self, topic: str) -> TopicSettings:
        """Return the settings with which TOPIC is made."""
        return next((group.settings for group in self.groups if group.holds(topic)), self.default)


class TopicCreationOptions:
    """Collects the entries of a file that begin with ``topic.creation.``."""

    def __init__(self) -> None:
        self.enable: Entry | None = None
        self.listing: Entry | None = None
        self._entries: dict[str, dict[str, Entry]] = {}

    def add(self, entry: Entry) -> None:
        """Add an entry, whichever it is."""
        name, _, rest = entry.key.removeprefix(PREFIX).partition(".")
        if name == "enable":
            self.enable = entry
        elif name == "groups":
            self.listing = entry
        else:
            self._entries.setdefault(name, {})[rest] = entry

    @property
    def _names(self) -> tuple[str, ...]:
        if self.listing is None or self.listing.value is None:
            return ()
        return tuple(dict.fromkeys(split_list(self.listing.value)))

    def any(self) -> bool:
        """Tell whether any option but ``topic.creation.enable`` is set."""
        return self.listing is not None or bool(self._entries)

    def misplaced(self) -> Iterator[tuple[Entry, str]]:
        """Yield the entries that have no effect, and why."""
        for name, entries in self._entries.items():
            for rest, entry in entries.items():
                if name == DEFAULT and rest in ("include", "exclude"):
                    yield entry, "the default group holds what no other group does"
                elif name not in (DEFAULT, *self._names):
                    yield entry, f"{PREFIX}groups does not name {name}"

    def build(self) -> tuple[TopicCreation, list[tuple[Entry, str]]]:
        """Return the settings, and the wrong entries with the rest of a sentence each."""
        problems: list[tuple[Entry, str]] = []
        default = self._settings(DEFAULT, TopicSettings(BROKERS_OWN, BROKERS_OWN, {}), problems)
        groups = []
        for name in self._names:
            entries = self._entries.get(name, {})
            if name == DEFAULT or not re.fullmatch(r"[^.]+", name):
                assert self.listing is not None
                problems.append((self.listing, f"names {name}, which no group can be called"))
            elif "include" not in entries:
                assert self.listing is not None
                problems.append(
                    (self.listing, f"names {name}, but {PREFIX}{name}.include is missing")
                )
            groups.append(
                TopicGroup(
                    self._patterns(entries.get("include"), problems),
                    self._patterns(entries.get("exclude"), problems),
                    self._settings(name, default, problems),
                )
            )
        return TopicCreation(tuple(groups), default), problems

    def _settings(
        self, name: str, otherwise: TopicSettings, problems: list[tuple[Entry, str]]
    ) -> TopicSettings:
        """The settings of group NAME; its numbers are those of OTHERWISE unless it has own."""
        entries = dict(self._entries.get(name, {}))
        for other in ("include", "exclude"):
            entries.pop(other, None)
        return TopicSettings(
            self._number(entries.pop("partitions", None), otherwise.partitions, _MOST, problems),
            self._number(
                entries.pop("replication.factor", None),
                otherwise.replication_factor,
                _MOST_REPLICAS,
                problems,
            ),
            {rest: _text(entry) for rest, entry in entries.items() if rest},
        )

    @staticmethod
    def _number(
        entry: Entry | None, otherwise: int, high: int, problems: list[tuple[Entry, str]]
    ) -> int:
        if entry is None:
            return otherwise
        try:
            number = parse_integer(_text(entry), -1, high)
            if number == 0:
                raise ValueProblem("it must be at least 1, or -1 for the broker's own number")
        except ValueProblem as problem:
            problems.append((entry, f"is {_text(entry)!r}; {problem}"))
            return otherwise
        return number

    @staticmethod
    def _patterns(
        entry: Entry | None, problems: list[tuple[Entry, str]]
    ) -> tuple[re.Pattern[str], ...]:
        patterns = []
        for item in split_list(entry.value) if entry is not None and entry.value else ():
            try:
                patterns.append(re.compile(item))
            except re.error as error:
                assert entry is not None
                problems.append(
                    (entry, f"holds {item!r}, which is not a regular expression: {error}")
                )
        return tuple(patterns)


def _text(entry: Entry) -> str:
    return ",".join(entry.value) if isinstance(entry.value, tuple) else entry.value or ""
