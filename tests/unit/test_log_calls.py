"""Each call that logs gives what its text asks for: at run time a wrong one only looks odd."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("bridge", "config", "firebird_cdc", "journal", "packaging")
_LEVELS = {"trace", "debug", "info", "notice", "warn", "warning", "error", "exception", "critical"}
_LOGBOOKS_OWN = {"exc_info", "extra", "frame_correction"}


def _calls() -> Iterator[tuple[str, ast.Call]]:
    for package in _PACKAGES:
        for path in (_ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in _LEVELS
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id in ("_log", "log")
                ):
                    yield f"{path}:{node.lineno}", node


def test_every_log_call_passes_the_arguments_of_its_format() -> None:
    seen = 0
    for place, call in _calls():
        text, *arguments = call.args
        assert isinstance(text, ast.Constant), f"{place}: data in a text may hold braces"
        if any(isinstance(each, ast.Starred) for each in arguments):
            continue
        fields = [
            name for _, name, _, _ in string.Formatter().parse(text.value) if name is not None
        ]
        given = {keyword.arg for keyword in call.keywords} - _LOGBOOKS_OWN
        assert fields.count("") == len(arguments), f"{place}: {text.value}"
        assert {name for name in fields if name} <= given, f"{place}: {text.value}"
        seen += 1
    assert seen > 100
