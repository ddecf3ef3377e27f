"""From the client's return of commit to a consumer: how long, and where the time goes.

The embedded engine with the plugin in a C client (engine_client.c) that commits single rows at a
steady rate, the shipper that the plugin starts, a real broker and a consumer in a process of its
own, all on this machine, with our defaults. ``ship.py`` imports ``measure``; run on its own, this
program tells the parts too. The last line is one JSON object, of milliseconds:

    rendered_p50, _p99    commit's return to the message in the shipper
    delivered_p50, _p99   message to the consumer
    _p50, _p99            both together

    --seconds N  --rounds N  --transactional  --rate N
    --tiny      a second: tells whether it works, and no more
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from firebird_cdc.demo.engine import EmbeddedRoot
from firebird_cdc.demo.kafka import KafkaBroker, fetch_kafka
from firebird_cdc.demo.paths import cache_directory
from firebird_cdc.demo.processes import Stack, await_condition
from firebird_cdc.journal.events.topic_encoding import REPLACE, topic_of

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))  # which `make` keeps Python from doing
from _client import compile_client  # noqa: E402

RATE = 500
_PREFIX = "latency"
_PATIENCE_S = 60.0
_WARM_S = 6.0


def measure(
    seconds: float,
    transactional: bool,
    rate: int = RATE,
    options: Mapping[str, str] | None = None,
    bootstrap: str | None = None,
    warm_s: float = _WARM_S,
) -> dict[str, float]:
    """Return p50 and p99 in ms of all commits in SECONDS, after WARM_S, at RATE commits/s.

    OPTIONS: of the connector, beside our defaults. BOOTSTRAP: a broker that runs already.
    """
    run = HERE.parent / ".run"
    run.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="latency-", dir=run))
    try:
        with Stack(directory) as stack:
            if bootstrap is not None:
                pipeline = Pipeline(directory, stack, bootstrap, transactional, options)
                return pipeline.run(seconds, rate, warm_s)
            jars = fetch_kafka(cache_directory())
            with KafkaBroker(directory / "kafka", jars, stack=stack) as broker:
                pipeline = Pipeline(directory, stack, broker.bootstrap, transactional, options)
                return pipeline.run(seconds, rate, warm_s)
    finally:
        shutil.rmtree(directory)


class Pipeline:
    """Everything between the client and the consumer. MODE: of the engine."""

    def __init__(
        self,
        directory: Path,
        stack: Stack,
        bootstrap: str,
        transactional: bool,
        options: Mapping[str, str] | None,
        mode: str = "Super",
    ) -> None:
        self.directory = directory
        self.stack = stack
        self.bootstrap = bootstrap
        self._transactional = transactional
        self._root = EmbeddedRoot(directory / "engine", {"ServerMode": mode})
        self.database = directory / "bench.fdb"
        self.topic = topic_of(REPLACE, _PREFIX, str(self.database), "T")
        self._times = directory / "times"
        self._events = directory / "events"
        self._stop = directory / "stop"
        self._install(options or {})

    def _install(self, options: Mapping[str, str]) -> None:
        config = self.directory / "connector.yaml"
        every = {
            "connector.name": "bench",
            "connector.journal.directory": str(self.directory / "journals"),
            "kafka.producer.bootstrap.servers": self.bootstrap,
            "kafka.topic.prefix": _PREFIX,
            "snapshot.mode": "never",
            **({"kafka.producer.transactional.id": "bench"} if self._transactional else {}),
            **options,
        }
        config.write_text("".join(f"{name}: {value}\n" for name, value in every.items()))
        logging = self.directory / "logging.yaml"
        logging.write_text(f"file: {self.directory / 'firebird-cdc.log'}\n")
        command = ["install", "--server", self._root.path, "--config", config]
        argv = [sys.executable, "-P", "-m", "firebird_cdc", *command, "--logging", logging]
        self.stack.run("install", argv, self.environment())

    def environment(self) -> dict[str, str]:
        """Return that of all processes of the engine and of ours."""
        return self.stack.environment(self._root.environment()) | {"PYTHONSAFEPATH": "1"}

    def run(self, seconds: float, rate: int, warm_s: float) -> dict[str, float]:
        """Run the load; return the figures."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for future in admin.create_topics([NewTopic(self.topic, 1, 1)]).values():
            future.result()
        argv = [sys.executable, "-P", __file__, "--consume", self.bootstrap, self.topic]
        argv += [str(self._events), str(self._stop)]
        consumer = self.stack.start("consumer", argv)
        warm, timed = round(warm_s * rate), round(seconds * rate)
        client = self._client()
        assert client.stdin is not None
        try:
            for command in ("create 1", "attach 1"):
                ask(client, command)
            begun = time.monotonic()
            returns = self.load(client, rate, warm, timed)
            taken = time.monotonic() - begun
            self._await_consumer(len(returns), consumer)
            figures = self.figures(returns, warm)
            self.go_on(client)
            client.stdin.close()
            client.wait(_PATIENCE_S)
        finally:
            client.kill()
            client.wait()
        return figures | {"rate": round(len(returns) / taken)}

    def load(self, client: subprocess.Popen[str], rate: int, warm: int, timed: int) -> list[int]:
        """Have CLIENT commit WARM and TIMED single rows; return when each commit returned."""
        return self.pace(client, rate, warm + timed)

    def pace(self, client: subprocess.Popen[str], rate: int, count: int) -> list[int]:
        """Have CLIENT commit COUNT single rows; return when each commit returned."""
        ask(client, f"pace {rate} {count} {self._times}")
        return [int(line) for line in self._times.read_text().splitlines()]

    def go_on(self, client: subprocess.Popen[str]) -> None:
        """Do what follows once all events of the load have come."""

    def _client(self) -> subprocess.Popen[str]:
        program = compile_client(self.directory / "engine_client")
        with (self.directory / "client.log").open("wb") as log:
            return subprocess.Popen(
                [program, self._root.client_library, self.database, "masterkey"],
                env=self.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def _await_consumer(self, count: int, consumer: subprocess.Popen[bytes]) -> None:
        """Wait until all COUNT events came, and have the consumer write them down."""
        self._stop.write_text(str(count))
        await_condition("all events", lambda: consumer.poll() is not None, _PATIENCE_S)

    def figures(self, returns: Sequence[int], warm: int) -> dict[str, float]:
        """Return the figures of all commits behind the first WARM; they returned at RETURNS."""
        return self.figures_of(returns, slice(warm, None))

    def figures_of(self, returns: Sequence[int], counted: slice) -> dict[str, float]:
        """Match commits with events, which come in their order; COUNTED: of which to tell."""
        lines = [line.split(" ", 2) for line in self._events.read_text().splitlines()]
        events = [(int(seen), int(offset), json.loads(value)) for seen, offset, value in lines]
        if len(events) != len(returns):
            raise SystemExit(f"{len(events)} events for {len(returns)} commits")
        rendered, delivered, whole = [], [], []
        for returned, (seen, offset, value) in zip(returns[counted], events[counted], strict=True):
            made = value.get("payload", value)["ts_ns"] - offset
            whole.append((seen - returned) / 1e6)
            rendered.append((made - returned) / 1e6)
            delivered.append((seen - made) / 1e6)
        return {
            f"{name}_p{part}": round(_quantile(values, part), 2)
            for name, values in (("", whole), ("rendered", rendered), ("delivered", delivered))
            for part in (50, 99)
        }


def _quantile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def ask(client: subprocess.Popen[str], command: str) -> float:
    """Have CLIENT do COMMAND; return the seconds that it took."""
    assert client.stdin is not None
    assert client.stdout is not None
    print(command, file=client.stdin, flush=True)
    answer = client.stdout.readline()
    if not answer:
        raise SystemExit(f"the client failed at {command!r}; see client.log")
    return float(answer)


def _consume(bootstrap: str, topic: str, output: Path, stop: Path) -> None:
    """Note when each message came, CLOCK_MONOTONIC; write all of them once STOP says how many."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "latency",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "fetch.wait.max.ms": 10,
            "fetch.error.backoff.ms": 1,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    seen: list[tuple[int, bytes]] = []
    while True:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            seen.append((time.monotonic_ns(), message.value()))
        elif message is None and stop.exists() and len(seen) >= int(stop.read_text() or 1e9):
            break
    consumer.close()
    offset = time.time_ns() - time.monotonic_ns()
    with output.open("wb") as file:
        for at, value in seen:
            file.write(b"%d %d %b\n" % (at, offset, value))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--consume", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rate", type=int, default=RATE)
    parser.add_argument("--transactional", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="a second: tells whether it works")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    if arguments.consume:
        bootstrap, topic, output, stop = arguments.consume
        _consume(bootstrap, topic, Path(output), Path(stop))
        return
    options = dict(option.split("=", 1) for option in arguments.option)
    seconds, warm_s = (1.0, 1.0) if arguments.tiny else (arguments.seconds, _WARM_S)
    for _ in range(arguments.rounds):
        print(f"load {os.getloadavg()[0]:.1f}", flush=True)
        found = measure(seconds, arguments.transactional, arguments.rate, options, warm_s=warm_s)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
