"""Reads and edits Firebird's configuration files without touching what it isn't asked to.

The syntax is the engine's (``firebird.conf``, ``plugins.conf``, ``replication.conf`` share one
parser): ``name = value`` or a bare ``name`` per line; ``{`` at the end of such a line or on a
line of its own opens a section below it, ``}`` closes it, after an entry too; ``#`` begins a
comment outside of quotes; ``include path`` takes in other files, wildcards allowed; ``{{`` and
``}}`` stand for the brackets themselves.

A ConfFile is its physical lines plus an index into them. Edits insert or replace whole lines,
so text that no edit names stays as it was, byte for byte.

Whatever an edit leaves behind says so in a comment that the engine skips, and ``restored`` takes
exactly these lines out again:

    # firebird-cdc begin …      a section that was added, up to
    # firebird-cdc end          (each line of it behind a '#' if it is not to count yet)
    name = value  # firebird-cdc               a line added to a section that was there
    # firebird-cdc was: plugin = other         a line that was replaced, as it stood

The opening bracket never gets such a comment: the engine takes ``database { # note`` for an
entry that is called ``database {`` and skips it.

Source: Firebird's configuration file parser, the same on 4.0, 5.0 and master.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from firebird_cdc.errors import SetupError

MARK = "# firebird-cdc"
_BEGIN = f"{MARK} begin"
_END = f"{MARK} end"
_WAS = f"{MARK} was: "
_WAS_LAST = f"{MARK} was the end, without a line end: "
_REMARK = f"{MARK}: "
_TAIL = f"  {MARK}"
_NO_NEWLINE = "the line before had no line end"
_NEW_FILE = "this file was made by it"
_INACTIVE = "a comment, until `firebird-cdc install`"

#: The keys that install writes; anything else in a section of ours is the user's.
OWN_KEYS = frozenset(
    {
        "module",
        "config",
        "connectorconfig",
        "loggingconfig",
        "pythondirs",
        "python",
        "pythonhome",
        "statedirectory",
        "plugin",
        "report_errors",
        "disable_on_error",
    }
)

_INCLUDE_LIMIT = 10
_BLANKS = " \t\r"


class ConfSyntaxError(SetupError):
    """The engine would refuse this file. ``path`` and ``line`` (from 1) name the place."""

    def __init__(self, path: Path, line: int, what: str) -> None:
        super().__init__(f"{path}, line {line}: {what}; the server refuses such a file")
        self.path = path
        self.line = line
        self.what = what

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self.line, self.what))


@dataclass(slots=True)
class Entry:
    """One entry: ``name``, ``value`` (macros as written, quotes cut) and, for a section, entries.

    ``line``, ``open_line`` and ``close_line`` are indexes into ConfFile.lines; ``path`` is the
    file they count in. ``closes`` is true for an entry with the section's ``}`` on its line.
    """

    name: str
    value: str
    path: Path
    line: int
    entries: list[Entry] | None = None
    open_line: int = -1
    close_line: int = -1
    closes: bool = False

    def find(self, name: str) -> list[Entry]:
        """Return the entries of this section called NAME, letter case ignored."""
        return find(self.entries or [], name)

    def last(self, name: str) -> str | None:
        """Return the value that counts where the engine lets the last entry win."""
        found = self.find(name)
        return found[-1].value if found else None


def find(entries: Sequence[Entry], name: str, value: str | None = None) -> list[Entry]:
    """Return the entries called NAME (case ignored), with VALUE (case counts) if it is given."""
    return [
        entry
        for entry in entries
        if entry.name.casefold() == name.casefold() and value in (None, entry.value)
    ]


@dataclass(slots=True)
class ConfFile:
    """A configuration file as lines (line ends included) and the entries found in them."""

    path: Path
    lines: list[str]
    entries: list[Entry] = field(default_factory=list)
    exists: bool = True

    @classmethod
    def open(cls, path: Path) -> ConfFile:
        """Read and index a file, or begin one that doesn't exist yet."""
        return cls.read(path) if path.exists() else cls(path, [], exists=False)

    @classmethod
    def parse(cls, text: str, path: Path) -> ConfFile:
        """Index TEXT; PATH is for messages and includes. Raises ConfSyntaxError."""
        conf = cls(path, _split(text))
        conf._index()
        return conf

    @classmethod
    def read(cls, path: Path) -> ConfFile:
        """Read and index a file; bytes that are no UTF-8 survive. Raises OSError too."""
        return cls.parse(path.read_bytes().decode("utf-8", "surrogateescape"), path)

    @property
    def text(self) -> str:
        """The whole file."""
        return "".join(self.lines)

    def expanded(self) -> list[Entry]:
        """Return the top entries with those of included files in their place, as the engine does.

        Raises ConfSyntaxError for a broken included file or one that is missing.
        """
        return list(_expand(self, 0))

    def included(self) -> list[Path]:
        """Return the files that this one includes, also those that say nothing.

        Raises ConfSyntaxError as ``expanded`` does.
        """
        return list(_included(self, 0))

    def sections(self, name: str, value: str | None = None) -> list[Entry]:
        """Return the sections of this file itself (no includes) called NAME, with VALUE."""
        return [e for e in find(self.entries, name, value) if e.entries is not None]

    # ------------------------------------------------------------------ edits

    def set_key(self, section: Entry, name: str, value: str) -> bool:
        """Make NAME = VALUE hold in SECTION, once; whatever said otherwise is kept as a comment,
        also the name in other letters, which the engine does not know in replication.conf.

        Returns whether anything changed. SECTION and all other entries are stale afterwards.
        """
        old = section.find(name)
        if [(entry.name, entry.value) for entry in old] == [(name, value)]:
            return False
        added = f"{self._indent(section)}{name} = {quoted(value)}"
        if not old:
            tail = "" if self._inside_block(section.open_line) else _TAIL
            alone = _bare(self.lines[section.close_line]).lstrip(_BLANKS).startswith("}")
            at = section.close_line if alone else section.open_line + 1
            self._splice(at, at, [added + tail])
            return True
        for entry in reversed(old):
            self._replace(entry, added if entry is old[-1] else None)
        return True

    def add_section(
        self,
        name: str,
        value: str,
        keys: Sequence[tuple[str, str]],
        remarks: Sequence[str] = (),
        *,
        is_active: bool = True,
    ) -> None:
        """Append a section, marked as ours, with REMARKS as comments in it; as a comment, unless it
        is to be active."""
        notes = [] if is_active else [_INACTIVE]
        if not self.lines and not self.exists:
            notes.append(_NEW_FILE)
        elif self.lines and not self.lines[-1].endswith("\n"):
            self.lines[-1] += self._newline()
            notes.append(_NO_NEWLINE)
        about = "".join(f"; {note}" for note in notes)
        head = f"{name} = {quoted(value)}" if value else name
        sign = "" if is_active else "#"
        self._splice(
            len(self.lines),
            len(self.lines),
            [
                f"{_BEGIN}: `firebird-cdc uninstall` takes this out{about}",
                f"{sign}{head}",
                f"{sign}{{",
                *(f"{sign}\t{_REMARK}{remark}" for remark in remarks),
                *(f"{sign}\t{key} = {quoted(text)}" for key, text in keys),
                f"{sign}}}",
                _END,
            ],
        )

    @property
    def has_inactive(self) -> bool:
        """A section of ours stands here as a comment."""
        return any(line.startswith(_BEGIN) and _INACTIVE in line for line in self.lines)

    def activate(self) -> None:
        """Have sections of ours count that stand here as comments."""
        is_inside = False
        for at, line in enumerate(self.lines):
            if line.startswith(_BEGIN) and _INACTIVE in line:
                is_inside = True
                self.lines[at] = line.replace(f"; {_INACTIVE}", "")
            elif _bare(line) == _END:
                is_inside = False
            elif is_inside:
                self.lines[at] = line.removeprefix("#")
        self._index()

    def restored(self) -> tuple[str | None, list[str]]:
        """Return the text without what edits added, with what they replaced; None: no file.

        The second part lists the lines that somebody else wrote into a section of ours: they
        stay, with the section around them.
        """
        lines: list[str] = []
        kept: list[str] = []
        new_file = False
        cut_newline: int | None = None
        at = 0
        while at < len(self.lines):
            line = _bare(self.lines[at])
            if line.startswith(_BEGIN):
                end = next(
                    (i for i in range(at, len(self.lines)) if _bare(self.lines[i]) == _END), None
                )
                if end is None:
                    raise ConfSyntaxError(self.path, at + 1, f"the line '{_END}' below is missing")
                foreign = self._foreign(at + 1, end, is_inactive=_INACTIVE in line)
                new_file = new_file or _NEW_FILE in line
                if foreign:
                    lines += self.lines[at + 1 : end]
                    kept += foreign
                elif _NO_NEWLINE in line:
                    cut_newline = len(lines)
                at = end + 1
                continue
            was = line.lstrip(_BLANKS)
            ending = self.lines[at][len(line) :]
            if was.startswith(_WAS):
                lines.append(was[len(_WAS) :] + ending)
            elif was.startswith(_WAS_LAST):
                lines.append(was[len(_WAS_LAST) :] + ending)
                cut_newline = len(lines)
            elif not line.endswith(_TAIL):
                lines.append(self.lines[at])
            at += 1
        if lines and cut_newline == len(lines):
            lines[-1] = _bare(lines[-1])
        text = "".join(lines)
        return (None if new_file and not text.strip() else text), kept

    # ------------------------------------------------------------------ inside

    def _index(self) -> None:
        stack: list[tuple[list[Entry], Entry | None]] = [([], None)]
        for at, raw in enumerate(self.lines):
            parsed = self._parse_line(raw, at)
            if parsed is None:
                continue
            entries, owner = stack[-1]
            entry, opens, closes = parsed
            if entry is not None:
                entry.closes = closes
                entries.append(entry)
            if opens:
                if not entries:
                    raise ConfSyntaxError(self.path, at + 1, "'{' without a name above it")
                parent = entries[-1]
                parent.entries, parent.open_line = [], at
                stack.append((parent.entries, parent))
            elif closes:
                if owner is None:
                    raise ConfSyntaxError(self.path, at + 1, "'}' without a section to close")
                owner.close_line = at
                stack.pop()
        if stack[-1][1] is not None:
            name = stack[-1][1].name
            raise ConfSyntaxError(self.path, stack[-1][1].line + 1, f"'{name}' has no '}}'")
        self.entries = stack[0][0]

    def _parse_line(self, raw: str, at: int) -> tuple[Entry | None, bool, bool] | None:
        """Return the entry on a line (if any), whether it opens and whether it closes a section."""
        text = raw.rstrip("\n").strip(_BLANKS)
        if not text or text.startswith("#"):
            return None
        name: str | None = None
        kept: list[str] = []  # the line with doubled brackets made single
        start = quotes = 0
        end: int | None = None
        opens = False
        n = 0
        while n < len(text):
            char = text[n]
            quoting = quotes == 1 and not opens
            if char in "{}" and text[n + 1 : n + 2] == char:
                n += 1
            elif char == "#" and not quoting:
                # After '{' too, where the engine then reads the bracket as a part of the entry.
                end = len(kept)
                break
            elif char in "{}" and not quoting:
                if char == "}":
                    rest = text[n + 1 :].strip(_BLANKS)
                    if rest and not rest.startswith("#"):
                        raise ConfSyntaxError(self.path, at + 1, "text after '}'")
                    inner = self._parse_line("".join(kept), at)
                    return (inner[0] if inner else None), False, True
                opens, end = True, len(kept)
            elif char == '"':
                if name is None or quotes >= 2 or opens:
                    raise ConfSyntaxError(self.path, at + 1, "a quote in the wrong place")
                quotes += 1
            elif char == "=" and name is None:
                name = "".join(kept).rstrip(_BLANKS)
                if not name:
                    raise ConfSyntaxError(self.path, at + 1, "'=' without a name before it")
                start = len(kept) + 1
            elif char not in _BLANKS and (quotes >= 2 or opens):
                raise ConfSyntaxError(self.path, at + 1, "text after the end of the value")
            kept.append(char)
            n += 1
        if quotes == 1:
            raise ConfSyntaxError(self.path, at + 1, "a quote that is not closed")
        whole = "".join(kept)
        words = whole.split(None, 1)
        if name is None and len(words) == 2 and words[0].casefold() == "include":
            return Entry("include", words[1].strip(_BLANKS), self.path, at), False, False
        if name is None:
            name, value = whole[:end].rstrip(_BLANKS), ""
        else:
            value = whole[start:end].strip(_BLANKS).strip('"')
        return (Entry(name, value, self.path, at) if name else None), opens, False

    def _replace(self, entry: Entry, line: str | None) -> None:
        """Comment ENTRY's line out and put LINE below it; rewrite it if the line is ours."""
        own = _bare(self.lines[entry.line]).endswith(_TAIL)
        block = self._inside_block(entry.line)
        ours = own or block
        tail = "" if block else _TAIL
        was = _WAS if self.lines[entry.line].endswith("\n") else _WAS_LAST
        new = [] if ours else [was + _bare(self.lines[entry.line])]
        if line is not None:
            new.append(line + tail)
        if entry.closes:
            new.append("}" + tail)
        self._splice(entry.line, entry.line + 1, new)

    def _splice(self, start: int, end: int, new: Sequence[str]) -> None:
        newline = self._newline()
        self.lines[start:end] = [line + newline for line in new]
        self._index()

    def _newline(self) -> str:
        return "\r\n" if self.lines and self.lines[0].endswith("\r\n") else "\n"

    def _indent(self, section: Entry) -> str:
        line = self.lines[section.entries[-1].line] if section.entries else ""
        return line[: len(line) - len(line.lstrip(" \t"))] or "\t"

    def _inside_block(self, at: int) -> bool:
        for line in reversed(self.lines[:at]):
            bare = _bare(line)
            if bare == _END:
                return False
            if bare.startswith(_BEGIN):
                return True
        return False

    def _foreign(self, start: int, end: int, *, is_inactive: bool) -> list[str]:
        """Return the lines in [start, end) that are no keys of OWN_KEYS and no brackets."""
        heads = {entry.line for entry in self.entries}
        foreign = []
        for at in range(start, end):
            line = _bare(self.lines[at]).strip(_BLANKS)
            text = line.removeprefix("#").strip(_BLANKS) if is_inactive else line
            name = text.split("=")[0].strip(_BLANKS).casefold()
            ours = at in heads or text in ("", "{", "}") or text.startswith(_REMARK)
            if not ours and name not in OWN_KEYS and not (is_inactive and name == "database"):
                foreign.append(line)
        return foreign


def quoted(value: str) -> str:
    """Return VALUE as the engine reads it back. Raises SetupError for what it can't express."""
    if '"' in value or "\n" in value:
        raise SetupError(
            f"{value!r} can't be written in a Firebird configuration file (it has a quote or a "
            "line end in it): use another path"
        )
    doubled = value.replace("{", "{{").replace("}", "}}")
    return f'"{doubled}"' if "#" in value or value != value.strip() else doubled


def _split(text: str) -> list[str]:
    return [line for line in re.split(r"(?<=\n)", text) if line]


def _bare(line: str) -> str:
    return line.rstrip("\n").rstrip("\r")


def _expand(conf: ConfFile, depth: int) -> Iterator[Entry]:
    for entry in conf.entries:
        if _is_include(entry):
            for file in _files(conf, entry, depth):
                yield from _expand(file, depth + 1)
        else:
            yield entry


def _included(conf: ConfFile, depth: int) -> Iterator[Path]:
    for entry in filter(_is_include, conf.entries):
        for file in _files(conf, entry, depth):
            yield file.path
            yield from _included(file, depth + 1)


def _is_include(entry: Entry) -> bool:
    return entry.name == "include" and bool(entry.value)


def _files(conf: ConfFile, include: Entry, depth: int) -> Iterator[ConfFile]:
    """Yield the files that a line of CONF includes, in the engine's order."""
    if depth == _INCLUDE_LIMIT:
        raise ConfSyntaxError(conf.path, include.line + 1, "includes are nested too deep")
    pattern = Path(include.value)
    if pattern.is_absolute():
        found = sorted(Path("/").glob(str(pattern.relative_to("/"))))
    else:
        found = sorted(conf.path.parent.glob(include.value))
    if not found and not set(include.value) & {"*", "?"}:
        raise ConfSyntaxError(
            conf.path, include.line + 1, f"the included file {include.value} is missing"
        )
    yield from map(ConfFile.read, found)
