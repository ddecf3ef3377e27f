"""Columns with everything that a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from firebird_cdc.journal.format import Column, Storage


def column(name: str, storage: Storage, key_position: int = 0, **changes: Any) -> Column:
    """Return a column, which may be NULL unless CHANGES say otherwise or it is part of the key."""
    values: dict[str, Any] = {
        "sql_type": 0,
        "sub_type": 0,
        "scale": 0,
        "length": 8,
        "charset_id": 4,
        "char_length": 0,
        "precision": 0,
        "nullable": key_position == 0,
        "identity": False,
    }
    values.update(changes)
    return Column(name=name, key_position=key_position, storage=storage, **values)
