"""What a journal folder remembers by itself of what was shipped: ``.firebird-cdc/shipped/``."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

from firebird_cdc.journal.lock import STATE_DIRECTORY

_FOLDER = "shipped"
_IDENTITY = "folder"


def read_folder_identity(directory: Path) -> str | None:
    """The uuid of the journal folder DIRECTORY, None if nothing was ever shipped from it."""
    path = directory / STATE_DIRECTORY / _FOLDER / _IDENTITY
    with suppress(FileNotFoundError, ValueError):
        return str(UUID(path.read_text("ascii").strip()))
    return None


def folder_identity(directory: Path) -> str:
    """The uuid of the journal folder DIRECTORY, which moves with it; made if it has none."""
    known = read_folder_identity(directory)
    if known is not None:
        return known
    path = directory / STATE_DIRECTORY / _FOLDER / _IDENTITY
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    identity = str(uuid4())
    draft = path.with_suffix(".new")
    draft.write_text(f"{identity}\n", "ascii")
    draft.chmod(0o600)
    draft.rename(path)
    return identity
