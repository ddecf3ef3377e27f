"""The commands that README and docs show, and which of them no test runs, with the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])

RUN_ON_A_SERVER = ("README.md", "docs/installation.md", "docs/monitoring.md", "docs/operations.md")
"""Pages whose commands tests/server/test_documented_commands.py runs as they stand."""

EXEMPT = {
    "make": "tests/unit/test_docs.py holds its targets against the Makefile; they run this suite",
    "apt-get": "the chroot of the server tests was made with these packages",
    "kafka-console-consumer.sh": "Kafka's own; what it would read is compared in tests/kafka",
    "firebird-cdc replay": "needs Spark, which is not in the chroot: tests/spark runs each command",
    "spark-submit": "Spark's own; tests/spark/test_commands.py submits such command lines",
    "mvn": "downloads; demo/maven.py has the same artifacts fetched for tests/spark",
    "unzip": "takes a file out of an archive that tests/spark/test_commands.py makes",
    "cd": "goes before isql",
    "isql": "tests/spark/test_sql_forward.py applies such scripts",
    ".venv/bin/pytest": "runs this suite",
    ".venv/bin/python": "benchmarks, which the suite runs at a tiny size",
    "touch": "its path has a placeholder: <key>",
    "kill": "its process is an example's, and another one here",
    "/opt/firebird-cdc/bin/pip install '.[": "what the extras name is installed for this suite",
}
"""Beginnings of command lines, and why no test runs these lines as they stand."""

RUNNABLE = ("firebird-cdc ", "python3 -m venv ", "/opt/firebird-cdc/bin/pip ", "ln -sf /opt/")
"""Beginnings of those that a test runs, as root."""

# What else is in a block without a language: output, drawings, parts of files.
_NO_COMMANDS = re.compile(
    r"error: |\d+ transactions |DIR/|/data/shop\.fdb journal|core seconds|database\n"
    r"|database server|user's thread|Plugin =|PythonDirs"
)
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def command_lines(page: Path) -> Iterator[str]:
    """Yield the command lines of PAGE, each in one line, without what comments on it."""
    for language, block in _FENCE.findall(page.read_text("utf-8")):
        if language not in ("", "sh", "bash", "console") or _NO_COMMANDS.match(block.lstrip()):
            continue
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            if command := line.partition("  #")[0].strip():
                yield command


def exemption(command: str) -> str | None:
    """Return why no test runs COMMAND, None if one has to."""
    return next((why for begin, why in EXEMPT.items() if command.startswith(begin)), None)
