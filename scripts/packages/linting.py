"""Debian's own checker on the built packages, in a Debian 13 that has it."""

from __future__ import annotations

import shutil
from collections import Counter

from linux import NAMES
from machines import Chroot, pristine
from places import CACHE, DIST, say, version

from firebird_cdc.errors import SetupError


def lint() -> dict[str, int]:
    """Have lintian read all Debian packages of this version; return its findings by kind. Raises
    SetupError with its errors."""
    packages = sorted(DIST.glob(f"*_{version()}_amd64.deb"))
    machine = Chroot(pristine("lintian", "trixie", ("lintian",)), CACHE / "check" / "lintian")
    names = [machine.take(path) for path in packages]
    # "Warned of running as root" is no finding: the system is a folder of ours.
    said = machine.run("lintian", "--allow-root", "--fail-on", "none", *names)
    shutil.rmtree(machine.root)
    errors = [line for line in said.splitlines() if line.startswith("E: ")]
    if errors or len(packages) != len(NAMES):
        raise SetupError(f"lintian on {[path.name for path in packages]}:\n" + "\n".join(errors))
    kinds = Counter(line.partition(": ")[0] for line in said.splitlines() if line[1:3] == ": ")
    found = {"lintian_errors": 0, "lintian_warnings": kinds["W"]}
    say(f"lintian: no errors in {len(packages)} packages, {kinds['W']} warnings")
    return found
