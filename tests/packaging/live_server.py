"""A Debian 13 in a folder with a Firebird 4 server that runs, for trials of packages and bundle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

_CLONE = Path(__file__).parent.parent.parent
sys.path[:0] = [str(_CLONE / "benchmarks"), str(_CLONE / "scripts/packages"), str(_CLONE / "tests")]

from confluent_kafka import Consumer, TopicPartition  # noqa: E402
from confluent_kafka.admin import AdminClient  # noqa: E402
from machines import Chroot, differences  # noqa: E402

from firebird_cdc.demo import trixie as debian  # noqa: E402
from firebird_cdc.demo.debian import inner_environment  # noqa: E402
from firebird_cdc.demo.firebird4 import Firebird4  # noqa: E402
from firebird_cdc.demo.processes import Stack, await_condition  # noqa: E402
from firebird_cdc.errors import SetupError  # noqa: E402

PREFIX = Path("opt/firebird-cdc")
CONFIG = debian.CONFIGURATION / "reddatabase.connector.yaml"
JOURNALS = Path("var/lib/firebird-cdc/journal")
_OPTIONS = """\
connector.name: shop
connector.journal.directory: /{journals}
kafka.producer.bootstrap.servers: {bootstrap}
kafka.topic.prefix: {prefix}
snapshot.mode: never
"""
# What an administrator's and the system's own work leaves, too.
OTHERS = (
    *("var/lib/dpkg", "var/cache", "var/lib/apt", "var/log", "root"),
    *("var/lib/firebird/4.0/system", "shop", "etc/ld.so.cache"),
    *(f"etc/{name}-" for name in ("passwd", "group", "shadow", "gshadow")),
)


def say(text: str) -> None:
    """Tell what is done."""
    print(f"acceptance  {text}", flush=True)


class Machine(Chroot):
    """A fresh Debian 13 in a folder, with a Firebird 4 server that runs and a database."""

    def __init__(self, base: Path, folder: Path, client: Any, bootstrap: str, prefix: str) -> None:
        super().__init__(base, folder / "root")
        self.system = debian.Trixie(self.root)
        shop = self.root / "shop"
        shop.mkdir(mode=0o770)
        self.stack = Stack(folder / "stack")
        self.server = Firebird4(self.system, shop, self.stack)
        self.server.give_to_server(shop)
        self._client = client
        client.driver_config.server_defaults.user.value = "SYSDBA"
        client.driver_config.server_defaults.password.value = self.server.password
        self.bootstrap = bootstrap
        self._prefix = prefix
        self.server.start()
        self.dsn = self.server.dsn(shop / "shop.fdb")
        self.create(self.dsn, "ITEM")
        self.before = self.picture(OTHERS)

    def close(self) -> None:
        """End all that runs in it."""
        self.server.stop()
        self.stack.stop()

    def create(self, dsn: str, table: str) -> None:
        """Make a database with a TABLE."""
        with self._client.create_database(dsn) as connection:
            connection.execute_immediate(f"CREATE TABLE {table} (ID INTEGER PRIMARY KEY)")
            connection.commit()

    def apt(self, *argv: str, before: str = "", fails: int | None = 0) -> str:
        """Run apt-get without a network; return what it printed."""
        return self.run("apt-get", "--yes", *argv, before=before, fails=fails)

    def killed_after(self, delay_s: float, *argv: str) -> bool:
        """Run a program and all that it starts for so long, by kill -9; tell whether it had not
        ended before."""
        process = subprocess.Popen(
            self.argv(*argv),
            env=inner_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with suppress(subprocess.TimeoutExpired):
            process.wait(delay_s)
        is_killed = process.poll() is None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return is_killed

    def command(self, *argv: str, check: bool = True) -> str:
        """Run firebird-cdc as it is called inside."""
        login = {"ISC_USER": "SYSDBA", "ISC_PASSWORD": self.server.password}
        done = self.system.run("firebird-cdc", *argv, check=check, environment=login)
        return done.stdout

    def write_options(self, **more: str) -> None:
        """Write the connector's options, as an administrator does."""
        text = _OPTIONS.format(
            journals=JOURNALS, bootstrap=self.bootstrap, prefix=self._prefix
        ) + "".join(f"{key.replace('__', '.')}: {value}\n" for key, value in more.items())
        (self.root / CONFIG).write_text(text)

    def restart(self) -> None:
        """Restart the server, as an administrator does."""
        self.server.stop()
        self.server.start()

    def connect(self) -> Any:
        """Return a connection over TCP."""
        return self._client.connect(self.dsn)

    def insert(self, number: int, table: str = "ITEM", dsn: str | None = None) -> None:
        """Commit a row over TCP."""
        with self._client.connect(dsn or self.dsn) as connection:
            connection.execute_immediate(f"INSERT INTO {table} VALUES ({number})")
            connection.commit()

    def rows(self) -> Counter[int]:
        """Return the rows of the table."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT ID FROM ITEM")
            return Counter(row[0] for row in cursor.fetchall())

    def events(self) -> Counter[int]:
        """Return the rows of which events are in Kafka, by how many."""
        return events(self.bootstrap, self._prefix)

    def left(self) -> list[str]:
        """Return what is not as it was before the package came."""
        found = differences(self.before, self.picture(OTHERS))
        # dpkg takes an empty /opt for the last package's that had files there.
        return [each for each in found if not each.endswith(": opt")]

    def served_by(self, folder: str) -> bool:
        """Tell whether the server has loaded something of FOLDER."""
        return f"{folder}/" in Path(f"/proc/{self.server.process_id}/maps").read_text()


def events(bootstrap: str, prefix: str) -> Counter[int]:
    """Return the numbers of rows in the topics of PREFIX, with how often each comes."""
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
    found: Counter[int] = Counter()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"acceptance-{time.monotonic_ns()}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        places = [
            TopicPartition(name, number, 0)
            for name, topic in topics.items()
            if name.startswith(f"{prefix}.") and name.endswith("ITEM")
            for number in topic.partitions
        ]
        if not places:
            return found
        consumer.assign(places)
        ended = 0
        while ended < len(places):
            message = consumer.poll(10)
            if message is None:
                break
            if message.error():
                ended += 1
                continue
            if message.value() is not None:
                value = json.loads(message.value())
                row = value.get("payload", value)["after"]
                found[row["ID"]] += 1
    finally:
        consumer.close()
    return found


def version_of(package: Path) -> str:
    return package.name.split("_")[1]


def waiting(machine: Machine) -> int:
    """Return how many journals of MACHINE wait."""
    return len(list((machine.root / JOURNALS).glob("*.log*")))


class Load:
    """Clients that commit rows, each in a transaction of its own, and come again when they are
    thrown out."""

    def __init__(self, machine: Machine, clients: int = 4) -> None:
        self._machine = machine
        self._ended = threading.Event()
        self._clients = clients
        self.committed = Counter[int]()
        self._refusal: Exception | None = None
        self._threads = [
            threading.Thread(target=self._work, args=(number,)) for number in range(clients)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _work(self, client: int) -> None:
        number = 1000 + client
        while not self._ended.is_set():
            try:
                with self._machine.connect() as connection:
                    while not self._ended.is_set():
                        number += self._clients
                        connection.execute_immediate(f"INSERT INTO ITEM VALUES ({number})")
                        connection.commit()
                        self.committed[number] += 1
            except Exception as error:
                self._refusal = error
            self._ended.wait(0.2)

    def goes_on(self, commits: int = 200) -> None:
        """Wait for so many more commits."""
        begun = self.committed.total()
        try:
            await_condition("commits", lambda: self.committed.total() > begun + commits, 120)
        except SetupError as error:
            raise SetupError(f"{error}; the last refusal: {self._refusal}") from error


def balance(machine: Machine, what: str) -> dict[str, Any]:
    """Return how many of the rows have no event, and how many have more than one."""
    rows = machine.rows()
    await_condition("all journals to be gone", lambda: not waiting(machine), 120)
    found = machine.events()
    lost, doubled = sum((rows - found).values()), sum((found - rows).values())
    say(f"{what}: {rows.total()} rows, {lost} lost, {doubled} doubled")
    return {"rows": rows.total(), "lost": lost, "doubled": doubled}
