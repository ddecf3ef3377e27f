"""``firebird-cdc ARGUMENTS...`` that also fails if its command leaves threads of the Kafka client.

While the process ends, OpenSSL takes apart what they may just be using.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from firebird_cdc.cli import main


def run(arguments: Sequence[str]) -> int:
    """Run the command; its exit code, or 70 if threads are left."""
    code = main(arguments)
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    left = [name for name in names if name.startswith("rdk:")]
    if left:
        print(f"ended with {code}, and threads of the Kafka client are left: {left}")
        return 70
    return code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
