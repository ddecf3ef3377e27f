"""Numbers, dates and times as texts, where journals and messages write them alike."""

from __future__ import annotations

import struct
from datetime import date
from functools import lru_cache

UNIX_DAY = 40587
"""Firebird's number of the day 1970-01-01."""

UNITS_PER_DAY = 864_000_000
"""Times are in 1/10000 s."""

UNIX_UNITS = UNIX_DAY * UNITS_PER_DAY

ORDINAL_OF_DAY_0 = date(1858, 11, 17).toordinal()
"""Python's number of Firebird's day 0."""

_LAST_ORDINAL = date.max.toordinal()
_DAYS_OF_400_YEARS = 146_097

_single = struct.Struct("<f").pack

TIME_TZ = struct.Struct("<IH")
"""Form of TIME WITH TIME ZONE in a journal: units since midnight in UTC, and the zone."""

TIMESTAMP_TZ = struct.Struct("<qH")
"""Form of TIMESTAMP WITH TIME ZONE in a journal: units since day 0 in UTC, and the zone."""


def shortest_float(value: float) -> float:
    """The double with the fewest decimal digits that is the same as VALUE in 32 bits.

    So 0.1 in a FLOAT is shown as 0.1 rather than as the double 0.10000000149011612. Each number
    of digits is tried with the nearest decimal. Infinities and NaN come back as they are.
    """
    shown = float(f"{value:.6g}")
    if shown == value or _single(shown) == _single(value):
        return shown
    for digits in (7, 8):
        shown = float(f"{value:.{digits}g}")
        if _single(shown) == _single(value):
            return shown
    return float(f"{value:.9g}")


def plain_decimal(unscaled: int, scale: int) -> str:
    """Plain notation with SCALE digits behind the point."""
    if scale <= 0:
        return str(unscaled * 10**-scale)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    return f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


@lru_cache(maxsize=4096)
def iso_date(day: int) -> str:
    """``2026-03-02`` for Firebird's day number; beyond the years 1 to 9999 with a sign.

    A value with a time zone can lie there in UTC: the last hours of 9999 in a zone west of it.
    """
    ordinal = day + ORDINAL_OF_DAY_0
    if 1 <= ordinal <= _LAST_ORDINAL:
        return date.fromordinal(ordinal).isoformat()
    cycles, rest = divmod(ordinal - 1, _DAYS_OF_400_YEARS)
    inside = date.fromordinal(rest + 1)
    year = inside.year + 400 * cycles
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    return f"{sign}{abs(year):04}-{inside.month:02}-{inside.day:02}"


# All that there are: to look them up takes half the time of writing them.
_MINUTES = tuple(f"{minute // 60:02}:{minute % 60:02}:" for minute in range(24 * 60))
_SECONDS = tuple(f"{second:02}" for second in range(60))
_FRACTIONS = ("", *(f".{fraction:04}".rstrip("0") for fraction in range(1, 10_000)))


def iso_time(units: int) -> str:
    """``09:14:07.1234`` for 1/10000 s since midnight; no fraction where it is zero."""
    seconds = units // 10_000
    try:
        return _MINUTES[seconds // 60] + _SECONDS[seconds % 60] + _FRACTIONS[units % 10_000]
    except IndexError:  # no engine writes that, but a forged journal is to be shown all the same
        hours, rest = divmod(units, 36_000_000)
        return f"{hours:02}{iso_time(rest)[2:]}"


def iso_timestamp(units: int) -> str:
    """``2026-03-02T09:14:07.1234`` for 1/10000 s since 1858-11-17."""
    day, time = divmod(units, UNITS_PER_DAY)
    return f"{iso_date(day)}T{iso_time(time)}"
