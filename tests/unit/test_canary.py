"""Cases in which a canary is an alarm, and cases in which it is not."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import logbook
import pytest

from firebird_cdc.clock import now_us
from firebird_cdc.config import load_config
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.format import Column, JournalReader, JournalWriter, RowChange, Storage
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.tasks import canary
from firebird_cdc.journal.shipper.tasks.canary import Canary

DATABASE = "/data/shop.fdb"
SUBJECT = f"canary:{DATABASE}.CANARY"
PATIENCE_S = 30.0


def _config(folder: Path, *lines: str) -> Any:
    path = folder / "reddatabase.connector.yaml"
    path.write_text(
        "connector.name: depot\nconnector.journal.directory: /var/lib/journal\n"
        "kafka.producer.bootstrap.servers: localhost:9092\nkafka.topic.prefix: depot\n"
        f"connector.canary.tables: {DATABASE}.CANARY\nconnector.canary.interval.ms: 100\n"
        "connector.canary.timeout.ms: 100\n" + "".join(f"{line}\n" for line in lines)
    )
    return load_config(path)


class _Bird:
    """A canary whose writes are committed at once, each with the next transaction."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch
        self.transaction = 0
        self.waiting = 0
        self.statistics = Statistics()
        config = _config(folder)
        [table] = config.canary_tables
        self.canary = Canary(config, table, self.statistics, lambda: self.waiting)

    def answer(self, said: str) -> None:
        """Have the process that writes say this."""
        self._monkeypatch.setattr(canary, "_PROGRAM", f"print({said!r}, end='')")

    def write(self, *, seen: bool = False) -> int:
        """Have the next write committed; the number of its transaction. SEEN: it comes out."""
        self.transaction += 1
        self.written_us = now_us()
        if seen:
            self.canary.saw("CANARY", self.transaction)
        times = {"began_us": self.written_us, "written_us": self.written_us}
        self.answer(json.dumps({"transaction": self.transaction, **times}))
        figures = self.statistics.canaries[f"{DATABASE}.CANARY"]
        self.turn_until(lambda: (seen and figures.seen_us) or self.transaction in self._awaited)
        return self.transaction

    @property
    def _awaited(self) -> Any:
        return self.canary._awaited

    def turn_until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline
            self.canary.turn(time.monotonic())
            time.sleep(0.005)

    def turn_for(self, seconds: float) -> None:
        """Go on for a while in which nothing is to happen."""
        deadline = time.monotonic() + seconds
        self.turn_until(lambda: time.monotonic() >= deadline)

    @property
    def trouble(self) -> str:
        """The kind of the trouble there is."""
        found = self.statistics.troubles.get(SUBJECT)
        return found.kind if found else ""


@pytest.fixture
def bird(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Bird]:
    made = _Bird(tmp_path, monkeypatch)
    yield made
    made.canary.close()


@pytest.fixture
def log() -> Iterator[logbook.TestHandler]:
    with logbook.TestHandler() as handler:
        yield handler


def test_clock_change_and_suspended_machine_raise_no_alarm(
    bird: _Bird, monkeypatch: pytest.MonkeyPatch
) -> None:
    bird.canary._timeout_s = 20.0
    bird.write()
    monkeypatch.setattr(canary, "now_us", lambda: now_us() + 3_600_000_000)
    bird.canary.turn(time.monotonic())
    assert not bird.trouble
    monkeypatch.undo()
    for minutes in range(1, 7):  # a machine that is stopped and goes on
        bird.canary.turn(time.monotonic() + 60 * minutes)
        assert not bird.trouble or minutes > 3
    assert bird.trouble == "halted"


def test_canary_row_that_arrives_raises_no_alarm(bird: _Bird) -> None:
    bird.write(seen=True)
    bird.turn_for(0.3)
    assert not bird.trouble
    figures = bird.statistics.canaries[f"{DATABASE}.CANARY"]
    assert figures.seen_us > 0
    assert 0 <= figures.latency_ms < PATIENCE_S * 1000


def test_another_table_of_the_transaction_does_not_count(bird: _Bird) -> None:
    bird.canary.saw("OTHER", 1)
    bird.write()
    bird.turn_until(lambda: bird.trouble == "halted")


def test_overdue_canary_row_raises_an_alarm_until_one_arrives(
    bird: _Bird, log: logbook.TestHandler
) -> None:
    bird.write()
    bird.turn_until(lambda: bird.trouble == "halted")
    assert log.has_error()
    errors = len([record for record in log.records if record.level == logbook.ERROR])
    second = bird.write()
    bird.turn_for(0.3)
    assert len([record for record in log.records if record.level == logbook.ERROR]) == errors
    assert bird.trouble == "halted"
    bird.canary.saw("CANARY", second)
    bird.turn_until(lambda: not bird.trouble)
    assert log.has_notice()


def test_canary_row_behind_a_backlog_raises_no_alarm(bird: _Bird) -> None:
    bird.waiting = 5
    bird.write()
    bird.turn_for(0.3)
    assert not bird.trouble
    bird.canary.reached(bird.written_us)
    bird.turn_for(0.1)
    assert not bird.trouble
    bird.canary.reached(bird.written_us + 2_000_000)  # so many others wait that there is always one
    bird.turn_until(lambda: bird.trouble == "halted")


def test_a_write_that_fails_is_a_warning(bird: _Bird, log: logbook.TestHandler) -> None:
    bird.answer(json.dumps({"error": "no such database"}))
    bird.turn_until(lambda: bird.trouble == "warning")
    assert log.has_warning()
    assert not log.has_error()
    bird.write(seen=True)
    assert not bird.trouble


@pytest.mark.parametrize(("said", "part"), [("", "exit code 0"), ("no JSON", "exit code 0")])
def test_unresponsive_canary_process_counts_as_a_failed_write(
    bird: _Bird, said: str, part: str
) -> None:
    bird.answer(said)
    bird.turn_until(lambda: bird.trouble == "warning")
    assert part in bird.statistics.troubles[SUBJECT].text


def test_canary_process_ended_early_is_reported_with_its_exit_status(
    bird: _Bird, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.wait()

    monkeypatch.setattr(subprocess, "Popen", Ended)
    bird.answer("")
    bird.turn_until(lambda: bird.trouble == "warning")
    assert "exit code 0" in bird.statistics.troubles[SUBJECT].text


def test_a_failed_write_does_not_end_an_alarm(bird: _Bird) -> None:
    bird.write()
    bird.turn_until(lambda: bird.trouble == "halted")
    bird.answer(json.dumps({"error": "no such database"}))
    bird.turn_for(0.5)
    assert bird.trouble == "halted"


@pytest.mark.parametrize(
    "line", ["table.exclude.list: .*", "skipped.operations: c", "tombstones.on.delete: true"]
)
def test_canary_row_is_noticed_even_if_its_events_are_filtered_out(
    tmp_path: Path, line: str
) -> None:
    path = tmp_path / "journal.log"
    writer = JournalWriter(
        path,
        uuid=UUID(int=1),
        transaction=48213,
        database=DATABASE,
        user="CDC",
        started_us=1,
    )
    column = Column("ID", 0, 0, 0, 8, 4, 0, 0, False, False, 1, Storage.BIGINT)
    for name in ("OTHER", "CANARY"):
        writer.insert(writer.table(name, (column,)), (1,))
    writer.seal()
    writer.commit(1, 77)
    writer.stamp(1)
    writer.close()
    noticed: list[Any] = []

    class Watch:
        def reached(self, commit_us: int, /) -> None:
            noticed.append(commit_us)

        def saw(self, table: str, transaction: int, /) -> None:
            noticed.append((table, transaction))

    renderer = Renderer(_config(tmp_path, line), 1_000_000)
    renderer.canaries = {DATABASE: Watch()}
    with JournalReader(path) as reader:
        assert reader.stamp is not None
        journal = renderer.journal(reader.header, reader.stamp, reader.database)
        for change in reader.changes():
            assert isinstance(change, RowChange)
            journal.messages(change)
    assert noticed == [77, ("OTHER", 48213), ("CANARY", 48213)]
