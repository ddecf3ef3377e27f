"""Loads ``reddatabase.connector.yaml`` into one typed, immutable ConnectorConfig."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from firebird_cdc.config import producer as kafka
from firebird_cdc.config import topic_creation
from firebird_cdc.config.attachment import (
    PASSWORD,
    PASSWORD_FILE,
    Attachment,
    CanaryTable,
    split_statements,
)
from firebird_cdc.config.environment import with_environment
from firebird_cdc.config.families import (
    AVRO,
    JSON,
    ColumnHash,
    ColumnRuleFamilies,
    ConverterOptions,
    KeyColumns,
    Named,
    NamedConfig,
    Patterns,
    text_of,
)
from firebird_cdc.config.option_values import parse_value
from firebird_cdc.config.options import (
    ALIASES,
    AVRO_CONVERTER,
    BY_NAME,
    JSON_CONVERTER,
    OPTIONS,
    Group,
    Option,
    Status,
    find_option,
)
from firebird_cdc.config.patterns import holds_patterns, read_stars
from firebird_cdc.config.reading import Reading, begin_reading, digest_of
from firebird_cdc.config.references import check_no_reference, check_references, may_refer, resolved
from firebird_cdc.config.secrets import holds_login, is_secret, shown_key, without_logins
from firebird_cdc.config.service_topics import position_topic, shared_topics
from firebird_cdc.config.snapshots import (
    CONSUMER,
    NotificationOptions,
    SignalOptions,
    SnapshotFamilies,
    SnapshotOptions,
)
from firebird_cdc.config.source import Source, read_flat_yaml
from firebird_cdc.config.values import (
    MAX_TOPIC_LENGTH,
    Entry,
    ValueProblem,
    check_class_path,
)
from firebird_cdc.errors import ConfigError

LEAST_JOURNAL_BYTES = 16 * 1024 * 1024
"""The smallest connector.journal.max.bytes."""


@dataclass(frozen=True, slots=True)
class ConnectorConfig:
    """The options that have an effect, checked and typed; see docs/reference.md.

    Times are in milliseconds. ``producer`` holds librdkafka properties, ready for
    ``confluent_kafka.Producer``, and may contain passwords: never log it. ``warnings`` has
    one sentence for each thing that the user should know; the caller logs them. ``unresolved``:
    those among them by which a secret is missing that an option refers to.

    ``key_converter`` and ``value_converter`` are json, avro or python:<dotted path of a class>;
    their ``_options`` are what stands below ``key.converter.``, as written, and may contain
    passwords too. Of ``column_mask`` and ``column_mask_hash`` the first whose patterns match
    counts, of ``column_truncate`` the shortest.
    """

    path: Path
    reading: Reading = field(compare=False)
    warnings: tuple[str, ...]
    connector_name: str
    journal_directory: Path
    journal_check_interval_ms: int
    journal_fsync: bool
    journal_archive_directory: Path | None
    journal_warn_bytes: int
    journal_max_bytes: int
    journal_min_free_bytes: int
    journal_archive_segment_bytes: int
    journal_archive_retention_ms: int
    journal_archive_retention_bytes: int
    shipper: str
    snapshot_by_server: bool
    capture_failure_mode: str
    charset_none: str
    topic_prefix: str
    topic_delimiter: str
    topic_naming_strategy: str
    topic_name_encoding: str
    override_data_change_topic_prefix: str | None
    topic_cache_size: int
    topic_transaction: str
    include_schema_changes: bool
    heartbeat_interval_ms: int
    heartbeat_topics_prefix: str
    topic_creation: topic_creation.TopicCreation | None
    unresolved: tuple[str, ...]
    producer: dict[str, str] = field(repr=False)
    producer_origins: dict[str, str] = field(repr=False)
    close_timeout_ms: int
    retry_backoff_ms: int
    transactional: bool
    position_topic: str
    key_converter: str
    value_converter: str
    header_converter: str
    key_converter_options: dict[str, str] = field(repr=False)
    value_converter_options: dict[str, str] = field(repr=False)
    key_schemas_enable: bool
    value_schemas_enable: bool
    schema_name_adjustment_mode: str
    field_name_adjustment_mode: str
    provide_transaction_metadata: bool
    transaction_metadata_ordered: bool
    transforms: tuple[NamedConfig, ...]
    predicates: tuple[NamedConfig, ...]
    table_include_list: Patterns
    table_exclude_list: Patterns
    column_include_list: Patterns
    column_exclude_list: Patterns
    message_key_columns: tuple[KeyColumns, ...]
    column_truncate: tuple[tuple[int, Patterns], ...]
    column_mask: tuple[tuple[int, Patterns], ...]
    column_mask_hash: tuple[ColumnHash, ...]
    column_propagate: Patterns
    datatype_propagate: Patterns
    converters: tuple[NamedConfig, ...]
    tombstones_on_delete: bool
    skipped_operations: frozenset[str]
    decimal_handling_mode: str
    decimal_int128_precision: int
    time_precision_mode: str
    binary_handling_mode: str
    unavailable_value_placeholder: str
    include_unknown_datatypes: bool
    extended_headers_enabled: bool
    failure_handling_mode: str
    oversized_value: str
    poll_interval_ms: int
    max_batch_size: int
    max_queue_size: int
    max_queue_bytes: int
    errors_max_retries: int
    attachment: Attachment
    snapshots: SnapshotOptions
    signals: SignalOptions
    notifications: NotificationOptions
    canary_tables: tuple[CanaryTable, ...]
    canary_interval_ms: int
    canary_timeout_ms: int
    metrics_port: int
    metrics_host: str
    metric_tags: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CaptureConfig:
    """The options that a server process needs to record changes; bytes, as in ConnectorConfig.

    ``problems``: one sentence for each thing that is wrong in the rest of the file. They keep the
    shipper from running, and nothing else.
    """

    path: Path
    reading: Reading = field(compare=False)
    warnings: tuple[str, ...]
    problems: tuple[str, ...]
    connector_name: str
    journal_directory: Path
    journal_fsync: bool
    journal_transactions: int
    journal_memory_bytes: int
    journal_warn_bytes: int
    journal_max_bytes: int
    journal_min_free_bytes: int
    capture_failure_mode: str
    shipper: str
    snapshot_by_server: bool


_SUBJECTS = ("key.converter", "value.converter")


def load_config(path: Path) -> ConnectorConfig:
    """Read the connector configuration in the YAML file PATH.

    Raises ConfigError with every problem of the file at once; each names file and line, the
    option, the value as given unless it is a secret, and what is allowed. Touches nothing
    but the file itself: whether directories exist is for their users to find out.
    """
    return _loader(path).load()


def load_capture(path: Path) -> CaptureConfig:
    """Read what a server process needs from the YAML file PATH, whatever else is wrong there.

    Raises ConfigError if the file can't be read as YAML, or for what is wrong with an option
    ``for_capture``, and tells then of unknown keys that may be one, misspelt.
    """
    return _loader(path).load_capture()


def find_journal_directory(path: Path) -> Path | None:
    """Return the journal folder that the YAML file PATH names, whatever else is wrong there; None
    if it does not tell."""
    try:
        return _loader(path).find_journal_directory()
    except ConfigError:
        return None


def _loader(path: Path) -> _Loader:
    reading = begin_reading(Path(path))
    source = read_flat_yaml(Path(path), "connector configuration")
    # Other processes compare the file: the environment differs from one to the next.
    reading = replace(reading, digest=digest_of(source))
    return _Loader(with_environment(source, os.environ), reading)


class _Loader:
    """Collects values, problems and warnings of one file."""

    def __init__(self, source: Source, reading: Reading) -> None:
        self.source = source
        self.reading = reading
        self.problems: list[str] = []
        self.capture_problems: list[str] = []  # those that keep changes from being recorded
        self.misspelt: list[str] = []  # those about unknown keys that may be meant for capture
        for key, problem in source.problems:
            self._note(find_option(key), problem)
        self.warnings: list[str] = []
        self.values: dict[str, Any] = {}
        self.entries: dict[str, Entry] = {}  # by the option's own name, whatever alias was used
        self.producer: dict[str, Entry] = {}
        self.columns = ColumnRuleFamilies()
        self.converter_options = {name: ConverterOptions(name) for name in _SUBJECTS}
        self.transforms = Named(self.source.entries.get("transforms"), "transforms.")
        self.predicates = Named(self.source.entries.get("predicates"), "predicates.")
        self.converters = Named(self.source.entries.get("converters"), "")
        self.topic_creation = topic_creation.TopicCreationOptions()
        self.snapshots = SnapshotFamilies(source.path, self._problem, self._warn)

    def load(self) -> ConnectorConfig:
        settings = self._settle()
        if self.problems:
            raise ConfigError([without_logins(problem) for problem in self.problems])
        return self._build(settings)

    def find_journal_directory(self) -> Path | None:
        self._settle()
        directory = self.values.get("connector.journal.directory")
        return directory if isinstance(directory, Path) else None

    def load_capture(self) -> CaptureConfig:
        self._settle()
        if self.capture_problems:
            told = [*self.capture_problems, *self.misspelt]
            raise ConfigError([without_logins(problem) for problem in told])
        value = self.values
        return CaptureConfig(
            path=self.source.path,
            reading=self.reading,
            warnings=tuple(map(without_logins, self.warnings)),
            problems=tuple(map(without_logins, self.problems)),
            connector_name=value.get("connector.name", ""),
            journal_directory=value["connector.journal.directory"],
            journal_fsync=value["connector.journal.fsync"],
            journal_transactions=value["connector.journal.transactions"],
            journal_memory_bytes=value["connector.journal.memory.bytes"],
            journal_warn_bytes=value["connector.journal.warn.bytes"],
            journal_max_bytes=value["connector.journal.max.bytes"],
            journal_min_free_bytes=value["connector.journal.min.free.bytes"],
            capture_failure_mode=value["connector.capture.failure.mode"],
            shipper=value["connector.shipper"],
            snapshot_by_server=value["connector.snapshot.by.server"],
        )

    def _settle(self) -> kafka.ProducerSettings:
        """Take all of the file, with notes of what is wrong; return the producer's settings."""
        for entry in self.source.entries.values():
            self._take(entry)
        self._fill_in_defaults()
        self._check_pairs()
        self._check_topics()
        self._check_limits()
        self._check_directories()
        self._check_names()
        self._check_converters()
        self._check_password()
        self.snapshots.check(self.values, self.entries, self.problems, self.warnings)
        self.values["topic.creation"] = self._topic_creation()
        self._settle_adjustment()
        return kafka.ProducerSettings.from_entries(
            self.producer, self.source.path, self.problems, self.warnings
        )

    # -- one key

    def _place(self, entry: Entry) -> str:
        return entry.place(self.source.path)

    def _note(self, option: Option | None, problem: str) -> None:
        self.problems.append(problem)
        if option is not None and option.for_capture:
            self.capture_problems.append(problem)

    def _problem(self, entry: Entry, what: str) -> None:
        option = find_option(entry.key)
        self._note(option, f"{self._place(entry)}: {shown_key(entry.key)} {what}")

    def _warn(self, entry: Entry, what: str) -> None:
        self.warnings.append(f"{self._place(entry)}: {shown_key(entry.key)} {what}")

    def _wrong(self, entry: Entry, problem: str) -> None:
        """Note that the value of ENTRY can't be used, and show it unless it may be a secret."""
        self._problem(entry, f"{_is(entry)}; {problem}")

    def _take(self, entry: Entry) -> None:
        option = find_option(entry.key)
        if option is not None and option.is_family and not option.matches(entry.key):
            option = None  # copied from the reference, with the part to be filled in
        converter, dot, _ = entry.key.partition(".")
        if option is None and dot and converter in self.converters.names:
            option = BY_NAME["<converter>.<parameter>"]
        if option is None:
            meant = _nearest(entry.key)
            advice = (
                f"did you mean {meant.name}?" if meant else "docs/reference.md lists all of them"
            )
            problem = f"{self._place(entry)}: {shown_key(entry.key)}: no such option; {advice}"
            self._note(None, problem)
            if meant is not None and meant.for_capture:
                self.misspelt.append(problem)
            return
        if option.status is Status.NEVER:
            self._warn(entry, f"has no effect: {option.instead}")
            return
        if not self._is_the_one(entry, option):
            return
        if entry.value in (None, "", ()) and not _means_something_empty(entry, option):
            if option.required:
                self._problem(entry, "has no value; this option is required")
            return
        try:
            if may_refer(entry.key):
                check_references(text_of(entry))
            elif not self._goes_to_own_class(option):
                check_no_reference(entry.key, text_of(entry))
        except ValueProblem as problem:
            self._wrong(entry, str(problem))
            return
        if holds_patterns(entry.key, option):
            entry, warning = read_stars(entry, option)
            if warning:
                self._warn(entry, warning)
        value = self._parse(entry, option)
        if value is None:
            return
        if option.group is Group.KAFKA:
            name = entry.key if option.is_family else option.name
            self.producer[name.removeprefix(kafka.PREFIX)] = entry
        if option.name.startswith(topic_creation.PREFIX):
            self.topic_creation.add(entry)
        if option.is_family:
            self._take_member(entry, option, value)
        else:
            self.values[option.name] = value
            self.entries[option.name] = entry

    def _goes_to_own_class(self, option: Option) -> bool:
        """Tell whether classes of the user's may get the value of OPTION as it is written."""
        subject, dot, _ = option.name.partition(".<property>")
        if dot and subject in self.converter_options:
            converter = self.source.entries.get(subject)
            text = "" if converter is None else text_of(converter)
            return "." in text and text not in (JSON_CONVERTER, AVRO_CONVERTER)
        return option.name in (
            "transforms.<name>.<parameter>",
            "predicates.<name>.<parameter>",
            "<converter>.<parameter>",
        )

    def _take_member(self, entry: Entry, option: Option, value: Any) -> None:
        """Take an entry of a family of options."""
        match option.name:
            case "key.converter.<property>" | "value.converter.<property>":
                self.converter_options[option.name.removesuffix(".<property>")].add(entry)
            case "transforms.<name>.<parameter>":
                self.transforms.add(entry)
            case "predicates.<name>.<parameter>":
                self.predicates.add(entry)
            case "<converter>.<parameter>":
                self.converters.add(entry)
            case "snapshot.select.statement.overrides.<table>" | "signal.consumer.<property>":
                self.snapshots.add(entry)
            case _ if option.group is Group.MASKS:
                try:
                    self.columns.add(entry, option, value)
                except ValueProblem as problem:
                    self._problem(entry, f"cannot be used; {problem}")

    def _is_the_one(self, entry: Entry, option: Option) -> bool:
        """Warn if ENTRY uses an alias; answer whether it counts beside the real name."""
        if ALIASES.get(entry.key) is not option:
            return True
        if option.name in self.source.entries:
            self._warn(entry, f"is ignored, because {option.name} is set too")
            return False
        self._warn(entry, f"is another name of {option.name} and works; write that instead")
        return True

    def _parse(self, entry: Entry, option: Option) -> Any:
        """Return the typed value of ENTRY, or None after noting why there is none."""
        try:
            return parse_value(entry, option)
        except ValueProblem as problem:
            self._wrong(entry, str(problem))
            return None

    # -- the file as a whole

    def _fill_in_defaults(self) -> None:
        for option in OPTIONS:
            if option.is_family or option.name in self.values or option.status is Status.NEVER:
                continue
            if option.required and not self._was_set(option):
                self._note(
                    option,
                    f"{self.source.path}: {option.name} is missing; it is required:"
                    f" {option.meaning}",
                )
            elif option.default is not None:
                self.values[option.name] = parse_value(
                    Entry(option.name, 0, option.default), option
                )

    def _was_set(self, option: Option) -> bool:
        return any(name in self.source.entries for name in (option.name, *option.aliases))

    def _check_pairs(self) -> None:
        for subject in ("table", "column"):
            include, exclude = f"{subject}.include.list", f"{subject}.exclude.list"
            if include in self.entries and exclude in self.entries:
                self._warn(
                    self.entries[include],
                    f"is ignored, because {exclude} is set too and has priority; remove one of"
                    " the two",
                )
                del self.values[include]
        prefix = self.entries.get("override.data.change.topic.prefix")
        if prefix is not None and self.values.get("topic.naming.strategy") == "default":
            self._warn(prefix, "has no effect without topic.naming.strategy: table")

    def _check_topics(self) -> None:
        prefix = self.entries.get("kafka.topic.prefix")
        if prefix is None:
            return
        names = ("kafka.topic.prefix", "topic.delimiter", "topic.transaction")
        beats: tuple[str, ...] = ()
        if self.values.get("heartbeat.interval.ms"):
            beats = ("heartbeat.topics.prefix", "topic.delimiter", "kafka.topic.prefix")
        if prefix.value in (".", ".."):
            self._wrong(prefix, "Kafka takes no topic of that name")
            return
        for option, topic in (
            ("topic.transaction", "".join(self.values.get(name, "") for name in names)),
            ("kafka.position.topic", position_topic(self.values)),
            ("heartbeat.topics.prefix", "".join(self.values.get(name, "") for name in beats)),
        ):
            if len(topic) > MAX_TOPIC_LENGTH:
                self._wrong(
                    self.entries.get(option, prefix),
                    f"topic name {topic} has {len(topic)} characters, Kafka allows"
                    f" {MAX_TOPIC_LENGTH}",
                )
                return
        for one, other in shared_topics(self.values):
            if self.entries.get(other.option, prefix) is prefix:
                one, other = other, one
            self._problem(
                self.entries.get(other.option, prefix),
                f"has the {other.what} go to topic {other.name}, and {one.option} the {one.what} to"
                f" {one.name}; to Kafka these are one name: choose another",
            )

    def _check_limits(self) -> None:
        most = self.values.get("connector.journal.max.bytes", 0)
        if 0 < most < LEAST_JOURNAL_BYTES:
            self._wrong(
                self.entries["connector.journal.max.bytes"],
                f"allowed: 0 or at least {LEAST_JOURNAL_BYTES}, as one transaction of some"
                " thousand rows may take that",
            )

    def _check_directories(self) -> None:
        journals = self.values.get("connector.journal.directory")
        archive = self.values.get("connector.journal.archive.directory")
        if archive is None:
            for unit in ("ms", "bytes"):
                name = f"connector.journal.archive.retention.{unit}"
                if name in self.entries and self.values[name]:
                    self._warn(
                        self.entries[name],
                        "has no effect without connector.journal.archive.directory",
                    )
        if journals is None or archive is None:
            return
        if archive == journals or journals in archive.parents:
            self._wrong(
                self.entries["connector.journal.archive.directory"],
                f"it must not lie in connector.journal.directory ({journals}), where unsent"
                " journals are looked for",
            )

    def _check_names(self) -> None:
        for named in (self.transforms, self.predicates):
            named.check(self._problem)
            named.warn(self._warn)
        self.converters.check(self._problem)
        for _, entry in self.converters.types():
            try:
                check_class_path(text_of(entry))
            except ValueProblem as problem:
                self._wrong(entry, str(problem))

    def _check_converters(self) -> None:
        for subject, options in self.converter_options.items():
            converter = self.values.get(subject)
            if converter is None:
                continue  # its own problem has been noted
            for needed in options.check(converter, self._wrong, self._warn):
                self._problem(self.entries[subject], f"is avro, which needs {needed}; set it")
            switch = self.entries.get(f"{subject}.schemas.enable")
            if switch is not None and converter == AVRO:
                self._warn(switch, f"has no effect: it belongs to {JSON}, and Avro always has one")

    def _check_password(self) -> None:
        if PASSWORD in self.entries and PASSWORD_FILE in self.entries:
            self._problem(self.entries[PASSWORD_FILE], f"is set beside {PASSWORD}; remove one")

    def _topic_creation(self) -> topic_creation.TopicCreation | None:
        """Return the settings with which topics are made; None if the shipper makes none."""
        options = self.topic_creation
        for entry, why in options.misplaced():
            self._warn(entry, f"has no effect: {why}")
        made, problems = options.build()
        for entry, problem in problems:
            self._problem(entry, problem)
        wanted = self.values.get("topic.creation.enable")
        if wanted is False and options.any():
            assert options.enable is not None
            self._warn(
                options.enable, "is false, so the other options of topic.creation do nothing"
            )
        return made if wanted or (wanted is None and options.any()) else None

    def _settle_adjustment(self) -> None:
        """Give the modes of name adjustment what Avro and sanitize.field.names make of them."""
        avro = AVRO in (self.values.get("key.converter"), self.values.get("value.converter"))
        sanitize = self.values.get("sanitize.field.names")
        for name, wanted in (
            ("schema.name.adjustment.mode", avro),
            ("field.name.adjustment.mode", avro if sanitize is None else sanitize),
        ):
            if not wanted or self.values.get(name) != "none":
                continue
            self.values[name] = "avro"
            if name in self.entries:
                self._warn(
                    self.entries[name],
                    "is none and acts as avro, because "
                    + (
                        "sanitize.field.names is true" if not avro else "Avro allows no other names"
                    ),
                )

    def _build(self, settings: kafka.ProducerSettings) -> ConnectorConfig:
        value, path = self.values, self.source.path
        unresolved: list[str] = []
        producer = resolved(settings.properties, kafka.PREFIX, settings.origins, unresolved)
        converters = {
            name: resolved(options.build(), f"{name}.", options.origins(path), unresolved)
            for name, options in self.converter_options.items()
        }
        signals = self.snapshots.signals(value, settings.properties)
        consumer = resolved(signals.consumer, CONSUMER, signals.origins, unresolved)
        signals = replace(signals, consumer=consumer)
        return ConnectorConfig(
            path=self.source.path,
            reading=self.reading,
            warnings=tuple(map(without_logins, (*self.warnings, *unresolved))),
            connector_name=value["connector.name"],
            journal_directory=value["connector.journal.directory"],
            journal_check_interval_ms=value["connector.journal.check.interval.ms"],
            journal_fsync=value["connector.journal.fsync"],
            journal_archive_directory=value.get("connector.journal.archive.directory"),
            journal_warn_bytes=value["connector.journal.warn.bytes"],
            journal_max_bytes=value["connector.journal.max.bytes"],
            journal_min_free_bytes=value["connector.journal.min.free.bytes"],
            journal_archive_segment_bytes=value["connector.journal.archive.segment.bytes"],
            journal_archive_retention_ms=value["connector.journal.archive.retention.ms"],
            journal_archive_retention_bytes=value["connector.journal.archive.retention.bytes"],
            shipper=value["connector.shipper"],
            snapshot_by_server=value["connector.snapshot.by.server"],
            capture_failure_mode=value["connector.capture.failure.mode"],
            charset_none=value["connector.charset.none"],
            topic_prefix=value["kafka.topic.prefix"],
            topic_delimiter=value["topic.delimiter"],
            topic_naming_strategy=value["topic.naming.strategy"],
            topic_name_encoding=value["topic.name.encoding"],
            override_data_change_topic_prefix=value.get("override.data.change.topic.prefix"),
            topic_cache_size=value["topic.cache.size"],
            topic_transaction=value["topic.transaction"],
            include_schema_changes=value["include.schema.changes"],
            heartbeat_interval_ms=value["heartbeat.interval.ms"],
            heartbeat_topics_prefix=value["heartbeat.topics.prefix"],
            topic_creation=value["topic.creation"],
            unresolved=tuple(unresolved),
            producer=producer,
            producer_origins=settings.origins,
            close_timeout_ms=value["kafka.producer.close.timeout.ms"],
            retry_backoff_ms=value["kafka.producer.retry.backoff.ms"],
            transactional="transactional.id" in settings.properties,
            position_topic=position_topic(value),
            key_converter=value["key.converter"],
            value_converter=value["value.converter"],
            header_converter=value["header.converter"],
            key_converter_options=converters["key.converter"],
            value_converter_options=converters["value.converter"],
            key_schemas_enable=value["key.converter.schemas.enable"],
            value_schemas_enable=value["value.converter.schemas.enable"],
            schema_name_adjustment_mode=value["schema.name.adjustment.mode"],
            field_name_adjustment_mode=value["field.name.adjustment.mode"],
            provide_transaction_metadata=value["provide.transaction.metadata"],
            transaction_metadata_ordered=value["transaction.metadata.factory"] == "ordered",
            transforms=self.transforms.build(self.source.path),
            predicates=self.predicates.build(self.source.path),
            table_include_list=value.get("table.include.list", ()),
            table_exclude_list=value.get("table.exclude.list", ()),
            column_include_list=value.get("column.include.list", ()),
            column_exclude_list=value.get("column.exclude.list", ()),
            message_key_columns=value.get("message.key.columns", ()),
            column_truncate=tuple(self.columns.truncate),
            column_mask=tuple(self.columns.mask),
            column_mask_hash=tuple(self.columns.mask_hash),
            column_propagate=value.get("column.propagate.source.type", ()),
            datatype_propagate=value.get("datatype.propagate.source.type", ()),
            converters=self.converters.build(self.source.path),
            tombstones_on_delete=value["tombstones.on.delete"],
            skipped_operations=frozenset(value["skipped.operations"]) - {"none"},
            decimal_handling_mode=value["decimal.handling.mode"],
            decimal_int128_precision=int(value["decimal.int128.precision"]),
            time_precision_mode=value["time.precision.mode"],
            binary_handling_mode=value["binary.handling.mode"],
            unavailable_value_placeholder=value["toasted.value.placeholder"],
            include_unknown_datatypes=value["include.unknown.datatypes"],
            extended_headers_enabled=value["extended.headers.enabled"],
            failure_handling_mode=value["event.processing.failure.handling.mode"],
            oversized_value=value["event.oversized.value"],
            poll_interval_ms=value["poll.interval.ms"],
            max_batch_size=value["max.batch.size"],
            max_queue_size=value["max.queue.size"],
            max_queue_bytes=value["max.queue.size.in.bytes"],
            errors_max_retries=value["errors.max.retries"],
            attachment=Attachment(
                value.get("database.hostname"),
                value["database.port"],
                value.get("database.user"),
                value.get("database.client.library"),
                value.get(PASSWORD),
                value.get(PASSWORD_FILE),
                split_statements(value.get("database.initial.statements", "")),
            ),
            snapshots=self.snapshots.snapshots(value),
            signals=signals,
            notifications=self.snapshots.notifications(value),
            canary_tables=value.get("connector.canary.tables", ()),
            canary_interval_ms=value["connector.canary.interval.ms"],
            canary_timeout_ms=value["connector.canary.timeout.ms"],
            metrics_port=value["metrics.port"],
            metrics_host=value["metrics.host"],
            metric_tags=value.get("custom.metric.tags", ()),
        )


def _means_something_empty(entry: Entry, option: Option) -> bool:
    # In the Java client the empty text switches the check of the brokers' host names off; a
    # transform may replace by nothing.
    return entry.value == "" and (
        option.name in ("transforms.<name>.<parameter>", "<converter>.<parameter>")
        or entry.key.endswith(".ssl.endpoint.identification.algorithm")
    )


def _is(entry: Entry) -> str:
    """``is 'value'``, or words in its place if it may be a secret."""
    if is_secret(entry.key) or holds_login(text_of(entry)):
        return "has a value that cannot be used (not shown here)"
    return f"is {_shown(entry.value)}"


def _shown(value: str | tuple[str, ...] | None) -> str:
    text = repr(list(value)) if isinstance(value, tuple) else repr(value)
    return text if len(text) <= 200 else text[:199] + "…"


def _nearest(key: str) -> Option | None:
    """Return the option that KEY may be meant for."""
    names = [option.name for option in OPTIONS if not option.name.startswith("<")]
    close = difflib.get_close_matches(key.lower(), [*names, *ALIASES], 1, 0.6)
    return (ALIASES.get(close[0]) or BY_NAME[close[0]]) if close else None
