"""What the engine itself has written about our plugin, in replication.log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from firebird_cdc.packaging import probes
from firebird_cdc.packaging.findings import Finding, Findings, Severity
from firebird_cdc.packaging.layout import Server
from firebird_cdc.packaging.running import engine_processes

#: An entry that is older than this, or than the server's start, tells of what is past.
PRESENT = timedelta(minutes=15)
#: An entry that is older than this tells nothing any more.
RECENT = timedelta(days=1)

_TAIL_BYTES = 256 * 1024
_SHOWN = 3
_TIME = re.compile(r"\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4}")
_MENTIONS = re.compile("debezium_connector|firebird[_-]cdc", re.IGNORECASE)
# Of the plugin itself (fbc_host_count_failure in native/host.c).
_UNCOUNTED = re.compile(
    r"Database: (?P<database>.*)\s+ERROR: firebird-cdc: (?P<what>transactions were .* and that is"
    r" counted nowhere: .*)"
)


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
    now = datetime.now()
    starts = [process.started for process in engine_processes(server, [])]
    begun = datetime.fromtimestamp(int(min(starts, default=0)))  # entries have whole seconds
    present = max(now - PRESENT, begun)
    found: dict[str, list[datetime]] = {}
    for entry in _entries(server):
        moment = _moment(entry) or now.replace(microsecond=0)
        if moment > now - RECENT and _MENTIONS.search(entry) and not _UNCOUNTED.search(entry):
            said = " ".join(_TIME.sub("", entry).split())
            found.setdefault(said, []).append(moment)
    last = sorted(found.items(), key=lambda each: each[1][-1])[-_SHOWN:]
    for said, moments in last:
        often = f"{len(moments)} times, at last on " if len(moments) > 1 else ""
        told = f"{often}{moments[-1]}: {said}"
        if moments[-1] >= present:
            yield Finding(str(path), told, "see the log named in LoggingConfig for the cause")
        else:
            yield Finding(
                str(path),
                f"was written before, and not again since: {told}",
                "nothing, if the cause is known; the log named in LoggingConfig tells it",
                Severity.NOTE,
            )


def uncounted(server: Server, since: datetime) -> Iterator[tuple[str, str]]:
    """Yield the file and what the plugin could count nowhere later than SINCE, each database and
    cause once, when it was said last."""
    told: set[str] = set()
    for entry in reversed(_entries(server)):
        found, moment = _UNCOUNTED.search(entry), _moment(entry)
        if found is None or moment is None or moment <= since or found[0] in told:
            continue
        told.add(found[0])
        yield str(server.replication_log), f"{moment}, {found['database']}: {found['what']}"


def _entries(server: Server) -> list[str]:
    """Return the last entries of replication.log: each begins with host and time at the start of a
    line. None where it is missing."""
    path = server.replication_log
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    return [part for part in re.split(r"\n(?=\S)", text) if part.strip()]


def _moment(entry: str) -> datetime | None:
    """Return when ENTRY was written, in whole seconds of the server's local time."""
    found = _TIME.search(entry)
    return None if found is None else datetime.strptime(found[0], "%a %b %d %H:%M:%S %Y")
