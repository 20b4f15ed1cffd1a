import pytest

from dra_gpu.inventory import naming, slices, validation, views
from dra_gpu.inventory.model import DriverVersions, Fabric, NvLink, Scan, SickGpu, View
from dra_gpu.inventory.options import DEFAULT_VIEWS, ViewOptions
from tests.unit.inventory.builders import gpu, switched

VERSIONS = DriverVersions(driver="580.65.06", compute_api="13.0")


WHOLE = (View.GPU, View.MONITOR)


def layout(gpus, chosen=WHOLE):
    scan = Scan(versions=VERSIONS, gpus=tuple(gpus))
    return views.build(scan, naming.assign({}, scan.gpus), ViewOptions(tuple(chosen)))


def test_whole_gpus_stand_last_to_first_and_monitors_first_to_last():
    names = list(layout([gpu(0), gpu(1), gpu(2)]).inventory.devices)

    assert names == ["gpu-2", "gpu-1", "gpu-0", "gpu-0-monitor", "gpu-1-monitor", "gpu-2-monitor"]


def test_the_order_does_not_depend_on_the_order_of_enumeration():
    gpus = [gpu(0), gpu(1), gpu(2)]

    assert layout(reversed(gpus)).inventory.devices == layout(gpus).inventory.devices


def test_a_lost_gpu_is_published_as_it_was_and_does_not_work():
    gpus = (gpu(0), gpu(1))
    lost = SickGpu("0000:11:00.0", "fallen off the bus", gpu(1).uuid, gpu(1))

    built = views.build(Scan(VERSIONS, (gpu(0),), (lost,)), naming.assign({}, gpus), ViewOptions(WHOLE))

    assert built.inventory.devices == layout(gpus).inventory.devices
    assert built.counter_sets == layout(gpus).counter_sets
    assert (list(built.inventory.gpus), list(built.inventory.lost)) == ([gpu(0).uuid], [gpu(1).uuid])
    assert built.inventory.known_gpu(gpu(1).uuid) == gpu(1)


def test_a_gpu_that_works_is_not_lost_whatever_a_twin_of_it_says():
    twin = SickGpu("index 1", "NVML gives it the UUID of GPU 0", gpu(0).uuid, gpu(0))

    built = views.build(Scan(VERSIONS, (gpu(0),), (twin,)), naming.assign({}, [gpu(0)]), ViewOptions(WHOLE))

    assert built.inventory.lost == {}
    assert list(built.inventory.devices) == ["gpu-0", "gpu-0-monitor"]


def test_a_whole_gpu_takes_all_of_its_counter_set():
    built = layout([gpu(0)])

    [consumption] = built.inventory.devices["gpu-0"].wire.consumes_counters
    [counter_set] = built.counter_sets
    assert consumption.counter_set == counter_set.name == "gpu-0-counter-set"
    assert consumption.counters == counter_set.counters


def test_a_monitor_takes_nothing_and_can_be_had_by_many():
    monitor = layout([gpu(0)]).inventory.devices["gpu-0-monitor"].wire

    assert not monitor.consumes_counters
    assert not monitor.capacity
    assert monitor.allow_multiple_allocations


@pytest.mark.case("C67")
def test_a_gpu_that_tells_only_its_uuid_is_published_and_given_away_once():
    bare = gpu(0, pci_address=None, product_name=None, memory_bytes=None, multiprocessors=None, compute_capability=None)
    built = layout([bare])

    whole = built.inventory.devices["gpu-0"].wire
    assert set(whole.attributes) == {
        "type",
        "uuid",
        "driverVersion",
        "driverVersionText",
        "cudaDriverVersion",
        "nvlinkGroup",
        "isolation",
    }
    assert whole.consumes_counters[0].counters["unit"].value == "1"


@pytest.mark.case("C59")
@pytest.mark.parametrize("mebibytes", [16380, 81559, 97871, 46068])
def test_memory_is_exact_to_the_mebibyte(mebibytes):
    wire = layout([gpu(0, memory_bytes=mebibytes * 2**20)]).inventory.devices["gpu-0"].wire

    assert wire.capacity["memory"].value == f"{mebibytes}Mi"


@pytest.mark.case("C52")
def test_the_raw_driver_version_stands_beside_the_semver():
    attributes = layout([gpu(0)]).inventory.devices["gpu-0"].wire.attributes

    assert attributes["driverVersion"].version == "580.65.6"
    assert attributes["driverVersionText"].string == "580.65.06"


def full(number):
    return gpu(
        number,
        brand="NVIDIA",
        architecture="Hopper",
        addressing_mode="HMM",
        pcie_root="pci0000:10",
        numa_node=0,
        mig_capable=True,
        confidential_compute=False,
        fabric=Fabric("c", 1),
        nvlinks=(NvLink(0, active=True, version=4),),
    )


@pytest.mark.parametrize("view", DEFAULT_VIEWS)
def test_no_device_has_more_than_32_attributes_and_capacities(view):
    devices = layout([full(0)], [view]).inventory.devices.values()

    assert all(len(device.wire.attributes) + len(device.wire.capacity) <= 32 for device in devices)


def test_an_attribute_has_one_type_in_a_view():
    devices = layout([full(0), full(1), gpu(2), switched(3)], DEFAULT_VIEWS).inventory.devices.values()

    types: dict[tuple[View, str], set[str]] = {}
    for device in devices:
        for name, attribute in device.wire.attributes.items():
            kind = next(f for f in attribute.__struct_fields__ if getattr(attribute, f) is not None)
            types.setdefault((device.view, name), set()).add(kind)
    assert all(len(kinds) == 1 for kinds in types.values())


@pytest.mark.case("C50")
@pytest.mark.parametrize("count", [1, 8, 9, 11, 16, 40])
def test_every_slice_stays_within_the_limits_of_the_api(count):
    contents = slices.arrange(layout([gpu(number) for number in range(count)], DEFAULT_VIEWS))

    checked, problems = validation.check("gpu.nvidia.com", "node", contents)
    assert problems == []
    assert checked == contents
    assert all(len(content.devices) <= 64 and len(content.counter_sets) <= 8 for content in contents)
    assert sum(len(content.devices) for content in contents) == 3 * count


def test_a_node_without_gpus_publishes_one_empty_slice():
    assert slices.arrange(layout([])) == (slices.SliceContent(),)
