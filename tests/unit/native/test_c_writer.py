"""The plugin's C code outside an engine: the bytes that it writes, and its checksum."""

from __future__ import annotations

import subprocess
from pathlib import Path

import google_crc32c
import pytest

import firebird_cdc
from firebird_cdc.journal.format import DdlChange, JournalReader

HERE = Path(__file__).parent
VECTORS = HERE.parent.parent / "vectors"
NATIVE = Path(firebird_cdc.__file__).parent / "native"


def compile_program(directory: Path, source: str, *parts: str) -> Path:
    """Compile SOURCE of this folder with parts of the plugin; sanitizers watch it run."""
    program = directory / Path(source).stem
    flags = [
        "-std=gnu11",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsanitize=undefined,address",
    ]
    flags += ["-fno-sanitize-recover=all", f"-I{NATIVE}"]
    sources = [HERE / source, *(NATIVE / part for part in parts)]
    subprocess.run(["gcc", *flags, "-o", program, *sources], check=True)
    return program


def vector_bytes(name: str) -> bytes:
    """Return a vector's bytes; see tests/vectors/generate.py for the form."""
    lines = [line.split() for line in (VECTORS / f"{name}.hex").read_text().splitlines()]
    content = bytearray(int(lines[-1][0], 16))
    for offset, piece in (line for line in lines if len(line) == 2):
        start = int(offset, 16)
        content[start : start + len(piece) // 2] = bytes.fromhex(piece)
    return bytes(content)


@pytest.mark.parametrize(
    ("name", "arguments"), [("plugin-basic", []), ("plugin-catalogue", ["catalogue"])]
)
def test_the_c_writer_writes_the_vector_byte_by_byte(
    name: str, arguments: list[str], tmp_path: Path
) -> None:
    program = compile_program(
        tmp_path, "write_vector.c", "rows.c", "journal.c", "crc32c.c", "threads.c"
    )
    written = tmp_path / "journal"
    subprocess.run([program, written, *arguments], check=True)
    assert written.read_bytes() == vector_bytes(name)


def test_a_catalogue_that_the_plugin_wrote_with_the_seal_can_be_taken_over(tmp_path: Path) -> None:
    ends = {}
    for name in ("plugin-catalogue", "plugin-basic", "broken-seal"):
        path = tmp_path / name
        path.write_bytes(vector_bytes(name))
        with JournalReader(path) as reader:
            catalogue = reader.unstamped_catalogue()
            ends[name] = catalogue and (catalogue.end, [*catalogue.bodies], catalogue.tells_of_ddl)
    assert ends == {
        "plugin-catalogue": (len(vector_bytes("plugin-catalogue")), [1], False),
        "plugin-basic": None,
        "broken-seal": None,
    }
    path = tmp_path / "damaged"
    content = bytearray(vector_bytes("plugin-catalogue"))
    content[-1] ^= 1
    path.write_bytes(content)
    with JournalReader(path) as reader:
        assert reader.unstamped_catalogue() is None


def test_records_cut_back_leave_no_trace(tmp_path: Path) -> None:
    program = compile_program(tmp_path, "cut_back.c", "journal.c", "crc32c.c")
    written = tmp_path / "journal"
    subprocess.run([program, written], check=True)
    with JournalReader(written) as reader:
        changes = list(reader.changes())
        assert reader.seal is not None
        assert reader.seal.event_count == len(changes)
    assert all(isinstance(change, DdlChange) for change in changes)
    texts = [str(change.sql).strip() for change in changes if isinstance(change, DdlChange)]
    assert texts == [f"kept {number}" for number in range(21)]
    assert [change.pos for change in changes if isinstance(change, DdlChange)] == [*range(1, 22)]


@pytest.mark.parametrize(
    ("case", "floor"),
    [("more", 0x70002), ("undone", 0x50001), ("earlier", 0x70002), ("flushed", None)],
)
def test_a_seal_has_the_floor_that_was_right_when_the_last_record_was_made(
    case: str, floor: int | None, tmp_path: Path
) -> None:
    program = compile_program(tmp_path, "seal_twice.c", "journal.c", "crc32c.c")
    written = tmp_path / "journal"
    subprocess.run([program, written, case], check=True)
    with JournalReader(written) as reader:
        changes = list(reader.changes())
        assert reader.seal is not None
        assert (reader.seal.event_count, reader.seal.floor) == (len(changes), floor)
    assert [len(str(change.sql)) for change in changes if isinstance(change, DdlChange)] == {
        "more": [10, 20, 30],
        "earlier": [10],
    }.get(case, [10, 20])


@pytest.fixture(scope="session")
def checksum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("checksum"), "checksum.c", "crc32c.c")


def _crc(program: Path, data: bytes, piece: int) -> str:
    done = subprocess.run([program, str(piece)], input=data, stdout=subprocess.PIPE, check=True)
    return done.stdout.decode().strip()


def test_the_check_value_of_crc_32c(checksum: Path) -> None:
    # Source: RFC 3720, B.4, and the catalogue of parametrised CRC algorithms.
    assert _crc(checksum, b"123456789", 9) == "e3069283"
    assert _crc(checksum, bytes(32), 32) == "8a9136aa"
    assert _crc(checksum, b"\xff" * 32, 32) == "62a8ab43"
    assert _crc(checksum, b"", 1) == "00000000"


@pytest.mark.parametrize("piece", [1, 3, 7, 8, 9, 64, 1000])
def test_a_checksum_taken_in_pieces(checksum: Path, piece: int) -> None:
    data = bytes(index * 7 % 251 for index in range(5000))
    assert _crc(checksum, data, piece) == f"{google_crc32c.value(data):08x}"
