"""DECFLOAT(16) and DECFLOAT(34) as the engine stores them: IEEE 754 decimals in DPD encoding.

Source: IEEE 754-2008, 3.5.2 (interchange format, densely packed decimal).
"""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple


class _Format(NamedTuple):
    exponent_bits: int  # of the exponent continuation field
    declets: int  # groups of three digits after the leading digit
    bias: int


_FORMATS = {8: _Format(8, 5, 398), 16: _Format(12, 11, 6176)}


def _declet(bits: int) -> int:
    """Return the number 0..999 that ten densely packed bits stand for."""
    p, s = bits >> 7 & 7, bits >> 4 & 7  # the first two groups of three bits
    r, u, y = p & 1, s & 1, bits & 1
    pq, st = p & 6, s & 6
    if not bits & 8:
        hundreds, tens, ones = p, s, bits & 7
    elif bits & 6 == 0:
        hundreds, tens, ones = p, s, 8 + y
    elif bits & 6 == 2:
        hundreds, tens, ones = p, 8 + u, st | y
    elif bits & 6 == 4:
        hundreds, tens, ones = 8 + r, s, pq | y
    elif st == 0:
        hundreds, tens, ones = 8 + r, 8 + u, pq | y
    elif st == 2:
        hundreds, tens, ones = 8 + r, pq | u, 8 + y
    elif st == 4:
        hundreds, tens, ones = p, 8 + u, 8 + y
    else:
        hundreds, tens, ones = 8 + r, 8 + u, 8 + y
    return hundreds * 100 + tens * 10 + ones


_DECLETS = tuple(_declet(bits) for bits in range(1024))
_BITS = {number: bits for bits, number in reversed(tuple(enumerate(_DECLETS)))}


def split_decfloat(raw: bytes) -> tuple[int, int, int] | str:
    """Return sign (1: negative), coefficient and exponent of 8 or 16 bytes in x86 byte order.

    For what is no number its name, as Firebird prints it: ``Infinity``, ``-Infinity``, ``NaN``,
    ``sNaN``; a NaN's payload is left out.
    """
    exponent_bits, declets, bias = _FORMATS[len(raw)]
    word = int.from_bytes(raw, "little")
    coefficient_bits = 10 * declets
    sign = word >> (len(raw) * 8 - 1)
    combination = word >> (coefficient_bits + exponent_bits) & 0b11111
    if combination >= 0b11110:
        signalling = word >> (coefficient_bits + exponent_bits - 1) & 1
        special = "Infinity" if combination == 0b11110 else "sNaN" if signalling else "NaN"
        return f"{'-' if sign else ''}{special}"
    if combination >> 3 == 0b11:
        high, digit = combination >> 1 & 0b11, 8 + (combination & 1)
    else:
        high, digit = combination >> 3, combination & 0b111
    exponent = (high << exponent_bits) | (word >> coefficient_bits & ((1 << exponent_bits) - 1))
    coefficient = digit * 1000**declets
    # From the last digits on, as most numbers have few of them.
    rest, unit = word & ((1 << coefficient_bits) - 1), 1
    while rest:
        coefficient += _DECLETS[rest & 1023] * unit
        rest >>= 10
        unit *= 1000
    return sign, coefficient, exponent - bias


def decode_decfloat(raw: bytes) -> Decimal:
    """Return the exact value, exponent included, of 8 or 16 bytes in x86 byte order.

    Sign, exponent and trailing zeros are kept, so that ``str()`` gives what Firebird prints.
    Infinities and NaNs come as the Decimal of that name; a NaN's payload is left out.
    """
    parts = split_decfloat(raw)
    if isinstance(parts, str):
        return Decimal(parts)
    sign, coefficient, exponent = parts
    return Decimal(f"{'-' if sign else ''}{coefficient}E{exponent}")


def encode_decfloat(value: Decimal, size: int) -> bytes | None:
    """Return a finite VALUE as the engine stores it in 8 or 16 bytes, its exponent kept; None if
    it has more digits, or an exponent, than fit."""
    exponent_bits, declets, bias = _FORMATS[size]
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or len(digits) > 3 * declets + 1:
        return None
    biased = exponent + bias
    if not 0 <= biased < 3 << exponent_bits:
        return None
    rest, coefficient = int("".join(map(str, digits)) or "0"), 0
    for place in range(declets):
        rest, group = divmod(rest, 1000)
        coefficient |= _BITS[group] << 10 * place
    high, low = biased >> exponent_bits, biased & ((1 << exponent_bits) - 1)
    combination = 0b11000 | high << 1 | rest - 8 if rest > 7 else high << 3 | rest
    word = (sign << 5 | combination) << exponent_bits | low
    return (word << 10 * declets | coefficient).to_bytes(size, "little")
