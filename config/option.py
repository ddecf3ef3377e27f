"""One option of ``reddatabase.connector.yaml``: its name, type, default, range and meaning."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
MASK_MAX = 32767
"""The longest mask in characters: that of the longest VARCHAR."""


class Kind(Enum):
    """The type of an option's value, as the reference page names it."""

    STRING = "string"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    CHOICE = "choice"
    CHOICES = "list of choices"
    LIST = "list"
    PATTERNS = "list of regular expressions"
    DIRECTORY = "absolute path of a directory"
    FILE = "absolute path of a file"
    CONVERTER = "class"
    CLASS = "class name"
    SHORT_NAME = "short name, or the Java class that it stands for"
    MESSAGE_KEYS = "table:columns;table:columns"
    CHARSET = "character set"
    METRIC_TAGS = "label=value,label=value"
    PLACEHOLDER = "text, or hex: and hexadecimal digits"
    TOPIC_PART = "letters, digits, -, ., _"
    PASSWORD = "password, ${env:NAME} or ${file:PATH}"  # noqa: S105


class Status(Enum):
    """State of an option: whether setting it has an effect."""

    BUILT = "built"
    NEVER = "cannot apply"


class Group(Enum):
    """The heading under which the reference page shows an option."""

    CONNECTOR = "Connector and journals"
    KAFKA = "Kafka producer"
    TOPICS = "Topics"
    FORMAT = "Format of messages"
    CONVERTERS = "Converters of keys and values"
    TRANSFORMS = "Transforms"
    FILTERS = "Which tables and columns"
    VALUES = "Form of values"
    MASKS = "Masked, hashed and shortened columns"
    COLUMN_CONVERTERS = "Converters of columns"
    SHIPPING = "Shipping"
    ATTACHMENT = "Attachment to databases"
    CANARY = "Canary"
    SNAPSHOTS = "Snapshots"
    SIGNALS = "Signals"
    NOTIFICATIONS = "Notifications"
    MONITORING = "Monitoring"
    NEVER = "Options that cannot apply"


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    ``name``: the dotted key; a part in angle brackets stands for any text.
    ``default``: as it would be written in the file; None: unset.
    ``low``, ``high``: the range of an INTEGER, in ``unit``.
    ``allowed``: the values of a CHOICE, in small letters; any case is taken.
    ``aliases``: older names, accepted with a warning.
    ``instead``: for Status.NEVER, why the option has no effect and what serves instead.
    """

    name: str
    kind: Kind
    default: str | None
    meaning: str
    group: Group
    status: Status = Status.BUILT
    unit: str = ""
    low: int = 0
    high: int = LONG_MAX
    allowed: tuple[str, ...] = ()
    required: bool = False
    aliases: tuple[str, ...] = ()
    instead: str = ""

    @property
    def for_capture(self) -> bool:
        """Tell whether a server process needs it to record changes: only such an option, missing or
        wrong, keeps transactions from being committed. Any other keeps the shipper from running."""
        is_filter = self.group is Group.FILTERS and self.kind is Kind.PATTERNS
        return is_filter or self.name.startswith(_CAPTURE_PREFIXES)

    @property
    def is_family(self) -> bool:
        """Tell whether the name stands for many keys, e.g. ``column.mask.with.<n>.chars``."""
        return "<" in self.name

    def matches(self, key: str) -> bool:
        """Tell whether KEY is this option, or one of the family."""
        if not self.is_family:
            return key == self.name
        return self.placeholders(key) is not None

    def placeholders(self, key: str) -> tuple[str, ...] | None:
        """Return the text in KEY for each part in angle brackets; None if it is no such key."""
        parts = re.split(r"(<[^>]*>)", self.name)
        pattern = "".join(
            f"({_PLACEHOLDERS.get(part, '.+')})" if part.startswith("<") else re.escape(part)
            for part in parts
        )
        match = re.fullmatch(pattern, key, re.DOTALL)
        return match and match.groups()


_CAPTURE_PREFIXES = ("connector.journal.", "connector.capture.")

# What may stand for a part in angle brackets; for any other: everything.
_PLACEHOLDERS = {"<n>": "[0-9]+", "<algorithm>": "[^.]+", "<name>": "[^.]+"}
