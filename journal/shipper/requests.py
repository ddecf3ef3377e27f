"""The channel between commands and the shipper: requests and answers, files in a folder.

A request is a file ``<id>.request`` in a folder of ``.firebird-cdc``, which the shipper looks for
every second; the answer is ``<id>.answer``. A request stays until it is answered, so also one that
nobody waits for any more is done, at the next start at the latest. This works wherever the journal
folder can be written, needs no port, and no shipper to run when something is asked for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import logbook

from firebird_cdc import access
from firebird_cdc.journal.folder.durable import give_to_owner_of, replace_file
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.snapshot.signals import describe_broken

_log = logbook.Logger("firebird_cdc.journal.shipper.requests")

RETRIES = "retry"
"""Folder of the requests of ``firebird-cdc journal retry`` and ``firebird-cdc replay repair``."""

ANSWERS_KEPT_S = 3600.0
"""An answer that nobody fetched is removed after this time."""

_REQUEST = ".request"
_ANSWER = ".answer"
_ASK_S = 0.1


def write_request(journals: Path, content: Mapping[str, Any], room: str = RETRIES) -> Path:
    """Leave a request for the shipper in ROOM, a folder of its own; return its file."""
    state = journals / STATE_DIRECTORY
    folder = state / room
    access.make_directory(folder)
    give_to_owner_of(state, folder)
    path = folder / f"{uuid4()}{_REQUEST}"
    replace_file(path, json.dumps(content).encode(), owner_of=state)
    return path


def await_answer(request: Path, seconds: float) -> dict[str, Any] | None:
    """Return the shipper's answer to REQUEST, None: there is none after so many seconds."""
    end = time.monotonic() + seconds
    while (answer := take_answer(request)) is None:
        if time.monotonic() >= end:
            return None
        time.sleep(_ASK_S)
    return answer


def take_answer(request: Path) -> dict[str, Any] | None:
    """Return the shipper's answer to REQUEST, and remove it; None if there is none yet."""
    path = request.with_suffix(_ANSWER)
    if not path.exists():
        return None
    answer: dict[str, Any] = json.loads(path.read_bytes())
    path.unlink(missing_ok=True)
    return answer


class Request(NamedTuple):
    """A request as it was found: its file, and what is in it."""

    path: Path
    text: bytes

    @property
    def key(self) -> str:
        """The name that only this request has."""
        return self.path.stem

    def content(self) -> dict[str, Any]:
        """Return what is asked for. Raises ValueError if that is no JSON object, or has what can't
        be written anywhere."""
        try:
            found = json.loads(self.text)
            broken = describe_broken(json.dumps(found, ensure_ascii=False))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        if broken:
            raise ValueError(f"it has {broken}")
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
        return found


class RequestFolder:
    """The requests in FOLDER, for the shipper. Belongs to one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._taken: set[Path] = set()  # not answered yet
        self._unwritten: dict[Path, bytes] = {}  # answers, by their requests

    def look(self) -> Iterator[Request]:
        """Yield the requests that are new, as they were made: several may have waited. What could
        not be answered before is answered first."""
        self._remove_old_answers()
        for path in list(self._unwritten):
            self._write(path)
        for path in self._in_time():
            if path in self._taken:
                continue
            try:
                request = Request(path, path.read_bytes())
            except OSError as error:
                _log.debug("{}: not yet: {}", path, error)
                continue
            self._taken.add(path)
            yield request

    def answer(self, request: Request, answer: Mapping[str, Any]) -> bool:
        """Leave ANSWER to REQUEST, which is done; False: it can only be left later."""
        self._unwritten[request.path] = json.dumps(answer, ensure_ascii=False).encode()
        return self._write(request.path)

    def postpone(self, request: Request) -> None:
        """Have REQUEST come again with the next look, as it could not be begun."""
        self._taken.discard(request.path)

    def drop(self, request: Request) -> None:
        """Delete REQUEST, which gets no answer."""
        request.path.unlink(missing_ok=True)
        self._taken.discard(request.path)

    def _write(self, path: Path) -> bool:
        try:
            replace_file(path.with_suffix(_ANSWER), self._unwritten[path])
            path.unlink(missing_ok=True)
        except OSError as error:
            _log.error("{}: can't be answered yet: {}", path, error)
            return False
        del self._unwritten[path]
        self._taken.discard(path)
        return True

    def _in_time(self) -> list[Path]:
        found = []
        for path in self._folder.glob(f"*{_REQUEST}"):
            with suppress(FileNotFoundError):
                found.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(found)]

    def _remove_old_answers(self) -> None:
        oldest = time.time() - ANSWERS_KEPT_S
        for path in self._folder.glob(f"*{_ANSWER}"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()
