"""The commit protocol, explored in a model: no fault with its rules, one without each of them."""

from __future__ import annotations

import pytest
from commit_protocol import Protocol, Rule, Setting

_SUPER = Setting(processes=1, transactions=2, crashes=1)
_CLASSIC = Setting(processes=2, transactions=2, crashes=1)
_LIMBO = Setting(processes=1, transactions=2, crashes=1, has_limbo=True)

# What goes wrong without a rule, and where.
_FAULTS = {
    Rule.BELOW_OIT: (_SUPER, "T1 is lost: it is committed, and its journal removed"),
    Rule.FROM_FILE: (_CLASSIC, "T1 is lost: it is committed, and its journal removed"),
    Rule.ALONE: (_SUPER, "T1 is decided, and its journal stays for ever"),
    Rule.NOT_ON_WORD: (_CLASSIC, "a phantom: T1 is published and not committed"),
    Rule.LOOK_FIRST: (_SUPER, "T1 is lost: it is committed, and its journal removed"),
    Rule.STATE_DURABLE: (_SUPER, "a phantom: T1 is published and not committed"),
    Rule.COMMIT_DURABLE: (_SUPER, "T1 is published without all of its changes"),
    Rule.UNSEAL: (_LIMBO, "T1 is published without all of its changes"),
    Rule.VOID_FIRST: (_SUPER, "a phantom: T1 is published and not committed"),
    Rule.VOID_DURABLE: (_SUPER, "a phantom: T1 is published and not committed"),
    Rule.LEDGER_DURABLE: (_SUPER, "a number is given twice"),
    Rule.LEDGER_FIRST: (_SUPER, "a number is given twice, or T1 has two"),
    Rule.TICKET_ORDER: (_SUPER, "T2 is published before T1, whose row it changed"),
    Rule.NEVER_PAST: (_SUPER, "T2 is published before T1, whose row it changed"),
    Rule.ORPHANS_FIRST: (_SUPER, "T2 is published before T1, whose row it changed"),
    Rule.FLOORS: (_SUPER, "T2 is published before T1, whose row it changed"),
    Rule.LIMBO_TICKET: (_LIMBO, "T1 is published before T2, whose row it changed"),
    Rule.COUNTER_ABOVE: (_SUPER, "T2 is published before T1, whose row it changed"),
    Rule.STAMPS_RESTORED: (_SUPER, "T1 is published without a stamp"),
}


@pytest.mark.parametrize(
    ("setting", "least"),
    [
        pytest.param(
            Setting(processes=2, transactions=3, crashes=1),
            200_000,
            id="three transactions",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            Setting(processes=2, transactions=2, crashes=2, has_limbo=True),
            20_000,
            id="two crashes and limbo",
        ),
    ],
)
def test_model_with_all_rules_has_no_faulty_state(setting: Setting, least: int) -> None:
    states, fault = Protocol(setting).explore()
    print(f"{setting}: {states:,} states")
    assert fault is None, str(fault)
    assert states > least


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.name.lower())
def test_model_without_a_rule_finds_the_resulting_fault(rule: Rule) -> None:
    setting, wrong = _FAULTS[rule]
    states, fault = Protocol(setting, frozenset({rule})).explore(wrong)
    print(f"without the rule that {rule.value}, after {states:,} states:\n{fault}")
    assert fault is not None


def test_shortest_path_to_fault_1_is_a_header_before_its_inventory_page() -> None:
    _, fault = Protocol(_SUPER, frozenset({Rule.BELOW_OIT})).explore("lost")
    assert fault is not None
    assert fault.steps[-4:] == [
        "T1: the engine shows the commit",
        "the engine writes a header whose OIT is above T1",
        "all processes of the engine are killed",
        "T1: the leader removes the journal",
    ]
