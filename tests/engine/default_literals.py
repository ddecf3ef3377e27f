"""Defaults of columns of every type: literals, and what is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_LARGEST_INT128 = 2**127 - 1

# SQL type: literals that it holds, as they stand in the definition of a table.
LITERALS: dict[str, Sequence[str]] = {
    "SMALLINT": ("0", "-32768", "32767", "'17'", "1.5", "-1.5", "0x7F"),
    "INTEGER": ("5", "-5", "2147483647", "' -12 '", "2.4", "1e3", "/* five */ 5 -- or so\n"),
    "BIGINT": ("9223372036854775807", "-9223372036854775808", "0xFFFFFFFFF", "'3'"),
    "INT128": (str(_LARGEST_INT128), str(-_LARGEST_INT128 - 1), "7"),
    "NUMERIC(4, 2)": ("1", "1.5", "-0.05", "327.67", "1.005", "-1.005", "'1.25'"),
    "DECIMAL(9, 3)": ("2147483.647", "0.0005", "12e2", "0"),
    "NUMERIC(18, 4)": ("922337203685477.5807", "-1.23456", ".5"),
    "NUMERIC(38, 20)": ("999999999999999999.99999999999999999999", "1"),
    "NUMERIC(9)": ("7", "7.5"),
    "FLOAT": ("0.1", "1e30", "-3", "'0.5'"),
    "DOUBLE PRECISION": (
        *("0.1", "1e5", "-1.5", "3", "1.7976931348623157e308", "5e-300", "1e100", "'2.5'"),
        *("3.141592653589793", "123456789012345678", "1.1e-7", "2.718281828459045e0"),
    ),
    "DECFLOAT(16)": ("1.50", "-7", "'1E+300'", "1234567890123456", "0.00"),
    "DECFLOAT(34)": ("1.234567890123456789012345678901234", "'9E-6000'", "100"),
    "BOOLEAN": ("TRUE", "FALSE", "'true'", "' False '"),
    "CHAR(5) CHARACTER SET UTF8": ("'жя'", "''", "'12345  '", "1.50"),
    "VARCHAR(20) CHARACTER SET UTF8": (
        *("'it''s'", "q'{it's}'", "''", "' 🍵 '", "_WIN1251 x'C6'", "x'D096'", "_UTF8 'Ж'"),
        *("5", "-1.50", ".5", "TRUE", "'NOW'", "'NULL'", "'CURRENT_USER'"),
    ),
    "VARCHAR(5) CHARACTER SET WIN1251": ("'Ёж '", "'a'", "_WIN1251 x'C6'", "x'C6'"),
    "CHAR(3) CHARACTER SET ISO8859_1": ("'é'",),
    "VARCHAR(6) CHARACTER SET NONE": ("'abc'", "'жя'"),
    "CHAR(6) CHARACTER SET NONE": ("'a'", "'жя'", "'жяж'"),
    "CHAR(4) CHARACTER SET OCTETS": ("x'00FF'", "'ab'", "x'01020304'"),
    "VARCHAR(4) CHARACTER SET OCTETS": ("x'FF0020'", "x''", "'Ж'"),
    "DATE": (
        *("DATE '2020-01-31'", "'2020-01-31'", "'31.12.1999'", "'12/31/1999'", "DATE '0001-01-01'"),
        "TIMESTAMP '2020-01-31 10:00'",
    ),
    "TIME": ("TIME '23:59:59.9999'", "'10:00'", "'1:02:03.5'"),
    "TIMESTAMP": (
        *("TIMESTAMP '2020-01-31 10:00:00.1234'", "'2020-01-31 10:00'", "'2020-01-31'"),
        *("DATE '2020-01-31'", "'31.01.2020 1:02:03'", "TIMESTAMP '1858-11-16 23:59'"),
    ),
    "TIME WITH TIME ZONE": ("TIME '10:00 +03:00'", "'01:00 +03:00'", "TIME '10:00 Europe/Berlin'"),
    "TIMESTAMP WITH TIME ZONE": (
        *("TIMESTAMP '2020-07-01 10:00 Europe/Berlin'", "'2020-01-01 01:00:00.5 +03:00'"),
        "TIMESTAMP '2020-01-01 23:00 -03:30'",
    ),
    "BLOB SUB_TYPE TEXT CHARACTER SET UTF8": ("'Ж'", "''"),
    "BLOB SUB_TYPE TEXT CHARACTER SET WIN1251": ("'Ж'",),
    "BLOB SUB_TYPE BINARY": ("x'00FF'", "x''"),
    "WORDS": ("", "'of its own'"),  # a domain with a default
}

# SQL type: what is no literal, or none that the type holds as it is.
NONE: dict[str, tuple[str, Sequence[str]]] = {
    "INTEGER": ("1", ("CURRENT_TRANSACTION", "CURRENT_CONNECTION")),
    "NUMERIC(4, 2)": ("1", ("'1.005'", "1.005e0")),
    "NUMERIC(18, 4)": ("1", ("123456789012.3457e0",)),
    "NUMERIC(38, 20)": ("1", ("1e0",)),  # the engine makes 0.99999999998338007040 of it
    "BIGINT": ("1", ("123456789012345678e0",)),
    "INT128": ("1", ("1e30",)),
    "FLOAT": ("1", ("-0",)),
    "DOUBLE PRECISION": ("1", ("3.14159265358979323846", "-0.0", "2.2250738585072011e-308")),
    "VARCHAR(99)": ("'a'", ("USER", "CURRENT_ROLE", "1e5", "1E50", "-1E400", "9" * 39)),
    "DATE": (
        "DATE '2020-01-01'",
        ("CURRENT_DATE", "'NOW'", "'TODAY'", "'tomorrow'", "'1-JAN-99'"),
    ),
    "TIME": ("TIME '1:00'", ("CURRENT_TIME", "LOCALTIME", "'NOW'")),
    "TIMESTAMP": (
        "TIMESTAMP '2020-01-01 10:00'",
        ("CURRENT_TIMESTAMP", "LOCALTIMESTAMP(2)", "'NOW'", "'yesterday'"),
    ),
    "TIMESTAMP WITH TIME ZONE": (
        "TIMESTAMP '2020-01-01 10:00 +01:00'",
        (
            *("'2020-01-01 10:00'", "TIMESTAMP '2020-01-01 10:00'", "'NOW'"),
            "'0001-01-01 00:30 +02:00'",  # in UTC before the first day that there is
        ),
    ),
    "TIME WITH TIME ZONE": ("TIME '10:00 +01:00'", ("'10:00'", "'10:00 Europe/Berlin'")),
    "VARCHAR(2000) CHARACTER SET OCTETS": ("'a'", (f"'{'x' * 1000}'",)),  # more than is read
}


def columns_of(defaults: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the definition of a column with each default by its name."""
    columns = {}
    for place, (kind, literals) in enumerate(defaults.items()):
        for number, literal in enumerate(literals):
            default = f"DEFAULT {literal}" if literal else ""
            columns[f"C{place}_{number}"] = f"{kind} {default} NOT NULL"
    return columns


def table_of(name: str, columns: Mapping[str, str]) -> str:
    """Return the statement that makes a table of COLUMNS, with a key before them."""
    fields = ", ".join(f"{column} {definition}" for column, definition in columns.items())
    return f"CREATE TABLE {name} (ID INTEGER NOT NULL PRIMARY KEY, {fields})"
