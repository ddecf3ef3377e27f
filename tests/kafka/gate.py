"""A way to a server that can be shut: connections are refused then, and what was open is cut."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress


class Gate:
    """Passes connections to 127.0.0.1:PORT on to a port of its own while it is open.

    It begins shut; its own ``port`` stays the same.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._bound = self._bind(0)
        self.port: int = self._bound.getsockname()[1]
        self._listener: socket.socket | None = None
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @staticmethod
    def _bind(port: int) -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("127.0.0.1", port))
        return made

    def open(self) -> None:
        """Let connections through from now on."""
        # Bound and not listening, a port refuses connections and nobody else can take it.
        self._listener = self._bound
        self._listener.listen()
        self._run(self._accept, self._listener)

    def shut(self) -> None:
        """Cut every connection and let none through."""
        assert self._listener is not None
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads.pop(0).join()  # it accepts no more
        self._listener.close()
        self._listener = None
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        while self._threads:
            self._threads.pop().join()
        while self._connections:
            self._connections.pop().close()
        self._bound = self._bind(self.port)

    def end(self) -> None:
        """Shut it for good."""
        if self._listener is not None:
            self.shut()
        self._bound.close()

    def _run(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near = listener.accept()[0]
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # the server is away
                near.close()
                continue
            self._connections += [near, far]
            self._run(self._pass_on, near, far)
            self._run(self._pass_on, far, near)

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(65536):
                target.sendall(content)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
