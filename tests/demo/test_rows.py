"""The comparison that closes the demo finds every way in which a history can be wrong."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

from firebird_cdc.demo.rows import TableShape, fold, from_database, from_message

_SHAPE = TableShape("T", ("ID",), ("CODE",))
_FIELDS = [
    {"field": "ID", "type": "int32"},
    {
        "field": "PRICE",
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "2"},
    },
    {"field": "CODE", "type": "string"},
]
_SCHEMA = {"fields": [{"field": side, "fields": _FIELDS} for side in ("before", "after")]}

_FIRST = {"ID": 1, "PRICE": "BNI=", "CODE": "A   "}
_CHANGED = {"ID": 1, "PRICE": "/w==", "CODE": None}
_OTHER_KEY = {**_FIRST, "ID": 2}


def _event(op: str, before: object, after: object) -> dict[str, Any]:
    payload = {"op": op, "before": before, "after": after, "source": {"txId": 7}}
    return {"schema": _SCHEMA, "payload": payload}


def test_a_history_adds_up_to_rows_in_the_common_form() -> None:
    result = fold(_SHAPE, [_event("c", None, _FIRST), _event("c", None, _OTHER_KEY)])
    assert result.faults == []
    assert result.rows == {
        "[1]": {"ID": 1, "PRICE": "12.34", "CODE": "A"},
        "[2]": {"ID": 2, "PRICE": "12.34", "CODE": "A"},
    }


def test_rows_of_a_snapshot_are_known_until_they_are_changed() -> None:
    read = _event("r", None, _FIRST)
    assert fold(_SHAPE, [read]).read == {"[1]"}
    assert fold(_SHAPE, [read, _event("d", _FIRST, None)]).read == set()
    assert fold(_SHAPE, [read, read]).faults


def test_updates_and_deletes_apply_to_the_folded_rows() -> None:
    history = [_event("c", None, _FIRST), _event("u", _FIRST, _CHANGED)]
    assert fold(_SHAPE, history).rows == {"[1]": {"ID": 1, "PRICE": "-0.01", "CODE": None}}
    history.append(_event("d", _CHANGED, None))
    result = fold(_SHAPE, history)
    assert (result.rows, result.faults) == ({}, [])


@pytest.mark.parametrize(
    ("history", "fault"),
    [
        ([_event("c", None, _FIRST)] * 2, "makes a row that is there"),
        ([_event("u", _FIRST, _CHANGED)], "was another before"),
        ([_event("c", None, _CHANGED), _event("d", _FIRST, None)], "was another before"),
        ([_event("d", None, _FIRST)], "wrong images"),
        ([_event("u", _FIRST, None)], "wrong images"),
        ([_event("r", _FIRST, None)], "wrong images"),
    ],
)
def test_a_step_that_does_not_fit_is_a_fault(history: list[dict[str, Any]], fault: str) -> None:
    faults = fold(_SHAPE, history).faults
    assert len(faults) == 1
    assert fault in faults[0]


@pytest.mark.parametrize(
    ("name", "value", "natural"),
    [
        ("io.debezium.time.Date", 20513, date(2026, 3, 1)),
        ("io.debezium.time.Date", -25567, date(1900, 1, 1)),
        ("io.debezium.time.MicroTime", 86399_999_900, time(23, 59, 59, 999_900)),
        ("io.debezium.time.MicroTimestamp", 500_000, datetime(1970, 1, 1, 0, 0, 0, 500_000)),
        ("io.debezium.time.MicroTimestamp", -1_000_000, datetime(1969, 12, 31, 23, 59, 59)),
    ],
)
def test_message_and_database_come_to_the_same_text(name: str, value: int, natural: object) -> None:
    assert from_message({"name": name}, value) == from_database(natural)


@pytest.mark.parametrize("text", ["0.00", "-0.01", "123456789012345678901234567890.12", "1E+3"])
def test_decimals_come_to_the_same_text(text: str) -> None:
    import base64

    number = Decimal(text).quantize(Decimal("1.00")) if "E" in text else Decimal(text)
    unscaled = int(str(number).replace(".", ""))
    raw = unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
    schema = {"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
    message = from_message(schema, base64.b64encode(raw).decode())
    assert message == from_database(number)
