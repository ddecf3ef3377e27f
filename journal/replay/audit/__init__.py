"""The audit: of journals by themselves, against Kafka, and against the database."""

from __future__ import annotations

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    """Return ``run_audit``, which programs import from here since 0.1."""
    if name != "run_audit":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from firebird_cdc.journal.replay.audit.journals import run_audit

    here = f"{__name__}.journals"
    warnings.warn(f"import run_audit from {here}", DeprecationWarning, stacklevel=2)
    return run_audit
