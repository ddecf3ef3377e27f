"""Finds the configuration files of a server: environment, plugins.conf, jvm.args, default."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

DEFAULT_CONFIG_NAME = "reddatabase.connector.yaml"


class FileLocations(NamedTuple):
    """Where the connector's options and, if any, the logging options are."""

    config: Path
    logging: Path | None


def locate_files(
    plugin_parameters: Mapping[str, str], environ: Mapping[str, str], server_directory: Path
) -> FileLocations:
    """Return the files that count, whether they exist or not."""
    config = environ.get("FIREBIRD_CONNECTOR_CONFIG") or plugin_parameters.get("ConnectorConfig")
    logging = environ.get("FIREBIRD_CONNECTOR_LOGGING") or plugin_parameters.get("LoggingConfig")
    return FileLocations(
        server_directory / (config or DEFAULT_CONFIG_NAME),
        server_directory / logging if logging else None,
    )
