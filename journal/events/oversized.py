"""Placeholders for values that are too large for a message (``event.oversized.value``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from firebird_cdc.journal.events.records import Message

if TYPE_CHECKING:
    from firebird_cdc.journal.events.message_writer import MessageWriter
    from firebird_cdc.journal.events.schema import Struct
    from firebird_cdc.journal.events.structs import StructMaker
    from firebird_cdc.journal.format import Row, RowChange

OVERSIZED_HEADER = "__firebird_cdc.oversized"
"""Header of a message with placeholders for what is too large: JSON, for ``before`` and ``after``
the names of the fields."""

Images = tuple[str, ...]
"""Rows of a change, ``before`` and ``after``."""

PLACEHOLDER = "placeholder"
"""The value of the option that asks for them."""


class ReducedChange:
    """The rows of a change, of which one value after the other gives way until its messages fit.

    What is too large by itself has given way from the start. Then the column with the largest value
    comes first, and of one column the row before the change, which is of less use to a reader. The
    order depends on the change alone, so that an audit makes the same messages. Raises BadValue if
    a row has a value that no placeholder can stand for.
    """

    def __init__(self, rows: StructMaker, change: RowChange) -> None:
        self._before = change.before
        self._structs: dict[str, Struct] = {}
        self._placed: dict[str, list[str]] = {"before": [], "after": []}
        sizes: dict[str, int] = {}
        candidates = []
        for image, row in (("before", change.before), ("after", change.after)):
            if row is None:
                continue
            struct, self._placed[image] = rows.fitting_struct_of(row)
            self._structs[image] = struct
            for number, field in enumerate(rows.fields):
                placeholder, name = field.form.placeholder, field.name
                size = 0 if placeholder is None else _size(struct[name])
                if size > _size(placeholder):
                    sizes[name] = max(size, sizes.get(name, 0))
                    candidates.append((number, image == "after", name, placeholder))
        self._candidates = deque(sorted(candidates, key=lambda each: (-sizes[each[2]], *each[:2])))

    def struct_of(self, row: Row) -> Struct:
        """Return the struct of one of the two rows, as it is by now."""
        return self._structs["before" if row is self._before else "after"]

    def give_way(self) -> bool:
        """Put a placeholder in the place of the next value; False if none is left."""
        if not self._candidates:
            return False
        _, is_after, name, placeholder = self._candidates.popleft()
        image = "after" if is_after else "before"
        self._structs[image] = {**self._structs[image], name: placeholder}
        self._placed[image].append(name)
        return True

    def marked(
        self, writer: MessageWriter, made: Sequence[Message | None], images: Images
    ) -> list[Message | None]:
        """Return MADE, messages of the change, with the header that says what was placed.

        IMAGES: which of its rows they have. Raises TooLarge if a message has no room for its
        header.
        """
        placed = {image: self._placed[image] for image in images if self._placed[image]}
        marked: list[Message | None] = []
        for message in made:
            if message is not None and message.value is not None and placed:
                told = writer.header_writer.told(placed)
                headers = [*message.headers, (OVERSIZED_HEADER, told)]
                size = writer.size_of(headers)
                message = writer.checked(*message[:3], headers, size)
            marked.append(message)
        return marked

    def __str__(self) -> str:
        """Name the fields that have a placeholder: ``before.BODY, after.BODY``."""
        return ", ".join(
            f"{image}.{name}" for image, names in self._placed.items() for name in names
        )


def _size(value: Any) -> int:
    """About how much of a message a value takes, as far as a placeholder can stand for it."""
    if isinstance(value, list):
        return sum(map(_size, value))
    return len(value) if isinstance(value, str | bytes) else 0
