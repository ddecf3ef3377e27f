"""Rounds of snapshots beside writers, in which everything that takes part is killed.

A round has one or two databases of its own, with rows from before their publication, a journal
folder and topics, and a place where they are (snapshot_sites.py). Tables may change meanwhile.
Lives of a shipper follow each other, each killed at a point (snapshot_steps.py)
or at some time; its reader processes, the processes with the engine, and the broker are killed at
random meanwhile, and snapshots are asked for, paused, resumed and stopped. The last life ends in
order. Then consumers are compared with the databases (snapshot_oracle.py), unless the engine has
found that one was damaged when a process of it was killed (see tests/faults/harness.py).
"""

from __future__ import annotations

import json
import random
import re
import signal
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import instruments
from rounds import Eye, Life, Nursery
from snapshot_oracle import Reading, compare, read_topic
from snapshot_sites import Site, Sites
from snapshot_steps import all_points, most_hits, needs_several, signal_reader
from snapshot_world import COLUMNS, Builder, Database, Writer
from weather import Weather

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.processes import Stack
from firebird_cdc.journal.shipper.requests import write_request
from firebird_cdc.journal.shipper.snapshots.state import (
    SNAPSHOTS,
    SnapshotState,
    StateFolder,
    Status,
)

_PATIENCE_S = 180.0  # for anything to go on at the end of a round, or for a process to end
_LOOK_S = 0.02
_OF_THE_CLIENT = re.compile("Kafka client:|librdkafka:")
_KINDS = ("initial", "incremental", "blocking")
_DDL = "-ddl"
PLACES = (
    *("classic", "super", "tcp", "classic", "super"),
    *("classic-ddl", "super-ddl", "tcp-classic", "super-ddl", "tcp-ddl", "tcp-classic-ddl"),
)
"""Kinds of sites in which rounds are, with ``-ddl`` where tables change meanwhile."""
_HANGS_S = 8.0  # after so long a reader process that hangs is given up, in rounds where one does


@dataclass
class Tally:
    """Results of many rounds."""

    rounds: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    not_reached: Counter[str] = field(default_factory=Counter)
    signals: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    weather: Counter[str] = field(default_factory=Counter)
    built: Counter[str] = field(default_factory=Counter)
    transactions: int = 0
    events: int = 0
    rows: int = 0
    windows: int = 0
    repeats: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    occupied: list[str] = field(default_factory=list)
    damaged: Counter[str] = field(default_factory=Counter)  # databases, by the engine's finding
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        def listed(counts: Counter[str]) -> str:
            return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"

        never = sorted(set(all_points()) - set(self.kills))
        return (
            f"rounds {self.rounds.total()}: {listed(self.rounds)}\n"
            f"kills {self.kills.total()}: {listed(self.kills)}\n"
            f"points not reached in their life: {listed(self.not_reached)}\n"
            f"points that never fired: {', '.join(never) or 'none'}\n"
            f"broker: {listed(self.weather)}\n"
            f"signals: {listed(self.signals)}\nsnapshots: {listed(self.ended)}\n"
            f"changes of structure: {listed(self.built)}\n"
            f"transactions {self.transactions}\nevents {self.events}, of which rows {self.rows}\n"
            f"windows {self.windows}\nrepeats without transactions {self.repeats}\n"
            f"databases that were still open elsewhere: {'; '.join(self.occupied) or 'none'}\n"
            f"databases that the engine left damaged: {listed(self.damaged)}\n"
            f"longest wait for the end {self.slowest_s:.1f} s\nseconds {self.seconds:.0f}\n"
            + "".join(f"FAULT {text}\n" for text in self.faults)
            + f"faults {len(self.faults)}"
        )


@dataclass
class Plan:
    """Properties of a round. ``points``: one for each life but the last, empty: killed in time;
    ``place``: one of PLACES."""

    name: str
    chance: random.Random
    transactional: bool
    kind: str
    points: list[tuple[str, int]]
    place: str = "classic"
    databases: int = 1
    many_windows: bool = False  # of an incremental snapshot, though it is in nobody's way
    signals: bool = True  # pause, resume and stop at random
    fault: str = ""
    rows: int = 0  # of ITEM; 0: by chance

    @property
    def mode(self) -> str:
        """For the tally."""
        return f"{self.place} {self.kind} {'transactional' if self.transactional else 'plain'}"

    @property
    def site(self) -> str:
        """Kind of the site."""
        return self.place.removesuffix(_DDL)

    @property
    def has_ddl(self) -> bool:
        """Tell whether tables change meanwhile."""
        return self.place.endswith(_DDL)


class Deck:
    """Hands out plans, each point before any comes again, and PLACES in turn; thread-safe."""

    def __init__(self, chance: random.Random, places: Sequence[str]) -> None:
        self._chance = chance
        self._places = places
        self._lock = threading.Lock()
        self._left: list[str] = []
        self._count = 0

    def draw(self, name: str, chance: random.Random) -> Plan:
        """Return the plan of a round."""
        with self._lock:
            points = [self._next() for _ in range(chance.randint(1, 2))]
            kind = _KINDS[self._count % len(_KINDS)]
            place = self._places[self._count % len(self._places)]
            self._count += 1
        if kind == "incremental" and any(map(needs_several, points)):
            kind = "blocking"
        points += [""] * chance.choice((0, 0, 1))
        chance.shuffle(points)
        needs_id = any(all_points().get(point) for point in points)
        return Plan(
            name,
            chance,
            transactional=needs_id or chance.random() < 0.5,
            kind=kind,
            points=[(point, chance.randint(1, most_hits(point))) for point in points],
            place=place,
            databases=2 if chance.random() < 0.2 else 1,
            many_windows=chance.random() < 0.7,
            signals=chance.random() < 0.5,
        )

    def _next(self) -> str:
        if not self._left:
            self._left = list(all_points())
            self._chance.shuffle(self._left)
        return self._left.pop()


class Round:
    """One round; ``run`` returns what is wrong with it."""

    def __init__(self, plan: Plan, site: Site, bootstrap: str) -> None:
        chance = plan.chance
        self.plan = plan
        self.directory = site.directory
        self.kills: Counter[str] = Counter()
        self.occupied: list[str] = []
        self.built: Counter[str] = Counter()
        self.not_reached: Counter[str] = Counter()
        self.signals: Counter[str] = Counter()
        self.readings: list[Reading] = []
        self.states: list[SnapshotState] = []
        self.written = 0
        self.end_s = 0.0
        self._bootstrap = bootstrap
        self._prefix = f"s{uuid.uuid4().hex[:10]}"
        self._site = site
        self._capture = site.capture
        self._options = {
            "kafka_producer_bootstrap_servers": bootstrap,
            "kafka_producer_reconnect_backoff_max_ms": "500",
            "kafka_topic_prefix": self._prefix,
            "key_converter_schemas_enable": "false",
            "value_converter_schemas_enable": "false",
            "snapshot_mode": "initial" if plan.kind == "initial" else "never",
            "snapshot_fetch_size": str(chance.choice((40, 300, 10_240))),
            "incremental_snapshot_chunk_size": str(chance.choice((20, 100, 1024))),
            "connector_journal_transactions": str(chance.choice((1, 1, 64))),
        }
        is_for_several = any(needs_several(point) for point, _ in plan.points)
        if not plan.fault and (is_for_several or chance.random() < 0.5):
            self._options["snapshot_max_threads"] = str(chance.choice((2, 3)))
        if plan.fault:  # much has to happen beside the snapshot
            self._options["snapshot_fetch_size"] = "40"
        if plan.transactional:
            self._options["kafka_producer_transactional_id"] = self._prefix
        self._lives = 0
        self._life: Life | None = None
        self._faults: list[str] = []
        self._databases: list[Database] = []
        self._writers: list[Writer] = []

    def run(self, nursery: Nursery, eye: Eye) -> list[str]:
        """Live all lives, then compare."""
        chance, site = self.plan.chance, self._site
        nursery = site.nursery(nursery)
        site.open(self._options)
        try:
            for number in range(self.plan.databases):
                name = ("test.fdb", "other.fdb")[number]
                rows = self.plan.rows or chance.choice((60, 400, 1500, 4000))
                self._databases.append(Database(site, name, rows))
            for database in self._databases:
                kinds = [Writer] * chance.choice((1, 2)) + [Builder] * self.plan.has_ddl
                for kind in kinds:
                    self._writers.append(kind(site, database, random.Random(chance.random())))
            for writer in self._writers:
                writer.start()
            self._write_for(chance.uniform(0, 0.5))
            for number, (point, hit) in enumerate(self.plan.points):
                self._live(nursery, point, hit, is_first=number == 0)
            self._live(nursery, "", 0, is_first=not self.plan.points, is_last=True)
            if not self._faults:
                self._compare(eye)
        finally:
            if self._life is not None:
                _await_end(self._life, signal.SIGKILL)
            for writer in self._writers:
                writer.end()
                self.written += writer.written
                if writer.stuck:
                    self.kills["engine that waits for ever"] += writer.stuck
                if isinstance(writer, Builder):
                    self.built += writer.built
                    refused = "\n".join(writer.refusals)
                    (self.directory / f"refused-{writer.name}.txt").write_text(refused)
            if site.kills:
                self.kills["engine"] += site.kills
            self.occupied = site.occupied
            site.end_clients()
        return self._faults

    def _write_for(self, seconds: float) -> None:
        """Have something written, however slow the machine is."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._writers[0].is_alive():
            time.sleep(_LOOK_S)

    # Lives

    def _order(self, point: str, hit: int) -> dict[str, Any]:
        self._lives += 1
        inner = self._site.inner
        logging = self.directory / f"logging-{self._lives}.yaml"
        logging.write_text(f"level: debug\nfile: {self._site.inner(self._log)}\n")
        limits: dict[str, float] = {}
        if any(point.startswith("hang.") for point, _ in self.plan.points):
            names = ("_ATTACH_S", "_OPEN_S", "_READ_S", "_MOMENT_S")
            limits = dict.fromkeys((f"attempts.{name}" for name in names), _HANGS_S)
        if self.plan.many_windows:
            limits |= {"runner._WINDOW_S": 0.001, "windows._GROWS_TO": 1}
        return {
            "arguments": ["--config", inner(self._capture.config), "--logging", inner(logging)],
            "environment": self._site.environment(),
            "output": inner(self.directory / f"output-{self._lives}.txt"),
            "life": self._lives,
            "point": point,
            "hit": hit,
            "faults": [self.plan.fault] if self.plan.fault else [],
            "patches": {
                "shipper.delivery.backoff.MAX_BACKOFF_S": 1.0,
                **{f"shipper.snapshots.{name}": value for name, value in limits.items()},
            },
        }

    @property
    def _log(self) -> Path:
        return self.directory / f"ship-{self._lives}.log"

    def _live(
        self,
        nursery: Nursery,
        point: str,
        hit: int,
        *,
        is_first: bool = False,
        is_last: bool = False,
    ) -> None:
        """One life of a shipper, to its death at POINT or in time, or its end."""
        chance = self.plan.chance
        life = self._life = nursery.start(self._order(point, hit))
        state = self._capture.journal_directory / ".firebird-cdc"
        while not state.exists() and life.code is None:
            time.sleep(_LOOK_S)
        kills_shipper = not point.startswith(("reader.", "hang."))
        is_initial = self.plan.kind == "initial"
        if not is_initial if is_first else point and chance.random() < 0.8:
            # Or what the point belongs to may be over.
            self._execute("blocking" if needs_several(point) else "")
        long_s = chance.uniform(3.0, 7.0) if point else chance.uniform(1.0, 5.0)
        if self.plan.fault:
            long_s = 5.0
        end = time.monotonic() + long_s
        due = time.monotonic() + chance.uniform(0.5, 2.0)
        while life.code is None and time.monotonic() < end:
            if time.monotonic() >= due and not self.plan.fault:
                due = time.monotonic() + chance.uniform(0.3, 1.5)
                self._disturb(life)
            time.sleep(_LOOK_S)
        if is_last:
            self._end(life)
            return
        name = point or "shipper at random"
        if life.code is None and point and kills_shipper:
            self.not_reached[point] += 1
            name = "shipper at random"
        elif not kills_shipper:
            self._note_reader(point)
            name = "shipper at random"
        in_order = life.code is None and chance.random() < 0.25
        _await_end(life, signal.SIGTERM if in_order else signal.SIGKILL)
        if in_order and life.code == 0:
            self.kills["ended in order"] += 1
        elif life.code == -signal.SIGKILL:
            self.kills[name] += 1
        elif life.code == -signal.SIGTERM and not self._has_begun():
            self.kills["ended before it began"] += 1
        else:
            self._faults.append(f"life {self._lives} ended with {life.code}: {self._told()}")

    def _has_begun(self) -> bool:
        """Tell whether this life's shipper has come to its work: it hears signals before that, but
        its log may be there earlier."""
        return self._log.exists() and "shipping journals of" in self._log.read_text("utf-8")

    def _note_reader(self, point: str) -> None:
        """Note whether the reader process was struck at POINT."""
        log = self._log.read_text("utf-8", "replace") if self._log.exists() else ""
        words = "reader process does not answer" if "hang" in point else "reader process has ended"
        (self.kills if words in log else self.not_reached)[point] += 1

    def _disturb(self, life: Life) -> None:
        """Kill somebody, or send a signal."""
        chance = self.plan.chance
        what = chance.choice(("reader", "reader", "engine", "ask", "pause", "stop"))
        if what == "reader":
            if signal_reader(life.pid, signal.SIGKILL, chance):
                self.kills["reader at random"] += 1
        elif what == "engine":
            chance.choice(self._writers).kill()
        elif what == "ask" and chance.random() < 0.5:
            self._execute()
        elif self.plan.signals and what == "pause":
            self._ask(chance.choice(("pause-snapshot", "resume-snapshot")), {"type": "incremental"})
        elif self.plan.signals and what == "stop" and chance.random() < 0.5:
            data: dict[str, Any] = {"type": "incremental"}
            if chance.random() < 0.5:
                data["data-collections"] = [rf".*\.{chance.choice(list(COLUMNS))}"]
            self._ask("stop-snapshot", data)

    def _execute(self, kind: str = "") -> None:
        """Ask for a snapshot of KIND, or of any one."""
        chance = self.plan.chance
        is_given, kind = bool(kind), kind or self.plan.kind
        if not is_given and (kind == "initial" or chance.random() < 0.2):
            kind = chance.choice(("incremental", "blocking"))
        tables = [rf"{database.path}\..*" for database in self._databases]
        if chance.random() < 0.3 and not self.plan.fault:
            tables = [rf".*\.{chance.choice(list(COLUMNS))}"]
        self._ask("execute-snapshot", {"type": kind, "data-collections": tables})

    def _ask(self, type: str, data: dict[str, Any]) -> None:
        self.signals[type] += 1
        content = {"id": str(uuid.uuid4()), "type": type, "data": json.dumps(data)}
        for database in self._databases:
            request = {**content, "database": str(database.path)}
            write_request(self._capture.journal_directory, request, SNAPSHOTS)

    # The end

    def _end(self, life: Life) -> None:
        """Have writers rest, snapshots end, all be shipped, and the shipper end in order."""
        for writer in self._writers:
            writer.end()
        for database in self._databases:
            database.write()
        self._ask("resume-snapshot", {"type": "incremental"})
        began = moved_at = time.monotonic()
        left = ""
        while not self._is_done():
            if left != (left := self._left()):
                moved_at = time.monotonic()
            if time.monotonic() - moved_at > _PATIENCE_S or life.code is not None:
                self._faults.append(
                    f"the last life does not come to its end ({life.code}): {self._left()};"
                    f" {self._told()}"
                )
                life.signal(signal.SIGABRT)
                return
            time.sleep(10 * _LOOK_S)
        self.end_s = time.monotonic() - began
        _await_end(life, signal.SIGTERM)
        if life.code != 0:
            self._faults.append(f"the last life ended with {life.code}: {self._told()}")
            life.signal(signal.SIGABRT)

    def _read_states(self) -> list[SnapshotState]:
        return list(StateFolder(self._capture.journal_directory).read())

    def _is_done(self) -> bool:
        folder = self._capture.journal_directory / ".firebird-cdc" / SNAPSHOTS
        if any(folder.glob("*.request")):
            return False
        states = self._read_states()
        if self.plan.kind == "initial" and len(states) < len(self._databases):
            return False
        if any(state.waiting for state in states):
            return False
        return not self._capture.committed() and not self._capture.written()

    def _left(self) -> str:
        states = self._read_states()
        waiting = [(each.kind, each.status, each.rows) for s in states for each in s.waiting]
        journals = len(self._capture.committed()), len(self._capture.live())
        return f"snapshots {waiting}, journals {journals}"

    def _told(self) -> str:
        output = self.directory / f"output-{self._lives}.txt"
        log = self._log.read_text("utf-8", "replace") if self._log.exists() else ""
        ours = [line for line in log.splitlines() if not _OF_THE_CLIENT.search(line)]
        return "\n".join((output.read_text("utf-8", "replace")[-2000:], *ours[-12:]))

    # The comparison

    def _compare(self, eye: Eye) -> None:
        self.states = self._read_states()
        by_path = {state.database: state for state in self.states}
        topics = eye.topics(f"{self._prefix}.")
        for database in self._databases:
            readings = {}
            for table in COLUMNS:
                topic = f"{self._prefix}.{str(database.path).replace('/', '_')}.{table}"
                messages = eye.read(topic, 0) if topic in topics else ()
                readings[table] = read_topic(table, messages, by_birth=self.plan.has_ddl)
            self.readings += readings.values()
            self._faults += compare(
                readings,
                by_path.get(str(database.path)),
                database.before,
                database.tables(),
                exactly=self.plan.transactional,
            )
        if found := instruments.complaints(self.directory):
            self._faults.append(found)
        for path in self.directory.glob("output-*.txt"):
            if "Traceback" in (told := path.read_text("utf-8", "replace")):
                self._faults.append(f"{path.name}: {told[-2000:]}")


def _await_end(life: Life, number: int) -> None:
    """Send a signal to LIFE, and wait until it has ended, but not for ever."""
    life.signal(number)
    end = time.monotonic() + _PATIENCE_S
    while life.code is None and time.monotonic() < end:
        time.sleep(_LOOK_S)


def run_rounds(
    directory: Path,
    broker: KafkaBroker,
    seed: str,
    rounds: int,
    *,
    places: Sequence[str] = (),
    side_by_side: int = 3,
    weather_pause_s: float = 20.0,
    tell: Callable[[str], None] = lambda text: None,
) -> Tally:
    """Run ROUNDS rounds at PLACES in turn, by default at all of them; what a round with a fault
    leaves stays in DIRECTORY."""
    tally = Tally()
    began = time.monotonic()
    chance = random.Random(f"{seed}/deck")
    deck = Deck(chance, places or chance.sample(PLACES, len(PLACES)))
    numbers = iter(range(1, rounds + 1))
    lock = threading.Lock()
    nurseries = [Nursery("snapshot_steps") for _ in range(side_by_side)]
    weather = Weather(broker, seed, tally.weather, weather_pause_s)
    weather.start()

    def work(nursery: Nursery, sites: Sites) -> None:
        eye = Eye(broker.bootstrap)
        try:
            while (number := _next(numbers, lock)) is not None:
                plan = deck.draw(f"{number}", random.Random(f"{seed}/{number}"))
                with sites.site(plan.site, directory / f"round-{number}") as site:
                    one, damage = Round(plan, site, broker.bootstrap), ""
                    try:
                        faults = one.run(nursery, eye)
                    except Exception:
                        faults = [traceback.format_exc()]
                    if faults and site.kills and (damage := site.finding()):
                        faults = []
                    with lock:
                        _count(tally, one, faults)
                        tally.damaged.update([damage] if damage else [])
                    site.close(keep=bool(faults))
                told = faults or damage or f"well, and at its end after {one.end_s:.1f} s"
                tell(f"round {number} {plan.mode} {plan.points}: {told}")
        finally:
            eye.close()

    try:
        with (
            Stack(directory / "stack") as stack,
            Sites(stack, tell) as sites,
            ThreadPoolExecutor(side_by_side) as workers,
        ):
            for done in [workers.submit(work, nursery, sites) for nursery in nurseries]:
                done.result()
    finally:
        for nursery in nurseries:
            nursery.close()
        weather.end()
    tally.seconds = time.monotonic() - began
    return tally


def _next(numbers: Any, lock: threading.Lock) -> int | None:
    with lock:
        return next(numbers, None)


def _count(tally: Tally, one: Round, faults: list[str]) -> None:
    tally.rounds[one.plan.mode] += 1
    tally.kills += one.kills
    tally.not_reached += one.not_reached
    tally.signals += one.signals
    tally.built += one.built
    tally.transactions += one.written
    tally.occupied += one.occupied
    tally.slowest_s = max(tally.slowest_s, one.end_s)
    for reading in one.readings:
        tally.events += reading.events
        tally.rows += reading.rows
        tally.repeats += len(reading.twice) + len(reading.again)
    for state in one.states:
        for snapshot in state.past:
            tally.ended[f"{snapshot.kind} {snapshot.status}"] += 1
            tally.windows += snapshot.windows
            if snapshot.status not in (Status.COMPLETED, Status.STOPPED):
                faults.append(f"a snapshot ended as {snapshot.status}")
    tally.faults += [f"round {one.plan.name} ({one.plan.mode}): {fault}" for fault in faults]
