"""The protocol of shared journals, explored in a model: no fault with its rules, one without each
of them."""

from __future__ import annotations

import pytest
from shared_journals import Protocol
from shared_state import Rule, Setting

_SUPER = Setting(processes=1, transactions=2, crashes=1)
_CLASSIC = Setting(processes=2, transactions=2, crashes=1)
_LIMBO = Setting(processes=1, transactions=2, crashes=1, has_limbo=True)
_FAILED_SYNC = Setting(processes=1, transactions=2, crashes=1, failed_syncs=1)

_LOST = "is lost: it is committed, and nobody looks for it"
_REMOVED = "is lost: it is committed, and its journal removed"
_PHANTOM = "T1 is published and not committed"
_PASSED = "T2 is published before T1, whose row it changed"
_INCOMPLETE = "T1 is published without all of its changes"
_TWICE = "a number is given twice"

# What goes wrong without a rule, and where.
_FAULTS = {
    Rule.BELOW_OIT: (_SUPER, _LOST),
    Rule.FROM_FILE: (_CLASSIC, _REMOVED),
    Rule.ALONE: (_SUPER, "stays for ever"),
    Rule.NOT_ON_WORD: (_CLASSIC, _PHANTOM),
    Rule.LOOK_FIRST: (_SUPER, _REMOVED),
    Rule.STATE_DURABLE: (_SUPER, _PHANTOM),
    Rule.VOID_FIRST: (_SUPER, _PHANTOM),
    Rule.TICKET_ORDER: (_SUPER, _PASSED),
    Rule.NEVER_PAST: (_SUPER, _PASSED),
    Rule.LIMBO_TICKET: (_LIMBO, _PASSED),
    Rule.COUNTER_ABOVE: (_LIMBO, _PASSED),
    Rule.SYNC_COVERS: (_SUPER, _LOST),
    Rule.FRESH_BLOCK: (_SUPER, _INCOMPLETE),
    Rule.VOID_DURABLE: (_SUPER, _PHANTOM),
    Rule.VOID_STAYS: (_SUPER, _PHANTOM),
    Rule.VOID_KEPT: (_FAILED_SYNC, _PHANTOM),
    Rule.REWRITE_FROM_MEMORY: (_FAILED_SYNC, _LOST),
    Rule.VOID_FORMER: (_FAILED_SYNC, _TWICE),
    Rule.KNOWN_BY_UUID: (_SUPER, _TWICE),
    Rule.LEDGER_DURABLE: (_SUPER, _TWICE),
    Rule.WALK_FIRST: (_SUPER, _PASSED),
    Rule.FLOORS: (_SUPER, _PASSED),
    Rule.LOCKED: (_SUPER, _REMOVED),
    Rule.CLOSE_DECIDED: (_SUPER, _REMOVED),
    Rule.INDEX_DURABLE: (_SUPER, _TWICE),
    Rule.GAP_FOR_SLOT: (_LIMBO, _LOST),
}


@pytest.mark.parametrize(
    ("setting", "least"),
    [
        pytest.param(_CLASSIC, 50_000, id="two processes"),
        pytest.param(_LIMBO, 50_000, id="limbo"),
        pytest.param(_FAILED_SYNC, 50_000, id="failed sync", marks=pytest.mark.soak),
        pytest.param(
            Setting(processes=1, transactions=2, crashes=1, has_limbo=True, failed_syncs=1),
            400_000,
            id="limbo and a failed sync",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            Setting(processes=2, transactions=2, crashes=2, has_limbo=True, failed_syncs=1),
            1_500_000,
            id="all at once",
            marks=[pytest.mark.soak, pytest.mark.timeout(1800)],
        ),
    ],
)
def test_shared_journals_with_all_rules_have_no_faulty_state(setting: Setting, least: int) -> None:
    states, fault = Protocol(setting).explore()
    print(f"{setting}: {states:,} states")
    assert fault is None, str(fault)
    assert states > least


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.name.lower())
def test_shared_journals_without_a_rule_have_the_resulting_fault(rule: Rule) -> None:
    setting, wrong = _FAULTS[rule]
    states, fault = Protocol(setting, frozenset({rule})).explore(wrong)
    print(f"without the rule that {rule.value}, after {states:,} states:\n{fault}")
    assert fault is not None


def test_shortest_path_to_a_torn_neighbour_is_an_append_behind_a_sync_and_a_power_cut() -> None:
    _, fault = Protocol(_SUPER, frozenset({Rule.FRESH_BLOCK})).explore(_INCOMPLETE)
    assert fault is not None
    steps = [step for step in fault.steps if "sync" in step or "prepare" in step or "cut" in step]
    assert steps == [
        "T1: prepare()",
        "a sync of journal 1 begins",
        "T2: prepare()",  # so the new block begins with the sync, not behind it
        "the sync of journal 1 ends",
        "power cut",
    ]


def test_void_in_a_journal_that_nobody_may_read_is_a_phantom_without_any_crash() -> None:
    _, fault = Protocol(_SUPER, frozenset({Rule.VOID_STAYS})).explore(_PHANTOM)
    assert fault is not None
    assert not any("killed" in step or "cut" in step for step in fault.steps)
