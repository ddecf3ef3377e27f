"""The application for spark-submit: ``spark-submit .../replay/main.py audit --journals DIR``.

Takes the arguments of ``firebird-cdc replay``.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

# Spark puts this file's folder first on the path, where its neighbours would pass for modules.
_HERE = Path(__file__).absolute().parent
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").absolute() != _HERE]
if find_spec("firebird_cdc") is None:
    # Not installed: run from a folder that holds the package.
    sys.path[:0] = [str(p) for p in _HERE.parents if (p / "firebird_cdc/__init__.py").exists()]

from firebird_cdc.errors import FirebirdCdcError  # noqa: E402
from firebird_cdc.journal.replay.commands import register  # noqa: E402


def main() -> int:
    """Run one replay command; an error of ours ends in one sentence on stderr."""
    parser = argparse.ArgumentParser(prog="replay", description=__doc__)
    register(parser.add_subparsers(dest="replay", metavar="COMMAND", required=True))
    arguments = parser.parse_args()
    try:
        code: int = arguments.run(arguments)
    except FirebirdCdcError as error:
        print(f"replay: {error}", file=sys.stderr)
        return error.exit_code
    return code


if __name__ == "__main__":
    sys.exit(main())
