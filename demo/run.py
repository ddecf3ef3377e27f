"""The demo: every part of the pipeline, for real, on one machine, and a comparison at the end."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import chain, pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from firebird_cdc.config import load_config
from firebird_cdc.demo.console import Console, Step
from firebird_cdc.demo.engine import EmbeddedRoot
from firebird_cdc.demo.events import Envelope, line, read_topics
from firebird_cdc.demo.kafka import KafkaBroker, fetch_kafka, fetch_spark_kafka
from firebird_cdc.demo.paths import cache_directory, run_directory
from firebird_cdc.demo.processes import Stack, await_condition, end_members, members, tail
from firebird_cdc.demo.rows import Rows, TableShape, fold, key_text, read_replay
from firebird_cdc.errors import FirebirdCdcError, SetupError
from firebird_cdc.journal.events.topic_encoding import REPLACE, topic_of
from firebird_cdc.journal.shipper.snapshots.state import Snapshot, StateFolder, Status

_PREFIX = "demo"
_CLERKS = 3
_WORK_TIMEOUT_S = 120.0
_SHIP_TIMEOUT_S = 120.0
_SPARK_TIMEOUT_S = 1200.0  # on a machine that others use, Spark takes its time
_MARKER = "demo.json"  # says that a folder is a run's
_FAULTS_SHOWN = 5


def run_demo(directory: Path | None, *, keep: bool, seed: int) -> int:
    """Run the demo in DIRECTORY (None: a new folder in .run/); return the exit code.

    keep: leave the processes up. Raises FirebirdCdcError if a step fails; the folder stays then.
    """
    console = Console()
    directory = _new_directory(directory)
    with _signals_unwind(), Stack(directory) as stack:
        demo = _Demo(console, stack, seed)
        try:
            equal = demo.run()
        except FirebirdCdcError as error:
            console.line(console.bad(f"The demo failed: {error}"))
            console.line(f"All files of this run are in {directory}")
            return 1
        if keep:
            demo.explain_use()
            stack.release()
            return 0 if equal else 1
    if equal:
        shutil.rmtree(directory)
    else:
        console.line(f"All files of this run are in {directory}")
    return 0 if equal else 1


def stop_demos(directory: Path | None) -> int:
    """End the processes of the run in DIRECTORY (None: of all runs), and remove its files."""
    console = Console()
    if directory is not None:
        runs = [directory.resolve()]
    else:
        runs = sorted(path.parent for path in run_directory().glob(f"*/{_MARKER}"))
    for run in runs:
        if not (run / _MARKER).exists():
            raise SetupError(f"{run} holds no run of the demo; see {run_directory()}")
        running = len(members(str(run)))
        with console.step(f"Stop {run}") as step:
            end_members(str(run))
            shutil.rmtree(run)
            step.result = f"{running} processes ended, files removed"
    if not runs:
        console.line("No run of the demo is left.")
    return 0


class _Demo:
    """One run. Its folder: engine/ (root), kafka/, journal/, archive/, replay/, and logs."""

    def __init__(self, console: Console, stack: Stack, seed: int) -> None:
        self._console = console
        self._stack = stack
        self._seed = seed
        directory = stack.directory
        self._database = directory / "shop.fdb"
        self._journals = directory / "journal"
        self._archive = directory / "archive"
        self._replay = directory / "replay"
        self._configuration = directory / "reddatabase.connector.yaml"
        self._logging = directory / "firebird_cdc_logging.yaml"
        self._root: EmbeddedRoot | None = None
        self._broker: KafkaBroker | None = None
        self._proven: list[str] = []

    def run(self) -> bool:
        """Go through all steps; return whether everything is equal in the end."""
        console = self._console
        with console.step("Start Apache Kafka") as step:
            jars = fetch_kafka(cache_directory(), step.progress)
            broker = KafkaBroker(self._stack.directory / "kafka", jars, stack=self._stack)
            self._broker = broker
            broker.start()
            step.result = f"one KRaft node at {broker.bootstrap}"
        with console.step("Create a database in the embedded Firebird engine") as step:
            self._root = EmbeddedRoot(self._stack.directory / "engine")
            self._play("make")
            step.result = f"{self._database}, two tables filled, then the publication on"
        with console.step("Install the plugin into the engine") as step:
            self._configure(broker.bootstrap)
            self._install()
            step.result = f"{self._root.path}/plugins, plugins.conf, replication.conf"
        with console.step("Add a table, and deliver the rows that are there") as step:
            self._play("extend")
            step.result = self._await_snapshot(step)
        with console.step("Run the workload in several connections") as step:
            step.result = self._work(step)
        with console.step("Ship the journals to Kafka") as step:
            step.result = self._await_shipped(step)
        with console.step("Read the database and the topics") as step:
            shapes, in_database = self._read_database()
            topics = {
                topic_of(REPLACE, _PREFIX, str(self._database), shape.name): shape
                for shape in shapes
            }
            messages = read_topics(broker.bootstrap, list(topics))
            reads = sum(each["payload"]["op"] == "r" for _, each in chain(*messages.values()))
            step.result = (
                f"{sum(map(len, messages.values()))} events in {len(topics)} topics, {reads} of"
                " them rows that a snapshot read"
            )
        console.line()
        self._show_events(messages)
        console.line()
        with console.step("Rebuild the tables from the archived journals with Spark") as step:
            self._spark(step)
        with console.step("Audit journals, topics and the live database with Spark") as step:
            self._prove(step)
        for sentence in self._proven:
            console.line(f"  {sentence}")
        console.line()
        return self._compare(topics, in_database, messages)

    def explain_use(self) -> None:
        """Say how to use the stack that stays up, and how to stop it."""
        assert self._broker is not None
        say, name = self._console.line, self._console.name
        sql = self._write_script("sql", ["workload", "sql", "--database", str(self._database)])
        watch = self._write_script(
            "watch", ["events", "--bootstrap", self._broker.bootstrap, "--prefix", _PREFIX]
        )
        again = [sys.executable, "-P", "-m", "firebird_cdc.demo"]
        stop = shlex.join([*again, "--stop", "--directory", str(sql.parent)])
        statement = "UPDATE CUSTOMERS SET CREDIT = CREDIT + 1 WHERE ID = 2"
        say()
        say("The stack is up. Watch the topics in one terminal:")
        say(f"  {name(str(watch))}")
        say("and change something in another (every --sql is a statement, all one transaction):")
        say(f'  {name(str(sql))} --sql "{statement}"')
        say("From a program of your own, with the environment that this script sets:")
        say(
            f"  database {self._database}, user SYSDBA, no password; Kafka {self._broker.bootstrap}"
        )
        say("Stop it all, and remove its files:")
        say(f"  {name(stop)}")

    def _configure(self, bootstrap: str) -> None:
        """Write the samples' configuration with this run's values."""
        self._archive.mkdir()
        samples = _samples()
        text = (samples / self._configuration.name).read_text(encoding="utf-8")
        options = {
            "connector.name": "demo",
            "connector.journal.directory": str(self._journals),
            "connector.journal.archive.directory": str(self._archive),
            "kafka.producer.bootstrap.servers": bootstrap,
            "kafka.producer.transactional.id": "demo-1",
            "kafka.topic.prefix": _PREFIX,
            "snapshot.mode": "initial",
        }
        self._configuration.write_text(_with_options(text, options), encoding="utf-8")
        text = (samples / self._logging.name).read_text(encoding="utf-8")
        log = str(self._stack.directory / "firebird-cdc.log")
        self._logging.write_text(_with_options(text, {"file": log}), encoding="utf-8")
        load_config(self._configuration)

    def _environment(self) -> dict[str, str]:
        assert self._root is not None
        environment = self._root.environment()
        # The folders of a clone must not pass for libraries of the same names.
        environment["PYTHONSAFEPATH"] = "1"
        return environment

    def _role(self, role: str, *arguments: object) -> list[str]:
        argv = [sys.executable, "-m", "firebird_cdc.demo.workload", role]
        return [*argv, "--database", str(self._database), *map(str, arguments)]

    def _play(self, role: str, *arguments: object) -> dict[str, Any]:
        """Run one role to its end; return what it did."""
        self._stack.run(role, self._role(role, *arguments), self._environment())
        return self._outcome(role)

    def _outcome(self, name: str) -> dict[str, Any]:
        outcome: dict[str, Any] = json.loads(tail(self._stack.log_path(name), 1))
        return outcome

    def _install(self) -> None:
        assert self._root is not None
        argv = [*_program(), "install", "--server", str(self._root.path)]
        argv += ["--config", str(self._configuration), "--logging", str(self._logging)]
        self._stack.run("install", argv, self._environment())

    def _await_snapshot(self, step: Step) -> str:
        """Wait for the initial snapshot, which the first journal of the database brings about."""
        states = StateFolder(self._journals)

        def snapshots() -> list[Snapshot]:
            return [each for state in states.read() for each in (*state.past, *state.waiting)]

        def ended() -> bool:
            step.progress(f"{sum(each.rows for each in snapshots())} rows")
            return any(each.status is Status.COMPLETED for each in snapshots())

        try:
            await_condition("the initial snapshot", ended, _SHIP_TIMEOUT_S)
        except SetupError as error:
            log = tail(self._stack.directory / "firebird-cdc.log")
            raise SetupError(f"{error}; the end of the log:\n{log}") from None
        (snapshot,) = snapshots()
        tables = sum(1 for table in snapshot.tables or () if table.rows)
        return f"a snapshot of {snapshot.rows} rows in {tables} tables, before all changes"

    def _work(self, step: Step) -> str:
        done: dict[str, int] = {}
        environment = self._environment()
        roles = {f"clerk-{i}": self._role("clerk", "--number", i) for i in range(1, _CLERKS + 1)}
        roles["warehouse"] = self._role("warehouse")
        running = {
            name: self._stack.start(name, [*argv, "--seed", str(self._seed)], environment)
            for name, argv in roles.items()
        }

        def ended() -> bool:
            left = [name for name, process in running.items() if process.poll() is None]
            step.progress(f"{', '.join(left)} at work")
            return not left

        await_condition("the workload to end", ended, _WORK_TIMEOUT_S)
        for name, process in running.items():
            if process.returncode != 0:
                raise SetupError(
                    f"{name} ended with exit code {process.returncode}:\n"
                    f"{tail(self._stack.log_path(name))}"
                )
            for key, value in self._outcome(name).items():
                done[key] = done.get(key, 0) + value
        return f"{len(running)} connections; transactions " + ", ".join(
            f"{value} {key}" for key, value in done.items()
        )

    def _await_shipped(self, step: Step) -> str:
        def left() -> list[Path]:
            return [*self._journals.glob("*.log"), *self._journals.glob("*.log.live")]

        def shipped() -> bool:
            pending = len(left())
            step.progress(f"{pending} journals to go")
            return pending == 0

        try:
            await_condition("all journals to be shipped", shipped, _SHIP_TIMEOUT_S)
        except SetupError as error:
            names = ", ".join(path.name for path in left()[:3])
            raise SetupError(
                f"{error}: {len(left())} are left in {self._journals} ({names}, …); "
                f"the end of the log:\n{tail(self._stack.directory / 'firebird-cdc.log')}"
            ) from None
        reasons = list((self._journals / ".firebird-cdc" / "quarantine").glob("*.reason"))
        if reasons:
            raise SetupError(
                f"{len(reasons)} journals are in the quarantine; {reasons[0].name} says: "
                f"{reasons[0].read_text(encoding='utf-8').strip()}"
            )
        return f"{len(list(self._archive.glob('*.log')))} journals acknowledged and archived"

    def _read_database(self) -> tuple[list[TableShape], dict[str, Rows]]:
        content = self._play("dump")
        shapes = [
            TableShape(name, tuple(table["key"]), tuple(table["padded"]), table["is_filled"])
            for name, table in content.items()
        ]
        rows = {
            shape.name: {key_text(row, shape.key): row for row in content[shape.name]["rows"]}
            for shape in shapes
        }
        return shapes, rows

    def _show_events(self, messages: Mapping[str, list[tuple[Any, Envelope]]]) -> None:
        console = self._console
        chosen = list(_one_of_each_kind(messages))
        console.line("Some of the change events, as a consumer of the topics sees them:")
        for key, envelope in chosen:
            console.line(f"  {line(key, envelope, console.name)}")
        key, envelope = chosen[0]
        topic = next(topic for topic, found in messages.items() if (key, envelope) in found)
        console.line(f"The first of them in full, without its schema, from {topic}:")
        console.line(f"  {json.dumps(envelope['payload'], ensure_ascii=False)}")

    def _spark(self, step: Step) -> None:
        step.progress("Spark is starting")
        what = ["--journals", self._archive, "--output", self._replay, "--format", "json"]
        self._submit("state", what)
        summary = json.loads((self._replay / "summary.json").read_text(encoding="utf-8"))
        step.result = ", ".join(
            f"{span['journals']} journals, {span['events']} events" for span in summary["spans"]
        )

    def _prove(self, step: Step) -> None:
        """Audit the journals, and topics and database against them. SetupError on a fault."""
        assert self._root is not None
        jars = fetch_spark_kafka(cache_directory(), step.progress)
        step.progress("Spark is starting")
        output = self._stack.directory / "audit"
        options = ["--config", self._configuration, "--against-kafka", "--output", output]
        options += ["--connect", self._database, "--user", "SYSDBA"]
        options += ["--client-library", self._root.client_library]
        self._submit("audit", options, jars)
        report = json.loads((output / "report.json").read_text(encoding="utf-8"))
        if not report["sound"]:  # the command has said so by its exit code
            raise SetupError(f"the audit found faults: {output}/report.html tells them")
        step.result = "no fault; " + ", ".join(
            f"{span['journals']} journals, {span['events']} events" for span in report["ranges"]
        )
        self._proven = report["proven"]

    def _submit(self, command: str, arguments: Sequence[object], jars: Sequence[Path] = ()) -> None:
        """Run a replay as a user of a cluster does. Raises SetupError with the end of its log."""
        import pyspark

        from firebird_cdc.journal.replay import main

        submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        argv: list[object] = [submit, "--master", "local[2]"]
        for key, value in {
            "spark.driver.bindAddress": "127.0.0.1",
            # For a run of seconds the second compiler costs more than it brings.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": "4",
            "spark.ui.enabled": "false",
        }.items():
            argv += ["--conf", f"{key}={value}"]
        if jars:
            argv += ["--jars", ",".join(map(str, jars))]
        environment = {
            **self._environment(),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        argv += [main.__file__, command, *arguments]
        self._stack.run(
            f"spark-{command}",
            [str(word) for word in argv],
            environment,
            timeout_s=_SPARK_TIMEOUT_S,
        )

    def _compare(
        self,
        topics: Mapping[str, TableShape],
        in_database: Mapping[str, Rows],
        messages: Mapping[str, list[tuple[Any, Envelope]]],
    ) -> bool:
        console = self._console
        table, notes, all_equal = [], [], True
        for topic, shape in topics.items():
            database = in_database[shape.name]
            topic_fold = fold(shape, (envelope for _, envelope in messages[topic]))
            replayed = read_replay(self._replay, shape)
            notes += topic_fold.faults[:_FAULTS_SHOWN]
            # Nobody has changed these rows since they were captured, so no journal has them.
            unknown = topic_fold.read - replayed.keys() if shape.is_filled else set()
            expected = {key: row for key, row in database.items() if key not in unknown}
            notes += _differences(shape, "topic", database, topic_fold.rows)
            notes += _differences(shape, "replay", expected, replayed)
            equal = database == topic_fold.rows and expected == replayed and not topic_fold.faults
            all_equal = all_equal and equal
            counts = [len(database), len(topic_fold.rows), len(replayed)]
            table.append([shape.name, *map(str, counts), "yes" if equal else "NO"])
        console.line("Rows, compared column by column:")
        head = ["table", "in the database", "by the topic", "by Spark's replay", "equal"]
        console.table(head, table)
        console.line("No journal has rows from before that nobody has changed since.")
        for note in notes:
            console.line(f"  {console.bad(note)}")
        if not any(map(len, in_database.values())):
            console.line(console.bad("  nothing was captured"))
            return False
        return all_equal

    def _write_script(self, name: str, arguments: Sequence[str]) -> Path:
        """Write a script into the run's folder that runs one of the demo's modules with it."""
        module, *rest = arguments
        environment = self._stack.environment(self._environment())
        changed = {key: value for key, value in environment.items() if os.environ.get(key) != value}
        lines = ["#!/bin/sh", *(f"export {k}={shlex.quote(v)}" for k, v in changed.items())]
        argv = [sys.executable, "-m", f"firebird_cdc.demo.{module}", *rest]
        lines.append(f'exec {shlex.join(argv)} "$@"')
        path = self._stack.directory / name
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")
        path.chmod(0o755)
        return path


def _new_directory(directory: Path | None) -> Path:
    if directory is None:
        stem = run_directory() / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
        directory = stem
        number = 2
        while directory.exists():
            directory = stem.with_name(f"{stem.name}-{number}")
            number += 1
    elif directory.exists() and any(directory.iterdir()):
        raise SetupError(f"{directory} is not empty; name a new folder for this run")
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _MARKER).write_text(json.dumps({"pid": os.getpid()}), encoding="utf-8")
    return directory


@contextmanager
def _signals_unwind() -> Iterator[None]:
    """Turn requests to end into exceptions, so that the stack is taken down in order."""

    def unwind(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, unwind) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _program() -> list[str]:
    """The command line ``firebird-cdc`` of this very installation."""
    return [sys.executable, "-P", "-m", "firebird_cdc"]


def _samples() -> Path:
    from firebird_cdc import config

    return Path(config.__file__).parent / "samples"


def _with_options(text: str, options: Mapping[str, str]) -> str:
    """Return a sample with some options set, where it shows them, switched off or not."""
    for name, value in options.items():
        pattern = re.compile(rf"^#?{re.escape(name)}:.*$", re.MULTILINE)
        text, found = pattern.subn(f"{name}: {value}".replace("\\", r"\\"), text, count=1)
        if not found:
            raise SetupError(f"the sample configuration does not show the option {name}")
    return text


def _one_of_each_kind(
    messages: Mapping[str, list[tuple[Any, Envelope]]],
) -> Iterator[tuple[Any, Envelope]]:
    """Yield a read, create, update and delete of several tables, and a key's change as its two
    events."""
    seen = set()
    for found in messages.values():
        for (key, envelope), (next_key, following) in pairwise(found):
            payload = envelope["payload"]
            kind = payload["op"]
            if kind == "d" and _place(envelope) == _place(following):
                kind = "key"
            if kind not in seen and not (kind == "u" and payload["before"] == payload["after"]):
                seen.add(kind)
                yield key, envelope
                if kind == "key":
                    yield next_key, following


def _place(envelope: Envelope) -> tuple[str, int]:
    """The change in the database that an event tells of: its journal, and its place in it."""
    source = envelope["payload"]["source"]
    return source["journal"], source["pos"]


def _differences(shape: TableShape, place: str, database: Rows, other: Rows) -> list[str]:
    """Say where two states differ, a few rows of each kind."""
    sentences = [
        f"{shape.name}: row {key} is in the database and not in the {place}"
        for key in sorted(database.keys() - other.keys())[:_FAULTS_SHOWN]
    ]
    sentences += [
        f"{shape.name}: row {key} is in the {place} and not in the database"
        for key in sorted(other.keys() - database.keys())[:_FAULTS_SHOWN]
    ]
    for key in sorted(database.keys() & other.keys()):
        ours, theirs = database[key], other[key]
        if ours != theirs and len(sentences) < 3 * _FAULTS_SHOWN:
            wrong = [name for name in ours if name not in theirs or ours[name] != theirs[name]]
            sentences.append(
                f"{shape.name}: row {key} differs in {', '.join(wrong)}: "
                f"{[ours[name] for name in wrong]} in the database, "
                f"{[theirs.get(name) for name in wrong]} in the {place}"
            )
    return sentences
