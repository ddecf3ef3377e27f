"""The journal format, versions 1 and 2: every byte that is read from or written to a journal.

``docs/journal-format.md`` describes the bytes; ``native/`` writes the same ones in C. A
reader checks all that it reads before it uses it: a damaged file ends in JournalEmpty,
JournalTorn or JournalCorrupt, whatever is in it, and in no other way.
"""

from __future__ import annotations

from firebird_cdc.journal.format.content import Blob, RandomAccess
from firebird_cdc.journal.format.definitions import parse_table, table_body
from firebird_cdc.journal.format.journal_index import Entry, pack_places, unpack_places
from firebird_cdc.journal.format.layout import (
    BLOCK_HEADER,
    COMMIT_OFFSET,
    DATA_OFFSET,
    SEAL_BLOCK,
    SECTOR,
    STAMP_OFFSET,
    fast_uuid,
    pread,
)
from firebird_cdc.journal.format.model import (
    Change,
    Column,
    CommitMark,
    DdlChange,
    Element,
    Gap,
    Header,
    Place,
    Row,
    RowChange,
    Seal,
    SequenceChange,
    Stamp,
    Storage,
    Table,
    TableChange,
    TableState,
    Undecodable,
    Value,
)
from firebird_cdc.journal.format.reader import JournalReader, read_envelope
from firebird_cdc.journal.format.row_decoder import RowDecoder, image_places, raw_texts, row_decoder
from firebird_cdc.journal.format.salvage import Remains, read_remains
from firebird_cdc.journal.format.shared import (
    SharedJournal,
    alone,
    count_above,
    database_of,
    last_tickets,
    open_any,
    own_journal,
    own_reader,
    read_file_header,
)
from firebird_cdc.journal.format.shared_writer import (
    OwnJournalWriter,
    SharedJournalWriter,
    TransactionWriter,
    append_catalogue,
)
from firebird_cdc.journal.format.small_transactions import (
    Beginning,
    PlainChange,
    SmallTransactions,
)
from firebird_cdc.journal.format.writer import JournalWriter, write_commit_mark, write_stamp

__all__ = [
    "BLOCK_HEADER",
    "COMMIT_OFFSET",
    "DATA_OFFSET",
    "SEAL_BLOCK",
    "SECTOR",
    "STAMP_OFFSET",
    "Beginning",
    "Blob",
    "Change",
    "Column",
    "CommitMark",
    "DdlChange",
    "Element",
    "Entry",
    "Gap",
    "Header",
    "JournalReader",
    "JournalWriter",
    "OwnJournalWriter",
    "Place",
    "PlainChange",
    "RandomAccess",
    "Remains",
    "Row",
    "RowChange",
    "RowDecoder",
    "Seal",
    "SequenceChange",
    "SharedJournal",
    "SharedJournalWriter",
    "SmallTransactions",
    "Stamp",
    "Storage",
    "Table",
    "TableChange",
    "TableState",
    "TransactionWriter",
    "Undecodable",
    "Value",
    "alone",
    "append_catalogue",
    "count_above",
    "database_of",
    "fast_uuid",
    "image_places",
    "last_tickets",
    "open_any",
    "own_journal",
    "own_reader",
    "pack_places",
    "parse_table",
    "pread",
    "raw_texts",
    "read_envelope",
    "read_file_header",
    "read_remains",
    "row_decoder",
    "table_body",
    "unpack_places",
    "write_commit_mark",
    "write_stamp",
]
