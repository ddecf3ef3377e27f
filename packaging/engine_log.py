"""What the engine itself has written about our plugin, in replication.log."""

from __future__ import annotations

import calendar
import mmap
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from firebird_cdc.journal.statistics import local_time
from firebird_cdc.packaging import probes
from firebird_cdc.packaging.findings import Finding, Findings, Severity
from firebird_cdc.packaging.layout import Server
from firebird_cdc.packaging.running import EngineProcess, engine_processes

#: An entry that is older than this (seconds), or than the server's start, tells of what is past.
PRESENT_S: Final = 15 * 60
#: An entry that is older than this tells nothing any more.
RECENT_S: Final = 24 * 3600
#: For so long after an entry the plugin tells the same cause no second time (native/policy.c).
PAUSE_S: Final = 5

_TAIL_BYTES = 256 * 1024
_MOST_OF_ENTRY = 4096
_QUARTER_S = 15 * 60  # offsets from UTC are multiples of it
_EARLIEST_S, _LATEST_S = -14 * 3600, 12 * 3600  # from the times of any zone to UTC
_SHOWN = 3
_TIME = re.compile(r"\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4}")
_MENTIONS = re.compile("debezium_connector|firebird[_-]cdc", re.IGNORECASE)
_NOT_FOUND = re.compile("Replication plugin .* is not found")
# Of the plugin itself (fbc_host_count_failure in native/host.c), and of an engine that has none.
_NOWHERE = re.compile(rb"counted nowhere|Replication plugin .* is not found")
_UNCOUNTED = re.compile(
    r"Database: (?P<database>.*)\s+ERROR: (?:firebird-cdc: )?"
    r"(?P<what>transactions were .* and that is counted nowhere: .*"
    r"|Replication plugin .* is not found)"
)


class _Entry(NamedTuple):
    """What was written at once. ``moment``: seconds since 1970, whole ones."""

    moment: float
    text: str

    @property
    def said(self) -> str:
        """Return it without its time, in one line."""
        return " ".join(_TIME.sub("", self.text).split())


def engine_log(server: Server) -> Findings:
    """Say whether the engine can write replication.log, and what it said about us there.

    What it said since it runs and minutes ago is an error, what it said before that a note.
    """
    path, name = server.replication_log, server.account.name
    if not probes.may(server.account, "w", path if path.exists() else server.root):
        yield Finding(
            str(path),
            f"{name} can't write to it: the engine would tell nobody why it doesn't capture",
            f"run: firebird-cdc install --server {server.root}",
        )
    yield from plugin_not_found(server)
    now = time.time()
    starts = [process.started for process in engine_processes(server, [])]
    present = max(now - PRESENT_S, int(min(starts, default=0)))
    found: dict[str, list[float]] = {}
    for moment, text in _last_entries(path):
        if moment > now - RECENT_S and _MENTIONS.search(text) and not _UNCOUNTED.search(text):
            found.setdefault(_Entry(moment, text).said, []).append(moment)
    last = sorted(found.items(), key=lambda each: each[1][-1])[-_SHOWN:]
    for said, moments in last:
        often = f"{len(moments)} times, at last on " if len(moments) > 1 else ""
        told = f"{often}{_shown(moments[-1])}: {said}"
        if moments[-1] >= present:
            yield Finding(str(path), told, "see the log named in LoggingConfig for the cause")
        else:
            yield Finding(
                str(path),
                f"was written before, and not again since: {told}",
                "nothing, if the cause is known; the log named in LoggingConfig tells it",
                Severity.NOTE,
            )


def plugin_not_found(server: Server) -> Findings:
    """Say that the engine has found no plugin to tell of commits, and goes on without: as long as a
    process runs that may have said it, or for minutes. What that lost ``uncounted`` tells."""
    path, now = server.replication_log, time.time()
    last = next((each for each in reversed(_last_entries(path)) if _is_not_found(each)), None)
    if last is None:
        return
    processes = list(engine_processes(server, []))

    def may_have_said_it(process: EngineProcess) -> bool:
        return not process.has_plugin and int(process.started) <= last.moment

    is_recent = not processes and last.moment > now - PRESENT_S
    if is_recent or any(map(may_have_said_it, processes)):
        yield Finding(
            str(path),
            f"{_shown(last.moment)}: {last.said}: nothing is captured",
            f"run firebird-cdc check and mend what it names (firebird-cdc install --server"
            f" {server.root} puts the plugin back), then restart the server",
        )


def _is_not_found(entry: _Entry) -> bool:
    return _NOT_FOUND.search(entry.text) is not None


def uncounted(server: Server, since: float) -> Iterator[tuple[str, str]]:
    """Yield the file and what the plugin could count nowhere later than SINCE (seconds since 1970),
    each database and cause once, when it was said last."""
    told: set[str] = set()
    for path, (moment, text) in _uncounted(server):
        found = _UNCOUNTED.search(text)
        if found is None or moment <= since or found[0] in told:
            continue
        told.add(found[0])
        what = found["what"]
        if _NOT_FOUND.search(what):
            what += ", so what was committed then was NOT CAPTURED, and that is counted nowhere"
        yield str(path), f"{_shown(moment)}, {found['database']}: {what}"


def last_uncounted(server: Server) -> float:
    """Return when the plugin could count something nowhere for the last time, in seconds since
    1970; 0: never, as far as the log goes back."""
    return max((entry.moment for _, entry in _uncounted(server)), default=0.0)


def _uncounted(server: Server) -> Iterator[tuple[Path, _Entry]]:
    """Yield what was counted nowhere, the latest first: of the whole log, as it is acknowledged
    late, and what the refused commits of one night have the engine write is long; and of the one
    before, as logrotate(8) names it."""
    log = server.replication_log
    for path in (log, log.with_name(f"{log.name}.1")):
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as text:
                places = [found.start() for found in re.finditer(_NOWHERE, text)]
                entries = [_entry_at(text, place) for place in places]
        except (FileNotFoundError, ValueError):
            continue  # it is missing, or empty
        shift = _shift(path) if entries else 0.0
        for entry in reversed(entries):
            if moment := _local_moment(entry):
                yield path, _Entry(moment + shift, entry)


def _entry_at(text: mmap.mmap, place: int) -> str:
    """Return the entry around PLACE."""
    begin = max(0, place - _MOST_OF_ENTRY)
    before = text[begin:place].decode("utf-8", "replace")
    after = text[place : place + _MOST_OF_ENTRY].decode("utf-8", "replace")
    return _parts(before)[-1] + _parts(after)[0]


def _parts(text: str) -> list[str]:
    """Return the entries of TEXT: each begins with host and time at the start of a line."""
    return re.split(r"\n(?=\S)", text)


def _last_entries(path: Path) -> list[_Entry]:
    """Return the last entries of a log. None where it is missing."""
    text = _tail(path)
    shift = _shift(path) if text else 0.0
    found = ((_local_moment(part), part) for part in _parts(text))
    return [_Entry(moment + shift, part) for moment, part in found if moment]


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _local_moment(entry: str) -> float:
    """Return the time in ENTRY as if it were in UTC; 0 without one."""
    found = _TIME.search(entry)
    return calendar.timegm(time.strptime(found[0])) if found else 0.0


def _shift(path: Path) -> float:
    """Return the seconds from times in a log to UTC.

    The server has a time zone of its own, a chroot or container often another one than ours. When
    the last entry was written the file tells in UTC; but for a copy, which has our zone here.
    """
    last = [moment for moment in map(_local_moment, _parts(_tail(path))) if moment][-1:]
    if not last:
        return 0.0
    shift = round((path.stat().st_mtime - last[0]) / _QUARTER_S) * _QUARTER_S
    if _EARLIEST_S <= shift <= _LATEST_S:
        return shift
    return time.mktime((*time.gmtime(last[0])[:8], -1)) - last[0]


def _shown(moment: float) -> str:
    return local_time(int(moment * 1e6))
