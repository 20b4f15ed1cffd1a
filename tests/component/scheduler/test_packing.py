"""What the order of published devices makes of claims, decided by kube-scheduler's own allocator."""

import hashlib
from collections import defaultdict

import pytest

from dra_gpu.inventory.model import Scan, View
from dra_gpu.inventory.options import ViewOptions
from tests.bench import packing, traces
from tests.bench.claims import claim
from tests.bench.needs import gpus_needed
from tests.bench.published import published
from tests.bench.real_allocator import RealAllocator
from tests.component.go_programs import builds_go
from tests.unit.inventory import boards
from tests.unit.inventory.builders import gpu, linked, switched

pytestmark = builds_go

OPTIONS = ViewOptions((View.GPU, View.SHARED, View.MIG, View.MONITOR))
NVLINK_GROUP = "gpu.nvidia.com/nvlinkGroup"
TRACES = "610a527245bf79156f3c2c9752b125c76341bf42dca8804e793ddc9679a88d0b"


@pytest.fixture(scope="module")
def real():
    with RealAllocator() as allocator:
        yield allocator


@pytest.fixture
def node(real):
    """Publish GPUs, and return what decides about claims on them."""

    def publish(gpus):
        real.load(published(Scan(gpus=tuple(gpus)), OPTIONS))
        return real

    return publish


def together(name, count, *, joined=True):
    """A claim for so many whole GPUs that all reach each other."""
    request = {
        "name": "gpus",
        "exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": count},
    }
    constraints = [{"requests": ["gpus"], "matchAttribute": NVLINK_GROUP}] if joined else []
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": name},
        "spec": {"devices": {"requests": [request], "constraints": constraints}},
    }


def numbers(results):
    return sorted(int(result["device"].split("-")[1]) for result in results)


PAIRS = [linked(0, 1), linked(1, 0), linked(2, 3), linked(3, 2)]
CROSSED = [linked(0, 2), linked(1, 3), linked(2, 0), linked(3, 1)]
HALVES = [linked(n, *({0, 1, 2, 3} - {n})) for n in range(4)] + [linked(n, *({4, 5, 6, 7} - {n})) for n in range(4, 8)]
L4 = [gpu(0), gpu(1)]


@pytest.mark.parametrize(
    ("gpus", "pairs"),
    [
        (PAIRS, [[2, 3], [0, 1]]),
        (CROSSED, [[1, 3], [0, 2]]),
        (HALVES, [[6, 7], [4, 5], [2, 3], [0, 1]]),
        ([switched(n) for n in range(4)], [[2, 3], [0, 1]]),
        ([switched(0), switched(1), switched(2, active=False), switched(3)], [[1, 3]]),
        (L4, []),
    ],
    ids=["bridges", "bridges across", "halves of a cube", "switches", "one GPU without links", "no NVLink"],
)
def test_claims_for_a_pair_get_joined_neighbours_until_there_is_no_pair_left(node, gpus, pairs):
    allocator = node(gpus)

    for number, pair in enumerate(pairs):
        assert numbers(allocator.place(together(f"pair-{number}", 2))) == pair
    assert allocator.place(together("one too many", 2)) is None


def test_a_pair_is_found_when_a_single_gpu_has_broken_another_one(node):
    allocator = node(PAIRS)
    allocator.place(together("single", 1, joined=False))

    assert numbers(allocator.place(together("pair", 2))) == [0, 1]


def test_two_gpus_without_a_wish_are_neighbours_all_the_same(node):
    assert numbers(node(CROSSED).place(together("two", 2, joined=False))) == [1, 3]


def test_four_that_reach_each_other_are_one_half_of_a_cube_mesh(node):
    allocator = node(HALVES)
    allocator.place(together("single", 1, joined=False))

    assert numbers(allocator.place(together("four", 4))) == [0, 1, 2, 3]
    assert allocator.place(together("four more", 4)) is None


def has_room(profile, taken):
    """Whether a place of a profile is free beside others, by the hardware's rules alone."""
    units, slices = 0, 0
    for other, place in taken:
        units, slices = units | place.units, slices + other.slices
    fits = slices + profile.slices <= boards.compute_slices(boards.H100)
    return fits and any(not place.units & units for place in profile.placements)


@pytest.mark.parametrize("seed", [seed for seed in traces.SEEDS if not traces.has_departures(seed)][::5])
def test_without_departures_no_partition_opens_a_gpu_while_an_open_one_has_room(node, seed):
    allocator = node([boards.partitionable(boards.H100, number) for number in range(traces.GPUS)])
    profiles = {profile.name: profile for profile in boards.profiles(boards.H100)}
    on_gpu = defaultdict(list)

    for arrival in traces.trace(seed).arrivals:
        results = allocator.place(claim(arrival.number, arrival.ask))
        if results is None:
            break
        if not isinstance(arrival.ask, traces.Partition):
            continue
        [number], profile = numbers(results), profiles[arrival.ask.profile]
        open_with_room = [other for other, taken in on_gpu.items() if has_room(profile, taken)]
        assert number in open_with_room or not open_with_room, results
        start = int(results[0]["device"].rpartition("-")[2])
        place = next(place for place in profile.placements if place.start == start)
        on_gpu[number].append((profile, place))

    assert on_gpu


@pytest.mark.parametrize(
    ("asks", "gpus"),
    [
        ([], 0),
        ([traces.ONE] * 7, 1),
        ([traces.ONE] * 8, 2),
        ([traces.THREE, traces.THREE], 1),
        ([traces.THREE, traces.FOUR], 1),
        ([traces.FOUR, traces.FOUR], 2),
        ([traces.TWO] * 3 + [traces.ONE], 1),
        ([traces.THREE, traces.THREE, traces.ONE], 2),
        ([traces.ONE_WIDE] * 4 + [traces.SEVEN], 2),
        ([traces.HALF, traces.QUARTER, traces.FIFTH], 1),
        ([traces.HALF, traces.QUARTER, traces.QUARTER, traces.TENTH], 2),
        ([traces.WHOLE, traces.ONE, traces.TENTH], 3),
    ],
)
def test_the_least_that_claims_need_is_what_the_hardware_can_hold(asks, gpus):
    assert gpus_needed(asks) == gpus


@pytest.mark.parametrize("seed", [0, 23, 48, 50, 73, 98])
def test_no_trace_comes_further_than_what_its_claims_need_allows(real, seed):
    gpus = [boards.partitionable(boards.H100, number) for number in range(traces.GPUS)]
    trace = traces.trace(seed)

    ours = packing.run(real, published(Scan(gpus=tuple(gpus)), OPTIONS), trace)

    assert 0 < ours.served <= packing.bound(trace).served < traces.ARRIVALS


def test_the_traces_are_those_that_were_written_down_before_the_order_was_tuned():
    made = repr([traces.trace(seed) for seed in traces.SEEDS])

    assert hashlib.sha256(made.encode()).hexdigest() == TRACES
