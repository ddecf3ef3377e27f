"""A Debian trixie in a folder, with its Firebird 4 server and our package built for its Python.

Made once, in stages that each leave a stamp of what they were made from: the system (debootstrap
and apt), a virtual environment with our dependencies, our package. Whatever runs inside gets
/proc and /dev in a mount namespace of its own, so that nothing is left mounted, however it ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from firebird_cdc.demo.debian import Bootstrap, Say, alone, chroot, inner_environment
from firebird_cdc.errors import SetupError

SUITE = "trixie"
PACKAGES = ("firebird4.0-server", "python3", "python3-venv", "python3-dev", "gcc", "libc6-dev")
_SYSTEM = " ".join((SUITE, *PACKAGES, "layout 1"))
CONFIGURATION = Path("etc/firebird/4.0")
SERVER_DIRECTORY = Path("usr/lib/x86_64-linux-gnu/firebird/4.0")
DATA = Path("var/lib/firebird/4.0/data")
LOGS = Path("var/log/firebird")
OUR_LOGS = Path("var/log/firebird-cdc")
OUR_STATE = Path("var/lib/firebird-cdc/state")
_WRITTEN = (CONFIGURATION, SERVER_DIRECTORY, DATA.parent, LOGS, Path("run"), Path("tmp"))
_MADE = Path("opt")
SOURCE = _MADE / "firebird-cdc-source"
VENV = _MADE / "firebird-cdc-venv"
_PRISTINE = _MADE / "pristine"


class Trixie:
    """The prepared system. ``path`` is its root, seen from outside.

    laid_over: folders outside that take the place of folders inside, by the name of the latter.
    """

    def __init__(self, path: Path, laid_over: Mapping[Path, Path] | None = None) -> None:
        self.path = path
        self._laid_over = dict(laid_over or {})

    def sibling(self, directory: Path) -> Trixie:
        """Return the same system with what a server writes in DIRECTORY, which is made: several
        servers run side by side then, each with a configuration, plugins and databases of its
        own."""
        laid_over = dict(self._laid_over)
        for folder in _WRITTEN:
            laid_over[folder] = directory / folder
            (directory / folder).parent.mkdir(parents=True, exist_ok=True)
            copy = ["cp", "--archive", str(self.outer(folder)), str(directory / folder)]
            subprocess.run(copy, check=True)
        return Trixie(self.path, laid_over)

    def with_package(self, cache: Path, clone: Path, folder: Path, say: Say) -> Trixie:
        """Return the same system, made under CACHE, with the package of another CLONE in place of
        its own. FOLDER keeps that one, with its dependencies, for the next time.

        Raises SetupError with the end of a log if a stage fails.
        """
        if not folder.exists():
            new = folder.with_name(f"{folder.name}.new")
            shutil.rmtree(new, ignore_errors=True)
            subprocess.run(["cp", "--archive", str(self.outer(_MADE)), str(new)], check=True)
            new.rename(folder)
        laid_over = {**self._laid_over, _MADE: folder}
        _Maker(cache, clone, say, laid_over).make_package()
        return Trixie(self.path, laid_over)

    def command(self, argv: Sequence[str], user: str = "root") -> list[str]:
        """Return the command that runs ARGV inside, as USER."""
        return chroot(self.path, argv, user, self._laid_over)

    def run(
        self, *argv: str, check: bool = True, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ARGV inside to its end. CalledProcessError, with the output, if it fails."""
        done = subprocess.run(
            self.command(argv),
            env=inner_environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout}")
        return done

    def inner(self, path: Path) -> Path:
        """Return how PATH is called inside."""
        for folder, outside in self._laid_over.items():
            if path.is_relative_to(outside):
                return Path("/") / folder / path.relative_to(outside)
        return Path("/") / path.relative_to(self.path)

    def outer(self, path: Path) -> Path:
        """Return where PATH, relative to the root, lies outside."""
        for folder, outside in self._laid_over.items():
            if path.is_relative_to(folder):
                return outside / path.relative_to(folder)
        return self.path / path

    def reset(self) -> None:
        """Give the server the configuration and plugins it was packaged with."""
        configuration, server = self.outer(CONFIGURATION), self.outer(SERVER_DIRECTORY)
        for path in configuration.iterdir():
            if not (self.path / _PRISTINE / path.name).exists():
                path.unlink()
        for path in (self.path / _PRISTINE).iterdir():
            shutil.copy2(path, configuration / path.name)
        for log in self.outer(LOGS).iterdir():
            log.unlink()
        for name in ("replication.conf", "replication.log"):
            (server / name).unlink(missing_ok=True)
        (server / "plugins/libfirebird_cdc.so").unlink(missing_ok=True)
        ours = (server / "plugins/firebird_cdc", self.path / OUR_STATE, self.path / OUR_LOGS)
        services = self.path / "etc/systemd/system"
        for folder in (*ours, *services.glob("firebird-cdc-shipper@*.d")):
            shutil.rmtree(folder, ignore_errors=True)
        for unit in services.glob("firebird-cdc-shipper@*"):
            unit.unlink()


def make_system(cache: Path, clone: Path, say: Say) -> Path:
    """Make the system under CACHE, without our package, if it is not there; returns its folder.

    Nobody who uses it has to be waited for. Raises SetupError with the end of a log.
    """
    with alone(cache, "trixie-making.lock", "waiting for the Debian system to be made", say):
        maker = _Maker(cache, clone, say)
        maker.make_system()
        return maker.root


@contextlib.contextmanager
def prepared(cache: Path, clone: Path, say: Say) -> Iterator[Trixie]:
    """Make or refresh the system under CACHE and hold it: one user at a time.

    Raises SetupError with the end of a log if a stage fails.
    """
    if os.geteuid() != 0:
        raise SetupError("a chroot needs root: run the server tests as root")
    with alone(cache, "trixie.lock", "waiting for other tests that use this server", say):
        make_system(cache, clone, say)
        maker = _Maker(cache, clone, say)
        maker.make_package()
        for left in (maker.root / DATA).iterdir():  # by a run that was killed
            shutil.rmtree(left)
        yield Trixie(maker.root)


class _Maker:
    def __init__(
        self, cache: Path, clone: Path, say: Say, laid_over: Mapping[Path, Path] | None = None
    ) -> None:
        self.root = cache / "trixie"
        self._inside = Trixie(self.root, laid_over)
        self._cache = cache
        self._clone = clone
        self._say = say
        self._bootstrap = Bootstrap(cache, "trixie")

    def make_system(self) -> None:
        """Make the system itself."""
        title = "making a Debian trixie with a Firebird 4 server (1 to 2 minutes)"
        self._stage("system", _SYSTEM, title, self._system)

    def make_package(self) -> None:
        """Bring our package in the system up to date."""
        project = tomllib.loads((self._clone / "pyproject.toml").read_text("utf-8"))
        needed = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
        sources = sources_of(self._clone)
        self._stage(
            "venv",
            "\n".join([_SYSTEM, str(VENV), *needed]),
            "installing our dependencies for its Python",
            lambda: self._venv(needed),
        )
        digest = hashlib.sha256()
        for path in sources:
            source = self._clone / path
            content = (
                str(source.readlink()).encode() if source.is_symlink() else source.read_bytes()
            )
            digest.update(f"{path}\0".encode() + content)
        title = "building our package for its Python"
        self._stage("package", digest.hexdigest(), title, lambda: self._package(sources))

    def _stage(self, name: str, made_from: str, title: str, make: Callable[[], None]) -> None:
        stamp = self._inside.outer(_MADE / f"stamp-{name}")
        if stamp.is_file() and stamp.read_text() == made_from:
            return
        stamp.unlink(missing_ok=True)
        begun = time.monotonic()
        self._say(f"{title} …")
        make()
        stamp.write_text(made_from)
        self._say(f"{title}: {time.monotonic() - begun:.0f} s")

    def _system(self) -> None:
        new = self._cache / "trixie.new"
        for old in (new, self.root):
            shutil.rmtree(old, ignore_errors=True)
        self._bootstrap.make(new, SUITE, PACKAGES, self._say)
        shutil.copytree(new / CONFIGURATION, new / _PRISTINE)
        new.rename(self.root)

    def _venv(self, needed: Sequence[str]) -> None:
        shutil.rmtree(self._inside.outer(VENV), ignore_errors=True)
        self._inside.outer(_MADE / "stamp-package").unlink(missing_ok=True)
        inside = inner_environment()
        self._bootstrap.run(
            "venv", self._inside.command(["python3", "-m", "venv", f"/{VENV}"]), inside
        )
        pip = [f"/{VENV}/bin/pip", "install", "--progress-bar", "off", "--no-cache-dir"]
        self._bootstrap.run("venv-pip", self._inside.command([*pip, *needed]), inside)

    def _package(self, sources: Sequence[Path]) -> None:
        target = self._inside.outer(SOURCE)
        shutil.rmtree(target, ignore_errors=True)
        for path in sources:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self._clone / path, target / path, follow_symlinks=False)
        pip = [f"/{VENV}/bin/pip", "install", "--no-index", "--no-deps", "--no-build-isolation"]
        self._bootstrap.run(
            "package",
            self._inside.command([*pip, "--force-reinstall", f"/{SOURCE}"]),
            inner_environment(),
        )


def sources_of(clone: Path) -> list[Path]:
    """Return the files that our package is built from, tracked or new, in a fixed order."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=clone,
        capture_output=True,
        check=True,
    )
    paths = [Path(os.fsdecode(name)) for name in listed.stdout.split(b"\0") if name]
    spare = {"tests", "docs", "benchmarks", ".ci", "scripts"}
    return sorted(
        path
        for path in paths
        if path.parts[0] not in spare and ((clone / path).is_file() or (clone / path).is_symlink())
    )
