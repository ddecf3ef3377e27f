"""Ties the bridge's parts together: one per server process.

Threads, all of them daemons that the server neither sees nor waits for:

    fbc-confirm    state, stamp and name of what the plugin handed over  (confirmer)
    fbc-definitions  asks for what records don't show of their tables     (definitions)
    fbc-shipper    keeps an embedded shipper running                       (shipper)
    fbc-join       lets new processes join this one, under Classic        (joining)
    fbc-reading    lets readers of snapshots connect, fbc-read serves one  (reading)
    fbc-disk       measures what journals take, and warns                  (disk)

Guarantees: no thread of the server ever waits for one of these but an attachment that leaves,
for a bounded time. Assumes: nothing here is called on a thread that holds an engine lock.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import logbook

from firebird_cdc import access
from firebird_cdc.bridge.confirm.loop import Confirmer
from firebird_cdc.bridge.definitions import DefinitionFinder
from firebird_cdc.bridge.disk import DiskMeter
from firebird_cdc.bridge.host import Host
from firebird_cdc.bridge.joining import Joining
from firebird_cdc.bridge.reading import ReadingServer
from firebird_cdc.bridge.shipper import ShipperSupervisor
from firebird_cdc.config import CaptureConfig, Reading
from firebird_cdc.errors import CaptureError
from firebird_cdc.journal.folder import processes
from firebird_cdc.journal.folder.disk_usage import DiskLimits
from firebird_cdc.journal.folder.join_file import JoinFile, Terms
from firebird_cdc.journal.folder.journal_folder import JournalFolder

_log = logbook.Logger("firebird_cdc.bridge")

_PROBE_BYTES = 4096


def _probe(folder: JournalFolder) -> None:
    """Show that the folder can be written and synced: a new start is what ends a refusal.

    Raises CaptureError.
    """
    path = folder.state / f"probe-{folder.owner}"
    try:
        fd = access.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            os.write(fd, bytes(_PROBE_BYTES))
            os.fsync(fd)
        finally:
            os.close(fd)
            path.unlink()
    except OSError as error:
        raise CaptureError(
            f"connector.journal.directory {folder.path} can't be written: {error.strerror} ({path})"
        ) from error


def _terms(config: CaptureConfig) -> Terms:
    return Terms(
        config.reading,
        is_synced=config.journal_fsync,
        is_gap_mode=config.capture_failure_mode == "gap",
        transactions=config.journal_transactions,
        memory_bytes=config.journal_memory_bytes,
        most_bytes=config.journal_max_bytes,
    )


class Bridge:
    """The bridge of one server process. ``start`` may come again after a failure."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._folder: JournalFolder | None = None
        self._finder: DefinitionFinder | None = None
        self._confirmer: Confirmer | None = None
        self._ended_confirmer: Confirmer | None = None  # whose thread ended last
        self._supervisor: ShipperSupervisor | None = None
        self._meter: DiskMeter | None = None
        self._adopted: JournalFolder | None = None  # in which the plugin worked alone so far
        self._joining = Joining()
        self._reading = ReadingServer(host)
        self._told: Path | None = None  # the file that says which options we have

    def _confirmer_ended(self) -> None:
        """Have the next transaction start us anew, with another one."""
        self._confirmer, self._ended_confirmer = None, self._confirmer
        self._host.fail("the bridge's thread that confirms journals ended, see the connector's log")

    def _databases(self) -> Path:
        assert self._folder is not None
        return self._folder.databases

    def _tell_reading(self, folder: JournalFolder, reading: Reading) -> None:
        """Let other processes know what this one has read. Nobody's commit hangs on that."""
        try:
            if self._told is not None:
                self._told.unlink(missing_ok=True)
            self._told = processes.tell_server(folder.state, folder.owner, reading)
        except OSError as error:
            _log.warning(
                "{}: can't record there which options this process has: {}", folder.path, error
            )

    def _adopt(self, directory: Path) -> None:
        """Take over what the plugin has joined, if it has. Raises CaptureError."""
        joined = self._host.joined()
        if joined is None:
            return
        with contextlib.suppress(OSError):
            if os.path.samestat(directory.stat(), os.fstat(joined.journal_fd)):
                joined = joined._replace(path=directory)  # perhaps spelt otherwise
        self._folder = self._adopted = JournalFolder(joined.path, joined=joined)

    def start(self, config: CaptureConfig, logging: Path | None) -> None:
        """Open the journal folder and put everything to work.

        What is wrong with the options of the rest (``config.problems``) changes nothing here: the
        shipper that is started ends with it, and its supervisor waits for another file.
        Raises ConfigError or CaptureError with what the user has to mend; nothing is left half
        done then, and a later call tries again.
        """
        if self._folder is None:
            self._adopt(config.journal_directory)
        folder = self._folder
        if folder is not None and self._confirmer is None:
            folder.let_tickets_go(self._host.count_prepared)  # there is no thread that would
        if (
            folder is None
            or folder.path != config.journal_directory
            or folder.has_left
            or not folder.is_in_place()
        ):
            folder = self._folder = JournalFolder(config.journal_directory)
        _probe(folder)
        self._host.configure(
            folder,
            config.journal_fsync,
            config.capture_failure_mode == "gap",
            config.journal_transactions,
            config.journal_memory_bytes,
        )
        if self._meter is None:
            self._meter = DiskMeter(self._host)
        self._meter.use(folder, DiskLimits.of(config))
        if self._finder is None:
            self._finder = DefinitionFinder(self._host, self._databases)
            self._finder.start()
        if self._confirmer is None:
            self._confirmer = Confirmer(self._host, self._adopted or folder, config.journal_fsync)
            self._confirmer.use(folder, config.journal_fsync)
            self._adopted = None
            if self._ended_confirmer is not None:
                self._confirmer.take_over(self._ended_confirmer)
            self._confirmer.start(self._confirmer_ended)
        else:
            self._confirmer.use(folder, config.journal_fsync)
        if self._supervisor is not None:
            self._supervisor.retire()
            self._supervisor = None
        self._tell_reading(folder, config.reading)
        if self._host.plugin.inode:
            self._joining.use(JoinFile(folder, self._host.plugin, _terms(config)))
        if config.snapshot_by_server and self._host.is_super:
            self._reading.use(folder.state, str(folder.owner))
        else:
            self._reading.end()
        self._supervisor = ShipperSupervisor(
            self._host, folder, config.reading, logging, starts=config.shipper == "embedded"
        )
        self._supervisor.start()
        _log.info(
            "capturing into {folder} (process {number}, {connector})",
            folder=folder.path,
            number=os.getpid(),
            connector=config.connector_name,
        )
