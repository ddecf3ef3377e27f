"""Puts the plugin into a server, and takes it out again.

Both make a plan first and touch nothing while they do; the plan is then carried out as a whole
or not at all (see files). What install placed stands in ``plugins/firebird_cdc/installed.json``,
so that uninstall can tell its own files from the user's.
"""

from __future__ import annotations

import difflib
import grp
import hashlib
import importlib.resources
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import firebird_cdc
from firebird_cdc import access
from firebird_cdc.config import ConnectorConfig, load_config, locate_files
from firebird_cdc.config.locate import CONFIG_VARIABLE, LOGGING_VARIABLE
from firebird_cdc.config.logging import ROLES, load_logging
from firebird_cdc.errors import ConfigError, FirebirdCdcError, SetupError
from firebird_cdc.journal.folder import failures
from firebird_cdc.packaging import edits, purging, services
from firebird_cdc.packaging.files import FileChanges, leftovers
from firebird_cdc.packaging.server import accounts, runtime
from firebird_cdc.packaging.server.conf import ConfFile
from firebird_cdc.packaging.server.layout import Server
from firebird_cdc.packaging.server.locating import config_of, other_servers
from firebird_cdc.packaging.server.running import engine_processes
from firebird_cdc.packaging.server.sections import expanded_parameters
from firebird_cdc.packaging.versions import refuse_going_back
from firebird_cdc.tree import CURRENT, Tree, running_tree

CONNECTOR_SAMPLE = "reddatabase.connector.yaml"
LOGGING_SAMPLE = "firebird_cdc_logging.yaml"
BACKUP_END = ".before-firebird-cdc"
MANIFEST = "installed.json"
SAMPLES = Path(str(importlib.resources.files("firebird_cdc.config"))) / "samples"
LOG_DIRECTORY = Path("/var/log/firebird")
_USED_TOO = "{} stays: the server in {} uses it, too"
_START = "the shipper is a service: systemctl daemon-reload, then systemctl enable --now '{unit}'"


@dataclass(frozen=True, slots=True)
class Write:
    """Give a file these bytes."""

    path: Path
    data: bytes
    mode: int = 0o644
    owner: tuple[int, int] | None = None
    is_text: bool = True

    def apply(self, changes: FileChanges) -> None:
        """Carry the step out."""
        changes.write(self.path, self.data, self.mode, self.owner)

    def describe(self) -> str:
        """Return the step in a few words."""
        return f"{'replace' if self.path.exists() else 'write'} {self.path}"

    def diff(self) -> str:
        """Return what changes in a text file, as a unified diff."""
        if not self.is_text:
            return ""
        before = self.path.read_bytes() if self.path.exists() else b""
        return "".join(
            difflib.unified_diff(
                before.decode("utf-8", "replace").splitlines(keepends=True),
                self.data.decode("utf-8", "replace").splitlines(keepends=True),
                str(self.path),
                str(self.path),
            )
        )


@dataclass(frozen=True, slots=True)
class Link:
    """Make a symbolic link."""

    path: Path
    target: Path

    def apply(self, changes: FileChanges) -> None:
        """Carry the step out."""
        changes.link(self.path, self.target)

    def describe(self) -> str:
        """Return the step in a few words."""
        return f"link {self.path} to {self.target}"


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a file or a link."""

    path: Path

    def apply(self, changes: FileChanges) -> None:
        """Carry the step out."""
        changes.remove(self.path)

    def describe(self) -> str:
        """Return the step in a few words."""
        return f"remove {self.path}"


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """Make a directory with its parents."""

    path: Path
    mode: int
    owner: tuple[int, int] | None = None

    def apply(self, changes: FileChanges) -> None:
        """Carry the step out."""
        changes.make_directory(self.path, self.mode, self.owner)

    def describe(self) -> str:
        """Return the step in a few words."""
        return f"make {self.path}/"


@dataclass(frozen=True, slots=True)
class RemoveDirectory:
    """Remove a directory that the steps before have emptied."""

    path: Path

    def apply(self, changes: FileChanges) -> None:
        """Carry the step out."""
        changes.remove_directory(self.path)

    def describe(self) -> str:
        """Return the step in a few words."""
        return f"remove {self.path}/"


@dataclass(frozen=True, slots=True)
class RemoveTree:
    """Remove a directory with all that is in it."""

    path: Path

    def apply(self, changes: FileChanges) -> None:
        """Carry the step out."""
        changes.remove_tree(self.path)

    def describe(self) -> str:
        """Return the step in a few words."""
        return f"remove {self.path}/ and all in it"


Step = Write | Link | Remove | MakeDirectory | RemoveDirectory | RemoveTree


@dataclass(slots=True)
class Plan:
    """Steps in order, and sentences for the user about what is special."""

    steps: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def carry_out(self) -> None:
        """Do all steps or none. Raises SetupError."""
        with FileChanges() as changes:
            for step in self.steps:
                step.apply(changes)


@dataclass(slots=True)
class Manifest:
    """Files that install placed, with the digest they had then, links, and folders to write to."""

    files: dict[str, str] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, server: Server) -> Manifest:
        """Return the manifest of SERVER, empty if there is none. Raises SetupError."""
        path = server.own_directory / MANIFEST
        if not path.exists():
            return cls()
        try:
            content = dict(json.loads(path.read_text("utf-8")))
            folders = content.get("folders", [])  # earlier versions made none
            found = cls(dict(content["files"]), list(content["links"]), list(folders))
            for name in (*found.files, *found.links, *found.folders):
                Path(name)  # raises what json can hold instead
            return found
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SetupError(
                f"{path} can't be read ({error}): move it away and run the command again"
            ) from error

    def data(self) -> bytes:
        """Return the bytes to write."""
        content = {
            "version": firebird_cdc.__version__,
            "files": dict(sorted(self.files.items())),
            "links": sorted(self.links),
            "folders": sorted(self.folders),
        }
        return (json.dumps(content, indent=2) + "\n").encode()

    def untouched(self, path: Path) -> bool:
        """Tell whether a file is still as install placed it."""
        return path.is_file() and self.files.get(str(path)) == digest(path.read_bytes())


def digest(data: bytes) -> str:
    """Return the SHA-256 of DATA."""
    return hashlib.sha256(data).hexdigest()


# ---------------------------------------------------------------------- install


def plan_install(
    server: Server,
    config: Path | None = None,
    logging: Path | None = None,
    databases: Sequence[Path] = (),
    replace: bool = False,
    is_active: bool | None = None,
) -> Plan:
    """Return what has to be done to have SERVER capture; no steps if all is in place.

    config, logging: files to use instead of the samples; they stay where they are.
    databases: capture these alone. replace: take the place of another plugin. is_active: False
    writes what replication.conf needs as a comment, None leaves such a comment as it is.
    Raises SetupError and ConfigError, each before anything was touched.
    """
    for path in databases:
        if not path.is_absolute():
            raise SetupError(
                f"--database {path}: the engine compares full paths; give one, not an alias"
            )
    plan = Plan()
    manifest = Manifest.read(server)
    tree = running_tree()
    if tree is None:
        _plan_binaries(server, plan, manifest)
    else:
        _plan_links(server, tree, plan, manifest)
    replication = _real_replication_conf(server)
    conf = ConfFile.open(server.plugins_conf)
    parameters, defaults = _plan_configuration(server, conf, config, logging, plan, manifest)
    edits.edit_plugins(conf, parameters, defaults)
    _plan_text(conf, plan)
    conf = ConfFile.open(replication)
    counts = not conf.has_inactive if is_active is None else is_active
    edits.edit_replication(conf, databases, replace, counts)
    plan.notes += edits.left_out(conf)
    _plan_text(conf, plan)
    if not server.replication_conf.exists() and replication != server.replication_conf:
        plan.steps.append(Link(server.replication_conf, replication))
        _note_link(manifest, server.replication_conf)
    _plan_log(server, plan, manifest)
    record = server.own_directory / MANIFEST
    if not record.exists() or record.read_bytes() != manifest.data():
        # Before all that it lists: should we be killed, uninstall still knows what is ours.
        plan.steps.insert(0, Write(record, manifest.data()))
    if not server.own_directory.is_dir():
        plan.steps.insert(0, MakeDirectory(server.own_directory, 0o755))
    plan.steps += _leftovers(server)
    return plan


def _plan_binaries(server: Server, plan: Plan, manifest: Manifest) -> None:
    embedding = runtime.embedding_library()
    wanted = {
        # The embedding first: a new plugin must not meet an old bridge.
        server.own_directory / embedding.name: embedding,
        server.plugin_file: runtime.plugin_library(),
    }
    for target, source in wanted.items():
        _plan_binary(target, source, plan, manifest)
    if server.plugin_link.is_symlink():
        plan.steps.append(Remove(server.plugin_link))
        if str(server.plugin_link) in manifest.links:
            manifest.links.remove(str(server.plugin_link))
    for old in sorted(server.own_directory.glob("_embedding.*.so")):
        if old not in wanted:
            plan.steps.append(Remove(old))
            manifest.files.pop(str(old), None)
            plan.notes.append(f"{old.name} served another Python and goes")


def _plan_binary(target: Path, source: Path, plan: Plan, manifest: Manifest) -> None:
    data = source.read_bytes()
    manifest.files[str(target)] = digest(data)
    if not target.is_file() or target.read_bytes() != data:
        plan.steps.append(Write(target, data, 0o755, is_text=False))


def _plan_links(server: Server, tree: Tree, plan: Plan, manifest: Manifest) -> None:
    """Plan the plugin, and the link to that of the version in use, which finds all else of its
    version."""
    plan_switch(tree, plan)
    link = server.plugin_link
    if not link.is_symlink() or link.readlink() != tree.plugin:
        plan.steps.append(Link(link, tree.plugin))
    _note_link(manifest, link)
    # A file, as Firebird 4 opens no link; behind the link in whose favour it stands back.
    _plan_binary(server.plugin_file, runtime.plugin_library(), plan, manifest)
    old = sorted(server.own_directory.glob("_embedding.*.so"))
    if old and any(process.has_plugin for process in engine_processes(server, [])):
        # They have loaded the file that was there, and may start their bridge yet.
        names = ", ".join(path.name for path in old)
        plan.notes.append(f"{names} stays for processes that run; install removes it once they end")
        return
    for path in old:
        plan.steps.append(Remove(path))
        manifest.files.pop(str(path), None)


def plan_switch(tree: Tree, plan: Plan) -> None:
    """Plan to have TREE's version in use. Raises SetupError if it must not be, or is not whole."""
    beside = (tree.plugin, tree.python, tree.packages, tree.home / "bin")
    for path in (tree.folder / part.relative_to(tree.current) for part in beside):
        if not path.exists():
            raise SetupError(f"{tree.folder} is not whole, {path} is missing: unpack it again")
    refuse_going_back(tree)
    if not tree.is_in_use():
        plan.steps.append(Link(tree.current, tree.link_target))
    plan.steps += map(Remove, leftovers(tree.prefix, [CURRENT]))


def _note_link(manifest: Manifest, link: Path) -> None:
    if str(link) not in manifest.links:
        manifest.links.append(str(link))


def _plan_configuration(
    server: Server,
    conf: ConfFile,
    config: Path | None,
    logging: Path | None,
    plan: Plan,
    manifest: Manifest,
) -> tuple[dict[str, str], dict[str, str]]:
    """Plan samples and directories; return the Config keys to set, and those to set if missing."""
    present = expanded_parameters(server, conf)
    located = locate_files(present, {}, server.root)
    parameters: dict[str, str] = {}
    defaults: dict[str, str] = {}

    if config is not None:
        source = used = _given(config, "--config")
        parameters["ConnectorConfig"] = _spelled(server, used)
    elif "ConnectorConfig" in present or located.config.exists():
        source = used = located.config
        defaults["ConnectorConfig"] = _spelled(server, used)
        if not used.exists():
            raise SetupError(
                f"ConnectorConfig in {server.plugins_conf} names {used}, which does not exist: "
                "write that file, or take the line out to get a sample"
            )
    else:
        used = server.conf_directory / CONNECTOR_SAMPLE
        source = _plan_sample(server, used, plan, manifest)
        defaults["ConnectorConfig"] = _spelled(server, used)
    _plan_journals(server, source, plan)
    connector = source
    named = present.get("StateDirectory")
    if named is not None and named not in manifest.folders:
        state = Path(named)  # the user's choice
    else:
        state = state_directory(server, used)
        parameters["StateDirectory"] = _spelled(server, state)
    _plan_folder(server, state, plan, manifest)

    if logging is not None:
        source = _given(logging, "--logging")
        parameters["LoggingConfig"] = _spelled(server, used := source)
    elif located.logging is not None and "LoggingConfig" in present:
        source = used = located.logging
    else:
        used = server.conf_directory / LOGGING_SAMPLE
        source = _plan_sample(server, used, plan, manifest)
        defaults["LoggingConfig"] = _spelled(server, used)
    logs = _plan_logs(server, source, _shares(server, load_config(connector)), plan, manifest)
    _plan_service(server, connector, used, logs, plan, manifest)

    tree = running_tree()
    folders = runtime.python_directories() if tree is None else [tree.packages]
    parameters["PythonDirs"] = ":".join(map(str, folders))
    library = runtime.libpython(server.root / "lib") if tree is None else tree.python
    if library is not None:
        parameters["Python"] = str(library)
    else:
        plan.notes.append(
            f"{sys.executable} has no shared libpython: only a program that is itself this "
            "Python can load the bridge. For a server use a Python with one "
            f"(apt-get install libpython3.{sys.version_info[1]})"
        )
    parameters["PythonHome"] = sys.base_prefix if tree is None else str(tree.home)
    read = [*folders, library] if tree is None else [tree.folder]
    _note_unreadable(server, [*read, config, logging], plan)
    return parameters, defaults


def _note_unreadable(server: Server, paths: Sequence[Path | None], plan: Plan) -> None:
    name = server.account.name
    hidden = [str(p) for p in paths if p is not None and not accounts.may(server.account, "r", p)]
    if hidden:
        plan.notes.append(
            f"the server runs as {name}, which can't read {', '.join(hidden)}: until it can, "
            "commits to captured tables fail. A virtual environment in /opt, not in a home "
            "directory, is readable for all"
        )


def _plan_sample(server: Server, target: Path, plan: Plan, manifest: Manifest) -> Path:
    """Plan to place a sample unless the user has such a file; return the file to read now."""
    if target.exists():
        return target
    data = (SAMPLES / target.name).read_bytes()
    # It may come to hold the producer's password: the server's user and nobody else.
    plan.steps.append(Write(target, data, 0o640, (0, server.account.gid) if _root() else None))
    manifest.files[str(target)] = digest(data)
    above_all = ", above all for the Kafka servers" if target.name == CONNECTOR_SAMPLE else ""
    plan.notes.append(f"{target} is a sample: look through it{above_all}")
    return SAMPLES / target.name


def _plan_journals(server: Server, config: Path, plan: Plan) -> None:
    options = load_config(config)
    mode = 0o2770 if _shares(server, options) else 0o700
    for folder in (options.journal_directory, options.journal_archive_directory):
        if folder is not None and not folder.exists():
            plan.steps.append(_servers_folder(server, folder, mode))


def _shares(server: Server, options: ConnectorConfig) -> bool:
    """Tell whether the shipper of SERVER is to be a service with a user of its own, which works in
    the journal folder as one group with the server's; one that is there has its mode."""
    if options.shipper != "external" or not _root() or not services.has_user():
        return False
    journals = options.journal_directory
    return access.is_shared(journals) if journals.exists() else _is_of_system(server.root)


def _plan_service(
    server: Server,
    config: Path,
    logging: Path,
    logs: Sequence[Path],
    plan: Plan,
    manifest: Manifest,
) -> None:
    """Plan what systemd has to know of the shipper of SERVER, if that is to be started by it."""
    options = load_config(config)
    unit = services.UNITS / services.instance(options.connector_name)
    if options.shipper != "external" or not _root() or not _is_of_system(server.root):
        return
    if not services.UNITS.is_dir():
        return  # started by something else
    writes = (options.journal_directory, options.journal_archive_directory, *logs)
    name, text = services.drop_in(
        services.USER if _shares(server, options) else server.account.name,
        _group(server.account.gid),
        {CONFIG_VARIABLE: config, LOGGING_VARIABLE: logging},
        [path for path in writes if path is not None],
    )
    wanted = {unit.with_name(f"{unit.name}.d") / name: text}
    if not services.is_packaged():
        tree = running_tree()
        folder = Path(sys.executable).parent if tree is None else tree.current / "bin"
        program = folder / "firebird-cdc"
        wanted[services.UNITS / services.UNIT] = services.unit_text(program)
    for path, content in wanted.items():
        manifest.files[str(path)] = digest(content.encode())
        if path.exists() and path.read_text("utf-8") == content:
            continue
        if not path.parent.exists():
            plan.steps.append(MakeDirectory(path.parent, 0o755))
        plan.steps.append(Write(path, content.encode()))
        start = _START.format(unit=unit.name)
        plan.notes += [start] * (start not in plan.notes)


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _servers_folder(server: Server, folder: Path, mode: int) -> MakeDirectory:
    """Return the step that makes a folder for the server's user."""
    owner = (server.account.uid, server.account.gid) if _root() else None
    return MakeDirectory(folder, mode, owner)


def _plan_logs(
    server: Server, logging: Path, is_shared: bool, plan: Plan, manifest: Manifest
) -> list[Path]:
    """Plan to make the folders of our logs, which are returned; what is wrong with LOGGING is for
    check to say."""
    try:
        options = load_logging(logging)
    except ConfigError:
        return []
    folders = sorted({options.file_of(role).parent for role in ROLES})
    for folder in folders:
        if folder.exists():
            _plan_folder(server, folder, plan, manifest)
            if is_shared and not access.is_shared(folder):
                plan.notes.append(
                    f"the shipper can't log in {folder}, which is for {server.account.name} alone:"
                    f" chmod 2770 {folder}"
                )
            continue
        above = next(parent for parent in folder.parents if parent.exists())
        if not os.access(above, os.W_OK):
            plan.notes.append(
                f"{folder}, for our logs, is missing, and you may not make it: make it for "
                f"{server.account.name}, or name another file in {logging}"
            )
            continue
        _plan_folder(server, folder, plan, manifest, 0o2770 if is_shared else 0o750)
    return folders


def state_directory(server: Server, config: Path) -> Path:
    """Return where SERVER is to count what it refuses and loses while the journal folder can't be
    used: a place that commands find by the path of the connector's file CONFIG alone."""
    ours = [each for each in (server.root, config.resolve()) if _is_of_system(each)]
    if not _root() or not ours:
        return config.resolve().parent / failures.BESIDE
    folder = failures.SYSTEM_STATE / "state"
    if folder.exists() and folder.stat().st_uid != server.account.uid:
        return folder.with_name(f"state-{server.account.name}")  # another server's
    return folder


def _is_of_system(path: Path) -> bool:
    return any(path.is_relative_to(top) for top in ("/usr", "/opt", "/etc"))


def _plan_folder(
    server: Server, folder: Path, plan: Plan, manifest: Manifest, mode: int = 0o750
) -> None:
    """Plan to make a folder that the server's user writes to and its group reads."""
    if not folder.exists():
        plan.steps.append(_servers_folder(server, folder, mode))
    elif str(folder) in manifest.folders or folder not in _of_others(server):
        return
    if str(folder) not in manifest.folders:
        manifest.folders.append(str(folder))


def _of_others(server: Server) -> dict[Path, Path]:
    """Return what install has placed for other servers of this machine, with the root of one: what
    the system has once is of them all, and goes with the last."""
    found: dict[Path, Path] = {}
    own = (server.root, server.conf_directory)  # a copy of the server lists what is in here, too
    for other in other_servers(server):
        with suppress(SetupError):
            if other.own_directory != server.own_directory:
                manifest = Manifest.read(other)
                names = map(Path, (*manifest.files, *manifest.folders))
                found |= {each: other.root for each in names if not set(own) & {*each.parents}}
    return found


def _plan_text(conf: ConfFile, plan: Plan) -> None:
    data = conf.text.encode("utf-8", "surrogateescape")
    if not conf.path.exists():
        plan.steps.append(Write(conf.path, data))
        return
    before = conf.path.read_bytes()
    if before == data:
        return
    backup = conf.path.with_name(conf.path.name + BACKUP_END)
    if not backup.exists():
        plan.steps.append(Write(backup, before, conf.path.stat().st_mode & 0o777, is_text=False))
    plan.steps.append(Write(conf.path, data))


def _plan_log(server: Server, plan: Plan, manifest: Manifest) -> None:
    """Give the engine a replication.log that it can write.

    Debian's server looks for it in its library folder, where it may not create files: it would
    not tell anybody that it can't load the plugin.
    """
    link = server.replication_log
    if not _root() or link.exists() or accounts.may(server.account, "w", server.root):
        return
    owner = (server.account.uid, server.account.gid)
    if not LOG_DIRECTORY.is_dir():
        plan.steps.append(Write(link, b"", 0o640, owner))
        manifest.files[str(link)] = digest(b"")
        return
    log = LOG_DIRECTORY / link.name
    if not log.exists():
        plan.steps.append(Write(log, b"", 0o640, owner))
        manifest.files[str(log)] = digest(b"")
    plan.steps.append(Link(link, log))
    _note_link(manifest, link)


def _leftovers(server: Server) -> list[Step]:
    """Plan to remove what a killed run left under temporary names."""
    ours = {
        server.plugins: [server.plugin_file.name],
        server.own_directory: [
            MANIFEST,
            server.plugin_link.name,
            *(runtime.embedding_name(n) for n in range(11, 14)),
        ],
    }
    names = [CONNECTOR_SAMPLE, LOGGING_SAMPLE, server.replication_log.name]
    for conf in (server.plugins_conf.name, server.replication_conf.name):
        names += [conf, conf + BACKUP_END]
    for folder in (server.root, server.conf_directory, LOG_DIRECTORY):
        ours[folder] = names
    return [Remove(path) for folder, wanted in ours.items() for path in leftovers(folder, wanted)]


def _real_replication_conf(server: Server) -> Path:
    """Return the file behind replication.conf; a new one goes where plugins.conf really is."""
    if server.replication_conf.exists():
        return server.replication_conf.resolve()
    return server.conf_directory / server.replication_conf.name


def _spelled(server: Server, path: Path) -> str:
    """Return PATH for plugins.conf: relative to it if it is beside it, so that roots can move."""
    if path.parent == server.conf_directory:
        return f"$(this)/{path.name}"
    return str(path)


def _given(path: Path, option: str) -> Path:
    if not path.is_file():
        raise SetupError(
            f"{option} {path}: there is no such file. Leave {option} out to get a sample"
        )
    return path.resolve()


def _root() -> bool:
    return os.geteuid() == 0


# ---------------------------------------------------------------------- uninstall


def plan_uninstall(server: Server, purge: bool = False) -> Plan:
    """Return what has to be done to have SERVER as it was; no steps if nothing is installed.

    purge: take away also what was delivered, logs and edited files; what waits stays, with its
    options.
    """
    plan = Plan()
    manifest = Manifest.read(server)
    replication = _real_replication_conf(server)
    leavings = purging.leavings(server) if purge else None
    journals = _journal_notes(server) if leavings is None else leavings.notes
    plan.steps += [] if leavings is None else [RemoveTree(path) for path in leavings.trees]
    for path in (replication, server.plugins_conf):
        if path.exists():
            _plan_restore(path, plan)
    for link in map(Path, manifest.links):
        needed = link == server.replication_conf and replication.exists()
        if link.is_symlink() and (not needed or _removes(plan, replication)):
            plan.steps.append(Remove(link))
    placed = {server.plugin_file, *server.own_directory.glob("_embedding.*.so")}
    for path in sorted(p for p in placed if p.is_file()):
        plan.steps.append(Remove(path))
    elsewhere = _of_others(server)
    for path in sorted(Path(name) for name in manifest.files):
        if path in placed or not path.exists():
            continue
        if path in elsewhere:
            plan.notes.append(_USED_TOO.format(path, elsewhere[path]))
        elif manifest.untouched(path) or (leavings is not None and path not in leavings.needed):
            plan.steps.append(Remove(path))
            if path.parent.suffix == ".d" and [*path.parent.iterdir()] == [path]:
                plan.steps.append(RemoveDirectory(path.parent))  # of a unit of ours
        else:
            plan.notes.append(f"{path} stays: it was edited since install placed it")
    plan.steps += _leftovers(server)
    logs = [] if leavings is None else leavings.logs
    plan.steps += [Remove(log) for log in logs if log.parent not in elsewhere]
    for folder in map(Path, manifest.folders):
        if folder in elsewhere:
            plan.notes.append(_USED_TOO.format(folder, elsewhere[folder]))
        else:
            _plan_no_folder(folder, plan)
    record = server.own_directory / MANIFEST
    if record.exists():
        plan.steps.append(Remove(record))
    if server.own_directory.is_dir():
        removed = {step.path for step in plan.steps}
        others = [p for p in server.own_directory.iterdir() if p not in removed]
        if not others:
            plan.steps.append(RemoveDirectory(server.own_directory))
        else:
            names = ", ".join(p.name for p in others)
            plan.notes.append(f"{server.own_directory} stays: it holds {names}, not placed by us")
    gone = {step.path for step in plan.steps}
    for folder in {tree.parent for tree in leavings.trees} if leavings else ():
        if folder.name == failures.SYSTEM_STATE.name and gone.issuperset(folder.iterdir()):
            plan.steps.append(RemoveDirectory(folder))
    if plan.steps:
        plan.notes += journals
    return plan


def _plan_no_folder(folder: Path, plan: Plan) -> None:
    """Plan to remove a folder that install made, unless it tells of something that nobody knows."""
    if not folder.is_dir():
        return
    going = {step.path for step in plan.steps if isinstance(step, Remove)}
    held = sorted(path for path in folder.iterdir() if path not in going)
    others = [path.name for path in held if not failures.is_ours(path)]
    pages = failures.pages_in(folder)
    unknown = [*map(str, failures.unacknowledged(pages)), *failures.unreadable(pages)]
    if others:
        names = ", ".join(others)
        plan.notes.append(f"{folder} stays, with {names}: remove it when you need them no more")
    elif unknown:
        told = "; ".join(unknown)
        plan.notes.append(f"{folder} stays: {told}. Remove it once that is known")
    else:
        plan.steps += [*map(Remove, held), RemoveDirectory(folder)]


def _plan_restore(path: Path, plan: Plan) -> None:
    before = path.read_bytes()
    text, kept = ConfFile.read(path).restored()
    data = None if text is None else text.encode("utf-8", "surrogateescape")
    if data is None:
        plan.steps.append(Remove(path))
    elif data != before:
        plan.steps.append(Write(path, data))
    if kept:
        plan.notes.append(
            f"{path}: these lines are not ours and stay, with their section: {'; '.join(kept)}"
        )
    backup = path.with_name(path.name + BACKUP_END)
    if not backup.exists():
        return
    if data == backup.read_bytes():
        plan.steps.append(Remove(backup))
    else:
        plan.notes.append(f"{backup} stays: {path.name} was changed by others since")


def _removes(plan: Plan, path: Path) -> bool:
    return any(isinstance(step, Remove) and step.path == path for step in plan.steps)


def _journal_notes(server: Server) -> list[str]:
    """Say where journals stay behind, as far as the configuration still tells."""
    try:
        options = load_config(config_of(server))
    except (FirebirdCdcError, OSError):  # a broken configuration keeps nobody from leaving
        return []
    from firebird_cdc.journal.shipper.monitoring.folder import count_alone
    from firebird_cdc.journal.shipper.monitoring.report import they_wait

    notes = []
    if options.journal_directory.is_dir():
        waiting = 0
        with suppress(OSError):
            waiting = count_alone(options.journal_directory).pending
        todo = f", and {they_wait(waiting)} there: ship first" if waiting else ""
        notes.append(f"{options.journal_directory} stays{todo}")
    archive = options.journal_archive_directory
    if archive is not None and archive.is_dir():
        notes.append(f"{archive} stays, the history for replays")
    return notes
