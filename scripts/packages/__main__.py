"""Builds what is shipped: ``make packages``, and its parts.

.venv/bin/python -P scripts/packages [tree|wheels|bundle|replay-bundle|linux|check|lock]...
"""

from __future__ import annotations

import argparse
import sys

import acceptance
import bundle
import linux
import locking
import managers
import tree
import wheels
from places import ROOT, say
from system import GLIBC, SUITE, needs_root

from firebird_cdc.errors import SetupError


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/packages", description=__doc__)
    parser.add_argument(
        "part",
        nargs="+",
        choices=["tree", "wheels", "bundle", "replay-bundle", "linux", "check", "lock"],
    )
    asked = parser.parse_args().part
    try:
        for part in asked:
            if part == "lock":
                locking.renew()
                continue
            needs_root()
            if part == "tree":
                say(f"{tree.tree().relative_to(ROOT)} is whole")
            elif part == "wheels":
                wheels.wheels()
            elif part == "bundle":
                bundle.bundle()
            elif part == "replay-bundle":
                bundle.bundle(with_replay=True)
            elif part == "check":
                acceptance.check(managers.try_managers)
                continue
            elif part == "linux":
                linux.packages()
            say(f"built in Debian {SUITE}: for glibc {GLIBC} and newer")
    except SetupError as error:
        print(f"packages  {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
