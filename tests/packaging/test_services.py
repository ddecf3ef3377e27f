"""Our unit is understood by systemd, and leaves the shipper little to do harm with."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from firebird_cdc.packaging import services

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine"
)

_UNIT = services.UNIT
_SINCE_254 = r".*Unknown key(?: name)? '(?:RestartSteps|RestartMaxDelaySec)' in section .*"


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """Return the unit as it is where this program is the one to run."""
    program = Path(sys.executable).with_name("firebird-cdc")
    path = tmp_path / _UNIT
    path.write_text(services.unit_text(program))
    return path


def _systemd(*argv: str | Path, stdin: Path | None = None) -> str:
    done = subprocess.run(
        argv,
        input=None if stdin is None else stdin.read_text(),
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    # The page is in our packages, and not where the tests run.
    kept = [line for line in said.splitlines() if "man firebird-cdc-ship(1)" not in line]
    return "\n".join(line for line in kept if not re.fullmatch(_SINCE_254, line))


def test_systemd_has_nothing_to_say_about_the_unit(unit: Path) -> None:
    assert _systemd("systemd-analyze", "verify", unit) == ""


def test_the_unit_is_hardened(unit: Path) -> None:
    said = _systemd("systemd-analyze", "security", "--offline=true", unit)
    exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert exposure is not None, said
    assert float(exposure[1]) < 2.5, said


def test_user_and_folders_are_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for tool, option, file in (
        ("systemd-sysusers", [], "firebird-cdc.sysusers"),
        ("systemd-tmpfiles", ["--create"], "firebird-cdc.tmpfiles"),
    ):
        _systemd(tool, f"--root={tmp_path}", *option, "-", stdin=services.SAMPLES / file)
    user = (tmp_path / "etc/passwd").read_text()
    assert re.fullmatch(r"firebird-cdc:x:\d+:\d+:.*:/nonexistent:/usr/sbin/nologin\n", user)
    assert (tmp_path / "etc/firebird-cdc").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "var/lib/firebird-cdc").is_dir()
