"""Writes that fail where no life of an engine comes to them (test_failing_syncs.py): of processes
that join another one, which record all the same or refuse, and of counts beside all folders."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from capture import Capture, until
from failing_syncs import FAILING_CALLS, install_failing_plugin
from power_loss import compile_recorder
from sync_calls import native_call_at, native_writes
from test_joining import Joining, joining, shipped

from firebird_cdc.demo.processes import Stack
from firebird_cdc.journal.folder.failures import page_name, unacknowledged

__all__ = ["joining", "shipped"]

_NATIVE = Path(__file__).resolve().parents[2] / "native"
_PROGRAM = _NATIVE.parent / "tests/unit/native/count_failures.c"
_FILES = ("native/access.c", "native/join.c", "native/definitions.c")


@pytest.fixture
def classic(tmp_path: Path, stack: Stack) -> Iterator[Capture]:
    """The plugin that asks before each write, in an engine whose processes share a database."""
    made = Capture(tmp_path, stack, {"ServerMode": "Classic"})
    made.install()
    install_failing_plugin(made)
    yield made
    stack.stop()


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_processes_that_join_meet_a_failed_write(joining: Joining, error: int) -> None:
    directory = joining.capture.directory
    recorder, reached, failed = (directory / name for name in ("recorder.so", "reached", "failed"))
    compile_recorder(recorder)
    reached.touch()
    published: list[int] = []

    def live(place: str) -> None:
        """Have two processes write, and the one call at PLACE fail in whichever comes to it."""
        failed.unlink(missing_ok=True)
        number = (max(published, default=0) // 10 + 1) * 10
        settings = {
            "LD_PRELOAD": recorder, "POWER_REACHED": reached, "POWER_FAILED": failed,
            "POWER_FAILS": place, "POWER_ERRNO": error,
        }  # fmt: skip
        before = ["env", *(f"{name}={value}" for name, value in settings.items())]
        servers = []
        for each in (number, number + 2):
            server = joining.server(before)
            servers.append(server)
            if server.can_write(each):
                published.append(each)
            until("writes to work", lambda: server.can_write(each + 1))  # noqa: B023
            published.append(each + 1)
            joining.await_published(published)
        for server in servers:
            server.end()

    live("nothing")
    places = {native_call_at(each): each for each in reached.read_text("utf-8").splitlines()}
    meant = [call for call in native_writes() if call.startswith(_FILES)]
    assert not (missing := [call for call in meant if call not in places]), missing
    for call in meant:
        live(places[call])
        assert failed.exists(), call


def test_a_count_of_what_is_lost_meets_a_failed_write(tmp_path: Path) -> None:
    recorder, program = tmp_path / "recorder.so", tmp_path / "count"
    reached, failed = tmp_path / "reached", tmp_path / "failed"
    compile_recorder(recorder)
    parts = ("access.c", "counters.c", "journal.c", "crc32c.c", "threads.c")
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{_NATIVE}", "-include", FAILING_CALLS]
    # By these names of the files the calls are told.
    sources = [_PROGRAM, *(f"native/{part}" for part in parts)]
    argv = ["gcc", *flags, "-o", program, *sources]
    subprocess.run(argv, check=True, cwd=_NATIVE.parent)

    def count(state: Path, place: str, error: int) -> bool:
        """Count a loss where the page of before is damaged and one where it is not; tell whether
        each was counted or reported."""
        page = state / page_name(Path("/etc/connector.yaml"))
        state.mkdir(exist_ok=True)
        failed.unlink(missing_ok=True)
        environment = {
            **os.environ, "LD_PRELOAD": str(recorder), "POWER_REACHED": str(reached),
            "POWER_FAILED": str(failed), "POWER_FAILS": place, "POWER_ERRNO": str(error),
        }  # fmt: skip
        page.write_bytes(b"damaged")
        counted = 0
        for _ in range(3):
            argv = [program, state, "/etc/connector.yaml", "/a.fdb", "lost", "1"]
            done = subprocess.run(argv, env=environment, capture_output=True, text=True)
            assert done.returncode == bool(done.stdout)
            counted += done.returncode == 0
        found = sum(each.count for each in unacknowledged([page]))
        return counted >= 2 and found == counted

    reached.touch()
    assert count(tmp_path / "state", "nothing", errno.EIO)
    places = {native_call_at(each): each for each in reached.read_text("utf-8").splitlines()}
    meant = [call for call in native_writes() if call.startswith("native/counters.c")]
    assert not (missing := [call for call in meant if call not in places]), missing
    for number, call in enumerate(meant):
        for error in (errno.EIO, errno.ENOSPC):
            assert count(tmp_path / f"{number}-{error}", places[call], error), call
            assert failed.exists(), call
