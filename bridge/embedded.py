"""The entry that the plugin calls through cffi's embedding."""

from __future__ import annotations

import gc
import os
import threading
import traceback
from typing import Any

import logbook

from firebird_cdc.bridge.host import CffiHost
from firebird_cdc.bridge.service import Bridge
from firebird_cdc.config import load_capture, locate_files
from firebird_cdc.config.logging import SERVER, setup_logging
from firebird_cdc.errors import ConfigError, FirebirdCdcError

_OK, _FAILED = 1, 0
_log = logbook.Logger("firebird_cdc.bridge")
_lock = threading.Lock()
_bridge: Bridge | None = None
_reported = ""
_logging_set_up = False


def _start(host: CffiHost, connector_config: str, logging_config: str) -> None:
    global _bridge, _logging_set_up, _reported
    given = {"ConnectorConfig": connector_config, "LoggingConfig": logging_config}
    files = locate_files({k: v for k, v in given.items() if v}, os.environ, host.root)
    if not _logging_set_up:
        setup_logging(files.logging, SERVER)
        _logging_set_up = True
    config = load_capture(files.config)
    for warning in config.warnings:
        _log.warning("{}", warning)
    if _bridge is None:
        _bridge = Bridge(host)
    _bridge.start(config, files.logging)
    gc.freeze()  # modules stay: no collection need go through them
    for problem in config.problems:
        _log.error("changes are captured, but none is sent until this is corrected: {}", problem)
    _reported = ""


def _sentence(error: BaseException) -> str:
    if isinstance(error, ConfigError) and len(error.problems) > 1:
        return f"{error.problems[0]} (and {len(error.problems) - 1} more, see the connector's log)"
    if isinstance(error, FirebirdCdcError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or ''}: {error.strerror}".lstrip(": ")
    return f"the bridge failed: {type(error).__name__}: {error}"


def _report(failure: BaseException) -> None:
    """Log a failure once: sentences for what a user can mend, a traceback for what is ours."""
    global _reported
    text = str(failure)
    if text == _reported:
        return  # a start is tried again with every transaction
    _reported = text
    if isinstance(failure, FirebirdCdcError):
        for sentence in text.splitlines():
            _log.error("capture can't start: {}", sentence)
    else:
        _log.error("{}", "".join(traceback.format_exception(failure)).rstrip())


def define(ffi: Any) -> None:
    """Give the embedding's C function its body; called once, by the embedding's own start."""

    def bridge_start(
        api: Any,
        connector_config: Any,
        logging_config: Any,
        python_dirs: Any,  # noqa: ARG001  (already on sys.path)
        error: Any,
        error_size: int,
    ) -> int:
        def text(value: Any) -> str:
            return str(ffi.string(value).decode())

        try:
            with _lock:
                _start(CffiHost(ffi, api), text(connector_config), text(logging_config))
        except BaseException as failure:  # nothing of ours may reach the server
            _report(failure)
            sentence = _sentence(failure).encode()[: error_size - 1]
            ffi.memmove(error, sentence + b"\0", len(sentence) + 1)
            return _FAILED
        return _OK

    ffi.def_extern(name="fbc_bridge_start", error=_FAILED)(bridge_start)
