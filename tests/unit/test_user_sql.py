"""SQL of users: the character set of its literals, and what begins as a SELECT."""

from __future__ import annotations

import pytest

from firebird_cdc.journal.snapshot.queries import is_select, with_character_set


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("A = 'x'", "A = 'x'"),
        ("A = 'ж'", "A = _UTF8 'ж'"),
        ("A = 'it''s ж' OR B='ё'", "A = _UTF8 'it''s ж' OR B=_UTF8 'ё'"),
        ("A = q'{it's ж}' || Q'!'ё!'", "A = _UTF8 q'{it's ж}' || _UTF8 Q'!'ё!'"),
        ("A = _WIN1251 'ж' OR A = 'ж'", "A = _WIN1251 'ж' OR A = _UTF8 'ж'"),
        ("A = _utf8'ж'", "A = _utf8'ж'"),
        ("\"ж 'ж'\" = 'x'", "\"ж 'ж'\" = 'x'"),
        ("A = 1 -- 'ж'\n OR A = 'ж'", "A = 1 -- 'ж'\n OR A = _UTF8 'ж'"),
        ("A = /* 'ж'\n */ 'ж'", "A = /* 'ж'\n */ _UTF8 'ж'"),
        ("A = _WIN1251 'it''s ж'", "A = _WIN1251 'it''s ж'"),
        ("A = _WIN1251 q'{ж's}'", "A = _WIN1251 q'{ж's}'"),
        ("A = 'ж", "A = 'ж"),
    ],
)
def test_literals_with_more_than_ascii_get_their_character_set(given: str, expected: str) -> None:
    assert with_character_set(given) == expected


@pytest.mark.parametrize("sql", ["SELECT 1", " \nselect\t1", "With A AS (SELECT 1)", "SELECT(1)"])
def test_statement_that_selects_is_accepted(sql: str) -> None:
    assert is_select(sql)


@pytest.mark.parametrize("sql", ["", "SELECTED", "-- x\nSELECT 1", "INSERT", "EXECUTE BLOCK"])
def test_statement_that_is_no_select_is_refused(sql: str) -> None:
    assert not is_select(sql)
