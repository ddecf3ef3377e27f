"""Channels of signals: the file, whatever happens to it, and the rows of a signal table."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import logbook
import pytest
from least_config import load_with

from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.format import Blob, Column, RowChange, Storage, Table, Undecodable, Value
from firebird_cdc.journal.shipper.snapshots.channels import (
    FileChannel,
    KafkaChannel,
    RawSignal,
    signal_of_row,
)
from firebird_cdc.journal.snapshot.signals import SignalError


def line(id: str = "1", type: str = "log", data: Any = None) -> str:
    return json.dumps({"id": id, "type": type, "data": data or {"message": id}}) + "\n"


def ids(signals: list[RawSignal]) -> list[str]:
    return [signal.id for signal in signals]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "signals.jsonl"


# -- the file


def test_lines_of_the_file_are_signals_in_their_order(file: Path) -> None:
    channel = FileChannel(file)
    assert channel.take() == []
    file.write_text(line("a") + "\n" + line("b", "stop-snapshot", '{"type": "incremental"}'))
    first, second = channel.take()
    assert first == RawSignal("a", "log", '{"message": "a"}', "file", [1, 1])
    assert second == RawSignal("b", "stop-snapshot", '{"type": "incremental"}', "file", [1, 3])
    assert channel.take() == []
    assert not file.exists()


def test_file_stays_until_the_places_of_all_its_signals_are_kept(file: Path) -> None:
    channel = FileChannel(file)
    file.write_text(line("a") + line("b"))
    first, second = channel.take()
    channel.handled(first.place)
    assert channel.take() == []
    assert [each.name for each in file.parent.iterdir()] == ["signals.jsonl.00000001.taken"]
    channel.handled(second.place)
    assert channel.take() == []
    assert not list(file.parent.iterdir())


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_restart_after_any_number_of_kept_places_gives_exactly_the_others(
    file: Path, kept: int
) -> None:
    file.write_text(line("a") + line("b"))
    signals = FileChannel(file).take()
    place = json.loads(json.dumps(signals[kept - 1].place)) if kept else None
    again = FileChannel(file, place)
    assert ids(again.take()) == ["a", "b"][kept:]
    file.write_text(line("c"))
    if kept < 2:
        again.handled(signals[1].place)
    assert ids(again.take()) == ["c"]


def test_taken_file_that_a_power_cut_brought_back_does_not_count_again(file: Path) -> None:
    file.write_text(line("a"))
    (signal,) = FileChannel(file).take()
    (taken,) = file.parent.iterdir()
    content = taken.read_bytes()
    channel = FileChannel(file, signal.place)
    file.write_text(line("b"))
    (second,) = channel.take()
    channel.handled(second.place)
    channel.take()
    taken.write_bytes(content)
    assert FileChannel(file, second.place).take() == []
    assert not taken.exists()


def test_half_of_a_line_waits_for_the_other_half(file: Path) -> None:
    channel = FileChannel(file)
    whole = line("a") + line("b")
    for end in (10, len(line("a")) + 10):
        file.write_text(whole[:end])
        assert channel.take() == []
        assert file.exists()
    file.write_text(whole.rstrip("\n"))
    assert ids(channel.take()) == ["a", "b"]


def test_line_that_is_never_ended_is_told_of_after_a_minute(file: Path) -> None:
    file.write_text('{"id": "a", "type": ')
    channel = FileChannel(file)
    assert channel.take() == []
    old = time.time() - 61
    os.utime(file, (old, old))
    (signal,) = channel.take()
    assert "it is not JSON" in signal.problem


def test_writer_that_still_has_the_file_open_is_heard(file: Path) -> None:
    channel = FileChannel(file)
    with file.open("a") as writer:
        writer.write(line("a"))
        writer.flush()
        (first,) = channel.take()
        writer.write(line("b"))
        writer.flush()
        channel.handled(first.place)
        (second,) = channel.take()
        assert (second.id, second.place) == ("b", [1, 2])
        writer.write(line("c")[:9])
        writer.flush()
        channel.handled(second.place)
        assert channel.take() == []
        writer.write(line("c")[9:])
    assert ids(channel.take()) == ["c"]


def test_next_file_is_read_after_the_one_before(file: Path) -> None:
    channel = FileChannel(file)
    file.write_text(line("a"))
    (first,) = channel.take()
    file.write_text(line("b"))
    assert channel.take() == []
    channel.handled(first.place)
    (second,) = channel.take()
    assert (second.id, second.place) == ("b", [2, 1])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[1]", "it is no JSON object"),
        ('{"id": "x"}', "it has no type"),
        ('{"type": 7}', "it has no type, or one that is no text"),
        (
            r'{"id": "\ud800", "type": "log"}',
            r"type or its id has half of a character",
        ),
    ],
)
def test_wrong_line_is_handed_out_with_what_is_wrong_and_hides_no_other(
    file: Path, text: str, said: str
) -> None:
    file.write_text(text + "\n" + line("b"))
    wrong, right = FileChannel(file).take()
    assert said in wrong.problem
    assert (wrong.id, wrong.place) == ("signals.jsonl:1:1", [1, 1])
    assert (right.id, right.problem) == ("b", "")


def test_signal_without_an_id_is_called_by_its_place(file: Path) -> None:
    file.write_text('{"type": "pause-snapshot"}\n{"id": 7, "type": "log"}\n')
    assert FileChannel(file).take() == [
        RawSignal("signals.jsonl:1:1", "pause-snapshot", None, "file", [1, 1]),
        RawSignal("7", "log", None, "file", [1, 2]),
    ]


def _open_to_all(file: Path) -> None:
    file.write_text(line())
    file.chmod(0o666)


def _link(file: Path) -> None:
    file.with_name("other").write_text(line())
    file.symlink_to("other")


def _pipe(file: Path) -> None:
    os.mkfifo(file)


def _open_folder(file: Path) -> None:
    file.write_text(line())
    file.parent.chmod(0o1777)


def _huge(file: Path) -> None:
    file.write_text("\n" * (1024 * 1024 + 1))


def _no_folder(file: Path) -> None:
    file.parent.rename(file.parent.with_name("away"))


@pytest.mark.parametrize(
    ("defect", "said"),
    [
        (_open_to_all, "every user of this machine can write it; chmod o-w"),
        (_link, "it is a link"),
        (_pipe, "it is no file"),
        (_open_folder, "every user of this machine can make files in"),
        (_huge, "it has more than 1048576 bytes"),
        (_no_folder, "No such file or directory"),
    ],
)
def test_file_that_is_not_trusted_is_left_alone_with_one_warning(
    tmp_path: Path, defect: Any, said: str
) -> None:
    file = tmp_path / "own" / "signals"
    file.parent.mkdir(0o755)
    file.touch()
    file.unlink()
    defect(file)
    channel = FileChannel(file)
    with logbook.TestHandler() as log:
        assert channel.take() == channel.take() == []
    assert len(log.records) == 1
    assert said in log.records[0].message
    assert not list(tmp_path.rglob("*.taken"))


# -- Kafka, without a broker


def test_reader_that_the_client_refuses_is_a_wrong_option(tmp_path: Path) -> None:
    lines = ("security.protocol: ssl", "ssl.ca.location: /nowhere/ca.pem")
    config = load_with(tmp_path, *(f"signal.consumer.{line}" for line in lines))
    with pytest.raises(ConfigError, match=r"signal[.]consumer"):
        KafkaChannel(config)


# -- the signal table


def column(name: str, storage: Storage = Storage.TEXT, charset: int = 4) -> Column:
    return Column(name, 448, 1, 0, 400, charset, 100, 0, True, False, 0, storage)


NAMES = (column("ID"), column("TYPE"), column("DATA"))


def row(
    after: tuple[Value, ...] | None,
    columns: tuple[Column, ...] = NAMES,
    op: str = "c",
    order: tuple[int, ...] = (),
) -> RowChange:
    return RowChange(1, op, Table(1, "SIGNALS", 0, columns, order), None, after)


def test_inserted_row_is_a_signal_and_no_other_change_is() -> None:
    assert signal_of_row(row(("1  ", "log  ", "{}"))) == ("1", "log", "{}")
    assert signal_of_row(row(("1", "log", None))) == ("1", "log", None)
    assert signal_of_row(row(("1", "log", "{}"), op="u")) is None
    assert signal_of_row(row(None, op="d")) is None


def test_columns_are_found_by_name_or_else_are_the_first_three_as_shown() -> None:
    more = (column("WRITTEN"), column("DATA"), column("ID"), column("TYPE"))
    assert signal_of_row(row(("now", "{}", "1", "log"), more)) == ("1", "log", "{}")
    other = (column("WHAT"), column("WITH_WHAT"), column("NO"))
    assert signal_of_row(row(("log", "{}", 7), other, order=(2, 0, 1))) == ("7", "log", "{}")


def test_data_may_be_a_blob_or_in_another_character_set() -> None:
    blob = Blob(1, True, None, (), '{"message": "ü"}'.encode())
    columns = (*NAMES[:2], column("DATA", Storage.BLOB))
    assert signal_of_row(row(("1", "log", blob), columns)) == ("1", "log", '{"message": "ü"}')
    none = (*NAMES[:2], column("DATA", charset=0))
    assert signal_of_row(row(("1", "log", Undecodable(b"{}", 0)), none)) == ("1", "log", "{}")


@pytest.mark.parametrize(
    ("after", "columns", "said"),
    [
        (("1", "log"), NAMES[:2], "has 2 columns; it needs id, type and data"),
        (("1", None, "{}"), NAMES, "TYPE is NULL"),
        (("1", "log", 1.5), NAMES, "column DATA of the signal table holds no text"),
        (("1", "log", Undecodable(b"\xff", 4)), NAMES, "DATA is no text in its character set"),
        (("1", "log", Blob(1, False, None, ())), NAMES, "DATA can't be read"),
    ],
)
def test_row_that_is_no_signal_is_refused(
    after: tuple[Value, ...], columns: tuple[Column, ...], said: str
) -> None:
    with pytest.raises(SignalError, match=said):
        signal_of_row(row(after, columns))
