"""Points at which the bridge's Python, in a server or in a shipper, can be made to die.

Runs inside that process. The product has no code for it: the functions between which a crash
matters are wrapped, by name, and a name that the product no longer has is an error. The points
of the plugin's C code are in its source (native/failpoint.h), those of the engine's commit mark in
a preload (hold_mark.c); ``arm`` serves all.
"""

from __future__ import annotations

import importlib
import itertools
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_NATIVE = Path(__file__).parents[2] / "native"
_INVENTORY = "inventory.write"
_PUBLISHER = "firebird_cdc.bridge.confirm.publisher"
_STATES = "firebird_cdc.bridge.confirm.transaction_states"
_INDEXING = "firebird_cdc.bridge.confirm.indexing"
_GAPS = "firebird_cdc.bridge.confirm.gaps"

Step = tuple[str, str, Callable[[tuple[Any, ...]], bool]]
"""Function to wrap: module, name in it, and a test that tells which of its calls are meant."""


def names_any(pattern: str) -> Callable[[tuple[Any, ...]], bool]:
    """Tell whether a path among the arguments matches; descriptors count as what they lead to."""

    def is_meant(arguments: tuple[Any, ...]) -> bool:
        found = (_path_of(each) for each in arguments if isinstance(each, int | str | os.PathLike))
        return any(re.search(pattern, path) for path in found)

    return is_meant


def _path_of(given: int | str | os.PathLike[str]) -> str:
    return str(Path(f"/proc/self/fd/{given}").readlink() if isinstance(given, int) else given)


def anything(arguments: tuple[Any, ...]) -> bool:
    return True


# The first ones are steps of confirming, the second ones those of a start after a crash.
CONFIRMING: dict[str, Step] = {
    "decide": ("firebird_cdc.bridge.confirm.deciding", "Deciding.decide", anything),
    "ask": (_STATES, "TransactionStates.decide", anything),
    "publish": (_PUBLISHER, "Publisher.publish", anything),
    "number": (_PUBLISHER, "Publisher.record", anything),
    "record": (
        "firebird_cdc.journal.folder.ledger",
        "SequenceLedger.record",
        lambda given: bool(given[1]),
    ),
    "sync_ledger": ("os", "fdatasync", names_any(r"\.ledger$")),
    "index": (_INDEXING, "Indexing.write_index", anything),
    "rename": ("os", "rename", names_any(r"\.log\.live$")),
}
RECOVERING: dict[str, Step] = {
    "mark_owner": ("os", "rename", names_any(r"/owners/")),
    "scan": ("firebird_cdc.bridge.confirm.scan", "FolderScan.scan", anything),
    "delete": (_PUBLISHER, "Publisher.remove", anything),
    "unlink": ("os", "unlink", names_any(r"\.log\.live$")),
    "forget_owner": (
        "firebird_cdc.journal.folder.journal_folder",
        "JournalFolder.forget",
        anything,
    ),
}

# What is told of in the folder without being confirmed.
MARKING: dict[str, Step] = {"mark_limbo": (_GAPS, "GapMarker.is_to_be_kept", anything)}


def python_points(steps: dict[str, Any]) -> list[str]:
    """Return the points before and after each of these steps."""
    return [f"{name}.{side}" for name in steps for side in ("before", "after")]


def native_points() -> list[str]:
    """Return the points in the plugin's source."""
    text = "".join(path.read_text("utf-8") for path in sorted(_NATIVE.glob("*.c")))
    names: list[str] = re.findall(r'\bFBC_FAILPOINT\("([^"]+)"\)', text)
    return list(dict.fromkeys(names))


def inventory_points() -> list[str]:
    """Return the points around the write of a commit mark, which a preload makes (hold_mark.c)."""
    return [f"{_INVENTORY}.{side}" for side in ("before", "after")]


def work_points() -> list[str]:
    """Return all points that work comes to in a process that joins no other."""
    native = [point for point in native_points() if not point.startswith("join.")]
    return native + inventory_points() + python_points(CONFIRMING)


def arm(point: str, count: int, more: Mapping[str, Step] | None = None) -> None:
    """Have this process die at the COUNT-th time from now on that it comes to POINT.

    MORE: steps beside those of the bridge.
    """
    step, _, side = point.partition(".")
    known = CONFIRMING | RECOVERING | dict(more or {})
    if step in known and side in ("before", "after"):
        hits = itertools.count(1)
        wrap(*known[step], side, lambda: die_at(next(hits), count))
    elif point in inventory_points():
        os.environ["FBC_HOLD_DIE"] = f"{point.removeprefix(f'{_INVENTORY}.')}:{count}"
    elif point in native_points():
        os.environ["FBC_FAILPOINT"] = f"{point}:{count}"
    else:
        raise LookupError(f"no point is called {point}")


def stall(point: str, control: str = "", reached: str = "") -> None:
    """Have every thread that comes to POINT of the bridge's Python stay there; while the file
    CONTROL exists, if one is named. The first one that is there makes the file REACHED."""

    def wait() -> None:
        if reached:
            Path(reached).touch()
        while not control or Path(control).exists():
            threading.Event().wait(0.01)

    step, _, side = point.partition(".")
    wrap(*(CONFIRMING | RECOVERING)[step], side, wait)


def end_thread(point: str) -> None:
    """Have the first thread that comes to POINT of the bridge's Python end there."""
    step, _, side = point.partition(".")
    hits = itertools.count()

    def end() -> None:
        if next(hits) == 0:
            raise SystemExit

    wrap(*(CONFIRMING | MARKING)[step], side, end)


def is_confirming() -> bool:
    """Tell whether the thread that confirms journals has not come to its very end."""
    return any(thread.name == "fbc-confirm" for thread in threading.enumerate())


def sweep(database: str) -> None:
    """Sweep a database through the engine's services, as gfix -sweep does."""
    from firebird.driver import connect_server

    with connect_server("", user="SYSDBA") as server:
        server.database.sweep(database=database)


def hold_marks(us: int) -> None:
    """Have the engine's commit marks be late from now on (hold_mark.c)."""
    os.environ["FBC_HOLD_US"] = str(us)


def confirm_everything() -> None:
    """Have the confirmer take every transaction as committed: what the harness has to notice."""
    from firebird_cdc.bridge.confirm.decisions import Action

    states: Any = importlib.import_module(_STATES)
    if not callable(states.TransactionStates.decide):
        raise LookupError("the confirmer decides in another way now")
    states.TransactionStates.decide = lambda _self, _database, asked: [
        Action.PUBLISH if each.is_sealed else Action.MARK_GAP for each in asked
    ]


def wrap(
    module_name: str,
    name: str,
    is_meant: Callable[[tuple[Any, ...]], bool],
    side: str,
    act: Callable[[], Any],
) -> None:
    importlib.import_module("firebird_cdc.bridge.service")  # all that may hold the function
    holder: Any = importlib.import_module(module_name)
    *owner, last = name.split(".")
    for part in owner:
        holder = getattr(holder, part)
    original = getattr(holder, last)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        meant = is_meant(arguments)  # before the call: it may close or remove what is named
        if meant and side == "before":
            act()
        result = original(*arguments, **named)
        if meant and side == "after":
            act()
        return result

    setattr(holder, last, wrapped)
    for module in list(sys.modules.values()):  # those that imported it by its name
        if module.__name__.startswith("firebird_cdc.") and vars(module).get(last) is original:
            setattr(module, last, wrapped)


def die_at(hit: int, count: int) -> None:
    if hit == count:
        os.kill(os.getpid(), signal.SIGKILL)
