"""Hangs of the engine as Classic, told from our own.

In both, a thread waits for a mutex that nobody will give back:

- A mutex in shared memory whose owner was killed. The engine's are not robust where it was built
  without USE_ROBUST_MUTEX (isc_sync.cpp), and those of its events never are. With priority
  inheritance glibc has the thread wait on a word of its own stack (pthread_mutex_lock, ESRCH), else
  on the mutex, which bears the number of the thread that took it. Or its owner walks in circles
  through what a dead process left half written.
- An attachment's own mutex, for which the thread waits that tells this process which locks others
  want (LockManager::blocking_action_thread). Its owner reads a BLOB in a call of a replication
  plugin, as the engine's own replicator does (Replicator::storeBlob), and has to wait for a page.
  EngineCheckout gives the mutex back for such a wait, but where one call is inside another it
  gives back one of two holds (StableAttachmentPart::Sync). So no process hears any more which pages
  others wait for. Firebird's issue 9136 is the same with another nested call.

The plugin has no mutexes in shared memory, and all of its own lie beside its code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from firebird_cdc.demo.processes import await_condition
from firebird_cdc.errors import SetupError

_FUTEX = "202"
_WAIT, _WAIT_PRIVATE = 0, 128
_OWNER_AT = 8  # in a pthread_mutex_t
_LOOK_S = 1.0
_LOOKS = 8  # in a row, at the same thread and mutex: the engine looks each second for the dead
_PLUGIN = "libfirebird_cdc.so"


class EngineHangs(Exception):
    """A process of Classic waits in the engine for ever."""


def await_unless_engine_hangs(
    what: str, condition: Callable[[], object], pids: Collection[int], timeout_s: float
) -> None:
    """Wait until CONDITION holds. Raises EngineHangs if a process of PIDS hangs in the engine,
    SetupError that names the threads of all of them if TIMEOUT_S pass."""
    next_look = time.monotonic() + _LOOK_S
    stuck: dict[tuple[int, int], int] = {}

    def holds() -> bool:
        nonlocal next_look, stuck
        if condition():
            return True
        if time.monotonic() >= next_look:
            next_look = time.monotonic() + _LOOK_S
            found = [each for pid in pids for each in _waiting_in_vain(pid)]
            stuck = {each: stuck.get(each, 0) + 1 for each in found}
            if _LOOKS in stuck.values():
                raise EngineHangs(what)
        return False

    try:
        await_condition(what, holds, timeout_s, 0.01)
    except SetupError as error:
        threads = "\n".join(line for pid in pids for line in _threads(pid))
        raise SetupError(f"{error}; threads, with what they wait in:\n{threads}") from None


def _waiting_in_vain(pid: int) -> Iterator[tuple[int, int]]:
    """Yield the threads of a process that may wait in vain, and the words on which they wait."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        own = _memory_of_plugin(pid)
    except OSError:
        return  # it has just ended
    for task in tasks:
        try:
            number, *rest = (task / "syscall").read_text().split()
            if number != _FUTEX:
                continue
            word, operation, stack = (int(rest[index], 16) for index in (0, 1, 6))
            if 0 <= word - stack < 4096:
                yield int(task.name), word
            elif operation in (_WAIT, _WAIT_PRIVATE) and word not in own:
                owner = _owner(pid, word)
                if owner and _keeps(owner, {each.name for each in tasks}, operation):
                    yield int(task.name), word
        except OSError:
            continue  # a thread that has just ended, or gone on and given back what it waited on


def _owner(pid: int, mutex: int) -> int:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(mutex + _OWNER_AT)
        return int.from_bytes(memory.read(4), "little")


def _keeps(owner: int, threads: Collection[str], operation: int) -> bool:
    """Tell whether OWNER may never give a mutex back: of shared memory, if it is dead or busy; of
    a process with these THREADS, if it is one of them and waits itself."""
    try:
        doing = Path(f"/proc/{owner}/syscall").read_text().split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return operation == _WAIT
    if operation == _WAIT:
        return doing == "running"
    return str(owner) in threads and doing == _FUTEX


def _memory_of_plugin(pid: int) -> range:
    """Return the addresses of the plugin's variables and code; none if it is not loaded."""
    begin = end = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        first, last = (int(address, 16) for address in line.split()[0].split("-"))
        is_named = _PLUGIN in line
        if is_named and not begin:
            begin = first
        # Its zeroed variables lie behind it, in memory without a name.
        if begin and (is_named or (first == end and len(line.split()) == 5)):
            end = last
    return range(begin, end)


def _threads(pid: int) -> Iterator[str]:
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        try:
            name, place = ((task / file).read_text().strip() for file in ("comm", "wchan"))
            yield f"{pid} {task.name} {name}: {place}, {(task / 'syscall').read_text().strip()}"
        except OSError:
            continue  # it has just ended
