"""Cost of taking a backlog of journals to Kafka, and time until a commit is there.

A broker runs beside. The backlog is written by the product's own ``JournalWriter``, without an
engine; it is on disk before a run begins. Each run is one process ``firebird-cdc ship --once``
with our default options, from its start until the last journal is acknowledged and deleted. CPU
is user and system time of that process with all its threads, as the kernel counts it. What a run
for one journal of one row takes (Python's start, imports, connecting, asking where Kafka stands)
is measured apart, told, and taken off: a shipper starts once. The raw producer is the same client
library with the same settings for it and messages of the same size, in the same run:
``produce_batch``, no headers, and no questions about answers.

Rows are inserts into a table of eight columns; messages are JSON, keys included.

    --quick     done in under 50 s: fewer events, and no journal of ten million rows
    --tiny      so few events that the start is not taken off: tells whether it works, and no more
    --against COMMIT
                compare the shipper of this clone with that of another commit of the project instead
                (_against.py), which is checked out and set up once, in .cache/commits: both ship
                the same rows in turn, in five pairs (quick and tiny: two), each from journals that
                its own commit has written. It ends with 1 if an event takes more than 1.03 of that
                one's CPU time, or their rate is less than 0.95 of that one's.

The last line is one JSON object:
    events_per_s, cpu_us_per_event          from few large transactions, without schemas
    events_per_s_schema, ..._schema         the same with schemas, which is the default
    events_per_s_single_row, ..._single_row from transactions of one row each, which share
                                            journals of 16 MiB, without schemas
    events_per_s_transactional, ...         as the first, with a transactional id
    raw_events_per_s, raw_cpu_us_per_event  the raw producer, messages as the first
    vs_raw_producer       events_per_s relative to it; vs_raw_producer_schema alike
    latency_ms_p50, _p99  from the client's return of commit to a consumer, at 500 commits/s
                          through the engine (see _latency.py)
    latency_ms_p50_transactional, ...       the same with a transactional id, read_committed
    peak_memory_mib       the most resident memory of all shippers of this run
    start_cpu_s           what was taken off
with --against, for N = large (few large transactions), schema, transactional, single (of one row):
    cpu_ratio_N, rate_ratio_N   of an event's CPU time and of events a second, relative to the other
                          commit's: medians of the pairs' ratios; ..._quartiles: half of them lie
                          between these
    new_..., old_...      medians of this clone and of the other commit
    against, pairs, met   the other commit's hash, how many pairs, and whether no limit was missed
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from confluent_kafka import Consumer, Producer, TopicPartition

from firebird_cdc.config import load_config
from firebird_cdc.config.producer import max_message_bytes
from firebird_cdc.demo.kafka import KafkaBroker, fetch_kafka
from firebird_cdc.demo.paths import cache_directory
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.events.topic_encoding import REPLACE, topic_of
from firebird_cdc.journal.format import (
    Column,
    JournalReader,
    JournalWriter,
    RowChange,
    SharedJournalWriter,
    Storage,
    TransactionWriter,
    Value,
)
from firebird_cdc.journal.shipper.kafka.client import producer_settings

HERE = Path(__file__).resolve().parent
CLONE = HERE.parent
TABLE = "ORDERS"
DATABASE = "/srv/firebird/bench.fdb"
COMMIT_US = 1_772_442_848_250_000
PLAIN = {"key.converter.schemas.enable": "false", "value.converter.schemas.enable": "false"}
IDENTITY = "kafka.producer.transactional.id"
SHARED_BYTES = 16 * 1024 * 1024
SYNCED_TOGETHER = 3  # what is synced later lies in another block of the journal
# The kernel counts the memory of whoever started a process among that process's own: a small
# process starts them.
_WRITE = """\
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
import ship
folder, journals, rows = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
if sys.argv[5] == "shared" and hasattr(ship, "write_shared_journals"):
    ship.write_shared_journals(folder, journals)
else:
    ship.write_journals(folder, journals, rows)
"""
LAUNCHER = """\
import json, os, sys, time
begun = time.monotonic()
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(child, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), time.monotonic() - begun,
                  usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]))
"""


class Cost(NamedTuple):
    """Resources that a process took: wall and CPU seconds, peak resident MiB."""

    seconds: float
    cpu_s: float
    memory_mib: float


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def run_measured(*command: str, environment: Mapping[str, str] | None = None) -> Cost:
    """Run COMMAND to its end, with what it starts and waits for; fails if it does."""
    argv = [sys.executable, "-S", "-c", LAUNCHER, *command]
    output = subprocess.run(
        argv, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    code, seconds, cpu_s, memory_mib = json.loads(output.splitlines()[-1])
    if code:
        raise SystemExit(f"{' '.join(command)} ended with exit code {code}:\n{output}")
    return Cost(seconds, cpu_s, memory_mib)


def best(costs: list[Cost]) -> Cost:
    """The least of each: others may use the machine, nothing makes work cheaper than it is."""
    return Cost(*(min(values) for values in zip(*costs, strict=True)))


# The backlog


def _column(name: str, storage: Storage, **more: int) -> Column:
    return Column(
        name=name,
        sql_type=0,
        sub_type=more.get("sub_type", 0),
        scale=more.get("scale", 0),
        length=8,
        charset_id=4,
        char_length=40,
        precision=more.get("precision", 0),
        nullable=name != "ID",
        identity=False,
        key_position=int(name == "ID"),
        storage=storage,
    )


COLUMNS = [
    _column("ID", Storage.BIGINT),
    _column("CUSTOMER", Storage.INTEGER),
    _column("AMOUNT", Storage.BIGINT, scale=-2, sub_type=1, precision=12),
    _column("NAME", Storage.TEXT),
    _column("CITY", Storage.TEXT),
    _column("ORDERED", Storage.TIMESTAMP),
    _column("DELIVERED", Storage.DATE),
    _column("PAID", Storage.BOOLEAN),
]
CITIES = ("Berlin", "São Paulo", "Novosibirsk", "Санкт-Петербург", "Utrecht")


def _row(number: int) -> list[Value]:
    return [
        number,
        number % 5000,
        number * 199,
        f"customer number {number}",
        CITIES[number % len(CITIES)],
        52_000_000_000_000 + number * 7919,
        60_000 + number % 1000,
        None if number % 4 == 0 else number % 3 == 0,
    ]


@contextmanager
def syncing_once() -> Iterator[None]:
    """Sync what is written meanwhile to disk once at the end, and not after each journal."""
    with mock.patch("os.fsync"):
        yield
    os.sync()


def write_journals(folder: Path, journals: int, rows: int) -> None:
    """Fill FOLDER with JOURNALS committed ones of ROWS inserts each."""
    folder.mkdir()
    numbers = count(1)
    with syncing_once():
        for sequence in range(1, journals + 1):
            identity = uuid.uuid4()
            with JournalWriter(
                folder / f"{identity}.log",
                uuid=identity,
                transaction=sequence,
                database=DATABASE,
                user="SYSDBA",
            ) as writer:
                table = writer.table(TABLE, COLUMNS)
                for number in islice(numbers, rows):
                    writer.insert(table, _row(number))
                writer.seal()
                writer.commit(sequence, COMMIT_US)
                writer.stamp(sequence)


def write_shared_journals(folder: Path, transactions: int) -> None:
    """Fill FOLDER with TRANSACTIONS of one insert each, in shared journals that are closed."""
    folder.mkdir()
    numbers = iter(range(1, transactions + 1))
    left = transactions
    with syncing_once():
        while left:
            path = folder / f"{uuid.uuid4()}.log"
            with SharedJournalWriter.create(path, database=DATABASE) as journal:
                for number in numbers:
                    left -= 1
                    if number % SYNCED_TOGETHER == 0:
                        journal.begin_block()
                    written = TransactionWriter(journal.header, number, "SYSDBA")
                    written.insert(written.table(TABLE, COLUMNS), _row(number))
                    written.seal()
                    at = journal.append(written)
                    journal.commit(written, number, ticket=number, commit_us=COMMIT_US)
                    if at > SHARED_BYTES:
                        break
                journal.close()


# Runs


class Bench:
    """The broker, and shippers that send to it."""

    def __init__(
        self,
        directory: Path,
        bootstrap: str,
        *,
        less_start: bool,
        clone: Path = CLONE,
        name: str = "run",
    ) -> None:
        """``clone``: whose shipper it is; ``name``: begins the prefixes of topics."""
        self._clone = clone
        own = clone / ".venv" / "bin" / "python"
        self._python = sys.executable if clone == CLONE else str(own)
        self._knows_snapshots = "`snapshot.mode`" in (clone / "docs/reference.md").read_text()
        self._name = name
        self._directory = directory
        self._bootstrap = bootstrap
        self._runs = 0
        self._less_start = less_start
        self.peak_memory_mib = 0.0
        self._starts: dict[bool, Cost] = {}

    def config(self, folder: Path, options: dict[str, str], prefix: str) -> Path:
        """Write the configuration for FOLDER."""
        every = {
            "connector.name": "bench",
            "connector.journal.directory": str(folder),
            "kafka.producer.bootstrap.servers": self._bootstrap,
            "kafka.topic.prefix": prefix,
            **({"snapshot.mode": "never"} if self._knows_snapshots else {}),
            **options,
        }
        path = self._directory / f"{prefix}.yaml"
        path.write_text("".join(f"{key}: {value}\n" for key, value in every.items()))
        return path

    def write(self, folder: Path, journals: int, rows: int, *, shared: bool = False) -> None:
        """Have the clone's own code write JOURNALS, as another commit may read others only; SHARED:
        transactions that share journals, if it can."""
        words = [str(self._clone / "benchmarks"), str(folder), str(journals), str(rows)]
        argv = [self._python, "-P", "-c", _WRITE, *words, "shared" if shared else "own"]
        subprocess.run(argv, check=True)

    def ship(self, folder: Path, options: dict[str, str], events: int) -> Cost:
        """Ship the journals of FOLDER; what it took beyond a start, or in all."""
        cost, start = self._ship(folder, options, events), self._starts[IDENTITY in options]
        self.peak_memory_mib = max(self.peak_memory_mib, cost.memory_mib)
        if not self._less_start:
            return cost
        return Cost(cost.seconds - start.seconds, cost.cpu_s - start.cpu_s, cost.memory_mib)

    def _ship(self, folder: Path, options: dict[str, str], events: int) -> Cost:
        self._runs += 1
        prefix = f"{self._name}{self._runs}"
        config = self.config(folder, options, prefix)
        logging = self._directory / "logging.yaml"
        logging.write_text(f"level: warning\nfile: {self._directory / 'ship.log'}\n")
        words = ["ship", "--once", "--config", str(config), "--logging", str(logging)]
        cost = run_measured(self._python, "-P", "-m", "firebird_cdc", *words)
        left = [entry.name for entry in os.scandir(folder) if entry.name.endswith(".log")]
        shipped = end_of_topic(self._bootstrap, topic_of(REPLACE, prefix, DATABASE, TABLE))
        marks = 1000 if IDENTITY in options else 0  # each Kafka transaction adds one to the topic
        if left or not events <= shipped <= events + marks:
            raise SystemExit(f"{shipped} messages for {events} events, {len(left)} journals left")
        return cost

    def measure_start(self, options: dict[str, str], runs: int) -> Cost:
        """Measure what a shipper takes that finds one journal of one row."""
        costs = []
        for _ in range(runs):
            folder = self._directory / f"one{self._runs}"
            self.write(folder, 1, 1)
            costs.append(self._ship(folder, options, 1))
        start = self._starts[IDENTITY in options] = best(costs)
        return start

    def raw(self, journals: Path, options: dict[str, str], events: int) -> tuple[Cost, int]:
        """Produce EVENTS messages as those of JOURNALS with the bare client; also their size."""
        self._runs += 1
        config = self.config(journals, options, f"run{self._runs}")
        argv = [sys.executable, str(Path(__file__)), "--raw", str(events), str(config)]
        output = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout
        seconds, cpu_s, size = json.loads(output.splitlines()[-1])
        return Cost(seconds, cpu_s, 0), int(size)


def end_of_topic(bootstrap: str, topic: str) -> int:
    """Return how many messages TOPIC has got."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), 30)[1])
    finally:
        consumer.close()


def produce_raw(config_path: Path, events: int) -> None:
    """The raw producer, in a process of its own: prints seconds, CPU seconds, message size."""
    config = load_config(config_path)
    renderer = Renderer(config, max_message_bytes(config.producer))
    path = next(config.journal_directory.glob("*.log"))
    with JournalReader(path) as reader:
        assert reader.stamp is not None
        journal = renderer.journal(reader.header, reader.stamp, reader.database)
        messages = [
            {"key": message.key, "value": message.value}
            for change in islice(reader.changes(), 5000)
            if isinstance(change, RowChange)
            for message in journal.messages(change)
        ]
    size = sum(len(part or b"") for message in messages for part in message.values())
    producer = Producer(producer_settings(config))
    topic = f"{config.topic_prefix}.raw"
    producer.list_topics(topic, timeout=30)
    begun, cpu = time.monotonic(), _own_cpu()
    sent = 0
    while sent < events:
        batch = messages[: min(len(messages), events - sent)]
        while batch:
            taken = producer.produce_batch(topic, batch)
            batch = batch[taken:]
            producer.poll(0 if not batch else 0.01)
            sent += taken
    if producer.flush(60):
        raise SystemExit("the raw producer's messages were not acknowledged")
    print(json.dumps([time.monotonic() - begun, _own_cpu() - cpu, size // len(messages)]))


def _own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def copied(source: Path, to: Path) -> Path:
    """A copy of the folder SOURCE, on disk."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(source, to)
    os.sync()
    return to


# Figures


class Sizes(NamedTuple):
    """Amounts that are sent in each part, and seconds for which latency is measured."""

    rounds: int  # of which the best one counts
    raw_rounds: int
    journals: int  # large ones
    rows: int  # of each of them
    singles: int
    giant: int  # rows of one journal, 0: none
    latency_s: float
    warm_s: float  # before that


TINY = Sizes(
    rounds=1, raw_rounds=1, journals=2, rows=500, singles=50, giant=500, latency_s=1, warm_s=1
)
QUICK = Sizes(
    rounds=2, raw_rounds=1, journals=2, rows=50_000, singles=60_000, giant=0, latency_s=4, warm_s=3
)
FULL = Sizes(
    rounds=3,
    raw_rounds=3,
    journals=4,
    rows=250_000,
    singles=1_000_000,
    giant=10_000_000,
    latency_s=20,
    warm_s=6,
)


def measure_throughput(bench: Bench, directory: Path, sizes: Sizes) -> dict[str, Any]:
    """Everything but latency."""
    start = bench.measure_start(PLAIN, sizes.rounds)
    bench.measure_start(PLAIN | {IDENTITY: "bench"}, sizes.rounds)
    say(f"start: {start.cpu_s:.2f} s of CPU, {start.memory_mib:.0f} MiB")
    large = directory / "large"
    write_journals(large, sizes.journals, sizes.rows)
    events = sizes.journals * sizes.rows
    figures: dict[str, Any] = {"start_cpu_s": round(start.cpu_s, 3), "events": events}

    def note(suffix: str, cost: Cost, events: int) -> None:
        rate, cpu_us = events / cost.seconds, cost.cpu_s / events * 1e6
        figures[f"events_per_s{suffix}"] = round(rate)
        figures[f"cpu_us_per_event{suffix}"] = round(cpu_us, 2)
        say(
            f"{suffix.strip('_') or 'plain':14} {rate:9,.0f} events/s, {cpu_us:6.2f} us of CPU"
            f" each, {cost.memory_mib:.0f} MiB"
        )

    parts = {"": PLAIN, "_schema": {}, "_transactional": PLAIN | {IDENTITY: "bench"}}
    costs: dict[str, list[Cost]] = {part: [] for part in parts}
    raw: dict[str, list[Cost]] = {part: [] for part in ("", "_schema")}
    message_bytes: dict[str, int] = {}
    for _ in range(sizes.rounds):
        for part, options in parts.items():
            folder = copied(large, directory / "journals")
            costs[part].append(bench.ship(folder, options, events))
    for _ in range(sizes.raw_rounds):
        for part in raw:
            cost, message_bytes[part] = bench.raw(large, parts[part], events)
            raw[part].append(cost)
    for part in parts:
        note(part, best(costs[part]), events)
    for part, seen in raw.items():
        least = best(seen)
        rate, cpu_us = events / least.seconds, least.cpu_s / events * 1e6
        say(f"raw{part:11} {rate:9,.0f} messages/s, {cpu_us:6.2f} us, {message_bytes[part]} bytes")
        figures[f"raw_events_per_s{part}"] = round(rate)
        figures[f"raw_cpu_us_per_event{part}"] = round(cpu_us, 2)
        ours = events / best(costs[part]).seconds
        figures[f"vs_raw_producer{part}"] = round(ours / rate, 3)
        figures[f"message_bytes{part}"] = message_bytes[part]
    shutil.rmtree(large)
    figures |= measure_single_rows(bench, directory, sizes, note)
    if sizes.giant:
        folder = directory / "giant"
        write_journals(folder, 1, sizes.giant)
        note("_giant", bench.ship(folder, PLAIN, sizes.giant), sizes.giant)
    figures["peak_memory_mib"] = round(bench.peak_memory_mib, 1)
    return figures


def measure_single_rows(
    bench: Bench, directory: Path, sizes: Sizes, note: Callable[[str, Cost, int], None]
) -> dict[str, Any]:
    """Transactions of one row each."""
    folder = directory / "singles"
    write_shared_journals(folder, sizes.singles)
    note("_single_row", bench.ship(folder, PLAIN, sizes.singles), sizes.singles)
    return {"single_row_events": sizes.singles}


def measure_latency(bootstrap: str, seconds: float, warm_s: float) -> dict[str, Any]:
    """From the return of commit to a consumer, without and with Kafka transactions."""
    sys.path.append(str(HERE))  # which `make` keeps Python from doing
    import _latency

    figures = {}
    for suffix, transactional in (("", False), ("_transactional", True)):
        found = _latency.measure(seconds, transactional, bootstrap=bootstrap, warm_s=warm_s)
        for part in ("p50", "p99"):
            figures[f"latency_ms_{part}{suffix}"] = found[f"_{part}"]
        say(f"latency{suffix}: p50 {found['_p50']} ms, p99 {found['_p99']} ms")
    return figures


def compare(commit: str, sizes: Sizes, count: int, *, less_start: bool) -> None:
    """Ship in COUNT pairs with this clone and COMMIT; end with 1 if a limit is missed."""
    sys.path.append(str(HERE))  # which `make` keeps Python from doing
    import _against

    cache = cache_directory()
    name, source = _against.built(commit, CLONE, cache)
    parts = {
        "large": PLAIN,
        "schema": {},
        "transactional": PLAIN | {IDENTITY: "bench"},
        "single": PLAIN,
    }
    pairs: dict[str, list[_against.Pair]] = {part: [] for part in parts}
    with workspace() as directory, KafkaBroker(directory / "kafka", fetch_kafka(cache)) as broker:
        benches = {}
        for which, clone in (("new", CLONE), ("old", source)):
            (own := directory / which).mkdir()
            bench = benches[which] = Bench(
                own, broker.bootstrap, less_start=less_start, clone=clone, name=which
            )
            bench.measure_start(PLAIN, sizes.rounds)
            bench.measure_start(parts["transactional"], sizes.rounds)
            bench.write(own / "large", sizes.journals, sizes.rows)
            bench.write(own / "single", sizes.singles, 1, shared=True)
        for number in range(count):
            for part, options in parts.items():
                backlog = "single" if part == "single" else "large"
                events = sizes.singles if part == "single" else sizes.journals * sizes.rows
                found = {}
                for which in _against.order(number):
                    folder = copied(directory / which / backlog, directory / which / "journals")
                    cost = benches[which].ship(folder, options, events)
                    cpu_us = cost.cpu_s / events * 1e6
                    found[which] = _against.Sample(events / cost.seconds, cpu_us)
                pairs[part].append(pair := _against.Pair(**found))
                say(
                    f"{part:14} events/s {pair.new.rate:,.0f}/{pair.old.rate:,.0f}"
                    f" cpu {pair.new.cpu_us:.2f}/{pair.old.cpu_us:.2f} us"
                )
    _against.conclude(name, pairs, _against.Words("an event", "events", "in part {}"), say)


@contextmanager
def workspace() -> Iterator[Path]:
    """A folder on the disk of this checkout."""
    run = CLONE / ".run"
    run.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-ship-", dir=run))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def main() -> None:
    """Run the parts and print the figures."""
    parser = argparse.ArgumentParser(description="Ship journals to Kafka.")
    parser.add_argument("--quick", action="store_true", help="done in under 50 s")
    parser.add_argument("--tiny", action="store_true", help="tells whether it works, and no more")
    parser.add_argument("--against", metavar="COMMIT", help="compare with another commit")
    parser.add_argument("--raw", nargs=2, metavar=("EVENTS", "CONFIG"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.raw:
        produce_raw(Path(arguments.raw[1]), int(arguments.raw[0]))
        return
    sizes = TINY if arguments.tiny else QUICK if arguments.quick else FULL
    if arguments.against:
        count = 2 if arguments.tiny or arguments.quick else 5
        compare(arguments.against, sizes, count, less_start=not arguments.tiny)
        return
    with (
        workspace() as directory,
        KafkaBroker(directory / "kafka", fetch_kafka(cache_directory())) as broker,
    ):
        bench = Bench(directory, broker.bootstrap, less_start=not arguments.tiny)
        figures = measure_throughput(bench, directory, sizes)
        figures |= measure_latency(broker.bootstrap, sizes.latency_s, sizes.warm_s)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
