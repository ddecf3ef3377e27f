"""Each call that syncs fails once: nothing is lost, or given twice, or it is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from failing_syncs import FailingSyncs, broken_promises
from sync_calls import BY, native_calls, python_calls, watch

sys.path.insert(1, str(Path(__file__).parents[1] / "unit"))

from losing_disk import LosingDisk
from sync_scenarios import SCENARIOS, Scenario

from firebird_cdc.bridge import confirmer, gaps, recovery, sequence
from firebird_cdc.demo.processes import Stack
from firebird_cdc.errors import FirebirdCdcError

_LIVES = 3  # in which a chain is waited for

_NOT_REACHED = {
    "native/journal.c sync_file_range(journal->fd, 0, 0, SYNC_FILE_RANGE_WRITE)": (
        "starts the writing of a long journal; its sync at the end tells of errors"
    ),
    "native/session.c fsync(txn->folder)": (
        "only where no bridge runs, after the commit: the error is said, nothing else can be done"
    ),
    "native/host.c fsync(host.journal_directory)": (
        "only after another sync of the same journal has failed: tests/engine/test_failed_syncs.py"
    ),
    "native/host.c fsync(host.pool_directory)": (
        "only after another sync of the same journal has failed: tests/engine/test_failed_syncs.py"
    ),
    "native/host.c msync(host.shared, FBC_SHARED_BYTES, MS_SYNC)": (
        "only where not even a gap can be written: the error is said, and the page has the count"
    ),
    "native/journal_files.c syncfs(fd)": "what recovery.py calls: the scenarios have that fail",
    "bridge/host.py sync_file_system self._api.sync_file_system(fd)": (
        "calls native/host.c, which fails in an engine's life"
    ),
}
"""Calls that no scenario comes to, and why that is right."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FailingSyncs]:
    directory = tmp_path_factory.mktemp("syncs")
    with Stack(directory / "stack") as stack:
        engine = FailingSyncs(directory, stack)
        yield engine
        engine.end()


@pytest.fixture(scope="module")
def chains(engine: FailingSyncs) -> list[str]:
    """What syncs in a life of an engine."""
    reached, has_failed, [outcome] = engine.live("nothing")
    assert not has_failed
    assert not outcome.problems
    return sorted(reached)


class Trial:
    """A scenario in a folder of its own, in which one sync fails."""

    def __init__(self, scenario: Scenario, root: Path, patch: pytest.MonkeyPatch) -> None:
        for module, name in (
            (sequence, "_LEDGER_LIMIT"),
            (confirmer, "_PAUSE_S"),
            (confirmer, "_TROUBLE_S"),
            (gaps, "_TROUBLE_S"),
        ):
            patch.setattr(module, name, getattr(module, name))  # as it was afterwards
        root.mkdir()
        self._act, self._check = scenario(root)
        self._disk = LosingDisk(root, patch)
        self._failing = ""
        self.reached: list[str] = []
        self.has_failed = False
        patch.setattr(recovery, "sync_file_system", lambda _: self._disk.sync_all())
        watch(self._fails, patch.setattr)

    def _fails(self, chain: str, fd: int) -> bool:
        if self._failing:
            self.reached.append(chain)
        if chain != self._failing or self.has_failed:
            return False
        self.has_failed = True
        if "sync_file_system(" in chain:
            with suppress(OSError):
                self._disk.fail_all()
        else:
            self._disk.fail(fd)
        return True

    def run(self, failing: str) -> None:
        """Do it until it is done, cut the power, and see what is left."""
        self._failing = failing
        for attempt in range(5):
            try:
                self._act()
                break
            except (OSError, FirebirdCdcError):
                if attempt == 4:
                    raise
        self._disk.cut()
        self._failing = ""
        self._check()


@pytest.fixture
def trials(tmp_path: Path) -> list[tuple[Scenario, str]]:
    """Every chain of every scenario."""
    found = []
    for scenario in SCENARIOS:
        with pytest.MonkeyPatch.context() as patch:
            trial = Trial(scenario, tmp_path / scenario.__name__, patch)
            trial.run("nothing")
            found += [(scenario, chain) for chain in dict.fromkeys(trial.reached)]
    return found


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_a_sync_fails_while_an_engine_works(
    engine: FailingSyncs, chains: list[str], trials: list[tuple[Scenario, str]]
) -> None:
    elsewhere = {call for _, chain in trials for call in chain.split(BY)}
    faults = []
    for chain in chains:
        for attempt in range(_LIVES):
            _, has_failed, outcomes = engine.live(chain, attempt)
            for outcome in outcomes:
                faults += [f"{outcome.cut}: {each}" for each in broken_promises(outcome)]
            if has_failed:
                break
        else:  # when the server is killed decides whether a life comes to it
            if not elsewhere.issuperset(chain.split(BY)):
                faults.append(f"{chain}: not reached")
    assert not faults, "\n".join(faults)


def test_a_sync_fails_in_one_process(tmp_path: Path, trials: list[tuple[Scenario, str]]) -> None:
    for number, (scenario, chain) in enumerate(trials):
        with pytest.MonkeyPatch.context() as patch:
            trial = Trial(scenario, tmp_path / f"{number}", patch)
            try:
                trial.run(chain)
            except BaseException as error:
                error.add_note(f"{scenario.__name__}: {chain}")
                raise
            assert trial.has_failed, f"{scenario.__name__}: {chain}"


@pytest.mark.engine
def test_every_call_that_syncs_has_been_made_to_fail(
    chains: list[str], trials: list[tuple[Scenario, str]]
) -> None:
    tried = {call for chain in chains for call in chain.split(BY)}
    tried |= {call for _, chain in trials for call in chain.split(BY)}
    calls = {*python_calls(), *native_calls()}
    assert not _NOT_REACHED.keys() - calls, "it is not there any more"
    missing = calls - tried - _NOT_REACHED.keys()
    assert not missing, "have them reached by a scenario (sync_scenarios.py):\n" + "\n".join(
        sorted(missing)
    )
