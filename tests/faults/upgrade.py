"""Upgrades servers in place under load, with journals of both versions waiting.

python tests/faults/upgrade.py [--from COMMIT] [--rounds 4] [--mode Classic] [--seed WORD]

Processes with the plugin of COMMIT, which is checked out and built under .cache/commits, commit
single rows until they are killed, and so do others with the plugin of this clone after them, on
what the former left. Ends with 1 unless each row of the table is then in one transaction of the
folder, and these are numbered without a gap.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

_HERE = Path(__file__).parent
_CLONE = _HERE.parent.parent
sys.path[:0] = [str(_HERE.parent / "engine"), str(_HERE.parent), str(_CLONE / "benchmarks")]

from _against import built  # noqa: E402
from _client import compile_client  # noqa: E402
from capture import Capture  # noqa: E402

from firebird_cdc.demo.paths import cache_directory  # noqa: E402
from firebird_cdc.demo.processes import Stack  # noqa: E402

BEFORE_SHARED_JOURNALS = "c22db7f"
_MODES = {"Super": (1, 4), "Classic": (4, 1)}  # processes, connections of each
_PASSWORD = "masterkey"


class _Server:
    """Processes with the embedded engine, which stand for those of a server."""

    def __init__(self, capture: Capture, program: Path, mode: str) -> None:
        self._capture = capture
        self._program = program
        self._count, self._connections = _MODES[mode]

    def _start(self, *commands: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [self._program, self._capture.root.client_library, self._capture.database, _PASSWORD],
            env=self._capture.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdin is not None
        for command in commands:
            print(command, file=process.stdin, flush=True)
        return process

    def work_and_end(self, *commands: str) -> None:
        """Run COMMANDS in a process that ends in peace."""
        process = self._start(*commands)
        process.communicate(timeout=120)
        assert process.returncode == 0, f"{commands} failed ({process.returncode})"

    def work_until_killed(self, seconds: float) -> None:
        """Commit on all connections, for so long."""
        commands = (f"attach {self._connections}", f"commits {self._connections} 1000000 0")
        processes = [self._start(*commands) for _ in range(self._count)]
        time.sleep(seconds)
        for process in processes:
            assert process.poll() is None, "it ended before it was killed"
            process.kill()
        for process in processes:
            process.communicate()


def _build(commit: str) -> Path:
    """Return the command of the package of COMMIT."""
    _, folder = built(commit, _CLONE, cache_directory())
    return folder / ".venv" / "bin" / "firebird-cdc"


def _round(directory: Path, former: Path, program: Path, mode: str, chance: random.Random) -> None:
    with contextlib.ExitStack() as stack:
        capture = Capture(directory, stack.enter_context(Stack(directory)), {"ServerMode": mode})
        arguments = ["--server", capture.root.path, "--config", capture.config]
        subprocess.run(
            [former, "install", *arguments, "--logging", capture.logging],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        server = _Server(capture, program, mode)
        server.work_and_end("create 1")
        for _ in range(2):
            server.work_until_killed(chance.uniform(1.0, 3.0))
        waiting = len(list(capture.journal_directory.glob("*.log*")))
        capture.install()
        for _ in range(2):
            server.work_until_killed(chance.uniform(1.0, 3.0))
        server.work_and_end("attach 1", "commits 1 10 0")
        journals = capture.journals()
        attachment = capture.attach()
        rows = Counter(dict(row)["ID"] for row in attachment.rows("T").elements())
        capture.end_clients()
        captured = Counter(journal.header.transaction for journal in journals if journal.rows)
        shared = sum(journal.file != journal.path for journal in journals)
        print(
            f"{mode}: {waiting} journals waited, {len(journals)} transactions, "
            f"{shared} of them in shared journals; lost {sum((rows - captured).values())}, twice "
            f"or without a row {sum((captured - rows).values())}",
            flush=True,
        )
        assert rows == captured
        assert waiting
        assert shared


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="commit", default=BEFORE_SHARED_JOURNALS)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--mode", action="append", choices=_MODES, help="default: by turns")
    parser.add_argument("--seed", default=secrets.token_hex(4))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    former = _build(arguments.commit)
    chance = random.Random(arguments.seed)
    modes = arguments.mode or list(_MODES)
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory(prefix="firebird-cdc-upgrade-") as temporary:
            directory = Path(temporary)
            _round(
                directory,
                former,
                compile_client(directory / "engine_client"),
                modes[number % len(modes)],
                chance,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
