"""Transforms: change, rename, reroute or drop records before they are converted to bytes.

They are Kafka Connect's single message transforms: the same options, and under Debezium's and
Kafka's class names those that are built in. A user's own is a Python class of the same form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, NamedTuple, Protocol

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.config.families import NamedConfig
from firebird_cdc.config.values import MAX_TOPIC_LENGTH, ValueProblem, parse_boolean
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.events.extensions import ERRORS, described, make
from firebird_cdc.journal.events.records import Record, StructHeader
from firebird_cdc.journal.events.schema_check import Conformity, is_text
from firebird_cdc.journal.events.transforms.fields import RemoveField
from firebird_cdc.journal.events.transforms.filters import (
    Drop,
    Filter,
    FilterTransactionTopicRecords,
    HasHeaderKey,
    RecordIsTombstone,
    TopicNameMatches,
)
from firebird_cdc.journal.events.transforms.routing import (
    ByLogicalTableRouter,
    RegexRouter,
    ToLogicalTopicRouter,
)
from firebird_cdc.journal.events.transforms.unwrap import Unwrap
from firebird_cdc.journal.events.values import BadValue


class Transform(Protocol):
    """Interface of a transform; a class with it is called without arguments.

    A class without parameters may leave ``configure`` out.
    """

    def configure(self, parameters: Mapping[str, str]) -> None:
        """Take the options ``transforms.<name>.<parameter>``, without ``type``.

        Raises ConfigError with a sentence for each that can't be used; any error is told.
        """

    def apply(self, record: Record) -> Record | None:
        """The record as it goes on, None to drop it. Called for each record, in order.

        RECORD and what it holds stay as they are: give another one, as by
        ``dataclasses.replace``. Any error makes it an event that can't be processed.
        """


class Predicate(Protocol):
    """Condition that decides which records a transform gets."""

    def configure(self, parameters: Mapping[str, str]) -> None:
        """Take the options ``predicates.<name>.<parameter>``, as a transform does."""

    def test(self, record: Record) -> bool:
        """Tell whether the condition holds for RECORD."""


_Apply = Callable[[Record], Record | None]


class _Kind(NamedTuple):
    """Classes that are built in, and the option that names them."""

    listing: str  # transforms or predicates
    method: str
    classes: Mapping[str, type[Any]]


_TRANSFORMS = _Kind(
    "transforms",
    "apply",
    {
        "unwrap": Unwrap,
        "io.debezium.transforms.ExtractNewRecordState": Unwrap,
        "route": RegexRouter,
        "org.apache.kafka.connect.transforms.RegexRouter": RegexRouter,
        "route_tables": ToLogicalTopicRouter,
        "io.debezium.transforms.ToLogicalTopicRouter": ToLogicalTopicRouter,
        "io.debezium.transforms.ByLogicalTableRouter": ByLogicalTableRouter,
        "filter": Filter,
        "io.debezium.transforms.Filter": Filter,
        "drop": Drop,
        "org.apache.kafka.connect.transforms.Filter": Drop,
        "filter_transactions": FilterTransactionTopicRecords,
        "io.debezium.connector.vitess.transforms.FilterTransactionTopicRecords": (
            FilterTransactionTopicRecords
        ),
        "remove_field": RemoveField,
        "io.debezium.connector.vitess.transforms.RemoveField": RemoveField,
    },
)

_PREDICATES = _Kind(
    "predicates",
    "test",
    {
        "topic_name_matches": TopicNameMatches,
        "org.apache.kafka.connect.transforms.predicates.TopicNameMatches": TopicNameMatches,
        "has_header_key": HasHeaderKey,
        "org.apache.kafka.connect.transforms.predicates.HasHeaderKey": HasHeaderKey,
        "record_is_tombstone": RecordIsTombstone,
        "org.apache.kafka.connect.transforms.predicates.RecordIsTombstone": RecordIsTombstone,
    },
)

_JAVA = ("io.debezium.", "org.apache.", "io.confluent.", "io.aiven.", "com.github.")
_TOPIC = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_TOPIC_LENGTH}}}")


def build_transforms(config: ConnectorConfig) -> tuple[Step, ...]:
    """Return what each record has to pass, in order. Raises ConfigError with all problems."""
    problems: list[str] = []
    predicates = {item.name: _build(item, _PREDICATES, problems) for item in config.predicates}
    steps = []
    for item in config.transforms:
        parameters = dict(item.parameters)
        predicate_name = parameters.pop("predicate", None)
        negate = _negate(item, parameters, predicate_name, problems)
        if predicate_name is not None and predicate_name not in predicates:
            problems.append(
                f"{item.place('predicate')}: transforms.{item.name}.predicate is"
                f" {predicate_name!r};"
                " predicates does not name it"
            )
        transform = _build(replace(item, parameters=parameters), _TRANSFORMS, problems)
        if isinstance(transform, Drop) and predicate_name is None:
            problems.append(
                f"{item.origin}: transforms.{item.name}.predicate is missing; without one this"
                " transform drops every record"
            )
        if transform is not None:
            builtin = item.type in _TRANSFORMS.classes
            apply = transform.apply if builtin else _Own(transform, config).apply
            steps.append(Step(item, apply, predicates.get(predicate_name or ""), negate))
    if problems:
        raise ConfigError(problems)
    return tuple(steps)


def _negate(
    item: NamedConfig,
    parameters: dict[str, str],
    predicate_name: str | None,
    problems: list[str],
) -> bool:
    text = parameters.pop("negate", None)
    if text is None:
        return False
    where = f"{item.place('negate')}: transforms.{item.name}.negate is {text!r}"
    if predicate_name is None:
        problems.append(f"{where}; there is no transforms.{item.name}.predicate to negate")
    try:
        return parse_boolean(text)
    except ValueProblem as problem:
        problems.append(f"{where}; {problem}")
        return False


def _build(item: NamedConfig, kind: _Kind, problems: list[str]) -> Any:
    """Return the object that ITEM describes, or None after noting why there is none."""
    option = f"{kind.listing}.{item.name}"
    builtin = kind.classes.get(item.type)
    if builtin is not None:
        made = builtin()
        try:
            made.configure(item.parameters)
        except ConfigError as error:
            # Each begins with the name of the parameter that it is about.
            problems += [
                f"{item.place(problem.partition(' ')[0])}: {option}.{problem}"
                for problem in error.problems
            ]
        return made
    try:
        if item.type.startswith(_JAVA) or "." not in item.type:
            raise ConfigError([_no_such(item.type, kind.classes)])
        return make(item.type, item.parameters, kind.method)
    except ConfigError as error:
        where = f"{item.origin}: {option}.type is {item.type}"
        problems += [f"{where}; {problem}" for problem in error.problems]
        return None


def _no_such(name: str, classes: Iterable[str]) -> str:
    """Return the reason that NAME can't be used: it is neither built in nor the path of
    a Python class."""
    if name == "io.debezium.connector.vitess.transforms.UseLocalVgtid":
        return "it is about positions in Vitess, of which Firebird has none; remove it"
    # Somebody may write RegexRouter too.
    by_name = {part: known for known in classes for part in (known, known.rpartition(".")[2])}
    near = get_close_matches(name, by_name, 1)
    hint = f"; did you mean {by_name[near[0]]}?" if near else ""
    short = ", ".join(key for key in classes if "." not in key)
    what = (
        "it is a class of Java, and no Java runs here"
        if "." in name
        else "it is neither built in nor the dotted path of a Python class"
    )
    return f"{what}; built in, under their names of Java too, are {short}{hint}"


class Step:
    """A transform in its place: for the records of its predicate, and with its errors told."""

    def __init__(
        self, item: NamedConfig, apply: _Apply, predicate: Predicate | None, negate: bool
    ) -> None:
        self._name = f"transform {item.name} ({item.type})"
        self._apply = apply
        self._predicate = predicate
        self._negate = negate

    def apply(self, record: Record) -> Record | None:
        """Return RECORD as it goes on, None if it is dropped.

        Raises BadValue that names the step.
        """
        topic = record.topic
        try:
            if self._predicate is not None and bool(self._predicate.test(record)) is self._negate:
                return record
            result = self._apply(record)
        except BadValue as error:
            raise BadValue(f"{self._name}: {error}") from error
        except ERRORS as error:
            raise BadValue(f"{self._name} failed: {described(error)}") from error
        if result is not None and result.topic != topic and not _is_topic(result.topic):
            raise BadValue(
                f"{self._name} gave the topic {result.topic!r}; Kafka allows up to"
                f" {MAX_TOPIC_LENGTH} letters, digits, ., _ and -"
            )
        return result


class _Own:
    """A transform of the user's: it can't harm other records, and what it gives is checked."""

    def __init__(self, transform: Transform, config: ConnectorConfig) -> None:
        self._transform = transform
        self._keys = Conformity(non_finite=config.key_converter != "json")
        self._values = Conformity(non_finite=config.value_converter != "json")
        self._headers = Conformity(non_finite=config.header_converter != "json")

    def apply(self, record: Record) -> Record | None:
        """Return the transform's result for a copy of RECORD.

        Raises BadValue for what can't be sent.
        """
        result = self._transform.apply(replace(record, headers=list(record.headers)))
        if result is None:
            return None
        if type(result) is not Record:
            raise BadValue(f"it gave a Python {type(result).__name__}, neither a Record nor None")
        if result.key_schema is not None:
            self._keys.checker(result.key_schema)(result.key)
        if result.value_schema is not None:
            self._values.checker(result.value_schema)(result.value)
        for name, value in result.headers:
            if not is_text(name) or not (isinstance(value, bytes | None) or is_text(value)):
                raise BadValue(f"its header {name!r} is neither text nor bytes")
        for header in result.struct_headers:
            if not isinstance(header, StructHeader) or not is_text(header.name):
                raise BadValue("one of its struct_headers is no StructHeader")
            self._headers.checker(header.schema)(header.value)
        return result


def _is_topic(name: object) -> bool:
    return type(name) is str and bool(_TOPIC.fullmatch(name)) and name not in (".", "..")
