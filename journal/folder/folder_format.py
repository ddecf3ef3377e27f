"""The format of a journal folder as a whole: journals, ledgers, pages and states in it.

A version that writes into the folder what the versions before it can't read raises FORMAT, and then
writes the number into the file ``format`` of the state folder before anything else, on disk; the
versions before it work there no more. Format 2 has shared journals (docs/journal-format.md) and no
such file: version 0.1 looks for none, and is kept out otherwise (`page_file`).
"""

from __future__ import annotations

from pathlib import Path

from firebird_cdc.errors import SetupError
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY

FORMAT = 2
FORMAT_FILE = "format"


def format_of(directory: Path) -> int:
    """Return the format that the journal folder DIRECTORY tells, 0 if it tells none. OSError.
    Raises SetupError if what it tells is no number."""
    path = directory / STATE_DIRECTORY / FORMAT_FILE
    try:
        text = path.read_text("ascii", "replace").strip()
    except FileNotFoundError:
        return 0
    if not text.isdigit():
        raise SetupError(
            f"{path} tells no format of the folder, which firebird-cdc has to know before it works"
            " there: run the version that has worked there last"
        )
    return int(text)


def refuse_newer_format(directory: Path) -> None:
    """Raise SetupError if a newer version has written into the journal folder DIRECTORY what this
    one can't read. OSError."""
    told = format_of(directory)
    if told > FORMAT:
        raise SetupError(
            f"{directory} has format {told}, of a newer version of firebird-cdc; this one knows"
            f" formats up to {FORMAT}: go on with the newer version, or have it ship what waits and"
            " lead the folder back (firebird-cdc journal downgrade)"
        )
