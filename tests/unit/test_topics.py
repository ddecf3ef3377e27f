"""Topic names: the manual's replacements, what Kafka forbids beyond them, and collisions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from firebird_cdc.config import load_config
from firebird_cdc.journal.topics import BadName, TopicNames, data_topic, database_part

DATABASE = "/srv/fb/warehouse.fdb"

Names = Callable[..., TopicNames]


@pytest.fixture
def names(tmp_path: Path) -> Names:
    """The names of a connector with the prefix ``depot`` and LINES more of configuration."""

    def names(*lines: str) -> TopicNames:
        path = tmp_path / "c.yaml"
        required = (
            "connector.name: n",
            "connector.journal.directory: /j",
            "kafka.topic.prefix: depot",
            "kafka.producer.bootstrap.servers: h:1",
        )
        path.write_text("\n".join([*lines, *required]) + "\n", "utf-8")
        return TopicNames(load_config(path))

    return names


@pytest.mark.parametrize(
    ("database", "table", "topic"),
    [
        ("/srv/fb/warehouse.fdb", "SHIPMENT", "depot._srv_fb_warehouse.fdb.SHIPMENT"),
        (r"C:\data\crm.fdb", "CLIENT", "depot.C__data_crm.fdb.CLIENT"),
        ("/srv/my data/x.fdb", "T$1", "depot._srv_my_data_x.fdb.T_1"),
        ("/srv/база.fdb", "Таблица 1", "depot._srv_____.fdb.________1"),
    ],
)
def test_topic_of_a_table(names: Names, database: str, table: str, topic: str) -> None:
    assert data_topic("depot", database, table) == topic
    assert names().of_table(database, table) == topic


def test_delimiter_stands_between_the_parts_only(names: Names) -> None:
    assert data_topic("depot", "/a.b", "T", "-") == "depot-_a.b-T"
    assert names("topic.delimiter: '-'").of_table("/a.b", "T") == "depot-_a.b-T"


def test_database_in_schema_names() -> None:
    assert database_part(r"C:\my data\x.fdb") == "C__my_data_x.fdb"


def test_table_strategy(names: Names) -> None:
    by_table = "topic.naming.strategy: table"
    assert names(by_table).of_table(DATABASE, "T$1") == "depot.T_1"
    other = names(by_table, "override.data.change.topic.prefix: shop", "topic.delimiter: _")
    assert other.of_table(DATABASE, "T") == "shop_T"
    assert (other.schema_changes, other.transactions) == ("depot", "depot_transaction")


def test_topics_beside_those_of_tables(names: Names) -> None:
    assert names().schema_changes == "depot"
    assert names().transactions == "depot.transaction"
    assert names("topic.transaction: tx", "topic.delimiter: '-'").transactions == "depot-tx"


def test_topic_longer_than_kafka_allows(names: Names) -> None:
    longest = "T" * (249 - len("depot._x."))
    assert len(names().of_table("/x", longest)) == 249
    with pytest.raises(BadName, match="has 250 characters, Kafka allows 249; choose a shorter"):
        names().of_table("/x", longest + "T")


def test_two_tables_that_would_share_a_topic_are_both_named(names: Names) -> None:
    topics = names()
    assert topics.of_table(DATABASE, "A$") == topics.of_table(DATABASE, "A$")
    with pytest.raises(BadName) as caught:
        topics.of_table(DATABASE, "A#")
    assert str(caught.value) == (
        f"table A# in {DATABASE} and table A$ in {DATABASE} would share the topic"
        " depot._srv_fb_warehouse.fdb.A_; leave one of them out with table.exclude.list"
    )


def test_tables_of_two_databases_under_the_table_strategy(names: Names) -> None:
    topics = names("topic.naming.strategy: table")
    topics.of_table("/a.fdb", "T")
    with pytest.raises(BadName, match=r"topic depot\.T; .* or set topic\.naming\.strategy: defa"):
        topics.of_table("/b.fdb", "T")


def test_topics_that_differ_in_dots_and_underscores_only_are_refused_as_kafka_does(
    names: Names,
) -> None:
    topics = names()
    topics.of_table(DATABASE, "A.B")
    with pytest.raises(BadName, match=r"fdb\.A_B and depot\..*fdb\.A\.B, and Kafka takes no two"):
        topics.of_table(DATABASE, "A_B")


def test_table_whose_topic_is_that_of_transactions(names: Names) -> None:
    by_table = "topic.naming.strategy: table"
    assert names(by_table).of_table(DATABASE, "transaction") == "depot.transaction"
    with pytest.raises(BadName, match=r"is that of transactions; choose another topic\.trans"):
        names(by_table, "provide.transaction.metadata: true").of_table(DATABASE, "transaction")


def test_table_whose_topic_is_that_of_schema_changes(names: Names) -> None:
    lines = (
        "topic.naming.strategy: table",
        "override.data.change.topic.prefix: de",
        "topic.delimiter: p",
    )
    with pytest.raises(BadName, match="which is that of schema changes"):
        names(*lines).of_table(DATABASE, "ot")
    off = names(*lines, "include.schema.changes: false")
    assert off.of_table(DATABASE, "ot") == "depot"


def test_collision_is_noticed_though_few_names_are_kept(names: Names) -> None:
    topics = names("topic.cache.size: 1")
    for table in ("A$", "B", "C"):
        topics.of_table(DATABASE, table)
    with pytest.raises(BadName, match="would share the topic"):
        topics.of_table(DATABASE, "A#")


def test_who_came_first_is_remembered_over_a_restart(names: Names, tmp_path: Path) -> None:
    memory = tmp_path / "shared-topics"

    def restarted(captures: Callable[[str, str], bool] = lambda *_: True) -> TopicNames:
        topics = names()
        topics.remember_in(memory, captures)
        return topics

    topics = restarted()
    topics.of_table(DATABASE, "A$")
    assert not memory.exists()
    for _ in range(2):
        with pytest.raises(BadName, match=r"A\$ in .*; if table A\$ is no more, remove its line"):
            topics.of_table(DATABASE, "A#")
    assert memory.read_text().splitlines() == [f'["{DATABASE}", "A$"]']
    with pytest.raises(BadName, match=r"table A\$ in"):
        restarted().of_table(DATABASE, "A#")
    assert restarted(lambda _, table: table != "A$").of_table(DATABASE, "A#").endswith(".A_")
    memory.write_text("damaged\n[1]\n")
    assert restarted().of_table(DATABASE, "A#").endswith(".A_")


def test_all_problems_of_tables_known_beforehand(names: Names) -> None:
    tables = [(DATABASE, name) for name in ("A$", "B", "A#", "T" * 300)]
    found = names().problems(tables)
    assert len(found) == 2
    assert "table A# in" in found[0]
    assert "300" not in found[1]
    assert "Kafka allows 249" in found[1]
