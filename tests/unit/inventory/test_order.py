"""Places of partitions in the order that keeps large ones possible."""

from collections import Counter
from functools import cache
from itertools import pairwise

import pytest

from dra_gpu.inventory import order
from tests.unit.inventory import boards


def starts(board, name, *existing):
    ordered = order.placements(boards.profiles(board), [one.placement for one in existing])
    return [place.start for profile, place in ordered if profile.name == name]


def test_a_profile_lies_first_where_it_wastes_no_compute_slice():
    assert starts(boards.H100, "3g.40gb") == [4, 0]
    assert starts(boards.H100, "1g.20gb")[0] == 6


def test_the_smallest_leave_the_half_of_which_there_can_be_two():
    # The lower half can hold the one 4g, the upper one a 3g without waste, of which a GPU can have two.
    assert set(starts(boards.H100, "1g.10gb")[:4]) == {0, 1, 2, 3}
    assert starts(boards.H100, "2g.20gb")[:2] == [2, 0]


def test_the_smallest_leave_the_place_where_they_would_waste_a_unit_for_last():
    # The memory unit behind place 6 is of use only to a 1g.20gb there, or to a 3g.
    assert starts(boards.H100, "1g.10gb")[-1] == 6


def test_a_half_that_is_broken_is_filled_before_the_other_is_opened():
    for name in ("1g.10gb", "2g.20gb"):
        halves = [start // 4 for start in starts(boards.H100, name)]
        assert halves == sorted(halves)


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


class Packing:
    """One GPU of a board, filled as the scheduler does it: each request takes the first place of its profile's list."""

    def __init__(self, board):
        plain = [profile for profile in boards.profiles(board) if "+" not in profile.name]
        self._sizes = {profile.name: profile.placements[0].size for profile in plain}
        self._places = {profile.name: [place.start for place in profile.placements] for profile in plain}

    def in_our_order(self, board):
        return {name: tuple(starts(board, name)) for name in self._places}

    def alphabetical(self):
        return {name: tuple(sorted(places)) for name, places in self._places.items()}

    def chance(self, listed):
        """Return how likely all requests fit that can be had at once, on the mean over all such sets, in any order."""

        @cache
        def fits(used, left):
            if not left:
                return 1.0
            chance = 0.0
            for name, count in Counter(left).items():
                units = next((units for units in self._units(name, listed[name]) if not units & used), None)
                if units is not None:
                    rest = list(left)
                    rest.remove(name)
                    chance += count / len(left) * fits(used | units, tuple(rest))
            return chance

        divisions = self._divisions()
        return sum(fits(0, division) for division in divisions) / len(divisions)

    def _units(self, name, places):
        return [((1 << self._sizes[name]) - 1) << start for start in places]

    @cache  # noqa: B019 - lives as long as one test
    def _divisions(self):
        found = {(0, ())}
        new = set(found)
        while new:
            new = {
                (used | units, tuple(sorted((*made, name))))
                for used, made in new
                for name, places in self._places.items()
                for units in self._units(name, places)
                if not used & units
            } - found
            found |= new
        return sorted({made for _, made in found if made})


def test_what_can_be_had_at_once_mostly_fits_in_whatever_order_it_comes():
    packing = Packing(boards.H100)

    assert packing.chance(packing.in_our_order(boards.H100)) > 0.9
    assert packing.chance(packing.alphabetical()) < 0.81
