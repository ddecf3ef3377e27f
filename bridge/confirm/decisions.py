"""The decision about a journal that waits: a function of what is known of it, and of nothing else.

The plugin's ``commit()`` runs before the engine's own commit mark is on disk, and a server that is
killed in between rolls the transaction back. So the database file decides, and where it can't tell,
what became of those that may know more.

    state of the transaction      its writer                 sealed        not sealed
    committed, on disk            any                        published     becomes a gap
    rolled back or dead           any                        removed       removed
    in limbo                      any                        kept          kept
    any other                     lived when it was found    look whether it lives
                                  has ended since            ask again
    active                        lives                      wait          wait
                                  gone, others may be there  look for the others
                                  gone, nobody was there     removed       removed
                                  wrote where no bridge ran  kept          kept
    unknown to the database       lives                      quarantined   quarantined
                                  any other                  quarantined   removed
    committed, an engine says     lives, or nobody was there published     becomes a gap
                                  gone, others may be there  look for the others
"""

from __future__ import annotations

from enum import Enum, auto

from firebird_cdc.journal.folder.inventory import TransactionState


class Writer(Enum):
    """Knowledge of the process that wrote a journal, and of others that have its database open."""

    UNCHECKED = auto()
    """It lived when the journal was handed over or found; the state was read after that."""
    ALIVE = auto()
    """It lives, as was seen after the state was read."""
    ENDED = auto()
    """It ended since the journal was found, perhaps after a commit that the state is older than."""
    GONE = auto()
    """It had ended before the state was read; others may have the database open."""
    ALONE = auto()
    """The same, and there was a moment before the state was read when nobody had it open."""
    NOBODY = auto()
    """No bridge ran in the process, so nobody can tell whether it lives."""


class Action(Enum):
    """Next step for a journal that waits."""

    PUBLISH = auto()
    """Give it its number and name."""
    MARK_GAP = auto()
    """The same, as a gap: the engine has changes that the journal lacks."""
    REMOVE = auto()
    QUARANTINE = auto()
    """Keep it apart: it belongs to what was there before the database was restored or replaced."""
    KEEP = auto()
    """Nobody can say when it will be decided: let later ones pass."""
    WAIT = auto()
    """Ask again soon: nothing of its database passes it."""
    CHECK_WRITER = auto()
    """Look whether its process lives, and decide again."""
    LOOK_FOR_OTHERS = auto()
    """Look whether another process has the database open, then wait or keep it."""


def decide(
    state: TransactionState, writer: Writer, *, is_sealed: bool, is_on_disk: bool = True
) -> Action:
    """Return what becomes of a journal, by the table above.

    ``is_on_disk``: the database file says so, not an engine alone, which shows a commit to others
    before it writes it.
    """
    publish = Action.PUBLISH if is_sealed else Action.MARK_GAP
    if state is TransactionState.COMMITTED and is_on_disk:
        return publish
    if state is TransactionState.DEAD:
        return Action.REMOVE
    if state is TransactionState.LIMBO:
        return Action.KEEP
    if writer is Writer.UNCHECKED:
        return Action.CHECK_WRITER
    if writer is Writer.ENDED:
        return Action.WAIT
    if state is TransactionState.UNKNOWN:
        return Action.QUARANTINE if is_sealed or writer is Writer.ALIVE else Action.REMOVE
    if state is TransactionState.ACTIVE:
        return {
            Writer.ALIVE: Action.WAIT,
            Writer.GONE: Action.LOOK_FOR_OTHERS,
            Writer.ALONE: Action.REMOVE,
            Writer.NOBODY: Action.KEEP,
        }[writer]
    return publish if writer in (Writer.ALIVE, Writer.ALONE) else Action.LOOK_FOR_OTHERS
