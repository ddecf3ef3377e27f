"""Rows of the format's test vectors as canonical text; needs no Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from histories import vector_content

from firebird_cdc.journal.format import JournalReader, RowChange
from firebird_cdc.journal.types.canonical import RowText, canonical_row


@pytest.mark.parametrize("name", ["every-storage", "undecodable-text", "several-blocks"])
def test_rows_at_the_limits_of_their_types_are_valid_json(name: str, tmp_path: Path) -> None:
    path = tmp_path / "j.log"
    path.write_bytes(vector_content(name))
    with JournalReader(path) as reader:
        changes = [c for c in reader.changes() if isinstance(c, RowChange)]
        assert changes
        for change in changes:
            for row in filter(None, (change.before, change.after)):
                text = RowText(change.table).row(row)
                assert list(json.loads(text)) == [c.name for c in change.table.columns]
                assert text == canonical_row(change.table.columns, row)
