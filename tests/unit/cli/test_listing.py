import json

import msgspec
import pytest
import yaml

from dra_gpu.api import resource_v1 as api
from dra_gpu.api.claim_status_v1 import AllocatedDeviceStatus
from dra_gpu.api.device_taint_rule_v1 import DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector
from dra_gpu.cli import listing
from dra_gpu.cli.listing_output import Format, nothing_found, render
from dra_gpu.inventory import naming, slices, views
from dra_gpu.inventory.model import Scan, View
from dra_gpu.inventory.options import ViewOptions
from tests.unit.inventory.builders import gpu, linked

ALL = (View.GPU, View.SHARED, View.MONITOR)


def published(*gpus, node="node-a"):
    layout = views.build(Scan(gpus=gpus), naming.assign({}, gpus), ViewOptions(tuple(ALL)))
    return [
        api.ResourceSlice(
            spec=api.ResourceSliceSpec(
                driver=listing.DRIVER,
                pool=api.ResourcePool(name=node),
                node_name=node,
                devices=list(content.devices),
                shared_counters=list(content.counter_sets),
            )
        )
        for content in slices.arrange(layout)
    ]


def claim(name, device, *, driver=listing.DRIVER, admin=None, share=None, consumed=None, data=None):
    result = api.DeviceRequestAllocationResult(
        request="r",
        driver=driver,
        pool="node-a",
        device=device,
        admin_access=admin,
        share_id=share,
        consumed_capacity=consumed or {},
    )
    raw = msgspec.Raw(json.dumps(data).encode()) if data else msgspec.UNSET
    said = AllocatedDeviceStatus(driver, "node-a", device, share, data=raw)
    whole = listing.Claim(
        metadata=api.ObjectMeta(name=name, namespace="team"),
        status=listing._Status(
            allocation=api.AllocationResult(devices=api.DeviceAllocationResult(results=[result])),
            devices=(said,) if data else (),
        ),
    )
    return msgspec.json.decode(msgspec.json.encode(whole), type=listing.Claim)  # as it comes from a server


def share(name, percent, memory, *, data=None):
    consumed = {"computePercent": str(percent), "memory": memory, "clients": "1"}
    return claim(name, "gpu-0-shared", share=f"share-of-{name}", consumed=consumed, data=data)


SAID = {"capacities": {"computePercent": {"mechanism": "namespace"}, "memory": {"mechanism": "cgroup"}}}


def test_each_gpu_is_one_row_with_its_views():
    [first, second] = listing.combine(published(gpu(0), gpu(1)), [])

    assert first.name == "gpu-0"
    assert first.views == {"gpu": "gpu-0", "shared": "gpu-0-shared", "monitor": "gpu-0-monitor"}
    assert second.name == "gpu-1"


def test_holders_of_any_view_stand_beside_their_gpu_and_watchers_last():
    claims = [claim("watch", "gpu-0-monitor", admin=True), claim("train", "gpu-0"), claim("nic", "gpu-0", driver="x")]

    [first] = listing.combine(published(gpu(0)), claims)

    assert [(holder.claim, holder.view, holder.admin) for holder in first.holders] == [
        ("team/train", "gpu", False),
        ("team/watch", "monitor", True),
    ]


def test_what_enforces_a_share_is_what_the_node_wrote_into_its_claim():
    [first] = listing.combine(published(gpu(0)), [share("a", 20, "10Gi", data=SAID)])

    assert first.holders[0].mechanisms == {"computePercent": "namespace", "memory": "cgroup"}
    assert "team/a (20 % SMs, 10Gi)  SMs: namespace, memory: cgroup" in render([first], Format.TABLE)


def test_what_the_node_has_not_said_is_not_guessed():
    [first] = listing.combine(published(gpu(0)), [share("a", 20, "10Gi")])

    assert "not reported yet" in render([first], Format.TABLE)


@pytest.mark.parametrize(
    ("claims", "left"),
    [
        ([], (100, 80 * 2**30)),
        ([share("a", 20, "10Gi"), share("b", 30, "20Gi")], (50, 50 * 2**30)),
        ([claim("whole", "gpu-0")], (0, 0)),
        ([claim("whole with others", "gpu-0", share="1", consumed={"memory": "1Gi"})], (0, 0)),
        ([claim("watch", "gpu-0-monitor", admin=True)], (100, 80 * 2**30)),
    ],
)
def test_free_is_what_is_left_for_shares(claims, left):
    [first] = listing.combine(published(gpu(0)), claims)

    assert listing.free(first) == left


def test_gpu_10_stands_after_gpu_9():
    names = [one.name for one in listing.combine(published(gpu(9), gpu(10), gpu(1)), [])]

    assert names == ["gpu-1", "gpu-9", "gpu-10"]


def test_the_table_has_a_column_as_wide_as_its_widest_cell():
    gpus = listing.combine(published(gpu(0)), [share("a", 20, "10Gi"), share("b", 5, "1Gi")])

    header, first, second = render(gpus, Format.TABLE).splitlines()

    assert header.index("HELD BY") == first.index("team/a") == second.index("team/b")


def test_wide_names_what_joins_gpus_by_the_first_of_them():
    joined = [linked(0, 1, numa_node=0), linked(1, 0, numa_node=1), gpu(2)]

    rows = render(listing.combine(published(*joined), []), Format.WIDE).splitlines()

    head, start = rows[0], rows[0].index("NVLINK GROUP")
    assert [row[start:].split()[0] for row in rows[1:]] == ["gpu-0", "gpu-0", "-"]
    assert [row[head.index("NUMA") :].split()[0] for row in rows[1:]] == ["0", "1", "-"]


def test_machines_are_told_group_root_complex_and_numa_node_as_they_are_published():
    [found] = listing.combine(published(gpu(0, pcie_root="pci0000:10", numa_node=1)), [])

    assert (found.nvlink_group, found.pcie_root, found.numa_node) == (gpu(0).uuid, "pci0000:10", "1")


def test_wide_adds_what_identifies_a_gpu():
    [first] = listing.combine(published(gpu(0)), [])

    assert first.uuid not in render([first], Format.TABLE)
    assert first.uuid in render([first], Format.WIDE)


@pytest.mark.parametrize("mechanism", ["hardware", "cooperative"])
def test_what_enforces_everything_of_a_claim_is_said_once(mechanism):
    said = {"capacities": {name: {"mechanism": mechanism} for name in ("computePercent", "memory")}}

    [first] = listing.combine(published(gpu(0)), [share("a", 20, "10Gi", data=said)])

    assert f"(20 % SMs, 10Gi) {mechanism} ok" in " ".join(render([first], Format.TABLE).split())


def test_whoever_only_watches_is_marked_so():
    [first] = listing.combine(published(gpu(0)), [claim("watch", "gpu-0-monitor", admin=True)])

    assert "100 % SMs, 80Gi team/watch (admin access) - ok" in " ".join(render([first], Format.TABLE).split())


@pytest.mark.parametrize(
    ("memory", "shown"),
    [("81559Mi", "79.6Gi"), ("80Gi", "80Gi"), ("24564Mi", "23.9Gi"), ("1023Mi", "0.9Gi"), ("-", "-")],
)
def test_memory_is_shown_in_gibibytes_rounded_down_so_that_it_can_be_asked_for(memory, shown):
    [first] = listing.combine(published(gpu(0)), [])

    _, row = render([msgspec.structs.replace(first, memory=memory)], Format.TABLE).splitlines()

    cells = [cell.strip() for cell in row.split("  ") if cell.strip()]
    assert cells[3:5] == [shown, "100 % SMs" if shown == "-" else f"100 % SMs, {shown}"]


def test_an_empty_cluster_says_what_to_look_at():
    assert "is the driver installed" in nothing_found("")


def test_an_empty_node_is_named():
    assert "node 'node-z'" in nothing_found("node-z")


@pytest.mark.parametrize(("form", "parse"), [(Format.JSON, json.loads), (Format.YAML, yaml.safe_load)])
def test_machines_get_the_same(form, parse):
    document = parse(render(listing.combine(published(gpu(0)), [share("a", 20, "10Gi", data=SAID)]), form))

    [first] = document["gpus"]
    assert first["memory"] == "80Gi"
    assert first["holders"][0]["capacities"]["computePercent"] == "20"


def partition(profile, start, slices_taken, *, memory="10Gi"):
    """A partition of GPU 0 that takes memory slices from `start` on, as the node publishes it."""
    counters = {f"memory-slice-{number}": api.Counter("1") for number in range(start, start + slices_taken)}
    return api.Device(
        name=f"gpu-0-mig-{profile.replace('.', '')}-{start}",
        attributes={
            "type": api.DeviceAttribute(string=View.MIG.value),
            "profile": api.DeviceAttribute(string=profile),
            "parentUUID": api.DeviceAttribute(string=gpu(0).uuid),
        },
        capacity={"memory": api.DeviceCapacity(value=memory)},
        consumes_counters=[api.DeviceCounterConsumption(counter_set="gpu-0-slices", counters=counters)],
    )


def partitioned():
    """Slices of a GPU of two memory slices, that can be had in two halves or as one partition."""
    pool = api.ResourcePool(name="node-a")
    slices = api.CounterSet("gpu-0-slices", {f"memory-slice-{number}": api.Counter("1") for number in range(2)})
    devices = [partition("1g.10gb", 0, 1), partition("1g.10gb", 1, 1), partition("7g.80gb", 0, 2, memory="79Gi")]
    content = [{"shared_counters": [slices]}, {"devices": devices}]
    specs = [api.ResourceSliceSpec(driver=listing.DRIVER, pool=pool, node_name="node-a", **one) for one in content]
    return [*published(gpu(0)), *(api.ResourceSlice(spec=spec) for spec in specs)]


def test_partitions_are_no_rows_of_their_own():
    [only] = listing.combine(partitioned(), [])

    assert only.name == "gpu-0"
    assert only.free_partitions == {
        "7g.80gb": ("gpu-0-mig-7g80gb-0",),
        "1g.10gb": ("gpu-0-mig-1g10gb-0", "gpu-0-mig-1g10gb-1"),
    }


def test_beside_a_partition_that_is_held_those_are_free_that_still_fit():
    [only] = listing.combine(partitioned(), [claim("half", "gpu-0-mig-1g10gb-0")])

    assert only.free_partitions == {"1g.10gb": ("gpu-0-mig-1g10gb-1",)}
    assert "MIG 1g.10gb team/half (MIG 1g.10gb) - ok" in " ".join(render([only], Format.TABLE).split())


def test_a_fraction_of_a_partition_says_both():
    fraction = share("a", 50, "4Gi")
    [only] = listing.combine(partitioned(), [fraction])
    of_partition = msgspec.structs.replace(only.holders[0], profile="1g.10gb")

    table = render([msgspec.structs.replace(only, holders=(of_partition,))], Format.TABLE)

    assert "team/a (MIG 1g.10gb: 50 % SMs, 4Gi)" in table


def test_no_partition_is_free_once_they_are_all_used_up():
    [only] = listing.combine(partitioned(), [claim("all", "gpu-0-mig-7g80gb-0")])

    assert only.free_partitions == {}
    assert "79Gi" not in render([only], Format.TABLE)


def tainted(effect, *, key="resource.dra-gpu.dev/cordoned", selector=None):
    chosen = DeviceTaintSelector(listing.DRIVER, "node-a", "gpu-0") if selector is None else selector
    return DeviceTaintRule(spec=DeviceTaintRuleSpec(chosen, api.DeviceTaint(key, effect)))


@pytest.mark.parametrize(("effect", "word"), [("NoSchedule", "cordoned"), ("NoExecute", "drained")])
def test_a_gpu_that_a_person_has_taken_out_of_service_says_so(effect, word):
    [first, second] = listing.combine(published(gpu(0), gpu(1)), [], [tainted(effect)])

    assert (first.health, second.health) == (word, "ok")


@pytest.mark.parametrize(
    ("selector", "health"),
    [
        (DeviceTaintSelector(), "k"),
        (DeviceTaintSelector(driver="other.example.com"), "ok"),
        (DeviceTaintSelector(pool="node-b"), "ok"),
        (DeviceTaintSelector(device="gpu-0-shared"), "k"),
    ],
)
def test_a_rule_that_somebody_wrote_by_hand_is_named_by_its_key(selector, health):
    [first] = listing.combine(published(gpu(0)), [], [tainted("NoSchedule", key="k", selector=selector)])

    assert first.health == health


def test_a_rule_without_a_selector_is_about_no_device():
    rule = DeviceTaintRule(spec=DeviceTaintRuleSpec(None, api.DeviceTaint("k", "NoExecute")))

    assert listing.combine(published(gpu(0)), [], [rule])[0].health == "ok"


def test_what_is_in_force_of_a_share_is_what_its_node_says():
    said = {"capacities": {"memory": {"mechanism": "cgroup", "requested": "10Gi", "effective": "2Gi"}}}

    [first] = listing.combine(published(gpu(0)), [share("infer", 20, "10Gi", data=said)])

    assert first.holders[0].effective == {"memory": "2Gi"}


def test_what_a_claim_gave_back_is_free_and_what_it_kept_is_shown():
    slices_ = published(gpu(0))
    more = {"computePercent": api.DeviceCapacity("170"), "memory": api.DeviceCapacity("130Gi")}
    for index, one in enumerate(slices_):
        devices = [
            msgspec.structs.replace(device, capacity=device.capacity | more) if "-shared" in device.name else device
            for device in one.spec.devices
        ]
        slices_[index] = msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, devices=devices))
    kept = {
        "capacities": {
            "computePercent": {"mechanism": "namespace", "effective": "20"},
            "memory": {"mechanism": "cgroup", "effective": "10Gi"},
        }
    }
    growth = share("training-grow-0a1b2", 10, "1Gi")
    owner = api.OwnerReference("resource.dra-gpu.dev/v1alpha1", "ClaimResize", "other", "u")
    meta = api.ObjectMeta("other-grow-0a1b2", "team", labels={listing.GROWTH_LABEL: "c"}, owner_references=[owner])
    growth = msgspec.structs.replace(growth, metadata=meta)

    [found] = listing.combine(slices_, [share("training", 90, "60Gi", data=kept), growth])

    total = 80 * 2**30
    assert listing.free(found) == (170 - 90 - 10, 130 * 2**30 - 60 * 2**30 - 2**30)
    assert found.memory == "80Gi"
    assert found.given_back == {"computePercent": "70", "memory": f"{(130 * 2**30 - total) // 2**30}Gi"}
    assert [one.growth_of for one in found.holders] == ["team/other", ""]
    table = render([found], Format.TABLE)
    assert "team/training (20 % SMs, 10Gi)" in table
    assert "other" not in table
