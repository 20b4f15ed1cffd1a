"""What is published once claims have given something back."""

from dra_gpu.inventory import naming, slices, views
from dra_gpu.inventory.amounts import NOTHING, Amounts
from dra_gpu.inventory.given_back import with_given_back
from dra_gpu.inventory.model import Scan
from tests.unit.inventory.builders import gpu

GIB = 2**30
GPUS = [gpu(0), gpu(1)]
HARDWARE = slices.arrange(views.build(Scan(gpus=tuple(GPUS)), naming.assign({}, GPUS)))


def capacity(contents, name):
    [device] = [one for content in contents for one in content.devices if one.name == name]
    return {name: one.value for name, one in device.capacity.items()}


def test_a_shareable_device_has_the_hardware_and_what_was_given_back():
    before = capacity(HARDWARE, "gpu-0-shared")

    after = capacity(with_given_back(HARDWARE, {"gpu-0-shared": Amounts(70, 44 * GIB, 1)}), "gpu-0-shared")

    assert (before["computePercent"], after["computePercent"]) == ("100", "170")
    assert after["memory"] == "124Gi"
    assert int(after["clients"]) == int(before["clients"]) + 1


def test_nothing_else_changes_so_that_the_server_is_written_in_place():
    after = with_given_back(HARDWARE, {"gpu-0-shared": Amounts(70)})

    assert [[one.name for one in content.devices] for content in after] == [
        [one.name for one in content.devices] for content in HARDWARE
    ]
    assert capacity(after, "gpu-1-shared") == capacity(HARDWARE, "gpu-1-shared")
    assert capacity(after, "gpu-0") == capacity(HARDWARE, "gpu-0")


def test_nothing_given_back_is_the_hardware_itself():
    assert with_given_back(HARDWARE, {"gpu-0-shared": NOTHING}) == HARDWARE
    assert with_given_back(HARDWARE, {"gpu-7-shared": Amounts(70)}) == HARDWARE


def test_a_capacity_that_the_device_lacks_and_a_device_that_is_had_whole_stay_as_they_are():
    more = {"gpu-0": Amounts(70, GIB), "gpu-0-monitor": Amounts(70, GIB)}

    assert with_given_back(HARDWARE, more) == HARDWARE
