"""The unit, started by systemd: ready, watched, started again, tried again, stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from booted import Booted

from firebird_cdc.demo import trixie as debian
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.demo.service import free_port
from firebird_cdc.packaging import services

if TYPE_CHECKING:
    from firebird_cdc.demo.kafka import KafkaBroker

pytestmark = [pytest.mark.server, pytest.mark.kafka, pytest.mark.soak]

_PROGRAM = f"/{debian.VENV}/bin/firebird-cdc"
_OPTIONS = f"/{debian.CONFIGURATION}/reddatabase.connector.yaml"
_UNIT = r"firebird-cdc-shipper@shop\x2d1.service"
_SECRETS = "/etc/firebird-cdc/shop-1.env"
_SECRET = "FIREBIRD_CDC_OPTION_KAFKA__PRODUCER__CLIENT__ID=told-by-the-environment"
_WORK = """
import sys
from firebird import driver
port, password, first, count = sys.argv[1:]
driver.driver_config.fb_client_library.value = "/usr/lib/x86_64-linux-gnu/libfbclient.so.2"
login = {"user": "SYSDBA", "password": password}
dsn = f"127.0.0.1/{port}:/data/shop.fdb"
if first == "1":
    with driver.create_database(dsn, **login) as made:
        for sql in (
            "CREATE TABLE ITEM (ID INTEGER PRIMARY KEY)",
            "ALTER DATABASE INCLUDE ALL TO PUBLICATION",
            "ALTER DATABASE ENABLE PUBLICATION",
        ):
            made.execute_immediate(sql)
            made.commit()
with driver.connect(dsn, **login) as connection:
    for number in range(int(first), int(first) + int(count)):
        connection.execute_immediate(f"INSERT INTO ITEM VALUES ({number})")
        connection.commit()
"""


@pytest.fixture
def booted(trixie: debian.Trixie, tmp_path: Path) -> Iterator[Booted]:
    """The system with a running server, our user, and the plugin not installed yet."""
    trixie.reset()
    folder = tmp_path / "booted"
    folder.mkdir()
    with Booted(trixie, folder) as system:
        source = f"/{debian.SOURCE}/packaging/services"
        system.run("systemd-sysusers", f"{source}/firebird-cdc.sysusers")
        system.run("systemd-tmpfiles", "--create", f"{source}/firebird-cdc.tmpfiles")
        system.run("install", "-d", "-o", "firebird", "-g", "firebird", "-m", "770", "/data")
        yield system


def _shown(system: Booted, name: str) -> str:
    return system.run("systemctl", "show", "--property", name, "--value", _UNIT).strip()


def test_systemd_runs_the_shipper(booted: Booted, broker: KafkaBroker, topic_prefix: str) -> None:
    port = free_port()
    options = (
        "connector.name: shop-1\nconnector.shipper: external\nsnapshot.mode: never\n"
        "connector.journal.directory: /var/lib/firebird-cdc/journal\n"
        "connector.journal.archive.directory: /var/lib/firebird-cdc/archive\n"
        f"kafka.producer.bootstrap.servers: {broker.bootstrap}\n"
        f"kafka.topic.prefix: {topic_prefix}\n"
    )

    def write(path: str, text: str) -> None:
        booted.run("tee", path, text=text)

    write(f"/{debian.CONFIGURATION}/firebird.conf", f"RemoteServicePort = {port}\n")
    write(_OPTIONS, options)
    booted.run("install", "-m", "600", "/dev/stdin", _SECRETS, text=f"{_SECRET}\n")
    booted.run(_PROGRAM, "install")
    booted.run("systemctl", "daemon-reload")
    booted.run("systemctl", "start", "firebird4.0")
    password = booted.run(
        "sh", "-c", f". /{debian.CONFIGURATION}/SYSDBA.password; echo $ISC_PASSWORD"
    ).strip()
    committed = 0

    def commit_and_await() -> None:
        nonlocal committed
        work = (f"/{debian.VENV}/bin/python3", "-c", _WORK, str(port), password)
        booted.run(*work, str(committed + 1), "10")
        committed += 10

        def delivered() -> bool:
            return booted.run(_PROGRAM, "tail", "--once").count(" insert ITEM: ") == committed

        await_condition(f"{committed} events", delivered, 60)

    booted.run("systemctl", "start", _UNIT)  # ends once it is ready
    assert _shown(booted, "ActiveState") == "active"
    commit_and_await()
    shipper = _shown(booted, "MainPID")
    assert _SECRET in booted.run("cat", f"/proc/{shipper}/environ").split("\0")
    owner = booted.run("stat", "-c", "%U:%G %a", "/var/lib/firebird-cdc/journal/.firebird-cdc")
    assert owner == f"{services.USER}:firebird 2770\n"

    booted.run("systemctl", "kill", "--signal=KILL", _UNIT)
    await_condition("another start", lambda: _shown(booted, "NRestarts") == "1", 60)
    commit_and_await()

    booted.run("systemctl", "stop", _UNIT)
    assert _shown(booted, "Result") == "success"

    # An option that is wrong: tried again, with growing pauses, until it is right.
    write(_OPTIONS, f"{options}kafka.nonsense: 1\n")
    booted.run("systemctl", "start", _UNIT, check=False)
    await_condition("some attempts", lambda: int(_shown(booted, "NRestarts")) >= 2, 60)
    assert float(_shown(booted, "RestartUSecNext").removesuffix("s")) > 2
    write(_OPTIONS, options)
    await_condition("the service", lambda: _shown(booted, "ActiveState") == "active", 60)
    commit_and_await()
    exposure = booted.run("systemd-analyze", "security", "--no-pager", _UNIT).splitlines()[-1]
    assert float(exposure.partition(": ")[2].split()[0]) < 2.5

    booted.run("systemctl", "stop", _UNIT)
    booted.run(_PROGRAM, "uninstall")
    left = booted.run("find", "/etc/systemd/system", "-name", "firebird-cdc*")
    assert left == ""
