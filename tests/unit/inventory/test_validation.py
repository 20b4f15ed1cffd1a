import pytest

from dra_gpu.api.resource_v1 import Counter, CounterSet, Device, DeviceAttribute, DeviceCounterConsumption
from dra_gpu.inventory import validation
from dra_gpu.inventory.slices import SliceContent

SET = CounterSet(name="gpu-0-counter-set", counters={"memory": Counter(value="80Gi")})


def consuming(amount="80Gi", counter="memory", counter_set="gpu-0-counter-set"):
    return Device(
        name="gpu-0",
        consumes_counters=[
            DeviceCounterConsumption(counter_set=counter_set, counters={counter: Counter(value=amount)})
        ],
    )


def check(*devices, sets=(SET,)):
    return validation.check(
        "gpu.nvidia.com", "node", [SliceContent(counter_sets=sets), SliceContent(devices=tuple(devices))]
    )


@pytest.mark.case("C53")
@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("numa-3", DeviceAttribute(int_=3)),
        ("socket-134217728", DeviceAttribute(int_=1)),
        ("a" * 33, DeviceAttribute(int_=1)),
        ("Bad_Domain/x", DeviceAttribute(int_=1)),
        ("none", DeviceAttribute()),
        ("both", DeviceAttribute(int_=1, string="x")),
        ("version", DeviceAttribute(version="12.4")),
        ("text", DeviceAttribute(string="x" * 65)),
    ],
)
def test_a_bad_attribute_costs_only_itself(name, attribute):
    device = Device(name="gpu-0", attributes={name: attribute, "good": DeviceAttribute(int_=1)})

    contents, [problem] = check(device)

    assert contents[1].devices[0].attributes == {"good": DeviceAttribute(int_=1)}
    assert name in problem.where


@pytest.mark.parametrize(
    ("device", "word"),
    [
        (Device(name="GPU-AAAA"), "DNS label"),
        (consuming(counter_set="gpu-9-counter-set"), "does not have"),
        (consuming(counter="slices"), "does not have"),
        (consuming(amount="81Gi"), "more than"),
        (consuming(amount="-1"), "at least 0"),
    ],
)
def test_a_device_that_would_spoil_the_pool_is_left_out_and_named(device, word):
    contents, [problem] = check(device, Device(name="gpu-1"))

    assert [kept.name for kept in contents[1].devices] == ["gpu-1"]
    assert word in problem.reason


def test_the_second_of_two_equal_names_is_left_out():
    contents, [problem] = check(Device(name="gpu-0"), Device(name="gpu-0"))

    assert len(contents[1].devices) == 1
    assert "taken" in problem.reason


@pytest.mark.parametrize(("driver", "pool"), [("GPU", "node"), ("gpu.nvidia.com", "UPPER"), ("gpu.nvidia.com", "")])
def test_an_illegal_name_of_driver_or_pool_refuses_the_pool(driver, pool):
    with pytest.raises(validation.InvalidPoolError):
        validation.check(driver, pool, [SliceContent()])


def test_devices_and_counter_sets_in_one_slice_are_refused():
    with pytest.raises(validation.InvalidPoolError, match="both"):
        validation.check("gpu.nvidia.com", "node", [SliceContent(devices=(Device(name="a"),), counter_sets=(SET,))])
