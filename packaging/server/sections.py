"""Our sections in plugins.conf and replication.conf, as the engine reads them."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from firebird_cdc.errors import SetupError
from firebird_cdc.packaging.server.conf import ConfFile, Entry, find
from firebird_cdc.packaging.server.layout import Server

#: The names the native plugin registers; the first is the RED Database connector's.
PLUGIN_NAMES = ("Debezium_Connector", "Firebird_CDC")


@cache
def _sample(name: str, section: str, value: str) -> tuple[tuple[str, str], ...]:
    """Return the keys of a section of the sample file NAME: what install writes is what we show."""
    path = importlib.resources.files("firebird_cdc.config") / "samples" / name
    conf = ConfFile.parse(path.read_text(encoding="utf-8"), Path(name))
    return tuple(
        (entry.name, entry.value) for entry in conf.sections(section, value)[0].entries or []
    )


def _plugin_keys() -> dict[str, str]:
    return dict(_sample("plugins.conf", "Plugin", PLUGIN_NAMES[0]))


def config_section_name(entries: Sequence[Entry]) -> str:
    """Return the name of the Config section that the connector's Plugin section points to."""
    for plugin in find(entries, "Plugin", PLUGIN_NAMES[0]):
        if name := plugin.last("Config"):
            return name
    return _plugin_keys()["Config"]


def plugin_parameters(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the parameters that the engine hands to the plugin, macros as written."""
    sections = find(entries, "Config", config_section_name(entries))
    return {e.name: e.value for section in sections for e in section.entries or []}


def refuse_broken_defaults(path: Path, entries: Sequence[Entry]) -> None:
    """Refuse what makes the engine refuse the whole file: two defaults, or one without { }."""
    defaults = find(entries, "database", "")
    if len(defaults) > 1:
        lines = " and ".join(f"{e.path}, line {e.line + 1}" for e in defaults)
        raise SetupError(
            f"{path} has more than one default 'database' section ({lines}): the engine then "
            "ignores the whole file. Join them into one"
        )
    for entry in defaults:
        if entry.entries is None:
            raise SetupError(
                f"{entry.path}, line {entry.line + 1}: 'database' without '{{' and '}}' below it. "
                "Give it a section or take the line out"
            )


def databases_with_plugin(entries: Sequence[Entry]) -> dict[str, dict[str, str]]:
    """Return the settings per database section that end in our plugin; key "": all others.

    As the engine does it: the default section counts where it stands above, the first section
    that names the database closes the search, and within a section the last value wins.
    """
    merged: dict[str, str] = {}
    found: dict[str, dict[str, str]] = {}
    for section in find(entries, "database"):
        own = {e.name: e.value for e in section.entries or [] if e.value}
        if not section.value:
            merged = own
            found[""] = own
        else:
            found.setdefault(same_path(section.value), merged | own)
    return {name: keys for name, keys in found.items() if keys.get("plugin") in PLUGIN_NAMES}


def same_path(value: str) -> str:
    """Return a database path as the engine compares it: full, symbolic links followed."""
    return str(Path(value).resolve())


def expanded_parameters(server: Server, conf: ConfFile) -> dict[str, str]:
    """Return the parameters the plugin is given, with the engine's macros filled in."""
    return {
        name: expand_macros(server, value)
        for name, value in plugin_parameters(conf.expanded()).items()
    }


def expand_macros(server: Server, value: str) -> str:
    """Fill in the macros of plugins.conf that stand for directories."""
    macros: Mapping[str, Path] = {
        "$(this)": server.conf_directory,
        "$(dir_plugins)": server.root / "plugins",
        "$(dir_conf)": server.root,
        "$(root)": server.root,
        "$(install)": server.root,
    }
    for macro, path in macros.items():
        value = value.replace(macro, str(path))
    return value
