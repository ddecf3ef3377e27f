"""Rotation of the log that many processes share, lines as JSON, a configuration that changes."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import logbook
import pytest

from firebird_cdc.config.logging import load_logging, setup_logging
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.errors import ConfigError

Start = Callable[..., Path]

log = logbook.Logger("firebird_cdc.test")

_WRITER = """
import sys
from pathlib import Path
import logbook
from firebird_cdc.config import logging as module
from firebird_cdc.config.logging import setup_logging
config, name, count = sys.argv[1:]
module._LOCK_TRIES = 20_000  # or a file grows on while who has the lock gets no time to run
setup_logging(Path(config))
log = logbook.Logger("x")
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(count)):
    log.info("{} {} {}", name, number, "x" * (number % 90))
"""


_PIPE_WRITER = """
import signal, sys
from pathlib import Path
import logbook
from firebird_cdc.config.logging import setup_logging
signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as a server may have it
setup_logging(Path(sys.argv[1]))
log = logbook.Logger("x")
log.info("begun")
print("begun", flush=True)
sys.stdin.readline()
for number in range(2000):
    log.info("{}", "x" * (5000 if number % 100 == 7 else 100))
assert signal.SIGPIPE not in signal.sigpending() | signal.pthread_sigmask(signal.SIG_BLOCK, ())
print("ended", flush=True)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Set logging up with these lines beside the file's; returns the log file."""
    pushed: list[logbook.Handler] = []

    def begin(*lines: str, file: Path = tmp_path / "out.log") -> Path:
        config = tmp_path / "logging.yaml"
        config.write_text("\n".join([f"file: {file}", *lines]) + "\n", "utf-8")
        pushed.append(setup_logging(config))
        return file

    yield begin
    while pushed:
        handler = pushed.pop()
        handler.pop_application()
        handler.close()


def _files(file: Path) -> list[Path]:
    """The log's files, the oldest first."""
    old = file.parent.glob(f"{file.name}.*")
    return [*sorted(old, key=lambda path: -int(path.suffix[1:])), file]


# -- many processes


@pytest.mark.parametrize(("form", "count"), [('"{message}"', 1000), ("json", 3)])
def test_no_line_of_many_processes_is_lost_or_torn(tmp_path: Path, form: str, count: int) -> None:
    config, file = tmp_path / "logging.yaml", tmp_path / "out.log"
    size, lines, names = 20_000, 1500, ["a", "b", "c", "d"]
    config.write_text(
        f"file: {file}\nformat: {form}\nrotation.size: {size}\nrotation.count: {count}\n"
    )
    errors = (tmp_path / "errors").open("wb")
    writers = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", _WRITER, str(config), name, str(lines)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        for name in names
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
    for writer in writers:
        writer.communicate(b"\n", timeout=240)
        assert writer.returncode == 0
    errors.close()
    assert (tmp_path / "errors").read_bytes() == b""

    found = _files(file)
    if count < 1000:
        assert [path.name for path in found] == ["out.log.3", "out.log.2", "out.log.1", "out.log"]
    assert len(found) > 3
    last = dict.fromkeys(names, -1) if count == 1000 else None
    for path in found:
        assert path.stat().st_size <= size
        assert path.stat().st_mode & 0o777 == 0o600
        for line in path.read_text().splitlines():
            text = json.loads(line)["message"] if form == "json" else line
            name, number, filler = re.fullmatch(r"([a-d]) (\d+) ?(x*)", text).groups()  # type: ignore[union-attr]
            assert len(filler) == int(number) % 90
            if last is not None:
                assert int(number) == last[name] + 1, f"lost, or in the wrong file: {path}"
                last[name] += 1
    assert last is None or set(last.values()) == {lines - 1}


def test_a_process_that_was_stopped_with_the_lock_costs_the_others_no_line(start: Start) -> None:
    file = start('format: "{message}"', "rotation.size: 100")
    log.info("x" * 90)
    with file.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        log.info("y" * 90)
        assert file.read_text().splitlines() == ["x" * 90, "y" * 90]
    await_condition("rotation", lambda: log.info("z") or len(_files(file)) > 1, 60.0, 0.05)
    assert "y" * 90 in file.with_name("out.log.1").read_text()


# -- one process


def test_the_oldest_goes_and_rotation_can_be_off(start: Start, tmp_path: Path) -> None:
    file = start('format: "{message}"', "rotation.size: 10", "rotation.count: 2")
    for number in range(5):
        log.info("line {}", number)
    assert [path.read_text() for path in _files(file)] == ["line 2\n", "line 3\n", "line 4\n"]
    log.info("longer than a whole file may be")
    assert file.read_text() == "longer than a whole file may be\n"

    other = start('format: "{message}"', "rotation.size: 0", file=tmp_path / "other.log")
    for _ in range(100):
        log.info("x" * 1000)
    assert _files(other) == [other]


def test_a_linked_log_is_rotated_where_it_lies(start: Start, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    link = tmp_path / "link.log"
    link.symlink_to("logs/real.log")
    start('format: "{message}"', "rotation.size: 10", file=link)
    log.info("line 1")
    log.info("line 2")
    assert link.is_symlink()
    assert link.read_text() == "line 2\n"
    assert (tmp_path / "logs" / "real.log.1").read_text() == "line 1\n"


def test_a_log_that_cannot_be_rotated_goes_on(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    file = start('format: "{message}"', "rotation.size: 10", "rotation.count: 1")
    (file.with_name("out.log.1") / "in the way").mkdir(parents=True)
    for number in range(5):
        log.info("line {}", number)
    assert file.read_text().splitlines() == [f"line {number}" for number in range(5)]
    assert capfd.readouterr().err.count("cannot rotate it") == 1


def test_a_log_of_another_user_is_not_rotated(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = start('format: "{message}"', "rotation.size: 10")
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    for number in range(3):
        log.info("line {}", number)
    assert _files(file) == [file]


@pytest.mark.parametrize("trick", ["of another user", "with another name", "a link"])
def test_file_planted_in_a_shared_folder_is_not_written_to(
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    trick: str,
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    file, victim = shared / "x.log", tmp_path / "victim"
    victim.write_text("precious\n")
    if trick == "of another user":
        file.write_text("precious\n")
        monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    elif trick == "with another name":
        file.hardlink_to(victim)
    else:
        file.symlink_to(victim)
    start(file=file)
    log.error("mischief")
    assert file.read_text() == "precious\n"
    err = capfd.readouterr().err
    assert "cannot open it" in err
    assert "mischief" in err


def test_a_line_that_does_not_fit_leaves_no_torn_one(tmp_path: Path) -> None:
    config = tmp_path / "logging.yaml"
    config.write_text(f'file: {tmp_path / "out.log"}\nformat: "{{message}}"\n')
    program = (
        "import logbook, os, resource, sys\n"
        "from pathlib import Path\n"
        "from firebird_cdc.config.logging import setup_logging\n"
        "setup_logging(Path(sys.argv[1]))\n"
        "log = logbook.Logger('x')\n"
        "log.info('first')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))\n"
        "log.info('does not fit ' * 3)\n"
        "log.info('nor does this one')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "log.info('last')\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, str(config)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.log").read_text() == "first\nlast\n"
    assert done.stderr.count("the disk is full; logging goes to stderr") == 1
    assert "does not fit does not" in done.stderr
    assert "nor does this one" in done.stderr


# -- JSON


def test_json_has_all_fields_and_those_that_a_record_names(start: Start) -> None:
    file = start("format: JSON")
    log.warning("{database}: a gap in {journal}", database="/a.fdb", journal=Path("/j/1.log"))
    log.info("{level} {size}", level="mine", size=1.5, extra={"more": None})
    uuid = "6f2b9a54-0d1e-4c57-9a3b-2e7c41d8b0aa"
    log.error("{}: event 3 marks a gap", f"/j/{uuid}.log")
    log.error("{journal} is moved to the quarantine", journal=f"{uuid}.log")
    first, second, *others = map(json.loads, file.read_text().splitlines())
    assert [other["journal"] for other in others] == [uuid, uuid]
    time = datetime.fromisoformat(first.pop("time"))
    assert abs(time.timestamp() - datetime.now().timestamp()) < 60
    assert first.pop("line") > 0
    assert first == {
        "level": "WARNING",
        "process": os.getpid(),
        "thread": threading.current_thread().name,
        "logger": "firebird_cdc.test",
        "file": "test_log_rotation.py",
        "message": "/a.fdb: a gap in /j/1.log",
        "database": "/a.fdb",
        "journal": "/j/1.log",
    }
    assert (second["level"], second["message"]) == ("INFO", "mine 1.5")
    assert (second["size"], second["more"]) == (1.5, None)


def test_any_log_record_is_one_json_object_on_one_line(start: Start) -> None:
    class Odd:
        def __str__(self) -> str:
            raise ValueError("odd")

    file = start("format: json")
    log.info("{}", 'one\n"two"\r\u2028 \udcff é')
    log.info("{} {}", "only one")
    log.info("text", odd=Odd(), infinite=float("inf"))
    try:
        raise OSError("disk gone")
    except OSError:
        log.exception("cannot write {journal}", journal="a.log")
    lines = [json.loads(line) for line in file.read_text().split("\n")[:-1]]
    assert lines[0]["message"] == 'one\n"two"\r\u2028 \udcff é'
    assert lines[1]["message"].startswith("{} {} (arguments do not fit")
    assert (lines[2]["odd"], lines[2]["infinite"]) == ("(odd)", "inf")
    assert lines[3]["exception"].endswith("OSError: disk gone")
    assert lines[3]["journal"] == "a.log"


# -- a configuration that changes


def test_changes_of_the_configuration_are_followed(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firebird_cdc.config.logging._CHECK_SECONDS", 0.0)
    file = start("level: error")
    config = tmp_path / "logging.yaml"
    log.info("not yet")
    assert file.read_text() == ""

    config.write_text(f'file: {file}\nlevel: debug\nformat: "{{message}}"\n')
    log.debug("now")
    assert file.read_text() == f"{config} was changed: logging goes on as it says\nnow\n"

    config.write_text(f'file: {file}\nlevel: loud\nformat: "{{message}}"\n')
    log.debug("as before")
    wrong, last = file.read_text().splitlines()[2:]
    assert "level is 'loud'" in wrong
    assert "(logging goes on as before)" in wrong
    assert last == "as before"

    other = tmp_path / "other.log"
    config.write_text(f"file: {other}\nformat: json\n")
    log.info("there")
    config.unlink()
    log.info("still there")
    messages = [json.loads(line)["message"] for line in other.read_text().splitlines()]
    assert messages[1:] == ["there", "still there"]
    assert len(file.read_text().splitlines()) == 4


def test_wrong_rotation_setting_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "l.yaml"
    path.write_text("rotation.size: -1\nrotation.count: 0\n")
    with pytest.raises(ConfigError) as caught:
        load_logging(path)
    first, second = caught.value.problems
    assert "l.yaml:1: rotation.size is '-1'; it must be from 0 to" in first
    assert "l.yaml:2: rotation.count is '0'; it must be from 1 to 1000" in second


# -- pipes


@pytest.mark.parametrize("what", ["log", "stderr"])
@pytest.mark.parametrize("is_read", [True, False], ids=["stuck", "gone"])
def test_unread_pipe_neither_ends_nor_blocks_the_server(
    tmp_path: Path, what: str, is_read: bool
) -> None:
    config, pipe = tmp_path / "logging.yaml", tmp_path / "pipe"
    os.mkfifo(pipe)
    file = pipe if what == "log" else tmp_path / "missing" / "file"
    config.write_text(f"file: {file}\n")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    errors = os.open(pipe if what == "stderr" else os.devnull, os.O_WRONLY)
    writer = subprocess.Popen(
        [sys.executable, "-P", "-c", _PIPE_WRITER, str(config)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
    )
    os.close(errors)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"begun\n"
    if not is_read:
        os.close(reader)
    try:
        rest, _ = writer.communicate(b"\n", timeout=240)
    finally:
        writer.kill()
    assert (writer.returncode, rest) == (0, b"ended\n")
    if is_read:
        content = b""
        while piece := os.read(reader, 1 << 16):
            content += piece
        os.close(reader)
        assert b"begun" in content and content.count(b"\n") > 100
