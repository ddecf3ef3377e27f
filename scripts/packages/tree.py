"""The private tree: our own Python with all that it needs, in one folder that works anywhere.

It is installed as PREFIX/versions/VERSION, and PREFIX/current is a link to the one that is used:

    bin/firebird-cdc     the command
    lib/                 links to the plugin, libpython and the packages, by names that stay
    python/              CPython with firebird-cdc, its plugin, and its dependencies
    replay/, spark/      (of the add-ons) what replays and Spark need; python/ looks there too
    licenses/            of all that is not ours
    manifest             JSON: version, commit, glibc, and what it was made of
    files.sha256         the digest of each file, for sha256sum --check
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from locking import locked
from places import ADDONS, CACHE, LOCKS, ROOT, commit, epoch, say, version
from system import GLIBC, SHIPPED, BuildSystem, digest_of

from firebird_cdc.demo.trixie import sources_of

MANIFEST = "manifest"
DIGESTS = "files.sha256"
_PYTHON = f"python3.{SHIPPED}"
_SITE = Path("python/lib") / _PYTHON / "site-packages"
# Libraries of bullseye that Python's modules need, by the package with their licence.
_LIBRARIES = {
    "libbz2.so.1.0": "libbz2-1.0",
    "libffi.so.7": "libffi7",
    "liblzma.so.5": "liblzma5",
    "libz.so.1": "zlib1g",
}
#: What a system has that runs a Firebird server.
SYSTEM_LIBRARIES = frozenset(
    f"{name}"
    for name in (
        *("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1"),
        *("ld-linux-x86-64.so.2", "libgcc_s.so.1", "libstdc++.so.6", "libcrypt.so.1"),
        *("libresolv.so.2", "libnsl.so.1"),
    )
)
# Of CPython and of packages: tests, headers, and what builds or teaches.
_LEFT_OUT = (
    *(f"python/lib/{_PYTHON}/{name}" for name in ("test", "idlelib", "tkinter", "turtledemo")),
    *(f"python/lib/{_PYTHON}/{name}" for name in ("ensurepip", "config-*", "turtle.py")),
    *(f"python/lib/{_PYTHON}/{name}" for name in ("pydoc_data", "__phello__")),
    *("python/include", "python/share", "python/lib/pkgconfig", "python/lib/*.a"),
    f"python/lib/libpython3.{SHIPPED}.so",
    *(f"python/lib/{_PYTHON}/lib-dynload/{name}*.so" for name in ("_test", "_xxtest", "xx")),
    *(f"replay/pyarrow/{name}" for name in ("tests", "include", "includes", "src", "*.p[yx]x")),
    *("replay/pyarrow/*.pxd", "replay/pyarrow/*.pxi", f"{_SITE}/bin"),
    *(f"{addon}/bin" for addon in ADDONS),
)

# Servers are told these: they hold for each version of ours and of Python.
_LINKS = {
    "libfirebird_cdc.so": f"{_SITE}/firebird_cdc/native/libfirebird_cdc.so",
    "libpython.so": f"python/lib/libpython3.{SHIPPED}.so.1.0",
    "packages": f"{_SITE}",
}

# $1: the folder of patchelf, $2: the tree. RPATH, not RUNPATH: a server's LD_LIBRARY_PATH must not
# bring another Python.
_RELOCATABLE = f"""\
library=$2/python/lib
program=$2/python/bin/{_PYTHON}
modules=$library/{_PYTHON}/lib-dynload
chmod u+w $library/*.so*
strip --strip-unneeded $library/*.so* $modules/*.so $program $2/{_SITE}/firebird_cdc/native/*.so
$1/patchelf --force-rpath --set-rpath '$ORIGIN/../lib' $program
$1/patchelf --force-rpath --set-rpath '$ORIGIN' $library/libpython3.{SHIPPED}.so.1.0
$1/patchelf --force-rpath --set-rpath '$ORIGIN/../..' $modules/*.so
"""

# From any folder, through any links, whatever the environment says of another Python.
_LAUNCHER = f"""\
#!/bin/sh
self=$(readlink -f -- "$0") || exit 127
unset PYTHONHOME PYTHONPATH
exec "${{self%/bin/*}}/python/bin/{_PYTHON}" -I -m firebird_cdc "$@"
"""


@cache
def tree() -> Path:
    """Make the tree of this commit and those of the add-ons (see `addon`), to be laid over the
    former; return that."""
    target = CACHE / "tree" / version()
    places = {None: target, **{name: addon(name) for name in ADDONS}}
    made_from = {_made_from(place) for place in places.values()}
    if not commit().endswith("+changes") and made_from == {commit()}:
        return target
    say(f"making the tree of {version()}")
    system = BuildSystem()
    prefix = system.python(SHIPPED)
    work = system.root / "work"
    shutil.rmtree(work, ignore_errors=True)
    wheel = wheel_of(system, SHIPPED)
    for name, place in places.items():
        made = work / (name or "tree")
        if name:
            _install(system, _locked_wheels(system, name), made / name)
        else:
            _fill(system, prefix, made, wheel)
        _finish(system, made, name)
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        made.rename(place)
        _forget_old(place)
    try_out(system, target)
    return target


def addon(name: str) -> Path:
    """Return where the tree of an add-on is, once `tree` has run."""
    return CACHE / name / version()


def _forget_old(made: Path) -> None:
    """Leave of those beside MADE the last, which an upgrade may begin with."""
    others = sorted(made.parent.iterdir(), key=lambda path: path.stat().st_mtime)
    for old in [path for path in others if path != made][:-1]:
        shutil.rmtree(old)


def wheel_of(system: BuildSystem, minor: int, clone: Path = ROOT, **variables: str) -> Path:
    """Build the wheel of CLONE for Python 3.MINOR, with VARIABLES in the environment; return it,
    seen from outside."""
    system.python(minor)
    build = build_environment(system, minor)
    source = system.root / "build" / "firebird-cdc"
    out = system.root / "build" / f"wheel-{minor}"
    for old in (source, out):
        shutil.rmtree(old, ignore_errors=True)
    for path in sources_of(clone):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(clone / path, source / path, follow_symlinks=False)
    pip = [f"{build}/bin/pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation"]
    wheel = [*pip, "--wheel-dir", f"/build/{out.name}", "/build/firebird-cdc"]
    flags = f"-ffile-prefix-map=/build/firebird-cdc=. {variables.pop('CFLAGS', '')}"
    system.run(f"wheel-{minor}", wheel, CFLAGS=flags, **variables)
    (built,) = out.glob("*.whl")
    return built


def build_environment(system: BuildSystem, minor: int) -> str:
    """Return the virtual environment, seen from inside, that builds for Python 3.MINOR."""
    folder = system.root / "opt" / f"build3.{minor}"
    lock = (LOCKS / "build.txt").read_text("utf-8")
    stamp = folder / "made-from.txt"
    inside = f"/opt/{folder.name}"
    if stamp.is_file() and stamp.read_text("utf-8") == lock:
        return inside
    shutil.rmtree(folder, ignore_errors=True)
    system.run("build-venv", [f"/opt/python3.{minor}/bin/python3.{minor}", "-m", "venv", inside])
    (system.root / "build" / "build.txt").write_text(lock, "utf-8")
    pip = [f"{inside}/bin/pip", "install", "--require-hashes", "--only-binary", ":all:"]
    system.run("build-tools", [*pip, "--requirement", "/build/build.txt"])
    stamp.write_text(lock, "utf-8")
    return inside


def _locked_wheels(system: BuildSystem, lock: str) -> list[Path]:
    """Return the wheels of a lock file, seen from outside; each has one of the hashes in it."""
    build = build_environment(system, SHIPPED)
    folder = system.root / "build" / f"wheels-{lock}"
    text = (LOCKS / f"{lock}.txt").read_text("utf-8")
    stamp = folder / "made-from.txt"
    if not stamp.is_file() or stamp.read_text("utf-8") != text:
        say(f"fetching what locks/{lock}.txt names")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "lock.txt").write_text(text, "utf-8")
        inside = f"/build/{folder.name}"
        # pyspark comes as sources only: nothing is compiled, its wheel is made here.
        pip = [f"{build}/bin/pip", "wheel", "--require-hashes", "--no-deps", "--no-build-isolation"]
        pip += ["--only-binary", ":all:", "--no-binary", "pyspark", "--wheel-dir", inside]
        system.run(f"wheels-{lock}", [*pip, "--requirement", f"{inside}/lock.txt"])
        stamp.write_text(text, "utf-8")
    return sorted(folder.glob("*.whl"))


def _fill(system: BuildSystem, prefix: Path, tree: Path, wheel: Path) -> None:
    shutil.copytree(prefix, tree / "python", symlinks=True)
    for program in (tree / "python" / "bin").iterdir():
        if program.name != _PYTHON:
            program.unlink()
    shutil.rmtree(tree / _SITE, ignore_errors=True)
    _install(system, [*_locked_wheels(system, "product"), wheel], tree / _SITE)
    beside = "".join(f"../../../../{name}\n" for name in ADDONS)
    (tree / _SITE / "firebird-cdc-addons.pth").write_text(beside, "utf-8")
    for name, package in _LIBRARIES.items():
        (library,) = [*system.root.glob(f"lib/*/{name}"), *system.root.glob(f"usr/lib/*/{name}")][
            :1
        ]
        shutil.copy2(library.resolve(), tree / "python/lib" / name)
        _licence(tree, package, system.root / "usr/share/doc" / package / "copyright")
    _licence(tree, "python", prefix / "lib" / _PYTHON / "LICENSE.txt")
    _licence(tree, "openssl", system.root / "build/openssl/LICENSE.txt")
    shutil.copy2(ROOT / "LICENSE", tree / "LICENSE")
    (tree / "lib").mkdir()
    for name, target in _LINKS.items():
        (tree / "lib" / name).symlink_to(f"../{target}")
    launcher = tree / "bin/firebird-cdc"
    launcher.parent.mkdir()
    launcher.write_text(_LAUNCHER, "utf-8")
    launcher.chmod(0o755)


def _licence(tree: Path, name: str, text: Path) -> None:
    (tree / "licenses").mkdir(exist_ok=True)
    shutil.copyfile(text, tree / "licenses" / f"{name}.txt")


def _install(system: BuildSystem, wheels: list[Path], site: Path) -> None:
    """Unpack wheels into SITE. Programs of theirs stay behind: they name this machine's Python."""
    build = build_environment(system, SHIPPED)
    inside = [f"/{path.relative_to(system.root)}" for path in (site, *wheels)]
    pip = [f"{build}/bin/pip", "install", "--no-index", "--no-deps", "--no-compile", "--target"]
    system.run("unpack-wheels", [*pip, *inside])


def _finish(system: BuildSystem, tree: Path, addon: str | None) -> None:
    """Leave out, strip, make relocatable, compile to bytecode, check and list."""
    for pattern in _LEFT_OUT:
        for path in tree.glob(pattern):
            _remove(path)
    for cached in [*tree.rglob("__pycache__"), *tree.rglob("direct_url.json")]:
        _remove(cached)
    ours = f"{build_environment(system, SHIPPED)}/bin"
    inside = f"/{tree.relative_to(system.root)}"
    python = tree / "python"
    if python.exists():
        _forget_build(python)
        system.run("relocatable", ["sh", "-ec", _RELOCATABLE, "sh", ours, inside])
    compile_all = [f"{ours}/python", "-m", "compileall", "-q", "-j", "2", "-s", inside, "-p", "/"]
    # The bytecode holds whatever files' times are: nothing is compiled where it is installed.
    system.run("bytecode", [*compile_all, "--invalidation-mode", "unchecked-hash", inside])
    _same_for_all(tree)
    problems = [*_foreign_paths(tree), *_unmet(tree)]
    if problems:
        raise SystemExit("packages  the tree can't be shipped:\n  " + "\n  ".join(problems))
    _write_manifest(system, tree, addon)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _forget_build(python: Path) -> None:
    """Take the folder it was compiled in out of what Python tells about itself."""
    for data in (python / "lib" / _PYTHON).glob("_sysconfigdata_*.py"):
        data.write_text(data.read_text("utf-8").replace(f"/build/{_PYTHON}", "/usr/src/python"))


def _same_for_all(tree: Path) -> None:
    """Give all files the time of the commit, and modes that don't depend on a umask."""
    for path in [tree, *tree.rglob("*")]:
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if executable else 0o644)
        os.chown(path, 0, 0, follow_symlinks=False)
        os.utime(path, (epoch(), epoch()), follow_symlinks=False)


def _files(tree: Path) -> Iterator[Path]:
    for path in sorted(tree.rglob("*")):
        if path.is_symlink() or path.is_file():
            yield path


def _foreign_paths(tree: Path) -> Iterator[str]:
    """Name files with a path of where they were built."""
    words = [b"/build/", bytes(tree), bytes(ROOT), b"/opt/build3", b"/work/tree"]
    words += [b"/work/%b" % name.encode() for name in ADDONS]
    # A path alone: words of others ("docs/build/html") are none.
    wanted = re.compile(b"(?<![A-Za-z0-9_.$}-])(" + b"|".join(map(re.escape, words)) + b")")
    for path in _files(tree):
        if path.is_symlink():
            if path.readlink().is_absolute():
                yield f"{path.relative_to(tree)} is a link to {path.readlink()}"
        elif tree / _SITE in path.parents and "firebird_cdc" not in path.parts:
            continue  # what others built, where they did
        elif found := wanted.search(path.read_bytes()):
            yield f"{path.relative_to(tree)} has {found[0].decode()}"


def _unmet(tree: Path) -> Iterator[str]:
    """Name libraries that need a newer glibc, or others than the tree and each system have."""
    libraries = [path for path in _files(tree) if not path.is_symlink() and is_elf(path)]
    shipped = {path.name for path in libraries}
    newest = tuple(map(int, GLIBC.split(".")))
    for path in libraries:
        needed, glibc = elf_needs(path)
        for name in sorted(needed - SYSTEM_LIBRARIES - shipped):
            yield f"{path.relative_to(tree)} needs {name}"
        if glibc > newest:
            yield f"{path.relative_to(tree)} needs glibc {'.'.join(map(str, glibc))}"


def is_elf(path: Path) -> bool:
    """Tell whether a file is a library or a program."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def elf_needs(path: Path) -> tuple[set[str], tuple[int, ...]]:
    """Return the libraries that an ELF file needs, and the newest version of glibc."""
    command = ["objdump", "--private-headers", str(path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    versions = [
        tuple(map(int, v.split("."))) for v in re.findall(r" GLIBC_(\d+(?:\.\d+)+)$", told, re.M)
    ]
    return set(re.findall(r"^ +NEEDED +(\S+)$", told, re.M)), max(versions, default=(0,))


def _write_manifest(system: BuildSystem, tree: Path, addon: str | None) -> None:
    folder = tree / (addon or "")
    content = {
        "version": version(),
        "commit": commit(),
        "epoch": epoch(),
        "glibc": GLIBC,
        "python": system.source_version(_PYTHON),
        "openssl": system.source_version("openssl"),
        "packages": locked(LOCKS / f"{addon or 'product'}.txt"),
    }
    (folder / MANIFEST).write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", "utf-8")
    lines = [
        f"{digest_of(path)}  {path.relative_to(tree)}\n"
        for path in _files(tree)
        if not path.is_symlink()
    ]
    (folder / DIGESTS).write_text("".join(lines), "utf-8")
    for path in (folder / MANIFEST, folder / DIGESTS, folder):
        os.utime(path, (epoch(), epoch()))


def _made_from(tree: Path) -> str | None:
    for folder in (tree, *(tree / name for name in ADDONS)):
        if (folder / DIGESTS).is_file():
            return str(json.loads((folder / MANIFEST).read_text("utf-8"))["commit"])
    return None


def try_out(system: BuildSystem, tree: Path) -> None:
    """Run it and its add-ons in the system with the oldest glibc, elsewhere than they were built.
    Raises SetupError with what it says if something can't be loaded."""
    program = (
        "import sys; sys.path += ['/media/replay', '/srv/spark']; "
        "import ssl, ctypes, lzma, bz2, zlib, confluent_kafka, httpx2, fastavro, firebird.driver; "
        "import duckdb, pyarrow, pyspark; "
        "from firebird_cdc.packaging.server import runtime; "
        "ctypes.CDLL(str(runtime.plugin_library())); "
        "ctypes.PyDLL(str(runtime.embedding_library()))"
    )
    there = {Path("mnt"): tree, Path("media"): addon("replay"), Path("srv"): addon("spark")}
    for command in (
        ["/mnt/bin/firebird-cdc", "--version"],
        [f"/mnt/python/bin/{_PYTHON}", "-I", "-c", program],
    ):
        system.run("trial-tree", command, there)
