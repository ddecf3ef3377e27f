"""After a kill the engine gives rows the blobs of others, and says of some that they are not found.

To undo a version of a row, VIO_backout (the engine's vio.cpp) frees its blobs first, and takes the
version away after that. If the process is killed in between, and pages are written in between, the
version is on the disk with the addresses of blobs that are free. New blobs get these places. Then
somebody meets the version, which is of a dead transaction, and undoes it once more: with it go the
blobs of rows that are alive, and their places are given away again.

No plugin can be told of that. python tests/faults/foreign_blobs.py [--seconds 60] [--mode Super]
shows it on an engine with nothing captured. How the tests tell it from what the plugin got wrong is
in effects.py.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
from pathlib import Path
from time import monotonic, sleep

_UNDONE, _NEW = (
    100,
    150,
)  # rows that are changed and undone; new ones before and after a look at all
_LIVES = 15  # of one database
_WORK_S = (0.05, 0.4)
_PATIENCE_S = 30.0
_ADD = "INSERT INTO ITEM (ID, N, NOTE) VALUES (?, ?, ?)"


def _note(number: int) -> str:
    return f"{number} " * (number % 40 + 1)


def undo(database: str, seed: str, connections: int, ready: str) -> None:
    """Change rows with blobs in CONNECTIONS threads, mostly to undo that, until killed; runs in a
    server process. Each thread makes a file whose name begins with READY when it begins."""
    from firebird.driver import DatabaseError, Isolation, connect, load_api, tpb

    def work(number: int) -> None:
        chance = random.Random(f"{seed}/{number}")
        with connect(database, user="SYSDBA", charset="UTF8") as connection:
            transaction = connection.transaction_manager()
            Path(f"{ready}-{number}").touch()
            while True:
                transaction.begin(tpb(Isolation.READ_COMMITTED_RECORD_VERSION, lock_timeout=0))
                try:
                    with transaction.cursor() as cursor:
                        for _ in range(chance.randint(1, 8)):
                            key, value = chance.randrange(_UNDONE), chance.randrange(10**12)
                            cursor.execute(f"UPDATE OR {_ADD}", (key, value, _note(value)))
                    if chance.random() < 0.2:
                        transaction.commit()
                except DatabaseError:
                    pass  # a conflict
                finally:
                    if transaction.is_active():
                        transaction.rollback()

    load_api()
    for number in range(connections):
        threading.Thread(target=work, args=(number,)).start()


def look(database: str, seed: str) -> list[str]:
    """Put new rows in, meet all that a kill left, put more in, and return which rows have not the
    blob that they were given; runs in a server process."""
    from firebird.driver import DatabaseError, connect

    chance = random.Random(seed)
    found = []
    with connect(database, user="SYSDBA", charset="UTF8") as connection:
        cursor = connection.cursor()
        for _ in range(2):
            for _ in range(_NEW):
                value = chance.randrange(10**12)
                cursor.execute(_ADD, (chance.randrange(_UNDONE, 10**9), value, _note(value)))
            connection.commit()
            cursor.execute("SELECT COUNT(*) FROM ITEM WHERE N >= 0")
            cursor.fetchall()
        cursor.execute("SELECT ID, N FROM ITEM")
        for key, value in cursor.fetchall():
            try:
                [(note,)] = cursor.execute("SELECT NOTE FROM ITEM WHERE ID = ?", (key,)).fetchall()
            except DatabaseError as error:
                note = str(error)
            if note != _note(value):
                found.append(f"row {key} was given {_note(value)[:30]!r}, and has {note[:30]!r}")
        connection.commit()
        cursor.execute("DELETE FROM ITEM WHERE ID >= ?", (_UNDONE,))
        connection.commit()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Show with whose blobs rows are after a kill.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--mode", choices=["Super", "Classic"], default="Classic")
    arguments = parser.parse_args()
    here = Path(__file__)
    sys.path[:0] = [str(here.parents[1] / "engine"), str(here.parents[1])]
    from capture import Client
    from random_work import TABLES

    from firebird_cdc.demo.engine import EmbeddedRoot

    processes, connections = (3, 2) if arguments.mode == "Classic" else (1, 6)
    chance = random.Random()
    end = monotonic() + arguments.seconds
    lives, found = 0, []
    while monotonic() < end and not found:
        with tempfile.TemporaryDirectory(prefix="firebird-cdc-foreign-blobs-") as temporary:
            directory = Path(temporary)
            settings = {"ServerMode": arguments.mode, "DeadlockTimeout": "1"}
            root = EmbeddedRoot(directory / "engine", settings)
            database = str(directory / "test.fdb")

            def start(root: EmbeddedRoot = root, log: Path = directory / "server.log") -> Client:
                return Client(root.client_library, root.environment(), log)

            client = start()
            client.attach(Path(database), create=True).script(TABLES[0])
            client.end()
            for life in range(_LIVES):
                clients = [start() for _ in range(processes)]
                for number, client in enumerate(clients):
                    ready = str(directory / f"ready-{life}-{number}")
                    work = (database, str(chance.random()), connections, ready)
                    client.start("perform", str(here), "undo", work)
                until = monotonic() + _PATIENCE_S
                while len(list(directory.glob(f"ready-{life}-*"))) < processes * connections:
                    assert monotonic() < until, (directory / "server.log").read_text()
                    sleep(0.01)
                sleep(chance.uniform(*_WORK_S))
                for client in clients:
                    client.kill()
                lives += 1
                client = start()
                found = client.perform(here, "look", database, str(chance.random()))
                client.end()
                if found or monotonic() > end:
                    break
    print("\n".join(found) or "nothing found")
    print(f"after {lives} kills")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
