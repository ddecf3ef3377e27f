"""Rows of one table from three places, in one form, so that their contents can be compared.

The form is what `replay state` writes: a row is a JSON object by column name; numerics are
strings with all their digits, temporal values ISO texts, CHAR has no trailing blanks
(``firebird_cdc.journal.types.canonical``). The demo comes to it in its own way from the database
(``from_database``) and from the topic's messages (``from_message``): a comparison that went
through the product's code on both sides could not find that code wrong.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from firebird_cdc.errors import SetupError

Row = dict[str, Any]
Rows = dict[str, Row]
"""Rows of a table by the JSON text of their key columns in key order."""

_DAY_0 = date(1970, 1, 1)
_MICROSECOND_0 = datetime(1970, 1, 1)


@dataclass(frozen=True)
class TableShape:
    """Key of a table and its columns of type CHAR, as the engine's own catalogue has them.
    ``is_filled``: it had rows before its publication, which are in no journal."""

    name: str
    key: tuple[str, ...]
    padded: tuple[str, ...]
    is_filled: bool = False


@dataclass
class Fold:
    """Rows that a history adds up to; ``faults``: steps that don't fit the rows before them.
    ``read``: keys of those that a snapshot read, and nobody has changed since."""

    rows: Rows = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)


def key_text(values: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the text by which a row is known."""
    return json.dumps([values[name] for name in names], ensure_ascii=False)


def from_database(value: object) -> object:
    """Return a value of firebird-driver in the common form."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime | time):
        return _short_fraction(value.isoformat())
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


def from_message(schema: Mapping[str, Any], value: Any) -> object:
    """Return a value of a message in the common form; ``schema``: its field's, from the message.

    Raises SetupError for a type that the demo's tables don't have.
    """
    if value is None:
        return None
    name = schema.get("name")
    if name is None:
        return value
    if name == "org.apache.kafka.connect.data.Decimal":
        unscaled = int.from_bytes(base64.b64decode(value), "big", signed=True)
        scale = int(schema["parameters"]["scale"])
        sign = "-" if unscaled < 0 else ""
        digits = str(abs(unscaled)).rjust(scale + 1, "0")
        return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else sign + digits
    if name == "io.debezium.time.Date":
        return (_DAY_0 + timedelta(days=value)).isoformat()
    moments = {"io.debezium.time.MicroTime": True, "io.debezium.time.MicroTimestamp": False}
    if name in moments:
        moment = _MICROSECOND_0 + timedelta(microseconds=value)
        return _short_fraction((moment.time() if moments[name] else moment).isoformat())
    raise SetupError(f"the demo can't read {name}, which it finds in a message's schema")


def _short_fraction(text: str) -> str:
    """Cut the zeros at the end of a fraction of a second."""
    return text.rstrip("0") if "." in text else text


def image(envelope: Mapping[str, Any], side: str) -> Row | None:
    """Return the row ``before`` or ``after`` (SIDE) of a message with schema and payload."""
    values = envelope["payload"][side]
    if values is None:
        return None
    part = next(part for part in envelope["schema"]["fields"] if part["field"] == side)
    return {one["field"]: from_message(one, values[one["field"]]) for one in part["fields"]}


def _unpadded(shape: TableShape, row: Row | None) -> Row | None:
    """Return a row with its CHAR values as they compare: without the blanks at their ends."""
    if row is None:
        return None
    return {
        name: value.rstrip(" ") if name in shape.padded and value else value
        for name, value in row.items()
    }


def fold(shape: TableShape, envelopes: Iterable[Mapping[str, Any]]) -> Fold:
    """Add the messages of one table up, in their order, without mercy for what doesn't fit."""
    result = Fold()
    rows = result.rows
    for envelope in envelopes:
        op = envelope["payload"]["op"]
        before = _unpadded(shape, image(envelope, "before"))
        after = _unpadded(shape, image(envelope, "after"))
        source = envelope["payload"]["source"]
        place = f"{shape.name}, transaction {source.get('txId')}"
        images = {"c": (True, False), "r": (True, False), "d": (False, True)}
        if (before is None, after is None) != images.get(op, (False, False)):
            result.faults.append(f"{place}: {op} comes with the wrong images")
            continue
        if before is not None:
            key = key_text(before, shape.key)
            if rows.pop(key, None) != before:
                result.faults.append(f"{place}: {op} of a row that was another before: {before}")
            result.read.discard(key)
        if after is not None:
            key = key_text(after, shape.key)
            if key in rows:
                result.faults.append(f"{place}: {op} makes a row that is there: {key}")
            rows[key] = after
            if op == "r":
                result.read.add(key)
    return result


def read_replay(output: Path, shape: TableShape) -> Rows:
    """Return the rows of one table that `replay state` wrote to OUTPUT, as JSON lines."""
    summary = json.loads((output / "summary.json").read_text(encoding="utf-8"))
    rows: Rows = {}
    for table in summary["tables"]:
        if table["table"] != shape.name or table["folder"] is None:
            continue
        for part in sorted((output / table["folder"]).glob("part-*")):
            for line in part.read_text(encoding="utf-8").split("\n"):
                if line:
                    row = json.loads(line)
                    rows[key_text(row, shape.key)] = row
    return rows
