"""``firebird-cdc tail``: prints events as they arrive, of the topics or of the journals."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from firebird_cdc import output
from firebird_cdc.clock import now_us
from firebird_cdc.config.arguments import Subparsers, positive
from firebird_cdc.config.locate import add_config_option
from firebird_cdc.config.patterns import name_pattern
from firebird_cdc.config.values import ValueProblem
from firebird_cdc.errors import ConfigError, RegistryTrouble
from firebird_cdc.journal.format import DdlChange, RowChange, SequenceChange
from firebird_cdc.journal.shipper.commands.show import (
    OPERATIONS,
    fields_of_change,
    moment_of,
    text_of_change,
)
from firebird_cdc.output import printable

if TYPE_CHECKING:
    from confluent_kafka import Message

    from firebird_cdc.config import ConnectorConfig
    from firebird_cdc.journal.events.avro import AvroDecoder
    from firebird_cdc.journal.shipper.inbox.follower import CommittedChange

_BEGINNING, _END = 0, sys.maxsize
_AGO = re.compile(r"(\d+)([smhd])")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_CLOSED_PIPE = 141
_REST_S = 10.0  # before a registry that is away is asked again

_Shown = Iterator[Callable[[], str] | None]


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "tail",
        help="print events as they arrive",
        description="Prints events one a line, as they arrive, until Ctrl-C: those in Kafka's"
        " topics, as read_committed consumers get them, or with --journals those that are"
        " captured, before filters of the shipper, masks and transforms. It joins no consumer"
        " group, takes no lock and holds up nothing: what the shipper deletes is gone.",
    )
    parser.set_defaults(run=run)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--journals", action="store_true", help="read the journal folder, not the topics"
    )
    source.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="NAME",
        help="read this topic; repeatable (default: those of tables)",
    )
    parser.add_argument(
        "--table",
        action="append",
        default=[],
        type=_table,
        metavar="PATTERN",
        help="show events of these tables only: a name, or a regular expression that matches"
        " <table> or <database path>.<table> as a whole; repeatable",
    )
    parser.add_argument(
        "--from",
        dest="since",
        type=_since,
        metavar="WHEN",
        help="beginning, end, a time (2026-11-27T13:00:00, of this machine's zone unless it says"
        " another one) or how long ago (30s, 10m, 2h, 1d); default: the end of topics, the"
        " beginning of what waits in journals, and with --once always the beginning",
    )
    parser.add_argument(
        "--once", action="store_true", help="end after what is there, wait for nothing"
    )
    parser.add_argument("--count", type=positive, metavar="N", help="end after N events")
    parser.add_argument("--json", action="store_true", help="print one JSON object an event")
    add_config_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print events until there are enough of them, or nobody reads them any more."""
    shown = 0
    for event in _journals(arguments) if arguments.journals else _topics(arguments):
        if event is None:
            sys.stdout.flush()
            if output.is_unread():
                output.discard()
                return _CLOSED_PIPE
            continue
        print(event())
        shown += 1
        if shown == arguments.count:
            break
    return 0


def _tell(text: str) -> None:
    print(printable(f"firebird-cdc: {text}"), file=sys.stderr, flush=True)


def _table(text: str) -> re.Pattern[str]:
    try:
        return name_pattern(text)
    except ValueProblem as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def _since(text: str) -> int:
    """Return the time that TEXT is, in microseconds since 1970."""
    if text in ("beginning", "end"):
        return _BEGINNING if text == "beginning" else _END
    if match := _AGO.fullmatch(text):
        return now_us() - int(match[1]) * _UNITS_S[match[2]] * 1_000_000
    try:
        moment = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither beginning, end, a time such as 2026-11-27T13:00:00, nor a"
            " duration such as 10m"
        ) from None
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _is_wanted(patterns: Sequence[re.Pattern[str]], *names: str) -> bool:
    return not patterns or any(pattern.fullmatch(name) for pattern in patterns for name in names)


def _line(moment_us: int, database: str, place: Sequence[Any], what: str) -> str:
    """Return an event for people; PLACE: epoch, number and position."""
    where = ":".join(map(str, place))
    return f"{moment_of(moment_us)} {printable(Path(database).name)} {where} {what}"


# Journals


def _journals(arguments: argparse.Namespace) -> _Shown:
    from firebird_cdc.config import load_capture, load_config
    from firebird_cdc.journal.shipper.inbox.follower import JournalFollower
    from firebird_cdc.packaging.server.locating import locate_config, readable_folder

    config = locate_config(arguments.config)
    capture = load_capture(config)
    directory = readable_folder(capture.journal_directory)
    try:
        whole = load_config(config)
        archive, none_charset = whole.journal_archive_directory, whole.charset_none
    except ConfigError as error:  # what is captured can be looked at
        _tell(str(error))
        archive, none_charset = None, "UTF-8"
    follower = JournalFollower(
        directory, archive, none_charset, _tell, is_synced=capture.journal_fsync
    )
    with closing(follower):
        since = arguments.since if arguments.since is not None else _BEGINNING
        if since == _END:
            follower.skip()
        else:
            yield from _of_journals(follower.waiting(since), arguments)
        yield None
        if not arguments.once:
            _tell(f"following the journals in {directory}")
            yield from _of_journals(follower.following(), arguments)


def _of_journals(
    changes: Iterator[CommittedChange | None], arguments: argparse.Namespace
) -> _Shown:
    form = _json_of_change if arguments.json else _text_of_change
    for found in changes:
        if found is None:
            yield None
        elif _concerns(found, arguments.table):
            yield partial(form, found)


def _concerns(found: CommittedChange, patterns: Sequence[re.Pattern[str]]) -> bool:
    change = found.change
    if isinstance(change, SequenceChange):
        return False  # no event tells of it
    if isinstance(change, RowChange):
        tables = [change.table.name]
    elif isinstance(change, DdlChange):
        tables = [each.name for each in change.table_changes or ()]
    else:
        return True  # what a gap lacks nobody knows
    return _is_wanted(patterns, *tables, *(f"{found.database}.{name}" for name in tables))


def _text_of_change(found: CommittedChange) -> str:
    stamp, change = found.stamp, found.change
    place = (*stamp.number, getattr(change, "pos", 0))
    return _line(stamp.commit_us, found.database, place, text_of_change(change))


def _json_of_change(found: CommittedChange) -> str:
    stamp = found.stamp
    told = {
        "database": found.database,
        "epoch": stamp.epoch,
        "sequence": stamp.sequence,
        "commit_us": stamp.commit_us,
        "transaction": found.transaction,
        "user": found.user,
        **fields_of_change(found.change),
    }
    return json.dumps(told, ensure_ascii=False, default=_plain)


# Topics


def _topics(arguments: argparse.Namespace) -> _Shown:
    from firebird_cdc.journal.events.topics import TopicNames
    from firebird_cdc.journal.shipper.kafka.followed_topics import (
        BEGINNING,
        END,
        TopicFollower,
    )
    from firebird_cdc.packaging.server.locating import locate_options

    config = locate_options(arguments.config)
    since = arguments.since
    if since is None:
        since = _BEGINNING if arguments.once else _END
    begin = {_BEGINNING: BEGINNING, _END: END}.get(since, since // 1000)
    names = TopicNames(config)
    chosen = frozenset(arguments.topic)

    def is_wanted(topic: str) -> bool:
        if chosen:
            return topic in chosen
        return names.may_be_data(topic) and topic != config.position_topic

    follower = TopicFollower(config, is_wanted, begin, _tell)
    with closing(_Contents(config)) as contents, closing(follower):
        there = follower.start()
        if lacking := sorted(chosen.difference(there)):
            _tell(f"there is no topic {', '.join(lacking)} yet")
        if not arguments.once:
            _tell(f"following {', '.join(sorted(there)) or 'topics of tables, as they come'}")
        form = _json_of_message if arguments.json else _text_of_message
        tables: dict[str, str] = {}
        delimiter = config.topic_delimiter
        for message in follower.messages():
            if message is None:
                yield None
                if arguments.once and follower.is_at_end:
                    return
            elif _message_concerns(message, contents, arguments.table, tables, delimiter):
                yield partial(form, contents, message)


def _message_concerns(
    message: Message,
    contents: _Contents,
    patterns: Sequence[re.Pattern[str]],
    tables: dict[str, str],
    delimiter: str,
) -> bool:
    """Tell whether MESSAGE is of a table that PATTERNS name; TABLES: those met before, by topic,
    for what doesn't say it."""
    if not patterns:
        return True
    topic = str(message.topic())
    event = _event_of(contents.value(message))
    if event is not None:
        source = event["source"]
        tables[topic] = str(source.get("table"))
        return _is_wanted(patterns, tables[topic], f"{source.get('db')}.{tables[topic]}")
    return _is_wanted(patterns, tables.get(topic) or topic.rpartition(delimiter)[2], topic)


class _Contents:
    """Reads keys and values of messages: JSON, without its schema; Avro, where the options name a
    registry; else a text, or bytes."""

    def __init__(self, config: ConnectorConfig) -> None:
        self._decoders: list[AvroDecoder | None] = [
            _decoder(config.key_converter, config.key_converter_options, is_key=True),
            _decoder(config.value_converter, config.value_converter_options, is_key=False),
        ]
        self._is_told = False
        self._rests_until = 0.0  # monotonic; a registry that is away would hold up each message

    def close(self) -> None:
        """Close the connections to the registry."""
        for decoder in self._decoders:
            if decoder is not None:
                decoder.close()

    def key(self, message: Message) -> Any:
        """Return what the key of MESSAGE holds."""
        return self._parsed(message.key(), self._decoders[0])

    def value(self, message: Message) -> Any:
        """Return what the value of MESSAGE holds."""
        return self._parsed(message.value(), self._decoders[1])

    def _parsed(self, content: bytes | str | None, decoder: AvroDecoder | None) -> Any:
        is_avro = decoder is not None and isinstance(content, bytes) and content[:1] == b"\0"
        if not is_avro or monotonic() < self._rests_until:
            return _parsed(content)
        assert decoder is not None
        assert isinstance(content, bytes)
        try:
            return decoder.decode(content)
        except (RegistryTrouble, ValueError) as error:
            if not self._is_told:
                _tell(f"events are shown as bytes: {error}")
            self._is_told = True
            if isinstance(error, RegistryTrouble):
                self._rests_until = monotonic() + _REST_S
            return _parsed(content)


def _decoder(converter: str, options: Mapping[str, str], *, is_key: bool) -> AvroDecoder | None:
    if converter != "avro":
        return None
    from firebird_cdc.journal.events.avro import AvroDecoder

    return AvroDecoder(options, is_key=is_key)


def _parsed(content: bytes | str | None) -> Any:
    """Return what a key or value holds: JSON, without its schema; else a text, or its bytes."""
    if content is None:
        return None
    raw = content.encode() if isinstance(content, str) else content
    try:
        parsed = json.loads(raw)
    except (ValueError, RecursionError):
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return {"hex": raw.hex()}
    if isinstance(parsed, dict) and parsed.keys() == {"schema", "payload"}:
        return parsed["payload"]
    return parsed


def _event_of(value: Any) -> dict[str, Any] | None:
    """Return VALUE if it is an event with its envelope."""
    if not isinstance(value, dict) or not {"op", "source"} <= value.keys():
        return None
    return value if isinstance(value["source"], dict) else None


def _text_of_message(contents: _Contents, message: Message) -> str:
    value = contents.value(message)
    event = _event_of(value)
    if event is None:
        _, ms = message.timestamp()
        key = _brief(contents.key(message))
        what = f"{message.topic()} [{message.partition()}] @{message.offset()} key {key}"
        told = "tombstone" if message.value() is None else _brief(value)
        return f"{moment_of(ms * 1000)} {printable(what)}: {printable(told)}"
    source = event["source"]
    moment_us = source.get("ts_us") or (source.get("ts_ms") or 0) * 1000
    numbers = source.get("epoch"), source.get("commitSeq"), source.get("pos")
    place = [number for number in numbers if number is not None]
    word = OPERATIONS.get(event["op"], str(event["op"]))
    what = f"{word} {source.get('table')}: {_text_of_rows(event.get('before'), event.get('after'))}"
    return _line(moment_us, str(source.get("db")), place, printable(what))


def _text_of_rows(before: Any, after: Any) -> str:
    rows = [row for row in (before, after) if isinstance(row, dict)]
    parts = []
    for name in dict.fromkeys(name for row in rows for name in row):
        values = dict.fromkeys(_brief(row.get(name)) for row in rows)  # once if they are the same
        parts.append(f"{name}={' -> '.join(values)}")
    return ", ".join(parts)


def _brief(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> str:
    """Return the text of a value that JSON has no form for, as Avro's decimals, times and bytes."""
    return value.hex() if isinstance(value, bytes) else str(value)


def _json_of_message(contents: _Contents, message: Message) -> str:
    _, ms = message.timestamp()
    headers: Any = message.headers() or ()
    told = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": ms,
        "key": contents.key(message),
        "value": contents.value(message),
        "headers": {name: _parsed(content) for name, content in headers},
    }
    return json.dumps(told, ensure_ascii=False, default=_plain)
