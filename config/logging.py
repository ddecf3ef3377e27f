"""Logging of bridge and shipper: a file for each of them, set up from a small YAML file.

Guarantees: nothing here raises into code that logs, or waits for long. Several threads and
processes may share a file: a line is one write to a file opened for appending, with a shared
lock on it (flock). Whoever finds it too long takes the lock for itself, gives it its next name and
opens a new one; the others see before their next line that the name leads elsewhere. So no line
lands in a file that may be removed at the next rotation, and none is torn. How a file is
opened, and what takes the lines that cannot go to it, is in log_output.

logbook's own RotatingFileHandler is for one process: each one renames when its own count is full,
and goes on writing to a file that others may have renamed or removed. Its names are kept.
concurrent-log-handler (0.9.31) is for the standard library's logging. It waits without end for a
lock that a stopped process holds, and for the reader of a pipe.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import string
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import logbook

from firebird_cdc.config.log_output import StandIn, open_log, why_unwritable, write_quietly
from firebird_cdc.config.reading import stamp_of
from firebird_cdc.config.source import Source, read_flat_yaml, read_text
from firebird_cdc.config.values import Entry, ValueProblem, parse_integer
from firebird_cdc.errors import ConfigError

SERVER: Final = "server"
SHIPPER: Final = "shipper"
ROLES: Final = (SERVER, SHIPPER)
"""The plugin in the server, and the shipper, which may be another user's."""

DEFAULT_LOG_FILE: Final = Path("/var/log/firebird-cdc/{role}.log")
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
JSON: Final = "json"
_CONTROLS: Final = {
    code: ascii(chr(code))[1:-1] for code in (*range(32), *range(127, 160)) if code not in b"\t\n"
}
OPTIONS: Final = {
    "level": f"The least important level that is logged: {', '.join(LEVELS)}.",
    "file": "Absolute path of the log file. `{role}` in it stands for who logs, so that each has a"
    f" file of its own: {' or '.join(f'`{role}`' for role in ROLES)}.",
    "format": f"A line's form, with the fields {', '.join('{' + f + '}' for f in FIELDS)}; or json"
    " for one JSON object a line.",
    "rotation.size": "The file is given the name `<file>.1`, and a new one begun, before it gets"
    " longer than this, in bytes. 0: never.",
    "rotation.count": "How many older files are kept, `<file>.1` being the newest; at least 1.",
}

_WHAT: Final = "logging configuration"
# How often the configuration is looked at for changes, and a file that can't be had is tried.
_CHECK_SECONDS: Final = 1.0
# For somebody else's write or rotation, before it is done without the lock, or later.
_LOCK_TRIES: Final = 20
_LOCK_PAUSE_S: Final = 0.0005
_ROTATE_AGAIN_SECONDS: Final = 60.0  # after it failed
_MOST_OLD_FILES: Final = 1000
_JOURNAL: Final = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_log = logbook.Logger("firebird_cdc.config.logging")


@dataclass(frozen=True, slots=True)
class LoggingOptions:
    """Options of logging: level, file, format, and how much of the log is kept."""

    level: str = "info"
    file: Path = DEFAULT_LOG_FILE
    format: str = DEFAULT_FORMAT
    rotation_size: int = 10 * 1024 * 1024  # bytes; 0: never
    rotation_count: int = 5

    def file_of(self, role: str) -> Path:
        """Return the log file of a role."""
        return Path(str(self.file).replace("{role}", role))


def load_logging(path: Path) -> LoggingOptions:
    """Read the logging options in the YAML file PATH.

    Raises ConfigError with every problem at once, each with file and line. A Logback file
    of the RED Database connector is answered with the lines to write instead.
    """
    path = Path(path)
    if path.suffix.lower() == ".xml" or read_text(path, _WHAT).lstrip().startswith("<"):
        raise ConfigError([_answer_to_logback(path)])
    source = read_flat_yaml(path, _WHAT)
    problems = [problem for _, problem in source.problems]
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
    elif entry.key.startswith("rotation."):
        name, low = entry.key.replace(".", "_"), int(entry.key == "rotation.count")
        high = _MOST_OLD_FILES if low else 2**63 - 1
        try:
            values[name] = parse_integer(entry.value, low, high)
        except ValueProblem as error:
            problems.append(f"{place} is {entry.value!r}; {error}")
    elif entry.value.lower() == JSON:
        values["format"] = JSON
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


def setup_logging(path: Path | None, role: str = SHIPPER) -> logbook.Handler:
    """Send all log records of this process, which has ROLE, to the file that PATH configures.

    PATH None: the defaults (level info, a file in /var/log/firebird-cdc). Returns the handler,
    pushed on the application stack; the one of an earlier call is closed and says nothing more.
    What is changed in PATH later has effect within a second or so.
    Never raises: what is wrong with PATH is logged with the defaults in force, and a log
    file that cannot be opened is replaced, with a sentence (log_output).
    """
    global _current
    problems: list[str] = []
    options = LoggingOptions()
    if path is not None:
        try:
            options = load_logging(path)
        except ConfigError as error:
            problems = error.problems
    handler = LogFile(options, path, role)
    with _setup_lock:
        handler.push_application()
        if _current is not None:
            _current.close()
        _current = handler
    for problem in problems:
        _log.error("{} (logging goes on with its defaults)", problem)
    return handler


def log_trouble() -> str | None:
    """Return what keeps the log file of this process from being written, None if nothing does."""
    return _current.trouble() if _current is not None else None


def servers_log_trouble() -> str | None:
    """Return what keeps this user from writing the server's log file, None if nothing does, or if
    this process has no other than that."""
    if _current is None or (path := _current.others_file(SERVER)) is None:
        return None
    why = why_unwritable(path)
    return f"log file {path}: {why}" if why else None


class LogFile(logbook.Handler):  # type: ignore[misc]
    """Appends records to a file, or to what stands in while the file cannot be written.

    Any thread may call emit. A file that was renamed or deleted is opened anew, so log rotation
    by others needs no signal either. SOURCE: the configuration, which is read again when it
    changes; None: it stays as it is. ROLE: of this process.
    """

    def __init__(
        self, options: LoggingOptions, source: Path | None = None, role: str = SHIPPER
    ) -> None:
        super().__init__(level=LEVELS[options.level])
        self._options = options
        self._source = source
        self._source_state = stamp_of(source) if source is not None else ""
        self._write_lock = threading.Lock()
        self._fd: int | None = None
        self._role = role
        self._path = self._file  # of the file that is open, links resolved
        self._identity: tuple[int, int] | None = None
        self._is_regular = False
        self._is_given = False  # to another user, by us
        self._stand_in = StandIn()
        self._look_at = time.monotonic() + _CHECK_SECONDS  # at the configuration
        self._open_at = 0.0  # when to try that again
        self._rotate_at = 0.0  # the same
        self._is_torn = False  # the last line of ours is, and could not be taken back
        self._complaints: dict[str, str] = {}  # by what can't be done, why
        self._closed = False
        with self._write_lock:
            self._open()

    def should_handle(self, record: Any) -> bool:
        """Tell whether RECORD is important enough for the level that the configuration has now."""
        if self._source is not None and time.monotonic() >= self._look_at:
            # Whoever logs has other things to do; the level stays as it is until the next look.
            with contextlib.suppress(Exception):
                self._follow_source(self._source)
        return bool(record.level >= self.level)

    def emit(self, record: Any) -> None:
        """Write RECORD; whatever goes wrong stays here, as no line of a log is worth a commit."""
        with contextlib.suppress(Exception):
            line = self._line(record)
            with self._write_lock:
                self._write(line, record.level)
                missed = self._take_missed()
            if missed:
                _log.warning("{} log lines were lost while the log could not be written", missed)

    def close(self) -> None:
        """Close the file; records that still come are dropped."""
        with self._write_lock:
            self._close()
            self._closed = True

    @property
    def _file(self) -> Path:
        return self._options.file_of(self._role)

    def others_file(self, role: str) -> Path | None:
        """Return the log file of another ROLE, None if it is this one."""
        path = self._options.file_of(role)
        return path if path != self._file else None

    def trouble(self) -> str | None:
        """Return what keeps the file from being written, None if nothing does."""
        with self._write_lock:
            if self._fd is None and not self._closed and time.monotonic() >= self._open_at:
                self._try_again()  # lines may be rare
            whys = [
                self._complaints[each] for each in ("open", "write") if each in self._complaints
            ]
            missed = self._stand_in.missed
        if not whys:
            return None
        lost = f"; {missed} log lines were lost" if missed else ""
        return f"log file {self._file}: {'; '.join(whys)}{lost}"

    def _follow_source(self, source: Path) -> None:
        with self._write_lock:
            if time.monotonic() < self._look_at or self._closed:
                return
            self._look_at = time.monotonic() + _CHECK_SECONDS
            state = stamp_of(source)
            if not state or state == self._source_state:
                return
            self._source_state = state
        try:
            options = load_logging(source)
        except ConfigError as error:
            for problem in error.problems:
                _log.error("{} (logging goes on as before)", problem)
            return
        with self._write_lock:
            before, self._options = self._options, options
            self.level = LEVELS[options.level]
            self._rotate_at = 0.0
            if self._file != before.file_of(self._role):
                self._close()
                self._open()
        if options != before:
            _log.notice("{} was changed: logging goes on as it says", source)

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
        exception = (record.formatted_exception or "") if record.exc_info else ""
        if self._options.format == JSON:
            return _json_line(fields, record, exception)
        text = self._options.format.format(**fields)
        if exception:
            text += "\n" + exception
        # Later lines are indented, so that no data can pose as a record of its own, and none
        # commands the terminal of who reads the file.
        lines = text.rstrip().translate(_CONTROLS).split("\n")
        return _encoded("\n    ".join(lines))

    # -- the file; _write_lock is held

    def _write(self, line: bytes, level: int) -> None:
        if self._closed:
            return
        with contextlib.suppress(OSError):
            if self._append(line):
                return
        self._stand_in.take(line, level >= logbook.ERROR, level >= logbook.WARNING)

    def _take_missed(self) -> int:
        """Return how many lines nobody got, once the file can be written: it tells of them then."""
        if self._complaints.keys() & {"open", "write"}:
            return 0
        missed, self._stand_in.missed = self._stand_in.missed, 0
        return missed

    def _append(self, line: bytes) -> bool:
        """Write LINE to the file that has the name now; return whether all of it is there."""
        may_rotate = True
        for _ in range(_LOCK_TRIES):
            if self._fd is None:
                if time.monotonic() < self._open_at:
                    return False
                self._open()
                continue
            if self._is_regular:
                _lock(self._fd, fcntl.LOCK_SH)  # without it: a moment in which it may be renamed
            if not self._is_still_there():
                self._close()
                self._open()
            elif may_rotate and self._is_due(len(line)):
                may_rotate = False
                self._rotate(len(line))
            else:
                try:
                    return self._append_here(line)
                finally:
                    with contextlib.suppress(OSError):
                        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return False

    def _append_here(self, line: bytes) -> bool:
        assert self._fd is not None
        try:
            written = self._write_to(self._fd, b"\n" + line if self._is_torn else line)
        except OSError as error:
            self._complain("write", f"cannot write to it: {error.strerror}")
            return False
        if written == len(line) + self._is_torn:
            self._is_torn = False
            self._complaints.pop("open", None)
            self._complaints.pop("write", None)
            return True
        self._complain("write", "the disk is full" if self._is_regular else "nobody reads it")
        self._is_torn = not (self._is_regular and self._take_back(written))
        return False

    def _write_to(self, fd: int, line: bytes) -> int:
        return os.write(fd, line) if self._is_regular else write_quietly(fd, line)

    def _take_back(self, written: int) -> bool:
        """Cut off the beginning of a line that did not fit, if nobody wrote behind it."""
        assert self._fd is not None
        with contextlib.suppress(OSError):
            end = os.lseek(self._fd, 0, os.SEEK_CUR)
            if _lock(self._fd, fcntl.LOCK_EX) and os.fstat(self._fd).st_size == end:
                os.ftruncate(self._fd, end - written)
                return True
        return False

    def _is_still_there(self) -> bool:
        try:
            found = self._file.stat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def _open(self) -> None:
        """Open the file of the configuration; _fd stays None where that can't be done."""
        self._open_at = time.monotonic() + _CHECK_SECONDS
        try:
            opened = open_log(self._file)
        except OSError as error:
            self._complain("open", f"cannot open it: {error.strerror}")
            return
        self._fd, self._path, self._identity = opened.fd, opened.path, opened.identity
        self._is_regular, self._is_given = opened.is_regular, opened.is_given
        self._is_torn = False

    def _try_again(self) -> None:
        self._open()
        if self._fd is not None:
            self._complaints.pop("open", None)

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None
        self._identity = None

    # -- rotation

    def _is_due(self, more: int) -> bool:
        """Tell whether MORE bytes make the file too long, and it is ours to rename."""
        if not self._options.rotation_size or not self._is_regular or self._fd is None:
            return False
        found = os.fstat(self._fd)
        return (
            found.st_size > 0
            and found.st_size + more > self._options.rotation_size
            # else its owner could not open the new one
            and (found.st_uid == os.geteuid() or (self._is_given and os.geteuid() == 0))
            and time.monotonic() >= self._rotate_at
        )

    def _rotate(self, more: int) -> None:
        """Give the file its next name and begin a new one, unless somebody writes to it for long,
        or has done that."""
        assert self._fd is not None
        if not _lock(self._fd, fcntl.LOCK_EX):
            self._rotate_at = time.monotonic() + _CHECK_SECONDS
            return
        if self._is_still_there() and self._is_due(more):
            try:
                for number in range(self._options.rotation_count - 1, 0, -1):
                    with contextlib.suppress(FileNotFoundError):
                        self._old(number).rename(self._old(number + 1))
                self._path.rename(self._old(1))
            except OSError as error:
                self._complain("rotate", f"cannot rotate it: {error.strerror}")
                self._rotate_at = time.monotonic() + _ROTATE_AGAIN_SECONDS
                return
        self._close()
        self._open()
        self._complaints.pop("rotate", None)

    def _old(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _complain(self, subject: str, what: str) -> None:
        if subject in self._complaints:
            return
        self._complaints[subject] = what
        outcome = "it goes on growing" if subject == "rotate" else self._stand_in.name
        text = (
            f"firebird-cdc: log file {self._file}: {what}; {outcome}. Set another file in the "
            "logging configuration or let this user write there"
        )
        self._stand_in.take(_encoded(text), is_error=False, is_warning=True)


def _json_line(fields: dict[str, Any], record: Any, exception: str) -> bytes:
    """One JSON object: the fields of text lines, those that the record names itself, such as its
    database, and the exception."""
    named = {**record.kwargs, **record.extra}
    fields |= {name: _plain(value) for name, value in named.items() if name not in fields}
    if found := _JOURNAL.search(str(fields.get("journal", fields["message"]))):
        fields["journal"] = found[0]  # by its UUID in all lines, also where a path names it
    if exception:
        fields["exception"] = exception
    return _encoded(json.dumps(fields, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    try:
        return str(value)
    except Exception as error:
        return f"({error})"


def _encoded(text: str) -> bytes:
    return (text + "\n").encode("utf-8", "backslashreplace")


def _lock(fd: int, kind: int) -> bool:
    """Take flock KIND on FD, waiting for moments only: its holder may have been stopped."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE_S)
        except OSError:
            return False  # this file system has none
        else:
            return True
    return False


_current: LogFile | None = None
_setup_lock = threading.Lock()
