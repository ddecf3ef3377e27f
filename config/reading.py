"""Notes the configuration that a process has read, and when, for other processes to compare."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from firebird_cdc.clock import now_us
from firebird_cdc.config.options import ALIASES, Kind, Status, find_option
from firebird_cdc.config.secrets import is_secret, shown_key, without_logins
from firebird_cdc.config.source import Source
from firebird_cdc.config.values import split_list

_LISTS = (Kind.LIST, Kind.PATTERNS, Kind.CHOICES)


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a configuration file.

    ``path``: of the file. ``root``: device and inode of the reader's root directory, as one path is
    another file in another container. ``digest``: of the options that differ from their defaults,
    without secrets. ``stamp``: inode, size and time of change of the file before it was read, which
    change with a secret too. ``read_ns``: when, of CLOCK_BOOTTIME, which goes on alike for all
    processes. ``read_us``: the same as time of day.
    """

    path: str
    root: str
    digest: str
    stamp: str
    read_ns: int
    read_us: int

    @property
    def place(self) -> tuple[str, str]:
        """Path and root: they distinguish the file from other servers' files, whatever it holds."""
        return self.path, self.root

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Reading:
        """Return what ``as_json`` gave. Raises TypeError, KeyError or ValueError for other data."""
        return cls(
            path=str(data["path"]),
            root=str(data["root"]),
            digest=str(data["digest"]),
            stamp=str(data["stamp"]),
            read_ns=int(data["read_ns"]),
            read_us=int(data["read_us"]),
        )


def begin_reading(path: Path) -> Reading:
    """Return what is known of the reading of PATH before it begins: all but the digest."""
    return Reading(
        str(path.absolute()),
        root_directory(),
        "",
        stamp_of(path),
        time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        now_us(),
    )


def root_directory(root: Path = Path("/")) -> str:
    """Return what tells a root directory, this process's, from that of a container or chroot.

    Raises OSError.
    """
    status = root.stat()
    return f"{status.st_dev}:{status.st_ino}"


def stamp_of(path: Path) -> str:
    """Return what changes with every change of a file; empty if it can't be looked at."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"


def digest_of(source: Source) -> str:
    """Return a digest of the options in SOURCE that differ from their defaults, without secrets.

    The same options give the same digest in any order, under any of their names, and with
    defaults written out or left out.
    """
    text = json.dumps(sorted(_effective(source)))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _effective(source: Source) -> Iterator[tuple[str, str | list[str] | None]]:
    for key, entry in source.entries.items():
        option = find_option(key)
        value: str | list[str] | None
        value = list(entry.value) if isinstance(entry.value, tuple) else entry.value
        if option is not None:
            if option.status is Status.NEVER or value == option.default:
                continue
            if key in ALIASES and option.name in source.entries:
                continue  # the real name counts
            if isinstance(value, str) and option.kind in _LISTS:
                value = list(split_list(value))
        name = key if option is None or option.is_family else option.name
        if is_secret(name):
            continue
        if isinstance(value, list):
            value = [without_logins(item) for item in value]
        elif value is not None:
            value = without_logins(value)
        yield shown_key(name), value
