"""The cost of a commit in this clone beside its cost in another commit of the project.

That is what engine.py does with it; ship.py compares the cost of an event alike.

Two servers with the same settings, options and paths, one with the plugin and the bridge of this
clone as it is, one with those of the other commit, are under load in turn, in pairs; who begins
alternates. Every few pairs both start anew: where things happen to lie in a process's memory has
its effect on all that it does, and would pass for a difference of the commits.

The CPU time is that of the server's process with all its threads, ours among them, and of whatever
it starts, until all journals are confirmed; that of the kernel's own threads, which write to the
disk later, is in no figure.

The other commit is checked out and built once, in .cache/commits/<its hash>, and stays there.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from firebird_cdc.demo import trixie
from firebird_cdc.demo.firebird4 import Firebird4

MOST_CPU = 1.03
LEAST_RATE = 0.95
FEWEST_PAIRS = 9
_PAIRS_OF_A_START = 9
_LONGEST_S = 420  # of measuring, once there are enough pairs
_WARM = 50  # transactions per connection on servers that have just started
_PACKAGES = ("bridge", "config", "journal", "packaging")

Say = Callable[[str], None]


class Sample(NamedTuple):
    """One run on one server."""

    rate: float  # commits a second
    cpu_us: float  # a commit


class Pair(NamedTuple):
    """One run on each server, one right after the other."""

    new: Sample
    old: Sample


class Server(Protocol):
    """A server of engine.py, as far as it is used here."""

    server: Firebird4

    def restart(self) -> None:
        """Start the server anew, without the journals so far."""

    def close(self) -> None:
        """End what is left of it."""

    def check(self) -> None:
        """Fail unless every transaction was captured."""

    def run(self, work: str, *numbers: int) -> float:
        """Let the client work; return the seconds that it took."""

    def sample(self, connections: int, count: int) -> Sample:
        """Run COUNT transactions on each of CONNECTIONS connections, and measure them."""


class Words(NamedTuple):
    """Names of the unit of work, and of the part that a figure is of."""

    one: str = "a commit"
    many: str = "commits"
    where: str = "on {} connections"


COMMITS = Words()


def figures(pairs: Mapping[Any, Sequence[Pair]], words: Words = COMMITS) -> dict[str, Any]:
    """Return ratios of new to old, and medians, for each number of connections, or other part.

    A ratio is the median of the pairs' ratios: it does not see what slows both of a pair down.
    """
    found: dict[str, Any] = {}
    for part, measured in pairs.items():
        for name, field in (("cpu_ratio", "cpu_us"), ("rate_ratio", "rate")):
            ratios = [getattr(pair.new, field) / getattr(pair.old, field) for pair in measured]
            low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
            found[f"{name}_{part}"] = round(middle, 4)
            found[f"{name}_{part}_quartiles"] = [round(low, 4), round(high, 4)]
        for which in Pair._fields:
            samples = [getattr(pair, which) for pair in measured]
            cpu_us = statistics.median(sample.cpu_us for sample in samples)
            rate = statistics.median(sample.rate for sample in samples)
            found[f"{which}_cpu_us_{part}"] = round(cpu_us, 1)
            found[f"{which}_{words.many}_{part}_per_s"] = round(rate)
    return found


def missed(found: Mapping[str, Any], words: Words = COMMITS) -> list[str]:
    """Return a sentence for each of the FIGURES that is beyond its limit."""
    sentences = []
    for name, value in found.items():
        kind, _, part = name.rpartition("_")
        if kind == "cpu_ratio" and value > MOST_CPU:
            what, limit = f"the CPU time of {words.one}", f"more than {MOST_CPU}"
        elif kind == "rate_ratio" and value < LEAST_RATE:
            what, limit = f"the rate of {words.many}", f"less than {LEAST_RATE}"
        else:
            continue
        low, high = found[f"{name}_quartiles"]
        sentences.append(
            f"{what} {words.where.format(part)} is {value:.3f} of the other commit's, {limit}; "
            f"half of the pairs are from {low:.3f} to {high:.3f}"
        )
    return sentences


def order(number: int) -> tuple[str, str]:
    """Return who goes first and second in pair NUMBER: each goes first in every other one."""
    return ("old", "new") if number % 2 else ("new", "old")


def checkout(commit: str, clone: Path, cache: Path) -> tuple[str, Path]:
    """Return the hash of COMMIT, and the folder with its files in a worktree, made if missing."""
    done = _git(clone, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    name = done.stdout.strip()
    if done.returncode:
        raise SystemExit(f"--against {commit}: {clone} has no such commit")
    folder = cache / "commits" / name / "source"
    if not (folder / "pyproject.toml").is_file():
        # --force: git may remember a worktree that was removed with .cache
        made = _git(clone, "worktree", "add", "--force", "--detach", str(folder), name)
        if made.returncode:
            raise SystemExit(f"git makes no worktree in {folder}: {made.stderr.strip()}")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no").stdout
    if changed or _git(folder, "rev-parse", "HEAD").stdout.strip() != name:
        raise SystemExit(f"{folder} is not {name} as committed: remove that folder")
    return name, folder


def built(commit: str, clone: Path, cache: Path) -> tuple[str, Path]:
    """Return the hash of COMMIT, and the folder with its files and what `make setup` makes."""
    name, folder = checkout(commit, clone, cache)
    if not (folder / ".venv" / "bin" / "firebird-cdc").exists():
        subprocess.run(["make", "setup"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return name, folder


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # A hook or `git rebase --exec` may have put another repository into the environment.
    environment = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def check_code(server: Firebird4, clone: Path) -> None:
    """Fail unless the server's process has loaded the plugin and the bridge built from CLONE."""
    process = Path(f"/proc/{server.process_id}")
    inside = process / "root"  # the files as the server sees them
    plugins = inside / trixie.SERVER_DIRECTORY / "plugins"
    (site,) = (inside / trixie.VENV).glob("lib/python3*/site-packages")
    loaded = [plugins / "libfirebird_cdc.so", *plugins.glob("firebird_cdc/_embedding.*.so")]
    equal = {path: site / "firebird_cdc/native" / path.name for path in loaded}
    for source in (clone / "native").glob("[a-z]*.[ch]"):
        equal[source] = inside / trixie.SOURCE / source.relative_to(clone)
    for package in _PACKAGES:
        for source in (clone / package).rglob("*.py"):
            equal[source] = site / "firebird_cdc" / source.relative_to(clone)
    wrong = [
        path
        for source, path in equal.items()
        if not path.is_file() or path.read_bytes() != source.read_bytes()
    ]
    # Of Python's packages only compiled ones are mapped: one that the bridge imports will do.
    needed = [*loaded, *site.glob("_cffi_backend.*.so")]
    mapped = {_identity(file) for file in (process / "map_files").iterdir()}
    wrong += [path for path in needed if _identity(path) not in mapped]
    if wrong or len(needed) != 3:
        names = "\n".join(map(str, wrong or needed))
        raise SystemExit(f"a server does not run the code of {clone}:\n{names}")


def _identity(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except FileNotFoundError:  # deleted, or no longer mapped
        return (0, 0)
    return status.st_dev, status.st_ino


def measure(
    servers: Mapping[str, Server],
    clones: Mapping[str, Path],
    amounts: Mapping[int, int],
    count: int,
    say: Say,
) -> dict[int, list[Pair]]:
    """Return up to COUNT pairs per number of connections; AMOUNTS: transactions on each of them.

    SERVERS and CLONES: under the names of the fields of a Pair.
    """
    pairs: dict[int, list[Pair]] = {connections: [] for connections in amounts}
    deadline = time.monotonic() + _LONGEST_S
    for number in range(count):
        if number >= FEWEST_PAIRS and time.monotonic() >= deadline:
            say(f"{number} pairs took {_LONGEST_S} s: the others are left out")
            break
        if number % _PAIRS_OF_A_START == 0:
            for name, server in servers.items():
                if number:
                    server.restart()
                server.run("attach", max(amounts))
                server.sample(max(amounts), _WARM)
                check_code(server.server, clones[name])
        for connections, amount in amounts.items():
            found = {name: servers[name].sample(connections, amount) for name in order(number)}
            pairs[connections].append(Pair(**found))
        last = [(connections, measured[-1]) for connections, measured in pairs.items()]
        say(
            "  ".join(
                f"commits_{connections} {new.rate:,.0f}/{old.rate:,.0f}"
                f" cpu {new.cpu_us:.0f}/{old.cpu_us:.0f} us"
                for connections, (new, old) in last
            )
        )
    return pairs


def run(
    commit: str,
    clone: Path,
    cache: Path,
    amounts: Mapping[int, int],
    count: int,
    make: Callable[[str, trixie.Trixie], Server],
    say: Say,
) -> None:
    """Measure, print, and end with 1 if a limit is missed. MAKE: a server, by name and system."""
    name, source = checkout(commit, clone, cache)
    say(f"load before: {' '.join(f'{load:.2f}' for load in os.getloadavg())}")
    with ExitStack() as stack:
        system = stack.enter_context(trixie.prepared(cache, clone, say))
        systems = {
            "new": system,
            "old": system.with_package(cache, source, source.with_name("opt"), say),
        }
        servers: dict[str, Server] = {}
        for which, its_system in systems.items():
            servers[which] = make(which, its_system)
            stack.callback(servers[which].close)
        clones = {"new": clone, "old": source}
        pairs = measure(servers, clones, amounts, count, say)
        for server in servers.values():
            server.check()
    conclude(name, pairs, COMMITS, say)


def conclude(name: str, pairs: Mapping[Any, Sequence[Pair]], words: Words, say: Say) -> None:
    """Print what came of the comparison with commit NAME; end with 1 if a limit is missed."""
    found = figures(pairs, words)
    beyond = missed(found, words)
    for sentence in beyond:
        say(f"missed: {sentence}")
    print(
        json.dumps(
            {"against": name, "pairs": min(map(len, pairs.values())), "met": not beyond, **found}
        )
    )
    if beyond:
        raise SystemExit(1)
