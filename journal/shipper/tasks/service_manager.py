"""Tells a service manager that started the shipper, as systemd, that it works: sd_notify(3)."""

from __future__ import annotations

import os
import socket

import logbook

_log = logbook.Logger("firebird_cdc.journal.shipper.tasks.service_manager")

_SOCKET, _WATCHDOG, _WATCHED = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"


class ServiceNotices:
    """Says READY once journals are shipped, and then a sign of life twice in the time that the
    manager grants (WatchdogSec), as sd_watchdog_enabled(3) advises.

    A periodic task of the shipping thread, so that a shipper which hangs is started anew. Does
    nothing without a manager that wants to hear of it.
    """

    def __init__(self) -> None:
        self._address = os.environ.get(_SOCKET, "")
        is_watched = os.environ.get(_WATCHED, str(os.getpid())) == str(os.getpid())
        granted = os.environ.get(_WATCHDOG, "") if is_watched else ""
        self._pause_s = int(granted) / 2e6 if granted.isdecimal() and int(granted) else float("inf")
        self._is_ready = False

    def turn(self, now: float) -> float:
        """Tell the manager; return when to do it again."""
        if not self._address:
            return float("inf")
        self._tell("WATCHDOG=1" if self._is_ready else "READY=1\nWATCHDOG=1")
        self._is_ready = True
        return now + self._pause_s

    def close(self) -> None:
        """Tell that the shipper ends in order, which may take as long as Kafka does."""
        if self._address:
            self._tell("STOPPING=1")

    def _tell(self, state: str) -> None:
        # An address with @ is one of Linux's abstract ones.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
            line.setblocking(False)
            try:
                line.sendto(state.encode(), address)
            except OSError as error:
                _log.warning("the service manager can't be told {!r}: {}", state, error)
