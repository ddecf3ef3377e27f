"""Processes of a Classic server that record without Python of their own, as another confirms."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import google_crc32c
import instruments
import pytest
from capture import GIVES_UP_S, Capture, SqlError, until
from server import Server, compile_server
from test_refusals import failing_sync

from firebird_cdc.demo.processes import Stack, stand_still
from firebird_cdc.journal.folder.join_file import decode, is_joinable
from firebird_cdc.journal.folder.processes import read_servers
from firebird_cdc.journal.format import Gap
from firebird_cdc.native._shared_page import ffi

__all__ = ["failing_sync"]

pytestmark = pytest.mark.engine

_TABLE = "CREATE TABLE T (N INTEGER NOT NULL, S VARCHAR(1000))"
_LAST = 1000  # a number behind all others
_OWN_BRIDGE_S = 3.0  # LATER_MS of native/host.c
# Most of the commits are published so soon; without calls each waits for up to a second.
_SOON_S = 0.1 * instruments.SLOWNESS
_SHARE_SOON, _LEAST_COMMITS, _MOST_COMMITS = 0.7, 10, 40


def _has_python(server: Server) -> bool:
    return "libpython" in Path(f"/proc/{server.pid}/maps").read_text()


class Joining:
    """A Classic server whose processes have no Python but that of the plugin."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.state = capture.journal_directory / ".firebird-cdc"
        self.join = self.state / "join"
        self._program = capture.directory / "bare_server"
        self._servers: list[Server] = []
        self._began: dict[Server, float] = {}
        compile_server(capture.root.client_library, self._program)

    def server(self, before: Sequence[str] = ()) -> Server:
        """Start a process with one connection, by the command BEFORE; it is ended after the
        test."""
        server = Server(self.capture, self._program, before)
        self._servers.append(server)
        self._began[server] = time.monotonic()
        return server

    def works_alone(self, server: Server) -> bool:
        """Tell whether SERVER has joined and not needed a bridge of its own, which it starts by
        itself after three seconds."""
        has_python = _has_python(server)
        return not has_python or time.monotonic() - self._began[server] > _OWN_BRIDGE_S

    def first(self) -> Server:
        """Start one that confirms, and that others can join."""
        server = self.server()
        server.write(1)
        assert _has_python(server)
        self.await_published([1])
        return server

    def joined(self, number: int) -> Server:
        """Start one that has written NUMBER without Python."""
        server = self.server()
        server.write(number)
        assert self.works_alone(server)
        return server

    def numbers(self) -> list[int]:
        """Return what the published transactions inserted, in order."""
        found = (journal.brief() for journal in self.capture.read_all())
        return [row["N"] for changes in found for _, _, row in changes if row]

    def await_published(self, numbers: list[int]) -> None:
        until(f"{numbers} to be published", lambda: self.numbers() == numbers)

    def end(self) -> None:
        for server in self._servers:
            server.kill()


@pytest.fixture
def joining(classic: Capture) -> Iterator[Joining]:
    made = Joining(classic)
    classic.create(_TABLE)
    shutil.rmtree(classic.journal_directory)  # its numbers begin with what the tests write
    yield made
    made.end()


@pytest.fixture
def shipped(joining: Joining) -> Joining:
    """With an embedded shipper, which finds no broker."""
    joining.capture.write_config(
        connector_shipper="embedded", kafka_producer_close_timeout_ms="1000"
    )
    return joining


def test_another_process_records_without_python_and_is_published_at_once(joining: Joining) -> None:
    first = joining.first()
    second = joining.joined(2)
    joining.await_published([1, 2])
    tried = soon = 0
    while tried < _LEAST_COMMITS or (soon < tried * _SHARE_SOON and tried < _MOST_COMMITS):
        number = 3 + tried
        third = joining.server()
        third.write(number)
        began = time.monotonic()
        joining.await_published(list(range(1, number + 1)))
        tried, soon = tried + 1, soon + (time.monotonic() - began < _SOON_S)
        third.end()
    assert soon >= tried * _SHARE_SOON
    assert len(joining.capture.journals()) == 2 + tried
    for server in (second, first):
        server.end()


def test_connections_that_come_and_go_side_by_side_are_all_published(joining: Joining) -> None:
    first = joining.first()

    def come_and_go(begin: int) -> None:
        for number in range(begin, begin + 8):
            server = joining.server()
            server.write(number)
            server.end()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(come_and_go, range(10, 50, 10)))
    assert len(joining.capture.journals()) == 33
    expected = [begin + each for begin in range(10, 50, 10) for each in range(8)]
    assert sorted(joining.numbers()) == [1, *expected]
    owners = joining.state / "owners"
    until("all marks but one to be removed", lambda: len(list(owners.iterdir())) == 1)
    first.end()


def test_processes_say_which_options_they_have(joining: Joining) -> None:
    first, second = joining.first(), joining.joined(2)
    found = read_servers(joining.capture.journal_directory)
    assert {each.process for each in found.records} == {first.pid, second.pid}
    assert {each.reading.path for each in found.records} == {str(joining.capture.config)}
    assert found.unknown == 0


def test_process_gets_a_bridge_of_its_own_once_it_has_lived_for_a_while(joining: Joining) -> None:
    first, second = joining.first(), joining.joined(2)
    second.execute("INSERT INTO T VALUES (3, '')")  # in the middle of a transaction
    until("its own Python", lambda: _has_python(second))
    second.commit()
    first.end()
    second.write(4)
    joining.await_published([1, 2, 3, 4])
    second.end()
    assert len(joining.capture.journals()) == 4


def test_process_takes_over_at_once_when_the_other_one_is_killed(joining: Joining) -> None:
    first, second = joining.first(), joining.joined(2)
    first.kill()
    second.write(3)
    joining.await_published([1, 2, 3])
    assert _has_python(second)
    second.end()


def test_process_that_leaves_when_the_other_one_is_killed_decides_its_commits(
    joining: Joining,
) -> None:
    first, second = joining.first(), joining.joined(2)
    second.execute("INSERT INTO T VALUES (3, '')")
    first.kill()
    second.commit()
    began = time.monotonic()
    second.end()
    if joining.numbers() != [1, 2, 3]:  # promised is only to wait while something is done
        assert time.monotonic() - began >= GIVES_UP_S
        joining.capture.recover()
    assert joining.numbers() == [1, 2, 3]


def test_killed_process_leaves_what_it_has_committed_and_nothing_else(joining: Joining) -> None:
    first, second = joining.first(), joining.joined(2)
    second.execute("INSERT INTO T VALUES (3, '')")
    second.kill()
    first.write(4)
    joining.await_published([1, 2, 4])
    owners = joining.state / "owners"
    until("its mark to be removed", lambda: len(list(owners.iterdir())) == 1)
    slots = joining.state / "slots"
    until("its slots to be removed", lambda: len(list(slots.iterdir())) == 1)
    first.end()
    assert len(joining.capture.journals()) == 3


def test_ddl_of_a_process_that_has_joined_is_described(joining: Joining) -> None:
    joining.first()
    second = joining.joined(2)
    second.execute("CREATE TABLE U (ID INTEGER NOT NULL PRIMARY KEY)")
    second.commit()
    assert _has_python(second)
    second.execute("INSERT INTO U VALUES (3)")
    second.commit()
    until("all to be published", lambda: len(joining.capture.read_all()) == 4)
    created, inserted = joining.capture.journals()[2:]
    assert created.statements == ["CREATE TABLE U (ID INTEGER NOT NULL PRIMARY KEY)"]
    assert [each.name for each in inserted.rows[0].table.columns if each.key_position] == ["ID"]


def test_process_that_lacks_a_definition_asks_for_it_itself(joining: Joining) -> None:
    joining.first()
    for path in (joining.state / "definitions").iterdir():
        path.write_bytes(b"damaged" + path.read_bytes()[7:])
    second = joining.server()
    second.write(2)
    assert _has_python(second)
    joining.await_published([1, 2])
    one, other = (journal.rows[0].table for journal in joining.capture.journals())
    assert one == other


def test_definitions_are_those_of_after_a_ddl(joining: Joining) -> None:
    first = joining.first()
    first.execute("ALTER TABLE T ADD K INTEGER DEFAULT 7 NOT NULL")
    first.commit()
    until("the DDL to be decided", lambda: len(joining.capture.committed()) == 2)
    first.execute("INSERT INTO T (N, S) VALUES (2, '')")
    first.commit()
    joining.await_published([1, 2])
    second = joining.server()
    second.execute("INSERT INTO T (N, S) VALUES (3, '')")
    second.commit()
    assert joining.works_alone(second)
    joining.await_published([1, 2, 3])
    one, other = (journal.rows[0].table for journal in joining.capture.journals()[2:])
    assert one == other
    assert [column.nullable for column in other.columns if column.name == "K"] == [False]


def _changed(content: bytes, **fields: Any) -> bytes:
    """Return the file with other FIELDS, and the checksum of that."""
    buffer = bytearray(content)
    join: Any = ffi.from_buffer("struct fbc_join *", buffer)
    for name, value in fields.items():
        setattr(join, name, value)
    crc_at = ffi.offsetof("struct fbc_join", "crc")
    join.crc = google_crc32c.value(bytes(buffer[:crc_at]))
    return bytes(buffer)


def _rewritten(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        path.write_bytes(change(path.read_bytes()))

    return apply


def _linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _of_another_file(content: bytes) -> bytes:
    return _changed(content, config={"inode": 1})


_DOUBTFUL: dict[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
    "short": _rewritten(lambda content: content[:-1]),
    "damaged": _rewritten(lambda content: content[:100] + b"\xff" + content[101:]),
    "of another version": _rewritten(lambda content: _changed(content, version=9)),
    "of another boot": _rewritten(lambda content: _changed(content, boot=b"x" * 16)),
    "of another plugin": _rewritten(lambda content: _changed(content, plugin={"inode": 1})),
    "of another connector's file": _rewritten(_of_another_file),
    "of another folder": _rewritten(lambda content: _changed(content, folder_inode=1)),
    "of other tickets": _rewritten(lambda content: _changed(content, tickets_inode=1)),
    "of a process that is gone": _rewritten(lambda content: _changed(content, publisher=b"x" * 16)),
    "writable for others": lambda path: path.chmod(0o622),
    "of another user": lambda path: os.chown(path, 1, 1),
    "link": _linked,
}
# In its place who confirms publishes a sound one, within a second.
_MENDED = ("missing", "short", "damaged", "of another version", "of a process that is gone")


@pytest.mark.parametrize("doubt", list(_DOUBTFUL))
def test_process_joins_nobody_whose_word_is_doubtful(joining: Joining, doubt: str) -> None:
    first = joining.first()
    assert decode(joining.join.read_bytes()) is not None
    numbers = [1]
    while True:
        second = joining.server()
        until("the word of the first", lambda: is_joinable(joining.state))
        _DOUBTFUL[doubt](joining.join)
        numbers.append(numbers[-1] + 1)
        second.write(numbers[-1])
        if _has_python(second):
            break
        assert doubt in _MENDED and is_joinable(joining.state), "it has joined all the same"
    joining.await_published(numbers)
    for server in (first, second):
        server.end()


@pytest.mark.parametrize("folder", ["owners", "slots", "pool"])
def test_process_whose_mark_cannot_be_synced_records_nothing_before_it_is(
    joining: Joining, failing_sync: Path, folder: str
) -> None:
    first = joining.first()
    flag = joining.capture.directory / "failing"
    flag.write_text(f"/{folder}")
    preload = f"LD_PRELOAD={instruments.preload(failing_sync)}"
    second = joining.server(["env", preload, f"FAILING_SYNC={flag}"])
    with pytest.raises(SqlError, match="can't be used"):
        second.write(2)
    assert len(list((joining.state / folder).iterdir())) == 1, "that of the first"
    flag.unlink()
    until("writing to work again", lambda: second.can_write(3))
    joining.await_published([1, 3])
    first.end()


def test_process_with_changed_options_starts_its_own_bridge(joining: Joining) -> None:
    joining.first()
    joining.capture.write_config(connector_capture_failure_mode="gap")
    second = joining.server()
    second.write(2)
    assert _has_python(second)
    joining.joined(3)  # by the new options
    joining.await_published([1, 2, 3])


def test_limit_of_the_disk_holds_for_a_process_that_has_joined(joining: Joining) -> None:
    joining.capture.write_config(connector_journal_max_bytes=str(16 << 20))
    joining.first()
    second = joining.server()
    with pytest.raises(SqlError, match=r"connector\.journal\.max\.bytes"):
        second.write(2, rows=20_000)
    assert joining.works_alone(second)
    second.write(3)
    joining.await_published([1, 3])


def test_tickets_that_are_replaced_are_left_by_a_process_that_has_joined(joining: Joining) -> None:
    joining.first()
    second = joining.joined(2)
    joining.await_published([1, 2])
    (joining.state / "tickets/page").unlink()
    until("writing to work again", lambda: second.can_write(3))
    joining.await_published([1, 2, 3])


def test_process_that_has_joined_goes_on_in_a_folder_that_was_made_anew(joining: Joining) -> None:
    first = joining.first()
    second = joining.joined(2)
    joining.await_published([1, 2])
    first.kill()
    joining.capture.delete_folder()
    until("writing to work again", lambda: second.can_write(3))
    joining.await_published([3])


def test_commit_that_went_with_its_folder_is_a_gap(joining: Joining) -> None:
    joining.capture.write_config(connector_capture_failure_mode="gap")
    first = joining.first()
    numbers = [1]
    while True:
        second = joining.joined(numbers[-1] + 1)
        numbers += [numbers[-1] + 1, numbers[-1] + 2]
        joining.await_published(numbers[:-1])
        stand_still(first.pid)  # nobody confirms
        second.write(numbers[-1])
        stand_still(second.pid)
        if not _has_python(second):
            break
        # It has lived so long that it confirms by itself.
        os.kill(first.pid, signal.SIGCONT)
        second.kill()
        joining.await_published(numbers)
    joining.capture.delete_folder()
    first.kill()
    os.kill(second.pid, signal.SIGCONT)
    second.write(_LAST)
    gaps = Counter[str]()

    def are_all_told() -> bool:
        changes = [each for journal in joining.capture.read_all() for each in journal.changes]
        gaps.clear()
        gaps.update(each.reason for each in changes if isinstance(each, Gap))
        return bool(gaps) and (joining.numbers() == [_LAST] or sum(gaps.values()) >= 2)

    until("a gap for the one, and the last or a gap for it", are_all_told)


def test_connections_one_after_the_other_need_no_python_while_a_shipper_lives(
    shipped: Joining,
) -> None:
    first = shipped.first()
    until("its shipper", lambda: _is_shipped(shipped))
    first.end()
    for number in range(2, 10):
        server = shipped.joined(number)
        server.end()
    shipped.await_published(list(range(1, 10)))


def test_connections_one_after_the_other_need_no_python_beside_an_external_shipper(
    joining: Joining, stack: Stack
) -> None:
    capture = joining.capture
    words = ("-P", "-m", "firebird_cdc", "ship", "--config", str(capture.config))
    stack.start(
        "shipper",
        [sys.executable, *words, "--logging", str(capture.logging)],
        capture.environment(),
    )
    until("its shipper", lambda: _is_shipped(joining))
    joining.first().end()
    for number in range(2, 6):
        joining.joined(number).end()
    joining.await_published(list(range(1, 6)))
    # Nobody has seen what became of the tables since.
    until("none to be able to join any more", lambda: not joining.join.exists())
    server = joining.server()
    server.write(6)
    assert _has_python(server)
    joining.await_published(list(range(1, 7)))


def _is_shipped(joining: Joining) -> bool:
    lock = joining.state / "shipper.lock"
    return lock.exists() and bool(lock.read_bytes())


def test_files_of_joined_processes_are_for_the_group_where_the_folder_is(joining: Joining) -> None:
    folder = joining.capture.journal_directory
    folder.mkdir()
    folder.chmod(0o2770)
    joining.first()
    joining.joined(2)
    joining.await_published([1, 2])
    made = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # gone meanwhile
            made[path] = path.stat().st_mode
    # For others to read, and none but the server to write.
    assert stat.S_IMODE(made.pop(joining.join)) == 0o640
    assert {stat.S_IMODE(mode) for mode in made.values() if stat.S_ISDIR(mode)} == {0o2770}
    assert {stat.S_IMODE(mode) for mode in made.values() if stat.S_ISREG(mode)} == {0o660}
