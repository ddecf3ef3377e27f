"""Route: gives records another topic by a regular expression, as Kafka's ``RegexRouter`` does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from firebird_cdc.journal.records import Record
from firebird_cdc.journal.transforms.parameters import Parameters

TOPICS_KEPT = 10_000
"""Topics whose new name is kept; more than the tables that a server publishes."""

_PIECE = re.compile(r"\\(?P<escaped>.)|\$(?:\{(?P<name>[^}]*)\}|(?P<number>[0-9]+))|(?P<odd>[\\$])")


class RegexRouter:
    """Renames the topics that ``regex`` matches as a whole; others stay as they are."""

    def configure(self, parameters: Mapping[str, str]) -> None:
        """``regex``, and ``replacement`` with ``$1`` or ``${name}`` for its groups."""
        given = Parameters(parameters)
        self._regex = given.pattern("regex")
        replacement = given.text("replacement")
        try:
            self._parts = _parts(replacement, self._regex)
        except ValueError as error:
            given.refuse("replacement", str(error))
        given.finish()
        self._routed = lru_cache(TOPICS_KEPT)(self._route)

    def apply(self, record: Record) -> Record:
        """The record, with its new topic if it gets one."""
        topic = self._routed(record.topic)
        return record if topic == record.topic else replace(record, topic=topic)

    def _route(self, topic: str) -> str:
        if self._regex.fullmatch(topic) is None:
            return topic
        # Java's Matcher.replaceFirst searches anew, which finds less than the whole topic if an
        # earlier alternative fits: the rest then stays behind it.
        return self._regex.sub(self._expand, topic, count=1)

    def _expand(self, match: re.Match[str]) -> str:
        return "".join(
            part if isinstance(part, str) else match[part[0]] or "" for part in self._parts
        )


def _parts(replacement: str, regex: re.Pattern[str]) -> list[str | tuple[int | str]]:
    """REPLACEMENT as Java's Matcher reads it: texts, and groups as tuples of number or name."""
    parts: list[str | tuple[int | str]] = []
    end = 0
    for piece in _PIECE.finditer(replacement):
        parts.append(replacement[end : piece.start()])
        end = piece.end()
        if piece["odd"]:
            raise ValueError(f"{piece['odd']} must be written as \\{piece['odd']} there")
        if piece["escaped"]:
            parts.append(piece["escaped"])
        elif piece["name"] is not None:
            if piece["name"] not in regex.groupindex:
                raise ValueError(f"regex has no group {piece['name']}")
            parts.append((piece["name"],))
        else:
            digits = piece["number"]
            # As many digits as make the number of a group; the first one counts in any case.
            length = max(
                (n for n in range(1, len(digits) + 1) if int(digits[:n]) <= regex.groups),
                default=0,
            )
            if not length:
                raise ValueError(f"regex has no group {digits[0]}")
            parts += [(int(digits[:length]),), digits[length:]]
    return [part for part in (*parts, replacement[end:]) if part]
