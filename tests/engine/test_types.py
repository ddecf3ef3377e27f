"""Every data type with its extremes: journals add up to what the driver reads from the table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest
from capture import Attachment, Capture
from exact import net, read

from firebird_cdc.journal.events.values import ValueModes, field_form
from firebird_cdc.journal.format import Undecodable

pytestmark = pytest.mark.engine


def _int128(value: int) -> str:
    return f"CAST('{value}' AS INT128)"


def _decimals(digits: int, least: int, most: int) -> list[str]:
    """Return DECFLOAT literals: signs, zeros, cohorts, extremes, subnormals and specials."""
    longest = "9." + "9" * (digits - 1)
    return [
        *("'0'", "'-0'", "'0E-3'", "'1.00'", "'-1E+2'", f"'0E{most}'", f"'-0E{least}'"),
        *(f"'{longest}E{most}'", f"'-{longest}E{most}'", f"'1E{least}'", f"'-7E{least}'"),
        *("'Infinity'", "'-Infinity'", "'NaN'", "'-NaN'", "'sNaN'", "'-sNaN'"),
    ]


# SQL type: values as SQL.
NUMBERS: dict[str, Sequence[str]] = {
    "SMALLINT": ("-32768", "32767", "0", "-1"),
    "INTEGER": ("-2147483648", "2147483647", "0"),
    "BIGINT": ("CAST('-9223372036854775808' AS BIGINT)", "9223372036854775807", "0"),
    "INT128": (_int128(-(2**127)), _int128(2**127 - 1), _int128(-(2**64)), "0"),
    "BOOLEAN": ("TRUE", "FALSE"),
    "DECFLOAT(16)": _decimals(16, -398, 384),
    "DECFLOAT(34)": _decimals(34, -6176, 6144),
    "DATE": ("DATE '0001-01-01'", "DATE '1858-11-16'", "DATE '9999-12-31'", "DATE '2024-02-29'"),
    "TIME": ("TIME '00:00:00'", "TIME '00:00:00.0001'", "TIME '23:59:59.9999'"),
    "TIMESTAMP": (
        "TIMESTAMP '0001-01-01 00:00:00'",
        "TIMESTAMP '1858-11-16 23:59:59.9999'",
        "TIMESTAMP '9999-12-31 23:59:59.9999'",
    ),
}
TEXTS: dict[str, Sequence[str]] = {
    "CHAR(1) CHARACTER SET UTF8": ("''", "' '", "'🍵'"),
    "CHAR(7) CHARACTER SET UTF8": ("''", "'жя 🍵'", "'🍵🍵🍵🍵🍵🍵🍵'", "'  x'"),
    "VARCHAR(7) CHARACTER SET UTF8": ("''", "'   '", "'жя '", "'🍵🍵🍵🍵🍵🍵🍵'"),
    "CHAR(5) CHARACTER SET UNICODE_FSS": ("''", "'жя'", "'яяяяя'"),
    "CHAR(3) CHARACTER SET WIN1251": ("''", "'я'", "'Ёж '", "'Ёжь'"),
    "VARCHAR(3) CHARACTER SET WIN1251": ("''", "'я '", "'Ёжь'"),
    "VARCHAR(9) CHARACTER SET WIN1251 COLLATE PXW_CYRL": ("'Ёжь'",),
    "CHAR(3) CHARACTER SET ISO8859_1": ("''", "'é'", "'ñ ÿ'"),
    "VARCHAR(3) CHARACTER SET ISO8859_1": ("''", "' ñ '"),
    "CHAR(4) CHARACTER SET SJIS_0208": ("''", "'茶'", "'茶茶'"),
    "CHAR(4) CHARACTER SET GB18030": ("''", "'茶'", "'茶ж茶ж'"),
    "CHAR(3) CHARACTER SET OCTETS": ("x''", "x'00'", "x'FFFE20'", "x'202020'"),
    "VARCHAR(3) CHARACTER SET OCTETS": ("x''", "x'00'", "x'FF0020'"),
    "CHAR(6) CHARACTER SET NONE": ("''", "'жя '"),
    "VARCHAR(6) CHARACTER SET NONE": ("''", "'жя '"),
    "BLOB SUB_TYPE TEXT CHARACTER SET UTF8": ("''", "'жя 🍵 '"),
    "BLOB SUB_TYPE TEXT CHARACTER SET WIN1251": ("''", "'Ёжь '"),
    "BLOB SUB_TYPE BINARY": ("x''", "x'00FF20'"),
}


def insert_values(
    attachment: Attachment, types: Mapping[str, Sequence[str]], table: str = "T"
) -> int:
    """Insert a row for each value of each type, into the columns C0, C1 and so on; return their
    number."""
    attachment.immediate("SET DECFLOAT TRAPS TO")
    number = 0
    for place, values in enumerate(types.values()):
        for value in values:
            attachment.execute(f"INSERT INTO {table} (ID, C{place}) VALUES ({number}, {value})")
            number += 1
    return number


def _work(attachment: Attachment, types: dict[str, Sequence[str]]) -> None:
    """Give T a row for each value of each type, then pass the values on, and delete some."""
    number = insert_values(attachment, types)
    attachment.commit()
    for place in range(len(types)):
        other = f"SELECT C{place} FROM T U WHERE U.ID = MOD(T.ID + 1, {number})"
        attachment.execute(f"UPDATE T SET C{place} = ({other})")
    attachment.commit()
    attachment.execute("DELETE FROM T WHERE MOD(ID, 3) = 0")
    attachment.commit()


@pytest.mark.parametrize("types", [NUMBERS, TEXTS], ids=["numbers", "texts"])
def test_folded_journals_equal_the_rows_read_by_the_driver(
    capture: Capture, types: dict[str, Sequence[str]]
) -> None:
    columns = ", ".join(f"C{place} {sql}" for place, sql in enumerate(types))
    capture.create(f"CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, {columns})")
    attachment = capture.attach()
    _work(attachment, types)
    journals = capture.journals()
    assert len(journals) == 3
    table = read(attachment, whole="C3" if "INT128" in types else "")
    assert len(table) > 15
    assert net(journals) == table


def test_decfloats_are_sent_as_the_engine_prints_them(capture: Capture) -> None:
    capture.create(
        "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, D DECFLOAT(34), E DECFLOAT(16))"
    )
    attachment = capture.attach()
    attachment.immediate("SET DECFLOAT TRAPS TO")
    texts = [*_decimals(34, -6176, 6144), *_decimals(16, -398, 384), "'0.000001'", "'0.0000001'"]
    for number, text in enumerate(texts):
        attachment.execute(f"INSERT INTO T VALUES ({number}, {text}, {text})")
    attachment.commit()
    printed = "SELECT CAST(D AS VARCHAR(60)) D, CAST(E AS VARCHAR(60)) E FROM T ORDER BY ID"
    [journal] = capture.journals()
    sent = []
    for change in journal.rows:
        assert change.after is not None
        forms = [field_form(c, ValueModes(decimal="string")) for c in change.table.columns[1:]]
        values = zip(forms, change.after[1:], strict=True)
        sent.append([form.function()(value) for form, value in values if form])
    assert sent == [list(row.values()) for row in attachment.execute(printed)]


FLOATS = (0.0, -0.0, math.nan, math.inf, -math.inf)
DOUBLES = (*FLOATS, 5e-324, -2.2250738585072014e-308, 1.7976931348623157e308, 0.1)
SINGLES = (*FLOATS, 1.401298464324817e-45, -1.1754943508222875e-38, 3.4028234663852886e38, 0.1)


def test_floats_come_bit_by_bit(capture: Capture) -> None:
    capture.create("CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, D DOUBLE PRECISION, F FLOAT)")
    attachment = capture.attach()
    for number, values in enumerate(zip(DOUBLES, SINGLES, strict=True)):
        attachment.execute("INSERT INTO T VALUES (?, ?, ?)", number, *values)
    attachment.commit()
    attachment.execute("UPDATE T SET ID = ID + 100")
    attachment.commit()
    first, _ = capture.journals()
    found = [change.after[1] for change in first.rows if change.after]
    assert list(map(repr, found)) == list(map(repr, DOUBLES))
    assert net(capture.journals()) == read(attachment)


def _digits(precision: int, scale: int) -> list[str]:
    whole, part = "9" * (precision - scale) or "0", "9" * scale
    largest = f"{whole}.{part}" if scale else whole
    return [largest, f"-{largest}", "0", str(Decimal(1).scaleb(-scale)), ""]


@pytest.mark.parametrize("kind", ["NUMERIC", "DECIMAL"])
def test_numerics_of_every_precision_and_scale_are_captured(capture: Capture, kind: str) -> None:
    """Also a table of 779 columns."""
    types = [(precision, scale) for precision in range(1, 39) for scale in range(precision + 1)]
    columns = ", ".join(f"C{p}_{s} {kind}({p}, {s})" for p, s in types)
    capture.create(f"CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, {columns})")
    attachment = capture.attach()
    for number, values in enumerate(zip(*(_digits(p, s) for p, s in types), strict=True)):
        literals = ", ".join(f"'{value}'" if value else "NULL" for value in values)
        attachment.execute(f"INSERT INTO T VALUES ({number}, {literals})")
    attachment.commit()
    [journal] = capture.journals()
    assert net([journal]) == read(attachment)
    shown = [(c.precision, -c.scale, c.sub_type) for c in journal.rows[0].table.columns[1:]]
    assert shown == [(p, s, 1 if kind == "NUMERIC" else 2) for p, s in types]


def test_types_of_dialect_1_are_captured(capture: Capture) -> None:
    columns = {
        "N4": ("NUMERIC(4, 1)", "-999.9"),
        "N9": ("DECIMAL(9, 9)", "0.123456789"),
        "N15": ("NUMERIC(15, 2)", "-1234567890123.25"),
        "N18": ("NUMERIC(18, 4)", "0.5"),
        "D": ("DATE", "'9999-12-31 23:59:59.9999'"),
        "V": ("VARCHAR(3)", "'жя'"),
    }
    client = capture.client()
    made = client.attach(capture.database, create=True, dialect=1)
    declared = ", ".join(f"{name} {sql}" for name, (sql, _) in columns.items())
    made.script(
        f"CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, {declared})",
        "ALTER DATABASE INCLUDE ALL TO PUBLICATION",
        "ALTER DATABASE ENABLE PUBLICATION",
    )
    made.close()
    attachment = client.attach(capture.database, dialect=1)
    attachment.execute(f"INSERT INTO T VALUES (1, {', '.join(v for _, v in columns.values())})")
    attachment.execute("INSERT INTO T (ID, N15, N18) VALUES (2, 0.1, -0.0001)")
    attachment.execute("UPDATE T SET N9 = NULL, N15 = N15 * 3")
    attachment.commit()
    [journal] = capture.journals()
    assert net([journal]) == read(attachment)
    shown = {c.name: (c.sql_type, c.scale) for c in journal.rows[0].table.columns}
    assert shown["N15"] == (480, -2)  # a DOUBLE, unlike in dialect 3
    assert shown["D"] == (510, 0)  # a TIMESTAMP


# Gaps and overlaps of summer time, offsets to the minute, the ends of the calendar.
MOMENTS = (
    "2026-03-29 02:30:00 Europe/Prague",
    "2026-10-25 02:30:00 Europe/Prague",
    "2026-10-25 01:30:00 GMT",
    "1910-01-01 12:00:00.0001 Europe/Amsterdam",
    "2026-07-01 00:00:00 +14:00",
    "2026-07-01 00:00:00 -13:59",
    "0001-01-01 00:00:00 -01:00",
    "0001-01-01 00:00:00 GMT",
    "9999-12-31 23:59:59.9999 GMT",
    "9999-12-31 23:59:59.9999 Australia/Lord_Howe",
)


def test_times_with_zones_keep_instant_and_zone(capture: Capture) -> None:
    capture.create(
        "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY,"
        " M TIMESTAMP WITH TIME ZONE, T TIME WITH TIME ZONE)"
    )
    attachment = capture.attach()
    for number, moment in enumerate(MOMENTS):
        clock = moment.partition(" ")[2]
        attachment.execute(f"INSERT INTO T VALUES ({number}, '{moment}', '{clock}')")
    attachment.execute("INSERT INTO T (ID) VALUES (99)")
    attachment.commit()
    attachment.execute("UPDATE T SET M = M AT TIME ZONE 'Asia/Kathmandu' WHERE MOD(ID, 2) = 0")
    attachment.commit()
    # The engine's own conversion to UTC, and its name for the zone.
    table = read(
        attachment,
        "SELECT ID, CAST(M AT TIME ZONE 'GMT' AS TIMESTAMP) AS M,"
        " CAST(T AT TIME ZONE 'GMT' AS TIME) AS T,"
        " TRIM(SUBSTRING(CAST(M AS VARCHAR(60)) FROM 26)) AS M_ZONE,"
        " SUBSTRING(CAST(T AS VARCHAR(60)) FROM 15) AS T_ZONE FROM T",
    )
    zones = attachment.execute(
        "SELECT RDB$TIME_ZONE_ID AS ID, TRIM(RDB$TIME_ZONE_NAME) AS NAME FROM RDB$TIME_ZONES"
    )
    names = {zone["ID"]: zone["NAME"] for zone in zones}
    assert net(capture.journals(), zones=names) == table


# Character set: most characters, one of them in it, and as it has to come out.
WIDE: dict[str, tuple[int, str, str | bytes]] = {
    "UTF8": (8191, "F09F8DB5", "🍵"),
    "WIN1251": (32765, "E6", "ж"),
    "NONE": (32765, "7A", "z"),
    "OCTETS": (32765, "AB", b"\xab"),
}


@pytest.mark.parametrize("kind", ["CHAR", "VARCHAR"])
def test_widest_texts_are_captured_whole(capture: Capture, kind: str) -> None:
    """Not against the driver: through a UTF8 attachment it gets 8,191 characters at most."""
    capture.create(
        *(
            f"CREATE TABLE {name} (ID INTEGER NOT NULL PRIMARY KEY,"
            f" C {kind}({size}) CHARACTER SET {name})"
            for name, (size, _, _) in WIDE.items()
        )
    )
    attachment = capture.attach()
    expected = []
    for name, (size, code, letter) in WIDE.items():
        pad = b"\0" if isinstance(letter, bytes) else " "
        for number, length in enumerate((0, 1, size - 1, size)):
            text = f"LPAD(_{name} x'', {length}, _{name} x'{code}')"
            attachment.execute(f"INSERT INTO {name} VALUES ({number}, {text})")
            value: Any = letter * length
            if kind == "CHAR":
                value = value.ljust(size, pad)
            expected.append(("c", None, {"ID": number, "C": value}))
    attachment.commit()
    # Not by assert: to tell the difference of such texts takes minutes.
    if capture.last_rows() != expected:
        pytest.fail("a wide text differs")


@pytest.mark.parametrize("client", ["UTF8", "WIN1251", "ISO8859_1", "NONE"])
def test_columns_of_other_character_sets_than_the_attachments(
    capture: Capture, client: str
) -> None:
    columns = [
        (kind, charset, codec)
        for kind in ("CHAR(4)", "VARCHAR(4)", "BLOB SUB_TYPE TEXT")
        for charset, codec in (
            *(("UTF8", "utf-8"), ("WIN1251", "cp1251"), ("ISO8859_1", "latin-1")),
            *(("NONE", "koi8_r"), ("OCTETS", "utf-16-le")),
        )
        if not (kind.startswith("BLOB") and charset == "OCTETS")
    ]
    declared = ", ".join(f"C{n} {k} CHARACTER SET {c}" for n, (k, c, _) in enumerate(columns))
    capture.create(f"CREATE TABLE T ({declared})")
    attachment = capture.client().attach(capture.database, charset=client)

    def text(charset: str) -> str:
        return "éÿ" if charset == "ISO8859_1" else "жя"

    values = ", ".join(
        f"_{charset} x'{text(charset).encode(codec).hex()}'" for _, charset, codec in columns
    )
    attachment.execute(f"INSERT INTO T VALUES ({values})")
    # Through the attachment's character set, as far as it goes.
    if client in ("UTF8", "WIN1251"):
        attachment.execute("UPDATE T SET C0 = ?, C1 = ?", "Ёж", "Ёж")
    attachment.commit()
    [journal] = capture.journals()

    def expected(place: int, kind: str, charset: str, codec: str) -> Any:
        raw = text(charset).encode(codec)
        if charset == "NONE":  # and no valid UTF-8: it comes as it is
            return raw if kind.startswith("BLOB") else Undecodable(raw, 0)
        if charset == "OCTETS":
            return raw
        return text(charset).ljust(4) if kind.startswith("CHAR") else text(charset)

    row = {f"C{place}": expected(place, *column) for place, column in enumerate(columns)}
    changes = [("c", None, row)]
    if client in ("UTF8", "WIN1251"):
        changes.append(("u", row, row | {"C0": "Ёж  ", "C1": "Ёж  "}))
    assert journal.brief() == changes
