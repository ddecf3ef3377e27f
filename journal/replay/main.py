"""The application for spark-submit: ``spark-submit .../replay/main.py audit --journals DIR``.

Takes the arguments of ``firebird-cdc replay``. Runs where firebird-cdc is installed; elsewhere
from the archive that ``firebird-cdc replay package`` builds, given by ``--py-files``.
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
    # Neither installed nor in --py-files: run from a folder that holds the package.
    sys.path[:0] = [str(p) for p in _HERE.parents if (p / "firebird_cdc/__init__.py").exists()]
if find_spec("firebird_cdc") is None:
    sys.exit(
        "replay: this Python has no firebird_cdc: give spark-submit the archive that"
        " `firebird-cdc replay package --output FILE.zip` builds, with --py-files FILE.zip"
    )

from firebird_cdc.errors import FirebirdCdcError  # noqa: E402
from firebird_cdc.journal.replay.commands import register_actions  # noqa: E402


def main() -> int:
    """Run one replay command; an error of ours ends in one sentence on stderr."""
    parser = argparse.ArgumentParser(prog="replay", description=__doc__)
    register_actions(parser.add_subparsers(dest="replay", metavar="COMMAND", required=True))
    arguments = parser.parse_args()
    try:
        code: int = arguments.run(arguments)
    except FirebirdCdcError as error:
        print(f"replay: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        # Such as the client of Kafka for a repair, which the archive can't bring.
        print(
            f"replay: this command needs {error.name}, which this Python lacks:"
            " pip install '.[spark]' in the clone of firebird-cdc",
            file=sys.stderr,
        )
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
