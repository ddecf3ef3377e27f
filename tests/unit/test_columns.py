"""Rules for columns: what a consumer gets of a column that is masked, hashed, cut or told of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import logbook
import pytest
from least_config import load_with
from shipment import Render, insert, payload

from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.columns import ColumnRules
from firebird_cdc.journal.events.schema import INT64, Schema
from firebird_cdc.journal.events.structs import FormedField, StructMaker
from firebird_cdc.journal.events.topics import BadName
from firebird_cdc.journal.events.values import FieldForm, ValueModes, field_form
from firebird_cdc.journal.format import Column, JournalWriter, Storage

DATABASE = "/srv/fb/warehouse.fdb"
TABLE = "CLIENT"

NAME = Column("NAME", 448, 0, 0, 160, 4, 40, 0, True, False, 0, Storage.TEXT)
CODE = Column("CODE", 452, 0, 0, 40, 4, 10, 0, True, False, 0, Storage.PADDED_TEXT)
NOTE = Column("NOTE", 520, 1, 0, 8, 4, 0, 0, True, False, 0, Storage.BLOB)
PHOTO = Column("PHOTO", 520, 0, 0, 8, 0, 0, 0, True, False, 0, Storage.BLOB)
TOKEN = Column("TOKEN", 448, 0, 0, 16, 1, 16, 0, True, False, 0, Storage.OCTETS)
LIMIT = Column("LIMIT", 580, 1, -3, 8, 0, 0, 18, True, False, 0, Storage.BIGINT)
ID = Column("ID", 448, 0, 0, 160, 4, 40, 0, False, False, 1, Storage.TEXT)

Adapt = Callable[..., FieldForm]


@pytest.fixture
def adapt(tmp_path: Path) -> Adapt:
    """Adapt the form of a column under the LINES of a configuration."""

    def adapt(column: Column, *lines: str, form: FieldForm | None = None) -> FieldForm:
        plain = form or field_form(column, ValueModes())
        assert plain is not None
        rules = ColumnRules(load_with(tmp_path, *lines))
        return rules.adapt(DATABASE, TABLE, column, plain, in_key=column.key_position > 0)

    return adapt


def sent(form: FieldForm, value: Any) -> Any:
    """Return the value that is sent for VALUE."""
    struct = StructMaker([FormedField("F", 0, "F", form)], 1).struct_of((value,))
    assert struct is not None
    return struct["F"]


class Text:
    """A blob as ``journal.format`` gives it."""

    def __init__(self, text: str) -> None:
        self._content = text.encode()
        self.available = True
        self.length = len(self._content)

    def read(self) -> bytes:
        return self._content


# -- masks


def test_mask_hides_the_text_its_length_and_null(adapt: Adapt) -> None:
    form = adapt(NAME, "column.mask.with.5.chars: .*client[.]name")

    assert [sent(form, value) for value in ("Nordline", "x", "", None)] == ["*****"] * 4
    assert form.schema.to_json() == {
        "type": "string",
        "optional": True,
        "parameters": {"masked": "true"},
    }


def test_mask_of_no_characters_gives_an_empty_text(adapt: Adapt) -> None:
    form = adapt(CODE, "column.mask.with.0.chars: .*")
    assert (sent(form, "abc       "), sent(form, None)) == ("", "")


def test_mask_of_a_text_blob_does_not_read_it(adapt: Adapt) -> None:
    assert sent(adapt(NOTE, "column.mask.with.3.chars: .*"), object()) == "***"


def test_mask_replaces_the_result_of_a_custom_converter(adapt: Adapt) -> None:
    custom = FieldForm(replace(INT64, optional=True, name="my.Number"), "len({v})")
    form = adapt(NAME, "column.mask.with.3.chars: .*", form=custom)
    assert sent(form, "abcdef") == "***"
    assert (form.schema.type, form.schema.name, form.schema.optional) == ("string", None, True)


@pytest.mark.parametrize(
    "pattern",
    ["/srv/fb/warehouse.fdb.client.name", ".*[.]NAME", ".*other, .*name", "/srv/.*"],
)
def test_pattern_matches_the_whole_identifier_in_any_case(adapt: Adapt, pattern: str) -> None:
    assert sent(adapt(NAME, f"column.mask.with.1.chars: '{pattern}'"), "x") == "*"


@pytest.mark.parametrize("pattern", ["name", ".*client", ".*nam", "CLIENT.NAME"])
def test_pattern_that_matches_a_part_only_does_nothing(adapt: Adapt, pattern: str) -> None:
    assert sent(adapt(NAME, f"column.mask.with.1.chars: '{pattern}'"), "x") == "x"


# -- hashes. Of "hello" and "world" Debezium's own tests have these, with the salt "salt"; the
# others come from java.security.MessageDigest and ObjectOutputStream, with the salt "соль".


@pytest.mark.parametrize(
    ("rule", "text", "digest"),
    [
        (
            "SHA-256.with.salt.salt",
            "hello",
            "af5843a0f0e728ab0332c8888b6e1190bfb79e584f0d40538de8f10df6ef29c6",
        ),
        ("MD5.with.salt.salt", "world", "030f632140d9c9591b0d8c21098024b8"),
        (
            "v2.SHA-256.with.salt.salt",
            "hello",
            "cd31b3b98ece60cb739c0bf770b2de892ae0ad133f645513c3d83f08757a843a",
        ),
        ("v2.MD5.with.salt.salt", "world", "172c8e95398cc72ab5358ead6981e7e5"),
        ("MD5.with.salt.соль", "", "1aa02bbc1d960fc1195eefd3ac13299a"),
        ("MD5.with.salt.соль", "Жук", "5bac554780d793434f0288eb60a81924"),
        ("MD5.with.salt.соль", "a\0b", "6c412bd416789a5c7ccd91ec23af04a1"),
        ("MD5.with.salt.соль", "😀", "ccf23ab2b1455b9fc2b23d4a2c354bb2"),
        ("MD5.with.salt.соль", "x" * 70_000, "328290e13fedb1a7610d0b01ac1b736a"),
        ("MD5.with.salt.соль", "é" * 40_000, "1e543e1a3285f6d9c5847fea239ddb2a"),
        ("v2.MD5.with.salt.соль", "😀", "97a44d2833aa3e5b3536e26f56f26646"),
        (
            "SHA-512/224.with.salt.соль",
            "Жук",
            "7466bffbaa5c39d31ba582991bf8f6e0346982c49f47a2bd541447ca",
        ),
        (
            "v2.SHA3-224.with.salt.соль",
            "Жук",
            "4e47db932e1848927d03c821c06c9c3fc2228d55715f2862a776a3a4",
        ),
    ],
)
def test_hash_is_the_one_that_debezium_gives(
    adapt: Adapt, rule: str, text: str, digest: str
) -> None:
    form = adapt(NOTE, f"column.mask.hash.{rule}: .*note")
    assert sent(form, Text(text)) == digest
    assert form.schema.parameters == {"masked": "true"}


@pytest.mark.parametrize(("column", "length"), [(NAME, 40), (CODE, 10)])
def test_hash_is_cut_to_the_length_of_its_column(adapt: Adapt, column: Column, length: int) -> None:
    digest = "af5843a0f0e728ab0332c8888b6e1190bfb79e584f0d40538de8f10df6ef29c6"
    form = adapt(column, "column.mask.hash.SHA-256.with.salt.salt: .*")
    assert sent(form, "hello") == digest[:length]


def test_text_blob_larger_than_a_message_is_hashed_whole(render: Render) -> None:
    def fill(writer: JournalWriter) -> None:
        row = ("1", writer.blob(b"x" * 1_100_000))
        writer.insert(writer.table("CLIENT", (ID, NOTE)), row)

    (message,) = render(fill, "column.mask.hash.v2.SHA-1.with.salt.s: .*")
    digest = hashlib.sha1(b"s" + b"x" * 1_100_000, usedforsecurity=False).hexdigest()
    assert payload(message)["after"]["NOTE"] == digest


def test_null_has_no_hash(adapt: Adapt) -> None:
    assert sent(adapt(NAME, "column.mask.hash.MD5.with.salt.s: .*"), None) is None


# -- truncation


def test_truncation_cuts_the_text_and_marks_the_schema(adapt: Adapt) -> None:
    form = adapt(NAME, "column.truncate.to.3.chars: .*name")
    assert [sent(form, v) for v in ("Nordline", "No", "", "😀Жук", None)] == [
        "Nor",
        "No",
        "",
        "😀Жу",
        None,
    ]
    assert form.schema.parameters == {"truncateLength": "3"}


def test_text_blob_is_truncated(adapt: Adapt) -> None:
    assert sent(adapt(NOTE, "column.truncate.to.3.chars: .*"), Text("Nordline")) == "Nor"


def test_truncation_reads_no_more_of_a_text_blob_than_it_keeps(render: Render) -> None:
    """One larger than any message too, whose rest is no text."""
    russian = replace(NOTE, charset_id=52)  # WIN1251
    content = "Жу".encode("cp1251") * 600_000, "Жук".encode() * 400_000 + b"\xff"

    def fill(writer: JournalWriter) -> None:
        for name, column, raw in zip("AB", (russian, NOTE), content, strict=True):
            writer.insert(writer.table(name, (ID, column)), ("1", writer.blob(raw)))

    messages = render(fill, "column.truncate.to.50000.chars: .*[.]note")
    assert [payload(message)["after"]["NOTE"] for message in messages] == [
        "Жу" * 25_000,
        ("Жук" * 20_000)[:50_000],
    ]
    with pytest.raises(BadEvent, match="blob of 1200000 bytes does not fit"):
        render(fill, "column.truncate.to.2000000.chars: .*[.]note")


def test_truncation_to_no_less_than_the_columns_length_leaves_it(adapt: Adapt) -> None:
    form = adapt(CODE, "column.truncate.to.10.chars: .*")
    assert form.schema.parameters == {}
    assert sent(form, "abcdefghij") == "abcdefghij"


def test_placeholder_of_an_unreadable_text_is_treated_like_a_text(adapt: Adapt) -> None:
    missing = Text("")
    missing.available = False
    assert sent(adapt(NOTE, "column.mask.with.2.chars: .*"), missing) == "**"
    assert sent(adapt(NOTE, "column.truncate.to.11.chars: .*"), missing) == "__debezium_"


# -- several rules, and what none applies to


@pytest.mark.parametrize(
    ("lines", "result"),
    [
        (("column.truncate.to.1.chars: .*", "column.mask.with.2.chars: .*"), "**"),
        (("column.mask.hash.v2.MD5.with.salt.salt: .*", "column.mask.with.2.chars: .*"), "**"),
        (
            ("column.truncate.to.1.chars: .*", "column.mask.hash.v2.MD5.with.salt.salt: .*"),
            "172c8e95398cc72ab5358ead6981e7e5",
        ),
        (("column.mask.with.3.chars: .*name", "column.mask.with.2.chars: .*"), "***"),
        (("column.mask.with.3.chars: .*code", "column.mask.with.2.chars: .*"), "**"),
        (("column.truncate.to.3.chars: .*", "column.truncate.to.2.chars: .*"), "wo"),
    ],
)
def test_most_restrictive_of_several_column_rules_applies(
    adapt: Adapt, lines: tuple[str, ...], result: str
) -> None:
    assert sent(adapt(NAME, *lines), "world") == result


ALL = (
    "column.mask.with.2.chars: .*",
    "column.mask.hash.v2.MD5.with.salt.s: .*",
    "column.truncate.to.1.chars: .*",
)


@pytest.mark.parametrize("column", [PHOTO, TOKEN, LIMIT], ids=lambda column: column.name)
@pytest.mark.parametrize("line", ALL)
def test_rule_for_a_non_text_column_is_ignored_with_a_warning(
    adapt: Adapt, column: Column, line: str
) -> None:
    with logbook.TestHandler() as log:
        form = adapt(column, line)
    plain = field_form(column, ValueModes())
    assert plain is not None
    assert form.expression == plain.expression
    assert form.schema.to_json() == plain.schema.to_json()
    (warning,) = log.formatted_records
    assert f"column {column.name} of table CLIENT in {DATABASE} stays as it is" in warning


@pytest.mark.parametrize("line", ALL)
def test_rule_for_a_key_column_is_ignored_with_a_warning(adapt: Adapt, line: str) -> None:
    with logbook.TestHandler() as log:
        assert sent(adapt(ID, line), "Nordline") == "Nordline"
    (warning,) = log.formatted_records
    assert "column ID of table CLIENT" in warning
    assert "is part of the message key" in warning


@pytest.mark.parametrize(
    ("keys", "row"),
    [
        ("", {"ID": "a", "NAME": "**"}),
        (".*client:name", {"ID": "**", "NAME": "b"}),
        (".*client:nmae", {"ID": "a", "NAME": "**"}),  # then it is the table's own
    ],
)
def test_key_columns_are_those_of_the_message(
    render: Render, keys: str, row: dict[str, str]
) -> None:
    fill = insert("a", "b", name=TABLE, columns=(ID, NAME))
    (message,) = render(fill, ALL[0], f"message.key.columns: '{keys}'")
    assert payload(message)["after"] == row
    assert json.loads(message.key or b"")["payload"].items() <= row.items()


@pytest.mark.parametrize("line", ALL[1:])
def test_text_that_has_another_form_is_refused_rather_than_let_through(
    adapt: Adapt, line: str
) -> None:
    custom = FieldForm(Schema("bytes", optional=True), "{v}.encode()")
    with pytest.raises(BadName) as caught:
        adapt(NAME, line, form=custom)
    assert f"column NAME of table CLIENT in {DATABASE} is to be hashed or trunc" in str(
        caught.value
    )
    assert "column.mask.with.n.chars" in str(caught.value)


# -- source types


def test_source_type_of_chosen_columns_is_in_their_schemas(adapt: Adapt) -> None:
    line = "column.propagate.source.type: .*[.]client[.].*"
    prefix = "__debezium.source.column."
    assert adapt(NAME, line).schema.parameters == {
        f"{prefix}type": "VARCHAR",
        f"{prefix}length": "40",
        f"{prefix}name": "NAME",
    }
    assert adapt(NOTE, line).schema.parameters == {
        f"{prefix}type": "BLOB",
        f"{prefix}name": "NOTE",
    }
    assert adapt(LIMIT, line).schema.parameters == {
        "scale": "3",
        "connect.decimal.precision": "19",
        f"{prefix}type": "NUMERIC",
        f"{prefix}length": "18",
        f"{prefix}scale": "3",
        f"{prefix}name": "LIMIT",
    }


def test_source_type_of_chosen_data_types_is_in_their_schemas(adapt: Adapt) -> None:
    line = "datatype.propagate.source.type: .*[.]client[.]varchar"
    assert adapt(NAME, line).schema.parameters["__debezium.source.column.type"] == "VARCHAR"
    assert adapt(CODE, line).schema.parameters == {}


def test_source_type_is_propagated_beside_a_mask(adapt: Adapt) -> None:
    form = adapt(NAME, "column.propagate.source.type: .*", ALL[0])
    assert sent(form, "x") == "**"
    assert form.schema.parameters["masked"] == "true"
    assert form.schema.parameters["__debezium.source.column.type"] == "VARCHAR"
