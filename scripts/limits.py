"""Refuse files of more than 800 lines, and classes of more than 20 attributes (CONTRIBUTING.md).

Attributes are those of instances: what ``__init__`` assigns, or the fields of a dataclass or a
NamedTuple. Exits with 1 where there are more. Prints each with its file and line.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_LINES = 800
MOST_ATTRIBUTES = 20
_AS_THE_FILE = {"config/connector.py": "ConnectorConfig"}  # a field for each option


def _attributes(class_: ast.ClassDef) -> set[str]:
    heads = " ".join(map(ast.unparse, [*class_.decorator_list, *class_.bases]))
    found = set()
    if "dataclass" in heads or "NamedTuple" in heads:
        found = {
            each.target.id
            for each in class_.body
            if isinstance(each, ast.AnnAssign)
            and isinstance(each.target, ast.Name)
            and "ClassVar" not in ast.unparse(each.annotation)
        }
    for function in class_.body:
        if isinstance(function, ast.FunctionDef) and function.name == "__init__":
            own = function.args.args[0].arg
            found |= {
                node.attr
                for node in ast.walk(function)
                if isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id == own
            }
    return found


def _beyond(name: str) -> Iterator[str]:
    """Yield a sentence for each limit that the file NAME passes."""
    text = (ROOT / name).read_text("utf-8")
    lines = text.count("\n")
    if lines > MOST_LINES:
        yield f"{name}: {lines} lines: split it by subject, {MOST_LINES} are the limit"
    if not name.endswith(".py") or name.startswith("tests/"):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and _AS_THE_FILE.get(name) != node.name:
            count = len(_attributes(node))
            if count > MOST_ATTRIBUTES:
                yield (
                    f"{name}:{node.lineno}: {node.name} has {count} attributes: give some to a"
                    f" part of its own, {MOST_ATTRIBUTES} are the limit"
                )


def main() -> int:
    """List what passes a limit, and return the exit code."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.c", "*.h"], cwd=ROOT, capture_output=True, text=True
    )
    names = [name for name in listed.stdout.split() if not (ROOT / name).is_symlink()]
    found = [sentence for name in names for sentence in _beyond(name)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
