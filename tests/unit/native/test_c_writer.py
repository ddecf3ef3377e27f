"""The plugin's C code outside an engine: the bytes that it writes, and its checksum."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import google_crc32c
import pytest

import firebird_cdc
from firebird_cdc.journal.format import (
    Column,
    DdlChange,
    OwnJournalWriter,
    Storage,
    Table,
    own_reader,
    table_body,
)
from firebird_cdc.journal.format.shared import FileHeader
from firebird_cdc.journal.format.writer import pack_catalogue

HERE = Path(__file__).parent
NATIVE = Path(firebird_cdc.__file__).parent / "native"
_FIRST = UUID(bytes=b"\1" + bytes(15))


def compile_program(directory: Path, source: str, *parts: str, lacks: bool = False) -> Path:
    """Compile SOURCE of this folder with parts of the plugin; sanitizers watch it run. LACKS: what
    these call of others is not there."""
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
    if lacks:
        flags += ["-no-pie", "-Wl,--unresolved-symbols=ignore-all"]
    sources = [HERE / source, *(NATIVE / part for part in parts)]
    subprocess.run(["gcc", *flags, "-o", program, *sources], check=True)
    return program


def _column(name: str, storage: Storage, sql_type: int, length: int, **more: int) -> Column:
    fields = {"sub_type": 0, "scale": 0, "charset_id": 0, "char_length": 0, "precision": 0}
    return Column(
        name=name,
        storage=storage,
        sql_type=sql_type,
        length=length,
        **{**fields, "nullable": True, "identity": False, "key_position": 0, **more},
    )


_COLUMNS = (
    _column("ID", Storage.BIGINT, 580, 8, nullable=False, key_position=1),
    _column("NAME", Storage.TEXT, 448, 80, charset_id=4, char_length=20),
    _column("PRICE", Storage.INTEGER, 496, 4, sub_type=1, scale=-2, precision=9),
)
_AS_SHOWN = {"char_length": 0, "precision": 0, "nullable": True, "key_position": 0}
_OWN = UUID("00112233-4455-6677-8899-aabbccddeeff")
_STARTED_US = 1_790_000_000_000_000
_LAST_TICKET = 0x1_1234_5678


def _written_in_python(path: Path, *, is_late: bool) -> bytes:
    header = FileHeader(
        _OWN,
        UUID("a0a1a2a3-b4b5-46c7-88d9-eaebecedeeef"),
        UUID("d1d2d3d4-e5e6-4708-890a-0b0c0d0e0f10"),
        0x1_2345_6789,
        UUID("b0b10000-0000-0000-0000-000000000000"),
        _STARTED_US,
        4711,
        True,
        "/data/shop.fdb",
    )
    shown = [replace(each, **_AS_SHOWN) for each in _COLUMNS]
    with OwnJournalWriter(path, header, user="SYSDBA", block_bytes=128 * 1024) as writer:
        goods = writer.table(
            "GOODS", shown if is_late else _COLUMNS, 0 if is_late else 1, resolved=not is_late
        )
        writer.insert(goods, (1, "Кружка", 1250))
        writer.update(goods, (1, "Кружка", 1250), (1, "Кружка", 990))
        writer.insert(goods, (2, None, -1))
        writer.delete(goods, (2, None, -1))
        writer.seal(_STARTED_US + 1000, _LAST_TICKET)
    content = path.read_bytes()
    if not is_late:
        return content
    with own_reader(path, _OWN) as reader:
        assert reader.seal is not None
        bodies = {1: table_body(Table(1, "GOODS", 1, _COLUMNS))}
        return content + pack_catalogue(_OWN, reader.seal, bodies)


@pytest.mark.parametrize("is_late", [False, True])
def test_the_c_writer_writes_what_the_one_in_python_does_byte_by_byte(
    is_late: bool, tmp_path: Path
) -> None:
    program = compile_program(
        tmp_path,
        "write_vector.c",
        "rows.c",
        "blobs.c",
        "cancels.c",
        "journal.c",
        "crc32c.c",
        "threads.c",
    )
    written = tmp_path / "journal"
    subprocess.run([program, written, *(["catalogue"] if is_late else [])], check=True)
    assert written.read_bytes() == _written_in_python(tmp_path / "expected", is_late=is_late)
    with own_reader(written, _OWN) as reader:
        assert reader.seal is not None
        assert (reader.seal.end - 104) % 4096 == 0  # it may be broken, and nothing else with it
        assert reader.seal.floor == _LAST_TICKET
        assert (reader.unstamped_catalogue() is not None) == is_late


def test_a_damaged_catalogue_is_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    content = bytearray(_written_in_python(path, is_late=True))
    content[-1] ^= 1
    path.write_bytes(content)
    with own_reader(path, _OWN) as reader:
        assert reader.seal is not None
        assert reader.unstamped_catalogue() is None


def test_records_cut_back_leave_no_trace(tmp_path: Path) -> None:
    program = compile_program(tmp_path, "cut_back.c", "journal.c", "crc32c.c")
    written = tmp_path / "journal"
    subprocess.run([program, written], check=True)
    with own_reader(written, _FIRST) as reader:
        changes = list(reader.changes())
        assert reader.seal is not None
        assert reader.seal.event_count == len(changes)
    assert all(isinstance(change, DdlChange) for change in changes)
    texts = [str(change.sql).strip() for change in changes if isinstance(change, DdlChange)]
    assert texts == [f"kept {number}" for number in range(21)]
    assert [change.pos for change in changes if isinstance(change, DdlChange)] == [*range(1, 22)]


@pytest.mark.parametrize("case", ["more", "undone", "earlier", "flushed"])
def test_a_seal_is_written_again_with_all_that_is_left(case: str, tmp_path: Path) -> None:
    program = compile_program(tmp_path, "seal_twice.c", "journal.c", "crc32c.c")
    written = tmp_path / "journal"
    subprocess.run([program, written, case], check=True)
    with own_reader(written, _FIRST) as reader:
        changes = list(reader.changes())
        assert reader.seal is not None
        assert (reader.seal.event_count, reader.seal.floor) == (len(changes), 7)
        assert (reader.seal.end - 104) % 4096 == 0
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


def test_checksum_in_c_is_crc_32c(checksum: Path) -> None:
    # Source: RFC 3720, B.4, and the catalogue of parametrised CRC algorithms.
    assert _crc(checksum, b"123456789", 9) == "e3069283"
    assert _crc(checksum, bytes(32), 32) == "8a9136aa"
    assert _crc(checksum, b"\xff" * 32, 32) == "62a8ab43"
    assert _crc(checksum, b"", 1) == "00000000"


@pytest.mark.parametrize("piece", [1, 3, 7, 8, 9, 64, 1000])
def test_a_checksum_taken_in_pieces(checksum: Path, piece: int) -> None:
    data = bytes(index * 7 % 251 for index in range(5000))
    assert _crc(checksum, data, piece) == f"{google_crc32c.value(data):08x}"
