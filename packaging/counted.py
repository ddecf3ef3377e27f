"""Looks at what the plugin counted of refused and lost transactions, and whether it can count."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from firebird_cdc.config import load_capture
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal import failures
from firebird_cdc.packaging import probes
from firebird_cdc.packaging.engine_log import uncounted
from firebird_cdc.packaging.findings import Finding, Findings, Severity
from firebird_cdc.packaging.layout import Server


def counted(server: Server, parameters: dict[str, str] | None, config: Path) -> Findings:
    """Find what was refused or lost and nobody has acknowledged, and what keeps it from being
    counted. config: the connector's file, whatever is wrong in it."""
    named = (parameters or {}).get("StateDirectory")
    if parameters is not None:
        yield from _place(server, named, config)
    folders = [] if named is None else [Path(named)]
    directory = None
    with suppress(ConfigError):  # a finding of its own
        directory = load_capture(config).journal_directory
    pages = failures.pages(directory, [config], folders)
    for each in failures.unacknowledged(pages):
        yield Finding(each.database or str(config), str(each), failures.REMEDY)
    for text in failures.unreadable(pages):
        what, _, remedy = text.partition("; ")
        yield Finding(str(config), what, remedy)
    yield from counted_nowhere(server, pages)


def counted_nowhere(server: Server, pages: Sequence[Path]) -> Findings:
    """Find what replication.log tells of as counted nowhere, since the last acknowledgement.

    pages: of the counters, beside which it is noted. Raises OSError if the log can't be read.
    """
    since = datetime.fromtimestamp(failures.acknowledged_us(pages) / 1e6)
    for where, said in uncounted(server, since):
        yield Finding(where, said, failures.REMEDY)


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
    may = [probes.may(server.account, right, folder) for right in ("w", "x")]
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
