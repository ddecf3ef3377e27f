"""``firebird-cdc journal show``: prints a journal for people, whole or torn, change by change."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from firebird_cdc.config.arguments import count
from firebird_cdc.config.locate import add_config_option
from firebird_cdc.errors import JournalCorrupt, JournalEmpty, JournalError, JournalTorn
from firebird_cdc.journal.folder.open_journals import LIVE, given_in, is_open
from firebird_cdc.journal.folder.segments import open_journal
from firebird_cdc.journal.format import (
    Blob,
    Change,
    Column,
    DdlChange,
    Gap,
    JournalReader,
    Place,
    Row,
    RowChange,
    SequenceChange,
    SharedJournal,
    Storage,
    Table,
    Undecodable,
    Value,
    charsets,
    own_reader,
    read_file_header,
)
from firebird_cdc.journal.format.model import VARIABLE_STORAGES
from firebird_cdc.journal.shipper.commands.look_up import find_journal
from firebird_cdc.journal.types.arrays import Array, decode_array
from firebird_cdc.journal.types.canonical import canonical_value

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OPERATIONS = {"c": "insert", "u": "update", "d": "delete", "r": "read"}
"""Words for the operations of events."""

_TEXT_BLOB = 1  # RDB$FIELD_SUB_TYPE
_BLOB_START = 32  # bytes of a blob that are shown
_ARRAY_SHOWN = 16 * 1024  # bytes of an array that is shown element by element


def register(actions: Any) -> None:
    """Add the action to those of ``journal``."""
    parser = actions.add_parser(
        "show",
        help="print a journal, whole or torn",
        description="Prints a journal: whose it is, its changes one a line, and whether it is"
        " whole, torn, empty or corrupt; of one that transactions share, those that are committed."
        " Exit code 1 if it is corrupt, no journal, or not whole though its name ends in .log.",
    )
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE|UUID",
        help="a journal, in whatever state, or JOURNAL/UUID.log, a transaction in it; of a UUID the"
        " journal folder, the quarantine and the archive are searched",
    )
    add_config_option(parser)
    parser.add_argument(
        "--sequence",
        type=count,
        metavar="N",
        help="of a journal that transactions share, print the one with this number only",
    )
    parser.add_argument(
        "--limit", type=count, metavar="N", help="print N changes; the rest is checked only"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument(
        "--charset-none",
        type=_charset,
        default="UTF-8",
        metavar="NAME",
        help="character set of texts of CHARACTER SET NONE, as WIN1251 (default UTF-8)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the journal; raises JournalError only if the file can't be read at all."""
    arguments.file = find_journal(arguments.file, arguments.config)
    tally = _Tally()
    ended: JournalError | None = None
    try:
        for line in _lines(arguments, tally):
            print(line)
    except (JournalEmpty, JournalTorn, JournalCorrupt) as error:
        ended = error
    ended = ended or tally.damaged
    if arguments.json:
        print(json.dumps(_outcome(ended, tally)))
    else:
        print(_last_line(ended, tally))
    promised = arguments.file.suffix == ".log"
    return int(ended is not None and (promised or not _is_open(ended)))


def _charset(name: str) -> str:
    if charsets.find_codec(name) is None:
        raise argparse.ArgumentTypeError(f"unknown character set {name!r}")
    return name


def _lines(arguments: argparse.Namespace, tally: _Tally) -> Iterator[str]:
    form = _json_lines if arguments.json else _text_lines
    try:
        if is_open(arguments.file):
            places = given_in(arguments.file)
            if not places and read_file_header(arguments.file).is_own:  # not decided
                uuid = UUID(arguments.file.name[:36])
                with own_reader(arguments.file, uuid, arguments.charset_none) as reader:
                    yield from form(reader, arguments, tally)
                return
            tally.is_open = True
            readers = partial(_readers_in, arguments.file)
            yield from _shared_lines(places, readers, form, arguments, tally)
            return
        with _open(arguments) as opened:
            if isinstance(opened, SharedJournal):
                yield from _shared_lines(opened.places, opened.readers, form, arguments, tally)
            else:
                yield from form(opened, arguments, tally)
    except PermissionError:
        raise  # whoever runs us says as whom to run it
    except OSError as error:
        raise JournalError(
            arguments.file, -1, f"can't be read: {error.strerror or error}"
        ) from error


def _open(arguments: argparse.Namespace) -> JournalReader | SharedJournal:
    """Return a reader of what is to be shown; one transaction of an open journal is found there."""
    path: Path = arguments.file
    if not path.parent.name.endswith(LIVE):
        return open_journal(path, arguments.charset_none)
    places = [place for place in given_in(path.parent) if str(place.uuid) == path.stem]
    for _, reader in _readers_in(path.parent, places, arguments.charset_none):
        if isinstance(reader, JournalError):
            raise reader
        return reader
    raise JournalError(path.parent, -1, f"no transaction {path.stem} is committed in it")


def _readers_in(
    path: Path, places: Iterable[Place], none_charset: str
) -> Iterator[tuple[Place, JournalReader | JournalError]]:
    """Yield each of PLACES in an open journal with a reader, or with the error that came of it."""
    for place in places:
        try:
            yield place, JournalReader(path / f"{place.uuid}.log", none_charset, place=place)
        except JournalError as error:
            yield place, error


_Form = Callable[[JournalReader, argparse.Namespace, "_Tally"], Iterator[str]]
_Readers = Callable[[Iterable[Place], str], Iterator[tuple[Place, JournalReader | JournalError]]]


def _shared_lines(
    places: Sequence[Place],
    readers: _Readers,
    form: _Form,
    arguments: argparse.Namespace,
    tally: _Tally,
) -> Iterator[str]:
    """Yield the lines of each transaction; one that is damaged keeps no other from being shown."""
    tally.is_shared = True
    wanted = [each for each in places if arguments.sequence in (None, each.stamp.sequence)]
    if arguments.sequence is not None and not wanted:
        raise JournalError(arguments.file, -1, "no transaction in it has this number")
    for place, reader in readers(wanted, arguments.charset_none):
        try:
            if isinstance(reader, JournalError):
                raise reader
            with reader:
                yield from form(reader, arguments, tally)
        except (JournalEmpty, JournalTorn, JournalCorrupt) as error:
            tally.damaged = error
            number = f"sequence {place.stamp.sequence}, epoch {place.stamp.epoch}"
            sentence = f"transaction {place.uuid}, {number}: {error}"
            yield json.dumps({"damaged": sentence}) if arguments.json else f"damaged   {sentence}"
        tally.transactions += 1


class _Tally:
    """Counts of what has been read so far, for the last line; ``damaged``: the last error that did
    not end it."""

    def __init__(self) -> None:
        self.changes = 0
        self.length = 0
        self.transactions = 0
        self.is_shared = False
        self.is_open = False
        self.damaged: JournalError | None = None


def _is_open(ended: JournalError) -> bool:
    """Say whether the journal may simply not be finished."""
    return isinstance(ended, JournalEmpty | JournalTorn)


def _state(ended: JournalError | None) -> str:
    if ended is None:
        return "whole"
    if isinstance(ended, JournalEmpty):
        return "empty"
    return "torn" if isinstance(ended, JournalTorn) else "corrupt"


def _last_line(ended: JournalError | None, tally: _Tally) -> str:
    count = f"{tally.changes} change{'' if tally.changes == 1 else 's'}"
    if tally.is_shared:
        count += f" in {tally.transactions} transaction{'' if tally.transactions == 1 else 's'}"
    if ended is None and tally.is_open:
        return f"open: {count}, as far as they are committed"
    if ended is None and tally.is_shared:
        return f"whole: {count}"
    if ended is None:
        return f"whole: {count}, {tally.length} bytes up to the end of its seal"
    if isinstance(ended, JournalEmpty):
        return f"empty: {ended.what}"
    before = f" ({count} before it)"
    return f"{_state(ended)} at byte {ended.offset}: {ended.what}{before}"


def _outcome(ended: JournalError | None, tally: _Tally) -> dict[str, Any]:
    outcome: dict[str, Any] = {"state": _state(ended), "changes": tally.changes}
    if ended is None and tally.is_open:
        return outcome | {"state": "open"}
    if ended is None:
        return outcome | {"length": tally.length}
    return outcome | {"offset": ended.offset, "why": ended.what}


def _read(reader: JournalReader, limit: int | None, tally: _Tally) -> Iterator[Change]:
    """Yield the changes that are to be printed, and read the rest as well."""
    for change in reader.changes():
        tally.changes += 1
        if limit is None or tally.changes <= limit:
            yield change
    seal = reader.seal
    tally.length = seal.end if seal is not None else 0


def _text_lines(
    reader: JournalReader, arguments: argparse.Namespace, tally: _Tally
) -> Iterator[str]:
    header, mark, stamp = reader.header, reader.commit_mark, reader.stamp
    yield f"journal   {header.uuid}, transaction {header.transaction}"
    yield f"started   {moment_of(header.started_us)}, by process {header.owner}"
    if mark is None:
        yield "commit    not marked"
    else:
        yield f"commit    {moment_of(mark.commit_us)}, ticket {mark.ticket}"
    if stamp is None:
        yield "stamp     none"
    else:
        yield (
            f"stamp     sequence {stamp.sequence}, epoch {stamp.epoch}, "
            f"{moment_of(stamp.stamped_us)}, {stamp.event_count} events, "
            f"{stamp.journal_length} bytes"
        )
    yield f"database  {_printable(reader.database)}, GUID {header.database_guid}"
    yield f"user      {_printable(reader.user)}"
    known: set[int] = set()
    for change in _read(reader, arguments.limit, tally):
        if isinstance(change, RowChange) and change.table.number not in known:
            known.add(change.table.number)
            yield _text_of_table(change.table)
        yield _line_of(change)
    hidden = tally.changes - (arguments.limit if arguments.limit is not None else tally.changes)
    if hidden > 0:
        yield f"          ... and {hidden} more"


def _text_of_table(table: Table) -> str:
    columns = ", ".join(f"{_printable(column.name)} {_type_of(column)}" for column in table.columns)
    key = ", ".join(_printable(table.columns[index].name) for index in table.key_columns)
    keyed = f"key ({key})" if key else "no key"
    if not table.resolved:
        keyed = "(not resolved)"
    return f"table     {_printable(table.name)} ({columns}), {keyed}"


def _type_of(column: Column) -> str:
    name = column.storage.name
    if column.storage in (Storage.TEXT, Storage.PADDED_TEXT):
        name += f"({column.char_length}) {charsets.name_of(column.charset_id)}"
    if column.scale:
        name += f" scale {column.scale}"
    return name if column.nullable else f"{name} NOT NULL"


def _line_of(change: Change) -> str:
    position = "" if isinstance(change, SequenceChange) else change.pos
    return f"{position:>9} {text_of_change(change)}"


def text_of_change(change: Change) -> str:
    """Return CHANGE for people, in one line."""
    match change:
        case RowChange(_, op, table, before, after):
            what = f"{OPERATIONS[op]} {_printable(table.name)}"
            return f"{what}: {_text_of_row(table, before, after)}"
        case DdlChange(_, sql, table_changes):
            text = f"ddl: {_printable(sql) if isinstance(sql, str) else _text(sql)}"
            changed = [f"{each.kind} {_printable(each.name)}" for each in table_changes or ()]
            return f"{text} -> {', '.join(changed)}" if changed else text
        case SequenceChange(name, value):
            return f"sequence {_printable(name)}: {value}"
        case Gap(_, reason):
            return f"GAP: {_printable(reason)}"


def _text_of_row(table: Table, before: Row | None, after: Row | None) -> str:
    """Return ``NAME=value`` for every column, and ``NAME=old -> new`` where an update changed."""
    rows = [
        [_text(value, column) for column, value in zip(table.columns, row, strict=True)]
        for row in (before, after)
        if row is not None
    ]
    parts = []
    for column, *values in zip(table.columns, *rows, strict=True):
        shown = dict.fromkeys(values)  # old and new once if they are the same
        parts.append(f"{_printable(column.name)}={' -> '.join(shown)}")
    return ", ".join(parts)


def _text(value: Value, column: Column | None = None) -> str:
    """Return a value readably, in one line and without control characters."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, bytes) and (column is None or column.storage in VARIABLE_STORAGES):
        return f"x'{value.hex()}'"
    if isinstance(value, Undecodable):
        return f"x'{value.raw.hex()}' (not valid in {charsets.name_of(value.charset_id)})"
    if isinstance(value, Blob):
        what = f"blob {value.number}, {value.length} bytes"
        if not value.available:
            what += ", content could not be read in full"
        return f"<{what}: {_blob_start(value, column)}>" if value.length else f"<{what}>"
    return _canonical(value, column).strip('"')


def _canonical(value: Value, column: Column | None) -> str:
    """Return the JSON text of a number, date, time or DECFLOAT; a value out of range as it is."""
    with contextlib.suppress(ValueError, OverflowError, ArithmeticError):
        if column is not None:
            return canonical_value(column, value)
    return json.dumps(f"x'{value.hex()}'" if isinstance(value, bytes) else str(value))


def _blob_start(blob: Blob, column: Column | None) -> str:
    if column is not None and (array := _array(blob, column)):
        return _text_of_array(array.values, array.element)
    start = next(blob.chunks())[:_BLOB_START]
    more = "..." if blob.length > len(start) else ""
    if column is not None and column.storage == Storage.BLOB and column.sub_type == _TEXT_BLOB:
        codec = charsets.codec_of(column.charset_id) or "utf-8"
        return repr(start.decode(codec, "replace")) + more
    return f"x'{start.hex()}'{more}"


def _array(blob: Blob, column: Column) -> Array | None:
    """Return an array that is small enough to be shown and can be understood."""
    if column.storage is Storage.ARRAY and blob.available and blob.length <= _ARRAY_SHOWN:
        with contextlib.suppress(ValueError):
            return decode_array(blob.read(), column)
    return None


def _text_of_array(values: Any, element: Column) -> str:
    if isinstance(values, list):
        return f"[{', '.join(_text_of_array(value, element) for value in values)}]"
    return _text(values, element)


def _json_array(values: Any, element: Column) -> Any:
    if isinstance(values, list):
        return [_json_array(value, element) for value in values]
    return _json_value(values, element)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def moment_of(microseconds: int) -> str:
    """Return microseconds since 1970 as ISO text; as they are if no calendar has them."""
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return f"{microseconds} us"
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _json_lines(
    reader: JournalReader, arguments: argparse.Namespace, tally: _Tally
) -> Iterator[str]:
    dump: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False).encode
    header, mark, stamp = reader.header, reader.commit_mark, reader.stamp
    ids = {"uuid": header.uuid, "database_guid": header.database_guid, "owner": header.owner}
    yield dump(
        {
            "header": header._asdict() | {key: str(value) for key, value in ids.items()},
            "commit_mark": mark._asdict() if mark is not None else None,
            "stamp": stamp._asdict() if stamp is not None else None,
        }
    )
    yield dump({"database": reader.database, "user": reader.user})
    for change in _read(reader, arguments.limit, tally):
        yield dump(fields_of_change(change))


def fields_of_change(change: Change) -> dict[str, Any]:
    """Return CHANGE as JSON has it."""
    match change:
        case RowChange(pos, op, table, before, after):
            rows = {"before": _json_row(table, before), "after": _json_row(table, after)}
            return {"pos": pos, "op": op, "table": table.name} | rows
        case DdlChange(pos, sql, table_changes):
            statement: dict[str, Any] = {"pos": pos}
            statement["sql"] = sql if isinstance(sql, str) else _text(sql)
            if table_changes is not None:
                statement["table_changes"] = [
                    {"type": each.kind, "table": each.name} for each in table_changes
                ]
            return statement
        case SequenceChange(name, value):
            return {"sequence": name, "value": value}
        case Gap(pos, reason):
            return {"pos": pos, "gap": reason}


def _json_row(table: Table, row: Row | None) -> dict[str, Any] | None:
    if row is None:
        return None
    pairs = zip(table.columns, row, strict=True)
    return {column.name: _json_value(value, column) for column, value in pairs}


def _json_value(value: Value, column: Column) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Undecodable):
        return {"undecodable": value.raw.hex(), "charset": charsets.name_of(value.charset_id)}
    if isinstance(value, bytes) and column.storage in VARIABLE_STORAGES:
        return {"hex": value.hex()}
    if isinstance(value, Blob):
        if array := _array(value, column):
            return {"bounds": array.bounds, "values": _json_array(array.values, array.element)}
        start = next(value.chunks())[:_BLOB_START].hex() if value.length else ""
        return {"length": value.length, "available": value.available, "start": start}
    return json.loads(_canonical(value, column))
