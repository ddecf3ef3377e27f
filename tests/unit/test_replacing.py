"""Shippers that a server process replaces, and reports on processes that disagree."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from firebird_cdc import __version__
from firebird_cdc.bridge.replacing import end_earlier_version, why_replace
from firebird_cdc.config import Reading, load_capture
from firebird_cdc.journal.folder import processes
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY, ShipperLock, try_lock
from firebird_cdc.journal.folder.processes import (
    CaptureProcess,
    EndRequest,
    disagreements,
    read_servers,
)

_OURS = Reading("/etc/a.yaml", "1:2", "d2", "s2", 200, 1)
_SHIPPER = CaptureProcess(
    "one", 77, __version__, True, Reading("/etc/a.yaml", "1:2", "d1", "s1", 100, 1)
)


class _Folder:
    """A journal folder with server processes that live until the test ends."""

    def __init__(self, directory: Path, undo: ExitStack) -> None:
        self.path = directory
        self.state = directory / STATE_DIRECTORY
        (self.state / "owners").mkdir(parents=True, exist_ok=True)
        self._undo = undo

    def server(self, reading: Reading | None, process: int = 0) -> None:
        """Have a server process live that has read READING; None: that says nothing."""
        owner = uuid4()
        held = try_lock(self.state / "owners" / str(owner), fcntl.LOCK_EX)
        assert held is not None
        self._undo.callback(os.close, held)
        if reading is not None:
            path = processes.tell_server(self.state, owner, reading)
            if process:
                said = CaptureProcess.from_json(path.read_text())
                assert said is not None
                path.write_text(replace(said, process=process).as_json())

    def shipper(self, record: CaptureProcess) -> None:
        """Have RECORD hold the shipper's lock."""
        self._undo.enter_context(ShipperLock(self.path, record.as_json()))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[_Folder]:
    with ExitStack() as undo:
        yield _Folder(tmp_path / "journals", undo)


def _config(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["connector.journal.directory: /j", *lines]) + "\n")
    return path


# -- whether


def test_shipper_with_outdated_options_is_replaced(folder: _Folder) -> None:
    why = why_replace(folder.path, _SHIPPER, _OURS)
    assert why == "/etc/a.yaml was changed after it had read that"


def test_shipper_is_replaced_if_only_a_secret_was_changed(folder: _Folder) -> None:
    assert why_replace(folder.path, _SHIPPER, replace(_OURS, digest="d1"))


@pytest.mark.parametrize(
    ("shipper", "ours"),
    [
        (_SHIPPER, replace(_OURS, digest="d1", stamp="s1")),
        (_SHIPPER, replace(_OURS, read_ns=50)),
        (_SHIPPER, replace(_OURS, read_ns=100)),
        (replace(_SHIPPER, embedded=False), _OURS),
        (replace(_SHIPPER, embedded=False, version="0.0.1"), _OURS),
        (replace(_SHIPPER, version="99.0"), replace(_OURS, digest="d1", stamp="s1")),
    ],
)
def test_shipper_with_current_options_or_external_is_not_replaced(
    folder: _Folder, shipper: CaptureProcess, ours: Reading
) -> None:
    assert why_replace(folder.path, shipper, ours) == ""


def test_shipper_of_an_older_version_is_replaced_despite_equal_options(folder: _Folder) -> None:
    older = replace(_SHIPPER, version="0.0.10")
    why = why_replace(folder.path, older, replace(_OURS, digest="d1", stamp="s1"))
    assert "version 0.0.10" in why
    assert "version 0.0.10" in why_replace(folder.path, older, replace(_OURS, read_ns=50))


@pytest.mark.parametrize("other", [{"path": "/etc/b.yaml"}, {"root": "5:6"}])
def test_shipper_of_another_server_is_replaced_only_after_that_server_ends(
    folder: _Folder, other: dict[str, str]
) -> None:
    theirs = replace(_SHIPPER, reading=replace(_SHIPPER.reading, **other))
    with ExitStack() as undo:
        _Folder(folder.path, undo).server(theirs.reading)
        assert why_replace(folder.path, theirs, _OURS) == ""
        assert why_replace(folder.path, replace(theirs, version="0.0.1"), _OURS) == ""
    assert why_replace(folder.path, theirs, _OURS)
    folder.server(None)  # of which nobody knows what it has read
    assert why_replace(folder.path, theirs, _OURS) == ""


@pytest.mark.parametrize(("one", "other"), [("0.10.0", "0.9.1"), ("1.0", "0.99"), ("1.0.1", "1.0")])
def test_versions_are_compared_as_numbers(one: str, other: str) -> None:
    assert processes.is_newer(one, other)
    assert not processes.is_newer(other, one)
    assert not processes.is_newer(one, one)


# -- how


def test_a_request_ends_the_shipper_that_it_names_and_no_later_one(folder: _Folder) -> None:
    """A server that dies between request and start leaves it behind."""
    first, later = EndRequest(folder.path, _SHIPPER), replace(_SHIPPER, identity="two")
    second = EndRequest(folder.path, later)
    assert not first.is_made(1.0)
    processes.ask_to_end(folder.path, _SHIPPER)
    assert not first.is_made(1.5)  # it looks once a second
    assert first.is_made(2.0)
    assert not first.is_made(4.0)
    assert not second.is_made(2.0)
    external = EndRequest(folder.path, replace(later, embedded=False))
    processes.ask_to_end(folder.path, later)
    assert not external.is_made(2.0)
    assert second.is_made(4.0)


def test_a_process_that_is_no_shipper_of_this_folder_gets_no_signal(folder: _Folder) -> None:
    with ShipperLock(folder.path):
        assert not end_earlier_version(folder.path, os.getpid())
    assert not end_earlier_version(folder.path, 2**22 + 1)


def test_options_told_by_a_server_process_are_removed_with_its_mark(folder: _Folder) -> None:
    made = JournalFolder(folder.path)
    said = processes.tell_server(made.state, made.owner, _OURS)
    assert [record.reading for record in read_servers(folder.path).records] == [_OURS]
    made.forget(made.owner)
    assert not said.exists()
    made.close()


# -- the digest


def test_digest_depends_on_option_values_not_on_their_spelling(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"

    def digest(*lines: str) -> str:
        return load_capture(_config(path, *lines)).reading.digest

    base = digest("table.include.list: 'a, b'", "connector.name: x")
    assert base == digest("# a remark", "connector.name: x", "table.include.list: 'a,b'")
    assert base == digest("connector.name: x", "table.whitelist: [a, b]")
    assert base == digest(
        "connector.name: x", "table.include.list: 'a,b'", "connector.shipper: embedded"
    )
    assert base != digest("table.include.list: 'a, c'", "connector.name: x")
    assert base != digest("table.include.list: 'a, b'", "connector.name: x", "no.such.option: 1")


@pytest.mark.parametrize(
    "line",
    [
        "kafka.producer.sasl.password: {}",
        "database.password: {}",
        "column.mask.hash.v2.SHA-256.with.salt.{}: .*ID",
        "value.converter.schema.registry.url: http://me:{}@host/",
    ],
)
def test_no_secret_is_in_the_digest_and_a_change_of_one_shows_in_the_stamp(
    tmp_path: Path, line: str
) -> None:
    path = tmp_path / "c.yaml"
    one = load_capture(_config(path, line.format("before"))).reading
    two = load_capture(_config(path, line.format("afterwards"))).reading
    assert one.digest == two.digest
    assert one.stamp != two.stamp
    assert one.read_ns < two.read_ns


# -- what is told


def test_two_servers_with_different_options_are_named_with_their_files(folder: _Folder) -> None:
    other = replace(_OURS, path="/etc/b.yaml", digest="d3")
    folder.server(_OURS)
    folder.server(other)
    folder.shipper(replace(_SHIPPER, reading=_OURS))
    [told] = disagreements(folder.path)
    assert "server processes with different options" in told.what
    assert "those of /etc/a.yaml" in told.what
    assert "those of /etc/b.yaml" in told.what
    assert "the one shipper" in told.what
    assert "connector.journal.directory of its own" in told.remedy


def test_two_files_with_the_same_options_are_fine(folder: _Folder) -> None:
    folder.server(_OURS)
    folder.server(replace(_OURS, path="/etc/b.yaml"))
    folder.shipper(replace(_SHIPPER, reading=_OURS))
    assert disagreements(folder.path) == []


def test_a_file_that_was_changed_after_server_and_shipper_read_it(
    folder: _Folder, tmp_path: Path
) -> None:
    path = _config(tmp_path / "c.yaml", "connector.name: before")
    reading = load_capture(path).reading
    folder.server(reading)
    folder.shipper(replace(_SHIPPER, reading=reading))
    assert disagreements(folder.path) == []
    _config(path, "connector.name: before", "# a remark")
    assert disagreements(folder.path) == []
    _config(path, "connector.name: after")
    [told] = disagreements(folder.path)
    assert f"{path} was changed after server process {os.getpid()} and the shipper" in told.what
    assert "restart the server" in told.remedy


def test_the_file_of_a_server_in_a_chroot_is_looked_at_too(folder: _Folder, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    path = _config(root / "c.yaml", "connector.name: before")
    read = load_capture(path).reading
    program = "import os, sys; os.chroot(sys.argv[1]); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        server.stdout.readline()
        status = root.stat()
        inside = replace(read, path="/c.yaml", root=f"{status.st_dev}:{status.st_ino}")
        folder.server(inside, server.pid)
        assert disagreements(folder.path) == []
        _config(path, "connector.name: after")
        [told] = disagreements(folder.path)
        assert f"/c.yaml was changed after server process {server.pid}" in told.what


def test_embedded_shipper_of_an_older_or_unknown_version_is_reported(
    folder: _Folder,
) -> None:
    folder.server(_OURS)
    older = replace(_SHIPPER, version="0.0.1", reading=_OURS)
    with ShipperLock(folder.path, older.as_json()):
        [told] = disagreements(folder.path)
        assert f"version 0.0.1, and server process {os.getpid()} is {__version__}" in told.what
    with ShipperLock(folder.path):
        [told] = disagreements(folder.path)
        assert "is of an earlier version of firebird-cdc" in told.what
    assert disagreements(folder.path) == []  # none runs
