"""Findings of an audit that can be repaired, as the audit has written them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.replay.source.storage import folder_at, open_folder

KIND = "missing event"
"""The findings that can be repaired."""

_COLUMNS = ("kind", "database", "epoch", "sequence", "position", "file")
_BATCH = 1000


def read_findings(url: str) -> Iterator[dict[str, Any]]:
    """Yield the findings of kind `KIND` that an audit wrote into ``findings`` in the folder URL.

    Raises ReplayError if there are none of an audit.
    """
    try:
        folder = open_folder(f"{url.rstrip('/')}/findings")
    except ReplayError as error:
        raise ReplayError(
            f"{url} is not what replay audit --output has written: {error}"
        ) from error
    names = sorted(entry.name for entry in folder.entries() if entry.name[:1] not in "._")
    for name in names:
        with folder.stream(name) as stream:
            if name.endswith(".parquet"):
                yield from _parquet(stream)
            elif name.endswith(".json"):
                yield from _json(stream, f"{url}/findings/{name}")
    if not names:
        raise ReplayError(f"{url}/findings is empty, so no audit has written all of it")


def read_ends(url: str) -> dict[str, dict[str, int]]:
    """Up to which offsets the audit in the folder URL has read topics, by topic and number of the
    partition; nothing if it doesn't say so.

    Raises ReplayError if it has not looked into Kafka at all.
    """
    try:
        facts = json.loads(folder_at(url.rstrip("/")).read("report.json"))["facts"]
        if "kafka" not in facts:
            raise ReplayError(
                f"the audit in {url} did not look into Kafka: repeat it with --against-kafka"
            )
        offsets: dict[str, dict[str, int]] = facts["kafka"]["offsets"]
    except (OSError, ValueError, KeyError):
        return {}
    return offsets


def _json(stream: Iterable[bytes], name: str) -> Iterator[dict[str, Any]]:
    for line in stream:
        try:
            finding = json.loads(line)
        except ValueError as error:
            raise ReplayError(f"{name} has a line that is no finding: {error}") from error
        if finding.get("kind") == KIND:
            yield {column: finding.get(column) for column in _COLUMNS}


def _parquet(stream: BinaryIO) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet  # type: ignore[import-untyped,import-not-found,unused-ignore]

    file = pyarrow.parquet.ParquetFile(stream)
    for batch in file.iter_batches(_BATCH, columns=list(_COLUMNS)):
        yield from (finding for finding in batch.to_pylist() if finding["kind"] == KIND)
