"""Process that confirms for all: its thread may end, or hang, while the process lives."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from capture import PATIENCE_S, Attachment, Capture, Client, SqlError, until
from test_two_phase import Pair, pair

from firebird_cdc.cli import main
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.journal.folder.shared_page import (
    HUNG_S,
    SharedPage,
    page_in,
    read_confirmer,
)

__all__ = ["pair"]

pytestmark = pytest.mark.engine

_DBA = Path(__file__).with_name("dba_work.py")
_POINTS = Path(__file__).parents[1] / "faults" / "points.py"
_TABLE = "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)"
_SOON_S = 0.5  # who does not hear of a commit looks a second after the one before it
_ENOUGH, _MOST_COMMITS = 5, 40


def _write(attachment: Attachment, number: int) -> None:
    attachment.execute("INSERT INTO T (ID) VALUES (?)", number)
    attachment.commit()


def _ids(capture: Capture) -> list[int]:
    return [row["ID"] for journal in capture.journals() for _, _, row in journal.brief() if row]


def _state(capture: Capture) -> Path:
    return capture.journal_directory / ".firebird-cdc"


def _confirmer(capture: Capture) -> int:
    return int(page_in((_state(capture) / "tickets/page").read_bytes()).confirmer)


def _status(capture: Capture) -> tuple[int, str]:
    with redirect_stdout(StringIO()) as shown:
        code = main(["status", "--directory", str(capture.journal_directory)])
    return code, shown.getvalue()


def _await_end_of_thread(client: Client) -> None:
    """Wait until writing is refused: what the log says of the end is there somewhat earlier."""
    until("the thread to end", lambda: not client.perform(_POINTS, "is_confirming"))


def _write_until(
    what: str, holds: Callable[[], bool], capture: Capture, attachment: Attachment
) -> int:
    """Write rows, from 3 on, until WHAT holds; return the last number. Another process publishes
    one if the thread here was slow to hear of it, and does not come to where it is to fail then."""
    number = 3
    _write(attachment, number)

    def is_so() -> bool:
        nonlocal number
        is_published = len(capture.committed()) == number
        if holds():
            return True
        if is_published:
            number += 1
            _write(attachment, number)
        return False

    until(what, is_so)
    return number


def test_another_process_publishes_after_a_confirmer_thread_ends(
    classic: Capture,
) -> None:
    classic.create(_TABLE)
    first, second = classic.attach(), classic.attach()
    _write(first, 1)
    _write(second, 2)
    assert _ids(classic) == [1, 2]
    classic.clients[0].perform(_POINTS, "end_thread", "publish.before")
    told = "the thread that confirms journals ends"
    last = _write_until("its end", lambda: told in classic.log.read_text(), classic, first)
    until("the other process to publish it", lambda: len(classic.committed()) == last)
    assert _ids(classic) == list(range(1, last + 1))


def _can_write(attachment: Attachment, number: int) -> bool:
    """Write, and return whether that was not refused: a start is tried once a second."""
    try:
        _write(attachment, number)
    except SqlError:
        attachment.rollback()
        return False
    return True


def test_a_process_alone_starts_the_thread_again(capture: Capture) -> None:
    capture.create(_TABLE)
    attachment = capture.attach()
    _write(attachment, 1)
    assert _ids(capture) == [1]
    capture.clients[0].perform(_POINTS, "end_thread", "publish.before")
    _write(attachment, 2)
    _await_end_of_thread(capture.clients[0])
    until("another start", lambda: _can_write(attachment, 3))
    assert _ids(capture) == [1, 2, 3]


def test_confirmer_hears_of_commits_once_the_plugin_was_loaded_by_another_path(
    capture: Capture,
) -> None:
    root, first = capture.root.path, capture.database
    plugins = root / "plugins.conf"
    before, name, behind = plugins.read_text().partition("Plugin = Firebird_CDC")
    plugins.write_text(before + name + behind.replace("$(dir_plugins)", f"{root}/plugins/.", 1))
    capture.create(_TABLE)
    capture.database = first.with_name("second.fdb")
    capture.create(_TABLE)
    with (root / "replication.conf").open("a") as replication:
        replication.write(f"database = {capture.database}\n{{\nplugin = Firebird_CDC\n}}\n")
    client = capture.client()
    _write(client.attach(first), 1)
    second = client.attach(capture.database)
    number, soon = 1, 0
    while soon < _ENOUGH and number <= _MOST_COMMITS:  # a busy machine stands still for seconds
        number += 1
        _write(second, number)
        began = time.monotonic()
        until("it to be confirmed", lambda: len(capture.read_all()) == number)  # noqa: B023
        soon += time.monotonic() - began < _SOON_S
    assert soon == _ENOUGH


def test_process_without_its_confirmer_thread_releases_a_removed_ticket_file(
    capture: Capture,
) -> None:
    capture.create(_TABLE)
    attachment = capture.attach()
    _write(attachment, 1)
    assert _ids(capture) == [1]
    capture.clients[0].perform(_POINTS, "end_thread", "publish.before")
    _write(attachment, 2)
    _await_end_of_thread(capture.clients[0])
    (_state(capture) / "tickets/page").unlink()
    until("another start", lambda: _can_write(attachment, 3))
    assert _ids(capture) == [1, 2, 3]


def test_a_journal_in_limbo_is_not_forgotten_when_the_thread_ends(pair: Pair) -> None:
    """Its process lives on, so nobody else looks after it."""
    capture = pair.capture
    client = capture.client()
    client.perform(_POINTS, "end_thread", "mark_limbo.before")
    databases = [str(each) for each in pair.databases]
    client.perform(_DBA, "two_phases", databases, ["INSERT INTO T VALUES (1, 0)"], "leave")
    _await_end_of_thread(client)
    attachment = client.attach(pair.databases[0])
    until("another start", lambda: _can_write(attachment, 2))
    attachment.close()
    pair.resolve(commit=True)
    one, two = pair.balance()
    assert [len(one), len(two)] == [2, 1]


def _let_time_pass(capture: Capture, seconds: float) -> None:
    """Have the last heartbeat be that much older; whoever could give another one hangs."""
    with (
        (_state(capture) / "tickets/page").open("r+b") as file,
        closing(SharedPage(file.fileno())) as page,
    ):
        page.fields.heartbeat_ms = time.monotonic_ns() // 1_000_000 - int(seconds * 1000)


def test_hanging_confirmer_is_reported_and_not_replaced_before_it_ends(
    classic: Capture,
) -> None:
    classic.create(_TABLE)
    first, second = classic.attach(), classic.attach()
    _write(first, 1)
    _write(second, 2)
    assert _ids(classic) == [1, 2]
    assert "confirms the journals" not in _status(classic)[1]
    hanging = classic.clients.pop(0)
    hanging.perform(_POINTS, "stall", "publish.before")

    def hangs() -> bool:
        silent_s = read_confirmer(classic.journal_directory).silent_s
        return _confirmer(classic) == hanging.pid and silent_s > 1.5

    last = _write_until("it to hang", hangs, classic, first)
    assert "confirms the journals" not in _status(classic)[1]
    _let_time_pass(classic, HUNG_S + 1)
    _write(second, last + 1)
    code, shown = _status(classic)
    assert code == 1
    assert f"process {hanging.pid}, which confirms the journals in" in shown
    with redirect_stdout(StringIO()) as checked:
        main(["check", "--server", str(classic.root.path)])
    assert f"process {hanging.pid}, which confirms the journals in" in checked.getvalue()
    assert len(classic.committed()) == last - 1
    hanging.kill()
    assert _ids(classic) == list(range(1, last + 2))
    assert "confirms the journals" not in _status(classic)[1]


def test_stopped_shipper_is_reported_as_a_hanging_confirmer(capture: Capture) -> None:
    """It confirms what a server left that ended: here one that another process would."""
    capture.create(_TABLE)
    attachment = capture.attach()
    _write(attachment, 1)
    assert _ids(capture) == [1]
    capture.clients[0].perform(_POINTS, "stall", "decide.before")
    attachment.execute("INSERT INTO T VALUES (2)")
    attachment.commit()
    capture.clients.pop().kill()
    program = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path\n"
        "import points\n"
        "points.stall('decide.before')\n"
        "from firebird_cdc.bridge.recovery import Recovery\n"
        "Recovery(Path(sys.argv[1]), fsync=True).look()\n"
    )
    arguments = [sys.executable, "-P", "-c", program, str(capture.journal_directory)]
    process = capture.stack.start("recovery", [*arguments, str(_POINTS.parent)])
    directory = capture.journal_directory
    await_condition("it to hang", lambda: read_confirmer(directory).silent_s > 1.5, PATIENCE_S)
    assert read_confirmer(directory).process == process.pid
    os.kill(process.pid, signal.SIGKILL)
    until("nobody to confirm", lambda: not read_confirmer(directory).silent_s)
    attachment = capture.attach()
    attachment.execute("SELECT COUNT(*) FROM T")
    _write(attachment, 3)
    assert _ids(capture) == [1, 2, 3]


def test_journals_of_limbo_transactions_are_kept_counted_and_shown(pair: Pair) -> None:
    capture = pair.capture
    pair.leave_in_limbo("INSERT INTO T VALUES (1, 0)")
    assert [len(each) for each in pair.limbo()] == [1, 1]
    attachment = capture.client().attach(pair.databases[0])
    attachment.execute("INSERT INTO T VALUES (2, 0)")
    attachment.commit()

    def is_counted() -> bool:
        return read_confirmer(capture.journal_directory).undecided == 2

    until("both to be counted", is_counted)
    until("the other's journal", lambda: len(capture.committed()) == 1)
    until("no other journal to be live", lambda: len(capture.live()) == 2)

    def are_told() -> bool:
        code, shown = _status(capture)
        return code == 1 and "2 transactions can't be published yet" in shown

    until("both to be told", are_told)
    attachment.close()
    pair.resolve(commit=False)
    until("both to be decided", lambda: "can't be published yet" not in _status(capture)[1])
    until("their journals to go", lambda: not capture.live())
