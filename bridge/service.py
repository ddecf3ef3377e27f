"""Ties the bridge's parts together: one per server process.

Threads, all of them daemons that the server neither sees nor waits for:

    fbc-pool       makes journals beforehand              (pool)
    fbc-events     takes what the plugin hands over       (here)
    fbc-confirm    one per database: verdict, stamp, name (confirmer)
    fbc-shipper    keeps an embedded shipper running      (shipper)

Guarantees: no thread of the server ever waits for one of these but an attachment that leaves,
for a bounded time. Assumes: nothing here is called on a thread that holds an engine lock.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import logbook

from firebird_cdc.bridge.confirmer import Confirmer
from firebird_cdc.bridge.folder import JournalFolder
from firebird_cdc.bridge.host import CommittedJournal, Host
from firebird_cdc.bridge.pool import PoolFiller
from firebird_cdc.bridge.shipper import ShipperSupervisor
from firebird_cdc.config import ConnectorConfig

_log = logbook.Logger("firebird_cdc.bridge")

_WAIT_MS = 1000
_GATHER_MS = 4


class Bridge:
    """The bridge of one server process. ``start`` may come again after a failure."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._folder: JournalFolder | None = None
        self._config: ConnectorConfig | None = None
        self._filler: PoolFiller | None = None
        self._events: threading.Thread | None = None
        self._supervisor: ShipperSupervisor | None = None
        self._confirmers: dict[int, Confirmer] = {}
        self._last_number = 0

    def start(self, config: ConnectorConfig, logging: Path | None) -> None:
        """Open the journal folder and put everything to work.

        Raises ConfigError or CaptureError with what the user has to mend; nothing is left half
        done then, and a later call tries again.
        """
        folder = self._folder
        if folder is None or folder.path != config.journal_directory or not folder.is_in_place():
            folder = JournalFolder(config.journal_directory)
            folder.forget_dead_owners()
        with self._lock:
            if folder is not self._folder:
                self._confirmers.clear()  # those at work finish in the folder they know
            self._folder = folder
            self._config = config
        self._host.configure(
            folder.journal_fd,
            folder.pool_fd,
            folder.owner,
            memoryview(folder.tickets),
            config.journal_fsync,
        )
        if self._filler is None:
            self._filler = PoolFiller(self._host, folder)
            self._filler.start()
        self._filler.use(folder)
        if self._events is None:
            self._events = threading.Thread(target=self._run, name="fbc-events", daemon=True)
            self._events.start()
        self._supervise(config, folder, logging)
        _log.info(
            "capturing into {} (process {}, {})", folder.path, os.getpid(), config.connector_name
        )

    def _supervise(
        self, config: ConnectorConfig, folder: JournalFolder, logging: Path | None
    ) -> None:
        from firebird_cdc.bridge.embedded import program_path

        if self._supervisor is not None:
            self._supervisor.retire()
            self._supervisor = None
        if config.shipper == "embedded":
            self._supervisor = ShipperSupervisor(
                self._host, folder, config.path, logging, program_path()
            )
            self._supervisor.start()

    # -- events ---------------------------------------------------------------------------------

    def _run(self) -> None:
        oldest: int | None = None
        while True:
            for event in self._host.take_events(_WAIT_MS if oldest is None else _GATHER_MS):
                self._last_number = event.number
                try:
                    self._dispatch(event.database, event)
                except Exception:
                    _log.exception("event {} can't be handled", event)
            oldest = self._oldest_undecided()
            self._host.settle(self._last_number if oldest is None else oldest - 1)
            if oldest is not None:
                # a busy server's commits are taken in groups: each wake-up costs it more than
                # the few milliseconds cost anybody
                time.sleep(_GATHER_MS / 1000)

    def _oldest_undecided(self) -> int | None:
        with self._lock:
            confirmers = list(self._confirmers.values())
        numbers = (confirmer.undecided() for confirmer in confirmers)
        return min((number for number in numbers if number is not None), default=None)

    def _dispatch(self, database: int, event: object) -> None:
        if isinstance(event, CommittedJournal):
            confirmer = self._confirmer(database)
            confirmer.announce(event)
            confirmer.submit(event)
        elif database:
            self._confirmer(database).submit(None)
        else:
            with self._lock:
                confirmers = list(self._confirmers.values())
            for confirmer in confirmers:
                confirmer.submit(None)

    def _confirmer(self, database: int) -> Confirmer:
        with self._lock:
            confirmer = self._confirmers.get(database)
            if confirmer is None:
                assert self._folder is not None
                assert self._config is not None
                identity = self._host.database(database)
                confirmer = Confirmer(
                    self._host, self._folder, identity, self._config.journal_fsync
                )
                self._confirmers[database] = confirmer
                confirmer.start()
            return confirmer
