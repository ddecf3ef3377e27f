"""Loads ``reddatabase.connector.yaml`` into one typed, immutable ConnectorConfig."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firebird_cdc.config import producer as kafka
from firebird_cdc.config.options import (
    ALIASES,
    BY_NAME,
    JSON_CONVERTER,
    OPTIONS,
    Group,
    Kind,
    Option,
    Status,
    find_option,
    is_secret,
)
from firebird_cdc.config.source import Entry, Source, read_flat_yaml
from firebird_cdc.config.values import (
    ValueProblem,
    codec_of,
    compile_patterns,
    parse_boolean,
    parse_integer,
    split_list,
)
from firebird_cdc.errors import ConfigError

Patterns = tuple[re.Pattern[str], ...]


@dataclass(frozen=True, slots=True)
class ConnectorConfig:
    """The options that have an effect, checked and typed; see docs/reference.md.

    Times are in milliseconds. ``producer`` holds librdkafka properties, ready for
    ``confluent_kafka.Producer``, and may contain passwords: never log it. ``warnings`` has
    one sentence for each thing that the user should know; the caller logs them.
    """

    path: Path
    warnings: tuple[str, ...]
    connector_name: str
    journal_directory: Path
    journal_check_interval_ms: int
    journal_fsync: bool
    journal_archive_directory: Path | None
    shipper: str
    capture_failure_mode: str
    charset_none: str
    topic_prefix: str
    topic_delimiter: str
    producer: dict[str, str] = field(repr=False)
    producer_origins: dict[str, str] = field(repr=False)
    max_block_ms: int
    close_timeout_ms: int
    retry_backoff_ms: int
    transactional: bool
    key_schemas_enable: bool
    value_schemas_enable: bool
    table_include_list: Patterns
    table_exclude_list: Patterns
    column_include_list: Patterns
    column_exclude_list: Patterns
    tombstones_on_delete: bool
    skipped_operations: frozenset[str]
    decimal_handling_mode: str
    time_precision_mode: str
    binary_handling_mode: str
    unavailable_value_placeholder: str
    include_unknown_datatypes: bool
    extended_headers_enabled: bool
    failure_handling_mode: str
    poll_interval_ms: int
    max_batch_size: int


def load_config(path: Path) -> ConnectorConfig:
    """Read the connector configuration in the YAML file PATH.

    Raises ConfigError with every problem of the file at once; each names file and line, the
    option, the value as given unless it is a secret, and what is allowed. Touches nothing
    but the file itself: whether directories exist is for their users to find out.
    """
    return _Loader(read_flat_yaml(Path(path), "connector configuration")).load()


class _Loader:
    """Collects values, problems and warnings of one file."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.problems = list(source.problems)
        self.warnings: list[str] = []
        self.values: dict[str, Any] = {}
        self.entries: dict[str, Entry] = {}  # by the option's own name, whatever alias was used
        self.producer: dict[str, Entry] = {}

    def load(self) -> ConnectorConfig:
        converters = self._declared_converters()
        for entry in self.source.entries.values():
            self._take(entry, converters)
        self._fill_in_defaults()
        self._check_pairs()
        self._check_directories()
        settings = kafka.ProducerSettings.from_entries(
            self.producer, self.source.path, self.problems, self.warnings
        )
        if self.problems:
            raise ConfigError(self.problems)
        return self._build(settings)

    # -- one key

    def _place(self, entry: Entry) -> str:
        return f"{self.source.path}:{entry.line}"

    def _declared_converters(self) -> tuple[str, ...]:
        entry = self.source.entries.get("converters")
        if entry is None or entry.value is None:
            return ()
        return split_list(entry.value)

    def _take(self, entry: Entry, converters: tuple[str, ...]) -> None:
        option = find_option(entry.key)
        if option is None and entry.key.partition(".")[0] in converters:
            option = BY_NAME["<converter>.<parameter>"]
        if option is None:
            self.problems.append(f"{self._place(entry)}: {entry.key}: {_unknown(entry.key)}")
            return
        if option.status is Status.NEVER:
            self.warnings.append(
                f"{self._place(entry)}: {entry.key} has no effect: {option.instead}"
            )
            return
        if not self._is_the_one(entry, option):
            return
        if entry.value in (None, "", ()) and not _means_something_empty(entry):
            if option.required:
                self.problems.append(
                    f"{self._place(entry)}: {entry.key} has no value; this option is required"
                )
            return
        if option.status is Status.LATER:
            self.warnings.append(
                f"{self._place(entry)}: {entry.key} has no effect yet: this feature is not built"
                " in this version"
            )
        value = self._parse(entry, option)
        if value is None:
            return
        if option.group is Group.KAFKA:
            name = entry.key if option.is_family else option.name
            self.producer[name.removeprefix(kafka.PREFIX)] = entry
        if not option.is_family:
            self.values[option.name] = value
            self.entries[option.name] = entry

    def _is_the_one(self, entry: Entry, option: Option) -> bool:
        """Warn if ENTRY uses an alias; answer whether it counts beside the real name."""
        if ALIASES.get(entry.key) is not option:
            return True
        if option.name in self.source.entries:
            self.warnings.append(
                f"{self._place(entry)}: {entry.key} is ignored, because {option.name} is set too"
            )
            return False
        self.warnings.append(
            f"{self._place(entry)}: {entry.key} is another name of {option.name} and works;"
            " write that instead"
        )
        return True

    def _parse(self, entry: Entry, option: Option) -> Any:
        """Return the typed value of ENTRY, or None after noting why there is none."""
        try:
            return _parse_value(entry, option)
        except ValueProblem as problem:
            shown = (
                "has a value that cannot be used (not shown here)"
                if is_secret(entry.key)
                else f"is {_shown(entry.value)}"
            )
            self.problems.append(f"{self._place(entry)}: {entry.key} {shown}; {problem}")
            return None

    # -- the file as a whole

    def _fill_in_defaults(self) -> None:
        for option in OPTIONS:
            if option.is_family or option.name in self.values or option.status is Status.NEVER:
                continue
            if option.required and not self._was_set(option):
                self.problems.append(
                    f"{self.source.path}: {option.name} is missing; it is required:"
                    f" {option.meaning}"
                )
            elif option.default is not None:
                self.values[option.name] = _parse_value(
                    Entry(option.name, 0, option.default), option
                )

    def _was_set(self, option: Option) -> bool:
        return any(name in self.source.entries for name in (option.name, *option.aliases))

    def _check_pairs(self) -> None:
        for subject in ("table", "column"):
            include, exclude = f"{subject}.include.list", f"{subject}.exclude.list"
            if include in self.entries and exclude in self.entries:
                self.warnings.append(
                    f"{self._place(self.entries[include])}: {include} is ignored, because"
                    f" {exclude} is set too and has priority; remove one of the two"
                )
                del self.values[include]

    def _check_directories(self) -> None:
        journals = self.values.get("connector.journal.directory")
        archive = self.values.get("connector.journal.archive.directory")
        if journals is None or archive is None:
            return
        if archive == journals or journals in archive.parents:
            entry = self.entries["connector.journal.archive.directory"]
            self.problems.append(
                f"{self._place(entry)}: {entry.key} is {_shown(entry.value)}; it must not lie in"
                f" connector.journal.directory ({journals}), where unsent journals are looked for"
            )

    def _build(self, settings: kafka.ProducerSettings) -> ConnectorConfig:
        value = self.values
        return ConnectorConfig(
            path=self.source.path,
            warnings=tuple(self.warnings),
            connector_name=value["connector.name"],
            journal_directory=value["connector.journal.directory"],
            journal_check_interval_ms=value["connector.journal.check.interval.ms"],
            journal_fsync=value["connector.journal.fsync"],
            journal_archive_directory=value.get("connector.journal.archive.directory"),
            shipper=value["connector.shipper"],
            capture_failure_mode=value["connector.capture.failure.mode"],
            charset_none=value["connector.charset.none"],
            topic_prefix=value["kafka.topic.prefix"],
            topic_delimiter=value["topic.delimiter"],
            producer=settings.properties,
            producer_origins=settings.origins,
            max_block_ms=value["kafka.producer.max.block.ms"],
            close_timeout_ms=value["kafka.producer.close.timeout.ms"],
            retry_backoff_ms=value["kafka.producer.retry.backoff.ms"],
            transactional="transactional.id" in settings.properties,
            key_schemas_enable=value["key.converter.schemas.enable"],
            value_schemas_enable=value["value.converter.schemas.enable"],
            table_include_list=value.get("table.include.list", ()),
            table_exclude_list=value.get("table.exclude.list", ()),
            column_include_list=value.get("column.include.list", ()),
            column_exclude_list=value.get("column.exclude.list", ()),
            tombstones_on_delete=value["tombstones.on.delete"],
            skipped_operations=frozenset(value["skipped.operations"]) - {"none"},
            decimal_handling_mode=value["decimal.handling.mode"],
            time_precision_mode=value["time.precision.mode"],
            binary_handling_mode=value["binary.handling.mode"],
            unavailable_value_placeholder=value["toasted.value.placeholder"],
            include_unknown_datatypes=value["include.unknown.datatypes"],
            extended_headers_enabled=value["extended.headers.enabled"],
            failure_handling_mode=value["event.processing.failure.handling.mode"],
            poll_interval_ms=value["poll.interval.ms"],
            max_batch_size=value["max.batch.size"],
        )


def _parse_value(entry: Entry, option: Option) -> Any:
    """Return the value of ENTRY in the type of OPTION; raises ValueProblem."""
    value = entry.value
    assert value is not None
    if option.kind in (Kind.LIST, Kind.PATTERNS, Kind.CHOICES):
        return _parse_list(split_list(value), option)
    if isinstance(value, tuple):
        raise ValueProblem("it must be one value, not a list")
    match option.kind:
        case Kind.INTEGER:
            return parse_integer(value, option.low, option.high)
        case Kind.BOOLEAN:
            return parse_boolean(value)
        case Kind.CHOICE:
            if value not in option.allowed:
                raise ValueProblem(f"allowed: {', '.join(option.allowed)}{_near(value, option)}")
            return value
        case Kind.DIRECTORY:
            return _parse_directory(value)
        case Kind.CONVERTER:
            return _parse_converter(value)
        case Kind.CHARSET:
            return codec_of(value)
        case Kind.PLACEHOLDER:
            return _parse_placeholder(value)
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
        wrong = [item for item in items if item not in option.allowed]
        if wrong:
            raise ValueProblem(f"{', '.join(wrong)} is not among: {', '.join(option.allowed)}")
    return items


def _parse_directory(value: str) -> Path:
    path = Path(value)
    if not path.is_absolute():
        raise ValueProblem(
            "it must be an absolute path, because server and shipper start in other directories"
        )
    if "\0" in value:
        raise ValueProblem("a path cannot hold a zero byte")
    return path


def _parse_placeholder(value: str) -> str:
    if not value.startswith("hex:"):
        return value
    try:
        return bytes.fromhex(value[4:]).decode("utf-8")
    except ValueError:
        raise ValueProblem(
            "after hex: there must be pairs of hexadecimal digits that give UTF-8 text"
        ) from None


def _parse_converter(value: str) -> str:
    if value == JSON_CONVERTER:
        return value
    raise ValueProblem(
        f"allowed: {JSON_CONVERTER}. Other converters are not built yet, and events would have"
        " another form than asked for"
    )


def _means_something_empty(entry: Entry) -> bool:
    # In the Java client the empty text switches the check of the brokers' host names off.
    return entry.value == "" and entry.key.endswith(".ssl.endpoint.identification.algorithm")


def _shown(value: str | tuple[str, ...] | None) -> str:
    text = repr(list(value)) if isinstance(value, tuple) else repr(value)
    return text if len(text) <= 200 else text[:199] + "…"


def _near(value: str, option: Option) -> str:
    close = difflib.get_close_matches(value.lower(), option.allowed, 1)
    return f"; did you mean {close[0]}?" if close else ""


def _unknown(key: str) -> str:
    names = [option.name for option in OPTIONS if not option.name.startswith("<")]
    close = difflib.get_close_matches(key.lower(), [*names, *ALIASES], 1, 0.6)
    if close:
        option = ALIASES.get(close[0]) or BY_NAME[close[0]]
        return f"no such option; did you mean {option.name}?"
    return "no such option; docs/reference.md lists all of them"
