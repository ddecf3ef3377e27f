"""Folders of journals wherever they are: on a disk, in HDFS or in an object store.

A folder is named by a plain path or by a URI that pyarrow's file systems know. `SCHEMES` lists
those that are read; another one is refused by its name. Options of the store stand in the URI's
query: ``s3://bucket/dir?region=eu-west-1&endpoint_override=127.0.0.1:9000&scheme=http``.
Credentials never do, since Spark shows paths in plans and logs: the store's own ways of finding
them (environment, profile, role of the machine) are used where the files are read.

A `Folder` is a small value that pickles; what is open stays in the process that opened it.
Local files are read by plain system calls, so pyarrow's file systems are not even loaded for them.
Sources: Arrow's documentation, "Filesystem Interface"; PySpark 4.1's data source API.
"""

from __future__ import annotations

import errno
import io
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast
from urllib.parse import unquote, urlsplit

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.folder.open_journals import given_in_open
from firebird_cdc.journal.folder.segments import is_segment_name, list_segment, unpack
from firebird_cdc.journal.format import (
    JournalReader,
    Place,
    RandomAccess,
    SharedJournal,
    alone,
    open_any,
)

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem  # type: ignore[import-untyped,import-not-found,unused-ignore]

SCHEMES = ("file", "hdfs", "s3")

JOURNAL_SUFFIX = ".log"

OPEN_SUFFIX = ".live"
"""End of the name, behind that, while a journal is not closed."""

NOTE_SUFFIX = ".json"
"""End of the name, in place of a journal's, of the note on one in the quarantine."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")

_WINDOW = 1024 * 1024
"""Bytes that one request to a remote store brings at least; a guess, not measured."""


class Entry(NamedTuple):
    """A file of a folder."""

    name: str
    size: int


class Folder(ABC):
    """A folder at ``url``: an absolute path, or a URI as the user gave it. Pickles as that text.

    ``is_remote``: a look at it takes a request to a store.

    NAME is that of a file in it, or ``SEGMENT.zip/<uuid>.log`` for a journal in a segment; a
    transaction in a shared journal has its own ``<uuid>.log`` behind that. All methods raise
    FileNotFoundError if it is not there, and OSError if it can't be read.
    """

    is_remote = False

    def __init__(self, url: str) -> None:
        self.url = url

    def __reduce__(self) -> tuple[object, ...]:
        return (folder_at, (self.url,))

    def __repr__(self) -> str:
        return f"Folder({self.url!r})"

    @abstractmethod
    def check(self) -> None:
        """Raise OSError if the folder is not there or can't be read."""

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """Yield the files of the folder, in no order, without those below its own folders."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Tell whether a file of that name is there."""

    @abstractmethod
    def place(self, name: str) -> str:
        """Return the full name of a file, without the options of the store."""

    @abstractmethod
    def stream(self, name: str) -> BinaryIO:
        """Return the file, open for reading one piece after the other."""

    @abstractmethod
    def _open(self, name: str) -> RandomAccess: ...

    def open(self, name: str) -> RandomAccess:
        """Return the file, open for ranged reads; whoever asked closes it."""
        return _InMemory(self.read(name)) if "/" in name else self._open(name)

    def open_journal(self, name: str, none_charset: str = "UTF-8") -> JournalReader | SharedJournal:
        """Return a reader of a journal, or of one that transactions share; raises as both do."""
        place = self.place(name)
        if is_segment_name(name):
            self.members(name)  # which says what is wrong, if it is no segment
        content = self.read(name) if "/" in name else None
        opener = partial(self.open, name) if self.is_remote and content is None else None
        return open_any(place, none_charset, content, opener)

    def open_journals(self) -> Iterator[tuple[str, list[Place]]]:
        """Yield name and committed transactions of the shared journals that are not closed."""
        yield from ()

    def read(self, name: str) -> bytes:
        """Return the whole content of a file."""
        segment, _, member = name.rpartition("/")
        if segment:
            return unpack(self.place(segment), member, partial(self.stream, segment))
        file = self.open(name)
        try:
            return file.read_at(file.size(), 0)
        finally:
            file.close()

    def members(self, segment: str) -> list[tuple[str, int]]:
        """Return name and length of the journals in a segment. Raises JournalCorrupt."""
        with self.stream(segment) as stream:
            return list_segment(self.place(segment), stream)

    def journal(self, name: str, none_charset: str = "UTF-8") -> JournalReader:
        """Return a reader of a journal, or of a transaction in one; raises as that does."""
        file, transaction = split_name(name)
        if transaction:
            uuid = transaction[1:].removesuffix(JOURNAL_SUFFIX)
            return self._in_shared(file, uuid, none_charset)
        return alone(self.open_journal(name, none_charset), none_charset)

    def _in_shared(self, file: str, uuid: str, none_charset: str) -> JournalReader:
        opened = self.open_journal(file, none_charset)
        with opened:
            if isinstance(opened, SharedJournal):
                place = opened.find(uuid)
                if place is not None:
                    return opened.reader(place, none_charset)
        raise FileNotFoundError(errno.ENOENT, f"holds no transaction {uuid}", self.place(file))


class _InMemory:
    """`RandomAccess` of what was in a segment."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def size(self) -> int:
        return len(self._content)

    def read_at(self, nbytes: int, offset: int) -> bytes:
        return self._content[offset : offset + nbytes]

    def close(self) -> None:
        pass


class _LocalFile:
    """`RandomAccess` of a file on a disk."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read_at(self, nbytes: int, offset: int) -> bytes:
        pieces = []
        while nbytes and (piece := os.pread(self._fd, nbytes, offset)):
            pieces.append(piece)
            nbytes -= len(piece)
            offset += len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _LocalFolder(Folder):
    def __init__(self, url: str, path: str) -> None:
        super().__init__(url)
        self._path = path

    def check(self) -> None:
        os.scandir(self._path).close()

    def entries(self) -> Iterator[Entry]:
        with os.scandir(self._path) as entries:
            for entry in entries:
                try:
                    if entry.is_file():
                        facts = entry.stat()
                        yield Entry(entry.name, facts.st_size)
                except FileNotFoundError:
                    continue  # shipped and deleted, or packed, since the folder was opened

    def open_journals(self) -> Iterator[tuple[str, list[Place]]]:
        names = [entry.name for entry in self.entries() if entry.name.endswith(OPEN_SUFFIX)]
        yield from given_in_open(Path(self._path), names).items()

    def open_journal(self, name: str, none_charset: str = "UTF-8") -> JournalReader | SharedJournal:
        if name.endswith(OPEN_SUFFIX):
            found = given_in_open(Path(self._path), [name])
            if name in found:
                return SharedJournal(self.place(name), places=found[name])
        return super().open_journal(name, none_charset)

    def exists(self, name: str) -> bool:
        return Path(self.place(name)).is_file()

    def place(self, name: str) -> str:
        return f"{self._path}/{name}"

    def stream(self, name: str) -> BinaryIO:
        return Path(self.place(name)).open("rb")

    def _open(self, name: str) -> RandomAccess:
        return _LocalFile(self.place(name))


class _RemoteFile:
    """`RandomAccess` of a file in a store: each request brings `_WINDOW` bytes or more."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._size: int = file.size()
        self._start = 0
        self._window = b""

    def size(self) -> int:
        return self._size

    def read_at(self, nbytes: int, offset: int) -> bytes:
        nbytes = min(nbytes, self._size - offset)
        if nbytes <= 0:
            return b""
        at = offset - self._start
        if not 0 <= at <= len(self._window) - nbytes:
            self._window = self._file.read_at(
                min(max(nbytes, _WINDOW), self._size - offset), offset
            )
            self._start, at = offset, 0
        return self._window[at : at + nbytes]

    def close(self) -> None:
        self._file.close()
        self._window = b""


class _RemoteFolder(Folder):
    is_remote = True

    def __init__(self, url: str, system: FileSystem, base: str) -> None:
        super().__init__(url)
        self._system = system
        self._base = base.rstrip("/")
        self._plain = url.partition("?")[0].rstrip("/")

    def check(self) -> None:
        from pyarrow.fs import FileType

        kind = self._system.get_file_info(self._base or "/").type
        if kind == FileType.NotFound:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if kind != FileType.Directory:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        for _ in self.entries():
            break

    def entries(self) -> Iterator[Entry]:
        from pyarrow.fs import FileSelector, FileType

        for info in self._system.get_file_info(FileSelector(self._base or "/")):
            if info.type == FileType.File:
                yield Entry(info.base_name, info.size or 0)

    def exists(self, name: str) -> bool:
        from pyarrow.fs import FileType

        return bool(self._system.get_file_info(f"{self._base}/{name}").type == FileType.File)

    def place(self, name: str) -> str:
        return f"{self._plain}/{name}"

    def stream(self, name: str) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(self._file(name), _WINDOW))

    def _open(self, name: str) -> RandomAccess:
        return _RemoteFile(self._file(name))

    def _file(self, name: str) -> Any:
        return self._system.open_input_file(f"{self._base}/{name}")


def open_folder(url: str) -> Folder:
    """Return the folder at URL. Raises ReplayError if its scheme is not one of `SCHEMES`, or if
    it is not there or can't be read, saying which."""
    folder = folder_at(url)
    try:
        folder.check()
    except OSError as error:
        raise ReplayError(unreadable(url, error)) from error
    return folder


def unreadable(url: str, error: OSError) -> str:
    """Return the sentence on a folder that can't be read."""
    cause = error.strerror or str(error).partition("\n")[0]
    where = "" if _scheme_of(url) in ("s3", "hdfs") else " on the driver and on every executor"
    return f"cannot read the folder of journals {url}: {cause}; it has to be there{where}"


def no_history(what: str) -> str:
    """Return what to tell when there is nothing to replay; WHAT: a clause that says why."""
    return (
        f"there is no history to read: {what}. Journals are deleted once they are shipped unless"
        " they are kept: set connector.journal.archive.directory: DIR in"
        " reddatabase.connector.yaml; what is shipped from then on can be replayed"
    )


def describe_empty(folders: Sequence[str]) -> str:
    """Return a clause on what is in FOLDERS, which hold no journal. Raises as `open_folder`."""
    clauses = []
    for url in folders:
        names = sorted(entry.name for entry in open_folder(url).entries())
        others = f"; other files are there, such as {names[0]}" if names else ": it is empty"
        clauses.append(f"{url} holds no journal (*.log){others}")
    return ", ".join(clauses)


@lru_cache(maxsize=256)
def folder_at(url: str) -> Folder:
    """Return the folder at URL without looking whether it is there. Raises ReplayError on a URL
    that can't be one."""
    scheme = _scheme_of(url)
    if scheme is None:
        path = str(Path(url).absolute())
        return _LocalFolder(path, path)
    if scheme not in SCHEMES:
        *most, last = (f"{known}:" for known in SCHEMES)
        raise ReplayError(
            f"{_without_secrets(url)}: the scheme {scheme}: is not one that journals are read"
            f" from; give a plain path, {', '.join(most)} or {last}"
        )
    parts = urlsplit(url)
    if scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise ReplayError(f"{url}: give a file: URI an absolute path, as in file:///archive")
        path = unquote(parts.path).rstrip("/") or "/"
        return _LocalFolder(url, path)
    if "@" in parts.netloc:
        raise ReplayError(
            f"{_without_secrets(url)}: a path shows in Spark's plans and logs, so it must not hold"
            " credentials; give them by the environment (AWS_ACCESS_KEY_ID,"
            " AWS_SECRET_ACCESS_KEY) of driver and executors, or by a profile or role there"
        )
    from pyarrow.fs import FileSystem

    try:
        system, base = FileSystem.from_uri(url)
    except (OSError, ValueError) as error:
        cause = str(error).partition("\n")[0]
        hint = (
            "; it needs Java's and Hadoop's libraries: JAVA_HOME, HADOOP_HOME, and CLASSPATH as"
            " `hadoop classpath --glob` prints it"
            if scheme == "hdfs"
            else ""
        )
        raise ReplayError(f"{url}: {scheme}: can't be used here: {cause}{hint}") from error
    return _RemoteFolder(url, system, base)


def split_name(name: str) -> tuple[str, str]:
    """Return the journal's part of a name, and that of a transaction in it, with its slash: ""
    where the name is a journal's."""
    file, _, transaction = name.rpartition("/")
    if file.endswith((JOURNAL_SUFFIX, OPEN_SUFFIX)):
        return file, f"/{transaction}"
    return name, ""


def name_in(name: str, place: Place) -> str:
    """Return the name of a transaction in the shared journal NAME."""
    return f"{name}/{place.uuid}{JOURNAL_SUFFIX}"


def folder_of(file: str, folders: Iterable[Folder]) -> tuple[Folder, str]:
    """Return which of FOLDERS, the innermost one, FILE is in, and its name there."""
    inside = (folder for folder in folders if file.startswith(folder.place("")))
    folder = max(inside, key=lambda each: len(each.place("")))
    return folder, file.removeprefix(folder.place(""))


def partition_value(name: str) -> str:
    """Return a name as Spark writes it into a folder of a partition column (its
    ``ExternalCatalogUtils.escapePathName``)."""
    return name.translate(_ESCAPES)


_ESCAPES = {code: f"%{code:02X}" for code in (*range(0x20), 0x7F, *map(ord, "\"#%'*/:=?[\\]^{"))}


def _scheme_of(url: str) -> str | None:
    scheme = _SCHEME.match(url)
    return scheme[1].lower() if scheme else None


def _without_secrets(url: str) -> str:
    return re.sub(r"//[^/]*@", "//***@", url)
