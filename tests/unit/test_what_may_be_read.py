"""Questions that the socket of `bridge.reading` answers: SELECTs that only read."""

from __future__ import annotations

import time

import pytest

from firebird_cdc.bridge.reading import has_count, is_read_only, is_select
from firebird_cdc.journal.folder.reading_socket import MOST_QUESTION
from firebird_cdc.journal.snapshot.statements import read_only_snapshot

_AT_NUMBER = bytes((23, 8)) + (1234).to_bytes(8, "little")
_READ = bytes((3, 2, 6, 8))


@pytest.mark.parametrize(
    ("parameters", "allowed"),
    [
        (read_only_snapshot(), True),
        (_READ, True),
        (_READ + _AT_NUMBER, True),
        (bytes((3, 2, 6, 9)), False),  # isc_tpb_write
        (bytes((3, 2, 6)), False),  # writes by default
        (bytes((3, 2, 6, 8, 9)), False),
        (bytes((3, 15, 6, 8)), False),  # read committed
        (bytes((3, 2, 6, 8, 10, 1, 65, 11)), False),  # a lock of table A
        (bytes((1, 2, 6, 8)), False),
        (_READ + _AT_NUMBER[:-1], False),
        (bytes((3, 23, 9)) + bytes(9) + b"\x08", False),
        (b"", False),
    ],
)
def test_transactions_are_snapshots_that_only_read(parameters: bytes, allowed: bool) -> None:
    assert is_read_only(parameters) is allowed


@pytest.mark.parametrize(
    ("sql", "selects", "counts"),
    [
        ("SELECT 1 FROM T", True, False),
        (
            " /* it's ** mine */\n-- yes\n with A AS (SELECT 1 X FROM T) SELECT X FROM A",
            True,
            False,
        ),
        ("SELECTED", False, False),
        ("-- SELECT", False, False),
        ("/* SELECT", False, False),
        ("(SELECT 1 FROM T)", False, False),
        ("EXECUTE PROCEDURE P", False, False),
        ("SELECT GEN_ID(G, 1) FROM T", True, True),
        ("SELECT next/* -- */value FOR G FROM T", True, True),
        ('SELECT "GEN_ID", "NEXT", "VALUE" FROM T', True, False),
        ("SELECT ID FROM T WHERE A = 'value' ORDER BY NEXT", True, False),
        ("SELECT NEXT_ID, GEN_IDS, VALUES_ FROM T", True, False),
    ],
)
def test_statements_are_selects_without_sequences(sql: str, selects: bool, counts: bool) -> None:
    assert (is_select(sql.encode()), has_count(sql.encode())) == (selects, counts)


@pytest.mark.parametrize(
    "piece", ["/*", "/**/", "/* ", "--\n", " ", "NEXT/*", "NEXT/**/", "EXECUTE BLOCK ", "*/ -- \n"]
)
def test_looking_at_a_long_text_takes_no_time(piece: str) -> None:
    """The server's threads have the interpreter's lock in turn."""
    sql = (piece * MOST_QUESTION)[:MOST_QUESTION].encode()
    began = time.thread_time()
    is_select(sql)
    has_count(sql)
    assert time.thread_time() - began < 1
