"""Cases of a matrix that `make test` runs, and those that it leaves to `make soak`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Any
from zlib import crc32

import pytest

Cases = Mapping[str, Any] | Sequence[str]
"""Values under the names of their cases, or names that are values, too."""


def _by_names(cases: Cases) -> Mapping[str, Any]:
    return cases if isinstance(cases, Mapping) else dict(zip(cases, cases, strict=True))


def _values(of_case: Any) -> tuple[Any, ...]:
    return of_case if isinstance(of_case, tuple) else (of_case,)


def few_of(cases: Cases, kept: Collection[str]) -> list[Any]:
    """Return the parameters of all CASES under their names, a tuple or one value each; those that
    are not KEPT run in `make soak` alone: they have the same code do the same in another way."""
    cases = _by_names(cases)
    assert cases.keys() >= {*kept}, "a case that is kept has another name"
    assert 0 < len(kept) < len(cases)
    return [
        pytest.param(
            *_values(values),
            id=name,
            marks=() if name in kept else pytest.mark.soak,
        )
        for name, values in cases.items()
    ]


def half_of(*axes: Cases) -> list[Any]:
    """Return the parameters of all combinations of the values of AXES; every other one runs in
    `make soak` alone. Each value stays and, of three axes of two values, each pair of values."""
    cases, kept = {}, set()
    for combination in product(*(enumerate(_by_names(axis).items()) for axis in axes)):
        name = "-".join(name for _, (name, _) in combination)
        cases[name] = tuple(value for _, (_, value) in combination)
        if sum(place for place, _ in combination) % 2 == 0:
            kept.add(name)
    return few_of(cases, kept)


def in_turn(name: str, cases: Cases, *, indirect: bool = False) -> pytest.MarkDecorator:
    """Return a mark that gives tests each of CASES as parameter NAME, or as several whose names
    commas separate. `make test` runs a test with one of them, which depends on the test's name,
    and `make soak` with all."""
    cases = _by_names(cases)
    return pytest.mark.parametrize(
        name,
        [
            pytest.param(
                *_values(value), id=case, marks=pytest.mark.in_turn(name, place, len(cases))
            )
            for place, (case, value) in enumerate(cases.items())
        ],
        indirect=indirect,
    )


def leave_to_soak(items: Iterable[pytest.Item]) -> None:
    """Mark those of ITEMS whose turn (`in_turn`) it is not."""
    for item in items:
        test = getattr(item, "originalname", item.name)
        for name, place, count in (mark.args for mark in item.iter_markers("in_turn")):
            if crc32(f"{test} {name}".encode()) % count != place:
                item.add_marker("soak")
