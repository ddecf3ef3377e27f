"""Keeps what is seen of a shipper up to date: the status file, the history, the listener.

A thread of its own does it, as the disk and the network may make it wait. Nothing it does or fails
to do changes what the shipper does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

import logbook
import orjson

from firebird_cdc.clock import now_us
from firebird_cdc.config import ConnectorConfig
from firebird_cdc.journal.folder.durable import replace_file
from firebird_cdc.journal.folder.processes import status_path
from firebird_cdc.journal.shipper.monitoring.folder import FolderFigures, Waiting
from firebird_cdc.journal.shipper.monitoring.history import SAMPLE_S, History
from firebird_cdc.journal.shipper.monitoring.report import Reporter
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.shared_offsets import Number

if TYPE_CHECKING:
    from firebird_cdc.journal.shipper.monitoring.web import Listener

_log = logbook.Logger("firebird_cdc.journal.shipper.monitoring.observer")


METRICS = "metrics"
"""Subject of the trouble that the listener can't be opened."""

_TURN_S = 1.0
_REWRITE_S = 10.0
_OPEN_AGAIN_S = 10.0
_CHANGES_BY_ITSELF = ("written_us", "loop_age_s", "kafka")


class Observer:
    """Shows one shipper, from ``start`` to ``stop``.

    ``waiting``: asked, from this thread, for the transactions of each database that the shipper
    knows. ``sorted_to``: asked up to which number those of a journal are among them.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        statistics: Statistics,
        waiting: Callable[[], Mapping[str, Waiting]],
        sorted_to: Callable[[str], Number],
    ) -> None:
        self._config = config
        self._statistics = statistics
        statistics.backlog = FolderFigures(config.journal_directory, waiting, sorted_to)
        self._reporter = Reporter(config, statistics)
        self._history = History()
        self._path = status_path(config.journal_directory)
        self._listener: Listener | None = None
        self._open_at = 0.0
        self._written: dict[str, Any] = {}
        self._written_at = 0.0
        self._failure = ""
        self._ended = Event()
        self._thread = Thread(target=self._run, name="observer", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Say that the shipper has ended, and end."""
        self._ended.set()
        self._thread.join(5)

    def _run(self) -> None:
        sample_at = 0.0
        while not self._ended.is_set():
            try:
                report = self._reporter.report()
                if monotonic() >= sample_at:
                    sample_at = monotonic() + SAMPLE_S
                    self._history.add(report)
                self._write(report)
                self._listen()
                self._failure = ""
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                if what != self._failure:
                    _log.exception("the status of the shipper can't be updated")
                self._failure = what
            self._ended.wait(_TURN_S)
        with contextlib.suppress(OSError):
            self._replace(self._reporter.report() | {"running": False, "ended_us": now_us()})
        if self._listener is not None:
            self._listener.close()

    # The status file

    def _write(self, report: dict[str, Any]) -> None:
        now = monotonic()
        told = {key: value for key, value in report.items() if key not in _CHANGES_BY_ITSELF}
        told["kafka"] = report["kafka"]["reached"]
        if told == self._written and now - self._written_at < _REWRITE_S:
            return
        # A folder that went away is told of by the shipper itself.
        with contextlib.suppress(OSError):
            self._replace(report)
            self._written, self._written_at = told, now

    def _replace(self, report: Mapping[str, Any]) -> None:
        content = orjson.dumps(report, option=orjson.OPT_INDENT_2)
        replace_file(self._path, content, is_synced=False)

    # The listener

    def _listen(self) -> None:
        config = self._config
        if not config.metrics_port or monotonic() < self._open_at:
            return
        if self._listener is not None and self._listener.is_open:
            return
        self._open_at = monotonic() + _OPEN_AGAIN_S
        # Only now: who has no use for a listener need not carry its libraries in memory.
        from firebird_cdc.journal.shipper.monitoring import web

        host, port = config.metrics_host, config.metrics_port
        application = web.Application(self._reporter, self._history, web.is_loopback(host))
        try:
            self._listener = web.Listener(application, host, port)
        except OSError as error:
            text = (
                f"metrics.port {port} on {host} can't be opened: {error.strerror or error}; choose"
                " another metrics.port (or metrics.host) if another program has it"
            )
            if METRICS not in self._statistics.troubles:
                _log.warning("{}. Shipping goes on, and it is tried again", text)
            self._statistics.trouble(METRICS, "warning", text)
            return
        self._statistics.clear(METRICS)
        shown = f"[{host}]" if ":" in host else host
        _log.info("metrics and the status page are at http://{}:{}/", shown, self._listener.port)
