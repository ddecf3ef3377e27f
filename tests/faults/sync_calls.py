"""Every call of the product that syncs something, found in its source, and a way to have one fail.

``python_calls`` and ``native_calls`` read the source: a call that is new is in the list at once.
A Python call is ``FILE FUNCTION CALL``, be it of ``os.fsync`` and its like or of a function of ours
that calls these (``_HELPERS``); a native one is ``FILE CALL``. ``watch`` wraps the functions of
``os`` in a process, and finds the calls that lead to them on the stack: a sync is told as the chain
of these, the innermost first, with ``BY`` between them.
"""

from __future__ import annotations

import ast
import ctypes
import errno
import functools
import importlib
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

_HOME = Path(__file__).resolve().parents[2]
_ROOMS = ("bridge", "config", "journal", "packaging")
_SYSTEM = ("fsync", "fdatasync", "sync")  # of the module os
_HELPERS = (
    "_sync",
    "_written",
    "copy_file",
    "keep_journal",
    "make_folder",
    "replace_file",
    "sync_directory",
    "sync_file",
    "sync_file_system",
    "sync_name",
)
_NATIVE = re.compile(r"\b(?:fsync|fdatasync|syncfs|sync|sync_file_range|msync)\((?=[^)])")

BY = " <- "

Fails = Callable[[str, int], bool]
"""Told of a chain and the descriptor that is to be synced; returns whether that is to fail."""


class _Place(NamedTuple):
    first: int
    last: int
    call: str


def python_calls() -> list[str]:
    """Return the calls in Python."""
    return [place.call for places in _places().values() for place in places]


def native_calls() -> list[str]:
    """Return the calls in C, but in what the tests generate."""
    found = []
    for path in sorted((_HOME / "native").glob("*.c")):
        if path.name == "_embedding.c":  # made by the build, and of declarations only
            continue
        text = re.sub(r"/\*.*?\*/", "", path.read_text("utf-8"), flags=re.DOTALL)
        for match in _NATIVE.finditer(text):
            call = text[match.start() : _closing(text, match.end())]
            found.append(f"native/{path.name} {' '.join(call.split())}")
    return found


def _closing(text: str, at: int) -> int:
    """Return the place behind the parenthesis that closes the one before AT."""
    depth = 1
    while depth:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at


@functools.cache
def _places() -> dict[str, list[_Place]]:
    """Return where Python calls are, by file."""
    found = {}
    for room in _ROOMS:
        for path in sorted((_HOME / room).rglob("*.py")):
            name = str(path.relative_to(_HOME))
            if places := list(_in_source(name, ast.parse(path.read_text("utf-8")))):
                found[name] = places
    return found


def _in_source(file: str, tree: ast.Module) -> Iterator[_Place]:
    counts: Counter[str] = Counter()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and _syncs(node):
                call = f"{file} {function.name} {ast.unparse(node)}"
                counts[call] += 1
                again = f" #{counts[call]}" if counts[call] > 1 else ""
                yield _Place(node.lineno, node.end_lineno or node.lineno, call + again)


def _syncs(call: ast.Call) -> bool:
    if any(
        each.arg == "is_synced" and isinstance(each.value, ast.Constant) and not each.value.value
        for each in call.keywords
    ):
        return False
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in _HELPERS
    if not isinstance(function, ast.Attribute):
        return False
    if isinstance(function.value, ast.Name) and function.value.id == "os":
        return function.attr in _SYSTEM
    # A method: of what has to do with messages there are namesakes.
    return function.attr in _HELPERS and not (function.attr == "_written" and len(call.args) > 1)


def _on_stack(frame: FrameType | None) -> Iterator[str]:
    """Yield the calls of ours that led to FRAME, the innermost first."""
    while frame is not None:
        _, is_ours, name = frame.f_code.co_filename.rpartition("/firebird_cdc/")
        for place in _places().get(name, ()) if is_ours else ():
            if place.first <= frame.f_lineno <= place.last:
                yield place.call
        frame = frame.f_back


def watch(fails: Fails, replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Have FAILS decide of every sync of this process whether it fails."""

    def wrapped(real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            chain = BY.join(_on_stack(sys._getframe(1)))
            if chain and fails(chain, fd):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(fd)

        return sync

    for name in ("fsync", "fdatasync"):
        replace(os, name, wrapped(getattr(os, name)))
    recovery: Any = importlib.import_module("firebird_cdc.bridge.recovery")
    replace(recovery, "sync_file_system", wrapped(recovery.sync_file_system))


def arm() -> None:
    """Have the recorder decide (power_recorder.c), in a process that has it preloaded."""
    recorder = ctypes.CDLL(None)

    def fails(chain: str, fd: int) -> bool:
        is_all = "sync_file_system(" in chain
        return bool(recorder.power_fails(chain.encode(), fd, is_all))

    watch(fails)
