"""Turns what a file has for an option into the typed value that the option's kind asks for."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

from firebird_cdc.config.attachment import parse_canaries, parse_identifiers
from firebird_cdc.config.families import parse_converter, parse_message_keys
from firebird_cdc.config.metric_tags import parse_metric_tags
from firebird_cdc.config.option import Kind, Option
from firebird_cdc.config.patterns import compile_patterns
from firebird_cdc.config.values import (
    Entry,
    ValueProblem,
    check_class_path,
    codec_of,
    parse_boolean,
    parse_integer,
    split_list,
)

# Members of these take a list as well; whoever gets them knows their form.
_FREE_FAMILIES = (
    "key.converter.<property>",
    "value.converter.<property>",
    "transforms.<name>.<parameter>",
    "predicates.<name>.<parameter>",
    "<converter>.<parameter>",
    "topic.creation.<name>.<property>",
)

# Lists of tables, each as <database path>.<table>.
_TABLES = ("signal.data.collection", "snapshot.select.statement.overrides")

# How the names of Java's classes end, and the short names that stand for them.
_CLASSES = {
    "topic.naming.strategy": {
        ".SchemaTopicNamingStrategy": "default",
        ".DefaultTopicNamingStrategy": "default",
        ".TableTopicNamingStrategy": "table",
    },
    "header.converter": {".SimpleHeaderConverter": "simple", ".JsonConverter": "json"},
    "transaction.metadata.factory": {
        ".DefaultTransactionMetadataFactory": "default",
        "OrderedTransactionMetadataFactory": "ordered",
    },
}


def parse_value(entry: Entry, option: Option) -> Any:
    """Return the value of ENTRY in the type of OPTION; raises ValueProblem."""
    value = entry.value
    assert value is not None
    if option.kind in (Kind.LIST, Kind.PATTERNS, Kind.CHOICES):
        return _parse_list(split_list(value), option)
    if option.kind is Kind.METRIC_TAGS:
        return parse_metric_tags(split_list(value))
    if option.kind is Kind.MESSAGE_KEYS:
        return parse_message_keys(value)
    if option.name in _FREE_FAMILIES:
        return value
    if isinstance(value, tuple):
        raise ValueProblem("it must be one value, not a list")
    match option.kind:
        case Kind.INTEGER:
            return parse_integer(value, option.low, option.high)
        case Kind.BOOLEAN:
            return parse_boolean(value)
        case Kind.CHOICE:
            if value.lower() not in option.allowed:
                raise ValueProblem(f"allowed: {', '.join(option.allowed)}{_near(value, option)}")
            return value.lower()
        case Kind.DIRECTORY | Kind.FILE:
            return _parse_path(value)
        case Kind.CONVERTER:
            return parse_converter(value)
        case Kind.SHORT_NAME:
            return _parse_class(value, option)
        case Kind.CLASS:
            return check_class_path(value)
        case Kind.CHARSET:
            return codec_of(value)
        case Kind.PLACEHOLDER:
            return _check_placeholder(value)
        case Kind.TOPIC_PART:
            if not re.fullmatch(r"[A-Za-z0-9._-]+", value):
                raise ValueProblem("allowed: letters A-Z a-z, digits, hyphen, dot, underscore")
            return value
        case _:
            return value


def _parse_list(items: tuple[str, ...], option: Option) -> Any:
    if option.kind is Kind.PATTERNS:
        return compile_patterns(items)
    if option.kind is Kind.CHOICES:
        wrong = [item for item in items if item.lower() not in option.allowed]
        if wrong:
            raise ValueProblem(f"{', '.join(wrong)} is not among: {', '.join(option.allowed)}")
        return tuple(item.lower() for item in items)
    if option.name == "connector.canary.tables":
        return parse_canaries(items)
    return parse_identifiers(items) if option.name in _TABLES else items


def _parse_path(value: str) -> Path:
    path = Path(value)
    if not path.is_absolute():
        raise ValueProblem(
            "it must be an absolute path, because server and shipper start in other directories"
        )
    if "\0" in value:
        raise ValueProblem("a path cannot hold a zero byte")
    return path


def _check_placeholder(value: str) -> str:
    """Return VALUE as it is: whoever needs it takes the text or the bytes of it."""
    if value.startswith("hex:"):
        try:
            bytes.fromhex(value[4:])
        except ValueError:
            raise ValueProblem("after hex: there must be pairs of hexadecimal digits") from None
    return value


def _parse_class(value: str, option: Option) -> str:
    """Return the short name that VALUE, a Java class or a short name, stands for."""
    for ending, name in _CLASSES[option.name].items():
        if value.lower() == name or value.endswith(ending):
            return name
    classes = ", ".join(f"{name} (*{ending})" for ending, name in _CLASSES[option.name].items())
    raise ValueProblem(f"allowed: {classes}")


def _near(value: str, option: Option) -> str:
    close = difflib.get_close_matches(value.lower(), option.allowed, 1)
    return f"; did you mean {close[0]}?" if close else ""
