"""The command ``ship``: sends committed journals to Kafka."""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

from firebird_cdc.config.arguments import Subparsers
from firebird_cdc.config.locate import LOGGING_VARIABLE, add_config_option


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "ship",
        help="send committed journals to Kafka",
        description="Sends committed journals to Kafka, and deletes or archives each one when"
        " all of it is acknowledged. Runs until SIGTERM or SIGINT.",
    )
    add_config_option(parser)
    parser.add_argument("--logging", type=Path, metavar="FILE", help="logging configuration (YAML)")
    parser.add_argument(
        "--once",
        action="store_true",
        help="ship the journals that are there and end. Exit code 0: nothing is left; 1: some"
        " journals are left, or a table has no topic",
    )
    parser.add_argument(
        "--embedded",
        action="store_true",
        help="end when the last server process on the journal folder has ended",
    )
    # For who starts it embedded: its exit code and output are nobody's then.
    parser.add_argument("--last-words", type=Path, help=argparse.SUPPRESS)
    parser.set_defaults(run=_ship)


def _ship(arguments: argparse.Namespace) -> int:
    from firebird_cdc.config.logging import setup_logging
    from firebird_cdc.errors import FirebirdCdcError
    from firebird_cdc.journal.folder import exit_status

    if arguments.logging is None and (named := os.environ.get(LOGGING_VARIABLE, "").strip()):
        arguments.logging = Path(named)
    if arguments.config is None:
        from firebird_cdc.packaging.server.locating import locate_config

        arguments.config = locate_config()
    words_path: Path | None = arguments.last_words
    config_ns = exit_status.changed_ns(arguments.config)
    if words_path is not None:
        words_path.unlink(missing_ok=True)
    try:
        setup_logging(arguments.logging)
        return _ship_to_the_end(arguments)
    except Exception as error:
        code = error.exit_code if isinstance(error, FirebirdCdcError) else 1
        config = str(arguments.config.absolute())
        words = exit_status.LastWords(code, str(error), config_ns, time.time(), config)
        if words_path is None and words.is_refusal:
            words_path = _words_path(arguments.config)
        if words_path is not None:
            exit_status.leave(words_path, words)
        raise


def _words_path(config: Path) -> Path | None:
    """Return where ``status`` looks for why there is no shipper, if CONFIG tells as much."""
    from firebird_cdc.config import load_capture
    from firebird_cdc.errors import ConfigError
    from firebird_cdc.journal.folder.exit_status import words_path

    try:
        path = words_path(load_capture(config).journal_directory)
    except ConfigError:
        return None
    return path if path.parent.is_dir() else None


def _ship_to_the_end(arguments: argparse.Namespace) -> int:
    import logbook

    from firebird_cdc.config import load_config
    from firebird_cdc.errors import FirebirdCdcError, ShipError
    from firebird_cdc.journal.shipper.ending import LastResort
    from firebird_cdc.journal.shipper.loop import Shipper, prepare_process

    log = logbook.Logger("firebird_cdc.journal.shipper.commands.ship")
    try:
        config = load_config(arguments.config)
        for warning in config.warnings:
            log.warning("{}", warning)
        shipper = Shipper(config, once=arguments.once, embedded=arguments.embedded)
        shipper.ending.last_resort = LastResort(config.close_timeout_ms / 1000)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: shipper.stop())
        prepare_process(embedded=arguments.embedded)
        code = shipper.run()
    except FirebirdCdcError as error:
        log.error("the shipper ends: {}", error)
        raise
    except Exception:
        log.exception("the shipper ends because of an internal error")
        raise
    if code:
        raise ShipError(
            f"journals in {config.journal_directory} could not be shipped and stay there; the "
            "log says why"
        )
    return code
