"""Secrets that an option refers to, in place of holding them: in a variable or a file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from firebird_cdc.config.environment import variable_of
from firebird_cdc.config.secrets import is_secret
from firebird_cdc.config.values import ValueProblem

_REFERENCE = re.compile(r"\$\{([^}:]*):?([^}]*)\}")
_KINDS = ("env", "file")


_REFERRING = ("kafka.producer.", "key.converter.", "value.converter.", "signal.consumer.")


def may_refer(name: str) -> bool:
    """Tell whether option NAME may be secret, and take references for what it holds."""
    return name == "database.password" or (name.startswith(_REFERRING) and is_secret(name))


class Unresolved(Exception):
    """Absence of a secret that is referred to. The text tells why, and nothing of its content."""


def check_no_reference(key: str, value: str) -> None:
    """Raise ValueProblem for a reference in VALUE, of option KEY, which takes none."""
    for kind, name in _REFERENCE.findall(value):
        if kind in _KINDS and name:
            raise ValueProblem(
                "references are for secrets only; have the environment give the option:"
                f" {variable_of(key)}"
            )


def check_references(value: str) -> str:
    """Return VALUE, of an option that may be secret; raises ValueProblem for a reference of another
    kind than ``${env:NAME}`` and ``${file:PATH}``, or to a relative path."""
    for kind, name in _REFERENCE.findall(value):
        if kind not in _KINDS or not name:
            raise ValueProblem(
                "${env:NAME} and ${file:PATH} are the references that are known; a text that really"
                " has such a part can be given by a file"
            )
        if kind == "file" and not name.startswith("/"):
            raise ValueProblem("${file:PATH} needs an absolute path")
    return value


def resolve(value: str) -> str:
    """Return VALUE with what its references stand for: a variable of this process's environment, or
    the secret in a file. Raises Unresolved."""
    return _REFERENCE.sub(_content, value)


def _content(reference: re.Match[str]) -> str:
    kind, name = reference.groups()
    if kind == "env":
        if name in os.environ:
            return os.environ[name]
        raise Unresolved(f"the environment of this process has no {name}")
    return read_secret(Path(name))


def read_secret(file: Path) -> str:
    """Return the secret that is alone in FILE, without the line's end behind it. Raises
    Unresolved."""
    try:
        return file.read_text("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise Unresolved(f"{file} can't be read: {why}") from None


def resolved(
    options: Mapping[str, str], prefix: str, origins: Mapping[str, str], missing: list[str]
) -> dict[str, str]:
    """Return OPTIONS with the secrets that they refer to. MISSING gets a sentence for each that is
    not there, and the option stays as it is. PREFIX: what their names begin with in the file;
    ORIGINS: where each stands, as ``path:line: option``."""
    found = dict(options)
    for name, value in options.items():
        if is_secret(prefix + name):
            try:
                found[name] = resolve(value)
            except Unresolved as error:
                missing.append(f"{origins.get(name, prefix + name)}: {error}")
    return found
