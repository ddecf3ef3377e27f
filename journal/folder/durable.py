"""Names and files that outlast a power cut, and a sign that there may have been one. Needs nothing
that is compiled."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from firebird_cdc import access

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> bytes:
    """Return what is another text after each start of the machine. Raises OSError."""
    return _BOOT_ID.read_bytes().strip()


def boot_uuid() -> UUID:
    """Return the same as a uuid. Raises OSError."""
    return UUID(boot_id().decode("ascii"))


def sync_directory(directory: Path) -> None:
    """Make names added to or removed from DIRECTORY durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_name(path: Path) -> None:
    """Make the name of PATH durable, whoever has made it: that process may have died before."""
    path = path.resolve()
    if path.stat().st_dev != path.parent.stat().st_dev:
        return  # the file system's own beginning
    with suppress(PermissionError):  # made by an administrator, and not just now
        sync_directory(path.parent)


def make_folder(folder: Path) -> None:
    """Make FOLDER, for those that the one above it is for, and all that is missing above it, with
    durable names. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not access.make_directory(folder) and not folder.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
    sync_names(folder)


def sync_names(folder: Path) -> None:
    """Make durable the name of FOLDER and of all above it that belong to this user, up to the file
    system's own beginning: another process may have just made them. Raises OSError."""
    sync_name(folder)
    folder = folder.resolve()
    here = folder.stat().st_dev
    for each in folder.parents:
        made = each.stat()
        if (made.st_dev, made.st_uid) != (here, os.geteuid()):
            break  # an administrator's, and not made just now
        sync_name(each)


def replace_file(
    path: Path, content: bytes, *, owner_of: Path | None = None, is_synced: bool = True
) -> None:
    """Have CONTENT in PATH, as a whole or not at all; its name is durable once the folder is.

    owner_of: give it to whom that belongs, see `give_to_owner_of`. is_synced: else a power cut may
    take the content.
    """
    temporary = path.with_name(f".{path.name}.part")
    temporary.unlink(missing_ok=True)  # another file: of that one a sync may have failed
    descriptor = access.open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        if is_synced:
            file.flush()
            os.fsync(file.fileno())
    if owner_of is not None:
        give_to_owner_of(owner_of, temporary)
    temporary.replace(path)


def give_to_owner_of(state: Path, path: Path) -> None:
    """Give PATH to the user of the server, who owns STATE, if root has made it. Raises OSError."""
    if os.geteuid() == 0:
        owner = state.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
