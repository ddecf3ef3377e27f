"""Finds the configuration files of a server: environment, plugins.conf, jvm.args, default."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

DEFAULT_CONFIG_NAME: Final = "reddatabase.connector.yaml"
CONFIG_VARIABLE: Final = "FIREBIRD_CONNECTOR_CONFIG"
LOGGING_VARIABLE: Final = "FIREBIRD_CONNECTOR_LOGGING"

_JVM_ARGS: Final = "jvm.args"
_JVM_CONFIG: Final = "-Dfirebird.connector.config="
_JVM_LOGGING: Final = "-Dlogback.configurationFile="


class FileLocations(NamedTuple):
    """Files with the connector's options and, if any are given, the logging options."""

    config: Path
    logging: Path | None


def locate_files(
    plugin_parameters: Mapping[str, str], environ: Mapping[str, str], server_directory: Path
) -> FileLocations:
    """Return the files that count for a server, whether they exist or not.

    plugin_parameters: the Config section of ``plugins.conf``. Of ConnectorConfig and
    LoggingConfig each, the environment (FIREBIRD_CONNECTOR_CONFIG,
    FIREBIRD_CONNECTOR_LOGGING) wins over ``plugins.conf``, that over ``jvm.args`` in
    server_directory, and that over the default. Relative paths are taken from
    server_directory. ``logging`` may be a Logback file; setup_logging knows what to say.
    """
    jvm_config, jvm_logging = _read_jvm_args(server_directory / _JVM_ARGS)
    config = (
        environ.get(CONFIG_VARIABLE, "").strip()
        or plugin_parameters.get("ConnectorConfig", "").strip()
        or jvm_config
        or DEFAULT_CONFIG_NAME
    )
    logging = (
        environ.get(LOGGING_VARIABLE, "").strip()
        or plugin_parameters.get("LoggingConfig", "").strip()
        or jvm_logging
    )
    return FileLocations(server_directory / config, server_directory / logging if logging else None)


def add_config_option(parser: argparse._ActionsContainer) -> None:
    """Add ``--config`` to a command, which `firebird_cdc.packaging.server.locating` finds without
    it."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"{DEFAULT_CONFIG_NAME} (default: ${CONFIG_VARIABLE}, else that of the one server"
        " that this machine has)",
    )


def _read_jvm_args(path: Path) -> tuple[str, str]:
    """Return the connector's and Logback's file as named in PATH; empty: not named there.

    As for a Java machine, the last of several settings counts. A file that is missing or
    unreadable names nothing: the default then applies, and its absence is reported.
    """
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return "", ""
    config = logging = ""
    for line in lines:
        for argument in _arguments(line):
            if argument.startswith(_JVM_CONFIG):
                config = argument.removeprefix(_JVM_CONFIG).strip()
            elif argument.startswith(_JVM_LOGGING):
                logging = _plain_path(argument.removeprefix(_JVM_LOGGING).strip())
    return config, logging


def _arguments(line: str) -> list[str]:
    """Return the arguments in LINE: one line may hold several, in quotes or not."""
    if line.lstrip().startswith("#"):
        return []
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    lexer.escape = ""  # a backslash is part of a Windows path
    try:
        return list(lexer)
    except ValueError:  # a quote that is not closed: take the line as it stands
        return [line.strip().strip("\"'")]


def _plain_path(text: str) -> str:
    return unquote(urlsplit(text).path) if text.startswith("file:") else text
