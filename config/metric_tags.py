"""``custom.metric.tags``: labels of the user's own on every metric."""

from __future__ import annotations

import re
from collections.abc import Sequence

from firebird_cdc.config.values import ValueProblem

OWN_LABELS = frozenset(
    {
        "server", "connector", "database", "table", "op", "journal", "commit_seq", "pos",
        "transaction", "call", "kind", "version", "le", "quantile", "chunk",
        "chunk_from", "chunk_to",
    }
)  # fmt: skip
"""Labels that our metrics have, or that mean something to Prometheus itself."""

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def parse_metric_tags(items: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return names and values of ITEMS, each ``name=value``; raises ValueProblem."""
    tags: dict[str, str] = {}
    for item in items:
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not value:
            raise ValueProblem(f"each tag is written as name=value, and {item!r} is not")
        if _NAME.fullmatch(name) is None or name.startswith("__"):
            raise ValueProblem(
                f"{name!r} can't be a label of Prometheus: letters, digits and _ make one, no digit"
                " is first, and __ belongs to Prometheus"
            )
        if name in OWN_LABELS:
            raise ValueProblem(f"{name!r} is a label that metrics of firebird-cdc have themselves")
        if name in tags:
            raise ValueProblem(f"{name!r} stands there twice")
        if not value.isprintable():
            raise ValueProblem(f"the value of {name!r} has characters that can't be printed")
        tags[name] = value
    return tuple(tags.items())
