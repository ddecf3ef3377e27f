"""docs/reference.md is what the table of options says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from firebird_cdc.config.options import ALIASES, OPTIONS

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"


def test_committed_page_is_the_generated_one() -> None:
    made = subprocess.run(
        [sys.executable, "-P", "scripts/reference_page.py"],
        check=True,
        capture_output=True,
        text=True,
        cwd=PAGE.parents[1],
    ).stdout
    assert made == PAGE.read_text("utf-8"), (
        "run: python -P scripts/reference_page.py > docs/reference.md"
    )


def test_page_names_every_option_and_every_other_name() -> None:
    page = PAGE.read_text("utf-8")
    for name in [*(option.name for option in OPTIONS), *ALIASES]:
        assert f"`{name}`" in page


def test_no_name_appears_twice_in_the_table() -> None:
    names = [option.name for option in OPTIONS] + [a for o in OPTIONS for a in o.aliases]
    assert len(names) == len(set(names))
