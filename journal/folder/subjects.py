"""Subjects of troubles: what an operator is told about, by name, whoever notices it."""

from __future__ import annotations

from typing import Literal

TroubleKind = Literal["waiting", "halted", "warning"]
"""``waiting``: goes on by itself. ``halted``: needs somebody. ``warning``: works for now."""


KAFKA = "kafka"
"""Subject of the trouble that Kafka can't be used."""


DISK = "disk"
"""Subject of the trouble that the journal folder has little space left."""


FOLDER = "folder"
"""Subject of the trouble that the journal folder is gone or can't be listed."""


DISPOSAL = "disposal"
"""Subject of the trouble that delivered journals can't be archived or deleted."""


NOTES = "notes"
"""Subject of the trouble that it can't be noted what is left out, before the rest is sent."""


CONFIRMER = "confirmer"
"""Subject of the trouble that the process which confirms journals hangs."""


OF_ALL_DATABASES = (KAFKA, DISK, FOLDER, DISPOSAL, NOTES, CONFIRMER)
"""Subjects that concern each database of a folder."""


UNDECIDED = "undecided"
"""Subject of the trouble that journals can't be decided or published."""


OPTIONS = "options"
"""Subject of the trouble that processes of a folder have different options or versions."""


UNREADABLE = "unreadable"
"""Subject of the trouble that journals can't be read and wait for somebody."""


UNWRITABLE = "unwritable"
"""Subject of the trouble that what the folder remembers of the databases can't be written."""


LOST = "lost:"
"""The beginning of the subject of a trouble about lost journals; the database's path follows."""


MISSING = "missing:"
"""The beginning of the subject of a trouble about journals that were not in the folder when it was
their turn; the database's path follows."""


LEFT_OUT = "left-out:"
"""The beginning of the subject of a trouble about messages that are no events and were left out;
the database's path follows."""


INCOMPLETE = "incomplete:"
"""The beginning of the subject of a trouble about snapshots that ended without some rows; the
database's path follows."""


UNREAD = "unread-blobs:"
"""The beginning of the subject of a trouble about events with placeholders for BLOBs that could not
be read; the database's path follows."""


UNDECODED = "undecoded:"
"""The beginning of the subject of a trouble about events with placeholders for values whose bytes
make none; the database's path follows."""


REMEMBERED = (LOST, MISSING, LEFT_OUT, INCOMPLETE, UNREAD, UNDECODED)
"""Beginnings of the subjects of troubles that the journal folder remembers until somebody
acknowledges them."""


TASK = "task:"
"""The beginning of the subject of a trouble about a periodic task that fails; its name follows."""


LEDGER = "ledger:"
"""The beginning of the subject of a trouble about a ledger that can't be followed; the database's
path follows."""


CANARY = "canary:"
"""The beginning of the subject of a trouble about a canary; its table's identifier follows."""


NAMELESS = "nameless:"
"""The beginning of the subject of a trouble about a table without names; database and table follow,
with a colon between them."""


FAILURES = "failures:"
"""The beginning of the subject of a trouble about refused or lost transactions."""


SNAPSHOT = "snapshot:"
"""The beginning of the subject of a trouble about a snapshot that does not go on; the database's
path follows."""


OVERRIDE = "override:"
"""The beginning of the subject of a trouble about a SELECT of the options, for the rows of a table,
that no snapshot uses; its table's identifier follows."""
