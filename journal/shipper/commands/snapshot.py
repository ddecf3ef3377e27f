"""``firebird-cdc snapshot``: asks for snapshots, stops, pauses and shows them.

The shipper does it (`journal.shipper.snapshots.intake`): the command leaves it a request that has
the form of a signal.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from firebird_cdc.clock import local_time
from firebird_cdc.config.arguments import Subparsers, seconds
from firebird_cdc.config.locate import add_config_option
from firebird_cdc.errors import ShipError, UsageError
from firebird_cdc.journal.folder.locks import shipper_present
from firebird_cdc.journal.shipper.commands.retry import as_our_error
from firebird_cdc.journal.shipper.commands.snapshot_lines import (
    brief,
    is_on,
    snapshot_of,
    told_by_shipper,
)
from firebird_cdc.journal.shipper.commands.terminal import Follower, Told, bar
from firebird_cdc.journal.shipper.requests import await_answer, write_request
from firebird_cdc.journal.shipper.snapshots.figures import missing_in
from firebird_cdc.journal.shipper.snapshots.state import (
    SNAPSHOTS,
    Snapshot,
    SnapshotState,
    StateFolder,
    Status,
)
from firebird_cdc.journal.snapshot.signals import SignalError, parse_signal
from firebird_cdc.output import printable

_DEFAULT_WAIT_S = 30.0
_LOOK_S = 0.5


def register(subparsers: Subparsers) -> None:
    """Add the command with its actions."""
    parser = subparsers.add_parser("snapshot", help="deliver rows that exist already")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    execute = actions.add_parser(
        "execute",
        help="take a snapshot of tables",
        description="Delivers the rows of tables, between the changes at their exact place. The"
        " shipper that runs does it, or the next one that starts.",
    )
    add_config_option(execute)
    execute.add_argument(
        "tables",
        nargs="+",
        metavar="TABLE",
        help="regular expression for <database path>.<table>",
    )
    _add_database(execute)
    execute.add_argument(
        "--blocking",
        action="store_true",
        help="read all tables at one moment, while changes wait; else chunk by chunk beside them",
    )
    execute.add_argument(
        "--where",
        metavar="SQL",
        help="condition that rows have to fulfil; with --blocking also a SELECT of the rows",
    )
    execute.add_argument("--id", default=None, help="name of the snapshot (default: a new uuid)")
    execute.add_argument(
        "--follow", action="store_true", help="show the progress until the snapshot has ended"
    )
    _add_wait(execute)
    execute.set_defaults(run=_execute)
    stop = actions.add_parser(
        "stop",
        help="end snapshots, or take tables out of them",
        description="Ends all snapshots that run or wait; with tables, takes only these out.",
    )
    add_config_option(stop)
    stop.add_argument("tables", nargs="*", metavar="TABLE")
    _add_database(stop)
    _add_wait(stop)
    stop.set_defaults(run=_stop)
    for name, text, description in (
        (
            "pause",
            "let snapshots rest where they are",
            "Pauses the snapshots that run or wait, and those that are asked for later, until"
            " `resume`, after a restart too. Changes are delivered meanwhile.",
        ),
        (
            "resume",
            "let paused snapshots go on",
            "Has paused snapshots go on where they were.",
        ),
    ):
        parser = actions.add_parser(name, help=text, description=description)
        add_config_option(parser)
        _add_database(parser)
        _add_wait(parser)
        parser.set_defaults(run=_pause_or_resume)
    status = actions.add_parser(
        "status",
        help="show snapshots that wait, run, or have ended",
        description="Shows the snapshots of each database: tables, rows, and what is waited for.",
    )
    add_config_option(status)
    status.add_argument("--json", action="store_true", help="print one JSON object a database")
    status.add_argument(
        "--follow", action="store_true", help="show the progress of those that have not ended"
    )
    status.set_defaults(run=_status)


def _add_database(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--database",
        metavar="PATH",
        help="that database alone, as journals name it (default: all that are known)",
    )


def _add_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait",
        type=seconds,
        default=_DEFAULT_WAIT_S,
        metavar="SECONDS",
        help=f"how long to wait for the shipper's answer (default {_DEFAULT_WAIT_S:.0f})",
    )


def _execute(arguments: argparse.Namespace) -> int:
    data: dict[str, Any] = {
        "type": "blocking" if arguments.blocking else "incremental",
        "data-collections": arguments.tables,
    }
    if arguments.where is not None:
        data["additional-condition"] = arguments.where
    key = _ask(arguments, arguments.id or str(uuid4()), "execute-snapshot", data)
    return _follow(_folder_of(arguments), key) if arguments.follow else 0


def _stop(arguments: argparse.Namespace) -> int:
    data: dict[str, Any] = {"type": "incremental"}
    if arguments.tables:
        data["data-collections"] = arguments.tables
    _ask(arguments, str(uuid4()), "stop-snapshot", data)
    return 0


def _pause_or_resume(arguments: argparse.Namespace) -> int:
    _ask(arguments, str(uuid4()), f"{arguments.action}-snapshot", {"type": "incremental"})
    return 0


def _ask(arguments: argparse.Namespace, id: str, type: str, data: dict[str, Any]) -> str:
    """Have the shipper follow a signal, and return the key of the snapshot that it asks for. Raises
    ShipError where it does not."""
    text = json.dumps(data)
    try:
        parse_signal(id, type, text)
    except SignalError as error:
        raise UsageError(str(error)) from error
    journals = _folder_of(arguments)
    content = {"id": id, "type": type, "data": text, "database": arguments.database}
    with as_our_error():
        request = write_request(journals, content, SNAPSHOTS)
        if not shipper_present(journals):
            print(f"no shipper runs on {journals}; the next one that starts does it")
            return request.stem
        answer = await_answer(request, arguments.wait)
    if answer is None:
        raise ShipError(f"no answer within {arguments.wait:g} s; the shipper still does it")
    if not answer["is_taken"]:
        raise ShipError(str(answer["text"]))
    print(answer["text"])
    return request.stem


def _folder_of(arguments: argparse.Namespace) -> Path:
    from firebird_cdc.packaging.server.locating import locate_journals

    return locate_journals(arguments.config)


def _states(journals: Path) -> list[SnapshotState]:
    try:
        with as_our_error():
            return list(StateFolder(journals).read())
    except ValueError as error:
        raise ShipError(str(error)) from error


def _follow(journals: Path, wanted: str | None) -> int:
    """Show how snapshots go on until they have ended: those whose key is WANTED, None: all that
    have not ended now. Return 0 if all are complete, but for tables that are gone."""
    follower = Follower(sys.stdout)
    met: set[tuple[str, str]] = set()
    while True:
        told, is_alone = told_by_shipper(journals), not shipper_present(journals)
        lines: dict[str, Told] = {}
        statuses = []
        missing = []
        for state in _states(journals):
            for snapshot in (*state.past, *state.waiting):
                key = state.database, snapshot.key
                is_wanted = snapshot.key == wanted or (wanted is None and not snapshot.ended_us)
                if is_wanted or key in met:
                    met.add(key)
                    statuses.append(snapshot.status if snapshot.ended_us else None)
                    missing += [(snapshot, what)] if (what := missing_in(snapshot)) else []
                    found = snapshot_of(state, snapshot, told)
                    lines[" ".join(key)] = _told(state.database, found, is_alone=is_alone)
        follower.show(lines)
        if wanted is None and not met:
            print("no snapshot waits or runs")
            return 0
        if met and None not in statuses:
            for snapshot, what in missing:
                print(printable(f"{snapshot.kind} {snapshot.id} was taken without {what}"))
            return 1 if missing or set(statuses) != {Status.COMPLETED} else 0
        time.sleep(_LOOK_S)


def _told(database: str, snapshot: dict[str, Any], *, is_alone: bool) -> Told:
    """Return the line of SNAPSHOT. IS_ALONE: no shipper runs."""
    done = snapshot["tables"] - snapshot["open_tables"]
    if extent := snapshot["extent"]:
        drawn = bar(snapshot["reached"], extent)
    else:  # tables of few pages only
        drawn = bar(done, snapshot["tables"])
    text = f"{drawn} {Path(database).name}: {brief(snapshot)}"
    why = ""
    if is_on(snapshot):
        why = "no shipper runs" if is_alone else snapshot["waits_for"]
    text += f"; waits: {why}" if why else ""
    return Told(text, (snapshot["status"], done, snapshot["left_out"], why))


def _status(arguments: argparse.Namespace) -> int:
    journals = _folder_of(arguments)
    if arguments.follow:
        return _follow(journals, None)
    states = _states(journals)
    if arguments.json:
        for state in states:
            print(state.to_json().decode())
        return 0
    if not states:
        print("no snapshot was asked for")
    told = told_by_shipper(journals)
    for state in states:
        print(printable(f"{state.database}{'  PAUSED' if state.is_paused else ''}"))
        for line in _lines(state, told):
            print(printable(f"    {line}"))
    return 0


def _lines(state: SnapshotState, told: Mapping[str, Any]) -> Iterator[str]:
    for snapshot in (*state.waiting, *reversed(state.past)):
        found = snapshot_of(state, snapshot, told)
        yield f"{snapshot.kind} {snapshot.id}: {brief(found)}, {_moment(snapshot)}"
        for why in (snapshot.why, found["waits_for"] and f"waits: {found['waits_for']}"):
            if why:
                yield f"    {why}"
        for table in snapshot.tables or ():
            left_out = f", {table.left_out} LEFT OUT" if table.left_out else ""
            why = f": {table.why}" if table.why else ""
            yield f"    {table.name}: {table.status}, {table.rows} rows{left_out}{why}"


def _moment(snapshot: Snapshot) -> str:
    when = snapshot.ended_us or snapshot.started_us or snapshot.requested_us
    word = "ended" if snapshot.ended_us else "began" if snapshot.started_us else "requested"
    return f"{word} {local_time(when)}"
