"""docs/types.md is what the code says of types."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from firebird_cdc.config.options import find_option
from firebird_cdc.journal.types.engine_types import ENGINE_TYPES, UNKNOWN

PAGE = Path(__file__).parents[2] / "docs" / "types.md"


def test_committed_page_is_the_generated_one() -> None:
    made = subprocess.run(
        [sys.executable, "-P", "scripts/types_page.py"],
        check=True,
        capture_output=True,
        text=True,
        cwd=PAGE.parents[1],
    ).stdout
    assert made == PAGE.read_text("utf-8"), "run: python -P scripts/types_page.py > docs/types.md"


@pytest.mark.parametrize(
    "name", ["decimal.handling.mode", "time.precision.mode", "binary.handling.mode"]
)
def test_page_shows_every_mode_of_every_type_that_it_changes(name: str) -> None:
    option = find_option(name)
    assert option is not None
    section = PAGE.read_text("utf-8").partition(f"## `{name}`\n")[2].partition("\n## ")[0]
    rows = [row.split(" | ") for row in re.findall(r"^\| (`.*)", section, re.MULTILINE)]
    examples = {(row[0], row[1]) for row in rows}
    assert len(examples) > 3
    for example in examples:
        modes = [mode for row in rows if (row[0], row[1]) == example for mode in row[2].split(", ")]
        assert modes == [f"`{mode}`" for mode in option.allowed], example


def test_page_names_every_type() -> None:
    names = PAGE.read_text("utf-8").partition("## Names of types")[2]
    known = {each.name for each in ENGINE_TYPES} - {UNKNOWN, "BLOB"}
    for name in known | {"NUMERIC", "DECIMAL", "BINARY", "VARBINARY"}:
        assert re.search(rf"^\| [^|]+ \| `{name}` \|", names, re.MULTILINE), name
