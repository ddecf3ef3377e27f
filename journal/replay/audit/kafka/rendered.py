"""Messages that the topics should hold: journals, rendered in Spark's tasks as by the shipper.

The shipper's own renderer does it, with the configuration in force, so that filters, masks,
converters, transforms and routing apply as they do there. Of each message only a digest and its
place leave the task.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from time import time_ns
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.config.families import AVRO, JSON, PYTHON
from firebird_cdc.config.producer import max_message_bytes
from firebird_cdc.errors import ConfigError, JournalError, ReplayError
from firebird_cdc.journal.events import render, schema_changes, source, table_shape
from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.converters import build_converters
from firebird_cdc.journal.events.headers import told_by
from firebird_cdc.journal.events.oversized import OVERSIZED_HEADER
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.events.render import JournalRenderer, Renderer
from firebird_cdc.journal.events.topics import SHARED_TOPICS, read_owners
from firebird_cdc.journal.events.versions import TODAY, MessageForm
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.folder.notes import QUARANTINE, Note
from firebird_cdc.journal.format import DdlChange, JournalReader, RowChange, Table
from firebird_cdc.journal.replay.audit.input import AuditInput
from firebird_cdc.journal.replay.audit.kafka.avro_form import LocalAvro, sent_length
from firebird_cdc.journal.replay.audit.kafka.earlier import EarlierForms
from firebird_cdc.journal.replay.audit.kafka.message_form import (
    NO_IMAGES,
    FieldPath,
    Form,
    Read,
)
from firebird_cdc.journal.replay.source.arrow import (
    Columns,
    arrow_schema,
    in_tasks,
    record_batches,
    schema_text,
)
from firebird_cdc.journal.replay.source.bounds import Bound
from firebird_cdc.journal.replay.source.planning import (
    Found,
    JournalOptions,
    JournalPartition,
    open_partition,
    plan_partitions,
)
from firebird_cdc.journal.replay.source.snapshot_states import LeftOut
from firebird_cdc.journal.replay.source.storage import NOTE_SUFFIX, Folder, folder_at
from firebird_cdc.journal.types.canonical import RowText

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS: Columns = (
    ("topic", "string"),
    ("grp", "binary"),
    ("side", "int"),
    ("a", "bigint"),
    ("b", "bigint"),
    ("c", "bigint"),
    ("d", "bigint"),
    ("digest", "binary"),
    ("block", "bigint"),
    ("op", "string"),
    ("database", "string"),
    ("journal", "binary"),
    ("transaction", "bigint"),
    ("table", "string"),
    ("key", "string"),
    ("note", "string"),
    ("placed", "string"),
    ("epoch", "bigint"),
    ("form", "int"),
    ("earlier", "binary"),
    ("snapshot", "string"),
    ("time_us", "bigint"),
    ("was", "binary"),
    ("row", "binary"),
)
"""Columns that messages of the journals and of the topics have in common.

``grp``: what the messages that have an order have in common. ``side``: `WANTED`, `SEEN`, or
`UNSENT`. ``a`` to ``d``: of a wanted message epoch, sequence, number of the event (`BEGIN_AT`,
`END_AT` for the boundaries of the transaction) and of the message in it; of one in the topic
partition, offset, and sequence and number of the event as it tells them. ``note``: why a wanted
message need not be there; of one in the topic how it came, if it says so. ``placed``: in which
fields placeholders stand for what was too large, as its header says. ``epoch``: as a message tells
it, null if it tells none. ``form``: the number of the form that the version in a message of the
topic wrote, null if it tells none; ``earlier``: the digests of a wanted message in the forms
before, null if they are today's (`firebird_cdc.journal.replay.audit.kafka.earlier`). ``snapshot``:
of a row that a snapshot read its mark, null of all else. ``time_us``: of the commit of a wanted
message, of the snapshot of a row that was read. ``was``, ``row``: the rows before and after, as
`message_form.image_digest` has them.
"""

ARROW = arrow_schema(COLUMNS)

WANTED, SEEN, UNSENT = 0, 1, 2
"""Sides: wanted by the journals; in the topic; an event or a journal that gives no message."""

LEFT_OUT = "snapshot"
"""The ``note`` of a change that is not sent, as an initial snapshot has it in its rows."""

BEGIN_AT, END_AT = 0, 2**62

UNREAD = "unread"
"""The ``op`` of a journal that could not be read to its end."""

BATCH_ROWS = 8192

PROBED_PARTITIONS = 32
"""Parts of the folders in which `find_volatile` looks, evenly spread."""
PROBED_CHANGES = 20_000
"""Changes that it reads in each of them."""
PROBED_OF_A_KIND = 20
"""Changes of a table and operation that it renders there."""


class Range(NamedTuple):
    """The part of the history that is audited, as tasks see it."""

    database: str | None
    since: Bound | None
    until: Bound | None
    last_epochs: dict[str, int]

    def holds(self, database: str, epoch: int, sequence: int, commit_us: int) -> bool:
        """Tell whether a journal is part of the range."""
        if self.database not in (None, database):
            return False
        for bound, sign in ((self.since, 1), (self.until, -1)):
            if bound is None:
                continue
            if bound.time_us is not None:
                beyond = (commit_us - bound.time_us) * sign
            else:
                last = self.last_epochs.get(database, epoch)
                limit = (last if bound.epoch is None else bound.epoch, bound.sequence or 0)
                number = (epoch, sequence)
                beyond = (
                    (number >= limit) - (number < limit)
                    if sign > 0
                    else (number <= limit) - (number > limit)
                )
            if beyond < 0:
                return False
        return True


@dataclass(frozen=True)
class Rendering:
    """The rules by which tasks render journals; pickles, and holds no secret but salts of masks.

    ``owners``: databases and tables in the order in which they came to their topics. ``left_out``:
    what initial snapshots have in their rows.
    """

    config: ConnectorConfig
    max_message_bytes: int
    form: Form
    range: Range
    quarantine: tuple[str, ...]
    options: JournalOptions
    owners: tuple[tuple[str, str], ...] = ()
    left_out: LeftOut = field(default_factory=LeftOut)

    def parts(self) -> list[JournalPartition]:
        """Divide the journals into tasks."""
        # A journal whose transaction is counted can't be rendered without its beginning.
        split = not self.config.provide_transaction_metadata
        return plan_partitions(self.options, split=split, wanted=self.options.wanted)

    def open(self, part: JournalPartition) -> Iterator[Found]:
        """Yield the journals of a task, without most that are not in the range."""
        return open_partition(part, self.options, self.options.wanted)


def rendering_of(
    changes: AuditInput, config: ConnectorConfig, form: Form, left_out: LeftOut
) -> Rendering:
    """Take from CONFIG what rendering needs, and no password of Kafka or a database."""
    bare = replace(
        config,
        producer={},
        producer_origins={},
        attachment=replace(config.attachment, _password=None, password_file=None),
        key_converter_options=_bare(config.key_converter, config.key_converter_options),
        value_converter_options=_bare(config.value_converter, config.value_converter_options),
    )
    options = {
        "paths": json.dumps(changes.folders),
        "noneCharset": changes.none_charset,
        **dict(changes.range_options()),
    }
    if changes.partition_bytes is not None:
        options["partitionBytes"] = str(changes.partition_bytes)
    return Rendering(
        bare,
        max_message_bytes(config.producer),
        form,
        Range(changes.database, changes.since, changes.until, changes.last_epochs),
        quarantine_folders(changes, config),
        JournalOptions.parse(options),
        tuple(read_owners(config.journal_directory / STATE_DIRECTORY / SHARED_TOPICS)),
        left_out,
    )


def _bare(converter: str, options: dict[str, str]) -> dict[str, str]:
    return {} if converter == AVRO else options


def quarantine_folders(changes: AuditInput, config: ConnectorConfig) -> tuple[str, ...]:
    """Return the folders in which notes on events that were not sent may lie."""
    inner = f"{STATE_DIRECTORY}/{QUARANTINE}"
    folders = [f"{config.journal_directory}/{inner}", *changes.quarantine]
    folders += [f"{folder.rstrip('/')}/{inner}" for folder in changes.folders]
    return tuple(dict.fromkeys(folders))


def read_expected(changes: AuditInput, rendering: Rendering) -> DataFrame:
    """Return one row per message that should be sent, columns `COLUMNS`; not persisted.

    Events that were not sent, or can't be made now, are among them with a ``note``; an event of
    which not even the topic can be told, and a journal that can't be read, are of side `UNSENT`.
    """
    return in_tasks(changes.spark, rendering.parts(), Task(rendering), schema_text(COLUMNS))


def find_volatile(changes: AuditInput, rendering: Rendering) -> frozenset[FieldPath]:
    """Find the fields that depend on when a message is made, beyond the envelope's own.

    Only classes of the user's and transforms put such values elsewhere. Some changes of each table
    are rendered twice, with different clocks; what differs in one topic is left out in all.
    """
    parts = rendering.parts()
    most = min(len(parts), PROBED_PARTITIONS)
    probed = [parts[number * len(parts) // most] for number in range(most)]
    rows = in_tasks(changes.spark, probed, Probe(rendering), "path string").distinct().collect()
    return frozenset(tuple(json.loads(row["path"])) for row in rows)


def make_renderer(rendering: Rendering, message_form: MessageForm = TODAY) -> Renderer:
    """The shipper's renderer for this configuration, in the form of a version of ours.

    Raises ReplayError if a class of the user's can't be loaded in this process.
    """
    renderer = _new_renderer(rendering, message_form)
    # A task may meet the second of two tables with one topic first.
    renderer.settle(rendering.owners)
    return renderer


def _new_renderer(rendering: Rendering, message_form: MessageForm) -> Renderer:
    config = rendering.config
    try:
        if AVRO not in (config.key_converter, config.value_converter):
            return Renderer(config, rendering.max_message_bytes, message_form=message_form)
        key, value = build_converters(
            replace(
                config,
                key_converter=_not_avro(config.key_converter),
                value_converter=_not_avro(config.value_converter),
            )
        )
        key = LocalAvro() if config.key_converter == AVRO else key
        value = LocalAvro() if config.value_converter == AVRO else value
        return Renderer(
            config, rendering.max_message_bytes, (key, value), sent_length, message_form
        )
    except ConfigError as error:
        raise ReplayError(
            f"the configuration can't be applied here: {'; '.join(error.problems)}. Classes of your"
            " own have to be importable on every executor: send them along with --py-files"
        ) from error


def is_reshaped(config: ConnectorConfig) -> bool:
    """Tell whether classes of the user's see messages, so that anything in them may be theirs."""
    own = (config.key_converter, config.value_converter)
    return bool(
        config.transforms or config.converters or any(name.startswith(PYTHON) for name in own)
    )


def _not_avro(converter: str) -> str:
    return JSON if converter == AVRO else converter


class Task:
    """Renders the journals of a part of the folders."""

    def __init__(self, rendering: Rendering) -> None:
        self._rendering = rendering

    def __call__(self, part: JournalPartition) -> Iterator[pa.RecordBatch]:
        rendering = self._rendering
        renderer = make_renderer(rendering)
        earlier = EarlierForms(
            lambda form: make_renderer(rendering, form),
            rendering.form.of_rendered,
            is_reshaped=is_reshaped(rendering.config),
        )
        notes = _Notes(rendering.quarantine)
        rows = (
            row
            for found in rendering.open(part)
            for row in self._rows(renderer, earlier, notes, found)
        )
        return record_batches(rows, ARROW, BATCH_ROWS)

    def _rows(
        self, renderer: Renderer, earlier: EarlierForms, notes: _Notes, found: Found
    ) -> Iterator[tuple[Any, ...]]:
        rendering = self._rendering
        header = stamp = database = None
        try:
            reader = found.reader
            if not isinstance(reader, JournalReader):
                raise reader
            header, stamp = reader.header, reader.stamp
            if stamp is None:
                return  # nothing says that it is committed: the audit of files tells
            database = reader.database
            if not rendering.range.holds(database, stamp.epoch, stamp.sequence, stamp.commit_us):
                return
            note = notes.of(header.uuid)
            journal = _Journal(rendering, renderer, earlier, reader, database, note)
            yield from journal.rows(found.start, found.end)
        except FileNotFoundError:
            return  # another part of the audit tells
        except JournalError as error:
            if header is not None and stamp is not None:
                yield _unsent(
                    UNREAD, stamp.epoch, stamp.sequence, None, database, header.uuid.bytes,
                    header.transaction, None, str(error),
                )  # fmt: skip


def _unsent(
    op: str,
    epoch: int,
    sequence: int,
    pos: int | None,
    database: str | None,
    journal: bytes,
    transaction: int,
    table: str | None,
    note: str,
    key: str | None = None,
) -> tuple[Any, ...]:
    return (
        "", journal, UNSENT, epoch, sequence, pos, 0, None, 0, op, database, journal, transaction,
        table, key, note, None, None, None, None, None, None, None, None,
    )  # fmt: skip


class _Notes:
    """Notes that lie in the quarantine, looked up once per task."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._found: dict[str, Folder] = {}
        for folder in map(folder_at, folders):
            with suppress(OSError):
                for entry in folder.entries():
                    if entry.name.endswith(NOTE_SUFFIX):
                        self._found.setdefault(entry.name.removesuffix(NOTE_SUFFIX), folder)

    def of(self, uuid: UUID) -> Note | None:
        """The note on a journal, None if there is none that can be read."""
        folder = self._found.get(str(uuid))
        if folder is None:
            return None
        try:
            return Note.from_json(uuid, folder.read(f"{uuid}{NOTE_SUFFIX}"))
        except (OSError, ValueError):
            return None


class _Journal:
    """Renders one journal as the shipper does."""

    def __init__(
        self,
        rendering: Rendering,
        renderer: Renderer,
        earlier: EarlierForms,
        reader: JournalReader,
        database: str,
        note: Note | None,
    ) -> None:
        stamp = reader.stamp
        assert stamp is not None
        self._form = rendering.form.of_rendered
        self._reader = reader
        self._none_charset = rendering.options.none_charset
        self._renderer = renderer
        self._own = renderer.journal(reader.header, stamp, database)
        self._earlier = earlier.journal(renderer, reader.header, stamp, database)
        self._alone: JournalRenderer | None = None
        self._database = database
        self._note = note
        self._common = (database, reader.header.uuid.bytes, reader.header.transaction)
        self._number = (stamp.epoch, stamp.sequence)
        self._commit_us = stamp.commit_us
        self._left_out = rendering.left_out.tables_of(
            database, stamp.epoch, reader.header.transaction
        )
        self._opens_epoch = stamp.epoch > 0 and stamp.sequence == 1
        self._skips_creates = "c" in rendering.config.skipped_operations
        self._texts: dict[int, tuple[Table, RowText]] = {}

    def rows(self, start: int, end: int | None) -> Iterator[tuple[Any, ...]]:
        own, note = self._own, self._note
        whole = end is None
        if start == 0 and self._opens_epoch:
            with suppress(BadEvent):
                yield from self._epoch_rows()
        for change in self._reader.changes(start, end):
            if type(change) is not RowChange and not isinstance(change, DdlChange):
                continue
            pos = change.pos
            if self._left_out and type(change) is RowChange and change.table.name in self._left_out:
                yield from self._rows_of(change, self._alone_messages(change), LEFT_OUT)
                continue
            reason = None if note is None else note.reason_at(pos)
            if reason is None:
                try:
                    messages = own.messages(change)
                except BadEvent as error:
                    once = list(self._once_rows(change, str(error)))
                    yield from once or [self._not_made(change, str(error))]
                    continue
            else:
                messages = self._alone_messages(change)
                if not messages:
                    yield self._not_made(change, reason)
                    continue
            if own.awaits_begin:
                with suppress(BadEvent):
                    yield from self._boundary_rows(own.begin(), BEGIN_AT)
            if messages:
                yield from self._rows_of(change, messages, reason)
        if whole and own.metadata is not None and (note is None or note.rest_after is None):
            with suppress(BadEvent):
                yield from self._boundary_rows(own.finish(), END_AT)

    def _rows_of(
        self, change: RowChange | DdlChange, messages: list[Message], reason: str | None
    ) -> Iterator[tuple[Any, ...]]:
        table, old_key, key = self._keys(change)
        last = len(messages) - 1
        reads = [self._read(message) for message in messages]
        if self._skips_creates and messages and old_key != key and reads[0].op != "u":
            key = old_key  # a change of the key, of which only the delete is sent
        earlier = self._earlier.digests(change, messages, reads)
        for index, message in enumerate(messages):
            text = key if index == last else old_key
            names = change.pos, index, table, text, reason
            yield self._row(message, reads[index], *names, earlier[index])

    def _once_rows(self, change: RowChange | DdlChange, reason: str) -> Iterator[tuple[Any, ...]]:
        """The rows of an event that versions before could send."""
        table, _, key = self._keys(change)
        for index, (message, read, earlier) in enumerate(self._earlier.once(change)):
            yield self._row(message, read, change.pos, index, table, key, reason, earlier)

    def _epoch_rows(self) -> Iterator[tuple[Any, ...]]:
        """The row of what announces the epoch."""
        messages = self._own.new_epoch()
        reads = [self._read(message) for message in messages]
        found = zip(messages, reads, self._earlier.of_epoch(reads), strict=True)
        for message, read, earlier in found:
            yield self._row(message, read, BEGIN_AT, 0, None, None, None, earlier)

    def _boundary_rows(self, messages: list[Message], at: int) -> Iterator[tuple[Any, ...]]:
        """The rows of the BEGIN or the END of the transaction: the same in all forms."""
        for message in messages:
            yield self._row(message, self._read(message), at, 0, None, None, None, None)

    def _read(self, message: Message) -> Read:
        return self._form.read(message.key, message.value, message.headers, False)

    def _alone_messages(self, change: RowChange | DdlChange) -> list[Message]:
        """The messages of an event that was left out: it counts in no transaction."""
        if self._alone is None:
            stamp = self._reader.stamp
            assert stamp is not None
            self._alone = self._renderer.journal(
                self._reader.header, stamp, self._database, alone=True
            )
        try:
            return self._alone.messages(change)
        except BadEvent:
            return []

    def _not_made(self, change: RowChange | DdlChange, reason: str) -> tuple[Any, ...]:
        database, journal, transaction = self._common
        table, _, key = self._keys(change)
        return _unsent(
            "", *self._number, change.pos, database, journal, transaction, table, reason, key
        )

    def _keys(self, change: RowChange | DdlChange) -> tuple[str | None, str | None, str | None]:
        """Table, key before and key after a change, as ``firebird_journal`` writes them."""
        if isinstance(change, DdlChange):
            return None, None, None
        _, _, table, before, after = change
        known = self._texts.get(table.number)
        if known is None or known[0] is not table:
            writer = RowText(table, none_charset=self._none_charset, with_blobs=False)
            known = self._texts[table.number] = table, writer
        key_of = known[1].key
        if after is None:
            assert before is not None
            old = key_of(before)
            return table.name, old, old
        key = key_of(after)
        return table.name, key if before is None else key_of(before), key

    def _row(
        self,
        message: Message,
        read: Read,
        pos: int,
        index: int,
        table: str | None,
        key: str | None,
        reason: str | None,
        earlier: bytes | None,
    ) -> tuple[Any, ...]:
        placed = None
        for name, told in message.headers:
            if name == OVERSIZED_HEADER:
                placed = told_by(told)
        epoch, sequence = self._number
        return (
            message.topic, read.group, WANTED, epoch, sequence, pos, index, read.digest, read.block,
            read.op, *self._common, table, key, reason, placed, epoch, None, earlier,
            None, self._commit_us, *(read.images if placed is None else NO_IMAGES),
        )  # fmt: skip


class Probe:
    """Renders some changes twice, as of two times and versions, and tells what differs."""

    def __init__(self, rendering: Rendering) -> None:
        self._rendering = rendering

    def __call__(self, part: JournalPartition) -> Iterator[pa.RecordBatch]:
        self._form = self._rendering.form.of_rendered
        self._first = make_renderer(self._rendering)
        with _other_time():
            self._second = make_renderer(self._rendering)
        self._left = PROBED_CHANGES
        self._probed: dict[tuple[str, str, str], int] = {}
        found: set[FieldPath] = set()
        for each in self._rendering.open(part):
            with suppress(JournalError):
                found |= self._compare(each.reader)
            if self._left <= 0:
                break
        if found:
            yield pa.RecordBatch.from_pydict({"path": sorted(map(json.dumps, found))})

    def _compare(self, reader: object) -> set[FieldPath]:
        found: set[FieldPath] = set()
        if not isinstance(reader, JournalReader) or reader.stamp is None:
            return found
        database = reader.database
        facts = reader.header, reader.stamp, database
        one, other = self._first.journal(*facts), self._second.journal(*facts)
        for change in reader.changes():
            self._left -= 1
            if self._left <= 0:
                break
            if not isinstance(change, RowChange | DdlChange):
                continue
            of = (change.table.name, change.op) if isinstance(change, RowChange) else ("", "")
            kind = database, *of
            self._probed[kind] = self._probed.get(kind, 0) + 1
            if self._probed[kind] <= PROBED_OF_A_KIND:
                found |= self._probe(one, other, change)
        return found

    def _probe(
        self, one: JournalRenderer, other: JournalRenderer, change: RowChange | DdlChange
    ) -> set[FieldPath]:
        try:
            left = one.messages(change)
            with _other_time():
                right = other.messages(change)
        except BadEvent:
            return set()
        pairs = [(a, b) for a, b in zip(left, right, strict=False) if a.topic == b.topic]
        return {path for a, b in pairs for path in self._form.differences(a, b)}


@contextmanager
def _other_time() -> Iterator[None]:
    """Have what is rendered inside look as if another version had made it at another time."""

    def later() -> int:
        return time_ns() + 7_777_777_777_777_777

    with ExitStack() as stack:
        for module, name, value in (
            (render, "time_ns", later),
            (table_shape, "time_ns", later),
            (schema_changes, "time_ns", later),
            (source, "__version__", "0"),
            (source, "told_epoch", lambda _: None),
        ):
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)
        yield
