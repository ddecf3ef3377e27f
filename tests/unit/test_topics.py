"""Topic names: the manual's replacements, what Kafka forbids beyond them, and collisions."""

from __future__ import annotations

import errno
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from least_config import load_with
from losing_disk import LosingDisk

from firebird_cdc.errors import StateUnwritable
from firebird_cdc.journal.events import topics as topics_module
from firebird_cdc.journal.events.topic_encoding import (
    ESCAPE,
    REPLACE,
    TRANSLITERATE,
    path_part,
    topic_of,
)
from firebird_cdc.journal.events.topics import BadName, TopicNames, read_owners

DATABASE = "/srv/fb/warehouse.fdb"

Names = Callable[..., TopicNames]


@pytest.fixture
def names(tmp_path: Path) -> Names:
    """The names of a connector with the prefix ``depot`` and LINES more of configuration."""

    def names(*lines: str) -> TopicNames:
        return TopicNames(load_with(tmp_path, "kafka.topic.prefix: depot", *lines))

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
def test_topic_of_a_table_gets_a_valid_name(
    names: Names, database: str, table: str, topic: str
) -> None:
    assert topic_of(REPLACE, "depot", database, table) == topic
    assert names().of_table(database, table) == topic


def test_delimiter_stands_between_the_parts_only(names: Names) -> None:
    assert topic_of(REPLACE, "depot", "/a.b", "T", "-") == "depot-_a.b-T"
    assert names("topic.delimiter: '-'").of_table("/a.b", "T") == "depot-_a.b-T"


def test_database_in_schema_names() -> None:
    assert path_part(r"C:\my data\x.fdb", REPLACE) == "C__my_data_x.fdb"


def test_table_strategy_names_topics_by_table_alone(names: Names) -> None:
    by_table = "topic.naming.strategy: table"
    assert names(by_table).of_table(DATABASE, "T$1") == "depot.T_1"
    other = names(by_table, "override.data.change.topic.prefix: shop", "topic.delimiter: _")
    assert other.of_table(DATABASE, "T") == "shop_T"
    assert (other.schema_changes, other.transactions) == ("depot", "depot_transaction")


def test_topics_beside_those_of_tables_follow_prefix_and_delimiter(names: Names) -> None:
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
        " depot._srv_fb_warehouse.fdb.A_; leave one of them out with table.exclude.list, or set"
        " topic.name.encoding: escape"
    )


def test_same_table_of_two_databases_is_refused_under_the_table_strategy(names: Names) -> None:
    topics = names("topic.naming.strategy: table")
    topics.of_table("/a.fdb", "T")
    with pytest.raises(BadName, match=r"topic depot\.T; .* or set topic\.naming\.strategy: defa"):
        topics.of_table("/b.fdb", "T")


def test_topics_differing_only_in_dots_and_underscores_are_refused(
    names: Names,
) -> None:
    topics = names()
    topics.of_table(DATABASE, "A.B")
    with pytest.raises(BadName, match=r"fdb\.A_B and depot\..*fdb\.A\.B, and Kafka takes no two"):
        topics.of_table(DATABASE, "A_B")


def test_table_with_the_name_of_the_transaction_topic_is_refused(names: Names) -> None:
    by_table = "topic.naming.strategy: table"
    assert names(by_table).of_table(DATABASE, "transaction") == "depot.transaction"
    with pytest.raises(BadName, match=r"is that of transactions; choose another topic\.trans"):
        names(by_table, "provide.transaction.metadata: true").of_table(DATABASE, "transaction")


def test_table_with_the_name_of_the_schema_change_topic_is_refused(names: Names) -> None:
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


def test_owner_of_a_shared_topic_is_remembered_over_a_restart(names: Names, tmp_path: Path) -> None:
    memory = tmp_path / "shared-topics"

    def restarted(captures: Callable[[str, str], bool] = lambda *_: True) -> TopicNames:
        topics = names()
        topics.settle(topics.remember_in(memory), captures)
        return topics

    restarted().of_table(DATABASE, "A$")
    for _ in range(2):
        topics = restarted()
        with pytest.raises(
            BadName, match=r"A\$ in .*; if table A\$ is no more, .* remove its line"
        ):
            topics.of_table(DATABASE, "A#")
        topics.of_table(DATABASE, "A$")
        topics.of_table(DATABASE, "B")
    assert memory.read_text().splitlines() == [f'["{DATABASE}", "A$"]', f'["{DATABASE}", "B"]']
    assert restarted(lambda _, table: table != "A$").of_table(DATABASE, "A#").endswith(".A_")
    with pytest.raises(BadName, match=r"table A\$ in"):  # which is captured again
        restarted().of_table(DATABASE, "A#")
    memory.write_text("damaged\n[1]\n")
    assert restarted().of_table(DATABASE, "A#").endswith(".A_")
    memory.write_text('["/cut/o')  # by a power cut
    restarted().of_table(DATABASE, "A#")
    with pytest.raises(BadName, match=r"table A# in"):
        restarted().of_table(DATABASE, "A$")


def test_owner_of_a_shared_topic_is_remembered_over_a_power_cut(
    names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    topics = names()
    with monkeypatch.context() as patch:
        disk = LosingDisk(folder, patch)
        assert topics.remember_in(folder / "shared-topics") == []
        for table in ("A$", "B"):
            topics.of_table(DATABASE, table)
            disk.cut()
    assert read_owners(folder / "shared-topics") == [(DATABASE, "A$"), (DATABASE, "B")]


def test_topic_waits_while_its_owner_cannot_be_recorded(names: Names, tmp_path: Path) -> None:
    memory = tmp_path / "gone" / "shared-topics"
    topics = names()
    topics.remember_in(memory)
    for _ in range(2):
        with pytest.raises(StateUnwritable, match=r"gone/shared-topics can't be written .* room"):
            topics.of_table(DATABASE, "A$")
    memory.parent.mkdir()
    assert topics.of_table(DATABASE, "A$").endswith(".A_")
    assert read_owners(memory) == [(DATABASE, "A$")]


def test_tables_with_a_recorded_topic_are_usable_on_a_full_disk(
    names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shipping them is what makes room on a full one."""
    memory = tmp_path / "shared-topics"
    memory.write_text(f'["{DATABASE}", "A$"]\n')

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    topics = names()
    with monkeypatch.context() as patch:
        patch.setattr(topics_module, "replace_file", full)
        topics.settle(topics.remember_in(memory), lambda *_: True)
        assert topics.of_table(DATABASE, "A$").endswith(".A_")
        with pytest.raises(StateUnwritable):
            topics.of_table(DATABASE, "B")
        with pytest.raises(BadName, match=r"table A\$ in"):
            topics.of_table(DATABASE, "A#")
    # What an earlier process has left there may not be on disk: all of it is written.
    memory.unlink()
    topics.of_table(DATABASE, "B")
    assert read_owners(memory) == [(DATABASE, "A$"), (DATABASE, "B")]


def test_recorded_topic_owners_follow_a_replaced_folder(names: Names, tmp_path: Path) -> None:
    folders = [tmp_path / "old", tmp_path / "new"]
    for folder in folders:
        folder.mkdir()
    topics = names()
    topics.remember_in(folders[0] / "shared-topics")
    topics.of_table(DATABASE, "A$")
    memory = folders[1] / "shared-topics"
    memory.write_text(f'["{DATABASE}", "A#"]\n["{DATABASE}", "B#"]\n')
    topics.settle(topics.remember_in(memory), lambda *_: True)
    topics.of_table(DATABASE, "A$")
    for table in ("A#", "B$"):
        with pytest.raises(BadName, match="would share the topic"):
            topics.of_table(DATABASE, table)
    assert [table for _, table in read_owners(memory)] == ["A$", "A#", "B#"]


def test_a_line_written_by_hand_gives_a_table_its_topic(names: Names, tmp_path: Path) -> None:
    """As for an upgrade from 0.1, which noted no table but those that had met another."""
    page = Path(__file__).parents[2] / "docs/upgrade.md"
    [line] = re.findall(r'^\["/srv.*\]$', page.read_text("utf-8"), re.MULTILINE)
    memory = tmp_path / "shared-topics"
    memory.write_text(f'["/srv/fb/other.fdb", "T"]\n{line}\n', "utf-8")
    topics = names()
    topics.settle(topics.remember_in(memory), lambda *_: True)
    with pytest.raises(BadName, match=r"and table Заказы in /srv/fb/shop\.fdb would"):
        topics.of_table("/srv/fb/shop.fdb", "Товары")
    topics.of_table("/srv/fb/shop.fdb", "Заказы")


def test_number_of_recorded_topic_owners_is_bounded(
    names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics_module, "OWNERS_KEPT", 3)
    memory = tmp_path / "shared-topics"
    for number in range(5):
        topics = names()
        topics.settle(topics.remember_in(memory), lambda *_: True)
        topics.of_table(DATABASE, f"T{number}")
    names().remember_in(memory)
    assert len(memory.read_text().splitlines()) == 3
    assert f'["{DATABASE}", "T4"]' in memory.read_text()


def test_all_problems_of_tables_known_beforehand(names: Names) -> None:
    tables = [(DATABASE, name) for name in ("A$", "B", "A#", "T" * 300)]
    found = names().problems(tables)
    assert len(found) == 2
    assert "table A# in" in found[0]
    assert "300" not in found[1]
    assert "Kafka allows 249" in found[1]


ENCODED = [
    ("/srv/fb/shop.fdb", "ORDER_ITEMS", "x.--srv--fb--shop-.fdb.ORDER_ITEMS"),
    ("/d.fdb", "Заказы", "x.--d-.fdb.-0417-0430-043a-0430-0437-044b"),
    ("/my_data/a-b.fdb", "A.B", "x.--my-005fdata--a-002db-.fdb.A-.B"),
    (r"C:\data\x.fdb", "T$1", "x.C-003a-005cdata-005cx-.fdb.T-00241"),
    ("/d.fdb", "\U0001f600", "x.--d-.fdb.-d83d-de00"),
]


@pytest.mark.parametrize(("database", "table", "topic"), ENCODED)
def test_foreign_characters_in_names_are_escaped_in_topics(
    database: str, table: str, topic: str
) -> None:
    assert topic_of(ESCAPE, "x", database, table) == topic


@pytest.mark.parametrize(
    ("database", "table", "topic"),
    [
        ("/srv/fb/shop.fdb", "ORDER_ITEMS", "x._srv_fb_shop.fdb.ORDER_ITEMS"),
        ("/d.fdb", "Заказы", "x._d.fdb.Zakazy-8840ea21"),
        ("/d.fdb", "Товары", "x._d.fdb.Tovary-91aa3598"),
        ("/d.fdb", "Цель объекта", "x._d.fdb.Tsel_obekta-492986e4"),
        ("/d.fdb", "Größe", "x._d.fdb.Grosse-b7256ba6"),
        ("/srv/склад.fdb", "T", "x._srv_sklad.fdb-42082a51.T"),
        ("/d.fdb", "T$1", "x._d.fdb.T_1-84da5f05"),
    ],
)
def test_transliterated_names_have_a_hash_where_they_were_changed(
    database: str, table: str, topic: str
) -> None:
    """Whole names, as an upgrade of the library must not move tables to other topics."""
    assert topic_of(TRANSLITERATE, "x", database, table) == topic


def awkward(dice: random.Random, pieces: str, most: int) -> str:
    return "".join(dice.choice(pieces) for _ in range(dice.randint(1, most)))


@pytest.mark.parametrize("delimiter", [".", "_", "__", "-", "--", ".-", "x", "-h"])
@pytest.mark.parametrize("by_table", [False, True])
def test_escape_is_one_to_one(names: Names, delimiter: str, by_table: bool) -> None:
    """Names made of few characters, those that the encoding itself uses, would meet soon."""
    strategy = ["topic.naming.strategy: table"] if by_table else []
    escaped = names(*strategy, "topic.name.encoding: escape", f"topic.delimiter: '{delimiter}'")
    dice = random.Random(18)
    found: dict[str, tuple[str, str]] = {}
    for _ in range(8_000):
        database = "/d.fdb" if by_table else "/" + awkward(dice, "/._-ah04Я", 5)
        table = awkward(dice, "/._-ah04Я", 5)
        topic = escaped._topic(database, table)
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic)
        # A broker takes no two topics that differ in these only.
        assert found.setdefault(topic.replace(".", "_"), (database, table)) == (database, table)


def test_escape_is_one_to_one_where_names_are_cut(names: Names) -> None:
    escaped = names("topic.name.encoding: escape")
    dice = random.Random(4)
    found: dict[str, tuple[str, str]] = {}
    for _ in range(5_000):
        # Around the limit, where a cut name might look like one that is whole.
        database = "/" + "a" * dice.randint(95, 110) + awkward(dice, "/-.h0Я", 3)
        table = "Я" * dice.randint(15, 31) + awkward(dice, "/-.h0", 3)
        topic = escaped.of_table(database, table)
        assert len(topic) <= 249
        assert found.setdefault(topic.replace(".", "_"), (database, table)) == (database, table)
    cut = [topic for topic in found if re.search(r"-h[0-9a-f]{32}$", topic)]
    assert 0 < len(cut) < len(found)


@pytest.mark.parametrize("encoding", [TRANSLITERATE, ESCAPE])
@pytest.mark.parametrize("length", [20, 150, 214, 240, 300])
def test_topics_of_a_database_are_recognised_by_their_prefix(
    names: Names, encoding: str, length: int
) -> None:
    encoded = names(f"topic.name.encoding: {encoding}")
    database = "/" + "б" * 3 + "a" * length
    assert encoded.may_be_of(encoded.of_table(database, "Заказы"), database)
    assert not encoded.may_be_of(encoded.of_table("/b.fdb", "Заказы"), database)


@pytest.mark.parametrize("encoding", [TRANSLITERATE, ESCAPE])
def test_russian_tables_have_topics_of_their_own(names: Names, encoding: str) -> None:
    encoded = names(f"topic.name.encoding: {encoding}")
    topics = {encoded.of_table("/d.fdb", table) for table in ("Заказы", "Товары", "Склады")}
    assert len(topics) == 3


def test_the_way_out_of_a_collision_is_named_where_it_is_one(names: Names) -> None:
    replaced = names()
    replaced.of_table(DATABASE, "Заказы")
    with pytest.raises(BadName, match=r"exclude\.list, or set topic\.name\.encoding: escape"):
        replaced.of_table(DATABASE, "Товары")
    with pytest.raises(BadName, match=r"set topic.name.encoding: escape, or leave"):
        replaced.of_table("/" + "x" * 250, "T")
    by_table = names("topic.naming.strategy: table")
    by_table.of_table("/a.fdb", "T")
    with pytest.raises(BadName) as caught:
        by_table.of_table("/b.fdb", "T")
    assert "encoding" not in str(caught.value)


def test_table_with_the_name_of_the_offset_topic_is_refused(names: Names) -> None:
    lines = ("topic.naming.strategy: table", "kafka.position.topic: depot.T")
    with pytest.raises(BadName, match="is that of offsets; choose another kafka"):
        names(*lines).of_table(DATABASE, "T")
