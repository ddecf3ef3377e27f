"""Memory of the quarantine for journals, and the newer events that it notices."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from least_config import load_with

from firebird_cdc.cli import main
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.folder import notes
from firebird_cdc.journal.folder.notes import Concerned, LeftOut, Note
from firebird_cdc.journal.shipper import quarantine
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.quarantine import Quarantine, read_note

DATABASE = "/srv/a.fdb"
TOPIC = "p.a.ITEM"


class Folder:
    """A journal folder with a quarantine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.aside = path / ".firebird-cdc/quarantine"
        self.quarantine = Quarantine(path)

    def entry(self, sequence: int, epoch: int = 0) -> Entry:
        """A journal that waits; its content is of no interest here."""
        entry = Entry(epoch, sequence, uuid4())
        (self.path / entry.name).write_bytes(b"journal")
        return entry

    def leave_out(self, sequence: int, pos: int, what: Concerned) -> Entry:
        """A journal that was shipped without event POS, and is kept for that."""
        entry = self.entry(sequence)
        assert self.quarantine.leave_out(entry, DATABASE, pos, "too large", what)
        self.keep(entry)
        return entry

    def keep(self, entry: Entry) -> None:
        assert self.quarantine.keep([entry]) == [entry]
        (self.path / entry.name).unlink()

    def see(
        self,
        sequence: int,
        pos: int,
        key: bytes | None,
        topic: str = TOPIC,
        database: str = DATABASE,
        epoch: int = 0,
    ) -> None:
        """Have the quarantine see that an event of another journal is sent."""
        messages = [Message(topic, key, b"", [])]
        self.quarantine.see(Entry(epoch, sequence, uuid4()), database, pos, messages)

    def newer(self, entry: Entry) -> str | None:
        """Return the note on disk about a newer event, None without one."""
        self.quarantine.flush()
        return self.note(entry.uuid).newer

    def note(self, uuid: UUID) -> Note:
        note = read_note(self.aside, uuid)
        assert note is not None
        return note


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.parametrize("restarted", [False, True])
def test_only_newer_events_of_the_same_key_and_topic_count(folder: Folder, restarted: bool) -> None:
    entry = folder.leave_out(5, 3, [(TOPIC, b"k"), (TOPIC, b"old")])
    if restarted:
        folder.quarantine.load()
    assert folder.quarantine.watching
    for other in (
        (6, 1, b"another"),
        (6, 1, None),
        (6, 1, b"k", "p.a.OTHER"),
        (4, 9, b"k"),
        (5, 2, b"k"),
    ):
        folder.see(*other)
    folder.see(1, 1, b"another", database="/srv/b.fdb")
    assert folder.newer(entry) is None
    folder.see(6, 2, b"old")
    assert folder.newer(entry) == "event 2 of journal 6 of /srv/a.fdb, of the same key"
    assert not folder.quarantine.watching


def test_later_event_of_the_same_journal_counts(folder: Folder) -> None:
    entry = folder.entry(5)
    folder.quarantine.leave_out(entry, DATABASE, 3, "bad", [(TOPIC, b"k")])
    folder.quarantine.see(entry, DATABASE, 4, [Message(TOPIC, b"k", b"", [])])
    assert folder.newer(entry) is not None


def test_next_epoch_and_another_database_of_the_same_topic_count(folder: Folder) -> None:
    first = folder.leave_out(5, 3, [(TOPIC, b"k")])
    folder.see(1, 1, b"k", epoch=1)
    assert folder.newer(first) is not None
    second = folder.leave_out(6, 3, [(TOPIC, b"k")])
    folder.see(1, 1, b"k", database="/srv/b.fdb")
    assert folder.newer(second) is not None


def test_any_newer_event_of_a_table_without_key_counts(folder: Folder) -> None:
    entry = folder.leave_out(5, 3, [(TOPIC, None)])
    folder.see(6, 1, None)
    assert folder.newer(entry) is not None


@pytest.mark.parametrize(
    ("what", "other", "counts"),
    [(TOPIC, TOPIC, True), (TOPIC, "p.a.OTHER", False), (None, "p.a.OTHER", True)],
)
def test_newer_events_count_by_table_without_a_key_and_else_by_database(
    folder: Folder, what: Concerned, other: str, counts: bool
) -> None:
    entry = folder.leave_out(5, 3, what)
    folder.see(6, 1, b"x", other, "/srv/b.fdb")
    if what is None:
        assert folder.newer(entry) is None
    folder.see(6, 1, b"x", other)
    assert (folder.newer(entry) is not None) == counts


def test_journal_that_cannot_be_read_is_behind_any_event_of_its_database(folder: Folder) -> None:
    known, unknown = folder.entry(5), folder.entry(6)
    folder.quarantine.set_aside(folder.path / known.name, None, DATABASE, "damaged")
    folder.quarantine.set_aside(folder.path / unknown.name, None, None, "damaged")
    assert list(folder.path.glob("*.log")) == []
    folder.see(1, 1, b"x", database="/srv/b.fdb")
    assert folder.newer(known) is None
    assert folder.newer(unknown) is not None
    folder.see(1, 1, b"x")
    assert folder.newer(known) is not None
    reason = (folder.aside / f"{known.uuid}.reason").read_text()
    assert reason == "damaged; none of its events was sent\n"


def test_limits_on_watched_keys_widen_the_match_to_newer_events(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes, "MOST_KEYS_OF_ONE", 3)
    monkeypatch.setattr(quarantine, "MOST_KEYS", 5)
    monkeypatch.setattr(quarantine, "MOST_WATCHED", 3)
    many = folder.leave_out(5, 3, [(TOPIC, bytes([key])) for key in range(4)])
    assert folder.note(many.uuid).breadth == "the same table"
    some = [folder.leave_out(n, 1, [(f"t{n}", bytes([k])) for k in range(3)]) for n in (6, 7)]
    assert [folder.note(each.uuid).breadth for each in some] == ["the same key", "the same table"]
    beyond = folder.leave_out(8, 1, [("t8", b"k")])
    assert "more than 3 journals" in (folder.newer(beyond) or "")
    folder.quarantine.load()
    folder.see(9, 1, b"x", "t6")
    folder.see(9, 1, b"x", "t7")
    folder.see(9, 1, b"x")
    assert [folder.newer(each) is None for each in (many, *some)] == [False, True, False]


def test_too_many_left_out_events_end_the_journal(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes, "MOST_RANGES", 2)
    entry = folder.entry(5)
    kept = folder.quarantine
    for pos in (1, 2, 3, 7, 8):
        assert kept.leave_out(entry, DATABASE, pos, "bad", [])
    assert not kept.leave_out(entry, DATABASE, 20, "bad", [])
    kept.leave_rest(entry, DATABASE, 19, "too many")
    assert kept.keep([entry]) == []  # it is moved, not to be archived as shipped
    note = folder.note(entry.uuid)
    assert note.left_out == [LeftOut(1, 3, 0), LeftOut(7, 8, 0)]
    told = [pos for pos in range(1, 25) if note.reason_at(pos) is not None]
    assert told == [1, 2, 3, 7, 8, 20, 21, 22, 23, 24]


def test_restarted_attempt_forgets_the_events_it_had_left_out(folder: Folder) -> None:
    entry = folder.entry(5)
    quarantine = folder.quarantine
    for pos in (2, 9):
        quarantine.leave_out(entry, DATABASE, pos, "bad", [])
    quarantine.flush()
    again = Quarantine(folder.path)  # after a crash
    again.load()
    left = again.begin(entry.uuid, 5)
    assert left is not None
    assert left.reason_at(2) is not None
    assert left.reason_at(9) is None
    assert again.begin(entry.uuid, 0) is left
    assert again.keep([entry]) == [entry]
    assert list(folder.aside.iterdir()) == []


def test_events_of_a_restarted_attempt_are_not_newer_than_its_own(folder: Folder) -> None:
    entry = folder.entry(5)
    message = [Message(TOPIC, b"k", b"", [])]
    folder.quarantine.leave_rest(entry, DATABASE, 20, "it is damaged there")
    folder.quarantine.begin(entry.uuid, 0)
    folder.quarantine.see(entry, DATABASE, 1, message)
    assert folder.quarantine.leave_out(entry, DATABASE, 2, "too large", [(TOPIC, b"k")])
    folder.quarantine.begin(entry.uuid, 0)
    folder.quarantine.see(entry, DATABASE, 2, message)
    folder.quarantine.see(entry, DATABASE, 20, message)
    folder.quarantine.leave_rest(entry, DATABASE, 20, "it is damaged there")
    assert folder.newer(entry) is None
    folder.see(6, 1, b"k")
    assert folder.newer(entry) == "event 1 of journal 6 of /srv/a.fdb, of the same database"


def test_events_left_out_before_the_start_of_a_new_attempt_stay_watched(folder: Folder) -> None:
    entry = folder.entry(5)
    assert folder.quarantine.leave_out(entry, DATABASE, 2, "too large", [(TOPIC, b"old")])
    assert folder.quarantine.leave_out(entry, DATABASE, 9, "too large", [(TOPIC, b"k")])
    folder.quarantine.begin(entry.uuid, 5)
    folder.see(6, 1, b"k")
    assert folder.newer(entry) is None
    folder.see(6, 2, b"old")
    assert folder.newer(entry) == "event 2 of journal 6 of /srv/a.fdb, of the same key"


def test_note_without_its_journal_is_removed(folder: Folder) -> None:
    entry = folder.leave_out(5, 3, [(TOPIC, b"k")])
    (folder.aside / entry.name).unlink()
    folder.quarantine.load()
    assert not folder.quarantine.watching
    assert list(folder.aside.iterdir()) == []


def test_damaged_note_is_reported_and_left_alone(folder: Folder) -> None:
    entry = folder.leave_out(5, 3, [(TOPIC, b"k")])
    path = folder.aside / f"{entry.uuid}.json"
    path.write_text("{}")
    folder.quarantine.load()
    assert not folder.quarantine.watching
    with pytest.raises(ValueError, match="not a note of ours"):
        folder.quarantine.find(entry.uuid)
    assert path.exists()


_KEY = (
    b'{"schema":{"type":"struct","fields":[{"type":"bytes","name":"org.apache.kafka.connect.data'
    b'.Decimal","parameters":{"scale":"2","connect.decimal.precision":"%d"},"field":"ID"}]},'
    b'"payload":{"ID":"%s"}}'
)


def test_after_an_upgrade_keys_that_may_have_other_bytes_count_with_their_table(
    folder: Folder,
) -> None:
    """A note of a version before tells keys as that one wrote them: a newer event of such a row is
    never passed over. Keys without a decimal are known as ever."""
    old = folder.leave_out(5, 3, [(TOPIC, _KEY % (9, b"AQ=="))])
    plain = folder.leave_out(5, 4, [("p.a.PLAIN", b'{"ID":1}')])
    folder.quarantine.flush()
    for entry in (old, plain):
        path = folder.aside / f"{entry.uuid}.json"
        held = json.loads(path.read_text())
        del held["version"]
        path.write_text(json.dumps(held))
    folder.quarantine = Quarantine(folder.path)
    folder.quarantine.load()
    new = folder.leave_out(6, 1, [(TOPIC, _KEY % (10, b"Ag=="))])
    folder.see(7, 1, b'{"ID":2}', "p.a.PLAIN")
    assert folder.newer(plain) is None
    folder.see(7, 1, _KEY % (10, b"AQ=="))
    assert folder.newer(old) == "event 1 of journal 7 of /srv/a.fdb, of the same table"
    assert folder.newer(new) is None


def test_retry_takes_the_number_or_the_file_of_a_journal(
    folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_with(tmp_path, f"connector.journal.directory: {folder.path}")
    first, second = (folder.leave_out(n, 1, [(TOPIC, b"k")]) for n in (17, 18))
    retry = ["journal", "retry", "--config", str(config.path)]
    for words in (["--sequence", "18"], [str(folder.aside / second.name)]):
        assert main([*retry, *words]) == 0
        assert f"{second.uuid}: requested" in capsys.readouterr().out
    requests = (folder.path / ".firebird-cdc").glob("*/*.request")
    assert [json.loads(each.read_bytes())["journals"] for each in requests] == [
        [str(second.uuid)]
    ] * 2
    assert main([*retry, "--sequence", "19"]) == 1
    assert "has the number 19" in capsys.readouterr().err
    folder.keep(_of_another_database(folder, 17))
    assert main([*retry, "--sequence", "17"]) == 1
    assert f"{first.uuid} of {DATABASE}" in capsys.readouterr().err


def _of_another_database(folder: Folder, sequence: int) -> Entry:
    entry = folder.entry(sequence)
    what = [(TOPIC, b"k")]
    assert folder.quarantine.leave_out(entry, "/srv/b.fdb", 1, "too large", what)
    return entry
