"""What is listed as wrong with a shape is what msgspec refuses, and nothing else."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gpu.api import opaque, shape, strict
from dra_gpu.api.compute_domain import ComputeDomain
from dra_gpu.api.config_error import InvalidConfigError
from tests.unit.api.valid_configs import MUTATED, VALID

TYPES = [*(kind for kinds in opaque.KINDS.values() for kind in kinds.values()), ComputeDomain]


@given(MUTATED, st.sampled_from(TYPES))
def test_a_value_has_problems_exactly_if_it_cannot_be_converted(value, wanted):
    try:
        msgspec.convert(value, wanted, dec_hook=strict._quantity)
    except msgspec.ValidationError:
        fits = False
    else:
        fits = True

    assert (shape.problems(value, wanted) == ()) is fits


@given(MUTATED)
def test_every_problem_has_a_field_a_reason_and_a_remedy(value):
    found = [problem for driver in opaque.KINDS for problem in _refusals(driver, value)]
    assert all(problem.reason and problem.remedy for problem in found)


def _refusals(driver, value):
    try:
        opaque.read(driver, value)
    except InvalidConfigError as error:
        return error.problems or pytest.fail("an error without a problem")
    return ()


@pytest.mark.parametrize(("driver", "value"), VALID)
def test_valid_configs_have_none(driver, value):
    assert opaque.read(driver, value)
