"""Dangers to journals and logs from the machine around an installation: file systems, disk,
rights, clock, and other servers. Every check yields findings and changes nothing."""

from __future__ import annotations

import ctypes
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from uuid import UUID

from firebird_cdc import access
from firebird_cdc.config import ConnectorConfig
from firebird_cdc.config.logging import ROLES, LoggingOptions
from firebird_cdc.config.source import read_flat_yaml
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.folder.locks import OWNERS, STATE_DIRECTORY
from firebird_cdc.packaging.server import accounts
from firebird_cdc.packaging.server.findings import Finding, Findings, Severity
from firebird_cdc.packaging.server.layout import Account
from firebird_cdc.packaging.server.procfs import FlockHolders

_DIRECTORY = "connector.journal.directory"

# What statfs(2) and mount(8) call file systems, and what each does to a journal.
_UNFIT = {
    "tmpfs": "is in memory: a restart of the machine takes every journal with it",
    "ramfs": "is in memory: a restart of the machine takes every journal with it",
    "overlay": "goes with its container, and every journal with it",
    "aufs": "goes with its container, and every journal with it",
}
_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "afs", "lustre"}
_REMOTE_WHAT = "is on the network: commits would wait for it, and locks on it can't be relied on"

# Folders that systemd-tmpfiles or the distribution empty at boot (hier(7), tmpfiles.d(5)).
_EMPTIED = ("/tmp", "/run", "/var/run", "/dev/shm", "/var/lock")  # noqa: S108 - looked for
_AGED = "/var/tmp"  # noqa: S108 - looked for

_LEAST_FREE_SHARE = 0.05
_LEAST_FREE_INODES = 10_000
_AHEAD_S = 5.0
_LOOKED_AT = 1000  # of the files of a folder

_SECRET = re.compile("password|secret|jaas", re.IGNORECASE)
_ELSEWHERE = (".file", ".location")  # these name a file that holds the secret

# timex.h: what adjtimex(2) answers while nothing keeps the clock right.
_TIME_ERROR = 5
_TIMEX_BYTES = 208


def journal_place(options: ConnectorConfig, account: Account) -> Findings:
    """Findings about the folder of the journals: file system, disk, modes, neighbours."""
    folder = options.journal_directory
    where = f"{options.path}, {_DIRECTORY}"
    yield from _file_system(where, folder)
    yield from _emptied(where, folder)
    if folder.is_dir():
        yield from _room(where, folder)
        yield from _modes(where, folder, account)
        yield from _neighbours(where, folder)


def log_files(where: str, options: LoggingOptions, account: Account) -> Findings:
    """Log files that the server's user can't write."""
    problems = [_log_problem(options.file_of(role), account) for role in ROLES]
    for problem in dict.fromkeys(problems):  # of one folder it is one
        if problem is not None:
            what, remedy = problem
            yield Finding(
                f"{where}, file",
                f"{what}: the log goes to standard error if that leads anywhere, else only warnings"
                " and errors are kept, by syslog",
                f"{remedy}, or name another file",
                Severity.WARNING,
            )


def _log_problem(path: Path, account: Account) -> tuple[str, str] | None:
    """Return the reason why the server's user can't write a log file, and the remedy, or None."""
    name, folder = account.name, path.parent
    if not folder.is_dir():
        return f"{folder} does not exist", f"install -d -m 750 -o {name} {folder}"
    if not path.exists():
        if accounts.may(account, "w", folder) and accounts.may(account, "x", folder):
            return None
        return f"{name} can't make files in {folder}", f"chown {name} {folder}"
    owner = path.stat().st_uid
    if folder.stat().st_mode & stat.S_IWOTH and owner != account.uid:
        whose = f"{path} belongs to user {owner}, in a folder that is open to all"
        return whose, f"remove it, or chown {name} {path}"
    if accounts.may(account, "w", path):
        return None
    return f"{name} can't write to {path}", f"chown {name} {path}"


def mount_of(path: Path, mounts: str) -> tuple[str, str]:
    """Return the mount point and file system type of PATH, by the text of /proc/self/mountinfo.

    Source: proc(5). Of several mounts at one place the last one counts.
    """
    best, kind = "", ""
    real = os.path.realpath(path)
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = _unescaped(before.split()[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return best, kind


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _file_system(where: str, folder: Path) -> Findings:
    try:
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return
    point, kind = mount_of(folder, mounts)
    unfit = _UNFIT.get(kind)
    if unfit is None and (kind in _REMOTE or kind.startswith("fuse.")):
        unfit = _REMOTE_WHAT
    if unfit is not None:
        yield Finding(
            where,
            f"{folder} lies on the file system {kind} ({point}), which {unfit}",
            "name a folder on a local disk (ext4, XFS), in a container one of a volume",
            Severity.WARNING,
        )


def _emptied(where: str, folder: Path) -> Findings:
    real = os.path.realpath(folder)
    for place in _EMPTIED:
        if real.startswith(f"{place}/") or real == place:
            yield Finding(
                where,
                f"{folder} is in {place}, which many systems empty when they start: journals"
                " that Kafka has not got would be lost",
                "name a folder that stays, such as /var/lib/firebird-cdc/journal",
                Severity.WARNING,
            )
    if real.startswith(f"{_AGED}/"):
        yield Finding(
            where,
            f"{folder} is in {_AGED}, where many systems delete files that are a month old",
            "name a folder that stays, such as /var/lib/firebird-cdc/journal",
            Severity.WARNING,
        )


def _room(where: str, folder: Path) -> Findings:
    status = os.statvfs(folder)
    free, size = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    if size and free < _LEAST_FREE_SHARE * size:
        yield Finding(
            where,
            f"the file system of {folder} has {free // 2**20} MiB left of {size // 2**20}: when it"
            " is full, writes to captured tables fail or leave gaps",
            "free space, give the journals a disk of their own, or limit them with"
            " connector.journal.max.bytes",
            Severity.WARNING,
        )
    if status.f_files and status.f_favail < _LEAST_FREE_INODES:
        yield Finding(
            where,
            f"the file system of {folder} has room for {status.f_favail} more files: every"
            " transaction takes one",
            "free inodes, or give the journals a file system of their own",
            Severity.WARNING,
        )


def _modes(where: str, folder: Path, account: Account) -> Findings:
    status = folder.stat()
    if status.st_mode & stat.S_IRWXO:  # a group is somebody's choice
        yield Finding(
            where,
            f"{folder} is open to every user (mode {stat.S_IMODE(status.st_mode):o}), and journals"
            " hold what is in the tables",
            f"chmod o-rwx {folder}",
            Severity.WARNING,
        )
    if access.is_shared(folder) and (closed := _closed_to_group(folder)) is not None:
        yield Finding(
            where,
            f"{folder} is for its group, too, and {closed} is not: server and shipper as two users"
            " can't both work with it",
            f"stop both, then find {folder} -type d -exec chmod 2770 {{}} + and find {folder}"
            " -type f -exec chmod 660 {} +, or chmod 700 the folder",
            Severity.WARNING,
        )
    if status.st_uid != account.uid and accounts.may(account, "w", folder):
        yield Finding(
            where,
            f"{folder} belongs to user {status.st_uid}, the server runs as {account.name}",
            f"chown -R {account.name} {folder}",
            Severity.WARNING,
        )


def _closed_to_group(folder: Path) -> Path | None:
    """Return something of ours in FOLDER that is from before it was for its group."""
    state = folder / STATE_DIRECTORY
    for place in (folder, state, state / "databases", state / "quarantine"):
        with suppress(OSError), os.scandir(place) as entries:  # it may be missing
            for entry in islice(entries, _LOOKED_AT):
                mode = entry.stat(follow_symlinks=False).st_mode
                needed = access.SHARED if stat.S_ISDIR(mode) else stat.S_IRGRP
                if mode & needed != needed:
                    return Path(entry.path)
    return None


def _neighbours(where: str, folder: Path) -> Findings:
    """Servers that write journals into one folder; the processes of one Classic server are one."""
    servers = {writer.server: writer.process for writer in _writers(folder)}
    if len(servers) > 1:
        shown = ", ".join(f"{name} (process {process})" for name, process in servers.items())
        yield Finding(
            where,
            f"several servers write their journals into {folder}: {shown}; one shipper with one"
            " configuration would send them all",
            "give each server a folder of its own",
        )


@dataclass(frozen=True, slots=True)
class _Writer:
    server: str
    process: int


def _writers(folder: Path) -> Iterator[_Writer]:
    """The processes that hold the lock of a bridge in FOLDER."""
    try:
        holders = FlockHolders()
        owners = list((folder / STATE_DIRECTORY / OWNERS).iterdir())
    except OSError:
        return
    for owner in owners:
        try:
            UUID(owner.name)
            if (process := holders.of(owner)) is None:
                continue
            program = str(Path(f"/proc/{process}/exe").readlink())
            root = str(Path(f"/proc/{process}/root").readlink())
        except (OSError, ValueError):
            continue
        yield _Writer(program if root == "/" else f"{program} in {root}", process)


def secrets_shown(options: ConnectorConfig) -> Findings:
    """A file with passwords that everybody may read."""
    try:
        mode = options.path.stat().st_mode
        source = read_flat_yaml(options.path, "connector configuration")
    except (OSError, ConfigError):
        return
    secrets = [
        entry.key
        for entry in source.entries.values()
        if _SECRET.search(entry.key)
        and entry.value
        and not entry.key.endswith(_ELSEWHERE)
        and not str(entry.value).startswith("${env:")
    ]
    if secrets and mode & stat.S_IROTH:
        yield Finding(
            str(options.path),
            f"it holds {secrets[0]}, and every user of the machine may read it (mode"
            f" {stat.S_IMODE(mode):o})",
            f"chmod 640 {options.path}, with the group of the server's user",
            Severity.WARNING,
        )
    yield from _password_file(options.attachment.password_file)


def _password_file(path: Path | None) -> Findings:
    if path is None:
        return
    try:
        mode = path.stat().st_mode
    except OSError as error:
        yield Finding(
            "database.password.file",
            f"{path} can't be read: {error.strerror}",
            "make it, with the password as its only line",
        )
        return
    if mode & stat.S_IROTH:
        yield Finding(
            "database.password.file",
            f"every user of the machine may read {path} (mode {stat.S_IMODE(mode):o})",
            f"chmod 640 {path}, with the group of the server's user",
            Severity.WARNING,
        )


def clock(options: ConnectorConfig) -> Findings:
    """Yield findings if the time of day may be wrong: commits, lags and retention go by it."""
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes = 0: nothing is set
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    except (OSError, AttributeError):
        state = -1
    if state == _TIME_ERROR:
        yield Finding(
            "clock",
            "nothing keeps this machine's clock right (adjtimex): times of commits, lags and the"
            " retention of the archive go by it",
            "run chrony or systemd-timesyncd, unless the host of this machine does it",
            Severity.NOTE,  # the same answer where a host sets the clock; no event hangs on it
        )
    folder = options.journal_directory
    if folder.is_dir():
        newest = max(_times(folder), default=0.0)
        ahead = newest - time.time()
        if ahead > _AHEAD_S:
            yield Finding(
                "clock",
                f"a journal in {folder} is {ahead:.0f} s younger than now: the clock was set back,"
                " or server and shipper have different ones",
                "set the clocks of all machines by one source (NTP)",
                Severity.WARNING,
            )


def _times(folder: Path) -> Iterator[float]:
    """Yield the times of change of the journals in FOLDER; some may be removed meanwhile."""
    for path in folder.glob("*.log*"):
        with suppress(OSError):
            yield path.stat().st_mtime
