"""The decision about a journal that waits, row by row."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from firebird_cdc.bridge.confirm.decisions import Action, Writer, decide
from firebird_cdc.bridge.confirm.pending import NOBODY, FoundProcess, Pending
from firebird_cdc.journal.folder.inventory import TransactionState

_COMMITTED, _DEAD, _LIMBO, _UNKNOWN, _ACTIVE = (
    TransactionState.COMMITTED,
    TransactionState.DEAD,
    TransactionState.LIMBO,
    TransactionState.UNKNOWN,
    TransactionState.ACTIVE,
)
_ALL = tuple(Writer)
_GONE = (Writer.GONE, Writer.ALONE, Writer.NOBODY)

_Row = tuple[TransactionState, tuple[Writer, ...], Action, Action]

_BY_THE_FILE: tuple[_Row, ...] = (
    # state, writers, what becomes of a sealed journal, and of one that is not
    (_COMMITTED, _ALL, Action.PUBLISH, Action.MARK_GAP),
    (_DEAD, _ALL, Action.REMOVE, Action.REMOVE),
    (_LIMBO, _ALL, Action.KEEP, Action.KEEP),
    (_ACTIVE, (Writer.UNCHECKED,), Action.CHECK_WRITER, Action.CHECK_WRITER),
    (_ACTIVE, (Writer.ENDED, Writer.ALIVE), Action.WAIT, Action.WAIT),
    (_ACTIVE, (Writer.GONE,), Action.LOOK_FOR_OTHERS, Action.LOOK_FOR_OTHERS),
    (_ACTIVE, (Writer.ALONE,), Action.REMOVE, Action.REMOVE),
    (_ACTIVE, (Writer.NOBODY,), Action.KEEP, Action.KEEP),
    (_UNKNOWN, (Writer.UNCHECKED,), Action.CHECK_WRITER, Action.CHECK_WRITER),
    (_UNKNOWN, (Writer.ENDED,), Action.WAIT, Action.WAIT),
    (_UNKNOWN, (Writer.ALIVE,), Action.QUARANTINE, Action.QUARANTINE),
    (_UNKNOWN, _GONE, Action.QUARANTINE, Action.REMOVE),
)
_BY_AN_ENGINE: tuple[_Row, ...] = (
    (_COMMITTED, (Writer.UNCHECKED,), Action.CHECK_WRITER, Action.CHECK_WRITER),
    (_COMMITTED, (Writer.ENDED,), Action.WAIT, Action.WAIT),
    (_COMMITTED, (Writer.ALIVE, Writer.ALONE), Action.PUBLISH, Action.MARK_GAP),
    (
        _COMMITTED,
        (Writer.GONE, Writer.NOBODY),
        Action.LOOK_FOR_OTHERS,
        Action.LOOK_FOR_OTHERS,
    ),
    *_BY_THE_FILE[1:],
)


@pytest.mark.parametrize(("is_on_disk", "rows"), [(True, _BY_THE_FILE), (False, _BY_AN_ENGINE)])
def test_each_row_of_the_decision_table_gives_its_action(
    is_on_disk: bool, rows: tuple[_Row, ...]
) -> None:
    seen = []
    for state, writers, sealed, unsealed in rows:
        for writer in writers:
            seen.append((state, writer))
            decided = [
                decide(state, writer, is_sealed=is_sealed, is_on_disk=is_on_disk)
                for is_sealed in (True, False)
            ]
            assert decided == [sealed, unsealed], (state, writer)
    assert sorted(seen, key=str) == sorted(itertools.product(TransactionState, Writer), key=str)


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize("writer", Writer)
def test_only_journals_of_committed_transactions_are_published(
    writer: Writer, is_sealed: bool
) -> None:
    for state in set(TransactionState) - {_COMMITTED}:
        action = decide(state, writer, is_sealed=is_sealed)
        assert action not in (Action.PUBLISH, Action.MARK_GAP)


@pytest.mark.parametrize("is_on_disk", [True, False])
@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize("writer", Writer)
def test_no_journal_of_a_possibly_committed_transaction_is_removed(
    writer: Writer, is_sealed: bool, is_on_disk: bool
) -> None:
    for state in (_COMMITTED, _LIMBO):
        action = decide(state, writer, is_sealed=is_sealed, is_on_disk=is_on_disk)
        assert action not in (Action.REMOVE, Action.QUARANTINE)


@pytest.mark.parametrize(
    ("state", "action"),
    [
        (TransactionState.ACTIVE, Action.KEEP),
        (TransactionState.COMMITTED, Action.PUBLISH),  # as an engine says
    ],
)
def test_journal_that_was_written_without_a_bridge_is_kept_while_active_though_nobody_was_there(
    state: TransactionState, action: Action
) -> None:
    header: Any = SimpleNamespace(owner=NOBODY)
    uuid = uuid4()
    pending = Pending(
        uuid, uuid, 0, "/srv/a.fdb", 7, 1, 0, 0, 0, 1, process=FoundProcess(header, is_alone=True)
    )
    assert decide(state, pending.writer(state), is_sealed=True, is_on_disk=False) is action
