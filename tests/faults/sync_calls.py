"""Every call of the product that syncs or writes something, found in its source, and a way to have
one fail.

``python_calls`` and ``native_calls`` read the source: a call that is new is in the list at once, as
``FILE FUNCTION CALL``, and with `` #2`` where the function has the same once more. In Python it is
one of ``os.fsync`` and its like, or of a function of ours that calls these (``_HELPERS``).
``python_mentions`` and ``native_mentions`` give every other place with a name that syncs: a call in
a form that is not known here is among them.

``python_writes`` and ``native_writes`` likewise give what changes bytes, sizes and names of files,
by a call of the system's (``_WRITES``, ``_NATIVE_WRITES``). What a file object of Python's writes
is in no list, as any ``write`` may be of one; it fails all the same.

``watch`` wraps the functions of ``os`` in a process, and finds the calls that lead to them on the
stack: a sync is told as the chain of these, the innermost first, with ``BY`` between them; so is a
write (``watch_writes``). A native call is told by its place (failing_calls.h), of which
``native_call_at`` makes what the list has.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import importlib
import io
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

_HOME = Path(__file__).resolve().parents[2]
_PACKAGE = _HOME / "firebird_cdc"  # with a link to each package
_SYSTEM = ("fsync", "fdatasync", "sync")  # of the module os
_HELPERS = (
    "_sync",
    "copy_file",
    "keep_journal",
    "make_folder",
    "replace_file",
    "sync",
    "sync_directory",
    "sync_file",
    "sync_file_system",
    "sync_name",
    "sync_names",
)
_WRITES = (  # of the module os
    "link",
    "mkdir",
    "open",  # where it makes a file
    "posix_fallocate",
    "ftruncate",
    "pwrite",
    "rename",
    "replace",
    "write",
)
_PATHS_WRITES = ("mkdir", "rename", "touch", "write_bytes", "write_text")  # of a Path
_WRITE_HELPERS = ("make_directory", "open_file", "pwrite", "write_file", "_write")
_NATIVE_WRITES = re.compile(
    r"\b(?:write|pwritev?|dprintf|ftruncate|(?:posix_)?fallocate|renameat|mkdirat|open(?:at)?)"
    r"\b(?=\()"
)
_NAME = re.compile(  # of whatever syncs: functions, system calls, flags of open and of write
    r"\b(?:(?:SYS_|__NR_|aio_)?(?:fsync|fdatasync|sync|syncfs|sync_file_range2?|msync)"
    r"|(?:O|F|RWF)_[A-Z]*SYNC|IORING_OP_[A-Z_]*SYNC[A-Z_]*)\b"
)
_NO_CODE = re.compile(  # comments, literals, and lines for the preprocessor that hold no code
    r"/\*.*?\*/|//[^\n]*|^ *#(?! *define)[^\n]*"
    r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'",
    re.DOTALL | re.MULTILINE,
)
_MACRO = re.compile(r"^ *#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
_ATTRIBUTE = re.compile(r"__attribute__\s*\(\([^()]*(?:\([^()]*\))?[^()]*\)\)")

_O_CREAT = "O_CREAT"

BY = " <- "

Fails = Callable[[str, int], int]
"""Told of a chain and the descriptor that is to be synced, -1 for a write; returns the error with
which that is to fail, or 0."""


class _Place(NamedTuple):
    """A call, or another mention, with the lines that it is on."""

    first: int
    last: int
    text: str


class _Found(NamedTuple):
    """Calls and other mentions in one file, and calls that write."""

    calls: list[_Place]
    mentions: list[_Place]
    writes: list[_Place]


def python_calls() -> list[str]:
    """Return the calls in Python."""
    return [place.text for found in _python().values() for place in found.calls]


def native_calls() -> list[str]:
    """Return the calls in C, but in what the tests generate."""
    return [place.text for found in _native().values() for place in found.calls]


def python_writes() -> list[str]:
    """Return the calls in Python that write."""
    return [place.text for found in _python().values() for place in found.writes]


def native_writes() -> list[str]:
    """Return the calls in C that write."""
    return [place.text for found in _native().values() for place in found.writes]


def is_write(chain: str) -> bool:
    """Tell whether what a CHAIN does in the end is a write, and no sync."""
    return chain.partition(BY)[0] not in _syncing()


@functools.cache
def _syncing() -> frozenset[str]:
    return frozenset((*python_calls(), *native_calls()))


def python_mentions() -> list[str]:
    """Return what else names something that syncs, in Python; a method ``flush`` may be of mmap."""
    return [place.text for found in _python().values() for place in found.mentions]


def native_mentions() -> list[str]:
    """Return what else names something that syncs, in C; members of a structure are none."""
    return [place.text for found in _native().values() for place in found.mentions]


def native_call_at(place: str) -> str:
    """Return the call that failing_calls.h tells of as ``FILE:LINE CALL``; any other chain as it
    is. The line of a call on several of them is one of these."""
    told = re.fullmatch(r"(native/\S+):(\d+) (.*)", place)
    if told is None:
        return place
    line, text = int(told[2]), f" {told[3]}"
    found = _native()[told[1]]
    [call] = [
        each.text
        for each in (*found.calls, *found.writes)
        if each.first <= line <= each.last and each.text.partition(" #")[0].endswith(text)
    ]
    return call


@functools.cache
def _python() -> dict[str, _Found]:
    """Return what is in each file of the package."""
    paths = [path for path in _PACKAGE.iterdir() if path.suffix == ".py"]
    for folder in _PACKAGE.iterdir():
        paths += folder.rglob("*.py") if folder.is_dir() else ()
    return {
        name: _in_file(name) for path in sorted(paths) if (name := str(path.relative_to(_PACKAGE)))
    }


@functools.cache
def _in_file(name: str) -> _Found:
    """Return what is in one file of the package: a process that is watched needs few of them."""
    return in_python(name, (_PACKAGE / name).read_text("utf-8"))


@functools.cache
def _native() -> dict[str, _Found]:
    return {
        name: in_c(name, path.read_text("utf-8"))
        for path in sorted((_HOME / "native").glob("*.[ch]"))
        if path.name != "_embedding.c"  # made by the build, and of declarations only
        and (name := f"native/{path.name}")
    }


# ---- Python ------------------------------------------------------------------------------------


def in_python(file: str, source: str) -> _Found:
    """Find what syncs in the SOURCE of a FILE."""
    visitor = _Visitor(file)
    visitor.visit(ast.parse(source))
    return visitor.found


class _Visitor(ast.NodeVisitor):
    def __init__(self, file: str) -> None:
        self.found = _Found([], [], [])
        self._file = file
        self._functions = ["<module>"]
        self._counts: Counter[str] = Counter()
        self._called: set[ast.expr] = set()  # what a call in the list names is no other mention

    def _place(self, node: ast.expr | ast.alias, text: str) -> _Place:
        text = f"{self._file} {self._functions[-1]} {text}"
        return _Place(node.lineno, node.end_lineno or node.lineno, text)

    def _mention(self, node: ast.expr | ast.alias, text: str) -> None:
        self.found.mentions.append(self._place(node, text))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._functions.append(node.name)
        self.generic_visit(node)
        self._functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Call(self, node: ast.Call) -> None:
        if _syncs(node.func):
            self._called.add(node.func)
            if not any(
                each.arg == "is_synced" and getattr(each.value, "value", True) is False
                for each in node.keywords
            ):
                self.found.calls.append(self._counted(node))
        elif _writes(node):
            self.found.writes.append(self._counted(node))
        self.generic_visit(node)

    def _counted(self, node: ast.Call) -> _Place:
        place = self._place(node, ast.unparse(node))
        self._counts[place.text] += 1
        if (count := self._counts[place.text]) > 1:
            place = place._replace(text=f"{place.text} #{count}")
        return place

    def visit_Attribute(self, node: ast.Attribute) -> None:
        is_name = node.attr in ("flush", *_HELPERS) or _NAME.fullmatch(node.attr)
        if is_name and node not in self._called:
            self._mention(node, ast.unparse(node))
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        # Nothing of the system's has a name of its own without an import or an assignment.
        if node.id in _HELPERS and node not in self._called:
            self._mention(node, node.id)

    def visit_alias(self, node: ast.alias) -> None:
        is_helper = node.name in _HELPERS and node.asname is None
        names = (node.name, node.asname or "")
        if not is_helper and any(
            name == "*" or name in _HELPERS or _NAME.fullmatch(name) for name in names
        ):
            self._mention(node, f"import {ast.unparse(node)}")

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and _NAME.fullmatch(node.value):  # getattr(os, "fsync")
            self._mention(node, repr(node.value))


def _syncs(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id in _HELPERS
    if not isinstance(function, ast.Attribute):
        return False
    if isinstance(function.value, ast.Name) and function.value.id == "os":
        return function.attr in _SYSTEM
    return function.attr in _HELPERS


def _writes(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in _WRITE_HELPERS
    if not isinstance(function, ast.Attribute):
        return False
    if isinstance(function.value, ast.Name) and function.value.id == "os":
        makes = function.attr != "open" or "O_CREAT" in ast.unparse(call)
        return function.attr in _WRITES and makes
    is_of_path = function.attr == "replace" and len(call.args) == 1 and not call.keywords
    return is_of_path or function.attr in (*_PATHS_WRITES, *_WRITE_HELPERS)


# ---- C -----------------------------------------------------------------------------------------


def in_c(file: str, source: str) -> _Found:
    """Find what syncs in the SOURCE of a FILE; what is outside functions is said to be in
    ``<file>``."""
    code = _NO_CODE.sub(_blank, source)
    functions = list(_functions(code))
    found = _Found([], [], [])

    def look(name: re.Pattern[str], calls: list[_Place], mentions: list[_Place]) -> None:
        counts: Counter[str] = Counter()
        for match in name.finditer(code):
            before, behind = code[: match.start()].rstrip(), code[match.end() :].lstrip()
            if before.endswith((".", "->")):
                continue
            inside = [name for start, end, name in functions if start <= match.start() < end]
            where = f"{file} {inside[0] if inside else '<file>'} "
            first = code.count("\n", 0, match.start()) + 1
            if not inside or not behind.startswith("("):
                mentions.append(_Place(first, first, where + match[0]))
                continue
            end = _closing(code, match.end())
            text = where + " ".join(source[match.start() : end].split())
            counts[text] += 1
            again = f" #{counts[text]}" if counts[text] > 1 else ""
            calls.append(_Place(first, code.count("\n", 0, end) + 1, text + again))

    look(_NAME, found.calls, found.mentions)
    writes: list[_Place] = []
    look(_NATIVE_WRITES, writes, [])
    found.writes.extend(
        each for each in writes if " open" not in each.text or _O_CREAT in each.text
    )
    return found


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _functions(code: str) -> Iterator[tuple[int, int, str]]:
    """Yield where each function begins, with its type, and ends, and its name."""
    code = _MACRO.sub(_blank, code)
    begin = start = depth = 0
    function = ""
    for match in re.finditer(r"[;{}]", code):
        if match[0] == "{":
            depth += 1
            head = _ATTRIBUTE.sub(_blank, code[begin : match.start()])
            if depth == 1:
                name = re.search(r"(\w+)\s*\(.*\)\s*$", head, re.DOTALL)
                start, function = begin, name[1] if name else ""
            continue
        depth -= match[0] == "}"
        if depth == 0:
            if match[0] == "}" and function:
                yield start, match.end(), function
            begin = match.end()


def _closing(code: str, at: int) -> int:
    """Return the place behind the parenthesis that closes the first one behind AT."""
    at = code.index("(", at) + 1
    depth = 1
    while depth:
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        at += 1
    return at


# ---- While it runs -----------------------------------------------------------------------------


def _ours(frame: FrameType | None) -> Iterator[tuple[str, FrameType]]:
    """Yield our files and their frames that led to FRAME, the innermost first."""
    while frame is not None:
        _, is_ours, name = frame.f_code.co_filename.rpartition("/firebird_cdc/")
        if is_ours:
            yield name, frame
        frame = frame.f_back


def _on_stack(frame: FrameType | None, kind: str = "calls") -> Iterator[str]:
    """Yield the calls of ours that led to FRAME, the innermost first."""
    for name, each in _ours(frame):
        for place in getattr(_in_file(name), kind):
            if place.first <= each.f_lineno <= place.last:
                yield place.text


def _check(chain: str, fd: int, fails: Fails) -> None:
    if chain and (number := fails(chain, fd)):
        raise OSError(number, os.strerror(number))


def watch(fails: Fails, replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Have FAILS decide of every sync of this process whether it fails."""

    def wrapped(real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            _check(BY.join(_on_stack(sys._getframe(1))), fd, fails)
            real(fd)

        return sync

    for name in ("fsync", "fdatasync"):
        replace(os, name, wrapped(getattr(os, name)))
    native: Any = importlib.import_module("firebird_cdc.native._journal_files")
    replace(native, "sync_file_system", wrapped(native.sync_file_system))


def watch_writes(fails: Fails, replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Have FAILS decide of every write of this process whether it fails: of calls of the system's
    and of what file objects write. Nothing of one that fails is done."""

    def check(name: str, frame: FrameType) -> None:
        places = [*_on_stack(frame, "writes"), *_on_stack(frame)]
        file, innermost = next(_ours(frame), ("", frame))
        if file and (not places or not places[0].startswith(f"{file} ")):
            places.insert(0, f"{file} {innermost.f_code.co_name} {name}")
        _check(BY.join(places) if file else "", -1, fails)

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def write(*arguments: Any, **named: Any) -> Any:
            if name != "open" or arguments[1] & os.O_CREAT:
                check(name, sys._getframe(1))
            return real(*arguments, **named)

        return write

    for name in _WRITES:
        replace(os, name, wrapped(name, getattr(os, name)))

    class Raw(io.FileIO):
        def write(self, content: Any) -> int:
            check("write", sys._getframe(1))
            return super().write(content)

    real_open: Callable[..., Any] = io.open

    def opened(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        *text: Any,
        closefd: bool = True,
        **more: Any,
    ) -> Any:
        if not {*mode} & {*"wax+"}:
            return real_open(file, mode, buffering, *text, closefd=closefd, **more)
        if {*mode} & {*"wax"} and not isinstance(file, int):
            check("open", sys._getframe(1))
        raw = Raw(file, mode.replace("b", "").replace("t", ""), closefd=closefd)
        if buffering == 0:
            return raw
        whole = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return whole if "b" in mode else io.TextIOWrapper(whole, *text, **more)

    replace(io, "open", opened)


def arm() -> None:
    """Have the recorder decide (power_recorder.c), in a process that has it preloaded."""
    recorder = ctypes.CDLL(None, use_errno=True)

    def fails(chain: str, fd: int) -> int:
        is_all = "sync_file_system(" in chain
        return ctypes.get_errno() if recorder.power_fails(chain.encode(), fd, is_all) else 0

    watch(fails)
    watch_writes(fails)
