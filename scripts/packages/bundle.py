"""The offline bundle: a shell script that unpacks the archive behind it, which holds the tree.

makeself is not used: it unpacks into a temporary folder first, and doesn't check its own script.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

from places import ADDONS, DIST, commit, epoch, say, version
from system import GLIBC, digest_of
from tree import addon, tree

_SCRIPT = Path(__file__).with_name("bundle.sh")
_ROOM = 1.1  # of what the files take, for folders and the blocks of file systems


def bundle(*, with_replay: bool = False) -> Path:
    """Make the bundle of this commit, with what replays need or without it; return it."""
    name = f"firebird-cdc-{'with-replay-' if with_replay else ''}{version()}-linux-x86_64.run"
    target = DIST / name
    # For whoever wants to know before a shell reads any of it.
    listed = target.with_name(f"{target.name}.sha256")
    is_there = target.is_file() and listed.is_file() and not commit().endswith("+changes")
    if is_there and listed.read_text("utf-8") == _listing(target):
        return target
    addons = ADDONS if with_replay else ()
    sources = [tree(), *map(addon, addons)]
    DIST.mkdir(exist_ok=True)
    archive = target.with_suffix(".tar.gz")
    pack(archive, epoch(), *sources)
    files = (path for source in sources for path in source.rglob("*"))
    taken = sum(path.lstat().st_blocks for path in files) // 2
    written = write_bundle(archive, target, version(), int(taken * _ROOM), addons)
    archive.unlink()
    listed.write_text(_listing(target), "utf-8")
    say(f"{target.name}: {written / 1e6:.0f} MB, {taken / 1024:.0f} MiB when unpacked")
    return target


def _listing(target: Path) -> str:
    """Return the line for sha256sum --check."""
    return f"{digest_of(target)}  {target.name}\n"


def pack(archive: Path, time: int, *folders: Path) -> None:
    """Pack what is in FOLDERS, the same bytes for the same content."""

    def same(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = time
        return member

    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for folder in folders:
            for path in sorted(folder.rglob("*")):
                tar.add(path, path.relative_to(folder), recursive=False, filter=same)


def write_bundle(
    archive: Path, target: Path, version: str, kilobytes: int, addons: Sequence[str] = ()
) -> int:
    """Write script and archive to TARGET; return its size. KILOBYTES: what unpacking takes."""
    script = _SCRIPT.read_text("utf-8")
    values = {
        "VERSION": version,
        "GLIBC": GLIBC,
        "LINES": str(script.count("\n") + 1),
        "KILOBYTES": str(kilobytes),
        "ADDONS": " ".join(addons),
    }
    for name, value in values.items():
        script = script.replace(f"@{name}@", value)
    before, behind = script.split("sum='@SUM@'\n")
    digest = hashlib.sha256(f"{before}{behind}".encode())
    content = archive.read_bytes()
    digest.update(content)
    new = target.with_name(f".{target.name}.new")
    new.write_bytes(f"{before}sum='{digest.hexdigest()}'\n{behind}".encode() + content)
    new.chmod(0o755)
    os.replace(new, target)  # noqa: PTH105
    return target.stat().st_size
