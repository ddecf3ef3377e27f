"""Tells whether the processes that run a server's engine have what is installed for it now.

The engine reads plugins.conf once, when it is loaded: Super does that at its start, Classic in
each process of a connection. It loads the plugin at the first change of a captured table.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from firebird_cdc.clock import local_time
from firebird_cdc.errors import SetupError
from firebird_cdc.packaging.server import sections
from firebird_cdc.packaging.server.conf import ConfFile, Entry, find
from firebird_cdc.packaging.server.findings import Finding, Findings, Severity
from firebird_cdc.packaging.server.layout import ENGINE, SERVER_PROGRAMS, Server
from firebird_cdc.packaging.server.procfs import mapped_files, processes
from firebird_cdc.tree import installed_version

_HEADER_PAGE = 1  # the first byte of every database (the engine's ods.h)
_NAMED = 5


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A process that has loaded a server's engine.

    ``started``: seconds since 1970. ``has_plugin``: whether it has loaded our plugin, ``is_older``:
    whether that has been replaced since. ``inside``: the path that a process with another view
    of the file system (a chroot) has before every name; empty without one.
    """

    number: int
    name: str
    started: float
    has_plugin: bool
    is_older: bool
    inside: str

    def open_files(self) -> Iterator[tuple[str, Path]]:
        """Yield the names of the files that it has open, and where to read them. Raises OSError."""
        for link in Path(f"/proc/{self.number}/fd").iterdir():
            try:
                if stat.S_ISREG(link.stat().st_mode):
                    yield str(link.readlink()).removeprefix(self.inside), link
            except FileNotFoundError:
                continue  # closed meanwhile


def restart_findings(server: Server) -> Findings:
    """Say which processes run with files as they were before they changed, and what that does.

    An error: changes are not captured, for certain; a warning: a change has no effect yet; a note:
    nobody could look, and nothing speaks against it.
    """
    changed = _changed(*_read_by_engine(server.plugins_conf, server.replication_conf))
    if not Path("/proc/self/maps").exists():
        yield Finding(
            "/proc",
            "it is not mounted: whether the server runs with what is installed is not known",
            "mount it (mount -t proc proc /proc), or restart the server after each change",
            Severity.NOTE,
        )
    if not changed:
        return
    hidden: list[EngineProcess] = []
    seen = list(engine_processes(server, hidden))
    blind: list[EngineProcess] = []
    databases: dict[str, None] = {}
    if captured := _captured(server):
        for process in seen:
            if process.has_plugin or not _newer(changed, process):
                continue
            try:
                found = [name for name, file in process.open_files() if captured.has(file)]
            except PermissionError:
                hidden.append(process)
                continue
            except FileNotFoundError:
                continue  # it has ended
            if found:
                blind.append(process)
                databases |= dict.fromkeys(found)
    if blind:
        what = _listed(list(databases))
        yield Finding(
            _who(server),
            f"{_processes(blind)} with {what} open and without the plugin, by files as they were"
            f" before {_files(changed, blind)}: what is committed there is not captured",
            _restart(blind),
        )
    others = [each for each in seen if each not in blind and each not in hidden]
    if late := [each for each in others if _newer(changed, each)]:
        yield Finding(
            _who(server),
            f"{_processes(late)} by files as they were before {_files(changed, late)}",
            _restart(late),
            Severity.WARNING,
        )
    if older := [each for each in others if each.is_older]:
        yield Finding(
            _who(server),
            f"{_processes(older)} with the plugin as it was before it was replaced",
            f"{_restart(older)} to use {installed_version()}",
            Severity.WARNING,
        )
    yield from _hidden(server, hidden, changed)


def _hidden(server: Server, hidden: list[EngineProcess], changed: dict[Path, float]) -> Findings:
    """Say of whom it is not known; what was started before a change counts as not well."""
    for severity in (Severity.WARNING, Severity.NOTE):
        is_late = severity is Severity.WARNING
        if some := [each for each in hidden if bool(_newer(changed, each)) == is_late]:
            yield Finding(
                _who(server),
                f"{_processes(some)} and can't be looked at: whether it has loaded the plugin is"
                " not known"
                + (f", and it was started before {_files(changed, some)}" if is_late else ""),
                (f"{_restart(some)}, or " if is_late else "")
                + "run this as root (in a container: with the capability SYS_PTRACE)",
                severity,
            )


def engine_processes(server: Server, hidden: list[EngineProcess]) -> Iterator[EngineProcess]:
    """Yield the processes that have loaded the engine of SERVER.

    hidden: those are added that may be the server's and can't be looked at, all else unknown.
    """
    engine = server.plugins / ENGINE
    try:
        wanted = engine.stat().st_ino
        folders = list(processes())
    except OSError:
        return
    used = server.working_plugin
    plugin = used.stat().st_ino if used.exists() else None
    for folder in folders:
        if int(folder.name) == os.getpid():
            continue  # we attach ourselves
        try:
            name, started = _name_and_start(folder)
            unknown = EngineProcess(int(folder.name), name, started, False, False, "")
            try:
                if not folder.joinpath("root").samefile("/"):
                    continue  # in a container, or a chroot
                mapped = set(mapped_files(folder))
                path = next(
                    (f.path for f in mapped if f.name == ENGINE and f.inode == wanted), None
                )
                if path is None or not _is_of(server, folder, path):
                    continue
            except PermissionError:
                if name in SERVER_PROGRAMS:
                    hidden.append(unknown)
                continue
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        ours = {file.inode for file in mapped if file.name == server.plugin_file.name}
        inside = path.removesuffix(str(engine.resolve()))
        yield EngineProcess(
            int(folder.name),
            name,
            started,
            has_plugin=bool(ours),
            is_older=bool(ours) and plugin not in ours,
            inside=inside if inside != path else "",
        )


def _name_and_start(folder: Path) -> tuple[str, float]:
    """Return what the process is called, and when it was started in seconds since 1970.

    Source: proc(5), /proc/PID/stat: the name in parentheses, field 22 the ticks since boot.
    """
    before, _, after = folder.joinpath("stat").read_text("utf-8", "replace").rpartition(")")
    # The end of that tick: what changed within it was there for the engine to read.
    since_boot = (int(after.split()[19]) + 1) / os.sysconf("SC_CLK_TCK")
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return before.partition("(")[2], booted + since_boot


def _is_of(server: Server, folder: Path, engine: str) -> bool:
    """Tell whether a process with that engine belongs to SERVER: several roots may share one."""
    for variable in folder.joinpath("environ").read_bytes().split(b"\0"):
        if variable.startswith(b"FIREBIRD="):
            root = Path(os.fsdecode(variable.partition(b"=")[2]))
            return root.exists() and root.samefile(server.root)
    return engine.endswith(str(server.plugins / ENGINE))


# ---------------------------------------------------------------------- what changed, and when


def changed_files(server: Server) -> dict[Path, float]:
    """Return when what has the engine find the plugin was changed last, in seconds since 1970."""
    read = _read_by_engine(server.plugins_conf, server.replication_conf)
    return _changed(*read, server.plugin_file)


def _read_by_engine(*paths: Path) -> dict[Path, None]:
    """Return PATHS and the files that they include."""
    found = dict.fromkeys(paths)
    for path in paths:
        real = path.resolve()
        with contextlib.suppress(SetupError, OSError):  # a finding of its own
            found |= dict.fromkeys(ConfFile.read(real).included())
    return found


def _changed(*paths: Path) -> dict[Path, float]:
    """Return when each of PATHS that is there was changed last, in seconds since 1970.

    The change of the inode counts too: a file that was unpacked, or copied with its times, bears an
    old time of its content.
    """
    found = {}
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue  # a finding of its own
        found[path] = max(status.st_mtime, status.st_ctime)
    return found


def _newer(changed: dict[Path, float], process: EngineProcess) -> list[Path]:
    return [path for path, moment in changed.items() if moment > process.started]


class _Captured:
    """The databases that replication.conf has captured, by what their files are."""

    def __init__(self, server: Server, entries: Sequence[Entry]) -> None:
        named = sections.databases_with_plugin(entries)
        self.is_default = "" in named
        others = {sections.same_path(e.value) for e in find(entries, "database") if e.value}
        self._named = _identities(name for name in named if name)
        self._out_of_band = _identities(
            [*others.difference(named), *server.root.glob("security*.fdb")]
        )
        self.is_any = bool(named)

    def has(self, file: Path) -> bool:
        """Tell whether FILE is one of them."""
        status = file.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in self._named:
            return True
        return self.is_default and identity not in self._out_of_band and _is_database(file)


def _captured(server: Server) -> _Captured | None:
    try:
        entries = ConfFile.read(server.replication_conf.resolve()).expanded()
        sections.refuse_broken_defaults(server.replication_conf, entries)
    except (SetupError, OSError):
        return None  # a finding of its own
    captured = _Captured(server, entries)
    return captured if captured.is_any else None


def _identities(paths: Iterable[str | Path]) -> set[tuple[int, int]]:
    found = set()
    for path in paths:
        try:
            status = Path(path).stat()
        except OSError:
            continue
        found.add((status.st_dev, status.st_ino))
    return found


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(1) == bytes([_HEADER_PAGE])


# ---------------------------------------------------------------------- in words


def _who(server: Server) -> str:
    return f"the server in {server.root}"


def _restart(processes: list[EngineProcess]) -> str:
    embedded = sorted({each.name for each in processes} - {*SERVER_PROGRAMS})
    return f"restart {_listed(embedded)}" if embedded else "restart the server"


def _processes(processes: list[EngineProcess]) -> str:
    shown = [
        f"{each.number} ({each.name}, since {local_time(int(each.started * 1e6))})"
        for each in processes
    ]
    subject, verb = ("process", "runs") if len(shown) == 1 else ("processes", "run")
    return f"{subject} {_listed(shown)} {verb}"


def _files(changed: dict[Path, float], processes: list[EngineProcess]) -> str:
    newer = {path: None for each in processes for path in _newer(changed, each)}
    return " and ".join(
        f"{path} changed ({local_time(int(changed[path] * 1e6))})" for path in newer
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
