"""Events that can't be sent as asked, and numbers for messages that are no events."""

from __future__ import annotations

from firebird_cdc.errors import ShipError

BEGIN, END, NEW_EPOCH = -1, -2, -3
"""Numbers in place of an event's: for the boundaries of its transaction, and for the message that
announces the epoch which the transaction opens."""

OUT_OF_BAND = {
    NEW_EPOCH: "the announcement of a new epoch",
    BEGIN: "BEGIN of the transaction",
    END: "END of the transaction",
}
"""Names of these for people, in their order: messages that are no events, so the quarantine has no
notes on them."""


class BadEvent(ShipError):
    """An event that can't be sent as asked.

    ``pos``: its number in its journal, or one of OUT_OF_BAND. ``whose``: its table and key
    for people, "" if it has none.
    """

    def __init__(self, pos: int, what: str, whose: str = "") -> None:
        super().__init__(what)
        self.pos = pos
        self.whose = whose

    @property
    def told(self) -> str:
        """Reason that it can't be sent, and its table and key."""
        return f"{self}; it is of {self.whose}" if self.whose else str(self)

    @property
    def where(self) -> str:
        """Name of the event, for error messages."""
        return OUT_OF_BAND.get(self.pos) or f"event {self.pos}"


class NamelessEvent(BadEvent):
    """An event of a table that can't have the names it needs, such as a topic that is another's.

    All events of the table are so until somebody changes the configuration. So they are quarantined
    in every mode, and other tables go on. ``table``: its name.
    """

    def __init__(self, pos: int, what: str, table: str) -> None:
        super().__init__(pos, what)
        self.table = table
