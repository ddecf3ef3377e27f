"""What a journal folder remembers by itself of what was shipped: ``.firebird-cdc/shipped/``."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

from firebird_cdc.journal.lock import STATE_DIRECTORY

_FOLDER = "shipped"
_IDENTITY = "folder"


def folder_identity(directory: Path) -> str:
    """The uuid of the journal folder DIRECTORY, which moves with it; made if it has none."""
    folder = directory / STATE_DIRECTORY / _FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / _IDENTITY
    with suppress(FileNotFoundError, ValueError):
        return str(UUID(path.read_text("ascii").strip()))
    identity = str(uuid4())
    draft = path.with_suffix(".new")
    draft.write_text(f"{identity}\n", "ascii")
    draft.chmod(0o600)
    draft.rename(path)
    return identity
