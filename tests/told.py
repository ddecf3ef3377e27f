"""A server that answers what a test tells it, in the place of a schema registry."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any


class Told:
    """A server that answers what it is told; ``asked``: path and headers of each request."""

    def __init__(self) -> None:
        self.status = 200
        self.body: bytes = b'{"id": 7}'
        self.silent: Event | None = None
        self.asked: list[tuple[str, dict[str, str]]] = []
        told = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                told.asked.append((self.path, dict(self.headers)))
                if told.silent is not None:
                    told.silent.wait(30)
                self.send_response(told.status)
                self.send_header("Content-Length", str(len(told.body)))
                self.end_headers()
                self.wfile.write(told.body)

            def log_message(self, *arguments: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self._thread = Thread(target=self.server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"

    def end(self) -> None:
        if self.silent is not None:
            self.silent.set()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()
