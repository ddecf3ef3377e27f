"""Journals are found where they went since they were listed."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pytest

from firebird_cdc.journal.folder.segments import close_segments, pack
from firebird_cdc.journal.format import JournalWriter
from firebird_cdc.journal.replay.source.finder import JournalFinder
from firebird_cdc.journal.replay.source.storage import Folder, open_folder

_SEGMENT = f"{'ab' * 8}-1-1-9.zip"


class _Folders:
    """A folder of journals and an archive, and three journals in the first."""

    def __init__(self, root: Path) -> None:
        self.live, self.archive = root / "live", root / "archive"
        for path in (self.live, self.archive):
            path.mkdir()
        self.uuids = [uuid4() for _ in range(3)]
        for uuid in self.uuids:
            with JournalWriter(self.live / f"{uuid}.log", uuid=uuid) as writer:
                writer.seal()
                writer.commit(1, 1)
                writer.stamp(1)
        self.opened = [open_folder(str(path)) for path in (self.live, self.archive)]

    def pack(self, folder: Path, *uuids: UUID, remove: bool = True) -> None:
        files = [self.live / f"{uuid}.log" for uuid in uuids]
        with (folder / _SEGMENT).open("wb") as segment:
            pack(segment, ((path.name, 1, path.read_bytes()) for path in files))
        if remove:
            for path in files:
                path.unlink()


@pytest.fixture
def folders(tmp_path: Path) -> _Folders:
    return _Folders(tmp_path)


def _found(finder: JournalFinder, folder: Folder, uuid: UUID) -> str:
    place, name, reader = finder.open(folder, f"{uuid}.log")
    with reader:
        assert reader.header.uuid == uuid
    return f"{Path(place.url).name}/{name}"


def test_journal_is_opened_where_it_was_listed(folders: _Folders) -> None:
    uuid = folders.uuids[0]
    assert _found(JournalFinder([]), folders.opened[0], uuid) == f"live/{uuid}.log"


def test_archived_journal_is_found_in_the_other_folder(folders: _Folders) -> None:
    uuid = folders.uuids[0]
    (folders.live / f"{uuid}.log").rename(folders.archive / f"{uuid}.log")
    finder = JournalFinder(folders.opened)
    assert _found(finder, folders.opened[0], uuid) == f"archive/{uuid}.log"


@pytest.mark.parametrize("where", ["live", "archive"])
def test_packed_journal_is_found_in_its_segment(folders: _Folders, where: str) -> None:
    folders.pack(getattr(folders, where), *folders.uuids)
    others = folders.opened[1:]  # the folder it was in need not be one of those
    finder = JournalFinder(others, (f"{uuid}.log" for uuid in folders.uuids))
    for uuid in folders.uuids:
        assert _found(finder, folders.opened[0], uuid) == f"{where}/{_SEGMENT}/{uuid}.log"


def test_journal_that_left_its_segment_is_found_again(folders: _Folders) -> None:
    uuid, *others = folders.uuids
    kept = (folders.live / f"{uuid}.log").read_bytes()
    folders.pack(folders.archive, *folders.uuids)
    finder = JournalFinder(folders.opened, (f"{each}.log" for each in folders.uuids))
    assert _SEGMENT in _found(finder, folders.opened[0], others[0])
    (folders.archive / _SEGMENT).unlink()
    close_segments()  # while it is open it can be read
    (folders.archive / f"{uuid}.log").write_bytes(kept)
    assert _found(finder, folders.opened[0], uuid) == f"archive/{uuid}.log"


def test_journal_that_is_nowhere_is_named_as_vanished(folders: _Folders) -> None:
    path = folders.live / f"{folders.uuids[0]}.log"
    path.unlink()
    with pytest.raises(FileNotFoundError, match=rf"^{path}: the file vanished"):
        JournalFinder(folders.opened).open(folders.opened[0], path.name)


def test_journal_of_a_folder_that_cannot_be_used_is_found_by_its_name(folders: _Folders) -> None:
    uuid = folders.uuids[0]
    finder = JournalFinder(folders.opened)
    place, name, reader = finder.open_file(f"nosuchstore://bucket/{uuid}.log", "UTF-8")
    with reader:
        assert (place, name) == (folders.opened[0], f"{uuid}.log")


def test_content_is_that_of_the_place_where_it_is(folders: _Folders) -> None:
    uuid = folders.uuids[0]
    content = (folders.live / f"{uuid}.log").read_bytes()
    folders.pack(folders.archive, uuid)
    finder = JournalFinder(folders.opened)
    assert finder.find(folders.opened[0], f"{uuid}.log", Folder.read)[2] == content
