"""A struct with every type of Connect and every semantic type that the connector writes."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from firebird_cdc.journal.events.schema import (
    BOOLEAN,
    BYTES,
    INT32,
    INT64,
    OPTIONAL_INT64,
    OPTIONAL_STRING,
    STRING,
    Schema,
    struct,
)


def _semantic(kind: str, name: str, optional: bool = False, **parameters: str) -> Schema:
    return Schema(kind, optional=optional, name=name, version=1, parameters=parameters)


_CONNECT = "org.apache.kafka.connect.data"
VARIABLE_SCALE = struct(
    "io.debezium.data.VariableScaleDecimal",
    ("scale", INT32),
    ("value", BYTES),
    version=1,
    optional=True,
)
# As column.propagate.source.type has it: same name, same fields, other parameters.
_PROPAGATED = struct(
    "io.debezium.data.VariableScaleDecimal",
    ("scale", INT32),
    ("value", BYTES),
    version=1,
    optional=True,
    parameters={"__debezium.source.column.type": "DECFLOAT"},
)
_ANONYMOUS = struct(None, ("a", INT32), optional=True)
_ONE = {"scale": 0, "value": b"\x01"}

# Name, schema, value.
FIELDS: tuple[tuple[str, Schema, Any], ...] = (
    ("flag", BOOLEAN, True),
    ("no_flag", Schema("boolean", optional=True), None),
    ("tiny", Schema("int8"), -128),
    ("small", Schema("int16", optional=True), -32768),
    ("whole", INT32, -(2**31)),
    ("big", INT64, 2**63 - 1),
    ("big_null", OPTIONAL_INT64, None),
    ("single", Schema("float"), 0.5),
    ("double", Schema("double", optional=True), 1e300),
    ("text", STRING, "Łódź, 東京, 🦆"),
    ("empty", OPTIONAL_STRING, ""),
    ("bytes", Schema("bytes", optional=True), b"\x00\xff"),
    (
        "price",
        _semantic(
            "bytes", f"{_CONNECT}.Decimal", True, **{"scale": "2", "connect.decimal.precision": "9"}
        ),
        b"\xfe\x0c",
    ),
    ("huge", _semantic("bytes", f"{_CONNECT}.Decimal", scale="0"), b"\x7f" * 16),
    ("day", _semantic("int32", f"{_CONNECT}.Date"), -1),
    ("time", _semantic("int32", f"{_CONNECT}.Time", True), 86_399_999),
    ("moment", _semantic("int64", f"{_CONNECT}.Timestamp"), -5),
    ("debezium_day", _semantic("int32", "io.debezium.time.Date", True), 20_000),
    ("micro_time", _semantic("int64", "io.debezium.time.MicroTime"), 1),
    ("micro_moment", _semantic("int64", "io.debezium.time.MicroTimestamp"), -1),
    ("zoned", _semantic("string", "io.debezium.time.ZonedTimestamp"), "2026-03-02T09:14:07Z"),
    (
        "kind",
        Schema(
            "string",
            optional=True,
            name="io.debezium.data.Enum",
            version=1,
            parameters={"allowed": "true,last,false"},
            default="false",
            doc="where a snapshot ends",
        ),
        "last",
    ),
    ("default_bytes", Schema("bytes", default=b"\xff\x00"), b"\x01"),
    ("decfloat", VARIABLE_SCALE, {"scale": -3, "value": b"\x05"}),
    ("decfloat_null", VARIABLE_SCALE, None),
    ("decfloat_key", VARIABLE_SCALE.as_optional(False), _ONE),
    ("decfloat_told", _PROPAGATED, _ONE),
    (
        "matrix",
        Schema("array", optional=True, items=Schema("array", items=Schema("int32", optional=True))),
        [[1, None], []],
    ),
    ("decfloats", Schema("array", items=VARIABLE_SCALE), [_ONE, None]),
    ("map", Schema("map", keys=STRING, items=OPTIONAL_STRING), {"k": None}),
    ("map_of_structs", Schema("map", keys=STRING, items=VARIABLE_SCALE), {"k": _ONE}),
    ("pairs", Schema("map", optional=True, keys=INT32, items=OPTIONAL_STRING), {1: "x"}),
    ("named_pairs", Schema("map", name="a.b.Pairs", keys=INT64, items=VARIABLE_SCALE), {3: _ONE}),
    ("nameless", _ANONYMOUS, {"a": 4}),
    ("nameless_too", _ANONYMOUS.as_optional(False), {"a": 5}),
    ("nameless_other", struct(None, ("b", INT32)), {"b": 6}),
)

_ROW = struct(
    "p._srv_depot_fdb.ITEM.Value", *((name, kind) for name, kind, _ in FIELDS), optional=True
)
ENVELOPE = struct(
    "p._srv_depot_fdb.ITEM.Envelope", ("before", _ROW), ("after", _ROW), ("op", STRING), version=2
)
VALUE = {"before": None, "after": {name: value for name, _, value in FIELDS}, "op": "c"}


def as_json(value: Any) -> Any:
    """A schema's or a value's physical form as Kafka Connect's JsonConverter has it."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, dict):
        if any(type(key) is not str for key in value):
            return [[as_json(key), as_json(item)] for key, item in value.items()]
        return {key: as_json(item) for key, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, list) else value
