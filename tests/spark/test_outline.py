"""A survey counts in spans of numbers what counting each number gives."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from firebird_cdc.journal.replay.local.session import LocalSession
from firebird_cdc.journal.replay.source.arrow import schema_text
from firebird_cdc.journal.replay.source.history import Span
from firebird_cdc.journal.replay.state.outline import Outline
from firebird_cdc.journal.replay.state.survey import SPAN, SURVEY, _consecutive

DATABASE = "/data/shop.fdb"


@pytest.mark.parametrize("doubled", [0, 1, 3])
@pytest.mark.parametrize("missing", [0, 1, 3])
def test_spans_of_several_tasks_tell_what_is_doubled_or_missing(
    here: LocalSession, doubled: int, missing: int
) -> None:
    rng = random.Random(10 * doubled + missing)
    numbers = [*range(SPAN - 20, SPAN + 20), *range(2 * SPAN - 20, 2 * SPAN + 20)]
    for number in rng.sample(numbers[1:-1], missing):
        numbers.remove(number)
    numbers += rng.sample(numbers, doubled)
    rng.shuffle(numbers)
    rows = [
        ("span", DATABASE, 7, first, None, None, None, None, 5 + task, 100, last, 50 - task, 9)
        for task in range(3)
        for first, last in _consecutive(sorted(numbers[task::3]))
    ]
    found = Outline.of(here.createDataFrame(rows, schema_text(SURVEY)))
    (span,) = found.spans
    counts = len(numbers), 100 * len(rows), 5, 50
    assert span == Span(DATABASE, 7, min(numbers), max(numbers), *counts)
    assert found.bytes == 9 * len(rows)
    assert found.is_doubled == (max(Counter(numbers).values()) > 1)
    assert found.lacks_numbers  # those between the two stretches


def test_spans_without_a_hole_lack_no_number(here: LocalSession) -> None:
    rows = [
        ("span", DATABASE, 0, first, None, None, None, None, None, None, last, None, 9)
        for part in (range(1, 2000, 2), range(2, 2001, 2))
        for first, last in _consecutive([*part])
    ]
    found = Outline.of(here.createDataFrame(rows, schema_text(SURVEY)))
    assert not found.is_doubled
    assert not found.lacks_numbers
