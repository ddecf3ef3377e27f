"""Lives of an engine in which one call fails, then a power cut: promise 1 and 2 hold all the same.

A life: a server works while its journals are shipped, and is killed, the shipper's recovery looks
after it, a server works again. One sync fails, that of a chain of calls (sync_calls.py). What it
was to write is lost, though it can be read until the power is cut, and later syncs of the file
succeed (power_disk.py). The power is cut when a journal, that of the failure if it has one, becomes
visible after that and when it is removed, before another write brings to the disk by chance what
was lost; and at the end. Or one write fails, as the disk is full or broken: nothing of it is done,
and the power is cut at the end.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import random
from pathlib import Path

from builds import built
from capture import Capture, Client, SqlError, until
from power_disk import POLICIES, RENAME, SYNC_FAILED, UNLINK, Disk, read_records
from power_loss import Outcome, PowerLoss, Seen
from sync_calls import native_call_at

from firebird_cdc.demo.processes import Stack
from firebird_cdc.errors import SetupError

_HERE = Path(__file__).resolve().parent
_CALLS = _HERE / "sync_calls.py"
_WORK = _HERE / "failing_work.py"
_WORKLOAD = _HERE / "power_workload.py"
FAILING_CALLS = _HERE / "failing_calls.h"
_LARGE = (  # more than a page: the commit mark is on the first one, and brings it to the disk
    "EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN WHILE (I < 300) DO BEGIN"
    " INSERT INTO LOG_ VALUES (:I, 'large'); I = I + 1; END END"
)
_HIT = 3  # at which coming to it a sync fails at first: what is there before counts, too
_FULL_FOR = 3  # writes in a row, of a disk that is full
_TRIES = 10
_ENOUGH = 250_000  # bytes of the record, until the first server is killed


def install_failing_plugin(capture: Capture) -> None:
    """Put the plugin in place that asks before each sync and each write."""
    options = {
        "FIREBIRD_CDC_FAILPOINTS": "1",  # the plugin alone
        "CFLAGS": f"-include {FAILING_CALLS}",
        "FAILING_CALLS": hashlib.sha256(FAILING_CALLS.read_bytes()).hexdigest(),
    }
    plugin = capture.root.path / "plugins/libfirebird_cdc.so"
    fresh = plugin.with_suffix(".new")
    fresh.write_bytes((built("failing-calls", options) / plugin.name).read_bytes())
    fresh.rename(plugin)


class FailingSyncs(PowerLoss):
    """One engine with a plugin that asks before each sync, and lives in which one fails."""

    def __init__(self, directory: Path, stack: Stack) -> None:
        super().__init__(directory, stack, "Super")
        self._told: dict[str, str] = {}  # how the plugin tells of a native call
        install_failing_plugin(self._capture)

    def live(
        self,
        chain: str,
        attempt: int = 0,
        shares: bool = False,
        error: int = errno.EIO,
        mode: str = "refuse",
    ) -> tuple[set[str], bool, list[Outcome]]:
        """Live a life in which the innermost of this CHAIN of calls fails with ERROR, the first
        time that a process comes to it if it ATTEMPTs that again; return which chains were reached,
        whether it failed, and what power cuts leave. SHARES: small transactions share journals.
        MODE: of connector.capture.failure.mode."""
        seed = f"{chain}/{attempt}"
        self.end()
        self._capture.options["connector.capture.failure.mode"] = mode
        self._capture.options["connector.journal.transactions"] = "0" if shares else "1"
        self._capture.write_config()
        self._first.write_to(self._disk, random.Random(0))
        log, control = self._directory / "power.log", self._directory / "victim"
        reached, failed = self._directory / "reached", self._directory / "failed"
        log.write_bytes(b"")
        reached.write_bytes(b"")
        control.write_bytes(bytes(4096))
        failed.unlink(missing_ok=True)
        policy = random.Random(seed).choice(POLICIES)
        disk = self._disk_now(policy)
        environment = self._environment(
            POWER_LOG=str(log),
            POWER_VICTIM=str(control),
            POWER_REACHED=str(reached),
            POWER_FAILS=self._told.get(chain, chain),
            POWER_FAILED=str(failed),
            POWER_ERRNO=str(error),
            POWER_TIMES=str(_FULL_FOR if error == errno.ENOSPC else 1),
            POWER_HIT=str(1 if attempt else _HIT),
            POWER_SYNC_US="100",
        )
        database = str(self._capture.database)

        shipper = self._client(environment)
        stop = self._directory / "stop"
        stop.unlink(missing_ok=True)
        journals = str(self._capture.journal_directory)
        shipper.start("perform", str(_WORKLOAD), "ship", (journals, 0, str(stop), False))
        server = self._armed(environment)
        server.perform(_WORK, "shorten_ledgers")
        attachment = server.attach(self._capture.database)
        for mark in range(500_001, 500_001 + _HIT):
            with contextlib.suppress(SqlError):  # an error of a sync, where that is too late
                attachment.execute("INSERT INTO MARK VALUES (?)", mark)
                attachment.execute(_LARGE)
                attachment.commit()
        server.perform(_WORKLOAD, "work", database, seed, 2, 8, 1, False)
        with contextlib.suppress(SqlError):  # refused, where that sync failed
            attachment.script("CREATE TABLE SIDE (ID INTEGER NOT NULL PRIMARY KEY)")
            attachment.script("ALTER TABLE SIDE ADD V INTEGER")
        enough = log.stat().st_size + _ENOUGH
        endless = database, f"{seed}/2", 2, 9_999, 100_001, False
        server.start("perform", str(_WORKLOAD), "work", endless)
        until("enough work", lambda: log.stat().st_size > enough)
        with control.open("r+b") as victim:
            victim.write(server.pid.to_bytes(4, "little"))
        until("the server to be killed", lambda: server.process.poll() is not None)
        server.process.communicate()
        stop.touch()
        shipper.finish()
        shipper.end()

        shipper = self._armed(environment)
        shipper.perform(_WORK, "recover", journals)
        shipper.end()

        server = self._armed(environment)
        server.perform(_WORKLOAD, "work", database, f"{seed}/3", 2, 4, 200_001, False)
        last = iter(range(300_001, 400_000))
        until("writes to work", lambda: self._writes(server, database, next(last)))
        for attempt in range(1, _TRIES):
            with contextlib.suppress(SetupError):
                # Longer each time: on a busy machine a commit may take some seconds as well.
                until("all to be confirmed", lambda: not self._capture.live(), 2.0 * attempt)
                break
            # With gaps for what it can't record, a server looks at its next commit after that.
            self._writes(server, database, next(last))
        until("all to be confirmed in the end", lambda: not self._capture.live())
        server.end()

        seen = Seen()
        for stale in (self._directory / "shipped").glob("*"):
            stale.unlink()
        outcomes = []
        due: set[int] = set()  # kinds of records of a journal at which the power is cut
        whose = ""  # in its name
        for record in read_records(log):
            self._look(record, disk, seen)
            disk.apply(record)
            if record.kind == SYNC_FAILED:
                due = {RENAME, UNLINK}
                whose = disk.name_of(record.inode).removesuffix(".log.live")
            elif record.kind in due and record.text.endswith(".log") and whose in record.text:
                outcomes.append(self._cut_off(f"{record.order} {policy} {seed}", disk, seen))
                due.remove(record.kind)
        outcomes.append(self._cut_off(f"{policy} {seed}", disk, seen))
        told = {native_call_at(each): each for each in reached.read_text("utf-8").splitlines()}
        self._told.update(told)
        return set(told), failed.exists(), outcomes

    def _cut_off(self, name: str, disk: Disk, seen: Seen) -> Outcome:
        disk.write_to(self._disk, random.Random(name))
        return self._cut(Outcome(name), seen, starts=1)

    def _armed(self, environment: dict[str, str]) -> Client:
        client = self._client(environment)
        client.perform(_CALLS, "arm")
        return client

    def _writes(self, server: Client, database: str, mark: int) -> bool:
        acknowledged = (self._directory / "power.log").read_bytes().count(b"commit 3000")
        server.perform(_WORKLOAD, "work", database, str(mark), 1, 1, mark, False)
        now = (self._directory / "power.log").read_bytes().count(b"commit 3000")
        return now > acknowledged


def broken_promises(outcome: Outcome) -> list[str]:
    """Return what of an outcome is not as promised where a sync failed: a gap may be the trace of
    a committed transaction."""
    problems = [each for each in outcome.wrong if not each.startswith("a gap, though")]
    problems += outcome.phantoms + outcome.duplicated
    if len(outcome.lost) > outcome.gaps:
        problems += outcome.lost
    return problems
