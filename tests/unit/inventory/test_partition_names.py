import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gpu.inventory import naming
from dra_gpu.inventory.model import MigPlacement, MigProfile
from dra_gpu.inventory.naming import PartitionName
from tests.unit.inventory import boards

DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def profile(name, number=0):
    return MigProfile(0, number, name, 1, 0, 0)


def test_a_partition_is_named_by_its_profile_and_its_place():
    assert naming.partition("gpu-0", profile("1g.10gb", 19), MigPlacement(0, 2, 1)) == "gpu-0-mig-1g10gb-19-2"


@pytest.mark.case("C80")
@pytest.mark.parametrize("board", boards.BOARDS)
def test_every_partition_of_a_board_has_a_name_of_its_own_that_is_a_dns_label(board):
    named = [
        naming.partition("gpu-15", profile, place, shared=shared)
        for profile in boards.profiles(board)
        for place in profile.placements
        for shared in (False, True)
    ]

    assert len(set(named)) == len(named)
    assert all(DNS_LABEL.fullmatch(name) for name in named)


@pytest.mark.case("C80")
@given(
    st.integers(0, 9999),
    st.text(max_size=96),
    st.integers(0, 2**32 - 1),
    st.integers(0, 99),
    st.booleans(),
)
def test_a_name_says_again_what_it_was_made_of(number, name, profile_id, start, shared):
    made = naming.partition(f"gpu-{number}", profile(name, profile_id), MigPlacement(0, start, 1), shared=shared)

    parsed = naming.parse_partition(made)

    assert DNS_LABEL.fullmatch(made)
    assert parsed is not None
    assert (parsed.gpu, parsed.profile_id, parsed.start, parsed.shared) == (f"gpu-{number}", profile_id, start, shared)
    assert str(parsed) == made


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpu-0-mig-1g24gb-me-all-65-9", PartitionName("gpu-0", "1g24gb-me-all", 65, 9)),
        ("gpu-11-mig-1g24gb-me-67-0-shared", PartitionName("gpu-11", "1g24gb-me", 67, 0, shared=True)),
    ],
)
def test_a_name_with_dashes_in_its_profile_is_understood(name, expected):
    assert naming.parse_partition(name) == expected


@pytest.mark.parametrize("name", ["gpu-0", "gpu-0-shared", "gpu-0-monitor", "gpu-0-mig-1g10gb-19", "gpu-vfio-1", ""])
def test_a_name_of_another_view_is_none_of_a_partition(name):
    assert naming.parse_partition(name) is None
