"""Requests of ``firebird-cdc snapshot``, as the shipper finds them in its folder."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from least_config import load_with
from test_signal_channels import row as signal_row

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.format import RowChange
from firebird_cdc.journal.shipper import requests
from firebird_cdc.journal.shipper.requests import RequestFolder
from firebird_cdc.journal.shipper.snapshots import intake
from firebird_cdc.journal.shipper.snapshots.channels import RawSignal
from firebird_cdc.journal.shipper.snapshots.intake import Signals, follow, follow_requests
from firebird_cdc.journal.shipper.snapshots.service import Snapshots
from firebird_cdc.journal.shipper.snapshots.state import (
    SNAPSHOTS,
    Kind,
    Snapshot,
    SnapshotState,
    Status,
)

_EXECUTE = '{"data-collections": ["/srv/shop.fdb.ORDERS"]}'


class _Control:
    """Takes note of what is asked for."""

    databases = ("/srv/shop.fdb",)

    def __init__(self) -> None:
        self.paused: list[bool] = []
        self.stopped: list[bool] = []
        self.requested: list[Snapshot] = []

    def request(self, database: str, snapshot: Snapshot) -> bool:
        assert database == self.databases[0]
        self.requested.append(snapshot)
        return True

    def stop(
        self, database: str, collections: tuple[str, ...] | None, *, is_of_any_kind: bool
    ) -> int:
        assert (database, collections) == (self.databases[0], None)
        self.stopped.append(is_of_any_kind)
        return 1

    def pause(self, database: str, *, is_paused: bool) -> None:
        assert database == self.databases[0]
        self.paused.append(is_paused)

    def position(self, database: str) -> str:
        raise AssertionError(database)

    def refuse(self, id: str, type: str, channel: str, why: str) -> None:
        raise AssertionError((id, type, channel, why))


class _Anywhere(_Control):
    """Takes snapshots of any database."""

    def request(self, database: str, snapshot: Snapshot) -> bool:
        return database not in self.databases and bool(snapshot)


def test_requests_that_waited_are_followed_in_the_order_in_which_they_were_made(
    tmp_path: Path,
) -> None:
    for number, name in enumerate(("c", "a", "d", "b")):
        path = tmp_path / f"{name}.request"
        kind = "resume-snapshot" if number % 2 else "pause-snapshot"
        content = {"id": name, "type": kind, "data": '{"type": "incremental"}', "database": None}
        path.write_text(json.dumps(content))
        os.utime(path, ns=(0, number))
    control = _Control()
    follow_requests(RequestFolder(tmp_path), control)  # type: ignore[arg-type]
    assert control.paused == [True, False, True, False]
    assert len(list(tmp_path.glob("*.answer"))) == 4
    assert not list(tmp_path.glob("*.request"))


def test_request_that_a_crash_left_behind_has_the_key_of_its_first_reading(tmp_path: Path) -> None:
    content = {"id": "weekly", "type": "execute-snapshot", "data": _EXECUTE, "database": None}
    control = _Control()
    for name in ("one", "one", "two"):
        (tmp_path / f"{name}.request").write_text(json.dumps(content))
        follow_requests(RequestFolder(tmp_path), control)  # type: ignore[arg-type]
    assert [(each.id, each.key) for each in control.requested] == [
        ("weekly", "one"),
        ("weekly", "one"),
        ("weekly", "two"),
    ]


def test_request_that_cannot_be_followed_or_answered_yet_is_with_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {"id": "it", "type": "execute-snapshot", "data": _EXECUTE, "database": None}
    (tmp_path / "it.request").write_text(json.dumps(content))
    folder, control = RequestFolder(tmp_path), _Control()
    with monkeypatch.context() as full:
        full.setattr(control, "request", _no_room)
        follow_requests(folder, control)  # type: ignore[arg-type]
    with monkeypatch.context() as full:
        full.setattr(requests, "replace_file", _no_room)
        follow_requests(folder, control)  # type: ignore[arg-type]
    assert (tmp_path / "it.request").exists()
    follow_requests(folder, control)  # type: ignore[arg-type]
    assert json.loads((tmp_path / "it.answer").read_bytes())["is_taken"]
    assert not (tmp_path / "it.request").exists()
    assert len(control.requested) == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (json.dumps({"id": "\ud800", "type": "log", "data": None, "database": None}), "half of a"),
        (json.dumps({"id": "it", "type": "log", "data": None, "database": "/\udcff"}), "half of a"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "no JSON object"),
    ],
)
def test_request_that_nobody_could_answer_in_its_words_is_refused(
    tmp_path: Path, text: str, why: str
) -> None:
    (tmp_path / "it.request").write_text(text)
    follow_requests(RequestFolder(tmp_path), _Control())  # type: ignore[arg-type]
    answer = json.loads((tmp_path / "it.answer").read_bytes())
    assert not answer["is_taken"]
    assert why in answer["text"]
    assert not (tmp_path / "it.request").exists()


def _no_room(*_: object) -> bool:
    raise OSError(errno.ENOSPC, "no room")


def test_signal_ends_incremental_snapshots_alone_and_the_command_all(tmp_path: Path) -> None:
    control = _Control()
    for channel in ("source", "kafka", "file"):
        raw = RawSignal("end", "stop-snapshot", '{"type": "incremental"}', channel, None)
        assert follow(control, raw, control.databases[0]).text == "1 snapshot stopped"  # type: ignore[arg-type]
    assert control.stopped == [False] * 3
    content = {"id": "end", "type": "stop-snapshot", "data": raw.data, "database": None}
    (tmp_path / "one.request").write_text(json.dumps(content))
    follow_requests(RequestFolder(tmp_path), control)  # type: ignore[arg-type]
    assert control.stopped == [*[False] * 3, True]


@pytest.mark.parametrize("is_there", [True, False])
def test_snapshot_of_an_unknown_database_is_taken_with_a_warning(
    tmp_path: Path, is_there: bool
) -> None:
    path = tmp_path / "no.fdb"
    if is_there:
        path.touch()
    data = json.dumps({"data-collections": [f"{path}.ORDERS"]})
    raw = RawSignal("it", "execute-snapshot", data, "command", None)
    text = follow(_Anywhere(), raw, str(path)).text  # type: ignore[arg-type]
    assert f"{path} is not known yet; its rows are read once it can be attached to" in text
    assert ("no file is now" in text) is not is_there


def test_rows_of_a_signal_table_with_one_id_or_none_ask_for_a_snapshot_each() -> None:
    control = _Control()
    for id in ("", "", "weekly", "weekly"):
        raw = RawSignal(id, "execute-snapshot", _EXECUTE, "source", None)
        assert follow(control, raw, control.databases[0]).is_taken  # type: ignore[arg-type]
    assert len({each.key for each in control.requested}) == 4


def test_snapshots_with_one_id_end_one_by_one_and_are_told_apart_after_a_restart() -> None:
    first, second = (Snapshot("weekly", Kind.INCREMENTAL, "file") for _ in range(2))
    state = SnapshotState("/srv/shop.fdb", waiting=[first, second])
    state.end(first, Status.COMPLETED)
    read = SnapshotState.from_json(state.to_json())
    assert [each.key for each in read.past] == [first.key]
    assert [each.key for each in read.waiting] == [second.key]


def test_snapshot_has_the_fields_that_former_versions_read_and_a_key_without_its_own() -> None:
    held = json.loads(SnapshotState("x", waiting=[Snapshot("a", Kind.BLOCKING, "file")]).to_json())
    fields = "id kind origin collections conditions requested_us started_us ended_us status why"
    assert set(held["waiting"][0]) == {*fields.split(), "tables", "stopped", "windows"}
    held["places"].clear()
    content = json.dumps(held).encode()
    assert SnapshotState.from_json(content).waiting[0].key == "a"


@pytest.fixture
def signals(tmp_path: Path) -> Callable[[_Control], Signals]:
    """Make the channels of a shipper with a signal file, and a pause, a resume and a snapshot."""
    config = load_with(
        tmp_path,
        "signal.enabled.channels: file",
        f"signal.file: {tmp_path}/signals",
        "signal.poll.interval.ms: 1",
    )
    kinds = ("pause-snapshot", "resume-snapshot", "execute-snapshot")
    lines = (json.dumps({"id": kind, "type": kind, "data": _EXECUTE}) for kind in kinds)
    (tmp_path / "signals").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / STATE_DIRECTORY).mkdir()
    return lambda control: Signals(config, tmp_path / STATE_DIRECTORY / SNAPSHOTS, control)  # type: ignore[arg-type]


def _look(signals: Signals) -> None:
    time.sleep(0.002)  # no longer than between two looks
    signals.take()


@pytest.mark.parametrize("failures", [1, 2, 4])
def test_signals_take_effect_once_each_though_places_could_not_be_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    signals: Callable[[_Control], Signals],
    failures: int,
) -> None:
    control = _Control()
    taken = signals(control)
    with monkeypatch.context() as full:
        full.setattr(intake, "replace_file", _no_room)
        for _ in range(failures):
            with pytest.raises(OSError, match="no room"):
                _look(taken)
        assert control.paused == [True]  # nothing more is begun while nothing can be kept
    _look(taken)
    assert control.paused == [True, False]
    assert [each.id for each in control.requested] == ["execute-snapshot"]
    _look(taken)
    assert not list(tmp_path.glob("*.taken"))
    after = _Control()
    _look(signals(after))
    assert (after.paused, after.requested) == ([], [])


def test_signal_that_fails_otherwise_holds_up_no_other_one(
    monkeypatch: pytest.MonkeyPatch, signals: Callable[[_Control], Signals]
) -> None:
    control = _Control()
    taken = signals(control)
    with monkeypatch.context() as broken:
        broken.setattr(control, "pause", _broken)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                _look(taken)
    _look(taken)
    assert [each.id for each in control.requested] == ["execute-snapshot"]
    assert control.paused == []


def _broken(*_: object, **__: object) -> None:
    raise ZeroDivisionError


def _with_folder(config: ConnectorConfig, folder: str) -> Snapshots:
    delivery = Mock()
    delivery.queues = {}
    delivery.offsets.folder, delivery.offsets.known, delivery.offsets.databases = folder, {}, {}
    return Snapshots(config, delivery, Mock())


def test_signal_in_a_folder_that_takes_the_place_of_another_is_heard_though_numbers_begin_anew(
    tmp_path: Path,
) -> None:
    config = load_with(tmp_path, f"connector.journal.directory: {tmp_path}")
    (tmp_path / STATE_DIRECTORY).mkdir()
    database = _Control.databases[0]
    data = json.dumps({"data-collections": [f"{database}.ORDERS"]})

    def signal(id: str) -> RowChange:
        return signal_row((id, "execute-snapshot", data))

    former = _with_folder(config, "former")
    former.take_row(database, signal("one"), (0, 900, 1))
    former.take_row(database, signal("again"), (0, 900, 1))
    record = former._runners[database].work.state.to_json()
    for path in (tmp_path / STATE_DIRECTORY / SNAPSHOTS).glob("*.json"):
        path.unlink()
    present = _with_folder(config, "present")
    present._adopt({database: record})
    for _ in range(2):
        present.take_row(database, signal("two"), (0, 3, 1))
    waiting = present._runners[database].work.state.waiting
    assert [each.id for each in waiting] == ["one", "two"]
