"""Custom converters: which columns they get, with which values, and what they may do wrong."""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import columns
import pytest
from shipment import Render
from transform_records import config_with

from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.custom import CustomConverters, SourceColumn
from firebird_cdc.journal.events.values import BadValue, FieldForm, ValueModes
from firebird_cdc.journal.format import Blob, Column, JournalWriter, Storage, Undecodable

DATABASE = "/srv/fb/books.fdb"
PAGE = Path(__file__).parents[2] / "docs" / "transforms.md"

OWN = '''
from firebird_cdc.journal.events.schema import INT32, STRING, Schema, struct

seen = []
POINT = struct("point", ("x", INT32), ("tags", Schema("array", items=STRING)))

class Told:
    """Takes columns by name; gives what the column's name says."""
    def configure(self, parameters):
        self.take = parameters["take"]
        self.schema = {
            "text": Schema("string", name="told"), "int16": Schema("int16"), "point": POINT,
            "double": Schema("double"), "odd": Schema("decimal"), "optional": STRING.as_optional(),
        }[parameters.get("schema", "text")]
        self.result = eval(parameters.get("result", "str(value)"), {"__name__": "x"}) if (
            parameters.get("result", "").startswith("lambda")) else None
    def converter_for(self, column):
        seen.append(column)
        if column.name == self.take:
            return self.schema, self.result or str
        if column.name == "RAISES":
            return column.absent
        if column.name == "WRONG":
            return "string", str
        return None

class Plain:
    def converter_for(self, column):
        return (Schema("string", name="plain"), repr)
'''


column = partial(columns.column, nullable=False)


Build = Callable[..., CustomConverters]


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    """Make the converters of a configuration with these lines; modules of the user's are there."""
    (tmp_path / "my_own.py").write_text(OWN)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    (shown,) = (block for block in blocks if "class IsbnConverter" in block)
    (tmp_path / "my_converters.py").write_text(shown)
    monkeypatch.syspath_prepend(str(tmp_path))

    def build(*lines: str) -> CustomConverters:
        return CustomConverters(config_with(tmp_path, *lines))

    yield build
    for name in ("my_own", "my_converters"):
        sys.modules.pop(name, None)


@pytest.fixture
def told(build: Build) -> Callable[..., FieldForm]:
    """The form that a converter gives a column X of whatever type, with these parameters."""

    def told(of: Column, modes: ValueModes | None = None, **parameters: str) -> FieldForm:
        lines = [f"t.{name}: '{value}'" for name, value in parameters.items()]
        converters = build("converters: t", "t.type: my_own.Told", f"t.take: {of.name}", *lines)
        form = converters.form_for(DATABASE, "T", of, modes or ValueModes())
        assert form is not None
        return form

    return told


def convert(form: FieldForm, value: Any) -> Any:
    """Return the result of FORM for VALUE, NULL included, as in a row."""
    expression = form.of_null if value is None else form.expression
    return eval(expression.replace("{v}", "v").replace("{f}", "f"), {"v": value, "f": form.convert})


def test_example_of_the_page_converts_its_column_alone(build: Build) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    (lines,) = (block for block in blocks if "IsbnConverter" in block)
    converters = build(lines)
    isbn = column("ISBN", Storage.PADDED_TEXT, sql_type=452, char_length=20, nullable=True)
    form = converters.form_for(DATABASE, "BOOK", isbn, ValueModes())
    assert form is not None
    assert form.schema.to_json() == {
        "type": "string",
        "optional": True,
        "name": "com.example.Isbn",
    }
    assert convert(form, "978-3-16-148410-0   ") == "9783161484100"
    assert convert(form, None) is None
    for other in (column("TITLE", Storage.TEXT), column("ISBN", Storage.BIGINT)):
        assert converters.form_for(DATABASE, "BOOK", other, ValueModes()) is None


def test_without_converters_columns_stay_as_they_are(build: Build) -> None:
    assert build().form_for(DATABASE, "T", column("X", Storage.TEXT), ValueModes()) is None


def test_converter_receives_the_column_definition(build: Build) -> None:
    converters = build("converters: t", "t.type: my_own.Told", "t.take: nothing")
    for one in (
        column("PRICE", Storage.INTEGER, sql_type=496, sub_type=1, scale=-2, precision=9),
        column("NAME", Storage.TEXT, sql_type=448, charset_id=52, char_length=40, nullable=True),
    ):
        assert converters.form_for(DATABASE, "BOOK", one, ValueModes()) is None
    price, name = sys.modules["my_own"].seen
    assert price == SourceColumn(
        database=DATABASE,
        table="BOOK",
        name="PRICE",
        type_name="NUMERIC",
        type_expression="NUMERIC(9,2)",
        jdbc_type=2,
        native_type=496,
        length=9,
        scale=2,
        optional=False,
        charset=None,
    )
    assert (name.type_expression, name.charset, name.optional) == ("VARCHAR(40)", "WIN1251", True)


def test_the_first_converter_that_takes_a_column_has_it(build: Build) -> None:
    lines = ("t.type: my_own.Told", "t.take: X", "p.type: my_own.Plain")
    for order, name in (("t,p", "told"), ("p,t", "plain")):
        form = build(f"converters: '{order}'", *lines).form_for(
            DATABASE, "T", column("X", Storage.TEXT), ValueModes()
        )
        assert form is not None
        assert form.schema.name == name


_DAY = 61101  # 2026-03-02
_TIME = ((9 * 60 + 14) * 60 + 7) * 10_000 + 1234
_STAMP = _DAY * 864_000_000 + _TIME
_ZONE = (1439).to_bytes(2, "little")


@pytest.mark.parametrize(
    ("of", "value", "seen"),
    [
        (column("X", Storage.BIGINT), -5, -5),
        (column("X", Storage.INT128), 2**100, 2**100),
        # More digits than Decimal's own arithmetic keeps.
        (
            column("X", Storage.INT128, sub_type=1, scale=-2),
            -(10**37) - 1,
            Decimal("-100000000000000000000000000000000000.01"),
        ),
        (column("X", Storage.INTEGER, sub_type=2), 7, Decimal(7)),
        (column("X", Storage.DOUBLE, scale=-2), 12.34, Decimal("12.34")),
        (column("X", Storage.DOUBLE), 0.1, 0.1),
        (column("X", Storage.FLOAT), 0.10000000149011612, 0.1),
        (column("X", Storage.BOOLEAN), True, True),
        (column("X", Storage.DATE), _DAY, date(2026, 3, 2)),
        (column("X", Storage.DATE), -678575, date(1, 1, 1)),
        (column("X", Storage.TIME), _TIME, time(9, 14, 7, 123400)),
        (column("X", Storage.TIMESTAMP), _STAMP, datetime(2026, 3, 2, 9, 14, 7, 123400)),
        (
            column("X", Storage.TIME_TZ),
            _TIME.to_bytes(4, "little") + _ZONE,
            time(9, 14, 7, 123400, UTC),
        ),
        (
            column("X", Storage.TIMESTAMP_TZ),
            _STAMP.to_bytes(8, "little", signed=True) + _ZONE,
            datetime(2026, 3, 2, 9, 14, 7, 123400, UTC),
        ),
        (column("X", Storage.TEXT), "Grüße", "Grüße"),
        (column("X", Storage.TEXT), Undecodable(b"\xff", 4), "__debezium_unavailable_value"),
        (column("X", Storage.OCTETS, charset_id=1), b"\x00\xff", b"\x00\xff"),
        (column("X", Storage.BLOB, sub_type=1), Blob(1, True, None, (), b"text"), "text"),
        (column("X", Storage.BLOB), Blob(1, True, None, (), b"\x01"), b"\x01"),
        (
            column("X", Storage.BLOB),
            Blob(1, False, None, (), b"\x01"),
            b"__debezium_unavailable_value",
        ),
        (column("X", Storage.RAW), b"\x02", b"\x02"),
        (column("X", Storage.TEXT, nullable=True), None, None),
    ],
    ids=repr,
)
@pytest.mark.parametrize("binary", ["bytes", "hex"])
def test_values_are_pythons_own_in_every_mode(
    told: Callable[..., FieldForm], of: Column, value: Any, seen: Any, binary: str
) -> None:
    modes = ValueModes(decimal="string", time="connect", binary=binary)
    form = told(of, modes, result="lambda value: repr((type(value).__name__, value))")
    assert convert(form, value) == repr((type(seen).__name__, seen))


def test_an_array_is_lists_of_pythons_own_values(told: Callable[..., FieldForm]) -> None:
    # dates with the bounds [0:1]: the engine's own form, see docs/journal-format.md
    head = struct.pack("<BBHHHII", 1, 1, 1, 4, 40, 2, 8) + struct.pack("<BbHh6x", 14, 0, 4, 0)
    content = head + struct.pack("<iii", 1, 0, 1) + struct.pack("<ii", _DAY, _DAY + 1)
    form = told(column("X", Storage.ARRAY), result="lambda value: repr(value)")
    seen = repr([date(2026, 3, 2), date(2026, 3, 3)])
    assert convert(form, Blob(1, True, None, (), content)) == seen
    with pytest.raises(BadValue, match="array could not be read"):
        convert(form, Blob(1, False, None, (), content))
    with pytest.raises(BadValue, match=r"^no array in 3 bytes"):
        convert(form, Blob(1, True, None, (), b"abc"))
    small = told(column("X", Storage.ARRAY), ValueModes(max_bytes=10))
    with pytest.raises(BadValue, match="does not fit into a message of 10 bytes"):
        convert(small, Blob(1, True, None, (), content))


def test_a_time_that_datetime_lacks_is_a_bad_event(told: Callable[..., FieldForm]) -> None:
    beyond = (2973483 + 10) * 864_000_000
    form = told(column("X", Storage.TIMESTAMP_TZ))
    with pytest.raises(BadValue, match="outside of the years"):
        convert(form, beyond.to_bytes(8, "little", signed=True) + _ZONE)


@pytest.mark.parametrize(
    ("schema", "result", "problem"),
    [
        ("int16", "lambda value: 32768", "a number is too large for int16"),
        ("int16", "lambda value: True", "a Python bool stands where int16 is wanted"),
        ("int16", "lambda value: None", "null stands where int16 is required"),
        ("text", "lambda value: 5", "a Python int stands where string told is wanted"),
        ("text", "lambda value: value.absent", "failed: AttributeError: 'str' object has no"),
        ("double", 'lambda value: float("nan")', "nan cannot be written as a JSON number"),
        ("point", "lambda value: [1]", "a Python list stands where struct point is wanted"),
        ("point", 'lambda value: {"x": 1}', "a struct has no field tags"),
        (
            "point",
            'lambda value: {"x": 1, "tags": ["a", 2]}',
            "field tags: a Python int stands where string is wanted",
        ),
    ],
)
def test_a_result_that_is_not_of_the_schema_is_a_bad_event(
    told: Callable[..., FieldForm], schema: str, result: str, problem: str
) -> None:
    form = told(column("X", Storage.TEXT), schema=schema, result=result)
    with pytest.raises(BadValue) as raised:
        convert(form, "a")
    assert str(raised.value).startswith("converter t (my_own.Told)")
    assert problem in str(raised.value)


def test_results_of_the_schema_pass(told: Callable[..., FieldForm]) -> None:
    text = column("X", Storage.TEXT)
    point = told(text, schema="point", result='lambda value: {"x": 1, "tags": [value]}')
    assert convert(point, "a") == {"x": 1, "tags": ["a"]}
    avro = ValueModes(non_finite=True)
    assert convert(told(text, avro, schema="double", result="lambda value: 1e999"), "a") == 1e999
    # A converter may send null for a column that is NOT NULL, if it says so.
    form = told(text, schema="optional", result="lambda value: None")
    assert form.schema.optional
    assert convert(form, "a") is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("RAISES", "converter t (my_own.Told) failed: AttributeError"),
        ("WRONG", "converter t (my_own.Told) gave neither None nor a schema and a function"),
        ("ODD", "converter t (my_own.Told): a schema has the type 'decimal'"),
    ],
)
def test_a_converter_that_fails_over_a_column_is_a_bad_event(
    build: Build, name: str, problem: str
) -> None:
    lines = ("t.type: my_own.Told", "t.take: ODD", "t.schema: odd")
    converters = build("converters: t", *lines)
    with pytest.raises(BadValue) as raised:
        converters.form_for(DATABASE, "T", column(name, Storage.TEXT), ValueModes())
    assert f"column {name}: {problem}" in str(raised.value)


BOOK = (
    column("ISBN", Storage.TEXT, sql_type=448, char_length=20, key_position=1),
    column("TITLE", Storage.TEXT, sql_type=448, char_length=40, nullable=True),
    column("NOTE", Storage.TEXT, sql_type=448, char_length=40, nullable=True),
)


def fill_books(*books: tuple[Any, ...]) -> Callable[[JournalWriter], None]:
    def fill(writer: JournalWriter) -> None:
        table = writer.table("BOOK", BOOK)
        for book in books:
            writer.insert(table, book)

    return fill


ISBN = ("isbn.type: my_converters.IsbnConverter", "isbn.schema.name: com.example.Isbn")


def test_converters_make_keys_and_rows_and_rules_for_columns_come_after(
    build: Build, render: Render
) -> None:
    (message,) = render(
        fill_books(("978-3-16-148410-0", "Emil", None)),
        "converters: isbn,t",
        *ISBN,
        "t.type: my_own.Told",
        "t.take: NOTE",
        "t.result: 'lambda value: f\"<{value}>\"'",
        "column.truncate.to.3.chars: .*NOTE",
        "column.mask.with.2.chars: .*TITLE",
    )
    assert message.key is not None
    assert message.value is not None
    key, value = json.loads(message.key), json.loads(message.value)
    assert key["payload"] == {"ISBN": "9783161484100"}
    assert key["schema"]["fields"][0]["name"] == "com.example.Isbn"
    assert value["payload"]["after"] == {"ISBN": "9783161484100", "TITLE": "**", "NOTE": "<No"}


@pytest.mark.parametrize(
    "rule", ["column.truncate.to.3.chars", "column.mask.hash.SHA-256.with.salt.s"]
)
def test_rules_for_columns_leave_the_null_that_a_converter_makes(
    build: Build, render: Render, rule: str
) -> None:
    (message,) = render(
        fill_books(("1", "Emil", "x")),
        "converters: t",
        "t.type: my_own.Told",
        "t.take: NOTE",
        "t.schema: optional",
        "t.result: 'lambda value: None'",
        f"{rule}: .*NOTE",
    )
    assert message.value is not None
    assert json.loads(message.value)["payload"]["after"]["NOTE"] is None


def test_none_from_a_converter_is_null_only_if_its_schema_is_optional(
    told: Callable[..., FieldForm],
) -> None:
    nullable = column("X", Storage.TEXT, nullable=True)
    form = told(nullable, result="lambda value: None")
    assert convert(form, None) is None
    with pytest.raises(BadValue, match="null stands where string told is required"):
        convert(form, "a")
    assert convert(told(nullable, schema="optional", result="lambda value: None"), "a") is None


def test_failing_converter_is_handled_by_the_failure_mode(build: Build, render: Render) -> None:
    told = ("converters: t", "t.type: my_own.Told", "t.take: NOTE")
    raising = (*told, "t.result: 'lambda value: value.absent'")
    books = fill_books(("1", "Emil", "x"))
    with pytest.raises(BadEvent, match=r"table BOOK: column NOTE: converter t \(my_own.Told\)"):
        render(books, *raising)
    with pytest.raises(BadEvent, match="column NOTE"):
        render(books, *raising, "event.processing.failure.handling.mode: skip")
    odd = ("converters: t", "t.type: my_own.Told", "t.take: NOTE", "t.schema: odd")
    with pytest.raises(BadEvent, match=r"table BOOK: column NOTE: converter t .*'decimal'"):
        render(books, *odd)


@pytest.mark.parametrize("header_converter", ["simple", "json"])
def test_text_that_utf_8_cant_write_is_a_bad_event_in_a_header_too(
    build: Build, render: Render, header_converter: str
) -> None:
    """Headers with the other key are written before the key itself."""

    def moved(writer: JournalWriter) -> None:
        writer.update(writer.table("BOOK", BOOK), ("1", "Emil", "x"), ("2", "Emil", "x"))

    half = ("converters: t", "t.type: my_own.Told", "t.take: ISBN")
    lines = (*half, "t.result: 'lambda value: value + chr(0xd800)'")
    with pytest.raises(BadEvent, match=r"table BOOK: .*surrogates not allowed"):
        render(moved, *lines, f"header.converter: {header_converter}")


def test_all_problems_of_converters_are_reported_at_once(build: Build) -> None:
    with pytest.raises(ConfigError) as raised:
        build(
            "converters: a,b,c",
            "a.type: my_own.Told",
            "b.type: my_own.Tild",
            "c.type: nowhere_at_all.C",
        )
    for option, problem in (
        ("a.type is my_own.Told", "it refuses its parameters: KeyError: 'take'"),
        ("b.type is my_own.Tild", "has no class Tild; did you mean Told?"),
        ("c.type is nowhere_at_all.C", "there is no Python module nowhere_at_all"),
    ):
        assert any(option in told and problem in told for told in raised.value.problems)
