"""An attachment for reading, as the plugin opens it inside this process (native/reading.c)."""

from __future__ import annotations

import os
import threading
from typing import Any

from firebird_cdc.errors import CaptureError

_SHOWN_BYTES = 1024 * 1024
_INFO_BYTES = 1024


class EngineRefusal(CaptureError):
    """Error of the engine. ``codes``: its own, the first ones."""

    def __init__(self, words: str, codes: tuple[int, ...]) -> None:
        super().__init__(words)
        self.codes = codes


class EngineReading:
    """An attachment for one thread; `cancel` is for any. What it opens, it names by handles of its
    own, which are never to be used after their end. Raises EngineRefusal."""

    def __init__(self, ffi: Any, api: Any, database: str, *, has_rights: bool = True) -> None:
        self._ffi, self._api = ffi, api
        self._failure = ffi.new("struct fbc_failure *")
        self._is_end = ffi.new("int32_t *")
        self._used = ffi.new("uint32_t *")
        self._lock = threading.Lock()
        attach = api.reading_attach if has_rights else api.reading_stand
        self._handle = attach(os.fsencode(database), self._failure)
        if not self._handle:
            raise self._refusal()

    def _refusal(self) -> EngineRefusal:
        failure = self._failure
        words = self._ffi.string(failure.text).decode("utf-8", "replace")
        codes = tuple(failure.codes[place] for place in range(failure.count))
        return EngineRefusal(words or "the engine does not say why", codes)

    def _required(self, found: Any) -> Any:
        if not found:
            raise self._refusal()
        return found

    def detach(self) -> None:
        """End the attachment, once all that it opened is let go."""
        with self._lock:
            handle, self._handle = self._handle, None
        if handle:
            self._api.reading_detach(handle)

    def cancel(self) -> None:
        """Have what another thread does here end soon."""
        with self._lock:
            if self._handle:
                self._api.reading_cancel(self._handle)

    def begin(self, parameters: bytes) -> Any:
        """Begin a transaction."""
        found = self._api.reading_begin(self._handle, parameters, len(parameters), self._failure)
        return self._required(found)

    def end(self, transaction: Any) -> None:
        """End TRANSACTION."""
        self._api.reading_end(self._handle, transaction)

    def info(self, transaction: Any | None, items: bytes) -> bytes:
        """Return what the engine answers to ITEMS, of TRANSACTION or of the database."""
        answer = self._ffi.new("unsigned char[]", _INFO_BYTES)
        self._required(
            self._api.reading_info(
                self._handle,
                transaction or self._ffi.NULL,
                items,
                len(items),
                answer,
                _INFO_BYTES,
                self._failure,
            )
        )
        return bytes(self._ffi.buffer(answer))

    def prepare(self, transaction: Any, sql: bytes) -> tuple[Any, bytes]:
        """Prepare SQL; return the statement and what its rows are."""
        shown = self._ffi.new("unsigned char[]", _SHOWN_BYTES)
        statement = self._required(
            self._api.reading_prepare(
                self._handle,
                transaction,
                sql,
                len(sql),
                shown,
                _SHOWN_BYTES,
                self._used,
                self._failure,
            )
        )
        return statement, bytes(self._ffi.buffer(shown, self._used[0]))

    def open(self, transaction: Any, statement: Any) -> None:
        """Open the rows of STATEMENT."""
        self._required(self._api.reading_open(self._handle, transaction, statement, self._failure))

    def fetch(self, statement: Any, size: int) -> tuple[Any, int, bool]:
        """Return the next rows of STATEMENT, up to SIZE bytes of them, how many, and whether there
        are no more."""
        rows = self._ffi.new("unsigned char[]", size)
        count = int(
            self._api.reading_fetch(
                self._handle, statement, rows, size, self._is_end, self._failure
            )
        )
        if count < 0:
            raise self._refusal()
        return rows, count, bool(self._is_end[0])

    def view(self, rows: Any, size: int) -> memoryview:
        """Return SIZE bytes of what `fetch` gave."""
        return memoryview(self._ffi.buffer(rows, size))

    def free(self, statement: Any) -> None:
        """Let STATEMENT go."""
        self._api.reading_free(self._handle, statement)

    def open_blob(self, transaction: Any, number: bytes) -> Any:
        """Open a BLOB by its number."""
        found = self._api.reading_open_blob(self._handle, transaction, number, self._failure)
        return self._required(found)

    def blob_piece(self, blob: Any, size: int) -> tuple[bytes, bool]:
        """Return the next bytes of BLOB, and whether there are no more."""
        piece = self._ffi.new("unsigned char[]", size)
        count = int(
            self._api.reading_blob_piece(
                self._handle, blob, piece, size, self._is_end, self._failure
            )
        )
        if count < 0:
            raise self._refusal()
        return bytes(self._ffi.buffer(piece, count)), bool(self._is_end[0])

    def blob_length(self, blob: Any) -> int:
        """Return how many bytes BLOB has as a whole."""
        length = int(self._api.reading_blob_length(self._handle, blob, self._failure))
        if length < 0:
            raise self._refusal()
        return length

    def close_blob(self, blob: Any) -> None:
        """Let BLOB go."""
        self._api.reading_close_blob(self._handle, blob)
