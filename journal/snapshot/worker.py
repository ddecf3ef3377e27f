"""Reader process of a snapshot: reads rows in a window and renders them as messages.

The shipper starts it, and asks by pipe (`journal.snapshot.pipe`); each question has one answer. A
process, because it can be killed when the client library or a server hangs, because the shipper
needs no engine in itself, and because decoding and rendering take one core for each reader.

===========  =====================================================================================
``attach``   begin to use the database; answers with its GUID and path
``open``     begin a window; answers with what it sees, or whom it has to wait for
``join``     have part in a window that another process has opened, as that one has told it
``look``     tell which of the last tables have no rows in the window
``measure``  count the next rows of a table in the window, so that others can read behind them
``read``     read and render the next rows of a table in the window, and check that it is sound
``close``    end the window, or the part in it
===========  =====================================================================================

An answer has ``failed`` where it can't be done: the window is over then.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Lock, Thread
from typing import IO, Any
from uuid import UUID

from firebird_cdc.clock import now_us
from firebird_cdc.config import ConnectorConfig
from firebird_cdc.config.producer import max_message_bytes
from firebird_cdc.errors import (
    DatabaseUnreadable,
    FirebirdCdcError,
    Obstacle,
    QueryRefused,
    RowRefused,
    TableRefused,
)
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.events.snapshot_rows import SnapshotFacts, SnapshotRenderer
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.snapshot.attachment import DatabaseConnection, found_way
from firebird_cdc.journal.snapshot.catalogue import (
    DatabaseTable,
    definition_version,
    read_extents,
    read_tables,
    read_temporary,
)
from firebird_cdc.journal.snapshot.holder import AttachedHolder, attached_holder
from firebird_cdc.journal.snapshot.pipe import read_object, write_object
from firebird_cdc.journal.snapshot.publication import DATABASE, Barrier
from firebird_cdc.journal.snapshot.queries import is_select
from firebird_cdc.journal.snapshot.reader import SnapshotReader
from firebird_cdc.journal.snapshot.rendered import (
    Marks,
    RowWriter,
    SelectedRows,
    StoredRows,
    packed,
)
from firebird_cdc.journal.snapshot.visibility import VisibleSet
from firebird_cdc.journal.snapshot.window import (
    Window,
    begin_window,
    find_older,
    join_window,
    meet_publication,
)

_PR_SET_PDEATHSIG = 1  # of Linux

ALIVE_S = 1.0
"""Time after which a reader process says again that it runs."""

_LEAVE_S = 5.0
"""Without a shipper a reader process has so long to leave the database, whatever it waits for."""

_LOOK_S = 5.0
"""It is looked for so long for the last table with rows, of many that have none."""

BATCH_BYTES = 8 * 1024 * 1024
"""Bytes of messages after which a batch ends."""


@dataclass(frozen=True)
class Setup:
    """Setup of a reader process.

    ``how``: to attach; ``database``: as journals name it; ``owners``: tables that came first to
    their topics.
    """

    config: ConnectorConfig
    how: DatabaseConnection
    database: str
    owners: list[tuple[str, str]]

    def dumped(self) -> bytes:
        """Return it for a process of our own; it may contain a password."""
        return pickle.dumps(self)


class SnapshotWorker:
    """Answers the questions of one shipper about one database."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._stack = ExitStack()
        config = setup.config
        self._renderer = Renderer(config, max_message_bytes(config.producer))
        self._renderer.settle(setup.owners)
        self._holder: AttachedHolder | None = None
        self._reader: SnapshotReader | None = None
        self._window: Window | None = None
        self._taken_us = 0
        # Tables as they were in the last window, by what is another once they are.
        self._tables: dict[str, tuple[object, DatabaseTable]] = {}
        self._met: set[str] = set()  # those that were looked at in this window
        self._selected: SelectedRows | None = None

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to QUESTION; whatever goes wrong is in it."""
        try:
            found: dict[str, Any] = getattr(self, f"_{question['do']}")(question)
        except TableRefused as error:  # nothing is wrong with the window
            is_sql = isinstance(error, QueryRefused)
            return {"refused": str(error), "is_sql": is_sql, "table": question["table"]}
        except RowRefused as error:  # nor here
            return {"bad_row": str(error), "table": question["table"]}
        except (FirebirdCdcError, Obstacle) as error:
            self.close_window()
            return {"failed": str(error), "kind": type(error).__name__}
        except Exception as error:  # the driver's, or a defect: who asked tells it
            self.close_window()
            told = " ".join(str(error).split())
            return {"failed": f"{type(error).__name__}: {told}", "kind": "Exception"}
        return found

    def close(self) -> None:
        """Leave the database."""
        self.close_window()
        self._stack.close()

    def close_window(self) -> None:
        """End the window, if one is open. Where its attachment is dead, it has ended."""
        if self._selected is not None:
            with contextlib.suppress(Exception):
                self._selected.rows.close()
        self._selected = None
        self._met.clear()
        self._window = None
        with contextlib.suppress(Exception):
            if self._holder is not None:
                self._holder.end()
        with contextlib.suppress(Exception):
            if self._reader is not None:
                self._reader.leave()

    # The questions

    def _attach(self, _: Mapping[str, Any]) -> dict[str, Any]:
        config = self._setup.config
        how = found_way(
            self._setup.how,
            config.journal_directory / STATE_DIRECTORY,
            by_server=config.snapshot_by_server,
        )
        self._holder = self._stack.enter_context(attached_holder(how))
        self._reader = self._stack.enter_context(SnapshotReader(how, None, config.charset_none))
        return {"guid": self._holder.guid.bytes, "path": self._holder.path}

    def _open(self, question: Mapping[str, Any]) -> dict[str, Any]:
        holder, reader = self._holder, self._reader
        assert holder is not None
        assert reader is not None
        known = {name: Barrier(*numbers) for name, numbers in question["barriers"].items()}
        barriers = meet_publication(holder, known)
        told = {name: tuple(barrier) for name, barrier in barriers.items()}
        if DATABASE not in barriers:
            return {"unpublished": True, "barriers": told}
        if older := find_older(holder, barriers):
            return {"waits": [str(each) for each in older], "barriers": told}
        extents = read_extents(holder.connection) if question["wants_tables"] else {}
        window = begin_window(holder, barriers, question["patience_s"])
        self._window, self._taken_us = window, now_us()
        reader.join(window.number)
        if window.not_seen or window.unpublished:  # which others would not know of
            window.require_sound([reader.oldest])
        # Of the rows of temporary ones nobody else knows.
        temporary = read_temporary(window.connection) if question["wants_tables"] else ()
        return {
            "barriers": told,
            **window.visible.told,
            "taken_us": self._taken_us,
            "tables": [name for name in barriers if name not in (DATABASE, *temporary)],
            "extents": extents,
        }

    def _join(self, question: Mapping[str, Any]) -> dict[str, Any]:
        holder, reader = self._holder, self._reader
        assert holder is not None
        assert reader is not None
        barriers = {name: Barrier(*numbers) for name, numbers in question["barriers"].items()}
        window = join_window(holder, VisibleSet.of(question), barriers)
        self._window, self._taken_us = window, question["taken_us"]
        reader.join(window.number)
        window.require_sound([reader.oldest])  # before anything was read
        return {"joined": True}

    def _look(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Go through the tables from the last one on, for a while, up to one that has rows."""
        window, reader = self._window, self._reader
        assert window is not None
        assert reader is not None
        empty: list[str] = []
        deadline = time.monotonic() + _LOOK_S
        with contextlib.suppress(DatabaseUnreadable):  # it counts once rows are read
            for name in question["tables"]:
                table = self._table(name, window)
                if table is not None and reader.has_rows(table):
                    break
                empty.append(name)
                if time.monotonic() > deadline:
                    break
        return {"empty": empty}

    def _measure(self, question: Mapping[str, Any]) -> dict[str, Any]:
        window, reader = self._window, self._reader
        assert window is not None
        assert reader is not None
        table = self._table(question["table"], window)
        if table is None:
            return {"table": question["table"], "gone": True}
        count, last = reader.measured(
            table, question["after"], question["rows"], question["condition"]
        )
        return {"measured": count, "last": last}

    def _read(self, question: Mapping[str, Any]) -> dict[str, Any]:
        window, reader = self._window, self._reader
        assert window is not None
        assert reader is not None
        name = question["table"]
        table = self._table(name, window)
        if table is None:
            return {"table": name, "gone": True}
        shape = [
            table.relation,
            *(table.table.columns[each].name for each in table.table.key_columns),
        ]
        if question["shape"] not in (None, shape):
            return {"table": name, "changed": shape}
        epoch, sequence = question["cut"]
        facts = SnapshotFacts(
            UUID(bytes=question["uuid"]), window.number, epoch, sequence, self._taken_us
        )
        writer = RowWriter(
            SnapshotRenderer(self._renderer, self._setup.database, facts),
            table.table,
            question["pos"],
            Marks(
                is_incremental=question["is_incremental"],
                is_first=question["is_first"],
                begins_all=question["pos"] == 1,
                ends_all=question["is_last_table"],
            ),
            fails=self._setup.config.failure_handling_mode == "fail",
        )
        began = time.monotonic()
        last, is_end = self._write_rows(question, table, reader, writer)
        # Only what was read in a window that is sound so far leaves this process.
        window.require_sound([reader.oldest])
        return {
            "table": name,
            "shape": shape,
            "rows": writer.rows,
            "size": writer.size,
            "runs": [packed(run) for run in writer.runs],
            "left_out": writer.left_out,
            "unread": writer.unread,
            "undecoded": writer.undecoded,
            "filtered": writer.filtered,
            "last": last,
            "is_end": is_end,
            "took_s": time.monotonic() - began,
        }

    def _close(self, _: Mapping[str, Any]) -> dict[str, Any]:
        self.close_window()
        return {"closed": True}

    def _write_rows(
        self,
        question: Mapping[str, Any],
        table: DatabaseTable,
        reader: SnapshotReader,
        writer: RowWriter,
    ) -> tuple[bytes | None, bool]:
        """Have WRITER take the next rows; return the DB_KEY of the last one, and whether the table
        ends there."""
        name, condition, most = question["table"], question["condition"], question["rows"]
        if condition is None or not is_select(condition):
            # Without a key, what is behind a place can't be read in another window.
            numbers = question["numbers"] if table.table.key_columns else None
            last, is_end = question["after"], True
            with reader.opened(table, last, most, condition, numbers) as cursor:
                if cursor.fetch():
                    rows = StoredRows(reader, cursor, table.table)
                    is_end = writer.write(rows, most, BATCH_BYTES)
                    last = rows.last
            if is_end and numbers is not None:
                beyond = reader.beyond(table, question["after"], numbers)
                return (last, True) if beyond is None else (beyond, False)
            return last, is_end
        selected = self._selected
        if selected is None or question["taken"] == 0:
            selected = self._selected = SelectedRows(name, reader.selected(table, condition))
        if (selected.table, selected.taken) != (name, question["taken"]):
            raise DatabaseUnreadable(f"table {name}: its SELECT is at another row")
        is_end = selected.held is None or writer.write(selected, most, BATCH_BYTES)
        selected.taken += writer.rows
        return None, is_end

    def _table(self, name: str, window: Window) -> DatabaseTable | None:
        """Return the table NAME as it is in WINDOW, None: there is none, or it is not published."""
        holder = self._holder
        assert holder is not None
        known = self._tables.get(name)
        if known is not None and name in self._met:
            return known[1]
        version = definition_version(window.connection, name)
        if not version or name not in window.barriers:
            return None
        if known is None or known[0] != version:
            found = read_tables(window.connection, holder.page_size, [name]).get(name)
            if found is None:
                return None
            known = self._tables[name] = version, found
        self._met.add(name)
        return known[1]


def _tell_alive(answers: IO[bytes], writing: Lock) -> None:
    """Write now and then that the process runs, however long an answer takes; end the process soon
    after the shipper's."""
    with contextlib.suppress(OSError, ValueError):
        while True:
            time.sleep(ALIVE_S)
            with writing:
                write_object(answers, None)
    time.sleep(_LEAVE_S)
    os._exit(1)


def _go_on_without_parent() -> None:
    """Have a process that stands still go on when the shipper is killed, and so leave the database:
    where processes share its file, it may hold pages that all others need."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def main() -> None:
    """Answer until the shipper closes the pipe, or dies."""
    _go_on_without_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the shipper's business
    questions = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not get among the answers
    setup = pickle.loads(read_object(questions))  # noqa: S301 - from the shipper that started us
    writing = Lock()
    Thread(target=_tell_alive, args=(answers, writing), name="alive", daemon=True).start()
    worker = SnapshotWorker(setup)
    try:
        while True:
            answer = worker.answer(read_object(questions))
            with writing:
                write_object(answers, answer)
    except (EOFError, BrokenPipeError):
        sys.exit(0)
    finally:
        worker.close()
