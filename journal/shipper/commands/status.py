"""The command ``status``: what a shipper is doing, or what lies there while none runs."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

import orjson

from firebird_cdc.clock import local_time, now_us
from firebird_cdc.config.arguments import Subparsers
from firebird_cdc.config.locate import add_config_option
from firebird_cdc.errors import FirebirdCdcError, SetupError
from firebird_cdc.journal.folder import exit_status, failures
from firebird_cdc.journal.folder.locks import (
    SHIPPER_LOCK,
    STATE_DIRECTORY,
    bridge_present,
    shipper_present,
)
from firebird_cdc.journal.folder.processes import disagreements, read_shipper, status_path
from firebird_cdc.journal.folder.shared_page import read_confirmer
from firebird_cdc.journal.folder.subjects import (
    CONFIRMER,
    FAILURES,
    NAMELESS,
    OPTIONS,
    REMEMBERED,
    UNDECIDED,
)
from firebird_cdc.journal.shipper.commands.snapshot_lines import (
    is_on,
    lines_of,
    snapshot_of,
    told_by_shipper,
)
from firebird_cdc.journal.shipper.commands.terminal import duration
from firebird_cdc.journal.shipper.local_offsets import notices, remembered
from firebird_cdc.journal.shipper.monitoring.folder import count_alone, reasons
from firebird_cdc.journal.shipper.monitoring.report import (
    VERSION,
    needs_somebody,
    set_aside,
    they_wait,
    transactions,
    waits,
)
from firebird_cdc.journal.shipper.monitoring.statistics import BacklogFigures, DatabaseBacklog
from firebird_cdc.journal.shipper.nameless import troubles_of
from firebird_cdc.journal.shipper.repairs import RepairFolder
from firebird_cdc.journal.shipper.snapshots.state import StateFolder
from firebird_cdc.output import printable

if TYPE_CHECKING:
    from firebird_cdc.packaging.server.layout import Server

STALE_S = 30.0
"""A status that a running shipper has not written anew for so long tells that it hangs."""

_TABLES = 20
_REASONS = 20
_IDLE = 20  # databases that are well and where nothing waits
_WATCH_S = 1.0
_STATES = {
    "well": "well",
    "behind": "behind: what waits is older than half a minute",
    "waiting": "degraded, retrying automatically",
    "warning": "works, with a warning (see above)",
    "halted": "shipping paused",
}
_CLEAR = "\x1b[H\x1b[2J"


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "status",
        help="what the shipper is doing, and what requires action",
        description="Shows what the shipper of a journal folder is doing, or what waits in the"
        " folder while no shipper runs. Exit code 0: all is well; 1: action is required.",
    )
    parser.set_defaults(run=run)
    where = parser.add_mutually_exclusive_group()
    add_config_option(where)
    where.add_argument("--directory", type=Path, metavar="DIR", help="the journal folder")
    parser.add_argument("--json", action="store_true", help="print it for a program")
    parser.add_argument(
        "--watch", action="store_true", help="show it anew each second, until Ctrl-C"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the status; 1 if something needs somebody."""
    from firebird_cdc.packaging.server.locating import servers_on

    while True:
        directory, refusals = _directory(arguments)
        servers = servers_on(directory)
        configs = _configs(arguments, directory, servers)
        status = read_status(directory, refusals, configs)
        pages = failures.pages(directory, configs)
        status["needs"] += [*_not_captured(servers), *_counted_nowhere(pages, servers)]
        text = (
            json.dumps(status, indent=2)
            if arguments.json
            else "\n".join(map(printable, lines(status)))
        )
        if arguments.watch and sys.stdout.isatty() and not arguments.json:
            text = _CLEAR + _cut(text)
        print(text, flush=True)
        if not arguments.watch:
            return 1 if status["needs"] else 0
        sleep(_WATCH_S)


def _cut(text: str) -> str:
    """Return as much of TEXT as the screen shows."""
    width, height = shutil.get_terminal_size()
    return "\n".join(line[:width] for line in text.splitlines()[: height - 1])


def _directory(arguments: argparse.Namespace) -> tuple[Path, Sequence[str]]:
    """Return the journal folder, and why a shipper would refuse the configuration file."""
    from firebird_cdc.config import load_capture
    from firebird_cdc.packaging.server.locating import locate_config, readable_folder, servers_on

    path: Path | None = None
    directory = arguments.directory
    try:
        if directory is not None:
            return readable_folder(directory), ()
        path = directory = locate_config(arguments.config)
        config = load_capture(path)
        directory = config.journal_directory
        return readable_folder(directory), config.problems
    except FirebirdCdcError as error:
        # The server meets the same: this may be what all commits have met since.
        pages = failures.pages(None, [path] if path is not None else [])
        told = [text for _, text in failures.troubles(pages)]
        servers = servers_on(directory) if directory is not None else []
        told += [*_not_captured(servers), *_counted_nowhere(pages, servers)]
        if arguments.json:
            print(json.dumps({"version": VERSION, "needs": [str(error), *told]}, indent=2))
        else:
            print("".join(f"  - {printable(text)}\n" for text in told), end="")
        raise


def _configs(
    arguments: argparse.Namespace, directory: Path, servers: Sequence[Server]
) -> list[Path]:
    """Return the connector's files of ARGUMENTS and of all who work on DIRECTORY, as SERVERS do."""
    from firebird_cdc.packaging.server.counted import configs_on
    from firebird_cdc.packaging.server.locating import locate_config

    named = [] if arguments.directory is not None else [locate_config(arguments.config)]
    return configs_on(directory, servers, named)


def _not_captured(servers: Sequence[Server]) -> Iterator[str]:
    """Yield what SERVERS lack: a restart, or a plugin that they find and can load."""
    from firebird_cdc.packaging.server.engine_log import plugin_not_found
    from firebird_cdc.packaging.server.findings import Severity
    from firebird_cdc.packaging.server.plugin_file import unusable_plugin
    from firebird_cdc.packaging.server.running import restart_findings

    for server in servers:
        found = [*restart_findings(server)]
        with suppress(OSError):  # that its log can't be read is told by _counted_nowhere
            found += unusable_plugin(server, {}, trusts_ours=True)
            found += plugin_not_found(server)
        for finding in found:
            if finding.severity is not Severity.NOTE:
                yield f"{finding.where}: {finding.what}; {finding.remedy}"


def _counted_nowhere(pages: Sequence[Path], servers: Sequence[Server]) -> Iterator[str]:
    """Yield what was refused or lost while none of PAGES took the count, as the logs of the engines
    of SERVERS tell it."""
    from firebird_cdc.packaging.server.counted import told_nowhere

    return told_nowhere(servers, pages)


# What is there


def read_status(
    directory: Path, refusals: Sequence[str] = (), configs: Sequence[Path] = ()
) -> dict[str, Any]:
    """Return the status of the journal folder DIRECTORY: a shipper's report, or one made here.

    ``needs``: what needs somebody, one sentence each. REFUSALS: what is wrong in the configuration
    file as it is now, so that a shipper would end at once. CONFIGS: the files of those that work
    on the folder.
    """
    found = _last_report(directory)
    failed = _failures(directory, configs)
    if found is not None:
        # Those of now: the shipper may run as another user, and an acknowledgement is a moment old.
        others = [each for each in found["troubles"] if not each["subject"].startswith(FAILURES)]
        found["troubles"] = [*failed, *others]
    is_running = shipper_present(directory)
    make = _of_running if is_running else partial(_of_folder, is_running=False)
    status = make(found, directory, failed)
    because = [*_refused(refusals, is_running=is_running)]
    if not is_running:
        because += _last_words(directory, is_known=bool(refusals))
    status["needs"] = because + status["needs"]
    _tell_disagreements(status, directory)
    quarantined = list(reasons(directory))
    status["quarantine"] = [{"journal": name, "reason": reason} for name, reason in quarantined]
    status["repairs"] = [
        {"repair": str(each.uuid), "database": each.database, "events": len(each.events)}
        for each in RepairFolder(directory).waiting()
    ]
    return status


def _last_report(directory: Path) -> dict[str, Any] | None:
    try:
        report: dict[str, Any] = orjson.loads(status_path(directory).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    except PermissionError:
        raise SetupError(
            f"{status_path(directory)} can't be read; run this as the user of the database server"
        ) from None
    return report if _is_readable(report) else None


def halted_reasons(directory: Path) -> list[str]:
    """Return what somebody has to mend, as the shipper that works on DIRECTORY tells, a sentence
    each. What ``read_status`` finds out by itself is not among it."""
    report = _last_report(directory)
    if report is None or not report["running"]:
        return []
    return [
        trouble["text"]
        for trouble in report["troubles"]
        if trouble["kind"] == "halted" and trouble["subject"] not in (CONFIRMER, UNDECIDED)
    ]


def _is_readable(report: Any) -> bool:
    """Tell whether all of REPORT can be shown: a file may hold anything."""
    try:
        if report["version"] != VERSION:
            return False
        list(lines(report | {"needs": needs_somebody(report), "quarantine": []}))
        return all(isinstance(each["subject"], str) for each in report["troubles"])
    except Exception:  # whatever may be raised by content of any form
        return False


def _of_running(
    report: dict[str, Any] | None, directory: Path, failed: list[dict[str, Any]]
) -> dict[str, Any]:
    if report is None or not report["running"]:
        # It has just begun, or is another version of ours.
        return _of_folder(report, directory, failed, is_running=True)
    needs = needs_somebody(report)
    silent_s = (now_us() - report["written_us"]) / 1e6
    if silent_s > STALE_S:
        needs.insert(0, f"the shipper has written no status for {silent_s:.0f} s")
    elif silent_s < -STALE_S:  # one that lives writes anew within seconds, by the clock as it is
        written = local_time(report["written_us"])
        needs.insert(
            0,
            f"the last status of the shipper is of {written}, which is yet to come: the clock was"
            " set back, and if this is said in half a minute still, the shipper hangs",
        )
    return report | {"needs": needs}


def _of_folder(
    last: dict[str, Any] | None,
    directory: Path,
    failed: list[dict[str, Any]],
    *,
    is_running: bool,
) -> dict[str, Any]:
    """Return the status that is made from the content of DIRECTORY.

    LAST: what the last shipper has told; FAILED: troubles of commits.
    IS_RUNNING: a shipper works on it and has told nothing yet.
    """
    figures = count_alone(directory)
    now = now_us()
    server = bridge_present(directory)
    ended_us = None if last is None else last.get("ended_us", last["written_us"])
    needs: list[str] = []
    if is_running:
        needs += _silent(directory, now)
    elif figures.pending:
        needs.append(f"no shipper runs, and {they_wait(figures.pending)}")
    elif server:
        needs.append("no shipper runs, though a server captures changes")
    snapshots, unreadable = read_snapshots(directory)
    if not is_running:
        needs += _left_to_do(snapshots)
    needs += unreadable
    nameless = troubles_of(directory, now)
    troubles = [*failed, *nameless, *_confirmer(directory, now), *_remembered(directory)]
    needs += [trouble["text"] for trouble in troubles]
    if last is not None:
        known = (*REMEMBERED, CONFIRMER, UNDECIDED, FAILURES, NAMELESS)
        troubles += [each for each in last["troubles"] if not each["subject"].startswith(known)]
    if figures.quarantined:
        needs.append(set_aside(figures.quarantined))
    return {
        "version": VERSION,
        "running": is_running,
        "written_us": now,
        "ended_us": ended_us,
        "orderly": last is not None and not last["running"],
        "server_present": server,
        "directory": str(directory),
        "connector": "" if last is None else last["connector"],
        "backlog": figures.as_json(),
        "databases": _waiting(figures, directory, snapshots),
        "troubles": troubles,
        "last_error": None if last is None else last["last_error"],
        "needs": needs,
    }


def read_snapshots(directory: Path) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the snapshots that are taken or come next, as the files in DIRECTORY tell, by
    database; and why these can't be read."""
    told = told_by_shipper(directory)
    try:
        return {
            state.database: snapshot_of(state, state.waiting[0], told)
            for state in StateFolder(directory).read()
            if state.waiting
        }, []
    except (OSError, ValueError) as error:
        return {}, [f"the state of snapshots can't be read: {error}"]


def _left_to_do(snapshots: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield what is to be told of SNAPSHOTS, which no shipper takes."""
    for path, snapshot in snapshots.items():
        if snapshot["status"] != "paused":
            yield (
                f"no shipper runs, and the {snapshot['kind']} snapshot of {path} is"
                f" {snapshot['status']}, so consumers lack rows; firebird-cdc snapshot status tells"
                " more"
            )


def _silent(directory: Path, now: int) -> Iterator[str]:
    """Yield that the shipper should have written a status by now, if it should."""
    with suppress(OSError):  # it ends right now
        begun_us = (directory / STATE_DIRECTORY / SHIPPER_LOCK).stat().st_mtime_ns // 1000
        if now - begun_us > STALE_S * 1e6:
            yield (
                f"a shipper runs since {local_time(begun_us)}, and has written no status that this"
                f" version can read; see its log, and whether {status_path(directory).parent} can"
                " be written"
            )


def _refused(refusals: Sequence[str], *, is_running: bool) -> Iterator[str]:
    """Yield what it means that the configuration file is wrong in these ways."""
    for problem in refusals:
        if is_running:
            yield f"the shipper has older options, and can't be started again with: {problem}"
        else:
            yield f"no shipper runs, as the configuration is wrong: {problem}"


def _tell_disagreements(status: dict[str, Any], directory: Path) -> None:
    """Have STATUS tell which processes have which options, as it is now."""
    shipper = read_shipper(directory)
    if shipper is not None and shipper.record is not None:
        record = shipper.record
        status["options"] = {
            "path": record.reading.path,
            "read_us": record.reading.read_us,
            "version": record.version,
            "embedded": record.embedded,
        }
    troubles = status["troubles"]
    known = [each["text"] for each in troubles if each["subject"] == OPTIONS]
    status["troubles"] = [each for each in troubles if each["subject"] != OPTIONS]
    status["needs"] = [need for need in status["needs"] if need not in known]
    status["needs"] += map(str, disagreements(directory))


def _last_words(directory: Path, *, is_known: bool) -> Iterator[str]:
    """Yield why the last shipper ended, if it left that; IS_KNOWN: that the file is wrong."""
    words = exit_status.of_last_shipper(directory)
    if words is not None and not (words.is_refusal and is_known):
        for sentence in words.text.splitlines():
            ended = local_time(int(words.at * 1e6))
            yield f"no shipper runs; the last one ended {ended}: {sentence}"


def _confirmer(directory: Path, now: int) -> list[dict[str, Any]]:
    """Return the troubles of the confirmer, as its page tells now."""
    found = read_confirmer(directory).troubles(directory)
    return [
        {"subject": subject, "kind": kind, "text": text, "since_us": now}
        for subject, (kind, text) in found.items()
    ]


def _failures(directory: Path, configs: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the troubles about what was refused or lost and is not acknowledged."""
    now = now_us()
    return [
        {"subject": subject, "kind": "warning", "text": text, "since_us": now}
        for subject, text in failures.troubles(failures.pages(directory, configs))
    ]


def _remembered(directory: Path) -> list[dict[str, Any]]:
    """Return what events consumers lack, as the folder remembers it, and what of that can't be
    read."""
    return [
        {"subject": each.subject, "kind": "warning", "text": each.text, "since_us": each.since_us}
        for each in notices(directory)
    ]


def _waiting(
    figures: BacklogFigures, directory: Path, snapshots: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    placed = {each.database: each.placeholders for each in remembered(directory)}
    none = DatabaseBacklog(0)
    found = [
        (path, figures.databases.get(path, none), placed.get(path, 0))
        for path in sorted({*figures.databases, *placed, *snapshots})
    ]
    return [
        {
            "path": path,
            "pending": each.pending,
            "live": each.live,
            "placeholders": placeholders,
            "snapshot": snapshots.get(path),
        }
        for path, each, placeholders in found
        if each.pending or each.live or placeholders or path in snapshots
    ]


# How it is shown


def lines(status: Mapping[str, Any]) -> Iterator[str]:
    """The lines for a terminal."""
    if status["needs"]:
        yield f"{status['directory']}: ACTION REQUIRED"
        yield from (f"  - {need}" for need in status["needs"])
    elif status["running"] and ("kafka" not in status or waits(status)):
        yield f"{status['directory']}: degraded, retrying automatically"
    else:
        yield f"{status['directory']}: all is well"
    yield ""
    yield from _shipper_lines(status)
    backlog = status["backlog"]
    oldest = f", the oldest for {duration(backlog['oldest_s'])}" if backlog["pending"] else ""
    is_open = f"{transactions(backlog['live'])} open"
    yield f"backlog   {transactions(backlog['pending'])}{oldest}; {is_open}"
    yield f"disk      {_size(backlog['bytes'])} in journals, {_size(backlog['free_bytes'])} free"
    yield from _trouble_lines(status)
    yield from _database_lines(status)
    yield from _canary_lines(status)
    quarantined = status["quarantine"]
    if quarantined:
        yield ""
        yield f"quarantine ({len(quarantined)})"
        yield from (f"  {each['journal']}: {each['reason']}" for each in quarantined[:_REASONS])
        if len(quarantined) > _REASONS:
            yield f"  and {len(quarantined) - _REASONS} more"
    if repairs := status.get("repairs"):
        yield ""
        yield f"repairs that wait ({len(repairs)})"
        yield from (
            f"  {each['repair']}: {each['events']} events of {each['database']}"
            for each in repairs[:_REASONS]
        )


def _shipper_lines(status: Mapping[str, Any]) -> Iterator[str]:
    if "kafka" in status:
        totals = status["totals"]
        yield f"shipper   process {status['pid']}, since {local_time(status['started_us'])}"
        if options := status.get("options"):
            kind = "embedded" if options["embedded"] else "external"
            yield (
                f"options   {options['path']}, read {local_time(options['read_us'])} ({kind},"
                f" version {options['version']})"
            )
        reached = "reached" if status["kafka"]["reached"] else "NOT REACHED"
        yield f"kafka     {status['kafka']['servers']}: {reached}"
        yield (
            f"shipped   {totals['events']} events, {transactions(totals['journals'])},"
            f" {_size(totals['bytes'])}; {totals['retries']} times sent again"
        )
    elif status["running"]:
        yield "shipper   it runs, and has written no status yet"
    elif status["ended_us"] is None:
        yield "shipper   not running, and none has written a status here"
    else:
        how = "ended" if status["orderly"] else "last seen"
        yield f"shipper   not running, {how} {local_time(status['ended_us'])}"


def _trouble_lines(status: Mapping[str, Any]) -> Iterator[str]:
    then = "" if "kafka" in status else " when the last shipper ended"
    if status["troubles"]:
        yield ""
        yield f"troubles{then}"
    for trouble in status["troubles"]:
        yield f"  {trouble['kind']}, since {local_time(trouble['since_us'])}: {trouble['text']}"
    error = status["last_error"]
    if error is not None and error["text"] not in {each["text"] for each in status["troubles"]}:
        yield f"last error, {local_time(error['since_us'])}: {error['text']}"


def _database_lines(status: Mapping[str, Any]) -> Iterator[str]:
    databases = status["databases"]
    idle = [each for each in databases if _is_idle(each)]
    # Those that changed last are shown.
    left_out = sorted(idle, key=lambda each: each["handled_us"], reverse=True)[_IDLE:]
    paths = {each["path"] for each in left_out}
    for database in databases:
        if database["path"] in paths:
            continue
        yield ""
        yield database["path"] or "transactions whose database is unknown"
        lag = f", the oldest for {duration(database['lag_s'])}" if database.get("lag_s") else ""
        is_open = f"{transactions(database['live'])} open"
        yield f"  waiting  {transactions(database['pending'])}{lag}; {is_open}"
        if count := database.get("placeholders"):
            events = "1 event was" if count == 1 else f"{count} events were"
            yield f"  note     {events} sent with placeholders for values that are too large"
        if is_on(snapshot := database.get("snapshot")):
            told = lines_of(snapshot, status["written_us"])
            yield from (f"  {'' if n else 'snapshot':<8} {line}" for n, line in enumerate(told))
        if "tables" not in database:
            continue
        yield f"  state    {_STATES[database['state']]}"
        last = database["last_event"]
        if last is not None:
            yield (
                f"  last     {last['table'] or 'DDL'}, commit {last['sequence']}, transaction"
                f" {last['transaction']}, {local_time(database['handled_us'])},"
                f" {duration(database['latency_ms'] / 1000)} after its commit"
            )
        tables = database["tables"]
        for table in tables[:_TABLES]:
            counts = f"{table['c']} inserts, {table['u']} updates, {table['d']} deletes"
            if not table["table"]:
                counts = f"{table['ddl']} statements"
            yield f"  {table['table'] or 'DDL':<31}  {counts}"
        more = len(tables) - _TABLES + database["tables_left_out"]
        if more > 0:
            yield f"  and {more} tables more"
    if left_out:
        yield ""
        more = f"{len(left_out)} more databases"
        yield f"and {more} that are well, with nothing waiting (all: --json)"


def _is_idle(database: Mapping[str, Any]) -> bool:
    """Return whether nothing of DATABASE is of interest to who looks for a fault."""
    told = ("pending", "live", "quarantined", "placeholders")
    is_well = database.get("state") == "well" and not is_on(database.get("snapshot"))
    return is_well and not any(database.get(name) for name in told)


def _canary_lines(status: Mapping[str, Any]) -> Iterator[str]:
    for canary in status.get("canaries", ()):
        seen = f"{duration(canary['age_s'])} ago" if canary["seen_us"] else "never"
        state = "can't be written" if canary.get("unwritable") else "well"
        state = "MISSING" if canary["missing"] else state
        yield f"canary    {canary['table']}: {state}, {seen}"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
