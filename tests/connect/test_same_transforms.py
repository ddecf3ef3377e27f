"""Built-in transforms against those of Debezium and Kafka: the same options, the same records.

Messages are sent through Java's transform, and rendered with ours; what comes out must be equal,
schemas included.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pipeline import render, renderer
from reader import ConnectReader, Described

from firebird_cdc.journal.format import Column, JournalWriter, Storage

UNWRAP = "io.debezium.transforms.ExtractNewRecordState"
ROUTE_TABLES = "io.debezium.transforms.ByLogicalTableRouter"
ROUTE = "org.apache.kafka.connect.transforms.RegexRouter"

UNWRAPPED = {
    "nothing asked for": {},
    "drop": {"delete.tombstone.handling.mode": "drop"},
    "tombstone": {"delete.tombstone.handling.mode": "tombstone", "add.fields": "op"},
    "to tombstone": {"delete.tombstone.handling.mode": "delete-to-tombstone", "add.headers": "op"},
    "rewrite": {
        "delete.tombstone.handling.mode": "rewrite",
        "add.fields": "op,table,source.ts_ms,ts_us,id,transaction.total_order,source.absent,absent",
        "add.headers": "source.db:from, op,source.txId,source.snapshotNumber,snapshot,absent",
    },
    "rewrite with tombstone": {
        "delete.tombstone.handling.mode": "Rewrite-With-Tombstone",
        "add.fields": "op:WHAT, source.pos:WHERE",
        "add.fields.prefix": "x.",
        "add.headers": "op:WHAT,total_order",
        "add.headers.prefix": "",
        "replace.null.with.default": "false",
    },
    "routed": {"route.by.field": "NAME", "delete.tombstone.handling.mode": "rewrite"},
}

ROUTED = {
    "table": {"regex": r".*\.([^.]+)", "replacement": "$1"},
    "names": {"regex": r"(?<prefix>\w+)\..*\.(?<table>\w+)", "replacement": "${prefix}-${table}"},
    "digits": {"regex": r"(\w+)\.(.*)", "replacement": "$1_$20"},
    "escaped": {"regex": r"(\w+)\.(.*)", "replacement": r"\_$1\.$2"},
    "a part only": {"regex": "CITY", "replacement": "none"},
    "the first alternative": {"regex": r"proof|proof\..*", "replacement": "other"},
    "unused group": {"regex": r"(x)?proof\.(.*)", "replacement": "a$1b.$2"},
}


TABLES_ROUTED = {
    "one topic": {"topic.regex": r"proof\..*\.CITY", "topic.replacement": "all.CITIES"},
    "all topics": {
        "topic.regex": r"proof\.(?:.*\.)?(.*)",
        "topic.replacement": "every.$1",
        "key.field.name": "origin",
        "key.field.regex": r".*_(\w+)\.fdb\..*",
        "key.field.replacement": "$1",
    },
    "keys as they are": {
        "topic.regex": r"(proof)\..*\.(CITY)",
        "topic.replacement": "$1-$2.x",
        "key.enforce.uniqueness": "false",
        "schema.name.adjustment.mode": "avro",
        "logical.table.cache.size": "4",
    },
}

_COMMIT_US = 1_772_442_848_250_000
_KEY = {"nullable": False, "key_position": 1}


def _column(name: str, storage: Storage, **changes: Any) -> Column:
    values = dict.fromkeys(("sql_type", "sub_type", "scale", "char_length", "precision"), 0)
    values |= {"length": 8, "charset_id": 4, "key_position": 0}
    return Column(
        name=name, storage=storage, **{**values, "nullable": True, "identity": False, **changes}
    )


CITY = (
    _column("ID", Storage.BIGINT, **_KEY),
    _column("NAME", Storage.TEXT),
    _column("AREA", Storage.INTEGER, scale=-2, sub_type=1, precision=9),
    _column("SINCE", Storage.TIMESTAMP),
    # DEFAULT 7 NOT NULL
    _column("RANK", Storage.INTEGER, nullable=False, default=bytes.fromhex("05150800070000004c")),
)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The life of a city: made, changed, given another key, deleted."""
    path = tmp_path_factory.mktemp("journal") / "6f2b9a54-0d1e-4c57-9a3b-2e7c41d8b0aa.log"
    writer = JournalWriter(
        path,
        uuid=UUID(path.stem),
        transaction=48213,
        database="/srv/fb/map.fdb",
        user="SYSDBA",
        started_us=_COMMIT_US,
    )
    table = writer.table("CITY", CITY)
    made = (1, "lodz", 29325, None, 7)
    changed, moved = (1, None, None, 5, 8), (2, "lodz.2", -1, 5, 8)
    writer.insert(table, made)
    writer.update(table, made, changed)
    writer.update(table, changed, moved)
    writer.delete(table, moved)
    writer.seal()
    writer.commit(1, _COMMIT_US)
    writer.stamp(90312)
    writer.close()
    return path


def _lines(kind: str, options: dict[str, str]) -> list[str]:
    given = {"type": kind, **options}
    return [
        "transforms: t",
        *(f"transforms.t.{name}: {json.dumps(value)}" for name, value in given.items()),
    ]


def _parts(record: Described) -> Described:
    return {part: record[part] for part in ("topic", "key", "value")}


def _new_headers(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in after.items() if name not in before}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *(
            pytest.param(UNWRAP, options, id=f"unwrap: {name}")
            for name, options in UNWRAPPED.items()
        ),
        *(
            pytest.param(ROUTE_TABLES, options, id=f"tables: {name}")
            for name, options in TABLES_ROUTED.items()
        ),
        *(pytest.param(ROUTE, options, id=f"route: {name}") for name, options in ROUTED.items()),
    ],
)
def test_transform_output_equals_that_of_the_java_transform(
    journal: Path,
    connect: ConnectReader,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    options: dict[str, str],
) -> None:
    monkeypatch.setattr(
        "firebird_cdc.journal.events.render.time_ns", lambda: 1_772_442_848_277_301_000
    )
    common = ["provide.transaction.metadata: true"]
    plain = render(renderer(tmp_path, common), [journal])
    ours = render(renderer(tmp_path, [*common, *_lines(kind, options)]), [journal])
    theirs = []
    for message in plain:
        read = connect.read(*message[:3], message.structs, transforms=[(kind, options)])
        if (changed := read["transformed"]) is not None:
            theirs.append((message, changed))
    assert len(plain) == 9  # BEGIN, c, u, d, its tombstone, c, d, its tombstone, END
    assert len(ours) == len(theirs) > 2
    for message, (original, changed) in zip(ours, theirs, strict=True):
        read = connect.read(*message)
        assert _parts(read) == _parts(changed)
        found = _new_headers(original.headers, read["headers"])
        assert found == _new_headers(original.structs, changed["headers"])
