"""Work of the recorded processes: random work whose commits are noted, and a shipper.

Run in a client process (``Client.perform``) with power_recorder.c preloaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import runpy
import threading
from pathlib import Path
from typing import Any

from firebird.driver import (
    Connection,
    DatabaseError,
    Isolation,
    TraAccessMode,
    connect,
    get_api,
    tpb,
)

from firebird_cdc.errors import JournalError
from firebird_cdc.journal.folder.disposal import dispose_shipped
from firebird_cdc.journal.folder.locks import ShipperLock
from firebird_cdc.journal.format import SharedJournal, open_any

_WORK: dict[str, Any] = runpy.run_path(
    str(Path(__file__).resolve().parents[1] / "engine/random_work.py")
)
# MARK names each transaction; DOUBLE_ is what a unique index can't be made of.
TABLES = (
    *_WORK["TABLES"],
    "CREATE TABLE MARK (ID INTEGER NOT NULL PRIMARY KEY)",
    "CREATE TABLE DOUBLE_ (N INTEGER)",
)
FILL = "INSERT INTO DOUBLE_ SELECT 1 FROM RDB$TYPES ROWS 2"
BIG = (
    "EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN WHILE (I < {rows}) DO BEGIN"
    " INSERT INTO LOG_ VALUES ({mark}, 'big ' || :I); I = I + 1; END END"
)
_STARTS = 4  # in a row
_READ_COMMITTED = Isolation.READ_COMMITTED_RECORD_VERSION


def note(text: str) -> None:
    """Have the recorder tell TEXT at this place: the number of a transaction that is about to
    commit, the mark of one that has, the path of a journal that is shipped, that this process has
    joined others."""
    ctypes.CDLL(None).power_note(text.encode())


def fill(database: str) -> None:
    """Commit what the work expects to be there: the first that is captured."""
    with connect(database, user="SYSDBA", charset="UTF8") as connection:
        connection.execute_immediate(FILL)
        connection.commit()


def work(
    database: str, seed: str, connections: int, turns: int, first: int, has_reader: bool
) -> None:
    """Have CONNECTIONS threads do TURNS transactions each; a mark is FIRST or more.

    HAS_READER: beside them one starts transactions that only read, which makes the OIT go on. Only
    for a process that is not killed: the engine gives their numbers once more after that, though
    their bits may be on disk, and so say of a later transaction that it is committed.
    """
    is_over = threading.Event()

    def run(number: int) -> None:
        connection = connect(database, user="SYSDBA", charset="UTF8")
        chance = random.Random(f"{seed}/{number}")
        try:
            for turn in range(turns):
                _transact(connection, chance, first + number * 10_000 + turn)
                if number == turn == 0 and not _has_bridge():
                    note("joined")
        finally:
            connection.close()

    get_api()  # loaded by one thread: the driver doesn't expect several
    threads = [threading.Thread(target=run, args=(number,)) for number in range(connections)]
    reader = threading.Thread(target=_read, args=(database, is_over))
    for thread in [*threads, *[reader] * has_reader]:
        thread.start()
    for thread in threads:
        thread.join()
    is_over.set()
    if has_reader:
        reader.join()


def _has_bridge() -> bool:
    """Tell whether the plugin has a bridge in this process by now."""
    return any(thread.name == "fbc-confirm" for thread in threading.enumerate())


def _read(database: str, is_over: threading.Event) -> None:
    with connect(database, user="SYSDBA", charset="UTF8") as connection:
        # The first one computes the OIT, the next one writes it; an end waits for commits.
        transactions = [connection.transaction_manager() for _ in range(_STARTS)]
        while not is_over.wait(0.001):
            for transaction in transactions:
                transaction.begin(tpb(_READ_COMMITTED, access_mode=TraAccessMode.READ))
            for transaction in transactions:
                transaction.commit()


def _transact(connection: Connection, chance: random.Random, mark: int) -> None:
    transaction = connection.transaction_manager()
    transaction.begin(tpb(_READ_COMMITTED, lock_timeout=chance.choice((0, 0, 1))))
    kind = chance.random()
    try:
        with transaction.cursor() as cursor:
            cursor.execute("INSERT INTO MARK VALUES (?)", (mark,))
            for _ in range(chance.randint(0, 4)):
                _WORK["_change"](cursor, transaction, chance)
        if kind < 0.02:
            transaction.execute_immediate(BIG.format(rows=chance.randint(300, 3000), mark=mark))
        elif kind < 0.06:  # the commit fails, after prepare
            transaction.execute_immediate("CREATE UNIQUE INDEX DOUBLE_X ON DOUBLE_ (N)")
        if 0.06 < kind < 0.18:
            transaction.rollback()
            return
        note(f"number {transaction.info.id}")
        transaction.commit(retaining=0.18 < kind < 0.25)
        note(f"commit {mark}")
    except DatabaseError:  # a collision, a key that is there already, the index
        pass
    if transaction.is_active():
        transaction.rollback()


def ship(folder: str, keep: int, stop: str, makes_folder: bool) -> None:
    """Take journals as a shipper does, in order, note them and remove them, until STOP exists;
    leave the last KEEP. MAKES_FOLDER: take the lock of the folder, which makes it."""
    with ShipperLock(Path(folder)) if makes_folder else contextlib.nullcontext():
        _ship(folder, keep, stop)


def _ship(folder: str, keep: int, stop: str) -> None:
    while not Path(stop).exists():
        found = []
        for path in Path(folder).glob("*.log"):
            try:
                with open_any(path) as opened:
                    stamp = (
                        opened.places[0].stamp
                        if isinstance(opened, SharedJournal)
                        else opened.stamp
                    )
            except (JournalError, FileNotFoundError):
                continue
            if stamp is not None:
                found.append((stamp.sequence, path))
        found.sort()
        taken = [path for _, path in found[: len(found) - keep]]
        for path in taken:
            note(f"ship {path}")
        dispose_shipped(taken, None)
        threading.Event().wait(0.02)
