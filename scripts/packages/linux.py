"""Debian packages and RPMs of the tree, by nfpm: one description, two formats.

The package's files lie in /opt/firebird-cdc/package. What servers load is linked to them in
/opt/firebird-cdc/versions/VERSION (scripts/firebird-cdc.postinstall.sh), so that a version is
there, whole, for as long as a process has it, though the package has been replaced by then.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path

from places import ADDONS, CACHE, DIST, ROOT, epoch, is_release, say, version
from tree import addon, elf_needs, is_elf, tree

from firebird_cdc.errors import SetupError
from firebird_cdc.journal.folder.folder_format import FORMAT
from firebird_cdc.journal.format.layout import SHARED_VERSION

NFPM = "github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.44.1"  # later ones need modules that are withheld
PREFIX = Path("/opt/firebird-cdc")
_SCRIPTS = Path(__file__).parent / "scripts"
_SERVICES = ROOT / "packaging/services"
_UNIT = "firebird-cdc-shipper@.service"
_SUMMARIES = {
    "firebird-cdc": "change data capture for Firebird servers, delivered to Kafka",
    "firebird-cdc-replay": "replay and audit of firebird-cdc's journals on one machine",
    "firebird-cdc-spark": "replay and audit of firebird-cdc's journals with Spark",
}
_TEXTS = {
    "firebird-cdc": (
        "A plugin for servers of Firebird 4 and 5 and RED Database that records what transactions"
        " change, and a shipper that sends it to Kafka as Debezium's events. It brings its own"
        " Python and needs no server to be installed with."
    ),
    "firebird-cdc-replay": (
        "What the commands of firebird-cdc replay need on one machine: DuckDB and Arrow. They run"
        " without Spark and Java."
    ),
    "firebird-cdc-spark": (
        "What the commands of firebird-cdc replay need to have Spark work for them, on this machine"
        " or on a cluster: PySpark. Spark itself needs Java 17 or later."
    ),
}
#: Packages that have what the tree needs of a system, by the library: Debian's, RPM's.
_SYSTEM = {
    "libc.so.6": ("libc6 (>= 2.31)", "glibc >= 2.31"),
    "libcrypt.so.1": ("libcrypt1", "libcrypt.so.1()(64bit)"),
    "libgcc_s.so.1": ("libgcc-s1", "libgcc"),
    "libstdc++.so.6": ("libstdc++6", "libstdc++"),
}
# Of these each system has its own mind (rights), and the last is for the scripts to remove.
_FOLDERS = {
    *(Path("/usr/lib/systemd/system"), *Path("/usr/lib/systemd/system").parents),
    *(Path("/usr/share/bash-completion/completions"), Path("/usr/share/bash-completion")),
    *(Path("/usr/share/man/man1"), Path("/usr/share/man"), Path("/usr/share/doc")),
    *(Path("/usr/share"), Path("/usr/bin"), Path("/usr/lib/tmpfiles.d"), PREFIX.parent, PREFIX),
}
# Where lintian speaks of what is meant to be so, with the reason.
_OVERRIDES = """\
# An add-on that is not part of Debian: the FHS has /opt for these, and units, bundle and RPM name
# the same place.
{name}: dir-or-file-in-opt *
# Python and compiled modules as their authors build them, with the libraries that they were tested
# with: the package needs nothing of the system but libc, so that one build serves all releases.
{name}: embedded-library *
{name}: custom-library-search-path *
{name}: unstripped-binary-or-object *
{name}: library-not-linked-against-libc *
{name}: shared-library-lacks-prerequisites *
# Modules of others that begin as programs do, and are none.
{name}: script-not-executable *
{name}: unusual-interpreter *
# The Python is the package's own, and so is its bytecode: nothing of the system compiles there.
{name}: package-installs-python-pycache-dir *
{name}: python3-script-but-no-python3-dep *
"""


NAMES = ("firebird-cdc", *(f"firebird-cdc-{name}" for name in ADDONS))
"""All, each for the one before it."""

_COMPLETIONS = {
    "bash": "/usr/share/bash-completion/completions/firebird-cdc",
    "zsh": "/usr/share/zsh/vendor-completions/_firebird-cdc",
    "fish": "/usr/share/fish/vendor_completions.d/firebird-cdc.fish",
}


def packages() -> list[Path]:
    """Build the packages into dist/ and return them."""
    work = CACHE / "linux"
    shutil.rmtree(work, ignore_errors=True)
    return [package(name, packager, DIST, work) for name in NAMES for packager in ("deb", "rpm")]


def package(name: str, packager: str, folder: Path, work: Path, of: str | None = None) -> Path:
    """Build one package into FOLDER and return it; what it is made of comes into WORK. OF: call
    this version so, as somebody who tries a change of versions does."""
    of = of or version()
    content = tree()
    if addon_name := _addon_of(name):
        content = addon(addon_name)
    place = work / name
    place.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    say(f"making {name}.{packager}")
    described = _description(name, content, place, packager, of)
    target = folder / _file_name(name, packager, of)
    new = place / target.name  # there is never half of one
    run_nfpm(described, packager, new)
    new.replace(target)
    say(f"{target.name}: {target.stat().st_size / 1e6:.1f} MB")
    return target


def _addon_of(name: str) -> str:
    """Return the add-on that the package NAME brings; the main one brings none."""
    return name.removeprefix("firebird-cdc").removeprefix("-")


def run_nfpm(described: dict[str, object], packager: str, target: Path) -> None:
    """Have TARGET made, which is DESCRIBED as nfpm wants it. Raises SetupError."""
    file = target.with_name(f"nfpm-{packager}.yaml")
    file.write_text(json.dumps(described), "utf-8")  # which is YAML, too
    command = [str(_nfpm()), "package", "--config", str(file), "--packager", packager]
    done = subprocess.run(
        [*command, "--target", str(target)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SetupError(f"nfpm could not make {target.name}: {done.stdout}{done.stderr}")


def _file_name(name: str, packager: str, of: str) -> str:
    if packager == "deb":
        return f"{name}_{of}_amd64.deb"
    return f"{name}-{of}-1.x86_64.rpm"


def _nfpm() -> Path:
    """Return nfpm, built once from its module."""
    own = CACHE / "bin" / "nfpm"
    stamp = own.with_name("nfpm.module")
    if own.exists() and stamp.is_file() and stamp.read_text("utf-8") == NFPM:
        return own
    if shutil.which("go") is None:
        raise SetupError("packages are made by nfpm, which needs Go 1.24 or later to be built")
    say("building nfpm")
    own.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["go", "install", NFPM],
        env={**os.environ, "GOBIN": str(own.parent), "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SetupError(f"nfpm could not be built: {done.stderr}")
    stamp.write_text(NFPM, "utf-8")
    return own


def _description(
    name: str, content: Path, place: Path, packager: str, of: str
) -> dict[str, object]:
    """Return what nfpm is told; files that are made for it lie in PLACE."""
    is_main = name == "firebird-cdc"
    addon_name = _addon_of(name)
    needs = [names[packager == "rpm"] for names in _system_packages(content)]
    if not is_main:
        needed = NAMES[NAMES.index(name) - 1]
        needs.append(f"{needed} (= {of})" if packager == "deb" else f"{needed} = {of}-1")
    values = {"VERSION": of, "FORMATS": f"{SHARED_VERSION} {FORMAT}", "ADDON": addon_name}
    scripts = {}
    for step in ("preinstall", "postinstall", "preremove", "postremove"):
        source = _SCRIPTS / f"{'firebird-cdc' if is_main else 'addon'}.{step}.sh"
        if source.exists():
            script = place / f"{packager}-{step}.sh"
            text = source.read_text("utf-8")
            for key, value in values.items():
                text = text.replace(f"@{key}@", value)
            script.write_text(text, "utf-8")
            scripts[step] = str(script)
    target = PREFIX / "package" / addon_name
    source = content / addon_name
    files = [
        *_files(source, target),
        *(_main_files() if is_main else []),
        *(_made_files(content, place) if is_main else []),
        *_documents(name, place, packager, of),
    ]
    if packager == "rpm":
        files = [*_folders(files), *files]
    return {
        "name": name,
        "arch": "amd64",
        "platform": "linux",
        "version": of,
        "version_schema": "none",
        "release": "1" if packager == "rpm" else "",
        "section": "database",
        "priority": "optional",
        "maintainer": maintainer(),
        "vendor": "firebird-cdc",
        "license": "MIT" if packager == "rpm" else "",
        "description": f"{_SUMMARIES[name]}\n{textwrap.fill(_TEXTS[name], 76)}",
        "depends": needs,
        "mtime": datetime.fromtimestamp(epoch(), UTC).isoformat().replace("+00:00", "Z"),
        "contents": files,
        "scripts": scripts,
        "deb": {"compression": "gzip"},
        "rpm": {"compression": "zstd", "buildhost": "localhost"},
    }


def _folders(files: list[dict[str, object]]) -> Iterator[dict[str, object]]:
    """Yield the folders of FILES that a system may not have: rpm takes away those of a package
    alone, and may have several packages share one."""
    found = {folder for file in files for folder in Path(str(file["dst"])).parents}
    for folder in sorted(found - _FOLDERS):
        yield {"dst": str(folder), "type": "dir", "file_info": {"mode": 0o755}}


def maintainer() -> str:
    """Return who builds the packages: by the variables of Debian's tools, else who committed.
    Raises SetupError for a release that nobody signs with the former."""
    if is_release(version()) and not os.environ.get("DEBEMAIL"):
        raise SetupError(
            f"the packages of release {version()} name who answers for them: set DEBFULLNAME and"
            " DEBEMAIL, and run this again"
        )
    show = ["git", "-C", str(ROOT), "show", "-s", "--format=%cn%n%ce", "HEAD"]
    told = subprocess.run(show, capture_output=True, text=True, check=True).stdout.splitlines()
    name, address = os.environ.get("DEBFULLNAME"), os.environ.get("DEBEMAIL")
    return f"{name or told[0]} <{address or told[1]}>"


def _files(source: Path, target: Path) -> Iterator[dict[str, object]]:
    """Yield all below SOURCE, one by one: links stay links, libraries are no programs."""
    for path in sorted(source.rglob("*")):
        place = str(target / path.relative_to(source))
        if path.is_symlink():
            yield {"src": str(path.readlink()), "dst": place, "type": "symlink"}
        elif path.is_file():
            runs = path.stat().st_mode & 0o100 and path.parent.name == "bin"
            mode = 0o755 if runs else 0o644
            yield {"src": str(path), "dst": place, "file_info": {"mode": mode}}


def _system_packages(content: Path) -> list[tuple[str, str]]:
    """Return the packages of the system, Debian's and RPM's, that have what the tree links to."""
    wanted: set[str] = set()
    for path in content.rglob("*"):
        if path.is_file() and not path.is_symlink() and is_elf(path):
            wanted |= elf_needs(path)[0]
    return [_SYSTEM[name] for name in sorted(wanted) if name in _SYSTEM]


def _main_files() -> Iterator[dict[str, object]]:
    yield {
        "src": str(PREFIX / "current/bin/firebird-cdc"),
        "dst": "/usr/bin/firebird-cdc",
        "type": "symlink",
    }
    for source, target in (
        (_SCRIPTS / "default", "/usr/share/firebird-cdc/default"),
        (_SERVICES / _UNIT, f"/usr/lib/systemd/system/{_UNIT}"),
        (_SERVICES / "firebird-cdc.sysusers", "/usr/lib/sysusers.d/firebird-cdc.conf"),
        (_SERVICES / "firebird-cdc.tmpfiles", "/usr/lib/tmpfiles.d/firebird-cdc.conf"),
        (_SERVICES / "firebird-cdc.logrotate", "/usr/share/doc/firebird-cdc/examples/logrotate"),
    ):
        yield {"src": str(source), "dst": target, "file_info": {"mode": 0o644}}


def _made_files(content: Path, place: Path) -> Iterator[dict[str, object]]:
    """Yield man pages, and what shells need to complete our commands."""
    pages = place / "man"
    command = [sys.executable, "-P", str(ROOT / "scripts/man_pages.py"), str(pages)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for page in sorted(pages.rglob("*.[1-8]")):
        packed = page.with_name(f"{page.name}.gz")
        packed.write_bytes(gzip.compress(page.read_bytes(), mtime=0))
        section = page.suffix.removeprefix(".")
        yield {"src": str(packed), "dst": f"/usr/share/man/man{section}/{packed.name}"}
    for shell, target in _COMPLETIONS.items():
        words = subprocess.run(
            [content / "bin/firebird-cdc", "completion", shell],
            check=True,
            capture_output=True,
            env={},
        )
        file = place / f"completion.{shell}"
        file.write_bytes(words.stdout)
        yield {"src": str(file), "dst": target, "file_info": {"mode": 0o644}}


def _documents(name: str, place: Path, packager: str, of: str) -> Iterator[dict[str, object]]:
    """Yield what Debian's policy wants beside each package."""
    documents = Path("/usr/share/doc") / name
    copyright_file = place / "copyright"
    licence = (ROOT / "LICENSE").read_text("utf-8")
    copyright_file.write_text(
        f"{name} is Copyright of its authors, under this license:\n\n{licence}\n"
        f"The licenses of Python and of all that comes with it are in {PREFIX}/package/licenses\n"
        "and, of packages, in their .dist-info folders.\n",
        "utf-8",
    )
    yield {"src": str(copyright_file), "dst": str(documents / "copyright")}
    if packager != "deb":
        return
    changelog = place / "changelog.gz"
    entry = (
        f"{name} ({of}) stable; urgency=medium\n\n"
        "  * See CHANGELOG.md of the sources.\n\n"
        f" -- {maintainer()}  {formatdate(epoch())}\n"
    )
    changelog.write_bytes(gzip.compress(entry.encode(), mtime=0))
    yield {"src": str(changelog), "dst": str(documents / "changelog.gz")}
    overrides = place / "overrides"
    overrides.write_text(_OVERRIDES.format(name=name), "utf-8")
    yield {"src": str(overrides), "dst": f"/usr/share/lintian/overrides/{name}"}
