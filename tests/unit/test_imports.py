"""Packages import in one direction only, and no two modules import each other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "firebird_cdc"

# Each package imports only from those above it; docs/architecture.md has the same table.
LAYERS = [
    "journal.format",
    "journal.types",
    "config",
    "journal.folder",
    "packaging.server",
    "journal.events",
    "bridge",
    "journal.snapshot",
    "journal.shipper",
    "journal.replay",
    "packaging",
    "demo",
    "cli",
]
# Modules that import nothing of ours, and the parts in C: for all.
_FOR_ALL = {"", "access", "errors", "clock", "completion", "moved", "output", "native", "tree"}


def _modules() -> dict[str, Path]:
    """Return all modules by their dotted names within the package, "" for itself."""
    files = [*PACKAGE.glob("*.py"), *(p for d in PACKAGE.iterdir() for p in d.rglob("*.py"))]
    dotted = {".".join(file.relative_to(PACKAGE).with_suffix("").parts): file for file in files}
    return {name.removesuffix("__init__").rstrip("."): file for name, file in dotted.items()}


def _imports(file: Path, modules: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in found:
            top, _, inside = name.partition(".")
            if top == "firebird_cdc":
                yield inside if inside in modules else inside.rpartition(".")[0]


def _layer(module: str) -> str:
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in LAYERS), parts[0])


def test_packages_import_in_one_direction_and_modules_never_in_a_circle() -> None:
    modules = _modules()
    graph = {name: set(_imports(file, modules)) for name, file in modules.items()}
    backward = [
        f"{name} imports {imported}"
        for name in graph
        for imported in graph[name]
        if (layer := _layer(name)) in LAYERS and (below := _layer(imported)) not in _FOR_ALL
        if LAYERS.index(below) > LAYERS.index(layer)
    ]
    assert not backward
    TopologicalSorter(graph).prepare()


def test_architecture_has_the_same_table() -> None:
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    section = page.partition("## Which package imports which")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z.]+)` \|", section, re.MULTILINE) == LAYERS
