"""Runs a share of the tests with the lowest and the highest versions that pyproject.toml allows.

For confluent-kafka, duckdb, pyarrow and pyspark, and for the broker of the tests. Each end is an
environment in .cache/bounds/, in front of .venv, from which all else comes; it is made anew when
the bounds change, and the highest also when a later release is out. Ends with 1 if tests fail at
one end; the other one is tried too.

    .venv/bin/python -P scripts/bounds.py [lowest|highest]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

from packaging.requirements import Requirement

from firebird_cdc.demo.kafka import VERSION_VARIABLE

ROOT = Path(__file__).resolve().parents[1]
BOUNDED = ("confluent-kafka", "duckdb", "pyarrow", "pyspark")
KAFKA = {"lowest": "3.3.2", "highest": "4.4.0"}
"""Versions of the broker: the first line that runs without ZooKeeper, and the latest."""
# What calls them most: audits without Spark, rows as columns, object stores, Parquet, data sources,
# topics read by Spark; delivery with and without transactions, and Avro.
SHARE = (
    "tests/spark/test_audit.py",
    "tests/spark/test_fast_columns.py",
    "tests/spark/test_state.py::test_parquet_holds_the_columns_with_their_types",
    "tests/spark/test_storage.py",
    "tests/spark/test_compact.py::test_parquet_holds_all_changes",
    "tests/spark/test_datasource.py::test_change_has_all_its_columns",
    "tests/spark/test_datasource.py::test_filters_avoid_reading_excluded_journals",
    "tests/spark/test_streaming.py::test_stream_goes_on_from_its_checkpoint_with_each_journal_once",
    "tests/spark/test_audit_kafka.py::test_audit_of_reshaped_messages_finds_the_lost_event_alone",
    "tests/kafka/test_ship_delivery.py::test_events_arrive_in_order_and_as_the_journals_say",
    "tests/kafka/test_ship_exactly_once.py",
    "tests/kafka/test_ship_topics.py",
    "tests/kafka/test_ship_avro.py",
)


def requirements() -> list[Requirement]:
    """Return what pyproject.toml says of the bounded packages, of one by its extras too."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    extras = project["optional-dependencies"].values()
    texts = [*project["dependencies"], *(text for extra in extras for text in extra)]
    return [found for found in map(Requirement, texts) if found.name in BOUNDED]


def wanted(end: str) -> list[str]:
    """Return what pip is asked for at END, ``lowest`` or ``highest``."""
    texts = []
    for requirement in requirements():
        if end == "lowest":
            (low,) = (s.version for s in requirement.specifier if s.operator == ">=")
            extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
            texts.append(f"{requirement.name}{extras}=={low}")
        else:
            texts.append(str(requirement))
    return texts


def environment(end: str) -> Path:
    """Make the environment of END, or bring it up to date; return its interpreter."""
    folder = ROOT / ".cache" / "bounds" / end
    made_from = folder / "made-from.txt"
    texts = wanted(end)
    asked = "\n".join([sys.version, *texts])
    python = folder / "bin" / "python"
    behind = Path(sysconfig.get_path("purelib", vars={"base": str(folder)})) / "zz_behind.pth"
    if not made_from.exists() or made_from.read_text() != asked:
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, symlinks=True)
    elif end == "lowest":
        return python
    # pip of .venv, which sees nothing of .venv while it works: it would take all for installed.
    behind.unlink(missing_ok=True)
    install = [sys.executable, "-P", "-m", "pip", "--python", str(python), "install", "-q"]
    subprocess.run([*install, "--upgrade", *texts], check=True)
    behind.write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    made_from.write_text(asked)
    return python


def run_share(end: str) -> bool:
    """Run the share of the tests at END; return whether all passed."""
    python = environment(end)
    told = (
        "from importlib.metadata import version; import sys;"
        f"print('{end}:', *(f'{{name}} {{version(name)}}' for name in {BOUNDED}),"
        f"'Kafka {KAFKA[end]}', flush=True)"
    )
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "SPARK_HOME")}
    variables[VERSION_VARIABLE] = KAFKA[end]
    subprocess.run([str(python), "-P", "-c", told], check=True, cwd=ROOT)
    tests = [str(python), "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *SHARE]
    return subprocess.run(tests, cwd=ROOT, env=variables, check=False).returncode == 0


def main() -> int:
    """Return the exit code."""
    ends = sys.argv[1:] or ["lowest", "highest"]
    if not {*ends} <= {"lowest", "highest"}:
        sys.exit("usage: bounds.py [lowest|highest]")
    failed = [end for end in ends if not run_share(end)]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
