"""load_config: what a user gets for right, wrong and foreign options."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from firebird_cdc.config import ConnectorConfig, load_capture, load_config
from firebird_cdc.config.options import OPTIONS, Option, Status
from firebird_cdc.config.secrets import is_secret
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.events.values import placeholder_bytes, placeholder_text

REQUIRED = {
    "connector.name": "depot",
    "connector.journal.directory": "/var/lib/firebird-cdc/journal",
    "kafka.producer.bootstrap.servers": "kafka1:9092",
    "kafka.topic.prefix": "depot",
}

Load = Callable[..., ConnectorConfig]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a file made of the required options, with lines added or replaced."""

    def load(*lines: str, without: tuple[str, ...] = ()) -> ConnectorConfig:
        replaced = {line.partition(":")[0] for line in lines} | set(without)
        kept = [f"{key}: {value}" for key, value in REQUIRED.items() if key not in replaced]
        path = tmp_path / "reddatabase.connector.yaml"
        path.write_text("\n".join([*lines, *kept]) + "\n", "utf-8")
        return load_config(path)

    return load


def problems(load: Load, *lines: str, without: tuple[str, ...] = ()) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(*lines, without=without)
    return caught.value.problems


def only_problem(load: Load, *lines: str) -> str:
    found = problems(load, *lines)
    assert len(found) == 1, found
    return found[0]


def only_warning(load: Load, *lines: str) -> str:
    found = load(*lines).warnings
    assert len(found) == 1, found
    return found[0]


# -- what loads


def test_defaults_are_those_of_the_reference(load: Load) -> None:
    config = load()

    assert config.warnings == ()
    assert config.journal_fsync
    assert config.journal_archive_directory is None
    assert config.shipper == "embedded"
    assert config.capture_failure_mode == "refuse"
    assert config.topic_delimiter == "."
    assert (config.close_timeout_ms, config.retry_backoff_ms) == (60_000, 100)
    assert not config.transactional
    assert config.key_schemas_enable
    assert config.value_schemas_enable
    assert config.table_include_list == config.table_exclude_list == ()
    assert config.tombstones_on_delete
    assert config.skipped_operations == {"t"}
    assert config.decimal_handling_mode == "precise"
    assert config.time_precision_mode == "adaptive"
    assert config.binary_handling_mode == "bytes"
    assert config.unavailable_value_placeholder == "__debezium_unavailable_value"
    assert not config.include_unknown_datatypes
    assert config.extended_headers_enabled
    assert config.failure_handling_mode == "fail"
    assert (config.poll_interval_ms, config.max_batch_size) == (500, 2048)
    assert b"\xcf".decode(config.charset_none, "replace") == "\ufffd"


def test_numbers_and_booleans_may_be_quoted(load: Load) -> None:
    config = load('connector.journal.check.interval.ms: "600000"', "tombstones.on.delete: 'FALSE'")

    assert config.journal_check_interval_ms == 600_000
    assert config.tombstones_on_delete is False


def test_largest_long_loads(load: Load) -> None:
    config = load(f"connector.journal.check.interval.ms: {2**63 - 1}")
    assert config.journal_check_interval_ms == 2**63 - 1


def test_lists_are_commas_or_yaml(load: Load) -> None:
    by_commas = load(r"table.include.list: .*[.]a , .*[.]t{1\,3}").table_include_list
    by_yaml = load("table.include.list: ['.*[.]a', '.*[.]t{1,3}']").table_include_list

    assert by_commas == by_yaml
    assert by_yaml[1].fullmatch("/x.fdb.TTT")


def test_yaml_list_of_brokers(load: Load) -> None:
    config = load("kafka.producer.bootstrap.servers: [a:1, '[::1]:2']")
    assert config.producer["bootstrap.servers"] == "a:1,[::1]:2"


def test_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("".join(f"{k}: {v}\n" for k, v in REQUIRED.items()), "utf-8-sig")
    assert load_config(path).connector_name == "depot"


def test_empty_value_means_unset(load: Load) -> None:
    config = load("connector.journal.archive.directory:", "kafka.producer.transactional.id: ''")
    assert config.journal_archive_directory is None
    assert not config.transactional


def test_no_tag_makes_python_run_anything(load: Load, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    problem = only_problem(load, f"connector.name: !!python/object/apply:os.mkdir [{witness}]")
    assert "it must be one value" in problem
    assert not witness.exists()


@pytest.mark.parametrize(
    ("written", "raw", "text"),
    [
        ("WIN1251", b"\xcf", "П"),
        ("UTF8", b"\xc3\xa9", "é"),
        ("ISO8859_1", b"\xe9", "é"),
        ("KOI8R", b"\xf0", "П"),
        ("DOS866", b"\x8f", "П"),
        ("cp1252", b"\x80", "€"),
        ("windows-1251", b"\xcf", "П"),
        ("SJIS_0208", b"\x5c", "¥"),
        ("TIS620", b"\x80", "€"),
    ],
)
def test_character_set_of_none_columns(load: Load, written: str, raw: bytes, text: str) -> None:
    assert raw.decode(load(f"connector.charset.none: {written}").charset_none) == text


@pytest.mark.parametrize(
    ("written", "raw", "text"),
    [
        ("gone", b"gone", "gone"),
        ("'hex: e2 88 85'", b"\xe2\x88\x85", "∅"),
        ("hex:00ff", b"\0\xff", "\0\ufffd"),
        ("hex:6865783a7a", b"hex:z", "hex:z"),
    ],
)
def test_placeholder_is_taken_as_text_and_as_bytes(
    load: Load, written: str, raw: bytes, text: str
) -> None:
    placeholder = load(f"toasted.value.placeholder: {written}").unavailable_value_placeholder
    assert placeholder_bytes(placeholder) == raw
    assert placeholder_text(placeholder) == text


def test_skipped_operations(load: Load) -> None:
    assert load("skipped.operations: none").skipped_operations == frozenset()
    assert load("skipped.operations: c, d").skipped_operations == {"c", "d"}


# -- what warns


def test_exclude_list_wins_with_a_warning(load: Load) -> None:
    lines = ("table.include.list: .*a", "table.exclude.list: .*b")
    config = load(*lines)

    assert config.table_include_list == ()
    assert config.table_exclude_list == (re.compile(".*b", re.IGNORECASE),)
    assert "yaml:1: table.include.list is ignored" in only_warning(load, *lines)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("table.whitelist", "table.include.list"),
        ("table.blacklist", "table.exclude.list"),
        ("column.blacklist", "column.exclude.list"),
    ],
)
def test_old_list_names_work_with_a_warning(load: Load, alias: str, name: str) -> None:
    config = load(f"{alias}: .*x")
    assert getattr(config, name.replace(".", "_"))[0].fullmatch("/db.fdb.X")
    assert name in only_warning(load, f"{alias}: .*x")


def test_alias_of_a_required_option_is_enough(load: Load) -> None:
    config = load("topic.prefix: other", without=("kafka.topic.prefix",))
    assert config.topic_prefix == "other"


def test_name_wins_over_its_alias(load: Load) -> None:
    assert load("topic.prefix: other").topic_prefix == "depot"
    assert "ignored, because kafka.topic.prefix is set too" in only_warning(
        load, "topic.prefix: other"
    )


@pytest.mark.parametrize(
    "option", [o for o in OPTIONS if o.status is Status.NEVER], ids=lambda o: o.name
)
def test_option_of_another_connector_warns_with_the_reason(load: Load, option: Option) -> None:
    key = option.name.replace("<setting>", "host")
    warning = only_warning(load, f"{key}: x")
    assert f"{key} has no effect: {option.instead}" in warning


# -- what is refused


def test_all_problems_are_reported_at_once_with_line_and_allowed_values(
    load: Load, tmp_path: Path
) -> None:
    found = problems(
        load,
        "connector.shipper: embeded",
        "connector.journal.chek.interval.ms: 5",
        "max.batch.size: 0",
        "tombstones.on.delete: maybe",
        without=("connector.name",),
    )
    path = tmp_path / "reddatabase.connector.yaml"

    assert found[0] == (
        f"{path}:1: connector.shipper is 'embeded'; allowed: embedded, external;"
        " did you mean embedded?"
    )
    assert f"{path}:2: connector.journal.chek.interval.ms: no such option" in found[1]
    assert "did you mean connector.journal.check.interval.ms?" in found[1]
    assert found[2] == f"{path}:3: max.batch.size is '0'; it must be from 1 to {2**31 - 1}"
    assert found[3] == f"{path}:4: tombstones.on.delete is 'maybe'; it must be true or false"
    assert found[4].startswith(f"{path}: connector.name is missing; it is required")
    assert len(found) == 5


@pytest.mark.parametrize("missing", REQUIRED)
def test_missing_required_option_names_itself(load: Load, missing: str) -> None:
    (problem,) = problems(load, without=(missing,))
    assert f"{missing} is missing" in problem


@pytest.mark.parametrize("key", REQUIRED)
def test_empty_required_option_names_its_line(load: Load, key: str) -> None:
    assert f"yaml:1: {key} has no value" in only_problem(load, f"{key}: ''")


def test_duplicate_key_names_both_lines(load: Load) -> None:
    problem = only_problem(load, "max.batch.size: 1", "poll.interval.ms: 5", "max.batch.size: 2")
    assert "yaml:3: max.batch.size is set a second time, first in line 1" in problem


@pytest.mark.parametrize("value", ["1.5", "1e3", "0x10", "1_000", "ten", "-1", str(2**63)])
def test_malformed_or_out_of_range_number_is_refused(load: Load, value: str) -> None:
    problem = only_problem(load, f"connector.journal.check.interval.ms: {value}")
    assert f"is '{value}'; it must be" in problem
    assert f"to {2**63 - 1}" in problem


def test_list_in_place_of_one_value_is_refused(load: Load) -> None:
    problem = only_problem(load, "connector.name: [a, b]")
    assert "connector.name is ['a', 'b']; it must be one value, not a list" in problem


def test_nested_mapping_is_answered_with_the_flat_form(load: Load) -> None:
    problem = only_problem(load, "topic:", "  delimiter: x")
    assert "yaml:1: topic holds a nested structure; write dotted keys" in problem


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n", "connector.name=x\n"])
def test_file_without_keys_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"c\.yaml:1: .* must consist of lines 'key: value'"):
        load_config(path)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_empty_file_lacks_every_required_option(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert len(caught.value.problems) == len(REQUIRED)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: .* does not exist"):
        load_config(tmp_path / "absent.yaml")


def test_directory_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)


def test_file_in_another_encoding_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes("connector.name: x\n# имя\n".encode("cp1251"))
    with pytest.raises(ConfigError, match=r"c\.yaml:2: .* is not UTF-8"):
        load_config(path)


def test_oversized_file_is_refused_without_being_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "core"
    path.write_bytes(b"x" * (2 << 20))
    with pytest.raises(ConfigError, match="larger than"):
        load_config(path)


def test_syntax_error_names_the_line_and_shows_no_value(load: Load) -> None:
    problem = only_problem(load, "kafka.producer.sasl.password: {geheim", "connector.shipper: x")
    assert re.search(r"yaml:\d+: .* is not YAML", problem)
    assert "geheim" not in problem


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("connector.name: x\nkafka.topic.prefix: a\x07b\n", r"c\.yaml:2: .* control character"),
        ("a: b\n---\nc: d\n", r"c\.yaml:2: .* not YAML"),
        ("a: &x [*x]\n", "nested structure"),
        ("connector.name: a: b\n", "must stand in quotes"),
        ("connector.name:\n\t- x\n", "blanks, not tabs"),
        ("? [a, b]\n: c\n", "a key must be plain text"),
    ],
)
def test_strange_yaml_is_refused_with_its_fault(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_config(path)


def test_pattern_with_another_meaning_in_java_is_refused(load: Load) -> None:
    assert "nested set" in only_problem(load, "table.include.list: ['.*[[a-c]']")


def test_each_wrong_pattern_is_named(load: Load) -> None:
    problem = only_problem(load, "table.include.list: ['ok', '(a', 'b)']")
    assert "item 2 ((a)" in problem
    assert "item 3 (b))" in problem


@pytest.mark.parametrize("pattern", ["*[[a]", f"*a{{{9**99}}}"])
def test_pattern_wrong_even_with_a_dot_in_front_is_refused_without_a_hint(
    load: Load, pattern: str
) -> None:
    problem = only_problem(load, f"table.include.list: '{pattern}'")
    assert "is not a regular expression" in problem
    assert "did you mean" not in problem


def test_pattern_that_its_own_comma_cuts_in_two_is_refused(load: Load) -> None:
    """The brace of t{1 would stand for itself, and the list match nothing."""
    problem = only_problem(load, "table.exclude.list: .*[.]a, .*[.]t{1,3}")
    assert "item 2 (.*[.]t{1) ends within braces; write \\, for a comma" in problem
    (pattern,) = load("table.exclude.list: .*[.]t{1\\,3}").table_exclude_list
    assert pattern.fullmatch("/a.fdb.TTT")
    load("table.exclude.list: ['.*[.]t{1,3}', '.*[.]t\\{1']")


def test_words_are_taken_in_any_case_as_debezium_takes_them(load: Load) -> None:
    config = load("decimal.handling.mode: STRING", "skipped.operations: C, d")
    assert config.decimal_handling_mode == "string"
    assert config.skipped_operations == {"c", "d"}


@pytest.mark.parametrize("prefix", ["a b", "depot:1", "дом", "a/b", "$x"])
def test_topic_prefix_with_invalid_characters_is_refused(load: Load, prefix: str) -> None:
    problem = only_problem(load, f"kafka.topic.prefix: '{prefix}'")
    assert "allowed: letters A-Z a-z, digits, hyphen, dot, underscore" in problem


@pytest.mark.parametrize(
    "converter",
    [
        "org.apache.kafka.connect.storage.StringConverter",
        "io.apicurio.registry.utils.converter.AvroConverter",
    ],
)
def test_converters_of_java_that_have_no_counterpart_are_refused(
    load: Load, converter: str
) -> None:
    problem = only_problem(load, f"value.converter: {converter}")
    assert f"value.converter is '{converter}'; this converter exists only in Java" in problem
    assert "allowed: json (org.apache.kafka.connect.json.JsonConverter), avro (" in problem


@pytest.mark.parametrize("converter", ["xml", "'python:'", "my..Converter", "my.module:Converter"])
def test_malformed_converter_name_is_refused(load: Load, converter: str) -> None:
    problem = only_problem(load, f"value.converter: {converter}")
    assert "or the dotted path of a Python class" in problem


def test_relative_journal_directory_is_refused(load: Load) -> None:
    assert "absolute path" in only_problem(load, "connector.journal.directory: journal")


@pytest.mark.parametrize("archive", ["/j", "/j/archive"])
def test_archive_inside_the_journal_directory_is_refused(load: Load, archive: str) -> None:
    problem = only_problem(
        load, f"connector.journal.archive.directory: {archive}", "connector.journal.directory: /j"
    )
    assert "must not lie in connector.journal.directory" in problem


@pytest.mark.parametrize("charset", ["WIN9999", "hex", "base64", "nonsense", "utf-7", "NEXT"])
def test_unknown_character_set(load: Load, charset: str) -> None:
    assert "must name a character set" in only_problem(load, f"connector.charset.none: {charset}")


@pytest.mark.parametrize("value", ["hex:zz", "hex:abc"])
def test_wrong_hexadecimal_placeholder_is_refused(load: Load, value: str) -> None:
    assert "hexadecimal" in only_problem(load, f"toasted.value.placeholder: '{value}'")


def test_unknown_option_far_from_all_names(load: Load) -> None:
    assert "docs/reference.md" in only_problem(load, "qqq.www.zzz: 1")


# -- secrets


@pytest.mark.parametrize(
    "line",
    [
        "database.password: [geheim]",
        "kafka.producer.sasl.password: [geheim]",
        "kafka.producer.ssl.key.password: [geheim]",
        "kafka.producer.sasl.jaas.config: geheim",
        "kafka.producer.sasl.pasword: geheim",
        "kafka.producer.sasl.oauthbearer.method: geheim",
    ],
)
def test_secret_is_never_shown(load: Load, line: str) -> None:
    problem = only_problem(load, line)
    assert line.partition(":")[0] in problem
    assert "geheim" not in problem


def test_printing_a_configuration_shows_no_secret(load: Load) -> None:
    config = load("kafka.producer.sasl.password: geheim", "kafka.producer.sasl.username: u")
    assert config.producer["sasl.password"] == "geheim"
    assert "geheim" not in repr(config)
    assert "geheim" not in " ".join(config.warnings)


@pytest.mark.parametrize(
    "key",
    [
        "database.password",
        "kafka.producer.ssl.key.pem",
        "kafka.producer.sasl.oauthbearer.config",
        "kafka.producer.ssl.keystore.key",
        "value.converter.basic.auth.user.info",
    ],
)
def test_keys_of_secrets_are_recognised(key: str) -> None:
    assert is_secret(key)


def test_every_default_is_a_value_that_may_be_written(load: Load) -> None:
    lines = [f"{o.name}: '{o.default}'" for o in OPTIONS if o.default is not None]
    config = load(*lines)
    assert config.warnings == ()
    assert config.poll_interval_ms == load().poll_interval_ms


# -- what a server process needs


def _file(tmp_path: Path, *lines: str, without: tuple[str, ...] = ()) -> Path:
    kept = [f"{key}: {value}" for key, value in REQUIRED.items() if key not in without]
    path = tmp_path / "reddatabase.connector.yaml"
    path.write_text("\n".join([*lines, *kept]) + "\n", "utf-8")
    return path


@pytest.mark.parametrize(
    ("lines", "without", "said"),
    [
        (("kafka.producer.acks: none",), (), "kafka.producer.acks"),
        (("kafka.producer.bootstrap.server: b:9",), (), "kafka.producer.bootstrap.server"),
        (("connector.shipper: embeded",), (), "connector.shipper"),
        (("connector.jurnal.fsync: true",), (), "did you mean connector.journal.fsync"),
        (("table.exclude.lsit: .*SECRET",), (), "did you mean table.exclude.list"),
        (("max.batch.size: 1", "max.batch.size: 2"), (), "set a second time"),
        (("transforms:", "  a: b"), (), "nested structure"),
        (("column.mask.with.<n>.chars: A.B",), (), "<n>.chars: no such option"),
        (("message.key.columns: (:ID",), (), "message.key.columns"),
        ((), ("connector.name",), "connector.name is missing"),
        ((), ("kafka.topic.prefix", "kafka.producer.bootstrap.servers"), "topic.prefix is missing"),
    ],
)
def test_wrong_shipper_option_does_not_prevent_capture(
    tmp_path: Path, lines: tuple[str, ...], without: tuple[str, ...], said: str
) -> None:
    path = _file(tmp_path, *lines, without=without)
    config = load_capture(path)
    assert config.journal_directory == Path(REQUIRED["connector.journal.directory"])
    assert (config.journal_fsync, config.capture_failure_mode) == (True, "refuse")
    assert said in "\n".join(config.problems)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert list(config.problems) == caught.value.problems


@pytest.mark.parametrize(
    ("lines", "without", "said"),
    [
        (("connector.journal.fsync: perhaps",), (), "connector.journal.fsync"),
        (("connector.journal.fsync: true", "connector.journal.fsync: no"), (), "a second time"),
        (("connector.capture.failure.mode: gpa",), (), "did you mean gap"),
        (("table.include.list: '(('",), (), "table.include.list"),
        (("column.blacklist: '(A'",), (), "column.blacklist"),
        ((), ("connector.journal.directory",), "connector.journal.directory is missing"),
    ],
)
def test_server_reports_only_problems_of_capture_options(
    tmp_path: Path, lines: tuple[str, ...], without: tuple[str, ...], said: str
) -> None:
    path = _file(tmp_path, "kafka.producer.acks: none", *lines, without=without)
    with pytest.raises(ConfigError) as caught:
        load_capture(path)
    assert said in "\n".join(caught.value.problems)
    assert "kafka.producer" not in str(caught.value)


def test_misspelt_journal_directory_is_named_beside_the_missing_option(tmp_path: Path) -> None:
    path = _file(
        tmp_path, "connector.journal.directroy: /j", without=("connector.journal.directory",)
    )
    with pytest.raises(ConfigError) as caught:
        load_capture(path)
    missing, misspelt = caught.value.problems
    assert "connector.journal.directory is missing" in missing
    assert "connector.journal.directroy: no such option; did you mean" in misspelt


def test_a_file_that_loads_has_no_problems_for_a_server_either(tmp_path: Path) -> None:
    config = load_capture(_file(tmp_path, "connector.shipper: external", "name: x"))
    assert config.problems == ()
    assert config.shipper == "external"
    assert len(config.warnings) == 1


def test_short_names_of_classes_are_taken_in_any_case(load: Load) -> None:
    config = load(
        "topic.naming.strategy: Table",
        "header.converter: JSON",
        "key.converter: Json",
        "value.converter: AVRO",
        "value.converter.schema.registry.url: http://r:1",
        "transaction.metadata.factory: Ordered",
    )
    assert config.topic_naming_strategy == "table"
    assert (config.header_converter, config.key_converter) == ("json", "json")
    assert config.value_converter == "avro"
    assert config.transaction_metadata_ordered
