"""The engine suite under valgrind fails if there is something to find; for `make valgrind`."""

from __future__ import annotations

from pathlib import Path

import pytest
from spoil import assert_noticed

pytestmark = pytest.mark.engine


def test_branch_on_uninitialised_memory_fails_the_suite(tmp_path: Path) -> None:
    code = "char *volatile unset = malloc(8); if (unset[3] == 33) abort(); free(unset);"
    assert_noticed(tmp_path, "valgrind", code, "uninitialised")
