"""Counts of gaps that can leave no file: they outlive a cut of the power."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from capture import Capture, until
from power_disk import POLICIES, Disk, forget_start, read_records
from power_loss import compile_recorder
from server import Server, compile_server

from firebird_cdc.journal.folder.shared_page import page_in
from firebird_cdc.journal.format import Gap

pytestmark = pytest.mark.engine

_DISKS = 20


def _counted(tickets: Path) -> int:
    """Return how many gaps the page of the tickets counts, of all databases."""
    return sum(slot.count for slot in page_in(tickets.read_bytes()).gaps if slot.database)


@pytest.fixture
def gap(capture: Capture, tmp_path: Path) -> Iterator[Capture]:
    capture.options["connector.capture.failure.mode"] = "gap"
    capture.options["connector.journal.transactions"] = "1"  # so that each needs a file
    capture.write_config()
    yield capture
    capture.journal_directory.chmod(0o700)


def test_a_count_is_on_disk_when_its_commit_returns(gap: Capture, tmp_path: Path) -> None:
    gap.create("CREATE TABLE T (ID INTEGER, TEXT VARCHAR(1000))")
    recorder, log, program = tmp_path / "recorder.so", tmp_path / "record", tmp_path / "server"
    compile_recorder(recorder)
    compile_server(gap.root.client_library, program)
    log.touch()
    disks = [Disk(gap.journal_directory, gap.database, 8192, policy) for policy in POLICIES]
    # Root may write everywhere, servers are not run by root.
    plainly = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    recorded = ["env", f"LD_PRELOAD={recorder}", f"POWER_ROOT={gap.journal_directory}"]
    server = Server(
        gap,
        program,
        [*(plainly if os.geteuid() == 0 else ()), *recorded, f"POWER_LOG={log}"],
    )
    server.write(0)
    until("the journal to be confirmed", gap.committed)
    gap.journal_directory.chmod(0o500)
    for number in (1, 2, 3):
        server.write(number)
    server.kill()

    gap.journal_directory.chmod(0o700)
    tickets = gap.journal_directory / ".firebird-cdc/tickets/page"
    for record in read_records(log):
        for disk in disks:
            disk.apply(record)
    for disk in disks:
        for seed in range(_DISKS):
            disk.write_to(gap.journal_directory, random.Random(seed))
            assert _counted(tickets) == 3, f"{disk} of seed {seed}"
    forget_start(gap.journal_directory)

    server = Server(gap, program)
    server.write(4)
    server.end()
    gap.await_decided()
    until("the gap to be marked", lambda: _counted(tickets) == 0)
    reasons = [
        change.reason
        for journal in gap.journals()
        for change in journal.changes
        if isinstance(change, Gap)
    ]
    assert len(reasons) == 1
    assert reasons[0].startswith("3 transactions were committed from ")
