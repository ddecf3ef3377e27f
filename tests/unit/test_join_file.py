"""The file by which processes join others, as Python writes and reads it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from firebird_cdc.config.reading import begin_reading
from firebird_cdc.journal.folder.durable import boot_uuid
from firebird_cdc.journal.folder.join_file import (
    Identity,
    JoinFile,
    Terms,
    decode,
    join_path,
    publisher,
    withdraw,
)
from firebird_cdc.journal.folder.journal_folder import Joined, JournalFolder
from firebird_cdc.journal.folder.kept_definitions import (
    definitions_path,
    forget_definitions,
    hold_definitions,
)
from firebird_cdc.journal.folder.locks import BRIDGE_LOCK, try_lock
from firebird_cdc.native._shared_page import ffi

_PLUGIN = Identity(1, 2, 3, 4)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[JournalFolder]:
    with closing(JournalFolder(tmp_path / "journals")) as opened:
        yield opened


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "connector.yaml"
    path.write_text("connector.name: test\n")
    return path


def _terms(config: Path) -> Terms:
    return Terms(
        begin_reading(config),
        is_synced=True,
        is_gap_mode=False,
        transactions=7,
        memory_bytes=8,
        most_bytes=9,
    )


def test_file_says_what_a_process_works_with(folder: JournalFolder, config: Path) -> None:
    JoinFile(folder, _PLUGIN, _terms(config)).publish()
    path = join_path(folder.state)
    assert path.stat().st_mode & 0o777 == 0o600
    join = decode(path.read_bytes())
    assert join is not None
    assert publisher(folder.state) == folder.owner
    assert UUID(bytes=bytes(ffi.buffer(join.boot))) == boot_uuid()
    assert (join.transactions, join.memory_bytes, join.most_bytes) == (7, 8, 9)
    assert (join.is_synced, join.is_gap_mode) == (1, 0)
    assert (join.plugin.device, join.plugin.size) == (1, 4)
    assert (join.config.inode, join.config.size) == (
        config.stat().st_ino,
        config.stat().st_size,
    )
    assert join.folder_inode == folder.path.stat().st_ino
    assert join.tickets_inode == os.fstat(folder.tickets_fd).st_ino
    assert str(config) in ffi.string(join.record).decode()


@pytest.mark.parametrize("at", [0, 8, 40, 200, -8, -1])
def test_damage_anywhere_is_noticed(folder: JournalFolder, config: Path, at: int) -> None:
    JoinFile(folder, _PLUGIN, _terms(config)).publish()
    path = join_path(folder.state)
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert decode(bytes(content)) is None
    assert publisher(folder.state) is None


def test_nothing_is_published_where_none_is_to_join(folder: JournalFolder, config: Path) -> None:
    JoinFile(folder, Identity(0, 0, 0, 0), _terms(config)).publish()
    assert not join_path(folder.state).exists()


def test_options_that_were_changed_since_they_were_read_are_not_published(
    folder: JournalFolder, config: Path
) -> None:
    terms = _terms(config)
    config.write_text("connector.name: another\n")
    JoinFile(folder, _PLUGIN, terms).publish()
    assert not join_path(folder.state).exists()


def test_place_of_a_publisher_that_has_ended_is_taken(folder: JournalFolder, config: Path) -> None:
    with closing(JournalFolder(folder.path)) as other:
        JoinFile(other, _PLUGIN, _terms(config)).publish()
        ours = JoinFile(folder, _PLUGIN, _terms(config))
        ours.look()
        assert publisher(folder.state) == other.owner
    ours.look()
    assert publisher(folder.state) == folder.owner
    join_path(folder.state).write_bytes(b"damaged")
    ours.look()
    assert publisher(folder.state) == folder.owner


def test_shipper_withdraws_it_once_nobody_is_there(folder: JournalFolder, config: Path) -> None:
    path = join_path(folder.state)
    with closing(JournalFolder(folder.path)) as other:
        JoinFile(other, _PLUGIN, _terms(config)).publish()
        assert withdraw(folder.path)
        assert path.exists(), "the publisher lives"
    lock = try_lock(folder.state / BRIDGE_LOCK, fcntl.LOCK_SH)
    assert lock is not None
    assert not withdraw(folder.path)
    assert path.exists()
    os.close(lock)
    assert withdraw(folder.path)
    assert not path.exists()


def test_bridge_goes_on_with_what_the_plugin_has_opened(folder: JournalFolder) -> None:
    folder.page.fields.ticket = 5
    fds = [
        folder.journal_fd, folder.making_fd, folder.tickets_fd, folder.commits_fd, folder.slots_fd,
    ]  # fmt: skip
    with closing(JournalFolder(folder.path)) as before:
        mark = os.open(before.owners.mark(before.owner), os.O_RDWR)
        joined = Joined(folder.path, before.owner, *map(os.dup, fds), mark)
        with closing(JournalFolder(folder.path, joined=joined)) as adopted:
            assert adopted.owner == before.owner
            assert adopted.last_ticket == 5
            assert adopted.is_in_place()
            assert not adopted.owners.is_gone(adopted.owner)
            adopted.leave_tickets()
            assert not before.owners.mark(before.owner).read_bytes()


def test_definitions_stay_while_somebody_saw_what_became_of_tables(tmp_path: Path) -> None:
    first, second = hold_definitions(tmp_path), -1
    kept = definitions_path(tmp_path) / "00000000-1"
    kept.touch()
    second = hold_definitions(tmp_path)
    os.close(first)
    assert kept.exists()
    os.close(second)
    os.close(hold_definitions(tmp_path))
    assert not kept.exists()


def test_definitions_of_one_database_are_forgotten(tmp_path: Path) -> None:
    fd = hold_definitions(tmp_path)
    folder = definitions_path(tmp_path)
    # CRC-32C of the path, as the plugin names them
    (folder / "e3069283aaaaaaaa-0-0").touch()
    (folder / "e3069284aaaaaaaa-0-0").touch()
    forget_definitions(tmp_path, "123456789")
    assert [path.name for path in folder.iterdir()] == ["e3069284aaaaaaaa-0-0"]
    os.close(fd)


def test_wait_for_a_call_ends_with_it(folder: JournalFolder) -> None:
    assert not folder.page.await_call(0)
    folder.page.fields.shipper_calls += 1
    began = time.monotonic()
    assert folder.page.await_call(30)
    assert time.monotonic() - began < 25
    assert not folder.page.await_call(0.01)
