"""``firebird-cdc ARGUMENTS...`` that also fails if its command leaves threads of the Kafka client.

While the process ends, OpenSSL takes apart what they may just be using.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from firebird_cdc.cli import main
from firebird_cdc.journal.shipper import ending

_FLAGS = 6  # of the fields behind the name in /proc/<pid>/stat, see proc(5)
_PF_EXITING = 0x4  # a thread that was joined may be listed on for a moment, but runs no more


def _threads() -> Iterator[str]:
    for task in Path("/proc/self/task").iterdir():
        try:
            name, _, fields = (task / "stat").read_text().partition("(")[2].rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if not int(fields.split()[_FLAGS]) & _PF_EXITING:
            yield name


def run(arguments: Sequence[str]) -> int:
    """Run the command; its exit code, or 70 if threads are left."""
    code = main(arguments)
    left = [name for name in _threads() if name.startswith("rdk:")]
    if left:
        print(f"ended with {code}, and threads of the Kafka client are left: {left}")
        return 70
    return code


if __name__ == "__main__":
    ending._LOG_S = 30.0  # on a disk that is busy with others, the last line has time, too
    sys.exit(run(sys.argv[1:]))
