"""The shipper's loop around a folder that takes long to be looked at."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock, call

import pytest
from columns import column
from confluent_kafka import KafkaError, KafkaException
from played_server import PlayedServer

from firebird_cdc.config import ConnectorConfig, load_config
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.journal.folder.subjects import FOLDER
from firebird_cdc.journal.format import JournalWriter, Storage
from firebird_cdc.journal.shipper.delivery.base import Delivery
from firebird_cdc.journal.shipper.inbox import watcher
from firebird_cdc.journal.shipper.kafka.client import KafkaLink
from firebird_cdc.journal.shipper.loop import Shipper
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics


def _config(directory: Path, journals: Path) -> ConnectorConfig:
    path = directory / "connector.yaml"
    path.write_text(
        f"connector.name: t\nconnector.journal.directory: {journals}\nkafka.topic.prefix: t\n"
        "kafka.producer.bootstrap.servers: 127.0.0.1:9\nkafka.producer.close.timeout.ms: 100\n"
    )
    return load_config(path)


class _Running:
    """A shipper on a thread, with nobody to send to."""

    def __init__(self, directory: Path, journals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shipper = Shipper(_config(directory, journals))
        self.delivery: Delivery | None = None
        self.known: list[int] = []  # how many journals, each time that some might be begun
        make = self.shipper._make_delivery

        def made(link: KafkaLink) -> Delivery:
            self.delivery = delivery = make(link)
            monkeypatch.setattr(delivery, "step", lambda: self.known.append(len(delivery.backlog)))
            return delivery

        monkeypatch.setattr(self.shipper, "_make_delivery", made)
        self.thread = threading.Thread(target=self.shipper.run)
        self.thread.start()

    def await_turns(self) -> None:
        """Wait until the loop has come round again."""
        before = self.shipper.statistics.loop_at
        await_condition("a turn", lambda: self.shipper.statistics.loop_at > before, 60, 0.001)

    def stop(self) -> float:
        """Stop it; return how long that took."""
        began = time.monotonic()
        self.shipper.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()
        return time.monotonic() - began


def test_a_scan_without_end_holds_up_neither_the_loop_nor_the_end(
    tmp_path: Path, journal_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(_: Path) -> Iterator[str]:
        while True:
            yield f"{uuid.uuid4()}.log"

    monkeypatch.setattr(watcher, "list_journals", endless)
    running = _Running(tmp_path, journal_directory, monkeypatch)
    try:
        for _ in range(5):
            running.await_turns()
    finally:
        assert running.stop() < 30  # it would never end


def test_shipping_begins_only_after_the_first_scan_is_complete(
    tmp_path: Path, journal_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [_journal(journal_directory, sequence) for sequence in range(1, 4)]
    go_on = threading.Event()

    def slow(_: Path) -> Iterator[str]:
        yield from reversed(names[1:])
        while not go_on.is_set():  # others come, which are gone again
            yield f"{uuid.uuid4()}.log"
        yield names[0]

    monkeypatch.setattr(watcher, "list_journals", slow)
    running = _Running(tmp_path, journal_directory, monkeypatch)
    try:
        await_condition("two journals", lambda: _waiting(running) == 2, 60)
        running.await_turns()
        assert running.known == []
        go_on.set()
        await_condition("the end of the scan", lambda: running.known, 60)
    finally:
        go_on.set()
        running.stop()
    assert running.known[0] == 3


def test_journal_of_a_server_that_ended_during_the_shutdown_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = PlayedServer(tmp_path)
    server.create_database()
    shipper = Shipper(_config(tmp_path, server.folder.path), embedded=True)
    make, left = shipper._make_delivery, []

    def made(link: KafkaLink) -> Delivery:
        delivery = make(link)
        abandon = delivery.abandon

        def abandon_later(patience_s: float) -> None:
            left.append(server.commit_elsewhere(7, owner=uuid.uuid4()))
            abandon(patience_s)

        monkeypatch.setattr(delivery, "abandon", abandon_later)
        return delivery

    monkeypatch.setattr(shipper, "_make_delivery", made)
    assert shipper.run() == 0
    assert left
    assert not [each for each in left if server.folder.live(each).exists()]


def test_leftovers_of_a_killed_server_are_decided_however_short_the_time_for_kafka_is(
    tmp_path: Path,
) -> None:
    _config(tmp_path, tmp_path / "journals")
    program = Path(__file__).with_name("late_server_program.py")
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    left = [tmp_path / "journals" / f"{each}.log.live" for each in done.stdout.split()]
    assert left
    assert not left[0].exists(), done.stderr


def _waiting(running: _Running) -> int:
    return len(running.delivery.backlog) if running.delivery is not None else 0


def _journal(directory: Path, sequence: int) -> str:
    identity = uuid.uuid4()
    draft = directory.with_name(f"{identity}.log.live")
    with JournalWriter(draft, uuid=identity, database="/srv/a.fdb", user="SYSDBA") as writer:
        writer.insert(writer.table("T", (column("ID", Storage.BIGINT, 1),)), (sequence,))
        writer.seal()
        writer.commit(sequence, 1)
        writer.stamp(sequence)
    return draft.rename(directory / f"{identity}.log").name


@pytest.mark.parametrize(("line", "called"), [("", "flush"), ("linger.ms: 50", "poll")])
def test_queued_messages_are_flushed_unless_linger_is_configured(
    tmp_path: Path, journal_directory: Path, line: str, called: str
) -> None:
    path = tmp_path / "connector.yaml"
    path.write_text(
        f"connector.name: t\nconnector.journal.directory: {journal_directory}\n"
        "kafka.topic.prefix: t\nkafka.producer.bootstrap.servers: 127.0.0.1:9\n"
        + (f"kafka.producer.{line}\n" if line else "")
    )
    link = KafkaLink(load_config(path), Statistics())
    producer = link.producer = Mock()
    link.hurry(0.25)
    assert producer.mock_calls == [getattr(call, called)(0.25)]
    producer.flush.side_effect = producer.poll.side_effect = KafkaException(KafkaError(-150))
    link.hurry()
    assert link.fatal is not None


def test_folder_that_cannot_be_listed_is_told_until_it_can(
    tmp_path: Path, journal_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans = 0
    is_mended = threading.Event()

    def broken(_: Path) -> Iterator[str]:
        nonlocal scans
        scans += 1
        if not is_mended.is_set():
            raise OSError(errno.EIO, "broken")
        yield from ()

    monkeypatch.setattr(watcher, "list_journals", broken)
    running = _Running(tmp_path, journal_directory, monkeypatch)
    troubles = running.shipper.statistics.troubles
    try:
        trouble = await_condition("a trouble", lambda: troubles.get(FOLDER), 60)
        assert trouble.kind == "halted" and "can't be read: [Errno 5] broken" in trouble.text
        for _ in range(20):
            running.await_turns()
        assert scans < 20  # it rests in between
        is_mended.set()
        await_condition("its end", lambda: FOLDER not in troubles, 60)
        await_condition("shipping", lambda: running.known, 60)
    finally:
        running.stop()
