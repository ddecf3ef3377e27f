"""Cases of a matrix that `make test` runs, and those that it leaves to `make soak`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest


def few_of(cases: Mapping[str, Any], kept: Collection[str]) -> list[Any]:
    """Return the parameters of all CASES under their names, a tuple or one value each; those that
    are not KEPT run in `make soak` alone: they have the same code do the same in another way."""
    assert cases.keys() >= {*kept}, "a case that is kept has another name"
    assert 0 < len(kept) < len(cases)
    return [
        pytest.param(
            *(values if isinstance(values, tuple) else (values,)),
            id=name,
            marks=() if name in kept else pytest.mark.soak,
        )
        for name, values in cases.items()
    ]
