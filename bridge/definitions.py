"""Finds out what records do not show of their tables, while the transaction runs.

A record shows names and types of its columns; the key, NOT NULL and the rest stand in the
system tables. To ask those inside a callback of the engine can stop the server for good, so
the plugin asks this thread at the first use of a table, and ``prepare`` waits for the answer.
Before DDL of indexes it also asks for what indexes are keys: one that is gone says no more what it
was (structures).

Guarantees: a question is answered only after the attachment that was opened for it is closed,
so that none of ours is in anybody's way once a commit is done. What can't be found out is
answered with nothing, and the confirmer tries again. Assumes: the attachment may call back
into the plugin on this thread, so no lock of ours is held over it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import logbook

from firebird_cdc.bridge.host import Host, Question, QuestionKind
from firebird_cdc.bridge.structures import KeyIndexFile, read_key_indexes
from firebird_cdc.errors import CaptureError

_log = logbook.Logger("firebird_cdc.bridge.definitions")

_WAIT_MS = 1000
_TROUBLE_S = 1.0  # pause when a database can't be asked


class DefinitionFinder(threading.Thread):
    """Answers the plugin's questions about tables; one per server process."""

    def __init__(self, host: Host, databases: Callable[[], Path]) -> None:
        """``databases``: where the state of databases is kept now."""
        super().__init__(name="fbc-definitions", daemon=True)
        self._host = host
        self._databases = databases
        self._troubled: dict[int, float] = {}  # databases that can't be asked, until when

    def run(self) -> None:
        while True:
            try:
                questions = self._host.take_questions(_WAIT_MS)
                shown = [each for each in questions if each.kind is QuestionKind.COMPLETE]
                if shown:
                    self._answer(shown[0].database, shown)
                for question in questions:
                    if question.kind is not QuestionKind.COMPLETE:
                        self._find_key_indexes(question)
            except Exception:  # who waits for an answer gives up, others ask again
                _log.exception("reading table definitions failed, tried again")
                time.sleep(_TROUBLE_S)

    def _answer(self, database: int, questions: list[Question]) -> None:
        found: dict[int, bytes] = {}
        try:
            if self._troubled.get(database, 0.0) <= time.monotonic():
                self._describe(database, questions, found)
                self._troubled.pop(database, None)
        except CaptureError as error:
            self._troubled[database] = time.monotonic() + _TROUBLE_S
            _log.info(
                "cannot read the table definitions of {database} now, will do so after the"
                " commit: {cause}",
                database=self._host.database(database).path,
                cause=str(error).replace("\n", " "),
            )
        except Exception:
            _log.exception("reading the definitions of tables failed")
        for question in questions:
            complete = found.get(question.number, b"")
            if complete:
                self._host.store_definition(database, question.generation, question.shown, complete)
            self._host.answer_question(question.number, complete)

    def _describe(self, database: int, questions: list[Question], found: dict[int, bytes]) -> None:
        attachment = self._host.open_attachment(self._host.database(database).path)
        try:
            with attachment.reading():
                for question in questions:
                    found[question.number] = attachment.describe(question.shown)
        finally:
            attachment.close()

    def _find_key_indexes(self, question: Question) -> None:
        path, guid = self._host.database(question.database)
        file = KeyIndexFile(self._databases(), path, guid)
        try:
            if file.read() is None:
                attachment = self._host.open_attachment(path)
                try:
                    with attachment.reading():
                        indexes = read_key_indexes(attachment)
                finally:
                    attachment.close()
                file.write(indexes)
        except (CaptureError, OSError) as error:
            text = str(error).replace("\n", " ")
            _log.info(
                "cannot read now which indexes of {database} are keys: {cause}",
                database=path,
                cause=text,
            )
        finally:
            self._host.answer_question(question.number, b"")
