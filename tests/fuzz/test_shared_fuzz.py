"""A seeded share of the fuzzer's inputs for shared journals, and readers with faults that it has to
find."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import campaign
import pytest
import shared_fuzz

from firebird_cdc.errors import JournalCorrupt
from firebird_cdc.journal.format import (
    Place,
    SharedJournal,
    Stamp,
    crc32c,
    pack_places,
    small_transactions,
)
from firebird_cdc.journal.format.blocks import BlockChain
from firebird_cdc.journal.format.journal_index import JournalIndex
from firebird_cdc.journal.format.layout import BEGIN, HEAD, TABLE
from firebird_cdc.journal.format.sectors import Head
from firebird_cdc.journal.format.shared import walk

_PROGRAM = Path(__file__).with_name("shared_fuzz.py")


def test_no_input_makes_the_reader_of_shared_journals_crash_hang_or_misread() -> None:
    arguments = ["--inputs", "10000", "--seed", "4", "--jobs", "2"]
    done = subprocess.run(
        [sys.executable, "-P", str(_PROGRAM), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10000 inputs in" in done.stdout


def _complaints(folder: Path, inputs: int) -> list[str]:
    found: list[str] = []
    given = shared_fuzz.SharedFuzz(folder)
    tally = campaign.fuzz(given, 4, range(inputs), folder, found.append)
    assert tally["WRONG"] == len(found)
    return found


def test_shared_reader_without_checksums_is_found_to_misread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def payload(self: Any, block: Any) -> bytes:
        return bytes(self.read(block.payload_length, block.offset + 40))

    monkeypatch.setattr(BlockChain, "payload", payload)
    found = _complaints(tmp_path, 3000)
    assert sum("Lie" in text and ", damaged from" in text for text in found) > 5


def test_reader_that_takes_all_that_is_whole_is_found_to_misread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = shared_fuzz.SharedFuzz(tmp_path)

    def all_whole(journal: SharedJournal, _: bytes) -> tuple[JournalIndex, bytes]:
        if journal.header is None:
            raise JournalCorrupt("", 0, "no header")
        source, uuid = journal._source, journal.header.uuid
        return JournalIndex("", uuid, 0, 0), pack_places(
            [
                Place(
                    found.what.header.uuid,
                    found.offset,
                    0,
                    found.what.length,
                    Stamp(0, number, 0, 0, found.what.length, 0, found.what.header.transaction),
                )
                for number, found in enumerate(walk(source.read, source.size, uuid))
                if isinstance(found.what, Head)
            ]
        )

    monkeypatch.setattr(SharedJournal, "_read_index", all_whole)
    found: list[str] = []
    campaign.fuzz(given, 4, range(200), tmp_path, found.append)
    assert sum("Lie: place" in text for text in found) > 50


def test_small_transactions_without_checksums_are_found_to_be_misread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lenient(int):
        def __eq__(self, _: object) -> bool:
            return True

        __hash__ = int.__hash__

    def extend(crc: int, content: bytes) -> Lenient:
        return Lenient(crc32c.extend(int(crc), content))

    lenient = SimpleNamespace(extend=extend, value=crc32c.value)
    monkeypatch.setattr(small_transactions, "split_transaction", None)
    monkeypatch.setattr(small_transactions, "crc32c", lenient)
    found = _complaints(tmp_path, 3000)
    assert sum("Lie: small" in text for text in found) > 5


def test_a_second_begin_under_right_checksums_is_left_to_the_reader(tmp_path: Path) -> None:
    given = shared_fuzz.SharedFuzz(tmp_path)
    forged = 0
    for number, subject in enumerate(given.subjects):
        content = bytearray(subject.content)
        for at, what in subject.written.items():
            first = at + HEAD.size + 40  # behind the header of its first block
            second = first + 8 + int.from_bytes(content[first + 4 : first + 8], "little")
            if isinstance(what, Head) and content[second : second + 2] == TABLE.to_bytes(
                2, "little"
            ):
                content[second : second + 2] = BEGIN.to_bytes(2, "little")
                shared_fuzz._mend_blocks(content, at, what.header.uuid.bytes)
                forged += 1
        path = tmp_path / f"input-{number}.log"
        path.write_bytes(content)
        given.examine(path, True, random.Random(1))  # raises Lie where the two differ
    assert forged > 20
