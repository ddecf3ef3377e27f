"""Reads the parameters of a built-in transform: typed, with all problems told at once."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from firebird_cdc.config.values import ValueProblem, parse_boolean, split_list
from firebird_cdc.errors import ConfigError


class Parameters:
    """The parameters of one transform. Ask for each one, then call ``finish``."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self._known: list[str] = []
        self._problems: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def refuse(self, name: str, why: str) -> None:
        """Note that the value of NAME can't be used; WHY goes on after "<name> is <value>; "."""
        self._problems.append(f"{name} is {self._values.get(name)!r}; {why}")

    def text(self, name: str, default: str | None = None) -> str:
        """The value of NAME; it is required if there is no DEFAULT."""
        self._known.append(name)
        value = self._values.get(name, default)
        if value is None:
            self._problems.append(f"{name} is missing; it is required")
            return ""
        return value

    def boolean(self, name: str, default: bool) -> bool:
        """The boolean NAME."""
        try:
            return parse_boolean(self.text(name, str(default)))
        except ValueProblem as problem:
            self.refuse(name, str(problem))
            return default

    def choice(self, name: str, allowed: Iterable[str], default: str) -> str:
        """The value of NAME, one of ALLOWED in any case of letters."""
        word = self.text(name, default).strip().lower()
        if word in allowed:
            return word
        self.refuse(name, f"allowed: {', '.join(allowed)}")
        return default

    def items(self, name: str, default: str | None = "") -> tuple[str, ...]:
        """The comma separated list NAME; required if DEFAULT is None."""
        items = split_list(self.text(name, default))
        if default is None and name in self and not items:
            self.refuse(name, "it must name at least one")
        return items

    def pattern(self, name: str, default: str | None = None) -> re.Pattern[str]:
        """The regular expression NAME, as Java spells it."""
        text = self.text(name, default)
        try:
            with warnings.catch_warnings():
                # What Python warns of, e.g. [[a], means something else in Java.
                warnings.simplefilter("error", FutureWarning)
                return re.compile(_JAVA_GROUP.sub("(?P<", text))
        except (re.error, OverflowError, RecursionError, FutureWarning) as error:
            self.refuse(name, f"it is not a regular expression: {error}")
            return re.compile("")

    def finish(self) -> None:
        """Raise ConfigError if a value can't be used or a parameter is unknown."""
        for name in self._values:
            if name not in self._known:
                near = get_close_matches(name, self._known, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                known = f"it has {', '.join(self._known)}" if self._known else "it has none"
                self._problems.append(f"{name} is not a parameter of this transform; {known}{hint}")
        if self._problems:
            raise ConfigError(self._problems)


# Java's named group; Python calls it (?P<name>...). (?<= and (?<! are the same in both.
_JAVA_GROUP = re.compile(r"(?<!\\)\(\?<(?![=!])")
