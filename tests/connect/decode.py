"""Values of events as Python values, by what their schemas say: from JSON, and from Java.

Two readings that share nothing but their result, so that both are compared to the same row:
``from_json`` knows the forms of Kafka Connect's JSON and the semantic types by their
definitions, ``from_java`` takes what Kafka Connect's and Debezium's own classes have made of it.
"""

from __future__ import annotations

import struct
from base64 import b64decode
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from reader import Described

Schema = dict[str, Any]
_EPOCH = datetime(1970, 1, 1)


class Undecodable(AssertionError):
    """A value that is not what its schema says."""


# ---- JSON


def from_json(schema: Schema, payload: Any) -> Any:
    """Return the value that PAYLOAD is by SCHEMA, both as in a message.

    Raises Undecodable for a payload that the schema doesn't allow.
    """
    if payload is None:
        if not schema["optional"]:
            raise Undecodable(f"null where the schema has {schema}")
        return None
    value = _PHYSICAL[schema["type"]](schema, payload)
    logical = _LOGICAL.get(schema.get("name", ""))
    return logical(schema, value) if logical else value


def _integer(bits: int) -> Callable[[Schema, Any], int]:
    def decode(schema: Schema, payload: Any) -> int:
        if type(payload) is not int or not -(2 ** (bits - 1)) <= payload < 2 ** (bits - 1):
            raise Undecodable(f"{payload!r} as {schema}")
        return payload

    return decode


def _of(kind: type) -> Callable[[Schema, Any], Any]:
    def decode(schema: Schema, payload: Any) -> Any:
        if type(payload) is not kind:
            raise Undecodable(f"{payload!r} as {schema}")
        return payload

    return decode


def _float(schema: Schema, payload: Any) -> float:
    """The 32-bit float that is nearest to the number in the message."""
    nearest: float = struct.unpack("f", struct.pack("f", _double(schema, payload)))[0]
    return nearest


def _double(schema: Schema, payload: Any) -> float:
    if type(payload) not in (int, float):
        raise Undecodable(f"{payload!r} as {schema}")
    return float(payload)


def _struct(schema: Schema, payload: Any) -> dict[str, Any]:
    fields = {field["field"]: field for field in schema["fields"]}
    if type(payload) is not dict or list(payload) != list(fields):
        raise Undecodable(f"{payload!r} as {schema}")
    return {name: from_json(field, payload[name]) for name, field in fields.items()}


_PHYSICAL: dict[str, Callable[[Schema, Any], Any]] = {
    "int16": _integer(16),
    "int32": _integer(32),
    "int64": _integer(64),
    "float": _float,
    "double": _double,
    "boolean": _of(bool),
    "string": _of(str),
    "bytes": lambda schema, payload: b64decode(payload, validate=True),
    "array": lambda schema, payload: [from_json(schema["items"], item) for item in payload],
    "struct": _struct,
}


def _unscaled(raw: bytes, scale: int) -> Decimal:
    number = int.from_bytes(raw, "big", signed=True)
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def _moment(**since_1970: int) -> datetime:
    return _EPOCH + timedelta(**since_1970)


def _utc(schema: Schema, text: str) -> str:
    if not text.endswith("Z"):
        raise Undecodable(f"{text} as {schema}")
    return text[:-1]


_CONNECT = "org.apache.kafka.connect.data."
_LOGICAL: dict[str, Callable[[Schema, Any], Any]] = {
    f"{_CONNECT}Decimal": lambda schema, raw: _unscaled(raw, int(schema["parameters"]["scale"])),
    "io.debezium.data.VariableScaleDecimal": lambda _, it: _unscaled(it["value"], it["scale"]),
    "io.debezium.time.Date": lambda _, days: _moment(days=days).date(),
    "io.debezium.time.MicroTime": lambda _, us: _moment(microseconds=us).time(),
    "io.debezium.time.MicroTimestamp": lambda _, us: _moment(microseconds=us),
    f"{_CONNECT}Date": lambda _, days: _moment(days=days).date(),
    f"{_CONNECT}Time": lambda _, ms: _moment(milliseconds=ms).time(),
    f"{_CONNECT}Timestamp": lambda _, ms: _moment(milliseconds=ms),
    "io.debezium.time.ZonedTime": lambda schema, text: time.fromisoformat(_utc(schema, text)),
    "io.debezium.time.ZonedTimestamp": lambda schema, text: datetime.fromisoformat(
        _utc(schema, text)
    ),
}

# ---- Java


def from_java(schema: Schema, described: Described) -> Any:
    """Return the value that ConnectReader.java has DESCRIBED, whose schema is SCHEMA.

    Asserts the Java class that Connect has for the type.
    """
    if described is None:
        return None
    name = schema.get("name", "")
    java, content, *meaning = described
    expected = _CLASSES.get(name) or _CLASSES[schema["type"]]
    assert java == expected, f"{described} as {schema}"
    if meaning:
        return _MEANINGS[name](meaning[0])
    if java == "Struct":
        fields = schema["fields"]
        return {field: from_java(fields[field], value) for field, value in content.items()}
    if java == "List":
        return [from_java(schema["items"], item) for item in content]
    return _CONTENTS[java](content)


_CLASSES = {
    "int16": "Short",
    "int32": "Integer",
    "int64": "Long",
    "float": "Float",
    "double": "Double",
    "boolean": "Boolean",
    "string": "String",
    "bytes": "bytes",
    "array": "List",
    "struct": "Struct",
    f"{_CONNECT}Decimal": "BigDecimal",
    f"{_CONNECT}Date": "Date",
    f"{_CONNECT}Time": "Date",
    f"{_CONNECT}Timestamp": "Date",
}
_CONTENTS: dict[str, Callable[[str], Any]] = {
    "Short": int,
    "Integer": int,
    "Long": int,
    "Float": float.fromhex,
    "Double": float.fromhex,
    "Boolean": {"true": True, "false": False}.__getitem__,
    "String": str,
    "bytes": b64decode,
    "BigDecimal": Decimal,
}
_MEANINGS: dict[str, Callable[[str], Any]] = {
    "io.debezium.data.VariableScaleDecimal": Decimal,
    "io.debezium.time.Date": date.fromisoformat,
    "io.debezium.time.MicroTime": time.fromisoformat,
    "io.debezium.time.MicroTimestamp": datetime.fromisoformat,
    f"{_CONNECT}Date": date.fromisoformat,
    f"{_CONNECT}Time": time.fromisoformat,
    f"{_CONNECT}Timestamp": datetime.fromisoformat,
    "io.debezium.time.ZonedTime": time.fromisoformat,
    "io.debezium.time.ZonedTimestamp": datetime.fromisoformat,
}
