"""Schemas of Kafka Connect: what a key, a value or a field of them is.

Values are kept in the physical form of their schema's ``type``: int, float, bool, str, bytes,
list (array), dict (struct and map), None. A semantic type is the schema's ``name``: a
``org.apache.kafka.connect.data.Decimal`` is the bytes of its unscaled value, an
``io.debezium.time.Date`` a number of days. Source: Kafka Connect's ``ConnectSchema`` and
``JsonConverter``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

Struct = dict[str, Any]
"""Field values of a struct by field name, in the order of its schema."""


class Field(NamedTuple):
    """A field of a struct."""

    name: str
    schema: Schema


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Schema:
    """One schema. Compared by identity: each is made once and then shared.

    ``type``: boolean, int8, int16, int32, int64, float, double, string, bytes, array, map or
    struct, as the JSON converter spells them. ``fields``: of a struct. ``items``: what an
    array or a map holds. ``keys``: of a map. ``default``: a value in the schema's form.
    """

    type: str
    optional: bool = False
    name: str | None = None
    version: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    default: Any = None
    doc: str | None = None
    fields: tuple[Field, ...] = ()
    items: Schema | None = None
    keys: Schema | None = None

    def as_optional(self, optional: bool = True) -> Schema:
        """This schema, optional or not."""
        return self if self.optional is optional else replace(self, optional=optional)

    def field(self, name: str) -> Schema | None:
        """The schema of the field NAME of a struct, None if it has no such field."""
        return next((item.schema for item in self.fields if item.name == name), None)

    def to_json(self) -> Struct:
        """The schema as Connect's ``JsonConverter`` writes it."""
        described: Struct = {"type": self.type, "optional": self.optional}
        for key in ("name", "version", "doc"):
            value = getattr(self, key)
            if value is not None:
                described[key] = value
        if self.parameters:
            described["parameters"] = dict(self.parameters)
        if self.default is not None:
            described["default"] = self.default
        if self.type == "struct":
            described["fields"] = [
                {**item.schema.to_json(), "field": item.name} for item in self.fields
            ]
        if self.keys is not None:
            described["keys"] = self.keys.to_json()
        if self.items is not None:
            # The items of an array bear the name "items" there, the values of a map "values".
            described["values" if self.type == "map" else "items"] = self.items.to_json()
        return described


BOOLEAN = Schema("boolean")
INT32 = Schema("int32")
INT64 = Schema("int64")
STRING = Schema("string")
BYTES = Schema("bytes")
OPTIONAL_INT64 = Schema("int64", optional=True)
OPTIONAL_STRING = Schema("string", optional=True)


def struct(name: str | None, *fields: tuple[str, Schema], **more: Any) -> Schema:
    """A struct schema of the FIELDS; MORE as in ``Schema``."""
    return Schema("struct", name=name, fields=tuple(Field(*item) for item in fields), **more)
