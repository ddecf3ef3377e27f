"""The counter of commits is a file that all processes share; somebody may remove or replace it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from capture import Attachment, Capture, Client, SqlError, fold, own_journals, until
from server import Server, compile_server

from firebird_cdc.errors import CaptureError
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.format import Gap

pytestmark = pytest.mark.engine

_POINTS = Path(__file__).parents[1] / "faults" / "points.py"
_REFUSED = r"\.firebird-cdc/tickets\S* was removed or replaced"
_TURNS = 40


def _tickets(capture: Capture) -> Path:
    return capture.journal_directory / ".firebird-cdc/tickets/page"


def _remove(tickets: Path) -> None:
    tickets.unlink()


def _replace_by_a_copy(tickets: Path) -> None:
    copy = tickets.with_name("copy")
    shutil.copy(tickets, copy)
    copy.rename(tickets)


def _choose_gap(capture: Capture) -> None:
    capture.options["connector.capture.failure.mode"] = "gap"
    capture.write_config()


def _gaps(capture: Capture) -> list[str]:
    changes = [change for journal in capture.read_all() for change in journal.changes]
    return [change.reason for change in changes if isinstance(change, Gap)]


def _await_removal_noticed(capture: Capture) -> None:
    until(
        "it to be noticed",
        lambda: "capture starts anew with the file that is there then" in capture.log.read_text(),
    )


class Writers:
    """Processes that take turns at one row."""

    def __init__(self, capture: Capture) -> None:
        capture.create("CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, N INTEGER)")
        self.capture = capture
        self.attachments: list[Attachment] = []
        self.refusals: list[str] = []
        self.count = 0
        self.join()
        self.attachments[0].execute("INSERT INTO T VALUES (1, 0)")
        self.attachments[0].commit()

    def join(self) -> Client:
        client = self.capture.client()
        self.attachments.append(client.attach(self.capture.database))
        return client

    def step(self, attachment: Attachment) -> bool:
        """Change the row; return whether that was committed."""
        try:
            attachment.execute("UPDATE T SET N = N + 1")
            attachment.commit()
        except SqlError as error:
            self.refusals.append(str(error))
            attachment.rollback()
            return False
        self.count += 1
        return True

    def take_turns(self) -> None:
        for _ in range(_TURNS):
            for attachment in self.attachments:
                until("a commit that is not refused", lambda: self.step(attachment))  # noqa: B023

    def assert_in_order(self) -> None:
        """The journals tell of every change, each from the value that the one before left."""
        journals = self.capture.journals()
        values = [row["N"] for journal in journals for _, _, row in journal.brief() if row]
        assert values == list(range(self.count + 1))
        assert fold(journals)["T"] == self.attachments[0].rows("T")
        assert all(re.search(_REFUSED, each) for each in self.refusals), self.refusals


@pytest.mark.parametrize("harm", [_remove, _replace_by_a_copy])
def test_row_histories_stay_in_order_after_the_ticket_file_is_harmed(
    classic: Capture, harm: Callable[[Path], None]
) -> None:
    writers = Writers(classic)
    writers.join()
    writers.take_turns()
    harm(_tickets(classic))
    writers.join()
    writers.take_turns()
    writers.assert_in_order()


def test_new_process_waits_until_the_removed_ticket_file_is_unused(classic: Capture) -> None:
    """One process can't notice: its thread that would is held up. Its tickets go on."""
    writers = Writers(classic)
    assert len(classic.journals()) == 1
    [holder] = classic.clients
    held_up = classic.directory / "held up"
    holder.perform(_POINTS, "stall", "decide.before", "", str(held_up))
    assert writers.step(writers.attachments[0])
    until("the thread to be held up", held_up.exists)  # before, it might notice
    _tickets(classic).unlink()
    other = writers.join()
    assert not writers.step(writers.attachments[1])
    assert f"is used by process {holder.pid} as it was before" in writers.refusals[0]
    assert writers.step(writers.attachments[0])
    holder.kill()
    classic.clients.remove(holder)
    writers.attachments.pop(0)
    until("the other one to write", lambda: writers.step(writers.attachments[0]))
    writers.assert_in_order()
    assert other.process.poll() is None


def test_open_transaction_is_refused_and_the_next_one_captured(
    capture: Capture,
) -> None:
    writers = Writers(capture)
    [attachment] = writers.attachments
    assert len(capture.journals()) == 1
    attachment.execute("UPDATE T SET N = N + 1")
    _tickets(capture).unlink()
    _await_removal_noticed(capture)
    with pytest.raises(SqlError, match=rf"firebird-cdc: \S*{_REFUSED} while the server runs"):
        attachment.commit()
    attachment.rollback()
    until("writes to work again", lambda: writers.step(attachment))
    writers.assert_in_order()


def test_open_transaction_is_counted_as_a_gap_if_refusal_is_off(capture: Capture) -> None:
    """A ticket from the file before would give its gap a place that means nothing."""
    _choose_gap(capture)
    writers = Writers(capture)
    [attachment] = writers.attachments
    assert len(capture.journals()) == 1
    attachment.execute("UPDATE T SET N = N + 1")
    _tickets(capture).unlink()
    _await_removal_noticed(capture)
    attachment.commit()
    assert not capture.live()
    attachment.execute("INSERT INTO T VALUES (2, 2)")
    attachment.commit()
    [reason] = until("the gap to be told of", lambda: _gaps(capture))
    assert reason.startswith("1 transactions were committed from "), reason
    assert re.search(_REFUSED, reason), reason


@own_journals
def test_gaps_counted_by_an_ended_process_are_reported(classic: Capture) -> None:
    """By one that had read the count before, and found nothing."""
    _choose_gap(classic)
    classic.create("CREATE TABLE T (ID INTEGER, TEXT VARCHAR(1000))")
    attachment = classic.attach()
    attachment.execute("INSERT INTO T VALUES (0, '')")
    attachment.commit()
    assert len(classic.journals()) == 1
    program = classic.directory / "server"
    compile_server(classic.root.client_library, program)
    # Root may write everywhere, servers are not run by root.
    plainly = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    server = Server(classic, program, plainly if os.geteuid() == 0 else ())
    try:
        server.write(1)
        assert len(classic.journals()) == 2
        classic.journal_directory.chmod(0o500)
        server.write(2)
        server.write(3)
    finally:
        server.kill()
        classic.journal_directory.chmod(0o700)
    _tickets(classic).unlink()
    _await_removal_noticed(classic)
    attachment.execute("INSERT INTO T VALUES (4, '')")
    attachment.commit()
    [reason] = until("the gap to be told of", lambda: _gaps(classic))
    assert reason.startswith("2 transactions were committed from "), reason


def test_lost_ticket_counter_restarts_above_all_tickets_in_the_folder(capture: Capture) -> None:
    """Also where only a shipper comes: it decides what an ended server left up to the counter."""
    writers = Writers(capture)
    assert len(capture.journals()) == 1
    [holder] = capture.clients
    holder.perform(_POINTS, "stall", "decide.before")
    assert writers.step(writers.attachments[0])
    holder.kill()
    capture.clients.clear()
    writers.attachments.clear()
    _tickets(capture).unlink()
    folder = JournalFolder(capture.journal_directory, writes=False)
    assert folder.last_ticket == 2
    folder.close()


@pytest.mark.plain  # the address sanitizer has mlock do nothing
def test_ticket_page_is_locked_in_memory(capture: Capture) -> None:
    """Else a bad sector under it would end the server, once it has to be read anew."""
    Writers(capture)
    [client] = capture.clients
    maps = Path(f"/proc/{client.pid}/smaps").read_text()
    [mapping] = re.findall(rf"(?m)^\S+ .*{re.escape(str(_tickets(capture)))}$(?:\n\w+:.*)+", maps)
    assert re.search(r"(?m)^VmFlags:.* lo\b", mapping), mapping


def test_starting_process_is_refused_while_another_uses_a_removed_ticket_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journals"
    first = JournalFolder(path)
    (path / ".firebird-cdc/tickets/page").unlink()
    with pytest.raises(CaptureError, match="is used by process"):
        JournalFolder(path)
    first.leave_tickets()
    second = JournalFolder(path)
    assert not first.is_in_place()
    assert second.is_in_place()
    assert second.is_same_place(first)
