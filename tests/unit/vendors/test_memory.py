"""Which GPUs are sick, from one look to the next."""

import pytest

from dra_gpu.inventory.model import SickGpu
from dra_gpu.vendors.nvidia.memory import Failed, Memory
from tests.unit.inventory.boards import H100, instance, partitionable
from tests.unit.inventory.builders import gpu, switched

LOST = "GPU is lost (15)"


def bound(*addresses):
    return lambda address: address in addresses


def after(*looks):
    """Return a memory of looks in which every GPU worked."""
    memory = Memory()
    for gpus in looks:
        memory.sick(gpus, (), bound())
    return memory


def test_a_gpu_that_fails_where_it_was_is_known_with_all_it_had():
    memory = after([gpu(0), gpu(1)])

    [sick] = memory.sick([gpu(0)], [Failed(1, LOST)], bound())

    assert sick == SickGpu("0000:11:00.0", LOST, gpu(1).uuid, gpu(1))


def test_a_gpu_that_was_never_seen_has_an_index_alone():
    [sick] = Memory().sick([gpu(0)], [Failed(1, LOST)], bound())

    assert sick == SickGpu("index 1", LOST)


def test_the_only_one_that_is_missing_is_the_one_that_fails_wherever_it_is_listed():
    memory = after([gpu(0), gpu(1), gpu(2)])

    [sick] = memory.sick([gpu(1, index=0), gpu(2, index=1)], [Failed(2, LOST)], bound())

    assert sick.uuid == gpu(0).uuid


def test_of_two_that_are_missing_one_that_fails_elsewhere_may_be_either():
    memory = after([gpu(0), gpu(1), gpu(2)])

    [first, *_] = memory.sick([gpu(2, index=0)], [Failed(5, LOST)], bound())

    assert first == SickGpu("index 5", LOST)


def test_a_gpu_that_is_no_longer_listed_while_the_driver_has_it_is_lost():
    memory = after([gpu(0), gpu(1)])

    [sick] = memory.sick([gpu(0)], [], bound("0000:11:00.0"))

    assert (sick.uuid, sick.last) == (gpu(1).uuid, gpu(1))
    assert "fallen off the bus" in sick.reason


def test_a_gpu_that_the_driver_gave_up_while_it_worked_was_taken_away():
    memory = after([gpu(0), gpu(1)])

    assert memory.sick([gpu(0)], [], bound("0000:10:00.0")) == ()


def test_a_gpu_that_was_lost_stays_lost_when_it_leaves_the_bus():
    memory = after([gpu(0), gpu(1)])
    memory.sick([gpu(0)], [Failed(1, LOST)], bound())

    looks = [memory.sick([gpu(0)], [], bound()) for _ in range(2)]

    assert [[sick.uuid for sick in look] for look in looks] == [[gpu(1).uuid]] * 2


@pytest.mark.parametrize("back", [gpu(1), gpu(1, pci_address="0000:77:00.0"), gpu(1, index=0)])
def test_a_gpu_that_returns_is_lost_no_more_wherever_it_is(back):
    memory = after([gpu(0), gpu(1)])
    memory.sick([gpu(0)], [Failed(1, LOST)], bound())

    assert memory.sick([gpu(0), back], [], bound()) == ()
    assert memory.sick([gpu(0)], [], bound()) == ()


def test_a_gpu_whose_slot_another_board_has_is_gone():
    memory = after([gpu(0), gpu(1)])
    memory.sick([gpu(0)], [Failed(1, LOST)], bound())

    assert memory.sick([gpu(0), gpu(9, pci_address="0000:11:00.0")], [], bound("0000:11:00.0")) == ()


def test_a_gpu_without_an_address_that_is_no_longer_listed_is_gone():
    memory = after([gpu(0), gpu(1, pci_address=None)])

    assert memory.sick([gpu(0)], [], bound()) == ()


def test_a_link_that_goes_down_takes_no_bandwidth_away():
    memory = after([gpu(0, nvlink_bandwidth=400)])

    assert memory.completed(gpu(0, nvlink_bandwidth=300)).nvlink_bandwidth == 400
    assert memory.completed(gpu(1, nvlink_bandwidth=300)).nvlink_bandwidth == 300


def test_a_gpu_that_does_not_tell_its_partitions_has_those_of_the_last_look():
    there = partitionable(H100, mig_enabled=True, mig_instances=(instance(H100, "1g.10gb", 2),))
    memory = after([there])
    silent = partitionable(H100, mig_enabled=True, mig_profiles=(), mig_instances=())

    found = memory.completed(silent)

    assert (found.mig_profiles, found.mig_instances) == (there.mig_profiles, there.mig_instances)


def test_a_gpu_that_is_partitioned_for_a_while_keeps_its_links():
    memory = after([switched(0, mig_live=True, mig_enabled=False, fabric_registered=True)])

    found = memory.completed(switched(0, active=False, mig_live=True, mig_enabled=True, fabric_registered=False))

    assert [link.active for link in found.nvlinks] == [True]
    assert found.fabric_registered
