"""The engine suite under the sanitizers fails if there is something to find.

`make sanitize` runs it over the plugin as it is; here it meets plugins with faults.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from soaked import few_of
from spoil import assert_noticed

pytestmark = pytest.mark.engine

FAULTS = {
    "a write behind a buffer": (
        "char *volatile small = malloc(8); small[8] = 1; free(small);",
        "heap-buffer-overflow",
    ),
    "undefined arithmetic": (
        "volatile int most = 0x7fffffff; most += 1;",
        "signed integer overflow",
    ),
    "memory that nobody frees": (
        "char *volatile lost = malloc(77); lost = lost ? NULL : lost;",
        "leak of",
    ),
}


@pytest.mark.parametrize(
    "fault", few_of([*FAULTS], ["a write behind a buffer", "memory that nobody frees"])
)
def test_a_fault_in_the_plugin_fails_the_suite(fault: str, tmp_path: Path) -> None:
    assert_noticed(tmp_path, "sanitizers", *FAULTS[fault])
