"""Each program of benchmarks/ starts, runs to its end and tells its figures."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

_DECODE = """
python_rows_per_s python_rows_with_null_per_s python_rows_win1251_per_s python_updates_per_s
"""
_RENDER = """
decode_events_per_s json_events_per_s json_schema_events_per_s json_updates_events_per_s
json_schema_updates_events_per_s
"""
_SHIP = """
events_per_s cpu_us_per_event events_per_s_schema cpu_us_per_event_schema events_per_s_single_row
cpu_us_per_event_single_row events_per_s_transactional cpu_us_per_event_transactional
events_per_s_giant raw_events_per_s raw_cpu_us_per_event vs_raw_producer vs_raw_producer_schema
latency_ms_p50 latency_ms_p99 latency_ms_p50_transactional latency_ms_p99_transactional
peak_memory_mib start_cpu_s
"""
_REPLAY = """
rows_per_s_per_core vs_parquet growth_1000_files rows_per_s_parquet cpu_us_per_row peak_memory_mib
rows_left audit_rows_per_s_per_core audit_cpu_us_per_row single_rows_vs_bulk
local_seconds_20000_transactions local_peak_memory_mib
"""
_ENGINE = """
commits_vs_bare commits_vs_bare_4 commits_vs_bare_16 bulk_vs_bare commits_vs_own_replication
commits_vs_own_replication_16
bare_commits_1_per_s own_commits_1_per_s ours_commits_1_per_s ours_bulk_per_s
"""
_SNAPSHOT = """
rows_per_s_per_core cpu_us_per_row rows_per_s vs_jdbc jdbc_cpu_us_per_row peak_memory_mib
stream_latency_ms_p50 stream_latency_ms_p99 stream_latency_ms_p50_without
stream_latency_ms_p99_without incremental_rows_per_s commits_vs_without start_cpu_s
"""
_LATENCY = "_p50 _p99 delivered_p50 delivered_p99"
# May be zero: what the kernel counts in clock ticks, and memory that a server had already.
_ANY = {
    "engine": "memory_rise_mib memory_rise_mib_1 confirmed_after_s server_cpu_us_per_commit_16",
    "_latency": "rendered_p50 rendered_p99",
}
_FIGURES = {
    "decode": pytest.param("decode", _DECODE),
    "render": pytest.param("render", _RENDER),
    "ship": pytest.param("ship", _SHIP, marks=[pytest.mark.kafka, pytest.mark.engine]),
    "_latency": pytest.param("_latency", _LATENCY, marks=[pytest.mark.kafka, pytest.mark.engine]),
    "snapshot": pytest.param("snapshot", _SNAPSHOT, marks=[pytest.mark.kafka, pytest.mark.engine]),
    "replay": pytest.param("replay", _REPLAY, marks=pytest.mark.spark),
    "engine": pytest.param("engine", _ENGINE, marks=pytest.mark.server),
}


def test_every_benchmark_has_its_figures_listed_here() -> None:
    programs = {
        path.stem
        for path in BENCHMARKS.glob("*.py")
        if '\nif __name__ == "__main__":' in path.read_text("utf-8")
    }
    assert programs == {*_FIGURES}


def test_figures_that_capacity_quotes_are_told() -> None:
    page = (BENCHMARKS.parent / "docs/capacity.md").read_text("utf-8")
    quoted = set(re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+)+)`", page))
    assert len(quoted) > 4
    source = (BENCHMARKS / "replay.py").read_text("utf-8")
    assert {name for name in quoted if f'"{name}"' not in source} == set()


@pytest.mark.parametrize(("name", "keys"), _FIGURES.values(), ids=_FIGURES)
def test_benchmark_runs_to_its_end_and_prints_its_figures(name: str, keys: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", str(BENCHMARKS / f"{name}.py"), "--tiny"],
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    figures = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(figures, dict)
    assert {key: figures.get(key) for key in keys.split() if not (figures.get(key) or 0) > 0} == {}
    for key in _ANY.get(name, "").split():
        assert isinstance(figures[key], int | float)
