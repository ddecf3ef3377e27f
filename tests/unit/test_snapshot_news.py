"""News of snapshots: each is told once, whatever becomes of the rows that it was to go with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from firebird_cdc.journal.shipper.delivery.resend import Outcome
from firebird_cdc.journal.shipper.snapshots.rows import Batch
from firebird_cdc.journal.shipper.snapshots.runner import SnapshotRunner
from firebird_cdc.journal.shipper.snapshots.state import (
    Kind,
    Snapshot,
    SnapshotState,
    Status,
    TableProgress,
)
from firebird_cdc.journal.shipper.snapshots.windows import Phase

_OPENED = {
    "number": 1,
    "transaction": 1,
    "oldest": 1,
    "following": 1,
    "outside": (),
    "inside": (),
    "dead": (),
    "taken_us": 0,
    "barriers": {},
    "tables": ["A", "B"],
    "extents": {},
}


class _Scene:
    """A runner amid a blocking snapshot of TABLES.

    ``told``: by itself; ``carried``: with the rows that are on their way, whose ``answer`` is due.
    """

    def __init__(self, *tables: TableProgress) -> None:
        self.told: list[str] = []
        self.carried: tuple[str, ...] = ()
        self.answer: Callable[[Outcome], None] = Mock()
        around = Mock()
        around.notifications.side_effect = _named
        around.tell.side_effect = self.told.extend
        around.tables_of.return_value = [*tables]
        around.is_crowded.return_value = False
        around.send.side_effect = self._send
        self.snapshot = Snapshot("it", Kind.BLOCKING, "command")
        self.runner = SnapshotRunner(SnapshotState("db", waiting=[self.snapshot]), around)

    def _send(self, batch: Batch, _: object, answer: Callable[[Outcome], None]) -> None:
        self.carried, self.answer = tuple(map(str, batch.notifications)), answer

    def open(self) -> None:
        """Open a window, in which rows can be read."""
        runner = self.runner
        runner.work.readers = Mock()
        runner.work.phase = Phase.OPENING
        runner._take(0, dict(_OPENED))
        assert runner.work.window is not None
        runner.work.window.cut, runner.work.window.ahead = (0, 1), Mock()
        runner.work.window.ahead.next.return_value = None

    def read(self, table: str) -> None:
        """Have the only row of TABLE on its way."""
        answer: dict[str, Any] = {"table": table, "rows": 1, "runs": [], "last": b"\1"}
        answer |= {"is_end": True, "left_out": [], "filtered": 0, "shape": [1]}
        answer |= {"unread": [], "undecoded": []}
        self.runner._read({**answer, "took_s": 0.0})


def _named(_: str, __: Snapshot, kind: str, table: TableProgress | None, *___: object) -> list[str]:
    return [kind if table is None else f"{kind} {table.name}"]


def _scene() -> _Scene:
    scene = _Scene(TableProgress("A"), TableProgress("B"))
    scene.open()
    return scene


@pytest.mark.parametrize("is_refused", [True, False])
def test_what_has_begun_is_told_and_what_was_not_sent_is_not(is_refused: bool) -> None:
    scene = _scene()
    scene.read("A")
    assert scene.carried == ("STARTED", "IN_PROGRESS A", "TABLE_SCAN_COMPLETED A")
    if is_refused:
        scene.answer(Outcome(False, "Kafka refuses it"))
    else:
        scene.runner.work.drop("Kafka is away")
    scene.open()
    scene.read("A")
    assert scene.carried == ("STARTED", "IN_PROGRESS A", "TABLE_SCAN_COMPLETED A")
    scene.answer(Outcome(True, ""))
    scene.read("B")
    assert scene.carried == ("IN_PROGRESS B", "TABLE_SCAN_COMPLETED B", "COMPLETED")
    scene.answer(Outcome(False, "Kafka refuses it"))
    scene.open()
    scene.read("A")
    assert scene.carried == ("IN_PROGRESS A", "TABLE_SCAN_COMPLETED A")


def test_end_is_told_where_the_last_table_is_gone_before_its_rows_are_sent() -> None:
    scene = _scene()
    scene.read("A")
    scene.answer(Outcome(True, ""))
    scene.read("B")
    scene.runner.work.drop("Kafka is away")
    scene.open()
    scene.read("A")
    scene.answer(Outcome(True, ""))
    scene.runner._read({"table": "B", "gone": True})
    assert scene.told == ["TABLE_SCAN_COMPLETED B", "COMPLETED"]


def test_table_that_is_left_out_from_the_start_is_told_of() -> None:
    bad = TableProgress("BAD", status=Status.SKIPPED, why="its name is none of a topic")
    scene = _Scene(TableProgress("A"), bad)
    scene.open()
    scene.read("A")
    assert scene.carried == (
        "STARTED",
        "TABLE_SCAN_COMPLETED BAD",
        "IN_PROGRESS A",
        "TABLE_SCAN_COMPLETED A",
        "COMPLETED",
    )
