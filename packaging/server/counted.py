"""Looks at what the plugin counted of refused and lost transactions, and whether it can count."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from firebird_cdc.config import load_capture
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.folder import failures
from firebird_cdc.journal.folder.processes import configs_at_work, status_path
from firebird_cdc.packaging.server import accounts
from firebird_cdc.packaging.server.engine_log import uncounted
from firebird_cdc.packaging.server.findings import Finding, Findings, Severity
from firebird_cdc.packaging.server.layout import Server
from firebird_cdc.packaging.server.locating import configs_of, servers_on


def counted(server: Server, parameters: dict[str, str] | None, config: Path) -> Findings:
    """Find what was refused or lost and nobody has acknowledged, and what keeps it from being
    counted. config: the connector's file, whatever is wrong in it."""
    named = (parameters or {}).get("StateDirectory")
    if parameters is not None:
        yield from _place(server, named, config)
    folders = [] if named is None else [Path(named)]
    directory, configs = None, [config]
    with suppress(ConfigError):  # a finding of its own
        directory = load_capture(config).journal_directory
        configs = configs_on(directory, servers_on(directory, [server]), configs)
    pages = failures.pages(directory, configs, folders)
    for each in failures.unacknowledged(pages):
        yield Finding(each.database or str(config), str(each), failures.REMEDY)
    for text in failures.unreadable(pages):
        what, _, remedy = text.partition("; ")
        yield Finding(str(config), what, remedy)
    yield from counted_nowhere(server, pages)


def configs_on(journals: Path, servers: Iterable[Server], given: Iterable[Path] = ()) -> list[Path]:
    """Return the connector's files of all who work on the folder JOURNALS, as far as can be told.

    Each of them names pages of its own; every command looks at all. They are those GIVEN, those of
    SERVERS, which write into it, of the processes that work on it and of its last shipper.
    """
    found = [*given, *configs_of(servers), *configs_at_work(journals), *_last_shipper(journals)]
    return list(dict.fromkeys(found))


def _last_shipper(journals: Path) -> Iterator[Path]:
    with suppress(OSError, ValueError, KeyError, TypeError):
        yield Path(json.loads(status_path(journals).read_bytes())["config"])


def counted_nowhere(server: Server, pages: Sequence[Path]) -> Findings:
    """Find what replication.log tells of as counted nowhere, since the last acknowledgement.

    pages: of the counters, beside which it is noted. Raises OSError if the log can't be read.
    """
    for where, said in uncounted(server, failures.acknowledged_us(pages) / 1e6):
        yield Finding(where, said, failures.REMEDY)


def told_nowhere(servers: Iterable[Server], pages: Sequence[Path]) -> Iterator[str]:
    """Yield a sentence for each finding of ``counted_nowhere`` about SERVERS, and for each log that
    can't be read."""
    for server in servers:
        try:
            for finding in counted_nowhere(server, pages):
                yield f"{finding.where}: {finding.what}; {finding.remedy}"
        except PermissionError as error:
            yield (
                f"{error.filename} can't be read, so it is unknown what was counted nowhere; run"
                " this as the user of the database server"
            )


def _place(server: Server, named: str | None, config: Path) -> Findings:
    """Look at the folder where the plugin counts while the journal folder can't be used."""
    where, name = f"{server.plugins_conf}, StateDirectory", server.account.name
    again = f"run: firebird-cdc install --server {server.root}"
    if named is None:
        yield Finding(
            where,
            "none is named: what is refused or lost while the journal folder can't be used is"
            " counted nowhere",
            again,
            Severity.WARNING,
        )
        return
    folder = Path(named)
    may = [accounts.may(server.account, right, folder) for right in ("w", "x")]
    if not folder.is_dir() or not all(may):
        yield Finding(
            where,
            f"{name} can't write to {folder}: what is refused or lost while the journal folder"
            " can't be used is counted nowhere",
            f"install -d -m 750 -o {name} {folder}",
            Severity.WARNING,
        )
    elif folder not in failures.state_directories(config):
        yield Finding(
            where,
            f"firebird-cdc status does not look into {folder}, and the shipper's metrics don't",
            f"take the line out and {again}",
            Severity.WARNING,
        )
