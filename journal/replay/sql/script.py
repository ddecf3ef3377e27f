"""The scripts for isql that bring a restored backup forward: what is done before, the parts, after.

``before.sql`` makes what the parts need in the database, ``after.sql`` takes it away again: a table
that remembers how far the script is and what has been put to rest meanwhile, and procedures.

At rest are the triggers of the tables concerned, and those of the database and of DDL: what they
did is in the journals. Columns that are GENERATED ALWAYS are BY DEFAULT meanwhile, as a row can be
given its number only so by a statement that fits both. The publication is off. Foreign keys stay,
and so do their cascades: a row that a cascade has changed or deleted already is let pass.

A part is a row of blocks of PSQL, each of which checks first whether its transaction was committed
before: so a script that was broken off can simply be run again.
"""

# ruff: noqa: S608 (statements are made here, of quoted names and values)

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from firebird_cdc.journal.format import (
    Blob,
    Change,
    DdlChange,
    Gap,
    RowChange,
    SequenceChange,
    Table,
    Undecodable,
)
from firebird_cdc.journal.format.ddl_text import publication_clauses
from firebird_cdc.journal.replay.sql.text import (
    BLOB_PIECE,
    CASCADED,
    MISSED,
    Needs,
    TableText,
    Text,
    quoted,
)
from firebird_cdc.journal.types.identifiers import identifier

_FORWARD = identifier("FIREBIRD_CDC$FORWARD")
_PIECES = identifier("FIREBIRD_CDC$PIECES")
_CAPTURED = identifier("FIREBIRD_CDC$CAPTURED")
_DONE = identifier("FIREBIRD_CDC$DONE")
_REST = identifier("FIREBIRD_CDC$REST")
_WAKE = identifier("FIREBIRD_CDC$WAKE")
_SEQUENCE = identifier("FIREBIRD_CDC$SEQUENCE")
_REFUSED = identifier("FIREBIRD_CDC$REFUSED")
_PROCEDURES = (_DONE, _WAKE, _REST, _SEQUENCE, _REFUSED, CASCADED, MISSED)

_BLOCK_CHARACTERS = 1024 * 1024  # the engine takes statements of 10 MB; smaller ones are as fast
_BLOCK_CONTEXTS = 180  # of 256
_BLOCK_BLOBS = 40
_PIECES_BYTES = 1024 * 1024  # of a blob in one block; what is longer goes through a table
_LITERAL = 8000

# Statements that what is at rest could be in the way of, or that put something up.
_WAKES = re.compile(r"\b(TRIGGER|IDENTITY|GENERATED)\b", re.IGNORECASE)
# Statements on what is not of this database, or not for a copy.
_ELSEWHERE = re.compile(
    r"(?:\s|/\*.*?\*/|--[^\n]*\n)*(?:(?:CREATE|ALTER|DROP|RECREATE|CREATE\s+OR\s+ALTER)\s+"
    r"(?:USER|DATABASE|GLOBAL\s+MAPPING)\b|COMMENT\s+ON\s+USER\b)",
    re.IGNORECASE | re.DOTALL,
)

_SETTINGS = "SET BAIL ON;\nSET AUTODDL OFF;\nSET SQL DIALECT 3;\n"


class PartWriter:
    """Writes one part of the script: the changes of journals in the order of their numbers.

    run: names the script, so that parts of two are not mixed. per_commit: how many transactions
    share a COMMIT. `take` gives the text so far in whole lines; `note` is called with what could
    not be written, a sentence each.
    """

    def __init__(
        self,
        run: str,
        *,
        tolerant: bool = False,
        published: bool = False,
        per_commit: int = 1,
    ) -> None:
        self._tolerant = tolerant
        self._published = published
        self._per_commit = per_commit
        self._lines: list[str] = []
        self._size = 0
        self._tables: dict[int, TableText] = {}
        self._statements: list[str] = []
        self._needs = Needs()
        self._contexts = 0
        self._characters = 0
        self._open = 0  # journals since the last COMMIT
        self._epoch = self._sequence = 0
        self._ended = (0, 0)
        self._untouched = True  # of the journal nothing was written yet
        self._has_ddl = False
        self._inside = False  # of a journal that other parts begin or end
        self.counts: dict[str, dict[str, int]] = {}
        self.keyless: set[str] = set()
        self.notes: list[str] = []
        self._line(_SETTINGS + "SET TERM ^ ;")
        self._line(
            f"EXECUTE BLOCK AS DECLARE D SMALLINT; BEGIN EXECUTE PROCEDURE {_DONE}"
            f" (-1,-1,'{run}') RETURNING_VALUES :D; END^"
        )

    # What the caller tells.

    def begin(self, epoch: int, sequence: int, what: str, *, split: bool) -> None:
        """Begin a journal, or go on with one that is SPLIT over several parts; WHAT: a comment."""
        if split:
            self.commit()
        self._epoch, self._sequence, self._inside = epoch, sequence, split
        self._untouched, self._has_ddl = True, False
        self._line(f"-- {what}")
        self._add(f"S={sequence};", 0)

    def change(self, change: Change) -> None:
        """Write one change."""
        if isinstance(change, DdlChange):
            if self._untouched:
                self.commit()
            self._has_ddl = True
            self._ddl(change)
        elif isinstance(change, RowChange):
            self._row(change)
        elif isinstance(change, SequenceChange):
            sql = f"EXECUTE PROCEDURE {_SEQUENCE} ({quoted(change.name)},{change.value});"
            self._add(self._guarded(sql), 1)
        elif isinstance(change, Gap):
            self.note(f"event {change.pos} marks a gap: {change.reason}")
        self._untouched = False

    def end(self, *, whole: bool = True) -> None:
        """End a journal, WHOLE: to its last event; then its transaction is committed."""
        if not whole:
            self._close_block()
            return
        self._open += 1
        self._ended = (self._epoch, self._sequence)
        if self._inside or self._has_ddl or self._open >= self._per_commit:
            self.commit()

    def commit(self) -> None:
        """Commit the journals that were ended since the last time."""
        if self._open:
            self._add(
                f"UPDATE {_FORWARD} SET AT_EPOCH={self._ended[0]},AT_SEQUENCE={self._ended[1]}"
                " WHERE KIND='P';",
                2,
            )
            self._close_block(place=self._ended)
            self._line("COMMIT^")
        self._open = 0

    def note(self, sentence: str) -> None:
        """Remember what the script does not do, with the place of the journal."""
        self.notes.append(f"journal {self._epoch}:{self._sequence}: {sentence}")

    def left_out(self) -> Counter[str]:
        """Return how many values could not be written, by column and reason."""
        return sum((text.left_out for text in self._tables.values()), Counter[str]())

    def take(self, at_least: int = 0) -> str:
        """Return what was written since the last time if it has AT_LEAST characters, else ''."""
        if self._size < max(at_least, 1):
            return ""
        text = "\n".join(self._lines)
        self._lines, self._size = [], 0
        return text

    # Changes.

    def _row(self, change: RowChange) -> None:
        text = self._text_of(change.table)
        needs = self._needs
        before = len(needs.blobs)
        written = self._written(text, change, needs)
        room = (
            self._characters + len(written.sql) <= _BLOCK_CHARACTERS
            and self._contexts + written.contexts <= _BLOCK_CONTEXTS
            and len(needs.blobs) <= _BLOCK_BLOBS
        )
        if not room and self._statements:
            del needs.blobs[before:]
            self._close_block()
            needs = self._needs
            before = 0
            written = self._written(text, change, needs)
        large = sum(blob.length for blob in needs.blobs[before:]) > _PIECES_BYTES
        if large:
            # Its pieces come in blocks of their own, so it has to begin one.
            pieces = needs.blobs[before:]
            del needs.blobs[before:]
            self._close_block()
            written = self._written(text, change, self._needs)
            self._send_pieces(pieces)
            prepare, contexts = self._from_pieces(len(pieces))
            self._add(prepare, contexts)
        else:
            for number in range(before, len(needs.blobs)):
                self._add(_appended(f"B{number}", needs.blobs[number].chunks()), 0)
        self._add(self._guarded(f"P={change.pos};{written.sql}"), written.contexts)
        counts = self.counts.setdefault(change.table.name, {"c": 0, "u": 0, "d": 0})
        counts[change.op] += 1
        if not text.has_key:
            self.keyless.add(change.table.name)

    def _guarded(self, sql: str) -> str:
        """Return SQL such that an error of it is noted, no more, in a tolerant script."""
        if not self._tolerant:
            return sql
        return (
            f"BEGIN {sql} WHEN ANY DO EXECUTE PROCEDURE {_REFUSED}"
            f" ({self._epoch},S,P,RDB$ERROR(MESSAGE)); END"
        )

    def _text_of(self, table: Table) -> TableText:
        text = self._tables.get(id(table))
        if text is None or text.table is not table:
            text = self._tables[id(table)] = TableText(table, tolerant=self._tolerant)
        return text

    @staticmethod
    def _written(text: TableText, change: RowChange, needs: Needs) -> Text:
        if change.before is None:
            assert change.after is not None
            return text.insert(change.after, needs)
        if change.after is None:
            return text.delete(change.before, needs)
        return text.update(change.before, change.after, needs)

    def _ddl(self, change: DdlChange) -> None:
        if isinstance(change.sql, Undecodable):
            self.note(
                f"event {change.pos}: a DDL statement whose text can't be decoded is left out"
            )
            return
        sql = change.sql
        publication = {clause.kind for clause in publication_clauses(sql)}
        if _ELSEWHERE.match(sql) and not publication:
            shown = " ".join(sql.split())[:80]
            self.note(f"event {change.pos}: {shown!r} is not for a copy, and is left out")
            return
        self._close_block()
        wakes = _WAKES.search(sql) is not None
        if wakes:
            self._add(f"EXECUTE PROCEDURE {_WAKE};", 1)
        self._add(f"P={change.pos};", 0)
        if len(sql) <= _LITERAL:
            self._add(f"EXECUTE STATEMENT {quoted(sql)};", 0)
        else:
            pieces = (quoted(sql[at : at + _LITERAL]) for at in range(0, len(sql), _LITERAL))
            self._add("".join(f"T=BLOB_APPEND(T,{piece});\n" for piece in pieces), 0)
            self._add("EXECUTE STATEMENT T;", 0)
        if wakes:
            self._add(f"EXECUTE PROCEDURE {_REST};", 1)
        if not self._published:
            if "ENABLE" in publication:
                self._add(_UNPUBLISH, 2)
            elif "DISABLE" in publication:
                self._add(_FORGET_CAPTURED, 2)
        self._close_block(tolerant=self._tolerant)

    # Blobs.

    def _send_pieces(self, blobs: Sequence[Blob]) -> None:
        """Put the pieces of BLOBS into the table for them, a block for every MiB."""
        for number, blob in enumerate(blobs):
            held: list[bytes] = []
            size = order = 0
            for chunk in blob.chunks():
                held.append(chunk)
                size += len(chunk)
                if size >= _PIECES_BYTES:
                    self._send_piece(number, order, held)
                    held, size, order = [], 0, order + 1
            self._send_piece(number, order, held)

    def _send_piece(self, number: int, order: int, held: Iterable[bytes]) -> None:
        kept, self._needs = self._needs, Needs()
        self._add(_appended("T0", held), 0)
        self._add(f"INSERT INTO {_PIECES} VALUES ({number},{order},:T0);", 1)
        self._close_block()
        self._needs = kept

    def _from_pieces(self, count: int) -> tuple[str, int]:
        gather = "".join(
            f"B{n}=BLOB_APPEND(NULL,x'');FOR SELECT PIECE FROM {_PIECES} WHERE BLOB_NUMBER={n}"
            f" ORDER BY N INTO :T0 DO B{n}=BLOB_APPEND(B{n},T0);\n"
            for n in range(count)
        )
        return f"{gather}DELETE FROM {_PIECES};", 2 * count + 2

    # Blocks.

    def _add(self, sql: str, contexts: int) -> None:
        self._statements.append(sql)
        self._characters += len(sql)
        self._contexts += contexts
        if self._contexts > _BLOCK_CONTEXTS and len(self._statements) > 1:
            last = self._statements.pop()
            self._close_block()
            self._add(last, contexts)

    def _close_block(self, *, tolerant: bool = False, place: tuple[int, int] | None = None) -> None:
        """Write the statements so far as one block; TOLERANT: an error is noted, no more.

        place: of the journal that they belong to, by default the one begun last.
        """
        epoch, sequence = place or (self._epoch, self._sequence)
        statements, needs = self._statements, self._needs
        self._statements, self._needs = [], Needs()
        self._characters = self._contexts = 0
        if not statements:
            return
        if all(statement.startswith("S=") for statement in statements):
            self._statements = statements[-1:]
            return
        declared = ["D SMALLINT", f"S BIGINT={self._sequence}", "P BIGINT=0"]
        declared += ["T BLOB SUB_TYPE TEXT CHARACTER SET UTF8", "T0 BLOB SUB_TYPE 0"]
        declared += [f"B{number} BLOB SUB_TYPE 0" for number in range(len(needs.blobs))]
        zones = sorted(needs.zones)
        declared += [f"Z{zone} VARCHAR(63)" for zone in zones]
        self._line("EXECUTE BLOCK AS " + " ".join(f"DECLARE {name};" for name in declared))
        self._line(
            f"BEGIN EXECUTE PROCEDURE {_DONE} ({epoch},{sequence},NULL)"
            " RETURNING_VALUES :D; IF (D=1) THEN EXIT;"
        )
        for zone in zones:
            self._line(
                f"Z{zone}=(SELECT TRIM(RDB$TIME_ZONE_NAME) FROM RDB$TIME_ZONES"
                f" WHERE RDB$TIME_ZONE_ID={zone});"
            )
        self._lines += statements
        self._size += sum(map(len, statements))
        if tolerant:
            self._line(
                f"WHEN ANY DO EXECUTE PROCEDURE {_REFUSED}"
                f" ({self._epoch},S,P,RDB$ERROR(MESSAGE)); END^"
            )
        else:
            self._line(
                f"WHEN ANY DO EXCEPTION {_FORWARD} 'journal {self._epoch}:'||S||', event '||P||': '"
                "||LEFT(RDB$ERROR(MESSAGE),500); END^"
            )

    def _line(self, text: str) -> None:
        self._lines.append(text)
        self._size += len(text)

    def finish(self) -> str:
        """End the part and return the rest of its text; what is not ended stays uncommitted."""
        self.commit()
        self._close_block()
        self._line("SET TERM ; ^")
        return self.take()


def _appended(variable: str, chunks: Iterable[bytes]) -> str:
    """Return the assignments that put CHUNKS together in VARIABLE."""
    lines = [f"{variable}=BLOB_APPEND(NULL,x'');\n"]
    for chunk in chunks:
        for at in range(0, len(chunk), BLOB_PIECE):
            piece = chunk[at : at + BLOB_PIECE].hex()
            lines.append(f"{variable}=BLOB_APPEND({variable},x'{piece}');\n")
    return "".join(lines)


def before(
    run: str, since: tuple[int, int], tables: Iterable[str], *, published: bool
) -> Iterator[str]:
    """Yield the lines of ``before.sql``.

    since: epoch and sequence of the last journal that the backup has. tables: whose rows the parts
    change. published: leave the publication on, so that a server that captures publishes again.
    """
    yield _SETTINGS + "SET TERM ^ ;"
    yield _CHECKS
    if not published:
        yield f"EXECUTE BLOCK AS BEGIN\n{_UNPUBLISH} END^\nCOMMIT^"
    yield _TABLES
    yield _START.format(run=run, epoch=since[0], sequence=since[1])
    yield from (f"CREATE OR ALTER PROCEDURE {text}\nCOMMIT^" for text in _PROCEDURE_TEXTS)
    yield f"DELETE FROM {_FORWARD} WHERE KIND='B'^"
    for table in tables:
        yield f"INSERT INTO {_FORWARD} (KIND,NAME) VALUES ('B',{quoted(table)})^"
    yield f"EXECUTE PROCEDURE {_REST}^"
    yield "COMMIT^"
    yield "SET TERM ; ^"


def after(until: tuple[int, int]) -> Iterator[str]:
    """Yield the lines of ``after.sql``; UNTIL: epoch and sequence of the last journal applied."""
    yield _SETTINGS + "SET TERM ^ ;"
    yield (
        f"EXECUTE BLOCK AS BEGIN IF (NOT EXISTS(SELECT 1 FROM {_FORWARD} WHERE KIND='P' AND"
        f" AT_EPOCH={until[0]} AND AT_SEQUENCE={until[1]})) THEN EXCEPTION {_FORWARD}"
        f" 'not all parts were applied: journal {until[0]}:{until[1]} is the last'; END^"
    )
    yield f"EXECUTE PROCEDURE {_WAKE}^"
    yield "COMMIT^"
    yield "SET LIST ON^"
    yield (
        "SELECT AT_EPOCH, AT_SEQUENCE AS REFUSED_IN_JOURNAL, EVENT, DETAIL"
        f" FROM {_FORWARD} WHERE KIND='N' ORDER BY 1, 2, 3^"
    )
    yield "COMMIT^"
    for procedure in _PROCEDURES:
        yield f"DROP PROCEDURE {procedure}^"
    yield "COMMIT^"
    yield f"DROP TABLE {_PIECES}^"
    yield f"DROP TABLE {_FORWARD}^"
    yield f"DROP EXCEPTION {_FORWARD}^"
    yield "COMMIT^"
    yield (
        "EXECUTE BLOCK AS BEGIN IF (EXISTS(SELECT 1 FROM RDB$EXCEPTIONS WHERE"
        " RDB$EXCEPTION_NAME='FIREBIRD_CDC$CAPTURED')) THEN\n"
        f"  EXECUTE STATEMENT 'ALTER DATABASE ENABLE PUBLICATION';\n{_FORGET_CAPTURED} END^"
    )
    yield "COMMIT^"
    yield "SET TERM ; ^"


_CHECKS = """\
EXECUTE BLOCK AS DECLARE N INTEGER; BEGIN
IF ((SELECT MON$SQL_DIALECT FROM MON$DATABASE)<>3) THEN
  N=CAST('this script is for a database of dialect 3' AS INTEGER);
IF ((SELECT MON$CHARACTER_SET_ID FROM MON$ATTACHMENTS
     WHERE MON$ATTACHMENT_ID=CURRENT_CONNECTION)<>4) THEN
  N=CAST('start isql with -ch UTF8' AS INTEGER);
END^
COMMIT^"""

_UNPUBLISH = f"""\
IF (EXISTS(SELECT 1 FROM RDB$PUBLICATIONS WHERE RDB$ACTIVE_FLAG=1)) THEN BEGIN
  EXECUTE STATEMENT 'RECREATE EXCEPTION {_CAPTURED} ''the publication was on''';
  EXECUTE STATEMENT 'ALTER DATABASE DISABLE PUBLICATION'; END"""

_FORGET_CAPTURED = f"""\
IF (EXISTS(SELECT 1 FROM RDB$EXCEPTIONS WHERE RDB$EXCEPTION_NAME='FIREBIRD_CDC$CAPTURED')) THEN
  EXECUTE STATEMENT 'DROP EXCEPTION {_CAPTURED}';"""

# KIND: P how far the script is (DETAIL: which), B tables concerned; at rest: T trigger, I identity
# column (DETAIL); N a statement that was refused.
_TABLES = f"""\
EXECUTE BLOCK AS BEGIN
IF (NOT EXISTS(SELECT 1 FROM RDB$RELATIONS WHERE RDB$RELATION_NAME='FIREBIRD_CDC$FORWARD')) THEN
BEGIN
  EXECUTE STATEMENT 'RECREATE EXCEPTION {_FORWARD} ''applying journals failed''';
  EXECUTE STATEMENT 'CREATE TABLE {_FORWARD} (KIND CHAR(1) CHARACTER SET ASCII NOT NULL,
    NAME VARCHAR(63) CHARACTER SET UTF8, DETAIL VARCHAR(1000) CHARACTER SET UTF8,
    AT_EPOCH BIGINT, AT_SEQUENCE BIGINT, EVENT BIGINT)';
  EXECUTE STATEMENT 'RECREATE GLOBAL TEMPORARY TABLE {_PIECES}
    (BLOB_NUMBER INTEGER, N INTEGER, PIECE BLOB SUB_TYPE 0) ON COMMIT DELETE ROWS';
END END^
COMMIT^"""

_START = (
    f"EXECUTE BLOCK AS BEGIN\nIF (NOT EXISTS(SELECT 1 FROM {_FORWARD} WHERE KIND='P')) THEN\n"
    f"  INSERT INTO {_FORWARD} (KIND,DETAIL,AT_EPOCH,AT_SEQUENCE)\n"
    "  VALUES ('P','{run}',{epoch},{sequence});\n"
    f"IF (NOT EXISTS(SELECT 1 FROM {_FORWARD} WHERE KIND='P' AND DETAIL='{{run}}')) THEN\n"
    f"  EXCEPTION {_FORWARD} 'another script was begun in this database, and not ended';\n"
    "END^\nCOMMIT^"
)

_PROCEDURE_TEXTS = (
    # Whether a journal was applied; with a name, whether these parts belong to the script begun.
    f"""\
{_DONE} (E BIGINT, S BIGINT, RUN VARCHAR(100)) RETURNS (D SMALLINT) AS
DECLARE AE BIGINT; DECLARE A BIGINT; DECLARE R VARCHAR(1000); BEGIN
SELECT AT_EPOCH, AT_SEQUENCE, DETAIL FROM {_FORWARD} WHERE KIND='P' INTO :AE, :A, :R;
IF (RUN<>R) THEN EXCEPTION {_FORWARD} 'this part is of another script than before.sql';
D=IIF(AE>E OR (AE=E AND A>=S),1,0); END^""",
    f"""\
{_WAKE} AS DECLARE N VARCHAR(63); DECLARE C VARCHAR(1000); BEGIN
FOR SELECT F.NAME FROM {_FORWARD} F WHERE F.KIND='T' AND EXISTS(SELECT 1 FROM RDB$TRIGGERS R
    WHERE R.RDB$TRIGGER_NAME=F.NAME) INTO :N DO
  EXECUTE STATEMENT 'ALTER TRIGGER "'||REPLACE(N,'"','""')||'" ACTIVE';
FOR SELECT F.NAME, F.DETAIL FROM {_FORWARD} F WHERE F.KIND='I' AND EXISTS(
    SELECT 1 FROM RDB$RELATION_FIELDS R WHERE R.RDB$RELATION_NAME=F.NAME
    AND R.RDB$FIELD_NAME=F.DETAIL AND R.RDB$IDENTITY_TYPE=1) INTO :N, :C DO
  EXECUTE STATEMENT 'ALTER TABLE "'||REPLACE(N,'"','""')||'" ALTER "'||REPLACE(C,'"','""')
    ||'" SET GENERATED ALWAYS';
DELETE FROM {_FORWARD} WHERE KIND IN ('T','I'); END^""",
    f"""\
{_REST} AS DECLARE N VARCHAR(63); DECLARE C VARCHAR(63); BEGIN
FOR SELECT TRIM(TRAILING FROM R.RDB$TRIGGER_NAME) FROM RDB$TRIGGERS R WHERE R.RDB$SYSTEM_FLAG=0
    AND R.RDB$TRIGGER_INACTIVE=0 AND (R.RDB$RELATION_NAME IS NULL OR EXISTS(
      SELECT 1 FROM {_FORWARD} F WHERE F.KIND='B' AND F.NAME=R.RDB$RELATION_NAME))
    INTO :N DO BEGIN
  INSERT INTO {_FORWARD} (KIND,NAME) VALUES ('T',:N);
  EXECUTE STATEMENT 'ALTER TRIGGER "'||REPLACE(N,'"','""')||'" INACTIVE'; END
FOR SELECT TRIM(TRAILING FROM R.RDB$RELATION_NAME), TRIM(TRAILING FROM R.RDB$FIELD_NAME)
    FROM RDB$RELATION_FIELDS R
    JOIN {_FORWARD} F ON F.KIND='B' AND F.NAME=R.RDB$RELATION_NAME
    WHERE R.RDB$IDENTITY_TYPE=0 INTO :N, :C DO BEGIN
  INSERT INTO {_FORWARD} (KIND,NAME,DETAIL) VALUES ('I',:N,:C);
  EXECUTE STATEMENT 'ALTER TABLE "'||REPLACE(N,'"','""')||'" ALTER "'||REPLACE(C,'"','""')
    ||'" SET GENERATED BY DEFAULT'; END END^""",
    # Sequences only go on, as in the engine's own replication: of two transactions the one that
    # drew the lower value may have been committed last.
    f"""\
{_SEQUENCE} (NAME VARCHAR(63) CHARACTER SET UTF8, V BIGINT) AS
DECLARE Q VARCHAR(200) CHARACTER SET UTF8; DECLARE NOW_AT BIGINT; DECLARE STEP INTEGER; BEGIN
SELECT RDB$GENERATOR_INCREMENT FROM RDB$GENERATORS WHERE RDB$GENERATOR_NAME=:NAME INTO :STEP;
IF (STEP IS NULL) THEN BEGIN
  IF (NAME NOT STARTING WITH 'RDB$') THEN EXCEPTION {_FORWARD} 'there is no sequence '||NAME;
  INSERT INTO {_FORWARD} (KIND,DETAIL) VALUES ('N','no identity column has the sequence '
    ||:NAME||', whose value became '||:V);
  EXIT; END
Q='"'||REPLACE(NAME,'"','""')||'"';
EXECUTE STATEMENT 'SELECT GEN_ID('||Q||',0) FROM RDB$DATABASE' INTO :NOW_AT;
IF ((STEP>=0 AND V>NOW_AT) OR (STEP<0 AND V<NOW_AT)) THEN
  EXECUTE STATEMENT 'SET GENERATOR '||Q||' TO '||V; END^""",
    f"""\
{_REFUSED} (E BIGINT, S BIGINT, P BIGINT, WHY VARCHAR(1024) CHARACTER SET UTF8) AS BEGIN
INSERT INTO {_FORWARD} (KIND,AT_EPOCH,AT_SEQUENCE,EVENT,DETAIL)
VALUES ('N',:E,:S,:P,LEFT(:WHY,1000)); END^""",
    f"""\
{MISSED} (T VARCHAR(63) CHARACTER SET UTF8, N INTEGER) AS BEGIN
EXCEPTION {_FORWARD} N||' rows of '||T||' are as the journal says the row was before, not one;'
||' is this copy as of the place that --since names?'; END^""",
    f"""\
{CASCADED} (T VARCHAR(63) CHARACTER SET UTF8, N INTEGER) AS BEGIN
IF (N<>0 OR NOT EXISTS(SELECT 1 FROM RDB$RELATION_CONSTRAINTS C JOIN RDB$REF_CONSTRAINTS R
    ON R.RDB$CONSTRAINT_NAME=C.RDB$CONSTRAINT_NAME WHERE C.RDB$RELATION_NAME=:T
    AND (R.RDB$DELETE_RULE IN ('CASCADE','SET NULL','SET DEFAULT')
      OR R.RDB$UPDATE_RULE IN ('CASCADE','SET NULL','SET DEFAULT')))) THEN
  EXECUTE PROCEDURE {MISSED} (T,N); END^""",
)
