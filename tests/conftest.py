"""Fixtures that the test folders share: processes, the engine, one broker, one registry."""

from __future__ import annotations

import os
import re
import signal
import sys
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from soaked import leave_to_soak
from xdist.scheduler import LoadFileScheduling

from firebird_cdc.demo.paths import cache_directory
from firebird_cdc.demo.processes import Stack

if TYPE_CHECKING:
    from xdist.remote import Producer

    from firebird_cdc.demo.engine import EmbeddedRoot
    from firebird_cdc.demo.kafka import KafkaBroker
    from firebird_cdc.demo.registry import SchemaRegistry

# Images for containers set this. Without it a process of ours starts with half of the CPU time: it
# compiles nothing that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A test's Java machine lives for seconds: compiling well costs half of the CPU time of a run.
SHORT_LIVED_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Nor is it worth the time to generate code for a few rows, or to plan anew between stages; `make
# soak` runs these tests with Spark's defaults.
_FEW_ROWS = (
    "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
    " -Dspark.sql.adaptive.enabled=false"
)
_SPARK_OPTIONS = f"{SHORT_LIVED_JAVA} {_FEW_ROWS}"
os.environ.setdefault("SPARK_SUBMIT_OPTS", _SPARK_OPTIONS)

# The same examples in every run; a failure prints how to have its example again.
settings.register_profile(
    "proof",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("proof")

# Who runs in the background of a script has SIGINT ignored, and so have the programs it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_REAL_PARTS = ("engine", "server", "kafka", "registry", "spark")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[None]:  # pytest's hook wrappers are generators that return the result
    """A test that needs a real part fails where the part is missing: a skip would prove nothing."""
    report = yield
    real = [name for name in _REAL_PARTS if item.get_closest_marker(name)]
    if real and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"needs the real {', '.join(real)} and was skipped: {report.longrepr}"
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have each Spark that a test starts load its classes in half of the time."""
    if item.get_closest_marker("spark") and os.environ["SPARK_SUBMIT_OPTS"] == _SPARK_OPTIONS:
        from spark_classes import options_for_sharing

        sharing = options_for_sharing(_SPARK_OPTIONS)
        os.environ["SPARK_SUBMIT_OPTS"] = f"{_SPARK_OPTIONS} {sharing}"


_LONGEST = (
    "spark/test_audit_kafka.py",
    "spark/test_audit_database.py",
    "connect/test_consuming_page.py",
    "server/test_documented_commands.py",
    "faults/test_failing_syncs.py",
    "faults/test_kills.py",
    "demo/test_demo.py",
    "spark/test_audit.py",
    "spark/test_commands.py",
    "packaging/test_install.py",
)
"""Modules that begin first, so that no process has one of them to itself at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the longest modules first; pytest-randomly has shuffled them before."""
    leave_to_soak(items)
    root = Path(__file__).parent
    rank = {root / name: number for number, name in enumerate(_LONGEST)}
    assert all(path.exists() for path in rank), "a module of _LONGEST has another name"
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


class _Scheduling(LoadFileScheduling):
    """Distributes modules, but gives those that share something for minutes to one process."""

    def _split_scope(self, nodeid: str) -> str:
        module: str = super()._split_scope(nodeid)
        return _shared_part(Path(__file__).parents[1] / module) or module


@cache
def _shared_part(module: Path) -> str:
    """Return what MODULE and others share: the worker and the readers of Kafka Connect, the Debian
    system of the server, which has one user at a time, or Spark, which is several times faster once
    it is warm; empty: nothing."""
    if module.parent.name in ("connect", "server"):
        return module.parent.name
    uses_spark = "_spark_session|spark: SparkSession"
    if module.parent.name == "spark" and re.search(uses_spark, module.read_text("utf-8")):
        return "spark"
    return ""


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Scheduling:
    """Distribute tests as above."""
    return _Scheduling(config, log)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """Processes of one test; none of them, nor what they start, is left after it."""
    with Stack(tmp_path / "stack") as running:
        yield running


@pytest.fixture
def engine_root(tmp_path: Path) -> EmbeddedRoot:
    """A root of the embedded engine of the test's own, without our plugin."""
    from firebird_cdc.demo.engine import EmbeddedRoot

    return EmbeddedRoot(tmp_path / "engine")


@pytest.fixture
def journal_directory(tmp_path: Path) -> Path:
    """An empty folder for journals."""
    directory = tmp_path / "journals"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def archive_directory(tmp_path: Path) -> Path:
    """An empty folder for shipped journals."""
    directory = tmp_path / "archive"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """The jars of Apache Kafka, fetched on first use."""
    from firebird_cdc.demo.kafka import archive_classes, fetch_kafka

    jars = fetch_kafka(cache_directory())
    archive_classes(jars)
    return jars


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, kafka_jars: Path) -> Iterator[KafkaBroker]:
    """One broker for all tests that leave it running; separate them by ``topic_prefix``."""
    from firebird_cdc.demo.kafka import KafkaBroker

    with KafkaBroker(tmp_path_factory.mktemp("kafka"), kafka_jars) as running:
        yield running


@pytest.fixture
def own_broker(tmp_path: Path, kafka_jars: Path) -> Iterator[KafkaBroker]:
    """A broker of the test's own, to stop, kill and start again."""
    from firebird_cdc.demo.kafka import KafkaBroker

    with KafkaBroker(tmp_path / "kafka", kafka_jars) as running:
        yield running


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistry]:
    """One schema registry for all tests that leave it running; separate them by topics."""
    from firebird_cdc.demo.registry import SchemaRegistry, fetch_registry

    program = fetch_registry(cache_directory())
    with SchemaRegistry(tmp_path_factory.mktemp("registry"), program) as running:
        yield running


@pytest.fixture
def own_registry(tmp_path: Path) -> Iterator[SchemaRegistry]:
    """A registry of the test's own, not started yet."""
    from firebird_cdc.demo.registry import SchemaRegistry, fetch_registry

    own = SchemaRegistry(tmp_path / "registry", fetch_registry(cache_directory()))
    yield own
    own.stop()


@pytest.fixture
def topic_prefix() -> str:
    """A prefix that no other test's topics have."""
    return f"t{uuid.uuid4().hex[:12]}"
