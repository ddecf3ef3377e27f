"""Tells what uninstall leaves behind of a server, and which of that may go if all is to go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from firebird_cdc.config import load_config, locate_files
from firebird_cdc.config.logging import ROLES, load_logging
from firebird_cdc.errors import FirebirdCdcError
from firebird_cdc.journal.folder import failures
from firebird_cdc.journal.folder.counters import page_of
from firebird_cdc.journal.folder.locks import bridge_present, shipper_present
from firebird_cdc.packaging.server.conf import ConfFile
from firebird_cdc.packaging.server.sections import expanded_parameters

if TYPE_CHECKING:
    from firebird_cdc.packaging.server.layout import Server


@dataclass(slots=True)
class Leavings:
    """Folders and logs that may go, files that are needed by what stays, and why it does."""

    trees: list[Path] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)
    needed: set[Path] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def leavings(server: Server, *, are_open_ones_kept: bool = True) -> Leavings:
    """Look at what SERVER has written, as far as its configuration still tells where. Journal
    folders that a process has open may go, too, unless they are to be kept: not before that ends.
    """
    found = Leavings()
    try:
        parameters = {}
        if server.plugins_conf.exists():
            parameters = expanded_parameters(server, ConfFile.read(server.plugins_conf))
        files = locate_files(parameters, {}, server.root)
        if files.logging is not None and files.logging.exists():
            options = load_logging(files.logging)
            for file in map(options.file_of, ROLES):
                found.logs += sorted(file.parent.glob(f"{file.name}*"))
    except (FirebirdCdcError, OSError) as error:
        found.notes.append(
            f"{server.plugins_conf} or the logging options don't tell of logs: {error}"
        )
        return found
    if not files.config.exists():
        return found
    try:
        config = load_config(files.config)
    except (FirebirdCdcError, OSError) as error:
        found.needed.add(files.config)
        found.notes.append(f"journals stay: {files.config} doesn't tell where they are ({error})")
        return found
    folder, archive = config.journal_directory, config.journal_archive_directory
    if folder.is_dir():
        reasons = list(_reasons_to_stay(folder, is_open_kept=are_open_ones_kept))
        if reasons:
            found.needed.add(files.config)
            found.notes.append(
                f"{folder} stays: {'; '.join(reasons)}. Its options stay in {files.config}"
            )
        else:
            found.trees.append(folder)
    if archive is not None and archive.is_dir():
        if any(path.is_file() for path in archive.rglob("*")):
            found.notes.append(f"{archive} stays, the history for replays")
        else:
            found.trees.append(archive)
    return found


def _reasons_to_stay(folder: Path, *, is_open_kept: bool) -> Iterator[str]:
    """Yield what would be lost with a journal folder."""
    from firebird_cdc.journal.shipper.monitoring.folder import count_alone
    from firebird_cdc.journal.shipper.monitoring.report import they_wait, transactions

    if is_open_kept and (bridge_present(folder) or shipper_present(folder)):
        yield "a server or a shipper has it open, so stop them first"
        return
    try:
        figures = count_alone(folder)
    except OSError as error:
        yield f"it can't be read ({error})"
        return
    if figures.pending:
        yield f"{they_wait(figures.pending)} to be delivered"
    if figures.live:
        yield f"{transactions(figures.live)} are not decided"
    if figures.quarantined:
        yield f"{transactions(figures.quarantined)} are in the quarantine"
    with suppress(OSError):
        pages = [page_of(folder)]
        yield from map(str, failures.unacknowledged(pages))
        yield from failures.unreadable(pages)
