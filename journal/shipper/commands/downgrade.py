"""The command ``journal downgrade``: have version 0.1 work in a journal folder again."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firebird_cdc.config.locate import add_config_option

if TYPE_CHECKING:
    from firebird_cdc.journal.folder.journal_folder import JournalFolder


def register(actions: Any) -> None:
    """Add the command to those of ``journal``."""
    parser = actions.add_parser(
        "downgrade",
        help="prepare the journal folder for version 0.1 of firebird-cdc",
        description="Version 0.1 can't read journals of this version, and does not work in a folder"
        " in which this version has worked. This makes it one for version 0.1 again, if no journal"
        " waits there; else it names them and changes nothing. Neither a server that captures nor a"
        " shipper may run. Numbers go on where they are.",
    )
    add_config_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Change the folder; 0. Raises ShipError if journals wait or somebody works there."""
    from firebird_cdc.bridge.recovery import Recovery
    from firebird_cdc.config import load_capture
    from firebird_cdc.errors import ShipError
    from firebird_cdc.journal.folder.journal_folder import JournalFolder
    from firebird_cdc.journal.folder.locks import ShipperLock
    from firebird_cdc.journal.folder.page_file import let_former_version_in
    from firebird_cdc.packaging.server.locating import locate_config, readable_folder

    config = load_capture(locate_config(arguments.config))
    directory = readable_folder(config.journal_directory)
    with ShipperLock(directory), closing(JournalFolder(directory, writes=False)) as folder:
        if living := folder.owners.living():
            raise ShipError(
                f"a server captures into {directory} ({', '.join(map(str, living))}): end it, then"
                " run this again"
            )
        Recovery(directory, config.journal_fsync).look()
        if waiting := list(_waiting(directory)):
            names = ", ".join(path.name for path in waiting[:3]) + (", …" if waiting[3:] else "")
            count = "1 journal" if len(waiting) == 1 else f"{len(waiting)} journals"
            raise ShipError(
                f"{count} in {directory} may be readable by this version alone"
                f" ({names}): have them shipped (firebird-cdc ship --once), send those in the"
                " quarantine (firebird-cdc journal retry) or remove them, then run this again"
            )
        try:
            _forget_shared_journals(folder, config.journal_fsync)
            let_former_version_in(folder.state)
        except OSError as error:
            raise ShipError(f"{error}; run this as the user of the database server") from error
    print(f"{directory} can be used by version 0.1 again; start no server of this version on it")
    return 0


def _waiting(directory: Path) -> Iterator[Path]:
    """Yield the journals in the folder, and those in its quarantine that several transactions
    share or could: version 0.1 would take them for damaged."""
    from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
    from firebird_cdc.journal.folder.notes import QUARANTINE
    from firebird_cdc.journal.format.layout import FILE_BLOCK
    from firebird_cdc.journal.format.shared import is_shared

    yield from sorted(directory.glob("*.log*"))
    for path in sorted((directory / STATE_DIRECTORY / QUARANTINE).glob("*.log")):
        with path.open("rb") as file:
            if is_shared(file.read(FILE_BLOCK)):
                yield path


def _forget_shared_journals(folder: JournalFolder, fsync: bool) -> None:
    """Begin ledgers that name no shared journal. Raises OSError."""
    from firebird_cdc.journal.folder.ledger import SequenceLedger
    from firebird_cdc.native._journal_files import sync_file_system

    for path in folder.databases.glob("*.ledger"):
        ledger = SequenceLedger(
            folder, path.stem, fsync, lambda: sync_file_system(folder.journal_fd)
        )
        with closing(ledger), ledger.exclusive():
            if not ledger.is_new:
                ledger.begin_anew()
