"""Versions that nobody uses go, those of which that can't be told stay."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from firebird_cdc.packaging.versions import prune
from firebird_cdc.tree import Tree

_WITHOUT = "-sys_ptrace,-sys_admin,-perfmon"  # what containers lack
_PRUNE = """
import sys
from pathlib import Path
from firebird_cdc.packaging.versions import prune
from firebird_cdc.tree import Tree
print(*prune(Tree(Path(sys.argv[1]), "2.0.0")))
"""


@pytest.fixture
def prefix() -> Iterator[Path]:
    """Return a folder that others may enter, which those of tests are not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_root_of_a_container_removes_no_version_that_others_run(prefix: Path) -> None:
    old = prefix / "versions/1.0.0"
    (old / "bin").mkdir(parents=True)
    (prefix / "versions/2.0.0").mkdir()
    (prefix / "current").symlink_to("versions/2.0.0")
    program = shutil.copy("/usr/bin/sleep", old / "bin")
    server = subprocess.Popen([program, "300"], user=65534, group=65534, extra_groups=[])
    try:
        few = ["setpriv", f"--bounding-set={_WITHOUT}", f"--inh-caps={_WITHOUT}"]
        command = [*few, sys.executable, "-P", "-c", _PRUNE, str(prefix)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.startswith(f"{old} stays: who uses it can't be seen; run this as root")
        assert "SYS_PTRACE" in done.stdout
        [said] = prune(Tree(prefix, "2.0.0"))
        assert said == f"{old} stays while processes run with it ({server.pid})"
    finally:
        server.kill()
        server.wait()
    assert prune(Tree(prefix, "2.0.0")) == [f"removed {old}"]
