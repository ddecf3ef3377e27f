"""From journals to messages, through the parts that the shipper uses, with a user's options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from firebird_cdc.config import load_config
from firebird_cdc.journal.events.avro import AvroConverter
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.events.versions import TODAY, MessageForm
from firebird_cdc.journal.format import DdlChange, RowChange, alone, open_any

PREFIX = "proof"
_MAX_BYTES = 1_000_000
_REQUIRED = (
    "connector.name: proof-cdc",
    "connector.journal.directory: /var/lib/journal",
    "kafka.producer.bootstrap.servers: localhost:9092",
    f"kafka.topic.prefix: {PREFIX}",
)


class Sent(NamedTuple):
    """A message as a consumer gets it."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes | None]

    @property
    def structs(self) -> dict[str, bytes]:
        """The headers that hold a key."""
        written = ((name, self.headers.get(name)) for name in _STRUCT_HEADERS)
        return {name: content for name, content in written if content is not None}


_STRUCT_HEADERS = ("__debezium.newkey", "__debezium.oldkey")


def renderer(
    directory: Path,
    lines: Sequence[str] = (),
    schema_changes: bool = False,
    form: MessageForm = TODAY,
) -> Renderer:
    """Return the renderer for the options in LINES; DIRECTORY: where to write them.

    SCHEMA_CHANGES: also DDL gives messages. FORM: that of a version of ours.
    """
    path = directory / "connector.yaml"
    if not any(line.startswith("header.converter") for line in lines):
        lines = (*lines, "header.converter: json")  # whose headers tell the types of all they hold
    ddl = f"include.schema.changes: {str(schema_changes).lower()}"
    text = "".join(f"{line}\n" for line in (*_REQUIRED, ddl, *lines))
    path.write_text(text, encoding="utf-8")
    return Renderer(load_config(path), _MAX_BYTES, message_form=form)


def render(made: Renderer, journals: Sequence[Path]) -> list[Sent]:
    """Return the messages of JOURNALS in order."""
    return [_sent(message) for path in journals for message in _of_journal(made, path)]


def render_avro(
    journals: Sequence[Path], registry: str, directory: Path, *more: str, form: MessageForm = TODAY
) -> list[Sent]:
    """Return the messages of JOURNALS as Avro, by the registry at the URL; MORE options, FORM and
    DIRECTORY as for `renderer`."""
    lines = [
        f"{part}.converter{line}"
        for part in ("key", "value")
        for line in (": avro", f".schema.registry.url: {registry}")
    ]
    made = renderer(directory, (*lines, *more), form=form)
    try:
        return render(made, journals)
    finally:
        for converter in (made.writer.key_converter, made.writer.value_converter):
            assert isinstance(converter, AvroConverter)
            converter.close()


def _of_journal(made: Renderer, path: Path) -> Iterable[Message]:
    charset = made.rules.modes.charset_none
    with alone(open_any(path, charset), charset) as reader:
        assert reader.stamp is not None
        journal = made.journal(reader.header, reader.stamp, reader.database)
        for change in reader.changes():
            if isinstance(change, RowChange | DdlChange):
                messages = journal.messages(change)
                if journal.awaits_begin:
                    yield from journal.begin()
                yield from messages
        yield from journal.finish()


def _sent(message: Message) -> Sent:
    topic, key, value, headers = message
    assert isinstance(key, bytes | None)
    assert isinstance(value, bytes | None)
    return Sent(
        topic,
        key,
        value,
        {name: it.encode() if isinstance(it, str) else it for name, it in headers},
    )
