"""Places of partitions in the order that keeps large ones possible."""

from itertools import pairwise

import pytest

from dra_gpu.inventory import order
from tests.unit.inventory import boards


def starts(board, name, *existing):
    ordered = order.placements(boards.profiles(board), [one.placement for one in existing])
    return [place.start for profile, place in ordered if profile.name == name]


def test_the_smallest_go_where_nothing_larger_but_the_whole_could_be():
    assert starts(boards.H100, "1g.10gb")[0] == 6


def test_the_half_that_4g_needs_is_opened_last():
    assert set(starts(boards.H100, "1g.10gb")[:3]) == {4, 5, 6}
    assert starts(boards.H100, "3g.40gb") == [4, 0]
    assert starts(boards.H100, "2g.20gb")[0] == 4


def test_a_half_that_is_broken_is_filled_before_the_other_is_opened():
    for name in ("1g.10gb", "1g.20gb", "2g.20gb"):
        halves = [start // 4 for start in starts(boards.H100, name)]
        assert halves == sorted(halves, reverse=True)


def test_pairs_are_filled_one_after_the_other():
    pairs = [start // 2 for start in starts(boards.H100, "1g.10gb")]

    assert len([1 for one, following in pairwise(pairs) if one != following]) == 3


@pytest.mark.parametrize("board", boards.BOARDS)
def test_smaller_profiles_stand_before_larger_ones_and_no_place_is_lost(board):
    ordered = order.placements(boards.profiles(board))

    sizes = [place.size for _, place in ordered]
    assert sizes == sorted(sizes)
    assert sorted((p.profile, p.start) for _, p in ordered) == sorted(
        (place.profile, place.start) for profile in boards.profiles(board) for place in profile.placements
    )


def test_an_instance_that_is_there_already_is_taken_first():
    assert starts(boards.H100, "1g.10gb", boards.instance(boards.H100, "1g.10gb", 1))[0] == 1


def test_new_partitions_go_beside_those_that_are_there_already():
    beside = starts(boards.H100, "1g.10gb", boards.instance(boards.H100, "2g.20gb", 0))

    assert [start for start in beside if start > 1][:2] == [3, 2]


@pytest.mark.parametrize("board", boards.BOARDS)
def test_the_order_is_the_same_every_time(board):
    profiles = boards.profiles(board)

    assert order.placements(profiles) == order.placements(tuple(reversed(profiles)))
