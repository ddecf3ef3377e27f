"""Handling by the plugin of the version that an engine tells."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from test_c_writer import compile_program


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("engine-version")
    return compile_program(directory, "engine_version.c", "engine_version.c")


@pytest.mark.parametrize(
    ("text", "version", "savepoints", "is_served"),
    [
        ("LI-V4.0.0.2496 Firebird 4.0", "4.0.0", "rootless", False),
        ("LI-T4.0.0.2079 Firebird 4.0 Beta 2", "4.0.0", "rootless", False),
        ("LI-V4.0.1.2692 Firebird 4.0", "4.0.1", "rootless", True),
        ("LI-V4.0.7.3271 Firebird 4.0", "4.0.7", "root", True),
        ("LI-V4.0.10.1 Firebird 4.0", "4.0.10", "root", True),
        ("LI-V5.0.0.1306 Firebird 5.0", "5.0.0", "rootless", True),
        ("LI-V5.0.4.1812 Firebird 5.0", "5.0.4", "root", True),
        ("LI-V14.0.0.1", "14.0.0", "root", True),
        ("4.0", "4.0.0", "rootless", False),
        ("nothing", "0.0.0", "root", True),
    ],
)
def test_a_version_is_served_or_named(
    program: Path, text: str, version: str, savepoints: str, is_served: bool
) -> None:
    done = subprocess.run([program, text], check=True, capture_output=True, text=True)
    found, root, told = done.stdout.strip().split(" ", 2)
    assert (found, root) == (version, savepoints)
    if is_served:
        assert told == "served"
    else:
        assert told.startswith("Firebird 4.0.0 marks")
        assert told.endswith("upgrade the server to Firebird 4.0.1 or later")
