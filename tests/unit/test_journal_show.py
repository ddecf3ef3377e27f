"""``firebird-cdc journal show`` on whole journals and on each kind of broken one."""

from __future__ import annotations

import argparse
import json
import zipfile
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from firebird_cdc.cli import main
from firebird_cdc.errors import JournalError
from firebird_cdc.journal.folder.ledger_records import LedgerEntry, LedgerRecord
from firebird_cdc.journal.folder.segments import close_segments
from firebird_cdc.journal.format import (
    Column,
    JournalWriter,
    SharedJournal,
    SharedJournalWriter,
    Storage,
    TransactionWriter,
    Undecodable,
)
from firebird_cdc.journal.shipper.commands import show

VECTORS = Path(__file__).parent.parent / "vectors"


def _place(vector: str, folder: Path, name: str = "journal.log.live") -> Path:
    *lines, length = (VECTORS / f"{vector}.hex").read_text(encoding="ascii").splitlines()
    content = bytearray(int(length, 16))
    for line in lines:
        offset, piece = line.split()
        content[int(offset, 16) : int(offset, 16) + len(piece) // 2] = bytes.fromhex(piece)
    path = folder / name
    path.write_bytes(content)
    return path


def _show(path: Path, *options: str) -> int:
    parser = argparse.ArgumentParser()
    show.register(parser.add_subparsers())
    return show.run(parser.parse_args(["show", str(path), *options]))


def test_a_whole_journal_is_readable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _place("every-record", tmp_path, "journal.log")
    assert _show(path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("00112233-4455-6677-8899-aabbccddeeff, transaction 4711")
    assert any(
        "ticket 13190321785" in line and "2026-09-21T14:13:20.002000Z" in line for line in lines
    )
    assert any("sequence 42" in line for line in lines)
    assert any("/data/shop.fdb" in line for line in lines)
    assert "        1 insert GOODS: ID=1, NAME='a', PRICE=0.01" in lines
    assert (
        "        4 update GOODS: ID=1, NAME='a', PRICE=0.01, "
        "NOTE=NULL -> <blob 1, 4 bytes: 'not'...>" in lines
    )
    assert "          sequence GEN_GOODS: 1099511627776" in lines
    assert "        3 GAP: the content of an array could not be read: её нет" in lines
    assert lines[-1] == f"whole: 7 changes, {path.stat().st_size} bytes up to the end of its seal"


def test_values_of_all_types_are_readable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _place("every-storage", tmp_path)
    assert _show(path, "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    first = rows[2]["after"]
    assert first["DATE"] == "0001-01-01"
    assert first["TIME"] == "23:59:59.9999"
    assert first["TIMESTAMP"] == "2025-11-21T00:00:00.0001"
    assert first["INT128"] == str(-(2**127))
    assert first["BOOLEAN"] is True
    assert first["TEXT"] == "Москва"
    assert first["OCTETS"] == {"hex": "00ff0020"}
    assert first["ARRAY"] == {"length": 256, "available": True, "start": bytes(range(32)).hex()}
    assert set(rows[4]["after"].values()) == {None}
    assert rows[-1] == {"state": "whole", "changes": 3, "length": path.stat().st_size}


@pytest.mark.parametrize(
    ("vector", "name", "code", "last"),
    [
        ("torn-tail", "j.log.live", 0, "torn at byte 1992: the file ends inside the block; the jo"),
        ("torn-tail", "j.log", 1, "torn at byte 1992: "),
        ("header-only", "j.log.live", 0, "torn at byte 1536: "),
        ("empty", "j.log.live", 0, "empty: nothing has been written to it yet"),
        ("empty", "j.log", 1, "empty: "),
        ("wrong-magic", "j.log.live", 1, "corrupt at byte 0: this is not a journal"),
        ("unsupported-version", "j.log", 1, "corrupt at byte 8: journal format 3 is not known"),
        ("flipped-byte-in-payload", "j.log", 1, "corrupt at byte 1766: "),
        ("stamped-and-cut", "j.log", 1, "corrupt at byte 1992: "),
    ],
)
def test_last_line_and_exit_status_tell_the_state_of_the_journal(
    vector: str,
    name: str,
    code: int,
    last: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = _place(vector, tmp_path, name)
    assert _show(path) == code
    assert capsys.readouterr().out.splitlines()[-1].startswith(last)
    assert _show(path, "--json") == code
    outcome = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert outcome["state"] == last.split(" ")[0].rstrip(":")


def test_limit_prints_fewer_changes_but_checks_the_whole_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _place("flipped-byte-in-payload", tmp_path)
    assert _show(path, "--limit", "1") == 1
    out = capsys.readouterr().out
    assert out.count(" insert ") == 1
    assert out.splitlines()[-1].startswith("corrupt at byte 1766")
    path = _place("every-record", tmp_path)
    assert _show(path, "--limit", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].strip() == "... and 5 more"
    assert lines[-1].startswith("whole: 7 changes")


def _column(name: str, storage: Storage, **more: Any) -> Column:
    fields: dict[str, Any] = {
        "sql_type": 0,
        "sub_type": 0,
        "scale": 0,
        "length": 0,
        "charset_id": 0,
        "char_length": 9,
        "precision": 0,
        "nullable": True,
        "identity": False,
        "key_position": 0,
    }
    return Column(name=name, storage=storage, **(fields | more))


def test_control_characters_and_impossible_dates_are_shown_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "j"
    with JournalWriter(path, database="/a\x1b[2Jb", started_us=2**63 - 1) as writer:
        columns = [
            _column("T\x1b", Storage.TEXT),
            _column("D", Storage.DATE),
            _column("U", Storage.TEXT, charset_id=52),
            _column("N", Storage.TEXT),
        ]
        table = writer.table("A\nB", columns, key_kind=0)
        writer.insert(table, ("x\x1b[31m\ny", 2**31 - 1, Undecodable(b"\x98", 52), b"\xcc"))
        writer.ddl("CREATE\nTABLE \x1b")
        writer.seal()
    assert _show(path) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"A\nB: T\x1b='x\x1b[31m\ny', D=+5881469-05-27, U=x'98' (not valid in WIN1251)" in out
    assert r"CREATE\nTABLE \x1b" in out
    assert "N=x'cc' (not valid in NONE)" in out
    assert _show(path, "--charset-none", "WIN1251") == 0
    assert "N='М'" in capsys.readouterr().out


def test_uncompleted_definition_is_shown_as_not_resolved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "j"
    with JournalWriter(path) as writer:
        table = writer.table("T", [_column("N", Storage.BIGINT)], key_kind=0, resolved=False)
        writer.insert(table, (1,))
        writer.seal()
    assert _show(path) == 0
    assert "table     T (N BIGINT), (not resolved)\n" in capsys.readouterr().out


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"missing\.log: can't be read: No such file"):
        _show(tmp_path / "missing.log")


def test_journal_is_found_by_its_uuid_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journals, archive = tmp_path / "journals", tmp_path / "archive"
    quarantine = journals / ".firebird-cdc/quarantine"
    config = tmp_path / "connector.yaml"
    config.write_text(
        f"connector.name: x\nconnector.journal.directory: {journals}\n"
        f"connector.journal.archive.directory: {archive}\n"
        "kafka.producer.bootstrap.servers: 127.0.0.1:9\nkafka.topic.prefix: x\n"
    )
    monkeypatch.setenv("FIREBIRD_CONNECTOR_CONFIG", str(config))
    name = f"{uuid4()}"
    for folder in (journals, quarantine, archive):
        folder.mkdir(parents=True)
        path = _place("every-record", folder, f"{name}.log")
        assert main(["journal", "show", name]) == 0
        path.unlink()
    for folder in (journals, quarantine, archive):
        path, written = _shared(folder)
        assert main(["journal", "show", str(written[1].uuid)]) == 0
        assert "transaction 101" in capsys.readouterr().out
        path.unlink()
    segment = archive / "4c1e6b0d2f9a8873-0-1-1.zip"
    path, written = _shared(tmp_path)
    damaged = tmp_path / f"{uuid4()}.log"
    damaged.write_bytes(path.read_bytes()[:-4096])
    with zipfile.ZipFile(segment, "w") as packed:
        packed.write(_place("every-record", tmp_path), f"{name}.log")
        packed.write(damaged, damaged.name)
        packed.write(path, path.name)
    (archive / "4c1e6b0d2f9a8873-0-2-2.zip").write_bytes(b"damaged")
    assert main(["journal", "show", name]) == 0
    assert "whole: 7 changes" in capsys.readouterr().out
    assert main(["journal", "show", str(written[1].uuid)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"journal   {written[1].uuid}, transaction 101")
    assert "whole: 1 change," in shown
    assert main(["journal", "show", str(path.stem)]) == 0
    assert "whole: 2 changes in 2 transactions" in capsys.readouterr().out
    assert main(["journal", "show", str(written[2].uuid)]) == 1, "it was rolled back"
    capsys.readouterr()
    close_segments()
    assert main(["journal", "show", str(uuid4())]) == 1
    assert f"no journal of this name in {journals}, {quarantine}, {archive}" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("option", [["--limit", "-1"], ["--charset-none", "nonsense"]])
def test_a_wrong_option_is_refused(option: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        _show(tmp_path, *option)
    assert caught.value.code == 2


def _shared(folder: Path) -> tuple[Path, list[TransactionWriter]]:
    """A journal of three transactions; the first two are committed, as numbers 8 and 7."""
    path = folder / f"{uuid4()}.log"
    written = []
    with SharedJournalWriter.create(path, database="/srv/fb/shop.fdb") as journal:
        for number in range(3):
            transaction = TransactionWriter(journal.header, 100 + number, "SYSDBA")
            transaction.gap(f"gap {number}")
            transaction.seal()
            journal.append(transaction)
            written.append(transaction)
        journal.void(written[2])
        for number, sequence in enumerate((8, 7)):
            journal.commit(written[number], sequence, ticket=number + 1, commit_us=10**15)
        journal.close()
    return path, written


def test_shared_journal_is_shown_transaction_by_transaction_in_the_order_of_the_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, written = _shared(tmp_path)
    assert _show(path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("journal ")] == [
        f"journal   {written[1].uuid}, transaction 101",
        f"journal   {written[0].uuid}, transaction 100",
    ]
    assert [line for line in lines if "GAP" in line] == [
        "        1 GAP: gap 1",
        "        1 GAP: gap 0",
    ]
    assert any(line.startswith("commit    2001-09-09T01:46:40.000000Z, ticket 2") for line in lines)
    assert lines[-1] == "whole: 2 changes in 2 transactions"


def test_one_transaction_of_a_shared_journal_is_shown_by_its_number_or_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, written = _shared(tmp_path)
    shown = []
    for place, options in ((path, ["--sequence", "8"]), (path / f"{written[0].uuid}.log", [])):
        assert _show(place, *options) == 0
        shown.append(capsys.readouterr().out.splitlines()[:-1])
    assert shown[0] == shown[1]
    assert shown[0][0] == f"journal   {written[0].uuid}, transaction 100"
    with pytest.raises(JournalError, match="no transaction in it has this number"):
        _show(path, "--sequence", "9")
    with pytest.raises(JournalError, match="holds no transaction"):
        _show(path / f"{written[2].uuid}.log")


def test_damaged_transaction_is_named_and_its_neighbours_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = _shared(tmp_path)
    with SharedJournal(path) as journal:
        place = journal.places[0]
    content = bytearray(path.read_bytes())
    content[place.offset + 190] ^= 1
    path.write_bytes(content)
    assert _show(path) == 1
    lines = capsys.readouterr().out.splitlines()
    (damaged,) = (line for line in lines if line.startswith("damaged"))
    assert f"transaction {place.uuid}, sequence 7, epoch 0" in damaged
    assert "        1 GAP: gap 0" in lines
    assert "        1 GAP: gap 1" not in lines
    assert lines[-1].startswith("corrupt at byte")
    assert _show(path, "--json") == 1
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum("damaged" in each for each in told) == 1
    assert told[-1]["state"] == "corrupt"


def _open_journal(folder: Path) -> tuple[Path, list[TransactionWriter]]:
    """An open journal of three transactions, of which the ledger has the first two, as 8 and 7."""
    home = uuid4()
    written = []
    with SharedJournalWriter.create(folder / f"{home}.log.live", database="/d.fdb") as journal:
        for number in range(3):
            transaction = TransactionWriter(journal.header, 100 + number, "SYSDBA")
            transaction.gap(f"gap {number}")
            transaction.seal()
            journal.append(transaction)
            written.append(transaction)
        entries = []
        for number, sequence in ((1, 7), (0, 8)):
            place = journal.commit(written[number], sequence, commit_us=10**15)
            entries.append(LedgerEntry(place.uuid, place.stamp, home, *place[1:4]))
    ledgers = folder / ".firebird-cdc" / "databases"
    ledgers.mkdir(parents=True)
    record = LedgerRecord(0, 8, 101, 0, None, entries)
    (ledgers / "d.ledger").write_bytes(record.pack())
    return journal.path, written


def test_open_journal_is_shown_as_far_as_the_ledger_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, written = _open_journal(tmp_path)
    assert _show(path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("journal ")] == [
        f"journal   {written[1].uuid}, transaction 101",
        f"journal   {written[0].uuid}, transaction 100",
    ]
    assert lines[-1] == "open: 2 changes in 2 transactions, as far as they are committed"
    assert _show(path, "--json", "--sequence", "8") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"state": "open", "changes": 1}


def test_transaction_of_an_open_journal_is_found_by_its_uuid_and_by_either_name_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, written = _open_journal(tmp_path)
    config = tmp_path / "connector.yaml"
    config.write_text(
        f"connector.name: x\nconnector.journal.directory: {tmp_path}\n"
        "kafka.producer.bootstrap.servers: 127.0.0.1:9\nkafka.topic.prefix: x\n"
    )
    monkeypatch.setenv("FIREBIRD_CONNECTOR_CONFIG", str(config))
    uuid = str(written[0].uuid)
    for name in (uuid, f"{path}/{uuid}.log", f"{path.with_suffix('')}/{uuid}.log"):
        assert main(["journal", "show", name]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"journal   {uuid}, transaction 100")
        assert "sequence 8" in shown
        assert "whole: 1 change," in shown
    for undecided in (written[2].uuid, path / f"{written[2].uuid}.log"):
        assert main(["journal", "show", str(undecided)]) == 1
    assert "is committed in it" in capsys.readouterr().err
