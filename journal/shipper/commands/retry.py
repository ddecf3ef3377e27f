"""``firebird-cdc journal retry``, ``journal quarantine`` and ``journal discard``.

What the shipper does of it is in ``journal.shipper.control``; the two speak through
``journal.shipper.requests``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from firebird_cdc.config.arguments import seconds
from firebird_cdc.config.locate import add_config_option
from firebird_cdc.errors import ShipError
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY, shipper_present
from firebird_cdc.journal.folder.notes import QUARANTINE
from firebird_cdc.journal.folder.open_journals import find_open
from firebird_cdc.journal.shipper.commands.look_up import find_shared
from firebird_cdc.journal.shipper.quarantine import (
    describe,
    in_order,
    journals_in,
    note_or_none,
    read_reason,
    refusal,
    remove_files,
)
from firebird_cdc.journal.shipper.repairs import RepairFolder
from firebird_cdc.journal.shipper.requests import await_answer, write_request
from firebird_cdc.output import printable, tell

_DEFAULT_WAIT_S = 60.0
_MOST_SHOWN = 20
"""Events of one journal that the listing names; ``--json`` has more."""


def register(actions: Any) -> None:
    """Add the commands to those of ``journal``."""
    retry = actions.add_parser(
        "retry",
        help="send again what could not be sent",
        description="Retries paused databases at once. For journals in the quarantine, sends"
        " the events that were left out of them, with a header that marks them as redelivered."
        " The shipper that runs does it, or else the next one that starts. Exit code 1:"
        " something was refused or is still not sent.",
    )
    add_config_option(retry)
    which = retry.add_mutually_exclusive_group()
    which.add_argument(
        "journals",
        nargs="*",
        default=[],
        type=_uuid,
        metavar="UUID|FILE",
        help="a transaction, or a journal's file, as <uuid>.log in the quarantine",
    )
    which.add_argument("--all", action="store_true", help="all journals in the quarantine")
    which.add_argument(
        "--sequence",
        type=int,
        metavar="N",
        help="the one in the quarantine that has this number in its database",
    )
    retry.add_argument(
        "--force",
        action="store_true",
        help="also where a newer event of the same key was shipped since",
    )
    retry.add_argument(
        "--wait",
        type=seconds,
        default=_DEFAULT_WAIT_S,
        metavar="SECONDS",
        help=f"how long to wait for the result (default {_DEFAULT_WAIT_S:.0f})",
    )
    retry.set_defaults(run=run_retry)
    listing = actions.add_parser(
        "quarantine",
        help="list the journals in the quarantine",
        description="Prints each journal in the quarantine: its database, which of its events"
        " were not sent, and why.",
    )
    add_config_option(listing)
    listing.add_argument("--json", action="store_true", help="print one JSON object a line")
    listing.set_defaults(run=run_list)
    discard = actions.add_parser(
        "discard",
        help="delete journals from the quarantine",
        description="Deletes journals from the quarantine, and with them the events that were not"
        " sent. Without --yes it only lists them.",
    )
    add_config_option(discard)
    discard.add_argument("journals", nargs="+", type=_uuid, metavar="UUID")
    discard.add_argument("--yes", action="store_true", help="delete them")
    discard.set_defaults(run=run_discard)


def _uuid(text: str) -> UUID:
    """Return the UUID that TEXT is, or that a file is called by."""
    try:
        return UUID(Path(text).name.removesuffix(".live").removesuffix(".log"))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no UUID, nor a file called by one, as <uuid>.log"
        ) from None


def _numbered(quarantine: Path, sequence: int) -> UUID:
    """Return the journal in QUARANTINE with number SEQUENCE. Raises ShipError."""
    found = [each for each in in_order(quarantine) if _sequence_of(quarantine, each) == sequence]
    if len(found) == 1:
        return found[0]
    if not found:
        raise ShipError(
            f"no journal in {quarantine} has the number {sequence}; firebird-cdc journal quarantine"
            " lists those that are there"
        )
    told = ", ".join(f"{each} of {describe(quarantine, each)['database']}" for each in found)
    raise ShipError(f"{len(found)} journals have the number {sequence}; name one of them: {told}")


def _sequence_of(quarantine: Path, uuid: UUID) -> int | None:
    note = note_or_none(quarantine, uuid)
    return None if note is None else note.sequence


def run_retry(arguments: argparse.Namespace) -> int:
    """Ask for a retry, and wait for what comes of it."""
    journals = _folder_of(arguments)
    quarantine = journals / STATE_DIRECTORY / QUARANTINE
    with as_our_error():
        if arguments.sequence is not None:
            arguments.journals = [_numbered(quarantine, arguments.sequence)]
        if not shipper_present(journals):
            return _leave_for_the_next(journals, quarantine, arguments)
        events = _events_left_out(quarantine)  # before the shipper forgets what it has sent
        request = write_request(journals, _request(arguments))
        answer = await_answer(request, arguments.wait)
    if answer is None:
        raise ShipError(
            f"no result within {arguments.wait:g} s. The shipper still carries out the request;"
            " its log tells when"
        )
    for name, (is_sent, text) in answer.items():
        print(printable(f"{name}: {text}"), flush=bool(is_sent))
        _print_events(events.get(name, []))
    if not answer:
        print("nothing to retry: no database is paused")
    if not arguments.journals and not arguments.all and (lying := journals_in(quarantine)):
        for uuid in lying:
            tell(f"{uuid}: {read_reason(quarantine, uuid)}")
            _print_events(events.get(str(uuid), []))
        print(f"{len(lying)} journals are in {quarantine}; --all sends what was left out of them")
    return 0 if all(is_sent for is_sent, _ in answer.values()) else 1


def _events_left_out(quarantine: Path) -> dict[str, list[tuple[int, str]]]:
    """Return by the UUID of a journal which of its events were left out: position, table and key,
    as far as its note names them."""
    notes = {uuid: note_or_none(quarantine, uuid) for uuid in journals_in(quarantine)}
    return {str(uuid): note.named() for uuid, note in notes.items() if note is not None}


def _print_events(events: Sequence[tuple[int, str]]) -> None:
    for pos, whose in events[:_MOST_SHOWN]:
        tell(f"    event {pos}: {whose}")
    if len(events) > _MOST_SHOWN:
        print(f"    and {len(events) - _MOST_SHOWN} more")


@contextlib.contextmanager
def as_our_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ShipError(f"{error}; run this as the database server's user, or as root") from error


def _leave_for_the_next(journals: Path, quarantine: Path, arguments: argparse.Namespace) -> int:
    """No shipper runs: refuse what can be refused, leave the rest for the next one."""
    refused: list[tuple[UUID, str]] = []
    wanted = in_order(quarantine) if arguments.all else arguments.journals
    accepted: list[UUID] = []
    for uuid in wanted:
        why = None
        if arguments.all or not _waits(journals, uuid):
            note = note_or_none(quarantine, uuid)
            why = refusal(note, uuid, quarantine, is_forced=arguments.force)
        if why is None:
            accepted.append(uuid)
        else:
            refused.append((uuid, why))
    events = _events_left_out(quarantine)
    for uuid, why in refused:
        tell(f"{uuid}: refused: {why}")
        _print_events(events.get(str(uuid), []))
    if accepted:
        arguments.journals, arguments.all = accepted, False
        write_request(journals, _request(arguments))
    if accepted or not wanted:
        for uuid in accepted:
            print(f"{uuid}: requested")
            _print_events(events.get(str(uuid), []))
        print(f"no shipper runs on {journals}; the next one that starts carries out the request")
    return 1 if refused else 0


def _waits(journals: Path, uuid: UUID) -> bool:
    """Tell whether a journal is still to be shipped, or a transaction in one."""
    if (journals / f"{uuid}.log").exists():
        return True
    return bool(find_shared([journals], str(uuid)) or find_open(journals, str(uuid)))


def _request(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "journals": [str(uuid) for uuid in arguments.journals],
        "all": arguments.all,
        "force": arguments.force,
    }


def run_list(arguments: argparse.Namespace) -> int:
    """Print what lies in the quarantine."""
    quarantine = _quarantine_of(arguments)
    with as_our_error():
        uuids = in_order(quarantine)
    for uuid in uuids:
        described = describe(quarantine, uuid)
        if arguments.json:
            print(json.dumps(described, ensure_ascii=False))
            continue
        number = "?" if described["sequence"] is None else described["sequence"]
        tell(f"{uuid}  journal {number} of {described['database'] or 'an unknown database'}")
        if described["set_aside_at"]:
            print(f"    quarantined {described['set_aside_at']}")
        tell(f"    {described['reason']}")
        if len(described["events"]) > 1:  # one stands in the reason
            _print_events(described["events"])
        print(f"    retry: {described['refusal'] or 'possible'}")
    if not arguments.json:
        print(f"{len(uuids)} journals in {quarantine}")
    with as_our_error():
        repairs = list(RepairFolder(quarantine.parent.parent).waiting())
    for repair in repairs:
        name, database = str(repair.uuid), repair.database
        if arguments.json:
            content = {"repair": name, "database": database, "events": len(repair.events)}
            print(json.dumps(content, ensure_ascii=False))
        else:
            tell(f"repair {name} of {database}: {repair.wait}")
    return 0


def run_discard(arguments: argparse.Namespace) -> int:
    """Delete journals from the quarantine."""
    quarantine = _quarantine_of(arguments)
    with as_our_error():
        here = set(journals_in(quarantine))
    wanted: Sequence[UUID] = arguments.journals
    if unknown := [uuid for uuid in wanted if uuid not in here]:
        raise ShipError(f"not in {quarantine}: {', '.join(map(str, unknown))}; nothing is deleted")
    for uuid in wanted:
        reason = read_reason(quarantine, uuid)
        if arguments.yes:
            with as_our_error():
                remove_files(quarantine, uuid)
        tell(f"{uuid}: {'deleted' if arguments.yes else 'not deleted'}: {reason}")
    if not arguments.yes:
        raise ShipError("what was not sent of these journals would be lost; --yes deletes them")
    return 0


def _quarantine_of(arguments: argparse.Namespace) -> Path:
    return _folder_of(arguments) / STATE_DIRECTORY / QUARANTINE


def _folder_of(arguments: argparse.Namespace) -> Path:
    from firebird_cdc.packaging.server.locating import locate_journals

    return locate_journals(arguments.config)
