"""When two slices say the same, and what a server dropped."""

import pytest

from dra_gpu.api.resource_v1 import (
    CapacityRange,
    CapacityRequestPolicy,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
)
from dra_gpu.apiserver.slice_content import dropped_fields, keep_taint_times, same_accounting, same_content
from dra_gpu.inventory.slices import SliceContent


def device(
    *,
    name: str = "gpu-0",
    memory: str = "80Gi",
    minimum: str = "1Gi",
    consumed: str = "80Gi",
    shared: bool | None = True,
    taints: tuple[DeviceTaint, ...] = (),
    model: str = "H100",
) -> Device:
    policy = CapacityRequestPolicy(default=minimum, valid_range=CapacityRange(min=minimum)) if shared else None
    return Device(
        name,
        attributes={"productName": DeviceAttribute(string=model)},
        capacity={"memory": DeviceCapacity(memory, policy)},
        consumes_counters=[DeviceCounterConsumption("c", {"memory": Counter(consumed)})],
        taints=list(taints),
        allow_multiple_allocations=shared,
    )


def content(*devices: Device) -> SliceContent:
    return SliceContent(devices=devices)


def counter_slice(value: str) -> SliceContent:
    return SliceContent(counter_sets=(CounterSet("c", {"memory": Counter(value)}),))


def tainted(time_added: str | None, effect: str = "NoSchedule") -> SliceContent:
    return content(device(taints=(DeviceTaint("xid", effect, "79", time_added),)))


SAME = {
    "a capacity in other units": (content(device()), content(device(memory="85899345920"))),
    "a policy in other units": (content(device()), content(device(minimum="1073741824"))),
    "a consumption in other units": (content(device()), content(device(consumed="81920Mi"))),
    "a counter in other units": (counter_slice("80Gi"), counter_slice("81920Mi")),
    "a taint time that only one side has": (tainted(None), tainted("2026-07-01T00:00:00Z")),
    "taint times a second apart": (tainted("2026-07-01T00:00:00Z"), tainted("2026-07-01T00:00:01Z")),
    "taint times of two notations": (tainted("2026-07-01T00:00:00Z"), tainted("2026-07-01T02:00:00+02:00")),
    "an exclusive device said explicitly": (content(device(shared=None)), content(device(shared=False))),
}
DIFFERENT = {
    "another amount": (content(device()), content(device(memory="79Gi"))),
    "another minimum": (content(device()), content(device(minimum="2Gi"))),
    "another order": (content(device(name="a"), device(name="b")), content(device(name="b"), device(name="a"))),
    "another attribute": (content(device()), content(device(model="H200"))),
    "one device more": (content(device()), content(device(), device(name="b"))),
    "another counter": (counter_slice("80Gi"), counter_slice("40Gi")),
    "shared and not": (content(device()), content(device(shared=False))),
    "a taint and none": (content(device()), tainted(None)),
    "another effect": (tainted(None), tainted(None, "NoExecute")),
    "taint times two seconds apart": (tainted("2026-07-01T00:00:00Z"), tainted("2026-07-01T00:00:02Z")),
    "a quantity that is none": (content(device(memory="much")), content(device(memory="80Gi"))),
}


@pytest.mark.case("C55")
@pytest.mark.parametrize(("left", "right"), SAME.values(), ids=SAME.keys())
def test_no_change_is(left: SliceContent, right: SliceContent) -> None:
    assert same_content(left, right)
    assert same_content(right, left)


@pytest.mark.parametrize(("left", "right"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_a_change_is(left: SliceContent, right: SliceContent) -> None:
    assert not same_content(left, right)
    assert not same_content(right, left)


@pytest.mark.parametrize(
    "other",
    [device(memory="70Gi"), device(model="H200"), device(taints=(DeviceTaint("xid", "NoSchedule"),))],
    ids=["a capacity", "an attribute", "a taint"],
)
def test_the_accounting_is_not_touched_by(other: Device) -> None:
    assert same_accounting(content(device()), content(other))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (content(device()), content(device(), device(name="b"))),
        (content(device()), content(device(consumed="40Gi"))),
        (counter_slice("80Gi"), counter_slice("40Gi")),
    ],
    ids=["another set of devices", "another consumption", "another counter"],
)
def test_the_accounting_is_changed_by(left: SliceContent, right: SliceContent) -> None:
    assert not same_accounting(left, right)


def test_a_taint_without_a_time_takes_over_the_published_one() -> None:
    before = tainted("2026-07-01T00:00:00Z").devices[0]
    (after,) = keep_taint_times(tainted(None), {"gpu-0": before}).devices
    assert after.taints[0].time_added == "2026-07-01T00:00:00Z"


def test_a_taint_of_another_effect_does_not() -> None:
    before = tainted("2026-07-01T00:00:00Z", "None").devices[0]
    (after,) = keep_taint_times(tainted(None), {"gpu-0": before}).devices
    assert after.taints[0].time_added is None


@pytest.mark.parametrize(
    ("sent", "stored", "fields"),
    [
        (counter_slice("80Gi"), SliceContent(), {"sharedCounters"}),
        (
            content(device(shared=None)),
            content(Device("gpu-0", device().attributes, {"memory": DeviceCapacity("80Gi")})),
            {"consumesCounters"},
        ),
        (tainted(None), content(device()), {"taints"}),
        (content(device()), content(device(shared=None)), {"allowMultipleAllocations", "requestPolicy"}),
        (content(device()), content(device(model="other")), {"other"}),
        (content(device()), content(device(memory="81920Mi")), set()),
    ],
    ids=["counter sets", "consumption", "taints", "sharing", "something unknown", "nothing"],
)
def test_what_the_server_dropped_is_named(sent: SliceContent, stored: SliceContent, fields: set[str]) -> None:
    assert dropped_fields(sent, stored) == fields
