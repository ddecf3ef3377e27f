"""The command ``init``: a first file of connector options, short and with comments.

Comments are what the table of options says, defaults and examples what the sample has.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from firebird_cdc.config.arguments import Subparsers, name_and_value
from firebird_cdc.config.locate import DEFAULT_CONFIG_NAME
from firebird_cdc.config.options import find_option
from firebird_cdc.config.secrets import is_secret, shown_key
from firebird_cdc.errors import ConfigError, SetupError, UsageError
from firebird_cdc.packaging.arguments import add_server_option

if TYPE_CHECKING:
    from firebird_cdc.packaging.server.layout import Server


class _Setting(NamedTuple):
    """An option that has an argument of its own: ``flag``. ``question``: None: it is not asked
    for."""

    option: str
    flag: str
    metavar: str
    question: str | None


_SETTINGS = (
    _Setting("connector.name", "--name", "NAME", None),
    _Setting("connector.journal.directory", "--journals", "FOLDER", "Folder for journals"),
    _Setting(
        "connector.journal.archive.directory",
        "--archive",
        "FOLDER",
        "Folder for journals that were shipped (-: delete them)",
    ),
    _Setting(
        "kafka.producer.bootstrap.servers",
        "--bootstrap-servers",
        "HOST:PORT,...",
        "Kafka's brokers, as host:port,host:port",
    ),
    _Setting("kafka.topic.prefix", "--topic-prefix", "NAME", "First part of all topics' names"),
    _Setting(
        "kafka.producer.transactional.id",
        "--transactional-id",
        "ID",
        "Transactional id, for events exactly once (-: none)",
    ),
    _Setting(
        "database.hostname",
        "--database-host",
        "HOST",
        "Host to attach to databases through, for rows that exist already (-: none)",
    ),
    _Setting("database.port", "--database-port", "PORT", None),
    _Setting("database.user", "--database-user", "USER", "User for that (-: none)"),
    _Setting(
        "database.password.file",
        "--password-file",
        "FILE",
        "File with that user's password (-: none)",
    ),
)
_NOTHING = "-"
_ASKED = frozenset(setting.option for setting in _SETTINGS)
# Shown as examples, unless they are set.
_ALSO_SHOWN = ("snapshot.mode", "table.exclude.list")
_SAMPLE_LINE = re.compile(r"^(#?)([a-z][\w.]+): (.+)$", re.MULTILINE)
_WIDTH = 98
_PLAIN = re.compile(r"(?!null$)[A-Za-z0-9/][\w/.,-]*(?::\d+[\w/.,-]*)*", re.IGNORECASE)
_HEAD = """\
# Options of firebird-cdc, one a line. A "#" before an option shows one that is off. All of them are
# in docs/reference.md; firebird-cdc check tells what is wrong here.
"""


def register(subparsers: Subparsers) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "init",
        help="write a first file of connector options",
        description="Writes a short file of connector options with comments, and checks it. Asks"
        " for what it needs; without a terminal, or with one of the options that set something, it"
        " asks nothing.",
    )
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="file to write, - for standard output (default: that of the one server that this"
        f" machine has, else {DEFAULT_CONFIG_NAME} in this folder)",
    )
    for setting in _SETTINGS:
        option = find_option(setting.option)
        meaning = "" if option is None else option.meaning.partition(". ")[0].rstrip(".")
        parser.add_argument(
            setting.flag,
            dest=setting.option,
            metavar=setting.metavar,
            help=f"{setting.option}: {meaning.replace('`', '').replace('%', '%%')}",
        )
    parser.add_argument(
        "--set",
        type=name_and_value,
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="any other option; repeatable",
    )
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    add_server_option(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    given = _given(arguments)
    server = _server(arguments)
    path = _place(arguments, server)
    if path is not None and path.exists() and not (arguments.force or _is_sample(path)):
        raise SetupError(
            f"{path} is there already and stays as it is; --force has it replaced, and another FILE"
            " can be named"
        )
    sample = _sample()
    values = {key: value for key, (is_set, value) in sample.items() if is_set}
    values = {setting.option: values.get(setting.option, "") for setting in _SETTINGS} | given
    text = (
        _checked(values, sample)
        if given or not (sys.stdin.isatty() and sys.stdout.isatty())
        else _asked(values, sample)
    )
    if path is None:
        print(text, end="")
        return 0
    _write(path, text, server)
    print(f"wrote {path}")
    print(f"Next: firebird-cdc install --config {path}")
    return 0


def _given(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options that ARGUMENTS set. Raises UsageError."""
    named = {each.option: getattr(arguments, each.option) for each in _SETTINGS}
    given = {option: value for option, value in named.items() if value is not None}
    for option, value in arguments.set:
        # What stands in a command line, others see.
        if is_secret(option) and not value.startswith("${"):
            raise UsageError(
                f"--set {shown_key(option)}: other users of the machine see command lines; write"
                " that option into the file afterwards"
            )
        given[option] = value
    for option, value in given.items():
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise UsageError(f"{shown_key(option)}: what is given is no text in UTF-8")
    return given


def _server(arguments: argparse.Namespace) -> Server | None:
    """Return the server that the file is for, None if there is none, or which one is not clear."""
    from firebird_cdc.packaging.server.layout import find_server
    from firebird_cdc.packaging.server.locating import find_servers

    if arguments.server is not None:
        return find_server(arguments.server)
    servers = find_servers()
    if len(servers) > 1 and arguments.file is None:
        roots = ", ".join(sorted(str(server.root) for server in servers))
        raise SetupError(
            f"this machine has several servers: {roots}. Name a FILE, or --server ROOT"
        )
    return servers[0] if len(servers) == 1 else None


def _place(arguments: argparse.Namespace, server: Server | None) -> Path | None:
    """Return the file to write, None for standard output."""
    from firebird_cdc.packaging.server.locating import config_in_environment, config_of

    if arguments.file is not None:
        return None if str(arguments.file) == "-" else Path(arguments.file).absolute()
    if server is None:
        return Path(DEFAULT_CONFIG_NAME).absolute()
    named = config_in_environment(server.root) or config_of(server)
    if named == server.root / DEFAULT_CONFIG_NAME and not named.exists():
        return server.conf_directory / DEFAULT_CONFIG_NAME  # where install looks for it, too
    return named


def _is_sample(path: Path) -> bool:
    """Tell whether PATH is what install has put there, and nobody has edited."""
    from firebird_cdc.packaging.install import CONNECTOR_SAMPLE, SAMPLES

    return path.is_file() and path.read_bytes() == (SAMPLES / CONNECTOR_SAMPLE).read_bytes()


def _sample() -> dict[str, tuple[bool, str]]:
    """Return the options in the sample, and whether each is on there."""
    from firebird_cdc.packaging.install import CONNECTOR_SAMPLE, SAMPLES

    text = (SAMPLES / CONNECTOR_SAMPLE).read_text("utf-8")
    return {key: (not off, value) for off, key, value in _SAMPLE_LINE.findall(text)}


def _asked(values: dict[str, str], sample: Mapping[str, tuple[bool, str]]) -> str:
    """Return the file with the user's answers for VALUES. Raises SetupError if there are none."""
    values = dict(values)
    while True:
        for setting in _SETTINGS:
            if setting.question is None:
                continue
            try:
                answer = input(f"{setting.question} [{values[setting.option] or _NOTHING}]: ")
            except EOFError:
                raise SetupError("no answers, so nothing was written") from None
            if answer := answer.strip():
                values[setting.option] = "" if answer == _NOTHING else answer
        try:
            return _checked(values, sample)
        except ConfigError as error:
            print(error, file=sys.stderr)


def _checked(values: Mapping[str, str], sample: Mapping[str, tuple[bool, str]]) -> str:
    """Return the file that sets VALUES. Raises ConfigError if the shipper would not take it."""
    from firebird_cdc.config import load_config

    text = "\n".join((_HEAD, *_paragraphs(values, sample)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / DEFAULT_CONFIG_NAME
        path.write_text(text, "utf-8")
        try:
            config = load_config(path)
        except ConfigError as error:
            at = re.compile(rf"^{re.escape(str(path))}(?::\d+)?: ")
            raise ConfigError([at.sub("", problem) for problem in error.problems]) from None
    for warning in config.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return text


def _paragraphs(values: Mapping[str, str], sample: Mapping[str, tuple[bool, str]]) -> Iterator[str]:
    names = [setting.option for setting in _SETTINGS]
    for key in dict.fromkeys((*names, *_ALSO_SHOWN, *values)):
        option = find_option(key)
        if option is not None:
            wrapped = textwrap.wrap(option.meaning.replace("`", ""), _WIDTH)
            yield "".join(f"# {line}\n" for line in wrapped) + _line(key, values, sample)
        else:
            yield _line(key, values, sample)


def _line(key: str, values: Mapping[str, str], sample: Mapping[str, tuple[bool, str]]) -> str:
    value = values.get(key, "")
    if value == _NOTHING and key in _ASKED:
        value = ""
    if not value and key in sample:
        return f"#{key}: {sample[key][1]}\n"
    # JSON's texts are YAML's, too.
    shown = value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    return f"{key}: {shown}\n"


def _write(path: Path, text: str, server: Server | None) -> None:
    """Write the file, for nobody but its owner and the server. Raises SetupError."""
    from firebird_cdc.packaging.files import FileChanges

    is_for_server = server is not None and os.geteuid() == 0
    owner = (0, server.account.gid) if server is not None and is_for_server else None
    with FileChanges() as changes:
        # Behind a link: who keeps the options elsewhere goes on to edit them there.
        changes.write(path.resolve(), text.encode(), 0o640 if is_for_server else 0o600, owner)
