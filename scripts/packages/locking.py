"""The lock files: each package that is shipped or builds what is shipped, by version and hash."""

from __future__ import annotations

import os
import re
import subprocess
import venv
from pathlib import Path

from places import ADDONS, CACHE, LOCKS, ROOT, say
from system import GLIBC, SHIPPED

_COMMAND = "make packages-lock"
_NAMED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==(\S+)", re.MULTILINE)


def renew() -> None:
    """Resolve all requirements anew and write the lock files."""
    tools = CACHE / "locking"
    if not (tools / "bin" / "uv").exists():
        venv.create(tools, with_pip=True, clear=True)
        subprocess.run([tools / "bin" / "pip", "install", "--quiet", "uv"], check=True)
    product = LOCKS / "product.txt"
    extras = ["pyproject.toml", "--extra", "avro"]
    _compile(tools, product, extras)
    before: list[str] = []
    done = product
    for addon in ADDONS:  # each without what is in the ones before it
        before += ["--constraints", str(done)]
        before += [word for name in locked(done) for word in ("--no-emit-package", name)]
        extras += ["--extra", addon]
        done = LOCKS / f"{addon}.txt"
        _compile(tools, done, [*extras, "--no-binary", "pyspark", *before])
    build = [str(LOCKS / "build.in"), "--constraints", str(product), "--universal"]
    _compile(tools, LOCKS / "build.txt", build)


def locked(lock: Path) -> dict[str, str]:
    """Return the versions that a lock file names."""
    return dict(_NAMED.findall(lock.read_text("utf-8")))


def _compile(tools: Path, lock: Path, arguments: list[str]) -> None:
    say(f"locking {lock.relative_to(ROOT)}")
    platform = f"x86_64-manylinux_{GLIBC.replace('.', '_')}"
    shipped = ["--python-version", f"3.{SHIPPED}", "--python-platform", platform]
    if "--universal" in arguments:
        shipped = ["--python-version", "3.11"]
    command = [
        *(
            str(tools / "bin" / "uv"),
            "pip",
            "compile",
            *arguments,
            *shipped,
            "--quiet",
            "--upgrade",
        ),
        *("--only-binary", ":all:", "--generate-hashes", "--no-annotate", "--no-emit-index-url"),
        *("--no-emit-find-links", "--custom-compile-command", _COMMAND, "--output-file", str(lock)),
    ]
    # Else a version of a folder on this machine would count, which others don't have.
    variables = {
        k: v for k, v in os.environ.items() if k not in ("PIP_FIND_LINKS", "UV_FIND_LINKS")
    }
    subprocess.run(command, cwd=ROOT, env=variables, check=True)
