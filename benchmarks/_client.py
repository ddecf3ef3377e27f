"""The C client of the benchmarks, which tests of upgrades use, too."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path


def compile_client(program: Path) -> Path:
    """Compile engine_client.c to PROGRAM, and return that."""
    compiler = (sysconfig.get_config_var("CC") or "gcc").split()
    source = Path(__file__).with_name("engine_client.c")
    command = [*compiler, "-O2", "-Wall", "-Werror", str(source), "-o", str(program)]
    subprocess.run([*command, "-pthread", "-ldl"], check=True)
    return program
