"""Our codecs against the engine's own conversion to UTF8, for every character set it has."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from firebird_cdc.journal.format import charsets

if TYPE_CHECKING:
    from firebird_cdc.demo.engine import EmbeddedRoot

pytestmark = pytest.mark.engine

# Codes that the engine reads as another character than Python's codec, and why we live with it.
DIFFERENT = {
    "EUCJ_0208": {"a1c0"},  # full-width backslash, to the engine a plain one
    "ISO8859_7": {"a1", "a2"},  # quotes of the 2003 edition, to the engine those of 1987
    "ISO8859_8": {"af"},  # macron, to the engine an overline
    "KOI8U": {"ae", "be"},  # box drawing, to the engine Belarusian letters
    "CP943C": {"1a", "1c", "7f"},  # control characters, which IBM permutes
    "GB18030": {"a8bc"},  # a private character until Unicode got a real one
}
# Codes that Python's codec refuses, so that a reader gets bytes; all are mistakes or controls.
REFUSED = {
    "SJIS_0208": {f"{lead:02x}7f" for lead in (*range(0x81, 0xA0), *range(0xE0, 0xEB))},
    "TIS620": {f"{code:02x}" for code in range(0x81, 0xA0)},
    "GBK": {"80"},
}
# Character sets without a codec, whose texts come as Undecodable.
WITHOUT_CODEC = {"NONE", "OCTETS", "NEXT"}

# Runs in a process of its own, since the engine finds its libraries by environment variables.
_ASK_THE_ENGINE = """
import json, sys
from firebird.driver import create_database, driver_config

driver_config.fb_client_library.value = sys.argv[1]
connection = create_database(sys.argv[2], user="SYSDBA", charset="UTF8")
cursor = connection.cursor()
cursor.execute(
    "select rdb$character_set_id, trim(rdb$character_set_name), rdb$bytes_per_character"
    " from rdb$character_sets"
)
answer = {}
for number, name, width in cursor.fetchall():
    found = {}
    answer[name] = [number, found]
    if name in ("NONE", "OCTETS", "UTF8", "UNICODE_FSS"):
        continue
    leads = [None] if width == 1 else [None, *range(0x81, 0xFF)]
    for lead in leads:
        prefix = "" if lead is None else f"ascii_char({lead}) || "
        cursor.execute(f'''
            execute block returns (code int, text varchar(4) character set utf8) as
                declare raw varchar(2) character set octets;
                declare own varchar(2) character set {name};
            begin
                code = {0 if lead is None else 0x40};
                while (code <= 255) do
                begin
                    text = null;
                    begin
                        raw = {prefix} ascii_char(code);
                        own = raw;
                        text = cast(own as varchar(4) character set utf8);
                        when any do text = null;
                    end
                    suspend;
                    code = code + 1;
                end
            end''')
        for code, text in cursor.fetchall():
            if text is not None:
                found[("" if lead is None else f"{lead:02x}") + f"{code:02x}"] = text
json.dump(answer, sys.stdout)
connection.drop_database()
"""


def _is_defined(code: str, text: str) -> bool:
    """Say whether the engine knows the code: for others it makes NUL, U+FFFD or private ones."""
    private = any(0xE000 <= ord(character) <= 0xF8FF for character in text)
    one = len(text) == 1 and text != "\ufffd" and not private
    return one and (text != "\0" or code == "00")


def test_texts_are_decoded_as_the_engine_itself_converts_them(engine_root: EmbeddedRoot) -> None:
    script = [sys.executable, "-c", _ASK_THE_ENGINE]
    arguments = [str(engine_root.client_library), str(engine_root.path / "charsets.fdb")]
    asked = subprocess.run(
        script + arguments, env=engine_root.environment(), stdout=subprocess.PIPE, check=True
    )
    answer: dict[str, tuple[int, dict[str, str]]] = json.loads(asked.stdout)
    assert len(answer) > 50
    different: dict[str, set[str]] = {}
    refused: dict[str, set[str]] = {}
    without = set()
    for name, (number, texts) in answer.items():
        assert charsets.name_of(number) == name
        codec = charsets.codec_of(number)
        assert charsets.find_codec(name) == codec
        if codec is None:
            without.add(name)
            continue
        for code, text in texts.items():
            if _is_defined(code, text):
                try:
                    if bytes.fromhex(code).decode(codec) != text:
                        different.setdefault(name, set()).add(code)
                except UnicodeDecodeError:
                    refused.setdefault(name, set()).add(code)
    assert different == DIFFERENT
    assert refused.keys() == REFUSED.keys()
    assert all(codes <= REFUSED[name] for name, codes in refused.items())
    assert without == WITHOUT_CODEC
