"""Plan for comparing a table, by the forms in which journals wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from firebird_cdc.journal.replay.audit.database.following import Following
from firebird_cdc.journal.snapshot.catalogue import DatabaseTable


class Shape(NamedTuple):
    """Form in which journals wrote a table: its columns, its key, and where they did."""

    table: str
    digest: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    first: tuple[int, int]
    last: tuple[int, int]


@dataclass
class ComparisonPlan:
    """Plan for comparing a table.

    ``stored``: as the database has it, None: it doesn't. ``common``: the columns that both have;
    empty: all. ``covered_from``: rows by transactions from that number on must be in journals.
    """

    name: str
    stored: DatabaseTable | None
    by_key: bool
    common: tuple[str, ...]
    covered_from: int


def plan_comparison(
    name: str,
    stored: DatabaseTable | None,
    shapes: Sequence[Shape],
    following: Following,
    covered_from: int,
) -> ComparisonPlan:
    keys: set[tuple[str, ...]] = set()
    columns: list[tuple[str, ...]] = []
    for shape in shapes:
        for names in following.names_between(name, shape.digest, shape.first, shape.last):
            if names is None:
                keys.add(shape.key)
                columns.append(shape.columns)
            else:
                keys.add(tuple(names[each] for each in shape.key if each in names))
                columns.append(tuple(names.values()))
    if stored is not None:
        table = stored.table
        keys.add(tuple(table.columns[index].name for index in table.key_columns))
        columns.append(tuple(table.columns[index].name for index in table.order))
    common: tuple[str, ...] = ()
    if len(set(columns)) > 1:
        shared = set.intersection(*(set(each) for each in columns))
        common = tuple(column for column in columns[-1] if column in shared)
    elif name in following.plans:  # texts that were written anew compare with such only
        common = columns[-1]
    by_key = len(keys) == 1 and keys != {()}
    return ComparisonPlan(name, stored, by_key, common, covered_from)
