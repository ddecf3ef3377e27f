"""The versions of Kafka's client, Spark and Arrow that pyproject.toml says are known to work."""

from __future__ import annotations

import runpy
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
_SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/bounds.py"))
BOUNDED, SHARE = _SCRIPT["BOUNDED"], _SCRIPT["SHARE"]
requirements, wanted = _SCRIPT["requirements"], _SCRIPT["wanted"]


def test_every_bounded_package_has_the_same_two_bounds_everywhere() -> None:
    found = requirements()
    assert {requirement.name for requirement in found} == {*BOUNDED}
    for name in BOUNDED:
        specifiers = {str(each.specifier) for each in found if each.name == name}
        assert len(specifiers) == 1, f"{name} has different bounds in pyproject.toml: {specifiers}"
        (bounds,) = (each.specifier for each in found if each.name == name and not each.extras)
        assert {specifier.operator for specifier in bounds} == {">=", "<"}


@pytest.mark.parametrize("name", BOUNDED)
def test_installed_version_lies_within_the_bounds(name: str) -> None:
    for requirement in requirements():
        if requirement.name == name:
            assert version(name) in requirement.specifier


def test_lowest_end_asks_for_exactly_the_lower_bounds() -> None:
    for text in wanted("lowest"):
        name, _, low = text.partition("==")
        assert name.partition("[")[0] in BOUNDED
        assert any(f">={low}" in str(each.specifier) for each in requirements())


def test_share_of_tests_that_runs_at_both_ends_is_there() -> None:
    for test in SHARE:
        file, _, function = test.partition("::")
        text = (ROOT / file).read_text()
        assert not function or f"def {function}(" in text, test


@pytest.mark.parametrize("page", ["README.md", "docs/replay.md"])
def test_pages_name_the_bounds_of_replays(page: str) -> None:
    text = (ROOT / page).read_text()
    for name in ("duckdb", "pyspark", "pyarrow"):
        (bounds,) = {str(each.specifier) for each in requirements() if each.name == name}
        low, high = sorted(bounds.split(","), reverse=True)
        assert f"{name} {low},{high}" in text, f"{page} does not say {name} {low},{high}"
