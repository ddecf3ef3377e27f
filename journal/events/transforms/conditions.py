"""The language of filter conditions: what Groovy, JavaScript and Python have in common of it.

    value.op == 'u' && value.before.ID == 2

A condition is read once and becomes nested functions of a record. It can read the record and
compare; it can't call anything but the few tests of texts below, loop, or change anything, and
it ends after as many steps as it has operators. docs/transforms.md describes it.

It is not CEL, though cel-python (0.5.0) and common-expression-language (0.10.0) are kept up: both
read 14 of the 20 conditions in our tests, as CEL has no ``===``, ``and``, ``not in``, ``in`` for
texts or ``?.``. Their integers end at 64 bits, and decimals become doubles or are refused. A name
that is not known shows at the first event, not in the configuration; an event takes 14 to 100 times
as long.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

from firebird_cdc.journal.events.records import Record
from firebird_cdc.journal.events.schema import Schema
from firebird_cdc.journal.events.schema_check import SCHEMAS_KEPT
from firebird_cdc.journal.events.values import BadValue

Node = Callable[[Record], Any]

_LONGEST = 10_000  # characters; more than a person writes
_DEEPEST = 40  # brackets in one another, steps into a value

_TOKEN = re.compile(
    r"\s*(?:"
    r"(?P<number>[0-9]+(?:\.[0-9]+)?(?![\w.]))"
    r"|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<name>[^\W\d][\w$]*)"
    r"|(?P<sign>===|!==|==|!=|<=|>=|&&|\|\||\?\.|[<>!().,\[\]-])"
    r"|(?P<end>\Z))",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}

_CONSTANTS = {
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    "null": None,
    "None": None,
}
_WORDS = {"and": "&&", "or": "||"}

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "===": operator.eq,
    "!=": operator.ne,
    "!==": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_TESTS: dict[str, Callable[[str, str], bool]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": operator.contains,
}

_SCHEMA_ATTRIBUTES = ("name", "version", "type")


class _Struct(NamedTuple):
    """A struct of the record with its schema."""

    schema: Schema
    value: dict[str, Any]


class _Header(NamedTuple):
    value: Any


def compile_condition(text: str) -> Callable[[Record], bool]:
    """Return what decides for a record whether it meets the condition TEXT.

    Raises ValueError if TEXT is no condition. The function raises BadValue for a record in which
    something that the condition asks for is missing or can't be compared.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"a condition may have {_LONGEST} characters")
    node = _Parser(text).whole()

    def decide(record: Record) -> bool:
        result = node(record)
        if type(result) is not bool:
            raise BadValue(f"the condition gives {_shown(result)}, neither true nor false")
        return result

    return decide


class _Parser:
    """Recursive descent; each method reads one level of precedence, the loosest first."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._place = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._any()
        kind, word, place = self._tokens[self._place]
        if kind != "end":
            raise ValueError(f"{word} at character {place} is not expected there")
        return node

    def _any(self) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError(f"it has more than {_DEEPEST} brackets in one another")
        nodes = [self._all()]
        while self._take("||"):
            nodes.append(self._all())
        self._depth -= 1
        return nodes[0] if len(nodes) == 1 else _one_of(nodes)

    def _all(self) -> Node:
        nodes = [self._negation()]
        while self._take("&&"):
            nodes.append(self._negation())
        return nodes[0] if len(nodes) == 1 else _all_of(nodes)

    def _negation(self) -> Node:
        """``not`` binds looser than comparisons, ``!`` tighter, as where they come from."""
        negations = 0
        while self._take("not"):
            negations += 1
        node = self._comparison()
        return _negated(node, negations)

    def _comparison(self) -> Node:
        left = self._unary()
        sign = self._tokens[self._place][1]
        if sign in _COMPARE:
            self._place += 1
            return _comparing(_COMPARE[sign], sign, left, self._unary())
        negative = self._take("not")
        if self._take("in"):
            node = _contained(left, self._unary())
            return _negated(node, int(negative))
        if negative:
            self._fail("in")
        return left

    def _unary(self) -> Node:
        negations = 0
        while self._take("!"):
            negations += 1
        if self._take("-"):
            kind, word, _ = self._tokens[self._place]
            if kind != "number":
                self._fail("a number")
            self._place += 1
            number = -_number(word)
            return lambda _: number
        return _negated(self._path(), negations)

    def _path(self) -> Node:
        node = self._primary()
        for _ in range(_DEEPEST):
            if self._take("["):
                node = _item(node, self._literal(), False)
                self._expect("]")
            elif (safe := self._take("?.")) or self._take("."):
                name = self._name()
                node = self._call(node, name) if self._take("(") else _item(node, name, safe)
            else:
                return node
        raise ValueError(f"it goes more than {_DEEPEST} steps into a value")

    def _call(self, node: Node, name: str) -> Node:
        if name == "get":
            node = _item(node, self._literal(), False)
        elif name in _TESTS:
            node = _testing(node, name, self._any())
        else:
            raise ValueError(
                f"{name}(...) cannot be called; the calls there are: get, {', '.join(_TESTS)}"
            )
        self._expect(")")
        return node

    def _primary(self) -> Node:
        kind, word, place = self._tokens[self._place]
        self._place += 1
        if word == "(":
            node = self._any()
            self._expect(")")
            return node
        if word == "[":
            return self._list()
        if kind in ("number", "text") or word in _CONSTANTS:
            self._place -= 1
            constant = self._literal()
            return lambda _: constant
        if word in _ROOTS:
            return _ROOTS[word]
        if kind == "end":
            raise ValueError("it ends too early")
        raise ValueError(f"{word} at character {place} is not known; there are {', '.join(_ROOTS)}")

    def _list(self) -> Node:
        items = [self._any()]
        while self._take(","):
            items.append(self._any())
        self._expect("]")
        return lambda record: [item(record) for item in items]

    def _literal(self) -> Any:
        kind, word, place = self._tokens[self._place]
        self._place += 1
        if kind == "number":
            return _number(word)
        if kind == "text":
            return _paired(_ESCAPE.sub(_unescaped, word[1:-1]))
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        raise ValueError(f"a text or a number is expected at character {place}")

    def _name(self) -> str:
        kind, word, _ = self._tokens[self._place]
        if kind != "name":
            self._fail("a name")
        self._place += 1
        return word

    def _take(self, word: str) -> bool:
        kind, found, _ = self._tokens[self._place]
        if kind in ("name", "sign") and _WORDS.get(found, found) == word:
            self._place += 1
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._take(word):
            self._fail(word)

    def _fail(self, expected: str) -> NoReturn:
        kind, found, place = self._tokens[self._place]
        if kind == "end":
            raise ValueError(f"it ends where {expected} is expected")
        raise ValueError(f"{found} stands at character {place} where {expected} is expected")


def _tokens(text: str) -> list[tuple[str, str, int]]:
    """Kind, text and place (from 1) of each token; the last one has the kind end."""
    tokens = []
    place = 0
    while True:
        match = _TOKEN.match(text, place)
        if match is None:
            rest = text[place:].lstrip()
            raise ValueError(f"{rest[0]} at character {len(text) - len(rest) + 1} is not known")
        kind = match.lastgroup
        assert kind is not None
        tokens.append((kind, match[kind], match.start(kind) + 1))
        if kind == "end":
            return tokens
        place = match.end()


def _number(word: str) -> int | Decimal:
    return Decimal(word) if "." in word else int(word)


def _unescaped(match: re.Match[str]) -> str:
    what = match[1]
    return chr(int(what[1:], 16)) if len(what) == 5 else _ESCAPES.get(what, what)


def _paired(text: str) -> str:
    r"""TEXT with one character for two escapes that are its halves: ``\ud83d\ude00``."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


# -- what a condition is made of


def _headers(record: Record) -> dict[str, _Header]:
    found = {
        name: _Header(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
        for name, value in record.headers
    }
    found.update(
        (item.name, _Header(_view(item.schema, item.value))) for item in record.struct_headers
    )
    return found


_ROOTS: dict[str, Node] = {
    "value": lambda record: _view(record.value_schema, record.value),
    "key": lambda record: _view(record.key_schema, record.key),
    "valueSchema": lambda record: record.value_schema,
    "keySchema": lambda record: record.key_schema,
    "topic": lambda record: record.topic,
    "header": _headers,
}


@lru_cache(SCHEMAS_KEPT)
def _fields(schema: Schema) -> dict[str, Schema]:
    return dict(schema.fields)


def _view(schema: Schema | None, value: Any) -> Any:
    """VALUE as conditions see it: decimals as numbers, structs with their schema."""
    if value is None or schema is None:
        return value
    if schema.name == "org.apache.kafka.connect.data.Decimal":
        return _decimal(value, int(schema.parameters["scale"]))
    if schema.name == "io.debezium.data.VariableScaleDecimal":
        return _decimal(value["value"], value["scale"])
    if schema.type == "struct":
        return _Struct(schema, value)
    if schema.type == "array":
        return [_view(schema.items, item) for item in value]
    if schema.type == "map":
        return {key: _view(schema.items, item) for key, item in value.items()}
    return value


def _decimal(unscaled: bytes, scale: int) -> Decimal:
    # Not by Decimal's arithmetic, which rounds to 28 digits.
    return Decimal(f"{int.from_bytes(unscaled, 'big', signed=True)}E{-scale}")


def _item(node: Node, name: Any, safe: bool) -> Node:
    def item(record: Record) -> Any:
        value = node(record)
        if isinstance(value, _Struct):
            schema = _fields(value.schema).get(name)
            if schema is None:
                fields = ", ".join(_fields(value.schema))
                raise BadValue(f"there is no field {name}; there are {fields}")
            return _view(schema, value.value[name])
        if isinstance(value, _Header) and name == "value":
            return value.value
        if isinstance(value, dict):
            return value.get(name)
        if isinstance(value, list) and type(name) is int and 0 <= name < len(value):
            return value[name]
        if isinstance(value, Schema) and name in _SCHEMA_ATTRIBUTES:
            return getattr(value, name)
        if value is None and safe:
            return None
        hint = "; `?.` instead of the point asks nothing of null" if value is None else ""
        raise BadValue(f"{_shown(value)} has no {name}{hint}")

    return item


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise BadValue(f"{_shown(value)} is neither true nor false")
    return value


def _one_of(nodes: list[Node]) -> Node:
    return lambda record: any(_truth(node(record)) for node in nodes)


def _all_of(nodes: list[Node]) -> Node:
    return lambda record: all(_truth(node(record)) for node in nodes)


def _negated(node: Node, times: int) -> Node:
    if not times:
        return node
    return lambda record: _truth(node(record)) is bool(times % 2 == 0)


def _comparable(left: Any, sign: str, right: Any) -> tuple[Any, Any]:
    """LEFT and RIGHT as they are compared: a double with a decimal number, e.g. 0.1, as doubles.

    Raises BadValue for two of different kinds: nobody means to compare a text with a number.
    """
    if left is not None and right is not None and _KINDS[type(left)] != _KINDS[type(right)]:
        raise _incomparable(left, sign, right)
    if isinstance(left, float) and isinstance(right, Decimal):
        return left, float(right)
    if isinstance(left, Decimal) and isinstance(right, float):
        return float(left), right
    return left, right


def _incomparable(left: Any, sign: str, right: Any) -> BadValue:
    return BadValue(f"{_shown(left)} {sign} {_shown(right)} cannot be compared")


def _comparing(compare: Callable[[Any, Any], Any], sign: str, left: Node, right: Node) -> Node:
    def comparing(record: Record) -> bool:
        one, other = _comparable(left(record), sign, right(record))
        try:
            return bool(compare(one, other))
        except TypeError:
            raise _incomparable(one, sign, other) from None

    return comparing


def _contained(left: Node, right: Node) -> Node:
    def contained(record: Record) -> bool:
        value, whole = left(record), right(record)
        if isinstance(whole, list):
            pairs = [_comparable(value, "==", item) for item in whole]
            return any(one == other for one, other in pairs)
        if isinstance(whole, dict | str) and isinstance(value, str):
            return value in whole
        raise BadValue(f"{_shown(value)} in {_shown(whole)} cannot be decided")

    return contained


def _testing(node: Node, name: str, argument: Node) -> Node:
    test = _TESTS[name]

    def testing(record: Record) -> bool:
        text, other = node(record), argument(record)
        if not isinstance(text, str) or not isinstance(other, str):
            raise BadValue(f"{_shown(text)}.{name}({_shown(other)}) is asked of no text")
        return test(text, other)

    return testing


_KINDS = {
    bool: "true or false",
    str: "a text",
    **dict.fromkeys((int, float, Decimal), "a number"),
    bytes: "bytes",
    list: "a list",
    dict: "a map",
    _Struct: "a struct",
    _Header: "a header",
    Schema: "a schema",
}


def _shown(value: Any) -> str:
    """Return the kind of VALUE, without its content: that may be private and long."""
    return "null" if value is None else _KINDS[type(value)]
