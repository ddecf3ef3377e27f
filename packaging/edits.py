"""Edits that install makes in plugins.conf and replication.conf, and those that it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from firebird_cdc.errors import SetupError
from firebird_cdc.packaging.server.conf import ConfFile, Entry, find
from firebird_cdc.packaging.server.sections import (
    PLUGIN_NAMES,
    _plugin_keys,
    _sample,
    config_section_name,
    databases_with_plugin,
    refuse_broken_defaults,
    same_path,
)

_REMARKS = (
    "while changes can't be recorded, commits that write to captured tables",
    "FAIL with the cause; reading goes on. With the engine's own defaults (false, true) the",
    "first error would end capture, and no application would notice.",
)
_BUILT_IN = ("journal_directory", "sync_replica")


def edit_plugins(
    conf: ConfFile, parameters: Mapping[str, str], defaults: Mapping[str, str]
) -> None:
    """Make both Plugin sections and the Config section hold.

    ``parameters`` are set whatever was there; ``defaults`` only where the key is missing.
    """
    expanded = conf.expanded()
    section_name = config_section_name(expanded)
    for name in PLUGIN_NAMES:
        if _editable(conf, expanded, "Plugin", name) is None:
            keys = _plugin_keys() | {"Config": section_name}
            conf.add_section("Plugin", name, list(keys.items()))
            continue
        conf.set_key(conf.sections("Plugin", name)[0], "Module", _plugin_keys()["Module"])
        if conf.sections("Plugin", name)[0].last("Config") is None:
            conf.set_key(conf.sections("Plugin", name)[0], "Config", section_name)
    section = _editable(conf, expanded, "Config", section_name)
    if section is None:
        conf.add_section("Config", section_name, [*defaults.items(), *parameters.items()])
        return
    wanted = {k: v for k, v in defaults.items() if section.last(k) is None} | dict(parameters)
    for key, value in wanted.items():
        conf.set_key(conf.sections("Config", section_name)[0], key, value)


def edit_replication(
    conf: ConfFile, databases: Sequence[Path], replace: bool, is_active: bool = True
) -> None:
    """Make the plugin capture DATABASES. Without any: those that the file names for the plugin,
    where it captures these alone; else all of the server's. Unless it is to be active: write what
    that takes as a comment, where nothing of ours is there.

    Raises SetupError where another plugin or the engine's own replication holds the place and
    ``replace`` is not given; built-in replication and a plugin exclude each other.
    """
    if is_active:
        conf.activate()
    expanded = conf.expanded()
    refuse_broken_defaults(conf.path, expanded)
    named = databases_with_plugin(expanded)
    if not databases and "" not in named:
        databases = [Path(name) for name in named]
    targets = [str(path) for path in databases] or [""]
    keys = _sample("replication.conf", "database", "")
    if not is_active:
        if not named and not conf.has_inactive:
            for target in targets:
                conf.add_section("database", target, keys, _REMARKS, is_active=False)
        return
    if not replace:
        _refuse_conflicts(conf.path, expanded, targets)
    for target in targets:
        value = _value_of(expanded, target)
        if _editable(conf, expanded, "database", value) is None:
            conf.add_section("database", value, keys, _REMARKS)
            continue
        for key, wanted in keys:
            conf.set_key(conf.sections("database", value)[0], key, wanted)


def left_out(conf: ConfFile) -> Iterator[str]:
    """Yield a sentence for each database that is not captured though all are meant, as it has a
    section of its own that names no plugin, and the default one does not count there."""
    expanded = conf.expanded()
    captured = databases_with_plugin(expanded)
    if "" not in captured:
        return
    for section in {same_path(e.value): e for e in find(expanded, "database")[::-1]}.values():
        path = same_path(section.value)
        if section.value and section.last("plugin") is None and path not in captured:
            yield (
                f"{section.value} is not captured: its section in {section.path}, line"
                f" {section.line + 1}, names no plugin, and the default one stands below. If it is"
                f" to be captured: --database {path}"
            )


def _value_of(entries: Sequence[Entry], target: str) -> str:
    """Return how the file spells the database TARGET, or TARGET itself."""
    if not target:
        return ""
    for entry in find(entries, "database"):
        if entry.value and same_path(entry.value) == same_path(target):
            return entry.value
    return target


def _editable(conf: ConfFile, expanded: Sequence[Entry], name: str, value: str) -> Entry | None:
    """Return the section to edit, None if there is none. Raises SetupError if it is elsewhere."""
    for entry in find(expanded, name, value):
        if entry.path != conf.path:
            raise SetupError(
                f"'{name} = {value}' stands in {entry.path}, line {entry.line + 1}, which "
                f"{conf.path} includes: move that section into {conf.path}, or edit it by hand"
            )
    sections = conf.sections(name, value)
    return sections[0] if sections else None


def _refuse_conflicts(path: Path, expanded: Sequence[Entry], targets: Sequence[str]) -> None:
    wanted = [same_path(target) if target else "" for target in targets]
    problems = []
    for section in find(expanded, "database"):
        place = f"{path}, line {section.line + 1}"
        name = f"database = {section.value}" if section.value else "database"
        plugin = section.last("plugin")
        targeted = (same_path(section.value) if section.value else "") in wanted
        if targeted and plugin is not None and plugin not in PLUGIN_NAMES:
            problems.append(
                f"{place}: section '{name}' has plugin = {plugin} already, and there can be one"
            )
        inherits = "" in wanted and plugin is None
        own = [key for key in _BUILT_IN if section.last(key) is not None]
        if own and plugin is None and (targeted or inherits):
            problems.append(
                f"{place}: section '{name}' sets {' and '.join(own)}: with a plugin the engine's "
                "own replication of the database ends"
            )
    if problems:
        raise SetupError(
            "\n".join(problems) + "\nUse --replace to put the connector in its place (uninstall "
            "gives the old lines back), or --database PATH to capture other databases"
        )
