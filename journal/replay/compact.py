"""Many small journals of an archive into few large segments, or all changes into Parquet.

The history of each database is cut into pieces of some size, in the order of its sequence, and a
task makes one file of each: under a hidden name, read back and compared with what it was made of.
Only when all pieces are made, and hold together as many journals and events as were found, do the
files get their names. So a run that ends in the middle leaves nothing that anybody reads, and the
next one goes on from what has its name already; one at a time writes to a folder. The driver holds
one small row per file.

A journal that transactions share goes into a segment whole, as the archive's keeper packs it, by
its first number: who knows a transaction by the journal's name finds it there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from firebird_cdc.config.arguments import positive
from firebird_cdc.errors import JournalError, ReplayError
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.folder.segments import (
    SEGMENT_JOURNALS,
    SEGMENT_SUFFIX,
    SMALL_BYTES,
    is_segment_name,
    pack,
    segment_name,
)
from firebird_cdc.journal.format import JournalReader, SequenceChange, SharedJournal, open_any
from firebird_cdc.journal.replay.arguments import add_common_options, source_of
from firebird_cdc.journal.replay.source.finder import JournalFinder, T
from firebird_cdc.journal.replay.source.storage import (
    Folder,
    folder_at,
    folder_of,
    open_folder,
    partition_value,
)
from firebird_cdc.output import tell

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]
    from pyarrow.fs import FileSystem  # type: ignore[import-untyped,import-not-found,unused-ignore]
    from pyspark.sql import DataFrame, SparkSession

    from firebird_cdc.journal.format import RandomAccess

SEGMENTS, PARQUET = "segments", "parquet"
TARGET_BYTES = 64 * 1024 * 1024

_MOST_TASKS = 10_000
_COPY_BYTES = 4 * 1024 * 1024
_PART = ".part"
_PART_NAME = re.compile(r"\.[0-9a-f]{32}\.(?:zip|log|parquet)\.part")
_NAMED = 5  # faults that a refusal names
_PARQUET_NOTE = b"firebird_cdc.content"


class _Source(NamedTuple):
    """One journal that goes into a piece, or one transaction in it; ``file``: its place.

    Of a journal that transactions share, ``length`` and ``events`` are sums over them, ``sequence``
    is the first number, ``last`` the last one, and ``commit_us`` the last commit. ``length`` of any
    other is that up to its end.
    """

    file: str
    transactions: int
    length: int
    events: int
    sequence: int
    last: int
    commit_us: int

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.file.rpartition("/")[2]


class _Made(NamedTuple):
    """One file that was made of a piece. ``part``: its hidden name, None if it is there already."""

    part: str | None
    target: str
    journals: int
    events: int
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class _Job:
    """Parameters of a task; a value that pickles."""

    folders: tuple[str, ...]
    output: str
    output_format: str
    none_charset: str


@dataclass(frozen=True, slots=True)
class CompactReport:
    """Result of a compaction; ``journals``: transactions, each of which counts as a journal also
    where several share one. ``files``: that were written or were there, ``kept``: of them, from
    before; ``removed``: files of the originals."""

    journals: int
    events: int
    read_bytes: int
    files: int
    kept: int
    written_bytes: int
    removed: int


def compact(
    spark: SparkSession,
    folders: Sequence[str],
    output: str,
    *,
    output_format: str = SEGMENTS,
    target_bytes: int = TARGET_BYTES,
    database: str | None = None,
    none_charset: str = "UTF-8",
    remove: bool = False,
) -> CompactReport:
    """Write the journals of FOLDERS to OUTPUT, in files made of TARGET_BYTES of journals each.

    REMOVE: remove the originals once all is written and read back. Raises ReplayError naming what
    is damaged, missing or there twice; then nothing of OUTPUT or of the originals has changed.
    """
    from firebird_cdc.journal.replay.cluster.progress import doing
    from firebird_cdc.journal.replay.cluster.session import plain_errors
    from firebird_cdc.journal.replay.source import history

    _check_places(folders, output, remove)
    job = _Job(tuple(folders), output, output_format, none_charset)
    files = history.read_files(spark, folders, database)
    try:
        with plain_errors(), doing(spark, "looking at the journals"):
            _refuse_faults(files)
            expected = _totals(files)
            sources = _sources(files, job)
            tasks = _number_of_tasks(sources, target_bytes)
        target = _Target(output)
        target.make()
        target.remove_parts()
        try:
            with plain_errors(), doing(spark, "writing and reading back"):
                made = _make(sources, job, target_bytes, tasks)
            found = (
                sum(one.journals for one in made),
                sum(one.events for one in made),
                sum(one.read_bytes for one in made),
            )
            if found != expected:
                raise ReplayError(
                    "what was written does not hold what was read: {:,} journals, {:,} events and"
                    " {:,} bytes of {:,}, {:,} and {:,}; did journals change during the run?"
                    " Nothing was kept or removed".format(*found, *expected)
                )
            for one in made:
                if one.part is not None:
                    target.name(one.part, one.target)
        finally:
            target.tidy()
        removed = 0
        if remove:
            with plain_errors(), doing(spark, "removing the originals"):
                removed = _remove(files, job)
        return CompactReport(
            *expected,
            files=len(made),
            kept=sum(one.part is None for one in made),
            written_bytes=sum(one.written_bytes for one in made),
            removed=removed,
        )
    finally:
        files.unpersist()


def describe(report: CompactReport, output: str) -> Iterator[str]:
    """Yield the lines of a readable summary."""
    yield (
        f"{report.journals:,} journals, {report.events:,} events, {report.read_bytes:,} bytes are"
        f" in {report.files:,} files of {report.written_bytes:,} bytes in {output}"
    )
    if report.kept:
        yield f"{report.kept:,} of them were there already, with the same content"
    yield "all was read back and compared"
    if report.removed:
        yield f"{report.removed:,} files of the originals were removed"


def _check_places(folders: Sequence[str], output: str, remove: bool) -> None:
    places = {url: open_folder(url).place("") for url in folders}
    if folder_at(output).place("") in places.values():
        raise ReplayError(f"{output} is read from; give --output another folder")
    for url in folders:
        if remove and Path(places[url], STATE_DIRECTORY).is_dir():
            raise ReplayError(
                f"{url} is a shipper's journal folder, whose journals the shipper removes itself;"
                " --remove is for an archive"
            )


def _totals(files: DataFrame) -> tuple[int, int, int]:
    from pyspark.sql import functions as F

    row = files.agg(F.count("*"), F.sum("events"), F.sum("length")).first()
    assert row is not None
    return int(row[0]), int(row[1]), int(row[2])


def _refuse_faults(files: DataFrame) -> None:
    """Raise ReplayError naming journals that are damaged, vanished, misnamed or there twice."""
    from firebird_cdc.journal.replay.source import history

    advice = "`firebird-cdc replay audit` lists all; nothing was written"
    faulty = files.where("problem is not null or sequence is null or length is null")
    named = faulty.orderBy("file").limit(_NAMED).collect()
    if named:
        texts = "; ".join(row["what"] or f"{row['file']}: it has no stamp" for row in named)
        raise ReplayError(f"{faulty.count()} journals can't be taken over: {texts}. {advice}")
    for double, what in (
        (
            history.duplicate_sequences(files).orderBy("database", "epoch", "sequence").first(),
            "the sequence number {sequence} of epoch {epoch} of {database} is given to",
        ),
        (
            history.duplicate_journals(files).orderBy("journal").first(),
            "one journal ({journal}) is in",
        ),
    ):
        if double is not None:
            facts = double.asDict()
            raise ReplayError(
                f"{what.format(**facts)} {facts['copies']} files: {facts['file']} and"
                f" {facts['other']}; move one of them away. {advice}"
            )


def _inside(job: _Job) -> str:
    """Return what a regular expression has for the folders of a place, up to a name in them."""
    places = sorted((folder_at(url).place("") for url in job.folders), key=len, reverse=True)
    return f"(?:{'|'.join(map(re.escape, places))})"


def _sources(files: DataFrame, job: _Job) -> DataFrame:
    """Return what goes into pieces: ``database``, ``epoch``, whether it stays ``alone``, and the
    columns of `_Source`.

    In segments these are journals. Alone stays a large one, so that several tasks can read it, and
    one that goes on in another epoch, which no segment's name tells. In Parquet they are
    transactions, which so are in the order of the history.
    """
    from pyspark.sql import functions as F

    commit_us = F.unix_micros("commit_time")
    if job.output_format == PARQUET:
        return files.withColumns(
            {
                "transactions": F.lit(1),
                "last": F.col("sequence"),
                "commit_us": commit_us,
                "alone": F.lit(False),
            }
        )
    journal = rf"^({_inside(job)}(?:[^/]*\.zip/)?[^/]*)"  # without the transaction in it
    is_large = (F.col("transactions") == 1) & (F.col("length") > SMALL_BYTES)
    return (
        files.groupBy(F.regexp_extract("file", journal, 1).alias("file"))
        .agg(
            F.min("database").alias("database"),
            F.min("epoch").alias("epoch"),
            F.max("epoch").alias("last_epoch"),
            F.count("*").alias("transactions"),
            F.sum("length").alias("length"),
            F.sum("events").alias("events"),
            F.min("sequence").alias("sequence"),
            F.max("sequence").alias("last"),
            F.max(commit_us).alias("commit_us"),
        )
        .withColumn("alone", is_large | (F.col("epoch") < F.col("last_epoch")))
    )


def _number_of_tasks(sources: DataFrame, target_bytes: int) -> int:
    """About as many as there will be files."""
    from pyspark.sql import functions as F

    alone = F.col("alone")
    row = sources.agg(
        F.sum(F.when(alone, 0).otherwise(F.col("length"))), F.sum(alone.cast("int"))
    ).first()
    assert row is not None
    return min(int(row[0]) // target_bytes + int(row[1]) + 1, _MOST_TASKS)


def _make(sources: DataFrame, job: _Job, target_bytes: int, tasks: int) -> list[_Made]:
    """Make one file of each piece, in tasks."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    history = Window.partitionBy("database", "epoch", "alone").orderBy("sequence")
    before = F.sum("length").over(history) - F.col("length")
    full = F.row_number().over(history) - 1
    pieces = (
        sources.withColumn("by_bytes", F.floor(before / target_bytes))
        .withColumn("by_number", F.floor(full / SEGMENT_JOURNALS))
        .withColumn("by_itself", F.when(F.col("alone"), F.col("file")))
    )
    keys = ["database", "epoch", "alone", "by_bytes", "by_number", "by_itself"]
    rows = (
        pieces.select(*keys, *_Source._fields)
        .repartition(tasks, *keys)
        .sortWithinPartitions(*keys, "sequence")
    )
    made: list[_Made] = rows.rdd.mapPartitions(lambda part: _work(part, job)).collect()
    return made


def _work(rows: Iterable[Any], job: _Job) -> Iterator[_Made]:
    """Make the files of the pieces in ROWS; runs in a task."""
    worker = _Worker(job)
    for (database, epoch, alone, *_), piece in groupby(rows, key=lambda row: tuple(row[:6])):
        sources = [_Source(**{name: row[name] for name in _Source._fields}) for row in piece]
        yield worker.make(database, epoch, alone, sources)


class _Target:
    """The folder that is written to, on whatever file system pyarrow knows."""

    def __init__(self, url: str) -> None:
        from pyarrow.fs import FileSystem, LocalFileSystem

        folder = folder_at(url)  # refuses what it does not know
        self.url = url
        base = folder.place("").rstrip("/")
        self.is_local = base.startswith("/")
        self.system: FileSystem = LocalFileSystem()
        self.base = base
        if not self.is_local:
            self.system, self.base = FileSystem.from_uri(url)
            self.base = self.base.rstrip("/")
        self._is_new = False

    def path(self, name: str) -> str:
        return f"{self.base}/{name}"

    def make(self) -> None:
        from pyarrow.fs import FileType

        with self.naming_errors():
            self._is_new = self.system.get_file_info(self.base).type == FileType.NotFound
            self.system.create_dir(self.base, recursive=True)

    def exists(self, name: str) -> bool:
        from pyarrow.fs import FileType

        return bool(self.system.get_file_info(self.path(name)).type == FileType.File)

    def write(self, name: str, pieces: Iterable[bytes]) -> int:
        """Write a file of its own name for good; return its size."""
        size = 0
        with self.naming_errors():
            if "/" in name:
                self.system.create_dir(self.path(name).rpartition("/")[0], recursive=True)
            with self.system.open_output_stream(self.path(name)) as stream:
                for piece in pieces:
                    stream.write(piece)
                    size += len(piece)
            self.sync(self.path(name))
        return size

    def sync(self, path: str) -> None:
        """See to it that a file, or the names in a folder, outlast a loss of power."""
        if self.is_local:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def name(self, part: str, target: str) -> None:
        """Give a file that was made under the hidden name PART its own."""
        with self.naming_errors():
            self.system.move(self.path(part), self.path(target))
            try:
                self.sync(self.path(target).rpartition("/")[0])
            except OSError:  # another sync would pass over the name
                self.system.move(self.path(target), self.path(part))
                raise

    def tidy(self) -> None:
        """Remove what got no name, and the folder if `make` made it and nothing is in it."""
        from pyarrow.fs import FileSelector

        self.remove_parts()
        with suppress(OSError):
            selector = FileSelector(self.base, recursive=True, allow_not_found=True)
            found = self.system.get_file_info(selector)
            if self._is_new and not any(info.is_file for info in found):
                self.system.delete_dir(self.base)

    def remove_parts(self) -> None:
        """Remove the hidden files that got no name, also of a run that was killed."""
        from pyarrow.fs import FileSelector

        with suppress(OSError):
            selector = FileSelector(self.base, recursive=True, allow_not_found=True)
            for info in self.system.get_file_info(selector):
                if _PART_NAME.fullmatch(info.base_name):
                    self.system.delete_file(info.path)

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Have errors name the folder."""
        try:
            yield
        except OSError as error:
            cause = error.strerror or str(error).partition("\n")[0]
            raise ReplayError(f"cannot write to {self.url}: {cause}") from error


class _Worker:
    """Makes files in one task."""

    def __init__(self, job: _Job) -> None:
        self._job = job
        self._target = _Target(job.output)
        self._folders = [folder_at(url) for url in job.folders]
        self._finder = JournalFinder(self._folders)

    def make(self, database: str, epoch: int, alone: bool, sources: list[_Source]) -> _Made:
        """Make the file of one piece, and compare it with its sources."""
        last = max(source.last for source in sources)
        stem = segment_name(database, epoch, sources[0].sequence, last)
        part = f".{uuid4().hex}"
        if self._job.output_format == PARQUET:
            folder = f"database={partition_value(database)}"
            target, part = f"{folder}/{stem}.parquet", f"{folder}/{part}.parquet{_PART}"
            content, size = self._write_parquet(part, sources)
            look = self._parquet_content
        elif alone:
            target, part = sources[0].name, f"{part}.log{_PART}"
            content, size = self._copy(part, sources[0])
            look = self._file_content
        else:
            target, part = f"{stem}{SEGMENT_SUFFIX}", f"{part}{SEGMENT_SUFFIX}{_PART}"
            content, size = self._write_segment(part, sources)
            look = self._segment_content
        if look(part) != content:
            raise ReplayError(f"{self._target.path(part)} does not read back what was written")
        if self._job.output_format == SEGMENTS and self._target.is_local:
            # By which the archive's keeper knows it.
            committed_ns = 1000 * max(source.commit_us for source in sources)
            os.utime(self._target.path(part), ns=(committed_ns, committed_ns))
        is_there = self._target.exists(target)
        if is_there:
            if look(target) != content:
                raise ReplayError(
                    f"{self._target.path(target)} is there already and holds something else; give"
                    " --output another folder"
                )
            self._target.system.delete_file(self._target.path(part))
        return _Made(
            part=None if is_there else part,
            target=target,
            journals=sum(source.transactions for source in sources),
            events=sum(source.events for source in sources),
            read_bytes=sum(source.length for source in sources),
            written_bytes=size,
        )

    # Reading

    def _find(self, source: _Source, use: Callable[[Folder, str], T]) -> tuple[Folder, str, T]:
        try:
            return self._finder.find(*folder_of(source.file, self._folders), use)
        except FileNotFoundError as error:
            raise ReplayError(str(error)) from None

    def _content(self, source: _Source) -> bytes:
        """The bytes of a journal as a segment has it, each of them checked."""
        content = self._find(source, Folder.read)[2]
        with _plain_errors(), open_any(source.file, content=content) as opened:
            if isinstance(opened, SharedJournal):
                content = opened.without_undone()
            else:
                content = content[: source.length]
        with _plain_errors(), open_any(source.file, content=content) as opened:
            _check(source, opened)
        return content

    # Segments

    def _write_segment(self, part: str, sources: list[_Source]) -> tuple[str, int]:
        """Write a segment; return the digest of what is in it, and its size."""
        digest = blake2b()

        def journals() -> Iterator[tuple[str, int, bytes]]:
            for source in sources:
                content = self._content(source)
                _feed(digest, source.name, content)
                yield source.name, source.commit_us, content

        with TemporaryFile() as buffer:
            pack(buffer, journals())
            buffer.seek(0)
            size = self._target.write(part, iter(lambda: buffer.read(_COPY_BYTES), b""))
        return digest.hexdigest(), size

    def _segment_content(self, name: str) -> str:
        digest = blake2b()
        path = self._target.path(name)
        try:
            with (
                self._target.system.open_input_file(path) as file,
                zipfile.ZipFile(file) as segment,
            ):
                for entry in segment.infolist():
                    _feed(digest, entry.filename, segment.read(entry))
        except (zipfile.BadZipFile, OSError) as error:
            raise ReplayError(f"{path} can't be read back: {error}") from error
        return digest.hexdigest()

    # Journals that stay by themselves

    def _copy(self, part: str, source: _Source) -> tuple[str, int]:
        """Write a journal as it is; return the digest of its bytes, and their number."""
        digest = blake2b()

        def pieces(file: RandomAccess) -> Iterator[bytes]:
            at = 0
            while piece := file.read_at(min(_COPY_BYTES, length - at), at):
                at += len(piece)
                digest.update(piece)
                yield piece

        with _plain_errors():
            folder, name, opened = self._find(source, Folder.open_journal)
            with opened:
                _check(source, opened)
                length = opened.index.end if isinstance(opened, SharedJournal) else source.length
        file = folder.open(name)
        try:
            size = self._target.write(part, pieces(file))
        finally:
            file.close()
        if size != length:
            raise ReplayError(f"{source.file} has changed during the run: {size} bytes")
        return digest.hexdigest(), size

    def _file_content(self, name: str) -> str:
        digest = blake2b()
        with self._target.system.open_input_file(self._target.path(name)) as file:
            while piece := file.read(_COPY_BYTES):
                digest.update(piece)
        return digest.hexdigest()

    # Parquet

    def _batches(self, sources: list[_Source]) -> Iterator[pa.RecordBatch]:
        """The changes of journals, as the data source gives them."""
        from firebird_cdc.journal.replay.source.planning import JournalPartition
        from firebird_cdc.journal.replay.source.readers import reader_of

        urls = [folder.url for folder in self._folders]
        options = {"paths": json.dumps(urls), "noneCharset": self._job.none_charset}
        places = (folder_of(source.file, self._folders) for source in sources)
        journals = ((urls.index(folder.url), name) for folder, name in places)
        reader, _ = reader_of("firebird_journal", options)
        yield from reader.read(JournalPartition.of_journals(journals))

    def _write_parquet(self, part: str, sources: list[_Source]) -> tuple[str, int]:
        from pyarrow import parquet  # type: ignore[import-untyped,import-not-found,unused-ignore]

        from firebird_cdc.journal.replay.source.arrow import arrow_schema
        from firebird_cdc.journal.replay.source.changes import CHANGE_COLUMNS

        digest = _TableDigest()
        path = self._target.path(part)
        schema = arrow_schema([each for each in CHANGE_COLUMNS if each[0] != "database"])
        with self._target.naming_errors():
            self._target.system.create_dir(path.rpartition("/")[0], recursive=True)
            with (
                self._target.system.open_output_stream(path) as stream,
                parquet.ParquetWriter(stream, schema, compression="zstd") as writer,
            ):
                for batch in self._batches(sources):
                    rows = batch.select(schema.names)
                    digest.update(rows)
                    writer.write_batch(rows)
                writer.add_key_value_metadata({_PARQUET_NOTE: digest.result()})
            self._target.sync(path)
        events = sum(source.events for source in sources)
        if digest.rows != events:
            raise ReplayError(
                f"{sources[0].file} to {sources[-1].file} gave {digest.rows} events, not {events}"
            )
        return digest.result(), self._target.system.get_file_info(path).size

    def _parquet_content(self, name: str) -> str:
        from pyarrow import parquet

        digest = _TableDigest()
        with self._target.system.open_input_file(self._target.path(name)) as file:
            for batch in parquet.ParquetFile(file).iter_batches():
                digest.update(batch)
        return digest.result()


def _count_events(reader: JournalReader) -> int:
    """Read a journal to its end; return the number of its events as its stamp counts them."""
    return sum(not isinstance(change, SequenceChange) for change in reader.changes())


def _check(source: _Source, opened: JournalReader | SharedJournal) -> None:
    """Check all checksums of a journal, and what is in it. Raises ReplayError, JournalError."""
    transactions = events = length = 0
    for reader in _readers(opened):
        transactions += 1
        events += _count_events(reader)
        end = reader.stamp.journal_length if reader.stamp is not None else 0
        length += min(end, reader.size)
    if (transactions, events, length) != (source.transactions, source.events, source.length):
        raise ReplayError(
            f"{source.file} has changed during the run: {transactions} transactions, {events}"
            f" events, {length} bytes"
        )


def _readers(opened: JournalReader | SharedJournal) -> Iterator[JournalReader]:
    """Yield a reader of each transaction. Raises what came of opening one."""
    if not isinstance(opened, SharedJournal):
        yield opened
        return
    for _, reader in opened.readers(opened.places):
        if isinstance(reader, JournalError):
            raise reader
        with reader:
            yield reader


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Have a journal that is damaged end the run."""
    try:
        yield
    except JournalError as error:
        raise ReplayError(str(error)) from error


def _feed(digest: Any, name: str, content: bytes) -> None:
    digest.update(f"{name} {len(content)}\n".encode())
    digest.update(content)


class _TableDigest:
    """Digest of the rows of a table, however they are cut into batches."""

    def __init__(self) -> None:
        self.rows = 0
        self._columns: list[tuple[Any, Any, Any]] = []

    def update(self, batch: pa.RecordBatch) -> None:
        """Take in the next rows."""
        from pyarrow import compute

        if not self._columns:
            self._columns = [(blake2b(), blake2b(), blake2b()) for _ in batch.columns]
        self.rows += batch.num_rows
        for (nulls, lengths, content), column in zip(self._columns, batch.columns, strict=True):
            nulls.update(_raw(column.is_valid().cast("uint8"), 1))
            if str(column.type) == "string":
                filled = compute.fill_null(column, "")
                lengths.update(_raw(compute.binary_length(filled), 4))
                content.update("".join(filled.to_pylist()).encode())
            else:
                content.update(_raw(compute.fill_null(column.cast("int64"), 0), 8))

    def result(self) -> str:
        """The digest of all rows."""
        whole = blake2b(str(self.rows).encode())
        for digests in self._columns:
            whole.update(b"".join(digest.digest() for digest in digests))
        return whole.hexdigest()


def _raw(column: Any, width: int) -> memoryview:
    """The bytes of the values of a column without nulls."""
    start = column.offset * width
    return memoryview(column.buffers()[1])[start : start + len(column) * width]


def _remove(files: DataFrame, job: _Job) -> int:
    """Remove the files that the journals lay in, in tasks; return how many."""
    from pyspark.sql import functions as F

    place = F.regexp_extract("file", rf"^({_inside(job)}[^/]*)", 1)
    places = files.select(place.alias("file"))
    delete: Callable[[Iterable[Any]], Iterator[int]] = lambda rows: _delete(rows, job)  # noqa: E731
    removed: int = places.distinct().rdd.mapPartitions(delete).sum()
    return removed


def _delete(rows: Iterable[Any], job: _Job) -> Iterator[int]:
    targets = {folder_at(url): _Target(url) for url in job.folders}
    for row in rows:
        folder, name = folder_of(row["file"], targets)
        assert "/" not in name
        assert name.endswith(".log") or is_segment_name(name)
        target = targets[folder]
        with suppress(FileNotFoundError):
            target.system.delete_file(target.path(name))
            yield 1


def register_compact(subparsers: Any) -> None:
    """Add ``compact`` to the subcommands of ``firebird-cdc replay``."""
    parser = subparsers.add_parser(
        "compact",
        help="many small journals into few large segments, or into Parquet",
        description="Write the journals of an archive into few large segments, which are read like"
        " the journals in them, or all their changes into Parquet, one folder per database. All is"
        " read back and compared. Damaged and doubled journals are refused by name.",
    )
    add_common_options(parser)
    parser.add_argument("--output", metavar="DIR", required=True, help="another folder")
    parser.add_argument("--format", choices=(SEGMENTS, PARQUET), default=SEGMENTS)
    parser.add_argument(
        "--target-bytes",
        metavar="N",
        type=positive,
        default=TARGET_BYTES,
        help=f"of journals that go into one file (default: {TARGET_BYTES})",
    )
    parser.add_argument(
        "--remove",
        action="store_true",
        help="remove the originals once all is written and read back",
    )
    parser.add_argument("--quiet", action="store_true", help="tell nothing while it runs")
    parser.set_defaults(run=_run_compact)


def _run_compact(arguments: argparse.Namespace) -> int:
    from firebird_cdc.journal.replay.cluster.session import spark_session

    folders, charset = source_of(arguments)
    name = "firebird-cdc replay compact"
    is_telling = not arguments.quiet
    with spark_session(name, arguments.master, progress=is_telling, folders=folders) as spark:
        report = compact(
            spark,
            folders,
            arguments.output,
            output_format=arguments.format,
            target_bytes=arguments.target_bytes,
            database=arguments.database,
            none_charset=charset,
            remove=arguments.remove,
        )
    for line in describe(report, arguments.output):
        tell(line)
    return 0
