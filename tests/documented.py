"""The commands that README and docs show, and which of them no test runs, with the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])

RUN_ON_A_SERVER = (
    "README.md",
    "docs/installation.md",
    "docs/upgrade.md",
    "docs/monitoring.md",
    "docs/operations.md",
    "docs/troubleshooting.md",
)
"""Pages whose commands tests/server/test_documented_commands.py runs as they stand."""

EXEMPT = {
    "make": "tests/unit/test_docs.py holds its targets against the Makefile; they run this suite",
    "apt-get": "the chroot of the server tests was made with these packages",
    "apt install ": "make packages-acceptance does, in a Debian of its own",
    "dnf ": "make packages-check does, in a Debian that has dnf",
    "sh firebird-cdc-": "make packages-check does",
    "sha256sum -c firebird-cdc-": "make packages-check does",
    "git tag": "names a release, which no test makes",
    "export DEB": "tests/packaging/test_bundle.py sees packages named so",
    "kafka-console-consumer.sh": "Kafka's own; what it would read is compared in tests/kafka",
    "firebird-cdc replay": "tests/spark runs each command, with Spark and without",
    "firebird-cdc snapshot": "tests/snapshots/test_snapshots.py runs the lines of its page",
    "spark-submit": "Spark's own; tests/spark/test_commands.py submits such command lines",
    "mvn": "downloads; demo/maven.py has the same artifacts fetched for the tests that use them",
    "unzip": "takes a file out of an archive that tests/spark/test_commands.py makes",
    "cd": "goes before isql",
    "isql": "tests/spark/test_sql_forward.py applies such scripts",
    ".venv/bin/pytest": "runs this suite",
    ".venv/bin/python": "benchmarks, which the suite runs at a tiny size",
    "touch": "its path has a placeholder: <key>",
    "firebird-cdc upgrade": "of a tree: tests/packaging/test_switching.py switches versions of one",
    "firebird-cdc prune": "the same",
    "systemctl": "tests/server/test_shipper_as_a_service.py runs the unit's command line",
    "journalctl": "shows what systemd has, which no test has at work",
    "find": "tests/server/test_shipper_as_a_service.py gives a folder of before these modes",
    "kill": "its process is an example's, and another one here",
    "/opt/firebird-cdc-venv/bin/pip install '.[": "the extras are installed for this suite",
}
"""Beginnings of command lines, and why no test runs these lines as they stand."""

RUNNABLE = ("firebird-cdc ", "python3 -m venv ", "/opt/firebird-cdc-venv/bin/pip ", "ln -sf /opt/")
"""Beginnings of those that a test runs, as root."""

# What else is in a block without a language: output, drawings, parts of files.
_NO_COMMANDS = re.compile(
    r"error: |\d+ transactions |DIR/|/data/shop\.fdb journal|core seconds|database\n"
    r"|database server|user's thread|Plugin =|PythonDirs"
)
_FILE_NAME = {
    "python": re.compile(r"# ([\w-]+\.py)\n"),
    "sql": re.compile(r"-- ([\w-]+\.sql)\n"),
    "json": re.compile(r'\{\s*"name": "([\w-]+)",\s*"config"'),
}
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


CONSUMERS = "docs/consuming.md"
"""The page whose commands tests/connect/test_consuming_page.py runs as they stand."""

RUN_BY_CONSUMERS = ("curl ", "flink/bin/sql-client.sh ", "python3 orders_to_sqlite.py ")
"""Beginnings of those of its commands that are no exemptions."""


def command_lines(page: Path) -> Iterator[str]:
    """Yield the command lines of PAGE, each in one line, without what comments on it."""
    yield from command_lines_in(page.read_text("utf-8"))


def command_lines_in(text: str) -> Iterator[str]:
    """Yield the command lines of the text of a page or of a part of one."""
    for language, block in _FENCE.findall(text):
        if language not in ("", "sh", "bash", "console") or _NO_COMMANDS.match(block.lstrip()):
            continue
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            if command := line.partition("  #")[0].strip():
                yield command


def blocks(page: Path, *languages: str) -> list[str]:
    """Return the fenced blocks in one of LANGUAGES; "" stands for those without one."""
    found = _FENCE.findall(page.read_text("utf-8"))
    return [text for language, text in found if language in languages]


def named_files(page: Path) -> dict[str, str]:
    """Return the files that PAGE shows, by name: programs and queries name themselves in their
    first line, and a connector of Kafka Connect by its name."""
    files: dict[str, str] = {}
    for language, block in _FENCE.findall(page.read_text("utf-8")):
        named = _FILE_NAME[language].match(block) if language in _FILE_NAME else None
        if named is not None:
            files[named[1] if language != "json" else f"{named[1]}.json"] = block
    return files


def exemption(command: str) -> str | None:
    """Return why no test runs COMMAND, None if one has to."""
    return next((why for begin, why in EXEMPT.items() if command.startswith(begin)), None)
