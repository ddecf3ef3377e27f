"""The file ``join`` in the state folder: what a process has to know to write journals without a
bridge of its own, where another one confirms.

Under Classic each connection is a process, and to start Python in it takes a third of a second. So
a bridge says here what it works with, and the plugin of a new process joins it (native/join.h,
whose struct is read through cffi). Nobody relies on the file: whoever finds anything doubtful about
it starts a bridge. It counts as long as the process lives that published it, or a shipper does
after that; that one removes it when no server process has been there for some seconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from firebird_cdc.config import Reading
from firebird_cdc.config.reading import stamp_of
from firebird_cdc.journal.folder.durable import boot_uuid, replace_file
from firebird_cdc.journal.folder.locks import (
    BRIDGE_LOCK,
    OWNERS,
    STATE_DIRECTORY,
    is_held,
    try_lock,
)
from firebird_cdc.journal.format import crc32c
from firebird_cdc.native._shared_page import ffi
from firebird_cdc.tree import installed_version

_NAME: Final = "join"
_MAGIC = b"FBCDCJOI"
_VERSION = ffi.integer_const("FBC_JOIN_VERSION")
_RECORD_BYTES = ffi.integer_const("FBC_JOIN_RECORD")
_STRUCT = "struct fbc_join"
_BYTES = ffi.sizeof(_STRUCT)
_CRC_AT = ffi.offsetof(_STRUCT, "crc")


class Identity(NamedTuple):
    """Identity of a file, which tells it from the one before it at its path; zeros: unknown."""

    device: int
    inode: int
    mtime_ns: int
    size: int

    @classmethod
    def of(cls, path: Path) -> Identity:
        """Return that of the file at PATH. Raises OSError."""
        status = path.stat()
        return cls(status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


class Terms(NamedTuple):
    """Options by which a process writes journals, with the file that they were read from.
    ``most_bytes``: connector.journal.max.bytes, 0: no limit."""

    reading: Reading
    is_synced: bool
    is_gap_mode: bool
    transactions: int
    memory_bytes: int
    most_bytes: int


class OpenFolder(Protocol):
    """Parts of the journal folder of a bridge that are needed here."""

    state: Path
    owner: UUID
    journal_fd: int
    tickets_fd: int


def join_path(state: Path) -> Path:
    """Return where the file is, in the state folder STATE."""
    return state / _NAME


def encode(folder: OpenFolder, plugin: Identity, terms: Terms) -> bytes | None:
    """Return the content of the file for processes that join the bridge with FOLDER; None: none
    may, as the options were changed since, or their file can't be told from another. Raises
    OSError."""
    reading = terms.reading
    config = Identity.of(Path(reading.path))
    # The identity of PLUGIN and the process number come before it, in servers/<uuid>.
    record = json.dumps(["", 0, installed_version(), False, reading.as_json()]).removeprefix(
        '["", 0'
    )
    if stamp_of(Path(reading.path)) != reading.stamp or len(record) >= _RECORD_BYTES:
        return None
    place, tickets = os.fstat(folder.journal_fd), os.fstat(folder.tickets_fd)
    join: Any = ffi.new(
        f"{_STRUCT} *",
        {
            "magic": _MAGIC,
            "version": _VERSION,
            "size": _BYTES,
            "boot": boot_uuid().bytes,
            "publisher": folder.owner.bytes,
            "plugin": plugin,
            "config": config,
            "folder_device": place.st_dev,
            "folder_inode": place.st_ino,
            "tickets_device": tickets.st_dev,
            "tickets_inode": tickets.st_ino,
            "memory_bytes": terms.memory_bytes,
            "most_bytes": terms.most_bytes,
            "transactions": terms.transactions,
            "is_synced": terms.is_synced,
            "is_gap_mode": terms.is_gap_mode,
            "record": record.encode("ascii"),
        },
    )
    content = bytes(ffi.buffer(join))
    join.crc = crc32c.value(content[:_CRC_AT])
    return bytes(ffi.buffer(join))


def decode(content: bytes) -> Any | None:
    """Return the struct in the content of the file; None if it is not whole, or of another
    version."""
    if len(content) != _BYTES:
        return None
    join: Any = ffi.from_buffer(f"{_STRUCT} *", content)
    is_whole = bytes(ffi.buffer(join.magic)) == _MAGIC and join.version == _VERSION
    return join if is_whole and join.crc == crc32c.value(content[:_CRC_AT]) else None


def publisher(state: Path) -> UUID | None:
    """Return whose file is in STATE; None if there is none, or it is damaged."""
    try:
        join = decode(join_path(state).read_bytes())
    except OSError:
        return None
    return None if join is None else UUID(bytes=bytes(ffi.buffer(join.publisher)))


def is_joinable(state: Path) -> bool:
    """Tell whether a process lives that has published the file in STATE."""
    owner = publisher(state)
    return owner is not None and is_held(state / OWNERS / str(owner))


class JoinFile:
    """The file as one bridge sees it. Belongs to one thread."""

    def __init__(self, folder: OpenFolder, plugin: Identity, terms: Terms) -> None:
        """PLUGIN: zeros where no process is to join."""
        self._folder = folder
        self._plugin = plugin
        self._terms = terms

    def publish(self) -> None:
        """Have processes that begin now join this one. Raises OSError."""
        if not self._plugin.inode:
            return
        content = encode(self._folder, self._plugin, self._terms)
        if content is not None:
            own = self._folder.state / f"{_NAME}-{self._folder.owner}"  # others may be at it, too
            replace_file(own, content, is_synced=False)
            own.chmod(own.stat().st_mode & 0o640)  # the plugin heeds none that others may write
            own.replace(join_path(self._folder.state))

    def look(self) -> None:
        """Publish it again if the process that did has ended, or it is damaged. Raises OSError."""
        if not self._plugin.inode:
            return
        if not is_joinable(self._folder.state):
            self.publish()


def withdraw(directory: Path) -> bool:
    """Remove the file from the journal folder DIRECTORY if nobody confirms any more for whoever
    joins, but the shipper that asks; return False if a server process is there. Raises OSError."""
    state = directory / STATE_DIRECTORY
    # Whoever joins has this lock before it reads the file.
    try:
        lock = try_lock(state / BRIDGE_LOCK, fcntl.LOCK_EX)
    except FileNotFoundError:
        return True
    if lock is None:
        return False
    try:
        if not is_joinable(state):
            with contextlib.suppress(FileNotFoundError):
                join_path(state).unlink()
    finally:
        os.close(lock)
    return True
