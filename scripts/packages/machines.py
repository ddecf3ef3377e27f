"""Debian systems in folders in which packages and the bundle are tried: made once, copied for each
trial. What runs inside has no network unless it is to reach this machine's Kafka."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from places import CACHE, say

from firebird_cdc.demo.debian import Bootstrap, alone, chroot, inner_environment
from firebird_cdc.errors import SetupError

Picture = dict[str, tuple[int, int, int, str]]


def pristine(name: str, suite: str, packages: Sequence[str]) -> Path:
    """Return a system NAME that nobody has worked in, which is made if there is none."""
    found = CACHE / name
    with alone(CACHE, f"{name}.lock", "waiting for another run", say):
        if not found.exists():
            say(f"making a Debian {suite} with {', '.join(packages)}")
            new = found.with_name(f"{name}.new")
            shutil.rmtree(new, ignore_errors=True)
            Bootstrap(CACHE, name).make(new, suite, packages, say)
            new.rename(found)
    return found


class Chroot:
    """A copy of a pristine system, whose place is ``root``."""

    def __init__(self, system: Path, root: Path) -> None:
        self.root = root
        shutil.rmtree(root, ignore_errors=True)
        root.parent.mkdir(parents=True, exist_ok=True)
        copy = ["cp", "--archive", "--reflink=auto", str(system), str(root)]
        subprocess.run(copy, check=True)

    def argv(self, *argv: str, before: str = "", network: bool = False) -> list[str]:
        """Return the command that runs ARGV inside; BEFORE: a line of shell that runs first."""
        if before:
            argv = ("sh", "-ec", f'{before}; exec "$@"', "sh", *argv)
        return [*(() if network else ("unshare", "--net")), *chroot(self.root, argv)]

    def run(
        self, *argv: str, before: str = "", network: bool = False, fails: int | None = 0
    ) -> str:
        """Run ARGV inside to its end; return what it said. Raises SetupError unless it ends with
        the code FAILS; None: with any."""
        done = subprocess.run(
            self.argv(*argv, before=before, network=network),
            env=inner_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if fails is not None and done.returncode != fails:
            raise SetupError(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def inside(self, path: str | Path) -> Path:
        """Return where a path inside lies."""
        return self.root / str(path).lstrip("/")

    def take(self, file: Path, folder: str = "/srv") -> str:
        """Bring FILE into the system; return its name there."""
        shutil.copy2(file, self.inside(folder) / file.name)
        return f"{folder}/{file.name}"

    def processes(self) -> dict[int, str]:
        """Return the processes that live in here, and the programs that they run."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if process.joinpath("root").readlink() == self.root:
                    found[int(process.name)] = process.joinpath("comm").read_text().strip()
        return found

    def picture(self, without: Iterable[str] = ()) -> Picture:
        """Return all names inside but for those WITHOUT, with mode, owner and content."""
        left_out = {"proc", "sys", "dev", "run", "tmp", *without}
        found: Picture = {}
        for folder, folders, files in os.walk(self.root):
            inner = Path(folder).relative_to(self.root)
            folders[:] = [name for name in folders if str(inner / name) not in left_out]
            for name in [*folders, *files]:
                path = Path(folder, name)
                if str(inner / name) in left_out:
                    continue
                status = path.lstat()
                content = ""
                if path.is_symlink():
                    content = str(path.readlink())
                elif stat.S_ISREG(status.st_mode):
                    content = hashlib.sha256(path.read_bytes()).hexdigest()
                owner = (status.st_mode, status.st_uid, status.st_gid)
                found[str(inner / name)] = (*owner, content)
        return found


def differences(before: Picture, after: Picture) -> list[str]:
    """Return what is new, gone or changed."""
    return [
        f"{'new' if name not in before else 'gone' if name not in after else 'changed'}: {name}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


def compare(what: str, before: Picture, after: Picture) -> None:
    """Raise SetupError where AFTER is not as BEFORE; WHAT: when that is."""
    found = differences(before, after)
    if found:
        raise SetupError(f"{what}, files are not as before:\n  " + "\n  ".join(found[:20]))


def expect(wanted: str, said: str) -> None:
    """Raise SetupError unless WANTED is in what was SAID."""
    if wanted not in said:
        raise SetupError(f"'{wanted}' was expected, and this was said:\n{said}")
