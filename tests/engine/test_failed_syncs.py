"""A sync of a journal that fails is never made good by a second one of the same file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import instruments
import pytest
from capture import Capture, SqlError, until
from server import Server
from test_gaps import lenient
from test_refusals import failing_sync, program
from test_two_phase import Pair, pair

from firebird_cdc.journal.format import Gap

__all__ = ["failing_sync", "lenient", "pair", "program"]

pytestmark = pytest.mark.engine

_CONSTRAINT = "ALTER TABLE T ADD CONSTRAINT U UNIQUE (N)"


class Disk:
    """Where journals lie; ``fail`` begins what ``work`` ends."""

    def __init__(self, directory: Path) -> None:
        self.flag = directory / "failing"

    def fail(self) -> None:
        self.flag.touch()

    def work(self) -> None:
        self.flag.unlink()

    def syncs(self) -> list[tuple[str, str]]:
        """Return what was synced while syncs failed: "failed" or "done", and the path."""
        log = Path(f"{self.flag}.log")
        lines = log.read_text().splitlines() if log.exists() else []
        return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]

    def has_failed(self) -> bool:
        return any(what == "failed" and ".log.live" in path for what, path in self.syncs())


StartServer = Callable[..., Server]


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


@pytest.fixture
def start(tmp_path: Path, program: Path, failing_sync: Path, disk: Disk) -> Iterator[StartServer]:
    """Starts a server on a table T that a transaction may commit into as soon as syncs fail."""
    servers: list[Server] = []

    def start_on(capture: Capture, only: str = "") -> Server:
        capture.create("CREATE TABLE T (ID INTEGER, N INTEGER)")
        preload = f"LD_PRELOAD={instruments.preload(failing_sync)}"
        environment = ["env", preload, f"FAILING_SYNC={disk.flag}", f"FAILING_SYNC_OF={only}"]
        server = Server(capture, program, environment)
        servers.append(server)
        for number in (1, 2):
            server.execute(f"INSERT INTO T VALUES ({number}, 7)")
            server.commit()
        until("both to be confirmed", lambda: len(capture.committed()) == 2)
        capture.await_pool()
        return server

    yield start_on
    for server in servers:
        server.kill()


def _fail_after_prepare(capture: Capture, server: Server, disk: Disk) -> str:
    """Have the sync of a journal fail, and then the commit in its deferred work; return the
    journal's name."""
    server.execute("INSERT INTO T VALUES (3, 8)")
    server.execute(_CONSTRAINT)
    [live] = capture.live()
    disk.fail()
    with pytest.raises(SqlError, match="UNIQUE"):
        server.commit()
    until("the sync to have failed", disk.has_failed)
    return live.name.partition(".")[0]


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
def test_a_second_prepare_does_not_make_good_what_the_first_one_could_not_sync(
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


def test_a_rollback_whose_journal_cannot_be_made_void_removes_its_name_for_good(
    capture: Capture, start: StartServer, disk: Disk
) -> None:
    server = start(capture, only=".log.live")
    name = _fail_after_prepare(capture, server, disk)
    before = len(disk.syncs())
    server.call("rollback")
    later = disk.syncs()[before:]
    disk.work()
    folder = str(capture.journal_directory)
    assert later[-2][0] == later[-1][0] == "done"
    assert later[-2][1] == folder
    assert later[-1][1].startswith(f"{folder}/.firebird-cdc/pool/")
    assert ("failed", f"{folder}/{name}.log.live") in later
    server.execute("INSERT INTO T VALUES (4, 9)")
    server.commit()
    server.end()
    assert _captured(capture) == [1, 2, 4]


def test_a_rollback_of_which_nothing_reaches_the_disk_refuses_what_comes_then(
    capture: Capture, start: StartServer, disk: Disk
) -> None:
    """The engine may mark that transaction committed, and a power cut may bring its journal back.
    Nobody can take that away any more, but it is said, and nothing is built on such a disk."""
    server = start(capture)
    _fail_after_prepare(capture, server, disk)
    server.call("rollback")
    told = (capture.directory / "server.log").read_text()
    assert "could not be removed for good, and a power cut may bring it back: cannot sync" in told
    with pytest.raises(SqlError, match=r"firebird-cdc.*(removed for good|can't be written)"):
        server.execute("INSERT INTO T VALUES (4, 9)")
    disk.work()

    def can_write() -> bool:
        try:
            server.execute("INSERT INTO T VALUES (5, 9)")
            server.commit()
        except SqlError:
            server.call("rollback")
            return False
        return True

    until("writes to work again", can_write)
    server.end()
    assert _captured(capture) == [1, 2, 5]


def test_a_journal_in_limbo_that_could_not_be_synced_is_copied(
    pair: Pair, failing_sync: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = pair.capture
    environment = capture.environment() | {
        "LD_PRELOAD": instruments.preload(failing_sync),
        "FAILING_SYNC": str(disk.flag),
        "FAILING_SYNC_OF": ".log.live",
    }
    with monkeypatch.context() as patch:
        patch.setattr(capture, "environment", lambda: environment)
        client = pair.start("INSERT INTO T VALUES (1, 0)")
    with pair.decision.open("w") as decision:  # it is through with the first phase
        before = {path.name: path.stat().st_ino for path in capture.live()}
        disk.fail()
        decision.write("leave")

    def have_both_failed() -> bool:
        return len({path for what, path in disk.syncs() if what == "failed"}) == 2

    until("both syncs to have failed", have_both_failed)
    disk.work()
    client.finish()
    client.end()
    capture.clients.remove(client)
    after = {path.name: path.stat().st_ino for path in capture.live()}
    assert len(after) == 2
    assert after.keys() == before.keys()
    assert not set(after.values()) & set(before.values())
    pair.resolve(commit=True)
    other = capture.client().attach(pair.databases[0])  # somebody has to look
    other.execute("INSERT INTO T VALUES (2, 0)")
    other.commit()
    one, two = pair.journals()
    assert sorted(row["ID"] for journal in one for _, _, row in journal.brief() if row) == [1, 2]
    [gap] = [change for journal in two for change in journal.changes]
    assert isinstance(gap, Gap), "after a failed sync nothing is trusted before it has been tried"
