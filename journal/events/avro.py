"""Keys and values as Avro, with a Confluent-compatible schema registry.

Connect schemas become Avro ones as Confluent's ``AvroData`` makes them, so that its
``AvroConverter`` gives the same Connect schema back; Confluent's Python serialiser writes the
first message of each, and fastavro, which it uses too, the others. Used by the shipper's process
only. Needs the packages of the extra ``avro``.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from time import monotonic
from typing import Any

import logbook

from firebird_cdc.config.avro import RECORD, TOPIC, TOPIC_RECORD, read_avro_options
from firebird_cdc.config.secrets import is_secret, url_passwords
from firebird_cdc.errors import (
    ConfigError,
    RegistryDenied,
    RegistryRefused,
    RegistryTrouble,
    RegistryUnavailable,
    SetupError,
)
from firebird_cdc.journal.events.schema import Schema
from firebird_cdc.journal.events.schema import struct as struct_schema
from firebird_cdc.journal.events.values import BadValue

_log = logbook.Logger("firebird_cdc.journal.events.avro")

Prepare = Callable[[Any], Any]
"""Turns a value that is not None from Connect's form into fastavro's."""

_NAMESPACE = "io.confluent.connect.avro"
_PRIMITIVES = {
    "boolean": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
}
_NARROWED = ("int8", "int16")
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_UNLIMITED_PRECISION = 64
_LOGICAL_TYPES = {
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Time": "time-millis",
    "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

_ASK_AGAIN_S = 2.0
"""Seconds for which a registry's refusal of a schema is believed; a guess. Without it, each of
hundreds of thousands of left out events would ask."""

_REST_S = 1.0
"""Seconds without a request after a failed one: other databases need not wait for it too."""

_PASSING = (408, 425, 429)
"""Of HTTP's answers that blame the question, those that a later one may spare."""

_HEAD_BYTES = 5
"""A zero byte and the schema's id, as Confluent's wire format has them before the content."""

_PREFIX_BYTES = 5  # zero, and the id of a schema
_SHOWN = 400
"""Characters of a foreign message that our texts repeat."""

# What fastavro raises at a value that is not of its schema.
_UNFIT = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, struct.error)


# Schemas


def avro_schema(schema: Schema, meta_data: bool = True) -> tuple[Any, Prepare | None]:
    """Return the Avro schema of SCHEMA, ready for JSON, and what prepares its values, if any.

    META_DATA: with the ``connect.*`` properties, from which a reader makes the Connect schema.
    Raises BadValue at a name that Avro forbids. Source: AvroData's ``fromConnectSchema``.
    """
    return _Builder(meta_data).build(schema, "")


class _Builder:
    """Makes one Avro schema, and what turns a Connect value into fastavro's form of it.

    A ``Prepare`` takes values that are not None; None instead of one: values stay as they are.
    """

    def __init__(self, meta_data: bool) -> None:
        self._meta_data = meta_data
        self._records: dict[str, tuple[Schema, Prepare | None]] = {}
        self._anonymous: list[Schema] = []

    def build(self, schema: Schema, space: str) -> tuple[Any, Prepare | None]:
        """The type of SCHEMA inside the namespace SPACE, a union with null if it is optional."""
        if schema.type == "struct":
            full_name = schema.name or self._name_of_anonymous(schema)
            base, prepare = self._record(full_name, schema, space, schema)
            if schema.optional:
                return ["null", base], _branch(full_name, prepare)
            return base, prepare
        base, prepare = self._plain(schema, space)
        if not schema.optional:
            return base, prepare
        return ([base, "null"] if schema.default is not None else ["null", base]), prepare

    def _plain(self, schema: Schema, space: str) -> tuple[Any, Prepare | None]:
        prepare: Prepare | None = None
        described: dict[str, Any]
        if schema.type == "array":
            assert schema.items is not None
            items, each = self.build(schema.items, space)
            described = {"type": "array", "items": items}
            prepare = each and _of_items(each)
        elif schema.type == "map":
            described, prepare = self._map(schema, space)
        else:
            described = {"type": _PRIMITIVES[schema.type]}
        self._annotate(described, schema)
        return described["type"] if len(described) == 1 else described, prepare

    def _map(self, schema: Schema, space: str) -> tuple[dict[str, Any], Prepare | None]:
        """A map with strings for keys; others are arrays of pairs, as Avro knows no such map."""
        keys, values = schema.keys, schema.items
        assert keys is not None
        assert values is not None
        if keys.type == "string" and not keys.optional:
            described, each = self.build(values, space)
            return {"type": "map", "values": described}, each and _of_values(each)
        pair = struct_schema(None, ("key", keys), ("value", values))
        record, prepare = self._record(schema.name or f"{_NAMESPACE}.MapEntry", pair, space, None)
        if schema.name is not None and type(record) is dict and self._meta_data:
            record["connect.internal.type"] = "MapEntry"
        return {"type": "array", "items": record}, _of_entries(prepare)

    def _record(
        self, full_name: str, schema: Schema, space: str, noted: Schema | None
    ) -> tuple[Any, Prepare | None]:
        """The record of SCHEMA's fields, with NOTED's properties; its name where it came before."""
        own_space, _, name = full_name.rpartition(".")
        known = self._records.get(full_name)
        if known is not None:
            if not _alike(known[0], schema):
                raise BadValue(
                    f"two structs of different fields are both named {full_name}, which Avro"
                    " can't express; let a transform rename one of them or leave it out"
                )
            return name if own_space == space else full_name, known[1]
        for part in full_name.split("."):
            _check_name(part, f"schema {full_name}", "schema.name.adjustment.mode")
        described: dict[str, Any] = {"type": "record", "name": name}
        if own_space != space:
            described["namespace"] = own_space
        # Known before its fields are, lest a struct of another kind inside takes its name.
        self._records[full_name] = schema, None
        prepares: dict[str, Prepare] = {}
        described["fields"] = fields = []
        for field in schema.fields:
            _check_name(field.name, f"field {field.name} of {full_name}", _FIELD_OPTION)
            kind, prepare = self.build(field.schema, own_space)
            fields.append({"name": field.name, "type": kind, **_default(field.schema)})
            if prepare is not None:
                prepares[field.name] = prepare
        if noted is not None:
            self._annotate(described, noted)
        of_fields = _of_fields(tuple(prepares.items())) if prepares else None
        self._records[full_name] = schema, of_fields
        return described, of_fields

    def _name_of_anonymous(self, schema: Schema) -> str:
        alike = (place for place, other in enumerate(self._anonymous, 1) if _alike(other, schema))
        number = next(alike, None)
        if number is None:
            self._anonymous.append(schema)
            number = len(self._anonymous)
        return f"{_NAMESPACE}.ConnectDefault{number if number > 1 else ''}"

    def _annotate(self, described: dict[str, Any], schema: Schema) -> None:
        """Add what a reader needs to make the Connect schema again, and the logical type."""
        if schema.name == _DECIMAL:
            scale = int(schema.parameters.get("scale", "0"))
            precision = int(
                schema.parameters.get("connect.decimal.precision", _UNLIMITED_PRECISION)
            )
            described |= {"scale": scale, "precision": precision}
        if self._meta_data:
            if schema.doc is not None:
                described["connect.doc"] = schema.doc
            if schema.version is not None:
                described["connect.version"] = schema.version
            if schema.parameters:
                described["connect.parameters"] = dict(schema.parameters)
            if schema.default is not None:
                described["connect.default"] = _json_default(schema, schema.default)
            if schema.name is not None:
                described["connect.name"] = schema.name
            if schema.type in _NARROWED:
                described["connect.type"] = schema.type
        if schema.name == _DECIMAL and 0 <= scale <= precision:
            described["logicalType"] = "decimal"
        elif schema.name in _LOGICAL_TYPES:
            described["logicalType"] = _LOGICAL_TYPES[schema.name]


_FIELD_OPTION = "field.name.adjustment.mode"


def _check_name(name: str, whose: str, option: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise BadValue(
            f"{whose}: Avro allows only letters, digits and _ in a name, and no digit in front;"
            f" set {option}: avro"
        )


def _alike(one: Schema, other: Schema) -> bool:
    """Tell whether values of both are written alike, whatever else is said about them."""
    if one is other:
        return True
    if one.type != other.type or len(one.fields) != len(other.fields):
        return False
    inner = zip((one.items, one.keys), (other.items, other.keys), strict=True)
    return all(
        mine.name == its.name and _same(mine.schema, its.schema)
        for mine, its in zip(one.fields, other.fields, strict=True)
    ) and all(
        mine is its or (mine is not None and its is not None and _same(mine, its))
        for mine, its in inner
    )


def _same(one: Schema, other: Schema) -> bool:
    return (
        one.optional == other.optional
        and (one.default is None) == (other.default is None)
        and _alike(one, other)
    )


def _default(schema: Schema) -> dict[str, Any]:
    """A field's default; the first branch of its union is the default's type."""
    if schema.default is not None and not (schema.type == "struct" and schema.optional):
        return {"default": _json_default(schema, schema.default)}
    return {"default": None} if schema.optional else {}


def _json_default(schema: Schema, value: Any) -> Any:
    """VALUE of SCHEMA as JSON, in the spelling of Avro's defaults: bytes as text of Latin-1."""
    if value is None:
        return None
    if schema.type == "bytes":
        return bytes(value).decode("latin-1")
    if schema.type == "array":
        assert schema.items is not None
        return [_json_default(schema.items, item) for item in value]
    if schema.type == "struct":
        return {
            field.name: _json_default(field.schema, value[field.name]) for field in schema.fields
        }
    if schema.type == "map":
        assert schema.items is not None
        assert schema.keys is not None
        pairs = [
            (_json_default(schema.keys, key), _json_default(schema.items, item))
            for key, item in value.items()
        ]
        by_name = schema.keys.type == "string" and not schema.keys.optional
        return dict(pairs) if by_name else [list(pair) for pair in pairs]
    return value


# Values: Connect's physical form is fastavro's, but for maps without strings as keys. A named
# branch saves fastavro from trying a whole struct on each branch of a union.


def _branch(name: str, prepare: Prepare | None) -> Prepare:
    if prepare is None:
        return lambda value: (name, value)
    return lambda value: (name, prepare(value))


def _of_fields(prepares: tuple[tuple[str, Prepare], ...]) -> Prepare:
    def prepare(value: dict[str, Any]) -> dict[str, Any]:
        prepared = value.copy()
        for name, convert in prepares:
            inner = value[name]
            if inner is not None:
                prepared[name] = convert(inner)
        return prepared

    return prepare


def _of_items(each: Prepare) -> Prepare:
    return lambda value: [None if item is None else each(item) for item in value]


def _of_values(each: Prepare) -> Prepare:
    return lambda value: {key: None if item is None else each(item) for key, item in value.items()}


def _of_entries(prepare: Prepare | None) -> Prepare:
    def entries(value: dict[Any, Any]) -> list[Any]:
        pairs = [{"key": key, "value": item} for key, item in value.items()]
        return pairs if prepare is None else [prepare(pair) for pair in pairs]

    return entries


# The converter


@dataclass(slots=True)
class _Writer:
    """One schema of one topic, registered.

    ``serialize``: Confluent's serialiser. ``parsed``: the schema as fastavro has it, with which
    the serialiser writes too; None if that alone does not do. ``head``: what the serialiser has
    put before the first message.
    """

    subject: str
    prepare: Prepare | None
    serialize: Callable[[Any, Any], bytes]
    context: Any
    parsed: Any
    made_at: float
    head: bytes = b""


class AvroConverter:
    """Writes keys, or values, in Confluent's wire format: a zero byte, the schema's id, Avro.

    OPTIONS: those below ``key.converter.`` or ``value.converter.``, without that prefix.
    Asks the registry once for each schema of a topic. Not for several threads.
    Raises ConfigError at options that are wrong, SetupError where packages are missing.
    """

    carries_non_finite = True

    def __init__(self, options: Mapping[str, str], *, is_key: bool) -> None:
        self._prefix = "key.converter." if is_key else "value.converter."
        self._options, found = read_avro_options(options, is_key=is_key)
        if found.wrong or found.missing:
            raise ConfigError(
                [
                    *(f"{self._prefix}{name} can't be used: {why}" for name, why in found.wrong),
                    *(f"{self._prefix}{name} is missing: {why}" for name, why in found.missing),
                ]
            )
        try:
            self._confluent = import_module("confluent_kafka.schema_registry")
            self._serializer = import_module("confluent_kafka.schema_registry.avro").AvroSerializer
            serialization = import_module("confluent_kafka.serialization")
            fastavro = import_module("fastavro")
        except ImportError as error:
            raise SetupError(
                f"the Avro converter lacks a Python package ({error.name}); get it:"
                " pip install '.[avro]' in the clone of firebird-cdc"
            ) from error
        self._parse, self._write = fastavro.parse_schema, fastavro.schemaless_writer
        field = serialization.MessageField
        self._field = field.KEY if is_key else field.VALUE
        self._context = serialization.SerializationContext
        self._secrets = _secrets(self._options.client)
        self._subject_of = {
            RECORD: self._confluent.record_subject_name_strategy,
            TOPIC_RECORD: self._confluent.topic_record_subject_name_strategy,
        }.get(self._options.strategy, self._confluent.topic_subject_name_strategy)
        self._failures = (self._confluent.SchemaRegistryError, *_transport_errors())
        self._client = self._connect()
        self._writers: dict[tuple[str, Schema | None], _Writer] = {}
        self._known: dict[tuple[str, str], _Writer] = {}
        self._refused: dict[tuple[str, Schema], tuple[float, str]] = {}
        # Until when, and as what and why; no exception, which would keep all that it came through.
        self._rests: tuple[float, type[RegistryUnavailable], str] = (0.0, RegistryUnavailable, "")

    def close(self) -> None:
        """Close the connections to the registry."""
        self._client.__exit__(None, None, None)  # not all versions of it have a close()

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Return VALUE of SCHEMA, bound for TOPIC, as bytes; None for None.

        Raises BadValue if Avro can't express it; RegistryRefused, RegistryUnavailable.
        """
        if value is None:
            return None
        writer = self._writers.get((topic, schema))
        if writer is None:
            writer = self._make(topic, schema)
        try:
            if writer.prepare is not None:
                value = writer.prepare(value)
            if writer.head:
                # As the serialiser does, which asks anew for each message what never changes.
                content = BytesIO()
                self._write(content, writer.parsed, value)
                return writer.head + content.getvalue()
            message = writer.serialize(value, writer.context)
            if writer.parsed is not None:
                writer.head = message[:_HEAD_BYTES]
            return message
        except _UNFIT as error:
            unfit = error
        except self._failures as error:
            raise self._failure(writer.subject, error) from error
        if self._options.use_latest:
            raise self._unfit_for_latest(writer, (topic, schema), unfit) from unfit
        what = self._clean(f"{type(unfit).__name__}: {unfit}")
        raise BadValue(f"a value does not fit its Avro schema: {what}") from unfit

    # One schema

    def _make(self, topic: str, schema: Schema | None) -> _Writer:
        """Register or look up SCHEMA for TOPIC and keep what writes with it."""
        if schema is None:
            raise BadValue(
                "it has no schema, and Avro needs one; leave out the transform that takes it away"
            )
        now = monotonic()
        until, reason = self._refused.get((topic, schema), (0.0, ""))
        if now < until:
            raise RegistryRefused(reason)
        until, kind, reason = self._rests
        if now < until:
            raise kind(reason)
        described, prepare = avro_schema(schema, self._options.meta_data)
        text = json.dumps(described, separators=(",", ":"))
        writer = self._known.get((topic, text))
        if writer is None:
            try:
                writer = self._registered(topic, schema, text, prepare)
            except RegistryRefused as error:
                refusal = now + _ASK_AGAIN_S, str(error)
                _keep(self._refused, (topic, schema), refusal, self._options.cached)
                raise
            _keep(self._known, (topic, text), writer, self._options.cached)
        _keep(self._writers, (topic, schema), writer, self._options.cached)
        return writer

    def _registered(
        self, topic: str, schema: Schema, text: str, prepare: Prepare | None
    ) -> _Writer:
        if self._options.strategy != TOPIC and schema.type != "struct":
            raise BadValue(
                f"{self._prefix}{self._field}.subject.name.strategy takes the subject from the name"
                " of a record, and this is none; set it to TopicNameStrategy"
            )
        context = self._context(topic, self._field)
        subject = self._subject_of(context, schema.name or f"{_NAMESPACE}.ConnectDefault")
        try:
            chosen, number = self._ask(subject, self._confluent.Schema(text, "AVRO"))
        except self._failures as error:
            raise self._failure(subject, error) from error
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._unavailable(
                subject, f"what it answers is not what a schema registry does ({error})"
            ) from error
        _log.info("{}: schema {} of {}", subject, number, self._options.servers)
        serializer = self._serializer(
            self._client,
            chosen,
            conf={
                "auto.register.schemas": self._options.auto_register,
                "normalize.schemas": self._options.normalize,
                # A record that may be null has no name of its own for their strategies.
                "subject.name.strategy": lambda _context, _name: subject,
                # A latest version that lacks a column would otherwise lose it silently.
                "validate.strict.allow.default": self._options.use_latest,
            },
        )
        # A latest version may refer to others, and bytes alone are written without a length.
        plain = schema.type == "struct" and not self._options.use_latest
        parsed = self._parse(json.loads(text)) if plain else None
        return _Writer(subject, prepare, serializer, context, parsed, monotonic())

    def _ask(self, subject: str, schema: Any) -> tuple[Any, int]:
        """The schema to write with and its id, from the registry or its client's memory."""
        if self._options.use_latest:
            found = self._client.get_latest_version(subject)
            return found.schema, found.schema_id
        normalize = self._options.normalize
        ask = (
            self._client.register_schema_full_response
            if self._options.auto_register
            else self._client.lookup_schema
        )
        return schema, ask(subject, schema, normalize_schemas=normalize).schema_id

    def _unfit_for_latest(
        self, writer: _Writer, key: tuple[str, Schema | None], error: Exception
    ) -> RegistryRefused:
        if monotonic() - writer.made_at > _ASK_AGAIN_S:
            # A later version may be there by now: the next attempt looks.
            self._writers.pop(key, None)
            self._known.clear()
            self._client.clear_latest_caches()
        return RegistryRefused(
            f"the latest schema of subject {writer.subject} in {self._options.servers} can't hold"
            f" the event ({self._clean(str(error))}); register a version there that has every"
            f" column, or set {self._prefix}use.latest.version: false"
        )

    # What goes wrong

    def _connect(self) -> Any:
        try:
            return self._confluent.SchemaRegistryClient.new_client(self._options.client)
        except (OSError, TypeError, ValueError) as error:
            raise ConfigError(
                [f"{self._prefix}*: the registry's client refuses it: {self._clean(str(error))}"]
            ) from None

    def _failure(self, subject: str, error: Exception) -> RegistryTrouble:
        """Return the trouble that ERROR, of an unsuccessful request, stands for."""
        if not isinstance(error, self._confluent.SchemaRegistryError):
            # Errors of OAuth may repeat what the token's server said.
            said = type(error).__name__ if "OAuth" in type(error).__name__ else str(error)
            return self._unavailable(subject, said or type(error).__name__)
        status, code = error.http_status_code, error.error_code
        said = f"HTTP {status}, error {code}, {error.error_message}"
        if status in (401, 403):
            return self._unavailable(
                subject,
                f"{said}; check {self._prefix}basic.auth.* or bearer.auth.* and that user's rights",
                RegistryDenied,
            )
        if status == 404 and code in (40401, 40402, 40403):
            return self._refusal(
                subject,
                said,
                f"register the schema there, or set {self._prefix}auto.register.schemas: true",
            )
        if status == 409:
            return self._refusal(
                subject,
                said,
                "the subject's compatibility does not allow this change of the table: give the"
                " subject one that does (NONE allows all) until the new schema is registered",
            )
        if status == 422:
            return self._refusal(subject, said, "see the registry's log for what it objects to")
        passes = status in _PASSING or not 400 <= status < 500
        return self._unavailable(subject, said, RegistryUnavailable if passes else RegistryDenied)

    def _refusal(self, subject: str, said: str, advice: str) -> RegistryRefused:
        return RegistryRefused(
            f"the schema registry at {self._options.servers} refuses the schema of subject"
            f" {subject}: {self._clean(said)}. What to do: {advice}"
        )

    def _unavailable(
        self, subject: str, said: str, kind: type[RegistryUnavailable] = RegistryUnavailable
    ) -> RegistryUnavailable:
        text = (
            f"the schema registry at {self._options.servers} can't be used for subject {subject}:"
            f" {self._clean(said)}. The request is retried automatically and nothing is lost; if"
            f" that lasts, check {self._prefix}schema.registry.url"
        )
        self._rests = monotonic() + _REST_S, kind, text
        return kind(text)

    def _clean(self, said: str) -> str:
        """A foreign message without secrets, in one line and cut."""
        for secret in self._secrets:
            said = said.replace(secret, "(not shown)")
        said = " ".join(said.split())
        return said if len(said) <= _SHOWN else f"{said[:_SHOWN]}..."


class AvroDecoder:
    """Reads what an `AvroConverter` with the same OPTIONS writes, by the ids of its registry.

    Raises ConfigError, SetupError.
    """

    def __init__(self, options: Mapping[str, str], *, is_key: bool) -> None:
        self._converter = AvroConverter(options, is_key=is_key)
        self._read = import_module("fastavro").schemaless_reader
        self._schemas: dict[int, Any] = {}

    def close(self) -> None:
        """Close the connections to the registry."""
        self._converter.close()

    def decode(self, content: bytes) -> Any:
        """Return what CONTENT holds. Raises ValueError if it is not of that form, RegistryRefused
        or RegistryUnavailable."""
        if len(content) < _PREFIX_BYTES or content[0]:
            raise ValueError("it does not begin with the id of a schema")
        number = int.from_bytes(content[1:_PREFIX_BYTES], "big")
        if number not in self._schemas:
            self._schemas[number] = self._asked(number)
        try:
            return self._read(BytesIO(content[_PREFIX_BYTES:]), self._schemas[number])
        except (EOFError, IndexError, KeyError, OverflowError, UnicodeError) as error:
            raise ValueError(f"it does not fit schema {number}: {error}") from error

    def _asked(self, number: int) -> Any:
        converter = self._converter
        try:
            schema = converter._client.get_schema(number)
        except converter._failures as error:
            raise converter._failure(f"id {number}", error) from error
        return converter._parse(json.loads(schema.schema_str or ""))


def registered_schemas(
    options: Mapping[str, str], topics: Collection[str], *, is_key: bool
) -> dict[int, str]:
    """Return the schemas, by their ids, that the registry of OPTIONS has for keys or values in
    TOPICS; where subjects don't bear the names of topics, all that it has.

    Raises ConfigError, SetupError, RegistryRefused or RegistryUnavailable.
    """
    converter = AvroConverter(options, is_key=is_key)
    client, ending = converter._client, "-key" if is_key else "-value"
    by_topic = converter._options.strategy == TOPIC
    found = {}
    subject = ""
    try:
        for subject in client.get_subjects():
            if by_topic and not (
                subject.endswith(ending) and subject.removesuffix(ending) in topics
            ):
                continue
            for version in client.get_versions(subject):
                held = client.get_version(subject, version)
                found[held.schema_id] = held.schema.schema_str
    except converter._failures as error:
        raise converter._failure(subject, error) from error
    finally:
        converter.close()
    return found


def _keep(cache: dict[Any, Any], key: Any, value: Any, limit: int) -> None:
    """Put VALUE into CACHE, whose oldest entry goes if it has more than LIMIT."""
    cache[key] = value
    if len(cache) > limit:
        del cache[next(iter(cache))]


def _secrets(client: Mapping[str, Any]) -> tuple[str, ...]:
    """Texts that no message may hold, the longest first."""
    found = {str(value) for name, value in client.items() if is_secret(name)}
    found |= {text.partition(":")[2] for text in found}
    found |= url_passwords(str(client["url"]))
    return tuple(sorted(found - {""}, key=len, reverse=True))


def _transport_errors() -> tuple[type[Exception], ...]:
    """Return the errors that the registry's client raises when no answer comes; it uses one of two
    libraries."""
    found: list[type[Exception]] = []
    for name in ("httpx2", "httpx"):
        try:
            found.append(import_module(name).HTTPError)
        except ImportError:
            continue
    oauth = import_module("confluent_kafka.schema_registry.error")
    return (*found, *filter(None, [getattr(oauth, "OAuthTokenError", None)]))
