"""The commands of README and docs, run as they stand, on a Debian with a Firebird 4 server."""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from documented import ROOT, RUN_ON_A_SERVER, command_lines, exemption

from firebird_cdc.demo import trixie as debian
from firebird_cdc.demo.firebird4 import Firebird4
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.journal.folder.locks import shipper_present

if TYPE_CHECKING:
    from firebird_cdc.demo.kafka import KafkaBroker

pytestmark = [pytest.mark.server, pytest.mark.kafka]

# pip as it stands would fetch what builds the package; the chroot has that already.
_PIP = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
_UUID = "6f2b9a54-0d1e-4c57-9a3b-2e7c41d8b0aa"
_SEGMENT = "4c1e6b0d2f9a8873-0-1-10000.zip"
_HOME = Path("var/lib/firebird-cdc")

# What ends with another code than 0, and why.
_CODES = {
    "firebird-cdc status --directory /var/lib/firebird-cdc/journal --watch": 124,  # timeout(1)
    "firebird-cdc tail --from beginning": 124,
    f"firebird-cdc journal retry {_UUID}": 1,  # nothing tells what of it was not sent
    "firebird-cdc journal retry --all": 1,
    "firebird-cdc journal retry --sequence 17": 1,  # nor its number
}


class Machine:
    """The system, as somebody who reads the pages works on it."""

    def __init__(self, server: Firebird4) -> None:
        self.server = server
        self.done: set[str] = set()

    def outer(self, path: str) -> Path:
        """Return where a path of the machine lies outside."""
        return self.server.system.outer(Path(path.lstrip("/")))

    def run(self, line: str) -> str:
        """Run a command line in a shell in the clone, once; return what it printed."""
        self.done.add(line)
        limited = f"timeout 5 {line}" if _CODES.get(line) == 124 else line
        shell = f"cd /{debian.SOURCE} && PATH=/usr/local/bin:$PATH && {limited}"
        done = self.server.system.run("sh", "-c", shell, check=False, environment=_PIP)
        assert "Traceback" not in done.stdout, done.stdout
        assert done.returncode == _CODES.get(line, 0), f"{line}:\n{done.stdout}"
        return done.stdout

    def page(self, name: str, last: tuple[str, ...] = ()) -> None:
        """Run the commands of a page that no page before had, but for LAST."""
        for line in command_lines(ROOT / name):
            if exemption(line) is None and line not in {*self.done, *last}:
                self.run(line)


@pytest.fixture
def machine(firebird4: Firebird4) -> Iterator[Machine]:
    machine = Machine(firebird4)
    made = ("data", str(_HOME), "usr/local/bin/firebird-cdc", "tmp/wheels")
    machine.outer("data").mkdir()
    firebird4.system.run("chown", "firebird:firebird", "/data")
    try:
        yield machine
    finally:
        firebird4.stop()
        for path in map(machine.outer, made):
            if path.is_symlink():
                path.unlink()
            else:
                shutil.rmtree(path, ignore_errors=True)


def test_documented_commands_have_the_documented_effect(
    machine: Machine, client: Any, broker: KafkaBroker, topic_prefix: str
) -> None:
    server, last = machine.server, ("firebird-cdc ship --once", "firebird-cdc uninstall")
    # README begins with a package, which make packages-acceptance follows; here it is the clone's.
    for line in command_lines(ROOT / "docs/installation.md"):
        if exemption(line) is None and not line.startswith("firebird-cdc "):
            machine.run(line)
    lines = [line for line in command_lines(ROOT / "README.md") if exemption(line) is None]
    later = [line for line in lines if "/data/shop.fdb" in line]
    (tail,) = (line for line in lines if " tail" in line)
    for line in lines:
        if line not in (*later, tail):
            said = machine.run(line)
    assert "restart the server" in said

    options = server.configuration / "reddatabase.connector.yaml"
    inner = f"/{debian.CONFIGURATION}/{options.name}"
    assert server.system.run("stat", "-c", "%a %U %G", inner).stdout == "640 root firebird\n"
    text = re.sub(r"(bootstrap\.servers): .*", rf"\1: {broker.bootstrap}", options.read_text())
    options.write_text(re.sub(r"(topic\.prefix): .*", rf"\1: {topic_prefix}", text))
    server.start()
    dsn = f"127.0.0.1/{server.port}:/data/shop.fdb"
    with client.create_database(dsn) as connection:
        connection.execute_immediate("CREATE TABLE ORDERS (ID INTEGER PRIMARY KEY)")
        connection.commit()
        told = "".join(map(machine.run, later))
        assert f"ORDERS  ID   {topic_prefix}._data_shop.fdb.ORDERS" in told
        assert "nothing is wrong" in told
        connection.execute_immediate("INSERT INTO ORDERS VALUES (1)")
        connection.commit()
    archive = machine.outer(str(_HOME / "archive"))
    # Others can share it for ten seconds; then it is closed.
    await_condition("the archived journal", lambda: [*archive.glob("*.log")], 120)
    # As often as a busy machine needs to have it start and read in five seconds.
    event = "shop.fdb 0:1:1 insert ORDERS: ID=1\n"
    await_condition("the event in its topic", lambda: event in machine.run(tail), 120)

    machine.done.add("firebird-cdc init")  # README's, with answers as options, has made the file
    machine.page("docs/installation.md", last)
    machine.page("docs/upgrade.md", last)
    machine.page("docs/monitoring.md")
    _set_aside(machine, next(archive.glob("*.log")))
    machine.page("docs/operations.md", last)
    machine.page("docs/troubleshooting.md", last)
    server.stop()
    journals = machine.outer(str(_HOME / "journal"))
    await_condition("the end of its shipper", lambda: not shipper_present(journals), 60)
    for line in last:
        machine.run(line)
    for page in RUN_ON_A_SERVER:
        for line in command_lines(ROOT / page):
            assert exemption(line) or line in machine.done, f"{page}: {line} was not run"


def _set_aside(machine: Machine, journal: Path) -> None:
    """Have the journal that the pages name, in the quarantine and in a segment of the archive."""
    quarantine = machine.outer(str(_HOME / "journal")) / ".firebird-cdc/quarantine"
    quarantine.mkdir(exist_ok=True)
    shutil.copy(journal, quarantine / f"{_UUID}.log")
    (quarantine / f"{_UUID}.reason").write_text("for the test")
    with zipfile.ZipFile(journal.with_name(_SEGMENT), "w") as segment:
        segment.write(journal, f"{_UUID}.log")
