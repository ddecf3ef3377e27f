"""Functions that Spark's tasks run get the surroundings that they need."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from firebird_cdc.journal.replay.source.arrow import (
    Columns,
    arrow_schema,
    in_tasks,
    rare_collections,
    record_batch,
    schema_text,
)

pytestmark = pytest.mark.spark

COLUMNS: Columns = (("threshold", "bigint"), ("frozen", "bigint"), ("left", "bigint"))


def test_collections_are_rare_in_tasks_and_as_before_behind_them(spark: SparkSession) -> None:
    def read(_: object) -> Iterator[Any]:
        facts = (gc.get_threshold()[0], gc.get_freeze_count(), len(gc.get_objects()))
        yield record_batch([facts], arrow_schema(COLUMNS))

    for _ in range(2):
        (row,) = in_tasks(spark, [None], read, schema_text(COLUMNS)).collect()
    assert row["threshold"] > 10 * gc.get_threshold()[0]
    assert row["frozen"] > 10 * row["left"]  # which is what Spark goes through after each task
    before = gc.get_threshold()
    with pytest.raises(KeyError), rare_collections():
        assert gc.get_threshold() != before
        raise KeyError
    assert gc.get_threshold() == before
