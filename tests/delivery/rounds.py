"""Rounds of a shipper that dies again and again, while journals arrive and the broker suffers.

A round has one journal folder and topics of its own. Lives follow each other: a shipper starts,
ships what is there and what arrives, and is killed at a point (ship_steps.py); the last life ends
in order. Then a read_committed consumer compares (delivery_oracle.py). Rounds run side by side on
one broker, which a thread of its own kills, stops and starts (``Weather``).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from delivery_oracle import (
    Finding,
    History,
    Journal,
    Message,
    compare,
    compare_positions,
    finish_shared,
    make_history,
    understood,
    understood_position,
)
from gate import Gate
from ship_steps import POSITION_TOPIC, all_points
from shipping import Folder
from weather import WEATHER, Weather

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.processes import tail
from firebird_cdc.errors import JournalError
from firebird_cdc.journal.format import SharedJournal, SharedJournalWriter

_HERE = Path(__file__).parent
_PATIENCE_S = 180.0  # for a journal or the end of a life, or for the end of a topic
_LOOK_S = 0.004
_SHORT_S = 1.5  # what a Kafka transaction may take where connections are cut
_DATABASES = ("/srv/fb/alpha.fdb", "/srv/fb/beta.fdb", "/srv/fb/gamma.fdb")
_POINT_LIVES = 3  # lives of a round that end at a point, at most
_HITS = {"message": 400, "take_in": 6, "open": 20, "settle": 20, "delete": 60, "commit": 4}
# of points that are passed often: up to which time they kill


@dataclass
class Tally:
    """Results of many rounds."""

    rounds: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    not_reached: Counter[str] = field(default_factory=Counter)
    weather: Counter[str] = field(default_factory=Counter)
    journals: int = 0
    shared: int = 0
    events: int = 0
    repeats: int = 0
    split: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    @property
    def never_fired(self) -> list[str]:
        """Points at which no shipper died."""
        return sorted(set(all_points()) - set(self.kills))

    def __str__(self) -> str:
        def listed(counts: Counter[str]) -> str:
            return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"

        return (
            f"rounds {self.rounds.total()}: {listed(self.rounds)}\n"
            f"kills {self.kills.total()}: {listed(self.kills)}\n"
            f"points not reached in their life: {listed(self.not_reached)}\n"
            f"points that never fired: {', '.join(self.never_fired) or 'none'}\n"
            f"broker: {listed(self.weather)}\n"
            f"journals {self.journals}, of which {self.shared} share others\nevents {self.events}\n"
            f"repeats without transactions {self.repeats}\n"
            f"transactions split over several of Kafka's {self.split}\n"
            f"seconds {self.seconds:.0f}\n"
            + "".join(f"FAULT {text}\n" for text in self.faults)
            + f"faults {len(self.faults)}"
        )


class Nursery:
    """A process that brings up shippers, one after the other (shipper_nursery.py).

    STEPS: the module that has their points. COMMAND: the words that run a Python file.
    """

    def __init__(
        self,
        steps: str = "ship_steps",
        command: Callable[[Path], list[str]] = lambda script: [sys.executable, str(script)],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [*command(_HERE / "shipper_nursery.py"), steps],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, order: dict[str, Any]) -> Life:
        """Start a shipper."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return Life(int(self._process.stdout.readline()), self._process.stdout)

    def close(self) -> None:
        """End it, and the shipper that may run."""
        self._process.kill()
        self._process.communicate()


class Life:
    """A running shipper."""

    def __init__(self, pid: int, answers: Any) -> None:
        self.pid = pid
        self.status: int | None = None
        self._waiter = threading.Thread(target=self._wait, args=(answers,), daemon=True)
        self._waiter.start()

    def _wait(self, answers: Any) -> None:
        self.status = int(answers.readline() or signal.SIGKILL)

    @property
    def code(self) -> int | None:
        """Its exit code, negative the signal that ended it; None while it runs."""
        return None if self.status is None else os.waitstatus_to_exitcode(self.status)

    def signal(self, number: int) -> None:
        """Send a signal, if it is still there."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Eye:
    """Reads topics of a broker; kept over rounds, since a client takes time to come up."""

    def __init__(self, bootstrap: str) -> None:
        def client(isolation: str) -> Consumer:
            return Consumer(
                {
                    "bootstrap.servers": bootstrap,
                    "group.id": f"test-{uuid.uuid4()}",
                    "isolation.level": isolation,
                    "enable.partition.eof": True,
                    "fetch.wait.max.ms": 10,
                    "reconnect.backoff.max.ms": 200,
                    "log_level": 0,
                }
            )

        self._consumer = client("read_committed")
        self._all = client("read_uncommitted")

    def close(self) -> None:
        """End its clients."""
        self._consumer.close()
        self._all.close()

    def topics(self, prefix: str) -> dict[str, int]:
        """The topics that begin with PREFIX, and how many partitions they have."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                listed = self._consumer.list_topics(timeout=10).topics
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
            else:
                return {
                    name: len(about.partitions)
                    for name, about in listed.items()
                    if name.startswith(prefix)
                }

    def read(self, topic: str, partition: int) -> Iterator[Any]:
        """Yield what a read_committed consumer gets of a partition, to its very end.

        The end is that of everything that was written: what is behind an open Kafka transaction
        is waited for.
        """
        place = TopicPartition(topic, partition, 0)
        self._consumer.assign([place])
        deadline = time.monotonic() + _PATIENCE_S
        try:
            while True:
                message = self._consumer.poll(1.0)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{topic}[{partition}] does not come to its end")
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    if message.offset() >= self._end(place):
                        return
                elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                    raise KafkaException(error)
        finally:
            self._consumer.unassign()

    def _end(self, place: TopicPartition) -> int:
        deadline = time.monotonic() + _PATIENCE_S
        while True:  # the broker may be away, and the client tells the end once
            try:
                return int(self._all.get_watermark_offsets(place, 5)[1])
            except KafkaException:
                if time.monotonic() > deadline:
                    raise


@dataclass
class Plan:
    """Properties of a round."""

    name: str
    chance: random.Random
    transactional: bool
    archive: bool = False
    bad: bool = False
    shared: bool = False  # most transactions share journals
    impatient: bool = False
    points: Sequence[tuple[str, int]] = ()
    faults: tuple[str, ...] = ()
    shut_first: bool = False  # no broker can be reached in the first life
    journals: int = 0  # 0: by chance
    split: int = 0  # messages of a journal in one Kafka transaction; 0: by chance

    @property
    def mode(self) -> str:
        """For the tally."""
        return "transactional" if self.transactional else "plain"


class Deck:
    """Hands out points until each has fired; thread-safe."""

    def __init__(self, chance: random.Random) -> None:
        self._needs = all_points()
        self._chance = chance
        self._lock = threading.Lock()
        self._left: list[str] = []
        self._missed: Counter[str] = Counter()
        self.fired: set[str] = set()
        self._shuffle()

    def _shuffle(self) -> None:
        self._left = list(self._needs)
        self._chance.shuffle(self._left)

    @property
    def complete(self) -> bool:
        """Tell whether every point has fired."""
        return len(self.fired) == len(self._needs)

    def draw(self, name: str, chance: random.Random) -> Plan:
        """Return the plan of a round around the point that comes next."""
        with self._lock:
            if self.complete and not self._left:
                self._shuffle()
            rest = [point for point in self._left if point not in self.fired] or self._left
            first = rest[0] if rest else chance.choice(list(self._needs))
            need = self._needs[first]
            has = {
                "transactional": chance.random() < 0.7,
                "archive": chance.random() < 0.4,
                "bad": chance.random() < 0.25,
                "shared": chance.random() < 0.5,
                "impatient": chance.random() < 0.15,
            }
            if need:
                has[need] = True
            has["shared"] &= need != "bad"  # or nothing is linked into the quarantine
            has["transactional"] |= has["impatient"]
            fitting = [
                point
                for point in self._left
                if point != first and (not self._needs[point] or has[self._needs[point]])
            ]
            drawn = [first, *fitting[: chance.randint(1, _POINT_LIVES - 1)]]
            # An archive is packed when a shipper starts on it.
            drawn.sort(key=lambda point: point.startswith(("pack", "name_segment")))
            self._left = [point for point in self._left if point not in drawn]
            if drawn[0].startswith(("pack", "name_segment")):
                drawn.insert(0, "delete.after")
            hits = [(point, self._hit(point, chance)) for point in drawn]
        return Plan(name, chance, points=hits, **has)

    def _hit(self, point: str, chance: random.Random) -> int:
        if self._missed[point]:
            return 1
        step, _, side = point.partition(".")
        if side == "during":
            return chance.randint(1, 40)
        return chance.randint(1, _HITS.get(step, 1))

    def note(self, point: str, fired: bool) -> None:
        """POINT was armed in a life that has ended."""
        with self._lock:
            if fired:
                self.fired.add(point)
            else:
                self._missed[point] += 1
                if point not in self.fired and point not in self._left:
                    self._left.append(point)


class Round:
    """One round; ``run`` returns what is wrong with it."""

    def __init__(self, plan: Plan, directory: Path, bootstrap: str) -> None:
        chance = plan.chance
        self.plan = plan
        self.directory = directory
        self.history: History
        self.finding = Finding()
        self.fates: list[tuple[str, bool]] = []
        self._bootstrap = bootstrap
        self._folder = Folder(_made(directory / "journals"))
        self._staging = Folder(_made(directory / "staging" / "drafts"))
        self._archive = directory / "archive" if plan.archive else None
        self._prefix = f"d{uuid.uuid4().hex[:10]}"
        self._partitions = 1 if plan.faults else chance.choice((1, 1, 3))
        self._split = plan.split or (
            1_000_000 if plan.faults else chance.choice((20, 60, 300, 1_000_000))
        )
        self._batch_s = chance.choice((0.01, 0.1, 0.5))
        self._gate: Gate | None = None
        self._arrived = 0
        self._files = 0
        self._lives = 0
        self._faults: list[str] = []

    # The folder

    def _prepare(self) -> None:
        plan, chance = self.plan, self.plan.chance
        self.history = make_history(
            chance,
            self._prefix,
            databases=_DATABASES[: chance.randint(1, 3)],
            journals=plan.journals or (200 if chance.random() < 0.1 else chance.randint(6, 40)),
            bad=1 if plan.bad else 0,
            loose=plan.transactional or self._partitions == 1,
        )
        if plan.shared:
            self._drafts = list(self._share(chance))
        else:
            self._drafts = [[journal.write(self._staging)] for journal in self.history.journals]
        if self._partitions > 1:
            self._make_topics()

    def _share(self, chance: random.Random) -> Iterator[list[Path]]:
        """Write the journals, most of them into shared ones; yield the files that appear together.

        With a transactional id those of a database may have numbers between those of each other:
        that is what the offset topic makes up for, where one appears before the other.
        """
        left = list(self.history.journals)
        while left:
            files: dict[tuple[str, int], tuple[SharedJournalWriter, list[Journal]]] = {}
            paths = []
            singles = 0
            count = chance.randint(1, 12)
            for journal in left[:count]:
                if chance.random() < 0.15:
                    paths.append(journal.write(self._staging))
                    singles += 1
                    continue
                file = chance.randrange(3) if self.plan.transactional else singles
                key = journal.database, file
                if key not in files:
                    path = self._staging.directory / f"{uuid.uuid4()}.log"
                    writer = SharedJournalWriter.create(path, database=journal.database)
                    files[key] = writer, []
                    paths.append(path)
                journal.share(files[key][0])
                files[key][1].append(journal)
            for writer, journals in files.values():
                writer.close()
                finish_shared(writer.path, journals)
            del left[:count]
            yield paths

    def _make_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})
        wanted = [NewTopic(name, self._partitions) for name in self.history.topics()]
        deadline = time.monotonic() + _PATIENCE_S
        while wanted:  # the broker may end amid a request
            made = admin.create_topics(wanted, operation_timeout=60)
            wanted = [topic for topic in wanted if not self._is_made(made[topic.topic], deadline)]

    def _remove_topics(self, eye: Eye) -> None:
        """Have the broker forget them: with thousands it needs a minute to start."""
        admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})
        names = [*eye.topics(f"{self._prefix}."), *eye.topics(f"{POSITION_TOPIC}{self._prefix}")]
        for removed in admin.delete_topics(names).values() if names else ():
            with suppress(KafkaException):  # the broker may end amid a request
                removed.result(_PATIENCE_S)

    @staticmethod
    def _is_made(made: Future[None], deadline: float) -> bool:
        try:
            made.result(_PATIENCE_S)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return True
            if time.monotonic() > deadline:
                raise
            return False
        return True

    def _arrive(self) -> None:
        """Have the next journals appear, each whole: one that is ``.live``, of a process that has
        no mark here, the shipper would finish itself, beside us."""
        for draft in self._drafts[self._arrived]:
            if self.plan.bad:
                os.utime(draft, (0, 0))  # as old as one that was really damaged on disk
            draft.rename(self._folder.directory / draft.name)
            self._files += 1
        self._arrived += 1

    @property
    def _all_here(self) -> bool:
        return self._arrived == len(self._drafts)

    # Lives

    def run(self, nursery: Nursery, eye: Eye) -> list[str]:
        """Live all lives, then compare."""
        self._prepare()
        chance = self.plan.chance
        if self.plan.shut_first or (not self.plan.faults and chance.random() < 0.25):
            self._gate = Gate(int(self._bootstrap.partition(":")[2]))
            if not self.plan.shut_first:
                self._gate.open()
        try:
            for _ in range(chance.randint(0, len(self._drafts) * 3 // 4)):
                self._arrive()
            for point, hit in self.plan.points:
                self._live(nursery, point, hit)
                if self.plan.shut_first and self._lives == 1:
                    assert self._gate is not None
                    self._gate.open()
            while not self._all_here and chance.random() < 0.5:
                self._arrive()
            self._live(nursery, "", 0)
        finally:
            if self._gate is not None:
                self._gate.end()
        if not self._faults:
            self._look(eye)
        if not self._faults:
            self._remove_topics(eye)
        return self._faults

    def _order(self, point: str, hit: int, *more: str) -> dict[str, Any]:
        self._lives += 1
        options = {
            "connector.name": "harness",
            "connector.journal.directory": self._folder.directory,
            "kafka.producer.bootstrap.servers": (
                self._bootstrap if self._gate is None else f"127.0.0.1:{self._gate.port}"
            ),
            "kafka.producer.reconnect.backoff.max.ms": 500,
            "kafka.topic.prefix": self._prefix,
            "snapshot.mode": "never",
            "connector.shipper": "external",
            "key.converter.schemas.enable": "false",
            "value.converter.schemas.enable": "false",
            "table.exclude.list": r".*\.HIDDEN",
            "tombstones.on.delete": str(self.history.tombstones).lower(),
            "provide.transaction.metadata": str(self.history.metadata).lower(),
            "event.processing.failure.handling.mode": "warn" if self.plan.bad else "fail",
        }
        if self.plan.transactional:
            options["kafka.producer.transactional.id"] = f"{self._prefix}-id"
            if self._gate is not None:
                options["kafka.producer.transaction.timeout.ms"] = int(_SHORT_S * 1000)
        if self._archive is not None:
            options["connector.journal.archive.directory"] = self._archive
            options["connector.journal.archive.segment.bytes"] = 65536
        if self.plan.impatient and point.startswith("abort"):
            options["kafka.producer.close.timeout.ms"] = 0
        config = self.directory / f"connector-{self._lives}.yaml"
        config.write_text("".join(f"{key}: {value}\n" for key, value in options.items()))
        logging = self.directory / f"logging-{self._lives}.yaml"
        logging.write_text(f"level: debug\nfile: {self._log}\n")
        return {
            "arguments": ["--config", str(config), "--logging", str(logging), *more],
            "output": str(self.directory / f"output-{self._lives}.txt"),
            "life": self._lives,
            "point": point,
            "hit": hit,
            "faults": list(self.plan.faults),
            "patches": {
                "shipper.delivery.transactional.SPLIT_MESSAGES": self._split,
                "shipper.delivery.kafka_transaction.BATCH_S": self._batch_s,
            },
        }

    @property
    def _log(self) -> Path:
        return self.directory / f"ship-{self._lives}.log"

    def _live(self, nursery: Nursery, point: str, hit: int) -> None:
        """One life of a shipper, to its death at POINT or, if that isn't reached, its end."""
        chance = self.plan.chance
        # A single run gives up soon where Kafka transactions are short.
        once = not point and self._all_here and chance.random() < 0.5 and self._gate is None
        life = nursery.start(self._order(point, hit, *["--once"][: int(once)]))
        deadline = time.monotonic() + _PATIENCE_S
        pace_s = chance.choice((0.0, 0.002, 0.02))
        due = cut_at = time.monotonic()
        cut_at += chance.uniform(0.3, 0.8)
        # A life that is to die leaves journals for those after it.
        share = 1.0 if not point else chance.uniform(0.5, 0.9)
        last = max(self._arrived, int(len(self._drafts) * share))
        told = False
        seen = gone = self._gone()
        fruitless = 0  # times without a cut in which no journal went
        while life.code is None:
            now = time.monotonic()
            if self._arrived < last and now >= due:
                self._arrive()
                due = now + pace_s
            elif (
                not told
                and not once
                and self._arrived >= last
                and not self._waiting()
                and self._is_up()
            ):
                life.signal(signal.SIGTERM)
                told = True
            if self._gate is not None and now >= cut_at and not self.plan.faults:
                self._gate.shut()
                if chance.random() < 0.3:  # longer than a Kafka transaction may take
                    time.sleep(chance.uniform(0.0, 2 * _SHORT_S))
                self._gate.open()
                # A shipper gets as far as it gets between two cuts: on a slow machine nowhere,
                # unless they come more rarely until it gets on.
                fruitless = 0 if self._gone() > gone else fruitless + 1
                gone = self._gone()
                pause_s = chance.uniform(0.3, 3.0) * 2 ** max(fruitless - 1, 0)
                cut_at = time.monotonic() + pause_s
            if now > deadline and self._gone() > seen:
                seen, deadline = self._gone(), now + _PATIENCE_S  # slowly, but it gets on
            elif now > deadline:
                self._faults.append(
                    f"life {self._lives} ({point or 'last'}) neither dies nor ends:\n"
                    f"{tail(self._log, 12)}"
                )
                life.signal(signal.SIGKILL)
                deadline += _PATIENCE_S
            time.sleep(_LOOK_S)
        while self._arrived < last:
            self._arrive()
        self._note_end(life, point)

    def _waiting(self) -> bool:
        return any(path.suffix == ".log" for path in self._folder.directory.iterdir())

    def _gone(self) -> int:
        """Return the number of files that were shipped or set aside."""
        names = (path.name for path in self._folder.directory.iterdir())
        return self._files - sum(name.endswith(".log") for name in names)

    def _is_up(self) -> bool:
        return self._log.exists() and "shipping journals of" in self._log.read_text("utf-8")

    def _note_end(self, life: Life, point: str) -> None:
        fired = life.code == -signal.SIGKILL
        if point:
            self.fates.append((point, fired))
        output = (self.directory / f"output-{self._lives}.txt").read_text("utf-8")
        if "Traceback" in output or not ((fired and point) or life.code == 0):
            self._faults.append(
                f"life {self._lives} ({point or 'last'}) ends with {life.code}: {output[-2000:]}"
                f"{tail(self._log, 6)}"
            )

    # The comparison

    def _look(self, eye: Eye) -> None:
        topics = eye.topics(f"{self._prefix}.")
        databases = {
            self.history.topic(journal.database, table): journal.database
            for journal in self.history.journals
            for table in ("ITEM", "PART", "LOOSE")
        }
        found: defaultdict[tuple[str, str], list[Message]] = defaultdict(list)
        for topic in sorted(topics):
            if topic not in databases and topic != self.history.transaction_topic:
                continue
            for partition in range(topics[topic]):
                previous: Message | None = None
                for raw in eye.read(topic, partition):
                    of, message = understood(topic, partition, raw, previous, self.history)
                    found[topic, of or databases[topic]].append(message)
                    previous = message
        self.finding = compare(
            self.history,
            found,
            exactly=self.plan.transactional,
            whole_up_to=self._split,
        )
        self._faults += self.finding.faults
        if self.plan.transactional:
            kept = f"{POSITION_TOPIC}{self._prefix}"
            raw_positions = eye.read(kept, 0) if kept in eye.topics(kept) else ()
            positions = [understood_position(raw) for raw in raw_positions]
            self._faults += compare_positions(
                self.history, positions, self.finding.tags, whole_up_to=self._split
            )
        self._look_at_folder()

    def _look_at_folder(self) -> None:
        left = sorted(path.name for path in self._folder.directory.glob("*.log*"))
        finding = Finding()
        finding.tell("journals left", "the folder", left)
        aside = {path.name for path in self._folder.quarantined() if path.suffix == ".log"}
        bad = {f"{journal.uuid}.log" for journal in self.history.journals if journal.is_bad}
        finding.tell("not set aside", "quarantine", sorted(bad - aside))
        finding.tell("set aside", "quarantine", sorted(aside - bad))
        if self._archive is not None:
            kept = _archived(self._archive)
            good = [journal for journal in self.history.journals if not journal.is_bad]
            wanted = {f"{journal.uuid}.log": {journal.crc} for journal in good}
            wrong = [name for name in wanted if kept.get(name) != wanted[name]]
            finding.tell("missing or changed", "the archive", wrong)
            shared = {f"{each.uuid}.log" for each in self.history.journals if each.home}
            strange = kept.keys() - wanted.keys() - (bad & shared)
            finding.tell("nobody's", "the archive", sorted(strange))
        self._faults += finding.faults


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory


def _archived(archive: Path) -> dict[str, set[int]]:
    """The journals in the archive, packed or not, and the checksums that they have there."""
    found: defaultdict[str, set[int]] = defaultdict(set)

    def note(name: str, content: bytes) -> None:
        try:
            shared = SharedJournal(name, content)
        except JournalError:
            found[name].add(zlib.crc32(content))
            return
        for place in shared.places:
            own = content[place.offset : place.offset + place.stamp.journal_length]
            found[f"{place.uuid}.log"].add(zlib.crc32(own))

    for path in archive.glob("*.log"):
        note(path.name, path.read_bytes())
    for segment in archive.glob("*.zip"):
        with zipfile.ZipFile(segment) as packed:
            for name in packed.namelist():
                note(name, packed.read(name))
    return dict(found)


def run_rounds(
    directory: Path,
    broker: KafkaBroker,
    seed: str,
    rounds: int,
    *,
    side_by_side: int = 3,
    weather_pause_s: float = 8.0,
    extra: int = 0,
    tell: Callable[[str], None] = lambda text: None,
) -> Tally:
    """Run ROUNDS rounds, and up to EXTRA more until every point has fired, the broker has suffered
    whatever it can, and a transaction was split: when each comes depends on the machine."""
    tally = Tally()
    began = time.monotonic()
    deck = Deck(random.Random(f"{seed}/deck"))
    numbers = iter(range(1, rounds + extra + 1))
    lock = threading.Lock()
    nurseries = [Nursery() for _ in range(side_by_side)]
    weather = Weather(broker, seed, tally.weather, weather_pause_s)
    weather.start()

    def work(nursery: Nursery) -> None:
        eye = Eye(broker.bootstrap)
        try:
            while True:
                with lock:
                    number = next(numbers, None)
                    seen_all = deck.complete and tally.split and {*tally.weather} == WEATHER
                if number is None or (number > rounds and seen_all):
                    return
                plan = deck.draw(f"{number}", random.Random(f"{seed}/{number}"))
                one = Round(plan, directory / f"round-{number}", broker.bootstrap)
                try:
                    faults = one.run(nursery, eye)
                except Exception as error:
                    faults = [f"{type(error).__name__}: {error}"]
                for point, fired in one.fates:
                    deck.note(point, fired)
                with lock:
                    _count(tally, one, faults)
                tell(f"round {number} {plan.mode} {plan.points}: {faults or 'well'}")
        finally:
            eye.close()

    try:
        with ThreadPoolExecutor(side_by_side) as workers:
            for done in [workers.submit(work, nursery) for nursery in nurseries]:
                done.result()
    finally:
        for nursery in nurseries:
            nursery.close()
        weather.end()
    tally.seconds = time.monotonic() - began
    return tally


def _count(tally: Tally, one: Round, faults: list[str]) -> None:
    tally.rounds[one.plan.mode] += 1
    for point, fired in one.fates:
        (tally.kills if fired else tally.not_reached)[point] += 1
    tally.journals += len(one.history.journals)
    tally.shared += sum(journal.home is not None for journal in one.history.journals)
    tally.events += one.finding.events
    tally.repeats += one.finding.repeats
    tally.split += one.finding.split
    tally.faults += [f"round {one.plan.name} ({one.plan.mode}): {fault}" for fault in faults]
