"""Channels: where signals come from that are in no journal, and the signal in a row of one.

Each signal has a *place* in its channel, plain data that can be kept as JSON. Whoever acts on a
signal keeps its place in the same durable step, and gives the last one of a channel to it at the
next start; the channel then hands out what is behind it. So each signal takes effect once,
whenever the shipper dies. In between a channel hands out each signal once.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import logbook
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.folder.durable import sync_directory
from firebird_cdc.journal.format import Blob, Column, RowChange, Undecodable, Value
from firebird_cdc.journal.format.charsets import codec_of
from firebird_cdc.journal.shipper.kafka.client import librdkafka_logger
from firebird_cdc.journal.shipper.kafka.offset_topic import reader_settings
from firebird_cdc.journal.snapshot.signals import SignalError, describe_broken

_log = logbook.Logger("firebird_cdc.journal.shipper.snapshots.channels")

SOURCE, KAFKA, FILE = "source", "kafka", "file"

_MOST_BYTES = 1024 * 1024
"""A longer file, or a longer text in a column, is no signal."""

_MOST_MESSAGES = 100  # that one look takes

SILENCE_S = 15.0
"""For so long nothing is said of a topic of which nothing could be read yet."""

_UNFINISHED_S = 60.0
"""A last line without an end counts as it is once its file has not changed for so long."""


@dataclass(frozen=True, slots=True)
class RawSignal:
    """A signal as a channel brought it; ``data`` is JSON, nobody has looked into it.

    ``made_ms``: when, where its place may be given again, as in a topic that was made anew.
    ``problem``: why it can't be read as a signal at all, for an operator and for a notification;
    ``type`` says nothing then. Its place is to be kept like that of any other.
    """

    id: str
    type: str
    data: str | None
    channel: str
    place: Any
    problem: str = ""
    made_ms: int = field(default=0, compare=False)


class Channel(Protocol):
    """Source of signals. Belongs to the shipping thread."""

    def take(self) -> list[RawSignal]:
        """Return the signals that came since the last call, in their order; never wait."""

    def handled(self, place: Any) -> None:
        """Note that PLACE is durably kept, and so those before it need not be here any more."""

    def close(self) -> None:
        """Let go of what is open."""


def _read_json(text: str, default_id: str, channel: str, place: Any) -> RawSignal:
    """Return the signal of ``{"id": ..., "type": ..., "data": ...}``."""

    def bad(problem: str) -> RawSignal:
        return RawSignal(default_id, "", None, channel, place, problem)

    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        return bad(f'it is not JSON: {error}; a signal is {{"id": ..., "type": ..., "data": ...}}')
    if not isinstance(content, dict):
        return bad('it is no JSON object; a signal is {"id": ..., "type": ..., "data": ...}')
    kind, data, own_id = content.get("type"), content.get("data"), content.get("id")
    if not isinstance(kind, str):
        return bad("it has no type, or one that is no text, such as execute-snapshot")
    if broken := describe_broken(f"{kind} {own_id}"):
        return bad(f"its type or its id has {broken}")
    if data is not None and not isinstance(data, str):
        data = json.dumps(data, ensure_ascii=False)
    return RawSignal(
        default_id if own_id in (None, "") else str(own_id), kind, data, channel, place
    )


# The channel file


class FileChannel:
    """Reads signals from a file, one JSON object a line; a place is [number of file, line].

    The file is renamed, to ``<name>.<number>.taken`` beside it, before a line of it counts, and
    removed when the place of its last line is kept. So a writer that comes later makes a new file.
    One that had it open already may still write: it is read until it is removed. A line that has
    no end yet is waited for, unless it is a whole object or nothing was written for a minute.

    Whoever can write the file can have tables read. So it has to be a file, no link, and others
    than its owner and group may write neither it nor its folder.
    """

    def __init__(self, path: Path, place: Any = None) -> None:
        """PLACE: the last one that was kept, None: there is none."""
        self._path = path
        self._handled = _file_place(place)
        self._given = self._handled
        self._name = re.compile(re.escape(path.name) + r"\.([0-9]{8,})\.taken")
        self._trouble = ""

    def take(self) -> list[RawSignal]:
        """Return the signals that came since the last call."""
        signals: list[RawSignal] = []
        try:
            self._check_folder()
            for number, path in self._taken():
                if not self._read(number, path, signals):
                    return signals
            if self._take_over():
                for number, path in self._taken():
                    self._read(number, path, signals)
        except OSError as error:
            is_link = error.errno == errno.ELOOP
            self._tell("it is a link" if is_link else error.strerror or str(error))
        except _NotAllowed as error:
            self._tell(str(error))
        else:
            self._trouble = ""
        return signals

    def handled(self, place: Any) -> None:
        """Note that PLACE is kept; a file that is read to its end is removed."""
        self._handled = max(self._handled, _file_place(place))

    def close(self) -> None:
        """Nothing is open."""

    def _read(self, number: int, path: Path, signals: list[RawSignal]) -> bool:
        """Add the new lines of a file that was taken to SIGNALS; return whether it is done with."""
        if number < self._handled[0]:
            path.unlink(missing_ok=True)  # a power cut may have brought it back
            return True
        lines, is_finished = _read_lines(path)
        begin = self._given[1] if number == self._given[0] else 0
        for place, line in enumerate(lines[begin:], begin + 1):
            text = line.decode("utf-8-sig" if place == 1 else "utf-8", "replace").strip()
            if text:
                default_id = f"{self._path.name}:{number}:{place}"
                signals.append(_read_json(text, default_id, FILE, [number, place]))
        self._given = max(self._given, (number, len(lines)))
        kept = self._handled[1] if number == self._handled[0] else 0
        if not is_finished or any(line.strip() for line in lines[kept:]):
            return False
        path.unlink(missing_ok=True)
        return True

    def _take_over(self) -> bool:
        """Rename the file that is there; return whether one was. Raises OSError."""
        try:
            lines, is_finished = _read_lines(self._path)
        except FileNotFoundError:
            return False
        if not lines or not is_finished:
            return False
        number = max([self._given[0], *(number for number, _ in self._taken())]) + 1
        taken = self._path.with_name(f"{self._path.name}.{number:08d}.taken")
        self._path.rename(taken)
        # A power cut must not bring it back under its first name once a line of it has counted.
        fd = os.open(taken, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_directory(taken.parent)
        return True

    def _taken(self) -> list[tuple[int, Path]]:
        found = [(self._name.fullmatch(each.name), each) for each in self._path.parent.iterdir()]
        return sorted((int(match[1]), path) for match, path in found if match is not None)

    def _check_folder(self) -> None:
        if self._path.parent.stat().st_mode & stat.S_IWOTH:
            raise _NotAllowed(
                f"every user of this machine can make files in {self._path.parent}, and so send"
                " signals; choose another folder, or chmod o-w it"
            )

    def _tell(self, trouble: str) -> None:
        """Log, once, why no signal is read."""
        if trouble != self._trouble:
            _log.warning("signal.file {}: not read: {}", self._path, trouble)
        self._trouble = trouble


class _NotAllowed(Exception):
    """The file is none that signals may be read from."""


def _file_place(place: Any) -> tuple[int, int]:
    with suppress(TypeError, ValueError):
        number, line = place
        return int(number), int(line)
    return 0, 0


def _read_lines(path: Path) -> tuple[list[bytes], bool]:
    """Return the lines of PATH that have come to their end, and whether that is all of it.

    Raises OSError or _NotAllowed.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise _NotAllowed("it is no file")
        if found.st_mode & stat.S_IWOTH:
            raise _NotAllowed(f"every user of this machine can write it; chmod o-w {path}")
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise _NotAllowed(f"it has more than {_MOST_BYTES} bytes; write fewer signals at once")
    lines = content.split(b"\n")
    rest = lines.pop()
    is_finished = not rest.strip() or _is_object(rest)
    if not is_finished and time.time() - found.st_mtime >= _UNFINISHED_S:
        is_finished = True
    if rest and is_finished:
        lines.append(rest)
    return lines, is_finished


def _is_object(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


# The channel Kafka


class KafkaChannel:
    """Reads signals from the first partition of ``signal.kafka.topic``; a place is an offset.

    The key of a message has to be ``kafka.topic.prefix``, others are for other connectors. Reading
    begins behind the last place that was kept; without one, or where that offset is gone, at the
    beginning of the topic, as Debezium's does: what was sent before the first start counts. No
    group is joined, no offset committed. The client's own threads fetch, ``take`` only looks.

    Raises ConfigError if the Kafka client refuses the options.
    """

    def __init__(self, config: ConnectorConfig, place: Any = None) -> None:
        """PLACE: the last one that was kept, None: there is none."""
        signals = config.signals
        self._key = config.topic_prefix.encode()
        self._topic = signals.topic
        given = {**(config.producer if signals.as_producer else {}), **signals.consumer}
        settings: dict[str, Any] = {
            "client.id": f"firebird-cdc-{config.topic_prefix}-signals",
            **reader_settings(given),
            "group.id": signals.group_id,
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            "auto.offset.reset": "earliest",
            "error_cb": self._note_error,
        }
        self._error = ""
        try:
            self._consumer = Consumer(settings, logger=librdkafka_logger())
        except (KafkaException, ValueError) as error:
            reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            raise ConfigError([f"{config.path}: signal.consumer.*: {reason}"]) from None
        begin = place + 1 if isinstance(place, int) else OFFSET_BEGINNING
        self._partition = TopicPartition(self._topic, 0, begin)
        self._consumer.assign([self._partition])
        self._patience_ends: float | None = monotonic() + SILENCE_S
        self._told: set[str] = set()

    def take(self) -> list[RawSignal]:
        """Return the signals that came since the last call."""
        signals = []
        try:
            messages = self._consumer.consume(_MOST_MESSAGES, 0)
        except KafkaException as refusal:
            self._tell(refusal.args[0])
            return []
        for message in messages:
            error = message.error()
            if error is not None:
                self._tell(error)
                continue
            self._told.clear()
            value = message.value()
            if message.key() == self._key and value:
                text = bytes(value).decode("utf-8", "replace")
                offset = message.offset() or 0
                raw = _read_json(text, f"{self._topic}:{offset}", KAFKA, offset)
                signals.append(replace(raw, made_ms=message.timestamp()[1]))
        if self._patience_ends is not None and not messages:
            self._see_whether_it_is_there()
        return signals

    def _see_whether_it_is_there(self) -> None:
        # The client says nothing of a topic that is missing, and finds it once it is there.
        _, end = self._consumer.get_watermark_offsets(self._partition, cached=True)
        if end >= 0:
            self._patience_ends = None
        elif self._patience_ends is not None and monotonic() >= self._patience_ends:
            self._patience_ends = None
            _log.warning(
                "signal topic {}: {}; signals are read once it can be read",
                self._topic,
                self._error or "it does not exist",
            )

    def handled(self, place: Any) -> None:
        """Nothing has to be removed."""

    def close(self) -> None:
        """End the client and its threads."""
        self._consumer.close()

    def _note_error(self, error: KafkaError) -> None:
        # An outage is told of by who ships.
        _log.debug("signal topic {}: {}", self._topic, error)
        self._error = error.str()

    def _tell(self, error: KafkaError) -> None:
        """Log, once each, why no signal is read; the client goes on trying."""
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return  # none is joined
        text = error.str()
        if text not in self._told:
            self._told.add(text)
            _log.warning("signal topic {}: no signals are read for now: {}", self._topic, text)


# The channel source


def signal_of_row(change: RowChange) -> tuple[str, str, str | None] | None:
    """Return id, type and data of the signal that a row inserted into a signal table is.

    None if CHANGE inserts none. The columns are those called ID, TYPE and DATA, or else the first
    three. Raises SignalError.
    """
    if change.op != "c" or change.after is None:
        return None
    columns = change.table.columns
    by_name = {column.name.upper(): index for index, column in enumerate(columns)}
    if {"ID", "TYPE", "DATA"} <= by_name.keys():
        places = [by_name["ID"], by_name["TYPE"], by_name["DATA"]]
    else:
        places = list(change.table.order[:3])
    if len(places) < 3:
        raise SignalError(
            f"signal table {change.table.name} has {len(columns)} columns; it needs id, type and"
            " data"
        )
    own_id, kind, data = (_text(change.after[place], columns[place]) for place in places)
    if kind is None:
        raise SignalError(f"{columns[places[1]].name} is NULL; it must be the type of the signal")
    return (own_id or "").strip(), kind.strip(), data


def _text(value: Value, column: Column) -> str | None:
    """Return the text of a column. Raises SignalError."""
    match value:
        case None | str():
            return value
        case bool() | float():
            pass
        case int():
            return str(value)
        case Undecodable() | Blob() | bytes():
            return _decoded(value, column)
    raise SignalError(f"column {column.name} of the signal table holds no text")


def _decoded(value: Undecodable | Blob | bytes, column: Column) -> str:
    if isinstance(value, Blob):
        if value.length > _MOST_BYTES or not value.available:
            raise SignalError(f"{column.name} can't be read, or has more than {_MOST_BYTES} bytes")
        value = value.read()
    raw = value.raw if isinstance(value, Undecodable) else value
    codec = codec_of(column.charset_id) or "utf-8"
    try:
        return raw.decode(codec)
    except UnicodeError:
        raise SignalError(f"{column.name} is no text in its character set ({codec})") from None
