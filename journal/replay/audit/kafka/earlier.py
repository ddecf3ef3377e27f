"""Renders in the forms of versions before what is rendered in today's.

`firebird_cdc.journal.events.versions` says in which forms. Nearly always only the schemas around a
message differ, which are the same for all events of a table: then nothing is rendered again. A
message of the topic names the version that made it, and is compared with the digest of that one's
form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.converters import Converter, JsonConverter
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.events.render import JournalRenderer, Renderer
from firebird_cdc.journal.events.schema import Schema
from firebird_cdc.journal.events.versions import EARLIER, MessageForm, form_of, is_later
from firebird_cdc.journal.format import DdlChange, Header, RowChange, Stamp, Table
from firebird_cdc.journal.replay.audit.kafka.message_form import (
    Form,
    Read,
    digest_of_head,
    with_heads,
)

TODAYS_FORM = len(EARLIER)
LATER_FORM = TODAYS_FORM + 1
"""Numbers of forms: those before have their place in `EARLIER`."""

DIGEST_BYTES = 16
_VERSIONS_KEPT = 64  # the messages of a topic name few
_NONE = bytes(DIGEST_BYTES)
"""In the place of a digest: in that form there is no such message."""


@lru_cache(_VERSIONS_KEPT)
def form_number(version: str | None) -> int | None:
    """Return the number of the form in which VERSION wrote, None if it is not told."""
    if version is None:
        return None
    if is_later(version):
        return LATER_FORM
    form = form_of(version)
    return EARLIER.index(form) if form in EARLIER else TODAYS_FORM


class Once(NamedTuple):
    """A message of an event that can't be sent any more, but could by a version before."""

    message: Message
    read: Read
    earlier: bytes


class EarlierForms:
    """Renders for a task in the forms before; ``make``: makes a renderer for one.

    ``is_reshaped``: classes of the user's see the messages, so anything may differ in them.
    """

    def __init__(
        self, make: Callable[[MessageForm], Renderer], form: Form, *, is_reshaped: bool
    ) -> None:
        self.renderers = [make(each) for each in EARLIER]
        self.form = form
        self.is_reshaped = is_reshaped
        self._heads: dict[int, tuple[Table, list[tuple[bytes, bytes] | None]]] = {}

    def journal(self, renderer: Renderer, header: Header, stamp: Stamp, database: str) -> Journal:
        """Return what renders one journal, which RENDERER renders in today's form."""
        return Journal(self, renderer, header, stamp, database)

    def heads(self, database: str, table: Table) -> list[tuple[bytes, bytes] | None]:
        """Return for each form the digests of the schemas of TABLE's keys and values, None where
        it had no messages."""
        known = self._heads.get(id(table))
        if known is None or known[0] is not table:
            if len(self._heads) > _TABLES_KEPT:
                self._heads.clear()
            heads = [_heads(each, database, table) for each in self.renderers]
            known = self._heads[id(table)] = table, heads
        return known[1]


_TABLES_KEPT = 2000


def _heads(renderer: Renderer, database: str, table: Table) -> tuple[bytes, bytes] | None:
    try:
        shape = renderer.captured(database, table, 0)
    except BadEvent:
        return None
    if shape is None:
        return None
    return (
        _head(renderer.writer.key_converter, shape.key_schema),
        _head(renderer.writer.value_converter, shape.value_schema),
    )


def _head(converter: Converter, schema: Schema | None) -> bytes:
    if schema is None or not isinstance(converter, JsonConverter):
        return _NO_HEAD
    return digest_of_head(converter.frame(schema)[0])


_NO_HEAD = digest_of_head(b"")


class Journal:
    """Renders the events of one journal in the forms before."""

    def __init__(
        self, forms: EarlierForms, renderer: Renderer, header: Header, stamp: Stamp, database: str
    ) -> None:
        self._forms = forms
        self._headers = renderer.writer.headers
        self._facts = header, stamp, database
        self._journals: list[JournalRenderer] = []

    def digests(
        self, change: RowChange | DdlChange, messages: Sequence[Message], reads: Sequence[Read]
    ) -> list[bytes | None]:
        """Return for each of the MESSAGES of CHANGE its digests in all forms before, one behind the
        other; None: they are today's. READS: the messages as they are compared."""
        # Headers of the event itself are in a form of their own.
        if (
            isinstance(change, RowChange)
            and not self._forms.is_reshaped
            and all(each.headers is self._headers for each in messages)
        ):
            heads = self._forms.heads(self._facts[2], change.table)
            found = [
                [_with(read, message, each) for each in heads]
                for message, read in zip(messages, reads, strict=True)
            ]
        else:
            rendered = [self._made(each, change, len(messages)) for each in self._rendered()]
            found = [[each[index] for each in rendered] for index in range(len(messages))]
        return _joined(found, reads)

    def once(self, change: RowChange | DdlChange) -> list[Once]:
        """Return the messages that CHANGE, which can't be sent today, had in a form before.

        Their ``read`` has a digest that no other message has.
        """
        made: list[Once] = []
        for place, journal in enumerate(self._rendered()):
            try:
                messages = journal.messages(change)
            except BadEvent:
                continue
            for message in messages:
                read = self._forms.form.read(message.key, message.value, message.headers, False)
                of_forms = [_NONE] * len(EARLIER)
                of_forms[place] = read.digest
                earlier = b"".join(of_forms)
                unique = blake2b(b"once" + earlier, digest_size=DIGEST_BYTES).digest()
                made.append(Once(message, read._replace(digest=unique), earlier))
        return made

    def of_epoch(self, reads: Sequence[Read]) -> list[bytes | None]:
        """Return the same for the announcement of an epoch, which READS are, if there is one."""
        found = []
        for journal in self._rendered():
            try:
                found.append(journal.new_epoch())
            except BadEvent:
                found.append([])
        digests = [self._digests_of(each, len(reads)) for each in found]
        return _joined([[each[at] for each in digests] for at in range(len(reads))], reads)

    def _rendered(self) -> list[JournalRenderer]:
        if not self._journals:
            # Numbers in the transaction are compared apart, as today's form has them.
            self._journals = [
                each.journal(*self._facts, alone=True) for each in self._forms.renderers
            ]
        return self._journals

    def _made(
        self, journal: JournalRenderer, change: RowChange | DdlChange, number: int
    ) -> list[bytes]:
        """The digests of the NUMBER messages that JOURNAL makes of CHANGE."""
        try:
            messages = journal.messages(change)
        except BadEvent:
            messages = []
        return self._digests_of(messages, number)

    def _digests_of(self, messages: Sequence[Message], number: int) -> list[bytes]:
        if len(messages) != number:
            return [_NONE] * number
        read = self._forms.form.read
        return [read(each.key, each.value, each.headers, False).digest for each in messages]


def _joined(found: Sequence[Sequence[bytes]], reads: Sequence[Read]) -> list[bytes | None]:
    """Of each message the digests in all forms as one text, None if they are that of its READ."""
    return [
        None if all(one == read.digest for one in each) else b"".join(each)
        for each, read in zip(found, reads, strict=True)
    ]


def _with(read: Read, message: Message, heads: tuple[bytes, bytes] | None) -> bytes:
    """The digest of a message with the HEADS of another form."""
    if heads is None:
        return _NONE
    return with_heads(
        read.body,
        _NO_HEAD if message.key is None else heads[0],
        _NO_HEAD if message.value is None else heads[1],
    )
