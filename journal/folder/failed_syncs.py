"""Databases of which a sync failed since the machine started.

A small file in the journal folder tells every process, and those who look at the shipper: until
the next start what the system has of such a database in memory may not be on its disk. After a
start, what can be read is what is on disk.
"""

from __future__ import annotations

import os
from pathlib import Path

from firebird_cdc import access
from firebird_cdc.journal.folder.durable import boot_id

ENDING = ".doubt"


class Doubt:
    """The file that tells of one database."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @staticmethod
    def of(databases: Path, key: str) -> Doubt:
        """Return that of the database with this key, in the folder DATABASES."""
        return Doubt(databases / f"{key}{ENDING}")

    def note(self, database: Path) -> None:
        """Let every process know that a sync of DATABASE failed. Raises OSError."""
        access.write_file(self._path, boot_id() + b"\n" + os.fsencode(database))

    def database(self) -> str | None:
        """Return the database if a sync of it failed since the machine started."""
        try:
            boot, _, database = self._path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        return os.fsdecode(database) if boot == boot_id() else None
