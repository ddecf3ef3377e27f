"""What capture costs the engine: bare, with its own replication journal, and with ours.

The three run side by side on the embedded Firebird 5 engine, interleaved in one run, with the
same C client (engine_client.c); the figures are ratios of medians. Journals are synced, as
shipped. ``bulk``: rows of one large transaction; ``commits``: transactions of one row.

    --quick     done in under 50 s
    --rounds N  interleaved rounds (default 15, quick 7)

The last line is one JSON object:
    bulk_vs_bare, commits_vs_bare, commits_vs_own_replication   rates relative to the other
    ..._per_s                                                   medians of the rates themselves
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from firebird_cdc.demo.engine import EmbeddedRoot

HERE = Path(__file__).resolve().parent
VARIANTS = ("bare", "own", "ours")


class Variant:
    """One root of the engine and one database in it."""

    def __init__(self, name: str, directory: Path, client: Path) -> None:
        self.name = name
        self.directory = directory / name
        self.directory.mkdir()
        self._client = client
        self._root = EmbeddedRoot(self.directory / "engine", {"ServerMode": "Super"})
        self._database = self.directory / "bench.fdb"
        if name == "own":
            self._use_own_replication()
        elif name == "ours":
            self._use_plugin()
        self.run("create", 0 if name == "bare" else 1)

    def _use_own_replication(self) -> None:
        for folder in ("journal", "archive"):
            (self.directory / folder).mkdir()
        (self._root.path / "replication.conf").write_text(
            f"database\n{{\n    journal_directory = {self.directory / 'journal'}\n"
            f"    journal_archive_directory = {self.directory / 'archive'}\n"
            "    journal_archive_timeout = 0\n}\n"
        )

    def _use_plugin(self) -> None:
        config = self.directory / "reddatabase.connector.yaml"
        config.write_text(
            "connector.name: bench\n"
            f"connector.journal.directory: {self.directory / 'journal'}\n"
            "connector.journal.check.interval.ms: 0\n"
            "connector.shipper: external\n"
            "kafka.producer.bootstrap.servers: localhost:9092\n"
            "kafka.topic.prefix: bench\n"
        )
        logging = self.directory / "logging.yaml"
        logging.write_text(f"level: warning\nfile: {self.directory / 'firebird-cdc.log'}\n")
        command = [sys.executable, "-m", "firebird_cdc", "install"]
        command += ["--server", str(self._root.path), "--config", str(config)]
        command += ["--logging", str(logging)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def run(self, work: str, *amounts: int) -> float:
        """Run the client; return the seconds that the work took (0 for ``create``)."""
        command = [self._client, self._root.client_library, self._database, work, *amounts]
        done = subprocess.run(
            [str(part) for part in command],
            env=self._root.environment(),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return float(done.stdout or 0)

    def check(self, commits: int) -> None:
        """Fail unless capture really took place: a bench of nothing shows nothing."""
        if self.name == "own" and not list((self.directory / "journal").iterdir()):
            raise SystemExit("the engine's own replication wrote no journal")
        if self.name == "ours":
            found = sum(
                1 for path in (self.directory / "journal").iterdir() if path.suffix == ".log"
            )
            if found != commits:
                raise SystemExit(f"{found} journals for {commits} transactions")


@contextmanager
def workspace() -> Iterator[tuple[Path, Path]]:
    """A folder for the databases, and the compiled client in it."""
    run = HERE.parent / ".run"
    run.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=run))
    try:
        client = directory / "engine_client"
        compiler = sysconfig.get_config_var("CC") or "gcc"
        source = HERE / "engine_client.c"
        command = [*compiler.split(), "-O2", "-Wall", "-Werror", str(source), "-o", str(client)]
        subprocess.run([*command, "-ldl"], check=True)
        yield directory, client
    finally:
        shutil.rmtree(directory)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    arguments = parser.parse_args()
    rounds = arguments.rounds or (7 if arguments.quick else 15)
    commits, warm, rows, warm_rows = 1000, 100, 100_000, 1000

    seconds: dict[tuple[str, str], list[float]] = {}
    with workspace() as (directory, client):
        variants = [Variant(name, directory, client) for name in VARIANTS]
        for number in range(rounds):
            # another order in each round, so that no variant always follows the same one
            for variant in variants[number % 3 :] + variants[: number % 3]:
                for work, amounts in (("commits", (commits, warm)), ("bulk", (rows, warm_rows))):
                    taken = variant.run(work, *amounts)
                    seconds.setdefault((variant.name, work), []).append(taken)
            line = "  ".join(
                f"{name} {commits / seconds[name, 'commits'][-1]:,.0f}/s "
                f"{rows / seconds[name, 'bulk'][-1]:,.0f} rows/s"
                for name in VARIANTS
            )
            print(f"round {number + 1} of {rounds}: {line}", flush=True)
        for variant in variants:
            variant.check(rounds * (commits + warm + 2))

    median = {key: statistics.median(values) for key, values in seconds.items()}
    spread = {key: (min(values), max(values)) for key, values in seconds.items()}
    for (name, work), (low, high) in spread.items():
        print(f"{name:5} {work:8} median {median[name, work]:.3f} s, {low:.3f} to {high:.3f} s")
    result: dict[str, float] = {
        "bulk_vs_bare": round(median["bare", "bulk"] / median["ours", "bulk"], 3),
        "commits_vs_bare": round(median["bare", "commits"] / median["ours", "commits"], 3),
        "commits_vs_own_replication": round(
            median["own", "commits"] / median["ours", "commits"], 3
        ),
    }
    for name in VARIANTS:
        result[f"{name}_commits_per_s"] = round(commits / median[name, "commits"])
        result[f"{name}_bulk_rows_per_s"] = round(rows / median[name, "bulk"])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
