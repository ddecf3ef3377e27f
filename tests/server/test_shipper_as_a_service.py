"""The shipper as a user of its own in the server's group, with what rights our unit leaves it."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from firebird_cdc.demo import trixie as debian
from firebird_cdc.demo.events import read_topics
from firebird_cdc.demo.firebird4 import OPTIONS, Firebird4
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.errors import SetupError
from firebird_cdc.journal.events.topic_encoding import REPLACE, topic_of
from firebird_cdc.packaging import services

if TYPE_CHECKING:
    from firebird_cdc.demo.kafka import KafkaBroker

pytestmark = [pytest.mark.server, pytest.mark.kafka]

_PROGRAM = f"/{debian.VENV}/bin/firebird-cdc"
_UNITS = Path("etc/systemd/system")
_BROKEN = "00000000-0000-4000-8000-000000000001"
# prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN), which systemd has a filter for
_NO_WRITTEN_CODE = (
    "import ctypes, os, sys; assert ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0; "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.fixture
def service(firebird4: Firebird4) -> Iterator[Firebird4]:
    """The system with the user that packages make."""
    system = firebird4.system
    units = system.outer(_UNITS)
    system.run("useradd", "--system", "--no-create-home", services.USER, check=False)
    yield firebird4
    firebird4.stack.stop()
    system.run("userdel", services.USER)
    for made in units.glob("firebird-cdc*"):
        system.run("rm", "-r", str(system.inner(made)))


def _settings(server: Firebird4) -> dict[str, list[str]]:
    """Return what the unit and what install has added to it say, as systemd reads them."""
    settings: dict[str, list[str]] = {}
    units = server.system.outer(_UNITS)
    for path in sorted(units.glob("firebird-cdc*")):
        for file in [path] if path.is_file() else sorted(path.iterdir()):
            for line in file.read_text().splitlines():
                name, is_setting, value = line.partition("=")
                if is_setting and not line.startswith("#"):
                    settings.setdefault(name, []).append(value)
    return settings


class Shipper:
    """The shipper, started by the unit's ExecStart with its user, group, mask, and limits: root
    is read-only but for ReadWritePaths, no capability, nothing gained by exec, no memory that is
    both written and run."""

    def __init__(self, server: Firebird4, settings: dict[str, list[str]], number: int) -> None:
        writable = [path.removeprefix("-") for path in settings["ReadWritePaths"]]
        opened = [f"if [ -e {path} ]; then mount --bind {path} /mnt{path}; fi" for path in writable]
        mask, user, group = (settings[each][-1] for each in ("UMask", "User", "Group"))
        limits = "--clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all"
        steps = [
            "set -e",
            "mount --bind / /mnt",
            "mount -o remount,bind,ro /mnt",
            *opened,
            "mount --rbind /proc /mnt/proc",
            "mount --rbind /dev /mnt/dev",
            f"umask {mask}",
            f"exec chroot /mnt setpriv --reuid={user} --regid={group} {limits} python3 -c"
            f" '{_NO_WRITTEN_CODE}' {settings['ExecStart'][-1]}",
        ]
        argv = server.system.command(["sh", "-c", "\n".join(steps)])
        environment = debian.inner_environment(
            dict(each.split("=", 1) for each in settings["Environment"])
        )
        self._process: Any = server.stack.start(f"shipper-{number}", argv, environment)

    def kill(self) -> None:
        """Kill it at once."""
        self._process.kill()
        self._process.wait()


def _modes(folder: Path) -> set[str]:
    """Return kind and mode of FOLDER and all that is in it."""
    found = set()
    for path in [folder, *folder.rglob("*")]:
        with contextlib.suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            found.add(f"{'folder' if stat.S_ISDIR(mode) else 'file'} {stat.S_IMODE(mode):o}")
    return found


def _owners(folder: Path) -> set[int]:
    found = set()
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # two processes are at work there
            found.add(path.lstat().st_uid)
    return found


def _of_mode(folder: Path, mode: int) -> list[str]:
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if stat.S_IMODE(path.lstat().st_mode) == mode:
                found.append(path.name)
    return found


class Table:
    """Rows that were committed, and those of them that Kafka has."""

    def __init__(self, server: Firebird4, client: Any, bootstrap: str, prefix: str) -> None:
        self._server, self._client, self._bootstrap = server, client, bootstrap
        self.database = server.create_database(client)
        self._topic = topic_of(REPLACE, prefix, str(server.inner(self.database)), "ITEM")
        self.numbers: list[int] = []

    def add(self, count: int = 20) -> None:
        """Commit so many rows, one by one."""
        with self._client.connect(self._server.dsn(self.database)) as connection:
            for _ in range(count):
                self.numbers.append(len(self.numbers) + 1)
                connection.execute_immediate(f"INSERT INTO ITEM VALUES ({self.numbers[-1]}, '', 1)")
                connection.commit()

    def await_delivery(self) -> None:
        """Wait until Kafka has each row, and has it once."""

        def delivered() -> bool:
            events = read_topics(self._bootstrap, [self._topic])[self._topic]
            return sorted(key["payload"]["ID"] for key, _ in events) == self.numbers

        try:
            await_condition(f"{len(self.numbers)} rows in {self._topic}", delivered, 120)
        except SetupError as error:
            pytest.fail(f"{error}\n{self._server.evidence()}")


def test_two_users_of_one_group_share_the_work(
    service: Firebird4, client: Any, broker: KafkaBroker, topic_prefix: str
) -> None:
    server = service
    journals, archive = (server.folder / name for name in ("journals", "archive"))
    options = server.folder / "connector.yaml"
    places = {"journals": server.inner(journals), "archive": server.inner(archive)}
    text = OPTIONS.format(bootstrap=broker.bootstrap, prefix=topic_prefix, **places)
    options.write_text(
        f"{text}connector.shipper: external\nevent.processing.failure.handling.mode: warn\n"
    )
    server.give_to_server(options)
    said = server.command("install", "--server", "/", "--config", str(server.inner(options)))
    assert "systemctl enable --now 'firebird-cdc-shipper@firebird4.service'" in said
    assert _modes(journals) == _modes(archive) == {"folder 2770"}
    settings = _settings(server)
    assert settings["User"][-1] == services.USER
    assert settings["Group"][-1] == "firebird"

    server.start()
    table = Table(server, client, broker.bootstrap, topic_prefix)
    table.add()
    shipper = Shipper(server, settings, 1)
    table.await_delivery()

    # The shipper is killed, and another one goes on.
    shipper.kill()
    table.add()
    shipper = Shipper(server, settings, 2)
    table.await_delivery()

    # The server is killed, with a transaction open: the shipper decides what it has left.
    with client.connect(server.dsn(table.database)) as connection:
        connection.execute_immediate("INSERT INTO ITEM VALUES (0, 'never', 1)")
        server.kill()
        with contextlib.suppress(client.DatabaseError):
            connection.close()
    await_condition("nothing to be left", lambda: not list(journals.glob("*.log*")), 120)
    server.start()
    table.add()
    table.await_delivery()

    # What can't be read is set aside, and the server's user may throw it away.
    broken = server.folder / f"{_BROKEN}.log"
    broken.write_bytes(b"no journal" * 1000)
    server.give_to_server(broken)
    broken.chmod(0o660)
    broken.rename(journals / broken.name)
    kept = journals / ".firebird-cdc/quarantine" / broken.name
    await_condition("the quarantine to have it", kept.exists, 120)
    discard = ("journal", "discard", "--config", str(server.inner(options)), "--yes", _BROKEN)
    _as(server, "firebird", *discard)
    assert not kept.exists()

    assert len(_owners(journals)) == 2
    assert _modes(journals) <= {"folder 2770", "file 660", "file 640"}
    assert _of_mode(journals, 0o640) in ([], ["join"])
    asked = ("check", "--server", "/", "--database", str(server.inner(table.database)))
    found = server.command(*asked, check=False)
    assert str(server.inner(journals)) not in found.replace("MiB left of", ""), found
    journals.chmod(0o2775)
    assert f"{server.inner(journals)} is open to every user (mode 2775)" in server.command(
        *asked, check=False
    )
    shipper.kill()
    log = server.system.path / debian.OUR_LOGS / "shipper.log"
    assert "shipping journals of" in log.read_text()
    assert log.stat().st_uid != journals.stat().st_uid

    before = set(server.system.outer(_UNITS).iterdir())
    server.command("uninstall", "--server", "/")
    gone = before - set(server.system.outer(_UNITS).iterdir())
    assert {path.name for path in gone} == {
        services.UNIT,
        "firebird-cdc-shipper@firebird4.service.d",
    }


def _as(server: Firebird4, user: str, *argv: str) -> None:
    switch = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    server.system.run(*switch, _PROGRAM, *argv)
