"""Lives of a server that ends by kill -9, and the comparison of journals and tables after each.

A series has one database and one journal folder. A life starts the server's processes, waits for
recovery, compares, has 8 connections work, and kills. What was compared is removed from the
folder, as a shipper would: so the sequence has to go on from the ledger alone.

What the engine itself does to a database that is killed is told apart from our faults and counted
in the tally: committed rows that a scan does not find any more (hidden_rows.py), changes of rows
that stay though their statement was undone, or go though it was committed (lost_undo.py), damage
that its own consistency checks report (half a DROP TABLE; dead rows in a format that died with its
ALTER TABLE, so that nobody can remove them), transactions that count as committed from their start
on (given_twice, transaction_pages.py), and, as Classic, survivors that wait for ever
(engine_hangs.py). With whose blobs it gives rows then (foreign_blobs.py) is left out. ``soak.py
--bare`` lives the same lives with nothing captured.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import forked
import workload
from builds import built
from capture import (
    PATIENCE_S,
    Attachment,
    Capture,
    Client,
    Journal,
    Rows,
    SqlError,
    after,
    before,
    engine_finding,
    image,
    passing_rows,
    until,
)
from effects import BLOB, EFFECTS, Effects, Follower, OwnDoings
from engine_hangs import EngineHangs, await_unless_engine_hangs
from hidden_rows import WITHOUT_BLOBS, all_rows
from points import CONFIRMING, RECOVERING, python_points, work_points
from ship_program import TURNS
from transaction_pages import given_twice

from firebird_cdc.demo.processes import Stack, has_input
from firebird_cdc.errors import SetupError
from firebird_cdc.journal.folder.join_file import is_joinable
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.folder.shared_page import page_in
from firebird_cdc.journal.format import Gap

HERE = Path(__file__).parent
_POINTS = HERE / "points.py"
MODES = ("Super", "Classic")
CONNECTIONS = 8
_WORK_S = (0.0, 0.6)  # until a kill at random
_PATIENCE_S = 3 * PATIENCE_S  # the machine may have other work
_POINT_S = 6.0  # until a point that was not reached is given up
_MOST_HITS = 12  # at which a point kills; one that is rarer in the work has a limit of its own
_RARE = (
    "unseal",
    "discard",
    "delete",
    "unlink",
    "scan",
    "complete",
    "forget",
    "mark_owner",
    "take",
)
_NOT_NULL = {"MARK": "N", "EFFECTS": "ID", "ITEM": "ID", "WIDE": "ID"}
_CREATED = re.compile(r"CREATE TABLE (SIDE_\w+)")
_DROPPED = re.compile(r"DROP TABLE (SIDE_\w+)")
_COLUMN_DROPPED = re.compile(r"ALTER TABLE WIDE DROP (C_\w+)")


@dataclass
class Tally(OwnDoings):
    """Results of many rounds."""

    rounds: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    not_reached: Counter[str] = field(default_factory=Counter)
    transactions: int = 0
    journals: int = 0
    phantoms: int = 0
    lost: int = 0
    duplicates: int = 0
    hidden_rows: int = 0  # committed ones that the engine's scans skip after a kill
    damaged: Counter[str] = field(default_factory=Counter)  # databases, by the engine's finding
    left_to_server: int = 0  # recoveries that a shipper could not end
    given_twice: int = 0  # gaps of transactions that the engine calls committed from their start
    engine_hangs: int = 0  # survivors that wait in the engine for ever
    kept: int = 0  # rounds in which a journal waited for the survivors to end
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{name} {count}" for name, count in sorted(self.kills.items()))
        damaged = ", ".join(f"{text} {n}" for text, n in sorted(self.damaged.items()))
        unreached = ", ".join(f"{name} {n}" for name, n in sorted(self.not_reached.items()))
        return (
            f"rounds {self.rounds}\nkills {self.kills.total()}: {kills}\n"
            f"points not reached in their round: {unreached or 'none'}\n"
            f"transactions committed {self.transactions}\njournals {self.journals}\n"
            f"committed rows that the engine hides {self.hidden_rows}\n"
            f"undone changes that the engine kept {self.kept_undone}\n"
            f"committed changes that the engine took back {self.taken_back}\n"
            f"databases that the engine left damaged: {damaged or 'none'}\n"
            f"shipper's recoveries that a server had to end {self.left_to_server}\n"
            f"gaps of transactions with a number that a reader had {self.given_twice}\n"
            f"survivors hung in the engine {self.engine_hangs}\n"
            f"journals kept until the survivors ended {self.kept}\n"
            f"phantoms {self.phantoms}\nlost {self.lost}\nduplicates {self.duplicates}\n"
            + "".join(f"FAULT {text}\n" for text in self.faults)
            + f"faults {len(self.faults)}"
        )


class Truth:
    """Contents to which the journals of a database add up, journal by journal."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._last = 0
        self._marks = 0
        self._tables: defaultdict[str, Rows] = defaultdict(Counter)
        self._side_tables: set[str] = set()
        self._gone: set[str] = set()  # columns that were dropped
        self._transactions: Counter[int] = Counter()
        self._follower = Follower(tally)

    def take(
        self, journals: list[Journal], effects: Effects | None = None, has_rows: bool = True
    ) -> list[str]:
        """Add journals in the order of their numbers; return what is wrong with them.

        HAS_ROWS: the changes of rows can be followed.
        """
        faults = []
        for journal in journals:
            name = f"{journal.path.name} (number {journal.sequence})"
            if journal.sequence != self._last + 1 or journal.stamp.epoch:
                faults.append(f"{name} follows {self._last}, epoch {journal.stamp.epoch}")
            self._last = journal.sequence
            self._transactions[journal.header.transaction] += 1
            marks = [(after(each) or {})["N"] for each in journal.rows if each.table.name == "MARK"]
            if marks != [journal.header.transaction]:
                faults.append(f"{name} of {journal.header.transaction} is marked {marks}")
            if has_rows:
                faults += [f"{name}: {fault}" for fault in self._apply(journal, effects)]
        self._tally.journals += len(journals)
        return faults

    def _apply(self, journal: Journal, effects: Effects | None) -> list[str]:
        faults = []
        for statement in journal.statements:
            if found := _CREATED.match(statement):
                self._side_tables.add(found[1])
            elif found := _DROPPED.match(statement):
                self._side_tables.discard(found[1])
                self._tables.pop(found[1], None)
            elif found := _COLUMN_DROPPED.match(statement):
                self._gone.add(found[1])
                rows: Rows = Counter()
                for row, count in self._tables["WIDE"].items():
                    rows[self._image(dict(row))] += count
                self._tables["WIDE"] = rows
        passing = passing_rows(journal)
        for number, change in enumerate(journal.rows):
            rows = self._tables[change.table.name]
            old, new = before(change), after(change)
            if change.table.name == "ITEM" and effects is not None:
                if fault := effects.fault_of_blobs(old, new):
                    faults.append(fault)
                if number not in passing:
                    key = (old or new or {})["ID"]
                    self._follower.follow(rows, key, old and self._image(old), effects)
            if old is not None:
                was = self._image(old)
                if rows[was] <= 0 and change.table.name == "WIDE":
                    was = self._under_ddl(was, rows, {each.name for each in change.table.columns})
                if rows[was] <= 0:
                    faults.append(f"{change.op} of no row of {change.table.name}: {old}")
                rows[was] -= 1
            if new is not None:
                rows[self._image(new)] += 1
        return faults

    @staticmethod
    def _under_ddl(
        was: frozenset[tuple[str, Any]], rows: Rows, columns: set[str]
    ) -> frozenset[tuple[str, Any]]:
        """Return the row that a change means whose transaction saw the table as a DDL was about
        to make it: the engine shows that to others before it lets the DDL commit."""
        for row, count in rows.items():
            if count > 0 and was == frozenset(each for each in row if each[0] in columns):
                return row
        return was

    def _image(self, row: dict[str, Any]) -> frozenset[tuple[str, Any]]:
        leave_out = {*self._gone, BLOB}
        return image({name: value for name, value in row.items() if name not in leave_out})

    def compare(
        self,
        tables: Mapping[str, Rows],
        unread: Collection[str],
        effects: Effects | None = None,
        has_rows: bool = True,
    ) -> list[str]:
        """Return how what the journals add up to differs from the tables.

        UNREAD: names of tables of which the engine can't tell any more what they hold; HAS_ROWS:
        not only the marks are to be compared.
        """
        faults: list[str] = []
        if "MARK" in unread:
            return faults
        marks = Counter(dict(row)["N"] for row in tables["MARK"].elements())
        self._tally.transactions += len(marks) - self._marks
        self._marks = len(marks)
        phantoms = sorted(set(self._transactions) - set(marks))
        lost = sorted(set(marks) - set(self._transactions))
        twice = sorted(number for number, count in self._transactions.items() if count > 1)
        self._tally.phantoms += len(phantoms)
        self._tally.lost += len(lost)
        self._tally.duplicates += len(twice)
        for what, numbers in (("phantoms", phantoms), ("lost", lost), ("duplicates", twice)):
            if numbers:
                faults.append(f"{what}: transactions {numbers}")
        if not has_rows:
            return faults
        side_tables = {name for name in tables if name.startswith("SIDE_")}
        if self._side_tables - set(unread) != side_tables - set(unread):
            faults.append(f"side tables {sorted(self._side_tables)}, but {sorted(tables)}")
        if "ITEM" in tables and effects is not None:
            self._follower.follow_all(self._tables["ITEM"], tables["ITEM"], effects)
        for name in sorted((set(tables) | set(self._tables)) - set(unread)):
            ours, its = +self._tables[name], tables.get(name, Counter())
            if ours != its:
                more, fewer = ours - its, its - ours
                faults.append(
                    f"table {name}: {more.total()} rows only in the journals, {fewer.total()} "
                    f"only in the table: {list(map(dict, more))[:2]}, {list(map(dict, fewer))[:2]}"
                )
        return faults


@dataclass(frozen=True)
class Plan:
    """Course of a life."""

    point: str = ""  # "": a kill at a random instant
    hit: int = 1
    process: int = 0  # Classic: which one is killed first
    work_s: float = 0.3
    recovery_point: str = ""  # of the start after it, which is killed there as well
    recovery_hit: int = 1
    by_shipper: bool = False  # it recovers, and is the one that is killed at recovery_point
    survivors: bool = False  # Classic: only one process is killed, the others go on and end work
    hold_us: int = 0  # by how much commit marks are late
    in_turn: bool = False  # Classic: the others begin once one confirms, and may join it

    def __str__(self) -> str:
        parts = [f"kill at {self.point}:{self.hit}" if self.point else f"{self.work_s:.3f} s"]
        parts += ["others survive"] if self.survivors else []
        parts += [f"marks {self.hold_us} us late"] if self.hold_us else []
        parts += ["others join"] if self.in_turn else []
        who = "shipper" if self.by_shipper else "start"
        if self.recovery_point:
            parts.append(f"{who} killed at {self.recovery_point}:{self.recovery_hit}")
        elif self.by_shipper:
            parts.append("recovery by the shipper")
        return ", ".join(parts)


def _identity(journal: Journal) -> tuple[UUID, int]:
    """Return what tells a journal that was compared, and lies there still, from one that is new."""
    return journal.header.uuid, journal.sequence


def most_hits(point: str) -> int:
    return 2 if point.startswith(_RARE) else _MOST_HITS


def random_plan(chance: random.Random, is_classic: bool) -> Plan:
    """Choose how a life goes."""
    work = work_points()
    start = python_points(RECOVERING | CONFIRMING)
    point = chance.choice(work) if chance.random() < 0.5 else ""
    survivors = is_classic and chance.random() < 0.3
    again = chance.choice(start) if not survivors and chance.random() < 0.4 else ""
    return Plan(
        point=point,
        hit=chance.randint(1, most_hits(point)),
        process=chance.randrange(3),
        work_s=chance.uniform(*_WORK_S),
        recovery_point=again,
        recovery_hit=chance.randint(1, 2),
        by_shipper=not survivors and chance.random() < 0.4,
        survivors=survivors,
        hold_us=chance.choice((0, 0, 300, 3000)),
        in_turn=is_classic and chance.random() < 0.4,
    )


class Series:
    """Lives of one database under one mode of the engine."""

    def __init__(
        self,
        directory: Path,
        stack: Stack,
        mode: str,
        libraries: Libraries,
        tally: Tally,
        confirms: bool = True,
        captures: bool = True,
        shares: bool = False,
    ) -> None:
        """``shares``: small transactions share journals."""
        self.capture = Capture(directory, stack, {"ServerMode": mode})
        self.capture.options["connector.journal.transactions"] = "0" if shares else "1"
        self.capture.write_config()
        self.capture.install()
        libraries.put_into(self.capture)
        self.capture.create(*workload.TABLES, *EFFECTS, publish=captures)
        self.mode = mode
        self.tally = tally
        self._libraries = libraries
        self._processes = 3 if mode == "Classic" else 1
        self._confirms = confirms
        self._captures = captures  # or else the engine alone is killed, and nothing is compared
        self._truth = Truth(tally)
        self._taken: set[tuple[UUID, int]] = set()  # compared, and perhaps still there
        self._stop = directory / "stop"
        self._fault_count = 0
        self._given_twice: set[int] = set()
        self.is_spent = False  # by a fault: what comes after it would show it again

    # -- processes

    def client(self) -> Client:
        """Start a server process."""
        if not self.capture.clients:
            self._given_twice |= given_twice(self.capture.database)
        environment = self.capture.environment() | {
            "LD_PRELOAD": str(self._libraries.hold),
            "FBC_HOLD_DATABASE": str(self.capture.database),
        }
        client = Client(
            self.capture.root.client_library,
            environment,
            self.capture.directory / "server.log",
        )
        self.capture.clients.append(client)
        if not self._confirms:
            client.perform(_POINTS, "confirm_everything")
        return client

    def kill_all(self) -> None:
        while self.capture.clients:
            self._bury(self.capture.clients[0])

    def _bury(self, client: Client) -> None:
        if client.process.poll() is None:
            os.kill(client.pid, signal.SIGKILL)
        client.process.communicate()
        self.capture.clients.remove(client)

    # -- a life

    def live(self, plan: Plan, label: str) -> None:
        """Work and kill as PLAN says, start again, and compare. Faults go into the tally."""
        self._fault_count = len(self.tally.faults)
        logged = self._log_size()
        self._stop.unlink(missing_ok=True)
        while len(self.capture.clients) < self._processes:
            self.client()
        clients = list(self.capture.clients)
        chosen = clients[plan.process % len(clients)]
        for client in clients:
            client.perform(_POINTS, "hold_marks", plan.hold_us)
        if plan.point:
            chosen.perform(_POINTS, "arm", plan.point, plan.hit)
        for index, client in enumerate(clients):
            share = CONNECTIONS // len(clients) + (index < CONNECTIONS % len(clients))
            arguments = (
                str(self.capture.database), f"{label}_{index}", share, index == 0, str(self._stop),
            )  # fmt: skip
            client.start("perform", str(HERE / "workload.py"), "work", arguments)
            if plan.in_turn and index == 0:
                state = self.capture.journal_directory / STATE_DIRECTORY
                until(
                    "one process to confirm",
                    lambda: is_joinable(state) or clients[0].process.poll() is not None,  # noqa: B023
                )
        self._kill(chosen, plan)
        if plan.survivors:
            self._stop.touch()
            if not all(self._ends_work(client, label) for client in self.capture.clients):
                self.kill_all()
        else:
            self.kill_all()
            if plan.by_shipper:
                self._ship(plan, label)
            elif plan.recovery_point:
                self._start_again(plan)
        self._check(label, plan.by_shipper, logged)
        if finding := self._finding():
            self.tally.damaged[finding] += 1
            self.is_spent = True
        if self.is_spent:
            self.kill_all()
        self.tally.rounds += 1

    def _kill(self, chosen: Client, plan: Plan) -> None:
        before_ns = self.capture.database.stat().st_mtime_ns

        def has_begun() -> bool:
            if chosen.process.poll() is not None:
                return True
            if self._captures:
                return bool(self.capture.live())
            return self.capture.database.stat().st_mtime_ns > before_ns

        until("work to begin", has_begun, _PATIENCE_S)
        try:
            code = chosen.process.wait(_POINT_S if plan.point else plan.work_s)
        except subprocess.TimeoutExpired:
            self.tally.kills["at random"] += 1
            if plan.point:
                self.tally.not_reached[plan.point] += 1
        else:
            log = self.capture.directory / "server.log"
            assert code == -signal.SIGKILL, f"ended with {code}: {log.read_text()}"
            self.tally.kills[plan.point] += 1
        self._bury(chosen)

    def _ends_work(self, client: Client, label: str) -> bool:
        """Wait for a survivor's work to end; False if the engine keeps it for ever."""
        stream = client.process.stdout
        assert stream is not None
        pids = [each.pid for each in self.capture.clients]
        try:
            await_unless_engine_hangs(
                "a survivor to end its work", lambda: has_input(stream, 0), pids, _PATIENCE_S
            )
        except EngineHangs:
            self.tally.engine_hangs += 1
            return False
        except SetupError as error:
            self._fault(
                label, f"process {client.pid} hangs after the death of another one: {error}"
            )
            return False
        client.finish()
        return True

    def _start_again(self, plan: Plan) -> None:
        """Start after the crash, and be killed in that too."""
        client = self.client()
        client.perform(_POINTS, "arm", plan.recovery_point, plan.recovery_hit)
        try:
            attachment = self._wake(client)
            self._settle("", client)
            # What comes after the last decision it has behind it with the next transaction's.
            attachment.execute(workload.MARK)
            attachment.commit()
            self._settle("", client)
            self.tally.not_reached[f"start: {plan.recovery_point}"] += 1
        except (AssertionError, BrokenPipeError):
            if client.process.wait() != -signal.SIGKILL:
                raise
            self.tally.kills[f"start: {plan.recovery_point}"] += 1
        except SqlError:
            if not self._finding():
                raise
        self._bury(client)

    def _ship(self, plan: Plan, label: str) -> None:
        """Have a shipper recover what the servers left, with none of them there."""
        owners = self.capture.journal_directory / ".firebird-cdc/owners"
        turns = self.capture.directory / TURNS
        point = [plan.recovery_point, str(plan.recovery_hit)] if plan.recovery_point else []
        for arguments in [point, []] if point else [[]]:
            program = [sys.executable, "-P", HERE / "ship_program.py"]
            files = [self.capture.config, self.capture.logging]
            logged = self.capture.log.stat().st_size
            turns.write_bytes(b"")
            with (self.capture.directory / "shipper.log").open("ab") as output:
                shipper = forked.Popen(
                    [*program, *files, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            try:
                until(
                    "the shipper to recover",
                    lambda: (
                        shipper.poll() is not None  # noqa: B023
                        or not (self.capture.live() or list(owners.iterdir()))
                        or self._needs_server(logged)  # noqa: B023
                    ),
                    _PATIENCE_S,
                )
                # It may be on its way to its point still, or dying there: not after a turn more.
                past = turns.stat().st_size + bool(arguments)
                until(
                    "the shipper to end its turn",
                    lambda: shipper.poll() is not None or turns.stat().st_size >= past,  # noqa: B023
                    _PATIENCE_S,
                )
            except SetupError as error:
                left = [*self.capture.live(), *owners.iterdir()]
                self._fault(label, f"{error}: {sorted(path.name for path in left)}")
            if shipper.poll() is None:
                shipper.kill()
                self.tally.left_to_server += bool(self.capture.live())
                if arguments:
                    self.tally.not_reached[f"shipper: {plan.recovery_point}"] += 1
            else:
                assert shipper.returncode == -signal.SIGKILL, shipper.returncode
                self.tally.kills[f"shipper: {plan.recovery_point}"] += 1
            shipper.wait()

    def _needs_server(self, logged: int) -> bool:
        """Tell whether since LOGGED bytes of the log a shipper said that it can't decide all:
        a server was killed that had not yet learnt what a table that it captured looks like."""
        return self._was_said("only a server can read the table definitions", logged)

    def _was_said(self, text: str, logged: int) -> bool:
        with self.capture.log.open("rb") as log:
            log.seek(logged)
            return text.encode() in log.read()

    def _log_size(self) -> int:
        return self.capture.log.stat().st_size if self.capture.log.exists() else 0

    def _wake(self, client: Client) -> Attachment:
        """Have the bridge start: it does at a process's first captured change."""
        attachment = client.attach(self.capture.database)
        attachment.execute(workload.MARK)
        attachment.commit()
        return attachment

    def _settle(
        self, label: str, client: Client | None = None, has_survivors: bool = False
    ) -> bool:
        """Wait until no journal waits to be decided; return whether one is kept instead, until
        the survivors have ended. AssertionError if CLIENT dies.
        """

        def waiting() -> list[str]:
            assert client is None or client.process.poll() is None
            found = self.capture.written() if has_survivors else self.capture.live()
            return sorted(path.name for path in found)

        def is_kept() -> bool:
            tickets = self.capture.journal_directory / ".firebird-cdc/tickets/page"
            undecided = page_in(tickets.read_bytes()).undecided
            return has_survivors and undecided == len(waiting()) > 0

        try:
            until("all journals to be decided", lambda: not waiting() or is_kept(), _PATIENCE_S)
        except SetupError as error:
            self._fault(label, f"{error}: {len(waiting())} wait: {waiting()[:5]}")
        return is_kept()

    def _check(self, label: str, is_recovered: bool, logged: int) -> None:
        """Compare journals and tables when nothing is at work. LOGGED: bytes of the log before."""
        has_survivors = bool(self.capture.clients)
        try:
            if has_survivors:  # what the killed process left is theirs, without being asked
                attachment = self.capture.clients[0].attach(self.capture.database)
            elif is_recovered and not self.capture.live():  # else only a server can decide it
                attachment = self.client().attach(self.capture.database)
            else:
                attachment = self._wake(self.client())
        except SqlError:
            if not self._finding():
                raise
            return
        is_kept = self._settle(label, has_survivors=has_survivors)
        if is_kept:
            self.tally.kept += 1
            while self.capture.clients:
                self.capture.clients.pop().end()
            attachment = self._wake(self.client())
            self._settle(label)
        # Survivors may take it for committed and build upon it, whatever comes of it in the end:
        # only the marks can be compared then.
        has_rows = not is_kept and not self._was_said("is published late", logged)
        quarantine = self.capture.journal_directory / ".firebird-cdc/quarantine"
        for reason in quarantine.glob("*.reason"):
            self._fault(label, f"quarantined: {reason.name}: {reason.read_text().strip()}")
        tables, unread = self._tables(attachment)
        if not unread and not self._finding():
            attachment.close()
        if not self._captures:
            return
        journals = [each for each in self.capture.read_all() if _identity(each) not in self._taken]
        if any(self._is_given_twice(journal) for journal in journals):
            self.tally.given_twice += 1
            self.is_spent = True  # what it wrote may be in the tables or not
            return
        effects = Effects(map(dict, tables["EFFECTS"])) if "EFFECTS" in tables else None
        faults = self._truth.take(journals, effects, has_rows)
        faults += self._truth.compare(tables, unread, effects, has_rows)
        for fault in faults:
            self._fault(label, fault)
        if self.has_fault or not has_rows:
            self.is_spent = True
        else:
            self._taken |= set(map(_identity, journals))
            for path in {each.file for each in journals if each.file.suffix == ".log"}:
                path.unlink()

    def _is_given_twice(self, journal: Journal) -> bool:
        is_gap = any(isinstance(change, Gap) for change in journal.changes)
        return is_gap and journal.header.transaction in self._given_twice

    @property
    def has_fault(self) -> bool:
        """Tell whether the last life found a fault; the journals stay where they are then."""
        return len(self.tally.faults) > self._fault_count

    def _tables(self, attachment: Attachment) -> tuple[dict[str, Rows], list[str]]:
        """Return what the tables hold, and the names of those that can't be read any more."""
        found = attachment.execute(
            "SELECT TRIM(RDB$RELATION_NAME) AS NAME FROM RDB$RELATIONS"
            " WHERE RDB$SYSTEM_FLAG = 0 AND RDB$VIEW_BLR IS NULL"
        )
        tables = {}
        names = sorted((row["NAME"] for row in found), key=lambda name: (name != "MARK", name))
        for index, name in enumerate(names):
            try:
                rows, hidden = all_rows(
                    attachment, self.capture.database, name, WITHOUT_BLOBS.get(name, "T.*")
                )
            except SqlError:
                if not self._finding():
                    raise
                return tables, names[index:]
            if (column := _NOT_NULL.get(name)) and any(row[column] is None for row in rows):
                whole = [row for row in rows if row[column] is not None]
                self.tally.damaged["a NULL in a NOT NULL column"] += len(rows) - len(whole)
                rows = whole
            tables[name] = Counter(map(image, rows))
            self.tally.hidden_rows += hidden
        return tables, []

    def _finding(self) -> str:
        """Return the damage that the engine found in its database, "" if none."""
        log = self.capture.root.path / "firebird.log"
        return engine_finding(log.read_text(errors="replace")) if log.exists() else ""

    def _fault(self, label: str, text: str) -> None:
        self.tally.faults.append(f"{label}: {text}")


@dataclass(frozen=True)
class Libraries:
    """Libraries that are built for these tests alone."""

    plugin: Path  # with failpoints
    hold: Path  # hold_mark.c

    @classmethod
    def build(cls, directory: Path) -> Libraries:
        """Build what is not built yet, the preload into DIRECTORY."""
        plugin = built("failpoints", {"FIREBIRD_CDC_FAILPOINTS": "1"}) / "libfirebird_cdc.so"
        hold = directory / "hold_mark.so"
        subprocess.run(
            ["gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", hold,
             HERE / "hold_mark.c", "-ldl"],
            check=True,
        )  # fmt: skip
        return cls(plugin, hold)

    def put_into(self, capture: Capture) -> None:
        """Replace the installed plugin by the one with failpoints."""
        target = capture.root.path / "plugins/libfirebird_cdc.so"
        assert target.exists()
        fresh = target.with_suffix(".new")
        fresh.write_bytes(self.plugin.read_bytes())
        fresh.rename(target)


def run_lives(
    directory: Path,
    libraries: Libraries,
    tally: Tally,
    lives: Iterable[tuple[str, Plan]],
    captures: bool = True,
    shares: bool | None = None,
) -> None:
    """Live LIVES, of a mode and a plan each, in series of at most ten. SHARES: whether small
    transactions share journals; None: they do in every other twenty."""
    series: Series | None = None
    sharing = False
    with Stack(directory / "stack") as stack:
        try:
            for number, (mode, plan) in enumerate(lives):
                if series is None or series.is_spent or series.mode != mode or number % 10 == 0:
                    if series is not None:
                        series.kill_all()
                    home = directory / f"{number}-{mode}"
                    home.mkdir()
                    sharing = number // 20 % 2 == 1 if shares is None else shares
                    series = Series(
                        home, stack, mode, libraries, tally, captures=captures, shares=sharing
                    )
                form = "shared" if sharing else "own"
                print(f"round {number}, {mode}, {form} journals: {plan}", flush=True)
                series.live(plan, f"{mode[0]}{number}")
                if series.has_fault:
                    print(f"FAULT, see {home}: " + "; ".join(tally.faults[-3:]), flush=True)
        finally:
            if series is not None:
                series.kill_all()


def random_lives(
    seed: str, rounds: int, modes: Sequence[str] = MODES
) -> Iterator[tuple[str, Plan]]:
    """Return lives of all MODES, in tens by turns; the same ones for the same seed."""
    for number in range(rounds):
        mode = modes[number // 10 % len(modes)]
        yield mode, random_plan(random.Random(f"{seed}/{number}"), mode == "Classic")


def without_points(lives: Iterable[tuple[str, Plan]]) -> Iterator[tuple[str, Plan]]:
    """Return the same lives with no more than kills at random, for an engine without plugin."""
    for mode, plan in lives:
        yield mode, replace(plan, point="", recovery_point="", by_shipper=False)
