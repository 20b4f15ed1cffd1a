"""NVLink groups: shapes of real boards by name, and any graph of links against a search that tries every division."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gpu.inventory import topology
from dra_gpu.inventory.model import Fabric, NvLink
from tests.unit.inventory.builders import gpu, linked, switched

HALVES = ({0, 1, 2, 3}, {4, 5, 6, 7})
ACROSS = {0: 4, 1: 5, 2: 6, 3: 7, 4: 0, 5: 1, 6: 2, 7: 3}


def groups_of(gpus):
    by_name: dict[str, set[int]] = {}
    named = topology.nvlink_groups(gpus)
    for one in gpus:
        by_name.setdefault(named[one.uuid], set()).add(one.index)
    return sorted(map(sorted, by_name.values()))


def matching_pairs(gpus):
    """The pairs that `matchAttribute: gpu.nvidia.com/nvlinkGroup` accepts."""
    named = topology.nvlink_groups(gpus)
    return {(a.index, b.index) for a, b in combinations(gpus, 2) if named[a.uuid] == named[b.uuid]}


def mesh(numbers):
    """GPUs of which each has links to all others of its half of a cube, and one across."""
    return [linked(n, *sorted(half - {n}), ACROSS[n]) for half in HALVES for n in sorted(half) if n in numbers]


def test_gpus_without_links_match_nobody():
    assert matching_pairs([gpu(0), gpu(1)]) == set()


def test_the_group_of_a_gpu_without_links_is_its_own_uuid():
    one = gpu(3)
    assert topology.nvlink_groups([one]) == {one.uuid: one.uuid}


def test_bridged_pairs_match_within_the_pair():
    assert matching_pairs([linked(0, 1), linked(1, 0), linked(2, 3), linked(3, 2)]) == {(0, 1), (2, 3)}


def test_a_bridge_over_four_boards_joins_all_four():
    gpus = [linked(n, *({0, 1, 2, 3} - {n})) for n in range(4)]
    assert groups_of(gpus) == [[0, 1, 2, 3]]


def test_all_gpus_on_switches_are_one_group():
    assert groups_of([switched(0), switched(1), switched(2)]) == [[0, 1, 2]]


def test_a_gpu_with_one_link_to_the_switches_down_is_still_in_the_group():
    links = tuple(NvLink(link=n, active=n != 5, version=4, remote_is_switch=True) for n in range(18))
    assert groups_of([switched(0), switched(1), gpu(2, nvlinks=links)]) == [[0, 1, 2]]


def test_a_gpu_whose_links_to_the_switches_are_all_down_is_alone():
    assert groups_of([switched(0), switched(1), switched(2, active=False)]) == [[0, 1], [2]]


def test_a_gpu_that_has_not_registered_with_the_fabric_of_its_switches_is_alone():
    assert groups_of([switched(0), switched(1), switched(2, fabric_registered=False)]) == [[0, 1], [2]]


def test_gpus_on_the_switches_of_two_cliques_do_not_match_across_them():
    cliques = [Fabric("c", 1), Fabric("c", 1), Fabric("c", 2), Fabric("c", 2)]
    gpus = [switched(n, fabric=clique, fabric_registered=True) for n, clique in enumerate(cliques)]
    assert matching_pairs(gpus) == {(0, 1), (2, 3)}


def test_a_link_counts_only_when_both_ends_agree():
    assert groups_of([linked(0, 1), gpu(1)]) == [[0], [1]]


def test_a_link_to_what_is_no_gpu_of_this_node_joins_nobody():
    assert groups_of([linked(0, 9), linked(1, 9)]) == [[0], [1]]


def test_the_two_halves_of_a_cube_mesh_are_two_groups():
    assert groups_of(mesh(range(8))) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_half_of_a_cube_mesh_is_four_gpus_that_all_reach_each_other():
    assert groups_of(mesh(range(4))) == [[0, 1, 2, 3]]


def test_a_half_with_one_link_down_loses_one_gpu_and_not_two():
    gpus = [linked(0, 2, 3), linked(1, 2, 3), linked(2, 0, 1, 3), linked(3, 0, 1, 2)]
    assert groups_of(gpus) == [[0, 2, 3], [1]]


def test_of_two_ways_to_pair_the_one_that_leaves_nobody_alone_is_taken():
    chain = [linked(2, 0), linked(0, 2, 1), linked(1, 0, 3), linked(3, 1)]
    assert groups_of(chain) == [[0, 2], [1, 3]]


def test_links_between_more_gpus_than_any_board_has_are_divided_in_time():
    others = {n: [m for m in range(40) if m // 3 != n // 3] for n in range(40)}

    groups = groups_of([linked(n, *others[n]) for n in range(40)])

    assert sorted(n for group in groups for n in group) == list(range(40))
    assert all(b in others[a] for group in groups for a, b in combinations(group, 2))


@st.composite
def nodes(draw):
    """Up to eight GPUs: direct links with one or both ends up, and some on switches."""
    count = draw(st.integers(1, 8))
    pairs = list(combinations(range(count), 2))
    ends = draw(
        st.lists(st.sampled_from(["none", "both", "first", "second"]), min_size=len(pairs), max_size=len(pairs))
    )
    on_switch = draw(st.sets(st.integers(0, count - 1)))
    links: dict[int, list[NvLink]] = {n: [] for n in range(count)}
    joined = set()
    for (a, b), up in zip(pairs, ends, strict=True):
        for here, there, active in ((a, b, up in ("both", "first")), (b, a, up in ("both", "second"))):
            address = f"0000:{0x10 + there:02x}:00.0"
            links[here].append(NvLink(link=len(links[here]), active=active, remote_address=address))
        if up == "both" or {a, b} <= on_switch:
            joined.add((a, b))
    for n in on_switch:
        links[n].append(NvLink(link=len(links[n]), active=True, remote_is_switch=True))
    return [gpu(n, nvlinks=tuple(links[n])) for n in range(count)], joined


def divisions(members):
    """Every way to divide some GPUs into groups."""
    if not members:
        yield []
        return
    first, *rest = members
    for smaller in divisions(rest):
        yield [[first], *smaller]
        for position in range(len(smaller)):
            yield [*smaller[:position], [first, *smaller[position]], *smaller[position + 1 :]]


def largest_sizes(count, joined):
    """The sizes of the groups, largest first, of the division that has the largest ones."""
    fitting = (
        sorted(map(len, division), reverse=True)
        for division in divisions(list(range(count)))
        if all((a, b) in joined for group in division for a, b in combinations(sorted(group), 2))
    )
    return max(fitting)


@given(nodes())
def test_any_links_give_joined_groups_that_no_other_division_surpasses(made):
    gpus, joined = made

    groups = groups_of(gpus)

    assert sorted(n for group in groups for n in group) == list(range(len(gpus)))
    assert matching_pairs(gpus) <= joined
    assert sorted(map(len, groups), reverse=True) == largest_sizes(len(gpus), joined)


@given(nodes(), st.randoms(use_true_random=False))
def test_groups_do_not_depend_on_the_order_in_which_gpus_are_listed(made, random):
    gpus, _ = made
    mixed = random.sample(gpus, len(gpus))
    assert topology.nvlink_groups(mixed) == topology.nvlink_groups(gpus)


@pytest.mark.parametrize("count", [1, 2, 8, 16])
def test_a_board_with_switches_is_named_by_the_lowest_uuid(count):
    gpus = [switched(n) for n in range(count)]
    assert set(topology.nvlink_groups(gpus).values()) == {gpus[0].uuid}
