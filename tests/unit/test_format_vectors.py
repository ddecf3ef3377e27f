"""The reader against the vectors in tests/vectors: whole journals, and broken ones by defect."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from firebird_cdc import errors
from firebird_cdc.journal.format import (
    Blob,
    Change,
    DdlChange,
    Gap,
    JournalReader,
    RowChange,
    SequenceChange,
    Undecodable,
    Value,
    read_envelope,
)

VECTORS = Path(__file__).parent.parent / "vectors"
NAMES = sorted(path.stem for path in VECTORS.glob("*.json"))


def _load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", VECTORS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _vector(name: str) -> tuple[bytes, dict[str, Any]]:
    *lines, length = (VECTORS / f"{name}.hex").read_text(encoding="ascii").splitlines()
    content = bytearray(int(length, 16))
    for line in lines:
        offset, piece = line.split()
        at = int(offset, 16)
        content[at : at + len(piece) // 2] = bytes.fromhex(piece)
    expected: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))
    return bytes(content), expected


def _value(value: Value) -> Any:
    if isinstance(value, Blob):
        return {"blob": value.number, "available": value.available, "hex": value.read().hex()}
    if isinstance(value, Undecodable):
        return {"undecodable": value.raw.hex(), "charset_id": value.charset_id}
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def _change(change: Change) -> dict[str, Any]:
    match change:
        case RowChange(pos, op, table, before, after):
            return {
                "pos": pos,
                "op": op,
                "table": table.name,
                "number": table.number,
                "before": None if before is None else [_value(value) for value in before],
                "after": None if after is None else [_value(value) for value in after],
            }
        case DdlChange(pos, sql, None):
            return {"pos": pos, "sql": _value(sql)}
        case DdlChange(pos, sql, table_changes):
            changes = [
                change._replace(state=change.state and asdict(change.state))
                for change in table_changes
            ]
            text = json.dumps([change._asdict() for change in changes], default=_value)
            return {"pos": pos, "sql": _value(sql), "table_changes": json.loads(text)}
        case SequenceChange(name, value):
            return {"sequence": name, "value": value}
        case Gap(pos, reason):
            return {"pos": pos, "gap": reason}


def _tuple(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    fields: dict[str, Any] = value._asdict()
    return {k: v if isinstance(v, int) else str(v) for k, v in fields.items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_vector_is_read_as_it_was_written_and_ends_as_it_is_broken(
    name: str, tmp_path: Path
) -> None:
    content, expected = _vector(name)
    path = tmp_path / f"{name}.log"
    path.write_bytes(content)
    outcome = expected["outcome"]
    changes: list[dict[str, Any]] = []
    ended: object = "whole"
    try:
        with JournalReader(path) as reader:
            assert _tuple(reader.header) == expected["header"]
            assert _tuple(reader.commit_mark) == expected["commit_mark"]
            assert _tuple(reader.stamp) == expected["stamp"]
            changes = []
            for change in reader.changes():
                changes.append(_change(change))
            assert reader.seal is not None and reader.seal.floor == expected["floor"]
            assert read_envelope(path) == (reader.header, reader.stamp, expected["database"])
            assert reader.user == expected["user"]
    except errors.JournalError as error:
        ended = {
            "error": type(error).__name__,
            "offset": error.offset,
            "changes": None if outcome["changes"] is None else len(changes),
        }
        assert error.path == path
    assert ended == outcome
    assert changes == expected.get("changes", [])


@pytest.mark.parametrize("defect", ["no-seal", "torn-tail", "stamped-and-cut"])
def test_the_envelope_of_an_unfinished_journal_is_readable(defect: str, tmp_path: Path) -> None:
    content, expected = _vector(defect)
    path = tmp_path / "journal"
    path.write_bytes(content)
    assert read_envelope(path)[2] == expected["database"]
    with JournalReader(path) as reader:
        assert reader.seal is None


def test_the_checked_in_vectors_are_those_that_the_script_makes(tmp_path: Path) -> None:
    generator = _load_generator()
    generator.HERE = tmp_path
    for vector in generator.all_vectors():
        vector.write()
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    kept = {
        path.name: path.read_text(encoding="utf-8")
        for path in VECTORS.iterdir()
        if path.suffix in (".hex", ".json")
    }
    assert made == kept
