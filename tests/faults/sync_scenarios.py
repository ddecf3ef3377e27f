"""Scenarios of syncs beyond those of an engine's lives (failing_syncs.py), each in one process.

A scenario prepares a folder and returns what is done there, which may be done again after an error,
and what has to be there after a power cut then.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4, uuid5

from earlier_messages import configuration
from played_server import GUID, PlayedServer, add_changes, opened, publish_as_before, stamp_of
from power_disk import forget_start
from snapshot_syncs import asked_for_snapshot, kept_snapshot, signalled

from firebird_cdc.bridge.confirm import gaps, troubles
from firebird_cdc.bridge.confirm import loop as confirmer_module
from firebird_cdc.bridge.confirm.loop import Confirmer
from firebird_cdc.bridge.host import CommittedJournal, CountedGap, GapsCounted
from firebird_cdc.cli import main
from firebird_cdc.clock import now_us
from firebird_cdc.journal.events.topics import SHARED_TOPICS, TopicNames, read_owners
from firebird_cdc.journal.folder import ledger, ledger_lock
from firebird_cdc.journal.folder.disposal import dispose_shipped
from firebird_cdc.journal.folder.durable import boot_uuid
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY, ShipperLock
from firebird_cdc.journal.folder.page_file import let_former_version_in
from firebird_cdc.journal.folder.segments import is_segment_name, list_segment
from firebird_cdc.journal.format import (
    STAMP_OFFSET,
    Column,
    Gap,
    JournalReader,
    JournalWriter,
    OwnJournalWriter,
    SharedJournal,
    SharedJournalWriter,
    Storage,
    TableChange,
    TransactionWriter,
    alone,
    open_any,
    own_reader,
)
from firebird_cdc.journal.format.layout import FILE_BLOCK
from firebird_cdc.journal.format.shared import FileHeader
from firebird_cdc.journal.replay.compact import (
    PARQUET,
    SEGMENTS,
    _Job,
    _Source,
    _Target,
    _Worker,
)
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.local_offsets import Shipped
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.quarantine import Quarantine, journals_in, read_note
from firebird_cdc.journal.shipper.repairs import Repair, RepairFolder, RepairPoint, RepairWriter
from firebird_cdc.journal.shipper.requests import Request, RequestFolder, write_request
from firebird_cdc.journal.shipper.tasks.archive import ArchiveKeeper, Retention
from firebird_cdc.native._journal_files import sync_file_system
from firebird_cdc.packaging.files import FileChanges

Step = Callable[[], None]
Scenario = Callable[[Path], tuple[Step, Step]]

_DATABASE = "/data/shop.fdb"
_CHANGES = (TableChange("ALTER", "T", None),)


class NotYet(OSError):
    """It goes on by itself, and is not done."""


def _work(confirmer: Confirmer, is_done: Callable[[], bool]) -> None:
    until = time.monotonic() + 5
    while not is_done():
        if time.monotonic() > until:
            raise NotYet("not done")
        confirmer.turn()
        time.sleep(0.001)  # it waits for times to pass, most of all: others have the processor


def _hurry() -> None:
    """Have nothing wait long after an error."""
    troubles._TROUBLE_S = troubles._LEDGER_TROUBLE_S = 0.01
    confirmer_module._PAUSE_S = 0.01
    confirmer_module._WAIT_S = confirmer_module._LOOK_AGAIN_MOST_S = 0.01
    gaps._TROUBLE_S = 0.0


def _shippers(folder: Path) -> Confirmer:
    """Return the confirmer of a shipper's recovery."""
    opened = JournalFolder(folder, writes=False)
    return Confirmer(None, opened, fsync=True, pause=lambda _: False)


def _ship_last(folder: Path) -> None:
    """Ship the journal with the last number."""
    given = {}
    for path in folder.glob("*.log"):
        with alone(open_any(path)) as reader:
            assert reader.stamp is not None, path
            given[reader.stamp.sequence] = path
    given[max(given)].unlink()


def _assert_numbered(folder: Path, count: int) -> None:
    """After the cut a shipper comes: of COUNT journals the last one was shipped, and is gone, or
    back with its number; the others have numbers of their own and can be read to their ends; the
    next one gets the next number."""
    for mark in (folder / STATE_DIRECTORY / "owners").iterdir():
        mark.unlink()  # nobody lives
    forget_start(folder)
    server = PlayedServer(folder.parent)
    server.folder.owners.mark(server.folder.owner).unlink()
    server._serial = 100
    confirmer = _shippers(folder)
    for is_next in (False, True):
        if is_next:
            server.commit_elsewhere(0, uuid4())
        for _ in range(5):
            confirmer._scan.is_wanted = True
            confirmer.turn()
    confirmer.let_go()
    numbers = []
    for path in folder.glob("*.log"):
        with alone(open_any(path)) as reader:
            for _ in reader.changes():
                pass
            assert reader.stamp is not None, path
            numbers.append(reader.stamp.sequence)
    is_back = count in numbers
    assert sorted(numbers) == [*range(1, count), *[count] * is_back, count + 1]


def _unresolved(server: PlayedServer) -> CommittedJournal:
    """Leave a journal whose table's definition is to be completed."""
    uuid = server.commit(0)
    event = cast("CommittedJournal", server.events.pop())
    server.folder.live(uuid).unlink()
    column = Column("ID", 0, 0, 0, 8, 4, 40, 0, False, False, 1, Storage.BIGINT)
    header = FileHeader(
        uuid, server.folder.owner, GUID, 0, boot_uuid(), now_us(), 0, True,
        str(server.database_path),
    )  # fmt: skip
    with OwnJournalWriter(server.folder.live(uuid), header) as writer:
        writer.insert(writer.table("T", [column], resolved=False), [1])
        writer.seal()
        writer.sync()
    return event._replace(is_unresolved=True, length=writer.length, seal_end=writer.seal_end)


def own_journals(root: Path) -> tuple[Step, Step]:
    """A server's own: one unsynced, one removed, one whose DDL another told of, one with a table
    that is to be completed, a counted gap, and one in limbo."""
    server = PlayedServer(root)
    server.create_database()
    with server.database_path.open("r+b") as file:
        file.seek(4096 + 20 + 3)
        file.write(b"\1")  # 12 is in limbo
    confirmer = Confirmer(server, server.folder, fsync=True)
    confirmer.turn()
    _hurry()
    uuids = [server.commit(0, is_unsynced=True), server.commit(0)]
    server.folder.live(uuids[1]).unlink()
    ddl = server.commit(0, ddl="ALTER TABLE T ADD N INTEGER")
    add_changes(server.folder.live(ddl), ddl, _CHANGES)
    server.events.append(_unresolved(server))
    server.gap = CountedGap(1, 0, 0, "it")
    server.events.append(GapsCounted(9, 1))
    limbo = server.abandon(12)

    def act() -> None:
        _work(confirmer, lambda: len(list(server.folder.path.glob("*.log"))) == 5)
        for _ in range(20):
            confirmer.turn()
        _ship_last(server.folder.path)

    def check() -> None:
        with own_reader(server.folder.live(limbo), limbo) as reader:
            assert reader.seal is not None
        _assert_numbered(server.folder.path, 5)
        with opened(server.folder, ddl) as reader:
            [change] = reader.changes()
            assert cast("Any", change).table_changes == _CHANGES

    return act, check


def left_journals(root: Path) -> tuple[Step, Step]:
    """Take over from processes that ended: journals, one of 0.1 in a pool and one that is live,
    damage, and a ledger that has become long while a sync of the file system had failed."""
    server = PlayedServer(root)
    server.create_database()
    folder = server.folder
    dead = uuid4()
    publish_as_before(server)
    folder.page.fields.ticket = 1
    folder.count_failed_sync()
    told = server.commit_elsewhere(0, dead, "ALTER TABLE T ADD N INTEGER", changes=_CHANGES)
    pool = folder.pools / str(dead)
    pool.mkdir()
    folder.owners.mark(dead).touch()
    for place in (folder.path, pool):
        uuid, ticket = uuid4(), folder.last_ticket + 1
        path = place / (f"{uuid}.log.live" if place == folder.path else str(uuid))
        with JournalWriter(
            path, uuid=uuid, database=str(server.database_path), database_guid=GUID, owner=dead
        ) as writer:
            writer.gap("it")
            writer.seal(floor=ticket - 1)
            writer.commit(ticket, now_us())
        folder.page.fields.ticket = ticket
    damaged = uuid4()
    (pool / str(damaged)).write_bytes(b"x" * 4096)
    ledger._LEDGER_LIMIT = 1
    _hurry()
    confirmer = _shippers(folder.path)

    def act() -> None:
        _work(
            confirmer,
            lambda: len(list(folder.path.glob("*.log"))) == 4 and not pool.exists(),
        )
        sync_file_system(folder.journal_fd)
        _ship_last(folder.path)

    def check() -> None:
        assert journals_in(folder.quarantine) == [damaged]
        assert (folder.quarantine / f"{damaged}.reason").read_text()
        _assert_numbered(folder.path, 4)
        with opened(folder, told) as reader:
            [change] = reader.changes()
            assert cast("Any", change).table_changes == _CHANGES

    return act, check


def damaged_journal(root: Path) -> tuple[Step, Step]:
    """A gap takes the place of a journal that is damaged, which is kept; and of one of 0.1."""
    server = PlayedServer(root)
    server.create_database()
    server.set_state(12, 3)
    uuid = server.commit_elsewhere(12, uuid4())
    live = server.folder.live(uuid)
    with own_reader(live, uuid) as reader:
        *_, seal_at = reader.block_offsets()
    content = bytearray(live.read_bytes())
    content[FILE_BLOCK + seal_at + 20] ^= 1
    live.write_bytes(content)
    former = uuid4()
    with JournalWriter(
        server.folder.live(former), uuid=former, transaction=12,
        database=str(server.database_path), database_guid=GUID, owner=uuid4(),
    ) as writer:  # fmt: skip
        writer.flush()
        writer.gap("it")
        writer.seal()
        writer.commit(9, 1)
    with server.folder.live(former).open("r+b") as file:
        file.seek(-80, os.SEEK_END)
        file.write(b"?")
    confirmer = Confirmer(server, server.folder, fsync=True)
    _hurry()

    def act() -> None:
        _work(confirmer, lambda: all(server.folder.committed(x).exists() for x in (uuid, former)))

    def check() -> None:
        kept = [
            server.folder.quarantine / f"{x}.log" for x in journals_in(server.folder.quarantine)
        ]
        assert len(kept) == 2
        assert content in [path.read_bytes() for path in kept]
        assert all(path.with_suffix(".reason").read_text() for path in kept)
        for each in (uuid, former):
            with opened(server.folder, each) as reader:
                [gap] = reader.changes()
            assert isinstance(gap, Gap)

    return act, check


def _shared(server: PlayedServer, owner: UUID, guid: UUID, *transactions: int) -> UUID:
    """Leave a shared journal of an ended process with a gap for each of TRANSACTIONS."""
    database = str(server.database_path)
    header = FileHeader(uuid4(), owner, guid, 0, uuid4(), now_us(), 0, False, database)
    with SharedJournalWriter(server.folder.live(header.uuid), header) as journal:
        for number in transactions:
            written = TransactionWriter(header, number, "u")
            written.gap("it")
            written.seal(floor=0)
            journal.append(written)
    return header.uuid


def _own(server: PlayedServer, owner: UUID, guid: UUID, transaction: int) -> UUID:
    """Leave a gap for TRANSACTION of an ended process in a journal of its own."""
    database = str(server.database_path)
    header = FileHeader(uuid4(), owner, guid, 0, uuid4(), now_us(), transaction, True, database)
    with OwnJournalWriter(server.folder.live(header.uuid), header) as journal:
        journal.gap("it")
        journal.seal(floor=0)
    return header.uuid


def left_shared_journals(root: Path) -> tuple[Step, Step]:
    """Take over shared journals from processes that ended: one that had got its index, and not its
    name, one that has none, one of another database, as has a journal of one transaction, and a
    transaction in a slot."""
    server = PlayedServer(root)
    server.create_database()
    server.set_state(12, 1)  # in limbo
    folder = server.folder
    folder.owners.mark(folder.owner).unlink()
    dead = uuid4()
    folder.owners.mark(dead).touch()
    named = _shared(server, dead, GUID, 0, 0)
    confirmer = _shippers(folder.path)
    _hurry()
    _work(confirmer, folder.committed(named).exists)
    confirmer.let_go()
    folder.committed(named).rename(folder.live(named))
    folder.owners.mark(dead).touch()
    nameless = _shared(server, dead, GUID, 0)
    foreign = _shared(server, dead, uuid4(), 7)
    own = _own(server, dead, uuid4(), 8)
    path = str(server.database_path).encode()
    slot = struct.pack("<QQq16s16sH", 12, 0, 0, GUID.bytes, boot_uuid().bytes, len(path)) + path
    (folder.slots / str(dead)).write_bytes(slot.ljust(512, b"\0"))
    limbo = uuid5(dead, f"{server.database_path} {GUID} 12")
    confirmer = _shippers(folder.path)

    def act() -> None:
        _work(
            confirmer,
            lambda: (
                folder.committed(named).exists()
                and folder.committed(nameless).exists()
                and not folder.has_live(foreign)
                and not folder.has_live(own)
                and folder.has_live(limbo)
            ),
        )

    def check() -> None:
        numbers = []
        for journal in (named, nameless):
            with SharedJournal(folder.committed(journal)) as opened:
                for place in opened.places:
                    numbers.append(place.stamp.sequence)
                    with opened.reader(place) as reader:
                        assert len(list(reader.changes())) == 1
        assert numbers == [1, 2, 3]
        kept = set()
        for uuid in journals_in(folder.quarantine):
            assert (folder.quarantine / f"{uuid}.reason").read_text()
            with alone(open_any(folder.quarantine / f"{uuid}.log")) as reader:
                kept.add(reader.header.transaction)
                assert len(list(reader.changes())) == 1
        assert kept == {7, 8}
        with own_reader(folder.live(limbo), limbo) as reader:
            assert reader.header.transaction == 12

    return act, check


def lost_stamps(root: Path) -> tuple[Step, Step]:
    """A power cut took a stamp."""
    server = PlayedServer(root)
    first, _ = publish_as_before(server, 2)
    server.folder.owners.mark(server.folder.owner).unlink()  # nobody lives
    server.folder.page.fields.ticket = 2
    _ship_last(server.folder.path)
    journal = server.folder.committed(first)
    with journal.open("r+b") as file:
        file.seek(STAMP_OFFSET)
        file.write(bytes(512))

    def act() -> None:
        confirmer = _shippers(server.folder.path)
        for _ in range(5):
            confirmer.turn()
        confirmer.let_go()

    return act, lambda: _assert_numbered(server.folder.path, 2)


def changed_version(root: Path) -> tuple[Step, Step]:
    """A folder of version 0.1 is taken over, and given back to it."""
    path, last = root / "journals", 41
    folder = JournalFolder(path)
    folder.page.fields.ticket = last
    given = ledger.SequenceLedger(folder, "d", True, lambda: None)
    with given.exclusive():
        given.record([], 5)
    given.close()
    folder.close()
    let_former_version_in(path / STATE_DIRECTORY)
    config = root / "connector.yaml"
    config.write_text(
        f"connector.name: test\nconnector.journal.directory: {path}\n"
        "kafka.producer.bootstrap.servers: 127.0.0.1:9\nkafka.topic.prefix: test\n"
        "snapshot.mode: never\n"
    )

    def act() -> None:
        folder = JournalFolder(path)
        is_taken_over = (folder.state / "tickets").is_dir()
        folder.close()
        assert is_taken_over
        if main(["journal", "downgrade", "--config", str(config)]) != 0:
            raise NotYet("it is not given back")

    def check() -> None:
        assert (path / STATE_DIRECTORY / "tickets").is_file()
        folder = JournalFolder(path)
        assert folder.last_ticket >= last
        given = ledger.SequenceLedger(folder, "d", True, lambda: None)
        with given.exclusive():
            assert given.last == 5
        given.close()
        folder.close()

    return act, check


def _journal(path: Path, sequence: int = 1) -> Path:
    with JournalWriter(path, uuid=UUID(path.stem), transaction=7, database=_DATABASE) as writer:
        writer.gap("it")
        writer.seal()
        writer.commit(sequence, 1)
        writer.stamp(sequence)
    return path


def dropped_database(root: Path) -> tuple[Step, Step]:
    """Remove what was kept of a database that was dropped long ago."""
    server = PlayedServer(root)
    server.create_database()
    confirmer = Confirmer(server, server.folder, fsync=True)
    given = _publish_one(server, confirmer)
    server.database_path.unlink()
    databases = server.folder.databases
    [lock] = databases.glob("*.lock")
    ledger_lock.note_gone(lock, 1)

    def act() -> None:
        confirmer._history.retire_gone()
        if list(databases.glob("*.l*")):
            raise NotYet("not all are removed")

    def check() -> None:
        server.folder.owners.mark(server.folder.owner).unlink()
        forget_start(server.folder.path)
        (root / "after").mkdir()
        after = PlayedServer(root / "after")
        after.folder, after.database_path = JournalFolder(server.folder.path), server.database_path
        after.create_database()
        assert _publish_one(after, Confirmer(after, after.folder, fsync=True)) > given

    return act, check


def _publish_one(server: PlayedServer, confirmer: Confirmer) -> tuple[int, int]:
    """Publish a journal and ship it; return its epoch and number."""
    uuid = server.commit(0)
    journal = server.folder.committed(uuid)
    _work(confirmer, journal.exists)
    number = stamp_of(server.folder, uuid).number
    journal.unlink()
    return number


def archived(root: Path) -> tuple[Step, Step]:
    """Shipped journals go to an archive."""
    archive, uuids = root / "archive", [uuid4(), uuid4()]
    journals = [_journal(root / f"{uuid}.log", at) for at, uuid in enumerate(uuids, 1)]
    archive.mkdir()
    (archive / f".{journals[0].name}.part").touch()  # a sync of it failed in another process

    def act() -> None:
        dispose_shipped([each for each in journals if each.exists()], archive)

    def check() -> None:
        for journal in journals:
            with JournalReader(archive / journal.name) as reader:
                assert list(reader.changes())

    return act, check


def packed(root: Path) -> tuple[Step, Step]:
    """Pack the journals in an archive; a keeper that was killed has left journals beside the
    segment that it had made of them."""
    names = {_journal(root / f"{uuid4()}.log", number).name for number in (1, 2)}

    def act() -> None:
        ArchiveKeeper(root, 10**6, Retention(0, 0), Statistics()).look()

    killed = {name: (root / name).read_bytes() for name in names}
    act()
    for name, content in killed.items():
        (root / name).write_bytes(content)
    names |= {_journal(root / f"{uuid4()}.log", number).name for number in (3, 4)}

    def check() -> None:
        kept = {path.name for path in root.glob("*.log")}
        for path in root.iterdir():
            if is_segment_name(path.name):
                kept.update(name for name, _ in list_segment(path))
        assert kept == names

    return act, check


def _shared_entry(root: Path, sequence: int) -> Entry:
    """Write a journal that two transactions share; return the one with number SEQUENCE."""
    path = root / f"{uuid4()}.log"
    with SharedJournalWriter.create(path, database=_DATABASE) as journal:
        for number in (sequence, sequence + 1):
            written = TransactionWriter(journal.header, number, "SYSDBA")
            written.ddl("CREATE TABLE T (N INTEGER)")
            written.seal()
            journal.append(written)
            place = journal.commit(written, number, commit_us=1)
            if number == sequence:
                entry = Entry(0, number, place.uuid, journal.header.uuid, place)
        journal.close()
    return entry


def set_aside(root: Path) -> tuple[Step, Step]:
    """Journals are set aside, one of them as a whole; notes change, and one goes."""
    quarantine = Quarantine(root)
    entries = [Entry(0, number, uuid4()) for number in (1, 2, 3)]
    for entry in entries:
        _journal(root / entry.name, entry.sequence)
    shared = _shared_entry(root, 4)
    copied: list[Entry] = []

    def act() -> None:
        if (root / entries[0].name).exists():
            if not quarantine.is_draft(entries[0].uuid):
                quarantine.leave_out(entries[0], _DATABASE, 1, "too large", [("t", b"k")])
            assert quarantine.keep([entries[0]])
            (root / entries[0].name).unlink()
        for entry in entries[1:]:
            if (root / entry.name).exists():
                quarantine.set_aside(root / entry.name, entry, _DATABASE, "it can't be read")
        if not copied:
            quarantine.set_aside(root / shared.name, shared, _DATABASE, "it can't be read")
            copied.append(shared)
        note = quarantine.find(entries[1].uuid)
        assert note is not None
        quarantine.update(note)
        quarantine.remove(entries[2].uuid)
        kept = {shared.uuid, *(entry.uuid for entry in entries[:2])}
        assert {*journals_in(quarantine.folder)} == kept
        assert (root / shared.file).exists()  # others are in it

    def check() -> None:
        for entry in (*entries[:2], shared):
            assert read_note(quarantine.folder, entry.uuid)
            with alone(open_any(quarantine.folder / f"{entry.uuid}.log")) as reader:
                assert list(reader.changes())

    return act, check


def repaired(root: Path) -> tuple[Step, Step]:
    """Repairs are written, published and remembered as sent, one of them in part."""
    (root / STATE_DIRECTORY).mkdir()
    files = RepairFolder(root)
    repairs = [
        Repair(uuid4(), _DATABASE, None, RepairPoint(0, 1), 1, (), ((),), 1) for _ in range(3)
    ]
    waits, in_part, gone = (each.uuid for each in repairs)

    def act() -> None:
        files.make()
        for repair in repairs:
            if not files.is_sent(repair.uuid):
                with RepairWriter(files, repair.uuid, _DATABASE, RepairPoint(0, 1)) as writer:
                    writer._writer.ddl("ALTER TABLE T ADD N INTEGER")
                    writer._changes[1] = _CHANGES
                    writer.finish(1)
                files.publish(repair)
        files.note_sent(in_part, repairs[1])
        files.remove(gone)

    def check() -> None:
        assert files.pending() == [waits]
        assert files.is_sent(in_part)
        with JournalReader(files.journal(waits)) as reader:
            assert list(reader.changes())

    return act, check


def remembered(root: Path) -> tuple[Step, Step]:
    """Remember the identity of a folder in Kafka, and what was missing in it."""
    (root / STATE_DIRECTORY).mkdir()
    shown: list[str] = []

    def act() -> None:
        memory = Shipped(root, "positions")
        memory.load()
        shown.append(memory.identity)
        memory.miss(_DATABASE, (0, 3), (0, 3))
        memory.write()
        memory.write()  # what could not be written is tried again

    def check() -> None:
        memory = Shipped(root, "positions")
        memory.load()
        assert memory.identity == shown[-1]
        assert memory.databases[_DATABASE].missing

    return act, check


def claimed(root: Path) -> tuple[Step, Step]:
    """Tables come to their topics, one with each start of the shipper, and one while it runs."""
    tables = [(_DATABASE, name) for name in "ABCD"]
    memory = root / SHARED_TOPICS
    config = configuration(root, {})

    def act() -> None:
        for number in range(1, len(tables)):
            topics = TopicNames(config)
            topics.settle(topics.remember_in(memory), lambda *_: True)
            for table in tables[: number + 1]:
                topics.of_table(*table)

    def check() -> None:
        assert read_owners(memory) == tables

    return act, check


def asked(root: Path) -> tuple[Step, Step]:
    """A request to the shipper, and the answer."""
    (root / STATE_DIRECTORY).mkdir()
    found: list[Path] = []

    def act() -> None:
        if not found:
            found.append(write_request(root, {"it": 1}))
        if not RequestFolder(found[0].parent).answer(Request(found[0], b""), {"it": 2}):
            raise NotYet("no answer")

    def check() -> None:
        assert found[0].with_suffix(".answer").read_text() == '{"it": 2}'

    return act, check


def locked(root: Path) -> tuple[Step, Step]:
    """The shipper makes its folder."""
    lock = ShipperLock(root / "a" / "journals")

    def act() -> None:
        lock.take()
        lock.release()

    return act, lambda: None


def installed(root: Path) -> tuple[Step, Step]:
    """A file of a server is changed."""

    def act() -> None:
        with FileChanges() as changes:
            changes.write(root / "plugins.conf", b"it\n")

    def check() -> None:
        assert (root / "plugins.conf").read_bytes() == b"it\n"

    return act, check


def compacted(root: Path) -> tuple[Step, Step]:
    """An archive is written anew, a journal as it is and another one into Parquet."""
    journal = _journal(root / f"{uuid4()}.log")
    with JournalReader(journal) as reader:
        assert reader.stamp is not None
        length = reader.stamp.journal_length
    source = _Source(str(journal), 1, length, 1, 1, 1, 0)
    jobs = [_Job((str(root),), str(root / kind), kind, "UTF-8") for kind in (SEGMENTS, PARQUET)]

    def act() -> None:
        for job in jobs:
            target = _Target(job.output)
            target.make()
            made = _Worker(job).make(_DATABASE, 0, True, [source])
            if made.part is not None:
                target.name(made.part, made.target)

    def check() -> None:
        assert (root / SEGMENTS / journal.name).read_bytes() == journal.read_bytes()[:length]
        [table] = (root / PARQUET).rglob("*.parquet")
        assert _Worker(jobs[1])._parquet_content(str(table.relative_to(root / PARQUET)))

    return act, check


SCENARIOS: tuple[Scenario, ...] = (
    own_journals,
    left_journals,
    damaged_journal,
    left_shared_journals,
    lost_stamps,
    dropped_database,
    archived,
    packed,
    set_aside,
    repaired,
    remembered,
    claimed,
    asked,
    locked,
    installed,
    compacted,
    changed_version,
    kept_snapshot,
    signalled,
    asked_for_snapshot,
)
