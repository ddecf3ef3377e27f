"""Former names of documented modules."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import FunctionType

import pytest

from firebird_cdc.moved import MOVED


@pytest.mark.parametrize("former", MOVED)
def test_former_name_of_a_module_gives_the_same_objects_with_a_warning(
    former: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, former, raising=False)
    present = importlib.import_module(MOVED[former])
    with pytest.warns(DeprecationWarning, match=f"{former} is called {MOVED[former]} now"):
        module = importlib.import_module(former)
    kinds = (type, FunctionType)
    public = [name for name, value in vars(present).items() if isinstance(value, kinds)]
    assert public
    assert all(getattr(module, name) is getattr(present, name) for name in public)


def test_audit_is_still_run_by_its_former_name() -> None:
    audit = importlib.import_module("firebird_cdc.journal.replay.audit")
    journals = importlib.import_module("firebird_cdc.journal.replay.audit.journals")
    with pytest.warns(DeprecationWarning, match="run_audit"):
        assert audit.run_audit is journals.run_audit


def test_module_that_never_existed_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("firebird_cdc.journal.no_such_module")


def test_canary_of_a_shipper_of_version_0_1_finds_its_child() -> None:
    found = subprocess.run(
        [sys.executable, "-P", "-c", "from firebird_cdc.journal.canary_write import main"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "", "the answer of the child is all that it writes there"
