"""Names of tables and columns as SQL has them."""

from __future__ import annotations


def identifier(name: str) -> str:
    """Return NAME as SQL has it, whatever its characters."""
    return '"' + name.replace('"', '""') + '"'
