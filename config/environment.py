"""Options that the environment gives, as in a container or by systemd's EnvironmentFile."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from firebird_cdc.config.options import ALIASES
from firebird_cdc.config.secrets import shown_variable
from firebird_cdc.config.source import Source
from firebird_cdc.config.values import Entry

VARIABLE = "FIREBIRD_CDC_OPTION_"
"""Beginning of the names of variables that give an option."""


def variable_of(key: str) -> str:
    """Return the name of the variable that gives option KEY, as messages show it."""
    name = key.replace(".", "__")
    return shown_variable(f"{VARIABLE}{name.upper() if name.islower() else name}")


def with_environment(source: Source, environment: Mapping[str, str]) -> Source:
    """Return SOURCE with the options that ENVIRONMENT gives, which count before those of the file.

    A variable is called VARIABLE and the option's name, ``__`` for a dot. A name without small
    letters stands for small ones. An empty value is none, as in the file.
    """
    given: dict[str, Entry] = {}
    problems = list(source.problems)
    for variable, text in sorted(environment.items()):
        name = variable.removeprefix(VARIABLE)
        if name == variable:
            continue
        key = (name.lower() if name.isupper() else name).replace("__", ".")
        key = ALIASES[key].name if key in ALIASES else key
        if key in given:
            other = shown_variable(given[key].variable)
            said = f"{other} gives the same option; unset one of the two"
            problems.append((key, f"environment, {shown_variable(variable)}: {said}"))
            continue
        given[key] = Entry(key, 0, text or None, variable)
    entries = {**source.entries, **given}
    return Source(source.path, MappingProxyType(entries), tuple(problems))
