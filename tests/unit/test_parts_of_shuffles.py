"""With Spark, into how many parts a shuffle is divided: as many as the journals are worth."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import pytest

from firebird_cdc.journal.replay.cluster.session import _partitions

_MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("number", "size", "parts"),
    [(300, 1024, 1), (300, _MIB // 4, 4), (300, _MIB, 10), (40, 64 * _MIB, 80), (0, 0, 1)],
)
def test_parts_follow_the_bytes_of_the_journals(
    tmp_path: Path, number: int, size: int, parts: int
) -> None:
    for each in range(number):
        path = tmp_path / f"{UUID(int=each + 1)}.log"
        path.touch()
        os.truncate(path, size)  # sparse: nothing reads them
    assert _partitions([str(tmp_path)], cores=4) == parts
