"""Templates of JSON: bytes in which characters that JSON never has, those below a blank, stand for
what differs from event to event. They are filled in C (`native/event_json.c`) or, on Spark's
executors, in Python with the same result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING
from uuid import UUID

__all__ = [
    "UUID_SLOT",
    "fill_partly",
    "fill_template",
    "number_slot",
    "plain_fill_template",
    "text_slot",
]

_TEXTS = 16
_UUID = 31
_SLOTS = re.compile(rb"([\x00-\x1f])")

UUID_SLOT = bytes((_UUID,))
"""Stands for the uuid, without quotes."""


def number_slot(place: int) -> bytes:
    """Return what stands for the number at PLACE, below 16."""
    return bytes((place,))


def text_slot(place: int) -> bytes:
    """Return what stands for the text at PLACE, below 15."""
    return bytes((_TEXTS + place,))


def fill_partly(
    template: bytes, uuid: bytes, texts: Mapping[int, bytes], numbers: Sequence[int]
) -> bytes:
    """Return TEMPLATE with what is given in its place, and the rest of it as it was. TEXTS: by
    place, without control characters."""
    known = {UUID_SLOT: str(UUID(bytes=uuid)).encode()}
    known |= {text_slot(place): text for place, text in texts.items()}
    known |= {number_slot(place): b"%d" % number for place, number in enumerate(numbers)}
    return _SLOTS.sub(lambda found: known.get(found[1], found[1]), template)


def plain_fill_template(
    template: bytes, uuid: bytes, texts: tuple[bytes, ...], numbers: tuple[int, ...]
) -> bytes:
    """Return TEMPLATE with all in its place."""
    form, slots = _as_format(template)
    return form % tuple(
        [
            numbers[slot]
            if slot < _TEXTS
            else texts[slot - _TEXTS]
            if slot != _UUID
            else str(UUID(bytes=uuid)).encode()
            for slot in slots
        ]
    )


@lru_cache(maxsize=256)
def _as_format(template: bytes) -> tuple[bytes, list[int]]:
    """Return TEMPLATE for the operator %, and what stands in its places in their order."""
    pieces = _SLOTS.split(template.replace(b"%", b"%%"))
    slots = [slot[0] for slot in pieces[1::2]]
    pieces[1::2] = [b"%d" if slot < _TEXTS else b"%b" for slot in slots]
    return b"".join(pieces), slots


if TYPE_CHECKING:
    from firebird_cdc.native._journal_files import fill_template
else:
    try:
        from firebird_cdc.native._journal_files import fill_template
    except ImportError:
        fill_template = plain_fill_template
