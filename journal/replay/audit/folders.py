"""Folders that an audit reads, and what the configuration says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from firebird_cdc.errors import UsageError
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.folder.notes import QUARANTINE
from firebird_cdc.journal.replay.audit.folder_facts import FolderFacts, read_facts

if TYPE_CHECKING:
    from firebird_cdc.config import ConnectorConfig


@dataclass(frozen=True)
class AuditFolders:
    """``read``: all folders, in an order in which a journal that moves while they are listed is
    found in a later one. ``live``: the journal folder among them, which tells of the last numbers;
    ``quarantine``: those among them with journals that were quarantined; ``archive``: the one from
    which retention removes what is older than ``retention_ms`` or beyond ``retention_bytes``
    (0: nothing). ``absent``: archives that are not there, into which journals may have gone all the
    same. ``notes``: sentences on what is not there.
    """

    read: tuple[str, ...]
    live: str | None = None
    quarantine: tuple[str, ...] = ()
    archive: str | None = None
    retention_ms: int = 0
    retention_bytes: int = 0
    absent: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def retains(self) -> bool:
        """Tell whether old journals are removed from the archive."""
        return bool(self.retention_ms or self.retention_bytes)

    def facts(self) -> FolderFacts | None:
        """Read what the journal folder knows; call it before journals are listed."""
        if self.live is None:
            return None
        others = [place for place in (*self.read, *self.absent) if place != self.live]
        return read_facts(Path(self.live), others)


def folders_for(journals: Sequence[str] | None, config: ConnectorConfig | None) -> AuditFolders:
    """Return the folders JOURNALS or, where none is named, those of CONFIG: the journal folder, the
    quarantine in it, and the archive. Raises UsageError if there is neither."""
    if journals:
        return _given(journals, config)
    if config is None:
        raise UsageError(
            "no folder of journals is named: give --journals DIR, or --config FILE whose"
            " connector.journal.directory and connector.journal.archive.directory are read"
        )
    live, archive = config.journal_directory, config.journal_archive_directory
    quarantine, notes = _quarantine_of(live), []
    absent: tuple[str, ...] = ()
    if archive is None:
        notes.append(
            "no archive is kept (connector.journal.archive.directory is not set): shipped journals"
            " are gone, and only those that wait or are in the quarantine can be audited"
        )
    elif not archive.is_dir():
        notes.append(
            f"the archive {archive} is not there: nothing was put into it yet, or it is not mounted"
        )
        absent, archive = (str(archive.absolute()),), None
    kept = None if archive is None else str(archive.absolute())
    return AuditFolders(
        read=(str(live.absolute()), *quarantine, *([] if kept is None else [kept])),
        live=str(live.absolute()),
        quarantine=quarantine,
        archive=kept,
        retention_ms=config.journal_archive_retention_ms,
        retention_bytes=config.journal_archive_retention_bytes,
        absent=absent,
        notes=tuple(notes),
    )


def _given(journals: Sequence[str], config: ConnectorConfig | None) -> AuditFolders:
    """The folders that were named. One that is a journal folder brings its quarantine along."""
    live = next((place for place in journals if _state_of(place).is_dir()), None)
    quarantine = () if live is None else _quarantine_of(Path(live))
    archive = None
    if config is not None and config.journal_archive_directory is not None:
        known = config.journal_archive_directory.resolve()
        archive = next((place for place in journals if Path(place).resolve() == known), None)
    first = () if live is None else (live, *(q for q in quarantine if q not in journals))
    return AuditFolders(
        read=(*first, *(place for place in journals if place != live)),
        live=live,
        quarantine=quarantine,
        archive=archive,
        retention_ms=0 if config is None else config.journal_archive_retention_ms,
        retention_bytes=0 if config is None else config.journal_archive_retention_bytes,
    )


def _state_of(folder: str) -> Path:
    return Path(folder) / STATE_DIRECTORY


def _quarantine_of(live: Path) -> tuple[str, ...]:
    folder = live.absolute() / STATE_DIRECTORY / QUARANTINE
    return (str(folder),) if folder.is_dir() else ()


def describe_configuration(config: ConnectorConfig) -> dict[str, object]:
    """Return what of CONFIG decides what is rightly gone or changed: names and patterns, no
    secret."""

    def patterns(found: object) -> list[str]:
        return [str(getattr(each, "pattern", each)) for each in found]  # type: ignore[attr-defined]

    archive = config.journal_archive_directory
    return {
        "file": str(config.path),
        "connector.name": config.connector_name,
        "connector.journal.directory": str(config.journal_directory),
        "connector.journal.archive.directory": None if archive is None else str(archive),
        "connector.journal.archive.retention.ms": config.journal_archive_retention_ms,
        "connector.journal.archive.retention.bytes": config.journal_archive_retention_bytes,
        "table.include.list": patterns(config.table_include_list),
        "table.exclude.list": patterns(config.table_exclude_list),
        "column.include.list": patterns(config.column_include_list),
        "column.exclude.list": patterns(config.column_exclude_list),
        "skipped.operations": sorted(config.skipped_operations),
        "masked columns": len(config.column_mask)
        + len(config.column_mask_hash)
        + len(config.column_truncate),
        "transforms": [each.name for each in config.transforms],
    }
