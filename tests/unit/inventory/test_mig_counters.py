"""Counters of boards that nobody has built: limits that today's boards never reach are kept, too."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dra_gpu.api import quantity
from dra_gpu.inventory import counters
from dra_gpu.inventory.model import MigPlacement, MigProfile
from tests.unit.inventory import boards
from tests.unit.inventory.builders import GIB, gpu

UNITS = 6


@st.composite
def possible_profiles(draw):
    """Draw up to four profiles of a board of six memory units, beside one that is all of it."""
    whole = MigProfile(0, 0, "9g.60gb", 4, 60 * GIB, 100, placements=(MigPlacement(0, 0, UNITS),))
    parts = []
    for number in range(1, draw(st.integers(1, 4)) + 1):
        size = draw(st.integers(1, 4))
        starts = draw(st.sets(st.integers(0, UNITS - size), min_size=1))
        parts.append(
            MigProfile(
                profile=number,
                profile_id=10 + number,
                name=f"{number}g",
                slices=draw(st.integers(1, 4)),
                memory_bytes=draw(st.integers(1, 30)) * GIB,
                multiprocessors=draw(st.integers(1, 100)),
                decoders=draw(st.integers(0, 2)),
                ofa_engines=draw(st.integers(0, 1)),
                max_instances=draw(st.integers(1, 6)),
                placements=tuple(MigPlacement(number, start, size) for start in sorted(starts)),
            )
        )
    return (whole, *parts)


def side_by_side(places):
    stack = [((), list(places))]
    while stack:
        chosen, left = stack.pop()
        yield chosen
        stack += [
            ((*chosen, place), [other for other in left[number + 1 :] if not other.units & place.units])
            for number, place in enumerate(left)
        ]


@given(possible_profiles())
def test_slices_engines_and_instances_are_limited_on_any_board(profiles):
    board = gpu(0, memory_bytes=60 * GIB, multiprocessors=100, mig_profiles=profiles)
    counter_set = counters.of_gpu(board, "gpu-0", partitions=True)
    by_number = {profile.profile: profile for profile in profiles}
    most = {kind: max(getattr(p, kind) * p.max_instances for p in profiles) for kind in ("decoders", "ofa_engines")}

    for chosen in side_by_side([place for profile in profiles for place in profile.placements]):
        made = [by_number[place.profile] for place in chosen]
        possible = (
            sum(profile.slices for profile in made) <= 4
            and all(sum(getattr(profile, kind) for profile in made) <= most[kind] for kind in most)
            and all(made.count(profile) <= profile.max_instances for profile in made)
        )
        drawn = Counter()
        for place in chosen:
            taken = counters.of_partition(by_number[place.profile], place, counter_set).counters
            drawn.update({name: quantity.parse_int(counter.value) for name, counter in taken.items()})
        fits = all(amount <= quantity.parse_int(counter_set.counters[name].value) for name, amount in drawn.items())
        assert fits == possible


def test_a_profile_that_nothing_else_limits_is_counted_by_itself():
    # Without its engines, nothing but NVML's count says that there is one `+me` at a time.
    bare = tuple(
        MigProfile(
            p.profile,
            p.profile_id,
            p.name,
            p.slices,
            p.memory_bytes,
            p.multiprocessors,
            max_instances=p.max_instances,
            placements=p.placements,
        )
        for p in boards.profiles(boards.H100)
    )
    counted = counters.of_gpu(gpu(0, mig_profiles=bare), "gpu-0", partitions=True).counters

    assert {name: counter.value for name, counter in counted.items() if name.startswith("instances")} == {
        "instances-of-20": "1"
    }


def test_counters_have_the_names_of_nvidias_driver():
    counted = counters.of_gpu(boards.partitionable(boards.H100), "gpu-3", partitions=True)

    assert counted.name == "gpu-3-counter-set"
    assert list(counted.counters) == [
        "memory",
        "multiprocessors",
        "copy-engines",
        "decoders",
        "jpeg-engines",
        "ofa-engines",
        *(f"memory-slice-{unit}" for unit in range(8)),
    ]


def test_no_board_needs_more_counters_than_a_set_may_have():
    for board in boards.BOARDS:
        counted = counters.of_gpu(boards.partitionable(board), "gpu-0", partitions=True)
        assert len(counted.counters) <= 32


def test_sizes_that_do_not_add_up_never_forbid_a_division():
    # An H100 PCIe has 114 SMs, while NVML's sizes of four 1g and one 3g add up to 124.
    board = boards.partitionable(boards.H100, multiprocessors=114, memory_bytes=70 * GIB)
    counted = counters.of_gpu(board, "gpu-0", partitions=True).counters

    assert int(counted["multiprocessors"].value) >= 124
    assert quantity.parse_int(counted["memory"].value) >= sum(
        profile.memory_bytes * 2 for profile in board.mig_profiles if profile.name == "3g.40gb"
    )
