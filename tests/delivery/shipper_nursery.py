"""Brings up shippers that can be made to die: each a fork of this process, which has imported all.

Its argument names the module that has the points, ``ship_steps`` without one. Reads one JSON
object per line: ``arguments`` of the command ``ship``, ``output`` (a file), ``environment`` to be
added, and what ``prepare`` takes. Answers with two lines: the process id, and when it has ended the
status that wait gave. A shipper dies with this process, and this process when its input ends.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parent))
sys.path.insert(2, str(Path(__file__).parents[1] / "kafka"))
sys.path.insert(3, str(Path(__file__).parents[1] / "snapshots"))

import ship_steps

ship_steps.watch_client()

from ended_program import run  # noqa: E402

import firebird_cdc.journal.shipper.loop  # noqa: E402, F401 - all that takes time

_PR_SET_PDEATHSIG = 1
_steps = importlib.import_module(sys.argv[1] if len(sys.argv) > 1 else "ship_steps")


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _live(order: dict[str, Any]) -> int:
    """Be the shipper; returns its exit code."""
    _die_with_parent()
    with Path(order["output"]).open("ab") as output, Path(os.devnull).open("rb") as nothing:
        for number, file in enumerate((nothing, output, output)):
            os.dup2(file.fileno(), number)
    os.environ.update(order.get("environment", {}))
    try:
        _steps.prepare(
            order["life"],
            order.get("point", ""),
            order.get("hit", 1),
            order.get("faults", []),
            order.get("patches", {}),
        )
        return run(["ship", *order["arguments"]])
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _serve() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(_live(json.loads(line)))
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    _die_with_parent()
    _serve()
