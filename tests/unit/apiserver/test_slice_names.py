"""Names of slices: legal, sortable, the same every time, different for different nodes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gpu.apiserver.slice_names import slice_name

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL = st.from_regex(re.compile(r"[a-z0-9]([-a-z0-9]{0,60}[a-z0-9])?", re.ASCII), fullmatch=True)
NODE_NAME = st.lists(LABEL, min_size=1, max_size=4).map(".".join).filter(lambda name: len(name) <= 253)


def test_the_usual_name_is_index_driver_and_node() -> None:
    assert slice_name(17, "gpu.nvidia.com", "node-1", "node-1") == "00011-gpu.nvidia.com-node-1"


@given(node=NODE_NAME, index=st.integers(0, 0xFFFFF))
def test_every_node_name_gives_a_legal_name_that_is_the_same_again(node: str, index: int) -> None:
    name = slice_name(index, "gpu.nvidia.com", node, node)
    assert len(name) <= 253
    assert SUBDOMAIN.fullmatch(name)
    assert name == slice_name(index, "gpu.nvidia.com", node, node)
    assert int(name.partition("-")[0], 16) == index


@pytest.mark.case("C58")
def test_two_long_node_names_that_differ_at_the_end_have_different_slices() -> None:
    first, second = ("n" * 252 + letter for letter in "ab")
    assert slice_name(0, "gpu.nvidia.com", first, first) != slice_name(0, "gpu.nvidia.com", second, second)


def test_two_pools_of_one_node_have_different_slices() -> None:
    assert slice_name(0, "d", "n", "n") != slice_name(0, "d", "n", "n/other")


def test_names_sort_in_the_order_of_their_indices() -> None:
    names = [slice_name(index, "d", "n", "n") for index in range(300)]
    assert sorted(names) == names
