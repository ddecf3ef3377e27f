"""Installs the built Debian package beside a live server, upgrades it under load, and purges it.

python tests/packaging/package_acceptance.py [PART]...  (default: all; as root)

Each part begins with a fresh Debian 13 that has firebird4.0-server and nothing else, and a server
that runs; apt has no network. Who restarts the server is this program, as an administrator would:
the package never does. Kafka is the repository's test broker.

    first_event  from `apt install` to the first event in Kafka; then purge, all being delivered
    waiting      purge with a journal that waits
    upgrade      from earlier commits, which were installed without a package, while clients commit
    trouble      a full disk, a read-only folder, kills in the middle, a configuration with
                 surprising syntax, an installation that is not whole
    and those of ways.py: quickstart, bundle, killed, downgrade, unsupported

The last line is one JSON object: seconds_to_first_event with its parts, what upgrades lost or
doubled, and what purges left. The exit code is 1 if any of these is not as wanted: more
than a minute, or anything lost, doubled, changed or left; what it is, is said.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from live_server import (  # puts scripts and benchmarks on the path
    CONFIG,
    JOURNALS,
    PREFIX,
    Load,
    Machine,
    balance,
    say,
    version_of,
    waiting,
)

import tree  # isort: skip
import ways  # isort: skip
from _against import checkout  # isort: skip
from machines import pristine  # isort: skip
from places import DIST, version  # isort: skip
from system import SHIPPED, BuildSystem  # isort: skip

from firebird_cdc.demo import trixie as debian
from firebird_cdc.demo.engine import EmbeddedRoot
from firebird_cdc.demo.kafka import KafkaBroker, fetch_kafka
from firebird_cdc.demo.paths import cache_directory
from firebird_cdc.demo.processes import Stack, await_condition

_CLONE = Path(__file__).parent.parent.parent
#: The commit before packages, services and commands for publications, and the one before shared
#: journals.
FORMER = {"before_packages": "c17e363", "before_shared_journals": "c22db7f"}
_FIRST_EVENT_S = 60
_FULL = "mkdir -p /opt; mount -t tmpfs -o size=60m full /opt"
_READ_ONLY = "mount --bind /etc/firebird /etc/firebird; mount -o remount,ro,bind /etc/firebird"

# ---------------------------------------------------------------------- first event, and purge


def first_event(make: Callable[[str], Machine], package: Path) -> dict[str, Any]:
    """Install, capture, purge once all is delivered; return the figures."""
    result: dict[str, Any] = {}
    machine = make("first_event")
    with contextlib.closing(machine):
        name = machine.take(package, "/root")
        begun = time.monotonic()
        said = machine.apt("install", name)
        installed = time.monotonic()
        assert "restart the server" in said, said
        machine.write_options()
        machine.command("enable", machine.dsn)
        enabled = time.monotonic()
        machine.restart()
        restarted = time.monotonic()
        machine.insert(1)
        await_condition("the first event", machine.events, 60)
        seen = time.monotonic()
        result["seconds_to_first_event"] = round(seen - begun, 1)
        result["of_these"] = {
            "apt_install": round(installed - begun, 1),
            "options_and_enable": round(enabled - installed, 1),
            "restart_by_administrator": round(restarted - enabled, 1),
            "commit_to_event": round(seen - restarted, 1),
        }
        say(f"first event after {result['seconds_to_first_event']} s")
        assert machine.events() == machine.rows()
        await_condition("all journals to be gone", lambda: not waiting(machine), 60)
        shadow = machine.root / "etc/passwd"
        assert b"firebird-cdc" not in shadow.read_bytes()  # without systemd nobody needs the user
        # Removed first, so that the server can be restarted without the plugin.
        machine.apt("remove", "firebird-cdc")
        machine.restart()
        machine.apt("purge", "firebird-cdc")
        result["left_by_purge"] = machine.left()
        running = machine.processes().values()
        result["processes_left_by_purge"] = [name for name in running if name != "firebird"]
        machine.insert(2)
    return result


def purge_with_waiting(make: Callable[[str], Machine], package: Path) -> dict[str, Any]:
    """Purge with a journal that waits; return what stays."""
    result: dict[str, Any] = {}
    machine = make("waiting")
    with contextlib.closing(machine):
        machine.apt("install", machine.take(package, "/root"))
        machine.write_options(connector__shipper="external")
        machine.command("enable", machine.dsn)
        machine.restart()
        machine.insert(1)
        machine.server.stop()
        said = machine.apt("purge", "firebird-cdc")
        result["waiting_named_at_purge"] = f"/{JOURNALS} stays" in said
        result["waiting_journals_stay"] = waiting(machine)
    return result


# ---------------------------------------------------------------------- upgrade under load


def upgrade(make: Callable[[str], Machine], package: Path) -> dict[str, Any]:
    """Upgrade from each former version under load; return what was lost or doubled."""
    return {name: _upgrade(make(name), package, commit) for name, commit in FORMER.items()}


def _upgrade(machine: Machine, package: Path, commit: str) -> dict[str, Any]:
    with contextlib.closing(machine):
        old = machine.root / "opt/former"
        with tempfile.TemporaryDirectory(dir=cache_directory()) as unpacked:
            subprocess.run(["dpkg-deb", "--extract", str(package), unpacked], check=True)
            shutil.copytree(Path(unpacked, PREFIX, "package/python"), old, symlinks=True)
        site = old / f"lib/python3.{SHIPPED}/site-packages"
        for ours in site.glob("firebird_cdc*"):
            shutil.rmtree(ours)
        _, folder = checkout(commit, _CLONE, cache_directory())
        # Earlier versions were compiled with newer libraries than those of a glibc of 2.31.
        flags = {"LDFLAGS": "-Wl,--no-as-needed -ldl", "CFLAGS": "-DSYS_close_range=436"}
        wheel = tree.wheel_of(BuildSystem(), SHIPPED, folder, **flags)
        shutil.unpack_archive(wheel, site, "zip")
        machine.write_options(kafka__producer__transactional__id="upgrade")
        program = (f"/opt/former/bin/python3.{SHIPPED}", "-I", "-m", "firebird_cdc")
        machine.system.run(*program, "install", "--server", "/", "--config", f"/{CONFIG}")
        with machine.connect() as connection:
            for statement in ("INCLUDE ALL TO PUBLICATION", "ENABLE PUBLICATION"):
                connection.execute_immediate(f"ALTER DATABASE {statement}")
                connection.commit()
        machine.restart()
        with Load(machine) as load:
            load.goes_on()
            said = machine.apt("install", machine.take(package, "/root"))
            load.goes_on()
            assert machine.served_by("/opt/former"), "another version before it was restarted"
            machine.restart()
            load.goes_on()
        assert machine.served_by(f"/{PREFIX}/versions/{version_of(package)}"), said
        return balance(machine, f"upgrade from {commit}")


# ---------------------------------------------------------------------- trouble


def trouble(make: Callable[[str], Machine], package: Path) -> dict[str, Any]:
    """Meet what may go wrong; return what was said and done."""
    machine = make("trouble")
    result = {}
    with contextlib.closing(machine):
        name = machine.take(package, "/root")
        configuration = machine.root / debian.CONFIGURATION
        plugins = configuration / "plugins.conf"
        original = plugins.read_bytes()
        plugins.write_bytes(original + b"Plugin = Odd { Module = x\n")
        said = machine.apt("install", name)
        result["surprising_syntax_named"] = "plugins.conf, line" in said
        result["surprising_syntax_untouched"] = plugins.read_bytes() == (
            original + b"Plugin = Odd { Module = x\n"
        )
        plugins.write_bytes(original)
        machine.command("install")
        result["installed_once_mended"] = b"current/lib" in plugins.read_bytes()
        machine.apt("purge", "firebird-cdc")
        said = machine.apt("install", name, before=_READ_ONLY)
        result["read_only_named"] = "no server was changed" in said
        result["read_only_untouched"] = plugins.read_bytes() == original
        machine.apt("purge", "firebird-cdc")
        said = machine.apt("install", name, before=_FULL, fails=None)
        result["full_disk_named"] = "No space left" in said
        machine.apt("install", "--fix-broken", name)
        result["completed_after_full_disk"] = b"current/lib" in plugins.read_bytes()
        _incomplete(machine, name, result)
        # Killed anywhere, dpkg's next run completes it.
        machine.apt("purge", "firebird-cdc")
        delays = (0.3, 1.0, 2.0, 3.0, 4.0)
        kills = sum(machine.killed_after(each, "dpkg", "--install", name) for each in delays)
        machine.run("dpkg", "--configure", "-a", fails=None)
        machine.run("dpkg", "--install", name)
        result["kills"] = kills
        result["completed_after_kills"] = machine.command("--version").startswith("firebird-cdc")
        left = [path.name for path in (machine.root / PREFIX / "versions").iterdir()]
        result["versions_after_kills"] = left == [version_of(package)]
        machine.write_options()
        machine.command("enable", machine.dsn)
        machine.restart()
        machine.insert(1)
        await_condition("an event after kills", machine.events, 60)
    return result


def _incomplete(machine: Machine, package: str, result: dict[str, Any]) -> None:
    """Install where an earlier installation has left half of what it places."""
    own = machine.root / debian.SERVER_DIRECTORY / "plugins/firebird_cdc"
    shutil.rmtree(own)
    machine.apt("install", "--reinstall", package)
    result["completed_after_half_was_gone"] = (own / "libfirebird_cdc.so").is_symlink()
    record = own / "installed.json"
    record.write_bytes(record.read_bytes()[:20])
    said = machine.apt("install", "--reinstall", package, fails=None)
    result["half_a_record_named"] = "installed.json can't be read" in said
    record.unlink()
    machine.run("dpkg", "--configure", "-a")
    result["completed_after_half_a_record"] = record.exists()


# ---------------------------------------------------------------------- all


def _run(asked: list[str], package: Path, folder: Path, stack: Stack) -> dict[str, Any]:
    from firebird import driver

    cache = cache_directory()
    base = pristine("acceptance-trixie", "trixie", ("firebird4.0-server",))
    engine = EmbeddedRoot(folder / "engine")
    driver.driver_config.fb_client_library.value = str(engine.client_library)
    result: dict[str, Any] = {}
    with KafkaBroker(folder / "kafka", fetch_kafka(cache), stack=stack) as broker:

        def make(name: str) -> Machine:
            say(f"a fresh system: {name}")
            (folder / name).mkdir()
            return Machine(base, folder / name, driver, broker.bootstrap, name)

        for part in asked:
            found = _PARTS[part](make, package)
            say(json.dumps(found))
            result |= found
    return result


_PARTS = {
    "quickstart": ways.quick_start,
    "first_event": first_event,
    "waiting": purge_with_waiting,
    "upgrade": upgrade,
    "bundle": ways.bundle_from_former,
    "killed": ways.killed_upgrade,
    "downgrade": ways.downgrade,
    "trouble": trouble,
    "unsupported": ways.unsupported,
}


def what_is_wrong(result: dict[str, Any], path: str = "") -> Iterator[str]:
    """Name what of a RESULT is not as wanted: a promise that is not kept, files or processes that
    are listed, transactions that were lost or doubled, and a first event that came late."""
    for name, value in result.items():
        if isinstance(value, dict):
            yield from what_is_wrong(value, f"{path}{name}.")
        elif value is False or (isinstance(value, list) and value):
            yield f"{path}{name} is {json.dumps(value)[:500]}"
        elif name in ("lost", "doubled") and value:
            yield f"{path}{value} were {name}"
        elif name == "seconds_to_first_event" and value >= _FIRST_EVENT_S:
            yield f"the first event took {value} s"
        elif name == "waiting_journals_stay" and not value:
            yield "journals that waited are gone"


def main() -> int:
    """Return the exit code."""
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("part", nargs="*", choices=[*_PARTS, []])
    built = DIST / f"firebird-cdc_{version()}_amd64.deb"
    parser.add_argument("--package", type=Path, default=built)
    arguments = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="firebird-cdc-", dir=cache_directory()) as temporary:
        folder = Path(temporary)
        with Stack(folder) as stack:
            result = _run(arguments.part or [*_PARTS], arguments.package, folder, stack)
    wrong = [*what_is_wrong(result)]
    for each in wrong:
        say(f"NOT AS WANTED: {each}")
    result["seconds"] = round(time.monotonic() - begun)
    print(json.dumps(result))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
