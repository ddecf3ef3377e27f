"""Content of a Kafka message that is compared with the journals, as a digest, and its source.

A message that is rendered now differs from the one that was sent in nothing but what depends on
when and by whom it was made: the envelope's own times, the connector's version, the headers that
name the connector, and what `Form.volatile` names besides. These are left out, and the digests are
equal. Where transactions are counted (``provide.transaction.metadata``), an event's number in its
transaction depends on what was left out of it at that time: it has a digest of its own, ``block``.

Versions of ours differ in the schemas that they write (`firebird_cdc.journal.events.versions`). So
schemas have digests of their own, and messages that belong together by the payload of their key are
brought together whatever its schema says.

Messages of earlier versions tell no epoch. So ``epoch`` is compared apart from the digest, and
``sequence``, which repeats other fields, is left out where it says what they do.

What a snapshot read has no journal to be compared with. So rows are told by digests of their own,
`image_digest`, by which one that was read is compared with one that a change has left.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from firebird_cdc.journal.events.json_bytes import COMPILED, dumps
from firebird_cdc.journal.events.source import CHANGES

if TYPE_CHECKING:
    from firebird_cdc.journal.events.records import Message

if TYPE_CHECKING or COMPILED:
    from orjson import OPT_NON_STR_KEYS, OPT_SORT_KEYS, loads
else:
    from json import loads

FieldPath = tuple[str, ...]
"""Names of fields from the outside in; a header is (`HEADER`, its name)."""

HEADER = "\0header"
"""Stands first in the `FieldPath` of a header."""

OURS = "__firebird_cdc."
"""Headers of ours begin so: they say how a message came, and are no part of what it says."""

ANNOUNCED = "e"
"""The ``op`` of a message that announces a new epoch."""

_CONTEXT = "__debezium.context."
_KEYS = ("__debezium.newkey", "__debezium.oldkey")
"""Headers that the converter of keys wrote in versions before 0.2."""

_Headers = Sequence[tuple[str, bytes | str | None]]
Decode = Callable[[bytes], Any]

# The end of an envelope as the shipper writes it, behind the last `,"op":` of the text. In a
# column's value the quotes would be escaped.
_OP = b',"op":"'
_END = re.compile(rb'[a-z]"(,"ts_ms":\d+,"ts_us":\d+,"ts_ns":\d+),"transaction":')
_SOURCE = b'"source":{"version":"'
_TEXT = rb'"((?:[^"\\]|\\.)*)"'
_PLACE = re.compile(
    rb'","connector":"firebird","name":' + _TEXT + rb',"ts_ms":\d+,"ts_us":(\d+),"ts_ns":\d+,'
    rb'"snapshot":"(\w+)","db":' + _TEXT + rb',"sequence":(?P<numbers>null|"(?:[^"\\]|\\.)*")'
    rb',"table":' + _TEXT + rb',"txId":(\d+|null)(?P<told>,"epoch":(?P<epoch>\d+))?'
    rb',"commitSeq":(?P<sequence>\d+),"journal":"([0-9a-f-]{36})","pos":(?P<pos>\d+)'
)  # fmt: skip
_NEXT_SCHEMA = b'{"type":"int64","optional":true,"field":"commitSeq"}'
_EPOCH_SCHEMAS = b'{"type":"int64","optional":true,"field":"epoch"},' + _NEXT_SCHEMA
_TIMES = ("ts_ms", "ts_us", "ts_ns")
_SCHEMA = b'{"schema":'
_PAYLOAD = b',"payload":'
_HEADS_KEPT = 1024


Images = tuple[bytes | None, bytes | None]
"""Of the rows before and after a change: see `image_digest`."""

NO_IMAGES: Images = (None, None)

_NAMES_BYTES = 8
_VALUE_BYTES = 5
_UNKNOWN = bytes(_VALUE_BYTES)
"""In the place of a value's digest: the message does not have the value."""


class Source(NamedTuple):
    """Source of a message, as it says itself; ``name``: of the server; ``epoch``: None where an
    earlier version made it. ``snapshot``: `CHANGES`, or what marks a row that a snapshot read: then
    ``journal`` and ``pos`` are those of its window, ``sequence`` is the cut, and there is no
    ``transaction``. ``time_us``: of the commit or the snapshot."""

    name: str
    database: str
    table: str
    transaction: int | None
    sequence: int
    journal: bytes
    pos: int
    epoch: int | None = None
    snapshot: str = CHANGES
    time_us: int = 0

    @property
    def is_read(self) -> bool:
        """Tell whether a snapshot read the row, so that no journal has it."""
        return self.snapshot != CHANGES


class Read(NamedTuple):
    """A message as it is compared.

    ``digest``: of all that counts. ``group``: what the messages that have an order have in common;
    without a key it is the payload. ``block``: of its place in its transaction, 0 without one.
    ``op``: c, u, d or r; t: a tombstone; `ANNOUNCED`: of a new epoch; "": none is told.
    ``body``: digest of all but the schemas of key and value (`with_heads`). ``version``: the one of
    ours that made it, None if it does not say so. ``images``: `image_digest` of the rows before and
    after, if `Form.images` asks for them.
    """

    digest: bytes
    group: bytes
    block: int
    op: str
    source: Source | None
    body: bytes
    version: str | None
    images: Images = NO_IMAGES


@dataclass(frozen=True)
class Form:
    """Way to read the messages of one configuration. A small value that pickles.

    ``blocks``: events are counted in their transactions. ``volatile``: further fields
    that depend on when a message was made. ``images``: the rows are told by digests of their own;
    ``unavailable``: the values that stand for one that no journal has. ``decode_key``,
    ``decode_value``: make an object of bytes that are no JSON.
    """

    blocks: bool = False
    volatile: frozenset[FieldPath] = frozenset()
    images: bool = False
    unavailable: frozenset[str] = frozenset()
    decode_key: Decode | None = None
    decode_value: Decode | None = None

    @property
    def of_rendered(self) -> Form:
        """The same for what `firebird_cdc.journal.replay.audit.kafka.avro_form.LocalAvro` writes:
        JSON."""
        return replace(
            self,
            decode_key=self.decode_key and _rendered,
            decode_value=self.decode_value and _rendered,
        )

    def _key(self, key: bytes) -> tuple[bytes, bytes]:
        """The schema that KEY has, as text that is the same for equal ones, and the rest of it."""
        paths = self.volatile
        if self.decode_key is None and not paths:
            end = _end_of_head(key)
            return key[:end], key[end:]
        try:
            content = _content(self.decode_key, key)
        except ValueError:
            return b"", key  # somebody else's
        for path in paths:
            _remove(content, path, "key")
        return _written_apart(content)

    def _key_header(self, raw: bytes) -> bytes:
        """The content of a header that holds a key: text, or Avro with a schema's number."""
        return b"".join((self if raw.startswith(b"\0") else self.of_rendered)._key(raw))

    def read(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: _Headers,
        with_source: bool = True,
    ) -> Read:
        """The message as it is compared; ``source`` only if it is asked for."""
        state = blake2b(digest_size=16)
        head, seen = (b"", None) if key is None else self._key(key)
        if seen is None:
            state.update(b"-")
        else:
            state.update(b"%d:" % len(seen))
            state.update(seen)
        paths = self.volatile
        if headers:
            for name, content in headers:
                if not name.startswith((OURS, _CONTEXT)) and not (
                    paths and (HEADER, name) in paths
                ):
                    raw = content.encode() if isinstance(content, str) else content or b""
                    if self.decode_key is not None and name in _KEYS:
                        raw = self._key_header(raw)
                    state.update(b"h%d:%d:" % (len(name), len(raw)))
                    state.update(name.encode())
                    state.update(raw)
        if seen is None:
            # The same in every form: headers and schemas are not.
            payload = blake2b(digest_size=16)
            told = self._add(payload, value, with_source)
            group = payload.digest()
            state.update(group)
        else:
            told = self._add(state, value, with_source)
            group = blake2b(seen, digest_size=16).digest()
        body = state.digest()
        digest = with_heads(body, digest_of_head(head), digest_of_head(told.head))
        return Read(
            digest, group, told.block, told.op, told.source, body, told.version, told.images
        )

    def _add(self, state: blake2b, value: bytes | None, with_source: bool) -> _Told:
        """Add to STATE what counts of VALUE but its schema."""
        if value is None:
            state.update(b"t")
            return _Told(b"", "t")
        paths = self.volatile
        if self.decode_value is None and not paths:
            at = value.rfind(_OP)
            end = _END.match(value, at + 7) if at >= 0 else None
            begin = value.rfind(_SOURCE, 0, at) if end is not None else -1
            if end is not None and begin >= 0:
                version = begin + len(_SOURCE)
                payload = _end_of_head(value)
                state.update(value[payload:version])
                behind = value.find(b'"', version)
                place = _PLACE.match(value, behind)
                state.update(_without_numbers(value, behind, end.start(1), place))
                rest = value[end.end() :]
                block = _block(rest) if self.blocks else 0
                if not self.blocks:
                    state.update(rest)
                source = _source(place) if with_source and place is not None else None
                of = value[version:behind].decode(errors="replace")
                images = NO_IMAGES
                if self.images:
                    images = self._images(loads(value[payload:-1] if payload else value))
                return _Told(value[:payload], chr(value[at + 7]), block, source, of, images)
        try:
            content = _content(self.decode_value, value)
        except ValueError:
            state.update(value)
            return _Told(b"", "")
        facts = self._reduce(content)
        for path in paths:
            _remove(content, path, "value")
        head, rest = _written_apart(content)
        state.update(rest)
        return facts._replace(head=head)

    def _reduce(self, content: Any) -> _Told:
        """Take out of CONTENT what depends on when it was made; ``head`` is left empty."""
        envelope = content
        schema = None
        if isinstance(content, dict) and content.keys() == {"schema", "payload"}:
            schema, envelope = content["schema"], content["payload"]
        nothing = _Told(b"", "")
        if not isinstance(envelope, dict):
            return nothing
        source = envelope.get("source")
        if not (isinstance(source, dict) and source.get("connector") == "firebird"):
            return nothing
        version = source.pop("version", None)
        _remove_epoch_schema(schema)
        epoch, numbers = source.pop("epoch", None), source.get("sequence")
        told = (epoch, source.get("commitSeq"), source.get("pos"))
        if numbers == _sequence([each for each in told if each is not None]):
            del source["sequence"]
        for name in _TIMES:
            envelope.pop(name, None)
        block = 0
        if self.blocks and "transaction" in envelope:
            # Fields of what was decoded have no order that both sides share.
            write = dumps if self.decode_value is None else written
            block = _block(write(envelope.pop("transaction")))
        op = envelope.get("op")
        try:
            place: Source | None = Source(
                str(source["name"]),
                str(source["db"]),
                str(source["table"]),
                None if source["txId"] is None else int(source["txId"]),
                int(source["commitSeq"]),
                UUID(source["journal"]).bytes,
                int(source["pos"]),
                None if epoch is None else int(epoch),
                str(source.get("snapshot", CHANGES)),
                int(source.get("ts_us", 0)),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            place = None
        if op is None and place is not None and place.pos == 0:
            op = ANNOUNCED
        op = op if isinstance(op, str) and len(op) == 1 else ""
        images = self._images(envelope) if self.images else NO_IMAGES
        return _Told(b"", op, block, place, version if isinstance(version, str) else None, images)

    def _images(self, envelope: Any) -> Images:
        """Return the digests of the rows in ENVELOPE."""
        if not (isinstance(envelope, dict) and "after" in envelope):
            return NO_IMAGES
        return (
            image_digest(envelope.get("before"), self.unavailable),
            image_digest(envelope["after"], self.unavailable),
        )

    def differences(self, one: Message, other: Message) -> set[FieldPath]:
        """The fields in which two renderings of one message differ, but for those left out."""
        found: set[FieldPath] = set()
        if self._key(one.key or b"") != self._key(other.key or b""):
            found |= self._differences(self.decode_key, one.key, other.key, ("key",))
        if one.value != other.value:
            found |= self._differences(self.decode_value, one.value, other.value, ("value",))
        if one.headers != other.headers:
            pairs = zip(one.headers, other.headers, strict=False)
            found |= {(HEADER, name) for (name, a), (_, b) in pairs if a != b}
        return found

    def _differences(
        self, decode: Decode | None, one: bytes | None, other: bytes | None, part: FieldPath
    ) -> set[FieldPath]:
        if one is None or other is None:
            return set()
        try:
            left, right = _content(decode, one), _content(decode, other)
        except ValueError:
            return set()
        self._reduce(left)
        self._reduce(right)
        return _differing(left, right, part)

    def key_text(self, key: bytes | None) -> str | None:
        """The key for people: its JSON without a schema around it."""
        if key is None:
            return None
        if self.decode_key is None and not key.startswith(b'{"schema"'):
            return key.decode("utf-8", "backslashreplace")
        try:
            content = _content(self.decode_key, key)
        except ValueError:
            return key[:200].decode("utf-8", "backslashreplace")
        if isinstance(content, dict) and content.keys() == {"schema", "payload"}:
            content = content["payload"]
        return dumps(content, _hex).decode()


class _Told(NamedTuple):
    """Return what a value says: its schema as text, and as in `Read`."""

    head: bytes
    op: str
    block: int = 0
    source: Source | None = None
    version: str | None = None
    images: Images = NO_IMAGES


def image_digest(image: Any, unavailable: frozenset[str]) -> bytes | None:
    """Return the digest of a row: of the names of its fields, and of each value; empty for none.

    None if IMAGE is no row. UNAVAILABLE: values that stand for one that the message does not have.
    """
    if image is None:
        return b""
    if not isinstance(image, dict):
        return None
    names = sorted(image)
    parts = [blake2b("\0".join(names).encode(), digest_size=_NAMES_BYTES).digest()]
    for name in names:
        value = image[name]
        if isinstance(value, bytes):
            value = value.hex()
        # Of arrays a journal need not have the content.
        if isinstance(value, list) or (isinstance(value, str) and value in unavailable):
            parts.append(_UNKNOWN)
        else:
            parts.append(blake2b(written(value), digest_size=_VALUE_BYTES).digest())
    return b"".join(parts)


def are_comparable(one: bytes | None, other: bytes | None) -> bool:
    """Tell whether two rows have the same fields, or one of them is none."""
    if one is None or other is None:
        return False
    return not one or not other or one[:_NAMES_BYTES] == other[:_NAMES_BYTES]


def are_equal(one: bytes, other: bytes) -> bool:
    """Tell whether two rows that are comparable have the same values, as far as both have them."""
    if one == other:
        return True
    if not one or not other:
        return False
    for at in range(_NAMES_BYTES, len(one), _VALUE_BYTES):
        left, right = one[at : at + _VALUE_BYTES], other[at : at + _VALUE_BYTES]
        if _UNKNOWN not in (left, right) and left != right:
            return False
    return True


def with_heads(body: bytes, key: bytes, value: bytes) -> bytes:
    """Return the digest of a message from that of its BODY, and of the schemas of KEY and VALUE
    (`digest_of_head`, of an empty text where there is none)."""
    return blake2b(body + key + value, digest_size=16).digest()


@lru_cache(_HEADS_KEPT)
def digest_of_head(head: bytes) -> bytes:
    """Return the digest of what stands before the payload of a key or value: its schema."""
    return blake2b(_without_epoch_schema(head), digest_size=16).digest()


def _end_of_head(raw: bytes) -> int:
    """Return where the payload of RAW begins, 0 if it is nothing else. In a schema all other braces
    stand behind brackets or in texts, where quotes are escaped."""
    if not raw.startswith(_SCHEMA):
        return 0
    at = raw.find(_PAYLOAD + b"{")
    at = at if at >= 0 else raw.find(_PAYLOAD)
    return at + len(_PAYLOAD) if at >= 0 else 0


def _written_apart(content: Any) -> tuple[bytes, bytes]:
    """The schema of CONTENT and the rest of it as bytes."""
    if isinstance(content, dict) and content.keys() == {"schema", "payload"}:
        return written(content["schema"]), written(content["payload"])
    return b"", written(content)


def _rendered(raw: bytes) -> Any:
    return loads(bytes(raw))  # orjson takes no kind of bytes but bytes


def _content(decode: Decode | None, raw: bytes) -> Any:
    return loads(raw) if decode is None else decode(raw)


def written(content: Any) -> bytes:
    """CONTENT as bytes that are the same for all that is equal; not the same in every Python."""
    if COMPILED:
        return dumps(content, _hex, OPT_SORT_KEYS | OPT_NON_STR_KEYS)
    return json.dumps(content, default=_hex, sort_keys=True).encode()


def _hex(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def _block(text: bytes) -> int:
    if text.startswith(b"null"):
        return 0
    return int.from_bytes(blake2b(text.rstrip(b"}"), digest_size=8).digest(), "big", signed=True)


def _sequence(numbers: Sequence[object]) -> str:
    return "[" + ",".join(f'"{number}"' for number in numbers) + "]"


def _without_epoch_schema(start: bytes) -> bytes:
    """Return START of a message without the field ``epoch`` in the schema of its source block."""
    if not start.startswith(b'{"schema"'):
        return start
    return start.replace(_EPOCH_SCHEMAS, _NEXT_SCHEMA, 1)


def _remove_epoch_schema(schema: Any) -> None:
    """Take ``epoch`` out of the source block in SCHEMA, the envelope's."""
    if not (isinstance(schema, dict) and isinstance(schema.get("fields"), list)):
        return
    for field in schema["fields"]:
        if field.get("field") == "source" and isinstance(field.get("fields"), list):
            field["fields"] = [each for each in field["fields"] if each.get("field") != "epoch"]


def _without_numbers(value: bytes, start: int, end: int, place: re.Match[bytes] | None) -> bytes:
    """Return VALUE between START and END without its epoch and ``sequence``; whole, if ``sequence``
    says something else than the fields that PLACE has found."""
    if place is None:
        return value[start:end]
    numbers = [each for each in place.group("epoch", "sequence", "pos") if each is not None]
    if place["numbers"] != b'"[' + b",".join(b'\\"%s\\"' % each for each in numbers) + b']"':
        return value[start:end]
    last = place.end("numbers")
    number = place.span("told") if place["told"] else (last, last)
    return b"".join(
        (value[start : place.start("numbers")], value[last : number[0]], value[number[1] : end])
    )


def _source(found: re.Match[bytes]) -> Source:
    name, time_us, snapshot, database, _, table, transaction, _, epoch, sequence, journal, pos = (
        found.groups()
    )
    return Source(
        _unquoted(name),
        _unquoted(database),
        _unquoted(table),
        None if transaction == b"null" else int(transaction),
        int(sequence),
        bytes.fromhex(journal.replace(b"-", b"").decode()),
        int(pos),
        None if epoch is None else int(epoch),
        snapshot.decode(),
        int(time_us),
    )


def _unquoted(text: bytes) -> str:
    return json.loads(b'"' + text + b'"') if b"\\" in text else text.decode()


def _remove(content: Any, path: FieldPath, part: str) -> None:
    """Take the field at PATH, which begins with key or value, out of CONTENT."""
    if path[0] != part:
        return
    for name in path[1:-1]:
        if not isinstance(content, dict) or name not in content:
            return
        content = content[name]
    if isinstance(content, dict):
        content.pop(path[-1], None)


def _differing(one: Any, other: Any, path: FieldPath) -> set[FieldPath]:
    """The fields in which two objects differ, each with PATH before it."""
    if isinstance(one, dict) and isinstance(other, dict):
        found: set[FieldPath] = set()
        for name in one.keys() | other.keys():
            found |= _differing(one.get(name), other.get(name), (*path, name))
        return found
    return set() if one == other else {path}
