"""Words in which replay speaks of tables, whoever computes: Spark, or DuckDB on this machine.

What is written with `F`, `Window` and the methods of a table runs on either; the words are
PySpark's. Which of them is meant is up to the session that is open: a local one says so by
`local_tables`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Window
    from pyspark.sql import functions as F

__all__ = ["F", "Window", "is_local", "local_tables", "union"]

_is_local: ContextVar[bool] = ContextVar("is_local", default=False)


@contextmanager
def local_tables() -> Iterator[None]:
    """Have `F` and `Window` make columns for the tables of `local` meanwhile."""
    token = _is_local.set(True)
    try:
        yield
    finally:
        _is_local.reset(token)


def is_local(session: Any) -> bool:
    """Tell whether SESSION is a `local.session.LocalSession`, and no Spark."""
    return bool(getattr(session, "is_local", False))


def union(tables: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of all TABLES, at least one, whose columns have the same names."""
    return reduce(lambda one, other: one.unionByName(other), tables)


class _Functions:
    def __getattr__(self, name: str) -> Any:
        where = "local.columns" if _is_local.get() else None
        module = f"{__package__}.{where}" if where else "pyspark.sql.functions"
        return getattr(import_module(module), name)


class _Windows:
    def __getattr__(self, name: str) -> Any:
        if _is_local.get():
            return getattr(import_module(f"{__package__}.local.columns").Window, name)
        return getattr(import_module("pyspark.sql").Window, name)


if not TYPE_CHECKING:
    F, Window = _Functions(), _Windows()
