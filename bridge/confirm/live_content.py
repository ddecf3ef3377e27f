"""Content of one live journal: its transactions, and what voids some of them."""

from __future__ import annotations

import contextlib
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from firebird_cdc.bridge.confirm.pending import Definitions, Pending, found
from firebird_cdc.errors import JournalCorrupt, JournalError
from firebird_cdc.journal.format import JournalReader, Place, Stamp, own_reader
from firebird_cdc.journal.format.content import Source
from firebird_cdc.journal.format.layout import FILE_BLOCK, HEAD
from firebird_cdc.journal.format.sectors import Head
from firebird_cdc.journal.format.shared import FileHeader, Void, own_head, walk


class Content(NamedTuple):
    """Things that lie in a journal; ``damaged``: the offset of something that should be intact,
    -1: there is none; ``end``: of all of them; ``own``: the transaction that a journal is of alone,
    as it was found there."""

    path: Path
    header: FileHeader
    heads: list[Head]
    voids: set[tuple[bytes, int]]
    damaged: int
    end: int
    own: Pending | None = None


def read_content(path: Path, header: FileHeader) -> Content:
    """Go through a journal that begins with HEADER. Raises JournalCorrupt if it is another one's,
    or the head of a transaction that is alone in it is damaged, OSError."""
    heads, voids, damage, end = [], set(), [], FILE_BLOCK
    if f"{header.uuid}.log.live" != path.name:
        raise JournalCorrupt(path, 0, f"it is journal {header.uuid} under another's name")
    with closing(Source(path)) as source:
        if header.is_own:
            head = own_head(source.read)
            if head is not None and head.header.uuid == header.uuid:
                heads = [head]
            elif any(source.read(HEAD.size, FILE_BLOCK)):  # zeros: it was rolled back
                raise JournalCorrupt(path, FILE_BLOCK, "the head of its transaction is damaged")
            return Content(path, header, heads, set(), -1, end)
        for offset, behind, what in walk(source.read, source.size, header.uuid):
            if isinstance(what, Void):
                voids.add((what.journal, what.offset))
            elif what is not None:
                heads.append(what)
            else:
                damage.append(offset)
                continue
            end = behind
    # Behind all that was synced bytes may be those of a torn write.
    synced = max((head.synced for head in heads), default=0)
    damaged = next((offset for offset in damage if offset < synced), -1)
    return Content(path, header, heads, voids, damaged, end)


def found_at(path: Path, database: str, head: Head) -> Pending | None:
    """Return what lies at HEAD; None: it is not whole, so its ``prepare`` never ended, and it is
    not alone in its journal, so that nothing tells of it any more."""
    if not head.length:
        with own_reader(path, head.header.uuid) as reader:
            return found(reader, database, UUID(bytes=head.journal), head.offset)
    with closing(Source(path)) as source:
        content = source.read(head.length, head.offset)
    name = f"{path}/{head.header.uuid}.log"
    with contextlib.suppress(JournalError), JournalReader(name, content=content) as reader:
        for _ in reader.changes():
            pass
        if reader.seal is None:
            return None
        pending = found(reader, database, UUID(bytes=head.journal), head.offset)
        pending.length = head.length
        is_complete = head.length == pending.seal_end
        pending.definitions = complete(0 if is_complete else pending.seal_end)
        return pending
    return None


def complete(catalogue_offset: int) -> Definitions:
    """Return the definitions of a transaction that shares its journal: nothing is missing."""
    return Definitions(
        has_ddl=False,
        is_unresolved=False,
        catalogue_offset=catalogue_offset,
        is_described=True,
    )


def place_of(head: Head) -> tuple[bytes, int]:
    """Return the place of HEAD, as voids name it."""
    return head.journal, head.offset


def unnumbered(pending: Pending) -> Place:
    """Return the place of PENDING, without a number."""
    stamp = Stamp(
        0, 0, pending.commit_us, 0, pending.length, pending.events, pending.transaction,
        pending.definitions.catalogue_offset,
    )  # fmt: skip
    return Place(pending.uuid, pending.offset, 0, pending.seal_end, stamp)
