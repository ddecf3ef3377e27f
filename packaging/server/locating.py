"""Finds what a command is about: the server, its connector options, its journal folder.

An option says it, else the environment (FIREBIRD names a server, as it does for Firebird's own
tools; FIREBIRD_CONNECTOR_CONFIG the options, as it does for the server), else it is looked for on
this machine, and taken if there is one. Nothing is guessed where there are several.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from firebird_cdc.config import ConnectorConfig, load_capture, load_config, locate_files
from firebird_cdc.config.locate import CONFIG_VARIABLE
from firebird_cdc.errors import FirebirdCdcError, SetupError
from firebird_cdc.journal.folder.folder_format import refuse_newer_format
from firebird_cdc.packaging.server.conf import ConfFile
from firebird_cdc.packaging.server.layout import (
    SERVER_PROGRAMS,
    Server,
    TooOld,
    debian_directories,
    debian_servers_too_old,
    find_server,
)
from firebird_cdc.packaging.server.procfs import processes
from firebird_cdc.packaging.server.sections import expanded_parameters

SERVER_VARIABLE = "FIREBIRD"

_SYSTEM = Path("/")
_USUAL = ("opt/*", "usr/local/firebird")  # where servers are that no distribution has placed


def find_servers() -> list[Server]:
    """Return the servers that $FIREBIRD or else this machine has, each once; none is no error.

    Raises SetupError if $FIREBIRD names none, PermissionError if one can't be looked at.
    """
    if given := os.environ.get(SERVER_VARIABLE, "").strip():
        try:
            return [find_server(Path(given))]
        except SetupError as error:
            raise SetupError(f"the environment has {SERVER_VARIABLE}={given}: {error}") from error
    found = {}
    for place in _candidates():
        with suppress(SetupError):  # Firebird 3, or something else that has a folder there
            server = find_server(place)
            found[server.root] = server
    return list(found.values())


def other_servers(server: Server) -> list[Server]:
    """Return the servers of this machine beside SERVER that can be looked at, whatever $FIREBIRD
    names."""
    found = {}
    for place in _candidates():
        with suppress(SetupError, OSError):
            other = find_server(place)
            if other.root != server.root:
                found[other.root] = other
    return list(found.values())


def _too_old() -> list[TooOld]:
    """Return why servers that are there are not served."""
    found = debian_servers_too_old(_SYSTEM)
    for place in _candidates():
        try:
            find_server(place)
        except TooOld as error:
            found.append(error)
        except SetupError:
            continue
    return found


def _candidates() -> Iterator[Path]:
    yield from debian_directories(_SYSTEM)
    for pattern in _USUAL:
        yield from sorted(path for path in _SYSTEM.glob(pattern) if (path / "plugins").is_dir())
    for process in processes():
        try:
            program = process.joinpath("exe").readlink()
            if program.name in SERVER_PROGRAMS and process.joinpath("root").samefile(_SYSTEM):
                yield program.parent.parent
        except OSError:
            continue  # it has ended, or is another user's: its server is found by its place


def locate_server(given: Path | None = None) -> Server:
    """Return the server that ``--server`` names, or else the environment, or the machine has.

    Raises SetupError if there is none, or more than one.
    """
    if given is not None:
        return find_server(given)
    servers = find_servers()
    if not servers:
        old = "".join(f". {error}" for error in _too_old())
        raise SetupError(
            "no Firebird 4 or 5 server was found on this machine (neither Debian's, nor one in"
            f" /opt, nor one that runs): name its directory with --server{old}"
        )
    if len(servers) > 1:
        roots = ", ".join(sorted(str(server.root) for server in servers))
        raise SetupError(f"this machine has several servers: {roots}. Say which one: --server ROOT")
    return servers[0]


def config_of(server: Server) -> Path:
    """Return the file of connector options that SERVER uses, whether it exists or not.

    Raises SetupError if plugins.conf can't be understood.
    """
    present = {}
    if server.plugins_conf.exists():
        present = expanded_parameters(server, ConfFile.read(server.plugins_conf))
    return locate_files(present, {}, server.root).config


def config_in_environment(root: Path | None = None) -> Path | None:
    """Return the file that FIREBIRD_CONNECTOR_CONFIG names, None if it names none.

    root: the directory of the server, where a relative name begins, as for the server itself.
    """
    value = os.environ.get(CONFIG_VARIABLE, "").strip()
    if not value:
        return None
    if Path(value).is_absolute():
        return Path(value)
    return (root or locate_server().root) / value


def locate_config(given: Path | None = None) -> Path:
    """Return the file that ``--config`` names, or else the environment, or the machine has.

    Raises SetupError if there is none, or more than one.
    """
    named = given or config_in_environment()
    if named is not None:
        return named
    servers = find_servers()
    files = {config_of(server): server for server in servers}
    present = {path: server for path, server in files.items() if path.exists()}
    if len(present) == 1:
        return next(iter(present))
    how = f"give --config FILE, or set {CONFIG_VARIABLE}"
    if present:
        named_all = ", ".join(f"{path} (of {server.root})" for path, server in present.items())
        raise SetupError(f"this machine has several configurations: {named_all}; {how}")
    if servers:
        lacking = ", ".join(map(str, files))
        raise SetupError(
            f"there are no connector options: {lacking} does not exist. Run firebird-cdc install,"
            f" or {how}"
        )
    raise SetupError(f"no server was found on this machine whose connector options to use: {how}")


def locate_options(given: Path | None = None) -> ConnectorConfig:
    """Return the connector options in the file of `locate_config`. Raises ConfigError too."""
    return load_config(locate_config(given))


def locate_journals(given: Path | None = None) -> Path:
    """Return the journal folder that the options of `locate_config` name, see `readable_folder`."""
    return readable_folder(load_capture(locate_config(given)).journal_directory)


def readable_folder(directory: Path) -> Path:
    """Return the journal folder DIRECTORY; raises SetupError if it is not there, or not for us, or
    of a newer format.

    A folder that can't be read would seem empty.
    """
    if not directory.is_dir():
        raise SetupError(
            f"there is no journal folder {directory}; nothing was captured yet, or it is gone"
        )
    if not os.access(directory, os.R_OK | os.X_OK):
        raise SetupError(
            f"{directory} can't be read; run this as the user of the database server, or as root"
        )
    refuse_newer_format(directory)
    return directory


def configs_of(servers: Iterable[Server]) -> list[Path]:
    """Return the files of connector options of SERVERS, as far as can be told."""
    found = []
    for server in servers:
        with suppress(FirebirdCdcError, OSError):
            found.append(_config_in_use(server))
    return found


def _config_in_use(server: Server) -> Path:
    return config_in_environment(server.root) or config_of(server)


def servers_on(journals: Path, known: Iterable[Server] = ()) -> list[Server]:
    """Return the servers that write into the folder JOURNALS, as their options say, of this
    machine's and those KNOWN.

    Where there is one server and its options can't be read, that one.
    """
    by_root = {server.root: server for server in known}
    with suppress(SetupError, OSError):
        by_root |= {server.root: server for server in find_servers()}
    servers = list(by_root.values())
    found = []
    for server in servers:
        try:
            is_there = load_capture(_config_in_use(server)).journal_directory.samefile(journals)
        except (FirebirdCdcError, OSError):
            is_there = len(servers) == 1
        if is_there:
            found.append(server)
    return found
