"""``make packages-check``: the bundle on a bare Debian 12, from nothing to an event and back.

A chroot without Python and network gets an engine under /opt/firebird. The bundle is installed, a
row committed by a process without Python of its own, its event read from this machine's Kafka; then
the bundle of another version upgrades it, and uninstall has to leave all as it was. Before that:
flipped bytes, a read-only folder, a full one, and kill -9 in the middle. Then the same below
another prefix for a server with RED Database's names, and the packages (managers.py). The last
line is JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bundle import bundle, pack, write_bundle
from machines import Chroot, compare, expect, pristine
from places import CACHE, ROOT, epoch, say, version
from tree import tree

from firebird_cdc.demo.debian import inner_environment
from firebird_cdc.demo.engine import EmbeddedRoot
from firebird_cdc.demo.kafka import KafkaBroker, fetch_kafka
from firebird_cdc.demo.paths import cache_directory
from firebird_cdc.demo.processes import Stack, await_condition
from firebird_cdc.errors import SetupError

_SUITE = "bookworm"
_PACKAGES = ("libicu72", "libstdc++6")
_FIREBIRD = "/opt/firebird"
_RED_DATABASE = "/opt/RedDatabase"
_PREFIX = "/opt/firebird-cdc"
_COMMAND = "/usr/local/bin/firebird-cdc"
_ARCHIVE = "/var/lib/firebird-cdc/archive"
KEEPING = f"connector.journal.archive.directory: {_ARCHIVE}\n"
_DATABASE = "/srv/data/shop.fdb"
_OPTIONS = "/srv/shop.yaml"
_TOPIC_S = 60
_STATEMENTS = """
import sys
from firebird import driver
library, database = sys.argv[1:]
driver.driver_config.fb_client_library.value = library
with driver.create_database(database, user="SYSDBA") as connection:
    connection.execute_immediate("CREATE TABLE ORDERS (ID INTEGER PRIMARY KEY, STATUS VARCHAR(20))")
    connection.commit()
"""

# The engine's own work.
_OTHERS = (_DATABASE.lstrip("/"),)


class Machine(Chroot):
    """A bare Debian 12 with an engine in a folder; made anew for each run."""

    def __init__(
        self, packages: Sequence[str] = _PACKAGES, name: str = _SUITE, server: str = _FIREBIRD
    ) -> None:
        super().__init__(pristine(name, _SUITE, packages), CACHE / "check" / "root")
        self.server = server
        self.program = f"{server}/bin/{'rdbserver' if server == _RED_DATABASE else 'bare'}"
        self._place_engine()

    def version_in_use(self) -> str | None:
        """Return the version that is put to use, None if none is."""
        current = self.inside(_PREFIX) / "current"
        return current.readlink().name if current.is_symlink() else None

    def _place_engine(self) -> None:
        """Put the embedded engine, a database and a program that works with it in."""
        outside = CACHE / "check" / "engine"
        shutil.rmtree(outside, ignore_errors=True)
        engine = EmbeddedRoot(outside)
        database = CACHE / "check" / "shop.fdb"
        database.unlink(missing_ok=True)
        words = [sys.executable, "-P", "-c", _STATEMENTS, str(engine.client_library), str(database)]
        subprocess.run(words, env=engine.environment(), check=True)
        shutil.rmtree(engine.locks, ignore_errors=True)
        for log in outside.glob("*.log"):
            log.unlink()
        inside = self.inside(self.server)
        shutil.copytree(outside, inside)  # files in place of links
        target = self.inside(_DATABASE)
        target.parent.mkdir(parents=True)
        database.rename(target)
        program = self.inside(self.program)
        program.parent.mkdir(exist_ok=True)
        source = ROOT / "tests/engine/bare_server.c"
        compiled = [
            "gcc",
            "-O1",
            "-o",
            str(program),
            str(source),
            str(inside / "lib/libfbclient.so.2"),
        ]
        subprocess.run([*compiled, "-Wl,--unresolved-symbols=ignore-in-shared-libs"], check=True)

    def audit(self, command: str, rows: int, *options: str) -> None:
        """Have COMMAND audit the journals and rebuild the table of them, which has ROWS rows, and
        ask it for Spark; there is neither Java nor a network."""
        expect("sound: every journal is whole", self.run(command, "replay", "audit", *options))
        said = self.run(command, "replay", "state", "--output", "/tmp/state", *options)  # noqa: S108
        expect(f"ORDERS: {rows} rows", said)
        audit = ("replay", "audit", "--engine", "spark", *options)
        expect("no java is on the PATH", self.run(command, *audit, fails=None))
        say("without Java and network an audit found the history sound, and the table came of it")

    def forget_archive(self) -> None:
        """Remove the history for replays, which no purge does."""
        for path in self.inside(_ARCHIVE).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def forget_logs(self) -> None:
        """Remove the engine's own logs."""
        for name in ("firebird.log", "replication.log"):
            (self.inside(self.server) / name).unlink(missing_ok=True)


class EngineProcess:
    """A process in the machine that has the engine in itself, and no Python of its own."""

    def __init__(self, machine: Machine) -> None:
        environment = inner_environment(
            {"FIREBIRD": machine.server, "LD_LIBRARY_PATH": f"{machine.server}/lib"}
        )
        self._process = subprocess.Popen(
            machine.argv(machine.program, network=True),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.do(f"attach {_DATABASE}")

    def do(self, line: str) -> None:
        """Have it carry out a line. Raises SetupError with the engine's text."""
        assert self._process.stdin and self._process.stdout
        print(line, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline().strip()
        if answer != "ok":
            raise SetupError(f"{line}: {answer or 'the process ended'}")

    def insert(self, key: int) -> None:
        """Commit a row."""
        self.do(f"execute INSERT INTO ORDERS VALUES ({key}, 'new')")  # noqa: S608
        self.do("commit")

    def end(self) -> None:
        """Let it detach and end."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(60)


def check(more: Callable[[KafkaBroker], dict[str, Any]]) -> None:
    """Run all, and MORE, which returns figures. Raises SetupError, with what was said, at the first
    thing that is not as it should be."""
    first = bundle()
    figures: dict[str, Any] = {"bundle_bytes": first.stat().st_size, "version": version()}
    figures["tree_bytes"] = sum(path.lstat().st_size for path in tree().rglob("*"))
    second = _other_version(first)
    machine = _machine_with(first, second)
    before = machine.picture(_OTHERS)

    def unchanged(what: str) -> None:
        compare(what, before, machine.picture(_OTHERS))

    _refusals(machine, first, unchanged)
    with Stack(CACHE / "check" / "stack") as stack:
        shutil.rmtree(stack.directory / "kafka", ignore_errors=True)
        jars = fetch_kafka(cache_directory())
        broker = KafkaBroker(stack.directory / "kafka", jars, stack=stack)
        broker.start()
        machine.inside(_OPTIONS).write_text(options_of("shop", broker))
        _work(machine, first, second, broker, figures)
        machine.inside(_OPTIONS).unlink()
        unchanged("after uninstall")
        figures["left_behind"] = 0
        whole = bundle(with_replay=True)
        figures["replay_bundle_bytes"] = whole.stat().st_size
        _elsewhere(_machine_with(whole, server=_RED_DATABASE), whole, broker)
        figures |= more(broker)
    say("the bundle was installed, upgraded and uninstalled; all is as it was")
    print(json.dumps(figures, sort_keys=True))


def options_of(name: str, broker: KafkaBroker) -> str:
    """Return the text of connector options."""
    return (
        f"connector.name: {name}\n"
        "connector.journal.directory: /var/lib/firebird-cdc/journal\n"
        f"kafka.producer.bootstrap.servers: {broker.bootstrap}\n"
        f"kafka.topic.prefix: {name}\n"
    )


def _machine_with(*bundles: Path, server: str = _FIREBIRD) -> Machine:
    machine = Machine(server=server)
    if list(machine.root.glob("usr/bin/python*")):
        raise SetupError(f"{CACHE / _SUITE} has a Python: remove it and run this again")
    for path in bundles:
        machine.take(path)
    listed = bundles[0].with_name(f"{bundles[0].name}.sha256")
    machine.take(listed)
    machine.run("sh", "-c", f"cd /srv && sha256sum --check {listed.name}")
    return machine


def _elsewhere(machine: Machine, bundle: Path, broker: KafkaBroker) -> None:
    """Install the BUNDLE with replay below another prefix, for a server with the names of RED
    Database, which has to be found; audit what came, and leave."""
    before = machine.picture(_OTHERS)
    prefix = ("--prefix", "/srv/elsewhere")
    command = f"{prefix[1]}/current/bin/firebird-cdc"
    options = machine.inside(_OPTIONS)
    options.write_text(options_of("red", broker) + KEEPING)
    run = ("sh", f"/srv/{bundle.name}")
    machine.run(*run, "install", *prefix, "--", "--config", _OPTIONS)
    machine.run(command, "enable", _DATABASE)
    engine = EngineProcess(machine)
    engine.insert(1)
    _event(machine, 1, command)
    engine.end()
    await_condition("the shipper to end", lambda: not machine.processes(), 120)
    machine.audit(command, 1, "--config", _OPTIONS)
    machine.forget_archive()
    machine.run(*run, "uninstall", *prefix)
    options.unlink()
    machine.forget_logs()
    compare("after uninstall of another prefix", before, machine.picture(_OTHERS))
    say(f"the same for {machine.server}, with {' '.join(prefix)}")


def _other_version(first: Path) -> Path:
    """Make a bundle of the same tree that has another version."""
    archive = CACHE / "check" / "next.tar.gz"
    archive.parent.mkdir(parents=True, exist_ok=True)
    for old in archive.parent.glob("*.run"):
        old.unlink()
    pack(archive, epoch(), tree())
    name = f"{version()}.next"
    target = archive.with_name(first.name.replace(version(), name))
    write_bundle(archive, target, name, 1)
    archive.unlink()
    return target


def _refusals(machine: Machine, first: Path, unchanged: Callable[[str], None]) -> None:
    """See the bundle refuse, each time without having changed anything."""
    bundle = machine.root / "srv" / first.name
    whole = bundle.read_bytes()
    for place in (40, len(whole) // 2, len(whole) - 1):
        with bundle.open("r+b") as file:
            file.seek(place)
            file.write(bytes([whole[place] ^ 1]))
        said = machine.run("sh", f"/srv/{first.name}", "install", fails=1)
        expect("is damaged", said)
        with bundle.open("r+b") as file:
            file.seek(place)
            file.write(whole[place : place + 1])
        os.utime(bundle, (epoch(), epoch()))
        unchanged(f"after a flipped byte at {place}")
    say("flipped bytes are refused")
    install = ("sh", f"/srv/{first.name}", "install", "--prefix", "/mnt/firebird-cdc")
    for options, told in (
        ("ro", "can't write to /mnt/firebird-cdc"),
        ("size=30m", "are needed"),
        ("nr_inodes=500", "No space left on device"),
    ):
        mount = f"mount -t tmpfs -o {options} none /mnt"
        checked = f'{mount}; "$@" && exit 9; [ -z "$(ls /mnt)" ] || exit 9; exit 1'
        said = machine.run("sh", "-c", checked, "sh", *install, fails=1)
        expect(told, said)
        unchanged(f"after tmpfs with {options}")
    say("a read-only folder, a full disk and one without inodes are refused")
    prefix = _PREFIX.lstrip("/")
    before = machine.picture([*_OTHERS, prefix])
    _cut_off(machine, first, "install")
    if machine.version_in_use() is not None:
        raise SetupError("the version that was cut off is in use")
    compare("after kill -9", before, machine.picture([*_OTHERS, prefix]))
    say("kill -9 in the middle leaves the server as it was")


def _cut_off(machine: Machine, bundle: Path, command: str) -> None:
    """Kill a run of BUNDLE while it unpacks."""
    process = subprocess.Popen(
        machine.argv("sh", f"/srv/{bundle.name}", command),
        env=inner_environment(),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )
    versions = machine.inside(_PREFIX) / "versions"
    await_condition("the bundle to unpack", lambda: any(versions.glob("*.new/python/lib/*")), 60)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _work(
    machine: Machine, first: Path, second: Path, broker: KafkaBroker, figures: dict[str, Any]
) -> None:
    begun = time.monotonic()
    options = ("--server", _FIREBIRD, "--", "--config", _OPTIONS)
    machine.run("sh", f"/srv/{first.name}", "install", *options)
    figures["install_s"] = _since(begun)
    machine.run(_COMMAND, "enable", "--server", _FIREBIRD, _DATABASE)
    engine = EngineProcess(machine)
    engine.insert(1)
    _event(machine, 1)
    figures["install_to_event_s"] = _since(begun)
    say(f"the first event came {figures['install_to_event_s']} s after the installation began")

    _cut_off(machine, second, "upgrade")
    if machine.version_in_use() != version():
        raise SetupError(f"after kill -9, {machine.version_in_use()} is in use")
    begun = time.monotonic()
    machine.run("sh", f"/srv/{second.name}", "upgrade")
    figures["upgrade_s"] = _since(begun)
    engine.insert(2)  # with what it has loaded
    engine.end()
    engine = EngineProcess(machine)
    engine.insert(3)
    _event(machine, 3)
    if machine.version_in_use() != f"{version()}.next":
        raise SetupError(f"after the upgrade {machine.version_in_use()} is in use")
    say("upgraded; events go on")
    engine.end()
    # The shipper delivers what is there and follows.
    await_condition("the shipper to end", lambda: not machine.processes(), 120)
    _leave_work_behind(machine, second, broker)
    begun = time.monotonic()
    said = machine.run("sh", f"/srv/{second.name}", "uninstall")
    figures["uninstall_s"] = _since(begun)
    if "stays" in said:
        raise SetupError(f"uninstall left something:\n{said}")
    machine.forget_logs()


def leave_one_waiting(machine: Machine, broker: KafkaBroker) -> None:
    """Commit a transaction while Kafka is away, and have the shipper that waits for it end."""
    broker.kill()
    engine = EngineProcess(machine)
    engine.insert(4)
    engine.end()
    for process in machine.processes():  # the shipper, which waits for Kafka
        os.kill(process, signal.SIGTERM)


def _leave_work_behind(machine: Machine, bundle: Path, broker: KafkaBroker) -> None:
    """Uninstall while a transaction waits: it has to be there for the next installation."""
    leave_one_waiting(machine, broker)
    await_condition("the shipper to end", lambda: not machine.processes(), 120)
    said = machine.run("sh", f"/srv/{bundle.name}", "uninstall")
    expect("/var/lib/firebird-cdc/journal stays: 1 transaction waits to be delivered", said)
    if machine.version_in_use() is not None:
        raise SetupError(f"uninstall left {_PREFIX}")
    broker.start()
    options = ("--server", _FIREBIRD, "--", "--config", _OPTIONS)
    machine.run("sh", f"/srv/{bundle.name}", "install", *options)
    machine.run(_COMMAND, "ship", "--once", "--config", _OPTIONS, network=True)
    _event(machine, 4)
    say("a transaction that waited outlived an uninstallation, and was delivered later")


def _event(machine: Machine, count: int, command: str = _COMMAND) -> None:
    """Wait until COUNT events are in Kafka."""
    tail = ["tail", "--from", "beginning", "--count", str(count), "--json"]
    words = ["timeout", str(_TOPIC_S), command, *tail, "--config", _OPTIONS]
    said = machine.run(*words, network=True)
    expect("ORDERS", said)


def _since(begun: float) -> float:
    return round(time.monotonic() - begun, 1)
