"""An engine root with the plugin installed, clients in processes of their own, and journals."""

from __future__ import annotations

import atexit
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Context, Decimal
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import mkdtemp
from threading import Lock
from time import monotonic
from typing import Any, TypeVar

import forked
import instruments
import pytest
from shared_folder import all_readers_in, committed_in, live_in, open_transaction
from soaked import in_turn

from firebird_cdc.bridge.recovery import Recovery
from firebird_cdc.cli import main
from firebird_cdc.demo.engine import EmbeddedRoot
from firebird_cdc.demo.processes import Stack, await_condition, members, tail
from firebird_cdc.journal.format import (
    Blob,
    Change,
    Column,
    DdlChange,
    Header,
    JournalReader,
    RowChange,
    Stamp,
    Storage,
    Value,
)
from firebird_cdc.journal.format.charsets import codec_of
from firebird_cdc.journal.types.decfloat import decode_decfloat

# A machine that is busy elsewhere stands still for seconds, again and again.
PATIENCE_S = max(60.0, 40.0 * instruments.SLOWNESS)
GIVES_UP_S = 1.0  # for so long who leaves waits for a bridge that gives no sign of life
_HERE = Path(__file__).parent
# After so many seconds the engine looks whether who holds a lock has died, by default after 10.
_SETTINGS = {"DeadlockTimeout": "1"}
# Tests change these while the engine's threads read the environment (tests/faults/points.py), which
# glibc allows for names that a process was started with: after a new one the next new name, of the
# engine's, frees what these threads read.
_CHANGED_LATER = dict.fromkeys(("FBC_FAILPOINT", "FBC_HOLD_DIE", "FBC_HOLD_US"), "")
_DAY_0 = date(1858, 11, 17)
_UNITS_PER_DAY = 864_000_000
_INTEGERS = (Storage.SMALLINT, Storage.INTEGER, Storage.BIGINT, Storage.INT128)

TRANSACTIONS = "FIREBIRD_CDC_TRANSACTIONS"  # in the environment: how many share a journal
either_form = in_turn("journals", ["own", "shared"], indirect=True)
either_mode = in_turn("mode", ["capture", "classic"])  # fixtures of a Super and a Classic server
own_journals = pytest.mark.parametrize("journals", ["own"], indirect=True)
_FINDING = re.compile(r"internal Firebird consistency check \((.+?\(\d+\))")
UNREADABLE = "unreadable"  # for the content of a blob that the engine did not give

Row = dict[str, Any]
Rows = Counter[frozenset[tuple[str, Any]]]
_T = TypeVar("_T")


class SqlError(Exception):
    """The engine's words about a statement or a commit that failed."""


def until(what: str, condition: Callable[[], _T], timeout_s: float = PATIENCE_S) -> _T:
    """Return the first true value of CONDITION."""
    return await_condition(what, condition, timeout_s, 0.01)


def engine_finding(text: str) -> str:
    """Return the damage of a database that the engine's own checks found, by TEXT of a log or an
    error; "" if none. After that it serves the database no more."""
    found = _FINDING.search(text)
    return found[1] if found else ""


def users_of(file: Path) -> dict[str, str]:
    """Return the commands of the processes that have FILE open, by their numbers."""
    users = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if any(_leads_to(each, file) for each in (process / "fd").iterdir()):
                users[process.name] = (process / "cmdline").read_text().replace("\0", " ")
    return users


def _leads_to(link: Path, file: Path) -> bool:
    with suppress(OSError):  # closed between listing and reading
        return link.readlink() == file
    return False


# ---- Clients -----------------------------------------------------------------------------------


class Attachment:
    """One connection of a client process, with a transaction that starts by itself."""

    def __init__(self, client: Client, number: int) -> None:
        self._client = client
        self.number = number

    def execute(self, sql: str, *parameters: Any) -> list[Row]:
        """Run a statement; return its rows, if it has any."""
        rows: list[Row] = self._client.call("execute", self.number, sql, parameters)
        return rows

    def script(self, *statements: str) -> None:
        """Run statements as they are, such as DDL, each committed."""
        for sql in statements:
            self._client.call("execute", self.number, sql, None)
            self.commit()

    def immediate(self, sql: str) -> None:
        """Run a statement as it is, in the current transaction."""
        self._client.call("execute", self.number, sql, None)

    def begin(self, isolation: str = "SNAPSHOT", **options: Any) -> None:
        """Start a transaction; OPTIONS of firebird-driver's TPB."""
        self._client.call("begin", self.number, isolation, options)

    def commit(self, retaining: bool = False) -> None:
        self._client.call("commit", self.number, retaining)

    def rollback(self, retaining: bool = False) -> None:
        self._client.call("rollback", self.number, retaining)

    def close(self) -> None:
        self._client.call("close", self.number)

    def drop_database(self) -> None:
        self._client.call("drop", self.number)

    def rows(self, table: str) -> Rows:
        """Return what the table holds, as ``fold`` gives it."""
        found = self.execute(f"SELECT * FROM {table}")
        self.commit()
        return Counter(map(image, found))


class Client:
    """A process that has the engine, and so the plugin, in itself; threads can share one."""

    def __init__(
        self,
        library: Path,
        environment: Mapping[str, str],
        errors: Path,
        before: Sequence[str] = (),
    ) -> None:
        self._errors = errors
        self._lock = Lock()
        with errors.open("ab") as log:
            self.process = forked.Popen(
                [*before, sys.executable, "-P", str(_HERE / "client_program.py"), str(library)],
                env={**_CHANGED_LATER, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self, operation: str, *arguments: Any) -> None:
        """Have something done without waiting for it; ``finish`` returns its result."""
        assert self.process.stdin is not None
        pickle.dump((operation, arguments), self.process.stdin)
        self.process.stdin.flush()

    def finish(self) -> Any:
        assert self.process.stdout is not None
        try:
            error, result = pickle.load(self.process.stdout)
        except (EOFError, pickle.UnpicklingError):
            code = self.process.wait()
            raise AssertionError(f"the process ended ({code}): {tail(self._errors)}") from None
        if error is not None:
            raise SqlError(error)
        return result

    def call(self, operation: str, *arguments: Any) -> Any:
        """Have something done. Raises SqlError."""
        with self._lock:
            self.start(operation, *arguments)
            return self.finish()

    def attach(
        self,
        database: Path,
        charset: str = "UTF8",
        create: bool = False,
        dialect: int = 3,
        user: str = "SYSDBA",
    ) -> Attachment:
        arguments = (str(database), charset, create, dialect, user)
        return Attachment(self, self.call("attach", *arguments))

    def perform(self, path: Path, function: str, *arguments: Any) -> Any:
        """Run a function of a Python file in the process."""
        return self.call("perform", str(path), function, arguments)

    def end(self) -> None:
        """Have the process close its attachments and end, which it must do in peace."""
        self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, tail(self._errors)

    def kill(self) -> None:
        """End the process at once, as a crash of the server would."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.communicate()

    def memory_peak_kib(self) -> int:
        """Return the most memory that the process has had resident."""
        return int(_status(self.pid)["VmHWM"].split()[0])


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@cache
def _maker() -> Client:
    """Return the process that makes databases for this one: to start an engine for that was a
    fifth of a test's time. It ends with us, at the end of its input."""
    folder = Path(mkdtemp(prefix="firebird-cdc-maker-"))
    atexit.register(shutil.rmtree, folder)
    root = EmbeddedRoot(folder, {**_SETTINGS, "ServerMode": "Super"})
    maker = Client(root.client_library, root.environment(), folder / "errors.log")
    atexit.register(maker.end)
    return maker


# ---- Journals ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Journal:
    """A committed journal, read as a whole; blobs are in ``row`` images as their content."""

    path: Path
    header: Header
    stamp: Stamp
    database: str
    user: str
    changes: list[Change]
    floor: int | None

    @property
    def sequence(self) -> int:
        return self.stamp.sequence

    @property
    def file(self) -> Path:
        """The file that it lies in, perhaps with others."""
        return self.path if self.path.exists() else self.path.parent

    @property
    def rows(self) -> list[RowChange]:
        """The row changes."""
        return [change for change in self.changes if isinstance(change, RowChange)]

    @property
    def statements(self) -> list[str]:
        """The texts of DDL statements."""
        return [str(change.sql) for change in self.changes if isinstance(change, DdlChange)]

    def brief(self) -> list[tuple[str, Row | None, Row | None]]:
        """Return operation, old and new row of each change."""
        return [(change.op, before(change), after(change)) for change in self.rows]


def read_journal(path: Path) -> Journal:
    with open_transaction(path) as reader:
        return read_open(reader)


def read_open(reader: JournalReader) -> Journal:
    path = Path(reader.path)
    assert reader.stamp is not None, f"{path} was renamed without a stamp"
    # What a blob holds is read while the file is there.
    changes = [pickle.loads(pickle.dumps(change)) for change in reader.changes()]
    floor = reader.seal.floor if reader.seal is not None else None
    return Journal(path, reader.header, reader.stamp, reader.database, reader.user, changes, floor)


def read_folder(folder: Path) -> list[Journal]:
    """Return the committed journals of a folder, of all databases, ordered by their numbers."""
    return sorted(map(read_open, all_readers_in(folder)), key=lambda journal: journal.sequence)


def _has_header(journal: Path) -> bool:
    try:
        with journal.open("rb") as file:
            return any(file.read(512))
    except FileNotFoundError:
        return False


def before(change: RowChange) -> Row | None:
    return _row(change, change.before)


def after(change: RowChange) -> Row | None:
    return _row(change, change.after)


def _row(change: RowChange, values: tuple[Value, ...] | None) -> Row | None:
    if values is None:
        return None
    shown = [(change.table.columns[index], values[index]) for index in change.table.order]
    return {column.name: plain(column, value) for column, value in shown}


def plain(column: Column, value: Value) -> Any:
    """Return a value as the driver gives it, but times with zone: (units in UTC, zone id)."""
    if value is None:
        return None
    if column.storage in _INTEGERS and (column.scale or column.sub_type):
        return Decimal(value).scaleb(column.scale, Context(prec=40))  # type: ignore[arg-type]
    if isinstance(value, Blob):
        if not value.available:
            return UNREADABLE
        codec = codec_of(column.charset_id) if column.sub_type == 1 else None
        return value.read().decode(codec) if codec else value.read()
    if isinstance(value, bytes):
        if column.storage in (Storage.DECFLOAT16, Storage.DECFLOAT34):
            return decode_decfloat(value)
        if column.storage in (Storage.TIME_TZ, Storage.TIMESTAMP_TZ):
            signed = column.storage is Storage.TIMESTAMP_TZ
            units = int.from_bytes(value[:-2], "little", signed=signed)
            return units, int.from_bytes(value[-2:], "little")
    if isinstance(value, int):
        if column.storage is Storage.DATE:
            return _DAY_0 + timedelta(days=value)
        if column.storage in (Storage.TIME, Storage.TIMESTAMP):
            moment = moment_of(value)
            return moment if column.storage is Storage.TIMESTAMP else moment.time()
    return value


def moment_of(units: int) -> datetime:
    """Return the time that is UNITS of 1/10000 s after 1858-11-17."""
    days, rest = divmod(units, _UNITS_PER_DAY)
    return datetime.combine(_DAY_0, time()) + timedelta(days=days, microseconds=rest * 100)


def image(row: Row) -> frozenset[tuple[str, Any]]:
    """Return a row so that it can be counted; NULL and a column not yet there are the same."""
    return frozenset((name, value) for name, value in row.items() if value is not None)


def passing_rows(journal: Journal) -> set[int]:
    """Return the places of the changes of rows that the transaction made and took away again.

    The engine lets others use such a row's key before the transaction ends, so that they tell
    nothing of who has the key.
    """
    passing: set[int] = set()
    made: dict[tuple[str, frozenset[tuple[str, Any]]], list[int]] = {}
    for number, change in enumerate(journal.rows):
        old, new = before(change), after(change)
        steps = made.pop((change.table.name, image(old)), None) if old is not None else []
        if steps is None:
            continue
        steps = [*steps, number]
        if new is None:
            passing.update(steps)
        else:
            made[change.table.name, image(new)] = steps
    return passing


def fold(
    journals: Iterable[Journal],
    follow_engine: Callable[[Rows, int, frozenset[tuple[str, Any]] | None], None] | None = None,
    leave_out: Sequence[str] = (),
) -> dict[str, Rows]:
    """Return what the journals' changes add up to, by table, without the columns LEAVE_OUT.

    Asserts that each change finds the row that it starts from. FOLLOW_ENGINE is given the rows of
    ITEM, the key and the old row of each change before that is looked for (effects.py).
    """

    def shown(row: Row | None) -> frozenset[tuple[str, Any]] | None:
        if row is None:
            return None
        return image({name: value for name, value in row.items() if name not in leave_out})

    tables: defaultdict[str, Rows] = defaultdict(Counter)
    for journal in journals:
        passing = passing_rows(journal) if follow_engine else set()
        for number, change in enumerate(journal.rows):
            rows = tables[change.table.name]
            old, new = shown(before(change)), shown(after(change))
            key = dict(old or new or ()).get("ID")
            if follow_engine and change.table.name == "ITEM" and number not in passing:
                follow_engine(rows, key, old)
            if old is not None:
                assert rows[old] > 0, (
                    f"{journal.path.name}: {change.op} of no row: {dict(old)}; of its key: "
                    f"{[dict(row) for row in +rows if dict(row).get('ID') == key]}"
                )
                rows[old] -= 1
            if new is not None:
                rows[new] += 1
    return {name: +rows for name, rows in tables.items()}


# ---- The engine with the plugin ----------------------------------------------------------------


class Capture:
    """An engine root with the plugin installed, one database and one journal folder."""

    def __init__(self, directory: Path, stack: Stack, settings: Mapping[str, str]) -> None:
        self.directory = directory
        self.root = EmbeddedRoot(directory / "engine", {**_SETTINGS, **settings})
        self.stack = stack
        self.database = directory / "test.fdb"
        self.journal_directory = directory / "journals"
        self.config = directory / "connector.yaml"
        self.logging = directory / "logging.yaml"
        self.log = directory / "firebird-cdc.log"
        self.replication_log = self.root.path / "replication.log"
        self.options = {
            "connector.name": "test",
            "connector.journal.directory": str(self.journal_directory),
            "connector.shipper": "external",
            "kafka.producer.bootstrap.servers": "127.0.0.1:9",
            "kafka.topic.prefix": "test",
            "snapshot.mode": "never",
        }
        if most := os.environ.get(TRANSACTIONS):
            self.options["connector.journal.transactions"] = most
        self.logging.write_text(f"level: debug\nfile: {self.log}\n")
        self.clients: list[Client] = []
        self.seeks_leaks = instruments.CHOSEN == "leaks"
        self.write_config()

    def write_config(self, **changed: str | None) -> None:
        """Write the connector's options; CHANGED by name with _ for a dot, None leaves one out."""
        options = self.options | {name.replace("_", "."): v for name, v in changed.items() if v}
        for name, value in changed.items():
            if value is None:
                options.pop(name.replace("_", "."))
        self.config.write_text("".join(f"{name}: {value}\n" for name, value in options.items()))

    def install(self) -> None:
        """Put the plugin into the root, as a user does, but without a process of its own."""
        files = ["--config", str(self.config), "--logging", str(self.logging)]
        with redirect_stdout(StringIO()) as told:
            code = main(["install", "--server", str(self.root.path), *files])
        assert code == 0, told.getvalue()
        instruments.place(self.root.path)

    def environment(self) -> dict[str, str]:
        environment = self.stack.environment(self.root.environment())
        environment["PYTHONSAFEPATH"] = "1"
        instrument = instruments.environment(self.directory, seeks_leaks=self.seeks_leaks)
        return {**environment, **instrument}

    def client(self) -> Client:
        """Start a process; the fixture ends it."""
        errors = self.directory / f"client-{len(self.clients) + 1}.log"
        client = Client(
            self.root.client_library,
            self.environment(),
            errors,
            instruments.before(self.directory),
        )
        self.clients.append(client)
        return client

    def create(self, *statements: str, publish: bool = True) -> None:
        """Make the database with these statements, and publish all tables, in a process without
        the plugin."""
        attachment = _maker().attach(self.database, create=True)
        attachment.script(*statements)
        if publish:
            attachment.script(
                "ALTER DATABASE INCLUDE ALL TO PUBLICATION", "ALTER DATABASE ENABLE PUBLICATION"
            )
        attachment.close()

    def attach(self) -> Attachment:
        """Attach to the database in a process of its own."""
        return self.client().attach(self.database)

    def end_clients(self) -> None:
        """Have all end in peace. One that has waited in vain, and so long that it had to give up
        (SILENCE_MS in native/events.c), may have left something to decide."""
        while self.clients:
            began = monotonic()
            self.clients.pop().end()
            if monotonic() - began >= GIVES_UP_S and self.live() and not members(self.stack.mark):
                self.recover()

    # -- what is in the journal folder

    def delete_folder(self) -> None:
        """Delete the journal folder; not at once, as journals are being made beforehand in it."""

        def is_deleted() -> bool:
            shutil.rmtree(self.journal_directory, ignore_errors=True)
            return not self.journal_directory.exists()

        until("the folder to be deleted", is_deleted)

    def move_folder(self) -> None:
        """Move the journal folder away until `put_folder_back`. What is in its place keeps a
        process that notices, which it does within a second, from making another one there."""
        self.journal_directory.rename(self.journal_directory.with_name("away"))
        self.journal_directory.write_text("in the way")

    def put_folder_back(self) -> None:
        self.journal_directory.unlink()
        self.journal_directory.with_name("away").rename(self.journal_directory)

    def live(self) -> list[Path]:
        """Return the journals of open transactions, and of those that are not confirmed."""
        return live_in(self.journal_directory)

    def written(self) -> list[Path]:
        """Return those of them to which something was written: nobody knows whose an empty one is,
        so it stays while a process lives that may be at work on it."""
        return [path for path in self.live() if path.suffix != ".live" or _has_header(path)]

    def committed(self) -> list[Path]:
        """Return a path for each committed transaction, where it has one of its own."""
        return committed_in(self.journal_directory)

    def read_all(self) -> list[Journal]:
        """Return the committed journals, of all databases, ordered by their numbers."""
        return read_folder(self.journal_directory)

    def journals(self) -> list[Journal]:
        """Return the committed journals in order, once no other is left in the folder.

        Asserts a dense sequence, and that nothing was set aside.
        """
        self.await_decided()
        aside = list((self.journal_directory / ".firebird-cdc/quarantine").glob("*.reason"))
        assert not aside, aside[0].read_text()
        found = self.read_all()
        assert [journal.sequence for journal in found] == list(range(1, len(found) + 1))
        return found

    def await_decided(self) -> None:
        """Wait until no journal is live. What the last process has left, somebody decides: it may
        have given up waiting for that."""

        def is_decided() -> bool:
            if self.live() and not members(self.stack.mark):
                self.recover()
            return not self.live()

        until(f"all journals in {self.journal_directory} to be decided", is_decided)

    def recover(self) -> None:
        """Decide what servers that are gone have left, as the shipper does: who leaves does not
        wait for long, and a busy machine may take longer."""
        recovery = Recovery(self.journal_directory, fsync=True)
        recovery.look()

    def last_rows(self) -> list[tuple[str, Row | None, Row | None]]:
        """Return the row changes of the last transaction."""
        return self.journals()[-1].brief()
