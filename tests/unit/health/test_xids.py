"""How grave an XID is: NVIDIA's catalogue, and what an operator makes of it."""

import pytest

from dra_gpu.health.xid_catalogue import CATALOGUE
from dra_gpu.health.xids import Severity, XidRules, describe, ignored, rules


@pytest.mark.parametrize(
    ("xid", "severity"),
    [
        (13, Severity.NOTICE),  # a workload's own error
        (31, Severity.NOTICE),
        (43, None),
        (45, Severity.NOTICE),
        (48, Severity.FATAL),
        (63, None),
        (64, Severity.FATAL),
        (74, Severity.FATAL),
        (79, Severity.LOST),
        (94, Severity.NOTICE),  # contained: only the workload has lost something
        (95, Severity.FATAL),
        (119, Severity.FATAL),
        (154, Severity.NOTICE),
    ],
)
def test_the_catalogue_decides(xid, severity):
    assert XidRules().severity(xid) is severity


@pytest.mark.parametrize("xid", [1, 173, 999])
def test_an_xid_that_nobody_knows_keeps_new_claims_away_and_evicts_nobody(xid):
    assert xid not in CATALOGUE
    assert XidRules().severity(xid) is Severity.CORDON


def test_the_operator_wins_over_the_catalogue():
    chosen = XidRules(rules("94=fatal, 79=notice,48=ignore"))

    assert [chosen.severity(xid) for xid in (94, 79, 48)] == [Severity.FATAL, Severity.NOTICE, None]
    assert chosen.severity(95) is Severity.FATAL


def test_a_message_says_what_it_is_and_what_to_do():
    assert describe(79) == "XID 79 (GPU has fallen off the bus): reboot the node"
    assert "does not list" in describe(999)


@pytest.mark.case("C104")
@pytest.mark.parametrize("text", ["13,31", " 13, 31 ,,", ",13 ,\t31,"])
def test_spaces_and_empty_items_of_a_list_do_not_matter(text):
    assert ignored(text) == (13, 31)


@pytest.mark.parametrize("text", ["", " ", ",,"])
def test_an_empty_list_ignores_nothing(text):
    assert ignored(text) == ()


@pytest.mark.case("C104")
@pytest.mark.parametrize(
    "item", ["abc", "99999999999", "1" * 5000, "0", "-1", "1.5", "0x1f", "1_3", "\uff11\uff13", "1000"]
)
def test_what_is_no_xid_is_refused_by_name(item):
    with pytest.raises(ValueError, match=r"must be the number of an XID, 1 to 999") as refusal:
        ignored(f" 13, 31 ,,{item}")

    assert repr(item) in str(refusal.value)


@pytest.mark.parametrize("item", ["94", "94=", "94=evict", "=fatal", "94:fatal", "94=fatal=x"])
def test_a_rule_that_says_nothing_clear_is_refused_by_name(item):
    with pytest.raises(ValueError, match="must be") as refusal:
        rules(f"13=ignore,{item}")

    assert item.partition("=")[0] in str(refusal.value)


def test_two_rules_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="contradicts what stands there of XID 94"):
        rules("94=fatal,94=ignore")


def test_the_same_rule_twice_is_one():
    assert rules("94=fatal,94=FATAL") == {94: Severity.FATAL}
