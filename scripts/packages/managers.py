"""The packages on a Debian 12 with a server in /opt/firebird: the .deb by apt, the RPM by dnf.
Debian has dnf, too, and no other distribution is reached where packages are built; a stand-in
package says that Debian has the libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from acceptance import KEEPING, EngineProcess, Machine, leave_one_waiting, options_of
from linting import lint
from linux import NAMES, package, run_nfpm
from machines import compare, expect
from places import CACHE, DIST, say, version

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.errors import SetupError

_PACKAGES = ("libicu72", "libstdc++6", "rpm", "dnf")
_STAND_IN = {
    "name": "debian-has-these",
    "arch": "amd64",
    "platform": "linux",
    "version": "1",
    "release": "1",
    "maintainer": "nobody <nobody@localhost>",
    "description": "what the system has of other packages",
    "provides": [
        *("glibc = 2.36", "libgcc", "libstdc++", "libcrypt.so.1()(64bit)", "/bin/sh"),
    ],
}
_OPTIONS = "/opt/firebird/reddatabase.connector.yaml"
_JOURNALS = "/var/lib/firebird-cdc/journal"
_COMMAND = "/usr/bin/firebird-cdc"
# What package managers write for themselves, and the engine.
_OTHERS = (
    *("var/lib/rpm", "var/lib/dnf", "var/lib/dpkg", "var/lib/apt", "var/cache", "var/log"),
    *("root", "srv", "etc/dnf"),
)
_NEWER = b"FBCDCJ\r\n" + (99).to_bytes(2, "little") + bytes(1014)


class Managed(Machine):
    """A Debian 12 with an engine in /opt/firebird, to which a package brings the command."""

    def event(self, key: int) -> None:
        """Wait until the event of the row KEY is in Kafka."""
        tail = ["tail", "--from", "beginning", "--count", str(key), "--json"]
        said = self.run("timeout", "60", _COMMAND, *tail, network=True)
        expect(f'"ID":{key}', said.replace(" ", ""))

    def first_event(self, name: str, broker: KafkaBroker) -> EngineProcess:
        """Go from the installation to the first event; return the process that made it."""
        self.inside(_OPTIONS).write_text(options_of(name, broker) + KEEPING)
        self.run(_COMMAND, "enable", "/srv/data/shop.fdb")
        engine = EngineProcess(self)
        engine.insert(1)
        self.event(1)
        return engine

    def shipped(self) -> None:
        """Wait until the shipper has ended, which sends what is there."""
        await_condition("the shipper to end", lambda: not self.processes(), 120)


class RpmMachine(Managed):
    """The same with rpm and dnf."""

    def __init__(self) -> None:
        super().__init__(_PACKAGES, "bookworm-rpm")

    def dnf(self, *words: str, fails: int = 0) -> str:
        """Run dnf with the packages at hand alone; return what it said."""
        options = (
            "--assumeyes",
            "--disablerepo=*",
            "--releasever=12",
            "--setopt=cachedir=/tmp/dnf",
        )
        return self.run("dnf", *options, *words, fails=fails)

    def installed(self) -> str:
        """Return the version that rpm takes for installed."""
        return self.run("rpm", "--query", "--queryformat", "%{VERSION}", "firebird-cdc", fails=None)


def try_managers(broker: KafkaBroker) -> dict[str, Any]:
    """Try both; return what was found."""
    return {**_try_deb(broker), **_try_rpm(broker), **lint()}


def _try_deb(broker: KafkaBroker) -> dict[str, Any]:
    packages = [DIST / f"{name}_{version()}_amd64.deb" for name in NAMES]
    machine = Managed()
    names = [machine.take(path) for path in packages]
    before = machine.picture(_OTHERS)
    _leave_inactive(machine, names[0])
    compare("after purge of what was not active", before, machine.picture(_OTHERS))
    machine.run("apt-get", "--yes", "install", *names)
    machine.first_event("deb", broker).end()
    machine.shipped()
    machine.audit(_COMMAND, 1)
    machine.forget_archive()
    machine.run("apt-get", "--yes", "purge", *NAMES)
    machine.forget_logs()
    compare("after purge on Debian 12", before, machine.picture(_OTHERS))
    say("Debian 12: apt installed the packages for /opt/firebird, an event came, all was purged")
    return {"left_by_purge_on_debian_12": 0}


def _leave_inactive(machine: Managed, package: str) -> None:
    """Install where a file written beforehand says so, without capturing anything; and purge."""
    told = machine.inside("/etc/default/firebird-cdc")
    told.write_text("ACTIVATE=no\n")
    machine.run("apt-get", "--yes", "install", package)
    expect("ACTIVATE=no", told.read_text())
    conf = machine.inside("/opt/firebird/replication.conf").read_text()
    expect("#\tplugin = Debezium_Connector\n", conf)
    machine.run("apt-get", "--yes", "purge", "firebird-cdc")
    say("ACTIVATE=no in /etc/default left a comment in replication.conf, and purge nothing at all")


def _try_rpm(broker: KafkaBroker) -> dict[str, Any]:
    work = CACHE / "check" / "rpm"
    first, *addons = (DIST / f"{name}-{version()}-1.x86_64.rpm" for name in NAMES)
    second = package("firebird-cdc", "rpm", work, work, f"{version()}.next")
    stand_in = work / "stand-in.rpm"
    run_nfpm(dict(_STAND_IN), "rpm", stand_in)
    machine = RpmMachine()
    names = {path: machine.take(path) for path in (first, second, *addons, stand_in)}
    machine.dnf("install", names[stand_in])
    before = machine.picture(_OTHERS)
    figures: dict[str, Any] = {}

    expect("restart the server", machine.dnf("install", names[first]).lower())
    engine = machine.first_event("rpm", broker)
    said = machine.dnf("upgrade", names[second])
    expect(f"to use {version()}.next", said)
    engine.insert(2)  # with what it has loaded
    engine.end()
    engine = EngineProcess(machine)
    engine.insert(3)
    machine.event(3)
    _in_use(machine, f"{version()}.next")
    engine.end()
    machine.shipped()
    say("the RPM was installed and upgraded; events go on")

    newer = machine.inside(_JOURNALS) / "00000000-0000-4000-8000-000000000001.log"
    newer.write_bytes(_NEWER)
    whole = machine.picture(_OTHERS)
    expect("are of a newer version", machine.dnf("downgrade", names[first], fails=1))
    compare("after the refused downgrade", whole, machine.picture(_OTHERS))
    _in_use(machine, f"{version()}.next")
    newer.unlink()
    machine.dnf("downgrade", names[first])
    _in_use(machine, version())
    say("going back was refused while something newer waited, and done once nothing did")

    _erase_while_one_waits(machine, broker, figures)
    machine.dnf("install", names[first], *(names[path] for path in addons))
    machine.run(_COMMAND, "ship", "--once", network=True)
    machine.event(4)
    machine.audit(_COMMAND, 4)
    machine.forget_archive()
    machine.run(_COMMAND, "uninstall", "--purge", "--all")
    machine.dnf("remove", "firebird-cdc")  # and what depends on it
    machine.inside(_OPTIONS).unlink()  # somebody's own
    machine.forget_logs()
    compare("after the RPMs were erased", before, machine.picture(_OTHERS))
    figures["rpm_left_after_purge_and_erase"] = 0
    say("a transaction that waited outlived the package")
    return figures


def _in_use(machine: RpmMachine, wanted: str) -> None:
    found = (machine.installed(), machine.version_in_use())
    if found != (wanted, wanted):
        raise SetupError(f"rpm and firebird-cdc have {found}, and {wanted} was expected")


def _erase_while_one_waits(
    machine: RpmMachine, broker: KafkaBroker, figures: dict[str, Any]
) -> None:
    leave_one_waiting(machine, broker)
    machine.shipped()
    machine.dnf("remove", "firebird-cdc")
    if machine.version_in_use() is not None or machine.inside(_COMMAND).is_symlink():
        raise SetupError("erasing the package left a version in use")
    figures["rpm_waiting_after_erase"] = len([*machine.inside(_JOURNALS).glob("*.log*")])
    paths: list[Path] = [*machine.inside("/opt/firebird/plugins").glob("*firebird_cdc*")]
    figures["rpm_left_in_server"] = [path.name for path in paths]
    broker.start()
