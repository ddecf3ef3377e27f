"""A copy of a database file beside the original: both have the same UUID."""

from __future__ import annotations

import contextlib
import shutil
import struct
from pathlib import Path

from played_server import GUID, PlayedServer
from test_closing_journals import Left

from firebird_cdc.bridge.confirm.loop import Confirmer
from firebird_cdc.clock import now_us
from firebird_cdc.journal.folder.durable import boot_uuid
from firebird_cdc.journal.folder.journal_folder import JournalFolder

_NUMBER = 500
_LIMBO, _COMMITTED = 1, 3  # in an inventory page


def test_limbo_transaction_of_a_copy_is_kept_beside_one_of_the_original_with_its_number(
    tmp_path: Path,
) -> None:
    server = PlayedServer(tmp_path)
    server.create_database()
    copy = tmp_path / "copy.fdb"
    server.set_state(_NUMBER, _LIMBO)
    shutil.copy(server.database_path, copy)
    server.set_state(_NUMBER, _COMMITTED)
    left = Left(server)
    owner = left.writer.header.owner
    server.folder.owners.mark(owner).touch()
    of_original = left.add(_NUMBER, floor=0)
    left.writer.leave()
    path = str(copy).encode()
    slot = struct.pack(
        "<QQq16s16sH", _NUMBER, copy.stat().st_ino, now_us(), GUID.bytes, boot_uuid().bytes,
        len(path),
    )  # fmt: skip
    (server.folder.slots / str(owner)).write_bytes((slot + path).ljust(512, b"\0"))
    folder = JournalFolder(server.folder.path, writes=False)
    confirmer = Confirmer(None, folder, fsync=True, pause=lambda _: False)
    with contextlib.closing(folder):
        for _ in range(5):
            confirmer.turn()
        confirmer.let_go()
        [waiting] = folder.path.glob("*.log.live")
        assert folder.undecided == 1
    assert [uuid for uuid, _ in left.found()] == [of_original]
    assert waiting != left.live
