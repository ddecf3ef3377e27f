"""Names of schemas and fields: what Avro takes, and that no two things share one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firebird_cdc.config import load_config
from firebird_cdc.journal.events.names import (
    SchemaNames,
    adjust_field_name,
    adjust_schema_name,
    field_names,
)
from firebird_cdc.journal.events.topics import BadName

AVRO_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")


@pytest.mark.parametrize(
    ("name", "avro", "avro_unicode"),
    [
        ("ORDER_ID", "ORDER_ID", "ORDER_u005fID"),
        ("RDB$ID", "RDB_ID", "RDB_u0024ID"),
        ("24ColumnName", "_24ColumnName", "_u0032" + "4ColumnName"),
        ("a.b c", "a_b_c", "a_u002eb_u0020c"),
        ("_hello_语言", "_hello___", "_u005fhello_u005f_u8bed_u8a00"),
        ("Жук", "___", "_u0416_u0443_u043a"),
        ("\t", "_", "_u0009"),
        ("😀", "__", "_ud83d_ude00"),
    ],
)
def test_field_names_are_adjusted_by_mode(name: str, avro: str, avro_unicode: str) -> None:
    assert adjust_field_name(name, "none") == name
    assert adjust_field_name(name, "avro") == avro
    assert adjust_field_name(name, "avro_unicode") == avro_unicode


@pytest.mark.parametrize(
    ("name", "avro", "avro_unicode"),
    [
        (
            "depot._srv_fb_warehouse.fdb.SHIPMENT",
            "depot._srv_fb_warehouse.fdb.SHIPMENT",
            "depot._u005fsrv_u005ffb_u005fwarehouse.fdb.SHIPMENT",
        ),
        ("de-pot.x.fdb.T$1", "de_pot.x.fdb.T_1", "de_u002dpot.x.fdb.T_u00241"),
        ("depot.x.2026.9T", "depot.x._2026._9T", "depot.x._u0032026._u0039T"),
        ("depot.a..b.T", "depot.a._.b.T", "depot.a._.b.T"),
    ],
)
def test_schema_names_are_adjusted_by_mode(name: str, avro: str, avro_unicode: str) -> None:
    assert adjust_schema_name(name, "none") == name
    assert adjust_schema_name(name, "avro") == avro
    assert adjust_schema_name(name, "avro_unicode") == avro_unicode


@given(st.text(min_size=1), st.text(min_size=1))
def test_adjusted_names_are_valid_in_avro_and_distinct_in_unicode_mode(a: str, b: str) -> None:
    for mode in ("avro", "avro_unicode"):
        assert AVRO_NAME.fullmatch(adjust_field_name(a, mode))
        for part in adjust_schema_name(a, mode).split("."):
            assert AVRO_NAME.fullmatch(part)
    same = adjust_field_name(a, "avro_unicode") == adjust_field_name(b, "avro_unicode")
    assert same is (a == b)


def test_two_columns_that_would_share_a_field_are_both_named() -> None:
    whose = "table T in /a.fdb"
    assert field_names(["A$", "A#"], "none", whose) == ("A$", "A#")
    assert field_names(["A$", "B"], "avro", whose) == ("A_", "B")
    with pytest.raises(BadName) as caught:
        field_names(["A$", "B", "A#"], "avro", whose)
    assert str(caught.value) == (
        "columns A$ and A# of table T in /a.fdb would share the field A_; set"
        " field.name.adjustment.mode: avro_unicode, or leave one of them out with"
        " column.exclude.list"
    )


def schema_names(directory: Path, mode: str, encoding: str = "replace") -> SchemaNames:
    path = directory / "c.yaml"
    path.write_text(
        "connector.name: n\nconnector.journal.directory: /j\nkafka.topic.prefix: de-pot\n"
        f"kafka.producer.bootstrap.servers: h:1\nschema.name.adjustment.mode: {mode}\n"
        f"topic.name.encoding: {encoding}\n"
    )
    return SchemaNames(load_config(path))


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("none", "de-pot._srv_fb_warehouse.fdb.SHIPMENT"),
        ("avro", "de_pot._srv_fb_warehouse.fdb.SHIPMENT"),
    ],
)
def test_schema_of_a_table_is_named_by_the_mode(tmp_path: Path, mode: str, name: str) -> None:
    names = schema_names(tmp_path, mode)
    assert names.of_table("/srv/fb/warehouse.fdb", "SHIPMENT") == name
    assert names.of_table("/srv/fb/warehouse.fdb", "SHIPMENT") == name


def test_two_tables_that_would_share_a_schema_name_are_both_named(tmp_path: Path) -> None:
    names = schema_names(tmp_path, "avro")
    names.of_table("/x.fdb", "A$")
    said = (
        "table A# in /x.fdb and table A$ in /x.fdb would share the schema name de_pot._x.fdb.A_;"
        " set schema.name.adjustment.mode: avro_unicode, or leave one of them out with"
        " table.exclude.list"
    )
    with pytest.raises(BadName, match=re.escape(said)):
        names.of_table("/x.fdb", "A#")
    assert names.problems([("/x.fdb", "A#"), ("/x.fdb", "B")]) == [said]


@pytest.mark.parametrize("mode", ["none", "avro", "avro_unicode"])
@pytest.mark.parametrize("encoding", ["transliterate", "escape"])
def test_names_that_are_apart_in_topics_are_apart_in_schemas(
    tmp_path: Path, mode: str, encoding: str
) -> None:
    names = schema_names(tmp_path, mode, encoding)
    tables = [(path, table) for path in ("/склад.fdb", "/архив.fdb") for table in ("Заказы", "Дом")]
    assert len({names.of_table(*table) for table in tables}) == 4


def test_schema_names_follow_the_encoding_of_topics(tmp_path: Path) -> None:
    assert schema_names(tmp_path, "avro", "escape").of_table("/d.fdb", "Я") == (
        "de_pot.__d_.fdb._042f"
    )
    assert schema_names(tmp_path, "none").of_table("/d.fdb", "Я") == "de-pot._d.fdb.Я"
