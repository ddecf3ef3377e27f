"""Findings of check about the place where journals lie, and about who else is there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from firebird_cdc.config import ConnectorConfig, load_config
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.packaging.server.accounts import run_as
from firebird_cdc.packaging.server.layout import Account
from firebird_cdc.packaging.surroundings import clock, journal_place, mount_of, secrets_shown

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:25 / /run rw,nosuid shared:5 - tmpfs tmpfs rw
41 22 0:40 / /srv/with\\040blank rw - nfs4 host:/export rw
42 22 0:41 / /srv rw - xfs /dev/sdb rw
50 22 0:44 / /var/lib/docker/overlay rw - overlay overlay rw,lowerdir=/x
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data/journal", ("/", "ext4")),
        ("/srv/journal", ("/srv", "xfs")),
        ("/srvx/journal", ("/", "ext4")),
        ("/srv/with blank/journal", ("/srv/with blank", "nfs4")),
        ("/var/lib/docker/overlay", ("/var/lib/docker/overlay", "overlay")),
    ],
)
def test_mount_that_holds_a_path_is_found(path: str, expected: tuple[str, str]) -> None:
    assert mount_of(Path(path), MOUNTS) == expected


def options(folder: Path, *lines: str) -> ConnectorConfig:
    """Options with journals in FOLDER."""
    path = folder.parent / "connector.yaml"
    path.write_text(
        "\n".join(
            (
                "connector.name: test",
                f"connector.journal.directory: {folder}",
                "kafka.producer.bootstrap.servers: 127.0.0.1:9",
                "kafka.topic.prefix: test",
                *lines,
            )
        )
    )
    return load_config(path)


ME = Account("root", os.getuid(), os.getgid())


def said(folder: Path, account: Account = ME) -> str:
    """Return the findings about FOLDER."""
    return "\n".join(map(str, journal_place(options(folder), account)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "journal"
    made.mkdir(mode=0o700)
    return made


@contextmanager
def mounted(folder: Path, *arguments: str) -> Iterator[None]:
    subprocess.run(["mount", *arguments, str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_journals_in_memory_and_on_a_full_disk_are_found(folder: Path) -> None:
    assert "in memory" not in said(folder)
    with mounted(folder, "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs"):
        (folder / "fill").write_bytes(bytes(1000 * 1024))
        found = said(folder)
    assert f"{folder} lies on the file system tmpfs ({folder}), which is in memory" in found
    assert "-> name a folder on a local disk" in found
    assert "has 0 MiB left of 1" in found


def test_journals_in_a_container_layer_are_found(folder: Path, tmp_path: Path) -> None:
    if mount_of(tmp_path, Path("/proc/self/mountinfo").read_text())[1] != "overlay":
        for name in ("lower", "upper", "work"):
            (tmp_path / name).mkdir()
        layers = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
        with mounted(folder, "-t", "overlay", "-o", layers, "overlay"):
            found = said(folder)
    else:
        found = said(folder)
    assert "overlay" in found
    assert "goes with its container" in found


def test_journals_where_the_system_cleans_up_are_found() -> None:
    assert "is in /dev/shm, which many systems empty" in said(Path("/dev/shm/j"))
    assert "a month old" in said(Path("/var/tmp/j"))


def test_open_folder_and_one_of_another_user_are_found(folder: Path) -> None:
    for parent in (folder, *folder.parents):  # others have to get there, too
        if parent.stat().st_uid == ME.uid and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o755)
    folder.chmod(0o777)
    found = said(folder, Account("firebird", ME.uid + 1, 1))
    assert f"{folder} is open to every user (mode 777)" in found
    assert f"chmod o-rwx {folder}" in found
    assert "the server runs as firebird" in found


def test_folder_for_its_group_is_taken_and_what_is_closed_in_it_is_told(folder: Path) -> None:
    before = said(folder)
    folder.chmod(0o2770)
    state = folder / ".firebird-cdc"
    state.mkdir()
    assert f"is for its group, too, and {state} is not" in said(folder)
    state.chmod(0o2770)
    assert said(folder) == before
    (state / "databases").mkdir()
    (state / "databases").chmod(0o2770)
    (state / "databases/1.lock").touch(0o600)
    assert f"and {state}/databases/1.lock is not" in said(folder)


def test_two_servers_on_one_folder_are_found_and_two_processes_of_one_are_not(folder: Path) -> None:
    owners = folder / ".firebird-cdc/owners"
    owners.mkdir(parents=True)
    hold = (
        "import fcntl, sys, time\nfile = open(sys.argv[1], 'w')\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\nprint(flush=True)\ntime.sleep(600)"
    )

    def owner() -> str:
        return str(owners / str(uuid4()))

    def start(*command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdout=subprocess.PIPE)

    python = [start(sys.executable, "-c", hold, owner()) for _ in range(2)]
    running = list(python)
    try:
        for process in python:
            assert process.stdout is not None
            process.stdout.readline()
        assert "several servers" not in said(folder)
        running.append(start("flock", "--no-fork", owner(), "sleep", "600"))
        await_condition("the second server", lambda: "sleep (process" in said(folder), 60)
        assert "several servers" in said(folder)
    finally:
        for process in running:
            process.kill()
            process.communicate()


def test_readable_passwords_are_found(folder: Path) -> None:
    config = options(
        folder, "kafka.producer.sasl.password: hidden", "kafka.producer.sasl.mechanism: PLAIN"
    )
    config.path.chmod(0o644)
    (found,) = secrets_shown(config)
    assert "kafka.producer.sasl.password" in str(found)
    assert "hidden" not in str(found)
    config.path.chmod(0o640)
    assert not list(secrets_shown(config))


def test_a_password_may_be_elsewhere_but_not_for_all_to_read(folder: Path) -> None:
    config = options(folder, "database.password: ${env:CDC}")
    config.path.chmod(0o644)
    assert not list(secrets_shown(config))
    secret = folder / "password"
    config = options(folder, f"database.password.file: {secret}")
    (found,) = secrets_shown(config)
    assert "No such file" in str(found)
    secret.write_text("hidden\n")
    secret.chmod(0o604)
    (found,) = secrets_shown(config)
    assert f"every user of the machine may read {secret} (mode 604)" in str(found)
    secret.chmod(0o640)
    assert not list(secrets_shown(config))


def test_journal_from_the_future_is_found(folder: Path) -> None:
    journal = folder / f"{uuid4()}.log"
    journal.touch()
    (folder / f"{uuid4()}.log").symlink_to(folder / "shipped-meanwhile")
    assert "younger than now" not in "".join(map(str, clock(options(folder))))
    ahead = journal.stat().st_mtime + 3600
    os.utime(journal, (ahead, ahead))
    assert "younger than now: the clock was set back" in "".join(map(str, clock(options(folder))))


def test_command_that_exceeds_its_time_limit_is_an_os_error() -> None:
    with pytest.raises(OSError, match="did not end within"):
        run_as(ME, ["sleep", "60"], 0.1)
