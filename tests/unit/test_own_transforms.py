"""Transforms of a user's own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from transform_records import (
    NEW,
    Apply,
    event,
    tombstone,
    transaction_end,
)

from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.events.records import Record
from firebird_cdc.journal.events.values import BadValue

OWN = '''
from dataclasses import replace
from decimal import Decimal

class Mark:
    """Marks records; misbehaves where it is told to."""
    def configure(self, parameters):
        self.mark = parameters["mark"]
    def apply(self, record):
        record.headers.append(("mark", self.mark))
        if record.value is None or "after" not in record.value:
            return record
        carrier = record.value["after"]["CARRIER"]
        if carrier == "none":
            return None
        if carrier == "type":
            return "x"
        if carrier == "value":
            return replace(record, value={**record.value, "ts_ms": "soon"})
        if carrier == "field":
            return replace(record, value={**record.value, "extra": 1})
        if carrier == "header":
            record.headers.append(("mark", 5))
        if carrier == "surrogate":
            record.headers.append(("mark", "\\udc80"))
        if carrier == "structs":
            return replace(record, struct_headers=("mark",))
        if carrier == "null":
            return replace(record, value=None)
        if carrier == "topic":
            record.topic = "a b"
        if carrier == "exit":
            raise SystemExit
        if carrier == "raise":
            return record.value["absent"]
        return record

class Plain:
    def apply(self, record):
        return record

class Idle:
    pass

class Raising(Plain):
    def __init__(self):
        1 / 0

class Needy(Plain):
    def __init__(self, name):
        pass
'''


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's on the search path; its name."""
    (tmp_path / "my_marks.py").write_text(OWN)
    (tmp_path / "my_broken.py").write_text("import not_there_at_all\n")
    (tmp_path / "my_syntax.py").write_text("def\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "my_marks"
    for name in ("my_marks", "my_broken", "my_syntax"):
        sys.modules.pop(name, None)


@pytest.fixture
def mark(own_module: str, build: Callable[..., Apply]) -> Apply:
    """The user's transform, configured."""
    return build(
        "transforms: m", f"transforms.m.type: {own_module}.Mark", "transforms.m.mark: blue"
    )


def with_carrier(text: str) -> Record:
    record = event("c")
    record.value["after"] = {**NEW, "CARRIER": text}
    return record


def test_an_own_transform_changes_and_drops_records(mark: Apply) -> None:
    original = event("c")
    result = mark(original)
    assert result is not None
    assert result.headers == [("h", b"1"), ("mark", "blue")]
    assert original.headers == [("h", b"1")]  # other records share it
    assert mark(with_carrier("none")) is None
    assert mark(tombstone()) is not None
    assert mark(transaction_end()) is not None


@pytest.mark.parametrize(
    ("carrier", "told"),
    [
        ("raise", "failed: KeyError: 'absent' (my_marks.py, line "),
        ("exit", "failed: SystemExit (my_marks.py, line "),
        ("type", "it gave a Python str, neither a Record nor None"),
        ("value", "field ts_ms: a Python str stands where int64 is wanted"),
        ("field", "a struct has extra, which its schema lacks"),
        ("header", "its header 'mark' is neither text nor bytes"),
        ("surrogate", "its header 'mark' is neither text nor bytes"),
        ("structs", "one of its struct_headers is no StructHeader"),
        ("null", "null stands where struct "),
        ("topic", "gave the topic 'a b'; Kafka allows up to 249"),
    ],
)
def test_fault_of_a_custom_transform_is_a_bad_event(mark: Apply, carrier: str, told: str) -> None:
    with pytest.raises(BadValue) as raised:
        mark(with_carrier(carrier))
    assert "transform m (my_marks.Mark)" in str(raised.value)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("nowhere", "it is neither built in nor the dotted path of a Python class; built in, "),
        ("unwarp", "filter_transactions, remove_field; did you mean unwrap?"),
        ("RegexRoute", "did you mean org.apache.kafka.connect.transforms.RegexRouter?"),
        ("no-where.X", "it must be a dotted path to a Python class"),
        ("nowhere_at_all.X", "there is no Python module nowhere_at_all; put it into one of the"),
        ("my_broken.X", "my_broken cannot be loaded: ModuleNotFoundError"),
        ("my_syntax.X", "my_syntax cannot be loaded: SyntaxError"),
        ("my_marks.Marc", "has no class Marc; did you mean Mark?"),
        ("my_marks.Idle", "class Idle in "),
        ("my_marks.Raising", "ZeroDivisionError: division by zero (my_marks.py, line "),
        ("my_marks.Needy", "it cannot be made, which happens without arguments"),
        ("my_marks.Mark", "it refuses its parameters: KeyError: 'mark'"),
    ],
)
def test_custom_transform_that_cannot_be_created_is_reported(
    build: Callable[..., Apply], own_module: str, path: str, told: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        build("transforms: m", f"transforms.m.type: {path}")
    (problem,) = raised.value.problems
    assert f"transforms.m.type is {path}; " in problem
    assert told in problem


def test_an_own_transform_without_parameters_needs_no_configure(
    build: Callable[..., Apply], own_module: str
) -> None:
    lines = ("transforms: m", "transforms.m.type: my_marks.Plain")
    assert build(*lines)(event("c")) is not None
    with pytest.raises(ConfigError, match=r"class Plain in .* has no method configure"):
        build(*lines, "transforms.m.unexpected: 1")
