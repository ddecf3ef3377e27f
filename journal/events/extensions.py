"""Loads the user's own classes: transforms and custom converters, named by a dotted path."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from firebird_cdc.errors import ConfigError

ERRORS = (Exception, SystemExit)
"""Exceptions that code of the user's may raise without ending the shipper."""


def load_class(path: str, *methods: str) -> Callable[[], Any]:
    """Return the class at the dotted PATH, e.g. ``my_module.MyTransform``.

    Raises ConfigError, with one sentence that goes on after "<option> is <path>; ", if there is
    no such class or it lacks one of METHODS.
    """
    module_name, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in path.split(".")) or not module_name:
        raise ConfigError(["it must be a dotted path to a Python class, e.g. my_module.MyClass"])
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError([f"{module_name} cannot be loaded: {described(error)}"]) from error
        raise ConfigError(
            [
                f"there is no Python module {error.name}; put it into one of the folders of"
                " PythonDirs in plugins.conf or, for a shipper that you start, of PYTHONPATH"
            ]
        ) from error
    except ERRORS as error:
        raise ConfigError([f"{module_name} cannot be loaded: {described(error)}"]) from error
    found = getattr(module, name, None)
    where = getattr(module, "__file__", None) or module_name
    if not isinstance(found, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        near = get_close_matches(name, classes, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError([f"{where} has no class {name}{hint}"])
    for method in methods:
        if not callable(getattr(found, method, None)):
            raise ConfigError([f"class {name} in {where} has no method {method}"])
    return found


def make(path: str, parameters: Mapping[str, str], *methods: str) -> Any:
    """Return an object of the class at PATH, made without arguments and then configured.

    ``configure(parameters)`` may be missing if there are no PARAMETERS. Raises ConfigError as
    `load_class` does; one that ``configure`` raises passes as it is.
    """
    made = load_class(path, *methods, *(("configure",) if parameters else ()))
    try:
        instance = made()
    except ERRORS as error:
        raise ConfigError(
            [f"it cannot be made, which happens without arguments: {described(error)}"]
        ) from error
    if not hasattr(instance, "configure"):
        return instance
    try:
        instance.configure(dict(parameters))
    except ConfigError:
        raise
    except ERRORS as error:
        raise ConfigError([f"it refuses its parameters: {described(error)}"]) from error
    return instance


def described(error: BaseException) -> str:
    """ERROR in one line: its type, its text, and the line of code that raised it."""
    text = " ".join(str(error).split())
    told = f"{type(error).__name__}: {text}" if text else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return told
    last = frames[-1]
    return f"{told} ({Path(last.filename).name}, line {last.lineno})"
