"""Feeds many inputs to a reader, each within bounds of time and memory."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import NamedTuple

CPU_S = 1.0
MEMORY = 512 * 1024 * 1024


class Hang(BaseException):
    """The reader was at one input for too long."""


class Lie(Exception):
    """The reader gave something that nobody has written."""


class Input(NamedTuple):
    """An input; ``name``: what it was made from; ``is_forged``: its checksums are right."""

    content: bytes
    name: str
    is_forged: bool


class Campaign(ABC):
    """Inputs for a reader, and the way to read them; made once in each process, in a folder of its
    own."""

    @abstractmethod
    def __init__(self, folder: Path) -> None: ...

    @abstractmethod
    def make_input(self, seed: int, number: int) -> Input:
        """Return input NUMBER of a run, the same each time."""

    @abstractmethod
    def examine(self, path: Path, is_forged: bool, chance: random.Random) -> str:
        """Read the input at PATH in every way; return how it ended. Raises Lie, and what
        crashed."""


def attempt(campaign: Campaign, path: Path, given: Input, number: int) -> str:
    """Have the reader read an input from PATH; return how it ended.

    Raises Lie, Hang, and any other exception that the reader did not mean.
    """
    path.write_bytes(given.content)
    chance = random.Random(number)
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    try:
        return campaign.examine(path, given.is_forged, chance)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def fuzz(
    campaign: Campaign, seed: int, numbers: range, folder: Path, complain: Callable[[str], None]
) -> Counter[str]:
    """Try the inputs of these numbers in this process; return how many ended how.

    COMPLAIN is called with what is wrong with one, once the input was saved in FOLDER.
    """

    def expire(number: int, frame: FrameType | None) -> None:
        where = "".join(traceback.format_stack(frame, 3))
        raise Hang(f"still reading after {CPU_S} s of CPU time, at\n{where}")

    before = signal.signal(signal.SIGPROF, expire)
    path = folder / f"input-{numbers.start}.log"
    tally: Counter[str] = Counter()
    try:
        for number in numbers:
            given = campaign.make_input(seed, number)
            try:
                ended = attempt(campaign, path, given, number)
            except (Exception, Hang) as error:
                ended = "WRONG"
                saved = folder / f"{seed}-{number}.log"
                saved.write_bytes(given.content)
                kind = "forged" if given.is_forged else "damaged"
                trace = "".join(traceback.format_exception(error)[-4:])
                complain(f"{saved}, {kind} from {given.name}:\n{trace}")
            tally[ended] += 1
    finally:
        signal.signal(signal.SIGPROF, before)
        path.unlink(missing_ok=True)
    return tally


def _worker(
    kind: type[Campaign], seed: int, numbers: range, folder: Path, results: Connection
) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    folder.mkdir()
    campaign = kind(folder)
    tally = fuzz(
        campaign, seed, numbers, folder, lambda text: print(text, file=sys.stderr, flush=True)
    )
    results.send(tally)


def main(kind: type[Campaign], about: str) -> int:
    """Run what the command line asks for; 1 if there was anything to complain of."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 20))
    parser.add_argument("--from", dest="first", type=int, default=0, help="number of the first")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    last = arguments.first + arguments.inputs
    print(f"seed {arguments.seed}, inputs {arguments.first} to {last - 1}", flush=True)
    memory = Path("/dev/shm")
    base = tempfile.mkdtemp(prefix="journal-fuzz-", dir=memory if memory.is_dir() else None)
    begun = time.monotonic()
    context = multiprocessing.get_context("spawn")
    workers = []
    share = -(-arguments.inputs // arguments.jobs)
    for first in range(arguments.first, last, share):
        numbers = range(first, min(first + share, last))
        mine, theirs = context.Pipe(duplex=False)
        where = Path(base, str(first))
        given = kind, arguments.seed, numbers, where, theirs
        process = context.Process(target=_worker, args=given)
        process.start()
        theirs.close()
        workers.append((process, mine, where))
    tally: Counter[str] = Counter()
    for process, results, where in workers:
        try:
            tally += results.recv()
        except EOFError:
            process.join()
            tally["WRONG"] += 1
            print(f"the process died ({process.exitcode}); its input is in {where}")
        process.join()
    seconds = time.monotonic() - begun
    print(f"{tally.total()} inputs in {seconds:.0f} s: {dict(tally.most_common())}")
    if tally["WRONG"]:
        print(f"{tally['WRONG']} of them went wrong; they are in {base}")
        return 1
    shutil.rmtree(base)
    return 0
