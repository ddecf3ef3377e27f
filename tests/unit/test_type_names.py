"""Firebird's name for the type of a column, from what a journal says of it."""

from __future__ import annotations

from typing import Any

import pytest

from firebird_cdc.journal.format import Column, Element, Storage
from firebird_cdc.journal.types.names import (
    jdbc_type,
    type_expression,
    type_length,
    type_name,
    type_scale,
)


def _column(storage: Storage, **known: Any) -> Column:
    plain: dict[str, Any] = dict.fromkeys(
        ("sql_type", "sub_type", "scale", "length", "charset_id", "char_length", "precision"), 0
    )
    rest = {"nullable": True, "identity": False, "key_position": 0, "storage": storage}
    return Column(name="C", **(plain | rest | known))


S = Storage
# Storage, what the definition says, name, expression, length, scale, code of java.sql.Types.
TYPES: list[tuple[Storage, dict[str, Any], str, str, int | None, int | None, int]] = [
    (S.SMALLINT, {}, "SMALLINT", "SMALLINT", None, None, 5),
    (S.INTEGER, {}, "INTEGER", "INTEGER", None, None, 4),
    (S.BIGINT, {}, "BIGINT", "BIGINT", None, None, -5),
    (S.INT128, {}, "INT128", "INT128", None, None, 2),
    (S.SMALLINT, {"sub_type": 1, "precision": 4}, "NUMERIC", "NUMERIC(4,0)", 4, 0, 2),
    (S.INTEGER, {"sub_type": 1, "scale": -3, "precision": 9}, "NUMERIC", "NUMERIC(9,3)", 9, 3, 2),
    (S.BIGINT, {"sub_type": 2, "scale": -2, "precision": 12}, "DECIMAL", "DECIMAL(12,2)", 12, 2, 3),
    (S.INT128, {"sub_type": 1, "precision": 38}, "NUMERIC", "NUMERIC(38,0)", 38, 0, 2),
    (S.BIGINT, {"sub_type": 1, "scale": -2}, "NUMERIC", "NUMERIC(18,2)", 18, 2, 2),
    (S.INTEGER, {"scale": -1}, "NUMERIC", "NUMERIC(9,1)", 9, 1, 2),
    (S.DOUBLE, {"scale": -4, "precision": 15}, "NUMERIC", "NUMERIC(15,4)", 15, 4, 2),
    (S.DOUBLE, {"scale": -4, "sub_type": 2}, "DECIMAL", "DECIMAL(15,4)", 15, 4, 3),
    (S.FLOAT, {}, "FLOAT", "FLOAT", None, None, 6),
    (S.DOUBLE, {}, "DOUBLE PRECISION", "DOUBLE PRECISION", None, None, 8),
    (S.DECFLOAT16, {}, "DECFLOAT", "DECFLOAT(16)", 16, None, 2015),
    (S.DECFLOAT34, {}, "DECFLOAT", "DECFLOAT(34)", 34, None, 2015),
    (S.BOOLEAN, {}, "BOOLEAN", "BOOLEAN", None, None, 16),
    (S.PADDED_TEXT, {"sql_type": 452, "char_length": 3}, "CHAR", "CHAR(3)", 3, None, 1),
    (S.TEXT, {"sql_type": 448, "char_length": 40}, "VARCHAR", "VARCHAR(40)", 40, None, 12),
    (S.TEXT, {"sql_type": 448, "length": 160}, "VARCHAR", "VARCHAR", None, None, 12),
    (S.OCTETS, {"sql_type": 452, "char_length": 16}, "BINARY", "BINARY(16)", 16, None, -2),
    (S.OCTETS, {"sql_type": 448, "char_length": 9}, "VARBINARY", "VARBINARY(9)", 9, None, -3),
    (S.BLOB, {"sub_type": 1}, "BLOB", "BLOB SUB_TYPE TEXT", None, None, -1),
    (S.BLOB, {"sub_type": 0}, "BLOB", "BLOB SUB_TYPE BINARY", None, None, -4),
    (S.BLOB, {"sub_type": 2}, "BLOB", "BLOB SUB_TYPE 2", None, None, -4),
    (S.BLOB, {"sub_type": -7}, "BLOB", "BLOB SUB_TYPE -7", None, None, 2004),
    (S.DATE, {}, "DATE", "DATE", None, None, 91),
    (S.TIME, {}, "TIME", "TIME", None, None, 92),
    (S.TIMESTAMP, {}, "TIMESTAMP", "TIMESTAMP", None, None, 93),
    (S.TIME_TZ, {}, "TIME WITH TIME ZONE", "TIME WITH TIME ZONE", None, None, 2013),
    (S.TIMESTAMP_TZ, {}, *("TIMESTAMP WITH TIME ZONE",) * 2, None, None, 2014),
    (S.ARRAY, {}, "ARRAY", "ARRAY", None, None, 2003),
    (S.RAW, {"sql_type": 9999}, "UNKNOWN", "UNKNOWN", None, None, 1111),
]


@pytest.mark.parametrize(
    ("storage", "known", "name", "expression", "length", "scale", "jdbc"),
    TYPES,
    ids=[f"{case[3]} in {case[0].name}" for case in TYPES],
)
def test_a_column_is_called_as_in_create_table(
    storage: Storage,
    known: dict[str, Any],
    name: str,
    expression: str,
    length: int | None,
    scale: int | None,
    jdbc: int,
) -> None:
    column = _column(storage, **known)
    assert type_name(column) == name
    assert type_expression(column) == expression
    assert type_length(column) == length
    assert type_scale(column) == scale
    assert jdbc_type(column) == jdbc


def test_every_storage_is_named() -> None:
    assert {case[0] for case in TYPES} == set(Storage)


@pytest.mark.parametrize(
    ("element", "known", "expression"),
    [
        (Element(8, 0, 0, 4, 0, ((0, 1), (1, 3))), {}, "INTEGER [0:1, 3]"),
        (Element(16, 1, -2, 8, 0, ((1, 5),)), {"precision": 15}, "NUMERIC(15,2) [5]"),
        (Element(14, 0, 0, 12, 4, ((-1, 1),)), {"char_length": 3}, "CHAR(3) [-1:1]"),
        (Element(14, 0, 0, 3, 1, ((1, 2),)), {"char_length": 3}, "BINARY(3) [2]"),
        (Element(37, 0, 0, 3, 1, ((1, 2),)), {"char_length": 3}, "VARBINARY(3) [2]"),
        (Element(99, 0, 0, 3, 0, ((1, 2),)), {}, "UNKNOWN [2]"),
    ],
)
def test_an_array_is_called_by_its_elements(
    element: Element, known: dict[str, Any], expression: str
) -> None:
    column = _column(S.ARRAY, sql_type=540, element=element, **known)
    assert type_name(column) == "ARRAY"
    assert type_expression(column) == expression
    assert (type_length(column), type_scale(column), jdbc_type(column)) == (None, None, 2003)
