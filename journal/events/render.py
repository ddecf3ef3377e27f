"""Renders the changes of a journal as Kafka messages: Debezium's envelope and what goes with it.

For every shape of a table one ``TableShape`` is made, which holds the topic, the schemas and
functions that turn rows into structs; an event then costs filling in values and one call of
each converter. docs/events.md and docs/types.md show the forms.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import time_ns
from typing import Any, Protocol
from uuid import UUID

import logbook

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.errors import (
    ConfigError,
    Obstacle,
    RegistryRefused,
    noting,
)
from firebird_cdc.journal.events import json_bytes
from firebird_cdc.journal.events.bad_event import BEGIN, END, NEW_EPOCH, BadEvent, NamelessEvent
from firebird_cdc.journal.events.converters import Converter
from firebird_cdc.journal.events.custom import CustomConverters
from firebird_cdc.journal.events.message_writer import MessageWriter
from firebird_cdc.journal.events.oversized import PLACEHOLDER, Images, ReducedChange
from firebird_cdc.journal.events.records import Message, Record, StructHeader
from firebird_cdc.journal.events.schema import Struct
from firebird_cdc.journal.events.schema_changes import SchemaChanges
from firebird_cdc.journal.events.source import (
    CHANGES,
    SourceFacts,
    at_position,
    facts_of,
    source_of_table,
)
from firebird_cdc.journal.events.structs import StructFunction
from firebird_cdc.journal.events.table_rules import TableRules
from firebird_cdc.journal.events.table_shape import TableShape
from firebird_cdc.journal.events.templates import fill_template
from firebird_cdc.journal.events.topics import BadName
from firebird_cdc.journal.events.transaction_metadata import TransactionMetadata
from firebird_cdc.journal.events.values import UNDECODED, BadValue, TooLarge
from firebird_cdc.journal.events.versions import TODAY, MessageForm
from firebird_cdc.journal.folder.notes import Concerned
from firebird_cdc.journal.format import (
    Blob,
    DdlChange,
    Header,
    Row,
    RowChange,
    Stamp,
    Table,
    Undecodable,
)
from firebird_cdc.journal.format.row_decoder import UndecodedChange
from firebird_cdc.journal.types.canonical import RowText

_log = logbook.Logger("firebird_cdc.journal.events.render")

SHAPES_KEPT = 2000
"""Table shapes kept ready, over all databases; a guess well above what a server publishes."""

_OF_KEY_CHANGE = frozenset("dc")
"""Operations of the events that an update of the key gives."""

_MAY_BE_UNSENT = (Blob, Undecodable)

_KEY_CHARS = 300
"""So much of a key is shown to people."""


class CanaryWatch(Protocol):
    """Wants to know what comes out of the journals of one database."""

    def reached(self, commit_us: int, /) -> None:
        """A journal is being read that was committed then."""

    def saw(self, table: str, transaction: int, /) -> None:
        """It has a change of TABLE."""


class Renderer:
    """Makes messages of what journals hold. Not thread-safe; holds no open file.

    ``max_message_bytes``: the largest message that the producer takes. ``converters``: of keys and
    of values, None: those that CONFIG names. ``length``: of what they write, in a message.
    ``message_form``: in which form, that of which version of ours.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        max_message_bytes: int,
        converters: tuple[Converter, Converter] | None = None,
        length: Callable[[bytes], int] = len,
        message_form: MessageForm = TODAY,
    ) -> None:
        self.config = config
        self.places_placeholders = config.oversized_value == PLACEHOLDER
        problems: list[str] = []
        with noting(problems):
            self.writer = MessageWriter(config, max_message_bytes, converters, length, message_form)
        with noting(problems):
            custom_converters = CustomConverters(config)
        if problems:
            raise ConfigError(problems)
        self.rules = TableRules(config, message_form, self.writer, custom_converters)
        self.topics = self.rules.topics
        self.canaries: Mapping[str, CanaryWatch] = {}
        """Watches that are told of writes into canary tables, by database."""
        self._shapes: OrderedDict[tuple[object, ...], TableShape | BadName | str] = OrderedDict()
        self._met: dict[tuple[str, int], tuple[Table, TableShape | None]] = {}
        self.schema_changes = (
            SchemaChanges(
                config.topic_prefix,
                self.topics.schema_changes,
                self.rules.tables.captures,
                self.writer.headers,
                message_form,
            )
            if config.include_schema_changes
            else None
        )

    def journal(
        self, header: Header, stamp: Stamp, database: str, *, alone: bool = False
    ) -> JournalRenderer:
        """Return the renderer for one journal: what its events share is worked out once.

        ``alone``: its events are not sent as those of a transaction.
        """
        return JournalRenderer(self, header, stamp, database, alone=alone)

    def settle(self, owners: Sequence[tuple[str, str]]) -> None:
        """Let OWNERS, databases and tables, have come first to their topics and names."""
        self.topics.settle(owners, self.rules.tables.captures)
        self.rules.schema_names.settle(owners, self.rules.tables.captures)

    def captured(self, database: str, table: Table, pos: int) -> TableShape | None:
        """The shape of TABLE, None if it is filtered out; BadEvent if it can't be sent.

        Journals share the objects of tables, so the object itself tells which one it is.
        """
        key = database, id(table)
        known = self._met.get(key)
        if known is not None and known[0] is table:
            return known[1]
        shape = None
        if self.rules.tables.captures(database, table.name):
            shape = self.shape(database, table, pos)
        if len(self._met) >= SHAPES_KEPT:
            self._met.clear()
        self._met[key] = table, shape
        return shape

    def splits(self, database: str, change: RowChange) -> bool:
        """Tell whether CHANGE may give a delete and a create that are sent, as it changes the key.

        Raises BadEvent if events of its table can't be sent.
        """
        _, _, table, before, after = change
        if before is None or after is None or self.config.skipped_operations >= _OF_KEY_CHANGE:
            return False
        shape = self.captured(database, table, change.pos)
        return shape is not None and shape.may_change_key(before, after)

    def shape(self, database: str, table: Table, pos: int) -> TableShape:
        """Return the compiled shape of TABLE; BadEvent if it can't be sent, NamelessEvent if that
        is for want of names."""
        key = (database, table.name, table.key_kind, table.columns, table.order)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = self._compiled(database, table)
            if len(self._shapes) > SHAPES_KEPT:
                self._shapes.popitem(last=False)
        else:
            self._shapes.move_to_end(key)
        if isinstance(shape, BadName):
            raise NamelessEvent(pos, str(shape), table.name)
        if isinstance(shape, str):
            raise BadEvent(pos, shape)
        return shape

    def _compiled(self, database: str, table: Table) -> TableShape | BadName | str:
        """The shape of TABLE, or why its events can't be sent: all for the same reason."""
        try:
            return TableShape(self.writer, self.rules, database, table)
        except BadName as error:
            return error.with_traceback(None)
        except BadValue as error:
            return f"table {table.name}: {error}"


class RowRenderer:
    """Renders rows of one database: of a journal, or those that a snapshot read.

    ``metadata``: of the transaction, None if events name none. ``reduced``: events so far with
    placeholders for what is too large, ``first_reduced``: of the first one number, fields, table
    and key, for people.
    """

    def __init__(
        self, renderer: Renderer, database: str, metadata: TransactionMetadata | None
    ) -> None:
        self.renderer = renderer
        self.database = database
        self.metadata = metadata
        self.reduced = 0
        self.first_reduced = ""
        self._keys: dict[int, tuple[Table, Callable[[Row], str | None]]] = {}

    def whose(self, change: RowChange | DdlChange) -> str:
        """Return table and key of CHANGE for people: ``table ITEM, key {"ID":1}``."""
        if isinstance(change, DdlChange):
            return ""
        table = change.table
        row = change.before if change.after is None else change.after
        key = None if row is None else self._key_text(table)(row)
        if key is not None and len(key) > _KEY_CHARS:
            key = f"{key[:_KEY_CHARS]}..."
        return f"table {table.name}, {'which has no key' if key is None else f'key {key}'}"

    def _key_text(self, table: Table) -> Callable[[Row], str | None]:
        known = self._keys.get(id(table))
        if known is None:
            none_charset = self.renderer.config.charset_none
            writer = RowText(table, none_charset=none_charset, with_blobs=False)
            known = self._keys[id(table)] = table, writer.key
        return known[1]

    def unsent(self, change: RowChange | DdlChange) -> dict[str, list[str]]:
        """Name the fields of CHANGE in whose place messages have a placeholder, by kind:
        ``after.BODY``; but for what is too large."""
        if isinstance(change, DdlChange):  # which has U+FFFD in the place of what is no text
            return {UNDECODED: ["ddl"]} if isinstance(change.sql, Undecodable) else {}
        found: dict[str, list[str]] = {}
        watch = self.renderer.rules.unsent
        functions = self._functions_of(change.table)
        for image, row in (("before", change.before), ("after", change.after)):
            for name, index, function in functions:
                value = None if row is None else row[index]
                if not isinstance(value, _MAY_BE_UNSENT):
                    continue
                before = watch.count
                with suppress(BadValue):
                    function(value)
                if watch.count != before:
                    found.setdefault(watch.kind, []).append(f"{image}.{name}")
        return found

    def _functions_of(self, table: Table) -> list[tuple[str, int, Callable[[Any], Any]]]:
        """Return name and column index of each field that events of TABLE have, and what makes
        its value."""
        try:
            shape = self.renderer.captured(self.database, table, 0)
        except BadEvent:  # they are left out, and may be sent later
            rules, functions = self.renderer.rules, []
            for index, column in enumerate(table.columns):
                with suppress(BadValue):
                    form = rules.form(self.database, table.name, column, rules.modes)
                    if form is not None:
                        functions.append((column.name, index, form.function()))
            return functions
        if shape is None:
            return []
        return [
            (field.name, field.column_index, function) for field, function in shape.row.functions
        ]

    def note_reduced(self, change: RowChange, reduced: ReducedChange) -> None:
        """Count CHANGE, in whose messages placeholders stand, and name the first such change."""
        self.reduced += 1
        if self.reduced == 1:
            self.first_reduced = f"event {change.pos}: {reduced} of {self.whose(change)}"

    def bound_shape(
        self, change: RowChange, facts: SourceFacts, snapshot: str = CHANGES
    ) -> BoundShape | None:
        """Return what renders changes like CHANGE, None if its table is filtered out. FACTS and
        SNAPSHOT: what their source blocks say.

        Raises BadEvent if the table's events can't be sent, Obstacle without its topic.
        """
        try:
            shape = self.renderer.captured(self.database, change.table, change.pos)
        except BadEvent as error:
            error.whose = self.whose(change)
            raise
        if shape is None:
            return None
        if not self.renderer.writer.transforms:
            self.renderer.writer.require_topic(shape.topic)
        return BoundShape(shape, self, facts, snapshot)

    def rendered(self, bound: BoundShape, change: RowChange) -> list[Message]:
        """Return the messages that BOUND makes of CHANGE; raises BadEvent if it can't."""
        try:
            return bound.messages(change)
        except (BadValue, RegistryRefused) as error:
            what = f"table {change.table.name}: {error}"
            raise BadEvent(change.pos, what, self.whose(change)) from error


class JournalRenderer(RowRenderer):
    """Renders the changes of one journal.

    What ``begin`` gives goes before the messages of the first event, what ``finish`` gives
    behind all. ``awaits_begin``: whether ``begin`` still has to be asked, once an event is made.
    """

    def __init__(
        self,
        renderer: Renderer,
        header: Header,
        stamp: Stamp,
        database: str,
        *,
        alone: bool = False,
    ) -> None:
        config = renderer.config
        metadata = (
            TransactionMetadata(
                header,
                stamp,
                database,
                topic=renderer.topics.transactions,
                ordered=config.transaction_metadata_ordered,
            )
            if config.provide_transaction_metadata and not alone
            else None
        )
        super().__init__(renderer, database, metadata)
        self.header = header
        self.stamp = stamp
        self._twin: JournalRenderer | None = None
        self.awaits_begin = metadata is not None
        # A repair's current state of a key is ``r`` too, and nothing of a snapshot.
        self._skipped = config.skipped_operations - {"r"}
        self._canary = renderer.canaries.get(database)
        if self._canary is not None:
            self._canary.reached(stamp.commit_us)
        self._bound: dict[int, BoundShape | None] = {}
        self._facts = facts_of(header.uuid, header.transaction, stamp)

    def messages(self, change: RowChange | DdlChange) -> list[Message]:
        """Return the messages of CHANGE in the order in which they have to be sent.

        Empty for a table or an operation that is filtered out. Raises BadEvent if the change
        can't be expressed.
        """
        if isinstance(change, DdlChange):
            return self._of_statement(change)
        table = change.table
        if change.op in self._skipped and not self._splits(change):
            self._watch(table)
            return []
        try:
            bound = self._bound[table.number]
        except KeyError:
            self._watch(table)
            bound = self._bound[table.number] = self.bound_shape(change, self._facts)
        return [] if bound is None else self.rendered(bound, change)

    def _splits(self, change: RowChange) -> bool:
        """As `Renderer.splits`."""
        try:
            return self.renderer.splits(self.database, change)
        except BadEvent as error:
            error.whose = self.whose(change)
            raise

    def by_table(self, change: RowChange | DdlChange) -> Concerned:
        """Return what stands for the topic and the keys of CHANGE, whatever its topic is called.

        So events of a table without a topic are known again once it has one.
        """
        if isinstance(change, DdlChange):
            return []
        table, renderer = change.table, self.renderer
        place = f"table {table.name} of {self.database}"  # no topic is called so
        shown = [table.columns[index].name for index in table.order]
        if renderer.writer.transforms or renderer.rules.message_keys.indices(
            self.database, table.name, shown
        ):
            return place  # the message has another key than the table
        rows = [row for row in (change.before, change.after) if row is not None]
        keys = [self._key_text(table)(row) for row in rows]
        return [(place, None if key is None else key.encode()) for key in keys]

    def _watch(self, table: Table) -> None:
        """Tell of a change of TABLE, if it is a canary."""
        if self._canary is not None:
            self._canary.saw(table.name, self.header.transaction)

    def _of_statement(self, change: DdlChange) -> list[Message]:
        schema_changes = self.renderer.schema_changes
        if schema_changes is None:
            return []
        record = schema_changes.record(change, self.header, self.stamp, self.database)
        if isinstance(change.sql, Undecodable):
            self.renderer.rules.unsent.saw(UNDECODED)
        return [] if record is None else self._of_record(change.pos, record)

    def new_epoch(self) -> list[Message]:
        """Return what goes before the first event of an epoch that the journal opens: one message
        to the topic of schema changes, none where there are none. Raises BadEvent."""
        schema_changes = self.renderer.schema_changes
        if schema_changes is None:
            return []
        record = schema_changes.new_epoch(self.header, self.stamp, self.database)
        return self._of_record(NEW_EPOCH, record)

    def pass_over(self, change: RowChange | DdlChange) -> list[Message]:
        """CHANGE was sent before, so it only counts, and gives no message."""
        if self.metadata is not None:
            with suppress(BadEvent):
                self.messages(change)
            self.awaits_begin = not self.metadata.began
        return []

    def concerned(self, change: RowChange | DdlChange) -> Concerned:
        """Topics and keys of the messages that CHANGE, which can't be sent, would have."""
        if self._twin is None:  # nothing is counted there
            self._twin = self.renderer.journal(self.header, self.stamp, self.database, alone=True)
        return self._twin._concerned(change)

    def _concerned(self, change: RowChange | DdlChange) -> Concerned:
        with suppress(BadEvent, Obstacle):
            return [(message.topic, message.key) for message in self.messages(change)]
        if self.renderer.writer.transforms:  # topic and key may be made of the whole event
            return None
        if isinstance(change, DdlChange):
            return self.renderer.topics.schema_changes
        with suppress(BadEvent):
            shape = self.renderer.shape(self.database, change.table, change.pos)
            return shape.concerned(change)
        return None

    def begin(self) -> list[Message]:
        """The messages before those of the first event, once there is one. Raises BadEvent."""
        if self.metadata is None or not self.metadata.began:
            return []
        self.awaits_begin = False
        try:
            return self._of_record(BEGIN, self.metadata.begin(self.renderer.writer.headers))
        except Obstacle:
            self.awaits_begin = True
            raise

    def finish(self) -> list[Message]:
        """The messages behind those of the last change. Raises BadEvent."""
        if self.metadata is None or not self.metadata.began:
            return []
        return self._of_record(END, self.metadata.end(self.renderer.writer.headers))

    def _of_record(self, pos: int, record: Record) -> list[Message]:
        try:
            if not self.renderer.writer.transforms:
                self.renderer.writer.require_topic(record.topic)
            message = self.renderer.writer.message(
                record.topic, record.key_schema, record.key, record.value_schema, record.value
            )
        except (BadValue, RegistryRefused) as error:
            raise BadEvent(pos, str(error)) from error
        return [] if message is None else [message]


class SmallRenderer:
    """Renders small transactions of DATABASE: what the events of all of them share is worked out
    once, while `JournalRenderer` does so for each journal. Makes the same messages."""

    def __init__(self, renderer: Renderer, database: str, signal_table: str | None = None) -> None:
        """SIGNAL_TABLE: changes of it are left to `JournalRenderer`."""
        self._renderer = renderer
        self.database = database
        self._signal_table = signal_table
        self._skipped = renderer.config.skipped_operations
        has_metadata = renderer.config.provide_transaction_metadata
        self._is_able = renderer.writer.only_writes_json and not has_metadata
        self._met: dict[int, tuple[Table, TableShape | None]] = {}

    def messages(
        self, uuid: UUID, stamp: Stamp, content: bytes, changes: Sequence[UndecodedChange]
    ) -> list[Sequence[Message]] | None:
        """Return the messages of each of CHANGES, which are transaction UUID, and whose rows are in
        CONTENT. None: there is more to it, be it damage, an obstacle or a bad event, and
        `JournalRenderer` has to render it."""
        if not self._is_able:
            return None
        canary = self._renderer.canaries.get(self.database)
        if canary is not None:
            canary.reached(stamp.commit_us)
        facts = facts_of(uuid, stamp.transaction, stamp)
        watch = self._renderer.rules.unsent
        unsent_before = watch.count
        made: list[Sequence[Message]] = []
        for change in changes:
            table = change.table
            if table.name == self._signal_table:
                return None
            if canary is not None:
                canary.saw(table.name, stamp.transaction)
            shape = None
            if change.op not in self._skipped:
                try:
                    shape = self._shape(table, change.pos)
                except (BadEvent, Obstacle):
                    return None
            elif self._may_split(change, content):
                return None
            messages: Sequence[Message] | None = None
            quick = None
            if shape is not None:
                quick = shape.quick
                if quick is None:
                    return None
                if shape.quick_of_images is not None:
                    messages = shape.quick_of_images(content, change, facts)
            if messages is None:
                decoded = change.decoded(content)
                if decoded is None:
                    return None
                messages = () if quick is None else quick(decoded, facts)
                if messages is None:
                    return None
            made.append(messages)
        return made if watch.count == unsent_before else None

    def _may_split(self, change: UndecodedChange, content: bytes) -> bool:
        """As `Renderer.splits`; True, too, if that can't be told here."""
        if change.before is None or change.after is None:
            return False
        decoded = change.decoded(content)
        try:
            return decoded is None or self._renderer.splits(self.database, decoded)
        except BadEvent:
            return True

    def _shape(self, table: Table, pos: int) -> TableShape | None:
        """The shape of TABLE, None if it is filtered out. Raises as `Renderer.captured`, Obstacle
        without its topic."""
        known = self._met.get(id(table))
        if known is not None and known[0] is table:
            shape = known[1]
        else:
            shape = self._renderer.captured(self.database, table, pos)
            if len(self._met) >= SHAPES_KEPT:
                self._met.clear()
            self._met[id(table)] = table, shape
        if shape is not None:
            self._renderer.writer.require_topic(shape.topic)
        return shape


def _written_at(template: bytes, facts: SourceFacts, pos: int) -> json_bytes.Fragment:
    """The source block of the event POS, written already."""
    uuid, numbers = facts
    return json_bytes.Fragment(fill_template(template, uuid, (), (*numbers, pos)))


def _unexpected_nulls(change: RowChange) -> frozenset[int]:
    """Return the columns that are NULL in a row of CHANGE, and NOT NULL by their definition."""
    rows = [row for row in (change.before, change.after) if row is not None]
    return frozenset(
        index
        for index, column in enumerate(change.table.columns)
        if not column.nullable and any(row[index] is None for row in rows)
    )


class BoundShape:
    """A table shape together with what events of it share that ROWS renders: what their source
    blocks say, FACTS and SNAPSHOT."""

    __slots__ = (
        "_facts", "_metadata", "_quick", "_renderer", "_rows", "_shape", "_skipped", "_snapshot",
        "_source_at", "_widened",
    )  # fmt: skip

    def __init__(
        self, shape: TableShape, rows: RowRenderer, facts: SourceFacts, snapshot: str
    ) -> None:
        self._shape = shape
        self._rows = rows
        self._renderer = rows.renderer
        self._metadata = rows.metadata
        self._skipped = rows.renderer.config.skipped_operations
        self._quick = shape.quick_form(snapshot).of_rows if rows.metadata is None else None
        self._source_at: Callable[[int], object] | None = None
        self._facts = facts
        self._snapshot = snapshot
        self._widened: dict[frozenset[int], tuple[Table, BoundShape]] = {}

    def messages(self, change: RowChange) -> list[Message]:
        """The messages of CHANGE; raises BadValue."""
        if self._quick is not None:
            made = self._quick(change, self._facts)
            if made is not None:
                return made
        return self._any_messages(change)

    def _source(self, pos: int) -> object:
        """The source block of the event POS."""
        if self._source_at is None:
            template = self._shape.quick_form(self._snapshot).source_template
            self._source_at = (
                partial(_written_at, template, self._facts)
                if template is not None
                else partial(
                    at_position,
                    source_of_table(
                        self._renderer.config.topic_prefix,
                        self._rows.database,
                        self._shape.table,
                        self._facts,
                        self._snapshot,
                    ),
                )
            )
        return self._source_at(pos)

    def _any_messages(self, change: RowChange) -> list[Message]:
        shape = self._shape
        with suppress(BadValue):
            return self._made_with(shape.row.struct_of, shape.key.struct_of, change)
        if shape.widens_null and (unexpected := _unexpected_nulls(change)):
            table, widened = self._widened_for(unexpected, change)
            return widened.messages(change._replace(table=table))
        try:
            return self._made_with(shape.row.careful_struct_of, shape.key.careful_struct_of, change)
        except TooLarge:
            if not self._renderer.places_placeholders:
                raise
        return self._reduced(change)

    def _widened_for(self, columns: frozenset[int], change: RowChange) -> tuple[Table, BoundShape]:
        """Return the table of CHANGE with COLUMNS that may be NULL, and what renders its rows.

        A transaction goes on with the definition that it began with when another one lets a column
        be NULL, and rows with NULL in it follow.
        """
        known = self._widened.get(columns)
        if known is None:
            shown = (
                replace(column, nullable=True) if index in columns else column
                for index, column in enumerate(change.table.columns)
            )
            table = replace(change.table, columns=tuple(shown))
            shape = self._renderer.shape(self._rows.database, table, change.pos)
            bound = BoundShape(shape, self._rows, self._facts, self._snapshot)
            known = self._widened[columns] = table, bound
        return known

    def _reduced(self, change: RowChange) -> list[Message]:
        """The messages of CHANGE, with placeholders for what is too large. Raises BadValue."""
        key_of_row, reduced = (
            self._shape.key.careful_struct_of,
            ReducedChange(self._shape.row, change),
        )
        while True:
            try:
                made = self._made_with(reduced.struct_of, key_of_row, change, reduced)
            except TooLarge:
                if not reduced.give_way():
                    raise
            else:
                self._rows.note_reduced(change, reduced)
                return made

    def _made_with(
        self,
        row: StructFunction,
        key_of_row: StructFunction,
        change: RowChange,
        reduced: ReducedChange | None = None,
    ) -> list[Message]:
        pos, op, _, before, after = change
        made: list[Message | None]
        parts: list[tuple[Images, list[Message | None]]]
        if before is None:
            assert after is not None
            parts = [(("after",), [self._event(op, key_of_row(after), None, row(after), pos)])]
        elif after is None:
            parts = [(("before",), self._delete(key_of_row(before), row(before), pos))]
        else:
            key = key_of_row(after)
            if self._shape.may_change_key(before, after) and (
                repr(old_key := key_of_row(before)) != repr(key)
            ):
                parts = self._key_change(old_key, key, row, change)
            elif op in self._skipped:
                parts = []
            else:
                made = [self._event(op, key, row(before), row(after), pos)]
                parts = [(("before", "after"), made)]
        if reduced is not None:
            writer = self._renderer.writer
            parts = [(images, reduced.marked(writer, made, images)) for images, made in parts]
        if self._metadata is not None and parts:  # also what a transform drops, as with Debezium
            self._metadata.count(self._shape.table, len(parts))
        return [message for _, made in parts for message in made if message is not None]

    def _event(
        self,
        op: str,
        key: Struct | None,
        before: Struct | None,
        after: Struct | None,
        pos: int,
        headers: tuple[StructHeader, ...] = (),
        later: int = 0,
    ) -> Message | None:
        """One event; LATER: how many events of the same change go before it."""
        shape, renderer = self._shape, self._renderer
        now_us = time_ns() // 1000
        value = {
            "before": before,
            "after": after,
            "source": self._source(pos),
            "op": op,
            "ts_ms": now_us // 1000,
            "ts_us": now_us,
            "ts_ns": now_us * 1000,
            "transaction": (
                None if self._metadata is None else self._metadata.block(shape.table, later)
            ),
        }
        topic = shape.topic
        if headers or renderer.writer.transforms:
            return renderer.writer.message(
                topic, shape.key_schema, key, shape.value_schema, value, headers
            )
        # As ``message`` does, for nearly all of them.
        key_bytes = shape.write_key(topic, shape.key_schema, key)
        value_bytes = shape.write_value(topic, shape.value_schema, value)
        return renderer.writer.checked(
            topic, key_bytes, value_bytes, renderer.writer.headers, renderer.writer.headers_size
        )

    def _delete(
        self,
        key: Struct | None,
        before: Struct | None,
        pos: int,
        headers: tuple[StructHeader, ...] = (),
    ) -> list[Message | None]:
        delete = self._event("d", key, before, None, pos, headers)
        shape, renderer = self._shape, self._renderer
        if key is None or not renderer.config.tombstones_on_delete:
            return [delete]
        return [delete, renderer.writer.message(shape.topic, shape.key_schema, key, None, None)]

    def _key_change(
        self,
        old_key: Struct | None,
        new_key: Struct | None,
        row: StructFunction,
        change: RowChange,
    ) -> list[tuple[Images, list[Message | None]]]:
        """An update of the key: the old row goes, a new one comes, each names the other's key.

        As with Debezium each of the two counts for itself among the operations that are skipped.
        """
        pos, _, _, before, after = change
        schema = self._shape.key_schema
        assert schema is not None and before is not None and after is not None
        parts: list[tuple[Images, list[Message | None]]] = []
        if "d" not in self._skipped:
            to_new = (StructHeader("__debezium.newkey", schema, new_key),)
            parts.append((("before",), self._delete(old_key, row(before), pos, to_new)))
        if "c" not in self._skipped:
            from_old = (StructHeader("__debezium.oldkey", schema, old_key),)
            created = self._event("c", new_key, None, row(after), pos, from_old, len(parts))
            parts.append((("after",), [created]))
        return parts
