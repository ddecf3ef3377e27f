"""Logging of bridge and shipper: one file, set up from a small YAML file.

Guarantees: nothing here raises into code that logs; a line is written by one system call
to a file opened for appending, so several threads and processes may share it; the file is
created readable by its owner only. Lines that cannot go to the file go to stderr.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import string
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import logbook

from firebird_cdc.config.source import Entry, Source, read_flat_yaml, read_text
from firebird_cdc.errors import ConfigError

DEFAULT_LOG_FILE: Final = Path("/tmp/firebird-cdc.log")  # noqa: S108 - the manual logs to /tmp too
DEFAULT_FORMAT: Final = "{time} {level} [{process} {thread}] {logger} [{file}:{line}] {message}"
LEVELS: Final = {
    "trace": logbook.TRACE,
    "debug": logbook.DEBUG,
    "info": logbook.INFO,
    "notice": logbook.NOTICE,
    "warning": logbook.WARNING,
    "warn": logbook.WARNING,
    "error": logbook.ERROR,
    "critical": logbook.CRITICAL,
}
FIELDS: Final = ("time", "level", "process", "thread", "logger", "file", "line", "message")
OPTIONS: Final = {
    "level": f"The least important level that is logged: {', '.join(LEVELS)}.",
    "file": "Absolute path of the log file.",
    "format": f"A line's form, with the fields {', '.join('{' + f + '}' for f in FIELDS)}.",
}

_WHAT: Final = "logging configuration"
# How often the file is looked at for having been renamed or deleted, as log rotation does.
_CHECK_SECONDS: Final = 1.0

_log = logbook.Logger("firebird_cdc.config.logging")


@dataclass(frozen=True, slots=True)
class LoggingOptions:
    """What to log, where, and in which form."""

    level: str = "info"
    file: Path = DEFAULT_LOG_FILE
    format: str = DEFAULT_FORMAT


def load_logging(path: Path) -> LoggingOptions:
    """Read the logging options in the YAML file PATH.

    Raises ConfigError with every problem at once, each with file and line. A Logback file
    of the RED Database connector is answered with the lines to write instead.
    """
    path = Path(path)
    if path.suffix.lower() == ".xml" or read_text(path, _WHAT).lstrip().startswith("<"):
        raise ConfigError([_answer_to_logback(path)])
    source = read_flat_yaml(path, _WHAT)
    problems = list(source.problems)
    values: dict[str, Any] = {}
    for entry in source.entries.values():
        _take(source, entry, values, problems)
    if problems:
        raise ConfigError(problems)
    return LoggingOptions(**values)


def _take(source: Source, entry: Entry, values: dict[str, Any], problems: list[str]) -> None:
    place = f"{source.path}:{entry.line}: {entry.key}"
    if entry.key not in OPTIONS:
        problems.append(f"{place}: no such logging option; there are: {', '.join(OPTIONS)}")
        return
    if entry.value in (None, "", ()):
        return
    if isinstance(entry.value, tuple) or entry.value is None:
        problems.append(f"{place}: it must be one value, not a list")
    elif entry.key == "level":
        values["level"] = entry.value.lower()
        if values["level"] not in LEVELS:
            problems.append(f"{place} is {entry.value!r}; allowed: {', '.join(LEVELS)}")
    elif entry.key == "file":
        values["file"] = Path(entry.value)
        if not values["file"].is_absolute():
            problems.append(f"{place} is {entry.value!r}; it must be an absolute path")
    else:
        values["format"] = entry.value
        if problem := _format_problem(entry.value):
            problems.append(f"{place} is {entry.value!r}; {problem}")


def _format_problem(text: str) -> str | None:
    allowed = ", ".join("{" + field + "}" for field in FIELDS)
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
        wrong = [name for name in names if name not in FIELDS]
        text.format(**dict.fromkeys(FIELDS, ""))
    except (ValueError, KeyError, IndexError, AttributeError) as error:
        return f"allowed are text and the fields {allowed}: {error}"
    if wrong:
        return f"there is no field {{{wrong[0]}}}; allowed: {allowed}"
    return None if "message" in names else "the field {message} is missing"


def _answer_to_logback(path: Path) -> str:
    """Return the sentence and the YAML lines that say what the Logback file PATH says."""
    text = read_text(path, _WHAT)
    level, file = "info", str(DEFAULT_LOG_FILE)
    # Attributes may stand without a blank between them, as in the manual's own sample.
    if match := re.search(r"""<root\b[^>]*?\blevel\s*=\s*["'](\w+)["']""", text):
        level = {"off": "critical", "all": "trace"}.get(match[1].lower(), match[1].lower())
    if match := re.search(r"<file>\s*([^<]+?)\s*</file>", text):
        file = match[1]
    return (
        f"{path}: this is a Logback file, which configures Java programs only. Write these lines"
        " to a file such as firebird_cdc_logging.yaml and name it in LoggingConfig of"
        f" plugins.conf:\nlevel: {level}\nfile: {file}"
    )


def setup_logging(path: Path | None) -> logbook.Handler:
    """Send all log records of this process to the file that PATH configures.

    PATH None: the defaults (level info, /tmp/firebird-cdc.log). Returns the handler, pushed
    on the application stack; the one of an earlier call is closed and says nothing more.
    Never raises: what is wrong with PATH is logged with the defaults in force, and a log
    file that cannot be opened is replaced by stderr, with a sentence.
    """
    global _current
    problems: list[str] = []
    options = LoggingOptions()
    if path is not None:
        try:
            options = load_logging(path)
        except ConfigError as error:
            problems = error.problems
    handler = LogFile(options)
    with _setup_lock:
        handler.push_application()
        if _current is not None:
            _current.close()
        _current = handler
    for problem in problems:
        _log.error("{} (logging goes on with its defaults)", problem)
    return handler


class LogFile(logbook.Handler):  # type: ignore[misc]
    """Appends records to a file, or to stderr while the file cannot be written.

    Any thread may call emit; the lock is held for one write. A file that was renamed or
    deleted is opened anew within a second or so, so log rotation needs no signal.
    """

    def __init__(self, options: LoggingOptions) -> None:
        super().__init__(level=LEVELS[options.level])
        self._options = options
        self._write_lock = threading.Lock()
        self._fd: int | None = None
        self._identity: tuple[int, int] | None = None
        self._next_check = 0.0
        self._complained = False
        self._closed = False
        with self._write_lock:
            self._open()

    def emit(self, record: Any) -> None:
        """Write RECORD; whatever goes wrong stays here."""
        with contextlib.suppress(Exception):
            line = self._line(record)
            with self._write_lock:
                self._write(line)

    def close(self) -> None:
        """Close the file; records that still come are dropped."""
        with self._write_lock:
            self._close()
            self._closed = True

    # -- the line

    def _line(self, record: Any) -> bytes:
        try:
            message = record.message
        except Exception as error:  # arguments that do not fit the text: keep the text
            message = f"{record.msg} (arguments do not fit: {error})"
        fields = {
            "time": datetime.now().astimezone().isoformat(timespec="milliseconds"),
            "level": record.level_name,
            "process": os.getpid(),
            "thread": record.thread_name or record.thread,
            "logger": record.channel,
            "file": Path(record.filename or "?").name,
            "line": record.lineno or 0,
            "message": message,
        }
        text = self._options.format.format(**fields)
        if record.exc_info:
            text += "\n" + (record.formatted_exception or "")
        # Later lines are indented, so that no data can pose as a record of its own.
        lines = text.rstrip().replace("\r", "\\r").split("\n")
        return ("\n    ".join(lines) + "\n").encode("utf-8", "backslashreplace")

    # -- the file; the lock is held

    def _write(self, line: bytes) -> None:
        if self._closed:
            return
        if time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + _CHECK_SECONDS
            if not self._is_still_there():
                self._close()
                self._open()
        if self._fd is not None:
            try:
                if os.write(self._fd, line) == len(line):
                    return
                self._complain("the disk is full")
            except OSError as error:
                self._complain(f"cannot write to it: {error.strerror}")
        _to_stderr(line)

    def _is_still_there(self) -> bool:
        try:
            found = self._options.file.stat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def _open(self) -> None:
        path = self._options.file
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        flags |= os.O_NONBLOCK  # a pipe without a reader must not stop the server
        try:
            if path.parent.stat().st_mode & stat.S_IWOTH:
                flags |= os.O_NOFOLLOW  # anybody could have put a link there
            fd = os.open(path, flags, 0o600)
            os.set_blocking(fd, True)
            found = os.fstat(fd)
        except OSError as error:
            self._complain(f"cannot open it: {error.strerror}")
            return
        self._fd = fd
        self._identity = (found.st_dev, found.st_ino)
        self._complained = False

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None
        self._identity = None

    def _complain(self, what: str) -> None:
        if not self._complained:
            self._complained = True
            sentence = (
                f"firebird-cdc: log file {self._options.file}: {what}; logging goes to stderr."
                " Set another file in the logging configuration or let this user write there\n"
            )
            _to_stderr(sentence.encode("utf-8", "backslashreplace"))


def _to_stderr(line: bytes) -> None:
    # Not sys.stderr: a server may have none, and Python's own object may be gone at exit.
    with contextlib.suppress(OSError):
        os.write(2, line)


_current: LogFile | None = None
_setup_lock = threading.Lock()
