"""The folders that packages are built in, and their version."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "packages"
DIST = ROOT / "dist"
LOCKS = Path(__file__).parent / "locks"
#: What is shipped beside, each for those before it: the packages of an extra of that name.
ADDONS = ("replay", "spark")


def say(text: str) -> None:
    """Tell the user what is being done."""
    print(f"packages  {text}", flush=True)


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


# Another commit than that of the clone: what was built of it is tried as it is.
_HEAD = os.environ.get("PACKAGES_OF") or "HEAD"


@cache
def commit() -> str:
    """Return the commit of the clone, ``+changes`` behind it if files differ from it."""
    changed = _HEAD == "HEAD" and _git("status", "--porcelain")
    return _git("rev-parse", _HEAD) + ("+changes" if changed else "")


@cache
def epoch() -> int:
    """Return the time of the commit in seconds, which all that is built carries."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or _git("show", "-s", "--format=%ct", _HEAD))


@cache
def version() -> str:
    """Return the version of what is built, which names its folder."""
    source = (ROOT / "firebird_cdc" / "__init__.py").read_text("utf-8")
    (released,) = re.findall(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    tagged = f"v{released}" in _git("tag", "--points-at", _HEAD).split()
    stamp = _git("show", "-s", "--format=%cd", "--date=format:%Y%m%d%H%M%S", _HEAD)
    return version_of(released, commit(), stamp, tagged)


def version_of(released: str, commit: str, stamp: str, tagged: bool) -> str:
    """Return RELEASED for a release, and else a version of its own for each COMMIT, later ones
    above earlier ones: two builds never share a folder that a server may have loaded from."""
    changed = commit.endswith("+changes")
    if tagged and not changed:
        return released
    return f"{released}+{stamp}.g{commit[:8]}{'.changes' if changed else ''}"


def is_release(version: str) -> bool:
    """Tell whether VERSION is that of a release: it names no commit."""
    return "+" not in version
