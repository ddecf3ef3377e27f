"""The plugin that a server has: is it there, and can the server load it?"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from firebird_cdc.packaging.server import accounts, runtime
from firebird_cdc.packaging.server.findings import Finding, Findings
from firebird_cdc.packaging.server.layout import Server

AGAIN = "run: firebird-cdc install --server {}"


def unusable_plugin(
    server: Server, parameters: dict[str, str], *, trusts_ours: bool = False
) -> Findings:
    """Say that the plugin is not there or can't be loaded. trusts_ours: of the build that this
    package has the second is not tried."""
    path, again = server.plugin_file, AGAIN.format(server.root)
    if not path.is_file():
        yield Finding(str(path), "the plugin is missing; the server captures nothing", again)
    elif not server.working_plugin.is_file():
        what = "it leads to no plugin; writes to captured tables are refused"
        yield Finding(str(server.plugin_link), what, again)
    elif not (trusts_ours and _is_our_build(server.working_plugin)):
        path = server.working_plugin
        problem = _not_loadable(server, path, parameters)
        if problem:
            yield Finding(str(path), f"the server can't load it: {problem}", again)


def _is_our_build(plugin: Path) -> bool:
    return plugin.read_bytes() == runtime.plugin_library().read_bytes()


def embedding_of(server: Server, minor: int) -> Path:
    """Return where the plugin looks for the bridge for Python 3.MINOR: the first place that has it,
    else the first."""
    beside = server.working_plugin.resolve().parent
    name = runtime.embedding_name(minor)
    places = [beside / "firebird_cdc" / name, beside / name]
    return next((place for place in places if place.is_file()), places[0])


def _not_loadable(server: Server, library: Path, parameters: dict[str, str]) -> str | None:
    """Try to load a library as the server's user, in a process of its own."""
    program = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    # The system's loader decides, so an interpreter of the user's own will do as well as ours.
    for interpreter in ("/usr/bin/python3", python_of(parameters)):
        if not accounts.may(server.account, "x", Path(interpreter)):
            continue
        try:
            done = accounts.run_as(server.account, [interpreter, "-I", "-c", program, str(library)])
        except OSError as error:
            return error.strerror
        return None if done.returncode == 0 else last_line(done.stderr)
    return None


def python_of(parameters: dict[str, str]) -> str:
    """Return the interpreter that belongs to the Python the server loads."""
    home = parameters.get("PythonHome")
    minor = minor_of(parameters) or sys.version_info[1]
    program = Path(home or sys.base_prefix) / f"bin/python3.{minor}"
    return str(program) if program.exists() else sys.executable


def minor_of(parameters: dict[str, str]) -> int | None:
    """Return the minor version of the Python that the server loads, if its path has it."""
    named = parameters.get("Python")
    found = re.search(r"libpython3\.(\d+)", str(Path(named).resolve()) if named else "")
    return int(found[1]) if found else None


def last_line(text: str) -> str:
    """Return the last line of a program's output."""
    return text.strip().splitlines()[-1].strip() if text.strip() else "no reason given"
