"""Refuse docstrings that begin with a free clause ("What ...", "How ..."), see CONTRIBUTING.md.

Exits with 1 where there are more of them than there were. Prints each with its file and line.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST = 0  # only ever lowered
_FREE_CLAUSE = re.compile(r"(What|Whether|Which|How|Where|When|Who|Whose|Why)\b")


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each, those of constants and attributes too."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else []:
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                text = each.value.value
                if isinstance(text, str):
                    yield each.lineno, text.lstrip()


def main() -> int:
    """List them, and return the exit code."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True)
    found = [
        f"{name}:{line}: begins with a free clause: {text.splitlines()[0]}"
        for name in listed.stdout.split()
        if not (ROOT / name).is_symlink()
        for line, text in _docstrings(ast.parse((ROOT / name).read_text("utf-8")))
        if _FREE_CLAUSE.match(text)
    ]
    if len(found) <= MOST:
        return 0
    print("\n".join(found))
    print(f"{len(found)} docstrings begin so, and {MOST} may: begin with a verb or name the thing")
    return 1


if __name__ == "__main__":
    sys.exit(main())
