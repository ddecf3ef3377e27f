"""What the shipper does with very many small files at a time (journal_files.c)."""

from ctypes import Array, c_char
from mmap import mmap

START: int
FETCH_BUFFERED: int
"""Address of a fetchNext of rows in memory (native/event_json.h)."""

def read_envelopes(
    folder: str, names: list[str], /
) -> list[tuple[int, int, bytes, str] | None]: ...
def read_start(path: str, /) -> bytes: ...
def remove_files(folder: str, names: list[str], /) -> None: ...
def sync_file_system(fd: int, /) -> None: ...
def split_transaction(
    content: bytes, at: int, uuid: bytes, number: int, size: int, events: int, /
) -> list[tuple[int, int, int, int]] | None: ...
def row_json(plan: bytes, content: bytes, start: int, end: int, /) -> bytes | None: ...
def fill_template(
    template: bytes, uuid: bytes, texts: tuple[bytes, ...], numbers: tuple[int, ...], /
) -> bytes: ...
def write_rows(
    cursor: tuple[int, int, int],
    row: Array[c_char],
    next: Array[c_char],
    plan: tuple[bytes, bytes, bytes, bytes, bytes, int],
    position: int,
    most_rows: int,
    most_bytes: int,
    keys: list[bytes | None],
    values: list[bytes | None],
    /,
) -> tuple[int, int, int]: ...
def await_word(page: mmap, offset: int, seen: int, timeout_ms: int, /) -> None: ...
def wake_word(page: mmap, offset: int, /) -> None: ...
