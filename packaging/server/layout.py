"""Finds out where a server keeps its plugins, configuration and logs, and whom it runs as."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from firebird_cdc.errors import SetupError

_DEBIAN = "etc/firebird"
_OLDEST = 4
_TOO_OLD = "libEngine12.so"

ENGINE = "libEngine13.so"
"""The file of the engine that is served."""

SERVER_PROGRAMS = ("firebird", "rdbserver")
"""Names of servers' programs, on disk and by /proc."""


@dataclass(frozen=True, slots=True)
class Account:
    """An operating system account."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Server:
    """The places of one Firebird or RED Database server, or of one embedded engine.

    ``root`` is what the server calls its directory; ``plugins_conf`` the real file behind a
    link; ``conf_directory`` its folder, the ``$(this)`` of its sections. ``replication_conf`` is
    where the server looks for it, whether it exists or not.
    """

    root: Path
    plugins: Path
    plugins_conf: Path
    replication_conf: Path
    account: Account

    @property
    def conf_directory(self) -> Path:
        """The folder of the configuration files."""
        return self.plugins_conf.parent

    @property
    def plugin_file(self) -> Path:
        """The native plugin that the engine loads."""
        return self.plugins / "libfirebird_cdc.so"

    @property
    def plugin_link(self) -> Path:
        """The link by which the plugin finds that of the version in use, which takes its place
        (native/plugin.c); there is none where no versions lie beside each other."""
        return self.own_directory / self.plugin_file.name

    @property
    def working_plugin(self) -> Path:
        """The plugin that works in the server: the one of the version in use, if there is one."""
        return self.plugin_link if self.plugin_link.is_symlink() else self.plugin_file

    @property
    def own_directory(self) -> Path:
        """The folder beside the plugin with what else belongs to it."""
        return self.plugins / "firebird_cdc"

    @property
    def replication_log(self) -> Path:
        """Log to which the engine writes what went wrong with replication, if it may."""
        return self.root / "replication.log"


class TooOld(SetupError):
    """A server is there, and its version is not served."""

    def __init__(self, root: Path, why: str) -> None:
        super().__init__(
            f"{root} is a Firebird 3 server ({why}): the plugin needs the replication interface of"
            " Firebird 4 or 5"
        )


def find_server(given: Path) -> Server:
    """Return the server whose directory, or whose system's root, is GIVEN. Raises SetupError."""
    if not given.is_dir():
        raise SetupError(f"{given} is no directory: --server wants the server's directory")
    place = given.resolve()
    debian = _debian_versions(place)
    if debian:
        root = _debian_root(place, debian)
    elif (place / "plugins").is_dir() and _has_configuration(place):
        root = place
    elif _has_configuration(place) and place.parent.name == "firebird":
        # Debian's /etc/firebird/4.0 was named instead of the directory that links to it.
        system = place.parents[2]
        root = _debian_root(system, [place.name])
    else:
        raise SetupError(
            f"{given} is no server directory: it has neither firebird.conf and plugins/ (as "
            f"/opt/firebird and an engine root have) nor {_DEBIAN}/4.0 (as a Debian system has). "
            "Name the directory that holds plugins.conf"
        )
    _refuse_other_systems(root)
    plugins = root / "plugins"
    if (plugins / _TOO_OLD).exists() and not (plugins / ENGINE).exists():
        raise TooOld(root, _TOO_OLD)
    plugins_conf = (root / "plugins.conf").resolve()
    return Server(
        root=root,
        plugins=plugins.resolve(),
        plugins_conf=plugins_conf,
        replication_conf=root / "replication.conf",
        account=_account(root),
    )


def _has_configuration(place: Path) -> bool:
    return any(os.path.lexists(place / name) for name in ("firebird.conf", "plugins.conf"))


def _debian_versions(system: Path) -> list[str]:
    """Return the versions from 4 on that a Debian system has configuration of."""
    return [v for v in _all_debian_versions(system) if int(v.split(".")[0]) >= _OLDEST]


def _all_debian_versions(system: Path) -> list[str]:
    names = (path.parent.name for path in (system / _DEBIAN).glob("*/firebird.conf"))
    return sorted(name for name in names if name.split(".")[0].isdigit())


def debian_servers_too_old(system: Path) -> list[TooOld]:
    """Return why those servers of a Debian system that have an earlier version are not served."""
    old = [v for v in _all_debian_versions(system) if int(v.split(".")[0]) < _OLDEST]
    return [TooOld(root, f"Debian's {root.name}") for root in _debian_directories(system, old)]


def debian_directories(system: Path = Path("/")) -> list[Path]:
    """Return the directories of the servers from 4 on that a Debian system has."""
    return _debian_directories(system, _debian_versions(system))


def _debian_directories(system: Path, versions: list[str]) -> list[Path]:
    return [root for v in versions for root in sorted(system.glob(f"usr/lib/*/firebird/{v}"))]


def _debian_root(system: Path, versions: list[str]) -> Path:
    if system != Path("/"):
        raise SetupError(
            f"{system} is the root of another system (it has {_DEBIAN}/{versions[0]}). The "
            "plugin needs a Python inside that system: install firebird-cdc there and run: "
            f"chroot {system} firebird-cdc install --server /"
        )
    roots = _debian_directories(system, versions)
    if len(roots) != 1:
        found = ", ".join(map(str, roots)) or "none"
        raise SetupError(
            f"/{_DEBIAN} has {', '.join(versions)}, server directories are: {found}. "
            "Name the one that is meant, with --server"
        )
    return roots[0]


def _refuse_other_systems(root: Path) -> None:
    """Refuse a directory whose links mean files below another root than ours."""
    before, inside, _ = str(root).partition("/usr/lib/")
    link = root / "plugins.conf"
    if inside and before and link.is_symlink() and link.readlink().is_absolute():
        raise SetupError(
            f"{root} belongs to another system: its plugins.conf is a link to {link.readlink()} "
            f"there. Run inside it: chroot {before} firebird-cdc install --server /"
        )


def _account(root: Path) -> Account:
    """Return whom the server runs as: the owner of its security database, else of its log."""
    for pattern in ("security*.fdb", "firebird.log"):
        for path in sorted(root.glob(pattern)):
            if path.exists():
                status = path.stat()
                return Account(_name(status.st_uid), status.st_uid, status.st_gid)
    return Account(_name(os.geteuid()), os.geteuid(), os.getegid())


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
