"""Each call that syncs or writes fails: nothing is lost, or given twice, or it is refused."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from failing_syncs import FailingSyncs, broken_promises
from played_processes import played_processes
from soaked import few_of
from sync_calls import (
    BY,
    in_c,
    in_python,
    is_write,
    native_calls,
    native_mentions,
    native_writes,
    python_calls,
    python_mentions,
    python_writes,
    watch,
    watch_writes,
)

sys.path.insert(1, str(Path(__file__).parents[1] / "unit"))

from losing_disk import LosingDisk
from sync_scenarios import SCENARIOS, Scenario, locked, own_journals

from firebird_cdc.bridge.confirm import gaps, loop, troubles
from firebird_cdc.demo.processes import Stack
from firebird_cdc.errors import FirebirdCdcError
from firebird_cdc.journal.folder import ledger
from firebird_cdc.native import _journal_files

_ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO}
_LIVES = 3  # in which a chain is waited for whose calls others make too
_MOST_LIVES = 12  # for one of which no other makes a call

_FAILED = "engine/test_failed_syncs.py"
_JOINING = "engine/test_joining.py"
_HERE = "faults/test_failing_syncs.py"
_REMOVED = "unit/test_removed_journals.py"
_STATE = "unit/native/test_failures_native.py"
_TOLD = "unit/test_told_failures.py"

_NOT_REACHED = {
    "native/journal.c write_all sync_file_range(journal->fd, 0, 0, SYNC_FILE_RANGE_WRITE)": (
        "only for a transaction that writes more than 8 MiB",
        f"{_FAILED}::test_long_transaction_with_a_failed_early_sync_is_refused",
    ),
    "native/transaction_journal.c drop_file fsync(txn->folder)": (
        "only for a gap that no bridge runs for, and that is rolled back after a sync has failed",
        f"{_FAILED}::test_rolled_back_gap_without_a_bridge_that_may_reappear_is_reported",
    ),
    "native/gap.c fbc_txn_leave_ownerless fsync(txn->folder)": (
        "only for a gap that no bridge runs for; it is counted as well, then",
        f"{_FAILED}::test_gap_without_a_bridge_is_counted_if_its_name_cannot_be_synced",
    ),
    "native/folder.c fbc_folder_name_again fsync(folder)": (
        "only after another sync of the same name has failed",
        f"{_FAILED}::test_journal_whose_name_cannot_be_synced_is_copied_and_further_writes_are_refused",
    ),
    "native/folder.c fbc_folder_discard_journal fsync(fbc_folder.journals)": (
        "only after another sync of the same journal has failed",
        f"{_FAILED}::test_rollback_that_cannot_reach_the_disk_refuses_further_writes",
    ),
    "native/gap_counts.c fbc_gaps_sync msync(fbc_page(), FBC_SHARED_BYTES, MS_SYNC)": (
        "only for gaps that are counted, as none can be written",
        f"{_FAILED}::test_unsynced_count_of_gaps_is_reported_and_the_gap_still_marked",
    ),
    "native/counters.c fbc_count_failure_in fdatasync(fd)": (
        "only for what is lost while the journal folder can't be used",
        f"{_STATE}::test_failed_sync_of_a_count_is_reported",
    ),
    "native/counters.c fbc_count_failure_in fsync(directory)": (
        "only for what is lost while the journal folder can't be used",
        f"{_STATE}::test_failed_sync_of_a_count_is_reported",
    ),
    "journal/folder/failures.py _write_note replace_file(path, json.dumps(content).encode(),"
    " owner_of=page.parent)": (
        "a command's, which ends with an error then",
        f"{_TOLD}::test_failed_sync_of_an_acknowledgement_is_an_error_and_can_be_retried",
    ),
    "journal/shipper/delivery/disposal.py _settle_removals sync_directory(self._plan.directory)": (
        "a shipper's, which waits then",
        f"{_REMOVED}::test_no_further_journal_goes_while_the_folder_cannot_be_synced",
    ),
    "journal/folder/failures.py _write_note sync_directory(path.parent)": (
        "a command's, which ends with an error then",
        f"{_TOLD}::test_failed_sync_of_an_acknowledgement_is_an_error_and_can_be_retried",
    ),
    "native/join.c make_mark fsync(joined.owners)": (
        "only where a process joins another one",
        f"{_JOINING}::test_process_whose_mark_cannot_be_synced_records_nothing_before_it_is",
    ),
    "native/join.c sync_and_close fsync(folder)": (
        "only where a process joins another one",
        f"{_JOINING}::test_process_whose_mark_cannot_be_synced_records_nothing_before_it_is",
    ),
    "native/journal_files.c sync_file_system syncfs(fd)": (
        "what loop.py calls: watch() has that fail",
        f"{_HERE}::test_a_sync_fails_in_one_process",
    ),
    "bridge/host.py sync_file_system self._api.sync_file_system(fd)": (
        "calls native/host.c, which fails in an engine's life",
        f"{_HERE}::test_a_sync_fails_while_an_engine_works",
    ),
}
"""Calls that no scenario comes to, why that is so, and the test that has them fail."""

_SERVERS = ("native/", "bridge/", "journal/folder/", "journal/format/", "access.py")
"""Files of what runs in a server, or does its work after it has ended."""

_TELLING = (  # of which lives of `make test` have one fail
    "native/journal.c write_all pwritev(",
    "native/shared_journal.c write_unit pwritev(",
    "native/commits.c fbc_commits_write pwrite(",
)

_WRITES_NOT_REACHED = {
    "in test_failing_writes.py": (
        "native/access.c fbc_access_make_folder mkdirat(",
        "native/counters.c ",
        "native/definitions.c ",
        "native/join.c ",
    ),
    "where it fails the file is longer than it need be, and all is as it was": (
        "native/commits.c allocate fallocate(",
        "native/gap.c write_gap ftruncate(",
        "native/transaction_journal.c fbc_txn_shrink ftruncate(",
    ),
    "of a log, of which nothing depends": (
        "native/policy.c ",
        "journal/folder/counters.py count os.pwrite(",
    ),
    "only after a sync has failed; if it fails, too, that is told as the sync is": (
        "native/folder.c fbc_folder_name_again renameat(",
        "bridge/confirm/indexing.py _sync_names ",
        "journal/folder/journal_folder.py set_aside kept.rename(path)",
        "journal/folder/failed_syncs.py note access.write_file(",  # test_inventory.py
    ),
    "of processes that are to join this one: they start bridges of their own meanwhile": (
        "journal/folder/join_file.py publish own.replace(",
    ),
    "of a socket for those who read rows, in whose place a warning is": (
        "bridge/reading.py _listen new.rename(",
        "bridge/reading.py use access.make_directory(",
    ),
    "of tickets, a ledger or a database that somebody has removed; it is tried again": (
        "journal/folder/journal_folder.py leave_tickets os.ftruncate(",
        "journal/folder/ledger_lock.py note_gone ",
        "journal/folder/ledger.py _begin_after_loss self._path.rename(kept)",
        "journal/folder/lost_numbers.py note_numbered ",
    ),
    "of the first server in a folder, which says that it can't be used": (
        "journal/folder/page_file.py _move_page access.make_directory(folder)",
    ),
    "of a journal of 0.1; as _rewrite, which fails": (
        "bridge/confirm/former_version.py _finish path.rename(",
        "bridge/confirm/former_version.py _put_gap temporary.rename(path)",
    ),
    "of shared journals that Python writes, in tests alone": (
        "journal/format/shared_writer.py __init__ ",
        "journal/format/shared_writer.py append pwrite(",
        "journal/format/shared_writer.py void pwrite(",
        "journal/format/shared_writer.py close ",
    ),
}
"""Beginnings of calls that write and that no scenario comes to, by the reason."""

_MENTIONS = {
    "passed on, to be called as History._sync_file_system: how it fails is told by its chain": (
        "bridge/confirm/loop.py __init__ server.sync_file_system",
        "bridge/confirm/loop.py __init__ sync_file_system",
        "bridge/confirm/history.py __init__ sync_file_system",
    ),
    "a stream's, which syncs nothing": (
        "cli.py main sys.stdout.flush",
        "journal/shipper/commands/tail.py run sys.stdout.flush",
        "demo/console.py line self._stream.flush",
        "demo/console.py overwrite self._stream.flush",
        "journal/shipper/tasks/archive.py write_segment file.flush",
        "journal/folder/disposal.py copy_file copy.flush",
        "journal/folder/durable.py replace_file file.flush",
        "journal/replay/cluster/package.py _write part.flush",
        "journal/events/topics.py _append file.flush",
        "journal/replay/cluster/progress.py _clear self._stream.flush",
        "journal/replay/cluster/progress.py _draw self._stream.flush",
        "packaging/files.py write file.flush",
        "journal/snapshot/pipe.py write_object file.flush",
        "journal/shipper/commands/terminal.py show self._stream.flush",
    ),
    "of what is to be sent or written, and syncs nothing": (
        "bridge/confirm/former_version.py _rewrite writer.flush",
        "bridge/confirm/undecided.py _note_open writer.flush",
        "journal/format/records.py _add self.flush",
        "journal/format/shared_writer.py seal self.flush",
        "journal/shipper/kafka/client.py flush self._producer.flush",
        "journal/shipper/kafka/client.py hurry self.producer.flush",
        "journal/replay/source/changes.py _gather batch.flush",
        "journal/replay/source/changes.py _read_journal batch.flush",
        "journal/replay/source/changes.py missing_numbers batch.flush",
        "journal/replay/source/changes.py read_changes batch.flush",
        "journal/replay/state/images.py read_packs fold.flush",
        "journal/replay/state/images.py read self.flush",
    ),
    "of the quarantine; what it calls is in the list": (
        "journal/shipper/delivery/repair.py finish self._plan.quarantine.flush",
        "journal/shipper/delivery/retry.py finish quarantine.flush",
        "journal/shipper/quarantine.py keep self.flush",
        "journal/shipper/delivery/transactional.py _write_notes self.plan.quarantine.flush",
    ),
    "a word of an error": ("packaging/files.py __exit__ 'sync'",),
    "a variable of this name": (
        "native/journal.c fbc_journal_break_seal sync",
        "native/journal.c fbc_journal_void sync",
        "native/journal.h <file> sync",
        "native/transaction.h <file> sync",
        "native/shared_journal.c <file> sync",
        "native/shared_journal.c run_sync sync",
        "native/sync.c enqueue sync",
        "native/sync.c fbc_sync_run sync",
        "native/sync.c fbc_sync_start sync",
        "native/sync.c fbc_sync_wait sync",
        "native/sync.c finish sync",
        "native/sync.c serve sync",
        "native/sync.h <file> sync",
    ),
}
"""Other mentions with the name of a sync, by the reason why they are none of the calls."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FailingSyncs]:
    directory = tmp_path_factory.mktemp("syncs")
    with Stack(directory / "stack") as stack:
        engine = FailingSyncs(directory, stack)
        yield engine
        engine.end()


@pytest.fixture(scope="module")
def lived(engine: FailingSyncs, all_trials: list[tuple[Scenario, str]]) -> dict[str, bool]:
    """Return the chains that sync or write in lives of an engine, and whether transactions shared
    journals when that was seen. When a server is killed decides what it comes to, so there are as
    many lives as it takes to come to each call that is in no trial."""
    wanted = {*python_calls(), *native_calls()} - _NOT_REACHED.keys()
    wanted |= _writes_to_reach()
    wanted -= _calls_in(chain for _, chain in all_trials)
    found: dict[str, bool] = {}
    for attempt in range(_MOST_LIVES):
        for shares in (False, True):
            reached, has_failed, [outcome] = engine.live("nothing", attempt, shares)
            assert not has_failed
            assert not outcome.problems
            found = dict.fromkeys(reached, shares) | found
        if wanted <= _calls_in(found):
            break
    return dict(sorted(found.items()))


@pytest.fixture(scope="module")
def chains(lived: dict[str, bool]) -> dict[str, bool]:
    """Return those that sync."""
    return {chain: shares for chain, shares in lived.items() if not is_write(chain)}


def _writes_to_reach() -> set[str]:
    others = tuple(call for calls in _WRITES_NOT_REACHED.values() for call in calls)
    calls = (*python_writes(), *native_writes())
    return {call for call in calls if call.startswith(_SERVERS) and not call.startswith(others)}


def _calls_in(chains: Iterable[str]) -> set[str]:
    return {call for chain in chains for call in chain.split(BY)}


class Trial:
    """A scenario in a folder of its own, in which one sync fails."""

    def __init__(
        self, scenario: Scenario, root: Path, patch: pytest.MonkeyPatch, error: int = errno.EIO
    ) -> None:
        for module, name in (
            (ledger, "_LEDGER_LIMIT"),
            (loop, "_PAUSE_S"),
            (troubles, "_TROUBLE_S"),
            (troubles, "_LEDGER_TROUBLE_S"),
            (loop, "_WAIT_S"),
            (loop, "_LOOK_AGAIN_MOST_S"),
            (gaps, "_TROUBLE_S"),
        ):
            patch.setattr(module, name, getattr(module, name))  # as it was afterwards
        root.mkdir()
        self._act, self._check = scenario(root)
        self._disk = LosingDisk(root, patch)
        self._failing = ""
        self._error = error
        self.reached: list[str] = []
        self.has_failed = False
        patch.setattr(_journal_files, "sync_file_system", lambda _: self._disk.sync_all())
        watch(self._fails, patch.setattr)
        watch_writes(self._fails, patch.setattr)

    def _fails(self, chain: str, fd: int) -> int:
        if self._failing:
            self.reached.append(chain)
        if chain != self._failing or self.has_failed:
            return 0
        self.has_failed = True
        if "sync_file_system(" in chain:
            with suppress(OSError):
                self._disk.fail_all()
        elif fd >= 0:
            self._disk.fail(fd)
        return self._error

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


@pytest.fixture(scope="module")
def trials(all_trials: list[tuple[Scenario, str]]) -> list[tuple[Scenario, str]]:
    """Every chain of every scenario that syncs."""
    return [(scenario, chain) for scenario, chain in all_trials if not is_write(chain)]


@pytest.fixture(scope="module")
def writes(all_trials: list[tuple[Scenario, str]]) -> list[tuple[Scenario, str]]:
    """Every chain of every scenario that writes."""
    return [(scenario, chain) for scenario, chain in all_trials if is_write(chain)]


@pytest.fixture(scope="module")
def all_trials(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Scenario, str]]:
    """Every chain of every scenario."""
    tmp_path = tmp_path_factory.mktemp("trials")
    found = []
    for scenario in SCENARIOS:
        with played_processes(), pytest.MonkeyPatch.context() as patch:
            trial = Trial(scenario, tmp_path / scenario.__name__, patch)
            trial.run("nothing")
            found += [(scenario, chain) for chain in dict.fromkeys(trial.reached)]
    return found


@pytest.mark.engine
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("is_elsewhere", few_of({"only": False, "also": True}, ["only"]))
def test_a_sync_fails_while_an_engine_works(
    engine: FailingSyncs,
    chains: dict[str, bool],
    trials: list[tuple[Scenario, str]],
    is_elsewhere: bool,
) -> None:
    """Those of calls that fail in lives of an engine only; in `make soak` also those of calls that
    `test_a_sync_fails_in_one_process` has fail, each with a power cut after it."""
    elsewhere = _calls_in(chain for _, chain in trials)
    faults = []
    for chain, shares in chains.items():
        if is_elsewhere != elsewhere.issuperset(chain.split(BY)):
            continue
        # When the server is killed decides whether a life comes to it.
        for attempt in range(_LIVES if is_elsewhere else _MOST_LIVES):
            _, has_failed, outcomes = engine.live(chain, attempt, shares)
            for outcome in outcomes:
                faults += [f"{outcome.cut}: {each}" for each in broken_promises(outcome)]
            if has_failed:
                break
        else:
            if not is_elsewhere:
                faults.append(f"{chain}: not reached")
    assert not faults, "\n".join(faults)


def test_a_sync_fails_in_one_process(tmp_path: Path, trials: list[tuple[Scenario, str]]) -> None:
    _try_all(tmp_path, trials, errno.EIO)


def _try_all(tmp_path: Path, trials: list[tuple[Scenario, str]], number: int) -> None:
    for count, (scenario, chain) in enumerate(trials):
        with played_processes(), pytest.MonkeyPatch.context() as patch:
            trial = Trial(scenario, tmp_path / f"{count}", patch, number)
            try:
                trial.run(chain)
            except BaseException as error:
                error.add_note(f"{scenario.__name__}: {chain}")
                raise
            assert trial.has_failed, f"{scenario.__name__}: {chain}"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("are_few", few_of({"few": True, "all": False}, ["few"]))
@pytest.mark.parametrize("number", few_of(_ERRORS, ["ENOSPC"]))
def test_a_write_fails_in_one_process(
    tmp_path: Path, writes: list[tuple[Scenario, str]], number: int, are_few: bool
) -> None:
    few = [
        (scenario, chain)
        for scenario, chain in writes
        if scenario in (own_journals, locked) and not chain.startswith("access.py")
    ]
    _try_all(tmp_path, few if are_few else writes, number)


@pytest.mark.engine
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("are_few", few_of({"few": True, "all": False}, ["few"]))
@pytest.mark.parametrize("number", few_of(_ERRORS, ["ENOSPC"]))
@pytest.mark.parametrize("mode", few_of(["refuse", "gap"], ["refuse"]))
def test_a_write_fails_while_an_engine_works(
    engine: FailingSyncs, lived: dict[str, bool], number: int, mode: str, are_few: bool
) -> None:
    faults = []
    for chain, shares in lived.items():
        is_meant = is_write(chain) and chain.startswith(_SERVERS)
        if not is_meant or (are_few and not chain.startswith(_TELLING)):
            continue
        for attempt in range(_LIVES):  # when the server is killed decides whether it is reached
            _, has_failed, outcomes = engine.live(chain, attempt, shares, number, mode)
            for outcome in outcomes:
                faults += [f"{chain}, {outcome.cut}: {each}" for each in broken_promises(outcome)]
            if has_failed:
                break
    assert not faults, "\n".join(faults)


@pytest.mark.engine
def test_every_call_that_syncs_has_been_made_to_fail(
    chains: dict[str, bool], trials: list[tuple[Scenario, str]]
) -> None:
    tried = _calls_in(chains) | _calls_in(chain for _, chain in trials)
    calls = {*python_calls(), *native_calls()}
    assert not _NOT_REACHED.keys() - calls, "it is not there any more"
    missing = calls - tried - _NOT_REACHED.keys()
    assert not missing, "have them reached by a scenario (sync_scenarios.py):\n" + "\n".join(
        sorted(missing)
    )


@pytest.mark.engine
def test_every_call_that_writes_is_reached_or_has_a_reason(
    lived: dict[str, bool], all_trials: list[tuple[Scenario, str]]
) -> None:
    calls = (*python_writes(), *native_writes())
    others = [call for calls in _WRITES_NOT_REACHED.values() for call in calls]
    gone = [other for other in others if not any(call.startswith(other) for call in calls)]
    assert not gone, "it is not there any more"
    missing = _writes_to_reach() - _calls_in(lived) - _calls_in(chain for _, chain in all_trials)
    assert not missing, "have them reached by a scenario (sync_scenarios.py):\n" + "\n".join(
        sorted(missing)
    )


def test_sync_calls_outside_all_scenarios_have_a_test_of_their_own() -> None:
    for call, (_, test) in _NOT_REACHED.items():
        path, _, name = test.partition("::")
        source = (Path(__file__).parents[1] / path).read_text("utf-8")
        assert f"\ndef {name}(" in source, call


def test_every_mention_of_a_sync_in_the_sources_is_listed() -> None:
    known = {mention for mentions in _MENTIONS.values() for mention in mentions}
    found = {*python_mentions(), *native_mentions()}
    assert not known - found, "it is not there any more"
    new = "\n".join(sorted(found - known))
    assert not new, f"call it in a form that sync_calls.py knows, or say why not:\n{new}"


@pytest.mark.parametrize(
    ("source", "call"),
    [
        ("import os\nos.fsync(fd)", "<module> os.fsync(fd)"),
        ("class C:\n os.sync()", "<module> os.sync()"),
        ("async def f():\n os.fdatasync(fd)", "f os.fdatasync(fd)"),
        ("def f():\n def g():\n  sync_file(p)", "g sync_file(p)"),
        ("def f():\n os.fsync(fd)\n os.fsync(fd)", "f os.fsync(fd) #2"),
    ],
)
def test_sync_call_in_python_is_listed_as_a_call(source: str, call: str) -> None:
    found = in_python("file.py", source)
    assert f"file.py {call}" in [each.text for each in found.calls]
    assert not found.mentions


@pytest.mark.parametrize(
    "source",
    [
        "from os import fsync",
        "from os import *",
        "import os as o\no.fsync(fd)",
        "write = os.fdatasync",
        "pool.map(os.fsync, fds)",
        "pool.map(sync_directory, folders)",
        "from firebird_cdc.journal.folder.durable import sync_name as keep",
        "getattr(os, 'fsync')(fd)",
        "os.open(path, os.O_WRONLY | os.O_DSYNC)",
        "os.open(path, os.O_WRONLY | os.O_SYNC)",
        "os.pwritev(fd, parts, 0, os.RWF_DSYNC)",
        "ctypes.CDLL(None).syncfs(fd)",
        "fcntl.fcntl(fd, fcntl.F_FULLFSYNC)",
        "page.flush()",
    ],
)
def test_other_forms_of_a_sync_in_python_are_listed_as_mentions(source: str) -> None:
    found = in_python("file.py", source)
    assert found.mentions
    assert not found.calls


@pytest.mark.parametrize(
    ("source", "calls", "mentions"),
    [
        ("static int f(int fd) {\n    return fsync(fd);\n}", ["f fsync(fd)"], []),
        ("int f(int fd) {\n    sync();\n}", ["f sync()"], []),
        (
            "int f(void) {\n    fsync(a);\n    if (x) {\n        fsync(b);\n        fsync(a);\n"
            "    }\n}\nint g(void) {\n    fsync(a);\n}",
            ["f fsync(a)", "f fsync(b)", "f fsync(a) #2", "g fsync(a)"],
            [],
        ),
        ('/* fsync(fd) */\nstatic const char text[] = "fsync(fd)"; // fsync(fd)', [], []),
        ("int f(int fd) {\n    return host.fsync && host->fsync;\n}", [], []),
        ("int (*f)(int) = fsync;", [], ["<file> fsync"]),
        ("int f(void) {\n    use(fdatasync);\n}", [], ["f fdatasync"]),
        ("#define SYNC(fd) \\\n    fsync(fd)", [], ["<file> fsync"]),
        ("int f(void) {\n    syscall(SYS_fsync, fd);\n}", [], ["f SYS_fsync"]),
        ("int f(void) {\n    open(path, O_RDWR | O_DSYNC);\n}", [], ["f O_DSYNC"]),
        ("int f(void) {\n    pwritev2(fd, p, 1, 0, RWF_SYNC);\n}", [], ["f RWF_SYNC"]),
    ],
)
def test_sync_calls_in_c_sources_are_found(
    source: str, calls: list[str], mentions: list[str]
) -> None:
    found = in_c("file.c", source)
    assert [each.text for each in found.calls] == [f"file.c {each}" for each in calls]
    assert [each.text for each in found.mentions] == [f"file.c {each}" for each in mentions]
