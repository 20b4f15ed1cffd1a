"""What the scheduler can allocate of a GPU is what the hardware can divide it into: no more, no less.

The rule of the hardware stands here a second time, written against the table of boards alone: memory units do not
overlap, compute slices and engines suffice, and of each profile there are at most as many as NVML says.
"""

from collections import Counter
from itertools import combinations

import pytest

from dra_gpu.api import quantity
from dra_gpu.inventory import naming, views
from dra_gpu.inventory.model import Scan, View
from dra_gpu.inventory.options import ViewOptions
from tests.unit.inventory import boards

ALL = (View.GPU, View.SHARED, View.MIG, View.SHARED_MIG, View.MONITOR)


def published(board, *foreign, shared=()):
    """Return the layout of one GPU of a board that offers all of its profiles, MIG mode on where that is needed."""
    gpu = boards.partitionable(board, mig_enabled=True, mig_pending=True, mig_instances=tuple(foreign))
    every = tuple(row["name"] for row in boards.rows(board))
    options = ViewOptions(ALL, mig_profiles=every, shared_mig_profiles=shared)
    return views.build(Scan(gpus=(gpu,)), naming.assign({}, [gpu]), options)


def amounts(counters):
    return Counter({name: quantity.parse_int(counter.value) for name, counter in counters.items()})


class Scheduler:
    """Adds up counters as Kubernetes does: a device fits while every counter it draws on has enough left."""

    def __init__(self, layout):
        [counter_set] = layout.counter_sets
        self._has = amounts(counter_set.counters)
        self._draws = {
            (device.placement.profile, device.placement.start): amounts(device.wire.consumes_counters[0].counters)
            for device in layout.inventory.devices.values()
            if device.view is View.MIG
        }

    @property
    def offered(self):
        return set(self._draws)

    def allows(self, chosen):
        total = Counter()
        for one in chosen:
            if one not in self._draws:
                return False
            total.update(self._draws[one])
        return all(amount <= self._has[name] for name, amount in total.items())


class Hardware:
    """A board by its table."""

    def __init__(self, board):
        self._rows = {row["nvml"]: row for row in boards.rows(board)}
        self._slices = boards.compute_slices(board)
        [whole] = [
            row["engines"] for row in boards.rows(board) if row["slices"] == self._slices and "+" not in row["name"]
        ]
        self._engines = [self._slices if count is None else count for count in whole]
        self.places = [(row["nvml"], start) for row in boards.rows(board) for start in row["starts"]]

    def units(self, place):
        return set(range(place[1], place[1] + self._rows[place[0]]["units"]))

    def allows(self, chosen):
        rows = [self._rows[profile] for profile, _ in chosen]
        units = [unit for place in chosen for unit in self.units(place)]
        if len(units) != len(set(units)) or sum(row["slices"] for row in rows) > self._slices:
            return False
        for number, has in enumerate(self._engines):
            counts = [row["engines"][number] for row in rows]
            if sum(row["slices"] if n is None else n for n, row in zip(counts, rows, strict=True)) > has:
                return False
        return all(count <= self._rows[nvml]["max"] for nvml, count in Counter(nvml for nvml, _ in chosen).items())

    def side_by_side(self):
        """Yield every set of places whose memory does not overlap, the empty one first."""
        ordered = sorted(self.places, key=lambda place: place[1])
        stack = [((), -1, 0)]
        while stack:
            chosen, position, end = stack.pop()
            yield chosen
            stack += [
                ((*chosen, place), later, max(self.units(place)) + 1)
                for later, place in enumerate(ordered[position + 1 :], position + 1)
                if place[1] >= end
            ]


@pytest.mark.parametrize("board", boards.BOARDS)
def test_counters_allow_exactly_the_divisions_that_the_hardware_allows(board):
    hardware, scheduler = Hardware(board), Scheduler(published(board))

    divisions = list(hardware.side_by_side())

    assert len(divisions) > 100
    assert [one for one in divisions if scheduler.allows(one) != hardware.allows(one)] == []


@pytest.mark.parametrize("board", boards.BOARDS)
def test_partitions_that_overlap_are_never_both_allocated(board):
    hardware, scheduler = Hardware(board), Scheduler(published(board))

    overlapping = [
        pair for pair in combinations(hardware.places, 2) if hardware.units(pair[0]) & hardware.units(pair[1])
    ]

    assert overlapping
    assert [pair for pair in overlapping if scheduler.allows(pair)] == []


@pytest.mark.parametrize("board", [boards.A30, boards.H100, boards.RTX_PRO])
def test_beside_an_administrators_instance_exactly_what_can_exist_with_it_is_allowed(board):
    hardware = Hardware(board)
    for row in boards.rows(board):
        for start in row["starts"]:
            there = (row["nvml"], start)
            scheduler = Scheduler(published(board, boards.instance(board, row["name"], start)))
            for others in hardware.side_by_side():
                if there not in others:
                    possible = hardware.allows((*others, there))
                    assert scheduler.allows(others) == possible, (there, others)
                    assert scheduler.allows((*others, there)) == possible, (there, others)


@pytest.mark.parametrize("board", sorted(set(boards.BOARDS) - boards.NEEDS_RESET))
def test_the_whole_gpu_and_its_shares_take_all_that_any_part_draws_on(board):
    layout = published(board, shared=tuple(row["name"] for row in boards.rows(board)))
    [counter_set] = layout.counter_sets

    drawn = {device.view: set() for device in layout.inventory.devices.values()}
    for device in layout.inventory.devices.values():
        for consumption in device.wire.consumes_counters:
            drawn[device.view] |= consumption.counters.items()

    assert drawn[View.GPU] == drawn[View.SHARED] == counter_set.counters.items()
    assert drawn[View.MIG] == drawn[View.SHARED_MIG] != set()
    assert drawn[View.MONITOR] == set()
