"""The shipper's listener: metrics, health, readiness and the status page over HTTP.

Everything here is for reading. It runs beside the thread that ships and must not cost that
anything, whoever asks: answers are made once a second at most, few of them are given in a second,
connections and their memory are bounded, and a slow client is cut off.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable
from importlib import resources
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Any, NamedTuple

import logbook
import orjson
from prometheus_client.exposition import choose_encoder
from waitress.adjustments import Adjustments
from waitress.server import TcpWSGIServer

from firebird_cdc.journal.shipper.monitoring.history import FIELDS, History
from firebird_cdc.journal.shipper.monitoring.metrics import make_registry
from firebird_cdc.journal.shipper.monitoring.report import Reporter

_log = logbook.Logger("firebird_cdc.journal.shipper.monitoring.web")

ANSWERS_PER_S = 40
"""Answers given in one second; who asks for more waits. A page takes one or two."""

CONNECTIONS = 64
"""Open at a time; when all are taken, the oldest ones have to go."""

HEADER_BYTES = 8192
BODY_BYTES = 1024
"""The largest request that is read."""

IDLE_S = 10
"""A connection without a whole request for so long is closed."""

LIFE_S = 120
"""So is one that is older; clients open another."""

_FRESH_S = 1.0
_PAUSE_S = 0.1
_THREADS = 2

_PAGE = "firebird_cdc.journal.shipper.monitoring.page"
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_JSON = "application/json"

SECURITY_HEADERS = (
    ("Cache-Control", "no-store"),
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src"
        " 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
)


class Answer(NamedTuple):
    """Answer that is sent back."""

    status: str
    kind: str
    body: bytes


StartResponse = Callable[[str, list[tuple[str, str]]], object]


class Application:
    """The pages, as a WSGI application. ``own_machine_only``: refuse what was sent to another name
    than this machine's, as a browser does whose name service was tampered with."""

    def __init__(self, reporter: Reporter, history: History, own_machine_only: bool) -> None:
        self._reporter = reporter
        self._history = history
        self._own_machine_only = own_machine_only
        self._registry = make_registry(reporter)
        self._lock = Lock()
        self._made: dict[str, tuple[float, Answer]] = {}
        self._second = 0.0
        self._answers = 0
        self._failure = ""
        page = resources.files(_PAGE)
        self._files = {
            path: Answer("200 OK", kind, (page / name).read_bytes())
            for path, (name, kind) in _FILES.items()
        }
        self._makers: dict[str, Callable[[str], Answer]] = {
            "/metrics": self._metrics,
            "/health": self._health,
            "/ready": self._ready,
            "/status.json": self._status,
            "/history.json": self._past,
        }

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        self._hold_back()
        method = environ["REQUEST_METHOD"]
        answer = self._answer(method, environ)
        headers = [
            ("Content-Type", answer.kind),
            ("Content-Length", str(len(answer.body))),
            *SECURITY_HEADERS,
        ]
        if answer.status.startswith("405"):
            headers.append(("Allow", "GET, HEAD"))
        start_response(answer.status, headers)
        return [] if method == "HEAD" else [answer.body]

    def _hold_back(self) -> None:
        """Wait if there were too many answers: what a flood takes is the shipper's time."""
        with self._lock:
            now = monotonic()
            if now - self._second >= 1:
                self._second, self._answers = now, 0
            self._answers += 1
            wait = self._answers > ANSWERS_PER_S
        if wait:
            sleep(_PAUSE_S)

    def _answer(self, method: str, environ: dict[str, Any]) -> Answer:
        if method not in ("GET", "HEAD"):
            return _text("405 Method Not Allowed", "only GET and HEAD are answered here")
        if self._own_machine_only and not _means_this_machine(environ.get("HTTP_HOST", "")):
            return _text("421 Misdirected Request", "this listener is for its own machine alone")
        path = environ.get("PATH_INFO", "")
        if path in self._files:
            return self._files[path]
        maker = self._makers.get(path)
        if maker is None:
            return _text("404 Not Found", "there is no such page")
        # Only Prometheus' own two forms: what the header says must not fill the memory.
        form = "application/openmetrics-text; version=1.0.0"
        accept = form if form.split(";")[0] in environ.get("HTTP_ACCEPT", "") else ""
        if path != "/metrics":
            accept = ""
        with self._lock:
            made_at, answer = self._made.get(path + accept, (0.0, None))
            if answer is None or monotonic() - made_at >= _FRESH_S:
                answer = self._make(maker, accept)
                self._made[path + accept] = (monotonic(), answer)
        return answer

    def _make(self, maker: Callable[[str], Answer], accept: str) -> Answer:
        try:
            answer = maker(accept)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            if what != self._failure:
                _log.exception("the status listener can't answer")
            self._failure = what
            return _text("500 Internal Server Error", "the shipper's log has the reason")
        self._failure = ""
        return answer

    def _metrics(self, accept: str) -> Answer:
        encode, kind = choose_encoder(accept)
        return Answer("200 OK", kind, encode(self._registry))

    def _health(self, _: str) -> Answer:
        reason = self._reporter.health()
        status = "503 Service Unavailable" if reason else "200 OK"
        return _json(status, {"alive": not reason, "reason": reason})

    def _ready(self, _: str) -> Answer:
        reasons = self._reporter.unready()
        status = "503 Service Unavailable" if reasons else "200 OK"
        return _json(status, {"ready": not reasons, "reasons": reasons})

    def _status(self, _: str) -> Answer:
        return _json("200 OK", self._reporter.report())

    def _past(self, _: str) -> Answer:
        return _json("200 OK", {"fields": FIELDS, "samples": self._history.rows()})


def _text(status: str, text: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", f"{text}\n".encode())


def _json(status: str, content: object) -> Answer:
    return Answer(status, _JSON, orjson.dumps(content))


def _means_this_machine(host: str) -> bool:
    """Tell whether a Host header names the machine itself, with or without a port."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.strip("[]")
    return name == "localhost" or is_loopback(name)


def is_loopback(host: str) -> bool:
    """Tell whether HOST is an address that only this machine can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Server(TcpWSGIServer):  # type: ignore[misc]
    """Waitress, stricter with slow clients."""

    def maintenance(self, now: float) -> None:
        """Close connections that are idle, slow or old, and the oldest ones if there are too
        many, so that a flood does not keep others out."""
        waiting = [channel for channel in self.active_channels.values() if not channel.requests]
        for channel in waiting:
            idle_s, age_s = now - channel.last_activity, now - channel.creation_time
            unfinished = channel.request is not None and age_s > IDLE_S
            if idle_s > IDLE_S or age_s > LIFE_S or unfinished:
                channel.will_close = True
        if len(self._map) >= CONNECTIONS:
            waiting.sort(key=lambda channel: channel.creation_time)
            for channel in waiting[: CONNECTIONS // 2]:
                channel.will_close = True


class _ToLogbook(logging.Handler):
    """Handler of waitress's log lines, which are caused by its clients."""

    def emit(self, record: logging.LogRecord) -> None:
        _log.debug("waitress: {}", record.getMessage())


class Listener:
    """An open listener, served by a thread of its own. Raises OSError if the address is taken."""

    def __init__(self, application: Application, host: str, port: int) -> None:
        logger = logging.getLogger("waitress")
        logger.propagate = False
        if not logger.handlers:
            logger.addHandler(_ToLogbook())
        family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(where)
            adjustments = Adjustments(
                sockets=[bound],
                threads=_THREADS,
                connection_limit=CONNECTIONS,
                backlog=CONNECTIONS,
                cleanup_interval=1,
                channel_timeout=IDLE_S,
                max_request_header_size=HEADER_BYTES,
                max_request_body_size=BODY_BYTES,
                log_socket_errors=False,
                asyncore_use_poll=True,
                ident=None,
            )
            address = bound.getsockname()
            self._server = _Server(
                application,
                _sock=bound,
                adj=adjustments,
                sockinfo=(family, socket.SOCK_STREAM, 0, address),
                bind_socket=False,
            )
        except BaseException:
            bound.close()
            raise
        self.host, self.port = address[:2]
        self._lock = Lock()
        self._closing = False
        self._is_served = True
        self._thread = Thread(target=self._serve, name="status listener", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Tell whether the listener still serves."""
        return self._thread.is_alive()

    def _serve(self) -> None:
        server = self._server
        try:
            while not self._closing:
                server.asyncore.loop(timeout=1, use_poll=True, map=server._map, count=1)
        except Exception:
            _log.exception("the listener failed and is opened again")
        finally:
            with self._lock:
                self._is_served = False
            server.task_dispatcher.shutdown(timeout=1)
            server.asyncore.close_all(server._map, ignore_all=True)

    def close(self) -> None:
        """Stop serving."""
        with self._lock:
            self._closing = True
            if self._is_served:  # else the descriptor may be another's by now
                self._server.pull_trigger()
        self._thread.join(3)
