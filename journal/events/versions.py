"""In which form each version of ours writes messages.

What the ``source`` block names as ``version`` tells how a message was made. The shipper writes
today's form; an audit renders by the version in each message, so that it finds nothing to blame in
what versions before wrote. Whoever changes what messages look like adds a field here, whose value
before is that of `_BEFORE_0_2`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from firebird_cdc import __version__


@dataclass(frozen=True, slots=True)
class MessageForm:
    """Differences between messages of versions; each default is today's.

    ``envelope_version``: of the schema of events, as Debezium's ``Envelope`` has it; None: none.
    ``source_version``: of the schema of their source block, as in Debezium's ``SchemaFactory``.
    ``held_digits``: decimals declare the digits that their storage holds, and have no more; else
    those of their column, whatever they have.
    ``defaults``: schemas of fields have the defaults of columns.
    ``own_header_converter``: headers are as ``header.converter`` says; else the converter of keys
    writes those with a schema, and those of transforms are text.
    ``widens_null``: the field of a NULL is optional, also where the column's definition says NOT
    NULL; else it is null in a required field.
    ``snapshot_values``: what the schema of ``source.snapshot`` allows, in the order of Debezium's
    ``SnapshotRecord``.
    """

    envelope_version: int | None = 2
    source_version: int | None = 1
    held_digits: bool = True
    defaults: bool = True
    own_header_converter: bool = True
    widens_null: bool = True
    snapshot_values: str = (
        "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
    )


TODAY = MessageForm()

_BEFORE_0_2 = MessageForm(
    envelope_version=None,
    source_version=None,
    held_digits=False,
    defaults=False,
    own_header_converter=False,
    widens_null=False,
    snapshot_values="true,last,false,incremental",
)

# Each form with the version that began it, in order.
_FORMS = (((0,), _BEFORE_0_2), ((0, 2), TODAY))

EARLIER = tuple(form for _, form in _FORMS[:-1])
"""The forms before today's, the oldest first. A message names its version, which leads to a place
in here: only ever add behind what is there."""


def form_of(version: str) -> MessageForm:
    """Return the form in which VERSION of ours wrote; of one that is later than this, today's, as
    nothing is known of it here (`is_later` tells)."""
    numbers = _numbers(version)
    return next((form for since, form in reversed(_FORMS) if numbers >= since), TODAY)


def may_differ(key: bytes | None) -> bool:
    """Tell whether KEY, of a message in today's form, may have had other bytes in an earlier one:
    where it has the schema of a decimal with it, or the number of a schema in a registry."""
    if key is None:
        return False
    return key.startswith(b"\0") or (
        key.startswith(b'{"schema":') and b'"connect.decimal.precision":' in key
    )


def is_later(version: str) -> bool:
    """Tell whether VERSION is one after this."""
    return _numbers(version) > _numbers(__version__)


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that VERSION begins with: (0, 2, 0) of ``0.2.0.dev1``, () of ``?``."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
