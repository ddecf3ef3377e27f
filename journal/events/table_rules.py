"""Rules for tables, from the options: which are sent, under which names, in which forms."""

from __future__ import annotations

from dataclasses import replace

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.config.filters import MessageKeys, TableFilter
from firebird_cdc.journal.events import transaction_metadata
from firebird_cdc.journal.events.columns import ColumnRules
from firebird_cdc.journal.events.custom import CustomConverters
from firebird_cdc.journal.events.message_writer import MessageWriter
from firebird_cdc.journal.events.names import SchemaNames
from firebird_cdc.journal.events.topics import TopicNames
from firebird_cdc.journal.events.values import (
    FieldForm,
    UnsentWatch,
    ValueModes,
    field_form,
)
from firebird_cdc.journal.events.versions import MessageForm
from firebird_cdc.journal.format import Column


class TableRules:
    """The options that decide how the events of a table look."""

    def __init__(
        self,
        config: ConnectorConfig,
        message_form: MessageForm,
        writer: MessageWriter,
        custom_converters: CustomConverters,
    ) -> None:
        self.config = config
        self.message_form = message_form
        self.tables = TableFilter(config)
        self.message_keys = MessageKeys(config)
        self.custom_converters = custom_converters
        self.column_rules = ColumnRules(config)
        self.modes = ValueModes(
            decimal=config.decimal_handling_mode,
            int128_digits=config.decimal_int128_precision,
            held_digits=message_form.held_digits,
            time=config.time_precision_mode,
            binary=config.binary_handling_mode,
            placeholder=config.unavailable_value_placeholder,
            charset_none=config.charset_none,
            unknown_types=config.include_unknown_datatypes,
            max_bytes=writer.max_message_bytes,
            non_finite=writer.value_converter.carries_non_finite,
        )
        self.key_modes = replace(
            # Nothing is left out of keys, nor replaced in them: rows would collide.
            self.modes,
            unknown_types=True,
            placeholder=None,
            non_finite=writer.key_converter.carries_non_finite,
        )
        self.block_schema = (
            transaction_metadata.ORDERED_BLOCK
            if config.transaction_metadata_ordered
            else transaction_metadata.BLOCK
        )
        self.topics = TopicNames(config)
        self.schema_names = SchemaNames(config)

    @property
    def unsent(self) -> UnsentWatch:
        """Watch on values in whose place a placeholder stands."""
        return self.modes.unsent

    def form(
        self, database: str, table: str, column: Column, modes: ValueModes
    ) -> FieldForm | None:
        """Return the form in which COLUMN is sent, None if it is left out. Raises BadValue."""
        custom = self.custom_converters.form_for(database, table, column, modes)
        return field_form(column, modes) if custom is None else custom
