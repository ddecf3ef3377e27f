"""The disks that a power cut can leave, from what power_recorder.c recorded.

``Disk.apply`` takes one record after the other; ``Disk.write_to`` then writes, at any moment,
one of the disks that could be found after a cut right there, chosen by a seeded random:

- Bytes that a completed sync covers, or a completed write through a synchronous descriptor, are
  there. Any other 4 KiB block of a file may be in any of the states that it went through since,
  or, torn, a part of its 512-byte sectors in one and the others in another. The sizes that a file
  had since its last sync are as possible.
- What a sync that failed was to write is not there, and later syncs of the file succeed without it:
  only a block that is written to again comes to the disk, as a whole.
- The database's pages are not torn: the engine relies on that, and has no means against it. A
  page whose write has not returned may be there or not.
- Names (created, renamed, removed) that are not synced may have changed or not. A rename is
  atomic, and what happened to one file's name happened in order. Further, by policy:
    posix  only a sync of its folder makes a name durable; different files are independent;
    ext4   all changes of names reach the disk in the order in which they were made; a sync of a
           file takes those along that concern itself, and all before them, and one that has to
           put a new size on disk takes all.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

POLICIES = ("posix", "ext4")
_BLOCK = 4096
_SECTOR = 512
_HEAD = struct.Struct("<IHHiIQQ")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MOST_OF_NOTE = 512  # bytes of a file that says of which start of the machine it is

CREATE, MKDIR, WRITE, RESIZE, RENAME, LINK, UNLINK, RMDIR = range(1, 9)
SYNC_BEGIN, SYNC_END, WRITTEN, NOTE, MAPPED, SYNC_FAILED = range(9, 15)


class Record(NamedTuple):
    """One completed operation, or one end of a sync."""

    order: int
    kind: int
    data_only: bool
    process: int
    pair: int
    inode: int
    offset: int
    content: bytes

    @property
    def text(self) -> str:
        """The path, or the note."""
        return self.content.decode()


def read_records(path: Path) -> Iterator[Record]:
    """Yield what was recorded, in order."""
    with path.open("rb") as file:
        index = 0
        while head := file.read(_HEAD.size):
            length, kind, extra, process, pair, inode, offset = _HEAD.unpack(head)
            content = file.read(length)
            yield Record(index, kind, bool(extra), process, pair, inode, offset, content)
            index += 1


class _Piece(NamedTuple):
    """Content that one write put into one block."""

    order: int
    start: int
    content: bytes


@dataclass(eq=False)
class File:
    """A file: what is durable of it, what may be, and what a process would read."""

    block: int
    is_torn: bool  # blocks can be torn
    durable: bytearray = field(default_factory=bytearray)
    now: bytearray = field(default_factory=bytearray)
    pieces: dict[int, list[_Piece]] = field(default_factory=dict)  # not durable, by block
    sizes: list[tuple[int, int]] = field(default_factory=list)  # not durable: index, size
    lost: set[int] = field(default_factory=set)  # blocks that a failed sync did not write

    def write(self, index: int, offset: int, content: bytes) -> None:
        end = offset + len(content)
        if end > len(self.now):
            self.resize(index, end)
        self.now[offset:end] = content
        at = offset
        while at < end:
            number, start = divmod(at, self.block)
            length = min(self.block - start, end - at)
            if number in self.lost:
                self.lost.discard(number)
                whole = bytes(self.now[number * self.block : (number + 1) * self.block])
                self.pieces.setdefault(number, []).append(_Piece(index, 0, whole))
            piece = _Piece(index, start, content[at - offset : at - offset + length])
            self.pieces.setdefault(number, []).append(piece)
            at += length

    def resize(self, index: int, size: int) -> None:
        before = len(self.now)
        if size == before:
            return
        self.sizes.append((index, size))
        _resize(self.now, size)
        for number in range(size // self.block, -(-before // self.block)):
            start = max(0, size - number * self.block)
            piece = _Piece(index, start, bytes(self.block - start))
            self.pieces.setdefault(number, []).append(piece)

    def settle(self, until: int, first: int = 0, last: int | None = None) -> bool:
        """Make durable what was done before record UNTIL, in blocks FIRST to LAST; return
        whether there was a new size to be made durable."""
        sizes = [size for index, size in self.sizes if index < until]
        del self.sizes[: len(sizes)]
        for size in sizes:
            _resize(self.durable, size)
        for number in list(self.pieces):
            if number < first or (last is not None and number > last):
                continue
            waiting = self.pieces[number]
            count = sum(piece.order < until for piece in waiting)
            content = self._state(number, count)
            offset = number * self.block
            kept = len(self.durable) - offset
            if kept > 0:
                self.durable[offset : offset + self.block] = content[:kept]
            self.pieces[number] = waiting[count:]
            if not self.pieces[number]:
                del self.pieces[number]
        return bool(sizes)

    def lose(self) -> None:
        """Let what is not durable count as written, and not be."""
        self.lost.update(self.pieces)
        self.pieces.clear()

    def _state(self, number: int, count: int) -> bytearray:
        """Return a block as it is once COUNT of what waits for it is on disk."""
        content = self.durable[number * self.block : (number + 1) * self.block]
        _resize(content, self.block)
        for piece in self.pieces[number][:count]:
            content[piece.start : piece.start + len(piece.content)] = piece.content
        return content

    def after_cut(self, chance: random.Random) -> bytes:
        """Return what could be found in it."""
        mood = _mood(chance)
        found = bytearray(self.durable)
        size = len(found)
        if chosen := _some(mood, len(self.sizes), chance):
            size = self.sizes[chosen - 1][1]
        _resize(found, max([size, *(each for _, each in self.sizes)]))
        for number, waiting in self.pieces.items():
            content = self._state(number, _some(mood, len(waiting), chance))
            if self.is_torn and mood == "some" and chance.random() < 0.3:
                other = self._state(number, _some(mood, len(waiting), chance))
                for at in range(0, self.block, _SECTOR):
                    if chance.random() < 0.5:
                        content[at : at + _SECTOR] = other[at : at + _SECTOR]
            offset = number * self.block
            kept = max(0, len(found) - offset)
            found[offset : offset + self.block] = content[:kept]
        _resize(found, size)
        return bytes(found)


@dataclass(eq=False)
class Directory:
    """A folder; what is in it is told by the paths."""


Node = File | Directory


class _Change(NamedTuple):
    """A change of names that is not durable."""

    order: int
    node: Node
    gone: str | None  # a path that leads nowhere afterwards
    come: str | None  # one that leads to the node

    def durable_with(self, folder: str, policy: str) -> bool:
        """Tell whether a sync of FOLDER makes the change durable."""
        if self.come is not None and os.path.dirname(self.come) == folder:  # noqa: PTH120
            return True
        left = self.gone is not None and os.path.dirname(self.gone) == folder  # noqa: PTH120
        return left and (self.come is None or policy == "ext4")


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _mood(chance: random.Random) -> str:
    return chance.choice(("nothing", "everything", "some", "some"))


def _some(mood: str, count: int, chance: random.Random) -> int:
    return {"nothing": 0, "everything": count}.get(mood, chance.randint(0, count))


class Disk:
    """A folder on a disk, from its state at the start of the record."""

    def __init__(self, root: Path, database: Path, page_size: int, policy: str) -> None:
        """Take ROOT as it is: all of it is durable."""
        assert policy in POLICIES
        self.root = root
        self._policy = policy
        self._database = str(database)
        self._page_size = page_size
        self._nodes: dict[int, Node] = {}  # by inode
        self.now: dict[str, Node] = {}
        self._durable: dict[str, Node] = {}
        self._changes: list[_Change] = []
        self._open: dict[tuple[int, int], Record] = {}  # syncs, synchronous writes
        for folder, folders, files in os.walk(root):
            for name in folders:
                self._take(Path(folder, name), Directory())
            for name in files:
                path = Path(folder, name)
                content = path.read_bytes()
                node = self._file(str(path))
                node.durable, node.now = bytearray(content), bytearray(content)
                self._take(path, node)
        self._nodes[root.stat().st_ino] = self._root = Directory()

    def _file(self, path: str) -> File:
        is_database = path == self._database
        return File(self._page_size if is_database else _BLOCK, not is_database)

    def _take(self, path: Path, node: Node) -> None:
        self._nodes[path.stat().st_ino] = node
        self.now[str(path)] = self._durable[str(path)] = node

    def name_of(self, inode: int) -> str:
        """Return the name of a journal now; empty for anything else."""
        node = self._nodes.get(inode)
        paths = [path for path, each in self.now.items() if each is node and ".log" in path]
        return Path(paths[0]).name if paths else ""

    def content(self, path: str) -> bytes:
        """Return what a process would read now."""
        node = self.now[path]
        assert isinstance(node, File)
        return bytes(node.now)

    # -- what happens

    def apply(self, record: Record) -> None:
        """Let one more operation happen."""
        kind, index, key = record.kind, record.order, (record.process, record.pair)
        if kind in (WRITE, MAPPED):
            self._file_of(record).write(index, record.offset, record.content)
            if record.pair:
                self._open[key] = record
        elif kind == WRITTEN:
            write = self._open.pop(key)
            file = self._file_of(write)
            last = (write.offset + len(write.content) - 1) // file.block
            file.settle(write.order + 1, write.offset // file.block, last)
        elif kind == RESIZE:
            self._file_of(record).resize(index, record.offset)
        elif kind == SYNC_BEGIN:
            self._open[key] = record
        elif kind == SYNC_END:
            self._sync(self._open.pop(key))
        elif kind == SYNC_FAILED:
            self._lose(record.inode)
        elif kind != NOTE:
            self._change_names(record)

    def _lose(self, inode: int) -> None:
        """A sync failed. One of everything concerns here what nobody syncs by itself: any other
        file's own sync, which is still to come, tells of it, too."""
        if inode:
            nodes = [self._nodes[inode]]
        else:
            nodes = [node for path, node in self.now.items() if path.endswith(".log")]
        for node in nodes:
            if isinstance(node, File):
                node.lose()
        for write in self._open.values():  # synchronous ones under way would tell of it, too
            if write.kind == WRITE and any(self._nodes[write.inode] is node for node in nodes):
                self._file_of(write).write(write.order, write.offset, write.content)

    def _file_of(self, record: Record) -> File:
        node = self._nodes[record.inode]
        assert isinstance(node, File), record
        return node

    def _change_names(self, record: Record) -> None:
        kind, gone, come = record.kind, None, None
        if kind in (CREATE, MKDIR):
            come = record.text
            self._nodes[record.inode] = Directory() if kind == MKDIR else self._file(come)
        elif kind == RENAME:
            gone, come = record.text.split("\0")
        elif kind == LINK:
            come = record.text
        else:
            gone = record.text
        node = self._nodes[record.inode]
        if gone is not None:
            assert self.now.pop(gone) is node, record
        if come is not None:
            self.now[come] = node
        self._changes.append(_Change(record.order, node, gone, come))

    def _sync(self, begin: Record) -> None:
        """A sync that began with this record has ended."""
        if begin.inode == 0:
            for node in self._nodes.values():
                if isinstance(node, File):
                    node.settle(begin.order)
            self._settle_names(begin.order, lambda _: True)
            return
        node = self._nodes[begin.inode]
        if isinstance(node, Directory):
            folder = next((path for path, each in self.now.items() if each is node), str(self.root))
            self._settle_names(begin.order, lambda each: each.durable_with(folder, self._policy))
            return
        grown = node.settle(begin.order)
        if self._policy == "ext4":
            self._settle_names(
                begin.order, lambda each: grown or (each.node is node and not begin.data_only)
            )

    def _settle_names(self, until: int, is_covered: Callable[[_Change], bool]) -> None:
        covered = [each for each in self._changes if each.order < until and is_covered(each)]
        if not covered:
            return
        last = covered[-1].order
        if self._policy == "ext4":
            done = [each for each in self._changes if each.order <= last]
        else:  # what happened to the same file before cannot come after
            latest = {each.node: each.order for each in covered}
            done = [each for each in self._changes if each.order <= latest.get(each.node, -1)]
        _rename_all(self._durable, done)
        chosen = set(done)
        self._changes = [each for each in self._changes if each not in chosen]

    # -- what is left of it

    def after_cut(self, chance: random.Random) -> dict[str, Node]:
        """Return what the names could lead to after a cut of the power at this moment."""
        found = dict(self._durable)
        mood = _mood(chance)
        if self._policy == "ext4":
            _rename_all(found, self._changes[: _some(mood, len(self._changes), chance)])
        else:
            chains: dict[Node, list[_Change]] = {}
            for each in self._changes:
                chains.setdefault(each.node, []).append(each)
            happened = [
                each
                for chain in chains.values()
                for each in chain[: _some(mood, len(chain), chance)]
            ]
            _rename_all(found, sorted(happened, key=lambda each: each.order))
        root = str(self.root)
        reachable: dict[str, Node] = {}
        for path in sorted(found):  # a folder comes before what is in it
            above = os.path.dirname(path)  # noqa: PTH120
            if above == root or isinstance(reachable.get(above), Directory):
                reachable[path] = found[path]
        return reachable

    def write_to(self, root: Path, chance: random.Random, is_late: bool = False) -> None:
        """Make the folder ROOT, with the same paths, what a cut at this moment could leave.

        The database's file stays the same one, with other content. IS_LATE: no page of it is there
        whose write has not returned.
        """
        found = self.after_cut(chance)
        for entry in list(os.scandir(root)):
            if entry.path != self._database:
                shutil.rmtree(entry.path) if entry.is_dir() else Path(entry.path).unlink()
        written: dict[Node, str] = {}
        for path, node in found.items():
            if isinstance(node, Directory):
                Path(path).mkdir(mode=0o700)
            elif node in written:
                os.link(written[node], path)
            else:
                written[node] = path
                flags = os.O_WRONLY | os.O_CREAT | (0 if path == self._database else os.O_EXCL)
                fd = os.open(path, flags, 0o600)
                is_durable_only = is_late and path == self._database
                content = bytes(node.durable) if is_durable_only else node.after_cut(chance)
                os.pwrite(fd, content, 0)
                os.ftruncate(fd, len(content))
                os.close(fd)

    def differences(self) -> list[str]:
        """Return the paths at which the folder is not what the record makes of it: operations
        that the recorder did not see."""
        seen = dict(self.now)
        wrong = []
        for folder, folders, files in os.walk(self.root):
            for name in [*folders, *files]:
                path = os.path.join(folder, name)  # noqa: PTH118
                node = seen.pop(path, None)
                same = isinstance(node, File) and Path(path).read_bytes() == node.now
                if not same and not (name in folders and isinstance(node, Directory)):
                    wrong.append(path)
        return [*wrong, *seen]


def _rename_all(names: dict[str, Node], changes: Iterable[_Change]) -> None:
    for each in changes:
        if each.gone is not None and names.get(each.gone) is each.node:
            del names[each.gone]
        if each.come is not None:
            names[each.come] = each.node


def forget_start(journal_directory: Path) -> None:
    """Have what JOURNAL_DIRECTORY notes of this start of the machine be of the one before, as it is
    after a cut."""
    before, now = b"the start before", _BOOT_ID.read_bytes().strip()
    state = journal_directory / ".firebird-cdc"
    for path in [*state.glob("*"), *state.glob("owners/*"), *state.glob("databases/*.doubt")]:
        if path.is_file() and path.stat().st_size < _MOST_OF_NOTE:
            path.write_bytes(path.read_bytes().replace(now, before))
    raw = UUID(now.decode()).bytes
    for path in [state / "commits", *state.glob("slots/*")]:
        if path.exists() and raw in (content := path.read_bytes()):
            path.write_bytes(content.replace(raw, bytes(len(raw))))
