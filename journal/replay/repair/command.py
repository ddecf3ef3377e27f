"""``firebird-cdc replay repair``: publishes again what an audit found missing in Kafka.

What is to be sent, `plan` finds out; the shipper sends it
(``journal.shipper.delivery.repair``). The command speaks with it as ``journal retry`` does, by
files in the journal folder, so it works on the server's host only.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firebird_cdc.config.arguments import seconds
from firebird_cdc.config.locate import add_config_option
from firebird_cdc.errors import ReplayError, ShipError
from firebird_cdc.output import tell

if TYPE_CHECKING:
    from firebird_cdc.journal.replay.repair.plan import Plan
    from firebird_cdc.journal.replay.repair.scanner import Scanner
    from firebird_cdc.journal.shipper.repairs import RepairFolder, RepairPoint

_Ends = Mapping[str, Mapping[str, int]]

_DEFAULT_WAIT_S = 120.0
_ASK_S = 0.1
_ROUNDS = 5
"""Attempts at one repair that newer events make old."""


def register_repair(subparsers: Any) -> None:
    """Add ``repair`` to the subcommands of ``firebird-cdc replay``."""
    parser = subparsers.add_parser(
        "repair",
        help="publish again what an audit found missing in Kafka",
        description="Has the shipper publish again the events that replay audit found missing in"
        " Kafka, once. Where Kafka has newer events of a key, its current state is sent instead,"
        " and the output says so. Runs on the database server's host, as root or as the server's"
        " user. Exit code 1 if something could not be repaired.",
    )
    parser.add_argument(
        "--audit", required=True, metavar="DIR", help="what replay audit --output has written"
    )
    add_config_option(parser)
    parser.add_argument(
        "--journals",
        metavar="DIR",
        action="append",
        default=[],
        help="a further folder of journals, beside the live one, the quarantine and the archive",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be sent")
    parser.add_argument(
        "--wait",
        type=seconds,
        default=_DEFAULT_WAIT_S,
        metavar="SECONDS",
        help=f"how long to wait for each answer of the shipper (default {_DEFAULT_WAIT_S:.0f})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.set_defaults(run=run_repair)


def run_repair(arguments: argparse.Namespace) -> int:
    """Repair, and say what became of each journal's events."""
    from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
    from firebird_cdc.journal.folder.notes import QUARANTINE
    from firebird_cdc.journal.replay.repair.findings import read_ends, read_findings
    from firebird_cdc.journal.replay.repair.plan import Plan
    from firebird_cdc.journal.shipper.repairs import RepairFolder
    from firebird_cdc.packaging.server.locating import locate_options

    config = locate_options(arguments.config)
    directory = config.journal_directory
    state = directory / STATE_DIRECTORY
    archive = config.journal_archive_directory
    folders = [*arguments.journals, str(directory), str(state / QUARANTINE)]
    if archive is not None:
        folders.append(str(archive))  # the last one, as journals go there
    files = RepairFolder(directory)
    with Plan(config, folders, None if archive is None else str(archive)) as plan:
        missing = plan.add(read_findings(arguments.audit))
        ends = read_ends(arguments.audit)
        if not missing:
            print("the audit found nothing missing in Kafka")
            return 0
        try:
            if not state.is_dir():
                raise ReplayError(f"{directory} is no folder that journals were shipped from")
            if arguments.dry_run:
                _preview(plan, files, directory, ends)
            else:
                files.make()
                with _alone(files.folder):
                    files.tidy()
                    shipper = _Shipper(directory, arguments.wait)
                    _await_others(files, shipper, arguments.wait)
                    _repair(plan, files, directory, shipper, ends)
        except OSError as error:
            raise ReplayError(
                f"{error}; run this as the database server's user, or as root"
            ) from error
        return _tell(plan, directory, arguments)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Have no second command make repairs meanwhile. Raises ReplayError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ReplayError(
                f"another repair is under way in {folder}; wait for its end"
            ) from None
        yield
    finally:
        os.close(fd)


def _await_others(files: RepairFolder, shipper: _Shipper, seconds: float) -> None:
    """Let the shipper be done with what an earlier command has left."""
    end = time.monotonic() + seconds
    while files.pending() and shipper.is_there:
        if time.monotonic() >= end:
            raise ShipError(
                f"earlier repairs wait in {files.folder}, and the shipper has not sent them"
                f" within {seconds:g} s; its log tells why"
            )
        time.sleep(_ASK_S)


class _Shipper:
    """Asks the shipper of a journal folder; waits for an answer ``wait_s``."""

    def __init__(self, directory: Path, wait_s: float) -> None:
        self._directory = directory
        self._wait_s = wait_s

    @property
    def is_there(self) -> bool:
        """Tell whether a shipper runs."""
        from firebird_cdc.journal.folder.locks import shipper_present

        return shipper_present(self._directory)

    def request(self, **content: object) -> Path:
        """Leave a request."""
        from firebird_cdc.journal.shipper.requests import write_request

        return write_request(self._directory, {"repair": content})

    def ask(self, **content: object) -> dict[str, Any] | None:
        """Its answer; None if it ends before it gives one."""
        from firebird_cdc.journal.shipper.requests import take_answer

        path = self.request(**content)
        end = time.monotonic() + self._wait_s
        while (answer := take_answer(path)) is None:
            if not self.is_there:
                return None
            if time.monotonic() >= end:
                raise ShipError(
                    f"the shipper has not answered within {self._wait_s:g} s; what was asked for"
                    " is still done, and its log tells when. Run this again to see what became of"
                    " it: nothing is sent twice"
                )
            time.sleep(_ASK_S)
        return answer


def _remembered(directory: Path, database: str) -> RepairPoint | None:
    """The last place of DATABASE that was shipped, as the journal folder has it."""
    from firebird_cdc.journal.shipper.local_offsets import remembered
    from firebird_cdc.journal.shipper.repairs import RepairPoint

    for memory in remembered(directory):
        if memory.database == database and memory.number is not None:
            return RepairPoint(*memory.number)
    return None


def _take_known(plan: Plan, files: RepairFolder) -> None:
    from firebird_cdc.journal.replay.repair.plan_file import EARLIER, WAITING

    try:
        plan.set_earlier(files.sent(), EARLIER)
        waiting = (files.read(uuid) for uuid in files.pending())
        plan.set_earlier((repair for repair in waiting if repair is not None), WAITING)
    except ValueError as error:
        raise ReplayError(f"{files.folder} holds what can't be read: {error}") from error


def _prepared(
    plan: Plan, files: RepairFolder, directory: Path, ends: _Ends
) -> Iterator[tuple[str, Scanner]]:
    """Find out what is to be done; yields the databases where something is."""
    _take_known(plan, files)
    for database in plan.databases:
        shipped = _remembered(directory, database)
        plan.locate(database, shipped, ends)
        if plan.open_events(database):
            scanner = plan.scanner(database)
            scanner.read(shipped)
            plan.decide(database, scanner)  # what takes long comes before others wait for it
            yield database, scanner


def _preview(plan: Plan, files: RepairFolder, directory: Path, ends: _Ends) -> None:
    for database, _ in _prepared(plan, files, directory, ends):
        plan.mark_all(database)


def _repair(
    plan: Plan, files: RepairFolder, directory: Path, shipper: _Shipper, ends: _Ends
) -> None:
    for database, scanner in _prepared(plan, files, directory, ends):
        in_vain = 0
        while plan.open_events(database) and in_vain < _ROUNDS:
            is_of_use = _send_next(plan, files, shipper, scanner, database, directory)
            in_vain = 0 if is_of_use else in_vain + 1
        plan.fail(
            "database = ?",
            "it could not be sent: newer events came, or the shipper ended, each time; repeat this",
            database,
        )


def _send_next(
    plan: Plan,
    files: RepairFolder,
    shipper: _Shipper,
    scanner: Scanner,
    database: str,
    directory: Path,
) -> bool:
    """Make the next repair and have it sent; whether that was of use."""
    from firebird_cdc.journal.replay.repair.plan_file import WAITING
    from firebird_cdc.journal.shipper.repairs import RepairPoint

    is_there = shipper.is_there
    if is_there:
        held = shipper.ask(action="hold", database=database)
        if held is None:
            return False
        if "refused" in held:
            raise ShipError(f"{database} can't be repaired now: {held['refused']}")
        token = None if held["place"] is None else RepairPoint(*held["place"])
    else:
        token = _remembered(directory, database)
    scanner.read(token)
    plan.decide(database, scanner)
    batch = plan.next_batch(database, token, scanner, files)
    if batch is None:
        if is_there:
            shipper.ask(action="release", database=database)
        return False
    files.publish(batch.repair)
    name = str(batch.repair.uuid)
    if not is_there:
        shipper.request(action="send", database=database, repair=name)
        plan.sent(batch, status=WAITING)
        return True
    outcome = shipper.ask(action="send", database=database, repair=name)
    if outcome is None:  # the next one sends it, if it was not sent yet
        plan.sent(batch, status=WAITING)
        return True
    problems = {int(number): why for number, why in outcome["problems"].items()}
    if outcome["is_sent"]:
        plan.sent(batch)
    else:
        plan.take_outcome(batch, set(outcome["taken"]), problems)
        if not problems and not outcome["is_stale"]:
            plan.fail("database = ?", outcome["text"], database)
    return bool(outcome["is_sent"] or problems)


_SAID = {
    "original": "sent again",
    "state": "not sent again, as newer events of their keys are in Kafka: the current state of"
    " these keys was sent",
    "earlier": "sent by an earlier repair",
    "present": "in Kafka by now",
    "waiting": "waiting for the next shipper",
    "unshipped": "not sent: {why}",
    "failed": "NOT repaired: {why}",
    "open": "NOT repaired",
}
_WOULD = _SAID | {
    "original": "would be sent again",
    "state": "would not be sent again, as newer events of their keys are in Kafka: the current"
    " state of these keys would be",
}


def _tell(plan: Plan, directory: Path, arguments: argparse.Namespace) -> int:
    """Print what became of everything; the exit code."""
    words = _WOULD if arguments.dry_run else _SAID
    for database, epoch, sequence, status, why, count in plan.results():
        if arguments.json:
            line = {
                "database": database,
                "epoch": epoch,
                "sequence": sequence,
                "status": status,
                "why": why,
                "events": count,
            }
            print(json.dumps(line, ensure_ascii=False))
            continue
        number = "?" if sequence is None else sequence
        era = f" (epoch {epoch})" if epoch else ""
        events = "1 event" if count == 1 else f"{count} events"
        tell(f"{database} journal {number}{era}: {events} {words[status].format(why=why)}")
    for note in plan.notes if not arguments.json else ():
        tell(f"note: {note}")
    counts = plan.counts()
    failed = counts.get("failed", 0) + counts.get("open", 0)
    if not arguments.json:
        done = ", ".join(f"{counts[status]} {status}" for status in _SAID if counts.get(status))
        print(f"{sum(counts.values())} missing events: {done}")
        if counts.get("waiting"):
            print(
                f"no shipper runs on {directory}; the next one that starts carries out the request"
            )
    return 1 if failed else 0
