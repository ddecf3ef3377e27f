"""What is told of refused and lost transactions, and what an acknowledgement counts for."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from counter_pages import write_lost

from firebird_cdc.bridge.counters import ConfirmerCounts
from firebird_cdc.cli import main
from firebird_cdc.journal import failures
from firebird_cdc.journal.failures import (
    BESIDE,
    FailureWatch,
    acknowledge_failures,
    acknowledged_us,
    page_name,
    pages,
    unacknowledged,
    unreadable,
)
from firebird_cdc.journal.statistics import Statistics

A, B = "/srv/a.fdb", "/srv/b.fdb"
_OPTIONS = """connector.name: test
connector.journal.directory: {}
kafka.producer.bootstrap.servers: 127.0.0.1:9
kafka.topic.prefix: test
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal folder, its connector's file, and a system without state folders."""
    monkeypatch.setattr(failures, "SYSTEM_STATE", tmp_path / "var")
    (tmp_path / "journals/.firebird-cdc").mkdir(parents=True)
    (tmp_path / "connector.yaml").write_text(_OPTIONS.format(tmp_path / "journals"))
    return tmp_path / "journals"


def _config(folder: Path) -> Path:
    return folder.parent / "connector.yaml"


def _named(lost: dict[str, int]) -> dict[str, int]:
    return {f"/srv/{name}.fdb": count for name, count in lost.items()}


def _in_folder(folder: Path, **lost: int) -> Path:
    return write_lost(folder / ".firebird-cdc/counters", _named(lost))


def _in_state(folder: Path, **lost: int) -> Path:
    return write_lost(folder.parent / BESIDE / page_name(_config(folder)), _named(lost))


def _told(folder: Path) -> dict[str, int]:
    found = pages(folder, [_config(folder)])
    return {each.database: each.count for each in unacknowledged(found)}


def test_both_places_count_together_and_are_acknowledged_each_for_itself(folder: Path) -> None:
    _in_folder(folder, a=2)
    _in_state(folder, a=3, b=1)
    assert _told(folder) == {A: 5, B: 1}
    known = acknowledge_failures(pages(folder, [_config(folder)]), [A])
    assert sum(each.count for each in known) == 5
    assert _told(folder) == {B: 1}
    acknowledge_failures(pages(folder, [_config(folder)]))
    assert _told(folder) == {}
    _in_state(folder, a=4, b=1)
    assert _told(folder) == {A: 1}


def test_who_names_a_database_acknowledges_nothing_that_was_counted_nowhere(folder: Path) -> None:
    _in_folder(folder, a=2, b=1)
    found = pages(folder, [_config(folder)])
    acknowledge_failures(found, [A])
    assert acknowledged_us(found) == 0
    acknowledge_failures(found)
    before = acknowledged_us(found)
    assert before > 0
    _in_folder(folder, a=3, b=1)
    assert [each.database for each in acknowledge_failures(found, [A])] == [A]
    assert acknowledged_us(found) == before


def test_an_acknowledgement_does_not_count_for_a_page_that_was_made_anew(folder: Path) -> None:
    _in_folder(folder, a=5)
    acknowledge_failures(pages(folder, [_config(folder)]))
    write_lost(folder / ".firebird-cdc/counters", {A: 6}, made_us=2)
    assert _told(folder) == {A: 6}


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'{"made_us": 1, "databases": {"/srv/a.fdb": 3}}']
)
def test_an_acknowledgement_that_can_not_be_read_hides_nothing(
    folder: Path, content: bytes
) -> None:
    page = _in_folder(folder, a=5)
    page.with_name("counters.acknowledged").write_bytes(content)
    assert _told(folder) == {A: 5}
    acknowledge_failures(pages(folder, [_config(folder)]))
    assert _told(folder) == {}


@pytest.mark.parametrize("failing", [1, 2])  # of the file, of its name
def test_an_acknowledgement_of_which_a_sync_fails_is_an_error_and_can_be_repeated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failing: int
) -> None:
    _in_folder(folder, a=5)
    real, calls = os.fsync, iter(range(1, 100))

    def fails_once(fd: int) -> None:
        if next(calls) == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    monkeypatch.setattr(os, "fsync", fails_once)
    command = ["journal", "acknowledge", "--config", str(_config(folder))]
    assert main(command) == 1
    assert "can't be noted: [Errno 5]" in capsys.readouterr().err
    assert main(command) == 0
    assert _told(folder) == {}


def test_a_gap_in_the_place_of_a_committed_journal_is_a_loss(folder: Path) -> None:
    page = _in_folder(folder, a=1)
    ConfirmerCounts(page.parent).add_replaced(A)
    assert _told(folder) == {A: 2}
    ConfirmerCounts(page.parent).add_replaced(B)  # has no place of its own
    assert _told(folder) == {A: 2, "": 1}


def test_a_folder_alone_leads_to_the_systems_pages_about_it(folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "var/state"
    other = tmp_path / "other.yaml"
    other.write_text(_OPTIONS.format(tmp_path / "elsewhere"))
    broken = tmp_path / "broken.yaml"
    broken.write_text("connector.jurnal.directory: [")
    for number, config in enumerate((_config(folder), other, broken)):
        write_lost(state / page_name(config), {f"/srv/{number}.fdb": 1}, config=str(config))
    told = {each.database for each in unacknowledged(pages(folder, []))}
    assert told == {"/srv/0.fdb", "/srv/2.fdb"}  # of whose file nobody can tell, too


def test_a_page_that_can_not_be_read_is_told_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = _in_state(folder, a=1)
    found = pages(folder, [_config(folder)])
    assert unreadable(found) == []
    monkeypatch.setattr(os, "access", lambda path, mode: path != page)
    [text] = unreadable(found)
    assert text.startswith(f"{page} can't be read") and "group" in text
    statistics = Statistics()
    FailureWatch(folder, _config(folder), statistics).turn(0.0)
    assert text in {trouble.text for trouble in statistics.troubles.values()}


def test_the_shipper_tells_of_it_until_it_is_acknowledged(folder: Path) -> None:
    _in_folder(folder, a=1)
    statistics = Statistics()
    statistics.trouble("kafka", "waiting", "away")
    watch = FailureWatch(folder, _config(folder), statistics)
    watch.turn(0.0)
    [text] = [each.text for each in statistics.troubles.values() if each.kind == "warning"]
    assert "1 transaction of /srv/a.fdb was committed" in text
    acknowledge_failures(pages(folder, [_config(folder)]))
    watch.turn(0.0)
    assert set(statistics.troubles) == {"kafka"}


def test_status_without_a_journal_folder_tells_what_that_costs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _in_state(folder, a=7)
    folder.rename(folder.with_name("elsewhere"))
    assert main(["status", "--config", str(_config(folder))]) == 1
    said = capsys.readouterr()
    assert "7 transactions of /srv/a.fdb were committed" in said.out
    assert "there is no journal folder" in said.err


def test_status_of_options_that_can_not_be_loaded_tells_what_they_cost(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _in_state(folder, a=7)
    _config(folder).write_text("connector.journal.directory: x\n")
    assert main(["status", "--config", str(_config(folder))]) == 2
    said = capsys.readouterr()
    assert "7 transactions of /srv/a.fdb were committed" in said.out
    assert "connector.journal.directory" in said.err


def test_a_damaged_page_is_told_of_until_it_is_acknowledged(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody knows what it counted, which is not nothing."""
    page, options = _in_folder(folder, a=7), ["--config", str(_config(folder))]
    in_state = _in_state(folder, b=1)
    in_state.rename(in_state.with_name(in_state.name + ".damaged"))
    content = page.read_bytes()
    page.write_bytes(bytes(len(content)))
    assert main(["status", *options]) == 1
    said = capsys.readouterr().out
    assert f"{page} is damaged, so nobody knows" in said
    assert f"{in_state}.damaged is damaged" in said
    assert main(["journal", "acknowledge", *options, A]) == 0
    assert page.exists()  # it may concern any database
    capsys.readouterr()
    assert main(["journal", "acknowledge", *options]) == 0
    assert f"acknowledged: {page} was damaged" in capsys.readouterr().out
    assert unreadable(pages(folder, [_config(folder)])) == []
    _in_folder(folder, a=1)
    assert _told(folder) == {A: 1}
    page.write_bytes(b"")  # made, and nothing was counted
    assert unreadable([page]) == []
