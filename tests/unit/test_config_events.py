"""load_config: converters, transforms, names of topics and fields, rules for columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from least_config import load_with

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.errors import ConfigError

Load = Callable[..., ConnectorConfig]

AVRO = "io.confluent.connect.avro.AvroConverter"
REGISTRY = "value.converter.schema.registry.url: http://registry:8081"


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a file of LINES and the required options."""

    def load(*lines: str) -> ConnectorConfig:
        return load_with(tmp_path, *lines)

    return load


def only_problem(load: Load, *lines: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*lines)
    (problem,) = caught.value.problems
    return problem


def only_warning(load: Load, *lines: str) -> str:
    (warning,) = load(*lines).warnings
    return warning


def test_empty_configuration_has_the_documented_defaults(load: Load) -> None:
    config = load()

    assert config.warnings == ()
    assert config.key_converter == config.value_converter == "json"
    assert config.key_converter_options == config.value_converter_options == {}
    assert config.schema_name_adjustment_mode == config.field_name_adjustment_mode == "none"
    assert config.topic_naming_strategy == "default"
    assert config.override_data_change_topic_prefix is None
    assert (config.topic_cache_size, config.topic_transaction) == (10_000, "transaction")
    assert config.include_schema_changes
    assert not config.provide_transaction_metadata
    assert not config.transaction_metadata_ordered
    assert config.transforms == config.converters == ()
    assert config.message_key_columns == ()
    assert config.column_truncate == config.column_mask == config.column_mask_hash == ()
    assert config.column_propagate == config.datatype_propagate == ()


# -- converters of keys and values


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("org.apache.kafka.connect.json.JsonConverter", "json"),
        ("json", "json"),
        ("my_company.cdc.XmlConverter", "python:my_company.cdc.XmlConverter"),
        ("python:my_company.cdc.XmlConverter", "python:my_company.cdc.XmlConverter"),
    ],
)
def test_converter_is_known_by_java_class_short_name_or_python_class(
    load: Load, written: str, name: str
) -> None:
    config = load(f"key.converter: '{written}'", f"value.converter: '{written}'")
    assert config.key_converter == config.value_converter == name


@pytest.mark.parametrize("written", [AVRO, "avro"])
def test_avro_converter_takes_the_options_of_its_registry(load: Load, written: str) -> None:
    config = load(
        f"value.converter: {written}",
        "value.converter.schema.registry.url: [http://a:1, https://b/sub]",
        "value.converter.basic.auth.credentials.source: USER_INFO",
        "value.converter.basic.auth.user.info: u:geheim",
        "value.converter.auto.register.schemas: FALSE",
        "value.converter.value.subject.name.strategy:"
        " io.confluent.kafka.serializers.subject.RecordNameStrategy",
    )

    assert config.warnings == ()
    assert (config.key_converter, config.value_converter) == ("json", "avro")
    assert config.value_converter_options == {
        "schema.registry.url": "http://a:1,https://b/sub",
        "basic.auth.credentials.source": "USER_INFO",
        "basic.auth.user.info": "u:geheim",
        "auto.register.schemas": "FALSE",
        "value.subject.name.strategy": "io.confluent.kafka.serializers.subject.RecordNameStrategy",
    }
    assert "geheim" not in repr(config)


def test_avro_without_a_registry_is_an_error_that_names_the_key(load: Load) -> None:
    problem = only_problem(load, "key.converter: avro")
    assert "c.yaml:1: key.converter is avro, which needs key.converter.schema.reg" in problem


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("schema.registry.url: registry:8081", "'registry:8081'; it must be one or more URLs"),
        ("auto.register.schemas: maybe", "'maybe'; it must be true or false"),
        ("basic.auth.credentials.source: SASL_INHERIT", "allowed: URL, USER_INFO"),
        ("value.subject.name.strategy: my.Strategy", "RecordNameStrategy"),
    ],
)
def test_wrong_property_of_avro_is_refused_with_its_line(load: Load, line: str, said: str) -> None:
    lines = [f"value.converter.{line}", "value.converter: avro"]
    problem = only_problem(load, *lines, *([] if "schema.registry.url" in line else [REGISTRY]))
    assert f"c.yaml:1: value.converter.{line.partition(':')[0]} is " in problem
    assert said in problem


@pytest.mark.parametrize(
    "line",
    [
        "value.converter.schema.registry.url: ftp://u:geheim@registry",
        "value.converter.schema.registry.url: [http://a, 'ftp://u:ge heim@registry']",
        "value.converter.schema.registry.url: u:geheim@registry:8081",
        "value.converter.schema.registry.url: [http://a, 'u:ge heim@registry']",
        "kafka.producer.bootstrap.servers: u:geheim@kafka:9092",
        "signal.kafka.bootstrap.servers: kafka:1,u:geheim@kafka:9092",
        "skipped.operations: c,u:geheim@kafka",
        "kafka.producer.bootstrap.servers: http://u:geheim@kafka:9092",
        "kafka.producer.bootstrap.servers: [kafka, 'http://u:x,geheim@kafka:9092']",
        "table.include.list: 'a, http://u:geheim@kafka['",
        "skipped.operations: http://u:x,geheim@kafka",
        "message.key.columns: http://u:geheim@kafka[:x",
        "transforms: http://u:geheim@kafka",
    ],
)
def test_password_in_a_url_is_never_shown(load: Load, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(line, "value.converter: avro")
    assert line.partition(":")[0] in str(caught.value)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((REGISTRY,), "url has no effect: it belongs to Avro, and the converter is json"),
        (("key.converter.colour: red",), "key.converter.colour has no effect: it is not known"),
        (
            ("value.converter.colour: red", "value.converter: avro", REGISTRY),
            "value.converter.colour has no effect: the Avro converter does not know it",
        ),
        (
            ("value.converter.schemas.enable: false", "value.converter: avro", REGISTRY),
            "value.converter.schemas.enable has no effect",
        ),
    ],
)
def test_property_without_effect_is_named(load: Load, lines: tuple[str, ...], said: str) -> None:
    warning = only_warning(load, *lines)
    assert "c.yaml:1: " in warning
    assert said in warning


def test_custom_converter_receives_its_options(load: Load) -> None:
    config = load("value.converter: my.Converter", "value.converter.colour: red")
    assert config.warnings == ()
    assert config.value_converter_options == {"colour": "red"}


# -- names


@pytest.mark.parametrize(
    ("lines", "schema", "field"),
    [
        (("sanitize.field.names: true",), "none", "avro"),
        (("sanitize.field.names: true", "field.name.adjustment.mode: avro_unicode"),
         "none", "avro_unicode"),
        (("field.name.adjustment.mode: avro",), "none", "avro"),
        (("value.converter: avro", REGISTRY), "avro", "avro"),
        (("value.converter: avro", REGISTRY, "sanitize.field.names: false"), "avro", "none"),
        (("value.converter: avro", REGISTRY, "schema.name.adjustment.mode: avro_unicode"),
         "avro_unicode", "avro"),
    ],
)  # fmt: skip
def test_modes_of_name_adjustment_are_taken(
    load: Load, lines: tuple[str, ...], schema: str, field: str
) -> None:
    config = load(*lines)
    assert config.schema_name_adjustment_mode == schema
    assert config.field_name_adjustment_mode == field
    assert config.warnings == ()


def test_mode_none_beside_avro_acts_as_avro_with_a_warning(load: Load) -> None:
    lines = ("field.name.adjustment.mode: none", "value.converter: avro", REGISTRY)
    assert load(*lines).field_name_adjustment_mode == "avro"
    assert "c.yaml:1: field.name.adjustment.mode is none and acts as avro" in only_warning(
        load, *lines
    )


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("default", "default"),
        ("io.debezium.schema.SchemaTopicNamingStrategy", "default"),
        ("io.debezium.schema.DefaultTopicNamingStrategy", "default"),
        ("table", "table"),
        ("io.debezium.connector.vitess.TableTopicNamingStrategy", "table"),
    ],
)
def test_topic_naming_strategy_is_known_by_each_of_its_names(
    load: Load, written: str, name: str
) -> None:
    assert load(f"topic.naming.strategy: {written}").topic_naming_strategy == name


def test_unknown_topic_naming_strategy_is_refused_with_the_known_ones(load: Load) -> None:
    problem = only_problem(load, "topic.naming.strategy: my.Strategy")
    assert "is 'my.Strategy'; allowed: default (*.SchemaTopicNamingStrategy)" in problem


def test_prefix_of_the_table_strategy_beside_the_default_one_warns(load: Load) -> None:
    line = "override.data.change.topic.prefix: q"
    assert "no effect without topic.naming.strategy: table" in only_warning(load, line)
    config = load(line, "topic.naming.strategy: table")
    assert config.override_data_change_topic_prefix == "q"
    assert config.warnings == ()


@pytest.mark.parametrize("name", ["topic.transaction", "override.data.change.topic.prefix"])
def test_part_of_a_topic_name_with_invalid_characters_is_refused(load: Load, name: str) -> None:
    assert "allowed: letters" in only_problem(load, f"{name}: 'a b'")


@pytest.mark.parametrize("prefix", [".", ".."])
def test_prefix_unfit_for_a_topic_is_refused(load: Load, prefix: str) -> None:
    assert "Kafka takes no topic of that name" in only_problem(
        load, f"kafka.topic.prefix: {prefix}"
    )


@pytest.mark.parametrize("name", ["kafka.topic.prefix", "topic.transaction"])
def test_names_that_are_too_long_for_a_topic(load: Load, name: str) -> None:
    problem = only_problem(load, f"{name}: {'x' * 248}")
    assert f"{name} is 'xxx" in problem
    assert problem.endswith("characters, Kafka allows 249")


@pytest.mark.parametrize(
    ("written", "ordered"),
    [
        ("io.debezium.pipeline.txmetadata.DefaultTransactionMetadataFactory", False),
        ("default", False),
        ("ordered", True),
        (
            "io.debezium.connector.vitess.pipeline.txmetadata"
            ".VitessOrderedTransactionMetadataFactory",
            True,
        ),
        ("my.OrderedTransactionMetadataFactory", True),
    ],
)
def test_transaction_metadata_factory_is_known_by_each_of_its_names(
    load: Load, written: str, ordered: bool
) -> None:
    config = load(f"transaction.metadata.factory: {written}")
    assert config.transaction_metadata_ordered is ordered


def test_unknown_transaction_metadata_factory_is_refused_with_the_known_ones(load: Load) -> None:
    assert "ordered (*OrderedTransactionMetadataFactory)" in only_problem(
        load, "transaction.metadata.factory: my.Factory"
    )


@pytest.mark.parametrize(
    ("written", "converter"),
    [
        ("simple", "simple"),
        ("json", "json"),
        ("org.apache.kafka.connect.storage.SimpleHeaderConverter", "simple"),
        ("org.apache.kafka.connect.json.JsonConverter", "json"),
    ],
)
def test_header_converter_is_known_by_short_name_or_java_class(
    load: Load, written: str, converter: str
) -> None:
    assert load(f"header.converter: {written}").header_converter == converter


def test_other_header_converters_are_refused(load: Load) -> None:
    problem = only_problem(load, "header.converter: io.confluent.connect.avro.AvroConverter")
    assert "simple (*.SimpleHeaderConverter), json (*.JsonConverter)" in problem


# -- transforms and converters of columns


def test_transforms_in_the_order_of_their_names(load: Load) -> None:
    config = load(
        "transforms.route.regex: (.*)[.]x",
        "transforms.route.replacement: ''",
        "transforms: unwrap, route",
        "transforms.unwrap.type: io.debezium.transforms.ExtractNewRecordState",
        "transforms.unwrap.add.fields: [op, table]",
        "transforms.route.type: org.apache.kafka.connect.transforms.RegexRouter",
    )

    assert config.warnings == ()
    unwrap, route = config.transforms
    assert (unwrap.name, unwrap.type) == (
        "unwrap",
        "io.debezium.transforms.ExtractNewRecordState",
    )
    assert unwrap.origin.endswith("c.yaml:4")
    assert unwrap.parameters == {"add.fields": "op,table"}
    assert (route.name, route.parameters) == ("route", {"regex": "(.*)[.]x", "replacement": ""})


def test_transform_without_a_type_is_refused_with_its_line(load: Load) -> None:
    problem = only_problem(load, "transforms: a", "transforms.a.regex: x")
    assert "c.yaml:1: transforms names a, but transforms.a.type is missing" in problem


def test_transform_missing_in_the_list_is_warned_of_and_not_applied(load: Load) -> None:
    warning = only_warning(load, "transforms.a.type: Filter")
    assert "c.yaml:1: transforms.a.type has no effect, because transforms does not name a" in (
        warning
    )
    assert load("transforms.a.type: Filter").transforms == ()


def test_transform_named_twice(load: Load) -> None:
    lines = ("transforms: a, a", "transforms.a.type: Filter")
    assert "names a twice" in only_problem(load, *lines)


def test_converter_of_columns_takes_its_own_options(load: Load) -> None:
    config = load(
        "converters: isbn", "isbn.type: books.IsbnConverter", "isbn.schema.name: books.Isbn"
    )

    (isbn,) = config.converters
    assert (isbn.name, isbn.type) == ("isbn", "books.IsbnConverter")
    assert isbn.parameters == {"schema.name": "books.Isbn"}
    assert isbn.origin.endswith("c.yaml:2")


def test_converter_of_columns_without_a_type_is_refused(load: Load) -> None:
    assert "isbn.type is missing" in only_problem(load, "converters: isbn", "isbn.x: y")


def test_column_converter_with_a_malformed_class_path_is_refused(load: Load) -> None:
    problem = only_problem(load, "converters: isbn", "isbn.type: Isbn Converter")
    assert "c.yaml:2: isbn.type is 'Isbn Converter'; it must be the dotted path" in problem


def test_the_name_of_a_converter_is_no_option(load: Load) -> None:
    lines = ("converters: isbn", "isbn.type: books.IsbnConverter", "isbn: books.IsbnConverter")
    assert "c.yaml:3: isbn: no such option" in only_problem(load, *lines)


def test_parameter_of_an_undeclared_converter_is_refused(load: Load) -> None:
    assert "isbn.type: no such option" in only_problem(load, "isbn.type: books.IsbnConverter")


def test_parameters_are_not_printed(load: Load) -> None:
    lines = ("transforms: a", "transforms.a.type: T", "transforms.a.token: geheim")
    assert "geheim" not in repr(load(*lines))


# -- rules for columns


def test_masks_and_truncations_in_the_order_written(load: Load) -> None:
    config = load(
        "column.mask.with.0.chars: .*[.]pin",
        "column.mask.with.12.chars: ['.*[.]a', '.*[.]b']",
        "column.truncate.to.20.chars: .*[.]note, .*[.]memo",
    )

    assert [number for number, _ in config.column_mask] == [0, 12]
    assert config.column_mask[1][1][1].fullmatch("/x.fdb.T.B")
    ((number, patterns),) = config.column_truncate
    assert (number, len(patterns)) == (20, 2)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("column.truncate.to.0.chars", "the number in its name is 0; it must be from 1"),
        ("column.mask.with.99999.chars", "is 99999; it must be from 0 to 32767"),
    ],
)
def test_number_out_of_range(load: Load, key: str, said: str) -> None:
    problem = only_problem(load, f"{key}: .*")
    assert f"c.yaml:1: {key} cannot be used" in problem
    assert said in problem


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("SHA-256", "sha256"),
        ("sha-1", "sha1"),
        ("SHA", "sha1"),
        ("MD5", "md5"),
        ("SHA-512/256", "sha512_256"),
        ("SHA3-224", "sha3_224"),
    ],
)
def test_hash_algorithms_by_javas_names(load: Load, written: str, name: str) -> None:
    (rule,) = load(f"column.mask.hash.{written}.with.salt.Cz.Q: .*[.]a").column_mask_hash
    assert (rule.algorithm, rule.salt, rule.version) == (name, "Cz.Q", 1)
    assert rule.patterns[0].fullmatch("/x.fdb.T.A")


def test_second_version_of_hashes_is_taken(load: Load) -> None:
    (rule,) = load("column.mask.hash.v2.SHA-256.with.salt.s: .*").column_mask_hash
    assert (rule.algorithm, rule.salt, rule.version) == ("sha256", "s", 2)


def test_unknown_hash_algorithm_names_those_there_are_and_not_the_salt(load: Load) -> None:
    problem = only_problem(load, "column.mask.hash.MD2.with.salt.geheim: .*")
    assert "c.yaml:1: column.mask.hash.MD2.with.salt.<salt> cannot be used" in problem
    assert "there is no hash algorithm MD2; allowed: MD5, SHA-1," in problem
    assert "geheim" not in problem


@pytest.mark.parametrize(
    "lines",
    [
        ("column.mask.hash.SHA-256.with.salt.geheim: '(a'",),
        ("column.mask.hash.v2.SHA-256.with.salt.geheim: {a: b}",),
        ("colum.mask.hash.SHA-256.with.salt.geheim: .*",),
        ("column.mask.hash.SHA-256.with.slat.geheim: .*",),
        ("column.mask.hash.SHA-256.geheim: .*",),
        ("column.mask.hash.with.salt.geheim: .*",),
        ("column.mask.hash.MD5.with.salt.geheim: a", "column.mask.hash.MD5.with.salt.geheim: b"),
    ],
)
def test_salt_is_never_shown(load: Load, lines: tuple[str, ...]) -> None:
    problem = only_problem(load, *lines)
    assert "mask.hash." in problem
    assert "geheim" not in problem


def test_salt_is_not_printed(load: Load) -> None:
    config = load("column.mask.hash.SHA-256.with.salt.geheim: .*")
    assert config.column_mask_hash[0].salt == "geheim"
    assert "geheim" not in repr(config)


def test_propagated_source_types_are_loaded(load: Load) -> None:
    config = load(
        "column.propagate.source.type: .*[.]t[.]a", "datatype.propagate.source.type: .*VARCHAR"
    )
    assert config.column_propagate[0].fullmatch("/x.fdb.T.A")
    assert config.datatype_propagate[0].fullmatch("/x.fdb.T.VARCHAR")


# -- topics of services


@pytest.mark.parametrize(
    ("lines", "first", "second"),
    [
        (("kafka.position.topic: p",), "kafka.topic.prefix", "kafka.position.topic"),
        (
            ("kafka.position.topic: p_transaction", "provide.transaction.metadata: true"),
            "kafka.position.topic",
            "topic.transaction",
        ),
        (
            ("notification.enabled.channels: sink", "notification.sink.topic.name: p"),
            "kafka.topic.prefix",
            "notification.sink.topic.name",
        ),
        (
            ("signal.enabled.channels: kafka", "signal.kafka.topic: p"),
            "kafka.topic.prefix",
            "signal.kafka.topic",
        ),
        (
            ("heartbeat.interval.ms: 5", "kafka.position.topic: __debezium-heartbeat.p"),
            "kafka.position.topic",
            "heartbeat.topics.prefix",
        ),
    ],
)
def test_two_services_with_one_topic_are_an_error(
    load: Load, lines: tuple[str, ...], first: str, second: str
) -> None:
    problem = only_problem(load, *lines)
    assert "c.yaml:" in problem
    assert first in problem and second in problem
    assert "to Kafka these are one name: choose another" in problem


@pytest.mark.parametrize(
    "lines",
    [
        ("kafka.position.topic: p", "include.schema.changes: false"),
        ("kafka.position.topic: p.transaction",),
        ("notification.sink.topic.name: p",),
        ("signal.kafka.topic: p",),
        (
            "signal.enabled.channels: kafka",
            "signal.kafka.topic: p",
            "signal.kafka.bootstrap.servers: other:1",
        ),
    ],
)
def test_topics_of_services_that_are_off_or_elsewhere_may_be_called_alike(
    load: Load, lines: tuple[str, ...]
) -> None:
    assert load(*lines).topic_prefix == "p"


# -- message.key.columns


def keys(load: Load, written: str) -> list[tuple[str, list[str]]]:
    return [
        (part.table.pattern, list(part.names))
        for part in load(f"message.key.columns: {written}").message_key_columns
    ]


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ("/x.fdb.t:id, no", [("/x.fdb.t", ["id", "no"])]),
        ("'/x.fdb.t:id;(.*).orders:a,b; '", [("/x.fdb.t", ["id"]), ("(.*).orders", ["a", "b"])]),
        (r"C:\\crm[.]fdb[.]t:id", [(r"C:\\crm[.]fdb[.]t", ["id"])]),
        (r".*[.](?:a|b):(?:id|no).*", [(".*[.](?:a|b)", ["(?:id|no).*"])]),
        (r"'.*[.]t[:;,]x:a{1,3}'", [(".*[.]t[:;,]x", ["a{1,3}"])]),
        (r".*[.]t:a\:b,c[],:]d", [(".*[.]t", [r"a\:b", "c[],:]d"])]),
        ("['.*a:x', '.*b:y;.*c:z']", [(".*a", ["x"]), (".*b", ["y"]), (".*c", ["z"])]),
    ],
)
def test_message_key_columns_are_split_by_table(
    load: Load, written: str, parts: list[tuple[str, list[str]]]
) -> None:
    assert keys(load, written) == parts


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("/x.fdb.t", "part 1 (/x.fdb.t): it must have the form table:column,column"),
        ("'.*a:x;.*b:'", "part 2 (.*b:): it must have the form"),
        ("'.*a:x,,y'", "part 1 (.*a:x,,y): it must have the form"),
        (r"C:\\crm[.]fdb[.]t", "it must have the form"),
        ("'.*t:(a'", "not a regular expression"),
        ("'(*t):a'", "did you mean (.*t)?"),
    ],
)
def test_wrong_message_key_columns_are_refused_with_their_line(
    load: Load, written: str, said: str
) -> None:
    problem = only_problem(load, f"message.key.columns: {written}")
    assert "c.yaml:1: message.key.columns is " in problem
    assert said in problem
