"""Tables of the file of SQLite's in which a plan keeps what it knows, and their values."""

from __future__ import annotations

import struct

PLACE = struct.Struct(">IQQ")
"""A `RepairPoint` as bytes that sort as places do."""

NOWHERE = PLACE.pack(0, 0, 0)
"""Before all places."""

TABLES = """
CREATE TABLE event (
    id INTEGER PRIMARY KEY, database TEXT, epoch INT, sequence INT, pos INT, place BLOB, file TEXT,
    origin INT, has_key INT, is_ddl INT, status TEXT, why TEXT,
    UNIQUE (database, epoch, sequence, pos));
CREATE INDEX event_status ON event (status, place);
CREATE INDEX event_origin ON event (origin, pos);
CREATE TABLE origin (
    id INTEGER PRIMARY KEY, database TEXT, epoch INT, sequence INT, uuid BLOB, number INT,
    commit_us INT, folder TEXT, name TEXT, UNIQUE (database, epoch, sequence));
CREATE INDEX origin_uuid ON origin (uuid);
CREATE TABLE row_key (
    hash BLOB PRIMARY KEY, last BLOB, present BLOB, folder TEXT, name TEXT, pos INT,
    checked BLOB, in_kafka BLOB);
CREATE TABLE event_key (
    hash BLOB, event INT, sent INT, PRIMARY KEY (hash, event)) WITHOUT ROWID;
CREATE INDEX event_key_event ON event_key (event);
"""

# What became of an event. OPEN: not decided yet; UNSHIPPED: it never was missing; PRESENT: it is
# not any more.
OPEN, FAILED, ORIGINAL, STATE, EARLIER, WAITING, UNSHIPPED, PRESENT = (
    "open", "failed", "original", "state", "earlier", "waiting", "unshipped", "present",
)  # fmt: skip
