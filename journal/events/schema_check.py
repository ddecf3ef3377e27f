"""Checks that values are in the form of their schemas, where they come from the user's own code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import isfinite
from typing import Any

from firebird_cdc.journal.events.schema import Field, Schema
from firebird_cdc.journal.events.values import BadValue

SCHEMAS_KEPT = 5000
"""Schemas for which something is kept ready; more than the shapes of tables that are kept."""

_Check = Callable[[Any], None]

_TYPES: dict[str, type] = {
    "boolean": bool,
    "string": str,
    "bytes": bytes,
    "float": float,
    "double": float,
}
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


class Conformity:
    """Checks values against schemas, for each of which a function is made once.

    ``non_finite``: whether NaN and infinities have a form, as in Avro.
    """

    def __init__(self, non_finite: bool) -> None:
        self._non_finite = non_finite
        self.checker = lru_cache(SCHEMAS_KEPT)(self._checker)

    def _checker(self, schema: Schema) -> _Check:
        """Return what raises BadValue unless a value is in the physical form of SCHEMA.

        Raises BadValue if SCHEMA is none that Kafka Connect has.
        """
        _check_schema(schema)
        check = self._non_null(schema)
        if schema.default is not None:
            check(schema.default)

        def checked(value: Any) -> None:
            if value is None:
                if not schema.optional:
                    raise BadValue(f"null stands where {_described(schema)} is required")
            else:
                check(value)

        return checked

    def _non_null(self, schema: Schema) -> _Check:
        if schema.type in _BITS:
            return _integer(schema)
        if schema.type == "struct":
            return self._struct(schema)
        if schema.type == "array":
            return self._array(schema)
        if schema.type == "map":
            return self._map(schema)
        if schema.type not in _TYPES:
            raise BadValue(f"a schema has the type {schema.type!r}, which Kafka Connect lacks")
        wanted = _TYPES[schema.type]

        def check(value: Any) -> None:
            if type(value) is not wanted:
                raise _wrong(schema, value)

        def check_number(value: Any) -> None:
            check(value)
            check_finite(value)

        return check_number if wanted is float and not self._non_finite else check

    def _struct(self, schema: Schema) -> _Check:
        checks = {name: self.checker(inner) for name, inner in schema.fields}

        def check(value: Any) -> None:
            if type(value) is not dict:
                raise _wrong(schema, value)
            if value.keys() != checks.keys():
                missing, unknown = checks.keys() - value.keys(), value.keys() - checks.keys()
                parts = [f"no field {', '.join(sorted(missing))}"] if missing else []
                if unknown:
                    names = ", ".join(sorted(map(str, unknown)))
                    parts.append(f"{names}, which its schema lacks")
                raise BadValue(f"a struct has {' and '.join(parts)}")
            for name, inner in value.items():
                try:
                    checks[name](inner)
                except BadValue as error:
                    raise BadValue(f"field {name}: {error}") from None

        return check

    def _array(self, schema: Schema) -> _Check:
        assert schema.items is not None
        check_item = self.checker(schema.items)

        def check(value: Any) -> None:
            if type(value) is not list:
                raise _wrong(schema, value)
            for item in value:
                check_item(item)

        return check

    def _map(self, schema: Schema) -> _Check:
        assert schema.keys is not None
        assert schema.items is not None
        check_key, check_item = self.checker(schema.keys), self.checker(schema.items)

        def check(value: Any) -> None:
            if type(value) is not dict:
                raise _wrong(schema, value)
            for key, item in value.items():
                check_key(key)
                check_item(item)

        return check


def _check_schema(schema: object) -> None:
    """Check what SCHEMA itself says; whoever made it need not have followed its annotations."""
    if type(schema) is not Schema:
        raise BadValue(f"a Python {type(schema).__name__} stands where a Schema is wanted")
    kind = schema.type
    told = f"a schema of type {kind!r}"
    names = [name for name in (schema.name, schema.doc) if name is not None]
    if not isinstance(schema.parameters, Mapping) or not all(
        map(is_text, [*names, *schema.parameters, *schema.parameters.values()])
    ):
        raise BadValue(f"{told} has a name, doc or parameters that are no texts")
    if type(schema.optional) is not bool or type(schema.version or 0) is not int:
        raise BadValue(f"{told} has an optional that is no bool, or a version that is no int")
    if kind in ("array", "map") and schema.items is None:
        raise BadValue(f"{told} lacks items")
    if kind == "map" and schema.keys is None:
        raise BadValue(f"{told} lacks keys")
    if not all(type(field) is Field and is_text(field.name) for field in schema.fields):
        raise BadValue(f"{told} has a field that is no Field, or none with a text for a name")
    if len({field.name for field in schema.fields}) < len(schema.fields):
        raise BadValue(f"{told} has two fields of one name")


def is_text(value: object) -> bool:
    """Tell whether VALUE is a text that UTF-8 can write."""
    try:
        return type(value) is str and bool(value.encode() or True)
    except UnicodeEncodeError:
        return False


def check_finite(value: Any) -> None:
    """Raise BadValue if VALUE has a NaN or an infinity in it: who writes JSON puts null there."""
    if isinstance(value, float):
        if not isfinite(value):
            raise BadValue(f"{value} cannot be written as a JSON number")
    elif isinstance(value, dict):
        for inner in value.values():
            check_finite(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_finite(inner)


def _integer(schema: Schema) -> _Check:
    limit = 1 << (_BITS[schema.type] - 1)

    def check(value: Any) -> None:
        if type(value) is not int:
            raise _wrong(schema, value)
        if not -limit <= value < limit:
            raise BadValue(f"a number is too large for {_described(schema)}")

    return check


def _described(schema: Schema) -> str:
    return f"{schema.type} {schema.name}" if schema.name else schema.type


def _wrong(schema: Schema, value: Any) -> BadValue:
    return BadValue(f"a Python {type(value).__name__} stands where {_described(schema)} is wanted")
