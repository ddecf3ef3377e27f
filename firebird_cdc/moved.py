"""Former names of modules that others import: they still work, with a DeprecationWarning.

They were documented for custom converters and for programs around replay. The canary's child is
imported by a shipper of 0.1 that goes on while its installation is upgraded.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

MOVED: Final = {
    "firebird_cdc.journal.canonical": "firebird_cdc.journal.types.canonical",
    "firebird_cdc.journal.canary_write": "firebird_cdc.journal.shipper.tasks.canary_write",
    "firebird_cdc.journal.records": "firebird_cdc.journal.events.records",
    "firebird_cdc.journal.schema": "firebird_cdc.journal.events.schema",
    "firebird_cdc.journal.replay.datasource": "firebird_cdc.journal.replay.source.datasource",
    "firebird_cdc.journal.replay.session": "firebird_cdc.journal.replay.cluster.session",
}
"""Present names by former ones."""


class _Finder:
    """A finder and loader; `importlib.abc` takes as long to import as all the rest of this."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        return ModuleSpec(name, self) if name in MOVED else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Have an ordinary module made."""

    def exec_module(self, module: ModuleType) -> None:
        present = MOVED[module.__name__]
        warnings.warn(
            f"{module.__name__} is called {present} now; the old name goes with 0.3",
            DeprecationWarning,
            stacklevel=2,
        )
        names = vars(importlib.import_module(present))
        vars(module).update({key: names[key] for key in names if not key.startswith("__")})


def install() -> None:
    """Have the former names found, after all that is really there."""
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.append(_Finder())
