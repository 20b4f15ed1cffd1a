from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gpu.api import quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80Gi", 80 * 2**30),
        ("100G", 100 * 10**9),
        ("1500m", Fraction(3, 2)),
        ("0.5", Fraction(1, 2)),
        ("1e3", 1000),
        ("2E", 2 * 10**18),
        ("-1Ki", -1024),
        ("+5", 5),
        (".5k", 500),
        ("1E-2", Fraction(1, 100)),
    ],
)
def test_a_quantity_has_its_exact_value(text, value):
    assert quantity.parse(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "10 Gi", "10GiB", "1.2.3", "0x10", "1e", "NaN", "٣", "9" * 65])
def test_what_is_no_quantity_is_refused_by_name(text):
    with pytest.raises(quantity.InvalidQuantityError, match="10Gi"):
        quantity.parse(text)


@pytest.mark.case("C55")
def test_two_spellings_of_one_amount_are_equal():
    assert quantity.equal("80Gi", "85899345920")


def test_whole_units_are_rounded_up():
    assert quantity.parse_int("1500m") == 2


@given(st.integers(0, 2**70))
def test_formatting_bytes_loses_nothing(value):
    assert quantity.parse(quantity.format_bytes(value)) == value


@given(st.text(max_size=80))
def test_no_text_does_more_than_parse_or_be_refused(text):
    try:
        quantity.parse(text)
    except quantity.InvalidQuantityError:
        return
