"""One real Spark for the tests of this folder that need it, and a session without Spark."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import object_store
import pytest

from firebird_cdc.demo.paths import cache_directory
from firebird_cdc.journal.replay.cluster.session import spark_session
from firebird_cdc.journal.replay.local.session import LocalSession, local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_itemcollected(item: pytest.Item) -> None:
    """Bear with pyspark, which leaves it to the garbage collector to close its sockets."""
    if item.get_closest_marker("spark"):
        item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


def _collect_sockets() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def _spark_session() -> Iterator[SparkSession]:
    from firebird_cdc.demo.kafka import fetch_spark_kafka

    jars = [str(jar) for jar in fetch_spark_kafka(cache_directory())]
    with object_store.credentials(), spark_session("tests", "local[2]", jars=jars) as session:
        session.conf.set("spark.sql.shuffle.partitions", "2")
        yield session
        session.stop()
    del session
    _collect_sockets()


@pytest.fixture
def here() -> Iterator[LocalSession]:
    """A session without Spark; what it gives is what Spark gives, see `test_engines`."""
    with local_session() as session:
        yield session


@pytest.fixture
def spark(_spark_session: SparkSession) -> Iterator[SparkSession]:
    """A session as the commands start it, with our data sources."""
    yield _spark_session
    _collect_sockets()
