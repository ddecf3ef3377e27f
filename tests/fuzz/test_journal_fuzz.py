"""A seeded share of the fuzzer's inputs, and readers with faults that it has to find."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import campaign
import journal_fuzz
import pytest

from firebird_cdc.journal.format.blocks import BlockChain

_PROGRAM = Path(__file__).with_name("journal_fuzz.py")


def test_no_input_makes_the_reader_crash_hang_exhaust_memory_or_misread() -> None:
    arguments = ["--inputs", "20000", "--seed", "4", "--jobs", "2"]
    done = subprocess.run(
        [sys.executable, "-P", str(_PROGRAM), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20000 inputs in" in done.stdout


def _complaints(folder: Path, inputs: int) -> list[str]:
    found: list[str] = []
    given = journal_fuzz.JournalFuzz(folder)
    tally = campaign.fuzz(given, 4, range(inputs), folder, found.append)
    assert tally["WRONG"] == len(found)
    for text in found:
        assert Path(text.partition(",")[0]).is_file()
    return found


def test_reader_without_checksums_is_found_to_misread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def payload(self: Any, block: Any) -> bytes:
        return bytes(self.read(block.payload_length, block.offset + journal_fuzz.BLOCK_HEADER))

    monkeypatch.setattr(BlockChain, "payload", payload)
    found = _complaints(tmp_path, 3000)
    assert sum("Lie" in text and ", damaged from" in text for text in found) > 20


def test_a_reader_that_loops_is_found_to_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_envelope(path: Path) -> None:
        while path.exists():
            pass

    monkeypatch.setattr(journal_fuzz, "read_envelope", read_envelope)
    monkeypatch.setattr(campaign, "CPU_S", 0.05)
    found = _complaints(tmp_path, 20)
    assert any("Hang" in text and "in read_envelope" in text for text in found)
