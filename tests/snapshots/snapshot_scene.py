"""A database in use, its shipper, and a consumer that keeps the last event of each key."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any

import forked
from capture import Attachment, Capture, SqlError, until, users_of
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from firebird_cdc.demo.events import ends_of
from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.processes import Stack, has_input, tail
from firebird_cdc.journal.folder.processes import read_shipper, status_path
from firebird_cdc.journal.shipper.requests import take_answer, write_request
from firebird_cdc.journal.shipper.snapshots.state import (
    SNAPSHOTS,
    Snapshot,
    SnapshotState,
    StateFolder,
)

PATIENCE_S = 120.0
_ANSWER_S = PATIENCE_S  # for which a command waits for the shipper: it may have just begun

DELIVERIES = ("plain", "transactional")

_SCHEMA = (
    "CREATE TABLE ITEM (ID INTEGER NOT NULL PRIMARY KEY, NAME VARCHAR(40), PRICE NUMERIC(9, 2),"
    " MADE TIMESTAMP, NOTE BLOB SUB_TYPE TEXT)",
    "CREATE TABLE KEYLESS (X INTEGER, Y VARCHAR(10))",
    "CREATE TABLE PAIR (A INTEGER NOT NULL, B VARCHAR(10) NOT NULL, C INTEGER, PRIMARY KEY (B, A))",
    "CREATE TABLE NOTHING (ID INTEGER NOT NULL PRIMARY KEY)",
)
_FILL = """EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN
 WHILE (I < {rows}) DO BEGIN
  INSERT INTO ITEM VALUES (:I, 'item ' || :I, :I / 4.0, TIMESTAMP '2026-01-01 10:00:00',
   IIF(MOD(:I, 10) = 0, 'note ' || :I, NULL));
  IF (MOD(I, 4) = 0) THEN INSERT INTO KEYLESS VALUES (MOD(:I, 50), 'y');
  IF (MOD(I, 4) = 1) THEN INSERT INTO PAIR VALUES (:I, 'b' || MOD(:I, 7), :I);
  I = I + 1;
 END END"""

_HELD = """import time
from pathlib import Path
from firebird_cdc.journal.snapshot.worker import SnapshotWorker
read, asked = SnapshotWorker._read, []
def held(worker, question):
    asked.append(question)
    end = time.monotonic() + {most_s}
    while len(asked) > {parts} and Path({hold!r}).exists() and time.monotonic() < end:
        time.sleep(0.005)
    return read(worker, question)
SnapshotWorker._read = held
"""

NEW_KEYS = 10_000_000
"""From here on are the keys of rows that were inserted meanwhile."""


@dataclass
class Topic:
    """Messages of one table. ``rows``: the last event of each key; ``bag``: how often each row of a
    table without a key is there; ``ops``: by operation. ``reads``: places of the rows of snapshots,
    in their order; ``twice``: places that came again; ``backward``: rows of a snapshot behind a
    newer event of their key."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    bag: Counter[str] = field(default_factory=Counter)
    ops: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    reads: list[tuple[str, int]] = field(default_factory=list)
    twice: int = 0
    backward: int = 0


class SnapshotScene:
    """``rows``: of ITEM before its publication."""

    def __init__(
        self,
        directory: Path,
        stack: Stack,
        broker: KafkaBroker,
        prefix: str,
        is_transactional: bool,
        rows: int = 3000,
        mode: str = "Classic",
    ) -> None:
        self.rows = rows
        self.directory = directory
        self.prefix = prefix
        self.broker = broker
        self.capture = Capture(directory, stack, {"ServerMode": mode})
        self.options = {
            "kafka_producer_bootstrap_servers": broker.bootstrap,
            "kafka_topic_prefix": prefix,
            "key_converter_schemas_enable": "false",
            "value_converter_schemas_enable": "false",
            "snapshot_mode": "never",
            "incremental_snapshot_chunk_size": "500",
        }
        if not is_transactional:
            # One that is shared is removed ten seconds after the last transaction in it.
            self.options["connector_journal_transactions"] = "1"
        if mode == "Super":
            self.options["connector_snapshot_by_server"] = "true"
        if is_transactional:
            self.options["kafka_producer_transactional_id"] = prefix
        self.capture.write_config(**self.options)
        self.capture.install()
        self.client = self.capture.client()
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self.attachment = self._make_database()
        self.shipper: subprocess.Popen[bytes] | None = None
        self._hold = directory / "hold"
        self._more: dict[str, str] = {}  # in the environment of shippers
        self._starts = 0
        self._writer: Thread | None = None
        self._stop = Event()
        self._lock = Lock()
        self.written = 0

    def _make_database(self) -> Attachment:
        attachment = self.client.attach(self.capture.database, create=True)
        attachment.script(*_SCHEMA)
        attachment.immediate(_FILL.format(rows=self.rows))
        attachment.commit()
        attachment.script(
            "ALTER DATABASE INCLUDE ALL TO PUBLICATION", "ALTER DATABASE ENABLE PUBLICATION"
        )
        return attachment

    def restore(self, sql: str) -> None:
        """Have the database as it was at first, made anew at its place, and SQL run in it."""
        self.attachment.close()
        until("nobody to have the database open", lambda: not users_of(self.capture.database))
        self.capture.database.unlink()
        self.attachment = self._make_database()
        self.execute(sql)

    @property
    def database(self) -> str:
        return str(self.capture.database)

    # The shipper

    def configure(self, **options: str) -> None:
        """Change options, which the next shipper reads."""
        self.options.update(options)
        self.capture.write_config(**self.options)

    def start(self, *words: str) -> None:
        """Start the shipper."""
        self._starts += 1
        with (self.directory / f"shipper-{self._starts}.log").open("wb") as errors:
            self.shipper = forked.Popen(
                [*self._command("ship", *words), "--logging", str(self.capture.logging)],
                env={**self.capture.environment(), **self._more},
                stderr=errors,
            )
        # The file of the lock alone may be one of a shipper before.
        until("the shipper to begin", self._has_begun, PATIENCE_S)

    def _has_begun(self) -> bool:
        assert self.shipper is not None
        holder = read_shipper(self.capture.journal_directory)
        is_it = holder is not None and holder.process == self.shipper.pid
        return is_it or self.shipper.poll() is not None

    def hold_readers(self, parts: int = 1, most_s: float = math.inf) -> None:
        """Have each reader process of shippers that start from now on stay for up to MOST_S before
        it reads any part but the first PARTS, until ``let_read``: a snapshot of few rows would be
        over before a busy machine comes round to what is to happen amid it."""
        place = self.directory / "held"
        place.mkdir()
        limit = 1e9 if most_s == math.inf else most_s
        text = _HELD.format(hold=str(self._hold), parts=parts, most_s=limit)
        (place / "sitecustomize.py").write_text(text)
        others = filter(None, [os.environ.get("PYTHONPATH")])
        self._more["PYTHONPATH"] = ":".join([str(place), *others])
        self._hold.touch()

    def let_read(self) -> None:
        """Have reader processes that are held go on."""
        self._hold.unlink()

    def report(self) -> dict[str, Any]:
        """Return what the shipper tells of the database, empty: nothing yet."""
        path = status_path(self.capture.journal_directory)
        databases = json.loads(path.read_bytes())["databases"] if path.exists() else []
        return next((each for each in databases if each["path"] == self.database), {})

    def await_meeting(self) -> None:
        """Wait until the shipper knows the database, so that it can be asked for snapshots."""
        until("the database to be met", self.report)

    def kill(self) -> None:
        """End the shipper as a crash would."""
        assert self.shipper is not None
        self.shipper.send_signal(signal.SIGKILL)
        self.shipper.wait()
        self.shipper = None

    def stop(self) -> None:
        """End the shipper in peace."""
        if self.shipper is not None:
            self.shipper.terminate()
            code = self.shipper.wait(PATIENCE_S)
            assert code == 0, tail(self.directory / f"shipper-{self._starts}.log")
            self.shipper = None

    def _command(self, *words: str) -> list[str]:
        program = [sys.executable, "-P", "-m", "firebird_cdc"]
        return [*program, *words, "--config", str(self.capture.config)]

    def snapshot(self, *words: str, code: int = 0) -> str:
        """Run ``firebird-cdc snapshot`` WORDS and return what it prints."""
        action, *rest = words
        if action != "status":
            rest += ["--wait", f"{_ANSWER_S:.0f}"]
        return self.run("snapshot", action, *rest, code=code)

    def run(self, *words: str, code: int = 0) -> str:
        """Run ``firebird-cdc`` WORDS and return what it prints. CODE: as it has to end."""
        ended, text = self._run(*words)
        assert ended == code, text
        return text

    @contextmanager
    def following(self) -> Iterator[subprocess.Popen[str]]:
        """Have ``firebird-cdc snapshot status --follow`` run, which has met the snapshot that
        waits: one that has ended by then it would not show."""
        with forked.Popen(
            self._command("snapshot", "status", "--follow"),
            env=self.capture.environment(),
            stdout=subprocess.PIPE,
            text=True,
        ) as command:
            try:
                assert command.stdout is not None
                assert has_input(command.stdout, PATIENCE_S)
                yield command
            finally:
                command.kill()

    def _run(self, *words: str) -> tuple[int, str]:
        done = forked.run(
            self._command(*words),
            env=self.capture.environment(),
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def status_with(self, text: str) -> str:
        """Return the status of a database that is not well, once it shows TEXT."""

        def shown() -> str | None:
            code, status = self._run("status")
            return status if code == 1 and text in status else None

        return until(f"the status to show {text}", shown, PATIENCE_S)

    def await_status_without(self, text: str) -> None:
        """Wait until the status shows TEXT no longer."""
        until(f"{text} to go", lambda: text not in self._run("status")[1], PATIENCE_S)

    def ask(self, type: str) -> None:
        """Send a signal as ``firebird-cdc snapshot`` does, and wait until it is followed."""
        content = {"id": type, "type": type, "data": '{"type": "incremental"}', "database": None}
        request = write_request(self.capture.journal_directory, content, SNAPSHOTS)
        until(f"{type} to be followed", lambda: take_answer(request), PATIENCE_S)

    @property
    def state(self) -> SnapshotState | None:
        return next(iter(StateFolder(self.capture.journal_directory).read()), None)

    def ended(self, count: int = 1) -> list[Snapshot]:
        """Return the snapshots that have ended, once there are COUNT."""

        def found() -> list[Snapshot]:
            state = self.state
            return state.past if state is not None and len(state.past) >= count else []

        return until(f"{count} snapshots to end", found, PATIENCE_S)

    # Who writes

    def write(self) -> None:
        """Begin to insert, update, and delete rows, and to change keys, in short transactions."""
        self._stop.clear()
        self._writer = Thread(target=self._write)
        self._writer.start()

    def _write(self) -> None:
        while not self._stop.wait(0.004):
            number = self.written
            key = (number * 7919) % self.rows
            statements = (
                f"INSERT INTO ITEM (ID, NAME) VALUES ({NEW_KEYS + number}, 'new')",
                f"UPDATE ITEM SET NAME = 'changed {number}' WHERE ID = {key}",
                f"DELETE FROM ITEM WHERE ID = {key}",
                f"UPDATE ITEM SET ID = {2 * NEW_KEYS + number} WHERE ID = {key}",
                f"UPDATE PAIR SET C = {number} WHERE A = {key}",
                f"INSERT INTO KEYLESS VALUES ({number}, 'new')",
            )
            self.execute(statements[number % len(statements)])
            self.written += 1

    def execute(self, sql: str, *parameters: str | None) -> None:
        """Run SQL in a transaction of its own, also while the writer is at work."""
        with self._lock:
            self.attachment.execute(sql, *parameters)
            self.attachment.commit()

    def attach_again(self) -> None:
        """Go on with another attachment."""
        with suppress(SqlError):
            self.attachment.close()
        self.attachment = self.client.attach(self.capture.database)

    def rest(self) -> None:
        """Have the writer end."""
        if self._writer is not None:
            self._stop.set()
            self._writer.join()
            self._writer = None

    def tables(self) -> dict[str, Counter[str]]:
        """Return the rows that the database has."""
        found: dict[str, Counter[str]] = {}
        for table, columns in (("ITEM", "ID, NAME"), ("PAIR", "A, B, C"), ("KEYLESS", "X, Y")):
            rows = self.attachment.execute(f"SELECT {columns} FROM {table}")
            found[table] = Counter(map(_shown, rows))
        self.attachment.commit()
        return found

    # Who consumes

    def shipped(self) -> bool:
        """Tell whether nothing waits to be shipped, nor to be confirmed before that."""
        return not self.capture.written() and not self.capture.committed()

    def topics(self) -> dict[str, Topic]:
        """Return what a read_committed consumer finds, once all is shipped."""
        until("all journals to be shipped", self.shipped, PATIENCE_S)
        return {table: self.topic(table) for table in ("ITEM", "KEYLESS", "PAIR", "NOTHING")}

    def topic(self, table: str, database: str = "") -> Topic:
        """Return what a read_committed consumer finds of TABLE by now. DATABASE: by default the
        scene's. A broker confirms a commit before it is seen, so what is written is waited for."""
        name = f"{self.prefix}.{(database or self.database).replace('/', '_')}.{table}"
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "group.id": self.prefix,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
            }
        )
        topic = Topic()
        newest: dict[str, int] = {}
        places: set[tuple[str, int]] = set()
        try:
            if name not in consumer.list_topics(timeout=PATIENCE_S).topics:
                return topic
            place = TopicPartition(name, 0, OFFSET_BEGINNING)
            end = ends_of(self._admin, [place])[name, 0]
            deadline = monotonic() + PATIENCE_S
            consumer.assign([place])
            while monotonic() < deadline:
                for message in consumer.consume(1000, 0.1):
                    error = message.error()
                    if error is not None:
                        assert error.code() == KafkaError._PARTITION_EOF, error
                        if (message.offset() or 0) >= end:
                            return topic
                        continue
                    if message.value() is not None:
                        key = (message.key() or b"").decode()
                        event = json.loads(message.value() or b"")
                        _take(topic, key, event, newest, places)
            raise AssertionError(f"{name} does not come to its end, {end}")
        finally:
            consumer.close()

    def latest(self, table: str, key: int) -> str | None:
        """Return the name that consumers know of the row with KEY."""
        rows = self.topic(table).rows.values()
        return next((row["NAME"] for row in rows if row["ID"] == key), None)

    def check(self, *tables: str) -> dict[str, Topic]:
        """Compare what consumers have with the database at rest, and return the topics.

        tables: those of which all rows were sent, by default all that have a key.
        """
        topics = self.topics()
        wanted = self.tables()
        for table in tables or ("ITEM", "PAIR"):
            columns = ("ID", "NAME") if table == "ITEM" else ("A", "B", "C")
            rows = topics[table].rows.values()
            found = Counter(_shown({name: row[name] for name in columns}) for row in rows)
            stale, lost = found - wanted[table], wanted[table] - found
            assert not (stale or lost), f"{table}: {_few(stale)} for {_few(lost)}"
        for table, topic in topics.items():
            assert topic.backward == 0, f"{table}: {topic.backward} rows behind newer events"
        return topics

    def end(self) -> None:
        """End what runs."""
        self.rest()
        if self.shipper is not None:
            self.kill()
        self.capture.end_clients()


def _few(rows: Counter[str]) -> str:
    return f"{rows.total()} rows, {list(rows)[:3]}"


def _shown(row: dict[str, Any]) -> str:
    return json.dumps(row)


def _take(
    topic: Topic,
    key: str,
    event: dict[str, Any],
    newest: dict[str, int],
    places: set[tuple[str, int]],
) -> None:
    source, after, before = event["source"], event["after"], event["before"]
    topic.ops[event["op"]] += 1
    topic.marks[source["snapshot"]] += 1
    place = (source["journal"], source["pos"], event["op"])
    topic.twice += place in places
    places.add(place)
    if event["op"] == "r":
        topic.reads.append(place[:2])
    if not key:
        if after is not None:
            topic.bag[_shown(after)] += 1
        if before is not None:
            topic.bag[_shown(before)] -= 1
        return
    if event["op"] == "r":
        topic.backward += source["commitSeq"] < newest.get(key, 0)
    newest[key] = max(newest.get(key, 0), source["commitSeq"])
    if after is None:
        topic.rows.pop(key, None)
    else:
        topic.rows[key] = after
