"""Defaults of columns that were added, as a state shows them: read from the catalogue's text."""

from __future__ import annotations

import pytest

from firebird_cdc.journal.format import Column, Storage
from firebird_cdc.journal.replay.state.conversion import default_value


@pytest.mark.parametrize(
    ("text", "scale", "value"),
    [
        (
            "DEFAULT 12345678901234567890123456789012345678",
            0,
            12345678901234567890123456789012345678,
        ),
        ("default -1234567890123456789012345678901.25", -2, -123456789012345678901234567890125),
        ("= 0.125", -2, 13),
        ("'1e3'", -4, 10_000_000),
    ],
)
def test_default_of_a_decimal_keeps_all_its_digits(text: str, scale: int, value: int) -> None:
    column = Column("N", 0, 1, scale, 16, 0, 0, 38, False, False, 0, Storage.INT128)
    assert default_value(text, column) == value
