import pytest

from dra_gpu.api import quantity
from dra_gpu.inventory import capacities, naming, slices, validation, views
from dra_gpu.inventory.model import DriverVersions, Scan, View
from dra_gpu.inventory.options import ViewOptions
from tests.unit.inventory.builders import gpu

DRIVER = DriverVersions("615.71.02", "13.4")


def shared(one, driver=DRIVER):
    return capacities.of_shared(one, driver)


def test_a_shared_gpu_has_percent_memory_clients_and_bandwidth():
    published = shared(gpu(0, nvlink_bandwidth=478_116_000_000))

    assert {name: capacity.value for name, capacity in published.items()} == {
        "computePercent": "100",
        "memory": "80Gi",
        "clients": "60",
        "nvlinkBandwidth": "478116000000",
    }


@pytest.mark.parametrize("missing", ["memory_bytes", "nvlink_bandwidth"])
def test_a_capacity_that_the_gpu_lacks_is_left_out(missing):
    names = {"memory_bytes": "memory", "nvlink_bandwidth": "nvlinkBandwidth"}

    assert names[missing] not in shared(gpu(0, **{missing: None}))


def test_what_a_claim_does_not_ask_for_costs_little():
    defaults = {name: one.request_policy.default for name, one in shared(gpu(0, nvlink_bandwidth=1)).items()}

    assert defaults == {"computePercent": "1", "memory": "1Gi", "clients": "1", "nvlinkBandwidth": "0"}


def test_the_value_can_shrink_to_its_minimum_without_the_server_refusing_the_slice():
    for capacity in shared(gpu(0, nvlink_bandwidth=1)).values():
        limits = capacity.request_policy.valid_range
        assert limits.max is None
        least = quantity.parse(limits.min) + quantity.parse(limits.step or "0")
        assert least <= quantity.parse(capacity.value)


@pytest.mark.parametrize(("cuda", "clients"), [("13.0", 48), ("13.1", 60), ("14.0", 60), ("12.8", 48), ("", 48)])
def test_the_number_of_clients_follows_the_cuda_driver(cuda, clients):
    assert capacities.max_clients(DriverVersions("x", cuda)) == clients


def test_a_shared_device_draws_on_the_whole_counter_set_of_its_gpu():
    one = gpu(0, isolation="namespace")
    layout = views.build(Scan(DRIVER, (one,)), naming.assign({}, [one]), ViewOptions((View.GPU, View.SHARED)))

    device, whole = layout.inventory.devices["gpu-0-shared"].wire, layout.inventory.devices["gpu-0"].wire
    assert device.consumes_counters == whole.consumes_counters
    assert device.allow_multiple_allocations
    assert device.attributes["isolation"].string == "namespace"
    assert validation.check("gpu.nvidia.com", "n", slices.arrange(layout))[1] == []


def test_shares_fill_the_first_gpu_and_whole_gpus_the_last():
    gpus = [gpu(0), gpu(1)]
    layout = views.build(Scan(DRIVER, tuple(gpus)), naming.assign({}, gpus), ViewOptions((View.GPU, View.SHARED)))

    assert list(layout.inventory.devices) == ["gpu-1", "gpu-0", "gpu-0-shared", "gpu-1-shared"]
