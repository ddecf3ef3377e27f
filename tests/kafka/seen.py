"""Information from a running shipper: in its report, in metrics, by ``status``."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from shipping import DATABASE, PATIENCE_S, Folder, Ship, Shipper

from firebird_cdc.cli import main
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.demo.service import free_port


class Seen:
    """Information from a running shipper."""

    def __init__(self, folder: Folder, port: int) -> None:
        self.folder = folder
        self.port = port

    @property
    def report(self) -> dict[str, Any]:
        """Its report, {} before the first one."""
        path = self.folder.directory / ".firebird-cdc" / "status.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def row(self, database: str = DATABASE) -> dict[str, Any]:
        """Return the entry of DATABASE in the report, {} if there is none."""
        rows = self.report.get("databases", ())
        return next((each for each in rows if each["path"] == database), {})

    @property
    def troubles(self) -> str:
        """The troubles in the report, empty before the first one."""
        return str(self.report.get("troubles", ""))

    @property
    def events(self) -> int:
        """Number of events that are in Kafka according to the report."""
        return int(self.report.get("totals", {}).get("events", 0))

    def metric(self, name: str, database: str = DATABASE) -> float:
        """The one sample of metric NAME of DATABASE."""
        text = self._metrics()
        found = re.findall(
            rf'^firebird_cdc_{name}{{[^}}]*database="{database}"[^}}]*}} (\S+)$', text, re.MULTILINE
        )
        return sum(map(float, found))

    def await_metric(
        self,
        shipper: Shipper,
        name: str,
        is_right: Callable[[float], bool],
        database: str = DATABASE,
    ) -> None:
        """Wait until metric NAME is right: an answer may be a second older than the report."""
        shipper.await_that(lambda: is_right(self.metric(name, database)), f"metric {name}")

    def alarm(self, kind: str) -> float:
        """Return the number of troubles of KIND in the metrics, as the sample of alarms asks for
        them."""
        text = self._metrics()
        found = re.findall(
            rf'^firebird_cdc_troubles{{[^}}]*kind="{kind}"[^}}]*}} (\S+)$', text, re.M
        )
        return sum(map(float, found))

    def unready(self) -> str:
        """Return the reason why ``/ready`` says that nothing can be shipped, empty if it
        doesn't."""
        try:
            self._ask("/ready")
        except urllib.error.HTTPError as error:
            assert error.code == 503
            return str(error.read().decode())
        return ""

    def _metrics(self) -> str:
        return self._ask("/metrics")

    def _ask(self, path: str) -> str:
        """Return the answer, once there is one: the listener is opened after the first report."""

        def answered() -> list[str]:
            try:
                return [ask(f"http://127.0.0.1:{self.port}{path}")]
            except ConnectionRefusedError:
                return []

        return await_condition("the listener", answered, PATIENCE_S)[0]

    def ask_status(self) -> tuple[int, str]:
        """Run ``firebird-cdc status``; return its exit code and what it prints."""
        with redirect_stdout(StringIO()) as said:
            code = main(["status", "--directory", str(self.folder.directory)])
        return code, said.getvalue()

    def status(self) -> str:
        """Return the output of ``firebird-cdc status``."""
        return self.ask_status()[1]


def unanswered(folder: Folder) -> int:
    """Return the number of messages that wait for Kafka's answer, according to the report."""
    path = folder.directory / ".firebird-cdc" / "status.json"
    return int(json.loads(path.read_text())["queue"]["messages"]) if path.exists() else 0


def ask(url: str) -> str:
    """Return what is at URL. Raises HTTPError, or ConnectionRefusedError if nobody listens."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError:
        raise
    except urllib.error.URLError as error:
        raise error.reason if isinstance(error.reason, OSError) else error from None


def seen_of(ship: Ship, folder: Folder) -> Seen:
    port = free_port()
    ship.options["metrics.port"] = str(port)
    return Seen(folder, port)
