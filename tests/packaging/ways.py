"""More that package_acceptance.py tries: README's quick start to the letter, a bundle of before
and its upgrade under load, the way back, and a server that is too old."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from live_server import JOURNALS, OTHERS, Load, Machine, balance, say, version_of

import linux  # isort: skip
from _against import checkout  # isort: skip
from documented import command_lines_in  # isort: skip
from machines import Chroot, Picture, differences, expect, pristine  # isort: skip
from places import CACHE, DIST, ROOT, version  # isort: skip

from firebird_cdc.demo.debian import inner_environment
from firebird_cdc.demo.paths import cache_directory
from firebird_cdc.demo.processes import await_condition

#: The first commit whose bundle serves a Firebird 4 server, which opens no link as a plugin.
FORMER_BUNDLE = "8897b3c"
_ELSEWHERE = "/srv/firebird-cdc"
_KILLED_AFTER_S = (0.2, 0.6, 1.2, 2.0, 3.0, 4.5)
_NEWER = b"FBCDCJ\r\n" + (99).to_bytes(2, "little") + bytes(1014)


# ---------------------------------------------------------------------- README's quick start


def quick_start(make: Callable[[str], Machine], package: Path) -> dict[str, Any]:
    """Follow README to the letter; only who restarts the server is this program."""
    machine = make("quickstart")
    with contextlib.closing(machine):
        machine.take(package, "/root")
        data = machine.root / "data"
        data.mkdir(mode=0o770)
        machine.server.give_to_server(data)
        dsn = machine.server.dsn(data / "shop.fdb")
        machine.create(dsn, "ORDERS")
        followed = []
        for line in _quick_start_lines():
            if line.startswith("kafka-console-consumer.sh "):
                continue  # Kafka's own
            followed.append(line)
            if line.startswith("systemctl restart "):
                machine.restart()
                continue
            line = line.replace("localhost:9092", machine.bootstrap)
            ends = 0
            if " tail " in line:  # which goes on until Ctrl-C
                machine.insert(1, "ORDERS", dsn)
                line, ends = f"timeout 20 {line}", 124
            network = not line.startswith("apt ")
            said = machine.run("sh", "-c", f"cd /root && {line}", network=network, fails=ends)
        expect("insert ORDERS: ID=1", said)
    say(f"README's quick start was followed: {'; '.join(followed)}")
    return {"quick_start_lines": len(followed)}


def _quick_start_lines() -> Iterator[str]:
    readme = ROOT / "README.md"
    (section,) = re.findall(
        r"^## On your server\n.*?(?=^## )", readme.read_text("utf-8"), re.M | re.S
    )
    yield from command_lines_in(section)


# ---------------------------------------------------------------------- the bundle of before


def former_bundle() -> Path:
    """Return the bundle of an earlier commit, built by that commit's own program."""
    _, folder = checkout(FORMER_BUNDLE, ROOT, cache_directory())
    if not (found := [*folder.glob("dist/*.run")]):
        say(f"building the bundle of {FORMER_BUNDLE}")
        cache = folder / ".cache/packages"
        cache.mkdir(parents=True, exist_ok=True)
        for shared in ("bullseye", "sources"):  # what is the same for all commits
            if not (cache / shared).exists():
                (cache / shared).symlink_to(CACHE / shared)
        program = [sys.executable, "-P", str(folder / "scripts/packages"), "bundle"]
        subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
        found = [*folder.glob("dist/*.run")]
    (built,) = found
    return built


def bundle_from_former(make: Callable[[str], Machine], package: Path) -> dict[str, Any]:
    """Install a former bundle for Debian's server, below another folder; upgrade it under load, and
    uninstall."""
    old = former_bundle()
    new = DIST / f"firebird-cdc-{version()}-linux-x86_64.run"
    machine = make("bundle")
    with contextlib.closing(machine):
        files = {path: machine.take(path, "/root") for path in (old, new)}
        prefix = ("--prefix", _ELSEWHERE)
        machine.run("sh", files[old], "install", *prefix)
        machine.write_options(kafka__producer__transactional__id="bundle")
        command = f"{_ELSEWHERE}/current/bin/firebird-cdc"
        login = {"ISC_USER": "SYSDBA", "ISC_PASSWORD": machine.server.password}
        machine.system.run(command, "enable", machine.dsn, environment=login)
        machine.restart()
        with Load(machine) as load:
            load.goes_on()
            former = (machine.inside(_ELSEWHERE) / "current").readlink()
            said = machine.run("sh", files[new], "upgrade", *prefix)
            load.goes_on()
            assert machine.served_by(f"{_ELSEWHERE}/{former}"), "another version before a restart"
            machine.restart()
            load.goes_on()
        assert machine.served_by(f"{_ELSEWHERE}/versions/{version()}"), said
        result = {"upgrade_of_a_former_bundle": balance(machine, "upgrade of a former bundle")}
        machine.server.stop()
        await_condition("the shipper to end", lambda: not machine.processes(), 120)
        said = machine.run("sh", files[new], "uninstall", *prefix)
        assert "stays" not in said, said
        result["left_by_bundle"] = machine.left()
    return result


# ---------------------------------------------------------------------- kills, and the way back


def _next_version() -> Path:
    """Return a package of the same tree that is called a version later."""
    work = CACHE / "check" / "deb"
    return linux.package("firebird-cdc", "deb", work, work, f"{version()}.next")


def killed_upgrade(make: Callable[[str], Machine], package: Path) -> dict[str, Any]:
    """Kill upgrades anywhere under load, with what they start; the next run completes them."""
    newer = _next_version()
    machine = make("killed")
    result: dict[str, Any] = {}
    with contextlib.closing(machine):
        old, new = (machine.take(path, "/root") for path in (package, newer))
        machine.apt("install", old)
        machine.write_options(kafka__producer__transactional__id="killed")
        machine.command("enable", machine.dsn)
        machine.restart()
        kills = 0
        with Load(machine) as load:
            for delay_s in _KILLED_AFTER_S:
                load.goes_on()
                kills += machine.killed_after(delay_s, "dpkg", "--install", new)
                machine.restart()  # whatever is half done, the server starts and captures
            load.goes_on()
            machine.run("dpkg", "--configure", "-a", fails=None)
            machine.run("dpkg", "--install", new)
            machine.restart()
            load.goes_on()
        result["upgrades_killed"] = kills
        result["completed_after_killed_upgrades"] = _installed(machine) == version_of(newer)
        assert machine.served_by(f"/opt/firebird-cdc/versions/{version_of(newer)}")
        result["killed_upgrades"] = balance(machine, "upgrades that were killed")
    return result


def downgrade(make: Callable[[str], Machine], package: Path) -> dict[str, Any]:
    """Go back by one version: refused while something newer waits, and then done."""
    newer = _next_version()
    machine = make("downgrade")
    result: dict[str, Any] = {}
    with contextlib.closing(machine):
        old, new = (machine.take(path, "/root") for path in (package, newer))
        machine.apt("install", old)
        machine.write_options()
        machine.command("enable", machine.dsn)
        machine.apt("install", new)
        machine.restart()
        machine.insert(1)
        await_condition("the event", machine.events, 60)
        machine.server.stop()
        await_condition("the shipper to end", lambda: not machine.processes(), 120)
        planted = machine.inside(JOURNALS) / "00000000-0000-4000-8000-000000000001.log"
        planted.write_bytes(_NEWER)
        before = _all_of(machine)
        said = machine.apt("install", "--allow-downgrades", old, fails=100)
        result["going_back_refused"] = "are of a newer version" in said
        result["changed_by_refusal"] = differences(before, _all_of(machine))
        result["still_installed"] = _installed(machine) == version_of(newer)
        planted.unlink()
        machine.apt("install", "--allow-downgrades", old)
        result["went_back"] = _installed(machine) == version_of(package)
        machine.server.start()
        machine.insert(2)
        await_condition("both events", lambda: len(machine.events()) == 2, 60)
        assert machine.served_by(f"/opt/firebird-cdc/versions/{version_of(package)}")
    return result


def _all_of(machine: Machine) -> Picture:
    return machine.picture([*OTHERS, "etc/firebird/4.0/SYSDBA.password"])


def _installed(machine: Machine) -> str:
    form = "${db:Status-Abbrev} ${Version}"
    state, _, found = machine.run("dpkg-query", "-W", f"-f={form}", "firebird-cdc").partition("  ")
    assert state == "ii", state
    return found


# ---------------------------------------------------------------------- Firebird 3


def unsupported(make: Callable[[str], Machine], package: Path) -> dict[str, Any]:
    """Install beside a Firebird 3 server that runs: it is named, and left alone."""
    base = pristine("bookworm-firebird3", "bookworm", ("firebird3.0-server",))
    with tempfile.TemporaryDirectory(prefix="firebird-cdc-", dir=cache_directory()) as folder:
        machine = Chroot(base, Path(folder) / "root")
        name = machine.take(package, "/root")
        inside = machine.argv("/usr/sbin/firebird")
        server = subprocess.Popen(inside, env=inner_environment(), stdout=subprocess.DEVNULL)
        try:
            await_condition("the server", lambda: "firebird" in machine.processes().values(), 30)
            before = machine.picture(OTHERS)
            said = machine.run("apt-get", "--yes", "install", name)
            changed = [
                each
                for each in differences(before, machine.picture(OTHERS))
                if re.search(r": (etc/firebird/|usr/lib/[^/]+/firebird/|var/lib/firebird/)", each)
            ]
            machine.run("apt-get", "--yes", "purge", "firebird-cdc")
            left = differences(before, machine.picture(OTHERS))
            left = [each for each in left if each != "gone: opt"]  # dpkg takes it, being empty
        finally:
            for process in machine.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            server.wait()
    return {
        "firebird3_named": "Firebird 3" in said and "no server was changed" in said,
        "firebird3_changed": changed,
        "firebird3_left": left,
    }
