"""Debian systems in folders, made by debootstrap and apt; what runs in one gets /proc and /dev in a
mount namespace of its own, so that nothing is left mounted, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from firebird_cdc.errors import SetupError

Say = Callable[[str], None]

_CERTIFICATES = Path("etc/ssl/certs/ca-certificates.crt")
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


@contextlib.contextmanager
def alone(cache: Path, name: str, waiting: str, say: Say) -> Iterator[None]:
    """Hold the lock NAME in CACHE; what is said before it has to be waited for is WAITING."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / name).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(waiting)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


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


def chroot(
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


class Bootstrap:
    """Makes systems in folders; what each step prints goes to CACHE/logs/NAME-STEP.log."""

    def __init__(self, cache: Path, name: str) -> None:
        self._cache = cache
        self._name = name
        self._lists: list[str] = []

    def make(self, root: Path, suite: str, packages: Sequence[str], say: Say) -> None:
        """Make ROOT, which must not exist, with Debian's SUITE and PACKAGES.

        Raises SetupError with the end of a log.
        """
        if os.geteuid() != 0:
            raise SetupError("a Debian system in a folder needs root: run this as root")
        environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
        proxy = _apt_setting("Acquire::http::Proxy")
        if proxy:
            environment.setdefault("http_proxy", proxy)
        mirror = self.mirror()
        program, scripts = self._debootstrap(suite)
        if scripts:
            environment["DEBOOTSTRAP_DIR"] = str(scripts)
        self.run(
            "debootstrap",
            [
                *("unshare", "--mount", str(program), "--variant=minbase"),
                *((f"--keyring={_KEYRING}",) if _KEYRING.exists() else ()),
                *(suite, str(root), mirror),
            ],
            environment,
        )
        _admit_host_settings(root)
        inside = inner_environment()
        self.run("apt-update", chroot(root, ["apt-get", "update"]), inside)
        install = ["apt-get", "install", "--yes", "--no-install-recommends"]
        try:
            self.run("apt-install", chroot(root, [*install, *packages]), inside)
        except SetupError:
            say("  finishing packages that could not be set up at once")
            self.run("apt-fix", chroot(root, [*install, "--fix-broken"]), inside)
            self.run("apt-install", chroot(root, [*install, *packages]), inside)
        self.run("apt-clean", chroot(root, ["apt-get", "clean"]), inside)
        if Path("/", _CERTIFICATES).exists():
            shutil.copy(Path("/", _CERTIFICATES), root / _CERTIFICATES)

    def _debootstrap(self, suite: str) -> tuple[Path, Path | None]:
        """Return the program and the folder of its scripts, fetching both if need be."""
        own = shutil.which("debootstrap")
        if own and Path("/usr/share/debootstrap/scripts", suite).exists():
            return Path(own), None
        debian = self._cache / "debian"
        packages, tree = debian / "packages", debian / "root"
        packages.mkdir(parents=True, exist_ok=True)
        if not (tree / "usr/sbin/debootstrap").exists():
            fetch = ["apt-get", *self._lists, "download", "debootstrap"]
            self.run("fetch-debootstrap", fetch, cwd=packages)
            package = sorted(packages.glob("debootstrap_*.deb"))[-1]
            self.run("unpack-debootstrap", ["dpkg-deb", "-x", str(package), str(tree)])
        if shutil.which("wget") is None:
            raise SetupError("debootstrap needs wget, which is missing: apt-get install wget")
        return tree / "usr/sbin/debootstrap", tree / "usr/share/debootstrap"

    def mirror(self) -> str:
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
                    self.run("fetch-lists", ["apt-get", *self._lists, "update"])
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

    def run(
        self,
        name: str,
        argv: Sequence[str],
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Run ARGV to its end. Raises SetupError with the end of its log, called after NAME."""
        log = self._cache / "logs" / f"{self._name}-{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
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


def _admit_host_settings(root: Path) -> None:
    """Let apt and pip inside reach what they reach outside."""
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text(_POLICY)
    policy.chmod(0o755)
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True)
    lines = [line for line in dump.stdout.splitlines() if _FETCHING.match(line)]
    (root / "etc/apt/apt.conf.d/99host").write_text("\n".join([*lines, ""]))
    (root / _CERTIFICATES).parent.mkdir(parents=True, exist_ok=True)
    for part in ("etc/resolv.conf", "etc/hosts", "etc/apt/auth.conf", str(_CERTIFICATES)):
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


def _apt_setting(name: str) -> str:
    done = subprocess.run(["apt-config", "shell", "V", name], capture_output=True, text=True)
    found = re.search(r"^V='(.*)'$", done.stdout.strip())
    return found[1] if found else ""
