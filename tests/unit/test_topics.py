"""Topic names: the manual's replacements, and what Kafka forbids beyond them."""

from __future__ import annotations

import pytest

from firebird_cdc.journal.topics import data_topic, database_part


@pytest.mark.parametrize(
    ("database", "table", "topic"),
    [
        ("/srv/fb/warehouse.fdb", "SHIPMENT", "depot._srv_fb_warehouse.fdb.SHIPMENT"),
        (r"C:\data\crm.fdb", "CLIENT", "depot.C__data_crm.fdb.CLIENT"),
        ("/srv/my data/x.fdb", "T$1", "depot._srv_my_data_x.fdb.T_1"),
        ("/srv/база.fdb", "Таблица 1", "depot._srv_____.fdb.________1"),
    ],
)
def test_topic_of_a_table(database: str, table: str, topic: str) -> None:
    assert data_topic("depot", database, table) == topic


def test_delimiter_stands_between_the_parts_only() -> None:
    assert data_topic("depot", "/a.b", "T", "-") == "depot-_a.b-T"


def test_database_part_is_what_stands_in_the_topic() -> None:
    assert database_part(r"C:\my data\crm.fdb") == "C__my_data_crm.fdb"
