"""A Debian trixie in a folder, with its Firebird 4 server and our package built for its Python.

Made once, in stages that each leave a stamp of what they were made from: the system (debootstrap
and apt), a virtual environment with our dependencies, our package. Whatever runs inside gets
/proc and /dev in a mount namespace of its own, so that nothing is left mounted, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from firebird_cdc.errors import SetupError

Say = Callable[[str], None]

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
VENV = _MADE / "firebird-cdc"
_PRISTINE = _MADE / "pristine"
_BUNDLE = Path("etc/ssl/certs/ca-certificates.crt")
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_FETCHING = re.compile(r"^Acquire::(https?|ftp|Retries|Check|Max|AllowI|AllowW|Force)", re.I)

# Nobody starts a service in here but us.
_POLICY = "#!/bin/sh\nexit 101\n"

# $1: the root; pairs of folders, the second laid over the first, up to --. /dev comes along for
# /dev/null and /dev/shm.
_ENTER = """\
root=$1; shift
while [ "$1" != -- ]; do mount --bind "$2" "$root/$1" || exit; shift 2; done
shift
mount --bind /proc "$root/proc" && mount --rbind /dev "$root/dev" && exec chroot "$@"
"""


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
        return _chroot(self.path, argv, user, self._laid_over)

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
        for log in [*self.outer(LOGS).iterdir(), *(self.path / OUR_LOGS).glob("*.log*")]:
            log.unlink()
        for name in ("replication.conf", "replication.log"):
            (server / name).unlink(missing_ok=True)
        (server / "plugins/libfirebird_cdc.so").unlink(missing_ok=True)
        for folder in (server / "plugins/firebird_cdc", self.path / OUR_STATE):
            shutil.rmtree(folder, ignore_errors=True)


def inner_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for what runs inside: ours, with the paths of that system."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "LD_", "FIREBIRD", "VIRTUAL_ENV", "PYENV"))
    }
    inside = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
        "TMPDIR": "/tmp",  # noqa: S108 - inside
    }
    return {**kept, **inside, **(more or {})}


@contextlib.contextmanager
def _alone(cache: Path, name: str, waiting: str, say: Say) -> Iterator[None]:
    """Hold the lock NAME in CACHE; what is said before it has to be waited for is WAITING."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / name).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(waiting)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make_system(cache: Path, clone: Path, say: Say) -> Path:
    """Make the system under CACHE, without our package, if it is not there; returns its folder.

    Nobody who uses it has to be waited for. Raises SetupError with the end of a log.
    """
    with _alone(cache, "trixie-making.lock", "waiting for the Debian system to be made", say):
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
    with _alone(cache, "trixie.lock", "waiting for other tests that use this server", say):
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
        self._logs = cache / "logs"
        self._lists: list[str] = []

    def make_system(self) -> None:
        """Make the system itself."""
        self._logs.mkdir(exist_ok=True)
        title = "making a Debian trixie with a Firebird 4 server (1 to 2 minutes)"
        self._stage("system", _SYSTEM, title, self._system)

    def make_package(self) -> None:
        """Bring our package in the system up to date."""
        project = tomllib.loads((self._clone / "pyproject.toml").read_text("utf-8"))
        needed = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
        sources = self._sources()
        self._stage(
            "venv",
            "\n".join([_SYSTEM, *needed]),
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
        environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
        proxy = _apt_setting("Acquire::http::Proxy")
        if proxy:
            environment.setdefault("http_proxy", proxy)
        mirror = self._mirror()
        program, scripts = self._debootstrap()
        if scripts:
            environment["DEBOOTSTRAP_DIR"] = str(scripts)
        self._run(
            "debootstrap",
            [
                *("unshare", "--mount", str(program), "--variant=minbase"),
                *((f"--keyring={_KEYRING}",) if _KEYRING.exists() else ()),
                *(SUITE, str(new), mirror),
            ],
            environment,
        )
        self._admit_host_settings(new)
        inside = inner_environment()
        self._run("apt-update", _chroot(new, ["apt-get", "update"]), inside)
        install = ["apt-get", "install", "--yes", "--no-install-recommends"]
        try:
            self._run("apt-install", _chroot(new, [*install, *PACKAGES]), inside)
        except SetupError:
            self._say("  finishing packages that could not be set up at once")
            self._run("apt-fix", _chroot(new, [*install, "--fix-broken"]), inside)
            self._run("apt-install", _chroot(new, [*install, *PACKAGES]), inside)
        self._run("apt-clean", _chroot(new, ["apt-get", "clean"]), inside)
        if Path("/", _BUNDLE).exists():
            shutil.copy(Path("/", _BUNDLE), new / _BUNDLE)
        shutil.copytree(new / CONFIGURATION, new / _PRISTINE)
        new.rename(self.root)

    def _admit_host_settings(self, root: Path) -> None:
        """Let apt and pip inside reach what they reach outside."""
        policy = root / "usr/sbin/policy-rc.d"
        policy.write_text(_POLICY)
        policy.chmod(0o755)
        dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True)
        lines = [line for line in dump.stdout.splitlines() if _FETCHING.match(line)]
        (root / "etc/apt/apt.conf.d/99host").write_text("\n".join([*lines, ""]))
        (root / _BUNDLE).parent.mkdir(parents=True, exist_ok=True)
        for part in ("etc/resolv.conf", "etc/hosts", "etc/apt/auth.conf", str(_BUNDLE)):
            if Path("/", part).is_file():
                shutil.copy(Path("/", part), root / part)
        for folder in ("etc/apt/auth.conf.d", "usr/local/share/ca-certificates"):
            if Path("/", folder).is_dir():
                shutil.copytree(Path("/", folder), root / folder, dirs_exist_ok=True)
        for line in lines:
            file = re.search(r'::(?:CaInfo|SslCert|SslKey) "(/[^"]+)"', line, re.IGNORECASE)
            if file and Path(file[1]).is_file():
                target = root / file[1].lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file[1], target)
        for path in ("/etc/pip.conf", "~/.config/pip/pip.conf", "~/.pip/pip.conf"):
            if Path(path).expanduser().is_file():
                shutil.copy(Path(path).expanduser(), root / "etc/pip.conf")

    def _venv(self, needed: Sequence[str]) -> None:
        shutil.rmtree(self._inside.outer(VENV), ignore_errors=True)
        self._inside.outer(_MADE / "stamp-package").unlink(missing_ok=True)
        inside = inner_environment()
        self._run("venv", self._inside.command(["python3", "-m", "venv", f"/{VENV}"]), inside)
        pip = [f"/{VENV}/bin/pip", "install", "--progress-bar", "off", "--no-cache-dir"]
        self._run("venv-pip", self._inside.command([*pip, *needed]), inside)

    def _package(self, sources: Sequence[Path]) -> None:
        target = self._inside.outer(SOURCE)
        shutil.rmtree(target, ignore_errors=True)
        for path in sources:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self._clone / path, target / path, follow_symlinks=False)
        pip = [f"/{VENV}/bin/pip", "install", "--no-index", "--no-deps", "--no-build-isolation"]
        self._run(
            "package",
            self._inside.command([*pip, "--force-reinstall", f"/{SOURCE}"]),
            inner_environment(),
        )

    def _sources(self) -> list[Path]:
        """Return the files that our package is built from, tracked or new, in a fixed order."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=self._clone,
            capture_output=True,
            check=True,
        )
        paths = [Path(os.fsdecode(name)) for name in listed.stdout.split(b"\0") if name]
        aside = {"tests", "docs", "benchmarks", ".ci", "scripts"}
        return sorted(
            path
            for path in paths
            if path.parts[0] not in aside
            and ((self._clone / path).is_file() or (self._clone / path).is_symlink())
        )

    def _debootstrap(self) -> tuple[Path, Path | None]:
        """Return the program and the folder of its scripts, fetching both if need be."""
        own = shutil.which("debootstrap")
        if own and Path("/usr/share/debootstrap/scripts", SUITE).exists():
            return Path(own), None
        debian = self._cache / "debian"
        packages, tree = debian / "packages", debian / "root"
        packages.mkdir(parents=True, exist_ok=True)
        if not (tree / "usr/sbin/debootstrap").exists():
            fetch = ["apt-get", *self._lists, "download", "debootstrap"]
            self._run("fetch-debootstrap", fetch, cwd=packages)
            package = sorted(packages.glob("debootstrap_*.deb"))[-1]
            self._run("unpack-debootstrap", ["dpkg-deb", "-x", str(package), str(tree)])
        if shutil.which("wget") is None:
            raise SetupError("debootstrap needs wget, which is missing: apt-get install wget")
        return tree / "usr/sbin/debootstrap", tree / "usr/share/debootstrap"

    def _mirror(self) -> str:
        """Return the mirror of Debian's main archive that this machine uses.

        As a side effect _lists becomes the options under which apt has package lists: the
        machine's own if there are any, else lists of ours, so that nothing outside changes.
        """
        own = self._cache / "debian"
        ours = ["-o", f"Dir::State::lists={own / 'lists'}", "-o", f"Dir::Cache={own / 'apt'}"]
        for options in ([], ours):
            self._lists = ["-o", "APT::Sandbox::User=root", *options]
            if options:
                for folder in ("lists/partial", "apt/archives/partial"):
                    (own / folder).mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(SetupError):  # one source may fail, and not matter
                    self._run("fetch-lists", ["apt-get", *self._lists, "update"])
            query = ["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
            listed = subprocess.run(
                ["apt-get", *self._lists, *query], capture_output=True, text=True, check=False
            )
            for uri in listed.stdout.split():
                if re.match(r"https?://.*/debian/?$", uri):
                    return uri
        raise SetupError(
            "this machine's apt sources name no mirror of Debian's archive (.../debian) that "
            "answers: add one to /etc/apt/sources.list"
        )

    def _run(
        self,
        name: str,
        argv: Sequence[str],
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        log = self._logs / f"trixie-{name}.log"
        with log.open("wb") as output:
            done = subprocess.run(
                argv,
                env=environment,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if done.returncode:
            end = "\n".join(log.read_text("utf-8", "replace").splitlines()[-15:])
            raise SetupError(f"{name} failed ({done.returncode}); the end of {log}:\n{end}")


def _chroot(
    root: Path,
    argv: Sequence[str],
    user: str = "root",
    laid_over: Mapping[Path, Path] | None = None,
) -> list[str]:
    as_user = [] if user == "root" else [f"--userspec={user}"]
    pairs = [str(path) for pair in (laid_over or {}).items() for path in pair]
    enter = ["bash", "-c", _ENTER, "enter", str(root), *pairs, "--"]
    enter += [*as_user, str(root), *argv]
    return ["unshare", "--mount", "--propagation", "private", *enter]


def _apt_setting(name: str) -> str:
    done = subprocess.run(["apt-config", "shell", "V", name], capture_output=True, text=True)
    found = re.search(r"^V='(.*)'$", done.stdout.strip())
    return found[1] if found else ""
