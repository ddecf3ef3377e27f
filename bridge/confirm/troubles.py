"""Databases and files at which confirming fails, so that no other one has to wait for them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import logbook

from firebird_cdc.bridge.confirm.pending import Pending
from firebird_cdc.errors import CaptureError, JournalError
from firebird_cdc.journal.folder.shortage import is_shortage

_log = logbook.Logger("firebird_cdc.bridge.confirm.troubles")

_TROUBLE_S = 1.0  # pause when a database can't be asked
_LEDGER_TROUBLE_S = 5.0  # the same when its numbers can't be given
_PATIENCE_S = 5.0  # for which what can't be read holds up what may come after it
_TOLD_AGAIN_S = 60.0  # how soon the log gets a text once more


class Told:
    """Texts that the log has: what is tried again each second would fill it."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}  # monotonic

    def is_news(self, text: str) -> bool:
        """Tell whether TEXT was not told within a minute, and remember that it is now."""
        now = time.monotonic()
        self._at = {each: at for each, at in self._at.items() if at > now - _TOLD_AGAIN_S}
        return self._at.setdefault(text, now) == now


class DatabaseTroubles:
    """The databases in which nothing can be decided now, and when each is tried again."""

    def __init__(self, close_attachment: Callable[[str], None]) -> None:
        """``close_attachment``: closes ours to a database."""
        self.unnumbered: set[str] = set()
        """Databases whose ledger could not be read or written when it was last tried."""
        self._close_attachment = close_attachment
        self._until: dict[str, float] = {}  # monotonic
        self._told: dict[str, str] = {}  # the cause that the log has
        self._told_of_turns = Told()

    def tell_of_turn(self, folder: Path, error: Exception) -> None:
        """Log why nothing could be done in FOLDER."""
        if self._told_of_turns.is_news(f"{folder}: {error}"):
            _log.error(
                "confirming journals in {folder} failed, and is tried again: {cause}",
                folder=folder,
                cause=error,
                exc_info=not isinstance(error, OSError),
            )

    def tell(self, database: str, waiting: Sequence[Pending], error: Exception) -> None:
        """Leave DATABASE, of which journals are WAITING, alone for some seconds. Logs the cause,
        unless it is the one that was logged before."""
        is_of_ledger = database in self.unnumbered
        pause = _LEDGER_TROUBLE_S if is_of_ledger else _TROUBLE_S
        self._until[database] = time.monotonic() + pause
        self._log(database, len(waiting), error)
        self._close_attachment(database)  # it may have ended, and is in the way if not
        for pending in waiting:
            pending.is_stuck, pending.definitions.is_unread = True, False

    def _log(self, database: str, count: int, error: Exception) -> None:
        cause = str(error).replace("\n", " ")
        if self._told.get(database) == cause:
            return
        self._told[database] = cause
        if not isinstance(error, CaptureError | JournalError | OSError):
            _log.exception("deciding transactions of {database} failed", database=database)
        _log.warning(
            "cannot decide {count} transactions of {database}, will keep trying: {cause}",
            database=database,
            count=count,
            cause=cause,
        )

    def is_waiting(self, database: str) -> bool:
        """Tell whether DATABASE is to be left alone now."""
        return self._until.get(database, 0.0) > time.monotonic()

    def try_again(self) -> None:
        """Leave no database alone any longer."""
        self._until.clear()

    def end(self, database: str) -> None:
        """Forget what was told of DATABASE: nothing is in the way there."""
        self._until.pop(database, None)
        self._told.pop(database, None)

    def keep_only(self, databases: Iterable[str]) -> None:
        """Forget all other databases: what waited there is decided."""
        for database in self._told.keys() - set(databases):
            self.end(database)


class UnreadableFiles:
    """Files that can't be read, of which nobody knows what they hold up.

    Such a journal may be any database's and have any place, so for some seconds nothing passes it;
    then the others go on, as they do when a transaction is in limbo.
    """

    def __init__(self) -> None:
        self._since: dict[Path, float] = {}  # monotonic
        self._told: set[Path] = set()
        self._met_before = 0.0

    def go_on(self, met: float) -> None:
        """Go on after a leader that met such files at the moment MET, monotonic; 0: it met none.
        Under Classic each process that leads would have the others wait anew."""
        self._met_before = met

    @property
    def since(self) -> float:
        """The moment at which the first of them was met, monotonic; 0: there is none."""
        return min(self._since.values(), default=0.0)

    def __len__(self) -> int:
        return len(self._since)

    @contextlib.contextmanager
    def passing_over(self, path: Path) -> Iterator[None]:
        """Do what reads PATH. Suppresses an OSError once others have waited long enough for it;
        before that, and where this process lacks something, raises it."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            if is_shortage(error):
                raise
            since = self._since.setdefault(path, self._met_before or time.monotonic())
            if time.monotonic() < since + _PATIENCE_S:
                raise
            if path not in self._told:
                self._told.add(path)
                _log.error(
                    "{path} can't be read or moved ({cause}); later commits are published without "
                    "it, and it is tried again every few seconds. Check the disk and its free "
                    "space. If the file can't be read any more, move it elsewhere, and find what "
                    "is missing with: firebird-cdc replay audit",
                    path=path,
                    cause=error.strerror,
                )
        else:
            self._since.pop(path, None)
            self._told.discard(path)

    def has_some_of(self, folder: Path) -> bool:
        """Tell whether FOLDER, or a file in it, can't be read."""
        return any(folder in (path, path.parent) for path in self._since)

    def keep_only(self, paths: Iterable[Path]) -> None:
        """Forget all other files: they are no longer there."""
        for path in self._since.keys() - set(paths):
            del self._since[path]
            self._told.discard(path)
