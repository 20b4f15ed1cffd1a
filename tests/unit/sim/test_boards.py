"""Profiles and their facts."""

import pytest

from dra_gpu_sim.boards import PROFILES, mig_tables, profile_named

EXPECTED = {"a100", "h100", "h200", "b200", "gb200", "l4", "rtx-pro-6000"} | {
    "p-plain2",
    "p-dc8",
    "p-a100",
    "p-mixed",
    "p-uma1",
    "p-nvl4",
}


def test_every_board_of_the_design_and_every_case_profile_exists():
    assert set(PROFILES) >= EXPECTED


def test_an_unknown_profile_is_refused_with_the_names_of_those_there_are():
    with pytest.raises(ValueError, match=r"'H900' does not exist: use one of A100, H100"):
        profile_named("H900")


def test_an_h100_has_the_memory_that_nvidia_smi_prints():
    assert profile_named("h100").boards[0].memory_mib == 81_559


@pytest.mark.parametrize("board", sorted(mig_tables()))
def test_placements_lie_within_the_memory_and_are_as_many_as_the_profile_allows(board):
    table = mig_tables()[board]
    for row in table.profiles:
        assert all(start + row.units <= table.units for start in row.starts), row.name
        assert row.max_instances <= len(row.starts), row.name


@pytest.mark.parametrize("board", sorted(mig_tables()))
def test_profile_ids_and_nvml_profiles_are_unique_on_a_board(board):
    rows = mig_tables()[board].profiles
    assert len({row.id for row in rows}) == len({row.nvml_profile for row in rows}) == len(rows)


def test_memory_of_a_partition_is_the_eighth_of_a_gib_that_listings_round():
    smallest = mig_tables()["A100-80GB"].profiles[0]
    assert (smallest.name, smallest.memory_mib) == ("1g.10gb", 9_856)
