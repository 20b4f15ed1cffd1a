"""Amounts of capacities: sums, comparison, and how they go over the wire."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gpu.api.quantity import InvalidQuantityError
from dra_gpu.inventory.amounts import Amounts, parse

some = st.builds(Amounts, *(st.integers(0, 1 << 40) for _ in range(4)))


@given(some)
def test_amounts_come_back_from_the_wire_as_they_were(amounts):
    assert parse(amounts.wire()) == amounts
    assert parse(amounts.wire(zeros=True)) == amounts


@given(some, some)
def test_a_part_and_the_rest_are_the_whole(one, other):
    assert one + other - other == one
    assert one.at_most(other) + one.at_least(other) == one + other


@given(some, some)
def test_amounts_are_within_others_when_none_is_more(one, other):
    assert one.at_most(other).within(other)
    assert one.within(other) == (one.at_most(other) == one)


def test_one_capacity_that_is_more_is_not_within():
    assert not Amounts(20, 1).within(Amounts(10, 2))


def test_what_is_not_named_is_the_defaults():
    assert parse({"computePercent": 40, "unknown": "x"}, Amounts(20, 1 << 30)) == Amounts(40, 1 << 30)


def test_what_is_no_quantity_is_refused():
    with pytest.raises(InvalidQuantityError):
        parse({"memory": "much"})


def test_people_read_units():
    assert Amounts(20, 10 << 30, 1).text() == "20 % of the SMs, 10Gi of memory, 1 client"
    assert Amounts().text() == "nothing"
