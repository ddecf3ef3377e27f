"""Other builds of the two native libraries than the one that is installed, made when needed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from firebird_cdc.demo.paths import cache_directory

# A tree with setup.py and native/, by default this one.
SOURCES = Path(os.environ.get("FIREBIRD_CDC_TEST_SOURCES") or Path(__file__).parents[1])
_KEPT = 4  # builds of one variant; older ones go


def built(variant: str, options: Mapping[str, str]) -> Path:
    """Return a folder with the libraries as setup.py builds them with OPTIONS (environment).

    Kept in .cache by the digest of the sources. ``variant``: the folder's name there.
    """
    sources = [SOURCES / "setup.py", *sorted((SOURCES / "native").glob("*.[ch]"))]
    sources += sorted((SOURCES / "native").glob("*.py"))
    digest = hashlib.sha256(repr((sys.version, sorted(options.items()))).encode())
    for path in sources:
        if path.name not in ("_embedding.c", "_shared_page.py"):  # which the build makes
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    kept = cache_directory() / "builds" / variant
    target = kept / digest.hexdigest()[:16]
    libraries = target / "firebird_cdc/native"
    target.mkdir(parents=True, exist_ok=True)
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "made").exists():
            _build(target, options)
            (target / "made").touch()
            _forget_old(kept)
    return libraries


def _build(target: Path, options: Mapping[str, str]) -> None:
    environment = {**os.environ, **options, "PYTHONSAFEPATH": "1"}
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        headers = cache_directory() / "debian/root/usr/include"
        name = f"python3.{sys.version_info.minor}"
        environment["FIREBIRD_CDC_PYTHON_INCLUDE"] = str(headers / name)
        environment["C_INCLUDE_PATH"] = str(headers)
    build = [sys.executable, "setup.py", "-q", "build_ext", "--force"]
    done = subprocess.run(
        [*build, "--build-lib", str(target), "--build-temp", str(target / "temp")],
        cwd=SOURCES,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{build} failed:\n{done.stdout}\n{done.stderr}"


def _forget_old(kept: Path) -> None:
    made = sorted(kept.glob("*/made"), key=lambda path: path.stat().st_mtime)
    for mark in made[:-_KEPT]:
        mark.unlink()
        subprocess.run(["rm", "-rf", str(mark.parent)], check=True)
