"""Transactions refused or lost, wherever the plugin counted them; which ones are acknowledged.

The plugin counts in the page of the journal folder. Where that can't be had, as the bridge could
not start or the folder is gone, it does so in a page of the same form in a state folder, which
install makes and names in plugins.conf (``StateDirectory``): one page for each connector's file, by
a digest of its path (native/counters.h). Beside a page lies what somebody has acknowledged of it.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from firebird_cdc.clock import local_time, now_us
from firebird_cdc.config import load_capture
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.folder.counters import Counters, is_damaged, page_of, read_page
from firebird_cdc.journal.folder.durable import replace_file, sync_directory
from firebird_cdc.journal.folder.subjects import FAILURES

if TYPE_CHECKING:
    pass

SYSTEM_STATE: Final = Path("/var/lib/firebird-cdc")
"""Folder of the state folders of a system's servers, whose names each begin with "state"."""

BESIDE: Final = "firebird-cdc.state"
"""The state folder of any other server, beside the connector's file."""

_END: Final = ".counters"
_ACKNOWLEDGED: Final = ".acknowledged"
_DAMAGED: Final = ".damaged"
"""The ending of the name that the plugin gives a damaged page when it makes another one."""

_NO_DATABASE: Final = "databases that are not told apart"

Kind = Literal["lost", "refused"]
_KINDS: Final[tuple[Kind, ...]] = ("lost", "refused")


@dataclass(frozen=True, slots=True)
class Failures:
    """Transactions of one database that nobody has acknowledged.

    ``kind``: ``lost`` are committed, and their changes were not captured; ``refused`` got an error
    instead of their commit. ``first_us``: of all that were counted, 0 where some of them are
    acknowledged; ``last_us``: 0 where an older version counted. ``database`` "": not known.
    """

    database: str
    kind: Kind
    count: int
    first_us: int = 0
    last_us: int = 0

    def __str__(self) -> str:
        many = self.count != 1
        transactions = f"{self.count} transaction{'s' if many else ''}"
        of = f"{transactions} of {self.database or _NO_DATABASE}"
        if self.kind == "lost":
            return (
                f"{of} {'were' if many else 'was'} committed, but the changes were NOT CAPTURED"
                f"{self._when()}: they are in the database only, and Kafka never gets them"
            )
        return (
            f"{of} {'were' if many else 'was'} refused, as the changes could not be recorded"
            f"{self._when()}: the application got an error"
        )

    def _when(self) -> str:
        if not self.last_us:
            return ""
        last = local_time(self.last_us)
        if self.count == 1 or not self.first_us:
            return f" (the last one at {last})" if self.count > 1 else f" ({last})"
        return f" (from {local_time(self.first_us)} to {last})"

    @property
    def subject(self) -> str:
        """The subject of the trouble that tells of it."""
        return f"{FAILURES}{self.kind}:{self.database}"

    @property
    def text(self) -> str:
        """A sentence that tells of it, and what to do."""
        return f"{self}; {REMEDY}"


REMEDY: Final = (
    "the server's log and ours say why; mend that, then acknowledge it: firebird-cdc journal"
    " acknowledge"
)


# ---------------------------------------------------------------------- where it is counted


def _spellings(config: Path) -> list[Path]:
    """Return the paths by which servers may know the file CONFIG: its folder has no links."""
    folder = Path(os.path.realpath(config.absolute().parent))
    return list(dict.fromkeys([folder / config.name, Path(os.path.realpath(config))]))


def page_name(config: Path) -> str:
    """Return the name of a state folder's page for a connector's file as the plugin spells it."""
    digest = 14695981039346656037
    for byte in os.fsencode(config):
        digest = (digest ^ byte) * 1099511628211 % (1 << 64)
    return f"{digest:016x}{_END}"


def state_directories(config: Path) -> list[Path]:
    """Return the folders where a server with the connector's file CONFIG may have counted."""
    beside = [each.parent / BESIDE for each in _spellings(config)]
    found = [each for each in dict.fromkeys(beside) if each.is_dir()]
    return [*found, *sorted(SYSTEM_STATE.glob("state*"))]


def state_pages(config: Path, folders: Iterable[Path] = ()) -> list[Path]:
    """Return the pages of the connector's file CONFIG in state folders, FOLDERS too: where they
    are, or would be, as what is known of replication.log lies beside a page that there never was.
    """
    wanted = dict.fromkeys([*state_directories(config), *folders])
    return [folder / page_name(each) for folder in wanted for each in _spellings(config)]


def pages(
    directory: Path | None, configs: Sequence[Path], folders: Iterable[Path] = ()
) -> list[Path]:
    """Return all pages about the journal folder DIRECTORY, whose connector's files are CONFIGS.

    Where none is known, the state folders of the system are searched for those whose file names
    the folder, or can't be read. folders: state folders to look into as well.
    """
    found = [] if directory is None else [page_of(directory)]
    if configs:
        of_state = [page for config in configs for page in state_pages(config, folders)]
        return [*found, *dict.fromkeys(of_state)]
    if directory is not None:
        for state in sorted(SYSTEM_STATE.glob("state*")):
            for page in pages_in(state):
                if _may_name(Path(read_page(page).config), directory):
                    found.append(page)
    return found


def pages_in(state: Path) -> list[Path]:
    """Return the pages in a state folder, also those of which only a damaged one is left."""
    names = {path.name.removesuffix(_DAMAGED) for path in state.glob(f"*{_END}*")}
    return [state / name for name in sorted(names) if name.endswith(_END)]


def _may_be_there(path: Path) -> bool:
    try:
        path.lstat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _may_name(config: Path, directory: Path) -> bool:
    try:
        return load_capture(config).journal_directory.resolve() == directory.resolve()
    except (ConfigError, OSError):
        return True  # whose it is nobody can tell: rather one sentence too many


# ---------------------------------------------------------------------- what nobody knows yet


def unreadable(found: Iterable[Path]) -> list[str]:
    """Return a sentence for each page of those FOUND of which nobody knows here what it counts."""
    found = list(found)
    forbidden = [
        f"{page} can't be read, so it is unknown here whether transactions were refused or lost;"
        " run this as the user of the database server, or put this user into its group"
        for page in found
        if _may_be_there(page) and not os.access(page, os.R_OK)
    ]
    return forbidden + [
        f"{path} is damaged, so it is unknown how many transactions were refused or lost until"
        f" {_written(path)}; compare the database with what consumers have if that can't be ruled"
        " out, then acknowledge it: firebird-cdc journal acknowledge"
        for path in _damaged(found)
    ]


def _damaged(found: Iterable[Path]) -> list[Path]:
    """Return the damaged pages, those FOUND and those that the plugin has set aside beside them."""
    damaged: dict[Path, None] = {}
    for page in found:
        if is_damaged(page):
            damaged[page] = None
        kept = page.with_name(page.name + _DAMAGED)
        with suppress(OSError):
            if stat.S_ISREG(kept.lstat().st_mode):  # of another version it is whole
                damaged[kept] = None
    return [*damaged]


def _written(path: Path) -> str:
    with suppress(OSError):
        return local_time(path.stat().st_mtime_ns // 1000)
    return "now"


def forget_damaged(found: Iterable[Path]) -> list[str]:
    """Remove the damaged pages, those FOUND and what was set aside beside them, as it is known.

    Returns a sentence for each. A server that runs counts in the state folder until it starts
    again. Raises OSError.
    """
    forgotten = []
    for path in _damaged(found):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            # The plugin holds it while it puts another file in the place of this one.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), path.lstat()):
                forgotten.append(f"{path} was damaged (until {_written(path)})")
                path.unlink()
        finally:
            os.close(fd)
    return forgotten


def unacknowledged(found: Iterable[Path]) -> list[Failures]:
    """Return what nobody has acknowledged, in the pages FOUND together. Never raises."""
    merged: dict[tuple[str, Kind], Failures] = {}
    for page in found:
        counters = read_page(page)
        for each in _of_page(counters, _acknowledged(page, counters.made_us)):
            known = merged.get((each.database, each.kind))
            merged[each.database, each.kind] = each if known is None else _sum(known, each)
    return [merged[key] for key in sorted(merged)]


def _sum(one: Failures, other: Failures) -> Failures:
    return Failures(
        one.database,
        one.kind,
        one.count + other.count,
        min(one.first_us, other.first_us),
        max(one.last_us, other.last_us),
    )


def _of_page(counters: Counters, known: Mapping[str, Mapping[str, int]]) -> Iterator[Failures]:
    for path, counted in counters.databases.items():
        totals: dict[Kind, tuple[int, int, int]] = {
            "lost": (counted.lost, counted.gaps_first_us, counted.gaps_last_us),
            "refused": (counted.refused, counted.refused_first_us, counted.refused_last_us),
        }
        for kind, (total, first_us, last_us) in totals.items():
            before = known.get(path, {}).get(kind, 0)
            if total > before:
                yield Failures(path, kind, total - before, 0 if before else first_us, last_us)


def _note(page: Path) -> dict[str, Any]:
    """Return the note beside PAGE on what is acknowledged; empty without one that can be read."""
    with suppress(OSError, ValueError):
        content = json.loads(page.with_name(page.name + _ACKNOWLEDGED).read_bytes())
        if isinstance(content, dict):
            return content
    return {}


def _acknowledged(page: Path, made_us: int) -> dict[str, dict[str, int]]:
    """Return how many of each kind are acknowledged, by database, of PAGE as it was made then."""
    content = _note(page)
    try:
        if int(content["made_us"]) != made_us:
            return {}  # of one that was there before
        return {
            str(path): {kind: int(counts[kind]) for kind in _KINDS}
            for path, counts in content["databases"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def acknowledged_us(found: Iterable[Path]) -> int:
    """Return when something was acknowledged last, in microseconds since 1970; 0: never."""
    latest = 0
    for page in found:
        with suppress(ValueError, KeyError, TypeError):
            latest = max(latest, int(_note(page)["at_us"]))
    return latest


def acknowledge_failures(
    found: Sequence[Path], databases: Sequence[str] = (), at_us: int | None = None
) -> list[Failures]:
    """Note beside each page FOUND that what it counts now is known, of DATABASES or all of them.

    Returns what was not known before. What is counted later shows again, and so does what
    replication.log tells unless all databases are meant: what it told until AT_US, or now, is known
    as far as ``acknowledged_us`` says so afterwards. Raises OSError; some pages may be noted then.
    """
    now = now_us() if at_us is None else at_us
    known: list[Failures] = []
    failed, is_noted = None, False
    for page in found:
        counters = read_page(page)
        noted = _acknowledged(page, counters.made_us)
        failures = [
            each
            for each in _of_page(counters, noted)
            if not databases or each.database in databases
        ]
        if not failures and (databases or not page.parent.is_dir()):
            continue
        for each in failures:
            counted = noted.setdefault(each.database, dict.fromkeys(_KINDS, 0))
            counted[each.kind] += each.count
        # The time counts for what could be counted nowhere, of which replication.log tells: of any
        # database, so only who means all of them knows it.
        before = acknowledged_us([page])
        at = before if databases else max(before, now)
        try:
            _write_note(page, {"made_us": counters.made_us, "at_us": at, "databases": noted})
            is_noted = True
        except OSError as error:
            if failures:
                raise
            failed = error  # the time is known if any place has it
        known += failures
    if failed is not None and not is_noted:
        raise failed
    return known


def _write_note(page: Path, content: dict[str, Any]) -> None:
    path = page.with_name(page.name + _ACKNOWLEDGED)
    replace_file(path, json.dumps(content).encode(), owner_of=page.parent)
    try:
        mode = page.stat().st_mode  # for whoever may read that
    except FileNotFoundError:
        mode = page.parent.stat().st_mode & 0o640
    path.chmod(stat.S_IMODE(mode))
    sync_directory(path.parent)


def totals(found: Iterable[Path]) -> dict[str, dict[Kind, int]]:
    """Return how many of each kind were counted in the pages FOUND, by database, acknowledged or
    not."""
    summed: dict[str, dict[Kind, int]] = {}
    for page in found:
        for path, counted in read_page(page).databases.items():
            numbers = summed.setdefault(path, {"lost": 0, "refused": 0})
            numbers["lost"] += counted.lost
            numbers["refused"] += counted.refused
    return summed


def troubles(found: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield subject and text of each trouble that the pages FOUND tell of."""
    for each in unacknowledged(found):
        yield each.subject, each.text
    for text in unreadable(found):
        yield f"{FAILURES}{text.partition(' ')[0]}", text


def is_ours(path: Path) -> bool:
    """Tell whether a file in a state folder is a page or what belongs to one."""
    name = path.name.removeprefix(".").removesuffix(".part")
    return name.removesuffix(_ACKNOWLEDGED).removesuffix(_DAMAGED).endswith(_END)
