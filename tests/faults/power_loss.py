"""Cuts of the power: what was committed is what the journals say, on every disk that is possible.

A recording is some seconds of random work on the engine with the plugin, under a preload
(power_recorder.c) that writes down every operation on the database and the journals. Then the
power is cut at many places of that record: power_disk.py makes a disk that could have been left,
a fresh engine opens it, and what recovery makes of it is held against promise 1 and 2 of the
design.

    python tests/faults/power_loss.py --cuts 200 --seed 1      prints a tally; exit code 1: broken

By turns, the recordings have slow writes of inventory pages, cuts in a window (power_places.py), or
a first run that finds no journal folder. Under Classic the second process of a life begins beside
the first one, or once that confirms, so that it joins it; and two processes at once open a share of
the disks.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import pickle
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

_HERE = Path(__file__).resolve().parent
# Started as a program or imported by a test: the modules beside this one, and others of tests.
sys.path[:0] = [str(_HERE), str(_HERE.parent / "engine"), str(_HERE.parent)]

from capture import (  # noqa: E402
    PATIENCE_S,
    Capture,
    Client,
    Journal,
    Row,
    after,
    image,
    read_journal,
    read_open,
    until,
)
from effects import EFFECTS, assert_adds_up  # noqa: E402
from engine_hangs import EngineHangs, await_unless_engine_hangs  # noqa: E402
from power_disk import (  # noqa: E402
    NOTE,
    POLICIES,
    RENAME,
    WRITE,
    Disk,
    Record,
    forget_start,
    read_records,
)
from power_places import places, windows  # noqa: E402
from power_workload import FILL, TABLES  # noqa: E402
from shared_folder import is_of_version_1, readers_in  # noqa: E402
from transaction_pages import ACTIVE, DEAD, on_disk  # noqa: E402

from firebird_cdc.demo.processes import Stack, has_input  # noqa: E402
from firebird_cdc.errors import JournalError, JournalShared  # noqa: E402
from firebird_cdc.journal.folder import ledger_records  # noqa: E402
from firebird_cdc.journal.folder.join_file import is_joinable  # noqa: E402
from firebird_cdc.journal.folder.ledger_lock import Noted  # noqa: E402
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY  # noqa: E402
from firebird_cdc.journal.format import Gap, read_envelope  # noqa: E402
from firebird_cdc.journal.format.layout import FILE_BLOCK  # noqa: E402

_WORKLOAD = _HERE / "power_workload.py"
_PAGE_SIZE = 8192
_OURS = 900_000_000  # marks from here on are of the check
_CUTS_PER_RECORDING = 25
_PATIENCE_S = 3 * PATIENCE_S  # a busy machine opens a disk slowly
# Files that are written in memory: no call tells when.
_MAPPED = re.compile(r"/(tickets/page|counters|slots/[^/]+)$")
_UNINTERESTING = shutil.ignore_patterns("engine", "stack", "power_recorder.so")
MODES = ("Super", "Classic")
FORMS = ("own", "shared")  # of journals: one for each transaction, or shared by small ones
_MOST_HANGS = 3  # of the engine, in one recording
_SLOWNESS = 30  # times as long, of writes of inventory pages
_ROOM = 4 << 30  # bytes
_BOTH = 0.4  # of the cuts under Classic are followed by a start of two processes at once
_JOINED = 0.5  # of the lives under Classic have the second process begin once the first confirms


def compile_recorder(library: Path) -> None:
    """Compile power_recorder.c."""
    source = str(_HERE / "power_recorder.c")
    argv = ["gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared"]
    subprocess.run([*argv, "-o", str(library), source, "-ldl"], check=True)


@dataclass
class Seen:
    """Facts that the world outside knew at a moment: they must still hold after the cut."""

    acknowledged: set[int] = field(default_factory=set)  # marks whose commit had returned
    numbers: dict[UUID, tuple[int, int]] = field(default_factory=dict)  # of visible journals
    shipped: dict[UUID, Path] = field(default_factory=dict)  # taken by the shipper, copied here


@dataclass(frozen=True)
class Scene:
    """Special conditions of a recording."""

    is_slow: bool = False  # writes of inventory pages take long
    is_directed: bool = False  # and the power is cut only in a window (power_places.py), if any
    maker: str = ""  # who makes the journal folder: "bridge", "shipper"; "": it was there

    @property
    def names(self) -> list[str]:
        """Return what is special, in words."""
        names = ["slow inventory writes"] * self.is_slow + ["directed"] * self.is_directed
        return names + [f"folder made by the {self.maker}"] * bool(self.maker)


_SCENES = (
    Scene(),
    Scene(is_slow=True, is_directed=True),
    Scene(maker="bridge"),
    Scene(is_slow=True),
    Scene(is_slow=True, maker="shipper"),
)


@dataclass(frozen=True)
class Recording:
    """Records of a recording, and the disk as it was before, for each policy."""

    scene: Scene
    records: list[Record]
    disks: dict[str, Disk]
    windows: set[int]
    has_joined: bool  # a process that began without a bridge, as others confirmed


@dataclass
class Outcome:
    """Findings after one cut."""

    cut: str
    mode: str = ""
    cases: list[str] = field(default_factory=list)  # what was special about it
    lost: list[str] = field(default_factory=list)  # committed, and in no journal
    phantoms: list[str] = field(default_factory=list)  # in a journal, and not committed
    duplicated: list[str] = field(default_factory=list)  # in several journals
    wrong: list[str] = field(default_factory=list)  # any other promise that does not hold
    recovered: int = 0  # journals that became visible only after the cut
    hidden_rows: int = 0  # committed ones that the engine's scans skip
    gaps: int = 0  # marked; with synced journals there is nothing to mark

    @property
    def problems(self) -> list[str]:
        return self.lost + self.phantoms + self.duplicated + self.wrong


class PowerLoss:
    """One engine with the plugin, a folder that is recorded, and the cuts in it."""

    def __init__(
        self,
        directory: Path,
        stack: Stack,
        mode: str,
        fsync: bool = True,
        keep: Path | None = None,
        shares: bool = False,
    ) -> None:
        """``mode``: Super or Classic; ``fsync``: connector.journal.fsync; ``keep``: a folder for
        copies of all that a cut leaves that breaks a promise; ``shares``: small transactions share
        journals."""
        self._fsync = fsync
        self._keep = keep
        self._directory = directory
        self._mode = mode
        self._disk = directory / "disk"
        self._disk.mkdir()
        self._recorder = directory / "power_recorder.so"
        compile_recorder(self._recorder)
        self._capture = capture = Capture(directory, stack, {"ServerMode": mode})
        capture.database = self._disk / "test.fdb"
        capture.journal_directory = self._disk / "journals"
        capture.options["connector.journal.directory"] = str(capture.journal_directory)
        capture.options["connector.journal.fsync"] = "true" if fsync else "false"
        capture.options["connector.journal.transactions"] = "0" if shares else "1"
        capture.write_config()
        capture.install()
        capture.create(*TABLES, *EFFECTS, publish=True)
        assert not capture.committed()
        shutil.rmtree(capture.journal_directory)  # made by the installation
        self._bare = self._disk_now(POLICIES[0])
        client = capture.client()
        client.attach(capture.database).script(FILL)
        capture.end_clients()
        until("the first journals", lambda: not capture.live())
        self._first = self._disk_now(POLICIES[0])
        self._parsed: dict[tuple[UUID, int], Journal] = {}
        self._servers: list[subprocess.Popen[bytes]] = []
        self._recorded: list[Client] = []
        self._next_mark = _OURS

    def _environment(self, **more: str) -> dict[str, str]:
        return {
            **self._capture.environment(),
            "LD_PRELOAD": str(self._recorder),
            "POWER_ROOT": str(self._disk),
            **more,
        }

    # -- recording

    def record(
        self, seed: str, scene: Scene = _SCENES[0], lives: int = 3, turns: int = 40
    ) -> Recording:
        """Record some lives of the engine, from the beginning; all but the last are killed.

        Asserts that the record tells of everything that happened in the folder. If the engine hangs
        as Classic, all is recorded anew.
        """
        hangs = 0
        while True:
            try:
                return self._record(seed, scene, lives, turns)
            except EngineHangs as error:
                sys.stderr.write(f"recording {seed}: the engine hangs; waited for {error}\n")
                hangs += 1
                if hangs > _MOST_HANGS:
                    raise

    def _record(self, seed: str, scene: Scene, lives: int, turns: int) -> Recording:
        self.end()
        start = self._bare if scene.maker else self._first
        start.write_to(self._disk, random.Random(0))
        self._forget_memory()
        assert self._capture.journal_directory.exists() == (not scene.maker)
        log, control = self._directory / "power.log", self._directory / "victim"
        log.write_bytes(b"")
        control.write_bytes(bytes(4096))
        stop = self._directory / "stop"
        stop.unlink(missing_ok=True)
        check, *disks = [self._disk_now(policy) for policy in (POLICIES[0], *POLICIES)]
        database = self._capture.database
        content = database.read_bytes()
        chance = random.Random(seed)
        more = {"POWER_TIP_SLOW": str(_SLOWNESS)} if scene.is_slow else {}
        environment = self._environment(POWER_LOG=str(log), POWER_VICTIM=str(control), **more)
        shipper = self._client(environment)
        makes_folder = scene.maker == "shipper"
        keep = str(self._capture.journal_directory), 15, str(stop), makes_folder
        shipper.start("perform", str(_WORKLOAD), "ship", keep)
        if makes_folder:
            made = self._capture.journal_directory / ".firebird-cdc/shipper.lock"
            until("the shipper to make the folder", made.exists)
        processes, connections = (1, 4) if self._mode == "Super" else (2, 2)
        if scene.is_directed:  # what a kill leaves keeps the OIT from going on
            lives, turns = 1, 2 * turns
        for life in range(lives):
            is_last = life == lives - 1
            servers = [self._client(environment) for _ in range(processes)]
            start_size = log.stat().st_size
            if scene.maker and life == 0:
                servers[0].perform(_WORKLOAD, "fill", str(database))
            for number, server in enumerate(servers):
                first = (life * processes + number) * 100_000 + 1
                arguments = (
                    str(database),
                    f"{seed}/{life}/{number}",
                    connections,
                    turns if is_last else 9_999,
                    first,
                    scene.is_directed,
                )
                server.start("perform", str(_WORKLOAD), "work", arguments)
                if number == 0 and processes > 1 and chance.random() < _JOINED:
                    state = self._capture.journal_directory / STATE_DIRECTORY
                    self._await("a process to confirm", lambda: is_joinable(state))  # noqa: B023
            if not is_last:
                enough = start_size + chance.randint(500_000, 4_000_000)
                self._await("enough work", lambda: log.stat().st_size > enough)  # noqa: B023
            for server in servers:
                if is_last:
                    self._finish(server)
                    server.end()
                else:
                    with control.open("r+b") as victim:  # not cut short: it is mapped
                        victim.write(server.pid.to_bytes(4, "little"))
                    self._await("a process to be killed", lambda: server.process.poll() is not None)  # noqa: B023
                    server.process.communicate()
        stop.touch()
        self._finish(shipper)
        shipper.end()
        records = list(read_records(log))
        for record in records:
            check.apply(record)
        unseen = [path for path in check.differences() if not _MAPPED.search(path)]
        assert not unseen, f"changed without a record: {unseen}"
        inode = database.stat().st_ino
        within = windows(records, inode, content, _PAGE_SIZE) if scene.is_slow else set()
        has_joined = any(record.kind == NOTE and record.text == "joined" for record in records)
        return Recording(
            scene, records, dict(zip(POLICIES, disks, strict=True)), within, has_joined
        )

    def _disk_now(self, policy: str) -> Disk:
        return Disk(self._disk, self._capture.database, _PAGE_SIZE, policy)

    def _client(self, environment: dict[str, str]) -> Client:
        log = self._directory / "recorded.log"
        self._recorded.append(Client(self._capture.root.client_library, environment, log))
        return self._recorded[-1]

    def _finish(self, client: Client) -> None:
        """Wait for what a client is at, but not for ever."""
        stream = client.process.stdout
        assert stream is not None
        self._await(f"the recorded process {client.pid}", lambda: has_input(stream, 0))
        client.finish()

    def _await(self, what: str, condition: Callable[[], object]) -> None:
        alive = [each.pid for each in self._recorded if each.process.poll() is None]
        await_unless_engine_hangs(what, condition, alive, _PATIENCE_S)

    # -- cuts

    def cuts(
        self, recording: Recording, seed: str, count: int, policies: Sequence[str] = POLICIES
    ) -> Iterator[Outcome]:
        """Cut the power COUNT times while this was recorded; yield what is found each time.

        Once for a recording.
        """
        chance = random.Random(seed)
        scene = recording.scene
        chosen = places(recording.records, recording.windows, chance, count, scene.is_directed)
        disks = recording.disks
        for stale in (self._directory / "shipped").glob("*"):
            stale.unlink()
        seen = Seen()
        for record in recording.records:
            self._look(record, disks[POLICIES[0]], seen)
            for disk in disks.values():
                disk.apply(record)
            for time_ in range(chosen[record.order]):
                policy = chance.choice(policies)
                name = f"{record.order}.{time_} {policy} {seed}"
                starts = 1 + (self._mode == "Classic" and chance.random() < _BOTH)
                disks[policy].write_to(self._disk, random.Random(name), scene.is_directed)
                cases = [*scene.names, *["two processes at the restart"] * (starts - 1)]
                cases += ["in a window"] * (record.order in recording.windows)
                cases += ["processes that joined"] * recording.has_joined
                yield self._cut(Outcome(name, self._mode, cases), seen, starts)

    def _look(self, record: Record, disk: Disk, seen: Seen) -> None:
        """See what becomes visible outside with this record."""
        if record.kind == NOTE:
            kind, _, what = record.text.partition(" ")
            if kind == "commit":
                seen.acknowledged.add(int(what))
            if kind != "ship":
                return
            copy = self._directory / "shipped" / Path(what).name
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(disk.content(what))
            seen.shipped[UUID(copy.stem)] = copy
        elif record.kind == RENAME and record.text.endswith(".log"):
            old, _, path = record.text.partition("\0")
            copy = self._directory / "seen.log"
            copy.write_bytes(disk.content(old))
            with contextlib.suppress(JournalShared):  # what is in it is in the ledger, and was seen
                _, stamp, _ = read_envelope(copy)
                assert stamp is not None, f"{path} became visible without a stamp"
                seen.numbers[UUID(Path(path).stem)] = (stamp.epoch, stamp.sequence)
        elif record.kind == WRITE and (lock := disk.name_of(record.inode)).endswith(".lock"):
            self._look_at_ledger(lock, disk, seen)

    def _look_at_ledger(self, lock: str, disk: Disk, seen: Seen) -> None:
        """See what a shipper may send of shared journals from now on: what the lock file says of
        the ledger that is on disk."""
        ledger = lock.removesuffix(".lock") + ".ledger"
        with contextlib.suppress(KeyError):
            end = Noted.parse(disk.content(lock)).end
            for record in ledger_records.read_records(disk.content(ledger)[:end]):
                for entry in record.given:
                    if entry.home is not None:
                        seen.numbers[entry.uuid] = entry.stamp.number

    def _cut(self, cut: Outcome, seen: Seen, starts: int) -> Outcome:
        """Open what is left with as many processes as STARTS; return CUT with what is found."""
        self._forget_memory()
        marks = [self._next_mark + number for number in range(1, starts + 1)]
        self._next_mark = marks[-1]
        error, rows, hidden = self._open(marks)
        if error is not None:
            self.end()
            return replace(cut, wrong=[f"the engine on this disk says: {error}"])
        try:
            deadline = time.monotonic() + _PATIENCE_S
            while True:
                is_last = self._is_settled(marks) or time.monotonic() > deadline
                outcome = self._examine(cut, rows, seen, starts)
                outcome.hidden_rows = hidden
                if is_last or not outcome.problems:
                    if outcome.problems and self._keep is not None:
                        place = self._keep / re.sub(r"[ /]", "-", cut.cut)
                        shutil.copytree(self._directory, place, ignore=_UNINTERESTING)
                    return outcome
                time.sleep(0.02)
        finally:
            self._close(starts)

    def _forget_memory(self) -> None:
        """Have nothing outlive the cut that no start of the machine does: what the engine's
        processes share, and that something was done since the last start."""
        for shared in self._capture.root.locks.iterdir():
            shared.unlink()
        forget_start(self._capture.journal_directory)

    def _is_settled(self, marks: list[int]) -> bool:
        """Tell whether recovery is through: what ended processes left is decided and they are
        forgotten, and the journals with MARKS, the last commits, have their names."""
        journals = self._capture.journal_directory
        owners = journals / ".firebird-cdc/owners"
        if len(list(owners.iterdir())) > len(marks) or self._undecided(len(marks)):
            return False
        found: set[int] = set()
        for journal in self._journals(journals):
            if isinstance(journal, Journal):
                found.update(_marks(journal))
        return found.issuperset(marks)

    def _journals(self, folder: Path) -> Iterator[Journal | Exception]:
        """Yield the committed transactions in a folder, and what is wrong with its files."""
        for path in folder.glob("*.log"):
            try:
                if is_of_version_1(path):
                    yield self._read(path)
            except (AssertionError, JournalError, OSError) as error:
                yield error
        try:
            yield from map(read_open, readers_in(folder))
        except (AssertionError, JournalError, OSError) as error:
            yield error

    def _undecided(self, starts: int) -> list[Path]:
        return self._capture.written() if starts > 1 else self._capture.live()

    def _open(self, marks: list[int]) -> Any:
        """Have fresh engines open the database at once and commit a transaction each; return the
        rows."""
        while len(self._servers) < len(marks):
            errors = (self._directory / "server.log").open("ab")
            self._servers.append(
                subprocess.Popen(
                    [
                        sys.executable,
                        "-P",
                        _HERE / "power_server.py",
                        self._capture.root.client_library,
                    ],
                    env=self._environment(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                )
            )
            errors.close()
        answers = self._ask([f"{self._capture.database} {mark}" for mark in marks])
        failed = [answer for answer in answers if answer[0] is not None]
        return failed[0] if failed else self._ask(["rows"])[0]

    def _close(self, starts: int) -> None:
        """Have the engines' processes end."""
        for error, *_ in self._ask([""] * starts):
            assert error is None, error

    def _ask(self, lines: list[str]) -> list[Any]:
        """Send the first processes a line each; return their answers."""
        servers = self._servers[: len(lines)]
        for server, line in zip(servers, lines, strict=True):
            assert server.stdin is not None
            server.stdin.write(line.encode() + b"\n")
            server.stdin.flush()
        return [self._answer(server) for server in servers]

    @staticmethod
    def _answer(server: subprocess.Popen[bytes]) -> Any:
        assert server.stdout is not None
        is_ready = has_input(server.stdout, _PATIENCE_S)
        assert is_ready, f"process {server.pid} or its child hangs on this disk"
        return pickle.load(server.stdout)

    def end(self) -> None:
        """End the processes that open disks, and what a recording that was given up has left."""
        while self._servers:
            self._servers.pop().communicate(timeout=_PATIENCE_S)
        while self._recorded:
            client = self._recorded.pop()
            if client.process.poll() is None:
                client.kill()

    # -- what has to hold

    def _is_torn(self, journal: Path) -> bool:
        """Tell whether a journal of one transaction lacks its head, and was never synced: later
        parts were written before the cut. What did not commit is set aside for nothing then, as one
        of which the disk lost what it had would look the same."""
        content = journal.read_bytes()
        if any(content[FILE_BLOCK : FILE_BLOCK + 136]):
            return False
        transaction = int.from_bytes(content[96:104], "little")
        state, oldest = on_disk(self._capture.database, transaction)
        return state in (ACTIVE, DEAD) and oldest <= transaction

    def _examine(
        self, cut: Outcome, rows: dict[str, list[Row]], seen: Seen, starts: int
    ) -> Outcome:
        outcome = Outcome(cut.cut, cut.mode, cut.cases)
        wrong = outcome.wrong
        found: dict[UUID, Journal] = {}
        for folder in (self._directory / "shipped", self._capture.journal_directory):
            for journal in self._journals(folder):
                if isinstance(journal, Exception):
                    wrong.append(f"a journal can't be read: {journal}")
                    continue
                before = found.setdefault(journal.header.uuid, journal)
                if before.stamp != journal.stamp:
                    name = journal.path.name
                    wrong.append(f"{name} was shipped as {before.stamp}, is {journal.stamp}")
        wrong += [f"{path.name} is not decided" for path in self._undecided(starts)]
        state = self._capture.journal_directory / ".firebird-cdc"
        wrong += [
            f"quarantined: {reason.read_text()}"
            for reason in state.glob("quarantine/*.reason")
            if not self._is_torn(reason.with_suffix(".log"))
        ]

        stamps = {uuid: (each.stamp.epoch, each.sequence) for uuid, each in found.items()}
        for uuid, number in seen.numbers.items():
            if stamps.get(uuid) != number:
                wrong.append(f"{uuid}.log was visible as {number}, is {stamps.get(uuid)}")
        ordered = sorted(found.values(), key=lambda each: (each.stamp.epoch, each.sequence))
        expected = [(0, number) for number in range(1, len(ordered) + 1)]
        if (numbers := sorted(stamps.values())) != expected:
            wrong.append(f"the sequence is not dense: {_unlike(numbers, expected)}")

        marks = Counter(mark for journal in ordered for mark in _marks(journal))
        committed = {row["ID"] for row in rows["MARK"]}
        gaps = [each for journal in ordered for each in journal.changes if isinstance(each, Gap)]
        outcome.gaps = len(gaps)
        if self._fsync:
            wrong += [f"a gap, though nothing was lost: {each.reason}" for each in gaps]
        outcome.recovered = len(found.keys() - seen.numbers.keys())
        outcome.lost += [f"committed, in no journal: {each}" for each in committed - marks.keys()]
        outcome.phantoms += [f"in a journal, not committed: {m}" for m in marks.keys() - committed]
        outcome.duplicated += [
            f"in {count} journals: {m}" for m, count in marks.items() if count > 1
        ]
        wrong += [f"committed, gone: {each}" for each in seen.acknowledged - committed]
        if not outcome.problems:
            _compare(ordered, rows, outcome)
        return outcome

    def _read(self, path: Path) -> Journal:
        key = UUID(path.stem), zlib.crc32(path.read_bytes())
        if key not in self._parsed:
            self._parsed[key] = read_journal(path)
        return self._parsed[key]


def _marks(journal: Journal) -> list[int]:
    rows = (after(change) for change in journal.rows if change.table.name == "MARK")
    return [row["ID"] for row in rows if row is not None]


def _unlike(numbers: list[tuple[int, int]], expected: list[tuple[int, int]]) -> str:
    twice = [each for each, count in Counter(numbers).items() if count > 1]
    missing = sorted(set(expected) - set(numbers))[:5]
    odd = sorted(set(numbers) - set(expected))[:5]
    return f"missing {missing}, twice {twice[:5]}, unexpected {odd}"


def _compare(journals: list[Journal], rows: dict[str, list[Row]], outcome: Outcome) -> None:
    try:
        assert_adds_up(
            journals, {table: Counter(map(image, rows[table])) for table in rows}, killed=True
        )
    except AssertionError as error:
        outcome.wrong.append(str(error))


def run(
    directory: Path,
    cuts: int,
    seed: str,
    fsync: bool = True,
    modes: Sequence[str] = MODES,
    scenes: Sequence[Scene] = _SCENES,
    policies: Sequence[str] = POLICIES,
    keep: Path | None = None,
    jobs: int = 1,
    forms: Sequence[str] = FORMS,
) -> list[Outcome]:
    """Cut the power CUTS times under each mode; return what was found.

    SCENES, FORMS: of the recordings and their journals, in turns; JOBS: processes that do it, with
    the same cuts.
    """
    parts = [
        (mode, first, min(_CUTS_PER_RECORDING, cuts - first))
        for first in range(0, cuts, _CUTS_PER_RECORDING)
        for mode in modes
    ]
    queues = [
        (directory, mode, [each for each in parts if each[0] == mode][queue::jobs], queue)
        for queue in range(jobs)
        for mode in modes
    ]
    do = partial(
        _run_share, seed=seed, fsync=fsync, scenes=scenes, policies=policies, keep=keep, forms=forms
    )
    if jobs == 1:
        return [outcome for queue in queues for outcome in do(*queue)]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        return [outcome for found in pool.map(do, *zip(*queues, strict=True)) for outcome in found]


def _run_share(
    directory: Path,
    mode: str,
    parts: list[tuple[str, int, int]],
    queue: int,
    seed: str,
    fsync: bool,
    scenes: Sequence[Scene],
    policies: Sequence[str],
    keep: Path | None,
    forms: Sequence[str],
) -> list[Outcome]:
    """Do some of the recordings of a mode, and the cuts in each."""
    outcomes: list[Outcome] = []
    for index, form in enumerate(forms):
        of_form = [part for part in parts if part[1] // _CUTS_PER_RECORDING % len(forms) == index]
        if not of_form:
            continue
        place = directory / f"{mode.lower()}-{form}-{queue}"
        place.mkdir(parents=True)
        with Stack(place / "stack") as stack:
            power = PowerLoss(place, stack, mode, fsync, keep, form == "shared")
            try:
                for _, first, count in of_form:
                    scene = scenes[first // _CUTS_PER_RECORDING // len(forms) % len(scenes)]
                    recording = power.record(f"{seed}/{mode}/{first}", scene)
                    for outcome in power.cuts(recording, f"{seed}/{mode}/{first}", count, policies):
                        outcome.cases.append(f"{form} journals")
                        outcomes.append(outcome)
                        _report(outcome)
            finally:
                power.end()
    return outcomes


def _report(outcome: Outcome) -> None:
    """Tell the first problem of each sort, and how many there are of it."""
    sorts: dict[str, list[str]] = {}
    for problem in outcome.problems:
        sorts.setdefault(re.sub(r"[0-9a-f-]{8,}|\d+", "", problem)[:60], []).append(problem)
    for sort in sorts.values():
        cases = ", ".join(outcome.cases)
        sys.stderr.write(f"cut {outcome.cut} ({cases}): {len(sort)} times: {sort[0][:600]}\n")


def _tally(mode: str, outcomes: list[Outcome]) -> str:
    """Return what the cuts under one mode came to, as one line."""
    cases = Counter(case for outcome in outcomes for case in outcome.cases)
    found = {
        "lost": sum(len(each.lost) for each in outcomes),
        "phantom": sum(len(each.phantoms) for each in outcomes),
        "duplicated": sum(len(each.duplicated) for each in outcomes),
        "gaps": sum(each.gaps for each in outcomes),
        "cuts with any broken promise": sum(bool(each.problems) for each in outcomes),
        "journals completed by recovery": sum(each.recovered for each in outcomes),
        "committed rows that the engine hides": sum(each.hidden_rows for each in outcomes),
    }
    shares = ", ".join(f"{case} {count}" for case, count in sorted(cases.items()))
    figures = ", ".join(f"{name} {count}" for name, count in found.items())
    return f"{mode}: cuts {len(outcomes)}, {figures}; of the cuts: {shares or 'nothing special'}\n"


def _scenes(arguments: argparse.Namespace) -> Sequence[Scene]:
    """Return what is to be recorded, in turns."""
    chosen = _SCENES
    if arguments.first_run:
        chosen = tuple(each for each in chosen if each.maker)
    if arguments.directed:
        chosen = (Scene(is_slow=True, is_directed=True),)
    if arguments.slow_inventory:
        chosen = tuple(dict.fromkeys(replace(each, is_slow=True) for each in chosen))
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(description="Cut the power while the engine is captured.")
    parser.add_argument("--cuts", type=int, default=200, help="under each mode")
    parser.add_argument("--seed", default=str(int(time.time())))
    parser.add_argument("--mode", choices=MODES, action="append", help="default: both")
    parser.add_argument("--policy", choices=POLICIES, action="append", help="default: both")
    parser.add_argument("--jobs", type=int, default=2, help="processes that share the recordings")
    parser.add_argument(
        "--slow-inventory",
        action="store_true",
        help="inventory pages take long to be written in all recordings",
    )
    parser.add_argument(
        "--directed",
        action="store_true",
        help="cut only between a header whose OIT has passed a transaction and the write of its "
        "page; under Classic, where starts wait for that write, few come about",
    )
    parser.add_argument(
        "--first-run", action="store_true", help="no recording begins with a journal folder"
    )
    parser.add_argument("--form", choices=FORMS, action="append", help="of journals; default: both")
    parser.add_argument("--no-fsync", action="store_true", help="connector.journal.fsync: false")
    parser.add_argument("--keep", type=Path, help="copy there what breaks a promise")
    arguments = parser.parse_args()
    modes = arguments.mode or MODES
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="power-", dir=_fast_disk()) as directory:
        outcomes = run(
            Path(directory),
            arguments.cuts,
            arguments.seed,
            not arguments.no_fsync,
            modes,
            _scenes(arguments),
            arguments.policy or POLICIES,
            arguments.keep,
            arguments.jobs,
            arguments.form or FORMS,
        )
    for mode in modes:
        sys.stdout.write(_tally(mode, [each for each in outcomes if each.mode == mode]))
    sys.stdout.write(
        f"power cuts: {len(outcomes)}, seed {arguments.seed}, {time.monotonic() - started:.0f} s\n"
    )
    return 1 if any(each.problems for each in outcomes) else 0


def _fast_disk() -> Path | None:
    """Return a folder in memory, if there is room: syncs are only played here."""
    memory = Path("/dev/shm")
    is_large = memory.is_dir() and shutil.disk_usage(memory).free > _ROOM
    return memory if is_large else None


if __name__ == "__main__":
    sys.exit(main())
