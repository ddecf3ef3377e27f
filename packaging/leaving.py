"""Lists what an uninstallation leaves, for whoever wants all of it to go later, without us."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from firebird_cdc.errors import SetupError
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.packaging.install import Manifest, Plan
from firebird_cdc.packaging.purging import leavings
from firebird_cdc.packaging.server.layout import Server


def left_behind(server: Server, plan: Plan) -> Iterator[str]:
    """Yield a line for each thing of SERVER's that PLAN leaves and that may go later: its kind
    (file, logs, journals, folder), and its path. Has to be asked before PLAN is carried out.

    Processes that still have a journal folder open are for later to look at, and whether more has
    come into it.
    """
    manifest = Manifest.read(server)
    removed = {step.path for step in plan.steps}
    found = leavings(server, are_open_ones_kept=False)
    for path in map(Path, manifest.files):
        if path.exists() and path not in removed | found.needed:
            yield f"file {path}"
    for path in map(Path, manifest.folders):
        if path not in removed and path in {log.parent for log in found.logs}:
            yield f"logs {path}"
    for path in found.trees:
        if path not in removed:
            yield f"{'journals' if (path / STATE_DIRECTORY).is_dir() else 'folder'} {path}"


def write_left(path: Path, lines: Iterable[str]) -> None:
    """Write LINES into the file PATH, with the files that an earlier uninstallation has left and
    which nobody lists any more. Raises SetupError."""
    try:
        former = path.read_text("utf-8").splitlines() if path.exists() else []
        known = [line for line in former if line.startswith("file ")]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in dict.fromkeys([*known, *lines])), "utf-8")
    except OSError as error:
        raise SetupError(f"{path} can't be written: {error.strerror}") from error
