"""Cuts of the power: what was committed is what the journals say, on every disk that is possible.

A recording is some seconds of random work on the engine with the plugin, under a preload
(power_recorder.c) that writes down every operation on the database and the journals. Then the
power is cut at many places of that record: power_disk.py makes a disk that could have been left,
a fresh engine opens it, and what recovery makes of it is held against promise 1 and 2 of the
design.

    python tests/faults/power_loss.py --cuts 200 --seed 1      prints a tally; exit code 1: broken
"""

from __future__ import annotations

import argparse
import contextlib
import pickle
import random
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
    until,
)
from power_disk import (  # noqa: E402
    CREATE,
    NOTE,
    POLICIES,
    RENAME,
    SYNC_BEGIN,
    SYNC_END,
    UNLINK,
    WRITE,
    WRITTEN,
    Disk,
    Record,
    read_records,
)
from power_workload import FILL, TABLES  # noqa: E402
from witness import WITNESS, assert_adds_up  # noqa: E402

from firebird_cdc.demo.processes import Stack  # noqa: E402
from firebird_cdc.errors import JournalError  # noqa: E402
from firebird_cdc.journal.format import Gap, read_envelope  # noqa: E402

_WORKLOAD = _HERE / "power_workload.py"
_PAGE_SIZE = 8192
_OURS = 900_000_000  # marks from here on are of the check
_CUTS_PER_RECORDING = 25
_PATIENCE_S = 3 * PATIENCE_S  # a busy machine opens a disk slowly
_MAPPED = ("/tickets", "/counters")  # written in memory, and no call tells when
_UNINTERESTING = shutil.ignore_patterns("engine", "stack", "power_recorder.so")
# A cut is sought where something becomes durable or visible.
_WEIGHTS = {
    CREATE: 2,
    WRITE: 2,
    RENAME: 6,
    UNLINK: 4,
    SYNC_BEGIN: 2,
    SYNC_END: 4,
    WRITTEN: 4,
    NOTE: 6,
}


def compile_recorder(library: Path) -> None:
    """Compile power_recorder.c."""
    source = str(_HERE / "power_recorder.c")
    argv = ["gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared"]
    subprocess.run([*argv, "-o", str(library), source, "-ldl"], check=True)


@dataclass
class Seen:
    """What the world outside knew at a moment: it must still hold after the cut."""

    acknowledged: set[int] = field(default_factory=set)  # marks whose commit had returned
    numbers: dict[UUID, tuple[int, int]] = field(default_factory=dict)  # of visible journals
    shipped: dict[UUID, Path] = field(default_factory=dict)  # taken by the shipper, copied here


@dataclass(frozen=True)
class Recording:
    """What was recorded, and the disk as it was before, for each policy."""

    records: list[Record]
    disks: dict[str, Disk]


@dataclass
class Outcome:
    """What was found after one cut."""

    cut: str
    lost: list[str] = field(default_factory=list)  # committed, and in no journal
    wrong: list[str] = field(default_factory=list)  # any other promise that does not hold
    recovered: int = 0  # journals that became visible only after the cut
    hidden_rows: int = 0  # committed ones that the engine's scans skip
    gaps: int = 0  # marked; with synced journals there is nothing to mark

    @property
    def problems(self) -> list[str]:
        return self.lost + self.wrong


class PowerLoss:
    """One engine with the plugin, a folder that is recorded, and the cuts in it."""

    def __init__(
        self,
        directory: Path,
        stack: Stack,
        mode: str,
        fsync: bool = True,
        keep: Path | None = None,
    ) -> None:
        """``mode``: Super or Classic; ``fsync``: connector.journal.fsync; ``keep``: a folder for
        copies of all that a cut leaves that breaks a promise."""
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
        capture.write_config()
        capture.install()
        capture.create(*TABLES, *WITNESS, publish=True)
        client = capture.client()
        client.attach(capture.database).script(FILL)
        capture.end_clients()
        until("the first journals", lambda: not capture.live())
        self._first = self._disk_now(POLICIES[0])
        self._parsed: dict[tuple[UUID, int], Journal] = {}
        self._server: subprocess.Popen[bytes] | None = None
        self._next_mark = _OURS

    def _environment(self, **more: str) -> dict[str, str]:
        return {
            **self._capture.environment(),
            "LD_PRELOAD": str(self._recorder),
            "POWER_ROOT": str(self._disk),
            **more,
        }

    # -- recording

    def record(self, seed: str, lives: int = 3, turns: int = 40) -> Recording:
        """Record some lives of the engine, from the beginning; all but the last are killed.

        Asserts that the record tells of everything that happened in the folder.
        """
        self.end()
        self._first.write_to(self._disk, random.Random(0))
        log, control = self._directory / "power.log", self._directory / "victim"
        log.write_bytes(b"")
        control.write_bytes(bytes(4096))
        stop = self._directory / "stop"
        stop.unlink(missing_ok=True)
        check, *disks = [self._disk_now(policy) for policy in (POLICIES[0], *POLICIES)]
        chance = random.Random(seed)
        environment = self._environment(POWER_LOG=str(log), POWER_VICTIM=str(control))
        shipper = self._client(environment)
        keep = str(self._capture.journal_directory), 15, str(stop)
        shipper.start("perform", str(_WORKLOAD), "ship", keep)
        processes, connections = (1, 4) if self._mode == "Super" else (2, 2)
        for life in range(lives):
            is_last = life == lives - 1
            servers = [self._client(environment) for _ in range(processes)]
            start = log.stat().st_size
            for number, server in enumerate(servers):
                first = (life * processes + number) * 100_000 + 1
                arguments = (
                    str(self._capture.database),
                    f"{seed}/{life}/{number}",
                    connections,
                    turns if is_last else 9_999,
                    first,
                )
                server.start("perform", str(_WORKLOAD), "work", arguments)
            if not is_last:
                enough = start + chance.randint(500_000, 4_000_000)
                until("enough work", lambda: log.stat().st_size > enough, _PATIENCE_S)  # noqa: B023
            for server in servers:
                if is_last:
                    _finish(server)
                    server.end()
                else:
                    with control.open("r+b") as victim:  # not cut short: it is mapped
                        victim.write(server.pid.to_bytes(4, "little"))
                    until("a process to be killed", lambda: server.process.poll() is not None)  # noqa: B023
                    server.process.communicate()
        stop.touch()
        _finish(shipper)
        shipper.end()
        records = list(read_records(log))
        for record in records:
            check.apply(record)
        unseen = [path for path in check.differences() if not path.endswith(_MAPPED)]
        assert not unseen, f"changed without a record: {unseen}"
        return Recording(records, dict(zip(POLICIES, disks, strict=True)))

    def _disk_now(self, policy: str) -> Disk:
        return Disk(self._disk, self._capture.database, _PAGE_SIZE, policy)

    def _client(self, environment: dict[str, str]) -> Client:
        return Client(
            self._capture.root.client_library, environment, self._directory / "recorded.log"
        )

    # -- cuts

    def cuts(
        self, recording: Recording, seed: str, count: int, policies: Sequence[str] = POLICIES
    ) -> Iterator[Outcome]:
        """Cut the power COUNT times while this was recorded; yield what is found each time.

        Once for a recording.
        """
        chance = random.Random(seed)
        places = _places(recording.records, chance, count)
        disks = recording.disks
        for stale in (self._directory / "shipped").glob("*"):
            stale.unlink()
        seen = Seen()
        for record in recording.records:
            self._look(record, disks[POLICIES[0]], seen)
            for disk in disks.values():
                disk.apply(record)
            if record.order in places:
                policy = chance.choice(policies)
                yield self._cut(f"{record.order} {policy} {seed}", disks[policy], seen)

    def _look(self, record: Record, disk: Disk, seen: Seen) -> None:
        """See what becomes visible outside with this record."""
        if record.kind == NOTE:
            kind, _, what = record.text.partition(" ")
            if kind == "commit":
                seen.acknowledged.add(int(what))
                return
            copy = self._directory / "shipped" / Path(what).name
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(disk.content(what))
            seen.shipped[UUID(copy.stem)] = copy
        elif record.kind == RENAME and record.text.endswith(".log"):
            old, _, path = record.text.partition("\0")
            copy = self._directory / "seen.log"
            copy.write_bytes(disk.content(old))
            _, stamp, _ = read_envelope(copy)
            assert stamp is not None, f"{path} became visible without a stamp"
            seen.numbers[UUID(Path(path).stem)] = (stamp.epoch, stamp.sequence)

    def _cut(self, name: str, disk: Disk, seen: Seen) -> Outcome:
        disk.write_to(self._disk, random.Random(name))
        self._next_mark += 1
        outcome = Outcome(name)
        error, rows, hidden = self._open(self._next_mark)
        if error is not None:
            outcome.wrong.append(f"the engine on this disk says: {error}")
            return outcome
        try:
            deadline = time.monotonic() + _PATIENCE_S
            while True:
                is_last = self._is_settled(self._next_mark) or time.monotonic() > deadline
                outcome = self._examine(name, rows, seen)
                outcome.hidden_rows = hidden
                if is_last or not outcome.problems:
                    if outcome.problems and self._keep is not None:
                        place = self._keep / re.sub(r"[ /]", "-", name)
                        shutil.copytree(self._directory, place, ignore=_UNINTERESTING)
                    return outcome
                time.sleep(0.02)
        finally:
            self._close()

    def _is_settled(self, mark: int) -> bool:
        """Tell whether recovery is through: what ended processes left is decided and they are
        forgotten, and the journal with MARK, the last commit, has its name."""
        journals = self._capture.journal_directory
        if len(list((journals / ".firebird-cdc/owners").iterdir())) > 1 or self._capture.live():
            return False
        for path in journals.glob("*.log"):
            with contextlib.suppress(AssertionError, JournalError, OSError):
                if mark in _marks(self._read(path)):
                    return True
        return False

    def _open(self, mark: int) -> Any:
        """Have a fresh engine open the database and commit a transaction; return the rows."""
        if self._server is None:
            errors = (self._directory / "server.log").open("ab")
            self._server = subprocess.Popen(
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
            errors.close()
        return self._ask(f"{self._capture.database} {mark}")

    def _close(self) -> None:
        """Have the engine's process end."""
        error, *_ = self._ask("")
        assert error is None, error

    def _ask(self, line: str) -> Any:
        assert self._server is not None
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(line.encode() + b"\n")
        self._server.stdin.flush()
        ready, _, _ = select.select([self._server.stdout], [], [], _PATIENCE_S)
        assert ready, f"process {self._server.pid} or its child hangs on this disk"
        return pickle.load(self._server.stdout)

    def end(self) -> None:
        """End the process that opens disks."""
        if self._server is not None:
            self._server.communicate(timeout=_PATIENCE_S)
            self._server = None

    # -- what has to hold

    def _examine(self, name: str, rows: dict[str, list[Row]], seen: Seen) -> Outcome:
        outcome = Outcome(name)
        wrong = outcome.wrong
        found: dict[UUID, Journal] = {}
        shipped = list(seen.shipped.values())
        for path in [*shipped, *self._capture.journal_directory.glob("*.log")]:
            try:
                journal = self._read(path)
            except (AssertionError, JournalError, OSError) as error:
                wrong.append(f"{path.name} can't be read: {error}")
                continue
            before = found.setdefault(journal.header.uuid, journal)
            if before.stamp != journal.stamp:
                wrong.append(f"{path.name} was shipped as {before.stamp}, is {journal.stamp}")
        wrong += [f"{path.name} is not decided" for path in self._capture.live()]
        state = self._capture.journal_directory / ".firebird-cdc"
        wrong += [f"set aside: {p.read_text()}" for p in state.glob("quarantine/*.reason")]

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
        wrong += [f"in a journal, not committed: {each}" for each in marks.keys() - committed]
        wrong += [f"in {count} journals: {each}" for each, count in marks.items() if count > 1]
        wrong += [f"committed, gone: {each}" for each in seen.acknowledged - committed]
        if not outcome.problems:
            _compare(ordered, rows, outcome)
        return outcome

    def _read(self, path: Path) -> Journal:
        key = UUID(path.stem), zlib.crc32(path.read_bytes())
        if key not in self._parsed:
            self._parsed[key] = read_journal(path)
        return self._parsed[key]


def _finish(client: Client) -> None:
    """Wait for what a client is at, but not for ever."""
    ready, _, _ = select.select([client.process.stdout], [], [], _PATIENCE_S)
    assert ready, f"the recorded process {client.pid} hangs"
    client.finish()


def _places(records: list[Record], chance: random.Random, count: int) -> set[int]:
    """Return where to cut: after these records."""
    weights = [_WEIGHTS.get(record.kind, 1) for record in records]
    places: set[int] = set()
    while len(places) < count:
        place = chance.choices(records, weights)[0].order + chance.choice((-1, 0, 0, 1))
        places.add(min(max(place, 0), len(records) - 1))
    return places


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
    classic: float = 0.3,
    policies: Sequence[str] = POLICIES,
    keep: Path | None = None,
) -> list[Outcome]:
    """Cut the power CUTS times, a share of them under Classic; return what was found."""
    outcomes: list[Outcome] = []
    shares = {"Classic": round(cuts * classic)}
    shares["Super"] = cuts - shares["Classic"]
    for mode, share in shares.items():
        if not share:
            continue
        place = directory / mode.lower()
        place.mkdir(parents=True)
        with Stack(place / "stack") as stack:
            power = PowerLoss(place, stack, mode, fsync, keep)
            done = 0
            while done < share:
                part = min(_CUTS_PER_RECORDING, share - done)
                recording = power.record(f"{seed}/{mode}/{done}")
                for outcome in power.cuts(recording, f"{seed}/{mode}/{done}", part, policies):
                    outcomes.append(outcome)
                    _report(outcome)
                done += part
            power.end()
    return outcomes


def _report(outcome: Outcome) -> None:
    """Tell the first problem of each sort, and how many there are of it."""
    sorts: dict[str, list[str]] = {}
    for problem in outcome.problems:
        sorts.setdefault(re.sub(r"[0-9a-f-]{8,}|\d+", "", problem)[:60], []).append(problem)
    for sort in sorts.values():
        sys.stderr.write(f"cut {outcome.cut}: {len(sort)} times: {sort[0][:600]}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="Cut the power while the engine is captured.")
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--seed", default=str(int(time.time())))
    parser.add_argument("--policy", choices=POLICIES, action="append", help="default: both")
    parser.add_argument("--no-fsync", action="store_true", help="connector.journal.fsync: false")
    parser.add_argument("--keep", type=Path, help="copy there what breaks a promise")
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="power-") as directory:
        outcomes = run(
            Path(directory),
            arguments.cuts,
            arguments.seed,
            not arguments.no_fsync,
            policies=arguments.policy or POLICIES,
            keep=arguments.keep,
        )
    bad = [each for each in outcomes if each.problems]
    sys.stdout.write(
        f"power cuts: {len(outcomes)}, seed {arguments.seed}, {time.monotonic() - started:.0f} s; "
        f"journals completed by recovery: {sum(each.recovered for each in outcomes)}; "
        f"gaps: {sum(each.gaps for each in outcomes)}; "
        f"committed rows that the engine hides: {sum(each.hidden_rows for each in outcomes)}; "
        f"cuts that lost a committed transaction: {sum(bool(each.lost) for each in outcomes)}; "
        f"cuts with any broken promise: {len(bad)}\n"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
