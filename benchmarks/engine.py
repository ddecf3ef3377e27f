"""Cost of capture for a server: bare, with its own replication journal, and with ours.

Three Firebird 4 servers (Debian trixie's, in a chroot) stand side by side with the same settings,
each with a database of its own. One at a time is under load, from the same C client over TCP
(engine_client.c). The figures are medians over interleaved rounds. Journals are synced, as
shipped. Nobody ships or deletes them while this runs; a server is left alone until all journals
of its round are confirmed, and how long that took is told.

``commits``: transactions of one row, on 1, 4 and 16 connections; ``bulk``: rows of one large
transaction.

    --quick     done in under 50 s
    --tiny      one round of little work: tells whether it works, and no more
    --rounds N  interleaved rounds (default 15, quick 9)
    --against COMMIT
                compare this clone with another commit of the project instead (_against.py), in 90
                pairs of rounds (quick 9); it ends with 1 if a commit takes more than 1.03 of that
                one's CPU time, or their rate is less than 0.95 of that one's. With HEAD of a clone
                without changes, which shows what chance does, all ratios are near 1.

The last line is one JSON object:
    commits_vs_bare, commits_vs_bare_4, commits_vs_bare_16   rates relative to the bare server's
    bulk_vs_bare, commits_vs_own_replication, commits_vs_own_replication_16
    server_cpu_us_per_commit_16   CPU time of all processes of the server, until what was committed
                          is confirmed, less the bare server's
    memory_rise_mib       what the plugin adds to the server's peak resident memory over a
                          transaction of 1,000,000 rows (quick: 300,000), MiB; ..._1 and ..._10m:
                          of one row, and of ten million (not in quick)
    classic_first_write_ms   what the plugin adds to the first transaction of a connection under
                          Classic, where that has a process of its own, ms; another is connected
    confirmed_after_s     from the last commit of 16 connections until all are confirmed
    ..._per_s             medians of the rates themselves
with --against, for 1, 4 and 16 connections:
    cpu_ratio_N           CPU time of a commit, relative to the other commit's
    rate_ratio_N          rate of commits, likewise: medians of the pairs' ratios;
                          ..._quartiles: half of the ratios lie between these
    new_..., old_...      medians of this clone and of the other commit
    against, pairs, met   the other commit's hash, how many pairs, and whether no limit was missed
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from firebird_cdc.demo import trixie
from firebird_cdc.demo.engine import EmbeddedRoot
from firebird_cdc.demo.firebird4 import Firebird4
from firebird_cdc.demo.paths import cache_directory
from firebird_cdc.demo.processes import Stack, await_condition, members
from firebird_cdc.journal.folder.ledger_lock import read_noted
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.folder.page_file import page_path
from firebird_cdc.journal.folder.shared_page import page_in

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))  # which `make` keeps Python from doing
import _against  # noqa: E402
from _client import compile_client  # noqa: E402

CONNECTIONS = (1, 4, 16)
COMMITS = {1: 1000, 4: 500, 16: 150}  # of each connection
FEW_COMMITS = {1: 400, 4: 200, 16: 60}
_MANY = f"commits_{CONNECTIONS[-1]}"
WARM = 20  # transactions per connection that are not timed
OPTIONS = """\
connector.name: bench
connector.journal.directory: {journals}
connector.journal.check.interval.ms: 0
connector.shipper: external
kafka.producer.bootstrap.servers: localhost:9092
kafka.topic.prefix: bench
snapshot.mode: never
"""
OWN_REPLICATION = """\
database
{{
    journal_directory = {journals}
    journal_archive_directory = {archive}
    journal_archive_timeout = 0
}}
"""


class Variant:
    """One server, its database, and the client that stays connected to it."""

    def __init__(self, name: str, system: trixie.Trixie, directory: Path, client: Path) -> None:
        self.name = name
        self.transactions = 0  # that changed rows
        self._before = 0  # those of before the last restart
        self._captures = name not in ("bare", "own")
        self._client_command = [client, EmbeddedRoot(directory / "library").client_library]
        sibling = system.sibling(directory / name)
        folder = sibling.outer(trixie.DATA)
        self._stack = Stack(directory / f"{name}-processes")
        self.server = Firebird4(sibling, folder, self._stack)
        self._journals = self.server.own_directory("journals")
        if name == "own":
            archive = self.server.own_directory("archive")
            text = OWN_REPLICATION.format(
                journals=sibling.inner(self._journals), archive=sibling.inner(archive)
            )
            (self.server.server_directory / "replication.conf").write_text(text)
        elif self._captures:
            options = folder / "connector.yaml"
            options.write_text(OPTIONS.format(journals=sibling.inner(self._journals)))
            self.server.give_to_server(options)
            inner = str(sibling.inner(options))
            self.server.command("install", "--server", "/", "--config", inner)
        self._database = self.server.dsn(folder / "bench.fdb")
        self.start()
        self.run("create", 0 if name == "bare" else 1)

    def start(self) -> None:
        """Start the server and a client."""
        self.server.start()
        argv = [*self._client_command, self._database, self.server.password]
        self._client = subprocess.Popen(
            [str(word) for word in argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def stop(self) -> None:
        """End both."""
        if self._client.stdin:
            self._client.stdin.close()
        self._client.wait(20)
        self.server.stop()

    def close(self) -> None:
        """End what is left of both, however far they got."""
        self._client.kill()
        self._client.wait()
        self._stack.stop()

    def run(self, work: str, *numbers: int) -> float:
        """Let the client work; return the seconds that it took."""
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        print(work, *numbers, file=self._client.stdin, flush=True)
        answer = self._client.stdout.readline()
        if not answer:
            raise SystemExit(f"{work} on the {self.name} server failed\n{self.server.evidence()}")
        return float(answer)

    def commits(self, connections: int, count: int) -> float:
        """Run COUNT transactions on each of CONNECTIONS connections; return the seconds."""
        seconds = self.run("commits", connections, count, WARM)
        self.transactions += connections * (count + WARM)
        return seconds

    def bulk(self, rows: int) -> float:
        """Run one transaction of ROWS rows; return the seconds."""
        self.transactions += 1
        return self.run("bulk", rows)

    def first_write(self) -> float:
        """Run one transaction on a new connection; return the seconds."""
        self.transactions += 1
        return self.run("first")

    def sample(self, connections: int, count: int) -> _against.Sample:
        """Measure COUNT transactions on each of CONNECTIONS connections."""
        before, done = self.processor_s(), self.transactions
        seconds = self.commits(connections, count)
        self.await_rest()
        cpu_us = (self.processor_s() - before) * 1e6 / (self.transactions - done)
        return _against.Sample(connections * count / seconds, cpu_us)

    def processor_s(self) -> float:
        """Return the CPU time that the server's processes took so far, user and system."""
        # clock_getcpuclockid(3), which Python does not have: in ns, unlike /proc/PID/stat
        clocks = ((~process << 3) | 2 for process in members(self._stack.mark))
        return sum(time.clock_gettime(clock) for clock in clocks)

    def await_rest(self) -> float:
        """Wait until all of its journals are confirmed; return how long that took, seconds."""
        if not self._captures:
            return 0.0
        begun = time.monotonic()

        def nothing_waits() -> bool:
            page = page_in(page_path(self._journals / STATE_DIRECTORY).read_bytes())
            return bool(page.accounted >= page.ticket)

        await_condition("the confirmation of all journals", nothing_waits, 60, 0.02)
        return time.monotonic() - begun

    def peak_memory_mib(self) -> float:
        """Return the most memory that the server's process ever had resident, MiB."""
        status = Path(f"/proc/{self.server.process_id}/status").read_text()
        found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.M)
        assert found is not None
        return int(found[1]) / 1024

    def restart(self) -> None:
        """Start the server anew, without the journals so far, as if they had been shipped."""
        self.stop()
        self.check()
        for journal in self._journals.glob("*.log"):
            journal.unlink()
        self._before += self.transactions
        self.transactions = 0
        self.start()

    def check(self) -> None:
        """Fail unless capture really took place: a bench of nothing shows nothing."""
        if self.name == "own" and not any(self._journals.iterdir()):
            raise SystemExit("the engine's own replication wrote no journal")
        locks = (self._journals / STATE_DIRECTORY / "databases").glob("*.lock")
        found = sum(read_noted(lock).last for lock in locks) - self._before
        # creation and publication of the table may be captured or not
        if self._captures and not 0 <= found - self.transactions <= 2:
            raise SystemExit(f"{found} numbers for {self.transactions} transactions")


@contextmanager
def workspace() -> Iterator[tuple[Path, Path]]:
    """A folder for the servers, and the compiled client in it."""
    run = HERE.parent / ".run"
    run.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=run))
    try:
        yield directory, compile_client(directory / "engine_client")
    finally:
        shutil.rmtree(directory)


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


class Rounds:
    """Seconds per server and work, in interleaved rounds."""

    def __init__(self, variants: list[Variant], commits: dict[int, int], rows: int) -> None:
        self._variants = variants
        self._seconds: dict[tuple[str, str], list[float]] = {}
        self._rest: list[float] = []
        self._cpu_us: dict[str, list[float]] = {}  # of a commit of many connections, by server
        self._commits = commits
        self._rows = rows

    def run(self, number: int) -> None:
        """Run one round, in another order each time: no server always follows the same one."""
        works = [f"commits_{connections}" for connections in CONNECTIONS] + ["bulk"]
        for work in works:
            turn = number % len(self._variants)
            for variant in self._variants[turn:] + self._variants[:turn]:
                if variant.name == "own" and work not in ("commits_1", _MANY):
                    continue
                before, done = variant.processor_s(), variant.transactions
                if work == "bulk":
                    taken = variant.bulk(self._rows)
                else:
                    connections = int(work.partition("_")[2])
                    taken = variant.commits(connections, self._commits[connections])
                rest = variant.await_rest()
                if work == _MANY:
                    used_us = (variant.processor_s() - before) * 1e6
                    cpu_us = self._cpu_us.setdefault(variant.name, [])
                    cpu_us.append(used_us / (variant.transactions - done))
                if work == _MANY and variant.name == "ours":
                    self._rest.append(rest)
                self._seconds.setdefault((variant.name, work), []).append(taken)
        say(
            "  ".join(
                f"{work} " + "/".join(f"{self._rate(*key, -1):,.0f}" for key in self._keys(work))
                for work in works
            )
        )

    def _keys(self, work: str) -> list[tuple[str, str]]:
        return [key for key in self._seconds if key[1] == work]

    def _amount(self, work: str) -> int:
        connections = int(work.partition("_")[2] or 0)
        return connections * self._commits[connections] if connections else self._rows

    def _rate(self, name: str, work: str, round_: int) -> float:
        return self._amount(work) / self._seconds[name, work][round_]

    def _ratio(self, work: str, other: str) -> float:
        """Our rate relative to that of another server: the median of each round's ratio."""
        pairs = zip(self._seconds[other, work], self._seconds["ours", work], strict=True)
        return round(statistics.median(theirs / ours for theirs, ours in pairs), 3)

    def result(self) -> dict[str, float]:
        """Return the figures."""
        for (name, work), seconds in self._seconds.items():
            low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
            say(f"{name:5} {work:10} median {middle:.3f} s, {low:.3f} to {high:.3f} s")
        figures = {
            "commits_vs_bare": self._ratio("commits_1", "bare"),
            "commits_vs_bare_4": self._ratio("commits_4", "bare"),
            "commits_vs_bare_16": self._ratio("commits_16", "bare"),
            "bulk_vs_bare": self._ratio("bulk", "bare"),
            "commits_vs_own_replication": self._ratio("commits_1", "own"),
            "commits_vs_own_replication_16": self._ratio("commits_16", "own"),
            "server_cpu_us_per_commit_16": round(
                statistics.median(
                    ours - bare
                    for ours, bare in zip(self._cpu_us["ours"], self._cpu_us["bare"], strict=True)
                ),
                1,
            ),
            "confirmed_after_s": round(statistics.median(self._rest), 3),
        }
        for (name, work), seconds in self._seconds.items():
            rate = self._amount(work) / statistics.median(seconds)
            figures[f"{name}_{work}_per_s"] = round(rate)
        return figures


def memory(bare: Variant, ours: Variant, sizes: dict[str, int]) -> dict[str, float]:
    """Return what the plugin adds to the peak of a server that has just started, MiB."""
    figures = {}
    for variant in (bare, ours):
        variant.stop()
        variant.start()
        variant.run("attach", 1)
    for name, rows in sizes.items():
        peaks = []
        for variant in (bare, ours):
            variant.bulk(rows)
            variant.await_rest()
            peaks.append(variant.peak_memory_mib())
        figures[name] = round(peaks[1] - peaks[0], 1)
        say(f"{rows:,} rows: {peaks[0]:.1f} MiB bare, {peaks[1]:.1f} MiB with the plugin")
    return figures


def first_writes(bare: Variant, ours: Variant, count: int) -> dict[str, float]:
    """Return what the plugin adds to the first write of a process, from COUNT pairs."""
    for variant in (bare, ours):
        variant.stop()
        variant.server.set_mode("Classic")
        variant.start()
        variant.run("attach", 1)
        variant.commits(1, 1)
    pairs = [(bare.first_write(), ours.first_write()) for _ in range(count)]
    added = statistics.median(with_plugin - without for without, with_plugin in pairs)
    return {"classic_first_write_ms": round(added * 1000, 1)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--against", metavar="COMMIT")
    arguments = parser.parse_args()
    if arguments.against:
        count = arguments.rounds or (_against.FEWEST_PAIRS if arguments.quick else 90)
        if count < _against.FEWEST_PAIRS:
            parser.error(f"--against needs {_against.FEWEST_PAIRS} rounds or more")
        with workspace() as (directory, client):
            _against.run(
                arguments.against,
                HERE.parent,
                cache_directory(),
                FEW_COMMITS,
                count,
                lambda name, system: Variant(name, system, directory, client),
                say,
            )
        return
    is_quick = arguments.quick or arguments.tiny
    count = arguments.rounds or (1 if arguments.tiny else 9 if arguments.quick else 15)
    sizes = {"memory_rise_mib_1": 1}
    if is_quick:
        sizes["memory_rise_mib"] = 10_000 if arguments.tiny else 300_000
    else:
        sizes |= {"memory_rise_mib": 1_000_000, "memory_rise_mib_10m": 10_000_000}

    say(f"load before: {' '.join(f'{load:.2f}' for load in os.getloadavg())}")
    with ExitStack() as stack:
        directory, client = stack.enter_context(workspace())
        system = stack.enter_context(trixie.prepared(cache_directory(), HERE.parent, say))
        variants = {}
        for name in ("bare", "own", "ours"):
            variants[name] = Variant(name, system, directory, client)
            stack.callback(variants[name].close)
            variants[name].run("attach", CONNECTIONS[-1])
        commits, rows = COMMITS, 100_000
        if is_quick:
            commits = FEW_COMMITS
        if arguments.tiny:
            commits, rows = dict.fromkeys(CONNECTIONS, 10), 10_000
        rounds = Rounds(list(variants.values()), commits, rows)
        for number in range(count):
            rounds.run(number)
        result = rounds.result()
        result |= memory(variants["bare"], variants["ours"], sizes)
        result |= first_writes(variants["bare"], variants["ours"], count)
        for variant in variants.values():
            variant.check()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
