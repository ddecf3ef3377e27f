"""Arguments of commands that several of them take."""

from __future__ import annotations

import argparse
from typing import Any

Subparsers = Any
"""Type of the object that ``add_subparsers`` returns; argparse keeps it private."""


def positive(text: str) -> int:
    """Return the number above 0 that an option's TEXT is."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def count(text: str) -> int:
    """Return the number, 0 or more, that an option's TEXT is."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number, 0 or more")
    return int(text)


def seconds(text: str) -> float:
    """Return the time that an option's TEXT is, 0 or more."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not found >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, 0 or more")
    return found


def name_and_value(text: str) -> tuple[str, str]:
    """Return what an option's TEXT ``NAME=VALUE`` is; not shown, as it may hold a password."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError("give NAME=VALUE")
    return name, value
