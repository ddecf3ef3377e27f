"""CRC-32C, by google-crc32c where this Python has it compiled, else in plain Python.

Spark's executors get Python of ours and nothing compiled, so the format must be readable without.
In plain Python a checksum costs about 2 ns per byte of a whole block and 20 of a sector; byte by
byte through a table, which google-crc32c itself falls back to, it costs 130.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

POLYNOMIAL = 0x82F63B78
"""Castagnoli's, its bits reversed and without the highest, as RFC 3720 (iSCSI) uses it."""

FOLDS: tuple[tuple[int, tuple[int, ...]], ...] = (
    (6777, (484, 100, 0)),
    (290, (136, 113, 107, 32, 0)),
)
"""(a, (b, c, ..., 0)) for which x^a = x^b + x^c + ... + 1 modulo the polynomial; found by trying.

With few terms and all far below a, content shrinks by a few shifts of whole numbers of that
length. Squaring doubles all exponents, so that each of them serves every length from a on."""

_WHOLE = 0xFFFFFFFF
_SHORT = 64  # bytes; below, the table is as fast


def _table() -> tuple[int, ...]:
    entries = []
    for entry in range(256):
        for _ in range(8):
            entry = (entry >> 1) ^ (POLYNOMIAL if entry & 1 else 0)
        entries.append(entry)
    return tuple(entries)


_TABLE = _table()


def plain_extend(crc: int, content: bytes | bytearray | memoryview) -> int:
    """Return the checksum of what CRC is the checksum of, followed by CONTENT."""
    crc ^= _WHOLE
    if len(content) > _SHORT:
        content, crc = _folded(int.from_bytes(content, "little") ^ crc, len(content) * 8), 0
    table = _TABLE
    for byte in content:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ _WHOLE


def plain_value(content: bytes | bytearray | memoryview) -> int:
    """Return the checksum of CONTENT."""
    return plain_extend(0, content)


def _folded(bits: int, length: int) -> bytes:
    """Return short content that leaves the same remainder as BITS, LENGTH of them.

    The lowest bit is the first of the content, the highest power of x. One of power a + i equals
    those of power b + i, c + i, ...: so the lowest bits are cut off, and added further up.
    """
    for degree, powers in FOLDS:
        while length > 2 * degree:
            double = (length // degree).bit_length() - 1
            nearest = degree - powers[0]
            if double and length - (degree << double) < nearest << (double - 1):
                double -= 1
            cut = min(nearest << double, length - (degree << double))
            first = bits & ((1 << cut) - 1)
            bits >>= cut
            for power in powers:
                bits ^= first << (((degree - power) << double) - cut)
            length -= cut
    spare = -length % 8
    return (bits << spare).to_bytes((length + spare) // 8, "little")


if TYPE_CHECKING:
    extend, value = plain_extend, plain_value
    COMPILED = True
else:
    try:
        from google_crc32c.cext import extend, value

        COMPILED = True
    except ImportError:
        extend, value = plain_extend, plain_value
        COMPILED = False
