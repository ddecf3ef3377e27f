"""Arguments that the commands of replay share."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

import firebird_cdc
from firebird_cdc.config.locate import CONFIG_VARIABLE, add_config_option
from firebird_cdc.errors import ReplayError, UsageError

if TYPE_CHECKING:
    from firebird_cdc.config import ConnectorConfig


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add what says which journals are read, and where Spark runs."""
    parser.add_argument(
        "--journals",
        metavar="DIR",
        action="append",
        help="folder of journals, several times for several; default: what --config names",
    )
    add_config_option(parser)
    parser.add_argument("--database", metavar="PATH", help="only this database")
    parser.add_argument(
        "--master", metavar="URL", help="where Spark runs (default: local[2]); not for spark-submit"
    )


def add_jars_option(parser: argparse._ActionsContainer, whose: str) -> None:
    """Add ``--jars``, for what Spark does not come with; WHOSE they are is for its help."""
    parser.add_argument(
        "--jars",
        metavar="PATH",
        action="append",
        default=[],
        type=Path,
        help=f"jar, or folder of jars, {whose}; several times; not for spark-submit",
    )


def jars_of(arguments: argparse.Namespace) -> list[str]:
    """Return the paths of the jars of ``--jars``. Raises UsageError if one is not there."""
    jars = []
    for place in arguments.jars:
        if place.is_dir():
            jars += sorted(str(jar) for jar in place.glob("*.jar"))
        elif place.exists():
            jars.append(str(place))
        else:
            raise UsageError(f"--jars: {place} is not there")
    return jars


def load_configuration(arguments: argparse.Namespace) -> ConnectorConfig | None:
    """Return the configuration of ``--config`` or of the environment, None if there is none.

    Where it alone can tell what is read, that of the server on this machine will do. Raises
    ConfigError if it is wrong, SetupError if there are several.
    """
    from firebird_cdc.config import load_config

    if arguments.config is not None:
        return load_config(arguments.config)
    if firebird_cdc.archive is not None:  # on a cluster, which has no server to look for
        named = os.environ.get(CONFIG_VARIABLE, "").strip()
        return load_config(Path(named)) if named else None
    from firebird_cdc.packaging.server.locating import (
        config_in_environment,
        find_servers,
        locate_options,
    )

    is_needed = not arguments.journals or any(
        vars(arguments).get(name) for name in ("against_kafka", "against_database")
    )
    if config_in_environment() is None and not (is_needed and find_servers()):
        return None
    return locate_options()


def source_of(arguments: argparse.Namespace) -> tuple[list[str], str]:
    """Return the folders to read, the archive if none is named, and the character set of NONE
    texts.

    Raises UsageError if no folder is named, ConfigError for a wrong configuration, ReplayError if
    it keeps no archive.
    """
    from firebird_cdc.journal.replay.source.storage import no_history

    config = load_configuration(arguments)
    charset = "UTF-8" if config is None else config.charset_none
    if arguments.journals:
        return arguments.journals, charset
    if config is None:
        raise UsageError(
            "no folder of journals is named: give --journals DIR, or --config FILE whose"
            " connector.journal.archive.directory is set"
        )
    if config.journal_archive_directory is None:
        raise ReplayError(no_history(f"{config.path} keeps no archive"))
    return [str(config.journal_archive_directory)], charset
