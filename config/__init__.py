"""The options of the connector as typed values, and the files they are read from."""

from firebird_cdc.config.connector import (
    CaptureConfig,
    ConnectorConfig,
    find_journal_directory,
    load_capture,
    load_config,
)
from firebird_cdc.config.families import (
    ColumnHash,
    KeyColumns,
    NamedConfig,
)
from firebird_cdc.config.locate import FileLocations, locate_files
from firebird_cdc.config.reading import Reading

__all__ = [
    "CaptureConfig",
    "ColumnHash",
    "ConnectorConfig",
    "FileLocations",
    "KeyColumns",
    "NamedConfig",
    "Reading",
    "find_journal_directory",
    "load_capture",
    "load_config",
    "locate_files",
]
