"""Rules of snapshot.mode: which snapshot a database is due, and whether changes follow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from documented import ROOT, blocks

from firebird_cdc.config import load_config
from firebird_cdc.config.snapshots import SnapshotOptions
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.shipper.snapshots.modes import SnapshotPolicy
from firebird_cdc.journal.shipper.snapshots.state import Kind

_DATABASE = "/srv/shop.fdb"


def _options(tmp_path: Path, *lines: str) -> SnapshotOptions:
    path = tmp_path / "connector.yaml"
    text = (
        f"connector.name: t\nconnector.journal.directory: {tmp_path}\nkafka.topic.prefix: t\n"
        "kafka.producer.bootstrap.servers: k:9092\n"
    )
    path.write_text(text + "".join(f"{line}\n" for line in lines))
    return load_config(path).snapshots


@pytest.mark.parametrize(
    ("mode", "new", "known", "mends", "streams"),
    [
        ("initial", Kind.INITIAL, None, False, True),
        ("exported", Kind.INITIAL, None, False, True),
        ("initial_only", Kind.INITIAL, None, False, False),
        ("always", Kind.INITIAL, Kind.BLOCKING, False, True),
        ("when_needed", Kind.INITIAL, None, True, True),
        ("no_data", None, None, False, True),
        ("schema_only", None, None, False, True),
        ("recovery", None, None, False, True),
        ("never", None, None, False, True),
    ],
)
def test_modes_say_which_snapshot_is_due(
    tmp_path: Path,
    mode: str,
    new: Kind | None,
    known: Kind | None,
    mends: bool,
    streams: bool,
) -> None:
    policy = SnapshotPolicy(_options(tmp_path, f"snapshot.mode: {mode}"))

    def due(*, has_any: bool = False, is_new: bool = False) -> Kind | None:
        found = policy.due(_DATABASE, has_any=has_any, is_new=is_new)
        return None if found is None else found.kind

    assert due(is_new=True) is new
    assert due() is known
    assert policy.mends_losses is mends
    assert policy.sends_changes is streams
    if mode != "always":
        assert due(is_new=True, has_any=True) is None


def test_configuration_based_mode_does_as_its_options_say(tmp_path: Path) -> None:
    based = "snapshot.mode.configuration.based."
    options = _options(
        tmp_path,
        "snapshot.mode: configuration_based",
        f"{based}snapshot.data: true",
        f"{based}start.stream: true",
    )
    policy = SnapshotPolicy(options)
    found = policy.due(_DATABASE, has_any=False, is_new=True)
    assert found is not None
    assert found.kind is Kind.INITIAL
    assert policy.sends_changes
    without = replace(options, configured=replace(options.configured, data=False, stream=False))
    policy = SnapshotPolicy(without)
    assert policy.due(_DATABASE, has_any=False, is_new=True) is None
    assert not policy.sends_changes


@pytest.fixture
def own_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class of the page, where Python finds it."""
    (text,) = blocks(ROOT / "docs/snapshots.md", "python")
    (tmp_path / "policy.py").write_text(text)
    (tmp_path / "broken_policy.py").write_text(
        "class Policy:\n"
        "    def should_snapshot(self, database, has_offset): raise KeyError(database)\n"
        "    def should_stream(self): raise KeyError\n"
        "    def query(self, table): raise KeyError(table)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own_class")
def test_class_of_the_page_decides(tmp_path: Path) -> None:
    lines = ("snapshot.mode: custom", "snapshot.query.mode: custom")
    policy = SnapshotPolicy(_options(tmp_path, *lines, "snapshot.custom.class: policy.Policy"))
    facts = {"has_any": False}
    assert policy.due("/srv/shop.fdb", is_new=True, **facts) is not None
    assert policy.due("/srv/other.fdb", is_new=True, **facts) is None
    assert policy.due("/srv/shop.fdb", is_new=False, **facts) is None
    assert policy.sends_changes
    assert policy.query("/srv/shop.fdb", "ITEM") is None
    assert str(policy.query("/srv/shop.fdb", "ORDERS")).startswith("SELECT")


@pytest.mark.usefixtures("own_class")
def test_class_that_raises_takes_no_snapshot_and_stops_nothing(tmp_path: Path) -> None:
    lines = ("snapshot.mode: custom", "snapshot.query.mode: custom")
    options = _options(tmp_path, *lines, "snapshot.custom.class: broken_policy.Policy")
    policy = SnapshotPolicy(options)
    assert policy.due(_DATABASE, has_any=False, is_new=True) is None
    assert policy.sends_changes
    assert policy.query(_DATABASE, "ITEM") == ""


def test_class_that_is_not_there_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    lines = ("snapshot.mode: custom", "snapshot.custom.class: no_module.Policy")
    with pytest.raises(ConfigError, match=r"snapshot\.custom\.class is no_module\.Policy; there"):
        SnapshotPolicy(_options(tmp_path, *lines))


def test_class_that_lacks_what_one_of_two_options_asks_is_an_error_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = "".join(
        f"    def {each}(self, *_): ...\n" for each in ("should_snapshot", "should_stream")
    )
    (tmp_path / "half_policy.py").write_text(f"class Policy:\n{methods}")
    monkeypatch.syspath_prepend(tmp_path)
    lines = ("snapshot.mode: custom", "snapshot.query.mode: custom")
    options = _options(tmp_path, *lines, "snapshot.custom.class: half_policy.Policy")
    with pytest.raises(ConfigError, match="query"):
        SnapshotPolicy(options)


@pytest.mark.parametrize("table", ["ORDERS", "My.Table"])
def test_override_by_a_path_with_links_is_for_the_database_behind_them(
    tmp_path: Path, table: str
) -> None:
    real, link = tmp_path / "real.fdb", tmp_path / "link.fdb"
    real.touch()
    link.symlink_to(real)
    name = "snapshot.select.statement.overrides"
    named = f'{link}."{table}"'
    policy = SnapshotPolicy(_options(tmp_path, f"{name}: '{named}'", f"'{name}.{named}': SELECT 1"))
    assert policy.query(str(real), table) == "SELECT 1"
    assert policy.query(str(real), "ITEM") is None


def test_override_that_no_table_has_is_told_with_what_may_be_meant(tmp_path: Path) -> None:
    name = "snapshot.select.statement.overrides"
    tables = [f"{_DATABASE}.{each}" for each in ("ITEM", "ORDER", "ITEMS")]
    tables += ["/srv/other.fdb.A", "/srv/shpo.fdb.A"]
    lines = [f"{name}: {','.join(tables)}", *(f"{name}.{each}: SELECT 1" for each in tables)]
    policy = SnapshotPolicy(_options(tmp_path, *lines))
    found = policy.overrides(_DATABASE, {"ITEM", "Order"}, {_DATABASE, "/srv/other.fdb"})
    assert dict(found) == {
        f"{_DATABASE}.ITEM": "",
        f"{_DATABASE}.ORDER": f'it is no captured table; did you mean {_DATABASE}."Order"?',
        f"{_DATABASE}.ITEMS": "it is no captured table",
        "/srv/shpo.fdb.A": "/srv/shpo.fdb is no known database",
    }
