"""The plugin's own reading of the configuration, for when no Python runs to do it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_c_writer import compile_program

from firebird_cdc.errors import SetupError
from firebird_cdc.packaging.server.conf import ConfFile

STRICT = "report_errors = true\ndisable_on_error = false\n"


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("policy"), "propagates_errors.c", "policy.c")


def _ask(program: Path, *arguments: object) -> str:
    argv = [program, *map(str, arguments)]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def _as_the_engine_does(conf: Path, database: str) -> bool:
    """Tell whether errors are heeded, as Config::get reads the entries that our other parser
    finds."""
    flags = {"report_errors": "false", "disable_on_error": "true"}
    for section in ConfFile.read(conf).expanded():
        if section.name.casefold() != "database" or section.value not in ("", database):
            continue
        if section.entries is None:
            continue
        for entry in section.entries:
            if entry.name in flags and entry.value in {
                "true",
                "yes",
                "on",
                "1",
                "false",
                "no",
                "off",
                "0",
            }:
                flags[entry.name] = entry.value
        if section.value:
            break
    truths = ("true", "yes", "on", "1")
    return flags["report_errors"] in truths and flags["disable_on_error"] not in truths


@pytest.mark.parametrize(
    ("text", "propagates"),
    [
        ("", False),
        (f"database {{\n{STRICT}}}\n", True),
        (f"database\n# note\n\n{{\n{STRICT}}}\n", True),
        (f"DataBase\r\n{{\r\n{STRICT.upper().replace('TRUE', 'yes')}}}\r\n", False),
        ("database {\nreport_errors=on # yes\n\tdisable_on_error =\t0 }\n", True),
        ("database {\nREPORT_ERRORS = on\ndisable_on_error = 0\n}\n", False),
        ("database {\nreport_errors = on\nDisable_On_Error = 0\n}\n", False),
        ('database {\nreport_errors = "1"\ndisable_on_error = "off"\n}\n', True),
        ("database {\nreport_errors = True\ndisable_on_error = false\n}\n", False),
        ("database {\nreport_errors = true\ndisable_on_error = nope\n}\n", False),
        (
            "database {\nreport_errors = true\n}\ndatabase = /other {\ndisable_on_error=0\n}\n",
            False,
        ),
        ("database {\nreport_errors = true\n}\ndatabase = DB {\ndisable_on_error=0\n}\n", True),
        (f"database = DB {{\n{STRICT}}}\ndatabase {{\nreport_errors = false\n}}\n", True),
        (f"database {{\n{STRICT}}}\ndatabase = DB {{\nreport_errors = no\n}}\n", False),
        (f"database = DB\n{{\n{STRICT}}}\n", True),
        (f"databases = DB {{\n{STRICT}}}\n", False),
        (f"database = DB2 {{\n{STRICT}}}\n", False),
        (f"other {{\n{STRICT}}}\ndatabase {{\nplugin = x\n}}\n", False),
        (f"database {{\nsync_replica = x {{\nusername = y\n}}\n{STRICT}}}\n", True),
        (f"database {{\nsync_replica = x {{\n{STRICT}}}\n}}\n", False),
        (f"database {{ # note\n{STRICT}}}\n", False),
        (f"# database {{\ndatabase {{\n#{STRICT}}}\n", False),
        (f"include more.conf\ndatabase {{\n{STRICT}}}\n", False),
        (f"include mo*.conf\ndatabase {{\n{STRICT}}}\n", False),
        (f"database {{\n{STRICT}include later*.conf\n}}\n", True),
        ("database {\nreport_errors = true\nreport_errors =\ndisable_on_error = false\n}\n", True),
    ],
)
def test_the_engines_flags_are_read_as_the_engine_reads_them(
    program: Path, text: str, propagates: bool, tmp_path: Path
) -> None:
    database = tmp_path / "db.fdb"
    database.touch()
    conf = tmp_path / "replication.conf"
    conf.write_text(text.replace("DB", str(database)))
    # A section of this database is the last that counts.
    (tmp_path / "more.conf").write_text(f"database = {database} {{\nreport_errors = 0\n}}\n")
    answer = _ask(program, conf, tmp_path, database)
    assert answer == str(int(propagates))
    assert propagates == _as_the_engine_does(conf, str(database))


def test_a_database_is_the_same_by_any_path_and_macro(program: Path, tmp_path: Path) -> None:
    database = tmp_path / "db.fdb"
    database.touch()
    (tmp_path / "link.fdb").symlink_to(database)
    conf = tmp_path / "replication.conf"
    for path in (f"{tmp_path}/x/../link.fdb", "$(root)/db.fdb", "$(this)/db.fdb"):
        (tmp_path / "x").mkdir(exist_ok=True)
        conf.write_text(f"database = {path} {{\n{STRICT}}}\n")
        assert _ask(program, conf, tmp_path, database) == "1", path


def test_what_cannot_be_read_says_nothing(program: Path, tmp_path: Path) -> None:
    conf = tmp_path / "replication.conf"
    assert _ask(program, conf, tmp_path, tmp_path / "db.fdb") == "-1"
    conf.mkdir()
    assert _ask(program, conf, tmp_path, tmp_path / "db.fdb") == "-1"
    conf.rmdir()
    (tmp_path / "more.conf").mkdir()
    conf.write_text(f"include more.conf\ndatabase {{\n{STRICT}}}\n")
    assert _ask(program, conf, tmp_path, tmp_path / "db.fdb") == "-1"


@pytest.mark.parametrize(
    "text",
    [
        "a = 1\n}\n",
        "{\n}\n",
        f"database {{\n{STRICT}",
        f'x = "y\ndatabase {{\n{STRICT}}}\n',
        f'x = "y" z\ndatabase {{\n{STRICT}}}\n',
    ],
)
def test_a_file_that_the_engine_refuses_does_no_harm(
    program: Path, text: str, tmp_path: Path
) -> None:
    conf = tmp_path / "replication.conf"
    conf.write_text(text)
    with pytest.raises(SetupError):
        ConfFile.read(conf)
    assert _ask(program, conf, tmp_path, tmp_path / "db.fdb") in ("0", "1")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("key: gap\n", "[gap]"),
        ("other: x\nkey:   'gap' # note\n", "[gap]"),
        ('key : "/a b"\r\n', "[/a b]"),
        ("key: /a#b # c\n", "[/a#b]"),
        ("keys: gap\n#key: gap\n  key: gap\n", ""),
        ("key:gap\n", ""),
        ("key:\n", "[]"),
        ("key: one\nkey: two\n", "[two]"),
        ("", ""),
        ("key: " + 100 * "x" + "\n", ""),
    ],
)
def test_a_flat_line_of_the_connectors_file_is_found(
    program: Path, text: str, value: str, tmp_path: Path
) -> None:
    (tmp_path / "connector.yaml").write_text(text)
    assert _ask(program, tmp_path / "connector.yaml", "key") == value


@pytest.fixture(scope="session")
def tell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("tell"), "tell.c", "policy.c")


def test_a_server_that_loses_each_transaction_fills_no_log(tell: Path) -> None:
    told = subprocess.run([tell, "1000"], check=True, capture_output=True, text=True).stderr
    assert len(told.splitlines()) == 8


@pytest.mark.parametrize("is_read", [True, False])
def test_a_pipe_for_errors_that_is_not_read_does_the_server_no_harm(
    tell: Path, is_read: bool
) -> None:
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(4096))
        os.set_blocking(writer, True)
        if not is_read:
            os.close(reader)
        subprocess.run([tell, "1"], check=True, stderr=writer, timeout=60)
    finally:
        os.close(writer)
        if is_read:
            os.close(reader)


_SYSTEM_LOG = """
import socket, subprocess, sys

log, other = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
log.bind("/dev/log")
other.connect("/dev/log")
log.setblocking(False)
other.setblocking(False)
lines = 0
try:
    while other.send(b"of another program"):
        lines += 1
except BlockingIOError:
    subprocess.run([sys.argv[1], "1"], check=True, timeout=60)  # nobody reads
for _ in range(lines):
    log.recv(100)
subprocess.run([sys.argv[1], "1"], check=True)
print(log.recv(100).decode())
"""


def test_the_system_log_is_told_unless_it_has_stopped_reading(tell: Path) -> None:
    own_dev = 'mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec "$@"'
    argv = ["unshare", "--mount", "sh", "-c", own_dev, "sh", sys.executable, "-c", _SYSTEM_LOG]
    done = subprocess.run([*argv, tell], check=True, stdout=subprocess.PIPE, text=True)
    assert re.match(r"<27>firebird-cdc\[\d+\]: transaction 0 can't be recorded", done.stdout)
