"""A sync of a journal that fails is never made good by a second one of the same file."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import instruments
import pytest
from capture import Capture, SqlError, own_journals, until
from server import Server
from test_gaps import _await_bridge, lenient
from test_refusals import FAULTS, failing_sync, program
from test_two_phase import Pair, pair

from firebird_cdc.journal.format import Gap

__all__ = ["failing_sync", "lenient", "pair", "program"]

pytestmark = pytest.mark.engine

_CONSTRAINT = "ALTER TABLE T ADD CONSTRAINT U UNIQUE (N)"
# More than the plugin leaves to the sync before the commit (WRITE_BACK_STEP).
_LONG = (
    "EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN WHILE (I < 1200) DO BEGIN"
    " INSERT INTO LARGE VALUES (:I, LPAD('', 8000, 'x')); I = I + 1; END END"
)
_NO_BRIDGE = FAULTS["Python library missing"]
_NOT_GONE = "could not be removed for good, and a power cut may bring it back: cannot sync"


class Sync(NamedTuple):
    """One sync: "failed" or "done", the call, and the path."""

    what: str
    call: str
    path: str


class Disk:
    """Disk with the journals; ``fail`` begins what ``work`` ends."""

    def __init__(self, directory: Path) -> None:
        self.flag = directory / "failing"

    def fail(self, *words: str) -> None:
        """Have syncs fail, of WORDS those that one of them means (failing_sync.c)."""
        fresh = self.flag.with_suffix(".new")
        fresh.write_text(" ".join(words))
        fresh.rename(self.flag)

    def watch(self) -> None:
        """Have all work, and ``syncs`` tell of them."""
        self.fail("nothing")

    def work(self) -> None:
        self.flag.unlink()

    def syncs(self) -> list[Sync]:
        """Return what was synced, or was to be, since the first ``fail`` until ``work``."""
        log = Path(f"{self.flag}.log")
        lines = log.read_text().splitlines() if log.exists() else []
        return [Sync(*line.split(" ", 2)) for line in lines]

    def has_failed(self) -> bool:
        return any(each.what == "failed" and ".log.live" in each.path for each in self.syncs())


StartServer = Callable[..., Server]


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


@pytest.fixture
def start(tmp_path: Path, program: Path, failing_sync: Path, disk: Disk) -> Iterator[StartServer]:
    """Starts a server that obeys file permissions, on a table T that a transaction may commit into
    as soon as syncs fail; or one that has no bridge."""
    servers: list[Server] = []
    plainly = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]

    def start_on(capture: Capture, has_bridge: bool = True) -> Server:
        rows = [f"INSERT INTO T VALUES ({number}, 7)" for number in (1, 2)]
        capture.create(
            "CREATE TABLE T (ID INTEGER, N INTEGER)",
            "CREATE TABLE LARGE (ID INTEGER, V VARCHAR(8000))",
            *(() if has_bridge else rows),
        )
        if not has_bridge:
            _NO_BRIDGE.cause(capture)
        preload = f"LD_PRELOAD={instruments.preload(failing_sync)}"
        before = plainly if os.geteuid() == 0 else []
        server = Server(capture, program, [*before, "env", preload, f"FAILING_SYNC={disk.flag}"])
        servers.append(server)
        if has_bridge:
            for row in rows:
                server.execute(row)
                server.commit()
            until("both to be confirmed", lambda: len(capture.committed()) == 2)
        return server

    yield start_on
    for server in servers:
        server.kill()


def _fail_after_prepare(capture: Capture, server: Server, disk: Disk, *words: str) -> str:
    """Have the sync of a journal fail, if WORDS don't mean others, and then the commit in its
    deferred work; return the journal's name."""
    server.execute("INSERT INTO T VALUES (3, 8)")
    server.execute(_CONSTRAINT)
    disk.fail(*words)
    with pytest.raises(SqlError, match="UNIQUE"):
        server.commit()
    until("the sync", lambda: any(".log.live" in each.path for each in disk.syncs()))
    [live] = capture.live()
    return live.name.partition(".")[0]


def _await_writes(server: Server) -> None:
    """Wait until row 5 can be written, and commit it."""

    def can_write() -> bool:
        try:
            server.execute("INSERT INTO T VALUES (5, 9)")
            server.commit()
        except SqlError:
            server.call("rollback")
            return False
        return True

    until("writes to work again", can_write)


def _told(capture: Capture) -> str:
    """Return what the server's process said."""
    return (capture.directory / "server.log").read_text()


def _captured(capture: Capture) -> list[int]:
    return [row["ID"] for journal in capture.journals() for _, _, row in journal.brief() if row]


def _gaps(capture: Capture) -> list[tuple[str, str]]:
    """Return the gaps: the names of their journals, and the reasons."""
    return [
        (journal.path.stem, change.reason)
        for journal in capture.journals()
        for change in journal.changes
        if isinstance(change, Gap)
    ]


@pytest.mark.parametrize("changes", [True, False], ids=["changed", "as it was"])
def test_second_prepare_after_a_failed_sync_is_refused(
    capture: Capture, start: StartServer, disk: Disk, changes: bool
) -> None:
    server = start(capture)
    _fail_after_prepare(capture, server, disk)
    disk.work()
    with pytest.raises(SqlError, match=r"(?s)firebird-cdc: cannot sync .*\(errno 5\)"):
        if changes:
            server.execute("UPDATE T SET N = ID")
        server.commit()
    server.call("rollback")
    server.execute("INSERT INTO T VALUES (4, 9)")
    server.commit()
    server.end()
    assert _captured(capture) == [1, 2, 4]
    assert [row["ID"] for row in capture.attach().execute("SELECT ID FROM T")] == [1, 2, 4]


def test_a_gap_takes_its_place_in_another_file(
    lenient: Capture, start: StartServer, disk: Disk
) -> None:
    server = start(lenient)
    name = _fail_after_prepare(lenient, server, disk)
    disk.work()
    server.execute("UPDATE T SET N = ID")
    server.commit()
    server.end()
    [(gap, reason)] = _gaps(lenient)
    assert gap != name
    assert f"cannot sync {name}.log.live: Input/output error (errno 5)" in reason
    assert _captured(lenient) == [1, 2]
    assert len(lenient.attach().execute("SELECT ID FROM T WHERE N = ID")) == 3


def test_rollback_removes_and_syncs_the_name_of_a_journal_it_cannot_void(
    capture: Capture, start: StartServer, disk: Disk
) -> None:
    server = start(capture)
    name = _fail_after_prepare(capture, server, disk, ".log.live")
    before = len(disk.syncs())
    server.call("rollback")
    later = disk.syncs()[before:]
    disk.work()
    folder = str(capture.journal_directory)
    # Of others, too: journals are made beforehand.
    assert ("failed", "fdatasync", f"{folder}/{name}.log.live") in later
    own = [each for each in later if each.path == folder or name in each.path]
    assert own[-1] == ("done", "fsync", folder)
    server.execute("INSERT INTO T VALUES (4, 9)")
    server.commit()
    server.end()
    assert _captured(capture) == [1, 2, 4]


@pytest.mark.parametrize(
    "words",
    [(), (".log.live", "/journals")],
    ids=["nothing", "no name in the folder"],
)
def test_rollback_that_cannot_reach_the_disk_refuses_further_writes(
    capture: Capture, start: StartServer, disk: Disk, words: tuple[str, ...]
) -> None:
    """The engine may mark that transaction committed, and a power cut may bring its journal back.
    Nobody can take that away any more, but it is said, and nothing is built on such a disk."""
    server = start(capture)
    _fail_after_prepare(capture, server, disk, *words)
    server.call("rollback")
    assert _NOT_GONE in _told(capture)
    with pytest.raises(SqlError, match=r"firebird-cdc.*(removed for good|can't be written)"):
        server.execute("INSERT INTO T VALUES (4, 9)")
    disk.work()
    _await_writes(server)
    server.end()
    assert _captured(capture) == [1, 2, 5]


@own_journals
def test_journal_whose_name_cannot_be_synced_is_copied_and_further_writes_are_refused(
    capture: Capture, start: StartServer, disk: Disk
) -> None:
    server = start(capture)
    disk.fail("/journals")
    server.execute("INSERT INTO T VALUES (3, 8)")
    server.commit()  # it was too late to refuse it when that failed
    assert ("failed", "fsync", str(capture.journal_directory)) in disk.syncs()
    with pytest.raises(SqlError, match="firebird-cdc"):
        server.execute("INSERT INTO T VALUES (4, 9)")
    server.call("rollback")
    assert len(capture.committed()) == 2
    disk.work()
    _await_writes(server)
    server.end()
    assert _captured(capture) == [1, 2, 3, 5]


def test_long_transaction_with_a_failed_early_sync_is_refused(
    capture: Capture, start: StartServer, disk: Disk
) -> None:
    server = start(capture)
    disk.fail("sync_file_range")
    with pytest.raises(
        SqlError,
        match=r"firebird-cdc: cannot sync \S+\.log\.live: .* \(errno 5\); .* can't be committed",
    ):
        server.execute(_LONG)
    with pytest.raises(SqlError, match="can't be committed"):  # after that statement, too
        server.execute("INSERT INTO T VALUES (3, 9)")
    assert disk.has_failed()
    server.call("rollback")
    disk.work()
    server.execute("INSERT INTO T VALUES (4, 9)")
    server.commit()
    server.end()
    assert _captured(capture) == [1, 2, 4]
    assert [row["ID"] for row in capture.attach().execute("SELECT ID FROM T")] == [1, 2, 4]


def test_long_transaction_with_a_failed_early_sync_leaves_a_gap_in_another_file(
    lenient: Capture, start: StartServer, disk: Disk
) -> None:
    server = start(lenient)
    disk.fail("sync_file_range")
    server.execute(_LONG)
    [name] = {Path(each.path).name for each in disk.syncs() if ".log.live" in each.path}
    server.commit()
    disk.work()
    server.end()
    [(gap, reason)] = _gaps(lenient)
    assert f"{gap}.log.live" != name
    assert f"cannot sync {name}: Input/output error (errno 5)" in reason
    assert _captured(lenient) == [1, 2]


@own_journals
def test_unsynced_count_of_gaps_is_reported_and_the_gap_still_marked(
    lenient: Capture, start: StartServer, disk: Disk
) -> None:
    server = start(lenient)
    lenient.journal_directory.chmod(0o500)  # not even a gap can be left there
    disk.fail("msync")
    server.execute("INSERT INTO T VALUES (3, 8)")
    server.commit()
    lenient.journal_directory.chmod(0o700)
    disk.work()
    assert re.search(
        r"the count of gaps in .firebird-cdc/tickets .* can't be synced: a power cut may take it "
        r"back: Input/output error \(errno 5\)",
        _told(lenient),
    )
    lenient.log.unlink()
    _await_bridge(lenient, server)
    server.end()
    [(_, reason)] = _gaps(lenient)
    assert reason.startswith("1 transactions were committed from ")
    assert _captured(lenient) == [1, 2]


def test_gap_without_a_bridge_is_counted_if_its_name_cannot_be_synced(
    lenient: Capture, start: StartServer, disk: Disk
) -> None:
    server = start(lenient, has_bridge=False)
    disk.fail("/journals")
    server.execute("INSERT INTO T VALUES (3, 8)")
    server.commit()
    disk.work()
    assert ("failed", "fsync", str(lenient.journal_directory)) in disk.syncs()
    [live] = lenient.live()
    live.unlink()  # as a power cut may
    _NO_BRIDGE.mend(lenient)
    _await_bridge(lenient, server)
    server.end()
    [(_, reason)] = _gaps(lenient)
    assert reason.startswith("1 transactions were committed from ")
    assert re.search(_NO_BRIDGE.words, reason)


def test_a_gap_without_a_bridge_is_void_on_disk_once_it_is_rolled_back(
    lenient: Capture, start: StartServer, disk: Disk
) -> None:
    server = start(lenient, has_bridge=False)
    name = _fail_after_prepare(lenient, server, disk, "nothing")
    path = f"{lenient.journal_directory}/{name}.log.live"
    before = len(disk.syncs())
    server.call("rollback")
    own = [each for each in disk.syncs()[before:] if each.path == path]
    assert own == [("done", "fdatasync", path)] * 2  # seal, header


def test_rolled_back_gap_without_a_bridge_that_may_reappear_is_reported(
    lenient: Capture, start: StartServer, disk: Disk
) -> None:
    server = start(lenient, has_bridge=False)
    name = _fail_after_prepare(lenient, server, disk, ".log.live", "/journals")
    server.call("rollback")
    disk.work()
    told = _told(lenient)
    assert _NOT_GONE in told
    assert f"cannot sync {name}.log.live: Input/output error (errno 5)" in told
    assert not lenient.live()


@own_journals
def test_a_journal_in_limbo_that_could_not_be_synced_is_copied(
    pair: Pair, failing_sync: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = pair.capture
    environment = capture.environment() | {
        "LD_PRELOAD": instruments.preload(failing_sync),
        "FAILING_SYNC": str(disk.flag),
    }
    with monkeypatch.context() as patch:
        patch.setattr(capture, "environment", lambda: environment)
        client = pair.start("INSERT INTO T VALUES (1, 0)")
    with contextlib.ExitStack() as files:
        with pair.decision.open("w") as decision:  # it is through with the first phase
            # Held open, so that no copy can get the number of a file that another copy replaced.
            before = {path.name: files.enter_context(path.open("rb")) for path in capture.live()}
            disk.fail(".log.live")
            decision.write("leave")

        def have_both_failed() -> bool:
            return len({each.path for each in disk.syncs() if each.what == "failed"}) == 2

        until("both syncs to have failed", have_both_failed)
        disk.work()
        client.finish()
        client.end()
        capture.clients.remove(client)
        assert len(before) == 2
        after = {path.name: path.stat() for path in capture.live()}
        assert after.keys() == before.keys()
        for name, file in before.items():
            assert not os.path.samestat(after[name], os.fstat(file.fileno())), name
    pair.resolve(commit=True)
    other = capture.client().attach(pair.databases[0])  # somebody has to look
    other.execute("INSERT INTO T VALUES (2, 0)")
    other.commit()
    one, two = pair.journals()
    assert sorted(row["ID"] for journal in one for _, _, row in journal.brief() if row) == [1, 2]
    [gap] = [change for journal in two for change in journal.changes]
    assert isinstance(gap, Gap), "after a failed sync nothing is trusted before it has been tried"
