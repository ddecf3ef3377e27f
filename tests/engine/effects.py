"""Tells what the engine made of rows by itself from what the plugin lost.

tests/faults/lost_undo.py shows on an engine with nothing captured that it keeps changes that it
undid and takes back committed ones, where several connections work at the same rows;
tests/faults/foreign_blobs.py that after a kill it gives rows the blobs of others. Here a trigger
tells which statements stand, and which blobs they saw and left: what it writes is undone with its
statement, and nobody else touches it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from capture import UNREADABLE, Journal, Row, Rows, after, before, fold, image
from hidden_rows import WITHOUT_BLOBS, Reader, all_rows

EFFECTS = (
    "CREATE TABLE EFFECTS (ID INTEGER NOT NULL, WAS BIGINT, BECAME BIGINT,"
    " OLD_NOTE VARCHAR(32), NEW_NOTE VARCHAR(32))",
    "CREATE TRIGGER ITEM_EFFECTS FOR ITEM AFTER INSERT OR UPDATE OR DELETE AS"
    " DECLARE OLD_NOTE VARCHAR(32); DECLARE NEW_NOTE VARCHAR(32); BEGIN"
    " BEGIN OLD_NOTE = HEX_ENCODE(CRYPT_HASH(OLD.NOTE USING MD5));"
    f" WHEN ANY DO OLD_NOTE = '{UNREADABLE}'; END"
    " BEGIN NEW_NOTE = HEX_ENCODE(CRYPT_HASH(NEW.NOTE USING MD5));"
    f" WHEN ANY DO NEW_NOTE = '{UNREADABLE}'; END"
    " INSERT INTO EFFECTS"
    " VALUES (COALESCE(NEW.ID, OLD.ID), OLD.N, NEW.N, :OLD_NOTE, :NEW_NOTE); END",
)
BLOB = "NOTE"


class Effects:
    """Effects of the statements that stand on the rows of ITEM, each of which is given by its N."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        steps = {}
        self._left_with: dict[tuple[int, int], set[str | None]] = {}
        for row in rows:
            key, was, became = row["ID"], row.get("WAS"), row.get("BECAME")
            notes = row.get("OLD_NOTE"), row.get("NEW_NOTE")
            steps.setdefault((key, was, became), set()).add(notes)
            if became is not None:
                self._left_with.setdefault((key, became), set()).add(notes[1])
        # The others tell no move.
        self._steps = {each: notes for each, notes in steps.items() if each[1] != each[2]}
        self._left = {(key, was) for key, was, _ in self._steps}
        self._made = {(key, became) for key, _, became in self._steps}

    def made(self, key: int, value: int) -> bool:
        """Tell whether a statement that stands gave the row this value."""
        return (key, value) in self._made

    def left(self, key: int, value: int) -> bool:
        """Tell whether a statement that stands changed or deleted the row with this value."""
        return (key, value) in self._left

    def led(self, key: int, was: int | None, became: int | None) -> bool:
        """Tell whether a statement that stands made the one of the other; None: it inserted, or
        deleted it."""
        return (key, was, became) in self._steps

    def fault_of_blobs(self, old: Row | None, new: Row | None) -> str:
        """Return the fault of the blobs of a change of ITEM in a journal; "" if there is none.

        They have to be those that the statement saw and left. One that had another blob before it
        than the row was given proves that the engine took that for another row's: what was read
        then, once by the trigger and once by the plugin, proves nothing.
        """
        row = old or new or {}
        step = row["ID"], old and old["N"], new and new["N"]
        seen = self._steps.get(step)
        told = _digest(old), _digest(new)
        if seen is None or told in seen:
            return ""
        given = self._left_with.get((row["ID"], step[1])) if step[1] is not None else None
        if given is not None and not any(was in given for was, _ in seen):
            return ""
        return f"blobs {told} of {old} and {new}, of which the trigger saw {seen}"


def _digest(row: Row | None) -> str | None:
    note = None if row is None else row[BLOB]
    return note if note in (None, UNREADABLE) else hashlib.md5(note.encode()).hexdigest().upper()


@dataclass
class OwnDoings:
    """Counts of the rows' changes that the engine made or undid by itself."""

    kept_undone: int = 0  # changes of rows that the engine kept though it undid their statements
    taken_back: int = 0  # committed changes of rows that the engine undid


class Follower:
    """Have rows of ITEM, as journals tell them, follow what the engine made of them by itself."""

    def __init__(self, doings: OwnDoings) -> None:
        self.keys: set[int] = set()  # of the rows with which it did something
        self._doings = doings
        self._kept: set[tuple[int, int | None]] = set()  # should have been undone

    def follow(
        self, rows: Rows, key: int, found: frozenset[tuple[str, Any]] | None, effects: Effects
    ) -> None:
        """Have a row as the engine has it where ROWS say otherwise, if the statements that stand
        agree with the journals and not with the engine.

        Either it took back the last one. Or it kept what it undid: the effects knows whence our row
        came, and of nothing that was done to it since, or that led to what is there now.
        """
        ours = [row for row, count in rows.items() if count > 0 and dict(row)["ID"] == key]
        if len(ours) > 1 or found in ours or not (ours or found):
            return
        value = dict(found)["N"] if found else None
        our_values = [dict(row)["N"] for row in ours]
        if any(effects.left(key, each) for each in our_values):
            return
        if any(effects.led(key, value, each) for each in our_values or [None]):
            self._doings.taken_back += 1
        elif (value is None or not effects.made(key, value)) and all(
            effects.made(key, each) or (key, each) in self._kept for each in our_values
        ):
            self._doings.kept_undone += 1
            self._kept.add((key, value))
        else:
            return
        self.keys.add(key)
        for row in ours:
            rows[row] -= 1
        if found is not None:
            rows[found] += 1

    def follow_all(self, rows: Rows, found: Rows, effects: Effects) -> None:
        """Have ROWS follow the engine where the table has now FOUND."""
        theirs = {dict(row)["ID"]: row for row in found}
        for key in {dict(row)["ID"] for row, count in rows.items() if count > 0} | set(theirs):
            self.follow(rows, key, theirs.get(key), effects)


def surviving_rows(attachment: Reader, database: Path) -> dict[str, Rows]:
    """Return the rows of the tables of random work and of EFFECTS after a kill, for
    `assert_adds_up`."""
    return {
        name: Counter(
            map(image, all_rows(attachment, database, name, WITHOUT_BLOBS.get(name, "T.*"))[0])
        )
        for name in ("ITEM", "LOG_", "EFFECTS")
    }


def assert_adds_up(
    journals: Iterable[Journal],
    tables: Mapping[str, Rows],
    *,
    killed: bool = False,
    doings: OwnDoings | None = None,
) -> set[int]:
    """Assert that the journals add up to what TABLES hold, but for what the engine did by itself.

    EFFECTS and ITEM are among the tables; KILLED: an engine was, and ITEM is without blobs.
    Return the keys of ITEM with whose rows the engine did something; DOINGS counts that.
    """
    follower, effects = Follower(doings or OwnDoings()), Effects(map(dict, tables["EFFECTS"]))
    theirs = [
        replace(journal, changes=[each for each in journal.rows if each.table.name in tables])
        for journal in journals
    ]
    for journal in theirs:
        for change in journal.rows:
            if change.table.name == "ITEM":
                fault = effects.fault_of_blobs(before(change), after(change))
                assert not fault, f"{journal.path.name}: {fault}"
    folded = fold(
        theirs,
        lambda rows, key, old: follower.follow(rows, key, old, effects),
        leave_out=(BLOB,) if killed else (),
    )
    follower.follow_all(folded.setdefault("ITEM", Counter()), tables["ITEM"], effects)
    for name, held in tables.items():
        told = +folded.get(name, Counter())
        assert told == held, (
            f"{name}: only in the journals {told - held}, only in the table {held - told}"
        )
    return follower.keys
