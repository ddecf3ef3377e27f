"""The wheels: for each Python of 3.11 to 3.13 that can be had, with all compiled parts inside.

3.11 and 3.13 are compiled in the build system, of Debian's sources. No Debian has those of 3.12: it
is taken from this machine where there is one (pyenv), and what it compiles is linked against the
build system's libraries.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

from places import CACHE, DIST, LOCKS, ROOT, epoch, say
from system import GLIBC, PYTHONS, BuildSystem
from tree import build_environment, wheel_of

from firebird_cdc.demo.trixie import sources_of

_AS = ("--plat", f"manylinux_{GLIBC.replace('.', '_')}_x86_64", "--only-plat")
_FROM_MACHINE = 12
# In each environment without a compiler's help: what is compiled is loaded.
_TRIAL = (
    "import ctypes; from firebird_cdc.packaging.server import runtime as r; "
    "import firebird_cdc.native._journal_files; "
    "ctypes.CDLL(str(r.plugin_library())); ctypes.PyDLL(str(r.embedding_library()))"
)


def wheels() -> list[Path]:
    """Build, repair and check the wheels of this commit; return them."""
    DIST.mkdir(exist_ok=True)
    system = BuildSystem()
    made = [_checked(_built_inside(system, minor)) for minor in sorted(PYTHONS)]
    if python := _python_of_machine():
        made.append(_checked(_built_outside(system, python)))
    else:
        say(f"no wheel for 3.{_FROM_MACHINE}: this machine has none, and no Debian its sources")
    return made


def _built_inside(system: BuildSystem, minor: int) -> Path:
    wheel = wheel_of(system, minor)
    tools = f"{build_environment(system, minor)}/bin"
    work, trial = f"/build/{wheel.parent.name}", f"/build/trial-{minor}"
    audit = [f"{tools}/python", "-I", "-m", "auditwheel", "repair", *_AS]
    audit += ["--wheel-dir", f"{work}/repaired"]
    path = f"{tools}:/usr/sbin:/usr/bin:/sbin:/bin"
    system.run(f"repair-{minor}", [*audit, f"{work}/{wheel.name}"], PATH=path)
    (repaired,) = wheel.parent.glob("repaired/*.whl")
    shutil.rmtree(system.root / trial.lstrip("/"), ignore_errors=True)
    pip = [f"{trial}/bin/pip", "install", "--only-binary", ":all:"]
    for argv in (
        [f"/opt/python3.{minor}/bin/python3.{minor}", "-m", "venv", trial],
        [*pip, f"{work}/repaired/{repaired.name}"],
        [f"{trial}/bin/python", "-I", "-c", _TRIAL],
    ):
        system.run(f"trial-{minor}", argv)
    return repaired


def _checked(wheel: Path) -> Path:
    """Put a wheel into dist/ after a look at what it holds."""
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    grafted = [name for name in names if ".libs/" in name or "libpython" in name]
    if grafted:
        raise SystemExit(f"packages  {wheel.name} has libraries of others: {', '.join(grafted)}")
    for part in ("libfirebird_cdc.so", "_embedding.cpython-3", "_journal_files.abi3.so"):
        if not any(Path(name).name.startswith(part) for name in names):
            raise SystemExit(f"packages  {wheel.name} lacks {part}")
    shutil.copy2(wheel, DIST / wheel.name)
    say(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
    return DIST / wheel.name


def _python_of_machine() -> Path | None:
    name = f"python3.{_FROM_MACHINE}"
    pyenv = sorted(Path.home().glob(f".pyenv/versions/3.{_FROM_MACHINE}.*/bin/{name}"))
    found = [*pyenv, *(Path(path) for path in [shutil.which(name)] if path)]
    return next((path for path in found if _has_headers(path)), None)


def _has_headers(python: Path) -> bool:
    program = "import sysconfig; print(sysconfig.get_path('include'))"
    done = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True)
    return Path(done.stdout.strip(), "Python.h").is_file()


def _built_outside(system: BuildSystem, python: Path) -> Path:
    place = CACHE / "outside"
    shutil.rmtree(place, ignore_errors=True)
    for path in sources_of(ROOT):
        (place / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, place / "source" / path, follow_symlinks=False)
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_FIND"))}
    libraries = system.root / "usr/lib/x86_64-linux-gnu"
    for link in [system.root / "lib64/ld-linux-x86-64.so.2", *libraries.glob("*.so")]:
        if link.is_symlink() and link.readlink().is_absolute():
            inside = system.root / link.readlink().relative_to("/")
            link.unlink()  # outside it would lead to this machine's libraries
            link.symlink_to(os.path.relpath(inside.resolve(), link.parent.resolve()))
    # gcc looks where it is at home before it looks into a sysroot.
    compiler = f"gcc --sysroot={system.root} -B{libraries}/ -L{libraries}"
    variables |= {
        "SOURCE_DATE_EPOCH": str(epoch()),
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared",
        "CFLAGS": f"-ffile-prefix-map={place / 'source'}=.",
        "PATH": f"{place / 'build/bin'}:{os.environ['PATH']}",
    }

    def run(*argv: object) -> None:
        log = CACHE / "logs" / "build-outside.log"
        with log.open("ab") as output:
            words = [str(word) for word in argv]
            if subprocess.run(words, env=variables, stdout=output, stderr=output).returncode:
                raise SystemExit(f"packages  the wheel for {python} was not built: see {log}")

    pip = [place / "build/bin/pip"]
    run(python, "-m", "venv", place / "build")
    lock = LOCKS / "build.txt"
    run(*pip, "install", "--require-hashes", "--only-binary", ":all:", "--requirement", lock)
    build = ["wheel", "--no-index", "--no-deps", "--no-build-isolation"]
    run(*pip, *build, "--wheel-dir", place / "built", place / "source")
    (built,) = (place / "built").glob("*.whl")
    audit = [place / "build/bin/python", "-I", "-m", "auditwheel", "repair", *_AS]
    run(*audit, "--wheel-dir", place / "repaired", built)
    (wheel,) = (place / "repaired").glob("*.whl")
    run(python, "-m", "venv", place / "trial")
    run(place / "trial/bin/pip", "install", "--only-binary", ":all:", wheel)
    run(place / "trial/bin/python", "-I", "-c", _TRIAL)
    return wheel
