"""Options for converters: JSON, and a class of the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from shipment import FIRST, Render, insert

from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.converters import JsonConverter
from firebird_cdc.journal.events.schema import BYTES, INT64, Schema
from firebird_cdc.journal.events.values import BadValue

MODULE = """
class Upper:
    def configure(self, parameters):
        self.what = parameters["converter.type"] + parameters.get("mark", "")

    def from_connect(self, topic, schema, value):
        if value == "fail":
            return 1 / 0
        return f"{self.what} {topic} {schema.type} {sorted(value)[0]}".encode().upper()

class Wrong(Upper):
    def from_connect(self, topic, schema, value):
        return "text"

class Silent(Upper):
    def from_connect(self, topic, schema, value):
        return None

class Failing(Upper):
    def from_connect(self, topic, schema, value):
        return 1 / 0
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_converters.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield


def test_a_class_of_the_users_writes_keys_and_values(render: Render) -> None:
    (message,) = render(
        insert(*FIRST),
        "key.converter: own_converters.Upper",
        "key.converter.mark: '!'",
        "value.converter: own_converters.Upper",
    )
    topic = message.topic.upper().encode()
    assert message.key == b"KEY! " + topic + b" STRUCT SHIPMENT_ID"
    assert message.value == b"VALUE " + topic + b" STRUCT AFTER"


def test_failure_or_wrong_result_of_a_custom_converter_is_a_bad_event(render: Render) -> None:
    with pytest.raises(BadEvent, match=r"own_converters\.Failing failed: ZeroDivisionError"):
        render(insert(*FIRST), "value.converter: own_converters.Failing")
    with pytest.raises(BadEvent, match=r"own_converters\.Wrong gave a Python str"):
        render(insert(*FIRST), "value.converter: own_converters.Wrong")


def test_no_converter_makes_a_tombstone_of_a_row_or_takes_its_key(render: Render) -> None:
    for option in ("key.converter", "value.converter"):
        with pytest.raises(BadEvent, match=r"Silent gave None for what is not null"):
            render(insert(*FIRST), f"{option}: own_converters.Silent")


def test_missing_converter_is_reported_with_its_option(render: Render) -> None:
    with pytest.raises(ConfigError, match=r"value\.converter is own_converters\.Uper; .*Upper\?"):
        render(insert(*FIRST), "value.converter: own_converters.Uper")


def test_problems_of_all_custom_classes_are_reported_at_once(render: Render) -> None:
    with pytest.raises(ConfigError) as caught:
        render(
            insert(*FIRST),
            "key.converter: own_converters.A",
            "value.converter: own_converters.B",
            "transforms: t",
            "transforms.t.type: own_converters.C",
            "converters: c",
            "c.type: own_converters.D",
        )
    told = [problem.split(";")[0].rpartition(" ")[2] for problem in caught.value.problems]
    assert told == [f"own_converters.{name}" for name in "ABCD"]


def test_json_refuses_values_without_a_connect_type() -> None:
    converter = JsonConverter(schemas_enable=False)
    assert converter.from_connect("t", BYTES, b"\x00\xff") == b'"AP8="'
    assert converter.from_connect("t", None, None) is None
    with pytest.raises(BadValue, match="not JSON serializable: PosixPath"):
        converter.from_connect("t", BYTES, Path("/"))
    with pytest.raises(BadValue, match="cannot be written as JSON"):
        converter.from_connect("t", INT64, 2**64)
    with pytest.raises(BadValue, match="nan cannot be written as a JSON number"):
        converter.from_connect("t", None, {"a": [{"b": float("nan")}]})


def test_json_keeps_only_so_many_schemas_and_writes_each_right() -> None:
    converter = JsonConverter(schemas_enable=True)
    for number in range(12_000):
        written = converter.from_connect("t", Schema("int32", name=f"n{number}"), number)
        assert written is not None
        assert f'"name":"n{number}"'.encode() in written
    assert len(converter._heads) <= 5000
