"""benchmarks/_against.py: what it makes of pairs of runs, and which files it compares with."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def against() -> ModuleType:
    """The module, from a folder that is no package."""
    spec = importlib.util.spec_from_file_location("_against", BENCHMARKS / "_against.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["_against"] = module  # where it looks up its own annotations
    spec.loader.exec_module(module)
    return module


def pairs(against: ModuleType, new: tuple[float, float], *drift: float) -> list[Any]:
    """Return pairs whose OLD takes 500 us and gives 1,000/s, on a machine that gets slower."""
    rate, cpu_us = new
    return [
        against.Pair(
            new=against.Sample(rate / slower, cpu_us * slower),
            old=against.Sample(1000 / slower, 500 * slower),
        )
        for slower in drift
    ]


DRIFT = (1, 1.1, 1.2, 1.7, 1.4, 1.3, 3, 1, 1)


def test_ratios_do_not_see_that_the_machine_gets_slower(against: ModuleType) -> None:
    found = against.figures({4: pairs(against, (950, 510), *DRIFT)})
    assert found["cpu_ratio_4"] == 1.02
    assert found["cpu_ratio_4_quartiles"] == [1.02, 1.02]
    assert found["rate_ratio_4"] == 0.95
    assert found["new_cpu_us_4"] == 612.0
    assert found["old_commits_4_per_s"] == 833
    assert against.missed(found) == []


def test_pair_with_a_disturbance_does_not_move_the_ratio(against: ModuleType) -> None:
    disturbed = pairs(against, (100, 5000), 1) + pairs(against, (1000, 500), *DRIFT)
    found = against.figures({1: disturbed})
    assert found["cpu_ratio_1"] == 1
    assert against.missed(found) == []


@pytest.mark.parametrize(
    ("new", "sentence"),
    [
        ((1000, 516), "the CPU time of a commit on 16 connections is 1.032 of the other commit's"),
        ((949, 500), "the rate of commits on 16 connections is 0.949 of the other commit's"),
    ],
)
def test_figure_beyond_its_limit_is_named(
    against: ModuleType, new: tuple[float, float], sentence: str
) -> None:
    measured = {1: pairs(against, (1000, 500), *DRIFT), 16: pairs(against, new, *DRIFT)}
    (said,) = against.missed(against.figures(measured))
    assert said.startswith(sentence)


def test_cheaper_commits_miss_no_limit(against: ModuleType) -> None:
    dearer = against.figures({1: pairs(against, (900, 600), *DRIFT)})
    assert len(against.missed(dearer)) == 2
    cheaper = against.figures({1: pairs(against, (2000, 100), *DRIFT)})
    assert against.missed(cheaper) == []


def test_each_server_goes_first_in_every_other_pair(against: ModuleType) -> None:
    first = [against.order(number)[0] for number in range(6)]
    assert first == ["new", "old"] * 3
    assert all(set(against.order(number)) == {"new", "old"} for number in range(2))


def git(folder: Path, *arguments: str) -> str:
    """Run git as nobody in particular."""
    who = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", *who, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository of two commits, with .cache ignored."""
    clone = tmp_path / "clone"
    clone.mkdir()
    git(clone, "init", "--quiet")
    (clone / ".gitignore").write_text("/.cache/\n")
    for text in ("first", "second"):
        (clone / "pyproject.toml").write_text(text)
        git(clone, "add", ".")
        git(clone, "commit", "--quiet", "-m", text)
    return clone


def test_files_are_those_of_the_commit(against: ModuleType, clone: Path) -> None:
    (clone / "pyproject.toml").write_text("not committed yet")
    cache = clone / ".cache"
    first, folder = against.checkout("HEAD~1", clone, cache)
    second, other = against.checkout("HEAD", clone, cache)
    assert first == git(clone, "rev-parse", "HEAD~1")
    assert (folder / "pyproject.toml").read_text() == "first"
    assert second == git(clone, "rev-parse", "HEAD")
    assert (other / "pyproject.toml").read_text() == "second"
    assert git(clone, "status", "--porcelain") == "M pyproject.toml"


def test_files_are_kept_for_the_next_run(against: ModuleType, clone: Path) -> None:
    _, folder = against.checkout("HEAD~1", clone, clone / ".cache")
    before = (folder / "pyproject.toml").stat()
    assert against.checkout("HEAD~1", clone, clone / ".cache")[1] == folder
    assert (folder / "pyproject.toml").stat().st_ino == before.st_ino


def test_files_come_back_after_the_cache_was_removed(against: ModuleType, clone: Path) -> None:
    against.checkout("HEAD~1", clone, clone / ".cache")
    shutil.rmtree(clone / ".cache")
    _, folder = against.checkout("HEAD~1", clone, clone / ".cache")
    assert (folder / "pyproject.toml").read_text() == "first"


def test_unknown_commit_is_named(against: ModuleType, clone: Path) -> None:
    with pytest.raises(SystemExit, match=r"--against no-such: .* has no such commit"):
        against.checkout("no-such", clone, clone / ".cache")


def test_files_that_were_edited_are_not_measured(against: ModuleType, clone: Path) -> None:
    _, folder = against.checkout("HEAD~1", clone, clone / ".cache")
    (folder / "pyproject.toml").write_text("edited")
    with pytest.raises(SystemExit, match="as committed: remove that folder"):
        against.checkout("HEAD~1", clone, clone / ".cache")
