"""Decides whether a server process replaces the shipper that it finds at work, and ends that.

A shipper outlives a quick restart of its server, with the options and the code of before. It is
replaced if it is an embedded one, and this process read its configuration later and read another
one, or is a newer version. The one that follows reads the file after us and has our code, so it is
not replaced again. One of a server that lives and has another file is left alone, as two servers
would replace each other's in turn; ``journal.folder.processes`` tells of them.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from firebird_cdc.config.reading import Reading
from firebird_cdc.journal.folder.locks import SHIPPER_LOCK, STATE_DIRECTORY
from firebird_cdc.journal.folder.processes import CaptureProcess, is_newer, read_servers
from firebird_cdc.tree import installed_version


def why_replace(directory: Path, shipper: CaptureProcess, ours: Reading) -> str:
    """Return why SHIPPER, at work on DIRECTORY, is to be replaced by one with what we have read;
    empty if it is not."""
    theirs, is_older = shipper.reading, is_newer(installed_version(), shipper.version)
    if not shipper.embedded or (theirs.read_ns >= ours.read_ns and not is_older):
        return ""
    if theirs.place != ours.place:
        servers = read_servers(directory)
        of_theirs = [each for each in servers.records if each.reading.place == theirs.place]
        # Of one that says nothing nobody knows whether it is the shipper's server.
        if of_theirs or servers.unknown:
            return ""
    if is_older:
        return f"it is version {shipper.version}, and this server's is {installed_version()}"
    if theirs.place != ours.place:
        return f"it has the options of {theirs.path}"
    if theirs.digest != ours.digest or theirs.stamp != ours.stamp:
        return f"{ours.path} was changed after it had read that"
    return ""


def end_earlier_version(directory: Path, process: int) -> bool:
    """Have an embedded shipper of a version that hears no requests end in order, by SIGTERM.

    Return False, and do nothing, if PROCESS is none: it has to hold the shipper's lock of DIRECTORY
    and to be started as an embedded one, as far as this process can see. Raises OSError.
    """
    try:
        fd = os.pidfd_open(process)
    except ProcessLookupError:
        return False  # it is just ending, or is in another container
    try:
        # Looked at once it can't become another process any more that has the same number.
        if not _is_embedded_shipper(process, directory / STATE_DIRECTORY / SHIPPER_LOCK):
            return False
        signal.pidfd_send_signal(fd, signal.SIGTERM)
    finally:
        os.close(fd)
    return True


def _is_embedded_shipper(process: int, lock: Path) -> bool:
    proc = Path(f"/proc/{process}")
    arguments = (proc / "cmdline").read_bytes().split(b"\0")
    if b"ship" not in arguments or b"--embedded" not in arguments:
        return False
    wanted = lock.stat()
    for entry in (proc / "fd").iterdir():
        try:
            if os.path.samestat(entry.stat(), wanted):
                return True
        except FileNotFoundError:
            continue  # closed meanwhile
    return False
