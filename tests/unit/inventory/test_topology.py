from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from dra_gpu.inventory import topology
from tests.unit.inventory.builders import gpu, linked, switched


def groups_of(gpus):
    by_name: dict[str, set[int]] = {}
    named = topology.nvlink_groups(gpus)
    for one in gpus:
        by_name.setdefault(named[one.uuid], set()).add(one.index)
    return sorted(map(sorted, by_name.values()))


def test_gpus_without_links_match_nobody():
    assert groups_of([gpu(0), gpu(1)]) == [[0], [1]]


def test_bridged_pairs_are_groups_of_two():
    gpus = [linked(0, 1), linked(1, 0), linked(2, 3), linked(3, 2)]

    assert groups_of(gpus) == [[0, 1], [2, 3]]


def test_all_gpus_on_switches_are_one_group():
    assert groups_of([switched(0), switched(1), switched(2)]) == [[0, 1, 2]]


def test_a_gpu_whose_links_to_the_switch_are_down_is_alone():
    assert groups_of([switched(0), switched(1), switched(2, active=False)]) == [[0, 1], [2]]


def test_a_link_counts_only_when_both_ends_agree():
    assert groups_of([linked(0, 1), gpu(1)]) == [[0], [1]]


def test_half_of_a_cube_mesh_is_four_gpus_that_all_reach_each_other():
    halves = [{0, 1, 2, 3}, {4, 5, 6, 7}]
    across = {0: 4, 1: 5, 2: 6, 3: 7, 4: 0, 5: 1, 6: 2, 7: 3}
    gpus = [linked(number, *sorted(half - {number}), across[number]) for half in halves for number in sorted(half)]

    assert groups_of(gpus) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda edge: edge[0] < edge[1])))
def test_within_a_group_every_pair_has_a_path_and_the_first_group_is_the_largest_possible(edges):
    others = {n: [b if a == n else a for a, b in edges if n in (a, b)] for n in range(7)}
    gpus = [linked(n, *others[n]) for n in range(7)]

    groups = groups_of(gpus)

    assert all(pair in edges for group in groups for pair in combinations(group, 2))
    largest = max(
        (
            size
            for size in range(1, 8)
            for nodes in combinations(range(7), size)
            if all(pair in edges for pair in combinations(nodes, 2))
        ),
    )
    assert max(map(len, groups)) == largest
