"""Programs that import modules by their former names go on."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from firebird_cdc.moved import MOVED


@pytest.mark.parametrize("former", sorted(MOVED))
def test_former_name_gives_what_the_module_has_and_warns(former: str) -> None:
    sys.modules.pop(former, None)
    with pytest.warns(DeprecationWarning, match=rf"{former} is called {MOVED[former]} now"):
        module = importlib.import_module(former)
    present = importlib.import_module(MOVED[former])
    names = [name for name in vars(present) if not name.startswith("__")]
    assert names
    assert all(getattr(module, name) is getattr(present, name) for name in names)


def test_canary_of_a_shipper_of_version_0_1_finds_its_child() -> None:
    found = subprocess.run(
        [sys.executable, "-P", "-c", "from firebird_cdc.journal.canary_write import main"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "", "the answer of the child is all that it writes there"
