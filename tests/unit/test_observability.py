"""The listener, the status file and metrics, with statistics of the test's own."""

from __future__ import annotations

import json
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from uuid import uuid4

import pytest
from observed import (
    DEPOT,
    OTHER_SECRET,
    PATIENCE_S,
    SECRET,
    await_that,
    make_config,
)
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from firebird_cdc.clock import now_us
from firebird_cdc.config import ConnectorConfig
from firebird_cdc.demo.service import free_port
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.folder.counters import (
    Counters,
    DatabaseCounters,
    DiskCounters,
    Histogram,
)
from firebird_cdc.journal.folder.processes import status_path
from firebird_cdc.journal.folder.subjects import (
    CANARY,
    CONFIRMER,
    DISK,
    DISPOSAL,
    FAILURES,
    FOLDER,
    KAFKA,
    LEFT_OUT,
    LOST,
    MISSING,
    NOTES,
    UNDECIDED,
    UNREADABLE,
    TroubleKind,
)
from firebird_cdc.journal.shipper.monitoring import folder as folder_module
from firebird_cdc.journal.shipper.monitoring import metrics, web
from firebird_cdc.journal.shipper.monitoring import observer as observer_module
from firebird_cdc.journal.shipper.monitoring.folder import FolderFigures, Waiting, list_folder
from firebird_cdc.journal.shipper.monitoring.history import FIELDS, SAMPLES, History
from firebird_cdc.journal.shipper.monitoring.observer import Observer
from firebird_cdc.journal.shipper.monitoring.report import (
    BEHIND_S,
    KAFKA_SILENT_S,
    LONG_WAIT_S,
    LOOP_STUCK_S,
    Reporter,
    needs_somebody,
)
from firebird_cdc.journal.shipper.monitoring.statistics import (
    BacklogFigures,
    DatabaseBacklog,
    Statistics,
)
from firebird_cdc.journal.shipper.shared_offsets import EVERYTHING, NOTHING, Number


@pytest.fixture
def listener(config: ConnectorConfig, statistics: Statistics) -> Iterator[web.Listener]:
    application = web.Application(Reporter(config, statistics), History(), own_machine_only=True)
    listener = web.Listener(application, "127.0.0.1", 0)
    yield listener
    listener.close()
    await_that("its end", lambda: not listener.is_open)  # which it awaits for three seconds itself


def ask(
    listener: web.Listener, path: str, method: str = "GET", **headers: str
) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", listener.port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, headers={"Connection": "close", **headers})
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


# What is answered


def test_every_answer_carries_restrictive_security_headers(listener: web.Listener) -> None:
    for path in ("/", "/page.js", "/page.css", "/metrics", "/status.json", "/nowhere"):
        answer, body = ask(listener, path)
        assert body
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert answer.headers["Server"] is None


def test_the_page_asks_for_nothing_from_elsewhere_and_has_nothing_inline() -> None:
    page = Path(web.__file__).parent / "page"
    html = (page / "index.html").read_text()
    assert "style=" not in html and " onclick" not in html and "<script>" not in html
    for file in page.iterdir():
        if file.suffix in (".html", ".js", ".css"):
            text = file.read_text().replace("http://www.w3.org/2000/svg", "")
            assert "://" not in text and "innerHTML" not in text, file


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_only_reading_is_allowed(listener: web.Listener, method: str) -> None:
    answer, _ = ask(listener, "/metrics", method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


def test_head_is_get_without_a_body(listener: web.Listener) -> None:
    answer, body = ask(listener, "/page.css", "HEAD")
    assert (answer.status, body) == (200, b"")
    assert int(answer.headers["Content-Length"]) == len(ask(listener, "/page.css")[1])


@pytest.mark.parametrize(
    "path", ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/page/../page.js", "//metrics/"]
)
def test_unknown_paths_are_not_found(listener: web.Listener, path: str) -> None:
    assert ask(listener, path)[0].status == 404


def test_another_machines_name_is_refused(listener: web.Listener) -> None:
    assert ask(listener, "/status.json", Host="evil.example")[0].status == 421
    for host in ("localhost:1", "127.0.0.1", "[::1]:9187"):
        assert ask(listener, "/status.json", Host=host)[0].status == 200


def test_health_is_that_of_the_loop_and_readiness_that_of_everything(
    config: ConnectorConfig, statistics: Statistics
) -> None:
    application = web.Application(Reporter(config, statistics), History(), own_machine_only=False)

    def answer(path: str) -> tuple[int, dict[str, object]]:
        application._made.clear()
        statuses: list[str] = []
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path}
        (body,) = application(environ, lambda status, headers: statuses.append(status))
        return int(statuses[0][:3]), json.loads(body)

    assert answer("/health") == (200, {"alive": True, "reason": ""})
    assert answer("/ready") == (200, {"ready": True, "reasons": []})
    statistics.trouble(DEPOT, "halted", f"journal 7 can't be sent with {SECRET}{OTHER_SECRET}")
    assert answer("/health")[0] == 200
    assert answer("/ready") == (
        503,
        {"ready": False, "reasons": ["journal 7 can't be sent with ******"]},
    )
    statistics.clear(DEPOT)
    statistics.kafka_at = time.monotonic() - KAFKA_SILENT_S - 1
    code, content = answer("/ready")
    assert code == 503 and "no broker has answered" in str(content["reasons"])
    statistics.loop_at = time.monotonic() - LOOP_STUCK_S - 1
    code, content = answer("/health")
    assert code == 503 and "has not responded" in str(content["reason"])


def test_internal_error_is_one_line_for_the_client_and_one_for_the_log(
    config: ConnectorConfig, statistics: Statistics
) -> None:
    def broken() -> object:
        raise ZeroDivisionError(SECRET)

    statistics.queue = broken  # type: ignore[assignment]
    application = web.Application(Reporter(config, statistics), History(), own_machine_only=False)
    listener = web.Listener(application, "127.0.0.1", 0)
    try:
        answer, body = ask(listener, "/metrics")
        assert answer.status == 500 and SECRET.encode() not in body
        assert ask(listener, "/page.js")[0].status == 200
    finally:
        listener.close()


# Hostile clients


def test_many_slow_clients_do_not_block_others(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "IDLE_S", 10 * PATIENCE_S)  # not before these are given up, either
    listener: web.Listener = request.getfixturevalue("listener")
    address = "127.0.0.1", listener.port
    with ExitStack() as stack:
        for _ in range(3 * web.CONNECTIONS):
            client = stack.enter_context(socket.create_connection(address, PATIENCE_S))
            client.send(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        assert ask(listener, "/health")[0].status == 200
    threads = [thread for thread in threading.enumerate() if "waitress" in thread.name]
    assert len(threads) <= 2


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\n" + b"X-Large: " + b"x" * (4 * web.HEADER_BYTES) + b"\r\n\r\n",
        b"GET /" + b"x" * (4 * web.HEADER_BYTES) + b" HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 20000,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"400\r\n" * 5000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    ],
    ids=["header", "path", "body", "chunks", "tls", "length"],
)
def test_malformed_request_ends_the_connection(listener: web.Listener, request_: bytes) -> None:
    with socket.create_connection(("127.0.0.1", listener.port), PATIENCE_S) as client:
        with suppress(OSError):
            client.sendall(request_)
        received = b""
        with suppress(ConnectionResetError):
            while part := client.recv(4096):
                received += part
    assert received == b"" or received.startswith(b"HTTP/1.1 4") or b"HTTP/1.0 4" in received
    assert ask(listener, "/health")[0].status == 200


def test_request_rate_of_a_client_is_limited(listener: web.Listener) -> None:
    connection = HTTPConnection("127.0.0.1", listener.port, timeout=PATIENCE_S)
    begun, asked = time.monotonic(), 0
    while time.monotonic() - begun < 1.5:
        connection.request("GET", "/health")
        connection.getresponse().read()
        asked += 1
    connection.close()
    assert asked < 3 * web.ANSWERS_PER_S


# The observer


def test_port_in_use_is_reported_and_retried(
    tmp_path: Path,
    statistics: Statistics,
    observe: Callable[[ConnectorConfig], Observer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observer_module, "_OPEN_AGAIN_S", 0.0)
    monkeypatch.setattr(observer_module, "_TURN_S", 0.05)
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        observe(make_config(tmp_path, metrics__port=str(port)))
        await_that("a warning", lambda: "metrics" in statistics.troubles)
        trouble = statistics.troubles["metrics"]
        assert trouble.kind == "warning" and f"metrics.port {port}" in trouble.text
    await_that("the end of the warning", lambda: "metrics" not in statistics.troubles)
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S):
        pass


def test_no_port_is_opened_unless_asked_for(
    config: ConnectorConfig, observe: Callable[[ConnectorConfig], Observer]
) -> None:
    observer = observe(config)
    path = status_path(config.journal_directory)
    await_that("a status", path.exists)
    assert observer._listener is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_status_file_is_replaced_atomically_and_shows_the_shippers_end(
    config: ConnectorConfig,
    statistics: Statistics,
    observe: Callable[[ConnectorConfig], Observer],
) -> None:
    observer = observe(config)
    path = status_path(config.journal_directory)
    await_that("a status", path.exists)
    first = path.stat().st_ino
    statistics.trouble(DEPOT, "waiting", f"login as {SECRET} refused")
    await_that(
        "another file that tells of it",
        lambda: path.stat().st_ino != first and "refused" in path.read_text(),
    )
    report = json.loads(path.read_text())
    assert report["running"] and report["databases"][0]["tables"][0]["c"] == 2
    assert SECRET not in path.read_text() and "login as *** refused" in path.read_text()
    observer.stop()
    report = json.loads(path.read_text())
    assert not report["running"] and report["ended_us"] >= report["written_us"]


def test_a_folder_that_goes_away_is_no_failure(
    config: ConnectorConfig,
    observe: Callable[[ConnectorConfig], Observer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observer_module, "_TURN_S", 0.02)
    observer = observe(config)
    path = status_path(config.journal_directory)
    await_that("a status", path.exists)
    moved = config.journal_directory.rename(config.journal_directory.with_name("elsewhere"))
    written = observer._written_at
    observer._written = {}
    await_that("some turns", lambda: observer._failure == "")
    moved.rename(config.journal_directory)
    await_that("the next status", lambda: observer._written_at > written)


def test_history_keeps_the_last_samples_and_no_more() -> None:
    history = History()
    for number in range(SAMPLES + 10):
        history.add(
            {
                "written_us": number * 1000,
                "totals": {"events": number, "journals": 0, "bytes": 0},
                "backlog": {"pending": 0, "oldest_s": 0.0},
                "databases": [],
                "queue": {"messages": 0},
            }
        )
    rows = history.rows()
    assert len(rows) == SAMPLES and len(rows[0]) == len(FIELDS)
    assert [row[0] for row in rows] == list(range(10, SAMPLES + 10))


# The folder


def test_a_folder_of_very_many_is_estimated_and_counted_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "_SIZED", 10)
    for number in range(40):
        (tmp_path / f"{uuid4()}.log").write_bytes(b"x" * 100)
        (tmp_path / f"{uuid4()}.log.live").write_bytes(b"x" * 100)
        (tmp_path / f"other-{number}").write_bytes(b"x" * 5000)
    listing = list_folder(tmp_path)
    assert (listing.committed, len(listing.live), listing.bytes) == (40, 40, 8000)
    asked = []

    def waiting() -> dict[str, Waiting]:
        asked.append(1)
        return {DEPOT: Waiting(40, sorted(path.name for path in tmp_path.glob("*.log"))[0])}

    figures = FolderFigures(tmp_path, waiting, lambda _: EVERYTHING)
    assert figures().pending == 40 and figures().live == 40
    assert len(asked) == 1
    assert figures().databases[DEPOT].oldest_us and figures().oldest_pending_seconds < 60
    assert figures().free_bytes > 0


def test_a_missing_folder_is_empty(tmp_path: Path) -> None:
    assert list_folder(tmp_path / "none") == (0, (), 0, (), (), 0)
    assert FolderFigures(tmp_path / "none", dict, lambda _: NOTHING)().pending == 0


def test_journals_that_the_shipper_has_not_taken_in_wait_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "_NAMED", 3)
    for _ in range(5):
        (tmp_path / f"{uuid4()}.log").write_bytes(b"x" * 100)
    figures = FolderFigures(tmp_path, lambda: {DEPOT: Waiting(2, None)}, lambda _: NOTHING)()
    assert figures.databases[DEPOT].pending == 2 and figures.databases[""].pending == 5
    assert figures.pending == 7


def test_journals_that_are_taken_in_during_a_count_count_once(tmp_path: Path) -> None:
    names = {f"{uuid4()}.log" for _ in range(4)}
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 100)
    known: set[str] = set()

    def waiting() -> dict[str, Waiting]:
        known.update(names)
        return {DEPOT: Waiting(len(known), None)}

    def sorted_to(name: str) -> Number:
        return EVERYTHING if name in known else NOTHING

    assert FolderFigures(tmp_path, waiting, sorted_to)().pending == 4


# How a database is


@pytest.mark.parametrize(
    ("subject", "kind", "backlog", "state"),
    [
        (None, "waiting", DatabaseBacklog(0), "well"),
        ("/srv/other.fdb", "halted", DatabaseBacklog(3), "well"),
        (DEPOT, "halted", DatabaseBacklog(1), "halted"),
        (KAFKA, "waiting", DatabaseBacklog(0), "waiting"),
        (DISK, "warning", DatabaseBacklog(0), "warning"),
        (FOLDER, "halted", DatabaseBacklog(0), "halted"),
        (DISPOSAL, "halted", DatabaseBacklog(0), "halted"),
        (NOTES, "halted", DatabaseBacklog(0), "halted"),
        (CONFIRMER, "halted", DatabaseBacklog(0), "halted"),
        (UNREADABLE, "halted", DatabaseBacklog(1), "halted"),
        (UNREADABLE, "halted", DatabaseBacklog(0), "well"),
        (UNDECIDED, "waiting", DatabaseBacklog(0, live=1), "waiting"),
        (LOST + DEPOT, "warning", DatabaseBacklog(0), "warning"),
        (MISSING + DEPOT, "warning", DatabaseBacklog(0), "warning"),
        (LEFT_OUT + DEPOT, "warning", DatabaseBacklog(0), "warning"),
        (CANARY + DEPOT + ".CANARY", "halted", DatabaseBacklog(0), "halted"),
        (FAILURES + "refused:" + DEPOT, "warning", DatabaseBacklog(0), "warning"),
        (FAILURES + "lost:", "warning", DatabaseBacklog(0), "warning"),
        (FAILURES + "refused:/srv/other.fdb", "warning", DatabaseBacklog(0), "well"),
        (None, "waiting", DatabaseBacklog(0, quarantined=1), "warning"),
        (None, "waiting", DatabaseBacklog(9, oldest_us=1), "behind"),
        (KAFKA, "waiting", DatabaseBacklog(9, oldest_us=1), "waiting"),
    ],
)
def test_a_database_is_well_only_if_nothing_speaks_against_it(
    config: ConnectorConfig,
    statistics: Statistics,
    subject: str | None,
    kind: TroubleKind,
    backlog: DatabaseBacklog,
    state: str,
) -> None:
    statistics.canary(DEPOT + ".CANARY", DEPOT)
    statistics.backlog = lambda: BacklogFigures({DEPOT: backlog}, 0, 0, 0.0, 0)
    if subject is not None:
        statistics.trouble(subject, kind, "something")
    (row,) = Reporter(config, statistics).report()["databases"]
    assert row["state"] == state
    assert (row["lag_s"] > BEHIND_S) == (backlog.oldest_us is not None)


def test_no_database_is_well_before_kafka_has_answered(
    config: ConnectorConfig, statistics: Statistics
) -> None:
    reporter = Reporter(config, statistics)
    statistics.kafka_at = None
    assert [row["state"] for row in reporter.report()["databases"]] == ["waiting"]
    statistics.kafka_at = time.monotonic() - KAFKA_SILENT_S - 1
    assert [row["state"] for row in reporter.report()["databases"]] == ["waiting"]
    statistics.loop_at = time.monotonic() - LOOP_STUCK_S - 1
    assert [row["state"] for row in reporter.report()["databases"]] == ["halted"]


# What needs somebody


def test_temporary_trouble_needs_attention_only_after_a_long_wait(
    config: ConnectorConfig, statistics: Statistics
) -> None:
    reporter = Reporter(config, statistics)
    assert needs_somebody(reporter.report()) == []
    statistics.trouble("kafka", "waiting", "no broker can be reached")
    report = reporter.report()
    assert needs_somebody(report) == []
    report["written_us"] += int((LONG_WAIT_S + 1) * 1e6)
    assert needs_somebody(report) == ["for 10 minutes: no broker can be reached"]
    statistics.clear("kafka")
    for kind in ("halted", "warning"):
        statistics.trouble("x", kind, f"it is {kind}")  # type: ignore[arg-type]
        assert needs_somebody(reporter.report()) == [f"it is {kind}"]


# What the server counts


def test_the_servers_counters_are_metrics_too(
    config: ConnectorConfig, statistics: Statistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = DatabaseCounters(
        captured=5,
        gaps=1,
        rolled_back=2,
        journals_rolled_back=2,
        timings={
            "prepare": Histogram((0.001, 0.01), (3, 1, 1), 0.25),
            "confirm": Histogram((0.001, 0.01), (0, 5, 0), 0.02),
        },
    )
    counters = Counters({DEPOT: counted}, DiskCounters(limit=1000, is_full=True, refused=4))
    monkeypatch.setattr(metrics, "read_counters", lambda directory: counters)
    registry = metrics.make_registry(Reporter(config, statistics))
    labels = {"server": "shop", "connector": "depot", "database": DEPOT}
    bucket = "firebird_cdc_callback_seconds_bucket"
    for bound, count in (("0.001", 3), ("0.01", 4), ("+Inf", 5)):
        found = registry.get_sample_value(bucket, {**labels, "call": "prepare", "le": bound})
        assert found == count
    for name, value in (
        ("transactions_rolled_back_total", 2),
        ("journals_rolled_back_total", 2),
        ("confirm_seconds_sum", 0.02),
        ("confirm_seconds_count", 5),
    ):
        assert registry.get_sample_value(f"firebird_cdc_{name}", labels) == value
    del labels["database"]
    assert registry.get_sample_value("firebird_cdc_journal_limit_reached", labels) == 1
    assert registry.get_sample_value("firebird_cdc_journal_limit_refusals_total", labels) == 4


@pytest.mark.parametrize(("kind", "name"), [(LOST, "lost"), (MISSING, "missing")])
def test_databases_that_lack_journals_are_a_metric(
    config: ConnectorConfig, statistics: Statistics, kind: str, name: str
) -> None:
    registry = metrics.make_registry(Reporter(config, statistics))
    labels = {"server": "shop", "connector": "depot"}
    for database, value in (("", 0), (DEPOT, 1), ("/srv/other.fdb", 2)):
        if database:
            statistics.trouble(kind + database, "warning", "something")
        assert registry.get_sample_value(f"firebird_cdc_{name}_ranges", labels) == value


def test_metrics_have_no_duplicate_samples_and_quote_hostile_names(
    config: ConnectorConfig, statistics: Statistics
) -> None:
    reporter = Reporter(config, statistics)
    registry = metrics.make_registry(reporter)
    name = 'T"\\\n{x="1"} 5'
    for _ in range(2):
        text = generate_latest(registry).decode()
        samples = [
            (sample.name, tuple(sorted(sample.labels.items())))
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]
        assert len(samples) == len(set(samples))
        statistics.databases.clear()
        hostile = statistics.database(name)
        hostile.add(name, "c")
        statistics.canary(f"{name}.CANARY", name).seen_us = now_us()
        statistics.trouble(name, "halted", name)
    assert ("table", name) in {label for _, labels in samples for label in labels}
    labels = {"server": "shop", "connector": "depot", "database": name}
    assert registry.get_sample_value("firebird_cdc_database_halted", labels) == 1


def test_only_secrets_are_masked_in_messages(tmp_path: Path, statistics: Statistics) -> None:
    config = make_config(
        tmp_path,
        kafka__producer__sasl__username="firebird",
        kafka__producer__sasl__mechanism="PLAIN",
        kafka__producer__sasl__kerberos__service__name="kafka",
        kafka__producer__ssl__key__password="difficult",
        signal__consumer__sasl__password="elsewhere",
    )
    reporter = Reporter(config, statistics)
    honest = "firebird-cdc status tells it; kafka refuses PLAIN for firebird"
    assert reporter.public(honest) == honest
    assert reporter.public(f"difficult {SECRET} {OTHER_SECRET} elsewhere") == "*** *** *** ***"


def test_a_secret_that_is_a_common_word_does_not_change_the_names_of_metrics(
    tmp_path: Path, statistics: Statistics
) -> None:
    config = make_config(tmp_path, **{"kafka.producer.ssl.key.password": "firebird"})
    application = web.Application(Reporter(config, statistics), History(), False)
    answer = application._metrics("")
    assert b"\nfirebird_cdc_kafka_reachable{" in answer.body


# Options


@pytest.mark.parametrize(
    ("tags", "part"),
    [
        ("site", "name=value"),
        ("site=", "name=value"),
        ("1site=x", "can't be a label"),
        ("__name__=x", "can't be a label"),
        ("a-b=x", "can't be a label"),
        ("database=x", "have themselves"),
        ("le=x", "have themselves"),
        ("a=1,a=2", "twice"),
        ("a=\x01", "can't be printed"),
    ],
)
def test_tags_that_make_no_labels_are_refused(tmp_path: Path, tags: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        make_config(tmp_path, custom__metric__tags=tags)


def test_tags_and_listener_are_taken_from_the_file(tmp_path: Path) -> None:
    config = make_config(
        tmp_path, custom__metric__tags="site=north, rack=a=7", metrics__port="9187"
    )
    assert config.metric_tags == (("site", "north"), ("rack", "a=7"))
    assert (config.metrics_host, config.metrics_port) == ("127.0.0.1", 9187)
    with pytest.raises(ConfigError, match=r"metrics\.port"):
        make_config(tmp_path, metrics__port="70000")
