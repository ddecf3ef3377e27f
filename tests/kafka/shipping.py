"""Instruments for the shipper's tests: a folder of journals, the running command, a consumer."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import forked
import pytest
from broker_topics import limit_messages
from columns import column
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from soaked import in_turn

from firebird_cdc.cli import main
from firebird_cdc.config import load_config
from firebird_cdc.demo.events import ends_of
from firebird_cdc.demo.processes import await_condition, stand_still, tail
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.ledger import SequenceLedger
from firebird_cdc.journal.folder.ledger_lock import database_key
from firebird_cdc.journal.folder.ledger_records import LedgerEntry
from firebird_cdc.journal.format import (
    JournalReader,
    JournalWriter,
    SharedJournal,
    SharedJournalWriter,
    Storage,
    TransactionWriter,
)
from firebird_cdc.journal.format.records import RecordWriter
from firebird_cdc.journal.shipper import loop

DATABASE = "/srv/fb/warehouse.fdb"
PATIENCE_S = 60.0
WAYS = {"plain": False, "tx": True}
"""Values of ``transactional``: the shipper without and with a transactional id."""
each_way = pytest.mark.parametrize("transactional", WAYS.values(), ids=WAYS)
either_way = in_turn("transactional", WAYS)
PROGRAM = str(Path(__file__).with_name("ended_program.py"))
_LOOK_S = 0.02  # at the memory of what ends by itself


ITEM = (column("ID", Storage.BIGINT, 1), column("NAME", Storage.TEXT))


class Folder:
    """A journal folder, filled as a server would: written as live, stamped, then renamed.

    Written beside the folder: without a server that holds its lock, a journal with no seal yet
    is what a dead one has left, and a shipper that starts just then removes it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)

    def write(
        self,
        sequence: int,
        rows: int = 1,
        *,
        database: str = DATABASE,
        first_id: int | None = None,
        name: str = "x",
        epoch: int = 0,
    ) -> Path:
        """Add a journal of ROWS inserts into ITEM; ids count on from FIRST_ID."""
        first = sequence * 1_000_000 if first_id is None else first_id

        def fill(writer: JournalWriter) -> None:
            table = writer.table("ITEM", ITEM)
            for number in range(rows):
                writer.insert(table, (first + number, name))

        return self.write_changes(sequence, fill, database=database, epoch=epoch)

    def write_changes(
        self,
        sequence: int,
        fill: Callable[[JournalWriter], None],
        *,
        database: str = DATABASE,
        epoch: int = 0,
        transaction: int = 48213,
        commit_us: int = 1_772_442_848_250_000,
        identity: uuid.UUID | None = None,
    ) -> Path:
        """Add a journal with what FILL writes."""
        identity = identity or uuid.uuid4()
        path = self.directory / f"{identity}.log"
        draft = self.directory.with_name(path.name)
        writer = JournalWriter(
            draft,
            uuid=identity,
            transaction=transaction,
            database=database,
            user="SYSDBA",
            epoch=epoch,
            started_us=commit_us,
        )
        fill(writer)
        writer.seal()
        writer.commit(sequence, commit_us)
        writer.stamp(sequence)
        writer.close()
        # A ``.live`` one of a process that has no mark here a shipper would finish, beside us.
        return draft.rename(path)

    @property
    def waiting(self) -> list[Path]:
        """The journals that are still there."""
        return sorted(self.directory.glob("*.log"))

    def quarantined(self) -> list[Path]:
        """Return the paths in the shipper's quarantine."""
        return sorted((self.directory / ".firebird-cdc" / "quarantine").glob("*"))


class SharedFile:
    """A shared journal of DATABASE, written beside FOLDER until it is closed and comes there."""

    def __init__(self, folder: Folder, database: str = DATABASE) -> None:
        self.path = folder.directory / f"{uuid.uuid4()}.log"
        self._draft = folder.directory.with_name(self.path.name)
        self.writer = SharedJournalWriter.create(self._draft, database=database)

    def add(
        self,
        sequence: int,
        rows: int = 1,
        *,
        name: str = "x",
        epoch: int = 0,
        fill: Callable[[RecordWriter], None] | None = None,
    ) -> str:
        """Add a transaction of ROWS inserts into ITEM, or with what FILL writes; its uuid."""
        written = TransactionWriter(self.writer.header, 48000 + sequence, "SYSDBA")
        if fill is not None:
            fill(written)
        else:
            table = written.table("ITEM", ITEM)
            for number in range(rows):
                written.insert(table, (sequence * 1_000_000 + number, name))
        written.seal()
        self.writer.append(written)
        self.writer.commit(written, sequence, commit_us=1_772_442_848_250_000, epoch=epoch)
        return str(written.uuid)

    def add_undone(self) -> None:
        """Add a transaction that was rolled back after its ``prepare``."""
        written = TransactionWriter(self.writer.header, 7, "SYSDBA")
        written.insert(written.table("ITEM", ITEM), (-1, "was rolled back"))
        written.seal()
        self.writer.append(written)
        self.writer.void(written)

    def arrive(self) -> Path:
        """Close it, and have it in the folder."""
        self.writer.close()
        return self._draft.rename(self.path)


class SharingServer:
    """A server whose transactions share journals that are open: the ledger says where they lie."""

    def __init__(self, folder: Folder, database: str = DATABASE) -> None:
        self.folder = folder
        self._database = database
        self._journals = JournalFolder(folder.directory, writes=False)
        key = database_key(database)
        self.ledger = SequenceLedger(self._journals, key, True, lambda: None, database)
        self._given: list[tuple[SharedJournalWriter, TransactionWriter]] = []

    def open(self) -> SharedJournalWriter:
        """Begin a journal."""
        path = self.folder.directory / f"{uuid.uuid4()}.log.live"
        return SharedJournalWriter.create(path, database=self._database)

    def write(self, journal: SharedJournalWriter, rows: int = 1, *, name: str = "x") -> str:
        """Append a transaction, which gets its number with the next group; return its uuid."""
        written = TransactionWriter(journal.header, 48_000, "SYSDBA")
        table = written.table("ITEM", ITEM)
        for number in range(rows):
            written.insert(table, (number, name))
        written.seal()
        journal.append(written)
        self._given.append((journal, written))
        return str(written.uuid)

    def publish(self, *, singles: int = 0) -> None:
        """Give numbers to what was written since the last time, and to SINGLES journals of their
        own behind that."""
        group = []
        with self.ledger.exclusive():
            last = self.ledger.last
            for journal, written in self._given:
                last += 1
                place = journal.commit(written, last, commit_us=1_772_442_848_250_000)
                home = journal.header.uuid
                group.append(LedgerEntry(place.uuid, place.stamp, home, *place[1:4]))
            paths = [self.folder.write(last + number) for number in range(1, singles + 1)]
            for path in paths:
                with JournalReader(path) as reader:
                    assert reader.stamp is not None
                    group.append(LedgerEntry(reader.header.uuid, reader.stamp))
            self.ledger.record(group, last + singles)
        self._given.clear()

    def close(self, journal: SharedJournalWriter) -> None:
        """Close a journal: its index is written, and then it gets its name."""
        journal.close()
        with suppress(FileNotFoundError):  # the shipper's recovery may have named it
            journal.path.rename(journal.path.with_suffix(""))

    def end(self) -> None:
        """Close what it has open of the folder."""
        self.ledger.close()
        self._journals.close()


class Event(NamedTuple):
    """One consumed message."""

    topic: str
    key: Any
    value: Any
    headers: dict[str, str]

    @property
    def payload(self) -> Any:
        """The envelope, with or without a schema around it."""
        return self.value.get("payload", self.value)

    @property
    def position(self) -> tuple[int, int]:
        """Place in the database's history."""
        source = self.payload["source"]
        return source["commitSeq"], source["pos"]


def read_topics(
    bootstrap: str,
    prefix: str,
    isolation: str = "read_committed",
    decode: Callable[[bytes, str, str], Any] = lambda content, _topic, _part: json.loads(content),
    *,
    settled: bool = True,
) -> dict[str, list[Event]]:
    """All messages of the topics that begin with PREFIX.

    SETTLED: all that is written by now is to be decided. A broker confirms a commit before it is
    seen in the partitions, so the end of a Kafka transaction is waited for. A test that has left
    one open reads what is readable now.
    Without the shipper's own topic of positions, unless PREFIX is its whole name.
    DECODE makes keys and values of bytes, the topic, and "key" or "value".
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = admin.list_topics(timeout=30).topics
    places = {
        name: [TopicPartition(name, number, OFFSET_BEGINNING) for number in topics[name].partitions]
        for name in sorted(topic for topic in topics if topic.startswith(prefix))
    }
    ends = ends_of(admin, [*chain(*places.values())]) if settled else {}
    deadline = monotonic() + PATIENCE_S
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"test-{uuid.uuid4()}",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the broker holds back that a partition has no more
        }
    )
    try:
        return {
            name: [
                event
                for place in parts
                for event in _read_partition(
                    consumer, place, ends.get((name, place.partition), 0), deadline, decode
                )
            ]
            for name, parts in places.items()
        }
    finally:
        consumer.close()


def _read_partition(
    consumer: Consumer,
    partition: TopicPartition,
    end: int,
    deadline: float,
    decode: Callable[[bytes, str, str], Any],
) -> list[Event]:
    """All up to END; up to what is readable if more isn't by DEADLINE."""
    consumer.assign([partition])
    events: list[Event] = []
    has_ended = False
    while True:
        message = consumer.poll(max(deadline - monotonic(), 0) if has_ended else PATIENCE_S)
        if message is None:
            assert has_ended, f"{partition} gives neither a message nor its end"
            return events
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            has_ended = True
            if message.offset() >= end:
                return events
            continue
        topic, key, value = message.topic(), message.key(), message.value()
        events.append(
            Event(
                topic,
                None if key is None else decode(key, topic, "key"),
                None if value is None else decode(value, topic, "value"),
                {name: content.decode() for name, content in message.headers() or []},
            )
        )


class ItemTopic:
    """Topic of the one table. It may be made to take messages up to 30,000 bytes only."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.name = f"{prefix}._srv_fb_warehouse.fdb.ITEM"
        self._bootstrap = bootstrap
        self._prefix = prefix
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def limit(self) -> None:
        """Make it, with that limit."""
        limited = NewTopic(self.name, 1, 1, config={"max.message.bytes": "30000"})
        self._admin.create_topics([limited])[self.name].result(30)

    def widen(self, limit: int = 1_048_588) -> None:
        """Have it take messages of LIMIT bytes from now on."""
        limit_messages(self._bootstrap, self.name, limit)

    def events(self) -> list[Event]:
        """Return the events that ``read_committed`` readers have got so far."""
        return read_topics(self._bootstrap, self._prefix).get(self.name, [])

    def places(self) -> list[tuple[int, int]]:
        """Return the same as places in the history."""
        return [event.position for event in self.events()]


class Shipper:
    """A running ``firebird-cdc ship`` and its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log_path = log

    @property
    def log(self) -> str:
        """Text that it has logged so far."""
        return self.log_path.read_text("utf-8") if self.log_path.exists() else ""

    def log_lines(self, part: str) -> list[str]:
        """The lines of the log that contain PART."""
        return [line for line in self.log.splitlines() if part in line]

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for its end; the exit code."""
        return self.process.wait(timeout_s)

    def terminate(self) -> int:
        """Stop it as a service manager does; the exit code."""
        self.process.terminate()
        return self.wait()

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """Let it stand still until killed or resumed."""
        stand_still(self.process.pid)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self.process.send_signal(signal.SIGCONT)

    def descriptors(self) -> tuple[int, int]:
        """Return the numbers of files and of sockets that it has open."""
        targets = []
        for descriptor in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                targets.append(str(descriptor.readlink()))
        sockets = sum(target.startswith("socket:") for target in targets)
        return len(targets) - sockets, sockets

    def resident_kib(self) -> int:
        """Its resident memory."""
        return self._memory_kib("VmRSS")

    def run_to_end(self) -> tuple[int, float]:
        """Wait for its end, however long; the exit code, and its most resident memory in MiB."""
        peak_kib = 0
        while self.process.poll() is None:
            with suppress(OSError, KeyError):  # it is just ending
                peak_kib = max(peak_kib, self._memory_kib("VmHWM"))
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_LOOK_S)
        return self.process.returncode, peak_kib / 1024

    def _memory_kib(self, figure: str) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(dict(line.split(":", 1) for line in lines)[figure].split()[0])

    def await_log(self, part: str, timeout_s: float = PATIENCE_S) -> str:
        """Wait for a log line that contains PART."""
        return self.await_that(lambda: self.log_lines(part), f"log line with {part!r}", timeout_s)[
            0
        ]

    def await_that(
        self, condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S
    ) -> Any:
        """Wait until CONDITION holds; shows the log if it does not."""
        try:
            return await_condition(what, condition, timeout_s)
        except Exception as error:
            raise AssertionError(
                f"{error}; the shipper's log:\n{tail(self.log_path, 60)}"
            ) from error


class Ship:
    """Starts shippers on one folder; ends those that are left over."""

    def __init__(self, folder: Folder, directory: Path, bootstrap: str, prefix: str) -> None:
        self.folder = folder
        self.options: dict[str, str] = {
            "connector.name": "depot-cdc",
            "connector.journal.directory": str(folder.directory),
            "kafka.producer.bootstrap.servers": bootstrap,
            "kafka.topic.prefix": prefix,
            "snapshot.mode": "never",
            # A broker that is started again is to be found soon.
            "kafka.producer.reconnect.backoff.max.ms": "300",
        }
        self._directory = directory
        self._running: list[Shipper] = []

    def start(self, *arguments: str, program: Sequence[str] = (PROGRAM,)) -> Shipper:
        """Start ``firebird-cdc ship`` with the options as they are, by PROGRAM, a script and its
        first arguments; the usual one also fails if the shipper leaves a Kafka client behind."""
        number = len(self._running)
        config = self._config(number)
        log = self._directory / f"ship-{number}.log"
        logging = self._directory / f"logging-{number}.yaml"
        logging.write_text(f"level: debug\nfile: {log}\n")
        command = ["ship", "--config", str(config), "--logging", str(logging), *arguments]
        output = (self._directory / f"output-{number}.txt").open("wb")
        with output:
            process = forked.Popen(
                [sys.executable, *program, *command],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        shipper = Shipper(process, log)
        self._running.append(shipper)
        return shipper

    def _config(self, number: int) -> Path:
        """A file of the options as they are now."""
        path = self._directory / f"connector-{number}.yaml"
        path.write_text("".join(f"{key}: {value}\n" for key, value in self.options.items()))
        return path

    def write_config(self) -> Path:
        """A file of the options as they are now, for a command that runs beside shippers."""
        return self._config(len(self._running))

    def journal(self, action: str, *arguments: str) -> int:
        """Run ``firebird-cdc journal ACTION`` in this process; its exit code."""
        return main(["journal", action, "--config", str(self.write_config()), *arguments])

    def once_here(self) -> int:
        """Run ``ship --once`` in this process, parts of which a test may change; its exit code."""
        config = load_config(self._config(len(self._running)))
        return loop.Shipper(config, once=True).run()

    def once(self) -> Shipper:
        """Run ``ship --once`` to its end."""
        shipper = self.start("--once")
        shipper.wait()
        return shipper

    def output(self, shipper: Shipper) -> str:
        """Return the text that SHIPPER has printed."""
        number = self._running.index(shipper)
        return (self._directory / f"output-{number}.txt").read_text()

    def close(self) -> None:
        """End what still runs."""
        for shipper in self._running:
            if shipper.process.poll() is None:
                shipper.kill()


def damage(journal: Path, transaction: str, at: float = 0.75) -> bytes:
    """Flip a bit of a transaction in a shared journal, AT a share of its length; its content
    before."""
    sound = journal.read_bytes()
    with SharedJournal(journal) as shared:
        place = shared.find(transaction)
    assert place is not None
    damaged = bytearray(sound)
    damaged[place.offset + int(place.stamp.journal_length * at)] ^= 0xFF
    journal.write_bytes(damaged)
    return sound


def ids(events: Sequence[Event]) -> list[int]:
    """The ids of the inserted rows, in the order in which they came."""
    return [event.payload["after"]["ID"] for event in events]


def first_occurrences(numbers: Sequence[int]) -> list[int]:
    """NUMBERS without repeats, each where it came first."""
    return list(dict.fromkeys(numbers))


def last_occurrences(places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """PLACES without repeats, each where it came last.

    Without a transactional id the client may have sent, in a batch of its own, what is behind an
    event that is refused: that comes once more, and then in order.
    """
    return list(dict.fromkeys(reversed(places)))[::-1]


def use_transactions(ship: Ship, prefix: str, transactional: bool) -> None:
    """Give SHIP's shippers a transactional id, where they are to have one."""
    if transactional:
        ship.options["kafka.producer.transactional.id"] = f"{prefix}-id"
