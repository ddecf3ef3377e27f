"""The processes that work on a journal folder, each with the options that it has read.

The shipper says of itself what it is in the file of its lock, and each server process in a file
beside its mark. So a server can tell that a shipper of before has older options or code than its
own (``bridge.replacing``), and ``status`` and ``check`` can tell that processes disagree.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID, uuid4

import logbook

from firebird_cdc.config.reading import Reading, digest_of, root_directory, stamp_of
from firebird_cdc.config.source import read_flat_yaml
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.folder.durable import make_folder, replace_file
from firebird_cdc.journal.folder.locks import (
    OWNERS,
    SHIPPER_LOCK,
    STATE_DIRECTORY,
    is_held,
    read_holder,
)
from firebird_cdc.tree import installed_version

_log = logbook.Logger("firebird_cdc.journal.folder.processes")

_SERVERS: Final = "servers"
_REQUEST: Final = "shipper.end"

_REQUEST_LOOK_S = 1.0
_NAMED = 5  # of the processes that a sentence is about


@dataclass(frozen=True, slots=True)
class CaptureProcess:
    """A process at work. ``identity``: of this life of it; ``embedded``: a shipper that ends with
    the last server process, and that a server may replace."""

    identity: str
    process: int
    version: str
    embedded: bool
    reading: Reading

    def as_json(self) -> str:
        """Return it as one line."""
        return json.dumps(
            [self.identity, self.process, self.version, self.embedded, self.reading.as_json()]
        )

    @classmethod
    def from_json(cls, text: str) -> CaptureProcess | None:
        """Return what ``as_json`` gave; None for any other text."""
        try:
            identity, process, version, embedded, reading = json.loads(text)
            read = Reading.from_json(reading)
            return cls(str(identity), int(process), str(version), bool(embedded), read)
        except (ValueError, TypeError, KeyError):
            return None


def this_process(reading: Reading, *, embedded: bool) -> CaptureProcess:
    """Return this process as it begins to work with what it has read."""
    return CaptureProcess(str(uuid4()), os.getpid(), installed_version(), embedded, reading)


def is_newer(version: str, other: str) -> bool:
    """Tell whether VERSION of ours is a later one than OTHER."""
    one, two = (tuple(map(int, re.findall(r"\d+", each))) for each in (version, other))
    return one > two


# Who is at work


class Shipper(NamedTuple):
    """The shipper of a folder. ``record``: None if it is of a version that says nothing more."""

    process: int
    record: CaptureProcess | None

    @property
    def name(self) -> str:
        """Name that tells it from the one before and the one after it."""
        return str(self.process) if self.record is None else self.record.identity


def read_shipper(directory: Path, is_locked: Callable[[Path], bool] = is_held) -> Shipper | None:
    """Return the shipper that works on DIRECTORY; None if there is none, or it has just begun."""
    path = directory / STATE_DIRECTORY / SHIPPER_LOCK
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not is_locked(path):
            return None
        process, word = read_holder(fd)
    except OSError:
        return None
    finally:
        os.close(fd)
    if not process.isdecimal():
        return None
    return Shipper(int(process), CaptureProcess.from_json(word))


def server_path(state: Path, owner: UUID) -> Path:
    """Return the file in which the server process with the mark OWNER says what it has read."""
    return state / _SERVERS / str(owner)


def tell_server(state: Path, owner: UUID, reading: Reading) -> Path:
    """Say what the server process with the mark OWNER, this one, has read; return the file.

    Raises OSError.
    """
    path = server_path(state, owner)
    make_folder(path.parent)
    word = this_process(reading, embedded=False).as_json()
    replace_file(path, word.encode(), is_synced=False)
    return path


class Servers(NamedTuple):
    """The server processes of a folder. ``unknown``: how many live that have not said what they
    have read, as an earlier version doesn't."""

    records: list[CaptureProcess]
    unknown: int


def read_servers(directory: Path, is_locked: Callable[[Path], bool] = is_held) -> Servers:
    """Return the server processes that work on DIRECTORY and live."""
    state = directory / STATE_DIRECTORY
    records, unknown = [], 0
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        for mark in list((state / OWNERS).iterdir()):
            with contextlib.suppress(OSError, ValueError):
                owner = UUID(mark.name)
                if not is_locked(mark):
                    continue
                record = None
                with contextlib.suppress(FileNotFoundError):
                    record = CaptureProcess.from_json(server_path(state, owner).read_text("utf-8"))
                if record is not None:
                    records.append(record)
                else:
                    unknown += 1
    return Servers(records, unknown)


def configs_at_work(directory: Path) -> list[Path]:
    """Return the configuration files that the processes at work on DIRECTORY have read, but for
    those of processes that see other files than this one."""
    records = read_servers(directory).records
    shipper = read_shipper(directory)
    if shipper is not None and shipper.record is not None:
        records.append(shipper.record)
    own = root_directory()
    return [Path(record.reading.path) for record in records if record.reading.root == own]


# Asking a shipper to end


def ask_to_end(directory: Path, shipper: CaptureProcess) -> None:
    """Ask an embedded shipper to make room for another one. It names one life of one process, so
    what is left of it after a crash ends no later one. Raises OSError."""
    path = directory / STATE_DIRECTORY / _REQUEST
    replace_file(path, shipper.identity.encode(), is_synced=False)


class EndRequest:
    """The request to this shipper, an embedded one, to make room; looked for once a second."""

    def __init__(self, directory: Path, shipper: CaptureProcess) -> None:
        self._path = directory / STATE_DIRECTORY / _REQUEST
        self._identity = shipper.identity if shipper.embedded else ""
        self._next_look = 0.0

    def is_made(self, now: float) -> bool:
        """Tell whether it is made, at NOW (monotonic); once."""
        if not self._identity or now < self._next_look:
            return False
        self._next_look = now + _REQUEST_LOOK_S
        try:
            asked = self._path.read_text("utf-8", "replace")
        except OSError:
            return False
        if asked != self._identity:
            return False
        self._identity = ""
        _log.notice(
            "a server process with newer options or code starts another shipper: this one ends"
        )
        return True


# What they disagree about


class Disagreement(NamedTuple):
    """Point on which two processes, or one and a file, disagree, as a sentence, and its remedy."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


def disagreements(
    directory: Path, is_locked: Callable[[Path], bool] = is_held
) -> list[Disagreement]:
    """Return what the processes that work on DIRECTORY, and their configuration files as they are
    now, disagree about. Takes some milliseconds, and more with many server processes."""
    shipper = read_shipper(directory, is_locked)
    servers = read_servers(directory, is_locked)
    found = [*_between_servers(directory, servers.records, shipper)]
    found += _since_files_changed(servers.records, shipper and shipper.record)
    if shipper is not None and servers.records:
        found += _of_shipper(shipper, servers)
    found += _of_other_versions(servers.records)
    return found


def _of_other_versions(servers: Sequence[CaptureProcess]) -> Iterator[Disagreement]:
    """Yield which server processes run another version than this one, which is installed."""
    for version in sorted({record.version for record in servers} - {installed_version()}):
        numbers = [str(record.process) for record in servers if record.version == version]
        more = f" and {len(numbers) - _NAMED} more" * (len(numbers) > _NAMED)
        yield Disagreement(
            f"server process {', '.join(numbers[:_NAMED])}{more} runs version {version}, and"
            f" {installed_version()} is installed",
            f"restart the server to use {installed_version()}",
        )


def _between_servers(
    directory: Path, servers: Sequence[CaptureProcess], shipper: Shipper | None
) -> Iterator[Disagreement]:
    latest: dict[tuple[str, str], CaptureProcess] = {}
    for record in sorted(servers, key=lambda record: record.reading.read_ns):
        latest[record.reading.place] = record
    if len({record.reading.digest for record in latest.values()}) < 2:
        return
    named = " and ".join(
        f"process {record.process} those of {record.reading.path}" for record in latest.values()
    )
    serving = ""
    if shipper is not None and shipper.record is not None:
        serving = (
            f"; the one shipper, process {shipper.process}, has those of"
            f" {shipper.record.reading.path}"
        )
    yield Disagreement(
        f"server processes with different options work on {directory}: {named}{serving}",
        "give each server a connector.journal.directory of its own, or both the same options",
    )


def _since_files_changed(
    servers: Sequence[CaptureProcess], shipper: CaptureProcess | None
) -> Iterator[Disagreement]:
    """Yield the files that were changed after a process read them, in more than remarks."""
    everybody = [*servers, *([] if shipper is None else [shipper])]
    for place in sorted({record.reading.place for record in everybody}):
        here = [record for record in everybody if record.reading.place == place]
        digest = _digest_now(max(here, key=lambda record: record.reading.read_ns))
        older = [record for record in here if record.reading.digest != digest]
        older_servers = [record for record in older if record is not shipper]
        if not older:
            continue
        named = []
        if older_servers:
            processes = ", ".join(str(record.process) for record in older_servers[:_NAMED])
            more = f" and {len(older_servers) - _NAMED} more" * (len(older_servers) > _NAMED)
            named.append(f"server process {processes}{more}")
        if shipper in older:
            assert shipper is not None
            named.append(f"the shipper, process {shipper.process},")
        if older_servers:
            remedy = "restart the server: until then they work with the old options"
        else:
            assert shipper is not None
            remedy = _restart(shipper)
        yield Disagreement(f"{place[0]} was changed after {' and '.join(named)} read it", remedy)


def _digest_now(latest: CaptureProcess) -> str:
    """Return the digest of the file of LATEST as it is now; as it was if nobody here can look."""
    reading = latest.reading
    path = _seen_from_here(latest)
    stamp = "" if path is None else stamp_of(path)
    if path is None or stamp in ("", reading.stamp):
        return reading.digest
    try:
        return digest_of(read_flat_yaml(path, "connector configuration"))
    except ConfigError:
        return ""  # no YAML, which nobody can have read


def _seen_from_here(record: CaptureProcess) -> Path | None:
    """Return the path by which this process finds the file of RECORD, perhaps in a chroot."""
    path = Path(record.reading.path)
    if record.reading.root == root_directory():
        return path
    root = Path(f"/proc/{record.process}/root")
    try:
        is_its_own = root_directory(root) == record.reading.root  # else another of that number
    except OSError:
        return None
    return root / path.relative_to("/") if is_its_own else None


def _of_shipper(shipper: Shipper, servers: Servers) -> Iterator[Disagreement]:
    record = shipper.record
    newest = max(servers.records, key=lambda each: each.reading.read_ns)
    if record is None:
        yield Disagreement(
            f"the shipper, process {shipper.process}, is of an earlier version of firebird-cdc than"
            f" server process {newest.process} ({newest.version})",
            "if it is not replaced within two minutes, end it: an embedded one is started again by"
            " the server, one of your own you start",
        )
        return
    if is_newer(newest.version, record.version):
        yield Disagreement(
            f"the shipper, process {record.process}, is version {record.version}, and server"
            f" process {newest.process} is {newest.version}",
            _restart(record),
        )
    elsewhere = {each.reading.place for each in servers.records}
    same = {each.reading.digest for each in servers.records}
    is_foreign = record.reading.place not in elsewhere and record.reading.digest not in same
    if record.embedded and is_foreign and not servers.unknown:
        yield Disagreement(
            f"the shipper, process {record.process}, has the options of {record.reading.path},"
            f" which no server has; server process {newest.process} has those of"
            f" {newest.reading.path}",
            _restart(record),
        )


def _restart(shipper: CaptureProcess) -> str:
    if shipper.embedded:
        return (
            "a server replaces it automatically; if that takes longer than two minutes, end it"
            f" (kill {shipper.process}), and it is started again"
        )
    return "restart the shipper"


STATUS_FILE = "status.json"


def status_path(directory: Path) -> Path:
    """Return the path at which the shipper of the journal folder DIRECTORY writes its status."""
    return directory / STATE_DIRECTORY / STATUS_FILE
