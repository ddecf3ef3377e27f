"""Operator's view of a real shipper: over HTTP, in a browser, in the terminal."""

from __future__ import annotations

import json
import re
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import forked
import pytest
from chromium import Browser
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families
from shipping import DATABASE, Folder, Ship

from firebird_cdc.demo import processes
from firebird_cdc.demo.service import free_port
from firebird_cdc.journal.shipper.local_offsets import Shipped
from firebird_cdc.journal.shipper.monitoring.metrics import METRICS
from firebird_cdc.journal.shipper.snapshots.state import (
    Kind,
    Snapshot,
    SnapshotState,
    StateFolder,
)

pytestmark = pytest.mark.kafka

PATIENCE_S = 60.0

SECRET = "correct-horse-battery"
OTHER = "/srv/fb/archive.fdb"


def await_condition(what: str, condition: Callable[[], Any]) -> Any:
    return processes.await_condition(what, condition, PATIENCE_S)


def get(port: int, path: str, accept: str = "*/*") -> tuple[int, str]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", headers={"Accept": accept, "Connection": "close"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def is_up(port: int) -> bool:
    try:
        return get(port, "/health")[0] == 200
    except OSError:
        return False


def samples(text: str) -> dict[tuple[str, str, str], float]:
    """Values by name, database and table."""
    return {
        (sample.name, sample.labels.get("database", ""), sample.labels.get("table", "")): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def status(directory: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and output of ``firebird-cdc status``."""
    done = forked.run(
        [sys.executable, "-m", "firebird_cdc", "status", "--directory", directory, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


# Boxes without a text, and cells of tables that begin or end outside the page.
_HIDDEN_ON_A_PHONE = """[
  ...[...document.querySelectorAll('.tiles div, figure, .scroll')]
    .filter((box) => box.offsetParent && !box.innerText.trim()),
  ...[...document.querySelectorAll('.scroll tbody tr > *')]
    .filter((cell) => cell.offsetParent)
    .filter((cell) => {
      const { left, right } = cell.getBoundingClientRect();
      return left < 0 || right > document.documentElement.clientWidth;
    }),
].map((element) => element.outerHTML)"""


@pytest.fixture
def port(ship: Ship) -> int:
    port = free_port()
    ship.options["metrics.port"] = str(port)
    return port


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    browser = Browser(tmp_path / "browser")
    yield browser
    browser.close()


def shows(browser: Browser, selector: str, text: str) -> Any:
    return await_condition(f"{selector} with {text!r}", lambda: text in browser.text(selector))


def test_scrape_has_every_metric_and_the_shipped_counts(
    ship: Ship, folder: Folder, port: int
) -> None:
    ship.options["custom.metric.tags"] = "site=north,rack=r 7"
    ship.options["kafka.producer.ssl.key.password"] = SECRET
    folder.write(1, 5)
    folder.write(2, 2)
    folder.write(1, 1, database=OTHER)
    shipper = ship.start()
    await_condition("the listener", lambda: is_up(port))

    def settled() -> str | None:
        _, text = get(port, "/metrics")
        found = samples(text)
        # What waits is measured now and then, what was shipped is counted at once.
        figures = [
            found.get((f"firebird_cdc_journals_{name}", database, ""))
            for database in (DATABASE, OTHER)
            for name in ("shipped_total", "pending")
        ]
        return text if figures == [2.0, 0.0, 1.0, 0.0] else None

    text = await_condition("all journals shipped", settled)
    found = samples(text)
    assert found["firebird_cdc_events_total", DATABASE, "ITEM"] >= 0
    assert f'op="c",rack="r 7",server="{ship.options["kafka.topic.prefix"]}",site="north"' in text
    assert found["firebird_cdc_streaming_events_seen_total", DATABASE, ""] == 7
    assert found["firebird_cdc_streaming_transactions_committed_total", DATABASE, ""] == 2
    assert found["firebird_cdc_streaming_last_transaction_id", DATABASE, ""] == 48213
    assert found["firebird_cdc_streaming_captured_table", OTHER, "ITEM"] == 1
    assert found["firebird_cdc_snapshot_running", DATABASE, ""] == 0
    assert found["firebird_cdc_kafka_reachable", "", ""] == 1
    assert found["firebird_cdc_journal_free_bytes", "", ""] > 0
    assert found["process_resident_memory_bytes", "", ""] < 150 * 1024 * 1024
    families = {family.name for family in text_string_to_metric_families(text)}
    described = {f"{name}_info" if each.kind == "info" else name for name, each in METRICS.items()}
    assert described <= families
    assert {name for name in families if name.startswith("firebird_cdc_")} <= described
    _, strict = get(port, "/metrics", "application/openmetrics-text; version=1.0.0")
    assert strict.endswith("# EOF\n")
    assert len(list(openmetrics_parser.text_string_to_metric_families(strict))) > len(METRICS)
    code, ready = get(port, "/ready")
    assert (code, json.loads(ready)) == (200, {"ready": True, "reasons": []})
    report = json.loads(get(port, "/status.json")[1])
    assert report["totals"]["events"] == 8
    assert json.loads(get(port, "/history.json")[1])["samples"]
    file = folder.directory / ".firebird-cdc" / "status.json"
    assert file.stat().st_mode & 0o777 == 0o600
    await_condition(
        "a status without a fault",
        lambda: status(folder.directory)[0] == 0 and "all is well" in status(folder.directory)[1],
    )
    assert shipper.terminate() == 0
    code, told = status(folder.directory)
    assert code == 0 and "not running, ended" in told
    everything = "".join([text, ready, told, shipper.log, file.read_text(), json.dumps(report)])
    assert SECRET not in everything


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nobody listens, nor can begin to: it is bound."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def test_shipper_without_kafka_is_alive_but_not_ready(
    make_ship: Callable[[str], Ship], folder: Folder, browser: Browser, nobody: str
) -> None:
    ship, port = make_ship(nobody), free_port()
    ship.options["metrics.port"] = str(port)
    folder.write(1, 5)
    memory = Shipped(folder.directory, "positions")
    memory.count_placeholders(DATABASE, 3)
    memory.write()
    ship.start()
    await_condition("the listener", lambda: is_up(port))
    await_condition("a reason", lambda: get(port, "/ready")[0] == 503)
    browser.open(f"http://127.0.0.1:{port}/")
    shows(browser, "#state", "Degraded, retrying automatically")
    shows(browser, "#kafka", "not reached")
    shows(browser, "#troubles", "Kafka at 127.0.0.1")
    shows(browser, "#pending", "1")
    shows(browser, "#databases", "3 with placeholders")
    found = samples(get(port, "/metrics")[1])
    assert found["firebird_cdc_kafka_reachable", "", ""] == 0
    assert found["firebird_cdc_journals_pending", DATABASE, ""] == 1
    assert found["firebird_cdc_events_with_placeholders_total", DATABASE, ""] == 3
    await_condition(
        "a status that needs nobody yet",
        lambda: "degraded, retrying automatically" in status(folder.directory)[1],
    )
    assert status(folder.directory)[0] == 0
    assert browser.errors == []


def test_page_and_status_show_a_snapshot_that_is_owed(
    ship: Ship, folder: Folder, port: int, browser: Browser
) -> None:
    owed = Snapshot("s1", Kind.INITIAL, "snapshot.mode")
    (folder.directory / ".firebird-cdc").mkdir()
    StateFolder(folder.directory).write(SnapshotState(DATABASE, waiting=[owed]))
    folder.write(1, 3)
    ship.start()
    await_condition("the listener", lambda: is_up(port))
    browser.open(f"http://127.0.0.1:{port}/")
    shows(browser, "#snapshots", "Owed")
    assert DATABASE in browser.text("#snapshots")
    shows(browser, "#snapshots", "the initial snapshot is owed: ")
    shows(browser, "#state", "Degraded, retrying automatically")
    shows(browser, "#events", "3")
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=360,
        height=740,
        deviceScaleFactor=1,
        mobile=True,
    )
    assert browser.evaluate(_HIDDEN_ON_A_PHONE) == []
    (database,) = json.loads(get(port, "/status.json")[1])["databases"]
    assert (database["state"], database["snapshot"]["status"]) == ("waiting", "owed")
    assert samples(get(port, "/metrics")[1])["firebird_cdc_snapshot_owed", DATABASE, ""] == 1

    def is_told() -> bool:  # the file is written once a second
        told = status(folder.directory)[1]
        return "degraded" in told and "  snapshot initial s1: OWED" in told

    await_condition("a status that tells it, too", is_told)
    assert browser.errors == []


def test_status_page_updates_while_journals_are_shipped(
    ship: Ship, folder: Folder, port: int, browser: Browser, tmp_path: Path
) -> None:
    folder.write(1, 3)
    shipper = ship.start()
    await_condition("the listener", lambda: is_up(port))
    browser.open(f"http://127.0.0.1:{port}/")
    shows(browser, "#state", "All is well")
    shows(browser, "#events", "3")
    assert browser.text("#kafka") == "reached"
    folder.write(2, 1200)
    shows(browser, "#events", "1,203")
    shows(browser, "#tables", "ITEM")
    assert "1,203" in browser.text("#tables")
    assert DATABASE in browser.text("#databases")
    line = "document.querySelector('#chart-rate .line').getAttribute('d')"
    # Samples are taken each two seconds: those around the large journal may come later.
    await_condition(
        "a chart that is drawn and has a height",
        lambda: (
            browser.evaluate(f"{line}.split('L').length") > 3
            and browser.evaluate(f"new Set({line}.match(/ [0-9.]+/g)).size") > 1
        ),
    )
    assert "at most" in browser.evaluate(
        "document.querySelector('#chart-rate svg').getAttribute('aria-label')"
    )
    # A curve that has a height has a number at its top, with its unit, however small that is.
    for chart, unit in (("rate", r"/s"), ("delay", r" (ms|s|min|h|days)")):
        top, _, bottom = browser.evaluate(
            f"[...document.querySelectorAll('#chart-{chart} .axis span')].map(e => e.textContent)"
        )
        assert re.fullmatch(rf"(?!0[/ ])[0-9.,]+{unit}", top)
        assert re.fullmatch(r"0(/s| s)", bottom)
    # On a phone nothing but the tables may have to be moved sideways.
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=360,
        height=740,
        deviceScaleFactor=1,
        mobile=True,
    )
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    assert browser.evaluate(_HIDDEN_ON_A_PHONE) == []
    # A box of which nothing is known says so.
    browser.evaluate(
        "byId('find').value = 'no such table'; byId('find').dispatchEvent(new Event('input'))"
    )
    shows(browser, "#tables", "No table whose name contains this.")
    assert browser.evaluate(_HIDDEN_ON_A_PHONE) == []
    # What can't be shipped is shown, as text.
    bad = tmp_path / "bad"
    bad.write_bytes(b"<script>alert(1)</script>" * 200)
    bad.rename(folder.directory / f"{uuid4()}.log")
    shows(browser, "#state", "Action required")
    assert browser.evaluate("document.title").startswith("Action required")
    assert browser.evaluate("document.querySelectorAll('#troubles script').length") == 0
    assert browser.errors == []
    origin = f"http://127.0.0.1:{port}/"
    assert browser.requests and all(url.startswith(origin) for url in browser.requests)
    shipper.kill()
    shows(browser, "#state", "No answer")
    shows(browser, "#gone", "has not answered since")
    code, told = status(folder.directory)
    assert code == 1 and "no shipper runs, and 1 transaction waits" in told
