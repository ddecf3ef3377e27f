"""Firebird's character sets: the numbers of RDB$CHARACTER_SETS and the Python codecs for them."""

from __future__ import annotations

import codecs

NONE = 0
OCTETS = 1
UTF8 = 4

# Number, the engine's name and aliases, Python codec (None: Python has none that is right).
# Numbers and names: src/intl/charsets.h and src/jrd/IntlManager.cpp of Firebird 5.0.
# The codecs are those that agree with Firebird 5.0.4's own conversion to UTF8, compared for
# every code of one and two bytes (tests/engine/test_charsets.py lists where they differ): hence
# shift_jisx0213 for SJIS, big5 and not cp950, cp874 for TIS620. Codes that a set doesn't
# define are refused here, while the engine makes NULs and U+FFFD of them.
_CHARSETS: tuple[tuple[int, tuple[str, ...], str | None], ...] = (
    (2, ("ASCII", "ASCII7", "USASCII"), "ascii"),
    (3, ("UNICODE_FSS", "UTF_FSS", "SQL_TEXT"), "utf-8"),
    (4, ("UTF8", "UTF-8"), "utf-8"),
    (5, ("SJIS_0208", "SJIS"), "shift_jisx0213"),
    (6, ("EUCJ_0208", "EUCJ"), "euc_jp"),
    (9, ("DOS737", "DOS_737"), "cp737"),
    (10, ("DOS437", "DOS_437"), "cp437"),
    (11, ("DOS850", "DOS_850"), "cp850"),
    (12, ("DOS865", "DOS_865"), "cp865"),
    (13, ("DOS860", "DOS_860"), "cp860"),
    (14, ("DOS863", "DOS_863"), "cp863"),
    (15, ("DOS775", "DOS_775"), "cp775"),
    (16, ("DOS858", "DOS_858"), "cp858"),
    (17, ("DOS862", "DOS_862"), "cp862"),
    (18, ("DOS864", "DOS_864"), "cp864"),
    (19, ("NEXT",), None),
    (21, ("ISO8859_1", "ISO88591", "LATIN1", "ANSI"), "latin-1"),
    (22, ("ISO8859_2", "ISO88592", "LATIN2", "ISO-8859-2"), "iso8859_2"),
    (23, ("ISO8859_3", "ISO88593", "LATIN3", "ISO-8859-3"), "iso8859_3"),
    (34, ("ISO8859_4", "ISO88594", "LATIN4", "ISO-8859-4"), "iso8859_4"),
    (35, ("ISO8859_5", "ISO88595", "ISO-8859-5"), "iso8859_5"),
    (36, ("ISO8859_6", "ISO88596", "ISO-8859-6"), "iso8859_6"),
    (37, ("ISO8859_7", "ISO88597", "ISO-8859-7"), "iso8859_7"),
    (38, ("ISO8859_8", "ISO88598", "ISO-8859-8"), "iso8859_8"),
    (39, ("ISO8859_9", "ISO88599", "LATIN5", "ISO-8859-9"), "iso8859_9"),
    (40, ("ISO8859_13", "ISO885913", "LATIN7", "ISO-8859-13"), "iso8859_13"),
    (44, ("KSC_5601", "KSC5601", "DOS_949", "WIN_949"), "cp949"),
    (45, ("DOS852", "DOS_852"), "cp852"),
    (46, ("DOS857", "DOS_857"), "cp857"),
    (47, ("DOS861", "DOS_861"), "cp861"),
    (48, ("DOS866", "DOS_866"), "cp866"),
    (49, ("DOS869", "DOS_869"), "cp869"),
    (50, ("CYRL",), "cp1251"),
    (51, ("WIN1250", "WIN_1250"), "cp1250"),
    (52, ("WIN1251", "WIN_1251"), "cp1251"),
    (53, ("WIN1252", "WIN_1252"), "cp1252"),
    (54, ("WIN1253", "WIN_1253"), "cp1253"),
    (55, ("WIN1254", "WIN_1254"), "cp1254"),
    (56, ("BIG_5", "BIG5", "DOS_950", "WIN_950"), "big5"),
    (57, ("GB_2312", "GB2312", "DOS_936", "WIN_936"), "gb2312"),
    (58, ("WIN1255", "WIN_1255"), "cp1255"),
    (59, ("WIN1256", "WIN_1256"), "cp1256"),
    (60, ("WIN1257", "WIN_1257"), "cp1257"),
    (63, ("KOI8R",), "koi8_r"),
    (64, ("KOI8U",), "koi8_u"),
    (65, ("WIN1258", "WIN_1258"), "cp1258"),
    (66, ("TIS620",), "cp874"),
    (67, ("GBK",), "gbk"),
    (68, ("CP943C",), "cp932"),
    (69, ("GB18030",), "gb18030"),
)
_CODEC_OF_NUMBER = {number: codec for number, _, codec in _CHARSETS}
_CODEC_OF_NAME = {name: codec for _, names, codec in _CHARSETS for name in names}
_NAME_OF_NUMBER = {NONE: "NONE", OCTETS: "OCTETS"} | {n: names[0] for n, names, _ in _CHARSETS}

# Python's codecs that may decode to one half of a surrogate pair, which no encoding can write.
_HALF_PAIRS = frozenset({"utf-7", "unicode-escape", "raw-unicode-escape", "punycode", "idna"})


def codec_of(charset_id: int) -> str | None:
    """Return the Python codec of RDB$CHARACTER_SET_ID, None if there is none that is right.

    NONE (0) and OCTETS (1) have none: the first says nothing about its bytes, the second
    is no text.
    """
    return _CODEC_OF_NUMBER.get(charset_id)


def name_of(charset_id: int) -> str:
    """Return the engine's name of a character set, ``charset N`` for an unknown number."""
    return _NAME_OF_NUMBER.get(charset_id, f"charset {charset_id}")


def find_codec(name: str) -> str | None:
    """Return the Python codec for a name of a character set, Firebird's or Python's.

    ``WIN1251``, ``ISO8859_1``, ``windows-1251`` and ``UTF-8`` are all understood; None if
    the name is unknown, or names something that doesn't decode bytes to text, or not to text
    that every converter can write.
    """
    codec = _CODEC_OF_NAME.get(name.upper())
    if codec is not None:
        return codec
    try:
        found = codecs.lookup(name)
        b"a".decode(found.name, "replace")
    except (LookupError, ValueError):
        return None
    return None if found.name.replace("_", "-") in _HALF_PAIRS else found.name
