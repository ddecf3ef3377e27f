"""The one archive with all Python that a replay needs where nothing of ours is installed.

``spark-submit --py-files FILE.zip`` brings it to every executor, and to a driver in cluster mode.
It holds Python only; what of it has compiled parts elsewhere works without them here. The
libraries lie in its folder ``lib``, which `firebird_cdc` puts at the end of the path: an
executor's own, or those of ``--archives NATIVE.tar.gz#native``, come first.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import firebird_cdc
from firebird_cdc.errors import ReplayError, SetupError
from firebird_cdc.journal.events import json_bytes
from firebird_cdc.journal.format import crc32c

ARCHIVE_NAME = "firebird_cdc_replay.zip"
"""Name of the archive that a session makes itself."""

_OURS = ("bridge", "config", "journal")
_LIBRARIES = (
    "anyascii",
    "yaml",
    "logbook",
    "typing_extensions",
    "firebird.base",
    "firebird.driver",
    "google.protobuf",
    "dateutil",
    "six",
)
_TABLES = "anyascii/_data"
"""Folder of files that are no Python; without an ``__init__.py``, which it needs in a ZIP."""
_COMPILED = ("google_crc32c", "orjson")
_NOT_NEEDED = {"__pycache__", "testdata", "testing", "tests", "compiler", "zoneinfo"}
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first moment that a ZIP can name
_MAIN = """\
from firebird_cdc.journal.replay.main import main

raise SystemExit(main())
"""


class _Member(NamedTuple):
    name: str  # with slashes, in the archive
    content: bytes


def running_archive() -> Path | None:
    """The archive that this very program was imported from, or None if it is installed."""
    return None if firebird_cdc.archive is None else Path(firebird_cdc.archive)


def write_archive(target: Path) -> None:
    """Write the archive to TARGET, whole or not at all; the same input gives the same bytes.

    Raises SetupError if a library is missing here, ReplayError if TARGET can't be written.
    """
    archive = running_archive()
    if archive is not None:
        _write(target, archive.read_bytes())
        return
    members = sorted({member.name: member for member in _members()}.values())
    folders = {
        "/".join(parts[:depth]) + "/"
        for parts in (member.name.split("/") for member in members)
        for depth in range(1, len(parts))
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as package:
        # Folders have entries: packages without an __init__.py are not found otherwise.
        for name, data in sorted([*((folder, b"") for folder in folders), *members]):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED if data else zipfile.ZIP_STORED
            entry.create_system = 3
            entry.external_attr = 0o040755 << 16 if name.endswith("/") else 0o100644 << 16
            package.writestr(entry, data, compresslevel=9)
    _write(target, content.getvalue())


def write_native(target: Path) -> list[str]:
    """Write a TAR of the compiled packages of this Python, for ``--archives``; return their names.

    It fits executors with the same minor version of Python on the same kind of machine. Raises
    SetupError if one of the packages is missing here or is not compiled, ReplayError if TARGET
    can't be written.
    """
    content = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=content, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as package,
    ):
        for member in sorted(_native_members()):
            entry = tarfile.TarInfo(member.name)
            entry.size = len(member.content)
            entry.mode = 0o644
            package.addfile(entry, io.BytesIO(member.content))
    _write(target, content.getvalue())
    return list(_COMPILED)


def compiled_note() -> str | None:
    """A sentence on which compiled packages this Python lacks, or None."""
    lacking = [
        name
        for name, module in (("google-crc32c", crc32c), ("orjson", json_bytes))
        if not module.COMPILED
    ]
    if not lacking:
        return None
    return (
        f"{' and '.join(lacking)} can't be imported here, so plain Python does their work, with the"
        " same results but slower; pip install brings them, or for executors"
        " `firebird-cdc replay package --native FILE.tar.gz` and --archives"
    )


@cache
def tell_what_is_slow() -> None:
    """Say once in this process, in the log of an executor, what it lacks; for tasks."""
    note = compiled_note()
    if note is not None:
        print(f"firebird-cdc: {note}", file=sys.stderr, flush=True)


def _members() -> Iterator[_Member]:
    root = Path(firebird_cdc.__file__).parent
    for path in sorted(root.glob("*.py")):
        yield _Member(f"firebird_cdc/{path.name}", path.read_bytes())
    for room in _OURS:
        for path in _python_files(root / room):
            relative = path.relative_to(root).as_posix()
            yield _Member(f"firebird_cdc/{relative}", path.read_bytes())
    for library in _LIBRARIES:
        folder, files = _files_of(library)
        for path in files:
            if path.suffix == ".py":
                relative = path.relative_to(folder).as_posix()
                yield _Member(f"lib/{relative}", path.read_bytes())
    folder, _ = _files_of(_TABLES.partition("/")[0])
    for path in sorted((folder / _TABLES).iterdir()):
        if path.is_file():
            yield _Member(f"lib/{_TABLES}/{path.name}", path.read_bytes())
    yield _Member(f"lib/{_TABLES}/__init__.py", b"")
    yield _Member("__main__.py", _MAIN.encode())


def _native_members() -> Iterator[_Member]:
    for library in _COMPILED:
        folder, files = _files_of(library)
        if not any(path.suffix == ".so" for path in files):
            raise SetupError(
                f"{library} of this Python ({sys.executable}) is not compiled: reinstall it with"
                f" pip install --force-reinstall {library.replace('_', '-')}"
            )
        beside = folder / f"{library}.libs"  # where wheels keep what they bring along
        for path in [*files, *sorted(beside.glob("*.so*"))]:
            yield _Member(path.relative_to(folder).as_posix(), path.read_bytes())


def _files_of(library: str) -> tuple[Path, list[Path]]:
    """The folder that LIBRARY is imported from, and its files below it. Raises SetupError."""
    try:
        spec = find_spec(library)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise SetupError(
            f"{library} is missing in this Python ({sys.executable}): pip install . in the"
            " clone of firebird-cdc brings all that the archive needs"
        )
    module = Path(spec.origin)
    if not spec.submodule_search_locations:
        return module.parent, [module]
    folder = module.parent
    files = [*_python_files(folder), *(p for p in sorted(folder.rglob("*.so*")) if p.is_file())]
    return module.parents[library.count(".") + 1], files


def _python_files(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.rglob("*.py"))
        if not _NOT_NEEDED.intersection(path.relative_to(folder).parts)
    ]


def _write(target: Path, content: bytes) -> None:
    try:
        with NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as part:
            try:
                part.write(content)
                part.flush()
                Path(part.name).chmod(0o644)
                Path(part.name).replace(target)
            except BaseException:
                Path(part.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise ReplayError(f"cannot write {target}: {error.strerror}") from error


def register_package(subparsers: Any) -> None:
    """Add ``package`` to the subcommands of ``firebird-cdc replay``."""
    parser = subparsers.add_parser(
        "package",
        help="build the archive for spark-submit --py-files",
        description="Build the archive with all the Python that executors need, and a driver in"
        " cluster mode, where nothing of firebird-cdc is installed: for --py-files. They need"
        " pyspark and pyarrow besides. --native builds the compiled packages, which make it"
        " faster, for --archives.",
    )
    parser.add_argument("--output", metavar="FILE.zip", type=Path, help="the archive of Python")
    parser.add_argument(
        "--native", metavar="FILE.tar.gz", type=Path, help="the compiled packages of this Python"
    )
    parser.set_defaults(run=_run_package, usage_error=parser.error)


def _run_package(arguments: argparse.Namespace) -> int:
    if arguments.output is None and arguments.native is None:
        arguments.usage_error("give --output FILE.zip, --native FILE.tar.gz or both")
    if arguments.output is not None:
        write_archive(arguments.output)
        print(f"{arguments.output}: give it to spark-submit with --py-files {arguments.output}")
    if arguments.native is not None:
        names = write_native(arguments.native)
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        print(
            f"{arguments.native}: {' and '.join(names)} for Python {python} on {os.uname().machine}"
        )
        print(
            f"give it to spark-submit with --archives {arguments.native}#native"
            " --conf spark.executorEnv.PYTHONPATH=native"
        )
    return 0
