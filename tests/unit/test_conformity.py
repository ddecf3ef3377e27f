"""Schemas that a user's code makes: what no converter could write is refused by name."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from firebird_cdc.journal.events.converters import JsonConverter
from firebird_cdc.journal.events.schema import INT32, STRING, Schema, struct
from firebird_cdc.journal.events.schema_check import Conformity
from firebird_cdc.journal.events.values import BadValue


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("string", "a Python str stands where a Schema is wanted"),
        (Schema("decimal"), "a schema has the type 'decimal'"),
        (Schema("array"), "a schema of type 'array' lacks items"),
        (Schema("map", items=STRING), "a schema of type 'map' lacks keys"),
        (Schema("array", items=Schema("array")), "a schema of type 'array' lacks items"),
        (struct("\udc80"), "has a name, doc or parameters that are no texts"),
        (Schema("string", parameters={"length": 5}), "parameters that are no texts"),  # type: ignore[dict-item]
        (Schema("string", parameters=None), "parameters that are no texts"),  # type: ignore[arg-type]
        (Schema("string", version="1"), "a version that is no int"),  # type: ignore[arg-type]
        (Schema("struct", fields=(("A", STRING),)), "a field that is no Field"),  # type: ignore[arg-type]
        (struct("S", ("A", STRING), ("A", INT32)), "has two fields of one name"),
        (Schema("double", default=Decimal(1)), "a Python Decimal stands where double is wanted"),
        (struct("S", ("A", Schema("int8", default=128))), "a number is too large for int8"),
    ],
)
def test_malformed_schema_is_refused(schema: Any, problem: str) -> None:
    with pytest.raises(BadValue) as raised:
        Conformity(non_finite=False).checker(schema)
    assert problem in str(raised.value)


def test_a_default_of_bytes_is_written_as_bytes_are() -> None:
    schema = Schema("bytes", optional=True, default=b"\x00\xff")
    Conformity(non_finite=False).checker(schema)(None)
    written = JsonConverter(schemas_enable=True).from_connect("t", schema, b"a")
    assert written == (
        b'{"schema":{"type":"bytes","optional":true,"default":"AP8="},"payload":"YQ=="}'
    )
