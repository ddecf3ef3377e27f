"""Small transactions share a journal; each of them is read as if it had one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import instruments
import pytest
from capture import Attachment, Capture, Client, SqlError, fold, until
from effects import EFFECTS, assert_adds_up
from random_work import TABLES
from server import Server
from shared_folder import in_memory, is_shared
from test_refusals import StartServer, failing_sync, program, start_server

from firebird_cdc.bridge.recovery import Recovery
from firebird_cdc.journal.format import SharedJournal
from firebird_cdc.journal.format.shared import Void, parse_file_header, walk

__all__ = ["failing_sync", "program", "start_server"]

pytestmark = pytest.mark.engine

_RANDOM_WORK = Path(__file__).with_name("random_work.py")
_TABLE = "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, TEXT VARCHAR(2000))"


def _shared(capture: Capture) -> list[Path]:
    """Return the shared journals in which something lies: the next one is made beforehand."""
    found = []
    for path in capture.journal_directory.glob("*.log*"):
        with suppress(FileNotFoundError):  # closed meanwhile, under another name
            if is_shared(path) and any(path.read_bytes()[4096:]):
                found.append(path)
    return found


def _insert(attachment: Attachment, *numbers: int) -> None:
    for number in numbers:
        attachment.execute("INSERT INTO T VALUES (?, 'text')", number)


def _voids(path: Path) -> Iterator[Void]:
    content = path.read_bytes()
    header = parse_file_header(content[:4096])
    assert header is not None
    found = walk(lambda length, at: content[at : at + length], len(content), header.uuid)
    yield from (each.what for each in found if isinstance(each.what, Void))


def test_transactions_of_two_connections_lie_in_one_journal(capture: Capture) -> None:
    capture.create(_TABLE)
    client = capture.client()
    one, two = client.attach(capture.database), client.attach(capture.database)
    for number in range(0, 4, 2):  # the first journal of a process is a small one
        _insert(one, number)
        _insert(two, number + 1)
        two.commit()
        one.commit()
    journals = capture.journals()
    assert fold(journals)["T"] == one.rows("T")
    assert len({journal.file for journal in journals if journal.rows}) == 1
    assert len({journal.header.uuid for journal in journals}) == len(journals)
    assert [journal.rows[0].pos for journal in journals if journal.rows] == [1] * 4


def test_large_transaction_and_ddl_have_journals_of_their_own(capture: Capture) -> None:
    capture.create(_TABLE)
    attachment = capture.attach()
    _insert(attachment, 1)
    attachment.commit()
    attachment.execute(
        "EXECUTE BLOCK AS DECLARE I INTEGER = 10; BEGIN WHILE (I < 110) DO BEGIN"
        " INSERT INTO T VALUES (:I, LPAD('', 2000, 'x')); I = I + 1; END END"
    )
    attachment.commit()
    attachment.script("ALTER TABLE T ADD N INTEGER")
    _insert_wide = "INSERT INTO T VALUES (2, 'text', 3)"
    attachment.execute(_insert_wide)
    attachment.commit()
    journals = capture.journals()
    shown = [(len(journal.rows), is_shared(journal.file)) for journal in journals]
    assert shown[-4:] == [(1, True), (100, False), (0, False), (1, True)]
    assert fold(journals)["T"] == attachment.rows("T")


def test_open_transactions_beyond_the_memory_option_go_to_files(capture: Capture) -> None:
    capture.options["connector.journal.memory.bytes"] = str(512 * 1024)
    capture.write_config()
    capture.create(_TABLE)
    client = capture.client()
    attachments = [client.attach(capture.database) for _ in range(40)]
    in_memory_after = []
    for turn in range(10):
        for number, attachment in enumerate(attachments):
            attachment.execute("INSERT INTO T VALUES (?, LPAD('', 2000, 'x'))", 100 * number + turn)
        in_memory_after.append(len(in_memory(capture.journal_directory)))
    assert in_memory_after[1] == len(attachments)
    assert in_memory_after[-1] < 512 // 20  # that many, of 20 KiB each, have room
    for number, attachment in enumerate(attachments):
        if number % 4:
            attachment.commit()
        else:
            attachment.rollback()
    assert fold(capture.journals())["T"] == attachments[0].rows("T")


def test_largest_open_transactions_leave_memory_first(capture: Capture) -> None:
    capture.options["connector.journal.memory.bytes"] = str(2 << 20)
    capture.write_config()
    capture.create(_TABLE)
    client = capture.client()
    attachments = [client.attach(capture.database) for _ in range(40)]
    small, large = attachments[::2], attachments[1::2]  # 12 KiB and 96 KiB each
    for turn in range(48):
        for number, attachment in enumerate(attachments):
            length = 2000 if attachment in large or turn < 6 else 1
            key = 100 * number + turn
            attachment.execute(f"INSERT INTO T VALUES (?, LPAD('', {length}, 'x'))", key)
    assert len(in_memory(capture.journal_directory)) in range(len(small), len(attachments))
    for attachment in large:
        attachment.commit()
    assert len(in_memory(capture.journal_directory)) == len(small)
    for attachment in small:
        attachment.commit()
    assert fold(capture.journals())["T"] == attachments[0].rows("T")


def test_savepoint_rolled_back_after_outgrowing_memory_leaves_no_rows(capture: Capture) -> None:
    capture.create(_TABLE)
    attachment = capture.attach()
    _insert(attachment, 1)
    attachment.execute("SAVEPOINT S")
    attachment.execute(
        "EXECUTE BLOCK AS DECLARE I INTEGER = 10; BEGIN WHILE (I < 210) DO BEGIN"
        " INSERT INTO T VALUES (:I, LPAD('', 2000, 'x')); I = I + 1; END END"
    )
    attachment.execute("ROLLBACK TO SAVEPOINT S")
    _insert(attachment, 2)
    attachment.commit()
    journals = capture.journals()
    assert [row["ID"] for _, _, row in journals[-1].brief() if row] == [1, 2]
    assert not is_shared(journals[-1].file)


def test_rollback_writes_nothing(capture: Capture) -> None:
    capture.create(_TABLE)
    attachment = capture.attach()
    _insert(attachment, 1)
    attachment.commit()
    capture.journals()
    before = {path: path.read_bytes() for path in _shared(capture)}
    _insert(attachment, 2)
    attachment.rollback()
    assert {path: path.read_bytes() for path in _shared(capture)} == before


def test_journal_of_an_ended_process_is_closed_and_indexed(capture: Capture) -> None:
    capture.create(_TABLE)
    attachment = capture.attach()
    for number in range(5):
        _insert(attachment, number)
        attachment.commit()
    numbers = [journal.sequence for journal in capture.journals() if journal.rows]
    capture.end_clients()
    recovery = Recovery(capture.journal_directory, fsync=True)

    def are_closed() -> bool:
        recovery.look()
        return not list(capture.journal_directory.glob("*.log.live"))

    until("the journals to be closed", are_closed)
    places = []
    for path in _shared(capture):
        with SharedJournal(path) as journal:
            places += journal.places
            for place in journal.places:
                with journal.reader(place) as reader:
                    assert len(list(reader.changes())) == 1
    places.sort(key=lambda place: place.stamp.number)
    assert [place.stamp.sequence for place in places] == numbers
    assert [place.ticket for place in places] == sorted(place.ticket for place in places)


def test_full_journal_is_closed_while_its_process_goes_on(capture: Capture) -> None:
    capture.create(_TABLE)
    attachment = capture.attach()
    for number in range(60):  # each with a block of its own, as a sync covers it
        _insert(attachment, number)
        attachment.commit()
    until("a journal to be closed", lambda: any(p.suffix == ".log" for p in _shared(capture)))
    assert fold(capture.journals())["T"] == attachment.rows("T")


def test_killed_process_leaves_what_it_committed_and_nothing_else(capture: Capture) -> None:
    capture.create(_TABLE)
    attachment = capture.attach()
    _insert(attachment, 1)
    attachment.commit()
    _insert(attachment, 2)
    capture.clients.pop().kill()
    attachment = capture.attach()
    _insert(attachment, 3)
    attachment.commit()
    journals = capture.journals()
    assert [row["ID"] for each in journals for _, _, row in each.brief() if row] == [1, 3]
    slots = capture.journal_directory / ".firebird-cdc/slots"
    until("the dead one's slots to go", lambda: len(list(slots.iterdir())) == 1)


def test_sync_that_fails_once_has_the_transaction_written_to_another_journal(
    capture: Capture, program: Path, failing_sync: Path
) -> None:
    capture.create("CREATE TABLE T (ID INTEGER, TEXT VARCHAR(1000))")
    flag = capture.directory / "failing"
    environment = ["env", f"LD_PRELOAD={instruments.preload(failing_sync)}", f"FAILING_SYNC={flag}"]
    server = Server(capture, program, environment)
    server.write(0)
    until("the journal to be confirmed", capture.committed)
    [first] = _shared(capture)
    flag.write_text(first.name)
    server.write(1)
    server.write(2)
    server.end()
    journals = [journal for journal in capture.journals() if journal.rows]
    assert [journal.rows[0].after[0] for journal in journals if journal.rows[0].after] == [0, 1, 2]
    others = [path for path in _shared(capture) if path.stem[:36] != first.stem[:36]]
    assert any(void.journal == _uuid(first) for path in others for void in _voids(path))
    assert "a gap" not in capture.log.read_text()


def test_sync_that_fails_while_many_connections_commit_loses_none_of_them(
    capture: Capture, failing_sync: Path
) -> None:
    """Most of these wait for a sync that another one of them runs."""
    capture.create(*TABLES, *EFFECTS)
    flag = capture.directory / "failing"
    preload = {"LD_PRELOAD": instruments.preload(failing_sync), "FAILING_SYNC": str(flag)}
    client = Client(
        capture.root.client_library,
        capture.environment() | preload,
        capture.directory / "client.log",
        instruments.before(capture.directory),
    )
    capture.clients.append(client)
    assert client.perform(_RANDOM_WORK, "work", str(capture.database), "before", 12, 10) == 120
    names = [path.name for path in _shared(capture) if path.suffix == ".live"]
    flag.write_text(" ".join(names))
    assert client.perform(_RANDOM_WORK, "work", str(capture.database), "while", 12, 10) == 120
    flag.unlink()
    attachment = client.attach(capture.database)
    rows = {name: attachment.rows(name) for name in ("ITEM", "LOG_", "EFFECTS")}
    assert_adds_up(capture.journals(), rows)
    assert "failed fdatasync" in flag.with_suffix(".log").read_text()
    assert "a gap" not in capture.log.read_text()


def _uuid(path: Path) -> bytes:
    header = parse_file_header(path.read_bytes()[:4096])
    assert header is not None
    return header.uuid.bytes


def test_lost_permissions_refuse_writes_once_the_journal_is_full(
    capture: Capture, start_server: StartServer
) -> None:
    server = start_server()
    server.write(0)
    until("the journal to be confirmed", capture.committed)
    capture.journal_directory.chmod(0o500)
    with pytest.raises(SqlError, match="Permission denied"):
        for number in range(1, 100):
            server.write(number)
    capture.journal_directory.chmod(0o700)
    until("writes to work again", lambda: server.can_write(100))
    server.end()
    captured = [row["ID"] for each in capture.journals() for _, _, row in each.brief() if row]
    assert captured == [*range(number), 100]


def test_option_of_one_gives_each_transaction_a_journal_of_its_own(capture: Capture) -> None:
    capture.options["connector.journal.transactions"] = "1"
    capture.write_config()
    capture.create(_TABLE)
    attachment = capture.attach()
    for number in range(3):
        _insert(attachment, number)
        attachment.commit()
    capture.journals()
    until("all to be closed", lambda: not [*capture.journal_directory.glob("*.log.live")])
    paths = [*capture.journal_directory.glob("*.log")]
    assert len(paths) == 3
    for path in paths:
        with SharedJournal(path) as journal:
            [place] = journal.places
            assert path.name == f"{place.uuid}.log"


@pytest.mark.parametrize("most", [2, 3])
def test_option_bounds_the_transactions_of_a_journal(capture: Capture, most: int) -> None:
    capture.options["connector.journal.transactions"] = str(most)
    capture.write_config()
    capture.create(_TABLE)
    attachment = capture.attach()
    for number in range(7):
        _insert(attachment, number)
        attachment.commit()
    journals = [journal for journal in capture.journals() if journal.rows]
    shared = [journal.file.stem[:36] for journal in journals if is_shared(journal.file)]
    assert max(map(shared.count, shared)) == most
    assert fold(journals)["T"] == attachment.rows("T")


def test_journals_made_beforehand_stay_small_beside_a_limit_of_disk_space(
    capture: Capture,
) -> None:
    limit = 16 * 1024 * 1024
    capture.options["connector.journal.max.bytes"] = str(limit)
    capture.write_config()
    capture.create(_TABLE)
    attachment = capture.attach()
    for number in range(250):  # a MiB, as each lies in a block of its own
        _insert(attachment, number)
        attachment.commit()
    assert fold(capture.journals())["T"] == attachment.rows("T")
    sizes = []
    for path in capture.journal_directory.glob("*.log.live"):
        with suppress(FileNotFoundError):  # closed meanwhile
            sizes.append(path.stat().st_size)
    assert sizes
    assert max(sizes) <= limit // 64
