"""``tail``, beside an engine that captures and a shipper that delivers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forked
import pytest
from capture import PATIENCE_S, Attachment, Capture, either_form, until
from confluent_kafka import Producer

if TYPE_CHECKING:
    from firebird_cdc.demo.kafka import KafkaBroker

pytestmark = [pytest.mark.engine, pytest.mark.kafka, pytest.mark.plain]

_PROGRAM = (sys.executable, "-P", "-m", "firebird_cdc")
_T = "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, TEXT VARCHAR(20))"


class Tail:
    """A process of ``firebird-cdc tail`` that follows; ``lines``: what it has printed."""

    def __init__(self, capture: Capture, *words: str) -> None:
        self._printed, self._said = capture.directory / "printed", capture.directory / "said"
        with self._printed.open("w") as printed, self._said.open("w") as said:
            argv = [*_PROGRAM, "tail", *words, "--config", str(capture.config)]
            self.process = forked.Popen(argv, stdout=printed, stderr=said)

    @property
    def lines(self) -> list[str]:
        return self._printed.read_text().splitlines()

    @property
    def said(self) -> str:
        return self._said.read_text()

    def await_following(self) -> None:
        until("tail to follow", lambda: "following" in self.said)

    def await_line(self, end: str) -> str:
        """Return the first line that ends so, once it is there."""
        return until(
            f"a line with {end}", lambda: next((x for x in self.lines if x.endswith(end)), "")
        )

    def open_journals(self) -> list[str]:
        folder = Path(f"/proc/{self.process.pid}/fd")
        found = []
        for each in folder.iterdir():
            with suppress(FileNotFoundError):  # closed between listing and reading
                found.append(str(each.readlink()))
        return [path for path in found if ".log" in path]

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(PATIENCE_S) == 130
        assert "Traceback" not in self.said


@pytest.fixture
def tails() -> Iterator[list[Tail]]:
    """Processes that have to be ended."""
    started: list[Tail] = []
    yield started
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def _command(capture: Capture, *words: str, code: int = 0) -> list[str]:
    """Run a command to its end; return the lines that it printed."""
    argv = [*_PROGRAM, *words, "--config", str(capture.config)]
    done = forked.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout.splitlines()


def _whats(lines: list[str]) -> list[str]:
    """Return events without time, database and place."""
    return [line.split(" ", 3)[3] for line in lines]


def _commit(attachment: Attachment, *statements: str) -> None:
    for statement in statements:
        attachment.execute(statement)
    attachment.commit()


@either_form
def test_journals_that_wait_and_new_ones_are_shown_in_order(
    capture: Capture, tails: list[Tail]
) -> None:
    capture.create(_T)
    attachment = capture.attach()
    _commit(attachment, "INSERT INTO T VALUES (1, 'a')")
    tails.append(tail := Tail(capture, "--journals"))
    tail.await_line("insert T: ID=1, TEXT='a'")
    tail.await_following()
    attachment.execute("INSERT INTO T VALUES (7, 'never')")
    attachment.rollback()
    _commit(attachment, "UPDATE T SET TEXT = 'b'", "DELETE FROM T")
    _commit(attachment, "INSERT INTO T VALUES (2, NULL)")
    tail.await_line("insert T: ID=2, TEXT=NULL")
    rows = [what for what in _whats(tail.lines) if not what.startswith("ddl")]
    assert rows == [
        "insert T: ID=1, TEXT='a'",
        "update T: ID=1, TEXT='a' -> 'b'",
        "delete T: ID=1, TEXT='b'",
        "insert T: ID=2, TEXT=NULL",
    ]
    assert tail.lines[-1].split(" ", 2)[1] == "test.fdb"
    until("no journal to be open", lambda: not tail.open_journals())
    tail.interrupt()


def test_options_choose_events_of_journals(capture: Capture) -> None:
    capture.create(_T, "CREATE TABLE U$1 (ID INTEGER)")
    attachment = capture.attach()
    _commit(attachment, "INSERT INTO T VALUES (1, 'a')", "INSERT INTO U$1 VALUES (1)")
    since = datetime.now(UTC).isoformat()
    _commit(attachment, "INSERT INTO T VALUES (2, 'b')", "INSERT INTO U$1 VALUES (2)")
    capture.end_clients()

    def tail(*words: str) -> list[str]:
        return _command(capture, "tail", "--journals", "--once", *words)

    assert _whats(tail("--table", "u$1")) == ["insert U$1: ID=1", "insert U$1: ID=2"]
    assert _whats(tail("--table", ".*[.]T", "--count", "1")) == ["insert T: ID=1, TEXT='a'"]
    assert _whats(tail("--table", "T", "--from", since)) == ["insert T: ID=2, TEXT='b'"]
    assert tail("--from", "end") == []
    event = json.loads(tail("--table", "T", "--json")[-1])
    assert event["after"] == {"ID": 2, "TEXT": "b"}
    assert (event["database"], event["op"]) == (str(capture.database), "c")
    _command(capture, "tail", "--from", "soon", code=2)
    _command(capture, "tail", code=1)  # without a broker


def test_topics_are_shown_and_what_is_shipped_is_gone(
    capture: Capture, broker: KafkaBroker, topic_prefix: str, tails: list[Tail]
) -> None:
    options = {
        "kafka_producer_bootstrap_servers": broker.bootstrap,
        "kafka_topic_prefix": topic_prefix,
    }
    capture.write_config(**options)
    capture.create(_T, "CREATE TABLE U (ID INTEGER)")
    attachment = capture.attach()
    tails += [journals := Tail(capture, "--journals", "--table", "T")]
    journals.await_following()
    _commit(attachment, "INSERT INTO T VALUES (1, 'a')", "UPDATE T SET TEXT = 'b'")
    journals.await_line("update T: ID=1, TEXT='a' -> 'b'")
    capture.end_clients()
    _command(capture, "ship", "--once")
    assert [*capture.journal_directory.glob("*.log*")] == []
    journals.interrupt()

    topic, name = _topic(_command(capture, "tail", "--once", "--json")), str(capture.database)
    _abort(broker, topic)
    lines = _command(capture, "tail", "--once")
    assert _whats(lines) == ['insert T: ID=1, TEXT="a"', 'update T: ID=1, TEXT="a" -> "b"']
    assert _command(capture, "tail", "--topic", topic, "--from", "1h", "--count", "1") == lines[:1]
    assert _command(capture, "tail", "--once", "--table", f"{name}.U") == []

    # Of a table without a topic so far, and after the end of the others.
    capture.directory.joinpath("said").unlink()
    tails.append(tail := Tail(capture))
    tail.await_following()
    attachment = capture.attach()
    _commit(attachment, "INSERT INTO U VALUES (3)", "DELETE FROM T")
    capture.end_clients()
    _command(capture, "ship", "--once")
    tail.await_line("insert U: ID=3")
    tail.await_line('key {"ID": 1}: tombstone')
    assert len(tail.lines) == 3
    tail.interrupt()


def _topic(lines: list[str]) -> str:
    events: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert [event["value"]["op"] for event in events] == ["c", "u"]
    assert [event["key"] for event in events] == [{"ID": 1}, {"ID": 1}]
    return str(events[0]["topic"])


def _abort(broker: KafkaBroker, topic: str) -> None:
    """Put a message into TOPIC that no read_committed consumer gets."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b'{"op":"c","source":{"table":"NEVER"}}', b"{}")
    producer.flush()
    producer.abort_transaction()


def test_a_closed_pipe_ends_it_while_nothing_comes(capture: Capture) -> None:
    capture.create(_T)
    attachment = capture.attach()
    _commit(attachment, "INSERT INTO T VALUES (1, 'a')")
    argv = [*_PROGRAM, "tail", "--journals", "--table", "T", "--config", str(capture.config)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().endswith(b"insert T: ID=1, TEXT='a'\n")
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 141
        assert b"Traceback" not in process.stderr.read()
