"""Options of ordinary attachments to databases, and of the canary tables that need one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from firebird_cdc.config.references import Unresolved, read_secret, resolve
from firebird_cdc.config.values import ValueProblem
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.types.identifiers import identifier

PASSWORD = "database.password"  # noqa: S105  (the option's name)
PASSWORD_FILE = "database.password.file"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Attachment:
    """Settings for attaching to a database by its path.

    ``hostname``: None attaches to the file directly. ``client_library``: None leaves the choice
    to whoever attaches. ``password_file``: where the password is, if it is in a file.
    ``statements``: SQL that is run after each connect. The password
    is looked up when it is needed: a file or a variable that the server's process lacks is no error
    there, and a new one counts at once.
    """

    hostname: str | None
    port: int
    user: str | None
    client_library: Path | None
    _password: str | None = field(repr=False)
    password_file: Path | None
    statements: tuple[str, ...] = ()

    def target(self, database: str) -> str:
        """Return DATABASE in the form that the client library wants."""
        if self.hostname is None:
            return database
        host = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return f"{host}/{self.port}:{database}"

    def password(self) -> str | None:
        """The password, None if there is none. Raises ConfigError if it can't be looked up."""
        if self.password_file is not None:
            return read_password(PASSWORD_FILE, self.password_file)
        if self._password is None:
            return None
        try:
            return resolve(self._password)
        except Unresolved as error:
            raise ConfigError([f"{PASSWORD}: {error}"]) from None


def split_statements(text: str) -> tuple[str, ...]:
    """Return the statements of TEXT, with ``;`` between them and ``;;`` for one of their own."""
    pieces = (piece.replace("\0", ";").strip() for piece in text.replace(";;", "\0").split(";"))
    return tuple(filter(None, pieces))


def read_password(option: str, file: Path) -> str:
    """Return the password that is alone in FILE; raises ConfigError if OPTION's can't be read."""
    try:
        return read_secret(file)
    except Unresolved as error:
        raise ConfigError([f"{option}: {error}"]) from None


def find_client_library(*roots: Path) -> str | None:
    """Return the client library of the first of ROOTS, folders of Firebird, that has one."""
    for root in roots:
        for folder in ("lib", "."):
            if (library := root / folder / "libfbclient.so.2").exists():
                return str(library)
    return None


@dataclass(frozen=True, slots=True)
class CanaryTable:
    """A table into which the shipper writes. ``database``: its path; ``table``: as stored."""

    database: str
    table: str

    @property
    def identifier(self) -> str:
        """Name that distinguishes it from all other tables, as in ``table.include.list``."""
        return f"{self.database}.{self.table}"

    @property
    def quoted(self) -> str:
        """The table as it stands in SQL."""
        return identifier(self.table)


_TABLE = re.compile(r'(/.*)\.(?:([A-Za-z][A-Za-z0-9_$]*)|"((?:[^"]|"")+)")', re.DOTALL)


def parse_canaries(items: tuple[str, ...]) -> tuple[CanaryTable, ...]:
    """Return the tables that ITEMS name, ``<database path>.<table>``; raises ValueProblem."""
    tables: dict[str, CanaryTable] = {}
    for item in items:
        database, name = _parse_table(item)
        if database in tables:
            raise ValueProblem(f"{database} has two; one table per database is enough")
        tables[database] = CanaryTable(database, name)
    return tuple(tables.values())


def parse_identifiers(items: tuple[str, ...]) -> tuple[str, ...]:
    """Return the identifiers of the tables that ITEMS name in the same form, with each table as it
    is stored; raises ValueProblem."""
    return tuple(dict.fromkeys(".".join(_parse_table(item)) for item in items))


def _parse_table(item: str) -> tuple[str, str]:
    """Return database and table that ITEM names."""
    match = _TABLE.fullmatch(item)
    if match is None:
        raise ValueProblem(
            f"{item} must have the form <absolute path of the database>.<table>, with the"
            " table in double quotes if its name is not one of plain letters"
        )
    database, plain, quoted = match.groups()
    return database, plain.upper() if plain else quoted.replace('""', '"')
