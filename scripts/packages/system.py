"""The Debian bullseye in which all that is shipped is compiled, and what is compiled there once:
OpenSSL and CPython, of Debian's source packages with Debian's security patches."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from places import CACHE, epoch, say

from firebird_cdc.demo.debian import Bootstrap, alone, chroot, inner_environment

SUITE = "bullseye"
GLIBC = "2.31"
PACKAGES = (
    *("gcc", "g++", "libc6-dev", "make", "perl", "patch", "xz-utils"),
    *("zlib1g-dev", "libbz2-dev", "liblzma-dev", "libffi-dev"),
)
#: Python's minor version: the suite that has its sources.
PYTHONS = {11: "bookworm", 13: "trixie"}
OPENSSL_SUITE = "bookworm"
SHIPPED = 13
SYSTEM = CACHE / SUITE
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

# OpenSSL is linked into Python's modules: a server may load a libcrypto of its own beside ours.
_OPENSSL = """\
./Configure linux-x86_64 no-shared no-tests no-engine no-legacy no-comp no-ssl3 \\
    --prefix=/opt/openssl --openssldir=/etc/ssl --libdir=lib -fPIC > configured.log
make -j2 build_libs > made.log
make install_dev > installed.log
# Python's own search names no library that this one needs.
cd /opt/openssl/lib
mv libcrypto.a libcrypto_static.a
echo 'INPUT(/opt/openssl/lib/libcrypto_static.a -ldl -lpthread)' > libcrypto.so
"""

# No profile is trained (--enable-optimizations), which would take an hour here. What is loaded by
# the server is looked up beside itself: $ORIGIN is set afterwards.
_PYTHON = """\
./configure --prefix=/opt/python3.{minor} --enable-shared --with-openssl=/opt/openssl \\
    --with-ensurepip=no CFLAGS_NODIST=-fno-semantic-interposition \\
    LDFLAGS_NODIST='-fno-semantic-interposition -Wl,--exclude-libs,ALL' > configured.log
make -j2 > made.log
make install > installed.log
"""


class BuildSystem:
    """Bullseye with compilers, and the Pythons in /opt/python3.N of it."""

    def __init__(self) -> None:
        self.root = SYSTEM
        self._bootstrap = Bootstrap(CACHE, "build")

    def python(self, minor: int) -> Path:
        """Return the prefix of Python 3.MINOR, seen from outside; it is built if need be."""
        with alone(CACHE, "system.lock", "packages  waiting for another build", say):
            self._make_system()
            self._compiled("openssl", "openssl", OPENSSL_SUITE, "openssl", _OPENSSL)
            name = f"python3.{minor}"
            self._compiled(name, name, PYTHONS[minor], name, _PYTHON.format(minor=minor))
            loader = self.root / "etc/ld.so.conf.d" / f"{name}.conf"
            if not loader.exists():
                loader.write_text(f"/opt/{name}/lib\n")
                self.run("ldconfig", ["ldconfig"])
            return self.root / "opt" / name

    def source_version(self, name: str) -> str:
        """Return the version of the Debian source package that NAME was compiled from."""
        (described,) = (CACHE / "sources" / name).glob("*.dsc")
        (found,) = re.findall(r"^Version: (\S+)$", described.read_text("utf-8"), re.MULTILINE)
        return found

    def run(
        self,
        name: str,
        argv: Sequence[str],
        laid_over: Mapping[Path, Path] | None = None,
        **variables: str,
    ) -> None:
        """Run ARGV inside, with folders outside in the place of some inside (see `chroot`).
        Raises SetupError with the end of its log, called after NAME."""
        variables = {"SOURCE_DATE_EPOCH": str(epoch()), "PIP_FIND_LINKS": "", **variables}
        command = chroot(self.root, argv, laid_over=laid_over)
        self._bootstrap.run(name, command, inner_environment(variables))

    def _make_system(self) -> None:
        def make() -> None:
            new = self.root.with_name(f"{SUITE}.new")
            for old in (new, self.root):
                shutil.rmtree(old, ignore_errors=True)
            self._bootstrap.make(new, SUITE, PACKAGES, say)
            new.rename(self.root)

        self._stage("system", " ".join(PACKAGES), f"making a Debian {SUITE}", make)

    def _compiled(self, name: str, package: str, suite: str, target: str, program: str) -> None:
        def make() -> None:
            sources = self._fetch(name, package, suite)
            place = self.root / "build" / name
            shutil.rmtree(place, ignore_errors=True)
            shutil.rmtree(self.root / "opt" / target, ignore_errors=True)
            # 3.11 is not shipped: with it, wheels are built.
            _unpack(sources, place, mended=name != "python3.11")
            (place / "compile.sh").write_text(f"set -e\ncd /build/{name}\n{program}")
            self.run(name, ["sh", f"/build/{name}/compile.sh"])

        title = f"compiling {name} of Debian {suite}'s sources"
        self._stage(name, f"{suite}\n{program}", title, make)

    def _fetch(self, name: str, package: str, suite: str) -> Path:
        """Download a source package; apt checks it against the archive's signature."""
        folder = CACHE / "sources" / name
        shutil.rmtree(folder, ignore_errors=True)
        for part in ("lists/partial", "archives/partial"):
            (CACHE / "sources" / "apt" / part).mkdir(parents=True, exist_ok=True)
        folder.mkdir(parents=True)
        apt = CACHE / "sources" / "apt"
        (apt / "sources.list").write_text(
            f"deb-src [signed-by={_KEYRING}] {self._bootstrap.mirror()} {suite} main\n"
        )
        options = [
            *(
                "-o",
                f"Dir::Etc::sourcelist={apt / 'sources.list'}",
                "-o",
                "Dir::Etc::sourceparts=-",
            ),
            *("-o", f"Dir::State::lists={apt / 'lists'}", "-o", f"Dir::Cache={apt}"),
            *("-o", "APT::Sandbox::User=root"),
        ]
        self._bootstrap.run("fetch-lists", ["apt-get", *options, "update"])
        fetch = ["apt-get", *options, "source", "--download-only", package]
        self._bootstrap.run(f"fetch-{name}", fetch, cwd=folder)
        return folder

    def _stage(self, name: str, made_from: str, title: str, make: Callable[[], None]) -> None:
        stamp = self.root / f"stamp-{name}"
        if stamp.is_file() and stamp.read_text() == made_from:
            return
        stamp.unlink(missing_ok=True)
        say(f"{title} …")
        begun = time.monotonic()
        make()
        stamp.write_text(made_from)
        say(f"{title}: {time.monotonic() - begun:.0f} s")


def _unpack(sources: Path, place: Path, mended: bool) -> None:
    """Unpack upstream's files. MENDED: apply those of Debian's patches that mend vulnerabilities;
    the others move things to where Debian has them."""
    place.mkdir(parents=True)
    (original,) = sources.glob("*.orig.tar.[gx]z")
    (debian,) = sources.glob("*.debian.tar.xz")
    for archive, more in ((original, ["--strip-components=1"]), (debian, [])):
        subprocess.run(["tar", "-xf", archive, "-C", place, "--no-same-owner", *more], check=True)
    series = (place / "debian" / "patches" / "series").read_text("utf-8").split("\n")
    for patch in security_patches(series) if mended else []:
        with (place / "debian" / "patches" / patch).open("rb") as file:
            subprocess.run(
                ["patch", "-p1", "--silent", "--force"], stdin=file, cwd=place, check=True
            )


def security_patches(series: Sequence[str]) -> list[str]:
    """Return the patches of a series that are named after a vulnerability."""
    names = [line.split("#")[0].strip() for line in series]
    return [name for name in names if re.match(r"(CVE|security/CVE)-\d", name)]


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def needs_root() -> None:
    """End the program unless it runs as root, which debootstrap needs."""
    if os.geteuid() != 0:
        raise SystemExit("packages  packages are built in a Debian of their own: run this as root")
