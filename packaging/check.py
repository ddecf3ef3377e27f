"""Says what is wrong with an installation, and what to do about each finding."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import firebird_cdc
from firebird_cdc.clock import now_us
from firebird_cdc.config import (
    ConnectorConfig,
    find_journal_directory,
    load_capture,
    load_config,
    locate_files,
)
from firebird_cdc.config.filters import MessageKeys, TableFilter
from firebird_cdc.config.logging import LoggingOptions, load_logging
from firebird_cdc.errors import ClientMissing, ConfigError, SetupError
from firebird_cdc.journal.events.names import SchemaNames
from firebird_cdc.journal.events.table_shape import key_columns
from firebird_cdc.journal.events.topics import TopicNames
from firebird_cdc.journal.folder import exit_status
from firebird_cdc.journal.folder.locks import SHIPPER_LOCK, STATE_DIRECTORY
from firebird_cdc.journal.folder.notes import QUARANTINE
from firebird_cdc.journal.folder.processes import disagreements
from firebird_cdc.journal.folder.shared_page import read_confirmer
from firebird_cdc.journal.shipper.commands.status import halted_reasons, read_snapshots
from firebird_cdc.journal.shipper.local_offsets import notices
from firebird_cdc.journal.shipper.monitoring.folder import count_alone
from firebird_cdc.journal.shipper.monitoring.report import LONG_WAIT_S, they_wait, transactions
from firebird_cdc.journal.shipper.nameless import REMEDY, NamelessTables
from firebird_cdc.journal.shipper.quarantine import read_reason
from firebird_cdc.packaging import ddl_triggers, probes, surroundings
from firebird_cdc.packaging.canaries import canary_problems
from firebird_cdc.packaging.databases import remedy_for
from firebird_cdc.packaging.kafka_access import kafka_access
from firebird_cdc.packaging.publication import UNSERVED
from firebird_cdc.packaging.server import accounts, runtime, sections
from firebird_cdc.packaging.server.conf import ConfFile, Entry, find
from firebird_cdc.packaging.server.counted import counted
from firebird_cdc.packaging.server.engine_log import engine_log
from firebird_cdc.packaging.server.findings import Finding, Findings, Severity
from firebird_cdc.packaging.server.layout import Server
from firebird_cdc.packaging.server.plugin_file import (
    AGAIN,
    _is_our_build,
    embedding_of,
    last_line,
    minor_of,
    python_of,
    unusable_plugin,
)
from firebird_cdc.packaging.server.running import restart_findings
from firebird_cdc.packaging.server.sections import expand_macros

#: A transaction that was committed longer ago than this should have been shipped.
PENDING_AFTER_S = 60

_REFUSING = (
    "correct the option; a server that starts with it refuses to commit what is to be captured"
    " (or leaves gaps, with connector.capture.failure.mode: gap)"
)
_NOT_SHIPPING = (
    "correct the option; no shipper starts with it, and journals wait on disk (commits go on)"
)
_SHOWN = 5
_YES = ("true", "yes", "on", "1")
_NO = ("false", "no", "off", "0")


def check_server(
    server: Server, config: Path | None = None, databases: Sequence[str] = ()
) -> list[Finding]:
    """Return all that is wrong with SERVER's installation.

    config: the connector options to look at, instead of those that plugins.conf names.
    databases: whose publication to look at too, as paths or HOST[/PORT]:PATH.
    """
    return list(_all(server, config, databases))


def _all(server: Server, config: Path | None, databases: Sequence[str]) -> Findings:
    entries, problems = _entries(server.plugins_conf, "no plugin is configured", server)
    parameters = _parameters(server, entries)
    yield from _plugin_file(server, parameters or {})
    yield from problems
    if entries is not None:
        yield from _plugins_conf(server, entries)
    if parameters is not None:
        yield from _python(server, parameters)
    entries, problems = _entries(server.replication_conf, "no database is captured", server)
    yield from problems
    if entries is not None:
        yield from _replication_conf(server, entries)
    is_known = parameters is not None or config is not None
    located = locate_files(parameters or {}, {}, server.root)
    path = config or located.config
    options: ConnectorConfig | None = None
    if is_known:
        options, problems = _configuration(server, path, located.logging)
        yield from problems
    if options is not None:
        yield from _folders(server, options)
        yield from surroundings.journal_place(options, server.account)
        yield from surroundings.secrets_shown(options)
        yield from surroundings.clock(options)
        yield from _events(server, parameters, options)
    if is_known and (folder := find_journal_directory(path)) is not None:
        yield from _journals(folder, path, options)
        yield from _parties(folder, options)
    yield from counted(server, parameters, path)
    published: dict[str, list[str]] = {}
    for database in databases:
        known: list[str] = []
        yield from _publication(server, database, published, options, known)
        if entries is not None:
            yield from _not_captured(server, entries, database, known)
    if options is not None:
        yield from _names(options, published)
        yield from _canaries(server, options, published)
        yield from _kafka(options, published)
    yield from engine_log(server)
    yield from restart_findings(server)


def _parameters(server: Server, entries: Sequence[Entry] | None) -> dict[str, str] | None:
    """Return what the plugin is told; None if plugins.conf doesn't tell, which is a finding."""
    if entries is None or not find(entries, "Config", sections.config_section_name(entries)):
        return None
    found = sections.plugin_parameters(entries)
    return {name: expand_macros(server, value) for name, value in found.items()}


# ---------------------------------------------------------------------- plugin and Python


def _plugin_file(server: Server, parameters: dict[str, str]) -> Findings:
    plugin = server.working_plugin
    if plugin.is_file() and not _is_our_build(plugin):
        yield Finding(
            str(plugin),
            f"this is another build than firebird-cdc {firebird_cdc.__version__} has",
            AGAIN.format(server.root),
        )
    yield from unusable_plugin(server, parameters)


def _python(server: Server, parameters: dict[str, str]) -> Findings:
    where = f"{server.plugins_conf}, Config section of {sections.PLUGIN_NAMES[0]}"
    again = AGAIN.format(server.root)
    minor = minor_of(parameters)
    library = parameters.get("Python")
    if library is None:
        if runtime.libpython(server.root / "lib") is None:
            yield Finding(
                where,
                "no Python is named (Python = ...) and this one has no shared libpython",
                f"apt-get install libpython3.{_this_minor()} and {again}",
            )
    elif not accounts.may(server.account, "r", Path(library)):
        yield Finding(
            where,
            f"Python = {library}: {server.account.name} can't read that library",
            f"let {server.account.name} read it, or install with a Python of the system's; {again}",
        )
        return
    if minor is None:
        minor = _this_minor()
    embedding = embedding_of(server, minor)
    if not embedding.is_file():
        yield Finding(str(embedding), f"the bridge for Python 3.{minor} is missing", again)
    elif (
        minor == _this_minor()
        and embedding.read_bytes() != runtime.embedding_library().read_bytes()
    ):
        version = firebird_cdc.__version__
        yield Finding(str(embedding), f"another build than firebird-cdc {version} has", again)
    yield from _imports(server, parameters, where, minor)


# Sets up the path of modules as the plugin does.
_PATH = """
import importlib, json, os, site, sys
old = list(sys.path)
for folder in sys.argv[1].split(os.pathsep):
    if folder: site.addsitedir(folder)
sys.path[:] = [p for p in sys.path if p not in old] + old
"""

_IMPORTS = (
    _PATH
    + """
failed = {}
for name in sys.argv[2:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"
version = getattr(sys.modules.get("firebird_cdc"), "__version__", None)
print(json.dumps([failed, version]))
"""
)

_EVENTS = (
    _PATH
    + """
from pathlib import Path
from firebird_cdc.config import load_config
from firebird_cdc.errors import ConfigError, SetupError
from firebird_cdc.journal.events.render import Renderer
problems = []
options = load_config(Path(sys.argv[2]))
try:
    Renderer(options, 1_000_000)
except ConfigError as error:
    problems = error.problems
except SetupError as error:
    problems = [str(error)]
print(json.dumps(problems))
"""
)


def _imports(server: Server, parameters: dict[str, str], where: str, minor: int) -> Findings:
    """Import what the bridge needs the way the plugin sets Python up, as the server's user."""
    again = AGAIN.format(server.root)
    names = ["firebird_cdc", *runtime.NEEDED_MODULES]
    folders = parameters.get("PythonDirs", "")
    python = python_of(parameters)
    try:
        done = accounts.run_as(server.account, [python, "-I", "-c", _IMPORTS, folders, *names])
        failed, version = json.loads(done.stdout.splitlines()[-1])
    except OSError as error:
        yield Finding(
            where,
            f"{server.account.name} can't run {python}: {error.strerror}",
            f"install firebird-cdc where {server.account.name} can read it (a virtual environment "
            f"in /opt, not in a home directory), and {again}",
        )
        return
    except (ValueError, IndexError):
        yield Finding(where, f"{python} doesn't run: {last_line(done.stderr)}", again)
        return
    if failed:
        causes = "; ".join(f"{name} ({why})" for name, why in failed.items())
        yield Finding(
            where,
            f"PythonDirs = {folders}: Python 3.{minor} can't import {causes} as "
            f"{server.account.name}",
            f"install firebird-cdc where {server.account.name} can read it, and {again}",
        )
    elif version != firebird_cdc.__version__:
        yield Finding(
            where,
            f"PythonDirs leads to firebird-cdc {version}, this is {firebird_cdc.__version__}",
            again,
        )


def _this_minor() -> int:
    return sys.version_info[1]


# ---------------------------------------------------------------------- plugins.conf, replication


def _entries(path: Path, lacking: str, server: Server) -> tuple[list[Entry] | None, list[Finding]]:
    again = AGAIN.format(server.root)
    if not path.exists():
        return None, [Finding(str(path), f"the file is missing: {lacking}", again)]
    try:
        return ConfFile.read(path.resolve()).expanded(), []
    except SetupError as error:
        return None, [Finding(str(path), str(error), "correct that line")]
    except OSError as error:
        return None, [Finding(str(path), f"can't be read: {error.strerror}", "make it readable")]


def _swallowed_brackets(entries: Sequence[Entry]) -> Findings:
    for entry in entries:
        text = entry.value or entry.name
        if text.endswith("{"):
            yield Finding(
                f"{entry.path}, line {entry.line + 1}",
                f"a comment after '{{' makes the server read the section as '{text}' and skip it",
                "put the comment on a line of its own",
            )


def _plugins_conf(server: Server, entries: list[Entry]) -> Findings:
    path, again = str(server.plugins_conf), AGAIN.format(server.root)
    yield from _swallowed_brackets(entries)
    plugins = find(entries, "Plugin", sections.PLUGIN_NAMES[0])
    if not plugins:
        yield Finding(path, f"section 'Plugin = {sections.PLUGIN_NAMES[0]}' is missing", again)
        return
    if len(plugins) > 1:
        lines = " and ".join(str(entry.line + 1) for entry in plugins)
        yield Finding(
            path,
            f"section 'Plugin = {sections.PLUGIN_NAMES[0]}' is there twice (lines {lines})",
            "keep one",
        )
    module = expand_macros(server, plugins[0].last("Module") or "")
    folder, _, name = module.rpartition("/")
    wanted = {str(server.plugin_file), str(server.root / "plugins/libfirebird_cdc.so")}
    if f"{folder}/lib{name}.so" not in wanted and module not in wanted:
        yield Finding(
            f"{path}, line {plugins[0].line + 1}",
            f"Module = {module or '(missing)'} is not our plugin {server.plugin_file}",
            again,
        )
    section = sections.config_section_name(entries)
    if not find(entries, "Config", section):
        yield Finding(path, f"section 'Config = {section}' is missing", again)


def _replication_conf(server: Server, entries: list[Entry]) -> Findings:
    path, again = server.replication_conf, AGAIN.format(server.root)
    yield from _swallowed_brackets(entries)
    try:
        sections.refuse_broken_defaults(path, entries)
    except SetupError as error:
        yield Finding(str(path), str(error), "correct the file")
        return
    captured = sections.databases_with_plugin(entries)
    if not captured:
        yield Finding(
            str(path), f"no 'database' section has plugin = {sections.PLUGIN_NAMES[0]}", again
        )
    for name, keys in captured.items():
        where = f"{path}, section 'database{f' = {name}' if name else ''}'"
        yield from _error_keys(where, keys)


def _not_captured(
    server: Server, entries: list[Entry], database: str, known: Sequence[str]
) -> Findings:
    """Say that no section of ours counts for DATABASE; KNOWN: its path as the engine tells it, if
    that is one of SERVER's."""
    path = next((each for each in (database, *known) if each.startswith("/")), None)
    if path is None:
        return  # that it can't be looked at is a finding of its own
    with suppress(SetupError):  # a finding of its own
        sections.refuse_broken_defaults(server.replication_conf, entries)
        own = {sections.same_path(e.value) for e in find(entries, "database") if e.value}
        name = sections.same_path(path)
        if (name if name in own else "") not in sections.databases_with_plugin(entries):
            yield Finding(
                str(server.replication_conf),
                f"{database} is not captured: the section for it has no plugin of ours",
                f"{AGAIN.format(server.root)} --database {path}",
            )


def _error_keys(where: str, keys: dict[str, str]) -> Findings:
    effect = "the first error would end capture for that connection, and no client would notice"
    for key, good, default in (("report_errors", _YES, "false"), ("disable_on_error", _NO, "true")):
        value = keys.get(key)
        if value in good:
            continue
        said = f"{key} = {value}" if value else f"{key} is not set, and the engine's default is"
        yield Finding(
            where,
            f"{said}{'' if value else f' {default}'}: {effect}",
            f"set {key} = {good[0]}, or run firebird-cdc install again",
        )


# ---------------------------------------------------------------------- configuration, journals


def _configuration(
    server: Server, path: Path, logging_path: Path | None
) -> tuple[ConnectorConfig | None, list[Finding]]:
    """Load the connector's and the logging options; all that is wrong with them are findings."""
    found: list[Finding] = []
    options: ConnectorConfig | None = None
    try:
        options = load_config(path)
        found += [
            Finding(str(path), warning, "correct the option, or take it out", Severity.WARNING)
            for warning in options.warnings
        ]
    except ConfigError as error:
        found += _refused(path, error.problems)
    where = str(logging_path or server.plugins_conf)
    try:
        logging = load_logging(logging_path) if logging_path else LoggingOptions()
        found += surroundings.log_files(where, logging, server.account)
    except ConfigError as error:
        found += [Finding(where, p, "correct the option") for p in error.problems]
    for file in (path, logging_path):
        if file is not None and file.exists() and not accounts.may(server.account, "r", file):
            name = server.account.name
            found.append(
                Finding(str(file), f"{name} can't read it", f"chgrp and chmod it for {name}")
            )
    return options, found


def _refused(path: Path, problems: Sequence[str]) -> Findings:
    """Tell of each of PROBLEMS of the connector's file whether it stops capture or the shipper."""
    try:
        harmless = load_capture(path).problems
    except ConfigError as error:
        refusing = error.problems
    else:
        refusing = [problem for problem in problems if problem not in harmless]
    for problem in problems:
        remedy = _REFUSING if problem in refusing else _NOT_SHIPPING
        said = re.sub(r"^(\d+): ", r"line \1: ", problem.removeprefix(f"{path}:").strip())
        yield Finding(str(path), said, remedy)


def _folders(server: Server, options: ConnectorConfig) -> Findings:
    name = server.account.name
    for option, folder in (
        ("connector.journal.directory", options.journal_directory),
        ("connector.journal.archive.directory", options.journal_archive_directory),
    ):
        if folder is None:
            continue
        where = f"{options.path}, {option}"
        make = f"install -d -m 700 -o {name} {folder}"
        if not folder.exists():
            yield Finding(where, f"{folder} does not exist", make)
        elif not folder.is_dir():
            yield Finding(where, f"{folder} is no directory", f"move it away; then {make}")
        elif not (
            accounts.may(server.account, "w", folder) and accounts.may(server.account, "x", folder)
        ):
            yield Finding(where, f"{name} can't write to {folder}", f"chown {name} {folder}")


def _events(
    server: Server, parameters: dict[str, str] | None, options: ConnectorConfig
) -> Findings:
    """Load the converters and transforms that are named, as the shipper will."""
    if parameters is not None and options.shipper == "embedded":
        folders, python = parameters.get("PythonDirs", ""), python_of(parameters)
        command = [python, "-I", "-c", _EVENTS, folders, str(options.path)]
    else:
        command = [sys.executable, "-c", _EVENTS, "", str(options.path)]
    try:
        done = accounts.run_as(server.account, command)
        problems = json.loads(done.stdout.splitlines()[-1])
    except TimeoutError as error:
        yield Finding(
            str(options.path),
            f"code of your own that it names can't be tried: {error.strerror}",
            "have it wait for nothing while it is loaded; the shipper would wait too",
        )
        return
    except (OSError, ValueError, IndexError):
        return  # what keeps Python or the options from being read is a finding of its own
    for problem in problems:
        yield Finding(str(options.path), problem, "correct the option")


def _journals(folder: Path, config: Path, options: ConnectorConfig | None) -> Findings:
    """Look at what waits in the journal folder or its quarantine, and at what is lost. options:
    None if something is wrong in the file CONFIG."""
    if not folder.is_dir():
        return
    own = folder / STATE_DIRECTORY
    # Not as a shipper tells that may hang.
    figures = count_alone(folder)
    waiting, age = figures.pending, figures.oldest_pending_seconds
    shipping = probes.is_locked(own / SHIPPER_LOCK)
    if age > PENDING_AFTER_S and not shipping:
        if options is None:
            start = f"correct what is wrong in {config}: no shipper starts with it"
        elif options.shipper == "embedded":
            start = "connect to the database, which starts it"
        else:
            start = f"start it: firebird-cdc ship --config {config}"
        yield Finding(str(folder), f"{they_wait(waiting)} and no shipper runs", start)
    elif age > PENDING_AFTER_S:
        yield Finding(
            str(folder),
            f"{they_wait(waiting)}, the oldest for {age:.0f} s, though a shipper runs",
            "its log says why; Kafka may be slow or away",
            Severity.WARNING,
        )
    for said in halted_reasons(folder) if shipping else ():
        yield Finding(str(folder), said, "mend that; firebird-cdc status tells when it is over")
    for notice in notices(folder):
        yield Finding(str(folder), notice.what, notice.remedy)
    yield from _snapshots(folder, config)
    left = figures.live if _has_older(folder.glob("*.log.live"), PENDING_AFTER_S) else 0
    if left and not probes.is_locked(own / "bridge.lock"):
        yield Finding(
            str(folder),
            f"{transactions(left)} left undecided, and no server runs",
            "connect to the database with capture on: recovery decides about them",
            Severity.WARNING,
        )
    for _, text in read_confirmer(folder, probes.is_locked).troubles(folder).values():
        yield Finding(str(folder), text, "firebird-cdc status tells when that is over")
    for table in NamelessTables(folder).look():
        yield Finding(
            str(config),
            f"table {table.table} in {table.database} is not delivered, {table.journals} journals"
            f" with events of it are in the quarantine: {table.reason}",
            REMEDY,
        )
    # By the journals: a killed retry or discard leaves a reason alone, a full disk a journal.
    aside = sorted((own / QUARANTINE).glob("*.log"))
    for journal in aside[:_SHOWN]:
        yield Finding(
            str(journal),
            f"quarantined: {read_reason(journal.parent, journal.stem)}",
            f"look at it (firebird-cdc journal show {journal}), mend the cause, then firebird-cdc"
            " journal retry, or journal discard",
        )
    if len(aside) > _SHOWN:
        yield Finding(str(own / QUARANTINE), f"{len(aside) - _SHOWN} more journals", "look there")


def _snapshots(folder: Path, config: Path) -> Findings:
    """Look for snapshots that don't go on."""
    found, problems = read_snapshots(folder)
    for problem in problems:
        yield Finding(
            str(folder), problem, "have the server's user read and write it, or restore it"
        )
    for database, snapshot in found.items():
        why = snapshot["waits_for"]
        if snapshot["status"] == "owed":
            yield Finding(
                f"{config}, database.hostname",
                f"the initial snapshot of {database} is owed, as nobody can attach"
                f"{f' ({why})' if why else ''}: consumers lack the rows of before",
                "name a server that the shipper can reach, with database.hostname, database.port,"
                " database.user and database.password.file; the user needs SELECT on the tables. Or"
                " have a server with ServerMode = Super read them itself:"
                " connector.snapshot.by.server: true, which takes effect when it starts. If"
                f" nobody needs these rows: firebird-cdc snapshot stop --database {database}",
                Severity.WARNING,
            )
        elif (
            snapshot["waits_since_us"] and now_us() - snapshot["waits_since_us"] > LONG_WAIT_S * 1e6
        ):
            yield Finding(
                str(folder),
                f"the {snapshot['kind']} snapshot of {database} has not gone on for a while: {why}",
                "end what it waits for; firebird-cdc snapshot status tells when it goes on",
                Severity.WARNING,
            )


def _parties(folder: Path, options: ConnectorConfig | None) -> Findings:
    """Look for why no shipper runs, and for processes with other options than the file's, or with
    older code."""
    words = exit_status.of_last_shipper(folder)
    if (
        words is not None
        and not (words.is_refusal and options is None)  # findings of their own
        and not probes.is_locked(folder / STATE_DIRECTORY / SHIPPER_LOCK)
    ):
        said = " ".join(words.text.split())
        yield Finding(
            str(folder),
            f"no shipper runs, as the last one ended: {said}",
            "fix that; this finding ends with the next shipper that works",
        )
    for what, remedy in disagreements(folder, probes.is_locked):
        yield Finding(str(folder), what, remedy, Severity.WARNING)


def _has_older(paths: Iterator[Path], seconds: float) -> bool:
    """Tell whether one of the files was last changed more than SECONDS ago."""
    now = time.time()
    for path in paths:
        with suppress(FileNotFoundError):  # decided meanwhile
            if now - path.stat().st_mtime > seconds:
                return True
    return False


def _kafka(options: ConnectorConfig, published: Mapping[str, list[str]]) -> Findings:
    problem = probes.kafka_problem(options.producer)
    if problem:
        servers = options.producer.get("bootstrap.servers", "")
        yield Finding(
            f"{options.path}, kafka.producer.bootstrap.servers",
            f"no answer from {servers}: {problem}",
            "correct the address or start Kafka; until then journals wait on disk",
        )
    else:
        yield from kafka_access(options, published)


# ---------------------------------------------------------------------- databases, logs


def _publication(
    server: Server,
    database: str,
    published: dict[str, list[str]],
    options: ConnectorConfig | None,
    known: list[str],
) -> Findings:
    """Look at the publication of DATABASE, and add its tables to PUBLISHED by the path of it, which
    is added to KNOWN if it is one of SERVER's."""
    try:
        attachment = None if options is None else options.attachment
        publication = probes.read_publication(server, database, attachment)
    except ClientMissing as error:
        what, _, remedy = str(error).rpartition("; ")
        yield Finding(database, f"can't be looked at: {what}", remedy)
        return
    except Exception as error:  # the driver's are of many kinds; whatever it is, it is told
        yield Finding(
            database,
            f"can't be looked at: {last_line(str(error))}",
            remedy_for(error)
            or "see that the server runs, and set ISC_USER and ISC_PASSWORD, or database.user and"
            " database.password.file in the connector options",
        )
        return
    path = publication.path  # not an alias or a link: filters and topics go by what events have
    published[path] = publication.tables
    if publication.is_through_server:
        known.append(path)
    if publication.engine == UNSERVED:
        yield Finding(
            database,
            f"its server is Firebird {UNSERVED}, which marks a transaction that is rolled back as"
            " committed before it tells the plugin; writes to captured tables are refused",
            "upgrade the server to Firebird 4.0.1 or later",
        )
    if not publication.forced_writes:
        yield Finding(
            database,
            "forced writes are off: after a power failure the database may lack commits that"
            " journals and topics have",
            f"gfix -write sync {database}",
            Severity.WARNING,
        )
    if not publication.enabled:
        yield Finding(database, "its publication is off", f"firebird-cdc enable {database}")
    if not publication.tables:
        yield Finding(
            database,
            "no table is in its publication",
            f"firebird-cdc enable {database}, with --tables for some of them",
        )
    wanted = TableFilter(options).captures if options is not None else None
    outside = [table for table in publication.outside if wanted is not None and wanted(path, table)]
    if outside and publication.tables:
        tables = ", ".join(outside[:10])
        yield Finding(
            database,
            f"tables outside its publication, whose changes are not captured: {tables}",
            f"firebird-cdc enable {database} --tables …, or name in table.exclude.list what is to"
            " stay outside",
            Severity.WARNING,
        )
    names = set(publication.tables)
    yield from ddl_triggers.findings(
        database,
        publication.ddl_triggers,
        lambda table: table in names and (wanted is None or wanted(path, table)),
    )
    if keyless := _without_message_key(publication, options):
        tables = ", ".join(keyless[:10])
        yield Finding(
            database,
            f"tables without primary or unique key: {tables}; their events have no message key",
            "ALTER TABLE … ADD PRIMARY KEY (…), or firebird-cdc disable … --tables …",
            Severity.NOTE,
        )


def _without_message_key(
    publication: probes.Publication, options: ConnectorConfig | None
) -> list[str]:
    """Return the tables whose events have no message key, by OPTIONS where these are known."""
    tables = publication.without_key
    if options is None:
        return [table.name for table in tables]
    captures, keys = TableFilter(options).captures, MessageKeys(options)
    return [
        table.name
        for table in tables
        if captures(publication.path, table.name) and not key_columns(keys, publication.path, table)
    ]


def _names(options: ConnectorConfig, published: Mapping[str, list[str]]) -> Findings:
    """Look for tables whose topics or schema names coincide: the shipper would quarantine their
    events."""
    captures = TableFilter(options).captures
    tables = [
        (database, table)
        for database, names in published.items()
        for table in names
        if captures(database, table)
    ]
    for kind in (TopicNames(options), SchemaNames(options)):
        for problem in kind.problems(tables):
            what, _, remedy = problem.rpartition("; ")
            yield Finding(str(options.path), what, remedy)


def _canaries(
    server: Server, options: ConnectorConfig, published: Mapping[str, list[str]]
) -> Findings:
    """Look at the canaries of the databases that could be read."""
    read = set(map(sections.same_path, published))
    for canary in options.canary_tables:
        if sections.same_path(canary.database) not in read:
            continue
        try:
            with probes.attached(server, canary.database, options.attachment) as connection:
                problems = [*canary_problems(connection, canary, options.attachment.user)]
        except Exception as error:  # as in _publication; all else that was found is to be told
            yield Finding(
                canary.database,
                f"its canary can't be looked at: {last_line(str(error))}",
                "see that database.hostname and database.port lead to the server of this database",
            )
            continue
        for what, remedy in problems:
            yield Finding(canary.database, f"its canary: {what}", remedy)
