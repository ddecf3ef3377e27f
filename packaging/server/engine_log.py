"""Entries about our plugin that the engine itself has written to replication.log."""

from __future__ import annotations

import calendar
import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from firebird_cdc.clock import local_time
from firebird_cdc.packaging.server import accounts
from firebird_cdc.packaging.server.findings import Finding, Findings, Severity
from firebird_cdc.packaging.server.layout import Server
from firebird_cdc.packaging.server.running import changed_files, engine_processes

#: An entry that is older than this (seconds), or than the server's start, tells of what is past.
PRESENT_S: Final = 15 * 60
#: An entry that is older than this tells nothing any more.
RECENT_S: Final = 24 * 3600
#: For so long after an entry the plugin tells the same cause no second time (native/policy.c).
PAUSE_S: Final = 5

_TAIL_BYTES = 256 * 1024
_QUARTER_S = 15 * 60  # offsets from UTC are multiples of it
_EARLIEST_S, _LATEST_S = -14 * 3600, 12 * 3600  # from the times of any zone to UTC
_SHOWN = 3
_TIME = re.compile(r"\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4}")
_MENTIONS = re.compile("debezium_connector|firebird[_-]cdc", re.IGNORECASE)
_NOT_FOUND = re.compile("Replication plugin .* is not found")
# Of the plugin itself (fbc_policy_log in native/policy.c).
_UNCOUNTED = re.compile(
    r"\tDatabase: (?P<database>.*)\n\tERROR: firebird-cdc at (?P<moment>\d+): (?P<what>transactions"
    r" were .* and that is counted nowhere: .*)"
)
# Of an engine that has none: what it commits then nobody counts at all.
_WITHOUT = re.compile(
    r"\tDatabase: (?P<database>.*)\n\tERROR: (?P<what>Replication plugin .* is not found)"
)
_WORDS = (b"counted nowhere", b"Replication plugin ")


class _Entry(NamedTuple):
    """An entry, written at once. ``moment``: seconds since 1970, whole ones."""

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
    if not accounts.may(server.account, "w", path if path.exists() else server.root):
        yield Finding(
            str(path),
            f"{name} can't write to it: nothing would record why the engine doesn't capture",
            f"run: firebird-cdc install --server {server.root}",
        )
    yield from plugin_not_found(server)
    now = time.time()
    starts = [process.started for process in engine_processes(server, [])]
    present = max(now - PRESENT_S, int(min(starts, default=0)))
    found: dict[str, list[float]] = {}
    for moment, text in _last_entries(path):
        is_other = _UNCOUNTED.search(text) or _NOT_FOUND.search(text)  # findings of their own
        if moment > now - RECENT_S and _MENTIONS.search(text) and not is_other:
            found.setdefault(_Entry(moment, text).said, []).append(moment)
    last = sorted(found.items(), key=lambda each: each[1][-1])[-_SHOWN:]
    for said, moments in last:
        often = f"{len(moments)} times, at last on " if len(moments) > 1 else ""
        told = f"{often}{_shown(moments[-1])}: {said}"
        if moments[-1] >= present:
            yield Finding(str(path), told, "see the log named in LoggingConfig for the cause")
        else:
            yield _past(path, told)


def plugin_not_found(server: Server) -> Findings:
    """Say that the engine found no plugin to tell of commits, which it goes on without: while a
    process runs that said it, or may have, and for minutes if nothing was mended since; else a
    note. What that lost, ``uncounted`` tells."""
    path, now = server.replication_log, time.time()
    entries = [each for each in _last_entries(path) if _NOT_FOUND.search(each.text)]
    if not entries:
        return
    last = entries[-1]
    # Under Classic who said it has ended, and who came since says it at its first change only.
    is_present = last.moment > now - PRESENT_S and not _mended_since(server, last.moment)
    told = f"{_shown(last.moment)}: {last.said}"
    if is_present or any(
        not process.has_plugin and int(process.started) <= last.moment
        for process in engine_processes(server, [])
    ):
        yield Finding(
            str(path),
            f"{told}: nothing is captured",
            f"run firebird-cdc check and fix what it names (firebird-cdc install --server"
            f" {server.root} puts the plugin back), then restart the server",
        )
    elif last.moment > now - RECENT_S:
        yield _past(path, told)


def _mended_since(server: Server, moment: float) -> bool:
    """Return whether something that the engine needs to find the plugin was changed later than
    in the second of MOMENT, in which it may have been spoilt."""
    return any(changed >= moment + 1 for changed in changed_files(server).values())


def _past(path: Path, told: str) -> Finding:
    return Finding(
        str(path),
        f"was written before, and not again since: {told}",
        "nothing, if the cause is known; the log named in LoggingConfig tells it",
        Severity.NOTE,
    )


class _Uncounted(NamedTuple):
    """Transactions that are counted nowhere. ``moment``: seconds since 1970, whole ones."""

    log: Path
    moment: int
    database: str
    what: str


def uncounted(server: Server, since: float) -> Iterator[tuple[str, str]]:
    """Yield the file and what the plugin could count nowhere later than SINCE (seconds since 1970),
    each database and cause once, when it was said last.

    An entry stands for the pause behind it as well, in which the plugin says nothing more.
    """
    last: dict[tuple[str, str], _Uncounted] = {}
    for each in _uncounted(server):
        if known_from(each.moment) > since:
            last[each.database, each.what] = each
    for log, moment, database, what in sorted(last.values(), key=lambda each: -each.moment):
        yield str(log), f"{_shown(moment)}, {database}: {what}"


def last_uncounted(server: Server) -> int:
    """Return when the plugin could count something nowhere for the last time, in seconds since
    1970; 0: never, as far as the log goes back."""
    return max((each.moment for each in _uncounted(server)), default=0)


def known_from(moment: int) -> int:
    """Return from when on who acknowledges knows all that an entry of that MOMENT stands for."""
    return moment + 1 + PAUSE_S  # it has whole seconds


def _uncounted(server: Server) -> Iterator[_Uncounted]:
    """Yield what was counted nowhere: of the whole log, as it is acknowledged late, and what the
    refused commits of one night have the engine write is long; and of the one before, as
    logrotate(8) names it."""
    log = server.replication_log
    for path in (log.with_name(f"{log.name}.1"), log):
        with suppress(FileNotFoundError):
            yield from _uncounted_in(path)


def _uncounted_in(path: Path) -> Iterator[_Uncounted]:
    """Yield what was counted nowhere as the log PATH tells it, and of an engine without the plugin,
    which says it with every commit, what it said last of each database."""
    last: dict[bytes, bytes] = {}
    before: deque[bytes] = deque(maxlen=2)  # who and when, and the database
    with path.open("rb") as file:
        for line in file:  # not mapped: who truncates a mapped file kills its readers
            if any(word in line for word in _WORDS):
                about = b"".join([*before][1:]) + line
                last[about] = b"".join([*before][:1]) + about
            before.append(line)
    shift = _shift(path, _tail(path)) if last else 0.0
    for text in last.values():
        entry = text.decode("utf-8", "replace")
        if found := _UNCOUNTED.search(entry):
            yield _Uncounted(path, int(found["moment"]), found["database"], found["what"])
        elif found := _WITHOUT.search(entry):
            moment = int(_local_moment(entry) + shift)
            what = f"{found['what']}, so what was committed was NOT CAPTURED, uncounted"
            yield _Uncounted(path, moment, found["database"], what)


def _parts(text: str) -> list[str]:
    """Return the entries of TEXT: each begins with host and time at the start of a line."""
    return re.split(r"\n(?=\S)", text)


def _last_entries(path: Path) -> list[_Entry]:
    """Return the last entries of a log. None where it is missing."""
    text = _tail(path)
    shift = _shift(path, text)
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


def _shift(path: Path, end: str) -> float:
    """Return the seconds from times in a log to UTC; END: its last entries.

    The server has a time zone of its own, a chroot or container often another one than ours. When
    the last entry was written the file tells in UTC; but for a copy, which has our zone here.
    """
    last = next(filter(None, map(_local_moment, reversed(_parts(end)))), 0.0)
    if not last:
        return 0.0
    shift = round((path.stat().st_mtime - last) / _QUARTER_S) * _QUARTER_S
    if _EARLIEST_S <= shift <= _LATEST_S:
        return shift
    return time.mktime((*time.gmtime(last)[:8], -1)) - last


def _shown(moment: float) -> str:
    return local_time(int(moment * 1e6))
