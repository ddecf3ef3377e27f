"""setup_logging: where log lines end up, whatever is wrong."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import logbook
import pytest

from firebird_cdc.config.logging import (
    DEFAULT_LOG_FILE,
    ROLES,
    LogFile,
    LoggingOptions,
    load_logging,
    setup_logging,
)
from firebird_cdc.errors import ConfigError

LOGBACK = """<configuration>
        <appender name="FILE"class="ch.qos.logback.core.FileAppender">
                <file>/tmp/debezium-connector-reddatabase.log</file>
        </appender>
        <root level="debug">
                <appender-ref ref="FILE"/>
        </root>
</configuration>
"""

log = logbook.Logger("firebird_cdc.test")


class Setup:
    """A logging configuration in a folder of its own, and the log it leads to."""

    def __init__(self, directory: Path) -> None:
        self.config = directory / "logging.yaml"
        self.file = directory / "out.log"
        self._pushed: list[logbook.Handler] = []

    def start(self, *lines: str) -> logbook.Handler:
        self.config.write_text("\n".join([f"file: {self.file}", *lines]) + "\n", "utf-8")
        return self.start_with(self.config)

    def start_with(self, path: Path | None) -> logbook.Handler:
        handler = setup_logging(path)
        self._pushed.append(handler)
        return handler

    def stop(self) -> None:
        while self._pushed:
            handler = self._pushed.pop()
            handler.pop_application()
            handler.close()

    def lines(self) -> list[str]:
        return self.file.read_text("utf-8").splitlines()


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    made = Setup(tmp_path)
    yield made
    made.stop()


def test_line_carries_all_fields(setup: Setup) -> None:
    setup.start()
    log.warning("journal {} is {} bytes long", "x", 7)

    (line,) = setup.lines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d WARNING"
        rf" \[{os.getpid()} MainThread\] firebird_cdc\.test"
        r" \[test_config_logging\.py:\d+\] journal x is 7 bytes long",
        line,
    ), line


def test_file_is_for_its_owner_only_and_is_appended_to(setup: Setup) -> None:
    setup.file.touch(0o600)
    setup.file.write_text("before\n")
    setup.start()
    log.info("after")
    assert setup.lines()[0] == "before"

    setup.stop()
    setup.file.unlink()
    setup.start()
    assert stat.S_IMODE(setup.file.stat().st_mode) == 0o600


def test_level_and_format_are_obeyed(setup: Setup) -> None:
    setup.start("level: WARN", 'format: "{level}|{message}"')
    log.info("quiet")
    log.error("loud")
    assert setup.lines() == ["ERROR|loud"]


def test_second_call_takes_over(setup: Setup, tmp_path: Path) -> None:
    setup.start()
    log.info("first")
    first = setup.file
    setup.file = tmp_path / "other.log"
    setup.start()
    log.info("second")

    assert "second" in setup.lines()[-1]
    assert len(first.read_text().splitlines()) == 1


def test_lines_of_many_threads_stay_whole(setup: Setup) -> None:
    setup.start('format: "{message}"')
    threads = [
        threading.Thread(target=lambda n=n: [log.info("{}", str(n) * 200) for _ in range(50)])
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    lines = setup.lines()
    assert len(lines) == 400
    assert all(len(line) == 200 and len(set(line)) == 1 for line in lines)


def test_data_cannot_pose_as_a_record(setup: Setup) -> None:
    setup.start('format: "{level} {message}"')
    log.info("{}", "one\nERROR forged\rERROR too\x1b[2J\x9b\té")
    assert setup.lines() == ["INFO one", "    ERROR forged\\rERROR too\\x1b[2J\\x9b\té"]


def test_traceback_is_logged(setup: Setup) -> None:
    setup.start('format: "{message}"')
    try:
        raise OSError("disk gone")
    except OSError:
        log.exception("cannot write")
    lines = setup.lines()
    assert lines[0] == "cannot write"
    assert lines[-1] == "    OSError: disk gone"


def test_logging_call_with_wrong_arguments_does_not_raise(setup: Setup) -> None:
    setup.start('format: "{message}"')
    log.info("{} {}", "only one")
    log.info("lone surrogate {}", "\udcff")
    assert "{} {} (arguments do not fit" in setup.lines()[0]
    assert setup.lines()[-1] == r"lone surrogate \udcff"


def test_renamed_file_is_made_anew(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firebird_cdc.config.logging._CHECK_SECONDS", 0.0)
    setup.start('format: "{message}"')
    log.info("old")
    rotated = setup.file.rename(setup.file.with_suffix(".1"))
    log.info("new")

    assert setup.lines() == ["new"]
    assert rotated.read_text() == "old\n"


# -- where the file cannot be used


@pytest.mark.parametrize("obstacle", ["no directory", "a directory", "a pipe nobody reads"])
def test_log_goes_to_stderr_when_the_file_cannot_be_opened(
    setup: Setup, tmp_path: Path, capfd: pytest.CaptureFixture[str], obstacle: str
) -> None:
    if obstacle == "no directory":
        setup.file = tmp_path / "absent" / "x.log"
    elif obstacle == "a directory":
        setup.file.mkdir()
    else:
        os.mkfifo(setup.file)
    setup.start()
    log.error("still said")

    err = capfd.readouterr().err
    assert err.count(f"log file {setup.file}: cannot open it") == 1
    assert "logging goes to stderr" in err
    assert "still said" in err


def test_link_in_a_folder_open_to_all_is_not_followed(
    setup: Setup, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "victim"
    target.write_text("precious\n")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    setup.file = shared / "x.log"
    setup.file.symlink_to(target)
    setup.start()
    log.error("mischief")

    assert target.read_text() == "precious\n"
    assert "mischief" in capfd.readouterr().err


def test_full_disk_is_reported_once_and_lines_go_to_stderr(
    capfd: pytest.CaptureFixture[str],
) -> None:
    handler = LogFile(LoggingOptions(file=Path("/dev/full")))
    with handler.applicationbound():
        log.error("first")
        log.error("second")
    handler.close()

    err = capfd.readouterr().err
    assert err.count("No space left on device") == 1
    assert "first" in err
    assert "second" in err


def test_process_without_stderr_survives(tmp_path: Path) -> None:
    config = tmp_path / "l.yaml"
    config.write_text(f"file: {tmp_path / 'absent' / 'x.log'}\n")
    script = (
        "import os, logbook\n"
        "from pathlib import Path\n"
        "from firebird_cdc.config.logging import setup_logging\n"
        "os.close(2)\n"
        f"setup_logging(Path({str(config)!r}))\n"
        "logbook.Logger('x').error('nobody hears this')\n"
        "print('alive')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "alive\n")


# -- what is wrong with the configuration


def test_all_problems_are_told_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "l.yaml"
    path.write_text(
        "levle: info\nlevel: loud\nfile: out.log\nformat: '{msg} {message}'\nlevel: x\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_logging(path)
    text = str(caught.value)

    assert "l.yaml:1: levle: no such logging option; there are: level, file, format" in text
    assert "l.yaml:2: level is 'loud'; allowed: trace, debug, info" in text
    assert "l.yaml:3: file is 'out.log'; it must be an absolute path" in text
    assert "l.yaml:4: format is '{msg} {message}'" in text
    assert "l.yaml:5: level is set a second time, first in line 2" in text
    assert len(caught.value.problems) == 5


@pytest.mark.parametrize("text", ["{level", "{}", "{message.x}", "{message!z}", "no message"])
def test_format_that_cannot_work(tmp_path: Path, text: str) -> None:
    path = tmp_path / "l.yaml"
    path.write_text(f"format: '{text}'\n")
    with pytest.raises(ConfigError, match=r"l\.yaml:1: format is"):
        load_logging(path)


@pytest.mark.parametrize("name", ["logback.xml", "logging.yaml"])
def test_logback_file_is_answered_with_the_lines_to_write(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(LOGBACK)
    with pytest.raises(ConfigError) as caught:
        load_logging(path)
    sentence, *lines = str(caught.value).split("\n")
    assert "this is a Logback file" in sentence
    assert "LoggingConfig" in sentence

    answer = tmp_path / "answer.yaml"
    answer.write_text("\n".join(lines))
    options = load_logging(answer)
    assert options.level == "debug"
    assert options.file == Path("/tmp/debezium-connector-reddatabase.log")


def test_wrong_configuration_is_logged_and_the_defaults_apply(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "firebird_cdc.config.logging.LoggingOptions",
        lambda **given: LoggingOptions(**{"file": setup.file, **given}),
    )
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("level: loud\nfile: x\n")
    setup.start_with(wrong)
    log.info("goes on")

    lines = setup.lines()
    assert "wrong.yaml:1: level is 'loud'" in lines[0]
    assert "wrong.yaml:2: file is 'x'" in lines[1]
    assert "goes on" in lines[2]


def test_default_file_is_the_samples() -> None:
    sample = Path(__file__).parents[2] / "config/samples/firebird_cdc_logging.yaml"
    assert load_logging(sample).file == DEFAULT_LOG_FILE
    files = [LoggingOptions().file_of(role) for role in ROLES]
    assert files == [Path(f"/var/log/firebird-cdc/{role}.log") for role in ("server", "shipper")]


# -- several users and roles

_LOG_AS = """
import os, sys
from pathlib import Path
import logbook
from firebird_cdc.config.logging import load_logging, log_trouble, setup_logging
config, user, role, *texts = sys.argv[1:]
load_logging(Path(config))  # what is imported late lies where only root may read
with logbook.NullHandler().applicationbound():
    logbook.Logger("x").error("")
os.setgroups([]); os.setgid(int(user)); os.setuid(int(user))
setup_logging(Path(config), role)
for text in texts:
    logbook.Logger("x").error(text)
print(log_trouble())
"""
_SERVERS_USER = 12_345


def _log_as(user: int, config: Path, role: str, *texts: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", _LOG_AS, str(config), str(user), role, *texts]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def servers() -> Iterator[Path]:
    """A logging configuration whose files are in a folder of the server's user."""
    with tempfile.TemporaryDirectory() as place:
        home, folder, config = Path(place), Path(place) / "log", Path(place) / "logging.yaml"
        home.chmod(0o755)  # pytest's own folders are closed to others
        folder.mkdir(0o750)
        os.chown(folder, _SERVERS_USER, _SERVERS_USER)
        config.write_text(
            f'file: {folder}/{{role}}.log\nformat: "{{message}}"\nrotation.size: 20\n'
        )
        config.chmod(0o644)
        yield config


def test_log_files_written_by_root_belong_to_the_servers_user(servers: Path) -> None:
    folder = servers.parent / "log"
    for user, text in ((0, "of root, first"), (_SERVERS_USER, "of the server"), (0, "of root")):
        done = _log_as(user, servers, "shipper", text)
        assert (done.stdout, done.stderr) == ("None\n", "")
    _log_as(_SERVERS_USER, servers, "server", "of the plugin")
    assert (folder / "shipper.log.2").read_text() == "of root, first\n"
    assert (folder / "shipper.log.1").read_text() == "of the server\n"
    assert (folder / "shipper.log").read_text() == "of root\n"
    assert (folder / "server.log").read_text() == "of the plugin\n"
    assert {path.stat().st_uid for path in folder.iterdir()} == {_SERVERS_USER}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("trap", ["symbolic link", "second name", "file of somebody else"])
def test_root_writes_to_no_file_that_another_user_has_led_it_to(servers: Path, trap: str) -> None:
    folder = servers.parent / "log"
    victim = servers.parent / "victim"
    victim.write_text("precious\n")
    if trap == "symbolic link":
        (folder / "shipper.log").symlink_to(victim)
    elif trap == "second name":
        os.link(victim, folder / "shipper.log")
    else:
        victim.rename(folder / "shipper.log")
        victim = folder / "shipper.log"
        os.chown(victim, _SERVERS_USER + 1, _SERVERS_USER + 1)
    done = _log_as(0, servers, "shipper", "mischief")
    assert victim.read_text() == "precious\n"
    assert "mischief" in done.stderr
    assert "cannot open it" in done.stdout


# -- where nobody reads standard error

_UNHEARD = """
import os, sys
from pathlib import Path
import logbook
from firebird_cdc.config import log_output
from firebird_cdc.config.logging import log_trouble, setup_logging
config, syslog, how = sys.argv[1:]
log_output.SYSLOG = syslog
os.close(2)
if how == "null":
    os.open(os.devnull, os.O_WRONLY)
setup_logging(Path(config))
log = logbook.Logger("x")
log.error("an error")
log.warning("a warning")
log.info("an information")
print(log_trouble())
"""


@pytest.mark.parametrize("how", ["closed", "null"])
@pytest.mark.parametrize("has_syslog", [True, False])
def test_without_stderr_warnings_go_to_syslog_and_the_rest_is_counted(
    tmp_path: Path, has_syslog: bool, how: str
) -> None:
    config, missing = tmp_path / "l.yaml", tmp_path / "absent" / "x.log"
    config.write_text(f'file: {missing}\nformat: "{{message}}"\n')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as syslog:
        if has_syslog:
            syslog.bind(str(tmp_path / "syslog"))
        syslog.settimeout(0)
        done = subprocess.run(
            [sys.executable, "-P", "-c", _UNHEARD, str(config), str(tmp_path / "syslog"), how],
            capture_output=True,
            text=True,
            check=True,
        )
        heard = []
        with contextlib.suppress(BlockingIOError):
            while True:
                heard.append(syslog.recv(4096).decode())
    missed = 1 if has_syslog else 4  # with the sentence on the file
    assert done.stdout == (
        f"log file {missing}: cannot open it: No such file or directory;"
        f" {missed} log lines were lost\n"
    )
    if has_syslog:
        told, error, warning = heard
        assert re.fullmatch(rf"<28>firebird-cdc\[\d+\]: firebird-cdc: log file {missing}.*", told)
        assert re.fullmatch(r"<27>firebird-cdc\[\d+\]: an error", error)
        assert re.fullmatch(r"<28>firebird-cdc\[\d+\]: a warning", warning)
