"""Cost of an initial snapshot, and of an incremental one for the changes beside it.

A database of the embedded Firebird 5, under Classic, and a broker. Each snapshot is one process
``firebird-cdc ship --once`` that takes an initial one of a table of ten columns and its reader
process, from the start to the last acknowledgement, without schemas. CPU is user and system time of
both with all their threads, as the kernel counts it; the engine is in the reader. What the same
takes for a table of one row is measured apart, told, and taken off.

What it is compared with reads the same rows in the same run through firebird-driver's own cursor,
by ``fetchmany``, builds each event as a struct and converts that to JSON, as Debezium does, and
produces the same messages with the same client library and settings.

    --quick     done in under 50 s: fewer rows, and no table of ten million
    --tiny      so few rows that the start is not taken off: tells whether it works, and no more

The last line is one JSON object:
    rows_per_s_per_core   rows per second of CPU; cpu_us_per_row is the reverse, and rows_per_s by
                          the clock
    vs_jdbc               rows_per_s_per_core relative to what it is compared with, of which
                          jdbc_cpu_us_per_row tells the cost
    peak_memory_mib       the most resident memory of any of our processes, also with rows that
                          have BLOBs of 1 MiB; in the full run also with ten million rows
    stream_latency_ms_p50, _p99
                          from the client's return of commit to a consumer, at 200 commits/s, while
                          an incremental snapshot of another table is taken (see _latency.py);
                          ..._without: before that, in the same run
    incremental_rows_per_s   rows that it sent meanwhile
    commits_vs_without    rate of single-row commits on four connections beside an incremental
                          snapshot, relative to that without: median of rounds in turn
    start_cpu_s           what was taken off
    speedup_2             rows that two reader processes read and render in a time, relative to one,
                          in turn, and nothing is sent: median of rounds
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from firebird_cdc.config import load_config
from firebird_cdc.config.producer import max_message_bytes
from firebird_cdc.demo.engine import EmbeddedRoot
from firebird_cdc.demo.kafka import KafkaBroker, fetch_kafka
from firebird_cdc.demo.paths import cache_directory
from firebird_cdc.demo.processes import Stack, await_condition
from firebird_cdc.journal.events.converters import dumps
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.events.source import SourceFacts, at_position, source_of_table
from firebird_cdc.journal.events.topic_encoding import REPLACE, topic_of
from firebird_cdc.journal.shipper.kafka.client import producer_settings
from firebird_cdc.journal.shipper.requests import await_answer, write_request
from firebird_cdc.journal.shipper.snapshots.ahead import ReadAhead
from firebird_cdc.journal.shipper.snapshots.readers import Readers
from firebird_cdc.journal.shipper.snapshots.state import (
    SNAPSHOTS,
    Kind,
    Snapshot,
    StateFolder,
    Status,
    TableProgress,
)
from firebird_cdc.journal.snapshot.attachment import DatabaseConnection
from firebird_cdc.journal.snapshot.worker import Setup

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))  # which `make` keeps Python from doing
from _client import compile_client  # noqa: E402
from _latency import Pipeline, ask  # noqa: E402
from ship import PLAIN, Cost, best, copied, end_of_topic, run_measured, say  # noqa: E402

LARGE, ONE, LOBS, GIANT = "ORDERS", "ONE", "LOBS", "GIANT"
RATE = 200  # commits a second
CONNECTIONS, WARM = 4, 20
LOB_BYTES, LOB_PIECE = 1024 * 1024, 32764  # the engine has no longer text
MESSAGE_BYTES = 4 * LOB_BYTES
AT_ONCE = 1_000_000  # rows of a transaction that fills a table
FETCHED_AT_ONCE = 10_240  # Debezium's default
PATIENCE_S = 120.0
_EPOCH, _US = datetime(1970, 1, 1), timedelta(microseconds=1)
_EPOCH_DAY = _EPOCH.toordinal()

_COLUMNS = (
    "(ID BIGINT NOT NULL PRIMARY KEY, CUSTOMER INTEGER NOT NULL, KIND SMALLINT,"
    " AMOUNT NUMERIC(12,2), NAME VARCHAR(40) CHARACTER SET UTF8,"
    " CITY VARCHAR(40) CHARACTER SET UTF8, NOTE VARCHAR(100) CHARACTER SET UTF8,"
    " ORDERED TIMESTAMP, DELIVERED DATE, PAID BOOLEAN)"
)
_FILL = (
    "EXECUTE BLOCK AS DECLARE I BIGINT = {first}; BEGIN WHILE (I < {end}) DO BEGIN"
    " INSERT INTO {table} VALUES (:I, MOD(:I, 5000), MOD(:I, 7), :I * 1.99,"
    " 'customer number ' || :I, DECODE(MOD(:I, 5), 0, 'Berlin', 1, _UTF8'São Paulo',"
    " 2, 'Novosibirsk', 3, _UTF8'Санкт-Петербург', 'Utrecht'),"
    " IIF(MOD(:I, 4) = 0, NULL, 'what was said about order ' || :I),"
    " DATEADD(MOD(:I, 50000000) SECOND TO TIMESTAMP '2024-01-01 10:00:00'),"
    " DATEADD(MOD(:I, 700) DAY TO DATE '2025-01-01'), MOD(:I, 3) = 0);"
    " I = I + 1; END END"
)
_FILL_LOBS = (
    "EXECUTE BLOCK AS DECLARE I BIGINT = 0; DECLARE J INTEGER; DECLARE B BLOB SUB_TYPE BINARY;"
    " BEGIN WHILE (I < {rows}) DO BEGIN B = NULL; J = 0; WHILE (J < {pieces}) DO BEGIN"
    " B = BLOB_APPEND(B, CAST(LPAD('', {piece}, 'content') AS VARCHAR({piece})"
    " CHARACTER SET OCTETS)); J = J + 1; END"
    " INSERT INTO LOBS VALUES (:I, :B); I = I + 1; END END"
)


class Sizes(NamedTuple):
    """Amounts that are read in each part, and seconds for which latency is measured."""

    rounds: int  # of which the best one counts
    rows: int
    lobs: int
    giant: int  # rows, 0: none
    latency_s: float  # beside a snapshot, and before that without one
    warm_s: float
    beside_rows: int  # of the table of which the incremental snapshot is taken
    commit_rounds: int
    commits: int  # of each connection


TINY = Sizes(1, 500, 1, 0, 3, 1, 100_000, 1, 50)
QUICK = Sizes(2, 60_000, 8, 0, 3, 5, 250_000, 3, 250)
FULL = Sizes(3, 1_000_000, 300, 10_000_000, 30, 6, 3_000_000, 9, 1000)


def fill(client: subprocess.Popen[str], table: str, rows: int) -> None:
    """Have CLIENT make TABLE, with ROWS."""
    ask(client, f"sql CREATE TABLE {table} {_COLUMNS}")
    for first in range(0, rows, AT_ONCE):
        end = min(first + AT_ONCE, rows)
        ask(client, "sql " + _FILL.format(table=table, first=first, end=end))


# Initial snapshots


class Bench:
    """A database, and shippers that take initial snapshots of one of its tables."""

    def __init__(self, directory: Path, bootstrap: str, stack: Stack, *, less_start: bool) -> None:
        self.peak_memory_mib = 0.0
        self.start = Cost(0, 0, 0)
        self._database = directory / "bench.fdb"
        self._directory = directory
        self._bootstrap = bootstrap
        self._stack = stack
        self._root = EmbeddedRoot(directory / "engine")
        self._made = directory / "made"
        self._runs = 0
        self._less_start = less_start

    def _environment(self) -> dict[str, str]:
        return self._stack.environment(self._root.environment()) | {"PYTHONSAFEPATH": "1"}

    def create(self, sizes: Sizes) -> None:
        """Make the database, and a journal of one commit, by which a shipper gets to know it."""
        config = self._config(ONE, self._made)
        command = _command("install", "--server", self._root.path, "--config", config)
        self._stack.run("install", command, self._environment())
        program = compile_client(self._directory / "engine_client")
        with subprocess.Popen(
            [program, self._root.client_library, self._database, "masterkey"],
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as client:
            ask(client, "create 0")
            ask(client, "attach 1")
            for table, rows in ((LARGE, sizes.rows), (ONE, 1), (GIANT, sizes.giant)):
                fill(client, table, rows)
            ask(client, f"sql CREATE TABLE {LOBS} (ID BIGINT NOT NULL PRIMARY KEY, CONTENT BLOB)")
            pieces = LOB_BYTES // LOB_PIECE
            lobs = _FILL_LOBS.format(rows=sizes.lobs, pieces=pieces, piece=LOB_PIECE)
            ask(client, f"sql {lobs}")
            ask(client, "sql ALTER DATABASE INCLUDE ALL TO PUBLICATION")
            ask(client, "sql ALTER DATABASE ENABLE PUBLICATION")
            ask(client, "first")
            assert client.stdin is not None
            client.stdin.close()

    def _config(self, table: str, journals: Path) -> Path:
        """Write the configuration of a shipper that takes a snapshot of TABLE."""
        every = {
            "connector.name": "bench",
            "connector.journal.directory": str(journals),
            "connector.shipper": "external",
            "kafka.producer.bootstrap.servers": self._bootstrap,
            "kafka.producer.max.request.size": str(MESSAGE_BYTES),
            "kafka.topic.prefix": f"run{self._runs}",
            "snapshot.mode": "initial",
            "snapshot.include.collection.list": f"'.*[.]{table}'",
            **PLAIN,
        }
        path = self._directory / f"run{self._runs}.yaml"
        path.write_text("".join(f"{key}: {value}\n" for key, value in every.items()))
        return path

    def take(self, table: str, rows: int) -> Cost:
        """Take a snapshot of TABLE, which has ROWS; what it took beyond a start, or in all."""
        config, topic = self._begin(table)
        logging = self._directory / "logging.yaml"
        logging.write_text(f"level: warning\nfile: {self._directory / 'ship.log'}\n")
        words = _command("ship", "--once", "--config", config, "--logging", logging)
        cost = run_measured(*map(str, words), environment=self._environment())
        if (found := end_of_topic(self._bootstrap, topic)) != rows:
            raise SystemExit(f"{found} messages for {rows} rows of {table}")
        self.peak_memory_mib = max(self.peak_memory_mib, cost.memory_mib)
        if not self._less_start:
            return cost
        start = self.start
        return Cost(cost.seconds - start.seconds, cost.cpu_s - start.cpu_s, cost.memory_mib)

    def measure_start(self, rounds: int) -> None:
        """Measure what a snapshot of one row takes."""
        self.start = best([self.take(ONE, 1) for _ in range(rounds)])

    def read_by(self, readers: int, rows: int) -> float:
        """Read LARGE by READERS processes, as `read_in_window` does; return the seconds."""
        config, _ = self._begin(LARGE)
        found, seconds = json.loads(self._told(config, "--readers", readers))
        if found != rows:
            raise SystemExit(f"{readers} readers have read {found} rows of {rows}")
        return float(seconds)

    def _told(self, config: Path, *words: Any) -> str:
        """Return what this program says that reads by CONFIG, in the engine's environment."""
        named = [__file__, "--read", config, self._database, self._root.client_library, *words]
        argv = [sys.executable, "-P", *map(str, named)]
        output = subprocess.run(
            argv, env=self._environment(), stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        return output.splitlines()[-1]

    def take_as_debezium(self, rows: int) -> Cost:
        """Read LARGE as `read_as_debezium` does."""
        config, topic = self._begin(LARGE)
        output = self._told(config)
        if (found := end_of_topic(self._bootstrap, topic)) != rows:
            raise SystemExit(f"{found} messages for {rows} rows read as by Debezium")
        seconds, cpu_s = json.loads(output)
        return Cost(seconds, cpu_s, 0)

    def compare(self) -> None:
        """Fail unless the last two snapshots of the large table have the same rows."""
        ours, theirs = (self._first_row(self._topic(run)) for run in (self._runs - 1, self._runs))
        if ours != theirs:
            raise SystemExit(f"the rows differ: {ours} and {theirs}")

    def _begin(self, table: str) -> tuple[Path, str]:
        """Return the configuration of the next run, and the topic, which is made."""
        self._runs += 1
        journals = copied(self._made, self._directory / "journals")
        topic = self._topic(self._runs, table)
        admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})
        settings = {"max.message.bytes": str(MESSAGE_BYTES)}
        for future in admin.create_topics([NewTopic(topic, 1, 1, config=settings)]).values():
            future.result()
        return self._config(table, journals), topic

    def _topic(self, run: int, table: str = LARGE) -> str:
        return topic_of(REPLACE, f"run{run}", str(self._database), table)

    def _first_row(self, topic: str) -> list[Any]:
        settings = {"bootstrap.servers": self._bootstrap, "group.id": "bench"}
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(topic, 0, 0)])
        try:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            event = json.loads(message.value() or b"")
            return [message.key(), list(event), list(event["source"]), event["op"], event["after"]]
        finally:
            consumer.close()


def _command(*words: str | Path) -> list[str | Path]:
    return [sys.executable, "-P", "-m", "firebird_cdc", *words]


def read_as_debezium(config_path: Path, database: str, library: str) -> None:
    """Send the rows of LARGE by the driver's values and structs: print seconds and CPU seconds."""
    from firebird.driver import connect, driver_config

    config = load_config(config_path)
    renderer = Renderer(config, max_message_bytes(config.producer))
    headers = renderer.writer.headers
    driver_config.fb_client_library.value = library
    connection = connect(database, user="SYSDBA", charset="UTF8")
    producer = Producer(producer_settings(config))
    topic = topic_of(REPLACE, config.topic_prefix, database, LARGE)
    producer.list_topics(topic, timeout=30)
    begun, cpu = time.monotonic(), time.process_time()
    answered = sent = 0

    def take_answer(error: Any, _: Any) -> None:
        nonlocal answered
        if error is not None:
            raise SystemExit(str(error))
        answered += 1

    taken_us = time.time_ns() // 1000
    facts = SourceFacts(bytes(16), (taken_us // 1000, taken_us, taken_us * 1000, 1, 1, 1))
    source = source_of_table(config.topic_prefix, database, LARGE, facts, "true")
    cursor = connection.cursor()
    cursor.execute(f"SELECT * FROM {LARGE}")
    names = [each[0] for each in cursor.description]
    while rows := cursor.fetchmany(FETCHED_AT_ONCE):
        for row in rows:
            sent += 1
            after = {name: convert(value) for name, value in zip(names, row, strict=True)}
            now_us = time.time_ns() // 1000
            event = {
                "before": None,
                "after": after,
                "source": at_position(source, sent),
                "op": "r",
                "ts_ms": now_us // 1000,
                "ts_us": now_us,
                "ts_ns": now_us * 1000,
                "transaction": None,
            }
            key = dumps({"ID": after["ID"]})
            while True:
                try:
                    producer.produce(
                        topic, dumps(event), key, headers=headers, on_delivery=take_answer
                    )
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)
    if producer.flush(60) or answered != sent:
        raise SystemExit("not all messages were acknowledged")
    print(json.dumps([time.monotonic() - begun, time.process_time() - cpu]))
    connection.close()


def read_in_window(config_path: Path, database: str, library: str, count: int) -> None:
    """Read LARGE by COUNT reader processes in one window, and send nothing: print rows and
    seconds."""
    config = load_config(config_path)
    how = DatabaseConnection(database, "SYSDBA", client_library=library)
    awake = Event()
    readers = Readers(Setup(config, how, database, []), awake.set, count)

    def taken() -> tuple[int, dict[str, Any]]:
        while (found := readers.take()) is None:
            awake.wait(1)
            awake.clear()
        if "failed" in found[1]:
            raise SystemExit(found[1]["failed"])
        return found

    readers.ask_all({"do": "attach"})
    while readers.are_awaited:
        taken()
    readers.ask(0, {"do": "open", "barriers": {}, "wants_tables": False, "patience_s": 0})
    _, opened = taken()
    readers.ask_all({**opened, "do": "join"}, first=1)
    while readers.are_awaited:
        taken()
    table = TableProgress(LARGE)
    snapshot = Snapshot("bench", Kind.BLOCKING, "bench", tables=[table])
    facts = {"cut": (1, 1), "uuid": uuid4().bytes, "is_incremental": False, "numbers": None}
    ahead = ReadAhead(readers, snapshot, facts)
    begun = time.monotonic()
    while snapshot.open_tables:
        answer = ahead.next(config.snapshots.fetch_size, table.rows)
        if answer is None:
            ahead.take(*taken())
            continue
        table.rows += answer["rows"]
        table.after = answer["last"].hex()
        if answer["is_end"]:
            table.status = Status.COMPLETED
    print(json.dumps([table.rows, time.monotonic() - begun]))
    readers.close()


def convert(value: Any) -> Any:
    """Return VALUE of the driver's as events have it."""
    if isinstance(value, Decimal):
        unscaled = int(value.scaleb(2))
        length = (unscaled + (unscaled < 0)).bit_length() // 8 + 1
        return base64.b64encode(unscaled.to_bytes(length, signed=True)).decode()
    if isinstance(value, datetime):
        return (value - _EPOCH) // _US
    if isinstance(value, date):
        return value.toordinal() - _EPOCH_DAY
    return value


def measure_cost(bench: Bench, sizes: Sizes) -> dict[str, Any]:
    """Rows per core, beside what Debezium does, and memory."""
    bench.measure_start(sizes.rounds)
    start = bench.start
    say(f"start: {start.cpu_s:.2f} s of CPU, {start.memory_mib:.0f} MiB")
    ours, theirs = [], []
    for _ in range(sizes.rounds):
        ours.append(bench.take(LARGE, sizes.rows))
        theirs.append(bench.take_as_debezium(sizes.rows))
        bench.compare()
    figures: dict[str, Any] = {"start_cpu_s": round(start.cpu_s, 3), "rows": sizes.rows}
    cpu_us, jdbc_us = (best(each).cpu_s / sizes.rows * 1e6 for each in (ours, theirs))
    figures["rows_per_s_per_core"] = round(1e6 / cpu_us)
    figures["cpu_us_per_row"] = round(cpu_us, 2)
    figures["rows_per_s"] = round(sizes.rows / best(ours).seconds)
    figures["jdbc_cpu_us_per_row"] = round(jdbc_us, 2)
    figures["vs_jdbc"] = round(jdbc_us / cpu_us, 2)
    say(
        f"rows: {cpu_us:.2f} us of CPU each, {figures['rows_per_s']:,} rows/s; the driver's cursor"
        f" and structs: {jdbc_us:.2f} us"
    )
    ratios = []
    for number in range(sizes.rounds):
        turn = (1, 2) if number % 2 else (2, 1)
        seconds = {count: bench.read_by(count, sizes.rows) for count in turn}
        ratios.append(seconds[1] / seconds[2])
        rates = {count: f"{sizes.rows / each:,.0f}" for count, each in seconds.items()}
        say(f"rows/s that one reader reads and renders: {rates[1]}; two: {rates[2]}")
    figures["speedup_2"] = round(statistics.median(ratios), 2)
    for table, rows in ((LOBS, sizes.lobs), (GIANT, sizes.giant)):
        if rows:
            cost = bench.take(table, rows)
            say(f"{table}: {rows} rows in {cost.seconds:.1f} s, {cost.memory_mib:.0f} MiB")
    figures["peak_memory_mib"] = round(bench.peak_memory_mib, 1)
    return figures


# Incremental snapshots, beside commits


class Beside(Pipeline):
    """A pipeline whose database has a large table, too, of which an incremental snapshot is taken
    while commits are made."""

    def __init__(self, directory: Path, stack: Stack, bootstrap: str, sizes: Sizes) -> None:
        super().__init__(directory, stack, bootstrap, False, None, mode="Classic")
        self._sizes = sizes
        self._journals = self.directory / "journals"
        self._commits_made = 0
        self._ratios: list[float] = []

    def measure(self) -> dict[str, Any]:
        """Return the figures."""
        found = self.run(self._sizes.latency_s, RATE, self._sizes.warm_s)
        return {
            **{name: value for name, value in found.items() if name != "rate"},
            "commits_vs_without": round(statistics.median(self._ratios), 3),
        }

    def load(self, client: subprocess.Popen[str], rate: int, warm: int, timed: int) -> list[int]:
        """Commit at first without a snapshot, then beside one."""
        # Else commits would wait until these rows, too, are shipped as changes.
        ask(client, "sql ALTER DATABASE EXCLUDE ALL FROM PUBLICATION")
        fill(client, LARGE, self._sizes.beside_rows)
        ask(client, "sql ALTER DATABASE INCLUDE ALL TO PUBLICATION")
        without = self.pace(client, rate, warm + timed)
        self._begin_snapshot()
        return without + self.pace(client, rate, timed)

    def figures(self, returns: Sequence[int], warm: int) -> dict[str, float]:
        """Return those of the commits before the snapshot and beside it."""
        self._end_snapshot()
        self._commits_made = len(returns)
        snapshot = self._snapshot
        end = len(returns)
        first = (end + warm) // 2  # of those beside it
        if snapshot.status is not Status.STOPPED:
            end = bisect(returns, snapshot.ended_us * 1000 - time.time_ns() + time.monotonic_ns())
        without, beside = (
            self.figures_of(returns, part) for part in (slice(warm, first), slice(first, end))
        )
        seconds = (snapshot.ended_us - snapshot.started_us) / 1e6
        say(f"{snapshot.rows} rows in {snapshot.windows} windows, {seconds:.1f} s")
        say(f"of {end - first} commits beside it: {beside}; before: {without}")
        return {
            "stream_latency_ms_p50": beside["_p50"],
            "stream_latency_ms_p99": beside["_p99"],
            "stream_latency_ms_p50_without": without["_p50"],
            "stream_latency_ms_p99_without": without["_p99"],
            "incremental_rows_per_s": round(snapshot.rows / seconds),
        }

    def go_on(self, client: subprocess.Popen[str]) -> None:
        """Compare rates of commits."""
        ask(client, f"attach {CONNECTIONS}")
        for number in range(self._sizes.commit_rounds):
            rates = {}
            for is_beside in ((False, True), (True, False))[number % 2]:
                rates[is_beside] = self._commits(client, is_beside=is_beside)
            self._ratios.append(rates[True] / rates[False])
            say(f"commits/s: {rates[False]:,.0f}, beside a snapshot {rates[True]:,.0f}")

    def _commits(self, client: subprocess.Popen[str], *, is_beside: bool) -> float:
        """Return the rate of commits a second."""
        if is_beside:
            self._begin_snapshot()
        commits = self._sizes.commits
        seconds = ask(client, f"commits {CONNECTIONS} {commits} {WARM}")
        self._commits_made += CONNECTIONS * (commits + WARM)
        if is_beside:
            if self._snapshot.ended_us:
                raise SystemExit("the snapshot ended before the commits beside it")
            self._end_snapshot()
        self._await_shipped()
        return CONNECTIONS * commits / seconds

    def _await_shipped(self) -> None:
        """Wait until all commits are in Kafka: they must not burden the next round."""

        def is_shipped() -> bool:
            return end_of_topic(self.bootstrap, self.topic) == self._commits_made

        await_condition("all commits to be shipped", is_shipped, PATIENCE_S, 0.1)

    def _begin_snapshot(self) -> None:
        data = {"type": "incremental", "data-collections": [f".*[.]{LARGE}"]}
        self._ask("execute-snapshot", data)
        await_condition("the snapshot to begin", lambda: self._snapshot.rows, PATIENCE_S, 0.01)

    def _end_snapshot(self) -> None:
        if not self._snapshot.ended_us:
            self._ask("stop-snapshot", {"type": "incremental"})
            await_condition("the snapshot to end", lambda: self._snapshot.ended_us, PATIENCE_S)

    def _ask(self, kind: str, data: dict[str, Any]) -> None:
        """Do what the command ``snapshot`` does, without the start of a process beside the load."""
        content = {"id": str(uuid4()), "type": kind, "data": json.dumps(data), "database": None}
        answer = await_answer(write_request(self._journals, content, SNAPSHOTS), PATIENCE_S)
        if answer is None or not answer["is_taken"]:
            raise SystemExit(f"the shipper does not follow {kind}: {answer}")

    @property
    def _snapshot(self) -> Snapshot:
        """The last snapshot that was asked for."""
        state = next(iter(StateFolder(self._journals).read()))
        return [*state.past, *state.waiting][-1]


def main() -> None:
    """Run the parts and print the figures."""
    parser = argparse.ArgumentParser(description="Take snapshots.")
    parser.add_argument("--quick", action="store_true", help="done in under 50 s")
    parser.add_argument("--tiny", action="store_true", help="tells whether it works, and no more")
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--readers", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        config, database, library = arguments.read
        if arguments.readers:
            read_in_window(Path(config), database, library, arguments.readers)
        else:
            read_as_debezium(Path(config), database, library)
        return
    sizes = TINY if arguments.tiny else QUICK if arguments.quick else FULL
    run = HERE.parent / ".run"
    run.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-snapshot-", dir=run))
    try:
        with (
            Stack(directory) as stack,
            KafkaBroker(directory / "kafka", fetch_kafka(cache_directory()), stack=stack) as broker,
        ):
            bench = Bench(directory, broker.bootstrap, stack, less_start=not arguments.tiny)
            bench.create(sizes)
            figures = measure_cost(bench, sizes)
            beside = directory / "beside"
            beside.mkdir()
            figures |= Beside(beside, stack, broker.bootstrap, sizes).measure()
    finally:
        shutil.rmtree(directory)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
